/* program_inputs.c: of the descriptor: inputs, states, checks.
 *
 * In: a planned Module.   Out: the lists of runtime/descriptor.md. */
#include "program.h"
#include <string.h>

const Graph *
program_graph(const Module *m, const char *name)
{
	for (uint32_t i = 0; i < m->graph.n; i++)
		if (!m->graph.at[i]->is_loop && !strcmp(m->graph.at[i]->name, name))
			return m->graph.at[i];
	return NULL;
}

const Input *
program_input(const Graph *g, const char *name)
{
	for (uint32_t i = 0; g && i < g->input.n; i++)
		if (g->input.at[i].kind == IN_DATA && !strcmp(g->input.at[i].name, name))
			return &g->input.at[i];
	return NULL;
}

/* The model's inputs: those of train, then what only the other graphs have. */
ProgramInputs
program_inputs(const Module *m)
{
	static const char *const order[] = {"train", "eval", "infer"};
	ProgramInputs r = {.n = 0};

	for (int k = 0; k < 3; k++) {
		const Graph *g = program_graph(m, order[k]);

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
		const Input *in = g->is_loop ? NULL : program_input(g, name);

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
	const Input *in = g ? program_input(g, name) : NULL;
	bool read = false;

	for (uint32_t i = 0; in && !read && i < g->op.n; i++)
		for (int k = 0; !g->op.at[i].dead && k < g->op.at[i].nin; k++)
			read |= g->op.at[i].in[k].id == in->v.id;
	for (uint32_t i = 0; in && i < g->result.n; i++)
		read |= g->result.at[i].v.id == in->v.id;
	return read;
}

void
program_put_inputs(Buf *b, const Module *m, const ProgramInputs *in)
{
	buf_printf(b, ",\n\"inputs\": [");
	for (int i = 0; i < in->n; i++) {
		const Op *check = input_check(m, in->at[i]);

		buf_printf(b, "%s{\"name\": ", i ? ",\n " : "");
		buf_json(b, in->at[i]);
		buf_printf(b, ", \"dtype\": \"%s\", \"shape\": ", dtype_info[in->type[i]->dtype].name);
		program_put_shape(b, in->type[i]);
		buf_printf(b, ", \"limit\": %lld", check ? (long long)attr_int(check, A_limit) : 0LL);
		if (check && attr_bool(check, A_has_ignore))
			buf_printf(b, ", \"ignore\": %lld", (long long)attr_int(check, A_ignore));
		buf_printf(b, ", \"infer\": %s}", input_read(program_graph(m, "infer"), in->at[i]) ? "true" : "false");
	}
	buf_printf(b, "]");
}

void
program_put_states(Buf *b, const Module *m)
{
	buf_printf(b, ",\n\"state\": [");
	for (uint32_t i = 0; i < m->state.n; i++) {
		const State *s = &m->state.at[i];

		buf_printf(b, "%s{\"name\": ", i ? ",\n " : "");
		buf_json(b, s->name);
		buf_printf(b, ", \"kind\": \"%s\"", text_state_kinds[s->kind]);
		program_put_type(b, &s->type);
		buf_printf(b, ", \"offset\": %lld, \"init\": \"%s\"", (long long)s->offset, text_inits[s->init]);
		program_put_number(b, "a", s->a);
		program_put_number(b, "b", s->b);
		buf_printf(b, "}");
	}
	buf_printf(b, "]");
}

/* All check ops of the module in order: a kernel's fault names its place in this list. */
void
program_put_checks(Buf *b, const Module *m, Arena *a)
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
			program_put_text(b, "where", program_where(m, a, op->loc));
			buf_printf(b, "}");
		}
	buf_printf(b, "]");
}
