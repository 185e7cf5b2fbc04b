/* object.c: the object file of one CUDA code object: data alone, written by LLVM for the machine that will call the
 * device.
 *
 * In: the descriptor's text, cubins, PTX or none, the functions.   Out: an object with RtCode and RtCodeObject
 * (runtime/rt.h), field by field. The address of rt_cuda, the runtime's half of this target, is in it: that draws
 * librtcuda.a into the executable. */
#include "cuda.h"
#include "../../runtime/rt.h"
#include <assert.h>
#include <stddef.h>
#include <stdlib.h>
#include <string.h>
#include <zlib.h>
#include <llvm-c/Core.h>
#include <llvm-c/Target.h>
#include <llvm-c/TargetMachine.h>

typedef LLVMValueRef V;
typedef struct Object { LLVMContextRef cx; LLVMModuleRef mod; LLVMTypeRef i32, i64, ptr; } Object;

static V
constant(Object *m, V x, bool private, const char *name)
{
	V g = LLVMAddGlobal(m->mod, LLVMTypeOf(x), name);

	LLVMSetInitializer(g, x);
	LLVMSetGlobalConstant(g, 1);
	if (private)
		LLVMSetLinkage(g, LLVMPrivateLinkage);
	return g;
}

static V
bytes(Object *m, const char *at, size_t n, bool zero, unsigned align)
{
	V g = constant(m, LLVMConstStringInContext2(m->cx, at, n, !zero), true, "bytes");

	LLVMSetAlignment(g, align);
	return g;
}

static V
number(LLVMTypeRef t, int64_t x)
{
	return LLVMConstInt(t, (unsigned long long)x, 1);
}

/* A gzip file of it: kernels of equal structure leave a third or less. *n: its bytes. */
static V
packed(Object *m, Arena *a, const Buf *b, bool zero, int64_t *n)
{
	size_t room = b->n + zero + b->n / 1000 + 256;
	z_stream z = {.next_in = (Bytef *)b->at, .avail_in = (uInt)(b->n + zero), .avail_out = (uInt)room};
	uint8_t *out = arena_array(a, uint8_t, room);

	z.next_out = out;
	if (deflateInit2(&z, 5, Z_DEFLATED, 16 + MAX_WBITS, 9, Z_DEFAULT_STRATEGY) != Z_OK ||
	    deflate(&z, Z_FINISH) != Z_STREAM_END)
		bug("code could not be compressed");
	*n = (int64_t)z.total_out;
	deflateEnd(&z);
	return bytes(m, (const char *)out, (size_t)*n, false, 1);
}

/* RtModule: code, packed, ptx, ptx_packed. */
static V
object_modules(Object *m, Arena *a, const NvrtcJob *job, int parts, bool ptx)
{
	V *module = arena_array(a, V, parts), null = LLVMConstNull(m->ptr);

	static_assert(sizeof(RtModule) == 4 * 8, "the RtModule that object.c writes is not that of rt.h");
	for (int k = 0; k < parts; k++) {
		int64_t n = 0, ptx_n = 0;
		V code = job[k].cubin ? packed(m, a, &job[k].cubin_out, false, &n)
		                      : packed(m, a, &job[k].ptx_out, true, &n),
		  text = ptx ? packed(m, a, &job[k].ptx_out, true, &ptx_n) : null;
		V f[] = {code, number(m->i64, n), text, number(m->i64, ptx_n)};

		module[k] = LLVMConstStructInContext(m->cx, f, 4, 0);
	}
	return constant(m, LLVMConstArray2(LLVMTypeOf(module[0]), module, (unsigned)parts), true, "modules");
}

