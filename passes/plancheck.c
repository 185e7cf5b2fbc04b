/* plancheck.c: re-derives every buffer's lifetime from the schedule alone and rejects buffers that overlap.
 *
 * In: a planned module, of pass plan or of a text by anybody.   Out: NULL, or a sentence that names the two buffers. It
 * shares no code with plan.c on purpose: one mistake must not hide in both. Method: replay the schedule op by op over a
 * map from byte ranges to the value they hold (a balanced set would do; a sorted array of live ranges is enough), claim
 * each result's bytes, and complain when an op reads a value some of whose bytes belong to another one by now, when a
 * group writes what it reads unless it goes through both element by element, and when, at the end, the record of
 * faults, a state, or what is kept from call to call has lost its bytes. */
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

	return from == to ||
	       (i < r->at.n && r->at.at[i].from <= from && r->at.at[i].to >= to && r->at.at[i].owner == owner);
}

static bool
shares(const Graph *g, const Op *op)
{
	return view_moves_nothing(g, op) && op->group < 0 &&
	       val_info(g, op->in[0])->offset == val_info(g, op->out[0])->offset;
}

/* owners: the record of faults, what was copied to a state, what a group keeps; values and states are fewer */
enum { FAULTS = 1 << 28, STORED = 1 << 29, KEPT = 1 << 30 };
enum { FAULT_RECORD = 64, LINE = 64 }; /* bytes */

typedef struct Replay {
	const Module *m; const Graph *g; Arena *a;
	Ranges r;
	uint32_t *owner;         /* by value: who must hold its bytes */
	uint32_t *state;         /* by state: who must at the end */
} Replay;

/* Numbers of a text may be any. */
static bool
inside(const Module *m, int64_t offset, int64_t bytes)
{
	return offset >= 0 && bytes >= 0 && bytes <= m->arena_bytes && offset <= m->arena_bytes - bytes;
}

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

/* What groups keep from call to call: claimed before the first op, or asked for behind the last. The workspace of a
 * group that runs once is its own as well, as that runs before everything. */
