/* wgmma.c: contractions by wgmma, the matrix instructions of a warpgroup that sm_90a has beside mma.sync.
 *
 * In: a group with a contraction of f16 or bf16.   Out: whether its tiles go that way and which they are; the text of
 * the loop over k. A warpgroup (128 threads) multiplies 64 rows of A by all columns of B, 16 of k at a time, both in
 * shared memory, while its threads do something else: here they bring the next tiles in (gemm_load.c, the same loads as
 * for mma.sync; an operand that is a plain matrix the device copies by itself, TMA). All else, frame, epilogue, parts,
 * is that of
 * gemm.c: a warp's sums lie in its registers as those of mma.sync do.
 * A tile of k is 64 deep: 128 bytes, the width of the pattern in which wgmma reads shared memory (PTX ISA, "Shared
 * memory matrix layout"): 16-byte chunk c of line l is at c ^ l % 8. Where memory follows k a line is a row and the
 * layout that of `swizzled`; else a line is a k and holds 64 rows, and blocks of 64 lines follow each other
 * (`stacked`). Of `stages` slots one is being multiplied, one was and may still be read by another warpgroup, the
 * others are being filled. What threads wrote is fenced before wgmma
 * reads it: it goes to shared memory by another way (proxy) than loads and stores. */
#include "algo.h"
#include <math.h>
#include <string.h>

enum { LINE = 128, GROUP = 4 * WARP }; /* bytes of a line in shared memory; threads of a warpgroup */

/* ---------------------------------------------------------------- whether */
typedef struct Traffic { uint32_t reads; bool before; } Traffic;

/* How often the group's ops read v, and whether one of those before op number `at` has to do with it. */
static Traffic
traffic_of(const Graph *g, int group, Val v, uint32_t at)
{
	Traffic t = {0};

	for (uint32_t last, i = graph_group_ops(g, group, &last); i < last; i++) {
		const Op *op = &g->op.at[i];

		for (int k = 0; !op->dead && op->group == group && k < op->nin + op->nout; k++) {
			if ((k < op->nin ? op->in[k] : op->out[k - op->nin]).id != v.id)
				continue;
			t.reads += k < op->nin;
			t.before |= i < at;
		}
	}
	return t;
}

/* Bytes between memory and the group: what it reads of others, what others read of it. uses: by Val.id. */
static double
group_traffic(const Graph *g, int group, const uint32_t *uses)
{
	double bytes = 0;

	for (uint32_t last, i = graph_group_ops(g, group, &last); i < last; i++) {
		const Op *op = &g->op.at[i];

		if (op->dead || op->group != group)
			continue;
		for (int k = 0; k < op->nin + op->nout; k++) {
			Val v = k < op->nin ? op->in[k] : op->out[k - op->nin];
			const Op *by = val_info(g, v)->op == UINT32_MAX ? NULL : val_op(g, v);
			Traffic t = traffic_of(g, group, v, i);
			bool again = t.before;

			for (int j = 0; j < k && j < op->nin; j++)
				again |= op->in[j].id == v.id;
			if (!again && !(by && by->group == group && t.reads == uses[v.id]))
				bytes += (double)type_bytes(val_type(g, v));
		}
	}
	return bytes;
}

/* Do operands come in chunks of 16 bytes, or, if they lie in memory, in parts of those? Single elements take longer to
 * bring than to multiply. */
static bool
in_chunks(const Graph *g, const Form *f, const Load *l)
{
	bool along_k;

	for (int k = 0; k < 2; k++) {
		int64_t run = cu_operand_run(g, f, k, &along_k);

		if (run % 8 && (l->made[k] || cu_operand_part(f->op, &(Tiles){.mma = true}, run) == 1))
			return false;
	}
	return true;
}

/* Seconds that the multiprocessor with most tiles has to do: products, or what its tiles take of L2, each behind the
 * first tiles of k and before its store; two blocks that share it cover much of that. Parts of k are joined by one
 * block, which reads them all. */
static double
tiles_time(const Machine *m, const Form *f, const Tiles *p, int64_t depth)
{
	double tiles = (double)(cu_gemm_tiles(f, p) * p->split), each = ceil(tiles / m->sms);
	double products = 2.0 * p->m * p->n / (m->rates.group_products / m->sms),
	       loads = 2.0 * (p->m + p->n) / (m->rates.cache / m->sms);
	bool two = p->m * p->n <= 64 * cu_gemm_threads(p);
	double alone = (double)depth / p->split + (two ? WGMMA_DEPTH : p->stages * WGMMA_DEPTH),
	       join = p->split > 1 ? 4.0 * p->m * p->n * (p->split + 1) / (m->rates.cache / m->sms) : 0;

	return each * (products > loads ? products : loads) * alone + join;
}

