/* depthwise.c: convolutions whose groups have fewer than 8 channels, some neighbouring channels of a pixel at a time.
 *
 * In: conv2d, conv2d.dx or conv2d.dw of f32, f16 or bf16, channels innermost, and indices of its result.   Out: arrays
 * of `vec` sums. Their kernels are bound by memory: a tap's channels and filters come in one load each where a group
 * has as many channels before as behind; sums are one chain of f32 FMAs in the order of taps, then of channels. Of
 * groups of one channel a thread may have some pixels of a row, for which it loads a tap's filters once.
 * The gradient in the weights has few results and long sums: a kernel before divides the pixels into pieces, a block
 * each, whose threads keep the sums of all taps of 4 or 8 channels; the group's own kernel adds the pieces in their
 * order. Where both operands are in memory, and groups of one channel, a thread takes some pixels of a row at a time:
 * it loads what all of them meet at once, zeros outside of the image, and only then multiplies. */
#include "../contract/gemm.h"
#include <math.h>
#include <string.h>

/* MOST: channels that a group has on the side that is summed over: their products stand in the text one by one */
enum { ACCUMULATORS = 100, PIECES = 256, PIXELS = 4, MOST = 16 };

typedef struct Taps {
	const Op *op;
	Window w;
	int64_t in, out;  /* channels of a group, of the image and of the convolution's result */
	int64_t channels; /* of the result, all groups */
} Taps;

static Taps
taps_of(const Graph *g, const Op *op)
{
	Conv c = conv_of(g, op);

	return (Taps){op, c.at, c.in, c.out, c.out * c.groups};
}

/* ---------------------------------------------------------------- neighbours */
static bool
innermost(const Type *t, int axis)
{
	return cu_inner_axis(t) == axis && !t->axis[axis].mul && cu_vector_type((DType)t->dtype);
}

/* The channels of 8 neighbours, of groups of n: whole groups, or a part of one. */
static bool
divides(int64_t n)
{
	return n % 8 == 0 || 8 % n == 0;
}

static bool
small_groups(const Graph *g, const Op *op)
{
	if (op->kind != OP_conv2d && op->kind != OP_conv2d_dx && op->kind != OP_conv2d_dw)
		return false;
	Taps v = taps_of(g, op);

	if ((op->kind == OP_conv2d_dx ? v.out : v.in) > MOST)
		return false;
	return attr_int(op, A_groups) > 1 && cu_gemm_why_not(g, op) &&
	       cu_vector_type((DType)val_type(g, op->in[0])->dtype) &&
	       val_type(g, op->in[1])->dtype == val_type(g, op->in[0])->dtype &&
	       cu_vector_type((DType)val_type(g, op->out[0])->dtype);
}

/* The kernel of the op's group, if it is one of these; else its pieces are 0. */
static Params
kernel_of(const Graph *g, const Op *op)
{
	Params p = {0};

	if (op->group >= 0)
		space_parse("cuda", NULL, g->group.at[op->group].kernel, &p);
	return p.family == FAMILY_cuda_depthwise ? p : (Params){0};
}

/* Pieces of the sums that stand in the group's workspace; 0: the group has none. */
static int64_t
pieces_of(const Graph *g, const Op *op)
{
	return op->kind == OP_conv2d_dw ? kernel_of(g, op).cuda_depthwise.pieces : 0;
}

bool
cu_depthwise_neighbours(const Graph *g, const Op *op)
{
	if (op->kind == OP_conv2d_dw)
		return pieces_of(g, op) && type_elements(val_type(g, op->out[0])) % 8 == 0;
	if (!small_groups(g, op))
		return false;
	Taps v = taps_of(g, op);

	return innermost(val_type(g, op->out[0]), 1) && innermost(val_type(g, op->in[0]), 1) &&
	       divides(op->kind == OP_conv2d ? v.out : v.in);
}

/* As many neighbours of value v as lie at `first`, in a variable: an array, or one number where vec is 1. */
static const char *
near_numbers(Cuda *c, Val v, int axis, const Ix *first, int vec)
{
	const char *name = cu_numbers_open(c, vec, 'v', "float", NULL);
	Near n = {0};
	Cell x = cu_near_open(c, &n, v, axis, first, vec);

	cu_line(c, "%s = %s;", vec > 1 ? arena_printf(c->a, "%s[u]", name) : name, cu_cell_cast(c, x, DT_f32).v);
	cu_near_close(c, &n);
	return name;
}

/* One number of v as f32. */
static const char *
number(Cuda *c, Val v, const Ix *ix)
{
	return cu_cell_cast(c, cu_value_at(c, v, ix), DT_f32).v;
}

/* The sums of neighbours u of a result: acc[u] += the product of number `a` of operand 0, which may name u, and one of
 * the filters. */
