/* loops.c: the module's loops as functions, the kernel table and the RtCodeObject.
 *
 * In: compiled kernels of every graph, the descriptor's text.   Out: one function per graph (a call: scalars in,
 * kernels in order, the fault record asked after each check), one per loop (RtEntry), and mantou_object_INDEX. These
 * are the emissions of the loop ops for --sink N and epoch; --sink off walks the descriptor's tables instead and does
 * the same, op by op. */
#include "cpu.h"
#include "../../runtime/rt.h"
#include <assert.h>
#include <stddef.h>
#include <string.h>

const char *program_graph_of(const Graph *loop, uint32_t at);

/* of a graph in one function: LLVM's register allocation is not linear in a function's calls */
enum { PART_KERNELS = 64 };

typedef struct Loops {
	Compile *c;
	Llvm *l;
	LLVMBuilderRef b;
	V fn, run;
	V graph_fn[64]; const Graph *graph[64]; int ngraph;
} Loops;

static V
kk(const Loops *p, int64_t x)
{
	return LLVMConstInt(p->l->i64, (unsigned long long)x, 1);
}

static V
field_at(Loops *p, size_t offset)
{
	return LLVMBuildInBoundsGEP2(p->b, p->l->i8, p->run, (V[]){kk(p, (int64_t)offset)}, 1, "");
}

static V
field(Loops *p, size_t offset)
{
	return LLVMBuildLoad2(p->b, p->l->i64, field_at(p, offset), "");
}

static V
volatile_field(Loops *p, size_t offset)
{
	V v = field(p, offset);

	LLVMSetVolatile(v, 1);
	return v;
}
#define FIELD(p, name) field(p, offsetof(RtRun, name))

static V
helper(Loops *p, const char *name, T ret, T *args, int n)
{
	V f = LLVMGetNamedFunction(p->l->mod, name);

	return f ? f : LLVMAddFunction(p->l->mod, name, LLVMFunctionType(ret, args, (unsigned)n, 0));
}

static V
call(Loops *p, V f, V *args, int n)
{
	return LLVMBuildCall2(p->b, LLVMGlobalGetValueType(f), f, args, (unsigned)n, "");
}

static LLVMBasicBlockRef
block(Loops *p, const char *name)
{
	return LLVMAppendBasicBlockInContext(p->l->cx, p->fn, name);
}

static V
table(Loops *p, const int64_t *x, int n, const char *name)
{
	V *k = arena_array(p->c->arena, V, n);

	for (int i = 0; i < n; i++)
		k[i] = kk(p, x[i]);
	V arr = LLVMConstArray2(p->l->i64, k, (uint64_t)n), g = LLVMAddGlobal(p->l->mod, LLVMTypeOf(arr), name);

	LLVMSetInitializer(g, arr);
	LLVMSetGlobalConstant(g, 1);
	LLVMSetLinkage(g, LLVMPrivateLinkage);
	return g;
}

static V
table32(Loops *p, const int32_t *x, int n, const char *name)
{
	V *k = arena_array(p->c->arena, V, n);

	for (int i = 0; i < n; i++)
		k[i] = LLVMConstInt(p->l->i32, (unsigned)x[i], 0);
	V arr = LLVMConstArray2(p->l->i32, k, (uint64_t)n), g = LLVMAddGlobal(p->l->mod, LLVMTypeOf(arr), name);

	LLVMSetInitializer(g, arr);
	LLVMSetGlobalConstant(g, 1);
	LLVMSetLinkage(g, LLVMPrivateLinkage);
	return g;
}

/* Returns status from the function if it is not RT_OK. */
static void
leave_if(Loops *p, V status)
{
	LLVMBasicBlockRef out = block(p, "leave"), on = block(p, "on");

	LLVMBuildCondBr(p->b, LLVMBuildICmp(p->b, LLVMIntNE, status, kk(p, 0), ""), out, on);
	LLVMPositionBuilderAtEnd(p->b, out);
	LLVMBuildRet(p->b, status);
	LLVMPositionBuilderAtEnd(p->b, on);
}

static void
begin_fn(Loops *p, V fn)
{
	p->fn = fn;
	p->run = LLVMGetParam(fn, 0);
	LLVMPositionBuilderAtEnd(p->b, block(p, "start"));
}

