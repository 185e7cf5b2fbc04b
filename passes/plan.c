/* plan.c: gives every buffer of the module its place in the one arena, before anything runs.
 *
 * In: scheduled graphs (ops of a group contiguous, kernels chosen).   Out: State.offset, ValInfo.offset,
 * Group.workspace_offset, Module.arena_bytes, stage planned. A value read by no other group and no result keeps offset
 * -1: it lives in registers.
 * Layout: the fault record (64 bytes at 0), the states in order, then one region that all graphs share (where graphs
 * carry states from call to call, they have those first, which the other graphs know nothing of), since they never run
 * at the same time. Inside a graph: best fit over a free list along the schedule, or the largest first where that takes
 * less; results live to the graph's end, inputs from its start. Views that move nothing share their operand's buffer. A
 * stored value is computed straight into its state's place where every reader of the old value is done by then; else it
 * has its own buffer and the store copies. A group of a racing program has room for the largest of its kernels; where
 * that breaks the memory budget, those that ask for the most go, and are said.
 * Where the target asks for it (TARGET_spreads_values), large buffers begin at places of their own within a page: their
 * sizes are multiples of a page, and a CPU holds a load back that agrees with an earlier store in the last 12 bits of
 * their addresses, as the rows of one kernel's tensors would all the time.
 * What is made once and kept (Group.once, Group.prepacked) has a place of its own through the whole graph; where graphs
 * are called between the calls of another one, theirs lie behind what that one keeps.
 * Refuses nothing. plancheck.c checks the outcome independently. */
#include "pass.h"
#include "plan.h"
#include <stdlib.h>
#include <string.h>

#define ALIGN 64
/* Buffers of so many bytes are followed by a gap of 17 lines: 64 of them come upon all 64 lines of a page. */
#define LARGE (256 << 10)
#define GAP (17 * ALIGN)
#define FAULT_BYTES 64

typedef struct Block { int64_t offset, bytes; } Block;

typedef VEC(uint32_t) IdList;

/* Something that needs a place from one schedule position to another. */
typedef struct Buffer {
	int64_t bytes;
	int32_t from, to;
	int64_t at;
	int64_t *offset; /* where the place is written in the end */
} Buffer;

typedef VEC(Buffer) BufferList;

typedef struct Heap {
	Arena *arena;
	VEC(Block) free;         /* by offset; never adjacent */
	int64_t base, top, peak;
} Heap;

