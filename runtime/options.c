/* options.c: the command line of an executable, from the table options.def.
 *
 * GNU conventions: --name VALUE or --name=VALUE, `--` ends options, --help and --version on stdout with status 0, wrong
 * usage on stderr with status 2 and a suggestion for a misspelt name. */
#include "host.h"

#include <errno.h>
#include <stddef.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

typedef enum OptKind {
	OPT_TEXT, OPT_COUNT, OPT_POSITIVE, OPT_WARMUP, OPT_BENCH, OPT_REPEAT, OPT_THREADS, OPT_READERS, OPT_SEED,
	OPT_SINK, OPT_NAMED, OPT_SET, OPT_PROFILE, OPT_FLAG, OPT_BEAM, OPT_REAL, OPT_SHARE, OPT_INTERVAL, OPT_KINDS,
} OptKind;
typedef struct OptRow { const char *name, *arg, *commands; OptKind kind; size_t field; const char *help; } OptRow;

static const OptRow option_rows[] = {
#define OPT(name, arg, commands, kind, field, help) {name, arg, commands, OPT_##kind, offsetof(RtOptions, field), help},
#include "options.def"
#undef OPT
};

/* Numbers from low to high. Measurements are few enough that all steps together are RT_MAX_STEPS at most. */
static const struct { int64_t low, high;
} option_range[OPT_KINDS] = {
        [OPT_COUNT] = {0, RT_MAX_STEPS},     [OPT_POSITIVE] = {1, RT_MAX_STEPS},
        [OPT_SINK] = {1, RT_MAX_STEPS},      [OPT_WARMUP] = {0, 1000000000},
        [OPT_BENCH] = {1, 1000000000},       [OPT_REPEAT] = {1, 100000},
        [OPT_THREADS] = {1, RT_MAX_THREADS}, [OPT_READERS] = {1, RT_MAX_THREADS},
        [OPT_SEED] = {INT64_MIN, INT64_MAX}, [OPT_BEAM] = {1, 1024},
};

static const struct {
	const char *name;
	char letter;
	const char *doc, *usage, *example;
} option_commands[RT_C_COUNT] = {
        [RT_C_TRAIN] = {"train", 't', "train, printing a line per epoch, and save checkpoints",
                        "[--data DIR] [options]",
                        "%s train --data data --epochs 2 --save run.safetensors --log run.jsonl"},
        [RT_C_EVAL] = {"eval", 'e', "loss and metrics of the test files", "--data DIR --weights FILE",
                       "%s eval --data data --weights run.safetensors --json"},
        [RT_C_INFER] = {"infer", 'i', "outputs of .npy inputs",
                        "--weights FILE --input NAME=FILE.npy ... --output NAME=FILE.npy ...",
                        "%s infer --weights run.safetensors --input image=x.npy --output logits=y.npy"},
        [RT_C_GENERATE] = {"generate", 'g', "write with a language model, as its section generate says",
                           "--weights FILE [--prompt TEXT | --input NAME=FILE.npy ...] [options]",
                           "%s generate --weights run.safetensors --prompt \"Once\" --length 100 --temperature 0.8"},
        [RT_C_BENCH] = {"bench", 'b', "measure the speed: 20 warm-up batches, 100 measured, three times",
                        "[--synthetic] [options]", "%s bench --steps 100 --profile"},
        [RT_C_INFO] = {"info", 'n', "what this program is: sizes, kernels, inputs, outputs", "[--json]",
                       "%s info --json"},
};

/* The words of text from column `indent` on, where the line stands already, in lines of 80 columns; where one is broken
 * it ends in `broken`. Then a line's end. */
static void
options_wrap(int column, int indent, const char *text, const char *broken)
{
	int start = column, room = 80 - (int)strlen(broken);

	while (*text) {
		int word = (int)strcspn(text, " ");

		if (column > start && column + 1 + word > room) {
			printf("%s\n%*s", broken, indent, "");
			column = start = indent;
		}
		column += printf("%s%.*s", column > start ? " " : "", word, text);
		text += word;
		text += strspn(text, " ");
	}
	printf("\n");
}

static void
options_example(const RtOptions *o, RtCommand c, const char *before)
{
	char *text = rt_printf(option_commands[c].example, o->program);

	options_wrap(printf("%s", before), 4, text, " \\");
	free(text);
}

