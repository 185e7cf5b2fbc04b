/* sass.c: reads a cubin's machine code without a disassembler: instructions, what they wait for, loops.
 *
 * In: a cubin (ELF of 64 bits) and a function's name.   Out: its registers and shared memory, and of each instruction
 * what a forecast asks for. From sm_70 on an instruction is 16 bytes: opcode in bits 0 to 11, condition in 12 to 15,
 * and from bit 105 on what the hardware does not find out by itself: cycles until the next instruction (4 bits), yield,
 * the scoreboard that its result sets and that its operands free (3 bits each), a mask of those it waits for (6) (Jia
 * et al., "Dissecting the NVIDIA Volta GPU Architecture via Microbenchmarking", 2018). A branch's distance is in bits
 * 34 on, in words of 4 bytes; from sm_90 on its last 8 bits are 16 to 23. tests/cuda/sass.c has a kernel whose code is
 * known. Refuses what is no such file. */
#include "sass.h"
#include <elf.h>
#include <string.h>

static const struct {
	const char *name;
	int code;
	double latency;
} rows[] = {
    [SASS_OTHER] = {"other", -1, 0},
#define SASS(kind, code, latency) [SASS_##kind] = {#kind, code, latency},
#include "sass.def"
#undef SASS
};

const char *
cu_sass_name(SassKind k)
{
	return rows[k].name;
}

/* Cycles, unloaded, of Luo et al. 2024: L2 and memory, shared memory. */
double
cu_sass_latency(SassKind k, bool hopper)
{
	switch (k) {
	case SASS_LDG:
	case SASS_LDGR:
	case SASS_LD:
	case SASS_LDGSTS:
	case SASS_UTMALDG:
		return hopper ? 479 : 466;
	case SASS_ATOMG:
		return hopper ? 263 : 262;
	case SASS_LDS:
	case SASS_LDSM:
		return hopper ? 29 : 29;
	default:
		return rows[k].latency;
	}
}

/* ---------------------------------------------------------------- the file */
typedef struct File {
	const uint8_t *at;
	size_t n;
	const Elf64_Ehdr *head;
	const Elf64_Shdr *section;
	const char *names;
} File;

static bool
inside(const File *f, uint64_t at, uint64_t n)
{
	return at <= f->n && n <= f->n - at;
}

static bool
file_open(const Buf *b, File *f)
{
	*f = (File){.at = (const uint8_t *)b->at, .n = b->n, .head = (const Elf64_Ehdr *)(const void *)b->at};
	if (b->n < sizeof *f->head || memcmp(f->head->e_ident, ELFMAG, SELFMAG) ||
	    f->head->e_ident[EI_CLASS] != ELFCLASS64)
		return false;
	uint64_t count = f->head->e_shnum;

	if (f->head->e_shentsize != sizeof *f->section || !inside(f, f->head->e_shoff, count * sizeof *f->section) ||
	    f->head->e_shstrndx >= count || f->head->e_shoff % 8)
		return false;
	f->section = (const Elf64_Shdr *)(const void *)(f->at + f->head->e_shoff);
	for (uint64_t i = 0; i < count; i++)
		if (f->section[i].sh_type != SHT_NOBITS && !inside(f, f->section[i].sh_offset, f->section[i].sh_size))
			return false;
	const Elf64_Shdr *names = &f->section[f->head->e_shstrndx];

	f->names = (const char *)f->at + names->sh_offset;
	return names->sh_size && !f->names[names->sh_size - 1];
}

/* The section of that name, before and behind a dot: .text.NAME. NULL: there is none. */
static const Elf64_Shdr *
section_of(const File *f, const char *kind, const char *name)
{
	size_t n = strlen(kind);

	for (int i = 0; i < f->head->e_shnum; i++) {
		const char *s = f->names + f->section[i].sh_name;

		if (f->section[i].sh_name < f->section[f->head->e_shstrndx].sh_size && !strncmp(s, kind, n) &&
		    !strcmp(s + n, name))
			return &f->section[i];
	}
	return NULL;
}

static uint32_t
word_at(const uint8_t *p)
{
	uint32_t x;

	memcpy(&x, p, sizeof x);
	return x;
}

/* The number that attribute `which` of .nv.info has for a function's symbol: records of format 4 {format, attribute,
 * bytes (16 bits), symbol, number}. */
static int
attribute(const File *f, int which, uint32_t symbol)
{
	const Elf64_Shdr *s = section_of(f, ".nv.info", "");
	const uint8_t *at = s ? f->at + s->sh_offset : NULL, *end = s ? at + s->sh_size : NULL;

	while (at && end - at >= 4) {
		int n = at[0] == 4 ? at[2] | at[3] << 8 : 0; /* the other formats have their value in these two bytes */

		if (end - at - 4 < n)
			break;
		if (at[0] == 4 && at[1] == which && n >= 8 && word_at(at + 4) == symbol)
			return (int)word_at(at + 8);
		at += 4 + n;
	}
	return 0;
}

/* ---------------------------------------------------------------- instructions */
static SassKind
kind_of(int code)
{
	for (int k = 1; k < NSASS; k++)
		if (rows[k].code == code)
			return (SassKind)k;
	return SASS_OTHER;
}

static int
target_of(uint64_t low, uint64_t high, int here, bool hopper)
{
	int64_t far = (int64_t)(low >> 34 | (high & 0x3ffff) << 30);

	far = (int64_t)((uint64_t)far << 16) >> 16; /* 48 bits with a sign */
	if (hopper)
		far = far * 256 + (int64_t)(low >> 16 & 255);
	return here + 1 + (int)(far * 4 / 16);
}

