/* nccl.c: a simulated NCCL: libnccl.so.2 with as much of its interface as mantou calls, between processes of a machine.
 *
 * In: groups of sends and receives of bytes, sums of all ranks (ncclAllReduce), in a stream or in what it captures.
 * Out: the bytes, moved when the stream comes to them, by the simulated driver of tests/cudasim (mantou_sim_call),
 * over a socket for each pair of ranks. As with the real one a group ends when all its messages have moved,
 * messages between two ranks match in order, and a group that waits for a rank that has gone waits until the
 * communicator is aborted while ncclCommGetAsyncError says so. The sum is added from the last rank to the first:
 * other bits than mantou's tree has. Told on stderr, and the device is lost: messages that match in no size,
 * addresses that are not the device's.
 * MANTOU_NCCL_VERSION=N     the version that it is, as ncclGetVersion says it
 * MANTOU_NCCL_FAIL=N        call N of a send, a receive or a sum fails
 * MANTOU_NCCL_STOP=RANK:N   from its group N on that rank's library moves nothing any more
 * MANTOU_NCCL_RATE=N        bytes a second that a rank sends; without it as many as there can be
 * MANTOU_NCCL_LOG=FILE      groups that ran and bytes that were sent, when the process ends, to FILE.RANK */
#define _GNU_SOURCE
#include <dlfcn.h>
#include <errno.h>
#include <fcntl.h>
#include <poll.h>
#include <pthread.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/random.h>
#include <sys/socket.h>
#include <sys/un.h>
#include <time.h>
#include <unistd.h>

#define API __attribute__((visibility("default")))
enum { SUCCESS = 0, SYSTEM_ERROR = 2, INVALID_ARGUMENT = 4, INVALID_USAGE = 5, REMOTE_ERROR = 6 };
enum { LOST = 719, BAD_ADDRESS = 700, VERSION = 22809, WAIT_S = 60 };

__extension__ typedef _Float16 Half;
typedef struct Id {
	char x[128];
} Id;
typedef struct Comm {
	int rank, ranks, *fd;
	volatile int async, aborted;
	int (*call)(void *stream, int (*fn)(const void *), const void *data, size_t bytes);
	void *(*memory)(unsigned long long at, size_t bytes, int write);
} Comm;
typedef enum Kind { SEND, RECEIVE, SUM } Kind;
typedef struct Op {
	Kind kind;
	int peer, type;
	uint64_t at, to;
	size_t bytes;
} Op;
/* of one group: n of them behind it */
typedef struct Work {
	Comm *comm;
	int n;
	Op op[];
} Work;
/* One way of one pair: the messages in order, how far the first has gone. head: its size, sent before it. */
typedef struct Way {
	const Op **op;
	int n, at;
	uint64_t head;
	size_t moved;
	bool headed;
} Way;

static _Thread_local int depth;
static _Thread_local Op *pending;
static _Thread_local int npending, room;
static _Thread_local void *group_stream;
static _Thread_local Comm *group_comm;
static char words[256];
static long calls, groups, sent;
static int log_rank = -1;

static long
setting(const char *name)
{
	const char *s = getenv(name);

	return s && *s ? atol(s) : -1;
}

static int
said(int status, const char *text)
{
	snprintf(words, sizeof words, "%s", text);
	return status;
}

static int
lost(int status, const char *what, int rank, long long a, long long b)
{
	fprintf(stderr, "simulated NCCL: rank %d: %s (%lld, %lld)\n", rank, what, a, b);
	return status;
}

__attribute__((destructor)) static void
leave(void)
{
	const char *log = getenv("MANTOU_NCCL_LOG");
	char name[512];
	FILE *f;

	if (!log || log_rank < 0)
		return;
	snprintf(name, sizeof name, "%s.%d", log, log_rank);
	if ((f = fopen(name, "w"))) {
		fprintf(f, "{\"groups\": %ld, \"sent\": %ld}\n", groups, sent);
		fclose(f);
	}
}

/* ---- meeting: abstract sockets, named by the id */

static socklen_t
address(struct sockaddr_un *a, const Id *id, int rank)
{
	*a = (struct sockaddr_un){.sun_family = AF_UNIX};
	int n = snprintf(a->sun_path + 1, sizeof a->sun_path - 1, "%.60s-%d", id->x, rank);

	return (socklen_t)(offsetof(struct sockaddr_un, sun_path) + 1 + (size_t)n);
}

static bool
all_of(int fd, void *at, size_t n, bool out)
{
	for (size_t done = 0; done < n;) {
		ssize_t k = out ? send(fd, (char *)at + done, n - done, MSG_NOSIGNAL)
		                : recv(fd, (char *)at + done, n - done, 0);

		if (k <= 0)
			return false;
		done += (size_t)k;
	}
	return true;
}

