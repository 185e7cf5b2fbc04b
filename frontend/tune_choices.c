/* tune_choices.c: the choices of passes that a search tries the other way: those between two ways of which one is
 * predicted to take 0.6 to 1.7 times as long as the other, at which costs are guesses.
 *
 * In: the baseline and its choices.   Out: those of which the other way is faster, into won. Method: choices that are
 * far from each other are turned together, each with the layers of the kernels that hold its own; a program of a set
 * runs with the baseline's in turn, A B B A .., kernel by kernel (`bench --profile`). Rows that both programs have
 * cancel, and tell what the machine does meanwhile; what is left, in a choice's layers, is its doing. Wilcoxon's
 * interval of 95 % of six pairs must lie above 1, the gain be 1 % of these rows. Ways that change bits are tried if
 * that is allowed alone. With --costs bytes count in place of seconds. */
#include "tune.h"

#include <inttypes.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>

enum { SETS = 8, PAIRS = 6 };

/* A row of `bench --profile`: same: as the other program has it. */
typedef struct Row { const char *layers; uint64_t what; double cost; bool same; } Row;
typedef struct Rows { Row *at; int n; } Rows;
/* A choice the other way, or other rates for all of them. where: layers of the kernels that hold its ops, ", " around
 * each; NULL: any; value, was: as kernels stand in the IR, value NULL: no record; back: no record is what it takes;
 * set: that it is in, 0: none yet. */
typedef struct Turn { const char *key, *where, *value, *was; bool back; int set; } Turn;
typedef VEC(Turn) Turns;

/* ---------------------------------------------------------------- which */
/* Do other ways of this rule leave the bits of results? */
static BitsClass
class_of(const Program *p, const char *rule)
{
	if (!strncmp(rule, "layout.choice ", 14))
		return BITS_order;
	return precision_of(p->module, p->cx.target, p->cx.arch).narrow == DT_none ? BITS_same : BITS_rounds;
}

static bool
is_open(const Tune *t, const Program *p, const Decision *d)
{
	const TextList *g = &t->o->group;
	bool asked = !g->n;

	for (int i = 0; i < g->n; i++)
		asked |= d->a && layer_under(d->a, g->at[i]);
	/* types of evaluation and inference have an axis that is marked */
	bool forward = strstr(d->what, "[N<=") || strstr(d->what, ",N<=");
	bool here = forward == (strcmp(t->graph, "train") != 0);

	return asked && here && d->ways == 2 && d->ratio >= 0.6 && d->ratio <= 1.7 && class_of(p, d->what) <= t->most;
}

/* Appends the layers of p's kernels in which a layer of the list occurs. */
static void
add_where(Buf *b, const Rows *rows, const char *layer)
{
	for (int i = 0; i < rows->n && *layer; i++) {
		size_t n = strlen(layer);

		for (const char *at = rows->at[i].layers; (at = strstr(at, layer)); at++)
			if ((at == rows->at[i].layers || at[-1] == ' ') && (!at[n] || at[n] == ',')) {
				buf_printf(b, ", %s", rows->at[i].layers);
				break;
			}
	}
}

static bool
ends_in(const char *s, const char *end)
{
	size_t n = strlen(s), m = strlen(end);

	return n >= m && !strcmp(s + n - m, end);
}

static void
find_turns(Tune *t, Program *p, const Rows *rows, Turns *turns)
{
	for (uint32_t i = 0; i < p->cx.choice.n; i++) {
		const Decision *d = &p->cx.choice.at[i];
		bool known = false;
		Buf where = {0};

		for (uint32_t k = 0; k < turns->n; k++)
			known |= ends_in(turns->at[k].key, d->what);
		if (known || !is_open(t, p, d))
			continue;
		add_where(&where, rows, d->a ? d->a : "");
		for (int k = 0; k < d->nwith; k++)
			add_where(&where, rows, d->with[k] ? d->with[k] : "");
		const char *key = arena_printf(t->arena, "%s %s %s %s", p->cx.target->name,
			p->cx.arch && *p->cx.arch ? p->cx.arch : "-", p->cx.machine ? p->cx.machine : "*", d->what);

		vec_push(t->arena, turns,
		         ((Turn){.key = key,
		                 .value = arena_printf(t->arena, "choice{take=%d}", 1 - d->way),
		                 .was = arena_printf(t->arena, "choice{take=%d}", d->way),
		                 .back = d->by && 1 - d->way == d->predicted,
		                 .where = arena_printf(t->arena, "%s, ", where.at ? where.at : "")}));
		buf_free(&where);
	}
}

/* Does a layer of `layers` stand in `where`? */
static bool
meets(const char *layers, const char *where)
{
	for (const char *at = layers; *at; at += strspn(at, ", ")) {
		size_t n = strcspn(at, ",");

		for (const char *w = where; n && (w = strstr(w, ", ")); w += 2)
			if (!strncmp(w + 2, at, n) && w[2 + n] == ',')
				return true;
		at += n;
	}
	return false;
}

