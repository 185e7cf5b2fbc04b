/* fuzz_reader.c: any bytes as a file of the reader that FUZZ_READER names: csv, coco, images (a tar shard or a list),
 * skipgram. The set is loaded and every example made, or there is an error with words. Files are the bytes themselves:
 * the linker gives this file's functions in place of those that open them (--wrap); images inside are not decoded,
 * which fuzz_bitmap.c does. */
#include "../../runtime/host.h"
#include "../../runtime/bitmap.h"
#include "fuzz.h"

#include <stdlib.h>
#include <string.h>

static const uint8_t *fuzz_at;
static size_t fuzz_n;

bool __wrap_rt_file_map(RtFile *f, const char *path, RtError *e);
void __wrap_rt_file_free(RtFile *f);
void __wrap_rt_file_forget(const RtFile *f, size_t from, size_t to);
bool __wrap_rt_bitmap_head(const char *path, RtScratch *s, RtError *e);
bool __wrap_rt_bitmap_decode(const uint8_t *file, size_t n, int channels, RtScratch *s, RtBitmap *p, RtError *e);
bool __wrap_rt_bitmap_read(const char *path, RtScratch *s, const uint8_t **at, size_t *n, RtError *e);

bool
__wrap_rt_file_map(RtFile *f, const char *path, RtError *e)
{
	(void)e;
	*f = (RtFile){.path = rt_printf("%s", path), .at = (uint8_t *)(uintptr_t)fuzz_at, .n = fuzz_n};
	return true;
}

void
__wrap_rt_file_free(RtFile *f)
{
	free(f->path);
	memset(f, 0, sizeof *f);
}

void
__wrap_rt_file_forget(const RtFile *f, size_t from, size_t to)
{
	if (from > to || to > f->n)
		abort();
}

bool
__wrap_rt_bitmap_head(const char *path, RtScratch *s, RtError *e)
{
	(void)s;
	return strlen(path) < 100 || rt_fail(e, "a long name");
}

bool
__wrap_rt_bitmap_read(const char *path, RtScratch *s, const uint8_t **at, size_t *n, RtError *e)
{
	(void)path;
	(void)s;
	(void)e;
	*at = fuzz_at;
	*n = fuzz_n;
	return true;
}

/* The bytes must be there; the image is one of 16 x 8. */
bool
__wrap_rt_bitmap_decode(const uint8_t *file, size_t n, int channels, RtScratch *s, RtBitmap *p, RtError *e)
{
	volatile uint8_t sum = 0;

	for (size_t i = 0; i < n; i++)
		sum = (uint8_t)(sum + file[i]);
	*p = (RtBitmap){.width = 16, .height = 8, .channels = channels, .at = rt_scratch(s, 1, 16 * 8 * 3)};
	memset(rt_scratch(s, 1, 16 * 8 * 3), sum, 16 * 8 * 3);
	return p->at || rt_fail(e, "out of memory");
}

#define IMAGE "{\"name\": \"image\", \"dtype\": \"u8\", \"shape\": [2, 3, 4, 4]}"
static const struct { const char *name, *inputs, *more;
} kinds[] = {
        {"csv",
         "{\"name\": \"x\", \"dtype\": \"f32\", \"shape\": [2, 2]}, {\"name\": \"y\", \"dtype\": \"i32\", \"shape\": "
         "[2], \"limit\": 10}",
         "\"columns\": {\"x\": [\"a\", \"c\"], \"y\": [\"b\"]}"},
        {"coco",
         IMAGE ", {\"name\": \"b\", \"dtype\": \"f32\", \"shape\": [2, 3, 4]}, {\"name\": \"l\", \"dtype\": \"i32\", "
               "\"shape\": [2, 3], \"limit\": 5}",
         "\"images\": [\"in\"], \"size\": [4, 4], \"boxes\": 3, \"flip\": true"},
        {"images", IMAGE ", {\"name\": \"l\", \"dtype\": \"i32\", \"shape\": [2], \"limit\": 5}",
         "\"size\": 4, \"crop\": [0.1, 1], \"ratio\": [0.75, 1.5], \"flip\": true"},
        {"skipgram",
         "{\"name\": \"c\", \"dtype\": \"i32\", \"shape\": [2]}, {\"name\": \"n\", \"dtype\": \"i32\", \"shape\": [2, "
         "4]}, "
         "{\"name\": \"k\", \"dtype\": \"i32\", \"shape\": [2]}, {\"name\": \"q\", \"dtype\": \"i32\", \"shape\": [2, "
         "3]}",
         "\"words\": 20, \"window\": 2, \"negatives\": 3, \"sample\": 0.01, \"min_count\": 2"},
};

