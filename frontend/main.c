/* main.c: the program mantou: its subcommands, a row each, and what stands before them on the command line.
 *
 * In: argv.   Out: the exit status of a subcommand: 0 good, 1 failed, 2 wrong usage.
 * Data go to stdout, messages to stderr. Refuses: an unknown subcommand, with the nearest name. */
#define _GNU_SOURCE
#include "cmd.h"

#include <errno.h>
#include <fcntl.h>
#ifdef MANTOU_CHECK
#include <malloc.h>
#endif
#include <pthread.h>
#include <signal.h>
#include <string.h>
#include <unistd.h>

const Command commands[] = {
        {"build", C_build, cmd_build, "MODEL.net [-o FILE]", 1, 1,
         .doc = "compile a model to an executable (default: the model file's name without .net)",
         .example = "mantou build models/lenet.net -o lenet && ./lenet train --data models/digits"},
        {"run", C_run, cmd_run, "MODEL.net [-- ARGS]", 1, 1, .takes_rest = true,
         .doc = "build into a cache and execute",
         .example = "mantou run models/lenet.net -- train --data models/digits --epochs 2"},
        {"check", C_check, cmd_check, "MODEL.net", 1, 1,
         .doc = "parse, elaborate, infer shapes; print a line per layer: name, output shape, parameters, FLOPs",
         .example = "mantou check models/resnet50.net --batch 64"},
        {"dump", C_dump, cmd_dump, "MODEL.net", 1, 1, .doc = "print the IR",
         .example = "mantou dump models/lenet.net --stage typed --graph train"},
        {"info", C_info, cmd_info, "MODEL.net | --machine", 0, 1,
         .doc = "print what the executable's info would, from the plan: memory, flops and bytes per kernel, predicted "
                "time",
         .example = "mantou info models/resnet50-cifar10.net --batch 128"},
        {"opt", C_opt, cmd_opt, "FILE.ir --passes A,B,C", 1, 1, .doc = "read textual IR, run passes, print it again",
         .example =
                 "mantou dump models/mlp.net --stage typed -o mlp.ir && mantou opt mlp.ir --passes infer,autodiff,dce"},
        {"explain", C_explain, cmd_explain, "MODEL.net [A [B]]", 1, 3,
         .doc = "what was fused and what was not, rule by rule, and why; A and B are layer names",
         .example = "mantou explain models/resnet50-cifar10.net stem.conv2d0 stem.batch_norm0"},
        {"tune", C_tune, cmd_tune, "MODEL.net | --merge A.tune B.tune -o C.tune", 1, 2,
         .doc = "search kernel parameters by measuring them in the model's own steps, and write MODEL.tune, which "
                "build reads",
         .example = "mantou tune models/lenet.net --budget 1m && mantou build models/lenet.net"},
        {"scale", C_scale, cmd_scale, "MODEL.net [--cluster FILE]", 1, 1,
         .doc = "predict the speed of training with several processes on a described cluster, with an interval",
         .example = "mantou scale models/resnet50.net --shards 32 --processes 1,8,32 --cluster cluster.txt"},
        {"review", C_review, cmd_review, "", 0, 0,
         .doc = "build the models of a list and measure them, one after the other: speed, time a step, what is busy",
         .example = "mantou review --rows 'lenet|mlp' --quick --html review.html"},
        {"ops", C_ops, cmd_ops, "[NAME]", 0, 1,
         .doc = "names of the language: operators, settings, optimizers, readers, ...: arguments, defaults, an example",
         .example = "mantou ops conv2d"},
        {"ref-run", C_ref_run, cmd_ref_run, "FILE.ir [-- ARGS]", 1, 1, .takes_rest = true,
         .doc = "interpret textual IR as its executable would run: what `build --target ref` starts",
         .example = "mantou build models/mlp.net --target ref --emit ir -o mlp.ir && mantou ref-run mlp.ir -- bench "
                    "--synthetic",
         .hidden = true},
        {"manual", C_manual, cmd_manual, "FILE", 1, 1,
         .doc = "a page of the manual, or completion for a shell: mantou.1, mantou-COMMAND.1, mantou-model.1, "
                "mantou.bash, _mantou, mantou.fish",
         .example = "mantou manual mantou.bash >~/.local/share/bash-completion/completions/mantou", .hidden = true},
};
const int ncommands = (int)(sizeof commands / sizeof *commands);

