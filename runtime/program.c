/* program.c: reads a code object's descriptor (descriptor.md) into tables.
 *
 * In: the JSON text that codegen wrote.   Out: RtProgram; strings point into its document.
 * The text comes from the compiler, yet is checked where a mistake would make the runtime write outside its memory:
 * types, ranks, counts, offsets of what the runtime itself reads and writes, loops that do not nest. */
#include "host.h"

#include <string.h>

/* "perm": logical axes from the outermost to the innermost in memory. */
static bool
program_perm(RtTensor *t, const Json *perm, RtError *e)
{
	int axis[RT_MAX_RANK], n = 0, seen = 0;
	int64_t stride = 1;

	for (const Json *x = perm ? perm->child : NULL; x; x = x->next) {
		if (n == t->rank || x->i < 0 || x->i >= t->rank || (seen & 1 << x->i))
			return rt_fail(e, "%s: bad layout", t->name);
		seen |= 1 << x->i;
		axis[n++] = (int)x->i;
	}
	if (perm && n != t->rank)
		return rt_fail(e, "%s: bad layout", t->name);
	for (int i = t->rank; i-- > 0;) {
		int a = perm ? axis[i] : i;

		t->permuted |= a != i;
		t->stride[a] = stride;
		stride *= t->shape[a];
	}
	return true;
}

int64_t
rt_tensor_place(const RtTensor *t, int64_t j)
{
	int64_t at = 0;

	for (int i = t->rank; i-- > 0;) {
		at += j % t->shape[i] * t->stride[i];
		j /= t->shape[i];
	}
	return at;
}

static void
tensor_move(const RtTensor *t, uint8_t *at, uint8_t *flat, bool out)
{
	int64_t index[RT_MAX_RANK] = {0}, place = 0, size = rt_dtype[t->dtype].bytes;

	for (int64_t j = 0; j < t->count; j++) {
		memcpy(out ? flat + j * size : at + place * size, out ? at + place * size : flat + j * size,
		       (size_t)size);
		for (int i = t->rank; i-- > 0;) {
			place += t->stride[i];
			if (++index[i] < t->shape[i])
				break;
			place -= t->stride[i] * t->shape[i];
			index[i] = 0;
		}
	}
}

void
rt_tensor_to_logical(const RtTensor *t, const uint8_t *at, uint8_t *flat)
{
	tensor_move(t, (uint8_t *)(uintptr_t)at, flat, true);
}

void
rt_tensor_from_logical(const RtTensor *t, uint8_t *at, const uint8_t *flat)
{
	tensor_move(t, at, (uint8_t *)(uintptr_t)flat, false);
}

static bool
program_shape(RtTensor *t, const Json *o, RtError *e)
{
	const Json *shape = rt_json_get(o, "shape"), *mark = rt_json_get(o, "mark"), *m = mark ? mark->child : NULL;

	t->name = rt_json_str(o, "name", "");
	t->dtype = rt_dtype_named(rt_json_str(o, "dtype", ""));
	t->offset = rt_json_int(o, "offset", -1);
	t->count = 1;
	if (!t->dtype)
		return rt_fail(e, "%s: unknown element type '%s'", t->name, rt_json_str(o, "dtype", ""));
	for (const Json *x = shape ? shape->child : NULL; x; x = x->next, m = m ? m->next : NULL) {
		if (t->rank == RT_MAX_RANK || x->i < 0 || (x->i && t->count > ((int64_t)1 << 48) / x->i))
			return rt_fail(e, "%s: bad shape", t->name);
		t->shape[t->rank] = x->i;
		if (m && m->n == 2) {
			t->mul[t->rank] = m->child->i;
			t->div[t->rank] = m->child->next->i;
		}
		if (t->mul[t->rank] > 0 && t->div[t->rank] <= 0)
			return rt_fail(e, "%s: bad mark", t->name);
		t->count *= x->i;
		t->rank++;
	}
	t->bytes = t->count * rt_dtype[t->dtype].bytes;
	return program_perm(t, rt_json_get(o, "perm"), e);
}

