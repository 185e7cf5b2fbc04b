/* work.c: what a stream's task or a graph's node does: launches, copies, fills, calls of the host.
 *
 * In: a Work.   Out: its effect on memory, counts, a status. Ranges are checked when the work is made, as the driver
 * does; what a kernel does wrong shows when it runs. */
#include "work.h"

#include <stdlib.h>
#include <string.h>

static Arena *
arena_of(uint64_t at)
{
	return arena_has(&device.memory, at, 1) ? &device.memory : arena_has(&device.host, at, 1) ? &device.host : NULL;
}

/* A range of the device lies within one allocation; any other address is the host's own. */
bool
range_valid(uint64_t at, uint64_t bytes)
{
	const Arena *a = arena_of(at);
	const Allocation *v = a ? arena_find(a, at) : NULL;

	return at && (!a || !bytes || (v && arena_backed(a, v, at, bytes)));
}

static uint8_t *
host_bytes(uint64_t at)
{
	Arena *a = arena_of(at);

	return a ? a->host + (at - a->base) : (uint8_t *)(uintptr_t)at;
}

/* copies */

static void
copy_row(const Copy *c, uint64_t to, uint64_t from, const uint8_t *staged)
{
	Arena *ta = arena_of(to), *fa = staged ? NULL : arena_of(from);

	memmove(host_bytes(to), staged ? staged : host_bytes(from), c->width);
	if (ta && fa) /* what was not written stays unwritten */
		for (uint64_t i = 0; i < c->width; i++) {
			uint8_t written = fa->state[from - fa->base + i] & MEM_WRITTEN;

			ta->state[to - ta->base + i] =
			        (uint8_t)((ta->state[to - ta->base + i] & ~MEM_WRITTEN) | written);
		}
	else if (ta)
		arena_state(ta, to, c->width, MEM_WRITTEN, 0);
}

static void
copy_run(const Copy *c)
{
	uint64_t bytes = c->width * c->height * c->depth;
	bool td = arena_has(&device.memory, c->to, 1), fd = arena_has(&device.memory, c->from, 1);

	for (uint64_t z = 0; z < c->depth; z++)
		for (uint64_t y = 0; y < c->height; y++)
			copy_row(c, c->to + z * c->to_slice + y * c->to_pitch,
			         c->from + z * c->from_slice + y * c->from_pitch,
			         c->staged ? c->staged + (z * c->height + y) * c->width : NULL);
	__atomic_fetch_add(&device.count.copies, 1, __ATOMIC_RELAXED);
	__atomic_fetch_add(td && fd ? &device.count.bytes_on_device
	                   : td     ? &device.count.bytes_to_device
	                            : &device.count.bytes_to_host,
	                   bytes, __ATOMIC_RELAXED);
}

CUresult
work_copy_make(Work *k, uint64_t to, uint64_t from, uint64_t bytes)
{
	if (!range_valid(to, bytes) || !range_valid(from, bytes))
		return CUDA_ERROR_INVALID_VALUE;
	*k = (Work){.kind = WORK_COPY, .as.copy = {.to = to, .from = from, .width = bytes, .height = 1, .depth = 1}};
	return CUDA_SUCCESS;
}

CUresult
work_copy_3d(Work *k, const CUDA_MEMCPY3D *p)
{
	Copy c = { .width = p->WidthInBytes, .height = p->Height, .depth = p->Depth };
	uint64_t to = p->dstMemoryType == CU_MEMORYTYPE_HOST ? (uint64_t)(uintptr_t)p->dstHost : p->dstDevice;
	uint64_t from = p->srcMemoryType == CU_MEMORYTYPE_HOST ? (uint64_t)(uintptr_t)p->srcHost : p->srcDevice;

	if (p->dstMemoryType == CU_MEMORYTYPE_ARRAY || p->srcMemoryType == CU_MEMORYTYPE_ARRAY || !c.width ||
	    !c.height || !c.depth)
		return CUDA_ERROR_INVALID_VALUE;
	c.to_pitch = p->dstPitch ? p->dstPitch : c.width;
	c.from_pitch = p->srcPitch ? p->srcPitch : c.width;
	c.to_slice = c.to_pitch * (p->dstHeight ? p->dstHeight : c.height);
	c.from_slice = c.from_pitch * (p->srcHeight ? p->srcHeight : c.height);
	c.to = to + p->dstXInBytes + p->dstY * c.to_pitch + p->dstZ * c.to_slice;
	c.from = from + p->srcXInBytes + p->srcY * c.from_pitch + p->srcZ * c.from_slice;
	if (!range_valid(c.to, (c.depth - 1) * c.to_slice + (c.height - 1) * c.to_pitch + c.width) ||
	    !range_valid(c.from, (c.depth - 1) * c.from_slice + (c.height - 1) * c.from_pitch + c.width))
		return CUDA_ERROR_INVALID_VALUE;
	*k = (Work){ .kind = WORK_COPY, .as.copy = c };
	return CUDA_SUCCESS;
}

