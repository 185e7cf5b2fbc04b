/* inputs.c: examples that are read where the data set has them.
 *
 * In: a planned graph.   Out: which of its inputs hold addresses, one for each example, in place of the examples
 * themselves; and an element of such an input. So a batch need not be gathered before: whichever kernel reads pixels
 * first, to normalise, crop and reverse them on their way, takes them out of the data set by the order of the epoch. An
 * input is one of them if an element has one byte (whatever the distance of examples is, it is aligned), an example
 * more bytes than an address, and if all that reads it computes an element at a time. */
#include "../cuda.h"
#include <string.h>

enum { LEAST_BYTES = 64 };

/* Not a view outside groups, which is the same memory under another name, nor a kernel that knows an element by its
 * number in the tensor alone (totals.c). */
static bool
reads_elements(const Graph *g, const Op *op)
{
	OpKind k = (OpKind)op->kind;
	Params p = {0};

	if (op->group >= 0 && g->group.at[op->group].kernel)
		space_parse("cuda", NULL, g->group.at[op->group].kernel, &p);
	return op->group >= 0 && p.family != FAMILY_cuda_total && op_has(k, T_POINTWISE | T_VIEW | T_MOVE) &&
	       !(op_has(k, T_VIEW) && val_info(g, op->out[0])->offset == val_info(g, op->in[0])->offset);
}

static bool
is_addressed(const Module *m, const Graph *g, const Input *in)
{
	const Type *t = val_type(g, in->v);
	int64_t batch = t->rank ? t->axis[0].n : 0;
	bool read = false;

	if (in->kind != IN_DATA || val_info(g, in->v)->offset < 0 || dtype_info[t->dtype].bytes != 1 ||
	    batch != m->batch || t->perm[0] != 0 || type_bytes(t) / batch < LEAST_BYTES)
		return false;
	for (int i = 1; i < t->rank; i++)
		if (t->axis[i].mul)
			return false;
	for (uint32_t i = 0; i < g->result.n; i++)
		if (g->result.at[i].v.id == in->v.id)
			return false;
	for (uint32_t i = 0; i < g->op.n; i++) {
		const Op *op = &g->op.at[i];

		for (int k = 0; k < op->nin && !op->dead; k++) {
			if (op->in[k].id != in->v.id)
				continue;
			if (!reads_elements(g, op))
				return false;
			read = true;
		}
	}
	return read;
}

void
cu_inputs_find(const Module *m, GraphKernels *gk)
{
	const Graph *g = gk->g;

	/* what is inferred comes from the host, a batch at a time */
	for (uint32_t i = 0; i < g->input.n && i < 32 && strcmp(g->name, "infer"); i++)
		if (is_addressed(m, g, &g->input.at[i]))
			gk->addressed |= 1u << i;
}

bool
cu_input_is_addressed(const Cuda *c, Val v)
{
	for (uint32_t i = 0; i < c->g->input.n && i < 32; i++)
		if (c->g->input.at[i].v.id == v.id)
			return c->gk->addressed >> i & 1;
	return false;
}

Cell
cu_input_at(Cuda *c, Val v, const Ix *ix)
{
	const Type *t = val_type(c->g, v);
	DType dt = (DType)t->dtype;
	Type example = type_of(dt, t->rank - 1, t->axis + 1);
	const char *type = arena_printf(c->a, "%s *const", cu_memory_type(dt));
	const char *from = cu_let(c, type, 'r',
	                          arena_printf(c->a, "(const %s *)%s[%s]", cu_memory_type(dt),
	                                       cu_pointer(c, DT_i64, val_info(c->g, v)->offset), ix[0]));

	for (int i = 1; i < t->rank; i++)
		example.perm[i - 1] = (uint8_t)(t->perm[i] - 1);
	return cu_cell_let(
	        c, cu_from_memory(c, dt, arena_printf(c->a, "%s[%s]", from, cu_element(c, &example, ix + 1))), dt);
}
