/* sorted.c: slices added to rows that indices name, where there are many: gradients of take, tables updated in place.
 *
 * In: take.dx or take.add, all it reads in memory.   Out: kernels whose sums have one order whatever runs when, and
 * which take as long for one row that all indices name as for many rows. A key is a row's number and the place of the
 * index that names it, so no two are equal and their order is that of the sums. Chunks of keys are put in order, each
 * by a block (others zero the table, for take.dx); then a key's place among all is that in its own chunk and the number
 * of lesser ones in every other. Units of some keys each are added up side by side, whatever rows they belong to. What
 * a unit has of a row that begins before it or goes on behind it is a part, in the workspace: the last kernel adds the
 * parts of a row, in their order. */
#include "../contract/gemm.h"
#include "scatter.h"
#include <string.h>

/* KEYS: of a chunk, the prelude's CHUNK; CHUNKS: looked through at a time; AHEAD: slices of a thread on their way, keys
 * that it loads at once; JOINED: parts of a row that a thread has on its way; LANES: threads side by side along a row
 * where parts are added. */
enum { KEYS = 1024, CHUNKS = 4, AHEAD = 8, JOINED = 4, LANES = 16 };

typedef struct Sorted {
	const Slices *s;
	const char *type, *suffix;          /* of a key, in C and in names of the prelude */
	DType key;                          /* of memory, as large as a key */
	int bits;                           /* of a key, that the place takes */
	int64_t count, chunks, each, units; /* indices; their chunks; keys of a unit, units */
	int64_t keys, ordered, parts, end;  /* offsets in the workspace; `ordered` is `keys` where there is one chunk */
} Sorted;

/* A unit has more keys where there are many, so that few parts are left of a row that all of them name. */
static Sorted
sorted_of(const Slices *s, int64_t workspace)
{
	int64_t count = cu_full_product(s->ids, (1u << s->ids->rank) - 1), rows = s->t->axis[s->axis].n;
	Sorted x = {.s = s, .count = count, .chunks = (count + KEYS - 1) / KEYS, .each = 32, .keys = workspace};

	while (x.each < 256 && x.each * 256 <= count)
		x.each *= 2;
	x.units = (count + x.each - 1) / x.each;
	while ((int64_t)1 << x.bits < x.chunks * KEYS)
		x.bits++;
	bool wide = x.bits > 31 || rows + 1 > (int64_t)1 << (32 - x.bits);

	x.type = wide ? "unsigned long long" : "unsigned";
	x.suffix = wide ? "u64" : "u32";
	x.key = wide ? DT_i64 : DT_i32;
	int64_t bytes = x.chunks * KEYS * dtype_info[x.key].bytes;

	x.ordered = x.keys + (x.chunks > 1 ? bytes : 0);
	x.parts = x.end = x.ordered + bytes;
	if (x.units > 1)
		x.end += 2 * x.units * cu_full_product(s->t, s->before | s->behind) * dtype_info[s->sum].bytes;
	return x;
}

int64_t
cu_sorted_workspace(const Graph *g, const Op *op)
{
	Slices s = cu_slices_of(g, op);

	return sorted_of(&s, 0).end;
}

static void
keys_at(Cuda *c, const Sorted *x, int64_t offset, const char *name)
{
	cu_line(c, "%s *const %s = (%s *)%s;", x->type, name, x->type, cu_pointer(c, x->key, offset));
}

static Ix
count_of(Cuda *c, const Sorted *x)
{
	return cu_product(c, x->s->ids, (1u << x->s->ids->rank) - 1);
}

