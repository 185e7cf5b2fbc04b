/* attention.c: attention and its gradient without the scores in memory (FlashAttention: Dao et al. 2022,
 * arXiv:2205.14135).
 *
 * In: a group of that one op: q [.., T, D], k [.., S, D], v [.., S, E] in f32, row-major, of the same leading axes; or
 * in bf16, where the CPU multiplies pairs of that, with casts of its results to that: weights are rounded as they meet
 * v, sums, maxima and all else are f32.
 * Out: one kernel. A task is a block of queries of one entry of the leading axes: for each block of keys the
 * microkernel makes a tile of scores in the thread's scratch memory, the rows' maxima and sums are brought up to date
 * (online softmax), what was summed so far is rescaled, and the tile times v is added. Blocks that the causal mask
 * hides are skipped. Every element has one order of summing, which the shapes alone give. Backward: attention_back.c;
 * plans, and what is refused: attention_params.c. */
#include "attention_parts.h"
#include <math.h>

/* ---------------------------------------------------------------- products */
Product
attention_product(Emit *e, GemmParams p, int64_t columns, int64_t am, int64_t ak, int64_t bk, int64_t cm,
	int64_t packed_rows)
{
	int64_t nr = (int64_t)p.nv * p.lanes;
	Product r = {.p = p,
	             .npanel = ceil_div(columns, nr),
	             .b_panel = packed_rows ? F32(packed_rows * nr) : F32(nr),
	             .am = am,
	             .cm = cm};

	r.tiles = tiles_make(e, &p, columns, ANY_ROWS, (Steps){ak, packed_rows ? F32(nr) : bk});
	r.strides = strides_of_constants(e, (const int64_t[S_COUNT]){
	        [S_AM] = am, [S_AK] = ak, [S_BK] = packed_rows ? F32(nr) : bk, [S_CM] = cm});
	return r;
}

GemmParams
attention_columns(const Att *a, int64_t columns)
{
	GemmParams p = gemm_tile(a->w);

	p.engine = a->pairs ? ENGINE_PAIRS : ENGINE_FMA;
	gemm_tile_columns(&p, columns);
	return p;
}

void
attention_multiply(Emit *e, const Product *p, V rows, V a, V b, V c, V nk, V acc)
{
	Mem left = mem_axes(e, a, BY(p->am)), right = mem_axes(e, b, BY(p->b_panel)),
	    out = mem_axes(e, c, BY(p->cm), BY(F32(p->p.nv * p->p.lanes))); /* [row][panel] */
	V at = k64(e, S_NK);

	LLVMBuildStore(here(e), nk, LLVMBuildInBoundsGEP2(here(e), e->l->i64, p->strides, &at, 1, ""));
	TIMES(e, panel, p->npanel) {
		TILES(e, lo, count, rows, p->p.mr)
			tile_call(e, &p->tiles, count, panel, p->npanel, mem_at(e, &left, lo), mem_at(e, &right, panel),
			          mem_at(e, &out, lo, panel), NULL, NULL, p->strides, acc);
	}
}

/* ---------------------------------------------------------------- scores */
V
attention_row(const AttMain *m, V base, DType dt, int64_t n, int64_t width, V row)
{
	Mem rows = mem_dense(m->e, base, dt, m->a->entries, n, width);

	return base ? mem_at(m->e, &rows, m->entry, row) : NULL;
}

void
attention_beside(const AttMain *m, V base, int64_t n, int64_t width, V first, V count, V to)
{
	Emit *e = m->e;
	const Att *a = m->a;
	Mem rows = mem_dense(e, attention_row(m, base, a->type, n, width, first), a->type, n, width),
	    pairs = mem_dense(e, to, DT_f32, n, width);

	EACH(e, pair, att_steps(m, count)) {
		V row = i_mul_k(e, pair, 2), next = i_add_k(e, row, 1), there = NULL;

		if (n % 2) { /* of the last pair the first row is read twice, and not taken */
			there = LLVMBuildICmp(here(e), LLVMIntSLT, i_add(e, first, next), k64(e, n), "");
			next = LLVMBuildSelect(here(e), there, next, row, "");
		}
		LOOP(e, j, k64(e, 0), k64(e, width), e->W)
			vnni_beside(e, mem_at(e, &rows, row, j), mem_at(e, &rows, next, j), att_tail(e, width, j),
			             there, mem_at(e, &pairs, pair, j));
	}
}