static const char *
replay_kept(Replay *p, bool begin)
{
	const Graph *g = p->g;

	for (uint32_t i = 0; i < g->group.n; i++) {
		const Group *gr = &g->group.at[i];
		int64_t from[2] = {gr->prepacked > 0 ? gr->prepacked_offset : 0,
		                   gr->once && gr->workspace > 0 ? gr->workspace_offset : 0},
		        bytes[2] = {gr->prepacked, gr->once ? gr->workspace : 0};

		for (int k = 0; k < 2; k++) {
			if (bytes[k] > 0 && (!inside(p->m, from[k], bytes[k]) || from[k] % LINE))
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
			if (begin && !inside(p->m, val_info(g, v)->offset, type_bytes(val_type(g, v))))
				return arena_printf(p->a, "graph %s: %%%s ends beyond the arena", g->name,
				                    val_info(g, v)->name);
			if (begin)
				claim_value(p, v);
			else if (!held(p, v))
				return arena_printf(p->a, "graph %s: %%%s is made once, and overwritten", g->name,
				                    val_info(g, v)->name);
		}
	return NULL;
}

/* Of a graph that is called between the calls of step: what step makes once must stand behind it. It makes nothing once
 * itself. */
static const char *
replay_between(Replay *p, bool begin)
{
	const Graph *g = graph_between(p->g) ? module_graph(p->m, "step") : NULL;
	VEC(Range) kept = {0};

	for (uint32_t i = 0; g && i < p->g->group.n; i++)
		if (p->g->group.at[i].once || p->g->group.at[i].prepacked > 0)
			return arena_printf(p->a, "graph %s: %s is made once", p->g->name, p->g->group.at[i].name);
	for (uint32_t i = 0; g && i < g->group.n; i++) {
		const Group *gr = &g->group.at[i];

		if (gr->prepacked > 0)
			vec_push(p->a, &kept, ((Range){gr->prepacked_offset, gr->prepacked_offset + gr->prepacked, i}));
		if (gr->once && gr->workspace > 0)
			vec_push(p->a, &kept, ((Range){gr->workspace_offset, gr->workspace_offset + gr->workspace, i}));
	}
	for (uint32_t i = 0; g && i < g->op.n; i++)
		for (int k = 0; k < g->op.at[i].nout && made_once(g, &g->op.at[i]); k++) {
			const ValInfo *v = val_info(g, g->op.at[i].out[k]);

			if (v->offset >= 0)
				vec_push(p->a, &kept, ((Range){v->offset, v->offset + type_bytes(&v->type),
				                               (uint32_t)g->op.at[i].group}));
		}
	for (uint32_t i = 0; i < kept.n; i++) {
		const Range *r = &kept.at[i];

		if (begin)
			claim(&p->r, r->from, r->to, KEPT | r->owner);
		else if (!holds(&p->r, r->from, r->to, KEPT | r->owner))
			return arena_printf(p->a, "graph %s: what %s of graph step keeps is overwritten", p->g->name,
			                    g->group.at[r->owner].name);
	}
	return NULL;
}

/* What is carried stands in the graphs that carry. */
static bool
stands(const Replay *p, uint32_t s)
{
	return p->m->state.at[s].kind != ST_CARRY || graph_carries(p->g);
}

/* What no call may take from the next: the record of faults, and states but for what is stored to them. */
static const char *
replay_end(const Replay *p)
{
	const Module *m = p->m;

	if (!holds(&p->r, 0, FAULT_RECORD, FAULTS))
		return arena_printf(p->a, "graph %s: something overlaps the record of faults, bytes 0 to %d",
		                    p->g->name, FAULT_RECORD);
	for (uint32_t s = 0; s < m->state.n; s++)
		if (stands(p, s) &&
		    !holds(&p->r, m->state.at[s].offset, m->state.at[s].offset + type_bytes(&m->state.at[s].type),
		           p->state[s]))
			return arena_printf(p->a, "graph %s: state %s is overwritten", p->g->name, m->state.at[s].name);
	return NULL;
}

/* States and inputs stand in memory before the first op. */
static const char *
replay_start(Replay *p)
{
	const Module *m = p->m;
	const Graph *g = p->g;

	claim(&p->r, 0, FAULT_RECORD, FAULTS);
	for (uint32_t s = 0; s < m->state.n; s++) {
		if (!stands(p, s))
			continue;
		claim(&p->r, m->state.at[s].offset, m->state.at[s].offset + type_bytes(&m->state.at[s].type),
		      STATE | s);
		p->state[s] = STATE | s;
	}
	for (uint32_t v = 0; v < g->val.n; v++)
		p->owner[v] = v;
	for (uint32_t i = 0; i < g->input.n; i++) {
		if (val_info(g, g->input.at[i].v)->offset < 0)
			return arena_printf(p->a, "graph %s: input %%%s has no place", g->name,
			                    val_info(g, g->input.at[i].v)->name);
		if (!inside(m, val_info(g, g->input.at[i].v)->offset, type_bytes(val_type(g, g->input.at[i].v))))
			return arena_printf(p->a, "graph %s: input %%%s ends beyond the arena", g->name,
			                    val_info(g, g->input.at[i].v)->name);
		claim_value(p, g->input.at[i].v);
	}
	const char *error = replay_kept(p, true);

	return error ? error : replay_between(p, true);
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
				return arena_printf(p->a, "graph %s: %%%s is read by another group but has no place",
				                    g->name, v->name);
			if (!held(p, op->in[k]))
				return arena_printf(p->a, "graph %s: %%%s at %lld is overwritten before %s reads it",
				                    g->name, v->name, (long long)v->offset, op_info[op->kind].name);
		}
	}
	return NULL;
}

static const char *
replay_load(Replay *p, const Op *op, const ValInfo *v)
{
	const char *name = attr_str(op, A_state);
	const State *s = module_state((Module *)(uintptr_t)p->m, name);

	if (v->offset != s->offset)
		return arena_printf(p->a, "graph %s: %%%s is loaded at %lld, state %s lies at %lld", p->g->name,
		                    v->name, (long long)v->offset, name, (long long)s->offset);
	p->owner[op->out[0].id] = STATE | (uint32_t)(s - p->m->state.at);
	return held(p, op->out[0]) ? NULL
	       : arena_printf(p->a, "graph %s: load of %s after its store", p->g->name, name);
}

