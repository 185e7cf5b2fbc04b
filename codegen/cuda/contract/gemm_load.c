/* gemm_load.c: tiles of a contraction's operands, from global to shared memory.
 *
 * In: a Gemm with its place in the result.   Out: text that brings tile `next` of k of an operand to slot `slot`.
 * Chunks of 16 bytes where the innermost axis in memory holds whole ones, else, of what lies there, parts of a chunk (8
 * or 4 bytes), else single elements. What lies in memory goes by cp.async, which writes zeros for padding; what the
 * group's ops make (a prologue), what is converted to f32 go through registers: all that a thread's units are made of
 * is loaded before the products of the tile that is being multiplied, so that no load waits for another; the units
 * are made and put into shared memory after them. Single elements go to shared memory one by one. Padding is put in
 * behind a prologue: it is 0 whatever the ops make of 0. */
#include "gemm.h"
#include <string.h>

/* ---------------------------------------------------------------- tensor maps */
static bool
has_perm(const Type *t, const char *perm)
{
	for (int i = 0; i < t->rank; i++)
		if (t->perm[i] != perm[i] - '0')
			return false;
	return true;
}

bool
cu_is_matrix(const Gemm *x, int which)
{
	const Form *f = &x->f;
	const Type *t = val_type(x->c->g, x->op->in[which]);
	bool dw = x->op->kind == OP_conv2d_dw;

	if (x->op->kind == OP_matmul)
		return f->nb == 0 && (which == 0 || t->rank == 2) && has_perm(t, "01234567");
	bool point = window_is_point(&f->at);

	if (f->groups > 1 || f->classes)
		return false;
	if (which == 1 && !dw)
		return (point || x->op->kind == OP_conv2d) && has_perm(t, "2310");
	return (point || which == 1) && has_perm(t, "0231");
}

/* Rows that follow n are as many as there are; a row is whole chunks of 16 bytes. */
bool
cu_wgmma_map(const Gemm *x, const Operand *o, KernelMap *m)
{
	const Form *f = &x->f;
	const Axis *line = o->which ? f->n : f->m, *inner = o->along_k ? f->k : line, *outer = o->along_k ? line : f->k;
	int nline = o->which ? f->nn : f->nm, ninner = o->along_k ? f->nk : nline, nouter = o->along_k ? nline : f->nk,
	    marked = 0;

	*m = (KernelMap){.offset = val_info(x->c->g, o->v)->offset,
	                 .inner = cu_form_count(inner, ninner),
	                 .outer = 1,
	                 .box = {o->along_k ? WGMMA_DEPTH : WGMMA_ROWS, o->along_k ? o->rows : WGMMA_DEPTH},
	                 .div = 1};
	for (int i = 0; i < ninner; i++)
		marked += inner[i].mul ? 2 : 0;
	for (int i = 0; i < nouter; i++) {
		if (outer[i].mul) {
			m->mul = (int32_t)outer[i].mul;
			m->div = (int32_t)(outer[i].div ? outer[i].div : 1);
		}
		m->outer *= outer[i].mul ? 1 : outer[i].n;
		marked += outer[i].mul ? 1 : 0;
	}
	return marked <= 1 && cu_is_matrix(x, o->which) && m->inner % 8 == 0 && m->inner < INT32_MAX &&
	       cu_form_count(outer, nouter) < INT32_MAX;
}

/* ---------------------------------------------------------------- loads */
enum { ONES = 32 }; /* single elements that a thread has under way in registers */

int
cu_operand_part(const Op *op, const Tiles *p, int64_t run)
{
	int bytes = tile_bytes(p), least = op->kind == OP_matmul ? 4 : 8;

	if (!p->mma || run < 2)
		return 1;
	for (int n = 16; n >= least && n > bytes; n /= 2)
		if (run % (n / bytes) == 0)
			return n / bytes;
	return 1;
}

