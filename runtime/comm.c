/* comm.c: the processes of one training: meeting, moving bytes, signs of life, ending together.
 *
 * One thread a process, the exchange thread, makes every call of the library, so that the least level of threads is
 * enough. It sleeps until there is work, looks after signs of life ten times a second, and naps while messages are
 * under way: 20 to 200 us between looks, as the CPUs are the kernels'. Work is done in order; one set of messages at a
 * time goes beside it, with a tag of its own.
 * Life: rank 0 hears of all and all hear of rank 0, every second. Who is silent for longer than --patience is named,
 * and the job aborted; the same where this rank itself fails. A process whose launcher died is killed by the kernel.
 * Ranks but 0 print nothing: their outputs go nowhere, but for what ends the job. */
#define _GNU_SOURCE
#include "comm.h"

#include <poll.h>
#include <sched.h>
#include <stdlib.h>
#include <string.h>
#include <sys/prctl.h>
#include <time.h>
#include <unistd.h>

enum { TAG_DATA = 1, TAG_LIFE = 2, TAG_BESIDE = 3, MOST = 64 << 20 /* bytes of a message */, QUEUE = 64 };

typedef struct Hello { int64_t pid; uint64_t cpus; char host[64]; } Hello;
typedef struct Life {
	int64_t step, bye, mark;
} Life; /* mark: RtHost.mark */
typedef struct Peer {
	Life in, out;
	RtRequest from, to;
	double seen;
	bool left;                   /* has said goodbye */
	int64_t mark;                /* as it was last heard of */
	double moved;                /* when it was another */
} Peer;

typedef struct Comm {
	RtHost *h;
	const RtWire *wire; /* a library, or sockets, and its own */
	void *at;
	pthread_t thread;
	pthread_mutex_t lock;
	pthread_cond_t work, done;
	struct { void (*fn)(RtHost *, void *); void *cx; } queue[QUEUE];
	int64_t head, tail;          /* begun and started jobs; those between wait, the first may run */
	bool quit, aborts, leaving;
	int rank, size;
	RtError error;
	Peer *peer;                  /* by rank; of rank 0 all others, of the others rank 0 */
	Hello *hello;
	RtRequest *request; int room;
	/* what goes beside the jobs: set and cleared under the lock, and looked after by the exchange thread */
	struct { const RtMsg *m; int n; RtRequest *request; int room; bool posted; } beside;
	double beat, looked;         /* when life was last sent, and looked after */
	FILE *err;                   /* stderr as it was */
} Comm;
static Comm comm;

/* ---- signs of life, and the end */

static const char *
comm_host(int rank)
{
	return comm.hello ? comm.hello[rank].host : "?";
}

static void
comm_nap(int64_t ns)
{
	struct timespec t = {.tv_nsec = ns};

	nanosleep(&t, NULL);
}

static void
comm_kill(void)
{
	fflush(comm.err);
	comm_nap(300000000);                     /* a launcher drops what it has not yet passed on */
	comm.wire->abort(comm.at, 1);
	_exit(1);                                /* where MPI_Abort returns */
}

static void comm_beat(double now);

static void
comm_silent(int rank, double seconds)
{
	const Peer *p = &comm.peer[rank];
	int speaker = rank == 0 ? 1 : 0;

	if (comm.rank == speaker)
		fprintf(comm.err, "%s: error: rank %d (%s, pid %lld) silent for %.0f s; last in step %lld\n",
		        comm.h->opt.program, rank, comm_host(rank), (long long)(comm.hello ? comm.hello[rank].pid : 0),
		        seconds, (long long)p->in.step);
	else
		comm_nap(900000000);                 /* the one that speaks ends the job */
	comm_beat(rt_now());                     /* nobody else shall be named while the launcher ends the job */
	comm_kill();
}

/* A process has ended, and no library ends the others: rank 0 says so, or, where it is rank 0 itself, rank 1. */
static void
comm_gone(int rank, bool told)
{
	if (!told && comm.rank == (rank == 0 ? 1 : 0))
		fprintf(comm.err, "%s: error: rank %d (%s, pid %lld) has ended; last in step %lld\n",
		        comm.h->opt.program, rank, comm_host(rank), (long long)(comm.hello ? comm.hello[rank].pid : 0),
		        (long long)(comm.rank == 0 && comm.peer ? comm.peer[rank].in.step : comm.h->run.step));
	else if (!told)
		comm_nap(900000000); /* the one that speaks ends the job */
	comm_kill();
}

