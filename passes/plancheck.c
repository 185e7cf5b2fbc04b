/* plancheck.c: re-derives every buffer's lifetime from the schedule alone and rejects buffers that overlap.
 *
 * In: a planned module.   Out: NULL, or a sentence that names the two buffers. It shares no code with plan.c on purpose: one
 * mistake must not hide in both. Method: replay the schedule op by op over a map from byte ranges to the value they hold
 * (a balanced set would do; a sorted array of live ranges is enough), claim each result's bytes, and complain when an op
 * reads a value some of whose bytes belong to another one by now. */
#include "pass.h"
#include <string.h>

typedef struct Range { int64_t from, to; uint32_t owner; } Range; /* owner: value id, or STATE + index */
typedef struct Ranges { Arena *arena; VEC(Range) at; } Ranges;
#define STATE 0x80000000u

/* First range that ends after offset. */
static uint32_t
find(const Ranges *r, int64_t offset)
{
	uint32_t lo = 0, hi = r->at.n;

	while (lo < hi) {
		uint32_t mid = (lo + hi) / 2;

		if (r->at.at[mid].to <= offset)
			lo = mid + 1;
		else
			hi = mid;
	}
	return lo;
}

/* Whoever held bytes of [from, to) holds them no more. */
static void
claim(Ranges *r, int64_t from, int64_t to, uint32_t owner)
{
	uint32_t i = find(r, from), j = i;
	Range keep[2];
	int nkeep = 0;

	while (j < r->at.n && r->at.at[j].from < to)
		j++;
	if (j > i && r->at.at[i].from < from)
		keep[nkeep++] = (Range){r->at.at[i].from, from, r->at.at[i].owner};
	bool tail = j > i && r->at.at[j - 1].to > to;
	Range last = tail ? (Range){to, r->at.at[j - 1].to, r->at.at[j - 1].owner} : (Range){0, 0, 0};
	uint32_t want = (uint32_t)nkeep + 1 + tail, have = j - i;

	while (have < want) {
		vec_push(r->arena, &r->at, ((Range){0, 0, 0}));
		memmove(&r->at.at[j + 1], &r->at.at[j], sizeof(Range) * (r->at.n - 1 - j));
		have++, j++;
	}
	if (have > want) {
		memmove(&r->at.at[i + want], &r->at.at[j], sizeof(Range) * (r->at.n - j));
		r->at.n -= have - want;
	}
	if (nkeep)
		r->at.at[i++] = keep[0];
	r->at.at[i++] = (Range){from, to, owner};
	if (tail)
		r->at.at[i] = last;
}

static bool
holds(const Ranges *r, int64_t from, int64_t to, uint32_t owner)
{
	uint32_t i = find(r, from);

	return from == to || (i < r->at.n && r->at.at[i].from <= from && r->at.at[i].to >= to && r->at.at[i].owner == owner);
}

static bool
shares(const Graph *g, const Op *op)
{
	return (op->kind == OP_reshape || op->kind == OP_stop_gradient) && op->group < 0 && op->nin == 1 &&
	       val_info(g, op->in[0])->offset == val_info(g, op->out[0])->offset;
}

