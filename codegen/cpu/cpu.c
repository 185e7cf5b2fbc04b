/* cpu.c: the struct Target of the CPU: what it has kernels for, how groups are chosen and compiled.
 *
 * In: a planned Module.   Out: an object (or text) with one RtCodeObject. Every operator has a kernel but lstm and gru,
 * which pass decompose turns into products over all steps and a recurrence; of composite operators a kernel may refuse
 * an op (cpu_refuses). */
#include "cpu.h"
#include "../program.h"
#include "contract/algo.h"
#include "composite/rnn.h"
#include "../space.h"
#include <stdlib.h>
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

static const Arch *
arch_of(const char *name)
{
	return arch_named(name ? name : arch_native());
}

static int
cpu_vector_bytes(const Target *t, const char *arch)
{
	const Arch *a = arch_of(arch);

	(void)t;
	return a ? a->vector_bytes : 16;
}

static const Machine *
cpu_machine(const Target *t, const char *arch)
{
	const Arch *a = arch_named(arch ? arch : arch_native());

	(void)t;
	return a ? &a->machine : NULL;
}

static bool
cpu_machine_here(const Target *t, const char *arch, Machine *m)
{
	int64_t bytes[3];

	*m = *cpu_machine(t, arch);
	if (!arch_runs(arch_named(m->arch)) || !host_caches("/sys", bytes))
		return false;
	m->l1.bytes = bytes[0];
	m->l2.bytes = bytes[1];
	m->l3.bytes = bytes[2];
	return true;
}

static const char *
cpu_machine_word(const Target *t, const char *arch, Arena *a)
{
	Machine m;

	cpu_machine_here(t, arch, &m);
	return arena_printf(a, "l1=%s,l2=%s", bytes_word(a, m.l1.bytes), bytes_word(a, m.l2.bytes));
}

static const char *
composite_refuses(const Graph *g, const Op *op, const char *arch)
{
	const Arch *a = arch_of(arch);

	if (attention_op((OpKind)op->kind))
		return attention_refuses(g, op, a);
	return rnn_op((OpKind)op->kind) ? rnn_refuses(g, op, a) : NULL;
}

static const char *
cpu_refuses(const Target *t, const Graph *g, const Op *op)
{
	(void)t;
	return composite_refuses(g, op, g->module->arch);
}

/* Activations of convolutions and pools: H W N C, so that a vector is 16 channels of one pixel of one image and rows of
 * images follow. */
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

/* Lanes of the vectors that products of few columns take (set_lanes). */
static int
cpu_outputs(const Target *t, const Graph *g)
{
	(void)t;
	return machine_of(g)->vector_bytes / 4 / (gemm_halves(g) ? 2 : 1);
}

/* Elements that a largest one is found among, one by one: those of each window; for the gradient those of each window
 * that an element is in. */
static double
max_pool_taps(const Graph *g, const Op *op)
{
	const int64_t *k = attr_ints(op, A_k, NULL);
	bool gradient = op->kind == OP_max_pool2d_dx;
	double windows = (double)type_elements(val_type(g, gradient ? op->in[1] : op->out[0]));
	double taps = (double)(k[0] * k[1]);

	return windows * taps * (gradient ? taps : 1);
}

/* Shares that this target's kernels reach of the machine's rates. Row-major activations have kernels too, of plain
 * loops: these wait for their own chains, poolings gather, and those for a largest element take one at a time. */
static double
cpu_layout_time(const Target *t, const Graph *g, const Op *op, bool wanted)
{
	const Rates *r = &machine_of(g)->budget.rates;
	double bytes = 0;

	(void)t;
	if (op_has((OpKind)op->kind, T_CONTRACT))
		return op_flops(g, op) / (r->products * (wanted ? 150 : 8) / 225);
	for (int k = 0; k < op->nin + op->nout; k++)
		bytes += (double)type_bytes(val_type(g, k < op->nin ? op->in[k] : op->out[k - op->nin]));
	if (op->kind == OP_max_pool2d || op->kind == OP_max_pool2d_dx)
		return wanted ? bytes / (r->bytes * 30 / 45) : max_pool_taps(g, op) / (r->bytes * 1.1 / 45);
	return bytes / (r->bytes * (wanted ? 14 : 18) / 45);
}

/* ---------------------------------------------------------------- select */
/* Parameters of the other kernels follow from shapes. */
static bool
cpu_tunable(const Target *t, const char *kernel)
{
	(void)t;
	return space_tunable(space_family_of("cpu", NULL, kernel));
}

