/* space.h: kernels with parameters, as codegen/tune.def declares them: structs, text, checks, what can be searched.
 *
 * A kernel's text is in Group.kernel, in plans and in tuning files; nothing else reads or writes it. */
#ifndef CODEGEN_SPACE_H
#define CODEGEN_SPACE_H
#include "../ir/ir.h"
#include "../ir/target.h"

/* FAMILY_cpu_brgemm, ..: a row of the table each; FAMILY_none: a text that is no row's. */
typedef enum FamilyId {
	FAMILY_none,
#define FAMILY(target, name, ...) FAMILY_##target##_##name,
#define END(target, name)
#define BARE(target, name, ...) FAMILY_##target##_##name,
#include "tune.def"
	FAMILY_COUNT
} FamilyId;

typedef enum ParamKind { PARAM_number, PARAM_word, PARAM_pairs, PARAM_name } ParamKind;
/* Pairs of a parameter, and what their first number is below; bytes of a name; numbers of a kernel. */
enum { PAIRS_MOST = 48, PAIR_KINDS = 1000, NAME_SIZE = 16, PARAMS_SIZE = 128 };

/* The columns of tune.def. */
typedef struct Param {
	const char *name;
	ParamKind kind;
	const char *form, *values, *left_out, *fits, *order, *doc;
} Param;
typedef struct Family {
	const char *target, *name, *text;
	bool bare;               /* its text is that word alone */
	int version;
	const char *ops, *differs, *doc;
	const Param *param; int nparam;
} Family;
extern const Family space_family[FAMILY_COUNT];

/* A kernel: the family's member holds its parameters, in the order of the table, `at` the same as numbers. */
#define FIELD_number(name) int name;
#define FIELD_word(name) int name;
#define FIELD_pairs(name) struct { int n, of[PAIRS_MOST][2]; } name;
#define FIELD_name(name) char name[NAME_SIZE];
typedef struct Params {
	FamilyId family;
	union {
		int at[PARAMS_SIZE];
#define FAMILY(target, name, ...) struct {
#define PARAM(name, kind, ...) FIELD_##kind(name)
#define END(target, name) } target##_##name;
#include "tune.def"
	};
} Params;
#undef FIELD_number
#undef FIELD_word
#undef FIELD_pairs
#undef FIELD_name

/* What a target knows of a group and its machine; what it does not say is 0. */
typedef struct Facts {
#define FACT(name, doc) int64_t name;
#include "tune.def"
} Facts;

/* The family whose text begins so; op: an operator's name, NULL: any. It may not read all the same. */
FamilyId space_family_of(const char *target, const char *op, const char *text);
/* All of it, to the letter: what is read prints the same. op as above; text NULL is no kernel's. False: p->family is
 * FAMILY_none. */
bool space_parse(const char *target, const char *op, const char *text, Params *p);
const char *space_text(Arena *a, const Params *p);
/* The texts that a family takes, without numbers: rows{threads=[,pieces=]}. */
const char *space_form(Arena *a, FamilyId f);
/* NULL, or the first condition that does not hold, with its numbers. */
const char *space_misfit(Arena *a, const Params *p, const Facts *facts);
/* The number, or the word's, of that name; 0: its family has none. Sets it, where its family has one. */
int space_number(const Params *p, const char *name);
void space_set(Params *p, const char *name, int value);
/* May a tuning file choose its parameters? */
bool space_tunable(FamilyId f);
/* The version of the kernels whose text begins with `family`, that a tuning file may choose; -1: there are none. */
int space_version(const char *target, const char *family);
/* All that is worth trying and fits, in a fixed order, p's own values among it; parameters without such values stay as
 * in p, and so do all but `steps` of them (0: any number may change). each may end it by false. */
void space_each(const Params *p, const Facts *facts, int steps, bool (*each)(void *cx, const Params *p), void *cx);
/* How the kernel associates its sums: two of one group and of one key give the same bits. */
const char *space_order_key(Arena *a, const Params *p, const Facts *facts);
BitsClass space_class(const Params *base, const Params *p, const Facts *facts);
/* The table for people, in Markdown. */
void space_document(Buf *out);
#endif
