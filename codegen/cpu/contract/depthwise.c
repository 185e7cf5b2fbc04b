/* depthwise.c: convolutions whose groups are smaller than a vector, forward and in the gradient of x: depthwise ones,
 * with multipliers too, and those of a few channels a group.
 *
 * In: a group of one contraction that depthwise_params.c takes, elementwise ops before and behind it, reductions over
 * rows behind it.   Out: the kernel.
 * Lanes are channels of the result, as they lie in memory; where a group has several, each vector that is loaded is
 * spread by shuffles, once for each channel of the other side, so that no product is computed in vain. A step computes
 * a few pixels of a row together, so that they share loads; which of them meets which tap is known when the code is
 * made: pixels at the left and the right edge have code of their own, without tests, and rows of the filter that hang
 * out are left out by a table, as in gemm.c. Strides, dilations and the gradient's steps are other lists of the same
 * kind. Pixels lie a multiple of some power of two apart and meet in few sets of the L1. So a task of several
 * rows copies what it meets into a band of the thread's own memory, by vectors of channels, made there once where
 * elementwise ops make the operand, and reads it from the L1 as often as the filter asks. Large tensors under
 * small filters wait for memory and are read as they lie, row by row, of as many images as leave a filter's rows in the
 * L2 for the next row; there those ops are evaluated at each vector that is loaded (lane_eval). A tile of sums
 * goes through the epilogue in the L1, and to memory once; sums that nobody else needs go there directly. Tasks
 * are cut by shape, so results have the same bits for any number of threads. */
#include "depthwise.h"
#include <string.h>

/* ---------------------------------------------------------------- loads */
V
depthwise_mask(const Emit *e, int64_t lanes)
{
	V k[64];

	if (lanes == e->W)
		return NULL;
	for (int i = 0; i < e->W; i++)
		k[i] = LLVMConstInt(e->l->i1, i < lanes, 0);
	return LLVMConstVector(k, (unsigned)e->W);
}

Cell
depthwise_spread(Emit *e, const DepthLanes *l, Cell from, int64_t j)
{
	V k[64], v = cell_vec(e, from);

	if (l->in == 1 && l->out == 1)
		return cell_of(v, true, (DType)from.dt);
	for (int i = 0; i < e->W; i++)
		k[i] = i < l->whole ? LLVMConstInt(e->l->i32, (unsigned long long)(i / l->out * l->in + j), 0)
		                    : LLVMGetPoison(e->l->i32);
	return cell_of(
	    LLVMBuildShuffleVector(at1(e, v), v, LLVMGetPoison(LLVMTypeOf(v)), LLVMConstVector(k, (unsigned)e->W), ""),
	    true, (DType)from.dt);
}

V
depthwise_at(Emit *e, Val v, V n, V c, V h, V w)
{
	const Type *t = val_type(e->g, v);
	const Ix ix[4] = {ix_s(n), ix_s(c), ix_s(h), ix_s(w)};

	return ptr_at(e, buffer(e, group_buffer(e->gc, v.id)),
	    i_mul_k(e, offset_of(e, t, ix).s, dtype_info[t->dtype].bytes));
}

Cell
depthwise_load(Emit *e, const Op *op, int k, V at, V n, V c, V h, V w, int64_t pixels)
{
	const Type *t = val_type(e->g, op->in[k]);

	V pixel = i_mul_k(e, extent(e, t->axis[0]), t->axis[1].n);

	if (at)
		return load_at(e, at, (DType)t->dtype, (Off){.s = i_mul_k(e, pixel, pixels), .c = 1});
	const Ix ix[4] = {ix_s(n), {.s = c, .c = 1}, ix_s(h), ix_s(i_add_k(e, w, pixels))};

	return lane_eval(e, op->in[k], ix);
}

