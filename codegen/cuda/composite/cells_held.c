/* cells_held.c: recurrences whose W_hh stays in registers, for all steps, of several blocks that exchange states:
 * persistent RNN kernels (Diamos et al. 2016), without a barrier of all blocks.
 *
 * In: a group of one of the ops of cells.c.   Out: one kernel. `blocks` blocks make a team that owns `rows` examples;
 * a block has some units of all of them, and of W_hh what these units' sums take: forward their rows, backward their
 * columns. `parts` neighbouring threads have a unit (or `each` of them), a part of its sums each (cells.c); these are
 * added in their order through shared memory, and thread r of them goes on with example r: gates, states, results, and
 * what other blocks need of it, the state h, backward the gates' gradients. That goes through the L2 as words of 64
 * bits, a number and the number of its exchange (`tag`): a reader that finds the tag has the number, so no fence and no
 * counter is waited for (as NCCL's protocol LL does). There are two sets of words, for even and odd exchanges: who
 * writes one again has read the exchange after it, for which all others had read it. A block's tag stays from launch to
 * launch, so what a word held before is never taken for new. What a step reads of memory is loaded a step ahead.
 * All blocks of a team must be there at one time: a device begins them in the order of their numbers, so it must hold
 * one team. A word that does not come within 2^24 looks is a trap.
 * Sums are those of cells.c to the bit. Refuses more weights than fit the registers, and declines where each block for
 * itself is sooner done by the estimate in `estimate`. */
#include "cells.h"

/* FREE: registers of a thread that hold weights, at most; LOOKS: words a thread waits for at a time. */
enum { FREE = 128, SUMS = 64, LOOKS = 8 };

typedef struct Held {
	const Cells *s;
	Cuda *c;
	int64_t length, pitch; /* values of an example that are exchanged; the same in whole rounds of the parts */
	int64_t units;         /* of a block */
	int slots, each;       /* of a block, threads by parts: units at a time; units of a slot */
	int outs;              /* sums of a unit and example: gates, backward one */
	int64_t chunks;        /* fours of a part */
	bool packed;           /* two weights of 16 bits to a register */
	int sums;              /* of a thread: each x outs x rows */
	int64_t stride;        /* floats of a slot where parts are added, no two at one bank */
} Held;

static int64_t
up(int64_t x, int64_t by)
{
	return (x + by - 1) / by * by;
}

static Held
held_of(const Cells *s)
{
	Held h = {.s = s,
	          .c = s->c,
	          .length = s->back ? s->gates * s->h : s->h,
	          .units = (s->h + s->blocks - 1) / s->blocks,
	          .slots = s->threads / s->parts,
	          .outs = s->back ? 1 : s->gates};

	h.each = (int)((h.units + h.slots - 1) / h.slots);
	h.pitch = up(h.length, 4 * s->parts);
	h.chunks = h.pitch / (4 * s->parts);
	h.packed = dtype_info[s->dt].bytes == 2 && h.each * h.outs * h.chunks * 4 > FREE - 16;
	h.sums = h.each * h.outs * s->rows;
	h.stride = h.sums * s->parts;
	h.stride += (s->parts + WARP - h.stride % WARP) % WARP;
	return h;
}

static int64_t
weights_of(const Held *h)
{
	return h->each * h->outs * h->chunks * 4;
}

/* Two sets of what is exchanged, and the parts' sums. */
static int64_t
shared_floats(const Held *h)
{
	return 2 * h->s->rows * h->pitch + h->slots * h->stride;
}

const char *
cu_held_misfit(Arena *a, const Cells *s, int sms)
{
	Held h = held_of(s);

	if (s->rows & (s->rows - 1) || s->rows > s->parts)
		return arena_printf(a, "%d examples: a power of 2 up to %d", s->rows, s->parts);
	if (s->blocks > sms)
		return arena_printf(a, "%d blocks wait for each other, the device has %d multiprocessors", s->blocks,
		                    sms);
	if ((s->blocks - 1) * h.units >= s->h)
		return arena_printf(a, "%d blocks for %lld units", s->blocks, (long long)s->h);
	if (h.each * s->rows > s->parts)
		return arena_printf(a, "%d units of %d examples for %d threads", h.each, s->rows, s->parts);
	if (weights_of(&h) > (h.packed ? 2 * FREE : FREE) || h.sums > SUMS)
		return arena_printf(a, "a thread would hold %lld weights and %d sums", (long long)weights_of(&h),
		                    h.sums);
	return 4 * shared_floats(&h) > COMPOSITE_SHARED
	               ? arena_printf(a, "%lld bytes of shared memory", (long long)(4 * shared_floats(&h)))
	               : NULL;
}

