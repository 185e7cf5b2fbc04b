/* epilogue.c: what follows a contraction in its group: elementwise ops, reductions of their values over the rows, and what is made of these.
 *
 * In: the sums of a tile in registers.   Out: text that brings them to shared memory, some rows at a time, and evaluates the group's outputs there, each thread
 * a few neighbouring columns of every so many rows: the contraction's value at such a place is known to the memo, all else is pulled. Reductions (a batch normalisation's statistics,
 * the sums of its gradient, a bias's gradient) are kept by thread and column, joined in the order of the threads, and left in the workspace, a number for each column and tile;
 * the kernel that follows adds these in a tree of a block's threads, and makes what the group makes of them. Variances are sums of squares about means, joined as in
 * Chan, Golub, LeVeque 1979. Every order is fixed by shape and n. With split > 1 the sums go to the workspace as they are. */
#include "gemm.h"
#include <string.h>

enum { OUTS = 128 };

/* ---------------------------------------------------------------- leaves */
bool
cu_vector_type(DType t)
{
	return t == DT_f32 || t == DT_f16 || t == DT_bf16;
}

static bool
same_place(const Type *a, const Type *b)
{
	bool same = a->rank == b->rank && !memcmp(a->perm, b->perm, a->rank);

	for (int i = 0; i < a->rank && same; i++)
		same = axis_same(a->axis[i], b->axis[i]);
	return same;
}

/* Values in memory of which elementwise ops make v, with elements where those of `like` are. */
void
cu_leaves_find(Cuda *c, Val v, const Type *like, Val stop, Leaves *l)
{
	const ValInfo *i = val_info(c->g, v);
	bool known = v.id == stop.id;

	for (uint32_t k = 0; k < l->at.n; k++)
		known |= l->at.at[k].v.id == v.id;
	if (known)
		return;
	if (!c->inside[v.id] || c->ready[v.id]) {
		if (same_place(&i->type, like) && cu_vector_type((DType)i->type.dtype) && i->offset % 16 == 0)
			vec_push(c->a, &l->at, ((Leaf){.v = v}));
		return;
	}
	const Op *op = val_op(c->g, v);

	if (!op_has((OpKind)op->kind, T_POINTWISE) && op->kind != OP_stop_gradient)
		return;
	for (int k = 0; k < op->nin; k++)
		cu_leaves_find(c, op->in[k], like, stop, l);
}

void
cu_leaves_open(Cuda *c, Leaves *l, int vec, int rows)
{
	l->vec = vec;
	l->rows = rows;
	for (uint32_t k = 0; k < l->at.n; k++) {
		Leaf *f = &l->at.at[k];

		f->name = cu_fresh(c, 'x');
		cu_line(c, "%s %s%s[%d];", dtype_info[val_type(c->g, f->v)->dtype].bytes == 2 ? "unsigned short" : "float", f->name, rows > 1 ? arena_printf(c->a, "[%d]", rows) : "", vec);
	}
}

static const char *
leaf_at(Cuda *c, const Leaves *l, const Leaf *f)
{
	return l->rows > 1 ? arena_printf(c->a, "%s[q]", f->name) : f->name;
}

void
cu_leaves_load(Cuda *c, const Leaves *l, const Ix *ix)
{
	for (uint32_t k = 0; k < l->at.n; k++) {
		const ValInfo *i = val_info(c->g, l->at.at[k].v);

		cu_line(c, "take%d_%d(%s, %s);", l->vec, 8 * dtype_info[i->type.dtype].bytes, leaf_at(c, l, &l->at.at[k]), cu_address(c, &i->type, i->offset, ix));
	}
}

void
cu_leaves_put(Cuda *c, const Leaves *l, const Ix *ix, Ix lane)
{
	for (uint32_t k = 0; k < l->at.n; k++) {
		const Leaf *f = &l->at.at[k];
		DType dt = (DType)val_type(c->g, f->v)->dtype;
		const char *at = arena_printf(c->a, "%s[%s]", leaf_at(c, l, f), lane);

		cu_memo_put(c, f->v, ix, cu_cell_let(c, dt == DT_f32 ? at : arena_printf(c->a, "%s_value(%s)", dtype_info[dt].name, at), dt));
	}
}

