/* net.y: grammar of the .net language: tokens in, the tree of ast.h out.
 *
 * LALR(1) without conflicts, with lookahead correction so that "expected" tells the truth. After a syntax error a
 * statement is given up to the next one that begins a line or a keyword, within its braces; an item up to the next
 * item. Operators and calls are located at their own spelling. `data` and `train` are names, and keywords only where an
 * item may begin. */
%require "3.8"
%define api.pure full
%define api.prefix {net_}
%define api.location.type {Loc}
%define parse.error custom
%define parse.lac full
%locations
%expect 0
%param {Parser *p}

%code requires {
#include "ast.h"
#define YYMAXDEPTH 4000
#define YYLLOC_DEFAULT(cur, rhs, n) ((cur) = (n) ? YYRHSLOC(rhs, 1) : YYRHSLOC(rhs, 0))
}
%union {
	const char *s;
	int64_t i;
	Node *node;
	Name *name;
	Names names;
	Args args;
	Params params;
	Inputs inputs;
	Stmt *stmt;
	Body body;
}
%code {
#include "../ir/ir.h"
#include "words.h"
#include <string.h>

int net_lex(NET_STYPE *v, NET_LTYPE *at, Parser *p);
static void net_error(const Loc *at, Parser *p, const char *text);
static int skip_statement(Parser *p, int token, NET_STYPE *v, NET_LTYPE *at, bool keywords);
static int skip_item(Parser *p, int token, NET_STYPE *v, NET_LTYPE *at);
static void refuse(Parser *p, Loc at, const char *text);
static void unknown_item(Parser *p, Loc at, const char *name);
static void no_attribute(Parser *p, const Node *of, Loc at, const char *name);
static Name *name_new(Parser *p, const char *name, Loc at);
}

%token <s> NAME "a name" STRING "a string"
%token <node> NUMBER "a number"
%token <i> DTYPE "a type such as f32 or i32"
%token PIPE "|>" EQ "==" NE "!=" LE "<=" GE ">="
%token USE "use" CONST "const" BLOCK "block" MODEL "model" RETURN "return"
%token IF "if" ELSE "else" FOR "for" IN "in" REPEAT "repeat"
%token LOSS "loss" METRIC "metric" OUTPUT "output" REQUIRE "require"
%token AND "and" OR "or" NOT "not" TRUE_ "true" FALSE_ "false"
%token NONE_ "none" AS "as" BAD "an unreadable character" START_FILE "a file" START_EXPR "an expression"

%type <node> expr piped or and not cmp sum term unary postfix primary
%type <args> args arglist exprs pipeargs settings
%type <s> cmpop
%type <name> label
%type <names> names
%type <params> params paramlist
%type <inputs> inputs
%type <stmt> stmt
%type <body> body stmts else

%%
start: START_FILE items | START_EXPR expr { p->expr = $2; } ;

items: %empty | items item ;

item:
	  USE STRING { item_add(p, I_USE, @2, $2); }
	| CONST NAME '=' expr { item_add(p, I_CONST, @2, $2)->value = $4; }
	| BLOCK NAME '(' params ')' body { Item *i = item_add(p, I_BLOCK, @2, $2); i->params = $4; i->body = $6; }
	| MODEL NAME '(' inputs ')' body { Item *i = item_add(p, I_MODEL, @2, $2); i->inputs = $4; i->body = $6; }
	| NAME '{' settings '}' {
		if (strcmp($1, "data") && strcmp($1, "train") && strcmp($1, "generate"))
			unknown_item(p, @1, $1);
		else
			item_add(p, I_SETTINGS, @1, $1)->settings = $3; }
	| NAME NAME { unknown_item(p, @1, $1); yychar = skip_item(p, yychar, &yylval, &yylloc); }
	| NAME STRING { unknown_item(p, @1, $1); yychar = skip_item(p, yychar, &yylval, &yylloc); }
	| error { p->lost = true; yychar = skip_item(p, yychar, &yylval, &yylloc); yyerrok; }
	;

params: %empty { $$ = (Params){0}; } | paramlist ;
paramlist:
	  NAME { $$ = params_add(p, (Params){0}, $1, @1, NULL); }
	| NAME '=' expr { $$ = params_add(p, (Params){0}, $1, @1, $3); }
	| paramlist ',' NAME { $$ = params_add(p, $1, $3, @3, NULL); }
	| paramlist ',' NAME '=' expr { $$ = params_add(p, $1, $3, @3, $5); }
	;
