/* declare.c: variables and functions of a PTX module.
 *
 * In: the parser at a declaration.   Out: global variables in device memory with their initial values, places in shared
 * and local memory, functions with their parameters, registers and limits. Parameters of a .func lie in the frame of
 * the thread. Shared variables that a .func uses lie below those of every kernel; those from outside follow the
 * kernel's own, and are placed when its body ends. */
#include <stdlib.h>
#include <string.h>

#include "device.h"
#include "half.h"
#include "ptx.h"

/* variables */

typedef struct Decl {
	uint32_t bytes, align;
	uint64_t elements;
	bool array, open;
	const char *name;
	uint32_t len;
} Decl;

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
		} else if (parse_accept(p, ".ptr") || parse_accept(p, ".global") || parse_accept(p, ".shared") ||
		           parse_accept(p, ".const") || parse_accept(p, ".local")) {
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

uint32_t
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

			memcpy(&d, &v, 8);
			v = float_bits((float)d);
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
		parse_fail(p, CUDA_ERROR_INVALID_PTX, "an initial value names what is no global variable: %.*s",
		           (int)p->lex.len, p->lex.text);
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

void
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
			parse_fail(p, CUDA_ERROR_OUT_OF_MEMORY, "no memory for variable %s of %llu bytes", g->name,
			           (unsigned long long)bytes);
	}
	s->address = g->address;
	initial = calloc(1, bytes ? bytes : 1);
	if (parse_accept(p, "="))
		parse_initial(p, initial, &d);
	device_fill(g->address, initial, bytes, constant);
	free(initial);
	parse_want(p, ";");
}

void
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
		p->m->shared[index] = (SharedVar){
		        copy_text(d.name, d.len), (uint32_t)(d.bytes * d.elements), d.align, 0, external || d.open, -1};
	}
	s->at = (uint32_t)index;
	parse_want(p, ";");
}

/* Those that a .func uses lie below those of every kernel; those from outside follow all others, and are placed when
 * the body ends. */
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

void
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
void
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

/* (.param .u64 a, .param .align 8 .b8 b[16]): of a kernel, offsets into the launch's parameters; of a .func, into the
 * frame. */
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

