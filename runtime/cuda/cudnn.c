/* cudnn.c: contractions that the compiler left to cuDNN, in place of kernels: plans, and their way into streams and
 * graphs.
 *
 * In: a code object whose functions' names hold lines of plans (RtCode.from < 0), and rows of kernels with the offsets
 * of two operands, the result, what follows a convolution, and the workspace.
 * Out: the library, opened only for such a code object; a handle on the run's stream; a plan for each function, made
 * from its engine and knobs for the device that is there. Each plan runs once before the first step, so that what cuDNN
 * loads when it first runs is there before a graph is made: nothing is allocated in a capture. In a graph a plan is a
 * child graph of the nodes that its execution leaves in a capture. */
#include "cuda.h"
#include "cudnn.h"

#include <stdlib.h>
#include <string.h>

struct CudaDnn {
	Dnn lib;
	void *handle;
	int n;
	DnnProblem *problem;     /* by fn; without a plan: a kernel */
	DnnPlan *plan;
	/* where a plan needs more workspace here than on the device that it was built for */
	CuPtr more; int64_t more_bytes;
};

static bool
dnn_failed(Cuda *c)
{
	return rt_fail(&c->h->error, "%s", c->dnn->lib.error);
}

/* The way out, behind whatever went wrong. */
static bool
without(Cuda *c)
{
	char said[sizeof c->h->error.text];

	memcpy(said, c->h->error.text, sizeof said);
	return rt_fail(&c->h->error, "%s; this program has plans of cuDNN 9: built with --disable cudnn it needs none",
	               said);
}

static bool
dnn_ready(Cuda *c)
{
	struct CudaDnn *x = c->dnn;

	if (!dnn_open(&x->lib))
		return dnn_failed(c);
	if (!dnn_ok(&x->lib, x->lib.open_handle(&x->handle), "cudnnCreate"))
		return dnn_failed(c);
	return dnn_ok(&x->lib, x->lib.set_stream(x->handle, c->stream), "cudnnSetStream") || dnn_failed(c);
}

static bool
dnn_function(Cuda *c, int fn)
{
	struct CudaDnn *x = c->dnn;
	const char *why = dnn_text_read(&x->problem[fn], c->h->object->code->name[fn]);

	if (why)
		return rt_fail(&c->h->error, "the description of a plan is damaged: %s: %.120s", why,
		               c->h->object->code->name[fn]);
	if (!dnn_plan(&x->lib, &x->plan[fn], &x->problem[fn], x->handle, NULL)) {
		dnn_failed(c);
		return rt_context(&c->h->error, "cuDNN %zu makes no plan of engine %lld for %s here", x->lib.version(),
		                  (long long)x->problem[fn].engine, dnn_op_name[x->problem[fn].op]);
	}
	if (x->plan[fn].workspace > x->problem[fn].workspace && x->plan[fn].workspace > x->more_bytes)
		x->more_bytes = x->plan[fn].workspace;
	return true;
}

bool
cuda_dnn_is(const Cuda *c, const RtRow *r)
{
	return c->h->object->code->from[r->fn] < 0;
}

bool
cuda_dnn_run(Cuda *c, const RtRow *r)
{
	struct CudaDnn *x = c->dnn;
	DnnPlan pack = {0};
	int64_t id[DNN_TENSORS];
	int n = dnn_tensors(&x->problem[r->fn]);
	void *at[DNN_TENSORS + 1], *p = dnn_make(&x->lib, &pack, DNN_VARIANT_PACK);
	const DnnPlan *plan = &x->plan[r->fn];
	Dnn *d = &x->lib;
	bool good = p != NULL;

	for (int k = 0; k < n; k++)
		id[k] = k + 1;
	for (int k = 0; k <= n; k++)
		at[k] = (void *)(uintptr_t)(c->arena + (CuPtr)r->off[k]);
	if (plan->workspace > x->problem[r->fn].workspace)
		at[n] = (void *)(uintptr_t)x->more;
	good = good && dnn_ok(d, d->set(p, DNN_PACK_UNIQUE_IDS, DNN_TYPE_INT64, n, id), "the tensors of a plan") &&
	       dnn_ok(d, d->set(p, DNN_PACK_DATA_POINTERS, DNN_TYPE_VOID_PTR, n, at), "the tensors of a plan") &&
	       dnn_ok(d, d->set(p, DNN_PACK_WORKSPACE, DNN_TYPE_VOID_PTR, 1, &at[n]), "the workspace of a plan") &&
	       dnn_ok(d, d->finalize(p), "the tensors of a plan") &&
	       dnn_ok(d, d->execute(x->handle, plan->plan, p), "cudnnBackendExecute");
	dnn_plan_free(d, &pack);
	return good || dnn_failed(c) || cuda_row_context(c, r);
}

