/* prelude.cu: what every CUDA C text begins with: names, integer and 16-bit arithmetic, Philox, sums over a block.
 *
 * A subset of C and no header: NVRTC brings threadIdx, __shared__ and the functions of <math.h> by itself. Integers
 * wrap, a quotient by 0 is 0, values that an integer does not hold become the nearest that it holds, NaN becomes 0. top
 * and low keep a NaN. Sums over a block have one order: in each warp by halves, then over the warps.
 * Becomes cuda_prelude (embed.py). */

#define BLOCK 256
// rather more registers than spilt ones
#define KERNEL extern "C" __global__ void __launch_bounds__(BLOCK, 1)
// two blocks share a multiprocessor's registers: one stores while the other multiplies
#define KERNEL2 extern "C" __global__ void __launch_bounds__(BLOCK, 2)
// so many threads, and so many blocks on a multiprocessor
#define KERNEL_OF(threads, blocks) extern "C" __global__ void __launch_bounds__(threads, blocks)
#define FN static __device__ __forceinline__
#define INF_f32 __int_as_float(0x7f800000)
#define NAN_f32 __int_as_float(0x7fc00000)
#define INF_f64 __longlong_as_double(0x7ff0000000000000ll)
#define NAN_f64 __longlong_as_double(0x7ff8000000000000ll)
#define NO_INDEX 0x7fffffffffffffffll

/* integers wrap */
#define INTEGER(t, T, U) \
	FN T add_##t(T a, T b) { return (T)((U)a + (U)b); } \
	FN T sub_##t(T a, T b) { return (T)((U)a - (U)b); } \
	FN T mul_##t(T a, T b) { return (T)((U)a * (U)b); } \
	FN T neg_##t(T a) { return (T)((U)0 - (U)a); } \
	FN T abs_##t(T a) { return a < 0 ? (T)((U)0 - (U)a) : a; } \
	FN T imod_##t(T a, T b) { \
		if (b == 0 || b == (T)-1) return 0; \
		T r = a % b; \
		return r != 0 && (r < 0) != (b < 0) ? r + b : r; \
	} \
	FN T idiv_##t(T a, T b) { \
		if (b == 0) return 0; \
		if (b < 0 && b == (T)-1) return neg_##t(a); \
		T q = a / b; \
		return a % b != 0 && (a % b < 0) != (b < 0) ? q - 1 : q; \
	}
INTEGER(i64, long long, unsigned long long)
INTEGER(i32, int, unsigned)
FN unsigned char add_u8(unsigned char a, unsigned char b) { return (unsigned char)(a + b); }
FN unsigned char sub_u8(unsigned char a, unsigned char b) { return (unsigned char)(a - b); }
FN unsigned char mul_u8(unsigned char a, unsigned char b) { return (unsigned char)(a * b); }
FN unsigned char neg_u8(unsigned char a) { return (unsigned char)(0 - a); }
FN unsigned char abs_u8(unsigned char a) { return a; }
FN unsigned char idiv_u8(unsigned char a, unsigned char b) { return b ? (unsigned char)(a / b) : (unsigned char)0; }
FN unsigned char imod_u8(unsigned char a, unsigned char b) { return b ? (unsigned char)(a % b) : (unsigned char)0; }
FN int index_i64(long long x) { return x < -0x40000000ll ? -0x40000000 : x > 0x40000000ll ? 0x40000000 : (int)x; }

/* every type of numbers, by the name that it has in names of functions */
#define NUMBERS(F) F(f64, double) F(f32, float) F(i64, long long) F(i32, int) F(u8, unsigned char)

/* the larger, the smaller; beats: x takes the place of m, where the first NaN stays; top, low: a NaN stays */
#define ORDERED(t, T) \
FN T min_##t(T a, T b) { return a < b ? a : b; } \
FN T max_##t(T a, T b) { return a > b ? a : b; } \
FN bool beats_##t(T x, T m) { return (x > m || x != x) && m == m; }
NUMBERS(ORDERED)
ORDERED(bool, bool)
#define EXTREMA(t, T) \
FN T top_##t(T x, T m) { return (x > m || x != x) && m == m ? x : m; } \
FN T low_##t(T x, T m) { return (x < m || x != x) && m == m ? x : m; }
EXTREMA(f64, double)
EXTREMA(i64, long long)
EXTREMA(i32, int)
EXTREMA(u8, unsigned char)
EXTREMA(bool, bool)
#if __CUDA_ARCH__ >= 800
FN float top_f32(float x, float m) { float y; asm("max.NaN.f32 %0, %1, %2;" : "=f"(y) : "f"(x), "f"(m)); return y; }
FN float low_f32(float x, float m) { float y; asm("min.NaN.f32 %0, %1, %2;" : "=f"(y) : "f"(x), "f"(m)); return y; }
#else
EXTREMA(f32, float)
#endif

/* to integers: the nearest that there is, NaN is 0 */
#define TO_INTEGER(f, F) \
	FN long long f##_to_i64(F x) { \
		return x != x                           ? 0 \
		       : x >= (F)9223372036854775808.0  ? 0x7fffffffffffffffll \
		       : x <= (F)-9223372036854775808.0 ? (long long)0x8000000000000000ull \
		                                        : (long long)x; \
	} \
	FN int f##_to_i32(F x) { \
		return x != x                  ? 0 \
		       : x >= (F)2147483648.0  ? 0x7fffffff \
		       : x <= (F)-2147483648.0 ? (int)0x80000000u \
		                               : (int)x; \
	} \
	FN unsigned char f##_to_u8(F x) { \
		return x != x || x <= 0 ? (unsigned char)0 : x >= 255 ? (unsigned char)255 : (unsigned char)x; \
	}
