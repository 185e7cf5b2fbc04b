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

static void
window_lane(Emit *e, void *cx, Ix lane, int u)
{
	Windows *w = cx;
	T vt = vec_of(e, e->l->f32), it = vec_of(e, e->l->i32);
	V at[MOST_TAPS], mask[MOST_TAPS], best = NULL, first = NULL;
	Mem of_window = mem_fix(e, &w->g, w->oh, w->ow);
	V g = vec_load(e, mem_at(e, &of_window, lane.s), e->mask);
	int taps = (int)(w->at.k[0] * w->at.k[1]);

	(void)u;
	for (int t = 0; t < taps; t++) {
		V number = splat(e, LLVMConstInt(e->l->i32, (unsigned)t, 0)), place[2],
		  inside = pixel(e, w, t / w->at.k[1], t % w->at.k[1], place);
		Mem there = mem_fix(e, &w->x, place[0], place[1]);

		at[t] = mem_offset(e, &there, lane.s);
		mask[t] = inside ? mask_and(e, splat(e, inside), e->mask) : e->mask;
		V x = vec_load(e, ptr_at(e, w->x.base, at[t]), mask[t]);

		if (!best && !inside) {
			best = x;
			first = number;
			continue;
		}
		if (!best) {
			best = splat(e, LLVMConstReal(e->l->f32, -__builtin_inf()));
			first = LLVMConstAllOnes(it);
		}
		/* larger, or the first NaN; the first pixel inside wins over nothing, even if it is -inf */
		V wins = LLVMBuildAnd(here(e), LLVMBuildFCmp(here(e), LLVMRealUGT, x, best, ""),
		                      LLVMBuildFCmp(here(e), LLVMRealORD, best, best, ""), "");

		if (first != number)
			wins = LLVMBuildOr(here(e), wins,
			                   LLVMBuildICmp(here(e), LLVMIntSLT, first, LLVMConstNull(it), ""), "");
		if (inside)
			wins = LLVMBuildAnd(here(e), wins, splat(e, inside), "");
		best = LLVMBuildSelect(here(e), wins, x, best, "");
		first = LLVMBuildSelect(here(e), wins, number, first, "");
	}
	for (int t = 0; t < taps; t++) {
		V mine = LLVMBuildICmp(here(e), LLVMIntEQ, first, splat(e, LLVMConstInt(e->l->i32, (unsigned)t, 0)),
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
			TIMES(&e, all, w.in[0] * w.in[1]) {
				w.oh = all;
				lane_loop(&e, lo, hi, 1, zero_lane, &w);
			}
			TIMES(&e, oh, w.out[0]) {
				w.oh = oh;
				window_row(&e, &w, lo, hi);
			}
		}
	}
	kernel_end(gc, &e, gk, fn, (Rows){.rows = tasks, .mul = 0, .div = 1, .grain = grain}, fresh, false);
}
