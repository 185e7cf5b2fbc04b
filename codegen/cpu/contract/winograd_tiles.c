/* winograd_tiles.c: kernels that bring weights and overlapping tiles of an image to the points.
 *
 * In: buffers, or operands that the kernel makes (prologue.c).   Out: weights in panels, tiles as rows of as many
 * products. */
#include "winograd.h"

enum { DEEPEST = 16 };

/* ---------------------------------------------------------------- weights */
/* W rows of a panel, of a part of the filter in a turn, from row c0 and column k0 on: how many are left of these, and
 * of columns; where they go to, [point][row][column], past the caches or not. */
typedef struct Part { int turn, part; V c0, k0, left, columns; Mem to; bool past; } Part;

/* A tap of a part in a turn, of W neighbours, at: of the first tap's, in elements; tail: lanes that exist, NULL:
 * all. */
static V
tap_at(Emit *e, const Shape *s, V from, V at, const Part *p, int i, V tail)
{
	int number = winograd_tap(s, p->turn, p->part, i);

	if (number < 0)
		return LLVMConstNull(LLVMVectorType(e->l->f32, (unsigned)e->W));
	V tap = i_add_k(e, at, number * s->C * s->K), mask = e->mask;

	e->mask = tail;
	V g = cell_vec(e, load_at(e, from, s->weights, (Off){.s = tap, .c = 1}));

	e->mask = mask;
	return s->rounded != DT_none ? round_half(e, g, s->rounded, true) : g;
}

/* Lanes that are among `left`; NULL: all are, as `n` is whole vectors. */
static V
tail_of(Emit *e, int64_t n, V left)
{
	return n % e->W ? mask_below(e, left) : NULL;
}

/* Taps g to row c and columns from k on at the points. */
static void
points_store(Emit *e, const Shape *s, const Part *p, const V *g, V c, V k)
{
	V u[POINTS_MOST];

	winograd_both(e, s, WEIGHTS, g, u);
	e->stream = p->past;
	for (int i = 0; i < s->kinds; i++)
		vec_store(e, mem_at(e, &p->to, k64(e, i), c, k), u[i], NULL);
	e->stream = false;
}

/* Of a filter as it lies. */
static void
panel_rows(Emit *e, const Shape *s, V from, const Part *p)
{
	LOOP(e, c, k64(e, 0), i_min(e, k64(e, s->w), p->left), 1) LOOP(e, k, k64(e, 0), p->columns, s->w) {
		V at = i_add(e, i_mul_k(e, i_add(e, p->c0, c), s->K), i_add(e, p->k0, k));
		V g[TAPS_MOST], tail = tail_of(e, s->K, i_sub(e, p->columns, k));

		for (int i = 0; i < s->taps; i++)
			g[i] = tap_at(e, s, from, at, p, i, tail);
		points_store(e, s, p, g, c, k);
	}
}

/* Of a transposed filter, whose rows in memory are columns: by way of `tile`, [tap][row][column], and a tap as it lies
 * behind those, as taps are fewer than points. */
static void
panel_columns(Emit *e, const Shape *s, V from, V tile, const Part *p)
{
	int w = s->w, all = s->taps;
	V transpose = transpose_block(e->l, w, false);
	Mem taps = mem_axes(e, tile, BY(F32(w * w)), BY(F32(w)), BY(4));

	LOOP(e, k, k64(e, 0), p->columns, w) {
		for (int i = 0; i < all; i++) {
			LOOP(e, j, k64(e, 0), i_min(e, k64(e, w), i_sub(e, p->columns, k)), 1) {
				V at = i_add(e, i_mul_k(e, i_add(e, i_add(e, p->k0, k), j), s->C), p->c0);

				vec_store(e, mem_at(e, &taps, k64(e, all), j),
				          tap_at(e, s, from, at, p, i, tail_of(e, s->C, p->left)), NULL);
			}
			V args[5] = {mem_at(e, &taps, k64(e, all)), k64(e, F32(w)), k64(e, w),
			             mem_at(e, &taps, k64(e, i)), k64(e, F32(w))};

			LLVMBuildCall2(here(e), LLVMGlobalGetValueType(transpose), transpose, args, 5, "");
		}
		LOOP(e, c, k64(e, 0), i_min(e, k64(e, w), p->left), 1) {
			V g[TAPS_MOST];

			for (int i = 0; i < all; i++)
				g[i] = vec_load(e, mem_at(e, &taps, k64(e, i), c), NULL);
			points_store(e, s, p, g, c, k);
		}
	}
}

