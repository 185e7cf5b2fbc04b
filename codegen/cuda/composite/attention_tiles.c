/* attention_tiles.c: the text of a tile of attention: operands on their way into shared memory, products, masks,
 * dropout, results.
 *
 * In: an attention in the making (attention.c says what rows and columns are).   Out: lines of the open kernel. Arrays
 * in registers are those of matrix instructions, 16 rows to a warp, or of FMAs, a square of threads. */
#include "attention.h"
#include <math.h>
#include <stdio.h>
#include <string.h>

/* ---------------------------------------------------------------- text */
const char *
att_lit(Cuda *c, double x)
{
	return cu_cell_number(c, DT_f32, x).v;
}

/* A loop whose counter is a number known to the compiler. */
Scope
att_unrolled(Cuda *c, char i, int n)
{
	cu_line(c, "#pragma unroll");
	return cu_scope_open(c, "for (int %c = 0; %c < %d; %c++)", i, i, n, i);
}

static const char *
row_number(const Att *a)
{
	return a->mma ? "first + warp * 16 + lane / 4 + i * 8" : "first + tid / 16 + i * 16";
}

static const char *
column_number(const Att *a)
{
	return a->mma ? "at + j / 2 * 8 + lane % 4 * 2 + j % 2" : "at + tid % 16 + j * 16";
}

/* Element i, j of a thread's part of the tile, or of sums: j counts columns. */
const char *
att_element(const Att *a, const char *array, char j)
{
	return arena_printf(a->c->a, a->mma ? "%s[%c / 2][i * 2 + %c %% 2]" : "%s[i][%c]", array, j, j);
}

void
att_array_open(const Att *a, const char *name, int columns)
{
	if (a->mma)
		cu_line(a->c, "float %s[%d][4] = {};", name, columns / 8);
	else
		cu_line(a->c, "float %s[%d][%d] = {};", name, a->rows / 16, (columns + 15) / 16);
}

/* Over the threads that share a row. */
void
att_row_join(const Att *a, const char *name, const char *join)
{
	for (int lanes = a->mma ? 2 : 8; lanes; lanes /= 2)
		cu_line(a->c, join, name, name, name, lanes);
}

/* ---------------------------------------------------------------- operands */
/* Elements from neighbour to neighbour along an axis: only what is outermost in memory follows the batch
 * (cu_attention_strided). */
static int64_t
stride_of(const Type *t, int axis)
{
	int64_t n = 1;

	for (int i = t->rank; t->perm[--i] != axis;)
		n *= t->axis[t->perm[i]].n;
	return n;
}

int64_t
att_line(const Att *a, const Type *t)
{
	return stride_of(t, a->lead);
}

const char *
att_entry(const Att *a, const Type *t)
{
	Cuda *c = a->c;
	Ix sum = "0";

	if (type_is_plain(t))
		return arena_printf(c->a, "entry * %lld", (long long)(t->axis[a->lead].n * t->axis[a->lead + 1].n));
	for (int i = 0; i < a->lead; i++)
		sum = cu_ix_add(c, sum, cu_ix_mul(c, a->lead_ix[i], cu_ix_k(c, stride_of(t, i))));
	return sum;
}

void
att_entry_indices(Att *a)
{
	Type lead = type_of(a->dt, a->lead, a->q->axis);

	if (a->mask || a->strided)
		cu_take_apart(a->c, &lead, (1u << a->lead) - 1, "entry", a->lead_ix);
}

static Side
side_of(const Att *a, int k, int lines)
{
	const Type *t = val_type(a->g, a->op->in[k]);
	int width = (int)t->axis[a->lead + 1].n;
	static const char names[2][4] = {"qkv", "gqkv"};

	return (Side){a->op->in[k],
	              names[a->back][k],
	              width,
	              a->mma ? att_power_of_two(width / 8) : att_float_pitch(width),
	              att_side_bytes(a, width, lines),
	              att_line(a, t)};
}

/* Bytes of the rows' tiles, which come first in shared memory. */
static int
rows_bytes(const Att *a)
{
	return a->row[0].bytes + (a->nrow > 1 ? a->row[1].bytes : 0);
}

