/* winograd.h: what the files of Winograd's algorithm share; private to codegen/cpu. winograd.c says what it is. */
#ifndef CODEGEN_CPU_WINOGRAD_H
#define CODEGEN_CPU_WINOGRAD_H
#include "algo.h"

enum { SPAN = 6, POINTS = SPAN * SPAN, SHORT_SPAN = 4, PLANE_CHUNK = 2048, IMAGES = 4, SOURCES = 8, AHEAD = 4 };
enum { TILE_MOST = 4, SIDE_MOST = 5 };
enum { FEWEST = 16 }; /* rows of a block that pay: each reads all weights */

typedef struct Shape {
	Axis n; /* images */
	/* what is cut into overlapping tiles, channels that are summed over (of the input, for the weights'
	 * gradient) */
	int64_t H, W, C;
	int64_t OH, OW, K;   /* what is made in tiles (the output's gradient, for the weights') */
	int side, tile;      /* of the filter, 3 or 5; of a tile, 4 or 2 pixels */
	int span, points;    /* points of a row, SPAN or SHORT_SPAN; in all */
	int64_t pad, th, tw; /* of the overlapping tiles, rows and columns of tiles */
	int64_t rows;        /* of the products, of a full batch */
	bool transposed;         /* taps in opposite order, weights transposed: gradient in x */
	bool dw;
	/* type of the elements in the buffer of weights; what they are rounded to, DT_none: nothing */
	DType weights, rounded;
	/* bands_emit: images of a block, tasks of a tile, each a block (1: one task has all); tiles of a task */
	int64_t block, split, tiles;
	int w; /* lanes */
} Shape;

/* ---- winograd_points.c: transforms of one dimension, and of two */
typedef void Transform(Emit *e, const V *in, V *out);
Transform winograd_data, winograd_weights, winograd_pixels, winograd_gradient, winograd_taps; /* of 3x3 filters */
Transform winograd_weights5, winograd_pixels2, winograd_gradient2, winograd_taps5; /* of 5x5, in tiles of 2x2 */
Transform winograd_data4, winograd_weights4, winograd_pixels4; /* of 3x3, in tiles of 2x2, SHORT_SPAN points a row */
/* n x n elements to m x m. */
void winograd_square(Emit *e, Transform *f, int n, int m, const V *in, V *out);

/* ---- winograd_shape.c: what follows from the group's shape, its parameters and the machine */
/* Without what winograd_split adds for a kernel that is emitted. */
Shape winograd_shape(const Graph *g, const Op *op, const GemmParams *p);
Shape winograd_split(const Graph *g, const Op *op, const GemmParams *p);
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
	int64_t H, W, C, pad;
	int size;
	Transform *f;
	int src; /* buffer of f32; -1: the kernel makes `made`, or widens it */
	Val made;
	int dst;
	const char *part;
	int source[SOURCES], nsource; /* buffers that pixels are computed from */
	int width[SOURCES];           /* bytes of their elements */
} Cut;

/* The buffers that v, of the group's own, is computed from, into c. */
void winograd_sources(GroupCx *gc, Cut *c, Val v, int depth);
/* Elements [lo, hi) of the planes of one tile to `out`, `point` bytes from point to point; from NULL: the kernel makes
 * them. */
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
void winograd_emit(GroupCx *gc, const Op *op, const GemmParams *p, int abuf, int bbuf, GraphKernels *gk);
#endif
