/* cmd_explain.c: `explain`: the verdicts of the passes: which rules fired, which declined, why, and the bytes at stake.
 *
 * In: a model and up to two layers; a layer's name is a prefix of paths, at a dot.   Out: with --json a verdict a line
 * in the order of the pipeline, with pinned keys, where "outcome" is "fused" for every rule that fired, and "did" is
 * the text's word. As text: verdicts by layers in the order of the model, alike ones as one line with their number and
 * graphs; without a layer named, layers that differ in their numbers only (stage0.conv2d1, stage2.conv2d0) come as one.
 * Then a table of the graphs, and the reasons by the bytes they cost. A layer's kernels come first; with two layers,
 * which kernel holds both, or that none does; then the records of those that have parameters, as a tuning file holds
 * them. Refuses a layer the model does not have, with the nearest name. */
#include "cmd.h"

#include <inttypes.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>

enum { GRAPHS = 8, LAYERS_SHOWN = 2, NAMES_SHOWN = 4, REASONS_SHOWN = 8 };

static bool
wanted(const Verdict *v, const char *a, const char *b)
{
	if (!a)
		return true;
	if (!b)
		return layer_under(v->a, a) || layer_under(v->b, a);
	return (layer_under(v->a, a) && layer_under(v->b, b)) || (layer_under(v->a, b) && layer_under(v->b, a));
}

/* Every path and every prefix of one is a layer. */
static int
check_layer(Arena *a, const Module *m, const char *name)
{
	VEC(const char *) names = {0};

	for (uint32_t k = 0; k < m->graph.n; k++) {
		const Graph *g = m->graph.at[k];

		for (uint32_t i = 0; i < g->op.n; i++) {
			const char *path = g->op.at[i].path;

			if (!path || !*path)
				continue;
			if (layer_under(path, name))
				return EXIT_GOOD;
			if (names.n && !strcmp(names.at[names.n - 1], path))
				continue;
			vec_push(a, &names, path);
			for (const char *dot = strchr(path, '.'); dot; dot = strchr(dot + 1, '.'))
				vec_push(a, &names, (const char *)arena_strndup(a, path, (size_t)(dot - path)));
		}
	}
	const char *near = suggest(name, names.at, (int)names.n);

	if (near)
		return failure("%s has no layer '%s'; did you mean '%s'?", m->name, name, near);
	return failure("%s has no layer '%s'; mantou check lists them", m->name, name);
}

/* ---------------------------------------------------------------- text: verdicts by layers */
/* Verdicts alike but for their graph. */
typedef struct Row { const Verdict *v; int count[GRAPHS]; int64_t bytes[GRAPHS]; bool differ; } Row;
typedef struct Pair {
	const Verdict *v;
	const char *key;
	uint32_t number;
	VEC(Row) row;
	VEC(const Verdict *) layers;
} Pair;
typedef struct Reason { const char *why; int count; int64_t bytes; bool differ; } Reason;
typedef struct Total { int fired, declined; int64_t saved, could; } Total;

typedef struct Report {
	Arena *arena;
	const Module *m;
	bool fold;                       /* layers that differ in numbers only are one */
	VEC(Pair) pair;
	uint32_t *slot, nslot;           /* hash table: 1 + index of a pair */
	VEC(Reason) reason;              /* of the first graph */
	Total total[GRAPHS];
} Report;

static const char *
text_of(const char *s)
{
	return s ? s : "";
}

static bool
same_text(const char *a, const char *b)
{
	return !strcmp(text_of(a), text_of(b));
}

/* Alike texts: "f32[64,10]" of training is "f32[N<=64,10]" of evaluation; with fold, one number is as good as
 * another. */
static bool
alike(const char *a, const char *b, bool fold)
{
	for (;; a++, b++) {
		a += strncmp(a, "N<=", 3) ? 0 : 3;
		b += strncmp(b, "N<=", 3) ? 0 : 3;
		if (fold && *a >= '0' && *a <= '9' && *b >= '0' && *b <= '9') {
			a += strspn(a, "0123456789") - 1;
			b += strspn(b, "0123456789") - 1;
		} else if (*a != *b || !*a) {
			return *a == *b;
		}
	}
}