int64_t
rt_tensor_at(const RtTensor *t, int64_t n, int64_t shape[RT_MAX_RANK])
{
	int64_t count = 1;

	for (int i = 0; i < t->rank; i++) {
		shape[i] = t->mul[i] > 0 ? n * t->mul[i] / t->div[i] : t->shape[i];
		count *= shape[i];
	}
	return count;
}

bool
rt_batches_fit(const RtProgram *p, const RtGraph *g, int64_t examples, const char *what, RtError *e)
{
	int64_t last = examples % p->batch;

	if (*p->full_only && last)
		return rt_fail(e, "%lld %s are no multiple of the batch of %lld, and %s; "
		               "`mantou build --batch` of a number that divides them would do", (long long)examples,
		               what, (long long)p->batch, p->full_only);
	if (last % g->multiple)
		return rt_fail(e, "%lld %s leave a last batch of %lld, but the model takes multiples of %lld: "
			"N / %lld is no whole number%s%s%s", (long long)examples, what,
			(long long)last, (long long)g->multiple, (long long)g->multiple, *g->multiple_at ? " (" : "",
			g->multiple_at, *g->multiple_at ? ")" : "");
	return true;
}

bool
rt_evaluation_fits(const RtProgram *p, int64_t examples, RtError *e)
{
	if (*p->one_batch && examples > p->batch)
		return rt_fail(e, "%s; %lld test examples are more than one batch of %lld", p->one_batch,
		               (long long)examples, (long long)p->batch);
	return true;
}

int64_t
rt_row_tasks(const RtRow *r, int64_t n)
{
	int64_t rows = r->mul > 0 ? r->rows * n * r->mul / r->div : r->rows;

	return (rows + r->grain - 1) / r->grain;
}

/* [offset, offset + bytes) lies in the arena. */
static bool
program_inside(const RtProgram *p, int64_t offset, int64_t bytes)
{
	return offset >= 0 && bytes >= 0 && offset <= p->arena_bytes && bytes <= p->arena_bytes - offset;
}

static bool
program_inputs(RtProgram *p, const Json *list, RtError *e)
{
	p->ninput = list ? (int)list->n : 0;
	if (p->ninput > RT_MAX_INPUTS)
		return rt_fail(e, "%d inputs, at most %d are possible", p->ninput, RT_MAX_INPUTS);
	p->input = rt_alloc(sizeof *p->input * (size_t)p->ninput);
	for (int k = 0; k < p->ninput; k++) {
		const Json *o = list->child;
		RtInput *in = &p->input[k];

		for (int i = 0; i < k; i++)
			o = o->next;
		if (!program_shape(&in->t, o, e))
			return false;
		in->limit = rt_json_int(o, "limit", 0);
		in->has_ignore = rt_json_get(o, "ignore") != NULL;
		in->ignore = rt_json_int(o, "ignore", 0);
		in->infer = rt_json_bool(o, "infer", true);
		if (in->t.rank < 1 || in->t.shape[0] % p->batch || in->t.shape[0] == 0)
			return rt_fail(
			        e, "input %s: its first axis is no multiple of the batch: such an input cannot be read",
			        in->t.name);
		in->rows = in->t.shape[0] / p->batch;
		in->example = in->t.count / p->batch;
	}
	return true;
}

static bool
program_states(RtProgram *p, const Json *list, RtError *e)
{
	static const char *const kinds[] = {
#define STATE_KIND(name, word) word,
#include "kinds.def"
	};
	int k = 0;

	p->nstate = list ? (int)list->n : 0;
	p->state = rt_alloc(sizeof *p->state * (size_t)p->nstate);
	for (const Json *o = list ? list->child : NULL; o; o = o->next, k++) {
		RtState *s = &p->state[k];
		const char *kind = rt_json_str(o, "kind", "param");

		if (!program_shape(&s->t, o, e))
			return false;
		for (int i = 0; i < RT_COUNT(kinds); i++)
			if (strcmp(kinds[i], kind) == 0)
				s->kind = (RtStateKind)i;
		s->init = rt_json_str(o, "init", "constant")[0];
		s->a = rt_json_num(o, "a", 0);
		s->b = rt_json_num(o, "b", 0);
		if (!program_inside(p, s->t.offset, s->t.bytes))
			return rt_fail(e, "state %s lies outside the arena", s->t.name);
	}
	return true;
}

