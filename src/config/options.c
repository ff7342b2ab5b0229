#include "config/options.h"
#include "base/cleanup.h"
#include "base/fd.h"

#include <errno.h>
#include <fcntl.h>
#include <stddef.h>
#include <stdio.h>
#include <stdlib.h>

enum kind { STRING, INT, PERCENT, FACTOR, BOOL };

struct option {
	const char *name;
	const char *fallback;
	const char *doc;
	double min, max;
	size_t offset;
	enum kind kind;
};

struct option_value {
	char *text;
	char *source;
};

static const struct option table[] = {
#define ENTRY(name, m, kind, def, min, max, doc) {name, def, doc, min, max, offsetof(struct options, m), kind},
	OPTIONS(ENTRY)
#undef ENTRY
};

/* Variables of ours that are no options. */
static const char *const other_variables[] = {"CUBICLE_CONFIG", "CUBICLE_BACKEND", "CUBICLE_API_KEY", "CUBICLE_API_URL"};

static const struct option *find(struct str name)
{
	for (size_t i = 0; i < ARRAY_SIZE(table); i++)
		if (str_is(name, table[i].name))
			return &table[i];
	return NULL;
}

static int parse_number(const struct option *opt, const char *text, double *ret)
{
	char *end;
	errno = 0;
	double v = strtod(text, &end);
	if (errno || end == text || *end || v != v || v < opt->min || v > opt->max)
		return -EINVAL;
	if (opt->kind != FACTOR && v != (double)(int64_t)v)
		return -EINVAL;
	*ret = v;
	return 0;
}

int options_set(struct options *o, struct str name, struct str value, const char *source, struct error *err)
{
	const struct option *opt = find(name);
	if (!opt)
		return error_set(err, -ENOENT, 400, "%s: there is no option '%.*s' (see `cubicle config`)", source, STR_FMT(name));
	cleanup_free char *text = str_dup(value);
	cleanup_free char *from = str_dup(str_of(source));
	if (!text || !from)
		return error_errno(err, -ENOMEM, "option %s", opt->name);
	void *at = (char *)o + opt->offset;
	double number;
	switch (opt->kind) {
	case STRING:
		if (strlen(text) != value.n || strpbrk(text, "\n\r"))
			return error_set(err, -EINVAL, 400, "%s: %s: the value has a line break or NUL", source, opt->name);
		*(const char **)at = text;
		break;
	case BOOL:
		if (!str_is(value, "true") && !str_is(value, "false"))
			return error_set(err, -EINVAL, 400, "%s: %s: '%s' is neither true nor false", source, opt->name, text);
		*(bool *)at = str_is(value, "true");
		break;
	case INT:
	case PERCENT:
	case FACTOR:
		if (parse_number(opt, text, &number) < 0)
			return error_set(err, -EINVAL, 400, "%s: %s: '%s' is no number from %.0f to %.0f", source, opt->name, text,
				opt->min, opt->max);
		if (opt->kind == FACTOR)
			*(double *)at = number;
		else
			*(int64_t *)at = (int64_t)number;
		break;
	}
	struct option_value *v = &o->values[opt - table];
	free(v->text);
	free(v->source);
	v->text = steal_pointer(&text);
	v->source = steal_pointer(&from);
	return 0;
}

int options_init(struct options *o)
{
	*o = (struct options){.values = calloc(ARRAY_SIZE(table), sizeof(*o->values))};
	if (!o->values)
		return -ENOMEM;
	for (size_t i = 0; i < ARRAY_SIZE(table); i++) {
		int r = options_set(o, str_of(table[i].name), str_of(table[i].fallback), "default", NULL);
		if (r < 0)
			return r;
	}
	return 0;
}

void options_done(struct options *o)
{
	for (size_t i = 0; o->values && i < ARRAY_SIZE(table); i++) {
		free(o->values[i].text);
		free(o->values[i].source);
	}
	free(o->values);
	*o = (struct options){0};
}