static int
cpu_kernel_version(const Target *t, const char *family)
{
	(void)t;
	return space_version("cpu", family);
}

static const Op *
group_composite(const Graph *g, int group)
{
	for (uint32_t last, i = graph_group_ops(g, group, &last); i < last; i++) {
		const Op *op = &g->op.at[i];

		if (!op->dead && op->group == group && op_has((OpKind)op->kind, T_COMPOSITE))
			return op;
	}
	return NULL;
}

static void
cpu_space(const Target *t, Graph *g, int group, SelectCx *cx, SpaceEach *each, void *each_cx)
{
	const Op *op = graph_group_contraction(g, group), *composite = group_composite(g, group);
	const char *kernel = g->group.at[group].kernel;

	if (composite)
		(attention_op((OpKind)composite->kind) ? attention_space : rnn_space)(
		        g, composite, cpu_vector_bytes(t, cx->arch), cx, kernel, each, each_cx);
	if (!op)
		return;
	PlanCx plan = {.arch = arch_of(cx->arch), .half = gemm_half(g, op), .select = cx};

	gemm_space(g, op, &plan, kernel, each, each_cx);
}

static double
cpu_predict(const Target *t, const Graph *g, int group, const SelectCx *cx, const char *kernel)
{
	const Op *op = graph_group_contraction(g, group);
	PlanCx plan = {.arch = arch_of(cx->arch), .half = op ? gemm_half(g, op) : DT_none, .select = cx};

	(void)t;
	return op ? gemm_predict(g, op, &plan, kernel) : NAN;
}

/* May the group keep what its kernel makes of v, which is the same in every call? */
static bool
keeps(const Graph *g, int group, const SelectCx *cx, Val v)
{
	return cx->steady && steady_for(g, cx->steady, v, group) && !g->group.at[group].once &&
	       cx->may(cx->cx, "prepack");
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

		if (op->dead || op->group != group || (composite && attention_casts(g, composite, op)) ||
		    pool_dx_cast(g, op))
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
			return arena_printf(g->arena, "%s has no kernel and must be decomposed first",
			                    op_info[op->kind].name);
	}
	if (special && n > 1)
		return arena_printf(g->arena, "%s shares its group", op_info[special->kind].name);
	const char *refused = composite ? composite_refuses(g, composite, arch) : NULL;

	if (refused)
		return arena_printf(g->arena, "%s must be decomposed first: %s", op_info[composite->kind].name,
		                    refused);
	gr->workspace = gr->prepacked = 0;
	cx->misfit =
	        cx->tuned ? "its parameters follow from the shape, only those of contractions can be chosen" : NULL;
	if (composite && attention_op((OpKind)composite->kind)) {
		gr->kernel = attention_select(g, composite, bytes, cx, &gr->workspace);
		return NULL;
	}
	if (composite) {
		bool prepack = keeps(g, group, cx, composite->in[rnn_weights(composite)]);

		gr->kernel = rnn_select(g, composite, bytes, cx, prepack, &gr->prepacked, &gr->workspace);
		return NULL;
	}
	if (contract) {
		bool prepack = keeps(g, group, cx, contract->in[1]);
		PlanCx plan = {.arch = arch_of(arch), .half = gemm_half(g, contract), .select = cx, .tell = cx,
		               .prepacked = prepack};
		GemmParams p = gemm_plan(g, contract, &plan);

		gr->kernel = gemm_text(g->arena, &p);
		if (p.algo->emit) {
			gr->prepacked = prepack && gemm_prepacks(g, contract, &p) ? gemm_panels(g, contract, &p) : 0;
			gr->workspace = gemm_group_workspace(g, group, contract, &p);
			scratch_plan(g, gemm_scratch(g, contract, &p));
			return NULL;
		}
	}
	const char *why = special ? special_select(g, special) : NULL;

	if (why)
		return why;
	if (special)
		gr->kernel = op_info[special->kind].name;
	else if (contract)
		; /* the plain kernel */
	else if (reds)
		gr->kernel = space_family[FAMILY_cpu_rows].text;
	else
		gr->kernel = space_family[group_is_map(g, group) ? FAMILY_cpu_map : FAMILY_cpu_move].text;
	gr->workspace = group_workspace(g, group);
	return NULL;
}

