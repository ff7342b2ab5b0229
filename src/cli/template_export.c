/* `cubicle template export`: the file system of a sandbox of the template as an image in one file. */
#include "cli/commands.h"
#include "base/cleanup.h"
#include "cli/build_follow.h"
#include "cli/exec.h"
#include "cli/oci_archive.h"
#include "cli/output.h"
#include "cli/signals.h"
#include "image/spec.h"
#include "io/json.h"
#include "io/url.h"

#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <string.h>
#include <sys/utsname.h>

enum { SANDBOX_S = 6 * 3600, STALLED_S = 120 };

struct export {
	struct client *client;
	const struct cli *cli;
	const char *given;
	struct progress progress;
	json_t *description; /* owned */
	struct target target;
	struct oci_writer *writer;
	int signals;
	int code;            /* of the first failed write */
	bool interrupted;
};

static int get_description(struct export *x, struct error *err)
{
	cleanup_buf struct buf path = BUF_INIT;
	buf_add_c(&path, "/templates/");
	url_encode(&path, str_of(x->given));
	buf_add_c(&path, "/description");
	return buf_cstr(&path) ? client_call(x->client, "GET", buf_cstr(&path), NULL, &x->description, NULL, err) : error_errno(err, -ENOMEM, "template");
}

static int start_sandbox(struct export *x, struct error *err)
{
	cleanup_json json_t *body = json_pack("{s:s,s:i,s:b,s:{s:s}}", "templateID", x->given, "timeout", SANDBOX_S, "allow_internet_access", 0, "metadata", "purpose", "export"), *made = NULL;
	if (!body)
		return error_set(err, -EINVAL, 400, "the template's name is no UTF-8");
	int r = client_call(x->client, "POST", "/v2/sandboxes", body, &made, NULL, err);
	if (r < 0)
		return r;
	const char *id = json_string_value(json_object_get(made, "sandboxID"));
	struct str token = json_str(json_object_get(made, "envdAccessToken"));
	if (!id || strlen(id) >= sizeof(x->target.id))
		return error_set(err, -EPROTO, 502, "the server did not say which sandbox it started");
	snprintf(x->target.id, sizeof(x->target.id), "%s", id);
	x->target.token = token.n ? str_dup(token) : NULL;
	return 0;
}

static void end_sandbox(struct export *x)
{
	char path[64];
	struct error err = {0};
	if (!*x->target.id)
		return;
	snprintf(path, sizeof(path), "/sandboxes/%s", x->target.id);
	if (client_call(x->client, "DELETE", path, NULL, NULL, NULL, &err) < 0)
		fprintf(stderr, "cubicle: the sandbox %s that was started for this could not be ended: %s\n", x->target.id, err.message);
	target_done(&x->target);
}

static size_t take_tar(char *p, size_t size, size_t n, void *arg)
{
	struct export *x = arg;
	x->code = oci_writer_add(x->writer, p, size * n);
	if (x->code < 0)
		return 0;
	progress_show(&x->progress, "exporting", -1, oci_writer_size(x->writer), 0);
	return size * n;
}

static int goes_on(void *arg, curl_off_t a, curl_off_t b, curl_off_t c, curl_off_t d)
{
	struct export *x = arg;
	x->interrupted |= build_interrupted(x->signals, 0);
	return x->interrupted;
}

static int fetch(struct export *x, struct error *err)
{
	char detail[CURL_ERROR_SIZE] = "";
	CURL *easy = x->client->easy;
	struct curl_slist *headers = client_envd(x->client, easy, &x->target, "archive?path=/", "application/octet-stream", NULL);
	if (!headers)
		return error_errno(err, -ENOMEM, "export");
	curl_easy_setopt(easy, CURLOPT_HTTPGET, 1L);
	curl_easy_setopt(easy, CURLOPT_FAILONERROR, 1L);
	curl_easy_setopt(easy, CURLOPT_WRITEFUNCTION, take_tar);
	curl_easy_setopt(easy, CURLOPT_WRITEDATA, x);
	curl_easy_setopt(easy, CURLOPT_NOPROGRESS, 0L);
	curl_easy_setopt(easy, CURLOPT_XFERINFOFUNCTION, goes_on);
	curl_easy_setopt(easy, CURLOPT_XFERINFODATA, x);
	curl_easy_setopt(easy, CURLOPT_LOW_SPEED_LIMIT, 1L);
	curl_easy_setopt(easy, CURLOPT_LOW_SPEED_TIME, (long)STALLED_S);
	curl_easy_setopt(easy, CURLOPT_ERRORBUFFER, detail);
	CURLcode code = curl_easy_perform(easy);
	curl_easy_setopt(easy, CURLOPT_ERRORBUFFER, NULL);
	curl_slist_free_all(headers);
	progress_clear(&x->progress);
	if (x->interrupted)
		return error_set(err, -EINTR, 499, "the export was stopped");
	if (x->code < 0)
		return error_errno(err, x->code, "writing the image");
	return code == CURLE_OK ? 0 : client_transfer_error(x->client, code, detail, err);
}

