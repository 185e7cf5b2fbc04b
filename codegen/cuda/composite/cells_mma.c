/* cells_mma.c: recurrences whose W_hh is of 16 bits and stays in registers, multiplied by matrix instructions: the
 * teams of blocks of cells_held.c, with tiles of mma in place of threads' own sums.
 *
 * In: a group of one of the ops of cells.c in f32 with w_hh alone of f16 or bf16.   Out: one kernel. `blocks` blocks
 * make a team that owns `rows` examples; a block has some units of all of them, and of W_hh what these units' sums
 * take, as rows: forward [gate][unit], backward units. Rows in tiles of 16 go to warps, which share the sum's length
 * among them too; each keeps its part of W_hh in registers as the instruction wants it. What is multiplied (h;
 * backward the gates' gradients) lies in shared memory, rounded, a row for each example; warps' sums are added in
 * their order through shared memory. Then a thread has a unit of an example (or some): gates, states, results in f32,
 * and what other blocks need, rounded, with its neighbour's in one word that has the number of the exchange (as in
 * cells_held.c, where the exchange is told). Every sum has one order, which the parameters give. */
#include "cells.h"
#include <math.h>

/* WEIGHTS, SUMS: registers of a thread for each, at most; REGISTERS: for all that is known here. */
enum { WEIGHTS = 128, SUMS = 32, REGISTERS = 224, TILE = 16, EIGHT = 8 };

typedef struct Tiled {
	const Cells *s;
	Cuda *c;
	int64_t length, pairs;   /* elements of an example that are multiplied; words that hold them */
	int64_t pitch;           /* words from an example's row to the next; rows of eight begin at eight banks */
	int64_t units;           /* of a block, an even number */
	int outs;                /* rows of a unit: gates, backward one */
	int across, deep;        /* warps along rows, along the sum */
	int own, per;            /* tiles of a warp along rows, along the sum: an even number */
	int items;               /* units, of an example each, that a thread has */
	int line;                /* sums from one row to the next */
} Tiled;

static int64_t
up(int64_t x, int64_t by)
{
	return (x + by - 1) / by * by;
}

static Tiled
tiled_of(const Cells *s)
{
	Tiled t = {.s = s,
	           .c = s->c,
	           .length = s->back ? s->gates * s->h : s->h,
	           .units = up((s->h + s->blocks - 1) / s->blocks, 2),
	           .outs = s->back ? 1 : s->gates,
	           .across = 1,
	           .line = s->rows + EIGHT};
	int tiles = (int)(up(t.outs * t.units, TILE) / TILE), warps = s->threads / WARP;

	while (t.across * 2 <= tiles && warps % (t.across * 2) == 0)
		t.across *= 2;
	t.deep = warps / t.across;
	t.own = (tiles + t.across - 1) / t.across;
	t.per = (int)up((up(t.length, TILE) / TILE + t.deep - 1) / t.deep, 2);
	t.pairs = t.length / 2;
	t.pitch = t.deep * t.per * (TILE / 2) + 4;
	t.items = (int)((t.units * s->rows + s->threads - 1) / s->threads);
	return t;
}

static int64_t
shared_words(const Tiled *t)
{
	return t->s->rows * t->pitch + (int64_t)t->deep * t->across * t->own * TILE * t->line;
}

/* Registers of a thread: weights, sums, and of its units what a step reads and what stays. */
static int
registers(const Tiled *t)
{
	CellInput in[8];

	return t->own * t->per * 4 + t->own * t->s->rows / 2 + t->items * (cu_cells_inputs(t->s, in) + 4) + 40;
}

const char *
cu_tiled_misfit(Arena *a, const Cells *s, const Machine *m)
{
	Tiled t = tiled_of(s);

	if (s->h % 2)
		return "an odd number of units: two neighbours are exchanged in one word";
	if (s->rows < EIGHT || s->rows % EIGHT)
		return arena_printf(a, "%d examples: a multiple of 8", s->rows);
	if (s->blocks > m->sms)
		return arena_printf(a, "%d blocks wait for each other, the device has %d multiprocessors", s->blocks,
		                    m->sms);
	if (s->blocks < 2 || (s->blocks - 1) * t.units >= s->h)
		return arena_printf(a, "%d blocks for %lld units, two at least to a block", s->blocks,
		                    (long long)s->h);
	if (t.own * t.per * 4 > WEIGHTS || t.own * s->rows / 2 > SUMS || registers(&t) > REGISTERS)
		return arena_printf(a, "a thread would hold %d weights and %d sums, %d registers in all",
		                    t.own * t.per * 8, t.own * s->rows / 2, registers(&t));
	return 4 * shared_words(&t) > m->shared
	               ? arena_printf(a, "%lld bytes of shared memory", (long long)(4 * shared_words(&t)))
	               : NULL;
}

