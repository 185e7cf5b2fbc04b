/* watch.c: train --watch LAYER,..|all: what parameters and activations look like every so many steps.
 *
 * In: names of layers or parameters; a name takes what lies under it.   Out: of a parameter its norm, gradient's norm,
 * update ratio (norm of the update over its own), range and share of zeros; of what a layer's kernels store, the same
 * without gradient and update. A line in the log, a table on standard output. A parameter is described as the step
 * found it; its gradient is the loss's, before clipping and weight decay, of the mean over micro-batches or shards.
 * A watched step runs kernel by kernel, as with --sink off, so with the same bits, and looks at each tensor when its
 * kernel has run; all other steps run as without --watch. Norms are sums in double in the order of memory: the same for
 * any --threads. What a kernel keeps in registers has no tensor: a layer that is all of this kind is refused.
 * Refused too: devices and the interpreter, whose kernels leave nothing to look at between them; several processes. */
#include "host.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

/* Of finite elements, but for their number and that of the others. */
typedef struct Look { double square, least, most; int64_t zeros, count, bad; } Look;
/* state: of a parameter, -1; layer: of an activation; number: among those of its layer, from 0 */
typedef struct Item {
	const char *name;
	int state, number;
	Look value, gradient;
	uint8_t *before;             /* the parameter before the step */
	double moved;                /* square of the update's norm */
} Item;
typedef struct RtWatch { Item *item; int n, *of_state, **of_made; int64_t every; } RtWatch;

static void
look_at(Look *l, double x)
{
	if (!isfinite(x)) {
		l->bad++;
		return;
	}
	l->square += x * x;
	l->zeros += x == 0;
	l->least = x < l->least ? x : l->least;
	l->most = x > l->most ? x : l->most;
}

static void
look(Look *l, const RtTensor *t, const uint8_t *at)
{
	int size = rt_dtype[t->dtype].bytes;

	l->count += t->count;
	if (t->dtype == RT_F32) {
		const float *x = (const float *)(const void *)at;

		for (int64_t e = 0; e < t->count; e++)
			look_at(l, x[e]);
		return;
	}
	for (int64_t e = 0; e < t->count; e++)
		look_at(l, rt_dtype_read(t->dtype, at + e * size));
}

/* ---- what is watched */

/* name is `layer`, or lies under it. */
static bool
watch_under(const char *name, const char *layer, size_t n)
{
	return strncmp(name, layer, n) == 0 && (!name[n] || name[n] == '.');
}

typedef struct Names { const char **at; int n, room; } Names;

static void
names_add(Names *list, const char *name, size_t n)
{
	for (int i = 0; i < list->n; i++)
		if (strlen(list->at[i]) == n && strncmp(list->at[i], name, n) == 0)
			return;
	if (list->n == list->room) {
		list->room = 2 * list->room + 64;
		list->at = realloc(list->at, sizeof *list->at * (size_t)list->room);
		if (!list->at)
			abort();                         /* as rt_alloc */
	}
	list->at[list->n++] = rt_printf("%.*s", (int)n, name);
}

/* name and all that it lies under */
static void
names_add_path(Names *list, const char *name)
{
	for (const char *dot = strchr(name, '.'); dot; dot = strchr(dot + 1, '.'))
		names_add(list, name, (size_t)(dot - name));
	names_add(list, name, strlen(name));
}

/* The kernel that computes the layer, among others. NULL: there is no such layer. */
static const RtRow *
watch_kernel(const RtGraph *g, const char *layer, size_t n)
{
	for (int k = 0; k < g->nrow; k++)
		for (const char *at = g->row[k].layers; *at;) {
			size_t m = strcspn(at, ",");

			if (m >= n && strncmp(at, layer, n) == 0 && (m == n || at[n] == '.'))
				return &g->row[k];
			at += m + strspn(at + m, ", ");
		}
	return NULL;
}

