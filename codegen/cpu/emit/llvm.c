/* llvm.c: the machine side of LLVM: CPUs (arch.def), modules, and instructions that not every CPU has.
 *
 * In: a name of --arch.   Out: its row, an open module. One LLVM context holds what is emitted; kernels carry their CPU
 * as function attributes. Machine code is made elsewhere (unit.c). Refuses unknown CPU names. */
#include "../cpu.h"
#include <llvm-c/Target.h>
#include <pthread.h>
#include <string.h>

/* All that LLVM takes instructions from when it compiles for the level or the CPU, unasked too: a virtual machine may
 * hide any of it. */
#define V2 "sse4.2 popcnt"
#define V3 V2 " avx2 fma f16c bmi bmi2 lzcnt movbe"
#define V4 V3 " avx512f avx512bw avx512cd avx512dq avx512vl"
#define VBMI V4 " avx512vbmi avx512vbmi2 avx512ifma avx512vnni avx512bitalg avx512vpopcntdq gfni"

/* Matrix tiles may be hidden by a hypervisor on CPUs that have them: then `sapphirerapids-noamx` stands for all
 * of these. */
#define AVX512_FP16 VBMI " avx512bf16 avx512fp16"
#define AMX AVX512_FP16 " amx-tile amx-bf16"
#define NO_AMX "-avxvnni,-amx-tile,-amx-bf16,-amx-int8"
#define EMULATED "+avx512vbmi,+avx512bf16"

/* What the kernels were measured with, arch.def's last but one column: caches of Zen 4, and on two threads of a machine
 * memory, elementwise ops, contractions; 512 instructions of 16 operations each; how contractions are cut. ZEN4: at
 * most 64 bytes of products in a cycle. EMERALD: two units for products of 64 bytes, which its L2 feeds too slowly: a
 * weight gradient's operands are copied first (ResNet-50's gradients 230 -> 285 GFLOP/s), and 7/4 of a recurrence's
 * weights, which come from L3 in each step, cost more than an eighth of the products saves. Of one image the weights'
 * way from L3 or memory binds: fetched 8 KiB ahead, ResNet-50's 10.5 ms were 12.4, ViT's 44.5 were 47.2. Of many rows
 * the first tile over a panel waits for it: where tiles ask for the next one dense layers took 149 ms that were 164,
 * and turns of four steps a twentieth less than of one where other machines' threads share its cores.
 * ZEN5: two such units, two loads and 64 bytes of L2 a cycle: higher tasks, shorter passes and copies were within 1 %
 * there. AVX2: two units for products of 32 bytes, measured on Zen 3: tiles are so narrow that each takes a part of a
 * cache line, and a weight gradient's operands are copied first; every thread reads a recurrence's weights in each
 * step from its L3, which brings 7/4 of them too slowly for an eighth of the products. */
#define BUDGET(gb, elementwise, products_, ...) \
	{.l1 = 32 << 10, .l2 = 1 << 20, .l3 = 32 << 20, .task = 8192, \
	 .rates = {.bytes = gb * 1e9, .flops = elementwise * 1e9, .products = products_ * 1e9}, __VA_ARGS__}
#define ZEN4 BUDGET(45, 150, 225, .dw_vectors = 4, .unroll = 1)
#define AVX2 BUDGET(45, 150, 225, .copy_steps = 128, .pass = 128, .dw_vectors = 2, .dw_copy = true, \
                    .unroll = 4, .slow_l3 = true)
#define EMERALD BUDGET(45, 150, 350, .task_rows = 96, .copy_steps = 128, .pass = 256, .dw_vectors = 4, \
                       .unroll = 4, .ahead = 8 << 10, .next = true, .dw_copy = true, .slow_l3 = true)
#define ZEN5 BUDGET(55, 300, 440, .dw_vectors = 4, .unroll = 1)

static const Arch arches[] = {
#define ARCH(id, llvm, feature, need, vector, registers, fma, load, ghz, l1_kib, l2_kib, l3_kib, sharing, of, count, \
             ...) \
	{.name = id, .cpu = llvm, .features = feature, .needs = need, .vector_bytes = vector, __VA_ARGS__, \
	 .machine = {.arch = id, .model = of, .line = 64, .vector_bytes = vector, .vector_registers = registers, \
	             .l1 = {l1_kib << 10, 1}, .l2 = {l2_kib << 10, 1}, .l3 = {l3_kib << 10, sharing}, \
	             .fmas = fma, .loads = load, .hz = ghz * 1e9, .rates = {.bytes = 12e9}, .budget = count}},
