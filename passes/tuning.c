/* tuning.c: tuning files: kernel parameters that were found by measuring, one record a line, for pass select.
 *
 *   cpu znver4 0.1.0 conv2d f32[32,64,8,8]@2301 f32[64,64,1,1]@2310 -> f32[32,64,8,8]@2301 group=0 : brgemm{mr=12,nv=2,lanes=16,outer=row,pack=1}
 *
 * The key: target, architecture, version of mantou; the group's contraction (or first op), types of its operands and results, attributes that are not
 * the default; how many ops share its kernel, and a hash of what they are: operators, attributes, types, who reads whom. Names of layers, states and random
 * streams are no part of it, so alike layers share a record. Behind the kernel a comment may stand, ` # 5.3 ms`; lines that begin with # are comments.
 * In: the file's text.   Out: a table by key. A line that is no record, a record of another version (stale), a second one of the same kernel, a line out of
 * order (bytes, as LC_ALL=C sort): each a warning at its place, never an error. All but the last are left out. Records of other
 * targets and architectures are nobody's business here; whether parameters fit a kernel, the target says. */
#include <inttypes.h>
#include <string.h>
#include "passes.h"

enum { SHOWN = 10 };               /* warnings of one kind */

struct Tuning {
	Arena *arena;
	Diags *diags;
	const char *file;
	uint16_t source;
	VEC(TunedKernel) record;
	uint32_t *slot, nslot;         /* hash table: 1 + index of a record */
	int bad, stale;
	Loc last_stale;
};

typedef struct Line { const char *at; size_t n; uint32_t number; } Line;

/* ---------------------------------------------------------------- keys */
static void
put_types(Buf *b, const Graph *g, const Val *v, int n)
{
	for (int i = 0; i < n; i++) {
		buf_printf(b, " ");
		type_print(b, val_type(g, v[i]));
	}
}

static const Op *
main_op(const Graph *g, int group)
{
	const Op *first = NULL;

	for (uint32_t last, i = graph_group_ops(g, group, &last); i < last; i++) {
		const Op *op = &g->op.at[i];

		if (op->dead || op->group != group)
			continue;
		if (op_has((OpKind)op->kind, T_CONTRACT))
			return op;
		first = first ? first : op;
	}
	return first;
}

/* An operand as others of the group see it: which op of the group makes it, else its type. */
static void
put_operand(Buf *b, const Graph *g, Val v, int group, uint32_t first)
{
	uint32_t by = val_info(g, v)->op;

	if (by != UINT32_MAX && by < g->op.n && g->op.at[by].group == group)
		buf_printf(b, " %" PRIu32 ".%d", by - first, val_info(g, v)->index);
	else
		put_types(b, g, &v, 1);
}

/* All ops of the group but for names. *n: how many stand beside the main one. */
static uint64_t
structure(const Graph *g, int group, int *n)
{
	Buf b = {0};
	uint32_t last, first = graph_group_ops(g, group, &last);

	*n = -1;
	for (uint32_t i = first; i < last; i++) {
		const Op *op = &g->op.at[i];

		if (op->dead || op->group != group)
			continue;
		++*n;
		buf_printf(&b, "%s", op_info[op->kind].name);
		op_print_attrs(&b, op, false);
		for (int k = 0; k < op->nin; k++)
			put_operand(&b, g, op->in[k], group, first);
		put_types(&b, g, op->out, op->nout);
		buf_printf(&b, "\n");
	}
	uint64_t h = hash_bytes(HASH_START, b.at, b.n);

	buf_free(&b);
	return h;
}

const Op *
tuning_key(Buf *b, const Graph *g, int group, const char *target, const char *arch)
{
	const Op *op = main_op(g, group);
	int others;

	if (!op)
		return NULL;
	uint64_t h = structure(g, group, &others);

	buf_printf(b, "%s %s " MANTOU_VERSION " %s", target, arch && *arch ? arch : "-", op_info[op->kind].name);
	put_types(b, g, op->in, op->nin);
	buf_printf(b, " ->");
	put_types(b, g, op->out, op->nout);
	op_print_attrs(b, op, false);
	buf_printf(b, " group=%d", others);
	if (others)
		buf_printf(b, ".%016" PRIx64, h);
	return op;
}