/* ---------------------------------------------------------------- what it holds */
int
cu_red_states(const Op *red)
{
	return red->kind == OP_moments ? 3 : 1;
}

const char *
cu_epilogue_reduces(const Graph *g, const Op *contract, const Op *red)
{
	const Type *o = val_type(g, contract->out[0]), *t = val_type(g, red->in[0]);
	int column = contract->kind == OP_matmul ? o->rank - 1 : contract->kind == OP_conv2d_dw ? 0 : 1;
	uint32_t axes = cu_red_axes(g, red);

	if (red->kind != OP_sum && red->kind != OP_mean && red->kind != OP_moments)
		return "the reduction is no sum, mean or moments: a kernel of its own";
	if (t->dtype != DT_f32)
		return "a contraction's epilogue is reduced in f32";
	if (!type_same_shape(t, o))
		return "the reduction goes over another space than the contraction's";
	for (int i = 0; i < t->rank; i++)
		if ((t->axis[i].n != 1 || t->axis[i].mul) && (axes >> i & 1) == (i == column))
			return "a contraction's tiles are reduced over all rows, column by column";
	return NULL;
}

typedef struct Epilogue {
	Gemm *x;
	Out out[OUTS]; int nout;
	const Op *red[OUTS]; int nred;
	int vec, columns, step; /* neighbouring columns of a thread; threads across; rows that a pass takes */
	int ahead;              /* rows of a thread whose operands are loaded before the first is used */
	Leaves leaves;
	const char *state[OUTS][3]; /* arrays of each reduction, by column of the thread */
} Epilogue;

static void
epilogue_find(Gemm *x, Epilogue *e)
{
	Cuda *c = x->c;
	const Type *o = val_type(c->g, x->op->out[0]);
	bool narrow = x->p.mma;

	*e = (Epilogue){.x = x};
	for (uint32_t i = c->first; i < c->last; i++) {
		const Op *op = &c->g->op.at[i];

		if (op->dead)
			continue;
		if (op_info[op->kind].red >= 0) {
			e->red[e->nred++] = op;
			cu_leaves_find(c, op->in[0], o, x->op->out[0], &e->leaves);
			continue;
		}
		for (int k = 0; k < op->nout; k++) {
			const ValInfo *v = val_info(c->g, op->out[k]);

			if (op < x->op || !cu_value_is_out(c, op->out[k]) || c->ready[op->out[k].id] || !type_same_shape(&v->type, o))
				continue;
			if (e->nout == OUTS || e->nred == OUTS)
				bug("a contraction with more than %d outputs", OUTS);
			e->out[e->nout++] = (Out){op->out[k], &v->type, v->offset};
			cu_leaves_find(c, op->out[k], o, x->op->out[0], &e->leaves);
			narrow |= dtype_info[v->type.dtype].bytes == 2;
		}
	}
	e->vec = narrow && !e->nred ? 8 : 4; /* states of 8 columns would not stay in registers */
}

/* ---------------------------------------------------------------- sums to shared memory */
static void
slab_fill(Gemm *x)
{
	Cuda *c = x->c;
	const Tiles *p = &x->p;
	int line = p->n + 8, w = p->m / 16 < 4 ? p->m / 16 : 4, v = p->n / 16 < 4 ? p->n / 16 : 4;
	Scope s, t;

	cu_line(c, "#pragma unroll");
	s = cu_scope_open(c, "for (int i = 0; i < %d; i++)", p->mma ? p->m / p->wm / 8 : p->m / 16);
	if (p->mma)
		cu_line(c, p->groups ? "const int r = warp_m + i / 2 * 64 + i %% 2 * 8 + lane / 4;" : "const int r = warp_m + i * 8 + lane / 4;");
	else
		cu_line(c, "const int r = i / %d * %d + tid / 16 * %d + i %% %d;", w, 16 * w, w, w);
	t = cu_scope_open(c, "if (r / %d == slab)", x->slab);
	cu_line(c, "#pragma unroll");
	if (p->mma) {
		cu_line(c, "for (int j = 0; j < %d; j++)", p->n / p->wn / 8);
		cu_line(c, "\t*(float2 *)&sums[r %% %d * %d + warp_n + j * 8 + lane %% 4 * 2] = make_float2(acc[i / 2][j][i %% 2 * 2], acc[i / 2][j][i %% 2 * 2 + 1]);", x->slab, line);
	} else {
		cu_line(c, "for (int j = 0; j < %d; j += %d)", p->n / 16, v);
		cu_line(c, "\twrite%d(&sums[r %% %d * %d + j * 16 + tid %% 16 * %d], &acc[i][j]);", v, x->slab, line, v);
	}
	cu_scope_close(c, t);
	cu_scope_close(c, s);
}