#include "../arch.def"
#undef ARCH
};

/* The row for a CPU that has none of its own; `name` where none is known. */
static const char *
arch_of_other(const char *name)
{
	static const struct { const char *name, *row; } others[] = {
#define OTHER(id, of) {id, of},
#include "../arch.def"
#undef OTHER
	};

	for (size_t i = 0; i < sizeof others / sizeof *others; i++)
		if (!strcmp(others[i].name, name))
			return others[i].row;
	return name;
}

const Arch *
arch_named(const char *name)
{
	name = arch_of_other(name);
	for (size_t i = 0; i < sizeof arches / sizeof *arches; i++)
		if (!strcmp(arches[i].name, name))
			return &arches[i];
	return NULL;
}

const Arch *
arch_for(const Graph *g)
{
	return arch_named(g->module->arch ? g->module->arch : arch_native());
}

const Machine *
machine_of(const Graph *g)
{
	return &arch_for(g)->machine;
}

int
arch_list(const char **names, int max)
{
	int n = 0;

	for (size_t i = 0; i < sizeof arches / sizeof *arches && n < max; i++)
		if (!arches[i].emulated)
			names[n++] = arches[i].name;
	return n;
}

static bool
has_features(const char *host, const char *needs)
{
	char word[64], want[72];

	for (const char *p = needs; *p;) {
		size_t n = strcspn(p, " ");

		snprintf(word, sizeof word, "%.*s", (int)n, p);
		snprintf(want, sizeof want, "+%s", word);
		const char *at = host;
		bool found = false;

		while ((at = strstr(at, want))) {
			char end = at[strlen(want)];

			if (end == ',' || end == 0) {
				found = true;
				break;
			}
			at++;
		}
		if (!found)
			return false;
		p += n + (p[n] == ' ');
	}
	return true;
}

/* Asked once: in a virtual machine each CPUID costs an exit to its host, and there are dozens. */
static const char *host_cpu, *host_features;

static void
host_ask(void)
{
	host_cpu = LLVMGetHostCPUName();
	host_features = LLVMGetHostCPUFeatures();
}

static void
host_know(void)
{
	static pthread_once_t once = PTHREAD_ONCE_INIT;

	pthread_once(&once, host_ask);
}

bool
arch_runs(const Arch *a)
{
	host_know();
	return has_features(host_features, a->needs);
}

/* The host's own name if the table has it and every feature is there (a virtual machine may hide some), else the best
 * level. */
const char *
arch_native(void)
{
	static const char *const levels[] = {"sapphirerapids-noamx", "x86-64-v4", "x86-64-v3", "x86-64-v2"};
	host_know();
	const Arch *a = arch_named(host_cpu);

	if (a && has_features(host_features, a->needs))
		return a->name;
	for (size_t i = 0; i < sizeof levels / sizeof *levels; i++)
		if (has_features(host_features, arch_named(levels[i])->needs))
			return levels[i];
	return "x86-64";
}

static void
targets_init(void)
{
	LLVMInitializeX86TargetInfo();
	LLVMInitializeX86Target();
	LLVMInitializeX86TargetMC();
	LLVMInitializeX86AsmPrinter();
	LLVMInitializeX86AsmParser();
}

LLVMModuleRef
llvm_module(const Llvm *l, const char *name)
{
	LLVMModuleRef mod = LLVMModuleCreateWithNameInContext(name, l->cx);
	LLVMTargetDataRef dl = LLVMCreateTargetDataLayout(l->tm);

	LLVMSetModuleDataLayout(mod, dl);
	LLVMDisposeTargetData(dl);
	LLVMSetTarget(mod, "x86_64-pc-linux-gnu");
	return mod;
}

