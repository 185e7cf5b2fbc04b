/* ew.c: elementwise arithmetic: the expressions of ew.def, casts, Philox.
 *
 * In: cells of one dtype (or bool conditions).   Out: a cell. Numbers stay scalar while all operands are; f16 and bf16
 * compute in float. Comparisons give i1 cells of dtype bool; where an expression uses one as a number it becomes 0 or
 * 1. Integers wrap; u8 is unsigned; division by 0 gives 0. */
#include "../cpu.h"
#include <string.h>

static bool is_f(uint8_t dt) { return dtype_is_float((DType)dt); }

static void
match(Emit *e, Cell *a, Cell *b)
{
	if (a->vec != b->vec) {
		a->v = cell_vec(e, *a);
		b->v = cell_vec(e, *b);
		a->vec = b->vec = true;
	}
}

Cell
cell_cast(Emit *e, Cell c, DType to)
{
	LLVMBuilderRef b = at1(e, c.v);
	DType from = (DType)c.dt;
	T t = ctype_v(e, to, c.vec);
	bool uns = dtype_is_unsigned(from);
	V v = c.v;

	if (from == to)
		return c;
	if (to == DT_bool) {
		V zero = LLVMConstNull(LLVMTypeOf(v));

		v = dtype_is_float(from) ? LLVMBuildFCmp(b, LLVMRealUNE, v, zero, "")
		                         : LLVMBuildICmp(b, LLVMIntNE, v, zero, "");
	} else if (dtype_is_float(from) && dtype_is_float(to)) {
		if (from == DT_f64)
			v = LLVMBuildFPTrunc(b, v, t, "");
		else if (to == DT_f64)
			v = LLVMBuildFPExt(b, v, t, "");
		if (to == DT_f16 || to == DT_bf16) /* kept as a float that is one of its numbers */
			v = round_half(e, v, to, c.vec);
	} else if (dtype_is_float(from)) {
		T over[2] = {t, LLVMTypeOf(v)};

		v = intrinsic(e, b, dtype_is_unsigned(to) ? "llvm.fptoui.sat" : "llvm.fptosi.sat", over, 2, (V[]){v},
		              1);
	} else if (dtype_is_float(to)) {
		v = uns ? LLVMBuildUIToFP(b, v, t, "") : LLVMBuildSIToFP(b, v, t, "");
	} else {
		v = LLVMBuildIntCast2(b, v, t, !uns, "");
	}
	return cell_of(v, c.vec, to);
}

/* bool cells where arithmetic wants values, values where conditions are wanted */
static Cell
as_cond(Emit *e, Cell c)
{
	return c.dt == DT_bool ? c : cell_cast(e, c, DT_bool);
}

static Cell
as_num(Emit *e, Cell c, DType dt)
{
	return c.dt == dt ? c : cell_cast(e, c, dt);
}

Cell
cell_select(Emit *e, Cell c, Cell a, Cell b)
{
	c = as_cond(e, c);
	if (LLVMIsConstant(c.v) && !c.vec)
		return LLVMConstIntGetZExtValue(c.v) ? a : b;
	if (a.v == b.v && a.vec == b.vec)
		return a;
	match(e, &a, &b);
	if (c.vec && !a.vec) {
		a.v = cell_vec(e, a);
		b.v = cell_vec(e, b);
		a.vec = true;
	}
	/* a scalar condition of vectors: select takes i1 for whole vectors */
	return cell_of(LLVMBuildSelect(at3(e, c.v, a.v, b.v), c.v, a.v, b.v, ""), a.vec, (DType)a.dt);
}

static Cell
cell_not(Emit *e, Cell c)
{
	c = as_cond(e, c);
	return cell_of(LLVMBuildNot(at1(e, c.v), c.v, ""), c.vec, DT_bool);
}

static Cell
cell_neg(Emit *e, Cell c)
{
	LLVMBuilderRef b = at1(e, c.v);

	return cell_of(is_f(c.dt) ? LLVMBuildFNeg(b, c.v, "") : LLVMBuildNeg(b, c.v, ""), c.vec, (DType)c.dt);
}

