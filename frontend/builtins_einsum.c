/* builtins_einsum.c: einsum, Einstein's convention for sums of products.
 *
 * In: an equation as NumPy writes it, "bij,bjk->bik", and up to four tensors.   Out: transposes, sums and products of
 * elements or matrices. Operands are taken from the left, two at a time. Of two, an axis that only one has and that
 * nobody needs later is summed before; axes of both that are needed later lead a batched matmul, axes of both that are
 * not are what it sums, and each operand's others become its rows or columns. Without rows and columns, or without a
 * sum, the elements are multiplied.
 * "..." stands for the axes that no letter names, which broadcast, and may stand for none. A letter twice in one
 * operand is its diagonal. Without "->" the result has the letters that stand once, in alphabetical order, behind
 * "...". */
#include "builtins.h"

#include <ctype.h>

enum { MAX_OPERANDS = 4, DOTS = 128, UNKNOWN = 0 }; /* DOTS + i: axis i of "...", counted from the last */
typedef unsigned char Label;
typedef struct Labels {
	Label at[MAX_RANK];
	int n;
} Labels;
typedef struct Part {
	Val v;
	Labels l;
} Part;
typedef struct Einsum {
	Call *c;
	const char *text;
	Part part[MAX_OPERANDS];
	int n, dots; /* operands; axes of "..." at most */
	Labels out;
} Einsum;

static const char *const operand_names[MAX_OPERANDS] = {"a", "b", "c", "d"};

static int
label_find(const Labels *l, Label x)
{
	for (int i = 0; i < l->n; i++)
		if (l->at[i] == x)
			return i;
	return -1;
}

static bool
ein_fail(const Einsum *e, const char *why, const char *of)
{
	return call_fail(e->c, call_loc(e->c, "equation"), "\"%s\": %s%s", e->text, why, of);
}

/* ---------------------------------------------------------------- the equation */
/* One term, up to `end`; rank: axes of its tensor, -1 of the result. */
static bool
read_term(Einsum *e, const char *at, const char *end, int rank, Labels *out)
{
	int letters = 0, dots = -1, span = 0;

	*out = (Labels){.n = 0};
	for (const char *p = at; p < end; p++)
		letters += isalpha((unsigned char)*p) != 0;
	for (const char *p = at; p < end; p++) {
		if (*p == ' ')
			continue;
		if (end - p >= 3 && !strncmp(p, "...", 3) && dots < 0) {
			dots = out->n;
			span = rank < 0 ? e->dots : rank - letters;
			p += 2;
			for (int i = span; i-- > 0 && out->n < MAX_RANK;)
				out->at[out->n++] = (Label)(DOTS + i);
			continue;
		}
		if (!isalpha((unsigned char)*p))
			return ein_fail(
			        e, "needs letters, commas, \"->\" and one \"...\" in a term, as in bij,bjk->bik", "");
		if (out->n == MAX_RANK)
			return ein_fail(e, "a term has more than 8 axes", "");
		out->at[out->n++] = (Label)*p;
	}
	if (span < 0)
		out->n = letters;
	return true;
}

static bool
read_operands(Einsum *e, const char *end)
{
	const char *at = e->text;

	for (int k = 0; k < e->n; k++) {
		const char *stop = memchr(at, ',', (size_t)(end - at));
		Type t = val_type_of(e->c, e->part[k].v);
		bool last = k == e->n - 1;

		if (last == (stop != NULL))
			return call_fail(e->c, call_loc(e->c, "equation"),
			                 "\"%s\" has %s terms than the %d tensor%s given", e->text,
			                 last ? "more" : "fewer", e->n, e->n == 1 ? "" : "s");
		stop = stop ? stop : end;
		if (!read_term(e, at, stop, t.rank, &e->part[k].l))
			return false;
		if (e->part[k].l.n != t.rank) {
			call_fail(e->c, call_loc(e->c, operand_names[k]), "%s is %s with %d ax%s, \"%.*s\" names %d",
			          operand_names[k], val_text(e->c, e->part[k].v), t.rank, t.rank == 1 ? "is" : "es",
			          (int)(stop - at), at, e->part[k].l.n);
			call_note_val(e->c, operand_names[k], e->part[k].v);
			return false;
		}
		for (int i = 0; i < t.rank; i++)
			if (e->part[k].l.at[i] >= DOTS && e->part[k].l.at[i] - DOTS >= e->dots)
				e->dots = e->part[k].l.at[i] - DOTS + 1;
		at = stop + 1;
	}
	return true;
}

