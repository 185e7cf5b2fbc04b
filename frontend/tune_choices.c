/* tune_choices.c: the choices of passes that a search tries the other way: those between two ways of which one is
 * predicted to take 0.6 to 1.7 times as long as the other, at which costs are guesses; and those that no cost decides.
 *
 * In: the baseline and its choices.   Out: those of which the other way is faster, into won. Method: choices that are
 * far from each other are tried together, each with the layers of the kernels that hold its own; a program of a set
 * runs with the baseline's in turn, A B B A .., kernel by kernel (`bench --profile`). Rows that both programs have
 * cancel, and tell what the machine does meanwhile; what is left, in a choice's layers, is its doing. Wilcoxon's
 * interval of 95 % of six pairs must lie above 1, the gain be 1 % of these rows. Where updates run and what is
 * computed twice to save memory is nobody's layer: it is judged by the whole step, all updates together. Ways that
 * change bits are tried if that is allowed alone. With --costs bytes count in place of seconds. */
#include "tune.h"

#include <inttypes.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>

enum { SETS = 8, PAIRS = 6, WAYS = 4 };
static const double least_share = 0.005; /* of the step: kernels in whose layers an unpredicted choice is tried */

/* A row of `bench --profile`: same: as the other program has it. */
typedef struct Row { const char *layers; uint64_t what; double cost; bool same; } Row;
typedef struct Rows { Row *at; int n; } Rows;
/* A choice the other way, or other rates for all of them. where: layers of the kernels that hold its ops, ", " around
 * each; NULL: any; value, was: as kernels stand in the IR, value NULL: no record; back: no record is what it takes;
 * set: that it is in, 0: none yet; whole: 0, or the number of those that are judged together, by the whole step. */
typedef struct Turn { const char *key, *where, *value, *was; bool back; BitsClass bits; int set, whole; } Turn;
typedef VEC(Turn) Turns;

/* ---------------------------------------------------------------- which */
/* Do other ways of this rule leave the bits of results? */
static BitsClass
class_of(const Program *p, const char *rule)
{
	static const char *const orders[] = {"layout.choice ", "fuse.reduce ", "fuse.beside "};

	for (size_t i = 0; i < sizeof orders / sizeof *orders; i++)
		if (!strncmp(rule, orders[i], strlen(orders[i])))
			return BITS_order;
	if (!strncmp(rule, "reorder.sink ", 13))
		return BITS_same;
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

	return asked && here && class_of(p, d->what) <= t->most;
}

static bool
is_rule(const Decision *d, const char *rule)
{
	size_t n = strlen(rule);

	return !strncmp(d->what, rule, n) && d->what[n] == ' ';
}

static bool
is_predicted(const Decision *d)
{
	return d->ways == 2 && d->ratio >= 0.6 && d->ratio <= 1.7;
}

