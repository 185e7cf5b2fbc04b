/* small.cu: behind prelude.cu where a module has integers of 8 and 16 bits other than u8. Becomes cuda_small. */

/* integers of 8 and 16 bits */
#define SMALL(t, T) \
FN T add_##t(T a, T b) { return (T)(a + b); } \
FN T sub_##t(T a, T b) { return (T)(a - b); } \
FN T mul_##t(T a, T b) { return (T)((unsigned)a * (unsigned)b); } \
FN T neg_##t(T a) { return (T)-a; } \
FN T abs_##t(T a) { return a < 0 ? (T)-a : a; } \
FN T idiv_##t(T a, T b) { return (T)idiv_i32(a, b); } \
FN T imod_##t(T a, T b) { return (T)imod_i32(a, b); } \
ORDERED(t, T) \
EXTREMA(t, T)
SMALL(i16, short)
SMALL(u16, unsigned short)
SMALL(i8, signed char)
/* over a block and over a warp */
#define SMALL_TREES(t, T) WARPS(t, T) WARP_ARGMAX(t, T) TREES(t, T) ARGMAX(t, T)
SMALL_TREES(i16, short)
SMALL_TREES(u16, unsigned short)
SMALL_TREES(i8, signed char)
#define TO_SMALL(f, F, t, T, low, high) \
FN T f##_to_##t(F x) { return x != x ? (T)0 : x <= (F)low ? (T)low : x >= (F)high ? (T)high : (T)x; }
TO_SMALL(f64, double, i16, short, -32768, 32767)
TO_SMALL(f32, float, i16, short, -32768, 32767)
TO_SMALL(f64, double, u16, unsigned short, 0, 65535)
TO_SMALL(f32, float, u16, unsigned short, 0, 65535)
TO_SMALL(f64, double, i8, signed char, -128, 127)
TO_SMALL(f32, float, i8, signed char, -128, 127)

