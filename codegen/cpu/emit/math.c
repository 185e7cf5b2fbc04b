/* math.c: exp expm1 log log1p tanh erf erfc sin cos pow and the remainder as LLVM instructions, one lane or W.
 *
 * In: a number or vector of f32 or f64.   Out: the same form. f32: polynomials (Remez fits made for these intervals)
 * with Cody-Waite reductions, within 2 ulp of the exact value; pow and the reductions of sin and cos go through f64,
 * huge arguments of sin and cos through libm. f64: exp and log as polynomials, within 2 ulp; the others call libm lane
 * by lane. NaN, infinities, signed zeros and subnormal results are those of C. Conversions use the magic-number
 * rounding, which no NaN can poison. */
#include "../cpu.h"
#include <math.h>
#include <string.h>

typedef struct M { Emit *e; LLVMBuilderRef b; bool vec, dbl; T ft, it; unsigned ibits; } M; /* one type's arithmetic */

static M
m_of(Emit *e, Cell x)
{
	M m = {.e = e, .b = at1(e, x.v), .vec = x.vec, .dbl = x.dt == DT_f64};

	m.ft = ctype_v(e, x.dt == DT_f64 ? DT_f64 : DT_f32, x.vec);
	m.it = ctype_v(e, x.dt == DT_f64 ? DT_i64 : DT_i32, x.vec);
	m.ibits = m.dbl ? 64 : 32;
	return m;
}

static V
kf(const M *m, double x)
{
	V s = LLVMConstReal(m->dbl ? m->e->l->f64 : m->e->l->f32, x);

	return m->vec ? splat(m->e, s) : s;
}

static V
ki(const M *m, int64_t x)
{
	V s = LLVMConstInt(m->dbl ? m->e->l->i64 : m->e->l->i32, (unsigned long long)x, 1);

	return m->vec ? splat(m->e, s) : s;
}

static V add(const M *m, V a, V b) { return LLVMBuildFAdd(m->b, a, b, ""); }
static V sub(const M *m, V a, V b) { return LLVMBuildFSub(m->b, a, b, ""); }
static V mul(const M *m, V a, V b) { return LLVMBuildFMul(m->b, a, b, ""); }
static V divide(const M *m, V a, V b) { return LLVMBuildFDiv(m->b, a, b, ""); }
static V sel(const M *m, V c, V a, V b) { return LLVMBuildSelect(m->b, c, a, b, ""); }
static V cmp(const M *m, LLVMRealPredicate p, V a, V b) { return LLVMBuildFCmp(m->b, p, a, b, ""); }
static V bits(const M *m, V a) { return LLVMBuildBitCast(m->b, a, m->it, ""); }
static V real(const M *m, V a) { return LLVMBuildBitCast(m->b, a, m->ft, ""); }
static V fma3(const M *m, V a, V b, V c) { return llvm_fma(m->e->l, m->b, a, b, c); }
static V fabs1(const M *m, V a) { return intrinsic(m->e, m->b, "llvm.fabs", (T[]){m->ft}, 1, (V[]){a}, 1); }
static V floor1(const M *m, V a) { return llvm_round(m->e->l, m->b, "llvm.floor", a); }
static V
copysign2(const M *m, V a, V s)
{
	return intrinsic(m->e, m->b, "llvm.copysign", (T[]){m->ft}, 1, (V[]){a, s}, 2);
}

static V
poly(const M *m, V x, const double *c, int n)
{
	V r = kf(m, c[n - 1]);

	for (int i = n - 1; i-- > 0;)
		r = fma3(m, r, x, kf(m, c[i]));
	return r;
}
#define POLY(m, x, ...) \
	poly(m, x, (const double[]){__VA_ARGS__}, (int)(sizeof((const double[]){__VA_ARGS__}) / sizeof(double)))

/* 2^k by its bits; k within the normal exponents. */
static V
pow2i(const M *m, V k)
{
	V biased = LLVMBuildAdd(m->b, k, ki(m, m->dbl ? 1023 : 127), "");

	return real(m, LLVMBuildShl(m->b, biased, ki(m, m->dbl ? 52 : 23), ""));
}

