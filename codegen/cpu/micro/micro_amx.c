/* micro_amx.c: the microkernel of bf16 operands on CPUs with matrix tiles (AMX): 2 x 2 tiles of 16 x 16 sums, 32
 * steps of k at once.
 *
 * In: a tile of 1 to 32 rows x 1 or 2 vectors of 16 columns, operands in pairs along k.   Out: a function of the
 * contract of gemm_micro for pairs and a last argument, the number of rows. A's pairs must lie side by side (S_AK is 4:
 * amx_transpose makes them so), B's rows are what the tile instructions want already. Sums are tiles 0 to 3, A 4 and 5,
 * B 6 and 7, all configured as 16 rows of 64 bytes for the whole kernel
 * (amx_open): edges are a matter of addresses.
 * - 17 to 32 rows: the second tile is the last 16 rows and overlaps the first; what both hold is computed alike and
 * stored twice.
 *  - fewer than 16 rows, the rest of k, a last vector of B that is no whole one: zero-padded copies on the stack.
 * Instructions and their order after the study of 2 x 2 blocks in the design: A0 B0 C00 B1 C01 A1 C10 C11. Products are
 * exact, sums of even and of odd k within 32 steps come first; the CPU takes subnormal numbers for zero and gives
 * none. */
#include "../emit/code.h"
#include <string.h>

typedef struct Amx {
	Code c;
	T vt;                    /* a row of a tile as 16 words */
	int nv, nr;              /* tiles of columns and of rows */
	bool few;                /* fewer than AMX_EDGE rows */
	bool part, copy_b;       /* the last vector of columns is masked; B has no room behind it either */
	int share;               /* bytes of the next panel that a pair of k asks for; 0: none */
	V next;                  /* share: where the step's own begin */
	V st[S_COUNT], rows, mask, all, second; /* second: number of the second tile's first row */
	V abuf, bbuf, cbuf;
} Amx;

/* ---------------------------------------------------------------- copies */
typedef enum CopyWay { COPY_IN, COPY_OUT } CopyWay;

/* void (buffer, there, stride, rows, mask): COPY_IN fills the buffer with rows of 16 words, zeros where there are none;
 * COPY_OUT stores them. */
static V
copy_function(Llvm *l, CopyWay way)
{
	T args[5] = {l->ptr, l->ptr, l->i64, l->i64, l->i64}, vt = LLVMVectorType(l->i32, AMX_EDGE);
	Code c;
	V fn = code_begin(&c, l, way == COPY_IN ? "tile_copy_in" : "tile_copy_out", args, 5);

	if (fn)
		return fn;
	V at = code_var(&c, l->ptr), there = code_var(&c, l->ptr), mask = code_mask(&c, code_arg(&c, 4), AMX_EDGE);

	code_set(&c, at, code_arg(&c, 0));
	code_set(&c, there, code_arg(&c, 1));
	CodeLoop loop = code_loop(&c, code_arg(&c, 3));

	if (way == COPY_IN)
		code_store(&c, code_load(&c, vt, code_get(&c, there), mask), code_get(&c, at), NULL);
	else
		code_store(&c, code_load(&c, vt, code_get(&c, at), NULL), code_get(&c, there), mask);
	code_set(&c, at, code_at(&c, code_get(&c, at), code_k(&c, 64)));
	code_set(&c, there, code_at(&c, code_get(&c, there), code_arg(&c, 2)));
	code_loop_end(&c, loop);
	if (way == COPY_OUT)
		return code_end(&c);
	CodeIf rest = code_if(&c, LLVMBuildICmp(c.b, LLVMIntSLT, code_arg(&c, 3), code_k(&c, AMX_EDGE), ""));
	CodeLoop zero = code_loop(&c, LLVMBuildSub(c.b, code_k(&c, AMX_EDGE), code_arg(&c, 3), ""));

	code_store(&c, LLVMConstNull(vt), code_get(&c, at), NULL);
	code_set(&c, at, code_at(&c, code_get(&c, at), code_k(&c, 64)));
	code_loop_end(&c, zero);
	code_fi(&c, &rest);
	return code_end(&c);
}

