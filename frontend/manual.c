/* manual.c: pages of the manual and completion for shells, from the tables of options.
 *
 * In: the name of a file, of those that `meson install` puts in place: mantou.1, mantou-COMMAND.1, mantou-model.1 (what
 * executables take), mantou.bash, _mantou (zsh), mantou.fish.   Out: its text on stdout. Pages are for man(7), which
 * every Unix reads: hyphens of options, backslashes, and points that begin a line are written for it. Completion knows
 * commands, the options of each, words that an option takes one of (as its argument names them, a|b|c), and files. */
#include "cmd.h"

#include <ctype.h>
#include <stdlib.h>
#include <string.h>

typedef struct Row { const char *spelling, *argument, *help; unsigned commands; } Row;
static const Row rows[] = {
#define OPT(field, spelling, kind, argument, commands, help) {spelling, argument, help, commands},
#include "options.def"
#undef OPT
};
enum { NROWS = sizeof rows / sizeof *rows };

/* Of executables: commands as letters. */
typedef struct ModelRow { const char *name, *argument, *commands, *help; } ModelRow;
static const ModelRow model_rows[] = {
#define OPT(name, argument, commands, kind, field, help) {name, argument, commands, help},
#include "../runtime/options.def"
#undef OPT
};
enum { NMODEL = sizeof model_rows / sizeof *model_rows };
static const struct { char letter; const char *name, *doc; } model_commands[] = {
        {'t', "train", "train, printing a line per epoch, and save checkpoints"},
        {'e', "eval", "loss and metrics of the test files"},
        {'i', "infer", "outputs of .npy inputs"},
        {'g', "generate", "write with a language model"},
        {'b', "bench", "measure the speed"},
        {'n', "info", "what the program is: sizes, kernels, inputs, outputs"},
};
enum { NMODEL_COMMANDS = sizeof model_commands / sizeof *model_commands };

static bool
is_short(const Row *r)
{
	return !r->spelling[1];
}

static const char *
dashes(const Row *r)
{
	return is_short(r) ? "-" : "--";
}

/* ---------------------------------------------------------------- pages */
/* Text of a page; bold: names as they are typed. */
static void
put_man(const char *text, bool line)
{
	if (line && (*text == '.' || *text == '\''))
		fputs("\\&", stdout);
	for (const char *p = text; *p; p++) {
		if (*p == '-')
			fputs("\\-", stdout);
		else if (*p == '\\')
			fputs("\\e", stdout);
		else if (*p == '"')
			fputs("\\(dq", stdout);
		else
			putchar(*p);
	}
}

static void
man_begin(const char *page, const char *doc)
{
	char upper[64];
	size_t n = 0;

	for (; page[n] && n + 1 < sizeof upper; n++)
		upper[n] = (char)toupper((unsigned char)page[n]);
	upper[n] = 0;
	printf(".TH %s 1 \"\" \"mantou %s\" \"mantou\"\n.SH NAME\n", upper, MANTOU_VERSION);
	put_man(page, true);
	printf(" \\- ");
	put_man(doc, false);
	printf("\n");
}

static void
man_option(const char *before, const char *name, const char *argument, const char *help)
{
	printf(".TP\n\\fB");
	put_man(before, false);
	put_man(name, false);
	printf("\\fR");
	if (argument && *argument) {
		printf(" \\fI");
		put_man(argument, false);
		printf("\\fR");
	}
	printf("\n");
	put_man(help, true);
	printf("\n");
}

static void
man_command(const Command *c)
{
	char page[64];

	snprintf(page, sizeof page, "mantou-%s", c->name);
	man_begin(page, c->doc);
	printf(".SH SYNOPSIS\n\\fBmantou %s\\fR [\\fIOPTIONS\\fR] ", c->name);
	put_man(c->usage, false);
	printf("\n.SH OPTIONS\n");
	for (int i = 0; i < NROWS; i++)
		if (rows[i].commands & c->bit)
			man_option(dashes(&rows[i]), rows[i].spelling, rows[i].argument, rows[i].help);
	man_option("--", "", "",
	           c->takes_rest ? "ends the options; what follows goes to the executable" : "ends the options");
	printf(".SH EXIT STATUS\n0 good, 1 failed, 2 wrong usage.\n.SH EXAMPLE\n.nf\n");
	put_man(c->example, true);
	printf("\n.fi\n.SH SEE ALSO\n.BR mantou (1),\n.BR mantou\\-model (1)\n");
}

