#include "interp/kernelspec.h"

#include "base/cleanup.h"
#include "base/fd.h"
#include "base/log.h"
#include "io/json.h"

#include <ctype.h>
#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <stdio.h>

enum { MAX_SPEC = 64 * 1024, MAX_WORDS = 256 };

static void lower(char *s)
{
	for (; *s; s++)
		*s = (char)tolower((unsigned char)*s);
}

static void free_words(char **words)
{
	for (char **w = words; w && *w; w++)
		free(*w);
	free(words);
}

void kernelspec_free(struct kernelspec *s)
{
	if (!s)
		return;
	free(s->name);
	free(s->language);
	free(s->dir);
	free_words(s->argv);
	free_words(s->env);
	free(s);
}

static char **parse_argv(const json_t *j)
{
	size_t n = json_array_size(j);
	if (!n || n > MAX_WORDS)
		return NULL;
	char **words = calloc(n + 1, sizeof(*words));
	for (size_t i = 0; words && i < n; i++) {
		const json_t *word = json_array_get(j, i);
		words[i] = json_is_string(word) ? str_dup(json_str(word)) : NULL;
		if (!words[i]) {
			free_words(words);
			return NULL;
		}
	}
	return words;
}

static char **parse_env(json_t *j)
{
	size_t n = json_object_size(j), i = 0;
	char **words = n <= MAX_WORDS ? calloc(n + 1, sizeof(*words)) : NULL;
	const char *key;
	json_t *value;
	if (!words)
		return NULL;
	json_object_foreach(j, key, value)
	{
		if (!json_is_string(value) ||
			asprintf(&words[i], "%s=%s", key, json_string_value(value)) < 0) {
			words[i] = NULL;
			free_words(words);
			return NULL;
		}
		i++;
	}
	return words;
}

struct kernelspec *kernelspec_parse(struct str text, const char *name, const char *dir, struct error *err)
{
	cleanup_json json_t *j = json_parse(text, MAX_SPEC, "kernel.json", err);
	if (!j)
		return NULL;
	struct kernelspec *s = calloc(1, sizeof(*s));
	if (s) {
		const json_t *language = json_object_get(j, "language");
		const json_t *cubicle = json_object_get(json_object_get(j, "metadata"), "cubicle");
		s->name = strdup(name);
		s->dir = strdup(dir);
		s->language = json_is_string(language) ? str_dup(json_str(language)) : strdup(name);
		s->argv = parse_argv(json_object_get(j, "argv"));
		s->env = parse_env(json_object_get(j, "env"));
		s->interrupt_by_message = str_is(json_str(json_object_get(j, "interrupt_mode")), "message");
		s->ipc = str_is(json_str(json_object_get(cubicle, "transport")), "ipc");
	}
	if (!s || !s->name || !s->dir || !s->language || !s->argv || !s->env) {
		kernelspec_free(s);
		error_set(err, -EINVAL, 500, "argv must be a list of words, env an object of strings");
		return NULL;
	}
	lower(s->name);
	lower(s->language);
	return s;
}

static struct kernelspec *find_name(const struct kernelspecs *k, const char *name)
{
	for (struct kernelspec *s = k->first; s; s = s->next)
		if (strcasecmp(s->name, name) == 0)
			return s;
	return NULL;
}

static void add_spec(struct kernelspecs *k, const char *parent, const char *name)
{
	cleanup_free char *dir = NULL, *file = NULL;
	cleanup_buf struct buf text = BUF_INIT;
	struct error err = {0};
	if (asprintf(&dir, "%s/%s", parent, name) < 0 || asprintf(&file, "%s/kernel.json", dir) < 0)
		return;
	int r = file_read(AT_FDCWD, file, MAX_SPEC, &text);
	if (r == -ENOENT || r == -ENOTDIR)
		return;
	struct kernelspec *s = r < 0 ? NULL : kernelspec_parse(buf_str(&text), name, dir, &err);
	if (!s) {
		log_warn("%s: %s", file, r < 0 ? strerror(-r) : err.message);
		return;
	}
	struct kernelspec **end = &k->first;
	while (*end)
		end = &(*end)->next;
	*end = s;
}

static void scan_dir(struct kernelspecs *k, const char *path)
{
	cleanup_dir DIR *d = opendir(path);
	struct dirent *e;
	while (d && (e = readdir(d)))
		if (e->d_name[0] != '.' && !find_name(k, e->d_name))
			add_spec(k, path, e->d_name);
}

void kernelspecs_scan(struct kernelspecs *k)
{
	struct str rest = str_of(k->path), dir;
	while (rest.n) {
		if (!str_cut(rest, ':', &dir, &rest)) {
			dir = rest;
			rest = STR("");
		}
		cleanup_free char *path = str_dup(dir);
		if (path && *path)
			scan_dir(k, path);
	}
}

void kernelspecs_done(struct kernelspecs *k)
{
	while (k->first) {
		struct kernelspec *s = k->first;
		k->first = s->next;
		kernelspec_free(s);
	}
}

static const struct kernelspec *find_known(const struct kernelspecs *k, const char *language)
{
	const struct kernelspec *s = find_name(k, language);
	for (struct kernelspec *i = k->first; !s && i; i = i->next)
		if (strcmp(i->language, language) == 0)
			s = i;
	/* The JavaScript kernel takes TypeScript too. */
	return s || strcmp(language, "typescript") != 0 ? s : find_known(k, "javascript");
}

const struct kernelspec *kernelspecs_find(struct kernelspecs *k, const char *language)
{
	const struct kernelspec *s = find_known(k, language);
	if (!s) {
		kernelspecs_scan(k);
		s = find_known(k, language);
	}
	return s;
}

int language_normalise(struct str s, char ret[LANGUAGE_SIZE])
{
	static const char *const aliases[][2] = {{"", "python"}, {"js", "javascript"}, {"ts", "typescript"}};
	if (s.n >= LANGUAGE_SIZE)
		return -EINVAL;
	for (size_t i = 0; i < s.n; i++) {
		if (!isalnum((unsigned char)s.p[i]) && (!s.p[i] || !strchr("._+#-", s.p[i])))
			return -EINVAL;
		ret[i] = (char)tolower((unsigned char)s.p[i]);
	}
	ret[s.n] = '\0';
	for (size_t i = 0; i < ARRAY_SIZE(aliases); i++)
		if (strcmp(ret, aliases[i][0]) == 0)
			strcpy(ret, aliases[i][1]);
	return 0;
}
