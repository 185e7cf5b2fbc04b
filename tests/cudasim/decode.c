/* decode.c: an instruction of PTX text becomes one or a few Ins: operands, arithmetic, control.
 *
 * In: the parser with a guard, the dotted parts of the opcode and its operands.   Out: Ins at the end of the module's
 * code. What modifiers ask for is an instruction of its own: add.ftz.sat.f32 becomes flush a, flush b, add, flush,
 * saturate. So the table of operations stays small. A result narrower than its register goes through a temporary.
 * Conversions, memory, warps and tensors are in decode_*.c. */
#include "half.h"
#include "ptx.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

_Noreturn void
decode_unknown(Parser *p)
{
	char text[128] = "";

	for (int i = 0; i < p->npart; i++)
		snprintf(text + strlen(text), sizeof text - strlen(text), "%s%s", i ? "." : "", p->part[i]);
	p->lex.line = p->line;
	parse_fail(p, CUDA_ERROR_INVALID_PTX, "instruction %s is not simulated", text);
}

Ins *
emit(Parser *p, OpFn *fn, Kind kind)
{
	Module *m = p->m;
	Ins *x;

	if ((int)m->nins >= p->capins)
		m->ins = grow(m->ins, (int)m->nins, &p->capins, sizeof *m->ins);
	x = &m->ins[m->nins++];
	*x = (Ins){ .fn = fn, .kind = (uint8_t)kind, .guard = p->guard, .line = (uint32_t)p->line };
	return x;
}

uint32_t
extra(Parser *p, uint32_t v)
{
	p->m->extra = grow(p->m->extra, (int)p->m->nextra, &p->capextra, sizeof *p->m->extra);
	p->m->extra[p->m->nextra] = v;
	return p->m->nextra++;
}

Ins *
emit_row(Parser *p, const char *name, uint32_t d, uint32_t a, uint32_t b, uint32_t c)
{
	const AluRow *r = alu_find(name);
	Ins *x;

	if (!r)
		decode_unknown(p);
	x = emit(p, r->fn, KIND_PLAIN);
	x->d = d;
	x->a = a;
	x->b = b;
	x->c = c;
	return x;
}

bool
has(const Parser *p, const char *part)
{
	return part_index(p, part) >= 0;
}

int
part_index(const Parser *p, const char *part)
{
	for (int i = 1; i < p->npart; i++)
		if (!strcmp(p->part[i], part))
			return i;
	return -1;
}

Opnd *
top(Parser *p, int k)
{
	if (k >= p->ntop)
		decode_unknown(p);
	return &p->opnd[p->top[k]];
}

/* operands */

/* Copies a register into one of another size; the upper bits of a wider one are the sign's or 0. */
void
resize(Parser *p, uint32_t to, uint32_t to_bytes, uint32_t from, uint32_t from_bytes, bool is_signed)
{
	static const char *const name[4][4] = {/* [from][to] by 2 4 8 bytes */
	                                       {"mov.b16", "widen.b32.b16", "widen.b64.b16", ""},
	                                       {"low.b16.b32", "mov.b32", "widen.b64.b32", ""},
	                                       {"low.b16.b64", "low.b32.b64", "mov.b64", ""}};
	static const char *const name_signed[2][3] = {{"", "cvt.s32.s16", "cvt.s64.s16"}, {"", "", "cvt.s64.s32"}};
	int f = from_bytes == 2 ? 0 : from_bytes == 4 ? 1 : 2, t = to_bytes == 2 ? 0 : to_bytes == 4 ? 1 : 2;

	emit_row(p, is_signed && t > f ? name_signed[f][t] : name[f][t], to, from, 0, 0);
}

static uint32_t
use_symbol(Parser *p, const Opnd *o, uint32_t bytes)
{
	const Sym *s = o->sym;

	switch (s->kind) {
	case SYM_GLOBAL: return parse_const(p, s->address + (uint64_t)o->value, bytes, -1);
	case SYM_SHARED: return parse_const(p, (uint64_t)o->value, bytes, (int)shared_use(p, s->at));
	case SYM_LOCAL: case SYM_PARAM: case SYM_FRAME: return parse_const(p, s->at + (uint64_t)o->value, bytes, -1);
	default: break;
	}
	parse_fail(p, CUDA_ERROR_INVALID_PTX, "%.*s cannot be an operand", (int)s->len, s->name);
}

