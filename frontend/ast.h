/* ast.h: the tree of a .net file: plain nodes in an arena, each with a location; lists are linked through `next`.
 *
 * Nothing is resolved here: names are interned text. Every node knows how deep it is nested, so that whoever walks the
 * tree recursively has a bound: chains (a + b + c, x |> f |> g) hang on the left and do not count as nesting; walkers
 * follow them in a loop. */
#ifndef FRONTEND_AST_H
#define FRONTEND_AST_H
#include "../ir/base.h"
#include "../ir/diag.h"

#define MAX_NEST 200                 /* expressions inside expressions, bodies inside bodies */
#define MAX_OPEN 1000                /* open brackets that messages know of */
#define MAX_FILE_BYTES (16u << 20)   /* of one .net file */

/* the name of a call that is values in braces: {x = "a", y = "b"} */
#define NODE_TABLE "{}"

typedef enum NodeKind {
	N_ERROR,        /* a syntax error was reported here: evaluates to nothing, silently */
	N_INT, N_FLOAT, N_STR, N_BOOL, N_NONE, N_DTYPE, N_NAME, N_LIST, N_CALL,
	N_UNARY, N_BINARY, N_AND, N_OR, N_NOT, N_SHAPE, N_INDEX
} NodeKind;

typedef struct Node Node;
typedef struct Arg { const char *name; /* NULL: positional */ Loc loc; Node *value; struct Arg *next; } Arg;
typedef struct Args { Arg *first, *last; int n; } Args;

struct Node {
	NodeKind kind;
	uint16_t depth;
	bool piped;              /* CALL: the first argument stands left of |> */
	bool big;                /* INT: 2^63, good only under a minus */
	Loc loc;                 /* of a call: its name; of an operator: the operator */
	int64_t i;               /* INT, BOOL, DTYPE */
	double f;
	const char *s;           /* STR, NAME, name of a CALL, spelling of an operator */
	Node *a, *b;             /* operands; INDEX: list and index */
	Args args;               /* CALL, LIST */
	const char *label; Loc label_loc;
};

typedef struct Name { const char *name; Loc loc; struct Name *next; } Name;
typedef struct Names { Name *first, *last; int n; } Names;

typedef enum StmtKind {
	S_ERROR, S_ASSIGN, S_RETURN, S_IF, S_FOR, S_REPEAT, S_LOSS, S_METRIC, S_OUTPUT, S_REQUIRE,
} StmtKind;
typedef struct Stmt Stmt;
typedef struct Body { Stmt *first, *last; int n; uint16_t depth; Loc end; } Body;
struct Stmt {
	StmtKind kind;
	Loc loc;
	Names names;             /* ASSIGN, FOR; METRIC and OUTPUT one */
	Args exprs;              /* RETURN: one or more, else one (OUTPUT: maybe none) */
	Node *index;             /* METRIC and OUTPUT: what is put behind the name, or NULL */
	Body body, other;        /* IF; FOR and REPEAT use body. An else-if is one statement in `other` */
	Stmt *next;
};

typedef struct Param { const char *name; Loc loc; Node *value; /* default or NULL */ struct Param *next; } Param;
typedef struct Params { Param *first, *last; int n; } Params;
typedef struct InputDecl { const char *name; Loc loc; int dtype; Args shape; struct InputDecl *next; } InputDecl;
typedef struct Inputs { InputDecl *first, *last; int n; } Inputs;

typedef enum ItemKind { I_USE, I_CONST, I_BLOCK, I_MODEL, I_SETTINGS } ItemKind;
typedef struct Item {
	ItemKind kind;
	Loc loc;                 /* of the name */
	const char *name;        /* file of a USE; "data", "train" or "generate" */
	Node *value;             /* CONST */
	Params params; Inputs inputs; Body body;
	Args settings;
	struct Item *next;
} Item;
typedef struct Items { Item *first, *last; int n; } Items;

/* A bracket that is open. */
typedef struct Open { char sign; Loc at; } Open;

/* State of one parse; scanner and grammar share it. */
typedef struct Parser {
	Arena *arena;
	Diags *diags;
	uint16_t file;
	void *scanner;
	uint32_t line, col;      /* of the next byte */
	int start;               /* token that selects what is parsed, given once: a file or an expression */
	int brace, target;       /* open braces so far; those around the statement in error */
	bool fresh;              /* the last token is the first of its line */
	uint32_t condition;      /* line of the last `if` or `require` */
	int held; Loc held_at;   /* an item's keyword, until the bodies before it are closed */
	const char *text;        /* last token, for messages */
	const char *before, *first; /* the token before it; the first one of its line */
	const char *tail;        /* the last token of the line before, that has any */
	Loc at, before_at, tail_at;
	int bracket, paren;      /* open [ and ( so far */
	Open open[MAX_OPEN]; int nopen; /* the innermost last; those beyond are not kept */
	bool equals;             /* a = stands before the last token on its line */
	bool settings;           /* inside data, train or generate */
	bool ended;              /* what follows is no text */
	bool failed;             /* a syntax error was reported */
	bool failed_settings;    /* one in data or train: a setting may be missing */
	bool lost;               /* an item was dropped, so a name may be unknown through no fault of its user */
	bool uses_training;      /* the name `training` occurs */
	Items items;
	Node *expr;
} Parser;

/* Parses a whole file. False if nothing can be made of it; items after a syntax error are still there. */
bool parse_file(Parser *p, const char *text, size_t bytes);
/* Parses one expression (the value of -D). NULL after diagnostics. */
Node *parse_expr(Parser *p, const char *text, size_t bytes);

/* ---- for net.l and net.y */
void parser_note_open(Parser *p, int but);      /* where the innermost bracket is open, of all but the last so many */
bool waits_for_value(const char *token);        /* does a value stand behind it, always? */
/* ---- constructors, for net.y */
Node *node_new(Parser *p, NodeKind k, Loc at);
Node *node_unary(Parser *p, NodeKind k, const char *op, Loc at, Node *a);
Node *node_binary(Parser *p, NodeKind k, const char *op, Loc at, Node *a, Node *b);
Node *node_list(Parser *p, Loc at, Args args);
Node *node_call(Parser *p, Loc at, const char *name, Args args, Node *piped, Name *label);
Args args_add(Parser *p, Args list, const char *name, Loc at, Node *value);
Names names_add(Parser *p, Names list, const char *name, Loc at);
Params params_add(Parser *p, Params list, const char *name, Loc at, Node *value);
Inputs inputs_add(Parser *p, Inputs list, const char *name, Loc at, int dtype, Args shape);
Stmt *stmt_new(Parser *p, StmtKind k, Loc at);
Body body_add(Parser *p, Body list, Stmt *s);
Item *item_add(Parser *p, ItemKind k, Loc at, const char *name);
#endif