/* ---------------------------------------------------------------- which pixels meet which taps */
static int
meets_of(Arena *a, const Op *op, const DepthSteps *d, int64_t step, int cols, DepthMeet **out)
{
	bool dx = op->kind == OP_conv2d_dx;
	DepthMeet *m = arena_array(a, DepthMeet, cols * d->at.k[1]);
	int n = 0;

	for (int i = 0; i < cols && step * cols + i < d->o->axis[3].n; i++) {
		int64_t filter, move;
		WindowTaps t = window_taps(&d->at, 1, dx, step * cols + i, d->x->axis[3].n, &filter, &move);

		for (int64_t k = 0; k < t.count; k++) {
			DepthMeet x = {i, t.at + k * move - step * d->first, t.first + k * filter};
			int at = n++;

			for (; at > 0 && m[at - 1].at > x.at; at--)
				m[at] = m[at - 1];
			m[at] = x;
		}
	}
	*out = m;
	return n;
}

static bool
meets_same(const DepthMeet *a, const DepthMeet *b, int n)
{
	for (int i = 0; i < n; i++)
		if (a[i].i != b[i].i || a[i].at != b[i].at || a[i].tap != b[i].tap)
			return false;
	return true;
}

/* Of the m products of a step those with taps [block, block + 1) * d->block, as a kind has them. */
static int
of_block(const DepthSteps *d, const DepthMeet *m, int n, int64_t block, DepthMeet *r)
{
	int k = 0;

	for (int i = 0; i < n; i++)
		if (m[i].tap / d->block == block)
			r[k++] = (DepthMeet){m[i].i, m[i].at - block * d->shift, m[i].tap - block * d->block};
	return k;
}

static int
kind_of(Arena *a, DepthSteps *d, const DepthMeet *m, int n, const int64_t *taken, int64_t block)
{
	for (int i = 0; i < d->nkind; i++)
		if (d->kind[i].n == n && meets_same(d->kind[i].meet, m, n) &&
		    (taken[2 * i + 1] == 0 || taken[2 * i + 1] == block))
			return i;
	if (d->nkind == DEPTH_KINDS)
		bug("blocks of a filter of more than %d kinds", DEPTH_KINDS);
	DepthMeet *own = arena_array(a, DepthMeet, n);

	memcpy(own, m, (size_t)n * sizeof *m);
	d->kind[d->nkind] = (DepthKind){n, own};
	return d->nkind++;
}

/* The products of a long filter: code for each kind of block that some step meets, and which of them each step does
 * so. Blocks that lie wholly within the image are of one kind, those across an edge of few, as steps and blocks begin
 * at multiples of the same number of columns. */
static void
steps_of_blocks(Arena *a, const Op *op, int cols, DepthSteps *d)
{
	int64_t OW = d->o->axis[3].n, whole = OW / cols, nblock = ceil_div(d->at.k[1], d->block);
	int64_t *all = arena_array(a, int64_t, d->n * DEPTH_KINDS * 2);
	DepthMeet *some = arena_array(a, DepthMeet, cols * d->block);

	d->shift = d->block * (op->kind == OP_conv2d_dx ? -d->at.dilation[1] : d->at.dilation[1]);
	for (int64_t step = 0; step < d->n; step++) {
		int64_t *taken = &all[step * DEPTH_KINDS * 2];
		DepthMeet *m;
		int n = meets_of(a, op, d, step, cols, &m);

		for (int64_t block = 0; block < nblock; block++) {
			int of = of_block(d, m, n, block, some), k = of ? kind_of(a, d, some, of, taken, block) : -1;

			if (k >= 0 && taken[2 * k + 1] == 0)
				taken[2 * k] = block;
			if (k >= 0)
				taken[2 * k + 1] = block + 1;
		}
	}
	d->blocks = arena_array(a, int64_t, d->n * d->nkind * 2);
	for (int64_t step = 0; step < d->n; step++)
		memcpy(&d->blocks[step * d->nkind * 2], &all[step * DEPTH_KINDS * 2], (size_t)d->nkind * 16);
	if (whole)
		d->run[d->nrun++] = (DepthRun){.lo = 0, .hi = whole, .cols = cols};
	if (whole < d->n)
		d->run[d->nrun++] = (DepthRun){.lo = whole, .hi = d->n, .cols = (int)(OW - whole * cols)};
}

