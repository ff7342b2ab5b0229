/* Layers from a registry into files: several at once, large ones in ranges at once, broken transfers taken up where they broke. */
#ifndef CUBICLE_IMAGE_DOWNLOAD_H
#define CUBICLE_IMAGE_DOWNLOAD_H

#include "image/registry.h"
#include "image/source.h"

enum {
	DOWNLOAD_PART = 16 << 20, /* bytes of one range */
	DOWNLOAD_PARTS = 4,       /* ranges of a layer at once */
	DOWNLOAD_TRANSFERS = 8,   /* at once, of all */
	DOWNLOAD_BLOBS = 4,       /* layers at once */
	DOWNLOAD_TRIES = 6,       /* of one range without getting on */
	DOWNLOAD_PROGRESS = 65536, /* bytes that count as getting on */
};

/* As source_fetch(). The formats of `layers` are put right by the blobs' first bytes, which the media types of old images do not always tell. */
int download_layers(struct registry *r, struct source_layer *layers, const struct source_fetch *f, struct error *err);

/* The format that the first n bytes of a blob are of; a tar has no mark at its beginning: what is nothing else. */
enum source_format download_format(const unsigned char *p, size_t n);

#endif
