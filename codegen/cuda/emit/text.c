/* text.c: lines of CUDA C: scopes, index arithmetic, memory, the frame of a kernel.
 *
 * In: questions of eval.c and the kernels.   Out: text in Cuda.body, with pointers and extents that the kernel needs in
 * Cuda.head. Index expressions are folded where numbers are known and have one variable each in a scope. A sum that was
 * joined from an outer and an inner index is taken apart again without a division. Offsets of values are parameters,
 * added to the arena's address, so that groups of equal structure have one function. */
#include "../cuda.h"
#include <ctype.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>

/* ---------------------------------------------------------------- lines and scopes */
static void
put_line(Cuda *c, const char *fmt, va_list ap)
{
	for (int i = 0; i <= c->depth; i++)
		buf_put(&c->body, "\t", 1);
	buf_vprintf(&c->body, fmt, ap);
}

void
cu_line(Cuda *c, const char *fmt, ...)
{
	va_list ap;

	va_start(ap, fmt);
	put_line(c, fmt, ap);
	va_end(ap);
	buf_put(&c->body, "\n", 1);
}

Scope
cu_scope_open(Cuda *c, const char *fmt, ...)
{
	va_list ap;

	va_start(ap, fmt);
	put_line(c, fmt, ap);
	va_end(ap);
	buf_printf(&c->body, " {\n");
	c->depth++;
	return (Scope){c->memo.n, c->cse.n, c->joined.n};
}

void
cu_scope_close(Cuda *c, Scope s)
{
	c->depth--;
	cu_line(c, "}");
	c->memo.n = s.memo;
	c->cse.n = s.cse;
	c->joined.n = s.joined;
}

const char *
cu_fresh(Cuda *c, char letter)
{
	return arena_printf(c->a, "%c%d", letter, c->nvar++);
}

Scope
cu_loop_open(Cuda *c, const char *count, Ix *i)
{
	*i = cu_fresh(c, 'i');
	return cu_scope_open(c, "for (%s %s = 0; %s < %s; %s++)", c->it, *i, *i, count, *i);
}

/* ---------------------------------------------------------------- indices */
bool
cu_ix_number(Ix i, int64_t *k)
{
	if (!isdigit((unsigned char)*i) && *i != '-')
		return false;
	*k = strtoll(i, NULL, 10);
	return true;
}

Ix
cu_ix_k(Cuda *c, int64_t k)
{
	return arena_printf(c->a, "%lld", (long long)k);
}

const char *
cu_let(Cuda *c, const char *type, char letter, const char *text)
{
	for (uint32_t k = c->cse.n; k-- > 0;)
		if (!strcmp(c->cse.at[k].text, text))
			return c->cse.at[k].name;
	const char *name = cu_fresh(c, letter);

	cu_line(c, "const %s %s = %s;", type, name, text);
	vec_push(c->a, &c->cse, ((Cse){text, name}));
	return name;
}

static Ix
ix_let(Cuda *c, const char *text)
{
	return cu_let(c, c->it, 'i', text);
}

Ix
cu_ix_add(Cuda *c, Ix a, Ix b)
{
	int64_t x, y;
	bool ka = cu_ix_number(a, &x), kb = cu_ix_number(b, &y);

	if (ka && kb)
		return cu_ix_k(c, x + y);
	if ((ka && x == 0) || (kb && y == 0))
		return ka ? b : a;
	if (kb && y < 0)
		return ix_let(c, arena_printf(c->a, "%s - %lld", a, (long long)-y));
	return ix_let(c, ka ? arena_printf(c->a, "%s + %s", b, a) : arena_printf(c->a, "%s + %s", a, b));
}

Ix
cu_ix_sub(Cuda *c, Ix a, Ix b)
{
	int64_t x, y;

	if (cu_ix_number(b, &y))
		return cu_ix_number(a, &x) ? cu_ix_k(c, x - y) : cu_ix_add(c, a, cu_ix_k(c, -y));
	return strcmp(a, b) ? ix_let(c, arena_printf(c->a, "%s - %s", a, b)) : cu_ix_k(c, 0);
}

