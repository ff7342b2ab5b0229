/* Manifests and indexes, configurations, manifest.json of docker archives and Docker's configuration file: the first byte says which. */
#include "fuzz.h"

#include "image/docker_config.h"
#include "image/image_archive.h"
#include "image/manifest.h"

#include <errno.h>

static void check_manifest(struct str json)
{
	struct manifest m;
	struct error err = {0};
	static size_t places[MANIFEST_ENTRIES_MAX];
	if (manifest_parse(json, "", &m, &err) < 0) {
		hold(err.code < 0 && *err.message);
		return;
	}
	hold(m.n_entries <= MANIFEST_ENTRIES_MAX && m.n_layers <= SOURCE_MAX_LAYERS);
	hold(m.index || reference_digest_valid(str_of(m.config)));
	for (size_t i = 0; i < m.n_layers; i++)
		hold(reference_digest_valid(str_of(m.layers[i].digest)));
	size_t n = manifest_candidates(&m, "arm", "v7", places);
	hold(n <= m.n_entries);
	for (size_t i = 0; i < n; i++)
		hold(places[i] < m.n_entries && reference_digest_valid(str_of(m.entries[places[i]].digest)));
	int chosen = image_archive_choose(&m, STR("latest"), places, &err);
	hold(chosen < 0 || (size_t)chosen <= m.n_entries);
	manifest_done(&m);
}

static void check_config(struct str json)
{
	struct source_layer layers[3] = {0};
	struct source_config c;
	struct error err = {0};
	for (size_t n = 0; n < 3; n++) {
		if (manifest_config(json, layers, n, &c, &err) < 0)
			continue;
		for (size_t i = 0; c.env[i]; i++)
			hold(strchr(c.env[i], '=') > c.env[i]);
		for (size_t i = 0; i < n; i++)
			hold(reference_digest_valid(str_of(layers[i].diff_id)));
		source_config_done(&c);
	}
}

void fuzz_one(struct str input)
{
	struct error err = {0};
	struct docker_archive_image image;
	struct source_credentials c = {0};
	if (!input.n)
		return;
	struct str json = str_from(input, 1);
	switch (input.p[0]) {
	case 'c':
		check_config(json);
		break;
	case 'd':
		if (docker_archive_choose(json, STR("latest"), &image, &err) == 0)
			docker_archive_image_done(&image);
		break;
	case 'l':
		hold(docker_config_find(json, STR("r.example"), STR("a/b"), &c, &err) <= 1);
		source_credentials_done(&c);
		break;
	default:
		check_manifest(json);
	}
}