static uint64_t
narrow(const Opnd *o, uint32_t bytes)
{
	uint64_t v = (uint64_t)o->value;

	if (o->kind == OPND_F64 && bytes == 4) {
		double d;

		memcpy(&d, &v, 8);
		v = float_bits((float)d);
	}
	if (o->kind == OPND_F32 && bytes == 8) {
		uint32_t u = (uint32_t)v;
		float f;
		double d;

		memcpy(&f, &u, 4);
		d = f;
		memcpy(&v, &d, 8);
	}
	return bytes >= 8 ? v : v & ((1ull << bytes * 8) - 1);
}

uint32_t
use(Parser *p, const Opnd *o, uint32_t bytes)
{
	uint32_t t;

	switch (o->kind) {
	case OPND_REG:
		if (o->bytes == bytes && !o->negated)
			return o->reg;
		if (o->bytes == 1 || bytes == 1)
			return use_pred(p, o);
		t = parse_temp(p, bytes);
		resize(p, t, bytes, o->reg, o->bytes, false);
		return t;
	case OPND_INT: case OPND_F32: case OPND_F64: return parse_const(p, narrow(o, bytes), bytes, -1);
	case OPND_SYM: return use_symbol(p, o, bytes);
	case OPND_LABEL:
		if (o->name_len == 7 && !memcmp(o->name, "WARP_SZ", 7))
			return parse_const(p, LANES, bytes, -1);
		parse_fail(p, CUDA_ERROR_INVALID_PTX, "unknown name %.*s", (int)o->name_len, o->name);
	default: decode_unknown(p);
	}
}

uint32_t
use_pred(Parser *p, const Opnd *o)
{
	uint32_t t;

	if (o->kind == OPND_INT) {
		t = parse_temp(p, 1);
		emit_row(p, "xor.pred", t, t, t, 0);
		if ((o->value != 0) != o->negated)
			emit_row(p, "not.pred", t, t, 0, 0);
		return t;
	}
	if (o->kind != OPND_REG || o->bytes != 1)
		parse_fail(p, CUDA_ERROR_INVALID_PTX, "a predicate is expected");
	if (!o->negated)
		return o->reg;
	t = parse_temp(p, 1);
	emit_row(p, "not.pred", t, o->reg, 0, 0);
	return t;
}

uint32_t
define(Parser *p, const Opnd *o, uint32_t bytes)
{
	if (o->kind == OPND_REG && o->bytes == bytes)
		return o->reg;
	if (o->kind != OPND_SINK && (o->kind != OPND_REG || o->bytes < bytes || bytes == 1 || o->bytes == 1))
		parse_fail(p, CUDA_ERROR_INVALID_PTX, "the result needs a register of %u bytes", bytes);
	return parse_temp(p, bytes);
}

void
finish(Parser *p, const Opnd *o, uint32_t from, uint32_t bytes, bool is_signed)
{
	if (o->kind == OPND_REG && o->bytes != bytes)
		resize(p, o->reg, o->bytes, from, bytes, is_signed);
}

/* arithmetic */

static bool
is_modifier(const char *s)
{
	static const char *const names[] = {"ftz", "sat", "approx", "full", "rn",   "rz",
	                                    "rm",  "rp",  "relu",   "uni",  "noftz"};

	for (size_t i = 0; i < sizeof names / sizeof *names; i++)
		if (!strcmp(s, names[i]))
			return true;
	return false;
}

static void
join(const Parser *p, char *to, size_t n, const char *base, bool modifiers)
{
	snprintf(to, n, "%s", base);
	for (int i = 1; i < p->npart; i++)
		if (modifiers || !is_modifier(p->part[i])) {
			size_t k = strlen(to);

			snprintf(to + k, n - k, ".%s", p->part[i]);
		}
}

const char *
flush_name(const char *type)
{
	return !strcmp(type, "f32")     ? "ftz.f32"
	       : !strcmp(type, "f16")   ? "ftz.f16"
	       : !strcmp(type, "f16x2") ? "ftz.f16x2"
	                                : NULL;
}

uint32_t
flushed(Parser *p, const char *flush, uint32_t reg, uint32_t bytes)
{
	uint32_t t;

	if (!flush)
		return reg;
	t = parse_temp(p, bytes);
	emit_row(p, flush, t, reg, 0, 0);
	return t;
}

/* Puts an instruction under the rounding of its opcode. */
static void
round_as(Parser *p, Ins *x)
{
	int mode = has(p, "rz") ? 1 : has(p, "rm") ? 2 : has(p, "rp") ? 3 : 0;

	if (!mode)
		return;
	x->inner = x->fn;
	x->fn = op_rounded;
	x->sub = (uint8_t)mode;
}

