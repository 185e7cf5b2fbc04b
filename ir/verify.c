/* verify.c: is the module well formed, and does it keep what its stage promises?
 *
 * In: any module.  Out: true, or a line per violated rule with the op under it (the first 40).
 * Any stage: ids in range, definitions before uses, one definition each, unique names, counts and attributes as the
 * tables say, types as the shape rules give them, states that exist with their types, loops balanced and alone with
 * loop ops.
 * diffed: no update is left.   fused: every op that needs one has a group.   scheduled: groups are contiguous.
 * selected: each group has a kernel.   planned: what crosses groups has a place inside the arena.
 * The rules run on a copy of the values, so that a wrong type is reported and not repaired. */
#include "text.h"
#include <stdlib.h>
#include <string.h>

enum { MAX_SHOWN = 40 };

typedef struct Verify {
	const Module *m;
	const Graph *g;
	Arena *scratch;
	Buf *out;
	int stage, found;
	bool *defined;           /* by Val.id */
} Verify;

enum { PLACE_ALIGN = 64 };   /* bytes: a line of the caches, on which kernels build */

static void complain(Verify *v, const Op *op, const char *fmt, ...) __attribute__((format(printf, 3, 4)));

static void
complain(Verify *v, const Op *op, const char *fmt, ...)
{
	va_list ap;

	if (v->found++ >= MAX_SHOWN)
		return;
	if (v->g)
		buf_printf(v->out, "%s %s: ", v->g->is_loop ? "loop" : "graph", v->g->name);
	va_start(ap, fmt);
	buf_vprintf(v->out, fmt, ap);
	va_end(ap);
	buf_printf(v->out, "\n");
	if (op) {
		buf_printf(v->out, "    ");
		op_print(v->out, v->g, op);
		buf_printf(v->out, "\n");
	}
}

static const char *
type_words(Verify *v, const Type *t)
{
	Buf b = {0};
	const char *s;

	type_print(&b, t);
	s = arena_strdup(v->scratch, b.at);
	buf_free(&b);
	return s;
}

/* ---------------------------------------------------------------- types and names */

static void
check_type(Verify *v, const Type *t, const char *what, const char *name)
{
	unsigned seen = 0;

	if (t->dtype == DT_none || t->dtype >= DT_COUNT || t->rank > MAX_RANK) {
		complain(v, NULL, "%s %s has no valid type", what, name);
		return;
	}
	for (int i = 0; i < t->rank; i++) {
		Axis a = t->axis[i];

		if (t->perm[i] >= t->rank || seen & 1u << t->perm[i])
			complain(v, NULL, "%s %s: its layout is no permutation of its axes", what, name);
		else
			seen |= 1u << t->perm[i];
		if (a.n < 1 || a.n > MAX_ELEMENTS)
			complain(v, NULL, "%s %s: axis %d has extent %lld", what, name, i, (long long)a.n);
		if (a.mul > 0 && (a.div < 1 || v->m->batch * a.mul != a.n * a.div))
			complain(v, NULL, "%s %s: axis %d of %s does not fit a batch of %lld", what, name, i,
			         type_words(v, t), (long long)v->m->batch);
	}
}

static int
compare_text(const void *a, const void *b)
{
	return strcmp(*(const char *const *)a, *(const char *const *)b);
}

static void
check_unique(Verify *v, const char **names, uint32_t n, const char *what)
{
	if (n > 1)
		qsort(names, n, sizeof *names, compare_text);
	for (uint32_t i = 1; i < n; i++)
		if (strcmp(names[i - 1], names[i]) == 0)
			complain(v, NULL, "two %s are called %s", what, names[i]);
}

static void
check_values(Verify *v)
{
	const Graph *g = v->g;
	const char **names = arena_array(v->scratch, const char *, g->val.n);
	uint32_t n = 0;

	for (uint32_t i = 1; i < g->val.n; i++) {
		const ValInfo *x = &g->val.at[i];

		if (!x->name || !*x->name) {
			complain(v, NULL, "value %u has no name", (unsigned)i);
			continue;
		}
		names[n++] = x->name;
		check_type(v, &x->type, "value", x->name);
		if (g->training && type_marked(&x->type))
			complain(v, NULL, "value %s follows the batch in a graph where the batch is fixed", x->name);
	}
	check_unique(v, names, n, "values");
}

