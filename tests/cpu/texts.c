/* texts.c: a part of run.c: runs of modules in text (.ir): op by op and as one group, with the kernel that they name,
 * with each kernel of the tuning space, with `half` as bf16 and as f16. */
static void run_text_as(Run *r, const char *text, size_t bytes, const char *arch, const Variant *variant,
                        const char *kernel);

static void
run_text(Run *r, const char *text, size_t bytes, const char *arch)
{
	static const Variant variants[] = {
	        {"plain", false, false, false, 1, 1},
	        {"fused", false, true, false, 1, 0x2545f4914f6cdd1d},
	        {"fused again", false, true, false, 1, 0x1020304050607080},
	        {"fused third", false, true, false, 1, 77},
	        {"permuted", true, false, false, 1, 99},
	        {"fused permuted", true, true, false, 1, 0x9e3779b97f4a7c15},
	        {"part of a batch", false, true, false, 3, 5},
	};

	/* some: as one group, and one or two of the others */
	bool all = !getenv("TEST_SOME");
	size_t third = hash_bytes(HASH_START, text, bytes) >> 32;

	for (size_t i = 0; i < sizeof variants / sizeof *variants; i++)
		if (all || i == 1 || (third + i) % 3 == 0) {
			compile_as_shipped(i == 1);
			run_text_as(r, text, bytes, arch, &variants[i], NULL);
		}
}

/* What the runs of one text have in common: inputs, and the reference's results for n examples. */
static struct { Arena *arena; const char *text; size_t bytes; int64_t n; double **x; Interp *in; } known;

static void
known_drop(void)
{
	if (known.in)
		interp_free(known.in);
	arena_free(known.arena);
	memset(&known, 0, sizeof known);
}

static void
known_make(Run *r, const char *text, size_t bytes, int64_t n)
{
	Arena *keep = r->arena;
	const char *range = strstr(text, "\n; range ");

	if (known.text && known.n == n && known.bytes == bytes && !memcmp(known.text, text, bytes))
		return;
	known_drop();
	r->arena = known.arena = arena_new();
	Module *m = module_parse(r->arena, &r->diags, "groups.ir", text, bytes);
	Case c = {.line = (char *)m->name, .low = {-2}, .high = {2}, .nrange = 1, .id_high = 3, .nin = 16};

	if (range && sscanf(range, "\n; range %lf %lf", &c.low[0], &c.high[0]) != 2)
		die("a range without two numbers");
	known.text = arena_strndup(r->arena, text, bytes);
	known.bytes = bytes;
	known.n = n;
	known.x = room(r, m->graph.at[0]);
	fill_inputs(&c, m->graph.at[0], known.x);
	hold_inputs(m->graph.at[0], known.x);
	known.in = interp_new(m, true);
	if (run_graph(known.in, m->graph.at[0], n, known.x)) { /* each run will tell */
		interp_free(known.in);
		known.in = NULL;
	}
	r->arena = keep;
}

/* A composite op, and casts of what it gives. */
static bool
one_composite(const Graph *g)
{
	for (uint32_t i = 1; i < g->op.n; i++)
		if (g->op.at[i].kind != OP_cast)
			return false;
	return op_has((OpKind)g->op.at[0].kind, T_COMPOSITE);
}

/* An op for which the target has a kernel, but not on the tested architecture: the module is nothing for it. */
static bool
refuses_one(const Graph *g)
{
	const Target *t = target_named(TEST_TARGET);

	for (uint32_t i = 0; i < g->op.n; i++) {
		const Op *op = &g->op.at[i];

		if (op_has((OpKind)op->kind, T_COMPOSITE) && t->has_kernel(t, (OpKind)op->kind) && !has_kernel(g, op))
			return true;
	}
	return false;
}

/* kernel: in place of that of a line "; tiles ". */
static void
run_text_as(Run *r, const char *text, size_t bytes, const char *arch, const Variant *variant, const char *kernel)
{
	Arena *keep = r->arena;
	Variant v = *variant;

	r->arena = arena_new();
	Module *m = module_parse(r->arena, &r->diags, "groups.ir", text, bytes);
	const char *tiles = strstr(text, "\n; tiles "), *exact = strstr(text, "\n; bounds f32");

	given_kernel = kernel ? kernel : tiles ? arena_strndup(r->arena, tiles + 9, strcspn(tiles + 9, "\n")) : NULL;
	if (!m)
		die("groups.ir does not parse");
	/* as it is, where a kernel is given, a space walked or a result rounded, if this architecture has a kernel for
	 * it */
	v.composites = (given_kernel || points || m->graph.at[0]->op.n > 1) && one_composite(m->graph.at[0]);
	tested_arch = arch;
	if ((v.composites && !has_kernel(m->graph.at[0], &m->graph.at[0]->op.at[0])) ||
	    refuses_one(m->graph.at[0])) {
		arena_free(r->arena);
		r->arena = keep;
		return;
	}
	const Graph *g = m->graph.at[0];
	DType lowest = exact ? DT_f32 : lowest_of(g);

	if (v.n > m->batch || (v.n == 1 && m->batch > 1))
		v.n = m->batch;
	if (!gathers)
		known_make(r, text, bytes, v.n);
	run_module(r, m->name, m, arch, &v, lowest, known.x, known.in);
	arena_free(r->arena);
	r->arena = keep;
}

/* --space: every kernel that the target says is worth trying for the module's group; of many, `most` spread over
 * them. */
static int space_most = -1;            /* no --space */

static void
run_space(Run *r, const char *text, size_t bytes, const char *arch)
{
	static const Variant fused = {"space", false, true, false, 1, 0x2545f4914f6cdd1d};
	Points s = {.arena = arena_new(), .steps = space_most ? 2 : 0};

	points = &s;
	run_text_as(r, text, bytes, arch, &fused, NULL);
	points = NULL;
	uint32_t n = s.text.n, most = space_most > 0 && (uint32_t)space_most < n ? (uint32_t)space_most : n;

	for (uint32_t i = 0; i < most; i++)
		run_text_as(r, text, bytes, arch, &fused, s.text.at[(uint64_t)(2 * i + 1) * n / (2 * most)]);
	arena_free(s.arena);
}

/* The text with another type for `half`. */
static const char *
with_half(Run *r, const char *text, size_t bytes, const char *type)
{
	Buf b = {0};

	for (const char *p = text, *end = text + bytes; p < end; p++)
		if ((size_t)(end - p) > 5 && !memcmp(p, "half[", 5) && p[-1] == ' ') {
			buf_printf(&b, "%s", type);
			p += 3;
		} else {
			buf_put(&b, p, 1);
		}
	const char *s = arena_strdup(r->arena, b.at);

	buf_free(&b);
	return s;
}
