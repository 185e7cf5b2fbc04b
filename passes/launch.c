/* launch.c: which kernels share a launch.
 *
 * In: a planned module; the target's word on its kernels (TargetLaunch).   Out: Group.launch of groups whose kernels
 * share a launch, and of those that stand between such: ir/launch.c says what the numbers mean. Method: a run goes on
 * as long as its kernels are such as can share a launch and none reads or writes what another writes; within it flat
 * kernels of one function are a launch, in the order of their first, and behind these the small ones that are left.
 * Verdicts: launch.table and launch.small, for each kernel that shares one and for each that could have but for what it
 * reads or writes, or as no other has its function. Declines what races, waits for other shards or is shared by
 * processes, and kernels that run at another time than those before.
 * A module that has numbers keeps them. Switched off, every kernel is a launch. */
#include "passes.h"
#include <math.h>
#include <string.h>

typedef struct Launch {
	Graph *g;
	PassCtx *cx;
	const LaunchKernel *k;
	uint32_t n;
	Touched **of;            /* by group, NULL: not asked yet */
	bool *waits;             /* by group: gradients are waited for before it (pass overlap) */
	int *number, next;       /* by kernel: its launch, -1; the next one */
	/* why the last run ended where it did, NULL: before what no launch takes; the kernel to blame, or none */
	const char *ended;
	uint32_t blame;
} Launch;

static const Touched *
touches(Launch *x, uint32_t k)
{
	Touched **t = &x->of[x->k[k].group];

	if (!*t) {
		*t = arena_new_of(x->cx->scratch, Touched);
		group_touches(x->g, x->k[k].group, *t, x->cx->scratch);
	}
	return *t;
}

static const char *
group_name(const Launch *x, uint32_t k)
{
	return x->g->group.at[x->k[k].group].name;
}

/* May it share a launch with anything? */
static bool
joinable(const Launch *x, uint32_t k)
{
	return x->k[k].group >= 0 && (x->k[k].flat || x->k[k].small);
}

/* Why kernel k cannot run beside the joinable ones [first, k); all: what these touch. NULL: it can. */
static const char *
why_apart(Launch *x, uint32_t first, uint32_t k, const Touched *all)
{
	const LaunchKernel *a = &x->k[first], *b = &x->k[k];

	x->blame = k;
	if (x->g->group.at[b->group].variant.n)
		return "it races, and is timed by itself";
	if (b->alone)
		return b->alone;
	if (k > first && x->waits[b->group])
		return "it waits for gradients of other processes";
	if (a->once != b->once)
		return "it runs in every call, those before it once";
	if (a->early != b->early)
		return "what other shards need runs before all else";
	const Touched *one = touches(x, k);

	if (!touched_meet(one, all))
		return NULL;
	for (uint32_t i = k; i-- > first;) {
		const char *how = touched_meet(one, touches(x, i));

		if (how) {
			x->blame = i;
			return arena_printf(x->cx->scratch, how, group_name(x, i));
		}
	}
	bug("group %s touches what no kernel of its run does", group_name(x, k));
}

static uint32_t
run_end(Launch *x, uint32_t first)
{
	Touched all = {.read = {0}, .written = {0}};
	uint32_t k = first;

	for (; k < x->n && joinable(x, k); k++) {
		x->ended = why_apart(x, first, k, &all);
		if (x->ended && k > first)
			return k;
		if (x->ended)
			break; /* one that races or waits is alone */
		touched_add(&all, touches(x, k), x->cx->scratch);
	}
	x->ended = NULL;
	return k > first ? k : first + 1;
}

static void
tell(Launch *x, uint32_t k, bool table, bool fired, const char *why, double value)
{
	const Op *op = NULL;

	for (uint32_t last, i = graph_group_ops(x->g, x->k[k].group, &last); i < last; i++) {
		const Op *o = &x->g->op.at[i];

		op = !o->dead && o->group == x->k[k].group && (o->kind != OP_store || !op) ? o : op;
	}
	verdict(x->cx, (Verdict){.pass = "launch",
	                         .rule = table ? "launch.table" : "launch.small",
	                         .graph = x->g->name,
	                         .a = op->path ? op->path : "",
	                         .opa = op_info[op->kind].name,
	                         .fired = fired,
	                         .why = why,
	                         .value = value,
	                         .loc = op->loc});
}

/* Kernels of the run, k[0 .. n): one launch, if it may be; alone: of how many others none has the function. */
static bool
launch(Launch *x, const uint32_t *k, uint32_t n, bool table, uint32_t others)
{
	bool together = n > 1 && pass_may(x->cx, table ? "launch.table" : "launch.small");
	const char *why = arena_printf(x->cx->scratch,
	                               together ? table ? "%u kernels of one function are a launch, with a table"
	                                                : "%u small kernels are a launch, a block each"
	                                        : "none of the %u kernels beside it has its function",
	                               (unsigned)(together ? n : others));

	for (uint32_t i = 0; i < n; i++) {
		x->number[k[i]] = x->next;
		x->next += !together || i + 1 == n;
		if (together || (n == 1 && others))
			tell(x, k[i], table, together, why, together ? n : NAN);
	}
	return together;
}