/* Cycles of a step, of a multiprocessor whose four schedulers begin a warp's instruction in each: FMAs, the
 * elements for them from shared memory, weights unpacked; an exchange through the L2; what follows the sums. Teams that
 * are not all there at one time come one after the other. */
static double
estimate(const Cells *s, int sms)
{
	enum { EXCHANGE = 900, GATES = 500 };
	Held h = held_of(s);
	int64_t teams = (s->n.n + s->rows - 1) / s->rows, waves = (teams * s->blocks + sms - 1) / sms;
	double a_warp = (double)(weights_of(&h) * s->rows + (h.packed ? weights_of(&h) : 0) + h.chunks * s->rows),
	       issue = a_warp * ((s->threads + 127) / 128),
	       reads = 4.0 * (double)(h.chunks * s->rows) * s->threads / WARP;

	return (double)waves *
	       ((issue > reads ? issue : reads) + EXCHANGE + GATES + (double)(8 * s->rows * h.length) / L2_READ);
}

/* The same where each block reads all weights: from the L1 if half of it holds them. */
static double
estimate_alone(const Cells *s, const Machine *m)
{
	enum { GATES = 600 };
	double weights = (double)(s->gates * s->h * s->h), bytes = weights * dtype_info[s->dt].bytes,
	       from = bytes / (bytes > (double)(m->l1.bytes / 2) ? L2_READ : 2 * L2_READ),
	       rows = (double)((s->n.n + 63) / 64), products = weights * (rows > 8 ? 8 : rows) / 128,
	       waves = (double)(s->n.n > 8 * m->sms ? (s->n.n + 8 * m->sms - 1) / (8 * m->sms) : 1);

	return waves * ((from > products ? from : products) + GATES);
}

double
cu_held_cycles(const Cells *s, const Machine *m)
{
	return s->blocks > 1 ? estimate(s, m->sms) : estimate_alone(s, m);
}

const char *
cu_held_choose(Arena *a, Cells *s, const Machine *m)
{
	Cells best = *s;
	double least = estimate_alone(s, m), before = least;
	int sms = m->sms;

	for (int rows = 1; rows <= 8; rows *= 2)
		for (int each = 1; each * rows <= s->parts && each <= 4; each *= 2) {
			Cells t = *s;
			int64_t teams = (s->n.n + rows - 1) / rows, most = sms / teams, units;

			t.rows = rows;
			most = most < 2 ? 2 : most;
			units = up((s->h + most - 1) / most, WARP / s->parts * each);
			if (units > BLOCK / s->parts * each)
				units = BLOCK / s->parts * each;
			t.blocks = (int)((s->h + units - 1) / units);
			t.threads = (int)up((units + each - 1) / each * s->parts, WARP);
			if (t.blocks < 2 || cu_held_misfit(a, &t, sms) || estimate(&t, sms) >= least)
				continue;
			least = estimate(&t, sms);
			best = t;
		}
	if (best.blocks < 2 && before > 3000)
		return arena_printf(a, "no %d multiprocessors hold %lld weights of %lld units in their registers", sms,
		                    (long long)(s->gates * s->h * s->h), (long long)s->h);
	if (best.blocks < 2)
		return arena_printf(a, "a step of a block for itself takes some %.0f cycles, and an exchange 1400",
		                    before);
	*s = best;
	return NULL;
}

