/* cudnn.c: a simulated cuDNN: libcudnn.so.9 with as much of the backend interface as mantou calls.
 *
 * In: descriptors of convolutions, their gradients and products of matrices.   Out: plans, without a device too, and
 * their execution on the simulated driver of tests/cudasim, in the stream's order or in the graph that it captures.
 * Three engines: 7 (convolutions), 8 (the same with a workspace) and 3 (products); 9 is named first by the heuristics
 * and adds in no fixed order. A convolution may be followed by an addition of a tensor, of a bias, and by relu, in this
 * order, the bias always, with sums in f32 between and bias and tensor of the result's
 * type: what the real one has without a device. Refused, as cuDNN does: channels that are not innermost, results in f32
 * of convolutions, attributes and types that do not belong together. Engine 8 needs a workspace, and so does every plan
 * for an H200. A plan that first runs in a capture is refused too: the real one loads its kernels then.
 * MANTOU_DNN_REFUSE=N     engine N makes no plan with a handle      MANTOU_DNN_WORKSPACE=N   more bytes of workspace
 * with a handle than without
 * MANTOU_DNN_EXECUTE=N    executions fail from the Nth on           MANTOU_DNN_LOG=FILE      plans and executions when
 * the process ends */
#define _GNU_SOURCE
#include "../../runtime/cuda/cudnn.h"
#include "compute.h"

#include <dlfcn.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define API __attribute__((visibility("default")))
enum {
	BAD_PARAM = 2000, NOT_INITIALIZED = 1001, NOT_SUPPORTED = 3000, NOT_SUPPORTED_DATA_TYPE = 3003,
	NOT_SUPPORTED_LAYOUT = 3004, ARCH_MISMATCH = 3007, EXECUTION_FAILED = 5000,
};
enum { ATTRS = 16, WORKSPACE = 1000 };

typedef struct Attr { int name, type; int64_t n; void *at; } Attr;
typedef struct Desc { int type; bool final, ran; Attr attr[ATTRS]; int nattr; int64_t workspace; } Desc;
typedef struct Handle {
	void *stream;
	int (*call)(void *stream, int (*fn)(const void *), const void *data, size_t bytes);
	int (*capturing)(void *stream, int *to);
	void *library;
} Handle;

static char words[256];
static long executions, plans;

static int said(int status, const char *fmt, ...) __attribute__((format(printf, 2, 3)));
static int
said(int status, const char *fmt, ...)
{
	va_list args;

	va_start(args, fmt);
	vsnprintf(words, sizeof words, fmt, args);
	va_end(args);
	return status;
}

static long
setting(const char *name)
{
	const char *s = getenv(name);

	return s && *s ? atol(s) : -1;
}

__attribute__((destructor)) static void
leave(void)
{
	const char *log = getenv("MANTOU_DNN_LOG");
	FILE *f = log ? fopen(log, "w") : NULL;

	if (f) {
		fprintf(f, "{\"plans\": %ld, \"executions\": %ld}\n", plans, executions);
		fclose(f);
	}
}

/* ---- descriptors */

static size_t
size_of(int type)
{
	switch (type) {
	case DNN_TYPE_BOOLEAN: return sizeof(bool);
	case DNN_TYPE_INT64: return 8;
	case DNN_TYPE_HANDLE: case DNN_TYPE_VOID_PTR: case DNN_TYPE_BACKEND_DESCRIPTOR: return sizeof(void *);
	case DNN_TYPE_CHAR: return 1;
	default: return 4;
	}
}

static const Attr *
attr(const Desc *d, int name)
{
	for (int i = 0; i < d->nattr; i++)
		if (d->attr[i].name == name)
			return &d->attr[i];
	return NULL;
}

static int64_t
number(const Desc *d, int name)
{
	const Attr *a = attr(d, name);
	int64_t v = 0;

	if (a)
		memcpy(&v, a->at, size_of(a->type));
	return v;
}