static void
decode_alu(Parser *p)
{
	const char *type = p->part[p->npart - 1], *flush = has(p, "ftz") ? flush_name(type) : NULL;
	char name[64], post[32];
	const AluRow *r;
	uint32_t d, s[3] = { 0 };
	uint8_t bytes[3];
	int n;

	join(p, name, sizeof name, p->part[0], false);
	if (has(p, "sat") && !strcmp(type, "s32"))
		snprintf(name, sizeof name, "%ss.s32", p->part[0]);
	if ((!strcmp(p->part[0], "rcp") || !strcmp(p->part[0], "rsqrt")) && has(p, "approx") && !strcmp(type, "f64"))
		snprintf(name, sizeof name, "%s.approx.f64", p->part[0]);
	r = alu_find(name);
	if (!r)
		decode_unknown(p);
	n = r->c ? 3 : r->b ? 2 : 1;
	bytes[0] = r->a;
	bytes[1] = r->b;
	bytes[2] = r->c;
	if (p->ntop < n + 1)
		decode_unknown(p);
	for (int k = 0; k < n; k++)
		s[k] = bytes[k] == 1 ? use_pred(p, top(p, k + 1))
		                     : flushed(p, flush, use(p, top(p, k + 1), bytes[k]), bytes[k]);
	d = define(p, top(p, 0), r->d);
	Ins *x = emit_row(p, name, d, s[0], s[1], s[2]);
	if (!strcmp(p->part[0], "lop3") && p->ntop == 5)
		x->imm = top(p, 4)->value;
	else if (p->ntop != n + 1)
		decode_unknown(p);
	if (!strcmp(type, "f32") || !strcmp(type, "f64"))
		round_as(p, x);
	if (flush)
		emit_row(p, flush, d, d, 0, 0);
	if (has(p, "relu") || (has(p, "sat") && strcmp(type, "s32"))) {
		snprintf(post, sizeof post, "%s.%s", has(p, "relu") ? "relu" : "sat", type);
		emit_row(p, post, d, d, 0, 0);
	}
	finish(p, top(p, 0), d, r->d, false);
}

/* bfi d, a, b, pos, len: a's lowest len bits put into b at pos. */
static void
decode_bfi(Parser *p)
{
	bool wide = !strcmp(p->part[1], "b64");
	uint32_t bytes = wide ? 8 : 4, mask = parse_temp(p, bytes), at = use(p, top(p, 3), 4),
	         len = use(p, top(p, 4), 4), moved = parse_temp(p, bytes);

	emit_row(p, wide ? "bfi.mask.b64" : "bfi.mask.b32", mask, use(p, top(p, 1), bytes), at, len);
	emit_row(p, wide ? "shlbyte.b64" : "shlbyte.b32", moved, use(p, top(p, 1), bytes), at, 0);
	emit_row(p, wide ? "select.b64" : "select.b32", define(p, top(p, 0), bytes), moved, use(p, top(p, 2), bytes),
	         mask);
}

/* add.cc, addc, sub.cc, subc, mad.cc, madc: the carry is a predicate of the function, kept in the last temporary of
 * that size. */
static void
decode_carry(Parser *p)
{
	const char *type = p->part[p->npart - 1], *base = p->part[0];
	bool wide = type[1] == '6', minus = *base == 's', in = base[strlen(base) - 1] == 'c', out = has(p, "cc"),
	     mad = *base == 'm';
	uint32_t bytes = wide ? 8 : 4, a, b, d = define(p, top(p, 0), bytes), t = parse_temp(p, bytes),
	         u = parse_temp(p, bytes), first = parse_temp(p, 1), second = parse_temp(p, 1);
	const char *lt = wide ? "lt.u64" : "lt.u32", *op = minus  ? wide ? "sub.u64" : "sub.u32"
	                                                   : wide ? "add.u64"
	                                                          : "add.u32";
	uint32_t one = parse_const(p, 1, bytes, -1), zero = parse_const(p, 0, bytes, -1), *carry = &p->temp[0][11];

	if (!*carry)
		*carry = parse_reg(p, 1);
	a = use(p, top(p, 1), bytes);
	b = use(p, top(p, 2), bytes);
	if (mad) {
		char name[32];

		snprintf(name, sizeof name, "mul.%s.%s", has(p, "hi") ? "hi" : "lo", type);
		emit_row(p, name, u, a, b, 0);
		a = u;
		b = use(p, top(p, 3), bytes);
		u = parse_temp(p, bytes);
	}
	emit_row(p, op, t, a, b, 0);
	emit_row(p, lt, first, minus ? a : t, minus ? b : a, 0);
	if (in) {
		emit_row(p, wide ? "selp.b64" : "selp.b32", u, one, zero, *carry);
		emit_row(p, lt, second, t, u, 0); /* of a difference: it borrows again */
		emit_row(p, op, t, t, u, 0);
		if (!minus)
			emit_row(p, lt, second, t, u, 0);
		emit_row(p, "or.pred", first, first, second, 0);
	}
	if (out)
		emit_row(p, "mov.pred", *carry, first, 0, 0);
	emit_row(p, wide ? "mov.b64" : "mov.b32", d, t, 0, 0);
}