/* All devices wait for one another, in the same exchange, and have for longer than patience. */
static void
comm_stuck(double now, double patience)
{
	int64_t mark = comm.h->mark ? *comm.h->mark : 0;
	bool stuck = comm.rank == 0 && mark & 1 && patience > 0;

	if (comm.rank == 0 && comm.peer[0].mark != mark) { /* its own, of which nobody tells it */
		comm.peer[0].mark = mark;
		comm.peer[0].moved = now;
	}
	for (int r = 0; r < comm.size && stuck; r++)
		stuck = (r == 0 || comm.peer[r].mark == mark) && now - comm.peer[r].moved > patience;
	if (!stuck)
		return;
	fprintf(comm.err,
	        "%s: error: the exchange of step %lld has not moved for %.0f s, and all %d processes live: %s\n",
	        comm.h->opt.program, (long long)comm.h->run.step, patience, comm.size, comm.h->stuck(comm.h));
	comm_kill();
}

static bool
comm_hears(int rank)
{
	return rank != comm.rank && (comm.rank == 0 || rank == 0);
}

static void
comm_listen(int rank)
{
	Peer *p = &comm.peer[rank];

	comm.wire->receive(comm.at, &p->in, sizeof p->in, rank, TAG_LIFE, &p->from);
}

static void
comm_beat(double now)
{
	for (int r = 0; r < comm.size; r++) {
		Peer *p = &comm.peer[r];

		if (!comm_hears(r) || !comm.wire->done(comm.at, &p->to))
			continue;
		p->out = (Life){.step = comm.h->run.step, .mark = comm.h->mark ? *comm.h->mark : 0};
		comm.wire->send(comm.at, &p->out, sizeof p->out, r, TAG_LIFE, &p->to);
	}
	comm.beat = now;
}

static void
comm_life(void)
{
	double now = rt_now(), patience = comm.h->opt.silence >= 0 ? (double)comm.h->opt.silence : 30;

	bool told = false;
	int gone = comm.wire->gone && !comm.leaving ? comm.wire->gone(comm.at, &told) : -1;

	if (__atomic_load_n(&comm.aborts, __ATOMIC_ACQUIRE))
		comm_kill();
	if (gone >= 0 && !(comm.peer && comm.peer[gone].left))
		comm_gone(gone, told);
	if (!comm.peer || now - comm.looked < 0.05)
		return;
	if (now - comm.looked > 2)               /* this process was stopped itself: the others may have waited */
		for (int r = 0; r < comm.size; r++)
			comm.peer[r].seen = now;
	comm.looked = now;
	if (now - comm.beat >= 1 && !comm.leaving)
		comm_beat(now);
	comm_stuck(now, patience);
	for (int r = 0; r < comm.size; r++) {
		Peer *p = &comm.peer[r];

		if (!comm_hears(r) || p->left)
			continue;
		if (comm.wire->done(comm.at, &p->from)) {
			p->seen = now;
			p->left = p->in.bye;
			if (p->in.mark != p->mark)
				p->moved = now;
			p->mark = p->in.mark;
			if (!p->left)
				comm_listen(r);
		} else if (patience > 0 && now - p->seen > patience) {
			comm_silent(r, patience);
		}
	}
}

/* All say goodbye and hear it: no message of life is under way when the library ends. */
static void
comm_leave(RtHost *h, void *cx)
{
	bool open = comm.peer != NULL;

	(void)h, (void)cx;
	comm.leaving = true;
	for (int r = 0; comm.peer && r < comm.size; r++) {
		Peer *p = &comm.peer[r];

		if (!comm_hears(r))
			continue;
		while (!comm.wire->done(comm.at, &p->to))
			comm_life();
		p->out = (Life){.step = comm.h->run.step, .bye = 1};
		comm.wire->send(comm.at, &p->out, sizeof p->out, r, TAG_LIFE, &p->to);
	}
	while (open) {
		open = false;
		comm_life();
		for (int r = 0; r < comm.size; r++)
			open |= comm_hears(r) && (!comm.wire->done(comm.at, &comm.peer[r].to) || !comm.peer[r].left);
		comm_nap(1000000);
	}
	comm.wire->end(comm.at);
}

