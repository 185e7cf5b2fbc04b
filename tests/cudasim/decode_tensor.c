/* decode_tensor.c: instructions of a whole warp or more: shuffles, votes, matrix loads and products, mbarrier, bulk and
 * tensor copies.
 *
 * In: the parser at such an instruction.   Out: one Ins whose registers stand in the module's list of operands. A
 * matrix product lists d, a, b, c; the shape and types are kept in the fields that mma.c reads. */
#include "ptx.h"

#include <stdlib.h>
#include <string.h>

#include "tensor.h"

static void
decode_shfl(Parser *p)
{
	static const char *const modes[] = { "up", "down", "bfly", "idx" };
	const Opnd *to = top(p, 0);
	uint32_t d = define(p, to, 4),
	         pred = to->pair >= 0 && p->opnd[to->pair].kind != OPND_SINK ? define(p, &p->opnd[to->pair], 1) : 0;
	uint32_t a = use(p, top(p, 1), 4), b = use(p, top(p, 2), 4), c = use(p, top(p, 3), 4),
	         mask = p->ntop > 4 ? use(p, top(p, 4), 4) : 0;
	Ins *x = emit(p, op_shfl, KIND_TOGETHER);

	x->d = d;
	x->a = a;
	x->b = b;
	x->c = c;
	x->target = mask;
	x->extra = p->m->nextra;
	extra(p, pred);
	for (int k = 0; k < 4; k++)
		if (has(p, modes[k]))
			x->sub = (uint8_t)k;
}

static void
decode_vote(Parser *p)
{
	static const char *const modes[] = { "all", "any", "uni", "ballot" };
	bool ballot = has(p, "ballot");
	uint32_t d = define(p, top(p, 0), ballot ? 4 : 1), a = use_pred(p, top(p, 1)),
	         mask = p->ntop > 2 ? use(p, top(p, 2), 4) : 0;
	Ins *x = emit(p, op_vote, KIND_TOGETHER);

	x->d = d;
	x->a = a;
	x->target = mask;
	for (int k = 0; k < 4; k++)
		if (has(p, modes[k]))
			x->sub = (uint8_t)k;
}

static void
decode_match(Parser *p)
{
	const Opnd *to = top(p, 0);
	uint32_t bytes = has(p, "b64") ? 8 : 4, d = define(p, to, 4), a = use(p, top(p, 1), bytes),
	         mask = use(p, top(p, 2), 4);
	uint32_t pred = to->pair >= 0 ? define(p, &p->opnd[to->pair], 1) : 0;
	Ins *x = emit(p, op_match, KIND_TOGETHER);

	x->d = d;
	x->a = a;
	x->b = pred;
	x->bytes = (uint8_t)bytes;
	x->target = mask;
	x->sub = has(p, "all");
}

static void
decode_redux(Parser *p)
{
	static const char *const ops[] = { "add", "min", "max", "and", "or", "xor" };
	uint32_t d = define(p, top(p, 0), 4), a = use(p, top(p, 1), 4), mask = use(p, top(p, 2), 4);
	Ins *x = emit(p, op_redux, KIND_TOGETHER);

	x->d = d;
	x->a = a;
	x->target = mask;
	x->flags = has(p, "s32") ? INS_SIGNED : 0;
	x->sub = 255;
	for (int k = 0; k < 6; k++)
		if (has(p, ops[k]))
			x->sub = (uint8_t)k;
	if (x->sub == 255 || has(p, "f32"))
		decode_unknown(p);
}

static void
decode_elect(Parser *p)
{
	const Opnd *to = top(p, 0);
	uint32_t mask = use(p, top(p, 1), 4), d = to->kind == OPND_REG && to->bytes == 4 ? to->reg : 0,
	         pred = to->pair >= 0 ? define(p, &p->opnd[to->pair], 1) : 0;
	Ins *x = emit(p, op_elect, KIND_TOGETHER);

	x->d = d;
	x->b = pred;
	x->target = mask;
}

bool
decode_warp(Parser *p)
{
	const char *b = p->part[0];

	if (!strcmp(b, "shfl"))
		decode_shfl(p);
	else if (!strcmp(b, "vote"))
		decode_vote(p);
	else if (!strcmp(b, "match"))
		decode_match(p);
	else if (!strcmp(b, "redux"))
		decode_redux(p);
	else if (!strcmp(b, "elect"))
		decode_elect(p);
	else if (!strcmp(b, "activemask")) {
		uint32_t d = define(p, top(p, 0), 4);

		emit(p, op_activemask, KIND_PLAIN)->d = d;
	} else
		return false;
	return true;
}

