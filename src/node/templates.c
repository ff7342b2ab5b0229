#include "node/templates.h"
#include "node/template_services.h"
#include "base/cleanup.h"
#include "base/clock.h"
#include "base/fd.h"
#include "base/log.h"
#include "io/json.h"

#include <dirent.h>
#include <fcntl.h>
#include <limits.h>
#include <stdio.h>
#include <sys/stat.h>

static const char lower_digits[] = "abcdefghijklmnopqrstuvwxyz0123456789";
static const char alias_letters[] = "abcdefghijklmnopqrstuvwxyz0123456789_-";
static const char file_letters[] = "abcdefghijklmnopqrstuvwxyz0123456789_-.";

/* min..max characters, all of them out of `letters`. */
static bool all_of(struct str s, const char *letters, size_t min, size_t max)
{
	if (s.n < min || s.n > max)
		return false;
	for (size_t i = 0; i < s.n; i++)
		if (!s.p[i] || !strchr(letters, s.p[i]))
			return false;
	return true;
}

static bool good_alias(struct str s)
{
	struct str space = STR("x"), name = s;
	if (s.n > 128)
		return false;
	str_cut(s, '/', &space, &name);
	return all_of(space, alias_letters, 1, 64) && all_of(name, alias_letters, 1, 128);
}

static bool good_uuid(struct str s)
{
	if (s.n != 36)
		return false;
	for (size_t i = 0; i < s.n; i++) {
		bool dash = i == 8 || i == 13 || i == 18 || i == 23;
		if (dash ? s.p[i] != '-' : !s.p[i] || !strchr("0123456789abcdef", s.p[i]))
			return false;
	}
	return true;
}

static bool ends_in(struct str s, const char *suffix)
{
	size_t n = strlen(suffix);
	return s.n > n && str_is(str_from(s, s.n - n), suffix);
}

static bool good_layer(struct str s)
{
	struct str dir, name;
	if (!str_cut(s, '/', &dir, &name) || !all_of(name, file_letters, 5, 140) || name.p[0] == '.')
		return false;
	return str_is(dir, "images") ? ends_in(name, ".erofs") || ends_in(name, ".img") : str_is(dir, "snapshots") && ends_in(name, ".img");
}

/* An absolute path without NUL or control characters. */
static bool good_path(struct str s)
{
	if (!s.n || s.p[0] != '/' || s.n > 1000 || !str_is_utf8(s))
		return false;
	for (size_t i = 0; i < s.n; i++)
		if ((unsigned char)s.p[i] < 0x20)
			return false;
	return true;
}

static bool good_id(struct str s)
{
	if (str_starts(s, STR("tpl-")))
		return all_of(str_from(s, 4), "0123456789abcdef", TEMPLATE_ID - 4, TEMPLATE_ID - 4);
	return all_of(s, lower_digits, TEMPLATE_OWN_ID, TEMPLATE_OWN_ID);
}

static int check(const struct template *t, const char *what, struct error *err)
{
	const char *wrong = NULL;
	if (!good_id(str_of(t->id)))
		wrong = "id: 20 characters of [a-z0-9] are needed, or \"tpl-\" and 24 of [0-9a-f]";
	else if (*t->alias && !good_alias(str_of(t->alias)))
		wrong = "alias: [a-z0-9_-]+ is needed, or two of these with a '/' between";
	else if (!good_uuid(str_of(t->build_id)))
		wrong = "buildId: a UUID in lower case is needed";
	else if (t->cpu_count > 256)
		wrong = "cpuCount: 1 to 256";
	else if (t->memory_mb && (t->memory_mb < 64 || t->memory_mb > 1048576))
		wrong = "memoryMB: 64 to 1048576";
	else if (t->disk_mb && (t->disk_mb < 64 || t->disk_mb > 1048576))
		wrong = "diskMB: 64 to 1048576";
	else if (t->n_layers < 1 || t->n_layers > TEMPLATE_MAX_LAYERS)
		wrong = "layers: 1 to 12";
	else if (*t->workdir && !good_path(str_of(t->workdir)))
		wrong = "workdir: an absolute path of at most 1000 bytes is needed";
	for (size_t i = 0; !wrong && i < t->n_layers; i++)
		if (!good_layer(str_of(t->layers[i].file)))
			wrong = "layers: each file is images/<name>.erofs, images/<name>.img or snapshots/<name>.img";
		else if (*t->layers[i].recipe && !all_of(str_of(t->layers[i].recipe), "0123456789abcdef", 64, 64))
			wrong = "layers: recipe: 64 hexadecimal digits in lower case";
	if (!wrong)
		wrong = services_wrong(t);
	return wrong ? error_set(err, -EINVAL, 400, "%s: %s", what, wrong) : 0;
}

