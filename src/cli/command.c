#include "cli/command.h"
#include "base/cleanup.h"
#include "base/log.h"

#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

const struct flag common_flags[] = {
	{"json", 0, FLAG_SWITCH, NULL, "Write JSON for programs.", 0, 0},
	{"help", 'h', FLAG_SWITCH, NULL, "Show this.", 0, 0},
	{"config", 0, FLAG_TEXT, "FILE", "Configuration file (default /etc/cubicle/cubicle.conf).", 0, 0},
	{"team", 0, FLAG_TEXT, "TEAM", "As root on the server's machine: act for the team of this name or id (default: `default`).", 0, 0},
	{0},
};

static bool name_matches(const char *name, int argc, char **argv, int *ret_words)
{
	int words = 0;
	struct str rest = str_of(name), word;
	while (rest.n) {
		struct str tail = str_n("", 0);
		if (!str_cut(rest, ' ', &word, &tail))
			word = rest;
		if (1 + words >= argc || !str_is(word, argv[1 + words]))
			return false;
		words++;
		rest = tail;
	}
	*ret_words = words;
	return true;
}

const struct command *command_find(int argc, char **argv, int *ret_taken)
{
	for (size_t i = 0; i < n_commands; i++)
		if (name_matches(commands[i].name, argc, argv, ret_taken))
			return &commands[i];
	return NULL;
}

static size_t count_flags(const struct command *command)
{
	size_t n = 0;
	while (command->flags && command->flags[n].name)
		n++;
	return n;
}

/* The flag a word names ("--name", "--name=value", "-x"), its inline value in *ret_value (p == NULL: none). */
static const struct flag *match_flag(const struct command *command, const char *word, struct str *ret_value)
{
	struct str name = str_of(word), value = str_n(NULL, 0);
	if (str_starts(name, STR("--")))
		str_cut(name, '=', &name, &value);
	for (size_t i = 0; i < count_flags(command); i++) {
		const struct flag *f = &command->flags[i];
		bool by_letter = f->letter && word[0] == '-' && word[1] == f->letter && !word[2];
		bool by_name = str_starts(name, STR("--")) && str_is(str_from(name, 2), f->name);
		if (by_letter || by_name) {
			*ret_value = value;
			return f;
		}
	}
	return NULL;
}

static int take_number(const struct flag *f, const char *text, struct cli_value *to, struct error *err)
{
	if (str_to_i64(str_of(text), &to->number) < 0 || to->number < f->min || to->number > f->max)
		return error_set(err, -EINVAL, 400, "--%s: '%s' is no number from %lld to %lld", f->name, text, (long long)f->min,
			(long long)f->max);
	return 0;
}

static int take_pair(struct cli *c, const struct flag *f, const char *text, struct error *err)
{
	struct str key = str_of(text), value;
	if (!str_cut(str_of(text), '=', &key, &value)) {
		const char *own = getenv(text);
		if (!own)
			return error_set(err, -EINVAL, 400, "--%s: '%s' has no '=' and is no variable of this environment", f->name, text);
		value = str_of(own);
	}
	if (!key.n)
		return error_set(err, -EINVAL, 400, "--%s: '%s' has no key before '='", f->name, text);
	void *more = realloc(c->pairs, (c->n_pairs + 1) * sizeof(*c->pairs));
	if (!more)
		return error_errno(err, -ENOMEM, "--%s", f->name);
	c->pairs = more;
	c->pairs[c->n_pairs++] = (struct cli_pair){.flag = f, .key = key, .value = value};
	return 0;
}

static int take_flag(struct cli *c, const struct flag *f, struct str inline_value, int argc, char **argv, int *i, struct error *err)
{
	struct cli_value *v = &c->values[f - c->command->flags];
	if (f->kind == FLAG_SWITCH) {
		if (inline_value.p)
			return error_set(err, -EINVAL, 400, "--%s takes no value", f->name);
		v->set = true;
		return 0;
	}
	const char *text = inline_value.p;
	if (!text) {
		if (*i + 1 >= argc || !strcmp(argv[*i + 1], "--"))
			return error_set(err, -EINVAL, 400, "--%s needs %s", f->name, f->value);
		text = argv[++*i];
	}
	v->set = true;
	v->text = text;
	if (f->kind == FLAG_NUMBER)
		return take_number(f, text, v, err);
	return f->kind == FLAG_PAIR ? take_pair(c, f, text, err) : 0;
}

static int check_words(const struct cli *c, struct error *err)
{
	const struct command *k = c->command;
	if (k->local && c->team)
		return error_set(err, -EINVAL, 400, "%s acts for no team: --team has no meaning here", k->name);
	if (k->rest == REST_REQUIRED && (!c->rest || !c->rest[0]))
		return error_set(err, -EINVAL, 400, "%s: the command to run is missing; put it behind --: cubicle %s %s", k->name, k->name,
			k->arguments);
	if (k->rest == REST_NONE && c->rest)
		return error_set(err, -EINVAL, 400, "%s takes nothing behind --", k->name);
	if (c->n_words < k->min)
		return error_set(err, -EINVAL, 400, "%s: an argument is missing: cubicle %s %s", k->name, k->name, k->arguments);
	if (c->n_words > k->max)
		return error_set(err, -EINVAL, 400, "%s: '%s' is one argument too many: cubicle %s%s%s", k->name, c->words[k->max], k->name,
			*k->arguments ? " " : "", k->arguments);
	return 0;
}

