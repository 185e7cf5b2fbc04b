/* generate.c: the command generate: writes with a language model or a translator, a token at a time.
 *
 * In: prompts (of one length), or the start token; the other inputs of each sequence.   Out: what follows the prompt,
 * and its score. Logits of what comes next are the work of generate_rows.c, by steps or by whole windows.
 * Choice: the largest logit, of equals the lowest token; or by temperature, cut to K tokens and to a share P of
 * probability (Holtzman et al. 2020, arXiv:1904.09751); or a beam of hypotheses (generate_beams.c). Scores are sums of
 * log-probabilities of the unscaled logits, in double. Sequences that are stepped through together are as many as fit
 * the batch: the others follow behind them. */
#include "generate.h"
#include "philox.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

int32_t *
generate_sequence(const Generate *x, int64_t i)
{
	return x->ids + i * (x->prompt + x->length);
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
void
generate_show(const Generate *x, const int32_t *token, int64_t n)
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
	double *logit;           /* V of each thread */
	Choice *room;            /* V of each thread; NULL: nothing is drawn */
} Turn;

static void
choose_rows(void *cx, int64_t from, int64_t to, int thread)
{
	const Turn *turn = cx;
	const Generate *x = turn->x;

	for (int64_t k = from; k < to; k++) {
		const double *logit = rows_logits(x, k, turn->logit + thread * x->vocab);
		Next *next = &turn->next[k];
		double u;

		if (turn->room) {
			u = philox_uniform((uint64_t)x->h->run.seed, x->stream, (uint64_t)turn->t,
			                   (uint64_t)turn->row[k].example);
			next->token = sample(x, logit, u, turn->room + thread * x->vocab);
		} else {
			next->token = logits_largest(logit, x->vocab);
		}
		next->score = x->scored ? logit[next->token] - logits_log_sum(logit, x->vocab) : 0;
	}
}

/* One token of a sequence; true: it was its last. */
static bool
append(Generate *x, int64_t i, int64_t t, const Next *next)
{
	int32_t token = next->token;

	generate_sequence(x, i)[t] = token;
	if (x->scored)
		x->score[i] += next->score;
	x->tokens++;
	if (x->n == 1)
		generate_show(x, &token, 1);
	if (token != x->end)
		return false;
	for (int64_t q = t + 1; q < x->prompt + x->length; q++)
		generate_sequence(x, i)[q] = (int32_t)x->end;
	return true;
}

/* What a call of rows needs beside them. */
typedef struct Rooms { Row *row; Next *next; double *logit; Choice *choice; bool *over; } Rooms;

/* Sequences [from, to). By steps those that have ended go on too, until so many have that the others are better moved
 * together. */
static bool
write_some(Generate *x, int64_t from, int64_t to, const Rooms *r)
{
	int64_t live = to - from, n = live, all = x->prompt + x->length;
	bool good = true;

	rows_begin(x);
	for (int64_t i = from; i < to; i++) {
		r->row[i - from] = (Row){.example = i, .token = generate_sequence(x, i)};
		r->over[i - from] = false;
	}
	for (int64_t t = x->prompt; good && live && t < all; t++) {
		bool leave = !x->steps || rows_leave(x, n, live, all - t);
		int64_t had = n;

		n = 0;
		for (int64_t k = 0; k < had; k++)
			if (!leave || !r->over[r->row[k].example - from]) {
				Row row = r->row[k];

				row.n = t;
				row.from = k;
				r->row[n++] = row;
			}
		good = rows_run(x, r->row, n);
		if (good)
			rt_threads_run(x->h->threads, choose_rows,
			               &(Turn){x, r->row, t, r->next, r->logit, r->choice}, n);
		for (int64_t k = 0; good && k < n; k++)
			if (!r->over[r->row[k].example - from] && append(x, r->row[k].example, t, &r->next[k])) {
				r->over[r->row[k].example - from] = true;
				live--;
			}
	}
	return good;
}

static bool
write_sequences(Generate *x)
{
	int64_t each = x->steps && x->h->program.batch < x->n ? x->h->program.batch : x->n;
	size_t rows = (size_t)each, room = (size_t)(x->vocab * rt_threads_count(x->h->threads));
	Rooms r = {.row = rt_alloc(sizeof *r.row * rows), .next = rt_alloc(sizeof *r.next * rows),
	           .logit = rt_alloc(sizeof *r.logit * room), .over = rt_alloc(rows)};
	bool good = true;

	r.choice = x->h->opt.temperature > 0 ? rt_alloc(sizeof *r.choice * room) : NULL;
	x->stream = philox_stream("generate");
	for (int64_t i = 0; good && i < x->n; i += each)
		good = write_some(x, i, i + each < x->n ? i + each : x->n, &r);
	for (int64_t i = 0; good && x->n > 1 && i < x->n; i++) {
		generate_show(x, generate_sequence(x, i) + x->prompt, x->length);
		generate_show(x, (int32_t[]){'\n'}, 1);
	}
	free(r.row);
	free(r.next);
	free(r.logit);
	free(r.choice);
	free(r.over);
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
			generate_sequence(x, i)[t] = prompts ? prompts[i * x->prompt + t] : (int32_t)p->generate.start;
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
		memcpy(ids + i * x->length, generate_sequence(x, i) + x->prompt, sizeof *ids * (size_t)x->length);
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
			printf(t ? ", %d" : "%d", (int)generate_sequence(x, i)[x->prompt + t]);
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
	return (x->h->opt.beam > 1 ? generate_beams : write_sequences)(x);
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
	good = good && (h->opt.beam > 1 ? generate_beams : write_sequences)(&x) && put_outputs(&x);
	if (good && h->opt.json)
		put_json(&x, rt_now() - begin);
	else if (good && x.shown && x.n == 1)
		putchar('\n');
	return good ? 0 : rt_die(h);
}