/* p 2^k, rounded once, by AVX-512's instruction. */
static V
scale(const M *m, V p, V k)
{
	Llvm *l = m->e->l;
	unsigned w = (unsigned)m->e->W;
	const char *name = w == 16 ? "llvm.x86.avx512.mask.scalef.ps.512" : "llvm.x86.avx512.mask.scalef.ps.256";
	V all = LLVMConstAllOnes(LLVMIntTypeInContext(l->cx, w));
	V a[5] = {p, k, p, all, LLVMConstInt(l->i32, 4, 0)}; /* as MXCSR rounds */
	V f = LLVMGetIntrinsicDeclaration(l->mod, LLVMLookupIntrinsicID(name, strlen(name)), NULL, 0);

	return LLVMBuildCall2(m->b, LLVMGlobalGetValueType(f), f, a, w == 16 ? 5 : 4, "");
}

static V
m_exp(const M *m, V x)
{
	double magic = m->dbl ? 6755399441055744.0 : 12582912.0; /* 1.5 * 2^mantissa: adding it rounds to an integer */
	double top = m->dbl ? 710.0 : 89.0, low = m->dbl ? -746.0 : -104.5;
	V y = sel(m, cmp(m, LLVMRealOGT, x, kf(m, top)), kf(m, top), x), t, kr, k, r, p;

	y = sel(m, cmp(m, LLVMRealOLT, y, kf(m, low)), kf(m, low), y);
	t = fma3(m, y, kf(m, 1.4426950408889634), kf(m, magic));
	k = LLVMBuildSub(m->b, bits(m, t), bits(m, kf(m, magic)), "");
	kr = sub(m, t, kf(m, magic));
	if (m->dbl) {
		r = fma3(m, kr, kf(m, -6.93147180369123816490e-01), y);
		r = fma3(m, kr, kf(m, -1.90821492927058770002e-10), r);
		p = POLY(m, r, 4.9999999999999999966e-1, 1.6666666666666683914e-1, 4.1666666666666724517e-2,
		         8.3333333333166850013e-3, 1.3888888888858839211e-3, 1.984126989719418446e-4,
		         2.4801587373748638883e-5, 2.7557234099450151662e-6, 2.7557233351300816379e-7,
		         2.5112288426010625945e-8, 2.0926946356372996304e-9);
	} else {
		r = fma3(m, kr, kf(m, -0.693359375), y);
		r = fma3(m, kr, kf(m, 2.12194440e-4), r);
		p = POLY(m, r, 5.000000095e-1, 1.666651861e-1, 4.166620515e-2, 8.368917677e-3, 1.395053466e-3);
	}
	p = add(m, fma3(m, mul(m, r, r), p, r), kf(m, 1));
	if (m->vec && !m->dbl && m->e->l->arch->vector_bytes == 64 && (m->e->W == 16 || m->e->W == 8))
		return scale(m, p, kr);
	/* two factors, so that subnormal results and those next to infinity come out right */
	V half = LLVMBuildAShr(m->b, k, ki(m, 1), ""), rest = LLVMBuildSub(m->b, k, half, "");

	return mul(m, mul(m, p, pow2i(m, half)), pow2i(m, rest));
}

/* Of f32: exp(r) - 1 by a polynomial, 2^k (exp(r) - 1) + (2^k - 1) in halves, since 2^128 is no number. */
static V
m_expm1(const M *m, V x)
{
	V y = sel(m, cmp(m, LLVMRealOGT, x, kf(m, 89)), kf(m, 89), x);

	y = sel(m, cmp(m, LLVMRealOLT, y, kf(m, -30)), kf(m, -30), y); /* -1 from -17.4 down */
	V t = fma3(m, y, kf(m, 1.4426950408889634), kf(m, 12582912.0));
	V k = LLVMBuildSub(m->b, bits(m, t), bits(m, kf(m, 12582912.0)), ""), kr = sub(m, t, kf(m, 12582912.0));
	V r = fma3(m, kr, kf(m, 2.12194440e-4), fma3(m, kr, kf(m, -0.693359375), y));
	V p = POLY(m, r, 5.000000095e-1, 1.666651861e-1, 4.166620515e-2, 8.368917677e-3, 1.395053466e-3);

	p = fma3(m, mul(m, r, r), p, r);
	V half = pow2i(m, LLVMBuildSub(m->b, k, ki(m, 1), ""));
	V q = fma3(m, half, p, sub(m, half, kf(m, 0.5)));

	/* below 2^-25 it is x, with the sign of zero and the bits of subnormal numbers */
	return sel(m, cmp(m, LLVMRealOLT, fabs1(m, x), kf(m, 0x1p-25)), x, add(m, q, q));
}