/* Cycles of a step, as in cells_held.c: matrix instructions, MMA cycles each of a scheduler; an exchange and what
 * follows the sums; words, read by each block, so many of a thread (the prelude's WORDS) before it waits again. */
static double
estimate(const Cells *s, int sms)
{
	enum { EXCHANGE = 900, GATES = 1150, MMA = 16, WORDS = 16, AGAIN = 600 };
	Tiled t = tiled_of(s);
	int64_t teams = (s->n.n + s->rows - 1) / s->rows, waves = (teams * s->blocks + sms - 1) / sms;
	double products = (double)MMA * t.own * t.per * (s->rows / EIGHT) * ((s->threads + 127) / 128);

	int64_t words = s->rows * t.pairs, rounds = (words + WORDS * s->threads - 1) / (WORDS * s->threads);

	return (double)waves * (products + EXCHANGE + GATES * t.items + (double)(8 * words) / L2_READ +
	                        (double)(AGAIN * (rounds - 1)));
}

const char *
cu_tiled_choose(Arena *a, Cells *s, const Machine *m)
{
	double least = INFINITY, now;
	Cells best = *s;

	for (int rows = EIGHT; rows <= 64 && rows < 2 * up(s->n.n, EIGHT); rows *= 2)
		for (int threads = 128; threads <= BLOCK; threads *= 2)
			for (int units = 2; units < s->h; units += 2) {
				Cells t = *s;

				t.rows = rows;
				t.threads = threads;
				t.blocks = (int)((s->h + units - 1) / units);
				if (t.blocks > m->sms || cu_tiled_misfit(a, &t, m))
					continue;
				if ((now = estimate(&t, m->sms)) < least) {
					least = now;
					best = t;
				}
			}
	if (least == INFINITY)
		return arena_printf(a, "no %d multiprocessors hold %lld weights of %lld units in their registers",
		                    m->sms, (long long)(s->gates * s->h * s->h), (long long)s->h);
	*s = best;
	return NULL;
}

double
cu_tiled_cycles(const Cells *s, const Machine *m)
{
	return estimate(s, m->sms);
}

/* ---------------------------------------------------------------- weights and products */
/* w[tile along rows][tile along the sum][4], as mma.m16n8k16 has its first operand. */
static void
weights_load(const Tiled *t)
{
	const Cells *s = t->s;
	Cuda *c = t->c;
	const char *w = cu_cells_pointer(s, s->op->in[s->w]);
	long long n = s->h, units = t->units;

	cu_line(c, "unsigned w[%d][%d][4];", t->own, t->per);
	cu_line(c, "#pragma unroll");
	Scope m = cu_scope_open(c, "for (int m = 0; m < %d; m++)", t->own);

	cu_line(c, "#pragma unroll");
	Scope k = cu_scope_open(c, "for (int k = 0; k < %d; k++)", t->per);

	cu_line(c, "#pragma unroll");
	Scope i = cu_scope_open(c, "for (int i = 0; i < 4; i++)");

	cu_line(c, "const int at = (across + m * %d) * 16 + lane / 4 + i %% 2 * 8, unit = member * %lld + at %% %lld;",
	        t->across, units, units);
	cu_line(c, "const int from = (deep * %d + k) * 16 + lane %% 4 * 2 + i / 2 * 8;", t->per);
	cu_line(c, "const bool there = at < %lld && unit < %lld && from < %lld;", t->outs * units, n,
	        (long long)t->length);
	for (int two = 0; two < 2; two++)
		cu_line(c, "const unsigned w%d = there ? %s : 0;", two,
		        s->back ? arena_printf(c->a, "%s[(%s)(from + %d) * %lld + unit]", w, c->it, two, n)
		                : arena_printf(c->a, "%s[((%s)(at / %lld) * %lld + unit) * %lld + from + %d]", w, c->it,
		                               units, n, n, two));
	cu_line(c, "w[m][k][i] = w0 | w1 << 16;");
	cu_scope_close(c, i);
	cu_scope_close(c, k);
	cu_scope_close(c, m);
}