/* The run [first, end). */
static void
run_launches(Launch *x, uint32_t first, uint32_t end)
{
	uint32_t most = (uint32_t)x->cx->target->launch.most, nsmall = 0, from = (uint32_t)x->next,
	         *same = arena_array(x->cx->scratch, uint32_t, most),
	         *small = arena_array(x->cx->scratch, uint32_t, most);
	bool any = false;

	for (uint32_t i = first; i < end; i++) {
		uint32_t n = 0;

		if (x->number[i] >= 0)
			continue;
		same[n++] = i;
		x->number[i] = INT32_MAX; /* taken */
		for (uint32_t k = i + 1; k < end && n < most && x->k[i].flat; k++)
			if (x->number[k] < 0 && x->k[k].function == x->k[i].function) {
				same[n++] = k;
				x->number[k] = INT32_MAX;
			}
		if (n == 1 && nsmall < most && x->k[i].small)
			small[nsmall++] = i;
		else
			any |= launch(x, same, n, true, end - first - 1);
	}
	if (nsmall)
		any |= launch(x, small, nsmall, false, end - first - 1);
	for (uint32_t i = first; i < end && !any; i++) /* nor does the order change? */
		any = x->number[i] != (int)(from + i - first);
	for (uint32_t i = first; i < end && !any; i++)
		x->number[i] = -1;
}

/* Are these such as share a launch? */
static bool
alike(const Launch *x, uint32_t i, uint32_t k)
{
	return (x->k[i].flat && x->k[i].function == x->k[k].function) || (x->k[i].small && x->k[k].small);
}

/* Why kernel `end` does not share a launch with one of the run before it, [first, end). */
static void
tell_end(Launch *x, uint32_t first, uint32_t end)
{
	const char *why = x->ended;

	while (first < end && !alike(x, first, end))
		first++;
	if (first == end)
		return;
	if (x->blame != end && !alike(x, x->blame, end))
		why = arena_printf(x->cx->scratch, "not with %s: %s", group_name(x, first), why);
	tell(x, end, x->k[first].flat && x->k[first].function == x->k[end].function, false, why, NAN);
}

static void
put_numbers(Launch *x)
{
	bool *any = arena_array(x->cx->scratch, bool, x->g->group.n + 1);

	for (uint32_t k = 0; k < x->n; k++)
		if (x->number[k] >= 0)
			any[x->k[k].group] = true;
	for (uint32_t k = 0; k < x->n; k++)
		if (x->k[k].group >= 0 && any[x->k[k].group])
			vec_push(x->g->arena, &x->g->group.at[x->k[k].group].launch, x->number[k]);
}

static void
mark_waits(Launch *x)
{
	const Setting *s;

	for (uint32_t n = 0; !strcmp(x->g->name, "update") &&
	                     (s = setting(x->g->module, arena_printf(x->cx->scratch, "bucket.%u", (unsigned)n)));
	     n++) {
		const Setting *wait = setting_arg(s, "wait");

		for (uint32_t i = 0; wait && wait->kind == SET_STR && i < x->g->group.n; i++)
			x->waits[i] |= !strcmp(x->g->group.at[i].name, wait->s);
	}
}

static bool
graph_launches(Graph *g, PassCtx *cx, const LaunchKernels *k)
{
	Launch x = {.g = g, .cx = cx, .k = k->at.at, .n = k->at.n};

	x.of = arena_array(cx->scratch, Touched *, g->group.n + 1);
	x.waits = arena_array(cx->scratch, bool, g->group.n + 1);
	mark_waits(&x);
	x.number = arena_array(cx->scratch, int, x.n + 1);
	for (uint32_t i = 0; i < x.n; i++)
		x.number[i] = -1;
	for (uint32_t i = 0, end; i < x.n; i = end) {
		end = run_end(&x, i);
		if (end > i + 1)
			run_launches(&x, i, end);
		if (x.ended)
			tell_end(&x, i, end);
	}
	put_numbers(&x);
	return x.next > 0;
}

static bool
has_numbers(const Module *m)
{
	for (uint32_t i = 0; i < m->graph.n; i++)
		for (uint32_t k = 0; k < m->graph.at[i]->group.n; k++)
			if (m->graph.at[i]->group.at[k].launch.n)
				return true;
	return false;
}

bool
pass_launch(Module *m, PassCtx *cx)
{
	const Target *t = cx->target;
	bool changed = false;

	if (!target_does(t, TARGET_joins_launches) || !t->launch.kernels || has_numbers(m))
		return false;
	LaunchKernels *k = arena_array(cx->scratch, LaunchKernels, m->graph.n);

	t->launch.kernels(t, m, cx->scratch, k);
	for (uint32_t i = 0; i < m->graph.n; i++)
		changed |= graph_launches(m->graph.at[i], cx, &k[i]);
	for (uint32_t i = 0; i < m->graph.n; i++) {
		const char *wrong = launches_wrong(m->graph.at[i], cx->scratch);

		if (wrong)
			bug("graph %s: %s", m->graph.at[i]->name, wrong);
	}
	return changed;
}