/* The next set: those that meet no other of it. */
static int
take_set(Turns *turns, int set)
{
	int n = 0;

	for (uint32_t i = 0; i < turns->n; i++) {
		Turn *x = &turns->at[i];
		bool free = !x->set;

		for (uint32_t k = 0; k < i && free; k++)
			free = turns->at[k].set != set || !meets(x->where, turns->at[k].where);
		if (free) {
			x->set = set;
			n++;
		}
	}
	return n;
}

/* ---------------------------------------------------------------- profiles */
static bool
read_rows(Tune *t, const char *program, double seconds, Rows *rows)
{
	double step = t->step * 1e-9;
	int steps = t->costs || step > seconds || !(step > 0) ? 1 : (int)(seconds / step);
	const char *argv[TUNE_ARGS];
	char why[128];
	JsonDoc *doc = NULL;
	Buf out = {0};
	int n;

	tune_bench(t, program, argv, &n);
	argv[n++] = "--warmup=1";
	argv[n++] = arena_printf(t->arena, "--steps=%d", steps);
	argv[n++] = "--repeat=1";
	argv[n++] = arena_printf(t->arena, "--profile=%s", tune_file(t, "trace.json"));
	argv[n] = NULL;
	int status = tune_run(argv, false, &out, NULL, NULL);
	const Json *o = status ? NULL : rt_json_parse(out.at ? out.at : "", out.n, &doc, why, sizeof why),
	           *list = rt_json_get(o, "kernels");

	*rows = (Rows){arena_array(t->arena, Row, list ? list->n : 0), 0};
	for (const Json *k = list ? list->child : NULL; k; k = k->next) {
		const char *layers = rt_json_str(k, "layers", ""), *dot = strrchr(rt_json_str(k, "name", ""), '.');
		double bytes = rt_json_num(k, "bytes", 0), flops = rt_json_num(k, "gflop", 0);
		uint64_t h = hash_bytes(HASH_START, layers, strlen(layers));

		h = hash_bytes(hash_bytes(h, &bytes, sizeof bytes), &flops, sizeof flops);
		h = dot ? hash_bytes(h, dot, strlen(dot)) : h;
		rows->at[rows->n++] = (Row){.layers = arena_strdup(t->arena, layers), .what = h,
			.cost = t->costs ? bytes + 1 : rt_json_num(k, "seconds", 0)};
	}
	rt_json_free(doc);
	buf_free(&out);
	return rows->n > 0;
}

/* Marks rows that the other program has, too. */
static void
match_rows(Rows *a, Rows *b)
{
	for (int i = 0; i < a->n; i++)
		for (int k = 0; k < b->n && !a->at[i].same; k++)
			if (!b->at[k].same && a->at[i].what == b->at[k].what)
				a->at[i].same = b->at[k].same = true;
}

/* What differs in these layers, NULL: anywhere. */
static double
sum_other(const Rows *r, const char *where)
{
	double sum = 0;

	for (int i = 0; i < r->n; i++)
		if (!r->at[i].same && (!where || meets(r->at[i].layers, where)))
			sum += r->at[i].cost;
	return sum;
}

static double
sum_same(const Rows *r)
{
	double sum = 0;

	for (int i = 0; i < r->n; i++)
		sum += r->at[i].same ? r->at[i].cost : 0;
	return sum;
}

/* ---------------------------------------------------------------- a set */
static bool
write_turned(Tune *t, const Turns *turns, int set, const char *path)
{
	VEC(const char *) line = {0}, drop = {0};
	Buf out = {0};

	for (uint32_t i = 0; i < turns->n; i++) {
		const Turn *x = &turns->at[i];

		if (x->set != set)
			continue;
		if (x->back)
			vec_push(t->arena, &drop, x->key);
		else
			vec_push(t->arena, &line, (const char *)arena_printf(t->arena, "%s : %s", x->key,
				tune_value(t, NULL, x->value)));
	}
	TuneEdit e = {.line = line.at, .nline = line.n, .drop = drop.at, .ndrop = drop.n};

	tuning_edit(&out, t->arena, t->base.text, t->base.bytes, NULL, 0, &e);
	bool good = file_write(path, out.at, out.n);

	buf_free(&out);
	return good;
}

/* Of the pairs: rows of both programs that differ there, by what the others took. */
static void
judge_turn(Tune *t, const Turn *x, Rows pair[2][PAIRS])
{
	double ratio[PAIRS], sum[2] = {0}, all = 0;
	Final f = {0};

	for (int i = 0; i < PAIRS; i++) {
		double a = sum_other(&pair[0][i], x->where), b = sum_other(&pair[1][i], x->where);
		double state = sum_same(&pair[1][i]) / sum_same(&pair[0][i]);

		if (!(a > 0) || !(b > 0) || !(state > 0))
			return;                              /* it has changed nothing that can be told */
		ratio[i] = a / b * state;
		sum[0] += a / PAIRS;
		sum[1] += b / PAIRS;
		for (int k = 0; k < pair[0][i].n; k++)
			all += pair[0][i].at[k].cost / PAIRS;
	}
	tune_estimate(ratio, PAIRS, &f);
	if (!(f.low > 1) || !(f.ratio > 1.01))
		return;
	double gain = 1 - 1 / f.ratio;

	vec_push(t->arena, &t->won,
	         ((Won){.key = x->key,
	                .kernel = x->value,
	                .was = x->was,
	                .choice = true,
	                .back = x->back,
	                .gain = gain,
	                .low = 1 - 1 / f.low,
	                .high = 1 - 1 / f.high,
	                .was_us = sum[0] * 1e6,
	                .us = sum[0] * 1e6 * (1 - gain),
	                .error = (f.high - f.low) / 2 / f.ratio,
	                .share = sum[0] / all,
	                .n = PAIRS}));
}