static void
operand(Gemm *x, int which)
{
	Cuda *c = x->c;
	Operand *o = &x->x[which];
	const Tiles *p = &x->p;

	*o = (Operand){.which = which,
	               .name = which ? 'b' : 'a',
	               .v = x->op->in[which],
	               .rows = which ? p->n : p->m,
	               .vec = 1};
	o->t = val_type(c->g, o->v);
	int64_t run = cu_operand_run(c->g, &x->f, which, &o->along_k);
	int vec = 16 / dtype_info[p->mma ? o->t->dtype : DT_f32].bytes;
	bool made = c->inside[o->v.id] && !c->ready[o->v.id], matmul = x->op->kind == OP_matmul;

	int part = made || cu_input_is_addressed(c, o->v) ? 1 : cu_operand_part(x->op, p, run);

	if (run % vec == 0 && (made || val_info(c->g, o->v)->offset % 16 == 0))
		o->vec = vec;
	else if (part > 1 && val_info(c->g, o->v)->offset % 16 == 0)
		o->vec = part;
	/* single elements: a thread keeps to one row, whose place it finds once; of 64 x 64 elements and more the
	 * places would not stay in registers */
	else if ((!matmul || x->p.groups) && x->threads % o->rows == 0)
		o->along_k = false;
	o->async = p->mma && o->vec > 1 && !made;
	KernelMap map;

	if (p->groups && !p->copied && o->async && cu_wgmma_map(x, o, &map)) {
		o->mapped = true;
		o->async = false;
		c->map_name[c->map.n] = o->name;
		vec_push(c->a, &c->map, map);
	}
	o->matrix = !o->mapped && o->vec > 1 && x->op->kind != OP_matmul && cu_is_matrix(x, which);
	o->per_line = (o->along_k ? p->k : o->rows) / o->vec;
	o->fixed = !o->along_k && x->threads % o->per_line == 0;
	o->units = o->rows * p->k / o->vec;
	o->each = (o->units + x->threads - 1) / x->threads;
	/* of a weight gradient each needs a pixel of its own: places beside elements would not stay in registers */
	o->direct = o->vec == 1 &&
	            (o->each > ONES || made || x->op->kind == OP_conv2d_dw || cu_input_is_addressed(c, o->v));
	o->bytes = cu_tile_bytes(p, o->rows, o->along_k);
}

void
cu_operands(Gemm *x)
{
	operand(x, 0);
	operand(x, 1);
}

/* Over this thread's units, or the first of them. */
static Scope
units_open(const Gemm *x, const Operand *o, int count, Ix *unit)
{
	Cuda *c = x->c;

	cu_line(c, o->direct && o->fixed ? "#pragma unroll 8" : "#pragma unroll");
	Scope s = cu_scope_open(c, "for (int j = 0; j < %d; j++)", count);

	*unit = cu_fresh(c, 'i');
	cu_line(c, "const int %s = tid + j * %d;", *unit, x->threads);
	return s;
}

static Ix
unit_line(Cuda *c, const Operand *o, Ix unit)
{
	return cu_ix_div(c, unit, cu_ix_k(c, o->per_line));
}

/* The first element's place in its line: one for all units of a thread, where threads take whole lines. */
static Ix
unit_first(const Gemm *x, const Operand *o, Ix unit)
{
	Cuda *c = x->c;

	return cu_ix_mul(c, cu_ix_rem(c, x->threads % o->per_line ? unit : "tid", cu_ix_k(c, o->per_line)),
	                 cu_ix_k(c, o->vec));
}