Ix
cu_ix_mul(Cuda *c, Ix a, Ix b)
{
	int64_t x, y;
	bool ka = cu_ix_number(a, &x), kb = cu_ix_number(b, &y);

	if (ka && kb)
		return cu_ix_k(c, x * y);
	if ((ka && x == 0) || (kb && y == 0))
		return cu_ix_k(c, 0);
	if (kb)
		return y == 1 ? a : ix_let(c, arena_printf(c->a, "%s * %s", a, b));
	return ka && x == 1 ? b : ix_let(c, arena_printf(c->a, "%s * %s", a, b));
}

static const Joined *
joined_of(const Cuda *c, Ix a, Ix b)
{
	for (uint32_t k = c->joined.n; k-- > 0;)
		if (!strcmp(c->joined.at[k].sum, a) && !strcmp(c->joined.at[k].ext, b))
			return &c->joined.at[k];
	return NULL;
}

Ix
cu_ix_div(Cuda *c, Ix a, Ix b)
{
	int64_t x, y;
	bool ka = cu_ix_number(a, &x), kb = cu_ix_number(b, &y);
	const Joined *j = joined_of(c, a, b);

	if (j)
		return j->outer;
	if (ka && kb && y > 0 && x >= 0)
		return cu_ix_k(c, x / y);
	if ((kb && y == 1) || (ka && x == 0))
		return a;
	return ix_let(c, arena_printf(c->a, "%s / %s", a, b));
}

Ix
cu_ix_parts(Cuda *c, Ix a, int64_t each)
{
	return cu_ix_div(c, cu_ix_add(c, a, cu_ix_k(c, each - 1)), cu_ix_k(c, each));
}

Ix
cu_ix_rem(Cuda *c, Ix a, Ix b)
{
	int64_t x, y;
	bool ka = cu_ix_number(a, &x), kb = cu_ix_number(b, &y);
	const Joined *j = joined_of(c, a, b);

	if (j)
		return j->inner;
	if (ka && kb && y > 0 && x >= 0)
		return cu_ix_k(c, x % y);
	if ((kb && y == 1) || (ka && x == 0))
		return cu_ix_k(c, 0);
	return ix_let(c, arena_printf(c->a, "%s %% %s", a, b));
}

Ix
cu_ix_join(Cuda *c, Ix outer, Ix ext, Ix inner)
{
	Ix sum = cu_ix_add(c, cu_ix_mul(c, outer, ext), inner);
	int64_t k;

	if (!cu_ix_number(sum, &k))
		vec_push(c->a, &c->joined, ((Joined){sum, outer, ext, inner}));
	return sum;
}

const char *
cu_in_range(Cuda *c, Ix i, Ix ext)
{
	int64_t x, y;

	if (cu_ix_number(i, &x) && (x < 0 || cu_ix_number(ext, &y)))
		return x >= 0 && x < y ? "1" : "0";
	return arena_printf(c->a, "(%s >= 0 && %s < %s)", i, i, ext);
}

const char *
cu_both(Cuda *c, const char *a, const char *b)
{
	if (!strcmp(a, "0") || !strcmp(b, "1"))
		return a;
	if (!strcmp(a, "1") || !strcmp(b, "0"))
		return b;
	return arena_printf(c->a, "(%s && %s)", a, b);
}

/* ---------------------------------------------------------------- extents and pointers */
static const char *
top_let(Cuda *c, char letter, const char *type, const char *text)
{
	for (uint32_t k = 0; k < c->top.n; k++)
		if (!strcmp(c->top.at[k].text, text))
			return c->top.at[k].name;
	const char *name = cu_fresh(c, letter);

	buf_printf(&c->head, "\t%s%s = %s;\n", type, name, text);
	vec_push(c->a, &c->top, ((Cse){text, name}));
	return name;
}

