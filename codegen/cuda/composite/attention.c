/* attention.c: attention and its gradient without the scores in memory (Dao et al. 2022, arXiv:2205.14135; the division
 * of work of Dao 2023, arXiv:2307.08691).
 *
 * In: a group of that one op: q [.., T, D], k [.., S, D], v [.., S, E], of the same leading axes, which are `entries`.
 * The elements of a row lie together, rows and entries in any order (cu_attention_strided): heads side by side, as
 * projections leave them. So do those of results.
 * Out: a block makes a tile of rows of one entry and goes over the columns in tiles:
 * y, lse   rows are queries, columns keys: scores become weights below the maximum so far; sums so far are rescaled
 * when it rises
 *   dq       rows are queries, columns keys: ds = w (g v^T - rows' sums of g y) by the kept log-sums, times k
 *   dk, dv   rows are keys, columns queries: the same transposed, ds^T times q and w^T times g
 * Gradients are made by two kernels, each sum in one block and one order; a kernel before them makes the sums of g y in
 * the workspace. Numbers of 16 bits are multiplied by matrix instructions: a warp has 16 rows, scores stay in its
 * registers and are the next product's operand; tiles of columns come by cp.async, one ahead (`late`: none). f32, and
 * widths that do not fit, by FMAs of 16 x 16 threads; scores pass through shared memory. Exponents are of base
 * 2. No tile changes a bit of gradients, nor do rows those of results: sums go on in the order of columns. Tiles that
 * the causal mask or a mask of conditions hides are skipped; so no gradient comes of a hidden pair. A row that the mask
 * hides every column from has the total 0: its result is 0, its log-sum +infinity, and so its weights are 0 backward.
 * Refuses (cu_attention_refuses): f64, leading axes that differ, widths beyond a block's shared memory; pass decompose
 * takes those apart. */
#include "attention.h"
#include <math.h>
#include <string.h>

bool
cu_attention_op(OpKind k)
{
	return k == OP_attention || k == OP_attention_dx;
}

Att
att_of(const Graph *g, const Op *op)
{
	Att a = {.g = g,
	         .op = op,
	         .back = op->kind == OP_attention_dx,
	         .causal = attr_bool(op, A_causal),
	         .scale = attr_num(op, A_scale),
	         .p = attr_num(op, A_p),
	         .entries = 1,
	         .nmask = -1,
	         .nseed = -1};
	int next = a.back ? 6 : 3;

	a.first = a.back;
	a.q = val_type(g, op->in[a.first]);
	a.dt = (DType)a.q->dtype;
	a.lead = a.q->rank - 2;
	for (int i = 0; i < a.lead; i++)
		a.entries *= a.q->axis[i].n;
	a.t = a.q->axis[a.lead].n;
	a.d = (int)a.q->axis[a.lead + 1].n;
	a.s = val_type(g, op->in[a.first + 1])->axis[a.lead].n;
	a.e = (int)val_type(g, op->in[a.first + 2])->axis[a.lead + 1].n;
	if (attr_bool(op, A_has_mask)) {
		a.nmask = next++;
		a.mask = val_type(g, op->in[a.nmask]);
	}
	if (a.p > 0)
		a.nseed = next;
	for (int k = 0; k < op->nin + op->nout; k++)
		a.strided |=
		        k != a.nmask && !type_is_plain(val_type(g, k < op->nin ? op->in[k] : op->out[k - op->nin]));
	return a;
}

/* Rows of g, q, k, v, y and of the results: a row itself lies together, and no stride follows the batch. */
bool
cu_attention_strided(const Op *op, int k, const Type *x)
{
	bool back = op->kind == OP_attention_dx;

	if (k < op->nin ? k >= (back ? 5 : 3) : !back && k > op->nin)
		return false;
	for (int i = 1; i < x->rank; i++)
		if (x->axis[x->perm[i]].mul)
			return false;
	return x->perm[x->rank - 1] == x->rank - 1;
}

/* ---------------------------------------------------------------- tiles */
int
att_round_to(int n, int by)
{
	return (n + by - 1) / by * by;
}