/* The layers of a verdict as one text; numbers as 0 with fold. */
static const char *
layers_key(Report *r, const Verdict *v)
{
	char *key = arena_printf(r->arena, "%s %s", text_of(v->a), text_of(v->b ? v->b : v->a)), *to = key;

	for (const char *p = key; *p; p++)
		if (!r->fold || *p < '0' || *p > '9')
			*to++ = *p;
		else if (p == key || p[-1] < '0' || p[-1] > '9')
			*to++ = '0';
	*to = 0;
	return key;
}

static int
graph_number(const Module *m, const char *name)
{
	for (int i = 0; i < (int)m->graph.n && i < GRAPHS; i++)
		if (same_text(m->graph.at[i]->name, name))
			return i;
	return 0;
}

static bool
same_layers(const Verdict *v, const Verdict *w)
{
	return same_text(v->a, w->a) && same_text(v->b ? v->b : v->a, w->b ? w->b : w->a);
}

static Pair *
find_pair(Report *r, const Verdict *v)
{
	const char *key = layers_key(r, v);
	uint32_t at = (uint32_t)hash_bytes(HASH_START, key, strlen(key)) & (r->nslot - 1), i = 0;

	while (r->slot[at] && strcmp(r->pair.at[r->slot[at] - 1].key, key))
		at = (at + 1) & (r->nslot - 1);
	if (!r->slot[at]) {
		vec_push(r->arena, &r->pair, ((Pair){.v = v, .key = key, .number = r->pair.n}));
		r->slot[at] = r->pair.n;
	}
	Pair *p = &r->pair.at[r->slot[at] - 1];

	while (i < p->layers.n && !same_layers(p->layers.at[i], v))
		i++;
	if (i == p->layers.n)
		vec_push(r->arena, &p->layers, v);
	return p;
}

static void
add_reason(Report *r, const Verdict *v)
{
	Reason *found = NULL;

	for (uint32_t i = 0; i < r->reason.n && !found; i++)
		if (alike(r->reason.at[i].why, text_of(v->why), true))
			found = &r->reason.at[i];
	if (!found) {
		vec_push(r->arena, &r->reason, ((Reason){.why = text_of(v->why)}));
		found = &r->reason.at[r->reason.n - 1];
	}
	found->differ |= !same_text(found->why, v->why);
	found->count++;
	found->bytes += v->bytes_saved;
}

static void
add_verdict(Report *r, const Verdict *v)
{
	Pair *p = find_pair(r, v);
	int g = graph_number(r->m, v->graph);
	Total *t = &r->total[g];
	Row *row = NULL;

	for (uint32_t i = 0; i < p->row.n && !row; i++) {
		const Verdict *w = p->row.at[i].v;

		if (w->fired == v->fired && same_text(w->rule, v->rule) && same_text(w->opa, v->opa) &&
		    same_text(w->opb, v->opb) && alike(text_of(w->why), text_of(v->why), r->fold))
			row = &p->row.at[i];
	}
	if (!row) {
		vec_push(r->arena, &p->row, ((Row){.v = v}));
		row = &p->row.at[p->row.n - 1];
	}
	row->differ |= !alike(text_of(row->v->why), text_of(v->why), false);
	row->count[g]++;
	row->bytes[g] += v->bytes_saved;
	*(v->fired ? &t->fired : &t->declined) += 1;
	*(v->fired ? &t->saved : &t->could) += v->bytes_saved;
	if (!v->fired && g == 0)
		add_reason(r, v);
}

/* What a rule did, as the text has it. */
static const char *
outcome(const Verdict *v)
{
	return !v->fired ? "declined" : v->pass && strcmp(v->pass, "fuse") ? "done" : "fused";
}

