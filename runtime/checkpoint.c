/* checkpoint.c: saving, resuming, starting from weights.
 *
 * Out: a safetensors file of every state line under its name (parameters, running statistics, the optimizer's slots,
 * accumulated gradients), with step, seed, T, batch and the partial sums of the epoch in the metadata.
 * Nothing in it depends on time or on names: the same state makes the same bytes.
 * A save writes a temporary file beside FILE, syncs it, renames it and syncs the folder (file.c): a kill at any moment
 * leaves the last whole file. A FILE that this run neither wrote nor resumed from is first kept as FILE~, which
 * is said, unless --overwrite is given. Whatever fails leaves FILE as it was. What can be known of failures is asked
 * before the data are read, and from the first step on the run holds FILE.lock. */
#define _GNU_SOURCE
#include "comm.h"

#include <errno.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

/* ---- saving */

static void
checkpoint_meta(RtHost *h, FILE *f, int64_t step)
{
	const RtProgram *p = &h->program;
	const RtGraph *g = &p->graph[p->train.reports];

	fprintf(f, "{\"__metadata__\":{\"mantou\":\"1\",\"format\":\"pt\",\"model\":");
	rt_json_text(f, p->model);
	fprintf(f, ",\"source_hash\":");
	rt_json_text(f, p->source_hash);
	fprintf(f, ",\"precision\":");
	rt_json_text(f, p->precision);
	fprintf(f,
	        ",\"step\":\"%lld\",\"seed\":\"%lld\",\"total_steps\":\"%lld\",\"batch\":\"%lld\",\"examples\":\"%"
	        "lld\"",
	        (long long)step, (long long)h->run.seed, (long long)h->total, (long long)(p->batch * p->shards),
	        (long long)h->train.examples);
	if (p->shards > 1)
		fprintf(f, ",\"shards\":\"%lld\"", (long long)p->shards);
	pthread_mutex_lock(&h->lock);
	fprintf(f, ",\"epoch_weight\":\"%a\",\"epoch_sums\":\"", h->weight);
	for (int i = 0; i < g->nscalar; i++)
		fprintf(f, i ? " %a" : "%a", h->sum[i]);
	pthread_mutex_unlock(&h->lock);
	fprintf(f, "\",\"epoch_names\":\"");
	for (int i = 0; i < g->nscalar; i++)
		fprintf(f, i ? " %s" : "%s", g->result[g->scalar[i]].t.name);
	fprintf(f, "\"");
	rt_best_write(h, f);
	rt_settings_meta(h, f);
	fprintf(f, ",\"checksum\":\"0000000000000000\"}");
}

/* Sums of an evaluation and copies of parameters are no part of a run's state, nor are those over shards, which every
 * step makes anew; settings stand in the metadata. */
static bool
checkpoint_kept(const RtProgram *p, const RtState *s)
{
	return s->kind != RT_SUM && s->kind != RT_CARRY && s->kind != RT_SETTING &&
	       s->kind != RT_COPY && !(s->kind == RT_GRAD && p->shards > 1);
}

/* States in the order of the file: wide elements first, so that each stands at a multiple of its size. */
static int
checkpoint_order(const RtProgram *p, int *order)
{
	int n = 0;

	for (int bytes = 8; bytes; bytes /= 2)
		for (int k = 0; k < p->nstate; k++)
			if (rt_dtype[p->state[k].t.dtype].bytes == bytes && checkpoint_kept(p, &p->state[k]))
				order[n++] = k;
	return n;
}

