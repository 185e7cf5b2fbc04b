/* golden.c: runs golden files: textual IR in, passes, textual IR out.
 *
 * A file holds its commands, its input, a line of dashes and the expected output:
 *   ; passes: fold,dce        the passes, or `; stage: lowered` for the pipeline up to a stage
 * ; disable: attention      like --disable        ; limit: fold.cast:1   like --pass-limit        ; level: 1   like -O
 *   ; memory: 4096            like --memory
 * ; kernels: attention,lstm composite operators that the stand-in target has kernels for (and what follows them and a
 * point)
 *   ; narrow: attention:3     composite operators whose first operands, here three, it takes in 16 bits
 *   ; layout: 2301            the stand-in target wants activations of convolutions and pooling so
 * ; strides: attention:0213 what kernels of this composite operator take an operand or result to lie like, beside rows
 *   ; chunk: 8                numbers of neighbouring channels that its convolutions load at once
 *   ; outputs: 8              outputs of a convolution that it computes in the time of one
 *   ; times: W P              a convolution or pooling takes it W us in that layout, P us row-major; a copy 6 ns a byte
 *   ; epilogues: OP,OP        the stand-in target lets these elementwise operators follow a contraction
 * ; prologues: OP,OP:N,OP:N+ contractions of the stand-in target that make operands themselves, each element once or N
 * (1..9) times, and could store
 * them (+); a byte and an operation take it a nanosecond, the way from one kernel to the next nothing, or
 *   ; start: NS               so long; contractions do
 *   ; spare: N                so many operations while they wait for memory
 *   ; launches: joined        the stand-in target joins launches of kernels that do not depend on each other
 *   ; updates: BYTES          its contractions update states in their places, states of more bytes than that
 *   ; packs: parameters       the stand-in target's contractions round parameters as they pack them
 * ; windows: fused          kernels of the stand-in target's poolings take prologues and epilogues, those that the two
 * lines above let
 *   ; tuning: RECORD          a line of a tuning file; the stand-in target takes parameters of stand-in.2{
 *   ; machine: WORD           whose records these are
 *   ; locked: yes             like --locked: a record that is stale or does not fit is an error
 * ; race: LINE              a line of a race file; a kernel stand-in{bytes=N,threads=M} has a workspace of N bytes and
 * M bytes of memory of threads
 *   ; variants: NAME          a kernel variant of the stand-in target
 *   ; verdict: TEXT           a verdict holds it, written `fired RULE OP OP: why` or `declined RULE ...`
 *   ; choice: TEXT            a choice holds it, written `KEY : take=N of WAYS`
 *   ; target: cpu x86-64-v3   a target and an architecture of it, instead of the stand-in target
 *   ; emit: llvm             of a planned module what the target emits, its kernels alone (llvm, cuda), instead of the
 * IR. The module's text, read back, must give the same
 *   ; must: TEXT              a line of the output holds it        ; never: TEXT   none does
 *   ; error: TEXT             the passes fail with a message that holds it; nothing is compared then
 *   ----
 * After every pass the module is verified and printed, parsed and printed again (PassCtx.check). --bless rewrites what
 * follows the separator; commands, must and never stay. A line `FAIL file` for each that differs, exit 1 if there was
 * one. */
#include <dirent.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include "../../codegen/codegen.h"
#include "../../passes/pass.h"

#define SEPARATOR "----\n"

typedef struct Golden {
	const char *path;
	char *text, *expected;       /* text ends where the separator began */
	Arena *arena;
	bool bless;
} Golden;

/* ---------------------------------------------------------------- the file */
/* The value of the n-th header line `; KEY: value`; NULL if there is none. */
static const char *
command(const Golden *g, const char *key, int n)
{
	size_t k = strlen(key);

	for (const char *l = g->text; *l; l += strcspn(l, "\n"), l += *l == '\n')
		if (!strncmp(l, "; ", 2) && !strncmp(l + 2, key, k) && !strncmp(l + 2 + k, ": ", 2) && n-- == 0)
			return arena_strndup(g->arena, l + k + 4, strcspn(l + k + 4, "\n"));
	return NULL;
}

