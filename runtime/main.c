/* main.c: main() of every executable: options, then the command. Exit status 0 good, 1 failed, 2 wrong usage, 130
 * interrupted. */
#include "comm.h"

#include <string.h>
#include <unistd.h>

int
rt_die(RtHost *h)
{
	for (char *c = h->error.text; *c; c++)   /* names out of files must not steer a terminal */
		if ((unsigned char)*c < 0x20 || *c == 0x7f)
			*c = '?';
	rt_progress_end(h);
	fflush(stdout);
	if (h->ranks > 1 && !h->agreed)          /* the others would wait for this one */
		h->comm->abort(h);
	fprintf(stderr, "%s: error: %s\n", h->opt.program, h->error.text);
	return 1;
}

static int
main_flush(RtHost *h, int status)
{
	if ((fflush(stdout) != 0 || ferror(stdout)) && status == 0) {
		rt_fail(&h->error, "cannot write standard output");
		return rt_die(h);
	}
	return status;
}

/* Copies of one training would overwrite each other's checkpoint. */
static int
main_alone(RtHost *h)
{
	RtLaunch l = rt_launch();

	if (h->opt.alone || h->opt.command == RT_C_INFO || l.size <= 1)
		return -1;
	if (l.rank == 0)
		fprintf(stderr,
		        "%s: %s started %d processes, but this program is for one: mantou build --distribute %s makes "
		        "one for several; --alone runs each by itself\n",
		        h->opt.program, l.name, l.size, h->object->device ? "nccl" : "mpi");
	return 2;
}

static int
main_command(RtHost *h, const RtCodeObject *const *objects, int nobjects)
{
	static int (*const commands[RT_C_COUNT])(RtHost *) = {
	        [RT_C_TRAIN] = rt_train,       [RT_C_EVAL] = rt_eval,   [RT_C_INFER] = rt_infer,
	        [RT_C_GENERATE] = rt_generate, [RT_C_BENCH] = rt_bench, [RT_C_INFO] = rt_info,
	};
	int status;

	h->comm = &rt_comm;
	h->ranks = 1;
	const char *of_several = h->opt.exchange        ? "exchange"
	                         : h->opt.no_exchange   ? "no-exchange"
	                         : h->opt.only_exchange ? "only-exchange"
	                         : h->opt.links         ? "links"
	                         : h->opt.silence >= 0  ? "patience"
	                         : h->opt.processes > 0 ? "processes"
	                                                : NULL;

	if (of_several && !h->comm) {
		fprintf(stderr, "%s: --%s is of programs for several processes: mantou build --distribute mpi\n",
		        h->opt.program, of_several);
		return 2;
	}
	if (!rt_host_open(h, objects, nobjects))
		return rt_die(h);
	status = h->comm ? h->comm->open(h) : main_alone(h);
	if (status < 0)
		status = commands[h->opt.command](h);
	if (h->comm)
		h->comm->close(h);
	return status;
}

int
rt_main(int argc, char **argv, const RtCodeObject *const *objects, int nobjects)
{
	RtHost *h = rt_alloc(sizeof *h);
	int status;

	h->start = rt_now();
	h->parent = getppid();
	signal(SIGXFSZ, SIG_IGN);                /* a full quota is an error of write(), not a death */
	status = rt_options_read(&h->opt, argc, argv);
	if (status >= 0)
		return main_flush(h, status);
	status = main_command(h, objects, nobjects);
	if (nobjects && objects[0]->device)
		objects[0]->device->close(h);
	return main_flush(h, status);
}
