/* readers.c: what the readers put where: CIFAR, tokens, idx images, synthetic data, conversions; Philox's published
 * answers. */
#include "../../runtime/host.h"
#include "../../runtime/philox.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

static int failed, passed;

static void
check(bool good, const char *what, const char *text)
{
	good ? passed++ : failed++;
	if (!good)
		printf("FAIL readers: %s: %s\n", what, text);
}
#define CHECK(x) check(x, #x, e.text)

static void
program(RtProgram *p, const char *inputs, const char *reader)
{
	RtError e = {""};
	char *text = rt_printf("{\"version\": 5, \"batch\": 2, \"arena_bytes\": 64, \"inputs\": [%s], \"reader\": %s}",
	                       inputs, reader);

	memset(p, 0, sizeof *p);
	CHECK(rt_program_read(p, text, &e));
}

static void
put(const char *name, const void *bytes, size_t n)
{
	FILE *f = fopen(name, "wb");

	if (!f || fwrite(bytes, 1, n, f) != n || fclose(f) != 0)
		exit(1);
}

/* All examples of an input, in its own type. */
static void *
all(const RtData *d, int k)
{
	RtError e = {""};
	uint8_t *at = rt_alloc((size_t)(d->examples * d->bytes[k]));

	CHECK(rt_data_copy(d, k, 0, d->examples, at, &e));
	return at;
}

static const char cifar_inputs[] = "{\"name\": \"label\", \"dtype\": \"i32\", \"shape\": [2], \"limit\": 10}, "
                                   "{\"name\": \"image\", \"dtype\": \"f32\", \"shape\": [2, 3, 32, 32]}";

static void
test_cifar(void)
{
	static uint8_t file[2 * 3074];
	RtOptions o = {.data = "."};
	RtProgram p;
	RtData d;
	RtError e = {""};

	for (int i = 0; i < (int)sizeof file; i++)
		file[i] = (uint8_t)(i * 7);
	file[0] = 3;
	file[3073] = 9;
	put("a.bin", file, 2 * 3073);
	put("b.bin", file, 3073);
	program(&p, cifar_inputs, "{\"kind\": \"cifar10\", \"train\": \"?.bin\", \"test\": [\"a.bin\"]}");
	CHECK(rt_data_load(&p, &o, true, &d, &e));
	CHECK(d.examples == 3 && ((int32_t *)all(&d, 0))[0] == 3 && ((int32_t *)all(&d, 0))[1] == 9 &&
	      ((int32_t *)all(&d, 0))[2] == 3);
	CHECK(((float *)all(&d, 1))[3072 + 5] == file[3073 + 1 + 5] && d.bytes[1] == 3072 * 4);
	rt_data_free(&d);
	file[3073] = 10;
	put("a.bin", file, 2 * 3073);
	CHECK(!rt_data_load(&p, &o, false, &d, &e) &&
	      strstr(e.text, "test data: ./a.bin: label 10 of record 1 is out of range 0..9"));
	put("a.bin", file, 2 * 3073 - 1);
	CHECK(!rt_data_load(&p, &o, false, &d, &e) &&
	      strstr(e.text, "6145 bytes are no whole number of records of 3073 bytes"));
	put("a.bin", file, 0);
	CHECK(!rt_data_load(&p, &o, false, &d, &e) && strstr(e.text, "a.bin: is empty"));
	file[0] = 19;
	file[1] = 77;
	file[3074] = 0;
	file[3075] = 99;
	put("c.bin", file, 2 * 3074);
	program(&p,
	        "{\"name\": \"image\", \"dtype\": \"u8\", \"shape\": [2, 3, 32, 32]}, {\"name\": \"label\", \"dtype\": "
	        "\"i64\", \"shape\": [2], \"limit\": 100}",
	        "{\"kind\": \"cifar100\", \"train\": [\"c.bin\"]}");
	CHECK(rt_data_load(&p, &o, true, &d, &e));
	CHECK(d.examples == 2 && ((int64_t *)all(&d, 1))[0] == 77 && ((int64_t *)all(&d, 1))[1] == 99 &&
	      memcmp((uint8_t *)all(&d, 0) + 3072, file + 3076, 3072) == 0);
	rt_data_free(&d);
}

static void
test_tokens(void)
{
	static const char text[] = "abcdefghijklmnopqrstuvwxyz";
	RtOptions o = {.data = "."};
	RtProgram p;
	RtData d;
	RtError e = {""};

	put("t.txt", text, 26);
	program(&p,
	        "{\"name\": \"ids\", \"dtype\": \"i32\", \"shape\": [2, 4]}, {\"name\": \"next\", \"dtype\": \"i32\", "
	        "\"shape\": [2, 4]}",
	        "{\"kind\": \"tokens\", \"train\": [\"t.txt\"], \"length\": 4}");
	CHECK(rt_data_load(&p, &o, true, &d, &e));
	CHECK(d.examples == 5 && ((int32_t *)all(&d, 0))[0] == 'a' && ((int32_t *)all(&d, 1))[0] == 'b' &&
	      ((int32_t *)all(&d, 0))[4] == 'f' && ((int32_t *)all(&d, 1))[19] == 'y');
	rt_data_free(&d);
	put("t.txt", text, 4);
	CHECK(!rt_data_load(&p, &o, true, &d, &e) && strstr(e.text, "4 bytes are shorter than one window of 5"));
	put("t.txt", "\377\0\0\0\0", 5);
	program(&p, "{\"name\": \"ids\", \"dtype\": \"i32\", \"shape\": [2, 4], \"limit\": 128}",
	        "{\"kind\": \"tokens\", \"train\": [\"t.txt\"], \"length\": 4}");
	CHECK(!rt_data_load(&p, &o, true, &d, &e) && strstr(e.text, "ids 255 is out of range 0..127"));
}

