/* fuzz_npy.c: any bytes as a .npy file: the header reader ends with a shape that the file really holds, or an error. */
#include "../../runtime/host.h"
#include "fuzz.h"

#include <stdlib.h>
#include <string.h>

int
LLVMFuzzerTestOneInput(const uint8_t *data, size_t n)
{
	RtNpy h;
	RtError e = {""};
	volatile uint8_t sum = 0;

	if (!rt_npy_header(&h, data, n, &e)) {
		if (!*e.text)
			abort();
		return 0;
	}
	if (h.data > n || (size_t)h.count * (size_t)rt_dtype[h.dtype].bytes != n - h.data)
		abort();
	for (size_t i = h.data; i < n; i++)
		sum = (uint8_t)(sum + data[i]);
	return 0;
}

size_t
fuzz_seed(int k, uint8_t *out, size_t room)
{
	static const char *const heads[] = {
	        "{'descr': '<f4', 'fortran_order': False, 'shape': (2, 3), }",
	        "{'descr': '|u1', 'fortran_order': False, 'shape': (24,), }",
	        "{'descr': '>f8', 'fortran_order': False, 'shape': (), }",
	        "{\"shape\": (3, 2, 1, 1), 'fortran_order': False, 'descr': '<i4'}",
	};
	static const size_t sizes[] = {24, 24, 8, 24};
	size_t length, start = k == 3 ? 12 : 10;

	if (k >= (int)(sizeof sizes / sizeof *sizes) || room < 1024)
		return 0;
	length = strlen(heads[k]);
	memset(out, 0, room);
	memcpy(out, "\x93NUMPY\x01\x00", 8);
	out[6] = k == 3 ? 2 : 1;
	out[8] = (uint8_t)length;
	memcpy(out + start, heads[k], length);
	return start + length + sizes[k];
}