void
att_sides_choose(Att *a)
{
	int q = a->first, k = q + 1, v = q + 2;

	a->nrow = a->back ? 2 : 1;
	a->row[0] = side_of(a, a->part == KEYS ? k : q, a->rows);
	a->row[1] = side_of(a, a->part == KEYS ? v : 0, a->rows);
	a->column[0] = side_of(a, a->part == KEYS ? q : k, a->columns);
	a->column[1] = side_of(a, a->part == KEYS ? 0 : v, a->columns);
	a->all_rows = a->part == KEYS ? a->s : a->t;
	a->all_columns = a->part == KEYS ? a->t : a->s;
	a->stats = rows_bytes(a) + a->stages * (a->column[0].bytes + a->column[1].bytes);
	int tiles = a->stats + (a->part == KEYS ? a->stages * a->columns * QUERY_BYTES : 0);

	a->weights = tiles;
	a->c->threads = a->threads;
	a->c->shared = tiles + (a->mma ? 0 : (a->part == KEYS ? 2 : 1) * a->rows * att_float_pitch(a->columns) * 4);
}

/* Bytes from the start of shared memory to an operand's tile; `slot`: of a column operand. */
static const char *
place(const Att *a, const Side *s, const char *slot)
{
	int rows = rows_bytes(a), both = a->column[0].bytes + a->column[1].bytes;

	if (s == &a->row[0] || s == &a->row[1])
		return arena_printf(a->c->a, "%d", s == &a->row[1] ? a->row[0].bytes : 0);
	rows += s == &a->column[1] ? a->column[0].bytes : 0;
	return a->stages > 1 ? arena_printf(a->c->a, "%d + %s * %d", rows, slot, both)
	                     : arena_printf(a->c->a, "%d", rows);
}

/* Lines from `from` on of an operand, `limit` in all; those behind are zeros. */
void
att_load_lines(const Att *a, const Side *s, const char *from, int lines, int64_t limit, const char *slot)
{
	Cuda *c = a->c;
	const char *to = place(a, s, slot),
	           *valid = limit % lines ? arena_printf(c->a, "%s + line < %lld", from, (long long)limit) : "true";
	int step = a->mma                                 ? 8
	           : a->dt == DT_f32 && s->width % 4 == 0 ? 4
	                                                  : 1,
	    units = a->mma ? s->width / 8 : att_round_to(s->width, 4) / step;
	const char *from_memory =
	        arena_printf(c->a, "%c + (%s + line) * %lld + unit * %d", s->name, from, (long long)s->line, step);
	Scope l;

	if (a->mma) {
		int all = lines * units, each = a->threads / units;

		l = att_unrolled(c, 'i', (all + a->threads - 1) / a->threads);
		if (a->threads % units == 0)
			cu_line(c, "const int line = tid / %d + i * %d, unit = tid %% %d;", units, each, units);
		else
			cu_line(c, "const int line = (tid + i * %d) / %d, unit = (tid + i * %d) %% %d;", a->threads,
			        units, a->threads, units);
		if (all % a->threads)
			cu_line(c, "if (line >= %d) break;", lines);
	} else {
		cu_line(c, "#pragma unroll 4");
		l = cu_scope_open(c, "for (int u = tid; u < %d; u += %d)", lines * units, a->threads);
		cu_line(c, "const int line = u / %d, unit = u %% %d;", units, units);
	}
	if (a->mma) {
		/* where nothing is copied the address is not read */
		cu_line(c, "const %s *p = %s;", cu_memory_type(a->dt), from_memory);
		cu_line(c, "copy16(shared + %s + swizzled(line, unit, %d), p, p, %s);", to, s->pitch, valid);
	} else {
		cu_line(c, "const %s *p = %s;", cu_memory_type(a->dt), from_memory);
		cu_line(c, "float *to = (float *)((char *)memory + %s) + line * %d + unit * %d;", to, s->pitch, step);
		if (step == 4) {
			cu_line(c, "float x[4] = {};");
			cu_line(c, "if (%s) read4(x, p);", valid);
			cu_line(c, "write4(to, x);");
		} else {
			cu_line(c, "*to = %s%s ? %s : 0.0f;", valid,
			        s->width % 4 ? arena_printf(c->a, " && unit < %d", s->width) : "",
			        cu_from_memory(c, a->dt, "*p"));
		}
	}
	cu_scope_close(c, l);
}