static void
options_help_command(const RtOptions *o, RtCommand c)
{
	char *usage = rt_printf("%s %s %s", o->program, option_commands[c].name, option_commands[c].usage);

	options_wrap(printf("usage: "), 7, usage, "");
	free(usage);
	printf("%s\n\n", option_commands[c].doc);
	for (int i = 0; i < RT_COUNT(option_rows); i++) {
		const OptRow *r = &option_rows[i];
		char left[64];

		if (!strchr(r->commands, option_commands[c].letter))
			continue;
		snprintf(left, sizeof left,
		         r->kind == OPT_PROFILE ? "--%s[=%s]"
		         : r->arg               ? "--%s %s"
		                                : "--%s",
		         r->name, r->arg);
		options_wrap(printf("  %-22s ", left), 25, r->help, "");
	}
	printf("  %-22s %s\n  %-22s %s\n\n", "--help", "print this", "--version", "print the version");
	options_example(o, c, "example: ");
}

static void
options_help(const RtOptions *o)
{
	printf("usage: %s COMMAND [options]\n\n", o->program);
	for (int c = 0; c < RT_C_COUNT; c++)
		printf("  %-8s %s\n", option_commands[c].name, option_commands[c].doc);
	printf("\n%s COMMAND --help lists the command's options. Examples:\n", o->program);
	for (int c = 0; c < RT_C_COUNT; c++)
		options_example(o, (RtCommand)c, "  ");
}

static int
options_wrong(const RtOptions *o, const char *fmt, const char *a, const char *b)
{
	fprintf(stderr, "%s: ", o->program);
	fprintf(stderr, fmt, a, b);
	fprintf(stderr, "\n`%s --help` lists commands and options\n", o->program);
	return 2;
}

/* A whole number in the option's range, without space or sign but '-'. */
static bool
options_number(const OptRow *r, const char *text, int64_t *out)
{
	char *end;

	errno = 0;
	*out = strtoll(text, &end, 10);
	return *text && !*end && !errno && (text[0] == '-' || (text[0] >= '0' && text[0] <= '9'))
	       && *out >= option_range[r->kind].low && *out <= option_range[r->kind].high;
}

static int
options_range(const RtOptions *o, const OptRow *r, const char *words, const char *value)
{
	char *wants = rt_printf("--%s wants %sa number from %lld to %lld", r->name, words,
	                        (long long)option_range[r->kind].low, (long long)option_range[r->kind].high);
	int status = options_wrong(o, "%s, not '%s'", wants, value);

	free(wants);
	return status;
}

static int
options_named(RtOptions *o, const OptRow *r, const char *value)
{
	bool input = strcmp(r->name, "input") == 0;
	RtNamed **list = input ? &o->input : &o->output;
	int *n = input ? &o->ninput : &o->noutput;
	const char *equals = strchr(value, '=');

	if (!equals || equals == value || !equals[1])
		return options_wrong(o, "--%s wants NAME=FILE.npy, not '%s'", r->name, value);
	if (!*list)                              /* arguments are few enough */
		*list = rt_alloc(sizeof **list * (size_t)o->nargument);
	(*list)[*n].name = rt_printf("%.*s", (int)(equals - value), value);
	(*list)[(*n)++].file = equals + 1;
	return -1;
}

