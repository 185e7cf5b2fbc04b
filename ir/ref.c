/* ref.c: the reference evaluator's core: running one op or one graph, number formats, state, casts, constants, random numbers.
 *
 * In: RefCtx with input and state tensors.  Out: every result in double, rounded to its dtype (f32 to float only if cx->round).
 * This is what all targets are held to, so it is plain. Limits: an integer is a double, so i64 is exact only within
 * +-2^53. Stores happen after all other ops, so that every load of a step sees the old value; a failed check leaves the
 * state alone. */
#include "ref.h"
#include "../runtime/philox.h"
#include <math.h>
#include <string.h>

int64_t
ref_extent(const RefCtx *cx, Axis a)
{
	return axis_at(a, cx->n, cx->full);
}

int64_t
ref_extents(const RefCtx *cx, const Type *t, int64_t ext[MAX_RANK])
{
	int64_t n = 1;

	for (int i = 0; i < t->rank; i++)
		n *= ext[i] = ref_extent(cx, t->axis[i]);
	return n;
}

void
ref_strides(int rank, const int64_t *ext, int64_t *stride)
{
	int64_t s = 1;

	for (int i = rank; i-- > 0; s *= ext[i])
		stride[i] = s;
}

RefTensor *
ref_out(RefCtx *cx, const Op *op, int k)
{
	RefTensor *r = &cx->val[op->out[k].id];
	int64_t ext[MAX_RANK];

	r->type = *val_type(cx->g, op->out[k]);
	r->n = ref_extents(cx, &r->type, ext);
	if (!r->f)
		r->f = arena_array(cx->arena, double, r->n);
	return r;
}

RefTensor *
ref_zeros(RefCtx *cx, const Op *op, int k)
{
	RefTensor *r = ref_out(cx, op, k);

	memset(r->f, 0, (size_t)r->n * sizeof(double));
	return r;
}

const char *
ref_fail(RefCtx *cx, const char *fmt, ...)
{
	va_list ap;

	va_start(ap, fmt);
	cx->error = arena_vprintf(cx->arena, fmt, ap);
	va_end(ap);
	return cx->error;
}

/* ---------------------------------------------------------------- number formats */
/* Nearest value with `bits` bits of significand, least exponent emin (of the unit 1.xxx), ties to even. */
static double
round_bits(double x, int bits, int emin, double largest)
{
	int e;
	double unit, r;

	if (x == 0 || !isfinite(x))
		return x;
	e = ilogb(x);
	unit = ldexp(1, (e < emin ? emin : e) - (bits - 1));
	r = rint(x / unit) * unit;
	return fabs(r) > largest ? copysign(INFINITY, x) : r;
}

static double
ref_f16(double x)
{
	return round_bits(x, 11, -14, 65504);
}

static double
ref_bf16(double x)
{
	return round_bits(x, 8, -126, 0x1.fep127);
}

static double
wrap(double x, int bits, bool is_signed)
{
	uint64_t u;

	if (x != x)
		return 0;
	if (bits == 64 && x == 0x1p63)
		return x; /* a cast's saturated maximum, see as_i64 */
	if (x >= 0x1p63 || x < -0x1p63)
		x = fmod(x, 0x1p64), x = x >= 0x1p63 ? x - 0x1p64 : x < -0x1p63 ? x + 0x1p64 : x;
	u = (uint64_t)(int64_t)x;
	if (bits < 64)
		u &= (1ull << bits) - 1;
	if (is_signed && bits < 64 && u >> (bits - 1))
		u |= ~0ull << bits;
	return is_signed ? (double)(int64_t)u : (double)u;
}

/* To a value of dtype t; integers wrap. */
static double
ref_round(DType t, double x, bool to_float)
{
	switch (t) {
	case DT_f32:
		return to_float ? (double)(float)x : x;
	case DT_f16:
		return ref_f16(x);
	case DT_bf16:
		return ref_bf16(x);
	case DT_i64:
		return wrap(x, 64, true);
	case DT_i32:
		return wrap(x, 32, true);
	case DT_u8:
		return wrap(x, 8, false);
	case DT_bool:
		return x != 0;
	default:
		return x;
	}
}

static double
saturate(double x, double low, double high)
{
	return x != x ? 0 : x <= low ? low : x >= high ? high : trunc(x);
}

