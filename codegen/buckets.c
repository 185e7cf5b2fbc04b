/* buckets.c: when gradients are complete and when their sums are read, by kernel.
 *
 * In: the kernels of graphs train and update in order, of a module with shards; the buckets of pass overlap, settings
 * bucket.N.   Out: for each bucket the last kernel of the group behind which it is complete, and graph update's first
 * kernel of the group before which its sums are waited for; for `mantou scale` the part of the graph's time at which
 * each gradient is. Derives again, from the kernels, that nobody touches a bucket's states behind the first one and
 * before the other: processes put sums in their place meanwhile. */
#include "codegen.h"
#include <string.h>

/* kernel: complete behind it; all: seconds of the graph */
typedef struct Item { uint32_t state; int64_t bytes; uint32_t kernel; double ready, all; } Item;

/* The buffer that a value stands in, through views that move nothing. */
static Val
place_of(const Graph *g, Val v)
{
	for (const Op *op = val_op(g, v); op && op->group < 0 && view_moves_nothing(g, op); op = val_op(g, v))
		v = op->in[0];
	return v;
}

/* By group: its last kernel. */
static uint32_t *
last_kernels(const GraphKernels *gk, Arena *a)
{
	uint32_t *last = arena_array(a, uint32_t, gk->g->group.n + 1);

	for (uint32_t k = 0; k < gk->k.n; k++)
		if (gk->k.at[k].group >= 0)
			last[gk->k.at[k].group] = k;
	return last;
}

/* The kernel behind which nobody touches the state any more. */
static uint32_t
complete_behind(const GraphKernels *gk, const uint32_t *last, const char *state)
{
	const Graph *g = gk->g;
	uint32_t behind = 0;
	Val v = NOVAL;

	for (uint32_t i = 0; i < g->op.n && !v.id; i++) {
		const Op *op = &g->op.at[i];

		if (op->dead || op->kind != OP_store || strcmp(attr_str(op, A_state), state) != 0)
			continue;
		v = place_of(g, op->in[0]);
		behind = op->group >= 0 ? last[op->group] : 0;
	}
	if (!v.id)
		return gk->k.n - 1;
	for (uint32_t i = 0; i < g->op.n; i++) {
		const Op *op = &g->op.at[i];
		bool touches = val_op(g, v) == op;

		for (int k = 0; !op->dead && op->group >= 0 && k < op->nin; k++)
			touches |= place_of(g, op->in[k]).id == v.id;
		if (!op->dead && op->group >= 0 && touches && last[op->group] > behind)
			behind = last[op->group];
	}
	return behind;
}

static GraphKernels *
kernels_of(const ProgramKernels *ks, const char *graph)
{
	for (uint32_t i = 0; i < ks->graph.n; i++)
		if (!strcmp(ks->graph.at[i]->g->name, graph))
			return ks->graph.at[i];
	return NULL;
}

/* The states of kind grad in the order in which backward makes them, and the seconds behind each kernel of graph train;
 * their number, 0 without shards. */
static uint32_t
gradients_of(const Module *m, const ProgramKernels *ks, Rates r, Arena *a, Item **item, double **behind)
{
	GraphKernels *gk = kernels_of(ks, "train");
	uint32_t n = 0, *last;
	int64_t shards;
	double at = 0;

	program_calls(m, &shards);
	if (shards < 2 || !gk || !gk->k.n)
		return 0;
	*item = arena_array(a, Item, m->state.n);
	*behind = arena_array(a, double, gk->k.n + 1);
	last = last_kernels(gk, a);
	for (uint32_t k = 0; k < gk->k.n; k++) {
		double compute = gk->k.at[k].flops / r.flops, memory = gk->k.at[k].bytes / r.bytes;

		(*behind)[k] = at += (compute > memory ? compute : memory) + r.start;
	}
	(*behind)[gk->k.n] = at;
	for (uint32_t i = m->state.n; i-- > 0;)
		if (m->state.at[i].kind == ST_GRAD) {
			uint32_t k = complete_behind(gk, last, m->state.at[i].name);

			(*item)[n++] = (Item){.state = i,
			                      .bytes = type_bytes(&m->state.at[i].type),
			                      .kernel = k,
			                      .ready = (*behind)[k],
			                      .all = at};
		}
	return n;
}

static const char *
argument(const Setting *s, const char *name)
{
	const Setting *x = setting_arg(s, name);

	if (!x || x->kind != SET_STR)
		bug("setting %s has no text %s", s->name, name);
	return x->s;
}

