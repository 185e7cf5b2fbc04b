/* data_skipgram.c: words and their neighbours for word vectors: skipgram(train, test, words, window, negatives, sample,
 * min_count) (Mikolov et al. 2013, arXiv:1310.4546).
 *
 * In: files of words between white space, one sequence together.   Out: inputs center, near, count, negative, in the
 * model's order. The vocabulary is that of the training files: words found min_count times, the `words` most frequent
 * of them, by falling count, of equals in byte order. Held are 4 bytes a word of the text, and for one or two epochs
 * those that the subsampling leaves. An epoch's draws depend on the seed, the epoch and a word's place alone, so any
 * thread makes any example. */
#include "host.h"
#include "philox.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

enum { SKIP_USER_BITS = 16 };
#define SKIP_NONE (-((int64_t)1 << SKIP_USER_BITS)) /* an epoch of nobody's */
enum { SKIP_GUIDES = 18 }; /* leading bits of a number that have a guide, at most: of the 24 of its unit */
enum { SKIP_CENTER, SKIP_NEAR, SKIP_COUNT, SKIP_NEGATIVE, SKIP_INPUTS };

typedef struct SkipWord { char *text; size_t n; int64_t count; int32_t id; } SkipWord;
/* Every word of the training files: open addressing, at most half full. */
typedef struct SkipTable { SkipWord *at; int64_t *slot, n, room, slots; } SkipTable;
/* What stays of the text in an epoch. use: its users, and above their bits the epoch; examples are made side by side,
 * each of which is a user, so that no lock is taken where the epoch is there. */
typedef struct SkipEpoch { int64_t use, n; int32_t *id; } SkipEpoch;
typedef struct Skip {
	SkipTable table;
	int32_t *id; int64_t n, room; /* the set's text */
	SkipWord **word; int32_t nword; /* the vocabulary, by number */
	double *share;               /* of a word and those before it, of count^0.75 */
	int32_t *guide; int guides;  /* by leading bits of a number: the first word whose share may exceed it */
	float *stays;                /* by word: more than that and it is dropped */
	int64_t window, negatives, examples;
	uint32_t window_stream, negative_stream;
	pthread_mutex_t lock; pthread_cond_t free;
	int waiting;                 /* threads that wait for an epoch without users */
	SkipEpoch epoch[2];
} Skip;

/* ---- words */

static bool
skip_space(uint8_t c)
{
	return c == ' ' || (c >= '\t' && c <= '\r');
}

static bool
table_grow(SkipTable *t)
{
	int64_t slots = t->slots ? 2 * t->slots : 1 << 16, *slot = malloc(sizeof *slot * (size_t)slots);

	if (!slot)
		return false;
	memset(slot, 0xff, sizeof *slot * (size_t)slots);
	for (int64_t i = 0; i < t->n; i++) {
		uint64_t h = rt_hash(RT_HASH_START, t->at[i].text, t->at[i].n);

		while (slot[h &= (uint64_t)slots - 1] >= 0)
			h++;
		slot[h] = i;
	}
	free(t->slot);
	t->slot = slot;
	t->slots = slots;
	return true;
}

/* The word's entry; with `add` it is made where there is none. NULL: there is none, or no memory. */
static SkipWord *
table_find(SkipTable *t, const uint8_t *text, size_t n, bool add)
{
	uint64_t h = rt_hash(RT_HASH_START, text, n);

	if (2 * t->n >= t->slots && !table_grow(t))
		return NULL;
	for (; t->slot[h &= (uint64_t)t->slots - 1] >= 0; h++) {
		SkipWord *w = &t->at[t->slot[h]];

		if (w->n == n && memcmp(w->text, text, n) == 0)
			return w;
	}
	if (!add)
		return NULL;
	if (t->n == t->room) {
		SkipWord *more = realloc(t->at, sizeof *more * (size_t)(t->room = t->room ? 2 * t->room : 1 << 14));

		if (!more)
			return NULL;
		t->at = more;
	}
	t->slot[h] = t->n;
	t->at[t->n] = (SkipWord){.text = rt_printf("%.*s", (int)n, (const char *)text), .n = n, .id = -1};
	return &t->at[t->n++];
}

