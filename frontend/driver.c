/* driver.c: from options to files: load a model, run the pipeline for each --arch, emit, link, write.
 *
 * In: Options and a file name.   Out: a Module at some stage, or files. Every output file is written under a temporary
 * name and renamed, so that an error leaves what was there before. Refuses, before any work: unknown targets, passes
 * and stages (with the nearest name), --emit of another target, output that cannot be written or that is the input. */
#include "cmd.h"

#include "../codegen/codegen.h"

#include <errno.h>
#include <inttypes.h>
#include <limits.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <time.h>
#include <unistd.h>

static bool
is_ir_file(const char *file)
{
	size_t n = strlen(file);

	return n > 3 && !strcmp(file + n - 3, ".ir");
}

/* IR begins with its module line, after blank lines and comments; no item of the language is called so. */
static bool
is_ir_text(const char *text)
{
	for (text += strspn(text, " \t\r\n"); *text == '#' || *text == ';'; text += strspn(text, " \t\r\n"))
		text += strcspn(text, "\n");
	return !strncmp(text, "module", 6) && strchr(" \t", text[6]);
}

const char *
job_stem(const Job *j)
{
	const char *slash = strrchr(j->file, '/'), *base = slash ? slash + 1 : j->file;
	size_t n = strlen(base);

	if (!strcmp(j->file, "-"))
		return "model";
	if (n > 4 && !strcmp(base + n - 4, ".net"))
		n -= 4;
	else if (n > 3 && !strcmp(base + n - 3, ".ir"))
		n -= 3;
	return arena_strndup(j->arena, base, n);
}

/* ---------------------------------------------------------------- options */
static int
bad_name(const Job *j, const char *option, const char *got, const char *const *names, int n)
{
	const char *near = suggest(got, names, n);
	Buf all = {0};

	if (near)
		return usage_error(j->command, "--%s: there is no '%s'; did you mean '%s'?", option, got, near);
	for (int i = 0; i < n; i++)
		buf_printf(&all, "%s%s", i ? ", " : "", names[i]);
	int status =
	        usage_error(j->command, "--%s: there is no '%s'; there are %s", option, got, all.at ? all.at : "none");

	buf_free(&all);
	return status;
}

static bool
name_in(const char *s, const char *const *names, int n)
{
	for (int i = 0; i < n; i++)
		if (!strcmp(s, names[i]))
			return true;
	return false;
}

/* Names that --disable, --passes and --print-after may say: passes, and for --disable operators that have an expansion
 * and targets' kernel variants, of which several targets may have one of a name. */
static int
pass_names(Arena *a, bool operators, const char ***names)
{
	int n = 0;

	*names = arena_array(a, const char *, npass_info + OP_COUNT + 16);
	for (int i = 0; i < npass_info; i++)
		(*names)[n++] = pass_info[i].name;
	for (int k = 1; operators && k < OP_COUNT; k++)
		if (op_info[k].expand)
			(*names)[n++] = op_info[k].name;
	for (int i = 0; operators && i < ntargets; i++)
		for (const char *const *v = targets[i]->variants; v && *v && n < npass_info + OP_COUNT + 16; v++)
			if (!name_in(*v, *names, n))
				(*names)[n++] = *v;
	return n;
}

static int
check_pass_options(Job *j)
{
	const Options *o = j->o;
	const char **names;
	int n = pass_names(j->arena, false, &names);

	for (int i = 0; i < o->passes.n; i++)
		if (!name_in(o->passes.at[i], names, n))
			return bad_name(j, "passes", o->passes.at[i], names, n);
	if (o->print_after && strcmp(o->print_after, "all") && !name_in(o->print_after, names, n))
		return bad_name(j, "print-after", o->print_after, names, n);
	n = pass_names(j->arena, true, &names);
	for (int i = 0; i < o->disable.n; i++) {
		const char *name = o->disable.at[i];

		if (!name_in(name, names, n))
			return bad_name(j, "disable", name, names, n);
		for (int k = 0; k < npass_info; k++)
			if (pass_info[k].required && !strcmp(pass_info[k].name, name))
				return usage_error(j->command,
				                   "--disable: '%s' is no optimisation: nothing runs without it", name);
	}
	if (o->pass_limit) {
		const char *colon = strrchr(o->pass_limit, ':');
		char *end = NULL;

		errno = 0;
		long long count = colon && colon[1] >= '0' && colon[1] <= '9' ? strtoll(colon + 1, &end, 10) : -1;

		if (count < 0 || errno || *end || colon == o->pass_limit)
			return usage_error(j->command, "'%s' is no value for '--pass-limit': needs RULE:N",
			                   o->pass_limit);
	}
	return EXIT_GOOD;
}

