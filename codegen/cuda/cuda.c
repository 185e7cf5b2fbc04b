/* cuda.c: the struct Target of CUDA: what it has kernels for, how groups are chosen, and a planned module as CUDA C,
 * PTX or a cubin.
 *
 * In: a planned Module.   Out: text, what NVRTC makes of it, or an object file with a code object. Every operator has a
 * kernel but lstm and gru, which pass decompose turns into products over all steps and a recurrence; of composite
 * operators a kernel may refuse an op (cuda_refuses). */
#include "contract/algo.h"
#include "composite/composite.h"
#include "forecast/forecast.h"
#include "../codegen.h"
#include <stdlib.h>
#include <string.h>

static const char *const archs[] = {
#define ARCH(arch, ...) #arch,
#include "arch.def"
#undef ARCH
};
enum { NARCH = sizeof archs / sizeof *archs };

static bool
cuda_has_kernel(const Target *t, OpKind k)
{
	(void)t;
	return !op_has(k, T_COMPOSITE | T_LOOP) || cu_attention_op(k) || cu_cells_op(k);
}

static const char *
cuda_refuses(const Target *t, const Graph *g, const Op *op)
{
	(void)t;
	if (cu_attention_op((OpKind)op->kind))
		return cu_attention_refuses(g, op);
	return cu_cells_op((OpKind)op->kind) ? cu_cells_refuses(g, op) : NULL;
}

/* The architecture for the device here: its own (sm_90a runs on 9.0 alone), or the nearest older one of the same major
 * version, or the newest of all (its PTX runs on what comes later). */
