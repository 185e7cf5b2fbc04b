/* attention.c: attention and its gradient without the scores in memory (FlashAttention: Dao et al. 2022,
 * arXiv:2205.14135).
 *
 * In: a group of that one op: q [.., T, D], k [.., S, D], v [.., S, E] in f32, row-major, of the same leading axes.
 * Out: one kernel. Forward a task is a block of queries of one entry of the leading axes: for each block of keys the
 * microkernel makes a tile of scores in the thread's scratch memory, the rows' maxima and sums are brought up to date
 * (online softmax), what was summed so far is rescaled, and the tile times v is added. Backward a task is an entry: for
 * each pair of blocks the scores are made again and become weights by the kept log-sums; two tiles, weights and scores'
 * gradients, feed the three products. Blocks that the causal mask hides are skipped. Every element has one order of
 * summing, which the shapes alone give.
 * Refuses (attention_refuses): other types, leading axes that differ, widths above 1024; pass expand takes those
 * apart. */
#include "../contract/gemm.h"
#include "rnn.h"
#include "../../space.h"
#include <math.h>
#include <string.h>

/* KEYS of a block: whole vectors, and enough for what is done once a block to pay. WIDTH: what a thread's scratch
 * memory is held to. */
enum { KEYS = 64, WIDTH = 1024 };

typedef struct Att {
	const Op *op;
	bool back, causal;
	int lead;                /* leading axes */
	const Type *q, *mask;    /* mask: NULL if there is none */
	int64_t entries, t, s, d, e; /* of a full batch; queries, keys, widths */
	double scale, p;
	int first, nmask, nseed; /* operands: q; the mask; seed and step */
	int bq, bk;              /* queries and keys of a block; keys are padded */
	int w;
	int threads;             /* that take part, at most; 0: all */
	GemmParams keys;         /* of products whose columns are a block of keys */
} Att;

bool
attention_op(OpKind k)
{
	return k == OP_attention || k == OP_attention_dx;
}

const char *
attention_refuses(const Graph *g, const Op *op, int vector_bytes)
{
	int first = op->kind == OP_attention_dx;
	const Type *q = val_type(g, op->in[first]);
	int marks = 0;

	if (vector_bytes < 16)
		return "the kernel needs vectors of 32 bytes";
	if (q->dtype != DT_f32)
		return arena_printf(g->arena, "the operands are %s: the kernel is f32", dtype_info[q->dtype].name);
	for (int k = 0; k < 3; k++) {
		const Type *x = val_type(g, op->in[first + k]);

		if (x->rank != q->rank)
			return "q, k and v differ in their leading axes";
		for (int i = 0; i + 2 < q->rank; i++)
			if (!axis_same(x->axis[i], q->axis[i]))
				return "q, k and v differ in their leading axes";
		for (int i = x->rank - 2; i < x->rank; i++)
			if (x->axis[i].mul)
				return "queries, keys or widths follow the batch";
		if (x->axis[x->rank - 1].n > WIDTH)
			return arena_printf(g->arena, "a width of %lld: the kernel takes %d",
			                    (long long)x->axis[x->rank - 1].n, WIDTH);
	}
	for (int i = 0; i + 2 < q->rank; i++)
		marks += q->axis[i].mul != 0;
	if (marks > 1)
		return "two leading axes follow the batch";
	return attr_num(op, A_p) >= 1 ? "a dropout that drops everything" : NULL;
}

static int64_t
round_to(int64_t n, int64_t by)
{
	return (n + by - 1) / by * by;
}