int64_t
att_query_places(const Att *a)
{
	return (a->t + 1) / 2 * 2;
}

/* The log-sums and sums of g y of a tile of queries, two queries a thread; 0 where there are none. */
static void
load_queries(const Att *a, const char *from, const char *slot)
{
	Cuda *c = a->c;
	const char *to = a->stages > 1 ? arena_printf(c->a, "%d + %s * %d", a->stats, slot, a->columns * QUERY_BYTES)
	                               : arena_printf(c->a, "%d", a->stats);
	Scope s = cu_scope_open(c, "if (tid < %d)", a->columns / 2);

	cu_line(c, "const float4 *p = (const float4 *)(%s + (entry * %lld + %s) * 2) + tid;",
	        cu_pointer(c, DT_f32, c->g->group.at[c->group].workspace_offset), (long long)att_query_places(a), from);
	cu_line(c, "const bool valid = %s + tid * 2 < %lld;", from, (long long)a->t);
	if (a->mma)
		cu_line(c, "copy16(shared + %s + tid * 16, p, p, valid);", to);
	else
		cu_line(c, "*(float4 *)((char *)memory + %s + tid * 16) = valid ? *p : make_float4(0, 0, 0, 0);", to);
	cu_scope_close(c, s);
}

void
att_load_columns(const Att *a, const char *from, const char *slot)
{
	for (int k = 0; k < 2; k++)
		att_load_lines(a, &a->column[k], from, a->columns, a->all_columns, slot);
	if (a->part == KEYS)
		load_queries(a, from, slot);
}

/* `x`, new: 2 to the power of a number; below the least normal number 0. */
void
att_power(const Att *a, const char *x, const char *of)
{
	cu_line(a->c, "float %s;", x);
	cu_line(a->c, "asm(\"ex2.approx.ftz.f32 %%0, %%1;\" : \"=f\"(%s) : \"f\"(%s));", x, of);
}

/* ---------------------------------------------------------------- products */
/* Where a lane's chunks of 16 bytes lie in a tile: lines, of the rows' operand; across and along, of the columns', by
 * the pairs of sums and transposed. Of the other chunks of these lines, two at a time, bits of the number change, and
 * 16 lines on, the same chunk follows. */
void
att_places(const Att *a)
{
	Cuda *c = a->c;
	const Side *side[4] = {&a->row[0], &a->column[0], &a->row[1], &a->column[1]};
	bool said[2 * MMA_WIDTH / 8] = {false};

	for (int i = 0; a->mma && i < 4; i++) {
		int pitch = side[i]->pitch;

		if (said[pitch])
			continue;
		said[pitch] = true;
		cu_line(c, "const unsigned lines_%d = swizzled(warp * 16 + lane %% 16, lane / 16, %d);", pitch, pitch);
		cu_line(c, "const unsigned across_%d = swizzled(lane / 16 * 8 + lane %% 8, lane / 8 %% 2, %d);", pitch,
		        pitch);
		cu_line(c, "const unsigned along_%d = swizzled(lane / 8 %% 2 * 8 + lane %% 8, lane / 16, %d);", pitch,
		        pitch);
	}
}

/* Is the rows' operand kept in registers through all columns? With the sums these are 168 at most. */
static bool
is_held(const Att *a, int k)
{
	return a->mma && a->row[0].width + (k ? a->row[1].width : 0) <= (a->part == KEYS ? 64 : 128);
}

/* The rows' operands as the loop over columns wants them: their tiles have been copied. */
void
att_hold_rows(const Att *a)
{
	Cuda *c = a->c;

	if (!is_held(a, 0))
		return;
	cu_line(c, "copies_end();");
	cu_line(c, "COPIES_WAIT(0);");
	cu_line(c, "__syncthreads();");
	for (int k = 0; k < a->nrow && is_held(a, k); k++) {
		const Side *r = &a->row[k];

		cu_line(c, "unsigned rows_%c[%d][4];", r->name, r->width / 16);
		cu_line(c, "#pragma unroll");
		cu_line(c, "for (int k = 0; k < %d; k++) ldsm(rows_%c[k], shared + %s + (lines_%d ^ k * 32));",
		        r->width / 16, r->name, place(a, r, NULL), r->pitch);
	}
}

