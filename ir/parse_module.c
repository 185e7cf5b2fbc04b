/* parse_module.c: the lines of IR text that stand outside graphs: the module line, settings, states.
 *
 * Each function reads what follows its keyword and adds it to the module, or reports an error and returns false; the
 * caller then skips the line. */
#include "parse.h"
#include <string.h>

enum { MAX_SETTING_DEPTH = 60 };

/* ---------------------------------------------------------------- settings */

static bool parse_setting_value(Parse *p, Setting *s, int depth);

static bool
parse_setting_args(Parse *p, Setting *s, char close, int depth)
{
	VEC(Setting) arg = {0};

	while (!p_char(p, close)) {
		Setting a = {0};

		if (arg.n && !p_need_char(p, ',', "between values"))
			return false;
		if (close == ')' &&
		    (!(a.name = p_word(p, "the argument's name")) || !p_need_char(p, '=', "after the argument's name")))
			return false;
		if (!parse_setting_value(p, &a, depth + 1))
			return false;
		vec_push(p->m->arena, &arg, a);
	}
	s->arg = arg.at;
	s->nargs = (int)arg.n;
	return true;
}

/* Strings of settings are the language's: no escapes. */
static bool
parse_setting_string(Parse *p, Setting *s)
{
	Loc start = p_loc(p);
	const char *stop = ++p->at;

	while (stop < p->end && *stop != '"' && *stop != '\n' && *stop)
		stop++;
	if (stop == p->end || *stop != '"')
		return p_error(p, start, "the string does not end");
	s->kind = SET_STR;
	s->s = intern(p->m->arena, arena_strndup(p->scratch, p->at, (size_t)(stop - p->at)));
	p->at = stop + 1;
	return true;
}

static bool
parse_setting_value(Parse *p, Setting *s, int depth)
{
	bool is_int;
	char c;

	if (depth > MAX_SETTING_DEPTH)
		return p_error(p, p_loc(p), "settings are nested too deeply");
	p_space(p);
	c = p_peek(p);
	if (c == '"')
		return parse_setting_string(p, s);
	if (p_char(p, '[')) {
		s->kind = SET_LIST;
		return parse_setting_args(p, s, ']', depth);
	}
	if (p_keyword(p, "true") || p_keyword(p, "false")) {
		s->kind = SET_BOOL;
		s->i = p->at[-2] == 'u'; /* tr-u-e */
		s->f = (double)s->i;
		return true;
	}
	if (p_keyword(p, "none")) {
		s->kind = SET_NONE;
		return true;
	}
	if ((c >= '0' && c <= '9') || c == '-' || c == '+' || c == '.' || c == 'i' || c == 'n') {
		const char *back = p->at;
		bool word = c == 'i' || c == 'n';

		if (!word || p_keyword(p, "inf") || p_keyword(p, "nan")) {
			p->at = back;
			if (!p_number(p, "the value", &is_int, &s->i, &s->f))
				return false;
			s->kind = is_int ? SET_INT : SET_NUM;
			return true;
		}
	}
	if (!(s->s = p_bare(p)))
		return p_error(p, p_loc(p), "a value expected");
	s->kind = p_char(p, '(') ? SET_CALL : SET_NAME;
	return s->kind == SET_NAME || parse_setting_args(p, s, ')', depth);
}

bool
p_setting_line(Parse *p)
{
	Setting s = {0};
	Loc at;

	p_space(p);
	at = p_loc(p);
	if (!(s.name = p_bare(p)))
		return p_error(p, at, "the setting's name expected");
	if (setting(p->m, s.name))
		return p_error(p, at, "%s is set twice", s.name);
	if (!p_need_char(p, '=', "after the setting's name") || !parse_setting_value(p, &s, 0))
		return false;
	vec_push(p->m->arena, &p->m->setting, s);
	return true;
}

/* ---------------------------------------------------------------- state lines */

static bool
parse_init(Parse *p, State *s)
{
	Loc at;
	bool is_int;
	int64_t i;
	int k;

	p_space(p);
	at = p_loc(p);
	k = p_one_of(p, text_inits, INIT_COUNT);
	if (k < 0) {
		const char *word = (p_peek(p) < '0' || p_peek(p) > '9') && p_peek(p) != '-' ? p_bare(p) : NULL;

		if (word)
			return p_error(p, at, "there is no initial value \"%s\"%s", word,
			               p_hint(p, word, text_inits, INIT_COUNT));
		return p_number(p, "the initial value", &is_int, &i, &s->a);
	}
	s->init = (InitKind)k;
	if (!p_need_char(p, '(', "before the numbers") || !p_number(p, "the initial value", &is_int, &i, &s->a))
		return false;
	if (k != INIT_CONSTANT &&
	    (!p_need_char(p, ',', "between the two numbers") || !p_number(p, "the initial value", &is_int, &i, &s->b)))
		return false;
	return p_need_char(p, ')', "after the numbers");
}

