/* cudnn.c: a group's contraction as a plan of cuDNN: what a record asks for, whether cuDNN takes it, and the kernels
 * around it.
 *
 * In: a group with a contraction and a record, `cudnn{engine=-1}` (the first engine of cuDNN's heuristics) or
 * `cudnn{engine=62,knob=2:16,..}`; with `round=1` sums may be rounded to the operands' 16 bits before the group goes on
 * with them, with `fused=1` what follows a convolution is the plan's too (dnn_tail.c), `device=h100` plans for that
 * device of profiles.def.   Out: Group.kernel with the engine and its knobs, its workspace; then a line that describes
 * the plan (runtime/cuda/cudnn.h), from which the executable makes it again. No device is needed. cuDNN takes operands
 * and results in memory, channels innermost. What the group makes of an operand, and filters in another order, are made
 * in the workspace by a kernel before; the rest of the group is kernels behind, which read the result where it lies.
 * Refused: what is no product of f16 or bf16, batches that are no outermost axis, results that must be f32, engines
 * whose sums have no fixed order, and what cuDNN refuses. */
#include "algo.h"
#include "dnn.h"
#include "dnn_region.h"
#include "../../../runtime/cuda/cudnn.h"
#include <assert.h>
#include <inttypes.h>
#include <stdlib.h>
#include <string.h>

enum { CONFIGS = 48, PLACE = 256 };

typedef struct Record {
	int64_t engine, knob[DNN_KNOBS][2];
	int nknob;
	bool round, fused;
	char device[NAME_SIZE];
} Record;
static_assert((int)DNN_KNOBS == (int)PAIRS_MOST, "a text holds all knobs of a plan");

/* How a group uses the plan: its tensors as types, which operands are made first, and where the result goes. */
typedef struct Region {
	DnnProblem p;
	Type type[3];
	bool made[2];
	Val direct;              /* the value in whose place the result is written; NOVAL: in the workspace */
	DnnTail tail;            /* if p.bias */
	/* what it adds as it stands in memory; NOVAL: it is made in the workspace, or nothing is added */
	Val added;
} Region;

static const struct { const char *name, *arch, *json; } profiles[] = {
#define PROFILE(name, arch, json) {name, arch, json},
#include "../profiles.def"
};
enum { NPROFILE = sizeof profiles / sizeof *profiles };

/* ---------------------------------------------------------------- records */
/* NULL, or what is wrong with the text. */
static const char *
record_read(Arena *a, const char *text, Record *r)
{
	Params p;

	if (!space_parse("cuda", NULL, text, &p) || p.family != FAMILY_cuda_cudnn)
		return arena_printf(a, "a record of cuDNN is %s", space_form(a, FAMILY_cuda_cudnn));
	*r = (Record){.engine = p.cuda_cudnn.engine, .nknob = p.cuda_cudnn.knob.n, .round = p.cuda_cudnn.round,
	              .fused = p.cuda_cudnn.fused};
	memcpy(r->device, p.cuda_cudnn.device, sizeof r->device);
	for (int i = 0; i < r->nknob; i++)
		for (int k = 0; k < 2; k++)
			r->knob[i][k] = p.cuda_cudnn.knob.of[i][k];
	return space_misfit(a, &p, NULL);
}

static Params
params_of(const Record *r)
{
	Params p = {.family = FAMILY_cuda_cudnn};

	p.cuda_cudnn.engine = (int)r->engine;
	p.cuda_cudnn.knob.n = r->nknob;
	for (int i = 0; i < r->nknob; i++)
		for (int k = 0; k < 2; k++)
			p.cuda_cudnn.knob.of[i][k] = (int)r->knob[i][k];
	p.cuda_cudnn.round = r->round;
	p.cuda_cudnn.fused = r->fused;
	memcpy(p.cuda_cudnn.device, r->device, sizeof r->device);
	return p;
}

/* Reads back as r: the device too, for on another one a plan may need more, or there may be none. */
static const char *
record_text(Arena *a, const Record *r)
{
	Params p = params_of(r);

	return space_text(a, &p);
}

