/* compare.c: results against the reference, and how far they may be from it; a part of run.c. */

static double
epsilon(DType dt)
{
	return dt == DT_f64 ? 0x1p-52 : dt == DT_f16 ? 0x1p-10 : dt == DT_bf16 ? 0x1p-7 : 0x1p-23;
}

static bool
compare(Run *r, const char *what, const char *line, int k, DType dt, DType lowest, double scale, const double *want,
        const double *got, int64_t n)
{
	double top = 0, err2 = 0, sum2 = 0, worst = 0, eps = epsilon(lowest);
	int64_t at = -1;

	for (int64_t i = 0; i < n; i++)
		if (isfinite(want[i])) {
			top = fabs(want[i]) > top ? fabs(want[i]) : top;
			sum2 += want[i] * want[i];
		}
	for (int64_t i = 0; i < n; i++) {
		bool special = !isfinite(want[i]) || !isfinite(got[i]);
		double d = special ? 0 : fabs(want[i] - got[i]);

		if (special && !(want[i] == got[i] || (want[i] != want[i] && got[i] != got[i]))) {
			failed(r, line, "%s, result %d, element %lld: %g, want %g", what, k, (long long)i, got[i],
			       want[i]);
			return false;
		}
		err2 += d * d;
		if (d > worst) {
			worst = d;
			at = i;
		}
	}
	eps *= scale;
	double bound = dtype_is_float(dt) ? eps * 64 : 0;

	if (scale == 0 ? worst > 0 : worst > bound * (top + 1e-30) || err2 > (16 * eps) * (16 * eps) * sum2 + 1e-60) {
		if (!dtype_is_float(dt) && worst == 0)
			return true;
		failed(r, line, "%s, result %d, element %lld: %.9g, want %.9g (largest %.3g)", what, k, (long long)at,
		       got[at], want[at], top);
		return false;
	}
	return true;
}

static bool
compare_integers(Run *r, const char *what, const char *line, int k, const RefTensor *want, const Type *t, int64_t n,
                 int64_t full, uint8_t *at)
{
	int64_t *got = arena_array(r->arena, int64_t, want->n);

	tensor_walk(t, n, full, at, NULL, got, false);
	for (int64_t e = 0; e < want->n; e++)
		if (got[e] != want->i[e]) {
			failed(r, line, "%s, result %d, element %lld: %lld, want %lld", what, k, (long long)e,
			       (long long)got[e], (long long)want->i[e]);
			return false;
		}
	return true;
}

/* Sums of n numbers that cancel, and variances about a large mean, lose what the inputs' size says: by how much bounds
 * are wider. */
static double
error_scale(const Graph *g, const RefTensor *want, double **x)
{
	double top = 0, low = INFINITY, high = -INFINITY, out = 0;
	bool reduces = false;

	for (uint32_t i = 0; i < g->op.n; i++)
		reduces |= op_reduces(&g->op.at[i]) && red_of(&g->op.at[i])->join == RED_ADD;
	if (!reduces)
		return 1;
	for (uint32_t k = 0; k < g->input.n; k++) {
		const Type *t = val_type(g, g->input.at[k].v);
		int64_t n = dtype_is_float((DType)t->dtype) ? type_elements(t) : 0;

		for (int64_t i = 0; i < n; i++) {
			top = fabs(x[k][i]) > top ? fabs(x[k][i]) : top;
			low = k == 0 && x[k][i] < low ? x[k][i] : low;
			high = k == 0 && x[k][i] > high ? x[k][i] : high;
		}
	}
	for (int64_t i = 0; i < want->n; i++)
		out = fabs(ref_get(want, i)) > out ? fabs(ref_get(want, i)) : out;
	double spread = high > low ? top / (high - low) : 1,
	       cancel = out > 0 ? top *
	                                  sqrt((double)(x ? type_elements(val_type(g, g->input.at[0].v)) / want->n + 1
	                                                  : 1)) /
	                                  out
	                        : 1;

	return 1 + spread + (cancel < 100 ? cancel : 100);
}

/* Casts between floating types have one right result, but for those of f64, which may round to f32 first. */
static bool
is_exact(const Graph *g)
{
	for (uint32_t i = 0; i < g->op.n; i++) {
		const Op *op = &g->op.at[i];

		if (op->kind != OP_cast || !dtype_is_float((DType)val_type(g, op->in[0])->dtype)
		    || val_type(g, op->in[0])->dtype == DT_f64)
			return false;
	}
	return true;
}