/* {kind=param decay frozen} */
static bool
parse_state_flags(Parse *p, State *s)
{
	while (!p_char(p, '}')) {
		if (p_keyword(p, "kind")) {
			int k;

			if (!p_need_char(p, '=', "after kind"))
				return false;
			if ((k = p_one_of(p, text_state_kinds, ST_COUNT)) < 0)
				return p_error(p, p_loc(p),
				               "param, stat, slot, grad, sum, setting, average, carry or copy "
				               "expected");
			s->kind = (StateKind)k;
		} else if (p_keyword(p, "decay")) {
			s->decay = true;
		} else if (p_keyword(p, "frozen")) {
			s->frozen = true;
		} else {
			return p_error(p, p_loc(p), "kind, decay, frozen or '}' expected");
		}
	}
	return true;
}

bool
p_state_line(Parse *p)
{
	State s = {.offset = -1};
	Loc at;

	p_space(p);
	at = p_loc(p);
	if (!p_need_char(p, '@', "before the state's name") || !(s.name = p_word(p, "the state's name")))
		return false;
	if (module_state(p->m, s.name))
		return p_error(p, at, "there are two state lines %s", s.name);
	if (!p_need_char(p, ':', "after the state's name") || !p_type(p, &s.type))
		return false;
	if ((p_char(p, '=') && !parse_init(p, &s)) || (p_char(p, '{') && !parse_state_flags(p, &s)))
		return false;
	if (p_keyword(p, "at") && !p_int(p, 0, INT64_MAX, "an offset", &s.offset))
		return false;
	if (p_char(p, '!') && !p_source_loc(p, &s.loc))
		return false;
	vec_push(p->m->arena, &p->m->state, s);
	return true;
}

/* ---------------------------------------------------------------- the module line */

static bool
parse_hash(Parse *p, uint64_t *hash)
{
	const char *word = p_bare(p);

	*hash = 0;
	for (const char *c = word; c && *c; c++) {
		int digit = *c >= '0' && *c <= '9' ? *c - '0' : *c >= 'a' && *c <= 'f' ? *c - 'a' + 10 : -1;

		if (digit < 0 || c - word > 15)
			return p_error(p, p_loc(p), "the hash has up to 16 hexadecimal digits");
		*hash = *hash << 4 | (uint64_t)digit;
	}
	return word || p_error(p, p_loc(p), "the hash expected");
}

static bool
parse_module_field(Parse *p)
{
	static const char *const names[] = {"batch", "stage", "hash", "target", "arch", "arena_bytes", "scratch_bytes"};
	Module *m = p->m;
	Loc at;
	const char *name;
	int k;

	p_space(p);
	at = p_loc(p);
	k = p_one_of(p, names, 7);
	if (k < 0) {
		name = p_bare(p);
		return p_error(p, at, "one of batch, stage, hash, target, arch, arena_bytes, scratch_bytes expected%s",
		               name ? p_hint(p, name, names, 7) : "");
	}
	if (!p_need_char(p, '=', "after the name"))
		return false;
	switch (k) {
	case 0: return p_int(p, 0, MAX_ELEMENTS, "batch", &m->batch);
	case 1:
		at = p_loc(p);
		k = p_one_of(p, stage_names, STAGE_COUNT);
		if (k < 0)
			return p_error(p, at, "typed, diffed, lowered, fused, scheduled, selected or planned expected");
		m->stage = stage_names[k];
		return true;
	case 2: return parse_hash(p, &m->source_hash);
	case 3: return (m->target = p_word(p, "the target")) != NULL;
	case 4: return (m->arch = p_word(p, "the architecture")) != NULL;
	case 5: return p_int(p, 0, INT64_MAX, "arena_bytes", &m->arena_bytes);
	default: return p_int(p, 0, INT64_MAX, "scratch_bytes", &m->scratch_bytes);
	}
}

bool
p_module_line(Parse *p)
{
	const char *name = p_word(p, "the module's name");

	if (!name)
		return false;
	p->m->name = name;
	if (!p_char(p, '{'))
		return true;
	while (!p_char(p, '}')) {
		p_char(p, ',');
		if (!parse_module_field(p))
			return false;
	}
	return true;
}
