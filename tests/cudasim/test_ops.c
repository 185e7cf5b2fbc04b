/* test_ops.c: every arithmetic instruction, one at a time, on random and on awkward operands, against plain C.
 *
 * In: a table of opcodes, each with the types of its operands and what it should give.   Out: a check for each. The
 * kernel is written for the instruction: it loads operands by thread number, applies it, stores the result. */
#include <fenv.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "half.h"
#include "test.h"

#define N 4096

typedef uint64_t Want(uint64_t a, uint64_t b, uint64_t c);
/* types: result and operands, by letter; tail: constants after them */
typedef struct Case { const char *op, *types, *tail; Want *want; double ulps; } Case;

static float
f(uint64_t v)
{
	return bits_float((uint32_t)v);
}

static uint64_t
u(float v)
{
	return v != v ? 0x7fffffff : float_bits(v);
}

static double
d(uint64_t v)
{
	double x;

	memcpy(&x, &v, 8);
	return x;
}

static uint64_t
ud(double v)
{
	uint64_t x;

	memcpy(&x, &v, 8);
	return v != v ? 0x7fffffffffffffffu : x;
}

#define WANT(name, value) \
	static uint64_t want_##name(uint64_t a, uint64_t b, uint64_t c) \
	{ \
		(void)a; \
		(void)b; \
		(void)c; \
		return (uint64_t)(value); \
	}
#define A32 ((uint32_t)a)
#define B32 ((uint32_t)b)
#define C32 ((uint32_t)c)
#define SA ((int32_t)a)
#define SB ((int32_t)b)

WANT(add, a + b)
WANT(sub, a - b)
WANT(mul, a * b)
WANT(mad, a * b + c)
WANT(mulhi_u, (uint64_t)A32 * B32 >> 32)
WANT(mulhi_s, (uint32_t)((int64_t)SA * SB >> 32))
WANT(wide_u, (uint64_t)A32 * B32)
WANT(wide_s, (int64_t)SA * SB)
WANT(madwide_s, (uint64_t)((int64_t)SA * SB) + c)
WANT(adds, SA + (int64_t)SB > INT32_MAX ? INT32_MAX : SA + (int64_t)SB < INT32_MIN ? INT32_MIN : SA + (int64_t)SB)
WANT(divu, B32 ? A32 / B32 : 0)
WANT(divs, SB == 0 ? 0 : (int64_t)SA / SB)
WANT(rems, SB == 0 ? 0 : (int64_t)SA % SB)
WANT(divu64, b ? a / b : 0)
WANT(mins, SA < SB ? SA : SB)
WANT(maxu, A32 > B32 ? A32 : B32)
WANT(abs, SA < 0 ? 0u - A32 : A32)
WANT(popc, __builtin_popcountll(a))
WANT(clz, A32 ? __builtin_clz(A32) : 32)
WANT(shl, (B32 > 31 ? 0 : A32 << B32))
WANT(shr_u, (B32 > 31 ? 0 : A32 >> B32))
WANT(shr_s, SA >> (B32 > 31 ? 31 : B32))
WANT(shl64, (B32 > 63 ? 0 : a << B32))
WANT(and, a & b)
WANT(xor, a ^ b)
WANT(not, ~a)
WANT(lop3, (a & b) ^ (c | ~a)) /* the pattern of which is 0x6f */
WANT(selsign, (b & 0x7fffffff) | (a & 0x80000000))
WANT(fadd, u(f(a) + f(b)))
WANT(fsub, u(f(a) - f(b)))
WANT(fmul, u(f(a) * f(b)))
WANT(fdiv, u(f(a) / f(b)))
WANT(ffma, u(fmaf(f(a), f(b), f(c))))
WANT(fadd_ftz, u(flush_float(flush_float(f(a)) + flush_float(f(b)))))
WANT(fmul_sat, u(f(a) * f(b) > 0 ? f(a) * f(b) < 1 ? f(a) * f(b) : 1 : 0))
WANT(fmin, f(a) != f(a)                                     ? u(f(b))
           : f(b) != f(b)                                   ? u(f(a))
           : f(a) < f(b) || (f(a) == f(b) && signbit(f(a))) ? u(f(a))
                                                            : u(f(b)))
