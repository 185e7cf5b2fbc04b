/* calls.c: kernels that call a function of the runtime, where an algorithm is no loop nest: order, nms, roi_align and
 * its gradient; and what shards exchange, of one that is alone.
 *
 * In: an op alone in its group, operands and results row-major.   Out: a kernel that fills the function's spec (rt.h)
 * on its stack, from the shape and from extents that follow n, lists the buffers, and calls it for its tasks. */
#include "../cpu.h"
#include "../../../runtime/rt.h"
#include <assert.h>
#include <string.h>

enum { MAX_FIELDS = 16 };
typedef struct CallKernel {
	Emit *e;
	V field[MAX_FIELDS]; int nfield;  /* of 64 bits: integers, or doubles' bits */
} CallKernel;

bool
calls_op(OpKind k)
{
	return op_has(k, T_ALONE);
}

static const Type *
type_at(const Graph *g, const Op *op, int k)
{
	return val_type(g, k < op->nin ? op->in[k] : op->out[k - op->nin]);
}

/* The map that an roi_align reads, or that its gradient makes. */
static const Type *
map_of(const Graph *g, const Op *op)
{
	return val_type(g, op->kind == OP_roi_align ? op->in[0] : op->out[0]);
}

/* What shards of a batch exchange: the runtime does it in the kernel's place; of one shard a copy. */
static bool
joins(const Op *op)
{
	return op->kind == OP_all_reduce || op->kind == OP_all_moments;
}

/* Bytes of scratch memory that a thread needs. */
static int64_t
scratch_of(const Graph *g, const Op *op)
{
	const Type *x = val_type(g, op->in[0]);

	if (op->kind == OP_order)
		return rt_order_scratch(x->axis[attr_int(op, A_axis)].n);
	if (joins(op))
		return 0;
	if (op->kind == OP_nms)
		return rt_nms_scratch(x->axis[x->rank - 2].n, attr_int(op, A_count));
	const int64_t *size = attr_ints(op, A_size, NULL);

	x = map_of(g, op);
	return rt_roi_scratch(size[0], size[1], attr_int(op, A_samples),
	                      op->kind == OP_roi_align_dx && x->dtype != DT_f32 ? x->axis[2].n * x->axis[3].n : 0);
}

const char *
calls_select(Graph *g, const Op *op)
{
	for (int k = 0; k < op->nin + op->nout; k++)
		if (!type_is_plain(type_at(g, op, k)))
			return arena_printf(g->arena, "%s reads and writes row-major tensors", op_info[op->kind].name);
	scratch_plan(g, scratch_of(g, op));
	return NULL;
}

static void
put_v(CallKernel *c, V v)
{
	assert(c->nfield < MAX_FIELDS);
	c->field[c->nfield++] = v;
}

static void put(CallKernel *c, int64_t x) { put_v(c, k64(c->e, x)); }
static void put_axis(CallKernel *c, Axis a) { put_v(c, extent(c->e, a)); }

static void
put_num(CallKernel *c, double x)
{
	int64_t bits;

	memcpy(&bits, &x, sizeof bits);
	put(c, bits);
}

/* Product of the extents of axes [from, to). */
static V
extents(Emit *e, const Type *t, int from, int to)
{
	V v = k64(e, 1);

	for (int i = from; i < to; i++)
		v = i_mul(e, v, extent(e, t->axis[i]));
	return v;
}

/* Numbers of element types are those of dtypes.def in both. */
static void
spec_fill(CallKernel *c, const Graph *g, const Op *op)
{
	const Type *x = map_of(g, op), *in = val_type(g, op->in[0]);

	if (joins(op)) {
		put(c, type_bytes(in));
		put(c, op->nin);
	} else if (op->kind == OP_order) {
		int ax = (int)attr_int(op, A_axis);

		put(c, in->dtype);
		put_axis(c, in->axis[ax]);
		put_v(c, extents(c->e, in, ax + 1, in->rank));
		put_axis(c, val_type(g, op->out[0])->axis[ax]);
		put(c, attr_bool(op, A_descending));
	} else if (op->kind == OP_nms) {
		put(c, in->dtype);
		put(c, val_type(g, op->in[1])->dtype);
		put(c, attr_bool(op, A_has_group) ? val_type(g, op->in[2])->dtype : 0);
		put_axis(c, in->axis[in->rank - 2]);
		put(c, attr_int(op, A_count));
		put_num(c, attr_num(op, A_iou));
		put_num(c, attr_num(op, A_least));
	} else {
		const Type *boxes = val_type(g, op->in[1]);
		const int64_t *size = attr_ints(op, A_size, NULL);

		put(c, x->dtype);
		put(c, boxes->dtype);
		for (int i = 1; i < 4; i++)
			put_axis(c, x->axis[i]);
		put_axis(c, boxes->axis[1]);
		put(c, size[0]);
		put(c, size[1]);
		put(c, attr_int(op, A_samples));
		put(c, attr_bool(op, A_aligned));
		put_num(c, attr_num(op, A_scale));
	}
}

