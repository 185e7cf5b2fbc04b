/* fuse.h: tables of pass fuse; private to fuse.c, fuse_rules.c, fuse_prologue.c and fuse_broadcast.c. */
#ifndef PASSES_FUSE_H
#define PASSES_FUSE_H
#include "pass.h"
#include "plan.h"

/* K_WINDOW: where the target fuses poolings */
typedef enum Kind { K_NONE, K_FREE, K_MAP, K_RED, K_CONTRACT, K_WINDOW, K_ALONE } Kind;
enum { CHEAP_OPS = 8 };

typedef struct GroupInfo {
	Kind kind;               /* of what it began with */
	Type space;              /* what it walks */
	bool moves;              /* has a crop: elements are read elsewhere than they are written */
	bool reduces;            /* has reductions over `axes` (bits) of its space */
	bool alone;              /* no other reduction joins it */
	uint64_t axes;
	uint32_t red_op;         /* the last of them */
	uint32_t nop, main_op;   /* main: names the group */
	VEC(Val) clone_of, clone; /* free values copied into it */
} GroupInfo;

enum { LEAD_LEAVES = 2 };
/* An elementwise op whose result contractions read: may they make it as they load it? */
typedef struct Lead {
	bool read, taken;        /* by contractions or poolings; made by them */
	uint32_t ops, nleaf;     /* elementwise ops to make it, and the values of its size that these read */
	uint32_t nbyte;          /* those of these values whose elements have one byte: pixels, masks */
	uint32_t op[CHEAP_OPS + 1]; /* the first of these ops, by their results */
	const char *never;       /* what rules it out whatever it costs */
	const char *why;         /* of the decision: why not, or what each way costs; NULL: none was needed */
	double ratio;            /* predicted time of making it there to that of storing it; NAN: not asked */
} Lead;

typedef struct Fuse {
	Graph *g;
	PassCtx *cx;
	Arena *a;
	bool enabled;
	uint32_t nval, nop;      /* before any clone */
	Kind *kind;              /* by op */
	uint8_t *cone;           /* by op: elementwise ops to recompute it, 0 = not cheap */
	/* by op: its result is made anew by whoever reads it, whatever it costs (fuse_broadcast.c) */
	bool *broadcast;
	bool *moves;             /* by op: what is recomputed for it holds a crop */
	uint32_t *leaf;          /* by op: the one full-size value that a cheap op needs, 0 = none */
	bool *stored;            /* by Val.id: stands in memory */
	/* by Val.id: must, whatever contractions may do: a result, or read by kernels of one op or views */
	bool *pinned;
	Lead *lead;              /* by op */
	int32_t *group_of;       /* by Val.id: group that computes it, -1 */
	VEC(GroupInfo) info;
	VEC(Op) out;
	VEC(uint32_t) *users;    /* by Val.id: reading ops */
	int32_t *state_of;       /* by Val.id: state that it is the old value of, -1 */
	int32_t *last_reader;    /* by state: latest group that reads the old value, -1 */
	bool *sink;              /* by op: only stores come of it */
	bool *late;              /* by Val.id: needs a reduction of its own group to be complete */
} Fuse;


bool fuse_same_space(const Type *a, const Type *b);
/* A crop that the target makes on its way: its operand stands elsewhere, all else is like an elementwise op's. */
bool fuse_is_crop(const Fuse *f, const Op *op);
/* A reduction of data that only an all_reduce reads: shards make it before anything else, so that it stands alone. */
bool fuse_is_counted(const Fuse *f, const Op *op);
/* May a kernel of this kind make its operands as it loads them? */
bool fuse_makes(Kind k);
/* Do a, but for the axes in `without`, and b have the same elements in the same order in memory? Axes of one element
 * count for nothing. */
bool fuse_same_walk(const Type *a, uint64_t without, const Type *b);
bool fuse_clonable(const Fuse *f, Val v);
/* Does v come from group gid by a view outside groups that keeps every element's place in the walk? Then the group may
 * have its own copy. */
bool fuse_view_of(const Fuse *f, Val v, int32_t gid);
/* Does op, with what will be cloned for it, need a reduction of group gid to be complete? */
bool fuse_is_late(const Fuse *f, const Op *op, int32_t gid);
/* A whole tensor reduced to a number, in a kernel whose launch the target joins with others? */
bool fuse_is_total(const Fuse *f, const Op *reduction, uint64_t axes);
/* Why an elementwise op with results of type t may not join group gid, from which it reads; NULL if it may. *rule: what
 * would have fired. */
const char *fuse_why_apart(Fuse *f, int32_t gid, const Op *op, const Type *t, const char **rule, double *value);
/* The same for a reduction over `axes` of a tensor like t. */
const char *fuse_why_unreduced(Fuse *f, int32_t gid, const Op *op, const Type *t, uint64_t axes);
const char *fuse_space_text(Fuse *f, const Type *t);
/* Shall the rule fire at op? The tuning file's word, else what is predicted. Asked where it may. l: what op is made
 * of, where the costs count that; NULL. */
bool fuse_choose(Fuse *f, const char *rule, const Op *op, const Lead *l, bool predicted);
/* Fills Fuse.broadcast, and cone of such ops; before find_cheap. */
void fuse_find_broadcast(Fuse *f);
/* fuse_prologue.c. Fills Fuse.lead, after find_cheap. */
void fuse_find_prologues(Fuse *f);
/* Decides about an op that no kernel before it can take: true if the contractions that read it make it; then it is
 * clonable. */
bool fuse_prologue(Fuse *f, uint32_t index);
/* The group of elementwise ops that makes the first operand of contraction `index`, if the contraction's kernel should
 * make it and store it for whoever else reads it; else -1. */
int32_t fuse_carries(Fuse *f, const Op *op, int32_t latest);
#endif