void
cu_load_rows(Gemm *x, const Operand *o)
{
	Cuda *c = x->c;
	const Form *f = &x->f;
	int n = o->which ? f->nn : f->nm, count = o->fixed ? 1 : o->each;
	Ix unit, at[MAX_RANK];

	if (o->matrix) /* a sum for each */
		return;

	for (int i = 0; i < n; i++)
		cu_line(c, "%s %c%d[%d];", c->it, o->name, i, count);
	cu_line(c, "bool %c_in[%d];", o->name, count);
	Scope s = units_open(x, o, count, &unit);
	Ix row = cu_ix_add(c, o->which ? x->n0 : x->m0, o->along_k ? unit_line(c, o, unit) : unit_first(x, o, unit));

	cu_split_number(c, row, o->which ? x->ext_n : x->ext_m, n, at);
	for (int i = 0; i < n; i++)
		cu_line(c, "%c%d[j] = %s;", o->name, i, at[i]);
	cu_line(c, "%c_in[j] = %s < %s;", o->name, row, o->which ? x->N : x->M);
	cu_scope_close(c, s);
}

/* Coordinates of k: where a tile of k lies within one tap, the tap is the same for all threads and found outside their
 * loop. */
static bool
tap_by_tile(const Gemm *x)
{
	return x->f.nk == 3 && x->op->kind != OP_conv2d_dw && x->f.k[2].n % x->p.k == 0;
}

static Ix
k_coordinates(Gemm *x, const Operand *o, Ix unit, const Ix *tap, Ix *at)
{
	Cuda *c = x->c;
	Ix in = o->along_k ? unit_first(x, o, unit) : unit_line(c, o, unit);

	if (tap_by_tile(x)) {
		at[0] = tap[0];
		at[1] = tap[1];
		at[2] = cu_ix_add(c, tap[2], in);
		return NULL;
	}
	Ix k = cu_ix_add(c, cu_ix_mul(c, "next", cu_ix_k(c, x->p.k)), in);

	cu_split_number(c, k, x->ext_k, x->f.nk, at);
	return k;
}

static void
tile_tap(Gemm *x, Ix *tap)
{
	Cuda *c = x->c;
	int64_t each = x->f.k[2].n / x->p.k;
	Ix number = cu_ix_div(c, "next", cu_ix_k(c, each));

	tap[2] = cu_ix_mul(c, cu_ix_rem(c, "next", cu_ix_k(c, each)), cu_ix_k(c, x->p.k));
	cu_split_number(c, number, x->ext_k, 2, tap);
}

/* The same of a matrix in memory: the number of its first element is made known. Where its indices are not asked for
 * the compiler leaves the divisions out. */
static const char *
matrix_at(Gemm *x, const Operand *o, Ix unit, Ix *ix)
{
	Cuda *c = x->c;
	const Form *f = &x->f;
	int n = o->which ? f->nn : f->nm;
	Ix line = unit_line(c, o, unit), first = unit_first(x, o, unit),
	   from = cu_ix_mul(c, "next", cu_ix_k(c, x->p.k)), row0 = o->which ? x->n0 : x->m0;
	Ix row = cu_ix_add(c, row0, o->along_k ? line : first), k = cu_ix_add(c, from, o->along_k ? first : line),
	   rows[MAX_RANK], at[MAX_RANK];
	const char *valid = "1";
	int64_t whole;

	if (o->units % x->threads)
		valid = arena_printf(c->a, "%s < %d", unit, o->units);
	if (!(cu_ix_number(o->which ? x->N : x->M, &whole) && whole % o->rows == 0))
		valid = cu_both(c, valid, arena_printf(c->a, "%s < %s", row, o->which ? x->N : x->M));
	if (!(cu_ix_number(x->K, &whole) && whole % x->p.k == 0))
		valid = cu_both(c, valid, arena_printf(c->a, "%s < %s", k, x->K));
	cu_split_number(c, row, o->which ? x->ext_n : x->ext_m, n, rows);
	cu_split_number(c, k, x->ext_k, f->nk, at);
	cu_operand_index(x, o->which, rows, at, ix);
	for (int i = 0; i < o->t->rank; i++)
		if (o->t->axis[i].n == 1 && !o->t->axis[i].mul)
			ix[i] = "0";
	c->root = o->t;
	memcpy(c->root_ix, ix, sizeof(Ix) * o->t->rank);
	c->root_i = o->along_k ? cu_ix_add(c, cu_ix_mul(c, row, cu_ix_k(c, cu_form_count(f->k, f->nk))), k)
	                       : cu_ix_add(c,
	                                   cu_ix_mul(c, k,
	                                             cu_ix_k(c, o->which ? cu_form_count(f->n, f->nn)
	                                                                 : cu_form_count(f->m, f->nm))),
	                                   row);
	return valid;
}

