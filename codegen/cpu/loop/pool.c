/* pool.c: the gradient of max pooling, window by window.
 *
 * In: max_pool2d.dx in HWNC layout, windows of at most 25 pixels, alone in its group or with casts of its operands and
 * its result (pass precision), whose values then lie in memory in 16 bits.   Out: a kernel that finds each window's
 * first maximum once and hands its gradient over. Lanes run over images and channels, which lie side by side. Windows
 * that cover every pixel just once write what they own, and a task is a row of them; others add to zeros, in order, and
 * a task is a piece of the lanes with all its windows, so that sums have one order. A result of 16 bits is added up in
 * f32: the few rows of pixels that windows of one row reach lie in the thread's scratch memory, and are rounded once
 * no window is left that reaches them. Refuses (pool_dx_special) the rest: eval_window.c asks for each pixel which
 * windows it is the maximum of. */
#include "../contract/gemm.h"
#include <string.h>

/* a task's lanes are four lines of a cache: few enough that tasks are many and of nearly one size */
enum { MOST_TAPS = 25, LANES_CHUNK = 64 };

static bool
image_ok(const Type *t)
{
	static const uint8_t hwnc[4] = {2, 3, 0, 1};

	return (t->dtype == DT_f32 || t->dtype == DT_bf16 || t->dtype == DT_f16) && t->rank == 4 &&
	       !memcmp(t->perm, hwnc, 4) && !t->axis[1].mul && !t->axis[2].mul && !t->axis[3].mul;
}

/* What lies in memory: the operands and the result of the op, or what casts in its group make them from and of them. */
typedef struct Stored { Val x, g, dx; } Stored;

/* Does an op of another group read v? */
static bool
read_elsewhere(const Graph *g, Val v, int group)
{
	for (uint32_t i = 0; i < g->op.n; i++)
		for (int k = 0; !g->op.at[i].dead && g->op.at[i].group != group && k < g->op.at[i].nin; k++)
			if (g->op.at[i].in[k].id == v.id)
				return true;
	return false;
}

/* False: its group has other ops, casts between other types, or one of the values between is read elsewhere. */
static bool
stored_of(const Graph *g, const Op *op, Stored *s)
{
	bool rounded = false;
	uint32_t last, i;

	*s = (Stored){op->in[0], op->in[1], op->out[0]};
	if (op->group < 0)
		return true;
	for (i = graph_group_ops(g, op->group, &last); i < last; i++) {
		const Op *o = &g->op.at[i];

		if (o->dead || o->group != op->group || o == op)
			continue;
		bool of_x = o->kind == OP_cast && o->out[0].id == op->in[0].id,
		     of_g = o->kind == OP_cast && o->out[0].id == op->in[1].id,
		     of_dx = o->kind == OP_cast && o->in[0].id == op->out[0].id && !rounded;
		Val between = of_dx ? op->out[0] : o->out[0];

		if ((!of_x && !of_g && !of_dx) || val_type(g, between)->dtype != DT_f32
		    || read_elsewhere(g, between, op->group))
			return false;
		s->x = of_x ? o->in[0] : s->x;
		s->g = of_g ? o->in[0] : s->g;
		s->dx = of_dx ? o->out[0] : s->dx;
		rounded |= of_dx;
	}
	return true;
}

bool
pool_dx_special(const Graph *g, const Op *op)
{
	const int64_t *k = op->kind == OP_max_pool2d_dx ? attr_ints(op, A_k, NULL) : NULL;
	Stored s;

	return k && k[0] <= MOST_TAPS && k[1] <= MOST_TAPS && k[0] * k[1] <= MOST_TAPS &&
	       stored_of(g, op, &s) && image_ok(val_type(g, s.x)) && image_ok(val_type(g, s.g)) &&
	       image_ok(val_type(g, s.dx));
}

bool
pool_dx_cast(const Graph *g, const Op *op)
{
	uint32_t last, i = 0;

	if (op->kind != OP_cast || op->group < 0)
		return false;
	for (i = graph_group_ops(g, op->group, &last); i < last; i++)
		if (!g->op.at[i].dead && g->op.at[i].group == op->group && pool_dx_special(g, &g->op.at[i]))
			return true;
	return false;
}

typedef struct Windows {
	Window at;
	int64_t in[2], out[2];
	bool once;               /* every pixel is in one window */
	DType type[3];           /* of what lies in memory: image, gradient, result */
	Mem x, g, dx;            /* [row][column][image and channel], of which there are `plane` */
	int64_t ring;            /* sums are f32 in scratch memory, so many rows of pixels; 0: they are the result */
	Mem sums;                /* [row % ring][column][lane of this task] */
	V oh, ow, plane, lo;     /* lo: the task's first lane */
} Windows;

