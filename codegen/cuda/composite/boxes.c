/* boxes.c: operators that stand alone in their group (T_ALONE): order of elements, greedy suppression of boxes,
 * roi_align and its gradient, all_reduce and all_moments.
 *
 * In: an op alone in its group, operands row-major.   Out: one kernel.
 * order: short lines, and elements of 64 bits, count for each element how many stand before it: a thread to an element.
 * Else a block to a line: key and index are one number of 64 bits; the count-th least is found by histograms of its
 * bytes from the highest on, those up to it are collected in any order and sorted by a bitonic network (Batcher 1968),
 * in shared memory where they fit, else in the workspace.
 * nms: a block to an entry; in each round the best box that is left is found and those that it suppresses are struck
 * out.
 * roi_align: a thread to an element. Gradient: a thread to an element of the map, over boxes, bins and samples in their
 * order.
 * all_reduce, all_moments: a copy; the runtime joins what shards have (runtime/cuda/shards.c). */
#include "composite.h"
#include <string.h>

/* the longest line whose elements are counted; items of 8 bytes that fit beside the histogram */
enum { COUNTED = 256, SHARED_ITEMS = 2048 };

static uint32_t
others(const Type *t, int axis)
{
	return ((1u << t->rank) - 1) & ~(1u << axis);
}

static int64_t
power_of_two(int64_t n)
{
	int64_t p = 2;

	while (p < n)
		p *= 2;
	return p;
}

/* ---------------------------------------------------------------- order */
static bool
counted(const Graph *g, const Op *op)
{
	const Type *t = val_type(g, op->in[0]);

	return t->axis[attr_int(op, A_axis)].n <= COUNTED || dtype_info[t->dtype].bytes == 8;
}

/* Each element finds its place. */
static void
order_count(Cuda *c, const Op *op)
{
	const Type *t = val_type(c->g, op->in[0]), *out = val_type(c->g, op->out[0]);
	int axis = (int)attr_int(op, A_axis);
	Ix ix[MAX_RANK], j;

	cu_kernel_open(c, "");
	Scope all = cu_threads_open(c, t, (1u << t->rank) - 1, ix);
	Cell x = cu_value_at(c, op->in[0], ix);
	const char *place = cu_fresh(c, 'i'), *own = ix[axis];

	cu_line(c, "%s %s = 0;", c->it, place);
	Scope s = cu_loop_open(c, cu_extent(c, t->axis[axis]), &j);
	Ix at[MAX_RANK];

	memcpy(at, ix, sizeof at);
	at[axis] = j;
	Cell y = cu_value_at(c, op->in[0], at);
	const char *a = attr_bool(op, A_descending) ? x.v : y.v, *b = attr_bool(op, A_descending) ? y.v : x.v;

	/* a before b, where NaN stands behind all; or equal, and further ahead */
	cu_line(c, "%s += %s < %s || (%s == %s && %s != %s) || ((%s == %s || (%s != %s && %s != %s)) && %s < %s);",
	        place, a, b, a, a, b, b, x.v, y.v, x.v, x.v, y.v, y.v, j, own);
	cu_scope_close(c, s);
	s = cu_scope_open(c, "if (%s < %s)", place, cu_extent(c, out->axis[axis]));
	memcpy(at, ix, sizeof at);
	at[axis] = place;
	cu_store_at(c, out, val_info(c->g, op->out[0])->offset, at,
	            cu_cell_cast(c, (Cell){own, c->it[0] == 'i' ? DT_i32 : DT_i64}, DT_i32));
	cu_scope_close(c, s);
	cu_scope_close(c, all);
	cu_kernel_close(c, "a thread to an element, which counts those before it",
	                cu_blocks_of(t, (1u << t->rank) - 1));
}

