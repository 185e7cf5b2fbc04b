/* table.c: the descriptor's "races" of graph train: which groups have several kernels, and which share a record.
 *
 * In: a program and its image.   Out: records, groups and units (race.h). Refuses what would make the worker write
 * outside the arena, kernels that the image has not, and groups whose own rows do not stand together. */
#include "race.h"

#include <string.h>

const char *const race_limits[RACE_LIMITS] = {"products", "tiles", "memory"};

static bool
table_places(RacePlace **out, int *n, const Json *list, const RtProgram *p)
{
	*n = 0;
	*out = rt_alloc(sizeof **out * (size_t)(list ? list->n : 0));
	for (const Json *o = list ? list->child : NULL; o; o = o->next) {
		RacePlace *at = &(*out)[(*n)++];

		if (o->n != 3 || !o->child->next->next->s)
			return false;
		*at = (RacePlace){.offset = o->child->i,
		                  .bytes = o->child->next->i,
		                  .dtype = rt_dtype_named(o->child->next->next->s)};
		if (!at->dtype || at->offset < 0 || at->bytes < 0 || at->bytes > p->arena_bytes ||
		    at->offset > p->arena_bytes - at->bytes)
			return false;
	}
	return true;
}

/* The record of this key, made if it is new. */
static RaceRecord *
table_record(RaceTable *t, const char *key, int groups)
{
	RaceRecord *r = t->record;

	while (r < t->record + t->nrecord && strcmp(r->key, key) != 0)
		r++;
	if (r == t->record + t->nrecord) {
		*r = (RaceRecord){.key = key, .group = rt_alloc(sizeof *r->group * (size_t)groups)};
		t->nrecord++;
	}
	return r;
}

/* The text's number in the record, added if it is new; a record's first is the baseline of its groups. */
static int
table_text(RaceRecord *r, const Json *o, int room)
{
	static const char *const bits[] = {"same", "order", "round"};
	const char *kernel = rt_json_str(o, "kernel", "");
	int k = 0;

	if (!r->text)
		r->text = rt_alloc(sizeof *r->text * (size_t)room);
	while (k < r->ntext && strcmp(r->text[k].kernel, kernel) != 0)
		k++;
	if (k == room)
		return -1;
	if (k == r->ntext) {
		r->text[k] = (RaceText){.kernel = kernel, .bound = rt_json_int(o, "bound", 0)};
		for (int i = 0; i < RT_COUNT(bits); i++)
			if (strcmp(rt_json_str(o, "bits", "same"), bits[i]) == 0)
				r->text[k].bits = (RaceBits)i;
		r->ntext++;
	}
	if (r->text[k].workspace < rt_json_int(o, "workspace", 0))
		r->text[k].workspace = rt_json_int(o, "workspace", 0);
	return k;
}

/* Rows of the graph's own table, by their numbers. */
static bool
table_own(RaceRows *rows, const RtGraph *g, const Json *list)
{
	rows->n = 0;
	for (const Json *x = list ? list->child : NULL; x; x = x->next, rows->n++)
		if (x->i < 0 || x->i >= g->nrow || g->row[x->i].once || (rows->n && x->i != list->child->i + rows->n))
			return false;
	rows->row = rows->n ? &g->row[list->child->i] : NULL;
	return rows->n > 0;
}

enum { TABLE_TEXTS = 1024 };               /* of a record */

static bool
table_variants(RaceTable *t, RaceGroup *g, RaceRecord *r, const Json *list, const RtImage *image, RtError *e)
{
	g->rows = rt_alloc(sizeof *g->rows * TABLE_TEXTS);
	for (const Json *o = list ? list->child : NULL; o; o = o->next) {
		int k = table_text(r, o, TABLE_TEXTS);
		RtGraph rows = {.name = t->graph->name};

		if (k < 0 || (o == list->child && k != 0))
			return rt_fail(e, "group %s: more than %d kernels, or another baseline than its record",
			               g->name, TABLE_TEXTS);
		if (o == list->child) {
			if (!table_own(&g->rows[0], t->graph, rt_json_get(o, "rows")))
				return rt_fail(e, "group %s: bad rows", g->name);
			continue;
		}
		if (!rt_program_rows(&rows, rt_json_get(o, "rows"), image->nkernel, e))
			return false;
		g->rows[k] = (RaceRows){.row = rows.row, .n = rows.nrow};
	}
	t->most = r->ntext > t->most ? r->ntext : t->most;
	return true;
}

