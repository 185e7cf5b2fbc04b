/* tune_space.c: what a search tries: the kernels of a compiled program by the keys of tuning files, and others in
 * their place, the most promising first.
 *
 * In: a model, a tuning file.   Out: its program compiled as far as to kernels; for each key a list of kernels.
 * Order: by predicted time in steps of 5 %, then by how many parameters are others; of parameters that no prediction
 * knows (bands, copies) those near half and double come first. No set of parameters takes more than a quarter of a
 * list: there are sets that no prediction tells apart from the kernel's own. Where a target forecasts times by machine
 * code, which takes a while for each kernel, twice as many come so, and of these the first by forecasts stay. How many
 * are forecast follows from the budget, those of the costliest records first. */
#include "tune.h"

#include <fnmatch.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>

/* ---------------------------------------------------------------- a program */
static Record *
record_of(Program *p, const char *what, const char *kernel, const char *layer)
{
	PassCtx *cx = &p->cx;

	for (uint32_t i = 0; i < p->record.n; i++)
		if (!strcmp(p->record.at[i].what, what))
			return &p->record.at[i];
	const char *key = arena_printf(p->arena, "%s %s %s %s", cx->target->name,
	                               cx->arch && *cx->arch ? cx->arch : "-", cx->machine ? cx->machine : "*", what);

	vec_push(p->arena, &p->record, ((Record){.key = key, .what = key + strlen(key) - strlen(what),
		.kernel = arena_strdup(p->arena, kernel), .layer = layer ? layer : ""}));
	return &p->record.at[p->record.n - 1];
}

static void
find_records(Program *p)
{
	const Graph *g = p->graph;
	const TuneKeys *keys = tuning_keys(g, p->arena, select_keeps(&p->cx));

	for (uint32_t k = 0; k < g->group.n; k++) {
		const char *kernel = g->group.at[k].kernel;
		Buf key = {0};

		if (!kernel || g->group.at[k].once || !p->cx.target->tuning.tunable ||
		    !p->cx.target->tuning.tunable(p->cx.target, kernel))
			continue;
		const Op *op = tuning_key(&key, keys, (int)k);

		if (op)
			record_of(p, key.at, kernel, op->path)->ngroup++;
		buf_free(&key);
	}
}

/* The record of group k of the program's graph; NULL: it has none. */
static Record *
record_of_group(const Program *p, const TuneKeys *keys, int k)
{
	Buf what = {0};
	const Op *op = tuning_key(&what, keys, k);
	Record *r = NULL;

	for (uint32_t i = 0; op && i < p->record.n && !r; i++)
		r = strcmp(p->record.at[i].what, what.at) ? NULL : &p->record.at[i];
	buf_free(&what);
	return r;
}

static const Graph *
graph_named(const Module *m, const char *name)
{
	for (uint32_t i = 0; i < m->graph.n; i++)
		if (!strcmp(m->graph.at[i]->name, name))
			return m->graph.at[i];
	return NULL;
}

int
tune_program(Tune *t, const char *tuning, Program *p)
{
	Options *o = arena_new_of(t->arena, Options);
	*o = *t->o;
	o->tuning = tuning;
	*p = (Program){.arena = arena_new()};
	int status = job_open(&p->job, p->arena, o, "tune", o->operand[0]);

	if (status == EXIT_GOOD && t->rounds)
		p->job.diags.out = NULL;             /* the first of them has said it */
	if (status == EXIT_GOOD)
		status = job_compile(&p->job, t->arch, NULL, &p->module, &p->cx);
	if (status != EXIT_GOOD)
		return status;
	if (!t->graph)
		t->graph = graph_named(p->module, "train") ? "train" : "infer";
	p->graph = graph_named(p->module, t->graph);
	if (!p->graph)
		return failure("%s has no graph %s to be tuned", p->module->name, t->graph);
	find_records(p);
	return EXIT_GOOD;
}

void
program_free(Program *p)
{
	if (p->arena)
		arena_free(p->arena);
	*p = (Program){0};
}

Record *
program_record(const Program *p, const char *key)
{
	for (uint32_t i = 0; i < p->record.n; i++)
		if (!strcmp(p->record.at[i].key, key))
			return &p->record.at[i];
	return NULL;
}

int
program_own(Tune *t, Program *p)
{
	Program own;
	int rounds = t->rounds++, status = tune_program(t, "/dev/null", &own);

	t->rounds = rounds;
	for (uint32_t i = 0; status == EXIT_GOOD && i < own.record.n; i++) {
		Record *r = program_record(p, own.record.at[i].key);

		if (r)
			r->own = arena_strdup(p->arena, own.record.at[i].kernel);
	}
	program_free(&own);
	return status;
}

/* ---------------------------------------------------------------- what differs */
/* The next NAME=VALUE of a kernel's text; false: there is none. Of a word (outer=row) a number below 0, each its
 * own. */
