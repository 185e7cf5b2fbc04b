/* fuzz_idx.c: any bytes as an IDX file, plain or through gzip. */
#include "../../runtime/host.h"
#include "fuzz.h"

#include <stdlib.h>
#include <string.h>

int
LLVMFuzzerTestOneInput(const uint8_t *data, size_t n)
{
	RtIdx h;
	RtError e = {""};
	uint8_t *out = NULL;
	size_t nout = 0;
	char why[128] = "";

	if (rt_idx_header(&h, data, n, &e)) {
		if (h.data > n || (size_t)h.count * (size_t)rt_dtype[h.dtype].bytes != n - h.data)
			abort();
	} else if (!*e.text) {
		abort();
	}
	if (rt_gzip_read && rt_gzip_read(data, n, &out, &nout, why, sizeof why)) {
		(void)rt_idx_header(&h, out, nout, &e);
		free(out);
	}
	return 0;
}

size_t
fuzz_seed(int k, uint8_t *out, size_t room)
{
	static const uint8_t plain[] = {0, 0, 8, 3, 0, 0, 0, 2, 0, 0, 0, 2,  0,  0,
	                                0, 3, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12};
	static const uint8_t floats[] = {0, 0, 13, 1, 0, 0, 0, 2, 0x3f, 0x80, 0, 0, 0x40, 0, 0, 0};
	/* The first one, compressed. */
	static const uint8_t packed[] = {0x1f, 0x8b, 0x08, 0x00, 0x00, 0x00, 0x00, 0x00, 0x02, 0x03, 0x63,
	                                 0x60, 0xe0, 0x60, 0x66, 0x60, 0x60, 0x60, 0x82, 0x62, 0x66, 0x46,
	                                 0x26, 0x66, 0x16, 0x56, 0x36, 0x76, 0x0e, 0x4e, 0x2e, 0x6e, 0x1e,
	                                 0x00, 0x48, 0x11, 0x0c, 0x84, 0x1c, 0x00, 0x00, 0x00};
	static const struct {
		const uint8_t *at;
		size_t n;
	} all[] = {{plain, sizeof plain}, {floats, sizeof floats}, {packed, sizeof packed}};

	if (k >= 3 || room < all[k].n)
		return 0;
	memcpy(out, all[k].at, all[k].n);
	return all[k].n;
}
