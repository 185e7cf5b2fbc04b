/* device.c: the device's memory and code: made before the first step, and what goes to and fro.
 *
 * One allocation (arena.c) holds the loop's state (256 bytes) and the arena. Copies go through a stream and are waited
 * for, so that they stand in order with kernels. An arena that does not fit is refused with the batch that would. */
#include "cuda.h"

#include <assert.h>
#include <stdlib.h>
#include <string.h>

/* bytes of shared memory that a block has without asking; beside the arena */
enum { DEVICE_SHARED = 48 << 10, DEVICE_OTHER = 1 << 9 };

/* Sets the condition of a loop's node: whether neither status nor fault is set. Alone in its module: the function that
 * it calls is the driver's. */
static const char condition_text[] =
        ".version 8.0\n.target sm_75\n.address_size 64\n"
        ".extern .func cudaGraphSetConditional(.param .b64 handle, .param .b32 value);\n"
        ".visible .entry loop_while(.param .u64 arena, .param .u64 handle)\n{\n"
        "\t.reg .pred %p<2>;\n\t.reg .b32 %r<2>;\n\t.reg .b64 %d<6>;\n"
        "\tld.param.u64 %d0, [arena];\n\tld.param.u64 %d1, [handle];\n"
        "\tld.u64 %d2, [%d0+-256];\n\tld.u64 %d3, [%d0];\n"
        "\tor.b64 %d4, %d2, %d3;\n\tsetp.eq.s64 %p1, %d4, 0;\n\tselp.b32 %r1, 1, 0, %p1;\n"
        "\t{\n\t.param .b64 a;\n\t.param .b32 b;\n\tst.param.b64 [a], %d1;\n\tst.param.b32 [b], %r1;\n\tcall.uni "
        "cudaGraphSetConditional, (a, b);\n\t}\n"
        "\tret;\n}\n";

bool
cuda_alloc(Cuda *c, CuPtr *to, int64_t bytes, const char *what)
{
	int status = c->cu.cuMemAlloc(to, (size_t)(bytes > 0 ? bytes : 1));
	size_t available = 0, total = 0;

	if (status == 0)
		return true;
	*to = 0;
	if (status != CU_OUT_OF_MEMORY || c->cu.cuMemGetInfo(&available, &total))
		return cuda_ok(c, status, "cuMemAlloc") || rt_context(&c->h->error, "%s", what);
	return rt_fail(&c->h->error,
	               "out of memory: %s needs %.1f MiB, the device has %.1f MiB free of %.1f beside the arena's "
	               "%.1f; a smaller batch leaves more",
	               what, (double)bytes / 0x1p20, (double)available / 0x1p20, (double)total / 0x1p20,
	               (double)c->h->program.arena_bytes / 0x1p20);
}

/* ---- copies */

bool
cuda_put(Cuda *c, CuPtr to, const void *from, int64_t bytes)
{
	return bytes <= 0 || (CUDA(c, cuMemcpyHtoDAsync, to, from, (size_t)bytes, c->stream) &&
	                      CUDA(c, cuStreamSynchronize, c->stream));
}

bool
cuda_get(Cuda *c, void *to, CuPtr from, int64_t bytes)
{
	return bytes <= 0 || (CUDA(c, cuMemcpyDtoHAsync, to, from, (size_t)bytes, c->stream) &&
	                      CUDA(c, cuStreamSynchronize, c->stream));
}

bool
cuda_fetch(RtHost *h, int64_t offset, int64_t bytes)
{
	Cuda *c = h->device;

	if (h->run.prepacked == 0)                    /* the host's are newer */
		return true;
	return CUDA(c, cuCtxSetCurrent, c->context) && cuda_arena_get(c, offset, offset + bytes);
}

/* States stand together. */
static bool
device_states(Cuda *c)
{
	const RtProgram *p = &c->h->program;
	int64_t begin = INT64_MAX, end = 0;

	for (int k = 0; k < p->nstate; k++) {
		const RtTensor *t = &p->state[k].t;

		if (p->state[k].kind == RT_CARRY)
			continue;
		begin = t->offset < begin ? t->offset : begin;
		end = t->offset + t->bytes > end ? t->offset + t->bytes : end;
	}
	if (end > begin && !cuda_arena_put(c, begin, end))
		return rt_context(&c->h->error, "states to the device");
	c->h->run.prepacked = CUDA_CURRENT;
	return true;
}

bool
cuda_here(Cuda *c)
{
	return CUDA(c, cuCtxSetCurrent, c->context) && (c->h->run.prepacked != 0 || device_states(c));
}

