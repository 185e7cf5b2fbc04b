/* pool.c: the gradient of max pooling, window by window.
 *
 * In: max_pool2d.dx of f32 in HWNC layout, windows of at most 25 pixels.   Out: a kernel that finds each window's first
 * maximum once and hands its gradient over. Lanes run over images and channels, which lie side by side. Windows that
 * cover every pixel just once write what they own, and a task is a row of them; others add to zeros, in order, and a
 * task is a piece of the lanes with all its windows, so that sums have one order. Refuses (pool_dx_special) the rest,
 * casts in its group too: eval_window.c asks for each pixel which windows it is the maximum of. */
#include "../contract/gemm.h"
#include <string.h>

/* a task's lanes are four lines of a cache: few enough that tasks are many and of nearly one size */
enum { MOST_TAPS = 25, LANES_CHUNK = 64 };

static bool
image_ok(const Type *t)
{
	static const uint8_t hwnc[4] = {2, 3, 0, 1};

	return t->dtype == DT_f32 && t->rank == 4 && !memcmp(t->perm, hwnc, 4) && !t->axis[1].mul && !t->axis[2].mul &&
	       !t->axis[3].mul;
}

/* Does it share its group? Casts may have joined it (pass precision). */
static bool
alone(const Graph *g, const Op *op)
{
	for (uint32_t i = 0; i < g->op.n && op->group >= 0; i++)
		if (!g->op.at[i].dead && g->op.at[i].group == op->group && g->op.at[i].out != op->out)
			return false;
	return true;
}

bool
pool_dx_special(const Graph *g, const Op *op)
{
	const int64_t *k = attr_ints(op, A_k, NULL);

	return alone(g, op) && op->kind == OP_max_pool2d_dx && k[0] <= MOST_TAPS && k[1] <= MOST_TAPS &&
	       k[0] * k[1] <= MOST_TAPS && image_ok(val_type(g, op->in[0])) && image_ok(val_type(g, op->in[1])) &&
	       image_ok(val_type(g, op->out[0]));
}

typedef struct Windows {
	Window at;
	int64_t in[2], out[2];
	bool once;               /* every pixel is in one window */
	Mem x, g, dx;            /* [row][column][image and channel], of which there are `plane` */
	V oh, ow, plane;
} Windows;

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
	V at[MOST_TAPS], mask[MOST_TAPS], best[MOST_TAPS], first[MOST_TAPS];
	bool all = true; /* every window lies inside */
	Mem of_window = mem_fix(e, &w->g, w->oh, w->ow);
	V g = vec_load(e, mem_at(e, &of_window, lane.s), e->mask);
	int taps = (int)(w->at.k[0] * w->at.k[1]);

	(void)u;
	if (!w->once)
		fetch_below(e, w, lane.s);
	for (int t = 0; t < taps; t++) {
		V place[2], inside = pixel(e, w, t / w->at.k[1], t % w->at.k[1], place);
		Mem there = mem_fix(e, &w->x, place[0], place[1]);

		at[t] = mem_offset(e, &there, lane.s);
		mask[t] = inside ? mask_and(e, splat(e, inside), e->mask) : e->mask;
		best[t] = vec_load(e, ptr_at(e, w->x.base, at[t]), mask[t]);
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
		                       ""),
		  to = ptr_at(e, w->dx.base, at[t]);
		V share = LLVMBuildSelect(here(e), mine, g, LLVMConstNull(vt), "");

		vec_store(e, to, w->once ? share : LLVMBuildFAdd(here(e), vec_load(e, to, mask[t]), share, ""),
		          mask[t]);
	}
}

static void
zero_lane(Emit *e, void *cx, Ix lane, int u)
{
	const Windows *w = cx;

	(void)u;
	vec_store(e, mem_at(e, &w->dx, NULL, w->oh, lane.s), LLVMConstNull(vec_of(e, e->l->f32)), e->mask);
}

/* Zeros for the rows of pixels that windows of row oh are the first to reach, or that lie between these and those
 * before; the last row's, all that are left: they are added to while a cache holds them. */
