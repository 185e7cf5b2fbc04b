/* columns.c: reductions that keep the axis that is innermost in memory: sums over all pixels of each channel, over all
 * rows of a matrix.
 *
 * In: a group of elementwise ops, perhaps behind a pooling or its gradient, and such reductions.   Out: one kernel, a
 * tile of rows and columns to a block: threads read neighbouring columns at once, and every so many rows. It is a
 * contraction's epilogue without the contraction (epilogue.c): full-size values are stored on the way, each tile leaves
 * a number for each column, and the block that comes last adds them and makes what the group makes of complete
 * reductions (finish.c). */
#include "../contract/gemm.h"

enum { AHEAD = 2 }; /* rows of a thread that are under way, at least */

static int64_t
rows_of(const Type *t)
{
	return type_elements(t) / t->axis[t->perm[t->rank - 1]].n;
}

bool
cu_columns_can(const Graph *g, const Op *red)
{
	const Type *t = val_type(g, red->in[0]);

	return t->rank > 1 && !t->axis[t->perm[t->rank - 1]].mul && t->axis[t->perm[t->rank - 1]].n > 1 &&
	       rows_of(t) > SHORT_ROW && !cu_reduces_to(g, t, t->perm[t->rank - 1], red);
}

/* The columns are the innermost axis, the rows all others as they lie in memory. */
static Form
form_of(const Type *t)
{
	Form f = {.groups = 1, .nm = t->rank - 1, .nn = 1};

	for (int i = 0; i < t->rank - 1; i++)
		f.m[i] = t->axis[t->perm[i]];
	f.n[0] = t->axis[t->perm[t->rank - 1]];
	return f;
}

/* Does the group have nothing but elementwise ops, random numbers, poolings, views, crops and reductions of t by
 * column, and nothing of t's size behind these? */
static bool
fits(const Graph *g, int group, const Type *t)
{
	Late late = cu_late_find(g, group);

	for (uint32_t i = late.first; i < late.last; i++) {
		const Op *o = &g->op.at[i];
		bool red = op_info[o->kind].red >= 0;

		if (o->dead || o->group != group)
			continue;
		if (!red && !op_has((OpKind)o->kind, T_POINTWISE | T_CONST | T_VIEW | T_WINDOW | T_RANDOM | T_CROP) &&
		    o->kind != OP_stop_gradient)
			return false;
		if (red && (cu_late_is(g, &late, o->in[0]) || cu_reduces_to(g, t, t->perm[t->rank - 1], o)))
			return false;
		if (!red && late.late[i - late.first] && type_elements(val_type(g, o->out[0])) >= type_elements(t))
			return false;
	}
	return true;
}

Facts
cu_columns_facts(const Graph *g, const Op *red, const SelectCx *cx)
{
	const Type *t = val_type(g, red->in[0]);

	(void)cx;
	return (Facts){.M = rows_of(t), .N = t->axis[t->perm[t->rank - 1]].n};
}

/* Values of windows are computed, not loaded. */
static bool
has_windows(const Graph *g, int group)
{
	for (uint32_t last, i = graph_group_ops(g, group, &last); i < last; i++)
		if (!g->op.at[i].dead && g->op.at[i].group == group && op_has((OpKind)g->op.at[i].kind, T_WINDOW))
			return true;
	return false;
}

const char *
cu_columns_misfit(const Graph *g, const Op *red, const SelectCx *cx, const Params *p)
{
	Facts f = cu_columns_facts(g, red, cx);

	if (p->family != FAMILY_cuda_columns)
		return "such a reduction takes parameters such as columns{m=256,n=64}";
	const char *why = space_misfit(g->arena, p, &f);

	return !why && p->cuda_columns.ahead != AHEAD && has_windows(g, red->group)
	               ? "a window's values are no loads that could be on their way"
	               : why;
}

int64_t
cu_columns_workspace(const Graph *g, const Op *red, const Params *p)
{
	Tiles t = {.m = p->cuda_columns.m, .n = p->cuda_columns.n, .k = 1, .split = 1};
	Form f = form_of(val_type(g, red->in[0]));

	return (cu_states_bytes(g, red->group, &f, &t) + 63) / 64 * 64 + cu_windows_workspace(g, red->group);
}

/* Rows of a thread that are under way: as many as registers hold of what the group reads at full size, beside what it
 * computes, so that a small tensor's rows come in few turns. */
