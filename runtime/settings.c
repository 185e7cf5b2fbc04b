/* settings.c: numbers of the recipe that a run may set: --rate, --set.
 *
 * In: the descriptor's rate and its states of kind setting (optimizer.weight_decay, clip_norm, ...), which graphs read
 * as they read the rate; what the command line sets; what a checkpoint's run had set.   Out: the rate and the states
 * with their values, metadata "settings" (all, NAME=VALUE) and "set" (those that were not the program's own).
 * A resumed run keeps what its run had set, unless this one sets another value; it says what differs from before. What
 * the model's file leaves at 0 (no decay) is no operation of the program, and cannot be set. */
#include "host.h"

#include <errno.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>

/* What a number may be, by the last part of its name; others are 0 or more. */
static const struct { const char *name; bool open; double below; const char *wants; } settings_rules[] = {
	{"decay", false, 1, "a number from 0 to below 1"},
	{"momentum", false, 1, "a number from 0 to below 1"},
	{"clip_norm", true, HUGE_VAL, "a number above 0"},
	{"factor", true, HUGE_VAL, "a number above 0"},
	{"pct_start", false, 1, "a number from 0 to below 1"},
	{"div_factor", true, HUGE_VAL, "a number above 0"},
	{"final_div_factor", true, HUGE_VAL, "a number above 0"},
};

static void
settings_add(RtHost *h, char *name, double *rate, int state, double value)
{
	RtSetting *s = &h->setting[h->nsetting];

	if (h->nsetting < RT_MAX_SETTINGS) {
		*s = (RtSetting){.name = name, .rate = rate, .state = state, .value = value};
		h->nsetting++;
	}
}

static void
settings_of_rate(RtHost *h)
{
	RtRate *r = &h->program.rate;
	const struct { const char *name, *kinds; double *at; } parts[] = {
		{"", "c", &r->rate}, {".rate", "s", &r->rate}, {".from", "pol", &r->from}, {".peak", "poly", &r->peak},
		{".to", "pol", &r->to}, {".power", "p", &r->power}, {".warmup_epochs", "pol", &r->warmup_epochs},
		{".warmup_steps", "pol", &r->warmup_steps}, {".factor", "s", &r->factor},
		{".pct_start", "y", &r->pct_start}, {".div_factor", "y", &r->div_factor},
		{".final_div_factor", "y", &r->final_div_factor}};
	static const char letter[] = {[RT_RATE_CONSTANT] = 'c', [RT_RATE_POLY] = 'p', [RT_RATE_COSINE] = 'o',
		[RT_RATE_LINEAR] = 'l', [RT_RATE_STEP] = 's', [RT_RATE_ONE_CYCLE] = 'y'};

	for (int i = 0; i < RT_COUNT(parts); i++)
		if (strchr(parts[i].kinds, letter[r->kind]))
			settings_add(h, rt_printf("optimizer.rate%s", parts[i].name), parts[i].at, -1, *parts[i].at);
}

static int
settings_find(const RtHost *h, const char *name, size_t n)
{
	for (int i = 0; i < h->nsetting; i++)
		if (strlen(h->setting[i].name) == n && memcmp(h->setting[i].name, name, n) == 0)
			return i;
	return -1;
}

/* False after rt_fail. */
static bool
settings_number(RtHost *h, const char *option, RtSetting *s, const char *text)
{
	const char *last = strrchr(s->name, '.') ? strrchr(s->name, '.') + 1 : s->name, *wants = "a number, 0 or more";
	double below = HUGE_VAL, x;
	bool open = false;
	char *end;

	for (int i = 0; i < RT_COUNT(settings_rules); i++)
		if (strcmp(settings_rules[i].name, last) == 0) {
			below = settings_rules[i].below;
			open = settings_rules[i].open;
			wants = settings_rules[i].wants;
		}
	errno = 0;
	x = strtod(text, &end);
	if (!*text || *end || (text[0] != '.' && (text[0] < '0' || text[0] > '9')) || errno == ERANGE || !(x < below)
	    || (open ? !(x > 0) : !(x >= 0)))
		return rt_fail(&h->error, "%s: %s wants %s, not '%s'", option, s->name, wants, text);
	s->value = x;
	s->set = true;
	return true;
}

static bool
settings_unknown(RtHost *h, const char *given, size_t n)
{
	const char *names[RT_MAX_SETTINGS], *near;
	char *wrong = rt_printf("%.*s", (int)n, given), *all = rt_printf("%s", "");

	for (int i = 0; i < h->nsetting; i++) {
		char *more = rt_printf("%s%s%s", all, i ? ", " : "", h->setting[i].name);

		free(all);
		all = more;
		names[i] = h->setting[i].name;
	}
	near = rt_suggest(wrong, names, h->nsetting);
	rt_fail(&h->error,
	        "--set %s: is nothing that a run of this program may set%s%s%s; there are %s. What the model's "
	        "file does not give, or gives as 0, is built in",
	        wrong, near ? "; did you mean " : "", near ? near : "", near ? "?" : "", all);
	free(wrong);
	free(all);
	return false;
}