static bool
table_group(RaceTable *t, const Json *o, const RtProgram *p, const RtImage *image, int groups, RtError *e)
{
	RaceGroup *g = &t->group[t->ngroup];
	RaceRecord *r = table_record(t, rt_json_str(o, "record", ""), groups);
	const Json *workspace = rt_json_get(o, "workspace"), *layers = rt_json_get(o, "layers");

	*g = (RaceGroup){.name = rt_json_str(o, "group", ""), .layers = "", .record = (int)(r - t->record)};
	for (const Json *x = layers ? layers->child : NULL; x; x = x->next)
		g->layers = *g->layers ? rt_printf("%s, %s", g->layers, x->s) : x->s;
	if (workspace && workspace->n == 2 && workspace->child->next->i > 0)
		g->workspace = (RacePlace){.offset = workspace->child->i, .bytes = workspace->child->next->i};
	if (g->workspace.offset < 0 || g->workspace.bytes > p->arena_bytes ||
	    g->workspace.offset > p->arena_bytes - g->workspace.bytes ||
	    !table_places(&g->read, &g->nread, rt_json_get(o, "reads"), p) ||
	    !table_places(&g->write, &g->nwrite, rt_json_get(o, "writes"), p))
		return rt_fail(e, "group %s: a place lies outside the arena", g->name);
	r->group[r->ngroup++] = t->ngroup++;
	return table_variants(t, g, r, rt_json_get(o, "variants"), image, e);
}

/* Eight operations a byte: about what a CPU computes while its memory delivers one. */
static RaceLimit
table_limit(const RtRow *row, int n, const char *kernel)
{
	double flops = 0, bytes = 0;

	for (int i = 0; i < n; i++) {
		flops += row[i].flops;
		bytes += row[i].bytes;
	}
	return flops < 8 * bytes ? RACE_MEMORY : kernel && strstr(kernel, "amx") ? RACE_TILES : RACE_PRODUCTS;
}

static void
table_units(RaceTable *t)
{
	const RtGraph *graph = t->graph;

	t->unit = rt_alloc(sizeof *t->unit * (size_t)graph->nrow);
	for (int k = 0; k < graph->nrow; k++) {
		RaceUnit u = {.group = -1, .row = k};
		bool inside = false;

		for (int g = 0; g < t->ngroup; g++) {
			const RtRow *first = t->group[g].rows[0].row;

			inside = inside || (&graph->row[k] > first && &graph->row[k] < first + t->group[g].rows[0].n);
			if (first == &graph->row[k])
				u.group = g;
		}
		if (inside)
			continue;
		if (u.group >= 0) {
			RaceGroup *g = &t->group[u.group];

			g->unit = t->nunit;
			u.limit = table_limit(g->rows[0].row, g->rows[0].n, t->record[g->record].text[0].kernel);
		} else {
			u.limit = table_limit(&graph->row[k], 1, NULL);
		}
		t->unit[t->nunit++] = u;
	}
}

bool
race_table_read(RaceTable *t, const RtProgram *p, const RtImage *image, RtError *e)
{
	char why[128];
	JsonDoc *doc;
	const Json *o = rt_json_parse(image->program, strlen(image->program), &doc, why, sizeof why),
	           *list = rt_json_get(rt_json_get(rt_json_get(o, "graphs"), "train"), "races");
	int n = list ? (int)list->n : 0;

	t->graph = &p->graph[RT_G_TRAIN];
	if (!t->graph->present)
		return rt_fail(e, "the model has no loss: races are of training steps");
	if (!n)
		return rt_fail(e, "no kernel of the training step has another that it could race against");
	t->record = rt_alloc(sizeof *t->record * (size_t)n);
	t->group = rt_alloc(sizeof *t->group * (size_t)n);
	for (const Json *x = list->child; x; x = x->next)
		if (!table_group(t, x, p, image, n, e))
			return rt_context(e, "the program's descriptor");
	table_units(t);
	return true;
}
