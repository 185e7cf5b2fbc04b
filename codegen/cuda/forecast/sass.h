/* sass.h: machine code in a cubin, as far as forecasts read it; private to codegen/cuda. */
#ifndef CODEGEN_CUDA_SASS_H
#define CODEGEN_CUDA_SASS_H
#include "../cuda.h"

/* What an instruction does, by its opcode: a row of sass.def. */
typedef enum SassKind {
	SASS_OTHER,
#define SASS(kind, code, latency) SASS_##kind,
#include "sass.def"
#undef SASS
	NSASS
} SassKind;

typedef struct Insn {
	uint8_t kind;            /* SassKind */
	uint8_t width;           /* of loads and stores: bytes a thread */
	uint8_t stall;           /* cycles until the next may begin */
	/* scoreboards that tell of its result, and that its operands are read: 0 to 5, 7 none */
	uint8_t sets, reads;
	uint8_t waits;           /* bits of scoreboards that must be free before it begins */
	bool always;             /* it has no condition */
	bool strong;             /* a load that other multiprocessors' stores are seen by, a fence of the device */
	bool paired;             /* a load of 16 bytes beside another from the same base: 8 elements of f32 */
	int32_t target;          /* of a branch or a call: an instruction's number; -1: none */
} Insn;
typedef struct SassLoop { int first, last; } SassLoop; /* instructions; last is the branch back */
typedef struct Code {
	const char *name;
	/* of a thread; bytes of a thread's memory; static bytes of a block, without what the driver keeps */
	int regs, frame, shared;
	int n; const Insn *at;
	VEC(SassLoop) loop;      /* by their first instruction; an outer one before those in it */
	int body;                /* instructions up to the first function that is called: the kernel itself */
} Code;

/* The code of function `name` of a cubin; false: it has none, or the file is none that is understood. */
bool cu_code_read(Arena *a, const Buf *cubin, const char *name, bool hopper, Code *c);
/* Are registers kept in memory within the loop of the code's products, matrix instructions or many FMAs? */
bool cu_code_spills_in_loop(const Code *c);
const char *cu_sass_name(SassKind k);
double cu_sass_latency(SassKind k, bool hopper);

#endif
