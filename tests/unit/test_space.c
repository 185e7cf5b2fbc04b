/* test_space.c: kernels' texts and parameters as codegen/tune.def declares them: what is read prints the same, all else
 * is refused; misfits with their numbers, what is worth trying, order keys; and the table in codegen/kernels.md, whose
 * name is the first argument. With `--bless` behind it the table is written there anew. */
#include "unit.h"
#include "../../codegen/space.h"
#include <ctype.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static const char *readme;
static bool bless;

/* ---------------------------------------------------------------- text */
static const struct { const char *target, *op, *text; FamilyId family;
} texts[] = {
        {"cpu", "conv2d", "brgemm{mr=12,nv=2,lanes=16,outer=row,pack=1}", FAMILY_cpu_brgemm},
        {"cpu", "conv2d.dx", "brgemm{mr=6,nv=4,lanes=16,outer=panel,pack=1,pairs}", FAMILY_cpu_brgemm},
        {"cpu", "matmul", "brgemm{mr=6,nv=2,lanes=8,outer=row,pack=0,copy=1}", FAMILY_cpu_brgemm},
        {"cpu", "matmul", "brgemm{mr=32,nv=2,lanes=16,outer=row,pack=1,copy=1,amx}", FAMILY_cpu_brgemm},
        {"cpu", "conv2d.dw", "brgemm{mr=14,nv=1,lanes=16,parts=4,band=9}", FAMILY_cpu_brgemm_dw},
        {"cpu", "conv2d.dw", "brgemm{mr=12,nv=2,lanes=16,parts=1,band=1,images=8,f16}", FAMILY_cpu_brgemm_dw},
        {"cpu", "conv2d.dw", "brgemm{mr=12,nv=2,lanes=16,parts=1,band=1,pairs}", FAMILY_cpu_brgemm_dw},
        {"cpu", "conv2d", "winograd{mr=6,nv=4,lanes=16}", FAMILY_cpu_winograd},
        {"cpu", "matmul", "strassen{mr=6,nv=4,lanes=16}", FAMILY_cpu_strassen},
        {"cpu", "conv2d", "lowered{mr=12,nv=2,lanes=16,ahead=32}", FAMILY_cpu_lowered},
        {"cpu", "lstm.cells", "rnn{mr=6,nv=4,lanes=16,rows=6}", FAMILY_cpu_rnn},
        {"cpu", "gru.cells.dx", "rnn_strassen{mr=6,nv=4,lanes=16,rows=12}", FAMILY_cpu_rnn_strassen},
        {"cpu", "attention", "attention{queries=128,keys=64,lanes=16}", FAMILY_cpu_attention},
        {"cpu", "sum", "rows", FAMILY_cpu_rows},
        {"cpu", NULL, "map", FAMILY_cpu_map},
        {"cpu", NULL, "move", FAMILY_cpu_move},
        {"cpu", "matmul", "plain", FAMILY_cpu_plain},
        {"cuda", "matmul", "mma{m=128,n=64,k=32,stages=3,warps=2x2}", FAMILY_cuda_mma},
        {"cuda", "matmul", "mma{m=128,n=64,k=32,stages=3,warps=2x4,split=4}", FAMILY_cuda_mma},
        {"cuda", "conv2d", "tf32{m=64,n=32,k=16,stages=2,warps=4x1}", FAMILY_cuda_tf32},
        {"cuda", "conv2d", "wgmma{m=128,n=256,k=64,stages=4,groups=2,split=2}", FAMILY_cuda_wgmma},
        {"cuda", "conv2d.dw", "ffma{m=64,n=32,k=16}", FAMILY_cuda_ffma},
        {"cuda", "conv2d", "cudnn{engine=-1}", FAMILY_cuda_cudnn},
        {"cuda", "conv2d", "cudnn{engine=7,knob=2:16,knob=12:-1,round=1,fused=1,device=h100}", FAMILY_cuda_cudnn},
        {"cuda", "mean", "columns{m=1024,n=32}", FAMILY_cuda_columns},
        {"cuda", "max", "total{pieces=7}", FAMILY_cuda_total},
        {"cuda", "sum", "rows{threads=1}", FAMILY_cuda_rows},
        {"cuda", "sum", "rows{threads=256,pieces=4}", FAMILY_cuda_rows},
        {"cuda", "max", "rows{threads=32,rows=2,unroll=4}", FAMILY_cuda_rows},
        {"cuda", "sum", "columns{m=256,n=64,ahead=4}", FAMILY_cuda_columns},
        {"cuda", "conv2d", "depthwise{pixels=4,vec=8}", FAMILY_cuda_depthwise},
        {"cuda", "conv2d.dw", "depthwise{pixels=1,pieces=8,taps=3,lanes=16}", FAMILY_cuda_depthwise},
        {"cuda", "attention.dx", "attention{mma,rows=64,columns=32}", FAMILY_cuda_attention},
        {"cuda", "attention", "attention{ffma,rows=16,columns=16}", FAMILY_cuda_attention},
        {"cuda", "attention", "attention{mma,rows=128,columns=16,late=1}", FAMILY_cuda_attention},
        {"cuda", "lstm.cells", "cells{examples=4,threads=128}", FAMILY_cuda_cells},
        {"cuda", "gru.cells.dx", "cells{examples=4,threads=128,parts=8,blocks=3}", FAMILY_cuda_cells},
        {"cuda", "lstm.cells", "cells{examples=1,threads=96,unroll=8}", FAMILY_cuda_cells},
        {"cuda", "lstm.cells.dx", "cells_mma{examples=16,threads=256,blocks=64}", FAMILY_cuda_cells_mma},
        {"cuda", NULL, "window", FAMILY_cuda_window},
};
enum { NTEXT = sizeof texts / sizeof *texts };

