/* cudnn_plan.c: one contraction, with what follows it, as an operation graph and a plan of cuDNN, and as a line of
 * text. For the compiler and for executables.
 *
 * In: a DnnProblem, or its line.   Out: descriptors of cuDNN's backend, all of which live until the plan is freed.
 * The line: `conv2d.dx bf16:32,64,8,8/4096,1,512,64 .. .. pad=1,1 stride=1,1 dilation=1,1 engine=62 knobs=2:16,7:1
 * workspace=0`: operands and result as type:extents/strides. Behind the dilation `then=bias,add,relu`, or a part of it,
 * says what follows. A line that is cut or damaged is refused. */
#define _GNU_SOURCE
#include "cudnn.h"

#include <dlfcn.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

const char *const dnn_op_name[DNN_OPS] = {"conv2d", "conv2d.dx", "conv2d.dw", "matmul"};
static const struct {
	const char *name;
	int type;
} dtypes[] = {{"f32", DNN_DATA_FLOAT}, {"f16", DNN_DATA_HALF}, {"bf16", DNN_DATA_BFLOAT16}};
enum { NDTYPE = sizeof dtypes / sizeof *dtypes };

/* ---- text */

typedef struct Text { char *at; size_t room, n; } Text;

static void put(Text *t, const char *fmt, ...) __attribute__((format(printf, 2, 3)));
static void
put(Text *t, const char *fmt, ...)
{
	va_list args;

	va_start(args, fmt);
	int n = vsnprintf(t->at + (t->n < t->room ? t->n : t->room), t->n < t->room ? t->room - t->n : 0, fmt, args);
	va_end(args);
	t->n += n < 0 ? t->room : (size_t)n;
}

static void
put_list(Text *t, const char *before, const int64_t *at, int n)
{
	for (int i = 0; i < n; i++)
		put(t, "%s%lld", i ? "," : before, (long long)at[i]);
}

int
dnn_tensors(const DnnProblem *p)
{
	return 3 + p->bias + p->add;
}

bool
dnn_text_write(const DnnProblem *p, char *to, size_t room)
{
	Text t = {.at = to, .room = room};

	put(&t, "%s", dnn_op_name[p->op]);
	for (int k = 0; k < 3; k++) {
		for (int i = 0; i < NDTYPE; i++)
			if (dtypes[i].type == p->tensor[k].dtype)
				put(&t, " %s", dtypes[i].name);
		put_list(&t, ":", p->tensor[k].dim, p->tensor[k].rank);
		put_list(&t, "/", p->tensor[k].stride, p->tensor[k].rank);
	}
	if (p->op != DNN_PRODUCT) {
		put_list(&t, " pad=", p->pad, 2);
		put_list(&t, " stride=", p->stride, 2);
		put_list(&t, " dilation=", p->dilation, 2);
		if (p->bias)
			put(&t, " then=bias%s%s", p->add ? ",add" : "", p->relu ? ",relu" : "");
	}
	put(&t, " engine=%lld", (long long)p->engine);
	for (int i = 0; i < p->nknob; i++)
		put(&t, "%s%lld:%lld", i ? "," : " knobs=", (long long)p->knob[i][0], (long long)p->knob[i][1]);
	put(&t, " workspace=%lld", (long long)p->workspace);
	return t.n < t.room;
}

/* Takes `word` off the text. */
static bool
take(const char **s, const char *word)
{
	size_t n = strlen(word);

	if (strncmp(*s, word, n) != 0)
		return false;
	*s += n;
	return true;
}

/* A number of 0 to 2^62. */
static bool
take_number(const char **s, int64_t *to)
{
	int64_t v = 0;

	if (**s < '0' || **s > '9')
		return false;
	for (; **s >= '0' && **s <= '9'; ++*s) {
		if (v > ((int64_t)1 << 62) / 10 - 1)
			return false;
		v = v * 10 + (**s - '0');
	}
	*to = v;
	return true;
}

/* What a knob is set to: some engines know -1. */
static bool
take_value(const char **s, int64_t *to)
{
	int64_t sign = take(s, "-") ? -1 : 1;

	if (!take_number(s, to))
		return false;
	*to *= sign;
	return true;
}

/* At most `most` numbers; how many, 0 for a damaged list. */
static int
take_list(const char **s, int64_t *to, int most)
{
	int n = 0;

	do {
		if (n == most || !take_number(s, &to[n]))
			return 0;
		n++;
	} while (take(s, ","));
	return n;
}