void
attention_result(const AttMain *m, int k, int64_t n, int64_t width, V row, V j, Cell c)
{
	Emit *e = m->e;
	V tail = att_tail(e, width, j), to = attention_row(m, m->out[k], DT_f32, n, width, row);

	if (to) {
		Mem columns = mem_dense(e, to, DT_f32, width);

		vec_store(e, mem_at(e, &columns, j), c.v, tail);
	}
	if (m->half[k]) {
		Mem elements = mem_axes(e, m->half[k], BY(n * width), BY(width), BY(1));

		e->mask = tail;
		store_at(e, m->half[k], m->a->type, mem_lanes(e, &elements, m->entry, row, j), c);
		e->mask = NULL;
	}
}

void
attention_mask(AttMain *m)
{
	Emit *e = m->e;
	const Type *t = m->a->mask;
	V left = m->entry, stride[MAX_RANK];

	m->mask = k64(e, 0);
	if (!t)
		return;
	strides_of(e, t, stride);
	for (int i = m->a->lead - 1; i >= 0; i--) {
		V x = extent(e, m->a->q->axis[i]), at = i_rem(e, left, x);
		int j = i - (m->a->lead + 2 - t->rank);

		left = i_div(e, left, x);
		if (j >= 0 && (t->axis[j].n != 1 || t->axis[j].mul))
			m->mask = i_add(e, m->mask, i_mul(e, at, stride[j]));
	}
	m->mask_row = t->rank >= 2 && t->axis[t->rank - 2].n != 1 ? stride[t->rank - 2] : k64(e, 0);
	m->mask_column = t->rank >= 1 && t->axis[t->rank - 1].n != 1;
}

/* Lanes of vector k of a row of scores that exist and that the causal mask shows; NULL: all of them. */
static V
seen_lanes(const AttMain *m, V query, V key)
{
	Emit *e = m->e;
	V limit = k64(e, m->a->s);

	if (m->a->causal)
		limit = i_min(e, limit, i_add_k(e, query, 1));
	else if (m->a->s % m->bk == 0)
		return NULL;
	return mask_below(e, i_max(e, i_sub(e, limit, key), k64(e, 0)));
}

Cell
attention_score(const AttMain *m, V row, int k, V query, V key)
{
	Emit *e = m->e;
	const Att *a = m->a;
	Cell s = att_mul(e, att_vector(e, row, k), att_number(e, a->scale));
	V seen = seen_lanes(m, query, key);

	if (a->mask) {
		V base = i_add(e, m->mask, i_mul(e, query, m->mask_row)),
		  tail = a->s % m->bk ? mask_below(e, i_max(e, i_sub(e, k64(e, a->s), key), k64(e, 0))) : NULL;

		e->mask = tail;
		Cell x = load_at(e, m->in[a->nmask], (DType)a->mask->dtype,
		                 m->mask_column ? (Off){.s = i_add(e, base, key), .c = 1} : (Off){.s = base});

		e->mask = NULL;
		s = a->mask->dtype == DT_bool ? cell_select(e, x, s, att_number(e, -INFINITY)) : att_add(e, s, x);
		s = cell_of(cell_vec(e, s), true, DT_f32);
	}
	return seen ? cell_select(e, cell_of(seen, true, DT_bool), s, att_number(e, -INFINITY)) : s;
}

/* The multiple of four vectors in a row makes the random numbers come four at a time (philox_block). */
Cell
attention_kept(const AttMain *m, V query, V first_key, int k)
{
	Emit *e = m->e;
	const Att *a = m->a;
	V number_of_row = i_mul_k(e, i_add(e, i_mul_k(e, m->entry, a->t), query), a->s);
	bool four = m->bk / a->w % 4 == 0;

	e->block_n = four ? 4 : 0;
	e->block_u = four ? k % 4 : 0;
	Ix element = {.s = i_add_k(e, i_add(e, number_of_row, first_key), (int64_t)k * a->w), .c = 1};
	Cell u = random_emit(e, a->op, element, m->seed, m->step, DT_f32);

	e->block_n = e->block_u = 0;
	return cell_bin(e, EX_GE, u, att_number(e, ceil(a->p * 0x1p24) * 0x1p-24));
}