static int
called(const Id *id, int rank)
{
	struct sockaddr_un a;
	socklen_t n = address(&a, id, rank);

	for (int i = 0; i < WAIT_S * 100; i++) {
		int fd = socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0);

		if (fd >= 0 && connect(fd, (struct sockaddr *)&a, n) == 0)
			return fd;
		if (fd >= 0)
			close(fd);
		nanosleep(&(struct timespec){.tv_nsec = 10000000}, NULL);
	}
	return -1;
}

API int
ncclGetVersion(int *to)
{
	*to = setting("MANTOU_NCCL_VERSION") >= 0 ? (int)setting("MANTOU_NCCL_VERSION") : VERSION;
	return SUCCESS;
}

API int
ncclGetUniqueId(Id *to)
{
	uint64_t r[2];

	memset(to, 0, sizeof *to);
	if (getrandom(r, sizeof r, 0) != sizeof r)
		return said(SYSTEM_ERROR, "no random numbers");
	snprintf(to->x, sizeof to->x, "nccl-%016llx%016llx", (unsigned long long)r[0], (unsigned long long)r[1]);
	return SUCCESS;
}

API int
ncclCommInitRank(Comm **to, int ranks, Id id, int rank)
{
	Comm *c = calloc(1, sizeof *c);
	const char *driver = getenv("MANTOU_LIBCUDA");
	void *lib = dlopen(driver ? driver : "libcuda.so.1", RTLD_NOW);
	struct sockaddr_un a;
	socklen_t n = address(&a, &id, rank);
	int listener = socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0);

	if (!c || rank < 0 || rank >= ranks || strncmp(id.x, "nccl-", 5) != 0)
		return said(INVALID_ARGUMENT, "a rank or an id that there cannot be");
	*(void **)&c->call = lib ? dlsym(lib, "mantou_sim_call") : NULL;
	*(void **)&c->memory = lib ? dlsym(lib, "mantou_sim_memory") : NULL;
	if (!c->call || !c->memory)
		return said(SYSTEM_ERROR, "the driver is not the simulated one");
	c->rank = log_rank = rank;
	c->ranks = ranks;
	c->fd = malloc(sizeof *c->fd * (size_t)ranks);
	if (!c->fd || bind(listener, (struct sockaddr *)&a, n) || listen(listener, ranks))
		return said(SYSTEM_ERROR, "two ranks have one number");
	for (int r = 0; r < rank; r++)
		if ((c->fd[r] = called(&id, r)) < 0 || !all_of(c->fd[r], &rank, sizeof rank, true))
			return said(SYSTEM_ERROR, "a rank did not come");
	for (int r = rank + 1; r < ranks; r++) {
		int fd = accept4(listener, NULL, NULL, SOCK_CLOEXEC), his;

		if (fd < 0 || !all_of(fd, &his, sizeof his, false) || his <= rank || his >= ranks)
			return said(SYSTEM_ERROR, "a rank did not come");
		c->fd[his] = fd;
	}
	close(listener);
	for (int r = 0; r < ranks; r++)
		if (r != rank)
			fcntl(c->fd[r], F_SETFL, O_NONBLOCK);
	*to = c;
	return SUCCESS;
}

API int
ncclCommAbort(Comm *c)
{
	c->aborted = 1;
	return SUCCESS; /* what runs still looks at it: it is not freed */
}

API int
ncclCommDestroy(Comm *c)
{
	for (int r = 0; r < c->ranks; r++)
		if (r != c->rank)
			close(c->fd[r]);
	free(c->fd);
	free(c);
	return SUCCESS;
}

API int
ncclCommGetAsyncError(Comm *c, int *to)
{
	*to = c->async;
	return SUCCESS;
}

API const char *
ncclGetErrorString(int status)
{
	return status == SUCCESS            ? "no error"
	       : status == SYSTEM_ERROR     ? "unhandled system error"
	       : status == INVALID_ARGUMENT ? "invalid argument"
	       : status == INVALID_USAGE    ? "invalid usage"
	       : status == REMOTE_ERROR     ? "remote process exited or there was a network error"
	                                    : "unknown result code";
}

API const char *
ncclGetLastError(Comm *c)
{
	(void)c;
	return words;
}

/* ---- what a group does when the stream comes to it */

/* Nothing moves any more until somebody aborts. */
static int
stand_still(Comm *c)
{
	while (!c->aborted)
		nanosleep(&(struct timespec){.tv_nsec = 5000000}, NULL);
	return LOST;
}

/* As much of the message at the way's head as goes now. 1: something moved; 0: nothing; -1: the peer has gone; more: a
 * status of the device. */
