/* prologue.c: operands of a contraction that its own kernel makes of elementwise ops, as it loads them.
 *
 * In: a group whose contraction reads what ops before it in the group compute.   Out: where that happens, chosen by
 * shape and kernel:
 *  - tiles: in the transform of Winograd's tiles, in registers (winograd.c); padding is put in after it;
 * - band: some pixels of all images and channels, into the thread's scratch memory, once for all panels and taps that
 * read them;
 *  - pairs: on the way into rows of pairs, which are copied anyway (pack16.c);
 *  - panels: elements of f32 that are rounded to 16 bits on the way into the panels of the second operand (pack.c);
 *  - copy: all of it into the group's workspace, by a kernel of the group's own.
 * What the ops read, the operand's elements lie beside: they are evaluated at the operand's own indices, so any
 * elementwise op will do. */
#include "algo.h"
#include <string.h>

/* What may be made at once: it lies in L2 beside what the products read, but for the rows of a gradient, which are
 * read along. */
static int64_t panel_most(const Graph *g) { return machine_of(g)->budget.l2; }
static int64_t pixel_most(const Graph *g) { return machine_of(g)->budget.l2; }
static int64_t band_most(const Graph *g) { return machine_of(g)->budget.l2 / 4; }
static int64_t gradient_most(const Graph *g) { return 2 * machine_of(g)->budget.l2; }

bool
prologue_made(const Graph *g, const Op *op, int k)
{
	const Op *def = val_op(g, op->in[k]);

	return def && op->group >= 0 && def->group == op->group && def->kind != OP_load;
}

/* Columns that must be transposed are rounded into the thread's memory first. */
bool
pack_rounds(const Graph *g, const Op *op, const GemmParams *p)
{
	if (!engine_pairs(p) || !p->pack)
		return false;
	Pack k = pack_of(g, op, true);

	return k.second || F32(k.k * p->nv * p->lanes) <= panel_most(g);
}

bool
prologue_rounds(const Graph *g, const Op *op, const GemmParams *p)
{
	return p->algo->rounds && p->algo->rounds(g, op, p);
}

Val
prologue_rounded(const Graph *g, const Op *op, const GemmParams *p)
{
	const Op *def = val_op(g, op->in[1]);

	if (!prologue_made(g, op, 1) || !prologue_rounds(g, op, p) || def->kind != OP_cast ||
	    val_type(g, def->in[0])->dtype != DT_f32)
		return NOVAL;
	const Op *from = val_op(g, def->in[0]);
	bool stands = !from || from->group != op->group || from->kind == OP_load;

	return stands && !memcmp(val_type(g, def->in[0])->perm, val_type(g, op->in[1])->perm,
	                         sizeof val_type(g, op->in[1])->perm)
	               ? def->in[0]
	               : NOVAL;
}

static int64_t
pixel_bytes(const Type *t, const GemmParams *p)
{
	return t->axis[0].n * t->axis[1].n * (engine_pairs(p) ? 2 : 4);
}

/* A filter of one tap at every pixel: an output pixel needs its own input pixel and no other. */
static bool
pointwise(const Graph *g, const Op *op)
{
	Window w = window_of(g, op);

	return window_is_point(&w);
}

/* Input rows that a band of a weight gradient's output rows meets, and what they take. */
static int64_t
band_rows(const Graph *g, const Op *op, const GemmParams *p, int k)
{
	const Type *x = val_type(g, op->in[0]);
	Window w = window_of(g, op);
	int64_t rows = (p->band - 1) * w.stride[0] + (w.k[0] - 1) * w.dilation[0] + 1;

	return k == 1 ? p->band : rows < x->axis[2].n ? rows : x->axis[2].n;
}

static int64_t
band_bytes(const Graph *g, const Op *op, const GemmParams *p, int k)
{
	const Type *t = val_type(g, op->in[k]);
	int64_t bytes = band_rows(g, op, p, k) * t->axis[3].n * pixel_bytes(t, p);

	return align64(p->copy && p->images ? bytes / t->axis[0].n * p->images : bytes);
}

