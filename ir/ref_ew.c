/* ref_ew.c: reference evaluation of the elementwise rows: the tokens of ew.def pasted into loops over double; on
 * integers the parsed expression in 64 bits.
 *
 * In: operands that broadcast as NumPy does.  Out: one array. Adjacent axes that all operands walk alike are merged
 * first, so that a row of the innermost axis is long; each row is one call of the row function of (operator, value or
 * derivative). Sums and products of integers wrap, which pasted tokens may not (a signed overflow is undefined in C):
 * expr_eval_int does. */
#include "ref.h"
#include <math.h>
#include <string.h>

/* A row: operand variable v's element i is p[v][i * s[v]], v in the order x y z r g; a, b: attributes. */
typedef struct EwRow { const double *p[5]; int64_t s[5]; double a, b, *out; int64_t n; } EwRow;
typedef void EwFn(const EwRow *w);

/* Rows for integers alone are never run on double. */
#define idiv(x, y) 0
#define imod(x, y) 0
#define NONE 0
#define ZERO 0
#define ROW(fn, expression) \
	static void fn(const EwRow *w) \
	{ \
		const double a = w->a, b = w->b; \
		for (int64_t i = 0; i < w->n; i++) { \
			const double x = w->p[0][i * w->s[0]], y = w->p[1][i * w->s[1]], z = w->p[2][i * w->s[2]]; \
			const double r = w->p[3][i * w->s[3]], g = w->p[4][i * w->s[4]]; \
			(void)a, (void)b, (void)x, (void)y, (void)z, (void)r, (void)g; \
			w->out[i] = (expression); \
		} \
	}
#define EW(name, arity, attrs, types, value, dx, dy, dz) \
	ROW(name##_value, value) ROW(name##_dx, dx) ROW(name##_dy, dy) ROW(name##_dz, dz)
#include "ew.def"
#undef EW

static EwFn *const rows[][4] = {
#define EW(name, arity, attrs, types, value, dx, dy, dz) {name##_value, name##_dx, name##_dy, name##_dz},
#include "ew.def"
#undef EW
};

/* ---------------------------------------------------------------- broadcasting */
typedef struct Loop { int rank, nin; int64_t ext[MAX_RANK], stride[5][MAX_RANK]; } Loop;

/* The row-major strides of an operand in the result's axes: 0 where it broadcasts. */
static bool
operand_strides(const RefCtx *cx, const RefTensor *t, const Type *out, const int64_t *ext, int64_t *stride)
{
	int64_t own[MAX_RANK], s[MAX_RANK];
	int lead = out->rank - t->type.rank;

	ref_extents(cx, &t->type, own);
	ref_strides(t->type.rank, own, s);
	for (int i = 0; i < out->rank; i++) {
		stride[i] = i < lead || own[i - lead] == 1 ? 0 : s[i - lead];
		if (i >= lead && own[i - lead] != 1 && own[i - lead] != ext[i])
			return false;
	}
	return lead >= 0;
}

static void
merge_axes(Loop *l)
{
	int n = 0;

	for (int i = 1; i < l->rank; i++) {
		bool alike = true;

		for (int k = 0; k < l->nin; k++)
			alike &= l->stride[k][n] == l->stride[k][i] * l->ext[i];
		if (alike) {
			l->ext[n] *= l->ext[i];
		} else {
			l->ext[++n] = l->ext[i];
		}
		for (int k = 0; k < l->nin; k++)
			l->stride[k][n] = l->stride[k][i];
	}
	l->rank = n + 1;
}

/* A row on integers (and conditions beside them, or as its result). off: of each operand; step: from an element to the
 * next. */
static void
integer_row(const RefCtx *cx, const Op *op, const Loop *l, const int64_t *off, RefTensor *r, int64_t first)
{
	int64_t n = l->ext[l->rank - 1], v[7] = {0};
	const OpInfo *info = &op_info[op->kind];

	for (int k = 0; k < op->nattr && k < 2; k++)
		v[5 + k] = ref_attr((DType)ref_in(cx, op, 0)->type.dtype, &op->attr[k]);
	for (int64_t i = 0; i < n; i++) {
		int64_t x;

		for (int k = 0; k < op->nin; k++)
			v[strchr(EXPR_VARS, info->operands[k]) - EXPR_VARS] =
				ref_int(ref_in(cx, op, k), off[k] + i * l->stride[k][l->rank - 1]);
		x = expr_eval_int(info->expr, v);
		if (r->i)
			r->i[first + i] = x;
		else
			r->f[first + i] = (double)x;
	}
}

const char *
ref_ew(RefCtx *cx, const Op *op)
{
	static const double nothing = 0;
	RefTensor *r = ref_out(cx, op, 0);
	Loop l = {.nin = op->nin, .rank = r->type.rank};
	EwRow row = {.p = {&nothing, &nothing, &nothing, &nothing, &nothing}};
	RefWalk walk = {0};
	int64_t off[5] = {0};
	int var[5];
	int64_t at = 0;
	bool integers = false;

	ref_extents(cx, &r->type, l.ext);
	for (int k = 0; k < op->nin; k++) {
		integers |= ref_in(cx, op, k)->i != NULL;
		var[k] = (int)(strchr("xyzrg", op_info[op->kind].operands[k]) - "xyzrg");
		if (!operand_strides(cx, ref_in(cx, op, k), &r->type, l.ext, l.stride[k]))
			return ref_fail(cx, "%s: operand %d does not broadcast for a batch of %lld",
			                op_info[op->kind].name, k + 1, (long long)cx->n);
	}
	if (l.rank == 0) {
		l.rank = 1;
		l.ext[0] = 1;
		for (int k = 0; k < l.nin; k++)
			l.stride[k][0] = 0;
	}
	merge_axes(&l);
	row.a = op->nattr > 0 ? attr_num(op, (AttrName)op->attr[0].name) : 0;
	row.b = op->nattr > 1 ? attr_num(op, (AttrName)op->attr[1].name) : 0;
	row.n = l.ext[l.rank - 1];
	walk.rank = l.rank - 1;
	memcpy(walk.ext, l.ext, sizeof walk.ext);
	if (r->n == 0)
		return NULL;
	do {
		if (integers) {
			integer_row(cx, op, &l, off, r, at);
			at += row.n;
			continue;
		}
		for (int k = 0; k < op->nin; k++) {
			row.p[var[k]] = ref_in(cx, op, k)->f + off[k];
			row.s[var[k]] = l.stride[k][l.rank - 1];
		}
		row.out = r->f + at;
		rows[op_info[op->kind].ew][op_info[op->kind].part](&row);
		at += row.n;
	} while (ref_next(&walk, op->nin, off, l.stride));
	return NULL;
}
