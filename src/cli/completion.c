#include "cli/completion.h"
#include "base/cleanup.h"
#include "cli/command.h"

#include <errno.h>
#include <stdio.h>
#include <string.h>

static const char bash[] =
	"_cubicle() {\n"
	"	local line\n"
	"	COMPREPLY=()\n"
	"	while IFS= read -r line; do\n"
	"		COMPREPLY+=(\"${line%%$'\\t'*}\")\n"
	"	done < <(\"$1\" completion words -- \"${COMP_WORDS[@]:0:COMP_CWORD+1}\" 2>/dev/null)\n"
	"}\n"
	"complete -o default -F _cubicle cubicle\n";

static const char zsh[] =
	"#compdef cubicle\n"
	"_cubicle() {\n"
	"	local line\n"
	"	local -a found\n"
	"	for line in \"${(@f)$(\"${words[1]}\" completion words -- \"${(@)words[1,CURRENT]}\" 2>/dev/null)}\"; do\n"
	"		[[ -n $line ]] || continue\n"
	"		if [[ $line == *$'\\t'* ]]; then\n"
	"			found+=(\"${${line%%$'\\t'*}//:/\\\\:}:${line#*$'\\t'}\")\n"
	"		else\n"
	"			found+=(\"${line//:/\\\\:}\")\n"
	"		fi\n"
	"	done\n"
	"	if (( $#found )); then _describe cubicle found; else _files; fi\n"
	"}\n"
	"if [[ $funcstack[1] == _cubicle ]]; then _cubicle \"$@\"; else compdef _cubicle cubicle; fi\n";

static const char fish[] =
	"function __cubicle_words\n"
	"	set -l words (commandline -opc) (commandline -ct)\n"
	"	$words[1] completion words -- $words 2>/dev/null\n"
	"end\n"
	"complete -c cubicle -a '(__cubicle_words)'\n";

const char *completion_script(const char *shell)
{
	static const struct {
		const char *shell, *script;
	} scripts[] = {{"bash", bash}, {"zsh", zsh}, {"fish", fish}};
	for (size_t i = 0; i < ARRAY_SIZE(scripts); i++)
		if (!strcmp(shell, scripts[i].shell))
			return scripts[i].script;
	return NULL;
}

/* One candidate, when it continues what was typed. `what` up to its first line break; NULL = nothing to say. */
static void offer(struct buf *to, const char *typed, struct str word, const char *what)
{
	if (!str_starts(word, str_of(typed)))
		return;
	buf_add_str(to, word);
	if (what) {
		buf_add_c(to, "\t");
		buf_add(to, what, strcspn(what, "\n"));
	}
	buf_add_c(to, "\n");
}

/* No command is named yet: the next word of each that begins with the words typed before. Groups ("sandbox") are offered once. */
static void offer_commands(struct buf *to, int n, char **before, const char *typed)
{
	struct str last = STR("");
	for (size_t i = 0; i < n_commands; i++) {
		struct str rest = str_of(commands[i].name), word, tail;
		bool fits = true;
		for (int k = 0; fits && k < n; k++) {
			fits = str_cut(rest, ' ', &word, &tail) && str_is(word, before[k]);
			rest = fits ? tail : rest;
		}
		if (!fits)
			continue;
		bool group = str_cut(rest, ' ', &rest, &tail);
		if (!str_eq(rest, last))
			offer(to, typed, rest, group ? NULL : commands[i].summary);
		last = rest;
	}
}

struct search {
	struct buf *to; /* NULL: only look */
	const char *typed;
	struct str name;
	bool found;
};

static void visit_option(const char *name, const char *value, const char *source, const char *doc, void *arg)
{
	struct search *s = arg;
	s->found |= str_is(s->name, name);
	if (s->to) {
		char flag[64];
		snprintf(flag, sizeof(flag), "--%s", name);
		offer(s->to, s->typed, str_of(flag), doc);
	}
}