Cell
cell_fma(Emit *e, Cell a, Cell b, Cell c)
{
	if (!is_f(c.dt))
		return cell_bin(e, EX_ADD, cell_bin(e, EX_MUL, a, b), c);
	match(e, &a, &b);
	match(e, &a, &c);
	match(e, &a, &b);
	return cell_of(llvm_fma(e->l, at3(e, a.v, b.v, c.v), a.v, b.v, c.v), c.vec, (DType)c.dt);
}

static Cell
unary(Emit *e, const char *name, Cell c)
{
	T t = LLVMTypeOf(c.v);

	return cell_of(intrinsic(e, at1(e, c.v), name, &t, 1, (V[]){c.v}, 1), c.vec, (DType)c.dt);
}

static Cell
cell_sqrt(Emit *e, Cell c)
{
	return unary(e, "llvm.sqrt", c);
}

/* The whole part of a / d, towards zero. No vector divides integers: of 32 bits and fewer f64 does, exactly, as a
 * rounded quotient becomes a whole number only if it is one. Divisors known now are LLVM's, which multiplies. */
static V
divide_whole(Emit *e, LLVMBuilderRef at, V a, V d, DType dt)
{
	bool u = dtype_is_unsigned(dt);
	T t = LLVMTypeOf(a), vd;

	if (LLVMGetTypeKind(t) != LLVMVectorTypeKind || LLVMIsConstant(d) || dtype_info[dt].bytes > (u ? 2 : 4))
		return u ? LLVMBuildUDiv(at, a, d, "") : LLVMBuildSDiv(at, a, d, "");
	vd = LLVMVectorType(e->l->f64, LLVMGetVectorSize(t));
	a = u ? LLVMBuildUIToFP(at, a, vd, "") : LLVMBuildSIToFP(at, a, vd, "");
	d = u ? LLVMBuildUIToFP(at, d, vd, "") : LLVMBuildSIToFP(at, d, vd, "");
	return u ? LLVMBuildFPToUI(at, LLVMBuildFDiv(at, a, d, ""), t, "")
	         : LLVMBuildFPToSI(at, LLVMBuildFDiv(at, a, d, ""), t, "");
}

/* Floor division and its remainder (sign of the divisor); by 0 gives 0, and the one quotient that overflows wraps. */
static Cell
int_divide(Emit *e, Cell a, Cell b, bool rem)
{
	LLVMBuilderRef at;
	V zero, one, bad, d, q, r;

	match(e, &a, &b);
	at = at2(e, a.v, b.v);
	zero = LLVMConstNull(LLVMTypeOf(a.v));
	one = LLVMConstInt(ctype(e, (DType)a.dt), 1, 0);
	if (a.vec)
		one = splat(e, one);
	bad = LLVMBuildICmp(at, LLVMIntEQ, b.v, zero, "");
	d = LLVMBuildSelect(at, bad, one, b.v, "");
	if (dtype_is_unsigned((DType)a.dt)) {
		q = divide_whole(e, at, a.v, d, (DType)a.dt);
		r = rem ? LLVMBuildSub(at, a.v, LLVMBuildMul(at, q, d, ""), "") : q;
	} else {
		V minus = LLVMConstAllOnes(LLVMTypeOf(a.v)), by_minus = LLVMBuildICmp(at, LLVMIntEQ, d, minus, "");

		d = LLVMBuildSelect(at, by_minus, one, d, ""); /* x / -1 apart: the smallest number has no negative */
		q = divide_whole(e, at, a.v, d, (DType)a.dt);
		r = LLVMBuildSub(at, a.v, LLVMBuildMul(at, q, d, ""), "");
		V differ = LLVMBuildICmp(at, LLVMIntSLT, LLVMBuildXor(at, r, d, ""), zero, "");
		V fix = LLVMBuildAnd(at, differ, LLVMBuildICmp(at, LLVMIntNE, r, zero, ""), "");

		if (rem) {
			r = LLVMBuildSelect(at, fix, LLVMBuildAdd(at, r, d, ""), r, "");
		} else {
			q = LLVMBuildSelect(at, fix, LLVMBuildSub(at, q, one, ""), q, "");
			r = LLVMBuildSelect(at, by_minus, LLVMBuildNeg(at, a.v, ""), q, "");
		}
	}
	return cell_of(LLVMBuildSelect(at, bad, zero, r, ""), a.vec, (DType)a.dt);
}

