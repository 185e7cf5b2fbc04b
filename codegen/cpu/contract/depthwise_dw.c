/* depthwise_dw.c: the gradient of a convolution of small groups in its weights (depthwise.c).
 *
 * In: a group of conv2d.dw, images and gradient HWNC, which elementwise ops of the group may make.   Out: the kernel,
 * and where pixel rows are cut into parts with sums of their own, one that adds these in order. Lanes are output
 * channels. A task walks the rows of its part; for a few pixels of a row, an image and a vector the products with one
 * filter row are summed in registers and added to the part's sums, which the L1 holds: so images and gradient are
 * read in the order in which they lie, once, and input rows come from the L2 again for each filter row. Sums have
 * one order, whoever computes them. */
#include "depthwise.h"
#include <string.h>

enum { PARTS = 16, TASKS = 16, LONG = 65536 /* products of a part */ };

void
depthwise_dw_params(const Graph *g, const Op *op, const DepthLanes *l, DepthParams *p)
{
	const Type *gr = val_type(g, op->in[1]);
	int64_t rows = gr->axis[2].n, bytes = type_bytes(val_type(g, op->out[0])),
	        most = 4 * machine_of(g)->budget.l2 / bytes,
	        parts = ceil_div(gr->axis[0].n * rows * gr->axis[3].n, LONG);
	int64_t all = l->vectors * l->whole, chunk = all;

	if (parts < PARTS)
		parts = PARTS;
	p->parts = (int)(rows < parts ? rows : parts);
	if (p->parts > most)
		p->parts = (int)(most < 1 ? 1 : most);
	while (p->parts * ceil_div(all, chunk) < TASKS && chunk > 4 * l->whole)
		chunk = ceil_div(ceil_div(chunk, 2), l->whole) * l->whole;
	p->chunk = (int)chunk;
}

typedef struct DepthDw {
	const Op *op;
	const DepthParams *p;
	DepthLanes l;
	DepthSteps s;
	Mem sums;                 /* of the part: [filter row][vector][filter column][input channel], in elements */
	V blocks;                 /* table of the blocks of a long filter */
	V row, h, r, nr, step, n; /* row of the gradient, its first input row and filter row, how many */
} DepthDw;

/* Vector v of the sums of filter row r, tap s, input channel j. */
static Off
sum_at(Emit *e, const DepthDw *d, V r, V v, V s, int64_t j)
{
	Mem vector = mem_fix(e, &d->sums, r, v);

	return mem_lanes(e, &vector, s, k64(e, j));
}

/* Adds a sum of the pixels at hand, which began at zero: the part's sum is one of few elements, and rounded as
 * often. */
static void
add_sum(Emit *e, const DepthDw *d, Off at, V sum)
{
	e->load_here = true;
	V before = load_at(e, d->sums.base, DT_f32, at).v;

	e->load_here = false;
	store_at(e, d->sums.base, DT_f32, at, cell_of(LLVMBuildFAdd(here(e), before, sum, ""), true, DT_f32));
}

/* block: of the filter's columns, NULL: `run` has all. */
static void
add_products(Emit *e, const DepthDw *d, const DepthKind *run, V block, V v, V r, V in_mask)
{
	V h = i_add(e, d->h, i_mul_k(e, r, d->s.rmove)), filter = i_add(e, d->r, i_mul_k(e, r, d->s.rstep)),
	  w = i_mul_k(e, d->step, d->s.first), mask = e->mask;
	V c = i_mul_k(e, v, d->l.groups * d->l.in), o = i_mul_k(e, v, d->l.whole),
	  ow = i_mul_k(e, d->step, d->p->cols), tap = block ? i_mul_k(e, block, d->s.block) : k64(e, 0);
	int64_t taps = block ? d->s.block : d->s.w->axis[3].n;

	if (block)
		w = i_add(e, w, i_mul_k(e, block, d->s.shift));
	V x_at = prologue_made(e->g, d->op, 0) ? NULL : depthwise_at(e, d->op->in[0], d->n, c, h, w),
	  g_at = prologue_made(e->g, d->op, 1) ? NULL : depthwise_at(e, d->op->in[1], d->n, o, d->row, ow);

	for (int64_t j = 0; j < d->l.in; j++) {
		V sum[DEPTH_WEIGHTS] = {0}, x = NULL;

		for (int i = 0; i < run->n; i++) {
			const DepthMeet *m = &run->meet[i];
			V *s = &sum[m->tap],
			  gr = cell_vec(e, depthwise_load(e, d->op, 1, g_at, d->n, o, d->row, ow, m->i));

			if (!i || m->at != m[-1].at) {
				e->mask = in_mask;
				Cell from = depthwise_load(e, d->op, 0, x_at, d->n, c, h, w, m->at);

				e->mask = mask;
				x = depthwise_spread(e, &d->l, from, j).v;
			}
			*s = *s ? depthwise_fma(e, x, gr, *s) : LLVMBuildFMul(here(e), x, gr, "");
		}
		for (int64_t s = 0; s < taps; s++)
			if (sum[s])
				add_sum(e, d, sum_at(e, d, filter, v, i_add_k(e, tap, s), j), sum[s]);
	}
}

typedef struct RowSums {
	const DepthDw *d;
	V v, r, in_mask;
} RowSums;

static void
add_block(Emit *e, void *cx, const DepthKind *k, V block)
{
	const RowSums *s = cx;

	add_products(e, s->d, k, block, s->v, s->r, s->in_mask);
}