/* ---- the exchange thread */

static void
comm_room(RtRequest **request, int *room, int n)
{
	if (n > *room) {
		*request = realloc(*request, sizeof **request * (size_t)n);
		*room = n;
		if (!*request)
			comm_kill();
	}
	memset(*request, 0, sizeof **request * (size_t)n);
}

static void
comm_send(const RtMsg *m, int n, int tag, RtRequest *request)
{
	for (int send = 0; send < 2; send++)     /* receives first: what comes has a place */
		for (int i = 0; i < n; i++) {
			if (m[i].send != send || !m[i].n)
				continue;
			if (send)
				comm.wire->send(comm.at, m[i].at, m[i].n, m[i].rank, tag, &request[i]);
			else
				comm.wire->receive(comm.at, m[i].at, m[i].n, m[i].rank, tag, &request[i]);
		}
}

/* Sends and looks after what goes beside the jobs. */
static void
comm_aside(void)
{
	const RtMsg *m = __atomic_load_n(&comm.beside.m, __ATOMIC_ACQUIRE);
	bool done = true;

	if (!m)
		return;
	if (!comm.beside.posted) {
		comm_room(&comm.beside.request, &comm.beside.room, comm.beside.n);
		comm_send(m, comm.beside.n, TAG_BESIDE, comm.beside.request);
		comm.beside.posted = true;
	}
	for (int i = 0; i < comm.beside.n; i++)
		done &= comm.wire->done(comm.at, &comm.beside.request[i]);
	if (!done)
		return;
	pthread_mutex_lock(&comm.lock);
	comm.beside.posted = false;
	__atomic_store_n(&comm.beside.m, NULL, __ATOMIC_RELEASE);
	pthread_cond_signal(&comm.done);
	pthread_mutex_unlock(&comm.lock);
}

/* Until the first n requests are done. */
static void
comm_finish(int n)
{
	int64_t nap = 20000;

	for (int first = 0, look = 0;; look++) {
		int was = first;

		for (int i = first; i < n; i++)
			if (comm.wire->done(comm.at, &comm.request[i]) && i == first)
				first++;
		if (first == n)
			return;
		comm_life();
		comm_aside();
		if (look < 4)
			continue;
		comm_nap(nap);
		nap = first > was ? 20000 : nap < 200000 ? nap * 2 : 200000;
	}
}

static void
comm_move(RtHost *h, const RtMsg *m, int n)
{
	(void)h;
	comm_room(&comm.request, &comm.room, n);
	comm_send(m, n, TAG_DATA, comm.request);
	comm_finish(n);
}

static void
comm_sum(RtHost *h, void *at, int64_t n, bool f64)
{
	uint8_t *from = at;

	(void)h;
	for (int64_t i = 0; i < n; i += MOST / 8) {
		int part = (int)(n - i < MOST / 8 ? n - i : MOST / 8);

		comm_room(&comm.request, &comm.room, 1);
		comm.wire->sum(comm.at, from + i * (f64 ? 8 : 4), part, f64, &comm.request[0]);
		comm_finish(1);
	}
}

static bool
comm_adds(RtHost *h)
{
	(void)h;
	return comm.wire->sum != NULL;
}

/* What it does is short and others wait for it: its naps end in time, and where processes run at real-time priority,
 * where nobody yields to an equal, it stands one above the loop. */
static void
comm_prompt(void)
{
	struct sched_param p;
	int policy;

	prctl(PR_SET_TIMERSLACK, 1UL);
	if (pthread_getschedparam(pthread_self(), &policy, &p) == 0 && (policy == SCHED_FIFO || policy == SCHED_RR) &&
	    p.sched_priority++ < sched_get_priority_max(policy))
		pthread_setschedparam(pthread_self(), policy, &p);
}

