/* cpu.c: the struct Target of the CPU: what it has kernels for, how groups are chosen and compiled.
 *
 * In: a planned Module.   Out: an object (or text) with one RtImage. Every operator has a kernel but lstm and gru, which pass expand
 * turns into products over all steps and a recurrence; of composite operators a kernel may refuse an op (cpu_refuses). */
#include "cpu.h"
#include "depthwise.h"
#include "rnn.h"
#include <string.h>

static bool
cpu_has_kernel(const Target *t, OpKind k)
{
	(void)t;
	return !op_has(k, T_COMPOSITE | T_LOOP) || rnn_op(k) || attention_op(k);
}

static const char *
cpu_resolve_arch(const Target *t, Arena *a, const char *arch, const char **error)
{
	(void)t;
	if (!arch || !strcmp(arch, "native"))
		arch = arch_native();
	const Arch *x = arch_named(arch);

	if (x && !x->emulated)
		return x->name;
	const char *names[32];
	int n = arch_list(names, 32);
	const char *near = suggest(arch, names, n);
	Buf b = {0};

	buf_printf(&b, "unknown architecture '%s' of target cpu", arch);
	if (near)
		buf_printf(&b, ", did you mean '%s'?", near);
	buf_printf(&b, " (native");
	for (int i = 0; i < n; i++)
		buf_printf(&b, ", %s", names[i]);
	buf_printf(&b, ")");
	*error = arena_strdup(a, b.at);
	buf_free(&b);
	return NULL;
}

static int
cpu_vector_bytes(const Target *t, const char *arch)
{
	const Arch *a = arch_named(arch ? arch : arch_native());

	(void)t;
	return a ? a->vector_bytes : 16;
}

static const char *
cpu_refuses(const Target *t, const Graph *g, const Op *op)
{
	int bytes = cpu_vector_bytes(t, g->module->arch);

	if (attention_op((OpKind)op->kind))
		return attention_refuses(g, op, bytes);
	return rnn_op((OpKind)op->kind) ? rnn_refuses(g, op, bytes) : NULL;
}

/* Activations of convolutions and pools: H W N C, so that a vector is 16 channels of one pixel of one image and rows of images follow. */
static bool
cpu_conv_layout(const Target *t, const Type *x, uint8_t perm[MAX_RANK])
{
	static const uint8_t hwnc[4] = {2, 3, 0, 1};

	(void)t;
	if (x->rank != 4)
		return false;
	memcpy(perm, hwnc, 4);
	return true;
}

/* Rates of this target's kernels on two threads of a server processor. Row-major activations have kernels too, of plain loops. */
static double
cpu_layout_time(const Target *t, const Graph *g, const Op *op, bool wanted)
{
	double bytes = 0;

	(void)t;
	if (op_has((OpKind)op->kind, T_CONTRACT))
		return op_flops(g, op) / (wanted ? 150e9 : 8e9);
	for (int k = 0; k < op->nin + op->nout; k++)
		bytes += (double)type_bytes(val_type(g, k < op->nin ? op->in[k] : op->out[k - op->nin]));
	if (op->kind == OP_max_pool2d || op->kind == OP_max_pool2d_dx)
		return bytes / (wanted ? 30e9 : 8e9);
	return bytes / (wanted ? 14e9 : 18e9);
}

/* ---------------------------------------------------------------- select */
/* 3x3 filters: is there a faster way? */
static void
choose_winograd(const Graph *g, const Op *op, int bytes, SelectCx *cx, GemmParams *p)
{
	GemmParams f = gemm_params(g, op, bytes);
	const Type *w = op->kind == OP_conv2d || op->kind == OP_conv2d_dx ? val_type(g, op->in[1]) : op->kind == OP_conv2d_dw ? val_type(g, op->out[0]) : NULL;

	if (!w || w->axis[2].n != 3 || w->axis[3].n != 3)
		return;
	Looked *l = select_look(cx, op, "winograd");

	l->why = winograd_declined(g, op, p, &f, bytes);
	if (!l->why && cx->may && !cx->may(cx->cx, "winograd"))
		l->why = "switched off";
	l->chosen = !l->why;
	l->value = winograd_work(g, op) / op_flops(g, op);
	if (l->chosen) {
		*p = f;
		p->winograd = true;
		l->why = arena_printf(g->arena, "minimal filtering F(4x4, 3x3): %.2f of the direct work with its transforms, %.1f MiB of workspace", l->value,
			(double)winograd_workspace(g, op, p) / 1048576);
	}
}

