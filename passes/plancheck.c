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
	return view_moves_nothing(g, op) && op->group < 0 &&
	       val_info(g, op->in[0])->offset == val_info(g, op->out[0])->offset;
}

enum { KEPT = 1 << 30 }; /* owners: what a group keeps; values and states are fewer */

typedef struct Replay { const Module *m; const Graph *g; Arena *a; Ranges r; uint32_t *owner; /* who must hold a value's bytes */ } Replay;

static bool
held(const Replay *p, Val v)
{
	const ValInfo *i = val_info(p->g, v);

	return holds(&p->r, i->offset, i->offset + type_bytes(&i->type), p->owner[v.id]);
}

static void
claim_value(Replay *p, Val v)
{
	const ValInfo *i = val_info(p->g, v);

	claim(&p->r, i->offset, i->offset + type_bytes(&i->type), v.id);
}

static bool
made_once(const Graph *g, const Op *op)
{
	return op->group >= 0 && g->group.at[op->group].once && !op->dead;
}

/* What groups keep from call to call: claimed before the first op, or asked for behind the last. The workspace of a group that runs once is its own
 * as well, as that runs before everything. */
static const char *
replay_kept(Replay *p, bool begin)
{
	const Graph *g = p->g;

	for (uint32_t i = 0; i < g->group.n; i++) {
		const Group *gr = &g->group.at[i];
		int64_t from[2] = {gr->kept > 0 ? gr->kept_offset : 0, gr->once && gr->workspace > 0 ? gr->workspace_offset : 0}, bytes[2] = {gr->kept, gr->once ? gr->workspace : 0};

		for (int k = 0; k < 2; k++) {
			if (bytes[k] > 0 && (from[k] < 0 || from[k] + bytes[k] > p->m->arena_bytes))
				return arena_printf(p->a, "graph %s: what %s keeps has no place", g->name, gr->name);
			if (begin && bytes[k] > 0)
				claim(&p->r, from[k], from[k] + bytes[k], KEPT | i);
			else if (bytes[k] > 0 && !holds(&p->r, from[k], from[k] + bytes[k], KEPT | i))
				return arena_printf(p->a, "graph %s: what %s keeps is overwritten", g->name, gr->name);
		}
	}
	for (uint32_t i = 0; i < g->op.n; i++)
		for (int k = 0; k < g->op.at[i].nout && made_once(g, &g->op.at[i]); k++) {
			Val v = g->op.at[i].out[k];

			if (val_info(g, v)->offset < 0)
				continue;
			if (begin)
				claim_value(p, v);
			else if (!held(p, v))
				return arena_printf(p->a, "graph %s: %%%s is made once, and overwritten", g->name, val_info(g, v)->name);
		}
	return NULL;
}

/* States and inputs stand in memory before the first op. */
static const char *
replay_start(Replay *p)
{
	const Module *m = p->m;
	const Graph *g = p->g;

	for (uint32_t s = 0; s < m->state.n; s++)
		claim(&p->r, m->state.at[s].offset, m->state.at[s].offset + type_bytes(&m->state.at[s].type), STATE | s);
	for (uint32_t v = 0; v < g->val.n; v++)
		p->owner[v] = v;
	for (uint32_t i = 0; i < g->input.n; i++) {
		if (val_info(g, g->input.at[i].v)->offset < 0)
			return arena_printf(p->a, "graph %s: input %%%s has no place", g->name, val_info(g, g->input.at[i].v)->name);
		claim_value(p, g->input.at[i].v);
	}
	return replay_kept(p, true);
}