/* f32: log(1 + f) + k log(2), f between sqrt(1/2) - 1 and sqrt(2) - 1. */
static V
log_reduced(const M *m, V f, V kr)
{
	V f2 = mul(m, f, f);
	V p = POLY(m, f, 3.333331045e-1, -2.499998658e-1, 2.000222623e-1, -1.666925177e-1, 1.421866552e-1,
	           -1.238433723e-1, 1.18729164e-1, -1.178984817e-1, 6.915539719e-2);

	p = mul(m, mul(m, p, f), f2);
	p = fma3(m, kr, kf(m, -2.12194440e-4), p);
	p = fma3(m, f2, kf(m, -0.5), p);
	return fma3(m, kr, kf(m, 0.693359375), add(m, f, p));
}

static V
m_log(const M *m, V x)
{
	V tiny = cmp(m, LLVMRealOLT, x, kf(m, m->dbl ? 2.2250738585072014e-308 : 1.17549435e-38));
	V y = sel(m, tiny, mul(m, x, kf(m, m->dbl ? 18014398509481984.0 : 8388608.0)), x); /* 2^54, 2^23 */
	V u = bits(m, y);
	V low = ki(m, m->dbl ? 0x3fe6a09e667f3bcd : 0x3f3504f3);  /* sqrt(1/2) */
	int shift = m->dbl ? 52 : 23;
	V d = LLVMBuildSub(m->b, u, low, ""), k = LLVMBuildAShr(m->b, d, ki(m, shift), "");
	V mant = LLVMBuildSub(m->b, u, LLVMBuildShl(m->b, k, ki(m, shift), ""), "");
	V f = sub(m, real(m, mant), kf(m, 1)), r, kr;

	kr = LLVMBuildSIToFP(m->b, k, m->ft, "");
	kr = sub(m, kr, sel(m, tiny, kf(m, m->dbl ? 54 : 23), kf(m, 0)));
	if (m->dbl) {
		/* log(1 + f) = f - (f^2/2 - s (f^2/2 + z P(z))), s = f / (2 + f), z = s^2 */
		V s = divide(m, f, add(m, f, kf(m, 2))), z = mul(m, s, s), h = mul(m, mul(m, f, f), kf(m, 0.5));
		V p = mul(m, z,
		          POLY(m, z, 6.6666666666667393803e-1, 3.9999999999377981279e-1, 2.8571428751302555588e-1,
		               2.222219758736820857e-1, 1.8183618987765494246e-1, 1.5312569877124726118e-1,
		               1.4811540318178000947e-1));
		V low_part = fma3(m, s, add(m, h, p), mul(m, kr, kf(m, 1.90821492927058770002e-10)));

		r = sub(m, h, low_part);
		r = sub(m, f, r);
		r = fma3(m, kr, kf(m, 6.93147180369123816490e-01), r);
	} else {
		r = log_reduced(m, f, kr);
	}
	r = sel(m, cmp(m, LLVMRealOEQ, x, kf(m, INFINITY)), x, r);
	r = sel(m, cmp(m, LLVMRealOEQ, x, kf(m, 0)), kf(m, -INFINITY), r);
	return sel(m, cmp(m, LLVMRealUGE, x, kf(m, 0)), sel(m, cmp(m, LLVMRealUNO, x, x), x, r), kf(m, NAN));
}

/* Of f32: with k of 1 + x = 2^k (1 + f), f is x 2^-k + (2^-k - 1), rounded once: nothing of x is lost, as it would be
 * in 1 + x. */
