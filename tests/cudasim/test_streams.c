/* test_streams.c: order of streams, events, page-locked memory that the host watches, capture. */
#define _GNU_SOURCE
#include <stdlib.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

#include "test.h"

static CUmodule module;

static void
step(CUdeviceptr at, uint32_t a, uint32_t b, CUstream s)
{
	void *p[] = { &at, &a, &b };

	check(!cu.cuLaunchKernel(test_function(module, "step"), 1, 1, 1, 1, 1, 1, 0, s, p, NULL), "a launch");
}

static uint32_t
value(CUdeviceptr at)
{
	uint32_t v = 0;

	test_download(&v, at, 4);
	return v;
}

static void
streams_order(void)
{
	uint32_t zero = 0, want = 0;
	CUdeviceptr at = test_upload(&zero, 4);
	CUstream s[3];
	CUevent e;

	for (int k = 0; k < 3; k++)
		check(!cu.cuStreamCreate(&s[k], CU_STREAM_NON_BLOCKING), "a stream");
	check(!cu.cuEventCreate(&e, 2), "an event");
	for (uint32_t i = 0; i < 40; i++) { /* a chain through three streams, held together by one event */
		step(at, 3, i, s[i % 3]);
		check(!cu.cuEventRecord(e, s[i % 3]) && !cu.cuStreamWaitEvent(s[(i + 1) % 3], e, 0),
		      "an event in a chain");
		want = want * 3 + i;
	}
	check(!cu.cuEventSynchronize(e) && !cu.cuEventQuery(e), "waiting for an event");
	check(value(at) == want, "a chain through streams: %u, not %u", value(at), want);
	for (int k = 0; k < 3; k++)
		check(!cu.cuStreamSynchronize(s[k]) && !cu.cuStreamQuery(s[k]) && !cu.cuStreamDestroy_v2(s[k]),
		      "end of a stream");
	check(cu.cuStreamQuery(s[0]) == CUDA_ERROR_INVALID_HANDLE, "a stream that is gone");
	cu.cuEventDestroy_v2(e);
	cu.cuMemFree_v2(at);
}

/* The legacy stream stands between what was put into blocking streams before and after it. */
static void
streams_legacy(void)
{
	uint32_t zero = 0;
	CUdeviceptr at = test_upload(&zero, 4);
	CUstream a, b;
	bool good = true;

	cu.cuStreamCreate(&a, 0);
	cu.cuStreamCreate(&b, 0);
	for (int i = 0; i < 20; i++) {
		cu.cuMemsetD32Async(at, 1, 1, a);
		step(at, 5, 1, NULL);
		step(at, 7, 2, b);
		step(at, 1, 1, NULL);
		good &= value(at) == (5 + 1) * 7 + 2 + 1;
	}
	check(good, "the legacy stream orders blocking streams");
	cu.cuStreamDestroy_v2(a);
	cu.cuStreamDestroy_v2(b);
	cu.cuMemFree_v2(at);
}

/* A kernel and the host answer each other through page-locked memory while the kernel runs. */
static void
streams_mapped(void)
{
	volatile uint32_t *host = NULL;
	void *room = NULL;
	CUdeviceptr p, q;
	uint32_t n = 50;
	CUstream s;
	CUevent a, b;
	float ms = -1;
	time_t limit = time(NULL) + 20;

	check(!cu.cuMemHostAlloc(&room, 4096, 2), "page-locked memory");
	host = room;
	host[0] = host[512] = 0;
	check(!cu.cuMemHostGetDevicePointer_v2(&p, room, 0), "its address on the device");
	q = p + 2048;
	cu.cuStreamCreate(&s, CU_STREAM_NON_BLOCKING);
	cu.cuEventCreate(&a, 0);
	cu.cuEventCreate(&b, 0);
	cu.cuEventRecord(a, s);
	void *params[] = { &p, &q, &n };

	check(!cu.cuLaunchKernel(test_function(module, "count"), 1, 1, 1, 1, 1, 1, 0, s, params, NULL), "a launch");
	cu.cuEventRecord(b, s);
	check(cu.cuStreamQuery(s) == CUDA_ERROR_NOT_READY, "the kernel waits for the host");
	for (uint32_t i = 1; i <= n; i++) {
		while (host[0] < i && time(NULL) < limit)
			usleep(10);
		host[512] = i;
	}
	check(host[0] == n && !cu.cuStreamSynchronize(s), "host and kernel count to %u together", host[0]);
	check(!cu.cuEventElapsedTime_v2(&ms, a, b) && ms >= 0, "elapsed time %g", (double)ms);
	check(!cu.cuMemFreeHost(room), "freeing it");
	cu.cuStreamDestroy_v2(s);
}