/* cast's rule. */
static double
ref_convert(DType from, DType to, double x, bool to_float)
{
	if (dtype_is_float(from) && dtype_is_int(to))
		return to == DT_u8 ? saturate(x, 0, 255) : to == DT_i32 ? saturate(x, INT32_MIN, INT32_MAX) : saturate(x, -0x1p63, 0x1p63);
	return ref_round(to, x, to_float);
}

/* A double that stands for an i64: 2^63 itself is only the saturated maximum. */
static int64_t
as_i64(double x)
{
	return x >= 0x1p63 ? INT64_MAX : x < -0x1p63 ? INT64_MIN : (int64_t)x;
}

static double
f16_value(uint16_t h)
{
	int e = h >> 10 & 31, m = h & 1023;
	double v = e == 31 ? (m ? NAN : INFINITY) : e ? ldexp(1024 + m, e - 25) : ldexp(m, -24);

	return h >> 15 ? -v : v;
}

static uint16_t
f16_bits(double x)
{
	uint16_t sign = signbit(x) ? 0x8000 : 0;
	double r = fabs(ref_f16(x));

	if (r != r)
		return sign | 0x7e00;
	if (r > 65504)
		return sign | 0x7c00;
	if (r < 0x1p-14)
		return sign | (uint16_t)(r * 0x1p24);
	return sign | (uint16_t)(((ilogb(r) + 15) << 10) + ((int)(r / ldexp(1, ilogb(r) - 10)) - 1024));
}

void
ref_bytes_in(DType t, const void *bytes, int64_t n, double *f)
{
	const uint8_t *p = bytes;

	for (int64_t i = 0; i < n; i++, p += dtype_info[t].bytes) {
		union { float f32; double f64; int64_t i64; int32_t i32; uint16_t u16; uint32_t u32; } v;

		memcpy(&v, p, (size_t)dtype_info[t].bytes);
		switch (t) {
		case DT_f64: f[i] = v.f64; break;
		case DT_f32: f[i] = (double)v.f32; break;
		case DT_f16: f[i] = f16_value(v.u16); break;
		case DT_bf16: v.u32 = (uint32_t)v.u16 << 16; f[i] = (double)v.f32; break;
		case DT_i64: f[i] = (double)v.i64; break;
		case DT_i32: f[i] = v.i32; break;
		default: f[i] = *p; break;
		}
	}
}

void
ref_bytes_out(DType t, const double *f, int64_t n, void *bytes)
{
	uint8_t *p = bytes;

	for (int64_t i = 0; i < n; i++, p += dtype_info[t].bytes) {
		union { float f32; double f64; int64_t i64; int32_t i32; uint16_t u16; uint32_t u32; } v = {.f64 = 0};

		switch (t) {
		case DT_f64: v.f64 = f[i]; break;
		case DT_f32: v.f32 = (float)f[i]; break;
		case DT_f16: v.u16 = f16_bits(f[i]); break;
		case DT_bf16: v.f32 = (float)ref_bf16(f[i]); v.u16 = (uint16_t)(v.u32 >> 16); break;
		case DT_i64: v.i64 = as_i64(f[i]); break;
		case DT_i32: v.i32 = (int32_t)as_i64(f[i]); break;
		default: v.i32 = 0; v.u16 = (uint16_t)(uint8_t)as_i64(f[i]); break;
		}
		memcpy(p, &v, (size_t)dtype_info[t].bytes);
	}
}

/* ---------------------------------------------------------------- running */
const char *
ref_op(RefCtx *cx, const Op *op)
{
	const OpInfo *info = &op_info[op->kind];
	RefRule *rule = info->ew >= 0 ? ref_ew : info->red >= 0 ? ref_red : info->ref;
	const char *error;

	if (!rule)
		return ref_fail(cx, "%s has no reference evaluation", info->name);
	if ((error = rule(cx, op)))
		return error;
	for (int k = 0; k < op->nout; k++) {
		RefTensor *r = &cx->val[op->out[k].id];
		DType t = (DType)r->type.dtype;

		if (t == DT_f64 || (t == DT_f32 && !cx->round))
			continue;
		if (t == DT_f32)
			for (int64_t i = 0; i < r->n; i++)
				r->f[i] = (double)(float)r->f[i];
		else
			for (int64_t i = 0; i < r->n; i++)
				r->f[i] = ref_round(t, r->f[i], cx->round);
	}
	return NULL;
}