/* ---------------------------------------------------------------- the region */
static int
data_type(DType t)
{
	return t == DT_f16 ? DNN_DATA_HALF : t == DT_bf16 ? DNN_DATA_BFLOAT16 : DNN_DATA_FLOAT;
}

/* A type's axes in their order, those in memory as perm says. */
static void
tensor_of(const Type *t, DnnTensor *to)
{
	int64_t stride = 1;

	*to = (DnnTensor){.dtype = data_type((DType)t->dtype), .rank = t->rank};
	for (int i = t->rank; i-- > 0;) {
		int k = t->perm[i];

		to->dim[k] = t->axis[k].n;
		to->stride[k] = stride;
		stride *= t->axis[k].n;
	}
}

/* Strides do not follow the batch's size if no axis but the outermost does. */
static bool
outermost(const Type *t)
{
	for (int i = 0; i < t->rank; i++)
		if (t->axis[i].mul && i != t->perm[0])
			return false;
	return true;
}

static const char *
convolution_of(const Graph *g, const Op *op, Region *r)
{
	static const uint8_t channels_last[4] = {0, 2, 3, 1};
	Window w = window_of(g, op);

	r->p.op = op->kind == OP_conv2d ? DNN_CONV : op->kind == OP_conv2d_dx ? DNN_CONV_DX : DNN_CONV_DW;
	for (int k = 0; k < 3; k++)
		memcpy(r->type[k].perm, channels_last, sizeof channels_last);
	memcpy(r->p.pad, w.pad, sizeof r->p.pad);
	memcpy(r->p.stride, w.stride, sizeof r->p.stride);
	memcpy(r->p.dilation, w.dilation, sizeof r->p.dilation);
	for (int k = 0; k < 3; k++)
		tensor_of(&r->type[k], &r->p.tensor[k]);
	if (op->kind == OP_conv2d_dw && type_marked(val_type(g, op->in[0])))
		return "it sums over examples, whose number is not fixed";
	return NULL;
}

/* Rows and columns of matrix k, in memory as they lie or transposed, and how many matrices there are; `rows` matrices
 * are one (0: each is one). */
static void
matrix_of(const Type *t, bool transposed, bool flat, DnnTensor *to)
{
	int64_t m = t->axis[t->rank - 2].n, n = t->axis[t->rank - 1].n, count = 1;

	for (int i = 0; i < t->rank - 2; i++)
		count *= t->axis[i].n;
	*to = (DnnTensor){.dtype = data_type((DType)t->dtype),
	                  .rank = 3,
	                  .dim = {flat ? 1 : count, flat ? count * m : m, n},
	                  .stride = {flat ? count * m * n : m * n, n, 1}};
	if (transposed) {
		int64_t dim[3] = {to->dim[0], to->dim[2], to->dim[1]}, stride[3] = {to->stride[0], 1, n};

		memcpy(to->dim, dim, sizeof dim);
		memcpy(to->stride, stride, sizeof stride);
	}
}

static const char *
product_of(const Graph *g, const Op *op, Region *r)
{
	const Type *a = &r->type[0], *b = &r->type[1], *o = &r->type[2];
	bool ta = attr_bool(op, A_ta), tb = attr_bool(op, A_tb), flat = b->rank == 2;
	Axis k = a->axis[a->rank - (ta ? 2 : 1)];

	(void)g;
	r->p.op = DNN_PRODUCT;
	for (int i = 0; i < 3; i++)
		for (int j = 0; j < r->type[i].rank; j++)
			r->type[i].perm[j] = (uint8_t)j;
	if (k.mul)
		return "it sums over examples, whose number is not fixed";
	if (flat && (a->rank != o->rank || (ta && a->rank > 2)))
		return "its rows do not lie as those of one matrix";
	matrix_of(a, ta, flat, &r->p.tensor[0]);
	matrix_of(b, tb, false, &r->p.tensor[1]);
	matrix_of(o, false, flat, &r->p.tensor[2]);
	for (int i = 0; i < 2; i++) {
		int64_t count = r->p.tensor[i].dim[0];
		const Type *t = &r->type[i];
		bool like = t->rank == o->rank;

		for (int j = 0; like && j < o->rank - 2; j++)
			like = axis_same(t->axis[j], o->axis[j]);
		if (count != 1 && !like)
			return "its matrices are repeated along one of several axes";
	}
	return NULL;
}

