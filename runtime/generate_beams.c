/* generate_beams.c: beams of the command generate: of each sequence the B best hypotheses (Wu et al. 2016,
 * arXiv:1609.08144).
 *
 * Each place ranks all continuations of the live hypotheses and walks the first 2B: those that end are finished, of the
 * others B live on. A hypothesis is a row of the batch; a sequence has one at first, and those of its live ones from
 * the second place on. Rows of sequences that are finished leave the batch. */
#include "generate.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

/* slot: the row that it goes on from */
typedef struct Hypothesis { double score; int64_t slot; int32_t *token; } Hypothesis;
typedef struct Step { double score; int64_t from; int32_t token; } Step;
typedef struct Beam {
	Hypothesis *live, *next; int64_t nlive, nfinished;
	double best; bool any;   /* of the finished ones: penalised score */
	int32_t *token;          /* of all hypotheses */
	int64_t example;         /* number of the sequence */
	int64_t first, rows;     /* of the last call */
} Beam;

/* By falling score; of equals the earlier hypothesis, then the lower token. */
static int
by_score(const void *a, const void *b)
{
	const Step *x = a, *y = b;

	if (x->score != y->score)
		return x->score > y->score ? -1 : 1;
	if (x->from != y->from)
		return x->from < y->from ? -1 : 1;
	return (x->token > y->token) - (x->token < y->token);
}

/* A finished hypothesis, whose n tokens behind the prompt are in `token`: the first best one is the answer. */
static void
finish(Generate *x, Beam *b, const int32_t *token, double score, int64_t n)
{
	double penalised = score / pow((5 + (double)n) / 6, x->h->opt.length_penalty);
	int64_t end = x->end;

	b->nfinished++;
	if (b->any && penalised <= b->best)
		return;
	b->any = true;
	b->best = penalised;
	int32_t *to = generate_sequence(x, b->example);

	memcpy(to, token, sizeof *to * (size_t)(x->prompt + n));
	for (int64_t q = x->prompt + n; q < x->prompt + x->length; q++)
		to[q] = (int32_t)(end < 0 ? 0 : end);
}

/* The first `most` continuations of all live hypotheses, in order: their number. Behind those that are held an equal
 * one stands too, as its hypothesis and token come later. */
static int64_t
beam_first(const Generate *x, const Beam *b, Step *first, int64_t most, double *room)
{
	int64_t n = 0;

	for (int64_t i = 0; i < b->nlive; i++) {
		const double *row = rows_logits(x, b->first + i, room), score = b->live[i].score;
		double sum = logits_log_sum(row, x->vocab);

		for (int64_t v = 0; v < x->vocab; v++) {
			if (n == most)
				v = logits_above(row, v, x->vocab, score, sum, first[n - 1].score);
			if (v == x->vocab)
				break;
			Step s = {score + (row[v] - sum), i, (int32_t)v};
			int64_t k = n;

			for (k -= n == most; k > 0 && by_score(&s, &first[k - 1]) < 0; k--)
				first[k] = first[k - 1];
			first[k] = s;
			n += n < most;
		}
	}
	return n;
}

/* The first 2B continuations of all live hypotheses: those that end, and those that live on. all: room for 2B. */
static void
beam_step(Generate *x, Beam *b, int64_t t, Step *all, double *room)
{
	int64_t width = x->h->opt.beam, end = x->end, live = 0, n = beam_first(x, b, all, 2 * width, room);

	for (int64_t k = 0; k < n; k++) {
		const Hypothesis *from = &b->live[all[k].from];
		bool ends = all[k].token == end;

		if (ends ? k >= width : live >= width)
			continue;
		Hypothesis *to = &b->next[live];

		memcpy(to->token, from->token, sizeof *to->token * (size_t)t);
		to->token[t] = all[k].token;
		to->score = all[k].score;
		to->slot = all[k].from;
		if (ends)
			finish(x, b, to->token, to->score, t + 1 - x->prompt);
		else
			live++;
	}
	Hypothesis *swap = b->live;

	b->live = b->next;
	b->next = swap;
	b->nlive = live;
}

/* A beam that goes on. */
static bool
goes_on(const Generate *x, const Beam *b)
{
	return b->nfinished < x->h->opt.beam && b->nlive;
}

/* Rows of the hypotheses that live, for place t, of `had` rows before. Where all keep their rows, those of hypotheses
 * that have ended go on too, until so many have that the others are better moved together. */