/* The warp's part of all its sums, to shared memory; then a barrier of the block. */
static void
multiply(const Tiled *t)
{
	const Cells *s = t->s;
	Cuda *c = t->c;
	const char *type = dtype_info[val_type(s->g, s->op->in[s->w])->dtype].name;

	cu_line(c, "float acc[%d][%d][4] = {};", t->own, s->rows / EIGHT);
	cu_line(c, "#pragma unroll");
	Scope k = cu_scope_open(c, "for (int k = 0; k < %d; k += 2)", t->per);

	cu_line(c, "#pragma unroll");
	Scope n = cu_scope_open(c, "for (int n = 0; n < %d; n++)", s->rows / EIGHT);

	cu_line(c, "unsigned b[4];");
	cu_line(c,
	        "ldsm(b, states_at + 4 * (unsigned)((n * 8 + lane %% 8) * %lld + (deep * %d + k) * 8 + lane / 8 * 4));",
	        (long long)t->pitch, t->per);
	cu_line(c, "#pragma unroll");
	Scope m = cu_scope_open(c, "for (int m = 0; m < %d; m++)", t->own);

	cu_line(c, "mma_%s(acc[m][n], w[m][k], b);", type);
	cu_line(c, "mma_%s(acc[m][n], w[m][k + 1], b + 2);", type);
	cu_scope_close(c, m);
	cu_scope_close(c, n);
	cu_scope_close(c, k);
	cu_line(c, "#pragma unroll");
	m = cu_scope_open(c, "for (int m = 0; m < %d; m++)", t->own);
	cu_line(c, "float *const at = sums + ((deep * %d + across + m * %d) * 16 + lane / 4) * %d + lane %% 4 * 2;",
	        t->across * t->own, t->across, t->line);
	cu_line(c, "#pragma unroll");
	n = cu_scope_open(c, "for (int n = 0; n < %d; n++)", s->rows / EIGHT);
	for (int half = 0; half < 2; half++)
		cu_line(c, "*(float2 *)(at + n * 8 + %d) = make_float2(acc[m][n][%d], acc[m][n][%d]);",
		        half * EIGHT * t->line, half * 2, half * 2 + 1);
	cu_scope_close(c, n);
	cu_scope_close(c, m);
	cu_line(c, "__syncthreads();");
}

/* total0 .. of the unit at hand. */
static void
totals(const Tiled *t)
{
	Cuda *c = t->c;

	for (int g = 0; g < t->outs; g++) {
		cu_line(c, "float total%d = 0.0f;", g);
		cu_line(c, "#pragma unroll");
		cu_line(c,
		        "for (int d = 0; d < %d; d++) if (exists) total%d += sums[(d * %d + %lld + local) * %d + r];",
		        t->deep, g, t->across * t->own * TILE, (long long)(g * t->units), t->line);
	}
}

/* ---------------------------------------------------------------- a thread's units */
/* Over them; neighbouring threads have neighbouring units. */
static Scope
items_open(const Tiled *t)
{
	const Cells *s = t->s;
	Cuda *c = t->c;
	long long units = t->units;
	CellInput in[8];
	int n = cu_cells_inputs(s, in);

	cu_line(c, "#pragma unroll");
	Scope i = cu_scope_open(c, "for (int i = 0; i < %d; i++)", t->items);

	cu_line(c, "const int x = tid + i * %d, r = x / %lld, local = x %% %lld, j = member * %lld + local;",
	        s->threads, units, units, units);
	cu_line(c, "const %s row = first + r;", c->it);
	cu_line(c, "const bool exists = x < %lld && j < %lld, mine = exists && row < n_rows;",
	        units * s->rows, (long long)s->h);
	cu_line(c, "float &h_own = h_all[i]%s;", s->lstm ? ", &c_own = c_all[i]" : "");
	for (int k = 0; k < n; k++)
		cu_line(c, "float &in%d_%d = in_all[i][%d];", in[k].operand, in[k].block, k);
	if (s->back)
		cu_line(c, "float &earlier = earlier_all[i];");
	if (s->has_length)
		cu_line(c, "const long long length = length_all[i];");
	return i;
}