TO_INTEGER(f64, double)
TO_INTEGER(f32, float)

/* 16 bits, rounded to the nearest, ties to even */
FN float bf16_value(unsigned short b) { return __uint_as_float((unsigned)b << 16); }
#if __CUDA_ARCH__ >= 800
FN unsigned short bf16_bits(float x) {
	unsigned b;
	asm("cvt.rn.bf16x2.f32 %0, %1, %2;" : "=r"(b) : "f"(0.0f), "f"(x));
	return (unsigned short)b;
}
#else
FN unsigned short bf16_bits(float x)
{
	unsigned u = __float_as_uint(x);
	return x != x ? (unsigned short)0x7fff : (unsigned short)((u + 0x7fff + (u >> 16 & 1)) >> 16);
}
#endif
/* of a value that has 16 bits */
FN unsigned short bf16_upper(float x) { return (unsigned short)(__float_as_uint(x) >> 16); }
FN float f16_value(unsigned short b) { float x; asm("cvt.f32.f16 %0, %1;" : "=f"(x) : "h"(b)); return x; }
FN unsigned short f16_bits(float x) { unsigned short b; asm("cvt.rn.f16.f32 %0, %1;" : "=h"(b) : "f"(x)); return b; }

/* remainder with the divisor's sign */
FN float floormod_f32(float x, float y) {
	float r = fmodf(x, y);
	return r == 0 ? copysignf(r, y) : (r < 0) != (y < 0) ? r + y : r;
}
FN double floormod_f64(double x, double y) {
	double r = fmod(x, y);
	return r == 0 ? copysign(r, y) : (r < 0) != (y < 0) ? r + y : r;
}

/* exponentials below the largest m, which may be infinite */
/* e^x of x <= 0 in two instructions: its error, of x's rounding to a multiple of log2(e), is as large as that of the
 * difference that x is; what is below 2^-126 is 0 */
FN float exp_low_f32(float x)
{
	float y;
	asm("ex2.approx.ftz.f32 %0, %1;" : "=f"(y) : "f"(x * 1.4426950408889634f));
	return y;
}
FN double exp_low_f64(double x) { return exp(x); }
FN float exp_below_f32(float x, float m) { return m - m == 0 ? exp_low_f32(x - m) : 0.0f; }
FN double exp_below_f64(double x, double m) { return m - m == 0 ? exp(x - m) : 0.0; }
FN float log_above_f32(float s, float m) { return m - m == 0 ? m + logf(s) : m; }
FN double log_above_f64(double s, double m) { return m - m == 0 ? m + log(s) : m; }

/* elements of a window of k from start that are inside 0 .. n */
FN long long held(long long start, long long k, long long n) { return min_i64(start + k, n) - max_i64(start, 0); }

/* Philox4x32-10 (Salmon et al. 2011): the four words of a block; the word of an element's number; which of four
 * elements are kept */
FN uint4 philox_block(unsigned long long b, unsigned key, unsigned step, unsigned stream)
{
	unsigned c0 = (unsigned)b, c1 = (unsigned)(b >> 32), c2 = step, c3 = 0, k0 = key, k1 = stream;
#pragma unroll
	for (int i = 0; i < 10; i++) {
		unsigned h0 = __umulhi(c0, 0xD2511F53u), l0 = c0 * 0xD2511F53u, h1 = __umulhi(c2, 0xCD9E8D57u),
		         l1 = c2 * 0xCD9E8D57u;
		c0 = h1 ^ c1 ^ k0;
		c2 = h0 ^ c3 ^ k1;
		c1 = l1;
		c3 = l0;
		k0 += 0x9E3779B9u;
		k1 += 0xBB67AE85u;
	}
	return make_uint4(c0, c1, c2, c3);
}
FN unsigned philox(unsigned long long e, unsigned key, unsigned step, unsigned stream)
{
	uint4 x = philox_block(e >> 2, key, step, stream);
	return e & 2 ? (e & 1 ? x.w : x.z) : (e & 1 ? x.y : x.x);
}
FN unsigned philox_kept(unsigned long long b, unsigned key, unsigned step, unsigned stream, unsigned bound)
{
	uint4 x = philox_block(b, key, step, stream);
	return (x.x >> 8 >= bound ? 1 : 0) | (x.y >> 8 >= bound ? 2 : 0) | (x.z >> 8 >= bound ? 4 : 0) |
	       (x.w >> 8 >= bound ? 8 : 0);
}

/* tiles: places in shared memory, copies, products of 16 x 16 by 16 x 8 numbers */
FN unsigned shared_address(const void *p) { return (unsigned)__cvta_generic_to_shared(p); }
/* where chunk of 16 bytes `chunk` of a line lies, of `chunks`: neighbouring lines begin at other banks */
FN unsigned swizzled(int line, int chunk, int chunks)
{
	int turn = chunks < 8 ? line / (8 / chunks) % chunks : line % 8;
	return (unsigned)(line * chunks + (chunk ^ turn)) * 16;
}
/* 16 bytes, 8 or 4, or zeros; `base` is an address that may be formed */
#if __CUDA_ARCH__ >= 800
#define COPY(n, how) \
	FN void copy##n(unsigned to, const void *from, const void *base, bool valid) { \
		asm volatile("cp.async." how ".shared.global [%0], [%1], " #n ", %2;" ::"r"(to), \
		             "l"(valid ? from : base), "r"(valid ? n : 0) \
		             : "memory"); \
	}