static Att
att_of(const Graph *g, const Op *op, int vector_bytes)
{
	Att a = {.op = op,
	         .back = op->kind == OP_attention_dx,
	         .causal = attr_bool(op, A_causal),
	         .scale = attr_num(op, A_scale),
	         .p = attr_num(op, A_p),
	         .w = vector_bytes / 4,
	         .entries = 1,
	         .nmask = -1,
	         .nseed = -1};
	int next = a.back ? 6 : 3;

	a.first = a.back;
	a.q = val_type(g, op->in[a.first]);
	a.lead = a.q->rank - 2;
	for (int i = 0; i < a.lead; i++)
		a.entries *= a.q->axis[i].n;
	a.t = a.q->axis[a.lead].n;
	a.d = a.q->axis[a.lead + 1].n;
	a.s = val_type(g, op->in[a.first + 1])->axis[a.lead].n;
	a.e = val_type(g, op->in[a.first + 2])->axis[a.lead + 1].n;
	if (attr_bool(op, A_has_mask)) {
		a.nmask = next++;
		a.mask = val_type(g, op->in[a.nmask]);
	}
	if (a.p > 0)
		a.nseed = next;
	/* a tile of scores fills L1; causal, where blocks on the diagonal are half hidden, half of it */
	a.bq = (int)(machine_of(g)->budget.l1 / (KEYS * 4)) / (a.causal ? 2 : 1);
	if (a.bq > a.t)
		a.bq = (int)a.t;
	a.keys = gemm_tile(a.w);
	gemm_tile_columns(&a.keys, a.s);
	a.bk = (int)round_to(a.s < KEYS ? a.s : KEYS, a.keys.nv * a.w);
	return a;
}

/* A thread's memory: k (backward v too) in panels, tiles of scores (and of their gradient); forward the sums of a block
 * of queries, their maxima and totals. */
typedef struct AttMemory { int64_t transposed[2], tile[2], sums, top, total, bytes; } AttMemory;

static AttMemory
memory_of(const Att *a)
{
	int sides = a->back ? 2 : 1;
	int64_t tile = (int64_t)a->bq * a->bk * 4;
	Layout l = {.unit = 4};
	AttMemory r = {0};

	for (int i = 0; i < sides; i++)
		r.transposed[i] = layout_take(&l, (i ? a->e : a->d) * a->bk * 4);
	for (int i = 0; i < sides; i++)
		r.tile[i] = layout_take(&l, tile);
	if (!a->back) {
		r.sums = layout_take(&l, a->bq * a->e * 4);
		r.top = layout_take(&l, (int64_t)a->bq * 4);
		r.total = layout_take(&l, (int64_t)a->bq * 4);
	}
	r.bytes = l.bytes + 256; /* vectors may reach behind the last row */
	return r;
}

static Params
att_params(const Att *a)
{
	return (Params){FAMILY_cpu_attention, .cpu_attention = {a->bq, a->bk, a->w, a->threads}};
}

static Facts
att_facts(const Att *a)
{
	int64_t unit = (int64_t)a->keys.nv * a->w;

	return (Facts){.backward = a->back, .lanes_max = a->w, .queries_all = a->t, .keys_all = round_to(a->s, unit),
	               .unit = unit};
}

/* The kernel of this text; NULL, or why it is not possible. */
static const char *
att_read(const Graph *g, const Op *op, int vector_bytes, const char *text, Att *a)
{
	const char *name = op_info[op->kind].name;
	Params q;

	*a = att_of(g, op, vector_bytes);
	Params own = att_params(a);
	Facts f = att_facts(a);

	if (!space_parse("cpu", name, text, &q))
		return arena_printf(g->arena, "%s takes parameters such as %s", name, space_text(g->arena, &own));
	a->bq = q.cpu_attention.queries;
	a->bk = q.cpu_attention.keys;
	a->threads = q.cpu_attention.threads;
	return space_misfit(g->arena, &q, &f);
}

const char *
attention_select(Graph *g, const Op *op, int vector_bytes, SelectCx *cx, int64_t *workspace)
{
	Att a = att_of(g, op, vector_bytes), t;

	cx->misfit = cx->tuned ? att_read(g, op, vector_bytes, cx->tuned, &t) : NULL;
	if (cx->tuned && !cx->misfit)
		a = t;
	Params p = att_params(&a);

	/* backward: the rows' sums of g y */
	*workspace = a.back ? round_to(a.entries * a.t * 4, 64) : 0;
	scratch_plan(g, memory_of(&a).bytes);
	return space_text(g->arena, &p);
}