void
depthwise_blocks(Emit *e, const DepthSteps *d, const DepthRun *run, V table, V step, void *cx,
                 void (*f)(Emit *e, void *cx, const DepthKind *k, V block))
{
	if (!d->block)
		f(e, cx, &(DepthKind){run->n, run->meet}, NULL);
	for (int i = 0; i < d->nkind; i++) {
		V at = i_add_k(e, i_mul_k(e, step, 2 * d->nkind), 2 * i);

		LOOP(e, block, table_at(e, table, at), table_at(e, table, i_add_k(e, at, 1)), 1)
			f(e, cx, &d->kind[i], block);
	}
}

static void
steps_of_rows(Arena *a, const Op *op, int cols, DepthSteps *d)
{
	int64_t OW = d->o->axis[3].n;

	for (int64_t step = 0; step < d->n; step++) {
		bool cut = (step + 1) * cols > OW;
		DepthMeet *m;
		int n = meets_of(a, op, d, step, cols, &m);
		DepthRun *last = d->nrun ? &d->run[d->nrun - 1] : NULL;

		if (last && !cut && last->n == n && meets_same(last->meet, m, n)) {
			last->hi++;
			continue;
		}
		if (d->nrun == DEPTH_RUNS)
			bug("a row of more than %d kinds of pixels", DEPTH_RUNS);
		d->run[d->nrun++] = (DepthRun){step, step + 1, cut ? (int)(OW - step * cols) : cols, n, m};
	}
}

void
depthwise_steps(Arena *a, const Op *op, int cols, DepthSteps *d)
{
	bool dx = op->kind == OP_conv2d_dx;
	int64_t OH = d->o->axis[2].n;

	d->n = ceil_div(d->o->axis[3].n, cols);
	d->first = dx ? cols / d->at.stride[1] : cols * d->at.stride[1];
	(d->block ? steps_of_blocks : steps_of_rows)(a, op, cols, d);
	d->rows = arena_array(a, int64_t, OH * 3);
	for (int64_t i = 0; i < OH; i++) {
		WindowTaps t = window_taps(&d->at, 0, dx, i, d->x->axis[2].n, &d->rstep, &d->rmove);

		memcpy(&d->rows[i * 3], (int64_t[]){t.at, t.first, t.count}, 24);
	}
}

V
depthwise_run_open(Emit *e, const DepthSteps *d, const DepthRun *run, V step)
{
	return d->nrun > 1
	    ? loop_open(e, i_max(e, step, k64(e, run->lo)), i_min_k(e, i_add_k(e, step, 1), run->hi), 1)
	    : step;
}

void
depthwise_run_close(Emit *e, const DepthSteps *d)
{
	if (d->nrun > 1)
		loop_close(e);
}

V
depthwise_row(Emit *e, V table, V row, int column)
{
	return table_at(e, table, i_add_k(e, i_mul_k(e, row, 3), column));
}

typedef struct Depth {
	const Op *op;
	const DepthParams *p;
	DepthLanes l;
	DepthSteps s;
	int weights; /* buffer of weights by lanes */
	bool tile;
	int64_t line, band_line;                /* elements of a tile's row; vectors from one of a band's to the next */
	V to;
	Mem band;                               /* [image][vector][pixel]; base NULL: there is none */
	V band_n, band_v, band_h;               /* what it begins with */
	V blocks;                               /* table of the blocks of a long filter */
	V row, h, r, nr;                        /* output row, first input row, first filter row, how many */
	V step, s0, s1, pixels, n0, n1, v0, v1; /* of the tile: steps, pixels of a row, images, vectors */
} Depth;

/* ---------------------------------------------------------------- a vector of each pixel of a step */
V
depthwise_fma(Emit *e, V x, V y, V sum)
{
	T vt = vec_of(e, e->l->f32);

	return intrinsic(e, here(e), "llvm.fmuladd", &vt, 1, (V[]){x, y, sum}, 3);
}

