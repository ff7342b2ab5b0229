/* What a source is made of (image/source.h): a registry, or an archive. */
#ifndef CUBICLE_IMAGE_SOURCE_PRIVATE_H
#define CUBICLE_IMAGE_SOURCE_PRIVATE_H

#include "image/image_archive.h"
#include "image/manifest.h"
#include "image/registry.h"
#include "image/source.h"

struct source_private {
	struct registries registries;
	struct outbound *out;
};

/* Where a layer lies in the file. */
struct source_place {
	uint64_t offset;
};

struct source {
	struct source_env *env;
	struct source_image image;
	/* Appends the manifest or small blob of a digest, not checked yet; type: what it was served as, or "". */
	int (*read)(struct source *s, bool manifest, const char *digest, size_t max, struct buf *to, char type[128], struct error *err);
	bool online;
	struct registry registry; /* online */
	int fd;                   /* else: the caller's */
	struct image_archive *archive;
	struct source_place *places; /* of each layer */
};

/* Fills s->image from the manifest or index that was asked for. */
int source_resolve(struct source *s, struct str json, const char *type, struct error *err);
int source_resolve_entries(struct source *s, const struct manifest *index, struct error *err);

/* "sha256:..." of bytes. */
void source_digest(struct str bytes, char to[SOURCE_DIGEST_MAX]);

/* source_archive.c: source_fetch() and source_free() of an archive. */
int source_copy(struct source *s, const struct source_fetch *f, struct error *err);
void source_archive_done(struct source *s);

#endif
