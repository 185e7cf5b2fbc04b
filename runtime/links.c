/* links.c: what the exchange costs by itself: bench --only-exchange, bench --links.
 *
 * In: several processes of a program with shards.   Out: --only-exchange: milliseconds of the exchange of a step's
 * sums, with nothing computed beside it, and the rate (bytes of the sums a second); --links: lines of a description
 * for `mantou scale` (frontend/cluster_file.c): start and bytes/s each way between two processes of a node, and of two
 * nodes, and the rate of adding what arrives. The first two ranks of a node, or of two nodes, move 8 bytes and 4 MiB
 * to each other at once (their devices 16 MiB); the best of several turns counts, as a busy machine only makes them
 * longer. Where processes see each other's sums (window.c) the program's own are exchanged by all of them. */
#include "comm.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

/* the part of an epoch that is worth a warning */
#define LINK_SLOW 0.2
enum { LINK_TURNS = 20, LINK_BYTES = 4 << 20, LINK_DEVICE_BYTES = 16 << 20, LINK_HOST = 64 };

typedef struct Link { int a, b; double start, both; uint8_t *out, *in; } Link;

static double
link_turn(RtHost *h, const Link *l, size_t n)
{
	int other = h->rank == l->a ? l->b : l->a;
	RtMsg m[2] = {{other, true, l->out, n}, {other, false, l->in, n}};
	double begin = rt_now();

	h->comm->move(h, m, 2);
	return rt_now() - begin;
}

/* On the exchange thread of both. */
static void
link_measure(RtHost *h, void *cx)
{
	Link *l = cx;

	l->start = l->both = 1e300;
	for (int i = 0; i < LINK_TURNS; i++) {
		double t = link_turn(h, l, 8);

		l->start = t < l->start ? t : l->start;
	}
	for (int i = 0; i < LINK_TURNS; i++) {
		double t = link_turn(h, l, LINK_BYTES);

		l->both = t < l->both ? t : l->both;
	}
}

/* The same of their devices, on the calling thread. */
static bool
link_devices(RtHost *h, Link *l)
{
	int other = h->rank == l->a ? l->b : l->a;
	double t;

	l->start = l->both = 1e300;
	for (int i = 0; i < 2 * LINK_TURNS; i++) {
		double *least = i < LINK_TURNS ? &l->start : &l->both;

		if (!h->object->device->link(h, other, i < LINK_TURNS ? 8 : LINK_DEVICE_BYTES, &t))
			return false;
		*least = t < *least ? t : *least;
	}
	return true;
}

/* The first pair of ranks on one host, or on two; false: there is none. */
static bool
link_pair(const RtHost *h, const char *hosts, bool inside, Link *l)
{
	for (l->a = 0; l->a < h->ranks; l->a++)
		for (l->b = l->a + 1; l->b < h->ranks; l->b++)
			if ((strncmp(hosts + l->a * LINK_HOST, hosts + l->b * LINK_HOST, LINK_HOST) == 0) == inside)
				return true;
	return false;
}

/* Bytes of a tensor that are added in a second, by the threads, or rank 0's device. False after rt_fail. */
static bool
link_sums(RtHost *h, const Link *l, double *rate)
{
	double best = 1e300;

	for (int i = 0; i < LINK_TURNS && h->object->device && h->rank == 0; i++) {
		double t;

		if (!h->object->device->adds(h, LINK_DEVICE_BYTES, &t))
			return false;
		best = t < best ? t : best;
	}
	*rate = LINK_DEVICE_BYTES / best;
	if (h->object->device)
		return true;
	memset(l->out, 0, LINK_BYTES);
	memset(l->in, 0, LINK_BYTES);
	for (int i = 0; i < LINK_TURNS; i++) {
		double begin = rt_now(), t;

		rt_sum(RT_F32, l->out, l->out, l->in, LINK_BYTES / 4);
		t = rt_now() - begin;
		best = t < best ? t : best;
	}
	*rate = LINK_BYTES / best;
	return true;
}

/* Where processes of one machine see each other's sums: an exchange of gradients that kernels have just written, on all
 * ranks at once; as a link, and as what it takes from the loop, which does it itself. */
static void
link_windows(RtHost *h, char *text, size_t room)
{
	RtSums *s = &h->sums;
	double least = 1e300, start = 1e300, passed = (double)s->bytes * 2 * (h->ranks - 1) / h->ranks;

	for (int i = 0; i < LINK_TURNS; i++) {
		double begin;

		memset(h->run.arena + s->begin, 0, (size_t)s->bytes);
		rt_window_say(h, s->vote, s->vote_at);
		begin = rt_now();
		rt_window_say(h, s->vote, s->vote_at);
		start = fmin(start, rt_now() - begin);
		begin = rt_now();
		for (s->started = 0; s->started < s->nbucket;) {
			s->started++;
			rt_window_start(h);
		}
		rt_window_wait(h, s->nbucket - 1);
		least = fmin(least, rt_now() - begin);
	}
	s->started = 0;
	snprintf(text, room, "link inside %.3gus %.4gGB/s\nwork %.4gms/MB\n", start * 1e6, passed / least * 1e-9,
	         least * 1e9 / passed);
}

