/* native.c: the device in this machine, asked of its driver.
 *
 * In: libcuda.so.1 of the loader's path, or what MANTOU_LIBCUDA names.   Out: name, compute capability and sizes of
 * device 0. mantou is built and works without. */
#include "cuda.h"
#include <dlfcn.h>
#include <pthread.h>
#include <stdlib.h>

/* CU_DEVICE_ATTRIBUTE_ MULTIPROCESSOR_COUNT, L2_CACHE_SIZE, COMPUTE_CAPABILITY_MAJOR and _MINOR,
 * MAX_SHARED_MEMORY_PER_BLOCK_OPTIN */
enum { SMS = 16, L2 = 38, MAJOR = 75, MINOR = 76, SHARED = 97 };

/* What is there; asked once, as a driver that has started does not live through fork: a copy of this process that
 * compiles (mantou tune) must find the same. */
typedef struct Here { bool there, sized; int major, minor; CudaDevice sizes; char name[256]; } Here;
static Here here;
static pthread_once_t once = PTHREAD_ONCE_INIT;

static void
device_ask(void)
{
	const char *given = getenv("MANTOU_LIBCUDA");
	void *library = dlopen(given && *given ? given : "libcuda.so.1", RTLD_NOW | RTLD_LOCAL);
	int (*init)(unsigned), (*get)(int *, int), (*attribute)(int *, int, int), (*name)(char *, int, int), device;

	if (!library)
		return;
	*(void **)&init = dlsym(library, "cuInit");
	*(void **)&get = dlsym(library, "cuDeviceGet");
	*(void **)&attribute = dlsym(library, "cuDeviceGetAttribute");
	*(void **)&name = dlsym(library, "cuDeviceGetName");
	/* the library stays: a driver has threads of its own once it has started */
	if (!init || !get || !attribute || !name || init(0) || get(&device, 0))
		return;
	CudaDevice *d = &here.sizes;

	here.there = !attribute(&here.major, MAJOR, device) && !attribute(&here.minor, MINOR, device) &&
	             !name(here.name, sizeof here.name - 1, device);
	here.sized = here.there && !attribute(&d->sms, SMS, device) && !attribute(&d->shared, SHARED, device) &&
	             !attribute(&d->l2, L2, device) && d->sms > 0 && d->shared > 0 && d->l2 > 0;
}

static const Here *
device_here(void)
{
	pthread_once(&once, device_ask);
	return &here;
}

bool
cuda_device_version(int *major, int *minor)
{
	*major = device_here()->major;
	*minor = device_here()->minor;
	return device_here()->there;
}

bool
cuda_device_read(CudaDevice *d)
{
	*d = device_here()->sizes;
	return device_here()->sized;
}

const char *
cuda_device_name(const Target *t, Arena *a)
{
	(void)t;
	return device_here()->there ? arena_strdup(a, here.name) : NULL;
}
