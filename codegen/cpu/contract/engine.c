/* engine.c: the instructions by which contraction kernels multiply elements and add up their products, a row each.
 *
 * In: a contraction, an architecture, the type of its operands.   Out: the row that is used there (engine_choose: the
 * one place; the last that the CPU has, so faster ones stand behind), and what it asks of a register tile.
 * Elements have 32 bits: a number of f32, or two neighbours along k of 16 bits (pack16.c). Without a row for their
 * type operands of 16 bits are widened to f32 (operands.c): where no instruction multiplies them, for a short odd
 * k, for k along the columns of a filter (one channel), for rows that follow the batch's size. f16 products that
 * the model writes itself (no attribute wide: their results are rounded to f16) have sums in f32: what is asked for is
 * a type, not speed, and what is unrolled may feed one product's result to the next, step after step. A further one: a
 * value of EngineId, a row here, a microkernel of the contract in gemm.h. */
#include "gemm.h"
#include <string.h>

static bool always(const Arch *a) { return a != NULL; }
static bool dot_bf16(const Arch *a) { return a->dot_bf16; }
static bool fma_f16(const Arch *a) { return a->fma_f16; }
static bool matrix_tiles(const Arch *a) { return a->tiles; }

static V
micro_fma(Llvm *l, const GemmParams *p, int mr, int nv, bool masked, Steps steps)
{
	return gemm_micro(l, p, mr, nv, masked, false, steps);
}

static V
micro_pairs(Llvm *l, const GemmParams *p, int mr, int nv, bool masked, Steps steps)
{
	return gemm_micro(l, p, mr, nv, masked, true, steps);
}

static V
micro_f16(Llvm *l, const GemmParams *p, int mr, int nv, bool masked, Steps steps)
{
	(void)steps; /* its own loops walk by them */
	return gemm_micro_f16(l, mr, nv, p->lanes, masked);
}

static V
micro_amx(Llvm *l, const GemmParams *p, int mr, int nv, bool masked, Steps steps)
{
	(void)steps; /* its own loops walk by them */
	return gemm_micro_amx(l, mr, nv, masked, !p->pack, p->share);
}

/* A sum of a tile, and the pairs of products on their way to it, fill as many registers as 14 rows leave. */
static void
tile_f16(GemmParams *p, int64_t columns)
{
	if (p->lanes != 16)
		return;
	p->mr = 14;
	p->nv = columns > 16 ? 2 : 1;
}

static void
tile_amx(GemmParams *p, int64_t columns)
{
	p->mr = 2 * AMX_EDGE;
	p->lanes = AMX_EDGE;
	p->nv = columns > AMX_EDGE ? 2 : 1;
}

const Engine engines[ENGINE_COUNT] = {
        [ENGINE_FMA] = {.doc = "f32 tensors, f32 FMAs",
                        .type = DT_none,
                        .unit = 1,
                        .chains = true,
                        .owns = true,
                        .has = always,
                        .micro = micro_fma},
        [ENGINE_PAIRS] = {.doc = "bf16 tensors, dot products of bf16 pairs, f32 sums",
                          .type = DT_bf16,
                          .unit = 2,
                          .chains = true,
                          .owns = true,
                          .has = dot_bf16,
                          .micro = micro_pairs},
        [ENGINE_F16] = {.doc = "f16 tensors, f16 FMAs (AVX512-FP16) whose sums go to f32 every 64 "
                               "steps, f32 ones where that overflows",
                        .type = DT_f16,
                        .unit = 2,
                        .asked = true,
                        .block = 14,
                        .units = 4,
                        .task = 112,
                        .has = fma_f16,
                        .micro = micro_f16,
                        .tile = tile_f16},
        /* with fewer steps than half a tile has, f32 is faster */
        [ENGINE_AMX] = {.doc = "bf16 tensors, matrix tiles of bf16 (AMX), f32 sums",
                        .type = DT_bf16,
                        .unit = 2,
                        .least = AMX_PAIRS,
                        .counts = true,
                        .block = 2 * AMX_EDGE,
                        .units = 2,
                        .task = 256,
                        .side_by_side = true,
                        .has = matrix_tiles,
                        .micro = micro_amx,
                        .open = amx_open,
                        .tile = tile_amx},
};

/* What is summed over; 0: it cannot be paired. */
static int64_t
summed_extent(const Graph *g, const Op *op)
{
	const Type *a = val_type(g, op->in[0]);

	switch (op->kind) {
	case OP_matmul:
		if (attr_bool(op, A_ta))
			return type_marked(a) ? 0 : a->axis[a->rank - 2].n;
		return a->axis[a->rank - 1].n;
	case OP_conv2d_dw:
		return type_marked(a) ? 0 : a->axis[0].n;
	default:
		return a->axis[1].n;
	}
}

static int64_t
column_extent(const Graph *g, const Op *op)
{
	const Type *o = val_type(g, op->out[0]);

	return o->axis[op->kind == OP_matmul ? o->rank - 1 : op->kind == OP_conv2d_dw ? 0 : 1].n;
}

/* May the last element that is summed over stand in a pair with a zero? Where rows of pairs are made of both operands,
 * those of images; else the first operand is copied for it (operands.c). Of few elements many products would be with
 * zeros. */
static bool
may_be_odd(const Op *op, EngineId id, int64_t k)
{
	enum { ROWS = 2, COPIED = 8 };

	return id == ENGINE_PAIRS && k > (sums_over_rows(op) ? ROWS : COPIED);
}

bool
engine_can(const Graph *g, const Op *op, const Arch *a, DType half, EngineId id)
{
	const Engine *e = &engines[id];
	int64_t k = summed_extent(g, op);
	bool asked = gemm_half(g, op) != DT_f16 || attr_bool(op, A_wide);

	if (id == ENGINE_FMA)
		return true;
	/* pairs of channels would have to be of one group */
	return e->type == half && e->has(a) && k > 0 && (k % e->unit == 0 || may_be_odd(op, id, k)) &&
	       (asked || !e->asked) && gemm_groups(op) == 1;
}

EngineId
engine_choose(const Graph *g, const Op *op, const Arch *a, DType half)
{
	int i = ENGINE_COUNT - 1;

	/* tests want short sums too */
	while (!engine_can(g, op, a, half, (EngineId)i) || (summed_extent(g, op) < engines[i].least && !a->emulated))
		i--;
	return (EngineId)i;
}

void
engine_set(const Graph *g, const Op *op, EngineId id, GemmParams *p)
{
	p->engine = id;
	if (id == ENGINE_FMA)
		return;
	if (engines[id].tile)
		engines[id].tile(p, column_extent(g, op));
	if (op->kind == OP_matmul)
		p->pack = true;
	p->copy &= gemm_copies(g, op, p);
}
