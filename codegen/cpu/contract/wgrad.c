/* wgrad.c: the gradient of a convolution in its weights by register-blocked products.
 *
 * In: a group of conv2d.dw, images and gradient HWNC.   Out: the kernel, and where pixel rows are cut into parts with
 * sums of their own, one that adds these in order. Operands that the kernel makes (prologue.c) are made band by band.
 * Rows of a product are input channels, columns output channels, the sum runs over pixels and images, a band of rows
 * and some images at a time: what these hold meets all columns of the task while the caches have it. With one input
 * channel the filter's columns are the rows. */
#include "wgrad.h"

void
wgrad_taps(Emit *e, Wgrad *w)
{
	w->rr = arena_array(e->arena, int64_t, w->R * 2);
	w->ss = arena_array(e->arena, int64_t, w->S * 3);
	for (int64_t r = 0; r < w->R; r++)
		for (int64_t i = w->OH; i-- > 0;) {
			int64_t h = i * w->stride[0] - w->pad[0] + r * w->dil[0];

			if (h < 0 || h >= w->H)
				continue;
			w->rr[r * 2] = i;
			if (!w->rr[r * 2 + 1])
				w->rr[r * 2 + 1] = i + 1;
		}
	for (int64_t s = 0; s < w->S; s++)
		for (int64_t i = w->OW; i-- > 0;) {
			int64_t c = i * w->stride[1] - w->pad[1] + s * w->dil[1];

			if (c < 0 || c >= w->W)
				continue;
			w->ss[s * 3] = i;
			w->ss[s * 3 + 1]++;
			w->ss[s * 3 + 2] = c;
		}
	w->last = w->OW;
	for (int64_t s = 0; s < w->S && w->columns; s++) {
		w->first = w->ss[s * 3] > w->first ? w->ss[s * 3] : w->first;
		w->last = w->ss[s * 3] + w->ss[s * 3 + 1] < w->last ? w->ss[s * 3] + w->ss[s * 3 + 1] : w->last;
	}
	w->columns &= w->last > w->first;
}

/* Where the gradient of pixel (o, ow) begins for the microkernel. */
static V
gradient_at(Emit *e, const Wgrad *w, V o, V ow)
{
	return ptr_at(e, w->grad,
	              i_add(e,
	                    i_mul(e, i_add(e, i_mul(e, i_sub(e, o, w->grad_row), k64(e, w->OW)), ow),
	                          k64(e, w->N * w->line[1] * 4)),
	                    w->kcol));
}

/* h0: input row of output row o0; c0: the sums of filter row r. */
static void
all_columns(Emit *e, const Wgrad *w, V o0, V h0, V np, V c0)
{
	V row = ptr_at(e, w->in, i_mul(e, i_sub(e, h0, w->in_row), k64(e, w->W * w->N * 4))), tap, count;

	tiles_open(e, k64(e, w->S), w->p->mr, &tap, &count);
	V first = k64(e, (w->first * w->stride[1] - w->pad[1]) * w->N * 4);
	V from = ptr_at(e, row, i_add(e, i_mul(e, tap, k64(e, w->dil[1] * w->N * 4)), first));
	V to = ptr_at(e, c0, i_mul(e, tap, k64(e, w->K * 4)));

	tile_call(e, &w->tiles, count, w->kb, w->npanel, from, gradient_at(e, w, o0, k64(e, w->first)), to, np,
	    k64(e, w->last - w->first), w->strides, w->acc);
	loop_close(e);
	for (int64_t s = 0; s < w->S; s++)
		for (int side = 0; side < 2; side++) {
			int64_t lo = side ? w->last : w->ss[s * 3],
			        hi = side ? w->ss[s * 3] + w->ss[s * 3 + 1] : w->first;

			if (lo < hi)
				tile_call(e, &w->tiles, k64(e, 1), w->kb, w->npanel,
				          ptr_at(e, row,
				                 k64(e, (lo * w->stride[1] - w->pad[1] + s * w->dil[1]) * w->N * 4)),
				          gradient_at(e, w, o0, k64(e, lo)), ptr_at(e, c0, k64(e, s * w->K * 4)), np,
				          k64(e, hi - lo), w->strides, k64(e, 1));
		}
}