WANT(fmax_nan, f(a) != f(a) || f(b) != f(b)                     ? 0x7fffffffu
               : f(a) > f(b) || (f(a) == f(b) && signbit(f(b))) ? u(f(a))
                                                                : u(f(b)))
WANT(fneg, A32 ^ 0x80000000)
WANT(fsqrt, u(sqrtf(f(a))))
WANT(frcp, u(1 / f(a)))
WANT(frsqrt, u((float)(1 / sqrt((double)f(a)))))
WANT(fex2, u((float)exp2((double)f(a))))
WANT(flg2, u((float)log2((double)f(a))))
WANT(ftanh, u((float)tanh((double)f(a))))
WANT(dadd, ud(d(a) + d(b)))
WANT(dmul, ud(d(a) * d(b)))
WANT(ddiv, ud(d(a) / d(b)))
WANT(dfma, ud(fma(d(a), d(b), d(c))))
WANT(dsqrt, ud(sqrt(d(a))))

/* Directed rounding: the exact sum in long double, cut. */
static float
cut(long double exact, int up)
{
	float r = (float)exact;

	if (r != r || r - r != 0 || (long double)r == exact)
		return r;
	if (up > 0 && (long double)r < exact)
		return nextafterf(r, INFINITY);
	if (up < 0 && (long double)r > exact)
		return nextafterf(r, -INFINITY);
	if (up == 0 && (exact > 0 ? (long double)r > exact : (long double)r < exact))
		return nextafterf(r, 0);
	return r;
}

WANT(fmul_rz,
     u(f(a) * f(b) - f(a) * f(b) != 0 && f(a) - f(a) == 0 && f(b) - f(b) == 0 ? copysignf(0x1.fffffep127f, f(a) * f(b))
                                                                              : cut((long double)f(a) * f(b), 0)))
WANT(bfe, C32 % 256 == 0     ? 0
          : (B32 & 255) > 31 ? 0
                             : (A32 >> (B32 & 255)) & ((C32 & 255) > 31 ? ~0u : (1u << (C32 & 255)) - 1))
WANT(prmt, A32 >> 24 | (A32 >> 16 & 255) << 8 | (B32 & 255) << 16 | ((A32 >> 7 & 1) * 255u) << 24)
WANT(shf, (uint32_t)(((uint64_t)B32 << 32 | A32) >> (C32 & 31)))

static uint64_t
want_brev(uint64_t a, uint64_t b, uint64_t c)
{
	uint32_t r = 0;

	(void)b;
	(void)c;
	for (int i = 0; i < 32; i++)
		r |= (uint32_t)(a >> i & 1) << (31 - i);
	return r;
}

static uint64_t
want_bfi(uint64_t a, uint64_t b, uint64_t c)
{
	(void)c; /* at 5, 9 bits */
	return (b & ~(511u << 5)) | (a & 511) << 5;
}

static uint64_t
want_find(uint64_t a, uint64_t b, uint64_t c)
{
	int32_t s = (int32_t)a;
	uint32_t v = s < 0 ? ~(uint32_t)s : (uint32_t)s;

	(void)b;
	(void)c;
	return v ? 31 - (uint32_t)__builtin_clz(v) : ~0u;
}

/* Bits at..at+n-1 as a number. */
static int64_t
field(uint64_t v, int at, int n, bool is_signed)
{
	int64_t x = (int64_t)(v >> at) & ((1ll << n) - 1);

	return is_signed && x >> (n - 1) ? x - (1ll << n) : x;
}

/* The sum of c and of products of a's parts, n of them, with b's bytes from one on. */
static uint64_t
dot(uint64_t a, uint64_t b, uint64_t c, int n, int byte, bool as, bool bs)
{
	int64_t sum = field(c, 0, 32, false);

	for (int i = 0; i < n; i++)
		sum += field(a, 32 / n * i, 32 / n, as) * field(b, 8 * (byte + i), 8, bs);
	return (uint32_t)sum;
}

