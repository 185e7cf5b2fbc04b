/* cluster.c: what a step takes on a cluster.
 *
 * In: the cluster, what one process takes by itself, when each gradient is complete.   Out: for each number of
 * processes seconds a step, with an interval.
 * A step is (1 + busy) compute, times what the slowest of P processes takes more (the expected largest of P normal
 * numbers of deviation `spread`), the part of the exchange that is not hidden, what the exchange costs the kernels
 * (drag, work), the update. The exchange is simulated bucket by bucket: a bucket goes when it is complete and the one
 * before is through. Buckets are cut as passes/overlap.c does, for this cluster's links. Where the exchange is that of
 * mantou's programs, updates of a bucket run while later ones travel.
 * What a description cannot know, busy, spread, drag and work, is uncertain: each is drawn from a lognormal
 * distribution about its value, work with drag, and weighed by how near it comes to what was measured (Metropolis'
 * walk, steps of random size, a fixed seed). The widths were chosen with tests/scale/tables.txt in view:
 * frontend/scale.md says how. */
#include "cluster.h"

#include "../passes/pass.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

enum { UNKNOWNS = 3, DRAWS = 2000, THIN = 40, SETTLE = 4000 };
/* Of the logarithms of busy, spread and drag. */
static const double widths[UNKNOWNS] = {1.1, 0.7, 1.05};
#define MEASURED_WITHIN 0.006 /* a measured rate's own deviation, as a share */
#define DOUBLING_WITHIN 0.01  /* what no formula knows of twice as many processes */
#define PLAN_WITHIN 0.3       /* of a plan's seconds, where no rate was given: of its logarithm */

int64_t
cluster_nodes(const Cluster *c, int64_t p)
{
	return (p + c->per - 1) / c->per;
}

/* The expected largest of n standard normal numbers. */
static double
largest_normal(int64_t n)
{
	enum { CUTS = 4000 };
	double sum = 0;

	for (int i = 0; n > 1 && i < CUTS; i++) {
		double x = -6 + 14 * (i + 0.5) / CUTS, below = pow(0.5 * erfc(-x * M_SQRT1_2), (double)n);

		sum += (x > 0 ? 1 - below : -below) * 14 / CUTS;
	}
	return sum;
}

/* Of a step with P processes, all that does not depend on what is uncertain. */
typedef struct Known {
	int64_t processes, nodes, busiest;
	double load;                                  /* part of a node that is busy besides: 0 alone, 1 full */
	double slow, compute, exposed, far, examples; /* far: bytes exchanged with other nodes by a process */
	double hidden;                                /* bytes exchanged by a process while its kernels run */
	uint32_t nbucket, *cut;
} Known;

/* Seconds to exchange so many bytes of gradients, and to start. Direct: each process gets its P-th of all pieces and
 * sends the sum to all (runtime/exchange.c). Levels: inside the node, then between nodes. */
static void
exchange_time(const Cluster *c, const Known *k, double *start, double *per_byte)
{
	double p = (double)k->processes, n = (double)k->nodes, in = p / n,
	       share = c->between.shared && !c->levels ? in : 1;
	double near = c->levels ? 2 * (in - 1) / in : 2 * (in - 1) / p,
	       far = c->levels ? 2 * (n - 1) / n : 2 * (p - in) / p;

	*start = 2 * (n > 1 ? c->between.start.at : c->inside.start.at) *
	         (c->levels ? (n > 1 ? n - 1 : 0) + (in - 1) : 1);
	*per_byte = near / c->inside.rate.at + far * share / c->between.rate.at + (p - 1) / p / c->sum.at;
}

void
cluster_exchange(const Cluster *c, int64_t processes, double *start, double *per_byte)
{
	Known k = {.processes = processes, .nodes = cluster_nodes(c, processes)};

	exchange_time(c, &k, start, per_byte);
}

