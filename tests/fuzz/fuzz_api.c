#include "fuzz.h"

#include "api/create.h"
#include "api/decode.h"
#include "api/idempotency.h"
#include "api/routes.h"
#include "api/template_request.h"
#include "image/spec.h"

/* The first byte says what the rest is: bytes of a path, of a query, of a body. */

static void sandbox_id(struct str s)
{
	struct str id;
	struct error err = {0};
	if (decode_sandbox_id(s, &id, &err) < 0) {
		hold(err.status == 400);
		return;
	}
	hold(id.n && inside(s, id));
	for (size_t i = 0; i < id.n; i++)
		hold((id.p[i] >= 'a' && id.p[i] <= 'z') || (id.p[i] >= '0' && id.p[i] <= '9'));
}

/* What was taken is in its plain form: taken again it stays as it is. */
static void reference(struct str s)
{
	struct template_reference ref, again;
	struct error err = {0};
	if (decode_template_reference(s, &ref, &err) < 0) {
		hold(err.status == 400);
		return;
	}
	cleanup_buf struct buf text = BUF_INIT;
	buf_addf(&text, "%s%s%s", ref.name, ref.tag[0] ? ":" : "", ref.tag);
	hold(decode_template_reference(buf_str(&text), &again, NULL) == 0);
	hold(!strcmp(ref.name, again.name) && !strcmp(ref.tag, again.tag));
}

static void filter(struct str s)
{
	cleanup_buf struct buf pairs = BUF_INIT;
	struct error err = {0};
	if (decode_metadata_filter(s, &pairs, &err) < 0) {
		hold(err.status == 400);
		return;
	}
	struct str rest = buf_str(&pairs), key, value;
	while (msg_map_next(&rest, &key, &value))
		;
	hold(rest.n == 0);
	hold(metadata_matches((struct msg_map){buf_str(&pairs)}, (struct msg_map){buf_str(&pairs)}));
}

static void cursor(struct str s)
{
	struct cursor c, again;
	struct error err = {0};
	if (cursor_decode(s, &c, &err) < 0) {
		hold(err.status == 400);
		return;
	}
	/* Ours are of times since 1970 that int64 holds. */
	if (c.at < 0 || c.at == INT64_MAX)
		return;
	cleanup_buf struct buf text = BUF_INIT;
	hold(cursor_encode(&c, &text) == 0 && cursor_decode(buf_str(&text), &again, NULL) == 0);
	hold(c.at == again.at && !strcmp(c.id, again.id) && c.ascending == again.ascending);
}

static void path(struct str s)
{
	static const char *const methods[] = {"GET", "HEAD", "POST", "DELETE", "PUT", "PATCH", "OPTIONS", "X"};
	for (size_t i = 0; i < ARRAY_SIZE(methods); i++) {
		cleanup_buf struct buf storage = BUF_INIT;
		struct route_match m = {0};
		int r = route_find(str_of(methods[i]), s, i % 2, &storage, &m);
		hold(r == 0 || r == -ENOENT || r == -EPERM || r == -EINVAL);
		hold(r != -EPERM || m.allow[0]);
		for (size_t k = 0; r == 0 && k < m.n_params; k++)
			hold(m.params[k].n && str_chr(m.params[k], 0) < 0);
	}
}

static void body(struct str s)
{
	static struct options options;
	if (!options.values && options_init(&options) < 0)
		return;
	cleanup_json json_t *j = json_parse(s, 1 << 20, "body", NULL);
	struct create_args args = {0};
	struct error err = {0};
	if (!json_is_object(j))
		return;
	if (create_parse(j, s.n % 2, &options, &args, &err) < 0)
		hold((err.status == 400 || err.status == 501) && err.message[0]);
	else
		hold(!args.template.name[0] == (args.image[0] != 0) && (args.timeout == -1 || (args.timeout > 0 && args.timeout <= options.timeout_max)));
	create_args_done(&args);
}

/* What front takes, a builder takes, too. */
static void check_spec(const json_t *spec)
{
	cleanup_spec struct build_spec parsed = {0};
	struct error err = {0};
	cleanup_free char *text = json_dumps(spec, JSON_COMPACT);
	if (text && strlen(text) <= SPEC_MAX && spec_parse(str_of(text), &parsed, &err) < 0) {
		fprintf(stderr, "%s: %s\n", err.message, text);
		hold(false);
	}
}

static void refused(const struct error *err)
{
	hold((err->status == 400 || err->status == 501) && err->message[0]);
}

static void template(struct str s)
{
	cleanup_json json_t *j = json_parse(s, 1 << 20, "body", NULL);
	cleanup_template_args struct template_args made = {0};
	cleanup_build_args struct build_args build = {0};
	cleanup_cube_args struct cube_args cube = {0}, again = {0};
	struct error err = {0};
	char hash[65];
	if (!json_is_object(j))
		return;
	if (template_args_parse(j, "name", &made, &err) < 0)
		refused(&err);
	else
		hold(made.name[0] && buf_len(&made.tags) <= 4096);
	if (build_args_parse(j, &build, &(struct error){0}) == 0)
		check_spec(build.spec);
	err = (struct error){0};
	if (cube_args_parse(j, NULL, &cube, &err) < 0) {
		refused(&err);
	} else {
		/* What is kept of it makes the same again, but for the secret. */
		cleanup_json json_t *kept = buf_len(&cube.source) ? json_parse(buf_str(&cube.source), TEMPLATE_SOURCE_MAX, "kept", &err) : NULL;
		check_spec(cube.build.spec);
		hold(!buf_len(&cube.source) || kept);
		hold(!json_object_get(kept, "registryPassword"));
		if (kept && !json_object_get(cube.build.spec, "registry") && cube_args_parse(NULL, kept, &again, NULL) == 0)
			hold(json_equal(again.build.spec, cube.build.spec));
	}
	hold(decode_files_hash(s, hash, NULL) < 0 || strlen(hash) == 64);
}

/* A line of key, then a body: the fingerprint is of what the JSON means, not of how it stands there. */
static void name(struct str s)
{
	struct str key, text;
	if (!str_cut(s, '\n', &key, &text))
		return;
	struct http_head head = {.headers = {{.name = STR("Idempotency-Key"), .value = key}}, .n_headers = 1};
	cleanup_json json_t *j = json_parse(text, 1 << 20, "body", NULL), *again = NULL;
	struct create_name first, second;
	struct error err = {0};
	if (create_name_parse(&head, j, false, &first, &err) < 0) {
		hold(err.status == 400);
		return;
	}
	hold(first.key.n >= 1 && first.key.n <= IDEMPOTENCY_KEY_MAX);
	cleanup_free char *spread = j ? json_dumps(j, JSON_INDENT(3) | JSON_ENSURE_ASCII | JSON_ENCODE_ANY) : NULL;
	if (!spread)
		return;
	again = json_parse(str_of(spread), 1 << 24, "body", NULL);
	hold(again && create_name_parse(&head, again, false, &second, NULL) == 0 && !strcmp(first.fingerprint, second.fingerprint));
	hold(create_name_parse(&head, j, true, &second, NULL) == 0 && strcmp(first.fingerprint, second.fingerprint) != 0);
}

void fuzz_one(struct str input)
{
	static void (*const parsers[])(struct str) = {sandbox_id, reference, filter, cursor, path, body, name, template};
	if (input.n)
		parsers[(unsigned char)(input.p[0] - '0') % ARRAY_SIZE(parsers)](str_from(input, 1));
}