/* Where the band's vector v of image n stands at pixel (h, w). */
static V
band_at(Emit *e, const Depth *d, V n, V v, V h, V w)
{
	V pixel = i_add(e, i_mul_k(e, i_sub(e, h, d->band_h), d->s.x->axis[3].n), w);

	return mem_at(e, &d->band, i_sub(e, n, d->band_n), i_sub(e, v, d->band_v), pixel);
}

/* The products `run` of filter row r; block: of the filter's columns, NULL: it has all. */
static void
row_products(Emit *e, const Depth *d, const DepthKind *run, V block, V n, V v, V r, V in_mask, V *acc)
{
	int64_t S = d->s.w->axis[3].n, channels = val_type(e->g, d->op->out[0])->axis[1].n;
	V h = i_add(e, d->h, i_mul_k(e, r, d->s.rmove)), filter = i_add(e, d->r, i_mul_k(e, r, d->s.rstep)),
	  w = i_mul_k(e, d->step, d->s.first);
	V c = i_mul_k(e, v, d->l.groups * d->l.in), mask = e->mask, at = NULL;

	if (block)
		w = i_add(e, w, i_mul_k(e, block, d->s.shift));
	if (d->band.base)
		at = band_at(e, d, n, v, h, w);
	else if (!prologue_made(e->g, d->op, 0))
		at = depthwise_at(e, d->op->in[0], n, c, h, w);
	DType wt = d->weights == group_buffer(e->gc, d->op->in[1].id) ? (DType)d->s.w->dtype : DT_f32;
	V number = i_add(e, i_mul_k(e, filter, S * d->l.in * channels), i_mul_k(e, v, d->l.whole));

	if (block)
		number = i_add(e, number, i_mul_k(e, block, d->s.block * d->l.in * channels));
	V weights = ptr_at(e, buffer(e, d->weights), i_mul_k(e, number, dtype_info[wt].bytes));

	for (int64_t j = 0; j < d->l.in; j++) {
		V k[DEPTH_WEIGHTS] = {0}, x = NULL;

		for (int i = 0; i < run->n; i++) {
			const DepthMeet *m = &run->meet[i];

			if (!i || m->at != m[-1].at) {
				e->mask = in_mask;
				Off in_band = {.s = k64(e, m->at * e->W), .c = 1};
				Cell from = d->band.base ? load_at(e, at, DT_f32, in_band)
				                         : depthwise_load(e, d->op, 0, at, n, c, h, w, m->at);

				e->mask = mask;
				x = depthwise_spread(e, &d->l, from, j).v;
			}
			Off o = {.s = k64(e, (m->tap * d->l.in + j) * channels), .c = 1};

			if (!k[m->tap])
				k[m->tap] = load_at(e, weights, wt, o).v;
			acc[m->i] = depthwise_fma(e, x, k[m->tap], acc[m->i]);
		}
	}
}

/* Sums of a step under way, in the slots of its pixels. */
typedef struct StepSums {
	const Depth *d;
	V n, v, r, in_mask, *slot;
} StepSums;

static void
add_block(Emit *e, void *cx, const DepthKind *k, V block)
{
	const StepSums *s = cx;
	T vt = vec_of(e, e->l->f32);
	V acc[DEPTH_COLS];

	for (int i = 0; i < s->d->p->cols; i++)
		acc[i] = slot_get(e, s->slot[i], vt);
	row_products(e, s->d, k, block, s->n, s->v, s->r, s->in_mask, acc);
	for (int i = 0; i < s->d->p->cols; i++)
		slot_set(e, s->slot[i], acc[i]);
}