/* Cuts the gradients for these links and runs the exchange beside the last shard: what is left behind its end. */
static void
exchange_simulate(Arena *a, const Cluster *c, const StepTimes *t, Known *k)
{
	double *bytes = arena_array(a, double, t->n + 1), *ready = arena_array(a, double, t->n + 1), start, per,
	       end = 0, all = 0, updated = t->train, through = 0;
	bool apart = t->apart && !c->levels;

	k->cut = arena_array(a, uint32_t, t->n + 1);
	if (k->processes < 2 || !t->n)
		return;
	for (uint32_t i = 0; i < t->n; i++) {
		bytes[i] = t->gradient[i].bytes;
		ready[i] = t->gradient[i].ready * t->train;
		all += bytes[i];
	}
	exchange_time(c, k, &start, &per);
	buckets_cut(bytes, ready, t->n, start, 1 / per, k->cut, a);
	for (uint32_t i = t->n; i > 0; i = k->cut[i])
		k->nbucket++;
	uint32_t *from = arena_array(a, uint32_t, k->nbucket + 1), b = k->nbucket;

	for (uint32_t i = t->n; i > 0; i = k->cut[i])
		from[--b] = k->cut[i];
	from[k->nbucket] = t->n;
	for (b = 0; b < k->nbucket; b++) {
		double sum = 0, last = 0;

		for (uint32_t i = from[b]; i < from[b + 1]; i++) {
			sum += bytes[i];
			last = ready[i] > last ? ready[i] : last;
		}
		end = (end > last ? end : last) + start + sum * per;
		through += start + sum * per;
		updated = (updated > end ? updated : end) + (apart && all > 0 ? t->update * sum / all : 0);
	}
	k->exposed = updated - t->train - (apart && all > 0 ? t->update : 0);
	k->exposed = k->exposed > 0 ? k->exposed : 0;
	if (!c->levels && through > 0)
		k->hidden = all * 2 * (double)(k->processes - 1) / (double)k->processes *
		            fmax(0, 1 - k->exposed / through);
}

static Known
known_of(Arena *a, const Cluster *c, const StepTimes *t, int64_t p)
{
	Known k = {.processes = p, .nodes = cluster_nodes(c, p)};
	double in = (double)(p < c->per ? p : c->per);

	k.busiest = t->shards ? (t->shards + p - 1) / p : 1;
	k.examples = t->examples * (double)(t->shards ? t->shards : p);
	k.compute = t->train * (double)k.busiest;
	k.load = c->per > 1 ? (in - 1) / (double)(c->per - 1) : 0;
	k.slow = largest_normal(p);
	k.far = t->bytes * 2 * (double)(k.nodes - 1) / (double)k.nodes;
	exchange_simulate(a, c, t, &k);
	return k;
}

/* work: as uncertain as drag, in proportion */
typedef struct Unknown {
	double busy, spread, drag, work;
} Unknown;

static double
step_of(const Known *k, const StepTimes *t, Unknown u, double plan)
{
	return plan * (k->compute * (1 + u.busy * k->load) * (1 + u.spread * k->slow) + t->update) + k->exposed +
	       u.drag * k->far + u.work * k->hidden;
}

/* ---- chance */

typedef struct Chance {
	uint64_t at;
} Chance;

static double
chance_uniform(Chance *r) /* SplitMix64 */
{
	uint64_t z = r->at += 0x9e3779b97f4a7c15u;

	z = (z ^ z >> 30) * 0xbf58476d1ce4e5b9u;
	z = (z ^ z >> 27) * 0x94d049bb133111ebu;
	return ((double)((z ^ z >> 31) >> 11) + 0.5) * 0x1p-53;
}

static double
chance_normal(Chance *r) /* Box and Muller */
{
	double u = chance_uniform(r), v = chance_uniform(r);

	return sqrt(-2 * log(u)) * cos(2 * M_PI * v);
}

/* ---- the fit */

/* A number that was given and is held against nothing measured stays. */
static Unknown
unknown_of(const Cluster *c, const double z[UNKNOWNS])
{
	const Figure *f[UNKNOWNS] = {&c->busy, &c->spread, &c->drag};
	double x[UNKNOWNS];

	for (int i = 0; i < UNKNOWNS; i++)
		x[i] = f[i]->at * (f[i]->by == GIVEN && !c->measured.n ? 1 : exp(widths[i] * z[i]));
	double near = c->work.by == GIVEN && !c->measured.n ? 1 : exp(widths[2] * z[2]);

	return (Unknown){x[0], x[1], x[2], c->work.at * near};
}

static double
likelihood(const Cluster *c, const StepTimes *t, const Known *seen, const double z[UNKNOWNS])
{
	Unknown u = unknown_of(c, z);
	double sum = 0;

	for (int i = 0; i < UNKNOWNS; i++)
		sum -= 0.5 * z[i] * z[i];
	for (uint32_t i = 0; i < c->measured.n; i++) {
		double off = log(seen[i].examples / c->measured.at[i].rate / step_of(&seen[i], t, u, 1));

		sum -= 0.5 * off * off / (MEASURED_WITHIN * MEASURED_WITHIN);
	}
	return sum;
}