/* Each word of a file is counted (count), or its number goes to the set's text. */
static bool
skip_file(Skip *v, const char *path, bool count, RtError *e)
{
	RtFile f;
	bool good = true;

	if (!rt_file_map(&f, path, e))
		return false;
	for (size_t at = 0, from; good && at < f.n;) {
		SkipWord *w;

		while (at < f.n && skip_space(f.at[at]))
			at++;
		for (from = at; at < f.n && !skip_space(f.at[at]);)
			at++;
		if (at == from)
			break;
		if (at - from > 1 << 16 || memchr(f.at + from, 0, at - from)) {
			good = rt_fail(e, "%s: byte %zu: no text of words", path, from);
			break;
		}
		w = table_find(&v->table, f.at + from, at - from, count);
		if (count && w)
			w->count++;
		else if (count)
			good = rt_fail(e, "%s: out of memory for %lld different words", path, (long long)v->table.n);
		else if (w && w->id >= 0) {
			if (v->n == v->room) {
				int32_t *more = realloc(
				        v->id, sizeof *more * (size_t)(v->room = v->room ? 2 * v->room : 1 << 20));

				if (!more) {
					good = rt_fail(e, "%s: out of memory for %lld words", path, (long long)v->n);
					break;
				}
				v->id = more;
			}
			v->id[v->n++] = w->id;
		}
	}
	rt_file_free(&f);
	return good;
}

static bool
skip_files(Skip *v, const char *folder, const char **pattern, int npattern, bool count, RtError *e)
{
	bool good = true;

	for (int i = 0; good && i < npattern; i++) {
		RtPaths paths = {0};

		good = rt_paths_find(&paths, folder, pattern[i], e);
		for (int j = 0; good && j < paths.n; j++)
			good = skip_file(v, paths.at[j], count, e);
		rt_paths_free(&paths);
	}
	return good;
}

static int
skip_order(const void *a, const void *b)
{
	const SkipWord *x = *(SkipWord *const *)a, *y = *(SkipWord *const *)b;

	return x->count != y->count ? (x->count < y->count) - (x->count > y->count) : strcmp(x->text, y->text);
}

/* The first word for each run of numbers with the same leading bits, two runs a word: a search that begins there ends
 * soon. */
static bool
skip_guide(Skip *v)
{
	int64_t n;
	int32_t word = 0;

	while (v->guides < SKIP_GUIDES && (int64_t)1 << v->guides < 2 * (int64_t)v->nword)
		v->guides++;
	n = (int64_t)1 << v->guides;
	v->guide = malloc(sizeof *v->guide * (size_t)(n + 1));
	if (!v->guide)
		return false;
	for (int64_t i = 0; i <= n; i++) {
		while (word < v->nword - 1 && v->share[word] <= (double)i / (double)n)
			word++;
		v->guide[i] = word;
	}
	return true;
}