static Insn
insn_of(const uint8_t *p, int here, int n, bool hopper)
{
	static const uint8_t widths[8] = {1, 1, 2, 2, 4, 8, 16, 16};
	uint64_t low, high;

	memcpy(&low, p, 8);
	memcpy(&high, p + 8, 8);
	int code = (int)(low & 0xfff);
	SassKind k = kind_of(code);
	Insn x = {.kind = (uint8_t)k,
	          .stall = high >> 41 & 15,
	          .sets = high >> 46 & 7,
	          .reads = high >> 49 & 7,
	          .waits = high >> 52 & 63,
	          .always = (low >> 12 & 15) == 7,
	          .target = -1};

	if (k == SASS_BRA || k == SASS_CALL) {
		x.target = target_of(low, high, here, hopper);
		if (x.target < 0 || x.target >= n)
			x.target = -1;
	}
	x.width = widths[high >> 9 & 7];
	if (k == SASS_LDSM || k == SASS_LDGSTS)
		x.width = 16;
	if (k == SASS_MEMBAR)
		x.strong = (high >> 12 & 7) > 0; /* of the device, not of the block */
	else
		x.strong = (k == SASS_LDG || k == SASS_LDGR) && (high >> 13 & 15) != 0;
	return x;
}

/* Loads of 16 bytes whose neighbour, 16 bytes on from the same register, is near. */
static void
pairs_find(const uint8_t *text, Insn *in, int n)
{
	enum { NEAR = 6 };
	uint64_t a, b;

	for (int i = 0; i < n; i++)
		for (int j = i + 1; j < n && j < i + NEAR; j++) {
			if (in[i].kind != SASS_LDG || in[j].kind != SASS_LDG || in[i].width != 16 || in[j].width != 16)
				continue;
			memcpy(&a, text + 16 * (size_t)i, 8);
			memcpy(&b, text + 16 * (size_t)j, 8);
			int64_t apart = (int64_t)(b >> 40) -
			                /* the distance is in bits 40 to 63, the register in 24 to 31 */
			                (int64_t)(a >> 40);

			if ((a >> 24 & 255) == (b >> 24 & 255) && (apart == 16 || apart == -16))
				in[i].paired = in[j].paired = true;
		}
}

static void
loops_find(Arena *a, Code *c)
{
	c->body = c->n;
	for (int i = 0; i < c->n; i++)
		if (c->at[i].kind == SASS_CALL && c->at[i].target > i && c->at[i].target < c->body)
			c->body = c->at[i].target;
	for (int i = 0; i < c->n; i++) {
		int to = c->at[i].target;
		bool known = false;

		/* the last instruction of a function branches to itself */
		if (c->at[i].kind != SASS_BRA || to < 0 || to >= i)
			continue;
		for (uint32_t k = 0; k < c->loop.n; k++)
			if (c->loop.at[k].first == to) { /* two ways back: one loop */
				known = true;
				c->loop.at[k].last = i;
			}
		if (!known)
			vec_push(a, &c->loop, ((SassLoop){to, i}));
	}
	for (uint32_t i = 1; i < c->loop.n; i++)
		for (uint32_t k = i; k > 0 && c->loop.at[k].first < c->loop.at[k - 1].first; k--) {
			SassLoop x = c->loop.at[k];

			c->loop.at[k] = c->loop.at[k - 1];
			c->loop.at[k - 1] = x;
		}
}

bool
cu_code_read(Arena *a, const Buf *cubin, const char *name, bool hopper, Code *c)
{
	File f;

	*c = (Code){.name = name};
	const Elf64_Shdr *text = file_open(cubin, &f) ? section_of(&f, ".text.", name) : NULL;

	if (!text || text->sh_type == SHT_NOBITS || text->sh_size < 16)
		return false;
	const Elf64_Shdr *shared = section_of(&f, ".nv.shared.", name);
	uint32_t symbol = text->sh_info & 0xffffff;
	Insn *in;

	c->n = (int)(text->sh_size / 16);
	c->at = in = arena_array(a, Insn, c->n);
	for (int i = 0; i < c->n; i++)
		in[i] = insn_of(f.at + text->sh_offset + 16 * (size_t)i, i, c->n, hopper);
	pairs_find(f.at + text->sh_offset, in, c->n);
	c->regs = attribute(&f, 0x2f, symbol);
	c->frame = attribute(&f, 0x11, symbol);
	c->shared = shared ? (int)shared->sh_size : 0;
	if (!c->regs) /* before CUDA 13: beside the symbol's number */
		c->regs = (int)(text->sh_info >> 24);
	loops_find(a, c);
	return true;
}

bool
cu_code_spills_in_loop(const Code *c)
{
	enum { MANY = 64 };

	for (uint32_t k = 0; k < c->loop.n; k++) {
		int products = 0, kept = 0;
		bool inner = true;

		for (uint32_t j = 0; j < c->loop.n; j++)
			inner &= j == k || c->loop.at[j].first < c->loop.at[k].first ||
			         c->loop.at[j].last > c->loop.at[k].last;
		for (int i = c->loop.at[k].first; i <= c->loop.at[k].last; i++) {
			int kind = c->at[i].kind;

			products += kind == SASS_HMMA || kind == SASS_HGMMA ? MANY : kind == SASS_FFMA;
			kept += kind == SASS_LDL || kind == SASS_STL;
		}
		if (inner && products >= MANY && kept)
			return true;
	}
	return false;
}
