/* depthwise.c: convolutions whose groups are smaller than a vector, forward and in the gradient of x: depthwise ones,
 * with multipliers too, and those of a few channels a group.
 *
 * In: a group of one contraction with HWNC activations and HWIO weights, groups of at most half a vector's channels,
 * elementwise ops before and behind it, reductions over rows behind it. Out: the kernel. Lanes are channels of the
 * result, as they lie in memory; where a group has several, each vector that is loaded is spread by shuffles, once for
 * each channel of the other side, so that no product is computed in vain. A step computes a few pixels of a row
 * together, so that they share loads; which of them meets which tap is known when the code is made: pixels at the left
 * and the right edge have code of their own, without tests, and rows of the filter that hang out are left out by a
 * table, as in gemm.c. Strides, dilations and the gradient's steps are other lists of the same kind. Memory is what
 * such a kernel waits for, so a task is a row of pixels, of as many images as leave its input rows in the L2 cache for
 * the next row, which the same thread computes as a rule. A tile of sums goes through the epilogue in the L1 cache, and
 * to memory once; sums that nobody else needs go there directly. Elementwise ops that make the operand are evaluated at
 * each vector that is loaded (lane_eval). Tasks are cut by shape, so results have the same bits for any number of
 * threads. Refuses (depthwise_can): larger groups, filters of hundreds of weights a row, dilations of many steps. */
#include "depthwise.h"
#include <string.h>

enum {
	MOST_WEIGHTS = 64,
	MOST_STRIDE = 8,
	MOST_COLS = 16,
	MOST_REACH = 32,
	TILE_BYTES = 16 << 10,
	STRIP_BYTES = 512 << 10,
	TASKS = 16
};

/* ---------------------------------------------------------------- what it takes */
static bool
activation_ok(const Type *t)
{
	static const uint8_t hwnc[4] = {2, 3, 0, 1};

	return (t->dtype == DT_f32 || t->dtype == DT_f16 || t->dtype == DT_bf16) && t->rank == 4 &&
	    !memcmp(t->perm, hwnc, 4) && !t->axis[1].mul && !t->axis[2].mul && !t->axis[3].mul;
}

static bool
weights_ok(const Type *t)
{
	static const uint8_t hwio[4] = {2, 3, 1, 0};

	return (t->dtype == DT_f32 || t->dtype == DT_f16 || t->dtype == DT_bf16) && t->rank == 4 &&
	    !memcmp(t->perm, hwio, 4);
}

static const Type *
weights_of(const Graph *g, const Op *op)
{
	return val_type(g, op->kind == OP_conv2d_dw ? op->out[0] : op->in[1]);
}

/* Pixels of a step: their sums are a quarter of the registers. */
static int
most_cols(int vector_bytes)
{
	return vector_bytes == 64 ? 8 : 4;
}

/* The row in equal parts; of the gradient in x whole strides, so that every step has the same taps. */
static int
cols_of(const Op *op, int64_t row, int vector_bytes)
{
	int64_t most = most_cols(vector_bytes), cols = ceil_div(row, ceil_div(row, most)),
	        stride = attr_ints(op, A_stride, NULL)[1];

	if (op->kind != OP_conv2d_dx)
		return (int)cols;
	cols = ceil_div(cols, stride) * stride;
	return (int)(cols > MOST_COLS ? MOST_COLS / stride * stride : cols);
}

bool
depthwise_can(const Graph *g, const Op *op, int vector_bytes)
{
	if (op->kind != OP_conv2d && op->kind != OP_conv2d_dx && op->kind != OP_conv2d_dw)
		return false;
	const Type *w = weights_of(g, op), *x = val_type(g, op->in[0]),
	           *other = val_type(g, op->kind == OP_conv2d_dw ? op->in[1] : op->out[0]);
	int64_t groups = attr_int(op, A_groups), in = w->axis[1].n, out = w->axis[0].n / groups,
	        most = vector_bytes < 32 ? vector_bytes / 4 : vector_bytes / 8;
	const int64_t *stride = attr_ints(op, A_stride, NULL), *dil = attr_ints(op, A_dilation, NULL);
	int64_t reach = (w->axis[3].n - 1) * dil[1], per = op->kind == OP_conv2d_dx ? out : in;

	if (groups == 1 || in > most || out > most || !activation_ok(x) || !activation_ok(other) || !weights_ok(w))
		return false;
	if (op->kind == OP_conv2d_dw && (w->dtype != DT_f32 || x->axis[0].mul))
		return false;
	return w->axis[3].n * per <= MOST_WEIGHTS && stride[1] <= MOST_STRIDE && reach <= MOST_REACH;
}

