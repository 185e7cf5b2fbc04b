/* slow.c: an MPI library with a slow network, for tests: the real one, whose messages arrive late.
 *
 * In: the real library, linked behind it (`cc -shared -fPIC slow.c -l:libmpi.so.40`, or libmpich.so.12), and
 * MANTOU_LIBMPI=./libslow.so. Calls are passed on; what has arrived is told 50 us + bytes / SLOW_RATE seconds after the
 * message before it (SLOW_RATE bytes/s, default 1e9): one wire for each process. SLOW_STOP=RANK:SECONDS: from then on
 * that rank's library does nothing any more, as if its host stood still, while the process itself goes on.
 * SLOW_COUNT=FILE: the bytes that rank R has sent go to FILE.R. */
#define _GNU_SOURCE
#include <dlfcn.h>
#include <stdbool.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

enum { OPEN = 8192 };
typedef struct Late { void *request; double bytes, until; bool arrived; } Late;
static Late late[OPEN];
static double wire, began;
static int mine = -1, used; /* used: entries that ever were */
static long long sent;

static double
now(void)
{
	struct timespec t;

	clock_gettime(CLOCK_MONOTONIC, &t);
	return (double)t.tv_sec + 1e-9 * (double)t.tv_nsec;
}

static double
rate(void)
{
	const char *s = getenv("SLOW_RATE");

	return s ? atof(s) : 1e9;
}

static bool
stands_still(void)
{
	const char *s = getenv("SLOW_STOP"), *after = s ? strchr(s, ':') : NULL;

	return after && began > 0 && atoi(s) == mine && now() - began > atof(after + 1);
}

static void *
real(const char *name)
{
	void *f = dlsym(RTLD_NEXT, name);

	if (!f)
		abort();
	return f;
}

static Late *
find(void *request)
{
	for (int i = 0; i < used; i++)
		if (late[i].request == request)
			return &late[i];
	return request || used == OPEN ? NULL : &late[used++];
}

int
MPI_Init_thread(int *argc, char ***argv, int want, int *got)
{
	int (*f)(int *, char ***, int, int *) = (int (*)(int *, char ***, int, int *))real("MPI_Init_thread");

	began = now();
	return f(argc, argv, want, got);
}

int
MPI_Finalize(void)
{
	int (*f)(void) = (int (*)(void))real("MPI_Finalize");
	const char *s = getenv("SLOW_COUNT");
	char path[4096];
	FILE *out;

	if (s) {
		snprintf(path, sizeof path, "%s.%d", s, mine);
		if ((out = fopen(path, "w"))) {
			fprintf(out, "%lld\n", sent);
			fclose(out);
		}
	}
	return f();
}

int
MPI_Comm_rank(uintptr_t comm, int *rank)
{
	int (*f)(uintptr_t, int *) = (int (*)(uintptr_t, int *))real("MPI_Comm_rank"), bad = f(comm, rank);

	mine = *rank;
	return bad;
}

int
MPI_Isend(const void *at, int n, uintptr_t type, int to, int tag, uintptr_t comm, void *request)
{
	static int (*f)(const void *, int, uintptr_t, int, int, uintptr_t, void *);

	if (!f)
		f = (int (*)(const void *, int, uintptr_t, int, int, uintptr_t, void *))real("MPI_Isend");
	sent += n;
	return stands_still() ? 0 : f(at, n, type, to, tag, comm, request);
}

int
MPI_Irecv(void *at, int n, uintptr_t type, int from, int tag, uintptr_t comm, void *request)
{
	static int (*f)(void *, int, uintptr_t, int, int, uintptr_t, void *);
	Late *l = find(request);

	if (!f)
		f = (int (*)(void *, int, uintptr_t, int, int, uintptr_t, void *))real("MPI_Irecv");
	if (!l && !(l = find(NULL)))
		abort();
	*l = (Late){.request = request, .bytes = n};
	return stands_still() ? 0 : f(at, n, type, from, tag, comm, request);
}

int
MPI_Test(void *request, int *done, uintptr_t status)
{
	static int (*f)(void *, int *, uintptr_t);
	Late *l = find(request);
	int bad = 0;

	if (!f)
		f = (int (*)(void *, int *, uintptr_t))real("MPI_Test");
	*done = 0;
	if (stands_still())
		return 0;
	if (!l)
		return f(request, done, status);
	if (!l->arrived) {
		bad = f(request, done, status);
		l->arrived = *done;
		*done = 0;
		if (!l->arrived)
			return bad;
		wire = wire > now() ? wire : now();
		l->until = wire += 50e-6 + l->bytes / rate();
	}
	if (now() >= l->until) {
		*done = 1;
		*l = (Late){NULL};
	}
	return bad;
}