static void
man_all(void)
{
	man_begin("mantou", "a compiler for training neural networks");
	printf(".SH SYNOPSIS\n\\fBmantou\\fR \\fICOMMAND\\fR [\\fIOPTIONS\\fR] \\fIFILE\\fR\n.SH DESCRIPTION\n"
	       "A model, a .net file, becomes one executable that trains, evaluates and infers.\n.SH COMMANDS\n");
	for (int i = 0; i < ncommands; i++)
		if (!commands[i].hidden)
			man_option("", commands[i].name, commands[i].usage, commands[i].doc);
	printf(".SH ENVIRONMENT\n");
	man_option("", "CC", "", "the C compiler to link with, with options if need be (default cc)");
	man_option("", "XDG_CACHE_HOME", "", "where run keeps executables (default ~/.cache)");
	man_option("", "NO_COLOR", "", "no colour on terminals");
	printf(".SH EXIT STATUS\n0 good, 1 failed, 2 wrong usage.\n.SH SEE ALSO\n");
	for (int i = 0; i < ncommands; i++)
		if (!commands[i].hidden) {
			printf(".BR ");
			put_man("mantou-", false);
			printf("%s (1),\n", commands[i].name);
		}
	printf(".BR mantou\\-model (1)\n");
}

static void
man_model(void)
{
	man_begin("mantou-model", "the executable that mantou build makes of a model");
	printf(".SH SYNOPSIS\n\\fB./MODEL\\fR \\fICOMMAND\\fR [\\fIOPTIONS\\fR]\n.SH COMMANDS\n");
	for (int i = 0; i < NMODEL_COMMANDS; i++)
		man_option("", model_commands[i].name, "", model_commands[i].doc);
	for (int i = 0; i < NMODEL_COMMANDS; i++) {
		printf(".SH \"OPTIONS OF %s\"\n", model_commands[i].name);
		for (int k = 0; k < NMODEL; k++)
			if (strchr(model_rows[k].commands, model_commands[i].letter))
				man_option("--", model_rows[k].name, model_rows[k].argument, model_rows[k].help);
	}
	printf(".SH EXIT STATUS\n0 good, 1 failed, 2 wrong usage, 128 and its number after a signal.\n.SH SEE ALSO\n"
	       ".BR mantou (1)\n");
}

/* ---------------------------------------------------------------- completion */
/* The words that an argument is one of, with blanks between: "cpu|cuda|ref"; "" of others. */
static void
put_words(const char *argument)
{
	bool words = strchr(argument, '|') != NULL;

	for (const char *p = argument; words && *p; p++)
		words = islower((unsigned char)*p) || isdigit((unsigned char)*p) || strchr("|-", *p);
	for (const char *p = argument; words && *p; p++)
		putchar(*p == '|' ? ' ' : *p);
}

/* Of a command, with blanks between. */
static void
put_options(const Command *c)
{
	for (int i = 0; i < NROWS; i++)
		if (rows[i].commands & c->bit)
			printf(" %s%s", dashes(&rows[i]), rows[i].spelling);
}

static void
put_commands(void)
{
	for (int i = 0; i < ncommands; i++)
		if (!commands[i].hidden)
			printf(" %s", commands[i].name);
}

static void
completion_bash(void)
{
	printf("# Completion of mantou for bash.\n_mantou()\n{\n\tlocal cur=${COMP_WORDS[COMP_CWORD]} "
	       "prev=${COMP_WORDS[COMP_CWORD-1]} options=\n\tCOMPREPLY=()\n"
	       "\tif [ \"$COMP_CWORD\" = 1 ]; then\n\t\tCOMPREPLY=($(compgen -W \"");
	put_commands();
	printf(" --help --version\" -- \"$cur\"))\n\t\treturn\n\tfi\n\tcase $prev in\n");
	for (int i = 0; i < NROWS; i++)
		if (strchr(rows[i].argument, '|')) {
			printf("\t%s%s) COMPREPLY=($(compgen -W \"", dashes(&rows[i]), rows[i].spelling);
			put_words(rows[i].argument);
			printf("\" -- \"$cur\")); [ ${#COMPREPLY[@]} = 0 ] || return ;;\n");
		}
	printf("\tesac\n\tcase ${COMP_WORDS[1]} in\n");
	for (int i = 0; i < ncommands; i++)
		if (!commands[i].hidden) {
			printf("\t%s) options=\"", commands[i].name);
			put_options(&commands[i]);
			printf("\" ;;\n");
		}
	printf("\tesac\n\tcase $cur in\n\t-*) COMPREPLY=($(compgen -W \"$options\" -- \"$cur\")) ;;\n"
	       "\t*) COMPREPLY=($(compgen -f -- \"$cur\")) ;;\n\tesac\n}\ncomplete -o filenames -F _mantou mantou\n");
}