/* ---------------------------------------------------------------- the table */
static uint32_t
slot_of(const Tuning *t, const char *key)
{
	uint32_t at = (uint32_t)hash_bytes(HASH_START, key, strlen(key)) & (t->nslot - 1);

	while (t->slot[at] && strcmp(t->record.at[t->slot[at] - 1].key, key))
		at = (at + 1) & (t->nslot - 1);
	return at;
}

TunedKernel *
tuning_find(const Tuning *t, const char *key)
{
	uint32_t found = t->nslot ? t->slot[slot_of(t, key)] : 0;

	return found ? &t->record.at[found - 1] : NULL;
}

static void
add_record(Tuning *t, TunedKernel r)
{
	if (2 * (t->record.n + 1) > t->nslot) {
		t->nslot = t->nslot ? 2 * t->nslot : 64;
		t->slot = arena_array(t->arena, uint32_t, t->nslot);
		for (uint32_t i = 0; i < t->record.n; i++)
			t->slot[slot_of(t, t->record.at[i].key)] = i + 1;
	}
	uint32_t *slot = &t->slot[slot_of(t, r.key)];

	if (*slot) {
		diag_warning(t->diags, r.at, "the same kernel as line %" PRIu32 ": this record is ignored", t->record.at[*slot - 1].at.line);
		return;
	}
	vec_push(t->arena, &t->record, r);
	*slot = t->record.n;
}

/* ---------------------------------------------------------------- reading */
static Loc
place(const Tuning *t, const Line *l, size_t byte)
{
	return (Loc){.file = t->source, .line = l->number, .col = (uint16_t)(byte < UINT16_MAX ? byte + 1 : UINT16_MAX)};
}

static void
malformed(Tuning *t, const Line *l, size_t byte, const char *what)
{
	if (t->bad++ < SHOWN)
		diag_warning(t->diags, place(t, l, byte), "this is no record, and ignored: %s", what);
}

/* Length of the word at byte `at`. */
static size_t
word(const Line *l, size_t at)
{
	size_t n = 0;

	while (at + n < l->n && l->at[at + n] != ' ')
		n++;
	return n;
}

/* A kernel's text: a name and, in braces, parameters. */
static bool
is_kernel(const char *s, size_t n)
{
	size_t name = 0, k;

	while (name < n && ((s[name] >= 'a' && s[name] <= 'z') || (s[name] >= '0' && s[name] <= '9') || s[name] == '_' || s[name] == '.' || s[name] == '-'))
		name++;
	for (k = name; k < n && s[k] != '}'; k++)
		if (k > name && (s[k] == '{' || s[k] == ' '))
			return false;
	return name && name < n && s[name] == '{' && k + 1 == n;
}

/* Where ` : ` stands; l->n if nowhere. */
static size_t
colon(const Line *l)
{
	for (size_t i = 0; i + 2 < l->n; i++)
		if (!memcmp(l->at + i, " : ", 3))
			return i;
	return l->n;
}

static OpKind
operator_at(const Line *l, size_t at)
{
	char name[64];
	size_t n = word(l, at);

	if (n >= sizeof name)
		return OP_none;
	memcpy(name, l->at + at, n);
	name[n] = 0;
	return op_named(name);
}