typedef struct Trial { const Graph *g; Params base; Facts facts; SpaceEach *each; void *cx; } Trial;

static bool
trial(void *cx, const Params *q)
{
	const Trial *t = cx;

	return t->each(t->cx, space_text(t->g->arena, q), space_class(&t->base, q, &t->facts));
}

void
attention_space(const Graph *g, const Op *op, int vector_bytes, const SelectCx *cx, const char *kernel,
	SpaceEach *each, void *each_cx)
{
	Trial t = {.g = g, .each = each, .cx = each_cx};
	Att a;

	if (att_read(g, op, vector_bytes, kernel, &a))
		return;
	t.base = att_params(&a);
	t.facts = att_facts(&a);
	t.facts.threads_max = cx->threads;
	space_each(&t.base, &t.facts, cx->steps, trial, &t);
}

/* ---------------------------------------------------------------- products */
typedef struct Product { GemmParams p; Tiles tiles; int64_t npanel, b_panel, am, cm; V strides; } Product;

/* Strides in bytes. packed: B is in panels of `bk` bytes a row; else its rows are `bk` bytes apart. */
static Product
product_new(Emit *e, GemmParams p, int64_t columns, int64_t am, int64_t ak, int64_t bk, int64_t cm, int64_t packed_rows)
{
	int64_t nr = (int64_t)p.nv * p.lanes;
	Product r = {.p = p,
	             .npanel = ceil_div(columns, nr),
	             .b_panel = packed_rows ? packed_rows * nr * 4 : nr * 4,
	             .am = am,
	             .cm = cm};

	r.tiles = tiles_make(e, &p, columns, ANY_ROWS, (Steps){ak, packed_rows ? nr * 4 : bk});
	r.strides = strides_of_numbers(e, (const int64_t[S_COUNT]){
	        [S_AM] = am, [S_AK] = ak, [S_BK] = packed_rows ? nr * 4 : bk, [S_CM] = cm});
	return r;
}

static GemmParams
columns_params(const Att *a, int64_t columns)
{
	GemmParams p = gemm_tile(a->w);

	gemm_tile_columns(&p, columns);
	return p;
}

/* C[rows] (+)= A B over nk, all its columns. */
static void
product_run(Emit *e, const Product *p, V rows, V a, V b, V c, V nk, V acc)
{
	Mem left = mem_axes(e, a, BY(p->am)), right = mem_axes(e, b, BY(p->b_panel)),
	    out = mem_axes(e, c, BY(p->cm), BY((int64_t)p->p.nv * p->p.lanes * 4)); /* [row][panel] */
	V at = k64(e, S_NK);

	LLVMBuildStore(here(e), nk, LLVMBuildInBoundsGEP2(here(e), e->l->i64, p->strides, &at, 1, ""));
	TIMES(e, panel, p->npanel) {
		TILES(e, lo, count, rows, p->p.mr)
			tile_call(e, &p->tiles, count, panel, p->npanel, mem_at(e, &left, lo), mem_at(e, &right, panel),
			          mem_at(e, &out, lo, panel), NULL, NULL, p->strides, acc);
	}
}

/* ---------------------------------------------------------------- one kernel being emitted */
typedef struct Main {
	Emit *e;
	const Att *a;
	V in[10], out[3];        /* NULL: nobody reads it */
	V rows;                  /* backward: sums of g y, [entries][T] */
	V transposed[2];         /* in the thread's memory: panels of keys (and values) */
	Mem tile[2], sums, top, total; /* [query][key], [query][column], [query] */
	Cell seed, step;
	V entry, mask;           /* number of the leading axes' entry; element number of its mask */
	V mask_row; int64_t mask_column;
	int bk;                  /* keys of the block that is being emitted: of the last one fewer vectors */
	GemmParams keys;         /* of products whose columns they are */
	Product scores, values;  /* q k^T; backward g v^T */
	Product weighted, dq, dk, dv;
} Main;

