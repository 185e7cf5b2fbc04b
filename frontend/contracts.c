/* contracts.c: what `require` promises, held against the planned module.
 *
 * In: settings require.K (frontend/README.md), the plan, the passes' verdicts.   Out: an error at the contract's place
 * for each that is broken, with
 * the reason: the kernels that a layer fell into, and the rules that declined.
 * fused is judged in the training and the evaluation graph: for one layer on the forward ops alone, which the
 * evaluation graph has. Checks of indices are no part of a layer's computation: they have to stand before everything
 * else. */
#include "cmd.h"

#include <inttypes.h>
#include <stdlib.h>
#include <string.h>

typedef struct Contract { Module *m; const PassCtx *cx; Loc at; bool broken; } Contract;

bool
layer_under(const char *path, const char *prefix)
{
	size_t n = strlen(prefix);

	return path && !strncmp(path, prefix, n) && (!path[n] || path[n] == '.');
}

/* Does an op of layer b read what one of layer a computes, through views? */
bool
layer_reads(const Graph *g, const char *b, const char *a)
{
	for (uint32_t i = 0; i < g->op.n; i++)
		for (int k = 0; layer_under(g->op.at[i].path, b) && k < g->op.at[i].nin; k++) {
			const Op *from = val_op(g, g->op.at[i].in[k]);

			while (from && from->group < 0 && from->nin && !layer_under(from->path, a))
				from = val_op(g, from->in[0]);
			if (from && from->kind != OP_load && layer_under(from->path, a))
				return true;
		}
	return false;
}

/* "file.net:4:13" back to a location. */
static Loc
location(const Diags *d, const char *where)
{
	const char *col = strrchr(where, ':'), *line = col;

	while (line && line > where && *--line != ':')
		;
	if (!line || line == where)
		return (Loc){0};
	for (uint32_t i = 1; i < d->source.n; i++)
		if (strlen(d->source.at[i].name) == (size_t)(line - where) &&
		    !strncmp(d->source.at[i].name, where, (size_t)(line - where)))
			return (Loc){.file = (uint16_t)i,
			             .line = (uint32_t)strtoul(line + 1, NULL, 10),
			             .col = (uint16_t)strtoul(col + 1, NULL, 10)};
	return (Loc){0};
}

static void
note_declined(const Contract *c, const char *graph, const char *a, const char *b)
{
	int told = 0;

	for (uint32_t i = 0; i < c->cx->verdict.n && told < 3; i++) {
		const Verdict *v = &c->cx->verdict.at[i];
		bool between = (layer_under(v->a, a) && layer_under(v->b, b)) ||
		               (layer_under(v->a, b) && layer_under(v->b, a));

		if (v->fired || !between || strcmp(v->graph, graph) || strncmp(v->rule ? v->rule : "", "fuse", 4))
			continue;
		diag_note(c->m->diags, v->loc, "%s, graph %s: %s (%s) and %s (%s): %s", v->rule, v->graph, v->a,
		          v->opa ? v->opa : "", v->b, v->opb ? v->opb : "", v->why);
		told++;
	}
}

/* Forward ops of one layer in one kernel. */
static void
check_one(Contract *c, const char *layer)
{
	const Graph *g = module_graph(c->m, "eval");
	int32_t first = -1, other = -1;

	for (uint32_t i = 0; g && i < g->op.n && other < 0; i++) {
		const Op *op = &g->op.at[i];

		if (op->dead || op->group < 0 || op_has(op->kind, T_EFFECT) || !layer_under(op->path, layer))
			continue;
		if (first < 0)
			first = op->group;
		else if (op->group != first)
			other = op->group;
	}
	if (other < 0)
		return;
	c->broken = true;
	diag_error(c->m->diags, c->at,
	           "require fused(\"%s\"): its forward ops are in more than one kernel, such as %s and %s", layer,
	           g->group.at[first].name, g->group.at[other].name);
	note_declined(c, g->name, layer, layer);
}

static void
check_two(Contract *c, const char *a, const char *b)
{
	static const char *const graphs[] = {"train", "eval"};

	for (int k = 0; k < 2; k++) {
		const Graph *g = module_graph(c->m, graphs[k]);
		bool together = !g;

		for (uint32_t n = 0; g && n < g->group.n && !together; n++) {
			bool has_a = false, has_b = false;

			for (uint32_t i = 0; i < g->op.n; i++) {
				const Op *op = &g->op.at[i];

				if (op->dead || op->group != (int32_t)n)
					continue;
				has_a |= layer_under(op->path, a);
				has_b |= layer_under(op->path, b);
			}
			together = has_a && has_b;
		}
		if (together)
			continue;
		c->broken = true;
		diag_error(c->m->diags, c->at, "require fused(\"%s\", \"%s\"): no kernel of graph %s holds ops of both",
		           a, b, graphs[k]);
		note_declined(c, graphs[k], a, b);
		if (!layer_reads(g, a, b) && !layer_reads(g, b, a))
			diag_note(c->m->diags, c->at,
			          "in graph %s neither reads what the other computes: no rule could join them",
			          graphs[k]);
		return;
	}
}

