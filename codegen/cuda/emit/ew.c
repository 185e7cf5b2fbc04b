/* ew.c: arithmetic as text: the expressions of ew.def, casts, random numbers.
 *
 * In: cells of one dtype, or conditions (bool).   Out: a cell, whose text stands in parentheses where it has an
 * operator. f16 and bf16 compute in float and are rounded when stored or cast. Integers wrap by way of the prelude's
 * functions. The compiler joins no product and sum on its own
 * (--fmad=false): where one is wanted it is written. */
#include "../cuda.h"
#include <math.h>
#include <string.h>

const char *
cu_suffix(DType t)
{
	static const char *const name[DT_COUNT] = {
	        [DT_f64] = "f64", [DT_f32] = "f32", [DT_f16] = "f32", [DT_bf16] = "f32",
	        [DT_i64] = "i64", [DT_i32] = "i32", [DT_u8] = "u8",   [DT_bool] = "bool",
	        [DT_i16] = "i16", [DT_u16] = "u16", [DT_i8] = "i8"};

	return name[t];
}

static bool is_f(uint8_t dt) { return dtype_is_float((DType)dt); }

Cell
cu_cell_number(Cuda *c, DType t, double x)
{
	const char *s;

	if (!dtype_is_float(t)) {
		long long q = x >= 0x1p63 ? INT64_MAX : x <= -0x1p63 ? INT64_MIN : (long long)x;

		s = t == DT_bool  ? (x != 0 ? "true" : "false")
		    : t == DT_i64 ? arena_printf(c->a, "(long long)%lldull", q)
		                  : arena_printf(c->a, "%d", (int)q);
		if (t == DT_i64 && q < 0)
			s = arena_printf(c->a, "(long long)0x%llxull", (unsigned long long)q);
		return (Cell){s, (uint8_t)t};
	}
	bool wide = t == DT_f64;

	if (!isfinite(x))
		s = wide     ? (x != x  ? "NAN_f64"
		                : x > 0 ? "INF_f64"
		                        : "(-INF_f64)")
		    : x != x ? "NAN_f32"
		    : x > 0  ? "INF_f32"
		             : "(-INF_f32)";
	else {
		s = wide ? arena_printf(c->a, "%.17g", x) : arena_printf(c->a, "%.9g", (double)(float)x);
		if (!wide && !isfinite((float)x))
			return cu_cell_number(c, t, x > 0 ? INFINITY : -INFINITY);
		s = arena_printf(c->a, "%s%s%s", s, strpbrk(s, ".e") ? "" : ".0", wide ? "" : "f");
		if (x < 0)
			s = arena_printf(c->a, "(%s)", s);
	}
	return (Cell){s, (uint8_t)t};
}

Cell
cu_cell_attr(Cuda *c, DType t, const Attr *a)
{
	int64_t i = a->is_int && dtype_is_int(t) ? dtype_saturate(t, a->i) : 0;

	if (!a->is_int || !dtype_is_int(t))
		return cu_cell_number(c, t, a->is_int ? (double)a->i : a->f);
	if (t == DT_i64)
		return (Cell){arena_printf(c->a, "(long long)0x%llxull", (unsigned long long)i), DT_i64};
	if (t == DT_i32)
		return (Cell){arena_printf(c->a, "(int)0x%xu", (unsigned)i), DT_i32};
	return (Cell){arena_printf(c->a, "(%s)%d", cu_c_type(t), (int)i), (uint8_t)t};
}

Cell
cu_cell_lowest(DType t, bool highest)
{
	static const char *const low[DT_COUNT] = {[DT_f64] = "(-INF_f64)",
	                                          [DT_f32] = "(-INF_f32)",
	                                          [DT_f16] = "(-INF_f32)",
	                                          [DT_bf16] = "(-INF_f32)",
	                                          [DT_i64] = "(long long)0x8000000000000000ull",
	                                          [DT_i32] = "(int)0x80000000u",
	                                          [DT_i16] = "(short)-32768",
	                                          [DT_u16] = "0",
	                                          [DT_i8] = "(signed char)-128",
	                                          [DT_u8] = "0",
	                                          [DT_bool] = "false"};
	static const char *const high[DT_COUNT] = {[DT_f64] = "INF_f64",
	                                           [DT_f32] = "INF_f32",
	                                           [DT_f16] = "INF_f32",
	                                           [DT_bf16] = "INF_f32",
	                                           [DT_i64] = "0x7fffffffffffffffll",
	                                           [DT_i32] = "0x7fffffff",
	                                           [DT_i16] = "32767",
	                                           [DT_u16] = "65535",
	                                           [DT_i8] = "127",
	                                           [DT_u8] = "255",
	                                           [DT_bool] = "true"};

	return (Cell){highest ? high[t] : low[t], (uint8_t)t};
}

