/*
 * Drives image/source.h for the tests of registries and archives:
 *   pull [--OPTION=VALUE]... image REFERENCE DIRECTORY
 *   pull [--OPTION=VALUE]... oci-archive|docker-archive|rootfs FILE NAME DIRECTORY
 * Options are the server's, and: --ca=FILE, --user=NAME:PASSWORD, --token=IDENTITY, --aws=ID:SECRET:REGION, --ecr=URL, --gcp=FILE, --login=FILE (a Docker configuration),
 * --patience=SECONDS, --platform=ARCH[/VARIANT], --limit=BYTES (of a file). Prints one JSON object: {"digest", "layers", ...} or {"error", "status", "code"}.
 * The layers are written to DIRECTORY/0, 1, ...; with "" as DIRECTORY none is fetched.
 */
#include "base/cleanup.h"
#include "base/fd.h"
#include "base/log.h"
#include "image/docker_config.h"
#include "image/source.h"

#include <errno.h>
#include <fcntl.h>
#include <jansson.h>
#include <signal.h>
#include <stdio.h>
#include <sys/resource.h>

struct pull {
	struct options options;
	struct buf ca, login;
	struct source_credentials given;
	bool has_given;
	json_t *log;
	uint64_t told;
};

static char *part(const char *text, int which)
{
	struct str rest = str_of(text), head = rest;
	for (int i = 0; i < which && str_cut(rest, ':', &head, &rest); i++)
		;
	if (which < 2 && str_cut(rest, ':', &head, &rest))
		return str_dup(head);
	return str_dup(rest);
}

static int find_login(void *arg, struct str registry, struct str repository, struct source_credentials *ret, struct error *err)
{
	struct pull *p = arg;
	int r = buf_len(&p->login) ? docker_config_find(buf_str(&p->login), registry, repository, ret, err) : 0;
	return r < 0 ? r : 0;
}

static void add_log(void *arg, int level, const char *message)
{
	json_array_append_new(((struct pull *)arg)->log, json_string(message));
}

static void progress(void *arg, uint64_t done, uint64_t total)
{
	struct pull *p = arg;
	if (done > total)
		fprintf(stderr, "progress of %llu of %llu bytes\n", (unsigned long long)done, (unsigned long long)total);
	p->told = done;
}

static void read_or_die(const char *path, struct buf *to)
{
	if (file_read(AT_FDCWD, path, 1 << 20, to) < 0) {
		perror(path);
		exit(2);
	}
}

static void take_option(struct pull *p, struct source_env *e, const char *text)
{
	struct str name, value;
	struct error err = {0};
	if (!str_cut(str_of(text + 2), '=', &name, &value))
		exit(2);
	p->has_given = p->has_given || str_is(name, "user") || str_is(name, "token") || str_is(name, "aws") || str_is(name, "gcp");
	if (str_is(name, "ca")) {
		read_or_die(value.p, &p->ca);
	} else if (str_is(name, "login")) {
		read_or_die(value.p, &p->login);
	} else if (str_is(name, "user")) {
		struct str user, password;
		str_cut(value, ':', &user, &password);
		p->given.username = str_dup(user);
		p->given.password = str_dup(password);
	} else if (str_is(name, "token")) {
		p->given.identity_token = str_dup(value);
	} else if (str_is(name, "aws")) {
		p->given.aws_access_key_id = part(value.p, 0);
		p->given.aws_secret_access_key = part(value.p, 1);
		p->given.aws_region = part(value.p, 2);
	} else if (str_is(name, "gcp")) {
		struct buf key = BUF_INIT;
		read_or_die(value.p, &key);
		p->given.gcp_service_account = str_dup(buf_str(&key));
		buf_done(&key);
	} else if (str_is(name, "ecr")) {
		e->ecr_endpoint = value.p;
	} else if (str_is(name, "patience")) {
		e->patience_s = (unsigned)atoi(value.p);
	} else if (str_is(name, "limit")) {
		const struct rlimit limit = {(rlim_t)atoll(value.p), (rlim_t)atoll(value.p)};
		setrlimit(RLIMIT_FSIZE, &limit);
		signal(SIGXFSZ, SIG_IGN);
	} else if (!str_is(name, "platform") && options_set(&p->options, name, value, "test", &err) < 0) {
		fprintf(stderr, "%s\n", err.message);
		exit(2);
	}
}

static void take_platform(struct source_env *e, const char *text)
{
	if (strncmp(text, "--platform=", 11) != 0)
		return;
	static char copy[64];
	snprintf(copy, sizeof(copy), "%s", text + 11);
	char *slash = strchr(copy, '/');
	if (slash)
		*slash = 0;
	e->architecture = copy;
	e->variant = slash ? slash + 1 : "";
}