/* The header with its length in front, padded to a multiple of 8 bytes; malloc'd. */
static char *
checkpoint_header(RtHost *h, int64_t step, const int *order, int n, size_t *bytes)
{
	const RtProgram *p = &h->program;
	char *text = NULL;
	FILE *f = open_memstream(&text, bytes);
	uint64_t length;
	int64_t at = 0;

	if (!f)
		return NULL;
	fwrite("\0\0\0\0\0\0\0", 1, 8, f);
	checkpoint_meta(h, f, step);
	for (int i = 0; i < n; i++) {
		const RtTensor *t = &p->state[order[i]].t;

		putc(',', f);
		rt_json_text(f, t->name);
		fprintf(f, ":{\"dtype\":\"%s\",\"shape\":[", rt_dtype[t->dtype].safetensors);
		for (int k = 0; k < t->rank; k++)
			fprintf(f, k ? ",%lld" : "%lld", (long long)t->shape[k]);
		fprintf(f, "],\"data_offsets\":[%lld,%lld]}", (long long)at, (long long)(at + t->bytes));
		at += t->bytes;
	}
	putc('}', f);
	while (ftell(f) % 8)
		putc(' ', f);
	if (fclose(f) != 0)
		return NULL;
	length = *bytes - 8;
	memcpy(text, &length, 8);
	return text;
}

/* A state's bytes in logical order: in the arena, or rearranged into room (of the largest such state). */
static const uint8_t *
checkpoint_bytes(const RtHost *h, const RtState *s, uint8_t *room)
{
	const uint8_t *at = h->run.arena + s->t.offset;

	if (!s->t.permuted)
		return at;
	rt_tensor_to_logical(&s->t, at, room);
	return room;
}

static uint8_t *
checkpoint_room(const RtProgram *p)
{
	int64_t most = 1;

	for (int k = 0; k < p->nstate; k++)
		if (p->state[k].t.permuted && p->state[k].t.bytes > most)
			most = p->state[k].t.bytes;
	return rt_alloc((size_t)most);
}

static void
checkpoint_seal(RtHost *h, char *text, size_t bytes, const int *order, int n, uint8_t *room)
{
	static const char key[] = "\"checksum\":\"";
	char *at = memmem(text, bytes, key, sizeof key - 1), digits[24];
	uint64_t sum;

	if (!at)
		return;
	at += sizeof key - 1;
	sum = rt_hash(RT_HASH_START, text, (size_t)(at - text));
	sum = rt_hash(sum, at, 16);
	sum = rt_hash(sum, at + 16, (size_t)(text + bytes - at - 16));
	for (int i = 0; i < n; i++)
		sum = rt_hash(sum, checkpoint_bytes(h, &h->program.state[order[i]], room),
		              (size_t)h->program.state[order[i]].t.bytes);
	snprintf(digits, sizeof digits, "%016llx", (unsigned long long)sum);
	memcpy(at, digits, 16);
}

static bool
checkpoint_write(RtHost *h, int64_t step, RtOut *out)
{
	int *order = rt_alloc(sizeof *order * (size_t)(h->program.nstate + 1)),
		n = checkpoint_order(&h->program, order);
	size_t bytes = 0;
	char *text = checkpoint_header(h, step, order, n, &bytes);
	uint8_t *room = checkpoint_room(&h->program);
	bool good = text || rt_fail(&h->error, "out of memory for its header");

	if (good)
		checkpoint_seal(h, text, bytes, order, n, room);
	good = good && rt_out_write(out, text, bytes, &h->error);
	for (int i = 0; good && i < n; i++)
		good = rt_out_write(out, checkpoint_bytes(h, &h->program.state[order[i]], room),
		                    (size_t)h->program.state[order[i]].t.bytes, &h->error);
	good = good && rt_out_sync(out, &h->error);
	free(room);
	free(order);
	free(text);
	return good;
}

/* FILE is there, and this run neither wrote it nor resumes from it, or from what knew it as its best. */
static bool
checkpoint_foreign(const RtHost *h, const RtSave *to)
{
	struct stat st, from;

	if (to->wrote || stat(to->path, &st) != 0)
		return false;
	if (h->resumed)
		return st.st_dev != h->resumed_dev || st.st_ino != h->resumed_ino;
	return !(h->opt.resume && stat(h->opt.resume, &from) == 0 && st.st_dev == from.st_dev
	         && st.st_ino == from.st_ino);
}

