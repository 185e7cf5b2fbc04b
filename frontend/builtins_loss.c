/* builtins_loss.c: losses and metrics, each a scalar.
 *
 * Classes stand on the last axis, the label has the leading axes. The label's logit is picked by comparing class
 * numbers with the label (elementwise and a sum, which fuses and differentiates as any other), never by an index into
 * memory; a label out of range is found by a check op. Losses of f16 and bf16 inputs are computed in f32. */
#include "builtins.h"

/* A loss of logits that is given what softmax or sigmoid made of them trains, and badly. */
static void
warn_no_logits(Call *c, Val x, bool softmax)
{
	const Op *op = val_op(call_graph(c), x);

	while (op && op->kind == OP_reshape)
		op = val_op(call_graph(c), op->in[0]);
	if (!op)
		return;
	const char *point = op->path ? strrchr(op->path, '.') : NULL, *label = point ? point + 1 : op->path;
	bool made = label && !strncmp(label, "softmax", 7) && label[7 + strspn(label + 7, "0123456789")] == 0;

	if (op->kind == OP_sigmoid || (softmax && made))
		sema_warning(c->sema, call_loc(c, "logits"),
		             "%s: logits are made by %s, and the loss takes it of them: leave it out", c->op->name,
		             op->kind == OP_sigmoid ? "sigmoid" : "softmax");
}

/* A share for each class in place of a class's number. */
static bool
shares_of_classes(Call *c, Val logits)
{
	const Value *label = call_arg(c, "label");

	if (label->kind != V_TENSOR || !dtype_is_float(val_type(call_graph(c), label->tensor)->dtype) ||
	    !type_same_shape(val_type(call_graph(c), label->tensor), val_type(call_graph(c), logits)))
		return false;
	call_fail(c, c->loc, "label is %s, needs a class's number, not a share for each class: with these write "
	          "-mean(sum(label * log_softmax(logits), axes = -1))", val_text(c, label->tensor));
	return true;
}

/* Whole numbers first and floating ones behind them: a message. */
static bool
exchanged(Call *c)
{
	const Value *x = call_arg(c, "logits"), *y = call_arg(c, "label");

	if (x->kind != V_TENSOR || y->kind != V_TENSOR || dtype_is_float(val_type_of(c, x->tensor).dtype) ||
	    !dtype_is_float(val_type_of(c, y->tensor).dtype))
		return false;
	call_fail(c, c->loc, "logits are %s, label is %s: they are exchanged; write %s(logits, label)",
	          val_text(c, x->tensor), val_text(c, y->tensor), c->op->name);
	return true;
}

/* logits [..., classes] and label [...]: label comes back as i32 or i64. The classes may be the examples of a batch, as
 * in contrastive losses: their axis follows N then. */
static bool
classes_and_label(Call *c, Val *logits, Val *label, Type *t, Axis *classes)
{
	if (exchanged(c) || !arg_float_tensor(c, "logits", logits) || shares_of_classes(c, *logits) ||
	    !arg_int_tensor(c, "label", label))
		return false;
	*t = val_type_of(c, *logits);
	Type tl = val_type_of(c, *label);
	bool agree = t->rank >= 1 && tl.rank == t->rank - 1;
	for (int i = 0; agree && i < tl.rank; i++)
		agree = tl.axis[i].n == t->axis[i].n;
	if (!agree) {
		call_fail(
		        c, c->loc,
		        "logits are %s, label is %s; label needs the axes of logits but the last, which counts "
		        "classes%s",
		        val_text(c, *logits), val_text(c, *label),
		        tl.rank == t->rank && tl.axis[tl.rank - 1].n == 1 ? ": squeeze(label, -1)"
		        : tl.rank == 1 && t->rank > 2 ? ": is `flatten` missing before the last dense?"
		                                      : "");
		call_note_val(c, "logits", *logits);
		call_note_val(c, "label", *label);
		return false;
	}
	*classes = t->axis[t->rank - 1];
	if (dtype_info[tl.dtype].bytes < 4) /* classes count beyond it */
		*label = to_dtype(c, *label, DT_i32);
	*logits = widen(c, *logits);
	return true;
}

/* Class numbers [classes] in the label's type, and where they are the label's. */
static Val
at_label(Call *c, Val label, Axis classes, Val *numbers)
{
	Type t = val_type_of(c, label);

	*numbers = counting(c, t.dtype, 1, 0, classes);
	return ew2(c, OP_eq, add_axis(c, label, t.rank), *numbers);
}

/* A loss or an accuracy: an average over examples; counted: over the labels that count. */
static bool
give_mean(Call *c, Val v, bool counted, Value *result)
{
	Val arg[4];
	int n = 0;

	for (int i = 0; i < c->narg && n < 4; i++)
		if (c->arg[i].kind == V_TENSOR)
			arg[n++] = c->arg[i].tensor;
	if (v.id)
		sema_average(c->sema, v, arg, n, counted);
	return call_give(c, v, result);
}

static bool
give_average(Call *c, Val v, Value *result)
{
	return give_mean(c, v, false, result);
}

