/* parse.c: reads a PTX module: directives, declarations, bodies; instructions are handed to decode.c.
 *
 * In: PTX text as NVRTC writes it.   Out: a Module, its global variables placed in device memory and filled, or a message with the line.
 * Names live in nested scopes, as inline assembly opens braces of its own; a branch forward is settled when the scope that holds the label ends.
 * Registers of .func bodies lie below those of every kernel, so that a kernel can call them: a module that has such bodies is read twice, the second
 * time with their size known. Recursion has no place to put its registers and is refused.
 * Refused: textures, surfaces, samplers, calls through pointers, aliases, 128-bit registers. */
#include "ptx.h"

#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "device.h"

#define REGS_FIRST ((uint32_t)SR_COUNT * LANES * 4)

_Noreturn void
parse_fail(Parser *p, CUresult status, const char *format, ...)
{
	va_list ap;
	int n = snprintf(p->error, p->error_bytes, "line %d: ", p->lex.line);

	va_start(ap, format);
	if (n >= 0 && (size_t)n < p->error_bytes)
		vsnprintf(p->error + n, p->error_bytes - (size_t)n, format, ap);
	va_end(ap);
	p->status = status;
	longjmp(p->fail, 1);
}

static _Noreturn void
parse_expected(Parser *p, const char *what)
{
	char word[64];

	parse_fail(p, CUDA_ERROR_INVALID_PTX, "expected %s, found %s", what, lex_unknown(&p->lex, word, sizeof word));
}

void *
grow(void *array, int n, int *cap, size_t size)
{
	if (n < *cap)
		return array;
	*cap = *cap ? *cap * 2 : 16;
	array = realloc(array, (size_t)*cap * size);
	if (!array)
		abort();
	return array;
}

static bool
parse_accept(Parser *p, const char *word)
{
	if (!lex_is(&p->lex, word))
		return false;
	lex_next(&p->lex);
	return true;
}

static void
parse_want(Parser *p, const char *word)
{
	if (!parse_accept(p, word))
		parse_expected(p, word);
}

static uint64_t
parse_int(Parser *p)
{
	bool minus = parse_accept(p, "-");
	uint64_t v = p->lex.value;

	if (p->lex.tok != TOK_INT)
		parse_expected(p, "a number");
	lex_next(&p->lex);
	return minus ? 0 - v : v;
}

static char *
copy_text(const char *s, size_t n)
{
	char *c = malloc(n + 1);

	if (!c)
		abort();
	memcpy(c, s, n);
	c[n] = 0;
	return c;
}

static char *
parse_name(Parser *p)
{
	char *name;

	if (p->lex.tok != TOK_WORD)
		parse_expected(p, "a name");
	name = copy_text(p->lex.text, p->lex.len);
	lex_next(&p->lex);
	return name;
}

/* symbols */

static uint32_t
hash_of(const char *s, uint32_t n)
{
	uint32_t h = 2166136261u;

	for (uint32_t i = 0; i < n; i++)
		h = (h ^ (uint8_t)s[i]) * 16777619u;
	return h;
}

static Sym *
sym_add(Parser *p, const char *name, uint32_t len, SymKind kind)
{
	uint32_t h = hash_of(name, len);
	Sym *s;

	p->sym = grow(p->sym, p->nsym, &p->capsym, sizeof *p->sym);
	s = &p->sym[p->nsym];
	*s = (Sym){ .name = name, .len = len, .hash = h, .kind = kind, .next = p->hash[h % HASH_SIZE] };
	p->hash[h % HASH_SIZE] = ++p->nsym;
	return s;
}

static const Sym *
sym_exact(const Parser *p, const char *name, uint32_t len)
{
	uint32_t h = hash_of(name, len);

	for (int i = p->hash[h % HASH_SIZE]; i; i = p->sym[i - 1].next)
		if (p->sym[i - 1].hash == h && p->sym[i - 1].len == len && !memcmp(p->sym[i - 1].name, name, len))
			return &p->sym[i - 1];
	return NULL;
}

/* A name, or a register %r7 of a range %r<10>, which comes back in *range. */
const Sym *
sym_find(Parser *p, const char *name, uint32_t len, Sym *range)
{
	const Sym *s = sym_exact(p, name, len);
	uint32_t digits = len, k = 0;

	if (s && s->kind != SYM_REGS)
		return s;
	while (digits > 0 && name[digits - 1] >= '0' && name[digits - 1] <= '9')
		digits--;
	if (digits == len || len - digits > 8)
		return NULL;
	for (uint32_t i = digits; i < len; i++)
		k = k * 10 + (uint32_t)(name[i] - '0');
	s = sym_exact(p, name, digits);
	if (!s || s->kind != SYM_REGS || k >= s->count)
		return NULL;
	*range = *s;
	range->kind = SYM_REG;
	range->at = s->at + k * (s->bytes == 1 ? 4 : s->bytes * LANES);
	return range;
}

static void
scope_open(Parser *p)
{
	if (p->depth == 63)
		parse_fail(p, CUDA_ERROR_INVALID_PTX, "braces nest too deep");
	p->mark[p->depth++] = p->nsym;
}

