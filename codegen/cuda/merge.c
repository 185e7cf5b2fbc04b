/* merge.c: launches joined, and the program's text.
 *
 * In: the kernels of every graph, one after the other.   Out: in a run of flat kernels (maps.c, totals.c) none of which
 * reads or writes what another writes, those of one function become one launch: its offsets and counts stand in a table
 * in constant memory, and a block finds its kernel there. So the optimizer takes a few launches for all parameters, and
 * so do their copies in 16 bits and what their gradients are reduced to; not those that processes share, each of which
 * has its own part of few. Small kernels of one block each become one
 * launch too, whatever their functions. Functions that nothing calls any more are left out; the text follows the order
 * of calls. */
#include "cuda.h"
#include <string.h>

enum { MOST = 256 }; /* kernels of a launch: the table lies in 64 KB of constant memory with others */

typedef struct Range { int64_t from, to; } Range;
typedef struct Touched { VEC(Range) read, written; } Touched;
typedef struct Merge { CuProgram *p; const Module *m; GraphKernels *gk; Arena *a; } Merge;

/* What the kernels of rec's group read and write, all of them; the group's workspace as well, which may be the place of
 * what another group's kernels read. */
static void
touches(const Merge *x, const KernelRec *k, Touched *t)
{
	const Graph *g = x->gk->g;

	const Group *gr = &g->group.at[k->group];

	t->read.n = t->written.n = 0;
	if (gr->workspace > 0) {
		Range own = {gr->workspace_offset, gr->workspace_offset + gr->workspace};

		vec_push(x->a, &t->read, own);
		vec_push(x->a, &t->written, own);
	}
	for (uint32_t last, i = graph_group_ops(g, k->group, &last); i < last; i++) {
		const Op *op = &g->op.at[i];

		if (op->dead || op->group != k->group)
			continue;
		if (op->kind == OP_store) {
			const State *s = module_state((Module *)(uintptr_t)x->m, attr_str(op, A_state));

			vec_push(x->a, &t->written, ((Range){s->offset, s->offset + type_bytes(&s->type)}));
		}
		for (int j = 0; j < op->nin + op->nout; j++) {
			const ValInfo *v = val_info(g, j < op->nin ? op->in[j] : op->out[j - op->nin]);
			Range r = {v->offset, v->offset + type_bytes(&v->type)};

			if (v->offset >= 0 && j < op->nin)
				vec_push(x->a, &t->read, r);
			else if (v->offset >= 0 && op->kind != OP_load)
				vec_push(x->a, &t->written, r);
		}
	}
}

static bool
meet(const Touched *a, const Touched *b)
{
	for (uint32_t i = 0; i < a->written.n; i++) {
		Range w = a->written.at[i];

		for (uint32_t k = 0; k < b->read.n; k++)
			if (w.from < b->read.at[k].to && b->read.at[k].from < w.to)
				return true;
		for (uint32_t k = 0; k < b->written.n; k++)
			if (w.from < b->written.at[k].to && b->written.at[k].from < w.to)
				return true;
	}
	return false;
}

/* One block, whose threads do not meet. */
static bool
is_small(const Merge *x, const KernelRec *k)
{
	return k->rows == 1 && x->p->fn.at[k->fn].loose;
}

/* The end of the run of kernels from `first` on that may run in any order. */
static uint32_t
run_end(const Merge *x, uint32_t first)
{
	const GraphKernels *gk = x->gk;
	Touched all = {.read = {0}, .written = {0}}, one = all;
	uint32_t i = first;

	for (; i < gk->k.n; i++) {
		const KernelRec *k = &gk->k.at[i];

		/* what races is timed by itself */
		if (k->group < 0 || gk->g->group.at[k->group].variant.n || k->once != gk->k.at[first].once ||
		    /* something else runs in its place; processes have other parts of it; it runs without the rest */
		    k->join || k->cut || k->early != gk->k.at[first].early ||
		    !(x->p->fn.at[k->fn].flat || is_small(x, k)))
			break;
		touches(x, k, &one);
		if (meet(&one, &all) || meet(&all, &one))
			break;
		for (uint32_t r = 0; r < one.read.n; r++)
			vec_push(x->a, &all.read, one.read.at[r]);
		for (uint32_t r = 0; r < one.written.n; r++)
			vec_push(x->a, &all.written, one.written.at[r]);
	}
	return i;
}