static const char *
program_layers(const Json *list)
{
	const char *all = "";

	for (const Json *x = list ? list->child : NULL; x; x = x->next)
		if (x->kind == JSON_STRING)
			all = *all ? rt_printf("%s, %s", all, x->s) : x->s;
	return all;
}

/* Matrices that a device copies by itself: [offset, inner, outer, box, box, mul, div] each. */
static bool
program_maps(RtRow *r, const Json *list)
{
	r->nmap = list ? (int32_t)list->n : 0;
	if (r->nmap > RT_MAX_MAPS)
		return false;
	r->map = rt_alloc(sizeof *r->map * (size_t)r->nmap);
	int k = 0;

	for (const Json *o = list ? list->child : NULL; o; o = o->next, k++) {
		int64_t x[7], n = 0;

		for (const Json *v = o->child; v && n < 7; v = v->next)
			x[n++] = v->i;
		if (n != 7 || o->n != 7 || x[6] < 1)
			return false;
		r->map[k] = (RtMap){
		        .offset = x[0], .inner = x[1], .outer = x[2], .box = {x[3], x[4]}, .mul = x[5], .div = x[6]};
	}
	return true;
}

static bool
program_made(RtRow *r, const Json *list, RtError *e)
{
	r->made = rt_alloc(sizeof *r->made * (size_t)(list ? list->n : 0));
	for (const Json *o = list ? list->child : NULL; o; o = o->next) {
		RtMade *m = &r->made[r->nmade++];

		if (!program_shape(&m->t, o, e))
			return false;
		m->layer = rt_json_str(o, "name", "");
		m->where = rt_json_str(o, "where", "");
		m->infinities = rt_json_bool(o, "infinities", false);
	}
	return true;
}

static bool
program_gradients(RtRow *r, const Json *list, RtError *e)
{
	r->gradient = rt_alloc(sizeof *r->gradient * (size_t)(list ? list->n : 0));
	for (const Json *o = list ? list->child : NULL; o; o = o->next) {
		RtGradient *d = &r->gradient[r->ngradient++];

		if (!program_shape(&d->t, o, e))
			return false;
		d->state = (int)rt_json_int(o, "state", 0);
	}
	return true;
}

static RtCut *
program_cut(const Json *o, int noff)
{
	const Json *states = o ? rt_json_get(o, "states") : NULL, *sizes = o ? rt_json_get(o, "sizes") : NULL;
	RtCut *c;
	int n = 0;

	if (!o)
		return NULL;
	c = rt_alloc(sizeof *c);
	*c = (RtCut){.each = rt_json_int(o, "each", 0),
	             .grad = (int)rt_json_int(o, "grad", -1),
	             .nstate = states ? (int)states->n : 0,
	             .whole = rt_json_bool(o, "whole", true),
	             .solo = rt_json_bool(o, "solo", false)};
	c->state = rt_alloc(sizeof *c->state * (size_t)(c->nstate + 1));
	for (const Json *x = states ? states->child : NULL; x; x = x->next)
		c->state[n++] = (int)x->i;
	const Json *late = rt_json_get(o, "late");

	c->late = rt_alloc(sizeof *c->late * (size_t)(c->nstate + 1));
	for (const Json *x = late ? late->child : NULL; x; x = x->next)
		for (int i = 0; i < c->nstate; i++)
			c->late[i] |= c->state[i] == x->i;
	c->size = sizes && (int)sizes->n == noff ? rt_alloc(sizeof *c->size * (size_t)(noff + 1)) : NULL;
	n = 0;
	for (const Json *x = c->size ? sizes->child : NULL; x; x = x->next)
		c->size[n++] = (int)x->i;
	const Json *left = rt_json_get(o, "sums");

	c->total = rt_json_int(o, "total", 0);
	c->left = rt_alloc(sizeof *c->left * (size_t)(left ? left->n + 1 : 1));
	for (const Json *x = left ? left->child : NULL; x; x = x->next)
		if (x->child && x->child->next)
			c->left[c->nleft++] = (RtLeft){x->child->i, x->child->next->i};
	return c;
}

