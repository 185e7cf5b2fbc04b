/* host.c: one executable at work: which code object runs, its memory, its entry points.
 *
 * Memory is taken once, before the first step: the arena (2 MiB aligned, huge pages asked for), a scratch area per
 * thread, the telemetry ring, room for the order. Nothing is allocated in the loop. */
#define _GNU_SOURCE
#include "host.h"

#include <errno.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/resource.h>
#include <sys/syscall.h>
#include <unistd.h>

#define HOST_HUGE ((size_t)2 << 20)
#define HOST_RING 1024           /* records, a power of two */

/* ---- code objects */

#if defined(__x86_64__)
#include <cpuid.h>

/* AMX is in CPUID leaf 7, also where the kernel does not keep its state: that says XGETBV, bits 17 and 18. The kernel
 * grants the tile registers on request, to the process and before it has threads. */
static bool
host_amx(int bit)
{
	unsigned a, b, c, d, low, high;

	if (!__get_cpuid(1, &a, &b, &c, &d) || !(c & 1u << 27 /* OSXSAVE */))
		return false;
	__asm__("xgetbv" : "=a"(low), "=d"(high) : "c"(0));
	if ((low >> 17 & 3) != 3 || !__get_cpuid_count(7, 0, &a, &b, &c, &d) || !(d & 1u << bit))
		return false;
	return syscall(SYS_arch_prctl, 0x1023 /* ARCH_REQ_XCOMP_PERM */, 18 /* tile data */) == 0;
}

static bool
host_leaf7_1(int bit)
{
	unsigned a, b, c, d;

	return __get_cpuid_count(7, 1, &a, &b, &c, &d) && (a & 1u << bit);
}

static int
host_cpu_has(const char *name)
{
#define HAS(feature) if (strcmp(name, feature) == 0) return __builtin_cpu_supports(feature) != 0;
	HAS("sse3")
	HAS("ssse3") HAS("sse4.1") HAS("sse4.2") HAS("popcnt") HAS("avx") HAS("avx2") HAS("fma") HAS("bmi") HAS("bmi2")
	        HAS("avx512f") HAS("avx512bw") HAS("avx512cd") HAS("avx512dq") HAS("avx512vl") HAS("avx512vnni")
	                HAS("avx512vbmi") HAS("avx512ifma") HAS("avx512bf16") HAS("avx512vbmi2")
	                        HAS("avx512bitalg") HAS("avx512vpopcntdq") HAS("gfni")
#undef HAS
	                        if (strcmp(name, "avx512fp16") == 0) {
		unsigned a, b, c, d;

		return __builtin_cpu_supports("avx512f") && __get_cpuid_count(7, 0, &a, &b, &c, &d) && (d & 1u << 23);
	}
	if (strcmp(name, "f16c") == 0) {
		unsigned a, b, c, d;

		return __builtin_cpu_supports("avx") && __get_cpuid(1, &a, &b, &c, &d) && (c & 1u << 29);
	}
	if (strcmp(name, "lzcnt") == 0 || strcmp(name, "movbe") == 0) {
		unsigned a, b, c, d;
		bool lzcnt = name[0] == 'l';

		return __get_cpuid(lzcnt ? 0x80000001u : 1u, &a, &b, &c, &d) && (c & 1u << (lzcnt ? 5 : 22));
	}
	if (strcmp(name, "avxvnni") == 0)
		return __builtin_cpu_supports("avx2") && host_leaf7_1(4);
	if (strcmp(name, "amx-tile") == 0)
		return host_amx(24);
	if (strcmp(name, "amx-bf16") == 0)
		return host_amx(22);
	if (strcmp(name, "amx-int8") == 0)
		return host_amx(25);
	return 0;
}
#else
static int
host_cpu_has(const char *name)
{
	(void)name;
	return 0;
}
#endif

/* MANTOU_WITHOUT="avx512f avx2": features that the CPU is taken not to have. */
static bool
host_without(const char *name)
{
	const char *list = getenv("MANTOU_WITHOUT");

	while (list && *list) {
		size_t n = strcspn(list, " ");

		if (n == strlen(name) && strncmp(list, name, n) == 0)
			return true;
		list += n + (list[n] == ' ');
	}
	return false;
}