/* Keeps what somebody else wrote as FILE~. A hard link first, so that neither FILE nor FILE~ is ever absent. */
static bool
checkpoint_keep(RtHost *h, const RtSave *to)
{
	RtOut out;
	char *old;
	bool good, again;

	if (h->opt.overwrite || !checkpoint_foreign(h, to))
		return true;
	old = rt_printf("%s~", to->path);
	again = access(old, F_OK) == 0;
	good = rt_out_open(&out, old, &h->error);
	if (good && unlink(out.temporary) == 0 && link(to->path, out.temporary) == 0) {
		good = rt_out_end(&out, true, &h->error);
	} else if (good) {                       /* no hard links here */
		good = rename(to->path, old) == 0 || rt_fail(&h->error, "%s", strerror(errno));
		rt_out_drop(&out);
	}
	if (!good)
		rt_context(&h->error, "%s is there already and cannot be renamed to %s", to->path, old);
	if (good && !h->opt.quiet) {
		rt_progress_clear(h);
		fprintf(stderr, "note: %s was not this run's: it is kept as %s%s; --overwrite would replace it\n",
		        to->path, old, again ? ", in place of what that was" : "");
	}
	free(old);
	return good;
}

/* Of a device: all states, which stand together. */
static bool
checkpoint_fetch(RtHost *h)
{
	int64_t begin = INT64_MAX, end = 0;

	for (int k = 0; k < h->program.nstate; k++) {
		const RtTensor *t = &h->program.state[k].t;

		begin = t->offset < begin ? t->offset : begin;
		end = t->offset + t->bytes > end ? t->offset + t->bytes : end;
	}
	return end <= begin || rt_host_fetch(h, begin, end - begin);
}

static bool
checkpoint_save(RtHost *h, RtSave *to, int64_t step)
{
	RtOut out;
	bool good;

	if (!to->path || to->step == step)
		return true;
	pthread_mutex_lock(&h->lock);
	rt_log_flush(h);                         /* the log is never behind a checkpoint */
	pthread_mutex_unlock(&h->lock);
	good = checkpoint_fetch(h) && rt_out_open(&out, to->path, &h->error);
	if (good && !(checkpoint_write(h, step, &out) && checkpoint_keep(h, to))) {
		rt_out_drop(&out);
		good = false;
	}
	if (!good || !rt_out_end(&out, true, &h->error))
		return rt_context(&h->error, "cannot save");
	to->wrote = true;
	to->step = step;
	return true;
}

bool
rt_checkpoint_save(RtHost *h, int64_t step)
{
	return rt_cuts_collect(h, step) && checkpoint_save(h, &h->save, step);
}

bool
rt_checkpoint_save_best(RtHost *h, int64_t step)
{
	return rt_cuts_collect(h, step) && checkpoint_save(h, &h->best.save, step);
}

static const char save_other[] = "--save names another file, --no-save none";

/* Takes FILE for this run. */
static bool
checkpoint_take(RtHost *h, const char *given, RtSave *to)
{
	struct stat st;
	char *old;
	bool good;

	/* the next checkpoint is to replace it */
	good = (stat(given, &st) != 0 || S_ISREG(st.st_mode)) && rt_file_descriptor(given) < 0;
	if (!good)
		return rt_fail(&h->error, "--save %s: is not a regular file; %s", given, save_other);
	if (!rt_out_could(given, &to->path, &h->error))
		return rt_context(&h->error, "cannot save") || rt_hint(&h->error, save_other);
	if (!rt_lock_take(&to->lock, to->path, &h->error))
		return rt_context(&h->error, "cannot save %s", to->path) || rt_hint(&h->error, save_other);
	rt_out_clean(to->path);                  /* only now: a run that is refused touches nothing */
	if (h->opt.overwrite || !checkpoint_foreign(h, to))
		return true;
	old = rt_printf("%s~", to->path);
	good = rt_out_try(old, NULL, &h->error)
	       || rt_context(&h->error, "%s is there already and cannot be renamed", to->path)
	       || rt_hint(&h->error, save_other);
	free(old);
	return good;
}

