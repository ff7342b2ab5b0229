#include "image/manifest.h"

#include "base/cleanup.h"
#include "io/json.h"

#include <errno.h>
#include <stdio.h>

#define OCI "application/vnd.oci.image."
#define DOCKER "application/vnd.docker."

enum document { UNKNOWN, INDEX, IMAGE, SCHEMA1 };

static const struct {
	const char *type;
	enum document document;
} documents[] = {
	{OCI "index.v1+json", INDEX},
	{DOCKER "distribution.manifest.list.v2+json", INDEX},
	{OCI "manifest.v1+json", IMAGE},
	{DOCKER "distribution.manifest.v2+json", IMAGE},
	{DOCKER "distribution.manifest.v1+json", SCHEMA1},
	{DOCKER "distribution.manifest.v1+prettyjws", SCHEMA1},
};

static const struct {
	const char *type;
	enum source_format format;
} layer_types[] = {
	{OCI "layer.v1.tar", SOURCE_TAR},
	{OCI "layer.v1.tar+gzip", SOURCE_GZIP},
	{OCI "layer.v1.tar+zstd", SOURCE_ZSTD},
	{DOCKER "image.rootfs.diff.tar", SOURCE_TAR},
	{DOCKER "image.rootfs.diff.tar.gzip", SOURCE_GZIP},
	{DOCKER "image.rootfs.diff.tar.zstd", SOURCE_ZSTD},
};

static int malformed(struct error *err, const char *what)
{
	return error_set(err, -EINVAL, 502, "the image's manifest is malformed: %s", what);
}

static enum document document_of(struct str type)
{
	for (size_t i = 0; i < ARRAY_SIZE(documents); i++)
		if (str_is(type, documents[i].type))
			return documents[i].document;
	return UNKNOWN;
}

/* A word of a media type or platform, for messages: nothing but what such a word may hold. */
static struct str harmless(struct str s)
{
	for (size_t i = 0; i < s.n; i++)
		if (s.p[i] <= ' ' || s.p[i] > '~')
			return STR("unreadable");
	return str_n(s.p, s.n > 100 ? 100 : s.n);
}

static int copy_word(const json_t *j, char *to, size_t size)
{
	struct str s = json_str(j);
	if (s.n >= size || memchr(s.p, 0, s.n))
		return -EINVAL;
	memcpy(to, s.p, s.n);
	to[s.n] = 0;
	return 0;
}

/* digest and size of a descriptor */
static int read_descriptor(const json_t *j, char digest[SOURCE_DIGEST_MAX], uint64_t *size, struct error *err)
{
	struct str d = json_str(json_object_get(j, "digest"));
	const json_t *n = json_object_get(j, "size");
	if (str_starts(d, STR("sha512:")))
		return error_set(err, -ENOTSUP, 400, "the image has digests other than sha256, which are not supported");
	if (!reference_digest_valid(d))
		return malformed(err, "a digest is not sha256: and 64 hexadecimal digits");
	if (!json_is_integer(n) || json_integer_value(n) < 0)
		return malformed(err, "a size is no number");
	memcpy(digest, d.p, d.n);
	digest[d.n] = 0;
	*size = (uint64_t)json_integer_value(n);
	return 0;
}

static bool is_attestation(const json_t *entry, const struct manifest_platform *p)
{
	const json_t *notes = json_object_get(entry, "annotations");
	if (json_object_get(notes, "vnd.docker.reference.type"))
		return true;
	return !strcmp(p->os, "unknown") && !strcmp(p->architecture, "unknown");
}

