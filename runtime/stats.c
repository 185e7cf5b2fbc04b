/* stats.c: figures of samples: what bench reports and races are judged by.
 *
 * In: numbers in any order.   Out: median (of an even number the mean of the middle two), least and most. */
#include "host.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

static int
stats_compare(const void *a, const void *b)
{
	double x = *(const double *)a, y = *(const double *)b;

	return x < y ? -1 : x > y;
}

RtTiming
rt_timing(double *x, int64_t n)
{
	qsort(x, (size_t)n, sizeof *x, stats_compare);
	return (RtTiming){.median = n & 1 ? x[n / 2] : (x[n / 2 - 1] + x[n / 2]) / 2, .least = x[0], .most = x[n - 1]};
}

double
rt_median(const double *x, int64_t n)
{
	double *copy, median = NAN;

	if (n > 0) {
		copy = rt_alloc(sizeof *copy * (size_t)n);
		memcpy(copy, x, sizeof *copy * (size_t)n);
		median = rt_timing(copy, n).median;
		free(copy);
	}
	return median;
}