static int
check_emit(const Job *j)
{
	static const char *const kinds[] = {"ir", "llvm", "asm", "obj", "cuda", "ptx", "cubin", "exe"};
	const char *e = j->o->emit;

	if (!e)
		return EXIT_GOOD;
	if (!name_in(e, kinds, 8))
		return bad_name(j, "emit", e, kinds, 8);
	return EXIT_GOOD;
}

/* What --emit asks of a target that makes something else. */
static int
check_emit_of_target(const Job *j)
{
	const char *e = j->o->emit;
	bool cuda = e && (!strcmp(e, "cuda") || !strcmp(e, "ptx") || !strcmp(e, "cubin")),
	     cpu = e && (!strcmp(e, "llvm") || !strcmp(e, "asm") || !strcmp(e, "obj"));

	if (cuda && strcmp(j->target->name, "cuda"))
		return usage_error(j->command, "--emit %s needs --target cuda", e);
	if (cpu && !strcmp(j->target->name, "cuda"))
		return usage_error(j->command, "--emit %s: target cuda makes cuda, ptx and cubin", e);
	return EXIT_GOOD;
}

static int
choose_target(Job *j, const char *name)
{
	const char *names[16];
	int n = 0;

	j->target = target_named(name);
	if (j->target)
		return EXIT_GOOD;
	for (int i = 0; i < ntargets && i < 16; i++)
		names[n++] = targets[i]->name;
	return bad_name(j, "target", name, names, n);
}

/* Wider vectors first; of equal ones those made for a CPU before the general levels. */
static bool
arch_before(const Target *t, const char *a, const char *b)
{
	int va = t->vector_bytes ? t->vector_bytes(t, a) : 0, vb = t->vector_bytes ? t->vector_bytes(t, b) : 0;
	bool ga = !strncmp(a, "x86-64", 6), gb = !strncmp(b, "x86-64", 6);

	if (va != vb)
		return va > vb;
	if (ga != gb)
		return gb;
	return ga && strcmp(a, b) > 0;
}

static int
choose_arch(Job *j)
{
	TextList given = j->o->arch;
	const char *fallback = j->module && j->module->arch && !given.n ? j->module->arch : j->target->default_arch;
	int max = (int)(sizeof j->arch / sizeof *j->arch);

	j->narch = 0;
	for (int i = 0; i < (given.n ? given.n : 1); i++) {
		const char *name = given.n ? given.at[i] : fallback, *error = NULL, *known = name ? name : "ref";

		if (j->target->resolve_arch)
			known = j->target->resolve_arch(j->target, j->arena, known, &error);
		if (!known)
			return usage_error(j->command, "--arch %s: %s", name, error ? error : "unknown");
		if (name_in(known, j->arch, j->narch))
			continue;
		if (j->narch == max)
			return usage_error(j->command, "--arch: at most %d", max);
		int k = j->narch++;

		for (; k > 0 && arch_before(j->target, known, j->arch[k - 1]); k--)
			j->arch[k] = j->arch[k - 1];
		j->arch[k] = known;
	}
	return EXIT_GOOD;
}

int
job_open(Job *j, Arena *a, const Options *o, const char *command, const char *file)
{
	*j = (Job){.arena = a, .o = o, .command = command, .file = file};
	diags_init(&j->diags, a, stderr);
	j->diags.colour = colour_on(stderr);
	int status = check_emit(j);

	if (status == EXIT_GOOD)
		status = choose_target(j, o->target ? o->target : "cpu");
	if (status == EXIT_GOOD)
		status = check_emit_of_target(j);
	if (status == EXIT_GOOD)
		status = choose_arch(j);
	if (status == EXIT_GOOD)
		status = check_pass_options(j);
	if (status == EXIT_GOOD && o->precision) {
		static const char *const kinds[] = {"f32", "bf16", "f16", "mixed"};

		if (!name_in(o->precision, kinds, 4))
			status = bad_name(j, "precision", o->precision, kinds, 4);
	}
	return status;
}

/* ---------------------------------------------------------------- loading */
static char *
read_stream(FILE *f, size_t *bytes)
{
	Buf b = {0};
	char part[65536];
	size_t n;

	while ((n = fread(part, 1, sizeof part, f)) > 0)
		buf_put(&b, part, n);
	if (ferror(f)) {
		buf_free(&b);
		return NULL;
	}
	buf_put(&b, "", 0);
	*bytes = b.n;
	return b.at;
}

/* Standard input, to its end, kept in the arena; NULL after a message. */
static const char *
read_stdin(Job *j, size_t *bytes)
{
	char *text = read_stream(stdin, bytes);

	if (!text) {
		failure("cannot read standard input: %s", strerror(errno));
		return NULL;
	}
	const char *kept = arena_strndup(j->arena, text, *bytes);

	free(text);
	return kept;
}

