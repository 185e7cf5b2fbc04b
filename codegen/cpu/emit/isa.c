/* isa.c: tile instructions of AMX and multiply-adds of f16, which not every machine has.
 *
 * In: operands.   Out: the LLVM intrinsic; where Arch.emulated is set, a call of a C function of the same operands
 * instead (emulate_NAME, which tests/cpu defines), and nothing else differs: so what goes around these instructions
 * runs on any machine with AVX-512. Tiles are named by number (the intrinsics with immediates): LLVM neither allocates
 * nor spills them. */
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