int
att_power_of_two(int n)
{
	int r = 1;

	while (r < n)
		r *= 2;
	return r;
}

/* Floats from line to line, of FMAs: lines of a thread's neighbours begin at other banks. */
int
att_float_pitch(int width)
{
	return 4 * ((width + 3) / 4 | 1);
}

int
att_side_bytes(const Att *a, int width, int lines)
{
	return a->mma ? lines * att_power_of_two(width / 8) * 16 : lines * att_float_pitch(width) * 4;
}

/* Of the kernel that needs most: forward q and a tile of k and v; backward two operands on both sides. FMAs:
 * and the weights. */
static int
att_shared(const Att *a)
{
	int rows = att_side_bytes(a, a->d, a->rows) + (a->back ? att_side_bytes(a, a->e, a->rows) : 0);
	int columns = att_side_bytes(a, a->d, a->columns) + att_side_bytes(a, a->e, a->columns) +
	              (a->back ? a->columns * QUERY_BYTES : 0);

	return rows +
	       (a->mma ? a->stages * columns : columns + (a->back ? 2 : 1) * a->rows * att_float_pitch(a->columns) * 4);
}

static bool
takes_mma(const Att *a, const char *arch)
{
	return cu_has_mma(a->dt, arch) && a->d % 16 == 0 && a->e % 16 == 0 && a->d <= MMA_WIDTH && a->e <= MMA_WIDTH;
}

/* False: there is no room. */
static bool
att_tiles(Att *a, const char *arch)
{
	int64_t longest = a->t > a->s ? a->t : a->s;
	int wide = a->d > a->e ? a->d : a->e;

	a->mma = takes_mma(a, arch);
	if (a->mma) {
		a->rows = longest <= 16 ? 16 : longest <= 32 ? 32 : 64;
		/* what a thread's registers hold */
		a->columns = wide <= (a->back || a->p > 0 ? 32 : 64) ? 64 : a->back && wide > 64 ? 16 : 32;
		a->columns = a->columns > a->rows ? a->rows : a->columns;
		a->threads = a->rows * 2;
		return true;
	}
	if (wide > COMPOSITE_SHARED / 64)
		return false;
	a->rows = longest <= 16 ? 16 : longest <= 32 ? 32 : 64;
	a->threads = BLOCK;
	for (a->columns = a->rows; att_shared(a) > COMPOSITE_SHARED; a->columns = a->rows)
		if ((a->rows /= 2) < 16)
			return false;
	return true;
}

const char *
cu_attention_refuses(const Graph *g, const Op *op)
{
	Att a = att_of(g, op);

	if (a.dt == DT_f64)
		return "the operands are f64: the kernel is for f32, f16 and bf16";
	for (int k = 0; k < 3; k++) {
		const Type *x = val_type(g, op->in[a.first + k]);

		if (x->rank != a.q->rank)
			return "q, k and v differ in their leading axes";
		for (int i = 0; i < a.lead; i++)
			if (!axis_same(x->axis[i], a.q->axis[i]))
				return "q, k and v differ in their leading axes";
		for (int i = a.lead; i < x->rank; i++)
			if (x->axis[i].mul)
				return "queries, keys or widths follow the batch";
	}
	if (!att_tiles(&a, NULL))
		return arena_printf(g->arena, "widths of %d and %d: tiles of them do not fit a block's shared memory",
		                    a.d, a.e);
	return a.p >= 1 ? "a dropout that drops everything" : NULL;
}

Facts
cu_attention_facts(const Graph *g, const Op *op, const SelectCx *cx)
{
	Att a = att_of(g, op);

	return (Facts){.backward = a.back,
	               .queries_all = a.t,
	               .keys_all = a.s,
	               .width_k = a.d,
	               .width_v = a.e,
	               .products = takes_mma(&a, cx->arch),
	               .smem = cuda_machine(NULL, cx->arch)->shared};
}