static void
texts_are_read_and_printed(void **state)
{
	for (int i = 0; i < NTEXT; i++) {
		Arena *a = arena_new();
		Params p, any;

		if (!space_parse(texts[i].target, texts[i].op, texts[i].text, &p))
			fail_msg("%s is not read", texts[i].text);
		assert_int_equal(p.family, texts[i].family);
		assert_string_equal(space_text(a, &p), texts[i].text);
		assert_true(space_parse(texts[i].target, NULL, texts[i].text, &any));
		assert_memory_equal(&p, &any, sizeof p);
		assert_int_equal(space_family_of(texts[i].target, texts[i].op, texts[i].text), texts[i].family);
		assert_false(space_parse(texts[i].target, NULL, arena_printf(a, "%s ", texts[i].text), &any));
		assert_int_equal(any.family, FAMILY_none);
		arena_free(a);
	}
	Arena *a = arena_new();
	Params p;

	assert_string_equal(space_form(a, FAMILY_cuda_attention), "attention{ffma|mma,rows=,columns=[,late=]}");
	assert_string_equal(space_form(a, FAMILY_cuda_rows), "rows{threads=[,pieces=][,rows=][,unroll=]}");
	assert_string_equal(space_form(a, FAMILY_cuda_mma), "mma{m=,n=,k=,stages=,warps=x[,split=]}");
	assert_string_equal(space_form(a, FAMILY_cpu_rows), "rows");
	arena_free(a);
	assert_true(space_parse("cpu", "conv2d.dw", texts[5].text, &p));
	assert_int_equal(p.cpu_brgemm_dw.images, 8);
	assert_int_equal(p.cpu_brgemm_dw.pairs, 2);
	assert_true(space_parse("cuda", "conv2d", texts[23].text, &p));
	assert_int_equal(p.cuda_cudnn.knob.n, 2);
	assert_int_equal(p.cuda_cudnn.knob.of[1][0], 12);
	assert_int_equal(p.cuda_cudnn.knob.of[1][1], -1);
	assert_string_equal(p.cuda_cudnn.device, "h100");
}