/* Panels [point][panel][c][nr]. Task: W rows of a panel. */
void
winograd_weights_emit(GroupCx *gc, const Shape *s, const GemmParams *p, int src, int dst, GraphKernels *gk)
{
	int w = s->w;
	int64_t nr = (int64_t)p->nv * w, npanel = ceil_div(s->K, nr), point = winograd_weights_point(s, p),
	        height = winograd_panel_rows(s, w), blocks = ceil_div(s->C, w);
	Emit e = {0};
	bool fresh;
	int fn = kernel_begin(gc, &e, "weights", &fresh);

	if (fresh) {
		emit_lanes(&e, s->w);
		V from = buffer(&e, src), tile = NULL;
		/* of the first point of a turn */
		Mem panels = mem_axes(&e, buffer(&e, dst), BY(s->kinds * point), BY(F32(height * nr)), BY(F32(nr)));

		if (s->transposed) {
			tile = slot_new(&e, LLVMArrayType2(e.l->f32, (uint64_t)((s->taps + 1) * w * w)));
			LLVMSetAlignment(tile, 64);
		}
		TASKS(&e, t) {
			V panel = i_div_k(&e, t, blocks), c0 = i_mul_k(&e, i_rem_k(&e, t, blocks), w),
			  k0 = i_mul_k(&e, panel, nr);
			Part part = {.c0 = c0,
			             .k0 = k0,
			             .left = i_sub(&e, k64(&e, s->C), c0),
			             .columns = i_min(&e, k64(&e, nr), i_sub(&e, k64(&e, s->K), k0)),
			             .past = pack_streams(gc->g, p, s->turns * s->kinds * point)};

			for (int i = 0; i < s->turns * s->parts; i++) {
				part.turn = i / s->parts, part.part = i % s->parts;
				V row = i_add_k(&e, c0, part.part * s->C), turn = k64(&e, part.turn);

				part.to = mem_axes(&e, mem_at(&e, &panels, turn, panel, row), BY(point), BY(F32(nr)),
				                   BY(4));
				if (s->transposed)
					panel_columns(&e, s, from, tile, &part);
				else
					panel_rows(&e, s, from, &part);
			}
		}
	}
	kernel_end(gc, &e, gk, fn, (Rows){.rows = npanel * blocks, .mul = 0, .div = 1, .grain = 1}, fresh, false);
}

/* ---------------------------------------------------------------- tiles of an image */
/* Finds them: values of v's shape from outside the group. */
void
winograd_sources(GroupCx *gc, Cut *c, Val v, int depth)
{
	const Graph *g = gc->g;
	const Op *def = val_op(g, v);
	int buf = -1;

	if (!def || def->group != gc->group || def->kind == OP_load)
		buf = group_buffer(gc, v.id);
	for (int k = 0; buf < 0 && k < def->nin && depth < DEEPEST; k++)
		if (type_same_shape(val_type(g, def->in[k]), val_type(g, v)))
			winograd_sources(gc, c, def->in[k], depth + 1);
	for (int i = 0; i < c->nsource; i++)
		if (c->source[i] == buf)
			return;
	if (buf >= 0 && c->nsource < SOURCES) {
		c->width[c->nsource] = dtype_info[val_type(g, v)->dtype].bytes;
		c->source[c->nsource++] = buf;
	}
}

/* Numbers of a plane that a task of winograd_tiles_emit takes: whole images. */
static int64_t
plane_chunk(const Cut *c)
{
	return c->C < PLANE_CHUNK ? PLANE_CHUNK / c->C * c->C : c->C;
}

void
winograd_tile(Emit *e, const Shape *s, V tile, V at[2])
{
	const Side *rows = &s->side[0], *columns = &s->side[1];
	int64_t each = columns->tiles / columns->turns; /* of a row, in a turn */
	V turn = NULL;

	if (s->turns > 1) {
		turn = i_div_k(e, tile, s->each);
		tile = i_rem_k(e, tile, s->each);
	}
	at[0] = i_div_k(e, tile, each);
	at[1] = i_rem_k(e, tile, each);
	if (turn) {
		at[0] = i_add(e, at[0], i_mul_k(e, i_div_k(e, turn, columns->turns), rows->tiles / rows->turns));
		at[1] = i_add(e, at[1], i_mul_k(e, i_rem_k(e, turn, columns->turns), each));
	}
}