/* Loops over slabs, and over this thread's rows of a slab. */
typedef struct Rows { Scope slab, row; Ix n; int vec, columns, step; } Rows;

static Rows
rows_open(Gemm *x, int vec, int columns, int ahead)
{
	Cuda *c = x->c;
	Rows r = {.vec = vec, .columns = columns, .step = x->threads / columns};

	cu_line(c, "float *const sums = (float *)memory;");
	r.n = cu_ix_add(c, x->n0, cu_ix_mul(c, arena_printf(c->a, "(tid %% %d)", columns), cu_ix_k(c, vec)));
	r.slab = cu_scope_open(c, "for (int slab = 0; slab < %d; slab++)", x->p.m / x->slab);
	cu_line(c, "__syncthreads();");
	slab_fill(x);
	cu_line(c, "__syncthreads();");
	r.row = cu_scope_open(c, "for (int line = tid / %d; line < %d; line += %d)", columns, x->slab, ahead * r.step);
	return r;
}

/* Line q steps on from `line`, if it is in the result: m is its row there, *at the text of its sums, without the bracket. */
static Scope
row_open(Gemm *x, const Rows *r, Ix q, Ix *m, const char **at)
{
	Cuda *c = x->c;
	Ix line = cu_ix_add(c, "line", cu_ix_mul(c, q, cu_ix_k(c, r->step)));
	const char *inside = strcmp(q, "0") ? arena_printf(c->a, "%s < %d && ", line, x->slab) : "";

	*m = cu_ix_add(c, x->m0, cu_ix_add(c, cu_ix_mul(c, "slab", cu_ix_k(c, x->slab)), line));
	*at = arena_printf(c->a, "sums[%s * %d + tid %% %d * %d", line, x->p.n + 8, r->columns, r->vec);
	return cu_scope_open(c, "if (%s%s < %s && %s < %s)", inside, *m, x->M, r->n, x->N);
}

static void
rows_close(Cuda *c, const Rows *r)
{
	cu_scope_close(c, r->row);
	cu_scope_close(c, r->slab);
}

static Ix
linear(Cuda *c, Ix outer, Ix ext, Ix inner)
{
	return cu_ix_add(c, cu_ix_mul(c, outer, ext), inner);
}

/* split > 1: the part's sums. */
static void
store_part(Gemm *x)
{
	Cuda *c = x->c;
	int64_t n = cu_form_count(x->f.n, x->f.nn);
	int vec = n % 4 == 0 && !x->f.n[x->f.nn - 1].mul ? 4 : 1;
	Rows r = rows_open(x, vec, x->p.n / vec, 1);
	const char *at;
	Ix m;
	Scope in = row_open(x, &r, "0", &m, &at);
	Ix row = linear(c, linear(c, linear(c, x->part, x->blocks_b, x->number_b), x->M, m), x->N, r.n);
	const char *to = cu_pointer(c, DT_f32, c->g->group.at[c->group].workspace_offset);

	if (vec == 4)
		cu_line(c, "write4(&%s[%s], &%s]);", to, row, at);
	else
		cu_line(c, "%s[%s] = %s];", to, row, at);
	cu_scope_close(c, in);
	rows_close(c, &r);
}

/* ---------------------------------------------------------------- reductions in a tile */
static void
states_open(Epilogue *e)
{
	Cuda *c = e->x->c;

	for (int k = 0; k < e->nred; k++)
		for (int s = 0; s < cu_red_states(e->red[k]); s++) {
			e->state[k][s] = cu_fresh(c, 's');
			cu_line(c, "float %s[%d] = {};", e->state[k][s], e->vec);
		}
	if (e->nred)
		cu_line(c, "int seen = 0;");
}

