/* stream.c: streams, events, and the thread that runs what waits in them; the gate that every call passes.
 *
 * In: tasks at the end of streams.   Out: each run when the streams' rules allow, in random order where they leave a
 * choice. The legacy stream waits for all that stand before it in blocking streams, and they for it (numbers of tasks,
 * given in the order of the calls). The host goes on meanwhile, so that it sees memory that a graph changes while it
 * runs. When a task fails, the device is lost: all that waits is dropped, and every later call returns the status. */
#define _GNU_SOURCE
#include "work.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

/* Kept beside the device, under its lock. */
static struct Streams {
	Stream *first, *legacy, *per_thread;
	Event *event;
	uint64_t number, random;
	bool running;
	const Stream *busy;
} streams;
extern _Thread_local CUcontext context_current;

/* the gate */

static bool
is_sticky(CUresult r)
{
	return r == CUDA_ERROR_UNKNOWN || r == CUDA_ERROR_DEVICE_UNAVAILABLE || r == CUDA_ERROR_ECC_UNCORRECTABLE ||
	       (r >= CUDA_ERROR_ILLEGAL_ADDRESS && r <= CUDA_ERROR_LAUNCH_FAILED &&
	        r != CUDA_ERROR_LAUNCH_OUT_OF_RESOURCES);
}

/* Counts the call, fails it if it is the one to fail, and takes the lock. */
CUresult
api_enter(const char *name, bool context)
{
	CUresult r = CUDA_SUCCESS;

	pthread_mutex_lock(&device.lock);
	device.count.host_calls++;
	if (device.set.fail_call && device.count.host_calls == device.set.fail_call) {
		r = device.set.fail_code;
		fprintf(stderr, "simulated device: call %llu, %s, fails with %d as asked\n",
		        (unsigned long long)device.set.fail_call, name, (int)r);
		if (is_sticky(r))
			device_lose(r);
	} else if (device.lost) {
		r = device.lost;
	} else if (context && (!device.ready || device.pid != (int)getpid())) {
		r = CUDA_ERROR_NOT_INITIALIZED;
	} else if (context && !context_current) {
		r = CUDA_ERROR_INVALID_CONTEXT;
	}
	if (r)
		pthread_mutex_unlock(&device.lock);
	return r;
}

CUresult
api_leave(CUresult r)
{
	if (!r && device.lost)
		r = device.lost;
	pthread_mutex_unlock(&device.lock);
	return r;
}

/* tasks */

static bool
legacy_allows(const Stream *s)
{
	uint64_t number = s->head->number;

	if (s == streams.legacy) {
		for (const Stream *o = streams.first; o; o = o->next)
			if (o != s && o->blocking && o->head && o->head->number < number)
				return false;
		return true;
	}
	return !s->blocking || !streams.legacy->head || streams.legacy->head->number > number;
}

static bool
task_ready(const Stream *s)
{
	const Task *t = s->head;

	if (!t || !legacy_allows(s))
		return false;
	return t->work.kind != WORK_WAIT || t->work.as.event.event->done >= t->work.as.event.number;
}

static Stream *
stream_choose(void)
{
	Stream *chosen = NULL;
	uint64_t n = 0;

	for (Stream *s = streams.first; s; s = s->next)
		if (task_ready(s) && random_next(&streams.random) % ++n == 0)
			chosen = s;
	return chosen;
}

static double
now_ms(void)
{
	struct timespec t;

	clock_gettime(CLOCK_MONOTONIC, &t);
	return (double)t.tv_sec * 1e3 + (double)t.tv_nsec * 1e-6;
}

static void
task_pop(Stream *s)
{
	Task *t = s->head;

	s->head = t->next;
	if (!s->head)
		s->tail = &s->head;
	work_free(&t->work);
	free(t);
}

void
device_lose(CUresult r)
{
	if (!device.lost)
		device.lost = r;
	pthread_cond_broadcast(&device.changed);
}

