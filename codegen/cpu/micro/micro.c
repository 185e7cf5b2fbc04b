/* micro.c: the register-blocked microkernel of all contractions (a batch-reduce GEMM: Georganas et al. 2020,
 * arXiv:1906.06440).
 *
 * In: a tile of mr rows x nv vectors.   Out: an internal LLVM function that keeps the whole tile of C in registers
 * while it walks three nested reductions (filter row, filter column, channel; or pixel row, pixel column, image; or 1,
 * 1, k). All strides are run-time numbers, so one function serves every layer, direction and layout of a module:
 * borders, strides, dilation and transposition are data. B's rows are contiguous vectors; A is broadcast element by
 * element, in any layout. Additions go p, then q, then k, FMA throughout; where tiles are too small to
 * hide the latency of their own additions, k is walked in interleaved sums, as many as the caller says (gemm_chains):
 * the order follows from that number, not from the tile. Of bf16 an element is a pair of neighbours along k in the room
 * of one f32, so nothing else differs.
 *
 * SSE (vectors of 16 bytes, 16 registers, no instruction of three operands, none that spreads a number): a tile of 12
 * sums leaves no registers for B's row, each product loads its vector anew. Where all of B's vectors lie at multiples
 * of 16 bytes that is part of the multiplication; so there are two loops, and addresses choose at the start. What lies
 * beyond the last column of such a row is read, but stored nowhere. */
#include "../emit/code.h"
#include <string.h>

typedef struct Micro {
	Llvm *l;
	V fn, a, b, c, np, nq, strides, acc, mask;
	LLVMBuilderRef bl;
	T vt;
	int mr, nv, w, chains, ahead;
	int share;               /* bytes of the next panel that a step asks for; 0: none */
	V after;                 /* share: where those of all steps end */
	int unroll;              /* steps of a turn of the loop over k */
	Steps steps;             /* known to be so far apart; unroll 1: not */
	bool masked;
	bool past;               /* results go past the caches */
	bool sse, aligned;       /* B's vectors are: this one of two loops */
	V lane[4];               /* sse, masked: bytes of the last vector's lanes, 0 of those beyond the last column */
	bool pair;               /* an element of A and B is two bf16 values, whose products are added together */
} Micro;

static V
stride_of(Micro *m, int which)
{
	V at = LLVMConstInt(m->l->i64, (unsigned)which, 0);

	return LLVMBuildLoad2(m->bl, m->l->i64, LLVMBuildInBoundsGEP2(m->bl, m->l->i64, m->strides, &at, 1, ""), "");
}

static V
bytes_on(Micro *m, V p, V off)
{
	return LLVMBuildInBoundsGEP2(m->bl, m->l->i8, p, &off, 1, "");
}

static V
int_k(Micro *m, int64_t x)
{
	return LLVMConstInt(m->l->i64, (unsigned long long)x, 1);
}

static V
call_intrinsic(Micro *m, const char *name, T t, V *args, unsigned n)
{
	T over[2] = {t, m->l->ptr};
	unsigned id = LLVMLookupIntrinsicID(name, strlen(name));
	size_t nover = strstr(name, "masked") ? 2 : 1;
	V f = LLVMGetIntrinsicDeclaration(m->l->mod, id, over, nover);

	return LLVMBuildCall2(m->bl, LLVMIntrinsicGetType(m->l->cx, id, over, nover), f, args, n, "");
}

/* Lanes of a vector without the instruction: each is read, those that must not be at the first one's address. */
static V
some_lanes(Micro *m, V p)
{
	V v = LLVMGetPoison(m->vt);

	for (int i = 0; i < m->w; i++) {
		V x = LLVMBuildLoad2(m->bl, m->l->f32, bytes_on(m, p, m->lane[i]), "");

		LLVMSetAlignment(x, 4);
		v = LLVMBuildInsertElement(m->bl, v, x, int_k(m, i), "");
	}
	return LLVMBuildSelect(m->bl, m->mask, v, LLVMConstNull(m->vt), "");
}

