/* test_convert.c: cvt between all pairs of types, every rounding that the pair has, against a conversion written
 * another way.
 *
 * The measure rounds by looking for the two neighbours in the target type and choosing between them; the interpreter
 * scales and rounds. */
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "half.h"
#include "test.h"

#define N 512

typedef struct Kind { const char *name; int bytes; char family; } Kind; /* u s f */
static const Kind kinds[] = {{"u8", 1, 'u'},  {"s8", 1, 's'},   {"u16", 2, 'u'}, {"s16", 2, 's'},
                             {"u32", 4, 'u'}, {"s32", 4, 's'},  {"u64", 8, 'u'}, {"s64", 8, 's'},
                             {"f16", 2, 'f'}, {"bf16", 2, 'b'}, {"f32", 4, 'f'}, {"f64", 8, 'f'}};

static bool
is_float(const Kind *k)
{
	return k->family == 'f' || k->family == 'b';
}

static long double
value(const Kind *k, uint64_t v)
{
	double d;

	memcpy(&d, &v, 8);
	if (!is_float(k)) {
		uint64_t mask = k->bytes == 8 ? ~0ull : (1ull << k->bytes * 8) - 1;

		v &= mask;
		if (k->family == 's' && v >> (k->bytes * 8 - 1))
			return -(long double)((~v & mask) + 1);
		return (long double)v;
	}
	return k->family == 'b' ? bf16_float((uint16_t)v)
	       : k->bytes == 2  ? f16_float((uint16_t)v)
	       : k->bytes == 4  ? bits_float((uint32_t)v)
	                        : (long double)d;
}

/* Positive floats of a type in order are its bits in order. */
static uint64_t
nearest(const Kind *k, long double x, const char *mode)
{
	uint64_t sign = 1ull << (k->bytes * 8 - 1), low = 0,
	         high = (k->family == 'b' ? 0x7f80
	                 : k->bytes == 2  ? 0x7c00
	                 : k->bytes == 4  ? 0x7f800000u
	                                  : 0x7ff0000000000000u),
	         s = signbit(x) ? sign : 0;
	long double a = fabsl(x);
	bool up;

	if (isinf(x))
		return s | high;
	while (high - low > 1) { /* low <= a < high */
		uint64_t mid = low + (high - low) / 2;

		if (value(k, mid) <= a)
			low = mid;
		else
			high = mid;
	}
	long double below = value(k, low), above = value(k, high), step = below - value(k, low - (low > 0));

	if (below == a)
		return s | low;
	if (isinf(above)) /* as if the next one were there */
		above = below + step;
	up = !strcmp(mode, "rn")   ? a - below > above - a || (a - below == above - a && low & 1)
	     : !strcmp(mode, "rm") ? s != 0
	     : !strcmp(mode, "rp") ? s == 0
	                           : false;
	return s | (up ? high : low);
}

static uint64_t
want(const Kind *to, const Kind *from, const char *mode, bool sat, uint64_t v)
{
	long double x = value(from, v), low, high;
	uint64_t mask = to->bytes == 8 ? ~0ull : (1ull << to->bytes * 8) - 1;

	mode = *mode ? mode : "rn";
	if (is_float(to)) {
		if (sat)
			x = x > 0 ? x < 1 ? x : 1 : 0;
		if (x != x)
			return to->bytes == 2 ? 0x7fff : to->bytes == 4 ? 0x7fffffff : 0x7fffffffffffffffu;
		if (mode[2]) /* to an integer, in the same type */
			x = copysignl(mode[1] == 'n'   ? rintl(x)
			              : mode[1] == 'z' ? truncl(x)
			              : mode[1] == 'm' ? floorl(x)
			                               : ceill(x),
			              x);
		return nearest(to, x, mode[2] ? "rn" : mode);
	}
	if (!is_float(from) && !sat)
		return (x < 0 ? (uint64_t)(int64_t)x : (uint64_t)x) & mask;
	if (x != x)
		return from->bytes == 8 || to->bytes == 8 ? 1ull << (to->bytes * 8 - 1) : 0;
	if (is_float(from))
		x = mode[1] == 'n' ? rintl(x) : mode[1] == 'z' ? truncl(x) : mode[1] == 'm' ? floorl(x) : ceill(x);
	low = to->family == 's' ? -ldexpl(1, to->bytes * 8 - 1) : 0;
	high = ldexpl(1, to->bytes * 8 - (to->family == 's')) - 1;
	x = x < low ? low : x > high ? high : x;
	return (x < 0 ? (uint64_t)(int64_t)x : (uint64_t)x) & mask;
}

static uint64_t
operand(const Kind *k)
{
	static const double awkward[] = {0.0,   -0.0,    0.5,          1.5,           2.5,          -0.5,   -1.5,
	                                 1e-8,  -6e-8,   3e-8,         65504,         65520,        -70000, 127.5,
	                                 255.5, 32767.5, 2147483648.0, -2147483649.0, 4294967295.5, 1e19,   1e-40,
	                                 3e38,  -4e38,   1.0,          5e-324};
	uint64_t v = random32() | (uint64_t)random32() << 32, bits;
	double d = random32() % 3 ? awkward[v % 25] : ldexp((double)(int64_t)v, -(int)(random32() % 80) - 20);

	if (!is_float(k))
		return random32() % 3 ? v : v & 1 ? ~(v >> 58) : v >> 40;
	if (random32() % 16 == 0)
		d = v & 1 ? INFINITY : NAN;
	memcpy(&bits, &d, 8);
	return k->family == 'b' ? float_bf16((float)d)
	       : k->bytes == 2  ? float_f16((float)d)
	       : k->bytes == 4  ? float_bits((float)d)
	                        : bits;
}