static bool
watch_unknown(RtHost *h, const char *layer, size_t n)
{
	const RtGraph *g = &h->program.graph[RT_G_TRAIN];
	const RtRow *r = watch_kernel(g, layer, n);
	char *wrong = rt_printf("%.*s", (int)n, layer);
	const char *near;
	Names known = {0};

	if (r)
		return rt_fail(&h->error,
		               "--watch %s: no tensor of it stands in memory: kernel %s computes it on the way (it "
		               "holds %s); watch a layer beside it, or build with --disable fuse",
		               wrong, r->name, r->layers);
	for (int k = 0; k < h->program.nstate; k++)
		if (h->program.state[k].kind == RT_PARAM)
			names_add_path(&known, h->program.state[k].t.name);
	for (int k = 0; k < g->nrow; k++)
		for (int i = 0; i < g->row[k].nmade; i++)
			names_add_path(&known, g->row[k].made[i].layer);
	near = rt_suggest(wrong, known.at, known.n);
	return rt_fail(&h->error, "--watch %s: the model has no such layer or parameter%s%s%s", wrong,
	               near ? "; did you mean " : "; mantou check lists its layers, and all watches every one",
	               near ? near : "", near ? "?" : "");
}

/* Is it asked for? marks: by name of the option, those that something answers to. */
static bool
watch_wants(const char *option, const char *name, bool *marks)
{
	bool any = false;
	int i = 0;

	for (const char *at = option; *at; i++) {
		size_t n = strcspn(at, ",");

		if ((n == 3 && strncmp(at, "all", n) == 0) || watch_under(name, at, n))
			any = marks[i] = true;
		at += n + (at[n] == ',');
	}
	return any;
}

static int
watch_add(RtWatch *w, const char *name, int state)
{
	Item *i = &w->item[w->n];

	*i = (Item){.name = name, .state = state};
	for (int k = 0; state < 0 && k < w->n; k++)
		i->number += w->item[k].state < 0 && strcmp(w->item[k].name, name) == 0;
	return w->n++;
}

/* Tensors of floats in the order of the model's states, then of the step's kernels. */
static bool
watch_choose(RtHost *h, RtWatch *w)
{
	const RtProgram *p = &h->program;
	const RtGraph *g = &p->graph[RT_G_TRAIN];
	const char *option = h->opt.watch;
	size_t all = (size_t)p->nstate;
	bool *marks = rt_alloc(strlen(option) + 1);
	int i = 0;

	for (int k = 0; k < g->nrow; k++)
		all += (size_t)g->row[k].nmade;
	w->item = rt_alloc(sizeof *w->item * (all + 1));
	w->of_state = rt_alloc(sizeof *w->of_state * ((size_t)p->nstate + 1));
	w->of_made = rt_alloc(sizeof *w->of_made * ((size_t)g->nrow + 1));
	for (int k = 0; k < p->nstate; k++) {
		const RtState *s = &p->state[k];
		bool wanted = s->kind == RT_PARAM && rt_dtype[s->t.dtype].kind == 'f' &&
		              watch_wants(option, s->t.name, marks);

		w->of_state[k] = wanted ? watch_add(w, s->t.name, k) : -1;
		if (!wanted)
			continue;
		w->item[w->n - 1].before = malloc((size_t)s->t.bytes);
		if (!w->item[w->n - 1].before)
			return rt_fail(&h->error, "--watch: out of memory for a copy of %s", s->t.name);
	}
	for (int k = 0; k < g->nrow; k++) {
		const RtRow *r = &g->row[k];

		for (int j = 0; j < r->ngradient; j++)
			if (r->gradient[j].state < 0 || r->gradient[j].state >= p->nstate)
				return rt_fail(&h->error, "kernel %s: the gradient of no parameter", r->name);
		w->of_made[k] = rt_alloc(sizeof **w->of_made * ((size_t)r->nmade + 1));
		for (int j = 0; j < r->nmade; j++)
			w->of_made[k][j] = r->made[j].t.count > 1 && watch_wants(option, r->made[j].layer, marks)
			                           ? watch_add(w, r->made[j].layer, -1)
			                           : -1;
	}
	for (const char *at = option; *at; i++) {
		size_t n = strcspn(at, ",");

		if (!n)
			return rt_fail(&h->error, "--watch wants names of layers or parameters, or all, not '%s'",
			               option);
		if (!marks[i])
			return watch_unknown(h, at, n);
		at += n + (at[n] == ',');
	}
	return true;
}