/* The kernel's text, for one of `entries` that have so many blocks together: another number of the block and of the
 * blocks. */
static const char *
with_blocks(Arena *a, const char *text, int entries, int64_t blocks)
{
	static const char *const from[] = {"blockIdx.x", "gridDim.x", "ENTRY", "ENTRIES", "PART0", "PARTS"};
	const char *const to[] = {"block", "blocks",
	                          "entry", arena_printf(a, "%d", entries),
	                          "part0", arena_printf(a, "%lld", (long long)blocks)};
	Buf b = {0};

	text = strchr(text, '\n') + 1;
	while (*text) {
		int k = 0;

		while (k < 6 && strncmp(text, from[k], strlen(from[k])) != 0)
			k++;
		if (k < 6) {
			buf_printf(&b, "%s", to[k]);
			text += strlen(from[k]);
		} else {
			buf_put(&b, text++, 1);
		}
	}
	const char *r = arena_strndup(a, b.at, b.n);

	buf_free(&b);
	return r;
}

/* The launch of the function `name` (before, text: freed) that takes the place of n kernels. */
static KernelRec
launch_of(CuProgram *p, const KernelRec *const *k, int n, const char *name, Buf *before, Buf *text, int64_t blocks,
          const char *kernels)
{
	KernelRec r = *k[0];

	r.name = name;
	r.fn = (int)p->fn.n;
	r.off = NULL;
	r.noff = 0;
	r.rows = blocks;
	for (int i = 1; i < n; i++) {
		r.flops += k[i]->flops;
		r.bytes += k[i]->bytes;
	}
	vec_push(p->a, &p->fn,
	         ((CuFunction){.name = name,
	                       .before = arena_strndup(p->a, before->at, before->n),
	                       .text = arena_strndup(p->a, text->at, text->n),
	                       .what = arena_printf(p->a, "%d %s in one launch", n, kernels),
	                       .block = BLOCK}));
	buf_free(before);
	buf_free(text);
	return r;
}

/* One kernel in place of n: each is a row of the table, its first block and its parameters. */
static KernelRec
joined(Merge *x, const KernelRec *const *k, int n)
{
	CuProgram *p = x->p;
	const CuFunction *f = &p->fn.at[k[0]->fn];
	const char *name = arena_printf(p->a, "%s_and_%d", k[0]->name, n - 1);
	bool counts = strstr(f->text, "ENTRY");
	int columns = k[0]->noff + 1;
	int64_t block = 0;
	Buf before = {0}, text = {0};

	for (int i = 0; i < n; i++)
		block += k[i]->rows;
	buf_printf(&before, "static __device__ void %s_each(char *arena, long long n", name);
	for (int i = 0; i + 1 < columns; i++)
		buf_printf(&before, ", long long o%d", i);
	buf_printf(&before, ", unsigned block, unsigned blocks%s)\n%s",
	           counts ? ", unsigned entry, unsigned part0" : "", with_blocks(p->a, f->text, n, block));
	block = 0;
	buf_printf(&before, "static __constant__ long long %s_table[%d][%d] = {\n", name, n + 1, columns);
	for (int i = 0; i < n; i++) {
		buf_printf(&before, "\t{%lld", (long long)block);
		for (int j = 0; j + 1 < columns; j++)
			buf_printf(&before, ", %lld", (long long)k[i]->off[j]);
		buf_printf(&before, "},\n");
		block += k[i]->rows;
	}
	buf_printf(&before, "\t{%lld}};\n", (long long)block);
	buf_printf(&text,
	           "(char *arena, long long n)\n{\n\tfor (unsigned b = blockIdx.x; b < %lld; b += gridDim.x) "
	           "{\n\t\tint low = 0, high = %d;\n"
	           "\t\twhile (high - low > 1) {\n\t\t\tint middle = (low + high) / 2;\n\t\t\tif (b < "
	           "%s_table[middle][0]) high = middle; else low = middle;\n\t\t}\n"
	           "\t\tconst long long *t = %s_table[low];\n\t\t%s_each(arena, n",
	           (long long)block, n, name, name, name);
	for (int j = 1; j < columns; j++)
		buf_printf(&text, ", t[%d]", j);
	buf_printf(&text, ", b - (unsigned)t[0], (unsigned)(t[%d] - t[0])%s);\n\t}\n}\n", columns,
	           counts ? ", low, (unsigned)t[0]" : "");
	return launch_of(p, k, n, name, &before, &text, block > 65535 ? 65535 : block, "kernels");
}

