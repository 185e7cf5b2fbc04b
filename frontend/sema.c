/* sema.c: from .net text to a typed Module: reads the file and what it uses, computes constants and settings,
 * elaborates the model's body twice, and puts loops around the graphs.
 *
 * In: a file name or text, -D definitions, what the command line overrides.   Out: a module at stage typed: settings,
 * states, graph train (N bound, no axis marked), graph eval (axes that follow the batch are marked), loops. NULL after
 * diagnostics. The body runs once with `training` true and once with false; what both find wrong is said once. Where a
 * body asks for
 * `training`, a third run with N open looks for decisions that depend on N: in the training graph N is a number, so
 * they would go unseen. */
#include <errno.h>
#include <limits.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include "sema_local.h"
#include "words.h"

/* ---------------------------------------------------------------- messages */

/* Has this been said already? Elaborating twice finds most mistakes twice, and types read differently where N is open:
 * what another elaboration said of a place is enough, within one the same text is. */
static bool
said_before(Sema *s, const char *kind, Loc at, const char *text)
{
	uint64_t h = hash_bytes(hash_bytes(HASH_START, kind, strlen(kind)), &at, sizeof at);
	const void *place = (const void *)(uintptr_t)(h | 1),
	           *whole = (const void *)(uintptr_t)(hash_bytes(h, text, strlen(text)) | 1);
	const uint32_t *phase = map_get(&s->said, place);

	if (!at.line ? map_get(&s->said, whole) != NULL : phase && (*phase != s->phase || map_get(&s->said, whole)))
		return true;
	map_put(s->arena, &s->said, place, s->phase);
	map_put(s->arena, &s->said, whole, s->phase);
	return false;
}

static void
note_calls(Sema *s)
{
	int shown = 0, depth = s->frame ? s->frame->depth : 0;

	for (const Frame *f = s->frame; f && f->item && f->item->kind == I_BLOCK; f = f->up) {
		/* The innermost and the outermost calls say most. */
		if (++shown > 8 && f->depth > 2) {
			if (shown == 9)
				diag_note(s->diags, f->call, "in block `%s`, called here (%d calls in all)",
				          f->item->name, depth);
			continue;
		}
		diag_note(s->diags, f->call, "in block `%s`, called here", f->item->name);
	}
}

void
sema_error(Sema *s, Loc at, const char *fmt, ...)
{
	va_list ap;
	const char *text;

	va_start(ap, fmt);
	text = arena_vprintf(s->arena, fmt, ap);
	va_end(ap);
	/* Errors without end, as in a long loop: nobody reads them. */
	if (++s->errors > 1000)
		s->stop = true;
	s->quiet = (s->phase == PHASE_PROBE && !strstr(text, "depends on N")) || said_before(s, "error", at, text);
	if (s->quiet)
		return;
	diag_error(s->diags, at, "%s", text);
	note_calls(s);
}

void
sema_warning(Sema *s, Loc at, const char *fmt, ...)
{
	va_list ap;
	const char *text;

	va_start(ap, fmt);
	text = arena_vprintf(s->arena, fmt, ap);
	va_end(ap);
	s->quiet = s->phase == PHASE_PROBE || said_before(s, "warning", at, text);
	if (!s->quiet) {
		diag_warning(s->diags, at, "%s", text);
		note_calls(s);
	}
}

void
sema_note(Sema *s, Loc at, const char *fmt, ...)
{
	va_list ap;

	if (s->quiet)
		return;
	va_start(ap, fmt);
	diag_note(s->diags, at, "%s", arena_vprintf(s->arena, fmt, ap));
	va_end(ap);
}

Arena *
sema_arena(Sema *s)
{
	return s->arena;
}

Build *
sema_build(Sema *s)
{
	return &s->build;
}

bool
sema_training(const Sema *s)
{
	return s->training;
}

int64_t
sema_shards(const Sema *s, int64_t *examples)
{
	if (examples)
		*examples = s->batch;
	return s->shards;
}

Val
sema_joined(Call *c, Val v)
{
	return c->training && c->sema->shards > 1 && v.id ? build_op(c->b, OP_all_reduce, &v, 1, NULL, NULL) : v;
}