Ix
cu_extent(Cuda *c, Axis a)
{
	if (!a.mul)
		return cu_ix_k(c, a.n);
	return top_let(c, 'e', arena_printf(c->a, "const %s ", c->it),
	               arena_printf(c->a, "(%s)(n * %d / %d)", c->it, (int)a.mul, (int)(a.div ? a.div : 1)));
}

static Ix
top_product(Cuda *c, int64_t k, const char *marked)
{
	if (!*marked)
		return cu_ix_k(c, k);
	return top_let(c, 'e', arena_printf(c->a, "const %s ", c->it),
	               k == 1 ? marked + 3 : arena_printf(c->a, "%lld%s", (long long)k, marked));
}

Ix
cu_product(Cuda *c, const Type *t, uint32_t axes)
{
	int64_t k = 1;
	const char *marked = "";

	for (int i = 0; i < t->rank; i++)
		if (axes >> i & 1) {
			if (t->axis[i].mul)
				marked = arena_printf(c->a, "%s * %s", marked, cu_extent(c, t->axis[i]));
			else
				k *= t->axis[i].n;
		}
	return top_product(c, k, marked);
}

int64_t
cu_full_product(const Type *t, uint32_t axes)
{
	int64_t n = 1;

	for (int i = 0; i < t->rank; i++)
		n *= axes >> i & 1 ? t->axis[i].n : 1;
	return n;
}

void
cu_take_apart(Cuda *c, const Type *t, uint32_t axes, Ix i, Ix *ix)
{
	int left = 0;

	for (int k = 0; k < t->rank; k++)
		left += axes >> k & 1 && (t->axis[k].n != 1 || t->axis[k].mul);
	for (int k = t->rank; k-- > 0;) {
		int ax = t->perm[k];

		if (!(axes >> ax & 1))
			continue;
		if (t->axis[ax].n == 1 && !t->axis[ax].mul) {
			ix[ax] = "0";
			continue;
		}
		Ix e = cu_extent(c, t->axis[ax]);

		ix[ax] = --left ? cu_ix_rem(c, i, e) : i;
		if (left)
			i = cu_ix_div(c, i, e);
	}
}

/* ---------------------------------------------------------------- memory */
static const struct { const char *cell, *memory, *load, *store;
} c_types[DT_COUNT] = {
        [DT_f64] = {"double", "double", "", ""},
        [DT_f32] = {"float", "float", "", ""},
        [DT_f16] = {"float", "unsigned short", "f16_value", "f16_bits"},
        [DT_bf16] = {"float", "unsigned short", "bf16_value", "bf16_bits"},
        [DT_i64] = {"long long", "long long", "", ""},
        [DT_i32] = {"int", "int", "", ""},
        [DT_u8] = {"unsigned char", "unsigned char", "", ""},
        [DT_i16] = {"short", "short", "", ""},
        [DT_u16] = {"unsigned short", "unsigned short", "", ""},
        [DT_i8] = {"signed char", "signed char", "", ""},
        [DT_bool] = {"bool", "unsigned char", "0 != ", "(unsigned char)"},
};

const char *
cu_c_type(DType t)
{
	return c_types[t].cell;
}

const char *
cu_memory_type(DType t)
{
	return c_types[t].memory;
}

const char *
cu_from_memory(Cuda *c, DType t, const char *text)
{
	return *c_types[t].load ? arena_printf(c->a, "%s(%s)", c_types[t].load, text) : text;
}

const char *
cu_to_memory(Cuda *c, DType t, const char *text)
{
	for (uint32_t k = 0; t == DT_bf16 && k < c->rounded.n; k++)
		if (!strcmp(c->rounded.at[k].name, text)) /* not rounded a second time */
			return arena_printf(c->a, "bf16_upper(%s)", text);
	return *c_types[t].store ? arena_printf(c->a, "%s(%s)", c_types[t].store, text) : text;
}

