/* fuzz_tune.c: any bytes as a tuning file: no crash, no read beyond the end; every record is found by its key, and
 * has a value with parameters. Written, the file has the same records, in order, and written again it is the same;
 * with one record put in, which then is there; merged with itself, it has all but the locks. */
#include "fuzz.h"
#include "pass.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

static const char *const put_in = "cpu znver4 * tanh f32[4] -> f32[4] group=0 : brgemm.1{mr=1} ; n=3";

static Tuning *
read_text(Arena *a, const char *text, size_t n)
{
	Diags *d = arena_new_of(a, Diags);

	diags_init(d, a, NULL);
	return tuning_read(a, d, "fuzz.tune", text, n);
}

/* Has y all records of x, but for locks where `locks` is false? */
static void
hold_same(const Tuning *x, const Tuning *y, bool locks)
{
	const TuneRecord *r;
	uint32_t n = 0;

	for (uint32_t i = 0; (r = tuning_at(x, i)); i++) {
		const TuneRecord *s = tuning_named(y, r->key);

		if (!locks && r->kind == TUNE_LOCK)
			continue;
		n++;
		if (!s || s->kind != r->kind || s->version != r->version || s->stale != r->stale)
			abort();
		if (r->kind != TUNE_OLD &&
		    (strcmp(s->value, r->value) || strcmp(s->facts, r->facts) || !strchr(r->value, '{')))
			abort();
	}
	if (tuning_at(y, n))
		abort();
}

static void
hold_order(const char *text, size_t n)
{
	char *last = NULL;

	for (size_t at = 0; at < n;) {
		const char *end = memchr(text + at, '\n', n - at);
		size_t length = (size_t)(end - text) - at;

		while (length && (text[at + length - 1] == ' ' || text[at + length - 1] == '\r'))
			length--;
		if (length && text[at] != '#') {
			char *line = strndup(text + at, length);

			if (!memchr(text + at, 0, length) && last && strcmp(last, line) > 0)
				abort();
			free(last);
			last = line;
		}
		at = (size_t)(end - text) + 1;
	}
	free(last);
}

int
LLVMFuzzerTestOneInput(const uint8_t *data, size_t n)
{
	static bool ready;
	Arena *a = arena_new();
	Buf once = {0}, twice = {0}, merged = {0}, more = {0};
	TuneMerge m;

	if (!ready)
		ir_init();
	ready = true;
	const char *text = arena_strndup(a, (const char *)data, n);
	Tuning *t = read_text(a, text, n);
	const TuneRecord *r;

	for (uint32_t i = 0; (r = tuning_at(t, i)); i++) {
		TuneFacts f = tuning_facts(r->facts ? r->facts : "");

		if (tuning_named(t, r->key) != r || r->at.line > n + 1 || isinf(f.us) || f.samples < 0)
			abort();
	}
	tuning_edit(&once, a, text, n, NULL, 0, &(TuneEdit){0});
	hold_same(t, read_text(a, arena_strndup(a, once.at, once.n), once.n), true);
	hold_order(once.at, once.n);
	tuning_edit(&twice, a, once.at, once.n, NULL, 0, &(TuneEdit){0});
	if (once.n != twice.n || memcmp(once.at, twice.at, once.n))
		abort();
	tuning_merge(&merged, a, &(TuneText){"a", text, n}, &(TuneText){"b", once.at, once.n}, &m);
	hold_same(t, read_text(a, arena_strndup(a, merged.at, merged.n), merged.n), false);
	if (m.warning.n)
		abort();
	tuning_edit(&more, a, text, n, NULL, 0, &(TuneEdit){.line = &put_in, .nline = 1});
	if (!tuning_named(read_text(a, more.at, more.n), "cpu znver4 * tanh f32[4] -> f32[4] group=0"))
		abort();
	buf_free(&once);
	buf_free(&twice);
	buf_free(&merged);
	buf_free(&more);
	arena_free(a);
	return 0;
}

size_t
fuzz_seed(int k, uint8_t *out, size_t room)
{
	static const char *const files[] = {
		"# comment\n\n# of the first\ncpu znver4 l1=32K,l2=1M conv2d f32[32,64,8,8]@2301 f32[64,64,1,1]@2310 "
		"-> f32[32,64,8,8]@2301 group=0 : brgemm.1{mr=12,nv=2,lanes=16,outer=row,pack=1}\n"
		"cpu znver4 l1=32K,l2=1M conv2d.dw f32[4,3,8,8]@2301 f32[4,8,8,8]@2301 "
		"-> f32[8,3,3,3]@2310 {pad=[1,1]} group=2.0123456789abcdef : brgemm.1{mr=6,nv=2,lanes=8,parts=4,band=9}"
		" ; us=72.1 +-0.7% was=80.4 n=26 step=2.1% bits=same t=2\n",
		"cpu x86-64-v3 0.0.9 matmul f32[8,8] f32[8,8] -> f32[8,8] group=0 : "
		"brgemm{mr=6,nv=2,lanes=8,outer=row,pack=0}\r\n\r\n"
		"ref - * tanh f32[4] -> f32[4] group=0 : t.1{}\nref - * tanh f32[4] -> f32[4] group=0 : t.2{} ; n=9",
		"cpu znver4 * lock lenet train batch=32 f32 : "
		"lock.1{kernels=0123456789abcdef,steps=3,states=0123456789abcdef} ; each=0123\n"
		"cpu znver4 * rates : rates.1{memory=2.8e10,map=1.1e11,start=2e-6}\n"
		"cpu znver4 * threads lenet : threads.1{start=1}\n"
		"cpu znver4 * fuse.prologue relu f32[4] -> f32[4] with=1.0123456789abcdef : choice.1{take=0}\n",
	};
	size_t n = k < (int)(sizeof files / sizeof *files) ? strlen(files[k]) : 0;

	if (n > room)
		return 0;
	if (n)
		memcpy(out, files[k], n);
	return n;
}
