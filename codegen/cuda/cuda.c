/* cuda.c: the struct Target of CUDA: what it has kernels for, how groups are chosen, and a planned module as CUDA C, PTX or a cubin.
 *
 * In: a planned Module.   Out: text, or what NVRTC makes of it. Every operator has a kernel but the composite ones, which are expanded.
 * What calls the kernels is not made yet: an executable of this target is refused before any work. */
#include "gemm.h"
#include "../codegen.h"
#include <string.h>

static const char *const archs[] = {"sm_75", "sm_80", "sm_86", "sm_89", "sm_90", "sm_90a"};
enum { NARCH = sizeof archs / sizeof *archs };

static bool
cuda_has_kernel(const Target *t, OpKind k)
{
	(void)t;
	return !op_has(k, T_COMPOSITE | T_LOOP);
}

static const char *
cuda_resolve_arch(const Target *t, Arena *a, const char *arch, const char **error)
{
	Buf b = {0};

	(void)t;
	for (int i = 0; i < NARCH; i++)
		if (arch && !strcmp(arch, archs[i]))
			return archs[i];
	const char *near = arch ? suggest(arch, archs, NARCH) : NULL;

	if (!arch || !strcmp(arch, "native"))
		buf_printf(&b, "there is no device here to ask; name the architecture");
	else
		buf_printf(&b, "unknown architecture '%s' of target cuda", arch);
	if (near)
		buf_printf(&b, ", did you mean '%s'?", near);
	for (int i = 0; i < NARCH; i++)
		buf_printf(&b, "%s%s", i ? ", " : " (", archs[i]);
	buf_printf(&b, ")");
	*error = arena_strdup(a, b.at);
	buf_free(&b);
	return NULL;
}

static int
cuda_vector_bytes(const Target *t, const char *arch)
{
	(void)t, (void)arch;
	return 16;
}

/* Channels innermost: a pixel's channels are read in chunks of 16 bytes. */
static bool
cuda_conv_layout(const Target *t, const Type *x, uint8_t perm[MAX_RANK])
{
	static const uint8_t nhwc[4] = {0, 2, 3, 1};

	(void)t;
	if (x->rank == 4)
		memcpy(perm, nhwc, sizeof nhwc);
	return x->rank == 4;
}

/* ---------------------------------------------------------------- select */
static const char *
cuda_select(const Target *t, Graph *g, int group, SelectCx *cx)
{
	Group *gr = &g->group.at[group];
	const Op *special = NULL, *contract = NULL, *window = NULL, *red = NULL;
	int n = 0;

	for (uint32_t last, i = graph_group_ops(g, group, &last); i < last; i++) {
		const Op *op = &g->op.at[i];
		OpKind k = (OpKind)op->kind;

		if (op->dead || op->group != group)
			continue;
		n++;
		if (!cuda_has_kernel(t, k))
			return arena_printf(g->arena, "%s has no kernel and must be expanded first", op_info[k].name);
		if (cu_special_op(op) && k != OP_store)
			special = op;
		contract = op_has(k, T_CONTRACT) ? op : contract;
		window = op_has(k, T_WINDOW) ? op : window;
		red = op_info[k].red >= 0 ? op : red;
	}
	if (special && n > 1)
		return arena_printf(g->arena, "%s shares its group", op_info[special->kind].name);
	gr->workspace = 0;
	cx->misfit = cx->tuned ? "its parameters follow from the shape" : NULL;
	if (special)
		gr->kernel = op_info[special->kind].name;
	else if (contract && !cu_gemm_misfit(g, group, contract))
		cu_gemm_select(g, group, contract, cx);
	else if (red)
		gr->kernel = cu_rows_small(g, red) ? "rows{threads=1}" : "rows{threads=256}";
	else if (contract)
		gr->kernel = "plain";
	else if (window)
		gr->kernel = "window";
	else
		gr->kernel = cu_group_is_map(g, group) ? KERNEL_MAP : "move";
	return NULL;
}

/* Is what a row's reductions go over the innermost of memory? Then a block reads it in order, and holds it for what follows. */
static bool
holds_row(const Graph *g, const Op *red)
{
	const Type *t = val_type(g, red->in[0]);

	return t->rank && cu_red_axes(g, red) >> t->perm[t->rank - 1] & 1;
}

static const char *
cuda_may_fuse(const Target *t, const Graph *g, const Op *member, const Op *op)
{
	const Op *both[2] = {op, member};

	(void)t;
	for (int i = 0; i < 2 && both[i]; i++)
		if ((cu_special_op(both[i]) && both[i]->kind != OP_store) || op_has((OpKind)both[i]->kind, T_COMPOSITE))
			return arena_printf(g->arena, "%s has a kernel of its own", op_info[both[i]->kind].name);
	if (!member)
		return NULL;
	if (op_has((OpKind)member->kind, T_WINDOW))
		return arena_printf(g->arena, "the kernel of %s has no epilogue", op_info[member->kind].name);
	if (op_has((OpKind)member->kind, T_CONTRACT)) {
		const char *why = cu_gemm_why_not(g, member);

		if (why)
			return arena_printf(g->arena, "the kernel of %s has no epilogue: %s", op_info[member->kind].name, why);
		return op_info[op->kind].red >= 0 ? cu_epilogue_reduces(g, member, op) : NULL;
	}
	if (op_info[op->kind].red >= 0 && op_info[member->kind].red < 0 && !holds_row(g, op))
		return "the reduction is not along what is innermost in memory: elementwise ops alone are read in order";
	if (op_info[member->kind].red >= 0 && op_info[op->kind].red < 0 && !holds_row(g, member) && type_same_shape(val_type(g, op->out[0]), val_type(g, member->in[0])))
		return "the reduction is not along what is innermost in memory: no block holds a row";
	return NULL;
}

