/* race.c: race files: other kernels for groups of a model, which a racing program runs in turn to find the fastest
 * (runtime/race/README.md).
 *
 *   KEY : KERNEL                         a kernel for all groups that a tuning file calls KEY (tuning_key, tuning.c);
 *                                        any number of lines to a key
 *   KEY : KERNEL ; bits=order bound=64   class and bound of what it computes (GroupVariant, ir.h); without: bits=same,
 *                                        and a bound by the length of its sums (select.c)
 *
 * In: the file's text.   Out: a table by key, kernels in the order of their lines. Lines that begin with # are
 * comments. A line that is none of these, or that says what another one says, is a warning at its place, and left out.
 * Whether a kernel fits a group, the target says (select.c); a key that no group has is a warning in the end
 * (race_tell_unused). */
#include "passes.h"
#include <stdlib.h>
#include <string.h>

struct Race {
	Arena *arena;
	Diags *diags;
	VEC(RaceLine) line;
	uint32_t *slot, nslot;         /* hash table by key: 1 + index of the first line */
	int32_t *next;                 /* by line: the next of its key, -1 */
};

static uint32_t
slot_of(const Race *r, const char *key)
{
	uint32_t at = (uint32_t)hash_bytes(HASH_START, key, strlen(key)) & (r->nslot - 1);

	while (r->slot[at] && strcmp(r->line.at[r->slot[at] - 1].key, key))
		at = (at + 1) & (r->nslot - 1);
	return at;
}

/* Chains the lines of each key, in their order. */
static void
index_lines(Race *r)
{
	for (r->nslot = 16; r->nslot < 2 * r->line.n; r->nslot *= 2)
		;
	r->slot = arena_array(r->arena, uint32_t, r->nslot);
	r->next = arena_array(r->arena, int32_t, r->line.n);
	for (uint32_t i = r->line.n; i-- > 0;) {
		uint32_t *slot = &r->slot[slot_of(r, r->line.at[i].key)];

		r->next[i] = (int32_t)*slot - 1;
		*slot = i + 1;
	}
	for (uint32_t i = 0; i < r->line.n; i++)
		for (int32_t k = r->next[i]; k >= 0; k = r->next[k])
			if (!strcmp(r->line.at[k].kernel, r->line.at[i].kernel) && !r->line.at[k].told) {
				r->line.at[k].told = true;
				diag_warning(r->diags, r->line.at[k].at, "line %u asks for this kernel already",
				             (unsigned)r->line.at[i].at.line);
			}
}

/* ` bits=order bound=64`, in any order: NULL, or what is wrong. */
static const char *
read_facts(const char *s, RaceLine *l)
{
	l->bound = -1;
	for (s += strspn(s, " "); *s; s += strcspn(s, " "), s += strspn(s, " ")) {
		size_t n = strcspn(s, " ");

		if (!strncmp(s, "bits=", 5)) {
			int c = 0;

			while (c < CLASS_COUNT &&
			       (strlen(variant_classes[c]) != n - 5 || strncmp(variant_classes[c], s + 5, n - 5)))
				c++;
			if (c == CLASS_COUNT)
				return "bits= is same, order or round";
			l->bits = (VariantClass)c;
		} else if (!strncmp(s, "bound=", 6)) {
			char *end;

			l->bound = strtoll(s + 6, &end, 10);
			if (end != s + n || n == 6 || l->bound < 1 || l->bound > 1 << 20)
				return "bound= is a number from 1 to 1048576";
		} else {
			return "behind the kernel bits= and bound= may stand";
		}
	}
	if (l->bits == CLASS_same && l->bound >= 0)
		return "the same bits have no bound";
	l->bound = l->bound < 0 ? 0 : l->bound;
	return NULL;
}

static void
read_line(Race *r, const char *text, Loc at)
{
	const char *colon = strstr(text, " : "), *kernel = colon ? colon + 3 : NULL,
	           *facts = kernel ? strstr(kernel, " ; ") : NULL;
	size_t n = kernel ? facts ? (size_t)(facts - kernel) : strlen(kernel) : 0;
	RaceLine l = {.at = at};
	const char *wrong = !n || colon == text || memchr(kernel, ' ', n)
	                            ? "expected KEY : KERNEL, and perhaps ` ; bits=order bound=64`"
	                            : read_facts(facts ? facts + 3 : "", &l);

	if (wrong) {
		diag_warning(r->diags, at, "this line is ignored: %s", wrong);
		return;
	}
	l.key = arena_strndup(r->arena, text, (size_t)(colon - text));
	l.kernel = arena_strndup(r->arena, kernel, n);
	vec_push(r->arena, &r->line, l);
}

Race *
race_read(Arena *a, Diags *d, const char *file, const char *text, size_t bytes)
{
	Race *r = arena_new_of(a, Race);
	Loc at = {.file = diags_add_source(d, file, text, bytes), .line = 1, .col = 1};

	*r = (Race){.arena = a, .diags = d};
	for (const char *p = text; p < text + bytes; at.line++) {
		const char *end = memchr(p, '\n', (size_t)(text + bytes - p));
		size_t n = end ? (size_t)(end - p) : (size_t)(text + bytes - p), kept = n;

		while (kept && (p[kept - 1] == ' ' || p[kept - 1] == '\r'))
			kept--;
		if (kept && *p != '#')
			read_line(r, arena_strndup(a, p, kept), at);
		p += n + 1;
	}
	index_lines(r);
	return r;
}

RaceLine *
race_first(const Race *r, const char *key)
{
	uint32_t found = r->slot[slot_of(r, key)];

	return found ? &r->line.at[found - 1] : NULL;
}

RaceLine *
race_next(const Race *r, const RaceLine *l)
{
	int32_t k = r->next[l - r->line.at];

	return k < 0 ? NULL : &r->line.at[k];
}

void
race_tell_unused(const Race *r)
{
	for (uint32_t i = 0; i < r->line.n; i++) {
		RaceLine *l = &r->line.at[i];

		if (!l->used && !l->told)
			diag_warning(r->diags, l->at, "no kernel of this model has this key: the line is ignored");
		l->told = true;
	}
}