static void
task_done(Stream *s, CUresult r)
{
	Work *k = &s->head->work;

	if (k->kind == WORK_RECORD) {
		k->as.event.event->done = s->head->number;
		k->as.event.event->ms = now_ms();
	}
	if (k->kind == WORK_GRAPH) {
		k->as.exec->pending--;
		if (k->as.exec->destroyed && !k->as.exec->pending)
			exec_free(k->as.exec);
	}
	if (k->kind == WORK_FREE) {
		arena_free(&device.memory, k->as.address);
		device.count.frees++;
	}
	task_pop(s);
	if (r)
		device_lose(r);
}

static void *
stream_thread(void *unused)
{
	(void)unused;
	pthread_mutex_lock(&device.lock);
	for (;;) {
		Stream *s = device.lost ? NULL : stream_choose();
		CUresult r;

		if (!s) {
			pthread_cond_wait(&device.changed, &device.lock);
			continue;
		}
		streams.busy = s;
		pthread_mutex_unlock(&device.lock);
		r = work_run(&s->head->work, &streams.random, NULL);
		pthread_mutex_lock(&device.lock);
		streams.busy = NULL;
		task_done(s, r);
		pthread_cond_broadcast(&device.changed);
	}
	return NULL;
}

static Stream *
stream_new(unsigned flags, int priority)
{
	Stream *s = calloc(1, sizeof *s);

	if (!s)
		return NULL;
	s->tail = &s->head;
	s->flags = flags;
	s->blocking = !(flags & CU_STREAM_NON_BLOCKING);
	s->priority = priority;
	s->next = streams.first;
	streams.first = s;
	return s;
}

void
stream_start(void)
{
	pthread_t id;

	if (streams.running)
		return;
	streams.random = device.set.seed;
	streams.legacy = stream_new(0, 0);
	streams.per_thread = stream_new(0, 0);
	streams.running = !pthread_create(&id, NULL, stream_thread, NULL);
	if (streams.running)
		pthread_detach(id);
}

Stream *
stream_of(CUstream h)
{
	if (!h || h == CU_STREAM_LEGACY)
		return streams.legacy;
	if (h == CU_STREAM_PER_THREAD)
		return streams.per_thread;
	for (Stream *s = streams.first; s; s = s->next)
		if (s == h && !s->destroyed)
			return s;
	return NULL;
}

static bool
any_capture(void)
{
	for (const Stream *s = streams.first; s; s = s->next)
		if (s->capture && s->blocking)
			return true;
	return false;
}

static void
stream_wait(Stream *s, uint64_t number)
{
	device.count.waits++;
	while (!device.lost && s->head && s->head->number <= number)
		pthread_cond_wait(&device.changed, &device.lock);
}

/* Puts the work at the end of the stream, or into the graph that it captures; waits for it if asked. Takes over what
 * the work holds. */
CUresult
stream_put(Stream *s, const Work *k, bool wait)
{
	Task *t;
	CUresult r = !s ? CUDA_ERROR_INVALID_HANDLE : s->capture && wait ? CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED :
		s == streams.legacy && any_capture() ? CUDA_ERROR_STREAM_CAPTURE_IMPLICIT : CUDA_SUCCESS;
	Work mine = *k;

	if (s && s->capture && r)
		s->capture_failed = true;
	if (!r && s->capture)
		return capture_put(s, k);
	t = r ? NULL : calloc(1, sizeof *t);
	if (!t) {
		work_free(&mine);
		return r ? r : CUDA_ERROR_OUT_OF_MEMORY;
	}
	t->work = mine;
	t->number = ++streams.number;
	if (k->kind == WORK_RECORD)
		k->as.event.event->recorded = t->number;
	if (k->kind == WORK_GRAPH)
		k->as.exec->pending++;
	*s->tail = t;
	s->tail = &t->next;
	pthread_cond_broadcast(&device.changed);
	if (wait)
		stream_wait(s, t->number);
	return device.lost;
}