/* Sums of squares are taken about the thread's first value. */
static void
state_step(Epilogue *e, int k, const Ix *ix, Ix u)
{
	Cuda *c = e->x->c;
	Cell v = cu_value_at(c, e->red[k]->in[0], ix);
	const char *const *s = e->state[k];

	if (e->red[k]->kind != OP_moments) {
		cu_line(c, "%s[%s] += %s;", s[0], u, v.v);
		return;
	}
	const char *d = cu_fresh(c, 'v');

	cu_line(c, "if (seen == 0) %s[%s] = %s;", s[2], u, v.v);
	cu_line(c, "const float %s = %s - %s[%s];", d, v.v, s[2], u);
	cu_line(c, "%s[%s] += %s;", s[0], u, d);
	cu_line(c, "%s[%s] = fmaf(%s, %s, %s[%s]);", s[1], u, d, d, s[1], u);
}

/* A column's number among those that the reductions keep, and the tile's among those of the column. */
static Ix
kept_column(const Gemm *x, Ix n)
{
	return x->f.groups > 1 ? linear(x->c, x->b[0], cu_ix_k(x->c, x->f.n[0].n), n) : n;
}

static Ix
kept_tiles(const Gemm *x)
{
	return x->f.groups > 1 ? x->row_tiles : cu_ix_mul(x->c, x->blocks_b, x->row_tiles);
}

/* Floats of one state of reduction k begin here in the workspace. */
static int64_t
state_offset(const Gemm *x, int k, int s)
{
	const Graph *g = x->c->g;
	const Form *f = &x->f;
	int64_t each = cu_form_count(f->b, f->nb) * cu_form_count(f->n, f->nn) * ((cu_form_count(f->m, f->nm) + x->p.m - 1) / x->p.m) * 4, at = g->group.at[x->c->group].workspace_offset;

	for (uint32_t i = x->c->first; i < x->c->last; i++) {
		const Op *op = &g->op.at[i];

		if (op->dead || op_info[op->kind].red < 0)
			continue;
		if (k-- == 0)
			return at + s * each;
		at += cu_red_states(op) * each;
	}
	bug("no reduction %d", k);
}

static void
state_join(Epilogue *e, int k, Ix column, Ix at)
{
	Cuda *c = e->x->c;
	const char *const *s = e->state[k];
	int n = e->x->p.n, size = e->step * n;
	bool moments = e->red[k]->kind == OP_moments;

	cu_line(c, "__syncthreads();");
	cu_line(c, "#pragma unroll");
	Scope l = cu_scope_open(c, "for (int u = 0; u < %d; u++)", e->vec);

	cu_line(c, "const int here = tid / %d * %d + tid %% %d * %d + u;", e->columns, n, e->columns, e->vec);
	if (moments) {
		/* count, mean, squares about it */
		cu_line(c, "const float off = seen ? %s[u] / (float)seen : 0.0f;", s[0]);
		cu_line(c, "sums[here] = (float)seen;");
		cu_line(c, "sums[%d + here] = %s[u] + off;", size, s[2]);
		cu_line(c, "sums[%d + here] = %s[u] - off * %s[u];", 2 * size, s[1], s[0]);
	} else {
		cu_line(c, "sums[here] = %s[u];", s[0]);
	}
	cu_scope_close(c, l);
	cu_line(c, "__syncthreads();");
	l = cu_scope_open(c, "if (tid < %d && %s < %s)", n, column, e->x->N);
	if (moments) {
		cu_line(c, "float count = sums[tid], mean = sums[%d + tid], squares = sums[%d + tid];", size, 2 * size);
		cu_line(c, "for (int q = 1; q < %d; q++)", e->step);
		cu_line(c, "\tjoin_moments(&count, &mean, &squares, sums[q * %d + tid], sums[%d + q * %d + tid], sums[%d + q * %d + tid]);", n, size, n, 2 * size, n);
		for (int i = 0; i < 3; i++)
			cu_line(c, "%s[%s] = %s;", cu_pointer(c, DT_f32, state_offset(e->x, k, i)), at, (const char *[]){"mean", "squares", "count"}[i]);
	} else {
		cu_line(c, "float sum = sums[tid];");
		cu_line(c, "for (int q = 1; q < %d; q++)", e->step);
		cu_line(c, "\tsum += sums[q * %d + tid];", n);
		cu_line(c, "%s[%s] = sum;", cu_pointer(c, DT_f32, state_offset(e->x, k, 0)), at);
	}
	cu_scope_close(c, l);
}

