/* micro_fp16.c: the microkernel of f16 operands on CPUs that multiply f16 (AVX512-FP16), twice as many at
 * once as of f32.
 *
 * In: a tile of mr rows x nv vectors, operands in pairs along k.   Out: a function of the contract of gemm_micro for
 * pairs. A broadcast of 32 bits feeds even and odd lanes, which are sums of even and odd k; after FLUSH steps of k,
 * counted on through all taps, the two are added and join a sum of f32 in memory, and begin again at zero.
 * Error: within FLUSH steps a lane is rounded FLUSH / 2 times, the addition of the two once more, so with u = 2^-11
 * |c - sum a b| <= 33 u / (1 - 33 u) * sum |a b| + (K + K / FLUSH) 2^-25 + the additions in f32 (K / FLUSH times 2^-24
 * sum |a b|), the middle term from products and sums below 2^-14. For numbers of the normal distribution, one side of
 * them positive, it is 9e-4 of the result (root mean square, K = 2304), where operands rounded to bf16 cost 2.3e-3;
 * tests/cpu/narrow.c holds the sums to both. Beyond 65504 a lane is infinite, and stays so or becomes NaN in the sum of
 * f32. Sums that are not finite are therefore taken once more, in f32 from the first product on, and each such lane
 * gets that sum: a result is finite wherever the sum in f32 is, whether partial sums were or not, and every element has
 * its bits from its own operands, whatever tile it lies in. That matters for gradients, whose scale is raised until
 * something overflows: it must be a result that does, not a partial sum. */
#include "../emit/code.h"
#include <string.h>

enum { FLUSH = 64 };         /* steps of k */

typedef struct Half {
	Code c;
	T vt, ft;                /* pairs, sums */
	int n, mr, nv, w;
	bool exact;              /* running sums in f32 */
	V acc[64], total;        /* running sums; f32 sums in memory */
	V mask;
} Half;

static V
vector_at(Half *h, V p, int j)
{
	return code_at(&h->c, p, code_k(&h->c, (int64_t)j * h->w * 4));
}

static V
mask_of(const Half *h, int j)
{
	return j == h->nv - 1 ? h->mask : NULL;
}

static V
splat_pair(Half *h, V s)
{
	V one = LLVMBuildInsertElement(h->c.b, LLVMGetPoison(h->vt), s, code_k(&h->c, 0), "");

	return LLVMBuildShuffleVector(h->c.b, one, LLVMGetPoison(h->vt),
	                              LLVMConstNull(LLVMVectorType(h->c.l->i32, (unsigned)h->w)), "");
}

/* Number `which` of each pair of a vector, or of one pair for all lanes. */
static V
widened(Half *h, V pairs, int which)
{
	LLVMBuilderRef b = h->c.b;
	bool one = LLVMGetTypeKind(LLVMTypeOf(pairs)) == LLVMIntegerTypeKind;
	T narrow = one ? h->c.l->i16 : LLVMVectorType(h->c.l->i16, (unsigned)h->w),
		half = one ? h->c.l->half : LLVMVectorType(h->c.l->half, (unsigned)h->w);
	V sixteen = LLVMConstInt(h->c.l->i32, 16, 0),
		bits = which ? LLVMBuildLShr(b, pairs, one ? sixteen : splat_pair(h, sixteen), "") : pairs;
	V x = LLVMBuildFPExt(b, LLVMBuildBitCast(b, LLVMBuildTrunc(b, bits, narrow, ""), half, ""),
	                     one ? h->c.l->f32 : h->ft, "");

	return one ? splat_pair(h, LLVMBuildBitCast(b, x, h->c.l->i32, "")) : x;
}