static void
other_texts_are_refused(void **state)
{
	static const struct { const char *target, *op, *text;
	} bad[] = {
	        {"cpu", NULL, NULL},
	        {"cpu", NULL, ""},
	        {"cpu", NULL, "brgemm"},
	        {"cpu", NULL, "brgemm{}"},
	        {"cpu", NULL, "rows{}"},
	        {"cpu", NULL, "map{}"},
	        {"cpu", NULL, "maps"},
	        {"cuda", NULL, "rows"},
	        {"cuda", NULL, "winograd{mr=6,nv=4,lanes=16}"},
	        {"cpu", "conv2d.dw", "brgemm{mr=12,nv=2,lanes=16,outer=row,pack=1}"},
	        {"cpu", "conv2d", "brgemm{mr=14,nv=1,lanes=16,parts=4,band=9}"},
	        {"cpu", "matmul", "winograd{mr=6,nv=4,lanes=16}"},
	        {"cpu", NULL, "brgemm{mr=12,nv=2,lanes=16,outer=row,pack=1,copy=0}"}, /* what is left out is left out */
	        {"cpu", NULL, "brgemm{mr=12,nv=2,lanes=16,outer=row,pack=1,none}"},
	        {"cpu", NULL, "brgemm{mr=12,nv=2,lanes=16,outer=rows,pack=1}"},
	        {"cpu", NULL, "brgemm{mr=12,nv=2,lanes=16,outer=,pack=1}"},
	        {"cpu", NULL, "brgemm{mr=12,nv=2,lanes=16,outer=row,pack=1,amx,pairs}"},
	        {"cpu", NULL, "brgemm{mr=12,nv=2,lanes=16,outer=row,pack=1,amxx}"},
	        {"cpu", NULL, "brgemm{nv=2,mr=12,lanes=16,outer=row,pack=1}"},
	        {"cpu", NULL, "brgemm{mr=12,nv=2,lanes=16,outer=row}"},
	        {"cpu", NULL, "brgemm{mr=12,nv=2,lanes=16,outer=row,pack=1"},
	        {"cpu", NULL, "winograd{mr=06,nv=4,lanes=16}"},
	        {"cpu", NULL, "winograd{mr=+6,nv=4,lanes=16}"},
	        {"cpu", NULL, "winograd{mr=-0,nv=4,lanes=16}"},
	        {"cpu", NULL, "winograd{mr= 6,nv=4,lanes=16}"},
	        {"cpu", NULL, "winograd{mr=2147483648,nv=4,lanes=16}"},
	        {"cpu", NULL, "winograd{mr=4294967302,nv=4,lanes=16}"},
	        {"cpu", NULL, "winograd{mr=99999999999999999999,nv=4,lanes=16}"},
	        {"cpu", NULL, "winograd{mr=6,nv=4,lanes=16}}"},
	        {"cpu", NULL, "winograd{mr=6;nv=4,lanes=16}"},
	        {"cpu", NULL, "winograd{mr=6,nv=4,lanes=1.6}"},
	        {"cuda", NULL, "mma{m=64,n=64,k=32,stages=3,warps=2}"},
	        {"cuda", NULL, "mma{m=64,n=64,k=32,stages=3,warps=2x}"},
	        {"cuda", NULL, "mma{m=64,n=64,k=32,stages=3,warps=2x2,split=1}"},
	        {"cuda", NULL, "attention{rows=16,columns=16}"},
	        {"cuda", NULL, "attention{fma,rows=16,columns=16}"},
	        {"cuda", NULL, "cudnn{engine=}"},
	        {"cuda", NULL, "cudnn{knob=2:3}"},
	        {"cuda", NULL, "cudnn{engine=7,knob=2}"},
	        {"cuda", NULL, "cudnn{engine=7,knob=1000:1}"},
	        {"cuda", NULL, "cudnn{engine=7,knob=-1:1}"},
	        {"cuda", NULL, "cudnn{engine=7,round=0}"},
	        {"cuda", NULL, "cudnn{engine=7,fused=1,round=1}"},
	        {"cuda", NULL, "cudnn{engine=7,device=}"},
	        {"cuda", NULL, "cudnn{engine=7,device=H100}"},
	        {"cuda", NULL, "cudnn{engine=7,device=0123456789abcdef}"},
	        {"cuda", NULL, "cudnn{engine=7x}"},
	};
	Arena *a = arena_new();
	char *many = arena_printf(a, "cudnn{engine=7");
	Params p;

	for (size_t i = 0; i < sizeof bad / sizeof *bad; i++)
		if (space_parse(bad[i].target, bad[i].op, bad[i].text, &p))
			fail_msg("%s was read", bad[i].text);
	for (int i = 0; i < PAIRS_MOST; i++)
		many = arena_printf(a, "%s,knob=1:%d", many, i);
	assert_true(space_parse("cuda", NULL, arena_printf(a, "%s}", many), &p));
	assert_false(space_parse("cuda", NULL, arena_printf(a, "%s,knob=1:1}", many), &p));
	assert_int_equal(space_family_of("cuda", NULL, many), FAMILY_cuda_cudnn);
	assert_int_equal(space_family_of("cuda", NULL, "cudnn"), FAMILY_none);
	assert_int_equal(space_family_of("cuda", NULL, "cudnnx{"), FAMILY_none);
	assert_int_equal(space_family_of("cpu", NULL, NULL), FAMILY_none);
	arena_free(a);
}

/* ---------------------------------------------------------------- random kernels */
static int
words_of(const Param *q)
{
	int n = 1;

	for (const char *s = q->values; *s; s++)
		n += *s == ' ';
	return n;
}

static int
random_number(uint64_t *seed)
{
	int x = (int)(random_bits(seed) >> 33);

	switch (random_bits(seed) % 4) {
	case 0: return x;
	case 1: return -x;
	default: return x % 5;
	}
}

