/* unit.c: functions compiled each by itself, by several threads, or taken from the cache.
 *
 * In: functions that the emitter writes, each in a module of its own; what they share (microkernels, small transposes)
 * are units too, made once and called by name.   Out: their objects, joined with that of the program's loops. A
 * finished module becomes bitcode, which is both what a thread reads into a context of its own and, with the CPU and
 * the level, what the cache knows it by; the name of a kernel, which tells its place in a model, stays out of it.
 * Objects are joined in the order in which functions were begun: the same bytes for any number of threads, whatever was
 * in the cache. The emitter waits (and compiles) while there are many finished modules: memory does not grow with the
 * model. Where text is asked for (--emit llvm, asm) all stands in one module instead. */
#define _GNU_SOURCE /* sched_getaffinity */
#include "../cpu.h"
#include "../../cache.h"
#include "elf.h"
#include <llvm-c/Analysis.h>
#include <llvm-c/BitReader.h>
#include <llvm-c/BitWriter.h>
#include <llvm-c/Transforms/PassBuilder.h>
#include <pthread.h>
#include <sched.h>
#include <stdlib.h>
#include <string.h>

/* Slots to registers, equal expressions merged within blocks, empty blocks dropped. */
#define PASSES "function(mem2reg,early-cse,instsimplify,simplifycfg)"
enum { MOST_JOBS = 64, WAITING = 8 /* modules for each thread */, STACK_BYTES = 16 << 20, DEPTH = 4 };

typedef struct Unit {
	const char *name;
	bool shared;             /* others look for it by its name */
	T type;
	const struct Unit *same; /* whose code this one has too */
	CodeKey key;
	Buf code;                /* bitcode, then the object */
	const char *error;       /* malloc'd */
} Unit;

typedef struct Open { uint32_t unit; LLVMModuleRef outside; V fn; } Open;

struct Units {
	Arena *arena;
	const Arch *arch;
	int opt, jobs;
	VEC(Unit *) unit;
	uint32_t *by_key, by_key_cap; /* hash table of indices + 1 into unit */
	Open open[DEPTH];
	int depth;
	CodeCache cache;
	char *rest;              /* of a cache key */
	uint32_t found;          /* in the cache */
	/* threads: units [0, ready) of `order` can be compiled, [0, taken) somebody has */
	VEC(Unit *) order;
	uint32_t ready, taken;
	bool ended;
	pthread_mutex_t lock;
	pthread_cond_t more, less;
	pthread_t thread[MOST_JOBS];
	int nthread;
};

/* ---------------------------------------------------------------- machine code of a module */
/* Asked for by MANTOU_LLVM_FAST: slower code in half the time. */
static bool
hurries(void)
{
	const char *word = getenv("MANTOU_LLVM_FAST");

	return word && *word;
}

LLVMTargetMachineRef
llvm_machine(const Arch *a, int opt, char **error)
{
	LLVMTargetRef t;
	const char *triple = "x86_64-pc-linux-gnu";

	if (LLVMGetTargetFromTriple(triple, &t, error))
		return NULL;
	return LLVMCreateTargetMachine(t, triple, a->cpu, a->features,
	                               hurries() ? LLVMCodeGenLevelNone
	                               : opt > 0 ? LLVMCodeGenLevelDefault
	                                         : LLVMCodeGenLevelLess,
	                               LLVMRelocPIC, LLVMCodeModelDefault);
}