static void
draw_unknowns(const Cluster *c, const StepTimes *t, const Known *seen, Chance *r, Unknown *draw)
{
	double z[UNKNOWNS] = {0}, now = likelihood(c, t, seen, z);

	for (int i = -SETTLE; i < DRAWS * THIN; i++) {
		double far = pow(10, -2.5 + 2.8 * chance_uniform(r)), next[UNKNOWNS], then;

		for (int k = 0; k < UNKNOWNS; k++)
			next[k] = z[k] + far * chance_normal(r);
		then = likelihood(c, t, seen, next);
		if (log(chance_uniform(r)) < then - now) {
			memcpy(z, next, sizeof z);
			now = then;
		}
		if (i >= 0 && i % THIN == 0)
			draw[i / THIN] = unknown_of(c, z);
	}
}

static int
by_size(const void *x, const void *y)
{
	double a = *(const double *)x, b = *(const double *)y;

	return (a > b) - (a < b);
}

static double
middle_of(double *x, int n)
{
	qsort(x, (size_t)n, sizeof *x, by_size);
	return x[n / 2];
}

static Forecast
forecast_of(Arena *a, const Cluster *c, const StepTimes *t, const Known *k, const Unknown *draw, Unknown u, Chance *r)
{
	double *step = arena_array(a, double, DRAWS), measured = 1, beyond;
	Forecast f = {.processes = k->processes,
	              .nodes = k->nodes,
	              .busiest = k->busiest,
	              .examples = k->examples,
	              .exposed = k->exposed,
	              .update = t->update,
	              .nbucket = k->nbucket};

	for (uint32_t i = 0; i < c->measured.n; i++)
		if ((double)c->measured.at[i].processes > measured)
			measured = (double)c->measured.at[i].processes;
	beyond = (double)k->processes > measured ? log2((double)k->processes / measured) : 0;
	for (int i = 0; i < DRAWS; i++) {
		double plan = c->rate.by == GIVEN ? 1 : exp(PLAN_WITHIN * chance_normal(r));

		step[i] = step_of(k, t, draw[i], plan) * exp(DOUBLING_WITHIN * beyond * chance_normal(r));
	}
	f.step = middle_of(step, DRAWS);
	f.least = step[DRAWS / 10];
	f.most = step[DRAWS - 1 - DRAWS / 10];
	f.compute = k->compute * (1 + u.busy * k->load);
	f.drag = u.drag * k->far + u.work * k->hidden;
	f.slowest = f.step - f.compute - f.drag - f.exposed - f.update; /* parts add up */
	if (f.slowest < 0) {
		f.compute += f.slowest;
		f.slowest = 0;
	}
	f.bucket_bytes = arena_array(a, double, k->nbucket + 1);
	f.bucket_ready = arena_array(a, double, k->nbucket + 1);
	uint32_t b = k->nbucket;

	for (uint32_t i = k->nbucket ? t->n : 0; i > 0; i = k->cut[i]) {
		b--;
		for (uint32_t j = k->cut[i]; j < i; j++) {
			f.bucket_bytes[b] += t->gradient[j].bytes;
			if (t->gradient[j].ready > f.bucket_ready[b])
				f.bucket_ready[b] = t->gradient[j].ready;
		}
	}
	return f;
}

Forecast *
cluster_predict(Arena *a, Cluster *c, const StepTimes *t, const int64_t *processes, int n)
{
	Forecast *f = arena_array(a, Forecast, (uint32_t)n + 1);
	Known *seen = arena_array(a, Known, c->measured.n + 1);
	Unknown *draw = arena_array(a, Unknown, DRAWS), middle;
	Figure *fitted[] = {&c->busy, &c->spread, &c->drag, &c->work};
	double *x = arena_array(a, double, DRAWS), *to[] = {&middle.busy, &middle.spread, &middle.drag, &middle.work};
	Chance r = {1};

	for (uint32_t i = 0; i < c->measured.n; i++)
		seen[i] = known_of(a, c, t, c->measured.at[i].processes);
	draw_unknowns(c, t, seen, &r, draw);
	for (int k = 0; k <= UNKNOWNS; k++) {
		for (int i = 0; i < DRAWS; i++)
			x[i] = (double[]){draw[i].busy, draw[i].spread, draw[i].drag, draw[i].work}[k];
		*to[k] = middle_of(x, DRAWS);
	}
	for (int i = 0; i < n; i++) {
		Known k = known_of(a, c, t, processes[i]);

		f[i] = forecast_of(a, c, t, &k, draw, middle, &r);
	}
	for (int k = 0; k <= UNKNOWNS && c->measured.n; k++)
		*fitted[k] = (Figure){*to[k], FITTED};
	return f;
}
