/* run.c: the runner of the pipeline in passes.def.
 *
 * In: a module at any stage.  Out: the same module at a later one, or false after an error in module->diags.
 * For each row: is it due at this stage, switched on, on this level; then run it on the graphs it names, time it, print
 * when asked, and in check mode verify the module and hold print = print(parse(print)): nothing can hide outside the
 * text. Rewrites ask pass_may, so that --pass-limit bisects a miscompile; verdicts are copied into the module's arena.
 * Refuses: unknown pass names, --disable of a required pass, a pass asked for by name at a stage where it cannot
 * run. */
#include <stdlib.h>
#include <string.h>
#include <time.h>
#include "passes.h"

const PassInfo pass_info[] = {
#define PASS(n, f, mf, lv, nd, gv, gr, rq, dc) \
	{.name = #n, \
	 .fn = f, \
	 .module_fn = mf, \
	 .level = lv, \
	 .needs = nd, \
	 .gives = gv, \
	 .graphs = gr, \
	 .required = rq, \
	 .doc = dc},
#include "passes.def"
#undef PASS
};
const int npass_info = sizeof pass_info / sizeof pass_info[0];

/* The stage that the module reaches at row i or the first after it: the row runs only before that stage. */
static int
stage_ahead(int i)
{
	for (; i < npass_info; i++)
		if (*pass_info[i].gives)
			return stage_number(pass_info[i].gives);
	return STAGE_COUNT;
}

static int
pass_index(const char *name, size_t n)
{
	for (int i = 0; i < npass_info; i++)
		if (strlen(pass_info[i].name) == n && !memcmp(pass_info[i].name, name, n))
			return i;
	return -1;
}

/* ---------------------------------------------------------------- what passes ask */
bool
pass_may(PassCtx *cx, const char *rule)
{
	size_t n = cx->limit_rule ? strlen(cx->limit_rule) : 0;

	if (!n || strncmp(rule, cx->limit_rule, n) || (rule[n] && rule[n] != '.'))
		return true;
	if (cx->fired >= cx->limit)
		return false;
	cx->fired++;
	return true;
}

static TuneRecord *
record_for(const PassCtx *cx, const char *what)
{
	return cx->tuning && cx->opt > 0 ? tuning_find(cx->tuning, cx->target->name, cx->arch, cx->machine, what)
	                                 : NULL;
}

static void
tell_misfit(PassCtx *cx, TuneRecord *r, const char *why)
{
	if (!r->told && cx->locked)
		diag_error(cx->module->diags, r->at, "%s, and --locked takes no such record", why);
	else if (!r->told && cx->module->diags)
		diag_warning(cx->module->diags, r->at, "%s: this record is ignored", why);
	r->told = true;
}

int
pass_choose(PassCtx *cx, const char *rule, const ChoiceAt *at, int ways, int predicted)
{
	Arena *a = cx->module->arena;
	bool narrows = cx->target && pass_enabled(cx, "precision");
	DType narrow = narrows ? precision_of(cx->module, cx->target, cx->arch).narrow : DT_none;
	Buf what = {0};
	Decision c = {.a = at->op->path, .loc = at->op->loc, .way = predicted, .ways = ways, .predicted = predicted,
	              .ratio = at->ratio};
	const char *take;

	if (!at->update)
		c.with = arena_array(a, const char *, at->nwith + 1);
	for (int i = 0; c.with && i < at->nwith; i++)
		c.with[c.nwith++] = at->with[i]->path;
	tuning_choice_key(&what, rule, at->g, at->op, at->with, at->nwith, narrow, at->more);
	c.what = arena_strdup(a, what.at);
	buf_free(&what);
	TuneRecord *r = record_for(cx, c.what);

	if (r && tuning_param(r->value, "take", &take) > 0) {
		int way = atoi(take);

		if (way < ways) {
			c.way = way;
			c.by = r;
		} else {
			c.misfit = true;
			tell_misfit(cx, r, arena_printf(a, "take=%d: there are %d ways, 0 to %d", way, ways, ways - 1));
		}
	}
	vec_push(a, &cx->choice, c);
	return c.way;
}

const char *
pass_chose(PassCtx *cx, const char *why)
{
	const TuneRecord *r = cx->choice.n ? cx->choice.at[cx->choice.n - 1].by : NULL;

	return r ? arena_printf(cx->module->arena, "%s:%u says so; %s", tuning_file(cx->tuning), (unsigned)r->at.line,
		why) : why;
}

