/* attention.c: attention and its gradient without the scores in memory (Dao et al. 2022, arXiv:2205.14135; the division of work of Dao 2023, arXiv:2307.08691).
 *
 * In: a group of that one op: q [.., T, D], k [.., S, D], v [.., S, E], row-major, of the same leading axes, which are `entries`.
 * Out: a block makes a tile of rows of one entry and goes over the columns in tiles:
 *   y, lse   rows are queries, columns keys: scores become weights below the maximum so far; sums so far are rescaled when it rises
 *   dq       rows are queries, columns keys: ds = w (g v^T - rows' sums of g y) by the kept log-sums, times k
 *   dk, dv   rows are keys, columns queries: the same turned, ds^T times q and w^T times g
 * Gradients are made by two kernels, each sum in one block and one order; a kernel before them makes the sums of g y in the workspace.
 * Numbers of 16 bits are multiplied by matrix instructions: a warp has 16 rows, scores stay in its registers and are the next product's operand; tiles of columns
 * come by cp.async, one ahead. f32, and widths that do not fit, by multiply-adds of 16 x 16 threads; scores pass through shared memory. Exponents are of base 2.
 * Tiles that the causal mask or a mask of conditions hides are skipped; so no gradient comes of a hidden pair, unless a row sees nothing at all: that is NaN.
 * Refuses (cu_attention_refuses): f64, leading axes that differ, widths beyond a block's shared memory; pass expand takes those apart. */
#include "composite.h"
#include <math.h>
#include <stdio.h>
#include <string.h>

enum { MMA_WIDTH = 128, STAGES = 2 };
#define LOG2E 1.4426950408889634

/* An operand in tiles: of rows it is there once, of columns in as many stages as the kernel has. */
typedef struct Side { Val v; char name; int width, pitch; int bytes; } Side; /* pitch: chunks of 16 bytes, or floats, from line to line; bytes: of a tile */
typedef enum Part { FORWARD, QUERIES, KEYS } Part;

typedef struct Att {
	Cuda *c;
	const Graph *g;
	const Op *op;
	bool back, causal, mma;
	int lead, first;         /* leading axes; operand q */
	const Type *q, *mask;    /* mask: NULL if there is none */
	DType dt;
	int64_t entries, t, s;   /* of a full batch; queries, keys */
	int d, e;                /* widths */
	double scale, p;
	int nmask, nseed;        /* operands */
	int rows, columns, threads; /* of a tile, of a block */
	/* the open kernel */
	Part part;
	Side row[2], column[2];
	int nrow, stages, weights; /* row operands; tiles of columns; where the weights' tile is (multiply-adds) */
	int64_t all_rows, all_columns;
	Ix lead_ix[MAX_RANK];
	Cell seed, step;
} Att;

bool
cu_attention_op(OpKind k)
{
	return k == OP_attention || k == OP_attention_dx;
}

static Att
att_of(const Graph *g, const Op *op)
{
	Att a = {.g = g, .op = op, .back = op->kind == OP_attention_dx, .causal = attr_bool(op, A_causal), .scale = attr_num(op, A_scale), .p = attr_num(op, A_p), .entries = 1, .nmask = -1, .nseed = -1};
	int next = a.back ? 6 : 3;

	a.first = a.back;
	a.q = val_type(g, op->in[a.first]);
	a.dt = (DType)a.q->dtype;
	a.lead = a.q->rank - 2;
	for (int i = 0; i < a.lead; i++)
		a.entries *= a.q->axis[i].n;
	a.t = a.q->axis[a.lead].n;
	a.d = (int)a.q->axis[a.lead + 1].n;
	a.s = val_type(g, op->in[a.first + 1])->axis[a.lead].n;
	a.e = (int)val_type(g, op->in[a.first + 2])->axis[a.lead + 1].n;
	if (attr_bool(op, A_has_mask)) {
		a.nmask = next++;
		a.mask = val_type(g, op->in[a.nmask]);
	}
	if (a.p > 0)
		a.nseed = next;
	return a;
}

/* ---------------------------------------------------------------- tiles */
static int
round_to(int n, int by)
{
	return (n + by - 1) / by * by;
}

static int
power_of_two(int n)
{
	int r = 1;

	while (r < n)
		r *= 2;
	return r;
}

/* Floats from line to line, of multiply-adds: lines of a thread's neighbours begin at other banks. */
static int
float_pitch(int width)
{
	return 4 * ((width + 3) / 4 | 1);
}

static int
side_bytes(const Att *a, int width, int lines)
{
	return a->mma ? lines * power_of_two(width / 8) * 16 : lines * float_pitch(width) * 4;
}

/* Of the kernel that needs most: forward q and a tile of k and v; backward two operands on both sides. Multiply-adds: and the weights. */
static int
att_shared(const Att *a)
{
	int rows = side_bytes(a, a->d, a->rows) + (a->back ? side_bytes(a, a->e, a->rows) : 0);
	int columns = side_bytes(a, a->d, a->columns) + side_bytes(a, a->e, a->columns);

	return rows + (a->mma ? STAGES * columns : columns + (a->back ? 2 : 1) * a->rows * float_pitch(a->columns) * 4);
}

