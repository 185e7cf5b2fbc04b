/* generate_rows.c: logits of what follows sequences, for the command generate.
 *
 * By whole windows: graph infer runs on windows [N, T]; row t of its logits scores the token at place t + 1. What
 * stands behind place t has no effect, as the model is causal. By steps: graph begin computes what does not depend on
 * the tokens, once for each example, graph step reads one token of each row and moves what is carried in the arena,
 * graph hop gives each row what another one has carried, graph share what begin has left for another one. Both begin a
 * new window with the last floor(T / 2) tokens where place T is reached and the model knows places. */
#include "generate.h"

#include <stdlib.h>
#include <string.h>

/* The batch must be whole for some models: rows beyond those asked for repeat the first. */
static int64_t
rows_full(const Generate *x, const RtGraph *g, int64_t n)
{
	const RtProgram *p = &x->h->program;

	return *p->full_only || g->multiple > 1 ? p->batch : n;
}

static void
put_others(const Generate *x, const RtGraph *g, const Row *r, int64_t slot)
{
	const RtProgram *p = &x->h->program;

	for (int k = 0; k < p->ninput; k++)
		if (x->other[k] && g->input[k] >= 0) {
			int64_t bytes = p->input[k].t.bytes / p->batch;

			memcpy(x->h->run.arena + g->input[k] + slot * bytes, x->other[k] + r->example * bytes,
			       (size_t)bytes);
		}
}

static void
put_token(const Generate *x, const RtGraph *g, int64_t slot, int64_t place, int64_t token)
{
	int dtype = x->h->program.input[x->token].t.dtype;

	rt_dtype_write(dtype,
	               x->h->run.arena + g->input[x->token] + (slot * x->places + place) * rt_dtype[dtype].bytes,
	               (double)token);
}

static bool
rows_status(RtHost *h, int64_t status)
{
	if (status == RT_FAULT)
		rt_host_fault(h);
	if (status == RT_OK || status == RT_STOPPED)
		return true;
	return *h->error.text ? false : rt_fail(&h->error, "the program returned status %lld", (long long)status);
}

/* The window of a sequence of n tokens: where it begins. */
static int64_t
window_of(const Generate *x, int64_t n)
{
	int64_t first = 0, half = x->places / 2;

	while (n - first > x->places) /* place T is reached: the end of the window begins the next */
		first += x->places + 1 - (half ? half : 1);
	return first;
}

/* V logits from an element of t on, which the host has. */
static void
take_logits(const Generate *x, const RtTensor *t, int64_t element, double *out)
{
	int64_t size = rt_dtype[t->dtype].bytes, bad;

	rt_dtype_convert(RT_F64, (uint8_t *)out, t->dtype, x->h->run.arena + t->offset + element * size, x->vocab,
	                 false, &bad);
}

static bool
fetch_logits(const Generate *x, const RtTensor *t, int64_t element, int64_t n)
{
	int64_t size = rt_dtype[t->dtype].bytes;

	return rt_host_fetch(x->h, t->offset + element * size, n * x->vocab * size);
}

/* ---------------------------------------------------------------- whole windows */
static bool
whole_batch(Generate *x, const Row *row, int64_t n, double *out)
{
	RtHost *h = x->h;
	const RtProgram *p = &h->program;
	int64_t full = rows_full(x, x->g, n);

	for (int64_t i = 0; i < full; i++) {
		const Row *r = &row[i < n ? i : 0];
		int64_t first = window_of(x, r->n);

		for (int64_t t = 0; t < x->places; t++) /* zeros behind it */
			put_token(x, x->g, i, t, first + t < r->n ? r->token[first + t] : 0);
		put_others(x, x->g, r, i);
	}
	h->run.n = full;
	h->run.step = 0;
	h->run.until = 1;
	h->fresh = true;
	if (!rows_status(h, rt_host_enter(h, h->object->infer, &p->infer, p->sink == 0)))
		return false;
	for (int64_t i = 0; i < n; i++) {
		int64_t last = row[i].n - window_of(x, row[i].n) - 1;

		if (!fetch_logits(x, &x->logits->t, (i * x->places + last) * x->vocab, 1))
			return false;
		take_logits(x, &x->logits->t, (i * x->places + last) * x->vocab, out + i * x->vocab);
	}
	return true;
}

static bool
whole_rows(Generate *x, const Row *row, int64_t n)
{
	int64_t batch = x->h->program.batch;

	if (n > x->rows) {
		free(x->row);
		x->row = malloc(sizeof *x->row * (size_t)(n * x->vocab));
		x->rows = x->row ? n : 0;
		if (!x->row)
			return rt_fail(&x->h->error, "out of memory for logits of %lld sequences", (long long)n);
	}
	for (int64_t i = 0; i < n; i += batch)
		if (!whole_batch(x, row + i, n - i < batch ? n - i : batch, x->row + i * x->vocab))
			return false;
	return true;
}