/* NAME.safetensors: NAME.best.safetensors */
static char *
checkpoint_best_name(const char *name)
{
	static const char end[] = ".safetensors";
	size_t n = strlen(name), k = sizeof end - 1;

	return n > k && strcmp(name + n - k, end) == 0 ? rt_printf("%.*s.best%s", (int)(n - k), name, end)
	                                                : rt_printf("%s.best", name);
}

bool
rt_checkpoint_try(RtHost *h)
{
	char *given, *best;
	bool good;

	if (h->opt.no_save)
		return true;
	given = h->opt.save ? rt_printf("%s", h->opt.save) : rt_printf("%s.safetensors", h->opt.program);
	best = checkpoint_best_name(given);
	good = checkpoint_take(h, given, &h->save) && (!h->opt.keep || checkpoint_take(h, best, &h->best.save));
	free(given);                             /* a link stays a link: its target is replaced */
	free(best);
	return good;
}

void
rt_checkpoint_end(RtHost *h)
{
	rt_lock_release(&h->best.save.lock);
	rt_lock_release(&h->save.lock);
}

/* ---- loading */

/* The file; of several processes rank 0 reads it, and the others have its bytes. */
static bool
checkpoint_read(RtHost *h, RtFile *f, const char *path, RtError *e)
{
	bool good;

	if (h->ranks == 1)
		return rt_file_read(f, path, e);
	*f = (RtFile){.path = NULL};
	good = h->rank != 0 || rt_file_read(f, path, e);
	if (!h->comm->agree(h, good, ""))
		return false;
	h->comm->share(h, (void **)&f->at, &f->n);
	return true;
}

static const RtStEntry *
checkpoint_find(const RtSt *s, const char *name)
{
	int low = 0, high = s->nentry;

	while (low < high) {
		int middle = (low + high) / 2, c = strcmp(name, s->entry[middle].name);

		if (c == 0)
			return &s->entry[middle];
		if (c < 0)
			high = middle;
		else
			low = middle + 1;
	}
	return NULL;
}

static void
checkpoint_words(char *out, size_t room, const char *dtype, int rank, const int64_t *shape)
{
	size_t n = (size_t)snprintf(out, room, "%s[", dtype);

	for (int i = 0; i < rank && n < room; i++)
		n += (size_t)snprintf(out + n, room - n, i ? ", %lld" : "%lld", (long long)shape[i]);
	if (n < room)
		snprintf(out + n, room - n, "]");
}

static int
checkpoint_dtype(const char *name)
{
	for (int t = 1; t < RT_DTYPE_COUNT; t++)
		if (strcmp(rt_dtype[t].safetensors, name) == 0)
			return t;
	return 0;
}

/* Whether entry t can stand for state s: same shape, and the same type, or (exact is false) another float type. */
static bool
checkpoint_fits(const RtState *s, const RtStEntry *t, bool exact, RtError *e)
{
	int dtype = checkpoint_dtype(t->dtype);
	bool types = dtype == s->t.dtype ||
	             (!exact && dtype && rt_dtype[dtype].kind == 'f' && rt_dtype[s->t.dtype].kind == 'f');
	char have[160], want[160];

	if (types && t->rank == s->t.rank && memcmp(t->shape, s->t.shape, sizeof *t->shape * (size_t)t->rank) == 0)
		return true;
	checkpoint_words(have, sizeof have, dtype ? rt_dtype[dtype].name : t->dtype, t->rank, t->shape);
	checkpoint_words(want, sizeof want, rt_dtype[s->t.dtype].name, s->t.rank, s->t.shape);
	return rt_fail(e, "%s%s%s%s is %s, the model has %s", s->t.name, t->from ? " (" : "", t->from ? t->from : "",
	               t->from ? " of the file)" : "", have, want);
}