static void
test_idx(void)
{
	static const uint8_t images[] = {0, 0, 8, 3, 0, 0, 0, 2, 0, 0, 0, 2,  0,  0,
	                                 0, 3, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12},
	                     labels[] = {0, 0, 8, 1, 0, 0, 0, 2, 0, 9};
	RtOptions o = {.data = "."};
	RtProgram p;
	RtData d;
	RtError e = {""};

	put("i.idx", images, sizeof images);
	put("l.idx", labels, sizeof labels);
	program(&p,
	        "{\"name\": \"label\", \"dtype\": \"i32\", \"shape\": [2], \"limit\": 10}, {\"name\": \"image\", "
	        "\"dtype\": \"u8\", \"shape\": [2, 1, 2, 3]}",
	        "{\"kind\": \"idx\", \"train\": [\"i.idx\", \"l.idx\"]}");
	CHECK(rt_data_load(&p, &o, true, &d, &e)); /* the model's inputs stand the other way round */
	CHECK(d.examples == 2 && ((int32_t *)all(&d, 0))[1] == 9 && ((uint8_t *)all(&d, 1))[6] == 7);
	rt_data_free(&d);
}

static void
test_synthetic(void)
{
	RtOptions o = {.synthetic = true};
	RtProgram p;
	RtData d, again;
	RtError e = {""};
	bool inside = true;

	program(&p,
	        "{\"name\": \"x\", \"dtype\": \"f32\", \"shape\": [2, 5]}, {\"name\": \"l\", \"dtype\": \"i32\", "
	        "\"shape\": [2], \"limit\": 3}",
	        "{\"kind\": \"synthetic\", \"examples\": 50}");
	CHECK(rt_data_load(&p, &o, true, &d, &e) && rt_data_load(&p, &o, true, &again, &e));
	for (int i = 0; i < 50; i++)
		inside = inside && ((int32_t *)all(&d, 1))[i] >= 0 && ((int32_t *)all(&d, 1))[i] < 3;
	CHECK(inside && d.examples == 50 && memcmp(all(&d, 0), all(&again, 0), 50 * 5 * 4) == 0);
	CHECK(((float *)all(&d, 0))[6] == (float)philox_uniform(0, philox_stream("synthetic.x"), 0, 6));
	rt_data_free(&d);
	rt_data_free(&again);
}

static void
test_numbers(void)
{
	static const uint32_t counter[4] = {0x243F6A88, 0x85A308D3, 0x13198A2E, 0x03707344},
	                      answer[4] = {0xd16cfe09, 0x94fdcceb, 0x5001e420, 0x24126ea1};
	uint32_t out[4];
	RtError e = {""};
	bool same = true;

	philox_block(counter, 0xA4093822, 0x299F31D0, out);
	CHECK(memcmp(out, answer, sizeof out) == 0);
	CHECK(philox_stream("foobar") == 0xBF9CF968 && philox_stream("") == 0x811C9DC5);
	for (int h = 0; h < 65536; h++) {        /* every half and every bf16 goes through double and back */
		uint8_t b[2];
		uint16_t back;

		if ((h & 0x7c00) != 0x7c00) {
			rt_dtype_write(RT_F16, b, rt_f16_to_f32((uint16_t)h));
			memcpy(&back, b, 2);
			same = same && back == h;
		}
		if ((h & 0x7f80) != 0x7f80) {
			rt_dtype_write(RT_BF16, b, rt_bf16_to_f32((uint16_t)h));
			memcpy(&back, b, 2);
			same = same && back == h;
		}
	}
	CHECK(same);
	CHECK(rt_f64_to_f16(65519.9) == 0x7bff && rt_f64_to_f16(65520) == 0x7c00 && rt_f64_to_f16(0x1p-25) == 0 &&
	      rt_f64_to_f16(0x1.8p-25) == 1);
	CHECK(rt_f64_to_f16(1 + 0x1p-11) == 0x3c00 && rt_f64_to_f16(1 + 0x1.8p-10) == 0x3c02 &&
	      rt_f64_to_f16(2047.9999) == 0x6800);
}

static void
test_conversions(void)
{
	static const double x[] = {-1.5, 300, NAN, 2.9, -1e30, 1e30};
	static const int64_t wide[] = {5, 256};
	uint8_t u[6];
	int32_t i[6];
	int64_t bad = -1;
	RtError e = {""};

	CHECK(rt_dtype_convert(RT_U8, u, RT_F64, (const uint8_t *)x, 6, false, &bad) && u[0] == 0 && u[1] == 255 &&
	      u[2] == 0 && u[3] == 2 && u[4] == 0 && u[5] == 255);
	CHECK(rt_dtype_convert(RT_I32, (uint8_t *)i, RT_F64, (const uint8_t *)x, 6, false, &bad) && i[0] == -1 &&
	      i[4] == INT32_MIN && i[5] == INT32_MAX);
	CHECK(rt_dtype_convert(RT_BOOL, u, RT_F64, (const uint8_t *)x, 4, false, &bad) && u[0] == 1);
	CHECK(!rt_dtype_convert(RT_U8, u, RT_I64, (const uint8_t *)wide, 2, false, &bad) && bad == 1);
}

int
main(void)
{
	char folder[] = "/tmp/readers-XXXXXX";

	if (!mkdtemp(folder) || chdir(folder) != 0)
		return 1;
	test_numbers();
	test_conversions();
	test_synthetic();
	test_idx();
	test_tokens();
	test_cifar();
	if (chdir("/") != 0 || system(rt_printf("rm -rf %s", folder)) != 0)
		return 1;
	printf("%d passed, %d failed, 0 skipped\n", passed, failed);
	return failed != 0;
}