V
winograd_first_at(Emit *e, const Side *s, V tile)
{
	int64_t each = s->tiles / s->turns;

	if (s->turns > 1)
		return i_add(e, i_mul_k(e, i_rem_k(e, tile, each), s->step * s->tile), i_div_k(e, tile, each));
	if (s->step == 1)
		return i_mul_k(e, tile, s->tile);
	return i_add(e, i_mul_k(e, i_div_k(e, tile, s->step), s->step * s->tile), i_rem_k(e, tile, s->step));
}

/* So many pixels behind the first one that a tile is cut of. */
static V
start_at(Emit *e, const Side *s, Way way, V tile, int64_t behind)
{
	int64_t each = s->tiles / s->turns;

	if (way == GRADIENT)
		return i_add_k(e, winograd_first_at(e, s, tile), behind);
	if (s->turns > 1)
		return i_add_k(e, i_add(e, i_mul_k(e, i_rem_k(e, tile, each), s->tile),
		                        i_div_k(e, i_add_k(e, i_div_k(e, tile, each), s->pad), s->turns)),
		               behind - (s->met - 1));
	if (s->phases > 1 && s->back)
		return i_add_k(e, i_mul_k(e, tile, s->tile / s->phases), behind - s->before);
	return i_add_k(e, i_mul_k(e, winograd_first_at(e, s, tile), s->stride), behind - s->before);
}

/* Is that pixel inside an image of `length` in every tile? The first tile starts first, the last one last. */
static bool
always_inside(Emit *e, const Side *s, Way way, int64_t behind, int64_t length)
{
	int64_t first, last;

	return is_const(start_at(e, s, way, k64(e, 0), behind), &first) && first >= 0
	       && is_const(start_at(e, s, way, k64(e, s->tiles - 1), behind), &last) && last < length;
}

/* Numbers from `number` on; of lanes in both masks, NULL: all. */
static V
pixel_load(Emit *e, V from, V number, V mask, V tail)
{
	V some = mask && tail ? mask_and(e, mask, tail) : tail ? tail : mask;

	return vec_load(e, ptr_at(e, from, i_mul_k(e, number, 4)), some);
}

/* Which pixels a tile is cut of: of each row and column the nearest in the image, and whether it is the one itself;
 * NULL: always. */
typedef struct Cutting {
	const Shape *s;
	const Cut *c;
	V from, plane, pos[2][SPAN_MOST], ok[2][SPAN_MOST];
	int size[2];
	/* where it is: numbers of the plane, of an image and a channel if the kernel makes pixels or there are parts */
	V x, next, tail, image;
	Ix channel;
} Cutting;

static void
cutting_of(Emit *e, Cutting *w, int part, const V tile[2])
{
	const Cut *c = w->c;

	for (int k = 0; k < 2; k++) {
		const Side *b = &w->s->side[k];
		int number = k ? part % w->s->side[1].parts : part / w->s->side[1].parts;

		w->size[k] = winograd_taken(b, c->way);
		for (int i = 0; i < w->size[k]; i++) {
			int64_t behind = c->way == GRADIENT ? i * b->step : winograd_shift(b, number) + i * b->move;
			V want = start_at(e, b, c->way, tile[k], behind);

			w->pos[k][i] = i_min_k(e, i_max(e, want, k64(e, 0)), c->in[k] - 1);
			w->ok[k][i] = always_inside(e, b, c->way, behind, c->in[k])
			                      ? NULL
			                      : LLVMBuildICmp(here(e), LLVMIntEQ, want, w->pos[k][i], "");
		}
	}
}

static V
both_inside(Emit *e, V a, V b)
{
	V both = a && b ? LLVMBuildAnd(here(e), a, b, "") : a ? a : b;

	return both ? splat(e, both) : NULL;
}

static V
number_of(Emit *e, const Cutting *w, V row, V column)
{
	return i_mul(e, i_add(e, i_mul_k(e, row, w->c->in[1]), column), w->plane);
}

/* A pixel, `off` numbers into the image; of those that the kernel makes, by its row and column. */
static V
pixel(Emit *e, const Cutting *w, V off, V row, V column, V mask)
{
	if (w->from)
		return pixel_load(e, w->from, i_add(e, off, w->x), mask, w->tail);
	/* made where pixels are, and nothing in the padding; both are inside */
	V v = cell_vec(e, prologue_at(e, w->c->made, w->image, w->channel, row, column));

	return mask ? LLVMBuildSelect(here(e), mask, v, LLVMConstNull(LLVMTypeOf(v)), "") : v;
}