bool
cuda_beside(Cuda *c, int k)
{
	int64_t bytes = c->h->program.input[k].t.bytes;

	if (c->beside[k])
		return true;
	bytes *= c->shards.copies;
	if (!cuda_alloc(c, &c->beside[k], bytes, "a batch that the host has gathered"))
		return false;
	c->h->device_bytes += (size_t)bytes;
	return true;
}

/* Examples that the host has gathered, for an input that holds addresses: they lie beside the arena, those of
 * each shard that runs in step. */
static bool
inputs_addressed(Cuda *c, int k, int64_t offset, int64_t n)
{
	RtHost *h = c->h;
	int64_t bytes = h->program.input[k].t.bytes, each = bytes / h->program.batch;
	CuPtr *at, copy = (c->arena - c->base) / c->shards.stride, beside;
	bool good;

	if (!cuda_beside(c, k))
		return false;
	beside = c->beside[k] + copy * (CuPtr)bytes;
	at = rt_alloc(sizeof *at * (size_t)n);
	for (int64_t i = 0; i < n; i++)
		at[i] = beside + (CuPtr)(i * each);
	good = cuda_put(c, beside, h->run.arena + offset, each * n) &&
	       cuda_put(c, c->arena + (CuPtr)offset, at, (int64_t)sizeof *at * n);
	free(at);
	return good;
}

bool
cuda_inputs(Cuda *c, const RtGraph *g, int64_t n)
{
	RtHost *h = c->h;

	for (int k = 0; k < h->program.ninput && h->fresh; k++) {
		int64_t at = g->input[k], bytes = h->program.input[k].t.bytes / h->program.batch * n;

		if (at >= 0 && !(g->addressed >> k & 1 ? inputs_addressed(c, k, at, n)
		                                       : cuda_put(c, c->arena + (CuPtr)at, h->run.arena + at, bytes)))
			return rt_context(&h->error, "input %s to the device", h->program.input[k].t.name);
	}
	h->fresh = false;
	return true;
}

/* ---- opening */

static bool
device_memory(Cuda *c)
{
	const RtProgram *p = &c->h->program;
	CudaShards *s = &c->shards;
	size_t bytes, available = 0, total = 0;
	int64_t state = 0, room, fit;
	int status;

	cuda_shards_room(c);
	s->stride = ((CuPtr)p->arena_bytes + DEVICE_OTHER + 255) & ~(CuPtr)255;
	bytes = (size_t)p->arena_bytes + DEVICE_OTHER + (size_t)s->stride * (size_t)(s->copies - 1);
	status = cuda_arena_alloc(c, bytes);
	static_assert(DEVICE_OTHER > RT_LOOP_BYTES, "kernels may read a little behind the arena");
	c->arena = c->base + RT_LOOP_BYTES;
	if (status != CU_OUT_OF_MEMORY)
		return cuda_ok(c, status, "cuMemAlloc, or cuMemMap");
	c->base = 0;
	if (!CUDA(c, cuMemGetInfo, &available, &total))
		return false;
	for (int k = 0; k < p->nstate; k++)
		state += p->state[k].t.bytes;
	room = (int64_t)available - state - DEVICE_OTHER;
	fit = room > 0 && p->arena_bytes > state
	              ? (int64_t)((double)room / (double)(p->arena_bytes - state) / s->copies * (double)p->batch)
	              : 0;
	fit = fit < p->batch ? fit : p->batch - 1;
	return rt_fail(&c->h->error,
	               "out of memory: the arena needs %.1f MiB (%.1f of them states) for batches of %lld, the device "
	               "has %.1f MiB free of %.1f; %s%lld",
	               (double)bytes / 0x1p20, (double)state / 0x1p20, (long long)p->batch, (double)available / 0x1p20,
	               (double)total / 0x1p20,
	               fit > 0 ? "the largest batch that fits is about " : "no batch fits: ", (long long)fit);
}

static bool
device_load(Cuda *c, CuModule *to, const void *code, const char *what)
{
	char log[700] = "";
	int option[] = {CU_ERROR_LOG, CU_ERROR_LOG_BYTES}, status;
	void *value[] = {log, (void *)(uintptr_t)(sizeof log - 1)};

	status = c->cu.cuModuleLoadDataEx(to, code, 2, option, value);
	if (cuda_ok(c, status, "cuModuleLoadDataEx"))
		return true;
	if (*log)
		rt_context(&c->h->error, "%s", log);
	return rt_context(&c->h->error, "the driver (of CUDA %d.%d) does not take %s", c->version / 1000,
	                  c->version % 1000 / 10, what);
}

static bool
device_function(Cuda *c, CuFunction *to, int64_t module, const char *name)
{
	return CUDA(c, cuModuleGetFunction, to, c->module[module], name) || rt_context(&c->h->error, "kernel %s", name);
}

