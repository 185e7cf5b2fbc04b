/* cmd_machine.c: `info --machine`: what choices for an architecture count with, and what of it can be read here.
 *
 * In: a target, architectures.   Out: for each the row of its machine (ir/target.h), the sizes that are read of the
 * machine here if that runs its code, the word of tuning records, and the budget of choices. Nothing is measured.
 * Refuses: a target that interprets, a model. */
#include "cmd.h"

#include <string.h>

/* A size in the table and in JSON; `here` is 0 where nothing was read; cores that share it, 0 if that says nothing. */
typedef struct Size { const char *name, *key; int64_t declared, here; int cores; } Size;
enum { MOST_SIZES = 4 };

/* The sizes that a machine has, those that can be read of one here first; their number. */
static int
sizes_of(const Machine *m, const Machine *here, Size s[MOST_SIZES])
{
	int n = 0;

	if (m->sms) {
		s[n++] = (Size){"L1 and shared", "l1", m->l1.bytes, 0, m->l1.cores};
		s[n++] = (Size){"shared of a block", "shared", m->shared, here ? here->shared : 0, 0};
	} else {
		s[n++] = (Size){"L1", "l1", m->l1.bytes, here ? here->l1.bytes : 0, m->l1.cores};
	}
	s[n++] = (Size){"L2", "l2", m->l2.bytes, here ? here->l2.bytes : 0, m->l2.cores};
	if (m->l3.bytes || (here && here->l3.bytes))
		s[n++] = (Size){"L3", "l3", m->l3.bytes, here ? here->l3.bytes : 0, m->l3.cores};
	return n;
}

static void
put_size(Buf *b, int64_t bytes)
{
	if (bytes >= 1 << 20)
		buf_printf(b, "%.4g MiB", (double)bytes / (1 << 20));
	else
		buf_printf(b, "%.4g KiB", (double)bytes / (1 << 10));
}

static void
put_cell(Buf *b, int64_t bytes)
{
	size_t from = b->n;

	if (bytes)
		put_size(b, bytes);
	buf_printf(b, "%*s", (int)(14 - (b->n - from)), "");
}

static void
put_sizes(Buf *b, const Machine *m, const Machine *here)
{
	Size s[MOST_SIZES];
	int n = sizes_of(m, here, s);

	buf_printf(b, "\n%-20s declared%s\n", "", here ? "      here" : "");
	if (m->sms)
		buf_printf(b, here ? "%-20s %-14d%d\n" : "%-20s %d\n", "multiprocessors", m->sms, here ? here->sms : 0);
	for (int i = 0; i < n; i++) {
		const char *whose = m->sms ? "multiprocessor" : "core";

		buf_printf(b, "%-20s ", s[i].name);
		put_cell(b, s[i].declared);
		if (here)
			put_cell(b, s[i].here);
		if (s[i].cores > 1)
			buf_printf(b, "shared by %d %ss", s[i].cores, whose);
		else if (s[i].cores)
			buf_printf(b, "of a %s", whose);
		while (b->at[b->n - 1] == ' ')
			b->n--;
		buf_printf(b, "\n");
	}
}

static void
put_rate(Buf *b, double flops)
{
	buf_printf(b, flops < 1e12 ? "%.4g GFLOP/s" : "%.4g TFLOP/s", flops / (flops < 1e12 ? 1e9 : 1e12));
}

static const char *
plural(double n)
{
	return n == 1 ? "" : "s";
}

/* Operations of f32 that all multiprocessors, or one core, begin in a second at the nominal clock. */
static double
peak_of(const Machine *m)
{
	return 2 * m->fmas * m->hz * (m->sms ? m->sms : m->vector_bytes / 4);
}