static void
add(Cuda *c, const char *acc, int vec, const char *a, const char *b)
{
	const char *mine = vec > 1 ? arena_printf(c->a, "%s[u]", acc) : acc;

	cu_line(c, "%s = fmaf(%s, %s, %s);", mine, a, b, mine);
}

static Ix
index_let(Cuda *c, const char *text)
{
	int64_t k;

	return cu_ix_number(text, &k) ? text : cu_let(c, c->it, 'i', text);
}

/* The first channel that neighbour u's group has on the other side, of groups of `mine` channels there and `other`. */
static Ix
group_first(Cuda *c, Ix channel, int64_t mine, int64_t other)
{
	return cu_ix_mul(c, cu_ix_div(c, channel, cu_ix_k(c, mine)), cu_ix_k(c, other));
}

/* Products of one tap, inside both planes. x: indices of operand 0 but for its channel; mine, other: channels of a
 * group on the result's side and on operand 0's. */
static void
tap_add(Cuda *c, const Taps *v, const char *acc, Ix channel, Ix *x, const Ix *tap, int vec)
{
	bool dx = v->op->kind == OP_conv2d_dx;
	int64_t mine = dx ? v->in : v->out, other = dx ? v->out : v->in;
	const Val image = v->op->in[0], filter = v->op->in[1];
	bool same = mine == other && vec % mine == 0, whole = vec == 1 || mine % vec == 0;
	bool rows = !dx && innermost(val_type(c->g, filter), 0);
	const char *near = NULL;

	if (same) {
		x[1] = channel;
		near = near_numbers(c, image, 1, x, vec);
	}
	for (int64_t j = 0; j < other; j++) {
		Ix w[4] = {channel, cu_ix_k(c, j), tap[0], tap[1]};
		const char *factors =
		        (rows || (dx && other == 1 && mine == 1 && innermost(val_type(c->g, filter), 0))) && vec > 1
		                ? near_numbers(c, filter, 0, w, vec)
		                : NULL;
		const char *a = NULL;

		if (!same && whole) {
			x[1] = cu_ix_add(c, group_first(c, channel, mine, other), cu_ix_k(c, j));
			a = number(c, image, x);
		}
		Scope s = cu_each_open(c, vec);
		Ix u = vec > 1 ? cu_ix_add(c, channel, "u") : channel;

		if (same)
			a = vec == 1 ? near
			             : arena_printf(c->a, "%s[u / %d * %d + %d]", near, (int)mine, (int)mine, (int)j);
		if (!a) {
			x[1] = cu_ix_add(c, group_first(c, u, mine, other), cu_ix_k(c, j));
			a = number(c, image, x);
		}
		if (!factors) {
			w[0] = dx ? cu_ix_add(c, group_first(c, u, mine, other), cu_ix_k(c, j)) : u;
			w[1] = dx ? index_let(c, cu_ix_rem(c, u, cu_ix_k(c, mine))) : cu_ix_k(c, j);
		}
		add(c, acc, vec, a, factors ? arena_printf(c->a, "%s[u]", factors) : number(c, filter, w));
		cu_each_close(c, vec, s);
	}
}

/* A convolution's or its gradient's sums at ix and at the channels behind it. */
static const char *
taps_sum(Cuda *c, const Op *op, const Ix *ix, int vec)
{
	Taps v = taps_of(c->g, op);
	const char *acc = cu_numbers_open(c, vec, 'v', "float", "0"), *valid = "1";
	Scope loop[2];
	Ix tap[2], x[4] = {ix[0]};

	for (int d = 0; d < 2; d++)
		loop[d] = cu_loop_open(c, cu_ix_k(c, v.w.k[d]), &tap[d]);
	for (int d = 0; d < 2; d++) {
		int64_t s = v.w.stride[d], dil = v.w.dilation[d], pad = v.w.pad[d];

		x[2 + d] = op->kind == OP_conv2d ? cu_row_in(c, ix[2 + d], s, tap[d], dil, pad)
		                                 : cu_row_out(c, ix[2 + d], s, tap[d], dil, pad, &valid);
	}
	Scope in = cu_scope_open(c, "if (%s)", cu_in_plane(c, val_type(c->g, op->in[0]), x, valid));

	tap_add(c, &v, acc, ix[1], x, tap, vec);
	cu_scope_close(c, in);
	cu_scope_close(c, loop[1]);
	cu_scope_close(c, loop[0]);
	return acc;
}

/* A tap's filters of `vec` channels, of groups of one channel. */
static const char *
tap_filters(Cuda *c, Val filter, Ix channel, const Ix *tap, int vec)
{
	Ix w[4] = {channel, "0", tap[0], tap[1]};

	if (innermost(val_type(c->g, filter), 0))
		return near_numbers(c, filter, 0, w, vec);
	const char *name = cu_numbers_open(c, vec, 'v', "float", NULL);
	Scope s = cu_each_open(c, vec);

	w[0] = cu_ix_add(c, channel, "u");
	cu_line(c, "%s[u] = %s;", name, number(c, filter, w));
	cu_each_close(c, vec, s);
	return name;
}