static void
att_take(Att *a, const Params *p)
{
	a->mma = p->cuda_attention.by;
	a->rows = p->cuda_attention.rows;
	a->columns = p->cuda_attention.columns;
	a->threads = a->mma ? a->rows * 2 : BLOCK;
	a->stages = a->mma && !p->cuda_attention.late ? STAGES : 1;
}

const char *
cu_attention_misfit(const Graph *g, const Op *op, const SelectCx *cx, const Params *p)
{
	Att a = att_of(g, op);
	Facts f = cu_attention_facts(g, op, cx);

	if (p->family != FAMILY_cuda_attention)
		return arena_printf(g->arena, "%s takes parameters such as attention{ffma,rows=32,columns=32}",
		                    op_info[op->kind].name);
	const char *why = space_misfit(g->arena, p, &f);

	att_take(&a, p);
	if (!why && att_shared(&a) > f.smem)
		why = arena_printf(g->arena, "tiles take %d bytes of shared memory, a block has %lld", att_shared(&a),
		                   (long long)f.smem);
	return why;
}

const char *
cu_attention_select(const Graph *g, const Op *op, SelectCx *cx, int64_t *workspace)
{
	Att a = att_of(g, op);
	Params p, q;

	att_tiles(&a, cx->arch);
	p = (Params){FAMILY_cuda_attention, .cuda_attention = {a.mma, a.rows, a.columns, 0}};
	*workspace = a.back ? a.entries * att_query_places(&a) * QUERY_BYTES : 0;
	if (cx->tuned) {
		if (!space_parse("cuda", op_info[op->kind].name, cx->tuned, &q))
			q = (Params){0}; /* of no family */
		cx->misfit = cu_attention_misfit(g, op, cx, &q);
		p = cx->misfit ? p : q;
	}
	return space_text(g->arena, &p);
}

/* ---------------------------------------------------------------- forward */
/* Are weights powers of a score times a factor, less a number of the row? Else numbers of a mask come between. */
static bool
is_plain(const Att *a)
{
	return !a->mask && a->scale > 0;
}

/* Scores, of the last tile, or their gradients where no column is: `value`. */
static void
columns_end(const Att *a, const char *array, const char *value)
{
	Cuda *c = a->c;

	if (a->all_columns % a->columns == 0)
		return;
	Scope s = cu_scope_open(c, "if (at + %d > %lld)", a->columns, (long long)a->all_columns), j, i;

	j = att_unrolled(c, 'j', att_own_columns(a));
	att_numbers(a, false, true);
	i = cu_scope_open(
	        c, "if (%s)",
	        arena_printf(c->a, "%s >= %lld", a->part == KEYS ? "query" : "key", (long long)a->all_columns));
	cu_line(c, "#pragma unroll");
	cu_line(c, "for (int i = 0; i < %d; i++) %s = %s;", att_own_rows(a), att_element(a, array, 'j'), value);
	cu_scope_close(c, i);
	cu_scope_close(c, j);
	cu_scope_close(c, s);
}

/* Scores of a tile become weights; maximum, total and what was summed follow. A row that is hidden so far has exponents
 * about 0, which keeps its weights 0 and not NaN. */