static void
fuzz_program(RtProgram *p)
{
	RtError e = {""};

	for (int i = 0; i < RT_COUNT(kinds); i++)
		if (strcmp(kinds[i].name, FUZZ_READER) == 0) {
			char *text = rt_printf("{\"version\": %d, \"batch\": 2, \"arena_bytes\": 64, \"inputs\": [%s], "
			                       "\"reader\": {\"kind\": \"%s\", \"train\": [\"/dev/null\"], "
			                       "\"test\": [\"/dev/null\"], %s}}",
			                       RT_VERSION, kinds[i].inputs, FUZZ_READER, kinds[i].more);

			if (!rt_program_read(p, text, &e)) {
				fprintf(stderr, "%s\n", e.text);
				abort();
			}
			free(text);
		}
}

int
LLVMFuzzerTestOneInput(const uint8_t *data, size_t n)
{
	static RtProgram p;
	RtScratch s = {0};
	uint8_t room[RT_MAX_INPUTS][256], *out[RT_MAX_INPUTS] = {NULL};

	if (!p.doc)
		fuzz_program(&p);
	fuzz_at = data;
	fuzz_n = n;
	for (int train = 0; train < 2; train++) {
		RtOptions o = {.data = "/", .readers = -1};
		RtError e = {""};
		RtData d;

		if (!rt_data_load(&p, &o, train, &d, &e)) {
			if (!*e.text)
				abort();
			continue;
		}
		for (int k = 0; k < p.ninput; k++)
			out[k] = room[k];
		for (int64_t i = 0; i < d.examples; i++)
			if (!rt_data_example(&d, &s, i % 3, i, out, &e) && !*e.text)
				abort();
		rt_data_free(&d);
	}
	rt_scratch_free(&s);
	return 0;
}

/* A member of a tar file. */
static size_t
seed_tar(uint8_t *out, const char *name, char kind, const char *text)
{
	size_t n = strlen(text);
	char octal[32];

	memset(out, 0, 1024);
	snprintf((char *)out, 100, "%s", name);
	snprintf(octal, sizeof octal, "%011zo", n);
	memcpy(out + 124, octal, 12);
	out[156] = (uint8_t)kind;
	memcpy(out + 257, "ustar", 6);
	memcpy(out + 512, text, n);
	return 1024;
}

size_t
fuzz_seed(int k, uint8_t *out, size_t room)
{
	static const struct { const char *reader, *text;
	} seeds[] = {
	        {"csv", "a,\"b\",c\r\n1,2,3\n\n-1.5e3,9,.25\n"},
	        {"csv", "b,a,c\n0,1,2\n\"3\" , \"1e400\",7.\n4,123456789012345678901,nan"},
	        {"coco", "{\"images\": [{\"id\": 1, \"file_name\": \"a\\u0062.png\", \"width\": 16, \"height\": 8}, "
	                 "{\"id\": 2, \"file_name\": \"c\", \"width\": 16, \"height\": 8}], "
	                 "\"annotations\": [{\"image_id\": 1, \"category_id\": 5, \"bbox\": [1, 2.5, 3, 4], "
	                 "\"iscrowd\": 0, \"segmentation\": [[1, 2]]}], "
	                 "\"categories\": [{\"id\": 5}]}"},
	        {"images", "a/1.png 3\nb.jpg\t0\r\n/c d 4\n"},
	        {"images", NULL}, /* a shard */
	        {"skipgram", "a b c a c b a d c a b\na b c d e a b"},
	};
	size_t n = 0;

	if (room < 8192)
		return 0;
	memset(out, 0, 8192);
	for (int i = 0; i < RT_COUNT(seeds); i++) {
		if (strcmp(seeds[i].reader, FUZZ_READER) != 0 || k-- > 0)
			continue;
		if (seeds[i].text) {
			memcpy(out, seeds[i].text, strlen(seeds[i].text));
			return strlen(seeds[i].text);
		}
		n = seed_tar(out, "x.cls", '0', "3\n");
		n += seed_tar(out + n, "x.png", '0', "\x89PNG\r\n\x1a\n");
		n += seed_tar(out + n, "pax", 'x', "20 path=cats/z.jpeg\n");
		n += seed_tar(out + n, "y", '0', "\xff\xd8\xff");
		n += seed_tar(out + n, "long", 'L', "dogs/w.png");
		return n + seed_tar(out + n, "y", 0, "\xff\xd8\xff");
	}
	return 0;
}