/* A tile's sums as elements of the result's type. */
static const char *
tile_cast(Cuda *c, const char *acc, DType to, int vec, int pixels)
{
	const char *r = cu_fresh(c, 'v');

	if (to == DT_f32)
		return acc;
	cu_line(c, "%s %s[%d][%d];", cu_c_type(to), r, pixels, vec);
	cu_line(c, "#pragma unroll");
	Scope q = cu_scope_open(c, "for (int q = 0; q < %d; q++)", pixels), u = cu_each_open(c, vec);

	cu_line(c, "%s[q][u] = %s;", r, cu_cell_cast(c, (Cell){arena_printf(c->a, "%s[q][u]", acc), DT_f32}, to).v);
	cu_each_close(c, vec, u);
	cu_scope_close(c, q);
	return r;
}

const char *
cu_depthwise_tile(Cuda *c, const Op *op, const Ix *ix, int vec, int pixels)
{
	Taps v = taps_of(c->g, op);
	const Val image = op->in[0];
	const char *acc = cu_fresh(c, 'v'), *valid = "1";
	Scope loop[2];
	Ix tap[2], x[4] = {ix[0], ix[1]}, at[2] = {ix[2]};

	cu_line(c, "float %s[%d][%d] = {};", acc, pixels, vec);
	for (int d = 0; d < 2; d++)
		loop[d] = cu_loop_open(c, cu_ix_k(c, v.w.k[d]), &tap[d]);
	const char *factors = tap_filters(c, op->in[1], ix[1], tap, vec);

	cu_line(c, "#pragma unroll");
	Scope q = cu_scope_open(c, "for (int q = 0; q < %d; q++)", pixels);

	at[1] = cu_ix_add(c, ix[3], "q");
	for (int d = 0; d < 2; d++) {
		int64_t s = v.w.stride[d], dil = v.w.dilation[d], pad = v.w.pad[d];

		x[2 + d] = op->kind == OP_conv2d ? cu_row_in(c, at[d], s, tap[d], dil, pad)
		                                 : cu_row_out(c, at[d], s, tap[d], dil, pad, &valid);
	}
	Scope in = cu_scope_open(c, "if (%s)", cu_in_plane(c, val_type(c->g, image), x, valid));
	const char *near = near_numbers(c, image, 1, x, vec);
	Scope u = cu_each_open(c, vec);

	add(c, arena_printf(c->a, "%s[q]", acc), vec, arena_printf(c->a, "%s[u]", near),
	    arena_printf(c->a, "%s[u]", factors));
	cu_each_close(c, vec, u);
	cu_scope_close(c, in);
	cu_scope_close(c, q);
	cu_scope_close(c, loop[1]);
	cu_scope_close(c, loop[0]);
	return tile_cast(c, acc, (DType)val_type(c->g, op->out[0])->dtype, vec, pixels);
}

/* ---------------------------------------------------------------- the gradient in the weights */
/* How a block's threads and the blocks share the work: `vec` channels of the result to a thread, `lanes` of these side
 * by side, the other threads along the pixels; `taps` of the filter's in a thread's sums; `near` pixels of a row at a
 * time, 0: a tap of one at a time. */
typedef struct Share {
	int vec, lanes, rows, near;
	int64_t chunks, taps, tap_blocks, chunk_blocks, pieces;
} Share;

/* p: what is 0 there follows from shape and machine. */
static Share
share_of(const Graph *g, const Taps *v, const Params *p)
{
	const Type *out = val_type(g, v->op->in[1]);
	Share s = {.vec = 8, .pieces = 1};
	int64_t pixels = type_elements(out) / v->channels, all = v->w.k[0] * v->w.k[1];

	if (dtype_info[out->dtype].bytes > 2) /* 16 bytes */
		s.vec = 4;
	while (s.vec > 1 && (v->channels % s.vec || !divides(v->out) || s.vec * v->in > ACCUMULATORS))
		s.vec = s.vec == 8 ? 4 : 1;
	if (s.vec == 8 && all * 8 * v->in > ACCUMULATORS && all * 4 * v->in <= ACCUMULATORS) /* all taps at once */
		s.vec = 4;
	s.vec = p->cuda_depthwise.vec ? p->cuda_depthwise.vec : s.vec;
	s.chunks = v->channels / s.vec;
	s.chunk_blocks = (s.chunks + WARP - 1) / WARP;
	s.lanes = (int)((s.chunks + s.chunk_blocks - 1) / s.chunk_blocks);
	s.lanes = p->cuda_depthwise.lanes ? p->cuda_depthwise.lanes : s.lanes;
	s.chunk_blocks = (s.chunks + s.lanes - 1) / s.lanes;
	s.rows = BLOCK / s.lanes;
	s.taps = p->cuda_depthwise.taps ? p->cuda_depthwise.taps : ACCUMULATORS / (s.vec * v->in);
	s.taps = s.taps < 1 ? 1 : s.taps > all ? all : s.taps;
	if (!p->cuda_depthwise.taps && s.taps > v->w.k[1]) /* rows of the filter */
		s.taps -= s.taps % v->w.k[1];
	s.tap_blocks = (all + s.taps - 1) / s.taps;
	int64_t wanted = 2 * cu_machine(g)->budget.blocks / (s.tap_blocks * s.chunk_blocks),
	        most = pixels / (s.rows * PIXELS);

	s.pieces = wanted < most ? wanted : most;
	s.pieces = s.pieces < 1 ? 1 : s.pieces > PIECES ? PIECES : s.pieces;
	return s;
}

