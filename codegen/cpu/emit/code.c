/* code.c: functions of plain instructions, for microkernels whose control flow is more than one loop.
 *
 * In: calls in the order of the code.   Out: an internal LLVM function. Variables are stack slots, which LLVM's mem2reg
 * turns into registers: nothing here makes a phi by hand. Loops are tested at their end. */
#include "code.h"
#include <string.h>

static void
fn_attribute(Llvm *l, V fn, const char *name, const char *value)
{
	LLVMAddAttributeAtIndex(fn, LLVMAttributeFunctionIndex,
	    LLVMCreateStringAttribute(l->cx, name, (unsigned)strlen(name), value, (unsigned)strlen(value)));
}

void
fn_machine(Llvm *l, V fn)
{
	static const char *const flags[] = {"nounwind", "noinline"};
	char bits[16];

	snprintf(bits, sizeof bits, "%d", l->arch->vector_bytes * 8);
	fn_attribute(l, fn, "target-cpu", l->arch->cpu);
	fn_attribute(l, fn, "target-features", l->arch->features);
	fn_attribute(l, fn, "prefer-vector-width", bits);
	fn_attribute(l, fn, "min-legal-vector-width", bits);
	for (int i = 0; i < 2; i++)
		LLVMAddAttributeAtIndex(
		        fn, LLVMAttributeFunctionIndex,
		        LLVMCreateEnumAttribute(l->cx, LLVMGetEnumAttributeKindForName(flags[i], 8), 0));
}

V
code_begin(Code *c, Llvm *l, const char *name, T *args, int nargs)
{
	V fn = unit_find(l, name);

	if (fn)
		return fn;
	*c = (Code){.l = l, .b = LLVMCreateBuilderInContext(l->cx), .top = LLVMCreateBuilderInContext(l->cx)};
	c->fn = unit_begin(l, name, LLVMFunctionType(l->voidt, args, (unsigned)nargs, 0), true);
	fn_machine(l, c->fn);
	LLVMPositionBuilderAtEnd(c->top, LLVMAppendBasicBlockInContext(l->cx, c->fn, "entry"));
	c->start = LLVMAppendBasicBlockInContext(l->cx, c->fn, "start");
	LLVMPositionBuilderAtEnd(c->b, c->start);
	return NULL;
}

V
code_end(Code *c)
{
	LLVMBuildRetVoid(c->b);
	LLVMBuildBr(c->top, c->start);
	LLVMDisposeBuilder(c->b);
	LLVMDisposeBuilder(c->top);
	return unit_end(c->l, c->fn);
}

V
code_arg(const Code *c, int i)
{
	return LLVMGetParam(c->fn, (unsigned)i);
}

V
code_k(const Code *c, int64_t x)
{
	return LLVMConstInt(c->l->i64, (unsigned long long)x, 1);
}

V
code_var(Code *c, T t)
{
	V v = LLVMBuildAlloca(c->top, t, "");

	LLVMSetAlignment(v, 64);
	return v;
}

V
code_get(Code *c, V var)
{
	return LLVMBuildLoad2(c->b, LLVMGetAllocatedType(var), var, "");
}

void
code_set(Code *c, V var, V v)
{
	LLVMBuildStore(c->b, v, var);
}

V
code_at(Code *c, V p, V bytes)
{
	return LLVMBuildInBoundsGEP2(c->b, c->l->i8, p, &bytes, 1, "");
}

static V
masked(Code *c, const char *name, T t, V *args, unsigned n)
{
	T over[2] = {t, c->l->ptr};
	unsigned id = LLVMLookupIntrinsicID(name, strlen(name));
	V f = LLVMGetIntrinsicDeclaration(c->l->mod, id, over, 2);

	return LLVMBuildCall2(c->b, LLVMIntrinsicGetType(c->l->cx, id, over, 2), f, args, n, "");
}

V
code_load(Code *c, T t, V p, V mask)
{
	if (mask)
		return masked(c, "llvm.masked.load", t, (V[]){p, LLVMConstInt(c->l->i32, 4, 0), mask, LLVMConstNull(t)},
		              4);
	V v = LLVMBuildLoad2(c->b, t, p, "");

	LLVMSetAlignment(v, 4);
	return v;
}

void
code_store(Code *c, V v, V p, V mask)
{
	if (mask)
		masked(c, "llvm.masked.store", LLVMTypeOf(v), (V[]){v, p, LLVMConstInt(c->l->i32, 4, 0), mask}, 4);
	else
		LLVMSetAlignment(LLVMBuildStore(c->b, v, p), 4);
}

V
code_mask(Code *c, V bits, int lanes)
{
	V low = LLVMBuildTrunc(c->b, bits, LLVMIntTypeInContext(c->l->cx, (unsigned)lanes), "");

	return LLVMBuildBitCast(c->b, low, LLVMVectorType(c->l->i1, (unsigned)lanes), "");
}

V
code_stride(Code *c, V strides, int which)
{
	V at = code_k(c, which);

	return LLVMBuildLoad2(c->b, c->l->i64, LLVMBuildInBoundsGEP2(c->b, c->l->i64, strides, &at, 1, ""), "");
}

static LLVMBasicBlockRef
block(Code *c)
{
	return LLVMAppendBasicBlockInContext(c->l->cx, c->fn, "");
}

CodeLoop
code_loop(Code *c, V n)
{
	CodeLoop r = {block(c), code_var(c, c->l->i64)};

	code_set(c, r.left, n);
	LLVMBuildBr(c->b, r.body);
	LLVMPositionBuilderAtEnd(c->b, r.body);
	return r;
}

void
code_loop_end(Code *c, CodeLoop loop)
{
	V left = LLVMBuildSub(c->b, code_get(c, loop.left), code_k(c, 1), "");
	LLVMBasicBlockRef after = block(c);

	code_set(c, loop.left, left);
	LLVMBuildCondBr(c->b, LLVMBuildICmp(c->b, LLVMIntNE, left, code_k(c, 0), ""), loop.body, after);
	LLVMPositionBuilderAtEnd(c->b, after);
}

CodeIf
code_if(Code *c, V cond)
{
	LLVMBasicBlockRef then = block(c);
	CodeIf r = {block(c), block(c)};

	LLVMBuildCondBr(c->b, cond, then, r.other);
	LLVMPositionBuilderAtEnd(c->b, then);
	return r;
}

void
code_else(Code *c, CodeIf *i)
{
	LLVMBuildBr(c->b, i->after);
	LLVMPositionBuilderAtEnd(c->b, i->other);
	i->other = NULL;
}

void
code_fi(Code *c, CodeIf *i)
{
	if (i->other)
		code_else(c, i);
	LLVMBuildBr(c->b, i->after);
	LLVMPositionBuilderAtEnd(c->b, i->after);
}
