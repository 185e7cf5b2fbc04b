/* decode_convert.c: comparisons, moves and conversions.
 *
 * In: the parser at such an instruction.   Out: Ins. A conversion that is a row of alu.def becomes that; the rest an
 * operation that looks at the types when it runs. */
#include <stdio.h>
#include <string.h>

#include "ptx.h"

/* comparisons */

/* Compares operands a and b into predicate d; which: 0, or 1 for the upper halves of pairs. */
static void
compare(Parser *p, uint32_t d, const char *cmp, const char *type, const Opnd *a, const Opnd *b, int which)
{
	char name[32], one[16];
	const char *flush = has(p, "ftz") ? flush_name(type) : NULL;
	size_t len = strlen(type);
	uint32_t bytes = type_bytes(type), x = use(p, a, bytes), y = use(p, b, bytes);

	snprintf(one, sizeof one, "%s", type);
	if (len > 2 && !strcmp(type + len - 2, "x2")) {
		uint32_t u = parse_temp(p, 2), v = parse_temp(p, 2);

		one[len - 2] = 0;
		emit_row(p, which ? "high.b16.b32" : "low.b16.b32", u, x, 0, 0);
		emit_row(p, which ? "high.b16.b32" : "low.b16.b32", v, y, 0, 0);
		x = u;
		y = v;
		bytes = 2;
		flush = flush ? "ftz.f16" : NULL;
	}
	snprintf(name, sizeof name, "%s.%s", cmp, one);
	x = flushed(p, flush, x, bytes);
	y = flushed(p, flush, y, bytes);
	emit_row(p, name, d, x, y, 0);
}

static const char *
bool_part(const Parser *p)
{
	return has(p, "and") ? "and.pred" : has(p, "or") ? "or.pred" : has(p, "xor") ? "xor.pred" : NULL;
}

/* setp.cmp[.and|or|xor].type p[|q], a, b[, c] */
void
decode_setp(Parser *p)
{
	const char *type = p->part[p->npart - 1], *combine = bool_part(p);
	const Opnd *first = top(p, 0), *second = first->pair >= 0 ? &p->opnd[first->pair] : NULL;
	uint32_t d = define(p, first, 1), t = second || combine ? parse_temp(p, 1) : d;
	bool pairs = strlen(type) > 2 && !strcmp(type + strlen(type) - 2, "x2");

	compare(p, t, p->part[1], type, top(p, 1), top(p, 2), 0);
	if (combine) {
		uint32_t c = use_pred(p, top(p, 3)), q = parse_temp(p, 1);

		if (second && !pairs) {
			emit_row(p, "not.pred", q, t, 0, 0);
			emit_row(p, combine, q, q, c, 0);
		}
		emit_row(p, combine, d, t, c, 0);
		if (second && !pairs)
			emit_row(p, "mov.pred", define(p, second, 1), q, 0, 0);
	} else if (second && !pairs) {
		uint32_t q = define(p, second, 1);

		emit_row(p, "not.pred", q, t, 0, 0);
		emit_row(p, "mov.pred", d, t, 0, 0);
	} else if (second) {
		uint32_t q = parse_temp(p, 1);

		compare(p, q, p->part[1], type, top(p, 1), top(p, 2), 1);
		emit_row(p, "mov.pred", d, t, 0, 0);
		emit_row(p, "mov.pred", define(p, second, 1), q, 0, 0);
	}
}

/* set.cmp[.bool].dtype.stype d, a, b[, c]: all ones or 1.0 where it holds. */
void
decode_set(Parser *p)
{
	const char *type = p->part[p->npart - 1], *result = p->part[p->npart - 2], *combine = bool_part(p);
	bool pairs = strlen(type) > 2 && !strcmp(type + strlen(type) - 2, "x2"), one = *result == 'f' || *result == 'b';
	uint32_t bytes = type_bytes(result), t = parse_temp(p, 1), d = define(p, top(p, 0), bytes);
	uint64_t yes = !one                         ? ~0ull
	               : !strcmp(result, "f32")     ? 0x3f800000
	               : !strncmp(result, "f16", 3) ? 0x3c00
	                                            : 0x3f80;

	if (!pairs) {
		compare(p, t, p->part[1], type, top(p, 1), top(p, 2), 0);
		if (combine)
			emit_row(p, combine, t, t, use_pred(p, top(p, 3)), 0);
		yes = bytes == 8 ? yes : yes & ((1ull << bytes * 8) - 1);
		emit_row(p,
		         bytes == 2   ? "selp.b16"
		         : bytes == 4 ? "selp.b32"
		                      : "selp.b64",
		         d, parse_const(p, yes, bytes, -1), parse_const(p, 0, bytes, -1), t);
		return;
	}
	uint32_t half[2];

	for (int k = 0; k < 2; k++) {
		half[k] = parse_temp(p, 2);
		compare(p, t, p->part[1], type, top(p, 1), top(p, 2), k);
		emit_row(p, "selp.b16", half[k], parse_const(p, yes & 0xffff, 2, -1), parse_const(p, 0, 2, -1), t);
	}
	emit_row(p, "pack.b32.b16", d, half[0], half[1], 0);
}

