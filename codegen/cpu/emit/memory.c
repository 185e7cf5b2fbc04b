/* memory.c: loads and stores of cells.
 *
 * In: a type, logical indices.   Out: an element offset, a vector load (masked at edges), a single number or a gather,
 * whatever the indices allow; the form in memory becomes the form that arithmetic uses (f16 and bf16 float, bool i1). A
 * load goes to the level of its address unless Emit.load_here says that this kernel writes there. */
#include "../cpu.h"

static T
mtype(const Emit *e, DType dt)
{
	switch (dt) {
	case DT_f16: return isa_converts_f16(e->l) ? e->l->half : e->l->i16;
	case DT_bf16: return e->l->i16;
	case DT_bool: return e->l->i8;
	default: return ctype(e, dt);
	}
}

void
strides_of(Emit *e, const Type *t, V stride[MAX_RANK])
{
	V s = k64(e, 1);

	for (int i = t->rank; i-- > 0;) {
		int a = t->perm[i];

		stride[a] = s;
		s = i_mul(e, s, extent(e, t->axis[a]));
	}
}

Off
offset_of(Emit *e, const Type *t, const Ix *ix)
{
	V stride[MAX_RANK], term[MAX_RANK];
	int lvl[MAX_RANK], n = 0;
	Off o = {.s = k64(e, 0)};

	strides_of(e, t, stride);
	for (int j = 0; j < t->rank; j++) {
		if (ix_is(&ix[j], 0))
			continue;
		Ix x = ix_mul(e, ix[j], stride[j]);
		int l = level_of(e, x.s), k = n++;

		o.c += x.c;
		o.g = ix_add(e, (Ix){.s = o.s, .g = o.g}, (Ix){.s = k64(e, 0), .g = x.g}).g;
		for (; k > 0 && lvl[k - 1] > l; k--) {
			lvl[k] = lvl[k - 1];
			term[k] = term[k - 1];
		}
		lvl[k] = l;
		term[k] = x.s;
	}
	for (int k = 0; k < n; k++)
		o.s = i_add(e, o.s, term[k]);
	return o;
}

V
buffer(Emit *e, int k)
{
	while (e->buf.n <= (uint32_t)k)
		vec_push(e->arena, &e->buf, NULL);
	if (!e->buf.at[k]) {
		LLVMBuilderRef b = e->lv[0].b;
		V at = k64(e, k), slot = LLVMBuildInBoundsGEP2(b, e->l->i64, e->arg_off, &at, 1, "");
		V off = LLVMBuildLoad2(b, e->l->i64, slot, "off");

		e->buf.at[k] = LLVMBuildInBoundsGEP2(b, e->l->i8, e->arg_arena, &off, 1, "buf");
	}
	return e->buf.at[k];
}

V
scratch_ptr(Emit *e, int64_t byte_offset)
{
	V off = k64(e, byte_offset);

	e->uses_scratch = true;
	return LLVMBuildInBoundsGEP2(e->lv[0].b, e->l->i8, e->arg_scratch, &off, 1, "scratch");
}

/* Does the CPU round vectors of W elements to bf16 itself? Its instruction takes subnormal numbers for zero, as
 * its dot products do, so it serves for their operands only. */
static bool
converts_bf16(const Emit *e)
{
	return e->l->arch->round_bf16 && (e->W == 16 || e->W == 8);
}

/* Memory form to the form that arithmetic uses, and back. */
static V
widen(Emit *e, V v, DType dt, bool vec)
{
	LLVMBuilderRef b = at1(e, v);
	T t = ctype_v(e, dt, vec);

	if (dt == DT_f16)
		return isa_converts_f16(e->l) ? LLVMBuildFPExt(b, v, t, "") : isa_widen_f16(e->l, b, v);
	if (dt == DT_bool)
		return LLVMBuildICmp(b, LLVMIntNE, v, LLVMConstNull(LLVMTypeOf(v)), "");
	if (dt == DT_bf16) {
		T it = vec ? vec_of(e, e->l->i32) : e->l->i32;
		V w = LLVMBuildZExt(b, v, it, ""), k = LLVMConstInt(e->l->i32, 16, 0);

		return LLVMBuildBitCast(b, LLVMBuildShl(b, w, vec ? splat(e, k) : k, ""), t, "");
	}
	return v;
}