static Cell add(Emit *e, Cell a, Cell b) { return cell_bin(e, EX_ADD, a, b); }
static Cell mul(Emit *e, Cell a, Cell b) { return cell_bin(e, EX_MUL, a, b); }
static Cell number(const Emit *e, double x) { return cell_const(e, DT_f32, x); }

static Cell
vector(Emit *e, V p, int k)
{
	return cell_of(vec_load(e, ptr_at(e, p, k64(e, (int64_t)k * e->W * 4)), NULL), true, DT_f32);
}

static void
put(Emit *e, V p, int k, Cell c)
{
	vec_store(e, ptr_at(e, p, k64(e, (int64_t)k * e->W * 4)), cell_vec(e, c), NULL);
}

static Cell
scalar_at(Emit *e, V at)
{
	return cell_of(LLVMBuildLoad2(here(e), e->l->f32, at, ""), false, DT_f32);
}

static void
scalar_put(Emit *e, V at, Cell c)
{
	LLVMBuildStore(here(e), c.v, at);
}

/* The lanes of columns from `column` on of rows of so many; NULL: all. */
static V
tail_of(Emit *e, int64_t columns, V column)
{
	return columns % e->W ? mask_below(e, i_sub(e, k64(e, columns), column)) : NULL;
}

/* Row `row` of this entry in a tensor [entries, n, width]. */
static V
row_at(const Main *m, V base, int64_t n, int64_t width, V row)
{
	Mem rows = mem_dense(m->e, base, DT_f32, m->a->entries, n, width);

	return base ? mem_at(m->e, &rows, m->entry, row) : NULL;
}

/* Where the entry's mask begins: its leading axes broadcast to the entry's. */
static void
mask_at(Main *m)
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
seen_lanes(const Main *m, V query, V key)
{
	Emit *e = m->e;
	V limit = k64(e, m->a->s);

	if (m->a->causal)
		limit = i_min(e, limit, i_add_k(e, query, 1));
	else if (m->a->s % m->bk == 0)
		return NULL;
	return mask_below(e, i_max(e, i_sub(e, limit, key), k64(e, 0)));
}

/* Vector k of the tile's row of scores: scaled and masked. query, key: numbers of the row and of the vector's first
 * key. */
static Cell
score(const Main *m, V row, int k, V query, V key)
{
	Emit *e = m->e;
	const Att *a = m->a;
	Cell s = mul(e, vector(e, row, k), number(e, a->scale));
	V seen = seen_lanes(m, query, key);

	if (a->mask) {
		V base = i_add(e, m->mask, i_mul(e, query, m->mask_row)),
		  tail = a->s % m->bk ? mask_below(e, i_max(e, i_sub(e, k64(e, a->s), key), k64(e, 0))) : NULL;

		e->mask = tail;
		Cell x = load_at(e, m->in[a->nmask], (DType)a->mask->dtype,
		                 m->mask_column ? (Off){.s = i_add(e, base, key), .c = 1} : (Off){.s = base});

		e->mask = NULL;
		s = a->mask->dtype == DT_bool ? cell_select(e, x, s, number(e, -INFINITY)) : add(e, s, x);
		s = cell_of(cell_vec(e, s), true, DT_f32);
	}
	return seen ? cell_select(e, cell_of(seen, true, DT_bool), s, number(e, -INFINITY)) : s;
}

/* The multiple of four vectors in a row makes the random numbers come four at a time (philox_block). */
static Cell
kept(const Main *m, V query, V first_key, int k)
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
	return cell_bin(e, EX_GE, u, number(e, ceil(a->p * 0x1p24) * 0x1p-24));
}

static Cell
dropped(const Main *m, Cell keep, Cell x)
{
	return cell_select(m->e, keep, mul(m->e, x, number(m->e, 1 / (1 - m->a->p))), number(m->e, 0));
}