static void
put_row(Buf *b, const Module *m, const Row *row, bool colour)
{
	const Verdict *v = row->v;
	const char *comma = "";
	int first = -1;

	for (int g = GRAPHS; g-- > 0;)
		if (row->count[g])
			first = g;
	buf_printf(b, "  %s%-8s%s  %s%s%s", colour ? v->fired ? "\033[32m" : "\033[33m" : "", outcome(v),
	           colour ? "\033[0m" : "", text_of(v->opa), v->opa && v->opb ? " -> " : "", text_of(v->opb));
	if (row->count[first] > 1)
		buf_printf(b, ", %d times", row->count[first]);
	buf_printf(b, "%s%s%s", v->opa || v->opb ? ": " : "", text_of(v->why), row->differ ? " (the first)" : "");
	if (row->bytes[first]) {
		buf_printf(b, v->fired ? "; saves " : "; would save ");
		print_bytes(b, row->bytes[first]);
	}
	buf_printf(b, "  [%s; ", v->rule ? v->rule : text_of(v->pass));
	for (int g = first; g < GRAPHS; g++)
		if (row->count[g]) {
			buf_printf(b, "%s%s", comma, m->graph.at[g]->name);
			comma = ", ";
		}
	buf_printf(b, "]\n");
}

static int
compare_pairs(const void *x, const void *y)
{
	const Pair *a = x, *b = y;
	const Loc *p = &a->v->loc, *q = &b->v->loc;

	if (p->file != q->file)
		return p->file < q->file ? -1 : 1;
	if (p->line != q->line)
		return p->line < q->line ? -1 : 1;
	if (p->col != q->col)
		return p->col < q->col ? -1 : 1;
	return a->number < b->number ? -1 : 1;
}

static void
put_layers(Buf *b, const Verdict *v)
{
	const char *x = text_of(v->a), *y = text_of(v->b ? v->b : v->a), *body = "the model's body";

	if (!*x && !*y && v->pass && !strcmp(v->pass, "reorder"))
		buf_printf(b, "all layers");
	else if (same_text(x, y))
		buf_printf(b, "%s", *x ? x : body);
	else
		buf_printf(b, "%s + %s", *x ? x : body, *y ? y : body);
}

static void
put_pairs(Buf *b, Report *r, bool colour)
{
	if (r->pair.n)
		qsort(r->pair.at, r->pair.n, sizeof *r->pair.at, compare_pairs);
	for (uint32_t i = 0; i < r->pair.n; i++) {
		const Pair *p = &r->pair.at[i];
		Buf where = {0};

		print_where(&where, r->m, p->v->loc);
		for (uint32_t k = 0; k < p->layers.n && k < LAYERS_SHOWN; k++) {
			buf_printf(b, "%s", k ? ", " : "");
			put_layers(b, p->layers.at[k]);
		}
		if (p->layers.n > LAYERS_SHOWN)
			buf_printf(b, " and %" PRIu32 " alike", p->layers.n - LAYERS_SHOWN);
		buf_printf(b, "%s%s\n", where.n ? "  " : "", text_of(where.at));
		buf_free(&where);
		for (uint32_t k = 0; k < p->row.n; k++)
			put_row(b, r->m, &p->row.at[k], colour);
	}
}

static int
compare_reasons(const void *x, const void *y)
{
	const Reason *a = x, *b = y;

	if (a->bytes != b->bytes)
		return a->bytes > b->bytes ? -1 : 1;
	return strcmp(a->why, b->why);
}