inputs:
	  NAME ':' DTYPE '[' exprs ']' { $$ = inputs_add(p, (Inputs){0}, $1, @1, (int)$3, $5); }
	| inputs ',' NAME ':' DTYPE '[' exprs ']' { $$ = inputs_add(p, $1, $3, @3, (int)$5, $7); }
	;
settings:
	  %empty { $$ = (Args){0}; }
	| settings NAME '=' expr { $$ = args_add(p, $1, $2, @2, $4); }
	| settings error {
		$$ = $1; p->failed_settings = true;
		yychar = skip_statement(p, yychar, &yylval, &yylloc, false);
		if (yychar != NET_EOF)
			yyerrok; }
	;

body: '{' stmts '}' { $$ = $2; $$.end = @3; } ;
stmts: %empty { $$ = (Body){0}; } | stmts stmt { $$ = body_add(p, $1, $2); } ;

stmt:
	  names '=' expr {
		$$ = stmt_new(p, S_ASSIGN, @1); $$->names = $1; $$->exprs = args_add(p, (Args){0}, NULL, @3, $3); }
	| RETURN arglist { $$ = stmt_new(p, S_RETURN, @1); $$->exprs = $2; }
	| IF expr body else {
		$$ = stmt_new(p, S_IF, @1); $$->exprs = args_add(p, (Args){0}, NULL, @2, $2);
		$$->body = $3; $$->other = $4; }
	| FOR names IN expr body {
		$$ = stmt_new(p, S_FOR, @1); $$->names = $2; $$->exprs = args_add(p, (Args){0}, NULL, @4, $4);
		$$->body = $5; }
	| REPEAT expr body {
		$$ = stmt_new(p, S_REPEAT, @1); $$->exprs = args_add(p, (Args){0}, NULL, @2, $2); $$->body = $3; }
	| LOSS expr { $$ = stmt_new(p, S_LOSS, @1); $$->exprs = args_add(p, (Args){0}, NULL, @2, $2); }
	| METRIC NAME '=' expr {
		$$ = stmt_new(p, S_METRIC, @2); $$->names = names_add(p, (Names){0}, $2, @2);
		$$->exprs = args_add(p, (Args){0}, NULL, @4, $4); }
	| METRIC NAME '[' expr ']' '=' expr {
		$$ = stmt_new(p, S_METRIC, @2); $$->names = names_add(p, (Names){0}, $2, @2); $$->index = $4;
		$$->exprs = args_add(p, (Args){0}, NULL, @7, $7); }
	| OUTPUT NAME { $$ = stmt_new(p, S_OUTPUT, @2); $$->names = names_add(p, (Names){0}, $2, @2); }
	| OUTPUT NAME '=' expr {
		$$ = stmt_new(p, S_OUTPUT, @2); $$->names = names_add(p, (Names){0}, $2, @2);
		$$->exprs = args_add(p, (Args){0}, NULL, @4, $4); }
	| OUTPUT NAME '[' expr ']' '=' expr {
		$$ = stmt_new(p, S_OUTPUT, @2); $$->names = names_add(p, (Names){0}, $2, @2); $$->index = $4;
		$$->exprs = args_add(p, (Args){0}, NULL, @7, $7); }
	| REQUIRE expr { $$ = stmt_new(p, S_REQUIRE, @1); $$->exprs = args_add(p, (Args){0}, NULL, @2, $2); }
	| error {
		$$ = stmt_new(p, S_ERROR, @1);
		yychar = skip_statement(p, yychar, &yylval, &yylloc, true);
		if (yychar != NET_EOF)
			yyerrok; }
	;
else:
	  %empty { $$ = (Body){0}; }
	| ELSE body { $$ = $2; }
	| ELSE IF expr body else {
		Stmt *s = stmt_new(p, S_IF, @2);

		s->exprs = args_add(p, (Args){0}, NULL, @3, $3); s->body = $4; s->other = $5;
		$$ = body_add(p, (Body){0}, s); }
	;
names:
	  NAME { $$ = names_add(p, (Names){0}, $1, @1); }
	| names ',' NAME { $$ = names_add(p, $1, $3, @3); }
	;
exprs: %empty { $$ = (Args){0}; } | arglist ;