/* ---------------------------------------------------------------- a call of a graph */
static void
put_scalar(Loops *p, const Graph *g, InputKind kind, size_t from, bool is_f64, V arena)
{
	Val v = graph_input(g, kind);

	(void)is_f64;
	if (!v.id || val_info(g, v)->offset < 0)
		return;
	V at = LLVMBuildInBoundsGEP2(p->b, p->l->i8, arena, (V[]){kk(p, val_info(g, v)->offset)}, 1, "");

	LLVMBuildStore(p->b, field(p, from), at); /* 8 bytes, whatever they mean */
}

static void
launch(Loops *p, const KernelRec *k, uint32_t row, V arena, V n, V off)
{
	V fn = p->c->fn.at[k->fn], tasks;

	if (k->cut) {
		T own[4] = {p->l->ptr, p->l->ptr, p->l->ptr, p->l->i64};

		call(p, helper(p, "rt_parallel_own", p->l->voidt, own, 4), (V[]){p->run, fn, off, kk(p, row)}, 4);
		return;
	}

	if (!k->mul) {
		int64_t t = (k->rows + k->grain - 1) / k->grain;

		if (t == 1 && !k->turns && !k->scratch) {
			call(p, fn, (V[]){arena, off, n, kk(p, 0), kk(p, 1), LLVMConstNull(p->l->ptr)}, 6);
			return;
		}
		tasks = kk(p, t);
	} else {
		V rows = LLVMBuildMul(p->b, n, kk(p, k->rows * k->mul), "");

		if (k->div != 1)
			rows = LLVMBuildSDiv(p->b, rows, kk(p, k->div), "");
		tasks = LLVMBuildSDiv(p->b, LLVMBuildAdd(p->b, rows, kk(p, k->grain - 1), ""), kk(p, k->grain), "");
	}
	if (k->threads == 1 && !k->scratch && !k->turns) {
		call(p, fn, (V[]){arena, off, n, kk(p, 0), tasks, LLVMConstNull(p->l->ptr)}, 6);
		return;
	}
	T args[6] = {p->l->ptr, p->l->ptr, p->l->ptr, p->l->i64, p->l->i64, p->l->i64};

	if (k->turns) {
		call(p, helper(p, "rt_parallel_turns", p->l->voidt, args, 6),
		     (V[]){p->run, fn, off, tasks, kk(p, k->turns), kk(p, k->threads)}, 6);
		return;
	}
	if (k->threads) {
		call(p, helper(p, "rt_parallel_few", p->l->voidt, args, 6),
		     (V[]){p->run, fn, off, tasks, kk(p, k->shares ? RT_SHARES : k->whole), kk(p, k->threads)}, 6);
		return;
	}
	const char *name = k->shares ? "rt_parallel_shares" : k->whole ? "rt_parallel_whole" : "rt_parallel";
	unsigned n_args = k->whole ? 5 : 4;

	call(p, helper(p, name, p->l->voidt, args, n_args), (V[]){p->run, fn, off, tasks, kk(p, k->whole)}, n_args);
}

/* The step ends before anything is updated where the loss is not finite. */
static void
emit_loss(Loops *p, const Graph *g)
{
	T args[3] = {p->l->ptr, p->l->i64, p->l->i64};
	Val v = graph_loss(g);

	leave_if(p, call(p, helper(p, "rt_loss", p->l->i64, args, 3),
	    (V[]){p->run, kk(p, val_info(g, v)->offset), kk(p, val_type(g, v)->dtype)}, 3));
}

/* rt_start or rt_wait of bucket i. */
static void
bucket_call(Loops *p, const char *fn, uint32_t i)
{
	T args[2] = {p->l->ptr, p->l->i64};

	call(p, helper(p, fn, p->l->voidt, args, 2), (V[]){p->run, kk(p, i)}, 2);
}

/* Buckets of gradients that are complete behind kernel k. */
static void
emit_starts(Loops *p, const GraphKernels *gk, uint32_t k)
{
	const ProgramKernels *ks = p->c->ks;

	for (uint32_t i = 0; i < ks->nbucket && !strcmp(gk->g->name, "train"); i++)
		if (ks->bucket[i].kernel == k)
			bucket_call(p, "rt_start", i);
}

/* Buckets of gradients whose sums are read from kernel k of graph update on. */
static void
emit_waits(Loops *p, const GraphKernels *gk, uint32_t k)
{
	const ProgramKernels *ks = p->c->ks;

	for (uint32_t i = 0; i < ks->nbucket && !strcmp(gk->g->name, "update"); i++)
		if (ks->bucket[i].wait == k)
			bucket_call(p, "rt_wait", i);
}

