/* check.c: right before fast: a group's kernels against its own one, on the operands of a running step.
 *
 * In: a group whose operands stand in the arena, in the worker.   Out: a verdict for each of its kernels that has
 * none; the arena as the group's own kernel leaves it. Results and workspace are filled with a pattern, the own kernel
 * runs, its results are put aside; once more with another pattern, so that what it does not write, or what it makes
 * differently each time, is known: such a group cannot be checked. Then each kernel with one thread and with all: byte
 * for byte the same if its class says so, else each number within `bound` roundings of the largest (roundings of the
 * result's type), integers exactly. Memory that the group both reads and writes is put back before each run. Meanwhile
 * the pages of the arena that hold none of the group's results or workspace are read-only, and the bytes up to 4 KiB
 * beside each of them are hashed: a store that strays is seen at once. A device's memory cannot be made read-only:
 * there it is the bytes beside alone. */
#include "race.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

enum { GUARD = 4096, CHECK_PLACES = 256 };
static const uint8_t patterns[2] = {0xff, 0x7f}; /* floats: not a number; 3.4e38 */
/* by the kernel that runs: as long as the own one takes, times so many, but at least so many nanoseconds; on a
 * simulated device, where time says nothing and blocks that wait for each other take turns, a minute */
enum { CHECK_TIMES = 20, CHECK_LEAST = 500000000 };
#define CHECK_SIMULATED 60000000000
const char *const race_verdicts[RACE_VERDICTS] = {"unknown",         "good",  "wrong", "nan", "stray",
                                                  "baseline varies", "crash", "hang"};

typedef struct Span { int64_t from, to; } Span;
typedef struct Check {
	Race *r;
	const RaceGroup *g;
	uint8_t *arena;
	Span own[CHECK_PLACES]; int nown;    /* what the group may write */
	Span both[CHECK_PLACES]; int nboth;  /* what it also reads */
	Span guard[2 * CHECK_PLACES]; int nguard;
	uint8_t *before, *expected;          /* of `both`; of the results, one behind the other */
	int64_t took;                        /* nanoseconds of the own kernel */
} Check;

/* [from, to) but for what the group may write, into the guards. */
static void
check_guard(Check *c, int64_t from, int64_t to)
{
	for (int i = 0; i < c->nown && from < to; i++) {
		const Span *s = &c->own[i];

		if (s->to <= from || s->from >= to)
			continue;
		if (s->from > from)
			check_guard(c, from, s->from);
		from = s->to;
	}
	if (from < to && c->nguard < 2 * CHECK_PLACES)
		c->guard[c->nguard++] = (Span){from, to};
}

static bool
check_spans(Check *c)
{
	const RaceGroup *g = c->g;
	int64_t end = c->r->h->program.arena_bytes;

	if (g->nwrite + 2 > CHECK_PLACES)
		return false;
	for (int i = 0; i <= g->nwrite + 1; i++) {
		const RacePlace *w = i < g->nwrite ? &g->write[i] : i == g->nwrite ? &g->workspace : &g->kept;

		if (w->bytes > 0)
			c->own[c->nown++] = (Span){w->offset, w->offset + w->bytes};
	}
	for (int i = 0; i < g->nwrite; i++)
		for (int k = 0; k < g->nread; k++) {
			const RacePlace *w = &g->write[i], *x = &g->read[k];
			int64_t from = w->offset > x->offset ? w->offset : x->offset;
			int64_t to = w->offset + w->bytes < x->offset + x->bytes ? w->offset + w->bytes
			                                                         : x->offset + x->bytes;

			if (from < to && c->nboth == CHECK_PLACES)
				return false;
			if (from < to)
				c->both[c->nboth++] = (Span){from, to};
		}
	for (int i = 0; i < c->nown; i++) {
		check_guard(c, c->own[i].from > GUARD ? c->own[i].from - GUARD : 0, c->own[i].from);
		check_guard(c, c->own[i].to, c->own[i].to + GUARD < end ? c->own[i].to + GUARD : end);
	}
	return true;
}