static json_t *list(char **texts)
{
	json_t *j = json_array();
	for (size_t i = 0; texts[i]; i++)
		json_array_append_new(j, json_string(texts[i]));
	return j;
}

static json_t *describe(const struct source_image *i)
{
	const struct source_config *c = &i->config;
	json_t *j = json_object(), *layers = json_array();
	for (size_t k = 0; k < i->n_layers; k++) {
		const struct source_layer *l = &i->layers[k];
		json_t *layer = json_object();
		json_object_set_new(layer, "digest", json_string(l->digest));
		json_object_set_new(layer, "diff_id", json_string(l->diff_id));
		json_object_set_new(layer, "format", json_string(source_format_name(l->format)));
		json_object_set_new(layer, "size", json_integer((json_int_t)l->size));
		json_array_append_new(layers, layer);
	}
	const struct {
		const char *name, *text;
	} texts[] = {{"reference", i->reference}, {"digest", i->digest}, {"architecture", c->architecture}, {"user", c->user}, {"workdir", c->workdir}, {"stop_signal", c->stop_signal}};
	for (size_t k = 0; k < ARRAY_SIZE(texts); k++)
		json_object_set_new(j, texts[k].name, json_string(texts[k].text));
	json_object_set_new(j, "env", list(c->env));
	json_object_set_new(j, "entrypoint", list(c->entrypoint));
	json_object_set_new(j, "cmd", list(c->cmd));
	json_object_set_new(j, "ports", list(c->exposed_ports));
	json_object_set_new(j, "labels", list(c->labels));
	json_object_set_new(j, "layers", layers);
	return j;
}

static int fetch(struct pull *p, struct source *s, const char *directory, struct error *err)
{
	const struct source_image *i = source_image(s);
	struct source_want wants[SOURCE_MAX_LAYERS];
	int r = 0;
	size_t n = 0;
	for (; r == 0 && n < i->n_layers; n++) {
		char path[4096];
		snprintf(path, sizeof(path), "%s/%zu", directory, n);
		wants[n] = (struct source_want){n, open(path, O_RDWR | O_CREAT | O_TRUNC | O_CLOEXEC, 0600)};
		if (wants[n].fd < 0)
			r = error_errno(err, -errno, "%s", path);
	}
	const struct source_fetch f = {.wants = wants, .n_wants = n, .progress = progress, .arg = p};
	if (r == 0)
		r = source_fetch(s, &f, err);
	for (size_t k = 0; k < n; k++)
		if (wants[k].fd >= 0)
			close(wants[k].fd);
	return r;
}

static int open_source(struct pull *p, struct source_env *e, char **words, struct source **ret, struct error *err)
{
	static const char *const kinds[] = {"oci-archive", "docker-archive", "rootfs"};
	if (!strcmp(words[0], "image"))
		return source_open_image(ret, e, str_of(words[1]), p->has_given ? &p->given : NULL, err);
	for (int k = 0; k < 3; k++)
		if (!strcmp(words[0], kinds[k])) {
			int fd = open(words[1], O_RDONLY | O_CLOEXEC); /* until the end of the process */
			return fd < 0 ? error_errno(err, -errno, "%s", words[1]) : source_open_archive(ret, e, fd, (enum source_archive)k, str_of(words[2]), err);
		}
	exit(2);
}

int main(int argc, char **argv)
{
	struct pull p = {.log = json_array()};
	struct source_env e = {.options = &p.options, .login = find_login, .log = add_log, .arg = &p};
	struct source *s = NULL;
	struct error err = {0};
	int at = 1;
	log_setup("pull", 2, LOG_INFO);
	options_init(&p.options);
	for (; at < argc && str_starts(str_of(argv[at]), STR("--")); at++)
		take_option(&p, &e, argv[at]);
	if (argc - at < 3)
		return 2;
	e.ca_pem = buf_str(&p.ca);
	int r = source_env_init(&e, &err);
	for (int i = 1; i < at; i++)
		take_platform(&e, argv[i]);
	json_t *out = NULL;
	if (r == 0)
		r = open_source(&p, &e, argv + at, &s, &err);
	if (r == 0 && *argv[argc - 1])
		r = fetch(&p, s, argv[argc - 1], &err);
	if (r == 0) {
		out = describe(source_image(s));
		json_object_set_new(out, "fetched", json_integer((json_int_t)p.told));
	} else {
		out = json_pack("{s:s, s:i, s:i}", "error", err.message, "status", err.status, "code", -err.code);
	}
	json_object_set(out, "log", p.log);
	char *text = json_dumps(out, 0);
	puts(text);
	free(text);
	json_decref(out);
	json_decref(p.log);
	source_free(s);
	source_env_done(&e);
	source_credentials_done(&p.given);
	buf_done(&p.ca);
	buf_done(&p.login);
	options_done(&p.options);
	return r < 0;
}
