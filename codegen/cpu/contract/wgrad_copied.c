/* wgrad_copied.c: the gradient of a convolution in its weights, operands copied into panels first (GemmParams.copy).
 *
 * In: as wgrad.c, and the same results to the bit, as the order of the sums is that of the passes.   Out: the main
 * kernel. A pass is some rows of pixels of some images. Of it a call copies, into the thread's scratch memory, a block
 * of input channels as panels of a tile's rows, [panel][row][column][image][high], which meet all panels of columns,
 * and of each panel of columns [row][column][image][nr], which stays in L1 while the block's tiles go over it. Where
 * they lie, numbers of a pixel are powers of two apart, so that a tile's lines meet in few sets of the caches, and a
 * tile takes less than half of each line: a CPU whose products are short of what L2 delivers gets 1.5 to 2 times the
 * speed, one whose units wait for registers nothing. Operands that the kernel makes are made as they are copied:
 * columns once for all blocks. A filter of one tap has only the pixels that it meets copied.
 * Not for one input channel with the filter's columns as rows, nor for 16-bit pairs (gemm_copies). */
#include "wgrad.h"

enum { PAD = 64 }; /* bytes behind a panel: its last row is stored in whole vectors, and panels that are made together
                    * shall not meet in one set of each cache */

typedef struct Copied {
	Wgrad w;
	int64_t nr;              /* columns of a panel */
	int64_t high;            /* rows of a panel of the first operand */
	int64_t block, channels; /* input channels that are copied together, of a slice */
	int64_t subs;            /* slices of a block's channels */
	int64_t step[2];         /* input rows, columns from one that is copied to the next */
	int64_t rows, columns;   /* of the first operand that are copied in a pass, at most */
	int64_t panel;           /* bytes of a panel of it */
	int64_t sums;            /* of a pass, at most */
	int64_t column_panel;    /* bytes of a panel of the second operand */
	bool made[2];
} Copied;

static int64_t
rounded_up(int64_t n, int64_t unit)
{
	return ceil_div(n, unit) * unit;
}

static Copied
copied_of(const Graph *g, const Op *op, const GemmParams *p)
{
	enum { SLICES = 256 }; /* that give many threads work */
	Copied c = {.w = wgrad_of(g, op, p), .nr = (int64_t)p->nv * p->lanes};
	const Wgrad *w = &c.w;
	int64_t most, slices = (p->parts > 1 ? p->parts : 1) * w->groups * w->npanel * w->R, want;

	for (int k = 0; k < 2; k++)
		c.made[k] = prologue_made(g, op, k) && prologue_way(g, op, p, k) == PROLOGUE_BAND;
	c.step[0] = w->R == 1 ? w->stride[0] : 1;
	c.step[1] = w->S == 1 ? w->stride[1] : 1;
	c.rows = w->R == 1 ? p->band : (p->band - 1) * w->stride[0] + (w->R - 1) * w->dil[0] + 1;
	c.rows = c.rows < w->H ? c.rows : w->H;
	c.columns = w->S == 1 ? w->cut : (w->cut - 1) * w->stride[1] + (w->S - 1) * w->dil[1] + 1;
	c.columns = c.columns < w->W || w->S == 1 ? c.columns : w->W;
	c.sums = p->band * w->cut * w->images;
	c.column_panel = c.sums * c.nr * 4 + PAD;
	c.high = ceil_div(w->C, ceil_div(w->C, p->mr));
	c.panel = c.rows * c.columns * w->images * c.high * 4 + PAD;
	/* in L2 beside what is read, the columns and the results */
	most = machine_of(g)->budget.l2 / c.panel;
	most = (most < 2 ? 2 : most) * c.high;
	c.block = rounded_up(ceil_div(w->C, ceil_div(w->C, most)), c.high);
	want = ceil_div(SLICES, slices * ceil_div(w->C, c.block));
	c.channels = rounded_up(ceil_div(c.block, want), c.high);
	if (c.channels < 2 * c.high)
		c.channels = 2 * c.high < c.block ? 2 * c.high : c.block;
	c.subs = ceil_div(c.block, c.channels);
	return c;
}

/* Of the panels of rows; behind them are those of columns. */
static int64_t
rows_bytes(const Copied *c)
{
	return align64(c->block / c->high * c->panel);
}

int64_t
wgrad_copied_bytes(const Graph *g, const Op *op, const GemmParams *p)
{
	Copied c = copied_of(g, op, p);

	return rows_bytes(&c) + (c.made[1] ? c.w.groups * c.w.npanel : 1) * c.column_panel;
}