/* Branches of this scope whose label stands in it are settled; the others are left to the scope around it. */
static void
scope_close(Parser *p)
{
	int from = p->mark[--p->depth], kept = 0;

	for (int i = 0; i < p->npending; i++) {
		Pending *b = &p->pending[i];
		const Sym *s = b->depth > p->depth ? sym_exact(p, b->name, b->len) : NULL;

		if (s && s->kind == SYM_LABEL && s - p->sym >= from) {
			p->m->ins[b->ins].target = s->at;
			continue;
		}
		if (b->depth > p->depth)
			b->depth = p->depth;
		p->pending[kept++] = *b;
	}
	p->npending = kept;
	while (p->nsym > from) {
		Sym *s = &p->sym[--p->nsym];

		p->hash[s->hash % HASH_SIZE] = s->next;
	}
}

/* types and registers */

int
type_code(const char *name)
{
	static const char *const names[] = { "", "u8", "s8", "u16", "s16", "u32", "s32", "u64", "s64", "f16", "bf16", "f32", "f64", "b8", "b16", "b32", "b64",
		"pred", "f16x2", "bf16x2", "tf32", "e4m3x2", "e5m2x2", "e4m3", "e5m2" };

	for (int i = 1; i < (int)(sizeof names / sizeof *names); i++)
		if (!strcmp(names[i], name))
			return i;
	return 0;
}

uint32_t
type_bytes(const char *type)
{
	static const uint8_t bytes[] = { 0, 1, 1, 2, 2, 4, 4, 8, 8, 2, 2, 4, 8, 1, 2, 4, 8, 1, 4, 4, 4, 2, 2, 1, 1 };

	return bytes[type_code(type)];
}

uint32_t
parse_reg(Parser *p, uint32_t bytes)
{
	uint32_t size = bytes == 1 ? 4 : bytes * LANES, at;

	if (bytes != 1)
		p->regs = (p->regs + 63) & ~63u;
	at = p->regs;
	p->regs += size;
	return at;
}

uint32_t
parse_temp(Parser *p, uint32_t bytes)
{
	int k = bytes == 1 ? 0 : bytes == 2 ? 1 : bytes == 4 ? 2 : 3, i = p->ntemp[k]++;

	if (i >= 12)
		return parse_reg(p, bytes);
	if (!p->temp[k][i])
		p->temp[k][i] = parse_reg(p, bytes);
	return p->temp[k][i];
}

/* A register that holds a constant; equal ones share it. */
uint32_t
parse_const(Parser *p, uint64_t value, uint32_t bytes, int shared)
{
	Func *f = p->f;

	for (int i = f->nconstant; i-- > 0 && i > f->nconstant - 64;)
		if (f->constant[i].value == value && f->constant[i].bytes == bytes && f->constant[i].shared == shared)
			return f->constant[i].reg;
	f->constant = grow(f->constant, f->nconstant, &p->capconst, sizeof *f->constant);
	f->constant[f->nconstant] = (Const){ parse_reg(p, bytes), bytes, value, shared };
	return f->constant[f->nconstant++].reg;
}

static void
parse_registers(Parser *p) /* .reg .b32 %r<10>, %x; */
{
	uint32_t bytes;
	char type[16];

	if (p->lex.tok != TOK_WORD || p->lex.len >= sizeof type)
		parse_expected(p, "a type");
	memcpy(type, p->lex.text + 1, p->lex.len - 1);
	type[p->lex.len - 1] = 0;
	bytes = type_bytes(type);
	if (!bytes)
		parse_fail(p, CUDA_ERROR_INVALID_PTX, "registers of type %s are not simulated", type);
	if (bytes == 1 && strcmp(type, "pred"))
		bytes = 2; /* 8 bits live in 16 */
	lex_next(&p->lex);
	do {
		const char *name = p->lex.text;
		uint32_t len = p->lex.len, count = 1;
		Sym *s;

		if (p->lex.tok != TOK_WORD)
			parse_expected(p, "a register");
		lex_next(&p->lex);
		s = sym_add(p, name, len, SYM_REG);
		s->bytes = bytes;
		if (parse_accept(p, "<")) {
			s->kind = SYM_REGS;
			count = s->count = (uint32_t)parse_int(p);
			parse_want(p, ">");
		}
		if (bytes != 1)
			p->regs = (p->regs + 63) & ~63u;
		s->at = p->regs;
		p->regs += count * (bytes == 1 ? 4 : bytes * LANES);
	} while (parse_accept(p, ","));
	parse_want(p, ";");
}

/* variables */

typedef struct Decl { uint32_t bytes, align; uint64_t elements; bool array, open; const char *name; uint32_t len; } Decl;

