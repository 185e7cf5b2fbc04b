/* fuzz_safetensors.c: any bytes as a safetensors file; the same bytes as JSON. */
#include "../../runtime/host.h"
#include "fuzz.h"

#include <stdlib.h>
#include <string.h>

int
LLVMFuzzerTestOneInput(const uint8_t *data, size_t n)
{
	RtSt s;
	RtError e = {""};
	JsonDoc *doc;
	char why[128] = "";

	if (rt_st_parse(&s, data, n, &e)) {
		volatile uint8_t sum = 0;

		for (int i = 0; i < s.nentry; i++) {
			if (s.entry[i].end > s.data_bytes || s.entry[i].begin > s.entry[i].end)
				abort();
			for (uint64_t b = s.entry[i].begin; b < s.entry[i].end; b++)
				sum = (uint8_t)(sum + s.data[b]);
		}
	} else if (!*e.text) {
		abort();
	}
	rt_st_free(&s);
	if (!rt_json_parse((const char *)data, n, &doc, why, sizeof why) && !*why)
		abort();
	rt_json_free(doc);
	if (n > 8 && !rt_json_parse((const char *)data + 8, n - 8, &doc, why, sizeof why) && !*why)
		abort();
	if (n > 8)
		rt_json_free(doc);
	return 0;
}

size_t
fuzz_seed(int k, uint8_t *out, size_t room)
{
	static const char *const heads[] = {
	        ("{\"__metadata__\":{\"step\":\"17\",\"epoch_sums\":\"0x1p3 "
	         "0x1.8p0\"},\"dense0.weight\":{\"dtype\":\"F32\",\"shape\":[1,4],\"data_offsets\":[0,16]},"
	         "\"dense0.bias\":{\"dtype\":\"F32\",\"shape\":[1],\"data_offsets\":[16,20]},\"empty\":{\"dtype\":"
	         "\"U8\",\"shape\":[0,3],\"data_offsets\":[20,20]}}"),
	        "{\"a\\u00e9\\ud83d\\ude00\\n\":{\"dtype\":\"BF16\",\"shape\":[2,5],\"data_offsets\":[0,20]}}",
	        "{\"x\":{\"dtype\":\"F64\",\"shape\":[],\"data_offsets\":[0,8]},\"y\":{\"dtype\":\"I32\",\"shape\":[3],"
	        "\"data_offsets\":[8,20]}}   ",
	};
	uint64_t length;

	if (k >= 3)
		return 0;
	length = strlen(heads[k]);
	if (room < 8 + length + 20)
		return 0;
	memcpy(out, &length, 8);
	memcpy(out + 8, heads[k], length);
	memset(out + 8 + length, 7, 20);
	return 8 + length + 20;
}
