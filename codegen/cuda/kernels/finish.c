/* finish.c: sums over blocks, finished by the block that comes last.
 *
 * In: a tile's sums in registers (one part of k of several), or what its reductions left in the workspace, a number for
 * each column and tile.   Out: text that adds them, and evaluates what the group makes of complete reductions.
 * Blocks count themselves by tickets, which are the kernel's own and 0 between launches; whoever draws the last ticket
 * of a place does the rest there, so no block ever waits. Many parts are added in two levels: sets of neighbours first,
 * each by its own last block, then the sets. What is added in which order depends on shape and n alone, not on who
 * comes last. */
#include "../contract/gemm.h"
#include "red.h"

typedef struct Levels { int64_t members, sets; } Levels; /* of a set; sets == 1: all at once */

static Levels
levels_of(int64_t count, int64_t members)
{
	return (Levels){members, members ? (count + members - 1) / members : 1};
}

/* Columns side by side for which the block's threads add up what blocks left. */
static int
side_of(const Tiles *p)
{
	int side = 1;

	while (side < p->n)
		side *= 2;
	return side;
}

/* Rows that each thread has of `rows`, if so few that all of them are loaded at once; 0: more. */
static int64_t
few_of(const Tiles *p, int64_t rows)
{
	enum { FEW = 16 };
	int64_t strips = cu_gemm_threads(p) / side_of(p), each = strips ? (rows + strips - 1) / strips : FEW + 1;

	return each <= FEW ? each : 0;
}

/* Of what reductions left, a row for each tile. */
static Levels
levels_of_states(const Tiles *p, int64_t tiles)
{
	return levels_of(tiles, few_of(p, tiles) ? tiles : cu_parts_at_once(tiles));
}

static int64_t
tickets_of(const Levels *l)
{
	return l->sets > 1 ? l->sets + 1 : 1;
}

static Ix
linear(Cuda *c, Ix outer, Ix ext, Ix inner)
{
	return cu_ix_add(c, cu_ix_mul(c, outer, ext), inner);
}

/* Members of set `set` of `count`. */
static Ix
members_of(Cuda *c, const Levels *l, Ix set, Ix count)
{
	const char *n = cu_fresh(c, 'i');
	Ix rest = cu_ix_sub(c, count, cu_ix_mul(c, set, cu_ix_k(c, l->members)));

	cu_line(c, "const %s %s = %s < %lld ? %s : %lld;", c->it, n, rest, (long long)l->members, rest,
	        (long long)l->members);
	return n;
}

/* ---------------------------------------------------------------- parts of k */
int64_t
cu_parts_bytes(const Form *f, const Tiles *p)
{
	return p->split > 1 ? p->split * cu_gemm_tiles(f, p) * p->m * p->n * 4 : 0;
}

/* The thread's sums one after the other, with those of the other threads beside them: `mma` names what is done with
 * four, `one` with one. */
static void
each_sum(Gemm *x, const char *mma, const char *one)
{
	Cuda *c = x->c;
	const Tiles *p = &x->p;
	int rows = p->mma ? p->m / p->wm / 16 : p->m / 16, columns = p->mma ? p->n / p->wn / 8 : p->n / 16;

	cu_line(c, "#pragma unroll");
	cu_line(c, "for (int i = 0; i < %d; i++)", rows);
	cu_line(c, "\t#pragma unroll");
	cu_line(c, "\tfor (int j = 0; j < %d; j++)", columns);
	if (p->mma)
		cu_line(c, "\t\t%s(&at[((i * %d + j) * %d + tid) * 4], acc[i][j]);", mma, columns, x->threads);
	else
		cu_line(c, "\t\t%s(&at[(i * %d + j) * %d + tid], &acc[i][j]);", one, columns, x->threads);
}

static void
put_sums(Gemm *x, Ix slot)
{
	Cuda *c = x->c;
	Scope s = cu_scope_open(c, "%s", "");

	cu_line(c, "float *const at = &%s[%s];", cu_pointer(c, DT_f32, c->g->group.at[c->group].workspace_offset),
	        slot);
	each_sum(x, "write4", "write1");
	cu_scope_close(c, s);
}