bool
rt_program_rows(RtGraph *g, const Json *list, int nkernel, RtError *e)
{
	int k = 0;

	g->nrow = list ? (int)list->n : 0;
	g->row = rt_alloc(sizeof *g->row * (size_t)g->nrow);
	for (const Json *o = list ? list->child : NULL; o; o = o->next, k++) {
		RtRow *r = &g->row[k];
		const Json *off = rt_json_get(o, "off");
		int i = 0;

		r->name = rt_json_str(o, "name", "");
		r->where = rt_json_str(o, "where", "");
		r->layers = program_layers(rt_json_get(o, "layers"));
		r->fn = (int32_t)rt_json_int(o, "fn", -1);
		r->noff = off ? (int32_t)off->n : 0;
		r->off = rt_alloc(sizeof *r->off * (size_t)r->noff);
		for (const Json *x = off ? off->child : NULL; x; x = x->next)
			r->off[i++] = x->i;
		r->flops = rt_json_num(o, "flops", 0);
		r->bytes = rt_json_num(o, "bytes", 0);
		r->rows = rt_json_int(o, "rows", 1);
		r->mul = rt_json_int(o, "mul", 0);
		r->div = rt_json_int(o, "div", 1);
		r->grain = rt_json_int(o, "grain", 1);
		r->check = rt_json_bool(o, "check", false);
		r->once = rt_json_bool(o, "once", false);
		r->plain = rt_json_bool(o, "plain", false);
		r->shares = rt_json_bool(o, "shares", false);
		r->whole = rt_json_int(o, "whole", 0);
		r->turns = rt_json_int(o, "turns", 0);
		r->threads = rt_json_int(o, "threads", 0);
		r->loss = rt_json_bool(o, "loss", false) && g->loss >= 0;
		r->early = rt_json_bool(o, "early", false);
		r->join = -1;
		r->cut = program_cut(rt_json_get(o, "cut"), r->noff);
		r->tell = rt_json_bool(o, "tell", false);
		if (!program_made(r, rt_json_get(o, "made"), e) ||
		    !program_gradients(r, rt_json_get(o, "gradients"), e))
			return false;
		if (!program_maps(r, rt_json_get(o, "maps")) || r->grain < 1 || r->div < 1 || r->fn < 0 ||
		    r->turns < 0 || r->threads < 0 || (nkernel >= 0 && r->fn >= nkernel))
			return rt_fail(e, "kernel %s of graph %s: bad row", r->name, g->name);
	}
	return true;
}

/* Behind the rows, which say what joins they are. */
static bool
program_joins(const RtProgram *p, RtGraph *g, const Json *o, RtError *e)
{
	const Json *list = rt_json_get(o, "joins");

	g->early = rt_json_bool(o, "early", false);
	g->join = rt_alloc(sizeof *g->join * (size_t)(list ? list->n : 0));
	for (const Json *x = list ? list->child : NULL; x; x = x->next) {
		RtJoin *j = &g->join[g->njoin++];
		const Json *places = rt_json_get(x, "places");

		j->kernel = (int)rt_json_int(x, "kernel", -1);
		j->moments = strcmp(rt_json_str(x, "what", ""), "moments") == 0;
		j->dtype = rt_dtype_named(rt_json_str(x, "dtype", ""));
		j->count = rt_json_int(x, "count", 0);
		for (const Json *y = places ? places->child : NULL; y && y->n == 2 && j->pairs < 2; y = y->next) {
			j->in[j->pairs] = y->child->i;
			j->out[j->pairs++] = y->child->next->i;
		}
		if ((j->dtype != RT_F32 && j->dtype != RT_F64) || j->count < 1 || j->pairs != 1 + j->moments ||
		    j->kernel >= g->nrow || (g->nrow && j->kernel < 0))
			return rt_fail(e, "join %d of graph %s: bad row", g->njoin - 1, g->name);
		for (int k = 0; k < j->pairs; k++)
			if (!program_inside(p, j->in[k], j->count * rt_dtype[j->dtype].bytes) ||
			    !program_inside(p, j->out[k], j->count * rt_dtype[j->dtype].bytes))
				return rt_fail(e, "join %d of graph %s lies outside the arena", g->njoin - 1, g->name);
		if (j->kernel >= 0)
			g->row[j->kernel].join = g->njoin - 1;
	}
	return true;
}

