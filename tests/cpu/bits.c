/* bits.c: parameters of contraction kernels that change no bit of a result, and those that do.
 *
 * In: modules in text (bits.ir), each one group around a contraction, with lines of kernels:
 *   ; space TEXT     the text of a kernel whose numbers may be lists, 6|12: all points that fit, of all spaces of the
 *                    module, have the same results; of more than 16 half, with LONG in the environment all
 *   ; other TEXT     kernels that add up in another order: their results differ from those
 *   ; needs WORDS    passed over where bf16 is not multiplied so (mantou info --precision bf16 says how)
 * Out: a line per failure, the number of points that ran, exit 1 if any failed. Whether a point fits, select says.
 * All points of a module run on the same numbers, tasks in a shuffled order, all examples of a batch but one; results
 * are compared byte for byte. A space of fewer than four points that fit would show nothing, and fails. */
#define TEST_LIBRARY
#include "run.c"

enum { POINTS = 4096, LEAST = 4 };
typedef struct Space { const char *text[POINTS]; int n; } Space;

/* All texts that lists `a|b` in `text` stand for. */
static void
expand(Arena *a, const char *text, Space *s)
{
	const char *bar = strchr(text, '|'), *from = bar;

	if (!bar) {
		if (s->n == POINTS)
			die("more than %d points", POINTS);
		s->text[s->n++] = text;
		return;
	}
	while (from > text && from[-1] != '=')
		from--;
	size_t list = strcspn(from, ",}");

	for (const char *at = from; at < from + list; at += strcspn(at, "|,}") + 1)
		expand(a,
		       arena_printf(a, "%.*s%.*s%s", (int)(from - text), text, (int)strcspn(at, "|,}"), at,
		                    from + list),
		       s);
}

/* The results of the module by this kernel, as bytes; false: the kernel does not fit. */
static bool
results_by(Run *r, const char *text, size_t bytes, const char *arch, const char *kernel, Buf *out)
{
	const Target *t = target_named("cpu");
	Module *m = module_parse(r->arena, &r->diags, "bits.ir", text, bytes);
	const char *error;
	Code code = {0};

	if (!m)
		die("bits.ir does not parse");
	m->arch = arch;
	Graph *g = m->graph.at[0];
	SelectCx cx = {.arch = arch, .tuned = kernel};
	uint64_t seed = 77;

	naive_plan(m, t, arch);
	given_kernel = NULL;
	if (!fuse_all(m, arch, &seed))
		die("%s: its ops make no group", m->name);
	int64_t at = m->arena_bytes;

	if (t->select(t, g, 0, &cx) || cx.misfit)
		return false;
	m->arena_bytes = at + (g->group.at[0].workspace + 63) / 64 * 64;
	g->group.at[0].workspace_offset = at;
	if ((error = code_load(&code, m, arch)))
		die("%s: %s: %s", m->name, kernel, error);
	size_t mapped;
	uint8_t *arena = guarded_arena(m->arena_bytes, &mapped);
	RtRun run = {.arena = arena, .n = m->batch > 1 ? m->batch - 1 : 1, .batch = m->batch};
	Case c = {.line = (char *)m->name, .low = {-2}, .high = {2}, .nrange = 1, .id_high = 3, .nin = 16};
	double **x = room(r, g);

	memset(arena, POISON, (size_t)m->arena_bytes);
	memset(arena, 0, 64);
	fill_inputs(&c, g, x);
	hold_inputs(g, x);
	for (uint32_t k = 0; k < g->input.n; k++)
		tensor_move(val_type(g, g->input.at[k].v), run.n, run.batch,
		            arena + val_info(g, g->input.at[k].v)->offset, x[k], true);
	if (code_call(&code, &run, m->arena_bytes))
		die("%s: %s: a fault", m->name, kernel);
	for (uint32_t k = 0; k < g->result.n; k++) {
		const ValInfo *v = val_info(g, g->result.at[k].v);
		int64_t size = elements_at(&v->type, run.n, run.batch) * dtype_info[v->type.dtype].bytes;

		buf_put(out, (const char *)arena + v->offset, (size_t)size);
	}
	code_free(&code);
	munmap(arena + m->arena_bytes - (mapped - (size_t)sysconf(_SC_PAGESIZE)), mapped);
	return true;
}

