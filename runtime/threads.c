/* threads.c: the runtime's own pool: persistent threads, spin then futex.
 *
 * In: a function and a number of tasks.   Out: all tasks done. Kernels cut tasks by shape and tasks touch nothing of
 * each other, so that who runs a task changes nothing in the results.
 * The tasks are cut into chunks; thread k's share is the k-th part of them, the same for every kernel of one size, so
 * that its caches stay warm. Whoever has finished its share takes chunks of others: on a busy machine a thread that the
 * system does not run delays nobody, for the caller waits for chunks, not for threads.
 * A job is announced by a generation number. A worker spins on it for a while, as kernels follow each other within
 * microseconds, and then sleeps in the kernel; the caller wakes sleepers only if there are any. The last to finish does
 * the same the other way round. Fewer threads than there are may be told to take part (pace.c); the others look on.
 * With more threads than CPUs nobody spins. A chunk is claimed by compare-and-swap on (generation, chunks left)
 * of a share: a worker that comes late finds another generation or nothing left, and touches nothing. */
#define _GNU_SOURCE
#include "host.h"

#include <errno.h>
#include <linux/futex.h>
#include <sched.h>
#include <stdlib.h>
#include <string.h>
#include <sys/syscall.h>
#include <unistd.h>

/* Pauses, some 300 us: longer than a serial kernel between two parallel ones; waking a thread costs 5 to 50 us. */
#define THREADS_SPIN 20000
#define THREADS_STACK ((size_t)8 << 20)

#define THREADS_CHUNKS 4     /* of a share, where there are tasks enough */
#define THREADS_FEW 2        /* of a share, where chunks part tasks that have work in common */
#define THREADS_EVEN 2       /* so many wholes in a chunk: it may be one more or less */

typedef struct Worker { RtThreads *pool; int index; pthread_t id; } Worker;
typedef struct Share { _Alignas(64) uint64_t state; } Share; /* generation << 32 | chunks left */

struct RtThreads {
	_Alignas(64) uint32_t generation; /* raised by the caller for each job */
	uint32_t sleepers;
	_Alignas(64) uint32_t done;       /* chunks finished */
	uint32_t waiting;                 /* the caller sleeps on done */
	_Alignas(64) RtWork *work;        /* from here: written between jobs only */
	void *cx;
	int64_t tasks;
	int64_t whole;                    /* chunks end behind so many tasks, where that leaves them nearly even */
	uint32_t shares, chunks;          /* shares in use, chunks of one */
	int n, spin;
	int used;                         /* of n: who takes part in a job */
	bool quit;
	Share *share;
	Worker *worker;
};

static void
threads_futex(uint32_t *at, int op, uint32_t value)
{
	syscall(SYS_futex, at, op | FUTEX_PRIVATE_FLAG, value, NULL, NULL, 0);
}

/* Claims a chunk of share k; its number within the share, or -1. */
static int64_t
threads_claim(RtThreads *p, uint32_t generation, uint32_t k)
{
	uint64_t state = __atomic_load_n(&p->share[k].state, __ATOMIC_ACQUIRE);

	while (state >> 32 == generation && (uint32_t)state)
		if (__atomic_compare_exchange_n(&p->share[k].state, &state, state - 1, false, __ATOMIC_ACQ_REL,
		                                __ATOMIC_ACQUIRE))
			return (int64_t)p->chunks - (int64_t)(uint32_t)state;
	return -1;
}

/* The first task of a chunk. */
static int64_t
threads_cut(const RtThreads *p, int64_t chunk, int64_t all)
{
	int64_t at = p->tasks * chunk / all;

	return p->tasks < THREADS_EVEN * p->whole * all || chunk == all ? at : at / p->whole * p->whole;
}

/* Runs chunks, the own share first, until none is left. */
static void
threads_chunks(RtThreads *p, uint32_t generation, int index)
{
	uint32_t finished = 0, k = (uint32_t)index, tried = 0, all = 0, used = (uint32_t)rt_threads_used(p);

	if (k >= used)
		return;
	while (tried < used) {
		int64_t chunk = threads_claim(p, generation, k), t0, t1;

		if (chunk < 0) {
			k = k + 1 < used ? k + 1 : 0;
			tried++;
			continue;
		}
		all = p->shares * p->chunks;         /* stable now: the job cannot end before this chunk is counted */
		chunk += (int64_t)k * p->chunks;
		t0 = threads_cut(p, chunk, all);
		t1 = threads_cut(p, chunk + 1, all);
		if (t1 > t0)
			p->work(p->cx, t0, t1, index);
		finished++;
	}
	if (finished && __atomic_add_fetch(&p->done, finished, __ATOMIC_SEQ_CST) == all &&
	    __atomic_load_n(&p->waiting, __ATOMIC_SEQ_CST))
		threads_futex(&p->done, FUTEX_WAKE, 1);
}

/* Waits for a generation other than seen. */
static uint32_t
threads_await(RtThreads *p, uint32_t seen)
{
	uint32_t now;

	for (int i = 0; i < p->spin; i++) {
		now = __atomic_load_n(&p->generation, __ATOMIC_ACQUIRE);
		if (now != seen)
			return now;
		rt_pause();
	}
	__atomic_add_fetch(&p->sleepers, 1, __ATOMIC_SEQ_CST);
	while ((now = __atomic_load_n(&p->generation, __ATOMIC_SEQ_CST)) == seen)
		threads_futex(&p->generation, FUTEX_WAIT, seen);
	__atomic_sub_fetch(&p->sleepers, 1, __ATOMIC_SEQ_CST);
	return now;
}