/* Rows [row, row + count) of [entries, S, width] transposed: panels of columns = rows. */
static void
turn(const Main *m, V base, int64_t width, V row, V to)
{
	Emit *e = m->e;
	const Att *a = m->a;
	int64_t nr = (int64_t)m->keys.nv * a->w;
	Pack k = {.taps = 1, .k = width, .j = a->s, .k_stride = 4, .j_stride = width * 4};
	Mem rows = mem_dense(e, row_at(m, base, a->s, width, row), DT_f32, m->bk, width),
	    panels = mem_dense(e, to, DT_f32, m->bk, width);
	V left = i_sub(e, k64(e, a->s), row);

	TIMES(e, panel, m->bk / nr) {
		V first = i_mul_k(e, panel, nr);

		turn_rows(e, &k, &m->keys, mem_at(e, &rows, first), mem_at(e, &panels, first), i_sub(e, left, first));
	}
}

static V
if_more(Emit *e, V a, V b)
{
	return LLVMBuildZExt(here(e), LLVMBuildICmp(here(e), LLVMIntSGT, a, b, ""), e->l->i64, "");
}

/* ---------------------------------------------------------------- forward */
/* Row i of the tile, query number `query`: scores become weights; maximum, total and what was summed follow. */
static void
softmax_row(const Main *m, V i, V query, V key)
{
	Emit *e = m->e;
	const Att *a = m->a;
	int n = m->bk / a->w;
	V row = mem_at(e, &m->tile[0], i), top_at = mem_at(e, &m->top, i), total_at = mem_at(e, &m->total, i);
	Cell s[64], most = {0}, sum = {0}, old = scalar_at(e, top_at), none = number(e, -INFINITY);
	T vt = vec_of(e, e->l->f32);

	for (int k = 0; k < n; k++) {
		s[k] = score(m, row, k, query, i_add_k(e, key, (int64_t)k * a->w));
		most = k ? cell_select(e, cell_bin(e, EX_GT, s[k], most), s[k], most) : s[k];
	}
	Cell top = cell_of(intrinsic(e, here(e), "llvm.vector.reduce.fmax", (T[]){vt}, 1, (V[]){cell_vec(e, most)}, 1),
	                   false, DT_f32);

	top = cell_select(e, cell_bin(e, EX_GT, top, old), top, old);
	/* a row that is hidden so far: exponents about 0, which keeps its weights 0 and not NaN */
	Cell about = cell_select(e, cell_bin(e, EX_EQ, top, none), number(e, 0), top);
	Cell factor = math_call(e, MF_EXP, cell_bin(e, EX_SUB, old, about), old);

	e->random.n = 0;
	for (int k = 0; k < n; k++) {
		Cell p = math_call(e, MF_EXP, cell_bin(e, EX_SUB, s[k], about), s[k]);

		sum = k ? add(e, sum, p) : p;
		put(e, row, k, a->nseed >= 0 ? dropped(m, kept(m, query, key, k), p) : p);
	}
	scalar_put(e, top_at, top);
	scalar_put(e, total_at, add(e, mul(e, scalar_at(e, total_at), factor), horizontal_sum(e, sum)));
	if (a->s <= a->bk)
		return;
	LOOP(e, j, k64(e, 0), k64(e, a->e), e->W) {
		V tail = tail_of(e, a->e, j), at = mem_at(e, &m->sums, i, j);

		vec_store(e, at, mul(e, cell_of(vec_load(e, at, tail), true, DT_f32), factor).v, tail);
	}
}

