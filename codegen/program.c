/* program.c: the descriptor of an executable: one JSON object, described in runtime/descriptor.md.
 *
 * In: a planned Module and its kernels (none for target ref, which runs the module itself).   Out: text. Everything
 * that the runtime knows of the model stands here: inputs, states, offsets, settings, loops, kernel tables, locations
 * for messages. */
#include "codegen.h"
#include <math.h>
#include <string.h>

static void
put_shape(Buf *b, const Type *t)
{
	buf_printf(b, "[");
	for (int i = 0; i < t->rank; i++)
		buf_printf(b, "%s%lld", i ? "," : "", (long long)t->axis[i].n);
	buf_printf(b, "]");
}

/* dtype, shape and layout of a tensor */
static void
put_type(Buf *b, const Type *t)
{
	buf_printf(b, ", \"dtype\": \"%s\", \"shape\": ", dtype_info[t->dtype].name);
	put_shape(b, t);
	if (type_is_plain(t))
		return;
	buf_printf(b, ", \"perm\": [");
	for (int k = 0; k < t->rank; k++)
		buf_printf(b, "%s%d", k ? "," : "", t->perm[k]);
	buf_printf(b, "]");
}

static const char *
where(const Module *m, Arena *a, Loc l)
{
	if (!l.file || l.file >= m->diags->source.n)
		return "";
	return arena_printf(a, "%s:%u:%u", m->diags->source.at[l.file].name, (unsigned)l.line, (unsigned)l.col);
}

static void
put_number(Buf *b, const char *key, double x)
{
	buf_printf(b, ", \"%s\": ", key);
	buf_double(b, x);
}

static void
put_text(Buf *b, const char *key, const char *text)
{
	buf_printf(b, ", \"%s\": ", key);
	buf_json(b, text ? text : "");
}

/* ---------------------------------------------------------------- settings */
static const char *
setting_word(const Module *m, const char *name, const char *none)
{
	const Setting *s = setting(m, name);

	return s && s->s ? s->s : none;
}

static int64_t
setting_int(const Module *m, const char *name, int64_t none)
{
	const Setting *s = setting(m, name);

	return s && (s->kind == SET_INT || s->kind == SET_BOOL) ? s->i : none;
}

int64_t
program_calls(const Module *m, int64_t *shards)
{
	int64_t s = setting_int(m, "train.shards", 1);

	if (shards)
		*shards = s;
	return s > 1 ? s : setting_int(m, "train.accumulate", 1);
}

static void
put_list(Buf *b, const Setting *s)
{
	buf_printf(b, "[");
	for (int i = 0; s && s->kind == SET_LIST && i < s->nargs; i++) {
		buf_printf(b, i ? ", " : "");
		if (s->arg[i].kind == SET_STR)
			buf_json(b, s->arg[i].s);
		else
			buf_double(b, s->arg[i].f);
	}
	if (s && s->kind == SET_STR)
		buf_json(b, s->s);
	buf_printf(b, "]");
}

static void
put_rate(Buf *b, const Module *m)
{
	const Setting *opt = setting(m, "train.optimizer"), *r = opt ? setting_arg(opt, "rate") : NULL;

	if (!r || r->kind != SET_CALL) {
		buf_printf(b, ", \"rate\": {\"kind\": \"constant\"");
		put_number(b, "rate", r ? r->f : 0);
		buf_printf(b, "}");
		return;
	}
	buf_printf(b, ", \"rate\": {\"kind\": ");
	buf_json(b, r->s);
	for (int i = 0; i < r->nargs; i++) {
		const Setting *x = &r->arg[i];

		if (x->kind == SET_NONE)
			continue;
		if (x->kind == SET_LIST) {
			buf_printf(b, ", \"%s\": ", x->name);
			put_list(b, x);
		} else {
			put_number(b, x->name, x->f);
		}
	}
	buf_printf(b, "}");
}

/* "name": value; nothing of one that is none. Names of files are lists always. */
static void
put_argument(Buf *b, const Setting *x, const char *before)
{
	if (x->kind == SET_NONE)
		return;
	buf_printf(b, "%s", before);
	buf_json(b, x->name);
	buf_printf(b, ": ");
	if (x->kind == SET_INT)
		buf_printf(b, "%lld", (long long)x->i);
	else if (x->kind == SET_NUM)
		buf_double(b, x->f);
	else if (x->kind == SET_BOOL)
		buf_printf(b, "%s", x->i ? "true" : "false");
	else if (x->kind == SET_STR)
		buf_json(b, x->s);
	else if (x->kind == SET_LIST)
		put_list(b, x);
	else {
		buf_printf(b, "{");
		for (int i = 0; i < x->nargs; i++)
			put_argument(b, &x->arg[i], i ? ", " : "");
		buf_printf(b, "}");
	}
}