/* The letters that stand once, behind all of "...". */
static bool
implied(Einsum *e)
{
	for (int i = e->dots; i-- > 0;)
		e->out.at[e->out.n++] = (Label)(DOTS + i);
	for (int x = 'A'; x <= 'z'; x++) {
		int times = 0;

		for (int k = 0; k < e->n; k++)
			for (int i = 0; i < e->part[k].l.n; i++)
				times += e->part[k].l.at[i] == x;
		if (times == 1 && e->out.n == MAX_RANK)
			return ein_fail(e, "the result has more than 8 axes", "");
		if (times == 1)
			e->out.at[e->out.n++] = (Label)x;
	}
	return true;
}

static bool
read_result(Einsum *e, const char *arrow)
{
	if (!arrow)
		return implied(e);
	if (!read_term(e, arrow + 2, e->text + strlen(e->text), -1, &e->out))
		return false;
	for (int i = 0; i < e->out.n; i++) {
		char letter[2] = {(char)e->out.at[i], 0};
		bool known = e->out.at[i] >= DOTS;

		for (int k = 0; k < e->n; k++)
			known |= label_find(&e->part[k].l, e->out.at[i]) >= 0;
		if (!known)
			return ein_fail(e, "no operand has the result's ", letter);
		if (label_find(&e->out, e->out.at[i]) != i)
			return ein_fail(e, "the result has twice ", letter);
	}
	return true;
}

/* A letter has one extent; axes of "..." may be 1 besides. */
static bool
extents_agree(Einsum *e)
{
	for (int k = 0; k < e->n; k++)
		for (int i = 0; i < e->part[k].l.n; i++)
			for (int j = 0; j <= k; j++) {
				Label x = e->part[k].l.at[i];
				int at = label_find(&e->part[j].l, x);
				int64_t m = at < 0 ? 0 : val_type_of(e->c, e->part[j].v).axis[at].n,
				        n = val_type_of(e->c, e->part[k].v).axis[i].n;

				if (at < 0 || m == n || (x >= DOTS && (m == 1 || n == 1)))
					continue;
				call_fail(e->c, e->c->loc, "%s%c has the extent %lld in %s %s, %lld in %s %s",
				          x >= DOTS ? "an axis of \"...\"" : "", x >= DOTS ? ' ' : x, (long long)m,
				          operand_names[j], val_text(e->c, e->part[j].v), (long long)n,
				          operand_names[k], val_text(e->c, e->part[k].v));
				call_note_val(e->c, operand_names[j], e->part[j].v);
				call_note_val(e->c, operand_names[k], e->part[k].v);
				return false;
			}
	return true;
}

/* ---------------------------------------------------------------- tensors */
static void
sum_axis(Call *c, Part *p, int at)
{
	p->v = reduce_over(c, OP_sum, p->v, at, false);
	p->l.n--;
	memmove(p->l.at + at, p->l.at + at + 1, (size_t)(p->l.n - at));
}

/* x where two axes of one letter have the same index; the second goes. */
static bool
diagonals(Einsum *e, int k)
{
	Call *c = e->c;
	Part *p = &e->part[k];

	for (int j = p->l.n - 1; j > 0; j--) {
		int i = label_find(&p->l, p->l.at[j]);
		Type t = val_type_of(c, p->v);

		if (i == j)
			continue;
		if (t.axis[i].mul || t.axis[j].mul)
			return ein_fail(e, "a diagonal along the batch is not possible", "");
		Val on = ew2(c, OP_eq, counting(c, DT_i32, t.rank, i, t.axis[i]),
		             counting(c, DT_i32, t.rank, j, t.axis[j]));

		p->v = ew3(c, OP_where, on, p->v, num(c, (DType)t.dtype, 0));
		sum_axis(c, p, j);
	}
	return true;
}

