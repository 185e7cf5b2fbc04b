/* gemm_form.c: contractions as products of matrices: which axes are rows, columns, and what is summed.
 *
 * In: matmul, conv2d and its gradients.   Out: lists of axes (Form), and indices of operands and results at coordinates
 * of these.
 *   matmul      m: rows, with all batch axes before them if operand 1 has none; n: columns; k
 * conv2d      m: image, row, column of the result; n: its channel; k: tap, channel of the operand (implicit GEMM, as in
 * cuDNN: Chetlur et al. 2014)
 * conv2d.dx   m: image, row, column; n: channel of the operand; k: tap, channel of the gradient. With a stride the
 * pixels are sorted by the
 *               remainder of their place, so that each class has only the taps that meet it
 *   conv2d.dw   m: tap, channel of the operand; n: channel of the gradient; k: image, row, column
 * Groups of channels are an axis of b. Padding is outside the operand: the condition says so and a zero is
 * multiplied. */
#include "gemm.h"
#include <string.h>

static Form
matmul_form(const Graph *g, const Op *op)
{
	const Type *o = val_type(g, op->out[0]), *a = val_type(g, op->in[0]), *b = val_type(g, op->in[1]);
	bool flat = b->rank == 2;
	Form f = {.op = op, .groups = 1};

	for (int i = 0; i < o->rank - 2; i++) {
		if (flat)
			f.m[f.nm++] = o->axis[i];
		else
			f.b[f.nb++] = o->axis[i];
	}
	f.m[f.nm++] = o->axis[o->rank - 2];
	f.n[f.nn++] = o->axis[o->rank - 1];
	f.k[f.nk++] = a->axis[attr_bool(op, A_ta) ? a->rank - 2 : a->rank - 1];
	return f;
}

static Axis
part_of(Axis a, int64_t n)
{
	return axis((a.n + n - 1) / n);
}

static void
dx_classes(Form *f, const Type *o, const Type *w)
{
	f->classes = (f->at.stride[0] > 1 || f->at.stride[1] > 1) && f->at.dilation[0] == 1 &&
	             f->at.dilation[1] == 1 && f->groups == 1 && !o->axis[2].mul && !o->axis[3].mul;
	if (!f->classes)
		return;
	f->b[f->nb++] = axis(f->at.stride[0] * f->at.stride[1]);
	for (int d = 0; d < 2; d++) {
		f->m[1 + d] = part_of(o->axis[2 + d], f->at.stride[d]);
		f->k[d] = part_of(w->axis[2 + d], f->at.stride[d]);
	}
}

Form
cu_form(const Graph *g, const Op *op)
{
	const Type *o = val_type(g, op->out[0]), *x = val_type(g, op->in[1]);

	if (op->kind == OP_matmul)
		return matmul_form(g, op);
	bool dx = op->kind == OP_conv2d_dx, dw = op->kind == OP_conv2d_dw;
	const Type *w = dw ? o : x;
	Conv conv = conv_of(g, op);
	Form f = {.op = op, .at = conv.at, .groups = conv.groups, .nm = 3, .nn = 1, .nk = 3};

	if (f.groups > 1)
		f.b[f.nb++] = axis(f.groups);
	Axis pixels[3] = {(dw ? x : o)->axis[0], (dw ? x : o)->axis[2], (dw ? x : o)->axis[3]},
	     out = axis(conv.out), taps[3] = {w->axis[2], w->axis[3], dx ? out : w->axis[1]};

	memcpy(dw ? f.k : f.m, pixels, sizeof pixels);
	memcpy(dw ? f.m : f.k, taps, sizeof taps);
	f.n[0] = dx ? w->axis[1] : out;
	if (dx)
		dx_classes(&f, o, w);
	return f;
}

int64_t
cu_form_count(const Axis *a, int n)
{
	int64_t r = 1;

	for (int i = 0; i < n; i++)
		r *= a[i].n;
	return r;
}

