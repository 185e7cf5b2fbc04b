/* pack_amx.c: rows of VNNI pairs, along k, for matrix tiles (micro_amx.c).
 *
 * In: a value whose sum is over rows, in memory or made by the kernel.   Out: a kernel that transposes it into the
 * workspace: a row for each column, pairs of rows side by side. */
#include "gemm.h"

typedef struct Transposition { V block, transposed, pairs; int64_t length; } Transposition;

/* Columns [c0, c0 + 16) of 16 rows of pairs, in t->block, go to `out`: a row for each column, `to_row` bytes apart. */
static void
transpose_out(Emit *e, const Transposition *t, V c0, V out, int64_t to_row)
{
	V transpose = transpose_block(e->l, AMX_EDGE, false), copy_out = amx_copy_out(e->l),
	  columns = i_min(e, k64(e, AMX_EDGE), i_sub(e, k64(e, t->length), c0));
	LLVMBuilderRef b = here(e);
	V mask = LLVMBuildSub(b, LLVMBuildShl(b, k64(e, 1), t->pairs, ""), k64(e, 1), "");

	/* rows of the block come to be columns: 16 of them, whatever the last ones hold */
	LLVMBuildCall2(b, LLVMGlobalGetValueType(transpose), transpose,
	               (V[]){t->block, k64(e, 64), k64(e, AMX_EDGE), t->transposed, k64(e, 64)}, 5, "");
	LLVMBuildCall2(b, LLVMGlobalGetValueType(copy_out), copy_out,
	               (V[]){t->transposed, out, k64(e, to_row), columns, mask}, 5, "");
}

/* Where column 0 of row r would be, if the region's rows began with column c0. */
static V
row_from(Emit *e, const Mem *m, V r, V c0)
{
	return ptr_at(e, m->base, i_sub(e, mem_offset(e, m, r), mem_offset(e, m, NULL, c0)));
}

/* Task: 16 pairs of rows of one entry of the axes around them. */
void
amx_transpose(GroupCx *gc, Val val, bool made, int dst, GraphKernels *gk)
{
	const Type *t = val_type(gc->g, val);
	int64_t length = t->axis[t->perm[t->rank - 1]].n, pairs = t->axis[t->perm[t->rank - 2]].n / 2,
	        blocks = ceil_div(pairs, AMX_PAIRS), entries = 1;
	int src = made ? -1 : group_buffer(gc, val.id);
	Emit e = {0};
	bool fresh;
	int fn = kernel_begin(gc, &e, arena_printf(gc->tmp, "pairs%d", gc->nkernel), &fresh);

	for (int i = 0; i + 2 < t->rank; i++)
		entries *= t->axis[t->perm[i]].n;
	if (fresh) {
		emit_lanes(&e, AMX_EDGE);
		T room = LLVMArrayType2(e.l->i8, AMX_BYTES);
		Transposition x = {.block = slot_new(&e, room), .transposed = slot_new(&e, room), .length = length};
		/* [entry][pair of rows][column], [entry][column][pair of rows], [pair of rows][column] */
		Mem in = mem_dense(&e, made ? NULL : buffer(&e, src), DT_f32, entries, pairs, length),
		    out = mem_axes(&e, buffer(&e, dst), OF(length), BY(F32(pairs)), BY(4)),
		    block = mem_rows(&e, x.block, DT_f32, AMX_PAIRS, AMX_EDGE);

		TASKS(&e, task) {
			V entry = i_div_k(&e, task, blocks),
			  first = i_mul_k(&e, i_rem_k(&e, task, blocks), AMX_PAIRS);

			x.pairs = i_min(&e, k64(&e, AMX_PAIRS), i_sub(&e, k64(&e, pairs), first));
			LOOP(&e, c0, k64(&e, 0), k64(&e, length), AMX_EDGE) {
				V c1 = i_min_k(&e, i_add_k(&e, c0, AMX_EDGE), length);

				EACH(&e, r, x.pairs) {
					V row = i_add(&e, first, r), to = row_from(&e, &block, r, c0);

					if (made)
						vnni_made_row(&e, val, entry, row, c0, c1, to);
					else
						vnni_row_of(&e, mem_at(&e, &in, entry, row), length, c0, c1, to);
				}
				transpose_out(&e, &x, c0, mem_at(&e, &out, entry, c0, first), F32(pairs));
			}
		}
	}
	kernel_end(gc, &e, gk, fn, (Rows){.rows = entries * blocks, .mul = 0, .div = 1, .grain = 1}, fresh, false);
}
