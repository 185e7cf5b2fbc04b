/* cells.c: the recurrences lstm.cells, gru.cells and their gradients: all steps in one kernel, as persistent RNN
 * kernels do (Diamos et al. 2016), here without their grid barrier; with one in cells_held.c.
 *
 * In: a group of that one op, row-major.   Out: forward a kernel that turns W_hh into the group's workspace, and the
 * main one. A block owns a few examples for all steps: their recurrences are independent, so no block waits for
 * another. A thread has a unit (or some, a block's threads apart) of all these examples; each step reads the weights
 * once, neighbouring threads neighbouring elements, and they stay in the L2. States, and backward the
 * gates' gradients of the step, lie in shared memory in f32, values of one unit next to each other. Every sum is made
 * of parts (Cells.parts), a chain each over its columns (backward: rows) of W_hh, added in their order: so neither how
 * many examples a block has, nor who holds which weights, changes a bit. Gradients of the weights are contractions
 * outside.
 * Of w_hh alone in 16 bits: cells_mma.c.
 * Refuses (cu_cells_refuses): f64, units whose states exceed a block's shared memory, w_hh alone of 16 bits where no
 * team of blocks holds it; those are unrolled by pass decompose. */
#include "cells.h"
#include <string.h>

/* MANY_BLOCKS: examples go to so many blocks first, then some to a block; half of the multiprocessors, as batches are
 * powers of two. UNROLL: turns of the loop over a part's columns whose loads are on their way at a time. */
enum { MOST_ROWS = 8, MANY_BLOCKS = 64, UNROLL = 4 };

bool
cu_cells_op(OpKind k)
{
	return k == OP_lstm_cells || k == OP_lstm_cells_dx || k == OP_gru_cells || k == OP_gru_cells_dx;
}

/* Floats of so many values of a block's units: whole vectors, which compilers like to read, are there. */
static int64_t
room(const Cells *s, int values)
{
	return (values * s->h * s->rows + 3) / 4 * 4;
}

/* Bytes of shared memory. Forward h before and after the step and c; backward the gates' gradients, those of h and
 * c. */
static int64_t
shared_bytes(const Cells *s)
{
	return 4 * ((s->back ? room(s, s->gates) + room(s, 1) : 2 * room(s, 1)) + (s->lstm ? room(s, 1) : 0));
}

/* A plan for w_hh of type w, all else f32; why there is none. */
static const char *
tiled(const Graph *g, Cells *s, const char *arch, DType w)
{
	if (s->dt != DT_f32 || !arch || !cu_has_mma(w, arch))
		return "w_hh alone is of 16 bits: the architecture has no products of such tiles";
	return cu_tiled_choose(g->arena, s, cuda_machine(NULL, arch));
}

bool
cu_cells_takes(const Graph *g, const Op *op, int k, const SelectCx *cx)
{
	Cells s, other;

	if (!cu_cells_op((OpKind)op->kind) || cx->narrow == DT_none || (cx->may && !cx->may(cx->cx, "held")))
		return false;
	s = other = cu_cells_of(g, op);
	if (k != s.w || tiled(g, &s, cx->arch, cx->narrow))
		return false;
	const Machine *m = cuda_machine(NULL, cx->arch);

	cu_held_choose(g->arena, &other, m);
	return cu_tiled_cycles(&s, m) < cu_held_cycles(&other, m);
}

const char *
cu_cells_refuses(const Graph *g, const Op *op)
{
	Cells s = cu_cells_of(g, op);

	DType w = (DType)val_type(g, op->in[s.w])->dtype;

	if (s.dt == DT_f64)
		return "the operands are f64: the kernel is for f32, f16 and bf16";
	if (w != s.dt)
		return tiled(g, &s, g->module->arch, w);
	s.rows = 1;
	return shared_bytes(&s) > COMPOSITE_SHARED
	               ? arena_printf(g->arena, "the states of %lld units do not fit a block's shared memory",
	                              (long long)s.h)
	               : NULL;
}

static void
alone(Cells *s)
{
	for (s->rows = MOST_ROWS;
	     s->rows > 1 && ((s->n.n + s->rows - 1) / s->rows < MANY_BLOCKS || shared_bytes(s) > COMPOSITE_SHARED);)
		s->rows /= 2;
	s->threads = s->h < BLOCK ? (int)(s->h + WARP - 1) / WARP * WARP : BLOCK;
	s->blocks = 1;
}