static int
ahead_of(const Graph *g, int group, const Type *t)
{
	bool *seen = arena_array(g->arena, bool, g->val.n);
	bool costly = has_windows(g, group);
	int tensors = 0;

	for (uint32_t last, i = graph_group_ops(g, group, &last); i < last; i++) {
		const Op *op = &g->op.at[i];

		if (op->dead || op->group != group)
			continue;
		costly |= op_has((OpKind)op->kind, T_RANDOM);
		for (int k = 0; k < op->nin; k++) {
			const ValInfo *v = val_info(g, op->in[k]);

			if (seen[op->in[k].id] || type_elements(&v->type) != type_elements(t) ||
			    (v->op != UINT32_MAX && val_op(g, op->in[k])->group == group))
				continue;
			seen[op->in[k].id] = true;
			tensors++;
		}
	}
	return costly || tensors > 2 ? AHEAD : tensors == 2 ? 2 * AHEAD : 4 * AHEAD;
}

bool
cu_columns_select(const Graph *g, int group, const Op *red)
{
	const Type *t = val_type(g, red->in[0]);
	Tiles p = {.m = 1024, .n = 32, .k = 1, .split = 1};
	Group *gr = &g->group.at[group];

	if (!cu_columns_can(g, red) || !fits(g, group, t))
		return false;
	Form f = form_of(t);
	int64_t full = 4 * cu_machine(g)->budget.blocks; /* four tiles for a multiprocessor */

	while (p.n < f.n[0].n && p.n < 128)
		p.n *= 2;
	while (p.m > 128 && rows_of(t) / p.m * cu_tiles_along(f.n[0].n, p.n) < full)
		p.m /= 2;
	Params q = {FAMILY_cuda_columns, .cuda_columns = {p.m, p.n, ahead_of(g, group, t)}};

	gr->kernel = space_text(g->arena, &q);
	gr->workspace = cu_columns_workspace(g, red, &q);
	return true;
}

void
cu_columns_emit(Cuda *c)
{
	const Op *red = NULL;
	Gemm x = {.c = c, .threads = BLOCK};
	const Params *p = &c->kernel;

	for (uint32_t i = c->first; i < c->last; i++) /* the last, as select did: layouts may differ */
		red = !c->g->op.at[i].dead && op_info[c->g->op.at[i].kind].red >= 0 ? &c->g->op.at[i] : red;
	if (!red || p->family != FAMILY_cuda_columns)
		bug("target cuda: '%s' is no kernel of such a group", c->g->group.at[c->group].kernel);
	x.p.m = p->cuda_columns.m;
	x.p.n = p->cuda_columns.n;
	x.ahead = p->cuda_columns.ahead;
	x.space = val_type(c->g, red->in[0]);
	x.column = x.space->perm[x.space->rank - 1];
	x.f = form_of(x.space);
	x.p.split = 1;
	x.slab = x.p.m;
	cu_kernel_open(c, "");
	c->shared = BLOCK * 8 * 3 * 4;
	cu_line(c, "extern __shared__ uint4 memory[];");
	cu_line(c, "const int tid = threadIdx.x;");
	x.M = "1";
	for (int i = 0; i < x.f.nm; i++)
		x.M = cu_ix_mul(c, x.M, x.ext_m[i] = cu_extent(c, x.f.m[i]));
	x.N = cu_extent(c, x.f.n[0]);
	x.row_tiles = cu_ix_parts(c, x.M, x.p.m);
	x.col_tiles = cu_ix_parts(c, x.N, x.p.n);
	x.blocks_b = "1";
	x.number_b = "0";
	Ix ext[2] = {x.row_tiles, x.col_tiles}, at[2];
	Scope s = cu_scope_open(c, "for (%s tile = blockIdx.x; tile < %s; tile += gridDim.x)", c->it,
	                        cu_ix_mul(c, x.row_tiles, x.col_tiles));

	cu_split_number(c, "tile", ext, 2, at);
	x.tile_m = at[0];
	x.tile_n = at[1];
	x.m0 = cu_ix_mul(c, at[0], cu_ix_k(c, x.p.m));
	x.n0 = cu_ix_mul(c, at[1], cu_ix_k(c, x.p.n));
	cu_epilogue_emit(&x);
	cu_line(c, "__syncthreads();");
	cu_scope_close(c, s);
	cu_kernel_close(c, arena_printf(c->a, "%s, a tile to a block", c->g->group.at[c->group].kernel),
	                cu_gemm_tiles(&x.f, &x.p));
}
