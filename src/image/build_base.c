#include "image/build.h"
#include "base/cleanup.h"
#include "base/fd.h"
#include "image/build_image.h"
#include "io/json.h"

#include <errno.h>
#include <stdio.h>
#include <string.h>

/* Two blocks of zeros: an archive with nothing in it. */
#define EMPTY_SIZE 1024
#define EMPTY_HEX "5f70bf18a086007016e948b04aed3b82103a36bea41755b6cddfaf10ace3c6ef"

static int take_config(struct build_config *to, const struct source_image *image, struct error *err)
{
	const struct source_config *c = &image->config;
	int r = 0;
	for (char **e = c->env; *e && r == 0; e++) {
		r = env_set_pair(&to->env, str_of(*e));
		if (r == -EINVAL)
			r = 0; /* what is no variable is none for Docker either */
	}
	if (r == -E2BIG)
		return error_set(err, r, 400, "the image's environment is larger than %d bytes", ENV_BYTES);
	if (r < 0 || build_config_text(&to->user, c->user) < 0 || build_config_text(&to->workdir, c->workdir) < 0 ||
		build_config_text(&to->stop_signal, c->stop_signal) < 0 || build_config_list(&to->entrypoint, (const char *const *)c->entrypoint) < 0 ||
		build_config_list(&to->cmd, (const char *const *)c->cmd) < 0 || build_config_list(&to->shell, (const char *const *)c->shell) < 0 ||
		build_config_list(&to->on_build, (const char *const *)c->on_build) < 0 ||
		build_config_list(&to->exposed_ports, (const char *const *)c->exposed_ports) < 0 || build_config_list(&to->labels, (const char *const *)c->labels) < 0)
		return error_errno(err, -ENOMEM, "the image's configuration");
	snprintf(to->digest, sizeof(to->digest), "%s", image->digest);
	return 0;
}

/* Takes the source. */
static int take_source(struct build *b, struct source *s, struct stack *ret, struct build_config *ret_config, struct error *err)
{
	const struct source_image *image = source_image(s);
	if (image->reference[0])
		build_log(b, 1, "%s is %s", image->reference, image->digest);
	int r = take_config(ret_config, image, err);
	if (r == 0)
		r = build_image_layers(b, s, ret, err);
	source_free(s);
	return r == 0 && ret->n == 0 ? build_from_scratch(b, ret, err) : r;
}

int build_from_image(struct build *b, const char *reference, const struct source_credentials *credentials, struct stack *ret, struct build_config *ret_config,
	struct error *err)
{
	struct source *s = NULL;
	build_progress(b, "PULLING", 0);
	int r = source_open_image(&s, b->sources, str_of(reference), credentials, err);
	return r < 0 ? r : take_source(b, s, ret, ret_config, err);
}

int build_from_archive(struct build *b, enum source_archive kind, const char *hash, const char *name, struct stack *ret, struct build_config *ret_config,
	struct error *err)
{
	struct source *s = NULL;
	cleanup_fd int fd = ask_open_file(b->ask, hash, NULL, err);
	if (fd == -ENOENT)
		return error_set(err, -ENOENT, 400, "the uploaded file %.12s is not there", hash);
	if (fd < 0)
		return fd;
	build_progress(b, "PULLING", 0);
	int r = source_open_archive(&s, b->sources, fd, kind, str_of(name), err);
	return r < 0 ? r : take_source(b, s, ret, ret_config, err);
}

/* Somebody has to make the layer with nothing in it. */
static int make_empty(struct build *b, const char *key, struct ask_layer *ret, struct error *err)
{
	static const char zeros[EMPTY_SIZE];
	cleanup_buf struct buf files = BUF_INIT, digests = BUF_INIT, formats = BUF_INIT;
	cleanup_fd int fd = -1;
	uint64_t number, request;
	char text[24];
	int r = ask_new_file(b->ask, EMPTY_SIZE, &number, &fd, err);
	if (r == 0 && (r = fd_write_all(fd, zeros, sizeof(zeros))) < 0)
		r = error_errno(err, r, "writing a layer");
	if (r < 0)
		return r;
	/* Node takes no file that somebody may still write. */
	close(steal_fd(&fd));
	snprintf(text, sizeof(text), "%llu", (unsigned long long)number);
	msg_list_add(&files, str_of(text));
	msg_list_add(&digests, STR("sha256:" EMPTY_HEX));
	if (msg_list_add(&formats, STR("tar")) < 0 || files.failed || digests.failed)
		return error_errno(err, -ENOMEM, "writing a layer");
	struct msg_unpack_layer m = {.key = str_of(key), .files = {buf_str(&files)}, .digests = {buf_str(&digests)}, .diff_ids = {buf_str(&digests)},
		.formats = {buf_str(&formats)}, .size_max = 1 << 20};
	r = ask_unpack_layer(b->ask, &m, &request, err);
	return r < 0 ? r : ask_wait_layer(b->ask, request, ret, err);
}

int build_from_scratch(struct build *b, struct stack *ret, struct error *err)
{
	static const char key[] = "oci:" EMPTY_HEX;
	struct ask_layer layer;
	*ret = (struct stack){0};
	stack_turn(ret, STR("image"));
	stack_turn(ret, str_of(key));
	int r = ask_find_layer(b->ask, key, true, &layer, err);
	if (r == 0 && !layer.file[0])
		r = make_empty(b, key, &layer, err);
	return r < 0 ? r : stack_add(ret, &layer, err);
}

static int take_env(struct env *to, const json_t *from)
{
	const char *key;
	json_t *v;
	json_object_foreach((json_t *)(uintptr_t)from, key, v)
		if (env_set(to, str_of(key), json_str(v)) < 0)
			return -EINVAL;
	return 0;
}

/* What the base's start command has is what its build steps had. */
static const json_t *start_env(const json_t *base)
{
	size_t i;
	json_t *s;
	json_array_foreach(json_object_get(base, "services"), i, s)
		if (str_is(json_str(json_object_get(s, "name")), "start"))
			return json_object_get(s, "env");
	return NULL;
}

int build_from_base(struct build *b, struct stack *ret, struct build_config *ret_config, struct error *err)
{
	const json_t *layers = json_object_get(b->base, "layers");
	const char *user = json_string_value(json_object_get(b->base, "user")), *workdir = json_string_value(json_object_get(b->base, "workdir"));
	size_t i;
	json_t *layer;
	*ret = (struct stack){0};
	stack_turn(ret, STR("base"));
	if (!json_array_size(layers))
		return error_set(err, -EINVAL, 400, "base: there is none");
	json_array_foreach(layers, i, layer)
	{
		struct ask_layer l = {.size = (uint64_t)json_integer_value(json_object_get(layer, "size"))};
		struct str file = json_str(json_object_get(layer, "file"));
		if (!file.n || file.n >= sizeof(l.file))
			return error_set(err, -EPROTO, 500, "base: a layer without a name");
		memcpy(l.file, file.p, file.n);
		stack_turn(ret, file);
		int r = stack_add(ret, &l, err);
		if (r < 0)
			return r;
	}
	if (build_config_text(&ret_config->user, user) < 0 || build_config_text(&ret_config->workdir, workdir) < 0 ||
		take_env(&ret_config->env, json_object_get(b->base, "env")) < 0 || take_env(&ret_config->env, start_env(b->base)) < 0)
		return error_set(err, -EINVAL, 500, "base: its description cannot be read");
	return 0;
}
