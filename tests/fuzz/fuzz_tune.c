/* fuzz_tune.c: any bytes as a tuning file: no crash, no read beyond the end; every record that is kept is found by its key, and has a kernel with parameters. */
#include "fuzz.h"
#include "pass.h"

#include <stdlib.h>
#include <string.h>

int
LLVMFuzzerTestOneInput(const uint8_t *data, size_t n)
{
	static bool ready;
	Arena *a = arena_new();
	FILE *nowhere = fopen("/dev/null", "w");
	Diags d;

	if (!ready)
		ir_init();
	ready = true;
	diags_init(&d, a, nowhere);
	Tuning *t = tuning_read(a, &d, "fuzz.tune", (const char *)data, n);
	uint32_t found = 0;

	/* each line's key, as it stands */
	for (size_t at = 0; at < n;) {
		const uint8_t *end = memchr(data + at, '\n', n - at);
		size_t length = end ? (size_t)(end - data) - at : n - at;
		char *key = arena_strndup(a, (const char *)data + at, length), *colon = strstr(key, " : ");

		if (colon) {
			*colon = 0;
			const TunedKernel *k = tuning_find(t, key);

			if (k && (strcmp(k->key, key) || !strchr(k->kernel, '{')))
				abort();
			found += k && k->at.line && (size_t)k->at.line <= n + 1;
		}
		at += length + 1;
	}
	if (found < tuning_count(t))
		abort();
	fclose(nowhere);
	arena_free(a);
	return 0;
}

size_t
fuzz_seed(int k, uint8_t *out, size_t room)
{
	static const char *const files[] = {
		"# comment\ncpu znver4 " MANTOU_VERSION " conv2d f32[32,64,8,8]@2301 f32[64,64,1,1]@2310 -> f32[32,64,8,8]@2301 group=0 : brgemm{mr=12,nv=2,lanes=16,outer=row,pack=1}\n"
		"cpu znver4 " MANTOU_VERSION " conv2d.dw f32[4,3,8,8]@2301 f32[4,8,8,8]@2301 -> f32[8,3,3,3]@2310 {pad=[1,1]} group=2.0123456789abcdef : brgemm{mr=6,nv=2,lanes=8,parts=4,band=9} # 5 ms\n",
		"cpu x86-64-v3 0.0.9 matmul f32[8,8] f32[8,8] -> f32[8,8] group=0 : brgemm{mr=6,nv=2,lanes=8,outer=row,pack=0}\r\n\r\n"
		"ref - " MANTOU_VERSION " tanh f32[4] -> f32[4] group=0 : t{}\nref - " MANTOU_VERSION " tanh f32[4] -> f32[4] group=0 : t{}",
	};
	size_t n = k < (int)(sizeof files / sizeof *files) ? strlen(files[k]) : 0;

	if (n > room)
		return 0;
	if (n)
		memcpy(out, files[k], n);
	return n;
}