/* How many fours of slots are on their way at a time: in registers that the sums leave free. Enough of them fill the
 * way from L2; one after the other, each would be waited for. */
static int
fours_under_way(const Gemm *x, int fours)
{
	enum { MOST = 16, OTHERS = 24 };
	int room = ((cu_gemm_shares(x) ? 128 : 255) - OTHERS - 4 * fours) / 4;

	return room < 4 ? 4 : room < MOST ? room : MOST;
}

/* The same by matrix instructions: runs of a thread's fours, of several slots at a time. Beyond the last slot zeros are
 * added, which change no sum that began as 0. */
static void
add_fours(Gemm *x, int fours, int columns, Ix step, Ix count)
{
	Cuda *c = x->c;
	int most = fours_under_way(x, fours), run = most < fours ? most : fours;

	while (fours % run)
		run--;
	int ahead = most / run;

	cu_line(c, "#pragma unroll");
	Scope runs = cu_scope_open(c, "for (int begin = 0; begin < %d; begin += %d)", fours, run);

	cu_line(c, "#pragma unroll 1");
	Scope s = cu_scope_open(c, "for (%s q = 0; q < %s; q += %d)", c->it, count, ahead);

	cu_line(c, "float4 y[%d];", ahead * run);
	cu_line(c, "#pragma unroll");
	cu_line(c, "for (int i = 0; i < %d; i++)", ahead * run);
	cu_line(c,
	        "\ty[i] = read4_fresh(&slots[(q + i / %d) * %s + ((begin + i %% %d) * %d + tid) * 4], "
	        "q + i / %d < %s);",
	        run, step, run, x->threads, run, count);
	cu_line(c, "#pragma unroll");
	cu_line(c, "for (int i = 0; i < %d; i++)", ahead * run);
	cu_line(c, "\tadd4(acc[(begin + i %% %d) / %d][(begin + i %% %d) %% %d], y[i]);", run, columns, run, columns);
	cu_scope_close(c, s);
	cu_scope_close(c, runs);
}

/* acc = the sums of `count` slots from `first` on, `step` apart. */
static void
add_slots(Gemm *x, Ix first, Ix step, Ix count)
{
	Cuda *c = x->c;
	const Tiles *p = &x->p;
	int rows = p->mma ? p->m / p->wm / 16 : p->m / 16, columns = p->mma ? p->n / p->wn / 8 : p->n / 16;

	cu_line(c, "#pragma unroll");
	cu_line(c, "for (int i = 0; i < %d; i++)", rows * columns * (p->mma ? 4 : 1));
	if (p->mma)
		cu_line(c, "\tacc[i / %d][i / 4 %% %d][i %% 4] = 0;", 4 * columns, columns);
	else
		cu_line(c, "\tacc[i / %d][i %% %d] = 0;", columns, columns);
	Scope s = cu_scope_open(c, "%s", "");

	cu_line(c, "const float *const slots = &%s[%s];",
	        cu_pointer(c, DT_f32, c->g->group.at[c->group].workspace_offset), first);
	if (p->mma) {
		add_fours(x, rows * columns, columns, step, count);
	} else {
		Scope each = cu_scope_open(c, "for (%s q = 0; q < %s; q++)", c->it, count);

		cu_line(c, "const float *const at = &slots[q * %s];", step);
		each_sum(x, NULL, "add1_fresh");
		cu_scope_close(c, each);
	}
	cu_scope_close(c, s);
}