static void
convert_pair(const Kind *to, const Kind *from, const char *mode, bool sat)
{
	char text[1500];
	static uint64_t in[N], out[N];
	int tb = to->bytes == 1 ? 2 : to->bytes, fb = from->bytes == 1 ? 2 : from->bytes, wrong = -1;
	CUdeviceptr pi, po;
	void *params[] = { &po, &pi };
	CUmodule m;
	CUresult r;

	snprintf(text, sizeof text,
	         ".version 8.0\n.target sm_90\n.address_size 64\n.visible .entry k(.param .u64 d, .param .u64 "
	         "a)\n{\n\t.reg .b64 %%p<4>;\n\t.reg .b32 %%t<4>;\n\t.reg .b%d %%d;\n\t.reg .b%d %%a;\n"
	         "\tld.param.u64 %%p0, [d];\n\tld.param.u64 %%p1, [a];\n\tmov.u32 %%t0, %%tid.x;\n\tmov.u32 %%t1, "
	         "%%ctaid.x;\n\tmad.lo.u32 %%t2, %%t1, 128, %%t0;\n\tmul.wide.u32 %%p2, %%t2, 8;\n\tadd.u64 %%p0, "
	         "%%p0, %%p2;\n\tadd.u64 %%p1, %%p1, %%p2;\n"
	         "\tld.global.b%d %%a, [%%p1];\n\tcvt%s%s%s.%s.%s %%d, %%a;\n\tst.global.b%d [%%p0], %%d;\n\tret;\n}\n",
	         tb * 8, fb * 8, fb * 8, *mode ? "." : "", mode, sat ? ".sat" : "", to->name, from->name, tb * 8);
	m = test_module(text);
	for (int i = 0; i < N; i++)
		in[i] = operand(from);
	memset(out, 0, sizeof out);
	pi = test_upload(in, sizeof in);
	po = test_upload(out, sizeof out);
	r = test_launch(test_function(m, "k"), N / 128, 128, 0, params);
	test_download(out, po, sizeof out);
	for (int i = N; i-- > 0;) {
		uint64_t w = want(to, from, mode, sat, in[i]),
		         mask = to->bytes == 8 ? ~0ull : (1ull << to->bytes * 8) - 1, got = out[i] & mask;
		bool nan = is_float(to) && value(to, got) != value(to, got) && value(to, w) != value(to, w);

		if (got != w && !nan)
			wrong = i;
	}
	int w = wrong < 0 ? 0 : wrong;

	check(!r && wrong < 0, "cvt.%s%s.%s.%s: status %d, of %llx gives %llx, not %llx", mode, sat ? ".sat" : "",
	      to->name, from->name, (int)r, (unsigned long long)in[w], (unsigned long long)out[w],
	      (unsigned long long)want(to, from, mode, sat, in[w]));
	cu.cuMemFree_v2(pi);
	cu.cuMemFree_v2(po);
	if (m)
		cu.cuModuleUnload(m);
}

/* Are there integers of `from` that `to` has not? PTX refuses .sat where there are none. */
static bool
may_saturate(const Kind *to, const Kind *from)
{
	return from->family == 'u' ? to->bytes < from->bytes || (to->bytes == from->bytes && to->family == 's')
	                           : to->family == 'u' || to->bytes < from->bytes;
}

void
test_convert(void)
{
	static const char *const modes[] = {"rn", "rz", "rm", "rp"}, *const integer[] = {"rni", "rzi", "rmi", "rpi"};

	for (size_t i = 0; i < 12; i++)
		for (size_t j = 0; j < 12; j++) {
			const Kind *to = &kinds[i], *from = &kinds[j];
			bool narrows = is_float(to) && (!is_float(from) || from->bytes > to->bytes);

			if (!is_float(to) && !is_float(from)) {
				convert_pair(to, from, "", false);
				if (may_saturate(to, from))
					convert_pair(to, from, "", true);
			} else if ((to->family == 'b' && from->bytes == 1) || (from->family == 'b' && to->bytes == 1)) {
				; /* bf16 with 8 bits: no instruction */
			} else if (!is_float(to)) {
				for (int k = 0; k < 4; k++)
					convert_pair(to, from, integer[k], false);
			} else if (narrows) {
				for (int k = 0; k < (to->bytes == 2 && from->bytes == 4 && is_float(from) ? 2 : 4); k++)
					convert_pair(to, from, modes[k], false);
			} else if (i == j && to->bytes >= 4) {
				for (int k = 0; k < 4; k++)
					convert_pair(to, from, integer[k], false);
				convert_pair(to, from, "", true);
			} else if (from->bytes < to->bytes) {
				convert_pair(to, from, "", false);
			}
		}
}