/* False: Ctrl-C, or a program that does not run. */
static bool
run_set(Tune *t, const Turns *turns, int set)
{
	const char *file = tune_file(t, "trial.tune"), *path[2] = {tune_file(t, "base"), tune_file(t, "tuned")};
	Rows pair[2][PAIRS];
	int killed = 0;

	if (!write_turned(t, turns, set, file))
		return false;
	if (!tune_build(t, file, NULL, path[1], &killed))
		return killed && !tune_interrupted();
	for (int i = 0; i < PAIRS; i++) {
		for (int k = 0; k < 2; k++)
			if (!read_rows(t, path[(i + k) & 1], 0.5, &pair[(i + k) & 1][i]))
				return false;
		match_rows(&pair[0][i], &pair[1][i]);
		if (!(sum_other(&pair[0][i], NULL) + sum_other(&pair[1][i], NULL) > 0))
			return true;                         /* the same kernels */
	}
	for (uint32_t i = 0; i < turns->n; i++)
		if (turns->at[i].set == set)
			judge_turn(t, &turns->at[i], pair);
	return true;
}

/* ---------------------------------------------------------------- rates */
/* The target's rates where a record says others; what this machine is measured to reach. One is tried, in a set of its
 * own, before the choices that go by it. */
static void
find_rates(Tune *t, Program *p, Turns *turns)
{
	const Target *target = p->cx.target;
	Rates own = target_rates(target, p->cx.arch), now = pass_rates(&p->cx);
	const char *key = arena_printf(t->arena, "%s %s %s rates", target->name,
		p->cx.arch && *p->cx.arch ? p->cx.arch : "-", p->cx.machine ? p->cx.machine : "*");
	bool here = p->job.tuning && tuning_named(p->job.tuning, key);
	const char *was =
	        arena_printf(t->arena, "rates{memory=%.3g,map=%.3g,start=%.3g}", now.bytes, now.flops, now.start);
	double bytes = t->memory, flops = own.products > 0 ? own.flops * t->peak / own.products : 0;

	if (here)
		vec_push(t->arena, turns,
		         ((Turn){.key = key,
		                 .was = was,
		                 .back = true,
		                 .set = 1,
		                 .value = arena_printf(t->arena, "rates{memory=%.3g,map=%.3g,start=%.3g}", own.bytes,
		                                       own.flops, own.start)}));
	else if (!t->costs && bytes > 0 && flops > 0 &&
	         fabs(log(bytes / now.bytes)) + fabs(log(flops / now.flops)) > 0.3)
		vec_push(t->arena, turns,
		         ((Turn){.key = key,
		                 .was = was,
		                 .set = 1,
		                 .value = arena_printf(t->arena, "rates{memory=%.3g,map=%.3g,start=%.3g}", bytes, flops,
		                                       now.start)}));
}

/* What a set takes, nanoseconds: a program, twelve runs. */
static double
set_ns(const Tune *t)
{
	double step = fmax(t->step, 0.1e9);

	return t->costs ? 0 : t->build * 1e9 + 2 * PAIRS * (2 * step + 1e9);
}

bool
tune_choices(Tune *t, Program *base)
{
	double most = 0.25 * (double)t->budget, since = (double)tune_spent(t);
	Turns turns = {0};
	Rows rows;
	int tried = 0, set = 1;
	uint32_t had = t->won.n;

	if (!read_rows(t, tune_file(t, "base"), 0, &rows))
		return !tune_interrupted();
	find_rates(t, base, &turns);
	if (turns.n)
		set = 2;
	if (turns.n && set_ns(t) < most && !run_set(t, &turns, 1))
		return !tune_interrupted();
	if (t->won.n > had)                          /* what the others are between is another now */
		return journal_choices(t, had);
	find_turns(t, base, &rows, &turns);
	for (; set <= SETS && !tune_interrupted(); set++) {
		if ((double)tune_spent(t) - since + set_ns(t) > most)
			break;
		int n = take_set(&turns, set);

		if (!n || !run_set(t, &turns, set))
			break;
		tried += n;
	}
	if (turns.n)
		tune_line(t, "choices", "%d of %u tried the other way, %u better", tried, turns.n, t->won.n - had);
	return journal_choices(t, had);
}