/* The block's queries: y = sums / total, log-sum = maximum + log(total). */
static void
finish_rows(const Main *m, V first, V count)
{
	Emit *e = m->e;
	const Att *a = m->a;

	EACH(e, i, count) {
		V query = i_add(e, first, i), y = row_at(m, m->out[0], a->t, a->e, query),
		  lse = row_at(m, m->out[1], a->t, 1, query);
		Cell total = scalar_at(e, mem_at(e, &m->total, i)), top = scalar_at(e, mem_at(e, &m->top, i));
		Mem columns = mem_dense(e, y, DT_f32, a->e);

		if (lse) {
			/* an infinite maximum is the log-sum, whatever the total */
			V size = intrinsic(e, here(e), "llvm.fabs", (T[]){e->l->f32}, 1, (V[]){top.v}, 1);
			Cell infinite = cell_bin(e, EX_EQ, cell_of(size, false, DT_f32), number(e, INFINITY));

			scalar_put(e, lse, cell_select(e, infinite, top,
			                               add(e, top, math_call(e, MF_LOG, total, total))));
		}
		if (y)
			LOOP(e, j, k64(e, 0), k64(e, a->e), e->W) {
				V tail = tail_of(e, a->e, j), sum = vec_load(e, mem_at(e, &m->sums, i, j), tail);

				vec_store(e, mem_at(e, &columns, j),
				          cell_bin(e, EX_DIV, cell_of(sum, true, DT_f32), total).v, tail);
			}
	}
}

/* Blocks of keys [from, to), which begin at multiples of m->bk behind `from`; queries [first, first + count). */
static void
forward_blocks(Main *m, V first, V count, V from, V to)
{
	Emit *e = m->e;
	const Att *a = m->a;

	LOOP(e, key, from, to, m->bk) {
		V keys = i_min(e, k64(e, m->bk), i_sub(e, k64(e, a->s), key));

		turn(m, m->in[1], a->d, key, m->transposed[0]);
		product_run(e, &m->scores, count, row_at(m, m->in[0], a->t, a->d, first), m->transposed[0],
		            m->tile[0].base, k64(e, a->d), NULL);
		EACH(e, i, count)
			softmax_row(m, i, i_add(e, first, i), key);
		product_run(e, &m->weighted, count, m->tile[0].base, row_at(m, m->in[2], a->s, a->e, key), m->sums.base,
		            keys, if_more(e, key, k64(e, 0)));
	}
}

/* Sets the block's keys: all that a block has, or those of the last one in whole vectors. */
static void
block_of(Main *m, int bk)
{
	const Att *a = m->a;
	int64_t row = (int64_t)a->bk * 4;

	m->bk = bk;
	m->keys = bk < a->bk ? columns_params(a, bk) : a->keys;
	while (m->keys.nv > 1 && bk % (m->keys.nv * a->w)) /* whole panels */
		m->keys.nv--;
	m->scores = product_new(m->e, m->keys, bk, a->d * 4, 4, 0, row, a->d);
	if (a->back)
		m->values = product_new(m->e, m->keys, bk, a->e * 4, 4, 0, row, a->e);
}

/* Keys of the last block, in whole vectors; those before it are whole blocks. 0: all are. */
static int
last_keys(const Att *a)
{
	int64_t n = round_to(a->s % a->bk, a->w);

	return n < a->bk ? (int)n : 0;
}

static void
forward_emit(Main *m)
{
	Emit *e = m->e;
	const Att *a = m->a;
	int64_t blocks = ceil_div(a->t, a->bq);
	int last = last_keys(a);

	m->weighted = product_new(e, columns_params(a, a->e), a->e, (int64_t)a->bk * 4, 4, a->e * 4, a->e * 4, 0);
	TASKS(e, task) {
		V first = i_mul_k(e, i_rem_k(e, task, blocks), a->bq), end = k64(e, a->s);
		V count = i_min(e, k64(e, a->bq), i_sub(e, k64(e, a->t), first));

		m->entry = i_div_k(e, task, blocks);
		mask_at(m);
		EACH(e, i, count) {
			scalar_put(e, mem_at(e, &m->top, i), number(e, -INFINITY));
			scalar_put(e, mem_at(e, &m->total, i), number(e, 0));
		}
		if (a->causal)
			end = i_min(e, end, i_add(e, first, count));
		V whole = k64(e, last ? a->s / a->bk * a->bk : a->s);

		if (!last || a->s > a->bk) {
			block_of(m, a->bk);
			forward_blocks(m, first, count, k64(e, 0), i_min(e, whole, end));
		}
		if (last) {
			block_of(m, last);
			forward_blocks(m, first, count, whole, end);
		}
		finish_rows(m, first, count);
	}
}