/* After the state space: [.align n] .type name[n]... */
static Decl
parse_decl(Parser *p)
{
	Decl d = { .elements = 1 };
	uint32_t bytes = 0;
	char type[16];

	while (p->lex.tok == TOK_WORD && *p->lex.text == '.') {
		if (parse_accept(p, ".align")) {
			d.align = (uint32_t)parse_int(p);
		} else if (lex_is(&p->lex, ".v2") || lex_is(&p->lex, ".v4")) {
			d.elements *= (uint64_t)(p->lex.text[2] - '0');
			lex_next(&p->lex);
		} else if (parse_accept(p, ".ptr") || parse_accept(p, ".global") || parse_accept(p, ".shared") || parse_accept(p, ".const") || parse_accept(p, ".local")) {
			continue;
		} else {
			uint32_t n = p->lex.len - 1 < sizeof type - 1 ? p->lex.len - 1 : (uint32_t)sizeof type - 1;

			memcpy(type, p->lex.text + 1, n);
			type[n] = 0;
			bytes = type_bytes(type);
			if (!bytes)
				parse_fail(p, CUDA_ERROR_INVALID_PTX, "declaration of type %s", type);
			lex_next(&p->lex);
		}
	}
	d.name = p->lex.text;
	d.len = p->lex.len;
	if (p->lex.tok != TOK_WORD)
		parse_expected(p, "a name");
	lex_next(&p->lex);
	while (parse_accept(p, "[")) {
		d.array = true;
		if (parse_accept(p, "]")) {
			d.open = true;
			continue;
		}
		d.elements *= parse_int(p);
		parse_want(p, "]");
	}
	d.align = d.align ? d.align : bytes;
	d.bytes = bytes;
	return d;
}

static uint32_t
align_up(uint32_t v, uint32_t align)
{
	return (v + align - 1) / align * align;
}

static uint64_t
parse_value(Parser *p, uint32_t bytes)
{
	Sym range;
	const Sym *s;
	uint64_t v;
	bool close = false;

	if (p->lex.tok == TOK_F32 || p->lex.tok == TOK_F64) {
		v = p->lex.value;
		if (p->lex.tok == TOK_F64 && bytes == 4) {
			double d;
			float f;
			uint32_t u;

			memcpy(&d, &v, 8);
			f = (float)d;
			memcpy(&u, &f, 4);
			v = u;
		}
		lex_next(&p->lex);
		return v;
	}
	if (p->lex.tok == TOK_INT || lex_is(&p->lex, "-"))
		return parse_int(p);
	if (parse_accept(p, "generic")) {
		parse_want(p, "(");
		close = true;
	}
	s = sym_find(p, p->lex.text, p->lex.len, &range);
	if (!s || s->kind != SYM_GLOBAL)
		parse_fail(p, CUDA_ERROR_INVALID_PTX, "an initial value names what is no global variable: %.*s", (int)p->lex.len, p->lex.text);
	lex_next(&p->lex);
	if (close)
		parse_want(p, ")");
	v = s->address;
	if (parse_accept(p, "+"))
		v += parse_int(p);
	return v;
}

static void
parse_initial(Parser *p, uint8_t *to, const Decl *d)
{
	uint64_t k = 0;
	int depth = 0;

	do {
		while (parse_accept(p, "{"))
			depth++;
		if (depth && lex_is(&p->lex, "}")) {
			lex_next(&p->lex);
			depth--;
			continue;
		}
		uint64_t v = parse_value(p, d->bytes);

		if (k >= d->elements)
			parse_fail(p, CUDA_ERROR_INVALID_PTX, "more initial values than elements");
		memcpy(to + k++ * d->bytes, &v, d->bytes);
		while (depth && parse_accept(p, "}"))
			depth--;
	} while (parse_accept(p, ","));
}

static void
parse_global(Parser *p, bool constant)
{
	Decl d = parse_decl(p);
	uint64_t bytes = d.bytes * d.elements;
	Sym *s = sym_add(p, d.name, d.len, SYM_GLOBAL);
	Global *g = NULL;
	uint8_t *initial = NULL;

	for (int i = 0; i < p->m->nglobal && p->pass; i++)
		if (strlen(p->m->global[i].name) == d.len && !memcmp(p->m->global[i].name, d.name, d.len))
			g = &p->m->global[i];
	if (!g) {
		p->m->global = grow(p->m->global, p->m->nglobal, &p->capglobal, sizeof *g);
		g = &p->m->global[p->m->nglobal++];
		*g = (Global){ copy_text(d.name, d.len), device_alloc(bytes, p->m), bytes, constant };
		if (!g->address)
			parse_fail(p, CUDA_ERROR_OUT_OF_MEMORY, "no memory for variable %s of %llu bytes", g->name, (unsigned long long)bytes);
	}
	s->address = g->address;
	initial = calloc(1, bytes ? bytes : 1);
	if (parse_accept(p, "="))
		parse_initial(p, initial, &d);
	device_fill(g->address, initial, bytes, constant);
	free(initial);
	parse_want(p, ";");
}