static void
cells_take(Cells *s, const Params *p)
{
	if (p->family == FAMILY_cuda_cells_mma) {
		s->rows = p->cuda_cells_mma.examples;
		s->threads = p->cuda_cells_mma.threads;
		s->blocks = p->cuda_cells_mma.blocks;
		return;
	}
	s->rows = p->cuda_cells.examples;
	s->threads = p->cuda_cells.threads;
	s->parts = p->cuda_cells.parts ? p->cuda_cells.parts : s->parts;
	s->blocks = p->cuda_cells.blocks;
	s->unroll = p->cuda_cells.unroll;
}

Facts
cu_cells_facts(const Graph *g, const Op *op, const SelectCx *cx)
{
	Cells s = cu_cells_of(g, op);

	(void)cx;
	return (Facts){.backward = s.back,
	               .batch = s.n.n,
	               .units = s.h,
	               .parts_shape = s.parts,
	               .K = s.back ? s.gates * s.h : s.h};
}

double
cu_cells_exchanged(const Cells *s, const Params *p)
{
	bool two = p->family == FAMILY_cuda_cells_mma; /* elements of a word of 8 bytes */
	int blocks = two ? p->cuda_cells_mma.blocks : p->family == FAMILY_cuda_cells ? p->cuda_cells.blocks : 1;

	return blocks > 1 ? (two ? 4.0 : 8.0) * (double)((s->back ? s->gates : 1) * s->h * s->n.n * s->t) * blocks : 0;
}

/* held: may blocks hold the weights? */
static const char *
misfit(const Graph *g, const Op *op, const SelectCx *cx, bool held, const Params *p)
{
	Cells s = cu_cells_of(g, op);
	Facts f = cu_cells_facts(g, op, cx);

	if (p->family != FAMILY_cuda_cells)
		return arena_printf(g->arena, "%s takes parameters such as cells{examples=2,threads=256,blocks=8}",
		                    op_info[op->kind].name);
	const char *why = space_misfit(g->arena, p, &f);

	cells_take(&s, p);
	if (!why && s.blocks > 1)
		why = held ? cu_held_misfit(g->arena, &s, cuda_machine(NULL, cx->arch)->sms) : "held is switched off";
	else if (!why && shared_bytes(&s) > COMPOSITE_SHARED)
		why = arena_printf(g->arena, "the states of %d examples take %lld bytes of shared memory", s.rows,
		                   (long long)shared_bytes(&s));
	return why;
}

/* Of w_hh in 16 bits. */
static const char *
tiled_misfit(const Graph *g, const Op *op, const SelectCx *cx, const Params *p)
{
	Cells s = cu_cells_of(g, op);
	Facts f = cu_cells_facts(g, op, cx);

	if (p->family != FAMILY_cuda_cells_mma)
		return arena_printf(g->arena,
		                    "%s of w_hh in 16 bits takes parameters such as "
		                    "cells_mma{examples=16,threads=256,blocks=64}",
		                    op_info[op->kind].name);
	const char *why = space_misfit(g->arena, p, &f);

	cells_take(&s, p);
	return why ? why : cu_tiled_misfit(g->arena, &s, cuda_machine(NULL, cx->arch));
}

static const char *
tiled_select(const Graph *g, const Op *op, SelectCx *cx, Cells *s)
{
	Looked *looked = select_look(cx, g, op, "held");
	Params p, q;

	tiled(g, s, cx->arch, (DType)val_type(g, op->in[s->w])->dtype); /* refused where there is none */
	p = (Params){FAMILY_cuda_cells_mma,
	             .cuda_cells_mma = {.examples = s->rows, .threads = s->threads, .blocks = s->blocks}};
	if (cx->tuned) {
		if (!space_parse("cuda", op_info[op->kind].name, cx->tuned, &q))
			q = (Params){0}; /* of no family */
		cx->misfit = tiled_misfit(g, op, cx, &q);
		p = cx->misfit ? p : q;
		cells_take(s, &p);
	}
	looked->chosen = true;
	looked->why = arena_printf(g->arena, "%d blocks hold the weights, for %d examples", s->blocks, s->rows);
	return space_text(g->arena, &p);
}