bool
rt_watch_prepare(RtHost *h)
{
	RtWatch *w;

	if (!h->opt.watch)
		return true;
	if (h->object->device || h->object->call)
		return rt_fail(&h->error, "--watch is for programs of target cpu: %s",
		               h->object->device ? "between the kernels of a device there is no looking at its memory"
		                                : "the interpreter stores no tensors");
	if (h->ranks > 1)
		return rt_fail(&h->error, "--watch is for one process: --alone");
	w = rt_alloc(sizeof *w);
	w->every = h->opt.watch_every > 0 ? h->opt.watch_every : h->opt.every > 0 ? h->opt.every : 100;
	h->watch = w;
	return watch_choose(h, w);
}

/* ---- a step */

bool
rt_watch_due(const RtHost *h, int64_t *until)
{
	int64_t every = h->watch ? h->watch->every : 1, next;

	if (!h->watch)
		return false;
	next = (h->run.step + every - 1) / every * every;
	if (next == h->run.step)
		*until = next + 1;
	else if (*until > next)
		*until = next;
	return next == h->run.step;
}

void
rt_watch_begin(RtHost *h)
{
	RtWatch *w = h->watch;

	for (int i = 0; i < w->n; i++) {
		Item *item = &w->item[i];
		const Look none = {.least = INFINITY, .most = -INFINITY};

		item->value = item->gradient = none;
		item->moved = 0;
		if (item->state < 0)
			continue;
		memcpy(item->before, h->run.arena + h->program.state[item->state].t.offset,
		       (size_t)h->program.state[item->state].t.bytes);
		look(&item->value, &h->program.state[item->state].t, item->before);
	}
	h->watching = true;
}

/* After each kernel of graph train. */
static void
watch_row(void *cx, const RtGraph *g, int row, double begin, double end)
{
	RtHost *h = cx;
	RtWatch *w = h->watch;
	const RtRow *r = &g->row[row];

	(void)begin;
	(void)end;
	for (int k = 0; k < r->nmade; k++)
		if (w->of_made[row][k] >= 0)
			look(&w->item[w->of_made[row][k]].value, &r->made[k].t, h->run.arena + r->made[k].t.offset);
	/* of several calls a step the sums are looked at */
	for (int k = 0; k < r->ngradient && h->accumulate < 2; k++) {
		const RtGradient *d = &r->gradient[k];

		if (w->of_state[d->state] >= 0)
			look(&w->item[w->of_state[d->state]].gradient, &d->t, h->run.arena + d->t.offset);
	}
}

/* The states NAME.grad, before graph update reads them. */
static void
watch_sums(RtHost *h)
{
	RtWatch *w = h->watch;

	for (int k = 0; k < h->program.nstate; k++) {
		const RtState *s = &h->program.state[k];
		size_t n = strlen(s->t.name);

		if (s->kind != RT_GRAD || n < 5 || strcmp(s->t.name + n - 5, ".grad") != 0)
			continue;
		for (int i = 0; i < w->n; i++)
			if (w->item[i].state >= 0 && strlen(w->item[i].name) == n - 5 &&
			    strncmp(w->item[i].name, s->t.name, n - 5) == 0)
				look(&w->item[i].gradient, &s->t, h->run.arena + s->t.offset);
	}
}

int64_t
rt_watch_call(RtHost *h, int graph)
{
	if (graph == RT_G_UPDATE)
		watch_sums(h);
	if (graph == RT_G_TRAIN && rt_joins_in_step(h))
		return rt_joined_step(h, watch_row, h);
	return rt_loop_call(h, graph, graph == RT_G_TRAIN ? watch_row : NULL, h);
}

/* ---- what is said of it */