/* matrices */

/* Registers of a vector operand, or of a single register, into the list. */
static int
list_registers(Parser *p, const Opnd *o, uint32_t *reg, uint32_t bytes, bool result)
{
	int n = o->kind == OPND_VECTOR ? o->n : 1;

	for (int k = 0; k < n; k++) {
		const Opnd *e = o->kind == OPND_VECTOR ? &p->opnd[o->first + k] : o;

		reg[k] = result ? define(p, e, bytes) : use(p, e, bytes);
	}
	return n;
}

static uint32_t
list_extra(Parser *p, const uint32_t *reg, int n)
{
	uint32_t at = p->m->nextra;

	for (int k = 0; k < n; k++)
		extra(p, reg[k]);
	return at;
}

static void
decode_matrix(Parser *p, bool load)
{
	uint32_t reg[4];
	const Opnd *value = top(p, load ? 0 : 1);
	int n = list_registers(p, value, reg, 4, load);
	Ins *x;

	if (!has(p, "m8n8") || !has(p, "b16"))
		decode_unknown(p);
	x = emit(p, load ? op_ldmatrix : op_stmatrix, KIND_TOGETHER);
	x->n = (uint8_t)n;
	x->type = has(p, "trans");
	x->extra = list_extra(p, reg, n);
	use_address(p, x, top(p, load ? 1 : 0));
	if (has(p, "shared") || has(p, "shared::cta"))
		x->space = SPACE_SHARED;
}

static void
decode_movmatrix(Parser *p)
{
	uint32_t d = define(p, top(p, 0), 4), a = use(p, top(p, 1), 4);
	Ins *x = emit(p, op_movmatrix, KIND_TOGETHER);

	x->d = d;
	x->a = a;
}

static int
element_code(const char *t)
{
	static const char *const names[] = { "f16", "bf16", "tf32", "s8", "u8", "e4m3", "e5m2" };

	for (int k = 0; k < 7; k++)
		if (!strcmp(t, names[k]))
			return k;
	return -1;
}

/* mma.sync.aligned.m16n8kK.row.col[.satfinite].dtype.atype.btype.ctype d, a, b, c */
static void
decode_mma(Parser *p)
{
	uint32_t reg[16], d[4];
	int n = 0, nd, at = -1, k = 0, a, b;
	Ins *x;

	for (int i = 1; i < p->npart; i++)
		if (!strncmp(p->part[i], "m16n8k", 6)) {
			at = i;
			k = atoi(p->part[i] + 6);
		}
	a = element_code(p->part[p->npart - 3]);
	b = element_code(p->part[p->npart - 2]);
	if (at < 0 || a < 0 || b < 0 || !has(p, "row") || !has(p, "col"))
		decode_unknown(p);
	bool half = !strcmp(p->part[p->npart - 1], "f16");
	int elements = a <= 1 ? 2 : a == 2 ? 1 : 4, na = k / (4 * elements) * 2, nb = k / (4 * elements);

	nd = list_registers(p, top(p, 0), d, 4, true);
	n = list_registers(p, top(p, 1), reg, 4, false);
	if (n != na || nd != (half ? 2 : 4))
		decode_unknown(p);
	n += list_registers(p, top(p, 2), reg + n, 4, false);
	if (n != na + nb)
		decode_unknown(p);
	n += list_registers(p, top(p, 3), reg + n, 4, false);
	if (n != na + nb + nd)
		decode_unknown(p);
	x = emit(p, op_mma, KIND_TOGETHER);
	x->n = (uint8_t)k;
	x->type = (uint8_t)a;
	x->sub = (uint8_t)b;
	x->wide = half;
	x->bytes = has(p, "satfinite");
	x->extra = list_extra(p, d, nd);
	list_extra(p, reg, n);
}

/* wgmma.mma_async.sync.aligned.m64nNkK.f32.atype.btype {d}, a, b-descriptor, scale-d, scale-a, scale-b[, trans-a,
 * trans-b] */
