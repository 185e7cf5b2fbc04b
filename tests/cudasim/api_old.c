/* api_old.c: earlier versions of calls, which a program may look up by their plain names.
 *
 * Each hands over to the version of today. */
#include "work.h"

CUresult
cuGetProcAddress(const char *name, void **to, int version, unsigned long long flags)
{
	return cuGetProcAddress_v2(name, to, version, flags, NULL);
}

CUresult
cuDeviceGetUuid(CUuuid *to, CUdevice d)
{
	return cuDeviceGetUuid_v2(to, d);
}

CUresult
cuDevicePrimaryCtxRelease(CUdevice d)
{
	return cuDevicePrimaryCtxRelease_v2(d);
}

CUresult
cuDevicePrimaryCtxReset(CUdevice d)
{
	return cuDevicePrimaryCtxReset_v2(d);
}

CUresult
cuDevicePrimaryCtxSetFlags(CUdevice d, unsigned flags)
{
	return cuDevicePrimaryCtxSetFlags_v2(d, flags);
}

CUresult
cuEventElapsedTime(float *ms, CUevent a, CUevent b)
{
	return cuEventElapsedTime_v2(ms, a, b);
}

CUresult
cuGraphAddNode(CUgraphNode *to, CUgraph g, const CUgraphNode *deps, size_t n, CUgraphNodeParams *p)
{
	return cuGraphAddNode_v2(to, g, deps, NULL, n, p);
}

CUresult
cuGraphAddDependencies(CUgraph g, const CUgraphNode *from, const CUgraphNode *to, size_t n)
{
	return cuGraphAddDependencies_v2(g, from, to, NULL, n);
}

/* Its parameters end before the kernel and the context. */
CUresult
cuGraphAddKernelNode(CUgraphNode *to, CUgraph g, const CUgraphNode *deps, size_t n, const void *p)
{
	CUDA_KERNEL_NODE_PARAMS q = { 0 };

	if (!p)
		return CUDA_ERROR_INVALID_VALUE;
	__builtin_memcpy(&q, p, offsetof(CUDA_KERNEL_NODE_PARAMS, kern));
	return cuGraphAddKernelNode_v2(to, g, deps, n, &q);
}
