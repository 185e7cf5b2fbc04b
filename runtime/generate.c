/* generate.c: the command generate: writes with a language model or a translator, a token at a time.
 *
 * In: prompts (of one length), or the start token; the other inputs of each sequence.   Out: what follows the prompt,
 * and its score. Logits of what comes next are the work of generate_rows.c, by steps or by whole windows.
 * Choice: the largest logit, of equals the lowest token; or by temperature, cut to K tokens and to a share P of
 * probability (Holtzman et al. 2020, arXiv:1904.09751); or a beam of hypotheses with a penalty on length (Wu et al.
 * 2016, arXiv:1609.08144). Scores are sums of log-probabilities of the unscaled logits, in double. Sequences that are
 * stepped through together are as many as fit the batch: the others follow behind them. */
#include "generate.h"
#include "philox.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

static int32_t *
sequence(const Generate *x, int64_t i)
{
	return x->ids + i * (x->prompt + x->length);
}

/* Loops over a vocabulary: SIDE results side by side do not wait for each other, and are the same bits whatever the
 * processor's vectors. */
#if defined(__x86_64__) && defined(__GNUC__) && !defined(__clang__) && !defined(__SANITIZE_ADDRESS__)
#define WIDE __attribute__((target_clones("avx2", "default")))
#else
#define WIDE
#endif
enum { SIDE = 8, LANES = 4 };
typedef double Lanes __attribute__((vector_size(8 * LANES)));
typedef int64_t Bits __attribute__((vector_size(8 * LANES)));

/* to[i] += e^(x[i] - top), of LANES numbers none of which is above top: x - top = k ln 2 + r, and Taylor's series of
 * e^r, whose first term left out is below 4e-18. What is below e^-700 counts as that. */
static inline __attribute__((always_inline)) void
add_exponentials(double *to, const double *x, double top)
{
	static const double coefficient[] = {1. / 6227020800, 1. / 479001600, 1. / 39916800, 1. / 3628800, 1. / 362880,
	                                     1. / 40320, 1. / 5040, 1. / 720, 1. / 120, 1. / 24, 1. / 6, 1. / 2, 1, 1};
	const double round = 0x1.8p52;           /* added to a small number: its integer is in the low bits */
	Lanes d, sum;

	memcpy(&d, x, sizeof d);
	memcpy(&sum, to, sizeof sum);
	d -= top;
	Bits low = d < -700, none = d != d;
	Lanes a = (Lanes)(((Bits)d & ~low) | ((Bits)(Lanes){-700, -700, -700, -700} & low)),
	      t = a * 0x1.71547652b82fep0 + round, k = t - round,
	      r = a - k * 0x1.62e42fee00000p-1 - k * 0x1.a39ef35793c76p-33, p = r * coefficient[0] + coefficient[1];

	for (int c = 2; c < 14; c++)
		p = p * r + coefficient[c];
	Bits scaled = (Bits)p + ((Bits)t << 52); /* times 2^k */

	sum += (Lanes)((scaled & ~none) | ((Bits)d & none));
	memcpy(to, &sum, sizeof sum);
}

/* ln of the sum of exponentials. */
WIDE static double
log_sum(const double *x, int64_t n)
{
	double most[SIDE], sum[SIDE] = {0}, rest[SIDE], top = -INFINITY, all = 0;
	int64_t v = 0;

	for (int k = 0; k < SIDE; k++)
		most[k] = rest[k] = -INFINITY;
	for (; v + SIDE <= n; v += SIDE)
		for (int k = 0; k < SIDE; k++)
			most[k] = x[v + k] > most[k] ? x[v + k] : most[k];
	for (int64_t k = v; k < n; k++) {
		rest[k - v] = x[k];
		top = x[k] > top ? x[k] : top;
	}
	for (int k = 0; k < SIDE; k++)
		top = most[k] > top ? most[k] : top;
	for (int64_t i = 0; i < v; i += SIDE)
		for (int k = 0; k < SIDE; k += LANES)
			add_exponentials(sum + k, x + i + k, top);
	for (int k = 0; k < SIDE; k += LANES)
		add_exponentials(sum + k, rest + k, top); /* those beyond n are e^-700 */
	for (int k = 0; k < SIDE; k++)
		all += sum[k];
	return top + log(all);
}

