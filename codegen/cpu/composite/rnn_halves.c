/* rnn_halves.c: the products of a recurrence's step by Strassen's algorithm (strassen.c): seven of halves for eight.
 *
 * In: a plan with halves, rows of a step, packed sums of W_hh (rnn_pack.c).   Out: tiles of sums forward, running
 * gradients backward. Examples 2i and 2i + 1 are the upper and the lower half of the rows, whoever has them. */
#include "rnn_parts.h"

/* The seven first operands of each pair of rows of the task, which lie `row` bytes apart. */
void
rnn_halves_sums(const RnnMain *m, V from, int64_t row)
{
	Emit *e = m->e;
	const RnnSeq *s = m->s;
	V pair = loop_open(e, i_div(e, m->lo, k64(e, 2)), i_div(e, m->hi, k64(e, 2)), 1),
	  k = i_mul(e, loop_open(e, k64(e, 0), k64(e, s->k2), e->W), k64(e, 4)), x[QUARTERS], r[PRODUCTS];
	V at = i_add(e, i_mul(e, pair, k64(e, 2 * row)), k),
	  to = ptr_at(e, ptr_at(e, m->ws, k64(e, s->sums)), i_add(e, i_mul(e, pair, k64(e, s->sums_row)), k));

	for (int q = 0; q < QUARTERS; q++)
		x[q] = vec_load(e, ptr_at(e, from, i_add(e, at, k64(e, (q & 1) * s->k2 * 4 + (q >> 1) * row))), NULL);
	strassen_first(e, x, r);
	for (int q = 0; q < PRODUCTS; q++)
		vec_store(e, ptr_at(e, to, k64(e, q * ceil_div(s->n.n, 2) * s->sums_row)), r[q], NULL);
	loop_close(e);
	loop_close(e);
}

/* Product q of `count` pairs from `pair` on, for one panel whose seven weights lie `apart` bytes from each other. */
static void
halves_call(const RnnMain *m, V q, V pair, V count, V weights, V apart, V to)
{
	Emit *e = m->e;
	const RnnSeq *s = m->s;
	V row = i_add(e, i_mul(e, q, k64(e, ceil_div(s->n.n, 2))), pair);

	tile_call(e, &m->tiles, count, k64(e, 0), 1,
	          ptr_at(e, ptr_at(e, m->ws, k64(e, s->sums)), i_mul(e, row, k64(e, s->sums_row))),
	          ptr_at(e, weights, i_mul(e, q, apart)), to, k64(e, 1), k64(e, 1), m->strides, k64(e, 0));
}

/* Forward, one panel: the seven products of `count` pairs, and of them the sums of the pairs' 2 * count rows, for
 * gates_tile: of the gru one tile for each half of the units. */
void
rnn_halves_tile(const RnnMain *m, V pair, V count, V weights, V products, V tile)
{
	Emit *e = m->e;
	const RnnSeq *s = m->s;
	int w = s->p.lanes;
	int64_t nr = (int64_t)s->p.nv * w, apart = s->p.mr * nr * 4, row = (int64_t)s->gates * w * 4,
	        right = s->lstm ? nr * 4 : 2 * s->p.mr * row;
	V q = loop_open(e, k64(e, 0), k64(e, PRODUCTS), 1), x[PRODUCTS], r[QUARTERS];

	halves_call(m, q, pair, count, weights, k64(e, s->k2 * nr * 4),
	            ptr_at(e, products, i_mul(e, q, k64(e, apart))));
	loop_close(e);
	V i = loop_open(e, k64(e, 0), count, 1);

	for (int64_t j = 0; j < nr * 4; j += w * 4) {
		for (int k = 0; k < PRODUCTS; k++)
			x[k] = vec_load(
			        e, ptr_at(e, products, i_add(e, i_mul(e, i, k64(e, nr * 4)), k64(e, k * apart + j))),
			        NULL);
		strassen_quarters(e, x, r);
		for (int k = 0; k < QUARTERS; k++)
			vec_store(e,
			          ptr_at(e, tile,
			                 i_add(e, i_mul(e, i, k64(e, 2 * row)),
			                       k64(e, (k >> 1) * row + (k & 1) * right + j))),
			          r[k], NULL);
	}
	loop_close(e);
}

/* Backward: a step's gradients times W_hh, added to the running gradients dh. A product at a time, as its first operand
 * then stays in the L1. */
void
rnn_halves_back(const RnnMain *m, V grads, V weights, V dh)
{
	Emit *e = m->e;
	const RnnSeq *s = m->s;
	int64_t nr = (int64_t)s->p.nv * s->p.lanes, bytes = s->k2 * nr * 4, pairs = ceil_div(s->n.n, 2);
	V products = ptr_at(e, m->ws, k64(e, s->products)), lo = i_div(e, m->lo, k64(e, 2)),
	  hi = i_div(e, m->hi, k64(e, 2)), at, count, x[PRODUCTS], r[QUARTERS];

	rnn_halves_sums(m, grads, s->grad_row);
	V q = loop_open(e, k64(e, 0), k64(e, PRODUCTS), 1), panel = loop_open(e, k64(e, 0), k64(e, s->npanel), 1);

	tiles_open(e, i_sub(e, hi, lo), s->p.mr, &at, &count);
	V pair = i_add(e, lo, at), row = i_add(e, i_mul(e, q, k64(e, pairs)), pair);

	halves_call(
	        m, q, pair, count, ptr_at(e, weights, i_mul(e, panel, k64(e, bytes))), k64(e, s->npanel * bytes),
	        ptr_at(e, products, i_add(e, i_mul(e, row, k64(e, s->products_row)), i_mul(e, panel, k64(e, nr * 4)))));
	for (int i = 0; i < 3; i++)
		loop_close(e);
	V i = loop_open(e, lo, hi, 1), j = i_mul(e, loop_open(e, k64(e, 0), k64(e, s->h / 2), e->W), k64(e, 4));

	for (int k = 0; k < PRODUCTS; k++)
		x[k] = vec_load(e,
		                ptr_at(e, products,
		                       i_add(e, i_add(e, i_mul(e, i, k64(e, s->products_row)), j),
		                             k64(e, k * pairs * s->products_row))),
		                NULL);
	strassen_quarters(e, x, r);
	for (int k = 0; k < QUARTERS; k++) {
		V to = ptr_at(e, dh,
		              i_add(e, i_add(e, i_mul(e, i, k64(e, 2 * s->state_row)), j),
		                    k64(e, (k >> 1) * s->state_row + (k & 1) * s->h / 2 * 4)));

		vec_store(e, to, LLVMBuildFAdd(here(e), vec_load(e, to, NULL), r[k], ""), NULL);
	}
	loop_close(e);
	loop_close(e);
}