#define DOT(name, n, byte) \
	WANT(name##_uu, dot(a, b, c, n, byte, false, false)) WANT(name##_us, dot(a, b, c, n, byte, false, true)) \
	WANT(name##_su, dot(a, b, c, n, byte, true, false)) WANT(name##_ss, dot(a, b, c, n, byte, true, true))
#define DOTS(op, name) \
	{ op ".u32.u32", "iiii", "", want_##name##_uu, 0 }, { op ".u32.s32", "iiii", "", want_##name##_us, 0 }, \
	{ op ".s32.u32", "iiii", "", want_##name##_su, 0 }, { op ".s32.s32", "iiii", "", want_##name##_ss, 0 }
DOT(dp4a, 4, 0)
DOT(dp2a_lo, 2, 0)
DOT(dp2a_hi, 2, 2)

/* 16-bit floats: exact in double, then rounded once. */
static uint16_t
narrow16(double v, int bf)
{
	float r = (float)v;

	/* to odd, so that the second rounding is the only one */
	if ((double)r != v && !(float_bits(r) & 1) && r - r == 0)
		r = bits_float(float_bits(r) + (fabs(v) > fabs((double)r) ? 1 : (uint32_t)-1));
	return bf ? float_bf16(r) : float_f16(r);
}

#define HALF(name, value) \
	WANT(name##_h, (uint32_t)narrow16(HX(f16, value), 0)) WANT(name##_b, (uint32_t)narrow16(HX(bf16, value), 1))
#define HX(t, value) value(t##_float((uint16_t)a), t##_float((uint16_t)b), t##_float((uint16_t)c))
static double hadd(double x, double y, double z) { (void)z; return x + y; }
static double hmul(double x, double y, double z) { (void)z; return x * y; }

/* Cut, with the last bit set if something was cut off: what remains to be rounded is rounded rightly. */
static double
hfma(double x, double y, double z)
{
	volatile double r;
	uint64_t bits;

	fesetround(FE_TOWARDZERO);
	feclearexcept(FE_INEXACT);
	r = fma(x, y, z);
	bits = ud(r) | (r == r && fetestexcept(FE_INEXACT) != 0);
	fesetround(FE_TONEAREST);
	return r == r ? d(bits) : r;
}

HALF(add, hadd)
HALF(mul, hmul)
HALF(fma, hfma)
WANT(fma_h2, want_fma_h(a & 0xffff, b & 0xffff, c & 0xffff) |
                     want_fma_h(a >> 16 & 0xffff, b >> 16 & 0xffff, c >> 16 & 0xffff) << 16)
WANT(add_b2, want_add_b(a & 0xffff, b & 0xffff, 0) | want_add_b(a >> 16 & 0xffff, b >> 16 & 0xffff, 0) << 16)

/* letters: w u16, i u32, l u64, f f32, d f64, h f16, b bf16, H f16x2, B bf16x2, s shift count, t bit position */
static const Case cases[] = {
        {"add.u32", "iii", "", want_add, 0},
        {"sub.s32", "iii", "", want_sub, 0},
        {"add.s64", "lll", "", want_add, 0},
        {"add.s16", "www", "", want_add, 0},
        {"mul.lo.s32", "iii", "", want_mul, 0},
        {"mul.lo.u64", "lll", "", want_mul, 0},
        {"mul.hi.u32", "iii", "", want_mulhi_u, 0},
        {"mul.hi.s32", "iii", "", want_mulhi_s, 0},
        {"mul.wide.u32", "lii", "", want_wide_u, 0},
        {"mul.wide.s32", "lii", "", want_wide_s, 0},
        {"mad.lo.s32", "iiii", "", want_mad, 0},
        {"mad.wide.s32", "liil", "", want_madwide_s, 0},
        {"add.sat.s32", "iii", "", want_adds, 0},
        {"div.u32", "iii", "", want_divu, 0},
        {"div.s32", "iii", "", want_divs, 0},
        {"rem.s32", "iii", "", want_rems, 0},
        {"div.u64", "lll", "", want_divu64, 0},
        {"min.s32", "iii", "", want_mins, 0},
        {"max.u32", "iii", "", want_maxu, 0},
        {"abs.s32", "ii", "", want_abs, 0},
        {"popc.b64", "il", "", want_popc, 0},
        {"clz.b32", "ii", "", want_clz, 0},
        {"shl.b32", "iis", "", want_shl, 0},
        {"shr.u32", "iis", "", want_shr_u, 0},
        {"shr.s32", "iis", "", want_shr_s, 0},
        {"shl.b64", "lls", "", want_shl64, 0},
        {"and.b32", "iii", "", want_and, 0},
        {"xor.b64", "lll", "", want_xor, 0},
        {"not.b32", "ii", "", want_not, 0},
        {"lop3.b32", "iiii", ", 0x6f", want_lop3, 0},
        {"brev.b32", "ii", "", want_brev, 0},
        {"bfi.b32", "iii", ", 5, 9", want_bfi, 0},
        {"bfind.s32", "ii", "", want_find, 0},
        {"bfe.u32", "iitt", "", want_bfe, 0},
        {"prmt.b32", "iii", ", 0x8423", want_prmt, 0},
        {"shf.r.wrap.b32", "iiii", "", want_shf, 0},
        {"copysign.f32", "iii", "", want_selsign, 0},
        DOTS("dp4a", dp4a),
        DOTS("dp2a.lo", dp2a_lo),
        DOTS("dp2a.hi", dp2a_hi),
        {"add.f32", "fff", "", want_fadd, 0},
        {"sub.rn.f32", "fff", "", want_fsub, 0},
        {"mul.f32", "fff", "", want_fmul, 0},
        {"div.rn.f32", "fff", "", want_fdiv, 0},
        {"fma.rn.f32", "ffff", "", want_ffma, 0},
        {"add.ftz.f32", "fff", "", want_fadd_ftz, 0},
        {"mul.sat.f32", "fff", "", want_fmul_sat, 0},
        {"mul.rz.f32", "fff", "", want_fmul_rz, 0},
        {"min.f32", "fff", "", want_fmin, 0},
        {"max.NaN.f32", "fff", "", want_fmax_nan, 0},
        {"neg.f32", "ff", "", want_fneg, 0},
        {"sqrt.rn.f32", "ff", "", want_fsqrt, 0},
        {"rcp.rn.f32", "ff", "", want_frcp, 0},
        {"rsqrt.approx.f32", "ff", "", want_frsqrt, 2},
        {"ex2.approx.f32", "ff", "", want_fex2, 2},
        {"lg2.approx.f32", "ff", "", want_flg2, 2},
        {"tanh.approx.f32", "ff", "", want_ftanh, 4},
        {"add.f64", "ddd", "", want_dadd, 0},
        {"mul.f64", "ddd", "", want_dmul, 0},
        {"div.rn.f64", "ddd", "", want_ddiv, 0},
        {"fma.rn.f64", "dddd", "", want_dfma, 0},
        {"sqrt.rn.f64", "dd", "", want_dsqrt, 0},
        {"add.rn.f16", "hhh", "", want_add_h, 0},
        {"mul.rn.f16", "hhh", "", want_mul_h, 0},
        {"fma.rn.f16", "hhhh", "", want_fma_h, 0},
        {"add.rn.bf16", "bbb", "", want_add_b, 0},
        {"mul.rn.bf16", "bbb", "", want_mul_b, 0},
        {"fma.rn.bf16", "bbbb", "", want_fma_b, 0},
        {"fma.rn.f16x2", "HHHH", "", want_fma_h2, 0},
        {"add.rn.bf16x2", "BBB", "", want_add_b2, 0},
};

static int
letter_bytes(char c)
{
	return strchr("whb", c) ? 2 : strchr("ld", c) ? 8 : 4;
}

static bool
divides(const Case *k)
{
	return (!strncmp(k->op, "div", 3) || !strncmp(k->op, "rem", 3)) && strpbrk(k->types, "il");
}

/* What a division of integers by zero gives, PTX leaves to the machine. */
static bool
undefined(const Case *k, uint64_t b)
{
	return divides(k) && !(letter_bytes(k->types[2]) == 8 ? b : (uint32_t)b);
}

/* Every second operand is one of the awkward ones of its type. */
static uint64_t
operand(char c)
{
	static const uint32_t floats[] = {0,          0x80000000, 1,          0x80000001, 0x007fffff,
	                                  0x00800000, 0x7f7fffff, 0x7f800000, 0xff800000, 0x7fc00000,
	                                  0x3f800000, 0xbf800000, 0x33800000, 0x4b800000};
	static const uint16_t halves[] = {0,      0x8000, 1,      0x83ff, 0x0400, 0x7bff, 0x7c00,
	                                  0xfc00, 0x7e00, 0x3c00, 0x3f80, 0x7f80, 0x7f7f, 0x0080};
	static const uint64_t ints[] = {0,  1,  ~0ull, 0x7fffffff, 0x80000000, 0x7fffffffffffffffu, 0x8000000000000000u,
	                                31, 32, 0xffff};
	bool odd = random32() & 1;
	uint64_t v = random32() | (uint64_t)random32() << 32;

	switch (c) {
	case 's': return v % 70;
	case 't': return v % 33;
	case 'f': return odd ? floats[v % 14] : v & 2 ? u((float)(int32_t)random32() * 1e-6f) : (uint32_t)v;
	case 'd': return odd ? ud((double)f(floats[v % 14])) : v;
	case 'h': case 'b': return odd ? halves[v % 14] : v & 0xffff;
	case 'H': case 'B': return operand('h') | operand('h') << 16;
	case 'w': return v & 0xffff;
	default: return odd ? ints[v % 10] : v;
	}
}

#define PUT(...) (t += snprintf(t, room - (size_t)(t - text), __VA_ARGS__))

static char *
kernel_text(const Case *k)
{
	static const char *const names[] = { "d", "a", "b", "c" };
	char *text = calloc(1, 4096);
	size_t n = 0, room = 4096;
	int count = (int)strlen(k->types);

	if (!text)
		abort();
	n += (size_t)snprintf(text + n, room - n,
	                      ".version 8.0\n.target sm_90\n.address_size 64\n.visible .entry k(.param .u64 d, .param "
	                      ".u64 a, .param .u64 b, .param .u64 c)\n{\n"
	                      "\t.reg .b32 %%t<4>;\n\t.reg .b64 %%p<8>;\n\tmov.u32 %%t0, %%ctaid.x;\n\tmov.u32 %%t1, "
	                      "%%ntid.x;\n\tmov.u32 %%t2, %%tid.x;\n\tmad.lo.u32 %%t3, %%t0, %%t1, %%t2;\n");
	for (int i = 0; i < count; i++) {
		int bytes = letter_bytes(k->types[i]);

		n += (size_t)snprintf(text + n, room - n,
		                      "\t.reg .b%d %%%s;\n\tld.param.u64 %%p%d, [%s];\n\tmul.wide.u32 %%p4, %%t3, "
		                      "8;\n\tadd.u64 %%p%d, %%p%d, %%p4;\n",
		                      bytes * 8, names[i], i, names[i], i, i);
		if (i)
			n += (size_t)snprintf(text + n, room - n, "\tld.global.b%d %%%s, [%%p%d];\n", bytes * 8,
			                      names[i], i);
	}
	n += (size_t)snprintf(text + n, room - n, "\t%s %%d", k->op);
	for (int i = 1; i < count; i++)
		n += (size_t)snprintf(text + n, room - n, ", %%%s", names[i]);
	snprintf(text + n, room - n, "%s;\n\tst.global.b%d [%%p0], %%d;\n\tret;\n}\n", k->tail,
	         letter_bytes(*k->types) * 8);
	return text;
}

/* What PTX promises of a device's approximations, where that is less than the simulated device keeps: ulps, and a
 * distance. */
static const struct {
	const char *op;
	double ulps, off;
} promised[] = {{"rsqrt.approx.f32", 2.2, 0}, {"lg2.approx.f32", 2, 0x1p-22}, {"tanh.approx.f32", 4096, 0}};

static bool
close_enough(const Case *k, uint64_t got, uint64_t want)
{
	int bytes = letter_bytes(*k->types);
	uint64_t mask = bytes == 8 ? ~0ull : (1ull << bytes * 8) - 1;
	char t = *k->types;

	got &= mask;
	want &= mask;
	if (got == want)
		return true;
	if (t == 'f' && f(got) != f(got) && f(want) != f(want))
		return true;
	if (t == 'd' && d(got) != d(got) && d(want) != d(want))
		return true;
	double ulps = k->ulps, off = 1e-44;

	for (size_t i = 0; i < sizeof promised / sizeof *promised && getenv("SIM_HARDWARE"); i++)
		if (!strcmp(promised[i].op, k->op)) {
			ulps = promised[i].ulps;
			off += promised[i].off;
		}
	return t == 'f' && ulps > 0 &&
	       fabs((double)f(got) - (double)f(want)) <= ulps * ldexp(fabs((double)f(want)), -23) + off;
}

/* Random programs: integer instructions of the table on random registers, some under predicates, with branches forward
 * and loops, thread by thread against C. */

enum { INTS = 8, LONGS = 4, SHORTS = 4, PREDS = 4, STEPS = 80, THREADS = 192 };
typedef enum StepKind { STEP_OP, STEP_COMPARE, STEP_SKIP, STEP_LOOP, STEP_LABEL } StepKind;
/* guard: predicate, or -1 */
typedef struct Step { StepKind kind; const Case *c; int reg[4], guard, target; bool negated; } Step;
typedef struct State { uint32_t i[INTS], count[STEPS]; uint64_t l[LONGS]; uint16_t w[SHORTS]; bool p[PREDS]; } State;

static int
random_below(int n)
{
	return (int)(random32() % (uint32_t)n);
}

static void
random_program(Step *step)
{
	for (int k = 0; k < STEPS; k++) {
		Step *s = &step[k];
		int what = random_below(10);

		*s = (Step){.kind = STEP_OP,
		            .guard = random_below(3) ? -1 : random_below(PREDS),
		            .negated = random_below(2)};
		do
			s->c = &cases[random_below((int)(sizeof cases / sizeof *cases))];
		while (strpbrk(s->c->types, "fdhbHB"));
		for (int j = 0; s->c->types[j]; j++)
			s->reg[j] = random_below(s->c->types[j] == 'l' ? LONGS : s->c->types[j] == 'w' ? SHORTS : INTS);
		if (what == 0 || what == 1) {
			s->kind = STEP_COMPARE;
			s->reg[0] = random_below(PREDS);
		} else if (what == 2 && k + 2 < STEPS) { /* over what follows */
			s->kind = STEP_SKIP;
			s->guard = random_below(PREDS);
			s->target = k + 1 + random_below(STEPS - k - 1 < 12 ? STEPS - k - 1 : 12);
		} else if (what == 3 &&
		           k > 3) { /* again what came before, a number of times that depends on the thread */
			s->kind = STEP_LOOP;
			s->target = k - 1 - random_below(k < 6 ? k - 1 : 5);
		}
	}
}

/* The instruction of a step. A divisor is a copy made odd, so that it is not zero. */
static int
random_op(const Step *s, const char *guard, char *text, size_t room)
{
	const char *types = s->c->types;
	char *t = text;

	if (divides(s->c))
		PUT("or.b%d %%%s3, %%%c%d, 1;\n\t", letter_bytes(types[2]) * 8, types[2] == 'l' ? "a" : "x", types[2],
		    s->reg[2]);
	PUT("%s%s ", guard, s->c->op);
	for (int j = 0; types[j]; j++)
		if (j == 2 && divides(s->c))
			PUT(", %%%s3", types[2] == 'l' ? "a" : "x");
		else
			PUT("%s%%%c%d", j ? ", " : "", strchr("ilw", types[j]) ? types[j] : 'i', s->reg[j]);
	PUT("%s;\n", s->c->tail);
	return (int)(t - text);
}

static int
random_text(const Step *step, char *text, size_t room)
{
	char *t = text;

	PUT(".version 8.0\n.target sm_75\n.address_size 64\n.visible .entry k(.param .u64 to)\n{\n\t.reg .b32 %%i<%d>, "
	    "%%n<%d>, %%x<4>;\n\t.reg .b64 %%l<%d>, %%a<4>;\n\t.reg .b16 %%w<%d>;\n\t.reg .pred %%p<%d>, %%q;\n",
	    INTS, STEPS, LONGS, SHORTS, PREDS);
	PUT("\tmov.u32 %%x0, %%ctaid.x;\n\tmov.u32 %%x2, %%ntid.x;\n\tmov.u32 %%x3, %%tid.x;\n\tmad.lo.u32 %%x1, %%x0, "
	    "%%x2, %%x3;\n");
	for (int k = 0; k < INTS; k++)
		PUT("\tmad.lo.u32 %%i%d, %%x1, %u, %u;\n", k, 2654435761u * (uint32_t)(k + 1), (uint32_t)k);
	for (int k = 0; k < LONGS; k++)
		PUT("\tmul.wide.u32 %%l%d, %%i%d, %%i%d;\n", k, k, k + 4);
	for (int k = 0; k < SHORTS; k++)
		PUT("\tcvt.u16.u32 %%w%d, %%i%d;\n", k, k);
	for (int k = 0; k < PREDS; k++)
		PUT("\tand.b32 %%x2, %%x1, %d;\n\tsetp.ne.u32 %%p%d, %%x2, 0;\n", 1 << k, k);
	for (int k = 0; k < STEPS; k++)
		PUT("\tmov.u32 %%n%d, 0;\n", k);
	for (int k = 0; k < STEPS; k++) {
		const Step *s = &step[k];
		char guard[16] = "";

		PUT("L%d:\n\t", k);
		if (s->guard >= 0)
			snprintf(guard, sizeof guard, "@%s%%p%d ", s->negated ? "!" : "", s->guard);
		if (s->kind == STEP_COMPARE)
			PUT("%ssetp.lt.s32 %%p%d, %%i%d, %%i%d;\n", guard, s->reg[0], s->reg[1] % INTS,
			    s->reg[2] % INTS);
		else if (s->kind == STEP_SKIP)
			PUT("%sbra L%d;\n", guard, s->target);
		else if (s->kind == STEP_LOOP)
			PUT("add.u32 %%n%d, %%n%d, 1;\n\tand.b32 %%x3, %%x1, 3;\n\tsetp.lt.u32 %%q, %%n%d, "
			    "%%x3;\n\t@%%q bra L%d;\n",
			    k, k, k, s->target);
		else
			t += random_op(s, guard, t, room - (size_t)(t - text));
	}
	PUT("\tld.param.u64 %%a0, [to];\n\tmul.wide.u32 %%a1, %%x1, %d;\n\tadd.u64 %%a2, %%a0, %%a1;\n", INTS * 4);
	for (int k = 0; k < INTS; k++)
		PUT("\tst.global.u32 [%%a2+%d], %%i%d;\n", k * 4, k);
	PUT("\tret;\n}\n");
	return (int)(t - text);
}

static uint64_t
state_get(const State *v, char type, int reg)
{
	return type == 'l' ? v->l[reg] : type == 'w' ? v->w[reg] : v->i[reg];
}

static void
random_run(const Step *step, uint32_t thread, State *v)
{
	*v = (State){ .i = { 0 } };
	for (uint32_t k = 0; k < INTS; k++)
		v->i[k] = thread * (2654435761u * (k + 1)) + k;
	for (int k = 0; k < LONGS; k++)
		v->l[k] = (uint64_t)v->i[k] * v->i[k + 4];
	for (int k = 0; k < SHORTS; k++)
		v->w[k] = (uint16_t)v->i[k];
	for (int k = 0; k < PREDS; k++)
		v->p[k] = thread >> k & 1;
	for (int k = 0; k < STEPS; k++) {
		const Step *s = &step[k];
		bool on = s->guard < 0 || v->p[s->guard] != s->negated;
		uint64_t x[3] = { 0 }, r;

		if (s->kind == STEP_LOOP) { /* only its first instruction is under the guard */
			v->count[k] += on;
			if (v->count[k] < (thread & 3))
				k = s->target - 1;
			continue;
		}
		if (!on)
			continue;
		if (s->kind == STEP_COMPARE) {
			v->p[s->reg[0]] = (int32_t)v->i[s->reg[1] % INTS] < (int32_t)v->i[s->reg[2] % INTS];
			continue;
		}
		if (s->kind == STEP_SKIP) {
			k = s->target - 1;
			continue;
		}
		for (int j = 1; s->c->types[j]; j++)
			x[j - 1] = state_get(v, s->c->types[j], s->reg[j]) | (j == 2 && divides(s->c));
		r = s->c->want(x[0], x[1], x[2]);
		if (*s->c->types == 'l')
			v->l[s->reg[0]] = r;
		else if (*s->c->types == 'w')
			v->w[s->reg[0]] = (uint16_t)r;
		else
			v->i[s->reg[0]] = (uint32_t)r;
	}
}

static void
ops_random(void)
{
	enum { ROOM = 1 << 16 };
	static uint32_t got[THREADS * INTS];
	static Step step[STEPS];
	char *text = malloc(ROOM);

	for (int k = 0; k < 40 && text; k++) {
		CUdeviceptr at = test_room(sizeof got);
		void *params[] = { &at };
		CUmodule m;
		CUresult r;
		int wrong = 0;

		random_program(step);
		for (int i = 0; i < STEPS; i++) /* a loop under a guard that it may change would not end */
			step[i].guard = step[i].kind == STEP_LOOP ? -1 : step[i].guard;
		random_text(step, text, ROOM);
		m = test_module(text);
		r = test_launch(test_function(m, "k"), THREADS / 96, 96, 0, params);
		test_download(got, at, sizeof got);
		for (uint32_t t = 0; t < THREADS; t++) {
			State v;

			random_run(step, t, &v);
			wrong += memcmp(v.i, got + t * INTS, sizeof v.i) != 0;
		}
		check(!r && !wrong, "random program %d: status %d, %d threads wrong", k, (int)r, wrong);
		cu.cuMemFree_v2(at);
		if (m)
			cu.cuModuleUnload(m);
	}
	free(text);
}

void
test_ops(void)
{
	static uint64_t v[4][N];

	for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
		const Case *k = &cases[i];
		char *text = kernel_text(k);
		CUmodule m = test_module(text);
		CUdeviceptr p[4];
		void *params[] = { &p[0], &p[1], &p[2], &p[3] };
		int count = (int)strlen(k->types), wrong = -1;
		CUresult r;

		memset(v, 0, sizeof v);
		for (int j = 1; j < count; j++)
			for (int l = 0; l < N; l++)
				v[j][l] = operand(k->types[j]);
		for (int j = 0; j < 4; j++)
			p[j] = test_upload(v[j], sizeof v[j]);
		r = test_launch(test_function(m, "k"), N / 128, 128, 0, params);
		test_download(v[0], p[0], sizeof v[0]);
		for (int l = N; l-- > 0;)
			if (!close_enough(k, v[0][l], k->want(v[1][l], v[2][l], v[3][l])) && !undefined(k, v[2][l]))
				wrong = l;
		check(!r && wrong < 0, "%s: status %d, of (%llx, %llx, %llx) gives %llx, not %llx", k->op, (int)r,
		      (unsigned long long)v[1][wrong < 0 ? 0 : wrong], (unsigned long long)v[2][wrong < 0 ? 0 : wrong],
		      (unsigned long long)v[3][wrong < 0 ? 0 : wrong], (unsigned long long)v[0][wrong < 0 ? 0 : wrong],
		      (unsigned long long)k->want(v[1][wrong < 0 ? 0 : wrong], v[2][wrong < 0 ? 0 : wrong],
		                                  v[3][wrong < 0 ? 0 : wrong]));
		for (int j = 0; j < 4; j++)
			cu.cuMemFree_v2(p[j]);
		if (m)
			cu.cuModuleUnload(m);
		free(text);
	}
	ops_random();
}