int64_t
sema_joined_stats(const Call *c)
{
	return c->training && c->sema->batch_stats ? c->sema->shards : 1;
}

const char *
sema_path(Sema *s)
{
	return s->path;
}

/* ---------------------------------------------------------------- files and items */

static void read_text(Sema *s, const char *name, const char *text, size_t bytes, bool main_file);

/* A used file's real path decides whether it was read already. */
static void
read_use(Sema *s, const Item *it, const char *from)
{
	const char *slash = strrchr(from, '/');
	char *path = it->name[0] == '/' || !slash ? arena_strdup(s->arena, it->name)
	             : arena_printf(s->arena, "%.*s/%s", (int)(slash - from), from, it->name);
	char *real = realpath(path, NULL);
	struct stat st;
	const char *key;
	uint32_t *k;
	size_t bytes;
	char *text;

	if (!real || stat(real, &st) != 0 || !S_ISREG(st.st_mode)) {
		sema_error(s, it->loc, "use: cannot read %s: %s", path, real ? "not a file" : strerror(errno));
		free(real);
		s->lost = true;
		return;
	}
	key = intern(s->arena, real);
	free(real);
	k = map_get(&s->file_of, key);
	if (k && *k == 1)
		sema_error(s, it->loc, "use: %s is being read already: files use each other in a circle", path);
	if (k)
		return;
	if (++s->files > MAX_FILES || s->use_depth >= MAX_USE_DEPTH || st.st_size > MAX_FILE_BYTES) {
		sema_error(s, it->loc,
		           st.st_size > MAX_FILE_BYTES ? "use: %s has more than %d bytes"
		                                       : "use: %s: more than %d files use each other",
		           path,
		           st.st_size > MAX_FILE_BYTES     ? (int)MAX_FILE_BYTES
		           : s->use_depth >= MAX_USE_DEPTH ? MAX_USE_DEPTH
		                                           : MAX_FILES);
		s->lost = true;
		return;
	}
	text = file_read(path, &bytes);
	if (!text) {
		sema_error(s, it->loc, "use: cannot read %s: %s", path, strerror(errno));
		s->lost = true;
		return;
	}
	map_put(s->arena, &s->file_of, key, 1);
	s->use_depth++;
	read_text(s, path, arena_strndup(s->arena, text, bytes), bytes, false);
	s->use_depth--;
	map_put(s->arena, &s->file_of, key, 2);
	free(text);
}

static void
add_const(Sema *s, const Item *it)
{
	uint32_t *k = map_get(&s->const_of, it->name);

	if (!sema_name_is_free(s, it->name, it->loc))
		return;
	if (k) {
		sema_error(s, it->loc, "the constant `%s` is given twice", it->name);
		sema_note(s, s->constant.at[*k].loc, "it was given here");
		return;
	}
	map_put(s->arena, &s->const_of, it->name, s->constant.n);
	vec_push(s->arena, &s->constant, ((Const){.name = it->name, .loc = it->loc, .value = it->value}));
}

static void
add_block(Sema *s, const Item *it)
{
	uint32_t *k = map_get(&s->block_of, it->name);

	if (builtin_named(it->name)) {
		sema_error(s, it->loc, "`%s` is an operator: a block needs another name", it->name);
		return;
	}
	if (k) {
		sema_error(s, it->loc, "there is a block `%s` already", it->name);
		sema_note(s, s->block.at[*k].item->loc, "it stands here");
		return;
	}
	for (const Param *p = it->params.first; p; p = p->next) {
		sema_name_is_free(s, p->name, p->loc);
		for (const Param *q = it->params.first; q != p && s->errors < 100; q = q->next)
			if (q->name == p->name)
				sema_error(s, p->loc, "block `%s` has two parameters `%s`", it->name, p->name);
	}
	map_put(s->arena, &s->block_of, it->name, s->block.n);
	vec_push(s->arena, &s->block, ((Block){.name = it->name, .item = it}));
}

static void
add_model(Sema *s, const Item *it)
{
	if (s->model) {
		sema_error(s, it->loc, "a program has one model, `%s` is the second", it->name);
		sema_note(s, s->model_loc, "the first");
		return;
	}
	s->model = it;
	s->model_loc = it->loc;
}

