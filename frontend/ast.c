/* ast.c: constructors of the tree, and the parser's doors.
 *
 * In: what the grammar's actions hand over.   Out: nodes in the parser's arena.
 * Refused here, with an error: nesting beyond MAX_NEST (an error node takes the place), positional arguments after
 * named ones. */
#include "ast.h"

/* The grammar goes on after this error: what it dropped evaluates to nothing. */
static Node *
too_deep(Parser *p, Loc at)
{
	diag_error(p->diags, at, "expression is nested more than %d deep", MAX_NEST);
	p->failed = true;
	return node_new(p, N_ERROR, at);
}

Node *
node_new(Parser *p, NodeKind k, Loc at)
{
	Node *n = arena_new_of(p->arena, Node);

	n->kind = k;
	n->loc = at;
	return n;
}

static int
max_int(int a, int b)
{
	return a > b ? a : b;
}

static int
args_depth(Args args, const Arg *from)
{
	int depth = 0;

	(void)args;
	for (const Arg *a = from; a; a = a->next)
		depth = max_int(depth, a->value->depth);
	return depth;
}

Node *
node_unary(Parser *p, NodeKind k, const char *op, Loc at, Node *a)
{
	Node *n = node_new(p, k, at);

	/* -2^63 is a number, 2^63 is none. */
	if (k == N_UNARY && a->kind == N_INT && a->big) {
		a->big = false;
		a->loc = at;
		return a;
	}
	/* .shape hangs on the left like a chain. */
	n->depth = (uint16_t)(a->depth + (k == N_SHAPE ? 0 : 1));
	n->s = op;
	n->a = a;
	return n->depth > MAX_NEST ? too_deep(p, at) : n;
}

Node *
node_binary(Parser *p, NodeKind k, const char *op, Loc at, Node *a, Node *b)
{
	Node *n = node_new(p, k, at);

	n->depth = (uint16_t)max_int(a->depth, b->depth + 1);
	n->s = op;
	n->a = a;
	n->b = b;
	return n->depth > MAX_NEST ? too_deep(p, at) : n;
}

Node *
node_list(Parser *p, Loc at, Args args)
{
	Node *n = node_new(p, N_LIST, at);

	n->args = args;
	n->depth = (uint16_t)(args_depth(args, args.first) + 1);
	return n->depth > MAX_NEST ? too_deep(p, at) : n;
}

Node *
node_call(Parser *p, Loc at, const char *name, Args args, Node *piped, Name *label)
{
	Node *n = node_new(p, N_CALL, at);

	n->depth = (uint16_t)(args_depth(args, args.first) + 1);
	n->args = args;
	if (piped) {
		Arg *a = arena_new_of(p->arena, Arg);

		*a = (Arg){.loc = piped->loc, .value = piped, .next = args.first};
		n->args.first = a;
		n->args.last = args.n ? args.last : a;
		n->args.n++;
		n->piped = true;
		n->depth = (uint16_t)max_int(n->depth, piped->depth);
	}
	n->s = name;
	if (label) {
		n->label = label->name;
		n->label_loc = label->loc;
	}
	return n->depth > MAX_NEST ? too_deep(p, at) : n;
}

/* Appends to a linked list with first, last and n. */
#define LIST_ADD(list, x) \
	((list).last ? (void)((list).last->next = (x)) : (void)((list).first = (x)), (list).last = (x), (list).n++)

Args
args_add(Parser *p, Args list, const char *name, Loc at, Node *value)
{
	Arg *a = arena_new_of(p->arena, Arg);

	if (!name && list.last && list.last->name) {
		diag_error(p->diags, value->loc, "a positional argument stands after the named one `%s`",
		           list.last->name);
		p->failed = true;
	}
	*a = (Arg){.name = name, .loc = at, .value = value};
	LIST_ADD(list, a);
	return list;
}

Names
names_add(Parser *p, Names list, const char *name, Loc at)
{
	Name *n = arena_new_of(p->arena, Name);

	*n = (Name){.name = name, .loc = at};
	LIST_ADD(list, n);
	return list;
}

Params
params_add(Parser *p, Params list, const char *name, Loc at, Node *value)
{
	Param *n = arena_new_of(p->arena, Param);

	*n = (Param){.name = name, .loc = at, .value = value};
	LIST_ADD(list, n);
	return list;
}

Inputs
inputs_add(Parser *p, Inputs list, const char *name, Loc at, int dtype, Args shape)
{
	InputDecl *n = arena_new_of(p->arena, InputDecl);

	*n = (InputDecl){.name = name, .loc = at, .dtype = dtype, .shape = shape};
	LIST_ADD(list, n);
	return list;
}

Stmt *
stmt_new(Parser *p, StmtKind k, Loc at)
{
	Stmt *s = arena_new_of(p->arena, Stmt);

	s->kind = k;
	s->loc = at;
	return s;
}

Body
body_add(Parser *p, Body list, Stmt *s)
{
	int depth = s->body.depth;

	/* A chain of else-ifs is walked in a loop. */
	if (s->other.n == 1 && s->other.first->kind == S_IF)
		depth = max_int(depth, s->other.depth - 1);
	else
		depth = max_int(depth, s->other.depth);
	if (depth + 1 > MAX_NEST) {
		if (list.depth <= MAX_NEST)
			diag_error(p->diags, s->loc, "bodies are nested more than %d deep", MAX_NEST);
		p->failed = true;
		s->kind = S_ERROR;
		depth = 0;
	}
	list.depth = (uint16_t)max_int(list.depth, depth + 1);
	LIST_ADD(list, s);
	return list;
}

Item *
item_add(Parser *p, ItemKind k, Loc at, const char *name)
{
	Item *it = arena_new_of(p->arena, Item);

	it->kind = k;
	it->loc = at;
	it->name = name;
	LIST_ADD(p->items, it);
	return it;
}