static void
put_reader(Buf *b, const Module *m)
{
	const Setting *r = setting(m, "data.reader");

	if (!r || !r->s || r->kind != SET_CALL) {
		buf_printf(b, ", \"reader\": {\"kind\": \"none\"}");
		return;
	}
	buf_printf(b, ", \"reader\": {\"kind\": ");
	buf_json(b, r->s);
	for (int i = 0; i < r->nargs; i++)
		put_argument(b, &r->arg[i], ", ");
	buf_printf(b, "}");
}

/* The section generate: the input that is written, the output that scores what comes next. Carried: some op carries a
 * state along T, so that a sequence may outgrow T. */
static void
put_generate(Buf *b, const Module *m)
{
	const Setting *token = setting(m, "generate.token"), *end = setting(m, "generate.end");
	const Setting *places = setting(m, "generate.places"), *whole = setting(m, "generate.whole");
	const Graph *g = module_graph(m, "infer");
	bool carried = false;

	if (!token || !g)
		return;
	for (uint32_t i = 0; i < g->op.n; i++)
		carried |= op_has((OpKind)g->op.at[i].kind, T_COMPOSITE) && g->op.at[i].kind != OP_attention;
	buf_printf(b, ", \"generate\": {\"token\": ");
	buf_json(b, token->s);
	buf_printf(b, ", \"logits\": ");
	buf_json(b, setting(m, "generate.logits")->s);
	buf_printf(b, ", \"start\": %lld, \"end\": %lld, \"carried\": %s", (long long)setting(m, "generate.start")->i,
	           end && end->kind == SET_INT ? (long long)end->i : -1ll, carried ? "true" : "false");
	if (places)
		buf_printf(b, ", \"places\": %s", places->i ? "true" : "false");
	if (whole)
		put_text(b, "whole", whole->s);
	buf_printf(b, "}");
}

static void
put_settings(Buf *b, const Module *m)
{
	const Setting *sink = setting(m, "train.sink"), *precision = setting(m, "train.precision");
	const Setting *threads = setting(m, TUNED_THREADS);
	int64_t shards, calls = program_calls(m, &shards);

	buf_printf(b, ", \"precision\": ");
	buf_json(b, precision && precision->s ? precision->s : "f32");
	buf_printf(b, ", \"batch\": %lld, \"source_hash\": \"%016llx\"", (long long)m->batch,
	           (unsigned long long)m->source_hash);
	buf_printf(b, ", \"seed\": %lld, \"epochs\": %lld", (long long)setting_int(m, "train.seed", 0),
	           (long long)setting_int(m, "train.epochs", 1));
	if (sink && sink->kind == SET_INT)
		buf_printf(b, ", \"sink\": %lld", (long long)sink->i);
	else
		put_text(b, "sink", setting_word(m, "train.sink", "epoch"));
	buf_printf(b, ", \"accumulate\": %lld, \"shuffle\": %s", (long long)calls,
	           setting_int(m, "data.shuffle", 1) ? "true" : "false");
	if (shards > 1)
		buf_printf(b, ", \"shards\": %lld", (long long)shards);
	if (threads && threads->kind == SET_INT)
		buf_printf(b, ", \"threads_start\": %lld", (long long)threads->i);
	put_rate(b, m);
	put_reader(b, m);
	put_generate(b, m);
}

/* ---------------------------------------------------------------- inputs, states, checks */
static const Graph *
real_graph(const Module *m, const char *name)
{
	for (uint32_t i = 0; i < m->graph.n; i++)
		if (!m->graph.at[i]->is_loop && !strcmp(m->graph.at[i]->name, name))
			return m->graph.at[i];
	return NULL;
}

static const Input *
input_named(const Graph *g, const char *name)
{
	for (uint32_t i = 0; g && i < g->input.n; i++)
		if (g->input.at[i].kind == IN_DATA && !strcmp(g->input.at[i].name, name))
			return &g->input.at[i];
	return NULL;
}

typedef struct Names { const char *at[64]; const Type *type[64]; int n; } Names;

/* The model's inputs: those of train, then what only the other graphs have. */
static Names
model_inputs(const Module *m)
{
	static const char *const order[] = {"train", "eval", "infer"};
	Names r = {.n = 0};

	for (int k = 0; k < 3; k++) {
		const Graph *g = real_graph(m, order[k]);

		for (uint32_t i = 0; g && i < g->input.n; i++) {
			bool known = g->input.at[i].kind != IN_DATA;

			for (int j = 0; j < r.n; j++)
				known |= !strcmp(r.at[j], g->input.at[i].name);
			if (!known && r.n < 64) {
				r.at[r.n] = g->input.at[i].name;
				r.type[r.n++] = val_type(g, g->input.at[i].v);
			}
		}
	}
	return r;
}