DepthLanes
depthwise_lanes(const Graph *g, const Op *op, const DepthParams *p)
{
	const Type *w = weights_of(g, op);
	int64_t groups = attr_int(op, A_groups), in = w->axis[1].n, out = w->axis[0].n / groups;
	DepthLanes l = {.in = op->kind == OP_conv2d_dx ? out : in, .out = op->kind == OP_conv2d_dx ? in : out};

	l.groups = p->lanes / (in > out ? in : out);
	l.whole = l.groups * l.out;
	l.vectors = ceil_div(groups, l.groups);
	l.rest = groups % l.groups * l.out;
	return l;
}

/* ---------------------------------------------------------------- parameters */
static int64_t
round_up(int64_t x, int64_t to)
{
	return ceil_div(x, to) * to;
}

/* Images whose input rows, as many as the filter has, take STRIP_BYTES at most. */
static int
strip_of(const Graph *g, const Op *op)
{
	const Type *x = val_type(g, op->in[0]), *w = weights_of(g, op);
	int64_t reach = (w->axis[2].n - 1) * attr_ints(op, A_dilation, NULL)[0] + 1,
	        rows = reach < x->axis[2].n ? reach : x->axis[2].n;
	int64_t fit = STRIP_BYTES / (rows * x->axis[3].n * x->axis[1].n * dtype_info[x->dtype].bytes), n = x->axis[0].n;

	if (fit < 1)
		fit = 1;
	return (int)(fit < n ? ceil_div(n, ceil_div(n, fit)) : n);
}

DepthParams
depthwise_params(const Graph *g, const Op *op, const Arch *a)
{
	const Type *o = val_type(g, op->out[0]);
	int64_t groups = attr_int(op, A_groups);
	DepthParams p = {.lanes = a->vector_bytes / 4};

	if (p.lanes == 16 && weights_of(g, op)->axis[0].n <= 8 && val_type(g, op->in[0])->axis[1].n <= 8)
		p.lanes = 8;
	DepthLanes l = depthwise_lanes(g, op, &p);

	p.strip = strip_of(g, op);
	if (op->kind == OP_conv2d_dw) {
		p.cols = cols_of(op, val_type(g, op->in[1])->axis[3].n, a->vector_bytes);
		depthwise_dw_params(g, op, &l, &p);
		return p;
	}
	int64_t channels = groups * l.out, chunk = round_up(channels, l.whole),
	        tasks = ceil_div(o->axis[0].n, p.strip) * o->axis[2].n;

	p.cols = cols_of(op, o->axis[3].n, a->vector_bytes);
	p.images = p.strip < 4 ? p.strip : 4;
	while (tasks * ceil_div(channels, chunk) < TASKS && chunk > 4 * l.whole)
		chunk = round_up(ceil_div(chunk, 2), l.whole);
	int64_t block = TILE_BYTES / (4 * p.cols * p.images) / l.whole * l.whole;

	p.chunk = (int)chunk;
	p.block = (int)(block < l.whole ? l.whole : block < chunk ? block : chunk);
	return p;
}

const char *
depthwise_text(Arena *a, const Op *op, const DepthParams *p)
{
	if (op->kind == OP_conv2d_dw)
		return arena_printf(a, "depthwise{cols=%d,parts=%d,strip=%d,chunk=%d,lanes=%d}", p->cols, p->parts,
		    p->strip, p->chunk, p->lanes);
	return arena_printf(a, "depthwise{cols=%d,images=%d,block=%d,strip=%d,chunk=%d,lanes=%d}", p->cols, p->images,
	    p->block, p->strip, p->chunk, p->lanes);
}

