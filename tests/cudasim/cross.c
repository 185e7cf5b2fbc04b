/* cross.c: lanes of a warp that exchange values: shuffles, votes, matches, reductions, matrix loads and stores.
 *
 * In: the lanes of the member mask, all at this instruction.   Out: their results. A shuffle from a lane that takes no
 * part gives 0xffffffff. */
#include <string.h>

#include "sim.h"

void
op_shfl(Warp *w, const Ins *x, uint32_t m)
{
	uint32_t pred = w->block->launch->module->extra[x->extra], from[LANES], p = 0;
	const uint32_t *b = REG(w, uint32_t, x->b), *c = REG(w, uint32_t, x->c);
	uint32_t *d = REG(w, uint32_t, x->d);

	memcpy(from, REG(w, uint32_t, x->a), sizeof from);
	FOR_LANES(i, m) {
		uint32_t by = b[i] & 31, seg = c[i] >> 8 & 31, most = (i & seg) | (c[i] & 31 & ~seg), j;
		bool in;

		switch (x->sub) {
		case 0: j = i - by; in = (int32_t)j >= (int32_t)most; break;
		case 1: j = i + by; in = j <= most; break;
		case 2: j = i ^ by; in = j <= most; break;
		default: j = (i & seg) | (by & ~seg); in = j <= most; break;
		}
		p |= (uint32_t)in << i;
		j = in ? j : i;
		d[i] = m >> j & 1 ? from[j] : 0xffffffff;
	}
	if (pred)
		*REG(w, uint32_t, pred) = (*REG(w, uint32_t, pred) & ~m) | (p & m);
}

void
op_vote(Warp *w, const Ins *x, uint32_t m)
{
	uint32_t yes = *REG(w, uint32_t, x->a) & m, *d = REG(w, uint32_t, x->d), r;

	if (x->sub == 3) {
		FOR_LANES(i, m) d[i] = yes;
		return;
	}
	r = x->sub == 0 ? yes == m : x->sub == 1 ? yes != 0 : yes == m || yes == 0;
	*d = (*d & ~m) | (r ? m : 0);
}

void
op_match(Warp *w, const Ins *x, uint32_t m)
{
	uint32_t all = 1;

	FOR_LANES(i, m) {
		uint32_t same = 0;

		FOR_LANES(j, m)
		same |= (uint32_t)(lane_get(w, x->a, x->bytes, (int)i) == lane_get(w, x->a, x->bytes, (int)j)) << j;
		all &= same == m;
		if (!x->sub)
			REG(w, uint32_t, x->d)[i] = same;
	}
	if (x->sub) {
		FOR_LANES(i, m) REG(w, uint32_t, x->d)[i] = all ? m : 0;
		if (x->b)
			*REG(w, uint32_t, x->b) = (*REG(w, uint32_t, x->b) & ~m) | (all ? m : 0);
	}
}

void
op_redux(Warp *w, const Ins *x, uint32_t m)
{
	const uint32_t *a = REG(w, uint32_t, x->a);
	uint32_t r = 0, first = 1;

	FOR_LANES(i, m) {
		uint32_t v = a[i];
		bool less = x->flags & INS_SIGNED ? (int32_t)v < (int32_t)r : v < r;

		if (first)
			r = v;
		else switch (x->sub) {
		case 0: r += v; break;
		case 1: r = less ? v : r; break;
		case 2: r = less ? r : v; break;
		case 3: r &= v; break;
		case 4: r |= v; break;
		default: r ^= v; break;
		}
		first = 0;
	}
	FOR_LANES(i, m) REG(w, uint32_t, x->d)[i] = r;
}

void
op_elect(Warp *w, const Ins *x, uint32_t m)
{
	uint32_t leader = (uint32_t)__builtin_ctz(m);

	if (x->d)
		FOR_LANES(i, m) REG(w, uint32_t, x->d)[i] = leader;
	if (x->b)
		*REG(w, uint32_t, x->b) = (*REG(w, uint32_t, x->b) & ~m) | 1u << leader;
}