const char *
cu_cells_misfit(const Graph *g, const Op *op, const SelectCx *cx, const Params *p)
{
	Cells s = cu_cells_of(g, op);

	if (val_type(g, op->in[s.w])->dtype != s.dt)
		return tiled_misfit(g, op, cx, p);
	return misfit(g, op, cx, !cx->may || cx->may(cx->cx, "held"), p);
}

const char *
cu_cells_select(const Graph *g, const Op *op, SelectCx *cx, int64_t *workspace)
{
	Cells s = cu_cells_of(g, op);

	*workspace = 0;
	if (val_type(g, op->in[s.w])->dtype != s.dt)
		return tiled_select(g, op, cx, &s);
	Looked *looked = select_look(cx, g, op, "held");
	bool held = !cx->may || cx->may(cx->cx, "held");
	const char *why = held ? cu_held_choose(g->arena, &s, cuda_machine(NULL, cx->arch)) : "switched off";
	Params p, q;

	if (why)
		alone(&s);
	looked->chosen = !why;
	looked->why = why;
	p = (Params){FAMILY_cuda_cells,
	             .cuda_cells = {.examples = s.rows, .threads = s.threads, .blocks = s.blocks, .unroll = UNROLL}};
	if (cx->tuned) {
		if (!space_parse("cuda", op_info[op->kind].name, cx->tuned, &q))
			q = (Params){0}; /* of no family */
		cx->misfit = misfit(g, op, cx, held, &q);
		cx->off = cx->misfit && !held && q.family == FAMILY_cuda_cells && q.cuda_cells.blocks > 1;
		p = cx->misfit ? p : q;
		cells_take(&s, &p);
	}
	select_overrule(cx, "held", s.blocks > 1);
	if (s.blocks > 1 && !looked->why)
		looked->why = arena_printf(g->arena, "%d blocks hold the weights, for %d examples", s.blocks, s.rows);
	*workspace = s.back || s.blocks > 1 ? 0 : s.gates * s.h * s.h * dtype_info[s.dt].bytes;
	return space_text(g->arena, &p);
}

/* ---------------------------------------------------------------- loops */
/* Over a thread's units. */
static Scope
units_open(const Cells *s)
{
	return cu_scope_open(s->c, "for (int j = tid; j < %lld; j += %d)", (long long)s->h, s->threads);
}

/* Over the block's examples; `row` is an example's number, which may lie behind the last. */
static Scope
rows_open(const Cells *s)
{
	cu_line(s->c, "#pragma unroll");
	Scope r = cu_scope_open(s->c, "for (int r = 0; r < %d; r++)", s->rows);

	cu_line(s->c, "const %s row = first + r;", s->c->it);
	return r;
}

/* x[rows] = so many neighbours in shared memory. */
static void
neighbours(const Cells *s, const char *from)
{
	cu_line(s->c, "float x[%d];", s->rows);
	for (int r = 0; r < s->rows; r += 4)
		if (s->rows == 1)
			cu_line(s->c, "x[0] = *(%s);", from);
		else
			cu_line(s->c, "read%d(x + %d, %s + %d);", s->rows < 4 ? s->rows : 4, r, from, r);
}

/* The states' start from [N,H] in operand k; the result k of the same shape. */
static void
state_load(const Cells *s, const char *state, int k)
{
	cu_line(s->c, "%s[j * %d + r] = row < n_rows ? %s : 0.0f;", state, s->rows,
	        cu_cells_value(s, arena_printf(s->c->a, "%s[%s]", cu_cells_pointer(s, s->op->in[k]),
	                                       cu_cells_place(s, NULL, 0, 0))));
}

/* What lies behind the values up to the whole vector. */
static void
fill_up(const Cells *s, const char *at, int values)
{
	long long n = values * s->h * s->rows;

	if (room(s, values) > n)
		cu_line(s->c, "if (tid < %lld) %s[%lld + tid] = 0.0f;", (long long)room(s, values) - n, at, n);
}

static Scope
kernel_open(Cells *s)
{
	Cuda *c = s->c;

	cu_kernel_open(c, "");
	c->threads = s->threads;
	c->shared = shared_bytes(s);
	Ix n = cu_extent(c, s->n);

	cu_line(c, "extern __shared__ uint4 memory[];");
	cu_line(c, "const int tid = threadIdx.x;");
	cu_line(c, "const %s n_rows = %s;", c->it, n);
	return cu_scope_open(c, "for (%s first = blockIdx.x * %d; first < n_rows; first += gridDim.x * %d)", c->it,
	                     s->rows, s->rows);
}