COPY(16, "cg")
COPY(8, "ca")
COPY(4, "ca")
#else
FN void copy16(unsigned to, const void *from, const void *base, bool valid)
{
	uint4 x = make_uint4(0, 0, 0, 0);
	if (valid) x = *(const uint4 *)from;
	asm volatile("st.shared.v4.u32 [%0], {%1, %2, %3, %4};" ::"r"(to), "r"(x.x), "r"(x.y), "r"(x.z), "r"(x.w)
	             : "memory");
}
FN void copy8(unsigned to, const void *from, const void *base, bool valid)
{
	uint2 x = make_uint2(0, 0);
	if (valid) x = *(const uint2 *)from;
	asm volatile("st.shared.v2.u32 [%0], {%1, %2};" :: "r"(to), "r"(x.x), "r"(x.y) : "memory");
}
FN void copy4(unsigned to, const void *from, const void *base, bool valid)
{
	unsigned x = 0;
	if (valid) x = *(const unsigned *)from;
	asm volatile("st.shared.u32 [%0], %1;" :: "r"(to), "r"(x) : "memory");
}
#endif
#if __CUDA_ARCH__ >= 800
FN void copies_end() { asm volatile("cp.async.commit_group;" ::: "memory"); }
#define COPIES_WAIT(n) asm volatile("cp.async.wait_group %0;" :: "n"(n) : "memory")
#else
FN void copies_end() {}
#define COPIES_WAIT(n)
#endif
#define LDSM(name, how) \
	FN void name(unsigned *r, unsigned at) { \
		asm volatile("ldmatrix.sync.aligned.m8n8.x4" how ".shared.b16 {%0, %1, %2, %3}, [%4];" \
		             : "=r"(r[0]), "=r"(r[1]), "=r"(r[2]), "=r"(r[3]) \
		             : "r"(at) \
		             : "memory"); \
	}
LDSM(ldsm, "")
LDSM(ldsm_turned, ".trans")
/* two numbers rounded to 16 bits, the first in the lower half */
#if __CUDA_ARCH__ >= 800
FN unsigned pair_f16(float a, float b) {
	unsigned x;
	asm("cvt.rn.f16x2.f32 %0, %1, %2;" : "=r"(x) : "f"(b), "f"(a));
	return x;
}
FN unsigned pair_bf16(float a, float b) {
	unsigned x;
	asm("cvt.rn.bf16x2.f32 %0, %1, %2;" : "=r"(x) : "f"(b), "f"(a));
	return x;
}
#else
FN unsigned pair_f16(float a, float b) { return f16_bits(a) | (unsigned)f16_bits(b) << 16; }
FN unsigned pair_bf16(float a, float b) { return bf16_bits(a) | (unsigned)bf16_bits(b) << 16; }
#endif
#define MMA(type) \
	FN void mma_##type(float *d, const unsigned *a, const unsigned *b) { \
		asm("mma.sync.aligned.m16n8k16.row.col.f32." #type "." #type \
		    ".f32 {%0, %1, %2, %3}, {%4, %5, %6, %7}, {%8, %9}, {%0, %1, %2, %3};" \
		    : "+f"(d[0]), "+f"(d[1]), "+f"(d[2]), "+f"(d[3]) \
		    : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b[0]), "r"(b[1])); \
	}
#if __CUDA_ARCH__ >= 800
MMA(f16)
MMA(bf16)
FN void mma_tf32(float *d, const unsigned *a, const unsigned *b)
{
	asm("mma.sync.aligned.m16n8k8.row.col.f32.tf32.tf32.f32 {%0, %1, %2, %3}, {%4, %5, %6, %7}, {%8, %9}, {%0, %1, "
	    "%2, %3};"
	    : "+f"(d[0]), "+f"(d[1]), "+f"(d[2]), "+f"(d[3])
	    : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b[0]), "r"(b[1]));
}
/* the nearest number of 11 bits */
FN unsigned to_tf32(unsigned x) {
	unsigned y;
	asm("cvt.rna.tf32.f32 %0, %1;" : "=r"(y) : "f"(__uint_as_float(x)));
	return y;
}
FN unsigned shared_word(unsigned at) {
	unsigned x;
	asm volatile("ld.shared.u32 %0, [%1];" : "=r"(x) : "r"(at) : "memory");
	return x;
}
#else
FN void mma_f16(float *d, const unsigned *a, const unsigned *b)
{
	for (int i = 0; i < 2; i++)
		asm("mma.sync.aligned.m16n8k8.row.col.f32.f16.f16.f32 {%0, %1, %2, %3}, {%4, %5}, {%6}, {%0, %1, %2, "
		    "%3};"
		    : "+f"(d[0]), "+f"(d[1]), "+f"(d[2]), "+f"(d[3])
		    : "r"(a[2 * i]), "r"(a[2 * i + 1]), "r"(b[i]));
}
#endif

/* wgmma: where chunks lie in lines of 128 bytes, 64 lines to a block; descriptors (of slots from a multiple of
 * 1024 on: 1024 bytes between eights of lines, 8192 between
   blocks, swizzle of 128 bytes); fences; and acc += A B, d an array of n/8 times 4 sums, ta and tb 1 where memory
   follows the rows */
FN unsigned stacked(int line, int chunk) {
	return (unsigned)(chunk / 8 * 8192 + line * 128 + (chunk % 8 ^ line % 8) * 16);
}
FN unsigned long long matrix(unsigned at) { return at >> 4 & 0x3fff | 512ull << 16 | 64ull << 32 | 1ull << 62; }
#ifdef __CUDA_ARCH_FEAT_SM90_ALL
FN void written_for_wgmma() { asm volatile("fence.proxy.async.shared::cta;" ::: "memory"); }
FN void products_begin() { asm volatile("wgmma.fence.sync.aligned;" ::: "memory"); }
FN void products_end() { asm volatile("wgmma.commit_group.sync.aligned;" ::: "memory"); }
#define PRODUCTS_WAIT(n) asm volatile("wgmma.wait_group.sync.aligned %0;" :: "n"(n) : "memory")
/* sums stay where they are on the other side of this: what reads them comes behind a wait, what set them before
 * the products */