static void
decode_testp(Parser *p)
{
	char name[48];
	bool wide = !strcmp(p->part[2], "f64");
	uint32_t t = parse_temp(p, 4);

	snprintf(name, sizeof name, "testp.%s.%s.u", p->part[1], p->part[2]);
	emit_row(p, name, t, use(p, top(p, 1), wide ? 8 : 4), 0, 0);
	emit_row(p, "ne.u32", define(p, top(p, 0), 1), t, parse_const(p, 0, 4, -1), 0);
}

/* control */

void
branch_to(Parser *p, Ins *x, const char *name, uint32_t len)
{
	uint32_t at = (uint32_t)(x - p->m->ins);

	p->pending = grow(p->pending, p->npending, &p->cappending, sizeof *p->pending);
	p->pending[p->npending++] = (Pending){ name, len, at, p->depth };
}

/* brx.idx r, table: a chain of comparisons. */
static void
decode_table_branch(Parser *p)
{
	const Opnd *o = top(p, 1);
	uint32_t r = use(p, top(p, 0), 4), t = parse_temp(p, 1), outer = p->guard;

	for (int i = 0; i < p->ntable; i++) {
		const Table *b = &p->table[i];

		if (b->len != o->name_len || memcmp(b->name, o->name, b->len))
			continue;
		for (int k = 0; k < b->n; k++) {
			p->guard = 0;
			emit_row(p, "eq.u32", t, r, parse_const(p, (uint64_t)k, 4, -1), 0);
			if (outer) {
				uint32_t u = parse_temp(p, 1);

				emit_row(p, outer & 1 ? "not.pred" : "mov.pred", u, outer & ~1u, 0, 0);
				emit_row(p, "and.pred", t, t, u, 0);
			}
			p->guard = t;
			branch_to(p, emit(p, NULL, KIND_BRANCH), b->label[k], b->label_len[k]);
		}
		return;
	}
	parse_fail(p, CUDA_ERROR_INVALID_PTX, "unknown table of branches %.*s", (int)o->name_len, o->name);
}

static void
frame_copies(Parser *p, const Opnd *list, const Param *formal, int n, bool in)
{
	if (list->n != n)
		parse_fail(p, CUDA_ERROR_INVALID_PTX, "a call with %d arguments where %d are declared", list->n, n);
	for (int k = 0; k < n; k++) {
		const Opnd *o = &p->opnd[list->first + k];
		Ins *x = emit(p, op_frame_copy, KIND_PLAIN);

		if (o->kind != OPND_SYM || o->sym->kind != SYM_FRAME)
			parse_fail(p, CUDA_ERROR_INVALID_PTX, "arguments of calls are .param variables");
		x->d = in ? formal[k].offset : o->sym->at;
		x->a = in ? o->sym->at : formal[k].offset;
		x->imm = formal[k].bytes;
	}
}

/* call (result), function, (arguments); */
static void
decode_call(Parser *p)
{
	static const Opnd none = { .kind = OPND_VECTOR };
	int k = p->ntop > 1 && top(p, 0)->kind == OPND_VECTOR;
	const Opnd *result = k ? top(p, 0) : &none, *callee = top(p, k),
	           *args = p->ntop > k + 1 ? top(p, k + 1) : &none;
	char name[256];
	Func *f;

	if (callee->kind == OPND_REG || callee->name_len >= sizeof name)
		parse_fail(p, CUDA_ERROR_INVALID_PTX, "calls through pointers are not simulated");
	memcpy(name, callee->name, callee->name_len);
	name[callee->name_len] = 0;
	f = module_func(p->m, name);
	if (!f || f->entry)
		parse_fail(p, CUDA_ERROR_INVALID_PTX, "call of unknown function %s", name);
	if (f->builtin) {
		Ins *x = emit(p, op_builtin, KIND_PLAIN);

		x->imm = f->builtin;
		x->n = (uint8_t)args->n;
		x->extra = p->m->nextra;
		for (int i = 0; i < args->n; i++)
			extra(p, p->opnd[args->first + i].sym ? p->opnd[args->first + i].sym->at : 0);
		x = &p->m->ins[p->m->nins - 1];
		x->d = result->n && p->opnd[result->first].sym ? p->opnd[result->first].sym->at + 1 : 0;
		return;
	}
	if (f == p->f)
		parse_fail(p, CUDA_ERROR_INVALID_PTX, "function %s calls itself: recursion is not simulated", name);
	func_calls(p->f, f);
	frame_copies(p, args, f->param, f->nparam, true);
	for (int i = 0; i < p->m->nfunc; i++)
		if (p->m->func[i] == f)
			emit(p, NULL, KIND_CALL)->target = (uint32_t)i;
	frame_copies(p, result, f->result, f->nresult, false);
}