static void
softmax(const Att *a)
{
	Cuda *c = a->c;
	const char *w = att_element(a, "w", 'j'), *sum = att_element(a, "sum", 'j'),
	           *scale = att_lit(c, a->scale * LOG2E);
	bool plain = is_plain(a);

	att_kept_bits(a);
	if (plain)
		columns_end(a, "w", "-INF_f32");
	Scope s = att_unrolled(c, 'i', att_own_rows(a)), l;

	att_numbers(a, true, false);
	cu_line(c, "float most = -INF_f32, all = 0.0f;");
	l = att_unrolled(c, 'j', att_own_columns(a));
	if (plain && a->causal) {
		att_numbers(a, false, true);
		cu_line(c, "%s = key <= query ? %s : -INF_f32;", w, w);
	}
	if (plain) {
		cu_line(c, "most = fmaxf(most, %s);", w);
	} else {
		att_numbers(a, false, true);
		att_score(a, w);
		cu_line(c, "most = fmaxf(most, x);");
		cu_line(c, "%s = x;", w);
	}
	cu_scope_close(c, l);
	att_row_join(a, "most", "%s = fmaxf(%s, __shfl_xor_sync(0xffffffffu, %s, %d));");
	cu_line(c, "most = fmaxf(%s, top[i]);", plain ? arena_printf(c->a, "most * %s", scale) : "most");
	cu_line(c, "const float about = most == -INF_f32 ? 0.0f : most;");
	att_power(a, "factor", "top[i] - about");
	l = att_unrolled(c, 'j', att_own_columns(a));
	if (a->nseed >= 0 && !att_by_four(a))
		att_numbers(a, false, true);
	att_power(a, "p", arena_printf(c->a, plain ? "fmaf(%s, %s, -about)" : "%s - about", w, scale));
	att_keep(a);
	cu_line(c, "all += p;");
	cu_line(c, "%s = %s;", w, att_dropped(a, "p"));
	cu_scope_close(c, l);
	att_row_join(a, "all", "%s = %s + __shfl_xor_sync(0xffffffffu, %s, %d);");
	cu_line(c, "total[i] = fmaf(total[i], factor, all);");
	cu_line(c, "top[i] = most;");
	cu_line(c, "#pragma unroll");
	cu_line(c, "for (int j = 0; j < %d; j++) %s *= factor;", att_own_width(a, a->e), sum);
	cu_scope_close(c, s);
}

/* y = sums / total, log-sum = maximum + log(total); an infinite maximum is the log-sum, whatever the total. */
static void
forward_finish(const Att *a)
{
	Cuda *c = a->c;
	Out out[8];
	int n = att_outs_of(a, 1, out);
	Scope s = att_rows_open(a);

	if (a->mask)
		cu_line(c, "const bool blind = total[i] == 0.0f;");
	cu_line(c, "const float share = 1.0f / %s;", a->mask ? "(blind ? 1.0f : total[i])" : "total[i]");
	att_put_row(a, 0, "sum", a->e, "* share");
	if (n) {
		Scope in = cu_scope_open(c, a->mma ? "if (lane %% 4 == 0)" : "if (tid %% 16 == 0)");

		cu_line(c, "const float x = %sisinf(top[i]) ? top[i] : (top[i] + log2f(total[i])) * %s;",
		        a->mask ? "blind ? INF_f32 : " : "", att_lit(c, 1 / LOG2E));
		cu_line(c, "const %s to = entry * %lld + number;", c->it, (long long)a->t);
		for (int k = 0; k < n; k++)
			att_put_one(a, &out[k], "to", "x");
		cu_scope_close(c, in);
	}
	cu_scope_close(c, s);
}

/* ---------------------------------------------------------------- backward */
/* `lse`, in base 2, and `rows`: of the query of a row, 0 where it does not exist. */
static void
query_load(const Att *a)
{
	Cuda *c = a->c;

	cu_line(c, "float2 of_query = make_float2(0.0f, 0.0f);");
	if (a->t % a->rows)
		cu_line(c, "if (query < %lld)", (long long)a->t);
	cu_line(c, "of_query = ((const float2 *)%s)[entry * %lld + query];",
	        cu_pointer(c, DT_f32, c->g->group.at[c->group].workspace_offset), (long long)att_query_places(a));
	cu_line(c, "lse[i] = of_query.x;");
	cu_line(c, "rows[i] = of_query.y;");
}

/* A pair's score and g v^T become its weight (after dropout) and the score's gradient, without its factor. Where a pair
 * is hidden the log-sum may be infinite too. Where no query or key is, operands are zeros and nothing is added; but a
 * key's weight may be infinite there (columns_end). */
static void
pair_back(const Att *a, const char *lse, const char *rows)
{
	Cuda *c = a->c;
	const char *w = att_element(a, "w", 'j'), *d = att_element(a, "d", 'j');

	if (!a->mask) {
		att_power(a, "p", arena_printf(c->a, "fmaf(%s, %s, -%s)", w, att_lit(c, a->scale * LOG2E), lse));
	} else {
		att_score(a, w);
		att_power(a, "p", arena_printf(c->a, "x - %s", lse));
	}
	if (!a->mask && a->causal)
		cu_line(c, "p = key <= query ? p : 0.0f;");
	att_keep(a);
	if (a->part == KEYS)
		cu_line(c, "%s = %s;", w, att_dropped(a, "p"));
	cu_line(c, "%s = p * (%s - %s);", d, att_dropped(a, d), rows);
}

