/* elf.c: the objects of functions that were compiled by themselves, joined into one relocatable ELF object.
 *
 * In: x86-64 objects as LLVM writes them, in order.   Out: one with their sections behind each other, by name. What
 * `ld -r` would do, without a process and files. A function that a piece gives to the others becomes a local symbol,
 * and what refers to it by the piece's name refers to that; other names stay undefined for the linker. Sections lose
 * their mark for merging equal constants: then a symbol of a section with an offset means a place in it, and no more.
 * Of sections that no program loads those of debug information (.debug_*) are kept.
 * Refuses, as a defect, what LLVM does not write for these functions: groups, common symbols, thread storage. */
#include "elf.h"
#include "../../../ir/diag.h"
#include <elf.h>
#include <string.h>

typedef struct Section {
	const char *name;
	Elf64_Shdr head;
	Buf data;                /* SHT_NOBITS: empty, head.sh_size counts */
	VEC(Elf64_Rela) rela;
} Section;

/* What a piece's symbol or section became. */
typedef struct Place { bool global; uint32_t at; int64_t add; } Place;

typedef struct Piece {
	const ElfPiece *in;
	const Elf64_Shdr *section;
	const char *names;       /* of sections */
	uint32_t nsection, nsymbol;
	const Elf64_Sym *symbol;
	const char *strings;
	Place *of_section, *of_symbol;
	Place gives;
} Piece;

typedef struct Named { const char *name; uint32_t at; bool used; } Named;
typedef struct Names { Named *slot; uint32_t cap; } Names;

typedef struct Join {
	Arena *a;
	Piece *piece;
	uint32_t npiece;
	VEC(Section) section;
	VEC(Elf64_Sym) local, global;
	Buf strings;
	Names pieces, globals;
} Join;

/* ---------------------------------------------------------------- names */
static Names
names_new(Arena *a, uint32_t n)
{
	Names t = {.cap = 64};

	while (t.cap < 2 * n)
		t.cap *= 2;
	t.slot = arena_array(a, Named, t.cap);
	return t;
}

static Named *
name_slot(const Names *t, const char *name)
{
	uint64_t h = hash_bytes(HASH_START, name, strlen(name));

	for (uint64_t i = (h ^ h >> 32) & (t->cap - 1);; i = (i + 1) & (t->cap - 1))
		if (!t->slot[i].used || !strcmp(t->slot[i].name, name))
			return &t->slot[i];
}

static uint32_t
string_add(Join *j, const char *s)
{
	size_t at = j->strings.n;

	buf_put(&j->strings, s, strlen(s) + 1);
	return (uint32_t)at;
}

/* ---------------------------------------------------------------- reading a piece */
static void
piece_open(Join *j, Piece *p, const ElfPiece *in)
{
	const Elf64_Ehdr *h = (const void *)in->at;

	p->in = in;
	if (in->n < sizeof *h || memcmp(h->e_ident, ELFMAG, SELFMAG) || h->e_machine != EM_X86_64 ||
	    h->e_type != ET_REL || h->e_shoff + h->e_shnum * sizeof(Elf64_Shdr) > in->n)
		bug("the code of %s is no x86-64 object", in->name ? in->name : "the program's loops");
	p->section = (const void *)(in->at + h->e_shoff);
	p->nsection = h->e_shnum;
	p->names = in->at + p->section[h->e_shstrndx].sh_offset;
	p->of_section = arena_array(j->a, Place, p->nsection);
	for (uint32_t i = 0; i < p->nsection; i++) {
		const Elf64_Shdr *s = &p->section[i];

		if (s->sh_type == SHT_GROUP || (s->sh_flags & SHF_TLS))
			bug("the code of %s has a section %s", in->name ? in->name : "the program's loops",
			    p->names + s->sh_name);
		if (s->sh_type != SHT_SYMTAB)
			continue;
		p->symbol = (const void *)(in->at + s->sh_offset);
		p->nsymbol = (uint32_t)(s->sh_size / sizeof *p->symbol);
		p->strings = in->at + p->section[s->sh_link].sh_offset;
		p->of_symbol = arena_array(j->a, Place, p->nsymbol);
	}
}