/* ---------------------------------------------------------------- ops */

static bool
check_attrs(Verify *v, const Op *op)
{
	const OpInfo *info = &op_info[op->kind];

	if (op->nattr != info->nattr) {
		complain(v, NULL, "%s has %d attributes, needs %d", info->name, op->nattr, info->nattr);
		return false;
	}
	for (int i = 0; i < op->nattr; i++) {
		const Attr *a = &op->attr[i];

		if (a->name != info->attr_name[i]) {
			complain(v, NULL, "%s: attribute %d is not %s", info->name, i,
			         attr_names[info->attr_name[i]].name);
			return false;
		}
		if (attr_names[a->name].kind == AK_STR && !a->s) {
			complain(v, NULL, "%s: attribute %s has no text", info->name, attr_names[a->name].name);
			return false;
		}
	}
	return true;
}

static bool
check_operands(Verify *v, const Op *op)
{
	const OpInfo *info = &op_info[op->kind];
	bool good = true;

	if ((info->nin >= 0 && op->nin != info->nin) || (info->nout >= 0 && op->nout != info->nout)) {
		complain(v, op, "%s has %d operands and %d results, needs %d and %d", info->name, op->nin, op->nout,
		         info->nin, info->nout);
		return false;
	}
	for (int k = 0; k < op->nin; k++)
		if (op->in[k].id == 0 || op->in[k].id >= v->g->val.n) {
			complain(v, op, "%s: operand %d is no value", info->name, k + 1);
			good = false;
		} else if (!v->defined[op->in[k].id]) {
			complain(v, op, "%%%s is used before it is defined", v->g->val.at[op->in[k].id].name);
			good = false;
		}
	return good;
}

static bool
check_results(Verify *v, const Op *op, uint32_t index)
{
	bool good = true;

	for (int k = 0; k < op->nout; k++) {
		const ValInfo *x;

		if (op->out[k].id == 0 || op->out[k].id >= v->g->val.n) {
			complain(v, op, "%s: result %d is no value", op_info[op->kind].name, k + 1);
			good = false;
			continue;
		}
		x = val_info(v->g, op->out[k]);
		if (v->defined[op->out[k].id])
			complain(v, op, "%%%s is defined twice", x->name);
		if (x->op != index || x->index != k)
			complain(v, op, "%%%s does not know its definition (it says op %u, result %u)", x->name,
			         (unsigned)x->op, (unsigned)x->index);
		v->defined[op->out[k].id] = true;
	}
	return good;
}

/* The rule compares the types that stand there with those it finds, and takes over where none stands. */
static void
check_rule(Verify *v, Graph *copy, const Op *op)
{
	Op one = *op;
	bool had = copy->full_only;
	int64_t multiple = copy->multiple;
	int which = -1;
	const char *error = op_info[op->kind].shape(copy, &one, &which);

	if (error)
		complain(v, op, "%s: %s", op_info[op->kind].name, error);
	if (copy->full_only && !had)
		complain(v, op, "only whole batches can run (%s), but the graph does not say so",
		         copy->full_why ? copy->full_why : "?");
	if (copy->multiple != multiple)
		complain(v, op, "only batches of a multiple of %lld can run, but the graph does not say so",
		         (long long)copy->multiple);
}

static void
check_state_use(Verify *v, const Op *op)
{
	const State *s;
	const Type *t;

	if (op->kind != OP_load && op->kind != OP_store && op->kind != OP_update)
		return;
	s = module_state((Module *)v->m, attr_str(op, A_state));
	if (!s)
		return; /* the shape rule has said so */
	t = op->kind == OP_load ? val_type(v->g, op->out[0]) : NULL;
	if (t && !type_same(t, &s->type))
		complain(v, op, "state %s is %s, it is loaded as %s", s->name, type_words(v, &s->type),
		         type_words(v, t));
	if (op->kind == OP_update && v->stage >= STAGE_diffed)
		complain(v, op, "update belongs before stage diffed");
}

/* ---------------------------------------------------------------- graphs */