/* Vector v of image n at the pixels of a step; lanes: those in use. */
static void
step_vector(Emit *e, const Depth *d, const DepthRun *run, V n, V v, int64_t lanes)
{
	T vt = vec_of(e, e->l->f32);
	V slot[DEPTH_COLS];
	int cols = d->p->cols;
	const Ix ix[4] = {ix_s(n), {.s = i_mul_k(e, v, d->l.whole), .c = 1}, ix_s(d->row),
	    ix_s(i_mul_k(e, d->step, cols))};

	e->mask = depthwise_mask(e, lanes);
	for (int i = 0; i < cols; i++) {
		slot[i] = slot_new(e, vt);
		slot_set(e, slot[i], LLVMConstNull(vt));
	}
	EACH(e, r, d->nr) {
		StepSums sums = {d, n, v, r, depthwise_mask(e, lanes / d->l.out * d->l.in), slot};

		depthwise_blocks(e, &d->s, run, d->blocks, d->step, &sums, add_block);
	}
	for (int i = 0; i < run->cols; i++) {
		Cell c = cell_of(slot_get(e, slot[i], vt), true, DT_f32);

		if (d->tile) {
			V pixel = i_add_k(e, i_mul_k(e, i_sub(e, d->step, d->s0), cols), i);
			V row = i_add(e, i_mul(e, i_sub(e, n, d->n0), d->pixels), pixel),
			  at = i_add(
			      e, i_mul_k(e, row, d->line), i_mul_k(e, i_sub(e, v, d->v0), d->l.whole));

			e->mask = NULL;
			store_at(e, d->to, DT_f32, (Off){.s = at, .c = 1}, c);
			continue;
		}
		Off o = offset_of(e, d->s.o, ix);

		o.s =
		    i_add(e, o.s, i_mul_k(e, i_mul_k(e, extent(e, d->s.o->axis[0]), d->s.o->axis[1].n), i));
		e->stream = store_streams(e->g, d->op->out[0]) && !e->mask;
		store_at(e, d->to, DT_f32, o, c);
		e->stream = false;
	}
	e->mask = NULL;
}

/* Of the tile's vectors those whose lanes are all in use, or the one of the rest; false: there are none. */
static bool
vectors_of(Emit *e, const Depth *d, int rest, V *from, V *to)
{
	int64_t whole = d->l.rest ? d->l.vectors - 1 : d->l.vectors;

	*from = rest ? i_max(e, d->v0, k64(e, whole)) : d->v0;
	*to = rest ? d->v1 : i_min_k(e, d->v1, whole);
	return rest ? d->l.rest > 0 : whole > 0;
}

static void
run_tile(Emit *e, Depth *d, const DepthRun *run)
{
	V from, to;

	LOOP(e, n, d->n0, d->n1, 1)
		for (int rest = 0; rest < 2; rest++) {
			if (!vectors_of(e, d, rest, &from, &to))
				continue;
			LOOP(e, v, from, to, 1)
			LOOP(e, step, i_max(e, d->s0, k64(e, run->lo)), i_min_k(e, d->s1, run->hi), 1) {
				d->step = step;
				e->lanes = true;
				step_vector(e, d, run, n, v, rest ? d->l.rest : d->l.whole);
				e->lanes = false;
			}
		}
}

/* ---------------------------------------------------------------- the kernel */
static void
depth_index(Emit *e, void *cx, V row, Ix *ix)
{
	const Depth *d = cx;

	ix[0] = ix_s(i_add(e, d->n0, i_div(e, row, d->pixels)));
	ix[2] = ix_s(d->row);
	ix[3] = ix_s(i_add(e, i_mul_k(e, d->s0, d->p->cols), i_rem(e, row, d->pixels)));
}

typedef struct DepthPieces {
	const Type *o;
	const DepthParams *p;
} DepthPieces;

static V
images_from(Emit *e, const Type *o, V strip, int64_t images, V *lo)
{
	V n = extent(e, o->axis[0]);

	*lo = i_min(e, i_mul_k(e, strip, images), n);
	return i_min(e, i_add_k(e, *lo, images), n);
}

/* Rows of pixels of a strip of images. */
static V
depth_pieces(Emit *e, void *cx, V piece)
{
	const DepthPieces *p = cx;
	int64_t OH = p->o->axis[2].n, blocks = ceil_div(OH, p->p->rows);
	V lo, hi = images_from(e, p->o, i_div_k(e, piece, blocks), p->p->strip, &lo);
	V first = i_mul_k(e, i_rem_k(e, piece, blocks), p->p->rows);
	V rows = i_min(e, k64(e, p->p->rows), i_sub(e, k64(e, OH), first));

	return i_mul(e, i_sub(e, hi, lo), i_mul_k(e, rows, p->o->axis[3].n));
}