/* Rows of pixels that hold sums at once: those that a row of windows reaches, and those it passes over. */
static int64_t
ring_rows(const Window *w)
{
	return w->k[0] + w->stride[0];
}

static int64_t
ring_bytes(const Graph *g, const Op *op)
{
	Window w = window_of(g, op);

	return F32(ring_rows(&w) * val_type(g, op->in[0])->axis[3].n * LANES_CHUNK);
}

static bool
disjoint(const Graph *g, const Op *op)
{
	const Type *x = val_type(g, op->in[0]), *dy = val_type(g, op->in[1]);
	Window w = window_of(g, op);
	bool once = true;

	for (int d = 0; d < 2; d++)
		once &= w.k[d] == w.stride[d] && !w.pad[d] && x->axis[2 + d].n == dy->axis[2 + d].n * w.k[d];
	return once;
}

/* Scratch memory that a thread needs, bytes. */
static int64_t
scratch_of(const Graph *g, const Op *op)
{
	Stored s;

	stored_of(g, op, &s);
	return val_type(g, s.dx)->dtype == DT_f32 || disjoint(g, op) ? 0 : ring_bytes(g, op);
}

void
pool_dx_select(Graph *g, const Op *op)
{
	scratch_plan(g, scratch_of(g, op));
}

/* W neighbours from p on, as f32. */
static V
lanes_load(Emit *e, V p, DType dt)
{
	return dt == DT_f32 ? vec_load(e, p, e->mask)
	                    : cell_vec(e, cell_cast(e, load_at(e, p, dt, (Off){.s = k64(e, 0), .c = 1}), DT_f32));
}

static void
lanes_store(Emit *e, V p, DType dt, V v, V mask)
{
	V was = e->mask;

	e->mask = mask;
	if (dt == DT_f32)
		vec_store(e, p, v, mask);
	else
		store_at(e, p, dt, (Off){.s = k64(e, 0), .c = 1}, cell_cast(e, cell_of(v, true, DT_f32), dt));
	e->mask = was;
}

/* A pixel's sums: in scratch memory, or where the result lies. */
static V
sum_at(Emit *e, const Windows *w, V row, V column, V lane)
{
	if (!w->ring)
		return mem_at(e, &w->dx, row, column, lane);
	return mem_at(e, &w->sums, i_rem_k(e, row, w->ring), column, LLVMBuildSub(here(e), lane, w->lo, ""));
}

/* Pixel (r, s) of the window, its row and column of the image, and whether it is inside (NULL: always is). */
static V
pixel(Emit *e, const Windows *w, int64_t r, int64_t s, V at[2])
{
	V ok = NULL;

	for (int d = 0; d < 2; d++) {
		int64_t first = (d ? s : r) - w->at.pad[d];
		V i = i_add_k(e, i_mul_k(e, d ? w->ow : w->oh, w->at.stride[d]), first);

		at[d] = i;
		if (first >= 0 && first + (w->out[d] - 1) * w->at.stride[d] < w->in[d])
			continue;
		at[d] = i_min_k(e, i_max(e, i, k64(e, 0)), w->in[d] - 1);
		V in = LLVMBuildICmp(here(e), LLVMIntEQ, i, at[d], "");

		ok = ok ? LLVMBuildAnd(here(e), ok, in, "") : in;
	}
	return ok;
}

/* Is the second of two taps' values, or of two groups', the window's maximum: larger, or the first NaN? One outside has
 * number -1: the first inside wins over it, even if it is -inf. all: there is none outside. */
static V
second_wins(Emit *e, V best[2], V first[2], bool all)
{
	V none = LLVMConstNull(LLVMTypeOf(first[0]));
	V wins = LLVMBuildAnd(here(e), LLVMBuildFCmp(here(e), LLVMRealUGT, best[1], best[0], ""),
	                      LLVMBuildFCmp(here(e), LLVMRealORD, best[0], best[0], ""), "");

	if (all)
		return wins;
	wins = LLVMBuildOr(here(e), wins, LLVMBuildICmp(here(e), LLVMIntSLT, first[0], none, ""), "");
	return LLVMBuildAnd(here(e), wins, LLVMBuildICmp(here(e), LLVMIntSGE, first[1], none, ""), "");
}

/* Asks for the pixels that the windows of the next row reach first, below this one, and for that window's gradient: a
 * task has a part of each pixel's lanes, so nobody else would. */