void
cu_split_number(Cuda *c, Ix i, const Ix *ext, int n, Ix *out)
{
	for (int k = n; k-- > 0;) {
		bool outer = true;

		for (int q = 0; q < k; q++)
			outer &= !strcmp(ext[q], "1");
		if (!strcmp(ext[k], "1")) {
			out[k] = "0";
			continue;
		}
		out[k] = outer ? i : cu_ix_rem(c, i, ext[k]);
		if (!outer)
			i = cu_ix_div(c, i, ext[k]);
	}
}

/* ---------------------------------------------------------------- indices */
static Ix
in_group(const Gemm *x, Ix i, int64_t each)
{
	return x->f.groups > 1 ? cu_ix_add(x->c, cu_ix_mul(x->c, x->b[0], cu_ix_k(x->c, each)), i) : i;
}

static void
matmul_index(const Gemm *x, int which, const Ix *row, const Ix *k, Ix *ix)
{
	const Type *o = val_type(x->c->g, x->op->out[0]), *t = val_type(x->c->g, x->op->in[which]);
	bool swap = attr_bool(x->op, which ? A_tb : A_ta) != (which == 1); /* k is the last but one */
	bool flat = x->f.nm == o->rank - 1;

	for (int j = 0; j < t->rank - 2; j++)
		ix[j] = t->axis[j].n == 1 && !t->axis[j].mul ? "0"
		        : flat                               ? row[j + o->rank - t->rank]
		                                             : x->b[j + o->rank - t->rank];
	ix[t->rank - 2] = swap ? k[0] : row[which ? 0 : x->f.nm - 1];
	ix[t->rank - 1] = swap ? row[which ? 0 : x->f.nm - 1] : k[0];
}

static Ix
row_in(const Gemm *x, int d, Ix o, Ix tap)
{
	return cu_row_in(x->c, o, x->f.at.stride[d], tap, x->f.at.dilation[d], x->f.at.pad[d]);
}

/* The row of the gradient that a pixel and a tap meet. */
static Ix
row_out(const Gemm *x, int d, Ix i, Ix tap, const char **valid)
{
	Cuda *c = x->c;
	const Form *f = &x->f;

	if (f->classes)
		return cu_ix_sub(c, cu_ix_add(c, i, x->back[d]), tap);
	return cu_row_out(c, i, f->at.stride[d], tap, f->at.dilation[d], f->at.pad[d], valid);
}

static Ix
tap_of(const Gemm *x, int d, Ix tap)
{
	return x->f.classes ? cu_ix_add(x->c, x->tap[d], cu_ix_mul(x->c, tap, cu_ix_k(x->c, x->f.at.stride[d]))) : tap;
}

const char *
cu_operand_index(const Gemm *x, int which, const Ix *row, const Ix *k, Ix *ix)
{
	const Form *f = &x->f;
	const char *valid = "1";

	if (x->op->kind == OP_matmul) {
		matmul_index(x, which, row, k, ix);
		return valid;
	}
	bool dx = x->op->kind == OP_conv2d_dx, dw = x->op->kind == OP_conv2d_dw;

	if (dw && which == 1) {
		Ix r[4] = {k[0], in_group(x, row[0], f->n[0].n), k[1], k[2]};

		memcpy(ix, r, sizeof r);
	} else if (which == 1) {
		Ix o = dx ? k[2] : row[0], r[4] = {in_group(x, o, dx ? f->k[2].n : f->n[0].n), dx ? row[0] : k[2],
		                                   tap_of(x, 0, k[0]), tap_of(x, 1, k[1])};

		memcpy(ix, r, sizeof r);
	} else if (dx) {
		Ix h = row_out(x, 0, row[1], k[0], &valid), w = row_out(x, 1, row[2], k[1], &valid),
		   r[4] = {row[0], in_group(x, k[2], f->k[2].n), h, w};

		memcpy(ix, r, sizeof r);
		valid = cu_in_plane(x->c, val_type(x->c->g, x->op->in[which]), ix, valid);
	} else {
		const Ix *pixel = dw ? k : row, *tap = dw ? row : k;
		Ix r[4] = {pixel[0], in_group(x, tap[2], dw ? f->m[2].n : f->k[2].n), row_in(x, 0, pixel[1], tap[0]),
		           row_in(x, 1, pixel[2], tap[1])};

		memcpy(ix, r, sizeof r);
		valid = cu_in_plane(x->c, val_type(x->c->g, x->op->in[which]), ix, valid);
	}
	return valid;
}