/* Kernels [from, to) in the function that is open. */
static void
emit_kernels(Loops *p, const GraphKernels *gk, uint32_t from, uint32_t to, V arena, V n)
{
	T ptr = p->l->ptr;

	for (uint32_t i = from; i < to; i++) {
		const KernelRec *k = &gk->k.at[i];

		if (k->join && p->c->ks->joins_early) {
			T args[2] = {p->l->ptr, p->l->i64};

			call(p, helper(p, "rt_give", p->l->voidt, args, 2), (V[]){p->run, kk(p, k->join - 1)}, 2);
			continue;
		}
		emit_waits(p, gk, i);
		if (k->tell)
			call(p, helper(p, "rt_tell", p->l->voidt, &ptr, 1), &p->run, 1);
		launch(p, k, i, arena, n, table(p, k->off, k->noff, "off"));
		if (k->loss)
			emit_loss(p, gk->g);
		if (!k->check) {
			emit_starts(p, gk, i);
			continue;
		}
		LLVMBasicBlockRef bad = block(p, "fault"), good = block(p, "good");
		V fault = call(p, helper(p, "rt_fault", p->l->i64, &ptr, 1), &p->run, 1);

		LLVMBuildCondBr(p->b, LLVMBuildICmp(p->b, LLVMIntNE, fault, kk(p, 0), ""), bad, good);
		LLVMPositionBuilderAtEnd(p->b, bad);
		LLVMBuildRet(p->b, kk(p, RT_FAULT));
		LLVMPositionBuilderAtEnd(p->b, good);
		emit_starts(p, gk, i);
	}
}

static V
emit_part(Loops *p, const GraphKernels *gk, uint32_t from, uint32_t to)
{
	T args[3] = {p->l->ptr, p->l->ptr, p->l->i64};
	V fn = LLVMAddFunction(p->l->mod, arena_printf(p->c->arena, "%s.part%u", gk->g->name, from),
	                       LLVMFunctionType(p->l->i64, args, 3, 0));

	LLVMSetLinkage(fn, LLVMInternalLinkage);
	begin_fn(p, fn);
	emit_kernels(p, gk, from, to, LLVMGetParam(fn, 1), LLVMGetParam(fn, 2));
	LLVMBuildRet(p->b, kk(p, RT_OK));
	return fn;
}

/* Runs what is made once, unless the last call was this graph's and no state has changed since; other graphs use the
 * same memory, but those between. */
static void
emit_once(Loops *p, const Graph *g, V once, V arena, V n)
{
	if (graph_between(g))
		return;
	V mark = kk(p, once ? RT_PREPACKED(g->name) : 0), at = field_at(p, offsetof(RtRun, prepacked));

	if (once) {
		LLVMBasicBlockRef make = block(p, "once"), on = block(p, "on");

		LLVMBuildCondBr(p->b, LLVMBuildICmp(p->b, LLVMIntEQ, LLVMBuildLoad2(p->b, p->l->i64, at, ""), mark, ""),
		                on, make);
		LLVMPositionBuilderAtEnd(p->b, make);
		leave_if(p, call(p, once, (V[]){p->run, arena, n}, 3));
		LLVMBuildStore(p->b, mark, at);
		LLVMBuildBr(p->b, on);
		LLVMPositionBuilderAtEnd(p->b, on);
	} else {
		LLVMBuildStore(p->b, mark, at);
	}
}

static bool
has_cuts(const GraphKernels *gk)
{
	bool any = false;

	for (uint32_t i = 0; i < gk->k.n; i++)
		any |= gk->k.at[i].cut != NULL;
	return any;
}

