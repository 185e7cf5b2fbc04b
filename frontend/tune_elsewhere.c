/* tune_elsewhere.c: races on a machine that is not here: a racing program for it, and what that has found there.
 *
 * In: a model, all architectures that are named; then the journal that the program's command race has left.   Out: the
 * program, with the kernels of each architecture beside its own; records, without a lock, as nobody here knows what
 * states they lead to: `mantou tune --verify` makes one there. A record's architecture says which of the programs it is
 * of. */
#define _GNU_SOURCE
#include "tune.h"

#include <errno.h>
#include <stdlib.h>
#include <string.h>

/* Options that the next command wants, too: "" or " --target cuda --arch sm_80". */
static const char *
shaping_words(Tune *t)
{
	const Options *o = t->o;
	Buf b = {0};

	if (o->target)
		buf_printf(&b, " --target %s", o->target);
	for (int i = 0; i < o->arch.n; i++)
		buf_printf(&b, "%s%s", i ? "," : " --arch ", o->arch.at[i]);
	if (o->machine)
		buf_printf(&b, " --machine '%s'", o->machine);
	if (strcmp(t->graph, "train"))
		buf_printf(&b, " --graph %s", t->graph);
	const char *words = arena_strdup(t->arena, b.at ? b.at : "");

	buf_free(&b);
	return words;
}

/* Appends the candidates of architecture k. */
static int
add_candidates(Tune *t, Program *p, Buf *text, int *variants, int *records)
{
	enum { EACH = 8 };
	int v, r, archs = p->job.narch;

	t->rounds = 1;
	tune_candidates(t, p, 2, 1e18, EACH);
	if (t->o->trials)
		race_cut(p, ((int)t->o->trials + archs - 1 - t->arch) / archs);
	buf_printf(text, "%s", race_file(t, p, &v, &r));
	*variants += v;
	*records += r;
	return EXIT_GOOD;
}

int
tune_prepare(Tune *t, Program *base)
{
	int variants = 0, records = 0, status = EXIT_GOOD;
	const Options *o = t->o;
	Buf lines = {0};

	for (t->arch = 0; t->arch < base->job.narch && status == EXIT_GOOD; t->arch++) {
		Program other = {0};

		if (t->arch)
			status = tune_program(t, base->job.o->tuning, &other);
		if (status == EXIT_GOOD)
			status = add_candidates(t, t->arch ? &other : base, &lines, &variants, &records);
		program_free(&other);
	}
	t->arch = 0;
	char *text = arena_strdup(t->arena, lines.at ? lines.at : "");

	buf_free(&lines);
	if (status != EXIT_GOOD || !race_build(t, base->job.o->tuning, text))
		return EXIT_FAILED;
	size_t n;
	char *bytes = file_read(tune_file(t, "racing"), &n);
	bool good = bytes && file_write_executable(o->prepare, bytes, n);

	free(bytes);
	if (!good)
		return failure("cannot write '%s': %s", o->prepare, strerror(errno));
	tune_line(t, "prepared",
	          "%s: %d variants of %d kernels; there: %s race --graph %s --budget 8m -o RESULTS; here then: mantou "
	          "tune %s%s --results RESULTS",
	          o->prepare, variants, records, o->prepare, t->graph, o->operand[0], shaping_words(t));
	return EXIT_GOOD;
}

/* Of what won, that which is a kernel of p may be kept. */
static void
keep_known(Tune *t, const Program *p)
{
	for (uint32_t i = 0; i < t->won.n; i++) {
		Won *w = &t->won.at[i];
		const Record *r = program_record(p, w->key);

		if (!r)
			continue;
		w->bits = program_class(p, r, w->kernel);
		w->kept = !strcmp(r->kernel, w->was) && w->bits <= t->most;
	}
}

/* What a race elsewhere has found, for each architecture; base: the first, which gets the records of all. */
int
tune_results(Tune *t, Program *base, Final *f)
{
	size_t n;
	char *text = file_read(t->o->results, &n);
	int known = 0, status = EXIT_GOOD;

	if (!text)
		return failure("cannot read '%s': %s", t->o->results, strerror(errno));
	const char *end = memchr(text, '\n', n);
	bool timed = !end || !memmem(text, (size_t)(end - text), "\"clock\": \"none\"", 15);
	bool any = timed && journal_take(t, "", text, n);

	free(text);
	if (!timed)
		return failure("'%s' has no times: that race only compared results, on a device that is simulated or "
		               "because of --checks", t->o->results);
	if (!any)
		return failure("'%s' has no results: it is no journal of a race that has ended", t->o->results);
	for (t->arch = 0; t->arch < base->job.narch && status == EXIT_GOOD; t->arch++) {
		Program other = {0}, *p = t->arch ? &other : base;

		if (t->arch)
			status = tune_program(t, base->job.o->tuning, p);
		if (status == EXIT_GOOD)
			status = program_own(t, p);
		if (status == EXIT_GOOD)
			keep_known(t, p);
		for (uint32_t i = 0; status == EXIT_GOOD && t->arch && i < p->record.n; i++) {
			const Record *r = &p->record.at[i];

			vec_push(base->arena, &base->record,
			         ((Record){.key = arena_strdup(base->arena, r->key),
			                   .what = "",
			                   .layer = "",
			                   .kernel = arena_strdup(base->arena, r->kernel),
			                   .own = r->own ? arena_strdup(base->arena, r->own) : NULL}));
		}
		program_free(&other);
	}
	t->arch = 0;
	for (uint32_t i = 0; i < t->won.n; i++)
		known += t->won.at[i].kept;
	if (known < (int)t->won.n)
		tune_line(t, "results",
		          "%d of %d kernels that won are left out: the program has them not, or others in "
		          "their place, or they need --allow-reassociation",
		          (int)t->won.n - known, (int)t->won.n);
	f->kept = known > 0;
	return status;
}