FN void sums_fence(float *d) { asm volatile("" : "+f"(d[0]), "+f"(d[1]), "+f"(d[2]), "+f"(d[3]) :: "memory"); }
/* boxes of a tensor map, copied by the device; a barrier counts their bytes, its phases have parities in turn */
struct __align__(128) TensorMap { unsigned long long x[16]; };
FN void barrier_make(unsigned at) { asm volatile("mbarrier.init.shared::cta.b64 [%0], 1;" :: "r"(at) : "memory"); }
FN void barriers_made() { asm volatile("fence.mbarrier_init.release.cluster;" ::: "memory"); written_for_wgmma(); }
FN void barrier_expect(unsigned at, int bytes) {
	asm volatile("mbarrier.arrive.expect_tx.shared::cta.b64 _, [%0], %1;" ::"r"(at), "r"(bytes) : "memory");
}
/* Each try waits for a while by itself: after so many the bytes never come. *lost says so, and the kernel traps
 * behind its products (a way out between them would make
   ptxas wait for each): an error is better than a device that hangs. */
#define BARRIER_TRIES (1u << 24)
FN void barrier_wait(unsigned at, int parity, bool *lost)
{
	unsigned done = 0;
	for (unsigned tries = 0; !done && !*lost; tries++) {
		asm volatile(
		        "{ .reg .pred p; mbarrier.try_wait.parity.shared::cta.b64 p, [%1], %2; selp.u32 %0, 1, 0, p; }"
		        : "=r"(done)
		        : "r"(at), "r"(parity)
		        : "memory");
		*lost = tries == BARRIER_TRIES;
	}
}
FN void barriers_kept(bool lost) { if (lost) __trap(); }
FN void copy_box(unsigned to, const TensorMap *map, int x, int y, unsigned barrier)
{
	asm volatile("cp.async.bulk.tensor.2d.shared::cluster.global.tile.mbarrier::complete_tx::bytes [%0], [%1, {%2, "
	             "%3}], [%4];" ::"r"(to),
	             "l"(map), "r"(x), "r"(y), "r"(barrier)
	             : "memory");
}
#define OUT1(d, j) "+f"(d[j][0]), "+f"(d[j][1]), "+f"(d[j][2]), "+f"(d[j][3])
#define OUT4(d, j) OUT1(d, j), OUT1(d, j + 1), OUT1(d, j + 2), OUT1(d, j + 3)
#define OUT8(d, j) OUT4(d, j), OUT4(d, j + 4)
#define REGS_64 \
	"%0, %1, %2, %3, %4, %5, %6, %7, %8, %9, %10, %11, %12, %13, %14, %15, %16, %17, %18, %19, %20, %21, %22, " \
	"%23, %24, %25, %26, %27, %28, %29, %30, %31"
#define REGS_96 REGS_64 ", %32, %33, %34, %35, %36, %37, %38, %39, %40, %41, %42, %43, %44, %45, %46, %47"
#define REGS_128 \
	REGS_64 ", %32, %33, %34, %35, %36, %37, %38, %39, %40, %41, %42, %43, %44, %45, %46, %47, %48, %49, %50, " \
	        "%51, %52, %53, %54, %55, %56, %57, %58, %59, %60, %61, %62, %63"
#define REGS_192 \
	REGS_128 ", %64, %65, %66, %67, %68, %69, %70, %71, %72, %73, %74, %75, %76, %77, %78, %79, %80, %81, %82, " \
	         "%83, %84, %85, %86, %87, %88, %89, %90, %91, %92, %93, %94, %95"
#define REGS_256 \
	REGS_128 ", %64, %65, %66, %67, %68, %69, %70, %71, %72, %73, %74, %75, %76, %77, %78, %79, %80, %81, %82, " \
	         "%83, %84, %85, %86, %87, %88, %89, %90, %91, %92, %93, %94, %95" \
	         ", %96, %97, %98, %99, %100, %101, %102, %103, %104, %105, %106, %107, %108, %109, %110, %111, " \
	         "%112, %113, %114, %115, %116, %117, %118, %119, %120, %121, %122, %123, %124, %125, %126, %127"
#define WGMMA(n, type, ta, tb, at_a, at_b, one, a, b, ...) \
	asm volatile("{ .reg .pred add; setp.ne.b32 add, " one ", 0; wgmma.mma_async.sync.aligned.m64n" #n \
	             "k16.f32." #type "." #type " {" REGS_##n "}, " at_a ", " at_b ", add, 1, 1, " #ta ", " #tb "; }" \
	             : __VA_ARGS__ \
	             : "l"(a), "l"(b), "n"(1))
#define WGMMA_64(type, ta, tb, d, a, b) WGMMA(64, type, ta, tb, "%32", "%33", "%34", a, b, OUT8(d, 0))
#define WGMMA_96(type, ta, tb, d, a, b) WGMMA(96, type, ta, tb, "%48", "%49", "%50", a, b, OUT8(d, 0), OUT4(d, 8))
#define WGMMA_128(type, ta, tb, d, a, b) WGMMA(128, type, ta, tb, "%64", "%65", "%66", a, b, OUT8(d, 0), OUT8(d, 8))
#define WGMMA_192(type, ta, tb, d, a, b) \
	WGMMA(192, type, ta, tb, "%96", "%97", "%98", a, b, OUT8(d, 0), OUT8(d, 8), OUT8(d, 16))
#define WGMMA_256(type, ta, tb, d, a, b) \
	WGMMA(256, type, ta, tb, "%128", "%129", "%130", a, b, OUT8(d, 0), OUT8(d, 8), OUT8(d, 16), OUT8(d, 24))
