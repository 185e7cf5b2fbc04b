/* worker.c: the process that trains while kernels race, and the parent's end of it.
 *
 * In: an order, what each group runs (race_shared_order).   Out: nanoseconds of each unit of one step (of training,
 * evaluation or inference), kernel by kernel as with --sink off, the number of threads fixed; or verdicts (check.c).
 * What evaluation and inference make once of states, a raced kernel makes anew before each run, untimed: kernels of a
 * group keep it in the same memory. Before each kernel the worker says
 * in the shared page which it is: if it dies or stays there longer than the limit, the parent knows whose fault it
 * was. A new worker begins with the states that the seed gives, as does one whose loss is no number any more; what is
 * computed does not matter here, only that it takes its usual time. A worker that dies by SIGKILL was killed by
 * somebody else: that explains nothing. When the parent dies the worker does, too. */
#define _GNU_SOURCE
#include "race.h"

#include <errno.h>
#include <math.h>
#include <poll.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/prctl.h>
#include <sys/wait.h>
#include <unistd.h>

#define WORKER_LEAST 500000000             /* nanoseconds before any kernel is said to hang, */
#define WORKER_TIMES 20                    /* and times that of the baseline */
#define WORKER_PATIENCE 300000000000       /* of kernels whose time is not known yet, and of what is no kernel */

/* ---- the shared page */
static size_t
shared_order(const RaceTable *t)
{
	return ((size_t)t->ngroup * sizeof(int32_t) + 63) & ~(size_t)63;
}

size_t
race_shared_bytes(const RaceTable *t)
{
	return sizeof(RaceShared) + shared_order(t) + 2 * sizeof(int64_t) * (size_t)t->nunit +
	       (size_t)t->ngroup * ((size_t)t->most + RACE_DETAIL);
}

int32_t *
race_shared_order(const Race *r)
{
	return (int32_t *)(void *)r->shared->room;
}

int64_t *
race_shared_time(const Race *r)
{
	return (int64_t *)(void *)(r->shared->room + shared_order(&r->table));
}

int64_t *
race_shared_limit(const Race *r)
{
	return race_shared_time(r) + r->table.nunit;
}

uint8_t *
race_shared_verdict(const Race *r, int group)
{
	return (uint8_t *)(race_shared_limit(r) + r->table.nunit) + (size_t)group * (size_t)r->table.most;
}

char *
race_shared_detail(const Race *r, int group)
{
	return (char *)race_shared_verdict(r, r->table.ngroup) + (size_t)group * RACE_DETAIL;
}

/* ---- in the worker: a step */
static Race *worker_self;                  /* for the handler of a store to where none belongs */

static void
worker_stray(int number, siginfo_t *info, void *cx)
{
	const Race *r = worker_self;
	const uint8_t *at = info->si_addr;

	(void)cx;
	if (info->si_code > 0 && at >= r->h->run.arena && at < r->h->run.arena + r->h->arena_bytes)
		r->shared->stray = 1;
	signal(number, SIG_DFL);                 /* it happens again, and ends the process */
}

void
race_worker_rows(Race *r, const RtRow *first, int n)
{
	if (r->device) {
		if (!r->device->rows(r->h, first, n))
			race_worker_lost(r);
		return;
	}
	for (int i = 0; i < n; i++)
		rt_row_run(r->h, &first[i], first[i].off);
}

void
race_worker_lost(Race *r)
{
	r->shared->error = r->h->error;
	_exit(1);
}

static int64_t
worker_now(const Race *r)
{
	return r->costs ? 0 : (int64_t)(rt_now() * 1e9);
}

/* A kernel that races: with what the table of costs does to it. Returns when its time began. */
static int64_t
worker_kernel(Race *r, int group, int text)
{
	const RaceGroup *g = &r->table.group[group];
	const RaceRows *rows = &g->rows[text];
	int64_t begin;
	RaceFault fault =
	        text ? race_costs_fault(r->costs, r->table.record[g->record].text[text].kernel, r->shared->number)
	             : RACE_NO_FAULT;

	if (fault == RACE_CRASH)
		raise(SIGILL);
	while (fault == RACE_HANG) {
		r->shared->stuck = 1;
		pause();
	}
	race_worker_rows(r, rows->once, rows->nonce);
	begin = worker_now(r);
	race_worker_rows(r, rows->row, rows->n);
	return begin;
}

