/* info.c: what this program is: sizes, inputs, outputs, kernels; as text or as one JSON object. */
#include "host.h"

#include <stdlib.h>
#include <string.h>

static void
info_tensor_json(const RtTensor *t, const char *before)
{
	printf("%s{\"name\": ", before);
	rt_json_text(stdout, t->name);
	printf(", \"dtype\": \"%s\", \"shape\": [", rt_dtype[t->dtype].name);
	for (int i = 0; i < t->rank; i++)
		printf(i ? ", %lld" : "%lld", (long long)t->shape[i]);
	printf("]}");
}

static void
info_string(const char *key, const char *s)
{
	printf("\"%s\": ", key);
	rt_json_text(stdout, s);
	printf(", ");
}

/* The arch of every code object, in the order in which they are tried. */
static void
info_archs(const RtHost *h, bool json)
{
	for (int i = 0; i < h->nobjects; i++) {
		char why[128];
		JsonDoc *doc;
		const Json *o =
		        rt_json_parse(h->objects[i]->program, strlen(h->objects[i]->program), &doc, why, sizeof why);

		if (i)
			printf(", ");
		if (json)
			rt_json_text(stdout, rt_json_str(o, "arch", ""));
		else
			printf("%s%s", rt_json_str(o, "arch", ""),
			       h->nobjects > 1 && h->objects[i] == h->object && !h->object->device ? " (runs here)"
			                                                                           : "");
		rt_json_free(doc);
	}
}

/* What a process holds beside data sets and scratch memory. sums: of shards that wait for others; arrives: of other
 * ranks; joins: what shards exchange within a step. Bytes. */
typedef struct Room { int64_t shards, arena, sums, arrives, joins; } Room;

static int64_t
room_bytes(const Room *r)
{
	return r->arena + r->sums + r->arrives + r->joins;
}

/* The rank of opt.processes that needs most: each opens what a run would, and touches none of it. False after
 * rt_fail. */
static bool
info_room(RtHost *h, Room *most)
{
	*most = (Room){0};
	h->ranks = (int)h->opt.processes;
	for (h->rank = 0; h->rank < h->ranks; h->rank++) {
		RtSums *s = &h->sums;
		RtJoins *j = &h->joins;
		Room r = {0};

		*s = (RtSums){0};
		*j = (RtJoins){0};
		r.arena = (int64_t)rt_joins_room(h);
		if (!rt_sums_open(h) || !rt_joins_open(h))
			return false;
		r.shards = s->hi - s->lo;
		r.sums = s->deepest * s->bytes;
		r.arena -= h->cuts.spared;
		r.arrives = s->arrives;
		r.joins = j->bytes;
		for (int i = 0; i < s->deepest; i++)
			free(s->room[i]);
		free(s->in);
		free(j->value);
		free(j->root);
		free(j->slot);
		free(j->data);
		if (room_bytes(&r) > room_bytes(most))
			*most = r;
	}
	return true;
}

static void
info_json(const RtHost *h, const Room *room)
{
	const RtProgram *p = &h->program;
	const RtGraph *train = &p->graph[RT_G_TRAIN], *infer = &p->graph[RT_G_INFER];
	const char *before = "";

	printf("{");
	info_string("model", p->model);
	info_string("target", p->target);
	printf("\"arch\": [");
	info_archs(h, true);
	printf("], ");
	info_string("runs", h->object->device ? "" : p->arch); /* which one: a device is not asked */
	info_string("precision", p->precision);
	printf("\"batch\": %lld, \"shards\": %lld, \"buckets\": %d, "
	       "\"cut_for\": {\"processes\": %lld, \"start_us\": %.6g, \"gb_per_s\": %.6g}, "
	       "\"joins\": %d, \"in_step\": %s, "
	       "\"parameters\": %lld, \"parameter_bytes\": %lld, "
	       "\"arena_bytes\": %lld, \"scratch_bytes\": %lld, \"memory_total\": %lld, \"gflop_per_step\": %.17g, "
	       "\"bytes_per_step\": %.17g, \"kernels_per_step\": %d, \"inputs\": [",
	       (long long)(p->batch * p->shards), (long long)p->shards, p->nbucket,
	       (long long)p->link.processes, p->link.start * 1e6, p->link.rate * 1e-9, train->njoin,
	       rt_joins_in_step(h) ? "true" : "false", (long long)p->parameters,
	       (long long)p->parameter_bytes, (long long)p->arena_bytes, (long long)p->scratch_bytes,
	       (long long)p->memory_total, p->gflop_per_step, p->bytes_per_step,
	       train->nrow + p->graph[RT_G_UPDATE].nrow);
	for (int k = 0; k < p->ninput; k++)
		info_tensor_json(&p->input[k].t, k ? ", " : "");
	printf("], \"outputs\": [");
	for (int k = 0; k < infer->nresult; k++) {
		if (infer->result[k].kind != RT_OUTPUT)
			continue;
		info_tensor_json(&infer->result[k].t, before);
		before = ", ";
	}
	printf("], ");
	if (h->opt.processes)
		printf("\"processes\": %lld, \"process\": {\"shards\": %lld, \"bytes\": %lld, "
		       "\"arena_bytes\": %lld, \"sums_bytes\": %lld, \"arrives_bytes\": %lld, \"joins_bytes\": %lld}, ",
		       (long long)h->opt.processes, (long long)room->shards, (long long)room_bytes(room),
		       (long long)room->arena, (long long)room->sums, (long long)room->arrives,
		       (long long)room->joins);
	info_string("reader", p->reader.kind);
	printf("\"settings\": ");
	rt_settings_json(h, stdout);
	printf(", ");
	printf("\"source_hash\": ");
	rt_json_text(stdout, p->source_hash);
	printf("}\n");
}