/* Copies a JSON string that must fit; false for another type, an embedded NUL or too many bytes. */
static bool take_text(const json_t *j, char *to, size_t size)
{
	struct str s = json_str(j);
	if (!json_is_string(j) || s.n >= size || memchr(s.p, 0, s.n))
		return false;
	memcpy(to, s.p, s.n);
	to[s.n] = 0;
	return true;
}

static bool take_count(const json_t *j, uint32_t *ret)
{
	json_int_t v = json_integer_value(j);
	if (!json_is_integer(j) || v < 1 || v > 1048576)
		return false;
	*ret = (uint32_t)v;
	return true;
}

static bool take_flag(const json_t *j, bool *ret)
{
	*ret = json_is_true(j);
	return json_is_boolean(j);
}

static bool take_layer(const json_t *j, struct template_layer *to)
{
	const json_t *size = json_object_get(j, "size"), *recipe = json_object_get(j, "recipe");
	if (json_object_size(j) != (recipe ? 3 : 2) || !json_is_integer(size) || json_integer_value(size) < 1 ||
		!take_text(json_object_get(j, "file"), to->file, sizeof(to->file)))
		return false;
	to->size = (uint64_t)json_integer_value(size);
	return !recipe || (take_text(recipe, to->recipe, sizeof(to->recipe)) && *to->recipe);
}

static bool take_layers(const json_t *j, struct template *t)
{
	size_t n = json_array_size(j);
	if (!json_is_array(j) || n > TEMPLATE_MAX_LAYERS)
		return false;
	for (size_t i = 0; i < n; i++)
		if (!take_layer(json_array_get(j, i), &t->layers[i]))
			return false;
	t->n_layers = n;
	return true;
}

static bool take_time(const json_t *j, int64_t *ret)
{
	return json_is_string(j) && rfc3339_parse(json_str(j), ret) == 0;
}

static bool take_key(struct template *t, struct str key, const json_t *v)
{
	if (str_is(key, "id"))
		return take_text(v, t->id, sizeof(t->id));
	if (str_is(key, "alias"))
		return take_text(v, t->alias, sizeof(t->alias)) && *t->alias;
	if (str_is(key, "createdAt"))
		return take_time(v, &t->created_at);
	if (str_is(key, "buildId"))
		return take_text(v, t->build_id, sizeof(t->build_id));
	if (str_is(key, "cpuCount"))
		return take_count(v, &t->cpu_count);
	if (str_is(key, "memoryMB"))
		return take_count(v, &t->memory_mb);
	if (str_is(key, "diskMB"))
		return take_count(v, &t->disk_mb);
	if (str_is(key, "layers"))
		return take_layers(v, t);
	if (str_is(key, "user"))
		return take_text(v, t->user, sizeof(t->user));
	if (str_is(key, "workdir"))
		return take_text(v, t->workdir, sizeof(t->workdir)) && *t->workdir;
	if (str_is(key, "isolation"))
		return take_text(v, t->isolation, sizeof(t->isolation)) && (!strcmp(t->isolation, "auto") || !strcmp(t->isolation, "namespace") || !strcmp(t->isolation, "microvm"));
	if (str_is(key, "nested_userns"))
		return take_flag(v, &t->nested_userns);
	if (str_is(key, "no_setuid"))
		return take_flag(v, &t->no_setuid);
	if (str_is(key, "ready"))
		return ready_take(t, v);
	if (str_is(key, "probe"))
		return probe_take(t, v);
	if (str_is(key, "wait_ready"))
		return take_flag(v, &t->wait_ready);
	if (str_is(key, "env"))
		return env_take(t, v, &t->env);
	return str_is(key, "services") && services_take(t, v);
}

/* What a file says of itself, and a build must not. */
static bool is_identity(struct str key)
{
	return str_is(key, "id") || str_is(key, "alias") || str_is(key, "createdAt") || str_is(key, "buildId");
}