Cell
attention_dropped(const AttMain *m, Cell keep, Cell x)
{
	return cell_select(m->e, keep, att_mul(m->e, x, att_number(m->e, 1 / (1 - m->a->p))), att_number(m->e, 0));
}

void
attention_turn(const AttMain *m, V base, int64_t width, V row, V to)
{
	Emit *e = m->e;
	const Att *a = m->a;
	int64_t nr = (int64_t)m->keys.nv * a->w;
	int64_t units = width / a->unit;
	Pack k = {.taps = 1, .k = units, .j = a->s, .k_stride = 4, .j_stride = F32(units)};
	Mem rows = mem_dense(e, attention_row(m, base, a->type, a->s, width, row), DT_f32, m->bk, units),
	    panels = mem_dense(e, to, DT_f32, m->bk, units);
	V left = i_sub(e, k64(e, a->s), row);

	TIMES(e, panel, m->bk / nr) {
		V first = i_mul_k(e, panel, nr);

		transpose_rows(e, &k, &m->keys, mem_at(e, &rows, first), mem_at(e, &panels, first),
		               i_sub(e, left, first));
	}
}

void
attention_block(AttMain *m, int bk)
{
	const Att *a = m->a;
	int64_t row = F32(a->bk), d = a->d / a->unit, width = a->e / a->unit;

	m->bk = bk;
	m->keys = bk < a->bk ? attention_columns(a, bk) : a->keys;
	while (m->keys.nv > 1 && bk % (m->keys.nv * a->w)) /* whole panels */
		m->keys.nv--;
	m->scores = attention_product(m->e, m->keys, bk, F32(d), 4, 0, row, d);
	if (a->back)
		m->values = attention_product(m->e, m->keys, bk, F32(width), 4, 0, row, width);
}

int
attention_last_keys(const Att *a)
{
	int64_t n = att_round(a->s % a->bk, a->w);

	return n < a->bk ? (int)n : 0;
}

/* ---------------------------------------------------------------- forward */
/* Row i of the tile, query number `query`: scores become weights, those of bf16 in the first half of the row; maximum,
 * total and what was summed follow. */
static void
softmax_row(const AttMain *m, V i, V query, V key)
{
	Emit *e = m->e;
	const Att *a = m->a;
	int n = m->bk / a->w;
	V row = mem_at(e, &m->tile[0], i), top_at = mem_at(e, &m->top, i), total_at = mem_at(e, &m->total, i);
	Cell s[64], most = {0}, sum = {0}, old = att_scalar(e, top_at), none = att_number(e, -INFINITY);
	T vt = vec_of(e, e->l->f32);

	for (int k = 0; k < n; k++) {
		s[k] = attention_score(m, row, k, query, i_add_k(e, key, (int64_t)k * a->w));
		most = k ? cell_select(e, cell_bin(e, EX_GT, s[k], most), s[k], most) : s[k];
	}
	Cell top = cell_of(intrinsic(e, here(e), "llvm.vector.reduce.fmax", (T[]){vt}, 1, (V[]){cell_vec(e, most)}, 1),
	                   false, DT_f32);

	top = cell_select(e, cell_bin(e, EX_GT, top, old), top, old);
	/* a row that is hidden so far: exponents about 0, which keeps its weights 0 and not NaN */
	Cell about = cell_select(e, cell_bin(e, EX_EQ, top, none), att_number(e, 0), top);
	Cell factor = math_call(e, MF_EXP, cell_bin(e, EX_SUB, old, about), old);

	e->random.n = 0;
	for (int k = 0; k < n; k++) {
		Cell p = math_call(e, MF_EXP, cell_bin(e, EX_SUB, s[k], about), s[k]);

		sum = k ? att_add(e, sum, p) : p;
		if (a->nseed >= 0)
			p = attention_dropped(m, attention_kept(m, query, key, k), p);
		if (a->pairs)
			att_put_half(e, row, k, vec_half(e, p.v, a->type));
		else
			att_put(e, row, k, p);
	}
	att_scalar_put(e, top_at, top);
	att_scalar_put(e, total_at, att_add(e, att_mul(e, att_scalar(e, total_at), factor), horizontal_sum(e, sum)));
	if (a->s <= a->bk)
		return;
	LOOP(e, j, k64(e, 0), k64(e, a->e), e->W) {
		V tail = att_tail(e, a->e, j), at = mem_at(e, &m->sums, i, j);

		vec_store(e, at, att_mul(e, cell_of(vec_load(e, at, tail), true, DT_f32), factor).v, tail);
	}
}

