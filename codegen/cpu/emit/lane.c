/* lane.c: cells, indices and loops of one kernel function, on top of LLVM-C.
 *
 * In: an Emit with an open function.   Out: LLVM instructions, each at the outermost loop level where its operands
 * stand: a level's block stays open while its inner loops are being emitted and is closed with the branch to them, so
 * whatever an inner body finds it needs from further out lands before the loop. Integer arithmetic on indices is
 * hash-consed per level, so that equal indices are the same pointers; lane_eval's memo relies on that. Loop-carried
 * values are allocas, promoted by mem2reg. Memory is never written between levels that read it as uniform: kernels read
 * inputs and write outputs, element by element. */
#include "../cpu.h"
#include <assert.h>
#include <stdlib.h>
#include <string.h>

/* ---------------------------------------------------------------- levels */
static void
block_remember(Emit *e, LLVMBasicBlockRef bb, int level)
{
	if (2 * (e->nblocks + 1) > e->nblock_cap) {
		uint32_t cap = e->nblock_cap ? 2 * e->nblock_cap : 256;
		BlockLevel *old = e->blocks, *now = arena_array(e->arena, BlockLevel, cap);
		uint32_t oldcap = e->nblock_cap;

		e->blocks = now;
		e->nblock_cap = cap;
		e->nblocks = 0;
		for (uint32_t i = 0; i < oldcap; i++)
			if (old[i].bb)
				block_remember(e, old[i].bb, old[i].level);
	}
	uint32_t h = (uint32_t)(((uintptr_t)bb >> 4) * 2654435761u) & (e->nblock_cap - 1);

	while (e->blocks[h].bb && e->blocks[h].bb != bb)
		h = (h + 1) & (e->nblock_cap - 1);
	if (!e->blocks[h].bb)
		e->nblocks++;
	e->blocks[h] = (BlockLevel){bb, level};
}

LLVMBasicBlockRef
block_new(Emit *e, int level, const char *name)
{
	LLVMBasicBlockRef bb = LLVMAppendBasicBlockInContext(e->l->cx, e->fn, name);

	block_remember(e, bb, level);
	return bb;
}

int
level_of(const Emit *e, V v)
{
	if (!v || !LLVMIsAInstruction(v))
		return 0;
	LLVMBasicBlockRef bb = LLVMGetInstructionParent(v);
	uint32_t h = (uint32_t)(((uintptr_t)bb >> 4) * 2654435761u) & (e->nblock_cap - 1);

	while (e->blocks[h].bb != bb) {
		if (!e->blocks[h].bb)
			bug("a block without a level");
		h = (h + 1) & (e->nblock_cap - 1);
	}
	return e->blocks[h].level;
}

LLVMBuilderRef
at1(Emit *e, V a)
{
	return e->lv[level_of(e, a)].b;
}

LLVMBuilderRef
at2(Emit *e, V a, V b)
{
	int x = level_of(e, a), y = level_of(e, b);

	return e->lv[x > y ? x : y].b;
}

LLVMBuilderRef
at3(Emit *e, V a, V b, V c)
{
	int x = level_of(e, a), y = level_of(e, b), z = level_of(e, c);

	x = x > y ? x : y;
	return e->lv[x > z ? x : z].b;
}

static void
attribute(Emit *e, const char *name, const char *value)
{
	LLVMAddAttributeAtIndex(e->fn, LLVMAttributeFunctionIndex,
	    LLVMCreateStringAttribute(e->l->cx, name, (unsigned)strlen(name), value, (unsigned)strlen(value)));
}

static void
enum_attribute(Emit *e, unsigned index, const char *name)
{
	LLVMAddAttributeAtIndex(
	        e->fn, index,
	        LLVMCreateEnumAttribute(e->l->cx, LLVMGetEnumAttributeKindForName(name, strlen(name)), 0));
}

void
emit_lanes(Emit *e, int w)
{
	V lane[64];

	e->W = w;
	for (int i = 0; i < w; i++)
		lane[i] = k64(e, i);
	e->lane_id = LLVMConstVector(lane, (unsigned)w);
}