static void
kernel_close(const Cells *s, Scope all, const char *what)
{
	cu_line(s->c, "__syncthreads();");
	cu_scope_close(s->c, all);
	cu_kernel_close(s->c, what, (s->n.n + s->rows - 1) / s->rows);
}

/* ---------------------------------------------------------------- forward */
/* Neighbours of the workspace are rows of W_hh, for a column and a gate. */
static void
turn_weights(const Cells *s)
{
	Cuda *c = s->c;
	long long h = s->h, all = s->gates * s->h * s->h;

	cu_kernel_open(c, "");
	const char *from = cu_cells_pointer(s, s->op->in[s->w]),
	           *to = cu_pointer(c, s->dt, c->g->group.at[c->group].workspace_offset);

	cu_line(c, "for (%s u = blockIdx.x * BLOCK + threadIdx.x; u < %lld; u += gridDim.x * BLOCK)", c->it, all);
	cu_line(c, "\t%s[u] = %s[u %% %lld * %lld + u / %lld];", to, from, s->gates * h, h, s->gates * h);
	double bytes = 2.0 * (double)all * dtype_info[s->dt].bytes;

	cu_kernel_ahead(c, "W_hh transposed, a number to a thread", (all + BLOCK - 1) / BLOCK, bytes, bytes);
}

/* The loops over a part's columns k, of `all`: four neighbours, then those of the part's next four. Two scopes. */
static void
parts_open(const Cells *s, const char *zeros, long long all, Scope *scope)
{
	Cuda *c = s->c;

	scope[0] = cu_scope_open(c, "for (int part = 0; part < %d; part++)", s->parts);
	cu_line(c, "float %s = {};", zeros);
	cu_line(c, "#pragma unroll %d", s->unroll);
	scope[1] = cu_scope_open(c, "for (int k0 = 4 * part; k0 < %lld; k0 += %d)", all, 4 * s->parts);
	cu_line(c, "#pragma unroll");
	scope[2] = cu_scope_open(c, "for (int k = k0; k < k0 + 4; k++)");
	if (all % 4)
		cu_line(c, "if (k >= %lld) break;", all);
}

/* The part is done with: its `count` sums are added, eight parts' first where there are more. */
static void
parts_add(const Cells *s, int count)
{
	Cuda *c = s->c;
	const char *one = s->back ? "[i]" : arena_printf(c->a, "[i / %d][i %% %d]", s->rows, s->rows);

	if (s->parts > 8) {
		cu_line(c, "#pragma unroll");
		cu_line(c, "for (int i = 0; i < %d; i++) eight%s += one%s;", count, one, one);
		cu_line(c, "if (part %% 8 < 7) continue;");
		cu_line(c, "#pragma unroll");
		cu_line(c, "for (int i = 0; i < %d; i++) { sum%s += eight%s; eight%s = 0.0f; }", count, one, one, one);
		return;
	}
	cu_line(c, "#pragma unroll");
	cu_line(c, "for (int i = 0; i < %d; i++) sum%s += one%s;", count, one, one);
}

/* sum[gate][example] of unit j. */
static void
sums_forward(const Cells *s)
{
	Cuda *c = s->c;
	long long h = s->h;
	const char *w = cu_pointer(c, s->dt, c->g->group.at[c->group].workspace_offset);
	Scope k[3];

	cu_line(c, "float sum[%d][%d] = {}%s;", s->gates, s->rows,
	        s->parts > 8 ? arena_printf(c->a, ", eight[%d][%d] = {}", s->gates, s->rows) : "");
	parts_open(s, arena_printf(c->a, "one[%d][%d]", s->gates, s->rows), h, k);
	cu_line(c, "float w[%d];", s->gates);
	for (int g = 0; g < s->gates; g++)
		cu_line(c, "w[%d] = %s;", g,
		        cu_cells_value(
		                s, arena_printf(c->a, "%s[(%s)k * %lld + %lld + j]", w, c->it, s->gates * h, g * h)));
	neighbours(s, arena_printf(c->a, "from + k * %d", s->rows));
	cu_line(c, "#pragma unroll");
	cu_line(c, "for (int g = 0; g < %d; g++)", s->gates);
	cu_line(c, "\t#pragma unroll");
	cu_line(c, "\tfor (int r = 0; r < %d; r++) one[g][r] = fmaf(w[g], x[r], one[g][r]);", s->rows);
	cu_scope_close(c, k[2]);
	cu_scope_close(c, k[1]);
	parts_add(s, s->gates * s->rows);
	cu_scope_close(c, k[0]);
}

