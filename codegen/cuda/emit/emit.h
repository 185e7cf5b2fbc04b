/* emit.h: a module as CUDA C, and what NVRTC makes of it: what the target's own files share with its tests. */
#ifndef CODEGEN_CUDA_EMIT_H
#define CODEGEN_CUDA_EMIT_H
#include "../../codegen.h"

/* plan: text is the line of a plan of cuDNN; before: what stands in front of it; text: from the parameters on; what:
 * how threads share the work; flat: o0 counts elements; loose: its threads do not meet; two: it is made for two blocks
 * on a multiprocessor (KERNEL2); block: threads; shared: bytes of dynamic shared memory; part: of the program's code */
typedef struct CuFunction {
	const char *name, *before, *text, *what;
	bool flat, loose, plan, two;
	uint64_t hash;
	int32_t block, shared, part;
	int32_t team;                   /* blocks that wait for each other: a launch has whole teams; 1: none does */
	int32_t beside;                 /* blocks that share a multiprocessor's registers; 0: as KERNEL, KERNEL2 */
	double turns;                   /* of a thread's loop over pixels, for forecasts; 0: it has none, or others */
} CuFunction;
/* A module in the making: its text, its functions, and the kernels of each graph, which call them. */
typedef struct CuProgram {
	Arena *a;
	Buf text;
	VEC(CuFunction) fn;
	ProgramKernels ks;
	int64_t state_from, state_to;   /* where states lie */
	const char *small;              /* cuda_small, or nothing */
	int cuts;                       /* updates that processes share */
	int variant;                    /* of the group that is emitted (Group.variant); 0: its own kernel */
} CuProgram;
const char *cu_kernel_word(Arena *a, const CuFunction *f); /* what stands in front of its name */
/* p: zeros and an arena; text and fn are p's to free. NULL, or what is wrong with the plan's launches, in p's arena */
const char *cu_module_emit(CuProgram *p, const Module *m, const char *arch);
/* PTX, a cubin or both of CUDA C text. lines: with the text's line numbers for debuggers, twice the size; strict: a
 * contraction that keeps registers in memory in its loop, or whose products wait for each other, is an error, not a
 * note: it is right and slow. */
typedef struct NvrtcJob {
	const char *source;
	bool cubin, ptx, lines, strict;
	Buf cubin_out, ptx_out;
	const char *error, *note; /* nvrtc_compile's own; what is slow, in its arena, or NULL */
} NvrtcJob;
const char *nvrtc_driver_lacks(Arena *a, long release, bool *none); /* Target.here.driver_lacks */
/* All of them, from the cache or by NVRTC, by so many threads, 0 as many as CPUs. NULL, or the first error, in
 * arena. The outs are the caller's to free. */
const char *nvrtc_compile(Arena *a, const char *arch, NvrtcJob *job, int n, int jobs);
#endif