/* Long sides: is seven products for eight worth their sums? */
static void
choose_strassen(const Graph *g, const Op *op, SelectCx *cx, GemmParams *p)
{
	GemmParams s = *p;

	s.pack = s.strassen = true;
	s.copy = false;
	if (op->kind != OP_matmul || !strassen_pays(g, op, &s))
		return;
	Looked *l = select_look(cx, op, "strassen");

	l->why = strassen_why_not(g, op, &s);
	if (!l->why && cx->may && !cx->may(cx->cx, "strassen"))
		l->why = "switched off";
	l->chosen = !l->why;
	l->value = 7.0 / 8;
	if (l->chosen) {
		*p = s;
		l->why = arena_printf(g->arena, "Strassen's algorithm: seven products of halves for eight, %.1f MiB of workspace", (double)gemm_own_workspace(g, op, p) / 1048576);
	}
}

/* Parameters of the other kernels follow from shapes. */
static bool
cpu_tunable(const Target *t, const char *kernel)
{
	GemmParams p;

	(void)t;
	return gemm_parse(kernel, &p);
}

static const char *
cpu_select(const Target *t, Graph *g, int group, SelectCx *cx)
{
	const char *arch = cx->arch;
	Group *gr = &g->group.at[group];
	const Op *special = NULL, *contract = NULL, *composite = NULL;
	int n = 0, reds = 0, bytes = cpu_vector_bytes(t, arch);

	for (uint32_t last, i = graph_group_ops(g, group, &last); i < last; i++) {
		const Op *op = &g->op.at[i];

		if (op->dead || op->group != group)
			continue;
		n++;
		if (special_op(g, op) && op->kind != OP_store)
			special = op;
		if (op_has((OpKind)op->kind, T_COMPOSITE))
			special = composite = op;
		if (op_has((OpKind)op->kind, T_CONTRACT))
			contract = op;
		reds += op_info[op->kind].red >= 0;
		if (!cpu_has_kernel(t, (OpKind)op->kind))
			return arena_printf(g->arena, "%s has no kernel and must be expanded first", op_info[op->kind].name);
	}
	if (special && n > 1)
		return arena_printf(g->arena, "%s shares its group", op_info[special->kind].name);
	gr->workspace = 0;
	cx->misfit = cx->tuned ? "its parameters follow from the shape, only those of contractions can be chosen" : NULL;
	if (composite) {
		gr->kernel = attention_op((OpKind)composite->kind) ? attention_select(g, composite, bytes, &gr->workspace) : rnn_select(g, composite, bytes, cx, &gr->workspace);
		return NULL;
	}
	if (contract && depthwise_can(g, contract, bytes)) {
		DepthParams p = depthwise_params(g, contract, arch_named(arch ? arch : arch_native()));

		gr->kernel = depthwise_text(g->arena, contract, &p);
		gr->workspace = depthwise_group_workspace(g, group, contract, &p);
		scratch_plan(g, depthwise_scratch(g, contract, &p));
		return NULL;
	}
	if (contract && gemm_can(g, contract, bytes)) {
		GemmParams p = gemm_params(g, contract, bytes);

		pairs_choose(g, contract, arch_named(arch ? arch : arch_native()), &p);
		gemm_images(g, contract, &p);
		gemm_band(g, contract, &p);
		choose_winograd(g, contract, bytes, cx, &p);
		choose_strassen(g, contract, cx, &p);
		tuned_choose(g, contract, cx, &p);
		gr->kept = cx->steady && steady_for(g, cx->steady, contract->in[1], group) && !gr->once
			&& gemm_keepable(g, contract, &p) && cx->may(cx->cx, "keep") ? gemm_panels(g, contract, &p) : 0;
		gr->kernel = gemm_text(g->arena, contract, &p);
		gr->workspace = gemm_group_workspace(g, group, contract, &p);
		scratch_plan(g, gemm_scratch(g, contract, &p));
		return NULL;
	}
	if (special)
		gr->kernel = op_info[special->kind].name;
	else if (contract)
		gr->kernel = "plain";
	else if (reds)
		gr->kernel = "rows";
	else
		gr->kernel = group_is_map(g, group) ? KERNEL_MAP : "move";
	gr->workspace = group_workspace(g, group);
	return NULL;
}