void
stream_wait_all(void)
{
	uint64_t number = streams.number;

	device.count.waits++;
	for (Stream *s = streams.first; s && !device.lost;) {
		if (s->head && s->head->number <= number) {
			pthread_cond_wait(&device.changed, &device.lock);
			s = streams.first;
		} else {
			s = s->next;
		}
	}
}

void
stream_each(void (*fn)(Stream *, void *), void *cx)
{
	for (Stream *s = streams.first; s; s = s->next)
		fn(s, cx);
}

/* calls */

CUresult
cuStreamCreate(CUstream *to, unsigned flags)
{
	ENTER(true);
	if (!to || flags > CU_STREAM_NON_BLOCKING)
		return api_leave(CUDA_ERROR_INVALID_VALUE);
	*to = stream_new(flags, 0);
	return api_leave(*to ? CUDA_SUCCESS : CUDA_ERROR_OUT_OF_MEMORY);
}

CUresult
cuStreamCreateWithPriority(CUstream *to, unsigned flags, int priority)
{
	ENTER(true);
	if (!to || flags > CU_STREAM_NON_BLOCKING)
		return api_leave(CUDA_ERROR_INVALID_VALUE);
	*to = stream_new(flags, priority > 0 ? 0 : priority < -5 ? -5 : priority);
	return api_leave(*to ? CUDA_SUCCESS : CUDA_ERROR_OUT_OF_MEMORY);
}

/* What waits in it still runs; the stream itself is kept until the process ends. */
CUresult
cuStreamDestroy_v2(CUstream h)
{
	Stream *s;

	ENTER(true);
	s = stream_of(h);
	if (!s || s == streams.legacy || s == streams.per_thread)
		return api_leave(CUDA_ERROR_INVALID_HANDLE);
	s->destroyed = true;
	return api_leave(CUDA_SUCCESS);
}

CUresult
cuStreamSynchronize(CUstream h)
{
	Stream *s;

	ENTER(true);
	s = stream_of(h);
	if (!s)
		return api_leave(CUDA_ERROR_INVALID_HANDLE);
	if (s->capture)
		return api_leave(CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED);
	if (s == streams.legacy) { /* it stands behind the blocking streams */
		Work k = { .kind = WORK_EMPTY };

		return api_leave(stream_put(s, &k, true));
	}
	stream_wait(s, streams.number);
	return api_leave(CUDA_SUCCESS);
}

CUresult
cuStreamQuery(CUstream h)
{
	Stream *s;

	ENTER(true);
	s = stream_of(h);
	return api_leave(!s           ? CUDA_ERROR_INVALID_HANDLE
	                 : s->capture ? CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED
	                 : s->head    ? CUDA_ERROR_NOT_READY
	                              : CUDA_SUCCESS);
}

CUresult
cuStreamGetFlags(CUstream h, unsigned *to)
{
	ENTER(true);
	if (!stream_of(h) || !to)
		return api_leave(CUDA_ERROR_INVALID_HANDLE);
	*to = stream_of(h)->flags;
	return api_leave(CUDA_SUCCESS);
}

CUresult
cuStreamGetPriority(CUstream h, int *to)
{
	ENTER(true);
	if (!stream_of(h) || !to)
		return api_leave(CUDA_ERROR_INVALID_HANDLE);
	*to = stream_of(h)->priority;
	return api_leave(CUDA_SUCCESS);
}

CUresult
cuLaunchHostFunc(CUstream h, CUhostFn *fn, void *data)
{
	Work k = { .kind = WORK_HOST, .as.host = { fn, data } };

	ENTER(true);
	return api_leave(fn ? stream_put(stream_of(h), &k, false) : CUDA_ERROR_INVALID_VALUE);
}

CUresult
cuCtxSynchronize(void)
{
	ENTER(true);
	if (any_capture())
		return api_leave(CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED);
	stream_wait_all();
	return api_leave(CUDA_SUCCESS);
}

/* events */

