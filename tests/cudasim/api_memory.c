/* api_memory.c: calls that allocate, copy and fill memory.
 *
 * A copy from pageable memory of the host takes its bytes before the call returns, one to it ends before the call
 * returns; page-locked memory is read and written when the copy runs. Freeing waits for all work. */
#include <stdlib.h>
#include <string.h>

#include "work.h"

CUresult
cuMemGetInfo_v2(size_t *free_bytes, size_t *total)
{
	ENTER(true);
	*free_bytes = device.set.memory - device.memory.used;
	*total = device.set.memory;
	return api_leave(CUDA_SUCCESS);
}

CUresult
cuMemAlloc_v2(CUdeviceptr *to, size_t bytes)
{
	ENTER(true);
	if (!to || !bytes)
		return api_leave(CUDA_ERROR_INVALID_VALUE);
	*to = device_alloc(bytes, NULL);
	device.count.allocations += *to != 0;
	return api_leave(*to ? CUDA_SUCCESS : CUDA_ERROR_OUT_OF_MEMORY);
}

CUresult
cuMemFree_v2(CUdeviceptr at)
{
	const Allocation *v;

	ENTER(true);
	if (!at)
		return api_leave(CUDA_SUCCESS);
	stream_wait_all();
	v = arena_has(&device.memory, at, 1) ? arena_find(&device.memory, at) : NULL;
	if (!v || v->reserved || !arena_free(&device.memory, at))
		return api_leave(CUDA_ERROR_INVALID_VALUE);
	device.count.frees++;
	return api_leave(CUDA_SUCCESS);
}

CUresult
cuMemAllocAsync(CUdeviceptr *to, size_t bytes, CUstream h)
{
	ENTER(true);
	if (!to || !bytes || !stream_of(h))
		return api_leave(CUDA_ERROR_INVALID_VALUE);
	*to = device_alloc(bytes, NULL);
	device.count.allocations += *to != 0;
	return api_leave(*to ? CUDA_SUCCESS : CUDA_ERROR_OUT_OF_MEMORY);
}

CUresult
cuMemFreeAsync(CUdeviceptr at, CUstream h)
{
	Work k = { .kind = WORK_FREE, .as.address = at };
	const Allocation *v;

	ENTER(true);
	v = arena_has(&device.memory, at, 1) ? arena_find(&device.memory, at) : NULL;
	return api_leave(v && v->at == at ? stream_put(stream_of(h), &k, false) : CUDA_ERROR_INVALID_VALUE);
}

CUresult
cuMemGetAddressRange_v2(CUdeviceptr *base, size_t *bytes, CUdeviceptr at)
{
	const Arena *a;
	const Allocation *v;

	ENTER(true);
	a = device_arena(at, 1);
	v = a ? arena_find(a, at) : NULL;
	if (!v)
		return api_leave(CUDA_ERROR_NOT_FOUND);
	if (base)
		*base = v->at;
	if (bytes)
		*bytes = v->bytes;
	return api_leave(CUDA_SUCCESS);
}

/* page-locked memory */

static CUresult
host_alloc(void **to, size_t bytes)
{
	uint64_t at = to && bytes ? arena_alloc(&device.host, bytes, 0) : 0;

	if (!to || !bytes)
		return CUDA_ERROR_INVALID_VALUE;
	if (!at)
		return CUDA_ERROR_OUT_OF_MEMORY;
	arena_state(&device.host, at, bytes, MEM_WRITTEN, 0); /* what the host writes is not seen */
	*to = (void *)(uintptr_t)at;
	device.count.allocations++;
	return CUDA_SUCCESS;
}

CUresult
cuMemAllocHost_v2(void **to, size_t bytes)
{
	ENTER(true);
	return api_leave(host_alloc(to, bytes));
}

CUresult
cuMemHostAlloc(void **to, size_t bytes, unsigned flags)
{
	ENTER(true);
	return api_leave(flags > 7 ? CUDA_ERROR_INVALID_VALUE : host_alloc(to, bytes));
}

CUresult
cuMemFreeHost(void *at)
{
	ENTER(true);
	stream_wait_all();
	if (!arena_has(&device.host, (uintptr_t)at, 1) || !arena_free(&device.host, (uintptr_t)at))
		return api_leave(CUDA_ERROR_INVALID_VALUE);
	device.count.frees++;
	return api_leave(CUDA_SUCCESS);
}

