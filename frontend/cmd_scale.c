/* cmd_scale.c: `scale`: how fast a model trains with several processes on a cluster, before anybody has it.
 *
 * In: the planned module, a description of the cluster (cluster_file.c).   Out: for each number of processes seconds a
 * step with an interval that holds four of five outcomes, where the time goes, the buckets. Where the description says
 * how many examples a process has in a step ("rate .. batch ..") each has so many, as in published tables; else the
 * model's batch is shared out by its shards. Every number is marked: assumed, given, or fitted to what was measured. */
#include "cmd.h"

#include "cluster.h"
#include "../passes/passes.h"

#include <inttypes.h>
#include <stdlib.h>
#include <string.h>

enum { MOST_LISTED = 64 };

static int
read_processes(const Options *o, const Cluster *c, int64_t most, int64_t *p, int *n)
{
	for (int i = 0; i < o->processes.n; i++) {
		char *end;
		long long x = strtoll(o->processes.at[i], &end, 10);

		if (end == o->processes.at[i] || *end || x < 1 || x > 9999999)
			return usage_error("scale", "--processes: '%s' is no number of processes", o->processes.at[i]);
		if (*n == MOST_LISTED)
			return usage_error("scale", "--processes: more than %d numbers", MOST_LISTED);
		if (c->nodes && x > c->nodes * c->per)
			return usage_error("scale",
			                   "--processes: %lld are more than the cluster's %lld (%lld nodes of %lld)", x,
			                   (long long)(c->nodes * c->per), (long long)c->nodes, (long long)c->per);
		p[(*n)++] = x;
	}
	if (!*n && c->nodes && c->nodes * c->per < most)
		most = c->nodes * c->per;
	for (int64_t x = 1; !o->processes.n && x <= most && *n < MOST_LISTED; x *= 2)
		p[(*n)++] = x;
	return EXIT_GOOD;
}

/* When each gradient is complete, as the target's kernels make them. */
static int
read_gradients(Job *j, Module *m, StepTimes *t)
{
	Buf text = {0};
	JsonDoc *doc;
	const char *error;
	const Json *root = job_json(j, m, "gradients", &text, &doc, &error);

	if (!root)
		return failure("%s: %s", j->file, error);
	t->gradient = arena_array(j->arena, Gradient, (uint32_t)root->n);
	for (const Json *o = root->child; o; o = o->next) {
		t->gradient[t->n++] = (Gradient){o->child->f, o->child->next->f};
		t->bytes += o->child->f;
	}
	rt_json_free(doc);
	buf_free(&text);
	return EXIT_GOOD;
}

/* Seconds of one process; the plan's are scaled to the rate where one is given. */
static int
read_times(Job *j, Module *m, const Cluster *c, StepTimes *t)
{
	int status = read_gradients(j, m, t);

	if (status != EXIT_GOOD || (status = info_seconds(j, m, &t->train, &t->update)) != EXIT_GOOD)
		return status;
	t->examples = (double)m->batch;
	const Setting *clip = setting(m, "train.clip_norm");

	t->apart = (!clip || clip->kind == SET_NONE || clip->kind == SET_NAME) && !module_state(m, LOSS_SCALE);
	if (c->rate.by == GIVEN) {
		double shards = t->shards ? (double)t->shards : 1;
		double planned = (shards * t->train + t->update) / (shards * t->examples) * c->rate.at;

		t->train /= planned;
		t->update /= planned;
	}
	return EXIT_GOOD;
}

/* ---- reports */

typedef struct Report {
	const Job *j;
	const Module *m;
	const Cluster *c;
	const StepTimes *t;
	const Forecast *f;
	int n;
} Report;

/* Examples/s of one process, which speed-up is against. */
static double
alone(const Report *r)
{
	const StepTimes *t = r->t;
	double shards = t->shards ? (double)t->shards : 1;

	return shards * t->examples / (shards * t->train + t->update);
}

static double
speed(const Forecast *f, double seconds)
{
	return f->examples / seconds;
}

static void
put_figure(Buf *b, const char *name, Figure f, double unit, const char *word)
{
	buf_printf(b, "%s %.4g%s (%s)", name, f.at / unit, word, origin_names[f.by]);
}

static void
put_link(Buf *b, const char *name, const Link *l)
{
	buf_printf(b, "%-10s ", name);
	put_figure(b, "start", l->start, 1e-6, " us");
	put_figure(b, ", rate", l->rate, 1e9, " GB/s");
	buf_printf(b, "%s\n", l->shared ? ", shared by a node's processes" : "");
}