static const char *
check_graph(const Module *m, const Graph *g, Arena *a)
{
	Ranges r = {.arena = a};
	uint32_t *owner = arena_array(a, uint32_t, g->val.n); /* who must hold a value's bytes */

	for (uint32_t s = 0; s < m->state.n; s++)
		claim(&r, m->state.at[s].offset, m->state.at[s].offset + type_bytes(&m->state.at[s].type), STATE | s);
	for (uint32_t v = 0; v < g->val.n; v++)
		owner[v] = v;
	for (uint32_t i = 0; i < g->input.n; i++) {
		const ValInfo *v = val_info(g, g->input.at[i].v);

		if (v->offset < 0)
			return arena_printf(a, "graph %s: input %%%s has no place", g->name, v->name);
		claim(&r, v->offset, v->offset + type_bytes(&v->type), g->input.at[i].v.id);
	}
	/* All reads of a group come before its writes, but for its own values; elementwise outputs in place are plan.c's promise. */
	for (uint32_t first = 0, next; first < g->op.n; first = next) {
		next = first + 1;
		if (g->op.at[first].group >= 0)
			while (next < g->op.n && g->op.at[next].group == g->op.at[first].group)
				next++;
		for (uint32_t i = first; i < next; i++) {
			const Op *op = &g->op.at[i];

			if (shares(g, op))
				continue; /* a view reads nothing; who reads the view is held to its owner */
			for (int k = 0; k < op->nin; k++) {
				const ValInfo *v = val_info(g, op->in[k]);

				if (v->op != UINT32_MAX && v->op >= first && v->op < next)
					continue;
				if (v->offset < 0)
					return arena_printf(a, "graph %s: %%%s is read by another group but has no place", g->name, v->name);
				if (!holds(&r, v->offset, v->offset + type_bytes(&v->type), owner[op->in[k].id]))
					return arena_printf(a, "graph %s: %%%s at %lld is overwritten before %s reads it", g->name, v->name, (long long)v->offset, op_info[op->kind].name);
			}
		}
		for (uint32_t i = first; i < next; i++) {
			const Op *op = &g->op.at[i];

			for (int k = 0; k < op->nout; k++) {
				const ValInfo *v = val_info(g, op->out[k]);

				if (v->offset < 0)
					continue;
				if (v->offset + type_bytes(&v->type) > m->arena_bytes)
					return arena_printf(a, "graph %s: %%%s ends beyond the arena", g->name, v->name);
				if (op->kind == OP_load) {
					owner[op->out[k].id] = STATE | (uint32_t)(module_state((Module *)(uintptr_t)m, attr_str(op, A_state)) - m->state.at);
					if (!holds(&r, v->offset, v->offset + type_bytes(&v->type), owner[op->out[k].id]))
						return arena_printf(a, "graph %s: load of %s after its store", g->name, attr_str(op, A_state));
				} else if (shares(g, op)) {
					owner[op->out[k].id] = owner[op->in[0].id];
				} else {
					claim(&r, v->offset, v->offset + type_bytes(&v->type), op->out[k].id);
				}
			}
		}
		int32_t id = g->op.at[first].group;

		if (id >= 0 && g->group.at[id].workspace > 0) {
			const Group *gr = &g->group.at[id];

			if (gr->workspace_offset < 0 || gr->workspace_offset + gr->workspace > m->arena_bytes)
				return arena_printf(a, "graph %s: the workspace of %s has no place", g->name, gr->name);
			for (uint32_t i = first; i < next; i++)
				for (int k = 0; k < g->op.at[i].nout + g->op.at[i].nin; k++) {
					const Op *op = &g->op.at[i];
					const ValInfo *v = val_info(g, k < op->nout ? op->out[k] : op->in[k - op->nout]);

					if (v->offset >= 0 && v->offset < gr->workspace_offset + gr->workspace && v->offset + type_bytes(&v->type) > gr->workspace_offset)
						return arena_printf(a, "graph %s: the workspace of %s overlaps %%%s", g->name, gr->name, v->name);
				}
			claim(&r, gr->workspace_offset, gr->workspace_offset + gr->workspace, 0);
		}
	}
	for (uint32_t i = 0; i < g->result.n; i++) {
		const ValInfo *v = val_info(g, g->result.at[i].v);

		if (v->offset < 0 || !holds(&r, v->offset, v->offset + type_bytes(&v->type), owner[g->result.at[i].v.id]))
			return arena_printf(a, "graph %s: result %%%s does not live to the end", g->name, v->name);
	}
	return NULL;
}

const char *
plancheck(const Module *m, Arena *a)
{
	int64_t end = 64; /* the fault record comes first */

	for (uint32_t s = 0; s < m->state.n; s++) {
		if (m->state.at[s].offset < end || m->state.at[s].offset % 64)
			return arena_printf(a, "state %s at %lld overlaps what stands before it, or is not aligned", m->state.at[s].name, (long long)m->state.at[s].offset);
		end = m->state.at[s].offset + type_bytes(&m->state.at[s].type);
	}
	for (uint32_t i = 0; i < m->graph.n; i++)
		if (!m->graph.at[i]->is_loop) {
			const char *error = check_graph(m, m->graph.at[i], a);

			if (error)
				return error;
		}
	return NULL;
}