static bool
program_results(const RtProgram *p, RtGraph *g, const Json *list, RtError *e)
{
	static const char *const kinds[] = {
#define RESULT_KIND(name, word) word,
#include "kinds.def"
	};
	int k = 0;

	g->loss = -1;
	g->nresult = list ? (int)list->n : 0;
	g->result = rt_alloc(sizeof *g->result * (size_t)g->nresult);
	for (const Json *o = list ? list->child : NULL; o; o = o->next, k++) {
		RtResult *r = &g->result[k];
		const char *kind = rt_json_str(o, "kind", "output");

		if (!program_shape(&r->t, o, e))
			return false;
		for (int i = 0; i < RT_COUNT(kinds); i++)
			if (strcmp(kinds[i], kind) == 0)
				r->kind = (RtResultKind)i;
		if (!program_inside(p, r->t.offset, r->t.bytes))
			return rt_fail(e, "result %s of graph %s lies outside the arena", r->t.name, g->name);
		r->constant = rt_json_bool(o, "constant", false);
		g->ntable += r->kind == RT_TABLE;
		if (r->kind == RT_OUTPUT || r->kind == RT_KEPT || r->kind == RT_TABLE)
			continue;
		if (g->nscalar == RT_MAX_RESULTS)
			return rt_fail(e, "more than %d losses and metrics", RT_MAX_RESULTS);
		/* over labels that count it is of all batches; no metric has the name, a keyword */
		if ((r->kind == RT_LOSS || strcmp(r->t.name, "loss") == 0) && g->loss < 0)
			g->loss = g->nscalar;
		g->scalar[g->nscalar] = k;
		g->scalar_offset[g->nscalar] = r->t.offset;
		g->scalar_dtype[g->nscalar++] = r->t.dtype;
	}
	return true;
}

static int
result_named(const RtGraph *g, const char *name, RtResultKind kind)
{
	int k = 0;

	while (k < g->nresult && (g->result[k].kind != kind || strcmp(g->result[k].t.name, name) != 0))
		k++;
	return k < g->nresult ? k : -1;
}

static bool
program_sets(RtGraph *g, const Json *list, RtError *e)
{
	int k = 0;

	g->nset = list ? (int)list->n : 0;
	g->set = rt_alloc(sizeof *g->set * (size_t)g->nset);
	for (const Json *o = list ? list->child : NULL; o; o = o->next, k++) {
		RtSet *s = &g->set[k];
		const Json *iou = rt_json_get(o, "iou");
		int n = 0;

		*s = (RtSet){.name = rt_json_str(o, "name", ""),
		             .function = rt_json_str(o, "function", ""),
		             .niou = iou ? (int)iou->n : 0};
		s->iou = rt_alloc(sizeof *s->iou * (size_t)s->niou);
		for (const Json *x = iou ? iou->child : NULL; x; x = x->next)
			s->iou[n++] = x->f;
		s->result = result_named(g, s->name, RT_SET);
		s->nkept = strcmp(s->function, "auc") == 0 ? 2 : RT_SET_ARGS;
		for (int i = 0; i < s->nkept; i++) {
			char name[256];

			snprintf(name, sizeof name, "%s.%d", s->name, i);
			s->kept[i] = result_named(g, name, RT_KEPT);
			if (s->result < 0 || s->kept[i] < 0 || !g->result[s->kept[i]].t.rank)
				return rt_fail(e, "metric %s of graph %s: what it keeps is not there", s->name,
				               g->name);
		}
	}
	return true;
}

const char *const rt_graph_names[RT_G_COUNT] = {"train", "update", "eval", "infer", "begin", "step", "hop", "share"};

