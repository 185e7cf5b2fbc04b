/* test_memory.c: allocation, copies and fills of odd sizes, what the calls refuse, modules and their variables. */
#include <stdlib.h>
#include <string.h>

#include "test.h"

static void
memory_copies(void)
{
	enum { N = 1000 };
	static unsigned char a[N], b[N];
	CUdeviceptr p, q;
	CUstream s;
	void *room;
	size_t bytes = 0, free_bytes = 0, total = 0;
	CUdeviceptr base = 0;
	bool good = true;

	for (int i = 0; i < N; i++)
		a[i] = (unsigned char)random32();
	p = test_upload(a, N);
	q = test_room(N);
	check(!cu.cuMemcpyDtoD_v2(q + 3, p, N - 3) && !cu.cuMemsetD8_v2(q, 9, 3), "a copy on the device");
	test_download(b, q, N);
	check(b[0] == 9 && b[2] == 9 && !memcmp(b + 3, a, N - 3), "copies of odd sizes");
	check(!cu.cuMemsetD16_v2(q + 2, 0x1234, 5) && !cu.cuMemsetD32_v2(q + 12, 0xdeadbeef, 2), "fills");
	test_download(b, q, N);
	check(b[2] == 0x34 && b[11] == 0x12 && b[12] == 0xef && b[19] == 0xde, "fills of two and four bytes");
	cu.cuStreamCreate(&s, 0);
	check(!cu.cuMemAllocHost_v2(&room, N), "page-locked memory");
	for (int k = 0; k < 20; k++) { /* pageable memory may be changed at once, page-locked memory after the wait */
		memset(b, k, N);
		cu.cuMemcpyHtoDAsync_v2(p, b, N, s);
		memset(b, 99, N);
		cu.cuMemcpyDtoHAsync_v2(room, p, N, s);
		cu.cuStreamSynchronize(s);
		good &= ((unsigned char *)room)[k] == k && ((unsigned char *)room)[N - 1] == k;
	}
	check(good, "asynchronous copies");
	check(!cu.cuMemGetAddressRange_v2(&base, &bytes, q + 77) && base == q && bytes == N, "the range of an address");
	check(cu.cuMemcpyHtoD_v2(p, a, N + 1) == CUDA_ERROR_INVALID_VALUE, "a copy behind the end is refused");
	check(cu.cuMemcpyDtoH_v2(b, p + N, 1) == CUDA_ERROR_INVALID_VALUE, "a copy from behind the end is refused");
	check(cu.cuMemsetD32_v2(p + 1, 0, 1) == CUDA_ERROR_INVALID_VALUE, "a fill that is not aligned is refused");
	check(cu.cuMemFree_v2(p + 1) == CUDA_ERROR_INVALID_VALUE, "freeing the middle is refused");
	check(!cu.cuMemFree_v2(p) && cu.cuMemFree_v2(p) == CUDA_ERROR_INVALID_VALUE, "freeing twice is refused");
	check(cu.cuMemcpyDtoH_v2(b, p, 1) == CUDA_ERROR_INVALID_VALUE, "freed memory is refused");
	check(!cu.cuMemGetInfo_v2(&free_bytes, &total) && free_bytes < total, "memory that is left");
	check(cu.cuMemAlloc_v2(&p, total) == CUDA_ERROR_OUT_OF_MEMORY, "more memory than there is");
	check(!cu.cuMemFreeHost(room) && !cu.cuMemFree_v2(q), "freeing");
	cu.cuStreamDestroy_v2(s);
}