/* ---------------------------------------------------------------- outputs */
/* Are e->vec neighbouring columns next to each other there, from a multiple of 16 bytes on? */
static bool
is_run(const Epilogue *e, const Type *t, int64_t offset)
{
	const Gemm *x = e->x;
	int column = x->op->kind == OP_matmul ? t->rank - 1 : x->op->kind == OP_conv2d_dw ? 0 : 1;
	Axis a = t->axis[column], part = x->f.n[x->f.nn - 1];

	return t->rank && t->perm[t->rank - 1] == column && !a.mul && a.n % e->vec == 0 && part.n % e->vec == 0 && offset % 16 == 0;
}

static void
vectors_choose(Epilogue *e)
{
	Gemm *x = e->x;
	const Type *o = val_type(x->c->g, x->op->out[0]);

	for (; e->vec == 8 && !is_run(e, o, 0); e->vec = 4)
		;
	if (!is_run(e, o, 0))
		e->vec = 1;
	e->columns = x->p.n / e->vec;
	e->step = x->threads / e->columns;
	/* while sums wait in registers there is no room for it */
	e->ahead = e->leaves.at.n && e->vec > 1 && x->slab == x->p.m ? 4 : 1;
}

static bool
in_vectors(const Epilogue *e, const Out *o)
{
	return e->vec > 1 && is_run(e, o->type, o->offset) && cu_vector_type((DType)o->type->dtype);
}

/* Where rows are read from memory too, some are under way before the first is used. */
static void
leaves_ahead(Epilogue *e, const Rows *r)
{
	Gemm *x = e->x;
	Cuda *c = x->c;
	Ix row, m[MAX_RANK], ix[MAX_RANK];
	const char *at;

	cu_leaves_open(c, &e->leaves, e->vec, e->ahead);
	if (e->ahead == 1)
		return;
	cu_line(c, "#pragma unroll");
	Scope s = cu_scope_open(c, "for (int q = 0; q < %d; q++)", e->ahead), in = row_open(x, r, "q", &row, &at);

	cu_split_number(c, row, x->ext_m, x->f.nm, m);
	cu_result_index(x, m, &r->n, ix);
	cu_leaves_load(c, &e->leaves, ix);
	cu_scope_close(c, in);
	cu_scope_close(c, s);
}

static void
outputs(Epilogue *e, const Rows *r, Ix row, const char *at)
{
	Gemm *x = e->x;
	Cuda *c = x->c;
	const Type *o = val_type(c->g, x->op->out[0]);
	Ix m[MAX_RANK], n[1] = {r->n}, first[MAX_RANK], ix[MAX_RANK], u = "0";
	Cell *v = arena_array(c->a, Cell, e->nout + 1);
	const char **to = arena_array(c->a, const char *, e->nout + 1);
	Scope loop = {0};

	cu_split_number(c, row, x->ext_m, x->f.nm, m);
	cu_result_index(x, m, n, first);
	memcpy(ix, first, sizeof ix);
	if (e->vec > 1) {
		if (e->ahead == 1)
			cu_leaves_load(c, &e->leaves, first);
		for (int k = 0; k < e->nout; k++)
			if (in_vectors(e, &e->out[k])) {
				to[k] = cu_fresh(c, 'y');
				cu_line(c, "%s %s[%d];", dtype_info[e->out[k].type->dtype].bytes == 2 ? "unsigned short" : "float", to[k], e->vec);
			}
		cu_line(c, "#pragma unroll");
		loop = cu_scope_open(c, "for (int u = 0; u < %d; u++)", e->vec);
		u = "u";
		n[0] = cu_ix_add(c, r->n, u);
		cu_result_index(x, m, n, ix);
		cu_leaves_put(c, &e->leaves, ix, u);
	}
	Cell sum = cu_cell_let(c, arena_printf(c->a, "%s + %s]", at, u), DT_f32);

	cu_memo_put(c, x->op->out[0], ix, cu_cell_let(c, cu_cell_cast(c, sum, (DType)o->dtype).v, (DType)o->dtype));
	for (int k = 0; k < e->nout; k++)
		v[k] = cu_value_at(c, e->out[k].v, ix);
	for (int k = 0; k < e->nred; k++)
		state_step(e, k, ix, u);
	for (int k = 0; k < e->nout; k++) {
		DType dt = (DType)e->out[k].type->dtype;

		if (!to[k])
			cu_store_at(c, e->out[k].type, e->out[k].offset, ix, v[k]);
		else if (dt == DT_f32)
			cu_line(c, "%s[u] = %s;", to[k], v[k].v);
		else
			cu_line(c, "%s[u] = %s_bits(%s);", to[k], dtype_info[dt].name, v[k].v);
	}
	if (e->vec > 1)
		cu_scope_close(c, loop);
	for (int k = 0; k < e->nout; k++)
		if (to[k]) {
			cu_stores_at(c, e->out[k].offset);
			cu_line(c, "put%d_%d(%s, %s);", e->vec, 8 * dtype_info[e->out[k].type->dtype].bytes, cu_address(c, e->out[k].type, e->out[k].offset, first), to[k]);
		}
	if (e->nred)
		cu_line(c, "seen++;");
}