static void
put_head(Buf *b, const Report *r)
{
	const Cluster *c = r->c;
	const StepTimes *t = r->t;

	buf_printf(b, "%s: %.4g MB of gradients to exchange, ", r->m->name, t->bytes * 1e-6);
	if (t->shards)
		buf_printf(b, "batch %.0f in %" PRId64 " shards\n", t->examples * (double)t->shards, t->shards);
	else
		buf_printf(b, "%.0f examples a process\n", t->examples);
	if (c->nodes)
		buf_printf(b, "%-10s %" PRId64 " of %" PRId64 " process%s (given)\n", "nodes", c->nodes, c->per,
		           c->per == 1 ? "" : "es");
	else
		buf_printf(b, "%-10s of 1 process (assumed)\n", "nodes");
	buf_printf(b, "%-10s %.4g examples/s alone (%s)\n", "rate", alone(r),
	           c->rate.by == GIVEN ? "given" : "assumed, by the plan: no measurement");
	put_link(b, "inside", &c->inside);
	put_link(b, "between", &c->between);
	put_figure(b, "sum       ", c->sum, 1e9, " GB/s");
	buf_printf(b, "\n%-10s %s\n", "exchange",
	           c->levels ? "levels: inside a node first, then between nodes" : "direct: as mantou's programs do");
	put_figure(b, "kernels   ", c->busy, 0.01, " % longer where a node is full");
	put_figure(b, ", spread", c->spread, 0.01, " %");
	put_figure(b, ", drag", c->drag, 1e-9, " ms/MB");
	if (!c->levels)
		put_figure(b, ", work", c->work, 1e-9, " ms/MB");
	buf_printf(b, "\n");
	for (uint32_t i = 0; i < c->measured.n; i++)
		buf_printf(b, "%-10s %" PRId64 " processes %.6g examples/s\n", "measured", c->measured.at[i].processes,
		           c->measured.at[i].rate);
}

static void
put_text(Buf *b, const Report *r)
{
	put_head(b, r);
	buf_printf(b, "\n%9s %9s %19s %11s %8s %10s   of a step, ms: %8s %8s %8s %8s %8s\n", "processes", "ms/step",
	           "4 of 5 times within", "examples/s", "speed-up", "efficiency", "compute", "slowest", "exposed",
	           "drag", "update");
	for (int i = 0; i < r->n; i++) {
		const Forecast *f = &r->f[i];
		double up = speed(f, f->step) / alone(r);
		const char *within = arena_printf(r->j->arena, "%.4g to %.4g", f->least * 1e3, f->most * 1e3);

		buf_printf(b, "%9" PRId64 " %9.4g %19s %11.5g %8.2f %9.1f%%   %14s %8.4g %8.4g %8.4g %8.4g %8.4g\n",
		           f->processes, f->step * 1e3, within, speed(f, f->step), up, 100 * up / (double)f->processes,
		           "", f->compute * 1e3, f->slowest * 1e3, f->exposed * 1e3, f->drag * 1e3, f->update * 1e3);
	}
	for (int i = 0; i < r->n; i++) {
		const Forecast *f = &r->f[i];

		if (!f->nbucket)
			continue;
		buf_printf(b, "%s%" PRId64 " processes: %u bucket%s:", i ? "" : "\n", f->processes,
		           (unsigned)f->nbucket, f->nbucket == 1 ? "" : "s");
		for (uint32_t k = 0; k < f->nbucket; k++)
			buf_printf(b, "%s %.3g MB at %.0f %%", k ? "," : "", f->bucket_bytes[k] * 1e-6,
			           100 * f->bucket_ready[k]);
		buf_printf(b, "\n");
		if (r->t->shards % f->processes)
			buf_printf(b,
			           "%" PRId64 " processes do not divide %" PRId64 " shards: the busiest has %" PRId64
			           "\n",
			           f->processes, r->t->shards, f->busiest);
	}
}

static void
put_figure_json(Buf *b, const char *name, Figure f)
{
	buf_printf(b, ", \"%s\": {\"value\": %.9g, \"origin\": \"%s\"}", name, f.at, origin_names[f.by]);
}