static void
fetch_below(Emit *e, const Windows *w, V lane)
{
	Mem next = mem_fix(e, &w->g, i_min_k(e, i_add_k(e, w->oh, 1), w->out[0] - 1), w->ow);

	prefetch(e, mem_at(e, &next, lane), 2);
	for (int64_t r = 0; r < w->at.stride[0]; r++)
		for (int64_t s = 0; s < w->at.stride[1]; s++) {
			V row = i_add_k(e, i_mul_k(e, w->oh, w->at.stride[0]), w->at.k[0] - w->at.pad[0] + r),
			  column = i_add_k(e, i_mul_k(e, w->ow, w->at.stride[1]), s);
			Mem pixel = mem_fix(e, &w->x, i_min_k(e, i_max(e, row, k64(e, 0)), w->in[0] - 1),
			                    i_min_k(e, column, w->in[1] - 1));

			prefetch(e, mem_at(e, &pixel, lane), 2);
		}
}

static void
window_lane(Emit *e, void *cx, Ix lane, int u)
{
	Windows *w = cx;
	T vt = vec_of(e, e->l->f32), it = vec_of(e, e->l->i32);
	V to[MOST_TAPS], mask[MOST_TAPS], best[MOST_TAPS], first[MOST_TAPS];
	bool all = true; /* every window lies inside */
	Mem of_window = mem_fix(e, &w->g, w->oh, w->ow);
	V g = lanes_load(e, mem_at(e, &of_window, lane.s), w->type[1]);
	int taps = (int)(w->at.k[0] * w->at.k[1]);

	(void)u;
	if (!w->once)
		fetch_below(e, w, lane.s);
	for (int t = 0; t < taps; t++) {
		V place[2], inside = pixel(e, w, t / w->at.k[1], t % w->at.k[1], place);
		Mem there = mem_fix(e, &w->x, place[0], place[1]);

		to[t] = sum_at(e, w, place[0], place[1], lane.s);
		mask[t] = inside ? mask_and(e, splat(e, inside), e->mask) : e->mask;
		best[t] = lanes_load(e, mem_at(e, &there, lane.s), w->type[0]);
		first[t] = splat(e, LLVMConstInt(e->l->i32, (unsigned)t, 0));
		if (!inside)
			continue;
		all = false;
		best[t] = LLVMBuildSelect(here(e), splat(e, inside), best[t],
		                          splat(e, LLVMConstReal(e->l->f32, -__builtin_inf())), "");
		first[t] = LLVMBuildSelect(here(e), splat(e, inside), first[t], LLVMConstAllOnes(it), "");
	}
	/* in pairs: no comparison then waits for more than a few */
	for (int n = taps; n > 1; n = (n + 1) / 2)
		for (int k = 0; k < n; k += 2) {
			V wins = k + 1 < n ? second_wins(e, best + k, first + k, all) : NULL;

			best[k / 2] = wins ? LLVMBuildSelect(here(e), wins, best[k + 1], best[k], "") : best[k];
			first[k / 2] = wins ? LLVMBuildSelect(here(e), wins, first[k + 1], first[k], "") : first[k];
		}
	for (int t = 0; t < taps; t++) {
		V mine = LLVMBuildICmp(here(e), LLVMIntEQ, first[0], splat(e, LLVMConstInt(e->l->i32, (unsigned)t, 0)),
		                       "");
		V share = LLVMBuildSelect(here(e), mine, g, LLVMConstNull(vt), "");

		if (w->once)
			lanes_store(e, to[t], w->type[2], share, mask[t]);
		else
			vec_store(e, to[t], LLVMBuildFAdd(here(e), vec_load(e, to[t], mask[t]), share, ""), mask[t]);
	}
}

/* w->oh, w->ow: a pixel's row and column. */
static void
zero_lane(Emit *e, void *cx, Ix lane, int u)
{
	const Windows *w = cx;

	(void)u;
	vec_store(e, sum_at(e, w, w->oh, w->ow, lane.s), LLVMConstNull(vec_of(e, e->l->f32)), e->mask);
}

static void
round_lane(Emit *e, void *cx, Ix lane, int u)
{
	const Windows *w = cx;

	(void)u;
	lanes_store(e, mem_at(e, &w->dx, w->oh, w->ow, lane.s), w->type[2],
	            vec_load(e, sum_at(e, w, w->oh, w->ow, lane.s), e->mask), e->mask);
}

/* Of the pixels of rows [first, end). */
static void
each_pixel(Emit *e, Windows *w, V first, V end, V hi, LaneBody *body)
{
	LOOP(e, row, first, end, 1) {
		TIMES(e, column, w->in[1]) {
			w->oh = row;
			w->ow = column;
			lane_loop(e, w->lo, hi, 1, body, w);
		}
	}
}

/* The rows of pixels from those that `reach` of the windows of row oh - 1 stands at to those of row oh; from the first
 * and to the last of all at the image's edges. */