/* ---------------------------------------------------------------- backward */
/* Row i of the tiles: scores and g v^T become weights (after dropout) and the scores' gradient. */
static void
back_row(const Main *m, V i, V query, V key)
{
	Emit *e = m->e;
	const Att *a = m->a;
	V p_row = mem_at(e, &m->tile[0], i), d_row = mem_at(e, &m->tile[1], i);
	Cell lse = scalar_at(e, row_at(m, m->in[5], a->t, 1, query)),
	     rows = scalar_at(e, row_at(m, m->rows, a->t, 1, query));

	e->random.n = 0;
	for (int k = 0; k < m->bk / a->w; k++) {
		Cell s = score(m, p_row, k, query, i_add_k(e, key, (int64_t)k * a->w)), d = vector(e, d_row, k);
		Cell p = math_call(e, MF_EXP, cell_bin(e, EX_SUB, s, lse), s), keep = {0};

		if (a->nseed >= 0) {
			keep = kept(m, query, key, k);
			d = dropped(m, keep, d);
		}
		put(e, p_row, k, a->nseed >= 0 ? dropped(m, keep, p) : p);
		put(e, d_row, k, mul(e, mul(e, p, cell_bin(e, EX_SUB, d, rows)), number(e, a->scale)));
	}
}

/* rows[i] = g[i] . y[i], for all queries of the entry. */
static void
rows_emit_sums(const Main *m)
{
	Emit *e = m->e;
	const Att *a = m->a;
	T vt = vec_of(e, e->l->f32);

	TIMES(e, i, a->t) {
		Mem g = mem_dense(e, row_at(m, m->in[0], a->t, a->e, i), DT_f32, a->e),
		    y = mem_dense(e, row_at(m, m->in[4], a->t, a->e, i), DT_f32, a->e);
		V slot = slot_new(e, vt);

		slot_set(e, slot, LLVMConstNull(vt));
		LOOP(e, j, k64(e, 0), k64(e, a->e), e->W) {
			V tail = tail_of(e, a->e, j);
			Cell x = cell_of(vec_load(e, mem_at(e, &g, j), tail), true, DT_f32),
			     z = cell_of(vec_load(e, mem_at(e, &y, j), tail), true, DT_f32);

			slot_set(e, slot, cell_fma(e, x, z, cell_of(slot_get(e, slot, vt), true, DT_f32)).v);
		}
		scalar_put(e, row_at(m, m->rows, a->t, 1, i),
		           horizontal_sum(e, cell_of(slot_get(e, slot, vt), true, DT_f32)));
	}
}

static void
zero_rows(const Main *m, V base, V key, V keys, int64_t width)
{
	Emit *e = m->e;

	if (!base)
		return;
	Mem to = mem_dense(e, row_at(m, base, m->a->s, width, key), DT_f32, m->a->s * width);
	V n = i_mul_k(e, keys, width);

	LOOP(e, j, k64(e, 0), n, e->W)
		vec_store(e, mem_at(e, &to, j), LLVMConstNull(vec_of(e, e->l->f32)), mask_below(e, i_sub(e, n, j)));
}