Cell
cell_bin(Emit *e, ExprKind k, Cell a, Cell b)
{
	DType dt;
	bool f, u;
	LLVMBuilderRef at;
	V r;

	if (k == EX_AND || k == EX_OR) {
		a = as_cond(e, a);
		b = as_cond(e, b);
		match(e, &a, &b);
		at = at2(e, a.v, b.v);
		r = k == EX_AND ? LLVMBuildAnd(at, a.v, b.v, "") : LLVMBuildOr(at, a.v, b.v, "");
		return cell_of(r, a.vec, DT_bool);
	}
	if (a.dt != b.dt) {
		if (a.dt == DT_bool)
			a = as_num(e, a, (DType)b.dt);
		else
			b = as_num(e, b, (DType)a.dt);
	}
	dt = (DType)a.dt;
	f = is_f(a.dt);
	u = dtype_is_unsigned(dt);
	match(e, &a, &b);
	at = at2(e, a.v, b.v);
	switch (k) {
	case EX_ADD: r = f ? LLVMBuildFAdd(at, a.v, b.v, "") : LLVMBuildAdd(at, a.v, b.v, ""); break;
	case EX_SUB: r = f ? LLVMBuildFSub(at, a.v, b.v, "") : LLVMBuildSub(at, a.v, b.v, ""); break;
	case EX_MUL: r = f ? LLVMBuildFMul(at, a.v, b.v, "") : LLVMBuildMul(at, a.v, b.v, ""); break;
	case EX_DIV:
		if (!f)
			return int_divide(e, a, b, false);
		r = LLVMBuildFDiv(at, a.v, b.v, "");
		break;
	case EX_IDIV: return int_divide(e, a, b, false);
	case EX_IMOD: return int_divide(e, a, b, true);
	case EX_EQ: case EX_NE: case EX_LT: case EX_LE: case EX_GT: case EX_GE: {
		static const LLVMRealPredicate fp[] = {LLVMRealOEQ, LLVMRealUNE, LLVMRealOLT,
		                                       LLVMRealOLE, LLVMRealOGT, LLVMRealOGE};
		static const LLVMIntPredicate sp[] = {LLVMIntEQ,  LLVMIntNE,  LLVMIntSLT,
		                                      LLVMIntSLE, LLVMIntSGT, LLVMIntSGE};
		static const LLVMIntPredicate up[] = {LLVMIntEQ,  LLVMIntNE,  LLVMIntULT,
		                                      LLVMIntULE, LLVMIntUGT, LLVMIntUGE};

		r = f ? LLVMBuildFCmp(at, fp[k - EX_EQ], a.v, b.v, "")
		      : LLVMBuildICmp(at, (u ? up : sp)[k - EX_EQ], a.v, b.v, "");
		return cell_of(r, a.vec, DT_bool);
	}
	case EX_FMIN: case EX_FMAX: {
		V c = f ? LLVMBuildFCmp(at, k == EX_FMIN ? LLVMRealOLT : LLVMRealOGT, a.v, b.v, "")
		    : u ? LLVMBuildICmp(at, k == EX_FMIN ? LLVMIntULT : LLVMIntUGT, a.v, b.v, "")
		    : LLVMBuildICmp(at, k == EX_FMIN ? LLVMIntSLT : LLVMIntSGT, a.v, b.v, "");

		/* a NaN on the left gives the right operand; ew.def keeps NaN from the right */
		r = LLVMBuildSelect(at, c, a.v, b.v, "");
		break;
	}
	case EX_POW: return math_call(e, MF_POW, a, b);
	case EX_FLOORMOD: return math_call(e, MF_FLOORMOD, a, b);
	default: bug("expression kind %d", k);
	}
	return cell_of(r, a.vec, dt);
}