static Params
random_params(FamilyId id, uint64_t *seed)
{
	const Family *f = &space_family[id];
	Params p = {.family = id};
	int *at = p.at;

	for (int i = 0; i < f->nparam; i++)
		switch (f->param[i].kind) {
		case PARAM_number: *at++ = random_number(seed); break;
		case PARAM_word: *at++ = (int)(random_bits(seed) % (uint64_t)words_of(&f->param[i])); break;
		case PARAM_pairs:
			*at = (int)(random_bits(seed) % (PAIRS_MOST + 1));
			for (int k = 0; k < 2 * *at; k++)
				at[1 + k] = k % 2 ? random_number(seed) : (int)(random_bits(seed) % PAIR_KINDS);
			at += 1 + 2 * PAIRS_MOST;
			break;
		case PARAM_name:
			for (uint64_t k = random_bits(seed) % NAME_SIZE; k-- > 0;)
				((char *)at)[k] = "abcxyz019"[random_bits(seed) % 9];
			at += NAME_SIZE / sizeof *at;
			break;
		}
	return p;
}

static void
every_kernel_has_one_text(void **state)
{
	uint64_t seed = 1;

	for (int f = 1; f < FAMILY_COUNT; f++)
		for (int i = 0; i < 500; i++) {
			Arena *a = arena_new();
			Params p = random_params((FamilyId)f, &seed), back;
			const char *text = space_text(a, &p);

			if (!space_parse(space_family[f].target, NULL, text, &back) || memcmp(&p, &back, sizeof p) != 0)
				fail_msg("%s reads back as %s", text, space_text(a, &back));
			arena_free(a);
		}
}

/* Texts with bytes changed, removed, doubled, in memory that ends with them: refused, or printed as they are. */
static void
damaged_texts_are_refused_or_exact(void **state)
{
	static const char bytes[] = "{},=:x0123456789-abcmrnv_ \n\xff";
	uint64_t seed = 7;
	int read = 0;

	for (int i = 0; i < 200000; i++) {
		const char *from = texts[random_bits(&seed) % NTEXT].text;
		size_t n = strlen(from), at = random_bits(&seed) % (n + 1);
		size_t cut = random_bits(&seed) % 3, add = random_bits(&seed) % 3;

		cut = cut > n - at ? n - at : cut;
		char *text = malloc(n - cut + add + 1);

		assert_non_null(text);
		memcpy(text, from, at);
		for (size_t k = 0; k < add; k++)
			text[at + k] = bytes[random_bits(&seed) % (sizeof bytes - 1)];
		memcpy(text + at + add, from + at + cut, n - at - cut + 1);
		for (int t = 0; t < 2; t++) {
			const char *target = t ? "cuda" : "cpu";
			Params p;

			if (space_parse(target, NULL, text, &p)) {
				Arena *a = arena_new();

				assert_string_equal(space_text(a, &p), text);
				assert_true(space_family_of(target, NULL, text) != FAMILY_none);
				arena_free(a);
				read++;
			} else {
				assert_int_equal(p.family, FAMILY_none);
			}
		}
		free(text);
	}
	assert_true(read > 10000);
}

/* ---------------------------------------------------------------- what fits */
static const Facts conv = {.M = 3136, .N = 64, .K = 576, .entries = 1, .pixel_rows = 7, .n_images = 32,
                           .lanes_max = 16, .regs = 32, .smem = 232448, .threads_max = 1};

static const char *
misfit_of(Arena *a, const char *target, const char *text, const Facts *f)
{
	Params p;

	if (!space_parse(target, NULL, text, &p))
		fail_msg("%s is not read", text);
	return space_misfit(a, &p, f);
}