/* In single quotes; : and brackets mean something to zsh's _arguments. */
static void
put_quoted(const char *text, const char *escape)
{
	for (const char *p = text; *p; p++) {
		if (*p == '\'')
			fputs("'\\''", stdout);
		else if (strchr(escape, *p))
			printf("\\%c", *p);
		else
			putchar(*p);
	}
}

static void
completion_zsh(void)
{
	printf("#compdef mantou\n# Completion of mantou for zsh.\nlocal -a commands\ncommands=(\n");
	for (int i = 0; i < ncommands; i++)
		if (!commands[i].hidden) {
			printf("\t'%s:", commands[i].name);
			put_quoted(commands[i].doc, ":\\");
			printf("'\n");
		}
	printf(")\nif (( CURRENT == 2 )); then\n\t_describe command commands\n\treturn\nfi\ncase $words[2] in\n");
	for (int i = 0; i < ncommands; i++) {
		if (commands[i].hidden)
			continue;
		printf("%s) shift words; (( CURRENT-- )); _arguments '*:file:_files'", commands[i].name);
		for (int k = 0; k < NROWS; k++) {
			const Row *r = &rows[k];

			if (!(r->commands & commands[i].bit))
				continue;
			printf(" \\\n\t'%s%s[", dashes(r), r->spelling);
			put_quoted(r->help, ":[]\\");
			printf("]");
			if (*r->argument) {
				printf(":");
				put_quoted(r->argument, ":[]\\");
				printf(strchr(r->argument, '|') ? ":(" : ":_files");
				if (strchr(r->argument, '|')) {
					put_words(r->argument);
					printf(")");
				}
			}
			printf("'");
		}
		printf(" ;;\n");
	}
	printf("esac\n");
}

static void
completion_fish(void)
{
	printf("# Completion of mantou for fish.\n");
	for (int i = 0; i < ncommands; i++) {
		if (commands[i].hidden)
			continue;
		printf("complete -c mantou -n __fish_use_subcommand -a %s -d '", commands[i].name);
		put_quoted(commands[i].doc, "\\");
		printf("'\n");
		for (int k = 0; k < NROWS; k++) {
			const Row *r = &rows[k];

			if (!(r->commands & commands[i].bit))
				continue;
			printf("complete -c mantou -n '__fish_seen_subcommand_from %s' %s %s", commands[i].name,
			       is_short(r) ? "-s" : "-l", r->spelling);
			if (*r->argument) {
				printf(" -r");
				if (strchr(r->argument, '|')) {
					printf(" -a '");
					put_words(r->argument);
					printf("'");
				}
			}
			printf(" -d '");
			put_quoted(r->help, "\\");
			printf("'\n");
		}
	}
}

int
cmd_manual(Arena *a, const Options *o)
{
	const char *file = o->operand[0];
	size_t n = strlen(file);

	(void)a;
	if (!strcmp(file, "mantou.1"))
		man_all();
	else if (!strcmp(file, "mantou-model.1"))
		man_model();
	else if (!strcmp(file, "mantou.bash"))
		completion_bash();
	else if (!strcmp(file, "_mantou"))
		completion_zsh();
	else if (!strcmp(file, "mantou.fish"))
		completion_fish();
	else {
		for (int i = 0; i < ncommands; i++) {
			const Command *c = &commands[i];

			if (!c->hidden && n == strlen(c->name) + 9 && !strncmp(file, "mantou-", 7) &&
			    !strncmp(file + 7, c->name, n - 9) && !strcmp(file + n - 2, ".1")) {
				man_command(c);
				return EXIT_GOOD;
			}
		}
		return failure("there is no page '%s'; there are mantou.1, mantou-COMMAND.1, mantou-model.1, "
		               "mantou.bash, _mantou and mantou.fish", file);
	}
	return EXIT_GOOD;
}
