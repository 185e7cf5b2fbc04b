/* rounds.c: which file of each --input and --output belongs to which round of infer.
 *
 * In: NAME=FILE of the command line, in order.   Out: for each name that occurs its files, one a round. A name that is
 * given again adds a file; a FILE with one * stands for all files of such names, in the order of their names, and in an
 * output for the same words that the * of the inputs stands for. An input of one file is read in every round. Refused:
 * numbers of files that do not match, stars that stand for different words in one round, one file for two outputs. */
#include "host.h"

#include <errno.h>
#include <glob.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

static void
given_add(RtGiven *g, char *file, char *star)
{
	if ((g->n & (g->n - 1)) == 0) {          /* full, as its room is a power of two */
		char **files = rt_alloc(sizeof *files * 2 * (size_t)(g->n + 1)),
		     **stars = rt_alloc(sizeof *stars * 2 * (size_t)(g->n + 1));

		for (int i = 0; i < g->n; i++) {
			files[i] = g->file[i];
			stars[i] = g->star[i];
		}
		free(g->file);
		free(g->star);
		g->file = files;
		g->star = stars;
	}
	g->file[g->n] = file;
	g->star[g->n++] = star;
}

/* The one of this name; list has room for another. */
static RtGiven *
given_of(RtGiven *list, int *n, const char *name)
{
	for (int i = 0; i < *n; i++)
		if (strcmp(list[i].name, name) == 0)
			return &list[i];
	list[*n].name = name;
	return &list[(*n)++];
}

/* A pattern: it has a *, and no file is called so. */
static const char *
given_star(const char *file)
{
	const char *star = strchr(file, '*');

	return star && access(file, F_OK) != 0 ? star : NULL;
}

/* All files that an input's pattern stands for. */
static bool
given_find(RtGiven *g, const char *file, const char *star, RtError *e)
{
	char *pattern = rt_alloc(2 * strlen(file) + 1), *out = pattern;
	glob_t found = {0};
	int bad;

	for (const char *c = file; *c; c++) {    /* but for the *, names are what they are */
		if (strchr("?[]\\", *c))
			*out++ = '\\';
		*out++ = *c;
	}
	bad = glob(pattern, 0, NULL, &found);
	free(pattern);
	if (bad == GLOB_NOMATCH || (!bad && found.gl_pathc == 0)) {
		globfree(&found);
		return rt_fail(e, "input %s: no file is called %s", g->name, file);
	}
	if (bad)
		return rt_fail(e, "input %s: %s: %s", g->name, file,
		               bad == GLOB_NOSPACE ? "out of memory" : strerror(errno));
	for (size_t i = 0; i < found.gl_pathc; i++) {
		const char *path = found.gl_pathv[i];
		int before = (int)(star - file), after = (int)strlen(star + 1);

		given_add(g, rt_printf("%s", path),
		          rt_printf("%.*s", (int)strlen(path) - before - after, path + before));
	}
	globfree(&found);
	return true;
}

static bool
one_star(const char *option, const RtNamed *named, const char *star, RtError *e)
{
	return !star || !strchr(star + 1, '*')
	       || rt_fail(e, "--%s %s=%s: a name has one * at most", option, named->name, named->file);
}

static bool
rounds_inputs(RtRounds *r, const RtOptions *o, RtError *e)
{
	const RtGiven *most = NULL;

	for (int i = 0; i < o->ninput; i++) {
		RtGiven *g = given_of(r->input, &r->ninput, o->input[i].name);
		const char *file = o->input[i].file, *star = given_star(file);

		if (!one_star("input", &o->input[i], star, e) || (star && !given_find(g, file, star, e)))
			return false;
		if (!star)
			given_add(g, rt_printf("%s", file), NULL);
		r->streams = r->streams || rt_is_stream(file);
	}
	for (int i = 0; i < r->ninput; i++) {
		const RtGiven *g = &r->input[i];

		for (int k = 0; k < g->n && g->n > 1; k++)
			if (rt_is_stream(g->file[k]))
				return rt_fail(e, "input %s: standard input may hold many arrays, and is given beside "
				                  "other files; give one or the other", g->name);
		if (!most || g->n > most->n)
			most = g;
	}
	if (!most || most->n == 1)
		return true;
	r->rounds = most->n;
	for (int i = 0; i < r->ninput; i++) {
		const RtGiven *g = &r->input[i];

		if (rt_is_stream(g->file[0]))
			return rt_fail(e, "input %s is standard input, which may hold many arrays, and input %s has %d "
			                  "files; give it one", g->name, most->name, most->n);
		for (int k = 0; k < g->n && g->n > 1; k++)
			if (g->star[k] && most->star[k] && strcmp(g->star[k], most->star[k]) != 0)
				return rt_fail(e, "inputs %s and %s do not go together: %s and %s have other words for "
				                  "the *", most->name, g->name, most->file[k], g->file[k]);
		if (g->n != 1 && g->n != most->n)
			return rt_fail(e, "input %s has %d files, input %s %d: give as many of both, or one for all",
			               most->name, most->n, g->name, g->n);
	}
	return true;
}