/* Tiles of 192 or 96 columns in place of p's where the machine is done sooner: results of 768 columns have 128 tiles of
 * 192 for 132 multiprocessors, and 96 of 256. `few`: of registers, for what the group does beside. */
static void
between(const Graph *g, const Op *op, const SelectCx *cx, const Form *f, bool few, Tiles *p)
{
	static const Tiles all[] = {{true, 128, 192, WGMMA_DEPTH, 4, 8, 1, 1, 2, false, false},
	                            {true, 128, 96, WGMMA_DEPTH, 3, 8, 1, 1, 2, false, false}};
	const Machine *m = cuda_machine(NULL, cx->arch);
	int64_t depth = cu_form_count(f->k, f->nk);
	double least = 0.95 * tiles_time(m, f, p, depth);

	for (int i = few ? 1 : 0; i < 2; i++) {
		Tiles t = all[i];

		cu_gemm_parts(g, op, f, NULL, &t);
		double time = tiles_time(m, f, &t, depth);

		if ((t.split > 1 && i == 0) || cu_form_count(f->m, f->nm) <= t.m / 2 || time >= least)
			continue;
		least = time;
		*p = t;
	}
}

/* Cycles that a step takes a block alone, and the issue slots of a warp in it: of what a thread brings in 16 bytes at a
 * time, copied, or computed on the way, with other channels' values in each step where channels are summed. What the
 * device copies by itself costs nothing. By the machine code of ResNet-50's and ViT's kernels. */
typedef struct Step { double alone, slots; } Step;

static Step
step_of(const Op *op, const Form *f, const Load *l, const Tiles *p)
{
	bool point = op->kind == OP_matmul || window_is_point(&f->at);
	Step s = {350, 110};

	for (int k = 0; k < 2; k++) {
		double units = (double)(k ? p->n : p->m) * WGMMA_DEPTH / 8 / cu_gemm_threads(p);
		bool window = !point && k == 0, mapped = op->kind == OP_matmul ? f->nb == 0 : !window;
		double makes = op->kind == OP_conv2d_dw ? p->groups == 1 ? 300 : 150 : window ? 300 : 400;

		s.alone += units * (l->made[k] ? makes : mapped ? 0 : 60);
		s.slots += units * (l->made[k] ? 80 : mapped ? 0 : 22);
	}
	return s;
}

/* Cycles until few tiles are done, of operands of so many bytes: blocks that share a multiprocessor take turns; parts
 * of k are joined, and what follows the contraction computed, by one block for each tile. */
static double
few_tiles_cycles(const Machine *m, const Op *op, const Form *f, const Load *l, double bytes, const Tiles *p)
{
	enum { FIRST = 600, LEVEL = 1200 };
	double tiles = (double)cu_gemm_tiles(f, p), each = ceil(tiles * p->split / m->sms),
	       threads = cu_gemm_threads(p),
	       most = p->m * p->n > 64 * threads || l->made[0] || l->made[1] ? 1 : 2,
	       beside = fmin(each, p->groups == 1 ? 3 : most);
	double products = 2.0 * p->m * p->n * WGMMA_DEPTH * m->sms * m->hz / m->rates.group_products,
	       /* of L2, at twice the rate that a multiprocessor has beside all others */
	       loads = (double)(p->m + p->n) * WGMMA_DEPTH * m->sms * m->hz / m->rates.cache;
	int64_t steps = cu_tiles_along(cu_form_count(f->k, f->nk), WGMMA_DEPTH), sums = (int64_t)p->m * p->n,
	        members = cu_parts_members(p->split, sums);
	double behind = 1500 + 50.0 * (double)sums / threads, part = (double)sums * 4 / 64;
	Step s = step_of(op, f, l, p);
	double round = fmax(fmax(s.alone, beside * threads / WARP / 4 * s.slots), beside * fmax(products, loads)),
	       busy = FIRST + (double)(cu_tiles_along(steps, p->split) + p->stages - 2) * round;

	if (p->split == 1)
		return fmax(ceil(each / beside) * (busy + behind), bytes / m->rates.bytes * m->hz);
	double join = (double)(1 + members) * part + LEVEL, moved = bytes + 2.0 * p->split * tiles * (double)sums * 4;

	if (members < p->split)
		join += (double)(1 + cu_tiles_along(p->split, (int)members)) * part + LEVEL;
	return fmax(ceil(each / beside) * busy, moved / m->rates.bytes * m->hz) + join + behind;
}