/* NULL if all are there. */
static const char *
rt_cpu_missing(const char *needs, char *buf, size_t n)
{
#if defined(__x86_64__)
	__builtin_cpu_init();
#endif
	while (needs && *needs) {
		size_t len = strcspn(needs, " ");

		snprintf(buf, n, "%.*s", (int)len, needs);
		if (len && (host_without(buf) || !host_cpu_has(buf)))
			return buf;
		needs += len + (needs[len] == ' ');
	}
	return NULL;
}

static const char *
host_missing(RtHost *h, const RtCodeObject *m, char *buf, size_t n)
{
	if (!m->device)
		return rt_cpu_missing(m->needs, buf, n);
	return h->opt.command == RT_C_INFO ? NULL : m->device->missing(h, m, buf, n); /* info needs no device */
}

static bool
host_check_kernels(RtHost *h)
{
	for (int g = 0; g < RT_G_COUNT && !h->object->call; g++)
		for (int k = 0; k < h->program.graph[g].nrow; k++)
			if (h->program.graph[g].row[k].fn >= h->object->nkernel)
				return rt_fail(&h->error, "the program's descriptor: kernel %s has no function",
				               h->program.graph[g].row[k].name);
	return true;
}

bool
rt_host_take(RtHost *h, int object)
{
	h->object = h->objects[object];
	h->program = (RtProgram){0};
	if (!rt_program_read(&h->program, h->object->program, &h->error))
		return false;
	for (int mode = 0; mode <= RT_M_EVAL; mode++)
		h->pace[mode].start = h->program.threads_start;
	return host_check_kernels(h);
}

/* The first code object that this CPU, or its device, runs. */
static bool
host_choose(RtHost *h)
{
	char all[1280] = "", word[512];
	int first = -1;
	const RtDevice *device = h->nobjects ? h->objects[0]->device : NULL;

	for (int i = 0; i < h->nobjects; i++)
		if (h->objects[i]->version != RT_VERSION)
			return rt_fail(&h->error, "the program was built for runtime version %d, this is %d",
			               h->objects[i]->version, RT_VERSION);
	if (device && h->opt.command != RT_C_INFO && !device->ready(h))
		return false;
	for (int i = 0; i < h->nobjects; i++) {
		const RtCodeObject *m = h->objects[i];
		const char *missing = host_missing(h, m, word, sizeof word);
		size_t used = strlen(all);

		if (!missing) {
			h->able |= (uint64_t)1 << (i & 63);
			first = first < 0 ? i : first;
			if (device) /* which has loaded it */
				break;
			continue;
		}
		snprintf(all + used, sizeof all - used, "%scode object %d of %d needs %s", used ? "; " : "", i + 1,
		         h->nobjects, missing);
	}
	if (first >= 0)
		return rt_host_take(h, first);
	return rt_fail(&h->error, "%s runs none of the program's code objects: %s; build with another --arch%s",
	               device ? h->device_name : "this CPU", all,
	               device ? ", for an older driver with its CUDA's NVRTC" : "");
}

bool
rt_host_open(RtHost *h, const RtCodeObject *const *objects, int nobjects)
{
	h->objects = objects;
	h->nobjects = nobjects;
	h->accumulate = 1;
	h->order_epoch = -1;
	h->save.step = h->best.save.step = h->best.judged = -1;
	pthread_mutex_init(&h->lock, NULL);
	return host_choose(h);
}

/* ---- memory */

static void *
host_map(RtHost *h, size_t bytes, const char *what, const char *hint)
{
	size_t room = ((bytes ? bytes : 1) + HOST_HUGE - 1) / HOST_HUGE * HOST_HUGE;
	/* little of a device's is written here */
	uint8_t *at = mmap(NULL, room + HOST_HUGE, PROT_READ | PROT_WRITE,
	                   MAP_PRIVATE | MAP_ANONYMOUS | (h->object->device ? MAP_NORESERVE : 0), -1, 0);
	uint8_t *aligned;

	if (at == MAP_FAILED) {
		rt_fail(&h->error, "out of memory: %s needs %.1f MiB: %s; %s would need less", what,
		        (double)room / 0x1p20, strerror(errno), hint);
		return NULL;
	}
	aligned = (uint8_t *)(((uintptr_t)at + HOST_HUGE - 1) / HOST_HUGE * HOST_HUGE);
	if (aligned > at)
		munmap(at, (size_t)(aligned - at));
	if (at + HOST_HUGE > aligned)
		munmap(aligned + room, (size_t)(at + HOST_HUGE - aligned));
	madvise(aligned, room, MADV_HUGEPAGE);
	return aligned;
}