/* ---------------------------------------------------------------- keys in order */
/* Chunks of keys, each in order; zeros where take.dx adds. */
static void
order_emit(Cuda *c, const Sorted *x)
{
	const Slices *s = x->s;
	int64_t zeros = 0, most = 8 * cu_machine(c->g)->budget.blocks; /* as many threads as a device holds */
	double bytes = (double)type_bytes(s->ids) + (double)(x->chunks * KEYS * dtype_info[x->key].bytes);

	cu_kernel_open(c, "");
	cu_line(c, "__shared__ %s key[2][CHUNK];", x->type);
	keys_at(c, x, x->keys, "keys");
	Ix count = count_of(c, x), rows = cu_extent(c, s->t->axis[s->axis]);
	Scope l = cu_scope_open(c, "for (%s first = blockIdx.x * CHUNK; first < %s; first += gridDim.x * CHUNK)", c->it,
	                        count);

	cu_line(c, "#pragma unroll");
	Scope u = cu_scope_open(c, "for (int u = 0; u < CHUNK / BLOCK; u++)");

	/* indices beyond are read at a place that there is, so that no load waits for a condition */
	cu_line(c, "const %s place = first + u * BLOCK + threadIdx.x, there = place < %s ? place : 0;", c->it, count);
	cu_line(c, "const long long id = %s;", cu_slices_id(c, s, "there"));
	cu_line(c, "const bool good = place == there && id >= 0 && id < %s;", rows);
	cu_line(c, "key[0][u * BLOCK + threadIdx.x] = (%s)(good ? id : (long long)%s) << %d | (%s)place;", x->type,
	        rows, x->bits, x->type);
	cu_scope_close(c, u);
	cu_line(c, "const %s *const in_order = chunk_order_%s(key[0], key[1]);", x->type, x->suffix);
	cu_line(c, "for (int i = threadIdx.x; i < CHUNK; i += BLOCK) keys[first + i] = in_order[i];");
	cu_line(c, "__syncthreads();");
	cu_scope_close(c, l);
	if (s->op->kind == OP_take_dx) {
		zeros = cu_slices_zero(c, s);
		zeros = zeros < most ? zeros : most;
		bytes += (double)type_bytes(s->t);
	}
	cu_kernel_ahead(c, zeros ? "indices in order by chunks, zeros" : "indices in order by chunks",
	                x->chunks > zeros ? x->chunks : zeros, bytes, zeros ? (double)type_bytes(s->t) : 0);
}

/* Keys of all chunks in one order. */
static void
ranks_emit(Cuda *c, const Sorted *x)
{
	cu_kernel_open(c, "");
	cu_line(c, "__shared__ %s other[%d * CHUNK];", x->type, CHUNKS);
	keys_at(c, x, x->keys, "keys");
	keys_at(c, x, x->ordered, "ordered");
	cu_line(c, "const %s chunks = (%s + CHUNK - 1) / CHUNK, all = chunks * CHUNK;", c->it, count_of(c, x));
	Scope l = cu_scope_open(c, "for (%s i = blockIdx.x * BLOCK + threadIdx.x; i < all; i += gridDim.x * BLOCK)",
	                        c->it);

	cu_line(c, "const %s k = keys[i];", x->type);
	cu_line(c, "%s rank = i %% CHUNK;", c->it);
	Scope q = cu_scope_open(c, "for (%s first = 0; first < chunks; first += %d)", c->it, CHUNKS);

	cu_line(c, "__syncthreads();");
	cu_line(c, "#pragma unroll");
	cu_line(c, "for (int j = threadIdx.x; j < %d * CHUNK; j += BLOCK)", CHUNKS);
	cu_line(c, "\tother[j] = first * CHUNK + j < all ? keys[first * CHUNK + j] : ~(%s)0;", x->type);
	cu_line(c, "__syncthreads();");
	cu_line(c, "#pragma unroll");
	cu_line(c, "for (int u = 0; u < %d; u++) {", CHUNKS);
	cu_line(c, "\tconst int less = below_%s(&other[u * CHUNK], CHUNK, k);", x->suffix);
	cu_line(c, "\trank += first + u != i / CHUNK ? less : 0;");
	cu_line(c, "}");
	cu_scope_close(c, q);
	cu_line(c, "ordered[rank] = k;");
	cu_scope_close(c, l);
	cu_kernel_ahead(c, "chunks of indices in one order", x->chunks * KEYS / BLOCK,
	                2.0 * (double)(x->chunks * KEYS * dtype_info[x->key].bytes), 0);
}

/* ---------------------------------------------------------------- sums of units */
/* The place of a part, from element `column` of the row on: two for each unit, that of the row that begins before it
 * and that of the row that goes on behind it. */
