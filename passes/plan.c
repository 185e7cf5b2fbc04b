/* plan.c: gives every buffer of the module its place in the one arena, before anything runs.
 *
 * In: scheduled graphs (ops of a group contiguous, kernels chosen).   Out: State.offset, ValInfo.offset, Group.workspace_offset,
 * Module.arena_bytes, stage planned. A value read by no other group and no result keeps offset -1: it lives in registers.
 * Layout: the fault record (64 bytes at 0), the states in order, then one region that all graphs share, since they never run
 * at the same time. Inside a graph: best fit over a free list along the schedule; results live to the graph's end, inputs
 * from its start. Views that move nothing share their operand's buffer. A stored value is computed straight into its state's
 * place where every reader of the old value is done by then; else it has its own buffer and the store copies.
 * Refuses nothing. plancheck.c checks the outcome independently. */
#include "pass.h"
#include "plan.h"
#include <string.h>

#define ALIGN 64
#define FAULT_BYTES 64

typedef struct Block { int64_t offset, bytes; } Block;

typedef VEC(uint32_t) IdList;

typedef struct Heap {
	Arena *arena;
	VEC(Block) free;         /* by offset; never adjacent */
	int64_t base, top, peak;
} Heap;

/* A buffer: values that share one place. */
typedef struct Life {
	int64_t bytes;
	int32_t from, to;        /* first and last schedule position */
	int64_t offset;
	bool fixed;              /* a state's own place */
	bool needed;             /* some other group or the outside reads it */
} Life;

static int64_t
round_up(int64_t n)
{
	return (n + ALIGN - 1) / ALIGN * ALIGN;
}

static int64_t
heap_take(Heap *h, int64_t bytes)
{
	int64_t best = -1, at;

	for (uint32_t i = 0; i < h->free.n; i++)
		if (h->free.at[i].bytes >= bytes && (best < 0 || h->free.at[i].bytes < h->free.at[best].bytes))
			best = i;
	if (best >= 0) {
		Block *b = &h->free.at[best];

		at = b->offset;
		b->offset += bytes;
		b->bytes -= bytes;
		if (!b->bytes) {
			memmove(b, b + 1, sizeof *b * (h->free.n - (uint32_t)best - 1));
			h->free.n--;
		}
		return at;
	}
	/* The last free block may reach the top: grow it. */
	if (h->free.n && h->free.at[h->free.n - 1].offset + h->free.at[h->free.n - 1].bytes == h->top)
		at = h->free.at[--h->free.n].offset;
	else
		at = h->top;
	h->top = at + bytes;
	if (h->top > h->peak)
		h->peak = h->top;
	return at;
}

static void
heap_give(Heap *h, int64_t offset, int64_t bytes)
{
	uint32_t lo = 0, hi = h->free.n;

	while (lo < hi) {
		uint32_t mid = (lo + hi) / 2;

		if (h->free.at[mid].offset < offset)
			lo = mid + 1;
		else
			hi = mid;
	}
	bool left = lo > 0 && h->free.at[lo - 1].offset + h->free.at[lo - 1].bytes == offset;
	bool right = lo < h->free.n && offset + bytes == h->free.at[lo].offset;

	if (left && right) {
		h->free.at[lo - 1].bytes += bytes + h->free.at[lo].bytes;
		memmove(&h->free.at[lo], &h->free.at[lo + 1], sizeof(Block) * (h->free.n - lo - 1));
		h->free.n--;
	} else if (left) {
		h->free.at[lo - 1].bytes += bytes;
	} else if (right) {
		h->free.at[lo].offset = offset;
		h->free.at[lo].bytes += bytes;
	} else {
		vec_push(h->arena, &h->free, ((Block){0, 0}));
		memmove(&h->free.at[lo + 1], &h->free.at[lo], sizeof(Block) * (h->free.n - 1 - lo));
		h->free.at[lo] = (Block){offset, bytes};
	}
}