/* array = rows' operand times the columns' transposed. */
void
att_multiply(const Att *a, int k, const char *array)
{
	Cuda *c = a->c;
	const Side *r = &a->row[k], *o = &a->column[k];
	const char *from = place(a, r, NULL), *with = place(a, o, "slot");

	att_array_open(a, array, a->columns);
	if (a->mma) {
		cu_line(c, r->width > 64 ? "#pragma unroll 2"
		                         : "#pragma unroll"); /* addresses of all steps take registers */
		Scope s = cu_scope_open(c, "for (int k = 0; k < %d; k++)", r->width / 16);

		cu_line(c, "unsigned fb[4];");
		if (is_held(a, k)) {
			cu_line(c, "const unsigned *fa = rows_%c[k];", r->name);
		} else {
			cu_line(c, "unsigned fa[4];");
			cu_line(c, "ldsm(fa, shared + %s + (lines_%d ^ k * 32));", from, r->pitch);
		}
		Scope l = att_unrolled(c, 'j', a->columns / 16);

		cu_line(c, "ldsm(fb, shared + %s + (across_%d ^ k * 32) + j * %d);", with, o->pitch, 256 * o->pitch);
		cu_line(c, "mma_%s(%s[j * 2], fa, fb);", dtype_info[a->dt].name, array);
		cu_line(c, "mma_%s(%s[j * 2 + 1], fa, fb + 2);", dtype_info[a->dt].name, array);
		cu_scope_close(c, l);
		cu_scope_close(c, s);
		return;
	}
	int n = a->rows / 16, m = a->columns / 16;

	cu_line(c, "#pragma unroll 2");
	Scope s = cu_scope_open(c, "for (int k = 0; k < %d; k += 4)", att_round_to(r->width, 4));

	cu_line(c, "float fa[%d][4], fb[%d][4];", n, m);
	cu_line(c, "const float *ra = (const float *)((const char *)memory + %s) + tid / 16 * %d + k;", from, r->pitch);
	cu_line(c, "const float *rb = (const float *)((const char *)memory + %s) + tid %% 16 * %d + k;", with,
	        o->pitch);
	cu_line(c, "#pragma unroll");
	cu_line(c, "for (int i = 0; i < %d; i++) read4(fa[i], ra + i * %d);", n, 16 * r->pitch);
	cu_line(c, "#pragma unroll");
	cu_line(c, "for (int j = 0; j < %d; j++) read4(fb[j], rb + j * %d);", m, 16 * o->pitch);
	Scope l = att_unrolled(c, 'x', 4), i = att_unrolled(c, 'i', n);

	cu_line(c, "#pragma unroll");
	cu_line(c, "for (int j = 0; j < %d; j++) %s[i][j] = fmaf(fa[i][x], fb[j][x], %s[i][j]);", m, array, array);
	cu_scope_close(c, i);
	cu_scope_close(c, l);
	cu_scope_close(c, s);
}

/* sums += tile times the columns' operand; the tile's elements are a thread's own, `which` of the tiles in shared
 * memory. */