static bool
in_group(const Graph *g, int group, const Op *op)
{
	return op && !op->dead && op->group == group && op->kind != OP_load;
}

/* Is the value, made by the group, read by another group's kernel or a result? What only states take is left to a
 * kernel that asks whether the loop has ended. */
static bool
is_read(const Graph *g, int group, Val v)
{
	bool read = false;

	for (uint32_t i = 0; i < g->result.n; i++)
		read |= g->result.at[i].v.id == v.id;
	for (uint32_t i = 0; i < g->op.n; i++)
		for (int k = 0; k < g->op.at[i].nin; k++) {
			const Op *op = &g->op.at[i];

			if (op->dead || op->in[k].id != v.id)
				continue;
			if (op->kind == OP_store)
				return false;
			read |= op->group >= 0 && op->group != group;
		}
	return read;
}

/* Is v used as elements of type t alone: is it of that type, or is all that reads it casts to it? `as`: one that is
 * read elsewhere, in r's layout. */
static bool
used_as(const Graph *g, int group, Val v, DType t, const Type *layout, Val *as)
{
	bool all = val_type(g, v)->dtype == t;
	const Op *by = val_op(g, v);

	*as = NOVAL;
	if (all && type_same(val_type(g, v), layout) && is_read(g, group, v))
		*as = v;
	if (all)
		return true;
	for (uint32_t i = 0; i < g->result.n; i++)
		if (g->result.at[i].v.id == v.id)
			return false;
	all = true;
	for (uint32_t i = (uint32_t)(by - g->op.at); i < g->op.n; i++)
		for (int k = 0; k < g->op.at[i].nin; k++) {
			const Op *op = &g->op.at[i];

			if (op->dead || op->in[k].id != v.id)
				continue;
			if (op->kind != OP_cast || !in_group(g, group, op) || val_type(g, op->out[0])->dtype != t)
				all = false;
			else if (!as->id && type_same(val_type(g, op->out[0]), layout) && is_read(g, group, op->out[0]))
				*as = op->out[0];
		}
	return all;
}

/* What the tail adds, where it stands in memory as the plan wants it: itself, or what was made f32 of it. */
static Val
added_of(const Graph *g, int group, const Region *r)
{
	Val v = r->tail.add;
	const Op *op = v.id ? val_op(g, v) : NULL;

	if (in_group(g, group, op) && op->kind == OP_cast && val_type(g, op->in[0])->dtype == r->type[2].dtype &&
	    val_type(g, v)->dtype == DT_f32)
		v = op->in[0];
	return v.id && !in_group(g, group, val_op(g, v)) && type_same(val_type(g, v), &r->type[2]) ? v : NOVAL;
}

static const char *
region_fused(const Graph *g, int group, const Op *op, Region *r)
{
	const char *why = cu_dnn_tail(g, group, op, &r->type[2], &r->tail);

	if (why)
		return why;
	if (!is_read(g, group, r->tail.result))
		return "what follows is not stored in 16 bits";
	r->direct = r->tail.result;
	r->added = added_of(g, group, r);
	r->made[1] |= r->tail.scaled;
	r->p.bias = true;
	r->p.add = r->tail.add.id != 0;
	r->p.relu = r->tail.relu;
	return NULL;
}