/* One pair of k, in f32: the first numbers' products, then the second ones'. */
static void
exact_step(Half *h, V a, V b, const V *row)
{
	LLVMBuilderRef bl = h->c.b;
	V at = micro_step(h->c.l, bl, a);
	unsigned id = LLVMLookupIntrinsicID("llvm.fma", 8);
	V f = LLVMGetIntrinsicDeclaration(h->c.l->mod, id, &h->ft, 1);

	for (int which = 0; which < 2; which++) {
		V bv[8];

		for (int j = 0; j < h->nv; j++)
			bv[j] = widened(h, code_load(&h->c, h->vt, vector_at(h, b, j), mask_of(h, j)), which);
		for (int i = 0; i < h->mr; i++) {
			V x = LLVMBuildBitCast(bl, widened(h, code_load(&h->c, h->c.l->i32,
				micro_row(h->c.l, bl, at, row, i), NULL), which), h->ft, "");

			for (int j = 0; j < h->nv; j++) {
				V acc = h->acc[i * h->nv + j], args[3] = {x, bv[j], code_get(&h->c, acc)};

				code_set(&h->c, acc, LLVMBuildCall2(bl, LLVMIntrinsicGetType(h->c.l->cx, id, &h->ft, 1),
				                                    f, args, 3, ""));
			}
		}
	}
}

/* One pair of k. */
static void
step(Half *h, V a, V b, const V *row)
{
	V bv[8], at = micro_step(h->c.l, h->c.b, a);

	for (int j = 0; j < h->nv; j++)
		bv[j] = code_load(&h->c, h->vt, vector_at(h, b, j), mask_of(h, j));
	for (int i = 0; i < h->mr; i++) {
		V x = splat_pair(h, code_load(&h->c, h->c.l->i32, micro_row(h->c.l, h->c.b, at, row, i), NULL));

		for (int j = 0; j < h->nv; j++) {
			V acc = h->acc[i * h->nv + j];

			code_set(&h->c, acc, isa_fma_f16(&h->c, x, bv[j], code_get(&h->c, acc)));
		}
	}
}

/* Even and odd sums, added, into those of f32; then zero. */
static void
flush(Half *h)
{
	LLVMBuilderRef b = h->c.b;
	T narrow = LLVMVectorType(h->c.l->i16, (unsigned)h->w), half = LLVMVectorType(h->c.l->half, (unsigned)h->w);
	V sixteen = splat_pair(h, LLVMConstInt(h->c.l->i32, 16, 0)),
	  one = splat_pair(h, LLVMConstInt(h->c.l->i32, 0x3c003c00, 0));

	for (int i = 0; i < h->n; i++) {
		V v = code_get(&h->c, h->acc[i]),
		  other = LLVMBuildOr(b, LLVMBuildShl(b, v, sixteen, ""), LLVMBuildLShr(b, v, sixteen, ""), "");
		V both = LLVMBuildTrunc(b, isa_fma_f16(&h->c, other, one, v), narrow, ""),
		  at = vector_at(h, h->total, i);
		V wide = LLVMBuildFPExt(b, LLVMBuildBitCast(b, both, half, ""), h->ft, "");

		code_store(&h->c, LLVMBuildFAdd(b, code_load(&h->c, h->ft, at, NULL), wide, ""), at, NULL);
		code_set(&h->c, h->acc[i], LLVMConstNull(h->vt));
	}
}

enum { PAIRS = FLUSH / 2 };

/* nk pairs of k from pa, pb on. */
static void
walk(Half *h, V n, V pa, V pb, const V *st, const V *row)
{
	Code *c = &h->c;
	CodeLoop k = code_loop(c, n);
	V a = code_get(c, pa), b = code_get(c, pb);

	(h->exact ? exact_step : step)(h, a, b, row);
	code_set(c, pa, code_at(c, a, st[S_AK]));
	code_set(c, pb, code_at(c, b, st[S_BK]));
	code_loop_end(c, k);
}

/* The same in pieces, each to the next flush. */
static void
walk_pieces(Half *h, V rest, V room, V pa, V pb, const V *st, const V *row)
{
	Code *c = &h->c;
	LLVMBasicBlockRef chunk = LLVMAppendBasicBlockInContext(c->l->cx, c->fn, "chunk"),
		after = LLVMAppendBasicBlockInContext(c->l->cx, c->fn, "");

	code_set(c, rest, st[S_NK]);
	LLVMBuildBr(c->b, chunk);
	LLVMPositionBuilderAtEnd(c->b, chunk);
	V r0 = code_get(c, rest), l0 = code_get(c, room),
		n = LLVMBuildSelect(c->b, LLVMBuildICmp(c->b, LLVMIntSLT, r0, l0, ""), r0, l0, "");

	walk(h, n, pa, pb, st, row);
	V r1 = LLVMBuildSub(c->b, r0, n, ""), l1 = LLVMBuildSub(c->b, l0, n, "");

	code_set(c, rest, r1);
	code_set(c, room, l1);
	CodeIf full = code_if(c, LLVMBuildICmp(c->b, LLVMIntEQ, l1, code_k(c, 0), ""));

	flush(h);
	code_set(c, room, code_k(c, PAIRS));
	code_fi(c, &full);
	LLVMBuildCondBr(c->b, LLVMBuildICmp(c->b, LLVMIntNE, r1, code_k(c, 0), ""), chunk, after);
	LLVMPositionBuilderAtEnd(c->b, after);
}

