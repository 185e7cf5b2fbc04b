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
	/* The same, without waiting for it; wait: until all that was started is done. */
	void (*start)(RtHost *h, void (*fn)(RtHost *h, void *cx), void *cx);
	void (*wait)(RtHost *h);
	void (*move)(RtHost *h, const RtMsg *m, int n);
	/* n numbers of all ranks, f32 or f64, added up by the library in whatever order it likes; on that thread. */
	void (*sum)(RtHost *h, void *at, int64_t n, bool f64);
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

/* What the environment says: how many processes the launcher started. */
/* name NULL: there is no launcher; size 0: unknown */
typedef struct RtLaunch { const char *name; int size, rank; } RtLaunch;
RtLaunch rt_launch(void);

/* ---- mpi.c */
typedef struct RtMpi RtMpi;
typedef struct RtRequest { uint8_t at[8]; bool open; } RtRequest;
RtMpi *rt_mpi_open(const RtLaunch *l, RtError *e); /* loads a library; no call of it yet */
const char *rt_mpi_name(const RtMpi *m);           /* "Open MPI 4.1.4", once started */
/* All on one thread. */
bool rt_mpi_start(RtMpi *m, int *rank, int *size, RtError *e);
void rt_mpi_send(RtMpi *m, const void *at, size_t n, int to, int tag, RtRequest *r);
void rt_mpi_receive(RtMpi *m, void *at, size_t n, int from, int tag, RtRequest *r);
void rt_mpi_sum(RtMpi *m, void *at, int n, bool f64, RtRequest *r);
bool rt_mpi_done(RtMpi *m, RtRequest *r);
void rt_mpi_abort(RtMpi *m, int status);
void rt_mpi_end(RtMpi *m);
#endif