#endif

/* neighbouring numbers at once, to and from arrays in registers */
FN void read4(float *to, const float *p) {
	float4 x = *(const float4 *)p;
	to[0] = x.x;
	to[1] = x.y;
	to[2] = x.z;
	to[3] = x.w;
}
FN void read2(float *to, const float *p) { float2 x = *(const float2 *)p; to[0] = x.x; to[1] = x.y; }
FN void write4(float *p, const float *x) { *(float4 *)p = make_float4(x[0], x[1], x[2], x[3]); }
FN void write1(float *p, const float *x) { *p = *x; }
FN void write2(float *p, const float *x) { *(float2 *)p = make_float2(x[0], x[1]); }
FN void take2_32(float *to, const float *p) { read2(to, p); }
FN void take4_32(float *to, const float *p) { read4(to, p); }
FN void take8_32(float *to, const float *p) { read4(to, p); read4(to + 4, p + 4); }
FN void put2_32(float *p, const float *x) { write2(p, x); }
FN void put4_32(float *p, const float *x) { write4(p, x); }
FN void put8_32(float *p, const float *x) { write4(p, x); write4(p + 4, x + 4); }
FN void halves(unsigned short *to, unsigned x) { to[0] = (unsigned short)x; to[1] = (unsigned short)(x >> 16); }
FN unsigned joined(const unsigned short *x) { return x[0] | (unsigned)x[1] << 16; }
/* pairs of 16 bits, the first in the lower half: as they were loaded, until an element is asked for */
FN void pairs2(unsigned *to, const unsigned short *p) { *to = *(const unsigned *)p; }
FN void pairs4(unsigned *to, const unsigned short *p) { uint2 x = *(const uint2 *)p; to[0] = x.x; to[1] = x.y; }
FN void pairs8(unsigned *to, const unsigned short *p) {
	uint4 x = *(const uint4 *)p;
	to[0] = x.x;
	to[1] = x.y;
	to[2] = x.z;
	to[3] = x.w;
}
FN unsigned short half_at(const unsigned *x, int i) { return (unsigned short)(x[i / 2] >> i % 2 * 16); }
FN void take2_16(unsigned short *to, const unsigned short *p) { halves(to, *(const unsigned *)p); }
FN void take4_16(unsigned short *to, const unsigned short *p) {
	uint2 x = *(const uint2 *)p;
	halves(to, x.x);
	halves(to + 2, x.y);
}
FN void take8_16(unsigned short *to, const unsigned short *p) {
	uint4 x = *(const uint4 *)p;
	halves(to, x.x);
	halves(to + 2, x.y);
	halves(to + 4, x.z);
	halves(to + 6, x.w);
}
FN void bytes4(unsigned char *to, unsigned x) {
	to[0] = (unsigned char)x;
	to[1] = (unsigned char)(x >> 8);
	to[2] = (unsigned char)(x >> 16);
	to[3] = (unsigned char)(x >> 24);
}
FN void take4_8(unsigned char *to, const unsigned char *p) { bytes4(to, *(const unsigned *)p); }
FN void take8_8(unsigned char *to, const unsigned char *p) {
	uint2 x = *(const uint2 *)p;
	bytes4(to, x.x);
	bytes4(to + 4, x.y);
}
FN unsigned joined4(const unsigned char *x) {
	return x[0] | (unsigned)x[1] << 8 | (unsigned)x[2] << 16 | (unsigned)x[3] << 24;
}
FN void put8_8(unsigned char *p, const unsigned char *x) { *(uint2 *)p = make_uint2(joined4(x), joined4(x + 4)); }
FN void put4_16(unsigned short *p, const unsigned short *x) { *(uint2 *)p = make_uint2(joined(x), joined(x + 2)); }
FN void put8_16(unsigned short *p, const unsigned short *x) {
	*(uint4 *)p = make_uint4(joined(x), joined(x + 2), joined(x + 4), joined(x + 6));
}
FN void put8_pairs(unsigned short *p, const unsigned *x) { *(uint4 *)p = make_uint4(x[0], x[1], x[2], x[3]); }
#define ROUNDED(type) \
FN void rounded8_##type(unsigned *to, const float *x) { \
	for (int i = 0; i < 4; i++) to[i] = pair_##type(x[2 * i], x[2 * i + 1]); \
} \
FN void put2_##type(unsigned short *p, const float *x) { *(unsigned *)p = pair_##type(x[0], x[1]); } \
FN void put4_##type(unsigned short *p, const float *x) { \
	*(uint2 *)p = make_uint2(pair_##type(x[0], x[1]), pair_##type(x[2], x[3])); \
} \
FN void put8_##type(unsigned short *p, const float *x) { unsigned y[4]; rounded8_##type(y, x); put8_pairs(p, y); }
ROUNDED(f16)
ROUNDED(bf16)
/* count, mean and squares about it of two sets */
FN void join_moments(float *n, float *mean, float *squares, float n1, float mean1, float squares1)
{
	if (n1 == 0) return;
	float all = *n + n1, d = mean1 - *mean;
	*mean = fmaf(d, n1 / all, *mean);
	*squares += fmaf(d * d, *n * (n1 / all), squares1);
	*n = all;
}

/* of kernels that share a launch, which this is and how many there are; its first block, and how many there are:
 * of a launch by itself */
#define ENTRY 0
#define ENTRIES 1
#define PART0 0
#define PARTS BLOCK
/* Is this block the last of `count` to come here? It sees what the others wrote before, if it reads past its own
 * cache: the barrier orders the block's writes before the ticket that its first thread draws, which releases all
 * that the thread has seen, and acquires what those before it released. One fence, before the ticket: what acquires
 * needs none. The ticket is 0 again then. */