static bool
program_graph(RtProgram *p, int index, const Json *graphs, RtError *e)
{
	RtGraph *g = &p->graph[index];
	const Json *o = rt_json_get(graphs, rt_graph_names[index]), *inputs = rt_json_get(o, "inputs");
	int k = 0;

	g->name = rt_graph_names[index];
	g->present = o && o->kind == JSON_OBJECT;
	for (int i = 0; i < RT_MAX_INPUTS; i++)
		g->input[i] = -1;
	for (const Json *x = inputs ? inputs->child : NULL; x && k < p->ninput; x = x->next, k++) {
		g->input[k] = x->i;
		if (x->i >= 0 && !program_inside(p, x->i, p->input[k].t.bytes))
			return rt_fail(e, "input %s of graph %s lies outside the arena", p->input[k].t.name, g->name);
	}
	g->addressed = (unsigned)rt_json_int(o, "addressed", 0);
	for (k = 0; k < 32; k++)
		if (g->addressed >> k & 1 &&
		    (k >= p->ninput || g->input[k] < 0 || p->input[k].t.bytes / (p->batch > 0 ? p->batch : 1) < 8))
			return rt_fail(e, "input %d of graph %s has no room for addresses", k, g->name);
	g->multiple = rt_json_int(o, "multiple", 1);
	g->multiple_at = rt_json_str(o, "multiple_at", "");
	if (g->multiple < 1)
		return rt_fail(e, "graph %s takes batches of a multiple of %lld", g->name, (long long)g->multiple);
	g->seed = rt_json_int(o, "seed", -1);
	g->step = rt_json_int(o, "step", -1);
	g->rate = rt_json_int(o, "rate", -1);
	g->first = rt_json_int(o, "first", -1);
	if ((g->seed >= 0 && !program_inside(p, g->seed, 8)) || (g->step >= 0 && !program_inside(p, g->step, 8))
	    || (g->rate >= 0 && !program_inside(p, g->rate, 8)) || (g->first >= 0 && !program_inside(p, g->first, 8)))
		return rt_fail(e, "seed, step, rate or first of graph %s lies outside the arena", g->name);
	return program_results(p, g, rt_json_get(o, "results"), e) && program_sets(g, rt_json_get(o, "sets"), e) &&
	       rt_program_rows(g, rt_json_get(o, "kernels"), -1, e) && program_joins(p, g, o, e);
}

static bool
program_loop(RtLoop *l, const Json *list, const char *name, RtError *e)
{
	static const char *const ops[] = {"shuffle", "repeat", "end", "batch", "rate", "call", "emit", "poll", "merge"};
	int open[8], depth = 0;
	bool emits[RT_G_COUNT] = {false};

	l->n = 0;
	l->op = rt_alloc(sizeof *l->op * (size_t)(list ? list->n : 0));
	for (const Json *o = list ? list->child : NULL; o; o = o->next, l->n++) {
		RtLoopOp *op = &l->op[l->n];
		const char *kind = rt_json_str(o, "op", ""), *graph = rt_json_str(o, "graph", name);
		int k = 0;

		while (k < RT_COUNT(ops) && strcmp(ops[k], kind) != 0)
			k++;
		if (k == RT_COUNT(ops))
			return rt_fail(e, "loop %s: unknown op '%s'", name, kind);
		op->kind = (RtLoopKind)k;
		for (int i = 0; i < RT_G_COUNT; i++)
			if (strcmp(rt_graph_names[i], graph) == 0)
				op->graph = i;
		op->counted = strcmp(rt_json_str(o, "what", ""), "count") == 0;
		op->shards = strcmp(rt_json_str(o, "what", ""), "shards") == 0;
		op->count = rt_json_int(o, "count", 1);
		emits[op->graph] = emits[op->graph] || op->kind == RT_L_EMIT;
		if ((op->kind == RT_L_REPEAT && depth == RT_COUNT(open)) || (op->kind == RT_L_END && depth == 0))
			return rt_fail(e, "loop %s does not nest", name);
		if (op->kind == RT_L_REPEAT)
			open[depth++] = l->n;
		else if (op->kind == RT_L_END)
			l->op[open[--depth]].end = l->n;
	}
	l->reports = emits[RT_G_UPDATE] && !emits[RT_G_TRAIN] ? RT_G_UPDATE : RT_G_TRAIN;
	return depth == 0 || rt_fail(e, "loop %s does not nest", name);
}