void
emit_begin(Emit *e, Llvm *l, struct GroupCx *gc, const char *name)
{
	T args[6] = {l->ptr, l->ptr, l->i64, l->i64, l->i64, l->ptr};
	char bits[16];

	e->l = l;
	e->gc = gc;
	e->fn = unit_begin(l, name, LLVMFunctionType(l->voidt, args, 6, 0), false);
	snprintf(bits, sizeof bits, "%d", l->arch->vector_bytes * 8);
	attribute(e, "target-cpu", l->arch->cpu);
	attribute(e, "target-features", l->arch->features);
	attribute(e, "prefer-vector-width", bits);
	attribute(e, "min-legal-vector-width", bits);
	enum_attribute(e, LLVMAttributeFunctionIndex, "nounwind");
	enum_attribute(e, 2, "noalias");
	enum_attribute(e, 2, "readonly");
	enum_attribute(e, 6, "noalias");
	V *const arg[] = {&e->arg_arena, &e->arg_off, &e->arg_n, &e->arg_t0, &e->arg_t1, &e->arg_scratch};
	static const char *const names[] = {"arena", "off", "n", "t0", "t1", "scratch"};

	for (unsigned i = 0; i < sizeof arg / sizeof *arg; i++) {
		*arg[i] = LLVMGetParam(e->fn, i);
		LLVMSetValueName2(*arg[i], names[i], strlen(names[i])); /* for who reads --emit llvm */
	}
	for (int i = 0; i < MAX_LEVEL; i++)
		e->lv[i].b = LLVMCreateBuilderInContext(l->cx);
	block_new(e, 0, "slots");
	LLVMPositionBuilderAtEnd(e->lv[0].b, block_new(e, 0, "start"));
	emit_lanes(e, e->W ? e->W : l->arch->vector_bytes / 4);
	for (uint32_t i = gc->first; i < gc->last; i++) {
		const Op *op = &gc->g->op.at[i];

		for (int k = 0; k < op->nin + op->nout; k++)
			e->wide |= type_elements(val_type(gc->g, k < op->nin ? op->in[k] : op->out[k - op->nin])) >
			           UINT32_MAX;
	}
}

V
emit_end(Emit *e)
{
	assert(e->depth == 0);
	if (e->streamed) {
		V f = LLVMGetIntrinsicDeclaration(e->l->mod, LLVMLookupIntrinsicID("llvm.x86.sse.sfence", 19), NULL, 0);

		LLVMBuildCall2(here(e), LLVMGlobalGetValueType(f), f, NULL, 0, "");
	}
	if (e->close)
		e->close(e);
	LLVMBuildRetVoid(here(e));
	LLVMPositionBuilderAtEnd(e->lv[1].b, LLVMGetEntryBasicBlock(e->fn));
	LLVMBuildBr(e->lv[1].b, LLVMGetNextBasicBlock(LLVMGetEntryBasicBlock(e->fn)));
	for (int i = 0; i < MAX_LEVEL; i++)
		LLVMDisposeBuilder(e->lv[i].b);
	return unit_end(e->l, e->fn);
}

/* ---------------------------------------------------------------- loops */
/* x, of which LLVM knows nothing. What is computed from a loop's variable stands where the emitter put it; LLVM's loop
 * strength reduction, which would look for fewer registers, takes most of the time of compiling, and finds nothing
 * around a microkernel's calls. */
static V
same_number(Emit *e, LLVMBuilderRef b, V x)
{
	T t = LLVMFunctionType(e->l->i64, &e->l->i64, 1, 0);
	V nothing = LLVMGetInlineAsm(t, "", 0, "=r,0", 4, 0, 0, LLVMInlineAsmDialectATT, 0);

	return LLVMBuildCall2(b, t, nothing, &x, 1, "");
}

V
loop_open(Emit *e, V lo, V hi, int64_t step)
{
	int64_t a, b;
	int d = e->depth + 1;
	Level *l = &e->lv[d];

	if (d >= MAX_LEVEL)
		bug("loops nested deeper than %d", MAX_LEVEL);
	l->memo.n = l->cse.n = 0;
	l->inlined = is_const(lo, &a) && is_const(hi, &b) && b > a && b - a <= step;
	l->hi = hi;
	l->step = k64(e, step);
	l->multiple4 = step % 4 == 0 && i_multiple4(e, lo);
	LLVMBasicBlockRef body = block_new(e, d, "body");

	LLVMPositionBuilderAtEnd(l->b, body);
	if (l->inlined) {
		l->head = body;
		l->iv = lo;
	} else {
		l->head = block_new(e, d, "loop");
		LLVMPositionBuilderAtEnd(l->b, l->head);
		l->iv = l->phi = LLVMBuildPhi(l->b, e->l->i64, "i");
		/* the start may be an instruction of an outer level: its incoming edge is added when the loop is
		 * closed */
		l->exit = body;
		LLVMPositionBuilderAtEnd(l->b, body);
		l->step = k64(e, step);
		if (e->opaque)
			l->iv = same_number(e, l->b, l->phi);
	}
	/* lo is kept in the CSE table's first entry, which no lookup can match */
	vec_push(e->arena, &l->cse, ((Cse){.op = -1, .a = lo, .b = lo, .r = lo}));
	e->depth = d;
	return l->iv;
}