/* `item`: element i of the line as a number of 64 bits, its key above, i below. */
static void
item_of(Cuda *c, const Op *op, const Ix *line, Ix i)
{
	const Type *t = val_type(c->g, op->in[0]);
	Ix ix[MAX_RANK];

	memcpy(ix, line, sizeof(Ix) * t->rank);
	ix[attr_int(op, A_axis)] = i;
	Cell x = cu_value_at(c, op->in[0], ix);

	if (dtype_is_float((DType)t->dtype)) {
		cu_line(c, "unsigned key = __float_as_uint(%s == 0 ? 0.0f : %s);", x.v, x.v);
		cu_line(c, "key = %s != %s ? 0xffffffffu : key >> 31 ? ~key : key | 0x80000000u;", x.v, x.v);
	} else {
		cu_line(c, "const unsigned key = (unsigned)%s%s;", x.v,
		        dtype_is_unsigned((DType)t->dtype) ? "" : " ^ 0x80000000u");
	}
	cu_line(c, "const unsigned long long item = (unsigned long long)(%skey) << 32 | (unsigned)%s;",
	        attr_bool(op, A_descending) ? "~" : "", i);
}

/* `edge`: the count-th least item. Bytes of the index that are 0 in all are passed over. */
static void
order_select(Cuda *c, const Op *op, const Ix *line, Ix n, Ix count)
{
	int64_t full = val_type(c->g, op->in[0])->axis[attr_int(op, A_axis)].n;
	int bits = 8;

	while (((full - 1) >> bits) != 0)
		bits += 8;
	cu_line(c, "unsigned long long edge = 0, known = 0;");
	cu_line(c, "int left = %s;", count);
	Scope s = cu_scope_open(c, "for (int shift = 56; shift >= 0; shift -= shift == 32 ? %d : 8)", 40 - bits);

	cu_line(c, "hist[threadIdx.x] = 0;");
	cu_line(c, "__syncthreads();");
	Scope l = cu_scope_open(c, "for (%s i = threadIdx.x; i < %s; i += BLOCK)", c->it, n);

	item_of(c, op, line, "i");
	cu_line(c, "if (!((item ^ edge) & known)) atomicAdd(&hist[item >> shift & 255], 1);");
	cu_scope_close(c, l);
	cu_line(c, "__syncthreads();");
	l = cu_scope_open(c, "if (threadIdx.x == 0)");
	cu_line(c, "int b = 0;");
	cu_line(c, "while (left > hist[b]) left -= hist[b++];");
	cu_line(c, "found[0] = b;");
	cu_line(c, "found[1] = left;");
	cu_scope_close(c, l);
	cu_line(c, "__syncthreads();");
	cu_line(c, "edge |= (unsigned long long)found[0] << shift;");
	cu_line(c, "known |= 255ull << shift;");
	cu_line(c, "left = found[1];");
	cu_scope_close(c, s);
	cu_line(c, "__syncthreads();");
	cu_line(c, "if (threadIdx.x == 0) found[0] = 0;");
	cu_line(c, "__syncthreads();");
	l = cu_scope_open(c, "for (%s i = threadIdx.x; i < %s; i += BLOCK)", c->it, n);
	item_of(c, op, line, "i");
	cu_line(c, "if (item <= edge) items[atomicAdd(&found[0], 1)] = item;");
	cu_scope_close(c, l);
}

/* items[0..room), a power of two, in rising order. */
static void
bitonic_sort(Cuda *c, int64_t room)
{
	Scope k = cu_scope_open(c, "for (int k = 2; k <= %lld; k *= 2)", (long long)room),
	      j = cu_scope_open(c, "for (int j = k / 2; j > 0; j /= 2)");

	cu_line(c, "__syncthreads();");
	Scope i = cu_scope_open(c, "for (int i = threadIdx.x; i < %lld; i += BLOCK)", (long long)room / 2);

	cu_line(c, "const int a = (i & ~(j - 1)) * 2 | (i & (j - 1)), b = a + j;");
	cu_line(c, "const unsigned long long x = items[a], y = items[b];");
	cu_line(c, "if ((x > y) == !(a & k)) { items[a] = y; items[b] = x; }");
	cu_scope_close(c, i);
	cu_scope_close(c, j);
	cu_scope_close(c, k);
	cu_line(c, "__syncthreads();");
}

