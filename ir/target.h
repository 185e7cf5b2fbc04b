/* target.h: what passes may ask of a target, and what the driver calls. One struct Target per row of
 * codegen/targets.def. */
#ifndef IR_TARGET_H
#define IR_TARGET_H
#include "ir.h"
#include <math.h>
#include <string.h>

/* The text of the kernel that computes a contraction a number at a time, where no other does. */
#define PLAIN_KERNEL "plain"

/* A kernel whose text begins with this promises that element i of every operand is read before element i of any result
 * is written, and no other
 * element: a result may take an operand's place. select writes it, plan builds upon it, and it reads back from text. */
#define KERNEL_MAP "map"
static inline bool
kernel_is_map(const char *kernel)
{
	return kernel && strncmp(kernel, KERNEL_MAP, sizeof KERNEL_MAP - 1) == 0;
}

/* Functions of a program, and how many of them were taken from the cache. */
typedef struct EmitCounts { uint32_t functions, cached; } EmitCounts;

typedef struct EmitOptions {
	/* "llvm", "asm", "obj"; "json": nothing but the program's descriptor; "gradients": when each is complete */
	const char *emit;
	/* one --arch name, already resolved: x86-64-v3, x86-64-v4, sapphirerapids, znver4, ... */
	const char *arch;
	const char *machine;     /* whose times are forecast, TargetHere.word; NULL: hook machine's */
	int opt;                 /* -O level */
	int index;               /* number of this image in the executable; symbols are suffixed with it */
	bool last;               /* the last of them: what may run on newer machines as well stands there */
	int jobs;                /* threads that compile; 0: as many as CPUs */
	bool ptx_only;           /* --ptx-only: of targets that have it, no machine code beside it */
	bool debug;              /* -g: lines of the model in what debuggers read, beside the code */
	EmitCounts *counts;      /* NULL: nobody asks */
} EmitOptions;

/* A variant that was looked at for an op, whether it was chosen, and why; value: the work it takes, of the work without
 * it, or NAN. */
typedef struct Looked { const Op *op; const char *variant, *why; bool chosen; double value; } Looked;

/* What select asks and learns; passes before it ask of single ops with what they know of it. */
typedef struct SelectCx {
	const char *arch;
	/* the 16-bit type that operands of products will have (pass precision comes later); DT_none: that which they
	 * have */
	DType narrow;
	const char *tuned;       /* a kernel with parameters to be used if it fits (a tuning file's); NULL: none */
	const char *misfit;      /* out: why it does not; NULL: it was used */
	/* out: as it asks for a variant that is switched off: that is no fault of the record */
	bool off;
	bool absent;             /* out: whether it fits only a library could tell that is not on this machine */
	/* by Val.id: computed from states and constants alone, in a graph that stores nothing: what a kernel makes of
	 * it may be kept; NULL: nothing is */
	const bool *steady;
	const uint32_t *uses;    /* by Val.id: how often it is read (graph_use_counts); NULL: nobody has counted */
	bool (*may)(void *cx, const char *variant); void *cx; /* may this kernel variant be chosen? NULL: all may */
	/* of Target.tuning.space: parameters in which a kernel may differ from the group's; 0: any number */
	int steps;
	int threads;             /* of the same: that steps run with; 0: not known, any number is named */
	VEC(Looked) looked;      /* out: variants that the target looked at, for explain */
} SelectCx;
/* A variant that is looked at for op; the target says the rest. Stays where it is until the next. */
static inline Looked *
select_look(SelectCx *cx, const Graph *g, const Op *op, const char *variant)
{
	vec_push(g->arena, &cx->looked, ((Looked){.op = op, .variant = variant, .value = NAN}));
	return &cx->looked.at[cx->looked.n - 1];
}

/* What was said of this variant; NULL: it was not looked at. */
static inline Looked *
select_looked(SelectCx *cx, const char *variant)
{
	for (uint32_t i = 0; i < cx->looked.n; i++)
		if (!strcmp(cx->looked.at[i].variant, variant))
			return &cx->looked.at[i];
	return NULL;
}
/* A tuning file may have chosen otherwise. */
static inline void
select_overrule(SelectCx *cx, const char *variant, bool chosen)
{
	Looked *l = select_looked(cx, variant);

	if (l && l->chosen != chosen) {
		l->chosen = chosen;
		l->why = "the tuning file says so";
	}
}

/* What a kernel's results are beside another's: the same bits; sums associated in another way; fewer bits somewhere. */
typedef enum BitsClass { BITS_same, BITS_order, BITS_rounds } BitsClass;
/* A kernel worth trying; false: no more of them. */
typedef bool SpaceEach(void *cx, const char *kernel, BitsClass bits);