Facts
cu_depthwise_facts(const Graph *g, const Op *op, const SelectCx *cx)
{
	Taps v = taps_of(g, op);
	bool dw = op->kind == OP_conv2d_dw;

	(void)cx;
	return (Facts){.N = val_type(g, op->out[0])->axis[dw ? 0 : 1].n,
	               .K = v.w.k[0] * v.w.k[1],
	               .pixel_rows = dw ? type_elements(val_type(g, op->in[1])) / v.channels : 0};
}

const char *
cu_depthwise_misfit(const Graph *g, const Op *op, const SelectCx *cx, const Params *p)
{
	Facts f = cu_depthwise_facts(g, op, cx);
	Taps v = taps_of(g, op);

	if (p->family != FAMILY_cuda_depthwise)
		return arena_printf(g->arena, "%s takes parameters such as depthwise{pixels=1}",
		                    op_info[op->kind].name);
	const char *why = space_misfit(g->arena, p, &f);
	Share s = share_of(g, &v, p);

	if (why)
		return why;
	if (op->kind != OP_conv2d_dw) {
		int pixels = p->cuda_depthwise.pixels;

		if (pixels > 1 && (v.in != 1 || v.out != 1))
			return "a thread has several pixels of groups of one channel alone";
		return pixels > 1 && pixels >= 2 * val_type(g, op->out[0])->axis[3].n
		               ? arena_printf(g->arena, "a row has %lld pixels",
		                              (long long)val_type(g, op->out[0])->axis[3].n)
		               : NULL;
	}
	if (p->cuda_depthwise.vec && !divides(v.out))
		return "groups of so many channels are taken one by one";
	if (s.vec * v.in * s.taps > ACCUMULATORS)
		return arena_printf(g->arena, "a thread would hold %lld sums, at most %d",
		                    (long long)(s.vec * v.in * s.taps), ACCUMULATORS);
	return s.lanes >= 2 * s.chunks
	               ? arena_printf(g->arena, "%d threads for %lld vectors of channels", s.lanes, (long long)s.chunks)
	               : NULL;
}

int64_t
cu_depthwise_workspace(const Graph *g, const Op *op, const Params *p)
{
	return op->kind == OP_conv2d_dw ? 4 * p->cuda_depthwise.pieces * type_elements(val_type(g, op->out[0])) : 0;
}

bool
cu_depthwise_select(Graph *g, int group, const Op *op)
{
	Group *gr = &g->group.at[group];
	Params p = {FAMILY_cuda_depthwise, .cuda_depthwise = {.pixels = 1, .pieces = 1}};

	if (!small_groups(g, op))
		return false;
	if (op->kind != OP_conv2d_dw) {
		if (!cu_depthwise_neighbours(g, op))
			return false;
		gr->kernel = space_text(g->arena, &p);
		return true;
	}
	if (!innermost(val_type(g, op->in[0]), 1) || !innermost(val_type(g, op->in[1]), 1))
		return false;
	Taps v = taps_of(g, op);

	p.cuda_depthwise.pieces = (int)share_of(g, &v, &p).pieces;
	gr->kernel = space_text(g->arena, &p);
	gr->workspace = cu_depthwise_workspace(g, op, &p);
	return true;
}