void
cu_epilogue_emit(Gemm *x)
{
	Cuda *c = x->c;
	Epilogue *e = arena_new_of(c->a, Epilogue);

	if (x->p.split > 1) {
		store_part(x);
		return;
	}
	epilogue_find(x, e);
	vectors_choose(e);
	states_open(e);
	Rows r = rows_open(x, e->vec, e->columns, e->ahead);
	Scope q = {0};
	const char *sums;
	Ix row, column = "", at = "";

	if (e->vec > 1)
		leaves_ahead(e, &r);
	if (e->ahead > 1) {
		cu_line(c, "#pragma unroll");
		q = cu_scope_open(c, "for (int q = 0; q < %d; q++)", e->ahead);
	}
	Scope in = row_open(x, &r, e->ahead > 1 ? "q" : "0", &row, &sums);

	outputs(e, &r, row, sums);
	cu_scope_close(c, in);
	if (e->ahead > 1)
		cu_scope_close(c, q);
	rows_close(c, &r);

	if (e->nred) {
		column = cu_ix_add(c, x->n0, "tid");
		at = linear(c, kept_column(x, column), kept_tiles(x), x->f.groups > 1 ? x->tile_m : linear(c, x->number_b, x->row_tiles, x->tile_m));
	}
	for (int k = 0; k < e->nred; k++)
		state_join(e, k, column, at);
	for (int k = 0; k < e->nout; k++)
		c->ready[e->out[k].v.id] = true;
}

/* ---------------------------------------------------------------- the kernel behind it */
/* Of a value that has one element for each column, its indices; false: it is no such value. */
static bool
kept_index(const Gemm *x, const Type *t, Ix column, Ix *ix)
{
	const Type *o = val_type(x->c->g, x->op->out[0]);
	Axis a = o->axis[x->op->kind == OP_matmul ? o->rank - 1 : x->op->kind == OP_conv2d_dw ? 0 : 1];
	int found = 0;

	for (int i = 0; i < t->rank; i++) {
		bool one = t->axis[i].n == 1 && !t->axis[i].mul;

		ix[i] = one ? "0" : column;
		found += !one;
		if (!one && !axis_same(t->axis[i], a))
			return false;
	}
	return found == (a.n != 1 || a.mul);
}

static void
put_result(Gemm *x, const Op *red, int k, Ix column, const char *value)
{
	Cuda *c = x->c;
	const Type *t = val_type(c->g, red->out[k]);
	Ix ix[MAX_RANK];

	if (!kept_index(x, t, column, ix))
		bug("%s keeps another shape than a contraction's columns", op_info[red->kind].name);
	cu_memo_put(c, red->out[k], ix, cu_cell_let(c, cu_cell_cast(c, (Cell){value, DT_f32}, (DType)t->dtype).v, (DType)t->dtype));
}

