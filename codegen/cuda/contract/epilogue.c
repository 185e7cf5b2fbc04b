/* epilogue.c: what follows a contraction in its group: elementwise ops, reductions of their values over the rows, and
 * what is computed from these.
 *
 * In: the sums of a tile in registers, or no contraction at all (columns.c).   Out: text that brings them to shared
 * memory, some rows at a time, and evaluates the group's outputs there, each thread a few neighbouring columns of every
 * so many rows: the contraction's value at such a place is known to the memo, all else is pulled. Reductions (a batch
 * normalisation's statistics, the sums of its gradient, a bias's gradient) are kept by thread and column, joined in the
 * order of the threads, and left in the workspace, a number for each column and tile, for the block that finishes them
 * (finish.c). Variances are sums of squares about means, joined as in Chan, Golub, LeVeque 1979. Every order is fixed
 * by shape and n. */
#include "gemm.h"
#include "red.h"
#include <string.h>

enum { OUTS = 128 };

/* ---------------------------------------------------------------- what it holds */
static int
red_states(const Op *red)
{
	return red->nout > 1 ? 3 : 1;
}

int
cu_result_column(const Graph *g, const Op *contract)
{
	return contract->kind == OP_matmul      ? val_type(g, contract->out[0])->rank - 1
	       : contract->kind == OP_conv2d_dw ? 0
	                                        : 1;
}

const char *
cu_reduces_to(const Graph *g, const Type *space, int column, const Op *red)
{
	const Type *t = val_type(g, red->in[0]);
	uint32_t axes = cu_red_axes(g, red);

	if (red_of(red)->join != RED_ADD)
		return "the reduction is no sum, mean or moments: a kernel of its own";
	if (t->dtype != DT_f32)
		return "a contraction's epilogue is reduced in f32";
	if (!type_same_shape(t, space))
		return "the reduction goes over another space than the contraction's";
	for (int i = 0; i < t->rank; i++)
		if ((t->axis[i].n != 1 || t->axis[i].mul) && (axes >> i & 1) == (i == column))
			return "a contraction's tiles are reduced over all rows, column by column";
	return NULL;
}

const char *
cu_epilogue_reduces(const Graph *g, const Op *contract, const Op *red)
{
	if (red->nout > 1 && cu_form(g, contract).classes)
		return "tiles of a convolution's gradient with a stride have pixels of one remainder each: what they "
		       "count differs";
	return cu_reduces_to(g, val_type(g, contract->out[0]), cu_result_column(g, contract), red);
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
	const Type *o = x->space;
	Val stop = x->op ? x->op->out[0] : NOVAL;
	bool narrow = x->op && x->p.mma;

	*e = (Epilogue){.x = x, .leaves.windows = !x->op, .leaves.repeats = x->op != NULL};
	for (uint32_t i = c->first; i < c->last; i++) {
		const Op *op = &c->g->op.at[i];

		if (op->dead)
			continue;
		if (op_info[op->kind].red >= 0) {
			e->red[e->nred++] = op;
			cu_leaves_find(c, op->in[0], o, stop, &e->leaves);
			continue;
		}
		for (int k = 0; k < op->nout; k++) {
			const ValInfo *v = val_info(c->g, op->out[k]);

			if ((x->op && op < x->op) || !cu_value_is_out(c, op->out[k]) || c->ready[op->out[k].id] ||
			    !type_same_shape(&v->type, o))
				continue;
			if (e->nout == OUTS || e->nred == OUTS)
				bug("a contraction with more than %d outputs", OUTS);
			e->out[e->nout++] = (Out){op->out[k], &v->type, v->offset};
			cu_leaves_find(c, op->out[k], o, stop, &e->leaves);
			narrow |= dtype_info[v->type.dtype].bytes == 2;
		}
	}
	for (uint32_t k = 0; k < e->leaves.at.n && !x->op; k++)
		narrow |= !e->leaves.at.at[k].repeats &&
		          dtype_info[val_type(c->g, e->leaves.at.at[k].v)->dtype].bytes == 2;
	/* states of 8 columns beside a contraction's sums would not stay in registers */
	e->vec = narrow && (!e->nred || !x->op) ? 8 : 4;
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
		cu_line(c, p->groups ? "const int r = warp_m + i / 2 * 64 + i %% 2 * 8 + lane / 4;"
		                     : "const int r = warp_m + i * 8 + lane / 4;");
	else
		cu_line(c, "const int r = i / %d * %d + tid / 16 * %d + i %% %d;", w, 16 * w, w, w);
	t = cu_scope_open(c, "if (r / %d == slab)", x->slab);
	cu_line(c, "#pragma unroll");
	if (p->mma) {
		cu_line(c, "for (int j = 0; j < %d; j++)", p->n / p->wn / 8);
		cu_line(c,
		        "\t*(float2 *)&sums[r %% %d * %d + warp_n + j * 8 + lane %% 4 * 2] = make_float2(acc[i / "
		        "2][j][i %% 2 * 2], acc[i / 2][j][i %% 2 * 2 + 1]);",
		        x->slab, line);
	} else {
		cu_line(c, "for (int j = 0; j < %d; j += %d)", p->n / 16, v);
		cu_line(c, "\twrite%d(&sums[r %% %d * %d + j * 16 + tid %% 16 * %d], &acc[i][j]);", v, x->slab, line,
		        v);
	}
	cu_scope_close(c, t);
	cu_scope_close(c, s);
}

