/* Templates as the server has them: what there is, tags, visibility, deletion, space. template_create.c makes them. */
#include "cli/commands.h"
#include "base/cleanup.h"
#include "cli/build_follow.h"
#include "cli/client.h"
#include "cli/list.h"
#include "io/json.h"
#include "io/url.h"

#include <errno.h>
#include <stdio.h>
#include <string.h>

/* "name" of "name:tag", and the tag ("" = none). */
static void split_name(const char *given, struct str *ret_name, struct str *ret_tag)
{
	struct str s = str_of(given);
	*ret_name = s;
	*ret_tag = STR("");
	str_cut(s, ':', ret_name, ret_tag);
}

/* "/templates/<what was given, encoded><rest>". NULL without memory. */
static const char *template_path(struct buf *to, const char *before, struct str given, const char *rest)
{
	buf_clear(to);
	buf_add_c(to, before);
	url_encode(to, given);
	buf_add_c(to, rest);
	return buf_cstr(to);
}

static int no_memory(const struct cli *c)
{
	struct error err = {0};
	error_errno(&err, -ENOMEM, "%s", c->command->name);
	return cli_fail(c, &err);
}

/* Snapshots can be named like templates everywhere, but are not listed with them. */
static struct str name_of(const json_t *template)
{
	struct str name = json_str(json_array_get(json_object_get(template, "aliases"), 0));
	if (!name.n)
		name = json_str(json_array_get(json_object_get(template, "names"), 0));
	return name.n ? name : STR("-");
}

static void add_template(struct table *t, const json_t *one)
{
	char size[24];
	table_add(t, name_of(one));
	table_add(t, json_str(json_object_get(one, "templateID")));
	table_add(t, json_str(json_object_get(one, "buildStatus")));
	table_add(t, str_of(size_text(size, (uint64_t)json_integer_value(json_object_get(one, "size")))));
	table_add(t, json_str(json_object_get(one, "createdAt")));
	table_add(t, json_is_true(json_object_get(one, "public")) ? STR("yes") : STR("no"));
	table_addf(t, "%lld", (long long)json_integer_value(json_object_get(one, "cpuCount")));
	table_addf(t, "%lld MiB", (long long)json_integer_value(json_object_get(one, "memoryMB")));
}

static const struct list templates = {{"NAME", "ID", "STATUS", "SIZE", "CREATED", "PUBLIC", "CPU", "MEMORY"}, add_template};

int cmd_template_list(struct cli *c)
{
	return list_command(c, false, "/templates", &templates);
}

/* The id of what a name means in the list: by its id a template can be looked at also before a build of it is ready. Else what was given: templates that others let everybody use are not listed. */
static int find_id(struct client *cl, struct str name, struct buf *ret, struct error *err)
{
	cleanup_json json_t *all = NULL;
	size_t i;
	const json_t *one;
	int r = client_list(cl, "/templates", &all, err);
	if (r < 0)
		return r;
	json_array_foreach(all, i, one)
		if (str_eq(name_of(one), name) || str_eq(json_str(json_object_get(one, "templateID")), name)) {
			name = json_str(json_object_get(one, "templateID"));
			break;
		}
	return buf_add_str(ret, name) < 0 ? error_errno(err, -ENOMEM, "template") : 0;
}

/* One template with its builds, all pages of them; given by name or id, with a tag or not. */
static int get_template(struct client *cl, const char *given, json_t **ret, struct error *err)
{
	cleanup_buf struct buf path = BUF_INIT, next = BUF_INIT, id = BUF_INIT;
	cleanup_json json_t *all = NULL;
	struct str name, tag;
	split_name(given, &name, &tag);
	int r = find_id(cl, name, &id, err);
	if (r < 0)
		return r;
	do {
		cleanup_json json_t *page = NULL;
		template_path(&path, "/templates/", buf_str(&id), "?limit=100");
		if (buf_len(&next)) {
			buf_add_c(&path, "&nextToken=");
			url_encode(&path, buf_str(&next));
		}
		buf_clear(&next);
		if (!buf_cstr(&path))
			return error_errno(err, -ENOMEM, "template");
		r = client_call(cl, "GET", buf_cstr(&path), NULL, &page, &next, err);
		if (r < 0)
			return r;
		if (!all)
			all = steal_pointer(&page);
		else
			json_array_extend(json_object_get(all, "builds"), json_object_get(page, "builds"));
	} while (buf_len(&next));
	*ret = steal_pointer(&all);
	return 0;
}

