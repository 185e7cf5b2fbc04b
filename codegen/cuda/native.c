/* native.c: the device in this machine, asked of its driver.
 *
 * In: libcuda.so.1 of the loader's path, or what MANTOU_LIBCUDA names.   Out: compute capability and sizes of device
 * 0. mantou is built and works without. */
#include "cuda.h"
#include <dlfcn.h>
#include <stdlib.h>

/* CU_DEVICE_ATTRIBUTE_ MULTIPROCESSOR_COUNT, L2_CACHE_SIZE, COMPUTE_CAPABILITY_MAJOR and _MINOR,
 * MAX_SHARED_MEMORY_PER_BLOCK_OPTIN */
enum { SMS = 16, L2 = 38, MAJOR = 75, MINOR = 76, SHARED = 97 };

typedef struct Wanted { int attribute, *to; } Wanted;

static bool
device_attributes(const Wanted *w, int n)
{
	const char *given = getenv("MANTOU_LIBCUDA");
	void *library = dlopen(given && *given ? given : "libcuda.so.1", RTLD_NOW | RTLD_LOCAL);
	int (*init)(unsigned), (*get)(int *, int), (*attribute)(int *, int, int), device;

	if (!library)
		return false;
	*(void **)&init = dlsym(library, "cuInit");
	*(void **)&get = dlsym(library, "cuDeviceGet");
	*(void **)&attribute = dlsym(library, "cuDeviceGetAttribute");
	/* the library stays: a driver has threads of its own once it has started */
	bool good = init && get && attribute && !init(0) && !get(&device, 0);

	for (int i = 0; i < n && good; i++)
		good = !attribute(w[i].to, w[i].attribute, device);
	return good;
}

bool
cuda_device_version(int *major, int *minor)
{
	return device_attributes((Wanted[]){{MAJOR, major}, {MINOR, minor}}, 2);
}

bool
cuda_device_read(CudaDevice *d)
{
	Wanted w[] = {{SMS, &d->sms}, {SHARED, &d->shared}, {L2, &d->l2}};

	return device_attributes(w, 3) && d->sms > 0 && d->shared > 0 && d->l2 > 0;
}