static V
vector_load(Micro *m, V p, int j)
{
	V at = bytes_on(m, p, int_k(m, (int64_t)j * m->w * 4));

	if (m->masked && j == m->nv - 1 && m->sse)
		return some_lanes(m, at);
	if (m->masked && j == m->nv - 1) {
		V args[4] = {at, LLVMConstInt(m->l->i32, 4, 0), m->mask, LLVMConstNull(m->vt)};

		return call_intrinsic(m, "llvm.masked.load", m->vt, args, 4);
	}
	V v = LLVMBuildLoad2(m->bl, m->vt, at, "");

	LLVMSetAlignment(v, 4);
	return v;
}

/* a times the vector at p, as one instruction beside a's copy: with a load of its own, which LLVM would choose, Zen 4
 * takes 1.2 times as long. */
static V
product_with_memory(Micro *m, V a, V p)
{
	T args[2] = {m->vt, m->l->ptr};
	T t = LLVMFunctionType(m->vt, args, 2, 0);
	const char *text = "mulps $2, $0", *where = "=x,0,*m";
	V f = LLVMGetInlineAsm(t, text, strlen(text), where, strlen(where), 0, 0, LLVMInlineAsmDialectATT, 0);
	V r = LLVMBuildCall2(m->bl, t, f, (V[]){a, p}, 2, "");
	unsigned kind = LLVMGetEnumAttributeKindForName("elementtype", 11);

	LLVMAddCallSiteAttribute(r, 2, LLVMCreateTypeAttribute(m->l->cx, kind, m->vt));
	return r;
}

/* A vector of B's row. */
static V
vector_of_b(Micro *m, V p, int j)
{
	if (!m->aligned)
		return vector_load(m, p, j);
	V v = LLVMBuildLoad2(m->bl, m->vt, bytes_on(m, p, int_k(m, (int64_t)j * m->w * 4)), "");

	LLVMSetAlignment(v, 16);
	return v;
}

static void
vector_store(Micro *m, V v, V p, int j)
{
	V at = bytes_on(m, p, int_k(m, (int64_t)j * m->w * 4));

	if (m->masked && j == m->nv - 1) {
		T over[2] = {m->vt, m->l->ptr};
		unsigned id = LLVMLookupIntrinsicID("llvm.masked.store", 17);
		V f = LLVMGetIntrinsicDeclaration(m->l->mod, id, over, 2);
		V args[4] = {v, at, LLVMConstInt(m->l->i32, 4, 0), m->mask};

		LLVMBuildCall2(m->bl, LLVMIntrinsicGetType(m->l->cx, id, over, 2), f, args, 4, "");
		return;
	}
	V store = LLVMBuildStore(m->bl, v, at);

	LLVMSetAlignment(store, m->past ? 4 * (unsigned)m->w : 4);
	if (m->past)
		store_past(m->l, store);
}

static V
broadcast(Micro *m, V p)
{
	V s = LLVMBuildLoad2(m->bl, m->l->f32, p, ""), zero[64];

	LLVMSetAlignment(s, 4);
	for (int i = 0; i < m->w; i++)
		zero[i] = LLVMConstInt(m->l->i32, 0, 0);
	V one = LLVMBuildInsertElement(m->bl, LLVMGetPoison(m->vt), s, int_k(m, 0), "");

	return LLVMBuildShuffleVector(m->bl, one, LLVMGetPoison(m->vt), LLVMConstVector(zero, (unsigned)m->w), "");
}

/* sum + a * b, or sum + a0 * b0 + a1 * b1 of pairs */
static V
product(Micro *m, V a, V b, V sum)
{
	if (!m->pair)
		return llvm_fma(m->l, m->bl, a, b, sum);
	T pairs = LLVMVectorType(LLVMBFloatTypeInContext(m->l->cx), (unsigned)(2 * m->w));
	V over[3] = {sum, LLVMBuildBitCast(m->bl, a, pairs, ""), LLVMBuildBitCast(m->bl, b, pairs, "")};
	const char *name = m->w == 16 ? "llvm.x86.avx512bf16.dpbf16ps.512" : "llvm.x86.avx512bf16.dpbf16ps.256";
	V f = LLVMGetIntrinsicDeclaration(m->l->mod, LLVMLookupIntrinsicID(name, strlen(name)), NULL, 0);

	return LLVMBuildCall2(m->bl, LLVMGlobalGetValueType(f), f, over, 3, "");
}