static void
check_copy(uint8_t *to, const uint8_t *arena, const Span *s, int n)
{
	for (int i = 0; i < n; to += s[i].to - s[i].from, i++)
		memcpy(to, arena + s[i].from, (size_t)(s[i].to - s[i].from));
}

/* ---- a device: what is compared stands in the host's arena, at the same offsets */
static void
check_down(const Check *c, const Span *s, int n)
{
	for (int i = 0; i < n && c->r->device; i++)
		if (!c->r->device->fetch(c->r->h, s[i].from, s[i].to - s[i].from))
			race_worker_lost(c->r);
}

static void
check_up(const Check *c, const Span *s, int n)
{
	for (int i = 0; i < n && c->r->device; i++)
		if (!c->r->device->put(c->r->h, s[i].from, s[i].to - s[i].from))
			race_worker_lost(c->r);
}

/* Before a run: the pattern where it writes, what it reads there on top. */
static void
check_poison(const Check *c, uint8_t pattern)
{
	const uint8_t *from = c->before;

	for (int i = 0; i < c->nown; i++)
		memset(c->arena + c->own[i].from, pattern, (size_t)(c->own[i].to - c->own[i].from));
	for (int i = 0; i < c->nboth; from += c->both[i].to - c->both[i].from, i++)
		memcpy(c->arena + c->both[i].from, from, (size_t)(c->both[i].to - c->both[i].from));
	check_up(c, c->own, c->nown);
}

static uint64_t
check_hash(const Check *c)
{
	uint64_t h = RT_HASH_START;

	check_down(c, c->guard, c->nguard);
	for (int i = 0; i < c->nguard; i++)
		h = rt_hash(h, c->arena + c->guard[i].from, (size_t)(c->guard[i].to - c->guard[i].from));
	return h;
}

/* All pages of the arena but those that the group writes to. */
static void
check_protect(const Check *c, bool on)
{
	int64_t page = sysconf(_SC_PAGESIZE), end = ((int64_t)c->r->h->arena_bytes + page - 1) / page * page;

	if (c->r->device)
		return;
	mprotect(c->arena, (size_t)end, on ? PROT_READ : PROT_READ | PROT_WRITE);
	for (int i = 0; on && i < c->nown; i++) {
		int64_t from = c->own[i].from / page * page, to = (c->own[i].to + page - 1) / page * page;

		mprotect(c->arena + from, (size_t)(to - from), PROT_READ | PROT_WRITE);
	}
}

/* ---- what the table of costs does to results */
static bool
check_is_float(int dtype)
{
	return dtype == RT_F64 || dtype == RT_F32 || dtype == RT_F16 || dtype == RT_BF16;
}

/* A byte of the arena that is on no page of the group's. */
static int64_t
check_far(const Check *c)
{
	int64_t page = sysconf(_SC_PAGESIZE), at = 0;
	bool near = true;

	for (; near && at < c->r->h->program.arena_bytes; at += near ? page : 0) {
		near = false;
		for (int i = 0; i < c->nown; i++)
			near = near || (c->own[i].from / page * page <= at && at < c->own[i].to);
	}
	return at;
}

static void
check_damage(const Check *c, RaceFault fault)
{
	const RacePlace *w = &c->g->write[0];
	uint8_t *at = c->arena + w->offset;

	check_down(c, c->own, c->nown);
	if (fault == RACE_STRAY && c->nguard)
		c->arena[c->guard[0].from] ^= 1;
	if (fault == RACE_FAR)
		c->arena[check_far(c)] ^= 1;
	if (fault == RACE_WRONG)
		rt_dtype_write(w->dtype, at, 2 * rt_dtype_read(w->dtype, at) + 1);
	if (fault == RACE_NAN && check_is_float(w->dtype))
		rt_dtype_write(w->dtype, at, NAN);
	if (fault == RACE_ULP)
		at[0] ^= 1;
	if (fault != RACE_NO_FAULT)
		check_up(c, c->guard, c->nguard);
}

