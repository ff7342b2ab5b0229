#include "api/template_request.h"
#include "base/cleanup.h"
#include "io/msg.h"

#include <errno.h>
#include <stdio.h>
#include <string.h>

enum {
	TAGS_MAX = 100,
	CPU_MAX = 256,
	SIZE_MAX_MB = 1048576,
	SIZE_MIN_MB = 64,
};

static bool is_hex(char c)
{
	return (c >= '0' && c <= '9') || (c >= 'a' && c <= 'f');
}

bool is_build_id(struct str s)
{
	for (size_t i = 0; i < s.n; i++) {
		bool dash = i == 8 || i == 13 || i == 18 || i == 23;
		if (dash ? s.p[i] != '-' : !is_hex(s.p[i]))
			return false;
	}
	return s.n == BUILD_ID;
}

int decode_files_hash(struct str s, char ret[65], struct error *err)
{
	for (size_t i = 0; i < s.n && i < 64; i++)
		ret[i] = s.p[i] >= 'A' && s.p[i] <= 'F' ? (char)(s.p[i] + 32) : s.p[i];
	for (size_t i = 0; i < s.n && i < 64; i++)
		if (!is_hex(ret[i]))
			s.n = 0;
	ret[64] = 0;
	return s.n == 64 ? 0 : error_set(err, -EINVAL, 400, "Invalid files hash");
}

int decode_template_tag(struct str s, char *to, struct error *err)
{
	struct template_reference parsed;
	char text[TEMPLATE_TAG_MAX + 8];
	int shown = (int)MIN(s.n, (size_t)TEMPLATE_TAG_MAX);
	/* By the rules of references, whose tag "default" is none. */
	if (s.n > TEMPLATE_TAG_MAX || str_chr(s, 0) >= 0)
		return error_set(err, -EINVAL, 400, "Invalid template tag: %.*s", shown, s.p);
	snprintf(text, sizeof(text), "x:%.*s", STR_FMT(s));
	if (decode_template_reference(str_of(text), &parsed, NULL) < 0 || strlen(parsed.name) != 1)
		return error_set(err, -EINVAL, 400, "Invalid template tag: %.*s", shown, s.p);
	snprintf(to, TEMPLATE_TAG_MAX + 1, "%.*s", TEMPLATE_TAG_MAX, parsed.tag[0] ? parsed.tag : "default");
	return 0;
}

static bool has_tag(const struct buf *tags, const char *tag)
{
	struct str rest = buf_str(tags), item;
	while (msg_list_next(&rest, &item))
		if (str_is(item, tag))
			return true;
	return false;
}

static int add_tag(struct buf *tags, const char *tag, struct error *err)
{
	if (has_tag(tags, tag))
		return 0;
	int r = msg_list_add(tags, str_of(tag));
	return r < 0 ? error_set(err, r, 503, "the server is out of memory") : 0;
}

int decode_template_tags(const json_t *body, struct buf *ret, struct error *err)
{
	json_t *list;
	size_t i;
	const json_t *item;
	char tag[TEMPLATE_TAG_MAX + 1];
	int r = field_array(body, "tags", NULL, &list, err);
	if (r <= 0)
		return r;
	if (json_array_size(list) > TAGS_MAX)
		return error_set(err, -EINVAL, 400, "tags: more than %d", TAGS_MAX);
	json_array_foreach(list, i, item) {
		if (!json_is_string(item))
			return error_set(err, -EINVAL, 400, "tags[%zu] must be a string", i);
		r = decode_template_tag(json_str(item), tag, err);
		if (r == 0)
			r = add_tag(ret, tag, err);
		if (r < 0)
			return r;
	}
	/* They go to the node in one field. */
	if (buf_len(ret) > 4096)
		return error_set(err, -EINVAL, 400, "tags: too long");
	return json_array_size(list) > 0;
}

static int size_field(const json_t *body, const char *name, int64_t min, int64_t max, int64_t *ret, struct error *err)
{
	int r = field_int(body, name, NULL, ret, err);
	if (r > 0 && (*ret < min || *ret > max))
		return error_set(err, -EINVAL, 400, "%s must be %lld to %lld", name, (long long)min, (long long)max);
	return r;
}

void template_args_done(struct template_args *a)
{
	buf_done(&a->tags);
}

/* What could be taken for an id. */
static bool looks_like_id(struct str name)
{
	return (name.n == 25 && str_starts(name, STR("snap-"))) || (name.n == 28 && str_starts(name, STR("tpl-")));
}

int template_args_parse(const json_t *body, const char *field, struct template_args *a, struct error *err)
{
	struct template_reference reference;
	struct str name = STR("");
	*a = (struct template_args){0};
	int r = field_str(body, field, NULL, &name, err);
	if (r < 0)
		return r;
	if (!str_trim(name).n)
		return error_set(err, -EINVAL, 400, "Name is required");
	r = decode_template_reference(name, &reference, err);
	if (r == 0 && looks_like_id(str_of(reference.name)))
		r = error_set(err, -EINVAL, 400, "%s: %s has the form of an id", field, reference.name);
	if (r == 0 && reference.tag[0]) {
		char tag[TEMPLATE_TAG_MAX + 1];
		r = decode_template_tag(str_of(reference.tag), tag, err);
		if (r == 0)
			r = add_tag(&a->tags, tag, err);
	}
	if (r == 0)
		r = decode_template_tags(body, &a->tags, err);
	if (r >= 0)
		r = size_field(body, "cpuCount", 1, CPU_MAX, &a->cpu_count, err);
	if (r >= 0)
		r = size_field(body, "memoryMB", SIZE_MIN_MB, SIZE_MAX_MB, &a->memory_mb, err);
	/* Every sandbox begins with an empty disk: what must be free is what it has. */
	if (r >= 0)
		r = size_field(body, "minFreeDiskMb", 1, SIZE_MAX_MB, &a->disk_mb, err);
	if (r < 0)
		return r;
	if (a->disk_mb)
		a->disk_mb = MAX(a->disk_mb, (int64_t)SIZE_MIN_MB);
	snprintf(a->name, sizeof(a->name), "%s", reference.name);
	return 0;
}