static void
watch_log(const RtHost *h, const RtWatch *w, int64_t step, double scale)
{
	FILE *f = h->log;

	fprintf(f, "{\"watch\": %lld, \"epoch\": %lld, \"tensors\": [", (long long)step, (long long)h->run.epoch);
	for (int i = 0; i < w->n; i++) {
		const Item *item = &w->item[i];
		const Look *l = &item->value;

		fprintf(f, "%s{\"name\": ", i ? ", " : "");
		rt_json_text(f, item->name);
		fprintf(f, ", \"kind\": \"%s\", \"number\": %d", item->state < 0 ? "activation" : "parameter",
		        item->number);
		fprintf(f, ", \"norm\": %.9g, \"min\": ", sqrt(l->square));
		rt_json_number(f, l->least, 9);
		fprintf(f, ", \"max\": ");
		rt_json_number(f, l->most, 9);
		fprintf(f, ", \"zeros\": %.9g, \"not_finite\": %lld",
		        l->count ? (double)l->zeros / (double)l->count : 0, (long long)l->bad);
		if (item->state >= 0) {
			fprintf(f, ", \"update_ratio\": ");
			rt_json_number(f, sqrt(item->moved / l->square), 9);
		}
		if (item->gradient.count)
			fprintf(f, ", \"grad_norm\": %.9g, \"grad_not_finite\": %lld",
			        sqrt(item->gradient.square) / scale, (long long)item->gradient.bad);
		fprintf(f, "}");
	}
	fprintf(f, "]}\n");
}

static void
watch_text(const RtWatch *w, int64_t step, double scale)
{
	int wide = 12;

	for (int i = 0; i < w->n; i++)
		wide = (int)strlen(w->item[i].name) + 4 > wide ? (int)strlen(w->item[i].name) + 4 : wide;
	printf("step %-*lld  %10s %10s %10s %7s %10s %10s\n", wide - 5, (long long)step, "norm", "gradient", "update",
	       "zeros", "min", "max");
	for (int i = 0; i < w->n; i++) {
		const Item *item = &w->item[i];
		const Look *l = &item->value;
		int used;

		used = item->number ? printf("%s (%d)", item->name, item->number + 1) : printf("%s", item->name);
		printf("%*s%10.4g", wide + 2 - used, "", sqrt(l->square));
		if (item->gradient.count)
			printf(" %10.4g", sqrt(item->gradient.square) / scale);
		else
			printf(" %10s", "-");
		if (item->state >= 0 && l->square > 0)
			printf(" %10.3g", sqrt(item->moved / l->square));
		else
			printf(" %10s", "-");
		printf(" %6.2f%%", l->count ? 100 * (double)l->zeros / (double)l->count : 0);
		if (l->least <= l->most)
			printf(" %10.4g %10.4g", l->least, l->most);
		else
			printf(" %10s %10s", "-", "-");
		if (l->bad + item->gradient.bad)
			printf("  not finite: %lld%s", (long long)(l->bad + item->gradient.bad),
			       l->bad ? "" : " of the gradient");
		printf("\n");
	}
}

/* Gradients are those of the loss times the loss scale, where there is one, and a shard's sums those of all. */
static double
watch_scale(const RtHost *h)
{
	const RtGraph *g = &h->program.graph[h->program.train.reports];
	double scale = h->program.shards > 1 ? (double)h->program.shards : 1;

	for (int i = 0; i < g->nscalar; i++)
		if (g->result[g->scalar[i]].kind == RT_SCALE)
			scale *= rt_dtype_read(g->scalar_dtype[i], h->run.arena + g->scalar_offset[i]);
	return scale;
}

void
rt_watch_end(RtHost *h, int64_t step)
{
	RtWatch *w = h->watch;
	double scale = watch_scale(h);

	h->watching = false;
	for (int i = 0; i < w->n; i++) {
		Item *item = &w->item[i];
		const RtTensor *t = item->state < 0 ? NULL : &h->program.state[item->state].t;

		for (int64_t e = 0; t && e < t->count; e++) {
			int64_t at = e * rt_dtype[t->dtype].bytes;
			double d = rt_dtype_read(t->dtype, h->run.arena + t->offset + at) -
			           rt_dtype_read(t->dtype, item->before + at);

			item->moved += d * d;
		}
	}
	rt_drain(h);
	if (h->log) {
		pthread_mutex_lock(&h->lock);
		watch_log(h, w, step, scale);
		pthread_mutex_unlock(&h->lock);
	}
	if (h->opt.quiet)
		return;
	rt_progress_clear(h);
	watch_text(w, step, scale);
	rt_progress_flush(h);
}
