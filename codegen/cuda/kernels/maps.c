/* maps.c: elementwise kernels: every element of one shape, an element or a vector of neighbours to a thread.
 *
 * In: what is stored, all of one shape.   Out: one kernel. Everything is computed before anything is stored: an output
 * may take the place of an input. Neighbours are taken 16 bytes at a time where memory's innermost axis allows it.
 * Where elements are told apart by nothing but their number (parameters and their updates) the kernel is flat: the
 * number of elements is its first parameter, so that all shapes share a function, and launches are joined (merge.c). */
#include "../contract/gemm.h"
#include <ctype.h>
#include <string.h>

/* inner: the axis that is innermost in memory, -1 */
/* tile: NULL, or the convolution of which a thread makes some pixels of a row */
typedef struct Way { int vec; bool flat; int inner; Leaves leaves; Lanes lanes; Leaf *tile; } Way;

static void
way_find(Cuda *c, const Out *out, int n, Way *w)
{
	const Type *t = out[0].type;
	bool narrow = false;
	int wide = 0;

	w->inner = cu_inner_axis(t);
	w->leaves.windows = true;
	for (int k = 0; k < n; k++) {
		cu_leaves_find(c, out[k].v, t, NOVAL, &w->leaves);
		if (cu_vector_place(out[k].type, out[k].offset, t)) {
			narrow |= dtype_info[out[k].type->dtype].bytes == 2;
			wide++;
		}
	}
	for (uint32_t k = 0; k < w->leaves.at.n; k++)
		narrow |= dtype_info[val_type(c->g, w->leaves.at.at[k].v)->dtype].bytes == 2;
	w->vec = wide + (int)w->leaves.at.n ? narrow ? 8 : 4 : 1;
	for (uint32_t k = 0; k < w->leaves.at.n && c->kernel.family == FAMILY_cuda_depthwise; k++) {
		const Op *op = w->leaves.at.at[k].window;

		if (!op || (op->kind != OP_conv2d && op->kind != OP_conv2d_dx))
			continue;
		w->vec = c->kernel.cuda_depthwise.vec ? c->kernel.cuda_depthwise.vec : w->vec;
		w->tile = c->kernel.cuda_depthwise.pixels > 1 ? &w->leaves.at.at[k] : NULL;
	}
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
			if (cu_vector_place(out[k].type, out[k].offset, t))
				to[k] = cu_stored_open(c, &out[k], w->vec);
		cu_lanes_begin(c, &w->lanes, t, w->inner, w->vec, at);
		loop = cu_each_open(c, w->vec);
		ix[w->inner] = w->flat ? "q_" : cu_ix_add(c, at[w->inner], "u");
		w->lanes.lane = w->flat ? "" : ix[w->inner];
		c->root_i = cu_ix_add(c, e, "u");
		memcpy(c->root_ix, ix, sizeof(Ix) * t->rank);
		cu_leaves_put(c, &w->leaves, ix, "u");
	}
	for (int k = 0; k < n; k++)
		x[k] = cu_value_at(c, out[k].v, ix);
	for (int k = 0; k < n; k++)
		cu_stored_put(c, &out[k], to[k], ix, x[k]);
	cu_lanes_end(c);
	cu_each_close(c, w->vec, loop);
	c->root_i = e;
	memcpy(c->root_ix, at, sizeof(Ix) * t->rank);
	for (int k = 0; k < n; k++)
		cu_stored_close(c, &out[k], to[k], w->vec, at);
}

Scope
cu_vectors_open(Cuda *c, int vec, Ix i, Ix count)
{
	return cu_scope_open(
	        c, "for (%s %s = (blockIdx.x * BLOCK + threadIdx.x) * %d; %s < %s; %s += gridDim.x * BLOCK * %d)",
	        c->it, i, vec, i, count, i, vec);
}

static void
map_close(Cuda *c, int vec, int64_t blocks)
{
	cu_kernel_close(c, vec > 1 ? arena_printf(c->a, "%d neighbours to a thread", vec) : "an element to a thread",
	                blocks);
}

static bool
names_index(const Buf *b)
{
	for (const char *p = b->n ? b->at : ""; *p; p++)
		if (p[0] == 'q' && (isdigit((unsigned char)p[1]) || p[1] == '_') && !isalnum((unsigned char)p[-1]) &&
		    p[-1] != '_')
			return true;
	return false;
}

bool
cu_asks_index(const Cuda *c)
{
	return names_index(&c->body) || names_index(&c->head);
}

/* What a value of the group at that offset says of an element's bytes there: 0 of a single one, which all elements
 * share. -1: nothing stands there, -2: it is of another shape, or two do not agree. */
static int32_t
flat_size(const Cuda *c, int64_t offset, int64_t count)
{
	int32_t size = -1;

	for (uint32_t i = c->first; i < c->last; i++) {
		const Op *op = &c->g->op.at[i];

		for (int k = 0; !op->dead && op->group == c->group && k < op->nin + op->nout; k++) {
			const ValInfo *v = val_info(c->g, k < op->nin ? op->in[k] : op->out[k - op->nin]);
			int64_t n = type_elements(&v->type);
			int32_t at = n == count ? dtype_info[v->type.dtype].bytes : n == 1 ? 0 : -2;

			if (v->offset == offset)
				size = size == -1 || size == at ? at : -2;
		}
	}
	return size;
}

