/* wgrad_copied.c: the gradient of a convolution in its weights, operands copied into panels first (GemmParams.copy).
 *
 * In: as wgrad.c, and the same results to the bit, as the order of the sums is that of the passes.   Out: the main
 * kernel. A pass is some rows of pixels of some images. Of it a call copies, into the thread's scratch memory, a block
 * of input channels as panels of a tile's rows, [panel][row][column][image][high], which meet all panels of columns,
 * and of each panel of columns [row][column][image][nr], which stays in L1 while the block's tiles go over it. Where
 * they lie, elements of a pixel are powers of two apart, so that a tile's lines meet in few sets of the caches, and a
 * tile takes less than half of each line: a CPU whose products are short of what L2 delivers gets 1.5 to 2 times the
 * speed, one whose units wait for registers nothing. Operands that the kernel makes are made as they are copied:
 * columns once for all blocks. A filter of one tap has only the pixels that it meets copied.
 * Not for one input channel with the filter's columns as rows, nor for 16-bit pairs (gemm_copies). */
#include "wgrad.h"

typedef struct Copied {
	Wgrad w;
	int64_t nr;              /* columns of a panel */
	int64_t high;            /* rows of a panel of the first operand */
	int64_t block, channels; /* input channels that are copied together, of a slice */
	int64_t subs;            /* slices of a block's channels */
	int64_t step[2];         /* input rows, columns from one that is copied to the next */
	int64_t rows, columns;   /* of the first operand that are copied in a pass, at most */
	/* input rows that a filter row meets in a pass; apart: between these and those of the next lie others,
	 * which are not copied (dilation) */
	int64_t span;
	bool apart;
	int64_t panel, column_panel; /* bytes of a panel of each operand */
	bool made[2];
	/* bytes of the thread's memory: where the panels of rows begin, those of columns; all */
	int64_t row_panels_at, column_panels_at, bytes;
	Mem operand[2];          /* as they lie: [row][column][image][channel] */
	/* of the first panel: [row][column][image][high], [row][column][image][nr] */
	Mem row_panels, column_panels;
	Mem sums;                /* [part][filter row][filter column][input channel] rows of [output channel] */
} Copied;

static int64_t
rounded_up(int64_t n, int64_t unit)
{
	return ceil_div(n, unit) * unit;
}

static Copied
copied_of(const Graph *g, const Op *op, const GemmParams *p)
{
	Copied c = {.w = wgrad_of(g, op, p), .nr = (int64_t)p->nv * p->lanes};
	const Wgrad *w = &c.w;
	int64_t most, slices = (p->parts > 1 ? p->parts : 1) * w->groups * w->npanel * w->R, want;
	Layout memory = {0};

	for (int k = 0; k < 2; k++)
		c.made[k] = prologue_made(g, op, k) && prologue_way(g, op, p, k) == PROLOGUE_BAND;
	c.step[0] = w->R == 1 ? w->at.stride[0] : 1;
	c.step[1] = w->S == 1 ? w->at.stride[1] : 1;
	c.span = (p->band - 1) * w->at.stride[0] + 1;
	c.apart = w->R > 1 && w->at.dilation[0] > c.span;
	c.rows = w->R == 1 ? p->band : c.span + (w->R - 1) * w->at.dilation[0];
	c.rows = c.apart ? w->R * c.span : c.rows < w->H ? c.rows : w->H;
	c.columns = w->S == 1 ? w->cut : (w->cut - 1) * w->at.stride[1] + (w->S - 1) * w->at.dilation[1] + 1;
	c.columns = c.columns < w->W || w->S == 1 ? c.columns : w->W;
	c.column_panel = F32(p->band * w->cut * w->images * c.nr) + PANEL_ROOM;
	c.high = ceil_div(w->C, ceil_div(w->C, p->mr));
	c.panel = F32(c.rows * c.columns * w->images * c.high) + PANEL_ROOM;
	/* in L2 beside what is read, the columns and the results */
	most = machine_of(g)->budget.l2 / c.panel;
	most = (most < 2 ? 2 : most) * c.high;
	c.block = rounded_up(ceil_div(w->C, ceil_div(w->C, most)), c.high);
	want = ceil_div(WGRAD_SLICES, slices * ceil_div(w->C, c.block));
	c.channels = rounded_up(ceil_div(c.block, want), c.high);
	if (c.channels < 2 * c.high)
		c.channels = 2 * c.high < c.block ? 2 * c.high : c.block;
	c.subs = ceil_div(c.block, c.channels);
	c.row_panels_at = layout_take(&memory, c.block / c.high * c.panel);
	c.column_panels_at = layout_take(&memory, (c.made[1] ? w->groups * w->npanel : 1) * c.column_panel);
	c.bytes = memory.bytes;
	return c;
}