/* The bits that widen made v of, if it did: a rounding behind another one has nothing to do. */
static V
widened_bf16(const Emit *e, V v, bool vec)
{
	V s = LLVMIsABitCastInst(v) ? LLVMGetOperand(v, 0) : NULL;
	V z = s && LLVMIsAInstruction(s) && LLVMGetInstructionOpcode(s) == LLVMShl ? LLVMGetOperand(s, 0) : NULL;

	return z && LLVMIsAZExtInst(z) && LLVMTypeOf(LLVMGetOperand(z, 0)) == (vec ? vec_of(e, e->l->i16) : e->l->i16)
	       ? LLVMGetOperand(z, 0) : NULL;
}

static V
narrow(Emit *e, V v, DType dt, bool vec)
{
	LLVMBuilderRef b = at1(e, v);
	T t = vec ? vec_of(e, mtype(e, dt)) : mtype(e, dt);

	if (dt == DT_f16)
		return isa_converts_f16(e->l) ? LLVMBuildFPTrunc(b, v, t, "") : isa_narrow_f16(e->l, b, v);
	if (dt == DT_bool)
		return LLVMBuildZExt(b, v, t, "");
	if (dt != DT_bf16)
		return v;
	V was = widened_bf16(e, v, vec);

	if (was)
		return was;
	/* to the nearest, ties to even, on the bits, subnormal numbers like all others; a NaN keeps its sign and
	 * becomes quiet */
	T it = vec ? vec_of(e, e->l->i32) : e->l->i32;
#define K(x) (vec ? splat(e, LLVMConstInt(e->l->i32, (x), 0)) : LLVMConstInt(e->l->i32, (x), 0))
	V u = LLVMBuildBitCast(b, v, it, ""),
		even = LLVMBuildICmp(b, LLVMIntEQ, LLVMBuildAnd(b, u, K(0x10000), ""), K(0), "");
	V r = LLVMBuildSelect(b, even, LLVMBuildAdd(b, u, K(0x7fff), ""), LLVMBuildAdd(b, u, K(0x8000), ""), "");
	V nan = LLVMBuildFCmp(b, LLVMRealUNO, v, v, "");

	r = LLVMBuildLShr(b, LLVMBuildSelect(b, nan, LLVMBuildOr(b, u, K(0x400000), ""), r, ""), K(16), "");
#undef K
	return LLVMBuildTrunc(b, r, t, "");
}

V
vec_half(Emit *e, V v, DType to)
{
	if (to == DT_bf16 && converts_bf16(e))
		v = LLVMBuildFPTrunc(at1(e, v), v, vec_of(e, LLVMBFloatTypeInContext(e->l->cx)), "");
	else
		v = narrow(e, v, to, true);
	return LLVMBuildBitCast(here(e), v, vec_of(e, e->l->i16), "");
}

Cell
cell_rounded(Emit *e, Cell c)
{
	if (c.dt == DT_f16 || c.dt == DT_bf16)
		c.v = round_half(e, c.v, (DType)c.dt, c.vec);
	return c;
}

V
round_half(Emit *e, V v, DType to, bool vec)
{
	return widen(e, narrow(e, v, to, vec), to, vec);
}

static V
full_mask(Emit *e)
{
	return splat(e, LLVMConstInt(e->l->i1, 1, 0));
}

static V
load_mask(Emit *e)
{
	return e->pred ? mask_and(e, e->mask, splat(e, e->pred)) : e->mask;
}

static V
gather_pointers(Emit *e, T mt, V base, Off o)
{
	V idx = ix_vec(e, (Ix){.s = k64(e, 0), .c = o.c, .g = o.g});
	V p = LLVMBuildGEP2(at2(e, base, o.s), mt, base, &o.s, 1, "");

	return LLVMBuildGEP2(at2(e, p, idx), mt, p, &idx, 1, "");
}

/* Loads of lanes that stand `stride` elements apart from p on, a few or -1, as whole vectors whose lanes are picked:
 * gathers take a cycle or more for each lane. The last vector ends with the last lane, so that no load leaves what the
 * lanes span. */
enum { PICKED = 8 };