static void offer_flags(struct buf *to, const struct command *k, const struct options *o, const char *typed)
{
	const struct flag *const lists[] = {k->flags, common_flags};
	for (size_t i = 0; i < ARRAY_SIZE(lists); i++)
		for (const struct flag *f = lists[i]; f && f->name; f++) {
			char name[64];
			snprintf(name, sizeof(name), "--%s", f->name);
			offer(to, typed, str_of(name), f->doc);
		}
	/* There are many options: only for who typed the beginning of one. */
	if (strlen(typed) > strlen("--"))
		options_each(o, visit_option, &(struct search){.to = to, .typed = typed});
}

/* Is the word a flag whose value is the word behind it? */
static bool takes_next(const struct command *k, const struct options *o, const char *word)
{
	if (word[0] != '-' || strchr(word, '='))
		return false;
	const struct flag *const lists[] = {k->flags, common_flags};
	for (size_t i = 0; i < ARRAY_SIZE(lists); i++)
		for (const struct flag *f = lists[i]; f && f->name; f++)
			if ((!strncmp(word, "--", 2) && !strcmp(word + 2, f->name)) || (f->letter && word[1] == f->letter && !word[2]))
				return f->kind != FLAG_SWITCH;
	if (strncmp(word, "--", 2))
		return false;
	struct search s = {.name = str_of(word + 2)};
	options_each(o, visit_option, &s);
	return s.found;
}

/* The name of the argument at that place in "SANDBOX -- COMMAND [ARGUMENT...]": "" behind the last; "--" where words of another program begin. */
static struct str argument_at(const struct command *k, size_t at)
{
	struct str rest = str_of(k->arguments), word = rest;
	bool last = !rest.n;
	for (size_t i = 0; !last; i++) {
		last = !str_cut(rest, ' ', &word, &rest);
		word = last ? rest : word;
		if (str_starts(word, STR("[")))
			word = str_n(word.p + 1, word.n - 2);
		bool repeats = str_ends(word, STR("..."));
		if (repeats)
			word.n -= strlen("...");
		if (i == at || repeats || str_is(word, "--"))
			return word;
	}
	return STR("");
}

static void offer_argument(struct buf *to, const struct command *k, size_t at, const char *typed, const struct completion_source *sources, void *arg)
{
	struct str name = argument_at(k, at);
	if (str_is(name, "--")) {
		offer(to, typed, name, NULL);
		return;
	}
	for (const struct completion_source *s = sources; s->argument; s++) {
		cleanup_buf struct buf all = BUF_INIT;
		if (!str_is(name, s->argument))
			continue;
		s->list(&all, arg);
		for (struct str rest = buf_str(&all), line; str_cut(rest, '\n', &line, &rest);)
			if (str_starts(line, str_of(typed))) {
				buf_add_str(to, line);
				buf_add_c(to, "\n");
			}
		return;
	}
	/* bash|zsh|fish */
	struct str word, rest = name;
	bool several = false;
	while (str_cut(rest, '|', &word, &rest)) {
		offer(to, typed, word, NULL);
		several = true;
	}
	if (several)
		offer(to, typed, rest, NULL);
}

int completion_words(struct buf *to, int argc, char **argv, const struct completion_source *sources, void *arg)
{
	if (argc < 2)
		return 0;
	int taken;
	const char *typed = argv[argc - 1];
	const struct command *k = command_find(argc - 1, argv, &taken);
	if (!k) {
		offer_commands(to, argc - 2, argv + 1, typed);
		return to->failed ? -ENOMEM : 0;
	}
	struct options o;
	int r = options_init(&o);
	if (r < 0)
		return r;
	size_t words = 0;
	bool value = false, theirs = false;
	for (int i = 1 + taken; i < argc - 1 && !theirs; i++) {
		theirs = !value && !strcmp(argv[i], "--");
		bool flag = !value && argv[i][0] == '-' && argv[i][1];
		words += !value && !flag;
		value = flag && takes_next(k, &o, argv[i]);
	}
	if (!value && !theirs) {
		if (typed[0] == '-')
			offer_flags(to, k, &o, typed);
		offer_argument(to, k, words, typed, sources, arg);
	}
	options_done(&o);
	return to->failed ? -ENOMEM : 0;
}