/* The kernel behind which the group is done; the graph's last one if it has none. */
static uint32_t
kernel_of(const GraphKernels *gk, const char *group)
{
	uint32_t k = gk->k.n;

	while (k-- > 0)
		if (gk->k.at[k].group >= 0 && !strcmp(gk->g->group.at[gk->k.at[k].group].name, group))
			return k;
	return gk->k.n - 1;
}

static Bucket
bucket_of(const Module *m, const GraphKernels *gk, const Setting *s)
{
	const char *first = argument(s, "first"), *last = argument(s, "last");
	const Setting *ready = setting_arg(s, "ready");
	Bucket b = {.kernel = kernel_of(gk, argument(s, "group")), .ready = ready ? ready->f : 0};

	while (b.first < m->state.n && strcmp(m->state.at[b.first].name, first))
		b.first++;
	while (b.last < m->state.n && strcmp(m->state.at[b.last].name, last))
		b.last++;
	if (b.first > b.last || b.last >= m->state.n)
		bug("setting %s: no states %s to %s", s->name, first, last);
	return b;
}

/* Does op read the state, or write it? */
static bool
op_touches(const Graph *g, const Op *op, const char *state)
{
	if (op->kind == OP_store && !strcmp(attr_str(op, A_state), state))
		return true;
	for (int k = 0; k < op->nin; k++) {
		const Op *by = val_op(g, place_of(g, op->in[k]));

		if (by && by->kind == OP_load && !strcmp(attr_str(by, A_state), state))
			return true;
	}
	return false;
}

/* The first kernel of graph update that reads one of the bucket's states; the number of kernels where none does. */
static uint32_t
first_reader(const Module *m, const GraphKernels *gk, const Bucket *b, Arena *a)
{
	bool *reads = arena_array(a, bool, gk->g->group.n + 1);
	uint32_t k = 0;

	for (uint32_t i = 0; i < gk->g->op.n; i++) {
		const Op *op = &gk->g->op.at[i];

		for (uint32_t s = b->first; s <= b->last && !op->dead; s++)
			if (op->group >= 0)
				reads[op->group] |= op_touches(gk->g, op, m->state.at[s].name);
			else if (op->kind == OP_store && op_touches(gk->g, op, m->state.at[s].name))
				return 0;            /* a copy by itself: it has no group to be found by */
	}
	while (k < gk->k.n && (gk->k.at[k].group < 0 || !reads[gk->k.at[k].group]))
		k++;
	return k;
}

/* Where the bucket's sums are waited for. */
static uint32_t
wait_of(const Module *m, const ProgramKernels *ks, const Bucket *b, const Setting *s, Arena *a)
{
	const GraphKernels *gk = kernels_of(ks, "update");
	const Setting *wait = setting_arg(s, "wait");
	uint32_t k = 0, first;

	if (!gk || !wait || wait->kind != SET_STR)
		return 0;
	first = first_reader(m, gk, b, a);
	while (k < gk->k.n && (gk->k.at[k].group < 0 || strcmp(gk->g->group.at[gk->k.at[k].group].name, wait->s) != 0))
		k++;
	if (k > first)
		bug("setting %s: kernel %s reads its states before they are waited for", s->name,
		    gk->k.at[first].name);
	return k;
}

void
program_mark_buckets(const Module *m, ProgramKernels *ks, Arena *a)
{
	Item *item;
	double *behind;
	GraphKernels *gk = kernels_of(ks, "train");
	uint32_t n = gradients_of(m, ks, (Rates){.flops = 1, .bytes = 1}, a, &item, &behind);
	const Setting *s;

	ks->bucket = arena_array(a, Bucket, n);
	while (ks->nbucket < n && (s = setting(m, arena_printf(a, "bucket.%u", (unsigned)ks->nbucket)))) {
		Bucket b = bucket_of(m, gk, s);

		for (uint32_t i = 0; i < n; i++)
			if (item[i].state >= b.first && item[i].state <= b.last && item[i].kernel > b.kernel)
				bug("setting %s: %s is touched behind kernel %s", s->name,
				    m->state.at[item[i].state].name, gk->k.at[b.kernel].name);
		b.wait = wait_of(m, ks, &b, s, a);
		ks->bucket[ks->nbucket++] = b;
	}
}

void
program_gradients(Buf *out, const Module *m, const ProgramKernels *ks, Rates r, Arena *a)
{
	Item *item;
	double *behind;
	uint32_t n = gradients_of(m, ks, r, a, &item, &behind);

	buf_printf(out, "[");
	for (uint32_t i = 0; i < n; i++)
		buf_printf(out, "%s[%lld, %.17g]", i ? ", " : "", (long long)item[i].bytes,
		           item[i].ready / item[i].all);
	buf_printf(out, "]\n");
}