static const Desc *
inner(const Desc *d, int name)
{
	const Attr *a = attr(d, name);

	return a && a->type == DNN_TYPE_BACKEND_DESCRIPTOR && a->n == 1 ? *(const Desc *const *)a->at : NULL;
}

API int
cudnnBackendCreateDescriptor(int type, void **to)
{
	Desc *d = calloc(1, sizeof *d);

	if (!d)
		abort();
	d->type = type;
	*to = d;
	return 0;
}

API int
cudnnBackendDestroyDescriptor(void *p)
{
	Desc *d = p;

	for (int i = 0; i < d->nattr; i++)
		free(d->attr[i].at);
	memset(d, 0xee, sizeof *d); /* who uses it later finds out */
	free(d);
	return 0;
}

/* Of which type each attribute is, and of which descriptor: by hundreds, as they are numbered. */
static const struct { int from, to, descriptor, type;
} attributes[] = {
        {0, 0, DNN_POINTWISE, DNN_TYPE_POINTWISE_MODE},
        {1, 1, DNN_POINTWISE, DNN_TYPE_DATA_TYPE},
        {750, 753, DNN_OPERATION_POINTWISE, DNN_TYPE_BACKEND_DESCRIPTOR},
        {907, 907, DNN_TENSOR, DNN_TYPE_BOOLEAN},
        {100, 101, DNN_CONVOLUTION, -1},
        {102, 106, DNN_CONVOLUTION, DNN_TYPE_INT64},
        {200, 200, DNN_ENGINEHEUR, DNN_TYPE_HEUR_MODE},
        {201, 204, DNN_ENGINEHEUR, DNN_TYPE_BACKEND_DESCRIPTOR},
        {300, 302, DNN_ENGINECFG, DNN_TYPE_BACKEND_DESCRIPTOR},
        {400, 400, DNN_EXECUTION_PLAN, DNN_TYPE_HANDLE},
        {401, 401, DNN_EXECUTION_PLAN, DNN_TYPE_BACKEND_DESCRIPTOR},
        {407, 407, DNN_EXECUTION_PLAN, DNN_TYPE_BACKEND_DESCRIPTOR},
        {600, 600, DNN_KNOB_CHOICE, DNN_TYPE_KNOB_TYPE},
        {601, 601, DNN_KNOB_CHOICE, DNN_TYPE_INT64},
        {700, 701, DNN_OPERATION_CONVOLUTION_FORWARD, DNN_TYPE_FLOAT},
        {702, 705, DNN_OPERATION_CONVOLUTION_FORWARD, DNN_TYPE_BACKEND_DESCRIPTOR},
        {706, 707, DNN_OPERATION_CONVOLUTION_BACKWARD_DATA, DNN_TYPE_FLOAT},
        {708, 711, DNN_OPERATION_CONVOLUTION_BACKWARD_DATA, DNN_TYPE_BACKEND_DESCRIPTOR},
        {712, 713, DNN_OPERATION_CONVOLUTION_BACKWARD_FILTER, DNN_TYPE_FLOAT},
        {714, 717, DNN_OPERATION_CONVOLUTION_BACKWARD_FILTER, DNN_TYPE_BACKEND_DESCRIPTOR},
        {800, 800, DNN_OPERATIONGRAPH, DNN_TYPE_HANDLE},
        {801, 801, DNN_OPERATIONGRAPH, DNN_TYPE_BACKEND_DESCRIPTOR},
        {900, 900, DNN_TENSOR, DNN_TYPE_INT64},
        {901, 901, DNN_TENSOR, DNN_TYPE_DATA_TYPE},
        {902, 906, DNN_TENSOR, DNN_TYPE_INT64},
        {1000, 1000, DNN_VARIANT_PACK, DNN_TYPE_INT64},
        {1001, 1003, DNN_VARIANT_PACK, DNN_TYPE_VOID_PTR},
        {1300, 1300, DNN_ENGINE, DNN_TYPE_BACKEND_DESCRIPTOR},
        {1301, 1301, DNN_ENGINE, DNN_TYPE_INT64},
        {1307, 1307, DNN_ENGINE, DNN_TYPE_BACKEND_DESCRIPTOR},
        {1500, 1500, DNN_MATMUL, DNN_TYPE_DATA_TYPE},
        {1520, 1523, DNN_OPERATION_MATMUL, DNN_TYPE_BACKEND_DESCRIPTOR},
        {2702, 2702, DNN_DEVICEPROP, DNN_TYPE_CHAR},
};