static void
rows_between(Emit *e, const Windows *w, V oh, int64_t reach, V end[2])
{
	for (int i = 0; i < 2; i++) {
		V row = i_add_k(e, i_mul_k(e, i_add_k(e, oh, i - 1), w->at.stride[0]), reach - w->at.pad[0]);

		end[i] = i_min_k(e, i_max(e, row, k64(e, 0)), w->in[0]);
	}
	V first = LLVMBuildICmp(here(e), LLVMIntEQ, oh, k64(e, 0), ""),
	  last = LLVMBuildICmp(here(e), LLVMIntEQ, oh, k64(e, w->out[0] - 1), "");

	end[0] = LLVMBuildSelect(here(e), first, k64(e, 0), end[0], "");
	end[1] = LLVMBuildSelect(here(e), last, k64(e, w->in[0]), end[1], "");
}

static Mem
plane_region(Emit *e, V base, DType dt, int64_t columns, V plane)
{
	Mem m = mem_axes(e, base, OF(columns), OF(1), BY(dtype_info[dt].bytes));

	m.axis[1].step = plane;
	return m;
}

/* The windows of row oh, of lanes [w->lo, hi). */
static void
window_row(Emit *e, Windows *w, V oh, V hi)
{
	TIMES(e, ow, w->out[1]) {
		w->oh = oh;
		w->ow = ow;
		lane_loop(e, w->lo, hi, 1, window_lane, w);
	}
}

/* The same where windows overlap, or leave pixels out. Zeros go to the rows of pixels that these windows are the first
 * to reach, or that lie before the next ones (the last row's, all that are left): they are added to while a cache holds
 * them. */
static void
overlapping_row(Emit *e, Windows *w, V oh, V hi)
{
	int64_t k = w->at.k[0], stride = w->at.stride[0];
	V end[2];

	rows_between(e, w, oh, k > stride ? k : stride, end);
	each_pixel(e, w, end[0], end[1], hi, zero_lane);
	window_row(e, w, oh, hi);
	if (!w->ring)
		return;
	rows_between(e, w, oh, stride, end);
	each_pixel(e, w, end[0], end[1], hi, round_lane);
}

void
pool_dx_emit(GroupCx *gc, const Op *op, GraphKernels *gk)
{
	const Type *x = val_type(gc->g, op->in[0]), *g = val_type(gc->g, op->in[1]);
	Stored s;

	stored_of(gc->g, op, &s);
	int xbuf = group_buffer(gc, s.x.id), gbuf = group_buffer(gc, s.g.id), dbuf = group_buffer(gc, s.dx.id);
	int64_t scratch = scratch_of(gc->g, op);
	Windows w = {.at = window_of(gc->g, op), .once = disjoint(gc->g, op)};
	int64_t full = x->axis[0].n * x->axis[1].n, chunks = ceil_div(full, LANES_CHUNK);
	Emit e = {0};
	bool fresh;
	int fn = kernel_begin(gc, &e, "windows", &fresh);

	for (int d = 0; d < 2; d++)
		w.in[d] = x->axis[2 + d].n, w.out[d] = g->axis[2 + d].n;
	for (int k = 0; k < 3; k++)
		w.type[k] = (DType)val_type(gc->g, (Val[]){s.x, s.g, s.dx}[k])->dtype;
	w.ring = scratch ? ring_rows(&w.at) : 0;
	scratch_check(gc, scratch);
	int64_t tasks = w.once ? w.out[0] * chunks : chunks,
	        each = full < LANES_CHUNK ? full : LANES_CHUNK,
	        work = w.out[1] * w.at.k[0] * w.at.k[1] * each * (w.once ? 1 : w.out[0]);
	int64_t grain = task_grain(machine_of(gc->g), tasks, (double)work);

	if (fresh) {
		V xs = buffer(&e, xbuf), gs = buffer(&e, gbuf), dxs = buffer(&e, dbuf);

		w.plane = i_mul_k(&e, extent(&e, x->axis[0]), x->axis[1].n);
		w.x = plane_region(&e, xs, w.type[0], w.in[1], w.plane);
		w.g = plane_region(&e, gs, w.type[1], w.out[1], w.plane);
		w.dx = plane_region(&e, dxs, w.type[2], w.in[1], w.plane);
		if (w.ring)
			w.sums = plane_region(&e, scratch_ptr(&e, 0), DT_f32, w.in[1], k64(&e, LANES_CHUNK));
		GRAINS(&e, t, grain, tasks) {
			V chunk = i_rem_k(&e, t, chunks);
			V hi;

			w.lo = i_min(&e, i_mul_k(&e, chunk, LANES_CHUNK), w.plane);
			hi = i_min(&e, i_add_k(&e, w.lo, LANES_CHUNK), w.plane);
			if (w.once) {
				window_row(&e, &w, i_div_k(&e, t, chunks), hi);
				continue;
			}
			TIMES(&e, oh, w.out[0])
				overlapping_row(&e, &w, oh, hi);
		}
	}
	kernel_end(gc, &e, gk, fn, (Rows){.rows = tasks, .mul = 0, .div = 1, .grain = grain}, fresh, false);
}