char *
llvm_code(LLVMModuleRef mod, LLVMTargetMachineRef tm, const char *emit, Buf *out)
{
	LLVMPassBuilderOptionsRef po = LLVMCreatePassBuilderOptions();
	LLVMMemoryBufferRef mb;
	LLVMErrorRef err;
	char *msg = NULL;

	if (LLVMVerifyModule(mod, LLVMReturnStatusAction, &msg))
		bug("LLVM rejects the emitted module: %s", msg);
	LLVMDisposeMessage(msg);
	err = LLVMRunPasses(mod, PASSES, tm, po);
	LLVMDisposePassBuilderOptions(po);
	if (err) {
		char *m = LLVMGetErrorMessage(err), *r = NULL;

		if (asprintf(&r, "LLVM's passes failed: %s", m) < 0)
			die("out of memory");
		LLVMDisposeErrorMessage(m);
		return r;
	}
	if (!strcmp(emit, "llvm")) {
		char *text = LLVMPrintModuleToString(mod);

		buf_put(out, text, strlen(text));
		LLVMDisposeMessage(text);
		return NULL;
	}
	msg = NULL;
	if (LLVMTargetMachineEmitToMemoryBuffer(tm, mod, !strcmp(emit, "asm") ? LLVMAssemblyFile : LLVMObjectFile, &msg,
	                                        &mb)) {
		char *r = NULL;

		if (asprintf(&r, "LLVM could not write code: %s", msg) < 0)
			die("out of memory");
		LLVMDisposeMessage(msg);
		return r;
	}
	buf_put(out, LLVMGetBufferStart(mb), LLVMGetBufferSize(mb));
	LLVMDisposeMemoryBuffer(mb);
	return NULL;
}

static char *
bitcode_compile(const Buf *code, LLVMTargetMachineRef tm, Buf *out)
{
	LLVMContextRef cx = LLVMContextCreate();
	LLVMMemoryBufferRef mb = LLVMCreateMemoryBufferWithMemoryRange(code->at, code->n, "unit", 0);
	LLVMModuleRef mod;

	if (LLVMParseBitcodeInContext2(cx, mb, &mod))
		bug("LLVM does not read what it wrote");
	LLVMDisposeMemoryBuffer(mb);
	char *error = llvm_code(mod, tm, "obj", out);

	LLVMDisposeModule(mod);
	LLVMContextDispose(cx);
	return error;
}

/* *tm is made when it is first needed. */
static void
unit_compile(Units *u, Unit *x, LLVMTargetMachineRef *tm)
{
	Buf object = {0};
	char *error = NULL;

	bug_context = x->name;
	if (cache_get(&u->cache, x->key, &object)) {
		__atomic_fetch_add(&u->found, 1, __ATOMIC_RELAXED);
	} else {
		if (!*tm)
			*tm = llvm_machine(u->arch, u->opt, &error);
		if (*tm)
			error = bitcode_compile(&x->code, *tm, &object);
		if (!error)
			cache_put(&u->cache, x->key, object.at, object.n);
	}
	bug_context = NULL;
	buf_free(&x->code);
	x->code = object;
	x->error = error;
}

/* ---------------------------------------------------------------- threads */
static Unit *
unit_take(Units *u, bool wait)
{
	Unit *x = NULL;

	pthread_mutex_lock(&u->lock);
	while (wait && u->taken == u->ready && !u->ended)
		pthread_cond_wait(&u->more, &u->lock);
	if (u->taken < u->ready)
		x = u->order.at[u->taken++];
	pthread_mutex_unlock(&u->lock);
	return x;
}

static void *
worker(void *arg)
{
	Units *u = arg;
	LLVMTargetMachineRef tm = NULL;

	for (Unit *x; (x = unit_take(u, true));)
		unit_compile(u, x, &tm);
	if (tm)
		LLVMDisposeTargetMachine(tm);
	return NULL;
}

static void
workers_start(Units *u)
{
	pthread_attr_t attr;

	pthread_attr_init(&attr);
	pthread_attr_setstacksize(&attr, STACK_BYTES);
	while (u->nthread < u->jobs - 1 && !pthread_create(&u->thread[u->nthread], &attr, worker, u))
		u->nthread++;
	pthread_attr_destroy(&attr);
}

static void
workers_end(Units *u)
{
	pthread_mutex_lock(&u->lock);
	u->ended = true;
	pthread_cond_broadcast(&u->more);
	pthread_mutex_unlock(&u->lock);
	while (u->nthread)
		pthread_join(u->thread[--u->nthread], NULL);
}