static void
weights_back(const Att *a)
{
	Cuda *c = a->c;
	bool by_keys = a->part == KEYS;

	att_kept_bits(a);
	Scope s = by_keys ? att_unrolled(c, 'j', att_own_columns(a)) : att_unrolled(c, 'i', att_own_rows(a)), l;

	att_numbers(a, !by_keys, by_keys);
	if (by_keys)
		cu_line(c, "const float lse = of_query[j].x, rows = of_query[j].y;");
	l = by_keys ? att_unrolled(c, 'i', att_own_rows(a)) : att_unrolled(c, 'j', att_own_columns(a));
	att_numbers(a, by_keys, !by_keys);
	pair_back(a, by_keys ? "lse" : "lse[i]", by_keys ? "rows" : "rows[i]");
	cu_scope_close(c, l);
	cu_scope_close(c, s);
	if (!by_keys)
		columns_end(a, "d", "0.0f");
}

/* What the columns' queries need, `of_query`, from shared memory: of two neighbours at once, or one. */
static void
columns_queries(const Att *a)
{
	Cuda *c = a->c;
	const char *at = arena_printf(
	        c->a, a->stages > 1 ? "(const char *)memory + %d + slot * %d" : "(const char *)memory + %d", a->stats,
	        a->columns * QUERY_BYTES);

	cu_line(c, "float2 of_query[%d];", att_own_columns(a));
	Scope s = att_unrolled(c, 'j', att_own_columns(a) / (a->mma ? 2 : 1));

	if (a->mma) {
		cu_line(c, "const float4 two = ((const float4 *)(%s))[j * 4 + lane %% 4];", at);
		cu_line(c, "of_query[j * 2] = make_float2(two.x, two.y);");
		cu_line(c, "of_query[j * 2 + 1] = make_float2(two.z, two.w);");
	} else {
		cu_line(c, "of_query[j] = ((const float2 *)(%s))[tid %% 16 + j * 16];", at);
	}
	cu_scope_close(c, s);
}

static void
backward_finish(const Att *a)
{
	const char *scale = arena_printf(a->c->a, "* %s", att_lit(a->c, a->scale));
	Scope s = att_rows_open(a);

	att_put_row(a, a->part == KEYS ? 1 : 0, "sum", a->d, scale);
	if (a->part == KEYS)
		att_put_row(a, 2, "more", a->e, "");
	cu_scope_close(a->c, s);
}

/* ---------------------------------------------------------------- the loop over columns */
static void
compute(const Att *a)
{
	Cuda *c = a->c;

	att_multiply(a, 0, "w");
	if (a->back)
		att_multiply(a, 1, "d");
	if (a->part == KEYS)
		columns_queries(a);
	if (a->back)
		weights_back(a);
	else
		softmax(a);
	att_share_tile(a, a->back ? "d" : "w", 0);
	if (a->part == KEYS)
		att_share_tile(a, "w", 1);
	if (!a->mma)
		cu_line(c, "__syncwarp();");
	att_accumulate(a, a->back ? "d" : "w", a->back ? 0 : 1, "sum", 0);
	if (a->part == KEYS)
		att_accumulate(a, "w", 1, "more", 1);
}

/* `any`: does the mask show anything of the tiles of queries from `query` on and of keys from `key` on? */
static void
any_seen(const Att *a, const char *query, int queries, const char *key, int keys)
{
	Cuda *c = a->c;
	bool by_query = att_mask_follows(a, 2), by_key = att_mask_follows(a, 1);
	int n = by_query ? queries : 1, m = by_key ? keys : 1;
	Scope l = cu_scope_open(c, "for (int u = tid; u < %d; u += %d)", n * m, a->threads);

	cu_line(c, "const %s query = %s + u / %d, key = %s + u %% %d;", c->it, query, m, key, m);
	Scope s = cu_scope_open(c, "if (query < %lld && key < %lld)", (long long)a->t, (long long)a->s);
	Cell x = att_mask_load(a);

	cu_line(c, "any |= %s;", x.v);
	cu_scope_close(c, s);
	cu_scope_close(c, l);
}