static void
copy(Amx *a, CopyWay way, V buffer, V there, V stride, V rows, V mask)
{
	V fn = copy_function(a->c.l, way), args[5] = {buffer, there, stride, rows, mask};

	LLVMBuildCall2(a->c.b, LLVMGlobalGetValueType(fn), fn, args, 5, "");
}

/* ---------------------------------------------------------------- tiles */
static V
number(const Amx *a, int tile)
{
	return LLVMConstInt(a->c.l->i8, (unsigned)tile, 0);
}

static void
tile_load(Amx *a, int tile, V at, V stride)
{
	isa_tile(a->c.l, a->c.b, "tileloadd64", (V[]){number(a, tile), at, stride}, 3);
}

static void
tile_store(Amx *a, int tile, V at, V stride)
{
	isa_tile(a->c.l, a->c.b, "tilestored64", (V[]){number(a, tile), at, stride}, 3);
}

static void
dot(Amx *a, int i, int j)
{
	isa_tile(a->c.l, a->c.b, "tdpbf16ps", (V[]){number(a, 2 * i + j), number(a, 4 + i), number(a, 6 + j)}, 3);
}

typedef struct Operand { V at[2], stride; } Operand;

static void
dots(Amx *a, const Operand *x, const Operand *y)
{
	for (int i = 0; i < a->nr; i++)
		for (int j = 0; j < a->nv; j++) {
			if (!j)
				tile_load(a, 4 + i, x->at[i], x->stride);
			if (!i)
				tile_load(a, 6 + j, y->at[j], y->stride);
			dot(a, i, j);
		}
}

static V
rows_on(Amx *a, V p, int i, V stride)
{
	return i ? code_at(&a->c, p, LLVMBuildMul(a->c.b, a->second, stride, "")) : p;
}

static V
buffer_at(Amx *a, V buffer, int i)
{
	return code_at(&a->c, buffer, code_k(&a->c, (int64_t)i * AMX_BYTES));
}

/* `pairs` pairs of k, from pa and pb on; NULL: all that a tile holds. */
static void
step(Amx *a, V pa, V pb, V pairs)
{
	Code *c = &a->c;
	V line = code_k(c, 64), of_k = a->all;
	Operand x = {.stride = a->st[S_AM]}, y = {.stride = a->st[S_BK]};

	if (pairs)
		of_k = LLVMBuildSub(c->b, LLVMBuildShl(c->b, code_k(c, 1), pairs, ""), code_k(c, 1), "");
	for (int i = 0; i < a->nr; i++) {
		V from = rows_on(a, pa, i, a->st[S_AM]);

		x.at[i] = from;
		if (pairs || a->few) {
			x.at[i] = buffer_at(a, a->abuf, i);
			copy(a, COPY_IN, x.at[i], from, a->st[S_AM], a->few ? a->rows : code_k(c, AMX_EDGE), of_k);
		}
	}
	for (int j = 0; j < a->nv; j++) {
		y.at[j] = code_at(c, pb, code_k(c, j * 64));
		if (pairs || (a->copy_b && j == a->nv - 1)) {
			V from = y.at[j];

			y.at[j] = buffer_at(a, a->bbuf, j);
			copy(a, COPY_IN, y.at[j], from, a->st[S_BK], pairs ? pairs : code_k(c, AMX_PAIRS),
			     a->part && j == a->nv - 1 ? a->mask : a->all);
		}
	}
	/* one stride for both tiles of B: a whole vector beside a copied one is copied too */
	if (!pairs && a->copy_b && a->nv == 2) {
		copy(a, COPY_IN, buffer_at(a, a->bbuf, 0), y.at[0], a->st[S_BK], code_k(c, AMX_PAIRS), a->all);
		y.at[0] = buffer_at(a, a->bbuf, 0);
	}
	x.stride = pairs || a->few ? line : x.stride;
	y.stride = pairs || a->copy_b ? line : y.stride;
	dots(a, &x, &y);
}