static int read_entry(const json_t *j, struct manifest *m, struct error *err)
{
	struct manifest_entry e = {0};
	const json_t *p = json_object_get(j, "platform"), *notes = json_object_get(j, "annotations");
	int r = read_descriptor(j, e.digest, &e.size, err);
	if (r < 0)
		return r;
	if (copy_word(json_object_get(p, "os"), e.platform.os, PLATFORM_MAX) < 0 || copy_word(json_object_get(p, "architecture"), e.platform.architecture, PLATFORM_MAX) < 0
		|| copy_word(json_object_get(p, "variant"), e.platform.variant, PLATFORM_MAX) < 0)
		return malformed(err, "a platform's words are too long");
	if (is_attestation(j, &e.platform))
		return 0;
	const json_t *name = json_object_get(notes, "io.containerd.image.name");
	if (copy_word(name ? name : json_object_get(notes, "org.opencontainers.image.ref.name"), e.name, sizeof(e.name)) < 0)
		return malformed(err, "the name of an image is too long");
	m->entries[m->n_entries++] = e;
	return 0;
}

static int read_index(const json_t *j, struct manifest *m, struct error *err)
{
	const json_t *list = json_object_get(j, "manifests"), *entry;
	size_t i, n = json_array_size(list);
	if (!json_is_array(list))
		return malformed(err, "an index without manifests");
	if (n > MANIFEST_ENTRIES_MAX)
		return error_set(err, -E2BIG, 400, "the image's index has more than %d entries", MANIFEST_ENTRIES_MAX);
	m->index = true;
	m->entries = calloc(n + 1, sizeof(*m->entries));
	if (!m->entries)
		return error_set(err, -ENOMEM, 500, "out of memory");
	json_array_foreach(list, i, entry) {
		int r = read_entry(entry, m, err);
		if (r < 0)
			return r;
	}
	return 0;
}

static int read_layer_type(struct str type, enum source_format *ret, struct error *err)
{
	for (size_t i = 0; i < ARRAY_SIZE(layer_types); i++)
		if (str_is(type, layer_types[i].type)) {
			*ret = layer_types[i].format;
			return 0;
		}
	type = harmless(type);
	if (str_starts(type, STR(OCI "layer.nondistributable.")) || str_starts(type, STR(DOCKER "image.rootfs.foreign.")))
		return error_set(err, -ENOTSUP, 400, "the image has a layer that registries do not hold (%.*s)", STR_FMT(type));
	return error_set(err, -ENOTSUP, 400, "the image has a layer of a form that is not supported (%.*s)", STR_FMT(type));
}

static int read_image(const json_t *j, struct manifest *m, struct error *err)
{
	const json_t *config = json_object_get(j, "config"), *layers = json_object_get(j, "layers"), *layer;
	struct str type = json_str(json_object_get(config, "mediaType"));
	size_t i, n = json_array_size(layers);
	if (!json_is_object(config))
		return malformed(err, "no configuration");
	if (!str_is(type, OCI "config.v1+json") && !str_is(type, DOCKER "container.image.v1+json")) {
		type = harmless(type);
		return error_set(err, -ENOTSUP, 400, "it is no container image, but %.*s", STR_FMT(type));
	}
	if (!json_is_array(layers))
		return malformed(err, "no layers");
	if (n > SOURCE_MAX_LAYERS)
		return error_set(err, -E2BIG, 400, "the image has more than %d layers", SOURCE_MAX_LAYERS);
	int r = read_descriptor(config, m->config, &m->config_size, err);
	if (r < 0)
		return r;
	if (m->config_size > CONFIG_MAX)
		return error_set(err, -E2BIG, 400, "the image's configuration is longer than %d MiB", CONFIG_MAX >> 20);
	m->layers = calloc(n + 1, sizeof(*m->layers));
	if (!m->layers)
		return error_set(err, -ENOMEM, 500, "out of memory");
	json_array_foreach(layers, i, layer) {
		struct source_layer *to = &m->layers[m->n_layers++];
		r = read_layer_type(json_str(json_object_get(layer, "mediaType")), &to->format, err);
		if (r == 0)
			r = read_descriptor(layer, to->digest, &to->size, err);
		if (r < 0)
			return r;
	}
	return 0;
}