/* What a text rounds to 16 bits, if it is no more than that; else the text. */
static const char *
rounds(Cuda *c, const char *text, DType t)
{
	const char *name = dtype_info[t].name, *head = arena_printf(c->a, "%s_value(%s_bits(", name, name);
	size_t n = strlen(head), all = strlen(text);
	int open = 2;

	if (strncmp(text, head, n))
		return text;
	for (size_t i = n; i < all; i++) {
		open += text[i] == '(' ? 1 : text[i] == ')' ? -1 : 0;
		if (open == 0)
			return i == all - 1 ? arena_strndup(c->a, text + n, all - n - 2) : text;
	}
	return text;
}

Cell
cu_cell_let(Cuda *c, const char *text, DType t)
{
	const char *name = cu_fresh(c, 'v'), *value = t == DT_f16 ? "f16_value(" : "bf16_value(";

	cu_line(c, "const %s %s = %s;", cu_c_type(t), name, text);
	if ((t == DT_f16 || t == DT_bf16) && !strncmp(text, value, strlen(value))) {
		const char *from = rounds(c, text, t);

		vec_push(c->a, &c->rounded, ((Cse){from == text ? name : from, name}));
	}
	return (Cell){name, (uint8_t)t};
}

const char *
cu_unrounded(Cuda *c, DType t, const char *text)
{
	for (uint32_t k = 0; dtype_info[t].bytes == 2 && k < c->rounded.n; k++)
		if (!strcmp(c->rounded.at[k].name, text))
			return c->rounded.at[k].text;
	return text;
}

const char *
cu_pointer(Cuda *c, DType t, int64_t offset)
{
	const char *m = c_types[t].memory;
	uint32_t k = c->counts;

	while (k < c->off.n && c->off.at[k] != offset)
		k++;
	if (k == c->off.n)
		vec_push(c->a, &c->off, offset);
	return top_let(c, 'p', arena_printf(c->a, "%s *", m),
	               arena_printf(c->a, "(%s *)(arena + o%u)", m, (unsigned)k));
}

void
cu_count(Cuda *c, int64_t n)
{
	vec_push(c->a, &c->off, n);
	c->counts = c->off.n;
}

const char *
cu_element(Cuda *c, const Type *t, const Ix *ix)
{
	bool root = c->root && type_same_shape(c->root, t) && !memcmp(c->root->perm, t->perm, t->rank);
	const char *marked = "", *sum = NULL;
	int64_t k = 1, x;

	for (int i = 0; root && i < t->rank; i++)
		root = axis_same(c->root->axis[i], t->axis[i]) && !strcmp(c->root_ix[i], ix[i]);
	if (root)
		return c->root_i;
	for (int i = t->rank; i-- > 0;) {
		Axis a = t->axis[t->perm[i]];
		Ix at = ix[t->perm[i]], stride = top_product(c, k, marked);
		const char *term = !strcmp(stride, "1") ? at : arena_printf(c->a, "%s * %s", at, stride);

		if (!cu_ix_number(at, &x) || x)
			sum = sum ? arena_printf(c->a, "%s + %s", term, sum) : term;
		if (a.mul)
			marked = arena_printf(c->a, "%s * %s", marked, cu_extent(c, a));
		else
			k *= a.n;
	}
	return sum ? sum : "0";
}

Cell
cu_load_at(Cuda *c, const Type *t, int64_t offset, const Ix *ix)
{
	DType dt = (DType)t->dtype;
	Cell x;

	if (cu_lanes_take(c, t, offset, ix, &x))
		return x;
	return cu_cell_let(
	        c, cu_from_memory(c, dt, arena_printf(c->a, "%s[%s]", cu_pointer(c, dt, offset), cu_element(c, t, ix))),
	        dt);
}

void
cu_stores_at(Cuda *c, int64_t offset)
{
	c->writes_state |= offset >= c->p->state_from && offset < c->p->state_to;
}

