/* driver.c: from options to a module at some stage: load a model, run the pipeline for one --arch.
 *
 * In: Options and a file name.   Out: a Module. Refuses, before any work: unknown targets, passes and stages (with the
 * nearest name), --emit of another target. */
#include "cluster.h"
#include "cmd.h"
#include "words.h"

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
	const char *near = suggest_known(got, names, n);
	Buf all = {0};

	for (int i = 0; i < n; i++) /* nearer by its letters is cpu */
		if (!strcmp(got, "gpu") && !strcmp(names[i], "cuda"))
			near = names[i];

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

/* Names that --disable, --passes and --print-after may say: passes, and for --disable operators that have a
 * decomposition and targets' kernel variants, of which several targets may have one of a name. */
static int
pass_names(Arena *a, bool operators, const char ***names)
{
	int n = 0;

	*names = arena_array(a, const char *, npass_info + OP_COUNT + 16);
	for (int i = 0; i < npass_info; i++)
		(*names)[n++] = pass_info[i].name;
	for (int k = 1; operators && k < OP_COUNT; k++)
		if (op_info[k].decompose)
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
	const Machine *ma = t->machine ? t->machine(t, a) : NULL, *mb = t->machine ? t->machine(t, b) : NULL;
	int va = ma ? ma->vector_bytes : 0, vb = mb ? mb->vector_bytes : 0;
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
		static const char *const kinds[] = {
#define PRECISION(word) word,
#include "../runtime/kinds.def"
		};

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

/* A training program of it would read data and change nothing. */
static void
warn_no_parameter(Job *j)
{
	const Module *m = j->module;
	const Graph *g = module_graph(m, "train");

	for (uint32_t i = 0; i < m->state.n; i++)
		if (m->state.at[i].kind == ST_PARAM)
			return;
	for (uint32_t i = 0; g && i < g->result.n; i++) {
		const Op *loss = g->result.at[i].kind == RES_LOSS ? val_op(g, g->result.at[i].v) : NULL;

		if (loss)
			diag_warning(&j->diags, loss->loc, "model `%s` has no parameters: training changes nothing",
			             m->name);
	}
}

static int
net_loaded(Job *j)
{
	if (!j->module || j->diags.nerror)
		return EXIT_FAILED;
	warn_no_parameter(j);
	return EXIT_GOOD;
}

static int
load_net(Job *j, const char *text, size_t bytes)
{
	const Options *o = j->o;
	struct stat st;

	if (text) {
		j->module = frontend_compile_text(j->arena, &j->diags, j->file, text, bytes, o->define.at, o->define.n,
		                                  o->batch, o->shards, o->precision);
		return net_loaded(j);
	}
	if (stat(j->file, &st)) {
		int why = errno;
		const char *net = arena_printf(j->arena, "%s.net", j->file);

		return access(net, F_OK)
		       ? failure("cannot read '%s': %s", j->file, strerror(why))
		       : failure("cannot read '%s': %s; did you mean '%s'?", j->file, strerror(why), net);
	}
	if (S_ISDIR(st.st_mode))
		return failure("'%s' is a folder; a .net or .ir file is needed", j->file);
	j->module = frontend_compile(j->arena, &j->diags, j->file, o->define.at, o->define.n, o->batch, o->shards,
	                             o->precision);
	return net_loaded(j);
}

/* Records of which machine count, for each architecture: --machine's, which are features or a GPU's name; this
 * machine's, if it is one of these; the only one that the file has. */
static int
choose_machines(Job *j)
{
	const char *given = j->o->machine, *word = NULL;
	Machine here;

	for (int k = 0; k < j->narch && given && !word && j->target->here.card; k++)
		j->target->here.card(j->target, j->arch[k], given, j->arena, &word);
	if (given && !word && !tuning_is_machine(given, strlen(given)))
		return usage_error(j->command,
		                   "'%s' is no value for '--machine': needs features such as l1=32K,l2=1M, a GPU that "
		                   "--arch has a row for, such as H100, or *",
		                   given);
	for (int k = 0; k < j->narch; k++) {
		j->machine[k] = word ? word : given;
		if (!given && j->target->here.machine && j->target->here.machine(j->target, j->arch[k], &here))
			j->machine[k] = j->target->here.word(j->target, j->arch[k], j->arena);
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
	if (!j->target->tuning.space)
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

/* --cluster: what the exchange of all of its processes, or of as many as there are shards, is cut for. */
static int
take_cluster(Job *j, int64_t shards)
{
	static const char *const name[] = {"processes", "start", "rate", "shard"};
	Module *m = j->module;
	Setting *arg = arena_array(m->arena, Setting, 4);
	Cluster c = cluster_assumed();
	const char *wrong = cluster_read(j->arena, j->o->cluster, &c);
	bool runs = !strcmp(j->command, "build") || !strcmp(j->command, "run");
	double start, per;

	if (shards < 2 || (runs && !j->o->distribute))
		return usage_error(j->command,
		                   "--cluster cuts the exchange of several processes: it needs %strain.shards or "
		                   "--shards of 2 or more",
		                   runs ? "--distribute mpi, and " : "");
	if (wrong)
		return failure("%s", wrong);
	if (setting(m, "bucket.0"))
		return usage_error(j->command, "--cluster: the exchange of '%s' is cut already", j->file);
	int64_t all = c.nodes * c.per, p = all < shards ? all : shards;

	if (p < 2)
		return usage_error(j->command, "--cluster: '%s' describes one process, which exchanges nothing",
		                   j->o->cluster);
	cluster_exchange(&c, p, &start, &per);
	const double value[] = {(double)p, start, 1 / per,
	                        c.rate.by == GIVEN ? (double)m->batch / c.rate.at : 0};

	for (int i = 0; i < 4; i++)
		arg[i] = (Setting){.kind = i ? SET_NUM : SET_INT, .name = name[i], .i = i ? 0 : p, .f = value[i]};
	vec_push(m->arena, &m->setting,
	         ((Setting){.kind = SET_CALL, .name = LINK_SETTING, .s = "link", .arg = arg, .nargs = 4}));
	return EXIT_GOOD;
}

/* What several processes may be asked for. */
static int
check_shards(Job *j)
{
	const Setting *s = setting(j->module, "train.shards");
	const char *by = j->o->distribute, *own = j->target->processes;

	if (by && strcmp(by, "mpi") != 0 && strcmp(by, "nccl") != 0)
		return usage_error(j->command, "--distribute: '%s' is unknown, there are mpi and nccl", by);
	if (j->o->debug && strcmp(j->target->name, "cpu") != 0)
		return usage_error(j->command, "-g is of target cpu, not %s", j->target->name);
	if (by && (!own || strcmp(by, own) != 0))
		return usage_error(j->command, "--distribute %s is of target %s, not %s", by,
		                   !strcmp(by, "mpi") ? "cpu" : "cuda", j->target->name);
	if (j->o->shard_optimizer && (!j->o->distribute || !s || s->i < 2))
		return usage_error(j->command,
		                   "--shard-optimizer is of several processes: it needs --distribute %s, and "
		                   "train.shards or --shards of 2 or more",
		                   own ? own : "mpi");
	return EXIT_GOOD;
}

/* What options say of several processes, as settings of the module. */
static int
take_shards(Job *j)
{
	const Setting *s = setting(j->module, "train.shards");

	if (j->o->shard_optimizer && !setting(j->module, CUT_SETTING))
		vec_push(j->module->arena, &j->module->setting,
		         ((Setting){.kind = SET_INT, .name = CUT_SETTING, .i = 1, .f = 1}));
	if (j->o->cluster && strcmp(j->command, "scale") != 0)
		return take_cluster(j, s ? s->i : 1);
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
		status = take_shards(j);
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