/* text: of standard input, NULL to read the file. */
static int
load_ir(Job *j, const char *kept, size_t bytes)
{
	const Options *o = j->o;

	if (o->batch || o->shards || o->precision || o->define.n)
		return usage_error(
		        j->command,
		        "--batch, --shards, --precision and -D change a model; '%s' is IR, in which they stand already",
		        j->file);
	char *text = kept ? NULL : file_read(j->file, &bytes);

	if (!text && !kept)
		return failure("cannot read '%s': %s", j->file, strerror(errno));
	if (!kept)
		kept = arena_strndup(j->arena, text, bytes); /* diagnostics show lines of it later */
	free(text);
	j->module = module_parse(j->arena, &j->diags, j->file, kept, bytes);
	if (!j->module || j->diags.nerror)
		return EXIT_FAILED;
	Buf wrong = {0};
	bool good = module_verify(j->module, &wrong);

	if (!good)
		failure("'%s' is no well-formed IR:\n%s", j->file, wrong.at ? wrong.at : "");
	buf_free(&wrong);
	return good ? EXIT_GOOD : EXIT_FAILED;
}

static int
load_net(Job *j, const char *text, size_t bytes)
{
	const Options *o = j->o;
	struct stat st;

	if (text) {
		j->module = frontend_compile_text(j->arena, &j->diags, j->file, text, bytes, o->define.at, o->define.n,
		                                  o->batch, o->shards, o->precision);
		return j->module && !j->diags.nerror ? EXIT_GOOD : EXIT_FAILED;
	}
	if (stat(j->file, &st))
		return failure("cannot read '%s': %s", j->file, strerror(errno));
	if (S_ISDIR(st.st_mode))
		return failure("'%s' is a folder; a .net or .ir file is needed", j->file);
	j->module = frontend_compile(j->arena, &j->diags, j->file, o->define.at, o->define.n, o->batch, o->shards,
	                             o->precision);
	return j->module && !j->diags.nerror ? EXIT_GOOD : EXIT_FAILED;
}

/* Records of which machine count, for each architecture: --machine's; this machine's, if it is one of these; the only
 * one that the file has. */
static int
choose_machines(Job *j)
{
	const char *given = j->o->machine;
	Machine here;

	if (given && !tuning_is_machine(given, strlen(given)))
		return usage_error(j->command,
		                   "'%s' is no value for '--machine': needs features such as l1=32K,l2=1M, or *",
		                   given);
	for (int k = 0; k < j->narch; k++) {
		j->machine[k] = given;
		if (!given && j->target->machine_here && j->target->machine_here(j->target, j->arch[k], &here))
			j->machine[k] = j->target->machine_word(j->target, j->arch[k], j->arena);
		else if (!given && j->tuning)
			j->machine[k] = tuning_machine(j->tuning, j->target->name, j->arch[k]);
		if (j->tuning)
			tuning_bind(j->tuning, j->target, j->arch[k], j->machine[k], j->o->locked);
	}
	return j->diags.nerror ? EXIT_FAILED : EXIT_GOOD;
}

/* The tuning file: --tuning's, or MODEL.tune beside the model, if there. What is wrong with its records are
 * warnings. */
static int
load_tuning(Job *j)
{
	size_t n = strlen(j->file), bytes = 0;
	const char *path = j->o->tuning;

	if (!path && n > 4 && !strcmp(j->file + n - 4, ".net"))
		path = arena_printf(j->arena, "%.*s.tune", (int)(n - 4), j->file);
	else if (!path && n > 3 && !strcmp(j->file + n - 3, ".ir"))
		path = arena_printf(j->arena, "%.*s.tune", (int)(n - 3), j->file);
	if (!path || (!j->o->tuning && access(path, F_OK)))
		return choose_machines(j);
	char *text = file_read(path, &bytes);

	if (!text)
		return failure("cannot read the tuning file '%s': %s", path, strerror(errno));
	j->tuning = tuning_read(j->arena, j->module->diags, path, arena_strndup(j->arena, text, bytes), bytes);
	j->tuning_hash = hash_bytes(HASH_START, text, bytes);
	free(text);
	return choose_machines(j);
}

/* The race file of --race. */
static int
load_race(Job *j)
{
	size_t bytes = 0;

	if (!j->o->race)
		return EXIT_GOOD;
	if (strcmp(j->target->name, "cpu"))
		return usage_error(j->command, "--race: target %s has no racing programs", j->target->name);
	char *text = file_read(j->o->race, &bytes);

	if (!text)
		return failure("cannot read the race file '%s': %s", j->o->race, strerror(errno));
	j->race = race_read(j->arena, j->module->diags, j->o->race, arena_strndup(j->arena, text, bytes), bytes);
	free(text);
	return EXIT_GOOD;
}