/* Numbers, shares, and how likely a word stays: sqrt(sample / f) + sample / f of its share f of the text. */
static bool
skip_vocabulary(Skip *v, int64_t words, int64_t least, double sample, RtError *e)
{
	double all = 0, powers = 0, sum = 0;
	int64_t n = 0;

	v->word = malloc(sizeof *v->word * (size_t)(v->table.n + 1));
	for (int64_t i = 0; v->word && i < v->table.n; i++)
		if (v->table.at[i].count >= least)
			v->word[n++] = &v->table.at[i];
	if (v->word && n)
		qsort(v->word, (size_t)n, sizeof *v->word, skip_order);
	v->nword = (int32_t)(n < words ? n : words);
	v->share = malloc(sizeof *v->share * (size_t)(v->nword + 1));
	v->stays = malloc(sizeof *v->stays * (size_t)(v->nword + 1));
	if (!v->word || !v->share || !v->stays)
		return rt_fail(e, "out of memory for a vocabulary of %lld words", (long long)n);
	if (v->nword < 1)
		return rt_fail(e, "no word is found %lld times", (long long)least);
	for (int32_t i = 0; i < v->nword; i++) {
		v->word[i]->id = i;
		all += (double)v->word[i]->count;
		powers += pow((double)v->word[i]->count, 0.75);
	}
	for (int32_t i = 0; i < v->nword; i++) {
		double f = (double)v->word[i]->count / all, stays = sqrt(sample / f) + sample / f;

		sum += pow((double)v->word[i]->count, 0.75);
		v->share[i] = sum / powers;
		/* numbers are multiples of 2^-24 */
		v->stays[i] = sample <= 0 || stays >= 1 ? 1 : (float)(ceil(stays * 0x1p24) * 0x1p-24);
	}
	v->share[v->nword - 1] = 1;
	return skip_guide(v) || rt_fail(e, "out of memory for the shares of %d words", (int)v->nword);
}

static bool
skip_words(const RtData *d, const char *path, RtError *e)
{
	const Skip *v = d->maker;
	RtOut o;
	bool good = rt_out_open(&o, path, e);

	for (int32_t i = 0; good && i < v->nword; i++) {
		char *line = rt_printf("%s\n", v->word[i]->text);

		good = rt_out_write(&o, line, strlen(line), e);
		free(line);
		if (!good)
			rt_out_drop(&o);
	}
	return good && rt_out_end(&o, false, e);
}

/* ---- epochs */

static int64_t
skip_epoch(int64_t use)
{
	return use >> SKIP_USER_BITS;
}

static int64_t
skip_users(int64_t use)
{
	return use & (((int64_t)1 << SKIP_USER_BITS) - 1);
}

/* Fills an epoch's text, for its first user. */
static bool
skip_draw(const Skip *v, uint64_t seed, int64_t epoch, SkipEpoch *x)
{
	uint32_t stream = philox_stream("subsample"), w[4] = {0};

	if (!x->id && !(x->id = malloc(sizeof *x->id * (size_t)(v->n + 1))))
		return false;
	x->n = 0;
	for (int64_t i = 0; i < v->n; i++) {
		if ((i & 3) == 0)
			philox_group(seed, stream, (uint64_t)epoch, (uint64_t)i >> 2, w);
		x->id[x->n] = v->id[i];
		x->n += philox_unit(w[i & 3]) < (double)v->stays[v->id[i]];
	}
	__atomic_store_n(&x->use, epoch * ((int64_t)1 << SKIP_USER_BITS) + 1, __ATOMIC_SEQ_CST);
	return true;
}

/* The epoch's text with one user more, if it is there. */
static SkipEpoch *
skip_join(Skip *v, int64_t epoch)
{
	for (int i = 0; i < 2; i++) {
		int64_t use = __atomic_load_n(&v->epoch[i].use, __ATOMIC_SEQ_CST);

		while (skip_epoch(use) == epoch)
			if (__atomic_compare_exchange_n(&v->epoch[i].use, &use, use + 1, true, __ATOMIC_SEQ_CST,
			                                __ATOMIC_SEQ_CST))
				return &v->epoch[i];
	}
	return NULL;
}

/* The older epoch that has no users, which nobody joins any more; NULL: both have. */
static SkipEpoch *
skip_spare(Skip *v)
{
	int older = skip_epoch(v->epoch[0].use) > skip_epoch(v->epoch[1].use);

	for (int i = 0; i < 2; i++) {
		SkipEpoch *x = &v->epoch[i ^ older];
		int64_t use = __atomic_load_n(&x->use, __ATOMIC_SEQ_CST);

		if (!skip_users(use) && __atomic_compare_exchange_n(&x->use, &use, SKIP_NONE, false,
		                                                    __ATOMIC_SEQ_CST, __ATOMIC_SEQ_CST))
			return x;
	}
	return NULL;
}