static void print_line(const char *what, struct str value)
{
	cleanup_buf struct buf safe = BUF_INIT;
	print_safe(&safe, value);
	printf("%-10s %s\n", what, buf_cstr(&safe) ? buf_cstr(&safe) : "");
}

/* Which tags mean a build, in a row. */
static void add_tags(struct table *t, const json_t *tags, struct str build)
{
	cleanup_buf struct buf text = BUF_INIT;
	size_t i;
	const json_t *one;
	json_array_foreach(tags, i, one)
		if (str_eq(json_str(json_object_get(one, "buildID")), build)) {
			if (buf_len(&text))
				buf_add_c(&text, ", ");
			buf_add_str(&text, json_str(json_object_get(one, "tag")));
		}
	table_add(t, buf_len(&text) ? buf_str(&text) : STR("-"));
}

static void print_info(const json_t *template)
{
	static const char *const titles[] = {"BUILD", "STATUS", "TAGS", "CREATED", "FINISHED", "CPU", "MEMORY", "DISK", NULL};
	static const char *const layer_titles[] = {"LAYER", "SIZE", NULL};
	char size[24];
	size_t i;
	const json_t *one;
	print_line("id", json_str(json_object_get(template, "templateID")));
	print_line("name", name_of(template));
	print_line("public", json_is_true(json_object_get(template, "public")) ? STR("yes") : STR("no"));
	print_line("created", json_str(json_object_get(template, "createdAt")));
	print_line("size", str_of(size_text(size, (uint64_t)json_integer_value(json_object_get(template, "size")))));
	if (json_str(json_object_get(template, "lastError")).n)
		print_line("error", json_str(json_object_get(template, "lastError")));
	putchar('\n');
	cleanup_table struct table builds, layers;
	table_init(&builds, titles);
	json_array_foreach(json_object_get(template, "builds"), i, one) {
		struct str finished = json_str(json_object_get(one, "finishedAt"));
		table_add(&builds, json_str(json_object_get(one, "buildID")));
		table_add(&builds, json_str(json_object_get(one, "status")));
		add_tags(&builds, json_object_get(template, "tags"), json_str(json_object_get(one, "buildID")));
		table_add(&builds, json_str(json_object_get(one, "createdAt")));
		table_add(&builds, finished.n ? finished : STR("-"));
		table_addf(&builds, "%lld", (long long)json_integer_value(json_object_get(one, "cpuCount")));
		table_addf(&builds, "%lld MiB", (long long)json_integer_value(json_object_get(one, "memoryMB")));
		table_addf(&builds, "%lld MiB", (long long)json_integer_value(json_object_get(one, "diskSizeMB")));
	}
	table_print(&builds);
	const json_t *all = json_object_get(json_object_get(template, "description"), "layers");
	if (!json_is_array(all))
		return;
	putchar('\n');
	table_init(&layers, layer_titles);
	json_array_foreach(all, i, one) {
		table_add(&layers, json_str(json_object_get(one, "file")));
		table_add(&layers, str_of(size_text(size, (uint64_t)json_integer_value(json_object_get(one, "size")))));
	}
	table_print(&layers);
}

int cmd_template_info(struct cli *c)
{
	struct error err = {0};
	cleanup_client struct client cl = {0};
	cleanup_json json_t *template = NULL, *tags = NULL, *description = NULL;
	cleanup_buf struct buf path = BUF_INIT;
	if (client_open(&cl, c, &err) < 0 || get_template(&cl, c->words[0], &template, &err) < 0)
		return cli_fail(c, &err);
	if (!template_path(&path, "/templates/", json_str(json_object_get(template, "templateID")), "/tags"))
		return no_memory(c);
	if (client_call(&cl, "GET", buf_cstr(&path), NULL, &tags, NULL, &err) < 0)
		return cli_fail(c, &err);
	json_object_set(template, "tags", tags);
	/* Before a build is ready there is nothing to describe. */
	if (!template_path(&path, "/templates/", str_of(c->words[0]), "/description"))
		return no_memory(c);
	if (client_call(&cl, "GET", buf_cstr(&path), NULL, &description, NULL, &err) == 0)
		json_object_set(template, "description", description);
	else if (err.status != 404)
		return cli_fail(c, &err);
	if (c->json)
		print_json(template);
	else
		print_info(template);
	return EXIT_OK;
}