/* Of the tiles from all[i] on, where none of them fills the machine, that and those parts of k which are done first. */
static Tiles
few_tiles(const Graph *g, const Op *op, const SelectCx *cx, const Form *f, const Load *l, const Tiles *all, int i)
{
	const Machine *m = cuda_machine(NULL, cx->arch);
	int64_t steps = cu_tiles_along(cu_form_count(f->k, f->nk), WGMMA_DEPTH);
	double least = INFINITY,
	       bytes = (double)(type_bytes(val_type(g, op->in[0])) + type_bytes(val_type(g, op->in[1])));
	Tiles best = all[i];

	for (; i < 4; i++) {
		Tiles t = all[i];
		int64_t tiles = cu_gemm_tiles(f, &t), most = f->classes ? 1 : (t.groups == 1 ? 3 : 2) * m->sms / tiles;

		for (t.split = 1; t.split <= most && t.split * 2 <= steps + 1; t.split++) {
			double time = few_tiles_cycles(m, op, f, l, bytes, &t);

			if (t.split > 1 && t.split * tiles * t.m * t.n * 4 > cu_machine(g)->budget.l2)
				break;
			if (time < (t.m * t.n < best.m * best.n ? 1.03 : 0.97) * least) {
				least = fmin(time, least);
				best = t;
			}
		}
		if (tiles >= m->sms)
			break;
	}
	return best;
}

/* Why mma.sync is as good; NULL: *p are the tiles. Where memory takes longer than the products wgmma is the better one
 * as well: its operands need no registers, so two blocks share a multiprocessor, and it leaves the warps to what comes
 * before and behind. l: does the group leave registers for 128 sums of a thread? parts: k may be split;
 * *few: they are, as far as they shall. */
static const char *
declines(const Graph *g, int group, const Op *op, const SelectCx *cx, const Load *l, bool parts, Tiles *p,
         double *ratio, bool *few)
{
	static const Tiles all[] = {{true, 128, 256, WGMMA_DEPTH, 4, 8, 1, 1, 2, false, false},
	                            {true, 128, 128, WGMMA_DEPTH, 3, 8, 1, 1, 2, false, false},
	                            {true, 128, 64, WGMMA_DEPTH, 4, 8, 1, 1, 2, false, false},
	                            {true, 64, 64, WGMMA_DEPTH, 4, 4, 1, 1, 1, false, false}};
	Form f = cu_form(g, op);
	int64_t m = cu_form_count(f.m, f.nm), n = cu_form_count(f.n, f.nn);
	const Rates *r = &cuda_machine(NULL, cx->arch)->rates;
	int i = !l->heavy && !l->reduces && !parts ? 0 : 1; /* parts are joined in registers beside the sums */

	double products = op_flops(g, op) / r->products;
	double memory = group_traffic(g, group, cx->uses ? cx->uses : graph_use_counts(g, g->arena)) / r->bytes;

	*ratio = products / memory;
	if (!in_chunks(g, &f, l))
		return "an operand's rows hold no whole chunks of 16 bytes, nor, in memory, of 8, or 4 of a matrix";
	if (m <= WGMMA_ROWS / 2 || n <= WGMMA_ROWS / 2)
		return "the result is narrower than half a tile";
	while (i < 3 && (n <= all[i].n / 2 || m <= all[i].m / 2))
		i++;
	int widest = i;

	while (i < 3 && !parts && cu_gemm_tiles(&f, &all[i]) < cu_machine(g)->budget.blocks)
		i++;
	*p = all[i];
	int64_t sms = cuda_machine(NULL, cx->arch)->sms, tiles = cu_gemm_tiles(&f, p);
	Tiles halves = *p;

	cu_gemm_parts(g, op, &f, l, &halves);
	/* of operands that are computed on the way only where half the machine would be idle, as each tile computes its
	 * own */
	*few = !f.classes &&
	       (parts && !l->made[0] && !l->made[1] ? tiles < sms : 2 * tiles * halves.split < sms);
	if (*few)
		*p = few_tiles(g, op, cx, &f, l, all, widest);
	return NULL;
}

