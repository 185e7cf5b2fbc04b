/* rnn_halves.c: the products of a recurrence's step by Strassen's algorithm (strassen.c): seven of halves for eight.
 *
 * In: a plan with halves, rows of a step, packed sums of W_hh (rnn_pack.c).   Out: tiles of sums forward, running
 * gradients backward. Examples 2i and 2i + 1 are the upper and the lower half of the rows, whoever has them. */
#include "rnn_parts.h"

/* The products' first operands: [product][pair][k]. */
static Mem
sums_region(const RnnMain *m)
{
	const RnnSeq *s = m->s;

	return mem_axes(m->e, ptr_at(m->e, m->ws, k64(m->e, s->sums)), OF(ceil_div(s->n.n, 2)), BY(s->sums_row));
}

/* The seven first operands of each pair of rows of the task, which lie `row` bytes apart. */
void
rnn_halves_sums(const RnnMain *m, V from, int64_t row)
{
	Emit *e = m->e;
	const RnnSeq *s = m->s;
	V base = ptr_at(e, m->ws, k64(e, s->sums)), x[QUARTERS], r[PRODUCTS];
	/* [below][aside][pair][k], [pair][k][product] */
	Mem quarters = mem_axes(e, from, BY(row), BY(F32(s->k2)), BY(2 * row), BY(4)),
	    sums = mem_axes(e, base, BY(s->sums_row), BY(4), BY(ceil_div(s->n.n, 2) * s->sums_row));

	LOOP(e, pair, i_div_k(e, m->lo, 2), i_div_k(e, m->hi, 2), 1) LOOP(e, k, k64(e, 0), k64(e, s->k2), e->W) {
		Mem to = mem_part(e, &sums, pair, k);

		for (int q = 0; q < QUARTERS; q++)
			x[q] = vec_load(e, mem_at(e, &quarters, k64(e, q >> 1), k64(e, q & 1), pair, k), NULL);
		strassen_first(e, x, r);
		for (int q = 0; q < PRODUCTS; q++)
			vec_store(e, mem_at(e, &to, k64(e, q)), r[q], NULL);
	}
}

/* Product q of `count` pairs from `pair` on, for one panel's weights. */
static void
halves_call(const RnnMain *m, V q, V pair, V count, V weights, V to)
{
	Mem sums = sums_region(m);

	tile_call(m->e, &m->tiles, count, k64(m->e, 0), 1, mem_at(m->e, &sums, q, pair), weights, to, NULL, NULL,
	          m->strides, NULL);
}

/* Forward, one panel: the seven products of `count` pairs, and of them the sums of the pairs' 2 * count rows, for
 * gates_tile: of the gru one tile for each half of the units. */
void
rnn_halves_tile(const RnnMain *m, V pair, V count, V weights, V products, V tile)
{
	Emit *e = m->e;
	const RnnSeq *s = m->s;
	int w = s->p.lanes;
	int64_t nr = (int64_t)s->p.nv * w, apart = F32(s->p.mr * nr), row = F32(s->gates * w),
	        right = s->lstm ? F32(nr) : 2 * s->p.mr * row;
	/* [product][pair][number], [below][aside][pair][number] */
	Mem of_product = mem_axes(e, products, BY(apart), BY(F32(nr)), BY(4)),
	    panel = mem_dense(e, weights, DT_f32, PRODUCTS, s->k2, nr),
	    quarters = mem_axes(e, tile, BY(row), BY(right), BY(2 * row), BY(4));
	V x[PRODUCTS], r[QUARTERS];

	TIMES(e, q, PRODUCTS)
		halves_call(m, q, pair, count, mem_at(e, &panel, q), mem_at(e, &of_product, q));
	EACH(e, i, count)
		for (int64_t j = 0; j < nr; j += w) {
			V at = k64(e, j);

			for (int k = 0; k < PRODUCTS; k++)
				x[k] = vec_load(e, mem_at(e, &of_product, k64(e, k), i, at), NULL);
			strassen_quarters(e, x, r);
			for (int k = 0; k < QUARTERS; k++)
				vec_store(e, mem_at(e, &quarters, k64(e, k >> 1), k64(e, k & 1), i, at), r[k], NULL);
		}
}

/* Backward: a step's gradients times W_hh, added to the running gradients dh. A product at a time, as its first operand
 * then stays in the L1. */
void
rnn_halves_back(const RnnMain *m, V grads, V weights, V dh)
{
	Emit *e = m->e;
	const RnnSeq *s = m->s;
	int64_t nr = (int64_t)s->p.nv * s->p.lanes, bytes = F32(s->k2 * nr), pairs = ceil_div(s->n.n, 2);
	V base = ptr_at(e, m->ws, k64(e, s->products)), lo = i_div_k(e, m->lo, 2), hi = i_div_k(e, m->hi, 2),
	  x[PRODUCTS], r[QUARTERS];
	/* weights [panel][product]; products as they are made, [product][pair][panel], and read,
	 * [product][pair][number]; gradients [below][aside][pair][number] */
	Mem panels = mem_axes(e, weights, BY(bytes), BY(s->npanel * bytes)),
	    made = mem_axes(e, base, OF(pairs), BY(s->products_row), BY(F32(nr))),
	    read = mem_axes(e, base, BY(pairs * s->products_row), BY(s->products_row), BY(4)),
	    quarters = mem_axes(e, dh, BY(s->state_row), BY(F32(s->h / 2)), BY(2 * s->state_row), BY(4));

	rnn_halves_sums(m, grads, s->grad_row);
	TIMES(e, q, PRODUCTS) TIMES(e, panel, s->npanel) {
		Mem of_panel = mem_part(e, &panels, panel);

		TILES(e, at, count, i_sub(e, hi, lo), s->p.mr) {
			V pair = i_add(e, lo, at);

			halves_call(m, q, pair, count, mem_at(e, &of_panel, q), mem_at(e, &made, q, pair, panel));
		}
	}
	LOOP(e, i, lo, hi, 1) LOOP(e, j, k64(e, 0), k64(e, s->h / 2), e->W) {
		for (int k = 0; k < PRODUCTS; k++)
			x[k] = vec_load(e, mem_at(e, &read, k64(e, k), i, j), NULL);
		strassen_quarters(e, x, r);
		for (int k = 0; k < QUARTERS; k++) {
			V to = mem_at(e, &quarters, k64(e, k >> 1), k64(e, k & 1), i, j);

			vec_store(e, to, LLVMBuildFAdd(here(e), vec_load(e, to, NULL), r[k], ""), NULL);
		}
	}
}