/* What settings.c would have refused and programs count with. */
static int
check_settings(const Job *j)
{
	static const char *const counts[] = {"train.epochs", "train.accumulate", "train.shards", TUNED_THREADS};

	for (size_t i = 0; i < sizeof counts / sizeof *counts; i++) {
		const Setting *s = setting(j->module, counts[i]);

		if (s && (s->kind != SET_INT || s->i < 1 || s->i > INT32_MAX))
			return failure("'%s': setting %s needs an integer from 1 to %d", j->file, counts[i], INT32_MAX);
	}
	return EXIT_GOOD;
}

/* A batch is cut where the target's loops can put the parts together. */
static int
check_shards(const Job *j)
{
	const Setting *s = setting(j->module, "train.shards");

	if (j->o->distribute && strcmp(j->o->distribute, "mpi") != 0)
		return usage_error(j->command, "--distribute: '%s' is unknown, there is mpi", j->o->distribute);
	if (j->o->distribute && strcmp(j->target->name, "cpu") != 0)
		return usage_error(j->command, "--distribute mpi is of target cpu, not %s", j->target->name);
	if (s && s->i > 1 && !j->target->shards)
		return failure("'%s': train.shards = %lld: target %s cuts no batches; targets cpu and ref do", j->file,
		               (long long)s->i, j->target->name);
	return EXIT_GOOD;
}

/* Text that is planned already goes to code as it stands: what pass plan would have held is held here. */
static int
check_plan(Job *j)
{
	const Module *m = j->module;
	Arena *a = arena_new();
	const char *error = NULL;
	int stage = stage_number(m->stage), status = EXIT_GOOD;

	if (stage >= STAGE_planned)
		error = plancheck(m, a);
	if (!error && stage >= STAGE_selected)
		error = kernelcheck(m, j->target, j->arch[0], a);
	if (error)
		status = failure("'%s' is no plan that can run: %s", j->file, error);
	arena_free(a);
	return status;
}

int
job_load(Job *j)
{
	size_t bytes = 0;
	const char *text = strcmp(j->file, "-") ? NULL : read_stdin(j, &bytes);

	if (!text && !strcmp(j->file, "-"))
		return EXIT_FAILED;
	bool ir = !strcmp(j->command, "opt") || (text ? is_ir_text(text) : is_ir_file(j->file));
	int status = ir ? load_ir(j, text, bytes) : load_net(j, text, bytes);

	if (status != EXIT_GOOD)
		return status;
	if (j->module->target) {
		if (j->o->target && strcmp(j->o->target, j->module->target))
			return usage_error(j->command, "--target %s: '%s' is already lowered for %s", j->o->target,
			                   j->file, j->module->target);
		status = choose_target(j, j->module->target);
		if (status == EXIT_GOOD)
			status = choose_arch(j);
		if (status == EXIT_GOOD && j->module->arch && (j->narch > 1 || strcmp(j->arch[0], j->module->arch)))
			return usage_error(j->command, "--arch: '%s' is already lowered for %s", j->file,
			                   j->module->arch);
	}
	if (status == EXIT_GOOD && ir)
		status = check_settings(j);
	if (status == EXIT_GOOD && ir)
		status = check_plan(j);
	if (status == EXIT_GOOD)
		status = check_shards(j);
	if (status == EXIT_GOOD)
		status = load_tuning(j);
	return status == EXIT_GOOD ? load_race(j) : status;
}

/* ---------------------------------------------------------------- passes */
static int64_t
memory_budget(const Job *j)
{
	const Setting *s = setting(j->module, "train.memory");

	if (j->o->memory)
		return j->o->memory;
	return s && s->kind == SET_INT ? s->i : 0;
}

void
job_context(const Job *j, Module *m, int k, PassCtx *cx)
{
	const Options *o = j->o;

	*cx = (PassCtx){.module = m,
	                .target = j->target,
	                .arch = j->arch[k],
	                .scratch = arena_new(),
	                .opt = o->level < 0 ? 2 : (int)o->level,
	                .disabled = o->disable.at,
	                .ndisabled = o->disable.n,
	                .print_after = o->print_after,
	                .time_passes = o->time_passes,
	                .memory_budget = memory_budget(j),
	                .tuning = j->tuning,
	                .machine = j->machine[k],
	                .locked = o->locked,
	                .race = j->race};
#ifdef MANTOU_CHECK
	cx->check = true;
#endif
	if (o->pass_limit) {
		const char *colon = strrchr(o->pass_limit, ':');

		cx->limit_rule = arena_strndup(j->arena, o->pass_limit, (size_t)(colon - o->pass_limit));
		cx->limit = strtoll(colon + 1, NULL, 10);
	}
}

