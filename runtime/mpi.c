/* mpi.c: an MPI library, found when the program runs.
 *
 * In: what the environment says of the launcher, MANTOU_LIBMPI.   Out: a dozen functions on bytes. No header and no
 * library is needed to
 * build: handles are constants of the library's binary interface (mpi_abi.def), told by which symbols it has. The
 * launcher's own library is looked for first: with another each process believes that it is alone, which the caller
 * finds by the size. */
#define _GNU_SOURCE
#include "comm.h"

#include <dlfcn.h>
#include <stdlib.h>
#include <string.h>

typedef struct Abi {
	const char *name;
	bool symbols;
	uintptr_t world, byte, f32, f64, sum, place, ignore;
	int funneled, request;
} Abi;
static const Abi abis[] = {
#define ABI(n, s, w, b, f4, f8, add, p, i, f, r) \
	{.name = #n, \
	 .symbols = s, \
	 .world = (uintptr_t)(w), \
	 .byte = (uintptr_t)(b), \
	 .f32 = (uintptr_t)(f4), \
	 .f64 = (uintptr_t)(f8), \
	 .sum = (uintptr_t)(add), \
	 .place = (uintptr_t)(p), \
	 .ignore = i, \
	 .funneled = f, \
	 .request = r},
#include "mpi_abi.def"
#undef ABI
};

/* Handles are ints or pointers; both are passed in a register, of which the callee reads as much as its type has. */
typedef struct RtMpi {
	Abi abi;
	char file[512], name[64];
	int (*init)(int *, char ***, int, int *);
	int (*size)(uintptr_t, int *);
	int (*rank)(uintptr_t, int *);
	int (*send)(const void *, int, uintptr_t, int, int, uintptr_t, void *);
	int (*receive)(void *, int, uintptr_t, int, int, uintptr_t, void *);
	int (*reduce)(const void *, void *, int, uintptr_t, uintptr_t, uintptr_t, void *);
	int (*test)(void *, int *, uintptr_t);
	int (*abort)(uintptr_t, int);
	int (*end)(void);
	int (*version)(char *, int *);
} RtMpi;

static const struct { const char *file, *launcher;
} libraries[] = {
        {"libmpi.so.40", "Open MPI"}, {"libmpich.so.12", "MPICH"}, {"libmpi.so.12", "MPICH"},
        {"libmpi_abi.so.0", ""},      {"libmpi_abi.so", ""},       {"libmpi.so", ""},
};

static bool
mpi_symbols(RtMpi *m, void *lib, const char *file, RtError *e)
{
	const struct { const char *name; void *at;
	} want[] = {
	        {"MPI_Init_thread", &m->init}, {"MPI_Comm_size", &m->size}, {"MPI_Comm_rank", &m->rank},
	        {"MPI_Isend", &m->send},       {"MPI_Irecv", &m->receive},  {"MPI_Test", &m->test},
	        {"MPI_Abort", &m->abort},      {"MPI_Finalize", &m->end},   {"MPI_Get_library_version", &m->version},
	        {"MPI_Iallreduce", &m->reduce},
	};
	int which = dlsym(lib, "ompi_mpi_comm_world") ? 0 : strstr(rt_basename(file), "abi") ? 2 : 1;

	for (int i = 0; i < RT_COUNT(want); i++) {
		void *s = dlsym(lib, want[i].name);

		if (!s)
			return rt_fail(e, "%s has no %s: it is no MPI library, or too old", file, want[i].name);
		memcpy(want[i].at, &s, sizeof s);
	}
	m->abi = abis[which];
	uintptr_t *const handle[] = {&m->abi.world, &m->abi.byte, &m->abi.f32, &m->abi.f64, &m->abi.sum};

	for (int i = 0; m->abi.symbols && i < RT_COUNT(handle); i++) {
		const char *name = (const char *)*handle[i];

		if (!(*handle[i] = (uintptr_t)dlsym(lib, name)))
			return rt_fail(e, "%s has no %s", file, name);
	}
	snprintf(m->file, sizeof m->file, "%s", file);
	return true;
}