/* Axes in the order of `to`, which has all of p's; the others are new, of extent 1. */
static Val
in_order(Call *c, const Part *p, const Labels *to)
{
	int64_t perm[MAX_RANK];
	Axis axes[MAX_RANK];
	int n = 0;

	for (int i = 0; i < to->n; i++)
		if (label_find(&p->l, to->at[i]) >= 0)
			perm[n++] = label_find(&p->l, to->at[i]);
	Val v = build_transpose(c->b, p->v, perm);
	Type t = val_type_of(c, v);

	n = 0;
	for (int i = 0; i < to->n; i++)
		axes[i] = label_find(&p->l, to->at[i]) >= 0 ? t.axis[n++] : axis(1);
	return n == to->n ? v : to_shape(c, v, to->n, axes);
}

static bool
join(Labels *l, Label x)
{
	if (l->n == MAX_RANK)
		return false;
	l->at[l->n++] = x;
	return true;
}

/* As a stack of matrices: the axes of `lead` (1 where p has none), then one of `rows`, one of `columns`. */
static bool
matrices(Call *c, const Part *p, const Labels *lead, const Labels *rows, const Labels *columns, Val *out)
{
	Labels all = *lead;
	Axis axes[MAX_RANK + 2];

	for (int i = 0; i < rows->n + columns->n; i++)
		if (!join(&all, i < rows->n ? rows->at[i] : columns->at[i - rows->n]))
			return false;
	Val v = in_order(c, p, &all);
	Type t = val_type_of(c, v);

	if (lead->n + 2 > MAX_RANK)
		return false;
	memcpy(axes, t.axis, sizeof *axes * (size_t)lead->n);
	axes[lead->n] = axes[lead->n + 1] = axis(1);
	for (int i = 0; i < rows->n + columns->n; i++) {
		Axis *to = &axes[lead->n + (i >= rows->n)];

		if (!axis_times(*to, t.axis[lead->n + i], to))
			return false;
	}
	*out = to_shape(c, v, lead->n + 2, axes);
	return true;
}

/* ---------------------------------------------------------------- two operands */
typedef struct Sides {
	Labels lead, rows, inner, columns;
} Sides;

static bool
needed(const Einsum *e, int from, Label x)
{
	bool is = label_find(&e->out, x) >= 0;

	for (int k = from; k < e->n; k++)
		is |= label_find(&e->part[k].l, x) >= 0;
	return is;
}

/* The product of elements, of all labels of both. */
static bool
multiply(Einsum *e, const Part *a, const Part *b, const Sides *s, Part *out)
{
	*out = (Part){.l = s->lead};
	for (int i = 0; i < s->rows.n + s->columns.n + s->inner.n; i++) {
		Label x = i < s->rows.n                  ? s->rows.at[i]
		          : i < s->rows.n + s->columns.n ? s->columns.at[i - s->rows.n]
		                                         : s->inner.at[i - s->rows.n - s->columns.n];

		if (!join(&out->l, x))
			return false;
	}
	out->v = ew2(e->c, OP_mul, in_order(e->c, a, &out->l), in_order(e->c, b, &out->l));
	for (int i = out->l.n; i-- > s->lead.n + s->rows.n + s->columns.n;)
		sum_axis(e->c, out, i);
	return true;
}

static bool
contract(Einsum *e, const Part *a, const Part *b, const Sides *s, Part *out)
{
	Axis axes[MAX_RANK];
	Val x, y;

	if (!matrices(e->c, a, &s->lead, &s->rows, &s->inner, &x) ||
	    !matrices(e->c, b, &s->lead, &s->inner, &s->columns, &y))
		return false;
	x = op_with2(e->c, OP_matmul, x, y, NULL);
	if (!x.id)
		return false;
	Type t = val_type_of(e->c, x), ta = val_type_of(e->c, a->v), tb = val_type_of(e->c, b->v);

	*out = (Part){.l = s->lead};
	memcpy(axes, t.axis, sizeof *axes * (size_t)s->lead.n);
	for (int i = 0; i < s->rows.n + s->columns.n; i++) {
		bool row = i < s->rows.n;
		Label l = row ? s->rows.at[i] : s->columns.at[i - s->rows.n];

		if (!join(&out->l, l))
			return false;
		axes[out->l.n - 1] = row ? ta.axis[label_find(&a->l, l)] : tb.axis[label_find(&b->l, l)];
	}
	out->v = to_shape(e->c, x, out->l.n, axes);
	return true;
}