static int read_lines(struct options *o, const char *path, struct str text, struct error *err)
{
	int number = 0;
	while (text.n) {
		struct str line, rest = str_n("", 0), name, value;
		if (!str_cut(text, '\n', &line, &rest))
			line = text;
		text = rest;
		number++;
		line = str_trim(line);
		if (line.n && line.p[line.n - 1] == '\r')
			line.n--;
		if (!line.n || line.p[0] == '#')
			continue;
		char source[512];
		snprintf(source, sizeof(source), "%s:%d", path, number);
		if (!str_cut(line, '=', &name, &value))
			return error_set(err, -EINVAL, 400, "%s: expected `name = value`", source);
		int r = options_set(o, str_trim(name), str_trim(value), source, err);
		if (r < 0)
			return r;
	}
	return 0;
}

int options_read_file(struct options *o, const char *path, bool required, struct error *err)
{
	cleanup_buf struct buf text = BUF_INIT;
	int r = file_read(AT_FDCWD, path, 1 << 20, &text);
	if (r == -ENOENT && !required)
		return 0;
	if (r < 0)
		return error_errno(err, r, "configuration file %s", path);
	return read_lines(o, path, buf_str(&text), err);
}

int options_read_text(struct options *o, const char *source, struct str text, struct error *err)
{
	return read_lines(o, source, text, err);
}

/* CUBICLE_POOL_MIN names pool.min; an option's own '_' and '.' both match '_'. */
static const struct option *find_variable(struct str name)
{
	for (size_t i = 0; i < ARRAY_SIZE(table); i++) {
		const char *n = table[i].name;
		size_t j = 0;
		for (; j < name.n && n[j]; j++) {
			char c = n[j] == '.' ? '_' : n[j] >= 'a' && n[j] <= 'z' ? (char)(n[j] - 32) : n[j];
			if (c != name.p[j])
				break;
		}
		if (j == name.n && !n[j])
			return &table[i];
	}
	return NULL;
}

int options_read_env(struct options *o, char **environ, struct error *err)
{
	for (char **e = environ; *e; e++) {
		struct str name, value;
		if (!str_starts(str_of(*e), STR("CUBICLE_")) || !str_cut(str_of(*e), '=', &name, &value))
			continue;
		bool other = false;
		for (size_t i = 0; i < ARRAY_SIZE(other_variables); i++)
			other |= str_is(name, other_variables[i]);
		if (other)
			continue;
		const struct option *opt = find_variable(str_from(name, strlen("CUBICLE_")));
		if (!opt)
			return error_set(err, -ENOENT, 400, "environment: %.*s names no option (see `cubicle config`)", STR_FMT(name));
		char source[300];
		snprintf(source, sizeof(source), "environment %.*s", STR_FMT(name));
		int r = options_set(o, str_of(opt->name), value, source, err);
		if (r < 0)
			return r;
	}
	return 0;
}

static bool is_in(struct str name, const char *const *names)
{
	for (; names && *names; names++)
		if (str_is(name, *names))
			return true;
	return false;
}

int options_read_flags(struct options *o, int *argc, char **argv, const char *const *others, struct error *err)
{
	int kept = 1, i = 1;
	for (; i < *argc && strcmp(argv[i], "--") != 0; i++) {
		struct str word = str_of(argv[i]), name = word, value = str_n(NULL, 0);
		bool joined = str_starts(word, STR("--")) && str_cut(str_from(word, 2), '=', &name, &value);
		if (!joined)
			name = str_from(word, 2);
		if (!str_starts(word, STR("--")) || !find(name) || is_in(name, others)) {
			argv[kept++] = argv[i];
			continue;
		}
		if (!joined) {
			if (i + 1 >= *argc)
				return error_set(err, -EINVAL, 400, "%s needs a value", argv[i]);
			value = str_of(argv[++i]);
		}
		char source[100];
		snprintf(source, sizeof(source), "flag --%.*s", STR_FMT(name));
		int r = options_set(o, name, value, source, err);
		if (r < 0)
			return r;
	}
	for (; i < *argc; i++)
		argv[kept++] = argv[i];
	*argc = kept;
	argv[kept] = NULL;
	return 0;
}