Rates
pass_rates(PassCtx *cx)
{
	Rates c = target_rates(cx->target, cx->arch);
	const struct { const char *name; double *to; } rates[] = {{"memory", &c.bytes}, {"map", &c.flops},
		{"start", &c.start}};
	const TuneRecord *r = record_for(cx, "rates");
	const char *at;

	for (size_t i = 0; r && i < sizeof rates / sizeof *rates; i++)
		if (tuning_param(r->value, rates[i].name, &at) > 0)
			*rates[i].to = strtod(at, NULL);
	return c;
}

static const char *
copy_text(Arena *a, const char *s)
{
	return s ? arena_strdup(a, s) : NULL;
}

void
verdict(PassCtx *cx, Verdict v)
{
	Arena *a = cx->module->arena;

	v.pass = copy_text(a, v.pass), v.rule = copy_text(a, v.rule), v.graph = copy_text(a, v.graph);
	v.a = copy_text(a, v.a), v.b = copy_text(a, v.b);
	v.opa = copy_text(a, v.opa), v.opb = copy_text(a, v.opb), v.why = copy_text(a, v.why);
	vec_push(a, &cx->verdict, v);
}

bool
pass_disabled(const PassCtx *cx, const char *name)
{
	for (int i = 0; i < cx->ndisabled; i++)
		if (!strcmp(cx->disabled[i], name))
			return true;
	return false;
}

bool
pass_variant(const PassCtx *cx, const char *name)
{
	return cx->opt > 0 && !pass_disabled(cx, name);
}

static bool
may_choose(void *cx, const char *variant)
{
	return pass_variant(cx, variant);
}

SelectCx
pass_kernels(PassCtx *cx, DType narrow)
{
	return (SelectCx){.arch = cx->arch, .narrow = narrow, .may = may_choose, .cx = cx};
}

bool
pass_enabled(const PassCtx *cx, const char *name)
{
	int i = pass_index(name, strlen(name));

	return i >= 0 && cx->opt >= pass_info[i].level && !pass_disabled(cx, name);
}

/* ---------------------------------------------------------------- names given by a user */
enum { MAX_NAMES = 256 };

/* Passes, and composite operators where an option takes them. */
static const char *
suggest_name(const char *name, bool operators)
{
	const char *names[MAX_NAMES];
	int n = 0;

	for (int i = 0; i < npass_info && n < MAX_NAMES; i++)
		names[n++] = pass_info[i].name;
	for (int k = 1; operators && k < OP_COUNT && n < MAX_NAMES; k++)
		if (op_has((OpKind)k, T_COMPOSITE) && op_info[k].decompose && !strchr(op_info[k].name, '.'))
			names[n++] = op_info[k].name;
	return suggest(name, names, n);
}

static bool
is_variant(const PassCtx *cx, const char *name)
{
	for (const char *const *v = cx->target ? cx->target->variants : NULL; v && *v; v++)
		if (!strcmp(*v, name))
			return true;
	return false;
}

static bool
unknown_name(Module *m, const char *option, const char *name, bool operators)
{
	const char *best = suggest_name(name, operators);

	diag_error(m->diags, (Loc){0}, "%s: there is no pass `%s`%s%s%s", option, name, best ? "; did you mean `" : "",
	           best ? best : "", best ? "`?" : "");
	return false;
}

static bool
check_disabled(Module *m, const PassCtx *cx)
{
	bool good = true;

	for (int i = 0; i < cx->ndisabled; i++) {
		const char *name = cx->disabled[i];
		int p = pass_index(name, strlen(name));
		OpKind k = op_named(name);

		if (p >= 0 && pass_info[p].required) {
			diag_error(m->diags, (Loc){0}, "--disable: pass `%s` is required: %s", name, pass_info[p].doc);
			good = false;
		} else if (p < 0 && !is_variant(cx, name) &&
		           !(k != OP_none && op_has(k, T_COMPOSITE) && op_info[k].decompose)) {
			good = unknown_name(m, "--disable", name, true);
		}
	}
	return good;
}

