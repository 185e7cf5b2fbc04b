/* api_context.c: calls about the driver, devices and contexts.
 *
 * There is one device and one context, its primary one; contexts that are created are that one too. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "work.h"

typedef struct Context { int references; } Context;
static Context primary;                        /* only its address matters, and how often it is held */
_Thread_local CUcontext context_current;
static _Thread_local CUcontext context_stack[8];
static _Thread_local int context_depth;

CUresult
cuInit(unsigned flags)
{
	ENTER(false);
	if (flags)
		return api_leave(CUDA_ERROR_INVALID_VALUE);
	if (!device.set.devices)
		return api_leave(CUDA_ERROR_NO_DEVICE);
	if (!device.ready) {
		if (!arena_open(&device.memory, device.set.memory, true) ||
		    !arena_open(&device.host, device.set.memory, false))
			return api_leave(CUDA_ERROR_OUT_OF_MEMORY);
		stream_start();
		device.ready = true;
	}
	return api_leave(CUDA_SUCCESS);
}

CUresult
cuDriverGetVersion(int *version)
{
	ENTER(false);
	if (!version)
		return api_leave(CUDA_ERROR_INVALID_VALUE);
	*version = device.set.driver;
	return api_leave(CUDA_SUCCESS);
}

/* Tables between parts of the driver that are not public: there are none. NVRTC asks for one where it finds a driver,
 * and goes without. */
CUresult
cuGetExportTable(const void **table, const CUuuid *id)
{
	(void)id;
	if (table)
		*table = NULL;
	return CUDA_ERROR_NOT_FOUND;
}

/* names of status codes */

CUresult
cuGetErrorName(CUresult r, const char **to)
{
	switch ((int)r) {
#define RESULT(name, value, text) case value: *to = #name; return CUDA_SUCCESS;
#include "result.def"
	default: *to = NULL; return CUDA_ERROR_INVALID_VALUE;
	}
}

CUresult
cuGetErrorString(CUresult r, const char **to)
{
	switch ((int)r) {
#define RESULT(name, value, text) case value: *to = text; return CUDA_SUCCESS;
#include "result.def"
	default: *to = NULL; return CUDA_ERROR_INVALID_VALUE;
	}
}

/* ISO C has no conversion from function to object pointers; the driver's interface needs it. */
static void *
address_of(void (*fn)(void))
{
	void *p;

	memcpy(&p, &fn, sizeof p);
	return p;
}