int options_load(struct options *o, int *argc, char **argv, const char *const *others, char **environ, struct error *err)
{
	const char *path = getenv("CUBICLE_CONFIG");
	bool named = path && *path;
	int kept = 1, i = 1;
	for (; i < *argc && strcmp(argv[i], "--") != 0; i++) {
		bool joined = strncmp(argv[i], "--config=", 9) == 0;
		if (!joined && strcmp(argv[i], "--config") != 0) {
			argv[kept++] = argv[i];
			continue;
		}
		if (!joined && i + 1 >= *argc)
			return error_set(err, -EINVAL, 400, "--config needs a path");
		path = joined ? argv[i] + 9 : argv[++i];
		named = true;
	}
	for (; i < *argc; i++)
		argv[kept++] = argv[i];
	*argc = kept;
	argv[kept] = NULL;
	int r = options_read_file(o, named ? path : "/etc/cubicle/cubicle.conf", named, err);
	if (r == 0)
		r = options_read_env(o, environ, err);
	if (r == 0)
		r = options_read_flags(o, argc, argv, others, err);
	return r < 0 ? r : options_check(o, err);
}

int options_check(const struct options *o, struct error *err)
{
	if (o->ready_max && o->ready_min > o->ready_max)
		return error_set(err, -EINVAL, 400, "ready.min (%lld) is over ready.max (%lld)", (long long)o->ready_min, (long long)o->ready_max);
	if (o->pool_min > o->pool_max)
		return error_set(err, -EINVAL, 400, "pool.min (%lld) is over pool.max (%lld)", (long long)o->pool_min,
			(long long)o->pool_max);
	if (o->timeout_default > o->timeout_max)
		return error_set(err, -EINVAL, 400, "timeout.default (%lld) is over timeout.max (%lld)",
			(long long)o->timeout_default, (long long)o->timeout_max);
	static const char *const isolations[] = {"auto", "namespace", "microvm"};
	bool known = false;
	for (size_t i = 0; i < ARRAY_SIZE(isolations); i++)
		known |= strcmp(o->isolation, isolations[i]) == 0;
	if (!known)
		return error_set(err, -EINVAL, 400, "isolation '%s' is none of auto, namespace, microvm", o->isolation);
	if (o->state_dir[0] != '/')
		return error_set(err, -EINVAL, 400, "state.dir '%s' is not an absolute path", o->state_dir);
	if (o->uid_base % 65536)
		return error_set(err, -EINVAL, 400, "uid_base %lld is no multiple of 65536", (long long)o->uid_base);
	if ((*o->tls_cert || *o->tls_key) && !*o->listen_tls)
		return error_set(err, -EINVAL, 400, "%s is set, but listen.tls is not", *o->tls_cert ? "tls.cert" : "tls.key");
	if (*o->tls_key && !*o->tls_cert)
		return error_set(err, -EINVAL, 400, "tls.key is set, but tls.cert is not");
	return 0;
}

/* "host:port"; an IPv6 address has its colons in brackets. */
static bool has_port(struct str host)
{
	size_t colon = host.n;
	while (colon && host.p[colon - 1] >= '0' && host.p[colon - 1] <= '9')
		colon--;
	return colon && colon < host.n && host.p[colon - 1] == ':';
}

struct str options_domain_name(const struct options *o)
{
	struct str name = str_of(o->domain);
	if (has_port(name))
		while (name.p[--name.n] != ':')
			;
	return name;
}

int options_client_domain(const struct options *o, struct buf *to)
{
	const char *port = strrchr(o->listen_tls, ':');
	buf_add_c(to, o->domain);
	if (*o->domain && port && strcmp(port, ":443") != 0 && !has_port(str_of(o->domain)))
		buf_add_c(to, port);
	return to->failed ? -ENOMEM : 0;
}

char *options_listen_url(const struct options *o)
{
	const char *colon = strrchr(o->listen, ':');
	if (!colon)
		return str_dup(STR("http://127.0.0.1:3000"));
	struct str host = str_n(o->listen, (size_t)(colon - o->listen));
	if (!host.n || str_is(host, "0.0.0.0") || str_is(host, "*") || str_is(host, "[::]"))
		host = STR("127.0.0.1");
	char *url;
	return asprintf(&url, "http://%.*s%s", STR_FMT(host), colon) < 0 ? NULL : url;
}

int options_serialize(const struct options *o, struct buf *to)
{
	for (size_t i = 0; i < ARRAY_SIZE(table); i++)
		buf_addf(to, "%s = %s\n", table[i].name, o->values[i].text);
	return to->failed ? -ENOMEM : 0;
}

void options_each(const struct options *o, void (*fn)(const char *, const char *, const char *, const char *, void *), void *arg)
{
	for (size_t i = 0; i < ARRAY_SIZE(table); i++)
		fn(table[i].name, o->values[i].text, o->values[i].source, table[i].doc, arg);
}