/* The build that is meant: by its id or the beginning of one, else the one of the tag, else the newest. */
static int choose_build(struct client *cl, const struct cli *c, const json_t *template, struct build *b, struct error *err)
{
	struct str name, tag, found = STR("");
	size_t i;
	const json_t *one;
	cleanup_json json_t *tags = NULL;
	split_name(c->words[0], &name, &tag);
	if (c->n_words > 1) {
		json_array_foreach(json_object_get(template, "builds"), i, one) {
			struct str id = json_str(json_object_get(one, "buildID"));
			if (!str_starts(id, str_of(c->words[1])))
				continue;
			if (found.n)
				return error_set(err, -ENOTUNIQ, 400, "'%s' is the beginning of more than one build's id", c->words[1]);
			found = id;
		}
	} else if (tag.n) {
		cleanup_buf struct buf path = BUF_INIT;
		if (!template_path(&path, "/templates/", str_of(b->template_id), "/tags"))
			return error_errno(err, -ENOMEM, "tags");
		int r = client_call(cl, "GET", buf_cstr(&path), NULL, &tags, NULL, err);
		if (r < 0)
			return r;
		json_array_foreach(tags, i, one)
			if (str_eq(json_str(json_object_get(one, "tag")), tag))
				found = json_str(json_object_get(one, "buildID"));
	} else {
		found = json_str(json_object_get(json_array_get(json_object_get(template, "builds"), 0), "buildID"));
	}
	if (!found.n || found.n >= sizeof(b->build_id))
		return error_set(err, -ENOENT, 404, "%s has no such build (see `cubicle template info %s`)", c->words[0], c->words[0]);
	snprintf(b->build_id, sizeof(b->build_id), "%.*s", STR_FMT(found));
	return 0;
}

int cmd_template_logs(struct cli *c)
{
	struct error err = {0};
	cleanup_client struct client cl = {0};
	cleanup_json json_t *template = NULL;
	cleanup_build struct build b = {.signals = -1};
	char status[16];
	if (client_open(&cl, c, &err) < 0 || get_template(&cl, c->words[0], &template, &err) < 0)
		return cli_fail(c, &err);
	build_init(&b, &cl, c, c->words[0]);
	b.to_stdout = true;
	snprintf(b.template_id, sizeof(b.template_id), "%.*s", STR_FMT(json_str(json_object_get(template, "templateID"))));
	int r = choose_build(&cl, c, template, &b, &err);
	if (r == 0)
		r = build_show_log(&b, cli_flag(c, "follow")->set, status, &err);
	progress_clear(&b.progress);
	return r == -EINTR ? EXIT_INTERRUPTED : r < 0 ? cli_fail(c, &err) : EXIT_OK;
}

/* {"<key of the first word>": ..., "tags": [the others]} */
static json_t *tags_body(const struct cli *c, const char *key)
{
	json_t *tags = json_array();
	for (size_t i = 1; i < c->n_words; i++)
		if (json_array_append_new(tags, json_string(c->words[i])) < 0) {
			json_decref(tags);
			return NULL;
		}
	return json_pack("{s:s,s:o}", key, c->words[0], "tags", tags);
}

static int change_tags(struct cli *c, const char *method, const char *key)
{
	struct error err = {0};
	cleanup_client struct client cl = {0};
	cleanup_json json_t *body = tags_body(c, key), *answer = NULL;
	if (!body)
		error_set(&err, -EINVAL, 400, "a name or a tag is no UTF-8");
	if (err.code || client_open(&cl, c, &err) < 0 || client_call(&cl, method, "/templates/tags", body, &answer, NULL, &err) < 0)
		return cli_fail(c, &err);
	if (c->json)
		print_json(answer ? answer : body);
	else
		for (size_t i = 1; i < c->n_words; i++)
			printf("%s\n", c->words[i]);
	return EXIT_OK;
}

int cmd_template_tag(struct cli *c)
{
	return change_tags(c, "POST", "target");
}

int cmd_template_untag(struct cli *c)
{
	return change_tags(c, "DELETE", "name");
}

static int set_public(struct cli *c, bool public)
{
	struct error err = {0};
	cleanup_client struct client cl = {0};
	cleanup_json json_t *template = NULL, *answer = NULL, *body = json_pack("{s:b}", "public", public);
	cleanup_buf struct buf path = BUF_INIT;
	if (client_open(&cl, c, &err) < 0 || get_template(&cl, c->words[0], &template, &err) < 0)
		return cli_fail(c, &err);
	if (!template_path(&path, "/v2/templates/", json_str(json_object_get(template, "templateID")), ""))
		return no_memory(c);
	if (client_call(&cl, "PATCH", buf_cstr(&path), body, &answer, NULL, &err) < 0)
		return cli_fail(c, &err);
	if (c->json)
		print_json(answer);
	else
		printf("%s\n", c->words[0]);
	return EXIT_OK;
}