static void *
comm_main(void *arg)
{
	int64_t nap = 10000;

	(void)arg;
	comm_prompt();
	pthread_mutex_lock(&comm.lock);
	while (!comm.quit) {
		struct timespec t;

		nap = comm.beside.posted ? (nap < 100000 ? 2 * nap : 200000) : 10000;

		if (comm.head < comm.tail) {
			void (*fn)(RtHost *, void *) = comm.queue[comm.head % QUEUE].fn,
			                          *cx = comm.queue[comm.head % QUEUE].cx;

			pthread_mutex_unlock(&comm.lock);
			fn(comm.h, cx);
			pthread_mutex_lock(&comm.lock);
			comm.head++;
			pthread_cond_signal(&comm.done);
			continue;
		}
		clock_gettime(CLOCK_REALTIME, &t);
		t.tv_nsec += comm.beside.posted ? nap : 100000000;
		t.tv_sec += t.tv_nsec / 1000000000;
		t.tv_nsec %= 1000000000;
		if (!comm.beside.m || comm.beside.posted)
			pthread_cond_timedwait(&comm.work, &comm.lock, &t);
		if (comm.head == comm.tail && !comm.quit) {
			pthread_mutex_unlock(&comm.lock);
			comm_life();
			comm_aside();
			pthread_mutex_lock(&comm.lock);
		}
	}
	pthread_mutex_unlock(&comm.lock);
	return NULL;
}

static int64_t
comm_post(RtHost *h, void (*fn)(RtHost *h, void *cx), void *cx)
{
	int64_t number;

	(void)h;
	pthread_mutex_lock(&comm.lock);
	while (comm.tail - comm.head == QUEUE)
		pthread_cond_wait(&comm.done, &comm.lock);
	comm.queue[comm.tail % QUEUE].fn = fn;
	comm.queue[comm.tail++ % QUEUE].cx = cx;
	number = comm.tail;
	pthread_cond_signal(&comm.work);
	pthread_mutex_unlock(&comm.lock);
	return number;
}

static void
comm_wait(RtHost *h, int64_t number)
{
	(void)h;
	pthread_mutex_lock(&comm.lock);
	while (comm.head < number)
		pthread_cond_wait(&comm.done, &comm.lock);
	pthread_mutex_unlock(&comm.lock);
}

static void
comm_beside(RtHost *h, const RtMsg *m, int n)
{
	(void)h;
	if (!n)
		return;
	pthread_mutex_lock(&comm.lock);
	comm.beside.n = n;
	__atomic_store_n(&comm.beside.m, m, __ATOMIC_RELEASE);
	pthread_cond_signal(&comm.work);
	while (comm.beside.m)
		pthread_cond_wait(&comm.done, &comm.lock);
	pthread_mutex_unlock(&comm.lock);
}

static void
comm_run(RtHost *h, void (*fn)(RtHost *h, void *cx), void *cx)
{
	comm_wait(h, comm_post(h, fn, cx));
}

/* ---- bytes of all, bytes of rank 0 */

typedef struct Gathering { const void *mine; size_t n; uint8_t **all; size_t *at; } Gathering;

static void
gather_now(RtHost *h, void *cx)
{
	Gathering *g = cx;
	RtMsg *m = rt_alloc(sizeof *m * 2 * (size_t)comm.size);
	uint64_t *bytes = rt_alloc(sizeof *bytes * (size_t)comm.size);
	int n = 0;

	bytes[comm.rank] = g->n;
	for (int r = 0; r < comm.size; r++)
		if (r != comm.rank) {
			m[n++] = (RtMsg){r, true, &bytes[comm.rank], 8};
			m[n++] = (RtMsg){r, false, &bytes[r], 8};
		}
	comm_move(h, m, n);
	g->at[0] = 0;
	for (int r = 0; r < comm.size; r++)
		g->at[r + 1] = g->at[r] + bytes[r];
	*g->all = rt_alloc(g->at[comm.size] + 1);
	if (g->n)
		memcpy(*g->all + g->at[comm.rank], g->mine, g->n);
	n = 0;
	for (int r = 0; r < comm.size; r++)
		if (r != comm.rank) {
			m[n++] = (RtMsg){r, true, *g->all + g->at[comm.rank], g->n};
			m[n++] = (RtMsg){r, false, *g->all + g->at[r], bytes[r]};
		}
	comm_move(h, m, n);
	free(bytes);
	free(m);
}