static void
checkpoint_copy(RtHost *h, const RtState *s, const RtSt *st, const RtStEntry *t)
{
	uint8_t *room = s->t.permuted ? rt_alloc((size_t)s->t.bytes) : NULL, *at = h->run.arena + s->t.offset;
	int64_t bad;

	h->run.prepacked = 0;
	h->rewritten = true;
	rt_dtype_convert(s->t.dtype, room ? room : at, checkpoint_dtype(t->dtype), st->data + t->begin, s->t.count,
	                 false, &bad);
	if (room)
		rt_tensor_from_logical(&s->t, at, room);
	free(room);
}

/* The entry belongs to a state line of the model: it is one, or an optimizer's value of one ("NAME.adam_m"). */
static bool
checkpoint_known(const RtProgram *p, const char *name)
{
	for (int k = 0; k < p->nstate; k++) {
		size_t n = strlen(p->state[k].t.name);

		if (strncmp(name, p->state[k].t.name, n) == 0 && (name[n] == 0 || name[n] == '.'))
			return true;
	}
	return false;
}

static void
checkpoint_left_over(RtHost *h, const RtSt *st, const char *path)
{
	int n = 0;

	for (int i = 0; i < st->nentry; i++)
		if (!checkpoint_known(&h->program, st->entry[i].name))
			fprintf(stderr, n++ ? ", %s" : "note: the model has no %s", st->entry[i].name);
	if (n)
		fprintf(stderr, ": left over in %s\n", path);
}

/* What becomes state k: its own entry; of an average that the file has not, its parameter's. NULL: none, or k is none
 * of the weights. */
static const RtStEntry *
checkpoint_weight(const RtHost *h, const RtSt *st, int k)
{
	const RtState *s = &h->program.state[k];
	const RtStEntry *t;
	int of;

	if (s->kind != RT_PARAM && s->kind != RT_STAT && s->kind != RT_AVERAGE)
		return NULL;
	t = checkpoint_find(st, s->t.name);
	if (t || s->kind != RT_AVERAGE)
		return t;
	of = rt_state_averaged(&h->program, k);
	return of >= 0 ? checkpoint_find(st, h->program.state[of].t.name) : NULL;
}

bool
rt_checkpoint_weights(RtHost *h, const char *path, bool partial)
{
	RtProgram *p = &h->program;
	RtError *e = &h->error;
	RtFile f;
	RtSt st = {0};
	bool good = checkpoint_read(h, &f, path, e);

	if (!good)
		return false;
	good = rt_st_parse(&st, f.at, f.n, e) || rt_context(e, "%s", path);
	good = good && (!h->opt.names || rt_names_apply(h, &st, partial));
	for (int pass = 0; good && pass < 2; pass++)         /* check all, then copy */
		for (int k = 0; good && k < p->nstate; k++) {
			const RtState *s = &p->state[k];
			const RtStEntry *t = checkpoint_weight(h, &st, k);
			RtError why = {"is not in the file"};

			if (s->kind != RT_PARAM && s->kind != RT_STAT && !t)
				continue;
			if (t && checkpoint_fits(s, t, false, &why)) {
				if (pass)
					checkpoint_copy(h, s, &st, t);
			} else if (!partial) {
				const char *near = NULL;
				const char **names = rt_alloc(sizeof *names * (size_t)(st.nentry + 1));

				for (int i = 0; i < st.nentry; i++)
					names[i] = st.entry[i].name;
				near = t ? NULL : rt_suggest(s->t.name, names, st.nentry);
				free(names);
				good = t ? rt_fail(e, "%s: %s", path, why.text)
				         : rt_fail(e,
				                   "%s: parameter %s is missing%s%s%s; --partial would keep its "
				                   "initial value",
				                   path, s->t.name, near ? " (there is " : "", near ? near : "",
				                   near ? ")" : "");
			} else if (pass) {
				fprintf(stderr, "note: %s: %s%s%s: it keeps its initial value\n", path,
				        t ? "" : s->t.name, t ? "" : " ", why.text);
			}
		}
	if (good && (partial || !h->opt.quiet))
		checkpoint_left_over(h, &st, path);
	rt_st_free(&st);
	rt_file_free(&f);
	return good;
}