static void
each_column(Emit *e, const Wgrad *w, V o0, V h0, V np, V c0)
{
	V s = loop_open(e, k64(e, 0), k64(e, w->S), 1), s3 = i_mul(e, s, k64(e, 3)), lo, count;
	V ow = table_at(e, w->ts, s3), nq = table_at(e, w->ts, i_add(e, s3, k64(e, 1))),
	  column = table_at(e, w->ts, i_add(e, s3, k64(e, 2)));

	wgrad_clip(e, w, &ow, &nq, &column);
	V a0 = i_mul(e, i_add(e, i_mul(e, i_sub(e, h0, w->in_row), k64(e, w->W)), column),
	             k64(e, w->N * w->line[0] * 4));

	a0 = i_add(e, a0, i_mul(e, w->group, k64(e, w->C * w->channel)));
	tiles_open(e, i_sub(e, w->c1, w->c0), w->p->mr, &lo, &count);
	lo = i_add(e, lo, w->c0);
	tile_call(e, &w->tiles, count, w->kb, w->npanel,
	          ptr_at(e, w->in, i_add(e, a0, i_mul(e, lo, k64(e, w->channel)))), gradient_at(e, w, o0, ow),
	          ptr_at(e, c0, i_mul(e, i_add(e, i_mul(e, s, k64(e, w->C)), lo), k64(e, w->K * 4))), np, nq,
	          w->strides, w->acc);
	loop_close(e);
	loop_close(e);
}

static V
is_not(Emit *e, V x, V y)
{
	return LLVMBuildZExt(here(e), LLVMBuildICmp(here(e), LLVMIntNE, x, y, ""), e->l->i64, "");
}

int
wgrad_cut_open(Emit *e, Wgrad *w)
{
	if (w->cut == w->OW)
		return 0;
	w->q0 = loop_open(e, k64(e, 0), k64(e, w->OW), w->cut);
	w->q1 = i_min(e, i_add(e, w->q0, k64(e, w->cut)), k64(e, w->OW));
	w->acc = LLVMBuildOr(here(e), w->acc, is_not(e, w->q0, k64(e, 0)), "");
	return 1;
}

void
wgrad_clip(Emit *e, const Wgrad *w, V *ow, V *nq, V *column)
{
	if (w->cut == w->OW)
		return;
	V lo = i_max(e, *ow, w->q0), hi = i_min(e, i_add(e, *ow, *nq), w->q1);

	*column = i_add(e, *column, i_mul(e, i_sub(e, lo, *ow), k64(e, w->stride[1])));
	*ow = lo;
	*nq = i_sub(e, hi, lo);
}

/* Opens the loops over bands of the part's rows and, within, over images and pieces of rows; returns how many. Operands
 * that the kernel makes are made for the band. */
static int
pass_open(Emit *e, const Op *op, Wgrad *w)
{
	const GemmParams *p = w->p;
	V lo = i_div(e, i_mul(e, w->part, k64(e, w->OH)), k64(e, p->parts)),
	  hi = i_div(e, i_mul(e, i_add(e, w->part, k64(e, 1)), k64(e, w->OH)), k64(e, p->parts));

	w->band = loop_open(e, lo, hi, p->band);
	w->end = i_min(e, i_add(e, w->band, k64(e, p->band)), hi);
	w->acc = is_not(e, w->band, lo);
	if (!w->in) {
		V last = i_add(e,
		               i_sub(e, i_mul(e, i_sub(e, w->end, k64(e, 1)), k64(e, w->stride[0])), k64(e, w->pad[0])),
		               k64(e, (w->R - 1) * w->dil[0] + 1));

		w->in_row = i_max(e, k64(e, 0), i_sub(e, i_mul(e, w->band, k64(e, w->stride[0])), k64(e, w->pad[0])));
		w->in = prologue_band(e, op, p, 0, w->in_row, i_min(e, last, k64(e, w->H)));
	}
	if (!w->grad) {
		w->grad_row = w->band;
		w->grad = prologue_band(e, op, p, 1, w->band, w->end);
	}
	if (w->images == w->N)
		return 1 + wgrad_cut_open(e, w);
	V first = loop_open(e, k64(e, 0), k64(e, w->N), w->images);

	w->acc = LLVMBuildOr(here(e), w->acc, is_not(e, first, k64(e, 0)), "");
	w->in = ptr_at(e, w->in, i_mul(e, first, k64(e, engine_of(p)->side_by_side ? 4 : w->line[0] * 4)));
	w->grad = ptr_at(e, w->grad, i_mul(e, first, k64(e, w->line[1] * 4)));
	return 2 + wgrad_cut_open(e, w);
}