/* Moves `at` to a tile of columns in which the mask shows anything. */
static void
skip_hidden(const Att *a, const char *at)
{
	Cuda *c = a->c;

	if (!a->mask || a->mask->dtype != DT_bool)
		return;
	Scope s = cu_scope_open(c, "while (%s < end)", at);

	cu_line(c, "bool any = false;");
	if (a->part == KEYS)
		any_seen(a, at, a->columns, "first", a->rows);
	else
		any_seen(a, "first", a->rows, at, a->columns);
	cu_line(c, "if (__syncthreads_or(any)) break;");
	cu_line(c, "%s += %d;", at, a->columns);
	cu_scope_close(c, s);
}

static void
columns_loop(const Att *a)
{
	Cuda *c = a->c;
	const char *it = c->it, *start = "0", *end = arena_printf(c->a, "%lld", (long long)a->all_columns);

	if (a->causal && a->part == KEYS) /* earlier queries see none of these keys */
		start = a->rows == a->columns ? "first" : arena_printf(c->a, "first / %d * %d", a->columns, a->columns);
	else if (a->causal)
		end = arena_printf(c->a, "first + %d < %s ? first + %d : %s", a->rows, end, a->rows, end);
	cu_line(c, "const %s end = %s;", it, end);
	cu_line(c, "%s at = %s;", it, start);
	skip_hidden(a, "at");
	if (a->stages > 1) {
		Scope in = cu_scope_open(c, "if (at < end)");

		att_load_columns(a, "at", "0");
		cu_scope_close(c, in);
		cu_line(c, "copies_end();");
	}
	att_hold_rows(a);
	Scope s = cu_scope_open(c, "for (int slot = 0; at < end; slot ^= 1)");

	cu_line(c, "%s next = at + %d;", it, a->columns);
	skip_hidden(a, "next");
	if (a->stages > 1) { /* the other slot's tile is no longer read when all are here */
		cu_line(c, "COPIES_WAIT(0);");
		cu_line(c, "__syncthreads();");
		Scope in = cu_scope_open(c, "if (next < end)");

		att_load_columns(a, "next", "(slot ^ 1)");
		cu_line(c, "copies_end();");
		cu_scope_close(c, in);
	} else {
		cu_line(c, "__syncthreads();");
		att_load_columns(a, "at", "0");
		if (a->mma) {
			cu_line(c, "copies_end();");
			cu_line(c, "COPIES_WAIT(0);");
		}
		cu_line(c, "__syncthreads();");
	}
	/* warps that have no row but the tile's end */
	Scope rows = cu_scope_open(c, a->mma && a->all_rows % a->rows ? "if (first + warp * 16 < %lld)" : "",
	                           (long long)a->all_rows);

	compute(a);
	cu_scope_close(c, rows);
	cu_line(c, "at = next;");
	cu_scope_close(c, s);
	if (a->stages > 1)
		cu_line(c, "COPIES_WAIT(0);");
	cu_line(c, "__syncthreads();");
}

/* ---------------------------------------------------------------- kernels */
static const char *const tile_kernels[] = {"tiles of queries over tiles of keys",
                                           "gradient of q, tiles of queries over tiles of keys",
                                           "gradients of k and v, tiles of keys over tiles of queries"};

static void
entry_open(Att *a)
{
	Cuda *c = a->c;
	const Side *side[4] = {&a->row[0], &a->row[1], &a->column[0], &a->column[1]};

	att_entry_indices(a);
	for (int i = 0; i < 4; i++)
		if (i != 1 || a->nrow > 1)
			cu_line(c, "const %s *%c = %s + %s;", cu_memory_type(a->dt), side[i]->name,
			        cu_pointer(c, a->dt, val_info(a->g, side[i]->v)->offset),
			        att_entry(a, val_type(a->g, side[i]->v)));
	if (a->nseed >= 0) {
		a->seed = cu_value_at(c, a->op->in[a->nseed], NULL);
		a->step = cu_value_at(c, a->op->in[a->nseed + 1], NULL);
	}
}