static bool
split(Golden *g)
{
	char *at = strncmp(g->text, SEPARATOR, 5) ? strstr(g->text, "\n" SEPARATOR) : NULL;

	if (!at) {
		fprintf(stderr, "%s: no line of four dashes between input and expected output\n", g->path);
		return false;
	}
	g->expected = arena_strdup(g->arena, at + 1 + strlen(SEPARATOR));
	at[1] = 0;
	return true;
}

/* ---------------------------------------------------------------- the target: kernels by name, nothing else */
typedef struct StandIn {
	Target t;
	const char *kernels, *layout, *times, *epilogues, *prologues, *narrow, *strides, *variants[2];
	double spare;
	int chunk, outputs;
	Machine machine;
} StandIn;

static bool
listed(const char *list, const char *name, size_t n)
{
	for (const char *p = list; p && *p; p += strcspn(p, ","), p += *p == ',')
		if (!strncmp(p, name, n) && (!p[n] || p[n] == ','))
			return true;
	return false;
}

static const Machine *
stand_in_machine(const Target *t, const char *arch)
{
	(void)arch;
	return &((const StandIn *)t)->machine;
}

static bool
stand_in_kernel(const Target *t, OpKind k)
{
	const StandIn *s = (const StandIn *)t;

	const char *name = op_info[k].name;

	return !op_has(k, T_COMPOSITE) || listed(s->kernels, name, strlen(name)) ||
	       listed(s->kernels, name, strcspn(name, "."));
}

static bool
stand_in_layout(const Target *t, const Type *x, uint8_t perm[MAX_RANK])
{
	const StandIn *s = (const StandIn *)t;

	if (!s->layout || strlen(s->layout) != x->rank)
		return false;
	for (int i = 0; i < x->rank; i++)
		perm[i] = (uint8_t)(s->layout[i] - '0');
	return true;
}

static int
stand_in_chunk(const Target *t, const Graph *g, const Op *op, const SelectCx *cx)
{
	(void)g, (void)op, (void)cx;
	return ((const StandIn *)t)->chunk;
}

static int
stand_in_outputs(const Target *t, const Graph *g)
{
	(void)g;
	return ((const StandIn *)t)->outputs;
}

static double
stand_in_time(const Target *t, const Graph *g, const Op *op, bool wanted)
{
	char *rest;
	double first = strtod(((const StandIn *)t)->times, &rest), second = strtod(rest, NULL);

	(void)g, (void)op;
	return (wanted ? first : second) * 1e-6;
}

static const char *
stand_in_select(const Target *t, Graph *g, int group, SelectCx *cx)
{
	bool fits = cx->tuned && !strncmp(cx->tuned, "stand-in{", 9);

	(void)t;
	cx->misfit = cx->tuned && !fits ? "no parameters of the stand-in target" : NULL;
	g->group.at[group].kernel = fits ? cx->tuned : "stand-in";
	g->group.at[group].workspace = fits && strstr(cx->tuned, "bytes=") ? atoll(strstr(cx->tuned, "bytes=") + 6) : 0;
	if (fits && strstr(cx->tuned, "threads=") &&
	    g->module->scratch_bytes < atoll(strstr(cx->tuned, "threads=") + 8))
		g->module->scratch_bytes = atoll(strstr(cx->tuned, "threads=") + 8);
	return NULL;
}

static int
stand_in_version(const Target *t, const char *family)
{
	(void)t;
	return strcmp(family, "stand-in") ? -1 : 2;
}

static bool
stand_in_tunable(const Target *t, const char *kernel)
{
	(void)t;
	return !strncmp(kernel, "stand-in", 8);
}

static const char *
stand_in_may_fuse(const Target *t, const Graph *g, const Op *member, const Op *op)
{
	const StandIn *s = (const StandIn *)t;
	const char *name = op_info[op->kind].name;

	(void)g, (void)member;
	return listed(s->epilogues, name, strlen(name)) ? NULL : "the stand-in target has no such epilogue";
}

