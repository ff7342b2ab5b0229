/* Manifests, indexes and configurations of images: OCI's (image-spec manifest.md, image-index.md, config.md) and Docker's schema 2. No I/O; all input is hostile. */
#ifndef CUBICLE_IMAGE_MANIFEST_H
#define CUBICLE_IMAGE_MANIFEST_H

#include "base/error.h"
#include "image/source.h"

enum {
	MANIFEST_MAX = 4 << 20,      /* bytes of a manifest or an index */
	CONFIG_MAX = 8 << 20,        /* bytes of a configuration */
	MANIFEST_ENTRIES_MAX = 1024, /* of an index */
	CONFIG_LIST_MAX = 4096,      /* entries of a list in a configuration */
	CONFIG_TEXT_MAX = 128 << 10, /* bytes of one text in it: the kernel passes no longer variable or argument */
	PLATFORM_MAX = 32,           /* bytes of one word of a platform, with the NUL */
};

/* What Accept says when a manifest is asked for. */
#define MANIFEST_ACCEPT                                                                                      \
	"Accept: application/vnd.oci.image.index.v1+json, application/vnd.oci.image.manifest.v1+json, "      \
	"application/vnd.docker.distribution.manifest.list.v2+json, application/vnd.docker.distribution.manifest.v2+json"

struct manifest_platform {
	char os[PLATFORM_MAX], architecture[PLATFORM_MAX], variant[PLATFORM_MAX]; /* "" absent */
};

/* Of an index: attestations are left out. */
struct manifest_entry {
	char digest[SOURCE_DIGEST_MAX];
	uint64_t size;
	struct manifest_platform platform; /* all "" when the index does not tell */
	char name[REFERENCE_TEXT_MAX];     /* annotation org.opencontainers.image.ref.name or io.containerd.image.name, "" without */
};

struct manifest {
	bool index;
	struct manifest_entry *entries; /* of an index */
	size_t n_entries;
	char config[SOURCE_DIGEST_MAX]; /* of an image */
	uint64_t config_size;
	struct source_layer *layers; /* diff_ids are not known yet */
	size_t n_layers;
};

/*
 * Parses a manifest or index. content_type: what it was served as, "" not known; what the document says of itself goes before.
 * -EINVAL malformed, -E2BIG limits, -ENOTSUP by name: schema 1, an artifact that is no image, layers that registries do not hold (foreign, non-distributable) or
 * of an unknown form; with *err.
 */
int manifest_parse(struct str json, const char *content_type, struct manifest *ret, struct error *err);
void manifest_done(struct manifest *m);

/*
 * The entries of an index that may lead to an image for the platform (os linux), the best first, then those that do not tell theirs, as places in
 * m->entries to ret[MANIFEST_ENTRIES_MAX]. Returns how many; 0: none.
 */
size_t manifest_candidates(const struct manifest *m, const char *architecture, const char *variant, size_t *ret);

/* "linux/arm/v7". Returns `to`. */
char *manifest_platform_text(const struct manifest_platform *p, char to[3 * PLATFORM_MAX]);

/* An image for p runs on a machine of this architecture and variant. */
bool manifest_runs(const struct manifest_platform *p, const char *architecture, const char *variant);

/* Parses a configuration; its diff_ids, which must be as many as the layers, are put into these. As manifest_parse(); *ret is the caller's to source_config_done(). */
int manifest_config(struct str json, struct source_layer *layers, size_t n_layers, struct source_config *ret, struct error *err);

/* A configuration with nothing in it, for a tar that has none. 0 or -ENOMEM. */
int source_config_empty(struct source_config *c);
void source_config_done(struct source_config *c);

#endif