/* Follows casts and views back to a graph input; not slices, whose check says nothing of the rest. */
static Val
origin(const Graph *g, Val v)
{
	for (const Op *op = val_op(g, v);
	     op && op->kind != OP_slice && (op->kind == OP_cast || op_has((OpKind)op->kind, T_VIEW)); op = val_op(g, v))
		v = op->in[0];
	return v;
}

/* The check with the lowest exclusive upper bound for an integer input; NULL if none. */
static const Op *
input_check(const Module *m, const char *name)
{
	const Op *tightest = NULL;

	for (uint32_t i = 0; i < m->graph.n; i++) {
		const Graph *g = m->graph.at[i];
		const Input *in = g->is_loop ? NULL : input_named(g, name);

		for (uint32_t k = 0; in && k < g->op.n; k++) {
			const Op *op = &g->op.at[k];

			if (op->kind != OP_check || op->dead || origin(g, op->in[0]).id != in->v.id)
				continue;
			if (!tightest || attr_int(op, A_limit) < attr_int(tightest, A_limit))
				tightest = op;
		}
	}
	return tightest;
}

/* Some op or result of g reads the input: infer asks for no other. */
static bool
input_read(const Graph *g, const char *name)
{
	const Input *in = g ? input_named(g, name) : NULL;
	bool read = false;

	for (uint32_t i = 0; in && !read && i < g->op.n; i++)
		for (int k = 0; !g->op.at[i].dead && k < g->op.at[i].nin; k++)
			read |= g->op.at[i].in[k].id == in->v.id;
	for (uint32_t i = 0; in && i < g->result.n; i++)
		read |= g->result.at[i].v.id == in->v.id;
	return read;
}

static void
put_inputs(Buf *b, const Module *m, const Names *in)
{
	buf_printf(b, ",\n\"inputs\": [");
	for (int i = 0; i < in->n; i++) {
		const Op *check = input_check(m, in->at[i]);

		buf_printf(b, "%s{\"name\": ", i ? ",\n " : "");
		buf_json(b, in->at[i]);
		buf_printf(b, ", \"dtype\": \"%s\", \"shape\": ", dtype_info[in->type[i]->dtype].name);
		put_shape(b, in->type[i]);
		buf_printf(b, ", \"limit\": %lld", check ? (long long)attr_int(check, A_limit) : 0LL);
		if (check && attr_bool(check, A_has_ignore))
			buf_printf(b, ", \"ignore\": %lld", (long long)attr_int(check, A_ignore));
		buf_printf(b, ", \"infer\": %s}", input_read(real_graph(m, "infer"), in->at[i]) ? "true" : "false");
	}
	buf_printf(b, "]");
}

static void
put_states(Buf *b, const Module *m)
{
	static const char *const kinds[ST_COUNT] = {"param", "stat",    "slot",    "grad",
	                                            "sum",   "setting", "average", "carry"},
		*const inits[] = {"constant", "normal", "uniform"};

	buf_printf(b, ",\n\"state\": [");
	for (uint32_t i = 0; i < m->state.n; i++) {
		const State *s = &m->state.at[i];

		buf_printf(b, "%s{\"name\": ", i ? ",\n " : "");
		buf_json(b, s->name);
		buf_printf(b, ", \"kind\": \"%s\"", kinds[s->kind]);
		put_type(b, &s->type);
		buf_printf(b, ", \"offset\": %lld, \"init\": \"%s\"", (long long)s->offset, inits[s->init]);
		put_number(b, "a", s->a);
		put_number(b, "b", s->b);
		buf_printf(b, "}");
	}
	buf_printf(b, "]");
}

/* All check ops of the module in order: a kernel's fault names its place in this list. */
static void
put_checks(Buf *b, const Module *m, Arena *a)
{
	int n = 0;

	buf_printf(b, ",\n\"checks\": [");
	for (uint32_t i = 0; i < m->graph.n; i++)
		for (uint32_t k = 0; k < m->graph.at[i]->op.n; k++) {
			const Graph *g = m->graph.at[i];
			const Op *op = &g->op.at[k];

			if (op->kind != OP_check || op->dead)
				continue;
			const Type *t = val_type(g, op->in[0]);

			buf_printf(b, "%s{\"what\": ", n++ ? ", " : "");
			buf_json(b, attr_str(op, A_what) ? attr_str(op, A_what) : "");
			buf_printf(b, ", \"limit\": %lld, \"per_example\": %lld", (long long)attr_int(op, A_limit),
			    (long long)(type_elements(t) % m->batch ? 0 : type_elements(t) / m->batch));
			if (attr_int(op, A_mul))
				buf_printf(b, ", \"mul\": %lld, \"div\": %lld", (long long)attr_int(op, A_mul),
				           (long long)attr_int(op, A_div));
			put_text(b, "where", where(m, a, op->loc));
			buf_printf(b, "}");
		}
	buf_printf(b, "]");
}

/* ---------------------------------------------------------------- graphs and loops */