/* Sets one option; -1 or an exit status. */
static int
options_set(RtOptions *o, const OptRow *r, const char *value)
{
	void *field = (char *)o + r->field;
	int64_t n = 0;

	switch (r->kind) {
	case OPT_FLAG:
		*(bool *)field = true;
		return -1;
	case OPT_TEXT:
		if (!*value)
			return options_wrong(o, "--%s wants %s", r->name, r->arg);
		*(const char **)field = value;
		return -1;
	case OPT_PROFILE:
		o->profiling = true;
		o->top = value && strcmp(value, "top") == 0;
		*(const char **)field = o->top ? NULL : value;
		return -1;
	case OPT_NAMED:
		return options_named(o, r, value);
	case OPT_SET:
		if (!strchr(value, '=') || *value == '=')
			return options_wrong(o, "--%s wants NAME=X, not '%s'", r->name, value);
		if (o->nset == RT_MAX_SETTINGS)
			return options_wrong(o, "too many --%s%s", r->name, "");
		o->set[o->nset++] = value;
		return -1;
	case OPT_INTERVAL: {
		char *end;
		double x = strtod(value, &end);

		if (end == value || *end || !(x >= 0.01 && x <= 86400))
			return options_wrong(o, "--%s wants seconds, 0.01 to 86400, not '%s'", r->name, value);
		*(double *)field = x;
		return -1;
	}
	case OPT_REAL: case OPT_SHARE: {
		char *end;
		double x = strtod(value, &end), high = r->kind == OPT_SHARE ? 1 : 1000;

		if (end == value || *end || !(x >= 0 && x <= high) || (r->kind == OPT_SHARE && x == 0))
			return options_wrong(o, "--%s wants a number %s", r->name,
			                     r->kind == OPT_SHARE ? "above 0, 1 at most" : "from 0 to 1000");
		*(double *)field = x;
		return -1;
	}
	case OPT_SINK:
		n = strcmp(value, "epoch") == 0 ? -1 : 0;
		if (n == 0 && strcmp(value, "off") != 0 && !options_number(r, value, &n))
			return options_range(o, r, "epoch, off or ", value);
		break;
	default:
		if (!options_number(r, value, &n))
			return options_range(o, r, "", value);
		o->has_seed = o->has_seed || r->kind == OPT_SEED;
		break;
	}
	*(int64_t *)field = n;
	return -1;
}

static const OptRow *
options_find(const char *name, size_t n, char letter)
{
	for (int i = 0; i < RT_COUNT(option_rows); i++)
		if (strlen(option_rows[i].name) == n && memcmp(option_rows[i].name, name, n) == 0 &&
		    strchr(option_rows[i].commands, letter))
			return &option_rows[i];
	return NULL;
}

/* What other programs call an option: its name here, or what to do. */
static const struct { const char *name, *here; } option_aliases[] = {
        {"lr", "did you mean --rate?"},
        {"learning-rate", "did you mean --rate?"},
        {"learning_rate", "did you mean --rate?"},
        {"max-steps", "did you mean --steps?"},
        {"num-epochs", "did you mean --epochs?"},
        {"workers", "did you mean --readers?"},
        {"num-workers", "did you mean --readers?"},
        {"checkpoint", "did you mean --weights, --resume or --save?"},
        {"load", "did you mean --weights or --resume?"},
        {"out", "did you mean --save?"},
        {"verbose", "progress is printed unless --quiet"},
        {"batch", "the batch is fixed when building: mantou build --batch N"},
        {"batch-size", "the batch is fixed when building: mantou build --batch N"},
        {"batch_size", "the batch is fixed when building: mantou build --batch N"},
        {"precision", "precision is fixed when building: mantou build --precision"},
        {"device", "the target is fixed when building: mantou build --target cpu or cuda"},
        {"gpu", "the target is fixed when building: mantou build --target cuda"},
        {"weight-decay", "--set optimizer.weight_decay=X sets it"},
        {"wd", "--set optimizer.weight_decay=X sets it"},
        {"momentum", "--set optimizer.momentum=X sets it"},
};

static int
options_unknown(const RtOptions *o, const char *name, size_t n)
{
	char wrong[128];
	const char *names[RT_COUNT(option_rows)], *near;
	int count = 0;

	snprintf(wrong, sizeof wrong, "%.*s", (int)n, name);
	for (int i = 0; i < RT_COUNT(option_rows); i++)
		if (strchr(option_rows[i].commands, option_commands[o->command].letter))
			names[count++] = option_rows[i].name;
	for (int i = 0; i < RT_COUNT(option_aliases); i++)
		if (strcmp(option_aliases[i].name, wrong) == 0)
			return options_wrong(o, "unknown option --%s; %s", wrong, option_aliases[i].here);
	near = rt_suggest(wrong, names, count);
	if (near)
		return options_wrong(o, "unknown option --%s; did you mean --%s?", wrong, near);
	for (int i = 0; i < RT_COUNT(option_rows); i++)
		if (strcmp(option_rows[i].name, wrong) == 0)
			return options_wrong(o, "--%s is no option of %s", wrong, option_commands[o->command].name);
	return options_wrong(o, "unknown option --%s%s", wrong, "");
}