/* Sums the axes that only this operand has and nobody needs; those it shares are left. */
static void
sum_alone(Einsum *e, Part *p, const Part *other, int from)
{
	for (int i = p->l.n; i-- > 0;)
		if (!needed(e, from, p->l.at[i]) && (!other || label_find(&other->l, p->l.at[i]) < 0))
			sum_axis(e->c, p, i);
}

static bool
combine(Einsum *e, Part *a, Part *b, int next, Part *out)
{
	Sides s = {.lead.n = 0};
	bool fits = true;

	sum_alone(e, a, b, next);
	sum_alone(e, b, a, next);
	for (int i = 0; i < a->l.n; i++) {
		Label x = a->l.at[i];
		bool shared = label_find(&b->l, x) >= 0;
		Type ta = val_type_of(e->c, a->v), tb = val_type_of(e->c, b->v);
		bool wide = shared && ta.axis[i].n != tb.axis[label_find(&b->l, x)].n; /* of "...": broadcasts */

		fits &= join(!shared ? &s.rows : needed(e, next, x) || wide ? &s.lead : &s.inner, x);
	}
	for (int i = 0; i < b->l.n; i++)
		if (label_find(&a->l, b->l.at[i]) < 0)
			fits &= join(&s.columns, b->l.at[i]);
	bool plain = !s.inner.n || (!s.rows.n && !s.columns.n);

	if (!fits || !(plain ? multiply : contract)(e, a, b, &s, out))
		return e->c->b->error != NULL ||
		       call_fail(e->c, e->c->loc, "\"%s\" needs more than 8 axes, or two axes of N as one, on its way",
		                 e->text);
	return true;
}

/* ---------------------------------------------------------------- the call */
static bool
operands(Einsum *e)
{
	Call *c = e->c;
	const Value *equation = call_arg(c, "equation");

	if (equation->kind != V_STR)
		return call_fail(c, call_loc(c, "equation"), "equation is %s, needs a string as in \"bij,bjk->bik\"",
		                 value_text(c, equation));
	e->text = equation->s;
	for (int k = 0; k < MAX_OPERANDS; k++) {
		const char *name = operand_names[k];

		if (k && call_arg(c, name)->kind == V_NONE)
			break;
		if (!arg_float_tensor(c, name, &e->part[k].v) ||
		    (k && !same_dtype(c, "a", e->part[0].v, name, e->part[k].v)))
			return false;
		e->n = k + 1;
	}
	for (int k = e->n; k < MAX_OPERANDS; k++)
		if (call_arg(c, operand_names[k])->kind != V_NONE)
			return call_fail(c, call_loc(c, operand_names[k]), "%s is given, %s is not", operand_names[k],
			                 operand_names[e->n]);
	return true;
}

bool
builtin_einsum(Call *c, Value *result)
{
	Einsum e = {.c = c};

	if (!operands(&e))
		return false;
	const char *arrow = strstr(e.text, "->");

	if (!read_operands(&e, arrow ? arrow : e.text + strlen(e.text)) || !read_result(&e, arrow) ||
	    !extents_agree(&e))
		return false;
	for (int k = 0; k < e.n; k++)
		if (!diagonals(&e, k))
			return false;
	for (int k = 1; k < e.n; k++) {
		Part product;

		if (!combine(&e, &e.part[0], &e.part[k], k + 1, &product))
			return false;
		e.part[0] = product;
	}
	sum_alone(&e, &e.part[0], NULL, e.n);
	return call_give(c, in_order(c, &e.part[0], &e.out), result);
}