static void
put_totals(Buf *b, Report *r)
{
	buf_printf(b, "%s%-8s %8s %8s %9s %13s %13s\n", r->pair.n ? "\n" : "", "graph", "kernels", "fused", "declined",
	           "saved a step", "would save");
	for (int g = 0; g < (int)r->m->graph.n && g < GRAPHS; g++) {
		const Total *t = &r->total[g];
		Buf saved = {0}, could = {0};

		if (r->m->graph.at[g]->is_loop)
			continue;
		print_bytes(&saved, t->saved);
		print_bytes(&could, t->could);
		buf_printf(b, "%-8s %8" PRIu32 " %8d %9d %13s %13s\n", r->m->graph.at[g]->name,
		           r->m->graph.at[g]->group.n, t->fired, t->declined, saved.at, could.at);
		buf_free(&saved);
		buf_free(&could);
	}
	if (!r->reason.n)
		return;
	qsort(r->reason.at, r->reason.n, sizeof *r->reason.at, compare_reasons);
	buf_printf(b, "\nwhy declined in graph %s, by what it would save a step\n", r->m->graph.at[0]->name);
	for (uint32_t i = 0; i < r->reason.n && i < REASONS_SHOWN; i++) {
		Buf bytes = {0};

		print_bytes(&bytes, r->reason.at[i].bytes);
		buf_printf(b, "%13s  %4d %s  %s%s\n", bytes.at, r->reason.at[i].count,
		           r->reason.at[i].count == 1 ? "time " : "times", r->reason.at[i].why,
		           r->reason.at[i].differ ? " (the first)" : "");
		buf_free(&bytes);
	}
	if (r->reason.n > REASONS_SHOWN)
		buf_printf(b, "%13s and %" PRIu32 " more reasons\n", "", r->reason.n - REASONS_SHOWN);
}

/* ---------------------------------------------------------------- text: which kernels hold a layer */
/* Ops that belong to the update of states: stores, and arithmetic whose results only these read. Optimizers of several
 * layers are merged into one kernel, which says nothing of what those layers compute. */
static bool *
update_ops(Arena *arena, const Graph *g)
{
	bool *update = arena_array(arena, bool, g->op.n), *read = arena_array(arena, bool, g->val.n),
	     *elsewhere = arena_array(arena, bool, g->val.n);

	for (uint32_t i = 0; i < g->result.n; i++)
		elsewhere[g->result.at[i].v.id] = true;
	for (uint32_t i = g->op.n; i-- > 0;) {
		const Op *op = &g->op.at[i];

		if (op->dead)
			continue;
		update[i] = op->kind == OP_store || (op->nout && op_has(op->kind, T_POINTWISE | T_VIEW | T_CONST));
		for (int k = 0; k < op->nout; k++)
			update[i] &= read[op->out[k].id] && !elsewhere[op->out[k].id];
		for (int k = 0; k < op->nin; k++)
			(update[i] ? read : elsewhere)[op->in[k].id] = true;
	}
	return update;
}

/* Bit 0: an op of layer a is in it; bit 1: of layer b. Of two layers updates do not count. */
static uint8_t *
kernels_of(Arena *arena, const Graph *g, const char *a, const char *b)
{
	uint8_t *has = arena_array(arena, uint8_t, g->group.n);
	const bool *update = b ? update_ops(arena, g) : NULL;

	for (uint32_t i = 0; i < g->op.n; i++) {
		const Op *op = &g->op.at[i];

		if (op->dead || op->group < 0 || (update && update[i]))
			continue;
		has[op->group] |= layer_under(op->path, a) ? 1 : 0;
		has[op->group] |= b && layer_under(op->path, b) ? 2 : 0;
	}
	return has;
}

/* Names of the kernels whose bits are all of mask. */
static void
put_kernels(Buf *b, const Graph *g, const uint8_t *has, uint8_t mask)
{
	int n = 0;

	for (uint32_t i = 0; i < g->group.n; i++)
		if ((has[i] & mask) == mask && n++ < NAMES_SHOWN)
			buf_printf(b, "%s%s", n > 1 ? ", " : "", g->group.at[i].name);
	if (n > NAMES_SHOWN)
		buf_printf(b, " and %d more", n - NAMES_SHOWN);
	if (!n)
		buf_printf(b, "none");
}