/* v is made of states and constants alone: it is the same in every batch. */
static bool
is_constant(const Graph *g, Val v, Arena *a)
{
	bool *varies = arena_array(a, bool, g->val.n);

	for (uint32_t i = 0; i < g->input.n; i++)
		varies[g->input.at[i].v.id] = true;
	for (uint32_t i = 0; i < g->op.n; i++) {
		const Op *op = &g->op.at[i];
		bool any = op_has((OpKind)op->kind, T_RANDOM);

		for (int k = 0; k < op->nin; k++)
			any |= varies[op->in[k].id];
		for (int k = 0; k < op->nout; k++)
			varies[op->out[k].id] = any;
	}
	return !varies[v.id];
}

static void
put_results(Buf *b, const Graph *g, Arena *a)
{
	static const char *const kinds[] = {"loss",     "metric", "output", "norm", "scale",
	                                    "overflow", "whole",  "batch",  "set",  "kept", "table"};

	buf_printf(b, ", \"results\": [");
	for (uint32_t i = 0; i < g->result.n; i++) {
		const Result *r = &g->result.at[i];
		const Type *t = val_type(g, r->v);

		buf_printf(b, "%s{\"name\": ", i ? ", " : "");
		buf_json(b, r->name);
		buf_printf(b, ", \"kind\": \"%s\", \"dtype\": \"%s\", \"shape\": ", kinds[r->kind],
		           dtype_info[t->dtype].name);
		put_shape(b, t);
		buf_printf(b, ", \"mark\": [");
		for (int k = 0; k < t->rank; k++)
			buf_printf(b, "%s[%d,%d]", k ? "," : "", t->axis[k].mul, t->axis[k].mul ? t->axis[k].div : 1);
		buf_printf(b, "], \"offset\": %lld%s}", (long long)val_info(g, r->v)->offset,
		           r->kind == RES_OUTPUT && is_constant(g, r->v, a) ? ", \"constant\": true" : "");
	}
	buf_printf(b, "]");
}

/* How metrics of the whole set are made of what is kept: settings metric.NAME = FUNCTION(iou = [..]). */
static void
put_sets(Buf *b, const Graph *g)
{
	const char *before = ", \"sets\": [";

	for (uint32_t i = 0; i < g->result.n; i++) {
		const Result *r = &g->result.at[i];
		const Setting *s = r->kind == RES_SET ? setting(g->module, arena_printf(g->arena, "metric.%s", r->name))
		                                      : NULL,
		              *iou = s ? setting_arg(s, "iou") : NULL;

		if (!s)
			continue;
		buf_printf(b, "%s{\"name\": ", before);
		buf_json(b, r->name);
		buf_printf(b, ", \"function\": \"%s\", \"iou\": [", s->s);
		for (int k = 0; iou && k < iou->nargs; k++)
			buf_printf(b, "%s%.17g", k ? ", " : "", iou->arg[k].f);
		buf_printf(b, "]}");
		before = ", ";
	}
	buf_printf(b, before[2] == '"' ? "" : "]");
}

/* The layers of a kernel's ops, each once; the place is that of its most costly op. */
static void
put_layers(Buf *b, const Module *m, Arena *a, const Graph *g, int group)
{
	const char *seen[16];
	int n = 0;
	const Op *main_op = NULL;

	buf_printf(b, ", \"layers\": [");
	for (uint32_t last = 0, i = group < 0 ? 0 : graph_group_ops(g, group, &last); i < last; i++) {
		const Op *op = &g->op.at[i];
		bool known = op->dead || op->group != group;

		if (known)
			continue;
		if (!main_op || op_has((OpKind)op->kind, T_CONTRACT))
			main_op = op;
		if (!op->path || !*op->path)
			continue;
		for (int k = 0; k < n; k++)
			known |= !strcmp(seen[k], op->path);
		if (!known && n < 16) {
			buf_printf(b, n ? ", " : "");
			buf_json(b, op->path);
			seen[n++] = op->path;
		}
	}
	buf_printf(b, "]");
	put_text(b, "where", main_op ? where(m, a, main_op->loc) : "");
}

/* ---------------------------------------------------------------- a loss that is not finite */
Val
graph_loss(const Graph *g)
{
	for (uint32_t i = 0; i < g->result.n; i++)
		if (g->result.at[i].kind == RES_LOSS)
			return g->result.at[i].v;
	return NOVAL;
}