static V
emit_graph(Loops *p, const GraphKernels *gk)
{
	const Graph *g = gk->g;
	uint32_t nk = gk->k.n - gk->nonce, npart = nk > PART_KERNELS ? (nk + PART_KERNELS - 1) / PART_KERNELS : 0;
	V *part = arena_array(p->c->arena, V, npart), once = gk->nonce ? emit_part(p, gk, 0, gk->nonce) : NULL;
	V fn = LLVMAddFunction(p->l->mod, arena_printf(p->c->arena, "mantou_graph_%s_%d", g->name, p->c->o->index),
	                       LLVMFunctionType(p->l->i64, &p->l->ptr, 1, 0));

	for (uint32_t i = 0; i < npart; i++)
		part[i] = emit_part(p, gk, gk->nonce + i * PART_KERNELS,
		                    gk->nonce + (i + 1 < npart ? (i + 1) * PART_KERNELS : nk));
	LLVMSetVisibility(fn, LLVMHiddenVisibility); /* external for those who load the object in process */
	begin_fn(p, fn);
	V arena = LLVMBuildLoad2(p->b, p->l->ptr, field_at(p, offsetof(RtRun, arena)), ""), n = FIELD(p, n);

	put_scalar(p, g, IN_SEED, offsetof(RtRun, seed), false, arena);
	put_scalar(p, g, IN_STEP, offsetof(RtRun, step), false, arena);
	put_scalar(p, g, IN_RATE, offsetof(RtRun, rate), true, arena);
	put_scalar(p, g, IN_FIRST, offsetof(RtRun, first), false, arena);
	emit_once(p, g, once, arena, n);
	for (uint32_t i = 0; i < npart; i++)
		leave_if(p, call(p, part[i], (V[]){p->run, arena, n}, 3));
	if (!npart)
		emit_kernels(p, gk, gk->nonce, gk->k.n, arena, n);
	if (p->c->ks->nbucket && !strcmp(g->name, "update"))
		bucket_call(p, "rt_wait", p->c->ks->nbucket);
	if (has_cuts(gk))
		call(p, helper(p, "rt_spread", p->l->voidt, &p->l->ptr, 1), &p->run, 1);
	LLVMBuildRet(p->b, kk(p, RT_OK));
	return fn;
}

/* ---------------------------------------------------------------- loop ops */
static const Graph *
callee(const Loops *p, const char *name, int *index)
{
	for (int i = 0; i < p->ngraph; i++)
		if (!strcmp(p->graph[i]->name, name)) {
			*index = i;
			return p->graph[i];
		}
	bug("a loop calls graph %s, which is not there", name);
}

/* The model's inputs in the descriptor's order: those of train, then what only eval or infer have. */
static int
input_offsets(const Loops *p, const Graph *g, int64_t *off)
{
	static const char *const order[] = {"train", "eval", "infer"};
	const char *seen[64];
	int n = 0;

	for (int k = 0; k < 3; k++)
		for (int i = 0; i < p->ngraph; i++) {
			if (strcmp(p->graph[i]->name, order[k]) != 0)
				continue;
			for (uint32_t j = 0; j < p->graph[i]->input.n; j++) {
				const Input *in = &p->graph[i]->input.at[j];
				bool known = in->kind != IN_DATA;

				for (int q = 0; q < n; q++)
					known |= !strcmp(seen[q], in->name);
				if (known || n == 64)
					continue;
				seen[n] = in->name;
				off[n] = -1;
				for (uint32_t q = 0; q < g->input.n; q++)
					if (g->input.at[q].kind == IN_DATA && !strcmp(g->input.at[q].name, in->name))
						off[n] = val_info(g, g->input.at[q].v)->offset;
				n++;
			}
		}
	return n;
}

static void
emit_record(Loops *p, const Graph *g)
{
	int64_t off[RT_MAX_RESULTS], n = 0, loss = -1;
	int32_t dtype[RT_MAX_RESULTS];
	T args[5] = {p->l->ptr, p->l->ptr, p->l->ptr, p->l->i64, p->l->i64};

	for (uint32_t i = 0; i < g->result.n && n < RT_MAX_RESULTS; i++) {
		const Result *r = &g->result.at[i];

		if (!result_reported(r->kind))
			continue;
		if (r->kind == RES_LOSS && loss < 0)
			loss = n;
		off[n] = val_info(g, r->v)->offset;
		dtype[n++] = val_type(g, r->v)->dtype;
	}
	leave_if(p, call(p, helper(p, "rt_emit", p->l->i64, args, 5),
	                 (V[]){p->run, table(p, off, (int)n, "results"), table32(p, dtype, (int)n, "dtypes"), kk(p, n),
	                       kk(p, loss)},
	                 5));
}

