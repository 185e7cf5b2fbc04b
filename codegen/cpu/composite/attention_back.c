/* attention_back.c: the gradient of attention, block by block as attention.c goes over them.
 *
 * In: an entry of the leading axes.   Out: its gradients of queries, keys and values. For each pair of blocks the
 * scores are made again and become weights by the kept log-sums; two tiles, weights and scores' gradients, feed three
 * products. Of bf16 both are rounded to it; where the sum is over queries, two of them lie side by side: in the tiles
 * as they become weights, in the operands, which are laid out so once an entry. The results' sums stand in the thread's
 * memory until they are complete. */
#include "attention_parts.h"

/* A row of the tiles that has become weights (after dropout) and scores' gradients, in vectors. */
enum { ATT_VECTORS = 64 };
typedef struct BackRow { Cell p[ATT_VECTORS], d[ATT_VECTORS]; } BackRow;

/* Row i of the tiles, scores and g v^T. */
static void
back_row(const AttMain *m, V i, V query, V key, BackRow *r)
{
	Emit *e = m->e;
	const Att *a = m->a;
	V p_row = mem_at(e, &m->tile[0], i), d_row = mem_at(e, &m->tile[1], i);
	Cell lse = att_scalar(e, attention_row(m, m->in[5], DT_f32, a->t, 1, query)),
	     rows = att_scalar(e, attention_row(m, m->rows, DT_f32, a->t, 1, query));

	e->random.n = 0;
	for (int k = 0; k < m->bk / a->w; k++) {
		Cell s = attention_score(m, p_row, k, query, i_add_k(e, key, (int64_t)k * a->w)),
		     d = att_vector(e, d_row, k);
		Cell p = math_call(e, MF_EXP, cell_bin(e, EX_SUB, s, lse), s), keep = {0};

		if (a->nseed >= 0) {
			keep = attention_kept(m, query, key, k);
			d = attention_dropped(m, keep, d);
		}
		r->p[k] = a->nseed >= 0 ? attention_dropped(m, keep, p) : p;
		r->d[k] = att_mul(e, att_mul(e, p, cell_bin(e, EX_SUB, d, rows)), att_number(e, a->scale));
	}
}

static void
back_rows(const AttMain *m, V first, V count, V key)
{
	Emit *e = m->e;
	BackRow r;

	EACH(e, i, count) {
		V p = mem_at(e, &m->tile[0], i), d = mem_at(e, &m->tile[1], i);

		back_row(m, i, i_add(e, first, i), key, &r);
		for (int k = 0; k < m->bk / m->a->w; k++) {
			att_put(e, p, k, r.p[k]);
			att_put(e, d, k, r.d[k]);
		}
	}
}

/* The same of bf16, two rows at a time: rows 2i and 2i + 1 of a tile become row i of pairs, in the tile's own place;
 * those of scores' gradients one by one too. A row behind the last one is zeros. */
static void
back_pairs(const AttMain *m, V first, V count, V key)
{
	Emit *e = m->e;
	const Att *a = m->a;
	Mem rounded = mem_dense(e, m->rounded, a->type, a->bq, a->bk);

	EACH(e, pair, att_steps(m, count)) {
		V p[2][ATT_VECTORS], d[2][ATT_VECTORS];

		for (int i = 0; i < 2; i++) {
			V row = i_add_k(e, i_mul_k(e, pair, 2), i), at = row, there = NULL;
			BackRow r;

			if (i && a->t % 2) {
				there = LLVMBuildICmp(here(e), LLVMIntSLT, row, count, "");
				at = LLVMBuildSelect(here(e), there, row, i_sub_k(e, row, 1), "");
			}
			back_row(m, at, i_add(e, first, at), key, &r);
			for (int k = 0; k < m->bk / a->w; k++) {
				p[i][k] = vec_half(e, cell_vec(e, r.p[k]), a->type);
				d[i][k] = vec_half(e, cell_vec(e, r.d[k]), a->type);
				if (there) {
					V none = LLVMConstNull(LLVMTypeOf(p[i][k]));

					p[i][k] = LLVMBuildSelect(here(e), there, p[i][k], none, "");
					d[i][k] = LLVMBuildSelect(here(e), there, d[i][k], none, "");
				}
				att_put_half(e, mem_at(e, &rounded, row), k, d[i][k]);
			}
		}
		for (int k = 0; k < m->bk / a->w; k++) {
			V bits[2] = {halves_beside(e, p[0][k], p[1][k]), halves_beside(e, d[0][k], d[1][k])},
			  line = k64(e, F32(k * a->w));

			for (int i = 0; i < 2; i++) {
				V to = ptr_at(e, mem_at(e, &m->tile[i], pair), line);

				LLVMSetAlignment(LLVMBuildStore(here(e), bits[i], to), 4);
			}
		}
	}
}