/* RtCode: arch, ptx_arch, ptx_version, module, nmodule, name, block, shared, from, team. */
static V
object_code(Object *m, const CuProgram *p, const EmitOptions *o, const NvrtcJob *job, int parts)
{
	uint32_t n = p->fn.n;
	V *name = arena_array(p->a, V, n), *block = arena_array(p->a, V, n), *shared = arena_array(p->a, V, n),
	  *from = arena_array(p->a, V, n), *team = arena_array(p->a, V, n);
	const char *ptx_arch = arena_printf(p->a, "compute_%s", o->arch + 3),
	           *at = o->last ? strstr(job[0].ptx_out.at, ".version ") : NULL;
	int64_t version = 0;

	if (at) /* .version 9.0 */
		version = 10 * strtol(at + 9, NULL, 10) + strtol(strchr(at + 9, '.') + 1, NULL, 10);

	for (uint32_t i = 0; i < n; i++) {
		const char *what = p->fn.at[i].plan ? p->fn.at[i].text : p->fn.at[i].name;

		name[i] = bytes(m, what, strlen(what), true, 1);
		block[i] = number(m->i32, p->fn.at[i].block);
		shared[i] = number(m->i32, p->fn.at[i].shared);
		from[i] = number(m->i32, p->fn.at[i].part);
		team[i] = number(m->i32, p->fn.at[i].team);
	}
	const char *arch = o->ptx_only ? ptx_arch : o->arch;
	bool both = o->last && !o->ptx_only;
	V f[] = {bytes(m, arch, strlen(arch), true, 1),
	         both ? bytes(m, ptx_arch, strlen(ptx_arch), true, 1) : LLVMConstNull(m->ptr),
	         number(m->i64, version),
	         object_modules(m, p->a, job, parts, both),
	         number(m->i64, parts),
	         constant(m, LLVMConstArray2(m->ptr, name, n), true, "names"),
	         constant(m, LLVMConstArray2(m->i32, block, n), true, "block"),
	         constant(m, LLVMConstArray2(m->i32, shared, n), true, "shared"),
	         constant(m, LLVMConstArray2(m->i32, from, n), true, "from"),
	         constant(m, LLVMConstArray2(m->i32, team, n), true, "team")};

	static_assert(sizeof(RtCode) == 10 * 8, "the RtCode that object.c writes is not that of rt.h");
	return constant(m, LLVMConstStructInContext(m->cx, f, sizeof f / sizeof *f, 0), true, "code");
}

static void
object_fill(Object *m, const CuProgram *p, const char *json, const EmitOptions *o, const NvrtcJob *job, int parts)
{
	V null = LLVMConstNull(m->ptr);
	V f[] = {number(m->i32, RT_VERSION),
	         number(m->i32, p->fn.n),
	         bytes(m, json, strlen(json), true, 1),
	         bytes(m, "", 0, true, 1),
	         null,
	         null,
	         null,
	         null,
	         null,
	         null,
	         object_code(m, p, o, job, parts),
	         LLVMAddGlobal(m->mod, m->ptr, "rt_cuda")};

	static_assert(sizeof(RtCodeObject) == 2 * 4 + 10 * 8,
	              "the RtCodeObject that object.c writes is not that of rt.h");
	constant(m, LLVMConstStructInContext(m->cx, f, sizeof f / sizeof *f, 0), false,
	         arena_printf(p->a, "mantou_object_%d", o->index));
}

const char *
cuda_object(CuProgram *p, const char *json, const EmitOptions *o, const NvrtcJob *job, int parts, Buf *out)
{
	const char *triple = "x86_64-pc-linux-gnu", *error = NULL;
	Object m = {.cx = LLVMContextCreate()};
	LLVMTargetMachineRef tm = NULL;
	LLVMMemoryBufferRef mb = NULL;
	LLVMTargetRef t;
	char *msg = NULL;

	LLVMInitializeX86TargetInfo();
	LLVMInitializeX86Target();
	LLVMInitializeX86TargetMC();
	LLVMInitializeX86AsmPrinter();
	m.mod = LLVMModuleCreateWithNameInContext("object", m.cx);
	m.i32 = LLVMInt32TypeInContext(m.cx);
	m.i64 = LLVMInt64TypeInContext(m.cx);
	m.ptr = LLVMPointerTypeInContext(m.cx, 0);
	LLVMSetTarget(m.mod, triple);
	object_fill(&m, p, json, o, job, parts);
	if (!LLVMGetTargetFromTriple(triple, &t, &msg))
		tm = LLVMCreateTargetMachine(t, triple, "x86-64", "", LLVMCodeGenLevelNone, LLVMRelocPIC,
		                             LLVMCodeModelDefault);
	if (!tm || LLVMTargetMachineEmitToMemoryBuffer(tm, m.mod, LLVMObjectFile, &msg, &mb))
		error = arena_printf(p->a, "LLVM could not write the code object: %s",
		                     msg ? msg : "it has no x86-64 target");
	else
		buf_put(out, LLVMGetBufferStart(mb), LLVMGetBufferSize(mb));
	if (mb)
		LLVMDisposeMemoryBuffer(mb);
	if (msg)
		LLVMDisposeMessage(msg);
	if (tm)
		LLVMDisposeTargetMachine(tm);
	LLVMDisposeModule(m.mod);
	LLVMContextDispose(m.cx);
	return error;
}