API int
cudnnBackendSetAttribute(void *p, int name, int type, int64_t n, const void *at)
{
	Desc *d = p;
	bool known = false;

	for (size_t i = 0; i < sizeof attributes / sizeof *attributes; i++)
		known |= name >= attributes[i].from && name <= attributes[i].to &&
		         d->type == attributes[i].descriptor && (attributes[i].type < 0 || attributes[i].type == type);
	if (!known || n < 1 || !at || d->nattr == ATTRS)
		return said(BAD_PARAM, "attribute %d is none of descriptor %d, or not of type %d", name, d->type, type);
	if (d->final)
		return said(BAD_PARAM, "descriptor %d is final", d->type);
	for (int64_t i = 0; type == DNN_TYPE_BACKEND_DESCRIPTOR && i < n; i++)
		if (!((Desc *const *)at)[i] || !((Desc *const *)at)[i]->final)
			return said(BAD_PARAM, "attribute %d: a descriptor that is not final", name);
	Attr *a = &d->attr[d->nattr++];

	*a = (Attr){name, type, n, malloc(size_of(type) * (size_t)n + 1)};
	if (!a->at)
		abort();
	memcpy(a->at, at, size_of(type) * (size_t)n);
	return 0;
}

/* ---- problems */

/* Operation k of a graph, NULL behind the last. */
static const Desc *
operation_at(const Desc *graph, int64_t k)
{
	const Attr *a = attr(graph, DNN_GRAPH_OPS);

	return a && k < a->n ? ((const Desc *const *)a->at)[k] : NULL;
}

static const Desc *
operation(const Desc *graph)
{
	return operation_at(graph, 0);
}

static bool
tensor_of(const Desc *d, Tensor *t)
{
	const Attr *dim = d ? attr(d, DNN_TENSOR_DIMENSIONS) : NULL, *stride = d ? attr(d, DNN_TENSOR_STRIDES) : NULL;

	if (!dim || !stride || dim->n != stride->n || dim->n > 4)
		return false;
	*t = (Tensor){.dtype = (int)number(d, DNN_TENSOR_DATA_TYPE),
	              .rank = (int)dim->n,
	              .id = number(d, DNN_TENSOR_UNIQUE_ID)};
	memcpy(t->dim, dim->at, sizeof *t->dim * (size_t)dim->n);
	memcpy(t->stride, stride->at, sizeof *t->stride * (size_t)stride->n);
	return true;
}

