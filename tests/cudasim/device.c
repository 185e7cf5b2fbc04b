/* device.c: the device's settings, memory and log.
 *
 * In: environment variables (README.md lists them).   Out: struct Device, the one variable of the library; a JSON
 * object when the process ends. A symbol that is to be missing is struck from the library's own table of dynamic
 * symbols when it is loaded, so that dlsym does not find it either. */
#define _GNU_SOURCE
#include "device.h"

#include <elf.h>
#include <errno.h>
#include <link.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

#include "api.h"

Device device = { .lock = PTHREAD_MUTEX_INITIALIZER, .changed = PTHREAD_COND_INITIALIZER };

static uint64_t
setting(const char *name, uint64_t otherwise)
{
	const char *s = getenv(name);

	return s && *s ? strtoull(s, NULL, 0) : otherwise;
}

void
device_settings(void)
{
	Settings *s = &device.set;
	const char *fail = getenv("MANTOU_SIM_FAIL"), *code = fail ? strchr(fail, ':') : NULL;
	long cpus = sysconf(_SC_NPROCESSORS_ONLN);

	if (s->sm)
		return;
	s->sm = (int)setting("MANTOU_SIM_SM", 90);
	s->sms = (int)setting("MANTOU_SIM_SMS", s->sm >= 90 ? 132 : s->sm >= 80 ? 108 : 40);
	s->blocks = (int)setting("MANTOU_SIM_BLOCKS", 0);
	s->driver = (int)setting("MANTOU_SIM_DRIVER", 13000);
	s->devices = setting("MANTOU_SIM_DEVICES", 1) != 0;
	s->threads = (int)setting("MANTOU_SIM_THREADS", cpus > 8 ? 8 : cpus < 1 ? 1 : (uint64_t)cpus);
	s->memory = setting("MANTOU_SIM_MEMORY", 4ull << 30);
	s->grain = setting("MANTOU_SIM_GRAIN", 2ull << 20);
	s->seed = setting("MANTOU_SIM_SEED", 1);
	s->limit = setting("MANTOU_SIM_LIMIT", 20000000000ull);
	s->checks = setting("MANTOU_SIM_CHECK", 1);
	s->missing = getenv("MANTOU_SIM_MISSING");
	s->log = getenv("MANTOU_SIM_LOG");
	s->fail_call = fail ? strtoull(fail, NULL, 10) : 0;
	s->fail_code = code ? (CUresult)atoi(code + 1) : CUDA_ERROR_UNKNOWN;
	device.pid = (int)getpid();
}

/* Which PTX a driver reads: its toolkit's and older. */
int
device_ptx_version(void)
{
	static const struct {
		int driver, ptx;
	} rows[] = {{13000, 90}, {12090, 88}, {12080, 87}, {12070, 86}, {12050, 85}, {12040, 84}, {12030, 83},
	            {12020, 82}, {12010, 81}, {12000, 80}, {11080, 78}, {11070, 77}, {0, 70}};

	for (size_t i = 0;; i++)
		if (device.set.driver >= rows[i].driver)
			return rows[i].ptx + (device.set.driver - rows[i].driver) / 10 * (i == 0);
}

Arena *
device_arena(uint64_t at, uint64_t bytes)
{
	return arena_has(&device.memory, at, bytes) ? &device.memory
	       : arena_has(&device.host, at, bytes) ? &device.host
	                                            : NULL;
}

/* Memory of the user (owner NULL) or of a module. */
uint64_t
device_alloc(uint64_t bytes, const void *owner)
{
	if (device.memory.used + bytes > device.set.memory)
		return 0;
	return arena_alloc(&device.memory, bytes ? bytes : 1, owner != NULL);
}

void
device_release(const Module *m)
{
	for (int i = 0; i < m->nglobal; i++)
		arena_free(&device.memory, m->global[i].address);
}