static void
device_unload(Cuda *c, const RtCode *code)
{
	for (int64_t i = 0; c->module && i < code->nmodule; i++)
		if (c->module[i])
			c->cu.cuModuleUnload(c->module[i]);
	free(c->module);
	c->module = NULL;
}

/* One module; quiet: a refusal is no error. */
static bool
device_module(Cuda *c, CuModule *to, const uint8_t *code, int64_t packed, const char *what, bool quiet)
{
	uint8_t *plain = NULL;
	char why[128];
	size_t n;

	if (packed && (!rt_gzip_read || !rt_gzip_read(code, (size_t)packed, &plain, &n, why, sizeof why)))
		return rt_fail(&c->h->error, "%s cannot be unpacked: %s", what,
		               rt_gzip_read ? why : "this program was linked without gzip");
	bool good = quiet ? c->cu.cuModuleLoadDataEx(to, plain ? plain : code, 0, NULL, NULL) == 0
	                  : device_load(c, to, plain ? plain : code, what);

	free(plain);
	return good;
}

/* All modules as they are in the code object. */
static bool
device_modules(Cuda *c, const RtCode *code)
{
	for (int64_t i = 0; i < code->nmodule; i++)
		if (!device_module(c, &c->module[i], code->module[i].code, code->module[i].packed, "the kernels", true))
			return false;
	return true;
}

bool
cuda_load(Cuda *c, const RtCode *code)
{
	char what[96];
	bool ptx = cuda_takes_ptx(c, code);

	c->module = rt_alloc(sizeof *c->module * (size_t)code->nmodule);
	/* cubins that do not fit, or that the driver refuses all the same, have PTX that stands in for them */
	if (ptx && cuda_takes_code(c, code) && device_modules(c, code))
		return true;
	device_unload(c, code);
	c->module = rt_alloc(sizeof *c->module * (size_t)code->nmodule);
	snprintf(what, sizeof what, "the kernels for %s", ptx ? code->ptx_arch : code->arch);
	for (int64_t i = 0; i < code->nmodule; i++) {
		const RtModule *m = &code->module[i];

		if (!device_module(c, &c->module[i], ptx ? m->ptx : m->code, ptx ? m->ptx_packed : m->packed, what,
		                   false)) {
			device_unload(c, code);
			return false;
		}
	}
	return true;
}

/* Blocks of function i that a multiprocessor holds at one time. */
static bool
device_blocks(Cuda *c, int i, int *to)
{
	const RtCode *code = c->h->object->code;

	return CUDA(c, cuOccupancyMaxActiveBlocksPerMultiprocessor, to, c->fn[i], code->block[i],
	            (size_t)code->shared[i]);
}

/* Blocks that wait for each other must all be there: a part of a device, or another one than the compiler had in
 * mind, may hold fewer, and they would wait for ever. */
static bool
device_team(Cuda *c, int i)
{
	const RtCode *code = c->h->object->code;
	int team = code->team ? code->team[i] : 1, blocks;

	if (team <= 1)
		return true;
	if (!device_blocks(c, i, &blocks))
		return rt_context(&c->h->error, "kernel %s", code->name[i]);
	return (int64_t)blocks * c->sms >= team ||
	       rt_fail(&c->h->error,
	               "kernel %s has %d blocks that wait for each other, the device holds %d at a time (%d "
	               "multiprocessors, %d blocks each): mantou build --disable held makes a program without",
	               code->name[i], team, blocks * c->sms, c->sms, blocks);
}

int
cuda_resident(RtHost *h, const RtRow *r)
{
	Cuda *c = h->device;
	int blocks;

	return h->object->code->from[r->fn] >= 0 && device_blocks(c, r->fn, &blocks) ? blocks : 0;
}

static bool
device_code(Cuda *c)
{
	const RtCodeObject *m = c->h->object;
	const RtCode *code = m->code;

	if (!device_function(c, &c->loop_call, 0, "loop_call") || !device_function(c, &c->loop_loss, 0, "loop_loss") ||
	    !device_function(c, &c->loop_emit, 0, "loop_emit"))
		return false;
	c->fn = rt_alloc(sizeof *c->fn * (size_t)(m->nkernel + 1));
	for (int i = 0; i < m->nkernel; i++) {
		if (code->from[i] < 0) /* a plan of cuDNN */
			continue;
		if (!device_function(c, &c->fn[i], code->from[i], code->name[i]))
			return false;
		if (code->shared[i] > DEVICE_SHARED &&
		    !CUDA(c, cuFuncSetAttribute, c->fn[i], CU_DYNAMIC_SHARED, code->shared[i]))
			return rt_context(&c->h->error, "kernel %s with %d bytes of shared memory", code->name[i],
			                  (int)code->shared[i]);
		/* two blocks share a multiprocessor whose memory is all shared memory: a wish, may be refused */
		if (code->shared[i] > DEVICE_SHARED)
			c->cu.cuFuncSetAttribute(c->fn[i], CU_CARVEOUT, 100);
		if (!device_team(c, i))
			return false;
	}
	return true;
}