void
cu_store_at(Cuda *c, const Type *t, int64_t offset, const Ix *ix, Cell x)
{
	DType dt = (DType)t->dtype;
	const char *p = cu_pointer(c, dt, offset), *at = cu_element(c, t, ix);

	cu_stores_at(c, offset);
	cu_line(c, "%s[%s] = %s;", p, at, cu_to_memory(c, dt, x.v));
}

const char *
cu_address(Cuda *c, const Type *t, int64_t offset, const Ix *ix)
{
	return arena_printf(c->a, "&%s[%s]", cu_pointer(c, (DType)t->dtype, offset), cu_element(c, t, ix));
}

/* ---------------------------------------------------------------- memo */
void
cu_memo_put(Cuda *c, Val v, const Ix *ix, Cell x)
{
	Memo m = {.val = v.id, .rank = val_type(c->g, v)->rank, .cell = x};

	for (int i = 0; i < m.rank; i++)
		m.ix[i] = ix[i];
	vec_push(c->a, &c->memo, m);
}

bool
cu_memo_find(const Cuda *c, Val v, const Ix *ix, int rank, Cell *x)
{
	for (uint32_t i = c->memo.n; i-- > 0;) {
		const Memo *m = &c->memo.at[i];
		int k = 0;

		if (m->val != v.id)
			continue;
		while (k < rank && !strcmp(m->ix[k], ix[k]))
			k++;
		if (k == rank) {
			*x = m->cell;
			return true;
		}
	}
	return false;
}

/* ---------------------------------------------------------------- the frame */
enum { MOST_OFFSETS = 480 };

static const char *
identifier(Cuda *c, const char *part)
{
	const char *name = c->group >= 0 ? c->g->group.at[c->group].name : c->g->name;
	char *s = arena_printf(c->a, "%s%s%s", name, part,
	                       c->p->variant ? arena_printf(c->a, "_race%d", c->p->variant) : "");

	for (char *p = s; *p; p++)
		if (!isalnum((unsigned char)*p))
			*p = '_';
	return s;
}

/* The first kernel of a group has its name, others a part's number beside it, those of its other kernels in a racing
 * program their number; that of an op outside groups says what it does. */
void
cu_kernel_open(Cuda *c, const char *what)
{
	c->name = identifier(c, c->group < 0 ? arena_printf(c->a, "_%s_%u", what, (unsigned)c->first)
	                        : c->nkernel ? arena_printf(c->a, "_part%d", c->nkernel)
	                                     : "");
	c->nkernel++;
	c->depth = c->nvar = 0;
	c->threads = BLOCK;
	c->shared = 0;
	c->team = 1;
	c->beside = 0;
	c->memo.n = c->cse.n = c->joined.n = c->top.n = 0;
	c->off.n = c->map.n = c->counts = 0;
	c->check = c->writes_state = c->flat = c->loose = c->two = false;
	c->root = NULL;
	c->lanes = NULL;
	c->head.n = c->body.n = 0;
	c->rounded.n = 0;
}

const char *
cu_kernel_word(Arena *a, const CuFunction *f)
{
	return f->beside ? arena_printf(a, "KERNEL_OF(%d, %d)", f->block, f->beside) : f->two ? "KERNEL2" : "KERNEL";
}

/* The function of that text. */
static int
function_of(Cuda *c, const char *before, const char *text, const char *what, bool plan)
{
	CuProgram *p = c->p;
	uint64_t hash = hash_bytes(HASH_START, text, strlen(text));

	for (uint32_t i = 0; i < p->fn.n; i++) {
		const CuFunction *f = &p->fn.at[i];

		if (f->hash == hash && f->plan == plan && f->two == c->two && f->beside == c->beside &&
		    f->block == c->threads && f->shared == c->shared && !strcmp(f->text, text))
			return (int)i;
	}
	vec_push(p->a, &p->fn,
	         ((CuFunction){.name = arena_strdup(p->a, c->name),
	                       .before = before,
	                       .text = arena_strdup(p->a, text),
	                       .what = arena_strdup(p->a, what),
	                       .flat = c->flat,
	                       .loose = c->loose,
	                       .plan = plan,
	                       .two = c->two,
	                       .hash = hash,
	                       .block = c->threads,
	                       .team = c->team,
	                       .beside = c->beside,
	                       .shared = (int32_t)c->shared}));
	return (int)p->fn.n - 1;
}