CUresult
cuMemHostGetDevicePointer_v2(CUdeviceptr *to, void *at, unsigned flags)
{
	ENTER(true);
	if (!to || flags || !arena_has(&device.host, (uintptr_t)at, 1) || !arena_find(&device.host, (uintptr_t)at))
		return api_leave(CUDA_ERROR_INVALID_VALUE);
	*to = (uintptr_t)at;
	return api_leave(CUDA_SUCCESS);
}

CUresult
cuMemHostGetFlags(unsigned *to, void *at)
{
	ENTER(true);
	if (!to || !arena_has(&device.host, (uintptr_t)at, 1))
		return api_leave(CUDA_ERROR_INVALID_VALUE);
	*to = 3;
	return api_leave(CUDA_SUCCESS);
}

/* Registered memory can be copied from and to; kernels cannot reach it. */
CUresult
cuMemHostRegister_v2(void *at, size_t bytes, unsigned flags)
{
	ENTER(true);
	return api_leave(!at || !bytes ? CUDA_ERROR_INVALID_VALUE
	                 : flags & 2   ? CUDA_ERROR_NOT_SUPPORTED
	                               : CUDA_SUCCESS);
}

CUresult
cuMemHostUnregister(void *at)
{
	ENTER(true);
	return api_leave(at ? CUDA_SUCCESS : CUDA_ERROR_INVALID_VALUE);
}

/* copies */

static CUresult
copy(uint64_t to, uint64_t from, size_t bytes, CUstream h, bool wait)
{
	Stream *s = stream_of(h);
	Work k;
	CUresult r = bytes ? work_copy_make(&k, to, from, bytes) : CUDA_SUCCESS;

	if (r || !bytes)
		return r;
	if (!s)
		return CUDA_ERROR_INVALID_HANDLE;
	if (!s->capture && !device_arena(from, 1)) { /* pageable: its bytes now */
		k.as.copy.staged = malloc(bytes);
		if (!k.as.copy.staged)
			return CUDA_ERROR_OUT_OF_MEMORY;
		memcpy(k.as.copy.staged, (const void *)(uintptr_t)from, bytes);
	}
	return stream_put(s, &k, wait || (!s->capture && !device_arena(to, 1)));
}

CUresult
cuMemcpy(CUdeviceptr to, CUdeviceptr from, size_t bytes)
{
	ENTER(true);
	return api_leave(copy(to, from, bytes, NULL, true));
}

CUresult
cuMemcpyAsync(CUdeviceptr to, CUdeviceptr from, size_t bytes, CUstream h)
{
	ENTER(true);
	return api_leave(copy(to, from, bytes, h, false));
}

static bool
on_device(uint64_t at)
{
	return device_arena(at, 1) != NULL;
}

static CUresult
copy_in(CUdeviceptr to, const void *from, size_t bytes, CUstream h, bool wait)
{
	return !on_device(to) ? CUDA_ERROR_INVALID_VALUE : copy(to, (uintptr_t)from, bytes, h, wait);
}

static CUresult
copy_out(void *to, CUdeviceptr from, size_t bytes, CUstream h, bool wait)
{
	return !on_device(from) ? CUDA_ERROR_INVALID_VALUE : copy((uintptr_t)to, from, bytes, h, wait);
}

CUresult
cuMemcpyHtoD_v2(CUdeviceptr to, const void *from, size_t bytes)
{
	ENTER(true);
	return api_leave(copy_in(to, from, bytes, NULL, true));
}

CUresult
cuMemcpyDtoH_v2(void *to, CUdeviceptr from, size_t bytes)
{
	ENTER(true);
	return api_leave(copy_out(to, from, bytes, NULL, true));
}

CUresult
cuMemcpyDtoD_v2(CUdeviceptr to, CUdeviceptr from, size_t bytes)
{
	ENTER(true);
	return api_leave(!on_device(to) || !on_device(from) ? CUDA_ERROR_INVALID_VALUE
	                                                    : copy(to, from, bytes, NULL, false));
}

CUresult
cuMemcpyHtoDAsync_v2(CUdeviceptr to, const void *from, size_t bytes, CUstream h)
{
	ENTER(true);
	return api_leave(copy_in(to, from, bytes, h, false));
}

CUresult
cuMemcpyDtoHAsync_v2(void *to, CUdeviceptr from, size_t bytes, CUstream h)
{
	ENTER(true);
	return api_leave(copy_out(to, from, bytes, h, false));
}

CUresult
cuMemcpyDtoDAsync_v2(CUdeviceptr to, CUdeviceptr from, size_t bytes, CUstream h)
{
	ENTER(true);
	return api_leave(!on_device(to) || !on_device(from) ? CUDA_ERROR_INVALID_VALUE
	                                                    : copy(to, from, bytes, h, false));
}