bool
depthwise_parse(const char *text, DepthParams *p)
{
	*p = (DepthParams){0};
	if (sscanf(text, "depthwise{cols=%d,parts=%d,strip=%d,chunk=%d,lanes=%d", &p->cols, &p->parts, &p->strip,
	        &p->chunk, &p->lanes) == 5)
		return true;
	*p = (DepthParams){0};
	return sscanf(text, "depthwise{cols=%d,images=%d,block=%d,strip=%d,chunk=%d,lanes=%d", &p->cols, &p->images,
	           &p->block, &p->strip, &p->chunk, &p->lanes) == 6;
}

/* Text may be anybody's. */
static bool
fits(const Graph *g, const Op *op, const DepthParams *p, const Arch *a, Arena *tmp, const char *text)
{
	DepthParams d = depthwise_params(g, op, a);
	int64_t whole = depthwise_lanes(g, op, &d).whole, stride = attr_ints(op, A_stride, NULL)[1];
	bool dw = op->kind == OP_conv2d_dw;

	if (strcmp(depthwise_text(tmp, op, p), text) || p->lanes != d.lanes || p->cols < 1 || p->cols > MOST_COLS ||
	    p->strip < 1 || p->chunk < whole || p->chunk % whole)
		return false;
	if (dw)
		return p->parts > 0 && p->parts <= val_type(g, op->in[1])->axis[2].n;
	return p->block >= whole && p->block % whole == 0 && p->images > 0 &&
	    (op->kind != OP_conv2d_dx || p->cols % stride == 0);
}

/* Weights by lanes, [r][s][j][channel], where they do not lie so. */
static int64_t
packed_bytes(const Graph *g, const Op *op)
{
	const Type *w = weights_of(g, op);

	if (op->kind != OP_conv2d_dx || (w->axis[1].n == 1 && w->axis[0].n == attr_int(op, A_groups)))
		return 0;
	return w->axis[0].n * w->axis[1].n * w->axis[2].n * w->axis[3].n * 4;
}

/* Tasks that keep a state of the epilogue's reductions. */
static int64_t
pieces_of(const Graph *g, const Op *op, const DepthParams *p)
{
	const Type *o = val_type(g, op->out[0]);

	return ceil_div(o->axis[0].n, p->strip) * o->axis[2].n;
}

int64_t
depthwise_group_workspace(const Graph *g, int group, const Op *op, const DepthParams *p)
{
	int64_t n = op->kind == OP_conv2d_dw ? depthwise_dw_workspace(g, op, p) : packed_bytes(g, op), states = 0;

	for (uint32_t last, i = graph_group_ops(g, group, &last); i < last; i++) {
		const Op *x = &g->op.at[i];

		if (!x->dead && x->group == group && op_info[x->kind].red >= 0)
			states += epilogue_workspace(g, x, pieces_of(g, op, p));
	}
	return states ? align64(n) + states : n;
}

/* Numbers from a row of the tile to the next: vectors of which not all lanes are in use write behind their block. */
static int64_t
tile_line(const DepthLanes *l, const DepthParams *p)
{
	return round_up(p->block, p->lanes) + (l->whole < p->lanes ? p->lanes : 0);
}

int64_t
depthwise_scratch(const Graph *g, const Op *op, const DepthParams *p)
{
	DepthLanes l = depthwise_lanes(g, op, p);

	return op->kind == OP_conv2d_dw ? 0 : p->cols * p->images * tile_line(&l, p) * 4;
}

void
depthwise_prologue(const Graph *g, const Op *op, int k, const Arch *a, Prologue *r)
{
	const Type *x = val_type(g, op->in[0]), *w = weights_of(g, op),
	           *gr = val_type(g, op->kind == OP_conv2d_dw ? op->in[1] : op->out[0]);
	const int64_t *stride = attr_ints(op, A_stride, NULL);
	double cols = cols_of(op, gr->axis[3].n, a->vector_bytes),
	       span = (double)((w->axis[3].n - 1) * attr_ints(op, A_dilation, NULL)[1]);
	double machine = 150.0 / 45; /* operations in the time of a byte: Target.map_rate, memory_rate */
	double bytes =
	    (double)(type_elements(x) * dtype_info[x->dtype].bytes + type_elements(gr) * dtype_info[gr->dtype].bytes);

	if (op->kind != OP_conv2d_dw && k == 1) {
		r->why = "the kernel reads the weights again for every pixel";
		return;
	}
	r->times = (double)w->axis[2].n *
	    (op->kind == OP_conv2d_dx ? (cols + span) / cols
	            : k == 1          ? 1
	                              : (cols * (double)stride[1] + span) / (cols * (double)(stride[0] * stride[1])));
	r->spare = bytes * machine - op_flops(g, op) / 2;
	if (r->spare < 0)
		r->spare = 0;
}

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
	    i_mul(e, offset_of(e, t, ix).s, k64(e, dtype_info[t->dtype].bytes)));
}

