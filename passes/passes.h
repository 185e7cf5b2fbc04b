/* passes.h: the passes by name and what they share. Private to passes/; the world sees pass.h. */
#ifndef PASSES_PASSES_H
#define PASSES_PASSES_H
#include "pass.h"

PassFn pass_channels, pass_taps, pass_signals, pass_pooling;
PassFn pass_decompose, pass_fold, pass_factor, pass_sparse, pass_cse, pass_dce, pass_fuse, pass_precision, pass_reorder,
        pass_select;
ModulePassFn pass_infer, pass_step, pass_autodiff, pass_optimizer, pass_layout, pass_recompute, pass_copies, pass_plan,
        pass_overlap, pass_launch;

/* States of dynamic loss scaling (Micikevicius et al. 2018, arXiv:1710.03740): the scale, a power of two; good steps
 * since it last changed; steps left out. Autodiff makes them, the optimizer brings them up to date. */
#define LOSS_SCALE "loss_scale"
#define LOSS_SCALE_GOOD "loss_scale.good"
#define LOSS_SCALE_SKIPPED "loss_scale.skipped"
bool optimizer_averages(Module *m);                      /* the end of pass optimizer (average.c) */
/* does every gradient of the graph fit its type? NOVAL where nothing is scaled (optimizer.c) */
Val loss_scale_good(Build *b);

bool pass_disabled(const PassCtx *cx, const char *name); /* --disable NAME: a pass or a composite operator */
/* may this variant of a kernel be chosen? Optimisations, as it were: none at -O0 */
bool pass_variant(const PassCtx *cx, const char *name);
/* What a pass before select asks the target with: no tuning record, as that has the name of a group; --pass-limit does
 * not count. */
SelectCx pass_kernels(PassCtx *cx, DType narrow);
void graph_sweep(Graph *g, Arena *scratch);              /* dce without asking: results and effects live */
/* checks of what no result and no store needs are dead (infer.c) */
void graph_idle_checks(Graph *g, Arena *scratch);
Graph *graph_named(const Module *m, const char *name, bool loop);
void graph_place_after(Module *m, Graph *g, const Graph *before);
/* loop train keeps in step with what autodiff made of graph train: a calls of it a step */
void loop_follow(Module *m, int64_t a, bool shards);
bool shards_number(Module *m, Graph *train, int64_t s);  /* shards.c; false after errors */
void shards_redirect(Module *m, Graph *train);           /* stores of running statistics go to states that are joined */
void shards_join(Build *b, Module *m, Graph *update, int64_t s);
Graph *graph_copy(Module *m, const Graph *from, const char *name);
void graph_stores_last(Graph *g);                        /* stores behind all else, in their order */

/* Replaces ops in the middle of a graph. Begin takes the ops out; then, for each old op in order, keep puts it back
 * (with inputs renamed) or new ops are built on rw->b and `to` says which values stand for its results; end closes. */
typedef struct Rewrite {
	Graph *g;
	Build b;
	Op *old; uint32_t nold;
	Val *map; uint32_t nval;     /* by old Val.id */
} Rewrite;
Rewrite rewrite_begin(Graph *g, Arena *scratch);
Op *rewrite_inputs(Rewrite *rw, uint32_t i);             /* old op i, its inputs renamed; sets rw->b's location */
void rewrite_keep(Rewrite *rw, const Op *op);
void rewrite_to(Rewrite *rw, Val old, Val with);         /* the old name goes to a value that the rewrite made */
void rewrite_end(Rewrite *rw);
#endif