static void
finish_one(Gemm *x, const Op *red, int k, Ix column, Ix tiles, Ix count)
{
	Cuda *c = x->c;
	Ix first = cu_ix_mul(c, column, tiles);
	const char *v = cu_fresh(c, 'v'), *loop = arena_printf(c->a, "for (%s i = threadIdx.x; i < %s; i += BLOCK)", c->it, tiles), *p[3];

	for (int i = 0; i < cu_red_states(red); i++)
		p[i] = cu_pointer(c, DT_f32, state_offset(x, k, i));
	cu_line(c, "float %s = 0;", v);
	cu_line(c, "%s", loop);
	if (red->kind == OP_moments)
		cu_line(c, "\t%s = fmaf(%s[%s + i], %s[%s + i], %s);", v, p[0], first, p[2], first, v);
	else
		cu_line(c, "\t%s += %s[%s + i];", v, p[0], first);
	cu_line(c, "%s = block_sum_f32(%s)%s;", v, v, red->kind == OP_sum ? "" : arena_printf(c->a, " / (float)%s", count));
	put_result(x, red, 0, column, v);
	if (red->kind != OP_moments)
		return;
	const char *w = cu_fresh(c, 'v');

	cu_line(c, "float %s = 0;", w);
	Scope s = cu_scope_open(c, "%s", loop);

	cu_line(c, "const float d = %s[%s + i] - %s;", p[0], first, v);
	cu_line(c, "%s += fmaf(d * d, %s[%s + i], %s[%s + i]);", w, p[2], first, p[1], first);
	cu_scope_close(c, s);
	cu_line(c, "%s = block_sum_f32(%s) / (float)%s;", w, w, count);
	put_result(x, red, 1, column, w);
}

static void
store_late(Gemm *x, Ix column)
{
	Cuda *c = x->c;
	Scope s = cu_scope_open(c, "if (threadIdx.x == 0)");

	for (uint32_t i = c->first; i < c->last; i++) {
		const Op *op = &c->g->op.at[i];

		for (int k = 0; k < op->nout && !op->dead; k++) {
			const ValInfo *v = val_info(c->g, op->out[k]);
			Ix ix[MAX_RANK];

			if (!cu_value_is_out(c, op->out[k]) || c->ready[op->out[k].id] || !kept_index(x, &v->type, column, ix))
				continue;
			cu_store_at(c, &v->type, v->offset, ix, cu_value_at(c, op->out[k], ix));
		}
	}
	cu_scope_close(c, s);
	for (uint32_t i = c->first; i < c->last; i++)
		for (int k = 0; k < c->g->op.at[i].nout && !c->g->op.at[i].dead; k++) {
			Ix ix[MAX_RANK];

			if (cu_value_is_out(c, c->g->op.at[i].out[k]) && kept_index(x, val_type(c->g, c->g->op.at[i].out[k]), column, ix))
				c->ready[c->g->op.at[i].out[k].id] = true;
		}
}

void
cu_epilogue_finish(Gemm *x)
{
	Cuda *c = x->c;
	const Type *o = val_type(c->g, x->op->out[0]);
	const Op *red[OUTS];
	int nred = 0;
	Form *f = &x->f;

	for (uint32_t i = c->first; i < c->last; i++)
		if (!c->g->op.at[i].dead && op_info[c->g->op.at[i].kind].red >= 0)
			red[nred++] = &c->g->op.at[i];
	if (!nred)
		return;
	cu_kernel_open(c, "");
	uint32_t keep = 1u << (x->op->kind == OP_matmul ? o->rank - 1 : x->op->kind == OP_conv2d_dw ? 0 : 1);
	Ix columns = cu_product(c, o, keep), count = cu_product(c, o, ((1u << o->rank) - 1) & ~keep), rows = "1", blocks = "1";

	for (int i = 0; i < f->nm; i++)
		rows = cu_ix_mul(c, rows, cu_extent(c, f->m[i]));
	for (int i = 0; i < f->nb && f->groups == 1; i++)
		blocks = cu_ix_mul(c, blocks, cu_extent(c, f->b[i]));
	Ix tiles = cu_ix_mul(c, blocks, cu_ix_div(c, cu_ix_add(c, rows, cu_ix_k(c, x->p.m - 1)), cu_ix_k(c, x->p.m)));
	Scope s = cu_scope_open(c, "for (%s column = blockIdx.x; column < %s; column += gridDim.x)", c->it, columns);

	for (int k = 0; k < nred; k++)
		finish_one(x, red[k], k, "column", tiles, count);
	store_late(x, "column");
	cu_scope_close(c, s);
	cu_kernel_close(c, "sums of the tiles' sums, a column to a block", o->axis[x->op->kind == OP_matmul ? o->rank - 1 : x->op->kind == OP_conv2d_dw ? 0 : 1].n);
}