/* ---------------------------------------------------------------- weights */
/* Four neighbours of the sum's elements from k on, of unit j and output g: w4 = .. */
static void
weights_load(const Held *h)
{
	const Cells *s = h->s;
	Cuda *c = h->c;
	const char *w = cu_cells_pointer(s, s->op->in[s->w]);
	long long count = weights_of(h), n = s->h;

	cu_line(c, "%s w[%lld];", h->packed ? "unsigned" : "float", h->packed ? count / 2 : count);
	cu_line(c, "#pragma unroll");
	Scope u = cu_scope_open(c, "for (int u = 0; u < %d; u++)", h->each * h->outs);

	cu_line(c, "const int unit = member * %lld + slot + u / %d * %d;", (long long)h->units, h->outs, h->slots);
	cu_line(c, "const bool there = slot + u / %d * %d < %lld && unit < %lld;", h->outs, h->slots,
	        (long long)h->units, n);
	cu_line(c, "#pragma unroll");
	Scope q = cu_scope_open(c, "for (int q = 0; q < %lld; q++)", (long long)h->chunks);

	cu_line(c, "#pragma unroll");
	Scope i = cu_scope_open(c, "for (int i = 0; i < 4; i += %d)", h->packed ? 2 : 1);

	cu_line(c, "const int k = q * %d + part * 4 + i;", 4 * s->parts);
	for (int two = 0; two < (h->packed ? 2 : 1); two++) {
		const char *k = two ? "(k + 1)" : "k";
		const char *at = s->back ? arena_printf(c->a, "%s[(%s)%s * %lld + unit]", w, c->it, k, n)
		                         : arena_printf(c->a, "%s[((%s)(u %% %d) * %lld + unit) * %lld + %s]", w, c->it,
		                                        h->outs, n, n, k);

		if (h->packed)
			cu_line(c, "const unsigned w%d = there && %s < %lld ? %s : 0;", two, k, (long long)h->length,
			        at);
		else
			cu_line(c, "w[(u * %lld + q) * 4 + i] = there && k < %lld ? %s : 0.0f;", (long long)h->chunks,
			        (long long)h->length, cu_cells_value(s, at));
	}
	if (h->packed)
		cu_line(c, "w[((u * %lld + q) * 4 + i) / 2] = w0 | w1 << 16;", (long long)h->chunks);
	cu_scope_close(c, i);
	cu_scope_close(c, q);
	cu_scope_close(c, u);
}

/* The thread's parts of all sums, into shared memory, where those of a sum lie in their order; then those of the
 * thread's own unit and example: total0 .. */
static void
sums_held(const Held *h)
{
	const Cells *s = h->s;
	Cuda *c = h->c;
	long long chunks = h->chunks;

	cu_line(c, "float sum[%d][%d] = {};", h->each * h->outs, s->rows);
	if (h->packed) { /* they are unpacked here, in each step, for there are no registers for all */
		cu_line(c, "#pragma unroll");
		cu_line(c, "for (int u = 0; u < %lld; u++) asm volatile(\"\" : \"+r\"(w[u]));",
		        (long long)weights_of(h) / 2);
	}
	cu_line(c, "#pragma unroll");
	Scope q = cu_scope_open(c, "for (int q = 0; q < %lld; q++)", chunks);

	cu_line(c, "float x[%d][4];", s->rows);
	cu_line(c, "#pragma unroll");
	cu_line(c, "for (int r = 0; r < %d; r++) read4(x[r], from + r * %lld + q * %d + part * 4);", s->rows,
	        (long long)h->pitch, 4 * s->parts);
	cu_line(c, "#pragma unroll");
	Scope u = cu_scope_open(c, "for (int u = 0; u < %d; u++)", h->each * h->outs);

	cu_line(c, "#pragma unroll");
	Scope i = cu_scope_open(c, "for (int i = 0; i < 4; i++)");

	if (h->packed)
		cu_line(c, "const float one = %s;",
		        cu_cells_value(s,
		                       arena_printf(c->a,
		                                    "(unsigned short)(w[((u * %lld + q) * 4 + i) / 2] >> i %% 2 * 16)",
		                                    chunks)));
	else
		cu_line(c, "const float one = w[(u * %lld + q) * 4 + i];", chunks);
	cu_line(c, "#pragma unroll");
	cu_line(c, "for (int r = 0; r < %d; r++) sum[u][r] = fmaf(one, x[r][i], sum[u][r]);", s->rows);
	cu_scope_close(c, i);
	cu_scope_close(c, u);
	cu_scope_close(c, q);
	cu_line(c, "float *const mine_at = sums + slot * %lld;", (long long)h->stride);
	cu_line(c, "#pragma unroll");
	cu_line(c, "for (int u = 0; u < %d; u++) mine_at[u * %d + part] = sum[u / %d][u %% %d];", h->sums, s->parts,
	        s->rows, s->rows);
	cu_line(c, "__syncwarp();");
	for (int g = 0; g < h->outs; g++)
		cu_line(c, "float total%d = 0.0f;", g);
	Scope m = cu_scope_open(c, "if (exists)");

	for (int g = 0; g < h->outs; g++) {
		cu_line(c, "#pragma unroll");
		Scope p = cu_scope_open(c, "for (int p = 0; p < %d; p += 8)", s->parts);

		cu_line(c, "float x[8], eight = 0.0f;");
		cu_line(c, "take8_32(x, mine_at + ((part / %d * %d + %d) * %d + r) * %d + p);", s->rows, h->outs, g,
		        s->rows, s->parts);
		cu_line(c, "#pragma unroll");
		cu_line(c, "for (int i = 0; i < 8; i++) eight += x[i];");
		cu_line(c, "total%d += eight;", g);
		cu_scope_close(c, p);
	}
	cu_scope_close(c, m);
}