static int
way_step(Comm *c, Way *w, int fd, bool out, uint8_t *const *at)
{
	const Op *o = w->op[w->at];
	ssize_t k;

	if (!w->headed) {
		if (w->moved == 0 && out)
			w->head = o->bytes;
		k = out ? send(fd, (char *)&w->head + w->moved, 8 - w->moved, MSG_NOSIGNAL)
		        : recv(fd, (char *)&w->head + w->moved, 8 - w->moved, 0);
	} else {
		k = out ? send(fd, at[w->at] + w->moved, o->bytes - w->moved, MSG_NOSIGNAL)
		        : recv(fd, at[w->at] + w->moved, o->bytes - w->moved, 0);
	}
	if (k < 0 && (errno == EAGAIN || errno == EINTR))
		return 0;
	if (k <= 0)
		return -1;
	w->moved += (size_t)k;
	if (!w->headed && w->moved == 8) {
		w->headed = true;
		w->moved = 0;
		if (!out && w->head != o->bytes)
			return lost(LOST, "a message has another size than is asked for", c->rank, (long long)w->head,
			            (long long)o->bytes);
	}
	if (w->headed && w->moved == o->bytes) {
		w->at++;
		w->headed = false;
		w->moved = 0;
	}
	return 1;
}

static int
ways_run(Comm *c, Way *out, Way *in, uint8_t **const *out_at, uint8_t **const *in_at)
{
	for (;;) {
		bool left = false, moved = false;

		for (int r = 0; r < c->ranks; r++)
			for (int way = 0; way < 2; way++) {
				Way *w = way ? &in[r] : &out[r];
				int k;

				if (w->at == w->n)
					continue;
				left = true;
				k = way_step(c, w, c->fd[r], !way, way ? in_at[r] : out_at[r]);
				if (k > 1)
					return k;
				moved |= k == 1;
				if (k < 0) {
					c->async = REMOTE_ERROR;
					said(REMOTE_ERROR, "a connection was closed");
					return stand_still(c);
				}
			}
		if (!left)
			return 0;
		if (c->aborted)
			return LOST;
		if (!moved)
			nanosleep(&(struct timespec){.tv_nsec = 50000}, NULL);
	}
}

static double
number(int type, const uint8_t *at, size_t i)
{
	uint32_t u;
	float f;

	switch (type) {
	case 8:
		return ((const double *)(const void *)at)[i];
	case 7:
		return ((const float *)(const void *)at)[i];
	case 6:
		return (double)((const Half *)(const void *)at)[i];
	default:
		u = (uint32_t)((const uint16_t *)(const void *)at)[i] << 16;
		memcpy(&f, &u, sizeof f);
		return f;
	}
}

static void
put_number(int type, uint8_t *at, size_t i, double x)
{
	float f = (float)x;
	uint32_t u;

	switch (type) {
	case 8:
		((double *)(void *)at)[i] = x;
		break;
	case 7:
		((float *)(void *)at)[i] = f;
		break;
	case 6:
		((Half *)(void *)at)[i] = (Half)x;
		break;
	default:
		memcpy(&u, &f, sizeof u);
		((uint16_t *)(void *)at)[i] = (uint16_t)((u + 0x7fff + (u >> 16 & 1)) >> 16);
	}
}

static size_t
size_of(int type)
{
	return type == 0 ? 1 : type == 8 ? 8 : type == 7 ? 4 : 2;
}

/* The bytes of all ranks to all, then added from the last to the first, rounded each time. */
static int
sum_run(Comm *c, const Op *o, uint8_t *at)
{
	uint8_t **all = calloc((size_t)c->ranks, sizeof *all), **one[2 * 64];
	Way out[64] = {{0}}, in[64] = {{0}};
	size_t n = o->bytes / size_of(o->type);
	int status = 0;

	for (int r = 0; r < c->ranks && r < 64; r++) {
		all[r] = malloc(o->bytes + 1);
		memcpy(all[r], at, o->bytes);
		one[r] = &all[c->rank];
		one[64 + r] = &all[r];
		out[r] = in[r] = (Way){.op = &o, .n = r != c->rank};
	}
	status = ways_run(c, out, in, (uint8_t * *const *)one, (uint8_t * *const *)(one + 64));
	for (size_t i = 0; i < n && !status; i++) {
		double x = number(o->type, all[c->ranks - 1], i);

		for (int r = c->ranks - 2; r >= 0; r--) {
			put_number(o->type, at, i, x + number(o->type, all[r], i));
			x = number(o->type, at, i);
		}
	}
	for (int r = 0; r < c->ranks; r++)
		free(all[r]);
	free(all);
	return status;
}

