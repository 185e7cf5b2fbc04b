/* buckets.c: which gradients travel while the backward half still runs.
 *
 * In: graph train's kernels in order, of a module with shards; its states of kind grad, which plan put side by side.
 * Out: buckets, each a run of these states, so one range of the arena and nothing copied; the kernel behind which a
 * bucket is complete: the last one that writes one of its states, or reads what stands there (processes put sums in its
 * place from then on). Every state is in one bucket; buckets are in the order of their kernels.
 * Boundaries end the exchange soonest, as far as is predicted: with a bucket sent when it is complete and the one
 * before is through, at LINK_START seconds and LINK_BYTES bytes/s, and kernels at the target's rates. By dynamic
 * programming over the states from the last to the first, in which order backward makes them; exact for those. A
 * network that nobody described is taken to be slow: buckets that wait for it cost more than a message more. */
#include "codegen.h"
#include <string.h>

#define LINK_START 50e-6
#define LINK_BYTES 1e9

enum { MOST = 16 };

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

/* The cuts of n states: cut[i] is where the bucket that ends before i begins. Of the numbers of buckets up to MOST
 * the least whose exchange ends within `start` of the soonest: each costs its process a message and a look. */
void
buckets_cut(const double *size, const double *done, uint32_t n, double start, double rate, uint32_t *cut, Arena *a)
{
	double *end = arena_array(a, double, (MOST + 1) * (n + 1)), best = 1e300;
	uint32_t *from = arena_array(a, uint32_t, (MOST + 1) * (n + 1)), most = n < MOST ? n : MOST, k = 1;

	for (uint32_t i = 1; i <= n; i++)
		end[i] = 1e300;
	for (uint32_t c = 1; c <= most; c++) {
		double *now = end + c * (n + 1), *before = now - (n + 1);

		now[0] = 1e300;
		for (uint32_t i = 1; i <= n; i++) {
			double bytes = 0, ready = 0;

			now[i] = 1e300;
			for (uint32_t j = i; j-- > 0;) {
				bytes += size[j];
				ready = done[j] > ready ? done[j] : ready;
				double at = (before[j] > ready ? before[j] : ready) + start + bytes / rate;

				if (at < now[i]) {
					now[i] = at;
					from[c * (n + 1) + i] = j;
				}
			}
		}
		best = now[n] < best ? now[n] : best;
	}
	while (end[k * (n + 1) + n] > best + start)
		k++;
	for (uint32_t i = n; i > 0; i = cut[i])
		cut[i] = from[k-- * (n + 1) + i];
}

static void
sort_buckets(Bucket *b, uint32_t n)
{
	for (uint32_t i = 1; i < n; i++)
		for (uint32_t k = i; k > 0 && b[k].kernel < b[k - 1].kernel; k--) {
			Bucket t = b[k];

			b[k] = b[k - 1];
			b[k - 1] = t;
		}
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

void
program_mark_buckets(const Module *m, ProgramKernels *ks, Rates r, Arena *a)
{
	Item *item;
	double *behind;
	uint32_t n = gradients_of(m, ks, r, a, &item, &behind), *cut = arena_array(a, uint32_t, n + 1);
	double *size = arena_array(a, double, n + 1), *done = arena_array(a, double, n + 1);

	if (!n)
		return;
	for (uint32_t i = 0; i < n; i++) {
		size[i] = (double)item[i].bytes;
		done[i] = item[i].ready;
	}
	buckets_cut(size, done, n, LINK_START, LINK_BYTES, cut, a);
	ks->bucket = arena_array(a, Bucket, n);
	for (uint32_t i = n; i > 0; i = cut[i]) {
		Bucket *b = &ks->bucket[ks->nbucket++];

		*b = (Bucket){.first = item[i - 1].state, .last = item[cut[i]].state};
		for (uint32_t k = cut[i]; k < i; k++)
			b->kernel = item[k].kernel > b->kernel ? item[k].kernel : b->kernel;
		b->ready = behind[b->kernel] / item->all;
	}
	sort_buckets(ks->bucket, ks->nbucket);
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