int64_t
wgrad_copied_bytes(const Graph *g, const Op *op, const GemmParams *p)
{
	return copied_of(g, op, p).bytes;
}

/* ---------------------------------------------------------------- emission */
/* A pass of a part: rows [band, end) of the gradient, images from `image` on, columns [q0, q1) of Wgrad; which input
 * rows, and columns, it copies: [first, last), [left, right) (of a filter of one row, or column: the output's). */
typedef struct Pass { V image, first, last, left, right, q0; } Pass;

/* W elements of operand k, image n, pixel (h, x), channel `channel`, where mask has a lane. */
static V
numbers_of(Emit *e, const Copied *c, const Op *op, int k, V n, V h, V x, V channel, V mask)
{
	if (!c->made[k])
		return vec_load(e, mem_at(e, &c->operand[k], h, x, n, channel), mask);
	V was = e->mask;

	e->mask = mask;
	V v = cell_vec(e, prologue_at(e, op->in[k], n, (Ix){.s = channel, .c = 1}, h, x));

	e->mask = was;
	return v;
}

/* A pixel of the first operand that is copied: where it is; the block's first channel, of all, and one behind its
 * group's last; where it goes to: [panel][high]. */
typedef struct Pixel { V image, h, x, channel, end; Mem to; } Pixel;

/* Panels [p0, p1); masked: of what is left of the channels, else whole vectors are read, of which the last reaches into
 * the next panel's. A masked load takes twice the time. */
static void
copy_panels(Emit *e, const Copied *c, const Op *op, const Pixel *at, bool masked, V p0, V p1)
{
	LOOP(e, panel, p0, p1, 1) {
		V channel = i_add(e, at->channel, i_mul_k(e, panel, c->high));
		Mem to = mem_part(e, &at->to, panel);
		V left = i_min(e, k64(e, c->high), i_sub(e, at->end, channel));

		for (int64_t v = 0; v < c->high; v += e->W)
			vec_store(e, mem_at(e, &to, k64(e, v)),
			          numbers_of(e, c, op, 0, at->image, at->h, at->x, i_add_k(e, channel, v),
			                     masked ? row_mask(e, left, v) : NULL), NULL);
	}
}

/* Rows [first, last) of the input (of a filter of one row, the output's) to rows from `row` on of panels [p0, p1) of
 * the block of channels that begins at c0 of its group; `channel`: the group's first. */
static void
copy_rows_of(Emit *e, const Copied *c, const Op *op, const Pass *pass, V first, V last, V to, V c0, V channel, V p0,
             V p1)
{
	const Wgrad *w = &c->w;

	LOOP(e, i, first, last, 1) {
		V h = w->R == 1 ? i_sub_k(e, i_mul_k(e, i, c->step[0]), w->at.pad[0]) : i;
		V row = i_add(e, to, i_sub(e, i, first));

		LOOP(e, column, pass->left, pass->right, 1) {
			V j = i_sub(e, column, pass->left);
			V x = w->S == 1 ? i_sub_k(e, i_mul_k(e, column, c->step[1]), w->at.pad[1]) : column;

			TIMES(e, n, w->images) {
				Pixel pixel = {i_add(e, pass->image, n), h, x, i_add(e, channel, c0),
				               i_add_k(e, channel, w->C),
				               mem_axes(e, mem_at(e, &c->row_panels, row, j, n), BY(c->panel), BY(4))};
				/* those whose vectors end within the group's channels */
				int64_t read = rounded_up(c->high, e->W);
				V full = i_max(e, k64(e, 0), i_sub(e, k64(e, w->C - read + c->high), c0));
				V whole = i_max(e, p0, i_min(e, p1, i_div_k(e, full, c->high)));

				copy_panels(e, c, op, &pixel, false, p0, whole);
				copy_panels(e, c, op, &pixel, true, whole, p1);
			}
		}
	}
}

/* All input rows that the pass meets. */
static void
copy_block(Emit *e, const Copied *c, const Op *op, const Pass *pass, V c0, V channel, V p0, V p1)
{
	const Wgrad *w = &c->w;

	if (!c->apart) {
		V to = w->R == 1 ? i_sub(e, pass->first, w->band) : k64(e, 0);

		copy_rows_of(e, c, op, pass, pass->first, pass->last, to, c0, channel, p0, p1);
		return;
	}
	V top = input_index(e, w, 0, w->band), end = i_add_k(e, input_index(e, w, 0, i_sub_k(e, w->end, 1)), 1);

	TIMES(e, r, w->R) {
		V below = i_mul_k(e, r, w->at.dilation[0]), from = i_add(e, top, below);
		V first = i_max(e, k64(e, 0), from), last = i_min_k(e, i_add(e, end, below), w->H);
		V to = i_add(e, i_mul_k(e, r, c->span), i_sub(e, first, from));

		copy_rows_of(e, c, op, pass, first, last, to, c0, channel, p0, p1);
	}
}