/* ---------------------------------------------------------------- emission */
/* A pass of a part: rows [band, end) of the gradient, images from `image` on, columns [q0, q1) of Wgrad; which input
 * rows, and columns, it copies: [first, last), [left, right) (of a filter of one row, or column: the output's). */
typedef struct Pass { V image, first, last, left, right, q0; } Pass;

/* W numbers of operand k, image n, pixel (h, x), channel `channel`, where mask has a lane. */
static V
numbers_of(Emit *e, const Copied *c, const Op *op, int k, V n, V h, V x, V channel, V mask)
{
	const Wgrad *w = &c->w;
	V from = k ? w->grad : w->in;

	if (c->made[k]) {
		V was = e->mask;

		e->mask = mask;
		V v = cell_vec(e, prologue_at(e, op->in[k], n, (Ix){.s = channel, .c = 1}, h, x));

		e->mask = was;
		return v;
	}
	V pixel = i_add(e, i_mul(e, i_add(e, i_mul(e, h, k64(e, k ? w->OW : w->W)), x), k64(e, w->N)), n);

	return vec_load(e, ptr_at(e, from, i_mul(e, i_add(e, i_mul(e, pixel, k64(e, w->line[k])), channel), k64(e, 4))),
	                mask);
}

/* Where a pixel of the first operand is copied from and to; channel: the block's first, of all; end: behind its
 * group's last. */
typedef struct Pixel { V image, h, x, channel, end, to; } Pixel;

/* Panels [p0, p1); masked: of what is left of the channels, else whole vectors are read, of which the last reaches into
 * the next panel's. A masked load takes twice the time. */
static void
copy_panels(Emit *e, const Copied *c, const Op *op, const Pixel *at, bool masked, V p0, V p1)
{
	V panel = loop_open(e, p0, p1, 1), channel = i_add(e, at->channel, i_mul(e, panel, k64(e, c->high)));
	V out = ptr_at(e, at->to, i_mul(e, panel, k64(e, c->panel)));
	V left = i_min(e, k64(e, c->high), i_sub(e, at->end, channel));

	for (int64_t v = 0; v < c->high; v += e->W)
		vec_store(e, ptr_at(e, out, k64(e, v * 4)),
		          numbers_of(e, c, op, 0, at->image, at->h, at->x, i_add(e, channel, k64(e, v)),
		                     masked ? row_mask(e, left, v) : NULL), NULL);
	loop_close(e);
}

/* Panels [p0, p1) of the block of channels that begins at c0 of its group; `channel`: the group's first. */
static void
copy_block(Emit *e, const Copied *c, const Op *op, const Pass *pass, V c0, V channel, V p0, V p1)
{
	const Wgrad *w = &c->w;
	V to = scratch_ptr(e, 0), i = loop_open(e, pass->first, pass->last, 1);
	V h = w->R == 1 ? i_sub(e, i_mul(e, i, k64(e, c->step[0])), k64(e, w->pad[0])) : i;
	V column = loop_open(e, pass->left, pass->right, 1), j = i_sub(e, column, pass->left);
	V x = w->S == 1 ? i_sub(e, i_mul(e, column, k64(e, c->step[1])), k64(e, w->pad[1])) : column;
	V n = loop_open(e, k64(e, 0), k64(e, w->images), 1);
	V row = i_sub(e, i, w->R == 1 ? w->band : pass->first);
	V at = i_add(e, i_mul(e, i_add(e, i_mul(e, row, k64(e, c->columns)), j), k64(e, w->images)), n);
	Pixel pixel = {i_add(e, pass->image, n), h, x, i_add(e, channel, c0), i_add(e, channel, k64(e, w->C)),
	               ptr_at(e, to, i_mul(e, at, k64(e, c->high * 4)))};
	/* those whose vectors end within the group's channels */
	int64_t read = rounded_up(c->high, e->W);
	V whole = i_max(e, p0, i_min(e, p1, i_div(e, i_max(e, k64(e, 0), i_sub(e, k64(e, w->C - read + c->high), c0)),
	                                          k64(e, c->high))));

	copy_panels(e, c, op, &pixel, false, p0, whole);
	copy_panels(e, c, op, &pixel, true, whole, p1);
	for (int k = 0; k < 3; k++)
		loop_close(e);
}

/* Behind the pass's last column. */
static V
pass_end(Emit *e, const Wgrad *w)
{
	return w->cut < w->OW ? w->q1 : k64(e, w->OW);
}

