/* dispatch.c: a group of one contraction into kernels, by the algorithm that its text names.
 *
 * In: a group with a kernel's text, which may be anybody's.   Out: kernels, or Compile.error where the text does not
 * fit. */
#include "algo.h"
#include <string.h>

/* Is there room, and what is kept made of what never changes? */
static bool
memory_fits(GroupCx *gc, const Op *op, const GemmParams *p)
{
	const Group *group = &gc->g->group.at[gc->group];

	if (gemm_group_workspace(gc->g, gc->group, op, p) > group->workspace)
		return false;
	return !group->prepacked || (gemm_prepacks(gc->g, op, p) && gemm_panels(gc->g, op, p) <= group->prepacked
	                        && steady_for(gc->g, gc->c->steady, op->in[1], gc->group));
}

void
gemm_emit(GroupCx *gc, const Op *op, GraphKernels *gk)
{
	const Group *group = &gc->g->group.at[gc->group];
	PlanCx cx = {.arch = gc->c->l.arch, .half = gemm_half(gc->g, op)};
	GemmParams p;
	int operand[2];

	if (!gemm_parse(group->kernel, &p))
		bug("kernel parameters `%s` of %s", group->kernel, group->name);
	/* text may be anybody's */
	if (strcmp(gemm_text(gc->tmp, &p), group->kernel) || gemm_why_not(gc->g, op, &cx, &p) ||
	    !memory_fits(gc, op, &p)) {
		gc->c->error = arena_printf(
		        gc->c->arena, "group %s: %s computes no %s of this shape in %lld bytes of workspace",
		        group->name, group->kernel, op_info[op->kind].name, (long long)group->workspace);
		return;
	}
	p.chains = gemm_chains(gc->g, op, &p, gc->c->l.arch->vector_bytes);
	scratch_check(gc, gemm_scratch(gc->g, op, &p));
	gemm_operands(gc, op, &p, operand, gk);
	p.algo->emit(gc, op, &p, operand[0], operand[1], gk);
}