static void
cuda_prologue(const Target *t, const Graph *g, const Op *contract, int k, DType narrow, Prologue *p)
{
	(void)t;
	cu_gemm_prologue(g, contract, k, narrow, p);
}

static bool
cuda_tunable(const Target *t, const char *kernel)
{
	Tiles p;

	(void)t;
	return cu_gemm_parse(kernel, &p);
}

/* Turing multiplies no bf16. */
static DType
cuda_mixed_dtype(const Target *t, const char *arch)
{
	(void)t;
	return arch && !strcmp(arch, "sm_75") ? DT_f16 : DT_bf16;
}

static const char *
cuda_arithmetic(const Target *t, const char *arch, DType narrow)
{
	if (narrow == DT_bf16)
		return cuda_mixed_dtype(t, arch) == DT_bf16 ? "bf16 tensors, matrix instructions of bf16, f32 sums" : "bf16 tensors, f32 multiply-adds: this architecture has no instruction for bf16";
	return "f16 tensors, matrix instructions of f16, f32 sums";
}

/* ---------------------------------------------------------------- emit */
static void
loose_op(const Module *m, const Graph *g, uint32_t at, Buf *out)
{
	const Op *op = &g->op.at[at];

	if (op->kind == OP_load || (op_has((OpKind)op->kind, T_VIEW) && val_info(g, op->out[0])->offset == val_info(g, op->in[0])->offset))
		return;
	if (op->kind != OP_store)
		bug("graph %s: %s is in no group", g->name, op_info[op->kind].name);
	cu_group_emit(m, g, -1, at, out);
}

/* The groups that run once, or those of every call. */
static void
groups_emit(const Module *m, const Graph *g, bool once, Buf *out)
{
	int last = -1;

	for (uint32_t i = 0; i < g->op.n; i++) {
		const Op *op = &g->op.at[i];

		if (op->dead || once != (op->group >= 0 && g->group.at[op->group].once))
			continue;
		if (op->group < 0) {
			loose_op(m, g, i, out);
		} else if (op->group != last) {
			last = op->group;
			bug_context = arena_printf(m->arena, "target cuda, group %s of graph %s", g->group.at[last].name, g->name);
			cu_group_emit(m, g, last, i, out);
		}
	}
	bug_context = NULL;
}

static const char *
cuda_emit(const Target *t, const Module *m, const EmitOptions *o, Buf *out)
{
	Buf text = {0};
	const char *error = NULL;

	(void)t;
	if (!strcmp(o->emit, "json")) {
		program_json(out, m, "cuda", o->arch, NULL);
		return NULL;
	}
	if (strcmp(o->emit, "cuda") && strcmp(o->emit, "ptx") && strcmp(o->emit, "cubin"))
		return arena_printf(m->arena, "target cuda does not make '%s' yet: --emit cuda, ptx or cubin", o->emit);
	buf_printf(&text, "/* model %s, %s */\n", m->name, o->arch);
	for (const char *const *p = cuda_prelude; *p; p++)
		buf_printf(&text, "%s", *p);
	for (uint32_t i = 0; i < m->graph.n; i++)
		for (int once = 1; once >= 0 && !m->graph.at[i]->is_loop; once--)
			groups_emit(m, m->graph.at[i], once, &text);
	if (!strcmp(o->emit, "cuda"))
		buf_put(out, text.at, text.n);
	else
		error = nvrtc_compile(m->arena, text.at, o->arch, !strcmp(o->emit, "cubin"), out);
	buf_free(&text);
	return error;
}

const Target cuda_target = {
	.name = "cuda",
	.doc = "CUDA C, PTX and cubins for NVIDIA GPUs; no executables yet",
	.default_arch = "native",
	.has_kernel = cuda_has_kernel,
	.resolve_arch = cuda_resolve_arch,
	.vector_bytes = cuda_vector_bytes,
	.conv_layout = cuda_conv_layout,
	.select = cuda_select,
	.variants = (const char *const[]){"keep", NULL},
	.tunable = cuda_tunable,
	.may_fuse = cuda_may_fuse,
	.prologue = cuda_prologue,
	.memory_rate = 3e12,
	.map_rate = 10e12,
	.mixed_dtype = cuda_mixed_dtype,
	.arithmetic = cuda_arithmetic,
	.emit = cuda_emit,
};
