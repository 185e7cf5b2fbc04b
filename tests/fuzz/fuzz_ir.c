/* fuzz_ir.c: any bytes into the reader of IR text.
 *
 * Promise under test: no crash, no read beyond the end; what the reader takes and the verifier accepts prints, reads
 * back and prints as the same bytes. Under libFuzzer the target stands alone; else its own main (not fuzz_main.c) edits
 * a few texts by words of the format, which reach the shape rules, where changed bits end in the scanner: fuzz_ir
 * [ROUNDS [SEED]]; or it
 * replays files: fuzz_ir FILE...; or writes those texts for libFuzzer to start from: fuzz_ir --seeds FOLDER. */
#include "fuzz.h"
#include "ir.h"
#include <stdlib.h>
#include <string.h>

static void
check_round_trip(Arena *a, const Module *m, FILE *nowhere)
{
	Buf first = {0}, second = {0};
	const Module *again;
	Diags d;

	diags_init(&d, a, nowhere);
	module_print(&first, m);
	again = module_parse(a, &d, "again", first.at, first.n);
	if (!again)
		bug("text that does not read back:\n%s", first.at);
	module_print(&second, again);
	if (first.n != second.n || memcmp(first.at, second.at, first.n) != 0)
		bug("text that reads back as another:\n%s\n%s", first.at, second.at);
	buf_free(&first);
	buf_free(&second);
}

int
LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
	Arena *a = arena_new();
	FILE *nowhere = fopen("/dev/null", "w");
	char *text = malloc(size ? size : 1);
	Diags d;
	Module *m;

	if (size)
		memcpy(text, data, size);
	diags_init(&d, a, nowhere);
	m = module_parse(a, &d, "fuzz", text, size);
	if (m) {
		Buf errors = {0};

		if (module_verify(m, &errors))
			check_round_trip(a, m, nowhere);
		buf_free(&errors);
	} else if (d.nerror == 0) {
		bug("refused without a message");
	}
	free(text);
	fclose(nowhere);
	arena_free(a);
	return 0;
}

#ifndef WITH_LIBFUZZER

static const char *const seeds[] = {
        "module m {batch=64 stage=typed hash=0f target=cpu arch=x86-64-v3}\nsetting train.o = f(a = [1, 2.5], b = "
        "none)\n"
        "state @w : f32[6,1,5,5]@2310 = normal(0, 0.1) {kind=param decay} at 64 !a.net:8:12\n"
        "graph train(%x: f32[64,1,28,28], %i: i32[64], %s: i64[] = seed, %t: i64[] = step) -> loss %l, metric accuracy "
        "%l {\n"
        "  %w = load {state=w} : f32[6,1,5,5]@2310\n  %c = conv2d %x, %w {pad=[2,2] stride=[1,2]}\n  %m, %v = moments "
        "%c {axes=[0,2,3]}\n"
        "  %p = max_pool2d %c {k=[2,2] stride=[2,2]}\n  %l = mean %p {axes=[0,1,2,3] keep=false} !a.net:1:2 \"p\"\n"
        "  %g = conv2d.dx %c, %w {pad=[2,2] stride=[1,2]} : f32[64,1,28,28]\n  %u = random %s, %t {stream=\"a\"} : "
        "f32[3]\n"
        "  check %i {limit=10 what=label}\n  store %w {state=w}\n}\nloop train() {\n  %o = shuffle : i64[]\n  repeat "
        "{what=steps} {\n    poll\n  }\n}\n",
        "graph g(%x: f32[N<=8,6,4], %i: i64[N<=8], %w: f32[12,4], %u: f32[12,3], %b: f32[12], %h: f32[N<=8,3]) -> %y "
        "{\n"
        "  %y, %c, %d, %e = lstm %x, %w, %u, %b, %b, %h, %h\n  %q, %z = attention %x, %x, %x {scale=0.5 causal=true}\n"
        "  %r = reshape %x : f32[N<=8,24]\n  %t = transpose %x {perm=[2,0,1]}\n  %s = slice %x {axis=1 start=0 end=6 "
        "step=2}\n"
        "  %a = concat %x, %x {axis=1}\n  %f = pad %x {axis=1 before=1 after=-2 step=3}\n  %k = take %w, %i\n  %n = "
        "matmul %x, %w {tb=true}\n"
        "  %m = expand %h : f32[2,N<=8,3]\n  %o = cumsum %x {axis=2 reverse=true}\n  %v = full {value=-0.0} : f32[2]\n"
        "  %cl = clamp %x {low=-1 high=1e-3}\n  %j = argmax %x {axes=[1]}\n}\n",
        ("module m {stage=planned arena_bytes=4096}\ngraph g(%x: f32[4] at 0) -> output %y full_only \"why\" !a:1:1 {\n"
         "  group #0 a \"k{v=1}\" workspace 64 at 128\n  %a = relu %x #0\n  %y = exp %a #0 at 64\n}\n"),
};
static const char *const words[] = {
        "%x",
        "%y",
        " : f32[4]",
        "[",
        "]",
        "{",
        "}",
        "(",
        ")",
        ",",
        "\n",
        "-",
        "N<=",
        "99999999999",
        "-1",
        "axis=",
        "axes=[0]",
        "\"",
        "\\",
        " !a:1:1",
        " #0",
        " at 0",
        " = ",
        "@10",
        "nan",
        "1e308",
        "relu ",
        "add ",
        "sum ",
        "conv2d ",
        "slice ",
        "matmul ",
        "pad ",
        "attention ",
        "end",
        "repeat {what=s} {",
        "group #0 a\n",
        "0",
        "/0",
        "stride=[0,0]",
};

