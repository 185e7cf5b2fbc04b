/* main.c: the program mantou: its subcommands, a row each, and what stands before them on the command line.
 *
 * In: argv.   Out: the exit status of a subcommand: 0 good, 1 failed, 2 wrong usage.
 * Data go to stdout, messages to stderr. Refuses: an unknown subcommand, with the nearest name. */
#include "cmd.h"

#include <signal.h>
#include <string.h>

const Command commands[] = {
	{"build", C_build, cmd_build, "MODEL.net [-o FILE]", 1, 1, .doc = "compile a model to an executable (default: the model file's name without .net)",
	 .example = "mantou build models/lenet.net -o lenet && ./lenet train --data models/digits"},
	{"run", C_run, cmd_run, "MODEL.net [-- ARGS]", 1, 1, .takes_rest = true, .doc = "build into a cache and execute",
	 .example = "mantou run models/lenet.net -- train --data models/digits --epochs 2"},
	{"check", C_check, cmd_check, "MODEL.net", 1, 1, .doc = "parse, elaborate, infer shapes; print a line per layer: name, output shape, parameters, FLOPs",
	 .example = "mantou check models/resnet50.net --batch 64"},
	{"dump", C_dump, cmd_dump, "MODEL.net", 1, 1, .doc = "print the IR", .example = "mantou dump models/lenet.net --stage typed --graph train"},
	{"info", C_info, cmd_info, "MODEL.net", 1, 1, .doc = "print what the executable's info would, from the plan: memory, flops and bytes per kernel, predicted time",
	 .example = "mantou info models/resnet50-cifar10.net --batch 128"},
	{"opt", C_opt, cmd_opt, "FILE.ir --passes A,B,C", 1, 1, .doc = "read textual IR, run passes, print it again",
	 .example = "mantou dump models/mlp.net --stage typed -o mlp.ir && mantou opt mlp.ir --passes infer,autodiff,dce"},
	{"explain", C_explain, cmd_explain, "MODEL.net [A [B]]", 1, 3, .doc = "what was fused and what was not, rule by rule, and why; A and B are layer names",
	 .example = "mantou explain models/resnet50-cifar10.net stem.conv2d0 stem.batch_norm0"},
	{"tune", C_tune, NULL, "MODEL.net", 1, 1, .doc = "search kernel parameters, write them to the tuning file (not built in)", .example = "mantou tune models/lenet.net",
	 .absent = "tuning is not built in: kernels take their parameters from the cost rules (mantou dump --stage selected shows them)"},
	{"ops", C_ops, cmd_ops, "[NAME]", 0, 1, .doc = "operators of the language, with arguments, shapes, gradient, sources", .example = "mantou ops conv2d"},
	{"ref-run", C_ref_run, cmd_ref_run, "FILE.ir [-- ARGS]", 1, 1, .takes_rest = true, .doc = "interpret textual IR as its executable would run: what `build --target ref` starts",
	 .example = "mantou build models/mlp.net --target ref --emit ir -o mlp.ir && mantou ref-run mlp.ir -- bench --synthetic", .hidden = true},
};
const int ncommands = (int)(sizeof commands / sizeof *commands);

static void
print_help(FILE *f)
{
	fputs("usage: mantou COMMAND [OPTIONS] FILE\n\n"
	      "A compiler for training neural networks: a .net file becomes one executable that trains, evaluates and infers.\n\ncommands:\n", f);
	for (int i = 0; i < ncommands; i++)
		if (!commands[i].hidden)
			fprintf(f, "  %-8s  %s\n", commands[i].name, commands[i].doc);
	fputs("\n  --help     this text; mantou COMMAND --help: a command's options and an example\n"
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

int
main(int argc, char **argv)
{
	signal(SIGXFSZ, SIG_IGN); /* a full quota is an error of write(), here and in the linker, not a death */
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
		fprintf(stderr, "mantou: a command comes first, then its options: '%s'\nmantou --help lists the commands\n", name);
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
	/* A full disk or a closed pipe shows only now. */
	if (fflush(stdout) || ferror(stdout)) {
		if (status == EXIT_GOOD)
			status = failure("cannot write to stdout");
	}
	return status;
}
