/* tcp.c: bytes between processes over sockets, where the environment names a place to meet and no MPI started them
 * (torchrun's variables RANK, WORLD_SIZE, MASTER_ADDR, MASTER_PORT).
 *
 * In: the variables.   Out: the functions of RtWire. Rank 0 listens at MASTER_PORT + 1, as torchrun itself has
 * MASTER_PORT; every rank tells it where it listens itself, gets the list, and calls all ranks between. So there is
 * one connection for each pair. A message is a header and its bytes; between two ranks messages of a tag match in
 * order. What arrives before it is asked for waits in memory. A connection that ends is a process that has ended:
 * gone() names it, or, where it had said so before (abort), that the job ends. */
#define _GNU_SOURCE
#include "comm.h"

#include <errno.h>
#include <fcntl.h>
#include <math.h>
#include <netdb.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <poll.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <sys/uio.h>
#include <time.h>
#include <unistd.h>

enum { TCP_WAIT = 60, TCP_HELLO = 5 /* seconds to meet; for who has called to say who it is */, TCP_TAGS = 5 };
/* tags of its own: goodbye; the job ends */
enum { TCP_BYE = 0, TCP_ENDS = 4 };
static const char tcp_magic[8] = "mantou1";

typedef struct Head {
	uint64_t n;
	uint32_t tag, pad;
} Head;
typedef struct Msg {
	struct Msg *next;
	Head head;
	uint8_t *at;
	size_t moved;         /* of head and bytes */
	bool finished, early; /* early: `at` is its own, nobody asked for it yet */
} Msg;
typedef struct Queue {
	Msg *first, **last;
} Queue;
typedef struct Line {
	int fd; /* -1: this rank itself, or ended */
	Queue out, want[TCP_TAGS], early[TCP_TAGS];
	Head head;              /* of the message that arrives */
	size_t got;             /* of the header */
	Msg *in;                /* it, behind its header */
	bool ended, told, left; /* told: it ends the job; left: it has said goodbye */
} Line;
typedef struct Tcp {
	int rank, size;
	char *host, *port; /* MASTER_ADDR, MASTER_PORT */
	Line *line;
	struct pollfd *poll;
} Tcp;
typedef struct Hello {
	char magic[8];
	int32_t rank, size;
	uint16_t port;
	char pad[6];
} Hello;

static void
queue_put(Queue *q, Msg *m)
{
	m->next = NULL;
	if (!q->first)
		q->last = &q->first;
	*q->last = m;
	q->last = &m->next;
}

static Msg *
queue_take(Queue *q)
{
	Msg *m = q->first;

	if (m)
		q->first = m->next;
	return m;
}

/* ---- meeting */

static void *
tcp_open(const RtLaunch *l, RtError *e)
{
	Tcp *t = rt_alloc(sizeof *t);

	(void)e;
	t->rank = l->rank;
	t->size = l->size;
	t->host = getenv("MASTER_ADDR");
	t->port = getenv("MASTER_PORT");
	return t;
}

static bool
tcp_all(int fd, void *at, size_t n, bool out, double until)
{
	for (size_t done = 0; done < n;) {
		struct pollfd p = {.fd = fd, .events = out ? POLLOUT : POLLIN};
		ssize_t k;

		if (poll(&p, 1, 200) <= 0) {
			if (rt_now() > until)
				return false;
			continue;
		}
		k = out ? send(fd, (uint8_t *)at + done, n - done, MSG_NOSIGNAL)
		        : recv(fd, (uint8_t *)at + done, n - done, 0);
		if (k <= 0)
			return false;
		done += (size_t)k;
	}
	return true;
}

/* port 0: any; *port is what it became. -1: errno says why not. */
static int
tcp_listen(int family, uint16_t *port)
{
	struct sockaddr_storage a = {.ss_family = (sa_family_t)family};
	socklen_t n = sizeof a;
	int fd = socket(family, SOCK_STREAM | SOCK_CLOEXEC, 0), on = 1;
	uint16_t *at =
	        family == AF_INET6 ? &((struct sockaddr_in6 *)&a)->sin6_port : &((struct sockaddr_in *)&a)->sin_port;

	*at = htons(*port);
	if (fd < 0)
		return -1;
	setsockopt(fd, SOL_SOCKET, SO_REUSEADDR, &on, sizeof on);
	if (bind(fd, (struct sockaddr *)&a,
	         family == AF_INET6 ? sizeof(struct sockaddr_in6) : sizeof(struct sockaddr_in)) ||
	    listen(fd, 1024) || getsockname(fd, (struct sockaddr *)&a, &n)) {
		int error = errno;

		close(fd);
		errno = error;
		return -1;
	}
	*port = ntohs(*at);
	return fd;
}