static const char *
part_at(Cuda *c, const Sorted *x, Ix line, const char *part, Ix column)
{
	return arena_printf(c->a, "&%s[(%s * (2 * %s) + %s) * %s + %s]", cu_pointer(c, x->s->sum, x->parts), line,
	                    cu_ix_k(c, x->units), part, cu_product(c, x->s->t, x->s->behind), column);
}

/* The sum of `row` to the table, whose element `to` is the first but for the row. */
static void
row_put(Cuda *c, const Sorted *x, Ix *to)
{
	cu_line(c, "const %s at = (%s)row;", c->it, c->it);
	to[x->s->axis] = "at";
	cu_slices_put(c, x->s, to, "sum");
}

/* What a thread has of `row` goes to a part, or to the table. */
static void
flush(Cuda *c, const Sorted *x, Ix line, Ix column, Ix *to, bool ends)
{
	const Slices *s = x->s;
	Scope l = cu_scope_open(c, "if (row < rows)");

	if (x->units > 1) {
		cu_line(c, ends ? "if (row == begun || row == goes_on) {" : "if (row == begun) {");
		cu_line(c, "%s *const part = %s;", cu_memory_type(s->sum),
		        part_at(c, x, line, ends ? "2 * unit + (row != begun)" : "2 * unit", column));
		cu_slices_store(c, s, s->sum, "part", "sum");
		cu_line(c, "} else {");
	}
	row_put(c, x, to);
	if (x->units > 1)
		cu_line(c, "}");
	cu_scope_close(c, l);
}

/* Keys of a unit, AHEAD at a time: the next are loaded while the slices of these are on their way. */
static void
unit_emit(Cuda *c, const Sorted *x, Ix line, Ix column, Ix *to)
{
	const Slices *s = x->s;
	Scope q = cu_scope_open(c, "for (int q = 0; q < %d; q += %d)", (int)x->each, AHEAD);

	cu_line(c, "%s key[%d];", x->type, AHEAD);
	cu_line(c, "%s x[%d][%d];", cu_c_type(s->dt), AHEAD, s->vec);
	cu_line(c, "if (next[0] >> %d >= rows) break;", x->bits);
	cu_line(c, "#pragma unroll");
	cu_line(c, "for (int u = 0; u < %d; u++) key[u] = next[u];", AHEAD);
	cu_line(c, "if (q + %d < %d) keys%d_%s(next, &ordered[first + q + %d]);", AHEAD, (int)x->each, AHEAD, x->suffix,
	        AHEAD);
	cu_line(c, "#pragma unroll");
	Scope u = cu_scope_open(c, "for (int u = 0; u < %d; u++)", AHEAD);

	cu_line(c, "const %s there = key[u] >> %d < rows ? (%s)(key[u] & %lldu) : 0;", c->it, x->bits, c->it,
	        ((long long)1 << x->bits) - 1);
	cu_slices_load(c, s, s->dt, "x[u]", cu_slices_at(c, s, to, "there"));
	cu_scope_close(c, u);
	cu_line(c, "#pragma unroll");
	u = cu_scope_open(c, "for (int u = 0; u < %d; u++)", AHEAD);
	Scope other = cu_scope_open(c, "if (key[u] >> %d != row)", x->bits);

	flush(c, x, line, column, to, false);
	cu_line(c, "row = key[u] >> %d;", x->bits);
	cu_line(c, "for (int v = 0; v < %d; v++) sum[v] = x[u][v];", s->vec);
	cu_line(c, "} else {");
	cu_slices_add(c, s, "sum", "sum", "x[u]");
	cu_scope_close(c, other);
	cu_scope_close(c, u);
	cu_scope_close(c, q);
	flush(c, x, line, column, to, true);
}

/* Lines of the table, units and neighbours along a row, the last the fastest, of number i: indices of the line and of
 * the row in `to`; at: all three. */
static void
split(Cuda *c, const Sorted *x, Ix i, const Ix *ext, Ix *at, Ix *to, int columns)
{
	cu_split_number(c, i, ext, 3, at);
	cu_take_apart(c, x->s->t, x->s->before, at[0], to);
	at[2] = cu_ix_mul(c, at[2], cu_ix_k(c, columns));
}

