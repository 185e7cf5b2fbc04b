/* work.h: what streams and graphs run, and what holds it. */
#ifndef WORK_H
#define WORK_H
#include "api.h"
#include "device.h"

typedef enum WorkKind {
	WORK_LAUNCH, WORK_CALL, WORK_COPY, WORK_SET, WORK_HOST, WORK_EMPTY, WORK_RECORD, WORK_WAIT, WORK_GRAPH,
	WORK_CHILD, WORK_CONDITIONAL, WORK_FREE,
} WorkKind;

/* staged: the source's bytes, of pageable memory */
typedef struct Copy {
	uint64_t to, from, width, height, depth, to_pitch, from_pitch, to_slice, from_slice;
	uint8_t *staged;
} Copy;
typedef struct Set { uint64_t to, pitch, width, height; uint32_t value, bytes; } Set;

typedef struct Work {
	WorkKind kind;
	union {
		Launch *launch;
		Copy copy;
		Set set;
		struct { CUhostFn *fn; void *data; } host;
		struct { int (*fn)(const void *data); void *data; size_t bytes; } call; /* hook.h */
		struct { struct Event *event; uint64_t number; } event;
		struct GraphExec *exec;
		struct Graph *child;
		struct { uint64_t handle; int type; unsigned size; struct Graph **body; } cond;
		uint64_t address;
	} as;
} Work;

typedef struct Task { struct Task *next; Work work; uint64_t number; } Task;

typedef struct Stream {
	struct Stream *next;
	Task *head, **tail;
	bool blocking, destroyed;
	unsigned flags;
	int priority;
	struct Graph *capture;      /* being captured into */
	struct Stream *origin;      /* where that capture began */
	struct Node **last;         /* what the next node depends on */
	int nlast, caplast;
	bool capture_owned, capture_failed;
} Stream;

typedef struct Event {
	struct Event *next;
	unsigned flags;
	uint64_t recorded, done;    /* numbers of tasks */
	double ms;
	struct Graph *capture;
	struct Node **last;
	int nlast;
	bool destroyed;
} Event;

typedef struct Node {
	struct Graph *graph;
	Work work;
	int type;
	struct Node **dep;
	int ndep, capdep, index;
	struct Node *original;
} Node;

typedef struct Condition { uint64_t handle; unsigned value, flags; } Condition;

typedef struct Graph {
	Node **node;
	int n, cap;
	Condition *condition;       /* of the outermost graph */
	int ncondition, capcondition;
	struct Graph *root;         /* the outermost, of a body */
	bool body;
} Graph;

typedef struct GraphExec { Graph *graph; bool destroyed; int pending; } GraphExec;
typedef struct GraphRun { Condition *condition; int n; } GraphRun;

uint64_t graph_beside(const Graph *g);
/* work.c */
CUresult work_run(Work *k, uint64_t *random, GraphRun *run);
void work_free(Work *k);
void work_copy(Work *to, const Work *from);
CUresult work_launch(Work *k, const CUlaunchConfig *c, Func *f, void **params, void **more);
CUresult work_copy_make(Work *k, uint64_t to, uint64_t from, uint64_t bytes);
CUresult work_copy_3d(Work *k, const CUDA_MEMCPY3D *p);
CUresult work_set_make(Work *k, const CUDA_MEMSET_NODE_PARAMS *p);
bool range_valid(uint64_t at, uint64_t bytes);

/* stream.c: all under the device's lock */
CUresult api_enter(const char *name, bool context);
CUresult api_leave(CUresult r);
Stream *stream_of(CUstream s); /* NULL: no such stream */
CUresult stream_put(Stream *s, const Work *k, bool wait);
void stream_wait_all(void);
void device_lose(CUresult r);
bool event_valid(const Event *e);
void stream_start(void);
void stream_each(void (*fn)(Stream *, void *), void *cx);

/* graph.c */
Node *graph_add(Graph *g, Node *const *dep, size_t n, int type, const Work *k);
Graph *graph_new(void);
Graph *graph_copy(const Graph *g, Graph *root);
CUresult graph_check(const Graph *g, bool inside);
void node_depend(Node *node, Node *on);
void *graph_more(void *list, int n, int *cap, size_t size);
void graph_free(Graph *g);
CUresult graph_run(Graph *g, uint64_t *random, GraphRun *run);
CUresult exec_run(GraphExec *e, uint64_t *random);
CUresult capture_put(Stream *s, const Work *k);
void capture_join(Stream *s, const Event *e);
void capture_record(Stream *s, Event *e);
void exec_free(GraphExec *e);

#define ENTER(context) do { CUresult entered_ = api_enter(__func__, context); if (entered_) return entered_; } while (0)
#endif