static int
tcp_call(const struct sockaddr *a, socklen_t n, double until)
{
	for (;;) {
		int fd = socket(a->sa_family, SOCK_STREAM | SOCK_CLOEXEC, 0), error;

		if (fd >= 0 && connect(fd, a, n) == 0)
			return fd;
		error = errno;
		if (fd >= 0)
			close(fd);
		if (rt_now() > until) {
			errno = error;
			return -1;
		}
		nanosleep(&(struct timespec){.tv_nsec = 50000000}, NULL);
	}
}

static int
tcp_answer(int listener, double until)
{
	struct pollfd p = {.fd = listener, .events = POLLIN};

	while (poll(&p, 1, 200) <= 0)
		if (rt_now() > until) {
			errno = ETIMEDOUT;
			return -1;
		}
	return accept4(listener, NULL, NULL, SOCK_CLOEXEC);
}

static socklen_t
address_bytes(const struct sockaddr_storage *a)
{
	return a->ss_family == AF_INET6 ? sizeof(struct sockaddr_in6) : sizeof(struct sockaddr_in);
}

/* A process of this job calls: its line. False: it was none, or errno. */
static bool
tcp_hears(Tcp *t, int listener, double until, Hello *hello)
{
	int fd = tcp_answer(listener, until);

	if (fd < 0)
		return false;
	if (!tcp_all(fd, hello, sizeof *hello, false, fmin(until, rt_now() + TCP_HELLO)) ||
	    memcmp(hello->magic, tcp_magic, sizeof tcp_magic) != 0 || hello->size != t->size || hello->rank <= 0 ||
	    hello->rank >= t->size || t->line[hello->rank].fd >= 0) {
		close(fd); /* a stranger */
		hello->rank = -1;
		return true;
	}
	t->line[hello->rank].fd = fd;
	return true;
}

/* Rank 0: hears of all, tells all where all listen. */
static bool
tcp_leads(Tcp *t, int family, uint16_t port, double until, RtError *e)
{
	struct sockaddr_storage *where = rt_alloc(sizeof *where * (size_t)t->size);
	int listener = tcp_listen(family, &port), heard = 1;
	bool good = listener >= 0 ||
	            rt_fail(e, "rank 0 cannot listen at port %d (MASTER_PORT + 1): %s", port, strerror(errno));

	while (good && heard < t->size) {
		Hello hello;

		if (!tcp_hears(t, listener, until, &hello)) {
			good = rt_fail(e,
			               "of %d processes (WORLD_SIZE) %d have come to port %d (MASTER_PORT + 1) of rank "
			               "0 within %d s",
			               t->size, heard, port, TCP_WAIT);
			break;
		}
		if (hello.rank < 0)
			continue;
		struct sockaddr_storage *a = &where[hello.rank];
		socklen_t n = sizeof *a;

		getpeername(t->line[hello.rank].fd, (struct sockaddr *)a, &n);
		*(a->ss_family == AF_INET6 ? &((struct sockaddr_in6 *)a)->sin6_port
		                           : &((struct sockaddr_in *)a)->sin_port) = hello.port;
		heard++;
	}
	for (int r = 1; r < t->size && good; r++)
		good = tcp_all(t->line[r].fd, where, sizeof *where * (size_t)t->size, true, until) ||
		       rt_fail(e, "rank %d left while the processes met", r);
	if (listener >= 0)
		close(listener);
	free(where);
	return good;
}

static bool
tcp_follows(Tcp *t, const struct addrinfo *to, double until, RtError *e)
{
	struct sockaddr_storage *where = rt_alloc(sizeof *where * (size_t)t->size);
	Hello hello = {.rank = t->rank, .size = t->size};
	uint16_t port = 0;
	int listener = tcp_listen(to->ai_family, &port), wait = 0;
	bool good = listener >= 0 || rt_fail(e, "rank %d cannot listen: %s", t->rank, strerror(errno));

	memcpy(hello.magic, tcp_magic, sizeof tcp_magic);
	hello.port = htons(port);
	if (good && (t->line[0].fd = tcp_call(to->ai_addr, to->ai_addrlen, until)) < 0)
		good = rt_fail(
		        e, "rank %d: no answer of rank 0 at %s, port %s + 1 (MASTER_ADDR, MASTER_PORT), for %d s: %s",
		        t->rank, t->host, t->port, TCP_WAIT, strerror(errno));
	if (good && (!tcp_all(t->line[0].fd, &hello, sizeof hello, true, until) ||
	             !tcp_all(t->line[0].fd, where, sizeof *where * (size_t)t->size, false, until)))
		good = rt_fail(e, "rank %d: rank 0 left while the processes met, or waited for one that did not come",
		               t->rank);
	for (int r = 1; r < t->rank && good; r++) {
		t->line[r].fd = tcp_call((struct sockaddr *)&where[r], address_bytes(&where[r]), until);
		good = (t->line[r].fd >= 0 && tcp_all(t->line[r].fd, &hello, sizeof hello, true, until)) ||
		       rt_fail(e, "rank %d: no answer of rank %d: %s", t->rank, r, strerror(errno));
	}
	for (wait = t->size - 1 - t->rank; wait > 0 && good;) {
		if (!tcp_hears(t, listener, until, &hello))
			good = rt_fail(e, "rank %d: %d of %d processes did not call within %d s", t->rank, wait,
			               t->size, TCP_WAIT);
		else
			wait -= hello.rank >= 0;
	}
	if (listener >= 0)
		close(listener);
	free(where);
	return good;
}