static void
sums_emit(Cuda *c, const Sorted *x)
{
	const Slices *s = x->s;
	Ix ext[3], at[3], to[MAX_RANK], i = "i";
	int64_t many;

	cu_kernel_open(c, "");
	keys_at(c, x, x->ordered, "ordered");
	ext[0] = cu_product(c, s->t, s->before);
	ext[1] = cu_ix_parts(c, count_of(c, x), x->each);
	ext[2] = cu_ix_div(c, cu_product(c, s->t, s->behind), cu_ix_k(c, s->vec));
	cu_line(c, "const %s rows = %s;", x->type, cu_extent(c, s->t->axis[s->axis]));
	Scope l = cu_scope_open(c, "for (%s i = blockIdx.x * BLOCK + threadIdx.x; i < %s; i += gridDim.x * BLOCK)",
	                        c->it, cu_ix_mul(c, cu_ix_mul(c, ext[0], ext[1]), ext[2]));

	split(c, x, i, ext, at, to, s->vec);
	cu_take_apart(c, s->t, s->behind, at[2], to);
	cu_line(c, "const %s unit = %s, first = unit * %d;", c->it, at[1], (int)x->each);
	cu_line(c, "%s next[%d], row = rows;", x->type, AHEAD);
	cu_line(c, "%s sum[%d];", cu_c_type(s->dt), s->vec);
	cu_line(c, "keys%d_%s(next, &ordered[first]);", AHEAD, x->suffix);
	if (x->units > 1) {
		cu_line(c, "const %s begun = unit > 0 ? ordered[first - 1] >> %d : rows;", x->type, x->bits);
		cu_line(c, "const %s goes_on = unit + 1 < %s ? ordered[first + %d] >> %d : rows;", x->type, ext[1],
		        (int)x->each, x->bits);
	}
	unit_emit(c, x, at[0], at[2], to);
	cu_scope_close(c, l);
	many = cu_full_product(s->t, s->before | s->behind) / s->vec * x->units;
	cu_kernel_close(
	        c, arena_printf(c->a, "%d indices in order and neighbours along their rows to a thread", (int)x->each),
	        (many + BLOCK - 1) / BLOCK);
}

/* ---------------------------------------------------------------- parts of rows */
/* What units behind this one have of its row: LANES threads side by side along the row, others take other units,
 * JOINED of them at a time. */
static void
parts_add(Cuda *c, const Sorted *x, Ix line, Ix column)
{
	const Slices *s = x->s;
	Ix units = cu_ix_parts(c, count_of(c, x), x->each);
	int beside = BLOCK / LANES;

	cu_line(c, "%s sum[%d];", cu_c_type(s->sum), s->vec);
	cu_line(c, "for (int v = 0; v < %d; v++) sum[v] = 0;", s->vec);
	Scope l = cu_scope_open(c, "for (%s q = unit + 1 + threadIdx.x / %d; q < %s; q += %d)", c->it, LANES, units,
	                        beside * JOINED);

	cu_line(c, "%s x[%d][%d];", cu_c_type(s->sum), JOINED, s->vec);
	cu_line(c, "bool same[%d];", JOINED);
	cu_line(c, "#pragma unroll");
	Scope u = cu_scope_open(c, "for (int u = 0; u < %d; u++)", JOINED);

	cu_line(c, "const %s other = q + u * %d < %s ? q + u * %d : q;", c->it, beside, units, beside);
	cu_line(c, "same[u] = ordered[other * %d] >> %d == row && other == q + u * %d;", (int)x->each, x->bits, beside);
	cu_scope_close(c, u);
	cu_line(c, "if (!same[0]) break;");
	cu_line(c, "#pragma unroll");
	u = cu_scope_open(c, "for (int u = 0; u < %d; u++)", JOINED);
	cu_line(c, "const %s other = same[u] ? q + u * %d : q;", c->it, beside);
	cu_line(c, "const %s *const part = %s;", cu_memory_type(s->sum), part_at(c, x, line, "2 * other", column));
	cu_slices_load(c, s, s->sum, "x[u]", "part");
	cu_scope_close(c, u);
	cu_line(c, "#pragma unroll");
	u = cu_scope_open(c, "for (int u = 0; u < %d; u++)", JOINED);
	cu_line(c, "if (same[u])");
	cu_slices_add(c, s, "sum", "sum", "x[u]");
	cu_scope_close(c, u);
	cu_scope_close(c, l);
}