static bool
take_tensor(const char **s, DnnTensor *t, int rank)
{
	int i = 0;

	while (i < NDTYPE && !(take(s, dtypes[i].name) && take(s, ":")))
		i++;
	if (i == NDTYPE)
		return false;
	*t = (DnnTensor){.dtype = dtypes[i].type, .rank = rank};
	if (take_list(s, t->dim, DNN_RANK) != rank || !take(s, "/") || take_list(s, t->stride, DNN_RANK) != rank)
		return false;
	for (i = 0; i < rank; i++)
		if (t->dim[i] < 1)
			return false;
	return true;
}

static bool
take_knobs(const char **s, DnnProblem *p)
{
	if (!take(s, " knobs="))
		return true;
	do {
		if (p->nknob == DNN_KNOBS || !take_number(s, &p->knob[p->nknob][0]) || !take(s, ":")
		    || !take_value(s, &p->knob[p->nknob][1]))
			return false;
		p->nknob++;
	} while (take(s, ","));
	return true;
}

const char *
dnn_text_read(DnnProblem *p, const char *text)
{
	const char *s = text;
	int op = DNN_OPS;

	*p = (DnnProblem){.op = DNN_OPS};
	while (op-- > 0) { /* from the end: conv2d begins conv2d.dx */
		const char *at = s;

		if (take(&at, dnn_op_name[op]) && *at == ' ') {
			p->op = (DnnOp)op;
			s = at;
			break;
		}
	}
	if (p->op == DNN_OPS)
		return "it names no operation";
	for (int k = 0; k < 3; k++)
		if (!take(&s, " ") || !take_tensor(&s, &p->tensor[k], p->op == DNN_PRODUCT ? 3 : 4))
			return "a tensor is damaged";
	if (p->op != DNN_PRODUCT &&
	    (!take(&s, " pad=") || take_list(&s, p->pad, 2) != 2 || !take(&s, " stride=") ||
	     take_list(&s, p->stride, 2) != 2 || !take(&s, " dilation=") || take_list(&s, p->dilation, 2) != 2 ||
	     p->stride[0] < 1 || p->stride[1] < 1 || p->dilation[0] < 1 || p->dilation[1] < 1))
		return "its padding, stride or dilation is damaged";
	p->bias = p->op == DNN_CONV && take(&s, " then=bias");
	p->add = p->bias && take(&s, ",add");
	p->relu = p->bias && take(&s, ",relu");
	if (!take(&s, " engine=") || !take_number(&s, &p->engine) || !take_knobs(&s, p))
		return "its engine is damaged";
	if (!take(&s, " workspace=") || !take_number(&s, &p->workspace) || *s)
		return "its end is missing";
	return NULL;
}

/* ---- the library */