/* A unit whose code is whole; this thread takes part while many wait, so that memory is bounded. */
static void
unit_ready(Llvm *l, Unit *x)
{
	Units *u = l->units;

	pthread_mutex_lock(&u->lock);
	vec_push(u->arena, &u->order, x);
	u->ready++;
	uint32_t waiting = u->ready - u->taken;

	pthread_cond_signal(&u->more);
	pthread_mutex_unlock(&u->lock);
	if (waiting > (uint32_t)(u->nthread * WAITING) && (x = unit_take(u, false))) {
		const char *context = bug_context;

		unit_compile(u, x, &l->tm);
		bug_context = context;
	}
}

static int
jobs_default(void)
{
	cpu_set_t set;

	return sched_getaffinity(0, sizeof set, &set) ? 1 : CPU_COUNT(&set);
}

void
units_open(Llvm *l, int opt, int jobs, Arena *arena)
{
	Units *u = l->units = arena_new_of(arena, Units);
	unsigned major, minor, patch;

	LLVMGetVersion(&major, &minor, &patch);
	*u = (Units){.arena = arena, .arch = l->arch, .opt = opt, .jobs = jobs > 0 ? jobs : jobs_default()};
	if (u->jobs > MOST_JOBS)
		u->jobs = MOST_JOBS;
	u->cache = cache_open(arena, "kernels");
	u->rest = arena_printf(arena, "cpu 1 %s %s %d " PASSES " LLVM %u.%u.%u%s", l->arch->cpu,
	                       l->arch->features, opt > 0, major, minor, patch, hurries() ? " fast" : "");
	pthread_mutex_init(&u->lock, NULL);
	pthread_cond_init(&u->more, NULL);
	workers_start(u);
}

/* ---------------------------------------------------------------- emission */
static uint32_t *
key_slot(const Units *u, const CodeKey *k)
{
	for (uint64_t i = k->half[1] & (u->by_key_cap - 1);; i = (i + 1) & (u->by_key_cap - 1))
		if (!u->by_key[i] || !memcmp(&u->unit.at[u->by_key[i] - 1]->key, k, sizeof *k))
			return &u->by_key[i];
}

/* The unit whose code is the same, or NULL: then x is the first. */
static const Unit *
same_code(Units *u, const Unit *x, uint32_t index)
{
	if (2 * u->unit.n >= u->by_key_cap) {
		uint32_t *old = u->by_key, n = u->by_key_cap;

		u->by_key_cap = n ? 2 * n : 512;
		u->by_key = arena_array(u->arena, uint32_t, u->by_key_cap);
		for (uint32_t i = 0; i < n; i++)
			if (old[i])
				*key_slot(u, &u->unit.at[old[i] - 1]->key) = old[i];
	}
	uint32_t *slot = key_slot(u, &x->key);

	if (*slot)
		return u->unit.at[*slot - 1];
	*slot = index + 1;
	return NULL;
}

static V
declare(Llvm *l, const Unit *x)
{
	x = x->same ? x->same : x;
	V f = LLVMGetNamedFunction(l->mod, x->name);

	if (!f) {
		f = LLVMAddFunction(l->mod, x->name, x->type);
		LLVMSetVisibility(f, LLVMHiddenVisibility); /* in the same object: no way through a table */
	}
	return f;
}

/* With lines a function is shared by the kernels of one line. */
static const char *
shared_name(const Llvm *l, char to[512], const char *name)
{
	if (!l->debug || !l->at.file)
		return name;
	snprintf(to, 512, "%s.%s:%u", name, l->at.file, l->at.line);
	return to;
}

V
unit_find(Llvm *l, const char *name)
{
	Units *u = l->units;
	char full[512];

	name = shared_name(l, full, name);

	if (!u)
		return LLVMGetNamedFunction(l->mod, name);
	for (uint32_t i = 0; i < u->unit.n; i++)
		if (u->unit.at[i]->shared && !strcmp(u->unit.at[i]->name, name))
			return declare(l, u->unit.at[i]);
	return NULL;
}