/* Asks for it: there are more streams than the CPU follows by itself. */
static void
pixel_ahead(Emit *e, const Cutting *w, V off)
{
	const Cut *c = w->c;

	for (int k = 0; k < c->nsource; k++)
		prefetch(e, ptr_at(e, buffer(e, c->source[k]), i_mul_k(e, i_add(e, off, w->next), c->width[k])), 2);
}

/* All pixels to all points, to[point]. */
static void
cut_whole(Emit *e, const Cutting *w, const V *off, const V *mask, const Mem *to)
{
	V in[POINTS_MOST], r[POINTS_MOST];
	int pixels = w->size[0] * w->size[1];

	for (int i = 0; i < pixels; i++)
		in[i] = pixel(e, w, off[i], w->pos[0][i / w->size[1]], w->pos[1][i % w->size[1]], mask[i]);
	for (int i = 0; i < pixels; i++)
		pixel_ahead(e, w, off[i]);
	winograd_both(e, w->s, w->c->way, in, r);
	for (int i = 0; i < w->s->points; i++)
		vec_store(e, mem_at(e, to, k64(e, i)), r[i], w->tail);
}

/* Rows of many pixels in a loop, whose columns become points first: unrolled, they take the compiler long. Of each row
 * which pixels, and whether they are inside; points of columns, of all rows. */
typedef struct RowList { Mem at, ok, half; } RowList;

static RowList
row_list(Emit *e, const Cutting *w)
{
	V numbers = slot_new(e, LLVMArrayType2(e->l->i64, (uint64_t)(2 * w->size[0]))),
	  half = slot_new(e, LLVMArrayType2(e->l->f32, (uint64_t)(SPAN_MOST * SPAN_MOST * e->W)));
	RowList r = {.at = mem_axes(e, numbers, BY(8)),
	             .ok = mem_axes(e, numbers, BY(8)),
	             .half = mem_axes(e, half, BY(F32(SPAN_MOST * e->W)), BY(F32(e->W)))};

	LLVMSetAlignment(half, 64);
	r.ok.start = k64(e, 8 * w->size[0]);
	for (int i = 0; i < w->size[0]; i++) {
		V ok = w->ok[0][i] ? LLVMBuildZExt(here(e), w->ok[0][i], e->l->i64, "") : k64(e, 1);

		LLVMBuildStore(here(e), w->pos[0][i], mem_at(e, &r.at, k64(e, i)));
		LLVMBuildStore(here(e), ok, mem_at(e, &r.ok, k64(e, i)));
	}
	return r;
}

static void
cut_rows(Emit *e, const Cutting *w, const RowList *list, const Mem *to)
{
	const Side *rows = &w->s->side[0], *columns = &w->s->side[1];
	V a[SPAN_MOST], r[SPAN_MOST];
	bool stream = e->stream;

	e->stream = false; /* not what stays here */
	LOOP(e, i, k64(e, 0), k64(e, w->size[0]), 1) {
		V row = LLVMBuildLoad2(here(e), e->l->i64, mem_at(e, &list->at, i), ""),
		  is = LLVMBuildLoad2(here(e), e->l->i64, mem_at(e, &list->ok, i), ""),
		  ok = LLVMBuildICmp(here(e), LLVMIntNE, is, k64(e, 0), "");

		for (int j = 0; j < w->size[1]; j++) {
			V off = number_of(e, w, row, w->pos[1][j]);

			a[j] = pixel(e, w, off, row, w->pos[1][j], both_inside(e, ok, w->ok[1][j]));
			pixel_ahead(e, w, off);
		}
		winograd_along(e, columns, w->c->way, a, r);
		for (int j = 0; j < columns->span; j++)
			vec_store(e, mem_at(e, &list->half, i, k64(e, j)), r[j], NULL);
	}
	LOOP(e, j, k64(e, 0), k64(e, columns->span), 1) {
		for (int i = 0; i < w->size[0]; i++)
			a[i] = vec_load(e, mem_at(e, &list->half, k64(e, i), j), NULL);
		winograd_along(e, rows, w->c->way, a, r);
		e->stream = stream;
		for (int i = 0; i < rows->span; i++)
			vec_store(e, mem_at(e, to, i_add_k(e, j, i * columns->span)), r[i], w->tail);
		e->stream = false;
	}
	e->stream = stream;
}

/* Numbers [lo, hi) of the planes of tile (tile[0], tile[1]), of one part, to `out` + a point's distance for each
 * point. */