Cell
expr_emit(Emit *e, const Expr *x, const Cell *var, DType dt)
{
	Cell a, b;

	switch (x->kind) {
	case EX_NUM: return cell_const(e, dt, x->num);
	case EX_VAR: return var[x->index];
	case EX_SELECT: {
		Cell c = expr_emit(e, x->a, var, dt);

		a = expr_emit(e, x->b, var, dt);
		b = expr_emit(e, x->c, var, dt);
		if (a.dt != b.dt) {
			a = as_num(e, a, a.dt == DT_bool ? (DType)b.dt : (DType)a.dt);
			b = as_num(e, b, (DType)a.dt);
		}
		return cell_select(e, c, a, b);
	}
	case EX_NEG: {
		Cell c = expr_emit(e, x->a, var, dt);

		return cell_neg(e, c.dt == DT_bool ? as_num(e, c, dt) : c);
	}
	case EX_NOT: return cell_not(e, expr_emit(e, x->a, var, dt));
	case EX_EXP: case EX_EXPM1: case EX_LOG: case EX_LOG1P: case EX_SQRT: case EX_ERF: case EX_ERFC: case EX_TANH:
	case EX_SIN: case EX_COS: case EX_FLOOR: case EX_CEIL:
	case EX_RINT: case EX_FABS:
		a = as_num(e, expr_emit(e, x->a, var, dt), dt);
		switch (x->kind) {
		case EX_EXP: return math_call(e, MF_EXP, a, a);
		case EX_EXPM1: return math_call(e, MF_EXPM1, a, a);
		case EX_LOG: return math_call(e, MF_LOG, a, a);
		case EX_LOG1P: return math_call(e, MF_LOG1P, a, a);
		case EX_ERF: return math_call(e, MF_ERF, a, a);
		case EX_ERFC: return math_call(e, MF_ERFC, a, a);
		case EX_TANH: return math_call(e, MF_TANH, a, a);
		case EX_SIN: return math_call(e, MF_SIN, a, a);
		case EX_COS: return math_call(e, MF_COS, a, a);
		case EX_SQRT: return cell_sqrt(e, a);
		case EX_FLOOR: return cell_of(llvm_round(e->l, at1(e, a.v), "llvm.floor", a.v), a.vec, (DType)a.dt);
		case EX_CEIL: return cell_of(llvm_round(e->l, at1(e, a.v), "llvm.ceil", a.v), a.vec, (DType)a.dt);
		case EX_RINT: return cell_of(llvm_round(e->l, at1(e, a.v), "llvm.rint", a.v), a.vec, (DType)a.dt);
		default:
			if (is_f(a.dt))
				return unary(e, "llvm.fabs", a);
			if (dtype_is_unsigned((DType)a.dt))
				return a;
			return cell_select(e, cell_bin(e, EX_LT, a, cell_const(e, (DType)a.dt, 0)), cell_neg(e, a), a);
		}
	default:
		a = expr_emit(e, x->a, var, dt);
		b = expr_emit(e, x->b, var, dt);
		if (x->kind <= EX_DIV || x->kind >= EX_POW) {
			a = as_num(e, a, a.dt == DT_bool ? dt : (DType)a.dt);
			b = as_num(e, b, b.dt == DT_bool ? dt : (DType)b.dt);
		}
		return cell_bin(e, x->kind, a, b);
	}
}