/* What it takes a contraction, or a pooling, to make an operand of elementwise ops as it loads it. */
typedef struct Prologue {
	const char *why;         /* why it cannot; NULL: it can */
	double times;            /* how often each element is computed */
	bool copied;             /* the operand is written to memory and read back all the same */
	double spare;            /* operations that the contraction can do while it waits for memory */
	/* it meets each element once (a tile of columns apart): it could store the operand too, for kernels behind
	 * it */
	bool stores;
} Prologue;

/* What a machine is taken to reach, a second: bytes of memory, operations. */
typedef struct Rates {
	double bytes, flops;     /* flops: of elementwise ops and of vectors */
	double products;         /* of contractions; of matrix instructions where there are some */
	double group_products;   /* of instructions of a group of warps; 0: none */
	double start;            /* seconds from one kernel to the next */
	double cache;            /* cuda: bytes a second that all multiprocessors together draw from L2 */
} Rates;

/* What choices between ways count with where the machine's own figure is not what they were measured with, found by
 * measurement on a machine of the row's kind: codegen/cpu/emit/llvm.c says which were measured. */
typedef struct Budget {
	Rates rates;             /* of a typical machine; no forecast */
	int64_t l1, l2, l3;      /* bytes of a core's L1, L2 and of the L3 that blocks are cut for. cuda: l2 alone */
	int64_t task;            /* cpu: operations in half a microsecond, in which another thread begins and ends */
	/* cpu: how contractions are cut */
	/* of a wide matrix product's task, at most: it reads all of the second operand; 0: 48 */
	int task_rows;
	/* least steps of a sum for which a transposed operand is copied; 0: where lines conflict */
	int copy_steps;
	int pass;                /* steps of a weight gradient's sum between loads of its tiles; 0: by L2, all images */
	int dw_vectors;          /* of columns of its tiles, at most */
	bool dw_copy;            /* a pass copies its operands into panels */
	int unroll;              /* steps of a product in one turn of its loop, where their distances are known */
	int ahead;               /* bytes of a panel from beyond L2 that few rows ask for ahead; 0: none */
	bool next;               /* tiles that go over a panel of a product ask for the next one */
	bool slow_l3;            /* L3 is too slow for sums of a recurrence's weights, or all for each thread */
	int64_t shared;          /* cuda: bytes of shared memory that tiles take of a block */
	int blocks;              /* cuda: that fill the device once */
} Budget;

/* What an architecture's machine is. Choices count with the row of their --arch alone, never with the host that
 * compiles: one --arch is one executable anywhere. Declared: of the CPU or device that `model` names, by its
 * maker's documents. */
typedef struct Cache { int64_t bytes; int cores; } Cache; /* of one of them, and the cores that share it; 0: none */
typedef struct Machine {
	const char *arch, *model;
	Cache l1, l2, l3;        /* of data. cuda: l1 and shared memory of a multiprocessor together; no l3 */
	int line;                /* bytes of a cache line */
	int vector_bytes, vector_registers; /* of a core. cuda: the widest load of a thread, its registers of 32 bits */
	/* of full f32 vectors, begun by a core in a cycle. cuda: of f32 numbers, by a multiprocessor */
	double fmas, loads;
	double hz;               /* nominal clock */
	int sms;                 /* cuda: multiprocessors; 0: a CPU */
	int64_t shared;          /* cuda: the most bytes of shared memory that a block may have */
	Rates rates;             /* for forecasts. cpu: bytes alone, that one core draws from memory */
	Budget budget;
} Machine;

/* What a target does beyond the rest: bits of Target.traits. */
enum {
	/* kernels of poolings take elementwise prologues and epilogues; what they make of an operand is asked of hook
	 * prologue */
	TARGET_windows_fuse = 1 << 0,
	/* a crop (T_CROP) is made on the way, like an elementwise op, by whatever reads it: its operand is read where
	 * it points */
	TARGET_crops_fuse = 1 << 1,
	/* It makes few launches of many small kernels that do not depend on each other: updates run together behind all
	 * else, what is cast of states alone runs before it, and whole tensors that are reduced to a number each (the
	 * largest of every gradient) do not wait for each other. */
	TARGET_joins_launches = 1 << 2,
	/* mantou scale predicts the speed of several processes */
	TARGET_scales = 1 << 3,
	/* Its machine code can be left out for PTX (--ptx-only), and runs by a driver of some release (--driver): hook
	 * driver_lacks is there. */
	TARGET_has_ptx = 1 << 4,
	/* Values in memory begin at different places of their pages: a load waits for an earlier store to whatever
	 * address agrees in the last 12 bits. */
	TARGET_spreads_values = 1 << 5,
	/* The epilogue of a contraction reads an element of whatever it reads before it writes that element of any
	 * result: it may update a state in its place. */
	TARGET_updates_fuse = 1 << 6,
};