static uint32_t
section_find(Join *j, const char *name, const Elf64_Shdr *s)
{
	uint64_t flags = s->sh_flags & ~(uint64_t)(SHF_MERGE | SHF_STRINGS);

	for (uint32_t i = 0; i < j->section.n; i++) {
		const Section *o = &j->section.at[i];

		if (!strcmp(o->name, name) && o->head.sh_type == s->sh_type && o->head.sh_flags == flags)
			return i;
	}
	vec_push(j->a, &j->section, ((Section){.name = name,
		.head = {.sh_type = s->sh_type, .sh_flags = flags, .sh_addralign = 1}}));
	return j->section.n - 1;
}

static bool
is_kept(const Piece *p, const Elf64_Shdr *s)
{
	const char *name = p->names + s->sh_name;

	return (s->sh_flags & SHF_ALLOC) || (s->sh_type == SHT_PROGBITS && !strncmp(name, ".debug_", 7));
}

/* Sections that a program loads, and debug information, behind what is there. */
static void
sections_put(Join *j, Piece *p)
{
	char fill[64];

	for (uint32_t i = 0; i < p->nsection; i++) {
		const Elf64_Shdr *s = &p->section[i];

		if (!is_kept(p, s) || !s->sh_size)
			continue;
		uint32_t k = section_find(j, p->names + s->sh_name, s);
		Section *o = &j->section.at[k];
		uint64_t align = s->sh_addralign ? s->sh_addralign : 1;

		memset(fill, s->sh_flags & SHF_EXECINSTR ? 0xcc : 0, sizeof fill);
		if (align > o->head.sh_addralign)
			o->head.sh_addralign = align;
		while (o->head.sh_size % align) {
			uint64_t n = align - o->head.sh_size % align;

			n = n < sizeof fill ? n : sizeof fill;
			if (s->sh_type != SHT_NOBITS)
				buf_put(&o->data, fill, n);
			o->head.sh_size += n;
		}
		p->of_section[i] = (Place){.at = k + 1, .add = (int64_t)o->head.sh_size};
		if (s->sh_type != SHT_NOBITS)
			buf_put(&o->data, p->in->at + s->sh_offset, s->sh_size);
		o->head.sh_size += s->sh_size;
	}
}

/* ---------------------------------------------------------------- symbols */
/* Symbols of sections come first: number k + 1 is that of section k. */
static void
locals_put(Join *j, Piece *p)
{
	for (uint32_t i = 1; i < p->nsymbol; i++) {
		Elf64_Sym s = p->symbol[i];
		int type = ELF64_ST_TYPE(s.st_info);
		bool outside = ELF64_ST_BIND(s.st_info) != STB_LOCAL;

		if (s.st_shndx == SHN_UNDEF || type == STT_FILE || (outside && !p->in->name))
			continue;
		if (s.st_shndx >= SHN_LORESERVE)
			bug("the code of %s has a symbol of section %d", p->in->name ? p->in->name : "loops",
			    s.st_shndx);
		const Place *at = &p->of_section[s.st_shndx];

		if (type == STT_SECTION) {
			p->of_symbol[i] = *at;
			continue;
		}
		s.st_info = ELF64_ST_INFO(STB_LOCAL, type);
		s.st_other = STV_DEFAULT;
		s.st_name = outside ? string_add(j, p->in->name) : 0;
		s.st_shndx = (Elf64_Section)at->at;
		s.st_value += (uint64_t)at->add;
		vec_push(j->a, &j->local, s);
		p->of_symbol[i] = (Place){.at = j->section.n + j->local.n};
		if (outside)
			p->gives = p->of_symbol[i];
	}
}