static void
decode_wgmma(Parser *p)
{
	static uint32_t reg[160];
	int n, at = -1, a, b, na = 0, mn = 0, k = 0;
	Ins *x;

	if (has(p, "fence")) {
		emit(p, op_nothing, KIND_PLAIN);
		return;
	}
	if (has(p, "commit_group")) {
		emit(p, op_wgmma_commit, KIND_TOGETHER);
		return;
	}
	if (has(p, "wait_group")) {
		int64_t keep = top(p, 0)->value;

		emit(p, op_wgmma_wait, KIND_TOGETHER)->imm = keep;
		return;
	}
	for (int i = 1; i < p->npart; i++)
		if (!strncmp(p->part[i], "m64n", 4)) {
			char *end;

			at = i;
			mn = (int)strtol(p->part[i] + 4, &end, 10);
			k = atoi(end + 1);
		}
	a = element_code(p->part[p->npart - 2]);
	b = element_code(p->part[p->npart - 1]);
	if (at < 0 || a < 0 || b < 0 || a != b || a > 2 || strcmp(p->part[at + 1], "f32"))
		decode_unknown(p);
	n = list_registers(p, top(p, 0), reg, 4, true);
	if (n != mn / 2)
		decode_unknown(p);
	const Opnd *oa = top(p, 1);

	na = oa->kind == OPND_VECTOR ? list_registers(p, oa, reg + n, 4, false) : 0;
	if (!na)
		reg[n] = use(p, oa, 8);
	reg[n + (na ? na : 1)] = use(p, top(p, 2), 8);

	uint32_t scale = use_pred(p, top(p, 3));
	int64_t signs = top(p, 4)->value < 0, trans = 0;

	signs |= (int64_t)(top(p, 5)->value < 0) << 1;
	if (p->ntop > 7)
		trans = top(p, 6)->value | top(p, 7)->value << 1;
	else if (p->ntop > 6)
		trans = top(p, 6)->value << 1;
	x = emit(p, op_wgmma, KIND_TOGETHER);
	x->n = (uint8_t)(mn / 8);
	x->wide = (uint8_t)k;
	x->type = (uint8_t)a;
	x->bytes = (uint8_t)na;
	x->c = scale;
	x->imm = signs | trans << 2;
	x->extra = list_extra(p, reg, n + (na ? na : 1) + 1);
}

/* mbarrier */

static void
decode_mbarrier(Parser *p)
{
	static const struct {
		const char *name;
		int op;
	} ops[] = {{"init", MBAR_INIT},        {"inval", MBAR_INVAL},
	           {"arrive", MBAR_ARRIVE},    {"arrive_drop", MBAR_ARRIVE_DROP},
	           {"expect_tx", MBAR_EXPECT}, {"complete_tx", MBAR_COMPLETE},
	           {"test_wait", MBAR_TEST},   {"try_wait", MBAR_TEST}};
	int op = -1, first = 0;
	uint32_t d = 0, b = 0;
	const Opnd *to = top(p, 0);
	Ins *x;

	for (size_t k = 0; k < sizeof ops / sizeof *ops; k++)
		if (!strcmp(p->part[1], ops[k].name))
			op = ops[k].op;
	if (op < 0)
		decode_unknown(p);
	if (to->kind != OPND_MEMORY) {
		first = 1;
		d = to->kind == OPND_SINK ? 0 : define(p, to, op == MBAR_TEST ? 1 : 8);
	}
	if (p->ntop > first + 1) {
		bool state = op == MBAR_TEST && !has(p, "parity");

		b = use(p, top(p, first + 1), state ? 8 : 4);
	}
	x = emit(p, op_mbarrier, op == MBAR_TEST ? KIND_YIELD : KIND_PLAIN);
	x->type = (uint8_t)op;
	x->d = d;
	x->b = b;
	x->n = has(p, "parity");
	x->bytes = (op == MBAR_ARRIVE || op == MBAR_ARRIVE_DROP) && has(p, "expect_tx");
	use_address(p, x, top(p, first));
	if (has(p, "shared") || has(p, "shared::cta") || has(p, "shared::cluster"))
		x->space = SPACE_SHARED;
}

/* cp.async.bulk without tensors, its groups, and tensor copies: addresses as pairs of base and offset in the list. */
static void
list_address(Parser *p, Ins *x, const Opnd *o)
{
	if (o->sym && o->sym->kind == SYM_SHARED)
		parse_fail(p, CUDA_ERROR_INVALID_PTX, "bulk copies take addresses in registers");
	use_address(p, x, o);
	extra(p, x->a);
	extra(p, x->sub);
	extra(p, (uint32_t)x->imm);
	extra(p, (uint32_t)((uint64_t)x->imm >> 32));
}