/* A reduction, or an elementwise op, into the tiles of a contraction. */
static const char *
into_tiles(const Target *t, const Graph *g, const Op *contract, const Op *op)
{
	int bytes = cpu_vector_bytes(t, g->module->arch);

	if (!gemm_can(g, contract, bytes) && !depthwise_can(g, contract, bytes))
		return "the contraction takes the plain kernel, which has no epilogue";
	if (op_info[op->kind].red >= 0)
		return epilogue_reduces(g, contract, op);
	return op_has((OpKind)op->kind, T_EW) && val_type(g, op->out[0])->dtype == DT_f32 ? NULL : "a contraction's epilogue is elementwise and f32";
}

/* A reduction into the kernel of elementwise ops that makes its operand: not where lanes are few kept columns. The elementwise kernel alone merges all axes. */
static const char *
into_map(const Target *t, const Graph *g, const Op *red)
{
	const Type *of = val_type(g, red->in[0]);
	int column = of->rank ? of->perm[of->rank - 1] : 0, bytes = cpu_vector_bytes(t, g->module->arch);

	if (of->rank < 2 || (red_mask(g, red) >> column & 1) || of->axis[column].mul || of->axis[column].n * 8 > bytes)
		return NULL;
	return arena_printf(g->arena, "%lld columns fill at most half a vector: elementwise ops alone go over rows and columns together", (long long)of->axis[column].n);
}

/* An op of the whole space into a kernel that reduces `of` over the axes of `red`. */
static const char *
into_rows(const Graph *g, const Op *red, const Type *of)
{
	int64_t pieces = red_pieces(of, red_mask(g, red));

	if (pieces > 1)
		return arena_printf(g->arena, "the reduction keeps %lld numbers of %lld: it is cut into %lld pieces, and no kernel holds all of a row",
			(long long)kept_elements(of, red_mask(g, red)), (long long)type_elements(of), (long long)pieces);
	return NULL;
}

static const char *
cpu_may_fuse(const Target *t, const Graph *g, const Op *member, const Op *op)
{
	bool reduces = op_info[op->kind].red >= 0;

	if ((special_op(g, op) && op->kind != OP_store) || op_has((OpKind)op->kind, T_COMPOSITE))
		return arena_printf(g->arena, "%s has a kernel of its own", op_info[op->kind].name);
	if (!member)
		return NULL;
	if (special_op(g, member) && member->kind != OP_store)
		return arena_printf(g->arena, "%s has a kernel of its own", op_info[member->kind].name);
	if (op_has((OpKind)member->kind, T_CONTRACT))
		return into_tiles(t, g, member, op);
	if (reduces) {
		const char *why = op_info[member->kind].red < 0 ? into_map(t, g, op) : NULL;

		return why ? why : into_rows(g, op, val_type(g, op->in[0]));
	}
	if (op_info[member->kind].red >= 0 && type_same_shape(val_type(g, op->out[0]), val_type(g, member->in[0])))
		return into_rows(g, member, val_type(g, member->in[0]));
	return NULL;
}

static void
cpu_prologue(const Target *t, const Graph *g, const Op *contract, int k, DType narrow, Prologue *p)
{
	const Arch *a = arch_named(g->module->arch ? g->module->arch : arch_native());

	(void)t;
	if (depthwise_can(g, contract, a->vector_bytes))
		depthwise_prologue(g, contract, k, a, p);
	else
		prologue_cost(g, contract, k, a, narrow, p);
}

/* ---------------------------------------------------------------- 16 bits */
static bool
cpu_packs(const Target *t, const Graph *g, const Op *op, const char *arch, DType narrow)
{
	const Arch *a = arch_named(arch ? arch : arch_native());

	(void)t;
	return a && gemm_packs(g, op, a, narrow);
}

static DType
cpu_mixed_dtype(const Target *t, const char *arch)
{
	const Arch *a = arch_named(arch ? arch : arch_native());

	(void)t;
	return !a ? DT_none : a->tiles || a->dot_bf16 ? DT_bf16 : a->fma_f16 ? DT_f16 : DT_none;
}