static void
parse_shared(Parser *p, bool external)
{
	Decl d = parse_decl(p);
	Sym *s = sym_add(p, d.name, d.len, SYM_SHARED);
	int index = -1;

	for (int i = 0; i < p->m->nshared && p->pass; i++)
		if (strlen(p->m->shared[i].name) == d.len && !memcmp(p->m->shared[i].name, d.name, d.len))
			index = i;
	if (index < 0) {
		p->m->shared = grow(p->m->shared, p->m->nshared, &p->capshared, sizeof *p->m->shared);
		index = p->m->nshared++;
		p->m->shared[index] = (SharedVar){ copy_text(d.name, d.len), (uint32_t)(d.bytes * d.elements), d.align, 0, external || d.open, -1 };
	}
	s->at = (uint32_t)index;
	parse_want(p, ";");
}

/* Those that a .func uses lie below those of every kernel; those from outside follow all others, and are placed when the body ends. */
uint32_t
shared_use(Parser *p, uint32_t index)
{
	SharedVar *v = &p->m->shared[index];

	if (v->external || v->func == -2 || (v->func >= 0 && p->m->func[v->func] == p->f))
		return index;
	if (!p->f->entry) {
		p->func_shared = align_up(p->func_shared, v->align);
		v->offset = p->func_shared;
		p->func_shared += v->bytes;
		v->func = -2;
		return index;
	}
	for (int i = 0; i < p->m->nfunc; i++)
		if (p->m->func[i] == p->f)
			v->func = i;
	p->shared_bytes = align_up(p->shared_bytes, v->align);
	v->offset = p->shared_bytes;
	p->shared_bytes += v->bytes;
	return index;
}

static void
parse_local(Parser *p)
{
	Decl d = parse_decl(p);
	Sym *s = sym_add(p, d.name, d.len, SYM_LOCAL);

	p->frame = align_up(p->frame, d.align < 16 ? 16 : d.align);
	s->at = p->frame;
	p->frame += (uint32_t)(d.bytes * d.elements);
	parse_want(p, ";");
}

/* .param inside a body: room in the frame for an argument or a result of a call. */
static void
parse_call_param(Parser *p)
{
	Decl d = parse_decl(p);
	Sym *s = sym_add(p, d.name, d.len, SYM_FRAME);

	p->frame = align_up(p->frame, d.align < 8 ? 8 : d.align);
	s->at = p->frame;
	s->bytes = (uint32_t)(d.bytes * d.elements);
	p->frame += s->bytes;
	parse_want(p, ";");
}

/* functions */

static Func *
func_new(Parser *p, char *name)
{
	Func *f = module_func(p->m, name);

	if (f) {
		free(name);
		return f;
	}
	f = calloc(1, sizeof *f);
	if (!f)
		abort();
	f->name = name;
	f->module = p->m;
	p->m->func = grow(p->m->func, p->m->nfunc, &p->capfunc, sizeof *p->m->func);
	p->m->func[p->m->nfunc++] = f;
	return f;
}

/* (.param .u64 a, .param .align 8 .b8 b[16]): of a kernel, offsets into the launch's parameters; of a .func, into the frame. */
static int
parse_params(Parser *p, bool entry, Param **list)
{
	int n = 0, cap = 0;

	*list = NULL;
	while (!parse_accept(p, ")")) {
		Decl d;
		Sym *s;
		uint32_t bytes, *next = entry ? &p->params : &p->frame;

		parse_accept(p, ",");
		if (parse_accept(p, ".reg"))
			parse_fail(p, CUDA_ERROR_INVALID_PTX, "parameters in registers are not simulated");
		parse_want(p, ".param");
		d = parse_decl(p);
		bytes = (uint32_t)(d.bytes * d.elements);
		*next = align_up(*next, d.align ? d.align : 1);
		s = sym_add(p, d.name, d.len, entry ? SYM_PARAM : SYM_FRAME);
		s->at = *next;
		s->bytes = bytes;
		*list = grow(*list, n, &cap, sizeof **list);
		(*list)[n++] = (Param){ *next, bytes };
		*next += bytes;
	}
	return n;
}

/* Those of an earlier declaration keep their places, as calls have been made to them; after: names read since. */
static void
params_keep(Parser *p, Param **old, int *nold, Param *list, int n, int after)
{
	if (*old && *nold == n) {
		for (int i = 0; i < n; i++)
			p->sym[p->nsym - after - n + i].at = (*old)[i].offset;
		free(list);
		return;
	}
	free(*old);
	*old = list;
	*nold = n;
}

static void
parse_limits(Parser *p, Func *f)
{
	while (p->lex.tok == TOK_WORD && *p->lex.text == '.') {
		uint32_t v[3] = { 1, 1, 1 };
		bool threads = lex_is(&p->lex, ".maxntid"), exact = lex_is(&p->lex, ".reqntid"), cluster = lex_is(&p->lex, ".reqnctapercluster");

		lex_next(&p->lex);
		if (p->lex.tok == TOK_INT)
			for (int k = 0; k < 3; k++) {
				v[k] = (uint32_t)parse_int(p);
				if (!parse_accept(p, ","))
					break;
			}
		if (threads || exact)
			f->max_threads = v[0] * v[1] * v[2];
		if (exact)
			memcpy(f->req, v, sizeof v);
		if (cluster)
			memcpy(f->cluster, v, sizeof v);
	}
}

static void parse_body(Parser *p);