V
micro_step(Llvm *l, LLVMBuilderRef b, V a)
{
	T t = LLVMFunctionType(l->ptr, &l->ptr, 1, 0);
	V nothing = LLVMGetInlineAsm(t, "", 0, "=r,0", 4, 0, 0, LLVMInlineAsmDialectATT, 0);

	return LLVMBuildCall2(b, t, nothing, &a, 1, "");
}

V
micro_row(Llvm *l, LLVMBuilderRef b, V step, const V *row, int i)
{
	int scale = 0;

	if (!i)
		return step;
	while (scale < 3 && !(i >> scale & 1))
		scale++;
	V bytes = LLVMBuildShl(b, row[i >> scale], LLVMConstInt(l->i64, (unsigned)scale, 0), "");

	return LLVMBuildInBoundsGEP2(b, l->i8, step, &bytes, 1, "");
}

static LLVMBasicBlockRef
block(Micro *m, const char *name)
{
	return LLVMAppendBasicBlockInContext(m->l->cx, m->fn, name);
}

/* Asks for the row of B that is read `ahead` steps on: whole cache lines of 64 bytes, and beyond its end whatever lies
 * there, which is no fault. Near ones to L1; what is far off waits in L2 better than in the few lines that L1 can wait
 * for. */
static void
fetch_ahead(Micro *m, V b, V bk)
{
	enum { NEAR = 8 };

	if (!m->ahead)
		return;
	V at = bytes_on(m, b, LLVMBuildMul(m->bl, bk, int_k(m, m->ahead), ""));

	for (int j = 0; j < m->nv * m->w * 4; j += LINE)
		isa_prefetch(m->l, m->bl, bytes_on(m, at, int_k(m, j)), m->ahead > NEAR ? 2 : 3);
}

/* Asks for this step's share of the next panel: memory is not left waiting until the first tile of rows that goes over
 * it. `left`: steps of the sum from the turn's first on, of which this is number u. */
static void
fetch_next(Micro *m, V left, int u)
{
	if (!m->share)
		return;
	V at = bytes_on(m, m->after, LLVMBuildNeg(m->bl, LLVMBuildMul(m->bl, left, int_k(m, m->share), ""), ""));

	for (int j = (u * m->share + LINE - 1) / LINE * LINE; j < (u + 1) * m->share; j += LINE)
		isa_prefetch(m->l, m->bl, bytes_on(m, at, int_k(m, j)), 2);
}

/* Interleaved sums, added at the end of each loop: `chains` steps at once while nk allows; *left: what remains for
 * loop_k. Block `from` is replaced by *end. */
static void
loop_chains(Micro *m, int chains, V *a, V *b, V nk, V *left, V ak, V bk, const V *row, V *s, LLVMBasicBlockRef from,
            LLVMBasicBlockRef *end)
{
	int n = m->mr * m->nv;
	LLVMBasicBlockRef head = block(m, "chains"), body = block(m, "chain"), after = block(m, "chains.after");
	V phi[64], now[64], pa, pb, pi, sum[64];

	LLVMBuildBr(m->bl, head);
	LLVMPositionBuilderAtEnd(m->bl, head);
	pi = LLVMBuildPhi(m->bl, m->l->i64, "");
	pa = LLVMBuildPhi(m->bl, m->l->ptr, "a");
	pb = LLVMBuildPhi(m->bl, m->l->ptr, "b");
	for (int i = 0; i < n * chains; i++) {
		V zero = LLVMConstNull(m->vt);

		phi[i] = LLVMBuildPhi(m->bl, m->vt, "");
		LLVMAddIncoming(phi[i], i < n ? &s[i] : &zero, &from, 1);
	}
	LLVMBuildCondBr(m->bl, LLVMBuildICmp(m->bl, LLVMIntSGE, pi, int_k(m, chains), ""), body, after);
	LLVMPositionBuilderAtEnd(m->bl, body);
	V xa = pa, xb = pb;

	for (int c = 0; c < chains; c++) {
		V at = micro_step(m->l, m->bl, xa);

		fetch_ahead(m, xb, bk);
		for (int j = 0; j < m->nv; j++) {
			V bv = vector_of_b(m, xb, j);

			for (int i = 0; i < m->mr; i++) {
				now[c * n + i * m->nv + j] =
				        product(m, broadcast(m, micro_row(m->l, m->bl, at, row, i)), bv,
				                phi[c * n + i * m->nv + j]);
			}
		}
		xa = bytes_on(m, xa, ak);
		xb = bytes_on(m, xb, bk);
	}
	V next = LLVMBuildSub(m->bl, pi, int_k(m, chains), "");

	LLVMAddIncoming(pi, (V[]){nk, next}, (LLVMBasicBlockRef[]){from, body}, 2);
	LLVMAddIncoming(pa, (V[]){*a, xa}, (LLVMBasicBlockRef[]){from, body}, 2);
	LLVMAddIncoming(pb, (V[]){*b, xb}, (LLVMBasicBlockRef[]){from, body}, 2);
	for (int i = 0; i < n * chains; i++)
		LLVMAddIncoming(phi[i], &now[i], &body, 1);
	LLVMBuildBr(m->bl, head);
	LLVMPositionBuilderAtEnd(m->bl, after);
	LLVMMoveBasicBlockAfter(body, head);
	for (int i = 0; i < n; i++) {
		for (int c = 0; c < chains; c++)
			sum[c] = phi[c * n + i];
		for (int c = chains; c > 1; c /= 2)
			for (int k = 0; k < c / 2; k++)
				sum[k] = LLVMBuildFAdd(m->bl, sum[k], sum[k + c / 2], "");
		s[i] = sum[0];
	}
	*a = pa;
	*b = pb;
	*left = pi;
	*end = after;
}