/* A loop in a graph takes a driver of CUDA 12.4; without it an epoch is a graph a step. */
static bool
device_condition(Cuda *c)
{
	c->no_while = !c->cu.cuGraphConditionalHandleCreate || !c->cu.cuGraphAddNode;
	if (c->no_while) {
		snprintf(c->why_while, sizeof c->why_while, "that takes a driver for CUDA 12.4, this one is for %d.%d",
		         c->version / 1000, c->version % 1000 / 10);
		return true;
	}
	if (device_load(c, &c->condition, condition_text, "the kernel of loops in graphs") &&
	    CUDA(c, cuModuleGetFunction, &c->loop_while, c->condition, "loop_while"))
		return true;
	/* said when an epoch is asked for; a device that is lost fails the next call too */
	c->no_while = true;
	snprintf(c->why_while, sizeof c->why_while, "%.*s", (int)sizeof c->why_while - 1, c->h->error.text);
	c->h->error.text[0] = 0;
	return true;
}

static bool
device_tables(Cuda *c)
{
	const RtProgram *p = &c->h->program;
	LoopResult r[RT_MAX_RESULTS];
	int most = 0;

	if (!cuda_alloc(c, &c->tables, RT_G_COUNT * (int64_t)(sizeof(LoopInput) * RT_MAX_INPUTS + sizeof r),
	                "the loops' tables"))
		return false;
	for (int g = 0; g < RT_G_COUNT; g++) {
		const RtGraph *graph = &p->graph[g];

		for (int k = 0; k < graph->nscalar; k++)
			r[k] = (LoopResult){.offset = graph->scalar_offset[k],
			                    .bytes = rt_dtype[graph->scalar_dtype[k]].bytes};
		if (!cuda_put(c, cuda_result_table(c, g), r, (int64_t)sizeof *r * graph->nscalar))
			return false;
		c->words = graph->nscalar + 1 > c->words ? graph->nscalar + 1 : c->words;
		for (int k = 0; k < graph->nrow; k++)
			most = graph->row[k].noff > most ? graph->row[k].noff : most;
	}
	c->parameters = most + 2 + RT_MAX_MAPS;
	c->parameter = rt_alloc(sizeof *c->parameter * (size_t)c->parameters);
	c->moved = rt_alloc(sizeof *c->moved * (size_t)c->parameters);
	return true;
}

bool
cuda_open(RtHost *h)
{
	Cuda *c = h->device;

	if (h->program.fault_offset != 0 || !h->object->code)
		return rt_fail(&h->error, "the program's descriptor: a device's fault record is at offset 0, and its "
		                          "code object has code");
	return CUDA(c, cuCtxSetCurrent, c->context) && CUDA(c, cuStreamCreate, &c->stream, CU_NON_BLOCKING) &&
	       CUDA(c, cuStreamCreate, &c->copy, CU_NON_BLOCKING) && device_code(c) && device_condition(c) &&
	       device_memory(c) && device_tables(c) && cuda_put(c, c->base, &c->top, sizeof c->top) &&
	       cuda_dnn_open(c) && cuda_shards_open(c);
}

/* Whatever there is of it; after an error too. */
void
cuda_close(RtHost *h)
{
	Cuda *c = h->device;

	if (!c || !c->retained)
		return;
	c->cu.cuCtxSetCurrent(c->context);
	cuda_plans_free(c);
	cuda_dnn_close(c);
	cuda_shards_close(c);
	cuda_data_free(c);
	for (int i = 0; i < c->nevent; i++)
		c->cu.cuEventDestroy(c->event[i]);
	if (c->tables)
		c->cu.cuMemFree(c->tables);
	for (int k = 0; k < RT_MAX_INPUTS; k++)
		if (c->beside[k])
			c->cu.cuMemFree(c->beside[k]);
	cuda_arena_free(c);
	if (c->module)
		device_unload(c, h->object->code);
	if (c->condition)
		c->cu.cuModuleUnload(c->condition);
	if (c->stream)
		c->cu.cuStreamDestroy(c->stream);
	if (c->copy)
		c->cu.cuStreamDestroy(c->copy);
	c->cu.cuDevicePrimaryCtxRelease(c->device);
	free(c->event);
	free(c->parameter);
	free(c->moved);
	free(c->fn);
	free(c);
	h->device = NULL;
}