static const char *
wgmma_offer(const Graph *g, int group, const Op *op, const SelectCx *cx, const Load *l, Tiles *p, double *value)
{
	Form f = cu_form(g, op);
	bool along_k, few = false;
	const char *why = declines(g, group, op, cx, l, cu_gemm_has_parts(op, &f, l), p, value, &few);

	if (!why && !few) {
		cu_gemm_parts(g, op, &f, l, p);
		/* where products bind: what is made on its way in is made for each tile across */
		if (*value >= 1 && p->n >= 128 && !l->made[0] && !l->made[1] &&
		    cu_operand_run(g, &f, 1, &along_k) % 8 == 0)
			between(g, op, cx, &f, l->heavy || l->reduces, p);
	}
	return why;
}

static const char *
chosen(Arena *a, double value)
{
	return arena_printf(a, "products by mma.sync would take %.2f of the time that memory takes", value);
}

static const char *
why_not(Arena *a, DType t, const char *arch)
{
	if (!cu_wgmma_arch(arch))
		return arena_printf(a, "wgmma is an instruction of sm_90a, not of %s",
		                    arch ? arch : "this architecture");
	return t == DT_f16 || t == DT_bf16 ? NULL : "wgmma multiplies f16 and bf16";
}

static double rate(const Rates *r) { return r->group_products; }

const CuAlgo cu_algo_wgmma = {
	.family = FAMILY_cuda_wgmma,
	.doc = "tiles multiplied by the matrix instructions of four warps, wgmma of f16 or bf16",
	.tiles = true,
	.reduces = true,
	.why_not = why_not,
	.offer = wgmma_offer,
	.chosen = chosen,
	.rate = rate,
	.emit = cu_gemm_emit,
};

/* ---------------------------------------------------------------- tensor maps */
/* One thread has the device copy tile `next` of k: lines of 64 elements along k, or 64 of k with 64 rows each, block by
 * block. The slot's barrier counts their bytes. */
static void
copy_boxes(Gemm *x, const Operand *o)
{
	Cuda *c = x->c;
	const char *to = arena_printf(c->a, "shared + %d + slot * %d", cu_slots_at(x, o), o->bytes);
	Ix line = o->which ? x->n0 : x->m0;

	if (o->along_k) {
		cu_line(c, "copy_box(%s, &map_%c, (int)next * %d, (int)%s, filled + slot * 8);", to, o->name,
		        WGMMA_DEPTH, line);
		return;
	}
	cu_line(c, "for (int j = 0; j < %d; j++)", wgmma_blocks(o->rows));
	cu_line(c, "\tcopy_box(%s + j * %d, &map_%c, (int)%s + j * %d, (int)next * %d, filled + slot * 8);", to,
	        WGMMA_ROWS * LINE, o->name, line, WGMMA_ROWS, WGMMA_DEPTH);
}

void
cu_wgmma_open(Gemm *x)
{
	Cuda *c = x->c;

	if (!c->map.n)
		return;
	cu_line(c, "const unsigned filled = shared + %d;", (int)x->shared);
	cu_line(c, "int rounds = 0;");
	cu_line(c, "bool lost = false;");
	Scope s = cu_scope_open(c, "if (tid == 0)");

	cu_line(c, "for (int i = 0; i < %d; i++)", x->p.stages);
	cu_line(c, "\tbarrier_make(filled + i * 8);");
	cu_line(c, "barriers_made();");
	cu_scope_close(c, s);
	cu_line(c, "__syncthreads();");
}

/* ---------------------------------------------------------------- text */
/* A descriptor of slot `slot`, from row `row` of the operand on: where it begins, how far apart blocks of 64 rows and
 * of 8 lines are, swizzle of 128 bytes; in units of 16 bytes. */
static void
descriptor(Gemm *x, const Operand *o, const char *row)
{
	Cuda *c = x->c;

	cu_line(c, "const unsigned long long at_%c = matrix(shared + %s%s);", o->name,
	        cu_slot_text(x, o, arena_printf(c->a, "(turn + 2) %% %d", x->p.stages)), row);
}