static void
emit_poll(Loops *p)
{
	LLVMBasicBlockRef ask = block(p, "poll"), on = block(p, "on");
	V step = LLVMBuildAdd(p->b, FIELD(p, step), kk(p, 1), ""),
	  due = LLVMBuildICmp(p->b, LLVMIntSGE, step, volatile_field(p, offsetof(RtRun, stop_at)), "");
	V used = LLVMBuildSub(p->b, volatile_field(p, offsetof(RtRun, ring_head)),
	                      volatile_field(p, offsetof(RtRun, ring_tail)), "");
	V full = LLVMBuildICmp(p->b, LLVMIntSGT, used, LLVMBuildAShr(p->b, FIELD(p, ring_mask), kk(p, 1), ""), "");
	T ptr = p->l->ptr;

	LLVMBuildCondBr(p->b, LLVMBuildOr(p->b, due, full, ""), ask, on);
	LLVMPositionBuilderAtEnd(p->b, ask);
	leave_if(p, call(p, helper(p, "rt_poll", p->l->i64, &ptr, 1), &p->run, 1));
	LLVMBuildBr(p->b, on);
	LLVMPositionBuilderAtEnd(p->b, on);
}

typedef struct Repeat { LLVMBasicBlockRef head, after; bool counted, shards; } Repeat;

static Repeat
repeat_open(Loops *p, const Op *op)
{
	Repeat r = {.counted = !strcmp(attr_str(op, A_what), "count"),
	            .shards = !strcmp(attr_str(op, A_what), "shards")};
	LLVMBasicBlockRef body = block(p, "body");

	if (r.shards)
		LLVMBuildStore(p->b, FIELD(p, shard), field_at(p, offsetof(RtRun, micro)));
	else if (r.counted)
		LLVMBuildStore(p->b, kk(p, 0), field_at(p, offsetof(RtRun, micro)));
	r.head = block(p, "repeat");
	r.after = block(p, "after");
	LLVMBuildBr(p->b, r.head);
	LLVMPositionBuilderAtEnd(p->b, r.head);
	V now = r.counted || r.shards ? FIELD(p, micro) : FIELD(p, step);
	V end = r.shards ? FIELD(p, shard_end) : r.counted ? kk(p, attr_int(op, A_count)) : FIELD(p, until);

	LLVMBuildCondBr(p->b, LLVMBuildICmp(p->b, LLVMIntSLT, now, end, ""), body, r.after);
	LLVMPositionBuilderAtEnd(p->b, body);
	return r;
}

static void
repeat_close(Loops *p, const Repeat *r, int64_t count)
{
	size_t at = r->counted || r->shards ? offsetof(RtRun, micro) : offsetof(RtRun, step);

	LLVMBuildStore(p->b, LLVMBuildAdd(p->b, field(p, at), kk(p, 1), ""), field_at(p, at));
	LLVMBuildBr(p->b, r->head);
	LLVMPositionBuilderAtEnd(p->b, r->after);
	if (r->counted) /* it stays the last batch's number, as emit and the walker have it */
		LLVMBuildStore(p->b, kk(p, count - 1), field_at(p, offsetof(RtRun, micro)));
}

/* The end of the repeat that op i opens. */
static uint32_t
closing(const Graph *loop, uint32_t i)
{
	for (int depth = 0; i < loop->op.n; i++)
		if (!loop->op.at[i].dead && (loop->op.at[i].kind == OP_repeat || loop->op.at[i].kind == OP_end)) {
			depth += loop->op.at[i].kind == OP_repeat ? 1 : -1;
			if (!depth)
				return i;
		}
	bug("loop %s: a repeat without an end", loop->name);
}