static void
stand_in_prologue(const Target *t, const Graph *g, const Op *contract, int k, const SelectCx *cx, Prologue *r)
{
	const char *name = op_info[contract->kind].name;
	size_t n = strlen(name);

	(void)g, (void)k, (void)cx;
	r->why = "the stand-in target makes no operands there";
	for (const char *p = ((const StandIn *)t)->prologues; p && *p; p += strcspn(p, ","), p += *p == ',')
		if (!strncmp(p, name, n) && (!p[n] || p[n] == ',' || p[n] == ':'))
			*r = (Prologue){.times = p[n] == ':' ? p[n + 1] - '0' : 1,
			                .stores = p[n] == ':' && p[n + 2] == '+',
			                .spare = ((const StandIn *)t)->spare};
}

static bool
stand_in_narrow(const Target *t, const Graph *g, const Op *op, int k, const SelectCx *cx)
{
	(void)g, (void)cx;
	const char *name = op_info[op->kind].name;
	size_t n = strlen(name);

	for (const char *p = ((const StandIn *)t)->narrow; p && *p; p += strcspn(p, ","), p += *p == ',')
		if (!strncmp(p, name, n) && p[n] == ':')
			return k < atoi(p + n + 1);
	return false;
}

static bool
stand_in_strided(const Target *t, const Graph *g, const Op *op, int k, const Type *x)
{
	const char *list = ((const StandIn *)t)->strides, *name = op_info[op->kind].name;
	size_t n = strlen(name);
	bool same = !strncmp(list, name, n) && list[n] == ':' && strlen(list + n + 1) == x->rank;

	(void)g, (void)k;
	for (int i = 0; same && i < x->rank; i++)
		same = list[n + 1 + i] == '0' + x->perm[i];
	return same;
}

static bool
stand_in_packs(const Target *t, const Graph *g, const Op *op, const SelectCx *cx)
{
	(void)t, (void)g, (void)cx;
	return op_has((OpKind)op->kind, T_CONTRACT);
}

/* The lines of this command as a file's text. */
static Buf
lines(const Golden *g, const char *name)
{
	const char *line;
	Buf b = {0};

	for (int i = 0; (line = command(g, name, i)); i++)
		buf_printf(&b, "%s\n", line);
	return b;
}

/* The lines `; tuning:` as a file of that name; NULL without one. */
static Tuning *
tuning(const Golden *g, Diags *d)
{
	Buf b = lines(g, "tuning");
	Tuning *t = b.n ? tuning_read(g->arena, d, "golden.tune", arena_strdup(g->arena, b.at), b.n) : NULL;

	buf_free(&b);
	return t;
}

static Race *
race(const Golden *g, Diags *d)
{
	Buf b = lines(g, "race");
	Race *r = b.n ? race_read(g->arena, d, "golden.race", arena_strdup(g->arena, b.at), b.n) : NULL;

	buf_free(&b);
	return r;
}

/* `; target: NAME ARCH` */
static bool
real_target(const Golden *g, PassCtx *cx, Module *m)
{
	const char *name = command(g, "target", 0), *error = "no such target";

	if (!name)
		return true;
	size_t n = strcspn(name, " ");
	const char *arch = name[n] ? name + n + 1 : "";

	cx->target = target_named(arena_strndup(g->arena, name, n));
	cx->arch = cx->target ? cx->target->resolve_arch(cx->target, g->arena, arch, &error) : NULL;
	if (!cx->arch)
		fprintf(stderr, "%s: target %s: %s\n", g->path, name, error);
	/* as the driver does it: choices count with the machine of this architecture, not of the host */
	m->target = cx->arch ? cx->target->name : NULL;
	m->arch = cx->arch;
	return cx->arch != NULL;
}