static void *
threads_main(void *arg)
{
	Worker *w = arg;
	RtThreads *p = w->pool;
	uint32_t seen = 0;

	for (;;) {
		seen = threads_await(p, seen);
		if (__atomic_load_n(&p->quit, __ATOMIC_ACQUIRE))
			return NULL;
		threads_chunks(p, seen, w->index);
	}
}

static void
threads_announce(RtThreads *p)
{
	__atomic_add_fetch(&p->generation, 1, __ATOMIC_SEQ_CST);
	if (__atomic_load_n(&p->sleepers, __ATOMIC_SEQ_CST))
		threads_futex(&p->generation, FUTEX_WAKE, INT32_MAX);
}

static void
threads_join(RtThreads *p)
{
	uint32_t all = p->shares * p->chunks, done;

	for (int i = 0; i < p->spin; i++) {
		if (__atomic_load_n(&p->done, __ATOMIC_ACQUIRE) == all)
			return;
		rt_pause();
	}
	__atomic_store_n(&p->waiting, 1, __ATOMIC_SEQ_CST);
	while ((done = __atomic_load_n(&p->done, __ATOMIC_SEQ_CST)) != all)
		threads_futex(&p->done, FUTEX_WAIT, done);
	__atomic_store_n(&p->waiting, 0, __ATOMIC_SEQ_CST);
}

static void
threads_run(RtThreads *p, RtWork *work, void *cx, int64_t tasks, int64_t chunks, int64_t whole)
{
	int64_t wholes = tasks / whole;
	uint32_t generation;

	if (tasks <= 0)
		return;
	if (p->used == 1 || tasks == 1) {
		work(cx, 0, tasks, 0);
		return;
	}
	generation = p->generation + 1;
	p->work = work;
	p->cx = cx;
	p->tasks = tasks;
	p->whole = whole;
	p->shares = tasks < p->used ? (uint32_t)tasks : (uint32_t)p->used;
	if (wholes < chunks * p->shares && whole > 1)
		chunks = wholes < THREADS_FEW * p->shares ? THREADS_FEW : wholes / p->shares;
	p->chunks = (uint32_t)(tasks >= chunks * p->shares ? chunks : tasks / p->shares);
	__atomic_store_n(&p->done, 0, __ATOMIC_RELAXED);
	for (uint32_t k = 0; k < p->shares; k++)
		__atomic_store_n(&p->share[k].state, (uint64_t)generation << 32 | p->chunks, __ATOMIC_RELEASE);
	threads_announce(p);
	threads_chunks(p, generation, 0);
	threads_join(p);
}

void
rt_threads_run(RtThreads *p, RtWork *work, void *cx, int64_t tasks)
{
	threads_run(p, work, cx, tasks, THREADS_CHUNKS, 1);
}

void
rt_threads_run_whole(RtThreads *p, RtWork *work, void *cx, int64_t tasks, int64_t whole)
{
	threads_run(p, work, cx, tasks, THREADS_CHUNKS, whole < 1 ? 1 : whole);
}

void
rt_threads_run_shares(RtThreads *p, RtWork *work, void *cx, int64_t tasks)
{
	threads_run(p, work, cx, tasks, 1, 1);
}

int
rt_cpus(void)
{
	cpu_set_t *set;
	long all = sysconf(_SC_NPROCESSORS_CONF);
	int room = all > 1024 ? (int)all : 1024, n = 0;
	size_t bytes = CPU_ALLOC_SIZE(room);

	set = CPU_ALLOC(room);
	if (set && sched_getaffinity(0, bytes, set) == 0)
		n = CPU_COUNT_S(bytes, set);
	if (set)
		CPU_FREE(set);
	return n > 0 ? n : 1;
}

RtThreads *
rt_threads_new(int n, RtError *e)
{
	RtThreads *p = aligned_alloc(64, (sizeof *p + 63) & ~(size_t)63);
	pthread_attr_t attr;
	int bad = 0;

	if (!p) {
		rt_fail(e, "out of memory for the thread pool");
		return NULL;
	}
	memset(p, 0, sizeof *p);
	p->n = p->used = n;
	p->spin = n <= rt_cpus() ? THREADS_SPIN : 0;
	p->worker = rt_alloc(sizeof *p->worker * (size_t)n);
	p->share = aligned_alloc(64, sizeof *p->share * (size_t)n);
	if (!p->share) {
		rt_fail(e, "out of memory for the thread pool");
		return NULL;
	}
	memset(p->share, 0, sizeof *p->share * (size_t)n);
	pthread_attr_init(&attr);
	pthread_attr_setstacksize(&attr, THREADS_STACK);
	for (int i = 1; i < n && !bad; i++) {
		p->worker[i] = (Worker){.pool = p, .index = i};
		bad = pthread_create(&p->worker[i].id, &attr, threads_main, &p->worker[i]);
		if (bad)
			p->n = i;
	}
	pthread_attr_destroy(&attr);
	if (bad) {
		rt_fail(e, "thread %d of %d could not be started: %s; try a smaller --threads", p->n, n, strerror(bad));
		rt_threads_free(p);
		return NULL;
	}
	return p;
}

void
rt_threads_free(RtThreads *p)
{
	if (!p)
		return;
	__atomic_store_n(&p->quit, true, __ATOMIC_RELEASE);
	threads_announce(p);
	for (int i = 1; i < p->n; i++)
		pthread_join(p->worker[i].id, NULL);
	free(p->worker);
	free(p->share);
	free(p);
}

int
rt_threads_count(const RtThreads *p)
{
	return p->n;
}

void
rt_threads_use(RtThreads *p, int n)
{
	/* a thread that is late for the last job may look */
	__atomic_store_n(&p->used, n < 1 ? 1 : n > p->n ? p->n : n, __ATOMIC_RELAXED);
}

int
rt_threads_used(const RtThreads *p)
{
	return __atomic_load_n(&p->used, __ATOMIC_RELAXED);
}