static int
options_combinations(const RtOptions *o)
{
	if (o->epochs >= 0 && o->steps >= 0)
		return options_wrong(o, "--epochs and --steps%s%s", " exclude each other", "");
	if (o->save && o->no_save)
		return options_wrong(o, "--save and --no-save%s%s", " exclude each other", "");
	if (o->overwrite && o->no_save)
		return options_wrong(o, "--overwrite and --no-save%s%s", " exclude each other", "");
	if (o->weights && o->resume)
		return options_wrong(o, "--weights and --resume%s%s", " exclude each other", "");
	if (o->data && o->synthetic)
		return options_wrong(o, "--data and --synthetic%s%s", " exclude each other", "");
	if (o->names && !o->weights)
		return options_wrong(o, "--names%s%s", " goes with --weights", "");
	if (o->partial && !o->weights)
		return options_wrong(o, "--partial%s%s", " goes with --weights", "");
	if (o->goes_on && o->resume)
		return options_wrong(o, "--continue and --resume%s%s", " exclude each other", "");
	if (o->goes_on && o->no_save)
		return options_wrong(o, "--continue and --no-save%s%s", " exclude each other", "");
	if (o->replan && !o->resume && !o->goes_on)
		return options_wrong(o, "--replan%s%s", " goes with --resume or --continue", "");
	if (o->exchange && strcmp(o->exchange, "tree") != 0 && strcmp(o->exchange, "messages") != 0 &&
	    strcmp(o->exchange, "library") != 0)
		return options_wrong(o, "--exchange wants tree, messages or library, not '%s'%s", o->exchange, "");
	if (o->exchange && o->no_exchange)
		return options_wrong(o, "--exchange and --no-exchange%s%s", " exclude each other", "");
	if (o->only_exchange + o->links + o->no_exchange > 1)
		return options_wrong(o, "--only-exchange, --links and --no-exchange%s%s", " exclude each other", "");
	if ((o->only_exchange || o->links) && (o->mode || o->profiling || o->reader))
		return options_wrong(o, "--only-exchange and --links%s%s",
		                     " time no steps: without --mode, --profile, --reader", "");
	if (o->keep && strcmp(o->keep, "best") != 0)
		return options_wrong(o, "--keep wants best, not '%s'%s", o->keep, "");
	if (o->keep && o->no_save)
		return options_wrong(o, "--keep and --no-save%s%s", " exclude each other", "");
	if ((o->keep || o->patience) && o->no_eval)
		return options_wrong(o, "--no-eval leaves out what %s judges%s",
		                     o->keep ? "--keep best" : "--stop-after-worse", "");
	if (o->by && !o->keep && !o->patience)
		return options_wrong(o, "--by%s%s", " goes with --keep best or --stop-after-worse", "");
	if (o->watch_every && !o->watch)
		return options_wrong(o, "--watch-every%s%s", " goes with --watch", "");
	if (o->mode && strcmp(o->mode, "train") != 0 && strcmp(o->mode, "eval") != 0 &&
	    strcmp(o->mode, "infer") != 0 && strcmp(o->mode, "generate") != 0)
		return options_wrong(o, "--mode wants train, eval, infer or generate, not '%s'%s", o->mode, "");
	bool writes = o->command == RT_C_GENERATE || (o->mode && !strcmp(o->mode, "generate"));

	if (!writes && (o->length > 0 || o->samples > 0 || o->beam > 1))
		return options_wrong(o, "%s goes with --mode generate%s",
		                     o->length > 0    ? "--length"
		                     : o->samples > 0 ? "--samples"
		                                      : "--beam", "");
	if (o->reader && (o->mode || o->synthetic || o->profiling))
		return options_wrong(o, "--reader and %s exclude each other%s",
		                     o->mode        ? "--mode"
		                     : o->synthetic ? "--synthetic"
		                                    : "--profile", "");
	if (o->profiling && o->mode && !strcmp(o->mode, "generate"))
		return options_wrong(o, "--profile is of --mode train, eval and infer%s%s", "", "");
	if (o->command == RT_C_EVAL && !o->data && !o->synthetic)
		return options_wrong(o, "eval wants --data DIR%s%s", " (--data . is this folder)", "");
	if ((o->command == RT_C_EVAL || o->command == RT_C_INFER || o->command == RT_C_GENERATE) && !o->weights)
		return options_wrong(o, "%s wants --weights FILE%s", option_commands[o->command].name, "");
	if (o->command == RT_C_INFER && o->data && o->ninput)
		return options_wrong(o, "--data and --input%s%s", " exclude each other", "");
	if (o->beam > 1 && o->temperature > 0)
		return options_wrong(o, "--beam and --temperature%s%s", " exclude each other", "");
	if ((o->top_k > 0 || o->top_p < 1) && o->temperature <= 0)
		return options_wrong(o, "%s%s", o->top_k > 0 ? "--top-k" : "--top-p", " goes with --temperature");
	if (o->length_penalty > 0 && o->beam <= 1)
		return options_wrong(o, "--length-penalty%s%s", " goes with --beam", "");
	if (o->command == RT_C_INFER && !o->noutput)
		return options_wrong(o, "infer wants --output NAME=FILE.npy%s%s", "", "");
	return -1;
}