/* One elementwise op: operands are bound by the letters of op_info.operands, attributes are a and b. */
Cell
ew_emit(Emit *e, const Op *op, const Cell *in)
{
	const OpInfo *info = &op_info[op->kind];
	DType out = (DType)val_type(e->g, op->out[0])->dtype, dt = out;
	Cell var[7] = {0};

	for (int k = 0; k < op->nin; k++) {
		var[strchr(EXPR_VARS, info->operands[k]) - EXPR_VARS] = in[k];
		if (in[k].dt != DT_bool)
			dt = (DType)in[k].dt; /* of comparisons the operands' type is the one that literals take */
	}
	for (int k = 0; k < op->nattr && k < 2; k++)
		var[5 + k] = cell_attr(e, dt, &op->attr[k]);
	Cell r = expr_emit(e, info->expr, var, dt);

	return as_num(e, r, out);
}

/* ---------------------------------------------------------------- Philox4x32-10, Salmon et al. 2011 */
static uint32_t
fnv1a(const char *s)
{
	uint32_t h = 0x811c9dc5u;

	for (; *s; s++)
		h = (h ^ (uint8_t)*s) * 0x01000193u;
	return h;
}

typedef struct Philox { Emit *e; LLVMBuilderRef b; bool vec; T t32, t64; } Philox;

static V
p32(const Philox *p, uint32_t x)
{
	V k = LLVMConstInt(p->e->l->i32, x, 0);

	return p->vec ? splat(p->e, k) : k;
}

static V
p64(const Philox *p, uint64_t x)
{
	V k = LLVMConstInt(p->e->l->i64, x, 0);

	return p->vec ? splat(p->e, k) : k;
}

/* Both halves of x * k. Vectors multiply their even and odd lanes in place, as 64-bit lanes: no widening, no
 * narrowing. */
static void
mul_halves(const Philox *p, V x, uint32_t k, V *high, V *low)
{
	LLVMBuilderRef b = p->b;

	if (!p->vec) {
		V q = LLVMBuildMul(b, LLVMBuildZExt(b, x, p->t64, ""), p64(p, k), "");

		*high = LLVMBuildTrunc(b, LLVMBuildLShr(b, q, p64(p, 32), ""), p->t32, "");
		*low = LLVMBuildTrunc(b, q, p->t32, "");
		return;
	}
	T t = LLVMVectorType(p->e->l->i64, (unsigned)p->e->W / 2);
	V lanes[32], by[3];
	const uint64_t value[3] = {k, 32, 0xffffffffu};

	for (int c = 0; c < 3; c++) {
		for (int i = 0; i < p->e->W / 2; i++)
			lanes[i] = LLVMConstInt(p->e->l->i64, value[c], 0);
		by[c] = LLVMConstVector(lanes, (unsigned)p->e->W / 2);
	}
	V q = LLVMBuildBitCast(b, x, t, "");
	V even = LLVMBuildMul(b, LLVMBuildAnd(b, q, by[2], ""), by[0], ""),
	  odd = LLVMBuildMul(b, LLVMBuildLShr(b, q, by[1], ""), by[0], "");
	V h = LLVMBuildOr(b, LLVMBuildLShr(b, even, by[1], ""), LLVMBuildAnd(b, odd, LLVMBuildNot(b, by[2], ""), ""),
	                  "");
	V l = LLVMBuildOr(b, LLVMBuildAnd(b, even, by[2], ""), LLVMBuildShl(b, odd, by[1], ""), "");

	*high = LLVMBuildBitCast(b, h, p->t32, "");
	*low = LLVMBuildBitCast(b, l, p->t32, "");
}

