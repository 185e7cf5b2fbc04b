/* merge.c: kernels into launches, and the program's text.
 *
 * In: the kernels of every graph, one after the other; for each the launch that pass launch gave it (Group.launch,
 * ir/launch.c).   Out: launches in the order of their numbers. Kernels of one flat function (maps.c, totals.c): its
 * offsets and counts stand in a table in constant memory, and a block finds its kernel there. So the optimizer takes a
 * few launches for all parameters, and so do their copies in 16 bits and what their gradients are reduced to; not those
 * that processes share, each of which has its own part of few; what joins the numbers that these leave stands together,
 * and is a launch without being numbered. Small kernels of one block each, whatever their
 * functions: a block to each. A text may say of others that they share a launch: that is an error, as they cannot.
 * Functions that nothing calls any more are left out; the text follows the order of calls. */
#include "cuda.h"
#include <string.h>

typedef struct Merge { CuProgram *p; GraphKernels *gk; Arena *a; } Merge;

bool
cu_is_small(const CuProgram *p, const KernelRec *k)
{
	return k->rows == 1 && p->fn.at[k->fn].loose;
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

/* Why these cannot be one launch; NULL. *same: they are of one function, which takes a table. */
static const char *
launch_wrong(const Merge *x, const KernelRec *const *k, int n, bool *same)
{
	const CuFunction *f = &x->p->fn.at[k[0]->fn];
	bool small = true;

	*same = f->flat;
	for (int i = 0; i < n; i++) {
		*same = *same && k[i]->fn == k[0]->fn;
		small = small && cu_is_small(x->p, k[i]);
		if (k[i]->join || k[i]->cut || k[i]->once != k[0]->once || k[i]->early != k[0]->early)
			return arena_printf(x->p->a,
			                    "%s and %s run at different times, or in other processes: they "
			                    "cannot be one launch",
			                    k[0]->name, k[i]->name);
	}
	return *same || small ? NULL
	                      : arena_printf(x->p->a,
	                                     "%s and %d more are neither of one function nor small: they cannot be one "
	                                     "launch",
	                                     k[0]->name, n - 1);
}

/* Kernels [first, end), all of which have numbers: launches by these. behind: see graph_join. */
static const char *
run_join(Merge *x, GraphKernels *out, const int *number, uint32_t first, uint32_t end, uint32_t *behind)
{
	const KernelRec **k = arena_array(x->a, const KernelRec *, end - first);

	for (int64_t now = -1, next;; now = next) {
		int n = 0;
		bool same;

		next = INT64_MAX;
		for (uint32_t i = first; i < end; i++)
			next = number[i] > now && number[i] < next ? number[i] : next;
		for (uint32_t i = first; i < end; i++)
			if (number[i] == next) {
				behind[i] = out->k.n;
				k[n++] = &x->gk->k.at[i];
			}
		if (!n)
			return NULL;
		const char *wrong = n > 1 ? launch_wrong(x, k, n, &same) : NULL;

		if (wrong)
			return wrong;
		if (n > CU_LAUNCH)
			return arena_printf(x->p->a, "%s and %d more are too many for one launch", k[0]->name, n - 1);
		tell_joined(x, k, n > 1 ? n : 0);
		vec_push(x->p->a, &out->k, n == 1 ? *k[0] : same ? joined(x, k, n) : joined_small(x, k, n));
	}
}

/* By kernel: its launch, -1. */
static const char *
numbers_of(const Merge *x, int *number)
{
	const GraphKernels *gk = x->gk;
	int most = -1, before = -1;
	uint32_t *part = arena_array(x->a, uint32_t, gk->g->group.n + 1);

	for (uint32_t i = 0; i < gk->k.n; i++) {
		int group = gk->k.at[i].group;
		const Group *gr = group >= 0 ? &gk->g->group.at[group] : NULL;

		number[i] = -1;
		if (gr && part[group]++ < gr->launch.n)
			number[i] = gr->launch.at[part[group] - 1];
		before = number[i] < 0 ? most : before;
		if (number[i] >= 0 && number[i] <= before)
			return arena_printf(x->p->a, "%s is in launch %d, ahead of a kernel that has no number",
			                    gk->k.at[i].name, number[i]);
		most = number[i] > most ? number[i] : most;
	}
	for (uint32_t i = 0; i < gk->g->group.n; i++)
		if (gk->g->group.at[i].launch.n && part[i] != gk->g->group.at[i].launch.n)
			return arena_printf(x->p->a, "group %s has %u kernels, and launches of %u",
			                    gk->g->group.at[i].name, (unsigned)part[i],
			                    (unsigned)gk->g->group.at[i].launch.n);
	return NULL;
}

/* Buckets are complete, and waited for, by launches. behind: by kernel the launch that does it, of `launches`. */
static void
bucket_launches(const Merge *x, uint32_t *behind, uint32_t n, uint32_t launches)
{
	ProgramKernels *ks = &x->p->ks;
	bool train = !strcmp(x->gk->g->name, "train"), update = !strcmp(x->gk->g->name, "update");

	for (uint32_t i = 0; i < ks->nbucket && update; i++) {
		uint32_t first = launches;

		for (uint32_t k = ks->bucket[i].wait; k < n; k++) /* and none behind it is launched before */
			first = behind[k] < first ? behind[k] : first;
		ks->bucket[i].wait = first;
	}
	for (uint32_t i = 1; i < n; i++) /* and all before it */
		behind[i] = behind[i] > behind[i - 1] ? behind[i] : behind[i - 1];
	for (uint32_t i = 0; i < ks->nbucket && train; i++)
		ks->bucket[i].kernel = behind[ks->bucket[i].kernel];
}

/* Kernels that join what processes have told each other stand side by side: those of one function, from `first` on. */
static uint32_t
told_end(const Merge *x, uint32_t first)
{
	const KernelRec *k = x->gk->k.at;
	uint32_t end = first + 1;

	while (k[first].told && end < x->gk->k.n && end - first < CU_LAUNCH && k[end].told &&
	       k[end].fn == k[first].fn)
		end++;
	return end;
}

static const char *
graph_join(Merge *x)
{
	GraphKernels out = {.g = x->gk->g, .addressed = x->gk->addressed};
	uint32_t n = x->gk->k.n, *behind = arena_array(x->a, uint32_t, n + 1); /* by kernel: the launch that does it */
	int *number = arena_array(x->a, int, n + 1);
	const char *wrong = numbers_of(x, number);

	for (uint32_t i = 0, end; i < n && !wrong; i = end) {
		for (end = i; end < n && number[end] >= 0; end++)
			;
		if (end > i) {
			wrong = run_join(x, &out, number, i, end, behind);
		} else {
			const KernelRec **k = arena_array(x->a, const KernelRec *, n);

			end = told_end(x, i);
			for (uint32_t j = i; j < end; j++) {
				behind[j] = out.k.n;
				k[j - i] = &x->gk->k.at[j];
			}
			tell_joined(x, k, end > i + 1 ? (int)(end - i) : 0);
			vec_push(x->p->a, &out.k, end > i + 1 ? joined(x, k, (int)(end - i)) : *k[0]);
		}
	}
	if (wrong)
		return arena_printf(x->p->a, "graph %s: %s", out.g->name, wrong);
	bucket_launches(x, behind, n, out.k.n);
	for (uint32_t i = 0; i < out.k.n; i++)
		out.nonce += out.k.at[i].once;
	out.variant.at = x->gk->variant.at;
	out.variant.n = x->gk->variant.n;
	out.variant.cap = x->gk->variant.cap;
	*x->gk = out;
	return NULL;
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
			buf_printf(b, "%s; blocks=%lld%s%s */\n%s%s %s%s", f->what, (long long)k->rows,
			           f->shared ? arena_printf(p->a, ", threads=%d, shared=%d", f->block, f->shared) : "",
			           once, f->before, cu_kernel_word(p->a, f), f->name, f->text);
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

const char *
cu_merge(CuProgram *p)
{
	Merge x = {.p = p, .a = arena_new()};
	const char *wrong = NULL;

	for (uint32_t i = 0; i < p->ks.graph.n && !wrong; i++) {
		x.gk = p->ks.graph.at[i];
		wrong = graph_join(&x);
	}
	if (!wrong)
		program_text(p);
	arena_free(x.a);
	return wrong;
}