static void
order_sort(Cuda *c, const Op *op)
{
	const Type *t = val_type(c->g, op->in[0]), *out = val_type(c->g, op->out[0]);
	int axis = (int)attr_int(op, A_axis);
	int64_t room = power_of_two(out->axis[axis].n), offset = c->g->group.at[c->group].workspace_offset;
	bool shared = room <= SHARED_ITEMS, some = attr_int(op, A_count) && attr_int(op, A_count) < t->axis[axis].n;
	Ix ix[MAX_RANK];

	cu_kernel_open(c, "");
	Ix n = cu_extent(c, t->axis[axis]), count = cu_extent(c, out->axis[axis]),
	   lines = cu_product(c, t, others(t, axis));

	if (some)
		cu_line(c, "__shared__ int hist[256], found[2];");
	if (shared)
		cu_line(c, "__shared__ unsigned long long items[%lld];", (long long)room);
	const char *space = shared ? NULL : cu_pointer(c, DT_i64, offset);
	Scope all = cu_scope_open(c, "for (%s line = blockIdx.x; line < %s; line += gridDim.x)", c->it, lines);

	if (!shared)
		cu_line(c, "unsigned long long *const items = (unsigned long long *)%s + (long long)line * %lld;",
		        space, (long long)room);
	cu_take_apart(c, t, others(t, axis), "line", ix);
	if (some) {
		order_select(c, op, ix, n, count);
	} else {
		Scope l = cu_scope_open(c, "for (%s i = threadIdx.x; i < %s; i += BLOCK)", c->it, n);

		item_of(c, op, ix, "i");
		cu_line(c, "items[i] = item;");
		cu_scope_close(c, l);
	}
	cu_line(c, "for (%s i = %s + threadIdx.x; i < %lld; i += BLOCK) items[i] = ~0ull;", c->it, count,
	        (long long)room);
	bitonic_sort(c, room);
	Scope l = cu_scope_open(c, "for (%s i = threadIdx.x; i < %s; i += BLOCK)", c->it, count);

	ix[axis] = "i";
	cu_store_at(c, out, val_info(c->g, op->out[0])->offset, ix, (Cell){"(int)items[i]", DT_i32});
	cu_scope_close(c, l);
	cu_line(c, "__syncthreads();");
	cu_scope_close(c, all);
	cu_kernel_close(c, "a line to a block", cu_full_product(t, others(t, axis)));
}

/* ---------------------------------------------------------------- nms */
typedef struct Box { Cell x[4], area; } Box;

static Cell
step(Cuda *c, ExprKind k, Cell a, Cell b)
{
	return cu_cell_let(c, cu_cell_rounded(c, cu_cell_bin(c, k, a, b)).v, (DType)a.dt);
}

static Box
box_at(Cuda *c, const Op *op, const Ix *entry, Ix i)
{
	int rank = val_type(c->g, op->in[0])->rank;
	Ix ix[MAX_RANK];
	Box b;

	memcpy(ix, entry, sizeof ix);
	ix[rank - 2] = i;
	for (int k = 0; k < 4; k++) {
		ix[rank - 1] = cu_ix_k(c, k);
		b.x[k] = cu_value_at(c, op->in[0], ix);
	}
	b.area = step(c, EX_MUL, step(c, EX_SUB, b.x[2], b.x[0]), step(c, EX_SUB, b.x[3], b.x[1]));
	return b;
}

/* A condition: a suppresses b. A quotient that is NaN is not greater. */
static const char *
suppresses(Cuda *c, const Op *op, const Box *a, const Box *b)
{
	DType t = (DType)a->area.dt;
	Cell w = step(c, EX_SUB, cu_cell_bin(c, EX_FMIN, a->x[2], b->x[2]), cu_cell_bin(c, EX_FMAX, a->x[0], b->x[0]));
	Cell h = step(c, EX_SUB, cu_cell_bin(c, EX_FMIN, a->x[3], b->x[3]), cu_cell_bin(c, EX_FMAX, a->x[1], b->x[1]));
	Cell inter = step(c, EX_MUL, w, h), iou = cu_cell_rounded(c, cu_cell_number(c, t, attr_num(op, A_iou)));

	inter = cu_cell_let(c, arena_printf(c->a, "%s > 0 && %s > 0 ? %s : 0", w.v, h.v, inter.v), t);
	Cell both = step(c, EX_SUB, step(c, EX_ADD, a->area, b->area), inter), q = step(c, EX_DIV, inter, both);

	return arena_printf(c->a, "%s > %s", q.v, iou.v);
}

