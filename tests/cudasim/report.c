/* report.c: says what a kernel did wrong, and ends its launch.
 *
 * In: warp, instruction, lane, and the fault in words.   Out: kernel, block, thread, source line and nearest allocation
 * on stderr, once a launch; the launch's status. */
#include <stdarg.h>
#include <stdio.h>
#include <string.h>

#include "device.h"

const char *
module_line(const Module *m, uint32_t ins, char *to, size_t bytes)
{
	int low = 0, high = m->nloc;

	while (low < high) {
		int mid = (low + high) / 2;

		if (m->loc[mid].ins <= ins)
			low = mid + 1;
		else
			high = mid;
	}
	if (low > 0 && m->loc[low - 1].line && m->loc[low - 1].file < 256 && m->file[m->loc[low - 1].file]) {
		for (int i = 0; i < m->nfunc; i++) /* not of the function before */
			if (ins >= m->func[i]->first && ins < m->func[i]->first + m->func[i]->count &&
			    m->loc[low - 1].ins >= m->func[i]->first) {
				snprintf(to, bytes, "%s:%u", m->file[m->loc[low - 1].file], m->loc[low - 1].line);
				return to;
			}
	}
	snprintf(to, bytes, "PTX line %u", m->ins[ins].line);
	return to;
}

static void
print_near(uint64_t at)
{
	const Arena *a = arena_has(&device.host, at, 1) ? &device.host : &device.memory;
	const Allocation *v = arena_near(a, at);

	if (!v) {
		fprintf(stderr, "  nothing is allocated\n");
		return;
	}
	fprintf(stderr, "  nearest allocation%s: %llu bytes at 0x%llx", v->freed ? ", freed" : "",
	        (unsigned long long)v->bytes, (unsigned long long)v->at);
	if (at >= v->at + v->bytes)
		fprintf(stderr, "; the address is %llu bytes past its end\n",
		        (unsigned long long)(at - v->at - v->bytes));
	else if (at >= v->at)
		fprintf(stderr, "; the address is %llu bytes from its start\n", (unsigned long long)(at - v->at));
	else
		fprintf(stderr, "; the address is %llu bytes before it\n", (unsigned long long)(v->at - at));
}

static _Noreturn void
report_fault(Warp *w, const Ins *x, int lane, CUresult status, const uint64_t *at, const char *format, va_list ap)
{
	Launch *l = worker->launch;

	pthread_mutex_lock(&l->lock);
	if (!l->status) {
		const Block *b = w->block;
		uint32_t t = w->base + (uint32_t)(lane < 0 ? 0 : lane), nx = l->block[0], ny = l->block[1];
		char line[512];

		l->status = status;
		fprintf(stderr, "simulated device: ");
		vfprintf(stderr, format, ap);
		fprintf(stderr, "\n  kernel %s, block (%u,%u,%u), %s (%u,%u,%u), %s\n", l->func->name, b->id[0],
		        b->id[1], b->id[2], lane < 0 ? "warp of thread" : "thread", t % nx, t / nx % ny, t / nx / ny,
		        module_line(l->module, (uint32_t)(x - l->module->ins), line, sizeof line));
		if (at)
			print_near(*at);
	}
	pthread_mutex_unlock(&l->lock);
	longjmp(worker->fail, 1);
}

_Noreturn void
report(Warp *w, const Ins *x, int lane, CUresult status, const char *format, ...)
{
	va_list ap;

	va_start(ap, format);
	report_fault(w, x, lane, status, NULL, format, ap);
}

_Noreturn void
report_at(Warp *w, const Ins *x, int lane, CUresult status, uint64_t at, const char *format, ...)
{
	va_list ap;

	va_start(ap, format);
	report_fault(w, x, lane, status, &at, format, ap);
}
