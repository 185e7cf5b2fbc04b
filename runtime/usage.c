/* usage.c: what a run keeps busy: samples of CPUs, memory and the GPU, by a thread of its own.
 *
 * In: an interval.   Out: at the end of each interval a sample: the share of the machine's CPUs that this process
 * kept busy in it (getrusage), its resident memory (/proc/self/statm) and the share of the machine's; on a GPU what
 * NVML says of the device that CUDA calls the first: its utilisation, its memory controller's, memory held. NVML is the
 * driver's library and is looked for when it is needed. */
#define _GNU_SOURCE
#include "host.h"

#include <dlfcn.h>
#include <errno.h>
#include <stdlib.h>
#include <string.h>
#include <sys/resource.h>
#include <time.h>
#include <unistd.h>

typedef struct Sample {
	double seconds, cpu, memory, rss, gpu, gpu_memory, gpu_bytes;
} Sample;
typedef struct Nvml {
	void *library, *device;
	int (*rates)(void *device, unsigned rates[2]);
	int (*memory)(void *device, unsigned long long memory[3]);
} Nvml;
struct RtUsage {
	RtHost *h;
	double interval, begin, last, busy; /* busy: seconds of CPUs until `last` */
	double cpus, bytes;                 /* of the machine */
	FILE *file;                         /* a line a sample; NULL */
	Nvml nvml;
	Sample *sample;
	int n, room;
	pthread_t thread;
	pthread_mutex_t lock;
	pthread_cond_t ends;
	bool ended;
};

/* ---- the GPU */
/* The first device that CUDA sees, by number or by name; device stays NULL where NVML does not say. */
static Nvml
nvml_open(void)
{
	const char *visible = getenv("CUDA_VISIBLE_DEVICES");
	Nvml v = {.library = dlopen("libnvidia-ml.so.1", RTLD_NOW)};
	int (*init)(void), (*by_index)(unsigned, void **), (*by_name)(const char *, void **);
	char name[96];

	if (!v.library)
		return v;
	*(void **)&init = dlsym(v.library, "nvmlInit_v2");
	*(void **)&by_index = dlsym(v.library, "nvmlDeviceGetHandleByIndex_v2");
	*(void **)&by_name = dlsym(v.library, "nvmlDeviceGetHandleByUUID");
	*(void **)&v.rates = dlsym(v.library, "nvmlDeviceGetUtilizationRates");
	*(void **)&v.memory = dlsym(v.library, "nvmlDeviceGetMemoryInfo");
	if (!init || !by_index || !by_name || !v.rates || !v.memory || init() != 0)
		return v;
	snprintf(name, sizeof name, "%.*s", (int)strcspn(visible ? visible : "0", ","), visible ? visible : "0");
	if ((*name >= '0' && *name <= '9' ? by_index((unsigned)atoi(name), &v.device) : by_name(name, &v.device)) != 0)
		v.device = NULL;
	return v;
}

static void
nvml_sample(const Nvml *v, Sample *s)
{
	unsigned rates[2] = {0};            /* percent: device, memory */
	unsigned long long memory[3] = {0}; /* bytes: total, available, used */

	s->gpu = s->gpu_memory = s->gpu_bytes = -1;
	if (!v->device || v->rates(v->device, rates) != 0 || v->memory(v->device, memory) != 0)
		return;
	s->gpu = rates[0] / 100.0;
	s->gpu_memory = rates[1] / 100.0;
	s->gpu_bytes = (double)memory[2];
}

/* ---- samples */
static double
usage_busy(void)
{
	struct rusage u = {0};

	getrusage(RUSAGE_SELF, &u);
	return (double)(u.ru_utime.tv_sec + u.ru_stime.tv_sec) +
	       1e-6 * (double)(u.ru_utime.tv_usec + u.ru_stime.tv_usec);
}

static double
usage_resident(void)
{
	FILE *f = fopen("/proc/self/statm", "r");
	long long all = 0, resident = 0;

	if (f && fscanf(f, "%lld %lld", &all, &resident) != 2)
		resident = 0;
	if (f)
		fclose(f);
	return (double)resident * (double)sysconf(_SC_PAGESIZE);
}

static void
put_share(FILE *f, const char *key, double x, int digits)
{
	fprintf(f, ", \"%s\": ", key);
	if (x < 0)
		fprintf(f, "null");
	else
		rt_json_number(f, x, digits);
}

static void
put_sample(FILE *f, const Sample *s)
{
	put_share(f, "cpu", s->cpu, 4);
	put_share(f, "memory", s->memory, 4);
	put_share(f, "rss_bytes", s->rss, 15);
	put_share(f, "gpu", s->gpu, 4);
	put_share(f, "gpu_memory_busy", s->gpu_memory, 4);
	put_share(f, "gpu_memory_bytes", s->gpu_bytes, 15);
}