static void
add_item(Sema *s, const Item *it, const char *file, bool main_file)
{
	if (!main_file && (it->kind == I_MODEL || it->kind == I_SETTINGS)) {
		sema_error(s, it->loc, "a file that is used holds blocks and constants only, no %s",
		           it->kind == I_MODEL ? "model" : it->name);
		return;
	}
	switch (it->kind) {
	case I_USE: read_use(s, it, file); break;
	case I_CONST: add_const(s, it); break;
	case I_BLOCK: add_block(s, it); break;
	case I_MODEL: add_model(s, it); break;
	case I_SETTINGS: vec_push(s->arena, &s->settings, it); break;
	}
}

static void
read_text(Sema *s, const char *name, const char *text, size_t bytes, bool main_file)
{
	Parser p = {.arena = s->arena, .diags = s->diags};

	p.file = diags_add_source(s->diags, name, text, bytes);
	if (main_file)
		s->main_file = p.file;
	s->hash = hash_bytes(s->hash, text, bytes);
	if (!parse_file(&p, text, bytes))
		s->lost = true;
	s->lost |= p.lost;
	s->settings_lost |= p.failed_settings;
	s->errors += p.failed;
	s->uses_training |= p.uses_training;
	for (const Item *it = p.items.first; it && !s->diags->full; it = it->next)
		add_item(s, it, name, main_file);
}

/* ---------------------------------------------------------------- constants */

/* Literals joined by operators; no names, no calls. */
static bool
is_literal(Sema *s, const Node *n)
{
	if (!n || !sema_enter(s, n->loc))
		return n == NULL;
	bool good = n->kind != N_NAME && n->kind != N_CALL && n->kind != N_ERROR;

	for (const Arg *a = n->args.first; a && good; a = a->next)
		good = is_literal(s, a->value);
	for (; good && n; n = n->a)
		good = n->kind != N_NAME && n->kind != N_CALL && is_literal(s, n->b);
	sema_leave(s);
	return good;
}

static void
define_one(Sema *s, const Define *d)
{
	uint32_t *k = map_get(&s->const_of, intern(s->arena, d->name));
	Parser p = {.arena = s->arena, .diags = s->diags};
	Node *n;

	p.file = diags_add_source(s->diags, arena_printf(s->arena, "-D %s", d->name), d->value, strlen(d->value));
	if (!k) {
		const char **names = arena_array(s->arena, const char *, s->constant.n), *near;

		for (uint32_t i = 0; i < s->constant.n; i++)
			names[i] = s->constant.at[i].name;
		near = suggest(d->name, names, (int)s->constant.n);
		if (!s->lost)
			sema_error(s, (Loc){0}, "-D %s: the program has no such constant%s%s%s", d->name,
			           near            ? "; did you mean `"
			           : s->constant.n ? "; it has "
			                           : ", nor any other",
			           near            ? near
			           : s->constant.n ? names_joined(s->arena, names, (int)s->constant.n)
			                           : "",
			           near ? "`?" : "");
		return;
	}
	n = parse_expr(&p, d->value, strlen(d->value));
	s->errors += p.failed;
	if (!n)
		return;
	if (!is_literal(s, n)) {
		sema_error(
		        s, n->loc,
		        "the value of -D is made of literals: numbers, strings, true, false, none, dtypes and lists");
		return;
	}
	s->constant.at[*k].value = n;
	s->hash = hash_bytes(hash_bytes(s->hash, d->name, strlen(d->name)), d->value, strlen(d->value));
}

/* Evaluates all, for this phase. */
static void
sema_constants(Sema *s)
{
	Graph *scratch = s->graph;

	for (uint32_t k = 0; k < s->constant.n; k++)
		s->constant.at[k].ready = false;
	s->frame = NULL;
	for (uint32_t k = 0; k < s->constant.n && sema_step(s, s->constant.at[k].loc); k++) {
		Const *c = &s->constant.at[k];

		c->now = sema_eval(s, c->value);
		c = &s->constant.at[k];
		c->ready = true;
		if (c->now.kind == V_TUPLE || value_holds_tensor(&c->now)) {
			sema_error(s, c->loc, "the constant `%s` is %s: a constant is one value known when compiling",
			           c->name, value_kind_name(&c->now));
			c->now = value_broken(c->loc);
		}
	}
	s->graph = scratch;
}