static V
emit_loop(Loops *p, const Graph *loop)
{
	V fn = LLVMAddFunction(p->l->mod, arena_printf(p->c->arena, "loop.%s", loop->name),
	                       LLVMFunctionType(p->l->i64, &p->l->ptr, 1, 0));
	Repeat stack[8];
	int64_t counts[8] = {0};
	int depth = 0, index;
	T args[3] = {p->l->ptr, p->l->ptr, p->l->i64};

	LLVMSetLinkage(fn, LLVMInternalLinkage);
	begin_fn(p, fn);
	for (uint32_t i = 0; i < loop->op.n; i++) {
		const Op *op = &loop->op.at[i];
		int64_t off[64];
		const Graph *g;

		if (op->dead)
			continue;
		switch (op->kind) {
		case OP_shuffle: call(p, helper(p, "rt_shuffle", p->l->voidt, args, 1), &p->run, 1); break;
		case OP_repeat:
			if (!strcmp(attr_str(op, A_what), "shards") && p->c->ks->njoin) {
				bool early = p->c->ks->joins_early;

				leave_if(p, call(p, helper(p, early ? "rt_count" : "rt_joined", p->l->i64, args, 1),
				                 &p->run, 1));
				if (!early) {            /* which does all that is in here */
					i = closing(loop, i);
					break;
				}
			}
			if (depth == 8)
				bug("loops nested deeper than 8");
			counts[depth] = attr_int(op, A_count);
			stack[depth++] = repeat_open(p, op);
			break;
		case OP_end:
			depth--;
			repeat_close(p, &stack[depth], counts[depth]);
			break;
		case OP_batch: {
			g = callee(p, program_graph_of(loop, i), &index);
			int n = input_offsets(p, g, off);

			call(p, helper(p, "rt_batch", p->l->voidt, args, 3),
			     (V[]){p->run, table(p, off, n, "inputs"), kk(p, n)}, 3);
			break;
		}
		case OP_rate: {
			V r = call(p, helper(p, "rt_rate", p->l->f64, args, 1), &p->run, 1);

			LLVMBuildStore(p->b, r, field_at(p, offsetof(RtRun, rate)));
			break;
		}
		case OP_call:
			callee(p, attr_str(op, A_graph), &index);
			leave_if(p, call(p, p->graph_fn[index], &p->run, 1));
			break;
		case OP_merge: leave_if(p, call(p, helper(p, "rt_merge", p->l->i64, args, 1), &p->run, 1)); break;
		case OP_emit: emit_record(p, callee(p, program_graph_of(loop, i), &index)); break;
		case OP_poll: emit_poll(p); break;
		default: bug("loop %s: no emission of %s", loop->name, op_info[op->kind].name);
		}
	}
	LLVMBuildRet(p->b, kk(p, RT_OK));
	return fn;
}

/* ---------------------------------------------------------------- the code object */
static V
text(Loops *p, const char *s)
{
	V str = LLVMConstStringInContext(p->l->cx, s, (unsigned)strlen(s), 0),
	  g = LLVMAddGlobal(p->l->mod, LLVMTypeOf(str), "text");

	LLVMSetInitializer(g, str);
	LLVMSetGlobalConstant(g, 1);
	LLVMSetLinkage(g, LLVMPrivateLinkage);
	return g;
}

void
loops_emit(Compile *c, const char *json)
{
	Loops p = {.c = c, .l = &c->l, .b = LLVMCreateBuilderInContext(c->l.cx)};
	V entry[3] = {NULL}, null = LLVMConstNull(c->l.ptr);
	static const char *const names[] = {"train", "eval", "infer"};

	for (uint32_t i = 0; i < c->ks->graph.n; i++) {
		if (p.ngraph == 64)
			bug("more than 64 graphs");
		p.graph[p.ngraph] = c->ks->graph.at[i]->g;
		p.graph_fn[p.ngraph++] = emit_graph(&p, c->ks->graph.at[i]);
	}
	for (uint32_t i = 0; i < c->m->graph.n; i++)
		for (int k = 0; k < 3; k++)
			if (c->m->graph.at[i]->is_loop && !strcmp(c->m->graph.at[i]->name, names[k]))
				entry[k] = emit_loop(&p, c->m->graph.at[i]);
	V table_fn = LLVMConstArray2(c->l.ptr, c->fn.at, c->fn.n),
	  kernels = LLVMAddGlobal(c->l.mod, LLVMTypeOf(table_fn), "kernels");

	LLVMSetInitializer(kernels, table_fn);
	LLVMSetGlobalConstant(kernels, 1);
	LLVMSetLinkage(kernels, LLVMPrivateLinkage);
	/* RtCodeObject, field by field */
	V f[] = {LLVMConstInt(c->l.i32, RT_VERSION, 0),
	         LLVMConstInt(c->l.i32, c->fn.n, 0),
	         text(&p, json),
	         text(&p, c->l.arch->needs),
	         kernels,
	         entry[0] ? entry[0] : null,
	         entry[1] ? entry[1] : null,
	         entry[2] ? entry[2] : null,
	         null,
	         null,
	         null,
	         null};

	static_assert(sizeof(RtCodeObject) == 2 * 4 + 10 * 8,
	              "the RtCodeObject that loops.c writes is not that of rt.h");
	V object = LLVMConstStructInContext(c->l.cx, f, sizeof f / sizeof *f, 0);
	V g = LLVMAddGlobal(c->l.mod, LLVMTypeOf(object), arena_printf(c->arena, "mantou_object_%d", c->o->index));

	LLVMSetInitializer(g, object);
	LLVMSetGlobalConstant(g, 1);
	LLVMDisposeBuilder(p.b);
}
