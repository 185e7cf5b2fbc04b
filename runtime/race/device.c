/* device.c: a step of the race on a device.
 *
 * In: an order, what each group runs.   Out: nanoseconds of each unit, between marks of the device's stream before and
 * behind it: all is launched, then waited for once. A kernel that fails or hangs there spoils the device for the whole
 * process, and is not named: the worker ends, the step is made again by a new one, unit by unit, each waited for
 * (`careful`; so are checks, and steps whose times a table has). Then it is known whose it was. The parent never
 * opens the device, as it does not live through fork: a child looks which code object runs. What a simulated device
 * takes is no time of a kernel: there kernels are checked, and nothing is timed. */
#define _GNU_SOURCE
#include "race.h"

#include <errno.h>
#include <math.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/wait.h>
#include <unistd.h>

/* ---- which code object */
typedef struct Found { int32_t object; char device[320]; RtError error; } Found;

static void
device_find(Race *r, const RtCodeObject *const *objects, int nobjects, Found *f)
{
	RtHost *h = r->h;

	f->object = -1;
	if (!rt_host_open(h, objects, nobjects)) {
		f->error = h->error;
		return;
	}
	for (int i = 0; i < nobjects; i++)
		f->object = objects[i] == h->object ? i : f->object;
	snprintf(f->device, sizeof f->device, "%s", h->device_name);
}

bool
race_device_open(Race *r, const RtCodeObject *const *objects, int nobjects)
{
	RtHost *h = r->h;
	Found *f = mmap(NULL, sizeof *f, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
	pid_t pid = f == MAP_FAILED ? -1 : fork();
	int status = 0;

	if (pid < 0)
		return rt_fail(&h->error, "a process that looks for the device: %s", strerror(errno));
	if (pid == 0) {
		device_find(r, objects, nobjects, f);
		_exit(0);
	}
	while (waitpid(pid, &status, 0) < 0 && errno == EINTR)
		;
	if (status || f->object < 0) {
		if (!status)
			h->error = f->error;
		return status ? rt_fail(&h->error, "the process that looked for the device has died") : false;
	}
	r->device_name = rt_printf("%s", f->device);
	r->simulated = strncmp(f->device, "simulated", 9) == 0;
	r->device = objects[f->object]->device;
	h->opt.command = RT_C_INFO;              /* which asks nothing of the device */
	bool good = rt_host_open(h, &objects[f->object], 1);

	h->opt.command = RT_C_BENCH;
	munmap(f, sizeof *f);
	return good;
}

bool
race_device_ready(Race *r)
{
	RtHost *h = r->h;
	char word[512];
	const char *missing = r->device->ready(h) ? r->device->missing(h, h->object, word, sizeof word) : "";

	return !missing || (*missing && rt_fail(&h->error, "%s needs %s", h->device_name, missing));
}

/* ---- a call */
static void
device_must(Race *r, bool good)
{
	if (!good)
		race_worker_lost(r);
}

/* What the table of costs does to a kernel. */
static void
device_fault(Race *r, int group, int text)
{
	const char *kernel = r->table.record[r->table.group[group].record].text[text].kernel;
	RaceFault fault = text ? race_costs_fault(r->costs, kernel, r->shared->number) : RACE_NO_FAULT;

	if (fault == RACE_CRASH)
		raise(SIGILL);
	while (fault == RACE_HANG) {
		r->shared->stuck = 1;
		pause();
	}
}

static void
device_unit(Race *r, int u, const int32_t *order)
{
	const RaceUnit *unit = &r->table.unit[u];
	const RaceRows own = {.row = &r->table.graph->row[unit->row], .n = 1};
	const RaceRows *rows = unit->group >= 0 ? &r->table.group[unit->group].rows[order[unit->group]] : &own;

	if (unit->group >= 0)
		device_fault(r, unit->group, order[unit->group]);
	race_worker_rows(r, rows->once, rows->nonce);
	device_must(r, r->device->mark(r->h, 2 * u));
	race_worker_rows(r, rows->row, rows->n);
	device_must(r, r->device->mark(r->h, 2 * u + 1));
}

bool
race_device_units(Race *r, const int32_t *order, int64_t *ns)
{
	RaceShared *s = r->shared;
	RtHost *h = r->h;
	bool careful = s->careful || s->what == RACE_CHECK;
	int64_t all = 0;

	device_must(r, r->device->begin(h, r->which));
	if (!r->kept)                            /* of training: nothing */
		race_worker_rows(r, r->table.once, r->table.nonce);
	r->kept = true;
	for (int u = 0; u < r->table.nunit; u++) {
		int group = r->table.unit[u].group;

		all += race_shared_limit(r)[u];
		if (careful) {
			device_must(r, r->device->wait(h));
			s->unit = u;
			s->text = group >= 0 ? order[group] : 0;
			s->limit = race_shared_limit(r)[u];
			__atomic_add_fetch(&s->beat, 1, __ATOMIC_SEQ_CST);
		}
		if (group >= 0 && s->what == RACE_CHECK)
			race_check_group(r, group);
		else
			device_unit(r, u, order);
		if (careful)
			device_must(r, r->device->wait(h));
	}
	if (!careful) {                          /* the step as a whole, which is nobody's fault yet */
		s->text = 0;
		s->limit = all;
		s->unit = 0;
	}
	device_must(r, r->device->wait(h));
	s->unit = -1;
	for (int u = 0; u < r->table.nunit && s->what == RACE_STEP && !r->costs; u++) {
		double seconds = r->device->between(h, 2 * u, 2 * u + 1);

		device_must(r, !isnan(seconds));
		ns[u] += (int64_t)(seconds * 1e9);
	}
	device_must(r, r->device->end(h, r->which));
	if (rt_fault(&h->run)) {
		rt_host_fault(h);
		return false;
	}
	return true;
}