/* The sums of all pieces, in their order, of the element at ix and of those behind it in memory. */
static const char *
pieces_sum(Cuda *c, const Op *op, const Ix *ix, int vec)
{
	const Type *t = val_type(c->g, op->out[0]);
	const char *sum = cu_numbers_open(c, vec, 'v', "float", "0"), *part = cu_fresh(c, 'x'),
	           *from = cu_pointer(c, DT_f32, c->g->group.at[c->group].workspace_offset),
	           *at = arena_printf(c->a, "k * %lld + %s", (long long)type_elements(t), cu_element(c, t, ix));

	cu_line(c, "#pragma unroll %d", vec > 1 ? 16 : 32);
	Scope loop = cu_scope_open(c, "for (int k = 0; k < %d; k++)", (int)pieces_of(c->g, op));

	if (vec > 1) {
		cu_line(c, "float %s[%d];", part, vec);
		cu_line(c, "take%d_32(%s, &%s[%s]);", vec, part, from, at);
	} else {
		cu_line(c, "const float %s = %s[%s];", part, from, at);
	}
	Scope s = cu_each_open(c, vec);
	const char *u = vec > 1 ? "[u]" : "";

	cu_line(c, "%s%s += %s%s;", sum, u, part, u);
	cu_each_close(c, vec, s);
	cu_scope_close(c, loop);
	return sum;
}

bool
cu_depthwise_pieces(Cuda *c, const Op *op, const Ix *ix, Cell *x)
{
	if (!pieces_of(c->g, op))
		return false;
	*x = cu_cell_cast(c, (Cell){pieces_sum(c, op, ix, 1), DT_f32}, (DType)val_type(c->g, op->out[0])->dtype);
	return true;
}

const char *
cu_depthwise_values(Cuda *c, const Op *op, const Ix *ix, int vec)
{
	const char *acc = op->kind == OP_conv2d_dw ? pieces_sum(c, op, ix, vec) : taps_sum(c, op, ix, vec);
	DType to = (DType)val_type(c->g, op->out[0])->dtype;

	if (to == DT_f32)
		return acc;
	const char *r = cu_numbers_open(c, vec, 'v', cu_c_type(to), NULL), *u = vec > 1 ? "[u]" : "";
	Scope s = cu_each_open(c, vec);

	cu_line(c, "%s%s = %s;", r, u, cu_cell_cast(c, (Cell){arena_printf(c->a, "%s%s", acc, u), DT_f32}, to).v);
	cu_each_close(c, vec, s);
	return r;
}

/* The products of a pixel, added to the sums acc[tap][channel of a group's image][u]. */
static void
pixel_add(Cuda *c, const Taps *v, const Share *s, const char *acc, Ix channel, Ix first_tap, const Ix *at)
{
	const Val image = v->op->in[0];
	bool same = v->in == v->out && s->vec % v->in == 0, whole = s->vec == 1 || v->out % s->vec == 0;
	Ix o[4] = {at[0], channel, at[1], at[2]}, x[4] = {at[0]};
	const char *g = near_numbers(c, v->op->in[1], 1, o, s->vec), *u = s->vec > 1 ? "[u]" : "";

	cu_line(c, "#pragma unroll");
	Scope loop = cu_scope_open(c, "for (int t = 0; t < %d; t++)", (int)s->taps);
	Ix tap = index_let(c, cu_ix_add(c, first_tap, "t")), k[2];

	k[0] = index_let(c, cu_ix_div(c, tap, cu_ix_k(c, v->w.k[1])));
	k[1] = index_let(c, cu_ix_rem(c, tap, cu_ix_k(c, v->w.k[1])));
	for (int d = 0; d < 2; d++)
		x[2 + d] = cu_row_in(c, at[1 + d], v->w.stride[d], k[d], v->w.dilation[d], v->w.pad[d]);
	const char *valid = cu_in_plane(c, val_type(c->g, image), x,
	                                s->tap_blocks > 1 && v->w.k[0] * v->w.k[1] % s->taps
	                                        ? cu_in_range(c, k[0], cu_ix_k(c, v->w.k[0]))
	                                        : "1");
	Scope in = cu_scope_open(c, "if (%s)", valid);
	const char *near = NULL;

	if (same) {
		x[1] = channel;
		near = near_numbers(c, image, 1, x, s->vec);
	}
	for (int64_t j = 0; j < v->in; j++) {
		const char *a = NULL;

		if (!same && whole) {
			x[1] = cu_ix_add(c, group_first(c, channel, v->out, v->in), cu_ix_k(c, j));
			a = number(c, image, x);
		}
		Scope each = cu_each_open(c, s->vec);

		if (same)
			a = s->vec == 1
			            ? near
			            : arena_printf(c->a, "%s[u / %d * %d + %d]", near, (int)v->in, (int)v->in, (int)j);
		if (!a) {
			x[1] = cu_ix_add(
			        c, group_first(c, s->vec > 1 ? cu_ix_add(c, channel, "u") : channel, v->out, v->in),
			        cu_ix_k(c, j));
			a = number(c, image, x);
		}
		const char *sum = arena_printf(c->a, "%s[t * %d + %d]%s", acc, (int)v->in, (int)j, u);

		cu_line(c, "%s = fmaf(%s%s, %s, %s);", sum, g, u, a, sum);
		cu_each_close(c, s->vec, each);
	}
	cu_scope_close(c, in);
	cu_scope_close(c, loop);
}

