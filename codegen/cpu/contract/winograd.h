/* winograd.h: what the files of Winograd's algorithm share; private to codegen/cpu. winograd.c says what it is. */
#ifndef CODEGEN_CPU_WINOGRAD_H
#define CODEGEN_CPU_WINOGRAD_H
#include "algo.h"

enum { SPAN = 6, SHORT_SPAN = 4, LONG_SPAN = 8, STRIDED_SPAN = 9, PLANE_CHUNK = 2048, SOURCES = 8, AHEAD = 4 };
enum { SPAN_MOST = STRIDED_SPAN, TILE_MOST = 8 }; /* of a side */
enum { POINTS_MOST = SPAN_MOST * SPAN_MOST, TAPS_MOST = 25, PIXELS_MOST = TILE_MOST * TILE_MOST }; /* of both */
enum { FEWEST = 16 }; /* rows of a block that pay: each reads all weights */

/* Transforms: overlapping pixels, taps, a gradient's pixels to points; points to pixels, and to a gradient's taps. */
typedef enum Way { DATA, WEIGHTS, GRADIENT, PIXELS, TAPS } Way;

/* Rows, [0], or columns, [1], of the image and of the filter, and how they are cut into tiles. Where the filter's taps
 * are apart, the pixels of a tile are: between them lie those of other tiles. Where a pixel meets one tap, a tile is
 * one pixel, and one point. A long filter is cut into parts, each with tiles of its own, shifted by what lies before
 * it: their products are added at the points, as those of more channels would be. With a stride of s, every s-th tap is
 * a filter of its own on every s-th pixel, and a part at least; in the gradient in the image, every s-th pixel is made
 * by such a filter: s turns, each with tiles and weights of its own, turn by turn. Or one tile has all of these short
 * filters, its phases, each with points of its own: their pixels are added up behind the products, or lie between each
 * other. All points of a phase of one tap, the last one, have the same weight. */
typedef struct Side {
	int64_t in, out, pad; /* pixels that are cut into overlapping tiles, that are made; before the first one */
	int filter, met;      /* all its taps; those that one pixel meets */
	int parts, turns, phases;
	int taps, tile, span; /* of a part; a tile's pixels and points */
	int taken, kinds;     /* pixels that a tile is cut of; points whose weights differ */
	int64_t by, apart;    /* the convolution's stride, and what lies between taps */
	int64_t before;       /* the first tile is cut from so many pixels before the image */
	int64_t stride;       /* pixels that are cut for each that is made */
	int64_t step, move;   /* from one pixel of a tile to the next: of those that are made, that are cut */
	int64_t tiles;        /* of all turns */
	bool back;            /* taps in opposite order */
} Side;

typedef struct Shape {
	Axis n; /* images */
	/* channels that are summed over (of the input, for the weights' gradient), of what is made in tiles */
	int64_t C, K;
	Side side[2];
	int filter, parts, turns, taps, tile, points, kinds; /* of both */
	int64_t depth;       /* channels of all parts: rows of the weights at a point */
	int64_t tiles, each; /* of all turns, of each */
	int64_t rows;        /* of the products, of a full batch */
	bool phased;         /* a side has phases: fewer kinds than points */
	bool transposed;     /* taps in opposite order, weights transposed: gradient in x */
	bool dw;
	/* type of the elements in the buffer of weights; what they are rounded to, DT_none: nothing */
	DType weights, rounded;
	/* bands_emit: images of a block, tasks of a tile, each a block (1: one task has all); tiles of a task */
	int64_t block, split, together;
	int w; /* lanes */
} Shape;

/* ---- winograd_points.c: transforms of one dimension, and of two */
/* One of a side's filters in a tile: its taps, first and step; points, and those before them; and of its tiles' pixels
 * that are cut and made the first and the step. */
typedef struct Phase { int taps, tap, tap_step, points, point, pixel, pixel_step, made, made_step; } Phase;

/* Elements that a transform takes. */
int winograd_taken(const Side *s, Way way);
/* Elements through the transform of one side. */
void winograd_along(Emit *e, const Side *s, Way way, const V *in, V *out);
/* Elements of a tile or a filter, row by row, through one transform over columns and one over rows. */
void winograd_both(Emit *e, const Shape *s, Way way, const V *in, V *out);