void
cu_parts_join(Gemm *x)
{
	Cuda *c = x->c;
	const Tiles *p = &x->p;
	Levels l = levels_of(p->split, cu_parts_members(p->split, (int64_t)p->m * p->n));
	int64_t tiles = cu_gemm_tiles(&x->f, p), size = (int64_t)p->m * p->n;
	Ix number = linear(c, linear(c, x->number_b, x->row_tiles, x->tile_m), x->col_tiles, x->tile_n);
	Ix ticket = cu_ix_mul(c, number, cu_ix_k(c, tickets_of(&l))),
	   set = cu_ix_div(c, x->part, cu_ix_k(c, l.members));
	Ix mine = cu_ix_mul(c, linear(c, x->part, cu_ix_k(c, tiles), number), cu_ix_k(c, size));
	Ix first = cu_ix_mul(c, linear(c, cu_ix_mul(c, set, cu_ix_k(c, l.members)), cu_ix_k(c, tiles), number),
	                     cu_ix_k(c, size));
	Ix count = l.sets > 1 ? members_of(c, &l, set, cu_ix_k(c, p->split)) : cu_ix_k(c, p->split);

	cu_line(c, "static unsigned part_tickets[%lld];", (long long)(tiles * tickets_of(&l)));
	if (l.sets == 1) {
		put_sums(x, mine);
		cu_line(c, "if (!last_here(&part_tickets[%s], %s)) continue;", ticket, count);
		add_slots(x, first, cu_ix_k(c, tiles * size), count);
		return;
	}
	/* the same text for both levels: to compile it twice takes longer than to loop */
	cu_line(c, "bool last = true;");
	cu_line(c, "#pragma unroll 1");
	Scope s = cu_scope_open(c, "for (int level = 0; level < 2 && last; level++)");

	put_sums(x, arena_printf(c->a, "level ? %s : %s", first, mine));
	cu_line(c, "last = last_here(&part_tickets[%s + (level ? %lld : %s)], level ? %lld : %s);", ticket,
	        (long long)l.sets, set, (long long)l.sets, count);
	Scope in = cu_scope_open(c, "if (last)");

	add_slots(x, arena_printf(c->a, "(level ? %s : %s)", cu_ix_mul(c, number, cu_ix_k(c, size)), first),
	          arena_printf(c->a, "(level ? %lld : %lld)", (long long)(l.members * tiles * size),
	                       (long long)(tiles * size)),
	          arena_printf(c->a, "(level ? %lld : %s)", (long long)l.sets, count));
	cu_scope_close(c, in);
	cu_scope_close(c, s);
	cu_line(c, "if (!last) continue;");
}

/* ---------------------------------------------------------------- reductions by column */
/* Of a full batch: columns that the reductions keep, tiles of each. A group of channels has columns of its own. */
static int64_t
columns_kept(const Form *f)
{
	return (f->groups > 1 ? cu_form_count(f->b, f->nb) : 1) * cu_form_count(f->n, f->nn);
}

static int64_t
tiles_kept(const Form *f, const Tiles *p)
{
	return (f->groups > 1 ? 1 : cu_form_count(f->b, f->nb)) * cu_tiles_along(cu_form_count(f->m, f->nm), p->m);
}

/* Floats of one state: a row for each tile, then one for each set of them. A tile's count follows from its number: only
 * sets have one in memory. */
static int64_t
state_floats(const Form *f, const Tiles *p, bool count)
{
	Levels l = levels_of_states(p, tiles_kept(f, p));
	int64_t sets = l.sets > 1 ? l.sets : 0;

	return (count ? sets : tiles_kept(f, p) + sets) * columns_kept(f);
}

static int64_t
state_bytes(const Form *f, const Tiles *p, const Op *red)
{
	return 4 * (red->nout > 1 ? 2 * state_floats(f, p, false) + state_floats(f, p, true)
	                                    : state_floats(f, p, false));
}

int64_t
cu_states_bytes(const Graph *g, int group, const Form *f, const Tiles *p)
{
	int64_t bytes = 0;

	for (uint32_t last, i = graph_group_ops(g, group, &last); i < last; i++)
		if (!g->op.at[i].dead && g->op.at[i].group == group && op_info[g->op.at[i].kind].red >= 0)
			bytes += state_bytes(f, p, &g->op.at[i]);
	return bytes;
}