static int
options_command(RtOptions *o, const char *name)
{
	const char *names[RT_C_COUNT], *near;

	for (int c = 0; c < RT_C_COUNT; c++) {
		names[c] = option_commands[c].name;
		if (strcmp(name, names[c]) == 0) {
			o->command = (RtCommand)c;
			return -1;
		}
	}
	near = rt_suggest(name, names, RT_C_COUNT);
	return near ? options_wrong(o, "unknown command '%s'; did you mean %s?", name, near)
	            : options_wrong(o, "unknown command '%s'; there are train, eval, infer, generate, bench and info%s",
	                            name, "");
}

/* One argument of the command, and its value; -1 or an exit status. */
static int
options_argument(RtOptions *o, int argc, char **argv, int *i)
{
	const char *arg = argv[*i], *equals = strchr(arg, '=');
	size_t n = equals ? (size_t)(equals - arg) : strlen(arg);
	const OptRow *r;

	if (strcmp(arg, "--help") == 0 || strcmp(arg, "-h") == 0) {
		options_help_command(o, o->command);
		return 0;
	}
	if (arg[0] != '-' || arg[1] != '-')
		return options_wrong(o, "unexpected argument '%s' of %s", arg, option_commands[o->command].name);
	r = options_find(arg + 2, n - 2, option_commands[o->command].letter);
	if (!r)
		return options_unknown(o, arg + 2, n - 2);
	if (r->kind == OPT_FLAG)
		return equals ? options_wrong(o, "--%s takes no value%s", r->name, "") : options_set(o, r, "");
	if (equals)
		return options_set(o, r, equals + 1);
	if (r->kind == OPT_PROFILE)              /* its value is optional */
		return options_set(o, r, *i + 1 < argc && argv[*i + 1][0] != '-' ? argv[++*i] : NULL);
	if (*i + 1 >= argc)
		return options_wrong(o, "--%s wants %s", r->name, r->arg);
	return options_set(o, r, argv[++*i]);
}

int
rt_options_read(RtOptions *o, int argc, char **argv)
{
	int status;

	*o = (RtOptions){.program = argc > 0 && *argv[0] ? rt_basename(argv[0]) : "model",
	                 .nargument = argc,
	                 .length = -1,
	                 .top_k = -1,
	                 .top_p = 1,
	                 .beam = 1,
	                 .samples = -1,
	                 .interval = 5,
	                 .epochs = -1,
	                 .steps = -1,
	                 .stop = -1,
	                 .readers = -1,
	                 .silence = -1,
	                 .sink = -2,
	                 .warmup = 20,
	                 .bench_steps = 100,
	                 .repeat = 3};
	if (argc < 2) {
		fprintf(stderr, "usage: %s train|eval|infer|generate|bench|info [options]; `%s --help` says more\n",
		        o->program, o->program);
		return 2;
	}
	if (strcmp(argv[1], "--help") == 0 || strcmp(argv[1], "-h") == 0) {
		options_help(o);
		return 0;
	}
	if (strcmp(argv[1], "--version") == 0) {
		printf("%s (%s)\n", o->program, RT_NAME);
		return 0;
	}
	status = options_command(o, argv[1]);
	for (int i = 2; status < 0 && i < argc; i++) {
		if (strcmp(argv[i], "--version") == 0) {
			printf("%s (%s)\n", o->program, RT_NAME);
			return 0;
		}
		if (strcmp(argv[i], "--") == 0)
			return i + 1 < argc ? options_wrong(o, "unexpected argument '%s' of %s", argv[i + 1],
			                                    option_commands[o->command].name)
			                    : options_combinations(o);
		status = options_argument(o, argc, argv, &i);
	}
	return status < 0 ? options_combinations(o) : status;
}