expr: or | piped | piped stray or {
		refuse(p, @2, "a pipe takes all to its left and ends an expression: put `x |> f` in parentheses before "
		       "an operator");
		$$ = node_new(p, N_ERROR, @2); } ;
piped: expr PIPE NAME pipeargs label { $$ = node_call(p, @3, $3, $4, $1, $5); } ;
pipeargs: %empty { $$ = (Args){0}; } | '(' args ')' { $$ = $2; } ;
label: %empty { $$ = NULL; } | AS NAME { $$ = name_new(p, $2, @2); } ;
stray: '+' | '-' | '*' | '/' | '%' | cmpop | AND | OR ;

or: and | or OR and { $$ = node_binary(p, N_OR, "or", @2, $1, $3); } ;
and: not | and AND not { $$ = node_binary(p, N_AND, "and", @2, $1, $3); } ;
not: cmp | NOT not { $$ = node_unary(p, N_NOT, "not", @1, $2); } ;
cmp: sum
	| sum cmpop sum { $$ = node_binary(p, N_BINARY, $2, @2, $1, $3); }
	| sum cmpop sum cmpop sum {
		refuse(p, @4, "comparisons do not chain: join two with `and`");
		$$ = node_new(p, N_ERROR, @4); }
	;
cmpop: EQ { $$ = "=="; } | NE { $$ = "!="; } | '<' { $$ = "<"; }
     | LE { $$ = "<="; } | '>' { $$ = ">"; } | GE { $$ = ">="; } ;
sum: term
	| sum '+' term { $$ = node_binary(p, N_BINARY, "+", @2, $1, $3); }
	| sum '-' term { $$ = node_binary(p, N_BINARY, "-", @2, $1, $3); }
	;
term: unary
	| term '*' unary { $$ = node_binary(p, N_BINARY, "*", @2, $1, $3); }
	| term '/' unary { $$ = node_binary(p, N_BINARY, "/", @2, $1, $3); }
	| term '%' unary { $$ = node_binary(p, N_BINARY, "%", @2, $1, $3); }
	;
unary: postfix | '-' unary { $$ = node_unary(p, N_UNARY, "-", @1, $2); } ;
postfix: primary
	| postfix '.' NAME {
		if (strcmp($3, "shape")) {
			no_attribute(p, $1, @3, $3);
			$$ = node_new(p, N_ERROR, @3);
		} else {
			$$ = node_unary(p, N_SHAPE, "shape", @2, $1);
		} }
	| postfix '.' NAME '(' args ')' {
		no_attribute(p, $1, @3, $3);
		$$ = node_new(p, N_ERROR, @3); }
	| postfix '[' expr ']' { $$ = node_binary(p, N_INDEX, "[", @2, $1, $3); }
	;
primary:
	  NUMBER
	| STRING { $$ = node_new(p, N_STR, @1); $$->s = $1; }
	| TRUE_ { $$ = node_new(p, N_BOOL, @1); $$->i = 1; }
	| FALSE_ { $$ = node_new(p, N_BOOL, @1); }
	| NONE_ { $$ = node_new(p, N_NONE, @1); }
	| DTYPE { $$ = node_new(p, N_DTYPE, @1); $$->i = $1; }
	| NAME { $$ = node_new(p, N_NAME, @1); $$->s = $1; }
	| NAME '(' args ')' label { $$ = node_call(p, @1, $1, $3, NULL, $5); }
	| '[' exprs ']' { $$ = node_list(p, @1, $2); }
	| '{' args '}' { $$ = node_call(p, @1, NODE_TABLE, $2, NULL, NULL); }
	| '(' expr ')' { $$ = $2; }
	;
args: %empty { $$ = (Args){0}; }
	| expr { $$ = args_add(p, (Args){0}, NULL, @1, $1); }
	| NAME '=' expr { $$ = args_add(p, (Args){0}, $1, @1, $3); }
	| args ',' expr { $$ = args_add(p, $1, NULL, @3, $3); }
	| args ',' NAME '=' expr { $$ = args_add(p, $1, $3, @3, $5); }
	;
arglist:
	  expr { $$ = args_add(p, (Args){0}, NULL, @1, $1); }
	| arglist ',' expr { $$ = args_add(p, $1, NULL, @3, $3); }
	;
%%