/* The epoch's text, drawn where it is not there; NULL: no memory. */
static SkipEpoch *
skip_take(Skip *v, uint64_t seed, int64_t epoch)
{
	SkipEpoch *x = skip_join(v, epoch);

	if (x)
		return x;
	pthread_mutex_lock(&v->lock);
	__atomic_add_fetch(&v->waiting, 1, __ATOMIC_SEQ_CST);
	while (!(x = skip_join(v, epoch))) {
		if ((x = skip_spare(v))) {
			x = skip_draw(v, seed, epoch, x) ? x : NULL;
			break;
		}
		pthread_cond_wait(&v->free, &v->lock);
	}
	__atomic_sub_fetch(&v->waiting, 1, __ATOMIC_SEQ_CST);
	pthread_mutex_unlock(&v->lock);
	return x;
}

static void
skip_release(Skip *v, SkipEpoch *x)
{
	if (skip_users(__atomic_sub_fetch(&x->use, 1, __ATOMIC_SEQ_CST)) ||
	    !__atomic_load_n(&v->waiting, __ATOMIC_SEQ_CST))
		return;
	pthread_mutex_lock(&v->lock);
	pthread_cond_broadcast(&v->free);
	pthread_mutex_unlock(&v->lock);
}

/* The first word whose running share exceeds the number's unit. */
static int32_t
skip_negative(const Skip *v, uint32_t number)
{
	const int32_t *run = &v->guide[number >> (32 - v->guides)];
	int32_t low = run[0], high = run[1];
	double u = philox_unit(number);

	while (low < high) {
		int32_t mid = low + (high - low) / 2;

		if (v->share[mid] > u)
			high = mid;
		else
			low = mid + 1;
	}
	return low;
}

/* Elements of an input, in its own type. */
static void
skip_put(const RtData *d, int k, int64_t j, int32_t x, uint8_t *out)
{
	int dtype = d->p->input[k].t.dtype;

	if (dtype == RT_I32)
		memcpy(out + 4 * j, &x, 4);
	else
		rt_dtype_write(dtype, out + j * rt_dtype[dtype].bytes, x);
}

/* Words by numbers from `first` on. */
static void
skip_negatives(const RtData *d, const Skip *v, uint64_t step, int64_t first, uint8_t *out)
{
	uint32_t w[4] = {0};

	for (int64_t q = 0; q < v->negatives; q++) {
		uint64_t number = (uint64_t)(first + q);

		if (q == 0 || (number & 3) == 0)
			philox_group((uint64_t)d->seed, v->negative_stream, step, number >> 2, w);
		skip_put(d, SKIP_NEGATIVE, q, skip_negative(v, w[number & 3]), out);
	}
}

static bool
skip_make(const RtData *d, RtScratch *s, int64_t epoch, int64_t example, uint8_t *const *out, RtError *e)
{
	Skip *v = d->maker;
	uint64_t seed = (uint64_t)d->seed, step = d->train ? (uint64_t)epoch : 0;
	SkipEpoch *x = d->train ? skip_take(v, seed, epoch) : NULL;
	const int32_t *id = x ? x->id : v->id;
	int64_t n = x ? x->n : v->n, j, reach, count = 0;

	(void)s;
	if (d->train && !x)
		return rt_fail(e, "out of memory for the words of an epoch");
	j = example % (n > 0 ? n : 1);
	reach = d->train ? 1 + philox_number(seed, v->window_stream, step, (uint64_t)j) % (uint32_t)v->window
	                 : v->window;
	for (int64_t i = j - reach; out[SKIP_NEAR] && i <= j + reach; i++)
		if (i >= 0 && i < n && i != j)
			skip_put(d, SKIP_NEAR, count++, id[i], out[SKIP_NEAR]);
	for (int64_t i = count; out[SKIP_NEAR] && i < 2 * v->window; i++)
		skip_put(d, SKIP_NEAR, i, 0, out[SKIP_NEAR]);
	if (out[SKIP_COUNT])
		skip_put(d, SKIP_COUNT, 0, (int32_t)((j < reach ? j : reach) + (n - 1 - j < reach ? n - 1 - j : reach)),
		         out[SKIP_COUNT]);
	if (out[SKIP_CENTER])
		skip_put(d, SKIP_CENTER, 0, n > 0 ? id[j] : 0, out[SKIP_CENTER]);
	if (out[SKIP_NEGATIVE])
		skip_negatives(d, v, step, j * v->negatives, out[SKIP_NEGATIVE]);
	if (x)
		skip_release(v, x);
	return true;
}