CUresult
cuGetProcAddress_v2(const char *name, void **to, int version, unsigned long long flags, int *status)
{
	/* Programs made with an earlier toolkit get the version of the call that it knew. */
	static const struct {
		const char *name;
		int since;
		void (*symbol)(void);
	} earlier[] = {{"cuGraphAddNode", 12030, (void (*)(void))cuGraphAddNode},
	               {"cuGraphAddDependencies", 12030, (void (*)(void))cuGraphAddDependencies},
	               {"cuGraphAddKernelNode", 12000, (void (*)(void))cuGraphAddKernelNode}};

	ENTER(false);
	(void)flags;
	if (!name || !to)
		return api_leave(CUDA_ERROR_INVALID_VALUE);
	*to = NULL;
#define F(base, symbol, params) \
	if (!*to && (!strcmp(name, #base) || !strcmp(name, #symbol))) \
		*to = address_of((void (*)(void))symbol);
#include "api.def"
#undef F
	for (size_t i = 0; i < sizeof earlier / sizeof *earlier; i++)
		if (!strcmp(name, earlier[i].name) && version < earlier[i].since)
			*to = address_of(earlier[i].symbol);
	if (device.set.missing && !strcmp(name, device.set.missing))
		*to = NULL;
	if (status)
		*status = *to ? 0 : 1;
	return api_leave(*to ? CUDA_SUCCESS : CUDA_ERROR_NOT_FOUND);
}

/* devices */

static CUresult
device_enter(const char *name, CUdevice d)
{
	CUresult r = api_enter(name, false);

	if (r)
		return r;
	return device.ready ? d ? api_leave(CUDA_ERROR_INVALID_DEVICE) : CUDA_SUCCESS
	                    : api_leave(CUDA_ERROR_NOT_INITIALIZED);
}

#define ENTER_DEVICE(d) do { CUresult entered_ = device_enter(__func__, d); if (entered_) return entered_; } while (0)

CUresult
cuDeviceGet(CUdevice *to, int k)
{
	ENTER_DEVICE(k);
	*to = k;
	return api_leave(CUDA_SUCCESS);
}

CUresult
cuDeviceGetCount(int *n)
{
	ENTER_DEVICE(0);
	*n = device.set.devices;
	return api_leave(CUDA_SUCCESS);
}

CUresult
cuDeviceGetName(char *to, int n, CUdevice d)
{
	ENTER_DEVICE(d);
	snprintf(to, (size_t)n, "simulated sm_%d", device.set.sm);
	return api_leave(CUDA_SUCCESS);
}

CUresult
cuDeviceGetUuid_v2(CUuuid *to, CUdevice d)
{
	ENTER_DEVICE(d);
	memset(to, 0x51, sizeof *to);
	return api_leave(CUDA_SUCCESS);
}

CUresult
cuDeviceGetPCIBusId(char *to, int n, CUdevice d)
{
	ENTER_DEVICE(d);
	snprintf(to, (size_t)n, "0000:00:00.0");
	return api_leave(CUDA_SUCCESS);
}

CUresult
cuDeviceTotalMem_v2(size_t *bytes, CUdevice d)
{
	ENTER_DEVICE(d);
	*bytes = device.set.memory;
	return api_leave(CUDA_SUCCESS);
}

/* Numbers of attributes are the interface's; values are those of the machine with that compute capability. */
CUresult
cuDeviceGetAttribute(int *to, CUdevice_attribute a, CUdevice d)
{
	int sm, optin;

	ENTER_DEVICE(d);
	sm = device.set.sm;
	optin = sm >= 90 ? 232448 : sm == 80 || sm == 87 ? 166912 : sm >= 86 ? 101376 : 65536;
	switch (a) {
	case 1: *to = 1024; break;                      /* threads of a block */
	case 2: case 3: *to = 1024; break;
	case 4: *to = 64; break;
	case 5: *to = 0x7fffffff; break;                /* grid */
	case 6: case 7: *to = 65535; break;
	case 8: *to = 49152; break;                     /* shared memory of a block */
	case 9: *to = 65536; break;                     /* constant memory */
	case 10: *to = LANES; break;
	case 11: *to = 0x7fffffff; break;               /* pitch */
	case 12: *to = 65536; break;                    /* registers of a block */
	case 13: *to = 1000000; break;                  /* clock, kHz */
	case 15:
	case 19:
	case 20:
	case 31:
	case 41:
	case 78:
	case 79:
	case 80:
	case 90:
	case 95:
	case 99:
		*to = 1;
		break;
	case 16: *to = device.set.sms; break;
	case 36: *to = 1000000; break;                  /* memory clock, kHz */
	case 37: *to = 5120; break;                     /* bus, bits */
	case 38: *to = sm >= 90 ? 50 << 20 : 40 << 20; break; /* L2 */
	case 39: *to = sm == 75 ? 1024 : sm == 86 || sm == 89 ? 1536 : 2048; break; /* threads of a multiprocessor */
	case 75: *to = sm / 10; break;
	case 76: *to = sm % 10; break;
	case 81: *to = optin + (sm == 75 ? 0 : 1024); break; /* shared memory of a multiprocessor */
	case 82: *to = 65536; break;
	case 97: *to = optin; break;
	case 102: *to = device.set.grain != 0; break;   /* addresses apart from memory */
	case 106: *to = sm >= 90 ? 32 : 16; break;      /* blocks of a multiprocessor */
	case 111: *to = sm == 75 ? 0 : 1024; break;     /* shared memory kept of each block */
	case 115: *to = 1; break;                       /* memory pools */
	case 120: *to = sm >= 90; break;                /* clusters */
	case 127: *to = sm >= 90; break;                /* tensor maps */
	default: *to = 0; break;
	}
	return api_leave(CUDA_SUCCESS);
}

/* contexts */

CUresult
cuDevicePrimaryCtxRetain(CUcontext *to, CUdevice d)
{
	ENTER_DEVICE(d);
	if (!to)
		return api_leave(CUDA_ERROR_INVALID_VALUE);
	primary.references++;
	*to = &primary;
	return api_leave(CUDA_SUCCESS);
}

CUresult
cuDevicePrimaryCtxRelease_v2(CUdevice d)
{
	ENTER_DEVICE(d);
	if (!primary.references)
		return api_leave(CUDA_ERROR_INVALID_CONTEXT);
	if (!--primary.references)
		stream_wait_all();
	return api_leave(CUDA_SUCCESS);
}

CUresult
cuDevicePrimaryCtxReset_v2(CUdevice d)
{
	ENTER_DEVICE(d);
	stream_wait_all();
	return api_leave(CUDA_SUCCESS);
}

CUresult
cuDevicePrimaryCtxSetFlags_v2(CUdevice d, unsigned flags)
{
	ENTER_DEVICE(d);
	(void)flags;
	return api_leave(CUDA_SUCCESS);
}

CUresult
cuDevicePrimaryCtxGetState(CUdevice d, unsigned *flags, int *active)
{
	ENTER_DEVICE(d);
	*flags = 0;
	*active = primary.references > 0;
	return api_leave(CUDA_SUCCESS);
}

CUresult
cuCtxCreate_v2(CUcontext *to, unsigned flags, CUdevice d)
{
	ENTER_DEVICE(d);
	(void)flags;
	if (!to)
		return api_leave(CUDA_ERROR_INVALID_VALUE);
	primary.references++;
	*to = context_current = &primary;
	return api_leave(CUDA_SUCCESS);
}

CUresult
cuCtxDestroy_v2(CUcontext c)
{
	ENTER_DEVICE(0);
	if (c != &primary || !primary.references)
		return api_leave(CUDA_ERROR_INVALID_CONTEXT);
	stream_wait_all();
	if (!--primary.references)
		context_current = NULL;
	return api_leave(CUDA_SUCCESS);
}

CUresult
cuCtxSetCurrent(CUcontext c)
{
	ENTER_DEVICE(0);
	if (c && (c != &primary || !primary.references))
		return api_leave(CUDA_ERROR_INVALID_CONTEXT);
	context_current = c;
	return api_leave(CUDA_SUCCESS);
}

CUresult
cuCtxGetCurrent(CUcontext *to)
{
	ENTER_DEVICE(0);
	*to = context_current;
	return api_leave(CUDA_SUCCESS);
}

CUresult
cuCtxPushCurrent_v2(CUcontext c)
{
	ENTER_DEVICE(0);
	if (c != &primary || context_depth == 8)
		return api_leave(CUDA_ERROR_INVALID_CONTEXT);
	context_stack[context_depth++] = context_current;
	context_current = c;
	return api_leave(CUDA_SUCCESS);
}

CUresult
cuCtxPopCurrent_v2(CUcontext *to)
{
	ENTER_DEVICE(0);
	if (!context_depth)
		return api_leave(CUDA_ERROR_INVALID_CONTEXT);
	if (to)
		*to = context_current;
	context_current = context_stack[--context_depth];
	return api_leave(CUDA_SUCCESS);
}

CUresult
cuCtxGetDevice(CUdevice *to)
{
	ENTER(true);
	*to = 0;
	return api_leave(CUDA_SUCCESS);
}

CUresult
cuCtxGetApiVersion(CUcontext c, unsigned *version)
{
	ENTER_DEVICE(0);
	(void)c;
	*version = 3020;
	return api_leave(CUDA_SUCCESS);
}

CUresult
cuProfilerStart(void)
{
	ENTER(true);
	return api_leave(CUDA_SUCCESS);
}

CUresult
cuProfilerStop(void)
{
	ENTER(true);
	return api_leave(CUDA_SUCCESS);
}

CUresult
cuCtxGetLimit(size_t *to, CUlimit limit)
{
	ENTER(true);
	*to = limit == 0 ? 1024 : limit == 1 ? 1 << 20 : 8 << 20;
	return api_leave(CUDA_SUCCESS);
}

CUresult
cuCtxSetLimit(CUlimit limit, size_t v)
{
	ENTER(true);
	(void)limit;
	(void)v;
	return api_leave(CUDA_SUCCESS);
}

CUresult
cuCtxGetStreamPriorityRange(int *least, int *greatest)
{
	ENTER(true);
	*least = 0;
	*greatest = -5;
	return api_leave(CUDA_SUCCESS);
}