static bool
worker_units(Race *r, const int32_t *order, int64_t *ns)
{
	RaceShared *s = r->shared;

	if (r->device)
		return race_device_units(r, order, ns);
	for (int u = 0; u < r->table.nunit; u++) {
		const RaceUnit *unit = &r->table.unit[u];
		const RtRow *row = &r->table.graph->row[unit->row];
		int64_t begin;

		s->unit = u;
		s->text = unit->group >= 0 ? order[unit->group] : 0;
		s->limit = race_shared_limit(r)[u];
		__atomic_add_fetch(&s->beat, 1, __ATOMIC_SEQ_CST);
		begin = worker_now(r);
		if (unit->group >= 0 && s->what == RACE_CHECK)
			race_check_group(r, unit->group);
		else if (unit->group >= 0)
			begin = worker_kernel(r, unit->group, order[unit->group]);
		else
			race_worker_rows(r, row, 1);
		ns[u] += worker_now(r) - begin;
		if (row->check && rt_fault(&r->h->run)) {
			rt_host_fault(r->h);
			return false;
		}
	}
	s->unit = -1;
	return true;
}

static void
worker_scalar(Race *r, int64_t offset, const void *value)
{
	if (offset >= 0)
		memcpy(r->h->run.arena + offset, value, 8);
}

/* States are what they were: a loss that is no number has its reasons elsewhere. */
static bool
worker_forward(Race *r)
{
	RtRun *run = &r->h->run;
	const RtGraph *g = r->table.graph;
	int64_t *ns = race_shared_time(r);

	memset(ns, 0, sizeof *ns * (size_t)r->table.nunit);
	run->micro = 0;
	rt_batch(run, g->input, r->h->program.ninput);
	worker_scalar(r, g->seed, &run->seed);
	worker_scalar(r, g->step, &run->step);
	worker_scalar(r, g->rate, &run->rate);
	worker_scalar(r, g->first, &run->first);
	if (!r->kept && !r->device)
		race_worker_rows(r, r->table.once, r->table.nonce);
	r->kept = r->kept || !r->device;
	if (!worker_units(r, race_shared_order(r), ns))
		return false;
	run->step++;
	return true;
}

/* One update, as the loop of the model makes it. False after rt_fail. */
static bool
worker_step(Race *r)
{
	RtHost *h = r->h;
	RtRun *run = &h->run;
	const RtGraph *g = r->table.graph;
	int64_t *ns = race_shared_time(r);
	const RtLoop *loop = &h->program.train;
	const RtGraph *reports = &h->program.graph[loop->reports];

	memset(ns, 0, sizeof *ns * (size_t)r->table.nunit);
	rt_shuffle(run);
	rt_rate(run);
	for (run->micro = 0; run->micro < h->accumulate; run->micro++) {
		rt_batch(run, g->input, h->program.ninput);
		worker_scalar(r, g->seed, &run->seed);
		worker_scalar(r, g->step, &run->step);
		worker_scalar(r, g->rate, &run->rate);
		worker_scalar(r, g->first, &run->first);
		if (!worker_units(r, race_shared_order(r), ns))
			return false;
		if (h->program.shards > 1)
			rt_merge(run);
	}
	if (h->accumulate > 1 && rt_loop_call(h, RT_G_UPDATE, NULL, NULL) != RT_OK)
		return rt_fail(&h->error, "the update of step %lld failed", (long long)run->step);
	bool finite = reports->loss < 0 || isfinite(rt_dtype_read(reports->scalar_dtype[reports->loss],
	                                                          run->arena + reports->scalar_offset[reports->loss]));

	run->step++;
	if (!finite)
		memcpy(run->arena, r->snapshot, r->snapshot_bytes);
	if (!finite || !r->device)               /* else they are newer on the device */
		run->prepacked = 0;
	return true;
}

/* ---- in the worker: the process */
static bool
worker_prepare(Race *r)
{
	RtHost *h = r->h;

	if ((r->device && !race_device_ready(r)) || !rt_host_memory(h, r->data.examples))
		return false;
	if (!r->device)
		rt_host_touch(h);
	if (!rt_host_init_state(h))
		return false;
	h->run.allow_nan = 1;
	h->wrap = true;
	h->profiles = true;                      /* the number of threads stays */
	h->total = (int64_t)1 << 40;
	h->next_save = h->stop_step = INT64_MAX;
	rt_host_use(h, r->which == RT_G_TRAIN ? RT_M_TRAIN : RT_M_EVAL, &r->data,
	            r->which == RT_G_TRAIN && h->program.shuffle);
	h->graph = r->which == RT_G_TRAIN ? h->graph : r->table.graph;
	h->run.steps_per_epoch = INT64_MAX / 4;
	for (int i = 0; i < h->program.nstate; i++) {
		size_t end = (size_t)(h->program.state[i].t.offset + h->program.state[i].t.bytes);

		r->snapshot_bytes = end > r->snapshot_bytes ? end : r->snapshot_bytes;
	}
	r->snapshot = rt_large(r->snapshot_bytes);
	if (!r->snapshot)
		return rt_fail(&h->error, "out of memory for a copy of the states");
	memcpy(r->snapshot, h->run.arena, r->snapshot_bytes);
	return true;
}