static int parse(struct str json, const char *what, const struct template *identity, struct template *ret, struct error *err)
{
	cleanup_json json_t *j = json_parse(json, TEMPLATE_MAX_FILE, what, err);
	if (!j)
		return err ? err->code : -EINVAL;
	if (!json_is_object(j))
		return error_set(err, -EINVAL, 400, "%s: an object is needed", what);
	memset(ret, 0, sizeof(*ret));
	const char *key;
	json_t *value;
	json_object_foreach(j, key, value) if ((identity && is_identity(str_of(key))) || !take_key(ret, str_of(key), value))
		return error_set(err, -EINVAL, 400, "%s: %.64s: unknown key or wrong value", what, key);
	if (!identity && !json_object_get(j, "createdAt"))
		return error_set(err, -EINVAL, 400, "%s: createdAt is missing", what);
	return 0;
}

static int parse_checked(struct str json, const char *what, const struct template *identity, struct template *ret, struct error *err)
{
	struct template *t = malloc(sizeof(*t));
	if (!t)
		return error_errno(err, -ENOMEM, "template");
	int r = parse(json, what, identity, t, err);
	if (r == 0 && identity) {
		memcpy(t->id, identity->id, sizeof(t->id));
		memcpy(t->alias, identity->alias, sizeof(t->alias));
		memcpy(t->build_id, identity->build_id, sizeof(t->build_id));
		memcpy(t->team, identity->team, sizeof(t->team));
		t->public = identity->public;
		t->created_at = identity->created_at;
	}
	if (r == 0)
		r = check(t, what, err);
	if (r == 0)
		*ret = *t;
	free(t);
	return r;
}

int template_parse(struct str json, const char *what, struct template *ret, struct error *err)
{
	return parse_checked(json, what, NULL, ret, err);
}

int template_parse_build(struct str json, const char *what, const struct template *identity, struct template *ret, struct error *err)
{
	return parse_checked(json, what, identity, ret, err);
}

int template_check_layers(const char *node_dir, const struct template *t, const char *what, struct error *err)
{
	for (size_t i = 0; i < t->n_layers; i++) {
		char path[PATH_MAX];
		struct stat st;
		snprintf(path, sizeof(path), "%s/%s", node_dir, t->layers[i].file);
		if (lstat(path, &st) < 0)
			return error_errno(err, -errno, "%s: layer %s", what, t->layers[i].file);
		if (!S_ISREG(st.st_mode) || st.st_uid != geteuid() || (st.st_mode & 022))
			return error_set(err, -EPERM, 500, "%s: layer %s is no regular file that only its owner can change", what,
				t->layers[i].file);
	}
	return 0;
}

static void put_text(struct buf *to, const char *key, const char *value)
{
	buf_addf(to, ",\n  \"%s\": ", key);
	json_quote(to, str_of(value));
}

static void put_count(struct buf *to, const char *key, uint32_t value)
{
	if (value)
		buf_addf(to, ",\n  \"%s\": %u", key, value);
}

static void put_layers(const struct template *t, struct buf *to)
{
	buf_add_c(to, "\n  \"layers\": [");
	for (size_t i = 0; i < t->n_layers; i++) {
		const struct template_layer *l = &t->layers[i];
		buf_addf(to, "%s{\"file\": \"%s\", \"size\": %llu", i ? ", " : "", l->file, (unsigned long long)l->size);
		if (*l->recipe)
			buf_addf(to, ", \"recipe\": \"%s\"", l->recipe);
		buf_add_c(to, "}");
	}
	buf_add_c(to, "]");
}

/* All but its identity and its layers. */
static int put_rest(const struct template *t, struct buf *to)
{
	put_text(to, "user", t->user);
	put_count(to, "cpuCount", t->cpu_count);
	put_count(to, "memoryMB", t->memory_mb);
	put_count(to, "diskMB", t->disk_mb);
	if (*t->workdir)
		put_text(to, "workdir", t->workdir);
	if (*t->isolation)
		put_text(to, "isolation", t->isolation);
	if (t->nested_userns)
		buf_add_c(to, ",\n  \"nested_userns\": true");
	if (t->no_setuid)
		buf_add_c(to, ",\n  \"no_setuid\": true");
	if (t->wait_ready)
		buf_add_c(to, ",\n  \"wait_ready\": true");
	services_serialize(t, to);
	return buf_add_c(to, "\n}\n");
}

int template_serialize_build(const struct template *t, struct buf *to)
{
	buf_add_c(to, "{");
	put_layers(t, to);
	return put_rest(t, to);
}