static void
row_states(const Att *a)
{
	Cuda *c = a->c;
	int n = att_own_rows(a);

	att_array_open(a, "sum", a->part == FORWARD ? a->e : a->d);
	if (a->part == FORWARD) {
		cu_line(c, "float top[%d], total[%d] = {};", n, n);
		cu_line(c, "#pragma unroll");
		cu_line(c, "for (int i = 0; i < %d; i++) top[i] = -INF_f32;", n);
	} else if (a->part == KEYS) {
		att_array_open(a, "more", a->e);
	} else {
		cu_line(c, "float lse[%d], rows[%d];", n, n);
		Scope s = att_unrolled(c, 'i', n);

		att_numbers(a, true, false);
		query_load(a);
		cu_scope_close(c, s);
	}
}

static void
tiles_kernel(Att *a, Part part)
{
	Cuda *c = a->c;

	a->part = part;
	cu_kernel_open(c, "");
	att_sides_choose(a);
	c->beside = a->mma && a->threads <= BLOCK / 2 && a->d + a->e <= MMA_WIDTH ? 3 : 0;
	int64_t tiles = (a->all_rows + a->rows - 1) / a->rows;
	Type lead = type_of(a->dt, a->lead, a->q->axis);
	Ix entries = cu_product(c, &lead, (1u << a->lead) - 1);

	cu_line(c, "extern __shared__ uint4 memory[];");
	cu_line(c, "const int tid = threadIdx.x;");
	if (a->mma)
		cu_line(c, "const int warp = tid / 32, lane = tid %% 32;");
	if (a->mma)
		cu_line(c, "const unsigned shared = shared_address(memory);");
	att_places(a);
	Scope s = cu_scope_open(c, "for (%s task = blockIdx.x; task < %s * %lld; task += gridDim.x)", c->it, entries,
	                        (long long)tiles);

	/* of the causal mask the tiles with most to do come first */
	const char *number = arena_printf(c->a, "task %% %lld", (long long)tiles);

	if (a->causal && part != KEYS)
		number = arena_printf(c->a, "(%lld - %s)", (long long)tiles - 1, number);
	cu_line(c, "const %s entry = task / %lld, first = %s * %d;", c->it, (long long)tiles, number, a->rows);
	entry_open(a);
	for (int k = 0; k < a->nrow; k++)
		att_load_lines(a, &a->row[k], "first", a->rows, a->all_rows, NULL);
	row_states(a);
	columns_loop(a);
	if (part == FORWARD)
		forward_finish(a);
	else
		backward_finish(a);
	cu_scope_close(c, s);
	cu_kernel_close(c, tile_kernels[part], a->entries * tiles);
}