/* One kernel in place of n small ones of different functions: a block to each. */
static KernelRec
joined_small(Merge *x, const KernelRec *const *k, int n)
{
	CuProgram *p = x->p;
	const char *name = arena_printf(p->a, "%s_and_%d", k[0]->name, n - 1);
	Buf before = {0}, text = {0};

	buf_printf(&text,
	           "(char *arena, long long n)\n{\n\tfor (unsigned b = blockIdx.x; b < %d; b += gridDim.x)\n\t\tswitch "
	           "(b) {\n",
	           n);
	for (int i = 0; i < n; i++) {
		buf_printf(&before, "static __device__ void %s_each%d(char *arena, long long n", name, i);
		buf_printf(&text, "\t\tcase %d: %s_each%d(arena, n", i, name, i);
		for (int j = 0; j < k[i]->noff; j++) {
			buf_printf(&before, ", long long o%d", j);
			buf_printf(&text, ", %lld", (long long)k[i]->off[j]);
		}
		buf_printf(&before, ", unsigned block, unsigned blocks)\n%s",
		           with_blocks(p->a, p->fn.at[k[i]->fn].text, 1, 1));
		buf_printf(&text, ", 0, 1); break;\n");
	}
	buf_printf(&text, "\t\t}\n}\n");
	return launch_of(p, k, n, name, &before, &text, n, "small kernels");
}

static void
tell_joined(Merge *x, const KernelRec *const *k, int n)
{
	for (int i = 0; i < n; i++)
		buf_printf(&x->p->text, "/* graph %s, group %s: joined%s */\n", x->gk->g->name,
		           x->gk->g->group.at[k[i]->group].name, k[i]->once ? "; once" : "");
}

/* The run [first, end): one kernel for each function, in the order of their first; those that are alone and small share
 * one. */
static void
run_join(Merge *x, GraphKernels *out, uint32_t first, uint32_t end)
{
	bool *taken = arena_array(x->a, bool, end - first);
	const KernelRec *small[MOST] = {0};
	int nsmall = 0;

	for (uint32_t i = first; i < end; i++) {
		const KernelRec *same[MOST];
		int n = 0;

		for (uint32_t k = i; k < end && n < MOST && x->p->fn.at[x->gk->k.at[i].fn].flat; k++)
			if (!taken[k - first] && x->gk->k.at[k].fn == x->gk->k.at[i].fn) {
				same[n++] = &x->gk->k.at[k];
				taken[k - first] = true;
			}
		if (n == 0 && !taken[i - first])
			same[n++] = &x->gk->k.at[i];
		if (n == 1 && nsmall < MOST && is_small(x, same[0])) {
			small[nsmall++] = same[0];
		} else if (n > 0) {
			tell_joined(x, same, n > 1 ? n : 0);
			vec_push(x->p->a, &out->k, n > 1 ? joined(x, same, n) : *same[0]);
		}
	}
	tell_joined(x, small, nsmall > 1 ? nsmall : 0);
	if (nsmall > 0)
		vec_push(x->p->a, &out->k, nsmall > 1 ? joined_small(x, small, nsmall) : *small[0]);
}