static bool
check_names(Module *m, const PassCtx *cx)
{
	bool good = check_disabled(m, cx);
	size_t n = cx->limit_rule ? strcspn(cx->limit_rule, ".") : 0;

	if (cx->print_after && strcmp(cx->print_after, "all") &&
	    pass_index(cx->print_after, strlen(cx->print_after)) < 0)
		good = unknown_name(m, "--print-after", cx->print_after, false);
	if (cx->limit_rule && pass_index(cx->limit_rule, n) < 0)
		good = unknown_name(m, "--pass-limit", arena_strndup(cx->scratch, cx->limit_rule, n), false);
	if (cx->stop_stage && stage_number(cx->stop_stage) < 0) {
		diag_error(m->diags, (Loc){0},
		           "there is no stage `%s`; stages are typed, diffed, lowered, fused, scheduled, selected, "
		           "planned",
		           cx->stop_stage);
		good = false;
	}
	return good;
}

/* ---------------------------------------------------------------- one row */
static bool
names_graph(const char *list, const char *name)
{
	size_t n = strlen(name);

	if (!strcmp(list, "*"))
		return true;
	for (const char *p = list; *p; p += strcspn(p, ","), p += *p == ',')
		if (!strncmp(p, name, n) && (!p[n] || p[n] == ','))
			return true;
	return false;
}

static bool
run_row(Module *m, PassCtx *cx, const PassInfo *p)
{
	bool changed = false;

	if (p->module_fn) {
		bug_context = arena_printf(cx->scratch, "pass %s", p->name);
		return p->module_fn(m, cx);
	}
	for (uint32_t i = 0; p->fn && i < m->graph.n; i++) {
		Graph *g = m->graph.at[i];

		if (g->is_loop || !names_graph(p->graphs, g->name))
			continue;
		bug_context = arena_printf(cx->scratch, "pass %s, graph %s", p->name, g->name);
		changed |= p->fn(g, cx);
	}
	return changed;
}

/* The first line in which two texts differ. */
static const char *
first_difference(Arena *a, const char *x, const char *y)
{
	size_t line = 0;

	for (size_t i = 0; x[i] && x[i] == y[i]; i++)
		if (x[i] == '\n')
			line = i + 1;
	return arena_printf(a, "  printed: %.*s\n  reread:  %.*s", (int)strcspn(x + line, "\n"), x + line,
	                    (int)strcspn(y + line, "\n"), y + line);
}

/* *last: the text that was read back last, which is not read again where a pass has left it as it was. */
static void
check_module(const Module *m, const char *pass, Buf *last)
{
	Arena *a = arena_new();
	Buf errors = {0}, first = {0}, second = {0};
	Diags d;
	const Module *again;

	if (!module_verify(m, &errors))
		bug("the module is not well formed after pass %s:\n%s", pass, errors.at ? errors.at : "");
	module_print(&first, m);
	buf_free(&errors);
	if (first.n == last->n && !memcmp(first.at, last->at, first.n)) {
		buf_free(&first);
		arena_free(a);
		return;
	}
	diags_init(&d, a, stderr);
	again = module_parse(a, &d, pass, first.at, first.n);
	if (!again)
		bug("the IR printed after pass %s does not read back", pass);
	module_print(&second, again);
	if (first.n != second.n || memcmp(first.at, second.at, first.n))
		bug("the IR printed after pass %s reads back as another:\n%s", pass,
		    first_difference(a, first.at, second.at));
	buf_free(last);
	*last = first;
	buf_free(&second);
	arena_free(a);
}

static void
print_module(const Module *m, const char *pass)
{
	Buf b = {0};

	module_print(&b, m);
	fprintf(stderr, "; after pass %s\n%s", pass, b.at);
	buf_free(&b);
}

static double
seconds(void)
{
	struct timespec t;

	clock_gettime(CLOCK_MONOTONIC, &t);
	return (double)t.tv_sec + 1e-9 * (double)t.tv_nsec;
}

typedef struct PassTime { const char *name; double s; bool changed; } PassTime;

/* False after an error. */
static bool
run_pass(Module *m, PassCtx *cx, const PassInfo *p, bool enabled, PassTime *time)
{
	double start = seconds();
	int errors = m->diags ? m->diags->nerror : 0;

	time->name = p->name;
	cx->scratch = arena_new();
	if (enabled)
		time->changed = run_row(m, cx, p);
	if (*p->gives)
		m->stage = p->gives;
	bug_context = NULL;
	arena_free(cx->scratch);
	cx->scratch = NULL;
	time->s = seconds() - start;
	if (cx->failed || (m->diags && m->diags->nerror > errors))
		return false;
	if (cx->check)
		check_module(m, p->name, cx->read_back);
	if (cx->print_after && (!strcmp(cx->print_after, "all") || !strcmp(cx->print_after, p->name)))
		print_module(m, p->name);
	return true;
}