/* The best box that is left, of equals the first: its number in `chosen`, -1 if there is none. */
static void
nms_best(Cuda *c, const Op *op, const Ix *entry, Ix p)
{
	const Type *scores = val_type(c->g, op->in[1]);
	Ix ix[MAX_RANK];

	cu_line(c, "%s best = 0;", cu_c_type((DType)scores->dtype));
	cu_line(c, "int at = -1;");
	Scope s = cu_scope_open(c, "for (int i = threadIdx.x; i < %s; i += BLOCK)", p),
	      in = cu_scope_open(c, "if (!gone[i])");

	memcpy(ix, entry, sizeof ix);
	ix[scores->rank - 1] = "i";
	Cell x = cu_value_at(c, op->in[1], ix);

	cu_line(c, "if (at < 0 || %s > best) { best = %s; at = i; }", x.v, x.v);
	cu_scope_close(c, in);
	cu_scope_close(c, s);
	cu_line(c, "best_of[threadIdx.x] = best;");
	cu_line(c, "at_of[threadIdx.x] = at;");
	cu_line(c, "__syncthreads();");
	s = cu_scope_open(c, "for (int half = BLOCK / 2; half; half /= 2)");
	in = cu_scope_open(c, "if (threadIdx.x < half)");
	cu_line(c, "const int a = threadIdx.x, b = a + half;");
	cu_line(c, "if (at_of[b] >= 0 && (at_of[a] < 0 || best_of[b] > best_of[a] || (best_of[b] == best_of[a] && "
	           "at_of[b] < at_of[a]))) { best_of[a] = best_of[b]; at_of[a] = at_of[b]; }");
	cu_scope_close(c, in);
	cu_line(c, "__syncthreads();");
	cu_scope_close(c, s);
	cu_line(c, "const int chosen = at_of[0];");
	cu_line(c, "__syncthreads();");
}

/* Strikes out the chosen box and those that it suppresses. */
static void
nms_strike(Cuda *c, const Op *op, const Ix *entry, Ix p)
{
	bool group = attr_bool(op, A_has_group);
	Box a = box_at(c, op, entry, "chosen"), b;
	Cell own = {0};
	Ix ix[MAX_RANK];
	int last = val_type(c->g, op->in[1])->rank - 1;

	memcpy(ix, entry, sizeof ix);
	ix[last] = "chosen";
	if (group)
		own = cu_value_at(c, op->in[2], ix);
	Scope s = cu_scope_open(c, "for (int i = threadIdx.x; i < %s; i += BLOCK)", p),
	      in = cu_scope_open(c, "if (!gone[i])");

	ix[last] = "i";
	b = box_at(c, op, entry, "i");
	const char *same = group ? arena_printf(c->a, "%s == %s && ", cu_value_at(c, op->in[2], ix).v, own.v) : "",
	           *over = suppresses(c, op, &a, &b);

	cu_line(c, "if (i == chosen || (%s%s)) gone[i] = 1;", same, over);
	cu_scope_close(c, in);
	cu_scope_close(c, s);
}

static void
slot_put(Cuda *c, const Op *op, const char *slot, const char *place, const char *kept)
{
	for (int k = 0; k < 2; k++)
		if (cu_value_is_out(c, op->out[k])) {
			cu_line(c, "%s[entry * %lld + %s] = %s;",
			        cu_pointer(c, k ? DT_bool : DT_i32, val_info(c->g, op->out[k])->offset),
			        (long long)attr_int(op, A_count), slot, k ? kept : place);
			cu_stores_at(c, val_info(c->g, op->out[k])->offset);
		}
}

