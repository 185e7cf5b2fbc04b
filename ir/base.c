/* base.c: arena, text buffer, interned strings, FNV-1a hash, edit distance, checked integers.
 *
 * An arena is a list of zeroed chunks, newest first; a large piece gets a chunk of its own behind the newest, so that
 * the rest of the newest stays in use. Its intern table is open addressing with linear probing.
 * Out of memory ends the program (environment error): no caller has anything better to do. */
#include "base.h"
#include "diag.h"
#include <assert.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>

enum { CHUNK_BYTES = 64 * 1024, ALIGN = 16 };

typedef struct Chunk {
	struct Chunk *next;
	size_t used, cap;        /* bytes behind the header */
} Chunk;

struct Arena {
	Chunk *chunk;
	const char **intern;     /* power of two slots, at most half full; NULL = empty */
	size_t nintern, intern_cap;
};

static_assert(sizeof(Chunk) <= 2 * ALIGN, "the header must keep the alignment of what follows");
#define CHUNK_HEAD ((sizeof(Chunk) + ALIGN - 1) / ALIGN * ALIGN)

static void *
need(void *p, size_t bytes)
{
	if (!p)
		die("out of memory (%zu bytes wanted)", bytes);
	return p;
}

/* ---------------------------------------------------------------- arena */

Arena *
arena_new(void)
{
	return need(calloc(1, sizeof(Arena)), sizeof(Arena));
}

void
arena_free(Arena *a)
{
	if (!a)
		return;
	for (Chunk *c = a->chunk, *next; c; c = next) {
		next = c->next;
		free(c);
	}
	free(a->intern);
	free(a);
}

static Chunk *
chunk_new(size_t cap)
{
	Chunk *c = need(calloc(1, CHUNK_HEAD + cap), cap);

	c->cap = cap;
	return c;
}

void *
arena_alloc(Arena *a, size_t bytes)
{
	Chunk *c = a->chunk;

	if (bytes > SIZE_MAX / 2)
		die("out of memory (%zu bytes wanted)", bytes);
	bytes = (bytes + ALIGN - 1) / ALIGN * ALIGN;
	if (bytes == 0)
		bytes = ALIGN;
	if (c && bytes <= c->cap - c->used) {
		c->used += bytes;
		return (char *)c + CHUNK_HEAD + c->used - bytes;
	}
	if (bytes >= CHUNK_BYTES / 4 && c) {
		Chunk *big = chunk_new(bytes);

		big->used = bytes;
		big->next = c->next;
		c->next = big;
		return (char *)big + CHUNK_HEAD;
	}
	c = chunk_new(bytes > CHUNK_BYTES ? bytes : CHUNK_BYTES);
	c->next = a->chunk;
	c->used = bytes;
	a->chunk = c;
	return (char *)c + CHUNK_HEAD;
}

void *
arena_grow(Arena *a, void *old, size_t old_bytes, size_t new_bytes)
{
	void *p;

	if (old && new_bytes <= old_bytes)
		return old;
	p = arena_alloc(a, new_bytes);
	if (old_bytes)
		memcpy(p, old, old_bytes);
	return p;
}

char *
arena_strndup(Arena *a, const char *s, size_t n)
{
	char *r = arena_alloc(a, n + 1);

	if (n)
		memcpy(r, s, n);
	return r;
}

char *
arena_strdup(Arena *a, const char *s)
{
	return arena_strndup(a, s, strlen(s));
}

char *
arena_vprintf(Arena *a, const char *fmt, va_list ap)
{
	va_list again;
	char *r;
	int n;

	va_copy(again, ap);
	n = vsnprintf(NULL, 0, fmt, again);
	va_end(again);
	if (n < 0)
		bug("bad format \"%s\"", fmt);
	r = arena_alloc(a, (size_t)n + 1);
	vsnprintf(r, (size_t)n + 1, fmt, ap);
	return r;
}

char *
arena_printf(Arena *a, const char *fmt, ...)
{
	va_list ap;
	char *r;

	va_start(ap, fmt);
	r = arena_vprintf(a, fmt, ap);
	va_end(ap);
	return r;
}

/* ---------------------------------------------------------------- text buffer */

static void
buf_room(Buf *b, size_t more)
{
	size_t cap = b->cap ? b->cap : 256;

	if (more > SIZE_MAX / 4 || b->n > SIZE_MAX / 4)
		die("out of memory (%zu bytes wanted)", more);
	while (cap - b->n < more + 1)
		cap += cap < more ? more : cap;
	if (cap != b->cap) {
		b->at = need(realloc(b->at, cap), cap);
		b->cap = cap;
	}
}