/* Loops over slabs, and over this thread's rows of a slab. */
typedef struct Rows { Scope slab, row; Ix n; int vec, columns, step; Lanes lanes; } Rows;

static Rows
rows_open(Gemm *x, int vec, int columns, int ahead)
{
	Cuda *c = x->c;
	Rows r = {.vec = vec, .columns = columns, .step = x->threads / columns};

	cu_line(c, "float *const sums = (float *)memory;");
	r.n = cu_ix_add(c, x->n0, cu_ix_mul(c, arena_printf(c->a, "(tid %% %d)", columns), cu_ix_k(c, vec)));
	if (x->op) {
		r.slab = cu_scope_open(c, "for (int slab = 0; slab < %d; slab++)", x->p.m / x->slab);
		cu_line(c, "__syncthreads();");
		slab_fill(x);
		cu_line(c, "__syncthreads();");
	}
	int64_t across;
	bool all = cu_ix_number(x->N, &across) && across % x->p.n == 0;

	if (x->slab == x->p.m) /* no sums wait in registers: a column's values are kept for all its rows */
		cu_lanes_early(c, &r.lanes, all ? NULL : arena_printf(c->a, "%s < %s", r.n, x->N));
	const char *line = arena_printf(c->a, "tid / %d", columns);

	if (r.step * columns < x->threads) /* a row takes no whole part of the threads: the rest have none */
		line = arena_printf(c->a, "tid < %d ? %s : %d", r.step * columns, line, x->slab);
	r.row = cu_scope_open(c, "for (int line = %s; line < %d; line += %d)", line, x->slab, ahead * r.step);
	return r;
}

/* Line q steps on from `line`, if it is in the result: m is its row there, *at the text of its sums, without the
 * bracket. */
static Scope
row_open(Gemm *x, const Rows *r, Ix q, Ix *m, const char **at)
{
	Cuda *c = x->c;
	Ix line = cu_ix_add(c, "line", cu_ix_mul(c, q, cu_ix_k(c, r->step)));
	const char *inside = strcmp(q, "0") ? arena_printf(c->a, "%s < %d && ", line, x->slab) : "";

	*m = cu_ix_add(c, x->m0, cu_ix_add(c, x->op ? cu_ix_mul(c, "slab", cu_ix_k(c, x->slab)) : "0", line));
	*at = arena_printf(c->a, "sums[%s * %d + tid %% %d * %d", line, x->p.n + 8, r->columns, r->vec);
	return cu_scope_open(c, "if (%s%s < %s && %s < %s)", inside, *m, x->M, r->n, x->N);
}

