/* words.c: joins words.def, the sentences and examples, with the tables that the compiler works by; and finds what
 * another library's name is called here.
 *
 * In: words.def, aliases.def, builtins[], the tables of settings.c, sema_call.c (initial values), sema_require.c
 * (contracts), net.l (keywords) and ir/dtypes.def.   Out: words[], in the order of words.def; names of the tables
 * that have no row there come last, without example, and names of words.def that are in no table are not `known`:
 * tests/lang/reference.c finds both. */
#include <ctype.h>
#include <string.h>
#include "ast.h"
#include "sema.h"
#include "words.h"

static const Word rows[] = {
#define SECTION(id, text) {.section = #id, .title = text},
#define WORD(kd, nm, ex, dc) {.kind = #kd, .name = #nm, .example = ex, .doc = dc},
#include "words.def"
#undef SECTION
#undef WORD
};
enum { NROWS = sizeof rows / sizeof *rows };

const Alias aliases[] = {
#define ALIAS(nm, hr, ex) {#nm, hr, ex},
#include "aliases.def"
#undef ALIAS
};
const int naliases = sizeof aliases / sizeof *aliases;

Word *words;
int nwords;

static const struct { const char *kind, *text;
} kinds[] = {
        {"operator", "operator"},
        {"optimizer", "optimizer"},
        {"rate", "schedule of the rate"},
        {"reader", "reader of data"},
        {"precision", "precision"},
        {"average", "average"},
        {"init", "initial value"},
        {"train", "setting of train"},
        {"data", "setting of data"},
        {"contract", "contract"},
        {"sign", "sign"},
        {"type", "type of elements"},
        {"word", "word of the grammar"},
        {"name", "name that is always there"},
};

int
word_param(const char *params)
{
	bool quoted = false;
	int n = 0, depth = 0;

	for (; params[n] && (quoted || depth || params[n] != ','); n++) {
		quoted ^= params[n] == '"';
		depth += quoted ? 0 : (params[n] == '[') - (params[n] == ']');
	}
	return n;
}

const char *
word_kind(const char *kind)
{
	for (size_t i = 0; i < sizeof kinds / sizeof *kinds; i++)
		if (!strcmp(kinds[i].kind, kind))
			return kinds[i].text;
	return NULL;
}

/* ---------------------------------------------------------------- joining the tables */

static Word *
word_find(const char *kind, const char *name)
{
	for (int i = 0; i < nwords; i++)
		if (!strcmp(words[i].kind, kind) && !strcmp(words[i].name, name))
			return &words[i];
	return NULL;
}

/* What a table says of a name goes into its row, or a new one. */
static void
join(const Word *w)
{
	Word *row = word_find(w->kind, w->name);

	if (!row) {
		row = &words[nwords++];
		*row = (Word){.section = "rest", .title = "Without a section", .kind = w->kind, .name = w->name,
		              .example = "", .doc = ""};
	}
	row->params = w->params ? w->params : "";
	row->takes = w->takes;
	row->def = w->def;
	row->shape = w->shape ? w->shape : "";
	row->gradient = w->gradient ? w->gradient : "";
	row->source = w->source ? w->source : "";
	if (w->doc && *w->doc)
		row->doc = w->doc;
	row->known = true;
}

static void
join_operator(const Builtin *p)
{
	const char *doc = p->doc && *p->doc ? p->doc : p->ew != OP_none ? op_info[p->ew].doc : "";

	join(&(Word){.kind = "operator", .name = p->name, .params = p->params, .doc = doc, .shape = p->shape,
	             .gradient = p->gradient, .source = p->source});
}

void
words_init(Arena *a)
{
	enum { OTHERS = 256 }; /* names of tables that words.def may lack */
	const char *section = "", *title = "";
	Word w = {0};

	words = arena_array(a, Word, NROWS + nbuiltins + OTHERS);
	nwords = 0;
	for (int i = 0; i < NROWS; i++) {
		if (!rows[i].kind) {
			section = rows[i].section;
			title = rows[i].title;
			continue;
		}
		words[nwords] = rows[i];
		words[nwords].section = section;
		words[nwords].title = title;
		words[nwords].params = words[nwords].shape = words[nwords].gradient = words[nwords].source = "";
		nwords++;
	}
	for (int i = 0; i < nbuiltins; i++)
		join_operator(&builtins[i]);
	for (int k = 0; settings_word(a, k, &w); k++)
		join(&w);
	for (int k = 0; init_word(k, &w); k++)
		join(&w);
	for (int k = 0; contract_word(k, &w); k++)
		join(&w);
	for (int k = 0; keyword_name(k); k++)
		join(&(Word){.kind = word_find("sign", keyword_name(k)) ? "sign" : "word", .name = keyword_name(k)});
	for (int t = DT_none + 1; t < DT_COUNT; t++)
		join(&(Word){.kind = "type", .name = dtype_info[t].name});
}

/* ---------------------------------------------------------------- other libraries' names */

bool
names_alike(const char *a, const char *b)
{
	for (;; a++, b++) {
		a += strspn(a, "_");
		b += strspn(b, "_");
		if (tolower((unsigned char)*a) != tolower((unsigned char)*b))
			return false;
		if (!*a)
			return true;
	}
}

const Alias *
alias_written(const char *name)
{
	for (int i = 0; i < naliases; i++)
		if (*aliases[i].example && names_alike(name, aliases[i].name))
			return &aliases[i];
	return NULL;
}

const char *
alias_line(Arena *a, const Alias *alias)
{
	const char *text = alias->example, *line = "", *end;

	for (; (end = strchr(text, '\n')); text = end + 1) /* statements may share a line */
		line = arena_printf(a, "%s%.*s  ", line, (int)(end - text), text);
	return arena_printf(a, "%s%s", line, text);
}

const char *
advice(const char *place, const char *name)
{
	static const struct { const char *place, *name, *text; } table[] = {
#define ADVICE(where, what, why) {where, #what, why},
#include "advice.def"
#undef ADVICE
	};
	const char *general = NULL;

	for (size_t i = 0; i < sizeof table / sizeof *table; i++) {
		if (!names_alike(table[i].name, name))
			continue;
		if (!*place || !strcmp(table[i].place, place))
			return table[i].text;
		if (!strcmp(table[i].place, "*") && strcmp(place, "train") && strcmp(place, "data"))
			general = table[i].text;
	}
	return general;
}

const char *
suggest_known(const char *name, const char *const *names, int n)
{
	for (int k = 0; k < n; k++)
		if (names_alike(name, names[k]))
			return names[k];
	for (int i = 0; i < naliases; i++)
		for (int k = 0; k < n && names_alike(name, aliases[i].name); k++)
			if (!strcmp(aliases[i].here, names[k]))
				return names[k];
	return suggest(name, names, n);
}

const char *
names_joined(Arena *a, const char *const *names, int n)
{
	const char *all = n ? names[0] : "nothing";

	for (int k = 1; k < n; k++)
		all = arena_printf(a, "%s, %s", all, names[k]);
	return all;
}
