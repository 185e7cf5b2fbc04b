/* eval_window.c: pooling and its gradients, one result element (or W) at a time.
 *
 * In: an op and indices of its result.   Out: a cell. Gradients are gathered: an input element asks every window that
 * holds it, so no two tasks write one element. Windows of few taps are unrolled, larger ones are loops. */
#include "../cpu.h"

/* Taps as constants, or as loops that stay open until taps_close. */
typedef struct Taps { int64_t n[2]; bool unroll; int64_t i; V v[2]; } Taps;

/* most: taps that are unrolled; POOL: of a pooling itself, whose taps are not within those of another window */
enum { FEW = 16, POOL = 25 };

static Taps
taps_begin(const int64_t n[2], int64_t most)
{
	return (Taps){.n = {n[0], n[1]}, .unroll = n[0] * n[1] <= most, .i = -1};
}

static bool
taps_next(Emit *e, Taps *t)
{
	t->i++;
	if (t->unroll) {
		if (t->i >= t->n[0] * t->n[1])
			return false;
		t->v[0] = k64(e, t->i / t->n[1]);
		t->v[1] = k64(e, t->i % t->n[1]);
		return true;
	}
	if (t->i == 0) {
		t->v[0] = loop_open(e, k64(e, 0), k64(e, t->n[0]), 1);
		t->v[1] = loop_open(e, k64(e, 0), k64(e, t->n[1]), 1);
		return true;
	}
	loop_close(e);
	loop_close(e);
	return false;
}

static void
slot_cell(Emit *e, V slot, Cell c, bool vec)
{
	slot_set(e, slot, vec && !c.vec ? cell_vec(e, c) : c.v);
}

/* First element of the window at (oh, ow): h = oh * stride - pad. */
static void
window_start(Emit *e, const Window *w, const Ix *ix, Ix base[2])
{
	for (int d = 0; d < 2; d++)
		base[d] = ix_add_k(e, ix_mul_k(e, ix[2 + d], w->stride[d]), -w->pad[d]);
}

/* Does tap value x replace the maximum m? Larger, or NaN (but the first NaN stays). */
static Cell
beats(Emit *e, Cell x, Cell m)
{
	Cell c = cell_bin(e, EX_OR, cell_bin(e, EX_GT, x, m), cell_bin(e, EX_NE, x, x));

	return cell_bin(e, EX_AND, c, cell_bin(e, EX_EQ, m, m));
}

/* The largest of n taps: of equal ones the first, as one after the other would find it, but in pairs, for no comparison
 * then waits for more than a few. */
static Cell
largest(Emit *e, Cell *x, int n)
{
	for (; n > 1; n = (n + 1) / 2)
		for (int k = 0; k < n; k += 2)
			x[k / 2] = k + 1 < n ? cell_select(e, beats(e, x[k + 1], x[k]), x[k + 1], x[k]) : x[k];
	return x[0];
}

static Cell
eval_pool(Emit *e, const Op *op, const Ix *ix)
{
	Window w = window_of(e->g, op);
	DType dt = (DType)val_type(e->g, op->out[0])->dtype;
	bool max = op->kind == OP_max_pool2d, vec = e->lanes;
	T t = ctype_v(e, dt, vec), it = ctype_v(e, DT_f32, vec);
	Cell start = cell_const(e, dt, max && dtype_is_float(dt) ? -__builtin_inf() : 0);
	V acc = slot_new(e, t), cnt = slot_new(e, it);
	Cell tap[POOL];
	Ix base[2];

	if (max && !dtype_is_float(dt))
		start.v = LLVMConstInt(ctype(e, dt), (unsigned long long)dtype_lowest(dt), 1);
	window_start(e, &w, ix, base);
	slot_cell(e, acc, start, vec);
	slot_cell(e, cnt, cell_const(e, DT_f32, 0), vec);
	for (Taps tp = taps_begin(w.k, POOL); taps_next(e, &tp);) {
		Ix in[4] = {ix[0], ix[1], ix_add(e, base[0], ix_s(tp.v[0])), ix_add(e, base[1], ix_s(tp.v[1]))};
		Cell m = cell_of(slot_get(e, acc, t), vec, dt), n;
		V valid;
		bool vv;
		Cell x = eval_plane(e, op->in[0], in, (Valid){NULL, NULL}, start, &valid, &vv);

		if (max && tp.unroll) {
			tap[tp.i] = x;
			if (tp.i == w.k[0] * w.k[1] - 1)
				return largest(e, tap, (int)tp.i + 1);
		} else if (max) {
			slot_cell(e, acc, cell_select(e, beats(e, x, m), x, m), vec);
		} else {
			slot_cell(e, acc, cell_bin(e, EX_ADD, m, x), vec);
			n = cell_of(slot_get(e, cnt, it), vec, DT_f32);
			slot_cell(e, cnt, cell_bin(e, EX_ADD, n, cell_cast(e, cell_of(valid, vv, DT_bool), DT_f32)),
			          vec);
		}
	}
	Cell r = cell_of(slot_get(e, acc, t), vec, dt);

	if (max)
		return r;
	if (attr_bool(op, A_count_pad))
		return cell_bin(e, EX_DIV, r, cell_const(e, dt, (double)(w.k[0] * w.k[1])));
	return cell_bin(e, EX_DIV, r, cell_cast(e, cell_of(slot_get(e, cnt, it), vec, DT_f32), dt));
}

/* The a-th window, counted back, that holds row (or column) i: o = floor((i + pad) / stride) - a, if its reach includes
 * i. */