/* Joins vectors a and b, whose lanes of the result stand at from[0] and from[1] (-1: not there), into the former. */
static V
pick_pair(Emit *e, LLVMBuilderRef at, V a, V b, int *from[2])
{
	V *index = arena_array(e->arena, V, e->W);

	for (int i = 0; i < e->W; i++) {
		bool first = from[0][i] >= 0, any = first || from[1][i] >= 0;

		index[i] = any ? LLVMConstInt(e->l->i32, (unsigned)(first ? from[0][i] : e->W + from[1][i]), 0)
		               : LLVMGetUndef(e->l->i32);
		from[0][i] = any ? i : -1;
	}
	return LLVMBuildShuffleVector(at, a, b, LLVMConstVector(index, (unsigned)e->W), "");
}

static V
load_strided(Emit *e, LLVMBuilderRef at, T mt, V p, int64_t stride)
{
	T vt = vec_of(e, mt);
	int n = stride < 0 ? 1 : (int)stride, *lane[PICKED];
	int64_t span = (stride < 0 ? -stride : stride) * (e->W - 1), lowest = stride < 0 ? -span : 0;
	V x[PICKED];

	for (int k = 0; k < n; k++) {
		int64_t first = lowest + (k < n - 1 ? (int64_t)k * e->W : span + 1 - e->W);
		V off = k64(e, first);

		x[k] = LLVMBuildLoad2(at, vt, LLVMBuildGEP2(at, mt, p, &off, 1, ""), "");
		LLVMSetAlignment(x[k], 1);
		lane[k] = arena_array(e->arena, int, e->W);
		for (int i = 0; i < e->W; i++) {
			int64_t element = stride * i, own = n == 1 ? 0 : element / e->W;

			lane[k][i] = (own < n - 1 ? own : n - 1) == k ? (int)(element - first) : -1;
		}
	}
	if (n == 1)
		return pick_pair(e, at, x[0], LLVMGetUndef(vt), (int *[2]){lane[0], lane[0]});
	for (; n > 1; n = (n + 1) / 2)
		for (int k = 0; k < n; k += 2) {
			int *of[2] = {lane[k], k + 1 < n ? lane[k + 1] : NULL};

			x[k / 2] = of[1] ? pick_pair(e, at, x[k], x[k + 1], of) : x[k];
			lane[k / 2] = of[0];
		}
	return x[0];
}

Cell
load_at(Emit *e, V base, DType dt, Off o)
{
	T mt = mtype(e, dt), vt;
	unsigned align = (unsigned)dtype_info[dt].bytes;
	V p, r, mask;

	if (e->fetches) {
		if (o.c == 1 && !o.g)
			prefetch(e, LLVMBuildGEP2(here(e), mt, base, &o.s, 1, ""), 2);
		return cell_const(e, dt, 0);
	}
	if (!o.c && !o.g) {
		if (e->pred)
			o.s = LLVMBuildSelect(at2(e, e->pred, o.s), e->pred, o.s, k64(e, 0), "");
		p = LLVMBuildGEP2(at2(e, base, o.s), mt, base, &o.s, 1, "");
		r = LLVMBuildLoad2(e->load_here ? here(e) : at1(e, p), mt, p, "");
		return cell_of(widen(e, r, dt, false), false, dt);
	}
	vt = vec_of(e, mt);
	mask = load_mask(e);
	if (o.c == 1 && !o.g) {
		p = LLVMBuildGEP2(at2(e, base, o.s), mt, base, &o.s, 1, "");
		if (!mask) {
			r = LLVMBuildLoad2(e->load_here ? here(e) : at1(e, p), vt, p, "");
			LLVMSetAlignment(r, align);
		} else {
			V args[4] = {p, LLVMConstInt(e->l->i32, align, 0), mask, LLVMConstNull(vt)};
			T over[2] = {vt, e->l->ptr};

			r = intrinsic(e, e->load_here ? here(e) : at2(e, p, mask), "llvm.masked.load", over, 2, args,
			              4);
		}
	} else if (((o.c > 1 && o.c <= PICKED) || o.c == -1) && !o.g && !mask && e->W > 1) {
		p = LLVMBuildGEP2(at2(e, base, o.s), mt, base, &o.s, 1, "");
		r = load_strided(e, e->load_here ? here(e) : at1(e, p), mt, p, o.c);
	} else {
		p = gather_pointers(e, mt, base, o);
		V args[4] = {p, LLVMConstInt(e->l->i32, align, 0), mask ? mask : full_mask(e), LLVMConstNull(vt)};
		T over[2] = {vt, LLVMTypeOf(p)};

		r = intrinsic(e, e->load_here ? here(e) : at2(e, p, args[2]), "llvm.masked.gather", over, 2, args, 4);
	}
	return cell_of(widen(e, r, dt, true), true, dt);
}