const char *
budget_text(Arena *a, const PassCtx *cx)
{
	const char *what = "the plan fits, nothing is recomputed";
	Buf has = {0};

	if (!cx->memory_budget)
		return NULL;
	for (uint32_t i = 0; i < cx->verdict.n; i++)
		if (!strcmp(cx->verdict.at[i].rule, "recompute"))
			what = cx->verdict.at[i].why;
	print_bytes(&has, cx->memory_budget);
	const char *text = arena_printf(a, "%s: %s", has.at, what);

	buf_free(&has);
	return text;
}

/* Pass recompute keeps the budget or says why not, unless it was switched off, limited, or the module was beyond it. */
static int
check_budget(const Job *j, const Module *m, const PassCtx *cx)
{
	Buf needs = {0}, has = {0};

	if (!cx->memory_budget || m->arena_bytes <= cx->memory_budget)
		return EXIT_GOOD;
	print_bytes(&needs, m->arena_bytes);
	print_bytes(&has, cx->memory_budget);
	int status = failure("%s: the plan needs %s, the budget is %s%s: use a smaller --batch", j->file, needs.at,
	                     has.at, pass_enabled(cx, "recompute") ? "" : "; pass recompute is switched off");

	buf_free(&needs);
	buf_free(&has);
	return status;
}

/* What the file says that short steps begin with, as a setting: the program's text has it, and the descriptor. */
static void
begin_threads(Module *m, const PassCtx *cx)
{
	Buf what = {0};
	const char *at;

	buf_printf(&what, "threads %s", m->name);
	bool ask = cx->tuning && cx->opt > 0 && !setting(m, TUNED_THREADS);
	const TuneRecord *r = ask ? tuning_find(cx->tuning, cx->target->name, cx->arch, cx->machine, what.at) : NULL;

	buf_free(&what);
	if (r && tuning_param(r->value, "start", &at) > 0)
		vec_push(m->arena, &m->setting, ((Setting){.kind = SET_INT, .name = TUNED_THREADS, .i = atoi(at),
			.f = atoi(at)}));
}

int
job_compile(Job *j, int k, const char *stage, Module **m, PassCtx *cx)
{
	int status = j->module ? EXIT_GOOD : job_load(j);

	if (status != EXIT_GOOD)
		return status;
	int want = stage ? stage_number(stage) : STAGE_planned, has = stage_number(j->module->stage);

	if (j->o->locked && has > STAGE_diffed)
		return failure("--locked: '%s' is at stage %s, its choices were made before; a lock holds for a model",
			j->file, j->module->stage);
	if (want < has)
		return failure("'%s' is at stage %s already; stage %s lies before it", j->file, j->module->stage,
		               stage);
	/* Only one of several architectures may work on the module itself: passes change it. */
	*m = j->narch > 1 ? module_clone(j->module, j->arena) : j->module;
	job_context(j, *m, k, cx);
	cx->stop_stage = stage_names[want];
	if (want > STAGE_diffed) {
		(*m)->target = j->target->name;
		(*m)->arch = j->arch[k];
		begin_threads(*m, cx);
	}
	bool good = want == has || (passes_run(*m, cx) && !cx->failed && !j->diags.nerror);

#ifdef MANTOU_CHECK
	const char *error = good && want == STAGE_planned && want != has
		? kernelcheck(*m, j->target, j->arch[k], cx->scratch) : NULL;

	if (error)
		bug("select: kernelcheck refuses its own choice: %s", error);
#endif
	arena_free(cx->scratch);
	cx->scratch = NULL;
	if (!good)
		return EXIT_FAILED;
	if (stage)
		return EXIT_GOOD;
	if (j->race && k == j->narch - 1)
		race_tell_unused(j->race);
	if (!contracts_hold(*m, cx))
		return EXIT_FAILED;
	if (j->o->locked && tuning_lock_state(j->arena, *m, cx, true) != LOCK_HOLDS)
		return EXIT_FAILED;
	return check_budget(j, *m, cx);
}

/* ---------------------------------------------------------------- output */
static bool
same_file(const char *file, const struct stat *st)
{
	struct stat other;

	return file && !stat(file, &other) && S_ISREG(other.st_mode) && other.st_dev == st->st_dev
	       && other.st_ino == st->st_ino;
}

/* NULL, or which of the files that were read it is. */
static const char *
is_input(const Job *j, const struct stat *st)
{
	if (same_file(j->file, st))
		return "the input";
	if (same_file(j->o->tuning, st))
		return "the tuning file";
	if (same_file(j->o->race, st))
		return "the race file";
	for (uint32_t i = 0; i < j->diags.source.n; i++)
		if (same_file(j->diags.source.at[i].name, st))
			return "a file that the model uses";
	return NULL;
}