/* Rows [o0, o1) of panels [p0, p1) of all groups', to `to`, which begins with row w->band of panel p0. */
static void
copy_columns(Emit *e, const Copied *c, const Op *op, const Pass *pass, V p0, V p1, V o0, V o1, V to)
{
	const Wgrad *w = &c->w;
	int64_t own = w->K / w->groups;
	V o = loop_open(e, o0, o1, 1), x = loop_open(e, pass->q0, pass_end(e, w), 1);
	V n = loop_open(e, k64(e, 0), k64(e, w->images), 1), image = i_add(e, pass->image, n);
	V row = i_add(e, i_mul(e, i_sub(e, o, w->band), k64(e, w->cut)), i_sub(e, x, pass->q0));
	V at = i_mul(e, i_add(e, i_mul(e, row, k64(e, w->images)), n), k64(e, c->nr * 4));
	V all = loop_open(e, p0, p1, 1), group, kb;

	panel_find(e, w->groups, w->npanel, all, &group, &kb);
	V column = i_mul(e, kb, k64(e, c->nr)), left = i_sub(e, k64(e, own), column);
	V out = ptr_at(e, to, i_add(e, at, i_mul(e, i_sub(e, all, p0), k64(e, c->column_panel))));

	column = i_add(e, i_mul(e, group, k64(e, own)), column);
	for (int64_t v = 0; v < c->nr; v += e->W) {
		V mask = own % c->nr ? row_mask(e, left, v) : NULL;

		vec_store(e, ptr_at(e, out, k64(e, v * 4)),
		          numbers_of(e, c, op, 1, image, o, x, i_add(e, column, k64(e, v)), mask), NULL);
	}
	for (int k = 0; k < 4; k++)
		loop_close(e);
}

/* Which columns the pass copies of its rows. */
static void
pass_columns(Emit *e, const Wgrad *w, Pass *pass)
{
	V end = pass_end(e, w);

	pass->q0 = w->cut < w->OW ? w->q0 : k64(e, 0);
	if (w->S == 1) { /* of the output's */
		pass->left = i_max(e, pass->q0, k64(e, w->ss[0]));
		pass->right = i_min(e, end, k64(e, w->ss[0] + w->ss[1]));
		return;
	}
	pass->left = k64(e, 0), pass->right = k64(e, w->W);
	if (w->cut == w->OW)
		return;
	V last = i_sub(e, i_mul(e, i_sub(e, end, k64(e, 1)), k64(e, w->stride[1])), k64(e, w->pad[1]));

	pass->left = i_max(e, pass->left, i_sub(e, i_mul(e, pass->q0, k64(e, w->stride[1])), k64(e, w->pad[1])));
	pass->right = i_min(e, pass->right, i_add(e, last, k64(e, (w->S - 1) * w->dil[1] + 1)));
}

/* Opens the loops over the part's passes; returns how many. */
static int
passes_open(Emit *e, Copied *c, const GemmParams *p, Pass *pass)
{
	Wgrad *w = &c->w;
	V parts = k64(e, p->parts), rows = k64(e, w->OH), lo = i_div(e, i_mul(e, w->part, rows), parts),
	  hi = i_div(e, i_mul(e, i_add(e, w->part, k64(e, 1)), rows), parts);

	w->band = loop_open(e, lo, hi, p->band);
	w->end = i_min(e, i_add(e, w->band, k64(e, p->band)), hi);
	pass->image = loop_open(e, k64(e, 0), k64(e, w->N), w->images);
	V again = LLVMBuildOr(here(e), LLVMBuildICmp(here(e), LLVMIntNE, w->band, lo, ""),
	                      LLVMBuildICmp(here(e), LLVMIntNE, pass->image, k64(e, 0), ""), "");

	w->acc = LLVMBuildZExt(here(e), again, e->l->i64, "");
	int loops = 2 + wgrad_cut_open(e, w);

	pass_columns(e, w, pass);
	if (w->R == 1) { /* of the output's */
		pass->first = i_max(e, w->band, k64(e, w->rr[0]));
		pass->last = i_min(e, w->end, k64(e, w->rr[1]));
		return loops;
	}
	V last = i_sub(e, i_mul(e, i_sub(e, w->end, k64(e, 1)), k64(e, w->stride[0])), k64(e, w->pad[0]));

	pass->first = i_max(e, k64(e, 0), i_sub(e, i_mul(e, w->band, k64(e, w->stride[0])), k64(e, w->pad[0])));
	pass->last = i_min(e, i_add(e, last, k64(e, (w->R - 1) * w->dil[0] + 1)), k64(e, w->H));
	return loops;
}