V
unit_begin(Llvm *l, const char *name, T type, bool shared)
{
	Units *u = l->units;
	char full[512];

	if (shared)
		name = shared_name(l, full, name);
	if (!u) {
		V fn = LLVMAddFunction(l->mod, name, type);

		LLVMSetLinkage(fn, LLVMInternalLinkage);
		return fn;
	}
	Unit *x = arena_new_of(u->arena, Unit);
	Open *o = &u->open[u->depth++];

	if (u->depth > DEPTH)
		bug("functions within functions, %d deep", u->depth);
	x->name = shared ? arena_strdup(u->arena, name) : arena_printf(u->arena, "%s.%u", name, u->unit.n);
	x->shared = shared;
	x->type = type;
	*o = (Open){.unit = u->unit.n, .outside = l->mod};
	vec_push(u->arena, &u->unit, x);
	l->mod = llvm_module(l, "unit");
	o->fn = LLVMAddFunction(l->mod, shared ? name : "kernel", type);
	LLVMSetVisibility(o->fn, LLVMHiddenVisibility);
	return o->fn;
}

static void
module_to_unit(Llvm *l, Unit *x)
{
	LLVMMemoryBufferRef mb = LLVMWriteBitcodeToMemoryBuffer(l->mod);

	buf_put(&x->code, LLVMGetBufferStart(mb), LLVMGetBufferSize(mb));
	LLVMDisposeMemoryBuffer(mb);
	LLVMDisposeModule(l->mod);
	l->mod = NULL;
	x->key = cache_key(x->code.at, x->code.n, l->units->rest);
}

V
unit_end(Llvm *l, V fn)
{
	Units *u = l->units;

	lines_frames(l, fn);
	if (!u) {
		lines_add(l, fn, LLVMGetValueName(fn));
		return fn;
	}
	Open *o = &u->open[--u->depth];
	Unit *x = u->unit.at[o->unit];

	if (o->fn != fn)
		bug("%s ends within another function", x->name);
	if (l->align)
		LLVMSetAlignment(fn, l->align);
	lines_add(l, fn, x->name);
	module_to_unit(l, x);
	l->mod = o->outside;
	x->same = same_code(u, x, o->unit);
	if (x->same)
		buf_free(&x->code);
	else
		unit_ready(l, x);
	return declare(l, x);
}

/* ---------------------------------------------------------------- the end */
const char *
units_finish(Llvm *l, Buf *out, EmitCounts *counts)
{
	Units *u = l->units;
	Unit *loops = arena_new_of(u->arena, Unit);
	ElfPiece *piece = arena_array(u->arena, ElfPiece, u->unit.n + 1);
	const char *error = NULL;
	uint32_t n = 0;

	loops->name = "the program's loops";
	module_to_unit(l, loops);
	unit_ready(l, loops);
	for (Unit *x; (x = unit_take(u, false));)
		unit_compile(u, x, &l->tm);
	workers_end(u);
	for (uint32_t i = 0; i <= u->unit.n; i++) {
		const Unit *x = i < u->unit.n ? u->unit.at[i] : loops;

		if (x->error && !error)
			error = arena_strdup(u->arena, x->error);
		if (!x->same)
			piece[n++] = (ElfPiece){.name = x == loops ? NULL : x->name, .at = x->code.at, .n = x->code.n};
	}
	if (!error)
		elf_join(piece, n, out);
	buf_free(&loops->code);
	free((char *)(uintptr_t)loops->error);
	if (counts)
		*counts = (EmitCounts){.functions = n, .cached = u->found};
	return error;
}

void
units_close(Llvm *l)
{
	Units *u = l->units;

	if (!u)
		return;
	workers_end(u);
	for (uint32_t i = 0; i < u->unit.n; i++) {
		buf_free(&u->unit.at[i]->code);
		free((char *)(uintptr_t)u->unit.at[i]->error);
	}
	while (u->depth)
		if (u->open[--u->depth].outside) {
			LLVMDisposeModule(l->mod);
			l->mod = u->open[u->depth].outside;
		}
	pthread_mutex_destroy(&u->lock);
	pthread_cond_destroy(&u->more);
	l->units = NULL;
}