static void
globals_put(Join *j, Piece *p)
{
	for (uint32_t i = 1; i < p->nsymbol; i++) {
		Elf64_Sym s = p->symbol[i];
		const char *name = p->strings + s.st_name;

		if (ELF64_ST_BIND(s.st_info) == STB_LOCAL || (s.st_shndx != SHN_UNDEF && p->in->name))
			continue;
		const Named *other = name_slot(&j->pieces, name);

		if (s.st_shndx == SHN_UNDEF && other->used) {
			p->of_symbol[i] = j->piece[other->at].gives;
			continue;
		}
		Named *slot = name_slot(&j->globals, name);

		if (!slot->used) {
			*slot = (Named){.name = name, .at = j->global.n, .used = true};
			vec_push(j->a, &j->global, ((Elf64_Sym){.st_name = string_add(j, name), .st_info = s.st_info}));
		}
		p->of_symbol[i] = (Place){.global = true, .at = slot->at};
		if (s.st_shndx == SHN_UNDEF)
			continue;
		const Place *at = &p->of_section[s.st_shndx];
		Elf64_Sym *r = &j->global.at[slot->at];
		uint32_t kept = r->st_name;

		*r = s;
		r->st_name = kept;
		r->st_shndx = (Elf64_Section)at->at;
		r->st_value += (uint64_t)at->add;
	}
}

static void
relocations_put(Join *j, const Piece *p)
{
	for (uint32_t i = 0; i < p->nsection; i++) {
		const Elf64_Shdr *s = &p->section[i];
		const Elf64_Rela *r = (const void *)(p->in->at + s->sh_offset);

		if (s->sh_type != SHT_RELA || !p->of_section[s->sh_info].at)
			continue;
		const Place *to = &p->of_section[s->sh_info];

		for (uint64_t k = 0; k < s->sh_size / sizeof *r; k++) {
			const Place *of = &p->of_symbol[ELF64_R_SYM(r[k].r_info)];
			uint64_t symbol = of->global ? 1 + j->section.n + j->local.n + of->at : of->at;

			vec_push(j->a, &j->section.at[to->at - 1].rela,
			         ((Elf64_Rela){.r_offset = r[k].r_offset + (uint64_t)to->add,
			                       .r_info = ELF64_R_INFO(symbol, ELF64_R_TYPE(r[k].r_info)),
			                       .r_addend = r[k].r_addend + of->add}));
		}
	}
}

/* ---------------------------------------------------------------- writing */
typedef struct Writer { Buf *out; Buf names; VEC(Elf64_Shdr) head; Arena *a; } Writer;

static uint32_t
section_write(Writer *w, const char *name, Elf64_Shdr h, const void *at, size_t n)
{
	static const char zero[64];
	uint64_t align = h.sh_addralign > 1 ? h.sh_addralign : 1;

	while (w->out->n % align) {
		uint64_t pad = align - w->out->n % align;

		buf_put(w->out, zero, pad < sizeof zero ? pad : sizeof zero);
	}
	h.sh_name = (Elf64_Word)w->names.n;
	buf_put(&w->names, name, strlen(name) + 1);
	h.sh_offset = w->out->n;
	if (h.sh_type != SHT_NOBITS)
		h.sh_size = n;
	if (n)
		buf_put(w->out, at, n);
	vec_push(w->a, &w->head, h);
	return w->head.n - 1;
}