static const char *
replay_write(Replay *p, const Op *op, Val out)
{
	const ValInfo *v = val_info(p->g, out);

	if (v->offset < 0)
		return NULL;
	if (!inside(p->m, v->offset, type_bytes(&v->type)))
		return arena_printf(p->a, "graph %s: %%%s ends beyond the arena", p->g->name, v->name);
	if (op->kind == OP_load)
		return replay_load(p, op, v);
	if (op->group < 0 && !shares(p->g, op))
		return arena_printf(p->a, "graph %s: %%%s, which no kernel makes, does not lie where its operand does",
		                    p->g->name, v->name);
	if (shares(p->g, op))
		p->owner[out.id] = p->owner[op->in[0].id];
	else if (!made_once(p->g, op))
		claim_value(p, out);
	return NULL;
}

/* A value that was made in its state's place is the state; any other is copied there. */
static const char *
replay_store(Replay *p, const Op *op)
{
	const ValInfo *v = val_info(p->g, op->in[0]);
	const State *s = module_state((Module *)(uintptr_t)p->m, attr_str(op, A_state));
	uint32_t k = (uint32_t)(s - p->m->state.at);

	if (v->offset < 0)
		return arena_printf(p->a, "graph %s: %%%s is stored to %s but has no place", p->g->name,
		                    v->name, s->name);
	if (v->offset == s->offset && !type_same(&v->type, &s->type))
		return arena_printf(p->a, "graph %s: %%%s lies in the place of state %s, which is of another type",
		                    p->g->name, v->name, s->name);
	if (!held(p, op->in[0]))
		return arena_printf(p->a, "graph %s: %%%s at %lld is overwritten before it is stored to %s", p->g->name,
		                    v->name, (long long)v->offset, s->name);
	p->state[k] = v->offset == s->offset ? p->owner[op->in[0].id] : STORED | k;
	if (v->offset != s->offset)
		claim(&p->r, s->offset, s->offset + type_bytes(&s->type), STORED | k);
	return NULL;
}

static bool
contracts(const Graph *g, int32_t group)
{
	uint32_t last, i = graph_group_ops(g, group, &last);

	while (i < last && !op_has((OpKind)g->op.at[i].kind, T_CONTRACT))
		i++;
	return i < last;
}

/* Does the op that makes `owner` write it over its operand 0, which is what `reader` reads here, or does a kernel that
 * goes through both element by element? So does what follows a contraction in its tiles. */
static bool
in_place(const Replay *p, const Group *gr, uint32_t owner, const Op *reader, const ValInfo *read)
{
	const Graph *g = p->g;
	int64_t offset = read->offset, bytes = type_bytes(&read->type);

	if (owner >= g->val.n || g->val.at[owner].op == UINT32_MAX)
		return false;
	const ValInfo *v = &g->val.at[owner];
	const Op *op = &g->op.at[v->op];

	if (op->group < 0 || &g->group.at[op->group] != gr || v->offset != offset || type_bytes(&v->type) != bytes)
		return false;
	return kernel_is_map(gr->kernel) ||
	       (op_has((OpKind)op->kind, T_INPLACE) && val_info(g, op->in[0])->offset == offset) ||
	       (op_has((OpKind)op->kind, T_EW) && op_has((OpKind)reader->kind, T_EW) && contracts(g, op->group) &&
	        type_same_place(&v->type, &read->type));
}

/* A group's kernels read and write in an order of their own: what it reads and what it makes must not meet, but where
 * it works in place. */
static const char *
replay_apart(Replay *p, const Group *gr, uint32_t first, uint32_t next)
{
	const Graph *g = p->g;

	for (uint32_t i = first; i < next; i++) {
		const Op *op = &g->op.at[i];

		for (int k = 0; k < op->nout; k++)
			if (val_info(g, op->out[k])->offset >= 0 && !held(p, op->out[k]))
				return arena_printf(p->a, "graph %s: %%%s overlaps something else that %s makes",
				                    g->name, val_info(g, op->out[k])->name, gr->name);
		for (int k = 0; k < op->nin; k++) {
			const ValInfo *v = val_info(g, op->in[k]);

			if ((v->op != UINT32_MAX && v->op >= first && v->op < next) || held(p, op->in[k]))
				continue;
			uint32_t at = find(&p->r, v->offset);

			if (at >= p->r.at.n || !in_place(p, gr, p->r.at.at[at].owner, op, v))
				return arena_printf(p->a, "graph %s: %s writes over %%%s while it reads it", g->name,
				                    gr->name, v->name);
		}
	}
	return NULL;
}