/* ---------------------------------------------------------------- inputs */

/* The first axis is the batch, the others are fixed: an example is of one size. */
static bool
input_type(Sema *s, const InputDecl *in, Type *t)
{
	Axis axes[MAX_RANK];
	int rank = 0;
	int64_t elements = 1;

	if (in->shape.n < 1 || in->shape.n > MAX_RANK) {
		sema_error(s, in->loc, "input `%s` has %d axes, needs 1 to %d, the first of them N", in->name,
		           in->shape.n, MAX_RANK);
		return false;
	}
	for (const Arg *a = in->shape.first; a; a = a->next, rank++) {
		Value v = sema_eval(s, a->value);
		bool is_n = value_follows_n(&v) && v.mul == 1 && v.div == 1;

		if (value_is_broken(&v))
			return false;
		if (!rank && !is_n) {
			sema_error(s, a->value->loc, "the first axis of input `%s` is N, the batch, here %s", in->name,
			           value_kind_name(&v));
			return false;
		}
		if (rank && (v.kind != V_INT || v.mul || v.i < 1)) {
			sema_error(s, a->value->loc, "an axis of input `%s` is a positive integer, here %s", in->name,
			           value_kind_name(&v));
			return false;
		}
		axes[rank] = axis(v.i);
		if (!rank && s->phase != PHASE_TRAIN)
			axes[rank] = (Axis){.n = v.i, .mul = 1, .div = 1};
		if (!mul_i64(elements, v.i, &elements) || elements > MAX_ELEMENTS) {
			sema_error(s, in->loc, "input `%s` has more than %lld elements", in->name,
			           (long long)MAX_ELEMENTS);
			return false;
		}
	}
	*t = type_of((DType)in->dtype, rank, axes);
	return true;
}

static void
declare_inputs(Sema *s)
{
	for (const InputDecl *in = s->model->inputs.first; in; in = in->next) {
		Type t;
		Value v = value_broken(in->loc);

		sema_name_is_free(s, in->name, in->loc);
		if (frame_find(s->frame, in->name))
			sema_error(s, in->loc, "two inputs are called `%s`", in->name);
		else if (s->graph->input.n >= MAX_INPUTS)
			sema_error(s, in->loc, "a model has at most %d inputs", MAX_INPUTS);
		else if (input_type(s, in, &t))
			v = value_tensor(graph_add_input(s->graph, t, in->name, IN_DATA), in->loc);
		frame_set(s, in->name, in->loc, v);
	}
}

/* ---------------------------------------------------------------- elaboration */

/* A metric of the whole set: its values are kept, the runtime computes it at the end (setting metric.NAME). */
static void
add_set_metric(Sema *s, const Var *metric)
{
	const Value *v = &metric->v;
	Setting *list = NULL;
	const Value *iou = v->at[v->n - 1].kind == V_LIST ? &v->at[v->n - 1] : NULL;
	int kept = iou ? v->n - 1 : v->n;

	if (iou) {
		list = arena_array(s->arena, Setting, 1);
		*list = (Setting){.kind = SET_LIST,
		                  .name = v->names[v->n - 1],
		                  .arg = arena_array(s->arena, Setting, iou->n),
		                  .nargs = iou->n};
	}
	for (int k = 0; iou && k < iou->n; k++)
		list->arg[k] = (Setting){.kind = SET_NUM, .f = iou->at[k].f};
	vec_push(s->module->arena, &s->module->setting,
	         ((Setting){.kind = SET_CALL,
	                    .name = arena_printf(s->arena, "metric.%s", metric->name),
	                    .s = v->s,
	                    .arg = list,
	                    .nargs = list ? 1 : 0}));
	s->build.loc = metric->loc;
	graph_add_result(s->graph, build_const(&s->build, DT_f32, 0), metric->name, RES_SET);
	for (int k = 0; k < kept; k++)
		graph_add_result(s->graph, v->at[k].tensor, arena_printf(s->arena, "%s.%d", metric->name, k), RES_KEPT);
}