/* False: there is no room. */
static bool
att_tiles(Att *a, const char *arch)
{
	int64_t longest = a->t > a->s ? a->t : a->s;
	int wide = a->d > a->e ? a->d : a->e;

	a->mma = (a->dt == DT_f16 || (a->dt == DT_bf16 && arch && strcmp(arch, "sm_75"))) && a->d % 16 == 0 && a->e % 16 == 0 && wide <= MMA_WIDTH;
	if (a->mma) {
		a->rows = longest <= 16 ? 16 : longest <= 32 ? 32 : 64;
		/* what a thread's registers hold */
		a->columns = wide <= (a->back || a->p > 0 ? 32 : 64) ? 64 : a->back && wide > 64 ? 16 : 32;
		a->columns = a->columns > a->rows ? a->rows : a->columns;
		a->threads = a->rows * 2;
		return true;
	}
	if (wide > COMPOSITE_SHARED / 64)
		return false;
	a->rows = longest <= 16 ? 16 : longest <= 32 ? 32 : 64;
	a->threads = BLOCK;
	for (a->columns = a->rows; att_shared(a) > COMPOSITE_SHARED; a->columns = a->rows)
		if ((a->rows /= 2) < 16)
			return false;
	return true;
}

const char *
cu_attention_refuses(const Graph *g, const Op *op)
{
	Att a = att_of(g, op);

	if (a.dt == DT_f64)
		return "the operands are f64: the kernel is for f32, f16 and bf16";
	for (int k = 0; k < 3; k++) {
		const Type *x = val_type(g, op->in[a.first + k]);

		if (x->rank != a.q->rank)
			return "q, k and v differ in their leading axes";
		for (int i = 0; i < a.lead; i++)
			if (!axis_same(x->axis[i], a.q->axis[i]))
				return "q, k and v differ in their leading axes";
		for (int i = a.lead; i < x->rank; i++)
			if (x->axis[i].mul)
				return "queries, keys or widths follow the batch";
	}
	if (!att_tiles(&a, NULL))
		return arena_printf(g->arena, "widths of %d and %d: tiles of them do not fit a block's shared memory", a.d, a.e);
	return a.p >= 1 ? "a dropout that drops everything" : NULL;
}

const char *
cu_attention_select(const Graph *g, const Op *op, const char *arch, int64_t *workspace)
{
	Att a = att_of(g, op);

	att_tiles(&a, arch);
	*workspace = a.back ? a.entries * a.t * 4 : 0; /* the rows' sums of g y */
	return arena_printf(g->arena, "attention{%s,rows=%d,columns=%d}", a.mma ? "mma" : "ffma", a.rows, a.columns);
}

/* ---------------------------------------------------------------- text */
static const char *
c_name(DType t)
{
	return t == DT_f32 ? "float" : "unsigned short";
}

/* A float of what lies in memory. */
static const char *
value(Cuda *c, DType t, const char *text)
{
	return t == DT_f32 ? text : arena_printf(c->a, "%s_value(%s)", dtype_info[t].name, text);
}

static const char *
lit(Cuda *c, double x)
{
	return cu_cell_number(c, DT_f32, x).v;
}

/* A loop whose counter is a number known to the compiler. */
static Scope
unrolled(Cuda *c, char i, int n)
{
	cu_line(c, "#pragma unroll");
	return cu_scope_open(c, "for (int %c = 0; %c < %d; %c++)", i, i, n, i);
}

/* What a thread holds of a tile: so many rows, and of each so many columns. */
static int own_rows(const Att *a) { return a->mma ? 2 : a->rows / 16; }
static int own_columns(const Att *a) { return a->mma ? a->columns / 4 : a->columns / 16; }
static int own_width(const Att *a, int width) { return a->mma ? width / 4 : (width + 15) / 16; }

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
static const char *
element(const Att *a, const char *array, char j)
{
	return arena_printf(a->c->a, a->mma ? "%s[%c / 2][i * 2 + %c %% 2]" : "%s[i][%c]", array, j, j);
}

static void
array_open(const Att *a, const char *name, int columns)
{
	if (a->mma)
		cu_line(a->c, "float %s[%d][4] = {};", name, columns / 8);
	else
		cu_line(a->c, "float %s[%d][%d] = {};", name, a->rows / 16, (columns + 15) / 16);
}

/* Over the threads that share a row. */
static void
row_join(const Att *a, const char *name, const char *join)
{
	for (int lanes = a->mma ? 2 : 8; lanes; lanes /= 2)
		cu_line(a->c, join, name, name, name, lanes);
}

/* ---------------------------------------------------------------- operands */
static Side
side_of(const Att *a, int k, int lines)
{
	int width = (int)val_type(a->g, a->op->in[k])->axis[a->lead + 1].n;
	static const char names[2][4] = {"qkv", "gqkv"};

	return (Side){a->op->in[k], names[a->back][k], width, a->mma ? power_of_two(width / 8) : float_pitch(width), side_bytes(a, width, lines)};
}

static void
sides_choose(Att *a)
{
	int q = a->first, k = q + 1, v = q + 2;

	a->nrow = a->back ? 2 : 1;
	a->row[0] = side_of(a, a->part == KEYS ? k : q, a->rows);
	a->row[1] = side_of(a, a->part == KEYS ? v : 0, a->rows);
	a->column[0] = side_of(a, a->part == KEYS ? q : k, a->columns);
	a->column[1] = side_of(a, a->part == KEYS ? 0 : v, a->columns);
	a->all_rows = a->part == KEYS ? a->s : a->t;
	a->all_columns = a->part == KEYS ? a->t : a->s;
	a->stages = a->mma ? STAGES : 1;
	int tiles = a->row[0].bytes + (a->nrow > 1 ? a->row[1].bytes : 0) + a->stages * (a->column[0].bytes + a->column[1].bytes);

	a->weights = tiles;
	a->c->threads = a->threads;
	a->c->shared = tiles + (a->mma ? 0 : (a->part == KEYS ? 2 : 1) * a->rows * float_pitch(a->columns) * 4);
}

