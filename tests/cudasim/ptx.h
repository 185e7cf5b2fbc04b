/* ptx.h: between the scanner, the reader of declarations (parse.c) and the reader of instructions (decode*.c) of PTX
 * text. */
#ifndef PTX_H
#define PTX_H
#include "sim.h"

typedef enum Tok { TOK_END, TOK_WORD, TOK_INT, TOK_F32, TOK_F64, TOK_STRING, TOK_PUNCT } Tok;

typedef struct Lex {
	const char *at, *end;
	int line;
	Tok tok;
	const char *text;  /* of a word or string, or the one character of a mark */
	uint32_t len;
	uint64_t value;    /* of a number, its bits if it is a float */
} Lex;

void lex_open(Lex *l, const char *text);
void lex_next(Lex *l);
bool lex_is(const Lex *l, const char *word);
const char *lex_unknown(const Lex *l, char *to, size_t n); /* a copy to print */

typedef enum SymKind {
	SYM_REG, SYM_REGS, SYM_GLOBAL, SYM_SHARED, SYM_LOCAL, SYM_PARAM, SYM_FRAME, SYM_FUNC, SYM_LABEL, SYM_SPECIAL,
} SymKind;
typedef struct Sym {
	const char *name;
	uint32_t len, hash;
	int next;          /* of the same hash */
	SymKind kind;
	uint32_t bytes;    /* registers: 1 for a predicate */
	uint32_t at;       /* offset, or index */
	uint32_t count;
	uint64_t address;
} Sym;

typedef enum OpndKind {
	OPND_REG, OPND_INT, OPND_F32, OPND_F64, OPND_SYM, OPND_MEMORY, OPND_VECTOR, OPND_SINK, OPND_LABEL,
} OpndKind;
typedef struct Opnd {
	OpndKind kind;
	bool negated;
	uint32_t reg, bytes;   /* register; base of an address if kind is MEMORY and bytes is not 0 */
	int64_t value;         /* of a number, or the offset of an address */
	const Sym *sym;        /* named by OPND_SYM, or base of an address */
	Sym copy;
	int first, n;          /* of a vector: operands; of an address: coordinates */
	int pair;              /* second of a|b: its operand, or -1 */
	const char *name;
	uint32_t name_len;
} Opnd;

#define MAX_OPNDS 640
#define MAX_PARTS 16
#define HASH_SIZE 4096

/* a branch to a label not seen yet */
typedef struct Pending { const char *name; uint32_t len, ins; int depth; } Pending;

#define MAX_TABLES 64
#define MAX_TABLE 128
/* of brx.idx */
typedef struct Table { const char *name, *label[MAX_TABLE]; uint32_t len, label_len[MAX_TABLE]; int n; } Table;

typedef struct Parser {
	Lex lex;
	Module *m;
	Func *f;               /* whose body is read */
	jmp_buf fail;
	char *error;
	size_t error_bytes;
	CUresult status;
	int sm;
	int pass;

	Sym *sym;
	int nsym, capsym, hash[HASH_SIZE];
	int depth, mark[64];
	Pending *pending;
	int npending, cappending;

	uint32_t regs, frame, params;       /* next free, of the function */
	uint32_t temp[4][12];      /* by size: 1 2 4 8 bytes */
	int ntemp[4];
	uint32_t shared_bytes, func_shared;
	Table table[MAX_TABLES];
	int ntable;
	/* room of the module's lists */
	int capins, capextra, capfunc, capglobal, capshared, capfixup, caploc, capconst;
	int shared_first;          /* fixups of this function begin here */

	/* The instruction being decoded. */
	Opnd opnd[MAX_OPNDS];
	int nopnd, top[16], ntop;
	char parts_text[128], none[1];
	/* empty before the first and after the last, so that any may be looked at */
	char *part_room[MAX_PARTS + 16], **part;
	int npart;
	uint32_t guard;
	int line;
} Parser;

