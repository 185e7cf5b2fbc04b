/* native.c: the architecture of the device in this machine, asked of its driver.
 *
 * In: libcuda.so.1 of the loader's path, or what MANTOU_LIBCUDA names.   Out: compute capability of device 0. mantou is built and works without. */
#include "cuda.h"
#include <dlfcn.h>
#include <stdlib.h>

enum { MAJOR = 75, MINOR = 76 }; /* CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_ */

bool
cuda_device_version(int *major, int *minor)
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
	return init && get && attribute && !init(0) && !get(&device, 0) && !attribute(major, MAJOR, device) && !attribute(minor, MINOR, device);
}