/* May one of SIDE sums score + (x - sum) be above the least? */
static inline __attribute__((always_inline)) bool
any_above(const double *x, double score, double sum, double least)
{
	Bits any = {0};

	for (int k = 0; k < SIDE; k += LANES) {
		Lanes a;

		memcpy(&a, x + k, sizeof a);
		any |= score + (a - sum) > least;
	}
	return any[0] | any[1] | any[2] | any[3];
}

/* ---------------------------------------------------------------- one token */
typedef struct Choice { double logit, weight; int32_t token; } Choice;

static int
by_logit(const void *a, const void *b)
{
	const Choice *x = a, *y = b;

	if (x->logit != y->logit)
		return x->logit > y->logit ? -1 : 1;
	return (x->token > y->token) - (x->token < y->token);
}

/* The first of the largest. */
WIDE static int32_t
largest(const double *logit, int64_t n)
{
	double top[SIDE], most;
	int64_t v = 0;

	for (int k = 0; k < SIDE; k++)
		top[k] = logit[0];
	for (; v + SIDE <= n; v += SIDE)
		for (int k = 0; k < SIDE; k++)
			top[k] = logit[v + k] > top[k] ? logit[v + k] : top[k];
	for (; v < n; v++)
		top[0] = logit[v] > top[0] ? logit[v] : top[0];
	most = top[0];
	for (int k = 1; k < SIDE; k++)
		most = top[k] > most ? top[k] : most;
	for (v = 0; v < n; v++)
		if (logit[v] == most)
			return (int32_t)v;
	return 0;                /* the first one is no number */
}

/* The weights of the first n add up to 1. */
static void
normalise(Choice *c, int64_t n)
{
	double sum = 0;

	for (int64_t i = 0; i < n; i++)
		sum += c[i].weight;
	for (int64_t i = 0; i < n; i++)
		c[i].weight /= sum;
}

/* u: uniform in [0, 1). */
static int32_t
sample(const Generate *x, const double *logit, double u, Choice *c)
{
	const RtOptions *o = &x->h->opt;
	int64_t n = x->vocab, kept = 0;
	double sum = 0;

	for (int64_t v = 0; v < n; v++)
		c[v] = (Choice){.logit = logit[v], .token = (int32_t)v};
	qsort(c, (size_t)n, sizeof *c, by_logit);
	for (int64_t i = 0; i < n; i++)
		c[i].weight = exp((c[i].logit - c[0].logit) / o->temperature);
	if (o->top_k > 0 && o->top_k < n)
		n = o->top_k;
	normalise(c, n);
	if (o->top_p < 1) {
		while (kept < n && sum < o->top_p)
			sum += c[kept++].weight;
		n = kept ? kept : 1;
		normalise(c, n);
	}
	sum = 0;
	for (int64_t i = 0; i < n; i++)
		if ((sum += c[i].weight) > u)
			return c[i].token;
	return c[n - 1].token;
}

/* ---------------------------------------------------------------- sequences of their own */
/* A token at a time as it comes, where it is text and there is one sequence. */
static void
show(const Generate *x, const int32_t *token, int64_t n)
{
	if (!x->shown)
		return;
	for (int64_t i = 0; i < n; i++)
		putchar(token[i] & 255);
	fflush(stdout);
}

/* What follows rows that know nothing of each other, at place t. */
typedef struct Next { int32_t token; double score; } Next;
typedef struct Turn {
	Generate *x;
	const Row *row;
	int64_t t;
	Next *next;              /* of each row */
	Choice *room;            /* V of each thread; NULL: nothing is drawn */
} Turn;