int template_serialize_base(const struct template *t, struct msg_list layers, const uint64_t *sizes, struct buf *to)
{
	struct str rest = layers.raw, file;
	buf_add_c(to, "{\n  \"layers\": [");
	for (size_t i = 0; msg_list_next(&rest, &file); i++) {
		buf_addf(to, "%s{\"file\": ", i ? ", " : "");
		json_quote(to, file);
		buf_addf(to, ", \"size\": %llu}", (unsigned long long)sizes[i]);
	}
	buf_add_c(to, "]");
	return put_rest(t, to);
}

int template_serialize(const struct template *t, struct buf *to)
{
	char time[RFC3339_SIZE];
	cleanup_buf struct buf rest = BUF_INIT;
	int r = template_serialize_build(t, &rest);
	if (r < 0)
		return r;
	buf_addf(to, "{\n  \"id\": \"%s\"", t->id);
	if (*t->alias)
		put_text(to, "alias", t->alias);
	put_text(to, "createdAt", rfc3339_format(time, t->created_at));
	put_text(to, "buildId", t->build_id);
	buf_add_c(to, ",");
	return buf_add_str(to, str_from(buf_str(&rest), 1));
}

int template_save(const char *node_dir, const struct template *t, struct error *err)
{
	char path[PATH_MAX];
	cleanup_buf struct buf text = BUF_INIT;
	int r = check(t, "template", err);
	if (r == 0)
		r = template_check_layers(node_dir, t, "template", err);
	if (r < 0)
		return r;
	snprintf(path, sizeof(path), "%s/templates", node_dir);
	r = make_dirs(path, 0700);
	if (r < 0)
		return error_errno(err, r, "%s", path);
	snprintf(path, sizeof(path), "%s/templates/%s.json", node_dir, t->id);
	r = template_serialize(t, &text);
	if (r == 0)
		r = file_replace(AT_FDCWD, path, buf_str(&text), 0600);
	return r < 0 ? error_errno(err, r, "%s", path) : 0;
}

struct templates {
	struct map by_id;    /* of files: struct template, owned */
	struct map by_alias; /* the same objects */
	struct map builds;   /* build id → struct template, owned */
	struct map tags;     /* id:tag → one of these */
	size_t skipped;
};

struct templates *templates_new(void)
{
	return calloc(1, sizeof(struct templates));
}

static void drop(struct map *by_id)
{
	map_foreach(by_id, s) free(s->value);
	map_done(by_id);
}

void templates_free(struct templates *t)
{
	if (!t)
		return;
	map_done(&t->by_alias);
	drop(&t->by_id);
	map_done(&t->tags);
	drop(&t->builds);
	free(t);
}

static int read_one(const char *node_dir, int dir, const char *name, struct template *ret, struct error *err)
{
	cleanup_buf struct buf text = BUF_INIT;
	int r = file_read(dir, name, TEMPLATE_MAX_FILE, &text);
	if (r < 0)
		return error_errno(err, r, "template file %s", name);
	r = template_parse(buf_str(&text), name, ret, err);
	if (r == 0 && (strlen(name) != strlen(ret->id) + 5 || strncmp(name, ret->id, strlen(ret->id)) != 0))
		r = error_set(err, -EINVAL, 400, "%s: the file is not named after its id", name);
	return r < 0 ? r : template_check_layers(node_dir, ret, name, err);
}

/* Adds a copy; of two with one alias the newer has it (the id decides between equals, so that the order of reading does not). */
static int add(struct templates *t, const struct template *from)
{
	struct template *copy = malloc(sizeof(*copy));
	if (!copy)
		return -ENOMEM;
	*copy = *from;
	if (map_put(&t->by_id, str_of(copy->id), copy, NULL) < 0) {
		free(copy);
		return -ENOMEM;
	}
	if (!*copy->alias)
		return 0;
	const struct template *rival = map_get(&t->by_alias, str_of(copy->alias));
	if (rival && (rival->created_at > copy->created_at ||
			     (rival->created_at == copy->created_at && strcmp(rival->id, copy->id) > 0)))
		return 0;
	return map_put(&t->by_alias, str_of(copy->alias), copy, NULL);
}

static int read_all(const char *node_dir, struct templates *into, struct error *err)
{
	char path[PATH_MAX];
	snprintf(path, sizeof(path), "%s/templates", node_dir);
	cleanup_dir DIR *d = opendir(path);
	if (!d)
		return errno == ENOENT ? 0 : error_errno(err, -errno, "%s", path);
	for (struct dirent *e; (e = readdir(d));) {
		struct template one;
		struct error why = {0};
		size_t n = strlen(e->d_name);
		if (e->d_name[0] == '.' || n < 5 || strcmp(e->d_name + n - 5, ".json") != 0)
			continue;
		if (read_one(node_dir, dirfd(d), e->d_name, &one, &why) < 0) {
			into->skipped++;
			log_warn("template skipped: %s", why.message);
		} else if (add(into, &one) < 0)
			return error_errno(err, -ENOMEM, "templates");
	}
	return 0;
}