/* One step of the tile's sums s[], A at `at`, B at `now`. Where a register holds no row of B (SSE), `now` is settled
 * anew for each row of A. Returns it. */
static V
step_k(Micro *m, V at, V now, const V *row, V *s)
{
	bool again = m->sse && m->mr * m->nv + m->nv + 2 > 16;
	V bv[8];

	for (int i = 0; i < m->mr; i++) {
		V x = broadcast(m, micro_row(m->l, m->bl, at, row, i));

		for (int j = 0; j < m->nv; j++) {
			V *sum = &s[i * m->nv + j];

			if (again && m->aligned) {
				V at_b = bytes_on(m, now, int_k(m, (int64_t)j * m->w * 4));

				*sum = LLVMBuildFAdd(m->bl, product_with_memory(m, x, at_b), *sum, "");
				continue;
			}
			if (!i || (again && !(m->masked && j == m->nv - 1)))
				bv[j] = vector_of_b(m, now, j);
			*sum = product(m, x, bv[j], *sum);
		}
		if (again)
			now = micro_step(m->l, m->bl, now);
	}
	return now;
}

/* Turns of `unroll` steps while nk allows; *left: what remains for loop_k. Where cores are shared by two threads, as
 * virtual machines have them, a step's instructions that multiply nothing are what its products wait for: a Zen 3 takes
 * 1.14 times as long for turns of one step. */
static void
loop_turns(Micro *m, V *a, V *b, V nk, V *left, const V *row, V *s, LLVMBasicBlockRef from, LLVMBasicBlockRef *end)
{
	int n = m->mr * m->nv;
	LLVMBasicBlockRef head = block(m, "turns"), body = block(m, "turn"), after = block(m, "turns.after");
	V phi[64];

	LLVMBuildBr(m->bl, head);
	LLVMPositionBuilderAtEnd(m->bl, head);
	V pi = LLVMBuildPhi(m->bl, m->l->i64, ""), pa = LLVMBuildPhi(m->bl, m->l->ptr, "a"),
	  pb = LLVMBuildPhi(m->bl, m->l->ptr, "b");

	for (int i = 0; i < n; i++) {
		phi[i] = LLVMBuildPhi(m->bl, m->vt, "");
		LLVMAddIncoming(phi[i], &s[i], &from, 1);
		s[i] = phi[i];
	}
	LLVMBuildCondBr(m->bl, LLVMBuildICmp(m->bl, LLVMIntSGE, pi, int_k(m, m->unroll), ""), body, after);
	LLVMPositionBuilderAtEnd(m->bl, body);
	V at = micro_step(m->l, m->bl, pa);

	for (int u = 0; u < m->unroll; u++) {
		V now = bytes_on(m, pb, int_k(m, u * m->steps.b));

		fetch_ahead(m, now, int_k(m, m->steps.b));
		fetch_next(m, pi, u);
		step_k(m, bytes_on(m, at, int_k(m, u * m->steps.a)), now, row, s);
	}
	V next[3] = {LLVMBuildSub(m->bl, pi, int_k(m, m->unroll), ""),
	             bytes_on(m, pa, int_k(m, m->unroll * m->steps.a)),
	             bytes_on(m, pb, int_k(m, m->unroll * m->steps.b))};

	LLVMAddIncoming(pi, (V[]){nk, next[0]}, (LLVMBasicBlockRef[]){from, body}, 2);
	LLVMAddIncoming(pa, (V[]){*a, next[1]}, (LLVMBasicBlockRef[]){from, body}, 2);
	LLVMAddIncoming(pb, (V[]){*b, next[2]}, (LLVMBasicBlockRef[]){from, body}, 2);
	for (int i = 0; i < n; i++)
		LLVMAddIncoming(phi[i], &s[i], &body, 1);
	LLVMBuildBr(m->bl, head);
	LLVMPositionBuilderAtEnd(m->bl, after);
	LLVMMoveBasicBlockAfter(body, head);
	memcpy(s, phi, sizeof *s * (size_t)n);
	*a = pa;
	*b = pb;
	*left = pi;
	*end = after;
}