int64_t
cu_state_offset(const Gemm *x, int k, int s)
{
	const Graph *g = x->c->g;
	int64_t at = g->group.at[x->c->group].workspace_offset + (x->op ? cu_parts_bytes(&x->f, &x->p) : 0);

	for (uint32_t i = x->c->first; i < x->c->last; i++) {
		const Op *op = &g->op.at[i];

		if (op->dead || op_info[op->kind].red < 0)
			continue;
		if (k-- == 0)
			return at + s * 4 * state_floats(&x->f, &x->p, false);
		at += state_bytes(&x->f, &x->p, op);
	}
	bug("no reduction %d", k);
}

static Ix
kept_column(const Gemm *x, Ix n)
{
	return x->f.groups > 1 ? linear(x->c, x->b[0], cu_ix_k(x->c, x->f.n[0].n), n) : n;
}

static Ix
kept_tile(const Gemm *x)
{
	return x->f.groups > 1 ? x->tile_m : linear(x->c, x->number_b, x->row_tiles, x->tile_m);
}

Ix
cu_state_place(Gemm *x, Ix column)
{
	return linear(x->c, kept_tile(x), cu_ix_k(x->c, columns_kept(&x->f)), kept_column(x, column));
}

/* Of a value that has one element for each column, its indices; false: it is no such value. */
static bool
kept_index(const Gemm *x, const Type *t, Ix column, Ix *ix)
{
	Axis a = x->space->axis[x->column];
	int found = 0;

	for (int i = 0; i < t->rank; i++) {
		bool one = t->axis[i].n == 1 && !t->axis[i].mul;

		ix[i] = one ? "0" : column;
		found += !one;
		if (!one && !axis_same(t->axis[i], a))
			return false;
	}
	return found == (a.n != 1 || a.mul);
}

static void
put_result(Gemm *x, const Op *red, int k, Ix column, const char *value)
{
	Cuda *c = x->c;
	const Type *t = val_type(c->g, red->out[k]);
	Ix ix[MAX_RANK];

	if (!kept_index(x, t, column, ix))
		bug("%s keeps another shape than a contraction's columns", op_info[red->kind].name);
	cu_memo_put(c, red->out[k], ix,
	            cu_cell_let(c, cu_cell_cast(c, (Cell){value, DT_f32}, (DType)t->dtype).v, (DType)t->dtype));
}

/* What a thread holds of its column of rows [first, first + rows), of tiles or of sets: a sum, or mean, squares about
 * it and count. */
typedef struct Column { const char *v[3]; } Column;
/* Rows of what reductions left: of tiles, or of sets of them; how many elements each has, and all of them. */
typedef struct Left { Ix first, rows; int64_t most; bool sets; Ix size, all; } Left;

static Ix
left_at(Gemm *x, const Left *l)
{
	return linear(x->c, l->first, cu_ix_k(x->c, columns_kept(&x->f)), kept_column(x, x->n0));
}

static Ix
width_of(Gemm *x)
{
	Cuda *c = x->c;
	Ix width = cu_ix_sub(c, x->N, x->n0);

	if (side_of(&x->p) > x->p.n)
		width = arena_printf(c->a, "(int)(%s < %d ? %s : %d)", width, x->p.n, width, x->p.n);
	return width;
}

