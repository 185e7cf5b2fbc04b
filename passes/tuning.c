/* tuning.c: tuning files: kernel parameters and choices of passes that were found by measuring, one record a line.
 *
 *   cpu znver4 l1=32K,l2=1M matmul f32[64,512] f32[512,10] -> f32[64,10] group=0 : brgemm.1{mr=12,nv=2} ; us=72.1 n=26
 *
 * The key: target, architecture, machine (features that are read; * is any), then what the record is of: an operator
 * with types, attributes and group (tuning_key.c), a rule of a pass with what it chooses at, or `rates`, `threads
 * MODEL`, `lock MODEL GRAPH batch=N PRECISION`. The value: family, its version, parameters. Behind ` ; ` stand
 * facts, words of which any may be missing; lines that begin with # are comments.
 * In: the file's text.   Out: a table by key. A line that is no record, a second one of the same key, a line out of
 * order (bytes, as LC_ALL=C
 * sort): each a warning at its place, never an error. All but the last are left out. What is stale, a line with a
 * compiler's version in the machine's place or a record of another version of its family, is known once the target is
 * (tuning_bind). Records of other targets, architectures and machines are nobody's business here; whether parameters
 * fit a kernel, the target says. */
#include "passes.h"
#include <inttypes.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>

enum { SHOWN = 10, /* warnings of one kind */ VERSION_MOST = 999999 };

struct Tuning {
	Arena *arena;
	Diags *diags;
	const char *file;
	uint16_t source;
	VEC(TuneRecord) record;
	uint32_t *slot, nslot;         /* hash table: 1 + index of a record */
	uint32_t old;                  /* records of kind TUNE_OLD */
	int bad;
};

typedef struct Line { const char *at; size_t n; uint32_t number; } Line;

const char *const tuning_rules[] = {"fuse.beside", "fuse.carry", "fuse.prologue", "fuse.recompute", "fuse.reduce",
	"layout.choice", "recompute", "reorder.sink", NULL};

/* ---------------------------------------------------------------- the table */
static uint32_t
hash_of(const char *key)
{
	return (uint32_t)hash_bytes(HASH_START, key, strlen(key));
}

static uint32_t
slot_of(const Tuning *t, const char *key, uint32_t hash)
{
	uint32_t at = hash & (t->nslot - 1);

	for (; t->slot[at]; at = (at + 1) & (t->nslot - 1)) {
		const TuneRecord *r = &t->record.at[t->slot[at] - 1];

		if (r->hash == hash && !strcmp(r->key, key))
			break;
	}
	return at;
}

TuneRecord *
tuning_named(const Tuning *t, const char *key)
{
	uint32_t found = t->nslot ? t->slot[slot_of(t, key, hash_of(key))] : 0;

	return found ? &t->record.at[found - 1] : NULL;
}

TuneRecord *
tuning_find(const Tuning *t, const char *target, const char *arch, const char *machine, const char *what)
{
	const char *const words[] = {machine ? machine : "*", "*"};
	TuneRecord *r = NULL;

	for (int i = 0; i < 2 && !r; i++) {
		Buf key = {0};

		buf_printf(&key, "%s %s %s %s", target, arch && *arch ? arch : "-", words[i], what);
		r = tuning_named(t, key.at);
		r = r && !r->stale && r->kind != TUNE_OLD ? r : NULL;
		buf_free(&key);
	}
	return r;
}

static void
add_record(Tuning *t, TuneRecord r)
{
	if (2 * (t->record.n + 1) > t->nslot) {
		t->nslot = t->nslot ? 2 * t->nslot : 64;
		t->slot = arena_array(t->arena, uint32_t, t->nslot);
		for (uint32_t i = 0; i < t->record.n; i++)
			t->slot[slot_of(t, t->record.at[i].key, t->record.at[i].hash)] = i + 1;
	}
	r.hash = hash_of(r.key);
	uint32_t *slot = &t->slot[slot_of(t, r.key, r.hash)];

	if (*slot) {
		if (t->bad++ < SHOWN)
			diag_warning(t->diags, r.at, "the same key as line %" PRIu32 ": this record is ignored",
				t->record.at[*slot - 1].at.line);
		return;
	}
	vec_push(t->arena, &t->record, r);
	*slot = t->record.n;
	t->old += r.kind == TUNE_OLD;
}