/* Behind the pass's last column. */
static V
pass_end(Emit *e, const Wgrad *w)
{
	return w->cut < w->OW ? w->q1 : k64(e, w->OW);
}

/* Rows [o0, o1) of panels [p0, p1) of all groups', to `to`, which begins with row w->band of panel p0. */
static void
copy_columns(Emit *e, const Copied *c, const Op *op, const Pass *pass, V p0, V p1, V o0, V o1, const Mem *to)
{
	const Wgrad *w = &c->w;
	int64_t own = w->K / w->groups;

	LOOP(e, o, o0, o1, 1) LOOP(e, x, pass->q0, pass_end(e, w), 1) TIMES(e, n, w->images) {
		V image = i_add(e, pass->image, n);
		V at = mem_offset(e, to, i_sub(e, o, w->band), i_sub(e, x, pass->q0), n);

		LOOP(e, all, p0, p1, 1) {
			V group, kb;

			panel_find(e, w->groups, w->npanel, all, &group, &kb);
			V first = i_mul_k(e, kb, c->nr), left = i_sub(e, k64(e, own), first);
			V out = ptr_at(e, to->base, i_add(e, at, i_mul_k(e, i_sub(e, all, p0), c->column_panel)));
			V column = i_add(e, i_mul_k(e, group, own), first);

			for (int64_t v = 0; v < c->nr; v += e->W) {
				V mask = own % c->nr ? row_mask(e, left, v) : NULL;

				vec_store(e, ptr_at(e, out, k64(e, F32(v))),
				          numbers_of(e, c, op, 1, image, o, x, i_add_k(e, column, v), mask), NULL);
			}
		}
	}
}

/* Which columns the pass copies of its rows. */
static void
pass_columns(Emit *e, const Wgrad *w, Pass *pass)
{
	V end = pass_end(e, w);

	pass->q0 = w->cut < w->OW ? w->q0 : k64(e, 0);
	if (w->S == 1) { /* of the output's */
		pass->left = i_max(e, pass->q0, k64(e, w->ss[0]));
		pass->right = i_min_k(e, end, w->ss[0] + w->ss[1]);
		return;
	}
	/* a stride may leave the last columns of the input to no tap: a panel has no room for them */
	int64_t met = (w->OW - 1) * w->at.stride[1] - w->at.pad[1] + (w->S - 1) * w->at.dilation[1] + 1;

	pass->left = k64(e, 0), pass->right = k64(e, met < w->W ? met : w->W);
	if (w->cut == w->OW)
		return;
	V last = input_index(e, w, 1, i_sub_k(e, end, 1));

	pass->left = i_max(e, pass->left, input_index(e, w, 1, pass->q0));
	pass->right = i_min(e, pass->right, i_add_k(e, last, (w->S - 1) * w->at.dilation[1] + 1));
}

/* Opens the loops over the part's passes; returns how many. */
static int
passes_open(Emit *e, Copied *c, const GemmParams *p, Pass *pass)
{
	Wgrad *w = &c->w;
	V lo = i_div_k(e, i_mul_k(e, w->part, w->OH), p->parts),
	  hi = i_div_k(e, i_mul_k(e, i_add_k(e, w->part, 1), w->OH), p->parts);

	w->band = loop_open(e, lo, hi, p->band);
	w->end = i_min(e, i_add_k(e, w->band, p->band), hi);
	pass->image = loop_open(e, k64(e, 0), k64(e, w->N), w->images);
	V again = LLVMBuildOr(here(e), LLVMBuildICmp(here(e), LLVMIntNE, w->band, lo, ""),
	                      LLVMBuildICmp(here(e), LLVMIntNE, pass->image, k64(e, 0), ""), "");

	w->acc = LLVMBuildZExt(here(e), again, e->l->i64, "");
	int loops = 2 + wgrad_cut_open(e, w);

	pass_columns(e, w, pass);
	if (w->R == 1) { /* of the output's */
		pass->first = i_max(e, w->band, k64(e, w->rr[0]));
		pass->last = i_min_k(e, w->end, w->rr[1]);
		return loops;
	}
	V last = input_index(e, w, 0, i_sub_k(e, w->end, 1));

	pass->first = i_max(e, k64(e, 0), input_index(e, w, 0, w->band));
	pass->last = i_min_k(e, i_add_k(e, last, (w->R - 1) * w->at.dilation[0] + 1), w->H);
	return loops;
}