static CUresult
copy_3d(const CUDA_MEMCPY3D *p, CUstream h, bool wait)
{
	Work k;
	CUresult r = p ? work_copy_3d(&k, p) : CUDA_ERROR_INVALID_VALUE;

	return r ? r
	         : stream_put(stream_of(h), &k,
	                      wait || !device_arena(k.as.copy.to, 1) || !device_arena(k.as.copy.from, 1));
}

static CUresult
copy_2d(const CUDA_MEMCPY2D *p, CUstream h, bool wait)
{
	CUDA_MEMCPY3D q = { .Depth = 1 };

	if (!p)
		return CUDA_ERROR_INVALID_VALUE;
	q.srcXInBytes = p->srcXInBytes;
	q.srcY = p->srcY;
	q.srcMemoryType = p->srcMemoryType;
	q.srcHost = p->srcHost;
	q.srcDevice = p->srcDevice;
	q.srcPitch = p->srcPitch;
	q.dstXInBytes = p->dstXInBytes;
	q.dstY = p->dstY;
	q.dstMemoryType = p->dstMemoryType;
	q.dstHost = p->dstHost;
	q.dstDevice = p->dstDevice;
	q.dstPitch = p->dstPitch;
	q.WidthInBytes = p->WidthInBytes;
	q.Height = p->Height;
	return copy_3d(&q, h, wait);
}

CUresult
cuMemcpy2D_v2(const CUDA_MEMCPY2D *p)
{
	ENTER(true);
	return api_leave(copy_2d(p, NULL, true));
}

CUresult
cuMemcpy2DAsync_v2(const CUDA_MEMCPY2D *p, CUstream h)
{
	ENTER(true);
	return api_leave(copy_2d(p, h, false));
}

CUresult
cuMemcpy3D_v2(const CUDA_MEMCPY3D *p)
{
	ENTER(true);
	return api_leave(copy_3d(p, NULL, true));
}

CUresult
cuMemcpy3DAsync_v2(const CUDA_MEMCPY3D *p, CUstream h)
{
	ENTER(true);
	return api_leave(copy_3d(p, h, false));
}

/* Where an address lies: attributes 1 context, 2 kind of memory, 3 address on the device, 4 on the host. */
CUresult
cuPointerGetAttribute(void *to, int attribute, CUdeviceptr at)
{
	const Arena *a;
	unsigned kind;

	ENTER(true);
	a = device_arena(at, 1);
	if (!to || !a || !arena_find(a, at))
		return api_leave(CUDA_ERROR_INVALID_VALUE);
	kind = a == &device.memory ? CU_MEMORYTYPE_DEVICE : CU_MEMORYTYPE_HOST;
	if (attribute == 2)
		memcpy(to, &kind, sizeof kind);
	else if (attribute == 3 || (attribute == 4 && kind == CU_MEMORYTYPE_HOST))
		memcpy(to, &at, sizeof at);
	else
		return api_leave(CUDA_ERROR_INVALID_VALUE);
	return api_leave(CUDA_SUCCESS);
}

/* fills */

static CUresult
set(CUdeviceptr to, uint32_t v, uint32_t bytes, size_t n, CUstream h)
{
	CUDA_MEMSET_NODE_PARAMS p = { .dst = to, .value = v, .elementSize = bytes, .width = n, .height = 1 };
	Work k;
	CUresult r = work_set_make(&k, &p);

	return r || !n ? r : stream_put(stream_of(h), &k, false);
}

CUresult
cuMemsetD8_v2(CUdeviceptr to, unsigned char v, size_t n)
{
	ENTER(true);
	return api_leave(set(to, v, 1, n, NULL));
}

CUresult
cuMemsetD16_v2(CUdeviceptr to, unsigned short v, size_t n)
{
	ENTER(true);
	return api_leave(set(to, v, 2, n, NULL));
}

CUresult
cuMemsetD32_v2(CUdeviceptr to, unsigned v, size_t n)
{
	ENTER(true);
	return api_leave(set(to, v, 4, n, NULL));
}

CUresult
cuMemsetD8Async(CUdeviceptr to, unsigned char v, size_t n, CUstream h)
{
	ENTER(true);
	return api_leave(set(to, v, 1, n, h));
}

CUresult
cuMemsetD16Async(CUdeviceptr to, unsigned short v, size_t n, CUstream h)
{
	ENTER(true);
	return api_leave(set(to, v, 2, n, h));
}

CUresult
cuMemsetD32Async(CUdeviceptr to, unsigned v, size_t n, CUstream h)
{
	ENTER(true);
	return api_leave(set(to, v, 4, n, h));
}