static void
graph_join(Merge *x)
{
	GraphKernels out = {.g = x->gk->g, .addressed = x->gk->addressed};
	uint32_t *behind = arena_array(x->a, uint32_t, x->gk->k.n + 1); /* by kernel: the launch that does it */

	for (uint32_t i = 0; i < x->gk->k.n;) {
		uint32_t begin = i, end = run_end(x, i);

		if (end < i + 2) {
			vec_push(x->p->a, &out.k, x->gk->k.at[i]);
			end = i + 1;
		} else {
			run_join(x, &out, i, end);
		}
		for (i = begin; i < end; i++)
			behind[i] = out.k.n - 1;
	}
	for (uint32_t i = 0; i < x->p->ks.nbucket && !strcmp(out.g->name, "train"); i++)
		x->p->ks.bucket[i].kernel = behind[x->p->ks.bucket[i].kernel];
	for (uint32_t i = 0; i < out.k.n; i++)
		out.nonce += out.k.at[i].once;
	out.variant.at = x->gk->variant.at;
	out.variant.n = x->gk->variant.n;
	out.variant.cap = x->gk->variant.cap;
	*x->gk = out;
}

typedef struct Text { CuProgram *p, *out; int *number; } Text; /* number: of each function in out, from 1; 0: not yet */

/* The text of the kernel's function, if nothing has called it before; k gets its number. */
static void
kernel_text(Text *t, const Graph *g, KernelRec *k)
{
	CuProgram *p = t->p;
	const CuFunction *f = &p->fn.at[k->fn];
	const char *once = k->once ? "; once" : "";
	Buf *b = &p->text;

	buf_printf(b, "\n/* graph %s, group %s: ", g->name, k->group >= 0 ? g->group.at[k->group].name : "-");
	if (t->number[k->fn]) {
		buf_printf(b, "%s with other offsets%s */\n", f->name, once);
	} else {
		vec_push(p->a, &t->out->fn, *f);
		t->number[k->fn] = (int)t->out->fn.n;
		if (f->plan)
			buf_printf(b, "%s%s */\n/* %s: %s */\n", f->what, once, f->name, f->text);
		else
			buf_printf(b, "%s; blocks=%lld%s%s */\n%sKERNEL%s %s%s", f->what, (long long)k->rows,
			           f->shared ? arena_printf(p->a, ", threads=%d, shared=%d", f->block, f->shared) : "",
			           once, f->before, f->two ? "2" : "", f->name, f->text);
	}
	k->fn = t->number[k->fn] - 1;
}

/* Functions in the order of their first call, the others left out; and the text. Kernels that race against a graph's
 * own come behind those. */
static void
program_text(CuProgram *p)
{
	CuProgram new = {.a = p->a};
	Text t = {p, &new, arena_array(p->a, int, p->fn.n)};

	for (uint32_t i = 0; i < p->ks.graph.n; i++) {
		GraphKernels *gk = p->ks.graph.at[i];

		for (uint32_t j = 0; j < gk->k.n; j++)
			kernel_text(&t, gk->g, &gk->k.at[j]);
		for (uint32_t v = 0; v < gk->variant.n; v++)
			for (uint32_t j = 0; j < gk->variant.at[v].k.n; j++)
				kernel_text(&t, gk->g, &gk->variant.at[v].k.at[j]);
	}
	p->fn.at = new.fn.at;
	p->fn.n = new.fn.n;
	p->fn.cap = new.fn.cap;
}

void
cu_merge(CuProgram *p, const Module *m)
{
	Merge x = {.p = p, .m = m, .a = arena_new()};

	for (uint32_t i = 0; i < p->ks.graph.n; i++) {
		x.gk = p->ks.graph.at[i];
		graph_join(&x);
	}
	program_text(p);
	arena_free(x.a);
}
