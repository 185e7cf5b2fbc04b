/* isa.c: tile instructions of AMX, FMAs of f16 and its conversions, which not every machine has.
 *
 * In: operands.   Out: the LLVM intrinsic, of a conversion integer instructions where the CPU has none (LLVM would call
 * a function for each lane; after F. Giesen's float_to_half_fast3_rtne); where Arch.emulated is set, a call of a C
 * function of the same operands instead (emulate_NAME, which tests/cpu defines), and nothing else differs: so what goes
 * around these instructions runs on any machine with AVX-512. Tiles are named by number (the intrinsics with
 * immediates): LLVM neither allocates nor spills them. */
#include "code.h"
#include <string.h>

/* Constants of 8 bits go as 32: how narrow arguments are extended is no agreement between all compilers. */
static void
emulated(Llvm *l, LLVMBuilderRef b, const char *name, const V *args, int n)
{
	char full[64];
	T type[8];
	V wide[8];

	for (int i = 0; i < n; i++) {
		wide[i] = LLVMTypeOf(args[i]) == l->i8 ? LLVMConstInt(l->i32, LLVMConstIntGetZExtValue(args[i]), 0)
		                                       : args[i];
		type[i] = LLVMTypeOf(wide[i]);
	}
	snprintf(full, sizeof full, "emulate_%s", name);
	V f = LLVMGetNamedFunction(l->mod, full);

	if (!f)
		f = LLVMAddFunction(l->mod, full, LLVMFunctionType(l->voidt, type, (unsigned)n, 0));
	LLVMBuildCall2(b, LLVMGlobalGetValueType(f), f, wide, (unsigned)n, "");
}

void
isa_prefetch(Llvm *l, LLVMBuilderRef b, V at, unsigned near)
{
	T t[4] = {l->ptr, l->i32, l->i32, l->i32};
	unsigned id = LLVMLookupIntrinsicID("llvm.prefetch", 13);
	V f = LLVMGetIntrinsicDeclaration(l->mod, id, t, 1);
	V args[4] = {at, LLVMConstInt(l->i32, 0, 0), LLVMConstInt(l->i32, near, 0), LLVMConstInt(l->i32, 1, 0)};

	LLVMBuildCall2(b, LLVMIntrinsicGetType(l->cx, id, t, 1), f, args, 4, "");
}

void
isa_tile(Llvm *l, LLVMBuilderRef b, const char *name, V *args, int n)
{
	char full[64];

	if (l->arch->emulated) {
		emulated(l, b, name, args, n);
		return;
	}
	snprintf(full, sizeof full, "llvm.x86.%s", name);
	V f = LLVMGetIntrinsicDeclaration(l->mod, LLVMLookupIntrinsicID(full, strlen(full)), NULL, 0);

	LLVMBuildCall2(b, LLVMGlobalGetValueType(f), f, args, (unsigned)n, "");
}

V
isa_fma_f16(Code *c, V a, V x, V sum)
{
	T t = LLVMTypeOf(sum), half = LLVMVectorType(c->l->half, 2 * LLVMGetVectorSize(t));
	V in[3] = {sum, a, x};

	if (c->l->arch->emulated) {
		V at[4];

		if (!c->slot)
			c->slot = code_var(c, LLVMArrayType2(t, 3));
		for (int i = 0; i < 3; i++) {
			at[i] = code_at(c, c->slot, code_k(c, i * 4 * (int64_t)LLVMGetVectorSize(t)));
			code_store(c, in[i], at[i], NULL);
		}
		at[3] = code_k(c, 2 * (int64_t)LLVMGetVectorSize(t));
		emulated(c->l, c->b, "fma_f16", at, 4);
		return code_load(c, t, at[0], NULL);
	}
	V arg[3] = {LLVMBuildBitCast(c->b, a, half, ""), LLVMBuildBitCast(c->b, x, half, ""),
	            LLVMBuildBitCast(c->b, sum, half, "")};
	unsigned id = LLVMLookupIntrinsicID("llvm.fma", 8);
	V f = LLVMGetIntrinsicDeclaration(c->l->mod, id, &half, 1);

	return LLVMBuildBitCast(c->b, LLVMBuildCall2(c->b, LLVMIntrinsicGetType(c->l->cx, id, &half, 1), f, arg, 3, ""),
	                        t, "");
}