Cell
depthwise_load(Emit *e, const Op *op, int k, V at, V n, V c, V h, V w, int64_t pixels)
{
	const Type *t = val_type(e->g, op->in[k]);

	V pixel = i_mul(e, extent(e, t->axis[0]), k64(e, t->axis[1].n));

	if (at)
		return load_at(e, at, (DType)t->dtype, (Off){.s = i_mul(e, pixel, k64(e, pixels)), .c = 1});
	const Ix ix[4] = {ix_s(n), {.s = c, .c = 1}, ix_s(h), ix_s(i_add(e, w, k64(e, pixels)))};

	return lane_eval(e, op->in[k], ix);
}

/* ---------------------------------------------------------------- which pixels meet which taps */
static int
meets_of(Arena *a, const Op *op, const DepthSteps *d, int64_t step, int cols, DepthMeet **out)
{
	bool dx = op->kind == OP_conv2d_dx;
	int64_t stride = attr_ints(op, A_stride, NULL)[1], pad = attr_ints(op, A_pad, NULL)[1],
	        dil = attr_ints(op, A_dilation, NULL)[1], S = d->w->axis[3].n;
	DepthMeet *m = arena_array(a, DepthMeet, cols * S);
	int n = 0;

	for (int i = 0; i < cols && step * cols + i < d->o->axis[3].n; i++) {
		int64_t filter, move;
		Taps t = taps_of(dx, step * cols + i, d->x->axis[3].n, S, stride, pad, dil, &filter, &move);

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

void
depthwise_steps(Arena *a, const Op *op, int cols, DepthSteps *d)
{
	bool dx = op->kind == OP_conv2d_dx;
	const int64_t *stride = attr_ints(op, A_stride, NULL), *pad = attr_ints(op, A_pad, NULL),
	              *dil = attr_ints(op, A_dilation, NULL), OH = d->o->axis[2].n, OW = d->o->axis[3].n;

	d->n = ceil_div(OW, cols);
	d->first = dx ? cols / stride[1] : cols * stride[1];
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
	d->rows = arena_array(a, int64_t, OH * 3);
	for (int64_t i = 0; i < OH; i++) {
		Taps t =
		    taps_of(dx, i, d->x->axis[2].n, d->w->axis[2].n, stride[0], pad[0], dil[0], &d->rstep, &d->rmove);

		memcpy(&d->rows[i * 3], (int64_t[]){t.at, t.first, t.count}, 24);
	}
}

V
depthwise_run_open(Emit *e, const DepthSteps *d, const DepthRun *run, V step)
{
	return d->nrun > 1
	    ? loop_open(e, i_max(e, step, k64(e, run->lo)), i_min(e, i_add(e, step, k64(e, 1)), k64(e, run->hi)), 1)
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
	return table_at(e, table, i_add(e, i_mul(e, row, k64(e, 3)), k64(e, column)));
}

typedef struct Depth {
	const Op *op;
	const DepthParams *p;
	DepthLanes l;
	DepthSteps s;
	int weights; /* buffer of weights by lanes */
	bool tile;
	int64_t line;
	V to;
	V row, h, r, nr;              /* output row, first input row, first filter row, how many */
	V step, cols, n0, n1, v0, v1; /* of the tile: its step, pixels of a row, images, vectors */
} Depth;

/* ---------------------------------------------------------------- a vector of each pixel of a step */
V
depthwise_fma(Emit *e, V x, V y, V sum)
{
	T vt = vec_of(e, e->l->f32);

	return intrinsic(e, here(e), "llvm.fmuladd", &vt, 1, (V[]){x, y, sum}, 3);
}

/* The products of filter row r. */
static void
row_products(Emit *e, const Depth *d, const DepthRun *run, V n, V v, V r, V in_mask, V *acc)
{
	int64_t S = d->s.w->axis[3].n, channels = val_type(e->g, d->op->out[0])->axis[1].n;
	V h = i_add(e, d->h, i_mul(e, r, k64(e, d->s.rmove))), filter = i_add(e, d->r, i_mul(e, r, k64(e, d->s.rstep))),
	  w = i_mul(e, d->step, k64(e, d->s.first));
	V c = i_mul(e, v, k64(e, d->l.groups * d->l.in)),
	  at = prologue_made(e->g, d->op, 0) ? NULL : depthwise_at(e, d->op->in[0], n, c, h, w), mask = e->mask;
	DType wt = d->weights == group_buffer(e->gc, d->op->in[1].id) ? (DType)d->s.w->dtype : DT_f32;
	V weights = ptr_at(e, buffer(e, d->weights),
	    i_mul(e, i_add(e, i_mul(e, filter, k64(e, S * d->l.in * channels)), i_mul(e, v, k64(e, d->l.whole))),
	        k64(e, dtype_info[wt].bytes)));

	for (int64_t j = 0; j < d->l.in; j++) {
		V k[MOST_WEIGHTS] = {0}, x = NULL;

		for (int i = 0; i < run->n; i++) {
			const DepthMeet *m = &run->meet[i];

			if (!i || m->at != m[-1].at) {
				e->mask = in_mask;
				Cell from = depthwise_load(e, d->op, 0, at, n, c, h, w, m->at);

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

/* Vector v of image n at the pixels of a step; lanes: those in use. */
static void
step_vector(Emit *e, const Depth *d, const DepthRun *run, V n, V v, int64_t lanes)
{
	T vt = vec_of(e, e->l->f32);
	V slot[MOST_COLS], acc[MOST_COLS];
	int cols = d->p->cols;
	const Ix ix[4] = {ix_s(n), {.s = i_mul(e, v, k64(e, d->l.whole)), .c = 1}, ix_s(d->row),
	    ix_s(i_mul(e, d->step, k64(e, cols)))};

	e->mask = depthwise_mask(e, lanes);
	for (int i = 0; i < cols; i++) {
		slot[i] = slot_new(e, vt);
		slot_set(e, slot[i], LLVMConstNull(vt));
	}
	V r = loop_open(e, k64(e, 0), d->nr, 1);

	for (int i = 0; i < cols; i++)
		acc[i] = slot_get(e, slot[i], vt);
	row_products(e, d, run, n, v, r, depthwise_mask(e, lanes / d->l.out * d->l.in), acc);
	for (int i = 0; i < cols; i++)
		slot_set(e, slot[i], acc[i]);
	loop_close(e);
	for (int i = 0; i < run->cols; i++) {
		Cell c = cell_of(slot_get(e, slot[i], vt), true, DT_f32);

		if (d->tile) {
			V row = i_add(e, i_mul(e, i_sub(e, n, d->n0), k64(e, run->cols)), k64(e, i)),
			  at = i_add(
			      e, i_mul(e, row, k64(e, d->line)), i_mul(e, i_sub(e, v, d->v0), k64(e, d->l.whole)));

			e->mask = NULL;
			store_at(e, d->to, DT_f32, (Off){.s = at, .c = 1}, c);
			continue;
		}
		Off o = offset_of(e, d->s.o, ix);

		o.s =
		    i_add(e, o.s, i_mul(e, i_mul(e, extent(e, d->s.o->axis[0]), k64(e, d->s.o->axis[1].n)), k64(e, i)));
		e->stream = store_streams(e->g, d->op->out[0]) && !e->mask;
		store_at(e, d->to, DT_f32, o, c);
		e->stream = false;
	}
	e->mask = NULL;
}

static void
run_tile(Emit *e, Depth *d, const DepthRun *run)
{
	V step = d->step, n, v;
	int64_t whole = d->l.rest ? d->l.vectors - 1 : d->l.vectors;

	d->step = depthwise_run_open(e, &d->s, run, step);
	n = loop_open(e, d->n0, d->n1, 1);
	e->lanes = true;
	if (whole) {
		v = loop_open(e, d->v0, i_min(e, d->v1, k64(e, whole)), 1);
		step_vector(e, d, run, n, v, d->l.whole);
		loop_close(e);
	}
	if (d->l.rest) {
		v = loop_open(e, i_max(e, d->v0, k64(e, whole)), d->v1, 1);
		step_vector(e, d, run, n, v, d->l.rest);
		loop_close(e);
	}
	e->lanes = false;
	loop_close(e);
	depthwise_run_close(e, &d->s);
	d->step = step;
}

/* ---------------------------------------------------------------- the kernel */
static void
depth_index(Emit *e, void *cx, V row, Ix *ix)
{
	const Depth *d = cx;

	ix[0] = ix_s(i_add(e, d->n0, i_div(e, row, d->cols)));
	ix[2] = ix_s(d->row);
	ix[3] = ix_s(i_add(e, i_mul(e, d->step, k64(e, d->p->cols)), i_rem(e, row, d->cols)));
}

typedef struct DepthPieces {
	const Type *o;
	const DepthParams *p;
} DepthPieces;

static V
images_from(Emit *e, const Type *o, V strip, int64_t images, V *lo)
{
	V n = extent(e, o->axis[0]);

	*lo = i_min(e, i_mul(e, strip, k64(e, images)), n);
	return i_min(e, i_add(e, *lo, k64(e, images)), n);
}

/* Rows of pixels of a strip of images. */
static V
depth_pieces(Emit *e, void *cx, V piece)
{
	const DepthPieces *p = cx;
	V lo, hi = images_from(e, p->o, i_div(e, piece, k64(e, p->o->axis[2].n)), p->p->strip, &lo);

	return i_mul(e, i_sub(e, hi, lo), k64(e, p->o->axis[3].n));
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

static void
one_task(Emit *e, Depth *d, Epilogue *epi, V t, V trow)
{
	const DepthParams *p = d->p;
	int64_t chunk = p->chunk / d->l.whole, block = p->block / d->l.whole, nchunk = ceil_div(d->l.vectors, chunk);
	V rest = i_div(e, t, k64(e, d->s.o->axis[2].n)), strip = i_div(e, rest, k64(e, nchunk)),
	  c0 = i_mul(e, i_rem(e, rest, k64(e, nchunk)), k64(e, chunk)), lo;

	d->row = i_rem(e, t, k64(e, d->s.o->axis[2].n));
	V hi = images_from(e, d->s.o, strip, p->strip, &lo),
	  c1 = i_min(e, i_add(e, c0, k64(e, chunk)), k64(e, d->l.vectors));

	d->h = depthwise_row(e, trow, d->row, 0), d->r = depthwise_row(e, trow, d->row, 1),
	d->nr = depthwise_row(e, trow, d->row, 2);
	d->step = loop_open(e, k64(e, 0), k64(e, d->s.n), 1);
	V before = i_mul(e, d->step, k64(e, p->cols));

	d->cols = d->s.o->axis[3].n % p->cols ? i_min(e, k64(e, p->cols), i_sub(e, k64(e, d->s.o->axis[3].n), before))
	                                      : k64(e, p->cols);
	d->n0 = loop_open(e, lo, hi, p->images);
	d->n1 = i_min(e, i_add(e, d->n0, k64(e, p->images)), hi);
	d->v0 = loop_open(e, c0, c1, block);
	d->v1 = i_min(e, i_add(e, d->v0, k64(e, block)), c1);
	V column = i_mul(e, d->v0, k64(e, d->l.whole)),
	  end = i_min(e, i_mul(e, d->v1, k64(e, d->l.whole)), k64(e, d->s.o->axis[1].n));
	EpilogueTile et = {.rows = i_mul(e, i_sub(e, d->n1, d->n0), d->cols),
	    .column = column,
	    .columns = i_sub(e, end, column),
	    .piece = i_add(e, i_mul(e, strip, k64(e, d->s.o->axis[2].n)), d->row),
	    .done = i_add(e, i_mul(e, before, i_sub(e, hi, lo)), i_mul(e, i_sub(e, d->n0, lo), d->cols)),
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
	for (int i = 0; i < 3; i++)
		loop_close(e);
}

static void
main_kernel(GroupCx *gc, const Op *op, const DepthParams *p, int weights, Epilogue *epi, GraphKernels *gk)
{
	const Graph *g = gc->g;
	Depth d = {.op = op,
	    .p = p,
	    .l = depthwise_lanes(g, op, p),
	    .s = {.x = val_type(g, op->in[0]), .w = val_type(g, op->in[1]), .o = val_type(g, op->out[0])},
	    .weights = weights};
	Emit e = {0};
	bool fresh;
	int fn = kernel_begin(gc, &e, "main", &fresh);
	int64_t tasks = pieces_of(g, op, p) * ceil_div(d.l.vectors * d.l.whole, p->chunk),
	        grain = task_grain(tasks, op_flops(g, op) / 2 / (double)tasks);

	if (fresh) {
		emit_lanes(&e, p->lanes);
		depthwise_steps(e.arena, op, p->cols, &d.s);
		d.tile = epi->raw < 0;
		d.line = tile_line(&d.l, p);
		d.to = d.tile ? scratch_ptr(&e, 0) : buffer(&e, epi->raw);
		V trow = table(&e, d.s.rows, d.s.o->axis[2].n * 3),
		  t = loop_open(&e, i_mul(&e, e.arg_t0, k64(&e, grain)),
		      i_min(&e, i_mul(&e, e.arg_t1, k64(&e, grain)), k64(&e, tasks)), 1);

		one_task(&e, &d, epi, t, trow);
		loop_close(&e);
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
		V row = loop_open(&e, e.arg_t0, e.arg_t1, 1), tap = i_div(&e, row, k64(&e, l.in)),
		  j = i_rem(&e, row, k64(&e, l.in)), c = loop_open(&e, k64(&e, 0), k64(&e, channels), p->lanes);
		const Ix at = {.s = c, .c = 1};

		e.lanes = true;
		e.mask = channels % p->lanes ? mask_below(&e, i_sub(&e, k64(&e, channels), c)) : NULL;
		const Ix ix[4] = {ix_add(&e, ix_mul_k(&e, ix_div(&e, at, k64(&e, l.out)), l.in), ix_s(j)),
		    ix_rem(&e, at, k64(&e, l.out)), ix_s(i_div(&e, tap, k64(&e, S))), ix_s(i_rem(&e, tap, k64(&e, S)))};
		Cell k = cell_cast(&e, lane_eval(&e, op->in[1], ix), DT_f32);

		store_at(&e, buffer(&e, dst), DT_f32,
		    (Off){.s = i_add(&e, i_mul(&e, row, k64(&e, channels)), c), .c = 1}, k);
		e.mask = NULL;
		e.lanes = false;
		loop_close(&e);
		loop_close(&e);
	}
	kernel_end(gc, &e, gk, fn, (Rows){.rows = R * S * l.in, .mul = 0, .div = 1, .grain = 1}, fresh, false);
}

void
depthwise_emit(GroupCx *gc, const Op *op, GraphKernels *gk)
{
	const Group *group = &gc->g->group.at[gc->group];
	const Arch *a = gc->c->l.arch;
	DepthParams p;
	Epilogue epi;

	if (!depthwise_can(gc->g, op, a->vector_bytes) || !depthwise_parse(group->kernel, &p) ||
	    !fits(gc->g, op, &p, a, gc->tmp, group->kernel) ||
	    depthwise_group_workspace(gc->g, gc->group, op, &p) > group->workspace) {
		gc->c->error =
		    arena_printf(gc->c->arena, "group %s: %s computes no %s of this shape in %lld bytes of workspace",
		        group->name, group->kernel, op_info[op->kind].name, (long long)group->workspace);
		return;
	}
	scratch_check(gc, depthwise_scratch(gc->g, op, &p));
	if (op->kind == OP_conv2d_dw) {
		depthwise_dw_emit(gc, op, &p, group_buffer(gc, op->out[0].id), gk);
		return;
	}
	int64_t packed = packed_bytes(gc->g, op);
	int weights = packed ? workspace_at(gc) : group_buffer(gc, op->in[1].id);

	epilogue_find(gc, op, pieces_of(gc->g, op, &p), packed, &epi);
	store_late(gc->g, &epi);
	if (packed)
		pack_kernel(gc, op, &p, weights, gk);
	main_kernel(gc, op, &p, weights, &epi, gk);
}