/* ---- comparing */
/* Half of what two neighbours above 1 are apart, twice: the unit of bounds. */
static double
check_unit(int dtype)
{
	return dtype == RT_F64 ? 0x1p-52 : dtype == RT_F16 ? 0x1p-10 : dtype == RT_BF16 ? 0x1p-7 : 0x1p-23;
}

static char *
check_detail(const Check *c)
{
	return race_shared_detail(c->r, (int)(c->g - c->r->table.group));
}

static RaceVerdict
check_tell(const Check *c, RaceVerdict v, int place, int64_t element, double got, double want, double bound)
{
	snprintf(check_detail(c), RACE_DETAIL, "result %d, element %lld: %.9g in place of %.9g%s", place,
	         (long long)element, got, want, bound > 0 ? ", beyond the bound" : "");
	return v;
}

/* Results that stand in the arena against those put aside. */
static RaceVerdict
check_place(const Check *c, const RaceText *t, int place, const uint8_t *want)
{
	const RacePlace *w = &c->g->write[place];
	const uint8_t *got = c->arena + w->offset;
	int bytes = rt_dtype[w->dtype].bytes;
	bool exact = t->bits == RACE_SAME || !check_is_float(w->dtype);
	double most = 0, bound;

	if (memcmp(got, want, (size_t)w->bytes) == 0)
		return RACE_GOOD;
	for (int64_t i = 0; i < w->bytes / bytes; i++) {
		double x = fabs(rt_dtype_read(w->dtype, want + i * bytes));

		most = isfinite(x) && x > most ? x : most;
	}
	bound = exact ? 0 : (double)t->bound * check_unit(w->dtype) * most;
	for (int64_t i = 0; i < w->bytes / bytes; i++) {
		double x = rt_dtype_read(w->dtype, got + i * bytes), y = rt_dtype_read(w->dtype, want + i * bytes);

		if (memcmp(got + i * bytes, want + i * bytes, (size_t)bytes) == 0)
			continue;
		if (isnan(x) && !isnan(y))
			return check_tell(c, RACE_BAD_NAN, place, i, x, y, 0);
		if (exact || (!(fabs(x - y) <= bound) && !(isnan(x) && isnan(y))))
			return check_tell(c, RACE_BAD_WRONG, place, i, x, y, bound);
	}
	return RACE_GOOD;
}

static RaceVerdict
check_results(const Check *c, const RaceText *t)
{
	const uint8_t *want = c->expected;
	RaceVerdict v = RACE_GOOD;

	for (int i = 0; i < c->g->nwrite && v == RACE_GOOD; want += c->g->write[i].bytes, i++)
		v = check_place(c, t, i, want);
	return v;
}

/* ---- running */
/* What it keeps is poisoned, too, so it is made anew. */
static void
check_rows(const Check *c, int text)
{
	const RaceRows *rows = &c->g->rows[text];

	race_worker_rows(c->r, rows->once, rows->nonce);
	race_worker_rows(c->r, rows->row, rows->n);
	if (c->r->device && !c->r->device->wait(c->r->h))
		race_worker_lost(c->r);
}

/* Once with that many threads, watched. */
static RaceVerdict
check_run(const Check *c, int text, int threads, uint8_t pattern)
{
	Race *r = c->r;
	const RaceText *t = &r->table.record[c->g->record].text[text];
	RaceFault fault = text ? race_costs_fault(r->costs, t->kernel, 0) : RACE_NO_FAULT;
	uint64_t hash;

	check_poison(c, pattern);
	hash = check_hash(c);
	check_protect(c, true);
	rt_threads_use(r->h->threads, threads);
	if (fault == RACE_CRASH)
		raise(SIGILL);
	while (fault == RACE_HANG) {
		r->shared->stuck = 1;
		pause();
	}
	check_rows(c, text);
	check_damage(c, fault);
	check_protect(c, false);
	rt_threads_use(r->h->threads, rt_threads_count(r->h->threads));
	if (check_hash(c) != hash) {
		snprintf(check_detail(c), RACE_DETAIL, "bytes beside its results or its workspace have changed");
		return RACE_BAD_STRAY;
	}
	return check_results(c, t);
}