static bool
prepare(const Golden *g, PassCtx *cx, Module *m, StandIn *s)
{
	const char *disable = command(g, "disable", 0), *limit = command(g, "limit", 0),
	           *level = command(g, "level", 0), *memory = command(g, "memory", 0);

	*s = (StandIn){.t = {.name = "stand-in",
	                     .doc = "",
	                     .default_arch = "",
	                     .has_kernel = stand_in_kernel,
	                     .layout.images = stand_in_layout,
	                     .select = stand_in_select,
	                     .tuning.version = stand_in_version,
	                     .may_fuse = stand_in_may_fuse,
	                     .prologue = stand_in_prologue,
	                     .narrow.takes = stand_in_narrow,
	                     .machine = stand_in_machine},
	               .machine.budget.rates = {.bytes = 1e9, .flops = 1e9},
	               .kernels = command(g, "kernels", 0),
	               .layout = command(g, "layout", 0),
	               .times = command(g, "times", 0),
	               .epilogues = command(g, "epilogues", 0),
	               .prologues = command(g, "prologues", 0),
	               .narrow = command(g, "narrow", 0),
	               .variants = {command(g, "variants", 0)}};
	s->t.variants = s->variants;
	s->t.tuning.tunable = stand_in_tunable;
	s->spare = command(g, "spare", 0) ? atof(command(g, "spare", 0)) : 0;
	s->machine.budget.rates.start = command(g, "start", 0) ? 1e-9 * atof(command(g, "start", 0)) : 0;
	s->strides = command(g, "strides", 0);
	s->t.layout.strided = s->strides ? stand_in_strided : NULL;
	s->t.layout.time = s->times ? stand_in_time : NULL;
	s->chunk = command(g, "chunk", 0) ? atoi(command(g, "chunk", 0)) : 1;
	s->t.layout.chunk = stand_in_chunk;
	s->outputs = command(g, "outputs", 0) ? atoi(command(g, "outputs", 0)) : 1;
	s->t.layout.outputs = stand_in_outputs;
	if (command(g, "launches", 0) && !strcmp(command(g, "launches", 0), "joined"))
		s->t.traits |= TARGET_joins_launches;
	if (command(g, "packs", 0) && !strcmp(command(g, "packs", 0), "parameters"))
		s->t.narrow.packs = stand_in_packs;
	if (command(g, "windows", 0) && !strcmp(command(g, "windows", 0), "fused"))
		s->t.traits |= TARGET_windows_fuse;
	if (command(g, "crops", 0) && !strcmp(command(g, "crops", 0), "fused"))
		s->t.traits |= TARGET_crops_fuse;
	if (command(g, "updates", 0)) {
		s->t.traits |= TARGET_updates_fuse;
		s->machine.budget.l2 = atoll(command(g, "updates", 0));
	}
	*cx = (PassCtx){.module = m,
	                .target = &s->t,
	                .opt = level ? atoi(level) : 2,
	                .check = true,
	                .memory_budget = memory ? atoll(memory) : 0,
	                .only = command(g, "passes", 0),
	                .stop_stage = command(g, "stage", 0),
	                .tuning = tuning(g, m->diags),
	                .race = race(g, m->diags),
	                .machine = command(g, "machine", 0),
	                .locked = command(g, "locked", 0) != NULL};
	if (!real_target(g, cx, m))
		return false;
	if (cx->tuning)
		tuning_bind(cx->tuning, cx->target, cx->arch, cx->machine, cx->locked);
	if (!cx->only && !cx->stop_stage) {
		fprintf(stderr, "%s: neither `; passes:` nor `; stage:`\n", g->path);
		return false;
	}
	if (disable) {
		const char **names = arena_array(g->arena, const char *, strlen(disable));

		for (const char *p = disable; *p; p += strcspn(p, ","), p += *p == ',')
			names[cx->ndisabled++] = arena_strndup(g->arena, p, strcspn(p, ","));
		cx->disabled = names;
	}
	if (limit) {
		const char *colon = strrchr(limit, ':');

		cx->limit_rule = arena_strndup(g->arena, limit, colon ? (size_t)(colon - limit) : strlen(limit));
		cx->limit = colon ? atoi(colon + 1) : 0;
	}
	return true;
}

/* ---------------------------------------------------------------- emitted code */
/* The kernels alone: internal functions of LLVM's text; of CUDA C what follows the first comment on a kernel. */
static char *
kernels_of(const Golden *g, const char *kind, const char *text)
{
	bool cuda = !strcmp(kind, "cuda");
	const char *from = strstr(text, cuda ? "/* graph " : "define internal ");
	Buf b = {0};

	if (cuda && from)
		buf_printf(&b, "%s", from);
	for (; from && !cuda; from = strstr(from, "define internal ")) {
		const char *end = strstr(from, "\n}\n");
		size_t n = end ? (size_t)(end - from) + 3 : strlen(from);

		buf_printf(&b, "%s%.*s", b.n ? "\n" : "", (int)n, from);
		from += n;
	}
	char *r = arena_strdup(g->arena, b.n ? b.at : "");

	buf_free(&b);
	return r;
}