/* Where unit j begins, or the thread's first one, of number "tid": its indices, and a condition that it is there at
 * all. */
static const char *
unit_at(Gemm *x, const Operand *o, Ix unit, const Ix *tap, Ix *ix)
{
	Cuda *c = x->c;
	int n = o->which ? x->f.nn : x->f.nm;

	if (o->matrix)
		return matrix_at(x, o, unit, ix);
	Ix row[MAX_RANK], at[MAX_RANK], k = k_coordinates(x, o, unit, tap, at);
	const char *j = o->fixed || !strcmp(unit, "tid") ? "0" : "j",
	           *valid = arena_printf(c->a, "%c_in[%s]", o->name, j);
	int64_t whole;

	if (o->units % x->threads)
		valid = arena_printf(c->a, "(%s && %s < %d)", valid, unit, o->units);
	for (int i = 0; i < n; i++)
		row[i] = arena_printf(c->a, "%c%d[%s]", o->name, i, j);
	if (k && !(cu_ix_number(x->K, &whole) && whole % x->p.k == 0))
		valid = cu_both(c, valid, arena_printf(c->a, "%s < %s", k, x->K));
	valid = cu_both(c, valid, cu_operand_index(x, o->which, row, at, ix));
	for (int i = 0; i < o->t->rank; i++)
		if (o->t->axis[i].n == 1 && !o->t->axis[i].mul)
			ix[i] = "0";
	return valid;
}

/* Where a chunk of 16 bytes lies in its tile. */
static const char *
chunk_at(const Gemm *x, const char *line, const char *chunk, int per_line)
{
	return x->p.groups ? arena_printf(x->c->a, "stacked(%s, %s)", line, chunk)
	                   : arena_printf(x->c->a, "swizzled(%s, %s, %d)", line, chunk, per_line);
}

int
cu_slots_at(const Gemm *x, const Operand *o)
{
	return o->which ? x->p.stages * x->x[0].bytes : 0;
}

const char *
cu_slot_text(const Gemm *x, const Operand *o, const char *slot)
{
	return arena_printf(x->c->a, "%s%s * %d", o->which ? arena_printf(x->c->a, "%d + ", cu_slots_at(x, o)) : "",
	                    slot, o->bytes);
}

/* To shared memory: an async copy, where chunks, or parts of them, lie in memory as they are. */
static void
copy_unit(Gemm *x, const Operand *o, Ix unit, const Ix *tap)
{
	Cuda *c = x->c;
	Ix ix[MAX_RANK];
	const char *valid = unit_at(x, o, unit, tap, ix), *from = cu_address(c, o->t, val_info(c->g, o->v)->offset, ix);
	const char *line = arena_printf(c->a, "%s / %d", unit, o->per_line),
	           *chunk = arena_printf(c->a, "%s %% %d", unit, o->per_line), *in = "";
	int bytes = o->vec * tile_bytes(&x->p), parts = 16 / bytes;
	Scope s = {0};

	if (o->units % x->threads)
		s = cu_scope_open(c, "if (%s < %d)", unit, o->units);
	if (parts > 1) {
		in = arena_printf(c->a, " + %s %% %d * %d", unit, parts, bytes);
		chunk = arena_printf(c->a, "%s / %d", chunk, parts);
	}
	cu_line(c, "copy%d(shared + %s + %s%s, %s, %s, %s);", bytes, cu_slot_text(x, o, "slot"),
	        chunk_at(x, line, chunk, o->per_line / parts), in, from,
	        cu_pointer(c, (DType)o->t->dtype, val_info(c->g, o->v)->offset), valid);
	if (o->units % x->threads)
		cu_scope_close(c, s);
	c->root = NULL;
}