/* ---- hooks by what they are about; what NULL means is told beside each. */
struct Target;

/* The machine that this runs on. A target with a table of machines has all of these. */
typedef struct TargetHere {
	/* Target.machine's row with what can be read of the machine here (no measurement): caches of a core; cuda:
	 * multiprocessors, shared memory, L2. False, and *m is the row: code for arch does not run here, or nothing can
	 * be read. */
	bool (*machine)(const struct Target *t, const char *arch, Machine *m);
	/* The word that says in tuning records which machine they are of: "l1=32K,l2=1M"; cuda
	 * "sm=132,smem=227K,l2=60M". That of hook machine: read if arch runs here, else declared. In a. */
	const char *(*word)(const struct Target *t, const char *arch, Arena *a);
	/* Of the machines that run arch's code the row of the one of that name or word, and its word, in a; NULL: none
	 * has it. NULL hook: there is only hook machine's. */
	const Machine *(*card)(const struct Target *t, const char *arch, const char *name, Arena *a, const char **word);
	/* The device here that such code runs on, by its name, in a; NULL: there is none. NULL hook: the CPU. */
	const char *(*device)(const struct Target *t, Arena *a);
	/* What a driver of that release (580) cannot do with what is compiled here, a sentence in a; NULL: nothing.
	 * *none: it runs none of it. TARGET_has_ptx alone. */
	const char *(*driver_lacks)(Arena *a, long release, bool *none);
} TargetHere;

/* Layouts of activations: passes layout and channels. NULL hooks: row-major, channels one by one. */
typedef struct TargetLayout {
	/* Layout wanted for an activation of a convolution or pooling; perm in, perm out. False: keep the logical
	 * one. */
	bool (*images)(const struct Target *t, const Type *x, uint8_t perm[MAX_RANK]);
	/* Predicted seconds of a convolution or pooling with its activations in that layout (`wanted`) or row-major,
	 * for the choice between them. NULL hook: always as wanted. */
	double (*time)(const struct Target *t, const Graph *g, const Op *op, bool wanted);
	/* Numbers of neighbouring channels that kernels of this convolution load at once, where a pixel has whole
	 * chunks of them; 1: one by one. cx: the type that operands will have. */
	int (*chunk)(const struct Target *t, const Graph *g, const Op *op, const SelectCx *cx);
	/* Outputs of a convolution of f32 that a kernel computes in the time of one: with fewer its lanes are empty.
	 * NULL hook: one. */
	int (*outputs)(const struct Target *t, const Graph *g);
	/* May value k of this composite op (operands first, then results) lie in memory as x says? NULL hook: its
	 * kernels read and write rows, all of them. */
	bool (*strided)(const struct Target *t, const Graph *g, const Op *op, int k, const Type *x);
} TargetLayout;

/* Operands of 16 bits: pass precision. */
typedef struct TargetNarrow {
	/* The 16-bit type whose products are fastest: what precision mixed means on arch; DT_none: none is faster, all
	 * stays in f32. NULL hook: bf16. */
	DType (*mixed)(const struct Target *t, const char *arch);
	/* Is operand 1 of a contraction, a parameter in memory, rounded to cx->narrow on the way into panels by the
	 * kernel that select would choose? NULL hook: no, it is to stand in memory in 16 bits. */
	bool (*packs)(const struct Target *t, const Graph *g, const Op *op, const SelectCx *cx);
	/* May operand k of this composite op be of cx->narrow, its products' sums in f32? NULL hook: of none. */
	bool (*takes)(const struct Target *t, const Graph *g, const Op *op, int k, const SelectCx *cx);
	/* How products of such operands are computed, for people. NULL hook: nothing to say. */
	const char *(*arithmetic)(const struct Target *t, const char *arch, DType narrow);
} TargetNarrow;

/* A kernel of a planned module, as the target would emit it. */
typedef struct LaunchKernel {
	int group;               /* -1: of an op outside groups */
	const char *name;
	uint32_t function;       /* the same number: the same function, with other offsets */
	/* its function takes all that tells shapes apart as parameters: its kernels can be one launch, with a table */
	bool flat;
	bool small;              /* one block whose threads do not meet: any of these can be one launch, a block each */
	const char *alone;       /* why it shares no launch; NULL: it may */
	bool once, early;        /* as KernelRec has it (codegen.h) */
} LaunchKernel;
typedef struct LaunchKernels { VEC(LaunchKernel) at; } LaunchKernels;