const char *
llvm_open(Llvm *l, const char *name, const Arch *a, int opt, Arena *arena)
{
	char *msg = NULL;

	targets_init();
	*l = (Llvm){.arch = a, .tm = llvm_machine(a, opt, &msg)};
	if (!l->tm) {
		const char *r = arena_printf(arena, "LLVM has no x86-64 target: %s", msg);

		LLVMDisposeMessage(msg);
		return r;
	}
	l->cx = LLVMContextCreate();
	l->mod = llvm_module(l, name);
	l->i1 = LLVMInt1TypeInContext(l->cx);
	l->i8 = LLVMInt8TypeInContext(l->cx);
	l->i16 = LLVMInt16TypeInContext(l->cx);
	l->i32 = LLVMInt32TypeInContext(l->cx);
	l->i64 = LLVMInt64TypeInContext(l->cx);
	l->f32 = LLVMFloatTypeInContext(l->cx);
	l->f64 = LLVMDoubleTypeInContext(l->cx);
	l->half = LLVMHalfTypeInContext(l->cx);
	l->ptr = LLVMPointerTypeInContext(l->cx, 0);
	l->voidt = LLVMVoidTypeInContext(l->cx);
	return NULL;
}

void
llvm_close(Llvm *l)
{
	units_close(l);
	if (l->tm)
		LLVMDisposeTargetMachine(l->tm);
	if (l->mod)
		LLVMDisposeModule(l->mod);
	if (l->cx)
		LLVMContextDispose(l->cx);
}

static V
call_of_type(Llvm *l, LLVMBuilderRef b, const char *name, V *args, unsigned n)
{
	unsigned id = LLVMLookupIntrinsicID(name, strlen(name));
	T t = LLVMTypeOf(args[0]);
	V f = LLVMGetIntrinsicDeclaration(l->mod, id, &t, 1);

	return LLVMBuildCall2(b, LLVMIntrinsicGetType(l->cx, id, &t, 1), f, args, n, "");
}

bool
llvm_has_fma(const Llvm *l)
{
	return strstr(l->arch->needs, " fma");
}

V
llvm_fma(Llvm *l, LLVMBuilderRef b, V x, V y, V z)
{
	if (llvm_has_fma(l))
		return call_of_type(l, b, "llvm.fma", (V[]){x, y, z}, 3);
	return LLVMBuildFAdd(b, LLVMBuildFMul(b, x, y, ""), z, ""); /* llvm.fma would be a call of fmaf for each lane */
}

/* A constant in every lane of a value of type t. */
static V
every_lane(T t, double x)
{
	if (LLVMGetTypeKind(t) != LLVMVectorTypeKind)
		return LLVMConstReal(t, x);
	V k[64], one = LLVMConstReal(LLVMGetElementType(t), x);
	unsigned n = LLVMGetVectorSize(t);

	for (unsigned i = 0; i < n; i++)
		k[i] = one;
	return LLVMConstVector(k, n);
}

/* Without the instructions of SSE4.1, which would be a call for each lane: numbers below 2^23 (f64: 2^52) lose their
 * fraction when that is added and subtracted; larger ones, infinities and NaN are as they are. The sign of a zero
 * stays. */
V
llvm_round(Llvm *l, LLVMBuilderRef b, const char *name, V x)
{
	T t = LLVMTypeOf(x), element = LLVMGetTypeKind(t) == LLVMVectorTypeKind ? LLVMGetElementType(t) : t;

	if (strstr(l->arch->needs, "sse4"))
		return call_of_type(l, b, name, &x, 1);
	V size = call_of_type(l, b, "llvm.fabs", &x, 1), big = every_lane(t, element == l->f64 ? 0x1p52 : 0x1p23);
	V r = LLVMBuildFSub(b, LLVMBuildFAdd(b, size, big, ""), big, "");

	r = call_of_type(l, b, "llvm.copysign", (V[]){r, x}, 2);      /* to nearest, ties to even */
	if (strcmp(name, "llvm.rint")) {
		bool floor = !strcmp(name, "llvm.floor");
		V past = LLVMBuildFCmp(b, floor ? LLVMRealOGT : LLVMRealOLT, r, x, "");
		V one = LLVMBuildSelect(b, past, every_lane(t, floor ? 1 : -1), every_lane(t, 0), "");

		r = call_of_type(l, b, "llvm.copysign", (V[]){LLVMBuildFSub(b, r, one, ""), x}, 2);
	}
	return LLVMBuildSelect(b, LLVMBuildFCmp(b, LLVMRealOLT, size, big, ""), r, x, "");
}