/* Addresses with memory behind their first and last third. */
static void
memory_reserved(void)
{
	CUmemAllocationProp prop = {.type = 1, .location = {1, 0}};
	CUmemAccessDesc access = {{1, 0}, 3};
	CUmemGenericAllocationHandle h[2];
	size_t grain = 0, before = 0, during = 0, after = 0, total;
	CUdeviceptr at, part[2];
	char byte = 7;

	check(!cu.cuMemGetAllocationGranularity(&grain, &prop, 0) && grain, "memory's granularity");
	cu.cuMemGetInfo_v2(&before, &total);
	check(!cu.cuMemAddressReserve(&at, 3 * grain, 0, 0, 0) &&
	              cu.cuMemAddressReserve(&at, grain + 1, 0, 0, 0) == CUDA_ERROR_INVALID_VALUE, "addresses");
	check(cu.cuMemcpyHtoD_v2(at, &byte, 1) == CUDA_ERROR_INVALID_VALUE, "a copy where no memory is");
	part[0] = at;
	part[1] = at + 2 * grain;
	for (int i = 0; i < 2; i++)
		check(!cu.cuMemCreate(&h[i], grain, &prop, 0) && !cu.cuMemMap(part[i], grain, 0, h[i], 0) &&
		              !cu.cuMemRelease(h[i]), "memory behind addresses");
	check(cu.cuMemcpyHtoD_v2(at, &byte, 1) == CUDA_ERROR_INVALID_VALUE, "a copy where access was not set");
	for (int i = 0; i < 2; i++)
		check(!cu.cuMemSetAccess(part[i], grain, &access, 1) &&
		              !cu.cuMemcpyHtoD_v2(part[i] + grain - 1, &byte, 1), "a copy there");
	cu.cuMemGetInfo_v2(&during, &total);
	check(before - during == 2 * grain, "two of three parts take memory");
	check(cu.cuMemcpyHtoD_v2(at + grain, &byte, 1) == CUDA_ERROR_INVALID_VALUE &&
	              cu.cuMemsetD8_v2(at + grain - 1, 0, 2) == CUDA_ERROR_INVALID_VALUE, "nor in the hole");
	check(cu.cuMemFree_v2(at) == CUDA_ERROR_INVALID_VALUE &&
	              cu.cuMemAddressFree(at, 3 * grain) == CUDA_ERROR_INVALID_VALUE, "no freeing while it is mapped");
	check(cu.cuMemUnmap(at, 3 * grain) == CUDA_ERROR_INVALID_VALUE && !cu.cuMemUnmap(at, grain) &&
	              !cu.cuMemUnmap(at + 2 * grain, grain) && !cu.cuMemAddressFree(at, 3 * grain), "and given back");
	cu.cuMemGetInfo_v2(&after, &total);
	check(after == before, "all of it");
}

/* Rectangles, and what an address is. */
static void
memory_rectangles(void)
{
	unsigned char a[8][16], b[6][8];
	CUdeviceptr p = test_room(16 * 20), where = 0;
	CUDA_MEMCPY2D in = {.srcMemoryType = CU_MEMORYTYPE_HOST,
	                    .srcHost = a,
	                    .srcPitch = 16,
	                    .srcXInBytes = 2,
	                    .srcY = 1,
	                    .dstMemoryType = CU_MEMORYTYPE_DEVICE,
	                    .dstDevice = p,
	                    .dstPitch = 20,
	                    .dstXInBytes = 4,
	                    .WidthInBytes = 5,
	                    .Height = 6};
	CUDA_MEMCPY2D out = {.srcMemoryType = CU_MEMORYTYPE_DEVICE,
	                     .srcDevice = p,
	                     .srcPitch = 20,
	                     .srcXInBytes = 4,
	                     .dstMemoryType = CU_MEMORYTYPE_HOST,
	                     .dstHost = b,
	                     .dstPitch = 8,
	                     .WidthInBytes = 5,
	                     .Height = 6};
	unsigned kind = 0;
	void *room = NULL;
	int wrong = 0;

	for (int y = 0; y < 8; y++)
		for (int x = 0; x < 16; x++)
			a[y][x] = (unsigned char)(y * 16 + x);
	memset(b, 0, sizeof b);
	check(!cu.cuMemcpy2D_v2(&in) && !cu.cuMemcpy2D_v2(&out), "rectangles are copied");
	for (int y = 0; y < 6; y++)
		for (int x = 0; x < 8; x++)
			wrong += b[y][x] != (x < 5 ? a[y + 1][x + 2] : 0);
	check(!wrong, "rectangles: %d bytes wrong", wrong);
	in.Height = 17;
	check(cu.cuMemcpy2D_v2(&in) == CUDA_ERROR_INVALID_VALUE, "a rectangle that leaves the memory is refused");
	check(!cu.cuPointerGetAttribute(&kind, 2, p) && kind == CU_MEMORYTYPE_DEVICE &&
	              !cu.cuPointerGetAttribute(&where, 3, p + 1) && where == p + 1,
	      "an address on the device");
	check(!cu.cuMemAllocHost_v2(&room, 64) && !cu.cuPointerGetAttribute(&kind, 2, (uintptr_t)room) &&
	              kind == CU_MEMORYTYPE_HOST,
	      "an address of the host");
	check(cu.cuPointerGetAttribute(&kind, 2, (uintptr_t)&kind) == CUDA_ERROR_INVALID_VALUE,
	      "an address that is not the driver's");
	cu.cuMemFreeHost(room);
	cu.cuMemFree_v2(p);
}

