/* pool.c: the thread pool under many small jobs: every task runs once, whatever the number of threads and of tasks. */
#include "../../runtime/host.h"

#include <stdlib.h>
#include <string.h>

#define POOL_TASKS 300

typedef struct Job { int32_t ran[POOL_TASKS]; int threads; bool bad; } Job;

static void
pool_work(void *cx, int64_t t0, int64_t t1, int thread)
{
	Job *j = cx;

	if (thread < 0 || thread >= j->threads || t0 < 0 || t1 > POOL_TASKS)
		__atomic_store_n(&j->bad, true, __ATOMIC_RELAXED);
	for (int64_t t = t0; t < t1; t++)
		j->ran[t]++;                         /* a task of its own: no atomics needed if each runs once */
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

			rt_threads_run(p, pool_work, &j, tasks);
			for (int t = 0; t < POOL_TASKS; t++)
				good = good && j.ran[t] == (t < tasks);
			good = good && !j.bad;
		}
		rt_threads_free(p);
		good ? passed++ : failed++;
		if (!good)
			printf("FAIL pool: %d threads %s\n", threads[i], e.text);
	}
	printf("%d passed, %d failed, 0 skipped\n", passed, failed);
	return failed != 0;
}