/* Tiles of channels [ca, cb) of the block from c0 on, all filter columns of row r, over output rows [o0, o1). */
static void
block_tiles(Emit *e, const Copied *c, const Pass *pass, V c0, V ca, V cb, V r, V o0, V o1, V columns)
{
	const Wgrad *w = &c->w;
	V np = i_sub(e, o1, o0), s = loop_open(e, k64(e, 0), k64(e, w->S), 1), s3 = i_mul(e, s, k64(e, 3));
	V ow = table_at(e, w->ts, s3), nq = table_at(e, w->ts, i_add(e, s3, k64(e, 1))),
	  column = table_at(e, w->ts, i_add(e, s3, k64(e, 2)));

	wgrad_clip(e, w, &ow, &nq, &column);
	column = w->S == 1 ? k64(e, 0) : i_sub(e, column, pass->left);
	V h = i_add(e, i_sub(e, i_mul(e, o0, k64(e, w->stride[0])), k64(e, w->pad[0])), i_mul(e, r, k64(e, w->dil[0])));
	V row = w->R == 1 ? i_sub(e, o0, w->band) : i_sub(e, h, pass->first);
	V pixel = i_add(e, i_mul(e, row, k64(e, c->columns)), column);
	V from = ptr_at(e, scratch_ptr(e, 0), i_mul(e, pixel, k64(e, w->images * c->high * 4)));
	V grad = ptr_at(e, columns,
	                i_mul(e, i_add(e, i_mul(e, i_sub(e, o0, w->band), k64(e, w->cut)), i_sub(e, ow, pass->q0)),
	                      k64(e, w->images * c->nr * 4)));
	V rs = i_add(e, i_mul(e, i_add(e, i_mul(e, w->part, k64(e, w->R)), r), k64(e, w->S)), s);
	V last = i_div(e, i_add(e, cb, k64(e, c->high - 1)), k64(e, c->high));
	V panel = loop_open(e, i_div(e, ca, k64(e, c->high)), last, 1);
	V own = i_add(e, c0, i_mul(e, panel, k64(e, c->high)));
	V to = i_add(e, i_mul(e, i_add(e, i_mul(e, rs, k64(e, w->C)), own), k64(e, w->K * 4)), w->kcol);

	tile_call(e, &w->tiles, i_min(e, k64(e, c->high), i_sub(e, k64(e, w->C), own)), w->kb, w->npanel,
	          ptr_at(e, from, i_mul(e, panel, k64(e, c->panel))), grad, ptr_at(e, w->out, to), np, nq,
	          w->strides, w->acc);
	loop_close(e);
	loop_close(e);
}

static void
copied_strides(Emit *e, const Copied *c, V *st)
{
	const Wgrad *w = &c->w;
	int64_t pixel = w->images * c->high * 4, column = w->images * c->nr * 4;

	st[S_AM] = k64(e, 4);
	st[S_AK] = k64(e, c->high * 4);
	st[S_AP] = k64(e, w->stride[0] / c->step[0] * c->columns * pixel);
	st[S_AQ] = k64(e, w->stride[1] / c->step[1] * pixel);
	st[S_BP] = k64(e, w->cut * column);
	st[S_BQ] = k64(e, column);
	st[S_BK] = k64(e, c->nr * 4);
	st[S_CM] = k64(e, w->K * 4);
	st[S_NK] = k64(e, w->images);
}

/* Slices [lo, hi) of one block of channels: its copy, then panel by panel of columns. `whole`: the block, of all
 * groups. */