/* nk pairs of one tap. */
static void
tap(Amx *a, V pa, V pb)
{
	Code *c = &a->c;
	V nk = a->st[S_NK], whole = LLVMBuildSDiv(c->b, nk, code_k(c, AMX_PAIRS), ""),
	  rest = LLVMBuildSRem(c->b, nk, code_k(c, AMX_PAIRS), "");
	V xa = code_var(c, c->l->ptr), xb = code_var(c, c->l->ptr);

	code_set(c, xa, pa);
	code_set(c, xb, pb);
	CodeIf any = code_if(c, LLVMBuildICmp(c->b, LLVMIntSGT, whole, code_k(c, 0), ""));
	CodeLoop k = code_loop(c, whole);

	step(a, code_get(c, xa), code_get(c, xb), NULL);
	for (int i = 0; i < AMX_PAIRS * a->share; i += LINE)
		isa_prefetch(c->l, c->b, code_at(c, code_get(c, a->next), code_k(c, i)), 2);
	if (a->share)
		code_set(c, a->next, code_at(c, code_get(c, a->next), code_k(c, (int64_t)AMX_PAIRS * a->share)));
	code_set(c, xa, code_at(c, code_get(c, xa), code_k(c, AMX_PAIRS * 4)));
	code_set(c, xb, code_at(c, code_get(c, xb), LLVMBuildMul(c->b, a->st[S_BK], code_k(c, AMX_PAIRS), "")));
	code_loop_end(c, k);
	code_fi(c, &any);
	CodeIf tail = code_if(c, LLVMBuildICmp(c->b, LLVMIntSGT, rest, code_k(c, 0), ""));

	step(a, code_get(c, xa), code_get(c, xb), rest);
	code_fi(c, &tail);
}

static void
taps(Amx *a, V np, V nq)
{
	Code *c = &a->c;
	V pa[2], pb[2];

	for (int i = 0; i < 2; i++) {
		pa[i] = code_var(c, c->l->ptr);
		pb[i] = code_var(c, c->l->ptr);
	}
	code_set(c, pa[0], code_arg(c, 0));
	code_set(c, pb[0], code_arg(c, 1));
	CodeLoop p = code_loop(c, np);

	code_set(c, pa[1], code_get(c, pa[0]));
	code_set(c, pb[1], code_get(c, pb[0]));
	CodeLoop q = code_loop(c, nq);

	tap(a, code_get(c, pa[1]), code_get(c, pb[1]));
	code_set(c, pa[1], code_at(c, code_get(c, pa[1]), a->st[S_AQ]));
	code_set(c, pb[1], code_at(c, code_get(c, pb[1]), a->st[S_BQ]));
	code_loop_end(c, q);
	code_set(c, pa[0], code_at(c, code_get(c, pa[0]), a->st[S_AP]));
	code_set(c, pb[0], code_at(c, code_get(c, pb[0]), a->st[S_BP]));
	code_loop_end(c, p);
}

/* Tile (i, j) of the sums from memory or to it. */
static void
sums_move(Amx *a, int i, int j, CopyWay way)
{
	Code *c = &a->c;
	V at = code_at(c, rows_on(a, code_arg(c, 2), i, a->st[S_CM]), code_k(c, j * 64)),
	  rows = a->few ? a->rows : code_k(c, AMX_EDGE);
	bool part = a->part && j == a->nv - 1, buffered = part || a->few;

	if (buffered && way == COPY_IN)
		copy(a, COPY_IN, a->cbuf, at, a->st[S_CM], rows, part ? a->mask : a->all);
	(way == COPY_IN ? tile_load : tile_store)(a, 2 * i + j, buffered ? a->cbuf : at,
	                                          buffered ? code_k(c, 64) : a->st[S_CM]);
	if (buffered && way == COPY_OUT)
		copy(a, COPY_OUT, a->cbuf, at, a->st[S_CM], rows, part ? a->mask : a->all);
}