/* All of np x nq x nk. */
static void
sums(Half *h, V np, V nq, V strides, const V *row)
{
	Code *c = &h->c;
	V st[S_COUNT], pa[3], pb[3], rest = code_var(c, c->l->i64), room = code_var(c, c->l->i64);

	for (int i = 0; i < S_COUNT; i++)
		st[i] = code_stride(c, strides, i);
	for (int i = 0; i < 3; i++) {
		pa[i] = code_var(c, c->l->ptr);
		pb[i] = code_var(c, c->l->ptr);
	}
	code_set(c, room, code_k(c, PAIRS));
	code_set(c, pa[0], code_arg(c, 0));
	code_set(c, pb[0], code_arg(c, 1));
	CodeLoop p = code_loop(c, np);

	code_set(c, pa[1], code_get(c, pa[0]));
	code_set(c, pb[1], code_get(c, pb[0]));
	CodeLoop q = code_loop(c, nq);

	code_set(c, pa[2], code_get(c, pa[1]));
	code_set(c, pb[2], code_get(c, pb[1]));
	if (h->exact)
		walk(h, st[S_NK], pa[2], pb[2], st, row);
	else
		walk_pieces(h, rest, room, pa[2], pb[2], st, row);
	code_set(c, pa[1], code_at(c, code_get(c, pa[1]), st[S_AQ]));
	code_set(c, pb[1], code_at(c, code_get(c, pb[1]), st[S_BQ]));
	code_loop_end(c, q);
	code_set(c, pa[0], code_at(c, code_get(c, pa[0]), st[S_AP]));
	code_set(c, pb[0], code_at(c, code_get(c, pb[0]), st[S_BP]));
	code_loop_end(c, p);
	if (h->exact)
		return;
	CodeIf some = code_if(c, LLVMBuildICmp(c->b, LLVMIntNE, code_get(c, room), code_k(c, PAIRS), ""));

	flush(h);
	code_fi(c, &some);
}

/* What the sums begin with, to `to`: C where it is added to, else 0. */
static void
begin(Half *h, const V *crow, V to)
{
	Code *c = &h->c;
	CodeIf add = code_if(c, LLVMBuildICmp(c->b, LLVMIntNE, code_arg(c, 6), code_k(c, 0), ""));

	for (int i = 0; i < h->n; i++)
		code_store(c, code_load(c, h->ft, vector_at(h, crow[i / h->nv], i % h->nv), mask_of(h, i % h->nv)),
		           vector_at(h, to, i), NULL);
	code_else(c, &add);
	for (int i = 0; i < h->n; i++)
		code_store(c, LLVMConstNull(h->ft), vector_at(h, to, i), NULL);
	code_fi(c, &add);
}

static V micro(Llvm *l, int mr, int nv, int lanes, bool masked, bool exact);