static bool
tcp_start(void *w, int *rank, int *size, RtError *e)
{
	Tcp *t = w;
	struct addrinfo hints = {.ai_family = AF_UNSPEC, .ai_socktype = SOCK_STREAM}, *to = NULL;
	double until = rt_now() + TCP_WAIT;
	char port[16];
	int why;
	bool good;

	t->line = rt_alloc(sizeof *t->line * (size_t)t->size);
	t->poll = rt_alloc(sizeof *t->poll * (size_t)t->size);
	for (int r = 0; r < t->size; r++)
		t->line[r].fd = -1;
	snprintf(port, sizeof port, "%d", atoi(t->port) + 1);
	if ((why = getaddrinfo(t->host, port, &hints, &to)) != 0)
		return rt_fail(e, "MASTER_ADDR %s, MASTER_PORT %s: %s", t->host, t->port, gai_strerror(why));
	good = t->rank == 0 ? tcp_leads(t, to->ai_family, (uint16_t)atoi(port), until, e)
	                    : tcp_follows(t, to, until, e);
	freeaddrinfo(to);
	for (int r = 0; r < t->size && good; r++) {
		int on = 1, fd = t->line[r].fd;

		if (fd < 0)
			continue;
		setsockopt(fd, IPPROTO_TCP, TCP_NODELAY, &on, sizeof on);
		fcntl(fd, F_SETFL, fcntl(fd, F_GETFL) | O_NONBLOCK);
	}
	*rank = t->rank;
	*size = t->size;
	return good;
}

static const char *
tcp_name(const void *w)
{
	(void)w;
	return "TCP";
}

/* ---- messages */

/* What can be written now. */
static void
line_write(Line *l)
{
	while (l->out.first && l->fd >= 0) {
		Msg *m = l->out.first;
		size_t head = m->moved < sizeof m->head ? sizeof m->head - m->moved : 0,
		       at = m->moved < sizeof m->head ? 0 : m->moved - sizeof m->head;
		struct iovec v[2] = {{(uint8_t *)&m->head + sizeof m->head - head, head}, {m->at + at, m->head.n - at}};
		struct msghdr h = {.msg_iov = head ? v : v + 1, .msg_iovlen = head ? 2 : 1};
		ssize_t k = sendmsg(l->fd, &h, MSG_NOSIGNAL | MSG_DONTWAIT);

		if (k < 0) {
			if (errno != EAGAIN && errno != EWOULDBLOCK && errno != EINTR)
				l->ended = true;
			return;
		}
		m->moved += (size_t)k;
		if (m->moved < sizeof m->head + m->head.n)
			return;
		queue_take(&l->out);
		m->finished = true;
	}
}

/* A header is whole: where its bytes go. */
static void
line_begins(Line *l)
{
	Queue *want;

	if (l->head.tag >= TCP_TAGS) { /* no word of ours */
		l->ended = true;
		return;
	}
	want = &l->want[l->head.tag];
	if (want->first && want->first->head.n == l->head.n) {
		l->in = queue_take(want);
	} else if (want->first) {
		l->ended = true;
		return;
	} else {
		l->in = rt_alloc(sizeof *l->in);
		l->in->at = rt_alloc(l->head.n + 1);
		l->in->early = true;
	}
	l->in->head = l->head;
	l->in->moved = 0;
}

static void
line_finishes(Line *l)
{
	Msg *m = l->in, *asked;
	int tag = (int)m->head.tag;

	l->in = NULL;
	l->got = 0;
	l->told |= tag == TCP_ENDS;
	l->left |= tag == TCP_BYE;
	if (!m->early) {
		m->finished = true;
		return;
	}
	if (!(asked = queue_take(&l->want[tag]))) {
		queue_put(&l->early[tag], m);
		return;
	}
	if (asked->head.n == m->head.n) /* asked for while it arrived */
		memcpy(asked->at, m->at, m->head.n);
	else
		l->ended = true;
	asked->finished = !l->ended;
	free(m->at);
	free(m);
}