/* What the group makes and others read too is stored once, by the first tile of columns. */
static void
store_unit(Gemm *x, const Operand *o, const Ix *ix, const char *keep)
{
	Cuda *c = x->c;
	int64_t offset = val_info(c->g, o->v)->offset;
	Scope s = {0};
	bool only = !strcmp(x->tile_n, "0");
	DType dt = (DType)o->t->dtype;
	const char *how = tile_bytes(&x->p) == 2 ? "pairs" : dt == DT_f32 ? "32" : dtype_info[dt].name;

	if (!only)
		s = cu_scope_open(c, "if (%s == 0)", x->tile_n);
	cu_stores_at(c, offset);
	if (o->vec > 1)
		cu_line(c, "put%d_%s(%s, %s);", o->vec, how, cu_address(c, o->t, offset, ix), keep);
	else
		cu_line(c, "*(%s) = %s[0];", cu_address(c, o->t, offset, ix), keep);
	if (!only)
		cu_scope_close(c, s);
}

/* Is the index along a unit's chunk in range wherever the unit is? Of several coordinates the innermost is a remainder
 * (cu_split_number), but where all others have extent 1: then it is the index itself. */
static bool
chunk_inside(const Gemm *x, const Operand *o)
{
	const Ix *ext = o->along_k ? x->ext_k : o->which ? x->ext_n : x->ext_m;
	int n = o->along_k ? x->f.nk : o->which ? x->f.nn : x->f.nm;
	int64_t all;

	for (int k = 0; k < n - 1; k++)
		if (strcmp(ext[k], "1") != 0)
			return true;
	if (o->along_k)
		return cu_ix_number(x->K, &all) && all % x->p.k == 0;
	return cu_ix_number(o->which ? x->N : x->M, &all) && all % o->rows == 0;
}

/* A single element to register `keep`. */
static void
take_element(Gemm *x, const Operand *o, Ix unit, const Ix *tap, const char *keep)
{
	Cuda *c = x->c;
	Ix ix[MAX_RANK];
	const char *valid = unit_at(x, o, unit, tap, ix);

	cu_line(c, "%s[0] = 0;", keep);
	Scope s = cu_scope_open(c, "if (%s)", valid);
	Cell v = cu_value_at(c, o->v, ix);

	v = tile_bytes(&x->p) == 2 ? v : cu_cell_cast(c, v, DT_f32);
	cu_line(c, "%s[0] = %s;", keep, cu_to_memory(c, (DType)v.dt, v.v));
	if (cu_value_is_out(c, o->v))
		store_unit(x, o, ix, keep);
	cu_scope_close(c, s);
}

/* The same of one that lies in memory: no more than a load, so that all may be under way at once. */
static void
take_one(Gemm *x, const Operand *o, Ix unit, const Ix *tap)
{
	Cuda *c = x->c;
	Ix ix[MAX_RANK];
	const char *valid = unit_at(x, o, unit, tap, ix);

	cu_line(c, "ones_%c[j] = 0;", o->name);
	Scope s = cu_scope_open(c, "if (%s)", valid);

	if (tile_bytes(&x->p) == 2)
		cu_line(c, "ones_%c[j] = *%s;", o->name, cu_address(c, o->t, val_info(c->g, o->v)->offset, ix));
	else
		cu_line(c, "ones_%c[j] = %s;", o->name, cu_cell_cast(c, cu_value_at(c, o->v, ix), DT_f32).v);
	cu_scope_close(c, s);
}

