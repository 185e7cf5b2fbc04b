/* cluster.h: machines that train together: their description, and what a step takes there. Private to frontend/. */
#ifndef FRONTEND_CLUSTER_H
#define FRONTEND_CLUSTER_H
#include "../ir/ir.h"

/* How a number came about. */
typedef enum Origin { ASSUMED, GIVEN, FITTED } Origin;
extern const char *const origin_names[];

typedef struct Figure {
	double at;
	Origin by;
} Figure;
typedef struct Link {
	Figure start, rate;
	bool shared;
} Link; /* seconds, bytes/s; shared: by a node's processes */
typedef struct Measured {
	int64_t processes;
	double rate;
	int line;
} Measured; /* examples/s of all together */

/* drag: seconds of a step for each byte that a process exchanges with other nodes, whatever is hidden. work: where the
 * exchange is direct, for each byte that a process exchanges with any other while its kernels run: CPUs do both. */
typedef struct Cluster {
	int64_t nodes, per; /* machines, processes on each; 0: no file says */
	Figure rate;        /* examples/s of one process */
	int64_t batch;      /* examples of a process's step; 0: the model's batch is shared out */
	Link inside, between;
	Figure sum, spread, busy, drag, work; /* bytes/s; shares of a step */
	bool levels;                    /* sums inside a node first, then between nodes */
	VEC(Measured) measured;
} Cluster;
Cluster cluster_assumed(void);
/* NULL, or what is wrong and where, in a. */
const char *cluster_read(Arena *a, const char *file, Cluster *c);

/* A gradient, in the order of backward: complete at this part of graph train's time. */
typedef struct Gradient {
	double bytes, ready;
} Gradient;
/* One process alone: seconds of graph train for one shard, of the update; shards in all (0: one a process). */
typedef struct StepTimes {
	double train, update, examples; /* examples of a shard */
	int64_t shards;
	Gradient *gradient;
	uint32_t n;
	double bytes;
	bool apart;              /* updates wait for their own gradients alone: no norm of all, no loss scale */
} StepTimes;

/* What a step takes with P processes, in seconds: parts of the median, then the median and an interval that holds four
 * of five outcomes. */
typedef struct Forecast {
	int64_t processes, nodes, busiest; /* busiest: shards of the rank that has most */
	double compute, slowest, exposed, drag, update;
	double step, least, most, examples; /* examples: of a step, of all processes */
	uint32_t nbucket;
	double *bucket_bytes, *bucket_ready;
} Forecast;
/* Fits busy, spread and drag to what was measured, and predicts n numbers of processes. */
Forecast *cluster_predict(Arena *a, Cluster *c, const StepTimes *t, const int64_t *processes, int n);
int64_t cluster_nodes(const Cluster *c, int64_t processes);
/* An exchange of P processes: seconds to start, seconds for a byte of gradients. */
void cluster_exchange(const Cluster *c, int64_t processes, double *start, double *per_byte);
#endif