static void
parse_limits(Parser *p, Func *f)
{
	while (p->lex.tok == TOK_WORD && *p->lex.text == '.') {
		uint32_t v[3] = { 1, 1, 1 };
		bool threads = lex_is(&p->lex, ".maxntid"), exact = lex_is(&p->lex, ".reqntid"),
		     cluster = lex_is(&p->lex, ".reqnctapercluster");

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

/* Shared memory from outside follows the kernel's own; then every address that was waited for is known. */
static void
func_place_shared(Parser *p, Func *f)
{
	uint32_t bytes = f->entry ? p->shared_bytes : 0;

	f->shared_static = bytes;
	for (int i = 0; i < p->m->nshared; i++)
		if (p->m->shared[i].external)
			p->m->shared[i].offset =
			        align_up(bytes, p->m->shared[i].align < 16 ? 16 : p->m->shared[i].align);
	for (int i = p->shared_first; i < p->m->nfixup; i++) {
		const SharedVar *v = &p->m->shared[p->m->fixup[i].shared];

		if (v->external && !f->entry)
			parse_fail(p, CUDA_ERROR_INVALID_PTX,
			           "function %s uses shared memory that the launch sizes: only kernels may", f->name);
		p->m->ins[p->m->fixup[i].ins].imm += SHARED_BASE + v->offset;
	}
	for (int i = 0; i < f->nconstant; i++)
		if (f->constant[i].shared >= 0) {
			if (p->m->shared[f->constant[i].shared].external && !f->entry)
				parse_fail(p, CUDA_ERROR_INVALID_PTX,
				           "function %s uses shared memory that the launch sizes: only kernels may",
				           f->name);
			f->constant[i].value += SHARED_BASE + p->m->shared[f->constant[i].shared].offset;
			f->constant[i].shared = -1;
		}
}

/* places */

/* Noted once, in the order of the text. */
void
func_calls(Func *f, Func *callee)
{
	for (int i = 0; i < f->ncallee; i++)
		if (f->callee[i] == callee)
			return;
	f->callee = realloc(f->callee, (size_t)(f->ncallee + 1) * sizeof(Func *));
	if (!f->callee)
		abort();
	f->callee[f->ncallee++] = callee;
}

/* What f calls has its place first. Registers share none: lanes that parted may be in two functions at once, and a lane
 * of a register lies where another lane of another register would. */
static void
func_place_one(Parser *p, Func *f)
{
	uint32_t frame = f->frame_to - f->frame_from;

	f->place = PLACE_UNDER_WAY;
	f->frame_from = 0;
	for (int i = 0; i < f->ncallee; i++) {
		Func *g = f->callee[i];

		if (g->place == PLACE_UNDER_WAY)
			parse_fail(p, CUDA_ERROR_INVALID_PTX, "function %s calls itself: recursion is not simulated",
			           g->name);
		if (!g->place)
			func_place_one(p, g);
		f->frame_from = align_up(g->frame_to > f->frame_from ? g->frame_to : f->frame_from, 128);
	}
	f->frame_to = f->frame_from + frame;
	f->place = PLACE_KNOWN;
}

/* Whatever runs for a kernel, each once. */
static void
func_reach(Func *kernel)
{
	int done = -1, cap = 0;

	kernel->nreach = 0;
	free(kernel->reach);
	kernel->reach = NULL;
	for (const Func *f = kernel; done < kernel->nreach; f = ++done < kernel->nreach ? kernel->reach[done] : NULL)
		for (int i = 0; f && i < f->ncallee; i++) {
			int k = 0;

			while (k < kernel->nreach && kernel->reach[k] != f->callee[i])
				k++;
			if (k < kernel->nreach)
				continue;
			kernel->reach = grow(kernel->reach, kernel->nreach, &cap, sizeof(Func *));
			kernel->reach[kernel->nreach++] = f->callee[i];
		}
}

void
func_place(Parser *p)
{
	for (int i = 0; i < p->m->nfunc; i++)
		p->m->func[i]->place = PLACE_NOWHERE;
	for (int i = 0; i < p->m->nfunc; i++)
		if (!p->m->func[i]->place)
			func_place_one(p, p->m->func[i]);
	for (int i = 0; i < p->m->nfunc; i++)
		if (p->m->func[i]->entry)
			func_reach(p->m->func[i]);
}

static void
func_begin(Parser *p, Func *f)
{
	f->defined = true;
	p->f = f;
	free(f->constant);
	f->constant = NULL;
	f->nconstant = p->capconst = 0;
	p->regs = f->entry ? REGS_FIRST + p->m->func_regs * (uint32_t)(p->pass > 0) : p->regs;
	memset(p->temp, 0, sizeof p->temp);
	p->shared_bytes = f->entry ? p->m->func_shared * (uint32_t)(p->pass > 0) : 0;
	p->shared_first = p->m->nfixup;
	f->first = p->m->nins;
	f->regs_from = p->regs;
}

/* Parameters and results of a .func, read as if its frame began at 0. */
static void
params_shift(Parser *p, Func *f, uint32_t by)
{
	for (int i = 0; i < f->nresult; i++)
		f->result[i].offset += by;
	for (int i = 0; i < f->nparam; i++)
		f->param[i].offset += by;
	for (int i = 1; i <= f->nresult + f->nparam; i++)
		p->sym[p->nsym - i].at += by;
	p->frame += by;
}

/* .entry and .func, declared or defined. */
void
parse_function(Parser *p, bool entry)
{
	uint32_t other_regs = p->regs;
	Param *result = NULL, *param = NULL;
	int nresult = 0, nparam = 0;
	Func *f;

	scope_open(p);
	p->params = p->frame = 0;
	if (!entry && parse_accept(p, "("))
		nresult = parse_params(p, false, &result);
	f = func_new(p, parse_name(p));
	if (p->lex.tok == TOK_PUNCT && parse_accept(p, "("))
		nparam = parse_params(p, entry, &param);
	free(f->param);
	free(f->result);
	f->param = param;
	f->nparam = nparam;
	f->result = result;
	f->nresult = nresult;
	f->entry = entry;
	f->param_bytes = p->params;
	f->frame_from = p->pass ? f->frame_from : 0;
	if (entry)
		p->frame = f->frame_from;
	else
		params_shift(p, f, f->frame_from);
	f->builtin = !strcmp(f->name, "vprintf") ? BUILTIN_PRINTF : !strcmp(f->name, "__assertfail") ? BUILTIN_ASSERT :
		!strcmp(f->name, "cudaGraphSetConditional") ? BUILTIN_CONDITIONAL : BUILTIN_NONE;
	parse_limits(p, f);
	if (parse_accept(p, ";")) {
		f->frame_to = p->frame;
		scope_close(p); /* of a declaration: its parameters' names go, their places stay */
		return;
	}
	func_begin(p, f);
	parse_want(p, "{");
	parse_body(p);
	emit(p, NULL, entry ? KIND_EXIT : KIND_RETURN)->guard = 0;
	f->count = p->m->nins - f->first;
	scope_close(p);
	if (p->npending)
		parse_fail(p, CUDA_ERROR_INVALID_PTX, "function %s branches to %.*s, which is nowhere", f->name,
		           (int)p->pending[0].len, p->pending[0].name);
	f->regs_to = p->regs;
	f->frame_to = p->frame;
	func_place_shared(p, f);
	p->f = NULL;
	if (entry)
		p->regs = other_regs;
	else
		p->m->calls = true;
}