static void
forward_emit(Cells *s)
{
	Cuda *c = s->c;
	long long state = room(s, 1);

	s->c_at = arena_printf(c->a, "c[j * %d + r]", s->rows);
	s->h_at = arena_printf(c->a, "from[j * %d + r]", s->rows);

	turn_weights(s);
	Scope all = kernel_open(s), u, r;

	cu_line(c, "float *h = (float *)memory%s;", s->lstm ? arena_printf(c->a, ", *c = h + %lld", 2 * state) : "");
	fill_up(s, "h", 1);
	fill_up(s, arena_printf(c->a, "(h + %lld)", state), 1);
	u = units_open(s);
	r = rows_open(s);
	state_load(s, "h", s->lstm ? 2 : 3);
	if (s->lstm)
		state_load(s, "c", 3);
	cu_scope_close(c, r);
	cu_scope_close(c, u);
	cu_line(c, "__syncthreads();");
	Scope step = cu_scope_open(c, "for (int step = 0; step < %lld; step++)", (long long)s->t);

	cu_line(c, "const int t = %s;", s->reverse ? arena_printf(c->a, "%lld - step", (long long)s->t - 1) : "step");
	cu_line(c, "const float *from = h + (step & 1) * %lld;", state);
	cu_line(c, "float *to = h + (~step & 1) * %lld;", state);
	u = units_open(s);
	sums_forward(s);
	r = rows_open(s);
	if (s->rows > 1)
		cu_line(c, "if (row >= n_rows) { to[j * %d + r] = 0.0f; continue; }", s->rows);
	if (s->has_length)
		cu_line(c, "const bool live = %s;", cu_cells_alive(s, "t"));
	Cell h = cu_cells_unit(s);

	cu_line(c, "to[j * %d + r] = %s;", s->rows, cu_cells_if_live(s, h, cu_cells_text(s->h_at)).v);
	cu_cells_put(s, 0, cu_cells_place(s, "t", 1, 0), cu_cells_if_live(s, h, cu_cell_number(s->c, DT_f32, 0)));
	cu_scope_close(c, r);
	cu_scope_close(c, u);
	cu_line(c, "__syncthreads();");
	cu_scope_close(c, step);
	if (cu_cells_wanted(s, s->lstm ? 3 : 2) || (s->lstm && cu_cells_wanted(s, 4))) {
		u = units_open(s);
		r = rows_open(s);
		cu_line(c, "if (row >= n_rows) continue;");
		cu_cells_put(s, s->lstm ? 3 : 2, cu_cells_place(s, NULL, 0, 0),
		             cu_cells_text(arena_printf(c->a, "h[%lld + j * %d + r]", s->t % 2 * state, s->rows)));
		if (s->lstm)
			cu_cells_put(s, 4, cu_cells_place(s, NULL, 0, 0),
			             cu_cells_text(arena_printf(c->a, "c[j * %d + r]", s->rows)));
		cu_scope_close(c, r);
		cu_scope_close(c, u);
	}
	kernel_close(s, all, "all steps of a few examples to a block");
}

/* ---------------------------------------------------------------- backward */
/* An example that is not there, or past its length: no gradients, and those that run pass on. */
static void
skip_dead(const Cells *s)
{
	Cuda *c = s->c;
	Cell zero = cu_cell_number(s->c, DT_f32, 0);

	if (s->rows == 1 && !s->has_length)
		return;
	Scope in = cu_scope_open(c, "if (%s%s%s)", s->rows > 1 ? "row >= n_rows" : "",
	                         s->rows > 1 && s->has_length ? " || " : "",
	                         s->has_length ? arena_printf(c->a, "!(%s)", cu_cells_alive(s, "t")) : "");

	for (int k = 0; k < s->gates; k++)
		cu_line(c, "d[(%lld + j) * %d + r] = 0.0f;", (long long)(k * s->h), s->rows);
	if (s->has_length) {
		Scope there = s->rows > 1 ? cu_scope_open(c, "if (row < n_rows)") : (Scope){0};

		for (int k = 0; k < s->gates; k++)
			for (int o = 0; o < (s->lstm ? 1 : 2); o++)
				cu_cells_put(s, o, cu_cells_place(s, "t", s->gates, k), zero);
		if (s->rows > 1)
			cu_scope_close(c, there);
	}
	cu_line(c, "continue;");
	cu_scope_close(c, in);
}