void
buf_put(Buf *b, const void *bytes, size_t n)
{
	buf_room(b, n);
	if (n)
		memcpy(b->at + b->n, bytes, n);
	b->n += n;
	b->at[b->n] = 0;
}

static void
put_number(Buf *b, unsigned long long x, bool negative)
{
	char digit[24];
	size_t at = sizeof digit;

	do
		digit[--at] = (char)('0' + x % 10);
	while (x /= 10);
	if (negative)
		digit[--at] = '-';
	buf_put(b, digit + at, sizeof digit - at);
}

/* Words and whole numbers, which most of what compilers print is, without the library's readers of formats: %s %d %u
 * %lld, %llu. False, and nothing is there, where the format has anything else. */
static bool
put_simple(Buf *b, const char *fmt, va_list ap)
{
	size_t from = b->n;

	for (const char *p = fmt; *p;) {
		size_t n = strcspn(p, "%");
		bool wide = p[n] && p[n + 1] == 'l' && p[n + 2] == 'l';
		char kind = p[n] ? p[n + (wide ? 3 : 1)] : 0;

		if (p[n] && !(kind && strchr(wide ? "du" : "du%s", kind))) {
			b->n = from;
			b->at[from] = 0;
			return false;
		}
		buf_put(b, p, n);
		p += n + (p[n] ? wide ? 4 : 2 : 0);
		if (kind == 'd') {
			long long x = wide ? va_arg(ap, long long) : va_arg(ap, int);

			put_number(b, x < 0 ? 0 - (unsigned long long)x : (unsigned long long)x, x < 0);
		} else if (kind == 'u') {
			put_number(b, wide ? va_arg(ap, unsigned long long) : va_arg(ap, unsigned), false);
		} else if (kind == 's') {
			const char *s = va_arg(ap, const char *);

			buf_put(b, s ? s : "(null)", strlen(s ? s : "(null)"));
		} else if (kind == '%') {
			buf_put(b, "%", 1);
		}
	}
	return true;
}

void
buf_vprintf(Buf *b, const char *fmt, va_list ap)
{
	va_list again;
	bool done;
	int n;

	buf_room(b, 128);
	va_copy(again, ap);
	done = put_simple(b, fmt, again);
	va_end(again);
	if (done)
		return;
	va_copy(again, ap);
	n = vsnprintf(b->at + b->n, b->cap - b->n, fmt, again);
	va_end(again);
	if (n < 0)
		bug("bad format \"%s\"", fmt);
	if ((size_t)n >= b->cap - b->n) {
		buf_room(b, (size_t)n);
		vsnprintf(b->at + b->n, b->cap - b->n, fmt, ap);
	}
	b->n += (size_t)n;
}

void
buf_printf(Buf *b, const char *fmt, ...)
{
	va_list ap;

	va_start(ap, fmt);
	buf_vprintf(b, fmt, ap);
	va_end(ap);
}

void
buf_double(Buf *b, double x)
{
	char text[40];

	if (isnan(x) || isinf(x)) {
		buf_printf(b, "%s", isnan(x) ? "nan" : x < 0 ? "-inf" : "inf");
		return;
	}
	for (int digits = 1; digits <= 17; digits++) { /* 17 always suffice */
		snprintf(text, sizeof text, "%.*g", digits, x);
		if (strtod(text, NULL) == x)
			break;
	}
	buf_printf(b, "%s", text);
}

/* Length of the well-formed UTF-8 character at s (n bytes left), 0 if it is none. */
static int
utf8_length(const unsigned char *s, size_t n)
{
	int len = s[0] < 0x80                   ? 1
	          : s[0] >= 0xc2 && s[0] < 0xe0 ? 2
	          : (s[0] & 0xf0) == 0xe0       ? 3
	          : s[0] >= 0xf0 && s[0] < 0xf5 ? 4
	                                        : 0;

	if (len == 0 || (size_t)len > n)
		return 0;
	for (int i = 1; i < len; i++)
		if ((s[i] & 0xc0) != 0x80)
			return 0;
	if ((s[0] == 0xe0 && s[1] < 0xa0) || (s[0] == 0xed && s[1] > 0x9f) || (s[0] == 0xf0 && s[1] < 0x90) ||
	    (s[0] == 0xf4 && s[1] > 0x8f))
		return 0;
	return len;
}