static void
choose_rows(void *cx, int64_t from, int64_t to, int thread)
{
	const Turn *turn = cx;
	const Generate *x = turn->x;

	for (int64_t k = from; k < to; k++) {
		const double *logit = x->row + k * x->vocab;
		Next *next = &turn->next[k];
		double u;

		if (turn->room) {
			u = philox_uniform((uint64_t)x->h->run.seed, x->stream, (uint64_t)turn->t,
			                   (uint64_t)turn->row[k].example);
			next->token = sample(x, logit, u, turn->room + thread * x->vocab);
		} else {
			next->token = largest(logit, x->vocab);
		}
		next->score = x->scored ? logit[next->token] - log_sum(logit, x->vocab) : 0;
	}
}

/* One token of a sequence; true: it was its last. */
static bool
append(Generate *x, int64_t i, int64_t t, const Next *next)
{
	int32_t token = next->token;

	sequence(x, i)[t] = token;
	if (x->scored)
		x->score[i] += next->score;
	x->tokens++;
	if (x->n == 1)
		show(x, &token, 1);
	if (token != x->end)
		return false;
	for (int64_t q = t + 1; q < x->prompt + x->length; q++)
		sequence(x, i)[q] = (int32_t)x->end;
	return true;
}

/* Sequences [from, to). By steps all of them go on, also those that have ended: their rows hold their places. */
static bool
write_some(Generate *x, int64_t from, int64_t to, Row *row, Next *next, Choice *room)
{
	int64_t live = to - from;
	bool *over = rt_alloc((size_t)live), good = true;

	rows_begin(x);
	for (int64_t t = x->prompt; good && live && t < x->prompt + x->length; t++) {
		int64_t n = 0;

		for (int64_t i = from; i < to; i++)
			if (x->steps || !over[i - from]) {
				row[n] = (Row){i, sequence(x, i), t, n};
				n++;
			}
		good = rows_run(x, row, n);
		if (good)
			rt_threads_run(x->h->threads, choose_rows, &(Turn){x, row, t, next, room}, n);
		for (int64_t k = 0; good && k < n; k++)
			if (!over[row[k].example - from] && append(x, row[k].example, t, &next[k])) {
				over[row[k].example - from] = true;
				live--;
			}
	}
	free(over);
	return good;
}

static bool
write_sequences(Generate *x)
{
	int64_t each = x->steps && x->h->program.batch < x->n ? x->h->program.batch : x->n;
	Row *row = rt_alloc(sizeof *row * (size_t)each);
	Next *next = rt_alloc(sizeof *next * (size_t)each);
	size_t threads = (size_t)rt_threads_count(x->h->threads);
	Choice *room = x->h->opt.temperature > 0 ? rt_alloc(sizeof *room * (size_t)x->vocab * threads) : NULL;
	bool good = true;

	x->stream = philox_stream("generate");
	for (int64_t i = 0; good && i < x->n; i += each)
		good = write_some(x, i, i + each < x->n ? i + each : x->n, row, next, room);
	for (int64_t i = 0; good && x->n > 1 && i < x->n; i++) {
		show(x, sequence(x, i) + x->prompt, x->length);
		show(x, (int32_t[]){'\n'}, 1);
	}
	free(row);
	free(next);
	free(room);
	return good;
}

/* ---------------------------------------------------------------- beams */
/* slot: the row that it goes on from */
typedef struct Hypothesis { double score; int64_t slot; int32_t *token; } Hypothesis;
typedef struct Step { double score; int64_t from; int32_t token; } Step;
typedef struct Beam {
	Hypothesis *live, *next; int64_t nlive, nfinished;
	double best; bool any;   /* of the finished ones: penalised score */
	int32_t *token;          /* of all hypotheses */
	int64_t examples;        /* number of the sequence */
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
	int32_t *to = sequence(x, b->examples);

	memcpy(to, token, sizeof *to * (size_t)(x->prompt + n));
	for (int64_t q = x->prompt + n; q < x->prompt + x->length; q++)
		to[q] = (int32_t)(end < 0 ? 0 : end);
}

/* The first `most` continuations of all live hypotheses, in order: their number. Behind those that are held an equal
 * one stands too, as its hypothesis and token come later. */