static V
m_log1p(const M *m, V x)
{
	V u = add(m, x, kf(m, 1)), r;

	if (m->dbl) {
		V c = divide(m, sub(m, x, sub(m, u, kf(m, 1))), u);

		r = add(m, m_log(m, u), c);
	} else {
		V d = LLVMBuildSub(m->b, bits(m, u), ki(m, 0x3f3504f3), ""), k = LLVMBuildAShr(m->b, d, ki(m, 23), "");
		V shift = LLVMBuildShl(m->b, k, ki(m, 23), "");
		V part = real(m, LLVMBuildSub(m->b, bits(m, x), shift, "")),
		  unit = real(m, LLVMBuildSub(m->b, ki(m, 0x3f800000), shift, ""));

		/* of k = 128 these bits are not 2^-k's */
		unit = sel(m, cmp(m, LLVMRealOGT, unit, kf(m, 0)), unit, kf(m, 0));
		r = log_reduced(m, add(m, part, sub(m, unit, kf(m, 1))), LLVMBuildSIToFP(m->b, k, m->ft, ""));
		r = sel(m, cmp(m, LLVMRealUGE, x, kf(m, -1)), sel(m, cmp(m, LLVMRealUNO, x, x), x, r), kf(m, NAN));
	}
	r = sel(m, cmp(m, LLVMRealOEQ, x, kf(m, INFINITY)), x, r);
	r = sel(m, cmp(m, LLVMRealOEQ, x, kf(m, -1)), kf(m, -INFINITY), r);
	return sel(m, cmp(m, LLVMRealOEQ, x, kf(m, 0)), x, r);
}

static V
m_tanh(const M *m, V x)
{
	V a = fabs1(m, x), z = mul(m, a, a);
	V small =
	        fma3(m, mul(m, a, z),
	             POLY(m, z, -3.333329927e-1, 1.333195825e-1, -5.378668377e-2, 2.080538408e-2, -5.905866855e-3), a);
	V e = m_exp(m, add(m, a, a));
	V big = sub(m, kf(m, 1), divide(m, kf(m, 2), add(m, e, kf(m, 1))));

	return copysign2(m, sel(m, cmp(m, LLVMRealOLT, a, kf(m, 0.6)), small, big), x);
}

static V
m_erf(const M *m, V x)
{
	V a = fabs1(m, x), z = mul(m, a, a), t;
	V small = fma3(m, a,
	               POLY(m, z, 0.1283791670, -3.7612634e-1, 1.128369873e-1, -2.68595392e-2, 5.201304973e-3,
	                    -8.145079727e-4, 8.377597118e-5),
	               a);

	t = sel(m, cmp(m, LLVMRealOGT, a, kf(m, 4)), kf(m, 4), a);
	V p = POLY(m, t, -1.60398661e-4, 1.129434081, 6.335435459e-1, 1.080118487e-1, -2.489512163e-2, 4.053403427e-3,
	           -3.966768075e-4, 1.43060057e-5, 5.222856791e-7);
	V big = sub(m, kf(m, 1), m_exp(m, sub(m, kf(m, -0.0), p)));

	return copysign2(m, sel(m, cmp(m, LLVMRealOLT, a, kf(m, 0.925)), small, big), x);
}

/* For a = |x|: exp(-a^2) P(s), s = a / (2 + a), a fit of exp(a^2) erfc(a) within 1e-8 of itself; for x < 0, 2 minus
 * that. The exponential is of -x * x, which gelu's gradient asks for too: it is computed once. Far from 0 the rounding
 * of the square is what counts: a^2 units in the last place, half of what a last bit of x itself does. */
static V
m_erfc(const M *m, V x)
{
	V a = fabs1(m, x);

	a = sel(m, cmp(m, LLVMRealOGT, a, kf(m, 12)), kf(m, 12), a); /* 0 from 10.06 up */
	V s = mul(m, a, divide(m, kf(m, 1), add(m, a, kf(m, 2))));
	V p = POLY(m, s, 1, -2.2567570209503174, 1.7431977987289429, -0.27417871356010437, -0.31500619649887085,
	           0.022486664354801178, 0.05032319203019142, 0.0720306783914566, -0.004097470082342625,
	           -0.06516733020544052, 0.0271766260266304);
	V far = mul(m, p, m_exp(m, mul(m, LLVMBuildFNeg(m->b, x, ""), x)));

	return sel(m, cmp(m, LLVMRealOLT, x, kf(m, 0)), sub(m, kf(m, 2), far), far);
}