/* ---------------------------------------------------------------- steps */
bool
rows_step(const Generate *x)
{
	const RtProgram *p = &x->h->program;
	const RtOptions *o = &x->h->opt;
	int64_t most = p->input[x->token].t.dtype == RT_U8 ? 256 : INT32_MAX, beam = o->beam > 1 ? o->beam : 1;
	const char *why = NULL;

	if (o->whole)
		return false;
	if (!p->graph[RT_G_STEP].present)
		why = p->generate.whole ? p->generate.whole : "built with --disable step";
	else if (beam > p->batch)
		why = "a beam takes more rows than a batch has: --batch";
	else if (beam > 1 && p->batch > most)
		why = "rows of a batch are more than the token's type can number";
	if (why && !o->quiet)
		fprintf(stderr, "note: each token costs a whole window: %s\n", why);
	return !why;
}

void
rows_begin(Generate *x)
{
	x->first = x->fed = -1;
	x->ran = 0;
	if (!x->left)
		x->left = rt_alloc(sizeof *x->left * (size_t)x->h->program.batch);
}

/* Moving a row costs some eight steps of one: all that is carried, and what begin has left, is copied, where a step
 * mostly reads it. */
bool
rows_leave(const Generate *x, int64_t n, int64_t live, int64_t places)
{
	const RtProgram *p = &x->h->program;
	const RtGraph *g = &p->graph[RT_G_STEP];
	int64_t most = p->input[x->token].t.dtype == RT_U8 ? 256 : INT32_MAX;

	return x->steps && live < n && p->batch <= most && rows_full(x, g, live) < rows_full(x, g, n) &&
	       (n - live) * places >= 8 * live;
}

/* One call of a graph for n rows. */
static bool
call_graph(Generate *x, int graph, int64_t n, int64_t place)
{
	RtHost *h = x->h;

	h->run.n = rows_full(x, &h->program.graph[graph], n);
	h->run.step = place;
	h->fresh = true;
	return rows_status(h, rt_host_call(h, graph));
}

/* Once for each example: rows of one stand together. */
static bool
step_begin(Generate *x, const Row *row, int64_t n)
{
	const RtGraph *g = &x->h->program.graph[RT_G_BEGIN];
	int64_t m = 0, full;

	for (int64_t i = 0; i < n; i++)
		if (!i || row[i].example != row[i - 1].example) {
			put_others(x, g, &row[i], m);
			x->left[m++] = row[i].example;
		}
	full = rows_full(x, g, m);
	for (int64_t i = m; i < full; i++)
		put_others(x, g, &row[0], i);
	for (int64_t i = m; i < x->h->program.batch; i++)
		x->left[i] = -1;
	x->ran = m;
	return call_graph(x, RT_G_BEGIN, m, 0);
}

/* Row i takes the states of row from[i] of those that ran: what is carried, or what begin has left. */
static bool
step_take(Generate *x, int graph, const int64_t *from, int64_t n)
{
	const RtGraph *g = &x->h->program.graph[graph];
	int64_t run = n > x->ran ? n : x->ran, full = rows_full(x, g, run); /* none is read beyond those that run */

	if (!g->present)
		return true;
	for (int64_t i = 0; i < full; i++)
		put_token(x, g, i, 0, i < n ? from[i] : i);
	return call_graph(x, graph, run, 0);
}

/* Rows go on from others: what is carried follows them, and what begin has left for an example is where its rows
 * are. */
static bool
step_hop(Generate *x, const Row *row, const int64_t *from, int64_t n)
{
	bool moves = false, leaves = false;

	for (int64_t i = 0; i < n; i++) {
		moves |= from[i] != i;
		leaves |= x->left[i] != row[i].example;
	}
	if ((moves && !step_take(x, RT_G_HOP, from, n)) || (leaves && !step_take(x, RT_G_SHARE, from, n)))
		return false;
	for (int64_t i = 0; i < x->h->program.batch; i++)
		x->left[i] = i < n ? row[i].example : -1;
	return true;
}

static bool
step_rows(Generate *x, const Row *row, int64_t n)
{
	const RtGraph *g = &x->h->program.graph[RT_G_STEP];
	int64_t length = row[0].n, first = x->h->program.generate.places ? window_of(x, length) : 0;
	int64_t full = rows_full(x, g, n), *from = rt_alloc(sizeof *from * (size_t)n), m = -1;
	bool begins = x->fed < 0 || first != x->first, good = !begins || step_begin(x, row, n);

	for (int64_t i = 0; i < n; i++) {
		m += !i || row[i].example != row[i - 1].example;
		from[i] = begins ? m : row[i].from;
	}
	if (begins)
		x->first = x->fed = first;
	good = good && step_hop(x, row, from, n);
	free(from);
	x->ran = n;
	for (; good && x->fed < length; x->fed++) {
		int64_t place = (x->fed - first) % x->places;

		for (int64_t i = 0; i < full; i++)
			put_token(x, g, i, place, row[i < n ? i : 0].token[x->fed]);
		good = call_graph(x, RT_G_STEP, n, place);
	}
	return good && fetch_logits(x, &g->result[0].t, 0, n);
}

bool
rows_run(Generate *x, const Row *row, int64_t n)
{
	return x->steps ? step_rows(x, row, n) : whole_rows(x, row, n);
}

const double *
rows_logits(const Generate *x, int64_t k, double *room)
{
	if (!x->steps)
		return x->row + k * x->vocab;
	take_logits(x, &x->h->program.graph[RT_G_STEP].result[0].t, k * x->vocab, room);
	return room;
}