bool
store_may_stream(const Graph *g, Val v)
{
	const Type *t = val_type(g, v);
	const Axis *inner = t->rank ? &t->axis[t->perm[t->rank - 1]] : NULL;

	return inner && !type_marked(t) && (t->dtype == DT_f32 || t->dtype == DT_bf16 || t->dtype == DT_f16) &&
	       inner->n * dtype_info[t->dtype].bytes % machine_of(g)->line == 0;
}

static bool
outgrows_caches(const Graph *g, Val v)
{
	return type_bytes(val_type(g, v)) >= machine_of(g)->budget.l3 / 4 && store_may_stream(g, v);
}

/* Of vectors of half a cache line: what is stored past the caches waits in one of a core's few buffers for the other
 * half of its line. Several such results of a kernel drive each other out, and one in the place of what the kernel
 * reads drives out what it reads next: lines are written in parts, and read again. Zen 3, Adam on 4 million parameters:
 * 45 ms, and 2.3 through the caches; a copy to three places, 5 and 2.3. */
static bool
halves_part(const Graph *g, Val v)
{
	const ValInfo *own = val_info(g, v);
	int32_t group = own->op == UINT32_MAX ? -1 : g->op.at[own->op].group;

	if (group < 0)
		return false;
	for (uint32_t last, i = graph_group_ops(g, group, &last); i < last; i++) {
		const Op *op = &g->op.at[i];

		if (op->dead || op->group != group)
			continue;
		for (int k = 0; k < op->nin; k++)
			if (own->offset >= 0 && val_info(g, op->in[k])->offset == own->offset && op->in[k].id != v.id)
				return true;
		for (int k = 0; k < op->nout; k++)
			if (op->out[k].id != v.id && val_info(g, op->out[k])->offset >= 0 &&
			    outgrows_caches(g, op->out[k]))
				return true;
	}
	return false;
}

bool
store_streams(const Graph *g, Val v)
{
	const Machine *m = machine_of(g);

	return outgrows_caches(g, v) && !(m->vector_bytes < m->line && halves_part(g, v));
}

void
store_past(Llvm *l, V store)
{
	LLVMMetadataRef one = LLVMValueAsMetadata(LLVMConstInt(l->i32, 1, 0));

	LLVMSetMetadata(store, LLVMGetMDKindIDInContext(l->cx, "nontemporal", 11),
	                LLVMMetadataAsValue(l->cx, LLVMMDNodeInContext2(l->cx, &one, 1)));
}

/* Of a vector whose elements have `align` bytes: past the caches where e->stream says so. */
static void
store_marked(Emit *e, V store, unsigned align)
{
	LLVMSetAlignment(store, e->stream ? align * (unsigned)e->W : align);
	if (!e->stream)
		return;
	store_past(e->l, store);
	e->streamed = true;
}

void
store_at(Emit *e, V base, DType dt, Off o, Cell c)
{
	T mt = mtype(e, dt), vt = vec_of(e, mt);
	unsigned align = (unsigned)dtype_info[dt].bytes;
	LLVMBuilderRef b = here(e);
	V p, v;

	if (!o.c && !o.g) {
		if (c.vec)
			bug("a vector stored to one element");
		p = LLVMBuildGEP2(at2(e, base, o.s), mt, base, &o.s, 1, "");
		LLVMBuildStore(b, narrow(e, c.v, dt, false), p);
		return;
	}
	v = narrow(e, cell_vec(e, c), dt, true);
	if (o.c == 1 && !o.g) {
		p = LLVMBuildGEP2(at2(e, base, o.s), mt, base, &o.s, 1, "");
		if (!e->mask) {
			store_marked(e, LLVMBuildStore(b, v, p), align);
		} else {
			V args[4] = {v, p, LLVMConstInt(e->l->i32, align, 0), e->mask};
			T over[2] = {vt, e->l->ptr};

			intrinsic(e, b, "llvm.masked.store", over, 2, args, 4);
		}
	} else {
		p = gather_pointers(e, mt, base, o);
		V args[4] = {v, p, LLVMConstInt(e->l->i32, align, 0), e->mask ? e->mask : full_mask(e)};
		T over[2] = {vt, LLVMTypeOf(p)};

		intrinsic(e, b, "llvm.masked.scatter", over, 2, args, 4);
	}
}