int
job_check_output(const Job *j, const char *path)
{
	struct stat out;

	if (!path || !strcmp(path, "-"))
		return EXIT_GOOD;
	if (!stat(path, &out)) {
		const char *what = S_ISREG(out.st_mode) ? is_input(j, &out) : NULL;

		if (S_ISDIR(out.st_mode))
			return failure("cannot write '%s': it is a folder; name the output with -o", path);
		if (what)
			return failure("'%s' is %s: it would be overwritten; name the output with -o", path, what);
	}
	char *target = file_target(path);

	if (!target)
		return failure("cannot write '%s': %s", path, strerror(errno));
	const char *slash = strrchr(target, '/');
	const char *folder = slash == target ? "/"
		: slash ? arena_strndup(j->arena, target, (size_t)(slash - target)) : ".";
	bool special = file_special(target), may = !access(special ? target : folder, special ? W_OK : W_OK | X_OK);
	int why = errno;

	free(target);
	if (may)
		return EXIT_GOOD;
	if (special)
		return failure("cannot write '%s': %s", path, strerror(why));
	return failure("cannot write '%s': folder '%s': %s", path, folder, strerror(why));
}

/* What tells a whole program in the cache from a part of one: a last line that neither a loader nor sh reads, nor a
 * reader of IR. */
enum { SEAL_BYTES = 48 };

static const char *
seal_of(Arena *a, const void *bytes, size_t n)
{
	return arena_printf(a, "\n; mantou %020zu %016" PRIx64 "\n", n, hash_bytes(HASH_START, bytes, n));
}

bool
job_sealed(const Job *j, const char *path)
{
	size_t n;
	char *bytes = file_read(path, &n);
	bool whole = bytes && n > SEAL_BYTES
		&& !memcmp(bytes + n - SEAL_BYTES, seal_of(j->arena, bytes, n - SEAL_BYTES), SEAL_BYTES);

	free(bytes);
	return whole;
}

int
job_output(const Job *j, const char *path, const Buf *b)
{
	const char *bytes = b->at ? b->at : "";

	if (!path || !strcmp(path, "-")) {
		fwrite(bytes, 1, b->n, stdout);
		return EXIT_GOOD;
	}
	int status = job_check_output(j, path); /* by now it is known which files the model uses */

	if (status == EXIT_GOOD && !file_write(path, bytes, b->n))
		status = failure("cannot write '%s': %s", path, strerror(errno));
	return status;
}

/* A program, with its seal if it goes to the cache. */
static int
output_program(const Job *j, const char *path, Buf *b)
{
	int status = job_check_output(j, path);

	if (j->seal)
		buf_put(b, seal_of(j->arena, b->at, b->n), SEAL_BYTES);
	if (status == EXIT_GOOD && !file_write_executable(path, b->at, b->n))
		status = failure("cannot write '%s': %s", path, strerror(errno));
	return status;
}

/* ---------------------------------------------------------------- build */
static const char *
self_path(const Job *j)
{
	char path[PATH_MAX];
	ssize_t n = readlink("/proc/self/exe", path, sizeof path - 1);

	if (n <= 0)
		return j->o->program;
	return arena_strndup(j->arena, path, (size_t)n);
}

/* 'it'\''s': a word that sh reads as it is. */
static void
put_quoted(Buf *b, const char *s)
{
	buf_put(b, "'", 1);
	for (; *s; s++)
		buf_printf(b, *s == '\'' ? "'\\''" : "%c", *s);
	buf_put(b, "'", 1);
}

/* A script that hands its own text to this mantou; sh reads no further than exec. */
static int
build_launcher(Job *j, const char *path)
{
	Module *m;
	PassCtx cx;
	int status =
	        j->o->locked ? usage_error(j->command, "--locked: target ref has no kernels to select") : job_load(j);

	if (status != EXIT_GOOD)
		return status;
	status =
	        job_compile(j, 0, stage_number(j->module->stage) > STAGE_diffed ? j->module->stage : "diffed", &m, &cx);
	if (status != EXIT_GOOD)
		return status;
	Buf b = {0};

	buf_printf(&b, "#!/bin/sh\n# %s, interpreted in double: what stands below is its IR.\nmantou=", m->name);
	put_quoted(&b, self_path(j));
	buf_printf(&b,
	           "\n[ -x \"$mantou\" ] || { echo \"$0: the compiler $mantou is gone; build again\" >&2; exit 1; }\n"
	           "exec \"$mantou\" ref-run -- \"$0\" -- \"$@\"\n");
	module_print(&b, m);
	status = output_program(j, path, &b);
	buf_free(&b);
	return status;
}

static double
milliseconds(void)
{
	struct timespec t;

	clock_gettime(CLOCK_MONOTONIC, &t);
	return 1e3 * (double)t.tv_sec + 1e-6 * (double)t.tv_nsec;
}