void
device_fill(uint64_t at, const void *from, uint64_t bytes, bool constant)
{
	memcpy(device.memory.host + (at - device.memory.base), from, bytes);
	arena_state(&device.memory, at, bytes, (uint8_t)(MEM_WRITTEN | (constant ? MEM_READONLY : 0)), 0);
}

static int
device_leaks(void)
{
	int n = 0;

	for (int i = 0; i < device.memory.n; i++)
		n += !device.memory.allocation[i].freed && !device.memory.allocation[i].owner;
	for (int i = 0; i < device.host.n; i++)
		n += !device.host.allocation[i].freed;
	return n + virtual_leaks();
}

static void
device_log(void)
{
	const Counts *c = &device.count;
	FILE *f = device.set.log && device.pid == (int)getpid() ? fopen(device.set.log, "w") : NULL;

	if (!f)
		return;
#define COUNT(name) fprintf(f, "\"%s\": %llu, ", #name, (unsigned long long)c->name)
	fputc('{', f);
	COUNT(host_calls);
	COUNT(kernel_launches);
	COUNT(graph_launches);
	COUNT(graph_kernels);
	COUNT(conditional_runs);
	COUNT(beside);
	COUNT(blocks);
	COUNT(warp_instructions);
	COUNT(thread_instructions);
	COUNT(copies);
	COUNT(bytes_to_device);
	COUNT(bytes_to_host);
	COUNT(bytes_on_device);
	COUNT(memsets);
	COUNT(bytes_set);
	COUNT(waits);
	COUNT(allocations);
	COUNT(frees);
#undef COUNT
	fprintf(f, "\"memory_peak\": %llu, \"leaks\": %d, \"lost\": %d}\n", (unsigned long long)device.memory.peak,
	        device_leaks(), (int)device.lost);
	fclose(f);
}

/* Strikes a name from the table of this library's symbols. */
static int
strike_symbol(struct dl_phdr_info *info, size_t size, void *name)
{
	const ElfW(Dyn) *dyn = NULL;
	ElfW(Sym) *symbol = NULL;
	const char *text = NULL;
	uintptr_t here = (uintptr_t)&strike_symbol, page;
	bool mine = false;

	(void)size;
	for (int i = 0; i < info->dlpi_phnum; i++) {
		const ElfW(Phdr) *h = &info->dlpi_phdr[i];

		mine |= h->p_type == PT_LOAD && here - (info->dlpi_addr + h->p_vaddr) < h->p_memsz;
		if (h->p_type == PT_DYNAMIC)
			dyn = (const ElfW(Dyn) *)(info->dlpi_addr + h->p_vaddr);
	}
	for (; mine && dyn && dyn->d_tag != DT_NULL; dyn++) {
		if (dyn->d_tag == DT_SYMTAB)
			symbol = (ElfW(Sym) *)dyn->d_un.d_ptr;
		if (dyn->d_tag == DT_STRTAB)
			text = (const char *)dyn->d_un.d_ptr;
	}
	if (!symbol || !text)
		return mine;
	for (ElfW(Sym) *s = symbol; (const char *)s < text; s++)
		if (!strcmp(text + s->st_name, name)) {
			page = (uintptr_t)s & ~(uintptr_t)4095;
			if (!mprotect((void *)page, 8192, PROT_READ | PROT_WRITE)) {
				s->st_shndx = SHN_UNDEF;
				s->st_value = 0;
			}
		}
	return 1;
}

__attribute__((constructor)) static void
device_begin(void)
{
	char name[128];
	const char *s;

	device_settings();
	if (device.set.missing) { /* the name, and the version of it that is exported */
		dl_iterate_phdr(strike_symbol, (void *)(uintptr_t)device.set.missing);
#define F(base, symbol, params) \
		s = #symbol; \
		if (!strcmp(#base, device.set.missing) && snprintf(name, sizeof name, "%s", s) > 0) \
			dl_iterate_phdr(strike_symbol, name);
#include "api.def"
#undef F
	}
	atexit(device_log);
}
