/* plans.c: the plans that run.c tries: layouts by chance, every op alone or all in one group; a part of run.c.
 *
 * In: a module whose ops stand alone.   Out: one whose groups have kernels and a workspace, whose values have places,
 * those inside of a group in registers. */

/* Is v a cast of what a composite op gives, or does a cast read it that a composite op gives? They lie alike. */
static bool
rounded_result(const Graph *g, Val v)
{
	for (uint32_t i = 0; i < g->op.n; i++) {
		const Op *op = &g->op.at[i], *from = op->kind == OP_cast ? val_op(g, op->in[0]) : NULL;

		if (from && op_has((OpKind)from->kind, T_COMPOSITE) && (op->in[0].id == v.id || op->out[0].id == v.id))
			return true;
	}
	return false;
}

/* Do the kernels of composite ops that read or make v take it as it lies? */
static bool
composites_take(const Graph *g, Val v)
{
	const Target *t = target_named(TEST_TARGET);

	if (rounded_result(g, v))
		return false;
	for (uint32_t i = 0; i < g->op.n; i++)
		for (int k = 0;
		     k < g->op.at[i].nin + g->op.at[i].nout && op_has((OpKind)g->op.at[i].kind, T_COMPOSITE | T_ALONE);
		     k++) {
			const Op *op = &g->op.at[i];

			if ((k < op->nin ? op->in[k] : op->out[k - op->nin]).id == v.id &&
			    !(t->layout.strided && t->layout.strided(t, g, op, k, val_type(g, v))))
				return false;
		}
	return true;
}

static void
permute_types(Graph *g, uint64_t *seed)
{
	for (uint32_t v = 1; v < g->val.n; v++) {
		Type *t = &g->val.at[v].type, plain = *t;
		int tries = 0;

		do {
			for (int i = t->rank; i-- > 1;) {
				int j = (int)(next_random(seed) % (uint64_t)(i + 1));
				uint8_t x = t->perm[i];

				t->perm[i] = t->perm[j];
				t->perm[j] = x;
			}
		} while (!composites_take(g, (Val){v}) && tries++ < 8);
		if (tries > 8)
			*t = plain;
	}
}

/* Would fuse make such a group around a register-blocked contraction? Before it elementwise ops that only it and the
 * group read (a prologue, hidden), but for the first operand itself where the kernel can store it; after it ops of its
 * space, reductions that its tiles can take, and small values: made of these, or copies that nobody else reads. */
static bool
gemm_group(const Graph *g, const Target *t, const uint32_t *inside, const uint32_t *uses, bool *hidden)
{
	uint32_t c = 0;
	bool *late = arena_array(g->arena, bool, g->val.n);

	Prologue first = {0};

	while (!op_has((OpKind)g->op.at[c].kind, T_CONTRACT))
		c++;
	if (t->prologue)
		t->prologue(t, g, &g->op.at[c], 0, &(SelectCx){.arch = g->module->arch}, &first);
	for (uint32_t i = 0; i < g->op.n; i++) {
		const Op *op = &g->op.at[i];
		bool whole = i >= c && type_same_shape(val_type(g, op->out[0]), val_type(g, g->op.at[c].out[0])),
		     waits = op_info[op->kind].red >= 0;

		for (int k = 0; k < op->nin; k++)
			waits |= late[op->in[k].id];
		for (int k = 0; k < op->nout; k++) {
			late[op->out[k].id] = waits;
			hidden[op->out[k].id] =
			        i < c ? !first.stores || op->out[k].id != g->op.at[c].in[0].id : !(whole || waits);
			if (hidden[op->out[k].id] && inside[op->out[k].id] != uses[op->out[k].id])
				return false;
		}
		if ((waits && (i < c || (whole && op_info[op->kind].red < 0))) ||
		    (i > c && op_info[op->kind].red >= 0 && t->may_fuse(t, g, &g->op.at[c], op)))
			return false;
	}
	return true;
}

/* A kernel that the group is to have, as from a tuning file; NULL: what select chooses. */
static const char *given_kernel;

/* --space: what Target.tuning.space says of the group, in its order. */
typedef struct Points { Arena *arena; int steps; VEC(const char *) text; } Points;
static Points *points;

static bool
space_point(void *cx, const char *kernel, BitsClass bits)
{
	Points *s = cx;

	(void)bits;
	vec_push(s->arena, &s->text, (const char *)arena_strdup(s->arena, kernel));
	return true;
}

/* Plans of a library are no kernels that could be launched here. */
static bool
may_all(void *cx, const char *variant)
{
	(void)cx;
	return strcmp(variant, "cudnn") != 0;
}