/* ---------------------------------------------------------------- what is exchanged */
/* Number `place` of the thread's own example, for the exchange that is under way. A warp puts all its words before one
 * of its threads looks for others'. */
static void
put_word(const Held *h, const char *place, const char *x)
{
	cu_line(h->c, "word_put(&words[(tag & 1) * %lld + r * %lld + %s], %s, tag);",
	        (long long)(h->s->rows * h->length), (long long)h->length, place, x);
}

static void
take_words(const Held *h, const char *to)
{
	long long count = h->s->rows * h->length;

	cu_line(h->c, "words_take(%s, words + (tag & 1) * %lld, %s, tag, tid, %d, %lld, %lld, %lld);", to, count,
	        cu_team_first(h->s, count), h->s->threads, count, (long long)h->length, (long long)h->pitch);
	cu_line(h->c, "tag++;");
}

/* ---------------------------------------------------------------- the frame */
/* Up to the loop over a team's examples. */
static Scope
held_open(const Held *h)
{
	const Cells *s = h->s;
	Cuda *c = h->c;
	int64_t teams = (s->n.n + s->rows - 1) / s->rows;

	cu_kernel_open(c, "");
	c->threads = s->threads;
	c->shared = 4 * shared_floats(h);
	c->team = s->blocks;
	Ix n = cu_extent(c, s->n);

	cu_line(c, "extern __shared__ uint4 memory[];");
	cu_line(c, "static unsigned tags[%lld];", (long long)teams * s->blocks);
	cu_line(c, "static __align__(16) unsigned long long all_words[%lld];",
	        (long long)(teams * 2 * s->rows * h->length));
	cu_line(c,
	        "const int tid = threadIdx.x, slot = tid / %d, part = tid %% %d, team = blockIdx.x / %d, "
	        "member = blockIdx.x %% %d;",
	        s->parts, s->parts, s->blocks, s->blocks);
	cu_line(c, "const int r = part %% %d, local = slot + part / %d * %d, j = member * %lld + local;", s->rows,
	        s->rows, h->slots, (long long)h->units);
	cu_line(c, "const bool exists = part < %d && local < %lld && j < %lld;", h->each * s->rows, (long long)h->units,
	        (long long)s->h);
	cu_line(c, "const %s n_rows = %s;", c->it, n);
	cu_line(c, "unsigned long long *const words = all_words + team * %lld;", (long long)(2 * s->rows * h->length));
	cu_line(c, "float *const states = (float *)memory, *const sums = states + %lld;",
	        (long long)(2 * s->rows * h->pitch));
	cu_line(c, "unsigned tag = tags[blockIdx.x] + 1;");
	weights_load(h);
	if (h->pitch > h->length) {
		cu_line(c, "for (int i = tid; i < %lld; i += %d)", (long long)(2 * s->rows * (h->pitch - h->length)),
		        s->threads);
		cu_line(c, "\tstates[i / %lld * %lld + %lld + i %% %lld] = 0.0f;", (long long)(h->pitch - h->length),
		        (long long)h->pitch, (long long)h->length, (long long)(h->pitch - h->length));
	}
	if (!s->lstm && !s->back)
		cu_team_biases(s);
	return cu_team_rows(s);
}