FN bool last_here(unsigned *ticket, unsigned count)
{
	bool last = false;
	__syncthreads();
	if (threadIdx.x == 0) {
		unsigned drawn;
		asm volatile("atom.acq_rel.gpu.global.inc.u32 %0, [%1], %2;"
		             : "=r"(drawn) : "l"(ticket), "r"(count - 1) : "memory");
		last = drawn == count - 1;
	}
	return __syncthreads_or(last);
}
/* Numbers from block to block while both run: each with the number of its exchange in one word of 64 bits, so
 * whoever finds that has the number too, and no fence is waited for. `count` of them, `length`
   to a row, lie `pitch` apart in `to`. Neighbours are read two at a time where their number is even; a block begins at
   `first`, so that not all of a team ask one place of the L2. A word that never comes is a trap: an error is better
   than a device that hangs. */
#define WORD_LOOKS (1u << 24)
#define WORDS 16
FN void word_put(unsigned long long *at, float x, unsigned tag) {
	asm volatile("st.relaxed.gpu.global.u64 [%0], %1;" ::"l"(at),
	             "l"((unsigned long long)tag << 32 | __float_as_uint(x))
	             : "memory");
}
FN unsigned long long word_look(const unsigned long long *at) {
	unsigned long long x;
	asm volatile("ld.relaxed.gpu.global.u64 %0, [%1];" : "=l"(x) : "l"(at) : "memory");
	return x;
}
FN void words_look(unsigned long long *x, const unsigned long long *at) {
	asm volatile("ld.relaxed.gpu.global.v2.u64 {%0, %1}, [%2];" : "=l"(x[0]), "=l"(x[1]) : "l"(at) : "memory");
}
FN void words_take(float *to, const unsigned long long *from, int first, unsigned tag, int tid, int threads, int count,
                   int length, int pitch) {
	const int each = count % 2 ? 1 : 2;
#pragma unroll 1
	for (int i = tid * each; i < count; i += WORDS * threads) {
		unsigned long long x[WORDS];
		bool all = false;
#pragma unroll 1
		for (unsigned looks = 0; !all; looks++) {
			all = true;
			if (looks == WORD_LOOKS) __trap();
#pragma unroll
			for (int q = 0; q < WORDS; q += each)
				if (q * threads < count && i + q * threads < count) {
					int at = i + q * threads + first;
					at -= at < count ? 0 : count;
					if (each == 2) words_look(x + q, from + at);
					else x[q] = word_look(from + at);
				}
#pragma unroll
			for (int q = 0; q < WORDS; q++)
				if (q / each * each * threads < count && i + q / each * each * threads < count)
					all = all && (unsigned)(x[q] >> 32) == tag;
		}
#pragma unroll
		for (int q = 0; q < WORDS; q++)
			if (q / each * each * threads < count && i + q / each * each * threads < count) {
				int at = i + q / each * each * threads + first;
				at = at - (at < count ? 0 : count) + q % each;
				to[at / length * pitch + at % length] = __uint_as_float((unsigned)x[q]);
			}
	}
}
FN float fresh(const float *p) {
	float x;
	asm volatile("ld.global.cg.f32 %0, [%1];" : "=f"(x) : "l"(p) : "memory");
	return x;
}
FN void add1_fresh(const float *p, float *x) { *x += fresh(p); }
/* zeros where it is not there: without a branch, so that others may be loaded meanwhile */
FN float4 read4_fresh(const float *p, bool there)
{
	float4 y;
	asm volatile("{\n.reg .pred t;\nsetp.ne.s32 t, %5, 0;\nmov.f32 %0, 0f00000000;\nmov.f32 %1, "
	             "0f00000000;\nmov.f32 %2, 0f00000000;\nmov.f32 %3, 0f00000000;\n"
	             "@t ld.global.cg.v4.f32 {%0, %1, %2, %3}, [%4];\n}"
	             : "=&f"(y.x), "=&f"(y.y), "=&f"(y.z), "=&f"(y.w)
	             : "l"(p), "r"((int)there)
	             : "memory");
	return y;
}
FN void add4(float *x, float4 y) { x[0] += y.x; x[1] += y.y; x[2] += y.z; x[3] += y.w; }
/* what is computed of it is computed anew behind this, and takes no registers till then */
FN void kept_32(float *x) { asm volatile("" : "+f"(*x)); }
FN void kept_16(unsigned *x) { asm volatile("" : "+r"(*x)); }
FN int kept_index(int x) { asm volatile("" : "+r"(x)); return x; }
FN long long kept_index(long long x) { asm volatile("" : "+l"(x)); return x; }
/* an address that the compiler does not know: what is called with it is compiled once, and names no memory of its
 * caller */
FN float *hidden(float *p) { asm volatile("" : "+l"(p)); return p; }
/* by columns: thread i has column i % n and, of the rows, every so many; every thread gets its column's result. s:
 * a number for each thread */
static __device__ __noinline__ float strips_sum(float x, int n, float *s)
{
	__syncthreads();
	s[threadIdx.x] = x;
	__syncthreads();
	x = s[threadIdx.x % n];
	for (int q = n; q < blockDim.x; q += n) x += s[q + threadIdx.x % n];
	return x;
}
/* rows i, i + step, .. of a column: all loads are under way before the first is used; 0 where there is no row,
 * which changes no sum that began with 0 */
