/* pool.c: the thread pool under many small jobs: every task runs once, of a share in one call if asked, whatever the
 * number of threads, of those in use and of tasks; how many short steps use. */
#include "../../runtime/host.h"

#include <stdlib.h>
#include <string.h>

#define POOL_TASKS 300

typedef struct Job { int32_t ran[POOL_TASKS]; int threads, calls; bool bad; } Job;

static void
pool_work(void *cx, int64_t t0, int64_t t1, int thread)
{
	Job *j = cx;

	if (thread < 0 || thread >= j->threads || t0 < 0 || t1 > POOL_TASKS)
		__atomic_store_n(&j->bad, true, __ATOMIC_RELAXED);
	__atomic_add_fetch(&j->calls, 1, __ATOMIC_RELAXED);
	for (int64_t t = t0; t < t1; t++)
		j->ran[t]++;                         /* a task of its own: no atomics needed if each runs once */
}

/* Steps that take seconds[threads in use, less 1], for `long_for` seconds; the number in use then. */
static int
pool_pace(RtPace *pace, RtThreads *p, RtMode mode, const double *seconds, double *now, double long_for)
{
	double end = *now + long_for;

	while (*now < end) {
		rt_pace_step(pace, p, mode, *now, 0);
		*now += seconds[rt_threads_used(p) - 1];
	}
	/* not within a comparison */
	while (pace[mode].compares) {
		rt_pace_step(pace, p, mode, *now, 0);
		*now += seconds[rt_threads_used(p) - 1];
	}
	return rt_threads_used(p);
}

/* Many threads outrun the readers: every fourth step waits, and all take longer than one thread would. */
static bool
pool_fed(RtThreads *p, double *now)
{
	RtPace pace[RT_M_EVAL + 1] = {0};
	double end = *now + 2;

	for (int i = 0; p && (*now < end || pace[RT_M_TRAIN].compares); i++) {
		rt_pace_step(pace, p, RT_M_TRAIN, *now, rt_threads_used(p) > 1 && i % 4 == 0 ? 5e-4 : 0);
		*now += rt_threads_used(p) == 1 ? 1.9e-4 : i % 4 == 3 ? 6e-4 : 1e-4;
	}
	if (p && rt_threads_used(p) == 1)
		return true;
	printf("FAIL pace: %d threads that wait for readers\n", p ? rt_threads_used(p) : 0);
	return false;
}

/* A program's own number; if steps are long with it, all are tried. */
static int
pool_first(RtThreads *p, double *now, int *failed)
{
	int passed = 0;

	for (int i = 0; i < 2; i++) {
		RtPace first[RT_M_EVAL + 1] = {{.start = 2}, {.start = 2}, {.start = 9}};
		static const double less[] = {9e-3, 8e-3, 7e-3, 6e-3};

		if (p)
			rt_pace_step(first, p, i ? RT_M_EVAL : RT_M_TRAIN, *now, 0);
		int begun = p ? rt_threads_used(p) : 0,
		    got = p && !i ? pool_pace(first, p, RT_M_TRAIN, less, now, 2) : 4;

		if (begun == (i ? 4 : 2) && got == 4) {
			passed++;
		} else {
			(*failed)++;
			printf("FAIL pace: a program's own number: %d threads, then %d\n", begun, got);
		}
	}
	return passed;
}

