/* cases.c: reads the cases of operators, and fills their inputs.
 *
 * In: lines of the files of this folder (README.md says how they look).   Out: a Case; numbers for the inputs of a
 * graph. Inputs come from Philox, stream = the line up to its directives, so that any case runs alone. */
#include "cases.h"
#include "../../runtime/philox.h"
#include <dirent.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>

void
failed(Run *r, const char *line, const char *fmt, ...)
{
	va_list ap;

	if (r->quiet)
		return;
	FILE *f = r->told ? r->told : stdout;

	va_start(ap, fmt);
	fprintf(f, "FAIL %s: ", line);
	vfprintf(f, fmt, ap);
	fprintf(f, "\n");
	va_end(ap);
	r->nfailed++;
}

static void
skip(const char **p)
{
	while (**p == ' ' || **p == ',' || **p == '\t')
		++*p;
}

/* 5, N, 2N */
static bool
read_extent(const char **p, Batch batch, Axis *a)
{
	char *end;
	int64_t n = strtoll(*p, &end, 10);

	if (end == *p && *end != 'N')
		return false;
	n = end == *p ? 1 : n;
	*a = axis(*end == 'N' ? n * batch.n : n);
	if (*end == 'N' && batch.marked)
		a->mul = (int32_t)n;
	*p = end + (*end == 'N');
	return true;
}

static bool
read_type(const char **p, Batch batch, Type *t)
{
	const char *open = strchr(*p, '[');
	Axis axes[MAX_RANK];
	DType dt;
	int n = 0;

	if (!open || (dt = dtype_named(*p, (size_t)(open - *p))) == DT_none)
		return false;
	for (*p = open + 1; **p != ']' && n < MAX_RANK; n++) {
		if (!read_extent(p, batch, &axes[n]))
			return false;
		*p += **p == ',';
	}
	if (**p != ']')
		return false;
	++*p;
	*t = type_of(dt, n, axes);
	return true;
}

static AttrName
attr_of(const char *p, size_t n)
{
	for (int i = 0; i < A_COUNT; i++)
		if (strlen(attr_names[i].name) == n && strncmp(attr_names[i].name, p, n) == 0)
			return (AttrName)i;
	return A_COUNT;
}

/* name=value, the value a number, true, false, [numbers] or "text". */
static bool
read_attr(const char **p, Case *c, int at)
{
	size_t n = strcspn(*p, "=");
	AttrArg *a = &c->attr[at];
	char *end;

	*a = (AttrArg){.name = attr_of(*p, n)};
	if (a->name == A_COUNT)
		return false;
	a->kind = attr_names[a->name].kind;
	*p += n + 1;
	switch (a->kind) {
	case AK_BOOL:
		a->i = **p == 't';
		*p += strcspn(*p, " }");
		return true;
	case AK_STR:
		n = strcspn(++*p, "\"");
		snprintf(c->text[at], sizeof c->text[at], "%.*s", (int)n, *p);
		a->s = c->text[at];
		*p += n + 1;
		return true;
	case AK_INTS:
		for (++*p; **p != ']' && a->n < 8; *p = end + (*end == ','))
			c->list[at][a->n++] = strtoll(*p, &end, 10);
		a->list = c->list[at];
		++*p;
		return true;
	case AK_INT:
		a->i = strtoll(*p, &end, 10);
		*p = end;
		return true;
	default:
		a->f = strtod(*p, &end);
		n = strspn(*p + (**p == '-'), "0123456789") + (**p == '-');
		if (*p + n == end) { /* whole, and no double may hold it */
			a->kind = AK_INT;
			a->i = strtoll(*p, NULL, 10);
		}
		*p = end;
		return true;
	}
}

static bool
read_directives(const char *p, Case *c)
{
	char word[16];
	int n;

	for (skip(&p); sscanf(p, "%15s%n", word, &n) == 1; skip(&p)) {
		p += n;
		if (strcmp(word, "flat") == 0)
			c->flat = true;
		else if (strcmp(word, "full") == 0)
			c->full = true;
		else if (strcmp(word, "kernel") == 0)
			c->kernel = true;
		else if (strcmp(word, "reference") == 0)
			c->reference = true;
		else if (strcmp(word, "ids") == 0 &&
		         sscanf(p, "%lld %lld%n", (long long *)&c->id_low, (long long *)&c->id_high, &n) == 2)
			p += n;
		else if (strcmp(word, "time") == 0 && sscanf(p, "%lld%n", (long long *)&c->time, &n) == 1 &&
		         c->time > 0)
			p += n;
		else if (strcmp(word, "fixed") == 0 && sscanf(p, "%d%n", &c->fixed, &n) == 1)
			p += n;
		else if (strcmp(word, "range") == 0) {
			c->nrange = 0;
			while (c->nrange < 4 &&
			       sscanf(p, "%lf %lf%n", &c->low[c->nrange], &c->high[c->nrange], &n) == 2) {
				c->nrange++;
				p += n;
			}
		} else
			return false;
	}
	return true;
}