/* ---------------------------------------------------------------- libm, lane by lane */
static V
libm_call(Emit *e, LLVMBuilderRef b, const char *name, bool dbl, V *args, int n)
{
	char full[16];
	T t = dbl ? e->l->f64 : e->l->f32, at[2] = {t, t};

	snprintf(full, sizeof full, "%s%s", name, dbl ? "" : "f");
	T ft = LLVMFunctionType(t, at, (unsigned)n, 0);
	V f = LLVMGetNamedFunction(e->l->mod, full);

	if (!f)
		f = LLVMAddFunction(e->l->mod, full, ft);
	return LLVMBuildCall2(b, ft, f, args, (unsigned)n, "");
}

static V
libm_lanes(const M *m, const char *name, V x, V y, bool dbl, T vt)
{
	Emit *e = m->e;

	if (!m->vec)
		return libm_call(e, m->b, name, dbl, (V[]){x, y}, y ? 2 : 1);
	V r = LLVMGetPoison(vt);

	for (int i = 0; i < e->W; i++) {
		V k = k64(e, i);
		V a[2] = {LLVMBuildExtractElement(m->b, x, k, ""), y ? LLVMBuildExtractElement(m->b, y, k, "") : NULL};

		r = LLVMBuildInsertElement(m->b, r, libm_call(e, m->b, name, dbl, a, y ? 2 : 1), k, "");
	}
	return r;
}

/* `fast` where `fine` holds, else the slow way's result for a and b, which is rare: one test for the vector. The other
 * lanes keep theirs: beside them may lie what masks leave behind, and no lane's bits may depend on its neighbours. */
static V
unless_rare(const M *m, V x, V fine, V fast, V (*slow)(const M *, V, V), V a, V b)
{
	Emit *e = m->e;
	int level = level_of(e, x);
	V all = m->vec ? intrinsic(e, m->b, "llvm.vector.reduce.and", (T[]){LLVMTypeOf(fine)}, 1, (V[]){fine}, 1)
	               : fine;
	LLVMBasicBlockRef slow_bb = block_new(e, level, "rare"), join = block_new(e, level, "join"),
	                  from = LLVMGetInsertBlock(m->b);

	LLVMBuildCondBr(m->b, all, join, slow_bb);
	LLVMPositionBuilderAtEnd(m->b, slow_bb);
	V other = sel(m, fine, fast, slow(m, a, b));

	LLVMBuildBr(m->b, join);
	LLVMPositionBuilderAtEnd(m->b, join);
	V phi = LLVMBuildPhi(m->b, m->ft, "");

	LLVMAddIncoming(phi, (V[]){fast, other}, (LLVMBasicBlockRef[]){from, slow_bb}, 2);
	return phi;
}

static V lanes_fmod(const M *m, V x, V y) { return libm_lanes(m, "fmod", x, y, m->dbl, m->ft); }
static V lanes_sin(const M *m, V x, V y) { return libm_lanes(m, "sin", x, y, false, m->ft); }
static V lanes_cos(const M *m, V x, V y) { return libm_lanes(m, "cos", x, y, false, m->ft); }

/* A remainder of the divisor's sign or the other, exact, less than y in size. x - q y with q the whole part of the
 * rounded quotient is: it is a multiple of y's last place and smaller than y, also where rounding makes q one too many,
 * and then has the other sign, which the caller puts right. Quotients too large for whole numbers, divisors 0, NaN and
 * infinities go through libm. */