static void
worker_signals(Race *r)
{
	struct sigaction a = {.sa_sigaction = worker_stray, .sa_flags = SA_SIGINFO};

	worker_self = r;
	signal(SIGINT, SIG_IGN);                 /* of a terminal: the parent sees to it */
	signal(SIGTERM, SIG_IGN);
	signal(SIGHUP, SIG_IGN);
	sigaction(SIGSEGV, &a, NULL);
	sigaction(SIGBUS, &a, NULL);
}

static _Noreturn void
worker_main(Race *r, int from, int to, pid_t parent)
{
	char byte;

	prctl(PR_SET_PDEATHSIG, SIGKILL);
	if (getppid() != parent)
		_exit(1);
	worker_signals(r);
	bool good = worker_prepare(r);

	while (read(from, &byte, 1) == 1) {
		good = good && (r->which == RT_G_TRAIN ? worker_step(r) : worker_forward(r));
		if (!good) {
			r->shared->failed = 1;
			r->shared->error = r->h->error;
		}
		r->shared->unit = -1;
		if (write(to, &byte, 1) != 1)
			break;
	}
	_exit(0);
}

/* ---- in the parent */
bool
race_worker_start(Race *r)
{
	RtError *e = &r->h->error;
	int to[2], from[2];
	pid_t parent = getpid();

	r->shared->unit = -1;
	r->shared->error = (RtError){0};
	r->shared->stray = r->shared->stuck = r->shared->failed = 0;
	r->ready = r->checked = r->kept = false;
	if (pipe(to) != 0)
		return rt_fail(e, "a pipe to the racing process: %s", strerror(errno));
	if (pipe(from) != 0) {
		close(to[0]);
		close(to[1]);
		return rt_fail(e, "a pipe from the racing process: %s", strerror(errno));
	}
	fflush(NULL);
	r->worker = fork();
	if (r->worker == 0) {
		close(to[1]);
		close(from[0]);
		if (r->journal.fd >= 0) { /* they are the parent's alone: whoever comes after it finds them free */
			close(r->journal.fd);
			close(r->journal.lock.fd);
		}
		worker_main(r, to[0], from[1], parent);
	}
	close(to[0]);
	close(from[1]);
	r->to = to[1];
	r->from = from[0];
	return r->worker > 0 || rt_fail(e, "the racing process: %s", strerror(errno));
}

/* The signal that ended it, 0 if none did. */
static int
worker_reap(Race *r)
{
	int status = 0;

	close(r->to);
	close(r->from);
	while (waitpid(r->worker, &status, 0) < 0 && errno == EINTR)
		;
	r->worker = 0;
	return WIFSIGNALED(status) ? WTERMSIG(status) : 0;
}

void
race_worker_stop(Race *r)
{
	if (r->worker > 0) {
		kill(r->worker, SIGKILL);
		worker_reap(r);
	}
}

/* How long a kernel has run as the parent saw it: while the whole machine stood still, no time passed for either. */
typedef struct Watch { uint64_t beat; double last, waited; } Watch;
#define WORKER_LOOK 0.02                   /* seconds from one look to the next, */
#define WORKER_COUNTS 0.04                 /* of which so many count */

static bool
worker_hangs(const Race *r, Watch *w)
{
	const RaceShared *s = r->shared;
	double now, passed;

	if (r->costs)
		return s->stuck;
	now = rt_now();
	passed = now - w->last < WORKER_COUNTS ? now - w->last : WORKER_COUNTS;
	w->waited = s->beat == w->beat ? w->waited + passed : 0;
	w->beat = s->beat;
	w->last = now;
	return w->waited * 1e9 > (s->unit >= 0 ? (double)s->limit : (double)WORKER_PATIENCE);
}

static void
worker_limits(const Race *r)
{
	int64_t *limit = race_shared_limit(r);

	for (int u = 0; u < r->table.nunit; u++) {
		double expect = WORKER_TIMES * race_reference(r, u);

		limit[u] = !(expect > 0) ? WORKER_PATIENCE : expect < WORKER_LEAST ? WORKER_LEAST : (int64_t)expect;
	}
}

RaceEnd
race_worker_run(Race *r, RaceWhat what, int64_t number, int *signal)
{
	struct pollfd p = {.fd = r->from, .events = POLLIN};
	Watch w = {.beat = r->shared->beat, .last = r->costs ? 0 : rt_now()};
	char byte = 1;

	r->shared->what = what;
	r->shared->number = r->shared->step = number;
	worker_limits(r);
	r->shared->careful = r->careful || r->costs != NULL;
	if (write(r->to, &byte, 1) == 1) {
		for (;;) {
			int n = poll(&p, 1, (int)(WORKER_LOOK * 1e3));

			if (n > 0 && read(r->from, &byte, 1) == 1)
				return r->shared->failed ? RACE_FAILED : RACE_DONE;
			if (n > 0)
				break;
			if (worker_hangs(r, &w)) {
				kill(r->worker, SIGKILL);
				*signal = worker_reap(r);
				return RACE_HUNG;
			}
		}
	}
	*signal = worker_reap(r);
	return RACE_DIED;
}