static void
check_inputs(Verify *v)
{
	for (uint32_t i = 0; i < v->g->input.n; i++) {
		const Input *in = &v->g->input.at[i];
		const Type *t;

		if (in->v.id == 0 || in->v.id >= v->g->val.n) {
			complain(v, NULL, "input %u is no value", (unsigned)i);
			continue;
		}
		if (v->defined[in->v.id])
			complain(v, NULL, "input %s stands twice", in->name);
		v->defined[in->v.id] = true;
		t = val_type(v->g, in->v);
		if (in->kind != IN_DATA && (t->rank || t->dtype != (in->kind == IN_RATE ? DT_f64 : DT_i64)))
			complain(v, NULL, "input %s, the %s, is %s", in->name, text_input_kinds[in->kind],
			         type_words(v, t));
		if (val_info(v->g, in->v)->op != UINT32_MAX)
			complain(v, NULL, "input %s has a defining op", in->name);
	}
}

static void
check_graph_results(Verify *v)
{
	for (uint32_t i = 0; i < v->g->result.n; i++) {
		const Result *r = &v->g->result.at[i];
		const Type *t;

		if (r->v.id == 0 || r->v.id >= v->g->val.n || !v->defined[r->v.id]) {
			complain(v, NULL, "result %s is not defined", r->name);
			continue;
		}
		t = val_type(v->g, r->v);
		if (result_reported(r->kind) && (t->rank || !dtype_is_float((DType)t->dtype)))
			complain(v, NULL, "%s %s is %s, needs a floating scalar", text_result_kinds[r->kind], r->name,
			         type_words(v, t));
	}
}

static void
check_loop_shape(Verify *v)
{
	int depth = 0;

	for (uint32_t i = 0; i < v->g->op.n; i++) {
		const Op *op = &v->g->op.at[i];

		if (op->dead || op->kind == OP_none || op->kind >= OP_COUNT)
			continue;
		if (v->g->is_loop != op_has(op->kind, T_LOOP))
			complain(v, op, "%s %s", op_info[op->kind].name,
			         v->g->is_loop ? "cannot stand in a loop" : "stands in loops only");
		depth += op->kind == OP_repeat;
		if (op->kind == OP_end && depth-- == 0) {
			complain(v, op, "end closes no repeat");
			depth = 0;
		}
	}
	if (depth)
		complain(v, NULL, "a repeat is not closed");
}

static void
check_stores(Verify *v)
{
	const char **names = arena_array(v->scratch, const char *, v->g->op.n);
	uint32_t n = 0;

	for (uint32_t i = 0; i < v->g->op.n; i++)
		if (!v->g->op.at[i].dead && v->g->op.at[i].kind == OP_store)
			names[n++] = attr_str(&v->g->op.at[i], A_state);
	check_unique(v, names, n, "stores' states");
}

/* ---------------------------------------------------------------- groups and places */

static bool
may_stand_alone(const Op *op)
{
	return op->kind == OP_load || op_has(op->kind, T_VIEW);
}

/* A group that runs once must have nothing to do with what differs from call to call. */
static void
check_once(Verify *v)
{
	const Graph *g = v->g;
	bool any = false, *steady;

	for (uint32_t i = 0; i < g->group.n; i++)
		any |= g->group.at[i].once;
	if (!any)
		return;
	steady = graph_steady(g, v->scratch);
	for (uint32_t i = 0; i < g->op.n; i++) {
		const Op *op = &g->op.at[i];

		if (op->group >= 0 && op->group < (int64_t)g->group.n && g->group.at[op->group].once && !op->dead &&
		    (!op->nout || !steady[op->out[0].id]))
			complain(v, op, "group #%d runs once, but this is made of more than "
			         "states, constants and what groups make that run once", (int)op->group);
	}
}