static V
m_rest(const M *m, V x, V y)
{
	if (!llvm_has_fma(m->e->l))
		return lanes_fmod(m, x, y);
	V t = divide(m, x, y), q = llvm_round(m->e->l, m->b, "llvm.trunc", t);
	V fine = cmp(m, LLVMRealOLT, fabs1(m, t), kf(m, m->dbl ? 0x1p51 : 0x1p22));
	V r = fma3(m, LLVMBuildFNeg(m->b, q, ""), y, x);

	r = sel(m, cmp(m, LLVMRealOLT, fabs1(m, x), fabs1(m, y)), x, r); /* an infinite y too */
	return unless_rare(m, t, fine, r, lanes_fmod, x, y);
}

/* Remainder with the divisor's sign, exact. */
static V
m_floormod(const M *m, V x, V y)
{
	V r = m_rest(m, x, y);
	V differ = LLVMBuildICmp(m->b, LLVMIntSLT, LLVMBuildXor(m->b, bits(m, r), bits(m, y), ""), ki(m, 0), "");
	V s = sel(m, differ, add(m, r, y), r);

	return sel(m, cmp(m, LLVMRealOEQ, r, kf(m, 0)), copysign2(m, r, y), s);
}

/* ---------------------------------------------------------------- sin and cos of f32 */
static V
m_sincos(const M *m, V x, bool cosine)
{
	Emit *e = m->e;
	M d = *m;

	d.dbl = true;
	d.ft = ctype_v(e, DT_f64, m->vec);
	d.it = ctype_v(e, DT_i64, m->vec);
	/* pi/2 in three parts of 33, 33 and 53 bits: exact products for k below 2^20, good ones far beyond */
	V xd = LLVMBuildFPExt(m->b, x, d.ft, ""), magic = kf(&d, 6755399441055744.0);
	V t = fma3(&d, xd, kf(&d, 0.63661977236758134), magic), k = bits(&d, t), kr = sub(&d, t, magic);
	V r = fma3(&d, kr, kf(&d, -1.57079632673412561417e+00), xd);

	r = fma3(&d, kr, kf(&d, -6.07710050630396597660e-11), r);
	r = fma3(&d, kr, kf(&d, -2.02226624879595063154e-21), r);
	V rf = LLVMBuildFPTrunc(m->b, r, m->ft, ""), q = LLVMBuildTrunc(m->b, k, m->it, "");

	if (cosine)
		q = LLVMBuildAdd(m->b, q, ki(m, 1), "");
	V z = mul(m, rf, rf);
	V s = fma3(m, mul(m, rf, z), POLY(m, z, -1.666666664e-1, 8.333329362e-3, -1.983932714e-4, 2.718237311e-6), rf);
	V c = fma3(m, mul(m, z, z), POLY(m, z, 4.166664675e-2, -1.388736146e-3, 2.443773084e-5),
	           fma3(m, z, kf(m, -0.5), kf(m, 1)));
	V odd = LLVMBuildICmp(m->b, LLVMIntNE, LLVMBuildAnd(m->b, q, ki(m, 1), ""), ki(m, 0), "");
	V neg = LLVMBuildShl(m->b, LLVMBuildAnd(m->b, q, ki(m, 2), ""), ki(m, 30), "");
	V res = sel(m, odd, c, s);

	return real(m, LLVMBuildXor(m->b, bits(m, res), neg, ""));
}

/* Huge arguments, NaN and infinities go through libm. */
static V
sincos_any(const M *m, V x, bool cosine)
{
	V fine = cmp(m, LLVMRealOLT, fabs1(m, x), kf(m, 1048576));

	return unless_rare(m, x, fine, m_sincos(m, x, cosine), cosine ? lanes_cos : lanes_sin, x, NULL);
}