#define AHEAD 8
FN void strip(float *y, const float *p, int pitch, int i, int step, int rows, int column)
{
#pragma unroll
	for (int q = 0; q < AHEAD; q++) y[q] = 0;
#pragma unroll
	for (int q = 0; q < AHEAD; q++)
		if (i + q * step < rows) y[q] = fresh(&p[(long long)(i + q * step) * pitch + column]);
}
static __device__ __noinline__ float rows_sum(const float *p, int pitch, int rows, int n, int width, float *s)
{
	int column = threadIdx.x % n;
	float x = 0;
	int step = blockDim.x / n;
	for (int i = threadIdx.x / n; i < rows && column < width; i += AHEAD * step) {
		float y[AHEAD];
		strip(y, p, pitch, i, step, rows, column);
#pragma unroll
		for (int q = 0; q < AHEAD; q++) x += y[q];
	}
	return strips_sum(x, n, s);
}

/* Few rows of a column for a thread, `each`: all on their way at once, no loop. `threads` of the block, n columns
 * side by side, of which there are `width` */
FN void few_rows(float *y, const float *p, int pitch, int rows, int each, int n, int threads, int width)
{
	int column = threadIdx.x % n, step = threads / n, first = threadIdx.x / n;
#pragma unroll
	for (int q = 0; q < each; q++) y[q] = 0;
#pragma unroll
	for (int q = 0; q < each; q++)
		if (first + q * step < rows && column < width)
			y[q] = fresh(&p[(long long)(first + q * step) * pitch + column]);
}
FN float few_sum(const float *y, int each)
{
	float x = 0;
#pragma unroll
	for (int q = 0; q < each; q++) x += y[q];
	return x;
}
/* of means and squares about them, `size` elements each, the last what is left of `all`: sums about the first row's
 * mean, so that one pass does */
FN void few_moments(float *sum, float *more, const float *m, const float *y, float about, int size, int all, int rows,
                    int each, int n, int threads)
{
	int step = threads / n, first = threadIdx.x / n;
	*sum = *more = 0;
#pragma unroll
	for (int q = 0; q < each; q++) {
		int left = all - (first + q * step) * size;
		float k = first + q * step < rows ? (float)(left < size ? left : size) : 0.0f, d = m[q] - about;
		*sum = fmaf(k, d, *sum);
		*more += fmaf(k * d, d, y[q]);
	}
}
/* what the threads of a column have, in their order */
FN float few_join(const float *s, int n, int threads)
{
	float x = s[threadIdx.x % n];
#pragma unroll
	for (int q = n; q < threads; q += n) x += s[q + threadIdx.x % n];
	return x;
}
/* sums of `count` elements about `about`, and of their squares, to mean and squares about it */
FN void moments_about(float *mean, float *squares, float about, float sum, float more, float count)
{
	float off = sum / count, rest = fmaf(-off, sum, more);
	*mean = about + off;
	*squares = rest < 0.0f ? 0.0f : rest;
}

/* tiles of `size` rows each, the last of every `tiles` with what is left of `all`; number `first` is the first
 * that is meant */
typedef struct Tiling { int first, tiles, size, all; } Tiling;
/* of rows as strip takes them the weights: from memory, or how many rows a tile has. at: the number of row i's
 * tile among `tiles`, then that of the next strip; by: step % tiles */
FN void strip_weights(float *k, const float *counts, Tiling t, int *at, int by, int pitch, int i, int step, int rows,
                      int column) {
	if (counts) { strip(k, counts, pitch, i, step, rows, column); return; }
#pragma unroll
	for (int q = 0; q < AHEAD; q++) {
		int left = t.all - *at * t.size;
		k[q] = i + q * step < rows ? (float)(left < t.size ? left : t.size) : 0.0f;
		*at += by;
		*at -= *at >= t.tiles ? t.tiles : 0;
	}
}
FN void strip_about(float *about, const float *m, const float *y, const float *k, float mean, int i, int step, int rows)
{
#pragma unroll
	for (int q = 0; q < AHEAD; q++)
		if (i + q * step < rows) {
			float d = m[q] - mean;
			*about += fmaf(d * d, k[q], y[q]);
		}
}
/* of means at p, squares about them at q, and counts, or those of tiles where there are none; the first strip is
 * read once */
static __device__ __noinline__ void rows_moments(float *mean, float *squares, float *count, const float *p,
                                                 const float *q, const float *counts, Tiling t, int pitch, int rows,
                                                 int n, int width, float *s) {
	int column = threadIdx.x % n, step = blockDim.x / n, first = threadIdx.x / n, next = first + AHEAD * step,
	    by = step % t.tiles, at = (t.first + first) % t.tiles;
	int end = column < width ? rows : 0;
	float sum = 0, all = 0, about = 0, m[AHEAD], y[AHEAD], k[AHEAD];
	strip(m, p, pitch, first, step, end, column);
	strip(y, q, pitch, first, step, end, column);
	strip_weights(k, counts, t, &at, by, pitch, first, step, end, column);
#pragma unroll
	for (int u = 0; u < AHEAD; u++) { sum = fmaf(m[u], k[u], sum); all += k[u]; }
	int again = at;
#pragma unroll 1
	for (int i = next; i < end; i += AHEAD * step) {
		float m[AHEAD], k[AHEAD];
		strip(m, p, pitch, i, step, end, column);
		strip_weights(k, counts, t, &at, by, pitch, i, step, end, column);
#pragma unroll
		for (int u = 0; u < AHEAD; u++) { sum = fmaf(m[u], k[u], sum); all += k[u]; }
	}
	*count = strips_sum(all, n, s);
	sum = strips_sum(sum, n, s);
	*mean = *count > 0 ? sum / *count : 0.0f;
	strip_about(&about, m, y, k, *mean, first, step, end);
#pragma unroll 1
	for (int i = next; i < end; i += AHEAD * step) {
		strip(m, p, pitch, i, step, end, column);
		strip(y, q, pitch, i, step, end, column);
		strip_weights(k, counts, t, &again, by, pitch, i, step, end, column);
		strip_about(&about, m, y, k, *mean, i, step, end);
	}
	*squares = strips_sum(about, n, s);
}