static void
read_record(Tuning *t, const Line *l)
{
	size_t end = colon(l), at[4] = {0}, n[4], kernel = end + 3;

	for (size_t i = 0; i < l->n; i++)
		if ((unsigned char)l->at[i] < ' ' || l->at[i] == 0x7f) {
			malformed(t, l, i, "it is not all text");
			return;
		}
	for (int i = 0; i < 4; i++) {
		at[i] = i ? at[i - 1] + n[i - 1] + 1 : 0;
		n[i] = at[i] < end ? word(l, at[i]) : 0;
		if (!n[i] || at[i] + n[i] > end) {
			malformed(t, l, at[i] < l->n ? at[i] : l->n, "expected TARGET ARCH VERSION OPERATOR OPERANDS... : KERNEL");
			return;
		}
	}
	if (end == l->n) {
		malformed(t, l, l->n, "expected ` : ` and a kernel behind the key");
		return;
	}
	if (!is_kernel(l->at + kernel, word(l, kernel))) {
		malformed(t, l, kernel, "expected a kernel with parameters, such as brgemm{mr=6,nv=4,lanes=16,outer=row,pack=1}");
		return;
	}
	size_t behind = kernel + word(l, kernel);

	if (behind < l->n && (behind + 1 == l->n || l->at[behind + 1] != '#')) {
		malformed(t, l, behind, "expected the end of the line, or a comment: ` # ...`");
		return;
	}
	if (n[2] != strlen(MANTOU_VERSION) || memcmp(l->at + at[2], MANTOU_VERSION, n[2])) {
		if (t->stale++ == 0)
			t->last_stale = place(t, l, at[2]);
		return;
	}
	if (operator_at(l, at[3]) == OP_none) {
		malformed(t, l, at[3], "there is no such operator");
		return;
	}
	add_record(t, (TunedKernel){.key = arena_strndup(t->arena, l->at, end), .kernel = arena_strndup(t->arena, l->at + kernel, behind - kernel), .at = place(t, l, kernel)});
}

/* As strcmp on the bytes. */
static bool
before(const Line *a, const Line *b)
{
	int c = memcmp(a->at, b->at, a->n < b->n ? a->n : b->n);

	return c ? c < 0 : a->n < b->n;
}

static void
tell_rest(Tuning *t, int unordered)
{
	if (t->bad > SHOWN)
		diag_warning(t->diags, (Loc){.file = t->source}, "%d more lines are no records, and ignored", t->bad - SHOWN);
	if (t->stale == 1)
		diag_warning(t->diags, t->last_stale, "this record was made by another version of mantou, not by " MANTOU_VERSION ", and is ignored");
	else if (t->stale)
		diag_warning(t->diags, t->last_stale, "this and %d more records were made by other versions of mantou, not by " MANTOU_VERSION ", and are ignored", t->stale - 1);
	if (unordered > 1)
		diag_warning(t->diags, (Loc){.file = t->source}, "%d more lines are not in order", unordered - 1);
}

Tuning *
tuning_read(Arena *a, Diags *d, const char *file, const char *text, size_t bytes)
{
	Tuning *t = arena_new_of(a, Tuning);
	Line last = {0};
	int unordered = 0;

	*t = (Tuning){.arena = a, .diags = d, .file = file, .source = diags_add_source(d, file, text, bytes)};
	for (Line l = {.at = text, .number = 1}; (size_t)(l.at - text) < bytes; l.at += l.n + 1, l.number++) {
		const char *end = memchr(l.at, '\n', bytes - (size_t)(l.at - text));
		Line record = l;

		l.n = record.n = end ? (size_t)(end - l.at) : bytes - (size_t)(l.at - text);
		while (record.n && (record.at[record.n - 1] == ' ' || record.at[record.n - 1] == '\r'))
			record.n--;
		if (!record.n || record.at[0] == '#')
			continue;
		if (last.n && before(&record, &last) && unordered++ == 0)
			diag_warning(d, place(t, &record, 0), "not in order: this line belongs before line %" PRIu32 " (LC_ALL=C sort)", last.number);
		last = record;
		read_record(t, &record);
	}
	tell_rest(t, unordered);
	return t;
}

const char *
tuning_file(const Tuning *t)
{
	return t->file;
}

uint32_t
tuning_count(const Tuning *t)
{
	return t->record.n;
}
