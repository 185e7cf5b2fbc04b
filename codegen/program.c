/* program.c: the descriptor of an executable: one JSON object, described in runtime/descriptor.md.
 *
 * In: a planned Module and its kernels (none for target ref, which runs the module itself).   Out: text. Everything
 * that the runtime knows of the model stands here: inputs, states, offsets, settings, loops, kernel tables, locations
 * for messages. */
#include "program.h"
#include <string.h>

/* ---------------------------------------------------------------- settings */
static const char *
setting_word(const Module *m, const char *name, const char *none)
{
	const Setting *s = setting(m, name);

	return s && s->s ? s->s : none;
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
		program_put_number(b, "rate", r ? r->f : 0);
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
			program_put_number(b, x->name, x->f);
		}
	}
	buf_printf(b, "}");
}

/* "name": value; nothing of one that is none. ProgramInputs of files are lists always. */
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
		program_put_text(b, "whole", whole->s);
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
	buf_printf(b, ", \"seed\": %lld, \"epochs\": %lld", (long long)program_setting(m, "train.seed", 0),
	           (long long)program_setting(m, "train.epochs", 1));
	if (sink && sink->kind == SET_INT)
		buf_printf(b, ", \"sink\": %lld", (long long)sink->i);
	else
		program_put_text(b, "sink", setting_word(m, "train.sink", "epoch"));
	buf_printf(b, ", \"accumulate\": %lld, \"shuffle\": %s", (long long)calls,
	           program_setting(m, "data.shuffle", 1) ? "true" : "false");
	if (shards > 1)
		buf_printf(b, ", \"shards\": %lld", (long long)shards);
	if (threads && threads->kind == SET_INT)
		buf_printf(b, ", \"threads_start\": %lld", (long long)threads->i);
	put_rate(b, m);
	put_reader(b, m);
	put_generate(b, m);
}

/* ---------------------------------------------------------------- figures */
static void
put_buckets(Buf *b, const Module *m, const ProgramKernels *ks)
{
	if (!ks || !ks->nbucket)
		return;
	buf_printf(b, ",\n\"buckets\": [");
	for (uint32_t i = 0; i < ks->nbucket; i++) {
		const Bucket *k = &ks->bucket[i];
		const State *first = &m->state.at[k->first], *last = &m->state.at[k->last];

		buf_printf(b, "%s{\"offset\": %lld, \"bytes\": %lld, \"kernel\": %u, \"wait\": %u", i ? ", " : "",
		           (long long)first->offset,
		           (long long)(last->offset + type_bytes(&last->type) - first->offset), (unsigned)k->kernel,
		           (unsigned)k->wait);
		program_put_number(b, "ready", k->ready);
		buf_printf(b, "}");
	}
	buf_printf(b, "]");
	const Setting *link = setting(m, LINK_SETTING);

	buf_printf(b, ",\n\"link\": {\"processes\": %lld", (long long)setting_number(link, "processes", 0));
	program_put_number(b, "start", setting_number(link, "start", LINK_START));
	program_put_number(b, "rate", setting_number(link, "rate", LINK_RATE));
	buf_printf(b, "}");
}

/* Does a contraction multiply elements narrower than f32? */
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
	program_put_number(b, "gflop_per_step", flops * 1e-9);
	program_put_number(b, "bytes_per_step", bytes);
	program_put_number(b, "parameters", parameters);
	program_put_number(b, "parameter_bytes", parameter_bytes);
}

void
program_json(Buf *b, const Module *m, const char *target, const char *arch, const ProgramKernels *ks)
{
	Arena *a = arena_new();
	ProgramInputs in = program_inputs(m);
	const Graph *eval = program_graph(m, "eval");
	const char *at;

	buf_printf(b, "{\"version\": 5, \"model\": ");
	buf_json(b, m->name);
	program_put_text(b, "target", target);
	program_put_text(b, "arch", arch);
	put_settings(b, m);
	if (eval && eval->full_only) {
		at = program_where(m, a, eval->full_loc);
		program_put_text(b, "full_only",
		         arena_printf(a, "%s%s%s%s",
		                      eval->full_why ? eval->full_why : "a marked axis meets an unmarked one",
		                      *at ? " (" : "", at, *at ? ")" : ""));
	} else {
		program_put_text(b, "full_only", "");
	}
	if (eval && eval->one_batch) {
		at = program_where(m, a, eval->one_batch_loc);
		program_put_text(b, "one_batch",
		         arena_printf(a, "%s%s%s%s", eval->one_batch, *at ? " (" : "", at, *at ? ")" : ""));
	}
	put_figures(b, m, ks);
	program_put_inputs(b, m, &in);
	program_put_states(b, m);
	program_put_checks(b, m, a);
	program_put_graphs(b, m, a, &in, ks);
	program_put_loops(b, m);
	put_buckets(b, m, ks);
	buf_printf(b, "}\n");
	arena_free(a);
}