/* What a unit is made of, to registers; whether it is there at all. */
static void
take_unit(Gemm *x, Operand *o, Ix unit, const Ix *tap)
{
	Cuda *c = x->c;
	Ix ix[MAX_RANK];

	cu_line(c, "const int q = j;");
	cu_line(c, "there_%c[q] = %s;", o->name, unit_at(x, o, unit, tap, ix));
	if (o->leaves.at.n) {
		Scope s = cu_scope_open(c, "if (there_%c[q])", o->name);

		cu_leaves_load(c, &o->leaves, ix);
		cu_scope_close(c, s);
	}
	c->root = NULL;
}

/* Where what lies along a unit's chunk is loaded from: where the unit may be outside its range, from the last chunk
 * inside it, so that no load stands under a condition. false: the range is not known. */
static bool
chunk_clamped(const Gemm *x, const Operand *o, int axis, Ix *first)
{
	Axis a = o->t->axis[axis];

	if (chunk_inside(x, o))
		return true;
	if (!o->t->rank || a.mul || a.n < o->vec)
		return false;
	first[axis] = cu_let(x->c, x->c->it, 'i',
	                     arena_printf(x->c->a, "(%s < %lld ? %s : %lld)", first[axis], (long long)a.n, first[axis],
	                                  (long long)(a.n - o->vec)));
	return true;
}

/* And the unit made of it, to registers `keep`. */
static void
make_unit(Gemm *x, const Operand *o, Ix unit, const Ix *tap, Lanes *lanes)
{
	Cuda *c = x->c;
	Ix ix[MAX_RANK], at[MAX_RANK], first[MAX_RANK];
	int axis = o->t->rank ? o->t->perm[o->t->rank - 1] : 0;

	bool pairs = tile_bytes(&x->p) == 2;

	cu_line(c, "const int q = j;");
	cu_line(c, "%s keep[%d];", pairs ? "unsigned" : tile_type(&x->p), pairs ? o->vec / 2 : o->vec);
	unit_at(x, o, unit, tap, ix);
	memcpy(first, ix, sizeof first);
	if (chunk_clamped(x, o, axis, first) && !lanes->early)
		cu_lanes_early(c, lanes, NULL); /* before any condition */
	for (int i = 0; i < (pairs ? o->vec / 2 : o->vec); i++)
		cu_line(c, "keep[%d] = 0;", i);
	Scope s = cu_scope_open(c, "if (there_%c[q])", o->name);

	if (pairs)
		cu_line(c, "float made[%d];", o->vec);

	cu_lanes_begin(c, lanes, o->t, axis, o->vec, first);
	Scope each = cu_each_open(c, o->vec);

	memcpy(at, ix, sizeof at);
	at[axis] = lanes->lane = cu_ix_add(c, ix[axis], "u");
	cu_leaves_put(c, &o->leaves, at, "u");
	Cell v = cu_value_at(c, o->v, at);

	if (pairs)
		cu_line(c, "made[u] = %s;", cu_unrounded(c, (DType)v.dt, v.v));
	else
		cu_line(c, "keep[u] = %s;", cu_cell_cast(c, v, DT_f32).v);
	cu_each_close(c, o->vec, each);
	cu_lanes_end(c);
	if (pairs)
		cu_line(c, "rounded%d_%s(keep, made);", o->vec, dtype_info[o->t->dtype].name);
	if (cu_value_is_out(c, o->v))
		store_unit(x, o, ix, "keep");
	cu_scope_close(c, s);
	c->root = NULL;
}