static bool
next_param(const char **s, const char **name, size_t *n, double *value)
{
	*s += strcspn(*s, "{,");
	if (!**s)
		return false;
	*name = ++*s;
	*n = strcspn(*name, ",}=");
	const char *at = *name + *n + ((*name)[*n] == '=');
	bool word = *at < '0' || *at > '9';

	*value = (*name)[*n] != '=' ? NAN : word ? -1 - (double)(hash_bytes(HASH_START, at, strcspn(at, ",}")) >> 16)
	                                         : strtod(at, NULL);
	return true;
}

static bool
find_param(const char *kernel, const char *name, size_t n, double *value)
{
	const char *at;
	size_t m;

	while (next_param(&kernel, &at, &m, value))
		if (m == n && !memcmp(at, name, n))
			return true;
	return false;
}

/* Parameters that v has and own has not, or with another value. A rival, as a library's plan is, has none of own's:
 * they keep their order, number `order`, and come first. */
static void
compare_params(Variant *v, const char *own, uint32_t order)
{
	const char *s = v->kernel, *name;
	size_t n;
	double x, y;

	v->which = hash_bytes(HASH_START, v->kernel, strcspn(v->kernel, "{"));
	v->rival = true;
	while (next_param(&s, &name, &n, &x)) {
		bool known = find_param(own, name, n, &y);

		v->rival &= !known;
		if (known && (x == y || (isnan(x) && isnan(y))))
			continue;
		v->changed++;
		v->which = hash_bytes(v->which, name, n);
		v->far += known && x > 0 && y > 0 ? fabs(fabs(log2(x / y)) - 1) : 1;
	}
	if (!v->rival)
		return;
	v->which = hash_bytes(HASH_START, v->kernel, strcspn(v->kernel, "{"));
	v->changed = 0;
	v->far = order;
}

/* ---------------------------------------------------------------- what is tried */
typedef struct Search {
	Tune *t; Program *p; Record *r;
	SelectCx *cx; int group;
	double own;                      /* predicted of the program's kernel */
	VEC(Variant) found;
} Search;

static bool
was_tried(const Tune *t, const char *key, const char *kernel)
{
	size_t n = strlen(key);

	for (uint32_t i = 0; i < t->tried.n; i++)
		if (!strncmp(t->tried.at[i], key, n) && !strncmp(t->tried.at[i] + n, " : ", 3)
		    && !strcmp(t->tried.at[i] + n + 3, kernel))
			return true;
	return false;
}

static bool
found(void *cx, const char *kernel, BitsClass bits)
{
	enum { MOST = 20000 };
	Search *s = cx;
	const Target *target = s->p->cx.target;

	if (bits > s->t->most || !strcmp(kernel, s->r->kernel) || was_tried(s->t, s->r->key, kernel))
		return true;
	Variant v = {.kernel = arena_strdup(s->p->arena, kernel), .bits = bits, .predicted = NAN};

	if (target->tuning.predict)
		v.predicted = target->tuning.predict(target, s->p->graph, s->group, s->cx, kernel) / s->own;
	compare_params(&v, s->r->kernel, s->found.n);
	vec_push(s->p->arena, &s->found, v);
	return s->found.n < MOST;
}

/* What nobody knows of is taken to be as fast as the record's own. */
static double
predicted_of(const Variant *v)
{
	return v->predicted > 0 ? v->predicted : 1;
}

static int
compare_variants(const void *x, const void *y)
{
	const Variant *a = x, *b = y;
	double p = floor(20 * predicted_of(a) + 0.5), q = floor(20 * predicted_of(b) + 0.5);

	if (p != q)
		return p < q ? -1 : 1;
	if (a->changed != b->changed)
		return a->changed - b->changed;
	if (a->far != b->far)
		return a->far < b->far ? -1 : 1;
	return strcmp(a->kernel, b->kernel);
}

static bool
is_in(const Record *r, const char *kernel)
{
	for (uint32_t i = 0; i < r->variant.n; i++)
		if (!strcmp(r->variant.at[i].kernel, kernel))
			return true;
	return false;
}

static int
of_set(const Record *r, uint64_t which)
{
	int n = 0;

	for (uint32_t i = 0; i < r->variant.n; i++)
		n += r->variant.at[i].which == which;
	return n;
}

/* The same parameters within an eighth as one that is in already. */
static bool
too_like(const Record *r, const char *kernel)
{
	for (uint32_t i = 0; i < r->variant.n; i++) {
		const char *s = kernel, *other = r->variant.at[i].kernel, *name;
		bool like =
		        strcspn(kernel, "{") == strcspn(other, "{") && !strncmp(kernel, other, strcspn(kernel, "{"));
		size_t n;
		double x, y;

		while (like && next_param(&s, &name, &n, &x))
			like = find_param(other, name, n, &y) &&
			       (x == y || (x > 1 && fabs(x - y) <= 0.125 * fmax(x, y)));
		if (like)
			return true;
	}
	return false;
}

