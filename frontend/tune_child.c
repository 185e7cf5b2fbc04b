/* tune_child.c: programs built and run by `mantou tune`: each in a process of its own.
 *
 * In: a tuning file, a race file, a command line.   Out: an executable; what a program printed, its status. Building
 * happens in a copy of this process, so that what ends the compiler ends the copy. Ctrl-C: the program that runs gets
 * the signal, ends its step and prints what it has; whoever called it sees tune_interrupted(). A second one ends all
 * at once, and temporary files go. */
#define _GNU_SOURCE
#include "tune.h"
#include "../runtime/race/race.h"

#include <errno.h>
#include <fcntl.h>
#include <poll.h>
#include <signal.h>
#include <stdlib.h>
#include <string.h>
#include <sys/prctl.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

/* ---------------------------------------------------------------- the clock */
int64_t
tune_now(void)
{
	struct timespec t;

	clock_gettime(CLOCK_MONOTONIC, &t);
	return (int64_t)t.tv_sec * 1000000000 + t.tv_nsec;
}

int64_t
tune_spent(const Tune *t)
{
	return t->spent + (t->costs ? 0 : tune_now() - t->begun);
}

const char *
tune_file(const Tune *t, const char *name)
{
	return arena_printf(t->arena, "%s/%s", t->folder, name);
}

/* ---------------------------------------------------------------- signals */
static volatile sig_atomic_t interrupted, forwards;
static volatile int64_t interrupted_at;
static volatile pid_t child;
static const int caught[] = {SIGINT, SIGTERM, SIGHUP};

static void
interrupt(int number)
{
	pid_t who = child;

	if (!interrupted++) {
		interrupted_at = tune_now();
		if (who > 0 && forwards)
			kill(-who, number);
		return;
	}
	if (who > 0)
		kill(-who, SIGKILL);
	temp_end(number);
}

void
tune_catch(void)
{
	struct sigaction a = {.sa_handler = interrupt}, old;

	interrupted = 0;
	/* shells let what they start in the background ignore SIGINT; `kill -INT` means it all the same */
	for (size_t i = 0; i < sizeof caught / sizeof *caught; i++)
		if (caught[i] != SIGHUP || (!sigaction(caught[i], NULL, &old) && old.sa_handler != SIG_IGN))
			sigaction(caught[i], &a, NULL);
}

bool
tune_interrupted(void)
{
	return interrupted != 0;
}

int64_t
tune_deadline(void)
{
	return interrupted ? interrupted_at + (int64_t)20 * 1000000000 : INT64_MAX;
}

/* In the child: a group of its own, so that a terminal's Ctrl-C comes through us alone; it ends if we do. */
static void
become_child(pid_t parent)
{
	setpgid(0, 0);
	prctl(PR_SET_PDEATHSIG, SIGTERM);
	if (getppid() != parent) /* it ended before that was asked for */
		_exit(128 + SIGTERM);
	for (size_t i = 0; i < sizeof caught / sizeof *caught; i++)
		signal(caught[i], SIG_DFL);
}

/* forward: Ctrl-C is for it, too. */
static pid_t
start(bool forward)
{
	int was = interrupted;
	pid_t parent = getpid();

	fflush(NULL);
	forwards = forward;
	pid_t pid = fork();

	if (!pid) {
		become_child(parent);
	} else if (pid > 0) {
		setpgid(pid, pid);
		child = pid;
		if (forward && interrupted != was)
			kill(-pid, SIGINT);
	}
	return pid;
}

/* Its status as a shell has it. */
static int
wait_for(pid_t pid)
{
	int status;

	while (waitpid(pid, &status, 0) < 0)
		if (errno != EINTR)
			return -1;
	child = 0;
	return WIFSIGNALED(status) ? 128 + WTERMSIG(status) : WEXITSTATUS(status);
}

/* ---------------------------------------------------------------- building */
/* --costs: a kernel of which the compiler dies is among those that race. */
static void
die_if_asked(const Tune *t, const char *race)
{
	size_t n;
	char *text = t->costs ? file_read(race, &n) : NULL, *save = NULL;

	for (char *line = text ? strtok_r(text, "\n", &save) : NULL; line; line = strtok_r(NULL, "\n", &save)) {
		char *kernel = strstr(line, " : "), *end = kernel ? strstr(kernel, " ; ") : NULL;

		if (end)
			*end = 0;
		if (kernel && race_costs_fault(t->costs, kernel + 3, 0) == RACE_COMPILER)
			raise(SIGKILL);
	}
	free(text);
}