static void
comm_gather(RtHost *h, const void *mine, size_t n, uint8_t **all, size_t *at)
{
	Gathering g = {.mine = mine, .n = n, .all = all, .at = at};

	comm_run(h, gather_now, &g);
}

typedef struct Sharing { void **bytes; size_t *n; } Sharing;

static void
share_now(RtHost *h, void *cx)
{
	Sharing *s = cx;
	RtMsg *m = rt_alloc(sizeof *m * (size_t)comm.size);
	uint64_t bytes = *s->n;

	for (size_t at = 0, part = 0, head = 1; head || at < bytes; at += part, part = 0) {
		int n = 0;

		part = head ? 0 : bytes - at < MOST ? bytes - at : MOST;
		for (int r = comm.rank ? 0 : 1; r < (comm.rank ? 1 : comm.size); r++)
			m[n++] = (RtMsg){r, comm.rank == 0, head ? (void *)&bytes : (uint8_t *)*s->bytes + at,
			                 head ? 8 : part};
		comm_move(h, m, n);
		if (head && comm.rank)
			*s->bytes = rt_alloc(bytes + 1);
		head = 0;
	}
	*s->n = bytes;
	free(m);
}

static void
comm_share(RtHost *h, void **bytes, size_t *n)
{
	Sharing s = {bytes, n};

	comm_run(h, share_now, &s);
}

/* ---- agreement */

/* The first line in which b differs from a. */
static void
comm_differs(RtHost *h, const char *a, const char *b, int rank)
{
	while (*a && *b) {
		size_t na = strcspn(a, "\n"), nb = strcspn(b, "\n");

		if (na != nb || memcmp(a, b, na) != 0) {
			int name = (int)strcspn(a, " ");

			rt_fail(&h->error, "the ranks do not agree: %.*s is %.*s on rank 0 (%s), %.*s on rank %d (%s)",
			        name, a, (int)na - name - 1, a + name + 1, comm_host(0),
			        (int)nb > name ? (int)nb - name - 1 : 0, (int)nb > name ? b + name + 1 : "", rank,
			        comm_host(rank));
			return;
		}
		a += na + (a[na] == '\n');
		b += nb + (b[nb] == '\n');
	}
	rt_fail(&h->error, "rank 0 (%s) and rank %d (%s) were not given the same options", comm_host(0), rank,
	        comm_host(rank));
}

/* What goes round: "1" or "0" and the error's text, an end, the lines. */
static bool
comm_agree(RtHost *h, bool good, const char *text)
{
	char *mine = rt_printf("%d%s%c%s", good, good ? "" : h->error.text, 1, text);
	size_t *at = rt_alloc(sizeof *at * (size_t)(comm.size + 1));
	uint8_t *all = NULL;
	const char *first;

	comm_gather(h, mine, strlen(mine) + 1, &all, at);
	first = (const char *)all;
	good = true;
	for (int r = 0; good && r < comm.size; r++) {
		const char *s = (const char *)all + at[r];
		int n = (int)strcspn(s, "\1");

		good = *s == '1';
		if (!good && (r || (comm.size > 1 && strcmp(s, (const char *)all + at[1]) != 0)))
			rt_fail(&h->error, "rank %d (%s): %.*s", r, comm_host(r), n - 1, s + 1);
		else if (!good)
			rt_fail(&h->error, "%.*s", n - 1, s + 1);
	}
	for (int r = 1; good && r < comm.size; r++) {
		const char *s = (const char *)all + at[r];

		good = strcmp(strchr(s, 1), strchr(first, 1)) == 0;
		if (!good)
			comm_differs(h, strchr(first, 1) + 1, strchr(s, 1) + 1, r);
	}
	h->agreed = h->agreed || !good;          /* all know, and rank 0 says so */
	free(all);
	free(at);
	free(mine);
	return good;
}

