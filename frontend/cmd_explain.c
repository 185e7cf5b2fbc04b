/* cmd_explain.c: `explain`: the verdicts of the passes: which rules fired, which declined, why, and the bytes at stake.
 *
 * In: a model and up to two layers; a layer's name is a prefix of paths, at a dot.   Out: a line per verdict in the order of the pipeline, or JSON with
 * pinned keys. With two layers only verdicts between them. Refuses a layer the model does not have, with the nearest name. */
#include "cmd.h"

#include <inttypes.h>
#include <math.h>
#include <string.h>

static bool
wanted(const Verdict *v, const char *a, const char *b)
{
	if (!a)
		return true;
	if (!b)
		return layer_under(v->a, a) || layer_under(v->b, a);
	return (layer_under(v->a, a) && layer_under(v->b, b)) || (layer_under(v->a, b) && layer_under(v->b, a));
}

/* Every path and every prefix of one is a layer. */
static int
check_layer(Arena *a, const Module *m, const char *name)
{
	VEC(const char *) names = {0};

	for (uint32_t k = 0; k < m->graph.n; k++) {
		const Graph *g = m->graph.at[k];

		for (uint32_t i = 0; i < g->op.n; i++) {
			const char *path = g->op.at[i].path;

			if (!path || !*path)
				continue;
			if (layer_under(path, name))
				return EXIT_GOOD;
			if (names.n && !strcmp(names.at[names.n - 1], path))
				continue;
			vec_push(a, &names, path);
			for (const char *dot = strchr(path, '.'); dot; dot = strchr(dot + 1, '.'))
				vec_push(a, &names, (const char *)arena_strndup(a, path, (size_t)(dot - path)));
		}
	}
	const char *near = suggest(name, names.at, (int)names.n);

	if (near)
		return failure("%s has no layer '%s'; did you mean '%s'?", m->name, name, near);
	return failure("%s has no layer '%s'; mantou check lists them", m->name, name);
}

static void
put_ops(Buf *b, const Verdict *v)
{
	const char *path[2] = {v->a, v->b}, *op[2] = {v->opa, v->opb};

	for (int i = 0; i < 2; i++) {
		if (!path[i] && !op[i])
			continue;
		buf_printf(b, "%s%s", i && b->n ? " + " : "", path[i] && *path[i] ? path[i] : "");
		if (op[i])
			buf_printf(b, path[i] && *path[i] ? " (%s)" : "%s", op[i]);
	}
}

static void
put_line(Buf *b, const Module *m, const Verdict *v, bool colour)
{
	Buf ops = {0}, where = {0};

	put_ops(&ops, v);
	print_where(&where, m, v->loc);
	buf_printf(b, "%s%-8s%s  %-16s  %-6s %s: %s", colour ? v->fired ? "\033[32m" : "\033[33m" : "", v->fired ? "fused" : "declined", colour ? "\033[0m" : "",
	           v->rule ? v->rule : v->pass, v->graph ? v->graph : "", ops.at ? ops.at : "-", v->why ? v->why : "");
	if (v->bytes_saved) {
		buf_printf(b, v->fired ? "; saves " : "; would save ");
		print_bytes(b, v->bytes_saved);
	}
	if (where.n)
		buf_printf(b, "  [%s]", where.at);
	buf_printf(b, "\n");
	buf_free(&ops);
	buf_free(&where);
}

static void
put_json(Buf *b, const Module *m, const Verdict *v)
{
	const char *path[2] = {v->a, v->b}, *op[2] = {v->opa, v->opb};
	const char *comma = "";

	buf_printf(b, "{\"rule\": ");
	buf_json(b, v->rule ? v->rule : v->pass);
	buf_printf(b, ", \"ops\": [");
	for (int i = 0; i < 2; i++) {
		const char *name = path[i] && *path[i] ? path[i] : op[i];

		if (!name)
			continue;
		buf_printf(b, "%s", comma);
		buf_json(b, name);
		comma = ", ";
	}
	buf_printf(b, "], \"outcome\": \"%s\", \"why\": ", v->fired ? "fused" : "declined");
	buf_json(b, v->why ? v->why : "");
	buf_printf(b, ", \"value\": ");
	if (isfinite(v->value))
		buf_double(b, v->value);
	else
		buf_printf(b, "null");
	buf_printf(b, ", \"bytes_saved\": %" PRId64 ", \"where\": ", v->bytes_saved);
	Buf where = {0};

	print_where(&where, m, v->loc);
	buf_json(b, where.at ? where.at : "");
	buf_free(&where);
	buf_printf(b, ", \"graph\": ");
	buf_json(b, v->graph ? v->graph : "");
	buf_printf(b, ", \"kinds\": [");
	for (int i = 0; i < 2 && op[i]; i++) {
		buf_printf(b, "%s", i ? ", " : "");
		buf_json(b, op[i]);
	}
	buf_printf(b, "]}");
}

int
cmd_explain(Arena *a, const Options *o)
{
	Job j;
	Module *m;
	PassCtx cx;
	Buf b = {0};
	int fired = 0, declined = 0;
	int64_t saved = 0;
	int status = job_open(&j, a, o, "explain", o->operand[0]);

	if (status == EXIT_GOOD)
		status = job_load(&j);
	for (int i = 1; i < o->noperand && status == EXIT_GOOD; i++)
		status = check_layer(a, j.module, o->operand[i]);
	if (status == EXIT_GOOD)
		status = job_compile(&j, 0, "planned", &m, &cx); /* a broken contract is a reason to ask why */
	if (status != EXIT_GOOD)
		return status;
	if (o->json)
		buf_printf(&b, "[");
	for (uint32_t i = 0; i < cx.verdict.n; i++) {
		const Verdict *v = &cx.verdict.at[i];

		if (!wanted(v, o->noperand > 1 ? o->operand[1] : NULL, o->noperand > 2 ? o->operand[2] : NULL))
			continue;
		if (o->json) {
			buf_printf(&b, "%s", fired + declined ? ",\n " : "");
			put_json(&b, m, v);
		} else {
			put_line(&b, m, v, colour_on(stdout));
		}
		fired += v->fired;
		declined += !v->fired;
		saved += v->fired ? v->bytes_saved : 0;
	}
	if (o->json) {
		buf_printf(&b, "]\n");
	} else {
		buf_printf(&b, "%s%d fused, %d declined, ", fired + declined ? "\n" : "", fired, declined);
		print_bytes(&b, saved);
		buf_printf(&b, " of traffic saved a step\n");
	}
	fwrite(b.at, 1, b.n, stdout);
	buf_free(&b);
	return EXIT_GOOD;
}
