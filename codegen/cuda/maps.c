/* maps.c: elementwise kernels: every element of one shape, an element or a vector of neighbours to a thread.
 *
 * In: what is stored, all of one shape.   Out: one kernel. Everything is computed before anything is stored: an output may take the place of an input.
 * Neighbours are taken 16 bytes at a time where memory's innermost axis allows it. Where elements are told apart by nothing but their number (parameters and
 * their updates) the kernel is flat: the number of elements is its first parameter, so that all shapes share a function, and launches are joined (merge.c). */
#include "gemm.h"
#include <ctype.h>
#include <string.h>

typedef struct Way { int vec; bool flat; int inner; Leaves leaves; } Way; /* inner: the axis that is innermost in memory, -1 */

static bool
put_at_once(const Out *o, const Type *t)
{
	return type_same_place(o->type, t) && cu_vector_type((DType)o->type->dtype) && o->offset % 16 == 0;
}

static void
way_find(Cuda *c, const Out *out, int n, Way *w)
{
	const Type *t = out[0].type;
	bool narrow = false;
	int wide = 0;

	w->inner = -1;
	for (int k = 0; k < n; k++) {
		cu_leaves_find(c, out[k].v, t, NOVAL, &w->leaves);
		if (put_at_once(&out[k], t)) {
			narrow |= dtype_info[out[k].type->dtype].bytes == 2;
			wide++;
		}
	}
	for (uint32_t k = 0; k < w->leaves.at.n; k++)
		narrow |= dtype_info[val_type(c->g, w->leaves.at.at[k].v)->dtype].bytes == 2;
	for (int i = 0; i < t->rank; i++)
		if (t->axis[t->perm[i]].n != 1 || t->axis[t->perm[i]].mul)
			w->inner = t->perm[i];
	w->vec = wide + (int)w->leaves.at.n ? narrow ? 8 : 4 : 1;
	w->flat = !type_marked(t) && type_elements(t) > 1;
	if (w->flat && type_elements(t) % w->vec)
		w->vec = 1;
}

/* The elements [first, first + vec) of a thread. at: indices of the first one, e its number. */
static void
vector_emit(Cuda *c, const Out *out, int n, Way *w, const Ix *at, Ix e)
{
	const Type *t = out[0].type;
	Cell *x = arena_array(c->a, Cell, n);
	const char **to = arena_array(c->a, const char *, n);
	Ix ix[MAX_RANK];
	Scope loop = {0};

	c->root = t;
	c->root_i = e;
	memcpy(c->root_ix, at, sizeof(Ix) * t->rank);
	memcpy(ix, at, sizeof ix);
	if (w->vec > 1) {
		cu_leaves_open(c, &w->leaves, w->vec, 1);
		cu_leaves_load(c, &w->leaves, at);
		for (int k = 0; k < n; k++)
			if (put_at_once(&out[k], t)) {
				to[k] = cu_fresh(c, 'y');
				cu_line(c, "%s %s[%d];", dtype_info[out[k].type->dtype].bytes == 2 ? "unsigned short" : "float", to[k], w->vec);
			}
		cu_line(c, "#pragma unroll");
		loop = cu_scope_open(c, "for (int u = 0; u < %d; u++)", w->vec);
		ix[w->inner] = w->flat ? "q_" : cu_ix_add(c, at[w->inner], "u");
		c->root_i = cu_ix_add(c, e, "u");
		memcpy(c->root_ix, ix, sizeof(Ix) * t->rank);
		cu_leaves_put(c, &w->leaves, ix, "u");
	}
	for (int k = 0; k < n; k++)
		x[k] = cu_value_at(c, out[k].v, ix);
	for (int k = 0; k < n; k++) {
		DType dt = (DType)out[k].type->dtype;

		if (!to[k])
			cu_store_at(c, out[k].type, out[k].offset, ix, x[k]);
		else
			cu_line(c, dt == DT_f32 ? "%s[u] = %s;" : dt == DT_f16 ? "%s[u] = f16_bits(%s);" : "%s[u] = bf16_bits(%s);", to[k], x[k].v);
	}
	if (w->vec > 1)
		cu_scope_close(c, loop);
	c->root_i = e;
	memcpy(c->root_ix, at, sizeof(Ix) * t->rank);
	for (int k = 0; k < n; k++)
		if (to[k]) {
			cu_stores_at(c, out[k].offset);
			cu_line(c, "put%d_%d(%s, %s);", w->vec, 8 * dtype_info[out[k].type->dtype].bytes, cu_address(c, out[k].type, out[k].offset, at), to[k]);
		}
}

static bool
names_index(const Buf *b)
{
	for (const char *p = b->n ? b->at : ""; *p; p++)
		if (p[0] == 'q' && (isdigit((unsigned char)p[1]) || p[1] == '_') && !isalnum((unsigned char)p[-1]) && p[-1] != '_')
			return true;
	return false;
}

bool
cu_asks_index(const Cuda *c)
{
	return names_index(&c->body) || names_index(&c->head);
}

/* False: an element's place is asked for. */
static bool
flat_emit(Cuda *c, const Out *out, int n, Way *w)
{
	const Type *t = out[0].type;
	int64_t count = type_elements(t);
	Ix ix[MAX_RANK], i;

	cu_kernel_open(c, "copy");
	c->flat = c->loose = true;
	vec_push(c->a, &c->off, count);
	for (int k = 0; k < t->rank; k++)
		ix[k] = t->axis[k].n == 1 ? "0" : arena_printf(c->a, "q%d", k);
	i = cu_fresh(c, 'i');
	Scope s = cu_scope_open(c, "for (%s %s = (blockIdx.x * BLOCK + threadIdx.x) * %d; %s < o0; %s += gridDim.x * BLOCK * %d)", c->it, i, w->vec, i, i, w->vec);

	vector_emit(c, out, n, w, ix, i);
	cu_scope_close(c, s);
	if (cu_asks_index(c)) {
		c->nkernel--;
		return false;
	}
	cu_kernel_close(c, w->vec > 1 ? arena_printf(c->a, "%d neighbours to a thread", w->vec) : "an element to a thread", (count / w->vec + BLOCK - 1) / BLOCK);
	return true;
}

void
cu_map_emit(Cuda *c, const Out *out, int n)
{
	const Type *t = out[0].type;
	uint32_t all = (1u << t->rank) - 1;
	Ix ix[MAX_RANK];
	Way w = {0};

	way_find(c, out, n, &w);
	if (w.flat && flat_emit(c, out, n, &w))
		return;
	w.flat = false;
	if (w.inner < 0 || t->axis[w.inner].mul || t->axis[w.inner].n % w.vec)
		w.vec = 1;
	cu_kernel_open(c, "copy");
	c->loose = true;
	if (w.vec == 1) {
		Scope s = cu_threads_open(c, t, all, ix);

		vector_emit(c, out, n, &w, ix, c->root_i);
		cu_scope_close(c, s);
	} else {
		Ix i = cu_fresh(c, 'i'), count = cu_product(c, t, all);
		Scope s = cu_scope_open(c, "for (%s %s = (blockIdx.x * BLOCK + threadIdx.x) * %d; %s < %s; %s += gridDim.x * BLOCK * %d)", c->it, i, w.vec, i, count, i, w.vec);

		cu_take_apart(c, t, all, i, ix);
		vector_emit(c, out, n, &w, ix, i);
		cu_scope_close(c, s);
	}
	cu_kernel_close(c, w.vec > 1 ? arena_printf(c->a, "%d neighbours to a thread", w.vec) : "an element to a thread", (cu_blocks_of(t, all) + w.vec - 1) / w.vec);
}
