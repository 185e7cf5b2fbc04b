/* nccl.c: NCCL, found when the program runs: what carries bytes between the devices of several processes.
 *
 * In: libnccl.so.2 of the loader's path, or what MANTOU_LIBNCCL names; ranks that know each other already (comm.h).
 * Out: groups of sends and receives, and NCCL's own sum (--exchange library), put into a stream or into what it
 * captures. Rank 0 makes the unique id and tells it to the others the way they met: there is no second place to meet.
 * Connections are made by a first exchange outside of a capture. Of its errors NCCL's own words are told. */
#define _GNU_SOURCE
#include "cuda.h"
#include "../comm.h"

#include <dlfcn.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

typedef struct NcclId {
	char x[128];
} NcclId;
typedef struct NcclCommBody *NcclComm;
/* types of numbers, the sum, statuses; the oldest version that has words for its last error */
enum {
	NCCL_BYTES = 0,
	NCCL_F16 = 6,
	NCCL_F32 = 7,
	NCCL_F64 = 8,
	NCCL_BF16 = 9,
	NCCL_SUM = 0,
	NCCL_IN_PROGRESS = 7,
	NCCL_OLDEST = 21300
};
enum { NCCL_NAP_NS = 20000 };

typedef struct CudaNccl {
#define NCCL(name, symbol, arguments) int(*name) arguments;
#include "nccl.def"
#undef NCCL
	const char *(*error)(int status);
	const char *(*last)(NcclComm x);
	NcclComm comm;
	int number; /* 22809: 2.28.9 */
	char name[32], words[300];
} CudaNccl;

static bool
nccl_ok(Cuda *c, int status, const char *call)
{
	CudaNccl *n = c->nccl;
	const char *more = status && n->comm ? n->last(n->comm) : NULL;

	return status == 0 || status == NCCL_IN_PROGRESS ||
	       rt_fail(&c->h->error, "%s, %s: %s%s%s", n->name, call, n->error(status), more && *more ? ": " : "",
	               more ? more : "");
}

static bool
nccl_load(Cuda *c)
{
	CudaNccl *n = c->nccl;
	const char *given = getenv("MANTOU_LIBNCCL"), *file = given && *given ? given : "libnccl.so.2", *missing = NULL;
	void *lib = dlopen(file, RTLD_NOW | RTLD_LOCAL);

	if (!lib)
		return rt_fail(&c->h->error,
		               "several processes of target cuda need NCCL 2.13 or newer: %s (package libnccl2 of "
		               "NVIDIA's repository, or pip's nvidia-nccl; "
		               "MANTOU_LIBNCCL names another file; --alone runs without)",
		               dlerror());
#define NCCL(f, symbol, arguments) \
	*(void **)&n->f = dlsym(lib, #symbol); \
	missing = n->f ? missing : #symbol;
#include "nccl.def"
#undef NCCL
	*(void **)&n->error = dlsym(lib, "ncclGetErrorString");
	*(void **)&n->last = dlsym(lib, "ncclGetLastError");
	if (!n->version || n->version(&n->number))
		return rt_fail(&c->h->error, "%s has no ncclGetVersion: it is no NCCL", file);
	if (n->number < NCCL_OLDEST) /* up to 2.8 numbers had a digit less */
		return rt_fail(&c->h->error, "%s is NCCL %d.%d, too old: 2.13 or newer is needed", file,
		               n->number < 10000 ? n->number / 1000 : n->number / 10000,
		               n->number < 10000 ? n->number / 100 % 10 : n->number / 100 % 100);
	missing = n->error ? missing : "ncclGetErrorString";
	missing = n->last ? missing : "ncclGetLastError";
	snprintf(n->name, sizeof n->name, "NCCL %d.%d.%d", n->number / 10000, n->number / 100 % 100, n->number % 100);
	return !missing || rt_fail(&c->h->error, "%s has no %s: it is no NCCL, or too old", file, missing);
}

/* For the thread that looks after the others: why nothing moves, in NCCL's words. */
static const char *
nccl_stuck(RtHost *h)
{
	CudaNccl *n = ((Cuda *)h->device)->nccl;
	int status = 0;

	n->async_error(n->comm, &status);
	snprintf(n->words, sizeof n->words, "%s: %s", n->name, status ? n->error(status) : "no error");
	return n->words;
}

bool
cuda_nccl_open(Cuda *c)
{
	RtHost *h = c->h;
	CudaNccl *n = c->nccl = rt_alloc(sizeof *n);
	NcclId id = {{0}};
	void *bytes = &id;
	size_t size = sizeof id;
	bool good = nccl_load(c);
	char *text = rt_printf("NCCL %d\n", good ? n->number : 0);

	if (good && h->rank == 0)
		good = nccl_ok(c, n->unique(&id), "ncclGetUniqueId");
	good = h->comm->agree(h, good, text);
	free(text);
	if (!good)
		return false;
	h->comm->share(h, &bytes, &size);
	memcpy(&id, bytes, sizeof id);
	if (h->rank)
		free(bytes);
	if (!nccl_ok(c, n->init(&n->comm, h->ranks, id, h->rank), "ncclCommInitRank"))
		return false;
	h->stuck = nccl_stuck;
	return true;
}

void
cuda_nccl_close(Cuda *c)
{
	CudaNccl *n = c->nccl;

	if (!n)
		return;
	c->h->mark = NULL;
	if (n->comm && !c->h->error.text[0])
		n->destroy(n->comm);
	else if (n->comm)
		n->abort(n->comm);
	free(n);
	c->nccl = NULL;
}

const char *
cuda_nccl_name(const Cuda *c)
{
	return c->nccl ? c->nccl->name : "";
}

bool
cuda_nccl_well(Cuda *c)
{
	int status = 0, call = c->nccl->async_error(c->nccl->comm, &status);

	return nccl_ok(c, call ? call : status, "between the devices");
}

/* Waits for what was put into a stream; an error of NCCL's ends it. */
bool
cuda_nccl_wait(Cuda *c, CuStream s)
{
	for (;;) {
		int status = c->cu.cuStreamQuery(s);

		if (status != CU_NOT_READY)
			return cuda_ok(c, status, "cuStreamQuery");
		if (!cuda_nccl_well(c))
			return false;
		nanosleep(&(struct timespec){.tv_nsec = NCCL_NAP_NS}, NULL);
	}
}

bool
cuda_nccl_move(Cuda *c, CuStream s, const RtMsg *m, int count)
{
	CudaNccl *n = c->nccl;
	bool good = nccl_ok(c, n->group_start(), "ncclGroupStart");
	int end;

	for (int i = 0; i < count && good; i++) {
		if (!m[i].n)
			continue;
		good = m[i].send
		               ? nccl_ok(c, n->send(m[i].at, m[i].n, NCCL_BYTES, m[i].rank, n->comm, s), "ncclSend")
		               : nccl_ok(c, n->receive(m[i].at, m[i].n, NCCL_BYTES, m[i].rank, n->comm, s), "ncclRecv");
	}
	end = n->group_end();
	return good && nccl_ok(c, end, "ncclGroupEnd");
}

bool
cuda_nccl_sum(Cuda *c, CuStream s, CuPtr at, int64_t n, int dtype)
{
	int type = dtype == RT_F64 ? NCCL_F64 : dtype == RT_F32 ? NCCL_F32 : dtype == RT_BF16 ? NCCL_BF16 : NCCL_F16;
	void *to = (void *)(uintptr_t)at;

	return nccl_ok(c, c->nccl->reduce(to, to, (size_t)n, type, NCCL_SUM, c->nccl->comm, s), "ncclAllReduce");
}