void
att_accumulate(const Att *a, const char *tile, int k, const char *sums, int which)
{
	Cuda *c = a->c;
	const Side *o = &a->column[k];
	const char *with = place(a, o, "slot");
	int pitch = att_float_pitch(a->columns);

	if (a->mma) {
		const char *type = dtype_info[a->dt].name;
		Scope s = att_unrolled(c, 'k', a->columns / 16);

		cu_line(c, "unsigned fa[4], fb[4];");
		cu_line(c, "#pragma unroll");
		cu_line(c,
		        "for (int x = 0; x < 4; x++) fa[x] = pair_%s(%s[k * 2 + x / 2][x %% 2 * 2], %s[k * 2 + x / "
		        "2][x %% 2 * 2 + 1]);",
		        type, tile, tile);
		Scope l = att_unrolled(c, 'j', o->width / 16);

		cu_line(c, "ldsm_turned(fb, shared + %s + (along_%d ^ j * 32) + k * %d);", with, o->pitch,
		        256 * o->pitch);
		cu_line(c, "mma_%s(%s[j * 2], fa, fb);", type, sums);
		cu_line(c, "mma_%s(%s[j * 2 + 1], fa, fb + 2);", type, sums);
		cu_scope_close(c, l);
		cu_scope_close(c, s);
		return;
	}
	int n = a->rows / 16, m = att_own_width(a, o->width);

	cu_line(c, "#pragma unroll 2");
	Scope s = cu_scope_open(c, "for (int k = 0; k < %d; k += 4)", a->columns);

	cu_line(c, "float fa[%d][4];", n);
	cu_line(c, "const float *ra = (const float *)((const char *)memory + %d) + tid / 16 * %d + k;",
	        a->weights + which * a->rows * pitch * 4, pitch);
	cu_line(c, "const float *rb = (const float *)((const char *)memory + %s) + k * %d + tid %% 16;", with,
	        o->pitch);
	cu_line(c, "#pragma unroll");
	cu_line(c, "for (int i = 0; i < %d; i++) read4(fa[i], ra + i * %d);", n, 16 * pitch);
	Scope l = att_unrolled(c, 'x', 4), j = att_unrolled(c, 'j', m);

	if (o->width % 16)
		cu_line(c, "const float b = tid %% 16 + j * 16 < %d ? rb[x * %d + j * 16] : 0.0f;", o->width, o->pitch);
	else
		cu_line(c, "const float b = rb[x * %d + j * 16];", o->pitch);
	cu_line(c, "#pragma unroll");
	cu_line(c, "for (int i = 0; i < %d; i++) %s[i][j] = fmaf(fa[i][x], b, %s[i][j]);", n, sums, sums);
	cu_scope_close(c, j);
	cu_scope_close(c, l);
	cu_scope_close(c, s);
}

/* FMAs: a thread's elements go to where the threads of the same rows read them. */
void
att_share_tile(const Att *a, const char *tile, int which)
{
	Cuda *c = a->c;
	int pitch = att_float_pitch(a->columns);

	if (a->mma)
		return;
	Scope s = att_unrolled(c, 'i', a->rows / 16);

	cu_line(c, "#pragma unroll");
	cu_line(c,
	        "for (int j = 0; j < %d; j++) ((float *)((char *)memory + %d))[(tid / 16 + i * 16) * %d + tid %% 16 + "
	        "j * 16] = %s[i][j];",
	        a->columns / 16, a->weights + which * a->rows * pitch * 4, pitch, tile);
	cu_scope_close(c, s);
}

/* ---------------------------------------------------------------- masks */
/* The mask's element at query and key. */
Cell
att_mask_load(const Att *a)
{
	Ix ix[MAX_RANK];
	int before = a->lead + 2 - a->mask->rank;

	for (int i = 0; i < a->mask->rank; i++) {
		bool one = a->mask->axis[i].n == 1 && !a->mask->axis[i].mul;
		int at = i + before;

		ix[i] = one ? "0" : at < a->lead ? a->lead_ix[at] : at == a->lead ? "query" : "key";
	}
	return cu_load_at(a->c, a->mask, val_info(a->g, a->op->in[a->nmask])->offset, ix);
}

bool
att_mask_follows(const Att *a, int back)
{
	return a->mask->rank >= back && a->mask->axis[a->mask->rank - back].n != 1;
}

/* A condition that query and key exist, of those sides whose tiles may end behind them. */
const char *
att_exist(const Att *a, bool rows, bool columns)
{
	bool by_keys = a->part == KEYS, cut_rows = rows && a->all_rows % a->rows,
	     cut_columns = columns && a->all_columns % a->columns;
	const char *r =
	        cut_rows ? arena_printf(a->c->a, "%s < %lld", by_keys ? "key" : "query", (long long)a->all_rows) : NULL;
	const char *o =
	        cut_columns ? arena_printf(a->c->a, "%s < %lld", by_keys ? "query" : "key", (long long)a->all_columns)
	                    : NULL;

	return r && o ? arena_printf(a->c->a, "%s && %s", r, o) : r ? r : o;
}