/* Is value v in memory, so that its channels are loaded as they lie? */
static bool
lies_there(const Cuda *c, Val v)
{
	const ValInfo *i = val_info(c->g, v);

	return (!c->inside[v.id] || c->ready[v.id]) && !cu_input_is_addressed(c, v) &&
	       cu_vector_place(&i->type, i->offset, &i->type);
}

/* Columns of the image that so many pixels of a row meet. */
static int
columns_near(const Taps *v, int near)
{
	return (int)((near - 1) * v->w.stride[1] + (v->w.k[1] - 1) * v->w.dilation[1] + 1);
}

/* Pixels of a row that a thread takes at a time. */
static int
pixels_near(const Cuda *c, const Taps *v, const Share *s)
{
	enum { NEAR = 2, WORDS = 56 }; /* registers beside the sums, two blocks a multiprocessor */
	int words = s->vec * dtype_info[val_type(c->g, v->op->in[0])->dtype].bytes / 4;

	if (v->in != 1 || v->out != 1 || s->vec == 1 || s->taps % v->w.k[1] || !lies_there(c, v->op->in[0]) ||
	    !lies_there(c, v->op->in[1]))
		return 0;
	if (val_type(c->g, v->op->in[1])->axis[3].n < NEAR)
		return 1;
	return (int)(s->taps / v->w.k[1]) * columns_near(v, NEAR) + NEAR <= WORDS / words ? NEAR : 1;
}

/* Numbers in registers as they lie in memory: of a pixel of v, zeros where `valid` is not met. */
static void
raw_load(Cuda *c, Val v, const char *to, const Ix *ix, int vec, const char *valid)
{
	const ValInfo *i = val_info(c->g, v);
	bool pairs = dtype_info[i->type.dtype].bytes == 2;

	if (strcmp(valid, "1"))
		cu_line(c, "for (int u = 0; u < %d; u++) %s[u] = 0;", pairs ? vec / 2 : vec, to);
	Scope s = cu_scope_open(c, strcmp(valid, "1") ? "if (%s)" : "", valid);

	cu_line(c, pairs ? "pairs%d(%s, %s);" : "take%d_32(%s, %s);", vec, to, cu_address(c, &i->type, i->offset, ix));
	cu_scope_close(c, s);
}

static const char *
raw_open(Cuda *c, Val v, const char *dims, int vec)
{
	DType dt = (DType)val_type(c->g, v)->dtype;
	bool pairs = dtype_info[dt].bytes == 2;
	const char *name = cu_fresh(c, 'x');

	cu_line(c, "%s %s%s[%d];", pairs ? "unsigned" : "float", name, dims, pairs ? vec / 2 : vec);
	return name;
}

/* Number u of what was loaded so. */
static const char *
raw_number(Cuda *c, Val v, const char *from)
{
	DType dt = (DType)val_type(c->g, v)->dtype;
	const char *x = arena_printf(c->a, dtype_info[dt].bytes == 2 ? "half_at(%s, u)" : "%s[u]", from);

	return cu_from_memory(c, dt, x);
}

/* The products of some pixels of a row, from at[2] on, added to the sums of the filter's rows from first_tap on. */
static void
pixels_add(Cuda *c, const Taps *v, const Share *s, const char *acc, Ix channel, Ix first_tap, const Ix *at)
{
	const Val image = v->op->in[0], gradient = v->op->in[1];
	int64_t wide = val_type(c->g, gradient)->axis[3].n, k = v->w.k[1], stride = v->w.stride[1],
	        dil = v->w.dilation[1];
	int rows = (int)(s->taps / k), columns = columns_near(v, s->near);
	const char *g = raw_open(c, gradient, arena_printf(c->a, "[%d]", s->near), s->vec),
	           *x = raw_open(c, image, arena_printf(c->a, "[%d][%d]", rows, columns), s->vec), *valid;
	Ix o[4] = {at[0], channel, at[1]}, from[4] = {at[0], channel};

	cu_line(c, "#pragma unroll");
	Scope q = cu_scope_open(c, "for (int q = 0; q < %d; q++)", s->near), r;

	o[3] = index_let(c, cu_ix_add(c, at[2], "q"));
	raw_load(c, gradient, arena_printf(c->a, "%s[q]", g), o, s->vec,
	         wide % s->near ? arena_printf(c->a, "%s < %lld", o[3], (long long)wide) : "1");
	cu_scope_close(c, q);
	cu_line(c, "#pragma unroll");
	r = cu_scope_open(c, "for (int r = 0; r < %d; r++)", rows);
	Ix row = index_let(c, cu_ix_add(c, cu_ix_div(c, first_tap, cu_ix_k(c, k)), "r"));

	from[2] = index_let(c, cu_row_in(c, at[1], v->w.stride[0], row, v->w.dilation[0], v->w.pad[0]));
	cu_line(c, "#pragma unroll");
	q = cu_scope_open(c, "for (int q = 0; q < %d; q++)", columns);
	from[3] = index_let(c, cu_row_in(c, at[2], stride, "q", 1, v->w.pad[1]));
	valid = s->tap_blocks > 1 && v->w.k[0] % rows ? cu_in_range(c, row, cu_ix_k(c, v->w.k[0])) : "1";
	raw_load(c, image, arena_printf(c->a, "%s[r][q]", x), from, s->vec,
	         cu_in_plane(c, val_type(c->g, image), from, valid));
	cu_scope_close(c, q);
	cu_scope_close(c, r);
	cu_line(c, "#pragma unroll");
	r = cu_scope_open(c, "for (int r = 0; r < %d; r++)", rows);
	cu_line(c, "#pragma unroll");
	q = cu_scope_open(c, "for (int q = 0; q < %d; q++)", s->near);
	cu_line(c, "#pragma unroll");
	Scope t = cu_scope_open(c, "for (int t = 0; t < %d; t++)", (int)k), each = cu_each_open(c, s->vec);
	const char *sum = arena_printf(c->a, "%s[r * %d + t][u]", acc, (int)k);

	cu_line(c, "%s = fmaf(%s, %s, %s);", sum, raw_number(c, gradient, arena_printf(c->a, "%s[q]", g)),
	        raw_number(c, image, arena_printf(c->a, "%s[r][q * %d + t * %d]", x, (int)stride, (int)dil)), sum);
	cu_each_close(c, s->vec, each);
	cu_scope_close(c, t);
	cu_scope_close(c, q);
	cu_scope_close(c, r);
}