/* sums of these types */
#define SUMS(F, name) \
F(name##_f64, double, a + b) \
F(name##_f32, float, a + b) \
F(name##_i64, long long, add_i64(a, b)) \
F(name##_i32, int, add_i32(a, b))

/* over the first n lanes of a warp, n a power of two, and every n others: each gets the result */
#define WARP(name, T, JOIN) \
FN T name##_of(T a, int n) \
{ \
	for (int h = n / 2; h > 0; h /= 2) { T b = __shfl_xor_sync(0xffffffffu, a, h); a = JOIN; } \
	return a; \
} \
FN T name(T a) { return name##_of(a, 32); }
SUMS(WARP, warp_sum)
#define WARPS(t, T) WARP(warp_top_##t, T, top_##t(b, a)) WARP(warp_low_##t, T, low_##t(b, a))
NUMBERS(WARPS)
WARPS(bool, bool)
#define WARP_ARGMAX(t, T) \
FN void warp_argmax_of_##t(T *x, long long *i, int n) \
{ \
	for (int h = n / 2; h > 0; h /= 2) { \
		T b = __shfl_xor_sync(0xffffffffu, *x, h); \
		long long i1 = __shfl_xor_sync(0xffffffffu, *i, h); \
		bool same = *x == b || (*x != *x && b != b); \
		if (i1 != NO_INDEX && (*i == NO_INDEX || (same ? i1 < *i : beats_##t(b, *x)))) { *x = b; *i = i1; } \
	} \
} \
FN void warp_argmax_##t(T *x, long long *i) { warp_argmax_of_##t(x, i, 32); }
NUMBERS(WARP_ARGMAX)

/* over the block, of a power of two of warps: each warp's result, then those of the warps; every thread gets it */
#define WARPS_MOST 32
#define TREE(name, T, ...) \
static __device__ T block_##name(T x) \
{ \
	__shared__ T s[WARPS_MOST]; \
	const int warps = blockDim.x / 32; \
	x = warp_##name(x); \
	__syncthreads(); \
	if (threadIdx.x % 32 == 0) s[threadIdx.x / 32] = x; \
	__syncthreads(); \
	return warp_##name##_of(s[threadIdx.x % warps], warps); \
}
SUMS(TREE, sum)
#define TREES(t, T) TREE(top_##t, T) TREE(low_##t, T)
NUMBERS(TREES)
TREES(bool, bool)
#define ARGMAX(t, T) \
static __device__ void block_argmax_##t(T *x, long long *i) \
{ \
	__shared__ T s[WARPS_MOST]; \
	__shared__ long long at[WARPS_MOST]; \
	const int warps = blockDim.x / 32; \
	warp_argmax_##t(x, i); \
	__syncthreads(); \
	if (threadIdx.x % 32 == 0) { s[threadIdx.x / 32] = *x; at[threadIdx.x / 32] = *i; } \
	__syncthreads(); \
	*x = s[threadIdx.x % warps]; \
	*i = at[threadIdx.x % warps]; \
	warp_argmax_of_##t(x, i, warps); \
}
NUMBERS(ARGMAX)

/* keys that differ from each other, in order: how many of n, a power of two, are less than k; the keys of a chunk
 * put in order by a block, in runs that double: a key's place is that in its own run and the number of the other's
 * keys that are less. Returns where they lie then, `from` or `to` */
#define CHUNK 1024
#define ORDERED_KEYS(t, T) \
FN int below_##t(const T *s, int n, T k) \
{ \
	int at = 0; \
	for (int h = n / 2; h > 0; h /= 2) at += s[at + h - 1] < k ? h : 0; \
	return at + (s[at] < k ? 1 : 0); \
} \
FN T *chunk_order_##t(T *from, T *to) \
{ \
	for (int run = 1; run < CHUNK; run *= 2) { \
		__syncthreads(); \
		_Pragma("unroll") \
		for (int u = 0; u < CHUNK / BLOCK; u++) { \
			int i = u * BLOCK + threadIdx.x; \
			T k = from[i]; \
			int less = below_##t(&from[(i & ~(run - 1)) ^ run], run, k); \
			to[(i & ~(2 * run - 1)) + (i & run - 1) + less] = k; \
		} \
		T *was = from; \
		from = to; \
		to = was; \
	} \
	__syncthreads(); \
	return from; \
}
ORDERED_KEYS(u32, unsigned)
ORDERED_KEYS(u64, unsigned long long)
FN void keys8_u32(unsigned *to, const unsigned *p) {
	pairs8(to, (const unsigned short *)p);
	pairs8(to + 4, (const unsigned short *)(p + 4));
}
FN void keys8_u64(unsigned long long *to, const unsigned long long *p) {
	for (int i = 0; i < 8; i += 2) {
		ulonglong2 x = *(const ulonglong2 *)(p + i);
		to[i] = x.x;
		to[i + 1] = x.y;
	}
}

/* the record of the first fault, at the arena's start: set, op, element, value */
/* a check has failed, or the loop has ended within what is enqueued: states stay as they are; in front of the
 * arena is the loop's status */
FN bool halted(const char *arena) {
	return *(const volatile long long *)(arena - 256) != 0 || *(const volatile long long *)arena != 0;
}
FN void fault_record(char *arena, unsigned *lock, long long op, long long element, long long value)
{
	volatile long long *r = (volatile long long *)arena;
	while (atomicExch(lock, 1u)) ;
	__threadfence();
	if (r[0] == 0 || r[1] > op || (r[1] == op && r[2] > element)) {
		r[1] = op;
		r[2] = element;
		r[3] = value;
		r[0] = 1;
	}
	__threadfence();
	atomicExch(lock, 0u);
}