static void
refuse(Parser *p, Loc at, const char *text)
{
	diag_error(p->diags, at, "%s", text);
	p->failed = true;
}

/* x.view(...), torch.cat(...), nn.Linear(...): what that is here, if it is known. torch.nn.Linear is one mistake. */
static void
no_attribute(Parser *p, const Node *of, Loc at, const char *name)
{
	const Alias *alias = alias_written(name);

	if (of->kind == N_ERROR)
		return;
	if (alias)
		diag_error(p->diags, at, "only `.shape` follows a point; `%s` is `%s` here: %s", name, alias->here,
		           alias_line(p->arena, alias));
	else
		diag_error(p->diags, at,
		           "a value has no `%s`; only `.shape` follows a point, and operators take values as "
		           "x |> relu or relu(x)", name);
	p->failed = true;
}

static Name *
name_new(Parser *p, const char *name, Loc at)
{
	return names_add(p, (Names){0}, name, at).first;
}

static void
unknown_item(Parser *p, Loc at, const char *name)
{
	static const char *const items[] = {"use", "const", "block", "model", "data", "train"};
	static const char *const others[][2] = {
		{"def", "block"}, {"class", "block"}, {"import", "use"}, {"from", "use"}};
	const char *near = suggest(name, items, 6);

	for (size_t k = 0; k < sizeof others / sizeof *others; k++)
		if (!strcmp(name, others[k][0]))
			near = others[k][1];

	diag_error(p->diags, at,
	           "`%s` begins no item: use, const, block, model, data, train or generate do%s%s%s", name,
	           near ? "; did you mean `" : "", near ? near : "", near ? "`?" : "");
	p->failed = p->lost = true;
}

void
parser_note_open(Parser *p, int but)
{
	if (p->nopen > but)
		diag_note(p->diags, p->open[p->nopen - 1 - but].at, "this %c is open",
		          p->open[p->nopen - 1 - but].sign);
}

/* Behind an error brackets of its statement count no more. */
static void
forget_brackets(Parser *p)
{
	p->paren = p->bracket = 0;
	while (p->nopen && p->open[p->nopen - 1].sign != '{')
		p->nopen--;
}

/* Words that cannot be names are the commonest mistake: say so. */
static bool
is_keyword(yysymbol_kind_t k)
{
	return k >= YYSYMBOL_USE && k <= YYSYMBOL_AS;
}

/* A kind of token as it is ("a name"), a spelling in quotes. */
static void
put_symbol(Buf *b, const char *before, const char *name)
{
	size_t n = strlen(name);

	if (!strncmp(name, "a ", 2) || !strncmp(name, "an ", 3))
		buf_printf(b, "%s%s", before, name);
	else if (*name == '\'' && n > 2)
		buf_printf(b, "%s`%.*s`", before, (int)n - 2, name + 1);
	else
		buf_printf(b, "%s`%s`", before, name);
}

/* The type that other languages call t, NULL if none. */
static const char *
type_meant(const char *t)
{
	static const char *const names[][2] = {
		{"float", "f32"}, {"float32", "f32"}, {"fp32", "f32"}, {"double", "f64"}, {"float64", "f64"},
		{"half", "f16"}, {"float16", "f16"}, {"fp16", "f16"}, {"bfloat16", "bf16"}, {"int", "i32"},
		{"int32", "i32"}, {"long", "i64"}, {"int64", "i64"}, {"int16", "i16"}, {"uint16", "u16"},
		{"int8", "i8"}, {"uint8", "u8"}, {"byte", "u8"},
	};

	for (size_t k = 0; k < sizeof names / sizeof *names; k++)
		if (!strcmp(t, names[k][0]))
			return names[k][1];
	return NULL;
}

/* Is it a keyword? */
static bool
is_word(const char *t)
{
	for (int k = 0; keyword_name(k); k++)
		if (!strcmp(keyword_name(k), t))
			return true;
	return false;
}

static char
closing(char opens)
{
	return opens == '(' ? ')' : opens == '[' ? ']' : '}';
}

static bool
one_of(const char *t, const char *const *names, size_t n)
{
	for (size_t k = 0; k < n; k++)
		if (!strcmp(t, names[k]))
			return true;
	return false;
}
#define ONE_OF(t, names) one_of(t, names, sizeof names / sizeof *names)