/* Sums that others read as well are stored by the epilogue, past the caches where they are large: what is stored so
 * must not be read back. */
static void
store_late(const Graph *g, Epilogue *epi)
{
	int n = 0;

	if (epi->raw < 0 || !(epi->nout || epi->nred))
		return;
	if (epi->nout == EPILOGUE_OUTS)
		bug("a contraction with more than %d outputs", EPILOGUE_OUTS);
	for (int i = 0; i < epi->nfetch; i++)
		if (epi->fetch[i].buf != epi->raw || !store_streams(g, epi->op->out[0]))
			epi->fetch[n++] = epi->fetch[i];
	epi->nfetch = n;
	epi->out[epi->nout++] = (Out){epi->op->out[0], epi->raw};
	epi->raw = -1;
}

/* Copies what the task's rows meet, [h0, h1) of images [n0, n1), made where the kernel makes it. */
static void
band_fill(Emit *e, Depth *d, V h0, V h1, V n0, V n1)
{
	int64_t per = d->l.groups * d->l.in;
	V from, to;

	LOOP(e, h, h0, h1, 1) TIMES(e, w, d->s.x->axis[3].n) LOOP(e, n, n0, n1, 1)
		for (int rest = 0; rest < 2; rest++) {
			if (!vectors_of(e, d, rest, &from, &to))
				continue;
			LOOP(e, v, from, to, 1) {
				V c = i_mul_k(e, v, per);
				V at = prologue_made(e->g, d->op, 0) ? NULL
				                                     : depthwise_at(e, d->op->in[0], n, c, h, w);

				e->lanes = true;
				e->mask = depthwise_mask(e, (rest ? d->l.rest : d->l.whole) / d->l.out * d->l.in);
				Cell x = cell_cast(e, depthwise_load(e, d->op, 0, at, n, c, h, w, 0), DT_f32);

				e->mask = NULL;
				store_at(e, band_at(e, d, n, v, h, w), DT_f32, (Off){.s = k64(e, 0), .c = 1}, x);
				e->lanes = false;
			}
		}
}

/* Opens a loop over the steps of a row, `n` to a tile. */
static void
steps_open(Emit *e, Depth *d, int64_t n)
{
	int64_t OW = d->s.o->axis[3].n, cols = d->p->cols;

	d->s0 = loop_open(e, k64(e, 0), k64(e, d->s.n), n);
	d->s1 = i_min_k(e, i_add_k(e, d->s0, n), d->s.n);
	d->pixels = k64(e, n == d->s.n ? OW : n * cols);
	if (n != d->s.n && OW % cols)
		d->pixels = i_min(e, d->pixels, i_sub(e, k64(e, OW), i_mul_k(e, d->s0, cols)));
}

/* Opens the loops over a task's images [lo, hi), vectors [c0, c1), rows [first, last) and steps. */
static int
task_open(Emit *e, Depth *d, V lo, V hi, V c0, V c1, V first, V last)
{
	/* the copy is walked row by row; what lies in memory as it lies there */
	if (!d->band.base)
		steps_open(e, d, 1);
	d->n0 = loop_open(e, lo, hi, d->p->images);
	d->n1 = i_min(e, i_add_k(e, d->n0, d->p->images), hi);
	d->v0 = loop_open(e, c0, c1, d->p->block / d->l.whole);
	d->v1 = i_min(e, i_add_k(e, d->v0, d->p->block / d->l.whole), c1);
	d->row = loop_open(e, first, last, 1);
	if (d->band.base)
		steps_open(e, d, d->s.n);
	return 4;
}