Wgrad
wgrad_of(const Graph *g, const Op *op, const GemmParams *p)
{
	const Type *x = val_type(g, op->in[0]), *gr = val_type(g, op->in[1]), *o = val_type(g, op->out[0]);
	int64_t nr = (int64_t)p->nv * p->lanes, groups = gemm_groups(op), own = gr->axis[1].n / groups;
	/* amx_turn has put the images side by side */
	bool pairs = engine_pairs(p), transposed = engine_of(p)->side_by_side;
	Wgrad w = {.p = p,
	           .H = x->axis[2].n,
	           .W = x->axis[3].n,
	           .C = x->axis[1].n / groups,
	           .groups = groups,
	           .N = x->axis[0].n / gemm_unit(p),
	           .OH = gr->axis[2].n,
	           .OW = gr->axis[3].n,
	           .K = gr->axis[1].n,
	           .R = o->axis[2].n,
	           .S = o->axis[3].n,
	           .npanel = ceil_div(own, nr),
	           .stride = attr_ints(op, A_stride, NULL),
	           .pad = attr_ints(op, A_pad, NULL),
	           .dil = attr_ints(op, A_dilation, NULL)};

	w.columns = wgrad_columns(g, op, p);
	w.line[0] = pairs && !transposed ? pairs_line(g, op, 0) : x->axis[1].n;
	w.line[1] = pairs ? pairs_line(g, op, 1) : w.K;
	w.channel = transposed ? w.N * 4 : 4;
	w.images = p->images ? p->images : w.N;
	w.cut = wgrad_cut(g, op, p);
	return w;
}

/* Strides of the microkernel. */
static void
wgrad_strides(Emit *e, const Wgrad *w, bool transposed, V *st)
{
	int64_t pixel = w->N * w->line[1] * 4;

	st[S_AM] = k64(e, w->columns ? w->dil[1] * w->N * 4 : w->channel);
	st[S_AK] = k64(e, transposed ? 4 : w->line[0] * 4);
	st[S_AP] = k64(e, w->stride[0] * w->W * w->N * w->line[0] * 4);
	st[S_AQ] = k64(e, w->stride[1] * w->N * w->line[0] * 4);
	st[S_BP] = k64(e, w->OW * pixel);
	st[S_BQ] = k64(e, pixel);
	st[S_BK] = k64(e, w->line[1] * 4);
	st[S_CM] = k64(e, w->K * 4);
	st[S_NK] = k64(e, w->images);
}

/* Input channels of a slice: as few as give many threads work, two tiles at least. */
static int64_t
slice_channels(const Wgrad *w)
{
	enum { SLICES = 256 };
	int64_t slices = (w->p->parts > 1 ? w->p->parts : 1) * w->groups * w->npanel * w->R,
	        want = ceil_div(SLICES, slices), tiles = ceil_div(ceil_div(w->C, want), w->p->mr);

	return w->columns || want == 1 ? w->C : (tiles < 2 ? 2 : tiles) * w->p->mr;
}