bool
dnn_open(Dnn *d)
{
	static const char *const places[] = {"libcudnn.so.9", "/usr/local/cuda/lib64/libcudnn.so.9"};
	const char *given = getenv("MANTOU_LIBCUDNN"), *missing = NULL;

	*d = (Dnn){0};
	if (given && !*given)
		given = NULL;
	/* its parts are large and keep what they have read: once opened it stays */
	for (size_t i = 0; i < (given ? 1 : sizeof places / sizeof *places) && !d->library; i++)
		d->library = dlopen(given ? given : places[i], RTLD_NOW | RTLD_LOCAL | RTLD_NODELETE);
	if (!d->library) {
		snprintf(d->error, sizeof d->error, "cuDNN was not found: %s%s", given ? given : places[0],
		         given ? ""
		               : " is not in the loader's path nor in /usr/local/cuda/lib64 (MANTOU_LIBCUDNN names "
		                 "another file)");
		return false;
	}
#define DNN(result, name, symbol, arguments) \
	*(void **)&d->name = dlsym(d->library, #symbol); \
	if (!d->name && !missing) \
		missing = #symbol;
#include "cudnn.def"
#undef DNN
	if (missing)
		snprintf(d->error, sizeof d->error, "%s is no cuDNN 9: it has no %s", given ? given : places[0],
		         missing);
	else if (d->version() / 10000 != 9)
		snprintf(d->error, sizeof d->error, "%s is cuDNN %zu, cuDNN 9 is needed", given ? given : places[0],
		         d->version() / 10000 ? d->version() / 10000 : d->version() / 1000);
	return !*d->error;
}

/* cuDNN's last words may hold lines of its own log; the first one says it. */
bool
dnn_ok(Dnn *d, int status, const char *what)
{
	char words[512] = "";

	if (status == 0)
		return true;
	d->last_error(words, sizeof words - 1);
	words[strcspn(words, "\n")] = 0;
	snprintf(d->error, sizeof d->error, "%s: %s (%d)%s%s", what, d->status_text(status), status, *words ? ": " : "",
	         words);
	return false;
}

/* ---- descriptors */

void *
dnn_make(Dnn *d, DnnPlan *p, int type)
{
	void *to = NULL;

	if (p->nmade == sizeof p->made / sizeof *p->made) {
		snprintf(d->error, sizeof d->error, "more descriptors than a plan has room for");
		return NULL;
	}
	if (!dnn_ok(d, d->create(type, &to), "cudnnBackendCreateDescriptor"))
		return NULL;
	return p->made[p->nmade++] = to;
}

static bool
set(Dnn *d, void *to, int name, int type, int64_t n, const void *at)
{
	char what[64];

	snprintf(what, sizeof what, "cudnnBackendSetAttribute (%d)", name);
	return dnn_ok(d, d->set(to, name, type, n, at), what);
}

static bool
set_descriptor(Dnn *d, void *to, int name, void *x)
{
	return x && set(d, to, name, DNN_TYPE_BACKEND_DESCRIPTOR, 1, &x);
}

/* Ids above DNN_TENSORS: it is nowhere in memory. */
static void *
tensor(Dnn *d, DnnPlan *p, const DnnTensor *t, int64_t id)
{
	void *to = dnn_make(d, p, DNN_TENSOR);
	int64_t align = DNN_ALIGN;
	bool nowhere = true;

	return to && set(d, to, DNN_TENSOR_DATA_TYPE, DNN_TYPE_DATA_TYPE, 1, &t->dtype) &&
	                       set(d, to, DNN_TENSOR_DIMENSIONS, DNN_TYPE_INT64, t->rank, t->dim) &&
	                       set(d, to, DNN_TENSOR_STRIDES, DNN_TYPE_INT64, t->rank, t->stride) &&
	                       set(d, to, DNN_TENSOR_UNIQUE_ID, DNN_TYPE_INT64, 1, &id) &&
	                       set(d, to, DNN_TENSOR_BYTE_ALIGNMENT, DNN_TYPE_INT64, 1, &align) &&
	                       (id <= DNN_TENSORS ||
	                        set(d, to, DNN_TENSOR_IS_VIRTUAL, DNN_TYPE_BOOLEAN, 1, &nowhere)) &&
	                       dnn_ok(d, d->finalize(to), "a tensor")
	               ? to
	               : NULL;
}

static void *
convolution(Dnn *d, DnnPlan *to, const DnnProblem *p)
{
	void *c = dnn_make(d, to, DNN_CONVOLUTION);
	int type = DNN_DATA_FLOAT, mode = DNN_CROSS_CORRELATION;
	int64_t two = 2;

	return c && set(d, c, DNN_CONVOLUTION_COMP_TYPE, DNN_TYPE_DATA_TYPE, 1, &type) &&
	                       set(d, c, DNN_CONVOLUTION_CONV_MODE, DNN_TYPE_CONVOLUTION_MODE, 1, &mode) &&
	                       set(d, c, DNN_CONVOLUTION_SPATIAL_DIMS, DNN_TYPE_INT64, 1, &two) &&
	                       set(d, c, DNN_CONVOLUTION_DILATIONS, DNN_TYPE_INT64, 2, p->dilation) &&
	                       set(d, c, DNN_CONVOLUTION_FILTER_STRIDES, DNN_TYPE_INT64, 2, p->stride) &&
	                       set(d, c, DNN_CONVOLUTION_PRE_PADDINGS, DNN_TYPE_INT64, 2, p->pad) &&
	                       set(d, c, DNN_CONVOLUTION_POST_PADDINGS, DNN_TYPE_INT64, 2, p->pad) &&
	                       dnn_ok(d, d->finalize(c), "a convolution")
	               ? c
	               : NULL;
}

static void *
product(Dnn *d, DnnPlan *to)
{
	void *c = dnn_make(d, to, DNN_MATMUL);
	int type = DNN_DATA_FLOAT;

	return c && set(d, c, DNN_MATMUL_COMP_TYPE, DNN_TYPE_DATA_TYPE, 1, &type) &&
	                       dnn_ok(d, d->finalize(c), "a product of matrices")
	               ? c
	               : NULL;
}

/* The attributes of an operation: its kind, its three tensors, what describes it, factors of the result and of what was
 * there. */
static const struct Operation { int type, tensor[3], descriptor, alpha, beta;
} operations[DNN_OPS] = {
        [DNN_CONV] = {DNN_OPERATION_CONVOLUTION_FORWARD,
                      {DNN_FORWARD_X, DNN_FORWARD_W, DNN_FORWARD_Y},
                      DNN_FORWARD_CONV_DESC,
                      DNN_FORWARD_ALPHA,
                      DNN_FORWARD_BETA},
        [DNN_CONV_DX] = {DNN_OPERATION_CONVOLUTION_BACKWARD_DATA,
                         {DNN_BWD_DATA_DY, DNN_BWD_DATA_W, DNN_BWD_DATA_DX},
                         DNN_BWD_DATA_CONV_DESC,
                         DNN_BWD_DATA_ALPHA,
                         DNN_BWD_DATA_BETA},
        [DNN_CONV_DW] = {DNN_OPERATION_CONVOLUTION_BACKWARD_FILTER,
                         {DNN_BWD_FILTER_X, DNN_BWD_FILTER_DY, DNN_BWD_FILTER_DW},
                         DNN_BWD_FILTER_CONV_DESC,
                         DNN_BWD_FILTER_ALPHA,
                         DNN_BWD_FILTER_BETA},
        [DNN_PRODUCT] =
                {DNN_OPERATION_MATMUL, {DNN_MATMUL_ADESC, DNN_MATMUL_BDESC, DNN_MATMUL_CDESC}, DNN_MATMUL_DESC, 0, 0},
};

/* y = x + b, or max(x, 0) where b is NULL; in f32. NULL after an error. */
static void *
pointwise(Dnn *d, DnnPlan *to, void *x, void *b, void *y)
{
	void *how = dnn_make(d, to, DNN_POINTWISE), *op = dnn_make(d, to, DNN_OPERATION_POINTWISE);
	int mode = b ? DNN_POINTWISE_ADD : DNN_POINTWISE_RELU_FWD, type = DNN_DATA_FLOAT;

	return how && op && set(d, how, DNN_POINTWISE_MODE, DNN_TYPE_POINTWISE_MODE, 1, &mode) &&
	                       set(d, how, DNN_POINTWISE_MATH_PREC, DNN_TYPE_DATA_TYPE, 1, &type) &&
	                       dnn_ok(d, d->finalize(how), "a pointwise operation") &&
	                       set_descriptor(d, op, DNN_POINTWISE_DESC, how) &&
	                       set_descriptor(d, op, DNN_POINTWISE_XDESC, x) &&
	                       (!b || set_descriptor(d, op, DNN_POINTWISE_BDESC, b)) &&
	                       set_descriptor(d, op, DNN_POINTWISE_YDESC, y) &&
	                       dnn_ok(d, d->finalize(op), "a pointwise operation")
	               ? op
	               : NULL;
}

/* What follows the convolution whose sums are v: what is added, then the bias, then the rest, as cuDNN has them in one
 * kernel; the last writes y. How many operations, 0 after an error. */
static int
following(Dnn *d, DnnPlan *to, const DnnProblem *p, void *v, void *y, void **op)
{
	const DnnTensor *o = &p->tensor[2];
	DnnTensor sums = *o, bias = {.dtype = o->dtype,
	                             .rank = 4,
	                             .dim = {1, o->dim[1], 1, 1},
	                             .stride = {o->dim[1], 1, o->dim[1], o->dim[1]}};
	void *b = tensor(d, to, &bias, 4), *z = p->add ? tensor(d, to, o, 5) : NULL;
	int n = 0;

	sums.dtype = DNN_DATA_FLOAT;
	if (!b || (p->add && !z))
		return 0;
	for (int k = p->add ? 0 : 1; k < 2 + p->relu; k++) { /* 0: what is added, 1: the bias, 2: the rest */
		void *next = k == 1 + p->relu ? y : tensor(d, to, &sums, DNN_TENSORS + 2 + k);

		if (!next || !(op[n] = pointwise(d, to, v, k == 0 ? z : k == 1 ? b : NULL, next)))
			return 0;
		n++;
		v = next;
	}
	return n;
}

bool
dnn_graph(Dnn *d, DnnPlan *to, const DnnProblem *p, void *handle)
{
	const struct Operation *o = &operations[p->op];
	void *op[4] = {dnn_make(d, to, o->type)}, *y = tensor(d, to, &p->tensor[2], 3), *v = y;
	DnnTensor sums = p->tensor[2];
	float one = 1, zero = 0;
	int n = 1;
	bool good =
	        op[0] && y &&
	        set_descriptor(d, op[0], o->descriptor, p->op == DNN_PRODUCT ? product(d, to) : convolution(d, to, p));

	sums.dtype = DNN_DATA_FLOAT;
	if (p->bias)
		v = tensor(d, to, &sums, DNN_TENSORS + 1);
	for (int k = 0; k < 2 && good; k++)
		good = set_descriptor(d, op[0], o->tensor[k], tensor(d, to, &p->tensor[k], k + 1));
	good = good && set_descriptor(d, op[0], o->tensor[2], v);
	if (good && o->alpha)
		good = set(d, op[0], o->alpha, DNN_TYPE_FLOAT, 1, &one) &&
		       set(d, op[0], o->beta, DNN_TYPE_FLOAT, 1, &zero);
	good = good && dnn_ok(d, d->finalize(op[0]), dnn_op_name[p->op]);
	if (good && p->bias) {
		int more = following(d, to, p, v, y, op + 1);

		n += more;
		good = more > 0;
	}
	good = good && (to->graph = dnn_make(d, to, DNN_OPERATIONGRAPH)) &&
	       (!handle || set(d, to->graph, DNN_GRAPH_HANDLE, DNN_TYPE_HANDLE, 1, &handle));
	return good && set(d, to->graph, DNN_GRAPH_OPS, DNN_TYPE_BACKEND_DESCRIPTOR, n, op) &&
	       dnn_ok(d, d->finalize(to->graph), "an operation graph");
}

bool
dnn_finish(Dnn *d, DnnPlan *to, void *config, void *handle, void *profile)
{
	int64_t n = 0;

	to->config = config;
	to->plan = dnn_make(d, to, DNN_EXECUTION_PLAN);
	return to->plan && (!handle || set(d, to->plan, DNN_PLAN_HANDLE, DNN_TYPE_HANDLE, 1, &handle)) &&
	       set_descriptor(d, to->plan, DNN_PLAN_ENGINE_CONFIG, config) &&
	       (!profile || set_descriptor(d, to->plan, DNN_PLAN_DEVICEPROP, profile)) &&
	       dnn_ok(d, d->finalize(to->plan), "an execution plan") &&
	       dnn_ok(d, d->get(to->plan, DNN_PLAN_WORKSPACE_SIZE, DNN_TYPE_INT64, 1, &n, &to->workspace),
	              "the workspace of a plan");
}

bool
dnn_plan(Dnn *d, DnnPlan *to, const DnnProblem *p, void *handle, void *profile)
{
	void *choice[DNN_KNOBS], *engine, *config;
	char what[64];

	if (!dnn_graph(d, to, p, handle))
		return false;
	snprintf(what, sizeof what, "engine %lld", (long long)p->engine);
	engine = dnn_make(d, to, DNN_ENGINE);
	if (!engine || !set_descriptor(d, engine, DNN_ENGINE_OPERATION_GRAPH, to->graph) ||
	    !set(d, engine, DNN_ENGINE_GLOBAL_INDEX, DNN_TYPE_INT64, 1, &p->engine) ||
	    (profile && !set_descriptor(d, engine, DNN_ENGINE_DEVICEPROP, profile)) ||
	    !dnn_ok(d, d->finalize(engine), what))
		return false;
	for (int i = 0; i < p->nknob; i++) {
		int type = (int)p->knob[i][0];

		snprintf(what, sizeof what, "engine %lld with %d:%lld", (long long)p->engine, type,
		         (long long)p->knob[i][1]);
		choice[i] = dnn_make(d, to, DNN_KNOB_CHOICE);
		if (!choice[i] || !set(d, choice[i], DNN_KNOB_CHOICE_TYPE, DNN_TYPE_KNOB_TYPE, 1, &type) ||
		    !set(d, choice[i], DNN_KNOB_CHOICE_VALUE, DNN_TYPE_INT64, 1, &p->knob[i][1]) ||
		    !dnn_ok(d, d->finalize(choice[i]), what))
			return false;
	}
	config = dnn_make(d, to, DNN_ENGINECFG);
	if (!config || !set_descriptor(d, config, DNN_ENGINECFG_ENGINE, engine) ||
	    (p->nknob && !set(d, config, DNN_ENGINECFG_KNOB_CHOICES, DNN_TYPE_BACKEND_DESCRIPTOR, p->nknob, choice)) ||
	    !dnn_ok(d, d->finalize(config), what))
		return false;
	return dnn_finish(d, to, config, handle, profile);
}

void
dnn_plan_free(Dnn *d, DnnPlan *p)
{
	while (p->nmade > 0)
		d->destroy(p->made[--p->nmade]);
	*p = (DnnPlan){0};
}