static bool
is_unpredicted(const Decision *d)
{
	return d->ways == 2 && !(d->ratio > 0) &&
	       (is_rule(d, "fuse.recompute") || is_rule(d, "fuse.reduce") || is_rule(d, "fuse.beside"));
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

static void
add_turn(Tune *t, const Program *p, Turns *turns, const Decision *d, int way, Turn x)
{
	x.key = arena_printf(t->arena, "%s %s %s %s", p->cx.target->name, p->cx.arch && *p->cx.arch ? p->cx.arch : "-",
	                     p->cx.machine ? p->cx.machine : "*", d->what);
	x.value = arena_printf(t->arena, "choice{take=%d}", way);
	x.was = arena_printf(t->arena, "choice{take=%d}", d->way);
	x.back = d->by && way == d->predicted;
	x.bits = class_of(p, d->what);
	vec_push(t->arena, turns, x);
}

/* Does a turn of this choice stand there already? Choices that are alike have one record. */
static bool
is_known(const Turns *turns, const Decision *d)
{
	bool known = false;

	for (uint32_t k = 0; k < turns->n; k++)
		known |= ends_in(turns->at[k].key, d->what);
	return known;
}

/* Part of the step that kernels in these layers take. */
static double
share_of(const Rows *rows, const char *where)
{
	double sum = 0, all = 0;

	for (int i = 0; i < rows->n; i++) {
		all += rows->at[i].cost;
		sum += meets(rows->at[i].layers, where) ? rows->at[i].cost : 0;
	}
	return all > 0 ? sum / all : 0;
}

/* Those that are judged by their layers' kernels. */
static void
find_turns(Tune *t, Program *p, const Rows *rows, Turns *turns, bool (*wanted)(const Decision *), double least)
{
	for (uint32_t i = 0; i < p->cx.choice.n; i++) {
		const Decision *d = &p->cx.choice.at[i];
		Buf b = {0};

		if (!wanted(d) || is_known(turns, d) || !is_open(t, p, d))
			continue;
		add_where(&b, rows, d->a ? d->a : "");
		for (int k = 0; k < d->nwith; k++)
			add_where(&b, rows, d->with[k] ? d->with[k] : "");
		const char *where = arena_printf(t->arena, "%s, ", b.at ? b.at : "");

		if (least <= 0 || share_of(rows, where) >= least)
			add_turn(t, p, turns, d, 1 - d->way, (Turn){.where = where});
		buf_free(&b);
	}
}

/* Those that are judged by the whole step: all updates that run early later, or the other way round; each other way of
 * what is computed twice, but no more than some of them. */
static void
find_whole(Tune *t, Program *p, Turns *turns)
{
	int whole = 1;

	for (uint32_t i = 0; i < p->cx.choice.n; i++) {
		const Decision *d = &p->cx.choice.at[i];

		if (is_known(turns, d) || !is_open(t, p, d))
			continue;
		if (is_rule(d, "reorder.sink"))
			add_turn(t, p, turns, d, 1 - d->way, (Turn){.whole = 1});
		for (int way = 0; is_rule(d, "recompute") && way < d->ways && way < WAYS; way++)
			if (way != d->way)
				add_turn(t, p, turns, d, way, (Turn){.whole = ++whole});
	}
}

/* Those of the first number that has not been tried. */
static int
take_whole(Turns *turns, int set)
{
	int n = 0, whole = 0;

	for (uint32_t i = 0; i < turns->n; i++) {
		Turn *x = &turns->at[i];

		if (x->set || !x->whole || (whole && x->whole != whole))
			continue;
		whole = x->whole;
		x->set = set;
		n++;
	}
	return n;
}

/* The next set: those that meet no other of it. */
static int
take_set(Turns *turns, int set)
{
	int n = 0;

	for (uint32_t i = 0; i < turns->n; i++) {
		Turn *x = &turns->at[i];
		bool free = !x->set && !x->whole;

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

static void
add_won(Tune *t, const Turn *x, const Final *f, double us, double share)
{
	double gain = 1 - 1 / f->ratio;

	vec_push(t->arena, &t->won,
	         ((Won){.key = x->key,
	                .kernel = x->value,
	                .was = x->was,
	                .choice = true,
	                .back = x->back,
	                .bits = x->bits,
	                .gain = gain,
	                .low = 1 - 1 / f->low,
	                .high = 1 - 1 / f->high,
	                .was_us = us,
	                .us = us * (1 - gain),
	                .error = (f->high - f->low) / 2 / f->ratio,
	                .share = share,
	                .n = PAIRS}));
}

/* A set that is one turn, by the whole step. Of several ways of one choice that are faster the fastest stays. */
static void
judge_whole(Tune *t, const Turns *turns, int set, Rows pair[2][PAIRS])
{
	double ratio[PAIRS], us = 0;
	Final f = {0};
	int n = 0;

	for (int i = 0; i < PAIRS; i++) {
		double sum[2] = {0};

		for (int k = 0; k < 2; k++)
			for (int r = 0; r < pair[k][i].n; r++)
				sum[k] += pair[k][i].at[r].cost;
		ratio[i] = sum[0] / sum[1];
		us += 1e6 * sum[0] / PAIRS;
	}
	tune_estimate(ratio, PAIRS, &f);
	if (!(f.low > 1) || !(f.ratio > 1.002))
		return;
	for (uint32_t i = 0; i < turns->n; i++)
		n += turns->at[i].set == set;
	for (uint32_t i = 0; i < turns->n; i++) {
		Won *had = NULL;

		for (uint32_t k = 0; turns->at[i].set == set && k < t->won.n; k++)
			had = strcmp(t->won.at[k].key, turns->at[i].key) ? had : &t->won.at[k];
		if (turns->at[i].set != set || (had && had->gain >= 1 - 1 / f.ratio))
			continue;
		add_won(t, &turns->at[i], &f, us / n, 1.0 / n);
		if (had)
			*had = t->won.at[--t->won.n];
	}
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
	add_won(t, x, &f, sum[0] * 1e6, sum[0] / all);
}

/* False: Ctrl-C, or a program that does not run. */
static bool
run_set(Tune *t, const Turns *turns, int set, bool whole)
{
	const char *file = tune_file(t, "trial.tune"), *path[2] = {tune_file(t, "base"), tune_file(t, "tuned")};
	Rows pair[2][PAIRS];
	int killed = 0;

	if (!write_turned(t, turns, set, file))
		return false;
	if (!tune_build(t, file, NULL, path[1], &killed))
		return killed && !tune_interrupted();
	for (int i = 0; i < PAIRS; i++) {
		if (t->costs && i) { /* bytes are always the same */
			pair[0][i] = pair[0][0];
			pair[1][i] = pair[1][0];
			continue;
		}
		for (int k = 0; k < 2; k++)
			if (!read_rows(t, path[(i + k) & 1], 0.5, &pair[(i + k) & 1][i]))
				return false;
		match_rows(&pair[0][i], &pair[1][i]);
		if (!whole && !(sum_other(&pair[0][i], NULL) + sum_other(&pair[1][i], NULL) > 0))
			return true;                         /* the same kernels */
	}
	if (whole)
		judge_whole(t, turns, set, pair);
	for (uint32_t i = 0; i < turns->n && !whole; i++)
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

/* Have the turns of a set layers of their own? */
static bool
turns_where(const Turns *turns, int set)
{
	for (uint32_t i = 0; i < turns->n; i++)
		if (turns->at[i].set == set)
			return !turns->at[i].whole;
	return false;
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
	if (turns.n && set_ns(t) < most && !run_set(t, &turns, 1, false))
		return !tune_interrupted();
	if (t->won.n > had)                          /* what the others are between is another now */
		return journal_choices(t, had);
	find_turns(t, base, &rows, &turns, is_predicted, 0);
	find_turns(t, base, &rows, &turns, is_unpredicted, least_share);
	find_whole(t, base, &turns);
	for (; set <= SETS && !tune_interrupted(); set++) {
		if ((double)tune_spent(t) - since + set_ns(t) > most)
			break;
		/* the last sets are for what concerns the whole step */
		int n = set <= SETS - 3 ? take_set(&turns, set) : 0;

		n = n ? n : take_whole(&turns, set);
		n = n ? n : take_set(&turns, set);
		if (!n || !run_set(t, &turns, set, !turns_where(&turns, set)))
			break;
		tried += n;
	}
	if (turns.n)
		tune_line(t, "choices", "%d of %u tried the other way, %u better", tried, turns.n, t->won.n - had);
	return journal_choices(t, had);
}
