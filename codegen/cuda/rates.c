/* rates.c: what a device of each architecture is taken to reach, for forecasts (`mantou info`); no measurement.
 *
 * Of the data sheets' figures (arch.def): 87 % of the memory's rate, 80 % of f32, 65 % of 16-bit products by mma.sync and half of that by tf32, which on Hopper is 65 % of 65 %
 * (mma.sync alone does not fill its tensor cores; wgmma, and cuDNN's engines, do). */
#include "algo.h"
#include <string.h>

typedef struct Device { const char *arch, *name; double bytes, f32, tensor; } Device;
static const Device devices[] = {
#define ARCH(arch, device, bytes, f32, tensor) {#arch, device, bytes, f32, tensor},
#include "arch.def"
#undef ARCH
};

bool
cuda_rates(const Target *t, const char *arch, Rates *r)
{
	(void)t;
	for (size_t i = 0; i < sizeof devices / sizeof *devices; i++)
		if (!strcmp(devices[i].arch, arch)) {
			*r = (Rates){.device = devices[i].name, .bytes = 0.87 * devices[i].bytes, .flops = 0.8 * devices[i].f32, .products = 0.65 * devices[i].tensor, .start = 1e-6};
			if (cu_wgmma_arch(arch))
				r->group_products = r->products / 0.65;
			return true;
		}
	return false;
}

double
cuda_product_rate(const Target *t, const Rates *r, const char *kernel)
{
	Params p;

	(void)t;
	space_parse("cuda", NULL, kernel, &p);
	const CuAlgo *algo = cu_algo_of(p.family);

	if (p.family == FAMILY_cuda_attention && p.cuda_attention.by)
		return r->products;
	return algo && algo->rate ? algo->rate(r) : r->flops;
}