static int
group_run(const void *data)
{
	const Work *w = data;
	Comm *c = w->comm;
	const char *stop = getenv("MANTOU_NCCL_STOP"), *colon = stop ? strchr(stop, ':') : NULL;
	Way out[64] = {{0}}, in[64] = {{0}};
	uint8_t **out_at[64] = {0}, **in_at[64] = {0};
	int status = 0;
	long mine = 0, rate = setting("MANTOU_NCCL_RATE");

	groups++;
	if (colon && atoi(stop) == c->rank && groups > atol(colon + 1))
		return stand_still(c);
	for (int i = 0; i < w->n && !status; i++) {
		const Op *o = &w->op[i];
		uint8_t *at = c->memory(o->at, o->bytes, o->kind != SEND);
		Way *way = o->kind == SEND ? &out[o->peer] : &in[o->peer];
		uint8_t ***places = o->kind == SEND ? &out_at[o->peer] : &in_at[o->peer];

		if (!at)
			status = lost(BAD_ADDRESS, "an address is not of the device", c->rank, (long long)o->at,
			              (long long)o->bytes);
		if (status || o->kind == SUM) {
			status = status ? status : sum_run(c, o, at);
			continue;
		}
		way->op = realloc(way->op, sizeof *way->op * (size_t)(way->n + 1));
		*places = realloc(*places, sizeof **places * (size_t)(way->n + 1));
		way->op[way->n] = o;
		(*places)[way->n++] = at;
		sent += o->kind == SEND ? (long)o->bytes : 0;
		mine += o->kind == SEND ? (long)o->bytes : 0;
	}
	if (rate > 0)
		usleep((useconds_t)((double)mine / (double)rate * 1e6));
	status = status ? status : ways_run(c, out, in, (uint8_t * *const *)out_at, (uint8_t * *const *)in_at);
	for (int r = 0; r < c->ranks; r++) {
		free(out[r].op);
		free(in[r].op);
		free(out_at[r]);
		free(in_at[r]);
	}
	return status;
}

/* ---- groups */

API int
ncclGroupStart(void)
{
	depth++;
	return SUCCESS;
}

API int
ncclGroupEnd(void)
{
	Work *w;
	size_t bytes = sizeof *w + sizeof(Op) * (size_t)npending;
	int status = 0;

	if (depth < 1)
		return said(INVALID_USAGE, "a group ends that has not begun");
	if (--depth || !npending)
		return SUCCESS;
	w = malloc(bytes);
	w->comm = group_comm;
	w->n = npending;
	memcpy(w->op, pending, sizeof(Op) * (size_t)npending);
	npending = 0;
	status = group_comm->call(group_stream, group_run, w, bytes);
	free(w);
	return status ? said(1, "the driver took no work") : SUCCESS;
}

static int
op_add(Comm *c, void *stream, Op o)
{
	int status = SUCCESS;

	calls++;
	if (setting("MANTOU_NCCL_FAIL") == calls)
		return said(SYSTEM_ERROR, "as asked");
	if (c->ranks > 64 || o.peer < 0 || o.peer >= c->ranks || (o.peer == c->rank && o.kind != SUM) ||
	    (npending && (stream != group_stream || c != group_comm)))
		return said(INVALID_ARGUMENT, "a rank that is none, or two streams in a group");
	ncclGroupStart();
	if (npending == room)
		pending = realloc(pending, sizeof *pending * (size_t)(room = room * 2 + 16));
	pending[npending++] = o;
	group_stream = stream;
	group_comm = c;
	status = ncclGroupEnd();
	return status;
}

API int
ncclSend(const void *at, size_t n, int type, int peer, Comm *c, void *stream)
{
	return op_add(c, stream,
	              (Op){.kind = SEND,
	                   .peer = peer,
	                   .type = type,
	                   .at = (uint64_t)(uintptr_t)at,
	                   .bytes = n * size_of(type)});
}

API int
ncclRecv(void *at, size_t n, int type, int peer, Comm *c, void *stream)
{
	return op_add(c, stream,
	              (Op){.kind = RECEIVE,
	                   .peer = peer,
	                   .type = type,
	                   .at = (uint64_t)(uintptr_t)at,
	                   .bytes = n * size_of(type)});
}

#ifndef WITHOUT_REDUCE
API int
ncclAllReduce(const void *from, void *to, size_t n, int type, int op, Comm *c, void *stream)
{
	if (from != to || op != 0 || type < 6)
		return said(INVALID_ARGUMENT, "sums in place alone are known here");
	return op_add(c, stream,
	              (Op){.kind = SUM, .type = type, .at = (uint64_t)(uintptr_t)to, .bytes = n * size_of(type)});
}
#endif