/* The innermost loop: nk steps of one rank-1 update. s[]: tile, in and out. Ends in *end. */
static void
loop_k(Micro *m, V a, V b, V nk, V ak, V bk, const V *row, V *s, LLVMBasicBlockRef from, LLVMBasicBlockRef *end)
{
	int n = m->mr * m->nv;
	bool rest = m->chains > 1 || m->unroll > 1; /* of steps that another loop leaves */
	LLVMBasicBlockRef body, after;
	V phi[64], before[64], pa, pb, pi;

	if (m->chains > 1)
		loop_chains(m, m->chains, &a, &b, nk, &nk, ak, bk, row, s, from, &from);
	else if (m->unroll > 1)
		loop_turns(m, &a, &b, nk, &nk, row, s, from, &from);
	body = block(m, "k");
	after = block(m, "k.after");
	memcpy(before, s, sizeof *s * (size_t)n);
	if (rest)
		LLVMBuildCondBr(m->bl, LLVMBuildICmp(m->bl, LLVMIntNE, nk, int_k(m, 0), ""), body, after);
	else
		LLVMBuildBr(m->bl, body);
	LLVMPositionBuilderAtEnd(m->bl, body);
	pi = LLVMBuildPhi(m->bl, m->l->i64, "");
	pa = LLVMBuildPhi(m->bl, m->l->ptr, "a");
	pb = LLVMBuildPhi(m->bl, m->l->ptr, "b");
	for (int i = 0; i < n; i++) {
		phi[i] = LLVMBuildPhi(m->bl, m->vt, "");
		LLVMAddIncoming(phi[i], &s[i], &from, 1);
		s[i] = phi[i];
	}
	V at = micro_step(m->l, m->bl, pa);

	fetch_ahead(m, pb, bk);
	fetch_next(m, pi, 0);
	V now = step_k(m, at, pb, row, s);
	V next = LLVMBuildSub(m->bl, pi, int_k(m, 1), ""), na = bytes_on(m, pa, ak), nb = bytes_on(m, now, bk);

	LLVMAddIncoming(pi, (V[]){nk, next}, (LLVMBasicBlockRef[]){from, body}, 2);
	LLVMAddIncoming(pa, (V[]){a, na}, (LLVMBasicBlockRef[]){from, body}, 2);
	LLVMAddIncoming(pb, (V[]){b, nb}, (LLVMBasicBlockRef[]){from, body}, 2);
	for (int i = 0; i < n; i++)
		LLVMAddIncoming(phi[i], &s[i], &body, 1);
	LLVMBuildCondBr(m->bl, LLVMBuildICmp(m->bl, LLVMIntNE, next, int_k(m, 0), ""), body, after);
	LLVMPositionBuilderAtEnd(m->bl, after);
	for (int i = 0; i < n && rest; i++) {
		V merge = LLVMBuildPhi(m->bl, m->vt, "");

		LLVMAddIncoming(merge, (V[]){before[i], s[i]}, (LLVMBasicBlockRef[]){from, body}, 2);
		s[i] = merge;
	}
	*end = after;
}

