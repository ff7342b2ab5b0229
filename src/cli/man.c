#include "cli/man.h"
#include "base/cleanup.h"
#include "cli/command.h"
#include "cli/commands.h"

#include <errno.h>
#include <stdio.h>

/* Text of the tables as roff text: no character of it is markup, and `code` is bold. */
static void text(struct buf *to, const char *s)
{
	bool code = false, start = true;
	for (; *s; s++) {
		if (*s == '`') {
			code = !code;
			buf_add_c(to, code ? "\\fB" : "\\fR");
			continue;
		}
		if (start && (*s == '.' || *s == '\''))
			buf_add_c(to, "\\&");
		start = *s == '\n';
		if (*s == '\\')
			buf_add_c(to, "\\e");
		else if (*s == '-')
			buf_add_c(to, "\\-");
		else
			buf_add(to, s, 1);
	}
}

/* A line that macros take as their own: bold parts and plain parts of it. */
static void part(struct buf *to, const char *font, const char *s)
{
	buf_addf(to, "\\f%s", font);
	text(to, s);
	buf_add_c(to, "\\fR");
}

static void tagged_flag(struct buf *to, const struct flag *f)
{
	buf_add_c(to, ".TP\n");
	if (f->letter) {
		char letter[] = {'-', f->letter, 0};
		part(to, "B", letter);
		buf_add_c(to, ", ");
	}
	part(to, "B", "--");
	part(to, "B", f->name);
	if (f->value) {
		buf_add_c(to, " ");
		part(to, "I", f->value);
	}
	buf_add_c(to, "\n");
	text(to, f->doc);
	buf_add_c(to, "\n");
}

static void one_command(struct buf *to, const struct command *k)
{
	buf_add_c(to, ".SS ");
	part(to, "B", "cubicle ");
	part(to, "B", k->name);
	if (*k->arguments) {
		buf_add_c(to, " ");
		part(to, "I", k->arguments);
	}
	buf_add_c(to, "\n");
	text(to, k->summary);
	buf_add_c(to, "\n");
	if (k->details) {
		text(to, k->details);
		buf_add_c(to, "\n");
	}
	for (const struct flag *f = k->flags; f && f->name; f++)
		tagged_flag(to, f);
}

static void one_option(const char *name, const char *value, const char *source, const char *doc, void *arg)
{
	struct buf *to = arg;
	buf_add_c(to, ".TP\n");
	part(to, "B", name);
	if (*value) {
		buf_add_c(to, " = ");
		text(to, value);
	}
	buf_add_c(to, "\n");
	text(to, doc);
	buf_add_c(to, "\n");
}

static void exit_codes(struct buf *to)
{
	buf_addf(to, ".SH EXIT STATUS\n.TP\n0\nDone.\n.TP\n%d\nFailed.\n.TP\n%d\nWrong usage.\n.PP\nCommands that run a command in a sandbox pass on its exit code, "
		"128 + n when signal n ended it; of their own they have:\n.TP\n%d\nCubicle failed, not the command.\n.TP\n%d\nThe sandbox could not start the command.\n",
		EXIT_FAILED, EXIT_USAGE, EXIT_CUBICLE, EXIT_NOT_STARTED);
}

int man_page(struct buf *to)
{
	struct options o;
	int r = options_init(&o);
	if (r < 0)
		return r;
	buf_add_c(to, ".TH CUBICLE 1 \"\" \"Cubicle " CUBICLE_VERSION "\" \"User Commands\"\n.SH NAME\ncubicle \\- a sandbox cloud for AI agents on one machine\n"
		".SH SYNOPSIS\n.B cubicle\n.I COMMAND\n[\\fIFLAGS\\fR] [\\fIARGUMENTS\\fR]\n.SH DESCRIPTION\n");
	text(to, "Turns a Linux machine into a sandbox cloud: programs that speak the E2B protocol make sandboxes, run commands and code in them, and move files.\n");
	buf_add_c(to, ".SH COMMANDS\n");
	for (size_t i = 0; i < n_commands; i++)
		one_command(to, &commands[i]);
	buf_add_c(to, ".SH FLAGS OF EVERY COMMAND\n");
	for (const struct flag *f = common_flags; f->name; f++)
		tagged_flag(to, f);
	buf_add_c(to, ".SH CONFIGURATION\n");
	text(to, "Options come from the configuration file (lines of `name = value`), from the environment (`CUBICLE_` and the name in capitals, with _ for .), "
		"and from flags (`--name=value`); later ones win. Shown are the defaults.\n");
	options_each(&o, one_option, to);
	options_done(&o);
	exit_codes(to);
	return to->failed ? -ENOMEM : 0;
}

int cmd_man(struct cli *c)
{
	cleanup_buf struct buf page = BUF_INIT;
	int r = man_page(&page);
	if (r < 0) {
		struct error err = {0};
		error_errno(&err, r, "manual page");
		return cli_fail(c, &err);
	}
	fwrite(buf_str(&page).p, 1, buf_len(&page), stdout);
	return EXIT_OK;
}