void
cu_result_index(const Gemm *x, const Ix *m, const Ix *n, Ix *ix)
{
	const Form *f = &x->f;
	Cuda *c = x->c;
	const Type *o = x->space;

	if (!x->op) {
		for (int i = 0; i < o->rank; i++)
			ix[o->perm[i]] = i < o->rank - 1 ? m[i] : n[0];
	} else if (x->op->kind == OP_matmul) {
		for (int i = 0; i < o->rank - 1; i++)
			ix[i] = i < f->nb ? x->b[i] : m[i - f->nb];
		ix[o->rank - 1] = n[0];
	} else if (x->op->kind == OP_conv2d_dw) {
		Ix r[4] = {in_group(x, n[0], f->n[0].n), m[2], m[0], m[1]};

		memcpy(ix, r, sizeof r);
	} else {
		Ix r[4] = {m[0], in_group(x, n[0], f->n[0].n), m[1], m[2]};

		for (int d = 0; d < 2 && f->classes; d++)
			r[2 + d] = cu_ix_add(c, x->place[d], cu_ix_mul(c, m[1 + d], cu_ix_k(c, f->at.stride[d])));
		memcpy(ix, r, sizeof r);
	}
	for (int i = 0; i < o->rank; i++)
		if (o->axis[i].n == 1 && !o->axis[i].mul)
			ix[i] = "0";
}

void
cu_result_root(const Gemm *x, Ix m, Ix n, const Ix *ix)
{
	static const char *const perms[3] = {"01234567", "2310", "0231"};
	const Form *f = &x->f;
	Cuda *c = x->c;
	const Type *o = x->space;
	const char *perm = perms[x->op && x->op->kind == OP_matmul ? 0 : x->op && x->op->kind == OP_conv2d_dw ? 1 : 2];
	bool plain = x->op && !f->classes && f->nb == 0;

	for (int i = 0; i < f->nn; i++)
		plain &= !f->n[i].mul; /* rows are as long as the batch */
	for (int i = 0; i < o->rank; i++)
		plain &= o->perm[i] == perm[i] - '0';
	c->root = plain ? o : NULL;
	if (!plain)
		return;
	memcpy(c->root_ix, ix, sizeof(Ix) * o->rank);
	c->root_i = cu_ix_add(c, cu_ix_mul(c, m, cu_ix_k(c, cu_form_count(f->n, f->nn))), n);
}

int64_t
cu_operand_run(const Graph *g, const Form *f, int which, bool *along_k)
{
	const Op *op = f->op;
	const Type *t = val_type(g, op->in[which]);
	int last = t->perm[t->rank - 1];
	bool k = false, row = false;

	if (op->kind == OP_matmul) {
		bool swap = attr_bool(op, which ? A_tb : A_ta) != (which == 1);

		k = last == (swap ? t->rank - 2 : t->rank - 1);
		row = last == (swap ? t->rank - 1 : t->rank - 2);
	} else if (op->kind == OP_conv2d_dw) {
		row = last == 1;
	} else {
		k = last == (which == 1 && op->kind == OP_conv2d_dx ? 0 : 1);
		row = which == 1 && last == (op->kind == OP_conv2d_dx ? 1 : 0);
	}
	/* where neither is, lines of pixels as they lie row-major */
	*along_k = k || (!row && op->kind == OP_conv2d_dw);
	const Axis *a = k ? &f->k[f->nk - 1] : which ? &f->n[f->nn - 1] : &f->m[f->nm - 1];

	return (k || row) && !a->mul ? a->n : 1;
}
