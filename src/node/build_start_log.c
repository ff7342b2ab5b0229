#include "io/json.h"
#include "node/builder_impl.h"

#include <stdio.h>

/* What the programs of a template write while a sandbox proves that it gets ready becomes part of the build's log. It comes from the inside: nothing of it is trusted but that it is text. */

enum { LINE_MAX_BYTES = 16 * 1024 };

static unsigned level_of(struct str name)
{
	return str_is(name, "error") ? 3 : str_is(name, "warn") ? 2 : str_is(name, "debug") ? 0 : 1;
}

static void take_line(struct builder *b, struct str line)
{
	cleanup_json json_t *j = json_parse(line, LINE_MAX_BYTES, "log", NULL);
	cleanup_buf struct buf text = BUF_INIT;
	struct str logger = json_str(json_object_get(j, "logger")), message = json_str(json_object_get(j, "message"));
	const json_t *fields = json_object_get(j, "fields");
	if (!message.n || (!str_is(logger, "service") && !str_is(logger, "ready")))
		return;
	struct str name = json_str(json_object_get(fields, "service")), why = json_str(json_object_get(fields, "status"));
	if (!why.n)
		why = json_str(json_object_get(fields, "reason"));
	buf_add_str(&text, name.n ? name : STR("ready"));
	buf_add_c(&text, ": ");
	buf_add_str(&text, message);
	if (why.n)
		buf_addf(&text, ": %.*s", STR_FMT(why));
	if (!text.failed)
		team_build_log_line(b->build, level_of(json_str(json_object_get(j, "level"))), "finalize", buf_str(&text));
}

void build_start_log(struct builder *b, struct str entries, unsigned *left)
{
	struct str line;
	while (*left && str_cut(entries, '\n', &line, &entries)) {
		take_line(b, line);
		if (!--*left)
			team_build_log_line(b->build, 2, "finalize", STR("more lines are left out"));
	}
}