/* fills */

CUresult
work_set_make(Work *k, const CUDA_MEMSET_NODE_PARAMS *p)
{
	uint64_t bytes = p->elementSize, row = p->width * bytes, pitch = p->height > 1 ? p->pitch : row;

	if ((bytes != 1 && bytes != 2 && bytes != 4) || p->dst % bytes || !p->height || pitch < row ||
	    !arena_of(p->dst) || !range_valid(p->dst, (p->height - 1) * pitch + row))
		return CUDA_ERROR_INVALID_VALUE;
	*k = (Work){.kind = WORK_SET,
	            .as.set = {.to = p->dst,
	                       .pitch = pitch,
	                       .width = p->width,
	                       .height = p->height,
	                       .value = p->value,
	                       .bytes = p->elementSize}};
	return CUDA_SUCCESS;
}

static void
set_run(const Set *s)
{
	for (uint64_t y = 0; y < s->height; y++) {
		uint64_t at = s->to + y * s->pitch;
		uint8_t *to = host_bytes(at);

		for (uint64_t i = 0; i < s->width; i++)
			memcpy(to + i * s->bytes, &s->value, s->bytes);
		arena_state(arena_of(at), at, s->width * s->bytes, MEM_WRITTEN, 0);
	}
	__atomic_fetch_add(&device.count.memsets, 1, __ATOMIC_RELAXED);
	__atomic_fetch_add(&device.count.bytes_set, s->width * s->bytes * s->height, __ATOMIC_RELAXED);
}

/* launches */

static CUresult
launch_params(Launch *l, void **params, void **more)
{
	const Func *f = l->func;

	if (f->param_bytes > MAX_PARAMS)
		return CUDA_ERROR_INVALID_VALUE;
	if (params) {
		for (int i = 0; i < f->nparam; i++) {
			if (!params[i])
				return CUDA_ERROR_INVALID_VALUE;
			memcpy(l->param + f->param[i].offset, params[i], f->param[i].bytes);
		}
		return CUDA_SUCCESS;
	}
	for (void **m = more; m && *m != CU_LAUNCH_PARAM_END; m += 2)
		if (*m == CU_LAUNCH_PARAM_BUFFER_POINTER) {
			memcpy(l->param, m[1], f->param_bytes);
			return CUDA_SUCCESS;
		}
	return f->nparam ? CUDA_ERROR_INVALID_VALUE : CUDA_SUCCESS;
}

static CUresult
launch_limits(const Launch *l)
{
	const Func *f = l->func;
	uint64_t threads = (uint64_t)l->block[0] * l->block[1] * l->block[2],
	         blocks = (uint64_t)l->cluster[0] * l->cluster[1] * l->cluster[2];
	uint32_t most = f->max_dynamic ? f->max_dynamic : 49152 > f->shared_static ? 49152 - f->shared_static : 0;

	if (!threads || !l->grid[0] || !l->grid[1] || !l->grid[2] || l->grid[0] > 0x7fffffff || l->grid[1] > 65535 ||
	    l->grid[2] > 65535 || threads > 1024 || l->block[2] > 64)
		return CUDA_ERROR_INVALID_VALUE;
	if (l->dynamic > most)
		return CUDA_ERROR_INVALID_VALUE;
	if (f->max_threads && threads > f->max_threads)
		return CUDA_ERROR_INVALID_VALUE;
	for (int k = 0; k < 3; k++)
		if ((f->req[k] && f->req[k] != l->block[k]) || !l->cluster[k] || l->grid[k] % l->cluster[k])
			return CUDA_ERROR_INVALID_VALUE;
	return blocks > MAX_CLUSTER || (blocks > 1 && device.set.sm < 90) ? CUDA_ERROR_INVALID_VALUE : CUDA_SUCCESS;
}