/* Bytes from the start of shared memory to an operand's tile; `slot`: of a column operand. */
static const char *
place(const Att *a, const Side *s, const char *slot)
{
	int rows = a->row[0].bytes + (a->nrow > 1 ? a->row[1].bytes : 0), both = a->column[0].bytes + a->column[1].bytes;

	if (s == &a->row[0] || s == &a->row[1])
		return arena_printf(a->c->a, "%d", s == &a->row[1] ? a->row[0].bytes : 0);
	rows += s == &a->column[1] ? a->column[0].bytes : 0;
	return a->stages > 1 ? arena_printf(a->c->a, "%d + %s * %d", rows, slot, both) : arena_printf(a->c->a, "%d", rows);
}

/* Lines from `from` on of an operand, `limit` in all; those behind are zeros. */
static void
load_lines(const Att *a, const Side *s, const char *from, int lines, int64_t limit, const char *slot)
{
	Cuda *c = a->c;
	const char *to = place(a, s, slot), *valid = limit % lines ? arena_printf(c->a, "%s + line < %lld", from, (long long)limit) : "true";
	int step = a->mma ? 8 : a->dt == DT_f32 && s->width % 4 == 0 ? 4 : 1, units = a->mma ? s->width / 8 : round_to(s->width, 4) / step;

	cu_line(c, a->mma ? "#pragma unroll" : "#pragma unroll 4");
	Scope l = cu_scope_open(c, "for (int u = tid; u < %d; u += %d)", lines * units, a->threads);

	cu_line(c, "const int line = u / %d, unit = u %% %d;", units, units);
	cu_line(c, "const %s *p = %c + (%s + line) * %d + unit * %d;", c_name(a->dt), s->name, from, s->width, step);
	if (a->mma) {
		cu_line(c, "copy16(shared + %s + swizzled(line, unit, %d), p, %c, %s);", to, s->pitch, s->name, valid);
	} else {
		cu_line(c, "float *to = (float *)((char *)memory + %s) + line * %d + unit * %d;", to, s->pitch, step);
		if (step == 4) {
			cu_line(c, "float x[4] = {};");
			cu_line(c, "if (%s) read4(x, p);", valid);
			cu_line(c, "write4(to, x);");
		} else {
			cu_line(c, "*to = %s%s ? %s : 0.0f;", valid, s->width % 4 ? arena_printf(c->a, " && unit < %d", s->width) : "", value(c, a->dt, "*p"));
		}
	}
	cu_scope_close(c, l);
}

static void
load_columns(const Att *a, const char *from, const char *slot)
{
	for (int k = 0; k < 2; k++)
		load_lines(a, &a->column[k], from, a->columns, a->all_columns, slot);
}

/* ---------------------------------------------------------------- products */
/* array = rows' operand times the columns' turned. */
static void
multiply(const Att *a, int k, const char *array)
{
	Cuda *c = a->c;
	const Side *r = &a->row[k], *o = &a->column[k];
	const char *from = place(a, r, NULL), *with = place(a, o, "slot");

	array_open(a, array, a->columns);
	if (a->mma) {
		cu_line(c, r->width > 64 ? "#pragma unroll 2" : "#pragma unroll"); /* addresses of all steps take registers */
		Scope s = cu_scope_open(c, "for (int k = 0; k < %d; k++)", r->width / 16);

		cu_line(c, "unsigned fa[4], fb[4];");
		cu_line(c, "ldsm(fa, shared + %s + swizzled(warp * 16 + lane %% 16, k * 2 + lane / 16, %d));", from, r->pitch);
		Scope l = unrolled(c, 'j', a->columns / 16);

		cu_line(c, "ldsm(fb, shared + %s + swizzled(j * 16 + lane / 16 * 8 + lane %% 8, k * 2 + lane / 8 %% 2, %d));", with, o->pitch);
		cu_line(c, "mma_%s(%s[j * 2], fa, fb);", dtype_info[a->dt].name, array);
		cu_line(c, "mma_%s(%s[j * 2 + 1], fa, fb + 2);", dtype_info[a->dt].name, array);
		cu_scope_close(c, l);
		cu_scope_close(c, s);
		return;
	}
	int n = a->rows / 16, m = a->columns / 16;

	cu_line(c, "#pragma unroll 2");
	Scope s = cu_scope_open(c, "for (int k = 0; k < %d; k += 4)", round_to(r->width, 4));

	cu_line(c, "float fa[%d][4], fb[%d][4];", n, m);
	cu_line(c, "const float *ra = (const float *)((const char *)memory + %s) + tid / 16 * %d + k;", from, r->pitch);
	cu_line(c, "const float *rb = (const float *)((const char *)memory + %s) + tid %% 16 * %d + k;", with, o->pitch);
	cu_line(c, "#pragma unroll");
	cu_line(c, "for (int i = 0; i < %d; i++) read4(fa[i], ra + i * %d);", n, 16 * r->pitch);
	cu_line(c, "#pragma unroll");
	cu_line(c, "for (int j = 0; j < %d; j++) read4(fb[j], rb + j * %d);", m, 16 * o->pitch);
	Scope l = unrolled(c, 'x', 4), i = unrolled(c, 'i', n);

	cu_line(c, "#pragma unroll");
	cu_line(c, "for (int j = 0; j < %d; j++) %s[i][j] = fmaf(fa[i][x], fb[j][x], %s[i][j]);", m, array, array);
	cu_scope_close(c, i);
	cu_scope_close(c, l);
	cu_scope_close(c, s);
}