/* The kernel that was just closed may run over a part of its elements: a whole number of tasks, its offsets moved. */
static void
flat_parts(Cuda *c, int vec, int64_t count)
{
	KernelRec *k = &c->gk->k.at[c->gk->k.n - 1];
	int64_t each = (int64_t)BLOCK * vec, tasks = (count + each - 1) / each;
	int32_t *size = arena_array(c->p->a, int32_t, k->noff);

	for (int i = 1; i < k->noff; i++)
		if ((size[i] = flat_size(c, k->off[i], count)) < 0)
			return;
	k->size = size;
	k->each = each * ((tasks + k->rows - 1) / k->rows);
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
	cu_count(c, count);
	for (int k = 0; k < t->rank; k++)
		ix[k] = t->axis[k].n == 1 ? "0" : arena_printf(c->a, "q%d", k);
	i = cu_fresh(c, 'i');
	Scope s = cu_vectors_open(c, w->vec, i, "o0");

	vector_emit(c, out, n, w, ix, i);
	cu_scope_close(c, s);
	if (cu_asks_index(c)) {
		c->nkernel--;
		return false;
	}
	map_close(c, w->vec, (count / w->vec + BLOCK - 1) / BLOCK);
	if (c->group >= 0 && c->gk->k.at[c->gk->k.n - 1].noff)
		flat_parts(c, w->vec, count);
	return true;
}

/* Threads over vectors. Where all vectors of a thread have the same place along the axis of neighbours, what lies along
 * it is loaded once, before the loop. */
static void
neighbours_emit(Cuda *c, const Out *out, int n, Way *w)
{
	const Type *t = out[0].type;
	uint32_t all = (1u << t->rank) - 1;
	Ix i = cu_fresh(c, 'i'), ext = cu_extent(c, t->axis[w->inner]), place = NULL, ix[MAX_RANK];

	if (BLOCK * w->vec % t->axis[w->inner].n == 0) {
		place = cu_ix_rem(c, cu_ix_mul(c, "(int)threadIdx.x", cu_ix_k(c, w->vec)), ext);
		cu_lanes_early(c, &w->lanes, NULL);
	}
	Scope s = cu_vectors_open(c, w->vec, i, cu_product(c, t, all));

	if (place) {
		Ix line = cu_ix_div(c, i, ext);

		vec_push(c->a, &c->joined, ((Joined){i, line, ext, place}));
	}
	cu_take_apart(c, t, all, i, ix);
	if (place && strcmp(ix[w->inner], place))
		w->lanes = (Lanes){0};
	vector_emit(c, out, n, w, ix, i);
	cu_scope_close(c, s);
}

/* A thread has `pixels` vectors along the rows of an image, of which the convolution's sums are made together. Returns
 * the vectors of such tiles. */
static int64_t
tiles_emit(Cuda *c, const Out *out, int n, Way *w)
{
	Type t = *out[0].type;
	int pixels = c->kernel.cuda_depthwise.pixels;
	uint32_t all = (1u << t.rank) - 1;
	int64_t across = t.axis[3].n;
	Ix i = cu_fresh(c, 'i'), ix[MAX_RANK];

	t.axis[3].n = (across + pixels - 1) / pixels;
	Scope s = cu_vectors_open(c, w->vec, i, cu_product(c, &t, all));

	cu_take_apart(c, &t, all, i, ix);
	Ix first = ix[3] = cu_ix_mul(c, ix[3], cu_ix_k(c, pixels));
	const char *sums = cu_depthwise_tile(c, w->tile->window, ix, w->vec, pixels);

	cu_line(c, "#pragma unroll");
	Scope q = cu_scope_open(c, "for (int q = 0; q < %d; q++)", pixels);

	ix[3] = cu_ix_add(c, first, "q");
	if (across % pixels)
		cu_line(c, "if (%s >= %lld) break;", ix[3], (long long)across);
	w->tile->name = arena_printf(c->a, "%s[q]", sums);
	w->tile->made = true;
	vector_emit(c, out, n, w, ix, cu_let(c, c->it, 'i', cu_element(c, out[0].type, ix)));
	cu_scope_close(c, q);
	cu_scope_close(c, s);
	return (cu_full_product(&t, all) + w->vec - 1) / w->vec;
}

void
cu_map_emit(Cuda *c, const Out *out, int n)
{
	const Type *t = out[0].type;
	uint32_t all = (1u << t->rank) - 1;
	Ix ix[MAX_RANK];
	Way w = {0};

	way_find(c, out, n, &w);
	if (w.flat && !w.tile && flat_emit(c, out, n, &w))
		return;
	w.flat = false;
	if (w.inner < 0 || t->axis[w.inner].mul || t->axis[w.inner].n % w.vec)
		w.vec = 1;
	cu_kernel_open(c, "copy");
	c->loose = true;
	if (w.tile && w.vec > 1) {
		map_close(c, w.vec, (tiles_emit(c, out, n, &w) + BLOCK - 1) / BLOCK);
		return;
	}
	if (w.vec == 1) {
		Scope s = cu_threads_open(c, t, all, ix);

		vector_emit(c, out, n, &w, ix, c->root_i);
		cu_scope_close(c, s);
	} else {
		neighbours_emit(c, out, n, &w);
	}
	int64_t blocks = (cu_blocks_of(t, all) + w.vec - 1) / w.vec;

	int64_t full = 8 * 2 * cu_machine(c->g)->budget.blocks; /* twice 8 blocks of a multiprocessor */

	map_close(c, w.vec, w.lanes.taken[0].n && blocks > full ? full : blocks);
}
