#include "cli/commands.h"
#include "base/cleanup.h"
#include "egress/egress.h"
#include "image/builder.h"
#include "image/merge.h"
#include "image/unpack.h"
#include "ingress/front.h"
#include "mcp/process.h"
#include "node/node.h"

#include <signal.h>
#include <stdio.h>
#include <string.h>
#include <sys/prctl.h>

extern char **environ;

/* The processes that serve starts by executing us again; no commands, so not in their table. */
static const struct {
	const char *name;
	int (*main)(int argc, char **argv);
} children[] = {
	{"builder", builder_main},
	{"egress", egress_main},
	{"front", front_main},
	{"merge", merge_main},
	{"node", node_main},
	{"tools", tools_main},
	{"unpack", unpack_main},
};

/* Is help asked for before the words that belong to another program? */
static bool wants_help(int argc, char **argv)
{
	for (int i = 1; i < argc && strcmp(argv[i], "--") != 0; i++)
		if (!strcmp(argv[i], "--help") || !strcmp(argv[i], "-h"))
			return true;
	return false;
}

static int print(struct buf *text, FILE *to)
{
	fputs(buf_cstr(text) ? buf_cstr(text) : "out of memory\n", to);
	return to == stdout ? EXIT_OK : EXIT_USAGE;
}

static bool is_group(const char *word)
{
	size_t n = strlen(word);
	for (size_t i = 0; i < n_commands; i++)
		if (!strncmp(commands[i].name, word, n) && commands[i].name[n] == ' ')
			return true;
	return false;
}

/* A command was named that is none: the commands of its group, or a short word about all of them. */
static int unknown_command(int argc, char **argv)
{
	bool help = wants_help(argc, argv);
	FILE *to = help ? stdout : stderr;
	if (!is_group(argv[1])) {
		fprintf(stderr, "cubicle: there is no command '%s' (see `cubicle --help`)\n", argv[1]);
		return EXIT_USAGE;
	}
	if (argc > 2 && argv[2][0] != '-')
		fprintf(stderr, "cubicle: there is no command '%s %s'\n", argv[1], argv[2]);
	fprintf(to, "Commands of `cubicle %s`:\n", argv[1]);
	for (size_t i = 0; i < n_commands; i++)
		if (!strncmp(commands[i].name, argv[1], strlen(argv[1])) && commands[i].name[strlen(argv[1])] == ' ')
			fprintf(to, "  %-24s %s\n", commands[i].name, commands[i].summary);
	return help ? EXIT_OK : EXIT_USAGE;
}

int main(int argc, char **argv)
{
	cleanup_buf struct buf text = BUF_INIT;
	if (argc < 2 || !strcmp(argv[1], "--help") || !strcmp(argv[1], "-h") || (!strcmp(argv[1], "help") && argc == 2)) {
		command_overview(&text);
		return print(&text, argc < 2 ? stderr : stdout);
	}
	for (size_t i = 0; i < ARRAY_SIZE(children); i++)
		if (!strcmp(argv[1], children[i].name)) {
			char title[16]; /* executed as /proc/self/exe, its name would be "exe" */
			snprintf(title, sizeof(title), "cubicle %s", children[i].name);
			prctl(PR_SET_NAME, title);
			return children[i].main(argc - 1, argv + 1);
		}
	if (!strcmp(argv[1], "--version"))
		argv[1] = (char *)"version";
	int taken;
	const struct command *command = command_find(argc, argv, &taken);
	if (!command)
		return unknown_command(argc, argv);
	if (wants_help(argc, argv)) {
		command_help(&text, command);
		return print(&text, stdout);
	}
	signal(SIGPIPE, SIG_IGN);
	struct cli c;
	struct error err = {0};
	int code;
	if (cli_parse(&c, command, taken, argc, argv, environ, &err) < 0) {
		cli_fail(&c, &err);
		code = command->failure ? command->failure : EXIT_USAGE;
	} else {
		code = command->run(&c);
		if (fflush(stdout) != 0 && code == EXIT_OK) {
			error_errno(&err, -EPIPE, "standard output");
			code = cli_fail(&c, &err);
		}
	}
	cli_done(&c);
	return code;
}