/* A reduction, or an elementwise op, into the tiles of a contraction. */
static const char *
into_tiles(const Target *t, const Graph *g, const Op *contract, const Op *op)
{
	(void)t;
	if (gemm_plain(g, contract, arch_of(g->module->arch)))
		return "the contraction takes the plain kernel, which has no epilogue";
	if (op_info[op->kind].red >= 0)
		return epilogue_reduces(g, contract, op);
	return op_has((OpKind)op->kind, T_EW) && val_type(g, op->out[0])->dtype == DT_f32
	               ? NULL
	               : "a contraction's epilogue is elementwise and f32";
}

/* A reduction into the kernel of elementwise ops that makes its operand: not where lanes are few kept columns. The
 * elementwise kernel alone merges all axes. */
static const char *
into_map(const Target *t, const Graph *g, const Op *red)
{
	const Type *of = val_type(g, red->in[0]);
	int column = of->rank ? of->perm[of->rank - 1] : 0, bytes = cpu_vector_bytes(t, g->module->arch);

	if (of->rank < 2 || (red_mask(g, red) >> column & 1) || of->axis[column].mul || of->axis[column].n * 8 > bytes)
		return NULL;
	return arena_printf(
	        g->arena,
	        "%lld columns fill at most half a vector: elementwise ops alone go over rows and columns together",
	        (long long)of->axis[column].n);
}

/* An op of the whole space into a kernel that reduces `of` over the axes of `red`. */
static const char *
into_rows(const Graph *g, const Op *red, const Type *of)
{
	enum { MANY = 16384 }; /* elements that one task alone takes longer for than all threads do for the op */
	uint32_t mask = red_mask(g, red);
	int64_t pieces = red_pieces(of, mask), elements = type_elements(of);
	bool kept = of->rank && !(mask >> of->perm[of->rank - 1] & 1); /* what lies side by side */

	if (pieces == 1 && elements >= MANY && kept && red_units(of, mask) == 1)
		return arena_printf(g->arena,
		                    "the reduction keeps %lld elements side by side: one task would go over all %lld",
		                    (long long)kept_elements(of, mask), (long long)elements);

	if (pieces > 1)
		return arena_printf(g->arena,
		                    "the reduction keeps %lld elements of %lld: it is cut into %lld pieces, and no "
		                    "kernel holds all of a row",
		                    (long long)kept_elements(of, mask), (long long)type_elements(of),
		                    (long long)pieces);
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

/* What a pass before select knows of the kernel. */
static PlanCx
plan_before(const SelectCx *cx)
{
	bool half = cx->narrow == DT_f16 || cx->narrow == DT_bf16;

	return (PlanCx){.arch = arch_of(cx->arch), .half = half ? cx->narrow : DT_none, .select = cx};
}

static void
cpu_prologue(const Target *t, const Graph *g, const Op *contract, int k, const SelectCx *cx, Prologue *p)
{
	PlanCx plan = plan_before(cx);

	(void)t;
	prologue_cost(g, contract, k, &plan, p);
}

/* ---------------------------------------------------------------- 16 bits */
static bool
cpu_packs(const Target *t, const Graph *g, const Op *op, const SelectCx *cx)
{
	PlanCx plan = plan_before(cx);

	(void)t;
	return gemm_packs(g, op, &plan);
}

static bool
cpu_takes(const Target *t, const Graph *g, const Op *op, int k, const SelectCx *cx)
{
	(void)t;
	return rnn_takes(g, op, k, arch_of(cx->arch), cx->narrow) ||
	       attention_takes(g, op, k, arch_of(cx->arch), cx->narrow);
}

static DType
cpu_mixed_dtype(const Target *t, const char *arch)
{
	const Arch *a = arch_of(arch);

	(void)t;
	for (int i = ENGINE_COUNT; a && i-- > ENGINE_FMA + 1;)
		if (engines[i].has(a))
			return engines[i].type;
	return DT_none;
}

static const char *
cpu_arithmetic(const Target *t, const char *arch, DType narrow)
{
	const Arch *a = arch_of(arch);

	(void)t;
	for (int i = ENGINE_COUNT; a && i-- > ENGINE_FMA + 1;)
		if (engines[i].type == narrow && engines[i].has(a))
			return engines[i].doc;
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
		bug_context =
		        arena_printf(c->arena, "target cpu, group %s of graph %s", g->group.at[last].name, g->name);
		if (done[last])
			bug("its ops do not stand together");
		done[last] = true;
		(g->group.at[last].variant.n ? group_race : group_compile)(c, g, last, i, gk);
	}
	bug_context = NULL;
	once_first(c, gk);
}