/* Allocations and frees at random: what was written stays, until the memory is full and used again. */
static void
memory_reuse(void)
{
	enum { N = 64 };
	CUdeviceptr at[N] = { 0 };
	uint32_t mark[N] = { 0 };
	size_t size[N] = { 0 };
	int wrong = 0;

	for (int k = 0; k < 2000; k++) {
		int i = (int)(random32() % N);

		if (at[i]) {
			uint32_t first = 0, last = 0;

			cu.cuMemcpyDtoH_v2(&first, at[i], 4);
			cu.cuMemcpyDtoH_v2(&last, at[i] + size[i] * 4 - 4, 4);
			wrong += first != mark[i] || last != mark[i] || cu.cuMemFree_v2(at[i]);
			at[i] = 0;
			continue;
		}
		size[i] = 1 + random32() % 2000;
		mark[i] = random32();
		wrong += cu.cuMemAlloc_v2(&at[i], size[i] * 4) || cu.cuMemsetD32_v2(at[i], mark[i], size[i]);
	}
	for (int i = 0; i < N; i++)
		cu.cuMemFree_v2(at[i]);
	check(!wrong, "allocations at random: %d wrong", wrong);
}

static void
memory_modules(void)
{
	static const char text[] =
	        ".version 8.0\n.target sm_75\n.address_size 64\n.visible .global .align 4 .u32 v[4] = {1, 2, "
	        "3};\n.visible .const .align 8 .f64 c = 0d3FF8000000000000;\n"
	        ".visible .global .align 8 .u64 p = generic(v);\n.visible .entry k()\n{\n\tret;\n}\n";
	static const unsigned char elf[64] = { 0x7f, 'E', 'L', 'F' };
	CUmodule m = test_module(text), n;
	CUfunction f;
	CUdeviceptr at, ap;
	uint32_t v[4];
	uint64_t p = 0;
	size_t bytes;
	int count = 0, blocks = 0;
	const char *name = NULL;
	void *address = NULL;

	check(!cu.cuModuleGetGlobal_v2(&at, &bytes, m, "v") && bytes == 16, "a variable of 16 bytes");
	test_download(v, at, 16);
	check(v[0] == 1 && v[2] == 3 && v[3] == 0, "its initial values");
	check(!cu.cuModuleGetGlobal_v2(&ap, &bytes, m, "p") && bytes == 8, "a pointer");
	test_download(&p, ap, 8);
	check(p == at, "it points to the variable");
	check(cu.cuModuleGetFunction(&f, m, "none") == CUDA_ERROR_NOT_FOUND, "a kernel that is not there");
	f = test_function(m, "k");
	check(!cu.cuFuncGetAttribute(&count, CU_FUNC_MAX_THREADS_PER_BLOCK, f) && count == 1024, "an attribute");
	check(!cu.cuOccupancyMaxActiveBlocksPerMultiprocessor(&blocks, f, 256, 0) && blocks > 0, "occupancy %d",
	      blocks);
	check(cu.cuLaunchKernel(f, 1, 1, 1, 32, 1, 1, 60000, NULL, NULL, NULL) == CUDA_ERROR_INVALID_VALUE,
	      "much shared memory is refused");
	check(!cu.cuFuncSetAttribute(f, CU_FUNC_MAX_DYNAMIC_SHARED_SIZE_BYTES, 60000) &&
	              !cu.cuLaunchKernel(f, 1, 1, 1, 32, 1, 1, 60000, NULL, NULL, NULL),
	      "until it is asked for");
	check(cu.cuModuleLoadData(&n, elf) == CUDA_ERROR_NO_BINARY_FOR_GPU, "machine code is refused");
	check(!cu.cuGetErrorName(CUDA_ERROR_ILLEGAL_ADDRESS, &name) && !strcmp(name, "CUDA_ERROR_ILLEGAL_ADDRESS"),
	      "the name of a status");
	check(!cu.cuGetProcAddress_v2("cuMemAlloc", &address, 13000, 0, NULL) && address, "a call by its name");
	check(cu.cuGetProcAddress_v2("cuNothing", &address, 13000, 0, NULL) == CUDA_ERROR_NOT_FOUND,
	      "a name that is not there");
	check(!cu.cuGetProcAddress_v2("cuGraphAddNode", &address, 12010, 0, NULL), "an earlier version of a call");
	void *later = NULL;

	check(!cu.cuGetProcAddress_v2("cuGraphAddNode", &later, 12030, 0, NULL) && later && later != address,
	      "and a later one");
	check(!cu.cuModuleUnload(m) && cu.cuModuleUnload(m) == CUDA_ERROR_INVALID_HANDLE, "unloading");
}