/* The region of a group's contraction. NULL, or why cuDNN has none. */
static const char *
region_of(const Graph *g, int group, const Op *op, const Record *record, Region *r)
{
	bool round = record->round;
	const Type *a = val_type(g, op->in[0]), *o = val_type(g, op->out[0]);
	const char *why;

	*r = (Region){.direct = NOVAL, .added = NOVAL};
	if ((a->dtype != DT_f16 && a->dtype != DT_bf16) || val_type(g, op->in[1])->dtype != a->dtype ||
	    (o->dtype != a->dtype && o->dtype != DT_f32))
		return "cuDNN is asked for products of f16 or bf16 alone";
	for (int k = 0; k < 3; k++)
		r->type[k] = *val_type(g, k < 2 ? op->in[k] : op->out[0]);
	r->type[2].dtype = a->dtype;
	why = op->kind == OP_matmul ? product_of(g, op, r) : convolution_of(g, op, r);
	for (int k = 0; k < 3 && !why; k++)
		if (!outermost(&r->type[k]))
			why = "an axis that follows the batch's size is not the outermost in memory";
	if (why)
		return why;
	for (int k = 0; k < 2; k++)
		r->made[k] = in_group(g, group, val_op(g, op->in[k])) ||
		             memcmp(val_type(g, op->in[k])->perm, r->type[k].perm, r->type[k].rank) != 0;
	if (record->fused)
		return region_fused(g, group, op, r);
	if (!used_as(g, group, op->out[0], (DType)a->dtype, &r->type[2], &r->direct) && !round) {
		if (op->kind != OP_matmul)
			return arena_printf(g->arena,
			                    "its result is needed in f32, and cuDNN makes it in %s; round=1 in the "
			                    "record allows that",
			                    dtype_info[a->dtype].name);
		r->type[2].dtype = DT_f32;
		r->direct = type_same(o, &r->type[2]) && is_read(g, group, op->out[0]) ? op->out[0] : NOVAL;
		r->p.tensor[2].dtype = DNN_DATA_FLOAT;
	}
	return NULL;
}

static int64_t
room_of(const Type *t)
{
	return (type_bytes(t) + PLACE - 1) / PLACE * PLACE;
}

static Type
bias_type(const Region *r)
{
	return type_of((DType)r->type[2].dtype, 1, &r->type[2].axis[1]);
}

/* Bytes of the workspace in front of cuDNN's own. */
static int64_t
room_before(const Region *r)
{
	Type bias = r->p.bias ? bias_type(r) : (Type){0};

	return (r->made[0] ? room_of(&r->type[0]) : 0) + (r->made[1] ? room_of(&r->type[1]) : 0) +
	       (r->direct.id ? 0 : room_of(&r->type[2])) + (r->p.bias ? room_of(&bias) : 0) +
	       (r->p.add && !r->added.id ? room_of(&r->type[2]) : 0);
}

/* ---------------------------------------------------------------- choosing */
static bool
get(Dnn *d, void *from, int name, int type, int64_t room, int64_t *n, void *to, const char *what)
{
	return dnn_ok(d, d->get(from, name, type, room, n, to), what);
}

/* The engine of a configuration; *fixed: its sums have one order. */
static bool
engine_of(Dnn *d, void *config, int64_t *number, bool *fixed)
{
	DnnPlan p = {0};
	void *engine = dnn_make(d, &p, DNN_ENGINE);
	int note[16];
	int64_t n = 0, notes = 0;
	bool good = engine &&
	            get(d, config, DNN_ENGINECFG_ENGINE, DNN_TYPE_BACKEND_DESCRIPTOR, 1, &n, &engine,
	                "the engine of a configuration") &&
	            get(d, engine, DNN_ENGINE_GLOBAL_INDEX, DNN_TYPE_INT64, 1, &n, number, "the number of an engine") &&
	            get(d, engine, DNN_ENGINE_NUMERICAL_NOTE, DNN_TYPE_NUMERICAL_NOTE, sizeof note / sizeof *note,
	                &notes, note, "the notes of an engine");

	*fixed = true;
	for (int64_t i = 0; good && i < notes; i++)
		*fixed &= note[i] != DNN_NUMERICAL_NOTE_NONDETERMINISTIC;
	dnn_plan_free(d, &p);
	return good;
}