int cmd_template_publish(struct cli *c)
{
	return set_public(c, true);
}

int cmd_template_unpublish(struct cli *c)
{
	return set_public(c, false);
}

int template_delete_words(struct cli *c, const char *query)
{
	struct error err = {0};
	cleanup_client struct client cl = {0};
	cleanup_json json_t *deleted = json_array();
	int code = EXIT_OK;
	if (client_open(&cl, c, &err) < 0)
		return cli_fail(c, &err);
	for (size_t i = 0; i < c->n_words; i++) {
		cleanup_buf struct buf path = BUF_INIT;
		if (!template_path(&path, "/templates/", str_of(c->words[i]), query))
			return no_memory(c);
		if (client_call(&cl, "DELETE", buf_cstr(&path), NULL, NULL, NULL, &err) < 0) {
			code = cli_fail(c, &err);
			continue;
		}
		json_array_append_new(deleted, json_string(c->words[i]));
		if (!c->json)
			printf("%s\n", c->words[i]);
	}
	if (c->json) {
		cleanup_json json_t *answer = json_pack("{s:O}", "deleted", deleted);
		print_json(answer);
	}
	return code;
}

int cmd_template_delete(struct cli *c)
{
	return template_delete_words(c, cli_flag(c, "force")->set ? "?force=true" : "");
}

static void print_images(const json_t *answer, bool dry)
{
	static const char *const titles[] = {"FILE", "SIZE", "LAST USED", NULL};
	char text[24];
	size_t i;
	const json_t *one, *all = json_object_get(answer, "images");
	cleanup_table struct table t;
	table_init(&t, titles);
	json_array_foreach(all, i, one) {
		table_add(&t, json_str(json_object_get(one, "name")));
		table_add(&t, str_of(size_text(text, (uint64_t)json_integer_value(json_object_get(one, "bytes")))));
		table_addf(&t, "%s ago", duration_text(text, json_integer_value(json_object_get(one, "idleSeconds"))));
	}
	if (json_array_size(all))
		table_print(&t);
	long long count = json_integer_value(json_object_get(answer, "count"));
	const char *size = size_text(text, (uint64_t)json_integer_value(json_object_get(answer, "bytes")));
	printf("%lld file%s, %s%s\n", count, count == 1 ? "" : "s", size, dry ? ", would be removed" : ", removed");
}

/* "90" seconds, "30m", "12h", "7d". */
static int parse_age(const char *text, int64_t *ret, struct error *err)
{
	static const struct {
		char unit;
		int64_t seconds;
	} units[] = {{'s', 1}, {'m', 60}, {'h', 3600}, {'d', 86400}, {'w', 604800}};
	struct str s = str_of(text);
	int64_t n, unit = 1;
	for (size_t i = 0; s.n && i < ARRAY_SIZE(units); i++)
		if (s.p[s.n - 1] == units[i].unit) {
			unit = units[i].seconds;
			s.n--;
			break;
		}
	if (str_to_i64(s, &n) < 0 || n < 0 || n > 315360000 / unit)
		return error_set(err, -EINVAL, 400, "--older-than: '%s' is no time like 90s, 30m, 12h or 7d", text);
	*ret = n * unit;
	return 0;
}

int cmd_template_gc(struct cli *c)
{
	struct error err = {0};
	cleanup_client struct client cl = {0};
	cleanup_json json_t *answer = NULL, *body = NULL;
	const struct cli_value *older = cli_flag(c, "older-than");
	bool dry = cli_flag(c, "dry-run")->set;
	int64_t age = -1;
	if (older->set && parse_age(older->text, &age, &err) < 0) {
		cli_fail(c, &err);
		return EXIT_USAGE;
	}
	body = json_pack("{s:b}", "dryRun", dry);
	if (age >= 0)
		json_object_set_new(body, "olderThan", json_integer(age));
	if (client_open_admin(&cl, c, &err) < 0 || client_call(&cl, "POST", "/admin/collect-images", body, &answer, NULL, &err) < 0)
		return cli_fail(c, &err);
	if (c->json)
		print_json(answer);
	else
		print_images(answer, dry);
	return EXIT_OK;
}