/* The first `most`, no set of parameters more than a quarter of them; then whatever is left. */
static void
take_first(Search *s, int most)
{
	if (s->found.n)
		qsort(s->found.at, s->found.n, sizeof *s->found.at, compare_variants);
	for (int turn = 0; turn < 2; turn++)
		for (uint32_t i = 0; i < s->found.n && (int)s->r->variant.n < most; i++) {
			const Variant *v = &s->found.at[i];
			bool like = !v->rival && too_like(s->r, v->kernel);
			bool room = turn || (of_set(s->r, v->which) < (most + 3) / 4 && !like);

			if (room && predicted_of(v) < (turn ? 1.5 : 1.8) && !is_in(s->r, v->kernel))
				vec_push(s->p->arena, &s->r->variant, *v);
		}
}

/* A kernel whose class a record's facts tell. */
static void
add_known(Search *s, const char *kernel, const char *facts)
{
	TuneFacts f = tuning_facts(facts ? facts : "");
	BitsClass bits = !strcmp(f.bits, "same") ? BITS_same : !strcmp(f.bits, "round") ? BITS_rounds : BITS_order;

	if (bits <= s->t->most)
		vec_push(s->p->arena, &s->r->variant, ((Variant){.kernel = kernel, .bits = bits, .predicted = NAN}));
}

/* The kernel that stands there without a tuning file, and those that the file has of other machines. */
static void
take_known(Search *s)
{
	const Record *r = s->r;

	const TuneRecord *here = s->p->job.tuning ? tuning_named(s->p->job.tuning, r->key) : NULL;

	if (r->own && strcmp(r->own, r->kernel) && !was_tried(s->t, r->key, r->own))
		add_known(s, r->own, here ? here->facts : "");
	for (uint32_t i = 0; s->p->job.tuning && i < tuning_count(s->p->job.tuning); i++) {
		const TuneRecord *x = tuning_at(s->p->job.tuning, i);
		size_t n = strlen(s->p->cx.target->name);

		if (x->kind != TUNE_KERNEL || strcmp(x->key + x->what, r->what) ||
		    strncmp(x->key, s->p->cx.target->name, n))
			continue;
		if (!strcmp(x->value, r->kernel) || is_in(r, x->value) || was_tried(s->t, r->key, x->value))
			continue;
		add_known(s, x->value, x->facts);
	}
}

/* --disable's word on variants of kernels. */
static bool
may_choose(void *cx, const char *variant)
{
	const PassCtx *p = cx;

	for (int i = 0; i < p->ndisabled; i++)
		if (!strcmp(p->disabled[i], variant))
			return false;
	return p->opt > 0;
}

/* Times of the record's own kernel and its candidates, which so come into their order; those before `known` keep their
 * places. No more than `most` stay, none that is predicted to take 1.8 times as long. */
static void
take_forecasts(Search *s, uint32_t known, int most)
{
	Record *r = s->r;
	uint32_t n = r->variant.n, kept = known;
	const char **kernel = arena_array(s->p->arena, const char *, n + 1);
	double *seconds = arena_array(s->p->arena, double, n + 1);
	const Target *target = s->p->cx.target;

	for (uint32_t i = 0; i <= n; i++)
		kernel[i] = i ? r->variant.at[i - 1].kernel : r->kernel;
	target->tuning.forecast(target, s->p->module, (Graph *)s->p->graph, s->group, s->cx, kernel, (int)n + 1,
	                        (int)s->t->o->jobs, seconds);
	if (!(seconds[0] > 0))
		return;
	r->forecast = seconds[0];
	for (uint32_t i = 0; i < n; i++)
		r->variant.at[i].predicted = seconds[i + 1] / seconds[0];
	if (n > known)
		qsort(r->variant.at + known, n - known, sizeof *r->variant.at, compare_variants);
	for (uint32_t i = known; i < n && (int)kept < most; i++)
		if (predicted_of(&r->variant.at[i]) < 1.8)
			r->variant.at[kept++] = r->variant.at[i];
	r->variant.n = kept;
}