static void
block_emit(Emit *e, Copied *c, const Op *op, const Pass *pass, V whole, V lo, V hi)
{
	Wgrad *w = &c->w;
	V subs = k64(e, c->subs), blocks = k64(e, w->blocks);
	V q0 = i_div(e, lo, subs), q1 = i_div(e, i_add(e, hi, k64(e, c->subs - 1)), subs), sub = k64(e, c->channels);

	w->group = i_div(e, whole, blocks);
	w->c0 = i_mul(e, i_rem(e, whole, blocks), k64(e, c->block));
	w->c1 = i_min(e, i_add(e, w->c0, k64(e, c->block)), k64(e, w->C));
	V length = i_sub(e, w->c1, w->c0), one = LLVMBuildICmp(here(e), LLVMIntEQ, i_sub(e, q1, q0), k64(e, 1), "");
	/* all slices of one panel: their channels alone */
	V s0 = i_sub(e, lo, i_mul(e, q0, subs)), s1 = i_sub(e, hi, i_mul(e, q0, subs));
	V ca = LLVMBuildSelect(here(e), one, i_mul(e, s0, sub), k64(e, 0), "");
	V cb = LLVMBuildSelect(here(e), one, i_min(e, length, i_mul(e, s1, sub)), length, "");

	copy_block(e, c, op, pass, w->c0, i_mul(e, w->group, k64(e, w->C)), i_div(e, ca, k64(e, c->high)),
	           i_div(e, i_add(e, cb, k64(e, c->high - 1)), k64(e, c->high)));
	V q = loop_open(e, q0, q1, 1), r = i_div(e, q, k64(e, w->npanel)), r2 = i_mul(e, r, k64(e, 2));
	V o0 = i_max(e, w->band, table_at(e, w->tr, r2)),
	  o1 = i_min(e, w->end, table_at(e, w->tr, i_add(e, r2, k64(e, 1))));
	V from = i_sub(e, i_max(e, lo, i_mul(e, q, subs)), i_mul(e, q, subs)),
	  to = i_sub(e, i_min(e, hi, i_mul(e, i_add(e, q, k64(e, 1)), subs)), i_mul(e, q, subs));
	V columns = scratch_ptr(e, rows_bytes(c)), own = k64(e, w->K / w->groups);

	w->kb = i_rem(e, q, k64(e, w->npanel));
	w->kcol = i_mul(e, i_add(e, i_mul(e, w->group, own), i_mul(e, w->kb, k64(e, c->nr))), k64(e, 4));
	V all = i_add(e, i_mul(e, w->group, k64(e, w->npanel)), w->kb);

	if (c->made[1])
		columns = ptr_at(e, columns, i_mul(e, all, k64(e, c->column_panel)));
	else
		copy_columns(e, c, op, pass, all, i_add(e, all, k64(e, 1)), o0, o1, columns);
	block_tiles(e, c, pass, w->c0, i_mul(e, from, sub), i_min(e, length, i_mul(e, to, sub)), r, o0, o1, columns);
	loop_close(e);
}

void
wgrad_copied_emit(GroupCx *gc, const Op *op, const GemmParams *p, int abuf, int bbuf, int cbuf, GraphKernels *gk)
{
	Copied c = copied_of(gc->g, op, p);
	Wgrad *w = &c.w;
	Emit e = {0};
	bool fresh;
	int fn = kernel_begin(gc, &e, "main", &fresh);

	w->blocks = ceil_div(w->C, c.block);
	int64_t each = w->R * w->npanel * c.subs, slices = w->groups * w->blocks * each;

	if (fresh) {
		int64_t rows = (int64_t)1 << (c.high - 1) | (w->C % c.high ? (int64_t)1 << (w->C % c.high - 1) : 0);
		V st[S_COUNT], lo, hi;
		Pass pass;

		wgrad_taps(&e, w);
		emit_lanes(&e, p->lanes);
		w->tiles = tiles_make(&e, p, w->K / w->groups, rows);
		w->in = c.made[0] ? NULL : buffer(&e, abuf), w->grad = c.made[1] ? NULL : buffer(&e, bbuf);
		w->out = buffer(&e, cbuf);
		copied_strides(&e, &c, st);
		w->strides = strides_block(&e, st), w->tr = table(&e, w->rr, w->R * 2);
		w->ts = table(&e, w->ss, w->S * 3);
		w->part = slices_open(&e, slices, &lo, &hi);
		int loops = 1 + passes_open(&e, &c, p, &pass);

		if (c.made[1]) { /* all columns of the groups that this call has slices of */
			int64_t of = w->blocks * each;
			V g0 = i_div(&e, lo, k64(&e, of)), g1 = i_div(&e, i_add(&e, hi, k64(&e, of - 1)), k64(&e, of));
			V p0 = i_mul(&e, g0, k64(&e, w->npanel)), p1 = i_mul(&e, g1, k64(&e, w->npanel));

			copy_columns(&e, &c, op, &pass, p0, p1, w->band, w->end,
			             ptr_at(&e, scratch_ptr(&e, rows_bytes(&c)),
			                    i_mul(&e, p0, k64(&e, c.column_panel))));
		}
		V whole = loop_open(&e, i_div(&e, lo, k64(&e, each)),
		                    i_div(&e, i_add(&e, hi, k64(&e, each - 1)), k64(&e, each)), 1);
		V at = i_mul(&e, whole, k64(&e, each));

		block_emit(&e, &c, op, &pass, whole, i_max(&e, k64(&e, 0), i_sub(&e, lo, at)),
		           i_min(&e, k64(&e, each), i_sub(&e, hi, at)));
		for (int k = 0; k < 1 + loops; k++)
			loop_close(&e);
	}
	kernel_end(gc, &e, gk, fn, slices_rows(p->parts > 1 ? p->parts : 1, slices), fresh, false);
}