static void
put_answer(Buf *out, Report *r, const char *a, const char *b)
{
	for (uint32_t i = 0; i < r->m->graph.n; i++) {
		const Graph *g = r->m->graph.at[i];
		uint8_t *has = g->is_loop ? NULL : kernels_of(r->arena, g, a, b), both = b ? 3 : 1;
		bool together = false;

		for (uint32_t k = 0; has && k < g->group.n; k++)
			together |= (has[k] & both) == both;
		if (!has)
			continue;
		buf_printf(out, "%s: ", g->name);
		if (!b)
			buf_printf(out, "kernels of %s: ", a);
		else
			buf_printf(out, together ? "%s and %s are fused in " : "%s and %s are not fused", a, b);
		if (together || !b) {
			put_kernels(out, g, has, both);
		} else {
			buf_printf(out, ": %s is in ", a);
			put_kernels(out, g, has, 1);
			buf_printf(out, "; %s in ", b);
			put_kernels(out, g, has, 2);
			if (!layer_reads(g, a, b) && !layer_reads(g, b, a))
				buf_printf(out, "; neither reads what the other computes");
		}
		buf_printf(out, "\n");
	}
	buf_printf(out, "\n");
}

/* ---------------------------------------------------------------- text: records for a tuning file */
static int
compare_lines(const void *x, const void *y)
{
	return strcmp(*(const char *const *)x, *(const char *const *)y);
}

/* Sorted, no two the same; how many are left. */
static int
sort_lines(const char **line, uint32_t n)
{
	int kept = 0;

	if (n)
		qsort(line, n, sizeof *line, compare_lines);
	for (uint32_t i = 0; i < n; i++)
		if (!i || strcmp(line[i], line[i - 1]))
			line[kept++] = line[i];
	return kept;
}

/* A record as the file has it, with its facts, if the kernel is that; else as it would stand there. */
static const char *
record_line(Arena *arena, const PassCtx *cx, const char *what, const char *kernel)
{
	const TuneRecord *r =
	        cx->tuning ? tuning_find(cx->tuning, cx->target->name, cx->arch, cx->machine, what) : NULL;
	const char *value = tuning_value(arena, cx->target, kernel);

	if (r && !strcmp(r->value, kernel))
		return arena_printf(arena, "%s : %s%s%s", r->key, value, *r->facts ? " ;" : "", r->facts);
	return arena_printf(arena, "%s %s %s %s : %s", cx->target->name, cx->arch && *cx->arch ? cx->arch : "-",
		cx->machine ? cx->machine : "*", what, value);
}

int
tuning_records(Arena *arena, const Module *m, const PassCtx *cx, const char *a, const char *b, const char ***lines)
{
	VEC(const char *) line = {0};

	for (uint32_t i = 0; i < m->graph.n; i++) {
		const Graph *g = m->graph.at[i];
		uint8_t *has = g->is_loop || !a ? NULL : kernels_of(arena, g, a, b), mask = b ? 3 : 1;
		const TuneKeys *keys = g->is_loop ? NULL : tuning_keys(g, arena, select_keeps(cx));

		for (uint32_t k = 0; !g->is_loop && k < g->group.n; k++) {
			const char *kernel = g->group.at[k].kernel;
			Buf key = {0};

			if ((has && (has[k] & mask) != mask) || !kernel || !cx->target->tuning.tunable ||
			    !cx->target->tuning.tunable(cx->target, kernel))
				continue;
			if (tuning_key(&key, keys, (int)k))
				vec_push(arena, &line, record_line(arena, cx, key.at, kernel));
			buf_free(&key);
		}
	}
	*lines = line.at;
	return sort_lines(line.at, line.n);
}

/* Was it chosen at layer a; with b, between the two? */
static bool
chosen_at(const Decision *d, const char *a, const char *b)
{
	bool here = layer_under(d->a, a), there = b && layer_under(d->a, b);

	for (int i = 0; b && i < d->nwith; i++)
		if ((here && layer_under(d->with[i], b)) || (there && layer_under(d->with[i], a)))
			return true;
	return here && !b;
}

int
tuning_choices(Arena *arena, const PassCtx *cx, const char *a, const char *b, const char ***lines)
{
	VEC(const char *) line = {0};

	for (uint32_t i = 0; i < cx->choice.n; i++) {
		const Decision *d = &cx->choice.at[i];

		if (!a || chosen_at(d, a, b))
			vec_push(arena, &line,
			         record_line(arena, cx, d->what, arena_printf(arena, "choice{take=%d}", d->way)));
	}
	*lines = line.at;
	return sort_lines(line.at, line.n);
}

