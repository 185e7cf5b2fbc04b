/* window.h: the geometry of windows over images: of convolutions, their gradients and poolings. Passes and targets read
 * it off an op here; the reference (ref_contract.c, ref_window.c) does not: it is what they are held against. */
#ifndef IR_WINDOW_H
#define IR_WINDOW_H
#include "ir.h"

/* Per spatial axis (0 rows, 1 columns): taps, and in pixels of the image the distance from one window to the next, the
 * border of zeros in front, the distance from one tap to the next. */
typedef struct Window { int64_t k[2], stride[2], pad[2], dilation[2]; } Window;
/* A convolution: its window, its groups, and of one group the channels of the image and of the result. */
typedef struct Conv { Window at; int64_t groups, in, out; } Conv;

Window window_of(const Graph *g, const Op *op);    /* of a convolution, a pooling, or a gradient of one */
Conv conv_of(const Graph *g, const Op *op);        /* of conv2d, conv2d.dx or conv2d.dw */
/* Of the same: its filter, [channels of the result, of a group of the image, rows, columns]. */
const Type *conv_filter(const Graph *g, const Op *op);
/* One tap that meets each pixel: an output pixel needs its own input pixel and no other. */
bool window_is_point(const Window *w);
/* Extent of the result along spatial axis i of an image of `in`; 0 or less if the window does not fit. */
int64_t window_extent(const Window *w, int i, int64_t in);

/* The taps along axis i that index o of a result meets in an operand of `in`; back: the gradient in the image, whose
 * operand is the convolution's result. `first` tap, how many, the operand's index `at` of the first. *step: from one to
 * the next of them, in taps; *move: in indices of the operand. */
typedef struct WindowTaps { int64_t first, count, at; } WindowTaps;
WindowTaps window_taps(const Window *w, int i, bool back, int64_t o, int64_t in, int64_t *step, int64_t *move);
#endif