static const char *architecture(char to[65])
{
	static const char *const known[][2] = {{"x86_64", "amd64"}, {"aarch64", "arm64"}};
	struct utsname u;
	uname(&u);
	for (size_t i = 0; i < ARRAY_SIZE(known); i++)
		if (!strcmp(u.machine, known[i][0]))
			return known[i][1];
	snprintf(to, 65, "%.64s", u.machine);
	return to;
}

/* {"K": "V"} as ["K=V"]. */
static json_t *environment(const json_t *map)
{
	json_t *list = json_array();
	const char *key;
	json_t *value;
	json_object_foreach((json_t *)map, key, value) {
		cleanup_buf struct buf line = BUF_INIT;
		buf_addf(&line, "%s=%.*s", key, STR_FMT(json_str(value)));
		json_array_append_new(list, json_stringn(buf_str(&line).p, buf_len(&line)));
	}
	return list;
}

/* What `docker run` would do with it; the label says the rest. */
static json_t *image_config(const json_t *description)
{
	cleanup_json json_t *rest = json_copy((json_t *)description);
	json_object_del(rest, "layers");
	cleanup_free char *label = json_dumps(rest, JSON_COMPACT);
	const json_t *service = json_array_get(json_object_get(description, "services"), 0), *command = json_object_get(service, "command");
	const char *user = json_string_value(json_object_get(description, "user")), *workdir = json_string_value(json_object_get(description, "workdir"));
	json_t *config = json_pack("{s:s*,s:s*,s:o,s:{s:s*}}", "User", user, "WorkingDir", workdir, "Env", environment(json_object_get(description, "env")), "Labels", DESCRIPTION_LABEL, label);
	if (config && command)
		json_object_set(config, "Cmd", (json_t *)command);
	const json_t *port = json_object_get(json_object_get(description, "probe"), "port");
	if (config && json_integer_value(port) > 0) {
		char text[24];
		snprintf(text, sizeof(text), "%lld/tcp", (long long)json_integer_value(port));
		json_object_set_new(config, "ExposedPorts", json_pack("{s:{}}", text));
	}
	return config;
}

static int write_image(struct export *x, int fd, struct error *err)
{
	char machine[65], name[300];
	cleanup_json json_t *config = image_config(x->description);
	x->writer = oci_writer_new(fd);
	if (!x->writer || !config)
		return error_errno(err, -ENOMEM, "export");
	int r = start_sandbox(x, err);
	if (r == 0)
		r = fetch(x, err);
	end_sandbox(x);
	if (r < 0)
		return r;
	snprintf(name, sizeof(name), "%s%s", x->given, strchr(x->given, ':') ? "" : ":latest");
	r = oci_writer_finish(x->writer, config, architecture(machine), name);
	if (r == 0 && fsync(fd) < 0)
		r = -errno;
	return r < 0 ? error_errno(err, r, "writing the image") : 0;
}

/* Under another name until it is whole. */
static int export_to(struct export *x, const char *path, uint64_t *ret_size, struct error *err)
{
	cleanup_free char *partial = NULL;
	if (asprintf(&partial, "%s.partial", path) < 0)
		return error_errno(err, -ENOMEM, "%s", path);
	cleanup_fd int fd = open(partial, O_RDWR | O_CREAT | O_TRUNC | O_CLOEXEC | O_NOFOLLOW, 0666);
	if (fd < 0)
		return error_errno(err, -errno, "%s", partial);
	int r = write_image(x, fd, err);
	if (r == 0 && rename(partial, path) < 0)
		r = error_errno(err, -errno, "%s", path);
	if (r < 0)
		unlink(partial);
	else
		*ret_size = (uint64_t)MAX(lseek(fd, 0, SEEK_END), (off_t)0);
	return r;
}

int cmd_template_export(struct cli *c)
{
	struct error err = {0};
	cleanup_client struct client cl = {0};
	const char *path = cli_flag(c, "output")->text;
	uint64_t size = 0;
	char text[24];
	if (!path || !*path) {
		error_set(&err, -EINVAL, 400, "template export: --output says where to");
		cli_fail(c, &err);
		return EXIT_USAGE;
	}
	if (client_open(&cl, c, &err) < 0)
		return cli_fail(c, &err);
	struct export x = {.client = &cl, .cli = c, .given = c->words[0], .signals = signals_block(true)};
	progress_init(&x.progress, c->json);
	int r = get_description(&x, &err);
	if (r == 0)
		r = export_to(&x, path, &size, &err);
	progress_clear(&x.progress);
	oci_writer_free(x.writer);
	json_decref(x.description);
	if (x.signals >= 0)
		close(x.signals);
	if (r < 0)
		return r == -EINTR ? (cli_fail(c, &err), EXIT_INTERRUPTED) : cli_fail(c, &err);
	if (c->json) {
		cleanup_json json_t *j = json_pack("{s:s,s:s,s:I}", "template", c->words[0], "file", path, "size", (json_int_t)size);
		json_dumpf(j, stdout, JSON_COMPACT);
		putchar('\n');
	} else {
		printf("%s: %s\n", path, size_text(text, size));
	}
	return EXIT_OK;
}