/* Whatever was captured is ended, after an error too. */
bool
cuda_dnn_add(Cuda *c, CuGraph graph, const CuNode *after, size_t n, const RtRow *r, CuNode *made)
{
	CuGraph child = NULL;
	bool good;

	if (!CUDA(c, cuStreamBeginCapture, c->stream, CU_CAPTURE_THREAD))
		return cuda_row_context(c, r);
	good = cuda_dnn_run(c, r);
	int status = c->cu.cuStreamEndCapture(c->stream, &child);

	if (good)
		good = (cuda_ok(c, status, "cuStreamEndCapture") &&
		        CUDA(c, cuGraphAddChildGraphNode, made, graph, after, n, child)) ||
		       cuda_row_context(c, r);
	if (child)
		c->cu.cuGraphDestroy(child);
	return good;
}

/* The first row of each plan. */
static bool
dnn_first(Cuda *c)
{
	bool *ran = rt_alloc(sizeof *ran * (size_t)(c->dnn->n + 1)), good = true;

	for (int g = 0; g < RT_G_COUNT && good; g++)
		for (int k = 0; k < c->h->program.graph[g].nrow && good; k++) {
			const RtRow *r = &c->h->program.graph[g].row[k];

			if (!cuda_dnn_is(c, r))
				continue;
			int want = dnn_tensors(&c->dnn->problem[r->fn]) + 1;
			bool again = ran[r->fn];

			ran[r->fn] = true;
			if (r->noff != want)
				good = rt_fail(&c->h->error,
				               "the program's descriptor: a plan of cuDNN has %d offsets, not %d",
				               r->noff, want) ||
				       cuda_row_context(c, r);
			else if (!again)
				good = cuda_dnn_run(c, r) &&
				       (CUDA(c, cuStreamSynchronize, c->stream) || cuda_row_context(c, r));
		}
	free(ran);
	return good;
}

bool
cuda_dnn_open(Cuda *c)
{
	const RtCodeObject *m = c->h->object;
	bool good = true, any = false;

	for (int i = 0; i < m->nkernel; i++)
		any |= m->code->from[i] < 0;
	if (!any)
		return true;
	c->dnn = rt_alloc(sizeof *c->dnn);
	c->dnn->n = m->nkernel;
	c->dnn->problem = rt_alloc(sizeof *c->dnn->problem * (size_t)m->nkernel);
	c->dnn->plan = rt_alloc(sizeof *c->dnn->plan * (size_t)m->nkernel);
	good = dnn_ready(c);
	for (int i = 0; i < m->nkernel && good; i++)
		if (m->code->from[i] < 0)
			good = dnn_function(c, i);
	if (good && c->dnn->more_bytes)
		good = cuda_alloc(c, &c->dnn->more, c->dnn->more_bytes, "the workspace of cuDNN's plans");
	return (good && dnn_first(c)) || without(c);
}

void
cuda_dnn_close(Cuda *c)
{
	struct CudaDnn *x = c->dnn;

	if (!x)
		return;
	for (int i = 0; i < x->n; i++)
		dnn_plan_free(&x->lib, &x->plan[i]);
	if (x->handle)
		x->lib.close_handle(x->handle);
	if (x->more)
		c->cu.cuMemFree(x->more);
	free(x->problem);
	free(x->plan);
	free(x);
	c->dnn = NULL;
}