bool
rt_links(RtHost *h)
{
	size_t *at = rt_alloc(sizeof *at * (size_t)(h->ranks + 1));
	char mine[LINK_HOST] = "";
	uint8_t *hosts = NULL;
	Link l = {.out = rt_large(LINK_BYTES), .in = rt_large(LINK_BYTES)};
	char text[1024] = "";
	double bytes = h->object->device ? LINK_DEVICE_BYTES : LINK_BYTES, sums;

	if (!l.out || !l.in)
		return rt_fail(&h->error, "out of memory for messages of %d MiB", LINK_BYTES >> 20);
	gethostname(mine, sizeof mine - 1);
	h->comm->gather(h, mine, sizeof mine, &hosts, at);
	free(at);
	if (h->sums.window)
		link_windows(h, text, sizeof text);
	for (int inside = h->sums.window ? -1 : 1; inside >= 0; inside--) {
		double both[2] = {0}, *seen;
		uint8_t *all = NULL;

		if (!link_pair(h, (const char *)hosts, inside, &l))
			continue;
		if (h->rank == l.a || h->rank == l.b) {
			if (!h->object->device)
				h->comm->run(h, link_measure, &l);
			else if (!link_devices(h, &l))
				return false;
			both[0] = l.start;
			both[1] = l.both;
		}
		at = rt_alloc(sizeof *at * (size_t)(h->ranks + 1));
		h->comm->gather(h, both, sizeof both, &all, at);
		seen = (double *)(void *)(all + at[l.a]);
		snprintf(text + strlen(text), sizeof text - strlen(text), "link %s %.3gus %.4gGB/s\n",
		         inside ? "inside" : "between", seen[0] * 1e6,
		         bytes / (seen[1] > seen[0] ? seen[1] - seen[0] : seen[1]) * 1e-9);
		free(all);
		free(at);
	}
	free(hosts);
	if (!link_sums(h, &l, &sums))
		return false;
	printf("%ssum %.4gGB/s\n", text, sums * 1e-9);
	free(l.out);
	free(l.in);
	return true;
}

/* ---- the exchange alone */

void
rt_together(RtHost *h)
{
	size_t *at;
	uint8_t *all, here = 1;

	if (h->ranks == 1)
		return;
	at = rt_alloc(sizeof *at * (size_t)(h->ranks + 1));
	h->comm->gather(h, &here, 1, &all, at);
	free(all);
	free(at);
	if (h->sums.window)
		rt_window_say(h, h->sums.vote, h->sums.vote_at);
}

/* n of them, as steps would ask for them. */
bool
rt_exchanges(RtHost *h, int64_t n)
{
	RtRun *run = &h->run;

	if (h->object->device)
		return h->object->device->exchange(h, n);
	for (; n > 0; n--, run->step++) {
		for (run->micro = h->sums.lo; run->micro < h->sums.hi; run->micro++)
			if (rt_merge(run) != RT_OK)
				return h->error.text[0] || rt_fail(&h->error, "the exchange failed");
		rt_wait(run, h->sums.nbucket);
	}
	return true;
}

bool
rt_only_exchange(RtHost *h)
{
	double *ms = rt_alloc(sizeof *ms * (size_t)h->opt.repeat);
	double bytes = (double)h->sums.bytes;
	RtTiming t;

	/* numbers, as gradients are: what memory holds at the start may be zeros that no memory stands behind */
	memset(h->run.arena + h->sums.begin, 0, (size_t)h->sums.bytes);
	if (!rt_exchanges(h, h->opt.warmup))
		return false;
	for (int64_t i = 0; i < h->opt.repeat; i++) {
		double begin = rt_now();

		if (!rt_exchanges(h, h->opt.bench_steps))
			return false;
		ms[i] = (rt_now() - begin) * 1e3 / (double)h->opt.bench_steps;
	}
	t = rt_timing(ms, h->opt.repeat);
	free(ms);
	if (h->opt.json)
		printf("{\"processes\": %d, \"shards\": %lld, \"exchange_bytes\": %.0f, \"by\": \"%s\", "
		       "\"exchange_ms\": {\"median\": %.4f, \"min\": %.4f, \"max\": %.4f}, \"gb_per_s\": %.4g}\n",
		       h->ranks, (long long)h->program.shards, bytes, rt_exchange_library(h) ? "library" : "tree",
		       t.median, t.least, t.most, bytes / t.median * 1e-6);
	else
		printf("%-12s %d\n%-12s %.3f MB a step, by %s\n%-12s %.3f ms (%.3f to %.3f), %.3g GB/s\n", "processes",
		       h->ranks, "exchange", bytes * 1e-6, rt_exchange_library(h) ? "the library" : "the tree", "time",
		       t.median, t.least, t.most, bytes / t.median * 1e-6);
	return true;
}

/* ---- of an epoch */

void
rt_exchange_log(const RtHost *h)
{
	const RtSums *s = &h->sums;

	if (h->ranks > 1 && !h->object->device)
		fprintf(h->log, ", \"exchange\": {\"bytes\": %lld, \"seconds\": %.3f, \"exposed\": %.3f}",
		        (long long)(s->moved - s->told_moved), s->busy + s->voting - s->told_busy,
		        s->exposed + s->voting - s->told_exposed);
}

void
rt_exchange_warn(RtHost *h, int64_t epoch, double seconds)
{
	RtSums *s = &h->sums;
	double exposed = s->exposed + s->voting - s->told_exposed, busy = s->busy + s->voting - s->told_busy;

	if (h->ranks > 1 && h->rank == 0 && !h->opt.quiet && exposed > LINK_SLOW * seconds && busy > 0) {
		rt_progress_clear(h);
		fprintf(stderr,
		        "%s: warning: %.0f %% of epoch %lld was spent waiting for other processes: %.3g GB/s were "
		        "exchanged, buckets are cut for %.3g; bench --links measures the links\n",
		        h->opt.program, 100 * fmin(1, exposed / seconds), (long long)epoch + 1,
		        (double)(s->moved - s->told_moved) / busy * 1e-9, h->program.link.rate * 1e-9);
	}
	s->told_busy = s->busy + s->voting;
	s->told_exposed = s->exposed + s->voting;
	s->told_moved = s->moved;
}
