/* device.h: the one device: its settings, its memory, what it counted, and the work that waits for it. */
#ifndef DEVICE_H
#define DEVICE_H
#include "sim.h"

typedef struct Counts {
	uint64_t host_calls, kernel_launches, graph_launches, graph_kernels, blocks, warp_instructions,
	        thread_instructions;
	uint64_t bytes_to_device, bytes_to_host, bytes_on_device, bytes_set, copies, memsets, waits, allocations, frees,
	        conditional_runs, beside;           /* beside: pairs of a graph as it is made, see graph_beside */
} Counts;

typedef struct Settings {
	int sm, sms, blocks, driver, devices, threads;
	uint64_t memory, grain, seed, limit, fail_call;
	CUresult fail_code;
	bool checks;
	const char *missing, *log;
} Settings;

typedef struct Device {
	Settings set;
	bool ready;              /* cuInit was called */
	int pid;
	Arena memory, host;
	CUresult lost;           /* once not 0, every call returns it */
	Counts count;
	pthread_mutex_t lock;    /* all of this, and streams, graphs, modules */
	pthread_cond_t changed;
	Module *module;
	uint64_t grids;
} Device;
extern Device device;

void device_settings(void);          /* from the environment, once */
int device_ptx_version(void);        /* the newest that the driver reads, 90 for 9.0 */
uint64_t device_alloc(uint64_t bytes, const void *owner);
void device_release(const Module *m);  /* the variables of a module */
void device_fill(uint64_t at, const void *from, uint64_t bytes, bool constant);
Arena *device_arena(uint64_t at, uint64_t bytes); /* that holds the range, or NULL */
void graph_set_conditional(struct GraphRun *run, uint64_t handle, unsigned value);
int virtual_leaks(void);     /* api_virtual.c: memory that was made and not given back */
#endif
