/* pace.c: how many of the pool's threads a step uses.
 *
 * In: the time at which each step begins, of training, of evaluation, of inference.   Out: the pool's number of threads
 * in use. Kernels of a few microseconds may be faster on fewer threads: what one writes and another reads must travel,
 * and where the CPUs share no cache, or a virtual machine's are moved apart while it runs, that takes longer than
 * the work. So short steps are measured: now and then some are done with half or twice as many threads, and the faster
 * number stays, and the next comparison goes on from there. One that is lost ends as soon as that is plain, and the
 * next waits until it has taken a fiftieth of the time. Results do not depend on it (threads.c). Steps of more than
 * PACE_LONG are not asked. The first step uses all threads, or as many as a tuning file found to be best for this
 * program; if its steps are long here, that is compared with all, once. */
#include "host.h"

#include <stdlib.h>
#include <string.h>

#define PACE_LONG 4e-3   /* seconds of a step */
#define PACE_REST 0.25   /* seconds from one comparison to the next at least */
#define PACE_SHARE 50    /* and so many times what the last one has taken, but for */
#define PACE_MOST 4.     /* seconds */
#define PACE_SKIP 2      /* steps after a change: a thread may have to wake, data to move (where none wakes, half) */
#define PACE_BETTER 0.97 /* of the time before */
#define PACE_WORSE 1.1   /* of it: so many steps, the first ones, that all take longer are enough */
#define PACE_FEW 3
#define PACE_WORST 1.5   /* of it: one step, the first one, is enough */

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
	p->skip = n < p->used ? PACE_SKIP / 2 : PACE_SKIP;
	p->used = n;
	rt_threads_use(t, n);
}

/* The middle of the steps measured, and what each waited for its batch on average: of fewer threads readers have more
 * of the CPUs, and a few steps in a row may find batches ready. Of a comparison that is lost, whatever
 * the steps left bring, any time that says so. 0: not yet known. */
static double
pace_middle(RtPace *p, double took, double waited)
{
	double sorted[PACE_STEPS];

	p->waits = waited + (p->ntook ? p->waits : 0);
	took -= waited;
	p->took[p->ntook++] = took;
	if (p->compares) {
		p->slower += took > PACE_BETTER * p->before;
		p->worse += took > PACE_WORSE * p->before;
		if (p->slower >= PACE_STEPS / 2 || (p->worse == PACE_FEW && p->ntook == PACE_FEW) ||
		    (p->ntook == 1 && took > PACE_WORST * p->before))
			return PACE_WORSE * p->before;
	}
	if (p->ntook < PACE_STEPS)
		return 0;
	memcpy(sorted, p->took, sizeof sorted);
	qsort(sorted, PACE_STEPS, sizeof *sorted, pace_less);
	return sorted[PACE_STEPS / 2] + p->waits / PACE_STEPS;
}

/* A comparison ends now; the number before it was faster. */
static void
pace_back(RtPace *p, RtThreads *t, double now)
{
	double rest = PACE_SHARE * (now - p->began);

	p->way = (p->way + 1) % PACE_WAYS;
	p->rest = now + (rest < PACE_REST ? PACE_REST : rest < PACE_MOST ? rest : PACE_MOST);
	pace_use(p, t, p->from);
}

void
rt_pace_step(RtPace all[RT_M_EVAL + 1], RtThreads *t, RtMode mode, double now, double waited)
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
	middle = pace_middle(p, took, waited);
	if (middle == 0)
		return;
	if (p->compares) {
		p->compares = false;
		if (middle > PACE_BETTER * p->before)
			pace_back(p, t, now);
		p->ntook = 0;
		return;
	}
	p->ntook = 0;
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
	p->began = now;
	p->slower = p->worse = 0;
	p->from = p->used;
	pace_use(p, t, other);
}