/* `x`: score i, j in base 2, masked. query and key are numbers. */
void
att_score(const Att *a, const char *element)
{
	Cuda *c = a->c;
	const char *inside = att_exist(a, true, true), *seen = att_exist(a, false, true);

	cu_line(c, "float x = %s * %s;", element, att_lit(c, a->scale * LOG2E));
	if (a->mask) {
		Scope s = inside ? cu_scope_open(c, "if (%s)", inside) : (Scope){0};
		Cell m = att_mask_load(a);

		cu_line(c, m.dt == DT_bool ? "x = %s ? x : -INF_f32;" : "x = fmaf(%s, %s, x);", m.v, att_lit(c, LOG2E));
		if (inside)
			cu_scope_close(c, s);
	}
	if (a->causal)
		seen = seen ? arena_printf(c->a, "key <= query && %s", seen) : "key <= query";
	if (seen)
		cu_line(c, "x = %s ? x : -INF_f32;", seen);
}

void
att_numbers(const Att *a, bool row, bool column)
{
	bool by_keys = a->part == KEYS;

	if (row)
		cu_line(a->c, "const %s %s = %s;", a->c->it, by_keys ? "key" : "query", row_number(a));
	if (column)
		cu_line(a->c, "const %s %s = %s;", a->c->it, by_keys ? "query" : "key", column_number(a));
}

/* ---------------------------------------------------------------- dropout */
/* A block of random numbers is four keys' of a query. Do lanes share its work? */
bool
att_by_four(const Att *a)
{
	return a->nseed >= 0 && a->mma && a->s % 4 == 0;
}

static const char *
random_arguments(const Att *a)
{
	return arena_printf(a->c->a, "(unsigned)%s, (unsigned)%s, 0x%xu", a->seed.v, a->step.v,
	                    (unsigned)cu_stream_number(attr_str(a->op, A_stream)));
}

/* Of a shard, the number of its first example's first: see `random` in ir/ops.def. each: numbers of a block */
static const char *
random_first(const Att *a, int each)
{
	long long per = (long long)attr_int(a->op, A_per) / each;

	return per ? arena_printf(a->c->a, " + ((unsigned long long)%s >> 32) * %lldu", a->step.v, per) : "";
}

static unsigned
bound(const Att *a)
{
	return (unsigned)ceil(a->p * 0x1p24);
}

/* `kept`: bits of the tile's weights, a word for eight columns. Where the four keys are columns, two lanes have them in
 * two rows, and each makes the block of one row; where they are rows, four lanes have them in two rows and two columns,
 * and each makes one of these four blocks. */
void
att_kept_bits(const Att *a)
{
	Cuda *c = a->c;
	bool by_keys = a->part == KEYS;

	if (!att_by_four(a))
		return;
	cu_line(c, "unsigned kept[%d];", a->columns / 8);
	if (by_keys)
		cu_line(c, "const int mine = lane / 4 %% 4;");
	Scope s = att_unrolled(c, 'j', a->columns / 8);

	cu_line(c, "const %s query = %s, key = %s;", c->it,
	        by_keys ? "at + j * 8 + lane % 4 * 2 + mine % 2" : "first + warp * 16 + lane / 4 + lane % 2 * 8",
	        by_keys ? "first + warp * 16 + lane / 16 * 4 + mine / 2 * 8" : "at + j * 8 + lane % 4 / 2 * 4");
	cu_line(c,
	        "unsigned bits = philox_kept(((unsigned long long)entry * %lldu + query) * %lldu + key / 4%s, %s, %uu) "
	        "<< %s * 4;",
	        (long long)a->t, (long long)a->s / 4, random_first(a, 4), random_arguments(a), bound(a),
	        by_keys ? "mine" : "lane % 2");
	for (int lanes = by_keys ? 4 : 1; lanes <= (by_keys ? 8 : 1); lanes *= 2)
		cu_line(c, "bits |= __shfl_xor_sync(0xffffffffu, bits, %d);", lanes);
	cu_line(c, "kept[j] = bits;");
	cu_scope_close(c, s);
}

/* `keep`: is the weight at i, j, of query and key, kept? */
void
att_keep(const Att *a)
{
	if (att_by_four(a))
		cu_line(a->c, "const bool keep = kept[j / 2] >> (%s) & 1;",
		        a->part == KEYS ? "(i * 2 + j % 2) * 4 + lane / 4 % 4" : "i * 4 + lane % 2 * 2 + j % 2");
	else if (a->nseed >= 0)
		cu_line(a->c,
		        "const bool keep = philox(((unsigned long long)entry * %lldu + query) * %lldu + key%s, %s) "
		        ">> 8 >= %uu;",
		        (long long)a->t, (long long)a->s, random_first(a, 1), random_arguments(a), bound(a));
}