/* Which part of each value the group's ops ask for, by Val.id: slices ask for what they take. */
static const double *
parts_asked(const Cuda *c)
{
	const Graph *g = c->g;
	double *asked = arena_array(c->a, double, g->val.n);

	for (uint32_t i = c->last; i-- > c->first;) {
		const Op *op = &g->op.at[i];
		double part = op->nout ? 0 : 1;

		for (int k = 0; !op->dead && k < op->nout; k++)
			part = fmax(part, cu_value_is_out(c, op->out[k]) ? 1 : asked[op->out[k].id]);
		for (int k = 0; !op->dead && k < op->nin; k++) {
			double *in = &asked[op->in[k].id];

			if (op->kind == OP_slice)
				*in += part * (double)type_elements(val_type(g, op->out[0])) /
				       (double)type_elements(val_type(g, op->in[0]));
			else
				*in = fmax(*in, part);
		}
	}
	return asked;
}

/* Bytes between the group and memory: of what it reads of others and what it stores, each once; of a table whose rows
 * are taken or added to, these rows; of what slices alone read, these. */
static double
group_bytes(const Cuda *c)
{
	const Graph *g = c->g;
	const double *asked = parts_asked(c);
	bool *seen = arena_array(c->a, bool, g->val.n);
	double bytes = c->group >= 0 ? 2.0 * (double)g->group.at[c->group].workspace : 0;

	for (uint32_t i = c->first; i < c->last; i++) {
		const Op *op = &g->op.at[i];

		for (int k = 0; !op->dead && k < op->nin + op->nout; k++) {
			Val v = k < op->nin ? op->in[k] : op->out[k - op->nin];
			bool rows = (op->kind == OP_take && k == 0) ||
			            (op_has((OpKind)op->kind, T_INPLACE) && (k == 0 || k == op->nin));
			Val moved = !rows ? v : op->kind == OP_take ? op->out[0] : op->in[1];
			bool out = cu_value_is_out(c, v);

			if (seen[v.id] || (c->inside[v.id] && !out))
				continue;
			seen[v.id] = true;
			bytes += (double)type_bytes(val_type(g, moved)) * (out ? 1 : fmin(1, asked[v.id]));
		}
	}
	return bytes;
}

static double
group_flops(const Cuda *c)
{
	double flops = 0;

	for (uint32_t i = c->first; i < c->last; i++)
		flops += c->g->op.at[i].dead ? 0 : op_flops(c->g, &c->g->op.at[i]);
	return flops;
}

/* More offsets than a launch may have parameters (4 KB, before CUDA 12.1) stand in a table beside the function, which
 * is this kernel's alone then. Empties Cuda.off. */
static const char *
offsets_table(Cuda *c, Buf *text)
{
	Buf table = {0};

	buf_printf(&table, "static __device__ const long long %s_offsets[%u] = {", c->name, (unsigned)c->off.n);
	for (uint32_t k = 0; k < c->off.n; k++) {
		buf_printf(&table, "%s%lld,", k % 16 ? " " : "\n\t", (long long)c->off.at[k]);
		buf_printf(text, "\tconst long long o%u = %s_offsets[%u];\n", (unsigned)k, c->name, (unsigned)k);
	}
	buf_printf(&table, "};\n");
	const char *before = arena_strndup(c->p->a, table.at, table.n);

	buf_free(&table);
	c->off.n = 0;
	c->flat = c->loose = false;
	return before;
}

