/* machine.c: the device of each architecture (arch.def), and what it is taken to reach, for forecasts (`mantou info`);
 * no measurement.
 *
 * In: an architecture.   Out: its row; the same with what the driver says of the device here, if that runs its code;
 * rates. Of the data sheets' figures: 87 % of the memory's rate, 80 % of f32, 65 % of 16-bit products by mma.sync and
 * half of that by tf32, which on Hopper is 65 % of 65 % (mma.sync alone does not fill its tensor cores; wgmma, and
 * cuDNN's engines, do). */
#include "../codegen.h"
#include "dnn.h"
#include "gemm.h"
#include <stdlib.h>
#include <string.h>

typedef struct Device { Machine machine; double bytes, f32, tensor; } Device;
static const Device devices[] = {
#define ARCH(id, device, multiprocessors, l1_kib, shared_kib, l2_kib, fma, load, ghz, memory, vectors, products) \
	{{.arch = #id, .model = device, .line = 128, .vector_bytes = 16, .vector_registers = 255, \
	  .l1 = {l1_kib << 10, 1}, .l2 = {l2_kib << 10, multiprocessors}, .fmas = fma, .loads = load, .hz = ghz * 1e9, \
	  .sms = multiprocessors, .shared = shared_kib << 10}, memory, vectors, products},
#include "arch.def"
#undef ARCH
};
enum { NDEVICE = sizeof devices / sizeof *devices };

static const Device *
device_of(const char *arch)
{
	for (int i = 0; arch && i < NDEVICE; i++)
		if (!strcmp(devices[i].machine.arch, arch))
			return &devices[i];
	return NULL;
}

const Machine *
cuda_machine(const Target *t, const char *arch)
{
	const Device *d = device_of(arch);

	(void)t;
	return d ? &d->machine : NULL;
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
	return arena_printf(a, "sm=%d,smem=%s,l2=%s", m.sms, bytes_word(a, m.shared), bytes_word(a, m.l2.bytes));
}

bool
cuda_rates(const Target *t, const char *arch, Rates *r)
{
	const Device *d = device_of(arch);

	(void)t;
	if (!d)
		return false;
	*r = (Rates){.device = d->machine.model, .bytes = 0.87 * d->bytes, .flops = 0.8 * d->f32,
	             .products = 0.65 * d->tensor, .start = 1e-6};
	if (cu_wgmma_arch(arch))
		r->group_products = r->products / 0.65;
	return true;
}

double
cuda_product_rate(const Target *t, const Rates *r, const char *kernel)
{
	(void)t;
	if (!strncmp(kernel, "wgmma{", 6) || (cu_dnn_is(kernel) && r->group_products > 0))
		return r->group_products;
	if (!strncmp(kernel, "tf32{", 5))
		return r->products / 2;
	return !strncmp(kernel, "mma{", 4) || strstr(kernel, "{mma,") || cu_dnn_is(kernel) ? r->products : r->flops; /* contractions; attention */
}
