/* rates.c: what a device of each architecture is taken to reach, for forecasts (`mantou info`); no measurement.
 *
 * Of the data sheets' figures: 87 % of the memory's rate, 80 % of f32, 65 % of 16-bit products by mma.sync, which on Hopper is 65 % of 65 %
 * (mma.sync alone does not fill its tensor cores). */
#include "dnn.h"
#include <string.h>

typedef struct Device { const char *arch, *name; double bytes, f32, tensor; } Device;
static const Device devices[] = {
	{"sm_75", "T4", 320e9, 8.1e12, 65e12}, {"sm_80", "A100 80 GB", 2039e9, 19.5e12, 312e12}, {"sm_86", "A10", 600e9, 31.2e12, 125e12},
	{"sm_89", "L40S", 864e9, 91.6e12, 362e12}, {"sm_90", "H200", 4800e9, 67e12, 989e12 * 0.65}, {"sm_90a", "H200", 4800e9, 67e12, 989e12 * 0.65},
};

bool
cuda_rates(const Target *t, const char *arch, Rates *r)
{
	(void)t;
	for (size_t i = 0; i < sizeof devices / sizeof *devices; i++)
		if (!strcmp(devices[i].arch, arch)) {
			*r = (Rates){.device = devices[i].name, .bytes = 0.87 * devices[i].bytes, .flops = 0.8 * devices[i].f32, .products = 0.65 * devices[i].tensor, .start = 1e-6};
			return true;
		}
	return false;
}

bool
cuda_by_products(const Target *t, const char *kernel)
{
	(void)t;
	return !strncmp(kernel, "mma", 3) || cu_dnn_is(kernel);
}