/* Its knobs, to the record. */
static bool
knobs_of(Dnn *d, void *config, Record *r)
{
	void *choice[DNN_KNOBS];
	DnnPlan p = {0};
	int64_t n = 0, one;
	bool good = true;

	for (int i = 0; i < DNN_KNOBS && good; i++)
		good = (choice[i] = dnn_make(d, &p, DNN_KNOB_CHOICE)) != NULL;
	good = good && get(d, config, DNN_ENGINECFG_KNOB_CHOICES, DNN_TYPE_BACKEND_DESCRIPTOR, DNN_KNOBS, &n, choice,
	                   "the knobs of a configuration");
	for (r->nknob = 0; good && r->nknob < n; r->nknob++) {
		int type = 0;

		good = get(d, choice[r->nknob], DNN_KNOB_CHOICE_TYPE, DNN_TYPE_KNOB_TYPE, 1, &one, &type,
		           "the type of a knob") &&
		       get(d, choice[r->nknob], DNN_KNOB_CHOICE_VALUE, DNN_TYPE_INT64, 1, &one, &r->knob[r->nknob][1],
		           "the value of a knob");
		good = good && type >= 0 && type < PAIR_KINDS && llabs(r->knob[r->nknob][1]) <= INT32_MAX;
		r->knob[r->nknob][0] = type;
	}
	dnn_plan_free(d, &p);
	return good;
}

/* The first `most` configurations of one mode of the heuristics that can be planned and have one order of their sums:
 * how many; each is otherwise as `like`. */
static int
list_by(Dnn *d, const DnnPlan *graph, void *profile, int mode, const Record *like, Record *to, int most)
{
	DnnPlan heuristics = {0}, configs = {0};
	void *config[CONFIGS], *h = dnn_make(d, &heuristics, DNN_ENGINEHEUR), *of = graph->graph;
	int64_t n = 0;
	int found = 0;
	bool good = h &&
	            dnn_ok(d, d->set(h, DNN_ENGINEHEUR_OPERATION_GRAPH, DNN_TYPE_BACKEND_DESCRIPTOR, 1, &of),
	                   "the graph of heuristics") &&
	            dnn_ok(d, d->set(h, DNN_ENGINEHEUR_MODE, DNN_TYPE_HEUR_MODE, 1, &mode), "the mode of heuristics") &&
	            dnn_ok(d, d->set(h, DNN_ENGINEHEUR_DEVICEPROP, DNN_TYPE_BACKEND_DESCRIPTOR, 1, &profile),
	                   "the device of heuristics") &&
	            dnn_ok(d, d->finalize(h), "heuristics");

	for (int i = 0; i < CONFIGS && good; i++)
		good = (config[i] = dnn_make(d, &configs, DNN_ENGINECFG)) != NULL;
	good = good && get(d, h, DNN_ENGINEHEUR_RESULTS, DNN_TYPE_BACKEND_DESCRIPTOR, CONFIGS, &n, config,
	                   "the engines of heuristics");
	for (int64_t i = 0; i < n && good && found < most; i++) {
		DnnPlan p = {0};
		Record r = *like;
		bool fixed;

		if (engine_of(d, config[i], &r.engine, &fixed) && fixed &&
		    dnn_finish(d, &p, config[i], NULL, profile) && knobs_of(d, config[i], &r))
			to[found++] = r;
		dnn_plan_free(d, &p);
	}
	dnn_plan_free(d, &configs);
	dnn_plan_free(d, &heuristics);
	return found;
}

static bool
choose(Dnn *d, const DnnProblem *p, void *profile, Record *r)
{
	DnnPlan graph = {0};
	bool found = dnn_graph(d, &graph, p, NULL) && (list_by(d, &graph, profile, DNN_HEUR_MODE_A, r, r, 1) ||
	                                               list_by(d, &graph, profile, DNN_HEUR_MODE_FALLBACK, r, r, 1));

	dnn_plan_free(d, &graph);
	if (!found && !*d->error)
		snprintf(d->error, sizeof d->error,
		         "its heuristics name no engine for this device whose sums have one order (engines that it "
		         "compiles itself need the driver)");
	return found;
}