/* What has arrived. */
static void
line_read(Line *l)
{
	while (!l->ended) {
		ssize_t k = l->in ? recv(l->fd, l->in->at + l->in->moved, l->in->head.n - l->in->moved, MSG_DONTWAIT)
		                  : recv(l->fd, (uint8_t *)&l->head + l->got, sizeof l->head - l->got, MSG_DONTWAIT);

		if (k < 0 && (errno == EAGAIN || errno == EWOULDBLOCK || errno == EINTR))
			return;
		if (k <= 0) {
			l->ended = true;
			return;
		}
		if (l->in) {
			l->in->moved += (size_t)k;
		} else if ((l->got += (size_t)k) == sizeof l->head) {
			line_begins(l);
		} else {
			continue;
		}
		if (l->in && l->in->moved == l->in->head.n)
			line_finishes(l);
	}
}

static void
tcp_progress(Tcp *t)
{
	for (int r = 0; r < t->size; r++)
		t->poll[r] = (struct pollfd){.fd = t->line[r].ended ? -1 : t->line[r].fd,
		                             .events = (short)(POLLIN | (t->line[r].out.first ? POLLOUT : 0))};
	if (poll(t->poll, (nfds_t)t->size, 0) <= 0)
		return;
	for (int r = 0; r < t->size; r++) {
		if (t->poll[r].revents & POLLOUT)
			line_write(&t->line[r]);
		if (t->poll[r].revents & (POLLIN | POLLHUP | POLLERR))
			line_read(&t->line[r]);
	}
}

static Msg *
tcp_message(void *at, size_t n, int tag, RtRequest *r)
{
	Msg *m = rt_alloc(sizeof *m);

	m->head = (Head){.n = n, .tag = (uint32_t)tag};
	m->at = at;
	memcpy(r->at, &m, sizeof m);
	r->open = true;
	return m;
}

static void
tcp_send(void *w, const void *at, size_t n, int to, int tag, RtRequest *r)
{
	Tcp *t = w;
	Msg *m = tcp_message((void *)(uintptr_t)at, n, tag, r);

	queue_put(&t->line[to].out, m);
	line_write(&t->line[to]);
}

static void
tcp_receive(void *w, void *at, size_t n, int from, int tag, RtRequest *r)
{
	Line *l = &((Tcp *)w)->line[from];
	Msg *m = tcp_message(at, n, tag, r), *there = queue_take(&l->early[tag]);

	if (!there) {
		queue_put(&l->want[tag], m);
		return;
	}
	l->ended |= there->head.n != n;
	if (there->head.n == n)
		memcpy(at, there->at, n);
	m->finished = there->head.n == n;
	free(there->at);
	free(there);
}

static bool
tcp_done(void *w, RtRequest *r)
{
	Msg *m;

	if (!r->open)
		return true;
	memcpy(&m, r->at, sizeof m);
	if (!m->finished)
		tcp_progress(w);
	if (!m->finished)
		return false;
	r->open = false;
	free(m);
	return true;
}

static int
tcp_gone(void *w, bool *told)
{
	Tcp *t = w;

	*told = false;
	if (!t->line) /* nobody has met yet */
		return -1;
	for (int r = 0; r < t->size; r++) /* who ends the job has ended others too */
		if (t->line[r].told) {
			*told = true;
			return r;
		}
	for (int r = 0; r < t->size; r++)
		if (t->line[r].ended && !t->line[r].left)
			return r;
	return -1;
}

/* ---- the end */

/* A last word to all, as far as a second goes. */
static void
tcp_say(Tcp *t, int tag)
{
	double until = rt_now() + 1;
	bool waits = true;

	for (int r = 0; r < t->size; r++) {
		RtRequest request;

		if (t->line[r].fd >= 0 && !t->line[r].ended)
			tcp_send(t, tcp_magic, 0, r, tag, &request);
	}
	while (waits && rt_now() < until) {
		waits = false;
		for (int r = 0; r < t->size; r++)
			waits |= t->line[r].out.first && !t->line[r].ended;
		tcp_progress(t);
	}
}

static void
tcp_abort(void *w, int status)
{
	(void)status;
	tcp_say(w, TCP_ENDS);
}

static void
tcp_end(void *w)
{
	Tcp *t = w;

	tcp_say(t, TCP_BYE);
	for (int r = 0; r < t->size; r++)
		if (t->line[r].fd >= 0)
			close(t->line[r].fd);
	free(t->line);
	free(t->poll);
	free(t);
}

const RtWire rt_tcp = {
        .open = tcp_open,
        .start = tcp_start,
        .name = tcp_name,
        .send = tcp_send,
        .receive = tcp_receive,
        .done = tcp_done,
        .gone = tcp_gone,
        .abort = tcp_abort,
        .end = tcp_end,
};
