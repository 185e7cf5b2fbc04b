/* ring.c: a ring of whole batches that threads make ready ahead of the loop.
 *
 * In: a data set, the order of its epochs, a number of threads.   Out: batches, one after the other, in the inputs' own
 * types. Which thread makes an example decides nothing: an example has a place in its batch, and what is random in it
 * depends on its number and the epoch. A thread takes some examples of the first batch that still wants any, so that
 * the batch which is asked for next is finished first.
 * An example that cannot be read fails its batch, when that is asked for: the message is that of the lowest place. */
#include "host.h"

#include <stdlib.h>
#include <string.h>

enum { RING_SLOTS = 4, RING_BYTES = 256 << 20 };

typedef struct Slot {
	int64_t epoch, index, n;     /* of the batch; n: its examples */
	int64_t taken, done;         /* examples that threads have begun, and ended */
	int64_t *example;            /* by place: its number in the set */
	uint8_t *at[RT_MAX_INPUTS];
	int64_t bad;                 /* the lowest place that failed; -1 */
	RtError error;
} Slot;

struct RtRing {
	RtData *d;
	RtCourse course;
	pthread_mutex_t lock;
	pthread_cond_t work, ready;
	pthread_t *thread; int nthread;
	Slot slot[RING_SLOTS]; int nslot;
	int64_t head, tail;          /* batches made so far, the last of them perhaps not ended; batches taken */
	int64_t *order, order_epoch; /* of the epoch of the last batch that was begun; -1 */
	int busy;                    /* threads at an example */
	bool started, ended, quit;   /* ended: nothing follows */
};

static Slot *
ring_slot(RtRing *r, int64_t number)
{
	return &r->slot[number % r->nslot];
}

/* Begins a batch at the head. */
static void
ring_begin(RtRing *r, int64_t epoch, int64_t index)
{
	Slot *s = ring_slot(r, r->head++);
	int64_t first = index * r->course.batch, rest = r->d->examples - first;

	if (r->course.shuffle && r->order_epoch != epoch) {
		rt_shuffle_order(r->course.seed, epoch, r->d->examples, r->order);
		r->order_epoch = epoch;
	}
	s->epoch = epoch;
	s->index = index;
	s->n = rest < r->course.batch ? rest : r->course.batch;
	s->taken = s->done = 0;
	s->bad = -1;
	for (int64_t i = 0; i < s->n; i++)
		s->example[i] = r->course.shuffle ? r->order[first + i] : first + i;
}

/* The batch that this process takes after one. */
static int64_t
ring_behind(const RtRing *r, int64_t index)
{
	const RtCourse *c = &r->course;

	return c->per && index % c->per + 1 >= c->hi ? index - index % c->per + c->per + c->lo : index + 1;
}

/* The slot whose examples are wanted first; NULL: there is nothing to do. */
static Slot *
ring_next(RtRing *r)
{
	Slot *s = r->head > r->tail ? ring_slot(r, r->head - 1) : NULL;
	bool last;

	if (!r->started || !s)
		return NULL;
	if (s->taken < s->n)
		return s;
	last = ring_behind(r, s->index) >= r->course.batches;
	if (r->head - r->tail == r->nslot || (last && r->course.after == RT_AFTER_NOTHING))
		return NULL;
	ring_begin(r, s->epoch + (last && r->course.after == RT_AFTER_EPOCH),
	           last ? r->course.lo : ring_behind(r, s->index));
	return ring_slot(r, r->head - 1);
}

/* Examples [from, to) of a slot; the place that failed, -1. */
static int64_t
ring_make(const RtRing *r, const Slot *s, int64_t from, int64_t to, RtScratch *scratch, RtError *e)
{
	for (int64_t i = from; i < to; i++) {
		uint8_t *out[RT_MAX_INPUTS];

		for (int k = 0; k < RT_MAX_INPUTS; k++)
			out[k] = s->at[k] ? s->at[k] + i * r->d->bytes[k] : NULL;
		if (!rt_data_example(r->d, scratch, s->epoch, s->example[i], out, e))
			return i;
	}
	rt_data_touch(r->d, to - from);
	return -1;
}

static void *
ring_thread(void *arg)
{
	RtRing *r = arg;
	RtScratch scratch = {0};

	pthread_mutex_lock(&r->lock);
	while (!r->quit) {
		Slot *s = ring_next(r);
		int64_t from, to, part, bad;
		RtError error = {""};

		if (!s) {
			pthread_cond_wait(&r->work, &r->lock);
			continue;
		}
		part = (s->n + 4 * r->nthread - 1) / (4 * r->nthread);
		from = s->taken;
		to = s->taken = from + part < s->n ? from + part : s->n;
		r->busy++;
		pthread_mutex_unlock(&r->lock);
		bad = ring_make(r, s, from, to, &scratch, &error);
		pthread_mutex_lock(&r->lock);
		r->busy--;
		s->done += to - from;
		if (bad >= 0 && (s->bad < 0 || bad < s->bad)) {
			s->bad = bad;
			s->error = error;
		}
		if (s->done == s->n || !r->busy)
			pthread_cond_broadcast(&r->ready);
	}
	pthread_mutex_unlock(&r->lock);
	rt_scratch_free(&scratch);
	return NULL;
}