/* The block's sums of its piece, over its threads along the pixels in their order, into the workspace. */
static void
piece_store(Cuda *c, const Taps *v, const Share *s, const char *acc, Ix chunk_block, Ix first_tap, Ix piece)
{
	const Type *t = val_type(c->g, v->op->out[0]);
	const char *to = cu_pointer(c, DT_f32, c->g->group.at[c->group].workspace_offset);
	int line = s->lanes * s->vec;
	Ix ix[4];

	cu_line(c, "#pragma unroll");
	Scope loop = cu_scope_open(c, "for (int t = 0; t < %d; t++)", (int)(s->taps * v->in));

	cu_line(c, "float *sums = all_sums[t %% 2];"); /* of the tap before others may still read */
	for (int u = 0; u < s->vec; u++)
		cu_line(c, "sums[threadIdx.x * %d + %d] = %s[t]%s;", s->vec, u, acc,
		        s->vec > 1 ? arena_printf(c->a, "[%d]", u) : "");
	cu_line(c, "__syncthreads();");
	Ix mine = cu_let(c, "int", 'i', arena_printf(c->a, "%s * %d + (int)threadIdx.x", chunk_block, line)),
	   tap = cu_let(c, "int", 'i', arena_printf(c->a, "%s + t / %d", first_tap, (int)v->in));
	Scope in = cu_scope_open(c, "if (threadIdx.x < %d && %s < %lld && %s < %lld)", line, mine,
	                         (long long)v->channels, tap, (long long)(v->w.k[0] * v->w.k[1]));

	cu_line(c, "float sum = 0;");
	cu_line(c, "#pragma unroll 8");
	cu_line(c, "for (int k = 0; k < %d; k++)", s->rows);
	cu_line(c, "\tsum += sums[k * %d + threadIdx.x];", line);
	ix[0] = mine;
	ix[1] = v->in > 1 ? cu_let(c, "int", 'i', arena_printf(c->a, "t %% %d", (int)v->in)) : "0";
	ix[2] = v->w.k[0] > 1 ? cu_ix_div(c, tap, cu_ix_k(c, v->w.k[1])) : "0";
	ix[3] = v->w.k[1] > 1 ? cu_ix_rem(c, tap, cu_ix_k(c, v->w.k[1])) : "0";
	cu_stores_at(c, c->g->group.at[c->group].workspace_offset);
	cu_line(c, "%s[%s * %lld + %s] = sum;", to, piece, (long long)type_elements(t), cu_element(c, t, ix));
	cu_scope_close(c, in);
	cu_scope_close(c, loop);
	cu_line(c, "__syncthreads();");
}