void
loop_close(Emit *e)
{
	int d = e->depth;
	Level *l = &e->lv[d], *up = &e->lv[d - 1];
	LLVMBasicBlockRef exit = block_new(e, d - 1, "after");
	V lo = l->cse.at[0].a;

	if (l->inlined) {
		LLVMBuildBr(up->b, l->head);
		LLVMBuildBr(l->b, exit);
	} else {
		LLVMBasicBlockRef from[2] = {LLVMGetInsertBlock(up->b), LLVMGetInsertBlock(l->b)};
		V in[2] = {lo, LLVMBuildNSWAdd(l->b, l->phi, l->step, "next")};

		LLVMBuildBr(l->b, l->head);
		LLVMBuildBr(up->b, l->head);
		LLVMAddIncoming(l->phi, in, from, 2);
		LLVMPositionBuilderAtEnd(l->b, l->head);
		LLVMBuildCondBr(l->b, LLVMBuildICmp(l->b, LLVMIntSLT, l->phi, l->hi, ""), l->exit, exit);
	}
	LLVMPositionBuilderAtEnd(up->b, exit);
	l->memo.n = l->cse.n = 0;
	e->depth = d - 1;
}

V
slot_new(Emit *e, T t)
{
	LLVMBuilderRef b = LLVMCreateBuilderInContext(e->l->cx);
	V v;

	LLVMPositionBuilderAtEnd(b, LLVMGetEntryBasicBlock(e->fn));
	v = LLVMBuildAlloca(b, t, "");
	LLVMDisposeBuilder(b);
	return v;
}

V
slot_get(Emit *e, V slot, T t)
{
	return LLVMBuildLoad2(here(e), t, slot, "");
}

void
slot_set(Emit *e, V slot, V v)
{
	LLVMBuildStore(here(e), v, slot);
}

/* ---------------------------------------------------------------- integers */
V
k64(const Emit *e, int64_t x)
{
	return LLVMConstInt(e->l->i64, (unsigned long long)x, 1);
}

bool
is_const(V v, int64_t *x)
{
	if (!v || !LLVMIsAConstantInt(v))
		return false;
	*x = LLVMConstIntGetSExtValue(v);
	return true;
}

enum { C_ADD, C_SUB, C_MUL, C_DIV, C_REM, C_MIN, C_MAX, C_SPLAT, C_VADD, C_VMUL, C_RANGE, C_AND };

static V
cse_find(Emit *e, int op, V a, V b, Level **at)
{
	int x = level_of(e, a), y = level_of(e, b);
	Level *l = &e->lv[x > y ? x : y];

	*at = l;
	for (uint32_t i = l->cse.n; i-- > 0;)
		if (l->cse.at[i].op == op && l->cse.at[i].a == a && l->cse.at[i].b == b)
			return l->cse.at[i].r;
	return NULL;
}

static V
cse_put(Emit *e, Level *l, int op, V a, V b, V r)
{
	vec_push(e->arena, &l->cse, ((Cse){op, a, b, r}));
	return r;
}

#define INT_OP(name, op, same_if, same, build) \
V \
name(Emit *e, V a, V b) \
{ \
	Level *l; \
	int64_t x = 0, y = 0; \
	bool ka = is_const(a, &x), kb = is_const(b, &y); \
	V r; \
	(void)ka; (void)kb; \
	if (same_if) \
		return same; \
	if ((r = cse_find(e, op, a, b, &l))) \
		return r; \
	return cse_put(e, l, op, a, b, build); \
}
INT_OP(i_sub, C_SUB, kb && y == 0, a, LLVMBuildNSWSub(l->b, a, b, ""))
INT_OP(i_div, C_DIV, kb && y == 1, a, LLVMBuildUDiv(l->b, a, b, ""))
INT_OP(i_rem, C_REM, kb && y == 1, k64(e, 0), LLVMBuildURem(l->b, a, b, ""))
INT_OP(i_min, C_MIN, ka && kb, k64(e, x < y ? x : y),
       LLVMBuildSelect(l->b, LLVMBuildICmp(l->b, LLVMIntSLT, a, b, ""), a, b, ""))