static void
nms_emit(Cuda *c, const Op *op)
{
	const Type *scores = val_type(c->g, op->in[1]);
	uint32_t entries = others(scores, scores->rank - 1);
	Ix entry[MAX_RANK], ix[MAX_RANK];

	cu_kernel_open(c, "");
	Ix p = cu_extent(c, scores->axis[scores->rank - 1]), count = cu_product(c, scores, entries);
	const char *space = cu_pointer(c, DT_u8, c->g->group.at[c->group].workspace_offset);

	cu_line(c, "__shared__ %s best_of[BLOCK];", cu_c_type((DType)scores->dtype));
	cu_line(c, "__shared__ int at_of[BLOCK];");
	Scope all = cu_scope_open(c, "for (%s entry = blockIdx.x; entry < %s; entry += gridDim.x)", c->it, count);

	cu_line(c, "unsigned char *const gone = %s + (long long)entry * %s;", space, p);
	cu_line(c, "int found = 0;");
	cu_take_apart(c, scores, entries, "entry", entry);
	Scope s = cu_scope_open(c, "for (int i = threadIdx.x; i < %s; i += BLOCK)", p);

	memcpy(ix, entry, sizeof ix);
	ix[scores->rank - 1] = "i";
	Cell x = cu_value_at(c, op->in[1], ix);

	cu_line(c, "gone[i] = !(%s > %s);", x.v, cu_cell_number(c, (DType)x.dt, attr_num(op, A_least)).v);
	cu_scope_close(c, s);
	s = cu_scope_open(c, "for (; found < %lld; found++)", (long long)attr_int(op, A_count));
	nms_best(c, op, entry, p);
	cu_line(c, "if (chosen < 0) break;");
	Scope one = cu_scope_open(c, "if (threadIdx.x == 0)");

	slot_put(c, op, "found", "chosen", "1");
	cu_scope_close(c, one);
	nms_strike(c, op, entry, p);
	cu_scope_close(c, s);
	s = cu_scope_open(c, "for (int k = found + threadIdx.x; k < %lld; k += BLOCK)",
	                  (long long)attr_int(op, A_count));
	slot_put(c, op, "k", "0", "0");
	cu_scope_close(c, s);
	cu_scope_close(c, all);
	cu_kernel_close(c, "an entry to a block, a round to each box that is kept", cu_full_product(scores, entries));
}

/* ---------------------------------------------------------------- roi_align */
/* C types of coordinates and of sums */
typedef struct Roi {
	const char *places, *values;
	int64_t samples, size[2];
	Axis extent[2];
	double scale, shift;
	bool aligned;
} Roi;

static Roi
roi_of(const Cuda *c, const Op *op, const Type *map)
{
	const int64_t *size = attr_ints(op, A_size, NULL);
	bool aligned = attr_bool(op, A_aligned);

	return (Roi){.places = val_type(c->g, op->in[1])->dtype == DT_f64 ? "double" : "float",
	             .values = map->dtype == DT_f64 ? "double" : "float",
	             .samples = attr_int(op, A_samples),
	             .size = {size[0], size[1]},
	             .extent = {map->axis[2], map->axis[3]},
	             .scale = attr_num(op, A_scale),
	             .shift = aligned ? 0.5 : 0,
	             .aligned = aligned};
}

static const char *
number(Cuda *c, const Roi *p, double x)
{
	return cu_cell_number(c, p->places[0] == 'd' ? DT_f64 : DT_f32, x).v;
}

/* Axis d (0 rows, 1 columns) of box ix: from a_d in bins of length bin_d; whole_d: both are finite. */
static void
box_axis(Cuda *c, const Op *op, const Roi *p, const Ix *ix, int d)
{
	Ix at[3] = {ix[0], ix[1], NULL};
	const char *x[2];

	for (int k = 0; k < 2; k++) {
		at[2] = cu_ix_k(c, 2 * k + 1 - d);
		x[k] = cu_value_at(c, op->in[1], at).v;
	}
	cu_line(c, "const bool whole_%d = %s - %s == 0 && %s - %s == 0;", d, x[0], x[0], x[1], x[1]);
	cu_line(c, "const %s a_%d = %s * %s - %s;", p->places, d, x[0], number(c, p, p->scale), number(c, p, p->shift));
	cu_line(c, "%s length_%d = %s * %s - %s - a_%d;", p->places, d, x[1], number(c, p, p->scale),
	        number(c, p, p->shift), d);
	if (!p->aligned)
		cu_line(c, "if (length_%d < 1) length_%d = 1;", d, d);
	cu_line(c, "const %s bin_%d = length_%d / %s;", p->places, d, d, number(c, p, (double)p->size[d]));
}

