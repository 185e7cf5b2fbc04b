/* forecast.h: times of kernels, from their machine code; private to codegen/cuda. */
#ifndef CODEGEN_CUDA_FORECAST_H
#define CODEGEN_CUDA_FORECAST_H
#include "../cuda.h"

typedef struct CuForecast {
	/* tail: seconds behind the last block; waves: of blocks over the multiprocessors; instructions of a warp, of
	 * those a round of k */
	double seconds, tail, waves, slots, round_slots;
	int64_t blocks;
	int blocks_sm, regs, shared;
	const char *why_blocks, *why; /* what keeps a multiprocessor from holding more; what binds */
} CuForecast;

/* The kernels of a training step on m as JSON: {"kernels": [{"name", "us", ...}]}. job: of the program's parts, with
 * cubins. */
void cu_forecast_json(CuProgram *p, const Machine *m, const NvrtcJob *job, Buf *out);
/* Seconds of these kernels of a graph one after the other; NAN: of one nothing is known. */
double cu_forecast_seconds(CuProgram *p, const Machine *m, const NvrtcJob *job, const Graph *g, const KernelRec *k,
                           uint32_t n);
/* The kernels of a training step for people, function by function: resources, instructions, loops and their turns, and
 * where a warp's time goes, with nvdisasm's lines if it is there. */
void cu_forecast_sass(CuProgram *p, const Machine *m, const NvrtcJob *job, Buf *out);

#endif
