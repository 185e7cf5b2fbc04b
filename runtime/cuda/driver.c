/* driver.c: the CUDA driver, found when the program runs; the first device; which code objects it runs.
 *
 * In: libcuda.so.1 of the loader's path, or what MANTOU_LIBCUDA names.   Out: a table of its functions, a device, the
 * module that it took, or one line on what is missing.
 * A cubin of sm_XY runs on the same major version from minor Y on, one of sm_XYa on exactly X.Y; PTX of compute_XY on
 * anything from X.Y on whose driver knows the version of the PTX. */
#define _GNU_SOURCE
#include "cuda.h"
#include "../comm.h"

#include <dlfcn.h>
#include <stdlib.h>
#include <string.h>

enum { CUDA_OLDEST = 12000, CUDA_NEEDS_WHILE = 12040 };

bool
cuda_ok(Cuda *c, int status, const char *call)
{
	const char *name = NULL, *text = NULL;

	if (status == 0)
		return true;
	if (c->cu.cuGetErrorName)
		c->cu.cuGetErrorName(status, &name);
	if (c->cu.cuGetErrorString)
		c->cu.cuGetErrorString(status, &text);
	return rt_fail(&c->h->error, "%s: %s %d: %s", call, name ? name : "status", status, text ? text : "unknown");
}

static bool
driver_open(Cuda *c)
{
	const char *given = getenv("MANTOU_LIBCUDA"), *file = given && *given ? given : "libcuda.so.1", *missing = NULL;
	void *library = dlopen(file, RTLD_NOW | RTLD_LOCAL);
	int since = 0;

	if (!library)
		return rt_fail(&c->h->error,
		               "this program needs an NVIDIA driver: %s (MANTOU_LIBCUDA names another file)",
		               dlerror());
#define CU(f, symbol, from, arguments) \
	*(void **)&c->cu.f = dlsym(library, #symbol); \
	if (!c->cu.f && from < CUDA_NEEDS_WHILE && !missing) { \
		missing = #symbol; \
		since = from; \
	}
#include "driver.def"
#undef CU
	if (missing && since > CUDA_OLDEST - 1000)
		return rt_fail(&c->h->error, "%s has no %s: the driver is too old, one for CUDA 12.0 is needed", file,
		               missing);
	return !missing || rt_fail(&c->h->error, "%s has no %s: it is no driver of CUDA", file, missing);
}

static bool
driver_device(Cuda *c)
{
	int n = 0, local = c->h->opt.alone ? -1 : rt_launch().local;

	if (!CUDA(c, cuInit, 0))
		return rt_context(&c->h->error, "the CUDA driver does not start");
	if (!CUDA(c, cuDriverGetVersion, &c->version) || !CUDA(c, cuDeviceGetCount, &n))
		return false;
	if (c->version < CUDA_OLDEST)
		return rt_fail(&c->h->error, "the driver is for CUDA %d.%d, 12.0 or newer is needed", c->version / 1000,
		               c->version % 1000 / 10);
	if (n < 1)
		return rt_fail(&c->h->error, "the driver finds no CUDA device");
	/* each process of a machine its own, or the one that it sees */
	if (local >= n && n > 1)
		return rt_fail(
		        &c->h->error,
		        "this is process %d of its machine, counted from 0, which has %d devices: one process each",
		        local, n);
	if (!CUDA(c, cuDeviceGet, &c->device, local > 0 && n > 1 ? local : 0) ||
	    !CUDA(c, cuDeviceGetAttribute, &c->major, CU_MAJOR, c->device) ||
	    !CUDA(c, cuDeviceGetAttribute, &c->minor, CU_MINOR, c->device) ||
	    !CUDA(c, cuDeviceGetAttribute, &c->sms, CU_SMS, c->device))
		return false;
	char name[256] = "";

	if (!CUDA(c, cuDeviceGetName, name, sizeof name - 1, c->device))
		return false;
	snprintf(c->name, sizeof c->name, "%s (compute capability %d.%d)", name, c->major, c->minor);
	return true;
}

bool
cuda_ready(RtHost *h)
{
	Cuda *c = rt_alloc(sizeof *c);

	h->device = c;
	c->h = h;
	c->order_epoch[0] = c->order_epoch[1] = -1;
	h->device_name = c->name;
	if (!driver_open(c) || !driver_device(c))
		return false;
	if (!CUDA(c, cuDevicePrimaryCtxRetain, &c->context, c->device))
		return rt_context(&h->error, "the device cannot be used");
	c->retained = true;
	return CUDA(c, cuCtxSetCurrent, c->context);
}

/* The version of CUDA whose drivers know this PTX: 8.x came with 12.x (but 12.6 with none of its own), 9.x with
 * 13.x. */
static int
ptx_needs(int64_t version)
{
	return version >= 80
	               ? (int)((version / 10 + 4) * 1000 + version % 10 * 10) + (version >= 86 && version < 90 ? 10 : 0)
	               : 0;
}

/* NULL if the device takes code for arch; version: of PTX. */
static const char *
code_missing(const Cuda *c, const char *arch, int64_t version, char *why, size_t n)
{
	const char *digits = strpbrk(arch, "0123456789");
	char *end = NULL;
	long number = digits ? strtol(digits, &end, 10) : 0, major = number / 10, minor = number % 10;
	bool ptx = strncmp(arch, "compute_", 8) == 0, exact = end && *end == 'a',
	     newer = c->major > major || (c->major == major && c->minor >= minor);
	int needs = ptx ? ptx_needs(version) : 0;

	if (exact ? c->major != major || c->minor != minor
	    : ptx ? !newer
	          : !number || c->major != major || c->minor < minor)
		snprintf(why, n,
		         exact ? "compute capability %ld.%ld exactly"
		         : ptx ? "compute capability %ld.%ld or more"
		               : "compute capability %ld.%ld to %ld.9",
		         major, minor, major);
	else if (needs > c->version)
		snprintf(why, n, "a driver for CUDA %d.%d, this one is for %d.%d", needs / 1000, needs % 1000 / 10,
		         c->version / 1000, c->version % 1000 / 10);
	else
		return NULL;
	return why;
}

bool
cuda_takes_code(const Cuda *c, const RtCode *code)
{
	char why[96];

	return !code_missing(c, code->arch, code->ptx_version, why, sizeof why);
}

bool
cuda_takes_ptx(const Cuda *c, const RtCode *code)
{
	char why[96];

	return code->ptx_arch && !code_missing(c, code->ptx_arch, code->ptx_version, why, sizeof why);
}

const char *
cuda_missing(RtHost *h, const RtCodeObject *m, char *text, size_t n)
{
	Cuda *c = h->device;
	const char *missing = m->code ? code_missing(c, m->code->arch, m->code->ptx_version, text, n) : "kernels";

	if (missing && m->code && m->code->ptx_arch)
		missing = code_missing(c, m->code->ptx_arch, m->code->ptx_version, text, n);
	if (missing || cuda_load(c, m->code))
		return missing;
	/* code of one toolkit's major version is promised to work with drivers of that version on */
	int needs = m->code ? ptx_needs(m->code->ptx_version) / 1000 : 0;

	if (needs > c->version / 1000)
		snprintf(text, n, "a driver for CUDA %d.0 or newer, as its kernels were compiled by NVRTC %d: %s",
		         needs, needs, h->error.text);
	else
		snprintf(text, n, "another driver: %s", h->error.text);
	return text;
}