static void
join_emit(Cuda *c, const Sorted *x)
{
	const Slices *s = x->s;
	Ix ext[3], at[3], to[MAX_RANK], i = "i", width, units;

	cu_kernel_open(c, "");
	cu_line(c, "__shared__ %s of[BLOCK][%d];", cu_c_type(s->sum), s->vec);
	keys_at(c, x, x->ordered, "ordered");
	width = cu_product(c, s->t, s->behind);
	units = cu_ix_parts(c, count_of(c, x), x->each);
	ext[0] = cu_product(c, s->t, s->before);
	ext[1] = units;
	ext[2] = cu_ix_parts(c, width, LANES * s->vec);
	cu_line(c, "const %s rows = %s;", x->type, cu_extent(c, s->t->axis[s->axis]));
	Scope l = cu_scope_open(c, "for (%s i = blockIdx.x; i < %s; i += gridDim.x)", c->it,
	                        cu_ix_mul(c, cu_ix_mul(c, ext[0], ext[1]), ext[2]));

	split(c, x, i, ext, at, to, LANES * s->vec);
	cu_line(c, "const %s unit = %s, first = unit * %d;", c->it, at[1], (int)x->each);
	/* three keys at once: before the unit, its last and that behind it */
	cu_line(c, "const bool inner = unit + 1 < %s;", units);
	cu_line(c,
	        "const %s behind = ordered[first + (inner ? %d : %d)] >> %d, before = ordered[first - (unit > 0)] >> "
	        "%d;",
	        x->type, (int)x->each, (int)x->each - 1, x->bits, x->bits);
	cu_line(c, "const %s row = ordered[first + %d] >> %d;", x->type, (int)x->each - 1, x->bits);
	cu_line(c, "if (!inner || row >= rows || behind != row || (unit > 0 && before == row)) continue;");
	/* columns beyond are read at a place that there is */
	cu_line(c, "const %s mine = %s + threadIdx.x %% %d * %d, column = mine < %s ? mine : 0;", c->it, at[2], LANES,
	        s->vec, width);
	parts_add(c, x, at[0], "column");
	cu_line(c, "for (int v = 0; v < %d; v++) of[threadIdx.x][v] = sum[v];", s->vec);
	cu_line(c, "__syncthreads();");
	Scope put = cu_scope_open(c, "if (threadIdx.x < %d && mine == column)", LANES);

	cu_line(c, "const %s *const part = %s;", cu_memory_type(s->sum),
	        part_at(c, x, at[0], "2 * unit + 1", "column"));
	cu_slices_load(c, s, s->sum, "sum", "part");
	cu_line(c, "#pragma unroll");
	Scope q = cu_scope_open(c, "for (int q = 0; q < BLOCK; q += %d)", LANES);

	cu_slices_add(c, s, "sum", "sum", "of[q + threadIdx.x]");
	cu_scope_close(c, q);
	cu_take_apart(c, s->t, s->behind, "column", to);
	row_put(c, x, to);
	cu_scope_close(c, put);
	cu_line(c, "__syncthreads();");
	cu_scope_close(c, l);
	int64_t tiles = cu_tiles_along(cu_full_product(s->t, s->behind), LANES * s->vec);

	cu_kernel_close(c, "rows that go over several units", cu_full_product(s->t, s->before) * x->units * tiles);
}

void
cu_sorted_emit(Cuda *c, const Slices *s)
{
	Sorted x = sorted_of(s, c->g->group.at[c->group].workspace_offset);

	order_emit(c, &x);
	if (x.chunks > 1)
		ranks_emit(c, &x);
	sums_emit(c, &x);
	if (x.units > 1)
		join_emit(c, &x);
}
