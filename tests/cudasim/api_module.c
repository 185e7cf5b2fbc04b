/* api_module.c: calls about modules, kernels and launches.
 *
 * An image is PTX text that ends with a NUL. Machine code (ELF, fatbin) is refused as made for another machine. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "work.h"

static void
jit_log(unsigned n, const CUjit_option *option, void **value, const char *text)
{
	char *to = NULL;
	size_t bytes = 0;

	for (unsigned i = 0; i < n; i++) {
		if (option[i] == CU_JIT_ERROR_LOG_BUFFER)
			to = value[i];
		if (option[i] == CU_JIT_ERROR_LOG_BUFFER_SIZE_BYTES)
			bytes = (size_t)(uintptr_t)value[i];
	}
	if (to && bytes)
		snprintf(to, bytes, "%s", text);
}

static CUresult
load(CUmodule *to, const void *image, unsigned n, const CUjit_option *option, void **value)
{
	const unsigned char *b = image;
	char error[512] = "";
	CUresult r = CUDA_SUCCESS;
	Module *m;

	if (!to || !image)
		return CUDA_ERROR_INVALID_VALUE;
	if ((b[0] == 0x7f && b[1] == 'E') || (b[0] == 0x50 && b[1] == 0xed))
		return CUDA_ERROR_NO_BINARY_FOR_GPU;
	m = module_read(image, device.set.sm, error, sizeof error, &r);
	if (!m) {
		fprintf(stderr, "simulated device: PTX is refused: %s\n", error);
		jit_log(n, option, value, error);
		return r;
	}
	m->next = device.module;
	device.module = m;
	*to = m;
	return CUDA_SUCCESS;
}

CUresult
cuModuleLoad(CUmodule *to, const char *file)
{
	FILE *f;
	char *text;
	size_t n;
	CUresult r;

	ENTER(true);
	f = file ? fopen(file, "rb") : NULL;
	text = f ? calloc(1, (64u << 20) + 1) : NULL;
	if (!text) {
		if (f)
			fclose(f);
		return api_leave(f ? CUDA_ERROR_OUT_OF_MEMORY : CUDA_ERROR_FILE_NOT_FOUND);
	}
	n = fread(text, 1, 64u << 20, f);
	r = n ? load(to, text, 0, NULL, NULL) : CUDA_ERROR_INVALID_IMAGE;
	fclose(f);
	free(text);
	return api_leave(r);
}

static bool
known(const Module *m)
{
	for (const Module *o = device.module; o; o = o->next)
		if (o == m)
			return true;
	return false;
}

static bool
known_func(const Func *f)
{
	for (const Module *o = device.module; o; o = o->next)
		for (int i = 0; i < o->nfunc; i++)
			if (o->func[i] == f)
				return true;
	return false;
}

CUresult
cuModuleLoadData(CUmodule *to, const void *image)
{
	ENTER(true);
	return api_leave(load(to, image, 0, NULL, NULL));
}

CUresult
cuModuleLoadDataEx(CUmodule *to, const void *image, unsigned n, CUjit_option *option, void **value)
{
	ENTER(true);
	return api_leave(load(to, image, n, option, value));
}

CUresult
cuLibraryLoadData(CUlibrary *to, const void *image, CUjit_option *option, void **value, unsigned n, int *library_option,
                  void **library_value, unsigned nlibrary)
{
	ENTER(true);
	(void)library_option;
	(void)library_value;
	(void)nlibrary;
	return api_leave(load(to, image, n, option, value));
}

static CUresult
unload(Module *m)
{
	if (!known(m))
		return CUDA_ERROR_INVALID_HANDLE;
	stream_wait_all();
	for (Module **at = &device.module; *at; at = &(*at)->next)
		if (*at == m) {
			*at = m->next;
			break;
		}
	device_release(m);
	module_free(m);
	return CUDA_SUCCESS;
}

CUresult
cuModuleUnload(CUmodule m)
{
	ENTER(true);
	return api_leave(unload(m));
}

CUresult
cuLibraryUnload(CUlibrary m)
{
	ENTER(true);
	return api_leave(unload(m));
}

static CUresult
function(CUfunction *to, Module *m, const char *name)
{
	Func *f;

	if (!to || !name)
		return CUDA_ERROR_INVALID_VALUE;
	if (!known(m))
		return CUDA_ERROR_INVALID_HANDLE;
	f = module_func(m, name);
	if (!f || !f->entry || !f->defined)
		return CUDA_ERROR_NOT_FOUND;
	*to = f;
	return CUDA_SUCCESS;
}

CUresult
cuModuleGetFunction(CUfunction *to, CUmodule m, const char *name)
{
	ENTER(true);
	return api_leave(function(to, m, name));
}

CUresult
cuLibraryGetKernel(CUkernel *to, CUlibrary m, const char *name)
{
	ENTER(true);
	return api_leave(function(to, m, name));
}

CUresult
cuLibraryGetModule(CUmodule *to, CUlibrary m)
{
	ENTER(true);
	if (!to || !known(m))
		return api_leave(CUDA_ERROR_INVALID_HANDLE);
	*to = m;
	return api_leave(CUDA_SUCCESS);
}

CUresult
cuKernelGetFunction(CUfunction *to, CUkernel k)
{
	ENTER(true);
	if (!to || !known_func(k))
		return api_leave(CUDA_ERROR_INVALID_HANDLE);
	*to = k;
	return api_leave(CUDA_SUCCESS);
}

CUresult
cuModuleGetFunctionCount(unsigned *n, CUmodule m)
{
	ENTER(true);
	if (!n || !known(m))
		return api_leave(CUDA_ERROR_INVALID_HANDLE);
	*n = 0;
	for (int i = 0; i < m->nfunc; i++)
		*n += m->func[i]->entry;
	return api_leave(CUDA_SUCCESS);
}

static CUresult
global(CUdeviceptr *to, size_t *bytes, Module *m, const char *name)
{
	if (!known(m) || !name)
		return CUDA_ERROR_INVALID_HANDLE;
	for (int i = 0; i < m->nglobal; i++)
		if (!strcmp(m->global[i].name, name)) {
			if (to)
				*to = m->global[i].address;
			if (bytes)
				*bytes = m->global[i].bytes;
			return CUDA_SUCCESS;
		}
	return CUDA_ERROR_NOT_FOUND;
}

CUresult
cuModuleGetGlobal_v2(CUdeviceptr *to, size_t *bytes, CUmodule m, const char *name)
{
	ENTER(true);
	return api_leave(global(to, bytes, m, name));
}

CUresult
cuLibraryGetGlobal(CUdeviceptr *to, size_t *bytes, CUlibrary m, const char *name)
{
	ENTER(true);
	return api_leave(global(to, bytes, m, name));
}

CUresult
cuModuleGetLoadingMode(int *mode)
{
	ENTER(false);
	*mode = 1;
	return api_leave(CUDA_SUCCESS);
}

/* kernels */