/* Sums that are not finite, again in f32. */
static void
repair(Half *h, const V *crow)
{
	Code *c = &h->c;
	LLVMBuilderRef b = c->b;
	V none = LLVMConstNull(h->ft), any = none, again = code_var(c, LLVMArrayType2(h->ft, (uint64_t)h->n)),
		strides = code_var(c, LLVMArrayType2(c->l->i64, S_COUNT));

	/* a number less itself is 0, or NaN if it is not finite */
	for (int i = 0; i < h->n; i++) {
		V x = code_load(c, h->ft, vector_at(h, h->total, i), NULL);

		any = LLVMBuildFAdd(b, any, LLVMBuildFSub(b, x, x, ""), "");
	}
	V lanes = LLVMBuildBitCast(b, LLVMBuildFCmp(b, LLVMRealUNO, any, none, ""),
	                           LLVMIntTypeInContext(c->l->cx, (unsigned)h->w), "");
	CodeIf bad = code_if(c, LLVMBuildICmp(b, LLVMIntNE, lanes, LLVMConstNull(LLVMTypeOf(lanes)), ""));

	begin(h, crow, again);
	for (int i = 0; i < S_COUNT; i++)
		LLVMBuildStore(b, i == S_CM ? code_k(c, (int64_t)h->nv * h->w * 4) : code_stride(c, code_arg(c, 5), i),
		               code_at(c, strides, code_k(c, i * 8)));
	V fn = micro(c->l, h->mr, h->nv, h->w, h->mask != NULL, true),
		args[8] = {code_arg(c, 0), code_arg(c, 1), again, code_arg(c, 3), code_arg(c, 4), strides,
		           code_k(c, 1), code_arg(c, 7)};

	LLVMBuildCall2(b, LLVMGlobalGetValueType(fn), fn, args, 8, "");
	for (int i = 0; i < h->n; i++) {
		V x = code_load(c, h->ft, vector_at(h, h->total, i), NULL),
			y = code_load(c, h->ft, vector_at(h, again, i), NULL);

		code_store(c, LLVMBuildSelect(b, LLVMBuildFCmp(b, LLVMRealUNO, LLVMBuildFSub(b, x, x, ""), none, ""),
		                              y, x, ""), vector_at(h, h->total, i), NULL);
	}
	code_fi(c, &bad);
}

static V
micro(Llvm *l, int mr, int nv, int lanes, bool masked, bool exact)
{
	char name[64];
	T args[8] = {l->ptr, l->ptr, l->ptr, l->i64, l->i64, l->ptr, l->i64, l->i64};
	Half h = {.n = mr * nv, .mr = mr, .nv = nv, .w = lanes, .exact = exact,
	          .vt = LLVMVectorType(l->i32, (unsigned)lanes), .ft = LLVMVectorType(l->f32, (unsigned)lanes)};
	Code *c = &h.c;
	V row[64], crow[64];

	if (h.n > 64 || nv > 8)
		bug("a register tile of %d x %d", mr, nv);
	snprintf(name, sizeof name, "micro_f16_%dx%dx%d%s%s", mr, nv, lanes, masked ? "m" : "", exact ? "_f32" : "");
	V fn = code_begin(c, l, name, args, 8);

	if (fn)
		return fn;
	V strides = code_arg(c, 5), np = code_arg(c, 3), nq = code_arg(c, 4), am = code_stride(c, strides, S_AM),
	  cm = code_stride(c, strides, S_CM);

	h.mask = masked ? code_mask(c, code_arg(c, 7), lanes) : NULL;
	h.total = code_var(c, LLVMArrayType2(h.ft, (uint64_t)h.n));
	for (int i = 0; i < mr; i++) {
		row[i] = LLVMBuildMul(c->b, am, code_k(c, i), "");
		crow[i] = code_at(c, code_arg(c, 2), LLVMBuildMul(c->b, cm, code_k(c, i), ""));
	}
	begin(&h, crow, h.total);
	for (int i = 0; i < h.n; i++) {
		h.acc[i] = code_var(c, exact ? h.ft : h.vt);
		code_set(c, h.acc[i],
		         exact ? code_load(c, h.ft, vector_at(&h, h.total, i), NULL) : LLVMConstNull(h.vt));
	}
	/* a border pixel may have no tap at all */
	V taps = LLVMBuildAnd(c->b, LLVMBuildICmp(c->b, LLVMIntSGT, np, code_k(c, 0), ""),
	                      LLVMBuildICmp(c->b, LLVMIntSGT, nq, code_k(c, 0), ""), "");
	CodeIf some = code_if(c, taps);

	sums(&h, np, nq, strides, row);
	if (!exact)
		repair(&h, crow);
	code_fi(c, &some);
	for (int i = 0; i < h.n; i++)
		code_store(c, exact ? code_get(c, h.acc[i]) : code_load(c, h.ft, vector_at(&h, h.total, i), NULL),
		           vector_at(&h, crow[i / nv], i % nv), mask_of(&h, i % nv));
	return code_end(c);
}

V
gemm_micro_f16(Llvm *l, int mr, int nv, int lanes, bool masked)
{
	return micro(l, mr, nv, lanes, masked, false);
}
