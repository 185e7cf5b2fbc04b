/* cmd_tune.c: `tune`: tuning files written.
 *
 * In: two tuning files (--merge).   Out: one, by the rules of passes/tuning_write.c, whole or not at all. It is held
 * (FILE.lock) from the first look at it to its end, so that of two who write it the second is told who does, and
 * ends with status 1. Refuses: a file that cannot be read, no name for the result. */
#include "cmd.h"

#include <errno.h>
#include <stdlib.h>
#include <string.h>

/* A file whose bytes live in a. What is wrong with its records is said, as build says it. */
static bool
read_tuning(Arena *a, const char *path, TuneText *t)
{
	size_t bytes;
	char *text = file_read(path, &bytes);
	Diags d;

	if (!text) {
		failure("cannot read the tuning file '%s': %s", path, strerror(errno));
		return false;
	}
	*t = (TuneText){path, arena_strndup(a, text, bytes), bytes};
	free(text);
	diags_init(&d, a, stderr);
	d.colour = colour_on(stderr);
	tuning_read(a, &d, path, t->text, t->bytes);
	return true;
}

static int
merge(Arena *a, const Options *o, Buf *out)
{
	TuneText x, y;
	TuneMerge m;

	if (!read_tuning(a, o->operand[0], &x) || !read_tuning(a, o->operand[1], &y))
		return EXIT_FAILED;
	tuning_merge(out, a, &x, &y, &m);
	for (uint32_t i = 0; i < m.warning.n; i++)
		fprintf(stderr, "mantou: warning: %s\n", m.warning.at[i]);
	message("%d records of %s are new, %d are better; %d lock%s left out", m.added, y.name, m.replaced, m.locks,
		m.locks == 1 ? "" : "s");
	return EXIT_GOOD;
}

int
cmd_tune(Arena *a, const Options *o)
{
	Buf out = {0};
	char *holder;
	int status;

	if (!o->output)
		return usage_error("tune", "--merge needs the name of the result: -o FILE");
	if (!strcmp(o->output, "-") || file_special(o->output)) {
		status = merge(a, o, &out);
		if (status == EXIT_GOOD && !strcmp(o->output, "-"))
			fwrite(out.at, 1, out.n, stdout);
		else if (status == EXIT_GOOD && !file_write(o->output, out.at, out.n))
			status = failure("cannot write '%s': %s", o->output, strerror(errno));
		buf_free(&out);
		return status;
	}
	FileHold *hold = file_hold(o->output, arena_printf(a, "mantou tune --merge %s %s", o->operand[0], o->operand[1]),
		&holder);

	if (!hold && holder)
		status = failure("'%s' is being written by %s", o->output, holder);
	else if (!hold)
		status = failure("cannot write '%s': %s", o->output, strerror(errno));
	else
		status = merge(a, o, &out);
	if (status == EXIT_GOOD && !file_write(o->output, out.at, out.n))
		status = failure("cannot write '%s': %s", o->output, strerror(errno));
	free(holder);
	file_release(hold);
	buf_free(&out);
	return status;
}