bool
read_case(Run *r, const char *line, Batch batch, Case *c)
{
	char name[32];
	const char *p = line;
	int n, nattr = 0;

	*c = (Case){
	        .line = arena_strdup(r->arena, line), .fixed = -1, .low = {-2}, .high = {2}, .nrange = 1, .id_high = 3};
	if (sscanf(p, "%31s%n", name, &n) != 1 || (c->kind = op_named(name)) == OP_none)
		return false;
	p += n;
	for (skip(&p); *p && !strchr("{-;=", *p); skip(&p))
		if (c->nin == MAX_IN || !read_type(&p, batch, &c->in[c->nin++]))
			return false;
	if (*p == '{')
		for (++p; *p && *p != '}'; skip(&p))
			if (nattr == 11 || !read_attr(&p, c, nattr++))
				return false;
	c->attr[nattr].name = A_COUNT;
	p += *p == '}';
	skip(&p);
	if (strncmp(p, "->", 2) == 0) {
		p += 2;
		skip(&p);
		if (!read_type(&p, batch, &c->result))
			return false;
		c->has_result = true;
		skip(&p);
	}
	if (strncmp(p, "=>", 2) == 0) {
		for (p += 2; *p == ' '; p++)
			;
		c->error = arena_strdup(r->arena, p);
		return true;
	}
	return *p == ';' ? read_directives(p + 1, c) : *p == 0;
}

/* ---------------------------------------------------------------- lines of files */
bool
line_says(const char *line, const char *directive)
{
	size_t n = strlen(directive);
	const char *p = strstr(line, "=>") ? NULL : strchr(line, ';');

	for (; p; p = strchr(p + 1, ' '))
		if (!strncmp(p + 1, directive, n) && (p[n + 1] == ' ' || !p[n + 1]))
			return true;
	return false;
}

bool
is_folder(const char *path)
{
	struct stat s;

	return !stat(path, &s) && S_ISDIR(s.st_mode);
}

static int
is_text(const struct dirent *e)
{
	const char *end = strrchr(e->d_name, '.');

	return end && !strcmp(end, ".txt");
}

void
read_lines(Lines *l, const char *path, const char *word)
{
	struct dirent **file;
	int n = is_folder(path) ? scandir(path, &file, is_text, alphasort) : 0;
	FILE *f = is_folder(path) ? NULL : fopen(path, "r");
	char line[512];

	if (n < 0 || (!f && !is_folder(path)))
		die("cannot read %s", path);
	for (int i = 0; i < n; i++)
		read_lines(l, arena_printf(l->a, "%s/%s", path, file[i]->d_name), word);
	while (f && fgets(line, sizeof line, f)) {
		line[strcspn(line, "\r\n")] = 0;
		if (line[0] != '#' && line[strspn(line, " \t")] && strstr(line, word))
			vec_push(l->a, &l->at, (const char *)arena_strdup(l->a, line));
	}
	if (f)
		fclose(f);
}

/* ---------------------------------------------------------------- numbers */
/* u has 24 bits; of wide ranges 24 more say where between. */
static double
whole_between(int64_t low, int64_t high, double u, uint32_t stream, uint64_t *j)
{
	double span = (double)high - (double)low + 1;

	if (span > 0x1p24)
		u += 0x1p-24 * philox_uniform(7, stream, 0, (*j)++);
	return fmin((double)low + floor(u * span), (double)high);
}

void
fill_inputs(const Case *c, const Graph *g, double **x)
{
	const char *end = strchr(c->line, ';');
	uint32_t stream = philox_stream(end ? arena_strndup(g->arena, c->line, (size_t)(end - c->line)) : c->line);
	int nfloat = 0;
	uint64_t j = 0;

	for (uint32_t k = 0; k < g->input.n; k++) {
		const Type *t = val_type(g, g->input.at[k].v);
		int range = nfloat < c->nrange ? nfloat : c->nrange - 1;
		bool weight = (int)k >= c->nin;
		double low = weight ? -1 : c->low[range], high = weight ? 1 : c->high[range];
		int64_t n = type_elements(t);

		nfloat += dtype_is_float((DType)t->dtype);
		for (int64_t i = 0; i < n; i++) {
			double u = philox_uniform(7, stream, 0, j++);

			x[k][i] = dtype_is_float((DType)t->dtype) ? low + (high - low) * u
			          : t->dtype == DT_bool           ? u < 0.6
			                                          : whole_between(c->id_low, c->id_high, u, stream, &j);
		}
	}
}