/* Columns from j on of row i of operand k. */
static Cell
operand_at(const AttMain *m, int k, V i, V j)
{
	Emit *e = m->e;
	const Att *a = m->a;
	V tail = att_tail(e, a->e, j);

	if (!a->pairs) {
		Mem columns = mem_dense(e, attention_row(m, m->in[k], a->type, a->t, a->e, i), a->type, a->e);

		return cell_of(vec_load(e, mem_at(e, &columns, j), tail), true, DT_f32);
	}
	Mem elements = mem_axes(e, m->in[k], BY(a->t * a->e), BY(a->e), BY(1));

	e->mask = tail;
	Cell c = load_at(e, m->in[k], a->type, mem_lanes(e, &elements, m->entry, i, j));

	e->mask = NULL;
	c.dt = DT_f32;
	return c;
}

/* rows[i] = g[i] . y[i], for all queries of the entry. */
static void
rows_emit_sums(const AttMain *m)
{
	Emit *e = m->e;
	const Att *a = m->a;
	T vt = vec_of(e, e->l->f32);

	TIMES(e, i, a->t) {
		V slot = slot_new(e, vt);

		slot_set(e, slot, LLVMConstNull(vt));
		LOOP(e, j, k64(e, 0), k64(e, a->e), e->W) {
			Cell x = operand_at(m, 0, i, j), z = operand_at(m, 4, i, j);

			slot_set(e, slot, cell_fma(e, x, z, cell_of(slot_get(e, slot, vt), true, DT_f32)).v);
		}
		att_scalar_put(e, attention_row(m, m->rows, DT_f32, a->t, 1, i),
		               horizontal_sum(e, cell_of(slot_get(e, slot, vt), true, DT_f32)));
	}
}

/* n elements from `to` on. */
static void
zero_numbers(Emit *e, V to, V n)
{
	Mem elements = mem_dense(e, to, DT_f32, 1);

	LOOP(e, j, k64(e, 0), n, e->W)
		vec_store(e, mem_at(e, &elements, j), LLVMConstNull(vec_of(e, e->l->f32)),
		          mask_below(e, i_sub(e, n, j)));
}

/* Does anybody read result k? */
static bool
wanted(const AttMain *m, int k)
{
	return m->out[k] || m->half[k];
}

/* Where sums of result k stand, [entries, n, width], of rows from `first` on; with pairs in the thread's memory, whose
 * first row is number `base`. NULL: nobody reads it. */
static V
sums_at(const AttMain *m, int k, int64_t n, int64_t width, V first, V base)
{
	Emit *e = m->e;

	if (!m->a->pairs)
		return attention_row(m, m->out[k], DT_f32, n, width, first);
	Mem rows = mem_dense(e, m->result[k], DT_f32, n, width);

	return wanted(m, k) ? mem_at(e, &rows, i_sub(e, first, base)) : NULL;
}

/* With pairs: `count` rows of result k, from row `first` on, whose sums are complete. */
static void
rows_out(const AttMain *m, int k, int64_t n, int64_t width, V first, V count)
{
	Emit *e = m->e;
	Mem rows = mem_dense(e, m->result[k], DT_f32, n, width);

	if (!m->a->pairs || !wanted(m, k))
		return;
	EACH(e, i, count) LOOP(e, j, k64(e, 0), k64(e, width), e->W) {
		V sum = vec_load(e, mem_at(e, &rows, i, j), att_tail(e, width, j));

		attention_result(m, k, n, width, i_add(e, first, i), j, cell_of(sum, true, DT_f32));
	}
}

/* A pair of blocks: `keys` keys from `key` on, `count` queries from `first` on. sums: of the keys' gradients and the
 * values'. */