static void
piece_emit(Cuda *c, const Taps *v, const Share *s, Ix block)
{
	const Type *out = val_type(c->g, v->op->in[1]);
	Ix rest = cu_ix_div(c, block, cu_ix_k(c, s->chunk_blocks)),
	   chunk_block = index_let(c, cu_ix_rem(c, block, cu_ix_k(c, s->chunk_blocks))),
	   first_tap = s->tap_blocks > 1 ? index_let(c, cu_ix_mul(c, cu_ix_rem(c, rest, cu_ix_k(c, s->tap_blocks)),
	                                                          cu_ix_k(c, s->taps)))
	                                 : "0",
	   piece = index_let(c, cu_ix_div(c, rest, cu_ix_k(c, s->tap_blocks)));
	uint32_t plane = 1u << 0 | 1u << 2 | (s->near ? 0 : 1u << 3);
	int64_t across = s->near ? (out->axis[3].n + s->near - 1) / s->near : 1;
	Ix pixels = cu_let(c, c->it, 'i', cu_ix_mul(c, cu_product(c, out, plane), cu_ix_k(c, across))),
	   each = cu_let(c, c->it, 'i', cu_ix_parts(c, pixels, s->pieces)),
	   lane = cu_let(c, "int", 'i', arena_printf(c->a, "(int)threadIdx.x %% %d", s->lanes)),
	   chunk = cu_let(c, "int", 'i', arena_printf(c->a, "%s * %d + %s", chunk_block, s->lanes, lane)),
	   channel = index_let(c, cu_ix_mul(c, chunk, cu_ix_k(c, s->vec))), q = cu_fresh(c, 'i'), ix[4];
	const char *acc = cu_fresh(c, 'v');

	cu_line(c, "float %s[%d]%s = {};", acc, (int)(s->taps * v->in),
	        s->vec > 1 ? arena_printf(c->a, "[%d]", s->vec) : "");
	Scope there = cu_scope_open(c, BLOCK % s->lanes ? "if (%s < %lld && threadIdx.x < %d)" : "if (%s < %lld)",
	                            chunk, (long long)s->chunks, s->rows * s->lanes),
	      loop = cu_scope_open(c, "for (%s %s = %s * %s + threadIdx.x / %d; %s < min(%s, (%s + 1) * %s); %s += %d)",
	                           c->it, q, piece, each, s->lanes, q, pixels, piece, each, q, s->rows);

	if (s->near) {
		cu_take_apart(c, out, plane, index_let(c, cu_ix_div(c, q, cu_ix_k(c, across))), ix);
		ix[3] = index_let(c, cu_ix_mul(c, cu_ix_rem(c, q, cu_ix_k(c, across)), cu_ix_k(c, s->near)));
		pixels_add(c, v, s, acc, channel, first_tap, (Ix[]){ix[0], ix[2], ix[3]});
	} else {
		cu_take_apart(c, out, plane, q, ix);
		pixel_add(c, v, s, acc, channel, first_tap, (Ix[]){ix[0], ix[2], ix[3]});
	}
	cu_scope_close(c, loop);
	cu_scope_close(c, there);
	piece_store(c, v, s, acc, chunk_block, first_tap, piece);
}

/* Turns of a thread's loop over the pixels of its piece. */
static double
pixel_turns(const Graph *g, const Taps *v, const Share *s)
{
	const Type *out = val_type(g, v->op->in[1]);
	int64_t near = s->near ? s->near : 1, wide = out->axis[3].n,
	        units = type_elements(out) / v->channels / wide * ((wide + near - 1) / near);

	return ceil(ceil((double)units / (double)s->pieces) / s->rows);
}

void
cu_depthwise_emit(Cuda *c, const Op *op)
{
	int64_t pieces = pieces_of(c->g, op);

	if (!pieces)
		return;
	Taps v = taps_of(c->g, op);
	Params p = kernel_of(c->g, op);
	Share s = share_of(c->g, &v, &p);
	int64_t blocks = s.chunk_blocks * s.tap_blocks * pieces;
	double bytes = (double)type_bytes(val_type(c->g, op->in[0])) + (double)type_bytes(val_type(c->g, op->in[1])),
	       parts = 4 * (double)pieces * (double)type_elements(val_type(c->g, op->out[0]));

	s.pieces = pieces;
	cu_kernel_open(c, "");
	s.near = pixels_near(c, &v, &s);
	c->two = true;
	cu_line(c, "__shared__ float all_sums[2][%d];", BLOCK * s.vec);
	Ix b = cu_fresh(c, 'i');
	Scope loop =
	        cu_scope_open(c, "for (int %s = blockIdx.x; %s < %lld; %s += gridDim.x)", b, b, (long long)blocks, b);

	piece_emit(c, &v, &s, b);
	cu_scope_close(c, loop);
	c->ahead_flops += op_flops(c->g, op);
	cu_kernel_ahead(c,
	                arena_printf(c->a, "%d pieces of the pixels, %d channels and %d pixels to a thread",
	                             (int)pieces, s.vec, s.near ? s.near : 1),
	                blocks, bytes + parts, bytes);
	cu_kernel_turns(c, pixel_turns(c->g, &v, &s));
	c->gk->k.at[c->gk->k.n - 1].flops = op_flops(c->g, op);
}