PrologueWay
prologue_way(const Graph *g, const Op *op, const GemmParams *p, int k)
{
	const Type *t = val_type(g, op->in[k]);

	if (k == 1 && prologue_rounded(g, op, p).id)
		return PROLOGUE_PANELS;
	if (p->algo->way)
		return p->algo->way(op, k);
	if (engine_pairs(p) && vnni_row(g, op, k))
		return PROLOGUE_PAIRS;
	if ((gemm_half(g, op) && !engine_pairs(p)) || pads_rows(g, op, p, k))
		return PROLOGUE_COPY;
	if (op->kind == OP_conv2d_dw)
		return p->parts > 1 && band_bytes(g, op, p, k) <= gradient_most(g) ? PROLOGUE_BAND : PROLOGUE_COPY;
	if (op->kind == OP_matmul || k == 1 || p->panel_outer || !pointwise(g, op))
		return PROLOGUE_COPY;
	return pixel_bytes(t, p) <= pixel_most(g) ? PROLOGUE_BAND : PROLOGUE_COPY;
}

/* Pixels whose results, and what the ops behind them read, lie in L2 from panel to panel: of 16 bits a panel is a line
 * of memory, the CPU fetches the next one along, and without a band that is gone before its panel comes. */
static int64_t
epilogue_pixels(const Graph *g, const Op *op, const GemmParams *p)
{
	enum { TENSORS = 4 }; /* of the result's size that a kernel meets, whatever is fused: sums begin with a band */

	return engine_pairs(p) ? machine_of(g)->budget.l2 / 2 / (TENSORS * pixel_bytes(val_type(g, op->out[0]), p))
	                       : INT64_MAX;
}

bool
epilogue_bands(const Graph *g, const Op *op, const GemmParams *p, bool reduces)
{
	return engine_pairs(p) && (reduces || !p->panel_outer) && pointwise(g, op) &&
	       prologue_pixels(g, op, p) < val_type(g, op->out[0])->axis[3].n;
}

int64_t
prologue_pixels(const Graph *g, const Op *op, const GemmParams *p)
{
	const Type *t = val_type(g, op->in[0]);
	int64_t n = band_most(g) / pixel_bytes(t, p), behind = epilogue_pixels(g, op, p);

	if (n > behind)
		n = behind;
	return n < 1 ? 1 : n < t->axis[3].n ? n : t->axis[3].n;
}

/* Every panel of columns reads a piece's input again: what all of a row is too large for waits in L2. A row that is
 * alone, or one of few, is parted among threads too; of many threads where all panels stay in L2 from piece to piece,
 * so that more pieces cost few threads nothing. Not within a band. */
int64_t
image_cut(const Graph *g, const Op *op, const GemmParams *p)
{
	/* tasks that threads share, where each has so many rows of the product left; rows of a piece; columns of a
	 * panel */
	enum { PIECES = 8, ROWS = 96, LONG = 2048, USUAL = 64 };
	enum { MANY = 128, FULL = 192 }; /* tasks for many threads, and rows left, where no panel leaves L2 */
	const Type *x = val_type(g, op->in[0]), *w = val_type(g, op->in[1]), *o = val_type(g, op->out[0]);
	int64_t width = o->axis[3].n, n = o->axis[0].n, bytes = F32(n * x->axis[1].n);
	int64_t most = machine_of(g)->budget.l2 / 2;
	int64_t panels = gemm_groups(op) * ceil_div(o->axis[1].n / gemm_groups(op), USUAL);
	int64_t tasks = o->axis[2].n * panels, cuts = 1, whole = 1;

	if (panels > 1 && width * bytes > 2 * most)
		cuts = ceil_div(width * bytes, most);
	if (cuts < width * n / LONG)
		cuts = width * n / LONG;
	if (tasks * cuts < PIECES)
		cuts = ceil_div(PIECES, tasks);
	if (F32(type_elements(w)) <= most / 2 && tasks * cuts < MANY && width * n / FULL > cuts) {
		cuts = width * n / FULL < ceil_div(MANY, tasks) ? width * n / FULL : ceil_div(MANY, tasks);
		whole = prologue_made(g, op, 0) || engine_pairs(p) ? prologue_pixels(g, op, p) : 1;
	}
	if (cuts > width * n / ROWS)
		cuts = width * n / ROWS;
	if (cuts > width)
		cuts = width;
	int64_t cut = cuts > 1 ? ceil_div(ceil_div(width, cuts), whole) * whole : width;

	return cut < width ? cut : width;
}