static void
add_results(Sema *s)
{
	Val loss = s->loss.n ? s->loss.at[0] : NOVAL;

	s->build.path = "";
	for (uint32_t k = 1; k < s->loss.n; k++) {
		s->build.loc = s->loss_loc.at[k];
		loss = build(&s->build, OP_add, loss, s->loss.at[k]);
	}
	if (loss.id)
		graph_add_result(s->graph, loss, "loss", RES_LOSS);
	for (uint32_t k = 0; k < s->metric.n; k++)
		if (value_is_set_metric(&s->metric.at[k].v))
			add_set_metric(s, &s->metric.at[k]);
		else if (!val_type(s->graph, s->metric.at[k].v.tensor)->rank)
			graph_add_result(s->graph, s->metric.at[k].v.tensor, s->metric.at[k].name, RES_METRIC);
		else if (!s->training) /* of the set: the steps of training do not report it */
			graph_add_result(s->graph, s->metric.at[k].v.tensor, s->metric.at[k].name, RES_TABLE);
	for (uint32_t k = 0; k < s->output.n && !s->training; k++)
		graph_add_result(s->graph, s->output.at[k].v.tensor, s->output.at[k].name, RES_OUTPUT);
}

/* The training graph binds N. */
static void
drop_marks(Graph *g)
{
	for (uint32_t k = 1; k < g->val.n; k++)
		for (int i = 0; i < g->val.at[k].type.rank; i++)
			g->val.at[k].type.axis[i] = axis(g->val.at[k].type.axis[i].n);
	g->full_only = false;
	g->full_why = NULL;
	g->multiple = 1;
}

static void
start(Sema *s, Phase phase, const char *graph)
{
	s->phase = phase;
	s->training = phase != PHASE_EVAL;
	s->graph = module_add_graph(s->module, graph);
	s->graph->training = phase == PHASE_TRAIN;
	s->build = (Build){.g = s->graph, .path = ""};
	s->path = "";
	s->frame = NULL;
	s->steps = s->list_work = 0;
	s->walk = 0;
	s->loss.n = s->loss_loc.n = s->metric.n = s->output.n = s->store.n = s->average.n = 0;
	s->loss_broken = false;
}

/* One run of the model's body into a graph of its own. */
static void
elaborate(Sema *s, Phase phase)
{
	Module *scratch = module_new(s->arena, s->diags, "constants"), *real = s->module;
	const char *name = phase == PHASE_EVAL ? "eval" : "train";
	int errors = s->errors;

	/* Constants may be computed with operators, but never hold their tensors. */
	s->module = scratch;
	start(s, phase, "constants");
	sema_constants(s);
	s->module = real;
	start(s, phase, name);
	frame_push(s, s->model, s->model_loc, "", HASH_START);
	declare_inputs(s);
	sema_body(s, &s->model->body);
	if (phase == PHASE_TRAIN)
		s->training_failed |= s->errors != errors;
	if (s->errors == errors) {
		sema_stores(s);
		add_results(s);
		if (phase == PHASE_EVAL)
			sema_metrics(s);
	}
	if (phase == PHASE_TRAIN && !s->loss.n && !s->loss_broken && s->errors == errors && !s->frame->lost)
		sema_error(s, s->model_loc, "model `%s` has no loss: training needs one", s->model->name);
	if (phase == PHASE_TRAIN)
		drop_marks(s->graph);
	frame_pop(s);
}

/* Decisions that depend on N, in what only training runs: with N open, into a module that is thrown away. */
static void
probe(Sema *s)
{
	Sema t = *s;

	t.module = module_new(s->arena, s->diags, s->module->name);
	t.module->batch = s->batch;
	t.state_of = (Map){0};
	t.state.n = t.state.cap = 0;
	t.loss.cap = t.loss_loc.cap = t.metric.cap = t.output.cap = t.store.cap = t.require.cap = 0;
	t.loss.n = t.loss_loc.n = t.metric.n = t.output.n = t.store.n = t.require.n = 0;
	elaborate(&t, PHASE_PROBE);
	s->said = t.said;
	s->errors += s->diags->nerror > s->probe_errors;
}