/* Without numbers of threads, which are nothing to what a kernel computes. */
static void
list_points(const Target *t, Graph *g, SelectCx *cx)
{
	cx->may = may_all;
	cx->steps = points->steps;
	cx->threads = 1;
	t->tuning.space(t, g, 0, cx, space_point, points);
}

/* All ops that the target lets share a kernel become one group; what only they use stays in registers, some of it by
 * chance. */
static bool
fuse_all(Module *m, const char *arch, uint64_t *seed)
{
	Graph *g = m->graph.at[0];
	const Target *t = target_named(TEST_TARGET);
	uint32_t *uses = graph_use_counts(g, m->arena), *inside = arena_array(m->arena, uint32_t, g->val.n);
	int64_t at = m->arena_bytes;

	int inner = 0;

	/* two contractions in one group would be computed one inside the other: fuse never asks for that */
	for (uint32_t i = 0; i < g->op.n; i++)
		inner += op_has((OpKind)g->op.at[i].kind, T_CONTRACT | T_WINDOW);
	/* one op alone is what runs before, but for a kernel that is asked for */
	if ((g->op.n < 2 && !given_kernel && !points) || g->op.n > 32 || inner > 1)
		return false;
	for (uint32_t i = 0; i < g->op.n; i++)
		if (g->op.at[i].group < 0 || t->may_fuse(t, g, NULL, &g->op.at[i]))
			return false;
	for (uint32_t i = 0; i < g->op.n; i++) {
		g->op.at[i].group = 0;
		for (int k = 0; k < g->op.at[i].nin; k++)
			inside[g->op.at[i].in[k].id]++;
	}
	g->group.n = 1;
	SelectCx cx = {.arch = arch, .tuned = given_kernel};

	if (t->select(t, g, 0, &cx))
		return false;
	if (points && t->tuning.space)
		list_points(t, g, &cx);
	/* values in other layouts may come number by number, where some tiles would keep registers in memory */
	if (given_kernel && cx.misfit && strcmp(g->group.at[0].kernel, "plain") && !strstr(cx.misfit, "singles=1") &&
	    (!getenv("CUDA_TEST_ARCH") || !strncmp(given_kernel, "wgmma", 5)))
		die("%s: %s: %s", m->name, given_kernel, cx.misfit);
	bool gemm = t->tuning.tunable && t->tuning.tunable(t, g->group.at[0].kernel) && graph_group_contraction(g, 0),
	     *hidden = arena_array(m->arena, bool, g->val.n);

	if (gemm && !gemm_group(g, t, inside, uses, hidden))
		return false;
	g->group.at[0].workspace_offset = at;
	m->arena_bytes = at + (g->group.at[0].workspace + 63) / 64 * 64 + 64;
	for (uint32_t v = 1; v < g->val.n; v++)
		if (g->val.at[v].op != UINT32_MAX && inside[v] == uses[v] && (hidden[v] || next_random(seed) % 4))
			g->val.at[v].offset = -1;
	return true;
}

/* A composite op, with casts of what it gives in its group, by the given kernel or the target's own. */
static bool
composite_given(Module *m, const char *arch)
{
	Graph *g = m->graph.at[0];
	const Target *t = target_named(TEST_TARGET);
	SelectCx cx = {.arch = arch, .tuned = given_kernel};
	uint32_t *uses = graph_use_counts(g, m->arena), *inside = arena_array(m->arena, uint32_t, g->val.n);

	for (uint32_t i = 1; i < g->op.n; i++) {
		g->op.at[i].group = 0;
		inside[g->op.at[i].in[0].id]++;
	}
	for (uint32_t v = 1; v < g->val.n; v++)
		if (inside[v] && inside[v] == uses[v])
			g->val.at[v].offset = -1;
	g->group.n = 1;
	if (t->select(t, g, 0, &cx) || cx.misfit)
		die("%s: %s: %s", m->name, given_kernel ? given_kernel : "its kernel",
		    cx.misfit ? cx.misfit : "refused");
	if (points && t->tuning.space)
		list_points(t, g, &cx);
	g->group.at[0].workspace_offset = m->arena_bytes;
	m->arena_bytes += (g->group.at[0].workspace + 63) / 64 * 64;
	return true;
}

/* Inputs become numbers that their types hold. */
static void
hold_inputs(const Graph *g, double **x)
{
	for (uint32_t k = 0; k < g->input.n; k++) {
		const Type *t = val_type(g, g->input.at[k].v);
		int64_t n = type_elements(t);
		uint8_t bytes[8];

		for (int64_t i = 0; i < n; i++) {
			element_write((DType)t->dtype, bytes, x[k][i]);
			x[k][i] = element_read((DType)t->dtype, bytes);
		}
	}
}