static void
check_begin(Check *c, int text)
{
	RaceShared *s = c->r->shared;
	int64_t limit = CHECK_TIMES * c->took * rt_threads_count(c->r->h->threads),
	        least = c->r->simulated ? CHECK_SIMULATED : CHECK_LEAST;

	s->text = text;
	s->limit = limit > least ? limit : least;
	__atomic_add_fetch(&s->beat, 1, __ATOMIC_SEQ_CST);
}

/* The own kernel twice, and what it makes put aside. */
static RaceVerdict
check_baseline(Check *c)
{
	double begin;
	uint8_t *to = c->expected;

	check_down(c, c->both, c->nboth);
	check_copy(c->before, c->arena, c->both, c->nboth);
	check_poison(c, patterns[0]);
	begin = c->r->costs ? 0 : rt_now();
	check_rows(c, 0);
	c->took = c->r->costs ? 0 : (int64_t)((rt_now() - begin) * 1e9);
	check_down(c, c->own, c->nown);
	for (int i = 0; i < c->g->nwrite; to += c->g->write[i].bytes, i++)
		memcpy(to, c->arena + c->g->write[i].offset, (size_t)c->g->write[i].bytes);
	check_poison(c, patterns[1]);
	check_rows(c, 0);
	check_down(c, c->own, c->nown);
	return check_results(c, &(RaceText){.bits = RACE_SAME}) == RACE_GOOD ? RACE_GOOD : RACE_BAD_BASE;
}

static void
check_all(Check *c, int group)
{
	const RaceRecord *record = &c->r->table.record[c->g->record];
	uint8_t *verdict = race_shared_verdict(c->r, group);
	const RaceShared *shared = c->r->shared;
	const uint8_t *from = c->expected;
	RaceVerdict base = check_baseline(c);

	for (int t = 1; t < record->ntext; t++) {
		RaceVerdict v = base;

		bool asked = shared->only_record < 0 || (shared->only_record == c->g->record && shared->only_text == t);

		if (!c->g->rows[t].n || verdict[t] != RACE_UNKNOWN || !asked)
			continue;
		for (int k = 0; k < 2 && v == RACE_GOOD; k++) {
			check_begin(c, t);
			v = check_run(c, t, k ? rt_threads_count(c->r->h->threads) : 1, patterns[k]);
		}
		verdict[t] = (uint8_t)v;
		if (v != RACE_GOOD)
			break;                           /* the parent reads the reason before it is overwritten */
	}
	for (int i = 0; i < c->g->nwrite; from += c->g->write[i].bytes, i++)
		memcpy(c->arena + c->g->write[i].offset, from, (size_t)c->g->write[i].bytes);
	check_up(c, c->own, c->nown);
}

void
race_check_group(Race *r, int group)
{
	const RaceGroup *g = &r->table.group[group];
	Check *c = rt_alloc(sizeof *c);
	int64_t results = 0, both = 0;

	*c = (Check){.r = r, .g = g, .arena = r->h->run.arena};
	if (!check_spans(c)) {
		race_worker_rows(r, g->rows[0].once, g->rows[0].nonce);
		race_worker_rows(r, g->rows[0].row, g->rows[0].n);
		memset(race_shared_verdict(r, group), RACE_BAD_BASE, (size_t)r->table.record[g->record].ntext);
		free(c);
		return;
	}
	for (int i = 0; i < g->nwrite; i++)
		results += g->write[i].bytes;
	for (int i = 0; i < c->nboth; i++)
		both += c->both[i].to - c->both[i].from;
	c->expected = rt_alloc((size_t)results);
	c->before = rt_alloc((size_t)both);
	check_all(c, group);
	check_begin(c, 0);
	free(c->expected);
	free(c->before);
	free(c);
}