/* The four words of group (i64) for a key and step. */
static void
philox_words(const Philox *p, V group, V key, V step, uint32_t stream, V c[4])
{
	Emit *e = p->e;
	LLVMBuilderRef b = p->b;
	uint32_t k0 = 0, k1 = stream;

	c[0] = LLVMBuildTrunc(b, group, p->t32, "");
	c[1] = LLVMBuildTrunc(b, LLVMBuildLShr(b, group, p64(p, 32), ""), p->t32, "");
	c[2] = p->vec ? splat(e, step) : step;
	c[3] = p32(p, 0);
	for (int i = 0; i < 10; i++) {
		V h0, l0, h1, l1;

		mul_halves(p, c[0], 0xD2511F53u, &h0, &l0);
		mul_halves(p, c[2], 0xCD9E8D57u, &h1, &l1);
		V kk = LLVMBuildAdd(at1(e, key), key, LLVMConstInt(e->l->i32, k0, 0), "");

		c[0] = LLVMBuildXor(b, LLVMBuildXor(b, h1, c[1], ""), p->vec ? splat(e, kk) : kk, "");
		c[2] = LLVMBuildXor(b, LLVMBuildXor(b, h0, c[3], ""), p32(p, k1), "");
		c[1] = l1;
		c[3] = l0;
		k0 += 0x9E3779B9u;
		k1 += 0xBB67AE85u;
	}
}

static V
lanes_of(Emit *e, LLVMBuilderRef b, V x, V y, const int *from)
{
	V m[64];

	for (int i = 0; i < e->W; i++)
		m[i] = LLVMConstInt(e->l->i32, (unsigned)from[i], 0);
	return LLVMBuildShuffleVector(b, x, y, LLVMConstVector(m, (unsigned)e->W), "");
}

/* The four words of each lane's group; returns the builder that made them. */
static LLVMBuilderRef
lane_words(Emit *e, const Op *op, Ix group, V key, V step, V c[4])
{
	V lanes = ix_vec(e, group);
	Philox p = {.e = e,
	            .b = at3(e, lanes, key, step),
	            .vec = true,
	            .t32 = vec_of(e, e->l->i32),
	            .t64 = vec_of(e, e->l->i64)};

	philox_words(&p, lanes, key, step, fnv1a(attr_str(op, A_stream)), c);
	return p.b;
}

/* Where vectors of neighbours are evaluated together, a multiple of four: W groups at once make the numbers of each
 * four. NULL where not. */
static V
philox_block(Emit *e, const Op *op, Ix element, V key, V step)
{
	int64_t k;
	int of_four = e->block_u % 4;
	V base, split = i_split(element.s, &k);

	if (!e->block_n || e->block_n % 4 || element.c != 1 || element.g || e->mask)
		return NULL;
	base = i_add_k(e, split, k - (int64_t)of_four * e->W);
	if (!i_multiple4(e, base))
		return NULL;
	for (uint32_t i = 0; i < e->random.n; i++)
		if (e->random.at[i].op == op && e->random.at[i].base == base && e->random.at[i].apart == 1)
			return e->random.at[i].word[of_four];
	V group = LLVMBuildLShr(at1(e, base), base, k64(e, 2), ""), c[4];
	RandomBlock r = {.op = op, .base = base, .apart = 1};
	LLVMBuilderRef b = lane_words(e, op, (Ix){.s = group, .c = 1}, key, step, c);

	for (int q = 0; q < 4; q++) { /* lane l of vector q is word l % 4 of group q * W / 4 + l / 4 */
		int even[64], join[64];

		for (int l = 0; l < e->W; l++) {
			even[l] = q * e->W / 4 + l / 4 + (l % 2) * e->W;
			join[l] = l + (l % 4 < 2 ? 0 : e->W);
		}
		r.word[q] =
		        lanes_of(e, b, lanes_of(e, b, c[0], c[1], even), lanes_of(e, b, c[2], c[3], even), join);
	}
	vec_push(e->arena, &e->random, r);
	return r.word[of_four];
}

/* Where the lanes' elements lie a multiple of four apart, each lane's word has the same number in its group: neighbours
 * of one lane, one after the other, share what makes all four. NULL where not. */