static const char *
profile_of(const char *arch, const char *device)
{
	for (int i = 0; i < NPROFILE; i++)
		if (arch && !strncmp(arch, profiles[i].arch, strlen(profiles[i].arch)) &&
		    (!*device || !strcmp(device, profiles[i].name)))
			return profiles[i].json;
	return NULL;
}

static bool
profile_make(Dnn *d, DnnPlan *p, const char *json, void **to)
{
	*to = dnn_make(d, p, DNN_DEVICEPROP);
	return *to &&
	       dnn_ok(d, d->set(*to, DNN_DEVICEPROP_JSON, DNN_TYPE_CHAR, (int64_t)strlen(json), json),
	              "the device's profile") &&
	       dnn_ok(d, d->finalize(*to), "the device's profile");
}

/* The plan that the record's text makes. */
static bool
plan(Dnn *d, Record *r, DnnProblem *p, void *profile)
{
	DnnPlan made = {0};
	bool fixed = true, good = r->engine >= 0 || choose(d, p, profile, r);

	p->engine = r->engine;
	p->nknob = r->nknob;
	memcpy(p->knob, r->knob, sizeof p->knob);
	good = good && dnn_plan(d, &made, p, NULL, profile) && engine_of(d, made.config, &r->engine, &fixed);
	if (good && !fixed) {
		snprintf(d->error, sizeof d->error, "engine %" PRId64 " adds in no fixed order", r->engine);
		good = false;
	}
	p->workspace = made.workspace;
	dnn_plan_free(d, &made);
	return good;
}

/* A record's plan: the group's kernel, with the engine and its knobs, and workspace. */
static const char *
take(Graph *g, int group, const Op *op, SelectCx *cx)
{
	Group *gr = &g->group.at[group];
	DnnPlan device = {0};
	void *profile;
	Region r;
	Record record;
	Dnn d;
	const char *why = record_read(g->arena, cx->tuned, &record),
	           *json = why ? NULL : profile_of(cx->arch, record.device);

	if (!why && !json)
		why = arena_printf(g->arena, "there is no profile of a device %s%sof %s to plan for", record.device,
		                   *record.device ? " " : "", cx->arch ? cx->arch : "no architecture");
	if (!why)
		why = region_of(g, group, op, &record, &r);
	if (why)
		return why;
	bool good = dnn_open(&d) && profile_make(&d, &device, json, &profile) && plan(&d, &record, &r.p, profile);

	dnn_plan_free(&d, &device);
	cx->absent = !d.library;
	if (!good)
		return arena_printf(g->arena, "%s%s", d.library ? "cuDNN: " : "", d.error);
	gr->kernel = record_text(g->arena, &record);
	gr->workspace = room_before(&r) + r.p.workspace;
	return NULL;
}

/* ---------------------------------------------------------------- what is worth trying */
/* The first of both heuristics, each once; false: no more is wanted. */
static bool
plans_each(Dnn *d, const DnnProblem *p, void *profile, const Record *like, SpaceFound *each, void *each_cx)
{
	static const int mode[] = {DNN_HEUR_MODE_A, DNN_HEUR_MODE_FALLBACK};
	enum { EACH = 8 };
	Record found[2 * EACH];
	DnnPlan graph = {0};
	bool more = true, good = dnn_graph(d, &graph, p, NULL);
	int n = 0;

	for (int m = 0; m < 2 && good; m++)
		n += list_by(d, &graph, profile, mode[m], like, found + n, EACH);
	dnn_plan_free(d, &graph);
	for (int i = 0; i < n && more; i++) {
		Params q = params_of(&found[i]);
		bool again = false;

		for (int k = 0; k < i; k++) {
			Params before = params_of(&found[k]);

			again |= !memcmp(&before, &q, sizeof q);
		}
		more = again || each(each_cx, &q);
	}
	return more;
}