/* Of a large space every second point by chance, the same each time; all with --long. */
static bool
left_out(const Space *s, int i)
{
	const char *word = getenv("LONG");

	return s->n > 16 && i > 0 && !(word && *word) && (uint32_t)i * 2654435761u >> 31;
}

/* The line's kernels against the first results of the module. */
static void
run_line_of(Run *r, const char *name, const char *text, size_t bytes, const char *arch, const char *line, bool same,
            Buf *want)
{
	Space s = {0};
	int fit = 0, differ = 0;

	expand(r->arena, line, &s);
	for (int i = 0; i < s.n; i++) {
		Buf got = {0};

		if (left_out(&s, i) || !results_by(r, text, bytes, arch, s.text[i], &got))
			continue;
		fit++;
		r->ncase++;
		if (!want->n) {
			*want = got;
			continue;
		}
		bool equal = got.n == want->n && !memcmp(got.at, want->at, got.n);

		differ += !equal;
		if (same && !equal)
			failed(r, name, "%s: other bits than the first kernel's", s.text[i]);
		buf_free(&got);
	}
	if (same && s.n > 1 && fit < LEAST)
		failed(r, name, "%s: %d of %d points fit", line, fit, s.n);
	if (!same && differ < fit)
		failed(r, name, "%s: %d of %d have the same bits", line, fit - differ, fit);
	if (!same && !fit)
		failed(r, name, "%s does not fit", line);
}

static void
run_bits(Run *r, const char *text, size_t bytes, const char *arch)
{
	static const char *const words[] = {"\n; space ", "\n; other "};
	char name[64] = "";
	Buf want = {0};
	Arena *keep = r->arena;

	r->arena = arena_new();
	sscanf(text, "module %63s", name);
	for (int i = 0; i < 2; i++)
		for (const char *at = strstr(text, words[i]); at && at < text + bytes; at = strstr(at, words[i])) {
			at += strlen(words[i]);
			const char *line = arena_strndup(r->arena, at, strcspn(at, "\n"));

			run_line_of(r, name, text, bytes, arch, line, i == 0, &want);
		}
	if (!want.n)
		failed(r, name, "no kernel of it ran");
	buf_free(&want);
	arena_free(r->arena);
	r->arena = keep;
}

int
main(int argc, char **argv)
{
	Run r = {.arena = arena_new()};
	const Target *t = target_named("cpu");
	const char *want = getenv("CPU_TEST_ARCH"), *error,
	           *arch = t->resolve_arch(t, r.arena, want ? want : "native", &error);
	size_t n;
	char *text = argc > 1 ? file_read(argv[1], &n) : NULL;

	setvbuf(stdout, NULL, _IOLBF, 0);
	ir_init();
	diags_init(&r.diags, r.arena, stderr);
	if (!text)
		die("usage: bits FILE.ir [WORD of a module]");
	for (char *p = strstr(text, "\nmodule "); p;) {
		char *next = strstr(p + 1, "\nmodule ");

		size_t bytes = (next ? (size_t)(next - p) : strlen(p)) - 1;

		const char *module = arena_strndup(r.arena, p + 1, bytes);
		const char *needs = strstr(module, "\n; needs ");
		bool runs = !needs || strstr(t->narrow.arithmetic(t, arch, DT_bf16),
		                             arena_strndup(r.arena, needs + 9, strcspn(needs + 9, "\n")));

		if (runs && (argc < 3 || strstr(module, argv[2])))
			run_bits(&r, p + 1, bytes, arch);
		p = next;
	}
	printf("%s: %d points, %d failures\n", arch, r.ncase, r.nfailed);
	free(text);
	arena_free(r.arena);
	return r.nfailed != 0;
}