/* Some group has several kernels. */
static bool
races(const Module *m)
{
	for (uint32_t i = 0; i < m->graph.n; i++)
		for (uint32_t k = 0; k < m->graph.at[i]->group.n; k++)
			if (m->graph.at[i]->group.at[k].variant.n)
				return true;
	return false;
}

/* Of a racing program functions begin at cache lines, so that their place decides no race. */
static const char *
code_open(Compile *c, const Arch *arch)
{
	const char *error = llvm_open(&c->l, c->m->name, arch, c->o->opt, c->arena);

	c->l.align = races(c->m) ? 64 : 0;
	c->l.debug = c->o->debug;
	if (!error && !strcmp(c->o->emit, "obj"))
		units_open(&c->l, c->o->opt, c->o->jobs, c->arena);
	return error;
}

static void
functions_align(const Llvm *l)
{
	for (LLVMValueRef f = LLVMGetFirstFunction(l->mod); f && l->align; f = LLVMGetNextFunction(f))
		if (!LLVMIsDeclaration(f))
			LLVMSetAlignment(f, l->align);
}

static const char *
code_finish(Compile *c, Buf *out)
{
	functions_align(&c->l);
	if (c->l.units)
		return units_finish(&c->l, out, c->o->counts);
	char *error = llvm_code(c->l.mod, c->l.tm, c->o->emit, out);
	const char *r = error ? arena_strdup(c->arena, error) : NULL;

	free(error);
	return r;
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

	if (!arch)
		return arena_printf(m->arena, "unknown architecture '%s'", o->arch);
	error = code_open(&c, arch);
	for (uint32_t i = 0; !error && i < m->graph.n; i++)
		if (!m->graph.at[i]->is_loop)
			compile_graph(&c, m->graph.at[i]);
	if (!error)
		error = c.error;
	if (!error) {
		ks.scratch_bytes = m->scratch_bytes;
		program_mark_loss(m, &ks, a);
		error = program_lacks_cuts(m, program_mark_cuts(m, &ks, a)); /* which may move kernels */
		program_mark_buckets(m, &ks, a);
		program_mark_joins(m, &ks, a);
	}
	if (!error) {
		program_json(&json, m, "cpu", o->arch, &ks);
		if (!strcmp(o->emit, "gradients")) {
			program_gradients(out, m, &ks, target_rates(t, o->arch), a);
		} else if (!strcmp(o->emit, "json")) {
			buf_put(out, json.at, json.n);
		} else {
			loops_emit(&c, json.at);
			error = code_finish(&c, out);
		}
	}
	llvm_close(&c.l);
	buf_free(&json);
	if (error)
		error = arena_strdup(m->arena, error);
	arena_free(a);
	return error;
}

/* The plain kernel adds into one sum: an FMA begins when the one before has ended, and vectors are of no
 * use. Of Zen 4's 118 GFLOP/s a core it reached 1.3 to 1.9. */
static double
cpu_product_rate(const Target *t, const Rates *r, const char *kernel)
{
	(void)t;
	return strcmp(kernel, PLAIN_KERNEL) ? r->flops : r->flops / 64;
}

const Target cpu_target = {
	.name = "cpu",
	.doc = "machine code for x86-64 through LLVM",
	.default_arch = "native",
	.traits = TARGET_scales | TARGET_spreads_values | TARGET_updates_fuse,
	.processes = "mpi",
	.variants = algo_variants,
	.has_kernel = cpu_has_kernel,
	.refuses = cpu_refuses,
	.resolve_arch = cpu_resolve_arch,
	.machine = cpu_machine,
	.product_rate = cpu_product_rate,
	.may_fuse = cpu_may_fuse,
	.prologue = cpu_prologue,
	.select = cpu_select,
	.emit = cpu_emit,
	.here.machine = cpu_machine_here,
	.here.word = cpu_machine_word,
	.layout.images = cpu_conv_layout,
	.layout.time = cpu_layout_time,
	.layout.outputs = cpu_outputs,
	.narrow.mixed = cpu_mixed_dtype,
	.narrow.packs = cpu_packs,
	.narrow.takes = cpu_takes,
	.narrow.arithmetic = cpu_arithmetic,
	.tuning.tunable = cpu_tunable,
	.tuning.version = cpu_kernel_version,
	.tuning.space = cpu_space,
	.tuning.predict = cpu_predict,
};