static void
decode_bulk(Parser *p)
{
	/* [dst], [src], size, [mbar][, mask]: global to shared, shared to cluster; without mbar: shared to global */
	bool to_shared = !strncmp(p->part[3], "shared", 6), multicast = has(p, "multicast::cluster");
	uint32_t size = use(p, top(p, 2), 4), mask = multicast ? use(p, top(p, 4), 2) : 0;
	Ins *x = emit(p, op_bulk, KIND_PLAIN);

	x->type = (uint8_t)to_shared;
	x->space = (uint8_t)(!strncmp(p->part[4], "shared", 6) ? SPACE_SHARED : SPACE_GLOBAL);
	x->b = size;
	x->c = mask;
	x->extra = p->m->nextra;
	list_address(p, x, top(p, 0));
	list_address(p, x, top(p, 1));
	if (to_shared)
		list_address(p, x, top(p, 3));
}

/* cp.async.bulk.tensor.Nd.dst.src[.tile|.im2col]...[.multicast] [dst], [map, {c}], [mbar][, {offsets}][, mask]; stores:
 * [map, {c}], [src] */
static void
decode_bulk_tensor(Parser *p)
{
	int dims = p->part[4][0] - '0';
	bool load = !strncmp(p->part[5], "shared", 6), im2col = has(p, "im2col") || has(p, "im2col_no_offs"),
	     multicast = has(p, "multicast::cluster");
	const Opnd *map = top(p, load ? 1 : 0), *memory = top(p, load ? 0 : 1);
	uint32_t coord[8] = { 0 }, offset[3] = { 0 }, mask = 0;
	int next = 3;
	Ins *x;

	if (dims < 1 || dims > 5 || map->n != dims)
		decode_unknown(p);
	for (int k = 0; k < dims; k++)
		coord[k] = use(p, &p->opnd[map->first + k], 4);
	if (load && im2col) {
		const Opnd *o = top(p, next++);

		for (int k = 0; k < o->n && k < 3; k++)
			offset[k] = use(p, &p->opnd[o->first + k], 2);
	}
	if (load && multicast)
		mask = use(p, top(p, next), 2);
	if (strcmp(p->part[2], "bulk") || strcmp(p->part[3], "tensor"))
		decode_unknown(p);
	x = emit(p, op_tensor, KIND_PLAIN);
	x->type = (uint8_t)load;
	x->n = (uint8_t)dims;
	x->sub = 0;
	x->bytes = im2col;
	x->wide = !strcmp(p->part[1], "reduce") ? 1 : 0;
	x->c = mask;
	x->extra = p->m->nextra;
	list_address(p, x, memory);
	list_address(p, x, map);
	if (load)
		list_address(p, x, top(p, 2));
	else
		for (int k = 0; k < 4; k++)
			extra(p, 0);
	for (int k = 0; k < 5; k++)
		extra(p, coord[k]);
	for (int k = 0; k < 3; k++)
		extra(p, offset[k]);
}

static void
decode_bulk_any(Parser *p)
{
	if (has(p, "commit_group")) {
		emit(p, op_bulk_commit, KIND_PLAIN);
	} else if (has(p, "wait_group")) {
		int64_t keep = top(p, 0)->value;
		Ins *x = emit(p, op_bulk_wait, KIND_PLAIN);

		x->imm = keep;
		x->n = has(p, "read");
	} else if (has(p, "prefetch") || !strcmp(p->part[1], "reduce")) {
		decode_unknown(p);
	} else if (has(p, "tensor")) {
		decode_bulk_tensor(p);
	} else {
		decode_bulk(p);
	}
}

bool
decode_tensor(Parser *p)
{
	const char *b = p->part[0];

	if (!strcmp(b, "ldmatrix"))
		decode_matrix(p, true);
	else if (!strcmp(b, "stmatrix"))
		decode_matrix(p, false);
	else if (!strcmp(b, "movmatrix"))
		decode_movmatrix(p);
	else if (!strcmp(b, "mma"))
		decode_mma(p);
	else if (!strcmp(b, "wgmma"))
		decode_wgmma(p);
	else if (!strcmp(b, "mbarrier"))
		decode_mbarrier(p);
	else if (!strcmp(b, "cp"))
		decode_bulk_any(p);
	else if (!strcmp(b, "mapa")) {
		bool wide = has(p, "u64");
		uint32_t d = define(p, top(p, 0), wide ? 8 : 4), a = use(p, top(p, 1), wide ? 8 : 4),
		         r = use(p, top(p, 2), 4);
		Ins *x = emit(p, op_mapa, KIND_PLAIN);

		x->d = d;
		x->a = a;
		x->b = r;
		x->bytes = wide ? 8 : 4;
	} else
		return false;
	return true;
}