/* What the target emits of a planned module; NULL after a message. */
static char *
emitted(const Golden *g, const PassCtx *cx, const Module *m, const char *kind)
{
	EmitOptions o = {.emit = kind, .arch = cx->arch, .opt = cx->opt, .jobs = 1, .last = true};
	Buf b = {0};
	const char *error = cx->target->emit ? cx->target->emit(cx->target, m, &o, &b) : "the target emits no code";
	char *r = NULL;

	if (error)
		fprintf(stderr, "%s: %s: %s\n", g->path, kind, error);
	else
		r = kernels_of(g, kind, b.at);
	buf_free(&b);
	return r;
}

/* Replaces the module's text by the code of it, which must also be that of the text read back. */
static bool
emit_code(const Golden *g, const PassCtx *cx, const Module *m, Diags *d, Buf *text)
{
	const char *kind = command(g, "emit", 0);

	if (!kind)
		return true;
	Module *again = module_parse(g->arena, d, g->path, text->at, text->n);
	char *code = emitted(g, cx, m, kind), *second = again && code ? emitted(g, cx, again, kind) : NULL;

	if (!second)
		return false;
	if (strcmp(code, second)) {
		fprintf(stderr, "%s: the planned text, read back, gives other code\n", g->path);
		return false;
	}
	buf_free(text);
	*text = (Buf){0};
	buf_printf(text, "%s", code);
	return true;
}

/* ---------------------------------------------------------------- the comparison */
static bool
check_lines(const Golden *g, const char *output)
{
	bool good = true;
	const char *text;

	for (int i = 0; (text = command(g, "must", i)); i++)
		if (!strstr(output, text)) {
			fprintf(stderr, "%s: the output must hold: %s\n", g->path, text);
			good = false;
		}
	for (int i = 0; (text = command(g, "never", i)); i++)
		if (strstr(output, text)) {
			fprintf(stderr, "%s: the output must never hold: %s\n", g->path, text);
			good = false;
		}
	return good;
}

static bool
check_verdicts(const Golden *g, const PassCtx *cx)
{
	bool good = true;
	const char *text;

	for (int i = 0; (text = command(g, "verdict", i)); i++) {
		bool found = false;

		for (uint32_t k = 0; k < cx->verdict.n && !found; k++) {
			const Verdict *v = &cx->verdict.at[k];

			found = strstr(arena_printf(g->arena, "%s %s %s %s: %s", v->fired ? "fired" : "declined",
			                            v->rule, v->opa ? v->opa : "-", v->opb ? v->opb : "-", v->why),
			               text);
		}
		if (!found)
			fprintf(stderr, "%s: no verdict holds: %s\n", g->path, text);
		good &= found;
	}
	return good;
}

static bool
check_choices(const Golden *g, const PassCtx *cx)
{
	bool good = true;
	const char *text;

	for (int i = 0; (text = command(g, "choice", i)); i++) {
		bool found = false;

		for (uint32_t k = 0; k < cx->choice.n && !found; k++)
			found = strstr(arena_printf(g->arena, "%s : take=%d of %d", cx->choice.at[k].what,
			                            cx->choice.at[k].way, cx->choice.at[k].ways),
			               text);
		if (!found)
			fprintf(stderr, "%s: no choice holds: %s\n", g->path, text);
		for (uint32_t k = 0; k < cx->choice.n && !found; k++)
			fprintf(stderr, "  there is: %s : take=%d of %d\n", cx->choice.at[k].what, cx->choice.at[k].way,
				cx->choice.at[k].ways);
		good &= found;
	}
	return good;
}