/* A buffer: values that share one place. */
typedef struct Life {
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
	return op->group < 0 && view_moves_nothing(g, op);
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

/* One graph being planned. Tables by Val.id unless they say otherwise. */
typedef struct Plan {
	Module *m;
	Graph *g;
	Arena *a;
	int32_t *pos, npos;      /* by op: position in the schedule */
	uint32_t *root;          /* the value whose buffer it shares */
	Life *life;              /* of roots */
	int32_t *state_of;       /* of roots: index of the state it is the old value of, -1 */
	int32_t *last_read;      /* by state: last position that reads the old value, -1 */
	bool tiles;              /* an epilogue may write where it reads: TARGET_updates_fuse */
	bool *norms; int32_t last_norm; /* by group: hold_norms; the position of the last of them */
} Plan;

static void
find_roots(Plan *p)
{
	Graph *g = p->g;

	for (uint32_t v = 0; v < g->val.n; v++) {
		p->root[v] = v;
		p->state_of[v] = -1;
		p->life[v].offset = -1;
		p->life[v].from = p->life[v].to = g->val.at[v].op == UINT32_MAX ? 0 : p->pos[g->val.at[v].op];
	}
	for (uint32_t s = 0; s < p->m->state.n; s++)
		p->last_read[s] = -1;
	for (uint32_t i = 0; i < g->input.n; i++)
		p->life[g->input.at[i].v.id].needed = true;
	for (uint32_t i = 0; i < g->op.n; i++) {
		Op *op = &g->op.at[i];

		if (op->kind == OP_load) {
			State *s = module_state(p->m, attr_str(op, A_state));
			uint32_t v = op->out[0].id;

			p->life[v].fixed = p->life[v].needed = true;
			p->life[v].offset = s->offset;
			p->state_of[v] = (int32_t)(s - p->m->state.at);
		} else if (plan_is_alias(g, op)) {
			p->root[op->out[0].id] = p->root[op->in[0].id];
		}
	}
}

/* Op reads operand k at its position: the buffer lives until then, and is needed unless the value stays inside one
 * group. */
static void
note_read(Plan *p, const Op *op, int k, int32_t at)
{
	uint32_t v = op->in[k].id, r = p->root[v], def = p->g->val.at[r].op;

	if (p->life[r].to < at)
		p->life[r].to = at;
	if (plan_is_alias(p->g, op))
		return;
	if (op->kind == OP_store || def == UINT32_MAX || op->group < 0 || p->g->op.at[def].group != op->group || r != v)
		p->life[r].needed = true;
	if (p->state_of[r] >= 0 && p->last_read[p->state_of[r]] < at)
		p->last_read[p->state_of[r]] = at;
}

static void
find_lifetimes(Plan *p)
{
	Graph *g = p->g;
	bool *read = arena_array(p->a, bool, g->val.n); /* of roots */

	for (uint32_t i = 0; i < g->op.n; i++) {
		const Op *op = &g->op.at[i];

		for (int k = 0; k < op->nin; k++) {
			note_read(p, op, k, p->pos[i]);
			if (!plan_is_alias(g, op))
				read[p->root[op->in[k].id]] = true;
		}
	}
	/* where dce is off, kernels whose results nobody reads run all the same and need somewhere to write */
	for (uint32_t i = 0; i < g->op.n; i++)
		for (int k = 0; k < g->op.at[i].nout && g->op.at[i].group >= 0; k++)
			p->life[g->op.at[i].out[k].id].needed |= !read[g->op.at[i].out[k].id];
	/* made before all else, and read in later calls too */
	for (uint32_t i = 0; i < g->op.n; i++)
		for (int k = 0; k < g->op.at[i].nout && g->op.at[i].group >= 0 && g->group.at[g->op.at[i].group].once;
		     k++) {
			p->life[g->op.at[i].out[k].id].from = 0;
			p->life[g->op.at[i].out[k].id].to = p->npos;
		}
	for (uint32_t i = 0; i < g->result.n; i++) {
		uint32_t r = p->root[g->result.at[i].v.id];

		p->life[r].to = p->npos;
		p->life[r].needed = true;
		if (p->state_of[r] >= 0)
			p->last_read[p->state_of[r]] = p->npos;
	}
}

/* Does whoever reads state s in the group of a contraction do so where it writes op's result? Its elementwise ops do,
 * of operands that lie as the result does; a view of the state that lies otherwise is another place. */
static bool
tiles_meet(const Plan *p, const Op *op, int32_t s)
{
	const Graph *g = p->g;
	const Type *t = val_type(g, op->out[0]);
	bool contracts = false;

	for (uint32_t last, i = graph_group_ops(g, op->group, &last); i < last; i++) {
		const Op *r = &g->op.at[i];

		contracts |= op_has((OpKind)r->kind, T_CONTRACT);
		for (int k = 0; k < r->nin; k++)
			if (p->state_of[p->root[r->in[k].id]] == s &&
			    !(op_has((OpKind)r->kind, T_EW) && type_same_place(val_type(g, r->in[k]), t)))
				return false;
	}
	return contracts;
}

/* Are elements of state s read, in the group of op, before op's result is written there? */
static bool
reads_first(const Plan *p, const Op *op, int32_t s)
{
	if (!op_has((OpKind)op->kind, T_EW) || op->group < 0)
		return false;
	return kernel_is_map(p->g->group.at[op->group].kernel) || (p->tiles && tiles_meet(p, op, s));
}

/* Does op make its result in operand 0's place, and read state s through no other operand? */
static bool
adds_in_place(const Plan *p, const Op *op, int32_t s)
{
	if (!op_has(op->kind, T_INPLACE) || p->state_of[p->root[op->in[0].id]] != s)
		return false;
	for (int k = 1; k < op->nin; k++)
		if (p->state_of[p->root[op->in[k].id]] == s)
			return false;
	return true;
}

/* Does the group make nothing but numbers of a gradient, and of no slots? */
static bool
reduces_to_numbers(const Graph *g, int group)
{
	bool any = false, gradient = false;

	for (uint32_t last, i = graph_group_ops(g, group, &last); i < last; i++) {
		const Op *op = &g->op.at[i];

		if (op->dead || op->group != group)
			continue;
		if (op->kind == OP_store)
			return false;
		for (int k = 0; k < op->nin; k++) {
			const Op *by = val_op(g, op->in[k]);

			while (by && op_has((OpKind)by->kind, T_VIEW) && by->nin)
				by = val_op(g, by->in[0]);
			const State *s = by && by->kind == OP_load
			                         ? module_state(g->module, attr_str(by, A_state))
			                         : NULL;

			if (s && s->kind == ST_SLOT && type_elements(&s->type) > 1)
				return false;
			gradient |= s && s->kind == ST_GRAD;
		}
		if (op_info[op->kind].red < 0)
			continue;
		if (type_elements(val_type(g, op->out[0])) != 1)
			return false;
		any = true;
	}
	return any && gradient;
}

/* --shard-optimizer: processes reduce their parts of the gradients, and tell each other all results at once: what joins
 * these runs behind the last group that reduces one. So what such groups read, and what they leave in their workspace,
 * lives until there. */
static void
hold_norms(Plan *p)
{
	const Graph *g = p->g;
	const Setting *cut = setting(p->m, CUT_SETTING);

	p->norms = arena_array(p->a, bool, g->group.n + 1);
	p->last_norm = -1;
	for (uint32_t i = 0; i < g->op.n && cut && !strcmp(g->name, "update"); i++) {
		int group = g->op.at[i].group;

		if (op_info[g->op.at[i].kind].red < 0 || group < 0 || !reduces_to_numbers(g, group))
			continue;
		p->norms[group] = true;
		p->last_norm = p->pos[i];
	}
	for (uint32_t i = 0; i < g->op.n; i++)
		for (int k = 0; g->op.at[i].group >= 0 && p->norms[g->op.at[i].group] && k < g->op.at[i].nin; k++) {
			Life *l = &p->life[p->root[g->op.at[i].in[k].id]];

			l->to = l->to < p->last_norm ? p->last_norm : l->to;
		}
}

/* Stores: into the state's place where the old value is not read after the value's group. */
static void
place_stores(Plan *p)
{
	Graph *g = p->g;

	for (uint32_t i = 0; i < g->op.n; i++) {
		Op *op = &g->op.at[i];

		if (op->kind != OP_store)
			continue;
		uint32_t r = p->root[op->in[0].id], def = g->val.at[r].op;
		Life *l = &p->life[r];
		State *s = module_state(p->m, attr_str(op, A_state));
		int32_t last = p->last_read[s - p->m->state.at];
		bool produced = def != UINT32_MAX && !l->fixed && r == op->in[0].id;
		int32_t index = (int32_t)(s - p->m->state.at);
		bool ordered = produced && (last < l->from || (last == l->from &&
		                                               (reads_first(p, &g->op.at[def], index) ||
		                                                adds_in_place(p, &g->op.at[def], index))));

		if (ordered && type_same(&g->val.at[r].type, &s->type)) {
			l->fixed = true;
			l->offset = s->offset;
		}
	}
}

/* Everything of the graph that needs a place of its own, in the order in which the schedule comes upon it. */
static BufferList
list_buffers(Plan *p)
{
	Graph *g = p->g;
	BufferList list = {0};
	IdList *start = arena_array(p->a, IdList, p->npos + 1);
	int32_t *group_at = arena_array(p->a, int32_t, p->npos + 1);

	for (uint32_t v = 1; v < g->val.n; v++)
		if (p->root[v] == v && p->life[v].needed && !p->life[v].fixed)
			vec_push(p->a, &start[p->life[v].from], v);
	for (uint32_t i = 0; i < g->group.n; i++) {
		Group *gr = &g->group.at[i];

		if (gr->prepacked > 0)
			vec_push(p->a, &list, ((Buffer){gr->prepacked, 0, p->npos, 0, &gr->prepacked_offset}));
		if (gr->once && gr->workspace > 0)
			vec_push(p->a, &list, ((Buffer){gr->workspace, 0, p->npos, 0, &gr->workspace_offset}));
	}
	for (int32_t at = 0; at <= p->npos; at++)
		group_at[at] = -1;
	for (uint32_t i = 0; i < g->op.n; i++)
		group_at[p->pos[i]] = g->op.at[i].group;
	for (int32_t at = 0; at <= p->npos; at++) {
		Group *gr = group_at[at] >= 0 ? &g->group.at[group_at[at]] : NULL;

		for (uint32_t k = 0; k < start[at].n; k++) {
			uint32_t v = start[at].at[k];
			int64_t bytes = type_bytes(&g->val.at[v].type);

			vec_push(p->a, &list, ((Buffer){bytes, at, p->life[v].to, 0, &p->life[v].offset}));
		}
		if (gr && gr->workspace > 0 && !gr->once)
			vec_push(p->a, &list,
			         ((Buffer){gr->workspace, at, p->norms[group_at[at]] ? p->last_norm : at, 0,
			                   &gr->workspace_offset}));
	}
	return list;
}

/* Along the schedule, best fit: what is read is then mostly what was written last. Returns the end of the last
 * buffer. */
static int64_t
pack_along(const Plan *p, BufferList *list, int64_t base)
{
	Heap h = {.arena = p->a, .base = base, .top = base, .peak = base};
	IdList *ends = arena_array(p->a, IdList, p->npos + 1);
	int32_t done = -1; /* the last position of which what ends there was given back */

	for (uint32_t i = 0; i < list->n; i++) {
		Buffer *b = &list->at[i];

		for (; done < b->from - 1; done++)
			for (uint32_t k = 0; k < ends[done + 1].n; k++) {
				const Buffer *gone = &list->at[ends[done + 1].at[k]];

				heap_give(&h, gone->at, gone->bytes);
			}
		b->at = heap_take(&h, b->bytes);
		vec_push(p->a, &ends[b->to], i);
	}
	return h.peak;
}

static int
larger_first(const void *x, const void *y)
{
	const Buffer *a = *(Buffer *const *)x, *b = *(Buffer *const *)y;

	if (a->bytes != b->bytes)
		return a->bytes < b->bytes ? 1 : -1;
	return a < b ? -1 : a > b;
}

/* The largest first, each at the lowest place that is free as long as it lives (Pisarchyk and Lee, "Efficient memory
 * management for deep neural net inference", 2020: greedy by size). Returns the end of the last buffer. */
static int64_t
pack_by_size(const Plan *p, BufferList *list, int64_t base)
{
	Buffer **order = arena_array(p->a, Buffer *, list->n), **placed = arena_array(p->a, Buffer *, list->n);
	int64_t peak = base;

	for (uint32_t i = 0; i < list->n; i++)
		order[i] = &list->at[i];
	qsort(order, list->n, sizeof *order, larger_first);
	for (uint32_t i = 0; i < list->n; i++) { /* placed: by place */
		Buffer *b = order[i];
		int64_t at = base;
		uint32_t k = i;

		for (uint32_t j = 0; j < i && placed[j]->at < at + b->bytes; j++) {
			int64_t end = placed[j]->at + placed[j]->bytes;

			if (placed[j]->from <= b->to && b->from <= placed[j]->to && end > at)
				at = end;
		}
		b->at = at;
		if (at + b->bytes > peak)
			peak = at + b->bytes;
		for (; k > 0 && placed[k - 1]->at > at; k--)
			placed[k] = placed[k - 1];
		placed[k] = b;
	}
	return peak;
}

/* Places by the schedule, or by size where that takes a thirty-second less. gap: bytes behind large buffers. */
static void
place_values(Plan *p, int64_t base, int64_t gap)
{
	BufferList list = list_buffers(p);
	int64_t along, by_size;

	for (uint32_t i = 0; i < list.n; i++)
		list.at[i].bytes = round_up(list.at[i].bytes) + (list.at[i].bytes >= LARGE ? gap : 0);
	by_size = pack_by_size(p, &list, base);
	along = pack_along(p, &list, base);
	if (by_size < along - along / 32)
		along = pack_by_size(p, &list, base);
	for (uint32_t i = 0; i < list.n; i++)
		*list.at[i].offset = list.at[i].at;
	if (along > p->m->arena_bytes)
		p->m->arena_bytes = along;
}

static void
plan_graph(Module *m, Graph *g, PassCtx *cx, int64_t base)
{
	Plan p = {.m = m, .g = g, .a = cx->scratch, .tiles = target_does(cx->target, TARGET_updates_fuse)};

	p.pos = schedule_positions(g, p.a, &p.npos);
	p.root = arena_array(p.a, uint32_t, g->val.n);
	p.life = arena_array(p.a, Life, g->val.n);
	p.state_of = arena_array(p.a, int32_t, g->val.n);
	p.last_read = arena_array(p.a, int32_t, m->state.n);
	find_roots(&p);
	find_lifetimes(&p);
	hold_norms(&p);
	place_stores(&p);
	place_values(&p, base, target_does(cx->target, TARGET_spreads_values) ? GAP : 0);
	for (uint32_t v = 1; v < g->val.n; v++)
		g->val.at[v].offset = p.life[p.root[v]].needed ? p.life[p.root[v]].offset : -1;
}

/* Behind what a planned graph keeps from call to call; `base` where it keeps nothing. */
static int64_t
kept_end(const Graph *g, int64_t base)
{
	for (uint32_t i = 0; i < g->group.n; i++) {
		const Group *gr = &g->group.at[i];
		int64_t packed = gr->prepacked > 0 ? gr->prepacked_offset + gr->prepacked : 0,
		        work = gr->once && gr->workspace > 0 ? gr->workspace_offset + gr->workspace : 0;

		base = packed > base ? packed : base;
		base = work > base ? work : base;
	}
	for (uint32_t i = 0; i < g->op.n; i++) {
		const Op *op = &g->op.at[i];

		for (int k = 0; op->group >= 0 && g->group.at[op->group].once && k < op->nout; k++) {
			const ValInfo *v = val_info(g, op->out[k]);
			int64_t end = v->offset < 0 ? 0 : v->offset + type_bytes(&v->type);

			base = end > base ? end : base;
		}
	}
	return round_up(base);
}

static void
plan_module(Module *m, PassCtx *cx)
{
	int64_t at = FAULT_BYTES, carried, between;

	for (uint32_t i = 0; i < m->state.n; i++) {
		if (m->state.at[i].kind == ST_CARRY)
			continue;
		m->state.at[i].offset = at;
		at += round_up(type_bytes(&m->state.at[i].type));
	}
	carried = at;
	for (uint32_t i = 0; i < m->state.n; i++) {
		if (m->state.at[i].kind != ST_CARRY)
			continue;
		m->state.at[i].offset = carried;
		carried += round_up(type_bytes(&m->state.at[i].type));
	}
	m->arena_bytes = carried;
	for (uint32_t i = 0; i < m->graph.n; i++)
		if (!m->graph.at[i]->is_loop && !graph_between(m->graph.at[i]))
			plan_graph(m, m->graph.at[i], cx, graph_carries(m->graph.at[i]) ? carried : at);
	between = module_graph(m, "step") ? kept_end(module_graph(m, "step"), carried) : carried;
	for (uint32_t i = 0; i < m->graph.n; i++)
		if (graph_between(m->graph.at[i]))
			plan_graph(m, m->graph.at[i], cx, between);
}

/* Of a racing program: takes out the kernel that asks for the most memory beyond what its group's own kernel needs.
 * False: none does. */
static bool
drop_variant(Module *m)
{
	Group *from = NULL;
	uint32_t which = 0;
	int64_t most = 0;

	for (uint32_t i = 0; i < m->graph.n; i++)
		for (uint32_t k = 0; k < m->graph.at[i]->group.n; k++) {
			Group *gr = &m->graph.at[i]->group.at[k];

			for (uint32_t v = 1; v < gr->variant.n; v++) {
				const GroupVariant *own = &gr->variant.at[0], *x = &gr->variant.at[v];
				int64_t more = (x->workspace > own->workspace ? x->workspace - own->workspace : 0) +
				               (x->prepacked > own->prepacked ? x->prepacked - own->prepacked : 0);

				if (more > most) {
					from = gr;
					which = v;
					most = more;
				}
			}
		}
	if (!from)
		return false;
	diag_warning(m->diags, (Loc){0},
	             "%s in place of %s does not race: with %lld more bytes the plan is beyond the memory budget",
	             from->variant.at[which].kernel, from->name, (long long)most);
	memmove(&from->variant.at[which], &from->variant.at[which + 1],
	        sizeof *from->variant.at * (from->variant.n - which - 1));
	from->variant.n--;
	group_room(from);
	return true;
}

bool
pass_plan(Module *m, PassCtx *cx)
{
	do
		plan_module(m, cx);
	while (cx->memory_budget && m->arena_bytes > cx->memory_budget && drop_variant(m));
	const char *error = plancheck(m, cx->scratch);

	if (error)
		bug("plan: %s", error);
	return true;
}