static void
check_groups(Verify *v)
{
	const Graph *g = v->g;
	bool *seen = arena_array(v->scratch, bool, g->group.n);
	const char **names = arena_array(v->scratch, const char *, g->group.n);
	int32_t last = -1;

	for (uint32_t i = 0; i < g->op.n; i++) {
		const Op *op = &g->op.at[i];

		if (op->dead)
			continue;
		if (op->group < -1 || op->group >= (int64_t)g->group.n)
			complain(v, op, "there is no group #%d", (int)op->group);
		else if (v->stage < STAGE_fused ? op->group != -1
		                                : op->group == -1 && !may_stand_alone(op) && !g->is_loop)
			complain(v, op, "%s group at stage %s", v->stage < STAGE_fused ? "a" : "no", v->m->stage);
		if (v->stage >= STAGE_scheduled && op->group != last && op->group >= 0 &&
		    op->group < (int64_t)g->group.n) {
			if (seen[op->group])
				complain(v, op, "group #%d (%s) is not contiguous", (int)op->group,
				         g->group.at[op->group].name);
			seen[op->group] = true;
		}
		last = op->group;
	}
	check_once(v);
	for (uint32_t i = 0; i < g->group.n; i++) {
		const Group *gr = &g->group.at[i];

		names[i] = gr->name ? gr->name : "";
		if (v->stage >= STAGE_scheduled && !seen[i])
			complain(v, NULL, "group #%u (%s) has no op", (unsigned)i, names[i]);
		if (v->stage >= STAGE_selected && !gr->kernel)
			complain(v, NULL, "group #%u (%s) has no kernel at stage %s", (unsigned)i, names[i],
			         v->m->stage);
		if (gr->variant.n && (!gr->record || v->stage < STAGE_selected ||
		                      strcmp(gr->variant.at[0].kernel, gr->kernel ? gr->kernel : "")))
			complain(v, NULL,
			         "group #%u (%s) has variants, of which the first must be its own kernel, and a "
			         "record, at stage selected",
			         (unsigned)i, names[i]);
		for (uint32_t k = 0; k < gr->variant.n; k++)
			if (gr->variant.at[k].workspace > gr->workspace || gr->variant.at[k].prepacked > gr->prepacked)
				complain(v, NULL, "group #%u (%s) has less room than its variant %s needs", (unsigned)i,
				         names[i], gr->variant.at[k].kernel);
		if (v->stage >= STAGE_planned && gr->workspace > 0 && gr->workspace_offset < 0)
			complain(v, NULL, "group #%u (%s) has no place for its workspace", (unsigned)i, names[i]);
		else if (v->stage >= STAGE_planned && gr->workspace > 0 && gr->workspace_offset % PLACE_ALIGN)
			complain(v, NULL, "the workspace of group #%u (%s) lies at byte %lld, no multiple of %d",
			         (unsigned)i, names[i], (long long)gr->workspace_offset, PLACE_ALIGN);
		if (v->stage >= STAGE_planned && gr->prepacked > 0 &&
		    (gr->prepacked_offset < 0 || gr->prepacked_offset % PLACE_ALIGN))
			complain(v, NULL, "what group #%u (%s) keeps has no place that is a multiple of %d",
			         (unsigned)i, names[i], PLACE_ALIGN);
	}
	check_unique(v, names, g->group.n, "groups");
}

/* Asked of a graph whose other places are right. */
static void
check_launches(Verify *v)
{
	bool any = false;

	for (uint32_t i = 0; i < v->g->group.n; i++)
		any |= v->g->group.at[i].launch.n > 0;
	if (!any || v->found)
		return;
	const char *wrong = v->stage < STAGE_planned ? "launches have numbers from stage planned on"
	                                             : launches_wrong(v->g, v->scratch);

	if (wrong)
		complain(v, NULL, "%s", wrong);
}

/* Values that another group reads, and results, must lie somewhere; what has a place must lie inside the arena. */
static void
check_places(Verify *v)
{
	const Graph *g = v->g;
	bool *needed = arena_array(v->scratch, bool, g->val.n);

	for (uint32_t i = 0; i < g->op.n; i++) {
		const Op *op = &g->op.at[i];

		for (int k = 0; !op->dead && k < op->nin; k++) {
			const Op *from = val_op(g, op->in[k]);

			needed[op->in[k].id] |= op->group >= 0 && (!from || from->group != op->group);
		}
	}
	for (uint32_t i = 0; i < g->result.n; i++)
		needed[g->result.at[i].v.id] = true;
	for (uint32_t i = 1; i < g->val.n; i++) {
		const ValInfo *x = &g->val.at[i];
		int64_t end;

		if (x->offset < 0 ? needed[i]
		                  : !add_i64(x->offset, type_bytes(&x->type), &end) || end > v->m->arena_bytes)
			complain(v, NULL, "%%%s %s", x->name,
			         x->offset < 0 ? "has no place" : "lies outside the arena");
		else if (x->offset > 0 && x->offset % PLACE_ALIGN)
			complain(v, NULL, "%%%s lies at byte %lld, no multiple of %d", x->name, (long long)x->offset,
			         PLACE_ALIGN);
	}
}