static Column
add_rows(Gemm *x, const Op *red, int k, const Left *l)
{
	Cuda *c = x->c;
	int64_t pitch = columns_kept(&x->f);
	Ix at = left_at(x, l), width = width_of(x);
	const char *from = arena_printf(c->a, "&%s[%s]", cu_pointer(c, DT_f32, cu_state_offset(x, k, 0)), at);
	Column r = {{cu_fresh(c, 'v')}};
	int side = side_of(&x->p);

	if (red->nout == 1) {
		cu_line(c, "const float %s = rows_sum(%s, %lld, %s, %d, %s, hidden(sums));", r.v[0], from,
		        (long long)pitch, l->rows, side, width);
		return r;
	}
	r.v[1] = cu_fresh(c, 'v');
	r.v[2] = cu_fresh(c, 'v');
	cu_line(c, "float %s, %s, %s;", r.v[0], r.v[1], r.v[2]);
	cu_line(c, "const Tiling %s_rows = {(int)%s, (int)%s, %d, (int)%s};", r.v[0], l->sets ? "0" : l->first,
	        x->row_tiles, x->p.m, x->M);
	cu_line(c, "rows_moments(&%s, &%s, &%s, %s, &%s[%s], %s, %s_rows, %lld, %s, %d, %s, hidden(sums));", r.v[0],
	        r.v[1], r.v[2], from, cu_pointer(c, DT_f32, cu_state_offset(x, k, 1)), at,
	        l->sets ? arena_printf(c->a, "&%s[%s]", cu_pointer(c, DT_f32, cu_state_offset(x, k, 2)),
	                               kept_column(x, x->n0))
	                : "0",
	        r.v[0], (long long)pitch, l->rows, side, width);
	return r;
}

/* May all that is left be on its way at once, in registers, and be joined in shared memory beside each other? A tile's
 * elements follow from its number where tiles of one column follow each other. */
static bool
few_fit(const Gemm *x, const Op *const *red, int nred, int64_t most)
{
	enum { LOADED = 64, JOINED = 24 };
	int64_t each = few_of(&x->p, most), numbers = 0;

	for (int k = 0; k < nred; k++) {
		numbers += red[k]->nout > 1 ? 2 : 1;
		if (red[k]->nout > 1 && x->f.groups == 1 && strcmp(x->blocks_b, "1") != 0)
			return false;
	}
	return each && numbers * each <= LOADED && numbers <= JOINED;
}

/* The same of all reductions: all loads, then their sums, then one exchange between threads. */
static void
add_few(Gemm *x, const Op *const *red, int nred, const Left *l, Column *v)
{
	Cuda *c = x->c;
	int64_t pitch = columns_kept(&x->f), each = few_of(&x->p, l->most);
	Ix at = left_at(x, l), width = width_of(x);
	int side = side_of(&x->p), number = 0;
	const char *rows = arena_printf(c->a, "%s, %lld, %d, %d", l->rows, (long long)each, side, x->threads);

	for (int k = 0; k < nred; k++) {
		const char *from[2];

		for (int i = 0; i < (red[k]->nout > 1 ? 2 : 1); i++) {
			from[i] = arena_printf(c->a, "&%s[%s]", cu_pointer(c, DT_f32, cu_state_offset(x, k, i)), at);
			v[k].v[i] = cu_fresh(c, 'v');
			cu_line(c, "float %s, %s_of[%lld];", v[k].v[i], v[k].v[i], (long long)each);
			cu_line(c, "few_rows(%s_of, %s, %lld, %s, %s);", v[k].v[i], from[i], (long long)pitch, rows,
			        width);
		}
		if (red[k]->nout > 1) {
			v[k].v[2] = arena_printf(c->a, "(float)(%s)", l->all);
			cu_line(c, "const float %s_about = tid %% %d < %s ? fresh(%s + tid %% %d) : 0.0f;", v[k].v[0],
			        side, width, from[0], side);
		}
	}
	for (int k = 0; k < nred; k++) {
		const char *const *s = v[k].v;

		if (red[k]->nout == 1)
			cu_line(c, "%s = few_sum(%s_of, %lld);", s[0], s[0], (long long)each);
		else
			cu_line(c, "few_moments(&%s, &%s, %s_of, %s_of, %s_about, %s, %s, %s);", s[0], s[1], s[0], s[1],
			        s[0], l->size, l->all, rows);
		for (int i = 0; i < (red[k]->nout > 1 ? 2 : 1) && side < x->threads; i++)
			cu_line(c, "sums[%d + tid] = %s;", number++ * x->threads, s[i]);
	}
	if (number)
		cu_line(c, "__syncthreads();");
	for (int k = 0, i = 0; k < nred; k++) {
		const char *const *s = v[k].v;

		for (int j = 0; j < (red[k]->nout > 1 ? 2 : 1) && number; j++)
			cu_line(c, "%s = few_join(&sums[%d], %d, %d);", s[j], i++ * x->threads, side, x->threads);
		if (red[k]->nout > 1)
			cu_line(c, "moments_about(&%s, &%s, %s_about, %s, %s, %s);", s[0], s[1], s[0], s[0], s[1],
			        s[2]);
	}
}