/* Registers to shared memory. */
static void
put_unit(Gemm *x, const Operand *o, Ix unit, const char *keep)
{
	Cuda *c = x->c;
	Scope in = {0};
	const char *line = arena_printf(c->a, "%s / %d", unit, o->per_line),
	           *first = arena_printf(c->a, "%s %% %d * %d", unit, o->per_line, o->vec);
	int pitch = o->rows + 4;

	if (o->units % x->threads)
		in = cu_scope_open(c, "if (%s < %d)", unit, o->units);
	int bytes = tile_bytes(&x->p), chunk = 16 / bytes;
	const char *type = tile_type(&x->p);

	if (x->p.mma && o->vec > 1) {
		cu_line(c,
		        bytes == 2 ? "put%d_pairs((%s *)((char *)memory + %s + %s), %s);"
		                   : "put%d_32((%s *)((char *)memory + %s + %s), %s);",
		        chunk, type, cu_slot_text(x, o, "slot"),
		        chunk_at(x, line, arena_printf(c->a, "%s %% %d", unit, o->per_line), o->per_line), keep);
	} else if (x->p.mma) {
		cu_line(c, "*(%s *)((char *)memory + %s + %s + %s %% %d * %d) = %s[0];", type,
		        cu_slot_text(x, o, "slot"),
		        chunk_at(x, line, arena_printf(c->a, "%s %% %d / %d", unit, o->per_line, chunk),
		                 o->per_line / chunk),
		        unit, chunk, bytes, keep);
	} else {
		cu_line(c, "float *to = (float *)((char *)memory + %s);", cu_slot_text(x, o, "slot"));
		for (int u = 0; u < o->vec && o->along_k; u++)
			cu_line(c, "to[(%s + %d) * %d + %s] = %s[%d];", first, u, pitch, line, keep, u);
		if (!o->along_k && o->vec == 1)
			cu_line(c, "to[%s * %d + %s] = %s[0];", line, pitch, first, keep);
		else if (!o->along_k)
			cu_line(c, "put4_32(&to[%s * %d + %s], %s);", line, pitch, first, keep);
	}
	if (o->units % x->threads)
		cu_scope_close(c, in);
}

void
cu_load_open(Gemm *x, Operand *o)
{
	if (!in_registers(o))
		return;
	if (o->vec == 1) {
		cu_line(x->c, "%s ones_%c[%d];", tile_type(&x->p), o->name, o->each);
		return;
	}
	o->leaves.repeats = true;
	cu_leaves_find(x->c, o->v, o->t, NOVAL, &o->leaves);
	cu_leaves_open(x->c, &o->leaves, o->vec, o->each);
	cu_line(x->c, "bool there_%c[%d];", o->name, o->each);
}

void
cu_load_tile(Gemm *x, Operand *o)
{
	Cuda *c = x->c;
	Ix unit, tap[3];

	if (tap_by_tile(x))
		tile_tap(x, tap);
	Scope s = units_open(x, o, o->each, &unit);

	if (o->async) {
		copy_unit(x, o, unit, tap);
	} else if (o->direct) {
		cu_line(c, "%s kept[1];", tile_type(&x->p));
		take_element(x, o, unit, tap, "kept");
		put_unit(x, o, unit, "kept");
	} else if (o->vec == 1) {
		take_one(x, o, unit, tap);
	} else {
		take_unit(x, o, unit, tap);
	}
	cu_scope_close(c, s);
}

void
cu_load_keep(Gemm *x, const Operand *o)
{
	Ix unit, tap[3], ix[MAX_RANK];
	Lanes lanes = {0};

	if (!in_registers(o))
		return;
	if (o->vec > 1 && tap_by_tile(x))
		tile_tap(x, tap);
	if (o->vec > 1 && o->t->rank && x->threads % o->per_line == 0) {
		/* a thread's units share a chunk: its indices stand before their loop, as do loads along it */
		unit_at(x, o, "tid", tap, ix);
		x->c->root = NULL;
		if (chunk_clamped(x, o, o->t->perm[o->t->rank - 1], ix))
			cu_lanes_early(x->c, &lanes, NULL);
	}
	Scope s = units_open(x, o, o->each, &unit);

	if (o->vec > 1)
		make_unit(x, o, unit, tap, &lanes);
	put_unit(x, o, unit, o->vec > 1 ? "keep" : arena_printf(x->c->a, "(&ones_%c[j])", o->name));
	cu_scope_close(x->c, s);
}
