/* json.h: a small strict JSON reader for descriptors and safetensors headers. A document owns its nodes and strings. */
#ifndef RUNTIME_JSON_H
#define RUNTIME_JSON_H
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

typedef enum JsonKind { JSON_NULL, JSON_BOOL, JSON_NUMBER, JSON_STRING, JSON_LIST, JSON_OBJECT } JsonKind;

typedef struct Json {
	JsonKind kind;
	bool is_int;             /* NUMBER without point or exponent that fits i */
	int64_t i;               /* NUMBER (truncated), BOOL */
	double f;                /* NUMBER */
	const char *s;           /* STRING: 0-terminated; bytes after an embedded 0 are refused when parsed */
	const char *key;         /* name of a member of an object */
	struct Json *child;      /* LIST, OBJECT: first member */
	struct Json *next;       /* in the list or object it stands in */
	int64_t n;               /* members */
} Json;

typedef struct JsonDoc JsonDoc;

/* The root, or NULL with a message ("byte 17: expected ':'"). Depth is limited, memory is a small multiple of the
 * text. */
const Json *rt_json_parse(const char *text, size_t bytes, JsonDoc **doc, char *error, size_t error_bytes);
void rt_json_free(JsonDoc *doc);

/* Members by name; o may be NULL or no object: then the fallback. */
const Json *rt_json_get(const Json *o, const char *name);
int64_t rt_json_int(const Json *o, const char *name, int64_t fallback);
double rt_json_num(const Json *o, const char *name, double fallback);
bool rt_json_bool(const Json *o, const char *name, bool fallback);
const char *rt_json_str(const Json *o, const char *name, const char *fallback);
#endif