V
gemm_micro_amx(Llvm *l, int rows, int nv, bool masked, bool copy_b, int share)
{
	char name[64], of_next[16] = "";
	T args[9] = {l->ptr, l->ptr, l->ptr, l->i64, l->i64, l->ptr, l->i64, l->i64, l->i64};
	Amx a = {.nv = nv,
	         .nr = rows > AMX_EDGE ? 2 : 1,
	         .few = rows < AMX_EDGE,
	         .part = masked,
	         .share = share,
	         .copy_b = masked && copy_b,
	         .vt = LLVMVectorType(l->i32, AMX_EDGE)};
	Code *c = &a.c;

	if (rows > 2 * AMX_EDGE || nv > 2)
		bug("matrix tiles of %d rows and %d vectors", rows, nv);
	if (share)
		snprintf(of_next, sizeof of_next, "x%d", share);
	snprintf(name, sizeof name, "micro_amx_%s_%d%s%s%s",
	         a.few         ? "few"
	         : rows > AMX_EDGE ? "two"
	                       : "one",
	         nv, masked ? "m" : "", a.copy_b ? "b" : "", of_next);
	V fn = code_begin(c, l, name, args, 9);

	if (fn)
		return fn;
	V np = code_arg(c, 3), nq = code_arg(c, 4), zero = code_k(c, 0);

	for (int i = 0; i < S_NEXT; i++)
		a.st[i] = code_stride(c, code_arg(c, 5), i);
	if (share) {
		V which = code_k(c, S_NEXT), at = LLVMBuildInBoundsGEP2(c->b, l->i64, code_arg(c, 5), &which, 1, "");

		a.next = code_var(c, l->ptr);
		code_set(c, a.next, LLVMBuildLoad2(c->b, l->ptr, at, ""));
	}
	a.mask = code_arg(c, 7);
	a.rows = code_arg(c, 8);
	a.all = code_k(c, -1);
	a.second = LLVMBuildSub(c->b, a.rows, code_k(c, AMX_EDGE), "");
	a.abuf = code_var(c, LLVMArrayType2(l->i8, 2 * AMX_BYTES));
	a.bbuf = code_var(c, LLVMArrayType2(l->i8, 2 * AMX_BYTES));
	a.cbuf = code_var(c, LLVMArrayType2(l->i8, AMX_BYTES));
	CodeIf add = code_if(c, LLVMBuildICmp(c->b, LLVMIntNE, code_arg(c, 6), zero, ""));

	for (int t = 0; t < a.nr * nv; t++)
		sums_move(&a, t / nv, t % nv, COPY_IN);
	code_else(c, &add);
	for (int t = 0; t < a.nr * nv; t++)
		isa_tile(l, c->b, "tilezero", (V[]){number(&a, t / nv * 2 + t % nv)}, 1);
	code_fi(c, &add);
	/* a border pixel may have no tap at all */
	CodeIf some = code_if(c, LLVMBuildAnd(c->b, LLVMBuildICmp(c->b, LLVMIntSGT, np, zero, ""),
	                                      LLVMBuildICmp(c->b, LLVMIntSGT, nq, zero, ""), ""));

	taps(&a, np, nq);
	code_fi(c, &some);
	for (int t = 0; t < a.nr * nv; t++)
		sums_move(&a, t / nv, t % nv, COPY_OUT);
	return code_end(c);
}

/* ---------------------------------------------------------------- configuration */
static void
amx_close(Emit *e)
{
	isa_tile(e->l, here(e), "tilerelease", NULL, 0);
}

void
amx_open(Emit *e)
{
	enum { BYTES = 64, COLSB = 16, ROWS = 48 };
	Llvm *l = e->l;
	V byte[BYTES], config = LLVMGetNamedGlobal(l->mod, "tile_config");

	if (!config) {
		for (int i = 0; i < BYTES; i++) {
			bool columns = i >= COLSB && i < COLSB + 16 && i % 2 == 0, rows = i >= ROWS && i < ROWS + 8;

			byte[i] = LLVMConstInt(l->i8, i == 0 ? 1 : columns ? 64 : rows ? AMX_EDGE : 0, 0);
		}
		V init = LLVMConstArray2(l->i8, byte, BYTES);

		config = LLVMAddGlobal(l->mod, LLVMTypeOf(init), "tile_config");
		LLVMSetInitializer(config, init);
		LLVMSetGlobalConstant(config, 1);
		LLVMSetLinkage(config, LLVMInternalLinkage);
		LLVMSetAlignment(config, 64);
	}
	if (e->close)
		return;
	if (e->depth)
		bug("tiles are configured within a loop");
	isa_tile(l, here(e), "ldtilecfg", &config, 1);
	e->close = amx_close;
}

V
amx_copy_out(Llvm *l)
{
	return copy_function(l, COPY_OUT);
}