bool
plan_is_alias(const Graph *g, const Op *op)
{
	if (op->kind != OP_reshape && op->kind != OP_stop_gradient)
		return false;
	if (op->group >= 0)
		return false;
	const Type *a = val_type(g, op->in[0]), *b = val_type(g, op->out[0]);

	return (type_is_plain(a) && type_is_plain(b)) || type_same(a, b);
}

/* Position of an op in the schedule: ops of one group share that of the group. Positions count groups, from 0. */
static int32_t *
schedule_positions(const Graph *g, Arena *a, int32_t *count)
{
	int32_t *pos = arena_array(a, int32_t, g->op.n), at = -1, group = -2;

	for (uint32_t i = 0; i < g->op.n; i++) {
		const Op *op = &g->op.at[i];

		if (op->group < 0 || op->group != group)
			at++;
		group = op->group;
		pos[i] = at;
	}
	*count = at + 1;
	return pos;
}

static void
plan_graph(Module *m, Graph *g, PassCtx *cx, int64_t base)
{
	Arena *a = cx->scratch;
	uint32_t n = g->val.n;
	int32_t npos, *pos = schedule_positions(g, a, &npos);
	uint32_t *root = arena_array(a, uint32_t, n);
	Life *life = arena_array(a, Life, n);
	int32_t *reader_group = arena_array(a, int32_t, n);  /* group of all readers so far, -2 none, -3 several */
	int64_t *last_read = arena_array(a, int64_t, m->state.n + 1); /* of the old value of each state */
	int32_t *state_of = arena_array(a, int32_t, n);      /* by root: load of state, -1 */

	for (uint32_t v = 0; v < n; v++) {
		root[v] = v;
		state_of[v] = -1;
		life[v].offset = -1;
		life[v].from = g->val.at[v].op == UINT32_MAX ? 0 : pos[g->val.at[v].op];
		life[v].to = life[v].from;
		reader_group[v] = -2;
	}
	for (uint32_t s = 0; s <= m->state.n; s++)
		last_read[s] = -1;
	for (uint32_t i = 0; i < g->input.n; i++) {
		uint32_t v = g->input.at[i].v.id;

		life[v].from = 0;
		life[v].needed = true;
	}
	for (uint32_t i = 0; i < g->op.n; i++) {
		Op *op = &g->op.at[i];

		if (op->kind == OP_load) {
			State *s = module_state(m, attr_str(op, A_state));
			uint32_t v = op->out[0].id;

			life[v].fixed = life[v].needed = true;
			life[v].offset = s->offset;
			state_of[v] = (int32_t)(s - m->state.at);
		} else if (plan_is_alias(g, op)) {
			root[op->out[0].id] = root[op->in[0].id];
		}
	}
	/* lifetimes */
	for (uint32_t i = 0; i < g->op.n; i++) {
		Op *op = &g->op.at[i];

		for (int k = 0; k < op->nin; k++) {
			uint32_t r = root[op->in[k].id];
			uint32_t def = g->val.at[r].op;

			if (life[r].to < pos[i])
				life[r].to = pos[i];
			if (plan_is_alias(g, op))
				continue;
			if (op->kind == OP_store || def == UINT32_MAX || op->group < 0 || g->op.at[def].group != op->group || root[op->in[k].id] != op->in[k].id)
				life[r].needed = true;
			if (state_of[r] >= 0 && last_read[state_of[r]] < pos[i])
				last_read[state_of[r]] = pos[i];
		}
	}
	/* where dce is off, kernels whose results nobody reads run all the same and need somewhere to write */
	bool *read = arena_array(cx->scratch, bool, g->val.n);

	for (uint32_t i = 0; i < g->op.n; i++)
		for (int k = 0; k < g->op.at[i].nin && !plan_is_alias(g, &g->op.at[i]); k++)
			read[root[g->op.at[i].in[k].id]] = true;
	for (uint32_t i = 0; i < g->op.n; i++)
		for (int k = 0; k < g->op.at[i].nout && g->op.at[i].group >= 0; k++)
			life[g->op.at[i].out[k].id].needed |= !read[g->op.at[i].out[k].id];
	for (uint32_t i = 0; i < g->result.n; i++) {
		uint32_t r = root[g->result.at[i].v.id];

		life[r].to = npos;
		life[r].needed = true;
		if (state_of[r] >= 0)
			last_read[state_of[r]] = npos;
	}
	/* stores: into the state's place where the old value is not read after the value's group */
	for (uint32_t i = 0; i < g->op.n; i++) {
		Op *op = &g->op.at[i];

		if (op->kind != OP_store)
			continue;
		uint32_t r = root[op->in[0].id], def = g->val.at[r].op;
		State *s = module_state(m, attr_str(op, A_state));
		int64_t k = s - m->state.at;
		bool produced = def != UINT32_MAX && !life[r].fixed && r == op->in[0].id;
		/* in the same group the old value may be read if the group is elementwise: each element before it is written */
		bool ordered = produced && (last_read[k] < life[r].from ||
			(last_read[k] == life[r].from && (op_info[g->op.at[def].kind].traits & T_EW) && plan_group_is_map(g, g->op.at[def].group)));

		if (ordered && type_same(&g->val.at[r].type, &s->type)) {
			life[r].fixed = true;
			life[r].offset = s->offset;
		}
	}
	/* places */
	Heap h = {.arena = a, .base = base, .top = base, .peak = base};
	IdList *start = arena_array(a, IdList, npos + 1), *ends = arena_array(a, IdList, npos + 1);

	for (uint32_t v = 1; v < n; v++)
		if (root[v] == v && life[v].needed && !life[v].fixed) {
			life[v].bytes = round_up(type_bytes(&g->val.at[v].type));
			vec_push(a, &start[life[v].from], v);
			vec_push(a, &ends[life[v].to], v);
		}
	int32_t *group_at = arena_array(a, int32_t, npos + 1);

	for (int32_t p = 0; p <= npos; p++)
		group_at[p] = -1;
	for (uint32_t i = 0; i < g->op.n; i++)
		group_at[pos[i]] = g->op.at[i].group;
	for (int32_t p = 0; p <= npos; p++) {
		for (uint32_t k = 0; k < start[p].n; k++)
			life[start[p].at[k]].offset = heap_take(&h, life[start[p].at[k]].bytes);
		if (group_at[p] >= 0 && g->group.at[group_at[p]].workspace > 0) {
			Group *gr = &g->group.at[group_at[p]];
			int64_t bytes = round_up(gr->workspace);

			gr->workspace_offset = heap_take(&h, bytes);
			heap_give(&h, gr->workspace_offset, bytes);
		}
		for (uint32_t k = 0; k < ends[p].n; k++)
			heap_give(&h, life[ends[p].at[k]].offset, life[ends[p].at[k]].bytes);
	}
	for (uint32_t v = 1; v < n; v++)
		g->val.at[v].offset = life[root[v]].needed ? life[root[v]].offset : -1;
	if (h.peak > m->arena_bytes)
		m->arena_bytes = h.peak;
}

/* Elementwise all through: every element is read before it is written, so an output may take an operand's place. */
bool
plan_group_is_map(const Graph *g, int32_t group)
{
	const char *k = group >= 0 ? g->group.at[group].kernel : NULL;

	return k && !strncmp(k, "map", 3);
}

bool
pass_plan(Module *m, PassCtx *cx)
{
	int64_t at = FAULT_BYTES;

	for (uint32_t i = 0; i < m->state.n; i++) {
		m->state.at[i].offset = at;
		at += round_up(type_bytes(&m->state.at[i].type));
	}
	m->arena_bytes = at;
	for (uint32_t i = 0; i < m->graph.n; i++)
		if (!m->graph.at[i]->is_loop)
			plan_graph(m, m->graph.at[i], cx, at);
	const char *error = plancheck(m, cx->scratch);

	if (error)
		bug("plan: %s", error);
	return true;
}