INT_OP(i_max, C_MAX, ka && kb, k64(e, x > y ? x : y),
       LLVMBuildSelect(l->b, LLVMBuildICmp(l->b, LLVMIntSGT, a, b, ""), a, b, ""))

/* x as base + constant. Sums are built so that the constant is added last: equal bases are then the same
 * instruction. */
V
i_split(V x, int64_t *k)
{
	if (LLVMIsAInstruction(x) && LLVMGetInstructionOpcode(x) == LLVMAdd && is_const(LLVMGetOperand(x, 1), k))
		return LLVMGetOperand(x, 0);
	*k = 0;
	return x;
}

/* Is x surely a multiple of 4? Loop variables are if they start and step so. */
bool
i_multiple4(const Emit *e, V x)
{
	int64_t k;

	if (is_const(x, &k))
		return k % 4 == 0;
	if (!LLVMIsAInstruction(x))
		return false;
	switch (LLVMGetInstructionOpcode(x)) {
	case LLVMAdd: case LLVMSub:
		return i_multiple4(e, LLVMGetOperand(x, 0)) && i_multiple4(e, LLVMGetOperand(x, 1));
	case LLVMMul:
		return i_multiple4(e, LLVMGetOperand(x, 0)) || i_multiple4(e, LLVMGetOperand(x, 1));
	case LLVMSelect:
		return i_multiple4(e, LLVMGetOperand(x, 1)) && i_multiple4(e, LLVMGetOperand(x, 2));
	case LLVMPHI:
	case LLVMCall: /* same_number */
		for (int l = e->depth; l > 0; l--)
			if (e->lv[l].iv == x)
				return e->lv[l].multiple4;
		return false;
	default:
		return false;
	}
}

V
i_add(Emit *e, V a, V b)
{
	Level *l;
	int64_t x, y;
	V r;

	if (is_const(a, &x)) {
		V t = a;

		if (is_const(b, &y))
			return k64(e, x + y);
		a = b;
		b = t;
	}
	if (is_const(b, &y)) {
		a = i_split(a, &x);
		if (x + y == 0)
			return a;
		b = k64(e, x + y);
	} else {
		a = i_split(a, &x);
		b = i_split(b, &y);
		if (x + y)
			return i_add(e, i_add(e, a, b), k64(e, x + y));
	}
	if ((r = cse_find(e, C_ADD, a, b, &l)))
		return r;
	return cse_put(e, l, C_ADD, a, b, LLVMBuildNSWAdd(l->b, a, b, ""));
}

V
i_mul(Emit *e, V a, V b)
{
	Level *l;
	int64_t x, y;
	V r;

	if (is_const(a, &x)) {
		V t = a;

		if (is_const(b, &y))
			return k64(e, x * y);
		a = b;
		b = t;
	}
	if (is_const(b, &y)) {
		if (y == 0)
			return b;
		if (y == 1)
			return a;
	}
	if ((r = cse_find(e, C_MUL, a, b, &l)))
		return r;
	return cse_put(e, l, C_MUL, a, b, LLVMBuildNSWMul(l->b, a, b, ""));
}

bool
axes_open(Emit *e, const Type *t, uint32_t axes, Ix *ix)
{
	for (int i = 0; i < t->rank; i++)
		if (axes >> i & 1)
			ix[i] = ix_s(loop_open(e, k64(e, 0), extent(e, t->axis[i]), 1));
	return true;
}

void
axes_close(Emit *e, uint32_t axes)
{
	for (; axes; axes &= axes - 1)
		loop_close(e);
}

/* Run-time extent of an axis; marked ones are computed once, at the function's start. */
V
extent(Emit *e, Axis a)
{
	if (!a.mul)
		return k64(e, a.n);
	V r = i_mul(e, e->arg_n, k64(e, a.mul));

	if (a.div != 1)
		r = i_div(e, r, k64(e, a.div));
	return r;
}

/* ---------------------------------------------------------------- types and cells */
T
vec_of(const Emit *e, T t)
{
	return LLVMVectorType(t, (unsigned)e->W);
}