/* moves */

static void
decode_unpack(Parser *p, const Opnd *v, const Opnd *from)
{
	uint32_t whole = v->n == 4 ? 8 : type_bytes(p->part[1]), s = use(p, from, whole);
	uint32_t first = 0;
	bool clash = v->n == 2 && p->opnd[v->first].kind == OPND_REG && p->opnd[v->first].reg == s;

	if (clash) { /* {a, b} from a itself */
		first = parse_temp(p, whole);
		emit_row(p, whole == 8 ? "mov.b64" : "mov.b32", first, s, 0, 0);
		s = first;
	}
	for (int k = 0; k < v->n; k++) {
		const Opnd *o = &p->opnd[v->first + k];

		if (o->kind == OPND_SINK)
			continue;
		if (v->n == 2 && whole == 8)
			emit_row(p, k ? "high.b32.b64" : "low.b32.b64", define(p, o, 4), s, 0, 0);
		else if (v->n == 2 && whole == 4)
			emit_row(p, k ? "high.b16.b32" : "low.b16.b32", define(p, o, 2), s, 0, 0);
		else if (v->n == 4 && whole == 8) {
			uint32_t t = parse_temp(p, 4);

			emit_row(p, k < 2 ? "low.b32.b64" : "high.b32.b64", t, s, 0, 0);
			emit_row(p, k & 1 ? "high.b16.b32" : "low.b16.b32", define(p, o, 2), t, 0, 0);
		} else
			decode_unknown(p);
	}
}

static void
decode_pack(Parser *p, const Opnd *to, const Opnd *v)
{
	const Opnd *o = &p->opnd[v->first];

	if (v->n == 2 && type_bytes(p->part[1]) == 8) {
		emit_row(p, "pack.b64.b32", define(p, to, 8), use(p, o, 4), use(p, o + 1, 4), 0);
	} else if (v->n == 2 && type_bytes(p->part[1]) == 4) {
		emit_row(p, "pack.b32.b16", define(p, to, 4), use(p, o, 2), use(p, o + 1, 2), 0);
	} else if (v->n == 4 && type_bytes(p->part[1]) == 8) {
		uint32_t lo = parse_temp(p, 4), hi = parse_temp(p, 4);

		emit_row(p, "pack.b32.b16", lo, use(p, o, 2), use(p, o + 1, 2), 0);
		emit_row(p, "pack.b32.b16", hi, use(p, o + 2, 2), use(p, o + 3, 2), 0);
		emit_row(p, "pack.b64.b32", define(p, to, 8), lo, hi, 0);
	} else {
		decode_unknown(p);
	}
}

void
decode_mov(Parser *p)
{
	const Opnd *to = top(p, 0), *from = top(p, 1);
	uint32_t bytes = type_bytes(p->part[p->npart - 1]);
	char name[16];

	/* special registers that change, and those that mean nothing here */
	if (from->kind == OPND_LABEL && from->name[0] == '%') {
		bytes = bytes ? bytes : 4;
		Ins *x = emit(p, op_clock, KIND_PLAIN);

		x->d = define(p, to, bytes);
		x->bytes = (uint8_t)bytes;
		if (memcmp(from->name, "%clock", 6) && memcmp(from->name, "%globaltim", 10) &&
		    memcmp(from->name, "%envreg", 7) && memcmp(from->name, "%pm", 3))
			parse_fail(p, CUDA_ERROR_INVALID_PTX, "special register %.*s is not simulated",
			           (int)from->name_len, from->name);
		x->imm = from->name[1] == 'e';
		return;
	}
	if (to->kind == OPND_VECTOR) {
		decode_unpack(p, to, from);
		return;
	}
	if (from->kind == OPND_VECTOR) {
		decode_pack(p, to, from);
		return;
	}
	if (!strcmp(p->part[p->npart - 1], "pred")) {
		emit_row(p, "mov.pred", define(p, to, 1), use_pred(p, from), 0, 0);
		return;
	}
	snprintf(name, sizeof name, "mov.b%u", bytes * 8);
	if (!bytes)
		decode_unknown(p);
	uint32_t s = use(p, from, bytes), d = define(p, to, bytes);

	emit_row(p, name, d, s, 0, 0);
	finish(p, to, d, bytes, false);
}

/* conversions */

static bool
is_int_type(const char *t)
{
	return *t == 'u' || *t == 's';
}

static bool
convert_ints(Parser *p, const char *to, const char *from)
{
	const Opnd *o = top(p, 0), *a = top(p, 1);
	uint32_t tb = type_bytes(to), fb = type_bytes(from);

	if (!is_int_type(to) || !is_int_type(from) || has(p, "sat") || tb < 2 || fb < 2 || o->kind != OPND_REG ||
	    o->bytes != tb)
		return false;
	resize(p, o->reg, tb, use(p, a, fb), fb, *from == 's');
	return true;
}