/* An arena that the machine cannot hold would be killed at some later step without a word. */
static bool
host_fits(RtHost *h, size_t arena, size_t scratch, int threads)
{
	long pages = sysconf(_SC_PHYS_PAGES), page = sysconf(_SC_PAGESIZE);
	double need = (double)arena + (double)scratch * threads;

	if (pages > 0 && page > 0 && need > (double)pages * (double)page)
		return rt_fail(&h->error,
		               "out of memory: the program needs %.1f MiB (%.1f MiB for each of %d threads), "
		               "this machine has %.1f MiB; a smaller --batch, fewer --threads or a memory budget "
		               "would need less", need / 0x1p20,
		               (double)scratch / 0x1p20, threads, (double)pages * (double)page / 0x1p20);
	return true;
}

bool
rt_host_memory(RtHost *h, int64_t order_examples)
{
	const RtProgram *p = &h->program;
	/* kernels may read up to a vector past their part */
	size_t scratch = ((size_t)p->scratch_bytes + 127) & ~(size_t)63;
	int n = h->opt.threads > 0 ? (int)h->opt.threads : rt_cpus() < RT_MAX_THREADS ? rt_cpus() : RT_MAX_THREADS;

	size_t room = order_examples ? rt_joins_room(h) : (size_t)p->arena_bytes + 64; /* a run that trains */

	if (!h->object->device && !host_fits(h, room, scratch, n))
		return false;
	h->arena_bytes = (size_t)p->arena_bytes + 64;
	h->run.arena = host_map(h, room, "the arena", "a smaller --batch or a memory budget");
	h->scratch = rt_alloc(sizeof *h->scratch * (size_t)n);
	for (int i = 0; h->run.arena && i < n; i++) {
		char what[64];

		snprintf(what, sizeof what, "scratch memory of thread %d of %d", i + 1, n);
		h->scratch[i] = host_map(h, scratch, what, "a smaller --threads or --batch");
		if (!h->scratch[i])
			return false;
	}
	if (!h->run.arena)
		return false;
	h->run.ring = rt_alloc(sizeof *h->run.ring * HOST_RING);
	h->run.ring_mask = HOST_RING - 1;
	h->order = malloc(sizeof *h->order * (size_t)(order_examples + 1));
	if (!h->order)
		return rt_fail(&h->error, "out of memory for the order of %lld examples", (long long)order_examples);
	h->run.host = h;
	h->run.self = h->object->self;
	h->run.seed = h->opt.has_seed ? h->opt.seed : p->seed;
	h->run.batch = h->run.n = p->batch;
	h->run.allow_nan = h->opt.allow_nan;
	h->run.stop_at = INT64_MAX;
	h->threads = rt_threads_new(n, &h->error);
	if (h->threads && order_examples && (!rt_sums_open(h) || !rt_joins_open(h)))
		return false;
	return h->threads && (!h->object->device || h->object->device->open(h));
}

static void
host_touch_part(void *cx, int64_t t0, int64_t t1, int thread)
{
	RtHost *h = cx;
	size_t page = (size_t)sysconf(_SC_PAGESIZE), from = (size_t)t0 * HOST_HUGE, to = (size_t)t1 * HOST_HUGE;

	(void)thread;
	for (size_t at = from; at < to && at < h->arena_bytes; at += page)
		/* slots may be others' */
		if (!rt_cuts_cut(h) || (int64_t)at < h->cuts.begin || (int64_t)at >= h->cuts.end)
			*(volatile uint8_t *)(h->run.arena + at) = 0;
}

void
rt_host_touch(RtHost *h)
{
	rt_threads_run(h->threads, host_touch_part, h, (int64_t)((h->arena_bytes + HOST_HUGE - 1) / HOST_HUGE));
}

void *
rt_large(size_t bytes)
{
	size_t room = (bytes + HOST_HUGE - 1) / HOST_HUGE * HOST_HUGE;
	void *at;

	if (bytes < 2 * HOST_HUGE || room < bytes)
		return malloc(bytes ? bytes : 1);
	at = aligned_alloc(HOST_HUGE, room);
	if (at)
		madvise(at, room, MADV_HUGEPAGE);
	return at;
}

