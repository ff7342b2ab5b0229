/*
 * The one table of commands: parsing, help and documentation come from it.
 *
 * A command line is: cubicle COMMAND [flags and words in any order] [-- words taken as they are]. Every configuration option
 * (config/options.h) is a flag of every command; --json, --help and --team too.
 */
#ifndef CUBICLE_CLI_COMMAND_H
#define CUBICLE_CLI_COMMAND_H

#include "base/buf.h"
#include "base/error.h"
#include "config/options.h"

#include <stdbool.h>
#include <stddef.h>

enum { CLI_MAX_FLAGS = 32, CLI_MAX_WORDS = 64 };

/* Exit codes. run, exec and shell pass on the command's own (128 + signal when one ended it) and keep the last three for themselves. */
enum {
	EXIT_OK = 0,
	EXIT_FAILED = 1,
	EXIT_USAGE = 2,
	EXIT_CUBICLE = 125,     /* run, exec, shell: cubicle failed, not the command */
	EXIT_NOT_STARTED = 126, /* run, exec, shell: the sandbox could not start the command */
};

enum flag_kind {
	FLAG_SWITCH, /* --name */
	FLAG_TEXT,   /* --name VALUE, the last one counts */
	FLAG_NUMBER, /* --name N, within min and max */
	FLAG_PAIR,   /* --name KEY=VALUE, repeatable; KEY alone takes the value from our environment */
};

struct flag {
	const char *name; /* without the dashes */
	char letter;      /* -x, or 0 */
	enum flag_kind kind;
	const char *value; /* what help calls the value */
	const char *doc;
	int64_t min, max; /* FLAG_NUMBER */
};

struct cli;

struct command {
	const char *name;      /* "sandbox list" */
	const char *arguments; /* "SANDBOX -- COMMAND [ARGUMENT...]" */
	const char *summary;   /* one line */
	const char *details;   /* paragraphs for its own help, or NULL */
	const struct flag *flags; /* ended by a flag without name; NULL = none */
	unsigned min, max;     /* words before "--" */
	enum { REST_NONE, REST_OPTIONAL, REST_REQUIRED } rest; /* words after "--" */
	int failure; /* exit code of its own failures, usage included; 0 = EXIT_FAILED and EXIT_USAGE */
	/* Returns the exit code. A command that failed says why with cli_fail(). */
	int (*run)(struct cli *c);
	bool local; /* acts for no team: --team is refused */
};

struct cli {
	const struct command *command;
	struct options options;
	bool json;
	const char *team; /* to act for, NULL = the caller's */
	const char *words[CLI_MAX_WORDS + 1];
	size_t n_words;
	char *const *rest; /* after "--", NULL-terminated; NULL when there was none */
	struct cli_value {
		const char *text;
		int64_t number;
		bool set;
	} values[CLI_MAX_FLAGS];
	struct cli_pair {
		const struct flag *flag;
		struct str key, value;
	} *pairs; /* in order; owned */
	size_t n_pairs;
};

/* --json, --help, --config and --team, which every command takes (--team: but the local ones); ended by a flag without name. They are no part of a command's values. */
extern const struct flag common_flags[];

/* All commands, in the order of help. */
extern const struct command commands[];
extern const size_t n_commands;

/* The command that the first words of argv (from 1) name, and how many words that took; NULL when none does. */
const struct command *command_find(int argc, char **argv, int *ret_taken);

/* Parses argv (whole, as main got it; reordered) for a command found by command_find(): configuration, flags, words. 0 or -EINVAL with *err. */
int cli_parse(struct cli *c, const struct command *command, int taken, int argc, char **argv, char **environ, struct error *err);
void cli_done(struct cli *c);

/* The value of a flag of the command by name; never NULL (asking for one that the command has not is a bug and aborts). */
const struct cli_value *cli_flag(const struct cli *c, const char *name);

/* Appends the help of one command, or of all of them (an overview). */
void command_help(struct buf *to, const struct command *command);
void command_overview(struct buf *to);

/* Says "cubicle: <message>" on standard error, or {"error":…} with --json, and returns the command's failure code. */
int cli_fail(const struct cli *c, const struct error *err);

#endif