/* ---------------------------------------------------------------- rows in lanes */
/* A vector's lanes are rows of a few elements; cell k holds element k of each. In memory elements lie side by side. */
enum { COLUMNS = 64 };

/* One stage of the transposition of w vectors: blocks of d elements change sides. */
static void
transpose_stage(const Llvm *l, LLVMBuilderRef b, V *v, int w, int d)
{
	for (int i = 0; i < w; i++) {
		V first = v[i], second, low[64], high[64];

		if (i & d)
			continue;
		second = v[i + d];
		for (int x = 0; x < w; x++) {
			low[x] = LLVMConstInt(l->i32, (unsigned long long)(x & d ? w + x - d : x), 0);
			high[x] = LLVMConstInt(l->i32, (unsigned long long)(x & d ? w + x : x + d), 0);
		}
		v[i] = LLVMBuildShuffleVector(b, first, second, LLVMConstVector(low, (unsigned)w), "");
		v[i + d] = LLVMBuildShuffleVector(b, first, second, LLVMConstVector(high, (unsigned)w), "");
	}
}

void
lanes_transpose(const Llvm *l, LLVMBuilderRef b, V *v, int w)
{
	for (int d = 1; d < w; d *= 2)
		transpose_stage(l, b, v, w, d);
}

static V
picked(Emit *e, V a, V b, const int *lane)
{
	V index[COLUMNS];

	for (int i = 0; i < e->W; i++)
		index[i] = lane[i] < 0 ? LLVMGetUndef(e->l->i32) : LLVMConstInt(e->l->i32, (unsigned)lane[i], 0);
	return LLVMBuildShuffleVector(here(e), a, b ? b : LLVMGetUndef(LLVMTypeOf(a)),
	                              LLVMConstVector(index, (unsigned)e->W), "");
}

/* `wide` columns, a power of two, become rows one after the other by log2 rounds of a perfect shuffle, or back; as many
 * as there are lanes are a transposition, whose stages are cheaper. */
static void
columns_transpose(Emit *e, V *v, int wide, bool back)
{
	V next[COLUMNS];
	int lane[2][COLUMNS];

	if (wide == e->W) {
		lanes_transpose(e->l, here(e), v, wide);
		return;
	}
	for (int i = 0; i < e->W; i++)
		for (int half = 0; half < 2; half++)
			lane[half][i] = back ? 2 * i + half : half * e->W / 2 + i / 2 + (i % 2 ? e->W : 0);
	for (int step = 1; step < wide; step *= 2) {
		for (int k = 0; k < wide / 2; k++) {
			V a = back ? v[2 * k] : v[k], b = back ? v[2 * k + 1] : v[k + wide / 2];

			next[back ? k : 2 * k] = picked(e, a, b, lane[0]);
			next[back ? k + wide / 2 : 2 * k + 1] = picked(e, a, b, lane[1]);
		}
		memcpy(v, next, sizeof *v * (size_t)wide);
	}
}

/* How n columns of rows that stand `stride` elements apart go through vectors: rows that touch, several to a vector,
 * `wide` columns of each in registers; else a vector for each row, twice where a row has more columns than lanes. */
typedef struct Columns { int wide, filled, chunks, first[2]; bool touch; } Columns;

static bool
columns_of(const Emit *e, Off o, int n, Columns *c)
{
	*c = (Columns){.wide = 1, .chunks = n > e->W ? 2 : 1, .first = {0, n - e->W}};
	while (c->wide < n)
		c->wide *= 2;
	c->touch = o.c == n && c->wide <= e->W;
	if (!c->touch)
		c->wide = e->W;
	c->filled = c->touch ? e->W / c->wide * n : n < e->W ? n : e->W;
	return n > 1 && n <= 2 * e->W && e->W > 1 && e->W <= COLUMNS && o.c >= n && !o.g && !e->mask;
}