/* dh of unit j += the step's gates' gradients times W_hh. */
static void
sums_back(const Cells *s)
{
	Cuda *c = s->c;
	Scope k[3];

	cu_line(c, "float sum[%d] = {}, eight[%d] = {};", s->rows, s->rows);
	parts_open(s, arena_printf(c->a, "one[%d]", s->rows), s->gates * s->h, k);
	cu_line(c, "const float w = %s;",
	        cu_cells_value(s, arena_printf(c->a, "%s[(%s)k * %lld + j]", cu_cells_pointer(s, s->op->in[s->w]),
	                                       c->it, (long long)s->h)));
	neighbours(s, arena_printf(c->a, "d + k * %d", s->rows));
	cu_line(c, "#pragma unroll");
	cu_line(c, "for (int r = 0; r < %d; r++) one[r] = fmaf(w, x[r], one[r]);", s->rows);
	cu_scope_close(c, k[2]);
	cu_scope_close(c, k[1]);
	parts_add(s, s->rows);
	cu_scope_close(c, k[0]);
	cu_line(c, "#pragma unroll");
	cu_line(c, "for (int r = 0; r < %d; r++) dh[j * %d + r] += sum[r];", s->rows, s->rows);
}

static void
backward_emit(Cells *s)
{
	Cuda *c = s->c;
	long long state = room(s, 1);
	Scope all = kernel_open(s), u, r;

	cu_line(c, "float *d = (float *)memory, *dh = d + %lld%s;", (long long)room(s, s->gates),
	        s->lstm ? arena_printf(c->a, ", *dc = dh + %lld", state) : "");
	fill_up(s, "d", s->gates);
	u = units_open(s);
	r = rows_open(s);
	state_load(s, "dh", 1);
	if (s->lstm)
		state_load(s, "dc", 2);
	cu_scope_close(c, r);
	cu_scope_close(c, u);
	Scope step = cu_scope_open(c, "for (int step = %lld; step >= 0; step--)", (long long)s->t - 1);

	cu_line(c, "const int t = %s;", s->reverse ? arena_printf(c->a, "%lld - step", (long long)s->t - 1) : "step");
	u = units_open(s);
	r = rows_open(s);
	cu_line(c, "const int at = j * %d + r;", s->rows);
	skip_dead(s);
	s->h_at = "dh[at]";
	s->c_at = "dc[at]";
	cu_cells_back(s);
	cu_scope_close(c, r);
	cu_scope_close(c, u);
	cu_line(c, "__syncthreads();");
	u = units_open(s);
	sums_back(s);
	cu_scope_close(c, u);
	cu_line(c, "__syncthreads();");
	cu_scope_close(c, step);
	u = units_open(s);
	r = rows_open(s);
	cu_line(c, "if (row >= n_rows) continue;");
	cu_cells_put(s, s->lstm ? 1 : 2, cu_cells_place(s, NULL, 0, 0),
	             cu_cells_text(arena_printf(c->a, "dh[j * %d + r]", s->rows)));
	if (s->lstm)
		cu_cells_put(s, 2, cu_cells_place(s, NULL, 0, 0),
		             cu_cells_text(arena_printf(c->a, "dc[j * %d + r]", s->rows)));
	cu_scope_close(c, r);
	cu_scope_close(c, u);
	kernel_close(s, all, "all steps of a few examples to a block");
}

void
cu_cells_emit(Cuda *c, const Op *op)
{
	Cells s = cu_cells_of(c->g, op);
	const Params *p = &c->kernel;

	s.c = c;
	if (p->family != FAMILY_cuda_cells && p->family != FAMILY_cuda_cells_mma)
		bug("target cuda: '%s' is no kernel of a recurrence", c->g->group.at[c->group].kernel);
	cells_take(&s, p);
	if (p->family == FAMILY_cuda_cells_mma)
		cu_tiled_emit(&s);
	else if (s.blocks > 1)
		cu_held_emit(&s);
	else if (s.back)
		backward_emit(&s);
	else
		forward_emit(&s);
}