static int
problem_of(const Desc *op, Job *j)
{
	static const int first[] = {[DNN_OPERATION_CONVOLUTION_FORWARD] = DNN_FORWARD_ALPHA,
	                            [DNN_OPERATION_CONVOLUTION_BACKWARD_DATA] = DNN_BWD_DATA_ALPHA,
	                            [DNN_OPERATION_CONVOLUTION_BACKWARD_FILTER] = DNN_BWD_FILTER_ALPHA};
	bool good;

	*j = (Job){.kind = op->type};
	if (op->type == DNN_OPERATION_MATMUL) {
		good = tensor_of(inner(op, DNN_MATMUL_ADESC), &j->x) && tensor_of(inner(op, DNN_MATMUL_BDESC), &j->w) &&
		       tensor_of(inner(op, DNN_MATMUL_CDESC), &j->y) && inner(op, DNN_MATMUL_DESC);
		return good ? 0 : said(BAD_PARAM, "a product lacks a tensor");
	}
	int a = first[op->type];
	const Desc *c = inner(op, a + 2);

	/* w, x and y, in the one order of all three operations' attributes */
	good = c && tensor_of(inner(op, a + 3), &j->w) && tensor_of(inner(op, a + 4), &j->x) &&
	       tensor_of(inner(op, a + 5), &j->y);
	if (!good || number(c, DNN_CONVOLUTION_SPATIAL_DIMS) != 2 ||
	    number(c, DNN_CONVOLUTION_CONV_MODE) != DNN_CROSS_CORRELATION ||
	    number(c, DNN_CONVOLUTION_COMP_TYPE) != DNN_DATA_FLOAT)
		return said(BAD_PARAM,
		            "a convolution lacks something, or is not of two dimensions, without turning, in f32");
	memcpy(j->pad, attr(c, DNN_CONVOLUTION_PRE_PADDINGS)->at, sizeof j->pad);
	memcpy(j->stride, attr(c, DNN_CONVOLUTION_FILTER_STRIDES)->at, sizeof j->stride);
	memcpy(j->dilation, attr(c, DNN_CONVOLUTION_DILATIONS)->at, sizeof j->dilation);
	for (int k = 0; k < 2; k++)
		if (j->y.dim[2 + k] !=
		    (j->x.dim[2 + k] + 2 * j->pad[k] - (j->w.dim[2 + k] - 1) * j->dilation[k] - 1) / j->stride[k] + 1)
			return said(BAD_PARAM, "the result of a convolution does not have the shape that follows");
	if (j->x.dim[0] != j->y.dim[0] || j->w.dim[0] != j->y.dim[1] || j->x.dim[1] % j->w.dim[1] != 0)
		return said(BAD_PARAM, "the channels or images of a convolution do not meet");
	return 0;
}

static bool
same_tensor(const Tensor *a, const Tensor *b)
{
	return a->rank == b->rank && !memcmp(a->dim, b->dim, sizeof *a->dim * (size_t)a->rank) &&
	       !memcmp(a->stride, b->stride, sizeof *a->stride * (size_t)a->rank);
}

/* One operation behind a convolution, on what was made so far, tensor *id. */
static int
follows(const Desc *op, Job *j, int64_t *id)
{
	const Desc *how = op->type == DNN_OPERATION_POINTWISE ? inner(op, DNN_POINTWISE_DESC) : NULL,
	           *b = how ? inner(op, DNN_POINTWISE_BDESC) : NULL;
	Tensor x, y, with = {0};

	if (!how || !tensor_of(inner(op, DNN_POINTWISE_XDESC), &x) || !tensor_of(inner(op, DNN_POINTWISE_YDESC), &y) ||
	    (b && !tensor_of(b, &with)) || x.id != *id || !same_tensor(&x, &y) ||
	    number(how, DNN_POINTWISE_MATH_PREC) != DNN_DATA_FLOAT)
		return said(NOT_SUPPORTED, "what follows a convolution does not read it, or not in f32");
	if (x.dtype != DNN_DATA_FLOAT || !number(inner(op, DNN_POINTWISE_XDESC), DNN_TENSOR_IS_VIRTUAL))
		return said(NOT_SUPPORTED, "the sums of a convolution that goes on are f32 and nowhere in memory");
	*id = y.id;
	if (number(how, DNN_POINTWISE_MODE) == DNN_POINTWISE_RELU_FWD) {
		if (b || !j->biased || j->relu)
			return said(NOT_SUPPORTED, "relu without a bias, or twice");
		j->relu = true;
	} else if (b && same_tensor(&with, &y) && !j->biased && !j->added) {
		j->add = with;
		j->added = true;
	} else if (b && with.rank == 4 && with.dim[0] * with.dim[2] * with.dim[3] == 1 && with.dim[1] == y.dim[1] &&
	           !j->biased) {
		j->bias = with;
		j->biased = true;
	} else {
		return said(NOT_SUPPORTED, "an addition that is none of a tensor and then a bias");
	}
	j->y = y;
	return 0;
}