static void
print_help(FILE *f)
{
	fputs("usage: mantou COMMAND [OPTIONS] FILE\n\n"
	      "A compiler for training neural networks: a .net file becomes one executable\n"
	      "that trains, evaluates and infers.\n\ncommands:\n", f);
	for (int i = 0; i < ncommands; i++)
		if (!commands[i].hidden)
			put_help_row(f, 12, commands[i].name, commands[i].doc);
	fputs("\n  --help     this text; mantou COMMAND --help: its options and an example\n"
	      "  --version  the version\n\nexample:\n  mantou run models/lenet.net -- train --data models/digits\n", f);
}

static const Command *
find_command(const char *name)
{
	for (int i = 0; i < ncommands; i++)
		if (!strcmp(commands[i].name, name))
			return &commands[i];
	return NULL;
}

static int
unknown_command(const char *name)
{
	const char *names[16];
	int n = 0;

	for (int i = 0; i < ncommands; i++)
		if (!commands[i].hidden)
			names[n++] = commands[i].name;
	const char *near = suggest(name, names, n);

	fprintf(stderr, "mantou: there is no command '%s'", name);
	if (near)
		fprintf(stderr, "; did you mean '%s'?", near);
	fputs("\nmantou --help lists the commands\n", stderr);
	return EXIT_USAGE;
}

static int
run_command(int argc, char **argv)
{
	if (argc < 2) {
		print_help(stderr);
		return EXIT_USAGE;
	}
	const char *name = argv[1];

	if (!strcmp(name, "--help") || !strcmp(name, "-h") || !strcmp(name, "help")) {
		const Command *c = argc > 2 ? find_command(argv[2]) : NULL;

		if (argc > 2 && !c)
			return unknown_command(argv[2]);
		if (c)
			options_help(stdout, c);
		else
			print_help(stdout);
		return EXIT_GOOD;
	}
	if (!strcmp(name, "--version")) {
		puts("mantou " MANTOU_VERSION);
		return EXIT_GOOD;
	}
	if (name[0] == '-') {
		fprintf(stderr,
		        "mantou: a command comes first, then its options: '%s'\nmantou --help lists the commands\n",
		        name);
		return EXIT_USAGE;
	}
	const Command *c = find_command(name);

	if (!c)
		return unknown_command(name);
	ir_init();
	Arena *a = arena_new();
	Options o;
	int status = options_read(a, c, argc - 2, argv + 2, &o);

	o.program = argv[0];
	if (status < 0)
		status = c->run(a, &o);
	arena_free(a);
	return status;
}

typedef struct Main { int argc; char **argv; int status; } Main;

static void *
run_thread(void *arg)
{
	Main *m = arg;

	m->status = run_command(m->argc, m->argv);
	/* A full disk or a closed pipe shows only now. */
	errno = 0;
	if ((fflush(stdout) || ferror(stdout)) && m->status == EXIT_GOOD)
		m->status = failure("cannot write to stdout%s%s", errno ? ": " : "", errno ? strerror(errno) : "");
	return NULL;
}

/* A stack of our own, whatever `ulimit -s` says: the depth of recursion is bounded by the limits of the language and by
 * LLVM, not by that of a user's shell. Threads that are started later get 8 MiB. Where so much address space is not to
 * be had, half of it may do. */
static int
run_deep(int argc, char **argv)
{
	Main m = {.argc = argc, .argv = argv};
	pthread_attr_t attr;
	pthread_t thread;
	int error;

	pthread_attr_init(&attr);
	if (!pthread_attr_setstacksize(&attr, (size_t)8 << 20))
		pthread_setattr_default_np(&attr);
	for (size_t bytes = (size_t)256 << 20; bytes >= (size_t)1 << 20; bytes /= 2) {
		error = pthread_attr_setstacksize(&attr, bytes);
		if (!error)
			error = pthread_create(&thread, &attr, run_thread, &m);
		if (!error) {
			pthread_join(thread, NULL);
			pthread_attr_destroy(&attr);
			return m.status;
		}
	}
	pthread_attr_destroy(&attr);
	run_thread(&m);
	return m.status;
}

/* Files that are opened later must not take the places of closed stdin, stdout and stderr, where messages would then
 * go. Writing to what stands there fails, as it should. */
static void
hold_standard_files(void)
{
	for (int fd = 0; fd < 3; fd++)
		if (fcntl(fd, F_GETFD) < 0 && errno == EBADF)
			open("/dev/null", fd ? O_RDONLY : O_WRONLY);
}

int
main(int argc, char **argv)
{
#ifdef MANTOU_CHECK
	mallopt(M_TRIM_THRESHOLD, 256 << 20); /* each check takes and frees as much as the one before */
#endif
	hold_standard_files();
	temp_signals();
	signal(SIGXFSZ, SIG_IGN); /* a full quota is an error of write(), here and in the linker, not a death */
	return run_deep(argc, argv);
}