static void
one_task(Emit *e, Depth *d, Epilogue *epi, V t, V trow, V tband)
{
	const DepthParams *p = d->p;
	int64_t chunk = p->chunk / d->l.whole, nchunk = ceil_div(d->l.vectors, chunk);
	int64_t OH = d->s.o->axis[2].n, blocks = ceil_div(OH, p->rows);
	V rest = i_div_k(e, t, blocks), strip = i_div_k(e, rest, nchunk), b = i_rem_k(e, t, blocks),
	  lo;
	V c0 = i_mul_k(e, i_rem_k(e, rest, nchunk), chunk);
	V hi = images_from(e, d->s.o, strip, p->strip, &lo);
	V c1 = i_min_k(e, i_add_k(e, c0, chunk), d->l.vectors);
	V first = i_mul_k(e, b, p->rows), last = i_min_k(e, i_add_k(e, first, p->rows), OH);

	if (d->band.base) {
		V b2 = i_mul_k(e, b, 2);

		d->band_n = lo, d->band_v = d->v0 = c0, d->v1 = c1;
		d->band_h = table_at(e, tband, b2);
		band_fill(e, d, d->band_h, table_at(e, tband, i_add_k(e, b2, 1)), lo, hi);
	}
	LOOPS(e, task_open(e, d, lo, hi, c0, c1, first, last)) {
		d->h = depthwise_row(e, trow, d->row, 0);
		d->r = depthwise_row(e, trow, d->row, 1);
		d->nr = depthwise_row(e, trow, d->row, 2);
		V column = i_mul_k(e, d->v0, d->l.whole), rows = i_mul(e, i_sub(e, d->n1, d->n0), d->pixels);
		V end = i_min_k(e, i_mul_k(e, d->v1, d->l.whole), d->s.o->axis[1].n);
		V seen = i_mul(e, i_mul(e, i_sub(e, d->n0, lo), i_sub(e, last, first)), d->pixels);

		seen = i_add(e, seen, i_mul(e, i_mul_k(e, d->s0, p->cols), i_sub(e, hi, lo)));
		EpilogueTile et = {.rows = rows,
		    .column = column,
		    .columns = i_sub(e, end, column),
		    .piece = i_add(e, i_mul_k(e, strip, blocks), b),
		    .done = i_add(e, seen, i_mul(e, i_sub(e, d->row, first), rows)),
		    .tile = d->to,
		    .tile_columns = d->line,
		    .unroll = p->block >= 4 * p->lanes ? 4 : 1,
		    .index = depth_index,
		    .cx = d};

		if (d->tile)
			epilogue_fetch(e, epi, &et, p->block < d->s.o->axis[1].n ? p->block : d->s.o->axis[1].n);
		for (int i = 0; i < d->s.nrun; i++)
			run_tile(e, d, &d->s.run[i]);
		if (d->tile)
			epilogue_tile(e, epi, &et);
	}
}

/* First input row and last of each block of rows. */
static V
band_table(Emit *e, const Op *op, const Depth *d)
{
	int64_t OH = d->s.o->axis[2].n, rows = d->p->rows, n = ceil_div(OH, rows),
	        *at = arena_array(e->arena, int64_t, 2 * n);

	for (int64_t i = 0; i < n; i++) {
		int64_t last = (i + 1) * rows < OH ? (i + 1) * rows : OH;

		depthwise_band_range(op, d->s.x, &d->s.at, i * rows, last, &at[2 * i], &at[2 * i + 1]);
	}
	return table(e, at, 2 * n);
}