/* The contraction alone, without and with sums that are rounded, then with all that follows it. */
static bool
space(const Graph *g, int group, const Op *op, const SelectCx *cx, SpaceFound *each, void *each_cx)
{
	static const Record ways[] = {{.engine = -1}, {.engine = -1, .round = true},
	                              {.engine = -1, .round = true, .fused = true}};
	const char *json = profile_of(cx->arch, "");
	DnnPlan device = {0};
	void *profile;
	Region r;
	Dnn d;
	bool more = json && dnn_open(&d) && profile_make(&d, &device, json, &profile);

	for (size_t i = 0; i < sizeof ways / sizeof *ways && more; i++) {
		bool same = i == 1 && !region_of(g, group, op, &ways[0], &r) && r.p.tensor[2].dtype != DNN_DATA_FLOAT;

		if (!same && !region_of(g, group, op, &ways[i], &r))
			more = plans_each(&d, &r.p, profile, &ways[i], each, each_cx);
	}
	if (json)
		dnn_plan_free(&d, &device);
	return more;
}

/* ---------------------------------------------------------------- emitting */
/* The plan and the kernels before it. */
static void
emit(Cuda *c, const Op *op)
{
	const Group *gr = &c->g->group.at[c->group];
	int64_t at = gr->workspace_offset, off[DNN_TENSORS + 1];
	int n = 3;
	char text[DNN_TEXT];
	Record record;
	Region r;
	const char *why = record_read(c->a, gr->kernel, &record);

	why = why ? why : region_of(c->g, c->group, op, &record, &r);
	if (why || record.engine < 0 || gr->workspace < room_before(&r))
		bug("target cuda: '%s' is no kernel of %s: %s", gr->kernel, op_info[op->kind].name,
		    why ? why : "it has no engine, or no workspace");
	for (int k = 0; k < 2; k++) {
		Out o = {op->in[k], &r.type[k], at};

		off[k] = r.made[k] ? at : val_info(c->g, op->in[k])->offset;
		if (r.made[k]) {
			if (k == 0 || !r.tail.scaled)
				cu_map_emit(c, &o, 1);
			at += room_of(&r.type[k]);
		}
	}
	if (r.p.bias) {
		Type bias = bias_type(&r);

		cu_dnn_tail_emit(c, &r.tail, op->in[1], &r.type[1], off[1], &r.type[2], at);
		off[n++] = at;
		at += room_of(&bias);
	}
	if (r.p.add) {
		Out o = {r.tail.add, &r.type[2], at};

		off[n++] = r.added.id ? val_info(c->g, r.added)->offset : at;
		if (!r.added.id) {
			cu_map_emit(c, &o, 1);
			at += room_of(&r.type[2]);
		}
	}
	off[2] = r.direct.id ? val_info(c->g, r.direct)->offset : at;
	at += r.direct.id ? 0 : room_of(&r.type[2]);
	off[n++] = gr->workspace_offset >= 0 ? at : 0;
	if (r.direct.id)
		c->ready[r.direct.id] = true;
	r.p.engine = record.engine;
	r.p.nknob = record.nknob;
	memcpy(r.p.knob, record.knob, sizeof r.p.knob);
	r.p.workspace = gr->workspace - room_before(&r);
	for (int k = 0; k < n; k++)
		if (off[k] < 0 || off[k] % DNN_ALIGN)
			bug("target cuda, group %s: a tensor of cuDNN at byte %" PRId64, gr->name, off[k]);
	if (!dnn_text_write(&r.p, text, sizeof text))
		bug("target cuda, group %s: the line of its plan is too long", gr->name);
	cu_plan_close(c, text, off, n);
	c->parts = op;
	c->part_type = r.type[2];
	c->part_at = off[2];
}

Cell
cu_dnn_value(Cuda *c, const Op *op, const Ix *ix)
{
	DType t = (DType)val_type(c->g, op->out[0])->dtype;

	return cu_cell_let(c, cu_cell_cast(c, cu_load_at(c, &c->part_type, c->part_at, ix), t).v, t);
}

static double rate(const Rates *r) { return r->group_products > 0 ? r->group_products : r->products; }

const CuAlgo cu_algo_cudnn = {
	.family = FAMILY_cuda_cudnn,
	.doc = "a plan of cuDNN, where a tuning file's record asks for it",
	.take = take,
	.space = space,
	.rate = rate,
	.emit = emit,
};