/* *forecasts: of how many kernels more there may be one. */
static void
candidates_of(Tune *t, Program *p, Record *r, int group, int steps, int most, int *forecasts)
{
	const Target *target = p->cx.target;
	/* of a machine that is not here only --threads says how many it has: without it none is named */
	int threads = t->o->prepare && !t->o->threads ? 1 : t->threads;
	SelectCx cx = {.arch = p->cx.arch, .may = may_choose, .cx = &p->cx, .steps = steps, .threads = threads};
	Search s = {.t = t, .p = p, .r = r, .cx = &cx, .group = group};

	s.own = target->tuning.predict ? target->tuning.predict(target, p->graph, group, &cx, r->kernel) : NAN;
	take_known(&s);
	uint32_t known = r->variant.n, all = known;
	int pool = target->tuning.forecast && *forecasts > most ? 2 * most < *forecasts ? 2 * most : *forecasts : most;

	target->tuning.space(target, (Graph *)p->graph, group, &cx, found, &s);
	take_first(&s, pool);
	while (known < r->variant.n && r->variant.at[known].rival)
		known++; /* nobody predicts them */
	if (pool == most || r->variant.n == all)
		return;
	*forecasts -= (int)r->variant.n + 1;
	take_forecasts(&s, known, most);
}

typedef struct Asked { const char *kernel; BitsClass bits; bool found; } Asked;

static bool
is_asked(void *cx, const char *kernel, BitsClass bits)
{
	Asked *a = cx;

	if (!strcmp(kernel, a->kernel)) {
		a->bits = bits;
		a->found = true;
	}
	return !a->found;
}

BitsClass
program_class(const Program *p, const Record *r, const char *kernel)
{
	const TuneKeys *keys = tuning_keys(p->graph, p->arena, select_keeps(&p->cx));
	const Target *target = p->cx.target;
	SelectCx cx = {.arch = p->cx.arch, .may = may_choose, .cx = (void *)&p->cx, .steps = 2};
	Asked asked = {kernel, BITS_rounds, false};

	for (uint32_t k = 0; k < p->graph->group.n && target->tuning.space; k++)
		if (p->graph->group.at[k].kernel && record_of_group(p, keys, (int)k) == r) {
			target->tuning.space(target, (Graph *)p->graph, (int)k, &cx, is_asked, &asked);
			break;
		}
	return asked.bits;
}

/* ---------------------------------------------------------------- which records */
static bool
asked_for(const Tune *t, const Record *r)
{
	const TextList *g = &t->o->group;
	const char *op = arena_strndup(t->arena, r->what, strcspn(r->what, " "));

	for (int i = 0; i < g->n; i++)
		if (!fnmatch(g->at[i], op, 0) || !fnmatch(g->at[i], r->layer, 0) || layer_under(r->layer, g->at[i]))
			return true;
	return !g->n;
}

static bool
worth_it(const Tune *t, const Record *r)
{
	static const double least = 0.002;       /* of the step */

	if (!asked_for(t, r) || (r->us > 0 && r->share < least))
		return false;
	if (t->rounds < 2)
		return true;
	for (uint32_t i = 0; i < t->won.n; i++)
		if (!strcmp(t->won.at[i].key, r->key))
			return t->won.at[i].raced_last;
	return false;
}

/* Samples of a record in that time, a third less for controls; what a race takes beyond them is its last rung's. */
static int
affordable(const Tune *t, const Record *r, double race_ns)
{
	enum { LAST = 48, EACH = 4 };
	double samples = t->step > 0 ? race_ns / t->step * r->ngroup * 2 / 3 : 1e9;
	double n = (samples - LAST) / EACH;

	return n < 2 ? 2 : n > 1000 ? 1000 : (int)n;
}

/* Forecasts that a search may ask for: a kernel takes some half a second to compile. */
static int
forecasts_of(const Tune *t)
{
	double seconds = (double)t->budget / 1e9;

	return t->o->trials ? (int)fmin(1e6, 8.0 * (double)t->o->trials) : (int)fmin(1e6, seconds / 2);
}

typedef struct Place { Record *r; int group; } Place;

static int
compare_places(const void *x, const void *y)
{
	const Place *a = x, *b = y;

	return a->r->share != b->r->share ? a->r->share > b->r->share ? -1 : 1 : a->group - b->group;
}

void
tune_candidates(Tune *t, Program *p, int steps, double race_ns, int most)
{
	const TuneKeys *keys = tuning_keys(p->graph, p->arena, select_keeps(&p->cx));
	int forecasts = forecasts_of(t);
	VEC(Place) place = {0};

	if (!p->cx.target->tuning.space)
		return;
	for (uint32_t k = 0; k < p->graph->group.n; k++) {
		const char *kernel = p->graph->group.at[k].kernel;
		Record *r = kernel ? record_of_group(p, keys, (int)k) : NULL;

		if (r)
			vec_push(p->arena, &place, ((Place){r, (int)k}));
	}
	if (place.n)
		qsort(place.at, place.n, sizeof *place.at, compare_places);
	for (uint32_t i = 0; i < place.n; i++) {
		Record *r = place.at[i].r;
		int n = affordable(t, r, race_ns);

		if (!r->variant.n && worth_it(t, r))
			candidates_of(t, p, r, place.at[i].group, steps, n < most ? n : most, &forecasts);
	}
}