bool
tune_build(Tune *t, const char *tuning, const char *race, const char *output, int *killed)
{
	const char *said = tune_file(t, "said");
	int64_t since = tune_now();
	pid_t pid = start(race != NULL);

	if (!pid) {
		Options o = *t->o;
		int fd = open(said, O_WRONLY | O_CREAT | O_TRUNC, 0666), null = open("/dev/null", O_WRONLY);

		if (fd < 0 || null < 0 || dup2(fd, 2) < 0 || dup2(null, 1) < 0)
			_exit(EXIT_FAILED);
		if (race)
			die_if_asked(t, race);
		o.tuning = tuning;
		o.race = race;
		o.output = output;
		o.graph = NULL;
		int status = cmd_build(arena_new(), &o);

		fflush(NULL);
		_exit(status);
	}
	if (pid < 0) {
		failure("cannot start a process: %s", strerror(errno));
		return false;
	}
	int status = wait_for(pid);

	t->phase[1] += tune_now() - since;
	t->build = race && t->build > 0 ? t->build : (double)(tune_now() - since) * 1e-9;
	if (killed)
		*killed = status > 128 ? status - 128 : 0;
	if (status == EXIT_GOOD || (killed && *killed) || (race && tune_interrupted()))
		return status == EXIT_GOOD;
	size_t n;
	char *text = file_read(said, &n);

	if (status > 128)
		failure("the compiler was ended by signal %d", status - 128);
	fputs(text ? text : "", stderr);
	free(text);
	return false;
}

/* ---------------------------------------------------------------- running */
void
tune_bench(const Tune *t, const char *program, const char *argv[TUNE_ARGS], int *n)
{
	const char *threads = arena_printf(t->arena, "--threads=%d", t->threads);
	const char *own[] = {program, "bench", "--mode", t->graph, threads, "--json", "--quiet",
	                     t->o->data ? "--data" : "--synthetic", t->o->data};

	*n = t->o->data ? 9 : 8;
	memcpy(argv, own, sizeof *own * (size_t)*n);
}

/* What is whole of b goes to say, a line at a time. */
static void
say_lines(Buf *b, TuneSay *say, void *cx, bool last)
{
	size_t from = 0;

	for (size_t i = 0; i < b->n; i++)
		if (b->at[i] == '\n') {
			b->at[i] = 0;
			say(cx, b->at + from);
			from = i + 1;
		}
	if (last && from < b->n)
		say(cx, b->at + from);
	if (from) {
		memmove(b->at, b->at + from, b->n - from);
		b->n -= from;
		b->at[b->n] = 0;
	}
}

static void
read_both(int out, int err, Buf *text, TuneSay *say, void *cx)
{
	struct pollfd p[2] = {{.fd = out, .events = POLLIN}, {.fd = err, .events = POLLIN}};
	Buf said = {0};
	char part[65536];

	while (p[0].fd >= 0 || p[1].fd >= 0) {
		if (poll(p, 2, -1) < 0 && errno != EINTR)
			break;
		for (int i = 0; i < 2; i++) {
			if (p[i].fd < 0 || !p[i].revents)
				continue;
			ssize_t n = read(p[i].fd, part, sizeof part);

			if (n < 0 && errno == EINTR)
				continue;
			if (n <= 0)
				p[i].fd = -1;
			else
				buf_put(i ? &said : text, part, (size_t)n);
		}
		say_lines(&said, say, cx, false);
	}
	say_lines(&said, say, cx, true);
	buf_free(&said);
}

static void
say_it(void *cx, const char *line)
{
	(void)cx;
	fprintf(stderr, "%s\n", line);
}

int
tune_run(const char *const *argv, bool forward, Buf *out, TuneSay *say, void *cx)
{
	int stdout_of[2], stderr_of[2];

	if (pipe2(stdout_of, O_CLOEXEC))
		return -1;
	if (pipe2(stderr_of, O_CLOEXEC)) {
		close(stdout_of[0]);
		close(stdout_of[1]);
		return -1;
	}
	pid_t pid = start(forward);

	if (!pid) {
		dup2(stdout_of[1], 1);
		dup2(stderr_of[1], 2);
		execv(argv[0], (char *const *)argv);
		fprintf(stderr, "cannot execute '%s': %s\n", argv[0], strerror(errno));
		_exit(127);
	}
	close(stdout_of[1]);
	close(stderr_of[1]);
	if (pid > 0)
		read_both(stdout_of[0], stderr_of[0], out, say ? say : say_it, cx);
	close(stdout_of[0]);
	close(stderr_of[0]);
	return pid < 0 ? -1 : wait_for(pid);
}