/* The argument ignore, where it is given. */
static bool
ignored_label(Call *c, bool *has_ignore, int64_t *ignored)
{
	*has_ignore = call_arg(c, "ignore")->kind != V_NONE;
	return !*has_ignore || arg_int(c, "ignore", INT32_MIN, INT32_MAX, ignored);
}

/* The mean of each, a float for every label, over the labels that are not ignored; of none 0. */
static bool
give_counted(Call *c, Val each, Val label, int64_t ignored, Value *result)
{
	DType ft = val_type(call_graph(c), each)->dtype;
	Val counts = ewn(c, OP_ne, label, (double)ignored);
	Val sum = reduce_all(c, OP_sum, ew3(c, OP_where, counts, each, num(c, ft, 0))),
	    n = reduce_all(c, OP_sum, to_dtype(c, counts, ft));
	int64_t shards = c->training ? sema_shards(c->sema, NULL) : 1;

	/* over the labels that count in the whole batch: the mean over its shards is then the batch's */
	if (shards > 1)
		sum = ewn(c, OP_mul, sum, (double)shards);
	return give_mean(c, ew2(c, OP_div, sum, ewn(c, OP_maximum, sema_joined(c, n), 1)), true, result);
}

bool
builtin_cross_entropy(Call *c, Value *result)
{
	int64_t ignored = 0;
	bool has_ignore;
	Val x, label, numbers;
	Axis classes;
	double smoothing;
	Type t;

	if (!classes_and_label(c, &x, &label, &t, &classes) || !arg_num(c, "smoothing", 0, 1, &smoothing))
		return false;
	if (!ignored_label(c, &has_ignore, &ignored))
		return false;
	warn_no_logits(c, call_arg(c, "logits")->tensor, true);
	build_check(c, call_arg(c, "label")->tensor, classes, "label", has_ignore, ignored);
	/* -log softmax at the label is the log-sum less the logit; the largest logit is taken off both. */
	int last = t.rank - 1;
	Val z = less_maximum(c, x, last);
	Val lse = reduce_over(c, OP_logsumexp, z, last, false);
	Val hit = at_label(c, label, classes, &numbers);
	Val picked = reduce_over(c, OP_sum, ew3(c, OP_where, hit, z, num(c, val_type(call_graph(c), x)->dtype, 0)),
	                         last, false);
	if (smoothing > 0) {
		Val all = ewn(c, OP_mul, reduce_over(c, OP_mean, z, last, false), smoothing);

		picked = ew2(c, OP_add, ewn(c, OP_mul, picked, 1 - smoothing), all);
	}
	Val each = ew2(c, OP_sub, lse, picked);
	if (has_ignore)
		return give_counted(c, each, label, ignored, result);
	return give_average(c, reduce_all(c, OP_mean, each), result);
}

/* ---------------------------------------------------------------- elementwise losses */

/* Has x the axes of y and one more, of one element? */
static bool
one_more(const Type *x, const Type *y)
{
	bool same = x->rank == y->rank + 1 && x->axis[y->rank].n == 1;

	for (int i = 0; same && i < y->rank; i++)
		same = x->axis[i].n == y->axis[i].n;
	return same;
}

static bool
broadcasts(const Type *a, const Type *b)
{
	for (int i = 1; i <= a->rank && i <= b->rank; i++) {
		int64_t p = a->axis[a->rank - i].n, q = b->axis[b->rank - i].n;

		if (p != q && p != 1 && q != 1)
			return false;
	}
	return true;
}

/* Two floating tensors of one type, or a tensor and a number. Different shapes broadcast as anywhere, but are rarely
 * meant. */
static bool
two_sides(Call *c, const char *nx, const char *ny, bool same_shape, Val *x, Val *y)
{
	const Value *vy = call_arg(c, ny);

	if (!arg_float_tensor(c, nx, x))
		return false;
	if (vy->kind != V_TENSOR) {
		if (!operand(c, vy, val_type(call_graph(c), *x)->dtype, val_text(c, *x), y))
			return false;
	} else {
		*y = vy->tensor;
		if (!same_dtype(c, nx, *x, ny, *y))
			return false;
		Type tx = val_type_of(c, *x), ty = val_type_of(c, *y);
		bool same = type_same_shape(&tx, &ty);
		const char *more = one_more(&tx, &ty) ? nx : one_more(&ty, &tx) ? ny : NULL;

		if (!same && same_shape) {
			call_fail(c, c->loc, "%s is %s, %s is %s; their shapes must agree", nx, val_text(c, *x), ny,
			          val_text(c, *y));
			call_note_val(c, nx, *x);
			call_note_val(c, ny, *y);
			return false;
		}
		if (!same && broadcasts(&tx, &ty))
			sema_warning(c->sema, c->loc,
			             "%s: %s is %s, %s is %s; they broadcast, and the mean is over the result%s%s",
			             c->op->name, nx, val_text(c, *x), ny, val_text(c, *y),
			             more ? ": squeeze the last axis of " : "", more ? more : "");
	}
	*x = widen(c, *x);
	*y = widen(c, *y);
	return true;
}

