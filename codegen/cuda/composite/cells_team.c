/* cells_team.c: what the kernels of a team of blocks have in common, whichever way they hold W_hh (cells_held.c,
 * cells_mma.c): what a thread does of its own example and unit before and after a step's sums.
 *
 * In: a group of one of the ops of cells.c, within a kernel that has declared `mine` (the thread has an example and a
 * unit), h_own, c_own, in.._.. and backward `earlier`, gate0 ..   Out: lines of that kernel. */
#include "cells.h"

void
cu_team_step(const Cells *s)
{
	cu_line(s->c, "const int t = %s;",
	        s->reverse ? arena_printf(s->c->a, "%lld - step", (long long)s->t - 1) : "step");
}

Scope
cu_team_rows(const Cells *s)
{
	const char *it = s->c->it;

	return cu_scope_open(s->c, "for (%s first = (%s)team * %d; first < n_rows; first += (%s)gridDim.x / %d * %d)",
	                     it, it, s->rows, it, s->blocks, s->rows);
}

void
cu_team_close(const Cells *s, Scope rows, const char *what)
{
	Cuda *c = s->c;

	cu_line(c, "__syncthreads();");
	cu_scope_close(c, rows);
	cu_line(c, "__syncthreads();");
	cu_line(c, "if (tid == 0) tags[blockIdx.x] = tag - 1;");
	cu_kernel_close(c, what, (s->n.n + s->rows - 1) / s->rows * s->blocks);
}

/* The word that a block takes first of so many: each another, so that not all of a team ask one place of the L2. */
const char *
cu_team_first(const Cells *s, long long words)
{
	return arena_printf(s->c->a, "member * %lld", words / s->blocks / 2 * 2);
}

void
cu_team_inputs(const Cells *s, const char *step, const char *when)
{
	Cuda *c = s->c;
	CellInput in[8];
	int n = cu_cells_inputs(s, in);
	Scope o = cu_scope_open(c, "if (mine%s)", when), i;

	cu_line(c, "const int next = %s;", step);
	i = cu_scope_open(c, "%s", "");
	cu_line(c, "const int step = next, t = %s;",
	        s->reverse ? arena_printf(c->a, "%lld - next", (long long)s->t - 1) : "next");
	for (int k = 0; k < n; k++)
		cu_line(c, "in%d_%d = %s;", in[k].operand, in[k].block,
		        cu_cells_value(s, arena_printf(c->a, "%s[%s]", cu_cells_pointer(s, s->op->in[in[k].operand]),
		                                       cu_cells_place(s, "t", in[k].blocks, in[k].block))));
	if (s->back)
		cu_line(c, "earlier = %s;", s->lstm ? cu_cells_before(s, 4, 6) : cu_cells_before(s, 3, 5));
	else
		cu_line(c, "(void)step;");
	cu_scope_close(c, i);
	cu_scope_close(c, o);
}

void
cu_team_biases(const Cells *s)
{
	Cuda *c = s->c;

	for (int k = 0; k < 3; k++)
		cu_line(c, "const float bias%d = exists ? %s : 0.0f;", k,
		        cu_cells_value(s, arena_printf(c->a, "%s[%lld + j]", cu_cells_pointer(s, s->op->in[2]),
		                                       (long long)(k * s->h))));
}

static const char *
state(const Cells *s, int operand)
{
	return cu_cells_value(s, arena_printf(s->c->a, "%s[%s]", cu_cells_pointer(s, s->op->in[operand]),
	                                      cu_cells_place(s, NULL, 0, 0)));
}

void
cu_team_states_load(const Cells *s)
{
	cu_line(s->c, "h_own = %s;", state(s, s->back ? 1 : s->lstm ? 2 : 3));
	if (s->lstm)
		cu_line(s->c, "c_own = %s;", state(s, s->back ? 2 : 3));
}

int
cu_team_states(const Cells *s)
{
	int out = s->back ? s->lstm ? 1 : 2 : s->lstm ? 3 : 2;

	return cu_cells_wanted(s, out) || (s->lstm && cu_cells_wanted(s, out + 1)) ? out : -1;
}

void
cu_team_states_put(const Cells *s)
{
	int out = cu_team_states(s);
	Scope m = cu_scope_open(s->c, "if (mine)");

	cu_cells_put(s, out, cu_cells_place(s, NULL, 0, 0), (Cell){"h_own", DT_f32});
	if (s->lstm)
		cu_cells_put(s, out + 1, cu_cells_place(s, NULL, 0, 0), (Cell){"c_own", DT_f32});
	cu_scope_close(s->c, m);
}

void
cu_team_unit(const Cells *s)
{
	Cuda *c = s->c;
	Scope m = cu_scope_open(c, "if (mine)");

	if (s->has_length)
		cu_line(c, "const bool live = %s;", cu_cells_alive(s, "t"));
	Cell x = cu_cells_unit(s), none = cu_cell_number(c, DT_f32, 0);

	x = cu_cell_let(c, x.v, DT_f32);
	cu_line(c, "h_own = %s;", s->has_length ? arena_printf(c->a, "live ? %s : h_own", x.v) : x.v);
	cu_cells_put(s, 0, cu_cells_place(s, "t", 1, 0),
	             s->has_length ? cu_cell_let(c, arena_printf(c->a, "live ? %s : %s", x.v, none.v), DT_f32) : x);
	cu_scope_close(c, m);
}

void
cu_team_back(const Cells *s)
{
	Cuda *c = s->c;
	Scope m = cu_scope_open(c, "if (mine)"), in;

	if (s->has_length) {
		in = cu_scope_open(c, "if (%s)", cu_cells_alive(s, "t"));
		cu_cells_back(s);
		cu_scope_close(c, in);
		in = cu_scope_open(c, "else");
		for (int g = 0; g < s->gates; g++)
			for (int o = 0; o < (s->lstm ? 1 : 2); o++)
				cu_cells_put(s, o, cu_cells_place(s, "t", s->gates, g), cu_cell_number(c, DT_f32, 0));
		cu_scope_close(c, in);
	} else {
		cu_cells_back(s);
	}
	cu_scope_close(c, m);
}