void
program_mark_loss(const Module *m, ProgramKernels *ks, Arena *a)
{
	for (uint32_t i = 0; i < ks->graph.n; i++) {
		GraphKernels *gk = ks->graph.at[i];
		const Graph *g = gk->g;
		Val v = strcmp(g->name, "train") ? NOVAL : graph_loss(g);
		const Op *by = v.id ? val_op(g, v) : NULL;
		KernelRec *last = NULL;
		bool *stores = arena_array(a, bool, g->group.n);

		while (by && by->group < 0 && by->nin)   /* through views */
			by = val_op(g, by->in[0]);
		for (uint32_t k = 0; k < g->op.n; k++) {
			const Op *op = &g->op.at[k];
			const State *s = !op->dead && op->kind == OP_store
			                         ? module_state((Module *)(uintptr_t)m, attr_str(op, A_state))
			                         : NULL;
			const Op *made = s ? val_op(g, op->in[0]) : NULL;
			int group = op->group >= 0 ? op->group : made ? made->group : -1;

			/* with accumulate the loss's own kernel adds it to a sum, which a second time does no harm */
			if (s && s->kind != ST_STAT && group >= 0 &&
			    !(by && group == by->group && type_elements(&s->type) == 1))
				stores[group] = true;
		}
		for (uint32_t k = 0; by && by->group >= 0 && k < gk->k.n; k++) {
			if (gk->k.at[k].group >= 0 && stores[gk->k.at[k].group])
				break;
			if (gk->k.at[k].group == by->group)
				last = &gk->k.at[k];
		}
		if (last && !last->once)
			last->loss = true;
	}
}

/* Values that hold infinities because a constant does: masks, and what is made of them. */
static bool *
infinite_values(const Graph *g, Arena *a)
{
	bool *has = arena_array(a, bool, g->val.n);

	for (uint32_t i = 0; i < g->op.n; i++) {
		const Op *op = &g->op.at[i];
		bool any = op->kind == OP_full && isinf(attr_num(op, A_value));

		for (int k = 0; k < op->nin; k++)
			any |= has[op->in[k].id];
		for (int k = 0; k < op->nout; k++)
			has[op->out[k].id] = any;
	}
	return has;
}

/* The tensors of floats that a group stores, in order, for the search of the first that is not finite. */
static void
put_made(Buf *b, const Module *m, Arena *a, const Graph *g, int group, const bool *infinite)
{
	int n = 0;

	for (uint32_t last = 0, i = group < 0 ? 0 : graph_group_ops(g, group, &last); i < last; i++) {
		const Op *op = &g->op.at[i];

		for (int k = 0; !op->dead && op->group == group && k < op->nout; k++) {
			const Type *t = val_type(g, op->out[k]);

			if (!dtype_is_float((DType)t->dtype) || !val_is_stored(g, op->out[k]))
				continue;
			buf_printf(b, n++ ? ",\n     {\"name\": " : ",\n    \"made\": [{\"name\": ");
			buf_json(b, op->path && *op->path ? op->path : op_info[op->kind].name);
			put_text(b, "where", where(m, a, op->loc));
			put_type(b, t);
			buf_printf(b, ", \"offset\": %lld%s}", (long long)val_info(g, op->out[k])->offset,
			           infinite[op->out[k].id] ? ", \"infinities\": true" : "");
		}
	}
	buf_printf(b, n ? "]" : "");
}

/* The gradients of parameters that a group stores. by: graph_gradients' */
static void
put_gradients(Buf *b, const Module *m, const Graph *g, int group, const Val *by)
{
	int n = 0;

	for (uint32_t i = 0; i < m->state.n; i++) {
		if (!by[i].id || val_op(g, by[i])->group != group)
			continue;
		buf_printf(b, n++ ? ", {\"state\": %u" : ", \"gradients\": [{\"state\": %u", (unsigned)i);
		put_type(b, val_type(g, by[i]));
		buf_printf(b, ", \"offset\": %lld}", (long long)val_info(g, by[i])->offset);
	}
	buf_printf(b, n ? "]" : "");
}