static void
misfits_say_numbers(void **state)
{
	static const struct { const char *target, *text, *why;
	} cases[] = {
	        {"cpu", "brgemm{mr=12,nv=2,lanes=16,outer=panel,pack=1}", NULL},
	        {"cpu", "brgemm{mr=0,nv=2,lanes=16,outer=row,pack=1}", "mr=0 does not fit: mr >= 1, with mr=0"},
	        {"cpu", "brgemm{mr=12,nv=6,lanes=16,outer=row,pack=1}",
	         "nv=6 does not fit: mr * nv <= 64, with mr=12, nv=6"},
	        {"cpu", "brgemm{mr=12,nv=2,lanes=12,outer=row,pack=1}", "lanes=12 is not one of 4 8 16"},
	        {"cpu", "brgemm{mr=12,nv=2,lanes=16,outer=row,pack=1,pairs}",
	         "pairs does not fit: pairs == products, with products=0, pairs=1"},
	        {"cpu", "brgemm{mr=12,nv=2,lanes=16,outer=row,pack=0}",
	         "pack=0 does not fit: pack || matmul, with matmul=0, pack=0"},
	        {"cpu", "brgemm{mr=12,nv=2,lanes=16,parts=4,band=9}",
	         "band=9 does not fit: band <= pixel_rows, with pixel_rows=7, band=9"},
	        {"cpu", "brgemm{mr=12,nv=2,lanes=16,parts=4,band=7,images=5}",
	         "images=5 does not fit: !images || (images < n_images && imod(n_images, images) == 0), with "
	         "n_images=32, images=5"},
	        {"cuda", "mma{m=48,n=64,k=32,stages=3,warps=2x2}", "m=48 is not one of 32 64 128 256"},
	        {"cuda", "mma{m=64,n=64,k=32,stages=3,warps=8x1}",
	         "warps=8 does not fit: imod(m, 16 * warps_m) == 0, with m=64, warps_m=8"},
	        {"cuda", "mma{m=256,n=64,k=32,stages=3,warps=4x4}",
	         "x4 does not fit: warps_m * warps_n <= 8, with warps_m=4, warps_n=4"},
	        {"cuda", "mma{m=256,n=256,k=32,stages=5,warps=2x2}",
	         "stages=5 does not fit: 2 * stages * (m + n) * k <= fmin(smem, 98304), "
	         "with smem=232448, m=256, n=256, k=32, stages=5"},
	        {"cuda", "mma{m=64,n=64,k=32,stages=3,warps=2x2,split=577}",
	         "split=577 does not fit: split <= K, with K=576, split=577"},
	        {"cuda", "cudnn{engine=-1,knob=2:3}",
	         "knob=2:3 does not fit: !knob || engine >= 0, with engine=-1, knob=1"},
	        {"cuda", "cudnn{engine=1,fused=1}", "fused=1 does not fit: !fused || round, with round=0, fused=1"},
	        {"cuda", "attention{ffma,rows=16,columns=16}", NULL},
	};
	Arena *a = arena_new();

	for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
		const char *got = misfit_of(a, cases[i].target, cases[i].text, &conv);

		if ((got != NULL) != (cases[i].why != NULL) || (got && strcmp(got, cases[i].why) != 0))
			fail_msg("%s: %s, not %s", cases[i].text, got ? got : "fits",
			         cases[i].why ? cases[i].why : "fits");
	}
	arena_free(a);
}

typedef struct Tried { Arena *a; const Facts *facts; VEC(const char *) text; uint32_t most; } Tried;

static bool
try_one(void *cx, const Params *p)
{
	Tried *t = cx;

	assert_null(space_misfit(t->a, p, t->facts));
	vec_push(t->a, &t->text, space_text(t->a, p));
	return t->text.n < t->most;
}

static Tried
tried_of(Arena *a, const char *target, const char *text, const Facts *facts, uint32_t most)
{
	Tried t = {.a = a, .facts = facts, .most = most};
	Params p;

	assert_true(space_parse(target, NULL, text, &p));
	space_each(&p, facts, 0, try_one, &t);
	return t;
}

static Tried
tried(Arena *a, const char *target, const char *text, uint32_t most)
{
	return tried_of(a, target, text, &conv, most);
}

static bool
try_step(void *cx, const Params *p)
{
	Params own = {0};
	int others = 0;

	assert_true(space_parse("cpu", NULL, "winograd{mr=6,nv=4,lanes=16}", &own));
	for (int i = 0; i < 4; i++)
		others += p->at[i] != own.at[i];
	assert_true(others <= 1);
	*(int *)cx += 1;
	return true;
}

/* One step from a kernel: itself, and those of which one parameter is another. */
static void
steps_are_counted(void **state)
{
	Params own;
	int one = 0;

	(void)state;
	assert_true(space_parse("cpu", NULL, "winograd{mr=6,nv=4,lanes=16}", &own));
	space_each(&own, &conv, 1, try_step, &one);
	assert_true(one > 4 && one < 40);
}