/* sums += tile times the columns' operand; the tile's elements are a thread's own, `which` of the tiles in shared memory. */
static void
accumulate(const Att *a, const char *tile, int k, const char *sums, int which)
{
	Cuda *c = a->c;
	const Side *o = &a->column[k];
	const char *with = place(a, o, "slot");
	int pitch = float_pitch(a->columns);

	if (a->mma) {
		const char *type = dtype_info[a->dt].name;
		Scope s = unrolled(c, 'k', a->columns / 16);

		cu_line(c, "unsigned fa[4], fb[4];");
		cu_line(c, "#pragma unroll");
		cu_line(c, "for (int x = 0; x < 4; x++) fa[x] = pair_%s(%s[k * 2 + x / 2][x %% 2 * 2], %s[k * 2 + x / 2][x %% 2 * 2 + 1]);", type, tile, tile);
		Scope l = unrolled(c, 'j', o->width / 16);

		cu_line(c, "ldsm_turned(fb, shared + %s + swizzled(k * 16 + lane / 8 %% 2 * 8 + lane %% 8, j * 2 + lane / 16, %d));", with, o->pitch);
		cu_line(c, "mma_%s(%s[j * 2], fa, fb);", type, sums);
		cu_line(c, "mma_%s(%s[j * 2 + 1], fa, fb + 2);", type, sums);
		cu_scope_close(c, l);
		cu_scope_close(c, s);
		return;
	}
	int n = a->rows / 16, m = own_width(a, o->width);

	cu_line(c, "#pragma unroll 2");
	Scope s = cu_scope_open(c, "for (int k = 0; k < %d; k += 4)", a->columns);

	cu_line(c, "float fa[%d][4];", n);
	cu_line(c, "const float *ra = (const float *)((const char *)memory + %d) + tid / 16 * %d + k;", a->weights + which * a->rows * pitch * 4, pitch);
	cu_line(c, "const float *rb = (const float *)((const char *)memory + %s) + k * %d + tid %% 16;", with, o->pitch);
	cu_line(c, "#pragma unroll");
	cu_line(c, "for (int i = 0; i < %d; i++) read4(fa[i], ra + i * %d);", n, 16 * pitch);
	Scope l = unrolled(c, 'x', 4), j = unrolled(c, 'j', m);

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

/* Multiply-adds: a thread's elements go to where the threads of the same rows read them. */
static void
share_tile(const Att *a, const char *tile, int which)
{
	Cuda *c = a->c;
	int pitch = float_pitch(a->columns);

	if (a->mma)
		return;
	Scope s = unrolled(c, 'i', a->rows / 16);

	cu_line(c, "#pragma unroll");
	cu_line(c, "for (int j = 0; j < %d; j++) ((float *)((char *)memory + %d))[(tid / 16 + i * 16) * %d + tid %% 16 + j * 16] = %s[i][j];", a->columns / 16,
		a->weights + which * a->rows * pitch * 4, pitch, tile);
	cu_scope_close(c, s);
}

/* ---------------------------------------------------------------- masks */
/* The mask's element at query and key. */
static Cell
mask_load(const Att *a)
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

static bool
mask_follows(const Att *a, int back)
{
	return a->mask->rank >= back && a->mask->axis[a->mask->rank - back].n != 1;
}

/* A condition that query and key exist, of those sides whose tiles may end behind them. */
static const char *
exist(const Att *a, bool rows, bool columns)
{
	bool turned = a->part == KEYS, cut_rows = rows && a->all_rows % a->rows, cut_columns = columns && a->all_columns % a->columns;
	const char *r = cut_rows ? arena_printf(a->c->a, "%s < %lld", turned ? "key" : "query", (long long)a->all_rows) : NULL;
	const char *o = cut_columns ? arena_printf(a->c->a, "%s < %lld", turned ? "query" : "key", (long long)a->all_columns) : NULL;

	return r && o ? arena_printf(a->c->a, "%s && %s", r, o) : r ? r : o;
}

/* `x`: score i, j in base 2, masked. query and key are numbers. */
static void
score(const Att *a, const char *element)
{
	Cuda *c = a->c;
	const char *inside = exist(a, true, true), *seen = exist(a, false, true);

	cu_line(c, "float x = %s * %s;", element, lit(c, a->scale * LOG2E));
	if (a->mask) {
		Scope s = inside ? cu_scope_open(c, "if (%s)", inside) : (Scope){0};
		Cell m = mask_load(a);

		cu_line(c, m.dt == DT_bool ? "x = %s ? x : -INF_f32;" : "x = fmaf(%s, %s, x);", m.v, lit(c, LOG2E));
		if (inside)
			cu_scope_close(c, s);
	}
	if (a->causal)
		seen = seen ? arena_printf(c->a, "key <= query && %s", seen) : "key <= query";
	if (seen)
		cu_line(c, "x = %s ? x : -INF_f32;", seen);
}

static void
numbers(const Att *a, bool row, bool column)
{
	bool turned = a->part == KEYS;

	if (row)
		cu_line(a->c, "const %s %s = %s;", a->c->it, turned ? "key" : "query", row_number(a));
	if (column)
		cu_line(a->c, "const %s %s = %s;", a->c->it, turned ? "query" : "key", column_number(a));
}

/* ---------------------------------------------------------------- dropout */
/* A block of random numbers is four keys' of a query. Do lanes share its work? */
static bool
by_four(const Att *a)
{
	return a->nseed >= 0 && a->mma && a->s % 4 == 0;
}

static const char *
random_arguments(const Att *a)
{
	return arena_printf(a->c->a, "(unsigned)%s, (unsigned)%s, 0x%xu", a->seed.v, a->step.v, (unsigned)cu_stream_number(attr_str(a->op, A_stream)));
}

static unsigned
bound(const Att *a)
{
	return (unsigned)ceil(a->p * 0x1p24);
}

/* `kept`: bits of the tile's weights, a word for eight columns. Where the four keys are columns, two lanes have them in two rows, and each makes the block of one row; where they are
 * rows, four lanes have them in two rows and two columns, and each makes one of these four blocks. */
static void
kept_bits(const Att *a)
{
	Cuda *c = a->c;
	bool turned = a->part == KEYS;

	if (!by_four(a))
		return;
	cu_line(c, "unsigned kept[%d];", a->columns / 8);
	if (turned)
		cu_line(c, "const int mine = lane / 4 %% 4;");
	Scope s = unrolled(c, 'j', a->columns / 8);

	cu_line(c, "const %s query = %s, key = %s;", c->it, turned ? "at + j * 8 + lane % 4 * 2 + mine % 2" : "first + warp * 16 + lane / 4 + lane % 2 * 8",
		turned ? "first + warp * 16 + lane / 16 * 4 + mine / 2 * 8" : "at + j * 8 + lane % 4 / 2 * 4");
	cu_line(c, "unsigned bits = philox_kept(((unsigned long long)entry * %lldu + query) * %lldu + key / 4, %s, %uu) << %s * 4;", (long long)a->t, (long long)a->s / 4, random_arguments(a), bound(a),
		turned ? "mine" : "lane % 2");
	for (int lanes = turned ? 4 : 1; lanes <= (turned ? 8 : 1); lanes *= 2)
		cu_line(c, "bits |= __shfl_xor_sync(0xffffffffu, bits, %d);", lanes);
	cu_line(c, "kept[j] = bits;");
	cu_scope_close(c, s);
}

/* `keep`: is the weight at i, j, of query and key, kept? */
static void
keep(const Att *a)
{
	if (by_four(a))
		cu_line(a->c, "const bool keep = kept[j / 2] >> (%s) & 1;", a->part == KEYS ? "(i * 2 + j % 2) * 4 + lane / 4 % 4" : "i * 4 + lane % 2 * 2 + j % 2");
	else if (a->nseed >= 0)
		cu_line(a->c, "const bool keep = philox(((unsigned long long)entry * %lldu + query) * %lldu + key, %s) >> 8 >= %uu;", (long long)a->t, (long long)a->s, random_arguments(a), bound(a));
}

static const char *
dropped(const Att *a, const char *x)
{
	return a->nseed >= 0 ? arena_printf(a->c->a, "(keep ? %s * %s : 0.0f)", x, lit(a->c, 1 / (1 - a->p))) : x;
}

/* ---------------------------------------------------------------- results */
/* Where result k goes: to memory, and what casts of the group make of it. */
static int
outs_of(const Att *a, int k, Out *out)
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

static bool
wanted(const Att *a, int k)
{
	Out out[8];

	return outs_of(a, k, out) > 0;
}

static void
stored(const Att *a, const Out *o)
{
	a->c->ready[o->v.id] = true;
	cu_stores_at(a->c, o->offset);
}

static void
put_one(const Att *a, const Out *o, const char *at, const char *x)
{
	DType t = (DType)o->type->dtype;
	const char *p = cu_pointer(a->c, t, o->offset);

	if (t == DT_f32)
		cu_line(a->c, "%s[%s] = %s;", p, at, x);
	else
		cu_line(a->c, "%s[%s] = %s_bits(%s);", p, at, dtype_info[t].name, x);
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
static void
put_row(const Att *a, int k, const char *sums, int width, const char *how)
{
	Cuda *c = a->c;
	Out out[8];
	int n = outs_of(a, k, out);

	if (!n)
		return;
	Scope s = unrolled(c, 'j', a->mma ? width / 8 : own_width(a, width));

	if (a->mma) {
		cu_line(c, "const float x = %s[j][i * 2] %s, y = %s[j][i * 2 + 1] %s;", sums, how, sums, how);
		cu_line(c, "const %s to = (entry * %lld + number) * %d + j * 8 + lane %% 4 * 2;", c->it, (long long)a->all_rows, width);
		for (int i = 0; i < n; i++)
			put_two(a, &out[i], "to", "x", "y");
	} else {
		Scope in = width % 16 ? cu_scope_open(c, "if (tid %% 16 + j * 16 < %d)", width) : (Scope){0};

		cu_line(c, "const float x = %s[i][j] %s;", sums, how);
		cu_line(c, "const %s to = (entry * %lld + number) * %d + tid %% 16 + j * 16;", c->it, (long long)a->all_rows, width);
		for (int i = 0; i < n; i++)
			put_one(a, &out[i], "to", "x");
		if (width % 16)
			cu_scope_close(c, in);
	}
	cu_scope_close(c, s);
}

/* Opens the loop over a thread's rows that exist. */
static Scope
rows_open(const Att *a)
{
	Scope s = unrolled(a->c, 'i', own_rows(a));

	cu_line(a->c, "const %s number = %s;", a->c->it, row_number(a));
	if (a->all_rows % a->rows)
		cu_line(a->c, "if (number >= %lld) continue;", (long long)a->all_rows);
	return s;
}

/* ---------------------------------------------------------------- forward */
/* Scores of a tile become weights; maximum, total and what was summed follow. A row that is hidden so far has exponents about 0, which keeps its weights 0 and not NaN. */
static void
softmax(const Att *a)
{
	Cuda *c = a->c;
	const char *w = element(a, "w", 'j'), *sum = element(a, "sum", 'j');

	kept_bits(a);
	Scope s = unrolled(c, 'i', own_rows(a)), l;

	numbers(a, true, false);
	cu_line(c, "float most = -INF_f32, all = 0.0f;");
	l = unrolled(c, 'j', own_columns(a));
	numbers(a, false, true);
	score(a, w);
	cu_line(c, "most = fmaxf(most, x);");
	cu_line(c, "%s = x;", w);
	cu_scope_close(c, l);
	row_join(a, "most", "%s = fmaxf(%s, __shfl_xor_sync(0xffffffffu, %s, %d));");
	cu_line(c, "most = fmaxf(most, top[i]);");
	cu_line(c, "const float about = most == -INF_f32 ? 0.0f : most, factor = exp2f(top[i] - about);");
	l = unrolled(c, 'j', own_columns(a));
	if (a->nseed >= 0 && !by_four(a))
		numbers(a, false, true);
	cu_line(c, "const float p = exp2f(%s - about);", w);
	keep(a);
	cu_line(c, "all += p;");
	cu_line(c, "%s = %s;", w, dropped(a, "p"));
	cu_scope_close(c, l);
	row_join(a, "all", "%s = %s + __shfl_xor_sync(0xffffffffu, %s, %d);");
	cu_line(c, "total[i] = fmaf(total[i], factor, all);");
	cu_line(c, "top[i] = most;");
	cu_line(c, "#pragma unroll");
	cu_line(c, "for (int j = 0; j < %d; j++) %s *= factor;", own_width(a, a->e), sum);
	cu_scope_close(c, s);
}

/* y = sums / total, log-sum = maximum + log(total); an infinite maximum is the log-sum, whatever the total. */
static void
forward_finish(const Att *a)
{
	Cuda *c = a->c;
	Out out[8];
	int n = outs_of(a, 1, out);
	Scope s = rows_open(a);

	put_row(a, 0, "sum", a->e, "/ total[i]");
	if (n) {
		Scope in = cu_scope_open(c, a->mma ? "if (lane %% 4 == 0)" : "if (tid %% 16 == 0)");

		cu_line(c, "const float x = isinf(top[i]) ? top[i] : (top[i] + log2f(total[i])) * %s;", lit(c, 1 / LOG2E));
		cu_line(c, "const %s to = entry * %lld + number;", c->it, (long long)a->t);
		for (int k = 0; k < n; k++)
			put_one(a, &out[k], "to", "x");
		cu_scope_close(c, in);
	}
	cu_scope_close(c, s);
}

/* ---------------------------------------------------------------- backward */
/* `lse`, `rows`: of the query, 0 where it does not exist. */
static void
query_load(const Att *a, const char *lse, const char *rows)
{
	Cuda *c = a->c;
	bool cut = a->t % (a->part == KEYS ? a->columns : a->rows) != 0;
	DType t = (DType)val_type(a->g, a->op->in[5])->dtype;
	const char *at = arena_printf(c->a, "%s[entry * %lld + query]", cu_pointer(c, t, val_info(a->g, a->op->in[5])->offset), (long long)a->t);
	const char *if_there = cut ? arena_printf(c->a, "query < %lld", (long long)a->t) : "true";

	cu_line(c, "%s = %s ? %s * %s : 0.0f;", lse, if_there, value(c, t, at), lit(c, LOG2E));
	cu_line(c, "%s = %s ? %s[entry * %lld + query] : 0.0f;", rows, if_there, cu_pointer(c, DT_f32, c->g->group.at[c->group].workspace_offset), (long long)a->t);
}

/* A pair's score and g v^T become its weight (after dropout) and the score's gradient, without its factor. Where a pair is hidden the log-sum may be infinite too. */
static void
pair_back(const Att *a, const char *lse, const char *rows)
{
	Cuda *c = a->c;
	const char *w = element(a, "w", 'j'), *d = element(a, "d", 'j'), *exists = exist(a, false, true);

	score(a, w);
	if (exists)
		cu_line(c, "const float p = %s ? exp2f(x - %s) : 0.0f;", exists, lse);
	else
		cu_line(c, "const float p = exp2f(x - %s);", lse);
	keep(a);
	if (a->part == KEYS)
		cu_line(c, "%s = %s;", w, dropped(a, "p"));
	cu_line(c, "%s = p * (%s - %s);", d, dropped(a, d), rows);
}

static void
weights_back(const Att *a)
{
	Cuda *c = a->c;
	bool turned = a->part == KEYS;

	kept_bits(a);
	Scope s = turned ? unrolled(c, 'j', own_columns(a)) : unrolled(c, 'i', own_rows(a)), l;

	numbers(a, !turned, turned);
	if (turned) {
		cu_line(c, "float lse, rows;");
		query_load(a, "lse", "rows");
	}
	l = turned ? unrolled(c, 'i', own_rows(a)) : unrolled(c, 'j', own_columns(a));
	numbers(a, turned, !turned);
	pair_back(a, turned ? "lse" : "lse[i]", turned ? "rows" : "rows[i]");
	cu_scope_close(c, l);
	cu_scope_close(c, s);
}

static void
backward_finish(const Att *a)
{
	const char *scale = arena_printf(a->c->a, "* %s", lit(a->c, a->scale));
	Scope s = rows_open(a);

	put_row(a, a->part == KEYS ? 1 : 0, "sum", a->d, scale);
	if (a->part == KEYS)
		put_row(a, 2, "more", a->e, "");
	cu_scope_close(a->c, s);
}

/* ---------------------------------------------------------------- the loop over columns */
static void
compute(const Att *a)
{
	Cuda *c = a->c;

	multiply(a, 0, "w");
	if (a->back)
		multiply(a, 1, "d");
	if (a->back)
		weights_back(a);
	else
		softmax(a);
	share_tile(a, a->back ? "d" : "w", 0);
	if (a->part == KEYS)
		share_tile(a, "w", 1);
	if (!a->mma)
		cu_line(c, "__syncwarp();");
	accumulate(a, a->back ? "d" : "w", a->back ? 0 : 1, "sum", 0);
	if (a->part == KEYS)
		accumulate(a, "w", 1, "more", 1);
}

/* `any`: does the mask show anything of the tiles of queries from `query` on and of keys from `key` on? */
static void
any_seen(const Att *a, const char *query, int queries, const char *key, int keys)
{
	Cuda *c = a->c;
	bool by_query = mask_follows(a, 2), by_key = mask_follows(a, 1);
	int n = by_query ? queries : 1, m = by_key ? keys : 1;
	Scope l = cu_scope_open(c, "for (int u = tid; u < %d; u += %d)", n * m, a->threads);

	cu_line(c, "const %s query = %s + u / %d, key = %s + u %% %d;", c->it, query, m, key, m);
	Scope s = cu_scope_open(c, "if (query < %lld && key < %lld)", (long long)a->t, (long long)a->s);
	Cell x = mask_load(a);

	cu_line(c, "any |= %s;", x.v);
	cu_scope_close(c, s);
	cu_scope_close(c, l);
	if (a->back) {
		DType t = (DType)val_type(a->g, a->op->in[5])->dtype;
		const char *lse = cu_pointer(c, t, val_info(a->g, a->op->in[5])->offset), *at = arena_printf(c->a, "%s[entry * %lld + %s + u]", lse, (long long)a->t, query);

		cu_line(c, "for (int u = tid; u < %d && %s + u < %lld; u += %d) any |= %s == -INF_f32;", queries, query, (long long)a->t, a->threads, value(c, t, at));
	}
}

/* Moves `at` to a tile of columns in which the mask shows anything. A query that sees nothing at all has NaN for gradients, which a tile skipped would hide. */
static void
skip_hidden(const Att *a, const char *at)
{
	Cuda *c = a->c;

	if (!a->mask || a->mask->dtype != DT_bool)
		return;
	Scope s = cu_scope_open(c, "while (%s < end)", at);

	cu_line(c, "bool any = false;");
	if (a->part == KEYS)
		any_seen(a, at, a->columns, "first", a->rows);
	else
		any_seen(a, "first", a->rows, at, a->columns);
	cu_line(c, "if (__syncthreads_or(any)) break;");
	cu_line(c, "%s += %d;", at, a->columns);
	cu_scope_close(c, s);
}

static void
columns_loop(const Att *a)
{
	Cuda *c = a->c;
	const char *it = c->it, *start = "0", *end = arena_printf(c->a, "%lld", (long long)a->all_columns);

	if (a->causal && a->part == KEYS) /* earlier queries see none of these keys */
		start = a->rows == a->columns ? "first" : arena_printf(c->a, "first / %d * %d", a->columns, a->columns);
	else if (a->causal)
		end = arena_printf(c->a, "first + %d < %s ? first + %d : %s", a->rows, end, a->rows, end);
	cu_line(c, "const %s end = %s;", it, end);
	cu_line(c, "%s at = %s;", it, start);
	skip_hidden(a, "at");
	if (a->stages > 1) {
		Scope in = cu_scope_open(c, "if (at < end)");

		load_columns(a, "at", "0");
		cu_scope_close(c, in);
		cu_line(c, "copies_end();");
	}
	Scope s = cu_scope_open(c, "for (int slot = 0; at < end; slot ^= 1)");

	cu_line(c, "%s next = at + %d;", it, a->columns);
	skip_hidden(a, "next");
	cu_line(c, "__syncthreads();");
	if (a->stages > 1) {
		Scope in = cu_scope_open(c, "if (next < end)");

		load_columns(a, "next", "(slot ^ 1)");
		cu_scope_close(c, in);
		cu_line(c, "copies_end();");
		cu_line(c, "COPIES_WAIT(1);");
	} else {
		load_columns(a, "at", "0");
	}
	cu_line(c, "__syncthreads();");
	compute(a);
	cu_line(c, "at = next;");
	cu_scope_close(c, s);
	if (a->stages > 1)
		cu_line(c, "COPIES_WAIT(0);");
	cu_line(c, "__syncthreads();");
}

/* ---------------------------------------------------------------- kernels */
static void
entry_open(Att *a)
{
	Cuda *c = a->c;
	Type lead = type_of(a->dt, a->lead, a->q->axis);
	const Side *side[4] = {&a->row[0], &a->row[1], &a->column[0], &a->column[1]};

	for (int i = 0; i < 4; i++)
		if (i != 1 || a->nrow > 1)
			cu_line(c, "const %s *%c = %s + entry * %lld;", c_name(a->dt), side[i]->name, cu_pointer(c, a->dt, val_info(a->g, side[i]->v)->offset),
				(long long)(i < 2 ? a->all_rows : a->all_columns) * side[i]->width);
	if (a->mask)
		cu_take_apart(c, &lead, (1u << a->lead) - 1, "entry", a->lead_ix);
	if (a->nseed >= 0) {
		a->seed = cu_value_at(c, a->op->in[a->nseed], NULL);
		a->step = cu_value_at(c, a->op->in[a->nseed + 1], NULL);
	}
}

static void
row_states(const Att *a)
{
	Cuda *c = a->c;
	int n = own_rows(a);

	array_open(a, "sum", a->part == FORWARD ? a->e : a->d);
	if (a->part == FORWARD) {
		cu_line(c, "float top[%d], total[%d] = {};", n, n);
		cu_line(c, "#pragma unroll");
		cu_line(c, "for (int i = 0; i < %d; i++) top[i] = -INF_f32;", n);
	} else if (a->part == KEYS) {
		array_open(a, "more", a->e);
	} else {
		cu_line(c, "float lse[%d], rows[%d];", n, n);
		Scope s = unrolled(c, 'i', n);

		numbers(a, true, false);
		query_load(a, "lse[i]", "rows[i]");
		cu_scope_close(c, s);
	}
}

static void
tiles_kernel(Att *a, Part part)
{
	static const char *const what[] = {"tiles of queries over tiles of keys", "gradient of q, tiles of queries over tiles of keys", "gradients of k and v, tiles of keys over tiles of queries"};
	Cuda *c = a->c;

	a->part = part;
	cu_kernel_open(c, "");
	sides_choose(a);
	int64_t tiles = (a->all_rows + a->rows - 1) / a->rows;
	Type lead = type_of(a->dt, a->lead, a->q->axis);
	Ix entries = cu_product(c, &lead, (1u << a->lead) - 1);

	cu_line(c, "extern __shared__ uint4 memory[];");
	cu_line(c, "const int tid = threadIdx.x;");
	if (a->mma)
		cu_line(c, "const int warp = tid / 32, lane = tid %% 32;");
	if (a->mma)
		cu_line(c, "const unsigned shared = shared_address(memory);");
	Scope s = cu_scope_open(c, "for (%s task = blockIdx.x; task < %s * %lld; task += gridDim.x)", c->it, entries, (long long)tiles);

	/* of the causal mask the tiles with most to do come first */
	const char *number = arena_printf(c->a, "task %% %lld", (long long)tiles);

	if (a->causal && part != KEYS)
		number = arena_printf(c->a, "(%lld - %s)", (long long)tiles - 1, number);
	cu_line(c, "const %s entry = task / %lld, first = %s * %d;", c->it, (long long)tiles, number, a->rows);
	entry_open(a);
	for (int k = 0; k < a->nrow; k++)
		load_lines(a, &a->row[k], "first", a->rows, a->all_rows, NULL);
	row_states(a);
	columns_loop(a);
	if (part == FORWARD)
		forward_finish(a);
	else
		backward_finish(a);
	cu_scope_close(c, s);
	cu_kernel_close(c, what[part], a->entries * tiles);
}

/* rows[i] = g[i] . y[i]: a warp to a query. */
static void
sums_kernel(const Att *a)
{
	Cuda *c = a->c;
	Type rows = type_of(a->dt, a->lead + 1, a->q->axis);
	const char *side[2];

	cu_kernel_open(c, "");
	for (int k = 0; k < 2; k++)
		side[k] = value(c, a->dt, arena_printf(c->a, "%s[row * %d + x]", cu_pointer(c, a->dt, val_info(a->g, a->op->in[k * 4])->offset), a->e));
	Ix count = cu_product(c, &rows, (1u << rows.rank) - 1);
	Scope s = cu_scope_open(c, "for (%s row = blockIdx.x * %d + threadIdx.x / 32; row < %s; row += gridDim.x * %d)", c->it, BLOCK / 32, count, BLOCK / 32);

	cu_line(c, "float sum = 0.0f;");
	cu_line(c, "for (int x = threadIdx.x %% 32; x < %d; x += 32) sum = fmaf(%s, %s, sum);", a->e, side[0], side[1]);
	cu_line(c, "#pragma unroll");
	cu_line(c, "for (int h = 16; h > 0; h /= 2) sum = sum + __shfl_xor_sync(0xffffffffu, sum, h);");
	cu_line(c, "if (threadIdx.x %% 32 == 0) %s[row] = sum;", cu_pointer(c, DT_f32, c->g->group.at[c->group].workspace_offset));
	cu_scope_close(c, s);
	cu_kernel_close(c, "sums of g y, a query to a warp", (a->entries * a->t * 32 + BLOCK - 1) / BLOCK);
}

void
cu_attention_emit(Cuda *c, const Op *op)
{
	Att a = att_of(c->g, op);
	char how[8];

	a.c = c;
	if (sscanf(c->g->group.at[c->group].kernel, "attention{%7[a-z],rows=%d,columns=%d}", how, &a.rows, &a.columns) != 3)
		bug("target cuda: '%s' is no kernel of attention", c->g->group.at[c->group].kernel);
	a.mma = !strcmp(how, "mma");
	a.threads = a.mma ? a.rows * 2 : BLOCK;
	if (!a.back) {
		tiles_kernel(&a, FORWARD);
		return;
	}
	sums_kernel(&a);
	if (wanted(&a, 0))
		tiles_kernel(&a, QUERIES);
	if (wanted(&a, 1) || wanted(&a, 2))
		tiles_kernel(&a, KEYS);
}