static void
put_kernels(Buf *b, const Module *m, Arena *a, const Graph *g, const KernelRec *list, uint32_t n)
{
	uint32_t searched = 0; /* kernels up to the one that makes the loss */
	const Val *gradients = !strcmp(g->name, "train") ? graph_gradients(g, a) : NULL;

	for (uint32_t i = 0; i < n; i++)
		searched = list[i].loss ? i + 1 : searched;
	const bool *infinite = searched ? infinite_values(g, a) : NULL;

	for (uint32_t i = 0; i < n; i++) {
		const KernelRec *k = &list[i];

		buf_printf(b, "%s{\"name\": ", i ? ",\n   " : "");
		buf_json(b, k->name);
		buf_printf(b, ", \"fn\": %d, \"off\": [", k->fn);
		for (int j = 0; j < k->noff; j++)
			buf_printf(b, "%s%lld", j ? "," : "", (long long)k->off[j]);
		buf_printf(b, "]");
		for (int j = 0; j < k->nmap; j++)
			buf_printf(b, "%s[%lld,%lld,%lld,%d,%d,%d,%d]%s", j ? "," : ", \"maps\": [",
			           (long long)k->map[j].offset, (long long)k->map[j].inner, (long long)k->map[j].outer,
			           (int)k->map[j].box[0], (int)k->map[j].box[1], (int)k->map[j].mul, (int)k->map[j].div,
			           j + 1 == k->nmap ? "]" : "");
		put_layers(b, m, a, g, k->group);
		put_number(b, "flops", k->flops);
		put_number(b, "bytes", k->bytes);
		buf_printf(b, ", \"rows\": %lld, \"mul\": %d, \"div\": %d, \"grain\": %lld, \"check\": %s%s",
		           (long long)k->rows, k->mul, k->mul ? k->div : 1, (long long)k->grain,
		           k->check ? "true" : "false", k->once ? ", \"once\": true" : "");
		const char *kernel = k->group >= 0 ? g->group.at[k->group].kernel : NULL;

		buf_printf(b, "%s", k->early ? ", \"early\": true" : "");
		buf_printf(b, "%s%s%s", k->shares ? ", \"shares\": true" : "", k->loss ? ", \"loss\": true" : "",
		           kernel && !strcmp(kernel, PLAIN_KERNEL) ? ", \"plain\": true" : "");
		if (k->whole)
			buf_printf(b, ", \"whole\": %lld", (long long)k->whole);
		if (i < searched && (i + 1 == n || list[i + 1].group != k->group))
			put_made(b, m, a, g, k->group, infinite);
		if (gradients && k->group >= 0 && (i + 1 == n || list[i + 1].group != k->group))
			put_gradients(b, m, g, k->group, gradients);
		buf_printf(b, "}");
	}
}

/* ---------------------------------------------------------------- groups of a racing program */
/* Where a group reads (`what` 0) or writes (1) memory, but for its workspace: [offset, bytes, type], ... */
static void
put_places(Buf *b, const Module *m, const Graph *g, int group, bool writes)
{
	bool first = true;

	for (uint32_t last, i = graph_group_ops(g, group, &last); i < last; i++) {
		const Op *op = &g->op.at[i];

		for (int k = 0; !op->dead && op->group == group && k < (writes ? op->nout : op->nin); k++) {
			Val v = writes ? op->out[k] : op->in[k];
			const Op *by = val_op(g, v);
			bool inside = by && by->group == group;

			if (writes ? !val_is_stored(g, v) : inside || val_info(g, v)->offset < 0)
				continue;
			buf_printf(b, "%s[%lld,%lld,\"%s\"]", first ? "" : ",", (long long)val_info(g, v)->offset,
			           (long long)type_bytes(val_type(g, v)), dtype_info[val_type(g, v)->dtype].name);
			first = false;
		}
		if (writes && !op->dead && op->group == group && op->kind == OP_store) {
			const State *s = module_state((Module *)(uintptr_t)m, attr_str(op, A_state));

			if (s->offset != val_info(g, op->in[0])->offset)
				buf_printf(b, "%s[%lld,%lld,\"%s\"]", first ? "" : ",", (long long)s->offset,
				           (long long)type_bytes(&s->type), dtype_info[s->type.dtype].name);
			first = first && s->offset == val_info(g, op->in[0])->offset;
		}
	}
}

/* One kernel of a group: the group's own has its rows in the graph's table, another brings them along. */
static void
put_variant(Buf *b, const Module *m, Arena *a, const GraphKernels *gk, int group, uint32_t which)
{
	const GroupVariant *v = &gk->g->group.at[group].variant.at[which];
	bool first = true;

	buf_printf(b, "%s{\"kernel\": ", which ? ",\n    " : "");
	buf_json(b, v->kernel);
	buf_printf(b, ", \"bits\": \"%s\", \"bound\": %lld, \"workspace\": %lld, \"rows\": [", variant_classes[v->bits],
	           (long long)v->bound, (long long)v->workspace);
	for (uint32_t i = 0; !which && i < gk->k.n; i++)
		if (gk->k.at[i].group == group) {
			buf_printf(b, "%s%u", first ? "" : ",", (unsigned)i);
			first = false;
		}
	for (uint32_t i = 0; which && i < gk->variant.n; i++)
		if (gk->variant.at[i].group == group && gk->variant.at[i].variant == which)
			put_kernels(b, m, a, gk->g, gk->variant.at[i].k.at, gk->variant.at[i].k.n);
	buf_printf(b, "]}");
}

static void
put_races(Buf *b, const Module *m, Arena *a, const GraphKernels *gk)
{
	int n = 0;

	for (uint32_t i = 0; gk && i < gk->g->group.n; i++) {
		const Group *gr = &gk->g->group.at[i];

		if (gr->variant.n < 2)
			continue;
		buf_printf(b, n++ ? ",\n   {\"group\": " : ",\n  \"races\": [{\"group\": ");
		buf_json(b, gr->name);
		put_text(b, "record", gr->record);
		put_layers(b, m, a, gk->g, (int)i);
		buf_printf(b, ", \"workspace\": [%lld,%lld], \"kept\": [%lld,%lld], \"reads\": [",
		           (long long)gr->workspace_offset, (long long)gr->workspace, (long long)gr->kept_offset,
		           (long long)gr->kept);
		put_places(b, m, gk->g, (int)i, false);
		buf_printf(b, "], \"writes\": [");
		put_places(b, m, gk->g, (int)i, true);
		buf_printf(b, "], \"variants\": [");
		for (uint32_t v = 0; v < gr->variant.n; v++)
			put_variant(b, m, a, gk, (int)i, v);
		buf_printf(b, "]}");
	}
	buf_printf(b, n ? "]" : "");
}

