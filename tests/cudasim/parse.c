/* parse.c: reads a PTX module: directives, declarations, bodies; instructions are handed to decode.c.
 *
 * In: PTX text as NVRTC writes it.   Out: a Module, its global variables placed in device memory and filled, or a
 * message with the line. Names live in nested scopes, as inline assembly opens braces of its own; a branch forward is
 * settled when the scope that holds the label ends. A module with .func bodies is read again when it is known what
 * calls what: registers of .func bodies lie below those of every kernel; local memory of a function above that of all
 * that it calls, and two that do not call each other share a place. Recursion has no place for registers: refused.
 * Refused: textures, surfaces, samplers, calls through pointers, aliases, 128-bit registers. */
#include "ptx.h"

#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "device.h"

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

_Noreturn void
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

bool
parse_accept(Parser *p, const char *word)
{
	if (!lex_is(&p->lex, word))
		return false;
	lex_next(&p->lex);
	return true;
}

void
parse_want(Parser *p, const char *word)
{
	if (!parse_accept(p, word))
		parse_expected(p, word);
}

uint64_t
parse_int(Parser *p)
{
	bool minus = parse_accept(p, "-");
	uint64_t v = p->lex.value;

	if (p->lex.tok != TOK_INT)
		parse_expected(p, "a number");
	lex_next(&p->lex);
	return minus ? 0 - v : v;
}

char *
copy_text(const char *s, size_t n)
{
	char *c = malloc(n + 1);

	if (!c)
		abort();
	memcpy(c, s, n);
	c[n] = 0;
	return c;
}

char *
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

Sym *
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

void
scope_open(Parser *p)
{
	if (p->depth == 63)
		parse_fail(p, CUDA_ERROR_INVALID_PTX, "braces nest too deep");
	p->mark[p->depth++] = p->nsym;
}

/* Branches of this scope whose label stands in it are settled; the others are left to the scope around it. */
void
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
	static const char *const names[] = {"",      "u8",     "s8",   "u16",    "s16",    "u32",  "s32", "u64", "s64",
	                                    "f16",   "bf16",   "f32",  "f64",    "b8",     "b16",  "b32", "b64", "pred",
	                                    "f16x2", "bf16x2", "tf32", "e4m3x2", "e5m2x2", "e4m3", "e5m2"};

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

/* Assemblers let special registers be read by mov, and by cvt between integers, alone. */
static bool
takes_special(const Parser *p)
{
	const char *to = p->part[p->npart - 2], *from = p->part[p->npart - 1];

	return !strcmp(p->part[0], "mov") || (!strcmp(p->part[0], "cvt") && strchr("us", *to) && strchr("us", *from));
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
	if (s->kind == SYM_SPECIAL && !takes_special(p))
		parse_fail(p, CUDA_ERROR_INVALID_PTX, "special register %.*s is no operand of %s", (int)o->name_len,
		           o->name, p->part[0]);
	if (s != &o->copy)
		o->copy = *s;
	o->sym = &o->copy;
	o->kind = s->kind == SYM_REG || s->kind == SYM_SPECIAL ? OPND_REG
	          : s->kind == SYM_LABEL                       ? OPND_LABEL
	                                                       : OPND_SYM;
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
			p->opnd[k].value = p->lex.tok == TOK_F64 ? (int64_t)(p->lex.value ^ 1ull << 63)
			                                         : (int64_t)(0 - p->lex.value);
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
	for (int i = 0; i < MAX_PARTS + 16; i++)
		p->part_room[i] = p->none;
	p->part = p->part_room + 8;
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

	while (parse_accept(p, ".visible") || parse_accept(p, ".weak") || parse_accept(p, ".common") ||
	       lex_is(&p->lex, ".extern"))
		external |= parse_accept(p, ".extern");
	if (!p->f && (lex_is(&p->lex, ".reg") || lex_is(&p->lex, ".local")))
		parse_fail(p, CUDA_ERROR_INVALID_PTX, "registers and local memory of no function are not simulated");
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

void
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
	p->m->target_exact = *name && strchr("af", name[strlen(name) - 1]);
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
	static const char *const names[SR_COUNT] = {"",
	                                            "%tid.x",
	                                            "%tid.y",
	                                            "%tid.z",
	                                            "%ntid.x",
	                                            "%ntid.y",
	                                            "%ntid.z",
	                                            "%ctaid.x",
	                                            "%ctaid.y",
	                                            "%ctaid.z",
	                                            "%nctaid.x",
	                                            "%nctaid.y",
	                                            "%nctaid.z",
	                                            "%laneid",
	                                            "%warpid",
	                                            "%nwarpid",
	                                            "%lanemask_eq",
	                                            "%lanemask_lt",
	                                            "%lanemask_le",
	                                            "%lanemask_gt",
	                                            "%lanemask_ge",
	                                            "%smid",
	                                            "%nsmid",
	                                            "%gridid",
	                                            "%dynamic_smem_size",
	                                            "%total_smem_size",
	                                            "%cluster_ctaid.x",
	                                            "%cluster_ctaid.y",
	                                            "%cluster_ctaid.z",
	                                            "%cluster_nctaid.x",
	                                            "%cluster_nctaid.y",
	                                            "%cluster_nctaid.z",
	                                            "%cluster_ctarank",
	                                            "%cluster_nctarank",
	                                            "%clusterid.x",
	                                            "%clusterid.y",
	                                            "%clusterid.z",
	                                            "%nclusterid.x",
	                                            "%nclusterid.y",
	                                            "%nclusterid.z",
	                                            "%is_explicit_cluster"};

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
	p->func_shared = 0;
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
	p->m->func_shared = align_up(p->func_shared, 16);
}

static void
parse_twice(Parser *p, const char *text)
{
	uint32_t regs = 0;

	parse_module(p, text);
	/* Once more where places that have become known take registers of their own for constants. */
	while (p->m->calls && (!p->pass || p->m->func_regs > regs)) {
		regs = p->m->func_regs;
		func_place(p);
		p->pass++;
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
		device_release(p->m);
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