Cell
cu_cell_cast(Cuda *c, Cell x, DType to)
{
	DType from = (DType)x.dt;
	const char *s = x.v;

	if (from == to)
		return x;
	if (to == DT_bool)
		s = arena_printf(c->a, "(%s != 0)", s);
	else if (dtype_is_float(from) && !dtype_is_float(to))
		s = arena_printf(c->a, "%s_to_%s(%s)", cu_suffix(from), cu_suffix(to), s);
	else if (strcmp(cu_c_type(from), cu_c_type(to)))
		s = arena_printf(c->a, "(%s)(%s)", cu_c_type(to), s);
	if (to == DT_f16 || to == DT_bf16)
		s = arena_printf(c->a, "%s_value(%s_bits(%s))", dtype_info[to].name, dtype_info[to].name, s);
	return (Cell){s, (uint8_t)to};
}

Cell
cu_cell_rounded(Cuda *c, Cell x)
{
	if (x.dt == DT_f16 || x.dt == DT_bf16)
		x.v = arena_printf(c->a, "%s_value(%s_bits(%s))", dtype_info[x.dt].name, dtype_info[x.dt].name, x.v);
	return x;
}

static Cell
as_num(Cuda *c, Cell x, DType dt)
{
	return x.dt == dt ? x : cu_cell_cast(c, x, dt);
}

static Cell
call(Cuda *c, const char *name, Cell a, const Cell *b)
{
	return (Cell){b ? arena_printf(c->a, "%s_%s(%s, %s)", name, cu_suffix((DType)a.dt), a.v, b->v)
	                : arena_printf(c->a, "%s_%s(%s)", name, cu_suffix((DType)a.dt), a.v),
	              a.dt};
}

static Cell
infix(Cuda *c, Cell a, const char *sign, Cell b, DType dt)
{
	return (Cell){arena_printf(c->a, "(%s %s %s)", a.v, sign, b.v), (uint8_t)dt};
}

Cell
cu_cell_bin(Cuda *c, ExprKind k, Cell a, Cell b)
{
	static const char *const compare[] = {"==", "!=", "<", "<=", ">", ">="};

	if (k == EX_AND || k == EX_OR)
		return infix(c, as_num(c, a, DT_bool), k == EX_AND ? "&&" : "||", as_num(c, b, DT_bool), DT_bool);
	if (a.dt != b.dt) {
		if (a.dt == DT_bool)
			a = as_num(c, a, (DType)b.dt);
		else
			b = as_num(c, b, (DType)a.dt);
	}
	bool f = is_f(a.dt);
	DType dt = (DType)a.dt;

	switch (k) {
	case EX_ADD: return f ? infix(c, a, "+", b, dt) : call(c, "add", a, &b);
	case EX_SUB: return f ? infix(c, a, "-", b, dt) : call(c, "sub", a, &b);
	case EX_MUL: return f ? infix(c, a, "*", b, dt) : call(c, "mul", a, &b);
	case EX_DIV: return f ? infix(c, a, "/", b, dt) : call(c, "idiv", a, &b);
	case EX_IDIV: return call(c, "idiv", a, &b);
	case EX_IMOD: return call(c, "imod", a, &b);
	case EX_EQ:
	case EX_NE:
	case EX_LT:
	case EX_LE:
	case EX_GT:
	case EX_GE:
		return infix(c, a, compare[k - EX_EQ], b, DT_bool);
	case EX_FLOORMOD: return call(c, "floormod", a, &b);
	case EX_FMIN: return call(c, "min", a, &b);
	case EX_FMAX: return call(c, "max", a, &b);
	case EX_POW: return (Cell){arena_printf(c->a, dt == DT_f64 ? "pow(%s, %s)" : "powf(%s, %s)", a.v, b.v), a.dt};
	default: bug("expression kind %d", (int)k);
	}
}

Cell
cu_cell_fma(Cuda *c, Cell a, Cell b, Cell s)
{
	if (!is_f(s.dt))
		return cu_cell_bin(c, EX_ADD, s, cu_cell_bin(c, EX_MUL, a, b));
	return (Cell){arena_printf(c->a, s.dt == DT_f64 ? "fma(%s, %s, %s)" : "fmaf(%s, %s, %s)", a.v, b.v, s.v), s.dt};
}

static Cell
function(Cuda *c, ExprKind k, Cell x)
{
	static const char *const name[] = {"exp", "expm1", "log", "log1p", "sqrt", "erf", "erfc", "tanh", "sin", "cos",
	                                   "", "", "floor", "ceil", "rint", "fabs"};

	if (!is_f(x.dt))
		return k == EX_FABS ? call(c, "abs", x, NULL) : x;
	return (Cell){arena_printf(c->a, "%s%s(%s)", name[k - EX_EXP], x.dt == DT_f64 ? "" : "f", x.v), x.dt};
}