/* Damaged text: files of the folder ptx/ with bytes changed, pieces left out or doubled. Loading ends, well or
 * badly. */
static void
memory_reader(void)
{
	static const char *const files[] = {"bounds-good", "race-line",       "bulk",        "async-late", "constant",
	                                    "mask",        "local-unwritten", "barrier-loop"};
	const char *dir = getenv("SIM_TESTS");
	int loaded = 0;
	char path[512];
	FILE *quiet = freopen("/dev/null", "w", stderr); /* each refusal says why */

	(void)quiet;
	for (size_t k = 0; k < sizeof files / sizeof *files; k++) {
		char *text, *bad = calloc(1, 1 << 16);
		size_t n;

		snprintf(path, sizeof path, "%s/ptx/%s.ptx", dir && *dir ? dir : "tests/cudasim", files[k]);
		text = test_file(path);
		n = text ? strlen(text) : 0;
		check(n > 100 && n < 20000 && bad, "%s is there", path);
		for (int i = 0; n && bad && i < 400; i++) {
			CUmodule m = NULL;
			size_t at = random32() % n, len = 1 + random32() % 12, to = random32() % n;

			memcpy(bad, text, n + 1);
			if (i % 4 == 0)
				bad[at] = (char)(32 + random32() % 95);
			else if (i % 4 == 1)
				memmove(bad + at, bad + (at + len < n ? at + len : n),
				        n + 1 - (at + len < n ? at + len : n));
			else if (i % 4 == 2)
				memcpy(bad + to, text + at, at + len < n && to + len < n ? len : 0);
			else
				bad[at] = 0;
			if (!cu.cuModuleLoadData(&m, bad))
				loaded += !cu.cuModuleUnload(m);
		}
		free(text);
		free(bad);
	}
	check(loaded > 0, "some damage does no harm: %d", loaded);
}

void
test_memory(void)
{
	memory_copies();
	memory_reserved();
	memory_rectangles();
	memory_reuse();
	memory_modules();
	memory_reader();
}