int cli_parse(struct cli *c, const struct command *command, int taken, int argc, char **argv, char **environ, struct error *err)
{
	*c = (struct cli){.command = command};
	int r = options_init(&c->options);
	if (r < 0)
		return error_errno(err, r, "options");
	/* The command's own words go first, so that no option takes one of them as its value. */
	argv += taken;
	argc -= taken;
	/* A flag of the command hides an option of that name. */
	const char *own[CLI_MAX_FLAGS + 1] = {NULL};
	for (size_t i = 0; i < count_flags(command); i++)
		own[i] = command->flags[i].name;
	r = options_load(&c->options, &argc, argv, own, environ, err);
	if (r < 0)
		return r;
	for (int i = 1; i < argc; i++) {
		struct str value;
		if (!strcmp(argv[i], "--")) {
			c->rest = argv + i + 1;
			break;
		}
		const struct flag *f = match_flag(command, argv[i], &value);
		if (f) {
			r = take_flag(c, f, value, argc, argv, &i, err);
			if (r < 0)
				return r;
		} else if (!strcmp(argv[i], "--json")) {
			c->json = true;
		} else if (!strcmp(argv[i], "--team") || !strncmp(argv[i], "--team=", 7)) {
			c->team = argv[i][6] ? argv[i] + 7 : i + 1 < argc && strcmp(argv[i + 1], "--") != 0 ? argv[++i] : "";
			if (!*c->team)
				return error_set(err, -EINVAL, 400, "--team needs TEAM");
		} else if (argv[i][0] == '-' && argv[i][1]) {
			return error_set(err, -EINVAL, 400, "%s has no flag %s (see `cubicle %s --help`)", command->name, argv[i], command->name);
		} else if (c->n_words == CLI_MAX_WORDS) {
			return error_set(err, -E2BIG, 400, "%s takes at most %d words", command->name, CLI_MAX_WORDS);
		} else {
			c->words[c->n_words++] = argv[i];
		}
	}
	return check_words(c, err);
}

void cli_done(struct cli *c)
{
	options_done(&c->options);
	free(c->pairs);
	c->pairs = NULL;
}

const struct cli_value *cli_flag(const struct cli *c, const char *name)
{
	for (size_t i = 0; i < count_flags(c->command); i++)
		if (!strcmp(c->command->flags[i].name, name))
			return &c->values[i];
	abort();
}

static void help_flag(struct buf *to, const struct flag *f)
{
	char left[64], letter[8] = "    ";
	if (f->letter)
		snprintf(letter, sizeof(letter), "-%c, ", f->letter);
	snprintf(left, sizeof(left), "%s--%s%s%s", letter, f->name, f->value ? " " : "", f->value ? f->value : "");
	buf_addf(to, "  %-28s %s\n", left, f->doc);
}

void command_help(struct buf *to, const struct command *k)
{
	buf_addf(to, "Usage: cubicle %s%s%s%s\n\n%s\n", k->name, k->flags ? " [FLAGS]" : "", *k->arguments ? " " : "", k->arguments, k->summary);
	if (k->details)
		buf_addf(to, "\n%s\n", k->details);
	buf_add_c(to, "\nFlags:\n");
	for (size_t i = 0; i < count_flags(k); i++)
		help_flag(to, &k->flags[i]);
	for (const struct flag *f = common_flags; f->name; f++)
		help_flag(to, f);
	buf_add_c(to, "\nEvery configuration option is a flag too: see `cubicle config`.\n");
	if (k->failure)
		buf_addf(to, "Exit code: the command's own; 128 + n when signal n ended it; %d when cubicle failed, %d when the sandbox could not start it.\n",
			EXIT_CUBICLE, EXIT_NOT_STARTED);
	else
		buf_addf(to, "Exit code: 0 done, %d failed, %d wrong usage.\n", EXIT_FAILED, EXIT_USAGE);
}

void command_overview(struct buf *to)
{
	buf_add_c(to, "Usage: cubicle COMMAND [FLAGS] [ARGUMENTS]\n\nA sandbox cloud for AI agents on one machine.\n\nCommands:\n");
	for (size_t i = 0; i < n_commands; i++)
		if (commands[i].summary)
			buf_addf(to, "  %-24s %s\n", commands[i].name, commands[i].summary);
	buf_add_c(to, "\n`cubicle COMMAND --help` tells more about one.\n");
}

int cli_fail(const struct cli *c, const struct error *err)
{
	if (c->json) {
		cleanup_buf struct buf line = BUF_INIT;
		buf_addf(&line, "{\"error\":{\"code\":%d,\"message\":", err->status);
		json_quote(&line, str_of(err->message));
		buf_add_c(&line, "}}\n");
		fputs(buf_cstr(&line) ? buf_cstr(&line) : "", stderr);
	} else {
		fprintf(stderr, "cubicle: %s\n", err->message);
	}
	return c->command && c->command->failure ? c->command->failure : EXIT_FAILED;
}