CUresult
work_launch(Work *k, const CUlaunchConfig *c, Func *f, void **params, void **more)
{
	Launch *l;
	CUresult r;

	if (!f || !f->entry || !f->defined)
		return CUDA_ERROR_INVALID_HANDLE;
	l = calloc(1, sizeof *l);
	if (!l)
		return CUDA_ERROR_OUT_OF_MEMORY;
	*l = (Launch){.module = f->module,
	              .func = f,
	              .grid = {c->gridDimX, c->gridDimY, c->gridDimZ},
	              .block = {c->blockDimX, c->blockDimY, c->blockDimZ},
	              .cluster = {1, 1, 1},
	              .dynamic = c->sharedMemBytes,
	              .limit = device.set.limit,
	              .checks = device.set.checks};
	for (int i = 0; i < 3; i++)
		if (f->cluster[i])
			l->cluster[i] = f->cluster[i];
	for (unsigned i = 0; i < c->numAttrs; i++)
		if (c->attrs[i].id == CU_LAUNCH_ATTRIBUTE_CLUSTER_DIMENSION) {
			l->cluster[0] = c->attrs[i].value.clusterDim.x;
			l->cluster[1] = c->attrs[i].value.clusterDim.y;
			l->cluster[2] = c->attrs[i].value.clusterDim.z;
		}
	r = launch_limits(l);
	if (!r)
		r = launch_params(l, params, more);
	if (r) {
		free(l);
		return r;
	}
	*k = (Work){ .kind = WORK_LAUNCH, .as.launch = l };
	return CUDA_SUCCESS;
}

static CUresult
launch_count(Launch *l, uint64_t *random, GraphRun *run)
{
	CUresult r;

	l->seed = random_next(random);
	l->graph = run;
	l->warp_instructions = l->thread_instructions = 0;
	r = launch_run(l);
	__atomic_fetch_add(run ? &device.count.graph_kernels : &device.count.kernel_launches, 1, __ATOMIC_RELAXED);
	__atomic_fetch_add(&device.count.blocks, (uint64_t)l->grid[0] * l->grid[1] * l->grid[2], __ATOMIC_RELAXED);
	__atomic_fetch_add(&device.count.warp_instructions, l->warp_instructions, __ATOMIC_RELAXED);
	__atomic_fetch_add(&device.count.thread_instructions, l->thread_instructions, __ATOMIC_RELAXED);
	return r;
}

/* Runs without the device's lock, on the thread that runs streams. */
CUresult
work_run(Work *k, uint64_t *random, GraphRun *run)
{
	switch (k->kind) {
	case WORK_LAUNCH: return launch_count(k->as.launch, random, run);
	case WORK_COPY: copy_run(&k->as.copy); break;
	case WORK_SET: set_run(&k->as.set); break;
	case WORK_CALL:
		__atomic_fetch_add(run ? &device.count.graph_kernels : &device.count.kernel_launches, 1,
		                   __ATOMIC_RELAXED);
		return (CUresult)k->as.call.fn(k->as.call.data);
	case WORK_HOST: k->as.host.fn(k->as.host.data); break;
	case WORK_GRAPH: return exec_run(k->as.exec, random);
	case WORK_CHILD: return graph_run(k->as.child, random, run);
	default: break;
	}
	return CUDA_SUCCESS;
}

void
work_free(Work *k)
{
	if (k->kind == WORK_LAUNCH)
		free(k->as.launch);
	if (k->kind == WORK_CALL)
		free(k->as.call.data);
	if (k->kind == WORK_COPY)
		free(k->as.copy.staged);
	if (k->kind == WORK_CHILD)
		graph_free(k->as.child);
	if (k->kind == WORK_CONDITIONAL) {
		for (unsigned i = 0; i < k->as.cond.size; i++)
			graph_free(k->as.cond.body[i]);
		free(k->as.cond.body);
	}
}