/* What may stand where the error is. at: said in the message. */
enum { MAX_WANTED = 4 };
typedef struct Want {
	const char *at[MAX_WANTED];
	int n;
	bool few;                      /* that is all, word by word */
	bool value, behind, name, set; /* a value; operators behind one; a name; the = of a statement or setting */
	bool item;
} Want;

static bool
wants(const Want *w, const char *name)
{
	for (int k = 0; k < w->n; k++)
		if (!strcmp(w->at[k], name))
			return true;
	return false;
}

/* What was probably meant where an item begins, or a model's inputs stand. */
static const char *
meant_item(const Parser *p, const Want *w)
{
	static const char *const sections[] = {"data", "train", "generate"}, *const items[] = {"use", "block", "model"};
	static const char *const statements[] = {"loss", "metric", "output", "require", "if", "for", "repeat"};
	const char *t = p->text;

	if (!*p->before)
		return "a file is made of items, which begin with use, const, block, model, data, train or generate";
	if (!strcmp(t, "}") && p->brace < 0)
		return "no { is open";
	if (!strcmp(t, "{") && p->brace > 1 && ONE_OF(p->before, sections))
		return "a section stands outside of bodies: a } is missing before it";
	if (!strcmp(p->before, "use"))
		return "a file's name stands in double quotes: use \"layers.net\"";
	if (!strcmp(t, "(") && p->brace == 0 && wants(w, "'['"))
		return "a shape stands in [ ]: x: f32[N, 8]";
	if (w->n == 1 && wants(w, "'('") && !strcmp(p->first, "model"))
		return "a model's inputs stand in ( ): model m(x: f32[N, 8]) { }";
	if (w->n == 1 && wants(w, "'('") && !strcmp(p->first, "block"))
		return "a block's parameters stand in ( ): block f(x) { return relu(x) }";
	if ((w->n == 1 && wants(w, "':'")) || (!strcmp(p->first, "model") && !strcmp(t, ")") && p->brace == 0))
		return "an input has a name, a type and a shape: x: f32[N, 8]";
	if (!strcmp(t, ":") && w->n == 1 && wants(w, "'{'"))
		return "a body stands in { }";
	if (p->brace > 0 && ONE_OF(t, items))
		return "it begins an item, which stands outside of bodies";
	if (w->item && ONE_OF(t, statements))
		return "it stands in a model's body, and none is open here";
	return NULL;
}

bool
waits_for_value(const char *t)
{
	static const char *const signs[] = {"+", "-", "*", "/", "%", "=", "==", "!=", "<", "<=", ">", ">=",
	                                    "and", "or", "not", "loss",
		"require", "return", "if", "repeat", "in"};

	return ONE_OF(t, signs);
}

