#include "image/docker_config.h"

#include "base/cleanup.h"
#include "base/encode.h"
#include "io/json.h"

#include <errno.h>
#include <openssl/crypto.h>

/* "https://index.docker.io/v1/" is "docker.io"; "r.example:5000/team" stays. Returns false for what names no registry. */
static bool normal_key(struct str key, char registry[REFERENCE_REGISTRY_MAX], struct str *ret_path)
{
	char host[REFERENCE_HOST_MAX];
	uint16_t port;
	struct str first, path = {0};
	bool https = str_starts(key, STR("https://"));
	if (https || str_starts(key, STR("http://")))
		key = str_from(key, https ? 8 : 7);
	if (str_cut(key, '/', &first, &path))
		key = first;
	if (reference_host(key, host, &port) < 0)
		return false;
	snprintf(registry, REFERENCE_REGISTRY_MAX, port && port != 443 ? "%s:%u" : "%s", host, port);
	while (path.n && path.p[path.n - 1] == '/')
		path.n--;
	/* What old clients wrote behind the host is no repository. */
	*ret_path = str_is(path, "v1") || str_is(path, "v2") ? (struct str){0} : path;
	return true;
}

/* How much of registry/repository the key names: 0 nothing, 1 the registry, more with each byte of the repository. */
static size_t matches(struct str key, struct str registry, struct str repository)
{
	char name[REFERENCE_REGISTRY_MAX];
	struct str path;
	if (!normal_key(key, name, &path) || !str_is(registry, name))
		return 0;
	if (!path.n)
		return 1;
	bool whole = repository.n == path.n || (repository.n > path.n && repository.p[path.n] == '/');
	return str_starts(repository, path) && whole ? 1 + path.n : 0;
}

static json_t *best(json_t *object, struct str registry, struct str repository, size_t *ret_length)
{
	const char *key;
	json_t *value, *found = NULL;
	size_t most = 0;
	json_object_foreach(object, key, value) {
		size_t n = matches(str_of(key), registry, repository);
		if (n > most) {
			most = n;
			found = value;
		}
	}
	*ret_length = most;
	return found;
}

static int take(struct str s, const char **ret)
{
	if (!s.n || memchr(s.p, 0, s.n))
		return 0;
	*ret = str_dup(s);
	return *ret ? 0 : -ENOMEM;
}

static int read_entry(const json_t *entry, struct source_credentials *c, struct error *err)
{
	cleanup_buf struct buf pair = BUF_INIT;
	struct str user = json_str(json_object_get(entry, "username")), password = json_str(json_object_get(entry, "password")), auth = json_str(json_object_get(entry, "auth"));
	struct str token = json_str(json_object_get(entry, "identitytoken"));
	int r = 0;
	if (auth.n && (base64_decode(&pair, auth) < 0 || !str_cut(buf_str(&pair), ':', &user, &password)))
		return error_set(err, -EINVAL, 400, "the Docker configuration has an entry for the registry whose auth is not base64 of user:password");
	/* Docker fills the password with NULs when there is a token. */
	while (password.n && !password.p[password.n - 1])
		password.n--;
	if (token.n)
		r = take(token, &c->identity_token);
	else if (user.n)
		r = take(user, &c->username) ?: take(password, &c->password);
	if (pair.data)
		OPENSSL_cleanse(pair.data, pair.cap);
	if (r < 0)
		return error_set(err, r, 500, "out of memory");
	return c->identity_token || (c->username && c->password) ? 1 : 0;
}

int docker_config_find(struct str json, struct str registry, struct str repository, struct source_credentials *ret, struct error *err)
{
	struct source_credentials c = {0};
	size_t length, helper_length;
	cleanup_json json_t *j = json_parse(json, DOCKER_CONFIG_MAX, "configuration", NULL);
	if (!j || !json_is_object(j))
		return error_set(err, -EINVAL, 400, "the Docker configuration is no JSON object of at most %d KiB", DOCKER_CONFIG_MAX >> 10);
	json_t *entry = best(json_object_get(j, "auths"), registry, repository, &length);
	best(json_object_get(j, "credHelpers"), registry, repository, &helper_length);
	int r = entry && !helper_length ? read_entry(entry, &c, err) : 0;
	/* With credsStore `docker login` leaves an empty entry behind: the secret is in the store. */
	bool stored = entry && r == 0 && json_str(json_object_get(j, "credsStore")).n;
	if (helper_length || stored)
		r = error_set(err, -ENOTSUP, 400, "the Docker configuration keeps the credentials of %.*s in a helper program (%s), which is not run here: log in without one, or give the credentials with the image",
			STR_FMT(registry), helper_length ? "credHelpers" : "credsStore");
	if (r <= 0) {
		source_credentials_done(&c);
		return r;
	}
	*ret = c;
	return 1;
}

static void wipe(const char **text)
{
	if (*text)
		OPENSSL_cleanse((void *)*text, strlen(*text));
	free((void *)*text);
	*text = NULL;
}

void source_credentials_done(struct source_credentials *c)
{
	const char **all[] = {&c->username, &c->password, &c->identity_token, &c->aws_access_key_id, &c->aws_secret_access_key, &c->aws_region, &c->gcp_service_account};
	for (size_t i = 0; i < ARRAY_SIZE(all); i++)
		wipe(all[i]);
}
