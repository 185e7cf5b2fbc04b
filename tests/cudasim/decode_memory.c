/* decode_memory.c: loads, stores, atomics, asynchronous copies by a thread.
 *
 * In: the parser at such an instruction.   Out: one Ins with the state space, the size and number of elements, and a
 * list of registers. Cache hints and memory orders are read and dropped: the interpreter runs one warp at a time and
 * has no caches. */
#include "ptx.h"

#include <string.h>

#include "atomic.h"

Space
space_of(Parser *p, int *from)
{
	static const struct {
		const char *name;
		Space space;
	} spaces[] = {{"global", SPACE_GLOBAL},          {"shared", SPACE_SHARED},     {"shared::cta", SPACE_SHARED},
	              {"shared::cluster", SPACE_SHARED}, {"local", SPACE_LOCAL},       {"param", SPACE_PARAM},
	              {"param::entry", SPACE_PARAM},     {"param::func", SPACE_PARAM}, {"const", SPACE_CONST}};

	for (int i = *from; i < p->npart; i++)
		for (size_t k = 0; k < sizeof spaces / sizeof *spaces; k++)
			if (!strcmp(p->part[i], spaces[k].name)) {
				*from = i + 1;
				return spaces[k].space;
			}
	return SPACE_GENERIC;
}

/* Base register, or none, and offset. Does not emit, so that x stays where it is. */
void
use_address(Parser *p, Ins *x, const Opnd *o)
{
	if (o->kind != OPND_MEMORY)
		parse_fail(p, CUDA_ERROR_INVALID_PTX, "an address is expected");
	x->imm = o->value;
	x->sub = 0;
	if (!o->sym) {
		x->a = o->reg;
		x->sub = (uint8_t)o->bytes;
		return;
	}
	switch (o->sym->kind) {
	case SYM_GLOBAL: x->imm += (int64_t)o->sym->address; break;
	case SYM_SHARED:
		p->m->fixup = grow(p->m->fixup, p->m->nfixup, &p->capfixup, sizeof *p->m->fixup);
		p->m->fixup[p->m->nfixup++] = (Fixup){ (uint32_t)(x - p->m->ins), (int32_t)shared_use(p, o->sym->at) };
		break;
	case SYM_LOCAL: case SYM_PARAM: case SYM_FRAME: x->imm += o->sym->at; break;
	default: decode_unknown(p);
	}
}

static Space
address_space(Parser *p, const Opnd *o, Space space)
{
	if (o->sym && o->sym->kind == SYM_FRAME)
		return SPACE_FRAME;
	if (o->sym && o->sym->kind == SYM_SHARED)
		return SPACE_SHARED;
	if (o->sym && o->sym->kind == SYM_LOCAL && space == SPACE_GENERIC)
		return SPACE_LOCAL;
	return space;
}

static int
vector_parts(const Parser *p)
{
	return has(p, "v2") ? 2 : has(p, "v4") ? 4 : has(p, "v8") ? 8 : 1;
}

static bool
is_signed_type(const char *t)
{
	return *t == 's';
}

/* ld and st: registers of a vector go into the list of the instruction. */
static void
decode_transfer(Parser *p, bool load)
{
	const char *type = p->part[p->npart - 1];
	const Opnd *address = top(p, load ? 1 : 0), *value = top(p, load ? 0 : 1);
	int n = vector_parts(p), from = 1;
	uint32_t bytes = type_bytes(type), reg[8], wide = bytes < 2 ? 2 : bytes;
	Space space = address_space(p, address, space_of(p, &from));
	Ins *x;

	if (!bytes || !strcmp(type, "pred") || (value->kind == OPND_VECTOR ? value->n : 1) != n)
		decode_unknown(p);
	for (int k = 0; k < n; k++) {
		const Opnd *o = n > 1 || value->kind == OPND_VECTOR ? &p->opnd[value->first + k] : value;

		if (o->kind == OPND_REG && o->bytes > wide)
			wide = o->bytes;
	}
	for (int k = 0; k < n; k++) {
		const Opnd *o = n > 1 || value->kind == OPND_VECTOR ? &p->opnd[value->first + k] : value;

		reg[k] = load ? define(p, o, wide) : use(p, o, wide);
	}
	x = emit(p, load ? op_load : op_store, KIND_PLAIN);
	x->space = (uint8_t)space;
	x->bytes = (uint8_t)bytes;
	x->n = (uint8_t)n;
	x->wide = (uint8_t)wide;
	x->flags = is_signed_type(type) ? INS_SIGNED : 0;
	for (int k = 1; load && k < p->npart; k++)
		if (!strcmp(p->part[k], "relaxed") || !strcmp(p->part[k], "acquire") || !strcmp(p->part[k], "volatile"))
			x->flags |= INS_LOOKS;
	x->extra = p->m->nextra;
	for (int k = 0; k < n; k++)
		extra(p, reg[k]);
	use_address(p, x, address);
	if (load && space == SPACE_PARAM && address->sym)
		x->fn = op_load_param;
}