static void
info_tensor(const char *what, const RtTensor *t)
{
	printf("%-12s %s: %s[", what, t->name, rt_dtype[t->dtype].name);
	for (int i = 0; i < t->rank; i++)
		printf(i ? ", %lld" : "%lld", (long long)t->shape[i]);
	printf("]\n");
}

static void
info_kernels(const RtGraph *g)
{
	if (!g->nrow)
		return;
	printf("\n%s: %d kernels\n  %-40s %10s %10s %8s  %s\n", g->name, g->nrow, "kernel", "MFLOP", "MB", "tasks",
	       "layers");
	for (int k = 0; k < g->nrow; k++) {
		const RtRow *r = &g->row[k];

		printf("  %-40s %10.3f %10.3f %8lld  %s\n", r->name, r->flops * 1e-6, r->bytes * 1e-6,
		       (long long)((r->rows + r->grain - 1) / r->grain), r->layers);
	}
}

/* What several processes exchange in a step, and at which part of a shard's predicted time. */
static void
info_buckets(const RtProgram *p)
{
	for (int i = 0; i < p->nbucket; i++)
		printf("%-12s %.3f MB at %.0f %%\n", i ? "" : "buckets", (double)p->bucket[i].bytes * 1e-6,
		       100 * p->bucket[i].ready);
	if (p->nbucket && p->link.processes)
		printf("%-12s for %lld processes, %.3g us and %.3g GB/s a bucket\n", "", (long long)p->link.processes,
		       p->link.start * 1e6, p->link.rate * 1e-9);
}

/* What shards exchange within a step. */
static void
info_joins(const RtHost *h)
{
	const RtGraph *g = &h->program.graph[RT_G_TRAIN];

	if (g->njoin)
		printf("%-12s %d, %s\n", "joins", g->njoin,
		       rt_joins_in_step(h)
		               ? "a process's shards run in step and have values of their own"
		               : "before the first shard runs");
}

static void
info_text(const RtHost *h, const Room *room)
{
	const RtProgram *p = &h->program;
	const RtGraph *infer = &p->graph[RT_G_INFER];

	printf("%-12s %s\n%-12s %s, ", "model", p->model, "target", p->target);
	info_archs(h, false);
	printf("\n%-12s %s\n%-12s %lld", "precision", p->precision, "batch", (long long)(p->batch * p->shards));
	printf(p->shards > 1 ? ", in %lld shards of %lld\n" : "\n", (long long)p->shards, (long long)p->batch);
	printf("%-12s %lld (%.3f MiB)\n", "parameters", (long long)p->parameters, (double)p->parameter_bytes / 0x1p20);
	printf("%-12s %.3f MiB arena, %.3f MiB scratch a thread\n", "memory", (double)p->arena_bytes / 0x1p20,
	       (double)p->scratch_bytes / 0x1p20);
	if (h->opt.processes)
		printf("%-12s %lld, the busiest with %lld shard%s: %.3f MiB (arena %.3f, sums of shards %.3f, what "
		       "arrives %.3f, joins %.3f)\n", "processes", (long long)h->opt.processes, (long long)room->shards,
		       room->shards == 1 ? "" : "s", (double)room_bytes(room) / 0x1p20, (double)room->arena / 0x1p20,
		       (double)room->sums / 0x1p20, (double)room->arrives / 0x1p20, (double)room->joins / 0x1p20);
	printf("%-12s %.6g GFLOP, %.6g MB moved\n", "step", p->gflop_per_step, p->bytes_per_step * 1e-6);
	info_buckets(p);
	info_joins(h);
	printf("%-12s %s\n", "reader", p->reader.kind);
	for (int i = 0; i < h->nsetting; i++)
		printf("%-12s %s = %.9g\n", i ? "" : "settings", h->setting[i].name, h->setting[i].value);
	for (int k = 0; k < p->ninput; k++)
		info_tensor("input", &p->input[k].t);
	for (int k = 0; k < infer->nresult; k++)
		if (infer->result[k].kind == RT_OUTPUT)
			info_tensor("output", &infer->result[k].t);
	printf("%-12s %s\n", "source hash", p->source_hash);
	for (int g = 0; g < RT_G_COUNT; g++)
		info_kernels(&p->graph[g]);
}

int
rt_info(RtHost *h)
{
	Room room;

	if (h->opt.processes > h->program.shards) {
		fprintf(stderr, "%s: --processes: %lld are more than the model's %lld shard%s\n", h->opt.program,
		        (long long)h->opt.processes, (long long)h->program.shards, h->program.shards == 1 ? "" : "s");
		return 2;
	}
	if (!rt_settings_prepare(h) || !info_room(h, &room))
		return rt_die(h);
	h->ranks = 1;
	h->rank = 0;
	if (h->opt.json)
		info_json(h, &room);
	else
		info_text(h, &room);
	return 0;
}