/* Tile `at - stages + 2`: started here, waited for two rounds of the loop later. */
static void
products(Gemm *x)
{
	Cuda *c = x->c;
	const Tiles *p = &x->p;
	int blocks = p->m / p->groups / WGMMA_ROWS, step[2];

	descriptor(x, &x->x[0],
	           p->groups > 1 ? arena_printf(c->a, " + tid / %d * %d", GROUP, blocks * WGMMA_ROWS * LINE) : "");
	descriptor(x, &x->x[1], "");
	for (int i = 0; i < 2; i++)
		step[i] = (x->x[i].along_k ? 32 : 16 * LINE) / 16; /* 16 of k, in units of 16 bytes */
	cu_line(c, "products_begin();");
	cu_line(c, "#pragma unroll");
	cu_line(c, "for (int ks = 0; ks < %d; ks++)", WGMMA_DEPTH / 16);
	cu_line(c, "\t#pragma unroll");
	cu_line(c, "\tfor (int i = 0; i < %d; i++)", blocks);
	cu_line(c, "\t\tWGMMA_%d(%s, %d, %d, acc[i], at_a + i * %d + ks * %d, at_b + ks * %d);", p->n,
	        val_type(c->g, x->op->in[0])->dtype == DT_f16 ? "f16" : "bf16", !x->x[0].along_k, !x->x[1].along_k,
	        WGMMA_ROWS * LINE / 16, step[0], step[1]);
	cu_line(c, "products_end();");
}

/* Sums are registers that instructions change behind the compiler's back: none may be read or moved across this. */
static void
fence(const Gemm *x)
{
	Cuda *c = x->c;

	cu_line(c, "#pragma unroll");
	cu_line(c, "for (int i = 0; i < %d; i++)", x->p.m / x->p.groups / WGMMA_ROWS);
	cu_line(c, "\t#pragma unroll");
	cu_line(c, "\tfor (int j = 0; j < %d; j++)", x->p.n / 8);
	cu_line(c, "\t\tsums_fence(acc[i][j]);");
}

void
cu_wgmma_steps(Gemm *x, Ix first, Ix count)
{
	Cuda *c = x->c;
	const Tiles *p = &x->p;
	Operand *o = x->x;
	bool async = o[0].async || o[1].async, mapped = o[0].mapped || o[1].mapped;
	int ahead = p->stages - 2; /* rounds between a tile's way in and its products */

	fence(x);
	cu_line(c, "#pragma unroll 1");
	Scope s = cu_scope_open(c, "for (%s at = 0; at < %s + %d; at++)", c->it, count, ahead);

	cu_line(c, "const int turn = %s;",
	        mapped ? "rounds + (int)at" : arena_printf(c->a, "(int)(at %% %d)", p->stages));
	if (async)
		cu_line(c, "COPIES_WAIT(%d);", ahead - 1);
	if (!o[0].mapped || !o[1].mapped)
		cu_line(c, "written_for_wgmma();");
	cu_line(c, "__syncthreads();");
	Scope in = cu_scope_open(c, "if (at >= %d)", ahead);

	if (mapped)
		cu_line(c, "barrier_wait(filled + (turn + 2) %% %d * 8, (turn - %d) / %d & 1, &lost);", p->stages,
		        ahead, p->stages);
	products(x);
	cu_scope_close(c, in);
	in = cu_scope_open(c, "if (at < %s)", count);
	cu_line(c, "const int slot = turn %% %d;", p->stages);
	cu_line(c, "const %s next = %s + at;", c->it, first);
	if (mapped) {
		Scope one = cu_scope_open(c, "if (tid == 0)");

		cu_line(c, "barrier_expect(filled + slot * 8, %d);",
		        (o[0].mapped ? o[0].bytes : 0) + (o[1].mapped ? o[1].bytes : 0));
		for (int i = 0; i < 2; i++)
			if (o[i].mapped)
				copy_boxes(x, &o[i]);
		cu_scope_close(c, one);
	}
	for (int i = 0; i < 2; i++) {
		cu_load_open(x, &o[i]);
		if (!o[i].mapped)
			cu_load_tile(x, &o[i]);
		cu_load_keep(x, &o[i]);
	}
	cu_scope_close(c, in);
	if (async)
		cu_line(c, "copies_end();");
	cu_line(c, "PRODUCTS_WAIT(1);");
	cu_scope_close(c, s);
	cu_line(c, "PRODUCTS_WAIT(0);");
	fence(x);
	if (mapped)
		cu_line(c, "barriers_kept(lost);");
	if (mapped)
		cu_line(c, "rounds += %s;",
		        p->split > 1 ? arena_printf(c->a, "%s > 0 ? %s : 0", count, count)
		                     : count); /* the last parts of k may be empty */
}
