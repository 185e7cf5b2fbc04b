/* grad.h: helpers that gradient rules (grad_*.c) and decompositions (decompose_*.c) share. Private to ir/. */
#ifndef IR_GRAD_H
#define IR_GRAD_H
#include "ir.h"

GradRule grad_ew; /* generic: every row of ew.def */

/* Ops are built in the order of C's statements: no two building calls stand in one argument list, whose order C leaves
 * open. */
#define RULE_ATTRS 9   /* the longest attribute list of ops.def and its end mark fit */

/* op's attributes as arguments for build_op, for an op that takes the same list (conv2d and conv2d.dx, attention and
 * its .dx). */
void rule_attrs(const Op *op, AttrArg out[RULE_ATTRS]);
/* r, a reduction of x over axes without keep, in x's rank with extent 1 for those axes; r itself if it has that
 * shape. */
Val rule_keep(Build *b, Val r, const Type *x, const int64_t *axes, int n);
/* x in the shape of like: expand, or x itself. */
Val rule_like(Build *b, Val x, const Type *like);
/* Elements that a reduction of x over axes takes in, as a rank 0 value of dtype dt; follows the batch where x does. */
Val rule_count(Build *b, const Type *x, const int64_t *axes, int n, DType dt);
/* Axes x.axis[from..to) as one: their product. Marks multiply by the unmarked extents. */
Axis rule_merge(const Type *x, int from, int to);
Val rule_slice(Build *b, Val x, int axis_index, int64_t start, int64_t end, int64_t step);
Val rule_concat(Build *b, const Val *v, int n, int axis_index);
Val rule_matmul(Build *b, Val x, Val y, bool ta, bool tb);
/* A full of zeros in the shape of x. */
Val rule_zeros(Build *b, const Type *x);
/* The scores' side of attention: what forward and backward expansions build alike. */
typedef struct AttentionIn { Val q, k, v, mask, seed, step; } AttentionIn;
AttentionIn attention_inputs(Build *b, const Op *op, int first); /* first: index of q; a wide one's are cast to f32 */
Val attention_scores(Build *b, const Op *op, const AttentionIn *in);
Val attention_dropout(Build *b, const Op *op, const AttentionIn *in, const Type *scores, Val weights);
/* Gradient of the scores before scale and mask (ds), from g, y, lse; dlse may be NOVAL. *weights: after dropout. */
Val attention_dscores(Build *b, const Op *op, const AttentionIn *in, Val g, Val y, Val lse, Val dlse, Val *weights);
void attention_dqkv(Build *b, const Op *op, const AttentionIn *in, Val g, Val ds, Val weights, Val out[3]);
#endif