/* Shared memory from outside follows the kernel's own; then every address that was waited for is known. */
static void
func_place_shared(Parser *p, Func *f)
{
	uint32_t bytes = f->entry ? p->shared_bytes : 0;

	f->shared_static = bytes;
	for (int i = 0; i < p->m->nshared; i++)
		if (p->m->shared[i].external)
			p->m->shared[i].offset = align_up(bytes, p->m->shared[i].align < 16 ? 16 : p->m->shared[i].align);
	for (int i = p->shared_first; i < p->m->nfixup; i++) {
		const SharedVar *v = &p->m->shared[p->m->fixup[i].shared];

		if (v->external && !f->entry)
			parse_fail(p, CUDA_ERROR_INVALID_PTX, "function %s uses shared memory that the launch sizes: only kernels may", f->name);
		p->m->ins[p->m->fixup[i].ins].imm += SHARED_BASE + v->offset;
	}
	for (int i = 0; i < f->nconstant; i++)
		if (f->constant[i].shared >= 0) {
			if (p->m->shared[f->constant[i].shared].external && !f->entry)
				parse_fail(p, CUDA_ERROR_INVALID_PTX, "function %s uses shared memory that the launch sizes: only kernels may", f->name);
			f->constant[i].value += SHARED_BASE + p->m->shared[f->constant[i].shared].offset;
			f->constant[i].shared = -1;
		}
}

static void
func_begin(Parser *p, Func *f)
{
	Module *m = p->m;

	f->defined = true;
	p->f = f;
	free(f->constant);
	f->constant = NULL;
	f->nconstant = p->capconst = 0;
	p->regs = f->entry ? REGS_FIRST + m->func_regs * (uint32_t)(p->pass > 0) : p->regs;
	memset(p->temp, 0, sizeof p->temp);
	p->shared_bytes = f->entry ? m->func_shared * (uint32_t)(p->pass > 0) : 0;
	p->shared_first = m->nfixup;
	f->first = m->nins;
	f->regs_from = p->regs;
}

/* .entry and .func, declared or defined. */
static void
parse_function(Parser *p, bool entry)
{
	uint32_t other_regs = p->regs, other_frame = p->frame;
	Param *result = NULL, *param = NULL;
	int nresult = 0, nparam = 0;
	Func *f;

	scope_open(p);
	p->params = 0;
	if (entry)
		p->frame = p->m->func_frame * (uint32_t)(p->pass > 0);
	if (!entry && parse_accept(p, "("))
		nresult = parse_params(p, false, &result);
	f = func_new(p, parse_name(p));
	if (p->lex.tok == TOK_PUNCT && parse_accept(p, "("))
		nparam = parse_params(p, entry, &param);
	f->entry = entry;
	params_keep(p, &f->param, &f->nparam, param, nparam, 0);
	params_keep(p, &f->result, &f->nresult, result, nresult, nparam);
	f->param_bytes = p->params;
	f->builtin = !strcmp(f->name, "vprintf") ? BUILTIN_PRINTF : !strcmp(f->name, "__assertfail") ? BUILTIN_ASSERT :
		!strcmp(f->name, "cudaGraphSetConditional") ? BUILTIN_CONDITIONAL : BUILTIN_NONE;
	parse_limits(p, f);
	if (parse_accept(p, ";")) {
		scope_close(p); /* of a declaration: its parameters' names go, their places stay */
		return;
	}
	func_begin(p, f);
	f->frame_from = entry ? 0 : other_frame;
	parse_want(p, "{");
	parse_body(p);
	emit(p, NULL, entry ? KIND_EXIT : KIND_RETURN)->guard = 0;
	f->count = p->m->nins - f->first;
	scope_close(p);
	if (p->npending)
		parse_fail(p, CUDA_ERROR_INVALID_PTX, "function %s branches to %.*s, which is nowhere", f->name, (int)p->pending[0].len, p->pending[0].name);
	f->regs_to = p->regs;
	f->frame_to = p->frame;
	func_place_shared(p, f);
	p->f = NULL;
	if (entry) {
		p->regs = other_regs;
		p->frame = other_frame;
	} else if (!p->pass) {
		p->m->calls = true;
	}
}

/* operands */

static int parse_operand(Parser *p);

static int
opnd_new(Parser *p)
{
	if (p->nopnd == MAX_OPNDS)
		parse_fail(p, CUDA_ERROR_INVALID_PTX, "an instruction of more than %d operands", MAX_OPNDS);
	p->opnd[p->nopnd] = (Opnd){ .pair = -1 };
	return p->nopnd++;
}

/* Elements of a vector lie one after the other, so inner lists are read into place afterwards. */
static void
parse_vector(Parser *p, int k, const char *close)
{
	int list[300], n = 0;

	while (!parse_accept(p, close)) {
		parse_accept(p, ",");
		if (n == 300)
			parse_fail(p, CUDA_ERROR_INVALID_PTX, "a vector of more than 300 elements");
		list[n++] = parse_operand(p);
	}
	p->opnd[k].kind = OPND_VECTOR;
	p->opnd[k].first = p->nopnd;
	p->opnd[k].n = n;
	for (int i = 0; i < n; i++) {
		int at = opnd_new(p);

		p->opnd[at] = p->opnd[list[i]];
	}
}