/* One of the two outer reductions; the loop count is at least 1. */
static void
loop_outer(Micro *m, int depth, V a, V b, const V *st, const V *row, V *s, LLVMBasicBlockRef from,
           LLVMBasicBlockRef *end)
{
	if (depth == 2) {
		loop_k(m, a, b, st[S_NK], st[S_AK], st[S_BK], row, s, from, end);
		return;
	}
	int n = m->mr * m->nv;
	LLVMBasicBlockRef head = block(m, depth ? "q" : "p"), inner;
	V phi[64], pi, pa, pb;

	LLVMBuildBr(m->bl, head);
	LLVMPositionBuilderAtEnd(m->bl, head);
	pi = LLVMBuildPhi(m->bl, m->l->i64, "");
	pa = LLVMBuildPhi(m->bl, m->l->ptr, "a");
	pb = LLVMBuildPhi(m->bl, m->l->ptr, "b");
	for (int i = 0; i < n; i++) {
		phi[i] = LLVMBuildPhi(m->bl, m->vt, "");
		LLVMAddIncoming(phi[i], &s[i], &from, 1);
		s[i] = phi[i];
	}
	loop_outer(m, depth + 1, pa, pb, st, row, s, head, &inner);
	V next = LLVMBuildSub(m->bl, pi, int_k(m, 1), "");
	V na = bytes_on(m, pa, st[depth ? S_AQ : S_AP]), nb = bytes_on(m, pb, st[depth ? S_BQ : S_BP]);
	LLVMBasicBlockRef after = block(m, depth ? "q.after" : "p.after");

	LLVMAddIncoming(pi, (V[]){depth ? m->nq : m->np, next}, (LLVMBasicBlockRef[]){from, inner}, 2);
	LLVMAddIncoming(pa, (V[]){a, na}, (LLVMBasicBlockRef[]){from, inner}, 2);
	LLVMAddIncoming(pb, (V[]){b, nb}, (LLVMBasicBlockRef[]){from, inner}, 2);
	for (int i = 0; i < n; i++)
		LLVMAddIncoming(phi[i], &s[i], &inner, 1);
	LLVMBuildCondBr(m->bl, LLVMBuildICmp(m->bl, LLVMIntNE, next, int_k(m, 0), ""), head, after);
	LLVMPositionBuilderAtEnd(m->bl, after);
	*end = after;
}

/* All of it; SSE: by the loop that B's addresses allow. */
static void
products(Micro *m, const V *st, const V *row, V *s, LLVMBasicBlockRef from, LLVMBasicBlockRef *end)
{
	int n = m->mr * m->nv;

	if (!m->sse) {
		loop_outer(m, 0, m->a, m->b, st, row, s, from, end);
		return;
	}
	LLVMBasicBlockRef way[2] = {block(m, "any"), block(m, "aligned")}, last[2];
	V bits = LLVMBuildPtrToInt(m->bl, m->b, m->l->i64, ""), sum[2][64];
	static const int of_b[] = {S_BP, S_BQ, S_BK};

	for (int i = 0; i < 3; i++)
		bits = LLVMBuildOr(m->bl, bits, st[of_b[i]], "");
	bits = LLVMBuildAnd(m->bl, bits, int_k(m, 15), "");
	LLVMBuildCondBr(m->bl, LLVMBuildICmp(m->bl, LLVMIntEQ, bits, int_k(m, 0), ""), way[1], way[0]);
	for (int k = 0; k < 2; k++) {
		m->aligned = k;
		memcpy(sum[k], s, sizeof *s * (size_t)n);
		LLVMPositionBuilderAtEnd(m->bl, way[k]);
		loop_outer(m, 0, m->a, m->b, st, row, sum[k], way[k], &last[k]);
	}
	*end = block(m, "both");
	LLVMBuildBr(m->bl, *end);
	LLVMPositionBuilderAtEnd(m->bl, last[0]);
	LLVMBuildBr(m->bl, *end);
	LLVMPositionBuilderAtEnd(m->bl, *end);
	for (int i = 0; i < n; i++) {
		s[i] = LLVMBuildPhi(m->bl, m->vt, "");
		LLVMAddIncoming(s[i], (V[]){sum[0][i], sum[1][i]}, last, 2);
	}
}