/* What pass launch asks of a target with TARGET_joins_launches. NULL hook: it joins none. */
typedef struct TargetLaunch {
	int most;                /* kernels of a launch */
	/* Kernels of the graphs of a planned module, by graph, in the order in which they would be launched one by one:
	 * those of groups that run once first. None of loops. In a. */
	void (*kernels)(const struct Target *t, const Module *m, Arena *a, LaunchKernels *out);
} TargetLaunch;

/* Kernels with parameters: tuning files, `tune`, `explain`. NULL hooks: it has none. */
typedef struct TargetTuning {
	/* May a tuning file choose the parameters of a kernel of this text? */
	bool (*tunable)(const struct Target *t, const char *kernel);
	/* The version of a family of kernels in tuning files (brgemm: 1), raised when times measured before mean
	 * nothing; -1: there is no such family. */
	int (*version)(const struct Target *t, const char *family);
	/* Kernels worth trying in place of the group's, which stands in Group.kernel, in a fixed order: each is one
	 * that a tuning file may name here. Of cx: arch, may, steps. */
	void (*space)(const struct Target *t, Graph *g, int group, SelectCx *cx, SpaceEach *each, void *each_cx);
	/* Predicted time of the group's contraction by this kernel; of use beside another's alone. NAN: nothing is
	 * predicted of it. NULL hook: of none. */
	double (*predict)(const struct Target *t, const Graph *g, int group, const SelectCx *cx, const char *kernel);
	/* Predicted seconds of the group by each of n kernels, by the machine code that is made for it with so many
	 * threads (0: as many as CPUs); NAN: nothing is predicted of that one. m: planned. NULL hook: of none. */
	void (*forecast)(const struct Target *t, const Module *m, Graph *g, int group, const SelectCx *cx,
	                 const char *const *kernel, int n, int jobs, double *seconds);
} TargetTuning;

typedef struct Target {
	const char *name;        /* cpu, cuda, ref */
	const char *doc;
	const char *default_arch;
	unsigned traits;         /* TARGET_ */
	const char *processes;   /* the word of --distribute that makes its programs one of several; NULL: none does */
	const char *const *variants; /* kernel variants that --disable leaves out, up to a NULL; NULL: it has none */
	bool (*has_kernel)(const struct Target *t, OpKind k);  /* false: must be decomposed or lowered first */
	/* Why this composite op is decomposed although its operator has a kernel (a type, a shape that the kernel does
	 * not take); NULL: it stays. The text lives as long as g. A target that takes whatever has_kernel says leaves
	 * it out. */
	const char *(*refuses)(const struct Target *t, const Graph *g, const Op *op);
	/* Canonical arch name ("native" resolved); NULL and a message if unknown. */
	const char *(*resolve_arch)(const struct Target *t, Arena *a, const char *arch, const char **error);
	/* The row of a resolved arch. NULL hook: the target has no machine, it interprets. */
	const Machine *(*machine)(const struct Target *t, const char *arch);
	/* Of r, the rate that this kernel's operations go at. NULL hook: flops. */
	double (*product_rate)(const struct Target *t, const Rates *r, const char *kernel);
	/* May op join the group that `member` is in, asked for its contraction, pooling or reduction, else its first
	 * op; member NULL: may it share any group? Asked by fuse beyond the general rules. NULL = yes, else the failed
	 * predicate. */
	const char *(*may_fuse)(const struct Target *t, const Graph *g, const Op *member, const Op *op);
	/* Operand k of a contraction or pooling, made by the kernel that select would choose for it alone. NULL hook:
	 * none is. */
	void (*prologue)(const struct Target *t, const Graph *g, const Op *op, int k, const SelectCx *cx, Prologue *p);
	/* select: picks family and parameters of a group; sets Group.kernel and Group.workspace. NULL or why it
	 * cannot. */
	const char *(*select)(const struct Target *t, Graph *g, int group, SelectCx *cx);
	/* Code of a planned module. Output bytes (object, or text for llvm and asm) into out. NULL or an error
	 * message. */
	const char *(*emit)(const struct Target *t, const Module *m, const EmitOptions *o, Buf *out);
	TargetHere here;
	TargetLayout layout;
	TargetNarrow narrow;
	TargetTuning tuning;
	TargetLaunch launch;
} Target;

static inline bool
target_does(const Target *t, unsigned trait)
{
	return t && t->traits & trait;
}

/* Rates for choices between ways; a target without machines makes none. */
static inline Rates
target_rates(const Target *t, const char *arch)
{
	return t->machine ? t->machine(t, arch)->budget.rates : (Rates){0};
}

const Target *target_named(const char *name); /* in codegen/ ; NULL if none */
#endif