/* Tiles of channels [ca, cb) of the block from c0 on, all filter columns of row r, over output rows [o0, o1), whose
 * columns are at `columns`, from row w->band on. */
static void
block_tiles(Emit *e, const Copied *c, const Pass *pass, V c0, V ca, V cb, V r, V o0, V o1, const Mem *columns)
{
	const Wgrad *w = &c->w;
	V np = i_sub(e, o1, o0);

	TIMES(e, s, w->S) {
		V s3 = i_mul_k(e, s, 3), ow = table_at(e, w->ts, s3), nq = table_at(e, w->ts, i_add_k(e, s3, 1)),
		  column = table_at(e, w->ts, i_add_k(e, s3, 2));

		wgrad_clip(e, w, &ow, &nq, &column);
		column = w->S == 1 ? NULL : i_sub(e, column, pass->left);
		V h = i_add(e, input_index(e, w, 0, o0), i_mul_k(e, r, w->at.dilation[0]));
		V row = w->R == 1 ? i_sub(e, o0, w->band) : i_sub(e, h, pass->first);

		if (c->apart)
			row = i_add(e, i_mul_k(e, r, c->span), i_mul_k(e, i_sub(e, o0, w->band), w->at.stride[0]));
		Mem from = mem_axes(e, mem_at(e, &c->row_panels, row, column), BY(c->panel));
		V grad = mem_at(e, columns, i_sub(e, o0, w->band), i_sub(e, ow, pass->q0));

		LOOP(e, panel, i_div_k(e, ca, c->high), i_div_up_k(e, cb, c->high), 1) {
			V own = i_add(e, c0, i_mul_k(e, panel, c->high));
			V to = mem_at(e, &c->sums, w->part, r, s, own, w->column);

			tile_call(e, &w->tiles, i_min(e, k64(e, c->high), i_sub(e, k64(e, w->C), own)), w->kb,
			          w->npanel, mem_at(e, &from, panel), grad, to, np, nq, w->strides, w->acc);
		}
	}
}

/* Strides of the microkernel: of tiles of row panels, panels of columns, sums. */
static V
copied_strides(Emit *e, const Copied *c)
{
	const Wgrad *w = &c->w;
	int64_t pixel = F32(w->images * c->high), column = F32(w->images * c->nr);

	return strides_of_constants(e, (const int64_t[S_COUNT]){
	        [S_AM] = 4,
	        [S_AK] = F32(c->high),
	        [S_AP] = w->at.stride[0] / c->step[0] * c->columns * pixel,
	        [S_AQ] = w->at.stride[1] / c->step[1] * pixel,
	        [S_BP] = w->cut * column,
	        [S_BQ] = column,
	        [S_BK] = F32(c->nr),
	        [S_CM] = F32(w->K),
	        [S_NK] = w->images,
	});
}

/* Slices [lo, hi) of one block of channels: its copy, then panel by panel of columns. `whole`: the block, of all
 * groups. */
