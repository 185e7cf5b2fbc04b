/* machine.c: the device of each architecture (arch.def), and what it is taken to reach, for forecasts (`mantou info`);
 * no measurement.
 *
 * In: an architecture.   Out: its row; the same with what the driver says of the device here, if that runs its code;
 * rates. Of the data sheets' figures: 87 % of the memory's rate, 80 % of f32, 65 % of 16-bit products by mma.sync and
 * half of that by tf32, which on Hopper is 65 % of 65 % (mma.sync alone does not fill its tensor cores; wgmma, and
 * cuDNN's engines, do); half of what a multiprocessor could take of L2. */
#include "../../codegen.h"
#include "../cuda.h"
#include <stdlib.h>
#include <string.h>
#include <strings.h>

/* What the kernels were written for, an H200: its multiprocessors, and about its L2. Tiles leave some of a block's
 * shared memory. The time from one kernel to the next: the last blocks run alone, the next kernel's are not there yet.
 * */
#define BUDGET(shared_kib) \
	{.l2 = 64 << 20, .shared = (shared_kib < 96 ? shared_kib : 96) << 10, .blocks = 132, \
	 .rates = {.bytes = 3e12, .flops = 30e12, .products = 300e12, .start = 2e-6}}

#define DEVICE(id, device, multiprocessors, l1_kib, shared_kib, l2_kib, fma, load, ghz, memory, vectors, tensor, \
               groups) \
	{.arch = #id, .model = device, .line = 128, .vector_bytes = 16, .vector_registers = 255, \
	 .l1 = {l1_kib << 10, 1}, .l2 = {l2_kib << 10, multiprocessors}, .fmas = fma, .loads = load, .hz = ghz * 1e9, \
	 .sms = multiprocessors, .shared = shared_kib << 10, .budget = BUDGET(shared_kib), \
	 .rates = {.bytes = 0.87 * memory, .flops = 0.8 * vectors, .products = 0.65 * tensor, \
	           .group_products = 0.65 * groups, .start = 1e-6, \
	           .cache = (double)L2_READ * multiprocessors * ghz * 1e9}},

static const Machine devices[] = {
#define ARCH DEVICE
#include "../arch.def"
#undef ARCH
};
static const Machine cards[] = {
#define CARD DEVICE
#include "../arch.def"
#undef CARD
};
enum { NDEVICE = sizeof devices / sizeof *devices, NCARD = sizeof cards / sizeof *cards };

const Machine *
cuda_machine(const Target *t, const char *arch)
{
	(void)t;
	for (int i = 0; i < NDEVICE; i++)
		if (!arch || !strcmp(devices[i].arch, arch))
			return &devices[i];
	return NULL;
}

static const char *
word_of(const Machine *m, Arena *a)
{
	return arena_printf(a, "sm=%d,smem=%s,l2=%s", m->sms, bytes_word(a, m->shared), bytes_word(a, m->l2.bytes));
}

const Machine *
cuda_card(const Target *t, const char *arch, const char *name, Arena *a, const char **word)
{
	const Machine *row = cuda_machine(t, arch);

	for (int i = -1; i < NCARD; i++) {
		const Machine *m = i < 0 ? row : &cards[i];

		if (strcmp(m->arch, row->arch) || (strcasecmp(m->model, name) && strcmp(word_of(m, a), name)))
			continue;
		*word = word_of(m, a);
		return m;
	}
	return NULL;
}

const Machine *
cuda_forecast_machine(const char *arch, const char *word)
{
	Arena *a = arena_new();
	const char *same;
	const Machine *m = word ? cuda_card(NULL, arch, word, a, &same) : NULL;

	arena_free(a);
	return m ? m : cuda_machine(NULL, arch);
}

bool
cuda_machine_here(const Target *t, const char *arch, Machine *m)
{
	int needs = atoi(arch + 3), major, minor, has;
	CudaDevice d;

	*m = *cuda_machine(t, arch);
	if (!cuda_device_version(&major, &minor) || !cuda_device_read(&d))
		return false;
	has = 10 * major + minor;
	if (cu_wgmma_arch(arch) ? needs != has : needs > has) /* sm_90a runs on 9.0 alone */
		return false;
	m->sms = m->l2.cores = d.sms;
	m->shared = d.shared;
	m->l2.bytes = d.l2;
	return true;
}

const char *
cuda_machine_word(const Target *t, const char *arch, Arena *a)
{
	Machine m;

	cuda_machine_here(t, arch, &m);
	return word_of(&m, a);
}

bool
cu_is_turing(const char *arch)
{
	return arch && !strcmp(arch, "sm_75");
}

bool
cu_has_mma(DType t, const char *arch)
{
	return t == DT_f16 || (t == DT_bf16 && arch && !cu_is_turing(arch));
}

bool
cu_wgmma_arch(const char *arch)
{
	return arch && !strcmp(arch, "sm_90a");
}