/* ---- meeting */

static void
comm_start(RtHost *h, void *cx)
{
	(void)h, (void)cx;
	if (!comm.wire->start(comm.at, &comm.rank, &comm.size, &comm.error))
		comm.size = 0;
}

static void
comm_begin_life(RtHost *h, void *cx)
{
	double now = rt_now();

	(void)h, (void)cx;
	comm.peer = rt_alloc(sizeof *comm.peer * (size_t)comm.size);
	comm.looked = now;
	for (int r = 0; r < comm.size; r++) {
		comm.peer[r].seen = now;
		if (comm_hears(r))
			comm_listen(r);
	}
	comm_beat(now);
}

/* Hosts, processes, CPUs: who shares them. *nodes: hosts; the threads that a rank of this one may have. */
static int
comm_meet(RtHost *h, int *nodes)
{
	Hello mine = {.pid = getpid()};
	size_t *at = rt_alloc(sizeof *at * (size_t)(comm.size + 1));
	uint8_t *all = NULL;
	cpu_set_t set;
	int beside = 0;

	gethostname(mine.host, sizeof mine.host - 1);
	if (sched_getaffinity(0, sizeof set, &set) == 0)
		mine.cpus = rt_hash(RT_HASH_START, &set, sizeof set);
	comm_gather(h, &mine, sizeof mine, &all, at);
	comm.hello = (Hello *)(void *)all;
	*nodes = 0;
	for (int r = 0; r < comm.size; r++) {
		bool first = true;

		for (int q = 0; q < r; q++)
			first = first && strcmp(comm.hello[q].host, comm.hello[r].host) != 0;
		*nodes += first;
		beside += strcmp(comm.hello[r].host, mine.host) == 0 && comm.hello[r].cpus == mine.cpus;
	}
	free(at);
	return rt_cpus() / beside > 1 ? rt_cpus() / beside : 1;
}

static void
comm_hush(RtHost *h)
{
	fflush(stdout);
	fflush(stderr);
	h->err = comm.err = fdopen(dup(2), "w");
	if (comm.rank == 0)
		return;
	if (!freopen("/dev/null", "w", stdout) || !freopen("/dev/null", "w", stderr))
		h->err = stderr;
	h->opt.quiet = h->opt.no_save = true;
	h->opt.save = h->opt.log = NULL;
}

/* No word of the others but by the launcher: the least that all can say before they have met. */
static int
comm_refuse(RtHost *h, int rank, int status)
{
	if (rank == 0)
		fprintf(stderr, "%s: %s\n", h->opt.program, h->error.text);
	return status;
}

static int
comm_thread(RtHost *h)
{
	sigset_t all, old;
	int bad;

	comm.h = h;
	comm.err = stderr;
	pthread_mutex_init(&comm.lock, NULL);
	pthread_cond_init(&comm.work, NULL);
	pthread_cond_init(&comm.done, NULL);
	sigfillset(&all);
	pthread_sigmask(SIG_BLOCK, &all, &old);  /* signals are the monitor's */
	bad = pthread_create(&comm.thread, NULL, comm_main, NULL);
	pthread_sigmask(SIG_SETMASK, &old, NULL);
	if (bad)
		rt_fail(&h->error, "the exchange thread could not be started: %s", strerror(bad));
	return bad;
}