/* What it says of itself; and it must not be both, or who looks at it another way would see another image. */
static int choose(const json_t *j, const char *content_type, enum document *ret, struct error *err)
{
	const json_t *version = json_object_get(j, "schemaVersion");
	struct str type = json_str(json_object_get(j, "mediaType"));
	bool list = json_object_get(j, "manifests"), image = json_object_get(j, "layers") || json_object_get(j, "config");
	if (!json_is_object(j))
		return malformed(err, "it is no object");
	if (document_of(type) == SCHEMA1 || (!type.n && document_of(str_of(content_type)) == SCHEMA1) || json_integer_value(version) == 1)
		return error_set(err, -ENOTSUP, 400, "the image has a manifest of Docker's schema 1, which is obsolete and not supported; push it again with a client of today");
	if (list && image)
		return malformed(err, "it is an image and an index at once");
	*ret = document_of(type.n ? type : str_of(content_type));
	if (*ret == UNKNOWN && type.n) {
		type = harmless(type);
		return error_set(err, -ENOTSUP, 400, "it is no container image, but %.*s", STR_FMT(type));
	}
	if (*ret == UNKNOWN)
		*ret = list ? INDEX : IMAGE;
	if ((*ret == INDEX) != list)
		return malformed(err, "it is not what its media type says");
	return 0;
}

int manifest_parse(struct str json, const char *content_type, struct manifest *ret, struct error *err)
{
	struct manifest m = {0};
	enum document document = UNKNOWN;
	cleanup_json json_t *j = json_parse(json, MANIFEST_MAX, "the image's manifest", err);
	if (!j) {
		if (err)
			err->status = 502;
		return err && err->code ? err->code : -EINVAL;
	}
	int r = choose(j, content_type, &document, err);
	if (r == 0)
		r = document == INDEX ? read_index(j, &m, err) : read_image(j, &m, err);
	if (r < 0) {
		manifest_done(&m);
		return r;
	}
	*ret = m;
	return 0;
}

void manifest_done(struct manifest *m)
{
	free(m->entries);
	free(m->layers);
	*m = (struct manifest){0};
}

/* "v7" is 7; others 0. */
static int variant_number(const char *v)
{
	return v[0] == 'v' && v[1] >= '1' && v[1] <= '9' && !v[2] ? v[1] - '0' : 0;
}

/* How good a match: 0 none, more is better. */
static int match(const struct manifest_platform *p, const char *architecture, const char *variant)
{
	static const struct {
		const char *name, *usual;
	} usual[] = {{"amd64", "v1"}, {"arm64", "v8"}, {"arm", "v7"}};
	if (strcmp(p->os, "linux") != 0 || strcmp(p->architecture, architecture) != 0)
		return 0;
	const char *wanted = p->variant;
	for (size_t i = 0; i < ARRAY_SIZE(usual); i++) {
		if (strcmp(architecture, usual[i].name) != 0)
			continue;
		wanted = *wanted ? wanted : usual[i].usual;
		variant = *variant ? variant : usual[i].usual;
	}
	if (!strcmp(wanted, variant))
		return 100;
	int has = variant_number(variant), needs = variant_number(wanted);
	return has && needs && needs < has ? needs : 0;
}

bool manifest_runs(const struct manifest_platform *p, const char *architecture, const char *variant)
{
	return match(p, architecture, variant) > 0;
}

size_t manifest_candidates(const struct manifest *m, const char *architecture, const char *variant, size_t *ret)
{
	size_t n = 0;
	for (int quality = 100; quality > 0; quality = quality == 100 ? 9 : quality - 1)
		for (size_t i = 0; i < m->n_entries; i++)
			if (match(&m->entries[i].platform, architecture, variant) == quality)
				ret[n++] = i;
	for (size_t i = 0; i < m->n_entries; i++)
		if (!*m->entries[i].platform.os && !*m->entries[i].platform.architecture)
			ret[n++] = i;
	return n;
}

char *manifest_platform_text(const struct manifest_platform *p, char to[3 * PLATFORM_MAX])
{
	struct str os = harmless(str_of(p->os)), arch = harmless(str_of(p->architecture)), variant = harmless(str_of(p->variant));
	snprintf(to, 3 * PLATFORM_MAX, "%.*s/%.*s%s%.*s", STR_FMT(os), STR_FMT(arch), variant.n ? "/" : "", STR_FMT(variant));
	return to;
}