static void
block_emit(Emit *e, Copied *c, const Op *op, const Pass *pass, V whole, V lo, V hi)
{
	Wgrad *w = &c->w;
	int64_t subs = c->subs;
	V q0 = i_div_k(e, lo, subs), q1 = i_div_up_k(e, hi, subs);

	w->group = i_div_k(e, whole, w->blocks);
	w->c0 = i_mul_k(e, i_rem_k(e, whole, w->blocks), c->block);
	w->c1 = i_min_k(e, i_add_k(e, w->c0, c->block), w->C);
	V length = i_sub(e, w->c1, w->c0), one = LLVMBuildICmp(here(e), LLVMIntEQ, i_sub(e, q1, q0), k64(e, 1), "");
	/* all slices of one panel: their channels alone */
	V s0 = i_sub(e, lo, i_mul_k(e, q0, subs)), s1 = i_sub(e, hi, i_mul_k(e, q0, subs));
	V ca = LLVMBuildSelect(here(e), one, i_mul_k(e, s0, c->channels), k64(e, 0), "");
	V cb = LLVMBuildSelect(here(e), one, i_min(e, length, i_mul_k(e, s1, c->channels)), length, "");

	copy_block(e, c, op, pass, w->c0, i_mul_k(e, w->group, w->C), i_div_k(e, ca, c->high),
	           i_div_up_k(e, cb, c->high));
	LOOP(e, q, q0, q1, 1) {
		V r = i_div_k(e, q, w->npanel), r2 = i_mul_k(e, r, 2);
		V o0 = i_max(e, w->band, table_at(e, w->tr, r2)),
		  o1 = i_min(e, w->end, table_at(e, w->tr, i_add_k(e, r2, 1)));
		V from = i_sub(e, i_max(e, lo, i_mul_k(e, q, subs)), i_mul_k(e, q, subs)),
		  to = i_sub(e, i_min(e, hi, i_mul_k(e, i_add_k(e, q, 1), subs)), i_mul_k(e, q, subs));

		w->kb = i_rem_k(e, q, w->npanel);
		w->column = i_add(e, i_mul_k(e, w->group, w->K / w->groups), i_mul_k(e, w->kb, c->nr));
		V all = i_add(e, i_mul_k(e, w->group, w->npanel), w->kb);
		Mem columns = c->column_panels;

		if (c->made[1])
			columns.base = ptr_at(e, columns.base, i_mul_k(e, all, c->column_panel));
		else
			copy_columns(e, c, op, pass, all, i_add_k(e, all, 1), o0, o1, &columns);
		block_tiles(e, c, pass, w->c0, i_mul_k(e, from, c->channels),
		            i_min(e, length, i_mul_k(e, to, c->channels)), r, o0, o1, &columns);
	}
}

/* What the kernel reads and writes, and what of it lies in the thread's memory meanwhile. */
static void
regions_open(Emit *e, Copied *c, int abuf, int bbuf, int cbuf)
{
	Wgrad *w = &c->w;
	V x = c->made[0] ? NULL : buffer(e, abuf), gradient = c->made[1] ? NULL : buffer(e, bbuf);

	c->operand[0] = mem_dense(e, x, DT_f32, w->H, w->W, w->N, w->line[0]);
	c->operand[1] = mem_dense(e, gradient, DT_f32, w->OH, w->OW, w->N, w->line[1]);
	c->sums = mem_rows(e, buffer(e, cbuf), DT_f32, w->p->parts, w->R, w->S, w->C, w->K);
	c->row_panels =
	        mem_dense(e, scratch_ptr(e, c->row_panels_at), DT_f32, c->rows, c->columns, w->images, c->high);
	c->column_panels =
	        mem_dense(e, scratch_ptr(e, c->column_panels_at), DT_f32, w->p->band, w->cut, w->images, c->nr);
}

/* All columns of the groups that slices [lo, hi) are of, `of` to a group. */
static void
copy_all_columns(Emit *e, Copied *c, const Op *op, const Pass *pass, V lo, V hi, int64_t of)
{
	V g0 = i_div_k(e, lo, of), g1 = i_div_up_k(e, hi, of);
	V p0 = i_mul_k(e, g0, c->w.npanel), p1 = i_mul_k(e, g1, c->w.npanel);
	Mem to = c->column_panels;

	to.base = ptr_at(e, to.base, i_mul_k(e, p0, c->column_panel));
	copy_columns(e, c, op, pass, p0, p1, c->w.band, c->w.end, &to);
}

static void
kernel_body(Emit *e, Copied *c, const Op *op, int64_t each, int64_t slices)
{
	Wgrad *w = &c->w;
	Pass pass;

	w->strides = copied_strides(e, c);
	w->tr = table(e, w->rr, w->R * 2);
	w->ts = table(e, w->ss, w->S * 3);
	SLICES(e, part, slices, lo, hi) {
		w->part = part;
		LOOPS(e, passes_open(e, c, w->p, &pass)) {
			if (c->made[1])
				copy_all_columns(e, c, op, &pass, lo, hi, w->blocks * each);
			LOOP(e, whole, i_div_k(e, lo, each), i_div_up_k(e, hi, each), 1) {
				V at = i_mul_k(e, whole, each);

				block_emit(e, c, op, &pass, whole, i_max(e, k64(e, 0), i_sub(e, lo, at)),
				           i_min(e, k64(e, each), i_sub(e, hi, at)));
			}
		}
	}
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

		wgrad_taps(&e, w);
		emit_lanes(&e, p->lanes);
		w->tiles = tiles_make(&e, p, w->K / w->groups, rows, (Steps){F32(c.high), F32(c.nr)});
		regions_open(&e, &c, abuf, bbuf, cbuf);
		kernel_body(&e, &c, op, each, slices);
	}
	kernel_end(gc, &e, gk, fn, slices_rows(p->parts > 1 ? p->parts : 1, slices), fresh, false);
}