/* A group's workspace overlaps nothing that the group names, and spoils whatever else lies there. */
static const char *
replay_workspace(Replay *p, const Group *gr, uint32_t first, uint32_t next)
{
	const Graph *g = p->g;
	int64_t from = gr->workspace_offset;

	if (gr->workspace <= 0 || gr->once)
		return NULL;
	if (!inside(p->m, from, gr->workspace) || from % LINE)
		return arena_printf(p->a, "graph %s: the workspace of %s has no place", g->name, gr->name);
	int64_t to = from + gr->workspace;

	for (uint32_t i = first; i < next; i++) {
		const Op *op = &g->op.at[i];

		for (int k = 0; k < op->nout + op->nin; k++) {
			const ValInfo *v = val_info(g, k < op->nout ? op->out[k] : op->in[k - op->nout]);

			if (v->offset >= 0 && v->offset < to && v->offset + type_bytes(&v->type) > from)
				return arena_printf(p->a, "graph %s: the workspace of %s overlaps %%%s", g->name,
				                    gr->name, v->name);
		}
	}
	claim(&p->r, from, to, 0);
	return NULL;
}

/* Stores that need a copy come after all else. */
static const char *
replay_group(Replay *p, uint32_t first, uint32_t next)
{
	const Graph *g = p->g;
	int32_t id = g->op.at[first].group;
	const char *error = replay_reads(p, first, next);

	for (uint32_t i = first; i < next; i++)
		for (int k = 0; !error && k < g->op.at[i].nout; k++)
			error = replay_write(p, &g->op.at[i], g->op.at[i].out[k]);
	if (!error && id >= 0 && !g->group.at[id].once)
		error = replay_apart(p, &g->group.at[id], first, next);
	if (!error && id >= 0)
		error = replay_workspace(p, &g->group.at[id], first, next);
	for (uint32_t i = first; !error && i < next; i++)
		if (g->op.at[i].kind == OP_store && !g->op.at[i].dead)
			error = replay_store(p, &g->op.at[i]);
	return error;
}

static const char *
check_graph(const Module *m, const Graph *g, Arena *a)
{
	Replay p = {.m = m, .g = g, .a = a, .r = {.arena = a}, .owner = arena_array(a, uint32_t, g->val.n),
	            .state = arena_array(a, uint32_t, m->state.n)};
	const char *error = replay_start(&p);

	for (uint32_t first = 0, next; !error && first < g->op.n; first = next) {
		next = first + 1;
		while (g->op.at[first].group >= 0 && next < g->op.n && g->op.at[next].group == g->op.at[first].group)
			next++;
		error = replay_group(&p, first, next);
	}
	if (!error)
		error = replay_kept(&p, false);
	if (!error)
		error = replay_between(&p, false);
	if (!error)
		error = replay_end(&p);
	for (uint32_t i = 0; !error && i < g->result.n; i++) {
		Val v = g->result.at[i].v;

		/* what lies in a state's place is the state, also when a copy has been stored there since: plan has no
		 * other place for it */
		uint32_t s = p.owner[v.id] & ~STATE;
		bool is_state = p.owner[v.id] & STATE && s < m->state.n && p.state[s] == (STORED | s);

		if (val_info(g, v)->offset < 0 || (!is_state && !held(&p, v)))
			return arena_printf(a, "graph %s: result %%%s does not live to the end", g->name,
			                    val_info(g, v)->name);
	}
	return error;
}

const char *
plancheck(const Module *m, Arena *a)
{
	int64_t end = FAULT_RECORD;

	if (m->arena_bytes < FAULT_RECORD)
		return arena_printf(a, "an arena of %lld bytes does not hold the record of faults, %d",
		                    (long long)m->arena_bytes, FAULT_RECORD);
	/* what is carried lies behind all else */
	for (uint32_t k = 0; k < 2 * m->state.n; k++) {
		const State *st = &m->state.at[k % m->state.n];

		if ((st->kind == ST_CARRY) != (k >= m->state.n))
			continue;
		if (st->offset < end || st->offset % LINE)
			return arena_printf(a, "state %s at %lld overlaps what stands before it, or is not aligned",
			                    st->name, (long long)st->offset);
		if (!inside(m, st->offset, type_bytes(&st->type)))
			return arena_printf(a, "state %s ends beyond the arena", st->name);
		end = st->offset + type_bytes(&st->type);
	}
	for (uint32_t i = 0; i < m->graph.n; i++)
		if (!m->graph.at[i]->is_loop) {
			const char *error = check_graph(m, m->graph.at[i], a);

			if (error)
				return error;
		}
	return NULL;
}