/* What comes after the passes, in the form of their table. */
static void
print_time(const Job *j, const char *what, double since)
{
	if (j->o->time_passes)
		fprintf(stderr, "%-12s %10.3f\n", what, milliseconds() - since);
}

/* sm_90a and its like: code, as text too, that runs on that machine and on no newer one. */
static bool
runs_there_alone(const char *arch)
{
	size_t n = strlen(arch);

	return n > 3 && !strncmp(arch, "sm_", 3) && arch[n - 1] == 'a';
}

/* The last architecture's code stands in the executable as text too, for newer machines: where that is of no use, this
 * is said. */
static void
note_exact(const Job *j, const char *emit)
{
	const char *last = j->arch[j->narch - 1];

	if (runs_there_alone(last) && !strcmp(emit, "obj"))
		fprintf(stderr,
		        "mantou: note: code for %s runs on no other GPU, and it stands last: --arch %s,sm_80 adds code "
		        "for newer ones\n",
		        last, last);
}

/* The code of every architecture, in order. */
/* Kernels that will be far slower than the machine. */
static void
warn_slow(Job *j, Module *m, int arch)
{
	enum { SHOWN = 8 };
	int n;
	const Slow *s = info_slow(j, m, arch, &n);

	for (int i = 0; i < n && i < SHOWN; i++) {
		Buf b = {0};

		put_slow(&b, &s[i]);
		fprintf(stderr, "%s%swarning: %s; `mantou explain %s %s` says more\n", s[i].where,
		        *s[i].where ? ": " : "", b.at, j->file, s[i].layer);
		buf_free(&b);
	}
	if (n > SHOWN)
		fprintf(stderr, "warning: and %d more such kernels\n", n - SHOWN);
}

static int
emit_all(Job *j, const char *emit, Buf *out)
{
	if (!j->target->emit)
		return failure("--emit %s: target %s emits no code", emit, j->target->name);
	note_exact(j, emit);
	for (int k = 0; k < j->narch; k++) {
		EmitCounts counts = {0};
		EmitOptions e = {.emit = emit,
		                 .arch = j->arch[k],
		                 .opt = j->o->level < 0 ? 2 : (int)j->o->level,
		                 .index = k,
		                 .jobs = j->o->jobs < 1024 ? (int)j->o->jobs : 1024,
		                 .counts = &counts,
		                 .last = k == j->narch - 1};
		Module *m;
		PassCtx cx;
		int status = job_compile(j, k, NULL, &m, &cx);

		if (status != EXIT_GOOD)
			return status;
		double start = milliseconds();
		const char *error = j->target->emit(j->target, m, &e, &out[k]);

		print_time(j, "code", start);
		if (j->o->time_passes && counts.functions)
			fprintf(stderr, "%-12s %10u of %u functions from the cache\n", "", counts.cached,
			        counts.functions);
		if (error)
			return failure("%s: code for %s: %s", j->file, j->arch[k], error);
		if (!strcmp(emit, "obj"))
			warn_slow(j, m, k);
	}
	return EXIT_GOOD;
}

static bool
may_meet_gzip(const Module *m)
{
	const Setting *r = setting(m, "data.reader");

	return r && r->s && strcmp(r->s, "none") && strcmp(r->s, "synthetic");
}

static bool
meets_images(const Module *m)
{
	const Setting *r = setting(m, "data.reader");

	return r && r->s && (!strcmp(r->s, "images") || !strcmp(r->s, "coco"));
}

/* Objects, the stub and what the linker makes of them lie in a folder of their own, beside the output or, for a device
 * or a pipe, where temporary files go: the folder is removed as a whole, also when a signal ends this program. */
static char *
link_folder(const Job *j, const char *path)
{
	const char *tmp = getenv("TMPDIR");
	char *target = file_target(path), *folder = NULL;

	if (target && file_special(target))
		folder = temp_folder(arena_printf(j->arena, "%s/x",
		                                  tmp && *tmp && !access(tmp, W_OK | X_OK) ? tmp : "/tmp"));
	else if (target)
		folder = temp_folder(target);
	int why = errno;

	free(target);
	errno = why;
	return folder;
}

static char *
link_file(const Job *j, const char *folder, const char *name)
{
	char *path = strdup(arena_printf(j->arena, "%s/%s", folder, name));

	if (!path)
		die("out of memory");
	temp_note(path);
	return path;
}

/* The linked program, whole, to its place. */
static int
take_program(const Job *j, const char *linked, const char *path)
{
	Buf b = {0};

	b.at = file_read(linked, &b.n);
	if (!b.at)
		return failure("cannot read '%s': %s", linked, strerror(errno));
	b.cap = b.n + 1;
	unlink(linked); /* the disk need not hold it twice */
	int status = output_program(j, path, &b);

	buf_free(&b);
	return status;
}

