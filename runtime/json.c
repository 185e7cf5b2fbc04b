/* json.c: a strict JSON reader (RFC 8259).
 *
 * In: text, not trusted: safetensors headers come from anywhere.   Out: a tree of Json nodes in one chunked pool.
 * Recursive descent with a depth limit of 64. Strings are unescaped into the pool and must be UTF-8. Beyond what the
 * standard refuses, an escaped zero byte, half a surrogate pair and a number of more than 63 characters are errors.
 * Members of one name are kept; rt_json_get finds the first. */
#include "json.h"

#include <errno.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define JSON_DEPTH 64
#define JSON_CHUNK 65536

typedef struct JsonChunk { struct JsonChunk *next; size_t used, size; } JsonChunk;

struct JsonDoc { JsonChunk *chunk; };

typedef struct Parser {
	const char *text;
	size_t at, n;
	JsonDoc *doc;
	const char *why;         /* first error */
	size_t where;
} Parser;

static void *
json_alloc(JsonDoc *doc, size_t bytes)
{
	JsonChunk *c = doc->chunk;
	void *p;

	bytes = (bytes + 15) & ~(size_t)15;
	if (!c || c->size - c->used < bytes) {
		size_t size = bytes > JSON_CHUNK ? bytes : JSON_CHUNK;

		c = malloc(sizeof *c + 16 + size);
		if (!c)
			return NULL;
		c->next = doc->chunk;
		c->used = 0;
		c->size = size;
		doc->chunk = c;
	}
	p = (char *)c + ((sizeof *c + 15) & ~(size_t)15) + c->used;
	c->used += bytes;
	memset(p, 0, bytes);
	return p;
}

static bool
json_error(Parser *p, const char *why)
{
	if (!p->why) {
		p->why = why;
		p->where = p->at;
	}
	return false;
}

static void
json_space(Parser *p)
{
	while (p->at < p->n &&
	       (p->text[p->at] == ' ' || p->text[p->at] == '\n' || p->text[p->at] == '\t' || p->text[p->at] == '\r'))
		p->at++;
}

static int
json_peek(const Parser *p)
{
	return p->at < p->n ? (unsigned char)p->text[p->at] : -1;
}

static bool
json_word(Parser *p, const char *word)
{
	size_t n = strlen(word);

	if (p->n - p->at < n || memcmp(p->text + p->at, word, n) != 0)
		return json_error(p, "expected a value");
	p->at += n;
	return true;
}

static bool
json_hex4(Parser *p, uint32_t *code)
{
	*code = 0;
	for (int i = 0; i < 4; i++, p->at++) {
		int c = json_peek(p);
		int d = c >= '0' && c <= '9'   ? c - '0'
		        : c >= 'a' && c <= 'f' ? c - 'a' + 10
		        : c >= 'A' && c <= 'F' ? c - 'A' + 10
		                               : -1;

		if (d < 0)
			return json_error(p, "expected four hexadecimal digits after \\u");
		*code = *code * 16 + (uint32_t)d;
	}
	return true;
}

static char *
json_utf8(char *out, uint32_t c)
{
	if (c < 0x80) {
		*out++ = (char)c;
	} else if (c < 0x800) {
		*out++ = (char)(0xC0 | c >> 6);
		*out++ = (char)(0x80 | (c & 63));
	} else if (c < 0x10000) {
		*out++ = (char)(0xE0 | c >> 12);
		*out++ = (char)(0x80 | (c >> 6 & 63));
		*out++ = (char)(0x80 | (c & 63));
	} else {
		*out++ = (char)(0xF0 | c >> 18);
		*out++ = (char)(0x80 | (c >> 12 & 63));
		*out++ = (char)(0x80 | (c >> 6 & 63));
		*out++ = (char)(0x80 | (c & 63));
	}
	return out;
}

