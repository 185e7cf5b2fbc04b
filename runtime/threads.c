/* threads.c: the runtime's own pool: persistent threads, spin then futex.
 *
 * In: a function and a number of tasks.   Out: all tasks done, by a static split: thread k of T takes tasks
 * [tasks * k / T, tasks * (k + 1) / T). Kernels cut tasks by shape, so that the split changes nothing in the results.
 * A job is announced by a generation number. A worker spins on it for a while, as kernels follow each other within microseconds,
 * and then sleeps in the kernel; the caller wakes sleepers only if there are any. The last worker to finish does the same the
 * other way round. With more threads than processors nobody spins. */
#define _GNU_SOURCE
#include "host.h"

#include <errno.h>
#include <linux/futex.h>
#include <sched.h>
#include <stdlib.h>
#include <string.h>
#include <sys/syscall.h>
#include <unistd.h>

#define THREADS_SPIN 4000    /* pauses, about 50 to 100 us */
#define THREADS_STACK ((size_t)8 << 20)

typedef struct Worker { RtThreads *pool; int index; pthread_t id; } Worker;

struct RtThreads {
	_Alignas(64) uint32_t generation; /* raised by the caller for each job */
	uint32_t sleepers;
	_Alignas(64) uint32_t pending;    /* workers that have not finished */
	uint32_t waiting;                 /* the caller sleeps on pending */
	_Alignas(64) RtWork *work;
	void *cx;
	int64_t tasks;
	int n, spin;
	bool quit;
	Worker *worker;
};

static inline void
threads_pause(void)
{
#if defined(__x86_64__) || defined(__i386__)
	__builtin_ia32_pause();
#else
	__asm__ volatile("" ::: "memory");
#endif
}

static void
threads_futex(uint32_t *at, int op, uint32_t value)
{
	syscall(SYS_futex, at, op | FUTEX_PRIVATE_FLAG, value, NULL, NULL, 0);
}

static void
threads_share(RtThreads *p, int index)
{
	int64_t t0 = p->tasks * index / p->n, t1 = p->tasks * (index + 1) / p->n;

	if (t1 > t0)
		p->work(p->cx, t0, t1, index);
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
		threads_pause();
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
		if (p->quit)
			return NULL;
		threads_share(p, w->index);
		if (__atomic_sub_fetch(&p->pending, 1, __ATOMIC_SEQ_CST) == 0 && __atomic_load_n(&p->waiting, __ATOMIC_SEQ_CST))
			threads_futex(&p->pending, FUTEX_WAKE, 1);
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
	uint32_t left;

	for (int i = 0; i < p->spin; i++) {
		if (!__atomic_load_n(&p->pending, __ATOMIC_ACQUIRE))
			return;
		threads_pause();
	}
	__atomic_store_n(&p->waiting, 1, __ATOMIC_SEQ_CST);
	while ((left = __atomic_load_n(&p->pending, __ATOMIC_SEQ_CST)) != 0)
		threads_futex(&p->pending, FUTEX_WAIT, left);
	__atomic_store_n(&p->waiting, 0, __ATOMIC_SEQ_CST);
}

void
rt_threads_run(RtThreads *p, RtWork *work, void *cx, int64_t tasks)
{
	if (tasks <= 0)
		return;
	if (p->n == 1 || tasks == 1) {
		work(cx, 0, tasks, 0);
		return;
	}
	p->work = work;
	p->cx = cx;
	p->tasks = tasks;
	__atomic_store_n(&p->pending, (uint32_t)(p->n - 1), __ATOMIC_RELAXED);
	threads_announce(p);
	threads_share(p, 0);
	threads_join(p);
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
	p->n = n;
	p->spin = n <= rt_cpus() ? THREADS_SPIN : 0;
	p->worker = rt_alloc(sizeof *p->worker * (size_t)n);
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
	p->quit = true;
	threads_announce(p);
	for (int i = 1; i < p->n; i++)
		pthread_join(p->worker[i].id, NULL);
	free(p->worker);
	free(p);
}

int
rt_threads_count(const RtThreads *p)
{
	return p->n;
}