/* Tasks of a full batch, how they follow n, and the operations of one. */
static Rows
tasks(const Graph *g, const Op *op, double *work)
{
	const Type *in = val_type(g, op->in[0]),
	           *of = op->kind == OP_roi_align_dx ? map_of(g, op)
	                                             : val_type(g, op->kind == OP_roi_align ? op->in[1] : op->out[0]);
	uint32_t axes = of->rank ? (1u << (of->rank - 1)) - 1 : 0;
	Rows r = {.rows = 1, .div = 1};
	int64_t full = 1;
	int marks = 0;

	if (joins(op)) {
		*work = type_elements(in);
		return r;
	}

	if (op->kind == OP_roi_align || op->kind == OP_roi_align_dx)
		axes = 3;
	else if (op->kind == OP_order)
		axes = ((1u << of->rank) - 1) & ~(1u << attr_int(op, A_axis));
	for (int i = 0; i < of->rank; i++)
		if (axes >> i & 1) {
			full *= of->axis[i].n;
			r.rows *= of->axis[i].mul ? 1 : of->axis[i].n;
			r.mul = of->axis[i].mul ? of->axis[i].mul : r.mul;
			r.div = of->axis[i].mul ? of->axis[i].div : r.div;
			marks += of->axis[i].mul != 0;
		}
	if (marks > 1) /* those of a full batch: the kernel stops where this one ends */
		r = (Rows){.rows = full, .div = 1};
	*work = (op->kind == OP_order || op->kind == OP_nms ? 32 : 2) * (op_flops(g, op) + (double)type_elements(in)) /
	        (double)(full ? full : 1);
	return r;
}

/* The number of tasks of the actual batch, as tasks() counts them. */
static V
tasks_now(Emit *e, const Graph *g, const Op *op)
{
	const Type *of = val_type(g, op->out[0]);

	if (op->kind == OP_roi_align || op->kind == OP_roi_align_dx)
		return extents(e, op->kind == OP_roi_align ? val_type(g, op->in[1]) : of, 0, 2);
	if (op->kind == OP_nms)
		return extents(e, of, 0, of->rank - 1);
	if (joins(op))
		return k64(e, 1);
	int ax = (int)attr_int(op, A_axis);

	return i_mul(e, extents(e, of, 0, ax), extents(e, of, ax + 1, of->rank));
}

/* Spec and buffers on the stack, and the call. */
static void
call_emit(CallKernel *c, const Op *op, const int *buf, int nbuf, Rows r)
{
	Emit *e = c->e;
	Llvm *l = e->l;
	const char *name =
	        joins(op) ? "rt_shared"
	                  : arena_printf(e->arena, "rt_%s",
	                                 op->kind == OP_roi_align_dx ? "roi_align_dx" : op_info[op->kind].name);
	LLVMBuilderRef b = e->lv[0].b;
	V spec = LLVMBuildArrayAlloca(b, l->i64, k64(e, c->nfield), "spec"),
	  list = LLVMBuildArrayAlloca(b, l->ptr, k64(e, nbuf), "buf");

	for (int i = 0; i < c->nfield; i++)
		LLVMBuildStore(b, c->field[i], LLVMBuildGEP2(b, l->i64, spec, (V[]){k64(e, i)}, 1, ""));
	for (int i = 0; i < nbuf; i++)
		LLVMBuildStore(b, buf[i] < 0 ? LLVMConstNull(l->ptr) : buffer(e, buf[i]),
		               LLVMBuildGEP2(b, l->ptr, list, (V[]){k64(e, i)}, 1, ""));
	V t0 = grains_lo(e, r.grain), t1 = grains_hi(e, r.grain, tasks_now(e, e->g, op));
	T args[5] = {l->ptr, l->ptr, l->i64, l->i64, l->ptr}, type = LLVMFunctionType(l->voidt, args, 5, 0);
	V fn = LLVMGetNamedFunction(l->mod, name);

	LLVMBuildCall2(b, type, fn ? fn : LLVMAddFunction(l->mod, name, type),
	               (V[]){spec, list, t0, t1, scratch_ptr(e, 0)}, 5, "");
}

void
calls_emit(GroupCx *gc, const Op *op, GraphKernels *gk)
{
	const Graph *g = gc->g;
	Emit *e = arena_new_of(gc->tmp, Emit);
	CallKernel c = {.e = e};
	int buf[8], n = 0;
	double work;
	Rows r = tasks(g, op, &work);
	bool fresh;

	for (int k = 0; k < op->nin; k++)
		buf[n++] = group_buffer(gc, op->in[k].id);
	if (op->kind == OP_nms && !attr_bool(op, A_has_group))
		buf[n++] = -1;
	for (int k = 0; k < op->nout; k++)
		buf[n++] = value_is_out(gc, op->out[k]) ? group_buffer(gc, op->out[k].id) : -1;
	r.grain = task_grain(machine_of(g), r.mul ? r.rows * g->module->batch * r.mul / r.div : r.rows, work);
	scratch_check(gc, scratch_of(g, op));
	int fn = kernel_begin(gc, e, "call", &fresh);

	if (fresh) {
		spec_fill(&c, g, op);
		call_emit(&c, op, buf, n, r);
	}
	kernel_end(gc, e, gk, fn, r, fresh, false);
}
