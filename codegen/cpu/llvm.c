/* llvm.c: the machine side of LLVM: processors, target machine, object, assembly and .ll output.
 *
 * In: a name of --arch, or a finished module.   Out: bytes.   One LLVM context per module; kernels carry their processor as function
 * attributes. The pass list is short because the emitter writes SSA that needs little: slots to registers, equal
 * expressions merged within blocks, empty blocks dropped. Refuses unknown processor names. */
#include "cpu.h"
#include <llvm-c/Analysis.h>
#include <llvm-c/Target.h>
#include <llvm-c/Transforms/PassBuilder.h>
#include <stdlib.h>
#include <string.h>

#define V2 "sse4.2"
#define V3 V2 " avx2 fma f16c bmi2"
#define V4 V3 " avx512f avx512bw avx512dq avx512vl"

/* Matrix tiles may be hidden by a hypervisor on processors that have them: then `sapphirerapids-noamx` stands for all of these. */
#define AVX512_FP16 V4 " avx512vbmi avx512bf16 avx512fp16"
#define AMX AVX512_FP16 " amx-tile amx-bf16"
#define NO_AMX "-amx-tile,-amx-bf16,-amx-int8"
#define PLAIN false, false, false, false, false
#define EMULATED "+avx512vbmi,+avx512bf16"

static const Arch arches[] = {
	{"x86-64", "x86-64", "", "", 16, PLAIN},
	{"x86-64-v2", "x86-64-v2", "", V2, 16, PLAIN},
	{"x86-64-v3", "x86-64-v3", "", V3, 32, PLAIN},
	{"x86-64-v4", "x86-64-v4", "", V4, 64, PLAIN},
	{"haswell", "haswell", "", V3, 32, PLAIN},
	{"skylake", "skylake", "", V3, 32, PLAIN},
	{"skylake-avx512", "skylake-avx512", "", V4, 64, PLAIN},
	{"icelake-server", "icelake-server", "", V4 " avx512vbmi", 64, PLAIN},
	{"sapphirerapids", "sapphirerapids", "", AMX, 64, .round_bf16 = true, .fma_f16 = true, .tiles = true},
	{"sapphirerapids-noamx", "sapphirerapids", NO_AMX, AVX512_FP16, 64, .round_bf16 = true, .fma_f16 = true},
	{"emeraldrapids", "emeraldrapids", "", AMX, 64, .round_bf16 = true, .fma_f16 = true, .tiles = true},
	{"graniterapids", "graniterapids", "", AMX, 64, .round_bf16 = true, .fma_f16 = true, .tiles = true},
	{"znver2", "znver2", "", V3, 32, PLAIN},
	{"znver3", "znver3", "", V3, 32, PLAIN},
	{"znver4", "znver4", "", V4 " avx512vbmi avx512bf16", 64, .round_bf16 = true, .dot_bf16 = true},
	{"alderlake", "alderlake", "", V3, 32, PLAIN},
	/* the rows above without and with tiles, for tests/cpu */
	{"emulated-fp16", "x86-64-v4", EMULATED, V4 " avx512vbmi avx512bf16", 64, .round_bf16 = true, .fma_f16 = true, .emulated = true},
	{"emulated-amx", "x86-64-v4", EMULATED, V4 " avx512vbmi avx512bf16", 64, .round_bf16 = true, .fma_f16 = true, .tiles = true, .emulated = true},
};

const Arch *
arch_named(const char *name)
{
	for (size_t i = 0; i < sizeof arches / sizeof *arches; i++)
		if (!strcmp(arches[i].name, name))
			return &arches[i];
	return NULL;
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

bool
arch_runs(const Arch *a)
{
	char *feat = LLVMGetHostCPUFeatures();
	bool r = has_features(feat, a->needs);

	LLVMDisposeMessage(feat);
	return r;
}

/* The host's own name if the table has it and every feature is there (a virtual machine may hide some), else the best level. */
const char *
arch_native(void)
{
	static const char *const levels[] = {"sapphirerapids-noamx", "x86-64-v4", "x86-64-v3", "x86-64-v2"};
	char *cpu = LLVMGetHostCPUName(), *feat = LLVMGetHostCPUFeatures();
	const Arch *a = arch_named(cpu);
	const char *r = "x86-64";

	if (a && has_features(feat, a->needs)) {
		r = a->name;
	} else {
		for (size_t i = 0; i < sizeof levels / sizeof *levels; i++)
			if (has_features(feat, arch_named(levels[i])->needs)) {
				r = levels[i];
				break;
			}
	}
	LLVMDisposeMessage(cpu);
	LLVMDisposeMessage(feat);
	return r;
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

const char *
llvm_open(Llvm *l, const char *name, const Arch *a, int opt, Arena *arena)
{
	LLVMTargetRef t;
	char *msg = NULL;
	const char *triple = "x86_64-pc-linux-gnu";

	targets_init();
	if (LLVMGetTargetFromTriple(triple, &t, &msg)) {
		const char *r = arena_printf(arena, "LLVM has no x86-64 target: %s", msg);

		LLVMDisposeMessage(msg);
		return r;
	}
	*l = (Llvm){.arch = a, .cx = LLVMContextCreate()};
	l->mod = LLVMModuleCreateWithNameInContext(name, l->cx);
	l->tm = LLVMCreateTargetMachine(t, triple, a->cpu, a->features, opt > 0 ? LLVMCodeGenLevelDefault : LLVMCodeGenLevelLess,
	    LLVMRelocPIC, LLVMCodeModelDefault);
	LLVMTargetDataRef dl = LLVMCreateTargetDataLayout(l->tm);

	LLVMSetModuleDataLayout(l->mod, dl);
	LLVMDisposeTargetData(dl);
	LLVMSetTarget(l->mod, triple);
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
	if (l->tm)
		LLVMDisposeTargetMachine(l->tm);
	if (l->mod)
		LLVMDisposeModule(l->mod);
	if (l->cx)
		LLVMContextDispose(l->cx);
}

const char *
llvm_finish(Llvm *l, const char *emit, Buf *out, Arena *arena)
{
	LLVMPassBuilderOptionsRef po = LLVMCreatePassBuilderOptions();
	char *msg = NULL;
	LLVMErrorRef err;

	if (LLVMVerifyModule(l->mod, LLVMReturnStatusAction, &msg))
		bug("LLVM rejects the emitted module: %s", msg);
	LLVMDisposeMessage(msg);
	err = LLVMRunPasses(l->mod, "function(mem2reg,early-cse,instsimplify,simplifycfg)", l->tm, po);
	LLVMDisposePassBuilderOptions(po);
	if (err) {
		char *m = LLVMGetErrorMessage(err);
		const char *r = arena_printf(arena, "LLVM's passes failed: %s", m);

		LLVMDisposeErrorMessage(m);
		return r;
	}
	if (!strcmp(emit, "llvm")) {
		char *text = LLVMPrintModuleToString(l->mod);

		buf_put(out, text, strlen(text));
		LLVMDisposeMessage(text);
		return NULL;
	}
	LLVMMemoryBufferRef mb;

	msg = NULL;
	if (LLVMTargetMachineEmitToMemoryBuffer(l->tm, l->mod, !strcmp(emit, "asm") ? LLVMAssemblyFile : LLVMObjectFile, &msg, &mb)) {
		const char *r = arena_printf(arena, "LLVM could not write code: %s", msg);

		LLVMDisposeMessage(msg);
		return r;
	}
	buf_put(out, LLVMGetBufferStart(mb), LLVMGetBufferSize(mb));
	LLVMDisposeMemoryBuffer(mb);
	return NULL;
}
