/* cu.h: the types of the driver's interface that the simulated device implements and its tests use.
 *
 * Declared here so that neither needs a CUDA toolkit. Names, numbers and layouts are those of the driver's binary
 * interface, CUDA 13.0; what is not listed is not implemented. */
#ifndef CU_H
#define CU_H
#include <stddef.h>
#include <stdint.h>

typedef int CUdevice;
typedef unsigned long long CUdeviceptr;
typedef struct Context *CUcontext;
typedef struct Module *CUmodule, *CUlibrary;
typedef struct Func *CUfunction, *CUkernel;
typedef struct Stream *CUstream;
typedef struct Event *CUevent;
typedef struct Graph *CUgraph;
typedef struct Node *CUgraphNode;
typedef struct GraphExec *CUgraphExec;
typedef unsigned long long CUgraphConditionalHandle;
typedef void CUhostFn(void *data);
typedef void CUstreamCallback(CUstream s, int status, void *data);
typedef int CUdevice_attribute, CUfunction_attribute, CUjit_option, CUlimit;

typedef enum CUresult {
#define RESULT(name, value, text) name = value,
#include "result.def"
} CUresult;

typedef enum CUgraphNodeType {
	CU_GRAPH_NODE_TYPE_KERNEL, CU_GRAPH_NODE_TYPE_MEMCPY, CU_GRAPH_NODE_TYPE_MEMSET, CU_GRAPH_NODE_TYPE_HOST,
	CU_GRAPH_NODE_TYPE_GRAPH, CU_GRAPH_NODE_TYPE_EMPTY, CU_GRAPH_NODE_TYPE_WAIT_EVENT,
	CU_GRAPH_NODE_TYPE_EVENT_RECORD, CU_GRAPH_NODE_TYPE_CONDITIONAL = 13,
} CUgraphNodeType;
enum { CU_GRAPH_COND_TYPE_IF, CU_GRAPH_COND_TYPE_WHILE, CU_GRAPH_COND_TYPE_SWITCH };
enum { CU_GRAPH_COND_ASSIGN_DEFAULT = 1 };
enum { CU_STREAM_DEFAULT, CU_STREAM_NON_BLOCKING };
enum { CU_STREAM_CAPTURE_MODE_GLOBAL, CU_STREAM_CAPTURE_MODE_THREAD_LOCAL, CU_STREAM_CAPTURE_MODE_RELAXED };
enum { CU_STREAM_CAPTURE_STATUS_NONE, CU_STREAM_CAPTURE_STATUS_ACTIVE, CU_STREAM_CAPTURE_STATUS_INVALIDATED };
enum { CU_MEMORYTYPE_HOST = 1, CU_MEMORYTYPE_DEVICE, CU_MEMORYTYPE_ARRAY, CU_MEMORYTYPE_UNIFIED };
enum {
	CU_JIT_INFO_LOG_BUFFER = 3, CU_JIT_INFO_LOG_BUFFER_SIZE_BYTES, CU_JIT_ERROR_LOG_BUFFER,
	CU_JIT_ERROR_LOG_BUFFER_SIZE_BYTES,
};
enum {
	CU_FUNC_MAX_THREADS_PER_BLOCK, CU_FUNC_SHARED_SIZE_BYTES, CU_FUNC_CONST_SIZE_BYTES, CU_FUNC_LOCAL_SIZE_BYTES,
	CU_FUNC_NUM_REGS, CU_FUNC_PTX_VERSION, CU_FUNC_BINARY_VERSION, CU_FUNC_CACHE_MODE_CA,
	CU_FUNC_MAX_DYNAMIC_SHARED_SIZE_BYTES, CU_FUNC_CARVEOUT,
};
enum { CU_LAUNCH_ATTRIBUTE_COOPERATIVE = 2, CU_LAUNCH_ATTRIBUTE_CLUSTER_DIMENSION = 4 };
#define CU_STREAM_LEGACY ((CUstream)1)
#define CU_STREAM_PER_THREAD ((CUstream)2)
#define CU_LAUNCH_PARAM_END ((void *)0)
#define CU_LAUNCH_PARAM_BUFFER_POINTER ((void *)1)
#define CU_LAUNCH_PARAM_BUFFER_SIZE ((void *)2)

typedef struct CUuuid { char bytes[16]; } CUuuid;