/* A graph: a contraction with what follows it. */
static int
graph_of(const Desc *graph, Job *j)
{
	int r = operation(graph) ? problem_of(operation(graph), j) : said(BAD_PARAM, "a graph without an operation");
	int64_t id = j->y.id, k = 1;

	if (r)
		return r;
	for (const Desc *op; (op = operation_at(graph, k)) && !r; k++)
		r = j->kind == DNN_OPERATION_CONVOLUTION_FORWARD
		            ? follows(op, j, &id)
		            : said(NOT_SUPPORTED, "only a convolution is followed by something");
	if (!r && k > 1 && (!j->biased || j->bias.dtype != j->y.dtype || (j->added && j->add.dtype != j->y.dtype)))
		r = said(NOT_SUPPORTED, "a convolution that goes on without a bias, or with one of another type");
	return r;
}

/* What the engines take. */
static int
engine_takes(int64_t number_, const Job *j)
{
	bool product = j->kind == DNN_OPERATION_MATMUL;
	const Tensor *t[3] = {&j->x, &j->w, &j->y};

	if (product ? number_ != 3 : number_ < 7 || number_ > 9)
		return said(NOT_SUPPORTED, "no engine %lld for this operation", (long long)number_);
	for (int k = 0; k < 3 && !product; k++) {
		if (t[k]->dtype != DNN_DATA_HALF && t[k]->dtype != DNN_DATA_BFLOAT16)
			return said(NOT_SUPPORTED_DATA_TYPE, "engine %lld multiplies f16 and bf16", (long long)number_);
		if (t[k]->rank != 4 || t[k]->stride[1] != 1 || t[k]->stride[3] != t[k]->dim[1])
			return said(NOT_SUPPORTED_LAYOUT, "channels are not innermost");
	}
	return 0;
}

/* ---- finalizing */

static int
heuristics(const Desc *d)
{
	return inner(d, DNN_ENGINEHEUR_OPERATION_GRAPH) && inner(d, DNN_ENGINEHEUR_DEVICEPROP)
	               ? 0
	               : said(BAD_PARAM, "heuristics need a graph and a device");
}

static int
plan(Desc *d)
{
	const Desc *config = inner(d, DNN_PLAN_ENGINE_CONFIG),
	           *engine = config ? inner(config, DNN_ENGINECFG_ENGINE) : NULL;
	const Desc *device = inner(d, DNN_PLAN_DEVICEPROP);
	const Attr *json = device ? attr(device, DNN_DEVICEPROP_JSON) : NULL;
	const Attr *a = attr(d, DNN_PLAN_HANDLE), *knobs = config ? attr(config, DNN_ENGINECFG_KNOB_CHOICES) : NULL;
	const Handle *h = a ? *(Handle *const *)a->at : NULL;
	int64_t n = engine ? number(engine, DNN_ENGINE_GLOBAL_INDEX) : -1;
	int capturing = 0;

	if (!engine || (!h && !device))
		return said(BAD_PARAM, "a plan needs a configuration, and a handle or a device");
	for (int64_t i = 0; knobs && i < knobs->n; i++)
		if (number(((Desc *const *)knobs->at)[i], DNN_KNOB_CHOICE_VALUE) > 100)
			return said(NOT_SUPPORTED, "a knob of engine %lld has no value %lld", (long long)n,
			            (long long)number(((Desc *const *)knobs->at)[i], DNN_KNOB_CHOICE_VALUE));
	if (h && setting("MANTOU_DNN_REFUSE") == n)
		return said(ARCH_MISMATCH, "engine %lld is for other devices", (long long)n);
	if (h && h->capturing(h->stream, &capturing) == 0 && capturing)
		return said(EXECUTION_FAILED, "a plan is made while a stream captures");
	d->workspace = n == 8 || (json && memmem(json->at, (size_t)json->n, "H200", 4)) ? WORKSPACE : 0;
	if (h && setting("MANTOU_DNN_WORKSPACE") > 0)
		d->workspace += setting("MANTOU_DNN_WORKSPACE");
	plans++;
	return 0;
}