/* Another batch is asked for than the one that was expected, or no thread has come to it: at the start, after a pass
 * that stopped, where threads are slower than the loop. */
static void
ring_restart(RtRing *r, int64_t epoch, int64_t index)
{
	r->started = false;
	while (r->busy)
		pthread_cond_wait(&r->ready, &r->lock);
	r->head = r->tail;
	r->started = true;
	ring_begin(r, epoch, index);
	pthread_cond_broadcast(&r->work);
}

bool
rt_ring_take(RtRing *r, int64_t epoch, int64_t index, int64_t n, uint8_t *const **at, double *waited, RtError *e)
{
	double begin = 0;
	bool good = true;
	Slot *s;

	pthread_mutex_lock(&r->lock);
	if (r->ended) {                          /* the batch that was taken last is done with */
		r->ended = false;
		r->tail++;
		if (r->head - r->tail <= r->nslot / 2) /* threads that sleep find several to do: a call wakes them */
			pthread_cond_broadcast(&r->work);
	}
	s = ring_slot(r, r->tail);
	if (!r->started || r->head == r->tail || s->epoch != epoch || s->index != index)
		ring_restart(r, epoch, index);
	if (s->done < s->n)
		begin = rt_now();
	while (s->done < s->n)
		pthread_cond_wait(&r->ready, &r->lock);
	*waited += begin > 0 ? rt_now() - begin : 0;
	r->ended = true;
	if (s->n != n)
		good = rt_fail(e, "batch %lld of the %s set: %lld examples are ready, %lld wanted", (long long)index,
		               r->d->what, (long long)s->n, (long long)n);
	else if (s->bad >= 0)
		good = rt_fail(e, "%s", s->error.text);
	*at = s->at;
	pthread_mutex_unlock(&r->lock);
	return good;
}

static bool
ring_memory(RtRing *r, RtError *e)
{
	int64_t bytes = 0;

	for (int k = 0; k < r->d->p->ninput; k++)
		bytes += r->d->bytes[k] * r->course.batch;
	r->nslot = bytes * RING_SLOTS > RING_BYTES ? 2 : RING_SLOTS;
	r->order = r->course.shuffle ? malloc(sizeof *r->order * (size_t)r->d->examples) : NULL;
	if (r->course.shuffle && !r->order)
		return rt_fail(e, "out of memory for the order of %lld examples", (long long)r->d->examples);
	for (int i = 0; i < r->nslot; i++) {
		r->slot[i].example = rt_alloc(sizeof *r->slot[i].example * (size_t)r->course.batch);
		for (int k = 0; k < r->d->p->ninput; k++)
			if (r->d->bytes[k] &&
			    !(r->slot[i].at[k] = rt_large((size_t)(r->d->bytes[k] * r->course.batch))))
				return rt_fail(e, "out of memory for %d batches of %lld bytes that readers fill",
				               r->nslot, (long long)bytes);
	}
	return true;
}

RtRing *
rt_ring_new(RtData *d, const RtCourse *c, RtError *e)
{
	RtRing *r = rt_alloc(sizeof *r);
	pthread_attr_t attr;
	int bad = 0;

	*r = (RtRing){.d = d, .course = *c, .order_epoch = -1};
	pthread_mutex_init(&r->lock, NULL);
	pthread_cond_init(&r->work, NULL);
	pthread_cond_init(&r->ready, NULL);
	r->thread = rt_alloc(sizeof *r->thread * (size_t)d->readers);
	if (!ring_memory(r, e)) {
		rt_ring_free(r);
		return NULL;
	}
	pthread_attr_init(&attr);
	pthread_attr_setstacksize(&attr, (size_t)1 << 20);
	pthread_mutex_lock(&r->lock);            /* they see how many they are */
	while (r->nthread < d->readers && !bad)
		bad = pthread_create(&r->thread[r->nthread], &attr, ring_thread, r), r->nthread += !bad;
	pthread_mutex_unlock(&r->lock);
	pthread_attr_destroy(&attr);
	if (bad) {
		rt_fail(e, "reader thread %d of %d could not be started: %s", r->nthread + 1, d->readers,
		        strerror(bad));
		rt_ring_free(r);
		return NULL;
	}
	return r;
}

void
rt_ring_free(RtRing *r)
{
	pthread_mutex_lock(&r->lock);
	r->quit = true;
	pthread_cond_broadcast(&r->work);
	pthread_mutex_unlock(&r->lock);
	for (int i = 0; i < r->nthread; i++)
		pthread_join(r->thread[i], NULL);
	for (int i = 0; i < RING_SLOTS; i++) {
		free(r->slot[i].example);
		for (int k = 0; k < RT_MAX_INPUTS; k++)
			free(r->slot[i].at[k]);
	}
	free(r->order);
	free(r->thread);
	pthread_mutex_destroy(&r->lock);
	pthread_cond_destroy(&r->work);
	pthread_cond_destroy(&r->ready);
	free(r);
}