static void
called(void *data)
{
	++*(int *)data;
}

static void
streams_capture(void)
{
	uint32_t v[2] = { 1, 1 }, got[2];
	CUdeviceptr at = test_upload(v, sizeof v), other = at + 4;
	CUstream s, t;
	CUgraph g;
	CUgraphExec x;
	CUevent fork, join;
	size_t n = 0;
	int status = 0, calls = 0;

	cu.cuStreamCreate(&s, CU_STREAM_NON_BLOCKING);
	cu.cuStreamCreate(&t, CU_STREAM_NON_BLOCKING);
	cu.cuEventCreate(&fork, 2);
	cu.cuEventCreate(&join, 2);
	check(!cu.cuStreamBeginCapture_v2(s, CU_STREAM_CAPTURE_MODE_THREAD_LOCAL), "capture begins");
	check(!cu.cuStreamIsCapturing(s, &status) && status == CU_STREAM_CAPTURE_STATUS_ACTIVE, "the stream captures");
	step(at, 2, 3, s);
	check(!cu.cuEventRecord(fork, s) && !cu.cuStreamWaitEvent(t, fork, 0), "capture forks");
	step(other, 10, 1, t);
	step(at, 3, 1, s);
	check(!cu.cuLaunchHostFunc(t, called, &calls), "a call of the host");
	check(!cu.cuEventRecord(join, t) && !cu.cuStreamWaitEvent(s, join, 0), "capture joins");
	check(!cu.cuMemcpyDtoDAsync_v2(at, other, 4, s), "a copy");
	check(!cu.cuStreamEndCapture(s, &g), "capture ends");
	check(!cu.cuGraphGetNodes(g, NULL, &n) && n == 5, "the graph has %zu nodes", n);
	test_download(got, at, sizeof got);
	check(got[0] == 1 && got[1] == 1 && !calls, "nothing ran meanwhile");
	check(!cu.cuGraphInstantiateWithFlags(&x, g, 0) && !cu.cuGraphDestroy(g), "an instance");
	check(!cu.cuGraphLaunch(x, s) && !cu.cuGraphLaunch(x, s) && !cu.cuStreamSynchronize(s), "two launches");
	test_download(got, at, sizeof got);
	check(got[0] == 111 && got[1] == 111 && calls == 2, "a captured graph gives %u %u", got[0], got[1]);
	check(!cu.cuStreamBeginCapture_v2(s, 0) && cu.cuStreamSynchronize(s) == CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED,
	      "waiting inside a capture is refused");
	check(!cu.cuStreamEndCapture(s, &g) && !cu.cuGraphDestroy(g), "the capture ends all the same");
	check(!cu.cuStreamBeginCapture_v2(s, 0) && !cu.cuEventRecord(fork, s) && !cu.cuStreamWaitEvent(t, fork, 0),
	      "a capture");
	step(other, 1, 1, t);
	check(cu.cuStreamEndCapture(s, &g) == CUDA_ERROR_STREAM_CAPTURE_UNJOINED && !g,
	      "work that was not joined is refused");
	check(!cu.cuGraphExecDestroy(x), "end of the instance");
	cu.cuStreamDestroy_v2(s);
	cu.cuStreamDestroy_v2(t);
	cu.cuMemFree_v2(at);
}

void
test_streams(void)
{
	char *text = test_source("streams.ptx");

	module = test_module(text);
	free(text);
	if (!module)
		return;
	streams_order();
	streams_legacy();
	streams_mapped();
	streams_capture();
	cu.cuModuleUnload(module);
}