/* Of each query its log-sum in base 2 and g . y: a warp to a query; 0 where an entry's queries are no pairs. */
static void
sums_kernel(Att *a)
{
	Cuda *c = a->c;
	Type rows = type_of(a->dt, a->lead + 1, a->q->axis);
	long long places = (long long)att_query_places(a);
	const Type *l = val_type(a->g, a->op->in[5]);
	const char *side[2];

	rows.axis[a->lead].n = places;
	cu_kernel_open(c, "");
	Ix count = cu_product(c, &rows, (1u << rows.rank) - 1);
	Scope s = cu_scope_open(c, "for (%s row = blockIdx.x * %d + threadIdx.x / 32; row < %s; row += gridDim.x * %d)",
	                        c->it, BLOCK / WARP, count, BLOCK / WARP);

	cu_line(c, "const %s entry = row / %lld, number = row %% %lld;", c->it, places, places);
	att_entry_indices(a);
	for (int k = 0; k < 2; k++) {
		const Type *t = val_type(a->g, a->op->in[k * 4]);

		side[k] = cu_from_memory(c, a->dt,
		                         arena_printf(c->a, "%s[%s + number * %lld + x]",
		                                      cu_pointer(c, a->dt, val_info(a->g, a->op->in[k * 4])->offset),
		                                      att_entry(a, t), (long long)att_line(a, t)));
	}
	cu_line(c, "float sum = 0.0f, top = 0.0f;");
	Scope in = cu_scope_open(c, places > a->t ? "if (number < %lld)" : "", (long long)a->t);

	cu_line(c, "top = %s * %s;",
	        cu_from_memory(c, (DType)l->dtype,
	                       arena_printf(c->a, "%s[entry * %lld + number]",
	                                    cu_pointer(c, (DType)l->dtype, val_info(a->g, a->op->in[5])->offset),
	                                    (long long)a->t)),
	        att_lit(c, LOG2E));
	cu_line(c, "for (int x = threadIdx.x %% 32; x < %d; x += 32) sum = fmaf(%s, %s, sum);", a->e, side[0], side[1]);
	cu_scope_close(c, in);
	cu_line(c, "#pragma unroll");
	cu_line(c, "for (int h = 16; h > 0; h /= 2) sum = sum + __shfl_xor_sync(0xffffffffu, sum, h);");
	cu_line(c, "if (threadIdx.x %% 32 == 0) ((float2 *)%s)[row] = make_float2(top, sum);",
	        cu_pointer(c, DT_f32, c->g->group.at[c->group].workspace_offset));
	cu_scope_close(c, s);
	cu_kernel_close(c, "log-sums and sums of g y, a query to a warp",
	                (a->entries * places * WARP + BLOCK - 1) / BLOCK);
}

/* Of the causal mask, about half of the tiles; the loop of a tile that a kernel takes last is the longest. */
AttentionWork
cu_attention_work(const Graph *g, const Op *op, const Params *p, const char *what)
{
	Att a = att_of(g, op);
	int part = 0;
	double queries = (double)a.entries * (double)a.t, keys = (double)a.entries * (double)a.s,
	       bytes = dtype_info[a.dt].bytes * ((queries + keys) * (a.d + a.e));

	att_take(&a, p);
	while (part < 3 && strcmp(what, tile_kernels[part]))
		part++;
	if (part == 3) /* the sums of g y */
		return (AttentionWork){1, 4 * queries * a.e, 2 * dtype_info[a.dt].bytes * queries * a.e};
	int64_t rows = part == KEYS ? a.s : a.t, columns = part == KEYS ? a.t : a.s,
	        tiles = (columns + a.columns - 1) / a.columns;
	double seen = !a.causal   ? 1
	              : tiles > 1 ? 0.5 + 0.5 * a.rows / (double)(a.rows > rows ? a.rows : rows)
	                          : 1,
	       made = (part == KEYS ? 2 : 1) * (double)a.d + (part == QUERIES ? a.d : 0) +
	              (part == KEYS ? 2 : 1) * (double)a.e;

	return (AttentionWork){ceil((double)tiles * seen),
	                       2 * made * (double)a.entries * att_round_to((int)rows, a.mma ? 16 : a.rows) *
	                               (double)(tiles * a.columns) * seen,
	                       bytes + dtype_info[a.dt].bytes *
	                                       (part == KEYS ? keys * (a.d + a.e) : queries * (part ? a.d : 0))};
}

void
cu_attention_emit(Cuda *c, const Op *op)
{
	Att a = att_of(c->g, op);
	const Params *p = &c->kernel;

	a.c = c;
	if (p->family != FAMILY_cuda_attention)
		bug("target cuda: '%s' is no kernel of attention", c->g->group.at[c->group].kernel);
	att_take(&a, p);
	if (!a.back) {
		tiles_kernel(&a, FORWARD);
		return;
	}
	sums_kernel(&a);
	if (att_wanted(&a, 0))
		tiles_kernel(&a, QUERIES);
	if (att_wanted(&a, 1) || att_wanted(&a, 2))
		tiles_kernel(&a, KEYS);
}