static void
put_lines(Buf *out, const char *title, const char *const *line, int n)
{
	if (n)
		buf_printf(out, "# %s\n", title);
	for (int i = 0; i < n; i++)
		buf_printf(out, "%s\n", line[i]);
	if (n)
		buf_printf(out, "\n");
}

/* What the file has of these lines, with its time and the one before. */
static void
put_times(Buf *out, const PassCtx *cx, const char *const *line, int n)
{
	for (int i = 0; i < n; i++) {
		const char *colon = strstr(line[i], " : ");
		char *key = colon && cx->tuning ? strndup(line[i], (size_t)(colon - line[i])) : NULL;
		const TuneRecord *r = key ? tuning_named(cx->tuning, key) : NULL;
		TuneFacts f = tuning_facts(r && r->facts ? r->facts : "");

		free(key);
		if (!r || isnan(f.us))
			continue;
		buf_printf(out, "# %s:%u: %.4g us", tuning_file(cx->tuning), (unsigned)r->at.line, f.us);
		if (!isnan(f.error))
			buf_printf(out, " +-%.2g %%", 100 * f.error);
		if (!isnan(f.was))
			buf_printf(out, ", %.4g us before", f.was);
		if (f.samples)
			buf_printf(out, ", %" PRId64 " samples", f.samples);
		buf_printf(out, "\n");
	}
}

static void
put_records(Buf *out, Report *r, const PassCtx *cx, const char *a, const char *b)
{
	const char **line;
	int n = tuning_records(r->arena, r->m, cx, a, b, &line);

	put_times(out, cx, line, n);
	put_lines(out, "records of these kernels as they are, for a tuning file", line, n);
	if (cx->tuning)
		explain_tried(out, tuning_file(cx->tuning), line, n);
	n = tuning_choices(r->arena, cx, a, b, &line);
	put_times(out, cx, line, n);
	put_lines(out, "choices of passes here, likewise", line, n);
}

/* ---------------------------------------------------------------- JSON */
static void
put_json(Buf *b, const Module *m, const Verdict *v)
{
	const char *path[2] = {v->a, v->b}, *op[2] = {v->opa, v->opb};
	const char *comma = "";

	buf_printf(b, "{\"rule\": ");
	buf_json(b, v->rule ? v->rule : v->pass);
	buf_printf(b, ", \"ops\": [");
	for (int i = 0; i < 2; i++) {
		const char *name = path[i] && *path[i] ? path[i] : op[i];

		if (!name)
			continue;
		buf_printf(b, "%s", comma);
		buf_json(b, name);
		comma = ", ";
	}
	buf_printf(b, "], \"outcome\": \"%s\", \"did\": \"%s\", \"why\": ", v->fired ? "fused" : "declined",
	           outcome(v));
	buf_json(b, v->why ? v->why : "");
	buf_printf(b, ", \"value\": ");
	if (isfinite(v->value))
		buf_double(b, v->value);
	else
		buf_printf(b, "null");
	buf_printf(b, ", \"bytes_saved\": %" PRId64 ", \"where\": ", v->bytes_saved);
	Buf where = {0};

	print_where(&where, m, v->loc);
	buf_json(b, where.at ? where.at : "");
	buf_free(&where);
	buf_printf(b, ", \"graph\": ");
	buf_json(b, v->graph ? v->graph : "");
	buf_printf(b, ", \"kinds\": [");
	for (int i = 0; i < 2 && op[i]; i++) {
		buf_printf(b, "%s", i ? ", " : "");
		buf_json(b, op[i]);
	}
	buf_printf(b, "]}");
}