static int64_t
special_input(const Graph *g, InputKind kind)
{
	Val v = graph_input(g, kind);

	return v.id ? val_info(g, v)->offset : -1;
}

static void
put_graphs(Buf *b, const Module *m, Arena *a, const Names *in, const ProgramKernels *ks)
{
	static const char *const names[] = {"train", "update", "eval", "infer", "begin", "step", "hop"};
	bool first = true;

	buf_printf(b, ",\n\"graphs\": {");
	for (size_t i = 0; i < sizeof names / sizeof *names; i++) {
		const Graph *g = real_graph(m, names[i]);
		const GraphKernels *gk = NULL;
		unsigned addressed = 0; /* bits by the model's inputs */

		if (!g)
			continue;
		for (uint32_t k = 0; ks && k < ks->graph.n; k++)
			if (ks->graph.at[k]->g == g)
				gk = ks->graph.at[k];
		buf_printf(b, "%s\"%s\": {\"inputs\": [", first ? "" : ",\n ", names[i]);
		first = false;
		for (int j = 0; j < in->n; j++) {
			const Input *x = input_named(g, in->at[j]);

			buf_printf(b, "%s%lld", j ? "," : "", x ? (long long)val_info(g, x->v)->offset : -1);
			if (gk && x && x - g->input.at < 32 && gk->addressed >> (x - g->input.at) & 1)
				addressed |= 1u << j;
		}
		buf_printf(b, "]");
		if (addressed)
			buf_printf(b, ", \"addressed\": %u", addressed);
		buf_printf(b, ", \"seed\": %lld, \"step\": %lld, \"rate\": %lld", (long long)special_input(g, IN_SEED),
		    (long long)special_input(g, IN_STEP), (long long)special_input(g, IN_RATE));
		if (special_input(g, IN_FIRST) >= 0)
			buf_printf(b, ", \"first\": %lld", (long long)special_input(g, IN_FIRST));
		if (g->multiple > 1) {
			buf_printf(b, ", \"multiple\": %lld", (long long)g->multiple);
			put_text(b, "multiple_at", where(m, a, g->multiple_loc));
		}
		put_results(b, g, a);
		put_sets(b, g);
		program_put_joins(b, g, gk, ks && ks->joins_early);
		buf_printf(b, ",\n  \"kernels\": [");
		put_kernels(b, m, a, g, gk ? gk->k.at : NULL, gk ? gk->k.n : 0);
		buf_printf(b, "]");
		put_races(b, m, a, gk);
		buf_printf(b, "}");
	}
	buf_printf(b, "}");
}

/* The graph whose call this loop op belongs to: for batch the call behind it, for emit the one that made its
 * operands. */
const char *
program_graph_of(const Graph *loop, uint32_t at)
{
	const Op *op = &loop->op.at[at];

	if (op->kind == OP_call)
		return attr_str(op, A_graph);
	if (op->kind == OP_emit)
		for (int k = 0; k < op->nin; k++) {
			const Op *def = val_op(loop, op->in[k]);

			if (def && def->kind == OP_call)
				return attr_str(def, A_graph);
		}
	if (op->kind == OP_emit)
		while (at-- > 0)
			if (loop->op.at[at].kind == OP_call)
				return attr_str(&loop->op.at[at], A_graph);
	for (uint32_t i = at; i < loop->op.n; i++)
		if (loop->op.at[i].kind == OP_call)
			return attr_str(&loop->op.at[i], A_graph);
	return loop->name;
}

static void
put_loops(Buf *b, const Module *m)
{
	bool first = true;

	buf_printf(b, ",\n\"loops\": {");
	for (uint32_t i = 0; i < m->graph.n; i++) {
		const Graph *g = m->graph.at[i];
		int n = 0;

		if (!g->is_loop)
			continue;
		buf_printf(b, "%s\"%s\": [", first ? "" : ",\n ", g->name);
		first = false;
		for (uint32_t k = 0; k < g->op.n; k++) {
			const Op *op = &g->op.at[k];

			if (op->dead)
				continue;
			buf_printf(b, "%s{\"op\": \"%s\"", n++ ? ", " : "", op_info[op->kind].name);
			if (op->kind == OP_repeat)
				buf_printf(b, ", \"what\": \"%s\", \"count\": %lld", attr_str(op, A_what),
				           (long long)attr_int(op, A_count));
			if (op->kind == OP_batch || op->kind == OP_call || op->kind == OP_emit)
				buf_printf(b, ", \"graph\": \"%s\"", program_graph_of(g, k));
			buf_printf(b, "}");
		}
		buf_printf(b, "]");
	}
	buf_printf(b, "}");
}