/* bar.sync a[, b], bar.arrive, bar.red, bar.warp.sync, barrier.cta..., barrier.cluster... */
static void
decode_barrier(Parser *p)
{
	Ins *x;

	if (has(p, "warp")) {
		uint32_t mask = use(p, top(p, 0), 4);

		x = emit(p, op_warp_sync, KIND_TOGETHER);
		x->target = mask;
		return;
	}
	if (has(p, "cluster")) {
		bool wait = has(p, "wait");

		x = emit(p, op_cluster_arrive, has(p, "arrive") ? KIND_PLAIN : KIND_BARRIER);
		x->sub = wait ? 16 : 15;
		return;
	}
	bool red = has(p, "red"), arrive = has(p, "arrive");
	int first = red ? 1 : 0, n = p->ntop - first - red;
	uint32_t id = use(p, top(p, first), 4), count = n > 1 ? use(p, top(p, first + 1), 4) : 0,
	         pred = red ? use_pred(p, top(p, p->ntop - 1)) : 0;
	uint32_t d = red ? define(p, top(p, 0), has(p, "popc") ? 4 : 1) : 0;

	x = emit(p, arrive ? op_barrier_arrive : NULL, KIND_BARRIER);
	x->a = id;
	x->b = count;
	x->n = n > 1;
	x->c = pred;
	x->d = d;
	x->sub = (uint8_t)(red ? has(p, "popc") ? 2 : has(p, "and") ? 3 : 4 : arrive);
}

static bool
decode_control(Parser *p)
{
	const char *b = p->part[0];

	if (!strcmp(b, "bra"))
		branch_to(p, emit(p, NULL, KIND_BRANCH), top(p, 0)->name, top(p, 0)->name_len);
	else if (!strcmp(b, "brx"))
		decode_table_branch(p);
	else if (!strcmp(b, "ret"))
		emit(p, NULL, p->f->entry ? KIND_EXIT : KIND_RETURN);
	else if (!strcmp(b, "exit"))
		emit(p, NULL, KIND_EXIT);
	else if (!strcmp(b, "call"))
		decode_call(p);
	else if (!strcmp(b, "bar") || !strcmp(b, "barrier"))
		decode_barrier(p);
	else if (!strcmp(b, "trap") || !strcmp(b, "brkpt"))
		emit(p, op_trap, KIND_PLAIN);
	else if (!strcmp(b, "fence") && has(p, "proxy"))
		emit(p, op_proxy_fence, KIND_PLAIN);
	else if (!strcmp(b, "membar") || !strcmp(b, "fence") || !strcmp(b, "setmaxnreg") ||
	         !strcmp(b, "griddepcontrol") || !strcmp(b, "pmevent"))
		emit(p, op_nothing, KIND_PLAIN);
	else if (!strcmp(b, "nanosleep"))
		emit(p, op_nothing, KIND_YIELD);
	else
		return false;
	return true;
}

void
decode(Parser *p)
{
	const char *b = p->part[0];

	if (decode_control(p) || decode_memory(p) || decode_warp(p) || decode_tensor(p))
		return;
	if (!strcmp(b, "mov"))
		decode_mov(p);
	else if (!strcmp(b, "cvt"))
		decode_cvt(p);
	else if (!strcmp(b, "cvta"))
		decode_cvta(p);
	else if (!strcmp(b, "setp"))
		decode_setp(p);
	else if (!strcmp(b, "set"))
		decode_set(p);
	else if (!strcmp(b, "testp"))
		decode_testp(p);
	else if (!strcmp(b, "bfi"))
		decode_bfi(p);
	else if (has(p, "cc") || !strcmp(b, "addc") || !strcmp(b, "subc") || !strcmp(b, "madc"))
		decode_carry(p);
	else
		decode_alu(p);
}