static void
join_write(Join *j, Buf *out)
{
	Writer w = {.out = out, .a = j->a};
	Elf64_Ehdr h = {.e_ident = {ELFMAG0, ELFMAG1, ELFMAG2, ELFMAG3, ELFCLASS64, ELFDATA2LSB, EV_CURRENT},
	                .e_type = ET_REL,
	                .e_machine = EM_X86_64,
	                .e_version = EV_CURRENT,
	                .e_ehsize = sizeof h,
	                .e_shentsize = sizeof(Elf64_Shdr)};
	Buf symbols = {0};
	size_t from = out->n;

	buf_put(out, &h, sizeof h);
	buf_put(&w.names, "", 1);
	vec_push(j->a, &w.head, ((Elf64_Shdr){.sh_type = SHT_NULL}));
	for (uint32_t i = 0; i < j->section.n; i++)
		section_write(&w, j->section.at[i].name, j->section.at[i].head, j->section.at[i].data.at,
		              j->section.at[i].data.n);
	section_write(&w, ".note.GNU-stack", (Elf64_Shdr){.sh_type = SHT_PROGBITS, .sh_addralign = 1}, NULL, 0);
	buf_put(&symbols, &(Elf64_Sym){0}, sizeof(Elf64_Sym));
	for (uint32_t i = 0; i < j->section.n; i++)
		buf_put(&symbols,
		        &(Elf64_Sym){.st_info = ELF64_ST_INFO(STB_LOCAL, STT_SECTION),
		                     .st_shndx = (Elf64_Section)(i + 1)},
		        sizeof(Elf64_Sym));
	if (j->local.n)
		buf_put(&symbols, j->local.at, j->local.n * sizeof *j->local.at);
	if (j->global.n)
		buf_put(&symbols, j->global.at, j->global.n * sizeof *j->global.at);
	uint32_t strings = section_write(&w, ".strtab", (Elf64_Shdr){.sh_type = SHT_STRTAB, .sh_addralign = 1},
	                                 j->strings.at, j->strings.n);
	uint32_t table = section_write(&w, ".symtab",
	                               (Elf64_Shdr){.sh_type = SHT_SYMTAB,
	                                            .sh_link = strings,
	                                            .sh_info = 1 + j->section.n + j->local.n,
	                                            .sh_addralign = 8,
	                                            .sh_entsize = sizeof(Elf64_Sym)},
	                               symbols.at, symbols.n);

	buf_free(&symbols);
	for (uint32_t i = 0; i < j->section.n; i++) {
		const Section *s = &j->section.at[i];
		Elf64_Shdr r = {.sh_type = SHT_RELA,
		                .sh_flags = SHF_INFO_LINK,
		                .sh_link = table,
		                .sh_info = i + 1,
		                .sh_addralign = 8,
		                .sh_entsize = sizeof(Elf64_Rela)};

		if (s->rela.n)
			section_write(&w, arena_printf(j->a, ".rela%s", s->name), r, s->rela.at,
			              s->rela.n * sizeof *s->rela.at);
	}
	uint32_t names = w.head.n;
	static const char own[] = ".shstrtab";
	Elf64_Shdr last = {.sh_name = (Elf64_Word)w.names.n, .sh_type = SHT_STRTAB, .sh_addralign = 1};

	buf_put(&w.names, own, sizeof own);
	last.sh_offset = out->n;
	last.sh_size = w.names.n;
	buf_put(out, w.names.at, w.names.n);
	vec_push(j->a, &w.head, last);
	while (out->n % 8)
		buf_put(out, "", 1);
	h.e_shoff = out->n - from;
	h.e_shnum = (Elf64_Half)w.head.n;
	h.e_shstrndx = (Elf64_Half)names;
	buf_put(out, w.head.at, w.head.n * sizeof *w.head.at);
	memcpy(out->at + from, &h, sizeof h);
	buf_free(&w.names);
}

void
elf_join(const ElfPiece *piece, uint32_t n, Buf *out)
{
	Join j = {.a = arena_new(), .npiece = n};

	j.piece = arena_array(j.a, Piece, n);
	j.pieces = names_new(j.a, n);
	buf_put(&j.strings, "", 1);
	uint32_t symbols = 0;

	for (uint32_t i = 0; i < n; i++) {
		piece_open(&j, &j.piece[i], &piece[i]);
		sections_put(&j, &j.piece[i]);
		symbols += j.piece[i].nsymbol;
		if (piece[i].name)
			*name_slot(&j.pieces, piece[i].name) = (Named){.name = piece[i].name, .at = i, .used = true};
	}
	j.globals = names_new(j.a, symbols);
	for (uint32_t i = 0; i < n; i++)
		locals_put(&j, &j.piece[i]);
	for (uint32_t i = 0; i < n; i++)
		globals_put(&j, &j.piece[i]);
	for (uint32_t i = 0; i < n; i++)
		relocations_put(&j, &j.piece[i]);
	join_write(&j, out);
	for (uint32_t i = 0; i < j.section.n; i++)
		buf_free(&j.section.at[i].data);
	buf_free(&j.strings);
	arena_free(j.a);
}