/* The group's figures stand with its first kernel, but for those ahead of it. */
void
cu_kernel_close(Cuda *c, const char *what, int64_t blocks)
{
	Arena *a = c->p->a;
	Buf text = {0};
	int64_t *off = arena_array(a, int64_t, c->off.n + 1), grid = blocks > 65535 ? 65535 : blocks > 0 ? blocks : 1;
	bool once = c->group >= 0 && c->g->group.at[c->group].once;

	bool many = c->off.n > MOST_OFFSETS;
	const char *before = "";

	buf_printf(&text, "(char *arena, long long n");
	for (uint32_t k = 0; k < c->off.n && !many; k++) {
		off[k] = c->off.at[k];
		buf_printf(&text, ", long long o%u", (unsigned)k);
	}
	KernelMap *map = arena_array(a, KernelMap, c->map.n + 1);

	for (uint32_t k = 0; k < c->map.n; k++) {
		map[k] = c->map.at[k];
		buf_printf(&text, ", const __grid_constant__ TensorMap map_%c", c->map_name[k]);
	}
	buf_printf(&text, ")\n{\n%s", c->writes_state ? "\tif (halted(arena)) return;\n" : "");
	if (many)
		before = offsets_table(c, &text);
	if (c->head.n)
		buf_put(&text, c->head.at, c->head.n);
	if (c->body.n)
		buf_put(&text, c->body.at, c->body.n);
	buf_printf(&text, "}\n");
	int fn = function_of(c, before, text.at, what, false);

	buf_free(&text);
	vec_push(a, &c->gk->k,
	         ((KernelRec){.name = arena_strdup(a, c->name),
	                      .fn = fn,
	                      .off = off,
	                      .noff = (int)c->off.n,
	                      .map = map,
	                      .nmap = (int)c->map.n,
	                      .group = c->group,
	                      .rows = grid,
	                      .div = 1,
	                      .grain = 1,
	                      .check = c->check,
	                      .once = once,
	                      .flops = c->nkernel == c->nahead + 1 ? group_flops(c) - c->ahead_flops : 0,
	                      .bytes = c->nkernel == c->nahead + 1 ? group_bytes(c) - c->ahead_bytes : 0}));
}

void
cu_kernel_ahead(Cuda *c, const char *what, int64_t blocks, double bytes, double less)
{
	c->nahead++;
	c->ahead_bytes += less;
	cu_kernel_close(c, what, blocks);
	c->gk->k.at[c->gk->k.n - 1].flops = 0;
	c->gk->k.at[c->gk->k.n - 1].bytes = bytes;
}

void
cu_kernel_turns(Cuda *c, double turns)
{
	c->p->fn.at[c->gk->k.at[c->gk->k.n - 1].fn].turns = turns;
}

void
cu_plan_close(Cuda *c, const char *plan, const int64_t *off, int noff)
{
	Arena *a = c->p->a;
	int64_t *copy = arena_array(a, int64_t, noff);

	/* the kernels before it make its operands: what the group costs stands with the contraction */
	for (int k = 0; k < c->nkernel; k++)
		c->gk->k.at[c->gk->k.n - 1 - (uint32_t)k].flops = c->gk->k.at[c->gk->k.n - 1 - (uint32_t)k].bytes = 0;
	memcpy(copy, off, sizeof *off * (size_t)noff);
	cu_kernel_open(c, "");
	vec_push(a, &c->gk->k,
	         ((KernelRec){.name = arena_strdup(a, c->name),
	                      .fn = function_of(c, "", plan, "a plan of cuDNN", true),
	                      .off = copy,
	                      .noff = noff,
	                      .group = c->group,
	                      .rows = 1,
	                      .div = 1,
	                      .grain = 1,
	                      .once = c->g->group.at[c->group].once,
	                      .flops = group_flops(c),
	                      .bytes = group_bytes(c)}));
}
