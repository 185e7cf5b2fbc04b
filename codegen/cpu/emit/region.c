/* region.c: addresses by name.
 *
 * In: a region of memory (Mem): where it begins, its axes, outermost first, and how far apart what lies along them is;
 * indices.   Out: the bytes from its start to where they lead, or the address. Indices that are left out or NULL are 0.
 * Neighbouring axes without gaps are one run of elements: an index into it is taken by Horner's rule, with one
 * multiplication for all trailing axes whose indices are left out. Runs are added up from the last one on; an emitter
 * that wants those of outer loops added up first fixes their indices (mem_fix). Refuses more indices than axes. */
#include "../cpu.h"

static Mem
mem_of(V base, int rank)
{
	if (rank < 1 || rank > MEM_AXES)
		bug("a region of %d axes", rank);
	return (Mem){.base = base, .rank = rank};
}

Mem
mem_dense_of(const Emit *e, V base, DType dt, const int64_t *extent, int rank)
{
	Mem m = mem_of(base, rank);

	for (int i = 0; i + 1 < rank; i++)
		m.axis[i] = (MemAxis){k64(e, extent[i + 1]), true};
	m.axis[rank - 1] = (MemAxis){k64(e, dtype_info[dt].bytes), false};
	return m;
}

Mem
mem_rows_of(const Emit *e, V base, DType dt, const int64_t *extent, int rank)
{
	Mem m = mem_dense_of(e, base, dt, extent, rank);

	m.axis[rank - 2] = (MemAxis){k64(e, extent[rank - 1] * dtype_info[dt].bytes), false};
	return m;
}

Mem
mem_axes_of(const Emit *e, V base, const MemStep *step, int rank)
{
	Mem m = mem_of(base, rank);

	for (int i = 0; i < rank; i++)
		m.axis[i] = (MemAxis){k64(e, step[i].n), step[i].joined};
	return m;
}

/* Bytes of the run of axes [from, to): ((i0 * n1 + i1) * n2 + ...) * bytes. */
static V
run_offset(Emit *e, const Mem *m, const V *index, int n, int from, int to)
{
	V at = k64(e, 0);
	int64_t times = 1, k; /* what is still to be multiplied with */

	for (int i = from; i < to; i++) {
		if (i < n && index[i])
			at = i_add(e, at, index[i]);
		if (!is_const(m->axis[i].step, &k)) {
			at = i_mul(e, i_mul_k(e, at, times), m->axis[i].step);
			times = 1;
		} else if (i + 1 < to && i + 1 >= n) {
			times *= k;
		} else {
			at = i_mul_k(e, at, times * k);
			times = 1;
		}
	}
	return at;
}

V
mem_offset_of(Emit *e, const Mem *m, const V *index, int n)
{
	V at = NULL;

	if (n > m->rank)
		bug("%d indices of a region of %d axes", n, m->rank);
	for (int to = m->rank, from; to > 0; to = from) {
		for (from = to - 1; from > 0 && m->axis[from - 1].joined;)
			from--;
		if (from >= n)
			continue;
		V run = run_offset(e, m, index, n, from, to);

		at = at ? i_add(e, run, at) : run;
	}
	at = at ? at : k64(e, 0);
	return m->start ? i_add(e, m->start, at) : at;
}

V
mem_at_of(Emit *e, const Mem *m, const V *index, int n)
{
	return ptr_at(e, m->base, mem_offset_of(e, m, index, n));
}

static Mem
axes_behind(const Mem *m, int n)
{
	Mem part = mem_of(m->base, m->rank - n);

	for (int i = 0; i < part.rank; i++)
		part.axis[i] = m->axis[i + n];
	return part;
}

Mem
mem_part_of(Emit *e, const Mem *m, const V *index, int n)
{
	Mem part = axes_behind(m, n);

	part.base = mem_at_of(e, m, index, n);
	return part;
}

Mem
mem_fix_of(Emit *e, const Mem *m, const V *index, int n)
{
	Mem part = axes_behind(m, n);

	part.start = mem_offset_of(e, m, index, n);
	return part;
}