static void
clear(Emit *e, const DepthDw *d, V v)
{
	/* [filter row, column and input channel][vector] */
	Mem all = mem_axes(e, d->sums.base, BY(d->s.w->axis[0].n), BY(d->l.whole));

	TIMES(e, r, d->s.w->axis[2].n * d->s.w->axis[3].n * d->l.in)
		store_at(e, all.base, DT_f32, mem_lanes(e, &all, r, v),
		         cell_of(LLVMConstNull(vec_of(e, e->l->f32)), true, DT_f32));
}

/* Vectors [v0, v1): run NULL: their sums are cleared. */
static void
vectors(Emit *e, const DepthDw *d, const DepthRun *run, V v0, V v1)
{
	int64_t whole = d->l.rest ? d->l.vectors - 1 : d->l.vectors;

	e->lanes = true;
	for (int rest = 0; rest < 2; rest++) {
		int64_t lanes = rest ? d->l.rest : d->l.whole;

		if (rest ? !d->l.rest : !whole)
			continue;
		LOOP(e, v, rest ? i_max(e, v0, k64(e, whole)) : v0, rest ? v1 : i_min_k(e, v1, whole), 1) {
			e->mask = depthwise_mask(e, lanes);
			if (run)
				EACH(e, r, d->nr) {
					RowSums s = {d, v, r, depthwise_mask(e, lanes / d->l.out * d->l.in)};

					depthwise_blocks(e, &d->s, run, d->blocks, d->step, &s, add_block);
				}
			else
				clear(e, d, v);
			e->mask = NULL;
		}
	}
	e->lanes = false;
}

static void
one_task(Emit *e, DepthDw *d, V t, V trow, V out)
{
	const DepthParams *p = d->p;
	int64_t OH = d->s.o->axis[2].n, N = d->s.o->axis[0].n, chunk = p->chunk / d->l.whole, O = d->s.w->axis[0].n,
	        I = d->l.in, S = d->s.w->axis[3].n;
	Mem parts = mem_rows(e, out, DT_f32, p->parts, type_elements(d->s.w));
	V part = i_rem_k(e, t, p->parts), v0 = i_mul_k(e, i_div_k(e, t, p->parts), chunk),
	  v1 = i_min_k(e, i_add_k(e, v0, chunk), d->l.vectors);
	V lo = i_div_k(e, i_mul_k(e, part, OH), p->parts),
	  hi = i_div_k(e, i_mul_k(e, i_add_k(e, part, 1), OH), p->parts);

	d->sums = mem_axes(e, mem_at(e, &parts, part), BY(S * I * O), BY(d->l.whole), BY(I * O), BY(O));
	vectors(e, d, NULL, v0, v1);
	LOOP(e, strip, k64(e, 0), k64(e, N), p->strip) {
		V end = i_min_k(e, i_add_k(e, strip, p->strip), N);

		LOOP(e, row, lo, hi, 1) {
			d->row = row;
			d->h = depthwise_row(e, trow, row, 0);
			d->r = depthwise_row(e, trow, row, 1);
			d->nr = depthwise_row(e, trow, row, 2);
			TIMES(e, step, d->s.n) LOOP(e, n, strip, end, 1) {
				d->n = n;
				d->step = step;
				if (d->s.block) /* its table says what each step meets */
					vectors(e, d, &d->s.run[0], v0, v1);
				for (int i = 0; !d->s.block && i < d->s.nrun; i++) {
					d->step = depthwise_run_open(e, &d->s, &d->s.run[i], step);
					vectors(e, d, &d->s.run[i], v0, v1);
					depthwise_run_close(e, &d->s);
				}
			}
		}
	}
}

void
depthwise_dw_emit(GroupCx *gc, const Op *op, const GemmParams *params, int a, int b, GraphKernels *gk)
{
	const Graph *g = gc->g;
	const DepthParams *p = &params->depth;
	int out = group_buffer(gc, op->out[0].id);
	DepthDw d = {.op = op,
	    .p = p,
	    .l = depthwise_lanes(g, op, p),
	    .s = {.x = val_type(g, op->in[0]), .w = val_type(g, op->out[0]), .o = val_type(g, op->in[1]),
	          .at = window_of(g, op), .block = depthwise_block(g, op, p->cols)}};
	int sums = p->parts > 1 ? workspace_at(gc) : out;
	Emit e = {0};
	bool fresh;

	(void)a, (void)b;
	int fn = kernel_begin(gc, &e, "main", &fresh);
	int64_t tasks = p->parts * ceil_div(d.l.vectors * d.l.whole, p->chunk);

	if (fresh) {
		emit_lanes(&e, p->lanes);
		depthwise_steps(e.arena, op, p->cols, &d.s);
		d.blocks = d.s.block ? table(&e, d.s.blocks, d.s.n * d.s.nkind * 2) : NULL;
		V to = buffer(&e, sums), trow = table(&e, d.s.rows, d.s.o->axis[2].n * 3);

		TASKS(&e, t) one_task(&e, &d, t, trow, to);
	}
	kernel_end(gc, &e, gk, fn, (Rows){.rows = tasks, .mul = 0, .div = 1, .grain = 1}, fresh, false);
	if (p->parts > 1)
		wgrad_join(gc, p->parts, type_elements(d.s.w), sums, out, gk);
}