static void
parse_word_operand(Parser *p, int k)
{
	Opnd *o = &p->opnd[k];
	const Sym *s;

	if (lex_is(&p->lex, "_")) {
		o->kind = OPND_SINK;
		lex_next(&p->lex);
		return;
	}
	o->name = p->lex.text;
	o->name_len = p->lex.len;
	s = sym_find(p, o->name, o->name_len, &o->copy);
	lex_next(&p->lex);
	if (!s) {
		o->kind = OPND_LABEL;
		return;
	}
	if (s != &o->copy)
		o->copy = *s;
	o->sym = &o->copy;
	o->kind = s->kind == SYM_REG || s->kind == SYM_SPECIAL ? OPND_REG : s->kind == SYM_LABEL ? OPND_LABEL : OPND_SYM;
	o->reg = s->at;
	o->bytes = s->bytes;
	if (o->kind == OPND_SYM && lex_is(&p->lex, "+")) {
		lex_next(&p->lex);
		o->value = (int64_t)parse_int(p);
	}
}

static void
parse_address(Parser *p, int k)
{
	int base = parse_operand(p);
	Opnd *o = &p->opnd[k];

	*o = p->opnd[base];
	o->kind = OPND_MEMORY;
	o->first = o->n = 0;
	if (p->opnd[base].kind == OPND_INT) {
		o->bytes = 0;
		o->sym = NULL;
	}
	if (p->opnd[base].sym)
		o->sym = p->opnd[base].kind == OPND_REG ? NULL : &o->copy;
	if (o->sym)
		o->bytes = 0;
	if (p->opnd[base].kind == OPND_LABEL)
		parse_fail(p, CUDA_ERROR_INVALID_PTX, "unknown name %.*s", (int)o->name_len, o->name);
	if (parse_accept(p, "+"))
		o->value += (int64_t)parse_int(p);
	else if (lex_is(&p->lex, "-"))
		o->value += (int64_t)parse_int(p);
	if (parse_accept(p, ",")) { /* coordinates of a tensor */
		int list = parse_operand(p);

		p->opnd[k].first = p->opnd[list].first;
		p->opnd[k].n = p->opnd[list].n;
	}
	parse_want(p, "]");
}

static int
parse_operand(Parser *p)
{
	int k = opnd_new(p);
	bool negated = parse_accept(p, "!");

	if (parse_accept(p, "["))
		parse_address(p, k);
	else if (parse_accept(p, "{"))
		parse_vector(p, k, "}");
	else if (parse_accept(p, "("))
		parse_vector(p, k, ")");
	else if (p->lex.tok == TOK_INT || lex_is(&p->lex, "-")) {
		p->opnd[k].kind = OPND_INT;
		if (lex_is(&p->lex, "-")) {
			lex_next(&p->lex);
			p->opnd[k].kind = p->lex.tok == TOK_F64 ? OPND_F64 : OPND_INT;
			p->opnd[k].value = p->lex.tok == TOK_F64 ? (int64_t)(p->lex.value ^ 1ull << 63) : (int64_t)(0 - p->lex.value);
			lex_next(&p->lex);
		} else {
			p->opnd[k].value = (int64_t)parse_int(p);
		}
	} else if (p->lex.tok == TOK_F32 || p->lex.tok == TOK_F64) {
		p->opnd[k].kind = p->lex.tok == TOK_F32 ? OPND_F32 : OPND_F64;
		p->opnd[k].value = (int64_t)p->lex.value;
		lex_next(&p->lex);
	} else if (p->lex.tok == TOK_WORD) {
		parse_word_operand(p, k);
	} else {
		parse_expected(p, "an operand");
	}
	p->opnd[k].negated = negated;
	if (parse_accept(p, "|")) {
		int second = parse_operand(p);

		p->opnd[k].pair = second;
	}
	return k;
}

/* @p opcode operands; */
static void
parse_instruction(Parser *p)
{
	Sym range;
	char *save;

	p->guard = 0;
	p->nopnd = p->ntop = p->npart = 0;
	memset(p->ntemp, 0, sizeof p->ntemp);
	if (parse_accept(p, "@")) {
		bool negated = parse_accept(p, "!");
		const Sym *s = sym_find(p, p->lex.text, p->lex.len, &range);

		if (!s || s->kind != SYM_REG || s->bytes != 1)
			parse_expected(p, "a predicate");
		p->guard = s->at | negated;
		lex_next(&p->lex);
	}
	p->line = p->lex.line;
	if (p->lex.tok != TOK_WORD || p->lex.len >= sizeof p->parts_text)
		parse_expected(p, "an instruction");
	memcpy(p->parts_text, p->lex.text, p->lex.len);
	p->parts_text[p->lex.len] = 0;
	for (char *s = strtok_r(p->parts_text, ".", &save); s; s = strtok_r(NULL, ".", &save)) {
		if (p->npart == MAX_PARTS)
			parse_expected(p, "a shorter opcode");
		p->part[p->npart++] = s;
	}
	lex_next(&p->lex);
	while (!parse_accept(p, ";")) {
		if (p->ntop)
			parse_want(p, ",");
		if (p->ntop == 16)
			parse_fail(p, CUDA_ERROR_INVALID_PTX, "too many operands");
		p->top[p->ntop++] = parse_operand(p);
	}
	decode(p);
}