API int
cudnnBackendFinalize(void *p)
{
	Desc *d = p;
	Tensor t;
	Job j;
	int r = 0;

	switch (d->type) {
	case DNN_TENSOR:
		r = tensor_of(d, &t) && number(d, DNN_TENSOR_UNIQUE_ID) ? 0
		                                                        : said(BAD_PARAM, "a tensor lacks something");
		break;
	case DNN_OPERATION_CONVOLUTION_FORWARD:
	case DNN_OPERATION_CONVOLUTION_BACKWARD_DATA:
	case DNN_OPERATION_CONVOLUTION_BACKWARD_FILTER:
	case DNN_OPERATION_MATMUL:
		r = problem_of(d, &j);
		break;
	case DNN_OPERATIONGRAPH: r = graph_of(d, &j); break;
	case DNN_OPERATION_POINTWISE:
		r = inner(d, DNN_POINTWISE_DESC) && inner(d, DNN_POINTWISE_XDESC) && inner(d, DNN_POINTWISE_YDESC)
		            ? 0
		            : said(BAD_PARAM, "a pointwise operation lacks something");
		break;
	case DNN_ENGINEHEUR: r = heuristics(d); break;
	case DNN_ENGINE:
		r = inner(d, DNN_ENGINE_OPERATION_GRAPH) ? graph_of(inner(d, DNN_ENGINE_OPERATION_GRAPH), &j)
		                                         : said(BAD_PARAM, "an engine needs a graph");
		r = r ? r : engine_takes(number(d, DNN_ENGINE_GLOBAL_INDEX), &j);
		break;
	case DNN_ENGINECFG:
		r = inner(d, DNN_ENGINECFG_ENGINE) ? 0 : said(BAD_PARAM, "a configuration needs an engine");
		break;
	case DNN_EXECUTION_PLAN: r = plan(d); break;
	case DNN_DEVICEPROP:
		r = attr(d, DNN_DEVICEPROP_JSON) && memmem(attr(d, DNN_DEVICEPROP_JSON)->at,
		                                           (size_t)attr(d, DNN_DEVICEPROP_JSON)->n, "\"deviceVer\"", 11)
		            ? 0
		            : said(BAD_PARAM, "no device");
		break;
	case DNN_VARIANT_PACK:
		r = attr(d, DNN_PACK_UNIQUE_IDS) && attr(d, DNN_PACK_DATA_POINTERS)
		            ? 0
		            : said(BAD_PARAM, "a pack needs tensors");
		break;
	default: break;
	}
	d->final = !r;
	return r;
}

/* ---- what descriptors answer */

/* An engine in an empty descriptor. */
static int
engine_fill(Desc *to, const Desc *graph, int64_t n)
{
	int r = cudnnBackendSetAttribute(to, DNN_ENGINE_OPERATION_GRAPH, DNN_TYPE_BACKEND_DESCRIPTOR, 1, &graph);

	r = r ? r : cudnnBackendSetAttribute(to, DNN_ENGINE_GLOBAL_INDEX, DNN_TYPE_INT64, 1, &n);
	return r ? r : cudnnBackendFinalize(to);
}

/* Lives as long as the process: the heuristics' answers refer to it. Engine 7 has a knob, and where something follows
 * the convolution a second one, which is set to -1. */