static const char **
program_strings(const Json *list, int *n)
{
	const char **all = rt_alloc(sizeof *all * (size_t)(list ? list->n + 1 : 1));

	*n = 0;
	if (list && list->kind == JSON_STRING)
		all[(*n)++] = list->s;
	for (const Json *x = list && list->kind == JSON_LIST ? list->child : NULL; x; x = x->next)
		if (x->kind == JSON_STRING)
			all[(*n)++] = x->s;
	return all;
}

static void
program_rate(RtRate *r, const Json *o)
{
	static const char *const kinds[] = {"constant", "poly", "cosine", "linear", "step", "one_cycle"};
	const Json *at = rt_json_get(o, "at");

	for (int i = 0; i < RT_COUNT(kinds); i++)
		if (strcmp(kinds[i], rt_json_str(o, "kind", "constant")) == 0)
			r->kind = (RtRateKind)i;
	r->rate = rt_json_num(o, "rate", 0);
	r->from = rt_json_num(o, "from", 0);
	r->peak = rt_json_num(o, "peak", 0);
	r->to = rt_json_num(o, "to", 0);
	r->power = r->kind == RT_RATE_LINEAR ? 1 : rt_json_num(o, "power", 2);
	r->warmup_epochs = rt_json_num(o, "warmup_epochs", 0);
	r->warmup_steps = rt_json_num(o, "warmup_steps", 0);
	r->factor = rt_json_num(o, "factor", 1);
	r->pct_start = rt_json_num(o, "pct_start", 0.3);
	r->div_factor = rt_json_num(o, "div_factor", 25);
	r->final_div_factor = rt_json_num(o, "final_div_factor", 1e4);
	r->three_phase = rt_json_num(o, "three_phase", 0) != 0;
	r->straight = rt_json_num(o, "linear", 0) != 0;
	r->at = rt_alloc(sizeof *r->at * (size_t)(at ? at->n : 0));
	for (const Json *x = at ? at->child : NULL; x; x = x->next)
		r->at[r->nat++] = x->f;
}

static void
program_checks(RtProgram *p, const Json *list)
{
	int k = 0;

	p->ncheck = list ? (int)list->n : 0;
	p->check = rt_alloc(sizeof *p->check * (size_t)p->ncheck);
	for (const Json *o = list ? list->child : NULL; o; o = o->next)
		p->check[k++] = (RtCheck){.what = rt_json_str(o, "what", "value"), .where = rt_json_str(o, "where", ""),
		                          .limit = rt_json_int(o, "limit", 0),
		                          .per_example = rt_json_int(o, "per_example", 0),
		                          .mul = rt_json_int(o, "mul", 0), .div = rt_json_int(o, "div", 1)};
}

static void
program_header(RtProgram *p, const Json *o)
{
	const Json *sink = rt_json_get(o, "sink"), *reader = rt_json_get(o, "reader");

	p->model = rt_json_str(o, "model", "model");
	p->target = rt_json_str(o, "target", "");
	p->arch = rt_json_str(o, "arch", "");
	p->precision = rt_json_str(o, "precision", "f32");
	p->source_hash = rt_json_str(o, "source_hash", "");
	p->full_only = rt_json_str(o, "full_only", "");
	p->one_batch = rt_json_str(o, "one_batch", "");
	p->batch = rt_json_int(o, "batch", 1);
	p->seed = rt_json_int(o, "seed", 0);
	p->epochs = rt_json_int(o, "epochs", 1);
	p->sink = sink && sink->kind == JSON_NUMBER                     ? sink->i
	          : strcmp(rt_json_str(o, "sink", "epoch"), "off") == 0 ? 0
	                                                                : -1;
	p->accumulate = rt_json_int(o, "accumulate", 1);
	p->shards = rt_json_int(o, "shards", 1);
	p->threads_start = (int)rt_json_int(o, "threads_start", 0);
	p->shuffle = rt_json_bool(o, "shuffle", true);
	p->narrow = rt_json_bool(o, "narrow", false);
	p->memory_total = rt_json_int(o, "memory_total", 0);
	p->arena_bytes = rt_json_int(o, "arena_bytes", 0);
	p->scratch_bytes = rt_json_int(o, "scratch_bytes", 0);
	p->fault_offset = rt_json_int(o, "fault_offset", -1);
	p->parameters = rt_json_int(o, "parameters", 0);
	p->parameter_bytes = rt_json_int(o, "parameter_bytes", 0);
	p->gflop_per_step = rt_json_num(o, "gflop_per_step", 0);
	p->bytes_per_step = rt_json_num(o, "bytes_per_step", 0);
	program_rate(&p->rate, rt_json_get(o, "rate"));
	const Json *generate = rt_json_get(o, "generate");

	p->generate.token = generate ? rt_json_str(generate, "token", "") : NULL;
	p->generate.logits = rt_json_str(generate, "logits", "");
	p->generate.start = rt_json_int(generate, "start", 0);
	p->generate.end = rt_json_int(generate, "end", -1);
	p->generate.carried = rt_json_bool(generate, "carried", false);
	p->generate.places = rt_json_bool(generate, "places", true);
	p->generate.whole = rt_json_get(generate, "whole") ? rt_json_str(generate, "whole", "") : NULL;
	p->reader.kind = rt_json_str(reader, "kind", "none");
	p->reader.train = program_strings(rt_json_get(reader, "train"), &p->reader.ntrain);
	p->reader.test = program_strings(rt_json_get(reader, "test"), &p->reader.ntest);
	p->reader.json = reader;
	p->reader.length = rt_json_int(reader, "length", 0);
	p->reader.examples = rt_json_int(reader, "examples", 1024);
	program_checks(p, rt_json_get(o, "checks"));
}