/* CPUs may differ: all take the first code object, of one executable, that each of them runs. */
static bool
comm_object(RtHost *h)
{
	typedef struct Able {
		uint64_t objects, program;
	} Able;
	Able mine = {.objects = h->able, .program = RT_HASH_START};
	size_t *at = rt_alloc(sizeof *at * (size_t)(comm.size + 1));
	uint64_t able = h->able;
	uint8_t *all = NULL;
	bool one = true;
	int lacks = -1, object = 0;

	for (int i = 0; i < h->nobjects; i++)
		mine.program = rt_hash(mine.program, h->objects[i]->program, strlen(h->objects[i]->program));
	comm_gather(h, &mine, sizeof mine, &all, at);
	for (int r = 0; r < comm.size; r++) {
		Able his;

		memcpy(&his, all + at[r], sizeof his);
		one &= his.program == mine.program;
		lacks = lacks < 0 && !(able & his.objects) ? r : lacks;
		able &= his.objects;
	}
	free(all);
	free(at);
	if (!one) /* comm_same says so */
		return true;
	if (!able) {
		h->agreed = true;
		return rt_fail(
		        &h->error,
		        "no code object of the program runs on every process's %s: not on that of rank %d (%s) and "
		        "those before it; build with an --arch that all have, too",
		        h->object->device ? "device" : "CPU", lacks, comm_host(lacks));
	}
	while (!(able >> object & 1))
		object++;
	if (h->objects[object] == h->object)
		return true;
	if (!rt_host_take(h, object))
		return false;
	if (comm.rank == 0 && !h->opt.quiet)
		fprintf(stderr, "note: the CPUs differ: the code object for %s is the best that all have\n",
		        h->program.arch);
	return true;
}

static bool
comm_same(RtHost *h)
{
	const RtOptions *o = &h->opt;
	char *text =
	        rt_printf("executable %016llx\nshards %lld\n--epochs %lld\n--steps %lld\n--stop %lld\n--every "
	                  "%lld\n--seed %lld\n--sink %lld\n--allow-nan %d\n"
	                  "--no-eval %d\n--synthetic %d\n--replan %d\n--continue %d\n--partial %d\n--resume "
	                  "%s\n--weights %s\n--names %s\n--keep %s\n--by %s\n--stop-after-worse %lld\n"
	                  "--exchange %s\n--no-exchange %d\n--only-exchange %d\n--links %d\ncommand "
	                  "%d\n",
	                  (unsigned long long)rt_hash(RT_HASH_START, h->object->program, strlen(h->object->program)),
	                  (long long)h->program.shards, (long long)o->epochs, (long long)o->steps, (long long)o->stop,
	                  (long long)o->every, (long long)(o->has_seed ? o->seed : 0), (long long)o->sink, o->allow_nan,
	                  o->no_eval, o->synthetic, o->replan, o->goes_on, o->partial, o->resume ? o->resume : "-",
	                  o->weights ? o->weights : "-", o->names ? o->names : "-", o->keep ? o->keep : "-",
	                  o->by ? o->by : "-", (long long)o->patience, o->exchange ? o->exchange : "tree",
	                  o->no_exchange, o->only_exchange, o->links, (int)o->command);
	bool good = comm_agree(h, true, text);

	free(text);
	return good;
}

static void
comm_say(RtHost *h, int nodes, int threads)
{
	int64_t s = h->program.shards, most = (s + comm.size - 1) / comm.size;

	double bytes = 0;
	int buckets = h->program.nbucket ? h->program.nbucket : 1;

	if (h->opt.quiet)
		return;
	for (int k = 0; k < h->program.nstate; k++)
		bytes += h->program.state[k].kind == RT_GRAD ? (double)h->program.state[k].t.bytes : 0;
	fprintf(stderr,
	        "%d processes on %d node%s (%s), %lld shard%s, %s%lld each, %d thread%s each; %.3g MB to exchange in "
	        "%d bucket%s\n",
	        comm.size, nodes, nodes == 1 ? "" : "s", comm.wire->name(comm.at), (long long)s, s == 1 ? "" : "s",
	        s % comm.size ? "at most " : "", (long long)most, threads, threads == 1 ? "" : "s", bytes * 1e-6,
	        buckets, buckets == 1 ? "" : "s");
	if (rt_exchange_library(h))
		fprintf(stderr,
		        "note: --exchange library: bits of the result depend on the number of processes and on %s\n",
		        comm.wire->name(comm.at));
	if (s % comm.size)
		fprintf(stderr,
		        "note: %d processes do not divide %lld shards: the busiest has %lld, %lld/%lld of the ideal "
		        "speed\n",
		        comm.size, (long long)s, (long long)most, (long long)s, (long long)(most * comm.size));
}

/* Ends with its launcher from now on; at once, if that has died since this process began, or before: then nobody reads
 * what a library's launcher passes on. */