static bool
name_begins(char c)
{
	return (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z') || c == '_';
}

static bool
ends_value(const char *t)
{
	char c = *t ? t[strlen(t) - 1] : 0;

	return name_begins(c) || (c >= '0' && c <= '9') || c == ')' || c == ']' || c == '"';
}

/* What was probably meant by a bracket, or where one is missing. */
static const char *
meant_bracket(const Parser *p)
{
	const char *t = p->text;
	bool closes = !strcmp(t, ")") || !strcmp(t, "]");

	if (closes && !strcmp(p->before, ","))
		return "commas stand between values";
	if (!strcmp(t, ")") && p->paren < 0)
		return p->bracket > 0 ? "a ] is missing before it" : "no ( is open";
	if (!strcmp(t, "]") && p->bracket < 0)
		return p->paren > 0 ? "a ) is missing before it" : "no [ is open";
	if (p->fresh && (p->paren > 0 || p->bracket > 0) && (name_begins(*t) || *t == '}'))
		return p->bracket > 0 ? "a ] is missing before it" : "a ) is missing before it";
	return NULL;
}

/* What was probably meant by a separator, or where one is missing. */
static const char *
meant_between(const Parser *p, const Want *w)
{
	static const char *const heads[] = {"for", "if", "else", "repeat", "while"};
	static const char *const elses[] = {"elif", "elsif", "elseif"};
	const char *t = p->text;
	bool number = *t >= '0' && *t <= '9';

	if (!strcmp(t, ",") && !p->bracket && p->settings)
		return "nothing stands between settings";
	if (!strcmp(t, ",") && !p->bracket && !p->paren && !strcmp(p->first, "output"))
		return "each output is a statement of its own";
	if (!strcmp(t, ",") && !p->bracket && !p->paren && !strcmp(p->first, "loss"))
		return "each loss is a statement of its own, and all are added";
	if (!strcmp(t, "else") && p->fresh)
		return "else stands behind the } of an if";
	if (ONE_OF(p->before, elses))
		return "else if c { } is written in two words";
	if (wants(w, "in"))
		return "a loop goes through a list: for k in range(3) { }";
	if (!p->bracket && !p->paren && ONE_OF(p->first, heads) && (!strcmp(t, ":") || name_begins(*t)) && !p->fresh &&
	    strcmp(p->before, p->first))
		return "a body stands in { }";
	if (!strcmp(t, ",") && p->bracket > 0 && !p->paren)
		return "[ ] takes one item of a list; slice(x, axis, start, end) takes a part of a tensor";
	if (!strcmp(t, "for") && p->bracket > 0)
		return "a list is made in a loop: h = []  for k in range(3) { h = h + [k] }";
	if ((p->paren > 0 || p->bracket > 0) && (name_begins(*t) || number) && ends_value(p->before))
		return "a comma stands between values";
	if (number && name_begins(*p->before) && !p->equals)
		return p->settings ? "a setting is set with =: epochs = 3" : NULL;
	if (number && name_begins(*p->before))
		return "arguments stand in ( ): x |> dense(8)";
	if (!strcmp(t, ":") && p->bracket > 0)
		return "slice(x, axis, start, end) takes a part of a tensor";
	return NULL;
}

/* What was probably meant, of what other languages write so. */
static const char *
meant(const Parser *p, const Want *w)
{
	static const char *const lets[] = {"let", "var", "val", "auto", "tensor", "float", "int"};
	const char *t = p->text, *h = meant_bracket(p);

	if (h || (h = meant_between(p, w)) || (h = meant_item(p, w)))
		return h;
	if (p->settings && (h = advice("train", t)))
		return h;
	if (!strcmp(t, "=") && !strcmp(p->before, "loss"))
		return "a loss has no name: loss mse(x, y)";
	if ((!strcmp(t, "=") && !strcmp(p->before, "metric")) || (!strcmp(t, "(") && !strcmp(p->first, "metric")))
		return "a metric has a name: metric right = accuracy(x, y)";
	if (!p->bracket && !strcmp(p->first, "output") && *t && strchr("(|+-*/<>=!", *t) &&
	    (strcmp(t, "=") || p->before == p->first))
		return "what is computed has a name: output best = argmax(x)";
	if (!strcmp(p->first, "while") || !strcmp(t, "while"))
		return "loops have turns that are known when compiling: for k in range(3) { } or repeat 3 { }";
	if (!strcmp(t, "const") && p->brace > 0)
		return "a constant stands outside of bodies; here a name is set by = alone: h = 3";
	if (!strcmp(t, "def") || !strcmp(t, "class") || !strcmp(p->before, "def") || !strcmp(p->before, "class"))
		return "a function is a block of its own: block f(x) { return relu(x) }";
	if (w->set && ONE_OF(p->before, lets))
		return "a name is set by = alone: h = x";
	if (!strcmp(t, "(") && w->set)
		return "a call gives a value, which needs a name: h = f(x)";
	if (!strcmp(t, ":") && w->set && p->settings)
		return "a setting is set with =: epochs = 3";
	if (!strcmp(t, "|>") && w->set)
		return "a value needs a name: h = x |> relu";
	if (!strcmp(t, ":") && w->set && !p->equals)
		return "a name is set by = alone: h = x";
	if (!strcmp(t, "==") && w->set)
		return "a name is set by = alone: h = x";
	if (*t && !t[1] && strchr("+-*/", *t) && w->set)
		return "a name is set by = alone: h = h + x";
	if ((!strcmp(t, "/") || !strcmp(t, "-")) && p->fresh)
		return "a comment begins with #";
	if (!strcmp(t, "/") && !strcmp(p->before, "/"))
		return "a comment begins with #; x / y of integers floors, floor(x / y) does of others";
	if (!strcmp(t, "=") && p->before == p->first && is_word(p->before))
		return arena_printf(p->arena, "`%s` is a keyword and no name", p->before);
	if (!strcmp(t, "=") && p->equals && !p->bracket && !p->paren && p->condition != p->line)
		return "a statement sets its names to one value: a = x  b = x";
	if (!strcmp(t, "else") && !p->fresh && strcmp(p->before, "}"))
		return "a choice is a statement: if c { h = x } else { h = y }";
	return NULL;
}

static bool
names_token(const char *const *names, yysymbol_kind_t k)
{
	for (; *names; names++)
		if (!strcmp(*names, yysymbol_name(k)))
			return true;
	return false;
}

/* What is expected, in few words: a value is one thing, and the operators behind one, which never must follow, are
 * none. Nothing where a statement or an item may begin. */
static Want
want_of(const yysymbol_kind_t *k, int n)
{
	static const char *const values[] = {"a name", "a string", "a number", "a type such as f32 or i32",
	                                     "true", "false", "none", "'['", "'{'",
		"'('", "'-'", "not", NULL};
	static const char *const operators[] = {"'+'", "'-'", "'*'", "'/'", "'%'", "==", "!=", "<=", ">=",
	                                        "'<'", "'>'", "and", "or", "|>", "'.'",
		"'['", "'('", "'='", "as", NULL};
	Want w = {0};
	bool begins = false, ends = false, all = true;

	for (int i = 0; i < n; i++) {
		w.value |= k[i] == YYSYMBOL_NUMBER;
		w.behind |= k[i] == YYSYMBOL_PIPE;
		w.name |= k[i] == YYSYMBOL_NAME;
		begins |= k[i] == YYSYMBOL_RETURN;
		w.item |= k[i] == YYSYMBOL_MODEL;
		ends |= k[i] == YYSYMBOL_YYEOF;
	}
	w.few = n <= MAX_WANTED;
	w.set = !w.behind && !w.value && n <= 5;
	if (w.value)
		w.at[w.n++] = "a value";
	for (int i = 0; i < n; i++) {
		if ((w.value && names_token(values, k[i])) || (w.behind && names_token(operators, k[i])))
			continue;
		if (w.n < MAX_WANTED)
			w.at[w.n++] = yysymbol_name(k[i]);
		else
			all = false;
	}
	w.set = w.set && wants(&w, "'='");
	if (!all || begins || w.item || ends || (w.behind && w.name))
		w.n = 0;
	return w;
}

static void
put_wanted(Buf *b, const Want *w, const char *before)
{
	for (int k = 0; k < w->n; k++)
		put_symbol(b, !k ? before : k == w->n - 1 ? " or " : ", ", w->at[k]);
}

/* A line that ends where a value or a name must follow: that is said there, not where the next one begins. */
static bool
ends_early(Parser *p, const Want *w)
{
	static const char *const hints[][2] = {
		{"use", ": a file's name stands in double quotes: use \"layers.net\""},
		{"metric", ": metric right = accuracy(x, y)"}, {"output", ": output h or output best = argmax(h)"}};
	bool read_on = !strcmp(p->text, "=") && p->before == p->first &&
	               (waits_for_value(p->tail) || !strcmp(p->tail, "|>"));
	Buf b = {0};

	if (!read_on && (!p->fresh || !*p->before || !w->n || strncmp(w->at[0], "a ", 2)))
		return false;
	buf_printf(&b, "`%s` needs ", read_on ? p->tail : p->before);
	if (read_on)
		buf_printf(&b, !strcmp(p->tail, "|>") ? "a name" : "a value");
	else
		put_wanted(&b, w, "");
	buf_printf(&b, " behind it");
	for (size_t k = 0; k < sizeof hints / sizeof *hints && !read_on; k++)
		if (!strcmp(p->before, hints[k][0]))
			buf_printf(&b, "%s", hints[k][1]);
	diag_error(p->diags, read_on ? p->tail_at : p->before_at, "%s", b.at);
	buf_free(&b);
	return true;
}

/* The end of the file: what is still open, the innermost first. */
static void
put_open(Buf *b, const Parser *p)
{
	int n = p->nopen;

	for (int k = n; k-- > 0 && n - k <= 3;)
		buf_printf(b, "%s %c", k + 1 < n ? ", a" : ": a", closing(p->open[k].sign));
	if (n)
		buf_printf(b, "%s missing", n == 1 ? " is" : n <= 3 ? " are" : " and more are");
}

static void
put_found(Buf *b, const Parser *p, yysymbol_kind_t found, const Want *w, const char *hint)
{
	const char *type = w->n == 1 && !strcmp(w->at[0], "a type such as f32 or i32") ? type_meant(p->text) : NULL;

	if (hint)
		buf_printf(b, ": %s", hint);
	else if (type)
		buf_printf(b, "; did you mean `%s`?", type);
	else if (is_keyword(found) && alias_written(p->text))
		buf_printf(b, " (as an operator `%s` is `%s` here: %s)", p->text, alias_written(p->text)->here,
		           alias_line(p->arena, alias_written(p->text)));
	else if (w->name && (!w->behind || p->fresh) && !w->item && is_keyword(found))
		buf_printf(b, " (`%s` is a keyword and no name)", p->text);
	else if (w->name && (!w->behind || p->fresh) && !w->value && found == YYSYMBOL_DTYPE)
		buf_printf(b, " (`%s` is a type and no name)", p->text);
}

static int
yyreport_syntax_error(const yypcontext_t *cx, Parser *p)
{
	yysymbol_kind_t want[YYNTOKENS], found = yypcontext_token(cx);
	Loc at = *yypcontext_location(cx);
	Want w = want_of(want, yypcontext_expected_tokens(cx, want, YYNTOKENS));
	const char *hint;
	bool compares;
	Buf b = {0};

	p->failed = true;
	p->target = p->brace - (found == YYSYMBOL_YYUNDEF ? 0 : p->text[0] == '{' && !p->text[1]) +
	            (p->text[0] == '}' && !p->text[1]);
	if (found == YYSYMBOL_BAD || p->ended)
		return 0; /* the scanner said what is wrong */
	if (found == YYSYMBOL_YYEOF) {
		buf_printf(&b, "the text ends too early");
		if (w.value || !p->nopen)
			put_wanted(&b, &w, ", needs ");
		put_open(&b, p);
		diag_error(p->diags, at, "%s", b.at);
		parser_note_open(p, 0);
		buf_free(&b);
		return 0;
	}
	if (ends_early(p, &w))
		return 0;
	hint = meant(p, &w);
	compares = p->text[0] == '=' && !p->text[1] && p->condition == at.line;
	buf_printf(&b, "unexpected `%s`", p->text);
	if (w.few || (!hint && !compares))
		put_wanted(&b, &w, ", needs ");
	put_found(&b, p, found, &w, hint);
	if (compares && !hint)
		buf_printf(&b, " (`==` compares)");
	diag_error(p->diags, at, "%s", b.at);
	if (hint && strstr(hint, "is missing before it"))
		parser_note_open(p, !strcmp(p->text, "{"));
	buf_free(&b);
	return 0;
}

/* What bison itself reports: its stack is full. */
static void
net_error(const Loc *at, Parser *p, const char *text)
{
	(void)text;
	diag_error(p->diags, *at, "the text is nested too deeply to be read");
	p->failed = p->lost = true;
}

/* Reads on to where a statement of the same body (or a setting) may begin, its end, or the file's, and returns that
 * token: one that fits there, so that recovery always moves on. */
static int
skip_statement(Parser *p, int token, NET_STYPE *v, NET_LTYPE *at, bool keywords)
{
	int depth = p->target;
	bool first = true;

	for (;; first = false) {
		if (token == NET_EMPTY || !first)
			token = net_lex(v, at, p);
		forget_brackets(p);
		if (token == NET_EOF || (token == '}' && p->brace < depth))
			return token;
		if (p->brace > depth || (first && !p->fresh))
			continue;
		if (token == NAME && p->fresh)
			return token;
		if (keywords && (token == RETURN || token == IF || token == FOR || token == REPEAT || token == LOSS ||
		token == METRIC ||
		    token == OUTPUT || token == REQUIRE))
			return token;
	}
}

/* Reads on to the next item. */
static int
skip_item(Parser *p, int token, NET_STYPE *v, NET_LTYPE *at)
{
	if (token == NET_EMPTY)
		token = net_lex(v, at, p);
	while (token != USE && token != CONST && token != BLOCK && token != MODEL && token != NET_EOF) {
		token = net_lex(v, at, p);
		if (token == NAME && p->fresh && at->col == 1 && (!strcmp(v->s, "data") || !strcmp(v->s, "train")))
			break;
	}
	p->brace = p->paren = p->bracket = p->nopen = 0;
	return token;
}