static void
program_buckets(RtProgram *p, const Json *list)
{
	p->bucket = rt_alloc(sizeof *p->bucket * (size_t)(list ? list->n : 0));
	for (const Json *o = list ? list->child : NULL; o; o = o->next)
		p->bucket[p->nbucket++] = (RtBucket){.offset = rt_json_int(o, "offset", 0),
		                                     .bytes = rt_json_int(o, "bytes", 0),
		                                     .kernel = (int)rt_json_int(o, "kernel", 0),
		                                     .wait = (int)rt_json_int(o, "wait", 0),
		                                     .ready = rt_json_num(o, "ready", 1)};
}

bool
rt_program_read(RtProgram *p, const char *text, RtError *e)
{
	char why[128];
	const Json *o = rt_json_parse(text, strlen(text), &p->doc, why, sizeof why), *loops;

	if (!o)
		return rt_fail(e, "the program's descriptor: %s", why);
	if (rt_json_int(o, "version", 0) != RT_VERSION)
		return rt_fail(e, "the program's descriptor has version %lld, this runtime reads %d",
		               (long long)rt_json_int(o, "version", 0), RT_VERSION);
	program_header(p, o);
	if (p->batch < 1 || p->accumulate < 1 || p->shards < 1 || (p->shards > 1 && p->shards != p->accumulate) ||
	    p->threads_start < 0 || p->arena_bytes < 0 || p->scratch_bytes < 0 ||
	    (p->fault_offset >= 0 && !program_inside(p, p->fault_offset, sizeof(RtFault))))
		return rt_fail(e, "the program's descriptor: bad batch or sizes");
	if (!program_inputs(p, rt_json_get(o, "inputs"), e) || !program_states(p, rt_json_get(o, "state"), e))
		return rt_context(e, "the program's descriptor");
	for (int i = 0; i < RT_G_COUNT; i++)
		if (!program_graph(p, i, rt_json_get(o, "graphs"), e))
			return rt_context(e, "the program's descriptor");
	program_buckets(p, rt_json_get(o, "buckets"));
	p->link.processes = rt_json_int(rt_json_get(o, "link"), "processes", 0);
	p->link.start = rt_json_num(rt_json_get(o, "link"), "start", 0);
	p->link.rate = rt_json_num(rt_json_get(o, "link"), "rate", 0);
	loops = rt_json_get(o, "loops");
	return (program_loop(&p->train, rt_json_get(loops, "train"), "train", e) &&
	        program_loop(&p->eval, rt_json_get(loops, "eval"), "eval", e) &&
	        program_loop(&p->infer, rt_json_get(loops, "infer"), "infer", e)) ||
	       rt_context(e, "the program's descriptor");
}