bool
isa_converts_f16(const Llvm *l)
{
	return strstr(l->arch->needs, "f16c");
}

static V
every(T t, uint32_t x)
{
	V k[64], one = LLVMConstInt(LLVMGetTypeKind(t) == LLVMVectorTypeKind ? LLVMGetElementType(t) : t, x, 0);
	unsigned n = LLVMGetTypeKind(t) == LLVMVectorTypeKind ? LLVMGetVectorSize(t) : 0;

	for (unsigned i = 0; i < n; i++)
		k[i] = one;
	return n ? LLVMConstVector(k, n) : one;
}

/* An integer type of as many lanes as t has. */
static T
lanes_of(T t, T element)
{
	return LLVMGetTypeKind(t) == LLVMVectorTypeKind ? LLVMVectorType(element, LLVMGetVectorSize(t)) : element;
}

/* A product with 2^112 moves the exponent, and makes subnormal numbers of f16 normal ones of f32. */
V
isa_widen_f16(const Llvm *l, LLVMBuilderRef b, V half)
{
	T t = LLVMTypeOf(half), it = lanes_of(t, l->i32), ft = lanes_of(t, l->f32);
	V u = LLVMBuildZExt(b, half, it, ""), size = LLVMBuildAnd(b, u, every(it, 0x7fff), "");
	V sign = LLVMBuildShl(b, LLVMBuildXor(b, u, size, ""), every(it, 16), "");
	V f = LLVMBuildBitCast(b, LLVMBuildShl(b, size, every(it, 13), ""), ft, "");
	V r = LLVMBuildBitCast(b, LLVMBuildFMul(b, f, LLVMBuildBitCast(b, every(it, 239u << 23), ft, ""), ""), it, "");
	V special = LLVMBuildICmp(b, LLVMIntSGT, size, every(it, 0x7bff), "");

	r = LLVMBuildOr(b, r, LLVMBuildSelect(b, special, every(it, 0x7f800000), every(it, 0), ""), "");
	return LLVMBuildBitCast(b, LLVMBuildOr(b, r, sign, ""), ft, "");
}

/* To the nearest, ties to even; a NaN keeps its sign and the upper bits of its payload and becomes quiet. Below 2^-14
 * the sum with 1/2 rounds to a multiple of 2^-24. */
V
isa_narrow_f16(const Llvm *l, LLVMBuilderRef b, V f)
{
	T ft = LLVMTypeOf(f), it = lanes_of(ft, l->i32);
	V u = LLVMBuildBitCast(b, f, it, ""), size = LLVMBuildAnd(b, u, every(it, 0x7fffffff), "");
	V sign = LLVMBuildLShr(b, LLVMBuildXor(b, u, size, ""), every(it, 16), "");
	V odd = LLVMBuildAnd(b, LLVMBuildLShr(b, size, every(it, 13), ""), every(it, 1), "");
	V r = LLVMBuildAdd(b, LLVMBuildAdd(b, size, every(it, 0xc8000fffu), ""), odd, "");
	V half = every(it, 0x3f000000), payload = LLVMBuildLShr(b, size, every(it, 13), "");
	V low = LLVMBuildFAdd(b, LLVMBuildBitCast(b, size, ft, ""), LLVMBuildBitCast(b, half, ft, ""), "");
	V nan = LLVMBuildOr(b, LLVMBuildAnd(b, payload, every(it, 0x3ff), ""), every(it, 0x7e00), "");

	low = LLVMBuildSub(b, LLVMBuildBitCast(b, low, it, ""), half, "");
	r = LLVMBuildLShr(b, r, every(it, 13), "");
	r = LLVMBuildSelect(b, LLVMBuildICmp(b, LLVMIntSLT, size, every(it, 113u << 23), ""), low, r, "");
	r = LLVMBuildSelect(b, LLVMBuildICmp(b, LLVMIntSGT, size, every(it, 0x477fffff), ""), every(it, 0x7c00), r, "");
	r = LLVMBuildSelect(b, LLVMBuildICmp(b, LLVMIntSGT, size, every(it, 0x7f800000), ""), nan, r, "");
	return LLVMBuildTrunc(b, LLVMBuildOr(b, r, sign, ""), lanes_of(ft, l->i16), "");
}