static void
check_layers(Sema *s)
{
	const Setting *p = setting(s->module, "train.precision");

	sema_match_freeze(s);
	sema_match_factors(s);
	for (int k = 0; p && p->kind == SET_CALL && k < p->nargs; k++)
		for (int i = 0; i < p->arg[k].nargs; i++)
			sema_check_layer(s, s->mixed_loc, p->arg[k].name, p->arg[k].arg[i].s);
	for (uint32_t k = 0; k < s->require.n; k++) {
		Setting *r = &s->require.at[k].setting;

		for (int i = 0; i + 1 < r->nargs; i++)
			if (r->arg[i].kind == SET_STR)
				sema_check_layer(s, s->require.at[k].loc, r->s, r->arg[i].s);
		r->name = arena_printf(s->arena, "require.%u", k);
		vec_push(s->arena, &s->module->setting, *r);
	}
}

static Module *
compile_program(Sema *s, int64_t batch, int64_t shards, const char *precision)
{
	Module *m;

	if (!s->model) {
		if (!s->lost && !s->diags->full)
			sema_error(s, (Loc){.file = s->main_file, .line = 1, .col = 1}, "the program has no model");
		return NULL;
	}
	for (int k = 0; k < s->ndefine; k++)
		define_one(s, &s->define[k]);
	m = s->module = module_new(s->arena, s->diags, s->model->name);
	/* Constants come first without a batch: settings are made of them, and the batch is one. */
	s->module = module_new(s->arena, s->diags, "constants");
	start(s, PHASE_SETTINGS, "constants");
	sema_constants(s);
	s->module = m;
	settings_read(s, batch, shards, precision);
	m->stage = "typed";
	elaborate(s, PHASE_TRAIN);
	elaborate(s, PHASE_EVAL);
	if (s->uses_training) {
		s->probe_errors = s->diags->nerror;
		probe(s);
	}
	if (s->errors || s->diags->nerror || s->stop)
		return NULL;
	s->phase = PHASE_SETTINGS;
	settings_check_inputs(s);
	check_layers(s);
	sema_generate(s);
	if (s->errors)
		return NULL;
	sema_loops(s);
	m->source_hash = s->hash;
	return m;
}

/* Whatever kept silent on the way: a failure without a message would be the worst of all. */
static Module *
compile(Sema *s, int64_t batch, int64_t shards, const char *precision)
{
	Module *m = compile_program(s, batch, shards, precision);

	if (!m && !s->diags->nerror)
		diag_error(s->diags, s->model_loc, "the model cannot be elaborated");
	return m;
}

/* ---------------------------------------------------------------- doors */

Module *
frontend_compile_text(Arena *a, Diags *d, const char *name, const char *text, size_t bytes, const Define *define,
                      int ndefine, int64_t batch, int64_t shards, const char *precision)
{
	Sema *s = arena_new_of(a, Sema);

	*s = (Sema){.arena = a, .diags = d, .define = define, .ndefine = ndefine, .hash = HASH_START};
	builtins_init(a);
	read_text(s, name, text, bytes, true);
	return compile(s, batch, shards, precision);
}

Module *
frontend_compile(Arena *a, Diags *d, const char *file, const Define *define, int ndefine, int64_t batch, int64_t shards,
                 const char *precision)
{
	Sema *s = arena_new_of(a, Sema);
	struct stat st;
	size_t bytes;
	char *text, *real;

	if (stat(file, &st) != 0 || !S_ISREG(st.st_mode) || !(text = file_read(file, &bytes))) {
		diag_error(d, (Loc){0}, "cannot read %s: %s", file, errno ? strerror(errno) : "not a file");
		return NULL;
	}
	*s = (Sema){.arena = a, .diags = d, .define = define, .ndefine = ndefine, .hash = HASH_START};
	builtins_init(a);
	real = realpath(file, NULL);
	if (real)
		map_put(a, &s->file_of, intern(a, real), 1);
	free(real);
	read_text(s, file, arena_strndup(s->arena, text, bytes), bytes, true);
	free(text);
	return compile(s, batch, shards, precision);
}