static uint64_t
random_bits(uint64_t *s)
{
	*s ^= *s << 13;
	*s ^= *s >> 7;
	*s ^= *s << 17;
	return *s;
}

/* One edit: bytes changed, removed, doubled, or a word put in or instead. Returns the new length. */
static size_t
mutate(char *text, size_t n, size_t cap, uint64_t *s)
{
	size_t at = n ? random_bits(s) % n : 0, len = 1 + random_bits(s) % 12;
	const char *word = words[random_bits(s) % (sizeof words / sizeof *words)];

	len = at + len > n ? n - at : len;
	switch (random_bits(s) % 6) {
	case 0:
		if (n)
			text[at] = (char)random_bits(s);
		return n;
	case 1:
		memmove(text + at, text + at + len, n - at - len);
		return n - len;
	case 2:
		if (n + len > cap)
			return n;
		memmove(text + at + len, text + at, n - at);
		return n + len;
	case 3:
		if (n && text[at] >= '0' && text[at] <= '9')
			text[at] = (char)('0' + random_bits(s) % 10);
		return n;
	case 4:
		memmove(text + at, text + at + len, n - at - len);
		n -= len;
		/* fall through */
	default:
		len = strlen(word);
		if (n + len > cap)
			return n;
		memmove(text + at + len, text + at, n - at);
		memcpy(text + at, word, len);
		return n + len;
	}
}

static int
replay_files(int n, char **names)
{
	for (int i = 0; i < n; i++) {
		size_t bytes;
		char *text = file_read(names[i], &bytes);

		if (!text)
			die("cannot read %s", names[i]);
		LLVMFuzzerTestOneInput((const uint8_t *)text, bytes);
		free(text);
	}
	return 0;
}

static int
write_seeds(const char *folder)
{
	for (size_t i = 0; i < sizeof seeds / sizeof *seeds; i++) {
		char path[4096];
		FILE *f;

		snprintf(path, sizeof path, "%s/seed%zu", folder, i);
		f = fopen(path, "wb");
		if (!f || fputs(seeds[i], f) < 0 || fclose(f) != 0) {
			perror(path);
			return 1;
		}
	}
	return 0;
}

int
main(int argc, char **argv)
{
	enum { CAP = 8000 };
	long rounds = argc > 1 ? atol(argv[1]) : 20000;
	uint64_t seed = argc > 2 ? (uint64_t)atoll(argv[2]) : 1;
	char *text;

	if (argc == 3 && strcmp(argv[1], "--seeds") == 0)
		return write_seeds(argv[2]);
	if (argc > 1 && rounds == 0)
		return replay_files(argc - 1, argv + 1);
	text = malloc(CAP);
	if (!text)
		return 1;
	for (size_t i = 0; i < sizeof seeds / sizeof *seeds; i++) {
		Arena *a = arena_new();
		Diags d;

		diags_init(&d, a, stderr);
		if (!module_parse(a, &d, "seed", seeds[i], strlen(seeds[i])))
			return 1; /* a seed that is refused tests nothing */
		arena_free(a);
	}
	for (long r = 0; r < rounds; r++) {
		const char *from = seeds[random_bits(&seed) % (sizeof seeds / sizeof *seeds)];
		size_t n = strlen(from);

		memcpy(text, from, n);
		for (int edits = 1 + (int)(random_bits(&seed) % 4); edits > 0; edits--)
			n = mutate(text, n, CAP, &seed);
		LLVMFuzzerTestOneInput((const uint8_t *)text, n);
	}
	printf("%ld texts\n", rounds);
	free(text);
	return 0;
}
#endif