static void
zero_rows(Emit *e, Windows *w, V oh, V lo, V hi)
{
	V end[2];

	for (int i = 0; i < 2; i++) { /* of the row of windows before, and of this one */
		V reach = i_add_k(e, i_mul_k(e, i_add_k(e, oh, i - 1), w->at.stride[0]), w->at.k[0] - w->at.pad[0]);

		end[i] = i_min_k(e, i_max(e, reach, k64(e, 0)), w->in[0]);
	}
	V first = LLVMBuildICmp(here(e), LLVMIntEQ, oh, k64(e, 0), ""),
	  last = LLVMBuildICmp(here(e), LLVMIntEQ, oh, k64(e, w->out[0] - 1), "");

	end[0] = LLVMBuildSelect(here(e), first, k64(e, 0), end[0], "");
	end[1] = LLVMBuildSelect(here(e), last, k64(e, w->in[0]), end[1], "");
	LOOP(e, pixel, i_mul_k(e, end[0], w->in[1]), i_mul_k(e, end[1], w->in[1]), 1) {
		w->oh = pixel;
		lane_loop(e, lo, hi, 1, zero_lane, w);
	}
}

static Mem
plane_region(Emit *e, V base, int64_t columns, V plane)
{
	Mem m = mem_axes(e, base, OF(columns), OF(1), BY(4));

	m.axis[1].step = plane;
	return m;
}

/* The windows of row w->oh, of lanes [lo, hi). */
static void
window_row(Emit *e, Windows *w, V lo, V hi)
{
	TIMES(e, ow, w->out[1]) {
		w->ow = ow;
		lane_loop(e, lo, hi, 1, window_lane, w);
	}
}

void
pool_dx_emit(GroupCx *gc, const Op *op, GraphKernels *gk)
{
	const Type *x = val_type(gc->g, op->in[0]), *g = val_type(gc->g, op->in[1]);
	int xbuf = group_buffer(gc, op->in[0].id), gbuf = group_buffer(gc, op->in[1].id),
	    dbuf = group_buffer(gc, op->out[0].id);
	Windows w = {.at = window_of(gc->g, op), .once = true};
	int64_t full = x->axis[0].n * x->axis[1].n, chunks = ceil_div(full, LANES_CHUNK);
	Emit e = {0};
	bool fresh;
	int fn = kernel_begin(gc, &e, "windows", &fresh);

	for (int d = 0; d < 2; d++) {
		w.in[d] = x->axis[2 + d].n, w.out[d] = g->axis[2 + d].n;
		w.once &= w.at.k[d] == w.at.stride[d] && !w.at.pad[d] && w.in[d] == w.out[d] * w.at.k[d];
	}
	int64_t tasks = w.once ? w.out[0] * chunks : chunks,
	        each = full < LANES_CHUNK ? full : LANES_CHUNK,
	        work = w.out[1] * w.at.k[0] * w.at.k[1] * each * (w.once ? 1 : w.out[0]);
	int64_t grain = task_grain(machine_of(gc->g), tasks, (double)work);

	if (fresh) {
		V xs = buffer(&e, xbuf), gs = buffer(&e, gbuf), dxs = buffer(&e, dbuf);

		w.plane = i_mul_k(&e, extent(&e, x->axis[0]), x->axis[1].n);
		w.x = plane_region(&e, xs, w.in[1], w.plane);
		w.g = plane_region(&e, gs, w.out[1], w.plane);
		w.dx = plane_region(&e, dxs, w.in[1], w.plane);
		GRAINS(&e, t, grain, tasks) {
			V chunk = i_rem_k(&e, t, chunks);
			V lo = i_min(&e, i_mul_k(&e, chunk, LANES_CHUNK), w.plane),
			  hi = i_min(&e, i_add_k(&e, lo, LANES_CHUNK), w.plane);

			if (w.once) {
				w.oh = i_div_k(&e, t, chunks);
				window_row(&e, &w, lo, hi);
				continue;
			}
			TIMES(&e, oh, w.out[0]) {
				zero_rows(&e, &w, oh, lo, hi);
				w.oh = oh;
				window_row(&e, &w, lo, hi);
			}
		}
	}
	kernel_end(gc, &e, gk, fn, (Rows){.rows = tasks, .mul = 0, .div = 1, .grain = grain}, fresh, false);
}