static void
add_left(Gemm *x, const Op *const *red, int nred, const Left *l, Column *v)
{
	if (few_fit(x, red, nred, l->most)) {
		add_few(x, red, nred, l, v);
		return;
	}
	for (int k = 0; k < nred; k++)
		v[k] = add_rows(x, red[k], k, l);
}

/* Numbers of a column that what follows the reductions reads in memory: loaded before the block asks whether it is the
 * last, and known from then on. */
static void
load_late(Gemm *x, Val v, Ix column)
{
	Cuda *c = x->c;
	const Type *t = val_type(c->g, v);
	Ix ix[MAX_RANK];
	Cell known;

	if (c->inside[v.id] && !c->ready[v.id]) {
		const Op *op = val_op(c->g, v);

		for (int k = 0; k < op->nin && op_info[op->kind].red < 0 && op != x->op; k++)
			load_late(x, op->in[k], column);
		return;
	}
	if (t->dtype != DT_f32 || cu_input_is_addressed(c, v) || !kept_index(x, t, column, ix) ||
	    cu_memo_find(c, v, ix, t->rank, &known))
		return;
	const char *name = cu_fresh(c, 'v');

	cu_line(c, "float %s = 0.0f;", name);
	Scope s = cu_scope_open(c, "if (tid < %d && %s < %s)", x->p.n, cu_ix_add(c, x->n0, "tid"), x->N);

	cu_line(c, "%s = %s;", name, cu_value_at(c, v, ix).v);
	cu_scope_close(c, s);
	cu_memo_put(c, v, ix, (Cell){name, DT_f32});
}

/* Is this output made of the reductions, column by column? */
static bool
is_late(const Gemm *x, Val v, Ix column, Ix *ix)
{
	return cu_value_is_out(x->c, v) && !x->c->ready[v.id] && kept_index(x, val_type(x->c->g, v), column, ix);
}

static void
late_loads(Gemm *x, Ix column)
{
	const Cuda *c = x->c;
	Ix ix[MAX_RANK];

	for (uint32_t i = c->first; i < c->last; i++)
		for (int k = 0; k < c->g->op.at[i].nout && !c->g->op.at[i].dead; k++)
			if (is_late(x, c->g->op.at[i].out[k], column, ix))
				load_late(x, c->g->op.at[i].out[k], column);
}

static void
store_late(Gemm *x, Ix column)
{
	Cuda *c = x->c;

	for (uint32_t i = c->first; i < c->last; i++) {
		const Op *op = &c->g->op.at[i];

		for (int k = 0; k < op->nout && !op->dead; k++) {
			const ValInfo *v = val_info(c->g, op->out[k]);
			Ix ix[MAX_RANK];

			if (!is_late(x, op->out[k], column, ix))
				continue;
			cu_store_at(c, &v->type, v->offset, ix, cu_value_at(c, op->out[k], ix));
		}
	}
	for (uint32_t i = c->first; i < c->last; i++)
		for (int k = 0; k < c->g->op.at[i].nout && !c->g->op.at[i].dead; k++) {
			Ix ix[MAX_RANK];

			if (cu_value_is_out(c, c->g->op.at[i].out[k]) &&
			    kept_index(x, val_type(c->g, c->g->op.at[i].out[k]), column, ix))
				c->ready[c->g->op.at[i].out[k].id] = true;
		}
}