/* .loc file line column[, function_name ..., inlined_at file line column] */
static void
parse_loc(Parser *p)
{
	uint32_t v[3];

	for (int k = 0; k < 3; k++)
		v[k] = (uint32_t)parse_int(p);
	if (p->f && v[1]) {
		p->m->loc = grow(p->m->loc, p->m->nloc, &p->caploc, sizeof *p->m->loc);
		p->m->loc[p->m->nloc++] = (Loc){ p->m->nins, v[0], v[1] };
	}
	while (lex_is(&p->lex, ",")) {
		lex_next(&p->lex);
		if (parse_accept(p, "function_name")) {
			lex_next(&p->lex);
			if (parse_accept(p, "+"))
				parse_int(p);
		} else if (parse_accept(p, "inlined_at")) {
			for (int k = 0; k < 3; k++)
				parse_int(p);
		}
	}
}

static void
parse_label(Parser *p, const char *name, uint32_t len)
{
	Sym *s = sym_add(p, name, len, SYM_LABEL);

	s->at = p->m->nins;
}

/* label: .branchtargets a, b, c;   the label has just been read */
static void
parse_table(Parser *p)
{
	const Sym *s = &p->sym[p->nsym - 1];
	Table *t = &p->table[p->ntable];

	if (!p->nsym || s->kind != SYM_LABEL || p->ntable == MAX_TABLES)
		parse_expected(p, "a label before .branchtargets, and fewer of them");
	*t = (Table){ .name = s->name, .len = s->len };
	do {
		if (t->n == MAX_TABLE)
			parse_fail(p, CUDA_ERROR_INVALID_PTX, "more than %d branch targets", MAX_TABLE);
		t->label[t->n] = p->lex.text;
		t->label_len[t->n++] = p->lex.len;
		lex_next(&p->lex);
	} while (parse_accept(p, ","));
	p->ntable++;
	parse_want(p, ";");
}

static void
parse_directive(Parser *p)
{
	bool external = false;

	while (parse_accept(p, ".visible") || parse_accept(p, ".weak") || parse_accept(p, ".common") || lex_is(&p->lex, ".extern"))
		external |= parse_accept(p, ".extern");
	if (parse_accept(p, ".reg"))
		parse_registers(p);
	else if (parse_accept(p, ".global"))
		parse_global(p, false);
	else if (parse_accept(p, ".const"))
		parse_global(p, true);
	else if (parse_accept(p, ".shared"))
		parse_shared(p, external);
	else if (parse_accept(p, ".local"))
		parse_local(p);
	else if (parse_accept(p, ".param"))
		parse_call_param(p);
	else if (parse_accept(p, ".loc"))
		parse_loc(p);
	else if (parse_accept(p, ".entry"))
		parse_function(p, true);
	else if (parse_accept(p, ".func"))
		parse_function(p, false);
	else if (parse_accept(p, ".branchtargets"))
		parse_table(p);
	else if (parse_accept(p, ".pragma")) {
		while (!parse_accept(p, ";"))
			lex_next(&p->lex);
	} else
		parse_expected(p, "a declaration");
}

static void
parse_body(Parser *p)
{
	for (int depth = 1; depth;) {
		Lex ahead;

		if (p->lex.tok == TOK_END)
			parse_expected(p, "}");
		if (parse_accept(p, "{")) {
			scope_open(p);
			depth++;
			continue;
		}
		if (lex_is(&p->lex, "}")) {
			lex_next(&p->lex);
			if (--depth)
				scope_close(p);
			continue;
		}
		if (parse_accept(p, ";"))
			continue;
		if (p->lex.tok == TOK_WORD && *p->lex.text == '.') {
			parse_directive(p);
			continue;
		}
		ahead = p->lex;
		if (p->lex.tok == TOK_WORD) {
			lex_next(&ahead);
			if (lex_is(&ahead, ":")) {
				parse_label(p, p->lex.text, p->lex.len);
				p->lex = ahead;
				lex_next(&p->lex);
				continue;
			}
		}
		parse_instruction(p);
	}
}

/* the module */

static void
parse_version(Parser *p)
{
	const char *s = p->lex.text;
	char *end;
	long major = strtol(s, &end, 10), minor = *end == '.' ? strtol(end + 1, &end, 10) : 0;

	p->m->version = (int)(major * 10 + minor);
	p->lex.at = end;
	lex_next(&p->lex);
	if (p->m->version > device_ptx_version())
		parse_fail(p, CUDA_ERROR_UNSUPPORTED_PTX_VERSION, "PTX %ld.%ld is newer than the driver", major, minor);
}

