/* pace.c: how many of the pool's threads a step uses.
 *
 * In: the time at which each step begins, of training, of evaluation, of inference.   Out: the pool's number of threads
 * in use. Kernels of a few microseconds may be faster on fewer threads: what one writes and another reads must travel,
 * and where the CPUs share no cache, or a virtual machine's are moved apart while it runs, that takes longer than
 * the work. So short steps are measured: now and then some are done with half or twice as many threads, and the faster
 * number stays, and the next comparison goes on from there. Results do not depend on it (threads.c). Steps of more than
 * PACE_LONG are not asked. The first step uses all threads, or as many as a tuning file found to be best for this
 * program; if its steps are long here, that is compared with all, once. */
#include "host.h"

#include <stdlib.h>

#define PACE_LONG 4e-3   /* seconds of a step */
#define PACE_REST 0.25   /* seconds from one comparison to the next: it takes some 20 steps that may be slower */
#define PACE_SKIP 4      /* steps after a change: a thread may have to wake, data to move */
#define PACE_BETTER 0.97 /* of the time before */

enum { PACE_HALF, PACE_TWICE, PACE_ONE, PACE_WAYS };

static int
pace_less(const void *a, const void *b)
{
	double x = *(const double *)a, y = *(const double *)b;

	return (x > y) - (x < y);
}

/* A number of threads to compare with, in the way that p goes or else another one: half, twice as many, one. now, if
 * there is none. */
static int
pace_other(RtPace *p, int now, int all)
{
	for (int i = 0; i < PACE_WAYS; i++) {
		int n = p->way == PACE_HALF ? (now + 1) / 2 : p->way == PACE_TWICE ? 2 * now : 1;

		n = n > all ? all : n;
		if (n != now)
			return n;
		p->way = (p->way + 1) % PACE_WAYS;
	}
	return now;
}

static void
pace_use(RtPace *p, RtThreads *t, int n)
{
	p->used = n;
	p->skip = PACE_SKIP;
	rt_threads_use(t, n);
}

void
rt_pace_step(RtPace all[RT_M_EVAL + 1], RtThreads *t, RtMode mode, double now)
{
	RtPace *p = &all[mode];
	double took = now - p->last, middle;
	int other;

	p->last = now;
	if (rt_threads_count(t) == 1)
		return;
	if (!p->used || rt_threads_used(t) != p->used) {
		/* the first step of its kind, or behind those of another: no time is known, and a comparison begins
		 * anew */
		pace_use(p, t, p->used ? (p->compares ? p->from : p->used) : p->start && p->start < rt_threads_count(t)
			? p->start : rt_threads_count(t));
		p->compares = false;
		p->ntook = 0;
		return;
	}
	if (p->skip > 0) {
		p->skip--;
		return;
	}
	if (!p->compares && now < p->rest)
		return;
	p->took[p->ntook++] = took;
	if (p->ntook < PACE_STEPS)
		return;
	p->ntook = 0;
	qsort(p->took, PACE_STEPS, sizeof *p->took, pace_less);
	middle = p->took[PACE_STEPS / 2];
	if (p->compares) {
		p->compares = false;
		if (middle > PACE_BETTER * p->before) {
			p->way = (p->way + 1) % PACE_WAYS;
			p->rest = now + PACE_REST;
			pace_use(p, t, p->from);
		}
		return;
	}
	other = middle < PACE_LONG ? pace_other(p, p->used, rt_threads_count(t))
	        : p->start         ? rt_threads_count(t)
	                           : p->used;
	p->start = 0;
	if (other == p->used) {
		p->rest = now + PACE_REST;
		return;
	}
	p->compares = true;
	p->before = middle;
	p->from = p->used;
	pace_use(p, t, other);
}