/* Where vector number k of a chunk lies. */
static Off
columns_at(Emit *e, Off o, const Columns *c, int chunk, int k)
{
	return (Off){.s = i_add_k(e, o.s, c->touch ? (int64_t)k * c->filled : k * o.c + c->first[chunk]), .c = 1};
}

/* Lanes of a vector of rows `wide` columns apart that lie side by side in memory, n of each row; or back. */
static V
rows_close(Emit *e, V v, const Columns *c, int n, bool back)
{
	int lane[COLUMNS];

	if (!c->touch || c->wide == n)
		return v;
	for (int i = 0; i < e->W; i++) {
		int from = back ? c->wide : n, to = back ? n : c->wide, at = i / from * to + i % from;

		lane[i] = i % from < n && i / from < e->W / c->wide ? at : -1;
	}
	return picked(e, v, NULL, lane);
}

void
store_columns(Emit *e, V base, DType dt, Off o, const Cell *cell, int n)
{
	Columns c;
	V v[COLUMNS], all = e->mask;

	if (!columns_of(e, o, n, &c)) {
		for (int k = 0; k < n; k++)
			store_at(e, base, dt, (Off){.s = i_add_k(e, o.s, k), .c = o.c, .g = o.g}, cell[k]);
		return;
	}
	for (int chunk = 0; chunk < c.chunks; chunk++) {
		for (int k = 0; k < c.wide; k++)
			v[k] = c.first[chunk] + k < n ? cell_vec(e, cell[c.first[chunk] + k])
			                              : LLVMGetUndef(LLVMTypeOf(v[0]));
		columns_transpose(e, v, c.wide, false);
		for (int k = 0; k < c.wide; k++) {
			/* what a vector of rows that touch has beyond its own is overwritten by the next */
			if (c.filled < e->W && (!c.touch || k == c.wide - 1))
				e->mask = mask_below(e, k64(e, c.filled));
			store_at(e, base, dt, columns_at(e, o, &c, chunk, k),
			         cell_of(rows_close(e, v[k], &c, n, false), true, dt));
			e->mask = all;
		}
	}
}

bool
load_columns(Emit *e, V base, DType dt, Off o, Cell *cell, int n)
{
	Columns c;
	V v[COLUMNS], all = e->mask;

	if (e->pred || e->fetches || !columns_of(e, o, n, &c))
		return false;
	for (int chunk = c.chunks; chunk-- > 0;) {
		for (int k = 0; k < c.wide; k++) {
			if (c.filled < e->W && (!c.touch || k == c.wide - 1))
				e->mask = mask_below(e, k64(e, c.filled));
			v[k] = rows_close(e, load_at(e, base, dt, columns_at(e, o, &c, chunk, k)).v, &c, n, true);
			e->mask = all;
		}
		columns_transpose(e, v, c.wide, true);
		for (int k = 0; k < c.wide && c.first[chunk] + k < n; k++)
			cell[c.first[chunk] + k] = cell_of(v[k], true, dt);
	}
	return true;
}

V
vec_load(Emit *e, V p, V mask)
{
	T vt = vec_of(e, e->l->f32);

	if (mask) {
		V args[4] = {p, LLVMConstInt(e->l->i32, 4, 0), mask, LLVMConstNull(vt)};

		return intrinsic(e, here(e), "llvm.masked.load", (T[]){vt, e->l->ptr}, 2, args, 4);
	}
	V r = LLVMBuildLoad2(here(e), vt, p, "");

	LLVMSetAlignment(r, 4);
	return r;
}

void
vec_store(Emit *e, V p, V v, V mask)
{
	if (mask) {
		V args[4] = {v, p, LLVMConstInt(e->l->i32, 4, 0), mask};

		intrinsic(e, here(e), "llvm.masked.store", (T[]){vec_of(e, e->l->f32), e->l->ptr}, 2, args, 4);
		return;
	}
	store_marked(e, LLVMBuildStore(here(e), v, p), 4);
}