/* What other blocks need of the thread's units: of state h, or backward of gate `gate`. */
static void
words_put(const Tiled *t, int gate)
{
	const Cells *s = t->s;
	Cuda *c = t->c;
	long long units = t->units;
	const char *type = dtype_info[val_type(s->g, s->op->in[s->w])->dtype].name;

	cu_line(c, "#pragma unroll");
	Scope q = cu_scope_open(c, "for (int q = 0; q < %d; q++)", t->items);

	cu_line(c, "const int x = tid + q * %d, r = x / %lld, j = member * %lld + x %% %lld;", s->threads, units,
	        units, units);
	cu_line(c, "const float one = %s, next = __shfl_down_sync(~0u, one, 1);",
	        s->back ? arena_printf(c->a, "gate_all[q][%d]", gate) : "h_all[q]");
	cu_line(c, "if (x %% 2 == 0 && x < %lld && j < %lld)", units * s->rows, (long long)s->h);
	cu_line(c, "\tword_put(&words[((tag & 1) * %d + r) * %lld + (%lld + j) / 2], "
	           "__uint_as_float(pair_%s(one, next)), tag);",
	        s->rows, (long long)t->pairs, (long long)(gate * s->h), type);
	cu_scope_close(c, q);
}

static void
words_take(const Tiled *t)
{
	long long count = t->s->rows * t->pairs;

	cu_line(t->c, "__syncwarp();");
	cu_line(t->c, "words_take((float *)states, words + (tag & 1) * %lld, %s, tag, tid, %d, %lld, %lld, %lld);",
	        count, cu_team_first(t->s, count), t->s->threads, count, (long long)t->pairs, (long long)t->pitch);
	cu_line(t->c, "tag++;");
}

/* What the units read of memory at step `step`: on its way while the sums are made. */
static void
inputs_load(const Tiled *t, const char *step, const char *when)
{
	Scope all = items_open(t);

	cu_team_inputs(t->s, step, when);
	cu_scope_close(t->c, all);
}

/* ---------------------------------------------------------------- the frame */
/* Up to the loop over a team's examples. */
static Scope
tiled_open(const Tiled *t)
{
	const Cells *s = t->s;
	Cuda *c = t->c;
	int64_t teams = (s->n.n + s->rows - 1) / s->rows, count = s->rows * t->pairs;

	cu_kernel_open(c, "");
	c->threads = s->threads;
	c->shared = 4 * shared_words(t);
	c->team = s->blocks;
	Ix n = cu_extent(c, s->n);

	cu_line(c, "extern __shared__ uint4 memory[];");
	cu_line(c, "static unsigned tags[%lld];", (long long)teams * s->blocks);
	cu_line(c, "static __align__(16) unsigned long long all_words[%lld];", (long long)(teams * 2 * count));
	cu_line(c, "const int tid = threadIdx.x, lane = tid %% 32, across = tid / 32 %% %d, deep = tid / 32 / %d;",
	        t->across, t->across);
	cu_line(c, "const int team = blockIdx.x / %d, member = blockIdx.x %% %d;", s->blocks, s->blocks);
	cu_line(c, "const %s n_rows = %s;", c->it, n);
	cu_line(c, "unsigned long long *const words = all_words + team * %lld;", (long long)(2 * count));
	cu_line(c, "unsigned *const states = (unsigned *)memory;");
	cu_line(c, "float *const sums = (float *)memory + %lld;", (long long)(s->rows * t->pitch));
	cu_line(c, "const unsigned states_at = shared_address(states);");
	cu_line(c, "unsigned tag = tags[blockIdx.x] + 1;");
	weights_load(t);
	cu_line(c, "for (int i = tid; i < %lld; i += %d)", (long long)(s->rows * (t->pitch - t->pairs)), s->threads);
	cu_line(c, "\tstates[i / %lld * %lld + %lld + i %% %lld] = 0;", (long long)(t->pitch - t->pairs),
	        (long long)t->pitch, (long long)t->pairs, (long long)(t->pitch - t->pairs));
	return cu_team_rows(s);
}