/* Why the copies of a layer stay: what pass layout said. */
static void
note_copies(const Contract *c, const Graph *g, const char *path)
{
	for (uint32_t i = 0; i < c->cx->verdict.n; i++) {
		const Verdict *v = &c->cx->verdict.at[i];

		if (v->fired || strcmp(v->rule ? v->rule : "", "layout.transpose") || strcmp(v->graph, g->name) ||
		    strcmp(v->a ? v->a : "", path ? path : ""))
			continue;
		diag_note(c->m->diags, v->loc, "%s: %s", v->rule, v->why);
		return;
	}
}

/* A kernel that does nothing but move elements to another order. */
static void
check_transposes(Contract *c, const char *layer)
{
	for (uint32_t k = 0; k < c->m->graph.n; k++) {
		const Graph *g = c->m->graph.at[k];

		for (uint32_t n = 0; !g->is_loop && n < g->group.n; n++) {
			const Op *move = NULL;

			for (uint32_t i = 0; i < g->op.n; i++) {
				const Op *op = &g->op.at[i];

				if (op->dead || op->group != (int32_t)n)
					continue;
				if (!op_has(op->kind, T_VIEW)) {
					move = NULL;
					break;
				}
				move = op;
			}
			if (!move || (layer && !layer_under(move->path, layer)))
				continue;
			c->broken = true;
			diag_error(c->m->diags, c->at,
			           "require no_transpose: graph %s has kernel %s, which only moves elements (%s of "
			           "layer %s)",
			           g->name, g->group.at[n].name, op_info[move->kind].name,
			           move->path && *move->path ? move->path : "the model's body");
			note_copies(c, g, move->path);
			return;
		}
	}
}

/* What fills the plan: states, and the largest value in memory. */
static void
note_peak(const Contract *c)
{
	const ValInfo *largest = NULL;
	const Graph *of = NULL;
	int64_t states = 0;
	Buf s = {0}, v = {0}, type = {0};

	for (uint32_t i = 0; i < c->m->state.n; i++)
		states += type_bytes(&c->m->state.at[i].type);
	for (uint32_t k = 0; k < c->m->graph.n; k++)
		for (uint32_t i = 1; i < c->m->graph.at[k]->val.n; i++) {
			const ValInfo *x = &c->m->graph.at[k]->val.at[i];

			if (x->offset >= 0 && x->op != UINT32_MAX &&
			    (!largest || type_bytes(&x->type) > type_bytes(&largest->type))) {
				largest = x;
				of = c->m->graph.at[k];
			}
		}
	print_bytes(&s, states);
	diag_note(c->m->diags, c->at, "parameters and the other states take %s", s.at);
	if (largest) {
		print_bytes(&v, type_bytes(&largest->type));
		type_print(&type, &largest->type);
		diag_note(c->m->diags, of->op.at[largest->op].loc,
		          "the largest value is the %s here in graph %s, %s: %s",
		          op_info[of->op.at[largest->op].kind].name, of->name, type.at, v.at);
	}
	buf_free(&s);
	buf_free(&v);
	buf_free(&type);
}

static void
check_peak(Contract *c, int64_t limit)
{
	int64_t peak = c->m->arena_bytes + c->m->scratch_bytes;
	Buf has = {0}, wants = {0};

	if (peak <= limit)
		return;
	c->broken = true;
	print_bytes(&has, peak);
	print_bytes(&wants, limit);
	diag_error(c->m->diags, c->at,
	           "require peak_memory: the plan needs %s (%" PRId64
	           " bytes), the bound is %s: a smaller batch needs less",
	           has.at, peak, wants.at);
	note_peak(c);
	buf_free(&has);
	buf_free(&wants);
}

bool
contracts_hold(Module *m, const PassCtx *cx)
{
	bool broken = false;

	for (uint32_t i = 0; i < m->setting.n; i++) {
		const Setting *s = &m->setting.at[i];
		const Setting *layer = setting_arg(s, "layer"), *with = setting_arg(s, "with"),
		              *limit = setting_arg(s, "limit"), *where = setting_arg(s, "where");
		const char *a = layer && layer->kind == SET_STR ? layer->s : NULL,
		           *b = with && with->kind == SET_STR ? with->s : NULL;

		if (!s->name || strncmp(s->name, "require.", 8) || s->kind != SET_CALL)
			continue;
		Contract c = {.m = m, .cx = cx, .at = where && where->s ? location(m->diags, where->s) : (Loc){0}};

		if (!strcmp(s->s, "fused") && a && b)
			check_two(&c, a, b);
		else if (!strcmp(s->s, "fused") && a)
			check_one(&c, a);
		else if (!strcmp(s->s, "peak_memory") && limit)
			check_peak(&c, limit->i);
		else if (!strcmp(s->s, "no_transpose"))
			check_transposes(&c, a);
		/* deterministic: reductions are cut by shape, and nothing asks the clock: every program is. */
		broken |= c.broken;
	}
	return !broken;
}