WIDE static int64_t
beam_first(const Generate *x, const Beam *b, const double *logit, Step *first, int64_t most)
{
	int64_t n = 0;

	for (int64_t i = 0; i < b->nlive; i++) {
		const double *row = logit + i * x->vocab, score = b->live[i].score, sum = log_sum(row, x->vocab);

		for (int64_t v = 0; v < x->vocab; v++) {
			while (n == most && v + SIDE <= x->vocab && !any_above(row + v, score, sum, first[n - 1].score))
				v += SIDE;
			if (v == x->vocab)
				break;
			Step s = {score + (row[v] - sum), i, (int32_t)v};
			int64_t k = n;

			if (n == most && !(s.score > first[n - 1].score))
				continue;
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
beam_step(Generate *x, Beam *b, const double *logit, int64_t t, Step *all)
{
	int64_t width = x->h->opt.beam, end = x->end, live = 0, n = beam_first(x, b, logit, all, 2 * width);

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

/* Rows of all hypotheses that live; by steps each example has `width` rows, and those of no hypothesis go on with its
 * first. */
static int64_t
beam_rows(Generate *x, const Beam *beam, int64_t n, int64_t t, Row *row)
{
	int64_t width = x->h->opt.beam, nrow = 0;

	for (int64_t i = 0; i < n; i++) {
		const Beam *b = &beam[i];
		bool over = b->nfinished >= width || !b->nlive;

		for (int64_t k = 0; x->steps ? k < width : !over && k < b->nlive; k++) {
			const Hypothesis *y = &b->live[k < b->nlive && !over ? k : 0];

			row[nrow] = (Row){b->examples, y->token, t, i * width + y->slot};
			nrow++;
		}
	}
	return nrow;
}

/* One place of the beams of several examples, which know nothing of each other. */
typedef struct Place { Generate *x; Beam *beam; const int64_t *at; int64_t t; Step *all; } Place;

/* A beam that goes on. */
static bool
goes_on(const Generate *x, const Beam *b)
{
	return b->nfinished < x->h->opt.beam && b->nlive;
}

/* at: of each beam the first of its rows of logits. */
static void
beam_steps(void *cx, int64_t from, int64_t to, int thread)
{
	const Place *p = cx;
	const Generate *x = p->x;

	(void)thread;
	for (int64_t i = from; i < to; i++)
		if (goes_on(x, &p->beam[i]))
			beam_step(p->x, &p->beam[i], x->row + p->at[i] * x->vocab, p->t,
			          p->all + i * 2 * x->h->opt.beam);
}

/* Of examples [from, from + n): room is that of their beams, at of n numbers. */
static bool
write_some_beams(Generate *x, Beam *beam, int64_t n, Row *row, int64_t *at, Step *all)
{
	int64_t width = x->h->opt.beam;
	bool good = true;

	rows_begin(x);
	for (int64_t t = x->prompt; good && t < x->prompt + x->length; t++) {
		bool live = false;
		int64_t nrow = beam_rows(x, beam, n, t, row);

		for (int64_t i = 0; i < n; i++)
			live |= goes_on(x, &beam[i]);
		if (!live)
			break;
		good = rows_run(x, row, nrow);
		for (int64_t i = 0, rows = 0; good && i < n; i++) {
			bool on = goes_on(x, &beam[i]);

			at[i] = rows;
			rows += x->steps ? width : on ? beam[i].nlive : 0;
			x->tokens += on;
		}
		if (good)
			rt_threads_run(x->h->threads, beam_steps, &(Place){x, beam, at, t, all}, n);
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
	            .examples = example};
	for (int64_t k = 0; k <= width; k++) {
		b->live[k].token = token + 2 * k * room;
		b->next[k].token = token + (2 * k + 1) * room;
	}
	memcpy(b->live[0].token, sequence(x, example), sizeof *token * (size_t)x->prompt);
}

static void
beam_close(Generate *x, Beam *b)
{
	for (int64_t k = 0; k < b->nlive && b->nfinished < x->h->opt.beam; k++)
		finish(x, b, b->live[k].token, b->live[k].score, x->length);
	x->score[b->examples] = b->best;
	free(b->token);
	free(b->live);
	free(b->next);
}

static bool
write_beams(Generate *x)
{
	int64_t width = x->h->opt.beam, fit = x->h->program.batch / width, each = x->steps && fit < x->n ? fit : x->n;
	Beam *beam = rt_alloc(sizeof *beam * (size_t)each);
	Row *row = rt_alloc(sizeof *row * (size_t)(each * width));
	Step *all = rt_alloc(sizeof *all * (size_t)(each * 2 * width));
	int64_t *at = rt_alloc(sizeof *at * (size_t)each);
	bool good = true;

	for (int64_t i = 0; good && i < x->n; i += each) {
		int64_t n = i + each < x->n ? each : x->n - i;

		for (int64_t k = 0; k < n; k++)
			beam_open(x, &beam[k], i + k);
		good = write_some_beams(x, beam, n, row, at, all);
		for (int64_t k = 0; k < n; k++)
			beam_close(x, &beam[k]);
	}
	for (int64_t i = 0; good && i < x->n; i++) {
		show(x, sequence(x, i) + x->prompt, x->length);
		if (x->n > 1)
			show(x, (int32_t[]){'\n'}, 1);
	}
	free(beam);
	free(row);
	free(all);
	free(at);
	return good;
}

/* ---------------------------------------------------------------- inputs and outputs */
static int
input_named(const RtProgram *p, const char *name)
{
	int k = 0;

	while (k < p->ninput && strcmp(p->input[k].t.name, name) != 0)
		k++;
	return k < p->ninput ? k : -1;
}

/* Prompts i32 [n, P]; other inputs as infer takes them. */
static bool
take_input(Generate *x, const RtNamed *named, int32_t **prompts)
{
	RtHost *h = x->h;
	const RtProgram *p = &h->program;
	int k = input_named(p, named->name);
	RtFile f = {0};
	RtNpy a;
	int64_t bad;

	if (k < 0)
		return rt_fail(&h->error, "the model has no input %s", named->name);
	if (x->other[k] || (k == x->token && *prompts))
		return rt_fail(&h->error, "input %s is given twice", named->name);
	if (!rt_file_read(&f, named->file, &h->error) || !rt_npy_header(&a, f.at, f.n, &h->error))
		return rt_context(&h->error, "input %s", named->name);
	int64_t n = a.rank ? a.shape[0] : 0, each = n ? a.count / n : 0;
	bool good = n >= 1 || rt_fail(&h->error, "%s holds no sequence", named->file);

	if (good && k == x->token)
		good = (a.rank == 2 && each >= 1) ||
		       rt_fail(&h->error, "%s: prompts are [n, P], one token at least", named->file);
	else if (good)
		good = (p->input[k].rows == 1 && each == p->input[k].example) ||
		       rt_fail(&h->error, "%s: %lld elements a row do not make input %s, which has %lld an example",
		               named->file, (long long)each, named->name, (long long)p->input[k].example);
	if (good && x->n && x->n != n)
		good = rt_fail(&h->error, "%s holds %lld sequences, the inputs before it %lld", named->file,
		               (long long)n, (long long)x->n);
	if (good) {
		int to = k == x->token ? RT_I32 : p->input[k].t.dtype;
		uint8_t *at = rt_alloc((size_t)(a.count * rt_dtype[to].bytes));

		x->n = n;
		if (!rt_dtype_convert(to, at, a.dtype, f.at + a.data, a.count, a.swap, &bad))
			good = rt_fail(&h->error, "%s: element %lld does not fit %s", named->file, (long long)bad,
			               rt_dtype[to].name);
		if (k == x->token) {
			*prompts = (int32_t *)(void *)at;
			x->prompt = each;
		} else {
			x->other[k] = at;
		}
	}
	rt_file_free(&f);
	return good;
}

/* Text is bytes, as the reader tokens reads it. */
static bool
take_text(Generate *x, int32_t **prompts)
{
	const RtOptions *o = &x->h->opt;
	int64_t n = (int64_t)strlen(o->prompt), samples = o->samples > 0 ? o->samples : 1;

	if (strcmp(x->h->program.reader.kind, "tokens") != 0)
		return rt_fail(&x->h->error,
		               "--prompt is text, which the reader tokens takes; this model's reader is %s: give "
		               "--input %s=FILE.npy",
		               x->h->program.reader.kind, x->h->program.generate.token);
	if (*prompts || x->n)
		return rt_fail(&x->h->error, "--prompt and --input exclude each other");
	*prompts = rt_alloc(sizeof **prompts * (size_t)(samples * n));
	for (int64_t i = 0; i < samples * n; i++)
		(*prompts)[i] = (uint8_t)o->prompt[i % n];
	x->n = samples;
	x->prompt = n;
	return true;
}

static bool
take_inputs(Generate *x)
{
	RtHost *h = x->h;
	const RtProgram *p = &h->program;
	int32_t *prompts = NULL;

	for (int i = 0; i < h->opt.ninput; i++)
		if (!take_input(x, &h->opt.input[i], &prompts))
			return false;
	if (h->opt.prompt && !take_text(x, &prompts))
		return false;
	for (int k = 0; k < p->ninput; k++)
		if (k != x->token && p->input[k].infer && !x->other[k])
			return rt_fail(&h->error, "input %s is missing: give --input %s=FILE.npy", p->input[k].t.name,
			               p->input[k].t.name);
	if (!x->n)
		x->n = h->opt.samples > 0 ? h->opt.samples : 1;
	x->prompt = prompts ? x->prompt : 1;
	if (prompts && x->prompt > x->places && (h->opt.whole || !p->graph[RT_G_STEP].present || p->generate.places))
		return rt_fail(&h->error, "a prompt of %lld tokens, the model has %lld places", (long long)x->prompt,
		               (long long)x->places);
	x->length = h->opt.length > 0 ? h->opt.length : x->places - (prompts ? x->prompt : 0);
	x->steps = rows_step(x);
	if (!x->steps && p->generate.carried && x->prompt + x->length - 1 > x->places)
		return rt_fail(&h->error,
		               "--length %lld: the prompt and what follows it take %lld places, the model has %lld; by "
		               "whole windows a recurrent one cannot begin a new one",
		               (long long)x->length, (long long)(x->prompt + x->length - 1), (long long)x->places);
	x->ids = rt_alloc(sizeof *x->ids * (size_t)(x->n * (x->prompt + x->length)));
	x->score = rt_alloc(sizeof *x->score * (size_t)x->n);
	for (int64_t i = 0; i < x->n; i++)
		for (int64_t t = 0; t < x->prompt; t++)
			sequence(x, i)[t] = prompts ? prompts[i * x->prompt + t] : (int32_t)p->generate.start;
	free(prompts);
	return true;
}

static bool
put_outputs(Generate *x)
{
	RtHost *h = x->h;
	int64_t shape[2] = {x->n, x->length};
	int32_t *ids = rt_alloc(sizeof *ids * (size_t)(x->n * x->length));
	float *score = rt_alloc(sizeof *score * (size_t)x->n);
	bool good = true;

	for (int64_t i = 0; i < x->n; i++) {
		memcpy(ids + i * x->length, sequence(x, i) + x->prompt, sizeof *ids * (size_t)x->length);
		score[i] = (float)x->score[i];
	}
	for (int i = 0; i < h->opt.noutput && good; i++)
		good = !strcmp(h->opt.output[i].name, "ids")
		               ? rt_npy_write(h->opt.output[i].file, RT_I32, 2, shape, ids,
		                              sizeof *ids * (size_t)(x->n * x->length), &h->error)
		               : rt_npy_write(h->opt.output[i].file, RT_F32, 1, shape, score,
		                              sizeof *score * (size_t)x->n, &h->error);
	free(ids);
	free(score);
	return good;
}

static void
put_json(const Generate *x, double seconds)
{
	printf("{\"sequences\": %lld, \"tokens\": %lld, \"seconds\": ", (long long)x->n, (long long)x->tokens);
	rt_json_number(stdout, seconds, 6);
	printf(", \"tokens_per_s\": ");
	rt_json_number(stdout, seconds > 0 ? (double)x->tokens / seconds : 0, 6);
	printf(", \"graph\": \"%s\", \"ids\": [", x->steps ? "step" : "whole");
	for (int64_t i = 0; i < x->n; i++) {
		printf("%s[", i ? ", " : "");
		for (int64_t t = 0; t < x->length; t++)
			printf(t ? ", %d" : "%d", (int)sequence(x, i)[x->prompt + t]);
		printf("]");
	}
	printf("]}\n");
}

/* ---------------------------------------------------------------- the command */
static bool
generate_open(Generate *x)
{
	RtHost *h = x->h;
	const RtProgram *p = &h->program;

	if (!p->generate.token)
		return rt_fail(&h->error, "the model has no section generate, which says what is written: generate { "
		                          "token = INPUT  logits = OUTPUT }");
	x->g = &p->graph[RT_G_INFER];
	x->token = input_named(p, p->generate.token);
	for (int k = 0; k < x->g->nresult; k++)
		if (!strcmp(x->g->result[k].t.name, p->generate.logits))
			x->logits = &x->g->result[k];
	if (x->token < 0 || !x->logits || x->logits->t.rank != 3)
		return rt_fail(&h->error, "the program's descriptor: what generate names is not there");
	x->places = x->logits->t.shape[1];
	x->vocab = x->logits->t.shape[2];
	x->end = p->generate.end;
	for (int i = 0; i < h->opt.noutput; i++) {
		bool score = strcmp(h->opt.output[i].name, "score") == 0;

		if (!score && strcmp(h->opt.output[i].name, "ids") != 0)
			return rt_fail(&h->error, "generate has no output %s: ids and score", h->opt.output[i].name);
		x->scored |= score;
	}
	return true;
}

/* Inputs that bench was not given: random ones, as bench has them in other modes. */
static bool
bench_inputs(Generate *x, RtData *d)
{
	RtHost *h = x->h;
	const RtProgram *p = &h->program;
	int64_t n = x->n > p->batch ? x->n : p->batch;

	if (!rt_data_synthetic(p, p->seed, n, d, &h->error))
		return false;
	for (int k = 0; k < p->ninput; k++) {
		int64_t bytes = p->input[k].t.bytes / p->batch;

		if (k == x->token || !p->input[k].infer)
			continue;
		x->other[k] = rt_alloc((size_t)(bytes * x->n));
		for (int64_t i = 0; i < x->n; i++)
			if (!rt_data_copy(d, k, i, 1, x->other[k] + i * bytes, &h->error))
				return false;
	}
	return true;
}

static void
put_bench(const Generate *x, double *seconds, const RtUsage *usage)
{
	const RtHost *h = x->h;
	const RtProgram *p = &h->program;
	double n = (double)(x->n * x->length);
	RtTiming s = rt_timing(seconds, h->opt.repeat);

	if (!h->opt.json) {
		printf("%s, writing, %s: %lld sequence%s of %lld tokens, beam %lld, by %s, %d threads, %lld times\n",
		       p->model, p->precision, (long long)x->n, x->n == 1 ? "" : "s", (long long)x->length,
		       (long long)h->opt.beam, x->steps ? "steps" : "whole windows", rt_threads_count(h->threads),
		       (long long)h->opt.repeat);
		printf("%-12s %.1f median, %.1f min, %.1f max\n", "tokens/s", n / s.median, n / s.most, n / s.least);
		printf("%-12s %.4g median, %.4g min, %.4g max\n", "ms/token", s.median * 1e3 / (double)x->length,
		       s.least * 1e3 / (double)x->length, s.most * 1e3 / (double)x->length);
		if (usage)
			rt_usage_text(usage);
		return;
	}
	printf("{\"model\": ");
	rt_json_text(stdout, p->model);
	printf(", \"target\": ");
	rt_json_text(stdout, p->target);
	printf(", \"arch\": ");
	rt_json_text(stdout, p->arch);
	printf(", \"precision\": ");
	rt_json_text(stdout, p->precision);
	printf(", \"mode\": \"generate\", \"data\": \"synthetic\", \"batch\": %lld, \"threads\": %d, \"repeats\": "
	       "%lld, "
	       "\"sequences\": %lld, \"length\": %lld, \"beam\": %lld, \"graph\": \"%s\"",
	       (long long)p->batch, rt_threads_count(h->threads), (long long)h->opt.repeat, (long long)x->n,
	       (long long)x->length, (long long)h->opt.beam, x->steps ? "step" : "whole");
	printf(", \"tokens_per_s\": {\"median\": %.9g, \"min\": %.9g, \"max\": %.9g}", n / s.median, n / s.most,
	       n / s.least);
	printf(", \"ms_per_token\": {\"median\": %.9g, \"min\": %.9g, \"max\": %.9g}, \"peak_rss_bytes\": %lld",
	       s.median * 1e3 / (double)x->length, s.least * 1e3 / (double)x->length, s.most * 1e3 / (double)x->length,
	       (long long)rt_peak_rss());
	if (usage)
		rt_usage_json(usage);
	printf("}\n");
}

/* Writes every token of every sequence anew, from initial parameters: no token ends a sequence. */
static bool
bench_write(Generate *x)
{
	x->tokens = 0;
	memset(x->score, 0, sizeof *x->score * (size_t)x->n);
	return (x->h->opt.beam > 1 ? write_beams : write_sequences)(x);
}

int
rt_generate_bench(RtHost *h)
{
	Generate x = {.h = h};
	RtData d = {0};
	double *seconds = rt_alloc(sizeof *seconds * (size_t)h->opt.repeat);
	RtUsage *usage = NULL;
	bool good = generate_open(&x);

	x.n = h->opt.samples > 0 ? h->opt.samples : 1;
	good = good && bench_inputs(&x, &d) && take_inputs(&x) && rt_host_memory(h, 0) && rt_host_init_state(h);
	x.end = -1;
	h->graph = &h->program.graph[RT_G_INFER];
	good = good && bench_write(&x);          /* warm-up */
	if (good && h->opt.usage)
		usage = rt_usage_begin(h, NULL);
	for (int64_t i = 0; good && i < h->opt.repeat; i++) {
		double begin = rt_now();

		good = bench_write(&x);
		seconds[i] = rt_now() - begin;
	}
	while (good && usage && rt_usage_samples(usage) < 3)
		good = bench_write(&x);
	if (usage)
		rt_usage_end(usage);
	if (!good)
		return rt_die(h);
	if (!h->opt.quiet || h->opt.json)
		put_bench(&x, seconds, usage);
	return 0;
}

/* Text appears where a prompt is text, and where nothing is asked for but what the model writes. */
static bool
is_shown(const RtHost *h)
{
	const RtOptions *o = &h->opt;

	return strcmp(h->program.reader.kind, "tokens") == 0 && !o->quiet && !o->json &&
	       (o->prompt || (!o->ninput && !o->noutput));
}

int
rt_generate(RtHost *h)
{
	Generate x = {.h = h, .shown = is_shown(h)};
	bool good = generate_open(&x) && take_inputs(&x) && rt_host_memory(h, 0) && rt_host_init_state(h) &&
	            rt_checkpoint_weights(h, h->opt.weights, false);
	double begin = rt_now();

	h->graph = &h->program.graph[RT_G_INFER];
	good = good && (h->opt.beam > 1 ? write_beams : write_sequences)(&x) && put_outputs(&x);
	if (good && h->opt.json)
		put_json(&x, rt_now() - begin);
	else if (good && x.shown && x.n == 1)
		putchar('\n');
	return good ? 0 : rt_die(h);
}