/* Code for sm_90a runs on 9.0 alone, other code on its own and all later machines. */
static void
parse_target(Parser *p)
{
	char name[32];
	int sm;

	lex_unknown(&p->lex, name, sizeof name);
	sm = atoi(name + (strncmp(name, "sm_", 3) ? 0 : 3));
	p->m->target = sm;
	p->m->target_exact = name[strlen(name) - 1] == 'a' || name[strlen(name) - 1] == 'f';
	if (p->m->target_exact ? sm != p->sm : sm > p->sm)
		parse_fail(p, CUDA_ERROR_NO_BINARY_FOR_GPU, "made for %s, the device is sm_%d", name, p->sm);
	lex_next(&p->lex);
	while (parse_accept(p, ","))
		lex_next(&p->lex);
}

static void
parse_file(Parser *p)
{
	uint64_t k = parse_int(p);

	if (p->lex.tok == TOK_STRING && k < 256 && !p->m->file[k])
		p->m->file[k] = copy_text(p->lex.text, p->lex.len);
	lex_next(&p->lex);
	while (parse_accept(p, ","))
		parse_int(p);
}

static void
parse_special(Parser *p)
{
	static const char *const names[SR_COUNT] = { "", "%tid.x", "%tid.y", "%tid.z", "%ntid.x", "%ntid.y", "%ntid.z", "%ctaid.x", "%ctaid.y", "%ctaid.z",
		"%nctaid.x", "%nctaid.y", "%nctaid.z", "%laneid", "%warpid", "%nwarpid", "%lanemask_eq", "%lanemask_lt", "%lanemask_le", "%lanemask_gt",
		"%lanemask_ge", "%smid", "%nsmid", "%gridid", "%dynamic_smem_size", "%total_smem_size", "%cluster_ctaid.x", "%cluster_ctaid.y",
		"%cluster_ctaid.z", "%cluster_nctaid.x", "%cluster_nctaid.y", "%cluster_nctaid.z", "%cluster_ctarank", "%cluster_nctarank", "%clusterid.x",
		"%clusterid.y", "%clusterid.z", "%nclusterid.x", "%nclusterid.y", "%nclusterid.z", "%is_explicit_cluster" };

	for (uint32_t i = 1; i < SR_COUNT; i++) {
		Sym *s = sym_add(p, names[i], (uint32_t)strlen(names[i]), SYM_SPECIAL);

		s->at = i * LANES * 4;
		s->bytes = i == SR_IS_EXPLICIT_CLUSTER ? 1 : 4;
	}
}

static void
parse_section(Parser *p) /* debugging sections hold nothing that is used */
{
	while (p->lex.tok != TOK_END && !lex_is(&p->lex, "{"))
		lex_next(&p->lex);
	while (p->lex.tok != TOK_END && !lex_is(&p->lex, "}"))
		lex_next(&p->lex);
	lex_next(&p->lex);
}

static void
parse_module(Parser *p, const char *text)
{
	lex_open(&p->lex, text);
	p->nsym = p->depth = p->npending = 0;
	memset(p->hash, 0, sizeof p->hash);
	p->regs = REGS_FIRST;
	p->frame = p->func_shared = 0;
	p->ntable = 0;
	p->m->nins = p->m->nextra = 0;
	p->m->nfixup = p->m->nloc = 0;
	parse_special(p);
	lex_next(&p->lex);
	while (p->lex.tok != TOK_END) {
		if (lex_is(&p->lex, ".version")) {
			while (*p->lex.at == ' ' || *p->lex.at == '\t')
				p->lex.at++;
			p->lex.text = p->lex.at;
			parse_version(p);
		} else if (parse_accept(p, ".target")) {
			parse_target(p);
		} else if (parse_accept(p, ".address_size")) {
			parse_int(p);
		} else if (parse_accept(p, ".file")) {
			parse_file(p);
		} else if (lex_is(&p->lex, ".section")) {
			parse_section(p);
		} else {
			parse_directive(p);
		}
	}
	p->m->func_regs = p->regs - REGS_FIRST;
	p->m->func_frame = align_up(p->frame, 16);
	p->m->func_shared = align_up(p->func_shared, 16);
}

static void
parse_twice(Parser *p, const char *text)
{
	parse_module(p, text);
	if (p->m->calls) {
		p->pass = 1;
		for (int i = 0; i < p->m->nshared; i++)
			p->m->shared[i].func = p->m->shared[i].func == -2 ? -2 : -1;
		parse_module(p, text);
	}
	if (!p->m->target)
		parse_fail(p, CUDA_ERROR_INVALID_PTX, "no .target");
}

Module *
module_read(const char *text, int sm, char *error, size_t error_bytes, CUresult *status)
{
	Parser *p = calloc(1, sizeof *p);
	Module *m;

	if (!p || !(p->m = calloc(1, sizeof *p->m)))
		abort();
	p->sm = sm;
	p->error = error;
	p->error_bytes = error_bytes;
	if (!setjmp(p->fail)) {
		parse_twice(p, text);
	} else {
		module_free(p->m);
		p->m = NULL;
	}
	*status = p->status;
	m = p->m;
	free(p->sym);
	free(p->pending);
	free(p);
	return m;
}