static void
main_kernel(GroupCx *gc, const Op *op, const GemmParams *params, int weights, Epilogue *epi, GraphKernels *gk)
{
	const Graph *g = gc->g;
	const DepthParams *p = &params->depth;
	Depth d = {.op = op,
	    .p = p,
	    .l = depthwise_lanes(g, op, p),
	    .s = {.x = val_type(g, op->in[0]), .w = val_type(g, op->in[1]), .o = val_type(g, op->out[0]),
	          .at = window_of(g, op), .block = depthwise_block(g, op, p->cols)},
	    .weights = weights};
	Emit e = {0};
	bool fresh;
	int fn = kernel_begin(gc, &e, "main", &fresh);
	int64_t tasks = gemm_pieces(g, op, params) * ceil_div(d.l.vectors * d.l.whole, p->chunk),
	        grain = task_grain(machine_of(g), tasks, op_flops(g, op) / 2 / (double)tasks);

	if (fresh) {
		emit_lanes(&e, p->lanes);
		depthwise_steps(e.arena, op, p->cols, &d.s);
		d.tile = epi->raw < 0;
		d.line = depthwise_tile_line(&d.l, p);
		d.to = d.tile ? scratch_ptr(&e, 0) : buffer(&e, epi->raw);
		d.band_line = depthwise_band_line(depthwise_band_rows(g, op, p->rows) * d.s.x->axis[3].n);
		d.band = mem_axes(&e, p->band ? scratch_ptr(&e, depthwise_tile_bytes(g, op, &d.l, p)) : NULL,
		                  OF(p->chunk / d.l.whole), OF(d.band_line), BY(F32(e.W)));
		d.blocks = d.s.block ? table(&e, d.s.blocks, d.s.n * d.s.nkind * 2) : NULL;
		V tband = p->band ? band_table(&e, op, &d) : NULL, trow = table(&e, d.s.rows, d.s.o->axis[2].n * 3);

		GRAINS(&e, t, grain, tasks) one_task(&e, &d, epi, t, trow, tband);
	}
	kernel_end(gc, &e, gk, fn, (Rows){.rows = tasks, .mul = 0, .div = 1, .grain = grain}, fresh, false);
	DepthPieces pieces = {d.s.o, p};

	epilogue_finish(gc, gk, epi, depth_pieces, &pieces);
}

/* Weights of the gradient in x, by lanes: [r][s][j][channel]. */
static void
pack_kernel(GroupCx *gc, const Op *op, const DepthParams *p, int dst, GraphKernels *gk)
{
	DepthLanes l = depthwise_lanes(gc->g, op, p);
	const Type *w = val_type(gc->g, op->in[1]), *o = val_type(gc->g, op->out[0]);
	int64_t R = w->axis[2].n, S = w->axis[3].n, channels = o->axis[1].n;
	Emit e = {0};
	bool fresh;
	int fn = kernel_begin(gc, &e, "pack", &fresh);

	if (fresh) {
		emit_lanes(&e, p->lanes);
		TASKS(&e, row) {
			V tap = i_div_k(&e, row, l.in), j = i_rem_k(&e, row, l.in);

			LOOP(&e, c, k64(&e, 0), k64(&e, channels), p->lanes) {
				const Ix at = {.s = c, .c = 1};

				e.lanes = true;
				e.mask = channels % p->lanes ? mask_below(&e, i_sub(&e, k64(&e, channels), c)) : NULL;
				const Ix ix[4] = {
				        ix_add(&e, ix_mul_k(&e, ix_div(&e, at, k64(&e, l.out)), l.in), ix_s(j)),
				        ix_rem(&e, at, k64(&e, l.out)), ix_s(i_div_k(&e, tap, S)),
				        ix_s(i_rem_k(&e, tap, S))};
				Cell k = cell_cast(&e, lane_eval(&e, op->in[1], ix), DT_f32);
				Mem to = mem_axes(&e, buffer(&e, dst), BY(channels), BY(1)); /* [row][channel] */

				store_at(&e, to.base, DT_f32, mem_lanes(&e, &to, row, c), k);
				e.mask = NULL;
				e.lanes = false;
			}
		}
	}
	kernel_end(gc, &e, gk, fn, (Rows){.rows = R * S * l.in, .mul = 0, .div = 1, .grain = 1}, fresh, false);
}

void
depthwise_emit(GroupCx *gc, const Op *op, const GemmParams *p, int a, int b, GraphKernels *gk)
{
	bool packed = gemm_panels(gc->g, op, p) > 0;
	int weights = packed ? panels_at(gc) : b;
	Epilogue epi;

	(void)a;
	gemm_epilogue(gc, op, p, &epi);
	store_late(gc->g, &epi);
	if (packed)
		pack_kernel(gc, op, &p->depth, weights, gk);
	main_kernel(gc, op, p, weights, &epi, gk);
}