_Noreturn void parse_fail(Parser *p, CUresult status, const char *format, ...) __attribute__((format(printf, 3, 4)));
void *grow(void *array, int n, int *cap, size_t size);
const Sym *sym_find(Parser *p, const char *name, uint32_t len, Sym *range);
uint32_t parse_reg(Parser *p, uint32_t bytes);       /* a new register */
uint32_t parse_temp(Parser *p, uint32_t bytes);      /* one for this instruction only */
uint32_t parse_const(Parser *p, uint64_t value, uint32_t bytes, int shared);
uint32_t shared_use(Parser *p, uint32_t index);      /* gives the variable a place in the function's shared memory */
uint32_t type_bytes(const char *type);               /* 0 if it is none */

#define REGS_FIRST ((uint32_t)SR_COUNT * LANES * 4)
bool parse_accept(Parser *p, const char *word);
void parse_want(Parser *p, const char *word);
_Noreturn void parse_expected(Parser *p, const char *what);
uint64_t parse_int(Parser *p);
char *parse_name(Parser *p);
char *copy_text(const char *s, size_t n);
Sym *sym_add(Parser *p, const char *name, uint32_t len, SymKind kind);
void scope_open(Parser *p);
void scope_close(Parser *p);
void parse_body(Parser *p);

/* declare.c */
uint32_t align_up(uint32_t v, uint32_t align);
void parse_global(Parser *p, bool constant);
void parse_shared(Parser *p, bool external);
void parse_local(Parser *p);
void parse_call_param(Parser *p);
void parse_function(Parser *p, bool entry);
void func_calls(Func *f, Func *callee);
void func_place(Parser *p); /* gives every function its local memory, after the first reading */

/* decode.c */
void decode(Parser *p);
void branch_to(Parser *p, Ins *x, const char *name, uint32_t len);
Ins *emit(Parser *p, OpFn *fn, Kind kind);
/* a row of alu.def; fails if there is none */
Ins *emit_row(Parser *p, const char *name, uint32_t d, uint32_t a, uint32_t b, uint32_t c);
/* where the operand's value lies, as a register of that many bytes */
uint32_t use(Parser *p, const Opnd *o, uint32_t bytes);
uint32_t use_pred(Parser *p, const Opnd *o);
uint32_t define(Parser *p, const Opnd *o, uint32_t bytes);   /* where a result goes; ended by finish() */
void finish(Parser *p, const Opnd *o, uint32_t from, uint32_t bytes, bool is_signed);
uint32_t extra(Parser *p, uint32_t v);
bool has(const Parser *p, const char *part);
int part_index(const Parser *p, const char *part);
Opnd *top(Parser *p, int k);
void use_address(Parser *p, Ins *x, const Opnd *o);
Space space_of(Parser *p, int *from);
_Noreturn void decode_unknown(Parser *p);

/* of the operation that flushes subnormals of the type, or NULL */
const char *flush_name(const char *type);
uint32_t flushed(Parser *p, const char *flush, uint32_t reg, uint32_t bytes);
void resize(Parser *p, uint32_t to, uint32_t to_bytes, uint32_t from, uint32_t from_bytes, bool is_signed);

/* decode_convert.c */
void decode_setp(Parser *p);
void decode_set(Parser *p);
void decode_mov(Parser *p);
void decode_cvt(Parser *p);
void decode_cvta(Parser *p);

/* decode_memory.c, decode_tensor.c: true if the opcode is theirs */
bool decode_memory(Parser *p);
bool decode_warp(Parser *p);
bool decode_tensor(Parser *p);

enum {
	T_U8 = 1, T_S8, T_U16, T_S16, T_U32, T_S32, T_U64, T_S64, T_F16, T_BF16, T_F32, T_F64, T_B8, T_B16, T_B32,
	T_B64, T_PRED, T_F16X2, T_BF16X2, T_TF32, T_E4M3X2, T_E5M2X2, T_E4M3, T_E5M2,
};
int type_code(const char *name);
#endif