/* Blocks of keys [from, to), as forward_blocks has them. */
static void
backward_blocks(Main *m, V from, V to)
{
	Emit *e = m->e;
	const Att *a = m->a;
	V one = k64(e, 1), zero = k64(e, 0), tile[2] = {m->tile[0].base, m->tile[1].base};

	LOOP(e, key, from, to, m->bk) {
		V keys = i_min(e, k64(e, m->bk), i_sub(e, k64(e, a->s), key)), query = zero;

		turn(m, m->in[2], a->d, key, m->transposed[0]);
		turn(m, m->in[3], a->e, key, m->transposed[1]);
		zero_rows(m, m->out[1], key, keys, a->d);
		zero_rows(m, m->out[2], key, keys, a->e);
		if (a->causal) /* earlier queries see none of these keys */
			query = i_mul_k(e, i_div_k(e, key, a->bq), a->bq);
		LOOP(e, first, query, k64(e, a->t), a->bq) {
			V count = i_min(e, k64(e, a->bq), i_sub(e, k64(e, a->t), first));
			V q = row_at(m, m->in[1], a->t, a->d, first), g = row_at(m, m->in[0], a->t, a->e, first);

			product_run(e, &m->scores, count, q, m->transposed[0], tile[0], k64(e, a->d), NULL);
			product_run(e, &m->values, count, g, m->transposed[1], tile[1], k64(e, a->e), NULL);
			LOOP(e, i, zero, count, 1)
				back_row(m, i, i_add(e, first, i), key);
			if (m->out[2])
				product_run(e, &m->dv, keys, tile[0], g, row_at(m, m->out[2], a->s, a->e, key), count,
				            one);
			if (m->out[1])
				product_run(e, &m->dk, keys, tile[1], q, row_at(m, m->out[1], a->s, a->d, key), count,
				            one);
			if (m->out[0])
				product_run(e, &m->dq, count, tile[1], row_at(m, m->in[2], a->s, a->d, key),
				            row_at(m, m->out[0], a->t, a->d, first), keys, if_more(e, key, zero));
		}
	}
}

static void
backward_emit(Main *m)
{
	Emit *e = m->e;
	const Att *a = m->a;
	int64_t row = (int64_t)a->bk * 4;
	int last = last_keys(a);
	V whole = k64(e, last ? a->s / a->bk * a->bk : a->s);

	m->dq = product_new(e, columns_params(a, a->d), a->d, row, 4, a->d * 4, a->d * 4, 0);
	m->dk = product_new(e, columns_params(a, a->d), a->d, 4, row, a->d * 4, a->d * 4, 0);
	m->dv = product_new(e, columns_params(a, a->e), a->e, 4, row, a->e * 4, a->e * 4, 0);
	TASKS(e, entry) {
		m->entry = entry;
		mask_at(m);
		rows_emit_sums(m);
		if (!last || a->s > a->bk) {
			block_of(m, a->bk);
			backward_blocks(m, k64(e, 0), whole);
		}
		if (last) {
			block_of(m, last);
			backward_blocks(m, whole, k64(e, a->s));
		}
	}
}

/* ---------------------------------------------------------------- the op */
static void
regions_open(Main *m)
{
	Emit *e = m->e;
	const Att *a = m->a;
	AttMemory at = memory_of(a);

	for (int i = 0; i < (a->back ? 2 : 1); i++) {
		m->transposed[i] = scratch_ptr(e, at.transposed[i]);
		m->tile[i] = mem_dense(e, scratch_ptr(e, at.tile[i]), DT_f32, a->bq, a->bk);
	}
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
	const char *why = att_read(gc->g, op, gc->c->l.arch->vector_bytes, group->kernel, &a);
	int in[10], out[3], ws = -1;
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
	if (a.back)
		ws = workspace_at(gc);
	scratch_check(gc, memory_of(&a).bytes);
	int fn = kernel_begin(gc, &e, "main", &fresh);

	if (fresh) {
		Main m = {.e = &e, .a = &a, .rows = ws >= 0 ? buffer(&e, ws) : NULL};

		e.load_here = true;
		e.lanes = true;
		for (int k = 0; k < op->nin; k++)
			m.in[k] = buffer(&e, in[k]);
		for (int k = 0; k < op->nout; k++)
			m.out[k] = out[k] >= 0 ? buffer(&e, out[k]) : NULL;
		if (a.nseed >= 0) {
			m.seed = load_at(&e, m.in[a.nseed], DT_i64, (Off){.s = k64(&e, 0)});
			m.step = load_at(&e, m.in[a.nseed + 1], DT_i64, (Off){.s = k64(&e, 0)});
		}
		regions_open(&m);
		if (a.back)
			backward_emit(&m);
		else
			forward_emit(&m);
	}
	kernel_end(gc, &e, gk, fn, task_rows(&a), fresh, false);
}