/* What the * of the inputs stands for in a round, NULL if none has one. */
static const char *
rounds_words(const RtRounds *r, int64_t round)
{
	for (int i = 0; i < r->ninput; i++)
		if (r->input[i].n == r->rounds && r->input[i].star[round])
			return r->input[i].star[round];
	return NULL;
}

static bool
rounds_output(const RtRounds *r, RtGiven *g, const RtNamed *named, RtError *e)
{
	const char *star = given_star(named->file);

	if (!star) {
		given_add(g, rt_printf("%s", named->file), NULL);
		return true;
	}
	if (!one_star("output", named, star, e))
		return false;
	for (int64_t k = 0; k < r->rounds; k++) {
		const char *words = rounds_words(r, k);

		if (!words)
			return rt_fail(e, "--output %s=%s: no input has a * that says what it stands for%s%s",
			               named->name, named->file, k ? " beside " : "", k ? r->input[0].file[k] : "");
		given_add(g, rt_printf("%.*s%s%s", (int)(star - named->file), named->file, words, star + 1), NULL);
	}
	return true;
}

typedef struct Target { char *real; const char *file, *name; } Target;

static int
target_order(const void *a, const void *b)
{
	return strcmp(((const Target *)a)->real, ((const Target *)b)->real);
}

/* Each file can be written, and is written once. */
static bool
rounds_files(const RtRounds *r, RtError *e)
{
	size_t room = 0;
	int n = 0;
	bool good = true;
	Target *t;

	for (int i = 0; i < r->noutput; i++)
		room += (size_t)r->output[i].n;
	t = rt_alloc(sizeof *t * room);
	for (int i = 0; i < r->noutput; i++)
		for (int k = 0; good && k < r->output[i].n; k++) {
			const char *file = r->output[i].file[k];

			if (rt_is_stream(file))
				continue;
			good = rt_out_try(file, &t[n].real, e)
			       || rt_context(e, "--output %s", r->output[i].name);
			t[n].file = file;
			t[n].name = r->output[i].name;
			n += good && t[n].real;      /* pipes and devices take many */
		}
	qsort(t, (size_t)n, sizeof *t, target_order);
	for (int i = 1; good && i < n; i++)
		if (strcmp(t[i - 1].real, t[i].real) == 0)
			good = strcmp(t[i - 1].name, t[i].name) == 0
			               ? rt_fail(e, "output %s is to be written to %s twice", t[i].name, t[i].file)
			               : rt_fail(e, "outputs %s and %s are both to be written to %s", t[i - 1].name,
			                         t[i].name, t[i].file);
	for (int i = 0; i < n; i++)
		free(t[i].real);
	free(t);
	return good;
}

bool
rt_rounds(RtRounds *r, const RtOptions *o, RtError *e)
{
	*r = (RtRounds){.rounds = 1};
	r->input = rt_alloc(sizeof *r->input * (size_t)o->ninput);
	r->output = rt_alloc(sizeof *r->output * (size_t)o->noutput);
	if (!rounds_inputs(r, o, e))
		return false;
	for (int i = 0; i < o->noutput; i++)
		if (!rounds_output(r, given_of(r->output, &r->noutput, o->output[i].name), &o->output[i], e))
			return false;
	for (int i = 0; i < r->noutput; i++) {
		const RtGiven *g = &r->output[i];
		const char *words = rounds_words(r, 0);

		if (g->n == r->rounds || (g->n == 1 && rt_is_stream(g->file[0])))
			continue;
		if (r->rounds == 1)
			return rt_fail(e, "output %s has %d files, and each input one", g->name, g->n);
		return rt_fail(e, "output %s has %d file%s, the inputs %lld: give one for each%s, or %s=- for all",
		               g->name, g->n, g->n == 1 ? "" : "s", (long long)r->rounds,
		               words ? ", or a name with a *" : " in their order", g->name);
	}
	return rounds_files(r, e);
}

static void
given_free(RtGiven *list, int n)
{
	for (int i = 0; i < n; i++) {
		for (int k = 0; k < list[i].n; k++) {
			free(list[i].file[k]);
			free(list[i].star[k]);
		}
		free(list[i].file);
		free(list[i].star);
	}
	free(list);
}

void
rt_rounds_free(RtRounds *r)
{
	given_free(r->input, r->ninput);
	given_free(r->output, r->noutput);
	*r = (RtRounds){0};
}