const char *
tuning_file(const Tuning *t)
{
	return t->file;
}

uint32_t
tuning_count(const Tuning *t)
{
	return t->record.n - t->old;
}

const TuneRecord *
tuning_at(const Tuning *t, uint32_t i)
{
	return i < t->record.n ? &t->record.at[i] : NULL;
}

/* ---------------------------------------------------------------- words */
static Loc
place(const Tuning *t, const Line *l, size_t byte)
{
	return (Loc){
	        .file = t->source, .line = l->number, .col = (uint16_t)(byte < UINT16_MAX ? byte + 1 : UINT16_MAX)};
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

static bool
is_word_byte(char c)
{
	return (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z') || (c >= '0' && c <= '9') || c == '_' || c == '.'
		|| c == '-';
}

bool
tuning_is_machine(const char *s, size_t n)
{
	size_t at = 0;

	if (n == 1 && *s == '*')
		return true;
	while (at < n) { /* name=value, with a comma between two */
		size_t name = at, equals;

		while (at < n && is_word_byte(s[at]))
			at++;
		equals = at;
		if (at == name || at == n || s[at++] != '=')
			return false;
		while (at < n && is_word_byte(s[at]))
			at++;
		if (at == equals + 1 || (at < n && (s[at] != ',' || at + 1 == n)))
			return false;
		at++;
	}
	return n > 0;
}

/* 0.1.0: a compiler's, in the place where the machine stands now. */
static bool
is_version(const char *s, size_t n)
{
	int dots = 0;

	for (size_t i = 0; i < n; i++) {
		if (s[i] == '.' ? i == 0 || i + 1 == n : s[i] < '0' || s[i] > '9')
			return false;
		dots += s[i] == '.';
	}
	return dots > 0;
}

/* A name and, in braces, parameters. *version: that behind the name's last point; 0 if there is none. Returns the
 * length of the family's name, 0: this is no value. */
static size_t
read_value(const char *s, size_t n, int *version)
{
	size_t name = 0, dot = 0, k;

	while (name < n && is_word_byte(s[name]) && !(s[name] >= 'A' && s[name] <= 'Z')) {
		dot = s[name] == '.' ? name : dot;
		name++;
	}
	for (k = name; k < n && s[k] != '}'; k++)
		if (k > name && (s[k] == '{' || s[k] == ' '))
			return 0;
	if (!name || name >= n || s[name] != '{' || k + 1 != n)
		return 0;
	*version = 0;
	for (k = dot + 1; dot && k < name && s[k] >= '0' && s[k] <= '9' && *version <= VERSION_MOST; k++)
		*version = 10 * *version + (s[k] - '0');
	if (!dot || k < name || k == dot + 1 || s[dot + 1] == '0' || *version > VERSION_MOST)
		*version = 0;
	return *version ? dot : name;
}

int
tuning_param(const char *value, const char *name, const char **at)
{
	size_t n = strlen(name);

	for (const char *p = strchr(value, '{'); p && *p != '}' && p[1]; p = strpbrk(p + 1, ",}"))
		if (!strncmp(p + 1, name, n) && p[1 + n] == '=') {
			*at = p + n + 2;
			return (int)strcspn(*at, ",}");
		}
	return -1;
}

/* Where ` : ` stands; l->n if nowhere. */
static size_t
colon(const Line *l)
{
	for (const char *p = l->at; (p = memchr(p, ':', l->n - (size_t)(p - l->at))); p++)
		if (p > l->at && p[-1] == ' ' && p + 1 < l->at + l->n && p[1] == ' ')
			return (size_t)(p - l->at) - 1;
	return l->n;
}

/* ---------------------------------------------------------------- what a record is of */
static bool
same_word(const Line *l, size_t at, const char *s)
{
	size_t n = strlen(s);

	return word(l, at) == n && !memcmp(l->at + at, s, n);
}

static bool
has_number(const char *value, const char *name, bool positive)
{
	const char *at;
	int n = tuning_param(value, name, &at);
	char *end;

	if (n < 0)
		return true;
	double x = strtod(at, &end);

	return n > 0 && end == at + n && isfinite(x) && (positive ? x > 0 : x >= 0) && x <= 1e18;
}

static bool
is_whole(const char *value, const char *name, int least, int most)
{
	const char *at;
	int n = tuning_param(value, name, &at), x = 0;

	for (int i = 0; i < n; i++) {
		if (n > 9 || at[i] < '0' || at[i] > '9')
			return false;
		x = 10 * x + (at[i] - '0');
	}
	return n > 0 && x >= least && x <= most;
}

static bool
is_hash(const char *value, const char *name, bool needed)
{
	const char *at;
	int n = tuning_param(value, name, &at);

	return n < 0 ? !needed : n == 16 && strspn(at, "0123456789abcdef") >= 16;
}

/* What the value must be; NULL: it is. */
static const char *
check_choice(const char *value)
{
	return is_whole(value, "take", 0, 99) ? NULL : "expected choice.1{take=N}";
}

static const char *
check_rates(const char *value)
{
	bool good = has_number(value, "memory", true) && has_number(value, "map", true) && has_number(value, "start",
		false);

	return good ? NULL : "expected rates.1{memory=BYTES,map=OPERATIONS,start=SECONDS}, of a second";
}

static const char *
check_threads(const char *value)
{
	return is_whole(value, "start", 1, 1 << 16) ? NULL : "expected threads.1{start=N}";
}

static const char *
check_lock(const char *value)
{
	bool good = is_hash(value, "kernels", true) && is_hash(value, "states", false);

	return good ? NULL : "expected lock.1{kernels=HASH,steps=N,states=HASH}";
}

/* Records that are not of a kernel: all rules have the first row. words: how many stand behind the operator; -1:
 * any. */
static const struct Other {
	const char *operator, *family;
	TuneKind kind;
	int words;
	const char *(*check)(const char *value), *form;
} others[] = {
	{NULL, "choice", TUNE_CHOICE, -1, check_choice, NULL},
	{"rates", "rates", TUNE_RATES, 0, check_rates, "expected TARGET ARCH MACHINE rates : rates.1{...}"},
	{"threads", "threads", TUNE_THREADS, 1, check_threads,
		"expected TARGET ARCH MACHINE threads MODEL : threads.1{...}"},
	{"lock", "lock", TUNE_LOCK, 4, check_lock,
		"expected TARGET ARCH MACHINE lock MODEL GRAPH batch=N PRECISION : lock.1{...}"},
};

bool
tuning_is_other(const char *family, size_t n)
{
	for (size_t i = 0; i < sizeof others / sizeof *others; i++)
		if (strlen(others[i].family) == n && !memcmp(family, others[i].family, n))
			return true;
	return false;
}

static const struct Other *
other_at(const Line *l, size_t at)
{
	for (const char *const *r = tuning_rules; *r; r++)
		if (same_word(l, at, *r))
			return &others[0];
	for (size_t i = 1; i < sizeof others / sizeof *others; i++)
		if (same_word(l, at, others[i].operator))
			return &others[i];
	return NULL;
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

/* What the key is of; false: it is no record. */
static bool
read_kind(Tuning *t, const Line *l, size_t end, size_t family, TuneRecord *r)
{
	const struct Other *o = other_at(l, r->what);
	int words = 0;

	if (!o && operator_at(l, r->what) == OP_none) {
		malformed(t, l, r->what, "there is no such operator, nor a rule that a record decides");
		return false;
	}
	if (!o)
		return true;
	for (size_t i = r->what; i < end; i++)
		words += l->at[i] == ' ';
	r->kind = o->kind;
	if (o->words >= 0 && words != o->words) {
		malformed(t, l, r->what, o->form);
		return false;
	}
	const char *why = family == strlen(o->family) && !strncmp(r->value, o->family, family) ? NULL : o->check("{");

	if (!why && r->version == TUNE_VERSION)
		why = o->check(r->value);
	if (why)
		malformed(t, l, end + 3, why);
	return !why;
}

/* ---------------------------------------------------------------- reading */
/* The first four words of the key. */
static bool
read_words(Tuning *t, const Line *l, size_t end, size_t at[4], size_t n[4])
{
	for (int i = 0; i < 4; i++) {
		at[i] = i ? at[i - 1] + n[i - 1] + 1 : 0;
		n[i] = at[i] < end ? word(l, at[i]) : 0;
		if (!n[i] || at[i] + n[i] > end || at[i] > UINT16_MAX) {
			malformed(t, l, at[i] < l->n ? at[i] : l->n,
			          "expected TARGET ARCH MACHINE OPERATOR OPERANDS... : KERNEL");
			return false;
		}
	}
	return true;
}

/* Without the version behind the family's name. */
static const char *
value_of(Arena *a, const char *s, size_t n, size_t family)
{
	const char *brace = memchr(s, '{', n);
	char *r = arena_alloc(a, n + 1);

	memcpy(r, s, family);
	memcpy(r + family, brace, n - (size_t)(brace - s));
	return r;
}

static void
read_record(Tuning *t, const Line *l)
{
	size_t end = colon(l), at[4] = {0}, n[4], value = end + 3, length, family;
	TuneRecord r = {.kind = TUNE_KERNEL, .facts = ""};

	for (size_t i = 0; i < l->n; i++)
		if ((unsigned char)l->at[i] < ' ' || l->at[i] == 0x7f) {
			malformed(t, l, i, "it is not all text");
			return;
		}
	if (!read_words(t, l, end, at, n))
		return;
	r.arch = (uint16_t)at[1];
	r.machine = (uint16_t)at[2];
	r.what = (uint16_t)at[3];
	if (is_version(l->at + at[2], n[2])) {
		r.kind = TUNE_OLD;
		r.stale = true;
		r.key = arena_strndup(t->arena, l->at, end);
		r.at = place(t, l, at[2]);
		add_record(t, r);
		return;
	}
	if (!tuning_is_machine(l->at + at[2], n[2])) {
		malformed(t, l, at[2], "expected a machine, such as l1=32K,l2=1M, or *");
		return;
	}
	if (end == l->n) {
		malformed(t, l, l->n, "expected ` : ` and a kernel behind the key");
		return;
	}
	length = word(l, value);
	family = read_value(l->at + value, length, &r.version);
	if (!family || !r.version) {
		malformed(t, l, value,
		          family ? "expected the family's version: brgemm.1{...}"
		                 : "expected a family, its version and parameters, such as "
		                   "brgemm.1{mr=6,nv=4,lanes=16,outer=row,pack=1}");
		return;
	}
	size_t behind = value + length;

	if (behind < l->n && (behind + 1 == l->n || l->at[behind + 1] != ';')) {
		malformed(t, l, behind, "expected the end of the line, or facts: ` ; us=72.1`");
		return;
	}
	if (behind < l->n)
		r.facts = arena_strndup(t->arena, l->at + behind + 2, l->n - behind - 2);
	r.value = value_of(t->arena, l->at + value, length, family);
	r.at = place(t, l, value);
	if (!read_kind(t, l, end, family, &r))
		return;
	r.key = arena_strndup(t->arena, l->at, end);
	add_record(t, r);
}

/* As strcmp on the bytes. */
static bool
before(const Line *a, const Line *b)
{
	int c = memcmp(a->at, b->at, a->n < b->n ? a->n : b->n);

	return c ? c < 0 : a->n < b->n;
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
			diag_warning(d, place(t, &record, 0),
				"not in order: this line belongs before line %" PRIu32 " (LC_ALL=C sort)", last.number);
		last = record;
		read_record(t, &record);
	}
	if (t->bad > SHOWN)
		diag_warning(d, (Loc){.file = t->source},
		             "%d more lines are no records, or of keys that were there already, and ignored",
		             t->bad - SHOWN);
	if (unordered > 1)
		diag_warning(d, (Loc){.file = t->source}, "%d more lines are not in order", unordered - 1);
	return t;
}

/* ---------------------------------------------------------------- one architecture's */
static bool
is_at(const TuneRecord *r, uint16_t at, const char *s)
{
	size_t n = strlen(s);

	return !strncmp(r->key + at, s, n) && r->key[at + n] == ' ';
}

static bool
is_of(const TuneRecord *r, const char *target, const char *arch)
{
	return is_at(r, 0, target) && is_at(r, r->arch, arch && *arch ? arch : "-");
}

/* Old lines name none: they were of whatever was there. */
static bool
is_here(const TuneRecord *r, const char *machine)
{
	return r->kind == TUNE_OLD || is_at(r, r->machine, "*") || (machine && is_at(r, r->machine, machine));
}

const char *
tuning_machine(const Tuning *t, const char *target, const char *arch)
{
	const char *only = NULL;

	for (uint32_t i = 0; i < t->record.n; i++) {
		const TuneRecord *r = &t->record.at[i];

		if (r->kind == TUNE_OLD || !is_of(r, target, arch) || is_at(r, r->machine, "*"))
			continue;
		if (only && !is_at(r, r->machine, only))
			return NULL;
		if (!only)
			only = arena_strndup(t->arena, r->key + r->machine, (size_t)(r->what - r->machine) - 1);
	}
	return only;
}

static int
version_of(const Target *target, const TuneRecord *r)
{
	char family[64];
	size_t n = strcspn(r->value, "{");

	if (r->kind != TUNE_KERNEL)
		return TUNE_VERSION;
	if (n >= sizeof family || !target->tuning.version)
		return -1;
	memcpy(family, r->value, n);
	family[n] = 0;
	return target->tuning.version(target, family);
}

/* A family that the target does not know is no stale record: select says what is wrong with it. */
void
tuning_bind(Tuning *t, const Target *target, const char *arch, const char *machine, bool strict)
{
	const TuneRecord *first = NULL;
	int n = 0;

	for (uint32_t i = 0; i < t->record.n; i++) {
		TuneRecord *r = &t->record.at[i];

		if (!is_of(r, target->name, arch) || !is_here(r, machine))
			continue;
		if (r->kind != TUNE_OLD) {
			int version = version_of(target, r);

			r->stale = version >= 0 && version != r->version;
		}
		if (!r->stale)
			continue;
		first = first ? first : r;
		n++;
	}
	if (!first)
		return;
	const char *which = n > 1 ? arena_printf(t->arena, "this and %d more records are", n - 1) : "this record is";
	const char *why = "of an older form, which names a version of mantou in the machine's place";

	if (first->kind != TUNE_OLD)
		why = arena_printf(t->arena, "of another version of %.*s, not of %d", (int)strcspn(first->value, "{"),
			first->value, version_of(target, first));

	if (strict)
		diag_error(t->diags, first->at, "%s %s: stale, and --locked takes no such record", which, why);
	else
		diag_warning(t->diags, first->at, "%s %s, and ignored", which, why);
}

TuneCount
tuning_count_of(const Tuning *t, const char *target, const char *arch, const char *machine)
{
	TuneCount c = {0};

	for (uint32_t i = 0; i < t->record.n; i++) {
		const TuneRecord *r = &t->record.at[i];

		if (!is_of(r, target, arch))
			continue;
		c.elsewhere += !is_here(r, machine);
		c.stale += is_here(r, machine) && r->stale;
		c.records += is_here(r, machine) && !r->stale;
	}
	return c;
}

/* ---------------------------------------------------------------- facts */
/* A number, of hundredths if a percent sign follows; NAN if that is not all. */
static double
fact(const char *s, size_t n)
{
	char text[32], *end;

	if (!n || n >= sizeof text)
		return NAN;
	memcpy(text, s, n);
	text[n] = 0;
	double x = strtod(text, &end);

	if (end == text || (*end && strcmp(end, "%")) || !isfinite(x))
		return NAN;
	return *end ? x / 100 : x;
}

TuneFacts
tuning_facts(const char *text)
{
	TuneFacts f = {.us = NAN, .was = NAN, .error = NAN, .step = NAN};
	const struct { const char *name; double *to; } numbers[] = {{"us=", &f.us}, {"was=", &f.was}, {"+-", &f.error},
		{"step=", &f.step}};
	double x;

	for (size_t n; *text; text += n + (text[n] == ' ')) {
		n = strcspn(text, " ");
		for (size_t i = 0; i < sizeof numbers / sizeof *numbers; i++) {
			size_t k = strlen(numbers[i].name);

			if (n > k && !strncmp(text, numbers[i].name, k))
				*numbers[i].to = fact(text + k, n - k);
		}
		if (n > 2 && !strncmp(text, "n=", 2) && (x = fact(text + 2, n - 2)) >= 0 && x < 1e15)
			f.samples = (int64_t)x;
		if (n > 2 && !strncmp(text, "t=", 2) && (x = fact(text + 2, n - 2)) >= 0 && x < 1e6)
			f.threads = (int)x;
		if (n > 5 && n - 5 < sizeof f.bits && !strncmp(text, "bits=", 5)) {
			memcpy(f.bits, text + 5, n - 5);
			f.bits[n - 5] = 0;
		}
	}
	return f;
}
