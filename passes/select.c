/* select.c: gives each group its kernel: family and parameters as one printable text, and the workspace it needs.
 *
 * In: a scheduled graph.   Out: Group.kernel, Group.workspace; stage selected. The target decides; the tuner will write the
 * same texts. A group that the target cannot compile is a defect of fuse (it must have asked may_fuse), hence bug(). */
#include "pass.h"

bool
pass_select(Graph *g, PassCtx *cx)
{
	for (uint32_t i = 0; i < g->group.n; i++) {
		const char *error = cx->target->select(cx->target, g, (int)i, cx->arch);

		if (error)
			bug("select: group %s of graph %s: %s", g->group.at[i].name, g->name, error);
	}
	return g->group.n > 0;
}