static void
what_is_tried_fits(void **state)
{
	Arena *a = arena_new();
	Tried t = tried(a, "cpu", "winograd{mr=6,nv=4,lanes=16}", 8000);
	Tried u = tried(a, "cpu", "winograd{mr=1,nv=1,lanes=8}", 8000);
	int wide = 0;

	/* tiles of 1 to 4 vectors that leave registers for one row and a number: 28 + 14 + 9 + 6, with two kinds of
	 * vectors, four numbers of points, seven of blocks, two of steps ahead */
	assert_int_equal(t.text.n, 2 * 7 * 4 * 2 * (28 + 14 + 9 + 6));
	assert_string_equal(t.text.at[0], "winograd{mr=1,nv=1,lanes=8}");
	assert_string_equal(t.text.at[56], "winograd{mr=1,nv=1,lanes=16}");
	assert_string_equal(t.text.at[t.text.n - 1], "winograd{mr=28,nv=1,lanes=16,span=9,blocks=16,ahead=32}");
	for (uint32_t i = 0; i < t.text.n; i++) {
		assert_string_equal(t.text.at[i], u.text.at[i]); /* wherever one begins */
		wide += strstr(t.text.at[i], "lanes=16") != NULL;
		for (uint32_t k = 0; k < i; k++)
			assert_string_not_equal(t.text.at[i], t.text.at[k]);
	}
	assert_int_equal(2 * wide, t.text.n);
	assert_int_equal(tried(a, "cpu", "winograd{mr=6,nv=4,lanes=16}", 5).text.n, 5);
	Facts few = conv;

	few.pixel_rows = 2;
	few.n_images = 8;
	few.threads_max = 3;
	t = tried_of(a, "cpu", "brgemm{mr=12,nv=2,lanes=16,parts=2,band=1}", &few, UINT32_MAX);
	/* chains 0 1 2 of all tiles, 4 of those of 16 vectors at most, 8 of those of 8 */
	uint32_t tiles = 3 * (28 + 14 + 9 + 6) + (16 + 8 + 5 + 4) + (8 + 4 + 2 + 2);

	/* lanes, parts 1 2, any band of 2 rows, images 0 2 4; ahead 0 4 16 32; threads 0 1 2 */
	assert_int_equal(t.text.n, tiles * 2 * 2 * 2 * 3 * 4 * 3);
	t = tried(a, "cuda", "cudnn{engine=7,knob=2:16,device=h100}", 100);
	assert_int_equal(t.text.n, 3);
	assert_string_equal(t.text.at[2], "cudnn{engine=7,knob=2:16,round=1,fused=1,device=h100}");
	/* 40 units of 3 examples: a block for itself has 64 threads at most; parts 8 as the shape asks, 16, 32; of
	 * these two or one turn */
	Facts cells = {.K = 40, .batch = 3, .units = 40, .parts_shape = 8};

	t = tried_of(a, "cuda", "cells{examples=1,threads=32,blocks=5}", &cells, UINT32_MAX);
	int alone = 0, five = 0;

	for (uint32_t i = 0; i < t.text.n; i++) {
		alone += !strstr(t.text.at[i], "blocks=");
		five += strstr(t.text.at[i], ",blocks=5") != NULL;
	}
	/* examples 1 2 4, threads 32 64, unroll 4 and what is below twice the turns */
	assert_int_equal(alone, 3 * 2 * (3 + 2 + 2));
	/* 8 units of 8, 16, 32 parts: 64, 128, 256 threads and as few as one warp */
	assert_int_equal(five, 3 * (2 + 4 + 6));
	t = tried(a, "cuda", "cells{examples=1,threads=32}", 100);
	assert_int_equal(t.text.n, 0);
	/* of 96 numbers a thread, or a warp: blocks 0 32 64 128 and 0 1 2 4, unroll 0 1 2 4 8 and 0 1 2; or a block,
	 * of no pieces */
	t = tried_of(a, "cuda", "rows{threads=32}", &(Facts){.K = 96, .M = 1000}, UINT32_MAX);
	assert_int_equal(t.text.n, 4 * 5 + 4 * 3 + 1);
	arena_free(a);
}

static void
only_some_are_tunable(void **state)
{
	static const struct { const char *target, *text; bool may;
	} cases[] = {
	        {"cpu", "winograd{mr=6,nv=4,lanes=16}", true},
	        {"cpu", "rnn{mr=6,nv=4,lanes=16,rows=6}", true},
	        {"cpu", "attention{queries=128,keys=64,lanes=16}", true},
	        {"cpu", "map", false},
	        {"cuda", "ffma{m=64,n=32,k=16}", true},
	        {"cuda", "cudnn{engine=1}", true},
	        {"cuda", "rows{threads=1}", true},
	        {"cuda", "total{pieces=4}", false},
	        {"cuda", "cells{examples=1,threads=32}", true},
	        {"cuda", "attention{mma,rows=64,columns=32}", true},
	};
	Params p;

	for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
		assert_true(space_parse(cases[i].target, NULL, cases[i].text, &p));
		assert_int_equal(space_tunable(p.family), cases[i].may);
	}
	assert_false(space_tunable(FAMILY_none));
}