/* ---- the reader */

static void
skip_free(void *maker)
{
	Skip *v = maker;

	for (int64_t i = 0; i < v->table.n; i++)
		free(v->table.at[i].text);
	free(v->table.at);
	free(v->table.slot);
	free(v->id);
	free(v->word);
	free(v->share);
	free(v->stays);
	free(v->guide);
	for (int i = 0; i < 2; i++)
		free(v->epoch[i].id);
	pthread_mutex_destroy(&v->lock);
	pthread_cond_destroy(&v->free);
	free(v);
}

static bool
skip_inputs(RtData *d, const Skip *v, RtError *e)
{
	int64_t want[SKIP_INPUTS] = {1, 2 * v->window, 1, v->negatives};
	const RtProgram *p = d->p;

	if (p->ninput != SKIP_INPUTS)
		return rt_fail(e,
		               "the reader skipgram gives 4 inputs, center, near, count and negative; the model has %d",
		               p->ninput);
	for (int k = 0; k < SKIP_INPUTS; k++) {
		if (p->input[k].example != want[k])
			return rt_fail(e, "input %s has %lld elements an example, the reader skipgram gives %lld",
			               p->input[k].t.name, (long long)p->input[k].example, (long long)want[k]);
		if (k != SKIP_COUNT && p->input[k].limit > 0 && v->nword > p->input[k].limit)
			return rt_fail(e, "the vocabulary has %d words, input %s takes 0..%lld", (int)v->nword,
			               p->input[k].t.name, (long long)p->input[k].limit - 1);
		d->bytes[k] = want[k] * rt_dtype[p->input[k].t.dtype].bytes;
	}
	return true;
}

bool
rt_read_skipgram(RtData *d, const char *folder, const char **pattern, int npattern, RtError *e)
{
	const RtReader *r = &d->p->reader;
	Skip *v = rt_alloc(sizeof *v);

	*v = (Skip){.window = rt_json_int(r->json, "window", 5),
	            .negatives = rt_json_int(r->json, "negatives", 5),
	            .window_stream = philox_stream("window"),
	            .negative_stream = philox_stream("negative"),
	            .epoch = {{.use = SKIP_NONE}, {.use = SKIP_NONE}}};
	pthread_mutex_init(&v->lock, NULL);
	pthread_cond_init(&v->free, NULL);
	d->maker = v;
	d->maker_free = skip_free;
	d->make = skip_make;
	d->words = skip_words;
	if (!skip_files(v, folder, r->train, r->ntrain, true, e) ||
	    !skip_vocabulary(v, rt_json_int(r->json, "words", 1), rt_json_int(r->json, "min_count", 5),
	                     rt_json_num(r->json, "sample", 1e-3), e) ||
	    !skip_inputs(d, v, e) || !skip_files(v, folder, pattern, npattern, false, e))
		return false;
	if (d->train && !skip_draw(v, (uint64_t)d->seed, 0, &v->epoch[0]))
		return rt_fail(e, "out of memory for the words of an epoch");
	if (d->train)
		skip_release(v, &v->epoch[0]);
	d->examples = d->train ? v->epoch[0].n : v->n;
	return true;
}