static void
put_json(Buf *b, const Report *r)
{
	const Cluster *c = r->c;
	const StepTimes *t = r->t;

	buf_printf(b, "{\"model\": ");
	buf_json(b, r->m->name);
	buf_printf(b,
	           ", \"shards\": %" PRId64
	           ", \"examples_of_a_shard\": %.0f, \"exchange_bytes\": %.0f, \"nodes\": %" PRId64
	           ", \"processes_per_node\": %" PRId64 ", \"exchange\": \"%s\"",
	           t->shards, t->examples, t->bytes, c->nodes, c->per, c->levels ? "levels" : "direct");
	put_figure_json(b, "examples_per_s_alone", (Figure){alone(r), c->rate.by});
	put_figure_json(b, "inside_start_s", c->inside.start);
	put_figure_json(b, "inside_bytes_per_s", c->inside.rate);
	put_figure_json(b, "between_start_s", c->between.start);
	put_figure_json(b, "between_bytes_per_s", c->between.rate);
	put_figure_json(b, "sum_bytes_per_s", c->sum);
	put_figure_json(b, "busy", c->busy);
	put_figure_json(b, "spread", c->spread);
	put_figure_json(b, "drag_s_per_byte", c->drag);
	if (!c->levels)
		put_figure_json(b, "work_s_per_byte", c->work);
	buf_printf(b, ", \"measured\": [");
	for (uint32_t i = 0; i < c->measured.n; i++)
		buf_printf(b, "%s{\"processes\": %" PRId64 ", \"examples_per_s\": %.9g}", i ? ", " : "",
		           c->measured.at[i].processes, c->measured.at[i].rate);
	buf_printf(b, "], \"predicted\": [");
	for (int i = 0; i < r->n; i++) {
		const Forecast *f = &r->f[i];
		double up = speed(f, f->step) / alone(r);

		buf_printf(
		        b,
		        "%s\n {\"processes\": %" PRId64 ", \"nodes\": %" PRId64 ", \"shards_of_the_busiest\": %" PRId64
		        ", \"ms_per_step\": {\"median\": %.9g, \"least\": %.9g, \"most\": %.9g}",
		        i ? "," : "", f->processes, f->nodes, f->busiest, f->step * 1e3, f->least * 1e3, f->most * 1e3);
		buf_printf(b,
		           ", \"examples_per_s\": {\"median\": %.9g, \"least\": %.9g, \"most\": %.9g}, \"speed_up\": "
		           "%.6g, \"efficiency\": %.6g",
		           speed(f, f->step), speed(f, f->most), speed(f, f->least), up, up / (double)f->processes);
		buf_printf(b,
		           ", \"ms\": {\"compute\": %.9g, \"slowest\": %.9g, \"exposed\": %.9g, \"drag\": %.9g, "
		           "\"update\": %.9g}, \"buckets\": [",
		           f->compute * 1e3, f->slowest * 1e3, f->exposed * 1e3, f->drag * 1e3, f->update * 1e3);
		for (uint32_t k = 0; k < f->nbucket; k++)
			buf_printf(b, "%s{\"bytes\": %.0f, \"ready\": %.6g}", k ? ", " : "", f->bucket_bytes[k],
			           f->bucket_ready[k]);
		buf_printf(b, "]}");
	}
	buf_printf(b, "]}\n");
}

/* ---- the command */

static int
check_shards(const Job *j, const StepTimes *t, const int64_t *p, int n, const Cluster *c)
{
	for (int i = 0; i < n; i++)
		if (t->shards && p[i] > t->shards)
			return usage_error("scale",
			                   "--processes: %" PRId64 " are more than the %" PRId64 " shard%s of '%s': "
			                   "train.shards or --shards makes more",
			                   p[i], t->shards, t->shards == 1 ? "" : "s", j->file);
	for (uint32_t i = 0; i < c->measured.n; i++)
		if (t->shards && c->measured.at[i].processes > t->shards)
			return failure("%s:%d: %" PRId64 " processes were measured, '%s' has %" PRId64 " shards",
			               j->o->cluster, c->measured.at[i].line, c->measured.at[i].processes, j->file,
			               t->shards);
	return EXIT_GOOD;
}

int
cmd_scale(Arena *a, const Options *given)
{
	Options o = *given;
	Cluster c = cluster_assumed();
	const char *wrong = o.cluster ? cluster_read(a, o.cluster, &c) : NULL;
	int64_t p[MOST_LISTED];
	StepTimes t = {0};
	Buf b = {0};
	PassCtx cx;
	Module *m;
	Job j;
	int n = 0;

	if (wrong)
		return failure("%s", wrong);
	if (c.batch) { /* so many a process: a graph for one shard, whoever many there are */
		if (o.batch || o.shards)
			return usage_error("scale",
			                   "--batch and --shards do not go with the cluster's 'rate .. batch': each "
			                   "process has those examples");
		o.batch = 2 * c.batch;
		o.shards = 2;
	}
	int status = job_open(&j, a, &o, "scale", o.operand[0]);

	if (status == EXIT_GOOD && !target_does(j.target, TARGET_scales))
		return failure("'%s': scale predicts processes of --target cpu alone, none of target %s", j.file,
		               j.target->name);
	if (status == EXIT_GOOD)
		status = job_load(&j);
	if (status == EXIT_GOOD)
		status = job_compile(&j, 0, NULL, &m, &cx);
	if (status != EXIT_GOOD)
		return status;
	const Setting *s = setting(m, "train.shards");

	if (!module_graph(m, "train"))
		return failure("'%s' has no loss: there is nothing to train", j.file);
	t.shards = c.batch ? 0 : s ? s->i : 1;
	if ((status = read_processes(&o, &c, c.batch ? 64 : t.shards, p, &n)) != EXIT_GOOD ||
	    (status = check_shards(&j, &t, p, n, &c)) != EXIT_GOOD || (status = read_times(&j, m, &c, &t)) != EXIT_GOOD)
		return status;
	if (!c.nodes)
		c.per = 1;
	Report r = {&j, m, &c, &t, cluster_predict(a, &c, &t, p, n), n};

	(o.json ? put_json : put_text)(&b, &r);
	fwrite(b.at, 1, b.n, stdout);
	buf_free(&b);
	return EXIT_GOOD;
}