void
op_activemask(Warp *w, const Ins *x, uint32_t m)
{
	FOR_LANES(i, m) REG(w, uint32_t, x->d)[i] = m;
}

/* A new time for the warp: what its lanes did before is ordered before what they do after. */
void
op_warp_sync(Warp *w, const Ins *x, uint32_t m)
{
	(void)x;
	(void)m;
	w->clock[w->block->rank * MAX_WARPS + w->index]++;
}

/* Lane i of each eight gives the address of row i; 16-bit element (r, c) of a matrix lies in lane 4 r + c / 2, or with
 * trans in that of (c, r). */
void
op_ldmatrix(Warp *w, const Ins *x, uint32_t m)
{
	const uint32_t *reg = w->block->launch->module->extra + x->extra;
	uint32_t out[4][LANES];

	if (m != ALL_LANES)
		report(w, x, -1, CUDA_ERROR_ILLEGAL_INSTRUCTION, "ldmatrix with lanes missing");
	for (uint32_t k = 0; k < x->n; k++) {
		uint16_t e[8][8];

		for (uint32_t r = 0; r < 8; r++)
			memcpy(e[r],
			       access_at(w, x, (int)(k * 8 + r), (Space)x->space,
			                 lane_address(w, x, x->a, (int)(k * 8 + r)), 16, ACCESS_READ),
			       16);
		for (uint32_t i = 0; i < LANES; i++) {
			uint32_t r = i / 4, c = i % 4 * 2;

			out[k][i] =
			        x->type ? e[c][r] | (uint32_t)e[c + 1][r] << 16 : e[r][c] | (uint32_t)e[r][c + 1] << 16;
		}
	}
	for (uint32_t k = 0; k < x->n; k++)
		memcpy(w->rf + reg[k], out[k], sizeof out[k]);
}

void
op_stmatrix(Warp *w, const Ins *x, uint32_t m)
{
	const uint32_t *reg = w->block->launch->module->extra + x->extra;

	if (m != ALL_LANES)
		report(w, x, -1, CUDA_ERROR_ILLEGAL_INSTRUCTION, "stmatrix with lanes missing");
	for (uint32_t k = 0; k < x->n; k++) {
		const uint32_t *v = REG(w, uint32_t, reg[k]);
		uint16_t e[8][8];

		for (uint32_t i = 0; i < LANES; i++) {
			uint32_t r = i / 4, c = i % 4 * 2;

			*(x->type ? &e[c][r] : &e[r][c]) = (uint16_t)v[i];
			*(x->type ? &e[c + 1][r] : &e[r][c + 1]) = (uint16_t)(v[i] >> 16);
		}
		for (uint32_t r = 0; r < 8; r++)
			memcpy(access_at(w, x, (int)(k * 8 + r), (Space)x->space,
			                 lane_address(w, x, x->a, (int)(k * 8 + r)), 16, ACCESS_WRITE),
			       e[r], 16);
	}
}

/* An 8x8 matrix of 16-bit elements, transposed. */
void
op_movmatrix(Warp *w, const Ins *x, uint32_t m)
{
	const uint32_t *v = REG(w, uint32_t, x->a);
	uint16_t e[8][8];

	if (m != ALL_LANES)
		report(w, x, -1, CUDA_ERROR_ILLEGAL_INSTRUCTION, "movmatrix with lanes missing");
	for (uint32_t i = 0; i < LANES; i++) {
		e[i / 4][i % 4 * 2] = (uint16_t)v[i];
		e[i / 4][i % 4 * 2 + 1] = (uint16_t)(v[i] >> 16);
	}
	for (uint32_t i = 0; i < LANES; i++)
		REG(w, uint32_t, x->d)[i] = e[i % 4 * 2][i / 4] | (uint32_t)e[i % 4 * 2 + 1][i / 4] << 16;
}