static int64_t
beam_rows(const Generate *x, Beam *beam, int64_t n, int64_t t, int64_t had, Row *row)
{
	int64_t live = 0, nrow = 0;
	bool anew = !had || !x->steps;

	for (int64_t i = 0; i < n; i++) {
		int64_t rows = goes_on(x, &beam[i]) ? beam[i].nlive : 0;

		live += rows;
		anew |= rows > beam[i].rows;
	}
	anew |= rows_leave(x, had, live, x->prompt + x->length - t);
	for (int64_t i = 0; i < n; i++) {
		Beam *b = &beam[i];
		bool on = goes_on(x, b);
		int64_t first = nrow, rows = !anew ? b->rows : on ? b->nlive : 0;

		for (int64_t k = 0; k < rows; k++) {
			const Hypothesis *y = &b->live[on && k < b->nlive ? k : 0];

			row[nrow++] = (Row){b->example, y->token, t, b->first + (on ? y->slot : k)};
		}
		b->first = first;
		b->rows = rows;
	}
	return nrow;
}

/* One place of the beams of several examples, which know nothing of each other. */
typedef struct Place {
	Generate *x;
	Beam *beam;
	int64_t t;
	Step *all;               /* 2B of each beam */
	double *room;            /* V of each thread */
} Place;

static void
beam_steps(void *cx, int64_t from, int64_t to, int thread)
{
	const Place *p = cx;
	Generate *x = p->x;

	for (int64_t i = from; i < to; i++)
		if (goes_on(x, &p->beam[i]))
			beam_step(x, &p->beam[i], p->t, p->all + i * 2 * x->h->opt.beam, p->room + thread * x->vocab);
}

/* Of examples [from, from + n): all is room for 2B continuations of each, row for their rows. */
static bool
write_some_beams(Generate *x, Beam *beam, int64_t n, Row *row, Step *all, double *room)
{
	int64_t nrow = 0;
	bool good = true;

	rows_begin(x);
	for (int64_t t = x->prompt; good && t < x->prompt + x->length; t++) {
		int64_t live = 0;

		for (int64_t i = 0; i < n; i++)
			live += goes_on(x, &beam[i]);
		if (!live)
			break;
		x->tokens += live;
		nrow = beam_rows(x, beam, n, t, nrow, row);
		good = rows_run(x, row, nrow);
		if (good)
			rt_threads_run(x->h->threads, beam_steps, &(Place){x, beam, t, all, room}, n);
	}
	return good;
}

static void
beam_open(Generate *x, Beam *b, int64_t example)
{
	int64_t width = x->h->opt.beam, room = x->prompt + x->length;
	int32_t *token = rt_alloc(sizeof *token * (size_t)(2 * (width + 1) * room));

	*b = (Beam){.live = rt_alloc(sizeof *b->live * (size_t)(width + 1)),
	            .next = rt_alloc(sizeof *b->next * (size_t)(width + 1)),
	            .nlive = 1,
	            .token = token,
	            .example = example};
	for (int64_t k = 0; k <= width; k++) {
		b->live[k].token = token + 2 * k * room;
		b->next[k].token = token + (2 * k + 1) * room;
	}
	memcpy(b->live[0].token, generate_sequence(x, example), sizeof *token * (size_t)x->prompt);
}

static void
beam_close(Generate *x, Beam *b)
{
	for (int64_t k = 0; k < b->nlive && b->nfinished < x->h->opt.beam; k++)
		finish(x, b, b->live[k].token, b->live[k].score, x->length);
	x->score[b->example] = b->best;
	free(b->token);
	free(b->live);
	free(b->next);
}

bool
generate_beams(Generate *x)
{
	int64_t width = x->h->opt.beam, fit = x->h->program.batch / width, each = x->steps && fit < x->n ? fit : x->n;
	Beam *beam = rt_alloc(sizeof *beam * (size_t)each);
	Row *row = rt_alloc(sizeof *row * (size_t)(each * width));
	Step *all = rt_alloc(sizeof *all * (size_t)(each * 2 * width));
	double *room = rt_alloc(sizeof *room * (size_t)(x->vocab * rt_threads_count(x->h->threads)));
	bool good = true;

	for (int64_t i = 0; good && i < x->n; i += each) {
		int64_t n = i + each < x->n ? each : x->n - i;

		for (int64_t k = 0; k < n; k++)
			beam_open(x, &beam[k], i + k);
		good = write_some_beams(x, beam, n, row, all, room);
		for (int64_t k = 0; k < n; k++)
			beam_close(x, &beam[k]);
	}
	for (int64_t i = 0; good && i < x->n; i++) {
		generate_show(x, generate_sequence(x, i) + x->prompt, x->length);
		if (x->n > 1)
			generate_show(x, (int32_t[]){'\n'}, 1);
	}
	free(beam);
	free(row);
	free(all);
	free(room);
	return good;
}
