/* ref.c: the reference evaluator's core: running one op or one graph, number formats, state, casts, constants, random
 * numbers.
 *
 * In: RefCtx with input and state tensors.  Out: every result, in double rounded to its dtype (f32 to float only if
 * cx->round) or in 64-bit integers wrapped to theirs. This is what all targets are held to, so it is plain and exact.
 * Stores happen after all other ops, so that every load of a step sees the old value; a failed check leaves the state
 * alone. */
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
	if (!ref_cells(r))
		ref_point(r, arena_array(cx->arena, double, r->n));
	return r;
}

void
ref_point(RefTensor *t, void *cells)
{
	bool integer = dtype_is_int((DType)t->type.dtype);

	t->f = integer ? NULL : cells;
	t->i = integer ? cells : NULL;
}

RefTensor *
ref_zeros(RefCtx *cx, const Op *op, int k)
{
	RefTensor *r = ref_out(cx, op, k);

	memset(ref_cells(r), 0, (size_t)r->n * REF_CELL);
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

static int64_t
wrap(DType t, int64_t x)
{
	switch (t) {
	case DT_i32:
		return (int32_t)(uint32_t)(uint64_t)x;
	case DT_u8:
		return (uint8_t)(uint64_t)x;
	case DT_i16:
		return (int16_t)(uint16_t)(uint64_t)x;
	case DT_u16:
		return (uint16_t)(uint64_t)x;
	case DT_i8:
		return (int8_t)(uint8_t)(uint64_t)x;
	default:
		return x;
	}
}

/* To a number of the floating dtype t, or a condition. */
double
ref_round(DType t, double x, bool to_float)
{
	switch (t) {
	case DT_f32:
		return to_float ? (double)(float)x : x;
	case DT_f16:
		return ref_f16(x);
	case DT_bf16:
		return ref_bf16(x);
	case DT_bool:
		return x != 0;
	default:
		return x;
	}
}

/* Towards 0; NaN to 0. */
static int64_t
saturate(DType t, double x)
{
	return x != x ? 0 : dtype_saturate(t, x <= -0x1p63 ? INT64_MIN : x >= 0x1p63 ? INT64_MAX : (int64_t)x);
}

double
ref_get(const RefTensor *t, int64_t e)
{
	return t->i ? (double)t->i[e] : t->f[e];
}

void
ref_set(RefTensor *t, int64_t e, double x)
{
	if (t->i)
		t->i[e] = saturate((DType)t->type.dtype, x);
	else
		t->f[e] = x;
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
ref_bytes_in(RefTensor *t, const void *bytes)
{
	DType dt = (DType)t->type.dtype;
	const uint8_t *p = bytes;

	for (int64_t e = 0; e < t->n; e++, p += dtype_info[dt].bytes) {
		union { float f32; double f64; int64_t i64; int32_t i32; uint16_t u16; uint32_t u32; } v;

		memcpy(&v, p, (size_t)dtype_info[dt].bytes);
		switch (dt) {
		case DT_f64: t->f[e] = v.f64; break;
		case DT_f32: t->f[e] = (double)v.f32; break;
		case DT_f16: t->f[e] = f16_value(v.u16); break;
		case DT_bf16: v.u32 = (uint32_t)v.u16 << 16; t->f[e] = (double)v.f32; break;
		case DT_i64: t->i[e] = v.i64; break;
		case DT_i32: t->i[e] = v.i32; break;
		case DT_u8: t->i[e] = *p; break;
		case DT_i16: t->i[e] = (int16_t)v.u16; break;
		case DT_u16: t->i[e] = v.u16; break;
		case DT_i8: t->i[e] = (int8_t)*p; break;
		default: t->f[e] = *p; break;
		}
	}
}

void
ref_bytes_out(const RefTensor *t, void *bytes)
{
	DType dt = (DType)t->type.dtype;
	uint8_t *p = bytes;

	for (int64_t e = 0; e < t->n; e++, p += dtype_info[dt].bytes) {
		union {
			float f32; double f64; int64_t i64; int32_t i32; uint16_t u16; uint32_t u32; uint8_t u8;
		} v = {.f64 = 0};

		switch (dt) {
		case DT_f64: v.f64 = t->f[e]; break;
		case DT_f32: v.f32 = (float)t->f[e]; break;
		case DT_f16: v.u16 = f16_bits(t->f[e]); break;
		case DT_bf16: v.f32 = (float)ref_bf16(t->f[e]); v.u16 = (uint16_t)(v.u32 >> 16); break;
		case DT_i64: v.i64 = t->i[e]; break;
		case DT_i32: v.i32 = (int32_t)t->i[e]; break;
		case DT_u8: case DT_i8: v.u8 = (uint8_t)t->i[e]; break;
		case DT_i16: case DT_u16: v.u16 = (uint16_t)t->i[e]; break;
		default: v.u8 = t->f[e] != 0; break;
		}
		memcpy(p, &v, (size_t)dtype_info[dt].bytes);
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

		if (t == DT_f64 || t == DT_i64 || (t == DT_f32 && !cx->round))
			continue;
		if (r->i)
			for (int64_t i = 0; i < r->n; i++)
				r->i[i] = wrap(t, r->i[i]);
		else if (t == DT_f32)
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

	if (!s || !ref_cells(s))
		return ref_fail(cx, "state \"%s\" has no value", attr_str(op, A_state));
	memcpy(ref_cells(r), ref_cells(s), (size_t)r->n * REF_CELL);
	return NULL;
}

const char *
ref_store(RefCtx *cx, const Op *op)
{
	RefTensor *s = state_tensor(cx, op);
	const RefTensor *x = ref_in(cx, op, 0);

	if (!s || !ref_cells(s) || (type_marked(&s->type) ? s->n < x->n : s->n != x->n))
		return ref_fail(cx, "state \"%s\" has no place for %lld elements", attr_str(op, A_state),
		                (long long)x->n);
	memcpy(ref_cells(s), ref_cells(x), (size_t)x->n * REF_CELL);
	return NULL;
}

/* ---------------------------------------------------------------- constants, copies, casts, checks */
int64_t
ref_attr(DType t, const Attr *a)
{
	return a->is_int ? dtype_saturate(t, a->i) : saturate(t, a->f);
}

void
ref_fill(RefTensor *r, const Op *op)
{
	const Attr *v = attr_get(op, A_value);

	for (int64_t i = 0; i < r->n; i++)
		if (r->i)
			r->i[i] = ref_attr((DType)r->type.dtype, v);
		else
			r->f[i] = attr_num(op, A_value);
}

const char *
ref_full(RefCtx *cx, const Op *op)
{
	ref_fill(ref_out(cx, op, 0), op);
	return NULL;
}

const char *
ref_iota(RefCtx *cx, const Op *op)
{
	RefTensor *r = ref_out(cx, op, 0);
	int64_t start = attr_int(op, A_start), step = attr_int(op, A_step), ax = attr_int(op, A_axis), ext[MAX_RANK],
	        inner = 1;

	ref_extents(cx, &r->type, ext);
	for (int i = (int)ax + 1; i < r->type.rank; i++)
		inner *= ext[i];
	for (int64_t i = 0; i < r->n; i++) {
		int64_t v = (int64_t)((uint64_t)start + (uint64_t)step * (uint64_t)(i / inner % ext[ax]));

		if (r->i)
			r->i[i] = v;
		else
			r->f[i] = (double)v;
	}
	return NULL;
}

const char *
ref_random(RefCtx *cx, const Op *op)
{
	RefTensor *r = ref_out(cx, op, 0);
	uint64_t seed = (uint64_t)ref_in(cx, op, 0)->i[0], step = (uint64_t)ref_in(cx, op, 1)->i[0];
	uint32_t stream = philox_stream(attr_str(op, A_stream)), w[4];
	uint64_t first = (step >> 32) * (uint64_t)attr_int(op, A_per), at;

	for (int64_t j = 0; j < r->n; j++) {
		at = first + (uint64_t)j;
		if (at % 4 == 0 || j == 0)
			philox_group(seed, stream, step, at / 4, w);
		if (r->i)
			r->i[j] = w[at % 4];
		else
			r->f[j] = philox_unit(w[at % 4]);
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
		return ref_fail(cx, "%s: a batch of %lld has %lld elements here and cannot become %lld",
		                op_info[op->kind].name, (long long)cx->n, (long long)x->n, (long long)r->n);
	memcpy(ref_cells(r), ref_cells(x), (size_t)r->n * REF_CELL);
	return NULL;
}

const char *
ref_cast(RefCtx *cx, const Op *op)
{
	const RefTensor *x = ref_in(cx, op, 0);
	RefTensor *r = ref_out(cx, op, 0);
	DType to = (DType)r->type.dtype;

	for (int64_t i = 0; i < r->n; i++)
		if (x->i && r->i)
			r->i[i] = x->i[i];
		else if (r->i)
			r->i[i] = saturate(to, x->f[i]);
		else if (x->i) /* rounded once: by way of double an i64 would be rounded twice */
			r->f[i] = to == DT_bool ? x->i[i] != 0
				: to == DT_f32 && cx->round ? (double)(float)x->i[i] : (double)x->i[i];
		else
			r->f[i] = x->f[i];
	return NULL;
}

const char *
ref_check(RefCtx *cx, const Op *op)
{
	const RefTensor *x = ref_in(cx, op, 0);
	int64_t limit = ref_extent(cx, check_limit(op)), ignore = attr_int(op, A_ignore);
	bool has_ignore = attr_bool(op, A_has_ignore);

	for (int64_t i = 0; i < x->n; i++)
		if (!(x->i[i] >= 0 && x->i[i] < limit) && !(has_ignore && x->i[i] == ignore))
			return ref_fail(cx, "%s %lld is outside 0..%lld", attr_str(op, A_what), (long long)x->i[i],
			                (long long)limit - 1);
	return NULL;
}