static void
put_buckets(Buf *b, const Module *m, const ProgramKernels *ks)
{
	if (!ks || !ks->nbucket)
		return;
	buf_printf(b, ",\n\"buckets\": [");
	for (uint32_t i = 0; i < ks->nbucket; i++) {
		const Bucket *k = &ks->bucket[i];
		const State *first = &m->state.at[k->first], *last = &m->state.at[k->last];

		buf_printf(b, "%s{\"offset\": %lld, \"bytes\": %lld, \"kernel\": %u", i ? ", " : "",
		           (long long)first->offset,
		           (long long)(last->offset + type_bytes(&last->type) - first->offset), (unsigned)k->kernel);
		put_number(b, "ready", k->ready);
		buf_printf(b, "}");
	}
	buf_printf(b, "]");
}

/* Does a contraction multiply numbers narrower than f32? */
static bool
has_narrow_products(const Module *m)
{
	for (uint32_t i = 0; i < m->graph.n; i++) {
		const Graph *g = m->graph.at[i];

		for (uint32_t k = 0; k < g->op.n; k++) {
			const Op *op = &g->op.at[k];
			DType t = op->nin ? (DType)val_type(g, op->in[0])->dtype : DT_none;

			if (!op->dead && op_has((OpKind)op->kind, T_CONTRACT | T_COMPOSITE) && dtype_is_float(t) &&
			    dtype_info[t].bytes < 4)
				return true;
		}
	}
	return false;
}

static void
put_figures(Buf *b, const Module *m, const ProgramKernels *ks)
{
	double flops = 0, bytes = 0, parameters = 0, parameter_bytes = 0;

	for (uint32_t i = 0; ks && i < ks->graph.n; i++) {
		const GraphKernels *gk = ks->graph.at[i];
		double times = 1;

		if (!strcmp(gk->g->name, "train"))
			times = (double)program_calls(m, NULL);
		else if (strcmp(gk->g->name, "update") != 0)
			continue;
		for (uint32_t k = 0; k < gk->k.n; k++) {
			flops += times * gk->k.at[k].flops;
			bytes += times * gk->k.at[k].bytes;
		}
	}
	for (uint32_t i = 0; i < m->state.n; i++)
		if (m->state.at[i].kind == ST_PARAM) {
			parameters += (double)type_elements(&m->state.at[i].type);
			parameter_bytes += (double)type_bytes(&m->state.at[i].type);
		}
	int64_t scratch = ks ? ks->scratch_bytes : m->scratch_bytes;

	buf_printf(b, ", \"memory_total\": %lld, \"arena_bytes\": %lld, \"scratch_bytes\": %lld, \"fault_offset\": 0",
	           (long long)(m->arena_bytes + scratch), (long long)m->arena_bytes, (long long)scratch);
	buf_printf(b, ", \"narrow\": %s", has_narrow_products(m) ? "true" : "false");
	put_number(b, "gflop_per_step", flops * 1e-9);
	put_number(b, "bytes_per_step", bytes);
	put_number(b, "parameters", parameters);
	put_number(b, "parameter_bytes", parameter_bytes);
}

void
program_json(Buf *b, const Module *m, const char *target, const char *arch, const ProgramKernels *ks)
{
	Arena *a = arena_new();
	Names in = model_inputs(m);
	const Graph *eval = real_graph(m, "eval");
	const char *at;

	buf_printf(b, "{\"version\": 4, \"model\": ");
	buf_json(b, m->name);
	put_text(b, "target", target);
	put_text(b, "arch", arch);
	put_settings(b, m);
	if (eval && eval->full_only) {
		at = where(m, a, eval->full_loc);
		put_text(b, "full_only",
		         arena_printf(a, "%s%s%s%s",
		                      eval->full_why ? eval->full_why : "a marked axis meets an unmarked one",
		                      *at ? " (" : "", at, *at ? ")" : ""));
	} else {
		put_text(b, "full_only", "");
	}
	if (eval && eval->one_batch) {
		at = where(m, a, eval->one_batch_loc);
		put_text(b, "one_batch",
		         arena_printf(a, "%s%s%s%s", eval->one_batch, *at ? " (" : "", at, *at ? ")" : ""));
	}
	put_figures(b, m, ks);
	put_inputs(b, m, &in);
	put_states(b, m);
	put_checks(b, m, a);
	put_graphs(b, m, a, &in, ks);
	put_loops(b, m);
	put_buckets(b, m, ks);
	buf_printf(b, "}\n");
	arena_free(a);
}