Cell
cu_cell_expr(Cuda *c, const Expr *x, const Cell *var, DType dt)
{
	Cell a, b, t;

	switch (x->kind) {
	case EX_NUM: return cu_cell_number(c, dt, x->num);
	case EX_VAR: return var[x->index];
	case EX_SELECT:
		t = as_num(c, cu_cell_expr(c, x->a, var, dt), DT_bool);
		a = cu_cell_expr(c, x->b, var, dt);
		b = cu_cell_expr(c, x->c, var, dt);
		if (a.dt != b.dt) {
			a = as_num(c, a, a.dt == DT_bool ? (DType)b.dt : (DType)a.dt);
			b = as_num(c, b, (DType)a.dt);
		}
		return (Cell){arena_printf(c->a, "(%s ? %s : %s)", t.v, a.v, b.v), a.dt};
	case EX_NEG:
		a = cu_cell_expr(c, x->a, var, dt);
		a = a.dt == DT_bool ? as_num(c, a, dt) : a;
		return is_f(a.dt) ? (Cell){arena_printf(c->a, "(-%s)", a.v), a.dt} : call(c, "neg", a, NULL);
	case EX_NOT:
		a = as_num(c, cu_cell_expr(c, x->a, var, dt), DT_bool);
		return (Cell){arena_printf(c->a, "(!%s)", a.v), DT_bool};
	default: break;
	}
	a = cu_cell_expr(c, x->a, var, dt);
	if (!x->b)
		return function(c, x->kind, as_num(c, a, dt));
	b = cu_cell_expr(c, x->b, var, dt);
	/* a function's operands are numbers; of comparisons of conditions as they are */
	if (x->kind == EX_POW || x->kind == EX_FLOORMOD)
		return cu_cell_bin(c, x->kind, as_num(c, a, dt), as_num(c, b, dt));
	if (a.dt == DT_bool && b.dt == DT_bool &&
	    (x->kind == EX_ADD || x->kind == EX_SUB || x->kind == EX_MUL || x->kind >= EX_EXP)) {
		a = as_num(c, a, dt);
		b = as_num(c, b, dt);
	}
	return cu_cell_bin(c, x->kind, a, b);
}

Cell
cu_cell_ew(Cuda *c, const Op *op, const Cell *in)
{
	const OpInfo *info = &op_info[op->kind];
	DType out = (DType)val_type(c->g, op->out[0])->dtype, dt = out;
	Cell var[7] = {{0}};

	for (int k = 0; k < op->nin; k++) {
		var[strchr(EXPR_VARS, info->operands[k]) - EXPR_VARS] = in[k];
		if (in[k].dt != DT_bool)
			dt = (DType)in[k].dt; /* of comparisons the operands' type is the one that literals take */
	}
	for (int k = 0; k < op->nattr && k < 2; k++)
		var[5 + k] = cu_cell_attr(c, dt, &op->attr[k]);
	return cu_cell_let(c, as_num(c, cu_cell_expr(c, info->expr, var, dt), out).v, out);
}

Cell
cu_cell_apply(Cuda *c, OpKind k, Cell x)
{
	const Cell var[7] = {x};

	return cu_cell_let(c, cu_cell_expr(c, op_info[k].expr, var, (DType)x.dt).v, (DType)x.dt);
}

/* ---------------------------------------------------------------- random numbers: Philox4x32-10, in the prelude */
uint32_t
cu_stream_number(const char *s)
{
	uint32_t h = 0x811c9dc5u; /* FNV-1a */

	for (; *s; s++)
		h = (h ^ (uint8_t)*s) * 0x01000193u;
	return h;
}

Cell
cu_cell_random(Cuda *c, const Op *op, Ix at, Cell seed, Cell step)
{
	DType dt = (DType)val_type(c->g, op->out[0])->dtype;
	const char *word = arena_printf(c->a, "philox((unsigned long long)(%s), (unsigned)%s, (unsigned)%s, 0x%xu)", at,
	                                seed.v, step.v, (unsigned)cu_stream_number(attr_str(op, A_stream)));

	if (!dtype_is_float(dt))
		return cu_cell_let(c, cu_cell_cast(c, (Cell){arena_printf(c->a, "(long long)%s", word), DT_i64}, dt).v,
		                   dt);
	DType comp = dt == DT_f64 ? DT_f64 : DT_f32;
	Cell f = {arena_printf(c->a, "((%s)(%s >> 8) * %s)", cu_c_type(comp), word,
	                       comp == DT_f64 ? "5.9604644775390625e-08" : "5.9604644775390625e-08f"),
	          (uint8_t)comp};

	return cu_cell_let(c, cu_cell_cast(c, f, dt).v, dt);
}