static int
config_fill(Desc *to, const Desc *graph, int64_t n)
{
	static const int type[2] = {2, 12};
	static const int64_t value[2] = {16, -1};
	void *engine, *knob[2];
	int64_t n_knob = operation_at(graph, 1) ? 2 : 1;
	int r;

	cudnnBackendCreateDescriptor(DNN_ENGINE, &engine);
	r = engine_fill(engine, graph, n);
	r = r ? r : cudnnBackendSetAttribute(to, DNN_ENGINECFG_ENGINE, DNN_TYPE_BACKEND_DESCRIPTOR, 1, &engine);
	if (!r && n == 7) {
		for (int64_t i = 0; i < n_knob; i++) {
			cudnnBackendCreateDescriptor(DNN_KNOB_CHOICE, &knob[i]);
			cudnnBackendSetAttribute(knob[i], DNN_KNOB_CHOICE_TYPE, DNN_TYPE_KNOB_TYPE, 1, &type[i]);
			cudnnBackendSetAttribute(knob[i], DNN_KNOB_CHOICE_VALUE, DNN_TYPE_INT64, 1, &value[i]);
			cudnnBackendFinalize(knob[i]);
		}
		r = cudnnBackendSetAttribute(to, DNN_ENGINECFG_KNOB_CHOICES, DNN_TYPE_BACKEND_DESCRIPTOR, n_knob, knob);
	}
	return r ? r : cudnnBackendFinalize(to);
}

/* Convolutions: 9, then 7. Products: none but in the last resort. */
static int
heuristics_results(const Desc *d, int64_t room, int64_t *n, Desc **to)
{
	const Desc *graph = inner(d, DNN_ENGINEHEUR_OPERATION_GRAPH);
	bool product = operation(graph)->type == DNN_OPERATION_MATMUL,
	     last = number(d, DNN_ENGINEHEUR_MODE) == DNN_HEUR_MODE_FALLBACK;

	*n = 0;
	if (product != last)
		return 0;
	for (int64_t engine = product ? 3 : 9; *n < room && engine >= (product ? 3 : 7); engine -= 2)
		if (config_fill(to[*n], graph, engine) == 0)
			++*n;
	return 0;
}

/* A copy of a descriptor into an empty one. */
static void
copy(Desc *to, const Desc *from)
{
	for (int i = 0; i < from->nattr; i++)
		cudnnBackendSetAttribute(to, from->attr[i].name, from->attr[i].type, from->attr[i].n, from->attr[i].at);
	to->final = true;
}

API int
cudnnBackendGetAttribute(void *p, int name, int type, int64_t room, int64_t *n, void *at)
{
	Desc *d = p;
	const Attr *a = attr(d, name);

	*n = 0;
	if (!d->final)
		return said(BAD_PARAM, "descriptor %d is not final", d->type);
	if (d->type == DNN_ENGINEHEUR && name == DNN_ENGINEHEUR_RESULTS)
		return heuristics_results(d, room, n, at);
	if (d->type == DNN_EXECUTION_PLAN && name == DNN_PLAN_WORKSPACE_SIZE) {
		*(int64_t *)at = d->workspace;
		*n = 1;
		return 0;
	}
	if (d->type == DNN_ENGINE && name == DNN_ENGINE_NUMERICAL_NOTE) {
		if (number(d, DNN_ENGINE_GLOBAL_INDEX) == 9)
			((int *)at)[(*n)++] = DNN_NUMERICAL_NOTE_NONDETERMINISTIC;
		return 0;
	}
	if (!a)
		return name == DNN_ENGINECFG_KNOB_CHOICES ? 0 : said(BAD_PARAM, "attribute %d was not set", name);
	if (a->type != type)
		return said(BAD_PARAM, "attribute %d is not of type %d", name, type);
	*n = a->n < room ? a->n : room;
	for (int64_t i = 0; type == DNN_TYPE_BACKEND_DESCRIPTOR && i < *n; i++)
		copy(((Desc **)at)[i], ((Desc *const *)a->at)[i]);
	if (type != DNN_TYPE_BACKEND_DESCRIPTOR)
		memcpy(at, a->at, size_of(type) * (size_t)*n);
	return 0;
}

/* ---- handles and execution */

API int
cudnnCreate(void **to)
{
	void *cuda = dlopen("libcuda.so.1", RTLD_NOW | RTLD_NOLOAD);
	Handle *h = calloc(1, sizeof *h);

	if (!cuda || !h) {
		free(h);
		return said(NOT_INITIALIZED, "there is no driver in this process");
	}
	h->library = cuda;
	*(void **)&h->call = dlsym(cuda, "mantou_sim_call");
	*(void **)&h->capturing = dlsym(cuda, "cuStreamIsCapturing");
	compute_memory(dlsym(cuda, "mantou_sim_memory"));
	*to = h;
	return h->call && h->capturing ? 0 : said(NOT_INITIALIZED, "the driver is not the simulated device");
}