/* What ops [first, next) read from outside. */
static const char *
replay_reads(const Replay *p, uint32_t first, uint32_t next)
{
	const Graph *g = p->g;

	for (uint32_t i = first; i < next; i++) {
		const Op *op = &g->op.at[i];

		if (shares(g, op))
			continue; /* a view reads nothing; who reads the view is held to its owner */
		for (int k = 0; k < op->nin; k++) {
			const ValInfo *v = val_info(g, op->in[k]);

			if (v->op != UINT32_MAX && v->op >= first && v->op < next)
				continue;
			if (v->offset < 0)
				return arena_printf(p->a, "graph %s: %%%s is read by another group but has no place", g->name, v->name);
			if (!held(p, op->in[k]))
				return arena_printf(p->a, "graph %s: %%%s at %lld is overwritten before %s reads it", g->name, v->name, (long long)v->offset, op_info[op->kind].name);
		}
	}
	return NULL;
}

static const char *
replay_write(Replay *p, const Op *op, Val out)
{
	const ValInfo *v = val_info(p->g, out);

	if (v->offset < 0)
		return NULL;
	if (v->offset + type_bytes(&v->type) > p->m->arena_bytes)
		return arena_printf(p->a, "graph %s: %%%s ends beyond the arena", p->g->name, v->name);
	if (op->kind == OP_load) {
		const char *state = attr_str(op, A_state);

		p->owner[out.id] = STATE | (uint32_t)(module_state((Module *)(uintptr_t)p->m, state) - p->m->state.at);
		return held(p, out) ? NULL : arena_printf(p->a, "graph %s: load of %s after its store", p->g->name, state);
	}
	if (shares(p->g, op))
		p->owner[out.id] = p->owner[op->in[0].id];
	else if (!made_once(p->g, op))
		claim_value(p, out);
	return NULL;
}

/* A group's workspace overlaps nothing that the group names, and spoils whatever else lies there. */
static const char *
replay_workspace(Replay *p, const Group *gr, uint32_t first, uint32_t next)
{
	const Graph *g = p->g;
	int64_t from = gr->workspace_offset, to = from + gr->workspace;

	if (gr->workspace <= 0 || gr->once)
		return NULL;
	if (from < 0 || to > p->m->arena_bytes)
		return arena_printf(p->a, "graph %s: the workspace of %s has no place", g->name, gr->name);
	for (uint32_t i = first; i < next; i++) {
		const Op *op = &g->op.at[i];

		for (int k = 0; k < op->nout + op->nin; k++) {
			const ValInfo *v = val_info(g, k < op->nout ? op->out[k] : op->in[k - op->nout]);

			if (v->offset >= 0 && v->offset < to && v->offset + type_bytes(&v->type) > from)
				return arena_printf(p->a, "graph %s: the workspace of %s overlaps %%%s", g->name, gr->name, v->name);
		}
	}
	claim(&p->r, from, to, 0);
	return NULL;
}

/* All reads of a group come before its writes, but for its own values; elementwise outputs in place are plan.c's promise. */
static const char *
replay_group(Replay *p, uint32_t first, uint32_t next)
{
	const Graph *g = p->g;
	int32_t id = g->op.at[first].group;
	const char *error = replay_reads(p, first, next);

	for (uint32_t i = first; i < next; i++)
		for (int k = 0; !error && k < g->op.at[i].nout; k++)
			error = replay_write(p, &g->op.at[i], g->op.at[i].out[k]);
	return error || id < 0 ? error : replay_workspace(p, &g->group.at[id], first, next);
}

static const char *
check_graph(const Module *m, const Graph *g, Arena *a)
{
	Replay p = {.m = m, .g = g, .a = a, .r = {.arena = a}, .owner = arena_array(a, uint32_t, g->val.n)};
	const char *error = replay_start(&p);

	for (uint32_t first = 0, next; !error && first < g->op.n; first = next) {
		next = first + 1;
		while (g->op.at[first].group >= 0 && next < g->op.n && g->op.at[next].group == g->op.at[first].group)
			next++;
		error = replay_group(&p, first, next);
	}
	if (!error)
		error = replay_kept(&p, false);
	for (uint32_t i = 0; !error && i < g->result.n; i++) {
		Val v = g->result.at[i].v;

		if (val_info(g, v)->offset < 0 || !held(&p, v))
			return arena_printf(a, "graph %s: result %%%s does not live to the end", g->name, val_info(g, v)->name);
	}
	return error;
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