static int
pool_paces(int *failed)
{
	static const double one[] = {3e-4, 4e-4, 4e-4, 4e-4}, all[] = {3e-4, 2e-4, 2e-4, 1.5e-4},
	                    two[] = {3e-4, 2e-4, 2.5e-4, 2.5e-4}, same[] = {3e-4, 3e-4, 3e-4, 3e-4},
	                    slow[] = {9e-3, 10e-3, 10e-3, 10e-3};
	static const struct { const char *what; const double *seconds; RtMode mode; int want;
	} row[] = {{"long steps use all", slow, RT_M_TRAIN, 4},
	           {"one thread is faster", one, RT_M_TRAIN, 1},
	           {"of another mode", two, RT_M_EVAL, 2},
	           {"as before", one, RT_M_TRAIN, 1},
	           {"all are faster now", all, RT_M_TRAIN, 4},
	           {"two are", two, RT_M_TRAIN, 2},
	           {"no difference", same, RT_M_TRAIN, 2},
	           {"long steps stay", slow, RT_M_TRAIN, 2},
	           {"all again", all, RT_M_TRAIN, 4}};
	RtPace pace[RT_M_EVAL + 1] = {0};
	RtError e = {""};
	RtThreads *p = rt_threads_new(4, &e);
	double now = 100, end;
	int passed = 0;

	for (int i = 0; i < RT_COUNT(row); i++) {
		int got = p ? pool_pace(pace, p, row[i].mode, row[i].seconds, &now, 2) : 0;

		got == row[i].want ? passed++ : (*failed)++;
		if (got != row[i].want)
			printf("FAIL pace, %s: %d threads, expected %d\n", row[i].what, got, row[i].want);
	}
	passed += pool_first(p, &now, failed);
	pool_fed(p, &now) ? passed++ : (*failed)++;
	/* comparisons that all are lost take a fiftieth of the time at most */
	static const double lost[] = {14e-3, 7e-3, 7e-3, 3.5e-3};
	double begin = now, useful = 0;

	end = now + 30;
	while (p && now < end) {
		rt_pace_step(pace, p, RT_M_TRAIN, now, 0);
		now += lost[rt_threads_used(p) - 1];
		useful += lost[3];
	}
	if (useful >= 0.98 * (now - begin)) {
		passed++;
	} else {
		(*failed)++;
		printf("FAIL pace: comparisons take %.1f %% of the time\n", 100 - 100 * useful / (now - begin));
	}
	/* a comparison that something else interrupts has chosen nothing */
	while (p && !pace[RT_M_TRAIN].compares) {
		rt_pace_step(pace, p, RT_M_TRAIN, now, 0);
		now += all[rt_threads_used(p) - 1];
	}
	if (p) {
		rt_threads_use(p, 3);
		rt_pace_step(pace, p, RT_M_TRAIN, now, 0);
	}
	if (p && rt_threads_used(p) == 4 && !pace[RT_M_TRAIN].compares) {
		passed++;
	} else {
		(*failed)++;
		printf("FAIL pace: an interrupted comparison leaves %d threads\n", p ? rt_threads_used(p) : 0);
	}
	rt_threads_free(p);
	return passed;
}

int
main(void)
{
	static const int threads[] = {1, 2, 3, 5, 16};
	int passed = 0, failed = 0;

	for (int i = 0; i < RT_COUNT(threads); i++) {
		RtError e = {""};
		RtThreads *p = rt_threads_new(threads[i], &e);
		bool good = p != NULL;

		for (int round = 0; good && round < 3000; round++) {
			int tasks = round % 7 == 0 ? round % POOL_TASKS : round % 40;
			Job j = {.threads = threads[i]};

			rt_threads_use(p, round / 100 % threads[i] + 1);
			j.threads = rt_threads_used(p);
			if (round % 4 == 0)
				rt_threads_run_shares(p, pool_work, &j, tasks);
			else if (round % 4 == 1)
				rt_threads_run_whole(p, pool_work, &j, tasks, 1 + round % 11);
			else
				rt_threads_run(p, pool_work, &j, tasks);
			good = good && (round % 4 || j.calls <= j.threads);
			for (int t = 0; t < POOL_TASKS; t++)
				good = good && j.ran[t] == (t < tasks);
			good = good && !j.bad;
		}
		rt_threads_free(p);
		good ? passed++ : failed++;
		if (!good)
			printf("FAIL pool: %d threads %s\n", threads[i], e.text);
	}
	passed += pool_paces(&failed);
	printf("%d passed, %d failed, 0 skipped\n", passed, failed);
	return failed != 0;
}