/* Begins the function and names its parameters. */
static void
micro_begin(Micro *m, const char *name)
{
	Llvm *l = m->l;
	T args[8] = {l->ptr, l->ptr, l->ptr, l->i64, l->i64, l->ptr, l->i64, l->i64};

	if (m->mr * m->nv > 64 || m->nv > 8)
		bug("a register tile of %d x %d", m->mr, m->nv);
	m->fn = unit_begin(l, name, LLVMFunctionType(l->voidt, args, 8, 0), true);
	fn_machine(l, m->fn);
	m->a = LLVMGetParam(m->fn, 0);
	m->b = LLVMGetParam(m->fn, 1);
	m->c = LLVMGetParam(m->fn, 2);
	m->np = LLVMGetParam(m->fn, 3);
	m->nq = LLVMGetParam(m->fn, 4);
	m->strides = LLVMGetParam(m->fn, 5);
	m->acc = LLVMGetParam(m->fn, 6);
	m->vt = LLVMVectorType(l->f32, (unsigned)m->w);
}

/* The last vector's lanes. */
static void
mask_begin(Micro *m)
{
	V bits = LLVMGetParam(m->fn, 7);
	T it = LLVMIntTypeInContext(m->l->cx, (unsigned)m->w), lanes = LLVMVectorType(m->l->i1, (unsigned)m->w);

	m->mask = LLVMBuildBitCast(m->bl, LLVMBuildTrunc(m->bl, bits, it, ""), lanes, "mask");
	for (int i = 0; i < m->w && m->sse; i++) {
		V bit = LLVMBuildAnd(m->bl, bits, int_k(m, (int64_t)1 << i), "");
		V none = LLVMBuildICmp(m->bl, LLVMIntEQ, bit, int_k(m, 0), "");

		m->lane[i] = LLVMBuildSelect(m->bl, none, int_k(m, 0), int_k(m, 4 * i), "");
	}
}

/* The tile's sums to C's rows; ADDED: to what stands there. */
static void
tile_store(Micro *m, V *sum, const V *crow)
{
	LLVMBasicBlockRef from = LLVMGetInsertBlock(m->bl), add = block(m, "add"), store = block(m, "store");
	int n = m->mr * m->nv;
	V more[64];

	LLVMBuildCondBr(m->bl, LLVMBuildICmp(m->bl, LLVMIntEQ, m->acc, int_k(m, ADDED), ""), add, store);
	LLVMPositionBuilderAtEnd(m->bl, add);
	for (int i = 0; i < n; i++)
		more[i] = LLVMBuildFAdd(m->bl, sum[i], vector_load(m, crow[i / m->nv], i % m->nv), "");
	LLVMBuildBr(m->bl, store);
	LLVMPositionBuilderAtEnd(m->bl, store);
	for (int i = 0; i < n; i++) {
		V phi = LLVMBuildPhi(m->bl, m->vt, "");

		LLVMAddIncoming(phi, (V[]){sum[i], more[i]}, (LLVMBasicBlockRef[]){from, add}, 2);
		more[i] = phi;
	}
	for (int i = 0; i < n; i++)
		vector_store(m, more[i], crow[i / m->nv], i % m->nv);
}

/* The text of a number that most names lack. */
static const char *
name_part(char *to, size_t room, const char *letter, int64_t x, bool there)
{
	if (there)
		snprintf(to, room, "%s%lld", letter, (long long)x);
	else
		*to = 0;
	return to;
}

/* Of a tile of so many rows: interleaved sums that registers hold, steps of a turn. */
static void
micro_loops(Micro *m, const GemmParams *p, Steps steps)
{
	m->chains = p->chains > 1 ? p->chains : 1;
	/* a tile of more rows than the product has: it stands in a table only, for rows that follow n */
	while (m->chains > 1 && m->chains * m->mr * m->nv > 64)
		m->chains /= 2;
	m->steps = steps;
	m->unroll = m->chains == 1 && steps.a && steps.b && !m->sse ? m->l->arch->machine.budget.unroll : 1;
}