static V
philox_neighbours(Emit *e, const Op *op, Ix element, V key, V step)
{
	int64_t k;
	V split = i_split(element.s, &k), base = i_add_k(e, split, k & ~(int64_t)3);

	if (!ix_lane(&element) || element.c % 4 || element.g || !i_multiple4(e, base))
		return NULL;
	for (uint32_t i = 0; i < e->random.n; i++) {
		const RandomBlock *r = &e->random.at[i];

		if (r->op == op && r->base == base && r->apart == element.c)
			return r->word[k & 3];
	}
	RandomBlock r = {.op = op, .base = base, .apart = element.c};
	V group = LLVMBuildLShr(at1(e, base), base, k64(e, 2), "");

	lane_words(e, op, (Ix){.s = group, .c = element.c / 4}, key, step, r.word);
	vec_push(e->arena, &e->random, r);
	return r.word[k & 3];
}

/* Of a shard, the numbers begin at per * (step / 2^32): see `random` in ir/ops.def. */
static V
random_first(Emit *e, const Op *op, V step)
{
	int64_t per = attr_int(op, A_per);

	return per ? i_mul_k(e, i_div_k(e, step, (int64_t)1 << 32), per) : NULL;
}

/* Element numbers are 64-bit; elsewhere each lane computes its group of four words and takes its own. */
Cell
random_emit(Emit *e, const Op *op, Ix element, Cell seed, Cell step, DType dt)
{
	V first = random_first(e, op, step.v);

	if (first)
		element.s = i_add(e, element.s, first);
	bool vec = ix_lane(&element);
	V key = LLVMBuildTrunc(at1(e, seed.v), seed.v, e->l->i32, ""),
	  stp = LLVMBuildTrunc(at1(e, step.v), step.v, e->l->i32, "");
	V u = philox_block(e, op, element, key, stp), j = vec ? ix_vec(e, element) : element.s;

	u = u ? u : philox_neighbours(e, op, element, key, stp);
	Philox p = {.e = e,
	            .b = at3(e, j, key, stp),
	            .vec = vec,
	            .t32 = ctype_v(e, DT_i32, vec),
	            .t64 = ctype_v(e, DT_i64, vec)};

	if (!u) {
		LLVMBuilderRef b = p.b;
		V word = LLVMBuildAnd(b, LLVMBuildTrunc(b, j, p.t32, ""), p32(&p, 3), ""), c[4];

		philox_words(&p, LLVMBuildLShr(b, j, p64(&p, 2), ""), key, stp, fnv1a(attr_str(op, A_stream)), c);
		V even = LLVMBuildICmp(b, LLVMIntEQ, LLVMBuildAnd(b, word, p32(&p, 1), ""), p32(&p, 0), "");
		V low = LLVMBuildICmp(b, LLVMIntULT, word, p32(&p, 2), "");

		u = LLVMBuildSelect(b, low, LLVMBuildSelect(b, even, c[0], c[1], ""),
		                    LLVMBuildSelect(b, even, c[2], c[3], ""), "");
	}
	p.b = at1(e, u);
	if (!dtype_is_float(dt))
		return cell_cast(e, cell_of(LLVMBuildZExt(p.b, u, p.t64, ""), vec, DT_i64), dt);
	DType comp = dt == DT_f64 ? DT_f64 : DT_f32;
	Cell f = cell_of(LLVMBuildUIToFP(p.b, LLVMBuildLShr(p.b, u, p32(&p, 8), ""), ctype_v(e, comp, vec), ""), vec,
	                 comp);

	return cell_cast(e, cell_bin(e, EX_MUL, f, cell_const(e, comp, 0x1p-24)), dt);
}

/* ---------------------------------------------------------------- indices as numbers */
/* The index itself as a number of type dt. */
Cell
ix_cell(Emit *e, Ix a, DType dt)
{
	bool vec = ix_lane(&a);
	Cell c = cell_of(vec ? ix_vec(e, a) : a.s, vec, DT_i64);

	return cell_cast(e, c, dt);
}

Ix
ix_of_cell(Emit *e, Cell c)
{
	c = cell_cast(e, c, DT_i64);
	if (c.vec)
		return (Ix){.s = k64(e, 0), .g = c.v};
	return ix_s(c.v);
}