static void
put_units(Buf *b, const Machine *m)
{
	buf_printf(b, "%-20s %d bytes\n", "cache line", m->line);
	if (m->sms) {
		buf_printf(b, "%-20s %d of 32 bits to a thread; loads of up to %d bytes\n", "registers",
		           m->vector_registers, m->vector_bytes);
		buf_printf(b, "%-20s %g FMAs of f32 and %g loads of 32 bits, of a multiprocessor\n",
		           "in a cycle", m->fmas, m->loads);
	} else {
		buf_printf(b, "%-20s %d of %d bytes\n", "vector registers", m->vector_registers, m->vector_bytes);
		buf_printf(b, "%-20s %g FMA%s and %g load%s of full vectors, of a core\n", "in a cycle",
		           m->fmas, plural(m->fmas), m->loads, plural(m->loads));
	}
	buf_printf(b, "%-20s %.4g GHz: ", "nominal clock", m->hz / 1e9);
	put_rate(b, peak_of(m));
	buf_printf(b, " of f32%s\n", m->sms ? "" : " a core");
}

static void
put_budget(Buf *b, const Budget *w)
{
	static const char *const levels[] = {"L1", "L2", "L3"};
	const int64_t bytes[] = {w->l1, w->l2, w->l3};
	const char *comma = "";

	buf_printf(b, "\nchoices count with\n%-20s ", "blocks for");
	for (int i = 0; i < 3; i++) {
		if (!bytes[i])
			continue;
		buf_printf(b, "%s", comma);
		put_size(b, bytes[i]);
		buf_printf(b, " of %s", levels[i]);
		comma = ", ";
	}
	buf_printf(b, "\n");
	if (w->task) {
		buf_printf(b, "%-20s %lld operations at least\n", "a task", (long long)w->task);
		buf_printf(b, "%-20s tiles of %d vectors, ", "weight gradients", w->dw_vectors);
		buf_printf(b, w->pass ? "sums of %d steps a pass" : "whole rows of pixels a pass", w->pass);
		buf_printf(b, w->dw_copy ? ", operands copied\n" : "\n");
	}
	if (w->unroll > 1)
		buf_printf(b, "%-20s %d steps of a product in a turn\n", "sums", w->unroll);
	if (w->task_rows)
		buf_printf(b, "%-20s tasks of %d rows\n", "wide products", w->task_rows);
	if (w->copy_steps)
		buf_printf(b, "%-20s copied for sums of %d steps or more\n", "transposed operands", w->copy_steps);
	if (w->ahead)
		buf_printf(b, "%-20s fetched %d steps ahead, where few rows meet them\n", "panels beyond L2", w->ahead);
	if (w->next)
		buf_printf(b, "%-20s each fetched while the one before is multiplied\n", "panels of products");
	if (w->slow_l3)
		buf_printf(b, "%-20s plain products in each step; wide ones by units\n", "recurrences");
	if (w->blocks) {
		buf_printf(b, "%-20s ", "tiles of a block");
		put_size(b, w->shared);
		buf_printf(b, " of shared memory\n%-20s %d blocks\n", "a full device", w->blocks);
	}
	buf_printf(b, "%-20s %.4g GB/s\n%-20s ", "memory", w->rates.bytes / 1e9, "elementwise ops");
	put_rate(b, w->rates.flops);
	buf_printf(b, "\n%-20s ", "products");
	put_rate(b, w->rates.products);
	buf_printf(b, "\n");
	if (w->rates.start > 0)
		buf_printf(b, "%-20s %.3g us\n", "start of a kernel", w->rates.start * 1e6);
}

static void
put_text(Buf *b, const Target *t, const Machine *m, const Machine *here, const char *word)
{
	buf_printf(b, "%-20s %s %s\n%-20s %s\n", "target", t->name, m->arch, "declared as", m->model);
	buf_printf(b, "%-20s %s (%s)\n", "machine", word,
	           here ? "read here" : "declared: there is nothing here to read");
	put_sizes(b, m, here);
	buf_printf(b, "\n");
	put_units(b, m);
	put_budget(b, &m->budget);
}