/* Slice: panel, filter row, block of input channels, of which the last goes fastest. Returns the filter row. */
static V
slice_find(Emit *e, Wgrad *w, int64_t channels, V slice)
{
	V rest = i_div(e, slice, k64(e, w->blocks)), panel = i_div(e, rest, k64(e, w->R));
	int64_t own = w->K / w->groups, nr = (int64_t)w->p->nv * w->p->lanes;

	w->c0 = i_mul(e, i_rem(e, slice, k64(e, w->blocks)), k64(e, channels));
	w->c1 = i_min(e, i_add(e, w->c0, k64(e, channels)), k64(e, w->C));
	panel_find(e, w->groups, w->npanel, panel, &w->group, &w->kb);
	w->kcol = i_add(e, i_mul(e, w->group, k64(e, own * 4)), i_mul(e, w->kb, k64(e, nr * 4)));
	return i_rem(e, rest, k64(e, w->R));
}

static void
main_kernel(GroupCx *gc, const Op *op, const GemmParams *p, int abuf, int bbuf, int cbuf, GraphKernels *gk)
{
	Wgrad w = wgrad_of(gc->g, op, p);
	int64_t groups = w.groups, channels = slice_channels(&w);
	Emit e = {0};
	bool fresh, transposed = engine_of(p)->side_by_side;
	int fn = kernel_begin(gc, &e, "main", &fresh);

	w.blocks = ceil_div(w.C, channels);
	int64_t slices = groups * w.npanel * w.R * w.blocks;

	if (fresh) {
		wgrad_taps(&e, &w);
		w.tiles = tiles_make(&e, p, w.K / groups,
		                     w.columns ? tile_rows(w.S, w.S, p->mr) | 1 : tile_rows(w.C, channels, p->mr));
		w.in = abuf < 0 ? NULL : buffer(&e, abuf), w.grad = bbuf < 0 ? NULL : buffer(&e, bbuf),
		w.out = buffer(&e, cbuf);
		w.in_row = w.grad_row = k64(&e, 0);
		V st[S_COUNT];

		wgrad_strides(&e, &w, transposed, st);
		w.strides = strides_block(&e, st), w.tr = table(&e, w.rr, w.R * 2), w.ts = table(&e, w.ss, w.S * 3);
		/* a piece of work is a part of the rows; the slices of a call go over its bands together */
		V lo, hi;

		w.part = slices_open(&e, slices, &lo, &hi);
		int loops = 2 + pass_open(&e, op, &w);
		V r = slice_find(&e, &w, channels, loop_open(&e, lo, hi, 1)), r2 = i_mul(&e, r, k64(&e, 2));
		V o0 = i_max(&e, w.band, table_at(&e, w.tr, r2)),
		  np = i_sub(&e, i_min(&e, w.end, table_at(&e, w.tr, i_add(&e, r2, k64(&e, 1)))), o0);
		V h0 = i_add(&e, i_sub(&e, i_mul(&e, o0, k64(&e, w.stride[0])), k64(&e, w.pad[0])),
		             i_mul(&e, r, k64(&e, w.dil[0])));
		V c0 = ptr_at(
		        &e, w.out,
		        i_add(&e,
		              i_mul(&e, i_add(&e, i_mul(&e, w.part, k64(&e, w.R)), r), k64(&e, w.S * w.C * w.K * 4)),
		              w.kcol));

		(w.columns ? all_columns : each_column)(&e, &w, o0, h0, np, c0);
		for (int i = 0; i < loops; i++)
			loop_close(&e);
	}
	kernel_end(gc, &e, gk, fn, slices_rows(p->parts > 1 ? p->parts : 1, slices), fresh, false);
}