V
gemm_micro(Llvm *l, const GemmParams *p, int mr, int nv, bool masked, bool pair, Steps steps)
{
	char name[160], part[5][32];
	Micro m = {.l = l, .mr = mr, .nv = nv, .w = p->lanes, .ahead = p->ahead, .share = p->share, .masked = masked,
	           .pair = pair, .past = p->past, .sse = l->arch->vector_bytes == 16};

	micro_loops(&m, p, steps);
	bool known = m.unroll > 1;

	snprintf(name, sizeof name, "micro_%dx%dx%d%s%s%s%s%s%s%s%s", mr, nv, m.w, masked ? "m" : "", m.past ? "n" : "",
	         name_part(part[0], sizeof *part, "c", m.chains, m.chains > 1),
	         name_part(part[1], sizeof *part, "a", m.ahead, m.ahead > 0), pair ? "p" : "",
	         name_part(part[2], sizeof *part, "_", steps.a, known),
	         name_part(part[3], sizeof *part, "_", steps.b, known),
	         name_part(part[4], sizeof *part, "x", m.share, m.share > 0));
	V fn = unit_find(l, name);

	if (fn)
		return fn;
	m.bl = LLVMCreateBuilderInContext(l->cx);
	micro_begin(&m, name);
	fn = m.fn;
	LLVMBasicBlockRef entry = block(&m, "entry"), load = block(&m, "load"), start = block(&m, "start"), end;

	LLVMPositionBuilderAtEnd(m.bl, entry);
	V st[S_COUNT], row[64], crow[64], s[64], old[64];
	int n = mr * nv;

	if (masked)
		mask_begin(&m);
	for (int i = 0; i < S_NEXT; i++)
		st[i] = stride_of(&m, i);
	if (m.share) {
		V which = int_k(&m, S_NEXT), at = LLVMBuildInBoundsGEP2(m.bl, l->i64, m.strides, &which, 1, "");

		m.after = bytes_on(&m, LLVMBuildLoad2(m.bl, l->ptr, at, ""),
		                   LLVMBuildMul(m.bl, st[S_NK], int_k(&m, m.share), ""));
	}
	for (int i = 0; i < mr; i++) {
		row[i] = LLVMBuildMul(m.bl, st[S_AM], int_k(&m, i), "");
		crow[i] = bytes_on(&m, m.c, LLVMBuildMul(m.bl, st[S_CM], int_k(&m, i), ""));
	}
	LLVMBuildCondBr(m.bl, LLVMBuildICmp(m.bl, LLVMIntEQ, m.acc, int_k(&m, GOES_ON), ""), load, start);
	LLVMPositionBuilderAtEnd(m.bl, load);
	for (int i = 0; i < n; i++)
		old[i] = vector_load(&m, crow[i / nv], i % nv);
	LLVMBuildBr(m.bl, start);
	LLVMPositionBuilderAtEnd(m.bl, start);
	for (int i = 0; i < n; i++) {
		s[i] = LLVMBuildPhi(m.bl, m.vt, "");
		LLVMAddIncoming(s[i], (V[]){LLVMConstNull(m.vt), old[i]}, (LLVMBasicBlockRef[]){entry, load}, 2);
	}
	/* a border pixel may have no tap at all: C is zero then, or stays */
	LLVMBasicBlockRef work = block(&m, "work"), done = block(&m, "done");
	V none = LLVMBuildOr(m.bl, LLVMBuildICmp(m.bl, LLVMIntSLE, m.np, int_k(&m, 0), ""),
	                     LLVMBuildICmp(m.bl, LLVMIntSLE, m.nq, int_k(&m, 0), ""), "");
	V out[64];

	LLVMBuildCondBr(m.bl, none, done, work);
	LLVMPositionBuilderAtEnd(m.bl, work);
	memcpy(out, s, sizeof out);
	products(&m, st, row, s, work, &end);
	LLVMBuildBr(m.bl, done);
	LLVMPositionBuilderAtEnd(m.bl, done);
	for (int i = 0; i < n; i++) {
		V phi = LLVMBuildPhi(m.bl, m.vt, "");

		LLVMAddIncoming(phi, (V[]){out[i], s[i]}, (LLVMBasicBlockRef[]){start, end}, 2);
		out[i] = phi;
	}
	tile_store(&m, out, crow);
	LLVMBuildRetVoid(m.bl);
	LLVMDisposeBuilder(m.bl);
	return unit_end(l, fn);
}