static void
cut_part(Emit *e, const Shape *s, const Cut *c, int part, V from, const V tile[2], V lo, V hi, V out, int64_t point)
{
	Cutting w = {.s = s, .c = c, .from = from, .plane = i_mul_k(e, extent(e, s->n), c->C)};
	V off[POINTS_MOST], mask[POINTS_MOST], before = e->mask;
	bool lanes = e->lanes, many;
	RowList list;

	cutting_of(e, &w, part, tile);
	many = w.size[0] * w.size[1] > SPAN * SPAN;
	if (many)
		list = row_list(e, &w);
	for (int i = 0; i < w.size[0] && !many; i++)
		for (int j = 0; j < w.size[1]; j++) {
			off[i * w.size[1] + j] = number_of(e, &w, w.pos[0][i], w.pos[1][j]);
			mask[i * w.size[1] + j] = both_inside(e, w.ok[0][i], w.ok[1][j]);
		}
	if (from && c->parts == 1) {
		w.x = loop_open(e, lo, hi, e->W);
		w.tail = tail_of(e, c->C, i_sub(e, hi, w.x));
	} else {
		w.image = loop_open(e, i_div_k(e, lo, c->C), i_div_k(e, hi, c->C), 1);
		w.channel = (Ix){.s = loop_open(e, k64(e, 0), k64(e, c->C), e->W), .c = 1};
		w.x = i_add(e, i_mul_k(e, w.image, c->C), w.channel.s);
		e->lanes = true;
		e->mask = w.tail = tail_of(e, c->C, i_sub(e, k64(e, c->C), w.channel.s));
	}
	V number = i_sub(e, w.x, lo);

	w.next = i_add_k(e, w.x, AHEAD * e->W);
	if (c->parts > 1) {
		/* channels of the other parts, of images before this one, and of parts before this one of its own */
		V others = i_mul_k(e, i_sub(e, w.image, i_div_k(e, lo, c->C)), (c->parts - 1) * c->C);

		number = i_add_k(e, i_add(e, number, others), part * c->C);
	}
	Mem to = mem_axes(e, ptr_at(e, out, i_mul_k(e, number, 4)), BY(point));

	if (many)
		cut_rows(e, &w, &list, &to);
	else
		cut_whole(e, &w, off, mask, &to);
	for (int i = 0; i < (w.image ? 2 : 1); i++)
		loop_close(e);
	e->lanes = lanes;
	e->mask = before;
}

void
winograd_cut(Emit *e, const Shape *s, const Cut *c, V from, const V tile[2], V lo, V hi, V out, int64_t point)
{
	for (int part = 0; part < c->parts; part++)
		cut_part(e, s, c, part, from, tile, lo, hi, out, point);
}

/* [point][tile][image][channel], past the caches where they will not keep it. Task: a tile, and a piece of its
 * planes. */
void
winograd_tiles_emit(GroupCx *gc, const Shape *s, const Cut *c, GraphKernels *gk)
{
	int64_t full = s->n.n * c->C, chunk = plane_chunk(c), chunks = ceil_div(full, chunk);
	int64_t point = winograd_point(s->tiles * full * c->parts);
	Cut with = *c;
	Emit e = {0};
	bool fresh;

	winograd_sources(gc, &with, c->made, 0);
	int fn = kernel_begin(gc, &e, c->part, &fresh);

	if (fresh) {
		emit_lanes(&e, s->w);
		/* half lines of 36 streams would each go to memory by themselves */
		e.stream = s->points * point >= machine_of(gc->g)->budget.l3 / 4 && !s->n.mul && s->w == 16 &&
		           c->C % s->w == 0;
		V from = c->src < 0 ? NULL : buffer(&e, c->src), plane = i_mul_k(&e, extent(&e, s->n), c->C);
		Mem to = mem_axes(&e, buffer(&e, c->dst), OF(0), BY(4)); /* [tile][number of the plane] */

		to.axis[0].step = i_mul_k(&e, plane, c->parts);
		TASKS(&e, t) {
			V tile = i_div_k(&e, t, chunks), at[2];

			winograd_tile(&e, s, tile, at);
			V lo = i_min(&e, i_mul_k(&e, i_rem_k(&e, t, chunks), chunk), plane),
			  hi = i_min(&e, i_add_k(&e, lo, chunk), plane);

			winograd_cut(&e, s, &with, from, at, lo, hi, mem_at(&e, &to, tile, i_mul_k(&e, lo, c->parts)),
			             point);
		}
	}
	kernel_end(gc, &e, gk, fn, (Rows){.rows = s->tiles * chunks, .mul = 0, .div = 1, .grain = 1}, fresh,
	           false);
}