bool
prologue_bands(const Graph *g, const Op *op, const GemmParams *p)
{
	GemmParams rows = *p;

	rows.panel_outer = false;
	return prologue_made(g, op, 0) && prologue_way(g, op, &rows, 0) == PROLOGUE_BAND;
}

int64_t
prologue_scratch(const Graph *g, const Op *op, const GemmParams *p)
{
	int64_t bytes = 0;

	for (int k = 0; k < op->nin && k < 2; k++)
		if (prologue_made(g, op, k) && prologue_way(g, op, p, k) == PROLOGUE_BAND)
			bytes += op->kind == OP_conv2d_dw
			                 ? band_bytes(g, op, p, k)
			                 : prologue_pixels(g, op, p) * pixel_bytes(val_type(g, op->in[k]), p);
	return bytes;
}

void
prologue_price(const Graph *g, const Op *op, int k, const GemmParams *p, DType half, Prologue *r)
{
	if (!p->algo->emit) {
		r->why = "the contraction takes the plain kernel, which would compute it for every multiplication";
		return;
	}
	r->times = 1;
	if (p->algo->cost) {
		p->algo->cost(g, op, p, k, r);
		return;
	}
	/* widened into a copy with or without a prologue */
	if (half != DT_none && !engine_pairs(p) && !p->algo->widens)
		return;
	switch (prologue_way(g, op, p, k)) {
	case PROLOGUE_TILES: r->times = p->algo->loads(g, op, p, k); break;
	case PROLOGUE_BAND:
		if (op->kind == OP_conv2d_dw && k == 0)
			r->times =
			        (double)band_rows(g, op, p, 0) / (double)(p->band * window_of(g, op).stride[0]);
		break;
	case PROLOGUE_PAIRS:
	case PROLOGUE_PANELS: break;
	case PROLOGUE_COPY: r->copied = true; break;
	}
}

/* ---------------------------------------------------------------- emission */
Cell
prologue_at(Emit *e, Val v, V n, Ix c, V h, V w)
{
	Ix ix[MAX_RANK] = {ix_s(n), c, ix_s(h), ix_s(w)};

	return lane_eval(e, v, ix);
}

typedef struct Pixel { Val v; V n, h, w; Mem out; } Pixel; /* out: [channel], in elements */

static void
pixel_lane(Emit *e, void *cx, Ix c, int u)
{
	const Pixel *p = cx;

	(void)u;
	store_at(e, p->out.base, (DType)val_type(e->g, p->v)->dtype, mem_lanes(e, &p->out, c.s),
	         prologue_at(e, p->v, p->n, c, p->h, p->w));
}

void
prologue_row(Emit *e, Val v, V h, V w0, V w1, V out)
{
	const Type *t = val_type(e->g, v);
	int64_t C = t->axis[1].n;
	V images = extent(e, t->axis[0]);
	Mem row = mem_axes(e, out, OF(1), BY(C), BY(1)); /* [column][image][channel] */

	row.axis[0].step = images;
	LOOP(e, w, w0, w1, 1) EACH(e, n, images) {
		Pixel p = {v, n, h, w, mem_fix(e, &row, i_sub(e, w, w0), n)};

		lane_loop(e, k64(e, 0), k64(e, C), C % (4 * e->W) ? 1 : 4, pixel_lane, &p);
	}
}

V
prologue_band(Emit *e, const Op *op, const GemmParams *p, int k, V h0, V h1)
{
	const Type *t = val_type(e->g, op->in[k]);
	V out = scratch_ptr(e, k && prologue_made(e->g, op, 0) && prologue_way(e->g, op, p, 0) == PROLOGUE_BAND
	                               ? band_bytes(e->g, op, p, 0)
	                               : 0);
	Mem band = mem_axes(e, out, BY(t->axis[3].n * pixel_bytes(t, p)));

	LOOP(e, h, h0, h1, 1)
		prologue_row(e, op->in[k], h, k64(e, 0), k64(e, t->axis[3].n), mem_at(e, &band, i_sub(e, h, h0)));
	return out;
}