T
ctype(const Emit *e, DType dt)
{
	switch (dt) {
	case DT_f64: return e->l->f64;
	case DT_f32: case DT_f16: case DT_bf16: return e->l->f32;
	case DT_i64: return e->l->i64;
	case DT_i32: return e->l->i32;
	case DT_i16: case DT_u16: return e->l->i16;
	case DT_u8: case DT_i8: return e->l->i8;
	case DT_bool: return e->l->i1;
	default: bug("no such dtype %d", dt);
	}
}

T
ctype_v(const Emit *e, DType dt, bool vec)
{
	return vec ? vec_of(e, ctype(e, dt)) : ctype(e, dt);
}

V
splat(Emit *e, V s)
{
	Level *l;
	V r;

	if (LLVMIsConstant(s)) {
		V k[64];

		for (int i = 0; i < e->W; i++)
			k[i] = s;
		return LLVMConstVector(k, (unsigned)e->W);
	}
	if ((r = cse_find(e, C_SPLAT, s, NULL, &l)))
		return r;
	T vt = vec_of(e, LLVMTypeOf(s));
	V one = LLVMBuildInsertElement(l->b, LLVMGetPoison(vt), s, k64(e, 0), "");

	return cse_put(e, l, C_SPLAT, s, NULL,
	               LLVMBuildShuffleVector(l->b, one, LLVMGetPoison(vt), LLVMConstNull(vec_of(e, e->l->i32)), ""));
}

Cell
cell_of(V v, bool vec, DType dt)
{
	return (Cell){.v = v, .vec = vec, .dt = (uint8_t)dt};
}

V
cell_vec(Emit *e, Cell c)
{
	return c.vec ? c.v : splat(e, c.v);
}

Cell
cell_const(const Emit *e, DType dt, double x)
{
	T t = ctype(e, dt);

	if (dtype_is_float(dt))
		return cell_of(LLVMConstReal(t, dt == DT_f64 ? x : (double)(float)x), false, dt);
	if (dt == DT_bool)
		return cell_of(LLVMConstInt(t, x != 0, 0), false, dt);
	int64_t i = x != x                        ? 0
	            : x >= 9223372036854775807.0  ? INT64_MAX
	            : x <= -9223372036854775808.0 ? INT64_MIN
	                                          : (int64_t)x;

	return cell_of(LLVMConstInt(t, (unsigned long long)i, 1), false, dt);
}

Cell
cell_attr(const Emit *e, DType dt, const Attr *a)
{
	if (a->is_int && dtype_is_int(dt))
		return cell_of(LLVMConstInt(ctype(e, dt), (unsigned long long)dtype_saturate(dt, a->i), 1), false, dt);
	return cell_const(e, dt, a->is_int ? (double)a->i : a->f);
}

V
intrinsic(Emit *e, LLVMBuilderRef b, const char *name, T *overload, int nover, V *args, int nargs)
{
	unsigned id = LLVMLookupIntrinsicID(name, strlen(name));

	if (!id)
		bug("LLVM has no %s", name);
	V f = LLVMGetIntrinsicDeclaration(e->l->mod, id, overload, (size_t)nover);
	T ft = LLVMIntrinsicGetType(e->l->cx, id, overload, (size_t)nover);

	return LLVMBuildCall2(b, ft, f, args, (unsigned)nargs, "");
}

void
prefetch(Emit *e, V at, int near)
{
	isa_prefetch(e->l, here(e), at, (unsigned)near);
}

/* ---------------------------------------------------------------- indices */
Ix
ix_s(V s)
{
	return (Ix){.s = s};
}

Ix
ix_k(const Emit *e, int64_t x)
{
	return (Ix){.s = k64(e, x)};
}

bool
ix_is(const Ix *x, int64_t k)
{
	int64_t v;

	return !x->c && !x->g && is_const(x->s, &v) && v == k;
}

bool
ix_lane(const Ix *a)
{
	return a->c || a->g;
}

static V
v_add(Emit *e, V a, V b)
{
	Level *l;
	V r;

	if (!a || !b)
		return a ? a : b;
	if ((r = cse_find(e, C_VADD, a, b, &l)))
		return r;
	return cse_put(e, l, C_VADD, a, b, LLVMBuildAdd(l->b, a, b, ""));
}

static V
v_mul(Emit *e, V a, V b)
{
	Level *l;
	V r;

	if (!a)
		return NULL;
	if ((r = cse_find(e, C_VMUL, a, b, &l)))
		return r;
	return cse_put(e, l, C_VMUL, a, b, LLVMBuildMul(l->b, a, b, ""));
}