static void
comm_orphan(const RtHost *h, const RtLaunch *l)
{
	struct pollfd heard = {.fd = STDERR_FILENO};

	prctl(PR_SET_PDEATHSIG, SIGKILL);
	if (getppid() != h->parent ||
	    (strcmp(l->name, "torchrun") != 0 && poll(&heard, 1, 0) == 1 && heard.revents & POLLERR))
		raise(SIGKILL);
}

static int
comm_open(RtHost *h)
{
	RtLaunch l = rt_launch();
	int nodes, threads;

	if (h->opt.alone || !l.name)
		return -1;
	/* with its launcher, also a process that is alone; but torchrun's variables may be a container's, whose shell
	 * may leave */
	if (l.size != 1 || strcmp(l.name, "torchrun") != 0)
		comm_orphan(h, &l);
	if (l.size == 1)
		return -1;
	if (h->opt.command == RT_C_INFER || h->opt.command == RT_C_INFO) {
		rt_fail(&h->error, "%s is for one process, %s started %d",
		        h->opt.command == RT_C_INFER ? "infer" : "info", l.name, l.size);
		return comm_refuse(h, l.rank, 2);
	}
	comm.wire = strcmp(l.name, "torchrun") == 0 ? &rt_tcp : &rt_mpi;
	if (!(comm.at = comm.wire->open(&l, &h->error)) || comm_thread(h))
		return comm_refuse(h, l.rank, 1);
	comm_run(h, comm_start, NULL);
	if (!comm.size) {
		h->error = comm.error;
		return comm_refuse(h, comm.wire == &rt_tcp ? 0 : l.rank, 1); /* who did not come cannot say so */
	}
	if (l.size && comm.size != l.size) {
		rt_fail(&h->error,
		        "%s started %d processes, %s knows of %d: they do not belong together; MANTOU_LIBMPI=LIBRARY "
		        "names the launcher's own",
		        l.name, l.size, comm.wire->name(comm.at), comm.size);
		return comm_refuse(h, l.rank, 2);
	}
	h->rank = comm.rank;
	h->ranks = comm.size;
	comm_run(h, comm_begin_life, NULL); /* a rank may fall silent before all have met */
	threads = comm_meet(h, &nodes);
	comm_hush(h);
	if (!comm_object(h))
		return rt_die(h);
	if (h->program.shards < comm.size) {
		rt_fail(&h->error,
		        "%d processes are more than the model's %lld shard%s: train.shards = %d or --shards %d makes "
		        "as many",
		        comm.size, (long long)h->program.shards, h->program.shards == 1 ? "" : "s", comm.size,
		        comm.size);
		h->agreed = true;
		comm_refuse(h, comm.rank, 2);
		return 2;
	}
	if (!comm_same(h))
		return rt_die(h);
	if (h->opt.threads <= 0)
		h->opt.threads = threads;
	if (comm.rank == 0)
		comm_say(h, nodes, (int)h->opt.threads);
	return -1;
}

static void
comm_abort(RtHost *h)
{
	fprintf(h->err, "%s: error: rank %d (%s): %s\n", h->opt.program, comm.rank, comm_host(comm.rank),
	        h->error.text);
	fflush(h->err);
	__atomic_store_n(&comm.aborts, true, __ATOMIC_RELEASE);
	for (int i = 0; i < 100; i++)            /* the exchange thread sees it */
		comm_nap(100000000);
	_exit(1);
}

static void
comm_close(RtHost *h)
{
	if (!comm.at || comm.size < 1)
		return;
	comm_run(h, comm_leave, NULL);
	pthread_mutex_lock(&comm.lock);
	comm.quit = true;
	pthread_cond_signal(&comm.work);
	pthread_mutex_unlock(&comm.lock);
	pthread_join(comm.thread, NULL);
	comm.at = NULL;
}

const RtComm rt_comm = {
        .open = comm_open,
        .run = comm_run,
        .start = comm_post,
        .wait = comm_wait,
        .move = comm_move,
        .beside = comm_beside,
        .sum = comm_sum,
        .adds = comm_adds,
        .gather = comm_gather,
        .share = comm_share,
        .agree = comm_agree,
        .abort = comm_abort,
        .close = comm_close,
};