/* ---------------------------------------------------------------- pow of f32, through f64 */
static V
m_pow(const M *m, V x, V y)
{
	Emit *e = m->e;
	M d = *m;

	d.dbl = true;
	d.ft = ctype_v(e, DT_f64, m->vec);
	d.it = ctype_v(e, DT_i64, m->vec);
	V ax = LLVMBuildFPExt(m->b, fabs1(m, x), d.ft, ""), yd = LLVMBuildFPExt(m->b, y, d.ft, "");
	V r = LLVMBuildFPTrunc(m->b, m_exp(&d, mul(&d, yd, m_log(&d, ax))), m->ft, "");
	V whole = cmp(m, LLVMRealOEQ, floor1(m, y), y), half = mul(m, y, kf(m, 0.5));
	V odd = LLVMBuildAnd(m->b, whole, cmp(m, LLVMRealONE, floor1(m, half), half), "");
	V negative = LLVMBuildICmp(m->b, LLVMIntSLT, bits(m, x), ki(m, 0), "");
	V one = kf(m, 1);

	r = sel(m, LLVMBuildAnd(m->b, negative, odd, ""), LLVMBuildFNeg(m->b, r, ""), r);
	V bad = LLVMBuildAnd(m->b, cmp(m, LLVMRealOLT, x, kf(m, 0)), LLVMBuildNot(m->b, whole, ""), "");

	bad = LLVMBuildAnd(m->b, bad, cmp(m, LLVMRealONE, fabs1(m, x), kf(m, INFINITY)), "");
	r = sel(m, bad, kf(m, NAN), r);
	V unit = LLVMBuildAnd(m->b, cmp(m, LLVMRealOEQ, fabs1(m, x), one),
	                      cmp(m, LLVMRealOEQ, fabs1(m, y), kf(m, INFINITY)), "");

	r = sel(m,
	        LLVMBuildOr(m->b, unit,
	                    LLVMBuildOr(m->b, cmp(m, LLVMRealOEQ, x, one), cmp(m, LLVMRealOEQ, y, kf(m, 0)), ""), ""),
	        one, r);
	return r;
}

/* Powers by a constant that models write: squares, cubes, roots, reciprocals. False: the general way. */
static bool
pow_const(const M *m, V x, V y, V *r)
{
	V s = y;
	LLVMBool lossy;

	if (m->vec && LLVMIsConstant(y))
		s = LLVMGetAggregateElement(y, 0);
	if (!s || !LLVMIsAConstantFP(s))
		return false;
	double k = LLVMConstRealGetDouble(s, &lossy);

	if (k == 1)
		*r = x;
	else if (k == 2)
		*r = mul(m, x, x);
	else if (k == 3)
		*r = mul(m, mul(m, x, x), x);
	else if (k == -1)
		*r = divide(m, kf(m, 1), x);
	else if (k == 0)
		*r = kf(m, 1);
	else
		return false;
	return true;
}

Cell
math_call(Emit *e, MathFn f, Cell x, Cell y)
{
	static const char *const names[] = {"exp", "expm1", "log", "log1p", "tanh", "erf", "erfc", "sin", "cos",
	                                    "fmod", "pow"};
	V r;

	bool two = f == MF_POW || f == MF_FLOORMOD;

	if (two && (x.vec || y.vec)) {
		x = cell_of(cell_vec(e, x), true, (DType)x.dt);
		y = cell_of(cell_vec(e, y), true, (DType)y.dt);
	}
	M m = m_of(e, x);

	if (two) {
		m.b = at2(e, x.v, y.v);
		if (f == MF_FLOORMOD)
			return cell_of(m_floormod(&m, x.v, y.v), x.vec, (DType)x.dt);
		if (pow_const(&m, x.v, y.v, &r))
			return cell_of(r, x.vec, (DType)x.dt);
	}
	if (m.dbl && f != MF_EXP && f != MF_LOG) {
		r = libm_lanes(&m, names[f], x.v, f == MF_POW ? y.v : NULL, true, m.ft);
		return cell_of(r, x.vec, (DType)x.dt);
	}
	switch (f) {
	case MF_EXP: r = m_exp(&m, x.v); break;
	case MF_EXPM1: r = m_expm1(&m, x.v); break;
	case MF_LOG: r = m_log(&m, x.v); break;
	case MF_LOG1P: r = m_log1p(&m, x.v); break;
	case MF_TANH: r = m_tanh(&m, x.v); break;
	case MF_ERF: r = m_erf(&m, x.v); break;
	case MF_ERFC: r = m_erfc(&m, x.v); break;
	case MF_SIN: r = sincos_any(&m, x.v, false); break;
	case MF_COS: r = sincos_any(&m, x.v, true); break;
	default: r = m_pow(&m, x.v, y.v); break;
	}
	return cell_of(r, x.vec, (DType)x.dt);
}