CUresult
cuFuncGetAttribute(int *to, CUfunction_attribute a, CUfunction f)
{
	ENTER(true);
	if (!to || !known_func(f))
		return api_leave(CUDA_ERROR_INVALID_HANDLE);
	switch (a) {
	case CU_FUNC_MAX_THREADS_PER_BLOCK: *to = f->max_threads ? (int)f->max_threads : 1024; break;
	case CU_FUNC_SHARED_SIZE_BYTES: *to = (int)f->shared_static; break;
	case CU_FUNC_LOCAL_SIZE_BYTES: *to = (int)f->frame_to; break;
	case CU_FUNC_NUM_REGS: *to = 32; break;
	case CU_FUNC_PTX_VERSION: *to = f->module->target; break;
	case CU_FUNC_BINARY_VERSION: *to = device.set.sm; break;
	case CU_FUNC_MAX_DYNAMIC_SHARED_SIZE_BYTES:
		*to = f->max_dynamic ? (int)f->max_dynamic : 49152 - (int)f->shared_static;
		break;
	default: *to = 0; break;
	}
	return api_leave(CUDA_SUCCESS);
}

CUresult
cuFuncSetAttribute(CUfunction f, CUfunction_attribute a, int v)
{
	int most;

	ENTER(true);
	if (!known_func(f))
		return api_leave(CUDA_ERROR_INVALID_HANDLE);
	most = device.set.sm >= 90                          ? 232448
	       : device.set.sm == 80 || device.set.sm == 87 ? 166912
	       : device.set.sm >= 86                        ? 101376
	                                                    : 65536;
	if (a == CU_FUNC_MAX_DYNAMIC_SHARED_SIZE_BYTES) {
		if (v < 0 || v + (int)f->shared_static > most)
			return api_leave(CUDA_ERROR_INVALID_VALUE);
		f->max_dynamic = (uint32_t)v;
	}
	return api_leave(CUDA_SUCCESS);
}