static void
back_block(AttMain *m, V key, V keys, V first, V count, V *sums)
{
	Emit *e = m->e;
	const Att *a = m->a;
	V one = k64(e, 1), tile[2] = {m->tile[0].base, m->tile[1].base},
	  q = attention_row(m, m->in[1], a->type, a->t, a->d, first),
	  g = attention_row(m, m->in[0], a->type, a->t, a->e, first), queries = q, grads = g,
	  k = attention_row(m, m->in[2], a->type, a->s, a->d, key),
	  dq = sums_at(m, ATT_DQ, a->t, a->d, first, k64(e, 0));

	if (a->pairs) {
		queries = ptr_at(e, m->queries, i_mul_k(e, first, a->d * 2));
		grads = ptr_at(e, m->grads, i_mul_k(e, first, a->e * 2));
		k = m->beside;
	}
	attention_multiply(e, &m->scores, count, q, m->transposed[0], tile[0], k64(e, a->d / a->unit), NULL);
	attention_multiply(e, &m->values, count, g, m->transposed[1], tile[1], k64(e, a->e / a->unit), NULL);
	(a->pairs ? back_pairs : back_rows)(m, first, count, key);
	if (sums[ATT_DV])
		attention_multiply(e, &m->dv, keys, tile[0], grads, sums[ATT_DV], att_steps(m, count), one);
	if (sums[ATT_DK])
		attention_multiply(e, &m->dk, keys, tile[1], queries, sums[ATT_DK], att_steps(m, count), one);
	if (dq)
		attention_multiply(e, &m->dq, count, a->pairs ? m->rounded : tile[1], k, dq, att_steps(m, keys),
		                   att_more(e, key, k64(e, 0)));
}

/* Blocks of keys [from, to), as forward_blocks has them. */
static void
backward_blocks(AttMain *m, V from, V to)
{
	Emit *e = m->e;
	const Att *a = m->a;

	LOOP(e, key, from, to, m->bk) {
		V keys = i_min(e, k64(e, m->bk), i_sub(e, k64(e, a->s), key)), query = k64(e, 0),
		  sums[ATT_RESULTS] = {NULL, sums_at(m, ATT_DK, a->s, a->d, key, key),
		                       sums_at(m, ATT_DV, a->s, a->e, key, key)};

		attention_turn(m, m->in[2], a->d, key, m->transposed[0]);
		attention_turn(m, m->in[3], a->e, key, m->transposed[1]);
		if (a->pairs)
			attention_beside(m, m->in[2], a->s, a->d, key, keys, m->beside);
		if (sums[ATT_DK])
			zero_numbers(e, sums[ATT_DK], i_mul_k(e, keys, a->d));
		if (sums[ATT_DV])
			zero_numbers(e, sums[ATT_DV], i_mul_k(e, keys, a->e));
		if (a->causal) /* earlier queries see none of these keys */
			query = i_mul_k(e, i_div_k(e, key, a->bq), a->bq);
		LOOP(e, first, query, k64(e, a->t), a->bq)
			back_block(m, key, keys, first, i_min(e, k64(e, a->bq), i_sub(e, k64(e, a->t), first)), sums);
		rows_out(m, ATT_DK, a->s, a->d, key, keys);
		rows_out(m, ATT_DV, a->s, a->e, key, keys);
	}
}

/* The products whose sums are over rows of the tiles, or over keys. */
static void
back_products(AttMain *m)
{
	Emit *e = m->e;
	const Att *a = m->a;
	int64_t row = F32(a->bk), d = F32(a->d), width = F32(a->e);

	m->dq = attention_product(e, attention_columns(a, a->d), a->d, row / a->unit, 4, d, d, 0);
	m->dk = attention_product(e, attention_columns(a, a->d), a->d, 4, row, d, d, 0);
	m->dv = attention_product(e, attention_columns(a, a->e), a->e, 4, row, width, width, 0);
}

void
attention_backward(AttMain *m)
{
	Emit *e = m->e;
	const Att *a = m->a;
	int last = attention_last_keys(a);
	V zero = k64(e, 0), all = k64(e, a->t), whole = k64(e, last ? a->s / a->bk * a->bk : a->s);

	back_products(m);
	TASKS(e, entry) {
		m->entry = entry;
		attention_mask(m);
		rows_emit_sums(m);
		if (a->pairs) {
			attention_beside(m, m->in[1], a->t, a->d, zero, all, m->queries);
			attention_beside(m, m->in[0], a->t, a->e, zero, all, m->grads);
		}
		if (!last || a->s > a->bk) {
			attention_block(m, a->bk);
			backward_blocks(m, zero, whole);
		}
		if (last) {
			attention_block(m, last);
			backward_blocks(m, whole, k64(e, a->s));
		}
		rows_out(m, ATT_DQ, a->t, a->d, zero, all);
	}
}
