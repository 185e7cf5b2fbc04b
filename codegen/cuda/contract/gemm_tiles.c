/* gemm_tiles.c: parameters of contractions in tiles: what is possible, their text, what follows from them.
 *
 * In: a contraction, its group; parameters (Tiles).   Out: threads, bytes of shared memory and of workspace, parts of
 * k, facts for tune.def. What is chosen stands with the rows (gemm.c, wgmma.c) and in algo.c. */
#include "gemm.h"
#include <string.h>

/* ---------------------------------------------------------------- whether, and what it takes */
const char *
cu_gemm_why_not(const Graph *g, const Op *op)
{
	const Type *a = val_type(g, op->in[0]), *o = val_type(g, op->out[0]);
	DType dt = (DType)a->dtype;

	if ((dt != DT_f32 && dt != DT_f16 && dt != DT_bf16) || val_type(g, op->in[1])->dtype != dt ||
	    o->dtype == DT_f64 || !dtype_is_float((DType)o->dtype))
		return "its elements are not f32, f16 or bf16";
	if (op->kind != OP_matmul && attr_int(op, A_groups) > 1) {
		Form f = cu_form(g, op);

		if (f.n[0].n < 8)
			return "a group of channels has fewer than 8: a kernel that goes over channels one by one";
	}
	return NULL;
}

int
cu_gemm_threads(const Tiles *p)
{
	return p->mma ? WARP * p->wm * p->wn : BLOCK;
}

static int64_t
pipeline_bytes(const Tiles *p)
{
	return (int64_t)p->stages * (cu_tile_bytes(p, p->m, false) + cu_tile_bytes(p, p->n, false));
}

int64_t
cu_gemm_shared(const Tiles *p)
{
	int64_t join = (int64_t)cu_gemm_threads(p) * 8 * 3 * 4,
	        slab = (int64_t)(p->m < 32 ? p->m : 32) * cu_slab_line(p) * 4, r = pipeline_bytes(p);

	r = join > r ? join : r;
	return slab > r ? slab : r;
}

/* ---------------------------------------------------------------- text */
FamilyId
cu_tiles_family(const Tiles *p)
{
	return p->groups ? FAMILY_cuda_wgmma : p->tf32 ? FAMILY_cuda_tf32 : p->mma ? FAMILY_cuda_mma : FAMILY_cuda_ffma;
}

static Params
params_of(const Tiles *p)
{
	FamilyId f = cu_tiles_family(p);

	if (p->groups)
		return (Params){f, .cuda_wgmma = {p->m, p->n, p->k, p->stages, p->groups, !p->copied, p->split}};
	if (p->mma) /* tf32 has the same parameters */
		return (Params){f, .cuda_mma = {p->m, p->n, p->k, p->stages, p->wm, p->wn, p->split}};
	return (Params){f, .cuda_ffma = {p->m, p->n, p->k, p->split}};
}

bool
cu_tiles_of(const Params *q, Tiles *p)
{
	switch (q->family) {
	case FAMILY_cuda_mma:
	case FAMILY_cuda_tf32:
		*p = (Tiles){.mma = true, .tf32 = q->family == FAMILY_cuda_tf32, .m = q->cuda_mma.m, .n = q->cuda_mma.n,
		             .k = q->cuda_mma.k, .stages = q->cuda_mma.stages, .wm = q->cuda_mma.warps_m,
		             .wn = q->cuda_mma.warps_n, .split = q->cuda_mma.split};
		return true;
	case FAMILY_cuda_wgmma:
		if (q->cuda_wgmma.groups < 1 || q->cuda_wgmma.groups > 8)
			return false;
		*p = (Tiles){.mma = true,
		             .m = q->cuda_wgmma.m,
		             .n = q->cuda_wgmma.n,
		             .k = q->cuda_wgmma.k,
		             .stages = q->cuda_wgmma.stages,
		             .wm = 4 * q->cuda_wgmma.groups,
		             .wn = 1,
		             .groups = q->cuda_wgmma.groups,
		             .copied = !q->cuda_wgmma.tma,
		             .split = q->cuda_wgmma.split};
		return true;
	case FAMILY_cuda_ffma:
		*p = (Tiles){.m = q->cuda_ffma.m, .n = q->cuda_ffma.n, .k = q->cuda_ffma.k, .stages = 2,
		             .split = q->cuda_ffma.split};
		return true;
	default:
		return false;
	}
}

const char *
cu_gemm_text(Arena *a, const Tiles *p)
{
	Params q = params_of(p);

	return space_text(a, &q);
}

bool
cu_gemm_parse(const char *text, Tiles *p)
{
	Params q;

	return space_parse("cuda", NULL, text, &q) && cu_tiles_of(&q, p);
}

/* ---------------------------------------------------------------- how much */
int64_t
cu_gemm_tiles(const Form *f, const Tiles *p)
{
	return cu_form_count(f->b, f->nb) * cu_tiles_along(cu_form_count(f->m, f->nm), p->m) *
	       cu_tiles_along(cu_form_count(f->n, f->nn), p->n);
}