/* After the backslash; writes the character. */
static bool
json_escape(Parser *p, char **out)
{
	static const char from[] = "\"\\/bfnrt", to[] = "\"\\/\b\f\n\r\t";
	int c = json_peek(p);
	const char *at = c > 0 ? strchr(from, c) : NULL;
	uint32_t code, low;

	p->at++;
	if (at) {
		*(*out)++ = to[at - from];
		return true;
	}
	if (c != 'u')
		return json_error(p, "unknown escape in a string");
	if (!json_hex4(p, &code))
		return false;
	if (code >= 0xD800 && code < 0xDC00) {
		if (p->n - p->at < 6 || p->text[p->at] != '\\' || p->text[p->at + 1] != 'u')
			return json_error(p, "half a surrogate pair in a string");
		p->at += 2;
		if (!json_hex4(p, &low))
			return false;
		if (low < 0xDC00 || low > 0xDFFF)
			return json_error(p, "half a surrogate pair in a string");
		code = 0x10000 + ((code - 0xD800) << 10) + (low - 0xDC00);
	} else if (code >= 0xDC00 && code < 0xE000) {
		return json_error(p, "half a surrogate pair in a string");
	}
	if (code == 0)
		return json_error(p, "a zero byte in a string");
	*out = json_utf8(*out, code);
	return true;
}

/* Length of the UTF-8 sequence at s, 0 where there is none (overlong forms and surrogates are none). */
static size_t
json_sequence(const char *s, size_t room)
{
	static const struct { uint8_t mask, lead; } forms[] = {{0xE0, 0xC0}, {0xF0, 0xE0}, {0xF8, 0xF0}};
	const uint8_t *u = (const uint8_t *)s;

	if (u[0] < 0x80)
		return 1;
	for (size_t n = 2; n <= 4; n++) {
		uint32_t code;

		if ((u[0] & forms[n - 2].mask) != forms[n - 2].lead)
			continue;
		if (room < n)
			return 0;
		code = u[0] & (0xFFu >> (n + 1));
		for (size_t i = 1; i < n; i++) {
			if ((u[i] & 0xC0) != 0x80)
				return 0;
			code = code << 6 | (u[i] & 0x3F);
		}
		return code < (n == 2   ? 0x80u
		               : n == 3 ? 0x800u
		                        : 0x10000u) ||
		                       (code >= 0xD800 && code < 0xE000) || code > 0x10FFFF
		               ? 0
		               : n;
	}
	return 0;
}

static const char *
json_string(Parser *p)
{
	size_t end = p->at + 1, n;
	char *s, *out;

	/* The unescaped text is never longer than the escaped one: find its end, then write. */
	while (end < p->n && p->text[end] != '"')
		end += p->text[end] == '\\' ? 2 : 1;
	if (end >= p->n) {
		json_error(p, "a string without end");
		return NULL;
	}
	s = out = json_alloc(p->doc, end - p->at);
	if (!s) {
		json_error(p, "out of memory");
		return NULL;
	}
	p->at++;
	while (p->at < end) {
		unsigned char c = (unsigned char)p->text[p->at];

		if (c < 0x20) {
			json_error(p, "a control character in a string");
			return NULL;
		}
		if (c == '\\') {
			p->at++;
			if (!json_escape(p, &out))
				return NULL;
			continue;
		}
		n = json_sequence(p->text + p->at, end - p->at);
		if (!n) {
			json_error(p, "a string that is not UTF-8");
			return NULL;
		}
		while (n--)
			*out++ = p->text[p->at++];
	}
	*out = 0;
	p->at = end + 1;
	return s;
}

static size_t
json_digits(Parser *p)
{
	size_t from = p->at;

	while (p->at < p->n && p->text[p->at] >= '0' && p->text[p->at] <= '9')
		p->at++;
	return p->at - from;
}

static bool
json_number(Parser *p, Json *v)
{
	size_t from = p->at, len;
	char buf[64];
	bool whole = true;

	if (json_peek(p) == '-')
		p->at++;
	len = p->at;
	if (!json_digits(p))
		return json_error(p, "expected a value");
	if (p->at - len > 1 && p->text[len] == '0')
		return json_error(p, "a number with a leading zero");
	if (json_peek(p) == '.') {
		whole = false;
		p->at++;
		if (!json_digits(p))
			return json_error(p, "expected a digit after the point");
	}
	if (json_peek(p) == 'e' || json_peek(p) == 'E') {
		whole = false;
		p->at++;
		if (json_peek(p) == '+' || json_peek(p) == '-')
			p->at++;
		if (!json_digits(p))
			return json_error(p, "expected a digit in the exponent");
	}
	len = p->at - from;
	if (len >= sizeof buf)
		return json_error(p, "a number of more than 63 characters");
	memcpy(buf, p->text + from, len);
	buf[len] = 0;
	v->kind = JSON_NUMBER;
	v->f = strtod(buf, NULL);
	errno = 0;
	v->i = whole ? strtoll(buf, NULL, 10) : 0;
	v->is_int = whole && errno == 0;
	if (!v->is_int && fabs(v->f) < 9e18)
		v->i = (int64_t)v->f;
	return true;
}