/* ---------------------------------------------------------------- state */
static RefTensor *
state_tensor(RefCtx *cx, const Op *op)
{
	Module *m = cx->g->module;
	const State *s = module_state(m, attr_str(op, A_state));

	return s && cx->state ? &cx->state[s - m->state.at] : NULL;
}

const char *
ref_load(RefCtx *cx, const Op *op)
{
	const RefTensor *s = state_tensor(cx, op);
	RefTensor *r = ref_out(cx, op, 0);

	if (!s || !s->f)
		return ref_fail(cx, "state \"%s\" has no value", attr_str(op, A_state));
	memcpy(r->f, s->f, (size_t)r->n * sizeof(double));
	return NULL;
}

const char *
ref_store(RefCtx *cx, const Op *op)
{
	RefTensor *s = state_tensor(cx, op);
	const RefTensor *x = ref_in(cx, op, 0);

	if (!s || !s->f || s->n != x->n)
		return ref_fail(cx, "state \"%s\" has no place for %lld elements", attr_str(op, A_state), (long long)x->n);
	memcpy(s->f, x->f, (size_t)x->n * sizeof(double));
	return NULL;
}

/* ---------------------------------------------------------------- constants, copies, casts, checks */
const char *
ref_full(RefCtx *cx, const Op *op)
{
	RefTensor *r = ref_out(cx, op, 0);
	double v = attr_num(op, A_value);

	for (int64_t i = 0; i < r->n; i++)
		r->f[i] = v;
	return NULL;
}

const char *
ref_iota(RefCtx *cx, const Op *op)
{
	RefTensor *r = ref_out(cx, op, 0);
	int64_t start = attr_int(op, A_start), step = attr_int(op, A_step), ax = attr_int(op, A_axis), ext[MAX_RANK], inner = 1;

	ref_extents(cx, &r->type, ext);
	for (int i = (int)ax + 1; i < r->type.rank; i++)
		inner *= ext[i];
	for (int64_t i = 0; i < r->n; i++)
		r->f[i] = (double)(int64_t)((uint64_t)start + (uint64_t)step * (uint64_t)(i / inner % ext[ax]));
	return NULL;
}

const char *
ref_random(RefCtx *cx, const Op *op)
{
	RefTensor *r = ref_out(cx, op, 0);
	uint64_t seed = (uint64_t)as_i64(ref_in(cx, op, 0)->f[0]), step = (uint64_t)as_i64(ref_in(cx, op, 1)->f[0]);
	uint32_t stream = philox_stream(attr_str(op, A_stream)), w[4];
	bool raw = dtype_is_int((DType)r->type.dtype);

	for (int64_t j = 0; j < r->n; j++) {
		if (j % 4 == 0)
			philox_group(seed, stream, step, (uint64_t)j / 4, w);
		r->f[j] = raw ? (double)w[j % 4] : philox_unit(w[j % 4]);
	}
	return NULL;
}

/* Also reshape: the same elements in row-major order. */
const char *
ref_copy(RefCtx *cx, const Op *op)
{
	const RefTensor *x = ref_in(cx, op, 0);
	RefTensor *r = ref_out(cx, op, 0);

	if (x->n != r->n)
		return ref_fail(cx, "%s: a batch of %lld has %lld elements here and cannot become %lld", op_info[op->kind].name,
		                (long long)cx->n, (long long)x->n, (long long)r->n);
	memcpy(r->f, x->f, (size_t)r->n * sizeof(double));
	return NULL;
}

const char *
ref_cast(RefCtx *cx, const Op *op)
{
	const RefTensor *x = ref_in(cx, op, 0);
	RefTensor *r = ref_out(cx, op, 0);
	DType from = (DType)x->type.dtype, to = (DType)r->type.dtype;

	for (int64_t i = 0; i < r->n; i++)
		r->f[i] = ref_convert(from, to, x->f[i], cx->round);
	return NULL;
}

const char *
ref_check(RefCtx *cx, const Op *op)
{
	const RefTensor *x = ref_in(cx, op, 0);
	int64_t limit = ref_extent(cx, check_limit(op)), ignore = attr_int(op, A_ignore);
	bool has_ignore = attr_bool(op, A_has_ignore);

	for (int64_t i = 0; i < x->n; i++)
		if (!(x->f[i] >= 0 && x->f[i] < (double)limit) && !(has_ignore && x->f[i] == (double)ignore))
			return ref_fail(cx, "%s %lld is outside 0..%lld", attr_str(op, A_what), (long long)as_i64(x->f[i]), (long long)limit - 1);
	return NULL;
}