static Ix
holder(Emit *e, const Window *w, int d, Ix i, V a, Valid *valid)
{
	Ix t = ix_add_k(e, i, w->pad[d]), o = ix_div(e, t, k64(e, w->stride[d]));

	o = ix_add(e, o, ix_s(i_sub(e, k64(e, 0), a)));
	Ix rest = ix_add(e, t, ix_mul_k(e, o, -w->stride[d]));

	bool vec;
	V test = ix_in_range(e, rest, k64(e, w->k[d]), &vec);

	valid_and(e, valid, test, vec);
	return o;
}

/* 1 where (i, j) holds the first maximum of the window at (oh, ow). */
static Cell
is_first_max(Emit *e, const Op *op, const Window *w, const Ix *ix, Ix oh, Ix ow)
{
	DType dt = (DType)val_type(e->g, op->in[0])->dtype;
	bool vec = e->lanes;
	T t = ctype_v(e, dt, vec), t64 = ctype_v(e, DT_i64, vec);
	V best = slot_new(e, t), at = slot_new(e, t64);
	const Ix win[4] = {ix[0], ix[1], oh, ow};
	Ix base[2];
	Cell low = cell_const(e, dt, -__builtin_inf());

	window_start(e, w, win, base);
	slot_cell(e, best, low, vec);
	slot_cell(e, at, cell_const(e, DT_i64, -1), vec);
	for (Taps tp = taps_begin(w->k, FEW); taps_next(e, &tp);) {
		Ix in[4] = {ix[0], ix[1], ix_add(e, base[0], ix_s(tp.v[0])), ix_add(e, base[1], ix_s(tp.v[1]))};
		Cell m = cell_of(slot_get(e, best, t), vec, dt), p = cell_of(slot_get(e, at, t64), vec, DT_i64);
		V valid;
		bool vv;
		Cell x = eval_plane(e, op->in[0], in, (Valid){NULL, NULL}, low, &valid, &vv);
		Cell tap = cell_of(i_add(e, i_mul_k(e, tp.v[0], w->k[1]), tp.v[1]), false, DT_i64);
		/* the first tap inside wins over nothing, even if it is -inf */
		Cell none = cell_bin(e, EX_AND, cell_bin(e, EX_LT, p, cell_const(e, DT_i64, 0)),
		                     cell_of(valid, vv, DT_bool));
		Cell win_now = cell_bin(e, EX_OR, beats(e, x, m), none);

		slot_cell(e, best, cell_select(e, win_now, x, m), vec);
		slot_cell(e, at, cell_select(e, win_now, tap, p), vec);
	}
	Ix mine = ix_add(e, ix_mul_k(e, ix_add(e, ix[2], ix_mul_k(e, base[0], -1)), w->k[1]),
	                 ix_add(e, ix[3], ix_mul_k(e, base[1], -1)));

	return cell_bin(e, EX_EQ, cell_of(slot_get(e, at, t64), vec, DT_i64), ix_cell(e, mine, DT_i64));
}

static Cell
eval_pool_dx(Emit *e, const Op *op, const Ix *ix)
{
	Window w = window_of(e->g, op);
	DType dt = (DType)val_type(e->g, op->out[0])->dtype;
	bool max = op->kind == OP_max_pool2d_dx, vec = e->lanes;
	Val g = op->in[max ? 1 : 0];
	const Type *from = val_type(e->g, op->out[0]);
	T t = ctype_v(e, dt, vec);
	V acc = slot_new(e, t);
	int64_t n[2] = {(w.k[0] + w.stride[0] - 1) / w.stride[0], (w.k[1] + w.stride[1] - 1) / w.stride[1]};

	slot_cell(e, acc, cell_const(e, dt, 0), vec);
	for (Taps tp = taps_begin(n, FEW); taps_next(e, &tp);) {
		Valid valid = {NULL, NULL};
		Ix oh = holder(e, &w, 0, ix[2], tp.v[0], &valid), ow = holder(e, &w, 1, ix[3], tp.v[1], &valid);
		Ix at[4] = {ix[0], ix[1], oh, ow};
		Cell x = eval_plane(e, g, at, valid, cell_const(e, dt, 0), NULL, NULL);

		if (max) {
			x = cell_select(e, is_first_max(e, op, &w, ix, oh, ow), x, cell_const(e, dt, 0));
		} else if (attr_bool(op, A_count_pad)) {
			x = cell_bin(e, EX_DIV, x, cell_const(e, dt, (double)(w.k[0] * w.k[1])));
		} else {
			Cell count = cell_const(e, dt, 1);

			for (int d = 0; d < 2; d++) { /* min(start + k, extent) - max(start, 0) */
				Ix start = ix_add_k(e, ix_mul_k(e, d ? ow : oh, w.stride[d]), -w.pad[d]);
				Cell lo = ix_cell(e, start, DT_i64),
				     hi = ix_cell(e, ix_add_k(e, start, w.k[d]), DT_i64);
				Cell ext = cell_of(extent(e, from->axis[2 + d]), false, DT_i64);

				hi = cell_bin(e, EX_FMIN, hi, ext);
				lo = cell_bin(e, EX_FMAX, lo, cell_const(e, DT_i64, 0));
				count = cell_bin(e, EX_MUL, count, cell_cast(e, cell_bin(e, EX_SUB, hi, lo), dt));
			}
			x = cell_bin(e, EX_DIV, x, count);
			x = cell_select(e, cell_bin(e, EX_GT, count, cell_const(e, dt, 0)), x, cell_const(e, dt, 0));
		}
		slot_cell(e, acc, cell_bin(e, EX_ADD, cell_of(slot_get(e, acc, t), vec, dt), x), vec);
	}
	return cell_of(slot_get(e, acc, t), vec, dt);
}

Cell
eval_window(Emit *e, const Op *op, const Ix *ix)
{
	if (op->kind == OP_max_pool2d || op->kind == OP_avg_pool2d)
		return eval_pool(e, op, ix);
	return eval_pool_dx(e, op, ix);
}
