/* hook.c: work of the device that another simulated library does on the host.
 *
 * In: a function and its data.   Out: a task of the stream, or a node of the graph that it captures, which a launch
 * could stand for: allowed in bodies of conditions, copied with the graph, counted as a kernel. */
#include "hook.h"
#include "work.h"

#include <stdlib.h>
#include <string.h>

CUresult
mantou_sim_call(CUstream s, int (*fn)(const void *data), const void *data, size_t bytes)
{
	Work k = { .kind = WORK_CALL };

	ENTER(true);
	if (!fn)
		return api_leave(CUDA_ERROR_INVALID_VALUE);
	k.as.call.fn = fn;
	k.as.call.bytes = bytes;
	k.as.call.data = malloc(bytes + 1);
	if (!k.as.call.data)
		return api_leave(CUDA_ERROR_OUT_OF_MEMORY);
	memcpy(k.as.call.data, data, bytes);
	return api_leave(stream_put(stream_of(s), &k, false));
}

void *
mantou_sim_memory(CUdeviceptr at, size_t bytes, int write)
{
	void *r = NULL;

	pthread_mutex_lock(&device.lock);
	const Allocation *v = arena_has(&device.memory, at, bytes) ? arena_find(&device.memory, at) : NULL;

	if (v && arena_backed(&device.memory, v, at, bytes)) {
		r = device.memory.host + (at - device.memory.base);
		if (write)
			arena_state(&device.memory, at, bytes, MEM_WRITTEN, 0);
	}
	pthread_mutex_unlock(&device.lock);
	return r;
}