static const char *
native_arch(void)
{
	int major, minor;

	if (!cuda_device_version(&major, &minor))
		return NULL;
	for (int i = NARCH; i-- > 0;) {
		int number = atoi(archs[i] + 3);

		if (strchr(archs[i], 'a') ? number == 10 * major + minor
		                          : number / 10 <= major && (number / 10 < major || number % 10 <= minor))
			return archs[i];
	}
	return NULL;
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
	bool ask = !arch || !strcmp(arch, "native");
	const char *found = ask ? native_arch() : NULL;

	if (found)
		return found;
	if (ask)
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

/* Of f32 loads of one element are as good: FMAs are what takes the time. */
static int
cuda_conv_chunk(const Target *t, const Graph *g, const Op *op, const SelectCx *cx)
{
	DType dt = cx->narrow == DT_none ? (DType)val_type(g, op->in[0])->dtype : cx->narrow;

	(void)t;
	return cu_has_mma(dt, cx->arch) ? 16 / dtype_info[dt].bytes : 1;
}

/* ---------------------------------------------------------------- kernels beside contractions in tiles */
static bool
is_reduction(const Op *op)
{
	return op_info[op->kind].red >= 0;
}

static bool
is_special(const Op *op)
{
	return cu_special_op(op) && op->kind != OP_store;
}

static bool
is_contraction(const Op *op)
{
	return op_has((OpKind)op->kind, T_CONTRACT);
}

/* What can be searched of them: which op they are of (the last such of a group), what tune.def asks of it, why
 * parameters are not possible. workspace: of the group; NULL: select has taken the record. */
typedef struct Searched {
	FamilyId family;
	bool (*is)(const Op *op);
	Facts (*facts)(const Graph *g, const Op *op, const SelectCx *cx);
	const char *(*misfit)(const Graph *g, const Op *op, const SelectCx *cx, const Params *p);
	int64_t (*workspace)(const Graph *g, const Op *op, const Params *p);
} Searched;
static const Searched searched[] = {
	{FAMILY_cuda_attention, is_special, cu_attention_facts, cu_attention_misfit, NULL},
	{FAMILY_cuda_cells, is_special, cu_cells_facts, cu_cells_misfit, NULL},
	{FAMILY_cuda_cells_mma, is_special, cu_cells_facts, cu_cells_misfit, NULL},
	{FAMILY_cuda_rows, is_reduction, cu_rows_facts, cu_rows_misfit, cu_rows_workspace},
	{FAMILY_cuda_columns, is_reduction, cu_columns_facts, cu_columns_misfit, cu_columns_workspace},
	{FAMILY_cuda_depthwise, is_contraction, cu_depthwise_facts, cu_depthwise_misfit, cu_depthwise_workspace},
};

/* The row of the group's kernel, its parameters and its op; NULL: it has none. */
static const Searched *
searched_of(const Graph *g, int group, Params *p, const Op **op)
{
	const Searched *of = NULL;

	*op = NULL;
	space_parse("cuda", NULL, g->group.at[group].kernel, p);
	for (size_t i = 0; i < sizeof searched / sizeof *searched && !of; i++)
		of = searched[i].family == p->family ? &searched[i] : NULL;
	for (uint32_t last, i = graph_group_ops(g, group, &last); of && i < last; i++)
		if (!g->op.at[i].dead && g->op.at[i].group == group && of->is(&g->op.at[i]))
			*op = &g->op.at[i];
	return *op ? of : NULL;
}

/* A record's parameters in place of those that were chosen, if they are possible. */
static void
take_record(Graph *g, int group, SelectCx *cx)
{
	Group *gr = &g->group.at[group];
	Params p;
	const Op *op;
	const Searched *of = cx->tuned ? searched_of(g, group, &p, &op) : NULL;

	if (!of || !of->workspace)
		return;
	if (!space_parse("cuda", NULL, cx->tuned, &p))
		p = (Params){0}; /* of no family */
	cx->misfit = of->misfit(g, op, cx, &p);
	if (cx->misfit)
		return;
	gr->kernel = space_text(g->arena, &p);
	gr->workspace = of->workspace(g, op, &p);
}

/* ---------------------------------------------------------------- select */
static const char *
rows_text(const Graph *g, int threads, int pieces)
{
	return space_text(g->arena, &(Params){FAMILY_cuda_rows, .cuda_rows = {threads, pieces, 0, 0}});
}

static const char *
cuda_select(const Target *t, Graph *g, int group, SelectCx *cx)
{
	Group *gr = &g->group.at[group];
	const Op *special = NULL, *contract = NULL, *window = NULL, *red = NULL;
	int n = 0; /* ops beside casts of attention's results */

	for (uint32_t last, i = graph_group_ops(g, group, &last); i < last; i++) {
		const Op *op = &g->op.at[i];
		OpKind k = (OpKind)op->kind;

		if (op->dead || op->group != group)
			continue;
		n += !(k == OP_cast && special && cu_attention_op((OpKind)special->kind) &&
		       val_op(g, op->in[0]) == special);
		if (!cuda_has_kernel(t, k))
			return arena_printf(g->arena, "%s has no kernel and must be decomposed first", op_info[k].name);
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
	if (special && cu_attention_op((OpKind)special->kind))
		gr->kernel = cu_attention_select(g, special, cx, &gr->workspace);
	else if (special && cu_cells_op((OpKind)special->kind))
		gr->kernel = cu_cells_select(g, special, cx, &gr->workspace);
	else if (special && op_has((OpKind)special->kind, T_ALONE)) {
		gr->kernel = op_info[special->kind].name;
		gr->workspace = cu_boxes_workspace(g, special);
	} else if (special) {
		gr->kernel = op_info[special->kind].name;
		gr->workspace = op_has((OpKind)special->kind, T_SCATTER) ? cu_scatter_workspace(g, special) : 0;
	} else if (contract && cu_algo_select(g, group, contract, cx))
		;
	else if (red && !contract && (cu_columns_select(g, group, red) || (!window && cu_totals_select(g, group, red))))
		;
	else if (red && cu_rows_threads(g, red) < BLOCK)
		gr->kernel = rows_text(g, cu_rows_threads(g, red), 1);
	else if (red) {
		int pieces = cu_rows_pieces(g, group, red, &gr->workspace);

		gr->kernel = rows_text(g, pieces > 1 ? BLOCK : cu_rows_block(g, group, red), pieces);
	}
	else if (contract && cu_depthwise_select(g, group, contract))
		;
	else if (contract)
		gr->kernel = space_family[FAMILY_cuda_plain].text;
	else if (window) {
		gr->kernel = space_family[FAMILY_cuda_window].text;
		gr->workspace = cu_windows_workspace(g, group);
	}
	else
		gr->kernel = space_family[group_is_map(g, group) ? FAMILY_cuda_map : FAMILY_cuda_move].text;
	take_record(g, group, cx);
	Looked *dnn = select_looked(cx, space_family[FAMILY_cuda_cudnn].text);

	if (dnn && !dnn->chosen)
		dnn->why = arena_printf(g->arena, "%s, not cuDNN: %s", gr->kernel, dnn->why);
	return NULL;
}

/* Is what a row's reductions go over the innermost of memory? Then a block reads it in order, and holds it for what
 * follows. */
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
		if (cu_special_op(both[i]) && both[i]->kind != OP_store)
			return arena_printf(g->arena, "%s has a kernel of its own", op_info[both[i]->kind].name);
	if (!member)
		return NULL;
	if (op_has((OpKind)member->kind, T_WINDOW) && op_info[op->kind].red >= 0)
		return cu_columns_can(g, op) ? NULL
		                             : "a pooling's values are summed by channel, where channels are innermost "
		                               "in memory: a kernel of its own";
	if (op_has((OpKind)member->kind, T_CONTRACT)) {
		const char *why = cu_gemm_why_not(g, member);

		if (why)
			return arena_printf(g->arena, "the kernel of %s has no epilogue: %s",
			                    op_info[member->kind].name, why);
		return op_info[op->kind].red >= 0 ? cu_epilogue_reduces(g, member, op) : NULL;
	}
	if (op_info[op->kind].red >= 0 && op_info[member->kind].red < 0 && !holds_row(g, op) && !cu_columns_can(g, op))
		return "the reduction is not along what is innermost in memory: elementwise ops alone are read in "
		       "order";
	if (op_info[member->kind].red >= 0 && op_info[op->kind].red < 0 && !holds_row(g, member) &&
	    type_same_shape(val_type(g, op->out[0]), val_type(g, member->in[0])))
		return "the reduction is not along what is innermost in memory: no block holds a row";
	return NULL;
}

static void
cuda_prologue(const Target *t, const Graph *g, const Op *op, int k, const SelectCx *cx, Prologue *p)
{
	(void)t;
	(op_has((OpKind)op->kind, T_WINDOW) ? cu_windows_prologue : cu_gemm_prologue)(g, op, k, cx->narrow, p);
}

/* Not the log-sums, nor a mask. */
static bool
cuda_narrow(const Target *t, const Graph *g, const Op *op, int k, const SelectCx *cx)
{
	(void)t;
	return (cu_attention_op((OpKind)op->kind) && k < (op->kind == OP_attention ? 3 : 5)) ||
	       cu_cells_takes(g, op, k, cx);
}

static bool
cuda_strided(const Target *t, const Graph *g, const Op *op, int k, const Type *x)
{
	(void)t, (void)g;
	return cu_attention_op((OpKind)op->kind) && cu_attention_strided(op, k, x);
}

static bool
cuda_tunable(const Target *t, const char *kernel)
{
	(void)t;
	return space_tunable(space_family_of("cuda", NULL, kernel));
}

static int
cuda_kernel_version(const Target *t, const char *family)
{
	(void)t;
	return space_version("cuda", family);
}

typedef struct Trial {
	const Searched *of;
	const Graph *g; const Op *op; const SelectCx *cx;
	Params base; Facts facts;
	SpaceEach *each; void *each_cx;
} Trial;

static bool
trial(void *cx, const Params *q)
{
	const Trial *t = cx;

	return t->of->misfit(t->g, t->op, t->cx, q) ||
	       t->each(t->each_cx, space_text(t->g->arena, q), space_class(&t->base, q, &t->facts));
}

static void
cuda_space(const Target *t, Graph *g, int group, SelectCx *cx, SpaceEach *each, void *each_cx)
{
	const Op *op = graph_group_contraction(g, group);
	Trial x = {.g = g, .cx = cx, .each = each, .each_cx = each_cx};

	(void)t;
	if (op)
		cu_algo_space(g, group, op, cx, each, each_cx);
	x.of = searched_of(g, group, &x.base, &x.op);
	if (!x.of)
		return;
	x.facts = x.of->facts(g, x.op, cx);
	space_each(&x.base, &x.facts, cx->steps, trial, &x);
}

static DType
cuda_mixed_dtype(const Target *t, const char *arch)
{
	(void)t;
	return cu_is_turing(arch) ? DT_f16 : DT_bf16;
}

static const char *
cuda_arithmetic(const Target *t, const char *arch, DType narrow)
{
	if (narrow == DT_bf16)
		return cuda_mixed_dtype(t, arch) == DT_bf16
		               ? "bf16 tensors, matrix instructions of bf16, f32 sums"
		               : "bf16 tensors, f32 FMAs: this architecture has no instruction for bf16";
	return "f16 tensors, matrix instructions of f16, f32 sums";
}

/* ---------------------------------------------------------------- emit */
static void
loose_op(CuProgram *p, const Module *m, GraphKernels *gk, uint32_t at)
{
	const Graph *g = gk->g;
	const Op *op = &g->op.at[at];

	if (op->kind == OP_load ||
	    (op_has((OpKind)op->kind, T_VIEW) && val_info(g, op->out[0])->offset == val_info(g, op->in[0])->offset))
		return;
	if (op->kind != OP_store)
		bug("graph %s: %s is in no group", g->name, op_info[op->kind].name);
	cu_group_emit(p, m, gk, -1, at);
}

/* The other kernels of a group of a racing program, each as if it were the only one; they stand in no table. */
static void
variants_emit(CuProgram *p, const Module *m, GraphKernels *gk, int group, uint32_t first)
{
	Group *gr = &gk->g->group.at[group], was = *gr;

	for (uint32_t i = 1; i < was.variant.n; i++) {
		GraphKernels one = {.g = gk->g, .addressed = gk->addressed};
		VariantKernels r = {.group = group, .variant = i};

		gr->kernel = was.variant.at[i].kernel;
		gr->workspace = was.variant.at[i].workspace;
		p->variant = (int)i;
		cu_group_emit(p, m, &one, group, first);
		memcpy(&r.k, &one.k, sizeof r.k);
		vec_push(p->a, &gk->variant, r);
	}
	p->variant = 0;
	*gr = was;
}

/* The groups that run once, or those of every call. */
static void
groups_emit(CuProgram *p, const Module *m, GraphKernels *gk, bool once)
{
	const Graph *g = gk->g;
	int last = -1;

	for (uint32_t i = 0; i < g->op.n; i++) {
		const Op *op = &g->op.at[i];

		if (op->dead || once != (op->group >= 0 && g->group.at[op->group].once))
			continue;
		if (op->group < 0) {
			loose_op(p, m, gk, i);
		} else if (op->group != last) {
			last = op->group;
			bug_context = arena_printf(m->arena, "target cuda, group %s of graph %s",
			                           g->group.at[last].name, g->name);
			cu_group_emit(p, m, gk, last, i);
			variants_emit(p, m, gk, last, i);
		}
	}
	bug_context = NULL;
}

static const char *
small_integers(const Module *m)
{
	for (uint32_t i = 0; i < m->graph.n; i++)
		for (uint32_t k = 1; k < m->graph.at[i]->val.n; k++) {
			DType t = (DType)m->graph.at[i]->val.at[k].type.dtype;

			if (t == DT_i16 || t == DT_u16 || t == DT_i8)
				return cuda_small;
		}
	return "";
}

static void
states_find(CuProgram *p, const Module *m)
{
	p->state_from = INT64_MAX;
	for (uint32_t i = 0; i < m->state.n; i++) {
		const State *s = &m->state.at[i];

		if (s->kind == ST_CARRY)
			continue;
		p->state_from = s->offset < p->state_from ? s->offset : p->state_from;
		p->state_to =
		        s->offset + type_bytes(&s->type) > p->state_to ? s->offset + type_bytes(&s->type) : p->state_to;
	}
}

/* The kernels of all graphs, each a launch of its own. */
static void
module_kernels(CuProgram *p, const Module *m)
{
	states_find(p, m);
	for (uint32_t i = 0; i < m->graph.n; i++) {
		GraphKernels *gk = arena_new_of(p->a, GraphKernels);

		if (m->graph.at[i]->is_loop)
			continue;
		gk->g = m->graph.at[i];
		cu_inputs_find(m, gk);
		groups_emit(p, m, gk, true);
		gk->nonce = gk->k.n;
		groups_emit(p, m, gk, false);
		vec_push(p->a, &p->ks.graph, gk);
	}
	program_mark_joins(m, &p->ks, p->a);
	p->cuts = program_mark_cuts(m, &p->ks, p->a);
}

/* What pass launch asks. Whether kernels share a function is told by their text alone: does it ask for an index, which
 * addresses are one parameter? */
static void
cuda_kernels(const Target *t, const Module *m, Arena *a, LaunchKernels *out)
{
	CuProgram p = {.a = arena_new()};
	const char *context = bug_context;

	(void)t;
	module_kernels(&p, m);
	for (uint32_t i = 0, j = 0; i < m->graph.n; i++) {
		if (m->graph.at[i]->is_loop)
			continue;
		const GraphKernels *gk = p.ks.graph.at[j++];

		for (uint32_t k = 0; k < gk->k.n; k++) {
			const KernelRec *r = &gk->k.at[k];

			vec_push(a, &out[i].at,
			         ((LaunchKernel){.group = r->group,
			                         .name = arena_strdup(a, r->name),
			                         .function = (uint32_t)r->fn,
			                         .flat = p.fn.at[r->fn].flat,
			                         .small = cu_is_small(&p, r),
			                         .once = r->once,
			                         .alone = r->join  ? "it waits for other shards"
			                                  : r->cut  ? "processes share it, a part for each"
			                                  : r->told ? "it joins what processes tell each other"
			                                            : NULL,
			                         .early = r->early}));
		}
	}
	bug_context = context;
	buf_free(&p.text);
	arena_free(p.a);
}

const char *
cu_module_emit(CuProgram *p, const Module *m, const char *arch)
{
	module_kernels(p, m);
	buf_printf(&p->text, "/* model %s, %s */\n", m->name, arch);
	buf_printf(&p->text, "%s", cuda_prelude);
	p->small = small_integers(m);
	buf_printf(&p->text, "%s", p->small);
	program_mark_buckets(m, &p->ks, p->a);
	return cu_merge(p);
}

/* Functions are compiled in parts: threads share them, and what a change leaves alone is found in the cache. Returns
 * the number of parts. */
static int
parts_cut(CuProgram *p)
{
	enum { PART = 32768 }; /* characters of text */
	size_t used = 0;
	int part = 0;

	for (uint32_t i = 0; i < p->fn.n; i++) {
		size_t n = p->fn.at[i].plan ? 0 : strlen(p->fn.at[i].text);

		p->fn.at[i].part = -1;
		if (p->fn.at[i].plan)
			continue;
		if (used && used + n > PART) {
			part++;
			used = 0;
		}
		p->fn.at[i].part = part;
		used += n;
	}
	return part + 1;
}

/* loop: the first has the loop's kernels, too. */
static const char *
part_source(CuProgram *p, int part, bool loop)
{
	Buf b = {0};

	buf_printf(&b, "%s%s", cuda_prelude, p->small);
	if (part == 0 && loop)
		buf_printf(&b, "%s%s", cuda_loop_types, cuda_loop);
	for (uint32_t i = 0; i < p->fn.n; i++)
		if (p->fn.at[i].part == part)
			buf_printf(&b, "\n/* graph code, group %s: %s */\n%s%s %s%s", p->fn.at[i].name,
			           p->fn.at[i].what, p->fn.at[i].before, cu_kernel_word(p->a, &p->fn.at[i]),
			           p->fn.at[i].name, p->fn.at[i].text);
	const char *r = arena_strndup(p->a, b.at, b.n);

	buf_free(&b);
	return r;
}

/* Text that was read may ask for more than the architecture has. NULL: it does not. */
static const char *
asks_too_much(const CuProgram *p, const char *arch)
{
	int most = (int)cuda_machine(NULL, arch)->shared;

	for (uint32_t i = 0; i < p->fn.n; i++) {
		const CuFunction *f = &p->fn.at[i];

		if (f->shared > most)
			return arena_printf(p->a, "group %s (%s): %d bytes of shared memory, a block of %s has %d",
			                    f->name, f->what, (int)f->shared, arch, most);
	}
	return NULL;
}

/* The last code object has PTX too, or nothing else. */
static const char *
object_emit(CuProgram *p, const Module *m, const EmitOptions *o, Buf *out)
{
	int parts = parts_cut(p);
	NvrtcJob *job = arena_array(p->a, NvrtcJob, parts);
	Buf json = {0};
	const char *error;

	for (int k = 0; k < parts; k++)
		job[k] = (NvrtcJob){.source = part_source(p, k, true), .cubin = !o->ptx_only, .ptx = o->last};
	error = nvrtc_compile(p->a, o->arch, job, parts, o->jobs);
	for (int k = 0; k < parts; k++)
		if (job[k].note)
			fprintf(stderr, "mantou: warning: %s\n", job[k].note);
	if (!error && (!strcmp(o->emit, "forecast") || !strcmp(o->emit, "sass"))) {
		const Machine *on = cuda_forecast_machine(o->arch, o->machine);

		(*o->emit == 's' ? cu_forecast_sass : cu_forecast_json)(p, on, job, out);
	} else if (!error) {
		program_json(&json, m, "cuda", o->arch, &p->ks);
		error = cuda_object(p, json.at, o, job, parts, out);
	}
	for (int k = 0; k < parts; k++) {
		buf_free(&job[k].cubin_out);
		buf_free(&job[k].ptx_out);
	}
	buf_free(&json);
	return error;
}

static const char *
program_emit(CuProgram *p, const Module *m, const EmitOptions *o, Buf *out)
{
	bool cubin = !strcmp(o->emit, "cubin");
	NvrtcJob job = {.source = p->text.at, .cubin = cubin, .ptx = !cubin, .lines = true, .strict = true};
	const char *error = asks_too_much(p, o->arch);

	if (!error)
		error = program_lacks_cuts(m, p->cuts);
	if (error)
		return error;
	program_mark_loss(m, &p->ks, p->a);
	if (!strcmp(o->emit, "json"))
		program_json(out, m, "cuda", o->arch, &p->ks);
	else if (!strcmp(o->emit, "cuda"))
		buf_put(out, p->text.at, p->text.n);
	else if (!strcmp(o->emit, "obj") || !strcmp(o->emit, "forecast") || !strcmp(o->emit, "sass"))
		error = object_emit(p, m, o, out);
	else if (!(error = nvrtc_compile(p->a, o->arch, &job, 1, o->jobs)))
		buf_put(out, cubin ? job.cubin_out.at : job.ptx_out.at, cubin ? job.cubin_out.n : job.ptx_out.n);
	buf_free(&job.cubin_out);
	buf_free(&job.ptx_out);
	return error;
}

static const char *
cuda_emit(const Target *t, const Module *m, const EmitOptions *o, Buf *out)
{
	CuProgram p = {.a = arena_new()};
	const char *error;

	(void)t;
	error = cu_module_emit(&p, m, o->arch);
	error = error ? error : program_emit(&p, m, o, out);
	error = error ? arena_strdup(m->arena, error) : NULL;
	buf_free(&p.text);
	arena_free(p.a);
	return error;
}

/* ---------------------------------------------------------------- times of kernels that could stand there */
/* The group's kernels with this text, as if they were its own. False: it cannot have it, and is as it was. */
static bool
candidate_select(const Target *t, Graph *g, int group, const SelectCx *cx, const char *kernel)
{
	Group *gr = &g->group.at[group], was = *gr;
	SelectCx s = {.arch = cx->arch, .tuned = kernel, .may = cx->may, .cx = cx->cx};
	bool good = !strcmp(kernel, was.kernel) ||
	            (!cuda_select(t, g, group, &s) && !s.misfit && !strcmp(gr->kernel, kernel));

	if (!good)
		*gr = was;
	else if (gr->workspace && gr->workspace_offset < 0)
		gr->workspace_offset = 0; /* nobody runs it */
	return good;
}

static void
cuda_forecast(const Target *t, const Module *m, Graph *g, int group, const SelectCx *cx, const char *const *kernel,
              int n, int jobs, double *seconds)
{
	CuProgram p = {.a = arena_new()};
	Group *gr = &g->group.at[group], was = *gr, *made = arena_array(p.a, Group, n);
	GraphKernels *gk = arena_array(p.a, GraphKernels, n);
	uint32_t last, first = graph_group_ops(g, group, &last);

	states_find(&p, m);
	p.small = small_integers(m);
	for (int i = 0; i < n; i++) {
		seconds[i] = NAN;
		if (!candidate_select(t, g, group, cx, kernel[i]))
			continue;
		gk[i].g = g;
		cu_inputs_find(m, &gk[i]);
		p.variant = i;
		cu_group_emit(&p, m, &gk[i], group, first);
		made[i] = *gr;
		*gr = was;
	}
	int parts = p.fn.n ? parts_cut(&p) : 0;
	NvrtcJob *job = arena_array(p.a, NvrtcJob, parts + 1);

	for (int k = 0; k < parts; k++)
		job[k] = (NvrtcJob){.source = part_source(&p, k, false), .cubin = true};
	const char *error = nvrtc_compile(p.a, cx->arch, job, parts, jobs);

	for (int i = 0; i < n && !error; i++)
		if (made[i].kernel) {
			*gr = made[i];
			seconds[i] = cu_forecast_seconds(&p, cuda_machine(t, cx->arch), job, g, gk[i].k.at, gk[i].k.n);
		}
	*gr = was;
	for (int k = 0; k < parts; k++)
		buf_free(&job[k].cubin_out);
	arena_free(p.a);
}

const Target cuda_target = {
	.name = "cuda",
	.doc = "CUDA C for NVIDIA GPUs, compiled by NVRTC",
	.default_arch = "native",
	.traits = TARGET_windows_fuse | TARGET_crops_fuse | TARGET_joins_launches | TARGET_has_ptx,
	.processes = "nccl",
	.variants = cu_variants,
	.has_kernel = cuda_has_kernel,
	.refuses = cuda_refuses,
	.resolve_arch = cuda_resolve_arch,
	.machine = cuda_machine,
	.product_rate = cuda_product_rate,
	.may_fuse = cuda_may_fuse,
	.prologue = cuda_prologue,
	.select = cuda_select,
	.emit = cuda_emit,
	.here.machine = cuda_machine_here,
	.here.word = cuda_machine_word,
	.here.card = cuda_card,
	.here.device = cuda_device_name,
	.here.driver_lacks = nvrtc_driver_lacks,
	.layout.images = cuda_conv_layout,
	.layout.chunk = cuda_conv_chunk,
	.layout.strided = cuda_strided,
	.narrow.takes = cuda_narrow,
	.narrow.mixed = cuda_mixed_dtype,
	.narrow.arithmetic = cuda_arithmetic,
	.tuning.tunable = cuda_tunable,
	.tuning.version = cuda_kernel_version,
	.tuning.space = cuda_space,
	.tuning.forecast = cuda_forecast,
	.launch.most = CU_LAUNCH,
	.launch.kernels = cuda_kernels,
};
