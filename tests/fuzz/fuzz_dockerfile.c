#include "fuzz.h"

#include "image/dockerfile.h"
#include "image/ignore.h"
#include "image/path.h"

#include <string.h>

static void check_instruction(const struct dockerfile_instruction *i, size_t lines)
{
	hold(i->kind < DF_KINDS && i->line >= 1 && i->line <= lines);
	hold(i->n_args <= DOCKERFILE_WORDS && i->n_pairs <= DOCKERFILE_WORDS && i->n_heredocs <= DOCKERFILE_HEREDOCS);
	hold(i->kind == DF_RUN || i->kind == DF_COPY || i->kind == DF_ADD || i->n_heredocs == 0);
	size_t bytes = 0;
	for (size_t k = 0; k < i->n_args; k++)
		bytes += i->args[k].n;
	for (size_t k = 0; k < i->n_pairs; k++)
		bytes += i->pairs[k].key.n + i->pairs[k].value.n;
	for (size_t k = 0; k < i->n_flags; k++)
		bytes += i->flags[k].name.n + i->flags[k].value.n;
	hold(bytes <= i->text.n && i->text.n <= DOCKERFILE_ONE);
	for (size_t k = 0; k < i->n_heredocs; k++) {
		cleanup_buf struct buf text = BUF_INIT;
		dockerfile_heredoc_text(&i->heredocs[k], &text);
		hold(buf_len(&text) <= i->heredocs[k].text.n && i->heredocs[k].name.n > 0);
	}
}

static void check_ignore(struct str input)
{
	struct error err = {0};
	cleanup_ignore struct ignore ig = {0};
	cleanup_buf struct buf clean = BUF_INIT, again = BUF_INIT;
	struct str line = input, rest = STR("");
	str_cut(input, '\n', &line, &rest);
	path_clean(&clean, str_n(line.p, MIN(line.n, 256U)));
	path_clean(&again, buf_str(&clean));
	hold(str_eq(buf_str(&clean), buf_str(&again)));
	if (ignore_parse(&ig, str_n(rest.p, MIN(rest.n, 4096U)), &err) == 0)
		ignore_match(&ig, buf_str(&clean));
	else
		hold(err.status == 400 && err.message[0]);
}

void fuzz_one(struct str input)
{
	struct error err = {0};
	cleanup_dockerfile struct dockerfile d = {0};
	size_t lines = 1;
	for (size_t i = 0; i < input.n; i++)
		lines += input.p[i] == '\n';
	if (dockerfile_parse(&d, input, "Dockerfile", &err) < 0) {
		hold(err.message[0] && (err.status == 400 || err.status == 501));
	} else {
		hold(d.n_stages > 0 && d.n_stages <= DOCKERFILE_STAGES && d.n <= DOCKERFILE_INSTRUCTIONS && d.globals < d.n);
		for (size_t i = 0; i < d.n; i++)
			check_instruction(&d.all[i], lines);
		for (size_t i = 0; i < d.n_stages; i++)
			hold(d.stages[i].from <= d.stages[i].to && d.stages[i].to <= d.n && d.stages[i].base.n);
	}
	check_ignore(input);
}