typedef unsigned long long CUmemGenericAllocationHandle;
typedef struct CUmemLocation { int type, id; } CUmemLocation;
typedef struct CUmemAllocationProp {
	int type, requestedHandleTypes;
	CUmemLocation location;
	void *win32HandleMetaData;
	struct { unsigned char compressionType, gpuDirectRDMACapable; unsigned short usage; unsigned char reserved[4];
	} allocFlags;
} CUmemAllocationProp;
typedef struct CUmemAccessDesc { CUmemLocation location; int flags; } CUmemAccessDesc;

typedef struct CUDA_KERNEL_NODE_PARAMS {
	CUfunction func;
	unsigned gridDimX, gridDimY, gridDimZ, blockDimX, blockDimY, blockDimZ, sharedMemBytes;
	void **kernelParams, **extra;
	CUkernel kern;
	CUcontext ctx;
} CUDA_KERNEL_NODE_PARAMS;

typedef struct CUDA_MEMSET_NODE_PARAMS {
	CUdeviceptr dst;
	size_t pitch;
	unsigned value, elementSize;
	size_t width, height;
	CUcontext ctx; /* only in CUgraphNodeParams */
} CUDA_MEMSET_NODE_PARAMS;

typedef struct CUDA_HOST_NODE_PARAMS { CUhostFn *fn; void *userData; } CUDA_HOST_NODE_PARAMS;

typedef struct CUDA_CONDITIONAL_NODE_PARAMS {
	CUgraphConditionalHandle handle;
	int type;
	unsigned size;
	CUgraph *phGraph_out;
	CUcontext ctx;
} CUDA_CONDITIONAL_NODE_PARAMS;

typedef struct CUDA_MEMCPY2D {
	size_t srcXInBytes, srcY;
	int srcMemoryType;
	const void *srcHost;
	CUdeviceptr srcDevice;
	void *srcArray;
	size_t srcPitch;
	size_t dstXInBytes, dstY;
	int dstMemoryType;
	void *dstHost;
	CUdeviceptr dstDevice;
	void *dstArray;
	size_t dstPitch;
	size_t WidthInBytes, Height;
} CUDA_MEMCPY2D;

typedef struct CUDA_MEMCPY3D {
	size_t srcXInBytes, srcY, srcZ, srcLOD;
	int srcMemoryType;
	const void *srcHost;
	CUdeviceptr srcDevice;
	void *srcArray, *reserved0;
	size_t srcPitch, srcHeight;
	size_t dstXInBytes, dstY, dstZ, dstLOD;
	int dstMemoryType;
	void *dstHost;
	CUdeviceptr dstDevice;
	void *dstArray, *reserved1;
	size_t dstPitch, dstHeight;
	size_t WidthInBytes, Height, Depth;
} CUDA_MEMCPY3D;

typedef struct CUDA_MEMCPY_NODE_PARAMS {
	int flags, reserved;
	CUcontext ctx;
	CUDA_MEMCPY3D copyParams;
} CUDA_MEMCPY_NODE_PARAMS;

typedef struct CUgraphNodeParams {
	CUgraphNodeType type;
	int reserved0[3];
	union {
		long long reserved1[29];
		CUDA_KERNEL_NODE_PARAMS kernel;
		CUDA_MEMCPY_NODE_PARAMS memcpy;
		CUDA_MEMSET_NODE_PARAMS memset;
		CUDA_HOST_NODE_PARAMS host;
		struct { CUgraph graph; int ownership; } graph;
		struct { CUevent event; } event;
		CUDA_CONDITIONAL_NODE_PARAMS conditional;
	} as;
	long long reserved2;
} CUgraphNodeParams;

typedef struct CUgraphEdgeData { unsigned char from_port, to_port, type, reserved[5]; } CUgraphEdgeData;
typedef struct CUDA_GRAPH_INSTANTIATE_PARAMS {
	unsigned long long flags;
	CUstream hUploadStream;
	CUgraphNode hErrNode_out;
	int result_out;
} CUDA_GRAPH_INSTANTIATE_PARAMS;
typedef struct CUgraphExecUpdateResultInfo {
	int result;
	CUgraphNode errorNode, errorFromNode;
} CUgraphExecUpdateResultInfo;

typedef struct CUlaunchAttribute {
	int id;
	char pad[4];
	union { char pad[64]; int cooperative; struct { unsigned x, y, z; } clusterDim; } value;
} CUlaunchAttribute;

typedef struct CUlaunchConfig {
	unsigned gridDimX, gridDimY, gridDimZ, blockDimX, blockDimY, blockDimZ, sharedMemBytes;
	CUstream hStream;
	CUlaunchAttribute *attrs;
	unsigned numAttrs;
} CUlaunchConfig;

typedef struct CUtensorMap { _Alignas(128) uint64_t opaque[16]; } CUtensorMap;
#endif