/* The block's queries: y = sums / total, log-sum = maximum + log(total). One that the mask hides every key from has the
 * total 0: y is 0, and the log-sum +infinity, which makes its weights 0 backward. */
static void
finish_rows(const AttMain *m, V first, V count)
{
	Emit *e = m->e;
	const Att *a = m->a;

	EACH(e, i, count) {
		V query = i_add(e, first, i), lse = attention_row(m, m->out[1], DT_f32, a->t, 1, query);
		Cell total = att_scalar(e, mem_at(e, &m->total, i)), top = att_scalar(e, mem_at(e, &m->top, i));
		Cell blind = cell_bin(e, EX_EQ, total, att_number(e, 0));

		if (lse) {
			/* an infinite maximum is the log-sum, whatever the total */
			V size = intrinsic(e, here(e), "llvm.fabs", (T[]){e->l->f32}, 1, (V[]){top.v}, 1);
			Cell infinite = cell_bin(e, EX_EQ, cell_of(size, false, DT_f32), att_number(e, INFINITY)),
			     sum = cell_select(e, infinite, top,
			                       att_add(e, top, math_call(e, MF_LOG, total, total)));

			att_scalar_put(e, lse, a->mask ? cell_select(e, blind, att_number(e, INFINITY), sum) : sum);
		}
		if (a->mask)
			total = cell_select(e, blind, att_number(e, 1), total);
		if (m->out[0] || m->half[0])
			LOOP(e, j, k64(e, 0), k64(e, a->e), e->W) {
				V sum = vec_load(e, mem_at(e, &m->sums, i, j), att_tail(e, a->e, j));
				Cell y = cell_bin(e, EX_DIV, cell_of(sum, true, DT_f32), total);

				attention_result(m, 0, a->t, a->e, query, j, y);
			}
	}
}

/* Blocks of keys [from, to), which begin at multiples of m->bk behind `from`; queries [first, first + count). */
static void
forward_blocks(AttMain *m, V first, V count, V from, V to)
{
	Emit *e = m->e;
	const Att *a = m->a;

	LOOP(e, key, from, to, m->bk) {
		V keys = i_min(e, k64(e, m->bk), i_sub(e, k64(e, a->s), key)),
		  queries = attention_row(m, m->in[0], a->type, a->t, a->d, first),
		  values = attention_row(m, m->in[2], a->type, a->s, a->e, key);

		attention_turn(m, m->in[1], a->d, key, m->transposed[0]);
		if (a->pairs) {
			attention_beside(m, m->in[2], a->s, a->e, key, keys, m->beside);
			values = m->beside;
		}
		attention_multiply(e, &m->scores, count, queries, m->transposed[0], m->tile[0].base,
		                   k64(e, a->d / a->unit), NULL);
		EACH(e, i, count)
			softmax_row(m, i, i_add(e, first, i), key);
		attention_multiply(e, &m->weighted, count, m->tile[0].base, values, m->sums.base, att_steps(m, keys),
		                   att_more(e, key, k64(e, 0)));
	}
}

static void
forward_emit(AttMain *m)
{
	Emit *e = m->e;
	const Att *a = m->a;
	int64_t blocks = ceil_div(a->t, a->bq), row = F32(a->bk), line = F32(a->e);
	int last = attention_last_keys(a);

	m->weighted = attention_product(e, attention_columns(a, a->e), a->e, row, 4, line, line, 0);
	TASKS(e, task) {
		V first = i_mul_k(e, i_rem_k(e, task, blocks), a->bq), end = k64(e, a->s);
		V count = i_min(e, k64(e, a->bq), i_sub(e, k64(e, a->t), first));

		m->entry = i_div_k(e, task, blocks);
		attention_mask(m);
		EACH(e, i, count) {
			att_scalar_put(e, mem_at(e, &m->top, i), att_number(e, -INFINITY));
			att_scalar_put(e, mem_at(e, &m->total, i), att_number(e, 0));
		}
		if (a->causal)
			end = i_min(e, end, i_add(e, first, count));
		V whole = k64(e, last ? a->s / a->bk * a->bk : a->s);

		if (!last || a->s > a->bk) {
			attention_block(m, a->bk);
			forward_blocks(m, first, count, k64(e, 0), i_min(e, whole, end));
		}
		if (last) {
			attention_block(m, last);
			forward_blocks(m, first, count, whole, end);
		}
		finish_rows(m, first, count);
	}
}