static bool
compare(const Golden *g, const char *output)
{
	const char *e = g->expected;
	int line = 1;
	size_t start = 0;

	if (!strcmp(e, output))
		return true;
	for (size_t i = 0; e[i] && e[i] == output[i]; i++)
		if (e[i] == '\n')
			line++, start = i + 1;
	fprintf(stderr, "%s: line %d of the output differs\n  expected: %.*s\n  is:       %.*s\n", g->path, line,
	        (int)strcspn(e + start, "\n"), e + start, (int)strcspn(output + start, "\n"), output + start);
	return false;
}

static bool
bless(const Golden *g, const char *output)
{
	Buf b = {0};
	bool good;

	if (!strcmp(g->expected, output))
		return true;
	buf_printf(&b, "%s" SEPARATOR "%s", g->text, output);
	good = file_write(g->path, b.at, b.n);
	buf_free(&b);
	printf("blessed %s\n", g->path);
	return good;
}

static bool
check_error(const Golden *g, const char *want, const char *messages, bool ran)
{
	if (ran)
		fprintf(stderr, "%s: no error; expected: %s\n", g->path, want);
	else if (!strstr(messages, want))
		fprintf(stderr, "%s: another error\n  expected: %s\n  is: %s\n", g->path, want, messages);
	return !ran && strstr(messages, want);
}

static bool
run(const Golden *g)
{
	char *messages = NULL;
	size_t nmessages;
	FILE *out = open_memstream(&messages, &nmessages);
	const char *want = command(g, "error", 0);
	bool ran = false, good = false;
	Diags d;
	Module *m;
	PassCtx cx;
	StandIn target;
	Buf b = {0};

	diags_init(&d, g->arena, out);
	m = module_parse(g->arena, &d, g->path, g->text, strlen(g->text));
	if (m && prepare(g, &cx, m, &target))
		ran = passes_run(m, &cx) && !d.nerror;
	fclose(out);
	if (want)
		good = check_error(g, want, messages, ran);
	else if (!ran)
		fprintf(stderr, "%s: failed\n%s", g->path, messages);
	if (ran && !want) {
		module_print(&b, m);
		good = emit_code(g, &cx, m, &d, &b) && check_lines(g, b.at) && check_verdicts(g, &cx)
		       && check_choices(g, &cx)
		       && (g->bless ? bless(g, b.at) : compare(g, b.at));
	}
	buf_free(&b);
	free(messages);
	return good;
}

static bool
run_file(const char *path, bool blessing)
{
	Golden g = {.path = path, .arena = arena_new(), .bless = blessing};
	size_t n;
	bool good;

	g.text = file_read(path, &n);
	if (!g.text)
		die("cannot read %s", path);
	good = split(&g) && run(&g);
	free(g.text);
	arena_free(g.arena);
	return good;
}

/* ---------------------------------------------------------------- the folder */
static int
is_entry(const struct dirent *e)
{
	return e->d_name[0] != '.';
}

/* Files ending in .ir below path, in name order. */
static void
run_path(const char *path, bool blessing, int *passed, int *failed)
{
	struct stat st;
	struct dirent **list;
	int n;

	if (stat(path, &st))
		die("cannot read %s", path);
	if (!S_ISDIR(st.st_mode)) {
		bool good = run_file(path, blessing);

		if (!good)
			printf("FAIL %s\n", path);
		++*(good ? passed : failed);
		return;
	}
	n = scandir(path, &list, is_entry, alphasort);
	for (int i = 0; i < n; i++) {
		const char *dot = strrchr(list[i]->d_name, '.');
		Buf b = {0};

		buf_printf(&b, "%s/%s", path, list[i]->d_name);
		if (!stat(b.at, &st) && (S_ISDIR(st.st_mode) || (dot && !strcmp(dot, ".ir"))))
			run_path(b.at, blessing, passed, failed);
		buf_free(&b);
		free(list[i]);
	}
	free(list);
}

int
main(int argc, char **argv)
{
	int passed = 0, failed = 0;
	bool blessing = argc > 1 && !strcmp(argv[1], "--bless");

	ir_init();
	if (argc < 2 + blessing)
		die("golden [--bless] FILE or FOLDER...");
	for (int i = 1 + blessing; i < argc; i++)
		run_path(argv[i], blessing, &passed, &failed);
	printf("%d passed, %d failed, 0 skipped\n", passed, failed);
	return failed != 0;
}