static void
check_graph(Verify *v, const Graph *g)
{
	Graph copy = *g;

	v->g = g;
	v->defined = arena_array(v->scratch, bool, g->val.n);
	copy.arena = v->scratch;
	copy.names = NULL;
	copy.val.at = memcpy(arena_array(v->scratch, ValInfo, g->val.n), g->val.at, sizeof *g->val.at * g->val.n);
	copy.val.cap = g->val.n;
	check_values(v);
	check_inputs(v);
	check_loop_shape(v);
	for (uint32_t i = 0; i < g->op.n; i++) {
		const Op *op = &g->op.at[i];
		bool good;

		if (op->dead)
			continue;
		if (op->kind == OP_none || op->kind >= OP_COUNT ||
		    (op_info[op->kind].ew >= 0 && !op_info[op->kind].expr)) {
			complain(v, NULL, "op %u is of no kind", (unsigned)i);
			continue;
		}
		good = check_attrs(v, op) && check_operands(v, op);
		if (check_results(v, op, i) && good) {
			check_rule(v, &copy, op);
			check_state_use(v, op);
		}
	}
	check_graph_results(v);
	if (v->found)
		return; /* what follows relies on all of that */
	check_stores(v);
	check_groups(v);
	if (v->stage >= STAGE_planned && !g->is_loop && !v->found)
		check_places(v);
	check_launches(v);
}

/* ---------------------------------------------------------------- modules */

static void
check_states(Verify *v)
{
	const char **names = arena_array(v->scratch, const char *, v->m->state.n);

	for (uint32_t i = 0; i < v->m->state.n; i++) {
		const State *s = &v->m->state.at[i];
		int64_t end;

		names[i] = s->name;
		check_type(v, &s->type, "state", s->name);
		if (type_marked(&s->type) && s->kind != ST_CARRY)
			complain(v, NULL, "state %s follows the batch", s->name);
		if (v->stage < STAGE_planned)
			continue;
		if (s->offset < 0 || !add_i64(s->offset, type_bytes(&s->type), &end) || end > v->m->arena_bytes)
			complain(v, NULL, "state %s has no place inside the arena", s->name);
		else if (s->offset % PLACE_ALIGN)
			complain(v, NULL, "state %s lies at byte %lld, no multiple of %d", s->name,
			         (long long)s->offset, PLACE_ALIGN);
	}
	check_unique(v, names, v->m->state.n, "states");
}

static void
check_graph_names(Verify *v)
{
	for (int loops = 0; loops < 2; loops++) {
		const char **names = arena_array(v->scratch, const char *, v->m->graph.n);
		uint32_t n = 0;

		for (uint32_t i = 0; i < v->m->graph.n; i++)
			if (v->m->graph.at[i]->is_loop == (loops == 1))
				names[n++] = v->m->graph.at[i]->name;
		check_unique(v, names, n, loops ? "loops" : "graphs");
	}
}

bool
module_verify(const Module *m, Buf *errors)
{
	Verify v = {.m = m, .scratch = arena_new(), .out = errors, .stage = stage_number(m->stage)};

	if (v.stage < 0)
		complain(&v, NULL, "there is no stage %s", m->stage ? m->stage : "(none)");
	check_states(&v);
	check_graph_names(&v);
	for (uint32_t i = 0; i < m->graph.n; i++)
		check_graph(&v, m->graph.at[i]);
	if (v.found > MAX_SHOWN)
		buf_printf(errors, "and %d more\n", v.found - MAX_SHOWN);
	arena_free(v.scratch);
	return v.found == 0;
}