/* Adds the partial results of `parts` groups of rows, in order. */
void
wgrad_join(GroupCx *gc, int64_t parts, int64_t elements, int src, int dst, GraphKernels *gk)
{
	enum { ROW = 64 };
	Emit e = {0};
	bool fresh;
	int64_t rows = ceil_div(elements, ROW), grain = task_grain(machine_of(gc->g), rows, ROW * (double)parts);
	int fn = kernel_begin(gc, &e, "join", &fresh);

	if (fresh) {
		V in = buffer(&e, src), out = buffer(&e, dst), lo = i_mul(&e, e.arg_t0, k64(&e, grain * ROW));
		V hi = i_min(&e, i_mul(&e, e.arg_t1, k64(&e, grain * ROW)), k64(&e, elements));
		V i = loop_open(&e, lo, hi, e.W), mask = mask_below(&e, i_sub(&e, hi, i)), sum = NULL;

		for (int part = 0; part < parts; part++) {
			V v = vec_load(&e,
			               ptr_at(&e, in, i_mul(&e, i_add(&e, i, k64(&e, part * elements)), k64(&e, 4))),
			               mask);

			sum = sum ? LLVMBuildFAdd(here(&e), sum, v, "") : v;
		}
		vec_store(&e, ptr_at(&e, out, i_mul(&e, i, k64(&e, 4))), sum, mask);
		loop_close(&e);
	}
	kernel_end(gc, &e, gk, fn, (Rows){.rows = rows, .mul = 0, .div = 1, .grain = grain}, fresh, false);
}

static void
wgrad_emit(GroupCx *gc, const Op *op, const GemmParams *p, int a, int b, GraphKernels *gk)
{
	int parts = p->parts > 1 ? panels_at(gc) : -1;
	Epilogue epi;

	gemm_epilogue(gc, op, p, &epi);
	(p->copy ? wgrad_copied_emit : main_kernel)(gc, op, p, a, b, parts >= 0 ? parts : epi.raw, gk);
	if (parts >= 0)
		wgrad_join(gc, p->parts, type_elements(val_type(gc->g, op->out[0])), parts, epi.raw, gk);
}

/* ---------------------------------------------------------------- the row */
static const char *
dw_why_not(const Graph *g, const Op *op, const PlanCx *cx, const GemmParams *p)
{
	if (op->kind != OP_conv2d_dw || !gemm_possible(g, op))
		return "its layouts, types or extents are not those of this kernel";
	return NULL;
}

/* Partial sums. */
static int64_t
dw_workspace(const Graph *g, const Op *op, const GemmParams *p)
{
	return p->parts > 1 ? p->parts * type_bytes(val_type(g, op->out[0])) : 0;
}

static int64_t
dw_scratch(const Graph *g, const Op *op, const GemmParams *p)
{
	return p->copy ? wgrad_copied_bytes(g, op, p) : prologue_scratch(g, op, p);
}

static void
dw_write(const GemmParams *p, Params *q)
{
	q->cpu_brgemm_dw.parts = p->parts;
	q->cpu_brgemm_dw.band = p->band;
	q->cpu_brgemm_dw.images = p->images;
	q->cpu_brgemm_dw.copy = p->copy;
	q->cpu_brgemm_dw.chains = p->chains;
	q->cpu_brgemm_dw.pairs = (int)p->engine;
}

static void
dw_read(const Params *q, GemmParams *p)
{
	p->parts = q->cpu_brgemm_dw.parts;
	p->band = q->cpu_brgemm_dw.band;
	p->images = q->cpu_brgemm_dw.images;
	p->copy = q->cpu_brgemm_dw.copy;
	p->chains = q->cpu_brgemm_dw.chains;
	p->engine = (EngineId)q->cpu_brgemm_dw.pairs;
}

const Algo algo_dw = {
	.family = FAMILY_cpu_brgemm_dw,
	.doc = "products of the operands themselves: the gradient in a convolution's weights",
	.ops = {OP_conv2d_dw},
	.engines = ENGINES_ALL,
	.chains = true,
	.write = dw_write,
	.read = dw_read,
	.offer = products_offer,
	.why_not = dw_why_not,
	.workspace = dw_workspace,
	.scratch = dw_scratch,
	.pieces = products_pieces,
	.emit = wgrad_emit,
};