Ix
ix_add(Emit *e, Ix a, Ix b)
{
	return (Ix){.s = i_add(e, a.s, b.s), .c = a.c + b.c, .g = v_add(e, a.g, b.g)};
}

Ix
ix_add_k(Emit *e, Ix a, int64_t k)
{
	a.s = i_add(e, a.s, k64(e, k));
	return a;
}

Ix
ix_mul(Emit *e, Ix a, V k)
{
	int64_t x;
	Ix r = {.s = i_mul(e, a.s, k), .g = a.g ? v_mul(e, a.g, splat(e, k)) : NULL};

	if (a.c && is_const(k, &x))
		r.c = a.c * x;
	else if (a.c)
		r.g = v_add(e, r.g, v_mul(e, splat(e, i_mul(e, k, k64(e, a.c))), e->lane_id));
	return r;
}

Ix
ix_mul_k(Emit *e, Ix a, int64_t k)
{
	return ix_mul(e, a, k64(e, k));
}

V
ix_vec(Emit *e, Ix a)
{
	V r = splat(e, a.s);

	if (a.c)
		r = v_add(e, r, v_mul(e, e->lane_id, splat(e, k64(e, a.c))));
	if (a.g)
		r = v_add(e, r, a.g);
	return r;
}

/* Vector divisions go through 32 bits where that is enough (Emit.wide): 64-bit ones have no vector form. */
static V
v_divide(Emit *e, V a, V d, bool rem)
{
	int64_t k;
	bool pow2 = is_const(d, &k) && k > 0 && (k & (k - 1)) == 0;
	V vd = splat(e, d);
	LLVMBuilderRef b = at2(e, a, vd);

	if (pow2)
		return rem ? LLVMBuildAnd(b, a, splat(e, k64(e, k - 1)), "")
		           : LLVMBuildLShr(b, a, splat(e, k64(e, __builtin_ctzll((unsigned long long)k))), "");
	if (e->wide)
		return rem ? LLVMBuildURem(b, a, vd, "") : LLVMBuildUDiv(b, a, vd, "");
	T t32 = vec_of(e, e->l->i32), t64 = vec_of(e, e->l->i64);
	V a32 = LLVMBuildTrunc(b, a, t32, ""), d32 = LLVMBuildTrunc(b, vd, t32, "");
	V r = rem ? LLVMBuildURem(b, a32, d32, "") : LLVMBuildUDiv(b, a32, d32, "");

	return LLVMBuildZExt(b, r, t64, "");
}

Ix
ix_div(Emit *e, Ix a, V d)
{
	int64_t k;

	if (is_const(d, &k) && k == 1)
		return a;
	if (!ix_lane(&a))
		return ix_s(i_div(e, a.s, d));
	return (Ix){.s = k64(e, 0), .g = v_divide(e, ix_vec(e, a), d, false)};
}

Ix
ix_rem(Emit *e, Ix a, V d)
{
	int64_t k;

	if (is_const(d, &k) && k == 1)
		return ix_k(e, 0);
	if (!ix_lane(&a))
		return ix_s(i_rem(e, a.s, d));
	return (Ix){.s = k64(e, 0), .g = v_divide(e, ix_vec(e, a), d, true)};
}

V
ix_in_range(Emit *e, Ix a, V ext, bool *vec)
{
	Level *l;
	V r, x;

	*vec = ix_lane(&a);
	x = *vec ? ix_vec(e, a) : a.s;
	V lim = *vec ? splat(e, ext) : ext;

	if ((r = cse_find(e, C_RANGE, x, lim, &l)))
		return r;
	return cse_put(e, l, C_RANGE, x, lim, LLVMBuildICmp(l->b, LLVMIntULT, x, lim, ""));
}

V
mask_and(Emit *e, V a, V b)
{
	Level *l;
	V r;

	if (!a || !b)
		return a ? a : b;
	if (a == b)
		return a;
	if ((r = cse_find(e, C_AND, a, b, &l)))
		return r;
	return cse_put(e, l, C_AND, a, b, LLVMBuildAnd(l->b, a, b, ""));
}

V
mask_below(Emit *e, V count)
{
	bool vec;

	return ix_in_range(e, (Ix){.s = k64(e, 0), .c = 1}, count, &vec);
}