/* The rate, or the schedule's highest. */
static bool
settings_rate(RtHost *h, const char *text)
{
	static const char *const names[] = {"optimizer.rate", "optimizer.rate.rate", "optimizer.rate.peak"};

	for (int k = 0; k < RT_COUNT(names); k++) {
		int i = settings_find(h, names[k], strlen(names[k]));

		if (i >= 0)
			return settings_number(h, "--rate", &h->setting[i], text);
	}
	return rt_fail(&h->error, "--rate: the program has no learning rate");
}

/* The values where the program reads them. */
void
rt_settings_apply(RtHost *h)
{
	for (int i = 0; i < h->nsetting; i++) {
		const RtSetting *s = &h->setting[i];
		const RtTensor *t = s->state >= 0 ? &h->program.state[s->state].t : NULL;
		int64_t bad;

		if (s->rate)
			*s->rate = s->value;
		if (t)
			rt_dtype_convert(t->dtype, h->run.arena + t->offset, RT_F64, (const uint8_t *)&s->value, 1,
			                 false, &bad);
	}
	h->run.prepacked = 0;
}

bool
rt_settings_prepare(RtHost *h)
{
	const RtProgram *p = &h->program;

	settings_of_rate(h);
	for (int k = 0; k < p->nstate; k++)
		if (p->state[k].kind == RT_SETTING)
			settings_add(h, rt_printf("%s", p->state[k].t.name), NULL, k, p->state[k].a);
	if (h->opt.rate && !settings_rate(h, h->opt.rate))
		return false;
	for (int k = 0; k < h->opt.nset; k++) {
		const char *text = h->opt.set[k], *equals = strchr(text, '=');
		int i = settings_find(h, text, (size_t)(equals - text));

		if (i < 0)
			return settings_unknown(h, text, (size_t)(equals - text));
		if (!settings_number(h, "--set", &h->setting[i], equals + 1))
			return false;
	}
	return true;
}

bool
rt_settings_any(const RtHost *h)
{
	bool any = false;

	for (int i = 0; i < h->nsetting; i++)
		any = any || h->setting[i].set;
	return any;
}

/* ---- checkpoints */

void
rt_settings_meta(const RtHost *h, FILE *f)
{
	fprintf(f, ",\"settings\":\"");
	for (int i = 0; i < h->nsetting; i++)
		fprintf(f, "%s%s=%.17g", i ? " " : "", h->setting[i].name, h->setting[i].value);
	fprintf(f, "\"");
	if (!rt_settings_any(h))
		return;
	fprintf(f, ",\"set\":\"");
	for (int i = 0, n = 0; i < h->nsetting; i++)
		if (h->setting[i].set)
			fprintf(f, "%s%s", n++ ? " " : "", h->setting[i].name);
	fprintf(f, "\"");
}

/* The word `name` in a list of words, each up to a blank; `value`: the list is of NAME=VALUE, and *value is set. */
static bool
settings_word(const char *list, const char *name, double *value)
{
	size_t n = strlen(name);

	for (const char *at = list; *at; at += strcspn(at, " "), at += *at == ' ') {
		if (strncmp(at, name, n) != 0)
			continue;
		if (value && at[n] == '=') {
			*value = strtod(at + n + 1, NULL);
			return true;
		}
		if (!value && (at[n] == ' ' || !at[n]))
			return true;
	}
	return false;
}

void
rt_settings_resume(RtHost *h, const Json *meta, int64_t step)
{
	const char *was = rt_json_str(meta, "settings", ""), *set = rt_json_str(meta, "set", "");

	for (int i = 0; i < h->nsetting; i++) {
		RtSetting *s = &h->setting[i];
		double before;

		if (!settings_word(was, s->name, &before))
			continue;
		if (!s->set && settings_word(set, s->name, NULL)) {
			s->value = before;
			s->set = true;
		} else if (s->value != before && !h->opt.quiet) {
			fprintf(stderr,
			        "note: %s is %.9g from step %lld on; %s was made with %.9g, and this is no longer the "
			        "same bits\n",
			        s->name, s->value, (long long)step, h->opt.resume, before);
		}
	}
}

/* {"name": value, ...} */
void
rt_settings_json(const RtHost *h, FILE *f)
{
	putc('{', f);
	for (int i = 0; i < h->nsetting; i++) {
		fputs(i ? ", " : "", f);
		rt_json_text(f, h->setting[i].name);
		fputs(": ", f);
		rt_json_number(f, h->setting[i].value, 17);
	}
	putc('}', f);
}
