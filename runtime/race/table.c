/* table.c: the descriptor's "races" of a graph: which groups have several kernels, and which share a record.
 *
 * In: a program and its code object.   Out: records, groups and units (race.h). Refuses what would make the worker
 * write outside the arena, kernels that the code object has not, and groups whose own rows do not stand together. */
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

/* Rows of the graph's own table, by their numbers: what is timed stands together, what runs once before all that. */
static bool
table_own(RaceTable *t, int group, const Json *list)
{
	const RtGraph *g = t->graph;
	RaceRows *rows = &t->group[group].rows[0];

	rows->once = rt_alloc(sizeof *rows->once * (size_t)(list ? list->n : 0));
	for (const Json *x = list ? list->child : NULL; x; x = x->next) {
		if (x->i < 0 || x->i >= g->nrow || t->owner[x->i] >= 0)
			return false;
		RtRow *row = &g->row[x->i];

		t->owner[x->i] = group;
		if (row->once)
			rows->once[rows->nonce++] = *row;
		else if (rows->n && row != rows->row + rows->n)
			return false;
		else
			rows->row = rows->n++ ? rows->row : row;
	}
	return rows->n > 0;
}

/* What runs once to its place, before what is timed. */
static void
table_split(RaceRows *rows)
{
	RtRow *all = rows->row;
	int n = rows->n;

	rows->once = rt_alloc(sizeof *all * (size_t)n);
	rows->n = rows->nonce = 0;
	for (int i = 0; i < n; i++)
		if (all[i].once)
			rows->once[rows->nonce++] = all[i];
		else
			all[rows->n++] = all[i];
}

enum { TABLE_TEXTS = 1024 };               /* of a record */

static bool
table_variants(RaceTable *t, RaceGroup *g, RaceRecord *r, const Json *list, const RtCodeObject *object, RtError *e)
{
	g->rows = rt_alloc(sizeof *g->rows * TABLE_TEXTS);
	for (const Json *o = list ? list->child : NULL; o; o = o->next) {
		int k = table_text(r, o, TABLE_TEXTS);
		RtGraph rows = {.name = t->graph->name};

		if (k < 0 || (o == list->child && k != 0))
			return rt_fail(e, "group %s: more than %d kernels, or another baseline than its record",
			               g->name, TABLE_TEXTS);
		if (o == list->child) {
			if (!table_own(t, (int)(g - t->group), rt_json_get(o, "rows")))
				return rt_fail(e, "group %s: bad rows", g->name);
			continue;
		}
		if (!rt_program_rows(&rows, rt_json_get(o, "rows"), object->nkernel, e))
			return false;
		g->rows[k] = (RaceRows){.row = rows.row, .n = rows.nrow};
		table_split(&g->rows[k]);
	}
	t->most = r->ntext > t->most ? r->ntext : t->most;
	return true;
}

/* [offset, bytes] of the arena; false: beyond it. */
static bool
table_place(RacePlace *to, const Json *o, const RtProgram *p)
{
	if (o && o->n == 2 && o->child->next->i > 0)
		*to = (RacePlace){.offset = o->child->i, .bytes = o->child->next->i};
	return to->offset >= 0 && to->bytes <= p->arena_bytes && to->offset <= p->arena_bytes - to->bytes;
}

static bool
table_group(RaceTable *t, const Json *o, const RtProgram *p, const RtCodeObject *object, int groups, RtError *e)
{
	RaceGroup *g = &t->group[t->ngroup];
	RaceRecord *r = table_record(t, rt_json_str(o, "record", ""), groups);
	const Json *layers = rt_json_get(o, "layers");

	*g = (RaceGroup){.name = rt_json_str(o, "group", ""), .layers = "", .record = (int)(r - t->record)};
	for (const Json *x = layers ? layers->child : NULL; x; x = x->next)
		g->layers = *g->layers ? rt_printf("%s, %s", g->layers, x->s) : x->s;
	if (!table_place(&g->workspace, rt_json_get(o, "workspace"), p) ||
	    !table_place(&g->kept, rt_json_get(o, "prepacked"), p) ||
	    !table_places(&g->read, &g->nread, rt_json_get(o, "reads"), p) ||
	    !table_places(&g->write, &g->nwrite, rt_json_get(o, "writes"), p))
		return rt_fail(e, "group %s: a place lies outside the arena", g->name);
	r->group[r->ngroup++] = t->ngroup++;
	return table_variants(t, g, r, rt_json_get(o, "variants"), object, e);
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
	bool tiles = kernel && (strstr(kernel, "amx") || strstr(kernel, "mma{") || strncmp(kernel, "tf32{", 5) == 0);

	return flops < 8 * bytes ? RACE_MEMORY : tiles ? RACE_TILES : RACE_PRODUCTS;
}

static void
table_units(RaceTable *t)
{
	const RtGraph *graph = t->graph;

	t->unit = rt_alloc(sizeof *t->unit * (size_t)graph->nrow);
	t->once = rt_alloc(sizeof *t->once * (size_t)graph->nrow);
	for (int k = 0; k < graph->nrow; k++) {
		RaceUnit u = {.group = t->owner[k], .row = k};

		if (u.group < 0 && graph->row[k].once)
			t->once[t->nonce++] = graph->row[k];
		if (graph->row[k].once || (u.group >= 0 && t->group[u.group].rows[0].row != &graph->row[k]))
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
race_table_read(RaceTable *t, int which, const RtProgram *p, const RtCodeObject *object, RtError *e)
{
	static const char *const what[] = {
	        [RT_G_TRAIN] = "training step", [RT_G_EVAL] = "evaluation", [RT_G_INFER] = "inference"};
	char why[128];
	JsonDoc *doc;
	const Json *o = rt_json_parse(object->program, strlen(object->program), &doc, why, sizeof why),
	           *list = rt_json_get(rt_json_get(rt_json_get(o, "graphs"), p->graph[which].name), "races");
	int n = list ? (int)list->n : 0;

	t->which = which;
	t->graph = &p->graph[which];
	if (!t->graph->present)
		return rt_fail(e, "the model has no %s",
		               which == RT_G_TRAIN ? "loss: --graph infer races without training"
		               : which == RT_G_EVAL ? "loss and no metric: nothing is evaluated"
		                                    : "output: there is no inference");
	if (!n)
		return rt_fail(e, "no kernel of the %s has another that it could race against", what[which]);
	t->owner = rt_alloc(sizeof *t->owner * (size_t)t->graph->nrow);
	for (int k = 0; k < t->graph->nrow; k++)
		t->owner[k] = -1;
	t->record = rt_alloc(sizeof *t->record * (size_t)n);
	t->group = rt_alloc(sizeof *t->group * (size_t)n);
	for (const Json *x = list->child; x; x = x->next)
		if (!table_group(t, x, p, object, n, e))
			return rt_context(e, "the program's descriptor");
	table_units(t);
	return true;
}