/* What a thread keeps of its units, and its start. */
static void
own_open(const Tiled *t)
{
	const Cells *s = t->s;
	Cuda *c = t->c;
	CellInput in[8];
	int n = t->items;

	cu_line(c, "float h_all[%d] = {}%s, in_all[%d][%d] = {};", n,
	        s->lstm ? arena_printf(c->a, ", c_all[%d] = {}", n) : "", n, cu_cells_inputs(s, in));
	if (s->back)
		cu_line(c, "float earlier_all[%d] = {};", n);
	if (s->has_length)
		cu_line(c, "long long length_all[%d] = {};", n);
	Scope all = items_open(t), m = cu_scope_open(c, "if (mine)");

	cu_team_states_load(s);
	if (s->has_length)
		cu_line(c, "length_all[i] = (long long)%s[row];", cu_cells_pointer(s, s->op->in[s->op->nin - 1]));
	cu_scope_close(c, m);
	cu_scope_close(c, all);
}

static void
tiled_close(const Tiled *t, Scope all)
{
	if (cu_team_states(t->s) >= 0) {
		Scope items = items_open(t);

		cu_team_states_put(t->s);
		cu_scope_close(t->c, items);
	}
	cu_team_close(t->s, all, "all steps of some examples to a team of blocks, which hold the weights in tiles");
}

/* ---------------------------------------------------------------- forward, backward */
/* h at the start, rounded, of all examples. */
static void
start_load(const Tiled *t)
{
	const Cells *s = t->s;
	Cuda *c = t->c;
	const char *start = cu_cells_pointer(s, s->op->in[s->lstm ? 2 : 3]),
	           *type = dtype_info[val_type(s->g, s->op->in[s->w])->dtype].name;
	Scope i = cu_scope_open(c, "for (int i = tid; i < %lld; i += %d)", (long long)(s->rows * t->pairs),
	                        s->threads);

	cu_line(c, "const %s row = first + i / %lld, at = row * %lld + i %% %lld * 2;", c->it, (long long)t->pairs,
	        (long long)s->h, (long long)t->pairs);
	cu_line(c, "states[i / %lld * %lld + i %% %lld] = row < n_rows ? pair_%s(%s[at], %s[at + 1]) : 0;",
	        (long long)t->pairs, (long long)t->pitch, (long long)t->pairs, type, start, start);
	cu_scope_close(c, i);
}

static void
forward_tiled(const Tiled *t)
{
	const Cells *s = t->s;
	Cuda *c = t->c;
	Scope all = tiled_open(t), step, m, items;

	own_open(t);
	start_load(t);
	step = cu_scope_open(c, "for (int step = 0; step < %lld; step++)", (long long)s->t);
	cu_team_step(s);
	m = cu_scope_open(c, "if (step > 0)");
	words_take(t);
	cu_scope_close(c, m);
	inputs_load(t, "step", "");
	cu_line(c, "__syncthreads();");
	multiply(t);
	items = items_open(t);
	totals(t);
	if (!s->lstm)
		cu_team_biases(s);
	cu_team_unit(s);
	cu_scope_close(c, items);
	m = cu_scope_open(c, "if (step < %lld)", (long long)s->t - 1);
	words_put(t, 0);
	cu_scope_close(c, m);
	cu_scope_close(c, step);
	tiled_close(t, all);
}

static void
backward_tiled(const Tiled *t)
{
	const Cells *s = t->s;
	Cuda *c = t->c;
	Scope all = tiled_open(t), step, items;

	own_open(t);
	inputs_load(t, arena_printf(c->a, "%lld", (long long)s->t - 1), "");
	step = cu_scope_open(c, "for (int step = %lld; step >= 0; step--)", (long long)s->t - 1);
	cu_team_step(s);
	cu_line(c, "float gate_all[%d][%d] = {};", t->items, s->gates);
	items = items_open(t);
	for (int g = 0; g < s->gates; g++)
		cu_line(c, "float &gate%d = gate_all[i][%d];", g, g);
	cu_team_back(s);
	cu_scope_close(c, items);
	for (int g = 0; g < s->gates; g++)
		words_put(t, g);
	inputs_load(t, "step - 1", " && step > 0");
	words_take(t);
	cu_line(c, "__syncthreads();");
	multiply(t);
	items = items_open(t);
	totals(t);
	cu_line(c, "h_own += total0;");
	cu_scope_close(c, items);
	cu_scope_close(c, step);
	tiled_close(t, all);
}

void
cu_tiled_emit(Cells *s)
{
	Tiled t = tiled_of(s);

	s->h_at = "h_own";
	s->c_at = "c_own";
	s->length = s->has_length ? "length" : NULL;
	if (s->back)
		backward_tiled(&t);
	else
		forward_tiled(&t);
}