static Json *json_value(Parser *p, int depth);

/* A list or an object, after its opening bracket. */
static bool
json_members(Parser *p, Json *v, int depth, char close)
{
	Json **tail = &v->child;

	json_space(p);
	if (json_peek(p) == close) {
		p->at++;
		return true;
	}
	for (;;) {
		const char *key = NULL;

		json_space(p);
		if (close == '}') {
			if (json_peek(p) != '"')
				return json_error(p, "expected a name in quotes");
			key = json_string(p);
			if (!key)
				return false;
			json_space(p);
			if (json_peek(p) != ':')
				return json_error(p, "expected ':'");
			p->at++;
		}
		*tail = json_value(p, depth + 1);
		if (!*tail)
			return false;
		(*tail)->key = key;
		tail = &(*tail)->next;
		v->n++;
		json_space(p);
		if (json_peek(p) == close) {
			p->at++;
			return true;
		}
		if (json_peek(p) != ',')
			return json_error(p, close == '}' ? "expected ',' or '}'" : "expected ',' or ']'");
		p->at++;
	}
}

static Json *
json_value(Parser *p, int depth)
{
	Json *v = json_alloc(p->doc, sizeof *v);
	bool good;
	int c;

	if (!v || depth > JSON_DEPTH) {
		json_error(p, v ? "nested too deeply" : "out of memory");
		return NULL;
	}
	json_space(p);
	c = json_peek(p);
	if (c == '{' || c == '[') {
		p->at++;
		v->kind = c == '{' ? JSON_OBJECT : JSON_LIST;
		good = json_members(p, v, depth, c == '{' ? '}' : ']');
	} else if (c == '"') {
		v->kind = JSON_STRING;
		v->s = json_string(p);
		good = v->s != NULL;
	} else if (c == 't' || c == 'f') {
		v->kind = JSON_BOOL;
		v->i = c == 't';
		good = json_word(p, c == 't' ? "true" : "false");
	} else if (c == 'n') {
		good = json_word(p, "null");
	} else {
		good = json_number(p, v);
	}
	return good ? v : NULL;
}

const Json *
rt_json_parse(const char *text, size_t bytes, JsonDoc **doc, char *error, size_t error_bytes)
{
	Parser p = {.text = text, .n = bytes, .doc = calloc(1, sizeof(JsonDoc))};
	Json *v = p.doc ? json_value(&p, 0) : NULL;

	if (v) {
		json_space(&p);
		if (p.at != p.n) {
			json_error(&p, "text after the end");
			v = NULL;
		}
	}
	if (!v) {
		snprintf(error, error_bytes, "byte %zu: %s", p.where, p.why ? p.why : "out of memory");
		rt_json_free(p.doc);
		p.doc = NULL;
	}
	*doc = p.doc;
	return v;
}

void
rt_json_free(JsonDoc *doc)
{
	JsonChunk *next;

	if (!doc)
		return;
	for (JsonChunk *c = doc->chunk; c; c = next) {
		next = c->next;
		free(c);
	}
	free(doc);
}

const Json *
rt_json_get(const Json *o, const char *name)
{
	if (o && o->kind == JSON_OBJECT)
		for (const Json *m = o->child; m; m = m->next)
			if (strcmp(m->key, name) == 0)
				return m;
	return NULL;
}

int64_t
rt_json_int(const Json *o, const char *name, int64_t fallback)
{
	const Json *m = rt_json_get(o, name);

	return m && m->kind == JSON_NUMBER ? m->i : fallback;
}

double
rt_json_num(const Json *o, const char *name, double fallback)
{
	const Json *m = rt_json_get(o, name);

	return m && m->kind == JSON_NUMBER ? m->f : fallback;
}

bool
rt_json_bool(const Json *o, const char *name, bool fallback)
{
	const Json *m = rt_json_get(o, name);

	return m && m->kind == JSON_BOOL ? m->i != 0 : fallback;
}

const char *
rt_json_str(const Json *o, const char *name, const char *fallback)
{
	const Json *m = rt_json_get(o, name);

	return m && m->kind == JSON_STRING ? m->s : fallback;
}