/* ---- winograd_shape.c: what follows from the group's shape, its parameters and the machine */
/* How many pixels behind those of the first part a part's tiles begin. */
int64_t winograd_shift(const Side *s, int part);
/* Products of a tap and a pixel inside the image, for all that are made of a row or column. */
int64_t winograd_inside(const Side *s);
/* Taps of side i that a pixel meets. */
int winograd_taps_met(const Window *at, int i);
/* May a tile have the phases of a stride along side i? Of 3 taps with a stride of 2: 9 points for 12 products. */
bool winograd_phased(const Window *at, int i);
/* Phase i of a side. */
Phase winograd_phase(const Side *s, int i);
/* The weights of a point of both sides. */
V winograd_kind_at(Emit *e, const Shape *s, V point);
/* Without what winograd_split adds for a kernel that is emitted. */
Shape winograd_shape(const Graph *g, const Op *op, const GemmParams *p);
Shape winograd_split(const Graph *g, const Op *op, const GemmParams *p);
/* Tap i of a part of the filter in a turn, among all; -1: there is none. */
int winograd_tap(const Shape *s, int turn, int part, int i);
/* Bytes from one point to the next: of `count` elements each; of the weights. */
int64_t winograd_point(int64_t count);
int64_t winograd_weights_point(const Shape *s, const GemmParams *p);
/* Where each region begins: of a group's workspace, which has the last two where its tiles go through memory (s is
 * winograd_split's); of a thread's memory, which has those of a block of so many rows otherwise. */
typedef struct WinogradRegions { int64_t weights, tiles, products, bytes; } WinogradRegions;
WinogradRegions winograd_workspace(const Shape *s, const GemmParams *p);
WinogradRegions winograd_memory(const Shape *s, const GemmParams *p);
/* Rows of a panel of weights: channels that are summed over, in whole vectors. */
int64_t winograd_panel_rows(const Shape *s, int w);
/* Images of a block that a thread's memory holds, 0: too few to pay; tiles that have all their images in it, 1: no
 * more. */
int64_t winograd_block(const Graph *g, const Shape *s, const GemmParams *p);
int64_t winograd_block_tiles(const Graph *g, const Shape *s, const GemmParams *p);

/* ---- winograd_tiles.c: operands to the points */
typedef struct Cut {
	int64_t C;
	int64_t in[2]; /* pixels of each side */
	Way way;       /* DATA or GRADIENT */
	int parts;     /* each is cut, to channels of its own */
	int src; /* buffer of f32; -1: the kernel makes `made`, or widens it */
	Val made;
	int dst;
	const char *part;
	int source[SOURCES], nsource; /* buffers that pixels are computed from */
	int width[SOURCES];           /* bytes of their elements */
} Cut;

/* The buffers that v, of the group's own, is computed from, into c. */
void winograd_sources(GroupCx *gc, Cut *c, Val v, int depth);
/* A tile's number along each side; its first pixel there. */
void winograd_tile(Emit *e, const Shape *s, V tile, V at[2]);
V winograd_first_at(Emit *e, const Side *s, V tile);
/* Elements [lo, hi) of the planes of one tile to `out`, `point` bytes from point to point, images and their channels of
 * each part one behind the other; from NULL: the kernel makes them. */
void winograd_cut(Emit *e, const Shape *s, const Cut *c, V from, const V tile[2], V lo, V hi, V out, int64_t point);
void winograd_tiles_emit(GroupCx *gc, const Shape *s, const Cut *c, GraphKernels *gk);
void winograd_weights_emit(GroupCx *gc, const Shape *s, const GemmParams *p, int src, int dst, GraphKernels *gk);

/* ---- winograd_back.c: products back to pixels */
void winograd_pixels_emit(GroupCx *gc, const Shape *s, const GemmParams *p, int src, Epilogue *epi, GraphKernels *gk);
/* Tiles, products and pixels in one kernel. */
void winograd_bands_emit(GroupCx *gc, const Shape *s, const GemmParams *p, const Cut *c, int weights, Epilogue *epi,
                         GraphKernels *gk);
V winograd_piece_pixels(Emit *e, void *cx, V piece); /* cx: the Shape */

/* ---- winograd_emit.c */
/* Tiles of `count` rows from lo on at a point, a, times panel kb, b, to c; next: the panel that follows. */
typedef struct Multiply { Tiles tiles; GemmParams shared; V strides; int64_t nr, npanel; } Multiply;
void winograd_multiply(Emit *e, const Shape *s, const Multiply *m, V lo, V count, V kb, V a, V b, V c, V next);
void winograd_emit(GroupCx *gc, const Op *op, const GemmParams *p, int abuf, int bbuf, GraphKernels *gk);
#endif