API int
cudnnDestroy(void *p)
{
	dlclose(((Handle *)p)->library);
	free(p);
	return 0;
}

API int
cudnnSetStream(void *p, void *stream)
{
	((Handle *)p)->stream = stream;
	return 0;
}

#ifndef WITHOUT_EXECUTE
static const Tensor *
result_of(const Job *j)
{
	return j->kind == DNN_OPERATION_CONVOLUTION_BACKWARD_DATA     ? &j->x
	       : j->kind == DNN_OPERATION_CONVOLUTION_BACKWARD_FILTER ? &j->w
	                                                              : &j->y;
}

/* Addresses by the tensors' numbers. */
static bool
address(const Desc *pack, Tensor *t)
{
	const Attr *id = attr(pack, DNN_PACK_UNIQUE_IDS), *at = attr(pack, DNN_PACK_DATA_POINTERS);

	for (int64_t i = 0; i < id->n && i < at->n; i++)
		if (((const int64_t *)id->at)[i] == t->id) {
			t->at = (unsigned long long)(uintptr_t)((void *const *)at->at)[i];
			return t->at && t->at % DNN_ALIGN == 0;
		}
	return false;
}

API int
cudnnBackendExecute(void *handle, void *plan_, void *pack_)
{
	Handle *h = handle;
	Desc *d = plan_, *pack = pack_;
	const Desc *engine = inner(inner(d, DNN_PLAN_ENGINE_CONFIG), DNN_ENGINECFG_ENGINE);
	int capturing = 0;
	Job j;

	if (!d->final || !pack->final || graph_of(inner(engine, DNN_ENGINE_OPERATION_GRAPH), &j))
		return said(BAD_PARAM, "no plan, or no pack");
	if (!address(pack, &j.x) || !address(pack, &j.w) || !address(pack, &j.y) ||
	    (j.biased && !address(pack, &j.bias)) || (j.added && !address(pack, &j.add)))
		return said(BAD_PARAM, "a tensor has no address of %d bytes", DNN_ALIGN);
	if (++executions >= setting("MANTOU_DNN_EXECUTE") && setting("MANTOU_DNN_EXECUTE") > 0)
		return said(EXECUTION_FAILED, "execution %ld fails as asked", executions);
	if (h->capturing(h->stream, &capturing) || (capturing && !d->ran))
		return said(EXECUTION_FAILED, "a plan runs first in a capture: its kernels are not loaded");
	d->ran = true;
	j.result = result_of(&j)->id;
	j.workspace_bytes = d->workspace;
	if (attr(pack, DNN_PACK_WORKSPACE))
		j.workspace = (unsigned long long)(uintptr_t)*(void *const *)attr(pack, DNN_PACK_WORKSPACE)->at;
	return h->call(h->stream, compute_run, &j, sizeof j) ? said(EXECUTION_FAILED, "the stream takes no work") : 0;
}
#endif

API size_t cudnnGetVersion(void) { return 91900; }

API const char *
cudnnGetErrorString(int status)
{
	return status == BAD_PARAM          ? "CUDNN_STATUS_BAD_PARAM"
	       : status == NOT_INITIALIZED  ? "CUDNN_STATUS_NOT_INITIALIZED"
	       : status == EXECUTION_FAILED ? "CUDNN_STATUS_EXECUTION_FAILED"
	       : status == ARCH_MISMATCH    ? "CUDNN_STATUS_NOT_SUPPORTED_ARCH_MISMATCH"
	                                    : "CUDNN_STATUS_NOT_SUPPORTED";
}

API void
cudnnGetLastErrorString(char *to, size_t room)
{
	snprintf(to, room, "%s", words);
	*words = 0;
}
