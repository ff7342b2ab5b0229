/*
 * Images as one file: a tar of an OCI image layout (image-layout.md of the OCI image specification) that also holds the manifest.json which `docker load` reads. Written as a stream into a
 * file; of those written by others only the configuration is read here, to know how what is in it wants to run.
 */
#ifndef CUBICLE_CLI_OCI_ARCHIVE_H
#define CUBICLE_CLI_OCI_ARCHIVE_H

#include "base/error.h"
#include "base/str.h"

#include <jansson.h>
#include <stdint.h>

struct oci_writer;

/* Begins an archive with one layer, at the beginning of an empty file, which stays the caller's. NULL without memory. */
struct oci_writer *oci_writer_new(int fd);

/* Takes the next bytes of the layer's tar, which is compressed by gzip. 0 or -errno. */
int oci_writer_add(struct oci_writer *w, const void *p, size_t n);

/* The bytes of the tar so far. */
uint64_t oci_writer_size(const struct oci_writer *w);

/*
 * Ends the layer and writes everything else: `config` is the member of that name of the image's configuration (Env, Cmd, Labels, …), architecture in Go's words, name "name:tag". The
 * archive is whole, not synced, afterwards. 0 or -errno.
 */
int oci_writer_finish(struct oci_writer *w, const json_t *config, const char *architecture, const char *name);
void oci_writer_free(struct oci_writer *w);

enum oci_kind { OCI_LAYOUT, OCI_DOCKER, OCI_OTHER };

/*
 * What kind of tar a file is, and of an archive with one image the member `config` of its configuration (an owned object; NULL when it has none, or there are several images: who builds of the
 * archive says what is wrong with it). `name` chooses an image by its tag, NULL = the only one. 0, or -errno with *err when the file cannot be read.
 */
int oci_read_config(int fd, const char *name, enum oci_kind *ret_kind, json_t **ret_config, struct error *err);

#endif