void
cu_columns_finish(Gemm *x, const Op *const *red, int nred)
{
	Cuda *c = x->c;
	const Form *f = &x->f;
	const Type *o = x->space;
	uint32_t keep = 1u << x->column;
	int64_t all = tiles_kept(f, &x->p), across = cu_tiles_along(cu_form_count(f->n, f->nn), x->p.n) *
	                                             (f->groups > 1 ? cu_form_count(f->b, f->nb) : 1);
	Levels l = levels_of_states(&x->p, all);
	Ix tiles = f->groups > 1 ? x->row_tiles : cu_ix_mul(c, x->blocks_b, x->row_tiles),
	   count = cu_product(c, o, ((1u << o->rank) - 1) & ~keep);
	Ix ticket = cu_ix_mul(c, f->groups > 1 ? linear(c, x->number_b, x->col_tiles, x->tile_n) : x->tile_n,
	                      cu_ix_k(c, tickets_of(&l)));
	Ix set = l.sets > 1 ? cu_ix_div(c, kept_tile(x), cu_ix_k(c, l.members)) : "0",
	   first = cu_ix_mul(c, set, cu_ix_k(c, l.members));
	Ix rows = l.sets > 1 ? members_of(c, &l, set, tiles) : tiles,
	   column = kept_column(x, cu_ix_add(c, x->n0, "tid"));
	Column *v = arena_array(c->a, Column, nred);
	Scope inner = {0};

	/* elements of a set before the last, and of this one */
	Ix each = cu_ix_k(c, l.members * x->p.m), here = x->M;

	if (l.sets > 1) {
		Ix rest = cu_ix_sub(c, x->M, cu_ix_mul(c, set, each));

		here = arena_printf(c->a, "(%s < %s ? %s : %s)", rest, each, rest, each);
	}
	cu_line(c, "static unsigned column_tickets[%lld];", (long long)(across * tickets_of(&l)));
	late_loads(x, column);
	Scope outer = cu_scope_open(c, "if (last_here(&column_tickets[%s], %s))", cu_ix_add(c, ticket, set), rows);

	Left left = {first, rows, l.sets > 1 ? l.members : all, false, cu_ix_k(c, x->p.m), here};

	add_left(x, red, nred, &left, v);
	if (l.sets > 1) {
		/* of a state, of the counts */
		Ix row[2] = {cu_ix_add(c, cu_ix_k(c, all), set), set}, pitch = cu_ix_k(c, columns_kept(f));
		Scope s = cu_scope_open(c, "if (tid < %d && %s < %s)", x->p.n, cu_ix_add(c, x->n0, "tid"), x->N);

		for (int k = 0; k < nred; k++)
			for (int i = 0; i < (red[k]->nout > 1 ? 3 : 1); i++)
				cu_line(c, "%s[%s] = %s;", cu_pointer(c, DT_f32, cu_state_offset(x, k, i)),
				        linear(c, row[i == 2], pitch, column), v[k].v[i]);
		cu_scope_close(c, s);
		Ix sets = cu_ix_parts(c, tiles, l.members);

		inner = cu_scope_open(c, "if (last_here(&column_tickets[%s], %s))",
		                      cu_ix_add(c, ticket, cu_ix_k(c, l.sets)), sets);
		left = (Left){cu_ix_k(c, all), sets, l.sets, true, each, x->M};
		add_left(x, red, nred, &left, v);
	}
	Scope s = cu_scope_open(c, "if (tid < %d && %s < %s)", x->p.n, cu_ix_add(c, x->n0, "tid"), x->N);

	for (int k = 0; k < nred; k++)
		if (red[k]->nout > 1) {
			put_result(x, red[k], 0, column, v[k].v[0]);
			put_result(x, red[k], 1, column, arena_printf(c->a, "%s / (float)%s", v[k].v[1], count));
		} else {
			put_result(x, red[k], 0, column,
			           cu_red_value(c, red[k], (Cell){v[k].v[0], DT_f32}, NULL, count).v);
		}
	store_late(x, column);
	cu_scope_close(c, s);
	if (l.sets > 1)
		cu_scope_close(c, inner);
	cu_scope_close(c, outer);
}