static void
rows_close(const Gemm *x, const Rows *r)
{
	cu_scope_close(x->c, r->row);
	if (x->op)
		cu_scope_close(x->c, r->slab);
}

/* ---------------------------------------------------------------- reductions in a tile */
static void
states_open(Epilogue *e)
{
	Cuda *c = e->x->c;

	for (int k = 0; k < e->nred; k++)
		for (int s = 0; s < red_states(e->red[k]); s++) {
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
	Cell v = cu_red_element(c, e->red[k], cu_value_at(c, e->red[k]->in[0], ix));
	const char *const *s = e->state[k];

	if (e->red[k]->nout == 1) {
		cu_line(c, "%s[%s] += %s;", s[0], u, v.v);
		return;
	}
	const char *d = cu_fresh(c, 'v');

	cu_line(c, "if (seen == 0) %s[%s] = %s;", s[2], u, v.v);
	cu_line(c, "const float %s = %s - %s[%s];", d, v.v, s[2], u);
	cu_line(c, "%s[%s] += %s;", s[0], u, d);
	cu_line(c, "%s[%s] = fmaf(%s, %s, %s[%s]);", s[1], u, d, d, s[1], u);
}

/* Rows that thread row q of the block has seen, where lines are dealt out evenly: a text. `left`: rows of the tile. */
static const char *
rows_of(const Epilogue *e, Ix left, const char *q)
{
	Cuda *c = e->x->c;
	int64_t rows;

	if (cu_ix_number(left, &rows) && rows % e->step == 0)
		return cu_ix_k(c, rows / e->step);
	return arena_printf(c->a, "((%s - %s + %d) / %d)", left, q, e->step - 1, e->step);
}

/* Each thread's mean, and squares about it, to shared memory. */
static void
moments_put(const Epilogue *e, const char *const *s, Ix left)
{
	Cuda *c = e->x->c;
	int size = e->step * e->x->p.n;

	const char *rows = rows_of(e, left, arena_printf(c->a, "tid / %d", e->columns));
	int64_t all;

	cu_line(c, "const float off = %s%s[u] / (float)%s%s;",
	        cu_ix_number(rows, &all) ? "" : arena_printf(c->a, "%s ? ", rows), s[0], rows,
	        cu_ix_number(rows, &all) ? "" : " : 0.0f");
	cu_line(c, "sums[here] = %s[u] + off;", s[2]);
	cu_line(c, "sums[%d + here] = %s[u] - off * %s[u];", size, s[1], s[0]);
}

/* A column's: sums about the first thread's mean, so that one pass does. */
static void
moments_join(const Epilogue *e, Ix left)
{
	Cuda *c = e->x->c;
	int n = e->x->p.n, size = e->step * n;

	cu_line(c, "float about = sums[tid], sum = 0, more = sums[%d + tid], mean, squares;", size);
	cu_line(c, "#pragma unroll");
	Scope l = cu_scope_open(c, "for (int q = 1; q < %d; q++)", e->step);

	cu_line(c, "const float k = (float)%s, d = sums[q * %d + tid] - about;", rows_of(e, left, "q"), n);
	cu_line(c, "sum = fmaf(k, d, sum);");
	cu_line(c, "more += fmaf(k * d, d, sums[%d + q * %d + tid]);", size, n);
	cu_scope_close(c, l);
	cu_line(c, "moments_about(&mean, &squares, about, sum, more, (float)%s);", left);
}

/* The same where threads count the rows that they see. */
static void
counted_put(const Epilogue *e, const char *const *s)
{
	Cuda *c = e->x->c;
	int size = e->step * e->x->p.n;

	cu_line(c, "const float off = seen ? %s[u] / (float)seen : 0.0f;", s[0]);
	cu_line(c, "sums[here] = %s[u] + off;", s[2]);
	cu_line(c, "sums[%d + here] = %s[u] - off * %s[u];", size, s[1], s[0]);
	cu_line(c, "sums[%d + here] = (float)seen;", 2 * size);
}

static void
counted_join(const Epilogue *e)
{
	Cuda *c = e->x->c;
	int n = e->x->p.n, size = e->step * n;

	cu_line(c, "float mean = sums[tid], squares = sums[%d + tid], count = sums[%d + tid];", size, 2 * size);
	cu_line(c, "for (int q = 1; q < %d; q++)", e->step);
	cu_line(c,
	        "\tjoin_moments(&count, &mean, &squares, sums[%d + q * %d + tid], sums[q * %d + tid], sums[%d + q * %d "
	        "+ tid]);",
	        2 * size, n, n, size, n);
}

static void
state_join(Epilogue *e, int k, Ix column, Ix at)
{
	Cuda *c = e->x->c;
	const char *const *s = e->state[k];
	const Tiles *p = &e->x->p;
	bool moments = e->red[k]->nout > 1, even = e->x->slab == p->m || e->x->slab % e->step == 0;
	int have = e->step * e->columns; /* threads that have rows */
	int64_t all;
	Ix left = cu_ix_number(e->x->M, &all) && all % p->m == 0
	                  ? cu_ix_k(c, p->m)
	                  : cu_let(c, c->it, 'i',
	                           arena_printf(c->a, "(%s - %s < %d ? %s - %s : %d)", e->x->M, e->x->m0, p->m, e->x->M,
	                                        e->x->m0, p->m));

	cu_line(c, "__syncthreads();");
	Scope in = have < e->x->threads ? cu_scope_open(c, "if (tid < %d)", have) : (Scope){0};

	cu_line(c, "#pragma unroll");
	Scope l = cu_scope_open(c, "for (int u = 0; u < %d; u++)", e->vec);

	cu_line(c, "const int here = tid / %d * %d + tid %% %d * %d + u;", e->columns, p->n, e->columns, e->vec);
	if (!moments)
		cu_line(c, "sums[here] = %s[u];", s[0]);
	else if (even)
		moments_put(e, s, left);
	else
		counted_put(e, s);
	cu_scope_close(c, l);
	if (have < e->x->threads)
		cu_scope_close(c, in);
	cu_line(c, "__syncthreads();");
	l = cu_scope_open(c, "if (tid < %d && %s < %s)", p->n, column, e->x->N);
	if (moments && even)
		moments_join(e, left);
	else if (moments)
		counted_join(e);
	if (moments) {
		for (int i = 0; i < 2; i++)
			cu_line(c, "%s[%s] = %s;", cu_pointer(c, DT_f32, cu_state_offset(e->x, k, i)), at,
			        i ? "squares" : "mean");
	} else {
		cu_line(c, "float sum = sums[tid];");
		cu_line(c, "#pragma unroll");
		cu_line(c, "for (int q = 1; q < %d; q++)", e->step);
		cu_line(c, "\tsum += sums[q * %d + tid];", p->n);
		cu_line(c, "%s[%s] = sum;", cu_pointer(c, DT_f32, cu_state_offset(e->x, k, 0)), at);
	}
	cu_scope_close(c, l);
}

/* ---------------------------------------------------------------- outputs */
/* Are e->vec neighbouring columns next to each other there, from a multiple of 16 bytes on? */
static bool
is_run(const Epilogue *e, const Type *t, int64_t offset)
{
	const Gemm *x = e->x;
	Axis a = t->axis[x->column], part = x->f.n[x->f.nn - 1];

	return t->rank && t->perm[t->rank - 1] == x->column && !a.mul && a.n % e->vec == 0 && part.n % e->vec == 0 &&
	       offset % 16 == 0;
}

static void
vectors_choose(Epilogue *e)
{
	Gemm *x = e->x;
	const Type *o = x->space;

	for (; e->vec == 8 && !is_run(e, o, 0); e->vec = 4)
		;
	if (!is_run(e, o, 0))
		e->vec = 1;
	e->columns = x->p.n / e->vec;
	e->step = x->threads / e->columns;
	/* while sums wait in registers there is no room for it, and a window's values are no load */
	e->ahead = e->leaves.at.n && e->vec > 1 && x->slab == x->p.m ? (x->op ? 4 : x->ahead) : 1;
	for (uint32_t k = 0; k < e->leaves.at.n; k++)
		e->ahead = e->leaves.at.at[k].window ? 1 : e->ahead;
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
	cu_result_root(x, row, r->n, ix);
	cu_leaves_load(c, &e->leaves, ix);
	c->root = NULL;
	cu_scope_close(c, in);
	cu_scope_close(c, s);
}

static void
outputs(Epilogue *e, Rows *r, Ix row, const char *at)
{
	Gemm *x = e->x;
	Cuda *c = x->c;
	Ix m[MAX_RANK], n[1] = {r->n}, first[MAX_RANK], ix[MAX_RANK], u = "0";
	Cell *v = arena_array(c->a, Cell, e->nout + 1);
	const char **to = arena_array(c->a, const char *, e->nout + 1);
	Scope loop = {0};

	cu_split_number(c, row, x->ext_m, x->f.nm, m);
	cu_result_index(x, m, n, first);
	cu_result_root(x, row, r->n, first);
	memcpy(ix, first, sizeof ix);
	if (e->vec > 1) {
		if (e->ahead == 1)
			cu_leaves_load(c, &e->leaves, first);
		for (int k = 0; k < e->nout; k++)
			if (in_vectors(e, &e->out[k]))
				to[k] = cu_stored_open(c, &e->out[k], e->vec);
		if (strcmp(first[x->column], r->n))
			r->lanes = (Lanes){0};
		cu_lanes_begin(c, &r->lanes, x->space, x->column, e->vec, first);
		loop = cu_each_open(c, e->vec);
		u = "u";
		n[0] = cu_ix_add(c, r->n, u);
		cu_result_index(x, m, n, ix);
		r->lanes.lane = ix[x->column];
		cu_leaves_put(c, &e->leaves, ix, u);
	}
	if (x->op) {
		Cell sum = cu_cell_let(c, arena_printf(c->a, "%s + %s]", at, u), DT_f32);

		cu_memo_put(c, x->op->out[0], ix,
		            cu_cell_let(c, cu_cell_cast(c, sum, (DType)x->space->dtype).v, (DType)x->space->dtype));
	}
	for (int k = 0; k < e->nout; k++)
		v[k] = cu_value_at(c, e->out[k].v, ix);
	for (int k = 0; k < e->nred; k++)
		state_step(e, k, ix, u);
	for (int k = 0; k < e->nout; k++)
		cu_stored_put(c, &e->out[k], to[k], ix, v[k]);
	cu_lanes_end(c);
	cu_each_close(c, e->vec, loop);
	for (int k = 0; k < e->nout; k++)
		cu_stored_close(c, &e->out[k], to[k], e->vec, first);
	c->root = NULL;
	if (e->nred)
		cu_line(c, "seen++;");
}

void
cu_epilogue_emit(Gemm *x)
{
	Cuda *c = x->c;
	Epilogue *e = arena_new_of(c->a, Epilogue);

	epilogue_find(x, e);
	vectors_choose(e);
	states_open(e);
	e->leaves.vec = e->vec;
	x->read = cu_leaves_read(&e->leaves) * e->ahead;
	for (int k = 0; k < e->nred; k++)
		x->states += red_states(e->red[k]);
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
	rows_close(x, &r);

	for (int k = 0; k < e->nout; k++)
		c->ready[e->out[k].v.id] = true;
	if (!e->nred)
		return;
	column = cu_ix_add(c, x->n0, "tid");
	at = cu_state_place(x, column);
	for (int k = 0; k < e->nred; k++)
		state_join(e, k, column, at);
	cu_columns_finish(x, e->red, e->nred);
}