/* What a thread has of its example and unit. */
static void
own_open(const Held *h)
{
	const Cells *s = h->s;
	Cuda *c = h->c;
	CellInput in[8];
	int n = cu_cells_inputs(s, in);

	cu_line(c, "const %s row = first + r;", c->it);
	cu_line(c, "const bool mine = exists && row < n_rows;");
	for (int k = 0; k < n; k++)
		cu_line(c, "float in%d_%d = 0.0f;", in[k].operand, in[k].block);
	if (s->back)
		cu_line(c, "float earlier = 0.0f;");
	if (s->has_length)
		cu_line(c, "const long long length = mine ? (long long)%s[row] : 0;",
		        cu_cells_pointer(s, s->op->in[s->op->nin - 1]));

	cu_line(c, "float h_own = 0.0f%s;", s->lstm ? ", c_own = 0.0f" : "");
	Scope m = cu_scope_open(c, "if (mine)");

	cu_team_states_load(s);
	cu_scope_close(c, m);
}

static void
held_close(const Held *h, Scope all)
{
	if (cu_team_states(h->s) >= 0)
		cu_team_states_put(h->s);
	cu_team_close(h->s, all, "all steps of a few examples to a team of blocks, which hold the weights");
}

/* ---------------------------------------------------------------- forward, backward */
static void
forward_held(const Held *h)
{
	const Cells *s = h->s;
	Cuda *c = h->c;
	Scope all = held_open(h), step, m;
	const char *start = cu_cells_pointer(s, s->op->in[s->lstm ? 2 : 3]);

	own_open(h);
	cu_line(c, "for (int i = tid; i < %lld; i += %d)", (long long)(s->rows * s->h), s->threads);
	cu_line(c, "\tstates[i / %lld * %lld + i %% %lld] = first + i / %lld < n_rows ? %s : 0.0f;", (long long)s->h,
	        (long long)h->pitch, (long long)s->h, (long long)s->h,
	        cu_cells_value(s, arena_printf(c->a, "%s[first * %lld + i]", start, (long long)s->h)));
	step = cu_scope_open(c, "for (int step = 0; step < %lld; step++)", (long long)s->t);
	cu_team_step(s);
	cu_line(c, "float *const from = states + (step & 1) * %lld;", (long long)(s->rows * h->pitch));
	m = cu_scope_open(c, "if (step > 0)");
	take_words(h, "from");
	cu_scope_close(c, m);
	cu_team_inputs(s, "step", "");
	cu_line(c, "__syncthreads();");
	sums_held(h);
	cu_team_unit(s);
	m = cu_scope_open(c, "if (exists && step < %lld)", (long long)s->t - 1);
	put_word(h, "j", "h_own");
	cu_scope_close(c, m);
	cu_line(c, "__syncwarp();");
	cu_scope_close(c, step);
	held_close(h, all);
}

static void
backward_held(const Held *h)
{
	const Cells *s = h->s;
	Cuda *c = h->c;
	Scope all = held_open(h), step, m;

	own_open(h);
	cu_team_inputs(s, arena_printf(c->a, "%lld", (long long)s->t - 1), "");
	step = cu_scope_open(c, "for (int step = %lld; step >= 0; step--)", (long long)s->t - 1);
	cu_team_step(s);
	cu_line(c, "float *const from = states + (step & 1) * %lld;", (long long)(s->rows * h->pitch));
	for (int g = 0; g < s->gates; g++)
		cu_line(c, "float gate%d = 0.0f;", g);
	cu_team_back(s);
	m = cu_scope_open(c, "if (exists)");
	for (int g = 0; g < s->gates; g++)
		put_word(h, arena_printf(c->a, "%lld + j", (long long)(g * s->h)), arena_printf(c->a, "gate%d", g));
	cu_scope_close(c, m);
	cu_line(c, "__syncwarp();");
	take_words(h, "from");
	cu_team_inputs(s, "step - 1", " && step > 0");
	cu_line(c, "__syncthreads();");
	sums_held(h);
	cu_line(c, "h_own += total0;");
	cu_scope_close(c, step);
	held_close(h, all);
}

void
cu_held_emit(Cells *s)
{
	Held h = held_of(s);

	s->h_at = "h_own";
	s->c_at = "c_own";
	s->length = s->has_length ? "length" : NULL;
	if (s->back)
		backward_held(&h);
	else
		forward_held(&h);
}