/* Over the samples of bin `bin` along d: each lies between low_d and high_d, far_d from the first. Those outside are
 * passed over. */
static Scope
samples_open(Cuda *c, const Roi *p, int d, Ix bin)
{
	Scope s = cu_scope_open(c, "for (int s_%d = 0; s_%d < %lld; s_%d++)", d, d, (long long)p->samples, d);
	Ix n = cu_extent(c, p->extent[d]);

	cu_line(c, "%s at_%d = a_%d + (%s)%s * bin_%d + ((%s)s_%d + %s) * bin_%d / %s;", p->places, d, d, p->places,
	        bin, d, p->places, d, number(c, p, 0.5), d, number(c, p, (double)p->samples));
	cu_line(c, "if (at_%d < -1 || at_%d > (%s)%s) continue;", d, d, p->places, n);
	cu_line(c, "at_%d = at_%d < 0 ? 0 : at_%d > (%s)(%s - 1) ? (%s)(%s - 1) : at_%d;", d, d, d, p->places, n,
	        p->places, n, d);
	cu_line(c, "const int low_%d = (int)at_%d, high_%d = low_%d + 1 < %s ? low_%d + 1 : low_%d;", d, d, d, d, n, d,
	        d);
	cu_line(c, "const %s far_%d = (%s)(at_%d - (%s)low_%d), near_%d = 1 - far_%d;", p->values, d, p->values, d,
	        p->places, d, d, d);
	return s;
}

static void
roi_forward(Cuda *c, const Op *op)
{
	const Type *out = val_type(c->g, op->out[0]);
	Roi p = roi_of(c, op, val_type(c->g, op->in[0]));
	Ix ix[MAX_RANK];
	const char *v[4];

	cu_kernel_open(c, "");
	Scope all = cu_threads_open(c, out, 31, ix);

	box_axis(c, op, &p, ix, 0);
	box_axis(c, op, &p, ix, 1);
	cu_line(c, "%s sum = 0;", p.values);
	Scope rows = samples_open(c, &p, 0, ix[3]), columns = samples_open(c, &p, 1, ix[4]);

	for (int k = 0; k < 4; k++)
		v[k] = cu_value_at(c, op->in[0],
		                   (Ix[]){ix[0], ix[2], k < 2 ? "low_0" : "high_0", k % 2 ? "high_1" : "low_1"})
		               .v;
	cu_line(c, "sum += near_0 * (near_1 * %s + far_1 * %s) + far_0 * (near_1 * %s + far_1 * %s);", v[0], v[1], v[2],
	        v[3]);
	cu_scope_close(c, columns);
	cu_scope_close(c, rows);
	DType t = p.values[0] == 'd' ? DT_f64 : DT_f32;

	cu_line(c, "sum = whole_0 && whole_1 ? sum / %s : %s;", cu_cell_number(c, t, (double)(p.samples * p.samples)).v,
	        t == DT_f64 ? "NAN_f64" : "NAN_f32");
	cu_store_at(c, out, val_info(c->g, op->out[0])->offset, ix,
	            cu_cell_cast(c, (Cell){"sum", (uint8_t)t}, (DType)out->dtype));
	cu_scope_close(c, all);
	cu_kernel_close(c, "a thread to an element", cu_blocks_of(out, 31));
}

/* Does no sample along d come near the element? */
static void
skip_far(Cuda *c, const Roi *p, int d, Ix i)
{
	cu_line(c,
	        "if (!whole_%d || (a_%d < (%s)%s - 1 && a_%d + length_%d < (%s)%s - 1) || (a_%d > (%s)%s + 1 && a_%d + "
	        "length_%d > (%s)%s + 1)) continue;",
	        d, d, p->places, i, d, d, p->places, i, d, p->places, i, d, d, p->places, i);
}