static void *
mpi_open(const RtLaunch *l, RtError *e)
{
	RtMpi *m = rt_alloc(sizeof *m);
	const char *given = getenv("MANTOU_LIBMPI");
	char tried[512] = "";
	void *lib = NULL;

	if (given && *given) {
		if ((lib = dlopen(given, RTLD_NOW | RTLD_GLOBAL)) && mpi_symbols(m, lib, given, e))
			return m;
		if (!lib)
			rt_fail(e, "MANTOU_LIBMPI: %s", dlerror());
		return NULL;
	}
	for (int own = 1; own >= 0; own--)
		for (int i = 0; i < RT_COUNT(libraries); i++) {
			if ((strcmp(libraries[i].launcher, l->name) == 0) != own)
				continue;
			snprintf(tried + strlen(tried), sizeof tried - strlen(tried), "%s%s", *tried ? ", " : "",
			         libraries[i].file);
			if ((lib = dlopen(libraries[i].file, RTLD_NOW | RTLD_GLOBAL)))
				return mpi_symbols(m, lib, libraries[i].file, e) ? m : NULL;
		}
	rt_fail(e,
	        "%s started %d processes, but there is no MPI library: looked for %s (Debian: apt-get install %s), "
	        "MANTOU_LIBMPI names another; --alone runs "
	        "without",
	        l->name, l->size, tried, strcmp(l->name, "MPICH") == 0 ? "libmpich12" : "libopenmpi3");
	return NULL;
}

static const char *
mpi_name(const void *w)
{
	return ((const RtMpi *)w)->name;
}

/* "Open MPI v4.1.4, package: ..." and "MPICH Version:\t4.0.2\n..." become a name and a number. */
static void
mpi_version(RtMpi *m)
{
	char *text = rt_alloc(16384), *at;
	int n = 16000;

	if (m->version(text, &n) != 0)
		text[0] = 0;
	at = strpbrk(text, ",\n");
	if (at)
		*at = 0;
	if (strncmp(text, "Open MPI v", 10) == 0)
		snprintf(m->name, sizeof m->name, "Open MPI %.50s", text + 10);
	else if (strncmp(text, "MPICH Version:", 14) == 0)
		snprintf(m->name, sizeof m->name, "MPICH %.50s", text + 14 + strspn(text + 14, " \t"));
	else
		snprintf(m->name, sizeof m->name, "%.60s", *text ? text : m->file);
	free(text);
}

static bool
mpi_start(void *w, int *rank, int *size, RtError *e)
{
	RtMpi *m = w;
	int level = 0;

	if (m->init(NULL, NULL, m->abi.funneled, &level) != 0 || m->rank(m->abi.world, rank) != 0 ||
	    m->size(m->abi.world, size) != 0)
		return rt_fail(e, "%s does not start", m->file);
	mpi_version(m);
	return true;
}

static void
mpi_send(void *w, const void *at, size_t n, int to, int tag, RtRequest *r)
{
	RtMpi *m = w;

	m->send(at, (int)n, m->abi.byte, to, tag, m->abi.world, r->at);
	r->open = true;
}

static void
mpi_receive(void *w, void *at, size_t n, int from, int tag, RtRequest *r)
{
	RtMpi *m = w;

	m->receive(at, (int)n, m->abi.byte, from, tag, m->abi.world, r->at);
	r->open = true;
}

static void
mpi_sum(void *w, void *at, int n, bool f64, RtRequest *r)
{
	RtMpi *m = w;

	m->reduce((const void *)m->abi.place, at, n, f64 ? m->abi.f64 : m->abi.f32, m->abi.sum, m->abi.world, r->at);
	r->open = true;
}

static bool
mpi_done(void *w, RtRequest *r)
{
	RtMpi *m = w;
	int done = 0;

	if (r->open)
		m->test(r->at, &done, m->abi.ignore);
	r->open = r->open && !done;
	return !r->open;
}

static void
mpi_abort(void *w, int status)
{
	RtMpi *m = w;

	m->abort(m->abi.world, status);
}

static void
mpi_end(void *w)
{
	RtMpi *m = w;

	m->end();
}

const RtWire rt_mpi = {
        .open = mpi_open,
        .start = mpi_start,
        .name = mpi_name,
        .send = mpi_send,
        .receive = mpi_receive,
        .sum = mpi_sum,
        .done = mpi_done,
        .abort = mpi_abort,
        .end = mpi_end,
};