static int
link_all(Job *j, const char *path, const Buf *code)
{
	char *folder = link_folder(j, path), *file[16 + 2];
	int status = EXIT_GOOD, n = 0;

	if (!folder)
		return failure("cannot write '%s': a folder for temporary files: %s", path, strerror(errno));
	for (; n < j->narch && status == EXIT_GOOD; n++) {
		file[n] = link_file(j, folder, arena_printf(j->arena, "%d.o", n));
		if (!file_write(file[n], code[n].at, code[n].n))
			status = failure("cannot write '%s': %s", file[n], strerror(errno));
	}
	int nobject = n;
	char *stub = file[n++] = link_file(j, folder, "main.c"), *linked = file[n++] = link_file(j, folder, "program");

	if (status == EXIT_GOOD) {
		LinkOptions l = {.objects = (const char *const *)file,
		                 .nobject = nobject,
		                 .stub = stub,
		                 .output = linked,
		                 .argv0 = self_path(j),
		                 .race = j->race != NULL,
		                 .distribute = j->o->distribute != NULL,
		                 .images = meets_images(j->module),
		                 .gzip = may_meet_gzip(j->module) || !strcmp(j->target->name, "cuda")};
		const char *error = link_program(j->arena, &l);

		status = error ? failure("%s: %s", path, error) : take_program(j, linked, path);
	}
	while (n-- > 0) {
		unlink(file[n]);
		temp_free(file[n]);
	}
	rmdir(folder);
	temp_free(folder);
	return status;
}

static int
build_ir(Job *j, const char *path)
{
	Module *m;
	PassCtx cx;
	int status = job_compile(j, 0, NULL, &m, &cx);
	Buf b = {0};

	if (status != EXIT_GOOD)
		return status;
	module_print(&b, m);
	status = job_output(j, path, &b);
	buf_free(&b);
	return status;
}

bool
job_emits(const Job *j)
{
	const char *e = j->o->emit;
	bool prints_ir = !strcmp(j->command, "dump") || !strcmp(j->command, "opt");

	return e && strcmp(e, "exe") && !(prints_ir && !strcmp(e, "ir"));
}

int
job_build(Job *j, const char *emit, const char *path)
{
	bool exe = !emit || !strcmp(emit, "exe");
	Buf code[16] = {{0}};
	int status = job_check_output(j, path);

	if (status != EXIT_GOOD)
		return status;
	if (exe && !strcmp(path, "-"))
		return usage_error(j->command, "an executable cannot be written to stdout");
	if (!exe && j->narch > 1)
		return usage_error(j->command, "--emit %s writes the code of one --arch", emit);
	if (!exe && !strcmp(emit, "ir"))
		return build_ir(j, path);
	status = j->module ? EXIT_GOOD : job_load(j);
	if (status != EXIT_GOOD)
		return status;
	if (exe && !strcmp(j->target->name, "ref"))
		return build_launcher(j, path);
	status = emit_all(j, exe ? "obj" : emit, code);
	double start = milliseconds();

	if (status == EXIT_GOOD)
		status = exe ? link_all(j, path, code) : job_output(j, path, &code[0]);
	print_time(j, exe ? "link" : "write", start);
	for (int k = 0; k < j->narch; k++)
		buf_free(&code[k]);
	return status;
}

/* ---------------------------------------------------------------- figures for people */
int64_t
machine_memory(void)
{
	FILE *f = fopen("/proc/meminfo", "r");
	char line[256];
	long long kib = 0;

	if (!f)
		return 0;
	while (fgets(line, sizeof line, f))
		if (sscanf(line, "MemTotal: %lld", &kib) == 1)
			break;
	fclose(f);
	return kib * 1024;
}

void
print_bytes(Buf *b, int64_t bytes)
{
	static const char *const unit[] = {"B", "KiB", "MiB", "GiB", "TiB"};
	double x = (double)bytes;
	int u = 0;

	for (; x >= 1024 && u < 4; u++)
		x /= 1024;
	buf_printf(b, u ? "%.2f %s" : "%.0f %s", x, unit[u]);
}

/* 61.7 k */
void
print_count(Buf *b, double n)
{
	static const char *const unit[] = {"", " k", " M", " G", " T", " P"};
	int u = 0;

	for (; n >= 1000 && u < 5; u++)
		n /= 1000;
	buf_printf(b, u ? "%.3g%s" : "%.0f%s", n, unit[u]);
}

void
print_where(Buf *b, const Module *m, Loc at)
{
	if (at.file && m->diags && at.file < m->diags->source.n)
		buf_printf(b, "%s:%u:%u", m->diags->source.at[at.file].name, at.line, (unsigned)at.col);
}