CUresult
cuFuncSetCacheConfig(CUfunction f, int config)
{
	ENTER(true);
	(void)config;
	return api_leave(known_func(f) ? CUDA_SUCCESS : CUDA_ERROR_INVALID_HANDLE);
}

CUresult
cuFuncGetName(const char **to, CUfunction f)
{
	ENTER(true);
	if (!to || !known_func(f))
		return api_leave(CUDA_ERROR_INVALID_HANDLE);
	*to = f->name;
	return api_leave(CUDA_SUCCESS);
}

CUresult
cuFuncGetModule(CUmodule *to, CUfunction f)
{
	ENTER(true);
	if (!to || !known_func(f))
		return api_leave(CUDA_ERROR_INVALID_HANDLE);
	*to = f->module;
	return api_leave(CUDA_SUCCESS);
}

CUresult
cuFuncLoad(CUfunction f)
{
	ENTER(true);
	return api_leave(known_func(f) ? CUDA_SUCCESS : CUDA_ERROR_INVALID_HANDLE);
}

/* Registers are not counted: threads, blocks and shared memory decide. */
CUresult
cuOccupancyMaxActiveBlocksPerMultiprocessor(int *to, CUfunction f, int threads, size_t dynamic)
{
	int sm, by_threads, by_shared, blocks;
	size_t shared;

	ENTER(true);
	if (!to || !known_func(f) || threads <= 0)
		return api_leave(CUDA_ERROR_INVALID_VALUE);
	sm = device.set.sm;
	by_threads = (sm == 75 ? 1024 : sm == 86 || sm == 89 ? 1536 : 2048) / ((threads + 31) / 32 * 32);
	shared = f->shared_static + dynamic + (sm == 75 ? 0 : 1024);
	by_shared = (int)((size_t)(sm >= 90   ? 233472
	                           : sm == 80 ? 167936
	                           : sm >= 86 ? 102400
	                                      : 65536) /
	                  (shared ? shared : 1));
	blocks = device.set.blocks ? device.set.blocks : sm >= 90 ? 32 : 16;
	blocks = by_threads < blocks ? by_threads : blocks;
	*to = threads > 1024 ? 0 : by_shared < blocks ? by_shared : blocks;
	return api_leave(CUDA_SUCCESS);
}

/* launches */

static CUresult
launch(const CUlaunchConfig *c, Func *f, void **params, void **more)
{
	Work k;
	CUresult r;

	if (!known_func(f))
		return CUDA_ERROR_INVALID_HANDLE;
	r = work_launch(&k, c, f, params, more);
	return r ? r : stream_put(stream_of(c->hStream), &k, false);
}

CUresult
cuLaunchKernel(CUfunction f, unsigned gx, unsigned gy, unsigned gz, unsigned bx, unsigned by, unsigned bz,
               unsigned dynamic, CUstream s, void **params, void **more)
{
	CUlaunchConfig c = { gx, gy, gz, bx, by, bz, dynamic, s, NULL, 0 };

	ENTER(true);
	return api_leave(launch(&c, f, params, more));
}

CUresult
cuLaunchKernelEx(const CUlaunchConfig *c, CUfunction f, void **params, void **more)
{
	ENTER(true);
	return api_leave(c ? launch(c, f, params, more) : CUDA_ERROR_INVALID_VALUE);
}

CUresult
cuLaunchCooperativeKernel(CUfunction f, unsigned gx, unsigned gy, unsigned gz, unsigned bx, unsigned by, unsigned bz,
                          unsigned dynamic, CUstream s, void **params)
{
	CUlaunchConfig c = { gx, gy, gz, bx, by, bz, dynamic, s, NULL, 0 };

	ENTER(true);
	return api_leave(launch(&c, f, params, NULL));
}
