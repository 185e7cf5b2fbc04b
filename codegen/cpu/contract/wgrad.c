/* wgrad.c: the gradient of a convolution in its weights by register-blocked products.
 *
 * In: a group of conv2d.dw, images and gradient HWNC.   Out: the kernel, and where pixel rows are cut into parts
 * (split-K) with sums of their own, one that adds these in order. Operands that the kernel makes (prologue.c) are made
 * band by band. Rows of a product are input channels, columns output channels, the sum runs over pixels and images, a
 * band of rows and some images at a time: what these hold meets all columns of the task while the caches have it. With
 * one input channel the filter's columns are the rows. */
#include "wgrad.h"

void
wgrad_taps(Emit *e, Wgrad *w)
{
	w->rr = arena_array(e->arena, int64_t, w->R * 2);
	w->ss = arena_array(e->arena, int64_t, w->S * 3);
	for (int64_t r = 0; r < w->R; r++)
		for (int64_t i = w->OH; i-- > 0;) {
			int64_t h = i * w->at.stride[0] - w->at.pad[0] + r * w->at.dilation[0];

			if (h < 0 || h >= w->H)
				continue;
			w->rr[r * 2] = i;
			if (!w->rr[r * 2 + 1])
				w->rr[r * 2 + 1] = i + 1;
		}
	for (int64_t s = 0; s < w->S; s++)
		for (int64_t i = w->OW; i-- > 0;) {
			int64_t c = i * w->at.stride[1] - w->at.pad[1] + s * w->at.dilation[1];

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

V
input_index(Emit *e, const Wgrad *w, int axis, V at)
{
	return i_sub_k(e, i_mul_k(e, at, w->at.stride[axis]), w->at.pad[axis]);
}

/* Where the gradient of pixel (o, ow) begins for the microkernel. */
static V
gradient_at(Emit *e, const Wgrad *w, V o, V ow)
{
	return mem_at(e, &w->gradient, i_sub(e, o, w->gradient_row), ow, w->group, w->kb);
}

/* h0: input row of output row o0; sums: of a filter row and a panel. */
static void
all_columns(Emit *e, const Wgrad *w, V o0, V h0, V np, V sums)
{
	V row = mem_at(e, &w->in, i_sub(e, h0, w->in_row));
	/* what an output column meets by a filter column; sums of a filter column */
	Mem met = mem_axes(e, row, BY(F32(w->at.stride[1] * w->N)), BY(F32(w->at.dilation[1] * w->N)));
	Mem of_column = mem_axes(e, sums, BY(F32(w->K)));

	met.start = k64(e, F32(-w->at.pad[1] * w->N));
	TILES(e, tap, count, k64(e, w->S), w->p->mr) {
		V first = k64(e, w->first), from = mem_at(e, &met, first, tap), to = mem_at(e, &of_column, tap);

		tile_call(e, &w->tiles, count, w->kb, w->npanel, from, gradient_at(e, w, o0, first), to, np,
		    k64(e, w->last - w->first), w->strides, w->acc);
	}
	for (int64_t s = 0; s < w->S; s++)
		for (int side = 0; side < 2; side++) {
			int64_t lo = side ? w->last : w->ss[s * 3],
			        hi = side ? w->ss[s * 3] + w->ss[s * 3 + 1] : w->first;
			V at = k64(e, lo), by = k64(e, s);

			if (lo < hi)
				tile_call(e, &w->tiles, k64(e, 1), w->kb, w->npanel, mem_at(e, &met, at, by),
				          gradient_at(e, w, o0, at), mem_at(e, &of_column, by), np, k64(e, hi - lo),
				          w->strides, k64(e, 1));
		}
}

static void
each_column(Emit *e, const Wgrad *w, V o0, V h0, V np, V sums)
{
	Mem of_channel = mem_dense(e, sums, DT_f32, w->S, w->C, w->K);

	TIMES(e, s, w->S) {
		V s3 = i_mul_k(e, s, 3), ow = table_at(e, w->ts, s3), nq = table_at(e, w->ts, i_add_k(e, s3, 1)),
		  column = table_at(e, w->ts, i_add_k(e, s3, 2));

		wgrad_clip(e, w, &ow, &nq, &column);
		Mem from = mem_fix(e, &w->in, i_sub(e, h0, w->in_row), column, w->group);

		TILES(e, lo, count, i_sub(e, w->c1, w->c0), w->p->mr) {
			lo = i_add(e, lo, w->c0);
			tile_call(e, &w->tiles, count, w->kb, w->npanel, mem_at(e, &from, lo),
			          gradient_at(e, w, o0, ow), mem_at(e, &of_channel, s, lo), np, nq, w->strides, w->acc);
		}
	}
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
	w->q1 = i_min(e, i_add_k(e, w->q0, w->cut), k64(e, w->OW));
	w->acc = LLVMBuildOr(here(e), w->acc, is_not(e, w->q0, k64(e, 0)), "");
	return 1;
}

void
wgrad_clip(Emit *e, const Wgrad *w, V *ow, V *nq, V *column)
{
	if (w->cut == w->OW)
		return;
	V lo = i_max(e, *ow, w->q0), hi = i_min(e, i_add(e, *ow, *nq), w->q1);

	*column = i_add(e, *column, i_mul_k(e, i_sub(e, lo, *ow), w->at.stride[1]));
	*ow = lo;
	*nq = i_sub(e, hi, lo);
}

/* Opens the loops over bands of the part's rows and, within, over images and pieces of rows; returns how many. Operands
 * that the kernel makes are made for the band. */
static int
pass_open(Emit *e, const Op *op, Wgrad *w)
{
	const GemmParams *p = w->p;
	V lo = i_div_k(e, i_mul_k(e, w->part, w->OH), p->parts),
	  hi = i_div_k(e, i_mul_k(e, i_add_k(e, w->part, 1), w->OH), p->parts);

	w->band = loop_open(e, lo, hi, p->band);
	w->end = i_min(e, i_add_k(e, w->band, p->band), hi);
	w->acc = is_not(e, w->band, lo);
	if (!w->in.base) {
		V last = i_add_k(e, input_index(e, w, 0, i_sub_k(e, w->end, 1)), (w->R - 1) * w->at.dilation[0] + 1);

		w->in_row = i_max(e, k64(e, 0), input_index(e, w, 0, w->band));
		w->in.base = prologue_band(e, op, p, 0, w->in_row, i_min_k(e, last, w->H));
	}
	if (!w->gradient.base) {
		w->gradient_row = w->band;
		w->gradient.base = prologue_band(e, op, p, 1, w->band, w->end);
	}
	if (w->images == w->N)
		return 1 + wgrad_cut_open(e, w);
	V first = loop_open(e, k64(e, 0), k64(e, w->N), w->images);
	int64_t image = engine_of(p)->side_by_side ? 4 : F32(w->line[0]);

	w->acc = LLVMBuildOr(here(e), w->acc, is_not(e, first, k64(e, 0)), "");
	w->in.base = ptr_at(e, w->in.base, i_mul_k(e, first, image));
	w->gradient.base = ptr_at(e, w->gradient.base, i_mul_k(e, first, F32(w->line[1])));
	return 2 + wgrad_cut_open(e, w);
}

Wgrad
wgrad_of(const Graph *g, const Op *op, const GemmParams *p)
{
	const Type *x = val_type(g, op->in[0]), *gr = val_type(g, op->in[1]), *o = val_type(g, op->out[0]);
	int64_t nr = (int64_t)p->nv * p->lanes, groups = gemm_groups(op), own = gr->axis[1].n / groups;
	/* amx_transpose has put the images side by side */
	bool pairs = engine_pairs(p), transposed = engine_of(p)->side_by_side;
	Wgrad w = {.p = p,
	           .H = x->axis[2].n,
	           .W = x->axis[3].n,
	           .C = x->axis[1].n / groups,
	           .groups = groups,
	           .N = ceil_div(x->axis[0].n, gemm_unit(p)),
	           .OH = gr->axis[2].n,
	           .OW = gr->axis[3].n,
	           .K = gr->axis[1].n,
	           .R = o->axis[2].n,
	           .S = o->axis[3].n,
	           .npanel = ceil_div(own, nr),
	           .at = window_of(g, op)};

	w.columns = wgrad_columns(g, op, p);
	w.line[0] = pairs && !transposed ? vnni_line(g, op, 0) : x->axis[1].n;
	w.line[1] = pairs ? vnni_line(g, op, 1) : w.K;
	w.channel = transposed ? F32(w.N) : 4;
	w.images = p->images ? p->images : w.N;
	w.cut = wgrad_cut(g, op, p);
	return w;
}

/* Strides of the microkernel. */
static V
wgrad_strides(Emit *e, const Wgrad *w, bool transposed)
{
	int64_t pixel = F32(w->N * w->line[1]);

	return strides_of_constants(e, (const int64_t[S_COUNT]){
	        [S_AM] = w->columns ? F32(w->at.dilation[1] * w->N) : w->channel,
	        [S_AK] = transposed ? 4 : F32(w->line[0]),
	        [S_AP] = F32(w->at.stride[0] * w->W * w->N * w->line[0]),
	        [S_AQ] = F32(w->at.stride[1] * w->N * w->line[0]),
	        [S_BP] = w->OW * pixel,
	        [S_BQ] = pixel,
	        [S_BK] = F32(w->line[1]),
	        [S_CM] = F32(w->K),
	        [S_NK] = w->images,
	});
}

/* Input channels of a slice: as few as give many threads work, two tiles at least. */
static int64_t
slice_channels(const Wgrad *w)
{
	int64_t slices = (w->p->parts > 1 ? w->p->parts : 1) * w->groups * w->npanel * w->R,
	        want = ceil_div(WGRAD_SLICES, slices), tiles = ceil_div(ceil_div(w->C, want), w->p->mr);

	return w->columns || want == 1 ? w->C : (tiles < 2 ? 2 : tiles) * w->p->mr;
}

/* Slice: panel, filter row, block of input channels, of which the last goes fastest. Returns the filter row. */
static V
slice_find(Emit *e, Wgrad *w, int64_t channels, V slice)
{
	V rest = i_div_k(e, slice, w->blocks), panel = i_div_k(e, rest, w->R);

	w->c0 = i_mul_k(e, i_rem_k(e, slice, w->blocks), channels);
	w->c1 = i_min_k(e, i_add_k(e, w->c0, channels), w->C);
	panel_find(e, w->groups, w->npanel, panel, &w->group, &w->kb);
	return i_rem_k(e, rest, w->R);
}

/* Where the operands and the sums lie; an operand that the kernel makes has no place yet. */
static void
regions_open(Emit *e, Wgrad *w, int abuf, int bbuf, int cbuf)
{
	int64_t own = w->K / w->groups, nr = (int64_t)w->p->nv * w->p->lanes;

	w->in = mem_axes(e, abuf < 0 ? NULL : buffer(e, abuf), OF(w->W), BY(F32(w->N * w->line[0])),
	                 BY(w->C * w->channel), BY(w->channel));
	w->gradient = mem_axes(e, bbuf < 0 ? NULL : buffer(e, bbuf), OF(w->OW), BY(F32(w->N * w->line[1])),
	                       BY(F32(own)), BY(F32(nr)));
	w->sums = mem_axes(e, buffer(e, cbuf), OF(w->R), BY(F32(w->S * w->C * w->K)), BY(F32(own)), BY(F32(nr)));
	w->in_row = w->gradient_row = k64(e, 0);
}

static void
main_kernel(GroupCx *gc, const Op *op, const GemmParams *p, int abuf, int bbuf, int cbuf, GraphKernels *gk)
{
	Wgrad w = wgrad_of(gc->g, op, p);
	int64_t channels = slice_channels(&w);
	Emit e = {0};
	bool fresh;
	int fn = kernel_begin(gc, &e, "main", &fresh);

	w.blocks = ceil_div(w.C, channels);
	int64_t slices = w.groups * w.npanel * w.R * w.blocks;

	if (fresh) {
		wgrad_taps(&e, &w);
		w.tiles = tiles_make(&e, p, w.K / w.groups,
		                     w.columns ? tile_rows(w.S, w.S, p->mr) | 1 : tile_rows(w.C, channels, p->mr),
		                     (Steps){engine_of(p)->side_by_side ? 4 : F32(w.line[0]), F32(w.line[1])});
		regions_open(&e, &w, abuf, bbuf, cbuf);
		w.strides = wgrad_strides(&e, &w, engine_of(p)->side_by_side);
		w.tr = table(&e, w.rr, w.R * 2), w.ts = table(&e, w.ss, w.S * 3);
		/* a piece of work is a part of the rows; the slices of a call go over its bands together */
		SLICES(&e, part, slices, lo, hi) {
			w.part = part;
			LOOPS(&e, pass_open(&e, op, &w)) LOOP(&e, slice, lo, hi, 1) {
				V r = slice_find(&e, &w, channels, slice), r2 = i_mul_k(&e, r, 2);
				V o0 = i_max(&e, w.band, table_at(&e, w.tr, r2)),
				  np = i_sub(&e, i_min(&e, w.end, table_at(&e, w.tr, i_add_k(&e, r2, 1))), o0);
				V h0 = i_add(&e, input_index(&e, &w, 0, o0), i_mul_k(&e, r, w.at.dilation[0]));

				(w.columns ? all_columns : each_column)(&e, &w, o0, h0, np,
				                                        mem_at(&e, &w.sums, w.part, r, w.group, w.kb));
			}
		}
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
		Mem in = mem_dense(&e, buffer(&e, src), DT_f32, elements), out = in;
		V lo = grains_lo(&e, grain * ROW), hi = grains_hi(&e, grain * ROW, k64(&e, elements));

		out.base = buffer(&e, dst);
		LOOP(&e, i, lo, hi, e.W) {
			V mask = mask_below(&e, i_sub(&e, hi, i)), sum = NULL;

			for (int64_t part = 0; part < parts; part++) {
				V v = vec_load(&e, mem_at(&e, &in, i_add_k(&e, i, part * elements)), mask);

				sum = sum ? LLVMBuildFAdd(here(&e), sum, v, "") : v;
			}
			vec_store(&e, mem_at(&e, &out, i), sum, mask);
		}
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