/* ---------------------------------------------------------------- bits */
static void
order_keys_tell_bits_apart(void **state)
{
	static const struct { const char *target, *base, *other; bool reduces; BitsClass class;
	} cases[] = {
	        {"cpu", "brgemm{mr=12,nv=2,lanes=16,outer=row,pack=1}", "brgemm{mr=12,nv=2,lanes=8,outer=panel,pack=1}",
	         false, BITS_same},
	        {"cpu", "brgemm{mr=12,nv=2,lanes=16,parts=4,band=7}", "brgemm{mr=12,nv=2,lanes=16,parts=2,band=7}",
	         false, BITS_order},
	        {"cpu", "brgemm{mr=12,nv=2,lanes=16,outer=row,pack=1}", "winograd{mr=12,nv=2,lanes=16}", false,
	         BITS_order},
	        {"cpu", "rnn{mr=6,nv=4,lanes=16,rows=6}", "rnn{mr=3,nv=2,lanes=16,rows=3}", false, BITS_same},
	        {"cuda", "mma{m=64,n=64,k=32,stages=3,warps=2x2}", "mma{m=128,n=64,k=64,stages=2,warps=4x2}", false,
	         BITS_same},
	        {"cuda", "mma{m=64,n=64,k=32,stages=3,warps=2x2}", "mma{m=128,n=64,k=32,stages=3,warps=2x2}", true,
	         BITS_order},
	        {"cuda", "mma{m=64,n=64,k=32,stages=3,warps=2x2}", "mma{m=64,n=64,k=32,stages=3,warps=2x2,split=2}",
	         false, BITS_order},
	        {"cuda", "mma{m=64,n=64,k=32,stages=3,warps=2x2}", "wgmma{m=64,n=64,k=64,stages=4,groups=1}", false,
	         BITS_order},
	        {"cuda", "ffma{m=64,n=64,k=16}", "tf32{m=64,n=64,k=32,stages=3,warps=2x2}", false, BITS_rounds},
	        {"cuda", "mma{m=64,n=64,k=32,stages=3,warps=2x2}", "cudnn{engine=7}", false, BITS_order},
	        {"cuda", "mma{m=64,n=64,k=32,stages=3,warps=2x2}", "cudnn{engine=7,round=1}", false, BITS_rounds},
	        {"cuda", "cudnn{engine=7,knob=2:3,round=1}", "cudnn{engine=7,knob=2:4,round=1}", false, BITS_rounds},
	        {"cuda", "attention{mma,rows=64,columns=32}", "attention{mma,rows=128,columns=32,late=1}", false,
	         BITS_same},
	        {"cuda", "attention{mma,rows=64,columns=32}", "attention{mma,rows=64,columns=64}", false, BITS_order},
	        {"cuda", "cells{examples=1,threads=128}", "cells{examples=4,threads=64,blocks=3}", false, BITS_same},
	        {"cuda", "cells{examples=1,threads=128}", "cells{examples=1,threads=128,unroll=8}", false, BITS_same},
	        {"cuda", "cells{examples=1,threads=128}", "cells{examples=1,threads=128,parts=32}", false, BITS_order},
	        {"cuda", "rows{threads=32}", "rows{threads=32,rows=2,unroll=4}", false, BITS_same},
	        {"cuda", "rows{threads=256}", "rows{threads=256,pieces=2}", false, BITS_order},
	        {"cuda", "columns{m=256,n=64}", "columns{m=256,n=64,ahead=4}", false, BITS_same},
	        {"cuda", "columns{m=256,n=64}", "columns{m=512,n=64}", false, BITS_order},
	        {"cuda", "depthwise{pixels=1}", "depthwise{pixels=1,taps=3}", false, BITS_order},
	        {"cuda", "depthwise{pixels=1}", "depthwise{pixels=1,lanes=8}", false, BITS_order},
	        {"cuda", "cudnn{engine=7,knob=2:3,round=1}", "cudnn{engine=7,knob=2:3,round=1,device=h100}", false,
	         BITS_same},
	};
	Arena *a = arena_new();

	for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
		Facts f = conv;
		Params p, q;

		f.reduces = cases[i].reduces;
		assert_true(space_parse(cases[i].target, NULL, cases[i].base, &p));
		assert_true(space_parse(cases[i].target, NULL, cases[i].other, &q));
		if (space_class(&p, &q, &f) != cases[i].class)
			fail_msg("%s and %s: class %d, keys '%s' and '%s'", cases[i].base, cases[i].other,
			         (int)space_class(&p, &q, &f), space_order_key(a, &p, &f), space_order_key(a, &q, &f));
	}
	arena_free(a);
}

/* ---------------------------------------------------------------- the table */
static bool
names_fact(const char *text, const char *fact)
{
	size_t n = strlen(fact);

	for (const char *s = text; (s = strstr(s, fact)); s++) {
		bool before = s > text && (isalnum((unsigned char)s[-1]) || s[-1] == '_');

		if (!before && !isalnum((unsigned char)s[n]) && s[n] != '_')
			return true;
	}
	return false;
}