/* max(x, 0) - x t + log(1 + exp(-|x|)): exact at both ends, and the halves that a tie and |x| give at 0 make the true
 * slope. */
bool
builtin_binary_cross_entropy(Call *c, Value *result)
{
	Val x, target;

	if (!two_sides(c, "logits", "target", true, &x, &target))
		return false;
	if (call_arg(c, "logits")->kind == V_TENSOR)
		warn_no_logits(c, call_arg(c, "logits")->tensor, false);
	Val tail = ew1(c, OP_log1p, ew1(c, OP_exp, ew1(c, OP_neg, ew1(c, OP_abs, x))));
	Val above = ewn(c, OP_maximum, x, 0), taken = ew2(c, OP_mul, x, target);
	Val each = ew2(c, OP_add, ew2(c, OP_sub, above, taken), tail);
	return give_average(c, reduce_all(c, OP_mean, each), result);
}

bool
builtin_mse(Call *c, Value *result)
{
	Val x, y;

	return two_sides(c, "x", "y", false, &x, &y)
	       && give_average(c, reduce_all(c, OP_mean, ew1(c, OP_square, ew2(c, OP_sub, x, y))), result);
}

bool
builtin_l1(Call *c, Value *result)
{
	Val x, y;

	return two_sides(c, "x", "y", false, &x, &y)
	       && give_average(c, reduce_all(c, OP_mean, ew1(c, OP_abs, ew2(c, OP_sub, x, y))), result);
}

bool
builtin_smooth_l1(Call *c, Value *result)
{
	double beta;
	Val x, y;

	if (!two_sides(c, "x", "y", false, &x, &y) || !arg_num(c, "beta", 0, INFINITY, &beta))
		return false;
	Val d = ew1(c, OP_abs, ew2(c, OP_sub, x, y)), each = d;
	if (beta > 0) {
		Val near = ewn(c, OP_lt, d, beta), bowl = ewn(c, OP_mul, ew1(c, OP_square, d), 0.5 / beta),
		    line = ewn(c, OP_sub, d, 0.5 * beta);

		each = ew3(c, OP_where, near, bowl, line);
	}
	return give_average(c, reduce_all(c, OP_mean, each), result);
}

/* ---------------------------------------------------------------- metrics */

/* The share of labels, but those ignored, for which right holds. */
static bool
share(Call *c, Val right, Val label, Value *result)
{
	int64_t ignored = 0;
	bool has_ignore;

	if (!ignored_label(c, &has_ignore, &ignored))
		return false;
	right = to_dtype(c, right, DT_f32);
	if (has_ignore)
		return give_counted(c, right, label, ignored, result);
	return give_average(c, reduce_all(c, OP_mean, right), result);
}

bool
builtin_accuracy(Call *c, Value *result)
{
	Axis classes;
	Val x, label;
	Type t;

	if (!classes_and_label(c, &x, &label, &t, &classes))
		return false;
	Val best = to_dtype(c, reduce_over(c, OP_argmax, x, t.rank - 1, false), val_type(call_graph(c), label)->dtype);
	return share(c, ew2(c, OP_eq, best, label), label, result);
}

/* The label is among the k largest if fewer than k classes beat it: by a larger logit, or an equal one of a lower
 * class. */
bool
builtin_top_k_accuracy(Call *c, Value *result)
{
	Val x, label, numbers;
	Axis classes;
	int64_t k;
	Type t;

	if (!classes_and_label(c, &x, &label, &t, &classes) || !arg_int(c, "k", 1, INT32_MAX, &k))
		return false;
	if (k > classes.n)
		return call_fail(c, call_loc(c, "k"), "k is %lld, logits have %lld classes", (long long)k,
		                 (long long)classes.n);
	int last = t.rank - 1;
	Val zero = num(c, val_type(call_graph(c), x)->dtype, 0), hit = at_label(c, label, classes, &numbers);
	Val own = reduce_over(c, OP_sum, ew3(c, OP_where, hit, x, zero), last, true);
	Val lower = ew2(c, OP_lt, numbers, add_axis(c, label, last));
	Val larger = ew2(c, OP_gt, x, own), equal = ew2(c, OP_eq, x, own);
	Val beats = ew2(c, OP_or, larger, ew2(c, OP_and, equal, lower));
	Val count = reduce_over(c, OP_sum, beats, last, false);
	/* A label outside the classes or a NaN for its logit is never right. */
	Val not_below = ewn(c, OP_ge, label, 0), not_above = ewn(c, OP_lt, label, (double)classes.n);
	Val there = ew2(c, OP_and, not_below, not_above);
	Type flat = val_type_of(c, label);
	own = to_shape(c, own, flat.rank, flat.axis);
	Val number = ew2(c, OP_eq, own, own), few = ewn(c, OP_lt, count, (double)k);
	return share(c, ew2(c, OP_and, ew2(c, OP_and, few, there), number), label, result);
}