void
buf_json(Buf *b, const char *s)
{
	size_t n = strlen(s);

	buf_put(b, "\"", 1);
	for (size_t i = 0; i < n;) {
		unsigned char c = (unsigned char)s[i];
		int len = utf8_length((const unsigned char *)s + i, n - i);

		if (len == 0)
			buf_put(b, "\\ufffd", 6); /* JSON has no way to carry other bytes */
		else if (c == '"' || c == '\\')
			buf_printf(b, "\\%c", c);
		else if (c == '\n')
			buf_put(b, "\\n", 2);
		else if (c == '\t')
			buf_put(b, "\\t", 2);
		else if (c < 0x20 || c == 0x7f)
			buf_printf(b, "\\u%04x", c);
		else
			buf_put(b, s + i, (size_t)len);
		i += (size_t)(len ? len : 1);
	}
	buf_put(b, "\"", 1);
}

void
buf_free(Buf *b)
{
	free(b->at);
	*b = (Buf){0};
}

/* ---------------------------------------------------------------- strings and hashes */

uint64_t
hash_bytes(uint64_t h, const void *p, size_t n)
{
	const unsigned char *s = p;

	for (size_t i = 0; i < n; i++)
		h = (h ^ s[i]) * 0x100000001b3ull;
	return h;
}

static const char **
intern_slot(const char **table, size_t cap, const char *s)
{
	uint64_t h = hash_bytes(HASH_START, s, strlen(s));

	for (size_t i = (h ^ h >> 32) & (cap - 1);; i = (i + 1) & (cap - 1))
		if (!table[i] || strcmp(table[i], s) == 0)
			return &table[i];
}

static void
intern_grow(Arena *a)
{
	size_t cap = a->intern_cap ? 2 * a->intern_cap : 256;
	const char **table = need(calloc(cap, sizeof *table), cap * sizeof *table);

	for (size_t i = 0; i < a->intern_cap; i++)
		if (a->intern[i])
			*intern_slot(table, cap, a->intern[i]) = a->intern[i];
	free(a->intern);
	a->intern = table;
	a->intern_cap = cap;
}

const char *
intern(Arena *a, const char *s)
{
	const char **slot;

	if (2 * a->nintern >= a->intern_cap)
		intern_grow(a);
	slot = intern_slot(a->intern, a->intern_cap, s);
	if (!*slot) {
		*slot = arena_strdup(a, s);
		a->nintern++;
	}
	return *slot;
}

/* Names longer than the row count as wholly different: nobody mistypes those by two letters and needs help. */
int
edit_distance(const char *a, const char *b)
{
	enum { ROW = 128 };
	size_t na = strlen(a), nb = strlen(b);
	int row[ROW + 1];

	if (na > ROW || nb > ROW)
		return strcmp(a, b) == 0 ? 0 : (int)(na > nb ? na : nb);
	for (size_t j = 0; j <= nb; j++)
		row[j] = (int)j;
	for (size_t i = 1; i <= na; i++) {
		int diagonal = row[0];

		row[0] = (int)i;
		for (size_t j = 1; j <= nb; j++) {
			int change = diagonal + (a[i - 1] != b[j - 1]);
			int step = (row[j] < row[j - 1] ? row[j] : row[j - 1]) + 1;

			diagonal = row[j];
			row[j] = change < step ? change : step;
		}
	}
	return row[nb];
}

/* Among equally distant names one of the same length wins: letters are swapped more often than two are lost. */
const char *
suggest(const char *name, const char *const *names, int n)
{
	size_t letters = strlen(name);
	int limit = letters <= 3 ? 1 : 2, best = 2 * limit + 2;
	const char *found = NULL;

	for (int i = 0; i < n; i++) {
		int d, rank;

		if (!names[i] || names[i][0] == 0)
			continue;
		d = edit_distance(name, names[i]);
		rank = 2 * d + (strlen(names[i]) != letters);
		if (d <= limit && rank < best && (size_t)d < letters) {
			found = names[i];
			best = rank;
		}
	}
	return found;
}

/* ---------------------------------------------------------------- integers */

bool
mul_i64(int64_t a, int64_t b, int64_t *r)
{
	return !__builtin_mul_overflow(a, b, r);
}

bool
add_i64(int64_t a, int64_t b, int64_t *r)
{
	return !__builtin_add_overflow(a, b, r);
}

int64_t
gcd_i64(int64_t a, int64_t b)
{
	while (b) {
		int64_t r = a % b;

		a = b;
		b = r;
	}
	return a;
}
