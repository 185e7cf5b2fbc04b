/* fuzz_cifar.c: any bytes as CIFAR records (short ones here: 2 label bytes and 6 pixels). */
#include "../../runtime/host.h"
#include "fuzz.h"

#include <stdlib.h>
#include <string.h>

int
LLVMFuzzerTestOneInput(const uint8_t *data, size_t n)
{
	RtError e = {""};
	int64_t records = -1;

	if (rt_cifar_check(data, n, 8, 1, 100, "file", &records, &e)) {
		if (records < 1 || (size_t)records * 8 != n)
			abort();
		for (int64_t i = 0; i < records; i++)
			if (data[i * 8 + 1] >= 100)
				abort();
	} else if (!*e.text) {
		abort();
	}
	return 0;
}

size_t
fuzz_seed(int k, uint8_t *out, size_t room)
{
	size_t n = k == 0 ? 8 : k == 1 ? 80 : 0;

	if (n > room)
		return 0;
	for (size_t i = 0; i < n; i++)
		out[i] = (uint8_t)(i * 11 % 100);
	return n;
}