static void
put_rates_json(Buf *b, const char *name, const Rates *r)
{
	buf_printf(b, ", \"%s\": {\"gbytes_per_s\": %.6g, \"gflops\": %.6g, \"gflops_of_products\": %.6g, ", name,
	           r->bytes / 1e9, r->flops / 1e9, r->products / 1e9);
	buf_printf(b, "\"gflops_of_group_products\": %.6g, \"start_us\": %.6g}", r->group_products / 1e9,
	           r->start * 1e6);
}

static void
put_json(Buf *b, const Target *t, const Machine *m, const Machine *here, const char *word)
{
	const Budget *w = &m->budget;
	const char *comma = "";
	Size s[MOST_SIZES];
	int n = sizes_of(m, here, s);

	buf_printf(b, "{\"target\": \"%s\", \"arch\": \"%s\", \"model\": ", t->name, m->arch);
	buf_json(b, m->model);
	buf_printf(b, ", \"machine\": \"%s\", \"here\": %s, \"declared\": {", word, here ? "true" : "false");
	for (int i = 0; i < n; i++) {
		buf_printf(b, "\"%s_bytes\": %lld, ", s[i].key, (long long)s[i].declared);
		if (s[i].cores)
			buf_printf(b, "\"%s_cores\": %d, ", s[i].key, s[i].cores);
	}
	if (m->sms)
		buf_printf(b, "\"multiprocessors\": %d, ", m->sms);
	buf_printf(b, "\"line_bytes\": %d, \"vector_bytes\": %d, \"vector_registers\": %d, ", m->line, m->vector_bytes,
	           m->vector_registers);
	buf_printf(b, "\"fmas_per_cycle\": %g, \"loads_per_cycle\": %g, \"ghz\": %.6g}, \"read\": {", m->fmas, m->loads,
	           m->hz / 1e9);
	for (int i = 0; i < n && here; i++) {
		if (!s[i].here)
			continue;
		buf_printf(b, "%s\"%s_bytes\": %lld", comma, s[i].key, (long long)s[i].here);
		comma = ", ";
	}
	if (here && here->sms)
		buf_printf(b, "%s\"multiprocessors\": %d", comma, here->sms);
	buf_printf(b, "}");
	put_rates_json(b, "forecast", &m->rates);
	put_rates_json(b, "choices", &w->rates);
	buf_printf(b, ", \"budget\": {\"l1_bytes\": %lld, \"l2_bytes\": %lld, \"l3_bytes\": %lld, ", (long long)w->l1,
	           (long long)w->l2, (long long)w->l3);
	buf_printf(b, "\"task_operations\": %lld, \"shared_bytes\": %lld, \"blocks\": %d, ", (long long)w->task,
	           (long long)w->shared, w->blocks);
	buf_printf(b, "\"task_rows\": %d, \"copy_steps\": %d, \"pass\": %d, \"dw_vectors\": %d, \"ahead\": %d, "
	           "\"next\": %d}}", w->task_rows, w->copy_steps, w->pass, w->dw_vectors, w->ahead, w->next);
}

int
info_machine(Arena *a, const Options *o)
{
	Buf b = {0};
	Job j;
	int status = job_open(&j, a, o, "info", "");

	if (status != EXIT_GOOD)
		return status;
	if (!j.target->machine)
		return failure("target %s interprets: no machine is declared for it", j.target->name);
	for (int k = 0; k < j.narch; k++) {
		Machine here;
		bool read = j.target->here.machine(j.target, j.arch[k], &here);
		const Machine *m = j.target->machine(j.target, j.arch[k]);

		const char *word = j.target->here.word(j.target, j.arch[k], a);

		buf_printf(&b, "%s", o->json ? k ? ",\n " : "[" : k ? "\n" : "");
		(o->json ? put_json : put_text)(&b, j.target, m, read ? &here : NULL, word);
	}
	buf_printf(&b, "%s", o->json ? "]\n" : "");
	fwrite(b.at, 1, b.n, stdout);
	buf_free(&b);
	return EXIT_GOOD;
}