static void
roi_backward(Cuda *c, const Op *op)
{
	const Type *out = val_type(c->g, op->out[0]);
	Roi p = roi_of(c, op, out);
	Scope open[8];
	Ix ix[MAX_RANK], r, bin[2];
	int n = 0;

	cu_kernel_open(c, "");
	open[n++] = cu_threads_open(c, out, 15, ix);
	cu_line(c, "%s sum = 0;", p.values);
	open[n++] = cu_loop_open(c, cu_extent(c, val_type(c->g, op->in[1])->axis[1]), &r);
	for (int d = 0; d < 2; d++) {
		box_axis(c, op, &p, (Ix[]){ix[0], r}, d);
		skip_far(c, &p, d, ix[2 + d]);
	}
	for (int d = 0; d < 2; d++) {
		open[n++] = cu_loop_open(c, cu_ix_k(c, p.size[d]), &bin[d]);
		open[n++] = samples_open(c, &p, d, bin[d]);
		cu_line(c, "const %s share_%d = (low_%d == %s ? near_%d : 0) + (high_%d == %s ? far_%d : 0);", p.values,
		        d, d, ix[2 + d], d, d, ix[2 + d], d);
		cu_line(c, "if (share_%d == 0) continue;", d);
	}
	Cell g = cu_value_at(c, op->in[0], (Ix[]){ix[0], r, ix[1], bin[0], bin[1]});
	DType t = p.values[0] == 'd' ? DT_f64 : DT_f32;

	cu_line(c, "sum += %s / %s * share_0 * share_1;", g.v, cu_cell_number(c, t, (double)(p.samples * p.samples)).v);
	while (n > 1)
		cu_scope_close(c, open[--n]);
	cu_store_at(c, out, val_info(c->g, op->out[0])->offset, ix,
	            cu_cell_cast(c, (Cell){"sum", (uint8_t)t}, (DType)out->dtype));
	cu_scope_close(c, open[0]);
	cu_kernel_close(c, "a thread to an element of the map, over all boxes", cu_blocks_of(out, 15));
}

/* ---------------------------------------------------------------- collectives */
/* What shards of a batch exchange, of one that is alone: a copy. */
static void
shared_emit(Cuda *c, const Op *op)
{
	const Type *t = val_type(c->g, op->in[0]);
	uint32_t axes = (1u << t->rank) - 1;
	Ix ix[MAX_RANK];
	Cell x[2];

	cu_kernel_open(c, "");
	Scope s = cu_threads_open(c, t, axes, ix);

	for (int k = 0; k < op->nin; k++)
		x[k] = cu_cell_let(c, cu_value_at(c, op->in[k], ix).v, (DType)t->dtype);
	for (int k = 0; k < op->nin; k++)
		if (val_info(c->g, op->out[k])->offset >= 0)
			cu_store_at(c, t, val_info(c->g, op->out[k])->offset, ix, x[k]);
	cu_scope_close(c, s);
	cu_kernel_close(c, "a thread to an element", cu_blocks_of(t, axes));
}

int64_t
cu_boxes_workspace(const Graph *g, const Op *op)
{
	const Type *t = val_type(g, op->in[0]);

	if (op->kind == OP_nms)
		return type_elements(val_type(g, op->in[1]));
	if (op->kind == OP_all_reduce || op->kind == OP_all_moments)
		return 0;
	if (op->kind != OP_order || counted(g, op))
		return 0;
	int axis = (int)attr_int(op, A_axis);
	int64_t room = power_of_two(val_type(g, op->out[0])->axis[axis].n);

	return room <= SHARED_ITEMS ? 0 : 8 * room * cu_full_product(t, others(t, axis));
}

void
cu_boxes_emit(Cuda *c, const Op *op)
{
	switch (op->kind) {
	case OP_order: (counted(c->g, op) ? order_count : order_sort)(c, op); return;
	case OP_nms: nms_emit(c, op); return;
	case OP_roi_align: roi_forward(c, op); return;
	case OP_roi_align_dx: roi_backward(c, op); return;
	case OP_all_reduce: case OP_all_moments: shared_emit(c, op); return;
	default: bug("target cuda has no code for %s: a T_ALONE has a case in cu_boxes_emit", op_info[op->kind].name);
	}
}