/* Kernels that are predicted to be slow, of layer x (NULL: any). */
static void
put_warnings(Buf *b, const Slow *s, int n, const char *x)
{
	bool any = false;

	for (int i = 0; i < n; i++) {
		if (x && !layer_under(s[i].layer, x))
			continue;
		buf_printf(b, "warning: ");
		put_slow(b, &s[i]);
		buf_printf(b, "  %s\n", s[i].where);
		any = true;
	}
	buf_printf(b, any ? "\n" : "");
}

static void
put_slow_json(Buf *b, const Slow *s, const char *before)
{
	buf_printf(b, "%s{\"rule\": \"roofline\", \"ops\": [", before);
	buf_json(b, s->layer);
	buf_printf(b, "], \"outcome\": \"declined\", \"did\": \"warned\", \"why\": ");
	Buf why = {0};

	put_slow(&why, s);
	buf_json(b, why.at);
	buf_free(&why);
	buf_printf(b, ", \"value\": %.6g, \"share_of_step\": %.6g, \"bytes_saved\": 0, \"where\": ", s->roofline,
	           s->share);
	buf_json(b, s->where);
	buf_printf(b, ", \"graph\": \"train\", \"kinds\": []}");
}

static void
explain_json(Buf *b, const Module *m, const PassCtx *cx, const char *x, const char *y, const Slow *slow, int nslow)
{
	const char *comma = "";

	buf_printf(b, "[");
	for (uint32_t i = 0; i < cx->verdict.n; i++)
		if (wanted(&cx->verdict.at[i], x, y)) {
			buf_printf(b, "%s", comma);
			put_json(b, m, &cx->verdict.at[i]);
			comma = ",\n ";
		}
	for (int i = 0; i < nslow; i++)
		if (!x || layer_under(slow[i].layer, x)) {
			put_slow_json(b, &slow[i], comma);
			comma = ",\n ";
		}
	buf_printf(b, "]\n");
}

static void
explain_text(Buf *b, Arena *a, const Module *m, const PassCtx *cx, const char *x, const char *y)
{
	Report r = {.arena = a, .m = m, .fold = !x, .nslot = 16};

	while (r.nslot < 2 * cx->verdict.n)
		r.nslot *= 2;
	r.slot = arena_array(a, uint32_t, r.nslot);
	for (uint32_t i = 0; i < cx->verdict.n; i++)
		if (wanted(&cx->verdict.at[i], x, y))
			add_verdict(&r, &cx->verdict.at[i]);
	if (x)
		put_answer(b, &r, x, y);
	if (!pass_enabled(cx, "fuse"))
		buf_printf(b, "pass fuse is switched off: every operation is a kernel of its own\n\n");
	put_pairs(b, &r, colour_on(stdout));
	put_totals(b, &r);
	if (x) /* behind what people came for */
		put_records(b, &r, cx, x, y);
}

int
cmd_explain(Arena *a, const Options *o)
{
	const char *x = o->noperand > 1 ? o->operand[1] : NULL, *y = o->noperand > 2 ? o->operand[2] : NULL;
	Job j;
	Module *m;
	PassCtx cx;
	Buf b = {0};
	const Slow *slow;
	int status = job_open(&j, a, o, "explain", o->operand[0]), nslow;

	if (status == EXIT_GOOD && job_emits(&j))
		return job_build(&j, o->emit, "-");
	if (status == EXIT_GOOD)
		status = job_load(&j);
	for (int i = 1; i < o->noperand && status == EXIT_GOOD; i++)
		status = check_layer(a, j.module, o->operand[i]);
	if (status == EXIT_GOOD)
		status = job_compile(&j, 0, "planned", &m, &cx); /* a broken contract is a reason to ask why */
	if (status != EXIT_GOOD)
		return status;
	slow = info_slow(&j, m, 0, &nslow);
	if (o->json) {
		explain_json(&b, m, &cx, x, y, slow, nslow);
	} else {
		put_warnings(&b, slow, nslow, x);
		explain_text(&b, a, m, &cx, x, y);
	}
	fwrite(b.at, 1, b.n, stdout);
	buf_free(&b);
	return EXIT_GOOD;
}