static const char *
cpu_arithmetic(const Target *t, const char *arch, DType narrow)
{
	const Arch *a = arch_named(arch ? arch : arch_native());

	(void)t;
	if (a && a->tiles && narrow == DT_bf16)
		return "bf16 tensors, matrix tiles of bf16 (AMX), f32 sums";
	if (a && a->fma_f16 && narrow == DT_f16)
		return "f16 tensors, f16 multiply-adds (AVX512-FP16) whose sums go to f32 every 64 steps, "
		       "f32 ones where that overflows";
	if (a && a->dot_bf16 && narrow == DT_bf16)
		return "bf16 tensors, dot products of bf16 pairs, f32 sums";
	return narrow == DT_bf16 ? "bf16 tensors, f32 arithmetic" : "f16 tensors, f32 arithmetic";
}

/* ---------------------------------------------------------------- emit */
/* Kernels that run once need nothing of the others. */
static void
once_first(Compile *c, GraphKernels *gk)
{
	KernelRec *k = arena_array(c->arena, KernelRec, gk->k.n);
	uint32_t n = 0;

	for (int once = 1; once >= 0; once--) {
		for (uint32_t i = 0; i < gk->k.n; i++)
			if (gk->k.at[i].once == once)
				k[n++] = gk->k.at[i];
		gk->nonce = once ? n : gk->nonce;
	}
	if (n)
		memcpy(gk->k.at, k, n * sizeof *k);
}

static void
compile_graph(Compile *c, Graph *g)
{
	GraphKernels *gk = arena_new_of(c->arena, GraphKernels);
	int last = -1;
	bool *done = arena_array(c->arena, bool, g->group.n);

	gk->g = g;
	vec_push(c->arena, &c->ks->graph, gk);
	group_tables(c, g);
	c->steady = graph_steady(g, c->arena);
	for (uint32_t i = 0; i < g->op.n; i++) {
		const Op *op = &g->op.at[i];

		if (op->dead)
			continue;
		if (op->group < 0) {
			loose_op(c, g, i, gk);
			continue;
		}
		if (op->group == last)
			continue;
		last = op->group;
		bug_context = arena_printf(c->arena, "target cpu, group %s of graph %s", g->group.at[last].name, g->name);
		if (done[last])
			bug("its ops do not stand together");
		done[last] = true;
		group_compile(c, g, last, i, gk);
	}
	bug_context = NULL;
	once_first(c, gk);
}

static const char *
cpu_emit(const Target *t, const Module *m, const EmitOptions *o, Buf *out)
{
	Arena *a = arena_new();
	ProgramKernels ks = {0};
	Compile c = {.arena = a, .m = (Module *)(uintptr_t)m, .o = o, .ks = &ks};
	const Arch *arch = arch_named(o->arch);
	const char *error;
	Buf json = {0};

	(void)t;
	if (!arch)
		return arena_printf(m->arena, "unknown architecture '%s'", o->arch);
	error = llvm_open(&c.l, m->name, arch, o->opt, a);
	for (uint32_t i = 0; !error && i < m->graph.n; i++)
		if (!m->graph.at[i]->is_loop)
			compile_graph(&c, m->graph.at[i]);
	if (!error)
		error = c.error;
	if (!error) {
		ks.scratch_bytes = m->scratch_bytes;
		program_json(&json, m, "cpu", o->arch, &ks);
		if (!strcmp(o->emit, "json")) {
			buf_put(out, json.at, json.n);
		} else {
			loops_emit(&c, json.at);
			error = llvm_finish(&c.l, o->emit, out, a);
		}
	}
	llvm_close(&c.l);
	buf_free(&json);
	if (error)
		error = arena_strdup(m->arena, error);
	arena_free(a);
	return error;
}

const Target cpu_target = {
	.name = "cpu",
	.doc = "machine code for x86-64 through LLVM",
	.default_arch = "native",
	.has_kernel = cpu_has_kernel,
	.refuses = cpu_refuses,
	.resolve_arch = cpu_resolve_arch,
	.vector_bytes = cpu_vector_bytes,
	.conv_layout = cpu_conv_layout,
	.layout_time = cpu_layout_time,
	.select = cpu_select,
	.tunable = cpu_tunable,
	.variants = (const char *const[]){"winograd", "strassen", "keep", NULL},
	.may_fuse = cpu_may_fuse,
	.prologue = cpu_prologue,
	.memory_rate = 45e9,
	.map_rate = 150e9,
	.mixed_dtype = cpu_mixed_dtype,
	.packs = cpu_packs,
	.arithmetic = cpu_arithmetic,
	.emit = cpu_emit,
};
