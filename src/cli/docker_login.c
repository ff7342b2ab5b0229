#include "cli/docker_login.h"
#include "base/cleanup.h"
#include "base/fd.h"
#include "cli/child.h"
#include "image/docker_config.h"
#include "io/json.h"

#include <fcntl.h>
#include <stdio.h>
#include <string.h>

/* What docker itself calls its own registry towards helpers. */
#define HUB_KEY "https://index.docker.io/v1/"

static int identity_token(const struct reference *image, struct error *err)
{
	return error_set(err, -ENOTSUP, 400, "docker's login for %s is an identity token, which a build cannot take: give --username and --password-stdin", image->registry);
}

static int give(struct str user, struct str password, char **ret_user, char **ret_password, struct error *err)
{
	char *u = str_dup(user), *p = str_dup(password);
	if (!u || !p) {
		free(u);
		free(p);
		return error_errno(err, -ENOMEM, "credentials");
	}
	*ret_user = u;
	*ret_password = p;
	return 1;
}

/* Keys may be "host" or "https://host/path". */
static bool means(const char *key, const char *registry)
{
	struct reference r;
	cleanup_buf struct buf text = BUF_INIT;
	struct str host = str_of(key), rest;
	if (str_starts(host, STR("https://")))
		host = str_from(host, strlen("https://"));
	str_cut(host, '/', &host, &rest);
	buf_addf(&text, "%.*s/x", STR_FMT(host));
	return reference_parse(buf_str(&text), &r, NULL) == 0 && strcmp(r.registry, registry) == 0;
}

char *docker_login_helper(struct str config, const char *registry)
{
	struct error ignored = {0};
	cleanup_json json_t *j = json_parse(config, DOCKER_CONFIG_MAX, "docker's configuration", &ignored);
	struct str helper = json_str(json_object_get(j, "credsStore"));
	const char *key;
	json_t *value;
	json_object_foreach(json_object_get(j, "credHelpers"), key, value)
		if (means(key, registry))
			helper = json_str(value);
	/* A name that completes one, not a path. */
	return helper.n && str_chr(helper, '/') < 0 ? str_dup(helper) : NULL;
}

static int ask_helper(const char *helper, const struct reference *image, char **ret_user, char **ret_password, struct error *err)
{
	char program[128];
	cleanup_buf struct buf output = BUF_INIT;
	const char *argv[] = {program, "get", NULL};
	struct child c = {.argv = argv, .input = str_of(strcmp(image->registry, "docker.io") == 0 ? HUB_KEY : image->registry), .output = -1, .to_output = &output};
	if (snprintf(program, sizeof(program), "docker-credential-%s", helper) >= (int)sizeof(program))
		return error_set(err, -EINVAL, 400, "docker's configuration: the name of the helper is too long");
	int code = child_run(&c, err);
	/* It ends with 1 when it has nothing for that registry. */
	if (code)
		return code < 0 ? code : 0;
	cleanup_json json_t *j = json_parse(buf_str(&output), DOCKER_CONFIG_MAX, program, err);
	if (!j)
		return err ? err->code : -EINVAL;
	struct str user = json_str(json_object_get(j, "Username"));
	if (str_is(user, "<token>"))
		return identity_token(image, err);
	return user.n ? give(user, json_str(json_object_get(j, "Secret")), ret_user, ret_password, err) : 0;
}

static int read_config(struct str text, const struct reference *image, char **ret_user, char **ret_password, struct error *err)
{
	struct source_credentials found = {0};
	struct error here = {0};
	int r = docker_config_find(text, str_of(image->registry), str_of(image->repository), &found, &here);
	/* A store may know it although the file does not name the registry. */
	if (r == -ENOTSUP || r == 0) {
		cleanup_free char *helper = docker_login_helper(text, image->registry);
		if (helper)
			return ask_helper(helper, image, ret_user, ret_password, err);
	}
	if (r < 0 && err)
		*err = here;
	if (r > 0)
		r = found.identity_token ? identity_token(image, err) : found.username ? give(str_of(found.username), str_of(found.password), ret_user, ret_password, err) : 0;
	source_credentials_done(&found);
	return r;
}

int docker_login(const struct reference *image, char **ret_user, char **ret_password, struct error *err)
{
	const char *dir = getenv("DOCKER_CONFIG"), *home = getenv("HOME");
	cleanup_free char *path = NULL;
	cleanup_buf struct buf text = BUF_INIT;
	bool own = dir && *dir;
	if (!own && !(home && *home))
		return 0;
	if (asprintf(&path, "%s%s/config.json", own ? dir : home, own ? "" : "/.docker") < 0)
		return error_errno(err, -ENOMEM, "docker's configuration");
	int r = file_read(AT_FDCWD, path, DOCKER_CONFIG_MAX, &text);
	if (r == -ENOENT || r == -ENOTDIR)
		return 0;
	if (r < 0)
		return error_errno(err, r, "%s", path);
	r = read_config(buf_str(&text), image, ret_user, ret_password, err);
	return r < 0 ? error_wrap(err, r, "%s", path) : r;
}
