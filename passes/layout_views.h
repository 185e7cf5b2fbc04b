/* layout_views.h: a part of pass layout; private to layout.c and layout_views.c. */
#ifndef PASSES_LAYOUT_VIEWS_H
#define PASSES_LAYOUT_VIEWS_H
#include "pass.h"

/* Transpositions that composite operators read through strides become layouts. Changed anything? */
bool layout_fold_views(Graph *g, PassCtx *cx);
#endif