/* Where every block has a multiprocessor to itself there is nothing to share. */
bool
cu_gemm_shares(const Gemm *x)
{
	const Tiles *p = &x->p;

	return p->mma && !p->tf32 && p->m * p->n <= 64 * x->threads && p->split != 2 &&
	       cu_gemm_tiles(&x->f, p) * p->split > cu_machine(x->c->g)->sms;
}

bool
cu_gemm_has_parts(const Op *op, const Form *f, const Load *l)
{
	int64_t least = l && (l->made[0] || l->made[1]) ? 1024 : 2048;

	return op->kind == OP_conv2d_dw || cu_form_count(f->k, f->nk) >= least;
}

void
cu_gemm_parts(const Graph *g, const Op *op, const Form *f, const Load *l, Tiles *p)
{
	const Budget *b = &cu_machine(g)->budget;
	int64_t tiles = cu_gemm_tiles(f, p), steps = cu_tiles_along(cu_form_count(f->k, f->nk), p->k);
	int64_t split = (cu_gemm_threads(p) > 128 ? 1 : 2) * b->blocks / tiles,
	        each = l && (l->made[0] || l->made[1]) && op->kind != OP_conv2d_dw ? 4 : 8;

	split = split > steps / each ? steps / each : split;
	while (split > 1 && split * tiles * p->m * p->n * 4 > b->l2)
		split--;
	/* sums too short for parts have some where most of the machine would be idle */
	if (split > 1 && (cu_gemm_has_parts(op, f, l) || 4 * tiles <= b->blocks) && !f->classes)
		p->split = (int)split;
}

/* Does the group reduce what the contraction makes? */
static bool
reduces(const Graph *g, int group)
{
	for (uint32_t last, i = graph_group_ops(g, group, &last); i < last; i++)
		if (!g->op.at[i].dead && g->op.at[i].group == group && op_info[g->op.at[i].kind].red >= 0)
			return true;
	return false;
}

/* Indices of 64 bits? */
static bool
is_large(const Graph *g, const Op *op)
{
	return type_elements(val_type(g, op->in[0])) >> 30 || type_elements(val_type(g, op->in[1])) >> 30 ||
	       type_elements(val_type(g, op->out[0])) >> 30;
}

Load
cu_gemm_load(const Graph *g, int group, const Op *op)
{
	int behind = 0;
	Load l = {.heavy = is_large(g, op), .reduces = reduces(g, group)};

	for (int k = 0; k < 2; k++)
		l.made[k] = val_info(g, op->in[k])->op != UINT32_MAX && val_op(g, op->in[k])->group == group;
	for (uint32_t last, i = graph_group_ops(g, group, &last); i < last; i++) {
		const Op *o = &g->op.at[i];

		if (o->dead || o->group != group)
			continue;
		behind += o > op && !op_has((OpKind)o->kind, T_CONST | T_VIEW);
		/* functions that need registers of their own */
		l.heavy |= o < op || op_has((OpKind)o->kind, T_RANDOM) || expr_costly(op_info[o->kind].expr);
	}
	l.heavy |= behind > 4;
	return l;
}

/* What tune.def asks of a contraction in tiles. */
Facts
cu_gemm_facts(const Graph *g, int group, const Op *op, const char *arch)
{
	Form f = cu_form(g, op);
	bool along_k;

	return (Facts){.M = cu_form_count(f.m, f.nm), .N = cu_form_count(f.n, f.nn), .K = cu_form_count(f.k, f.nk),
	               .entries = cu_form_count(f.b, f.nb), .matmul = op->kind == OP_matmul, .classes = f.classes,
	               .reduces = reduces(g, group), .singles = cu_operand_run(g, &f, 1, &along_k) % 8 != 0,
	               .smem = cuda_machine(NULL, arch)->shared};
}

/* Why the group cannot be a kernel in tiles; NULL: it can. */
const char *
cu_gemm_misfit(const Graph *g, int group, const Op *op)
{
	const char *why = cu_gemm_why_not(g, op);
	Late late = cu_late_find(g, group);
	bool behind = false;

	for (uint32_t i = late.first; i < late.last && !why; i++) {
		const Op *o = &g->op.at[i];
		bool red = op_info[o->kind].red >= 0;

		if (o->dead || o->group != group)
			continue;
		if (o == op) {
			behind = true;
			continue;
		}
		if (op_has((OpKind)o->kind, T_CONTRACT | T_WINDOW) || (red && !behind))
			return "another contraction, window or reduction comes before it";
		why = red ? cu_epilogue_reduces(g, op, o) : NULL;
		if (late.late[i - late.first] &&
		    (red ? cu_late_is(g, &late, o->in[0])
		         : o->nout && type_same_shape(val_type(g, o->out[0]), val_type(g, op->out[0]))))
			why = "a reduction must be complete before its first use";
	}
	return why;
}

int64_t
cu_gemm_workspace(const Graph *g, int group, const Op *op, const Tiles *p)
{
	Form f = cu_form(g, op);

	return cu_parts_bytes(&f, p) + cu_states_bytes(g, group, &f, p);
}
