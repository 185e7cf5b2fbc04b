/* tuning_lock.c: what a build was made of, as one line of a tuning file.
 *
 * In: a compiled module, the choices that its passes made.   Out: a hash of all selected kernels and choices (their
 * keys and values, as often as they are there, in order), the record `lock MODEL GRAPH batch=N PRECISION` that holds
 * it; whether a file's record of it holds, and what is another where it does not. A line of hashes cannot be taken
 * apart, so the record carries 16 bits of each line behind ` ; each=`: lines whose bits are not there are new, or
 * have another value. That is a fact, for people: the lock is the hash of all, and holds or not without it. */
#include "passes.h"
#include <inttypes.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>

typedef struct Item { const char *text, *what; Loc loc; } Item;
/* no two the same; hash: of all, as often as they are there */
typedef struct Items { Item *at; uint32_t n; uint64_t hash; } Items;

static int
compare_items(const void *x, const void *y)
{
	return strcmp(((const Item *)x)->text, ((const Item *)y)->text);
}

static Items
items_of(Arena *a, const Module *m, const PassCtx *cx)
{
	VEC(Item) all = {0};
	Items r = {0};

	for (uint32_t i = 0; i < m->graph.n; i++) {
		const Graph *g = m->graph.at[i];
		const TuneKeys *keys = g->is_loop ? NULL : tuning_keys(g, a, select_keeps(cx));

		for (uint32_t k = 0; keys && k < g->group.n; k++) {
			const char *kernel = g->group.at[k].kernel;
			Buf what = {0};
			const Op *op = tuning_key(&what, keys, (int)k);

			if (op && kernel)
				vec_push(a, &all,
				         ((Item){arena_printf(a, "%s : %s", what.at,
				                              tuning_value(a, cx->target, kernel)),
				                 arena_strdup(a, what.at), op->loc}));
			buf_free(&what);
		}
	}
	for (uint32_t i = 0; i < cx->choice.n; i++)
		vec_push(a, &all, ((Item){arena_printf(a, "%s : take=%d", cx->choice.at[i].what, cx->choice.at[i].way),
			cx->choice.at[i].what, cx->choice.at[i].loc}));
	if (all.n)
		qsort(all.at, all.n, sizeof *all.at, compare_items);
	r.hash = HASH_START;
	for (uint32_t i = 0; i < all.n; i++)
		r.hash = hash_bytes(r.hash, all.at[i].text, strlen(all.at[i].text) + 1);
	r.at = all.at;
	for (uint32_t i = 0; i < all.n; i++)
		if (!i || strcmp(all.at[i].text, all.at[i - 1].text))
			r.at[r.n++] = all.at[i];
	return r;
}

enum { DIGITS = 4 }; /* of an item */

static unsigned
bits_of(const Item *i)
{
	return (unsigned)(hash_bytes(HASH_START, i->text, strlen(i->text)) >> 48);
}

/* ---------------------------------------------------------------- the record */
static const char *
lock_of(Arena *a, const Module *m, const char *graph)
{
	const Setting *precision = setting(m, "train.precision");

	return arena_printf(a, "lock %s %s batch=%" PRId64 " %s", m->name, graph, m->batch,
		precision && precision->s ? precision->s : "f32");
}

const char *
tuning_lock(Arena *a, const Module *m, const PassCtx *cx, const char *graph, int steps, uint64_t states)
{
	Items s = items_of(a, m, cx);
	Buf b = {0};

	buf_printf(&b, "%s %s %s %s : lock.%d{kernels=%016" PRIx64, cx->target->name,
	           cx->arch && *cx->arch ? cx->arch : "-", cx->machine ? cx->machine : "*", lock_of(a, m, graph),
	           TUNE_VERSION, s.hash);
	if (steps)
		buf_printf(&b, ",steps=%d,states=%016" PRIx64, steps, states);
	buf_printf(&b, "} ; each=");
	for (uint32_t i = 0; i < s.n; i++)
		buf_printf(&b, "%0*x", DIGITS, bits_of(&s.at[i]));
	const char *line = arena_strdup(a, b.at);

	buf_free(&b);
	return line;
}

/* ---------------------------------------------------------------- does it hold? */
enum { LISTED = 10 };

static bool
has_bits(const char *each, unsigned bits)
{
	char text[DIGITS + 1];

	snprintf(text, sizeof text, "%0*x", DIGITS, bits);
	for (size_t n = strspn(each, "0123456789abcdef") / DIGITS, i = 0; i < n; i++)
		if (!memcmp(each + i * DIGITS, text, DIGITS))
			return true;
	return false;
}

/* What is another than in the lock, if it says what it was made of. */
static void
tell_others(const PassCtx *cx, const Items *s, const TuneRecord *lock)
{
	const char *each = strstr(lock->facts, "each=");
	Diags *d = cx->module->diags;
	uint32_t others = 0;

	for (uint32_t i = 0; each && i < s->n; i++) {
		const TuneRecord *by = tuning_find(cx->tuning, cx->target->name, cx->arch, cx->machine, s->at[i].what);

		if (has_bits(each + strlen("each="), bits_of(&s->at[i])) || others++ >= LISTED)
			continue;
		if (by)
			diag_note(d, by->at, "the lock was not made with this record: %s", s->at[i].text);
		else
			diag_note(d, s->at[i].loc,
			          "the lock was not made with this, of which the file has no record: %s",
			          s->at[i].text);
	}
	if (others > LISTED)
		diag_note(d, lock->at, "%u more are others", others - LISTED);
	if (each && !others)
		diag_note(d, lock->at, "%s", "nothing is new here: it was made of more, or of less");
}

TuneLock
tuning_lock_state(Arena *a, const Module *m, const PassCtx *cx, bool tell)
{
	static const char *const graphs[] = {"train", "eval", "infer"};
	Items s = items_of(a, m, cx);
	char hash[32];
	TuneLock state = LOCK_NONE;

	snprintf(hash, sizeof hash, "%016" PRIx64, s.hash);
	for (size_t i = 0; cx->tuning && i < sizeof graphs / sizeof *graphs; i++) {
		const char *what = lock_of(a, m, graphs[i]);
		const TuneRecord *r = tuning_find(cx->tuning, cx->target->name, cx->arch, cx->machine, what);
		const char *at;

		if (!r || r->kind != TUNE_LOCK)
			continue;
		bool holds = tuning_param(r->value, "kernels", &at) == 16 && !memcmp(at, hash, 16);

		state = !holds || state == LOCK_BROKEN ? LOCK_BROKEN : LOCK_HOLDS;
		if (holds || !tell)
			continue;
		diag_error(m->diags, r->at, "the lock does not hold: kernels and choices are %s", hash);
		tell_others(cx, &s, r);
	}
	if (tell && state == LOCK_NONE)
		diag_error(m->diags, (Loc){0},
		           "%s has no lock of %s for %s %s %s: mantou info --json prints the one that would hold",
		           cx->tuning ? tuning_file(cx->tuning) : "the tuning file",
		           lock_of(a, m, "train") + strlen("lock "), cx->target->name,
		           cx->arch && *cx->arch ? cx->arch : "-", cx->machine ? cx->machine : "*");
	return state;
}