static bool
checkpoint_meta_int(const RtSt *s, const char *name, int64_t *out)
{
	const char *text = rt_json_str(s->meta, name, NULL);
	char *end;

	if (!text)
		return false;
	errno = 0;
	*out = strtoll(text, &end, 10);
	return *text && !*end && !errno;
}

/* The next word of *text, and steps over it; 0: its length at the end. */
static size_t
checkpoint_word(const char **text, const char **word)
{
	size_t n;

	*word = *text + strspn(*text, " ");
	n = strcspn(*word, " ");
	*text = *word + n;
	return n;
}

/* Sums go by name, for a program of another precision reports others; those of files without names by place. */
static void
checkpoint_read_sums(RtHost *h, const RtSt *st)
{
	const RtGraph *g = &h->program.graph[h->program.train.reports];
	const char *text = rt_json_str(st->meta, "epoch_sums", ""), *names = rt_json_str(st->meta, "epoch_names", NULL),
		*number, *name;
	size_t n;

	h->weight = strtod(rt_json_str(st->meta, "epoch_weight", "0"), NULL);
	for (int i = 0; i < RT_MAX_RESULTS && checkpoint_word(&text, &number); i++) {
		int k = i;

		if (names) {
			n = checkpoint_word(&names, &name);
			for (k = 0; k < g->nscalar; k++)
				if (strlen(g->result[g->scalar[k]].t.name) == n
				    && memcmp(g->result[g->scalar[k]].t.name, name, n) == 0)
					break;
		}
		if (k < g->nscalar)
			h->sum[k] = strtod(number, NULL);
	}
}

/* The loss scale and its counters, which programs of f16 and mixed have and others have not. */
static bool
checkpoint_scale(const char *name)
{
	return strcmp(name, "loss_scale") == 0 || strncmp(name, "loss_scale.", 11) == 0;
}

/* What a program of another precision makes of the file: the same states but for the loss scale, which begins anew, or
 * is left out. */
static void
checkpoint_precision(const RtHost *h, const RtSt *st, const char *path)
{
	const char *was = rt_json_str(st->meta, "precision", NULL);
	bool has = checkpoint_find(st, "loss_scale") != NULL, wants = false;

	for (int k = 0; k < h->program.nstate; k++)
		wants = wants || checkpoint_scale(h->program.state[k].t.name);
	if (h->opt.quiet || (has == wants && (!was || strcmp(was, h->program.precision) == 0)))
		return;
	fprintf(stderr, "note: %s is of a run in %s, this program computes in %s: it goes on%s, "
	        "and is no longer the same bits\n", path,
	        was ? was : has ? "f16 or mixed" : "f32 or bf16", h->program.precision,
	        has == wants ? "" : wants ? " with a new loss scale" : " without a loss scale");
}

/* A checkpoint of a run without averages: they begin as the parameters. */
static void
checkpoint_averages(RtHost *h, const RtSt *st, const char *path)
{
	bool none = false;

	for (int k = 0; k < h->program.nstate; k++)
		if (h->program.state[k].kind == RT_AVERAGE && !checkpoint_find(st, h->program.state[k].t.name)) {
			rt_host_init_average(h, k);
			none = true;
		}
	if (none && !h->opt.quiet)
		fprintf(stderr, "note: %s holds no averages: they begin as the parameters\n", path);
}