bool
event_valid(const Event *e)
{
	for (const Event *o = streams.event; o; o = o->next)
		if (o == e)
			return !e->destroyed;
	return false;
}

CUresult
cuEventCreate(CUevent *to, unsigned flags)
{
	Event *e;

	ENTER(true);
	e = to ? calloc(1, sizeof *e) : NULL;
	if (!e)
		return api_leave(CUDA_ERROR_INVALID_VALUE);
	e->flags = flags;
	e->next = streams.event;
	streams.event = e;
	*to = e;
	return api_leave(CUDA_SUCCESS);
}

CUresult
cuEventDestroy_v2(CUevent e)
{
	ENTER(true);
	if (!event_valid(e))
		return api_leave(CUDA_ERROR_INVALID_HANDLE);
	e->destroyed = true;
	return api_leave(CUDA_SUCCESS);
}

static CUresult
event_record(CUevent e, CUstream h)
{
	Stream *s = stream_of(h);
	Work k = { .kind = WORK_RECORD, .as.event = { e, 0 } };

	if (!event_valid(e) || !s)
		return CUDA_ERROR_INVALID_HANDLE;
	if (s->capture) {
		capture_record(s, e);
		return CUDA_SUCCESS;
	}
	e->capture = NULL;
	return stream_put(s, &k, false);
}

CUresult
cuEventRecord(CUevent e, CUstream h)
{
	ENTER(true);
	return api_leave(event_record(e, h));
}

CUresult
cuEventRecordWithFlags(CUevent e, CUstream h, unsigned flags)
{
	ENTER(true);
	return api_leave(flags ? CUDA_ERROR_NOT_SUPPORTED : event_record(e, h));
}

CUresult
cuStreamWaitEvent(CUstream h, CUevent e, unsigned flags)
{
	Stream *s;
	Work k = { .kind = WORK_WAIT };

	ENTER(true);
	s = stream_of(h);
	if (!s || !event_valid(e) || flags > 1)
		return api_leave(CUDA_ERROR_INVALID_HANDLE);
	if (e->capture) {
		capture_join(s, e);
		return api_leave(CUDA_SUCCESS);
	}
	if (s->capture) {
		s->capture_failed = true;
		return api_leave(CUDA_ERROR_STREAM_CAPTURE_ISOLATION);
	}
	if (e->done >= e->recorded)
		return api_leave(CUDA_SUCCESS);
	k.as.event.event = e;
	k.as.event.number = e->recorded;
	return api_leave(stream_put(s, &k, false));
}

CUresult
cuEventQuery(CUevent e)
{
	ENTER(true);
	return api_leave(!event_valid(e)          ? CUDA_ERROR_INVALID_HANDLE
	                 : e->capture             ? CUDA_ERROR_CAPTURED_EVENT
	                 : e->done >= e->recorded ? CUDA_SUCCESS
	                                          : CUDA_ERROR_NOT_READY);
}

CUresult
cuEventSynchronize(CUevent e)
{
	uint64_t number;

	ENTER(true);
	if (!event_valid(e))
		return api_leave(CUDA_ERROR_INVALID_HANDLE);
	if (e->capture)
		return api_leave(CUDA_ERROR_CAPTURED_EVENT);
	device.count.waits++;
	number = e->recorded;
	while (!device.lost && e->done < number)
		pthread_cond_wait(&device.changed, &device.lock);
	return api_leave(CUDA_SUCCESS);
}

CUresult
cuEventElapsedTime_v2(float *ms, CUevent a, CUevent b)
{
	ENTER(true);
	if (!ms || !event_valid(a) || !event_valid(b) || !a->recorded || !b->recorded || (a->flags | b->flags) & 2)
		return api_leave(CUDA_ERROR_INVALID_HANDLE);
	if (a->done < a->recorded || b->done < b->recorded)
		return api_leave(CUDA_ERROR_NOT_READY);
	*ms = (float)(b->ms - a->ms);
	return api_leave(CUDA_SUCCESS);
}