const char *
att_dropped(const Att *a, const char *x)
{
	return a->nseed >= 0 ? arena_printf(a->c->a, "(keep ? %s * %s : 0.0f)", x, att_lit(a->c, 1 / (1 - a->p))) : x;
}

/* ---------------------------------------------------------------- results */
/* Where result k goes: to memory, and what casts of the group make of it. */
int
att_outs_of(const Att *a, int k, Out *out)
{
	const Cuda *c = a->c;
	Val v = a->op->out[k];
	int n = 0;

	if (cu_value_is_out(c, v))
		out[n++] = (Out){v, val_type(a->g, v), val_info(a->g, v)->offset};
	for (uint32_t i = c->first; i < c->last; i++) {
		const Op *op = &a->g->op.at[i];

		if (!op->dead && op->kind == OP_cast && op->in[0].id == v.id && cu_value_is_out(c, op->out[0]))
			out[n++] = (Out){op->out[0], val_type(a->g, op->out[0]), val_info(a->g, op->out[0])->offset};
	}
	return n;
}

bool
att_wanted(const Att *a, int k)
{
	Out out[8];

	return att_outs_of(a, k, out) > 0;
}

static void
stored(const Att *a, const Out *o)
{
	a->c->ready[o->v.id] = true;
	cu_stores_at(a->c, o->offset);
}

void
att_put_one(const Att *a, const Out *o, const char *at, const char *x)
{
	DType t = (DType)o->type->dtype;

	cu_line(a->c, "%s[%s] = %s;", cu_pointer(a->c, t, o->offset), at, cu_to_memory(a->c, t, x));
	stored(a, o);
}

static void
put_two(const Att *a, const Out *o, const char *at, const char *x, const char *y)
{
	DType t = (DType)o->type->dtype;
	const char *p = cu_pointer(a->c, t, o->offset);

	if (t == DT_f32)
		cu_line(a->c, "*(float2 *)&%s[%s] = make_float2(%s, %s);", p, at, x, y);
	else
		cu_line(a->c, "*(unsigned *)&%s[%s] = pair_%s(%s, %s);", p, at, dtype_info[t].name, x, y);
	stored(a, o);
}

/* Rows of sums, each element as `%s` in `how` says; `number` is the row's, in scope. */
void
att_put_row(const Att *a, int k, const char *sums, int width, const char *how)
{
	Cuda *c = a->c;
	Out out[8];
	int n = att_outs_of(a, k, out);
	const char *to[8], *column = a->mma ? "j * 8 + lane % 4 * 2" : "tid % 16 + j * 16";

	if (!n)
		return;
	for (int i = 0; i < n; i++)
		to[i] = arena_printf(c->a, "%s + number * %lld + %s", att_entry(a, out[i].type),
		                     (long long)att_line(a, out[i].type), column);
	Scope s = att_unrolled(c, 'j', a->mma ? width / 8 : att_own_width(a, width));

	if (a->mma) {
		cu_line(c, "const float x = %s[j][i * 2] %s, y = %s[j][i * 2 + 1] %s;", sums, how, sums, how);
		for (int i = 0; i < n; i++)
			put_two(a, &out[i], to[i], "x", "y");
	} else {
		Scope in = width % 16 ? cu_scope_open(c, "if (tid %% 16 + j * 16 < %d)", width) : (Scope){0};

		cu_line(c, "const float x = %s[i][j] %s;", sums, how);
		for (int i = 0; i < n; i++)
			att_put_one(a, &out[i], to[i], "x");
		if (width % 16)
			cu_scope_close(c, in);
	}
	cu_scope_close(c, s);
}

/* Opens the loop over a thread's rows that exist. */
Scope
att_rows_open(const Att *a)
{
	Scope s = att_unrolled(a->c, 'i', att_own_rows(a));

	cu_line(a->c, "const %s number = %s;", a->c->it, row_number(a));
	if (a->all_rows % a->rows)
		cu_line(a->c, "if (number >= %lld) continue;", (long long)a->all_rows);
	return s;
}