int templates_load(struct templates *t, const char *node_dir,
	void (*changed)(const struct template *t, bool gone, void *arg), void *arg, struct error *err)
{
	struct templates fresh = {.by_id = MAP_INIT, .by_alias = MAP_INIT, .builds = t->builds, .tags = t->tags};
	int r = read_all(node_dir, &fresh, err);
	if (r < 0) {
		map_done(&fresh.by_alias);
		drop(&fresh.by_id);
		return r;
	}
	struct templates old = *t;
	*t = fresh;
	map_foreach(&old.by_id, s) if (!map_get(&t->by_id, map_slot_key(s)))
		changed(s->value, true, arg);
	map_foreach(&t->by_id, s) {
		const struct template *before = map_get(&old.by_id, map_slot_key(s));
		if (!before || memcmp(before, s->value, sizeof(*before)) != 0)
			changed(s->value, false, arg);
	}
	map_done(&old.by_alias);
	drop(&old.by_id);
	return 0;
}

static size_t tag_key(char to[TEMPLATE_ID + TEMPLATE_TAG + 2], const char *id, const char *tag)
{
	int n = snprintf(to, TEMPLATE_ID + TEMPLATE_TAG + 2, "%.*s:%.*s", TEMPLATE_ID, id, TEMPLATE_TAG, tag);
	return (size_t)n;
}

int templates_put_build(struct templates *t, const struct template *build)
{
	struct template *old = map_get(&t->builds, str_of(build->build_id));
	if (old) {
		*old = *build;
		return 0;
	}
	struct template *copy = malloc(sizeof(*copy));
	if (!copy || map_put(&t->builds, str_of(build->build_id), copy, NULL) < 0) {
		free(copy);
		return -ENOMEM;
	}
	*copy = *build;
	return 0;
}

void templates_drop_build(struct templates *t, const char *build_id)
{
	struct template *gone = map_del(&t->builds, str_of(build_id));
	for (bool again = gone != NULL; again;) {
		again = false;
		map_foreach(&t->tags, s) if (s->value == gone)
		{
			map_del(&t->tags, map_slot_key(s));
			again = true;
			break;
		}
	}
	free(gone);
}

int templates_set_tag(struct templates *t, const char *id, const char *tag, const char *build_id)
{
	char key[TEMPLATE_ID + TEMPLATE_TAG + 2];
	size_t n = tag_key(key, id, tag);
	struct template *build = build_id ? map_get(&t->builds, str_of(build_id)) : NULL;
	if (!build_id)
		map_del(&t->tags, str_n(key, n));
	else if (!build)
		return -ENOENT;
	return build ? map_put(&t->tags, str_n(key, n), build, NULL) : 0;
}

const struct template *templates_find_build(const struct templates *t, struct str build_id)
{
	return map_get(&t->builds, build_id);
}

const struct template *templates_find(const struct templates *t, struct str reference)
{
	char key[TEMPLATE_ID + TEMPLATE_TAG + 2];
	struct str name = reference, tag = STR("default");
	str_cut(reference, ':', &name, &tag);
	const struct template *found = NULL;
	if (str_is(tag, "default")) {
		found = map_get(&t->by_id, name);
		if (!found)
			found = map_get(&t->by_alias, name);
	}
	if (found || !good_id(name) || tag.n > TEMPLATE_TAG)
		return found;
	int n = snprintf(key, sizeof(key), "%.*s:%.*s", STR_FMT(name), STR_FMT(tag));
	return map_get(&t->tags, str_n(key, (size_t)n));
}

size_t templates_skipped(const struct templates *t)
{
	return t->skipped;
}

void templates_each(const struct templates *t, void (*fn)(const struct template *t, void *arg), void *arg)
{
	map_foreach(&t->by_id, s) fn(s->value, arg);
}

void templates_each_build(const struct templates *t, void (*fn)(const struct template *t, void *arg), void *arg)
{
	map_foreach(&t->builds, s) fn(s->value, arg);
}

uint64_t template_size(const struct template *t)
{
	uint64_t size = 0;
	for (size_t i = 0; i < t->n_layers; i++)
		size += t->layers[i].size;
	return size;
}
