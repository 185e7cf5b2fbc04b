/* comm.h: several processes that train one model: what librtcomm.a gives the runtime, and what its own files share.
 *
 * rt_comm is a weak reference: NULL in executables that were linked without --distribute. */
#ifndef RUNTIME_COMM_H
#define RUNTIME_COMM_H
#include "host.h"

/* One message of a move: n bytes at `at` to a rank, or from it. Between two ranks messages match in the order of their
 * lists. */
typedef struct RtMsg { int rank; bool send; void *at; size_t n; } RtMsg;

/* Calls may come from any one thread at a time; all ranks make the same ones in the same order. A rank that dies or
 * falls silent ends the process inside them. */
typedef struct RtComm {
	/* Finds the launcher's library, meets the others. -1: go on (h->ranks may still be 1); else an exit status, its
	 * text printed. */
	int (*open)(RtHost *h);
	/* Runs fn on the thread that talks to the library; it alone may call move. */
	void (*run)(RtHost *h, void (*fn)(RtHost *h, void *cx), void *cx);
	/* The same, without waiting for it: its number; wait: until that one and all before it are done. */
	int64_t (*start)(RtHost *h, void (*fn)(RtHost *h, void *cx), void *cx);
	void (*wait)(RtHost *h, int64_t number);
	void (*move)(RtHost *h, const RtMsg *m, int n);
	/* A move beside whatever that thread is at, from the loop's own thread: these messages wait for none of those
	 * that are under way. Returns when all have arrived. */
	void (*beside)(RtHost *h, const RtMsg *m, int n);
	/* n numbers of all ranks, f32 or f64, added up by the library in whatever order it likes; on that thread. */
	void (*sum)(RtHost *h, void *at, int64_t n, bool f64);
	bool (*adds)(RtHost *h);                    /* is there a library that does? */
	/* Every rank's bytes at all of them: *all is malloc'd, those of rank r at *all + at[r], at[ranks] is the
	 * end. */
	void (*gather)(RtHost *h, const void *mine, size_t n, uint8_t **all, size_t *at);
	/* Rank 0's bytes to all: where it is not 0, *bytes is malloc'd. */
	void (*share)(RtHost *h, void **bytes, size_t *n);
	/* All are well, and text ("name value\n" lines) is the same on all of them; else rt_fail on all, with what
	 * differs first. */
	bool (*agree)(RtHost *h, bool good, const char *text);
	void (*abort)(RtHost *h);                   /* ends the job; does not return */
	void (*close)(RtHost *h);
} RtComm;
extern const RtComm rt_comm __attribute__((weak));

/* What a rank says beside its sums. shard: of its first fault, -1. */
typedef struct RtVote { int64_t step, shard, n, signal; RtFault fault; } RtVote;

/* What the environment says: how many processes the launcher started. */
/* name NULL: there is no launcher; size 0: unknown; local: its number among those of its machine, -1 unknown */
typedef struct RtLaunch { const char *name; int size, rank, local; } RtLaunch;
RtLaunch rt_launch(void);

/* ---- an exchange's turns (exchange.c), for whoever moves the bytes
 *
 * A turn is about bytes [at, to) of the range of sums up to `end`; with edge, of each rank's part of a bucket (whose
 * sums only that rank needs, where they are owned). whole: all ranks add all of it. */
typedef struct RtTurn { int64_t at, to, end, step; const int64_t *edge; bool whole; } RtTurn;
typedef struct RtShare { int64_t from, to; } RtShare; /* bytes of the range */
RtTurn rt_turn_first(const RtHost *h, const RtBucket *b);
bool rt_turn_next(RtTurn *t);                       /* false: that was the last one */
RtShare rt_turn_part(const RtHost *h, const RtTurn *t, int q);   /* that rank q adds up */
/* The sums of part p that `rank` has to know, to it or from it, the range at `grad`: messages of sums.msg behind the
 * first n; their number. */
int rt_turn_give(RtHost *h, const RtTurn *t, uint8_t *grad, RtShare p, int rank, bool send, int n);

/* The first span that ends behind a byte of the range. */
int64_t rt_sums_behind(const RtSums *s, int64_t from);

/* ---- ranks of one machine see each other's sums (window.c), on the loop's own thread */
bool rt_window_open(RtHost *h);                     /* sums.window where each can see all; false after rt_fail */
void rt_window_start(RtHost *h);                    /* this rank has filled the next bucket */
void rt_window_wait(RtHost *h, int bucket);         /* of this step, and those before it */
/* Bytes [at[r], at[r + 1]) of `all` are rank r's: this one's go to the others, theirs come. */
void rt_window_say(RtHost *h, void *all, const int64_t *at);

/* ---- what carries the bytes: mpi.c, a library of the launcher's; tcp.c, sockets. All calls on one thread. */
typedef struct RtRequest { uint8_t at[8]; bool open; } RtRequest;
typedef struct RtWire {
	void *(*open)(const RtLaunch *l, RtError *e); /* before all others, from any thread; NULL after rt_fail */
	bool (*start)(void *w, int *rank, int *size, RtError *e);
	const char *(*name)(const void *w);           /* "Open MPI 4.1.4", once started */
	void (*send)(void *w, const void *at, size_t n, int to, int tag, RtRequest *r);
	void (*receive)(void *w, void *at, size_t n, int from, int tag, RtRequest *r);
	/* numbers of all ranks are added up in whatever order; NULL: it adds nothing */
	void (*sum)(void *w, void *at, int n, bool f64, RtRequest *r);
	bool (*done)(void *w, RtRequest *r);
	/* a rank that has ended without a word, -1; NULL: the library ends the job by itself. *told: it has said that
	 * it ends the job */
	int (*gone)(void *w, bool *told);
	void (*abort)(void *w, int status);
	void (*end)(void *w);
} RtWire;
extern const RtWire rt_mpi, rt_tcp;
#endif