/* ---------------------------------------------------------------- the op */
static void
regions_open(AttMain *m)
{
	Emit *e = m->e;
	const Att *a = m->a;
	AttMemory at = attention_memory(a);

	for (int i = 0; i < (a->back ? 2 : 1); i++) {
		m->transposed[i] = scratch_ptr(e, at.transposed[i]);
		m->tile[i] = mem_dense(e, scratch_ptr(e, at.tile[i]), DT_f32, a->bq, a->bk);
	}
	m->beside = scratch_ptr(e, at.beside);
	m->queries = scratch_ptr(e, at.queries);
	m->grads = scratch_ptr(e, at.grads);
	m->rounded = scratch_ptr(e, at.rounded);
	for (int k = 0; k < ATT_RESULTS; k++)
		m->result[k] = scratch_ptr(e, at.result[k]);
	if (a->back)
		return;
	m->sums = mem_rows(e, scratch_ptr(e, at.sums), DT_f32, a->bq, a->e);
	m->top = mem_dense(e, scratch_ptr(e, at.top), DT_f32, a->bq);
	m->total = mem_dense(e, scratch_ptr(e, at.total), DT_f32, a->bq);
}

static Rows
task_rows(const Att *a)
{
	Rows r = {.rows = a->back ? 1 : ceil_div(a->t, a->bq), .mul = 0, .div = 1, .grain = 1};

	for (int i = 0; i < a->lead; i++)
		if (a->q->axis[i].mul) {
			r.mul = a->q->axis[i].mul;
			r.div = a->q->axis[i].div;
		} else {
			r.rows *= a->q->axis[i].n;
		}
	return r;
}

void
attention_emit(GroupCx *gc, const Op *op, GraphKernels *gk)
{
	const Group *group = &gc->g->group.at[gc->group];
	Att a;
	const char *why = attention_read(gc->g, op, gc->c->l.arch->vector_bytes, group->kernel, &a);
	int in[10], out[3], half[3] = {-1, -1, -1}, ws = -1;
	bool fresh;
	Emit e = {0};

	if (why) { /* text may be anybody's */
		gc->c->error = arena_printf(gc->c->arena, "group %s: %s computes no %s of this shape: %s", group->name,
		                            group->kernel, op_info[op->kind].name, why);
		return;
	}
	for (int k = 0; k < op->nin; k++)
		in[k] = group_buffer(gc, op->in[k].id);
	for (int k = 0; k < op->nout; k++)
		out[k] = val_info(gc->g, op->out[k])->offset >= 0 ? group_buffer(gc, op->out[k].id) : -1;
	for (uint32_t i = gc->first; i < gc->last; i++) {
		const Op *cast = &gc->g->op.at[i];

		for (int k = 0; k < op->nout && !cast->dead && attention_casts(gc->g, op, cast); k++)
			if (cast->in[0].id == op->out[k].id)
				half[k] = group_buffer(gc, cast->out[0].id);
	}
	if (a.back)
		ws = workspace_at(gc);
	scratch_check(gc, attention_memory(&a).bytes);
	int fn = kernel_begin(gc, &e, "main", &fresh);

	if (fresh) {
		AttMain m = {.e = &e, .a = &a, .rows = ws >= 0 ? buffer(&e, ws) : NULL};

		e.load_here = true;
		e.lanes = true;
		for (int k = 0; k < op->nin; k++)
			m.in[k] = buffer(&e, in[k]);
		for (int k = 0; k < op->nout; k++) {
			m.out[k] = out[k] >= 0 ? buffer(&e, out[k]) : NULL;
			m.half[k] = half[k] >= 0 ? buffer(&e, half[k]) : NULL;
		}
		if (a.nseed >= 0) {
			m.seed = load_at(&e, m.in[a.nseed], DT_i64, (Off){.s = k64(&e, 0)});
			m.step = load_at(&e, m.in[a.nseed + 1], DT_i64, (Off){.s = k64(&e, 0)});
		}
		regions_open(&m);
		if (a.back)
			attention_backward(&m);
		else
			forward_emit(&m);
	}
	kernel_end(gc, &e, gk, fn, task_rows(&a), fresh, false);
}