static void
usage_sample(RtUsage *u)
{
	double now = rt_now(), busy = usage_busy();
	Sample s = {.seconds = now - u->begin, .rss = usage_resident()};

	if (now - u->last < 1e-6)
		return;
	s.cpu = (busy - u->busy) / ((now - u->last) * u->cpus);
	s.cpu = s.cpu > 1 ? 1 : s.cpu;
	s.memory = u->bytes > 0 ? s.rss / u->bytes : 0;
	nvml_sample(&u->nvml, &s);
	u->last = now;
	u->busy = busy;
	if (u->n == u->room) {
		Sample *more = realloc(u->sample, sizeof *more * (size_t)(2 * u->room + 16));

		if (!more)
			return;
		u->sample = more;
		u->room = 2 * u->room + 16;
	}
	u->sample[u->n] = s;
	__atomic_store_n(&u->n, u->n + 1, __ATOMIC_RELEASE);
	if (!u->file)
		return;
	fprintf(u->file, "{\"seconds\": %.3f, \"step\": %lld", s.seconds,
	        (long long)__atomic_load_n(&u->h->run.step, __ATOMIC_RELAXED));
	put_sample(u->file, &s);
	fprintf(u->file, "}\n");
	fflush(u->file);
}

static void *
usage_thread(void *cx)
{
	RtUsage *u = cx;
	struct timespec at;

	pthread_mutex_lock(&u->lock);
	while (!u->ended) {
		clock_gettime(CLOCK_MONOTONIC, &at); /* a sample that came late shortens no other */
		int64_t nanoseconds = at.tv_nsec + (int64_t)(u->interval * 1e9);

		at.tv_sec += nanoseconds / 1000000000;
		at.tv_nsec = nanoseconds % 1000000000;
		while (!u->ended && pthread_cond_timedwait(&u->ends, &u->lock, &at) != ETIMEDOUT)
			continue;
		if (!u->ended)
			usage_sample(u);
	}
	pthread_mutex_unlock(&u->lock);
	return NULL;
}

bool
rt_usage_try(const char *path, FILE **f, RtError *e)
{
	*f = path ? fopen(path, "w") : NULL;
	return !path || *f || rt_fail(e, "--usage: cannot write %s: %s", path, strerror(errno));
}

RtUsage *
rt_usage_begin(RtHost *h, FILE *file)
{
	RtUsage *u = rt_alloc(sizeof *u);
	pthread_condattr_t monotonic;
	sigset_t all, was;

	u->h = h;
	u->file = file;
	u->interval = h->opt.interval;
	u->cpus = (double)sysconf(_SC_NPROCESSORS_ONLN);
	u->bytes = (double)sysconf(_SC_PHYS_PAGES) * (double)sysconf(_SC_PAGESIZE);
	if (h->object->device)
		u->nvml = nvml_open();
	u->begin = u->last = rt_now();
	u->busy = usage_busy();
	pthread_mutex_init(&u->lock, NULL);
	pthread_condattr_init(&monotonic);
	pthread_condattr_setclock(&monotonic, CLOCK_MONOTONIC);
	pthread_cond_init(&u->ends, &monotonic);
	pthread_condattr_destroy(&monotonic);
	sigfillset(&all); /* signals are the monitor's */
	pthread_sigmask(SIG_BLOCK, &all, &was);
	if (pthread_create(&u->thread, NULL, usage_thread, u) != 0) {
		fprintf(stderr, "warning: no thread for --usage: nothing is sampled\n");
		u->ended = true;
	}
	pthread_sigmask(SIG_SETMASK, &was, NULL);
	return u;
}

int
rt_usage_samples(const RtUsage *u)
{
	return u->ended ? INT32_MAX : __atomic_load_n(&u->n, __ATOMIC_ACQUIRE);
}

void
rt_usage_end(RtUsage *u)
{
	bool runs = !u->ended;

	pthread_mutex_lock(&u->lock);
	u->ended = true;
	pthread_cond_signal(&u->ends);
	pthread_mutex_unlock(&u->lock);
	if (runs)
		pthread_join(u->thread, NULL);
	if (u->file && u->n == 0)
		usage_sample(u); /* a run shorter than the interval */
	if (u->file)
		fclose(u->file);
	u->file = NULL;
}

/* Median of a field of all samples; -1 where none has it. */
static double
usage_median(const RtUsage *u, size_t field)
{
	double *x = rt_alloc(sizeof *x * (size_t)(u->n + 1)), median;

	for (int i = 0; i < u->n; i++)
		memcpy(&x[i], (const char *)&u->sample[i] + field, sizeof *x);
	median = u->n ? rt_timing(x, u->n).median : -1;
	free(x);
	return median;
}

static Sample
usage_medians(const RtUsage *u)
{
#define MEDIAN(name) .name = usage_median(u, offsetof(Sample, name))
	return (Sample){MEDIAN(cpu), MEDIAN(memory), MEDIAN(rss), MEDIAN(gpu), MEDIAN(gpu_memory), MEDIAN(gpu_bytes)};
#undef MEDIAN
}

void
rt_usage_json(const RtUsage *u)
{
	Sample s = usage_medians(u);

	printf(", \"usage\": {\"interval_s\": %.9g, \"samples\": %d", u->interval, u->n);
	put_sample(stdout, &s);
	printf("}");
}

void
rt_usage_text(const RtUsage *u)
{
	Sample s = usage_medians(u);

	printf("%-12s CPU %.1f %%, memory %.1f %% (%.0f MB)", "usage", 100 * s.cpu, 100 * s.memory, s.rss * 1e-6);
	if (s.gpu >= 0)
		printf(", GPU %.1f %%, its memory %.1f %% busy (%.0f MB)", 100 * s.gpu, 100 * s.gpu_memory,
		       s.gpu_bytes * 1e-6);
	printf(": medians of %d samples of %g s\n", u->n, u->interval);
}