static bool
is_fact(const char *name)
{
#define FACT(fact, doc) if (!strcmp(name, #fact)) return true;
#include "../../codegen/tune.def"
	return false;
}

static void
fact_is_used(const char *fact)
{
	for (int f = 1; f < FAMILY_COUNT; f++)
		for (int i = 0; i < space_family[f].nparam; i++) {
			const Param *q = &space_family[f].param[i];

			if (names_fact(q->values, fact) || names_fact(q->fits, fact) || names_fact(q->order, fact))
				return;
		}
	fail_msg("no row of tune.def uses the fact %s", fact);
}

static void
rows_are_sound(void **state)
{
	for (int f = 1; f < FAMILY_COUNT; f++) {
		const Family *x = &space_family[f];
		int size = 0;
		Arena *a = arena_new();
		Params p = {.family = (FamilyId)f};

		assert_true(*x->doc);
		for (int i = 0; i < x->nparam; i++) {
			const Param *q = &x->param[i];

			assert_false(is_fact(q->name));
			for (int k = 0; k < i; k++)
				assert_string_not_equal(q->name, x->param[k].name);
			if (!*q->doc || (q->kind == PARAM_word && !*q->values))
				fail_msg("%s.%s: a column is empty", x->name, q->name);
			size += q->kind == PARAM_pairs ? 1 + 2 * PAIRS_MOST : 1;
			size += q->kind == PARAM_name ? NAME_SIZE / (int)sizeof(int) - 1 : 0;
		}
		assert_true(size <= PARAMS_SIZE);
		/* all expressions are parsed, or bug() says which is not */
		space_misfit(a, &p, &conv);
		space_each(&p, &(Facts){0}, 0, try_one, &(Tried){.a = a, .most = 0});
		space_order_key(a, &p, NULL);
		assert_int_equal(space_class(&p, &p, NULL), BITS_same);
		p.family = f == FAMILY_cuda_rows ? FAMILY_cpu_rows : FAMILY_cuda_rows;
		assert_true(space_class(&p, &(Params){.family = (FamilyId)f}, NULL) > BITS_same);
		for (const char *s = x->ops; *s;) {
			size_t n = strcspn(s, " ");

			if (op_named(arena_strndup(a, s, n)) == OP_none)
				fail_msg("%s: there is no operator %.*s", x->name, (int)n, s);
			s += n + (s[n] == ' ');
		}
		arena_free(a);
	}
#define FACT(fact, doc) fact_is_used(#fact); assert_true(*doc);
#include "../../codegen/tune.def"
}

/* The table in the README is what space_document writes. */
static void
readme_has_the_table(void **state)
{
	static const char open[] = "<!-- of tune.def -->\n", close[] = "<!-- end -->\n";
	size_t n;
	char *text = file_read(readme, &n), *from = text ? strstr(text, open) : NULL;
	char *to = from ? strstr(from, close) : NULL;
	Buf want = {0}, whole = {0};

	if (!to)
		fail_msg("%s has no lines %s and %s", readme, open, close);
	from += strlen(open);
	space_document(&want);
	if (bless) {
		buf_put(&whole, text, (size_t)(from - text));
		buf_put(&whole, want.at, want.n);
		buf_put(&whole, to, strlen(to));
		assert_true(file_write(readme, whole.at, whole.n));
		buf_free(&whole);
	} else if ((size_t)(to - from) != want.n || memcmp(from, want.at, want.n) != 0) {
		fail_msg("the table in %s is not that of tune.def; tests/unit/test_space %s --bless in the build "
		         "folder writes it",
		         readme, readme);
	}
	buf_free(&want);
	free(text);
}

int
main(int argc, char **argv)
{
	const struct CMUnitTest tests[] = {
	        cmocka_unit_test(rows_are_sound),
	        cmocka_unit_test(texts_are_read_and_printed),
	        cmocka_unit_test(other_texts_are_refused),
	        cmocka_unit_test(every_kernel_has_one_text),
	        cmocka_unit_test(damaged_texts_are_refused_or_exact),
	        cmocka_unit_test(misfits_say_numbers),
	        cmocka_unit_test(steps_are_counted),
	        cmocka_unit_test(what_is_tried_fits),
	        cmocka_unit_test(only_some_are_tunable),
	        cmocka_unit_test(order_keys_tell_bits_apart),
	        cmocka_unit_test(readme_has_the_table),
	};

	readme = argc > 1 ? argv[1] : "codegen/kernels.md";
	bless = argc > 2 && !strcmp(argv[2], "--bless");
	ir_init();
	return cmocka_run_group_tests(tests, NULL, NULL);
}