static void
print_times(const PassTime *t, int n)
{
	double total = 0;

	for (int i = 0; i < n; i++)
		total += t[i].s;
	fprintf(stderr, "%-12s %10s %6s\n", "pass", "ms", "share");
	for (int i = 0; i < n; i++)
		fprintf(stderr, "%-12s %10.3f %5.1f%%%s\n", t[i].name, 1e3 * t[i].s,
		        total > 0 ? 100 * t[i].s / total : 0, t[i].changed ? "" : "  no change");
	fprintf(stderr, "%-12s %10.3f\n", "all", 1e3 * total);
}

/* ---------------------------------------------------------------- the pipeline, or the passes asked for */
static bool
run_pipeline(Module *m, PassCtx *cx, PassTime *times, int *ntimes)
{
	int stop = cx->stop_stage ? stage_number(cx->stop_stage) : STAGE_COUNT;

	for (int i = 0; i < npass_info; i++) {
		const PassInfo *p = &pass_info[i];
		int at = stage_number(m->stage), ahead = stage_ahead(i);
		/* rows behind the last stage belong to it */
		bool due = ahead == STAGE_COUNT ? at == STAGE_planned && stop >= at : at < ahead && ahead <= stop;
		bool needed = p->required || stage_number(p->gives) > STAGE_lowered;
		bool enabled = needed || pass_enabled(cx, p->name);

		if (!due || (!enabled && !*p->gives))
			continue;
		if (!run_pass(m, cx, p, enabled, &times[(*ntimes)++]))
			return false;
	}
	return true;
}

static bool
stage_allows(Module *m, const PassInfo *p)
{
	int at = stage_number(m->stage), ahead = stage_ahead((int)(p - pass_info));

	/* a row that keeps the stage may still run at the one that follows it */
	if (at < stage_number(p->needs)) {
		diag_error(m->diags, (Loc){0}, "pass `%s` needs stage %s, the module is at %s", p->name, p->needs,
		           m->stage);
		return false;
	}
	if (*p->gives ? at >= ahead : at > ahead) {
		diag_error(m->diags, (Loc){0}, "pass `%s` cannot run at stage %s: it belongs before %s", p->name,
		           m->stage,
		           *p->gives                 ? p->gives
		           : ahead + 1 < STAGE_COUNT ? stage_names[ahead + 1]
		                                     : "the end");
		return false;
	}
	return true;
}

static bool
run_only(Module *m, PassCtx *cx, PassTime *times, int *ntimes)
{
	for (const char *s = cx->only; *s; s += *s == ',') {
		size_t n = strcspn(s, ",");
		int i = pass_index(s, n);

		if (i < 0)
			return unknown_name(m, "--passes", arena_strndup(m->arena, s, n), false);
		if (*ntimes == MAX_NAMES) {
			diag_error(m->diags, (Loc){0}, "--passes: more than %d passes", MAX_NAMES);
			return false;
		}
		if (!stage_allows(m, &pass_info[i]) || !run_pass(m, cx, &pass_info[i], true, &times[(*ntimes)++]))
			return false;
		s += n;
	}
	return true;
}

/* What comes in may be hand-written: there it is an error, after a pass it is a bug. */
static bool
verified(Module *m)
{
	Buf errors = {0};
	bool good = module_verify(m, &errors);

	if (!good)
		diag_error(m->diags, (Loc){0}, "the module is not well formed:\n%s", errors.at ? errors.at : "");
	buf_free(&errors);
	return good;
}

bool
passes_run(Module *m, PassCtx *cx)
{
	PassTime times[MAX_NAMES] = {{0}};
	Arena *callers = cx->scratch;
	Buf read_back = {0};
	int n = 0;
	bool good;

	cx->module = m;
	cx->scratch = arena_new();
	good = check_names(m, cx);
	arena_free(cx->scratch);
	cx->scratch = NULL;
	if (!good)
		return false;
	if (cx->check && !verified(m))
		return false;
	cx->read_back = &read_back;
	good = cx->only ? run_only(m, cx, times, &n) : run_pipeline(m, cx, times, &n);
	buf_free(&read_back);
	cx->read_back = NULL;
	cx->scratch = callers;
	if (cx->time_passes)
		print_times(times, n);
	return good;
}