static int
atomic_op(const Parser *p)
{
	static const char *const names[] = { "add", "min", "max", "inc", "dec", "and", "or", "xor", "exch", "cas" };

	for (int k = 0; k < 10; k++)
		if (has(p, names[k]))
			return k;
	return -1;
}

/* atom[.sem][.scope][.space].op[.vector].type d, [a], b[, c]; red without d. */
static void
decode_atomic(Parser *p, bool result)
{
	const char *type = p->part[p->npart - 1];
	int from = 1, first = result ? 1 : 0, op = atomic_op(p), n = vector_parts(p);
	const Opnd *address = top(p, first), *value = top(p, first + 1);
	Space space = address_space(p, address, space_of(p, &from));
	uint32_t bytes = type_bytes(type), reg[24] = { 0 };
	Ins *x;

	if (op < 0 || bytes < 2)
		decode_unknown(p);
	for (int k = 0; k < n; k++) {
		const Opnd *d = result ? top(p, 0) : NULL;

		reg[k] = use(p, n > 1 ? &p->opnd[value->first + k] : value, bytes);
		reg[8 + k] = op == ATOMIC_CAS ? use(p, top(p, first + 2), bytes) : 0;
		reg[16 + k] = !d || d->kind == OPND_SINK
		                      ? 0
		                      : define(p, d->kind == OPND_VECTOR ? &p->opnd[d->first + k] : d, bytes);
	}
	x = emit(p, op_atom, KIND_PLAIN);
	x->space = (uint8_t)space;
	x->bytes = (uint8_t)bytes;
	x->type = (uint8_t)type_code(type);
	x->n = (uint8_t)n;
	x->wide = (uint8_t)op;
	x->flags = 0;
	x->extra = p->m->nextra;
	for (int k = 0; k < 24; k++)
		extra(p, reg[k]);
	use_address(p, x, address);
}

/* cp.async.ca|cg.shared.global [to], [from], bytes[, source bytes] and its groups. */
static void
decode_cp_async(Parser *p)
{
	Ins *x;

	if (has(p, "commit_group")) {
		emit(p, op_cp_commit, KIND_PLAIN);
		return;
	}
	if (has(p, "wait_group") || has(p, "wait_all")) {
		int64_t keep = has(p, "wait_all") ? -1 : top(p, 0)->value;

		emit(p, op_cp_wait, KIND_PLAIN)->imm = keep;
		return;
	}
	if (has(p, "mbarrier")) {
		x = emit(p, op_cp_mbarrier, KIND_PLAIN);
		x->n = has(p, "noinc");
		use_address(p, x, top(p, 0));
		return;
	}
	const Opnd *to = top(p, 0), *from = top(p, 1);
	uint32_t given = 0;
	bool ignore = false;

	if (p->ntop > 3) {
		const Opnd *o = top(p, 3);

		ignore = o->kind == OPND_REG && o->bytes == 1;
		given = ignore ? use_pred(p, o) : o->kind == OPND_REG && o->bytes == 8 ? 0 : use(p, o, 4);
	}
	/* The source's address is a second instruction's worth of fields: base and offset are put into the list. */
	x = emit(p, op_cp_async, KIND_PLAIN);
	x->bytes = (uint8_t)top(p, 2)->value;
	use_address(p, x, from);
	x->extra = p->m->nextra;
	extra(p, (uint32_t)x->a);
	extra(p, x->sub);
	extra(p, (uint32_t)x->imm);
	extra(p, (uint32_t)((uint64_t)x->imm >> 32));
	extra(p, given);
	extra(p, ignore);
	use_address(p, x, to);
}

static void
decode_isspacep(Parser *p)
{
	int from = 1;
	Space space = space_of(p, &from);
	uint32_t d = define(p, top(p, 0), 1), a = use(p, top(p, 1), 8);
	Ins *x = emit(p, op_isspace, KIND_PLAIN);

	x->d = d;
	x->a = a;
	x->space = (uint8_t)space;
}

bool
decode_memory(Parser *p)
{
	const char *b = p->part[0];

	if (!strcmp(b, "ld") || !strcmp(b, "ldu"))
		decode_transfer(p, true);
	else if (!strcmp(b, "st"))
		decode_transfer(p, false);
	else if (!strcmp(b, "atom"))
		decode_atomic(p, true);
	else if (!strcmp(b, "red"))
		decode_atomic(p, false);
	else if (!strcmp(b, "cp") && !has(p, "bulk"))
		decode_cp_async(p);
	else if (!strcmp(b, "isspacep"))
		decode_isspacep(p);
	else if (!strcmp(b, "prefetch") || !strcmp(b, "prefetchu") || !strcmp(b, "discard") ||
	         !strcmp(b, "applypriority"))
		emit(p, op_nothing, KIND_PLAIN);
	else if (!strcmp(b, "createpolicy"))
		emit_row(p, "mov.b64", define(p, top(p, 0), 8), parse_const(p, 0, 8, -1), 0, 0);
	else
		return false;
	return true;
}