/* A conversion that is a row of the table: registers as wide as the types, rounding to nearest or to an integer. */
static bool
convert_row(Parser *p, const char *to, const char *from)
{
	static const char *const integer[] = { "rni", "rzi", "rmi", "rpi" };
	const char *flush = has(p, "ftz") ? flush_name(from) : NULL, *mode = NULL;
	char name[32];
	const Opnd *o = top(p, 0);
	uint32_t tb = type_bytes(to), fb = type_bytes(from), s;

	if (has(p, "rz") || has(p, "rm") || has(p, "rp") || has(p, "relu") || tb < 2 || fb < 2 || o->kind != OPND_REG ||
	    o->bytes != tb)
		return false;
	for (int k = 0; k < 4; k++)
		if (has(p, integer[k]))
			mode = integer[k];
	if (has(p, "rna"))
		mode = "rna";
	if (mode)
		snprintf(name, sizeof name, "cvt.%s.%s.%s", mode, to, from);
	else if (!strcmp(to, from))
		snprintf(name, sizeof name, "mov.b%u", tb * 8);
	else
		snprintf(name, sizeof name, "cvt.%s.%s", to, from);
	if (!alu_find(name) || (has(p, "sat") && strcmp(to, "f32")))
		return false;
	s = flushed(p, flush, use(p, top(p, 1), fb), fb);
	emit_row(p, name, o->reg, s, 0, 0);
	if (has(p, "ftz") && flush_name(to))
		emit_row(p, flush_name(to), o->reg, o->reg, 0, 0);
	if (has(p, "sat"))
		emit_row(p, "sat.f32", o->reg, o->reg, 0, 0);
	return true;
}

static int
convert_mode(const Parser *p)
{
	static const char *const names[] = { "rn", "rz", "rm", "rp", "rni", "rzi", "rmi", "rpi", "rna" };

	for (int k = 0; k < 9; k++)
		if (has(p, names[k]))
			return k < 4 ? k : k == 8 ? 9 : k - 4 + 16;
	return 0;
}

/* The rest: an operation that looks at the types when it runs. */
static void
convert_any(Parser *p, const char *to, const char *from)
{
	const Opnd *o = top(p, 0), *a = top(p, 1);
	bool two = p->ntop == 3, unpack = !strncmp(from, "e4m3x2", 6) || !strncmp(from, "e5m2x2", 6);
	uint32_t b = two ? use(p, top(p, 2), 4) : 0, wide = o->kind == OPND_REG ? o->bytes : type_bytes(to),
	         fb = type_bytes(from), s;

	if (!type_code(to) || !type_code(from) || wide == 1)
		decode_unknown(p);
	fb = fb == 1 ? 2 : fb;
	if (a->kind == OPND_REG && a->bytes > fb)
		fb = a->bytes;
	s = flushed(p, has(p, "ftz") && fb == type_bytes(from) ? flush_name(from) : NULL, use(p, a, fb), fb);

	uint32_t d = define(p, o, wide);
	Ins *x = emit(p, two ? op_convert_pack : unpack ? op_convert_unpack : op_convert, KIND_PLAIN);

	x->d = d;
	x->a = s;
	x->b = b;
	x->type = (uint8_t)type_code(to);
	x->sub = (uint8_t)type_code(from);
	x->n = (uint8_t)convert_mode(p);
	x->wide = (uint8_t)wide;
	x->bytes = (uint8_t)fb;
	x->imm = has(p, "sat") | has(p, "relu") << 1 | has(p, "satfinite") << 2;
	if (has(p, "ftz") && flush_name(to))
		emit_row(p, flush_name(to), d, d, 0, 0);
}

void
decode_cvt(Parser *p)
{
	const char *to = p->part[p->npart - 2], *from = p->part[p->npart - 1];

	if (p->npart < 3)
		decode_unknown(p);
	if (p->ntop == 3 && !has(p, "rz") && !has(p, "relu") && !has(p, "satfinite") && !strcmp(from, "f32") &&
	    (!strcmp(to, "f16x2") || !strcmp(to, "bf16x2"))) {
		emit_row(p, *to == 'f' ? "cvt.f16x2.f32" : "cvt.bf16x2.f32", define(p, top(p, 0), 4),
		         use(p, top(p, 1), 4), use(p, top(p, 2), 4), 0);
		return;
	}
	if (!convert_ints(p, to, from) && !convert_row(p, to, from))
		convert_any(p, to, from);
}

/* cvta[.to].space: windows of the generic address space. */
void
decode_cvta(Parser *p)
{
	bool to = has(p, "to");
	int from = 1;
	Space space = space_of(p, &from);
	uint64_t window = space == SPACE_SHARED  ? WINDOW_SHARED
	                  : space == SPACE_LOCAL ? WINDOW_LOCAL
	                  : space == SPACE_PARAM ? WINDOW_PARAM
	                                         : 0;
	const Opnd *o = top(p, 0);
	uint32_t a = use(p, top(p, 1), 8), d = define(p, o, 8);

	if (!window)
		emit_row(p, "mov.b64", d, a, 0, 0);
	else if (to)
		emit_row(p, "and.b64", d, a, parse_const(p, (1ull << WINDOW_SHIFT) - 1, 8, -1), 0);
	else
		emit_row(p, "or.b64", d, a, parse_const(p, window << WINDOW_SHIFT, 8, -1), 0);
}