static bool
checkpoint_states(RtHost *h, const RtSt *st, RtError *e)
{
	for (int pass = 0; pass < 2; pass++)
		for (int k = 0; k < h->program.nstate; k++) {
			const RtState *s = &h->program.state[k];
			const RtStEntry *t = checkpoint_find(st, s->t.name);
			RtError other;

			if (!checkpoint_kept(&h->program, s) ||
			    (!t && (checkpoint_scale(s->t.name) || s->kind == RT_AVERAGE)))
				continue;
			if (!t)
				return rt_fail(e,
				               "%s is missing: the checkpoint is of another model or optimizer; "
				               "--weights takes its parameters alone",
				               s->t.name);
			if (!checkpoint_fits(s, t, true, e))
				return checkpoint_fits(s, t, false, &other)
				       ? rt_hint(e, "--weights converts parameters, and leaves the optimizer's state")
				       : false;
			if (pass) {
				checkpoint_copy(h, s, st, t);
				rt_cuts_release(h, k);
			}
		}
	return true;
}

/* States that the program has not: it is of another model or optimizer than the file, and goes on all the same. */
static void
checkpoint_unread(const RtHost *h, const RtSt *st, const char *path)
{
	int n = 0;

	for (int i = 0; i < st->nentry && !h->opt.quiet; i++) {
		int k = 0;

		while (k < h->program.nstate && strcmp(h->program.state[k].t.name, st->entry[i].name) != 0)
			k++;
		if (k == h->program.nstate && !checkpoint_scale(st->entry[i].name))
			fprintf(stderr, n++ ? ", %s" : "note: the program has no %s", st->entry[i].name);
	}
	if (n)
		fprintf(stderr, ": left over in %s\n", path);
}

void
rt_checkpoint_seed(RtHost *h, const char *path)
{
	RtError e = {""};
	RtFile f;
	RtSt s;
	const char *text;

	if (!rt_file_map(&f, path, &e))          /* resuming will say so */
		return;
	if (rt_st_parse(&s, f.at, f.n, &e)) {
		text = rt_json_str(s.meta, "seed", NULL);
		if (text) {
			h->opt.seed = strtoll(text, NULL, 10);
			h->opt.has_seed = true;
		}
		rt_st_free(&s);
	}
	rt_file_free(&f);
}

bool
rt_checkpoint_resume(RtHost *h, const char *path, RtResume *r)
{
	RtError *e = &h->error;
	RtFile f;
	RtSt st = {0};
	struct stat info;
	bool good;

	if (!checkpoint_read(h, &f, path, e))
		return false;
	good = rt_st_parse(&st, f.at, f.n, e);
	if (good &&
	    (!checkpoint_meta_int(&st, "step", &r->step) || !checkpoint_meta_int(&st, "seed", &r->seed) ||
	     !checkpoint_meta_int(&st, "total_steps", &r->total) || !checkpoint_meta_int(&st, "batch", &r->batch) ||
	     !checkpoint_meta_int(&st, "examples", &r->examples) || r->step < 0 || r->total < 0 ||
	     r->step > RT_MAX_STEPS || r->total > RT_MAX_STEPS))
		good = rt_fail(e, "holds no step, seed, T and batch: it is no checkpoint of a training; --weights "
		                  "takes its parameters");
	if (!checkpoint_meta_int(&st, "shards", &r->shards))
		r->shards = 1;
	good = good && checkpoint_states(h, &st, e);
	if (good) {
		checkpoint_averages(h, &st, path);
		checkpoint_read_sums(h, &st);
		rt_best_read(h, st.meta);
		rt_settings_resume(h, st.meta, r->step);
		if (strcmp(rt_json_str(st.meta, "source_hash", ""), h->program.source_hash) != 0 && !h->opt.quiet)
			fprintf(stderr, "note: %s was written by a program of another source text\n", path);
		checkpoint_precision(h, &st, path);
		checkpoint_unread(h, &st, path);
		if (stat(path, &info) == 0) {
			h->resumed = true;
			h->resumed_dev = info.st_dev;
			h->resumed_ino = info.st_ino;
		}
	} else {
		rt_context(e, "%s", path);
	}
	rt_st_free(&st);
	rt_file_free(&f);
	return good;
}
