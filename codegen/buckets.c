/* buckets.c: when gradients are complete, by kernel.
 *
 * In: graph train's kernels in order, of a module with shards; the buckets of pass overlap, settings bucket.N.   Out:
 * for each bucket the last kernel of the group behind which it is complete; for `mantou scale` the part of the graph's
 * time at which each gradient is. Derives again, from the kernels, that nobody touches a bucket's states behind its
 * kernel: processes put sums in their place from then on. */
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

/* The states of kind grad in the order in which backward makes them, and the seconds behind each kernel of graph train;
 * their number, 0 without shards. */
static uint32_t
gradients_of(const Module *m, const ProgramKernels *ks, Rates r, Arena *a, Item **item, double **behind)
{
	GraphKernels *gk = NULL;
	uint32_t n = 0, *last;
	int64_t shards;
	double at = 0;

	program_calls(m, &shards);
	for (uint32_t i = 0; i < ks->graph.n; i++)
		gk = strcmp(ks->graph.at[i]->g->name, "train") ? gk : ks->graph.at[i];
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

void
program_mark_buckets(const Module *m, ProgramKernels *ks, Arena *a)
{
	Item *item;
	double *behind;
	GraphKernels *gk = NULL;
	uint32_t n = gradients_of(m, ks, (Rates){.flops = 1, .bytes = 1}, a, &item, &behind);
	const Setting *s;

	for (uint32_t i = 0; i < ks->graph.n; i++)
		gk = strcmp(ks->graph.at[i]->g->name, "train") ? gk : ks->graph.at[i];
	ks->bucket = arena_array(a, Bucket, n);
	while (ks->nbucket < n && (s = setting(m, arena_printf(a, "bucket.%u", (unsigned)ks->nbucket)))) {
		Bucket b = bucket_of(m, gk, s);

		for (uint32_t i = 0; i < n; i++)
			if (item[i].state >= b.first && item[i].state <= b.last && item[i].kernel > b.kernel)
				bug("setting %s: %s is touched behind kernel %s", s->name,
				    m->state.at[item[i].state].name, gk->k.at[b.kernel].name);
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