int64_t
rt_peak_rss(void)
{
	struct rusage u;

	return getrusage(RUSAGE_SELF, &u) == 0 ? (int64_t)u.ru_maxrss * 1024 : 0;
}

/* ---- running */

void
rt_host_use(RtHost *h, RtMode mode, RtData *d, bool shuffle)
{
	RtRun *r = &h->run;

	if (h->graph)
		rt_drain(h);
	if (mode == RT_M_TRAIN)
		rt_host_copies(h);
	pthread_mutex_lock(&h->lock);
	h->mode = mode;
	h->graph = &h->program.graph[mode == RT_M_EVAL ? RT_G_EVAL : h->program.train.reports];
	h->accumulate = mode == RT_M_TRAIN ? h->program.accumulate : 1;
	r->examples = d->examples;
	r->n = r->batch;
	r->order = shuffle && !d->readers ? h->order : NULL; /* a ring keeps its own */
	h->order_epoch = -1;
	r->shard = h->program.shards > 1 ? h->sums.lo : 0;
	r->shard_end = h->program.shards > 1 ? h->sums.hi : h->accumulate;
	h->data = d;
	h->shuffle = shuffle;
	d->seed = r->seed;
	r->steps_per_epoch =
	        mode == RT_M_EVAL ? (d->examples + r->batch - 1) / r->batch : d->examples / r->batch / h->accumulate;
	pthread_mutex_unlock(&h->lock);
}

static void
host_clear_fault(RtHost *h)
{
	if (h->program.fault_offset >= 0)
		memset(h->run.arena + h->program.fault_offset, 0, sizeof(RtFault));
}

void
rt_host_pace(RtHost *h)
{
	if (!h->profiles && !h->object->device)
		rt_pace_step(h->pace, h->threads, h->mode, rt_now(), h->waited);
	h->waited = 0;
}

static int64_t
host_run(RtHost *h, RtEntry *entry, const RtLoop *loop, bool walk)
{
	if (h->object->device && !walk)
		return h->object->device->enter(h, loop);
	return walk || !entry ? rt_loop_walk(h, loop) : entry(&h->run);
}

int64_t
rt_host_enter(RtHost *h, RtEntry *entry, const RtLoop *loop, bool walk)
{
	int64_t status;
	jmp_buf escape;

	host_clear_fault(h);
	h->run.micro = 0;
	if (loop == &h->program.infer)
		rt_host_pace(h);
	h->escape = &escape;
	if (setjmp(escape))
		status = RT_ERROR;               /* rt_batch has said why */
	else
		status = host_run(h, entry, loop, walk);
	h->escape = NULL;
	if (status == RT_OK)
		h->run.step = h->run.until;
	else if (status == RT_STOPPED)
		h->run.step = h->completed;
	return status;
}

int64_t
rt_host_call(RtHost *h, int graph)
{
	host_clear_fault(h);
	rt_host_pace(h);
	return rt_loop_call(h, graph, NULL, NULL);
}

bool
rt_host_fetch(RtHost *h, int64_t offset, int64_t bytes)
{
	return !h->object->device || h->object->device->fetch(h, offset, bytes);
}

void
rt_host_fault(RtHost *h)
{
	RtFault f = {0};
	const RtCheck *c = NULL;
	int64_t limit = 1, first = h->program.shards > 1 && h->mode == RT_M_TRAIN ? h->run.first : 0;
	char where[256] = "";

	if (h->program.fault_offset >= 0)
		memcpy(&f, h->run.arena + h->program.fault_offset, sizeof f);
	if (f.op >= 0 && f.op < h->program.ncheck)
		c = &h->program.check[f.op];
	if (c)
		limit = c->mul > 0 && c->div > 0 ? h->run.n * c->mul / c->div : c->limit;
	if (c && *c->where)
		snprintf(where, sizeof where, ", %s", c->where);
	rt_fail(&h->error, "%s %lld is out of range 0..%lld (%s %lld of %s %lld%s)", c ? c->what : "value",
	        (long long)f.value, (long long)limit - 1, c && c->per_example > 0 ? "example" : "element",
	        (long long)(c && c->per_example > 0 ? f.element / c->per_example + first : f.element),
	        h->mode == RT_M_TRAIN ? "step" : "batch", (long long)h->run.step, where);
}
