/* joins.c: what the shards of a batch exchange before a step is over, by kernel.
 *
 * In: graph train of a module with train.shards > 1, with or without its kernels.   Out: its joins: ops all_reduce and
 * all_reduce.moments, in the order of their kernels, as the descriptor lists them. Where all of them depend on inputs
 * alone (labels that count, not parameters), they are early: the kernels that they need run first for every shard,
 * their own kernels then only take what has been joined. Otherwise a process's shards run in step from join to join. */
#include "codegen.h"
#include <string.h>

const Graph *
program_joining(const Module *m)
{
	int64_t shards;
	const Graph *g = NULL;

	program_calls(m, &shards);
	for (uint32_t i = 0; i < m->graph.n && shards > 1; i++)
		if (!m->graph.at[i]->is_loop && !strcmp(m->graph.at[i]->name, "train"))
			g = m->graph.at[i];
	for (uint32_t i = 0; g && i < g->op.n; i++)
		if (op_joins_shards(&g->op.at[i]))
			return g;
	return NULL;
}

enum { LOOKED = 1, BAD = 2 };

/* Whether v follows from inputs that are data, and constants; marks the groups that make it. */
static bool
follows(const Graph *g, Val v, bool *group, uint8_t *seen)
{
	const Op *op = val_op(g, v);
	bool good = true;

	if (!op || seen[v.id])
		return !op || seen[v.id] != BAD;
	seen[v.id] = LOOKED;
	if (op->kind == OP_load || op_joins_shards(op)) {
		seen[v.id] = BAD;
		return false;
	}
	if (op->group < 0 || group[op->group]) {
		for (int k = 0; good && k < op->nin; k++)
			good = follows(g, op->in[k], group, seen);
	} else {
		group[op->group] = true;
		for (uint32_t i = 0; good && i < g->op.n; i++)   /* a kernel reads what all of its ops do */
			for (int k = 0; good && !g->op.at[i].dead && g->op.at[i].group == op->group &&
			                k < g->op.at[i].nin; k++)
				good = g->op.at[i].kind != OP_store && follows(g, g->op.at[i].in[k], group, seen);
	}
	seen[v.id] = good ? LOOKED : BAD;
	return good;
}

void
program_mark_joins(const Module *m, ProgramKernels *ks, Arena *a)
{
	const Graph *g = program_joining(m);
	GraphKernels *gk = NULL;
	int n = 0;

	for (uint32_t i = 0; g && i < ks->graph.n; i++)
		gk = ks->graph.at[i]->g == g ? ks->graph.at[i] : gk;
	if (!gk)
		return;
	bool *early = arena_array(a, bool, g->group.n + 1);
	uint8_t *seen = arena_array(a, uint8_t, g->val.n);

	ks->joins_early = true;
	for (uint32_t k = 0; k < gk->k.n; k++)
		for (uint32_t last = 0, i = gk->k.at[k].group < 0 ? 0 : graph_group_ops(g, gk->k.at[k].group, &last);
		     i < last; i++)
			if (op_joins_shards(&g->op.at[i]) && g->op.at[i].group == gk->k.at[k].group) {
				gk->k.at[k].join = ++n;
				for (int j = 0; j < g->op.at[i].nin; j++)
					ks->joins_early &= follows(g, g->op.at[i].in[j], early, seen);
			}
	for (uint32_t k = 0; k < gk->k.n; k++)
		gk->k.at[k].early = ks->joins_early && gk->k.at[k].group >= 0 && early[gk->k.at[k].group];
	ks->njoin = n;
}

/* Where value v stands; an interpreter holds in the results' place what a shard brings, too. */
static long long
place(const Graph *g, Val v)
{
	return (long long)val_info(g, v)->offset;
}

static void
put_join(Buf *b, const Graph *g, const Op *op, int kernel, bool first)
{
	const Type *t = val_type(g, op->in[0]);

	buf_printf(b, "%s{\"kernel\": %d, \"what\": \"%s\", \"dtype\": \"%s\", \"count\": %lld, \"places\": [",
	           first ? "" : ", ", kernel, op->kind == OP_all_reduce ? "sum" : "moments", dtype_info[t->dtype].name,
	           (long long)type_elements(t));
	for (int k = 0; k < op->nin; k++)
		buf_printf(b, "%s[%lld,%lld]", k ? "," : "", place(g, kernel < 0 ? op->out[k] : op->in[k]),
		           place(g, op->out[k]));
	buf_printf(b, "]}");
}

void
program_put_joins(Buf *b, const Graph *g, const GraphKernels *gk, bool early)
{
	bool first = true;

	if (program_joining(g->module) != g)
		return;
	buf_printf(b, ", \"early\": %s, \"joins\": [", early ? "true" : "false");
	for (uint32_t k = 0; gk && k < gk->k.n; k++)
		for (uint32_t last = 0, i = gk->k.at[k].group < 0 ? 0 : graph_group_ops(g, gk->k.at[k].group, &last);
		     gk->k.at[k].join && i < last; i++)
			if (op_joins_shards(&g->op.at[i]) && g->op.at[i].group == gk->k.at[k].group) {
				put_join(b, g, &g->op.at[i], (int)k, first);
				first = false;
			}
	for (uint32_t i = 0; !gk && i < g->op.n; i++)
		if (op_joins_shards(&g->op.at[i])) {
			put_join(b, g, &g->op.at[i], -1, first);
			first = false;
		}
	buf_printf(b, "]");
}
