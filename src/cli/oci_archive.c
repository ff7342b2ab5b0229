#include "cli/oci_archive.h"
#include "base/cleanup.h"
#include "base/clock.h"
#include "base/encode.h"
#include "base/fd.h"
#include "io/json.h"

#include <archive.h>
#include <archive_entry.h>
#include <openssl/evp.h>
#include <stdio.h>
#include <zlib.h>

enum {
	BLOCK = 512,       /* of a tar */
	PIECE = 64 * 1024,
	HEX = 64,          /* digits of a SHA-256 */
	LEVEL = 4,         /* of gzip: what a network or a disk takes while it is made */
	WINDOW_GZIP = 15 + 16,
	MAX_DOCUMENT = 4 << 20,
	MAX_ENTRIES = 100000,
	MAX_NESTED = 4,
};

#define TYPE_MANIFEST "application/vnd.oci.image.manifest.v1+json"
#define TYPE_CONFIG "application/vnd.oci.image.config.v1+json"
#define TYPE_LAYER "application/vnd.oci.image.layer.v1.tar+gzip"
#define TYPE_INDEX "application/vnd.oci.image.index.v1+json"

struct oci_writer {
	int fd;
	uint64_t at;             /* end of the file */
	uint64_t tar_size, size; /* of the layer: its tar, and as it is stored */
	EVP_MD_CTX *tar_hash, *hash;
	z_stream z;
	bool open; /* z */
	unsigned char piece[PIECE];
};

struct oci_writer *oci_writer_new(int fd)
{
	struct oci_writer *w = calloc(1, sizeof(*w));
	if (!w)
		return NULL;
	w->fd = fd;
	w->at = BLOCK; /* the layer's header comes when its digest is known */
	w->tar_hash = EVP_MD_CTX_new();
	w->hash = EVP_MD_CTX_new();
	w->open = deflateInit2(&w->z, LEVEL, Z_DEFLATED, WINDOW_GZIP, 8, Z_DEFAULT_STRATEGY) == Z_OK;
	if (w->open && w->tar_hash && w->hash && EVP_DigestInit_ex(w->tar_hash, EVP_sha256(), NULL) && EVP_DigestInit_ex(w->hash, EVP_sha256(), NULL))
		return w;
	oci_writer_free(w);
	return NULL;
}

void oci_writer_free(struct oci_writer *w)
{
	if (!w)
		return;
	if (w->open)
		deflateEnd(&w->z);
	EVP_MD_CTX_free(w->tar_hash);
	EVP_MD_CTX_free(w->hash);
	free(w);
}

uint64_t oci_writer_size(const struct oci_writer *w)
{
	return w->tar_size;
}

static int put(struct oci_writer *w, uint64_t at, const void *p, size_t n)
{
	while (n) {
		ssize_t done = pwrite(w->fd, p, n, (off_t)at);
		if (done < 0 && errno != EINTR)
			return -errno;
		if (done <= 0)
			continue;
		p = (const char *)p + done;
		n -= (size_t)done;
		at += (uint64_t)done;
	}
	return 0;
}

static int deflate_some(struct oci_writer *w, int flush)
{
	int z;
	do {
		w->z.next_out = w->piece;
		w->z.avail_out = PIECE;
		z = deflate(&w->z, flush);
		size_t n = PIECE - w->z.avail_out;
		int r = put(w, w->at, w->piece, n);
		if (r < 0)
			return r;
		EVP_DigestUpdate(w->hash, w->piece, n);
		w->at += n;
		w->size += n;
	} while (w->z.avail_out == 0 || (flush == Z_FINISH && z != Z_STREAM_END));
	return 0;
}

int oci_writer_add(struct oci_writer *w, const void *p, size_t n)
{
	EVP_DigestUpdate(w->tar_hash, p, n);
	w->tar_size += n;
	w->z.next_in = (unsigned char *)(uintptr_t)p;
	w->z.avail_in = (unsigned)n;
	return deflate_some(w, Z_NO_FLUSH);
}

/* A header of POSIX.1-1988; sizes from 8 GiB on as GNU tar writes them, in base 256. */
static void make_header(unsigned char h[BLOCK], const char *name, uint64_t size)
{
	char *text = (char *)h;
	unsigned sum = 0;
	memset(h, 0, BLOCK);
	snprintf(text, 100, "%s", name);
	memcpy(text + 100, "0000644\0" "0000000\0" "0000000\0", 24);
	if (size < (1ULL << 33)) {
		snprintf(text + 124, 12, "%011llo", (unsigned long long)size);
	} else {
		h[124] = 0x80;
		for (int i = 0; i < 8; i++)
			h[135 - i] = (unsigned char)(size >> (8 * i));
	}
	memcpy(text + 136, "00000000000\0" "        0", 21);
	memcpy(text + 257, "ustar\0" "00", 8);
	for (size_t i = 0; i < BLOCK; i++)
		sum += h[i];
	snprintf(text + 148, 8, "%06o", sum);
}

/* Zeros up to whole blocks. */
static int fill_block(struct oci_writer *w)
{
	static const char zeros[BLOCK];
	size_t n = (BLOCK - w->at % BLOCK) % BLOCK;
	int r = put(w, w->at, zeros, n);
	w->at += n;
	return r;
}

static int add_file(struct oci_writer *w, const char *name, struct str bytes)
{
	unsigned char header[BLOCK];
	make_header(header, name, bytes.n);
	int r = put(w, w->at, header, BLOCK);
	if (r == 0)
		r = put(w, w->at + BLOCK, bytes.p, bytes.n);
	w->at += BLOCK + bytes.n;
	return r == 0 ? fill_block(w) : r;
}

static void hex_of(EVP_MD_CTX *hash, char hex[HEX + 1])
{
	unsigned char digest[EVP_MAX_MD_SIZE];
	EVP_DigestFinal_ex(hash, digest, NULL);
	hex_encode(hex, digest, HEX / 2);
}

static int add_document(struct oci_writer *w, const char *name, json_t *document)
{
	cleanup_free char *text = document ? json_dumps(document, JSON_COMPACT) : NULL;
	json_decref(document);
	return text ? add_file(w, name, str_of(text)) : -ENOMEM;
}

/* A document as a blob; its digest and its size. */
static int add_blob(struct oci_writer *w, json_t *document, char hex[HEX + 1], size_t *ret_size)
{
	char name[128];
	unsigned char digest[EVP_MAX_MD_SIZE];
	cleanup_free char *text = document ? json_dumps(document, JSON_COMPACT) : NULL;
	json_decref(document);
	if (!text || !EVP_Digest(text, strlen(text), digest, NULL, EVP_sha256(), NULL))
		return -ENOMEM;
	hex_encode(hex, digest, HEX / 2);
	*ret_size = strlen(text);
	snprintf(name, sizeof(name), "blobs/sha256/%s", hex);
	return add_file(w, name, str_of(text));
}

static json_t *descriptor(const char *type, const char *hex, uint64_t size)
{
	char digest[HEX + 8];
	snprintf(digest, sizeof(digest), "sha256:%s", hex);
	return json_pack("{s:s,s:s,s:I}", "mediaType", type, "digest", digest, "size", (json_int_t)size);
}

/* The layer's end, and its header at the beginning of the file. */
static int finish_layer(struct oci_writer *w, char hex[HEX + 1], char diff_id[HEX + 8])
{
	unsigned char header[BLOCK];
	char name[128], tar_hex[HEX + 1];
	w->z.avail_in = 0;
	int r = deflate_some(w, Z_FINISH);
	if (r < 0)
		return r;
	hex_of(w->hash, hex);
	hex_of(w->tar_hash, tar_hex);
	snprintf(diff_id, HEX + 8, "sha256:%s", tar_hex);
	snprintf(name, sizeof(name), "blobs/sha256/%s", hex);
	make_header(header, name, w->size);
	r = put(w, 0, header, BLOCK);
	return r == 0 ? fill_block(w) : r;
}

int oci_writer_finish(struct oci_writer *w, const json_t *config, const char *architecture, const char *name)
{
	char layer[HEX + 1], diff_id[HEX + 8], config_hex[HEX + 1] = "", manifest_hex[HEX + 1] = "", now[RFC3339_SIZE], layer_path[128], config_path[128];
	static const char end[2 * BLOCK];
	size_t config_size = 0, manifest_size = 0;
	const char *tag = strrchr(name, ':');
	rfc3339_format(now, clock_realtime());
	int r = finish_layer(w, layer, diff_id);
	if (r == 0)
		r = add_blob(w,
			json_pack("{s:s,s:s,s:s,s:O,s:{s:s,s:[s]},s:[{s:s,s:s}]}", "created", now, "os", "linux", "architecture", architecture, "config", config, "rootfs", "type",
				"layers", "diff_ids", diff_id, "history", "created", now, "created_by", "cubicle template export"),
			config_hex, &config_size);
	if (r == 0)
		r = add_blob(w,
			json_pack("{s:i,s:s,s:o,s:[o]}", "schemaVersion", 2, "mediaType", TYPE_MANIFEST, "config", descriptor(TYPE_CONFIG, config_hex, config_size), "layers",
				descriptor(TYPE_LAYER, layer, w->size)),
			manifest_hex, &manifest_size);
	if (r == 0)
		r = add_file(w, "oci-layout", STR("{\"imageLayoutVersion\":\"1.0.0\"}"));
	json_t *manifest = descriptor(TYPE_MANIFEST, manifest_hex, manifest_size);
	json_object_set_new(manifest, "annotations",
		json_pack("{s:s,s:s}", "org.opencontainers.image.ref.name", tag ? tag + 1 : "latest", "io.containerd.image.name", name));
	json_t *index = json_pack("{s:i,s:s,s:[o]}", "schemaVersion", 2, "mediaType", TYPE_INDEX, "manifests", manifest);
	if (r == 0)
		r = add_document(w, "index.json", json_incref(index));
	json_decref(index);
	snprintf(layer_path, sizeof(layer_path), "blobs/sha256/%s", layer);
	snprintf(config_path, sizeof(config_path), "blobs/sha256/%s", config_hex);
	if (r == 0)
		r = add_document(w, "manifest.json", json_pack("[{s:s,s:[s],s:[s]}]", "Config", config_path, "RepoTags", name, "Layers", layer_path));
	return r == 0 ? put(w, w->at, end, sizeof(end)) : r;
}

/* Reading */

/* One document of a tar by its name, parsed; NULL when it is not there, or is none. `found` tells names that were met: a bit each of "index.json" and "manifest.json". */
static json_t *read_document(int fd, const char *wanted, int *ret_code)
{
	struct archive *a = archive_read_new();
	struct archive_entry *e;
	json_t *found = NULL;
	int n = 0;
	*ret_code = 0;
	if (!a || lseek(fd, 0, SEEK_SET) < 0) {
		*ret_code = a ? -errno : -ENOMEM;
		archive_read_free(a);
		return NULL;
	}
	archive_read_support_filter_all(a);
	archive_read_support_format_tar(a);
	if (archive_read_open_fd(a, fd, PIECE) != ARCHIVE_OK)
		goto out;
	while (n++ < MAX_ENTRIES && archive_read_next_header(a, &e) == ARCHIVE_OK) {
		const char *name = archive_entry_pathname(e);
		if (name && !strncmp(name, "./", 2))
			name += 2;
		if (!name || strcmp(name, wanted) != 0 || archive_entry_size(e) > MAX_DOCUMENT)
			continue;
		cleanup_buf struct buf text = BUF_INIT;
		char *p = buf_reserve(&text, (size_t)archive_entry_size(e));
		la_ssize_t got = p ? archive_read_data(a, p, (size_t)archive_entry_size(e)) : -1;
		struct error ignored = {0};
		if (got > 0) {
			buf_commit(&text, (size_t)got);
			found = json_parse(buf_str(&text), MAX_DOCUMENT, wanted, &ignored);
		}
		break;
	}
out:
	archive_read_free(a);
	return found;
}

static json_t *read_blob(int fd, const json_t *descriptor, int *ret_code)
{
	char name[128];
	struct str digest = json_str(json_object_get(descriptor, "digest"));
	if (!str_starts(digest, STR("sha256:")) || digest.n != HEX + 7)
		return NULL;
	snprintf(name, sizeof(name), "blobs/sha256/%.*s", HEX, digest.p + 7);
	return read_document(fd, name, ret_code);
}

/* The one that is named, or the only one. */
static const json_t *choose(const json_t *index, const char *name)
{
	const json_t *all = json_object_get(index, "manifests"), *one;
	size_t i;
	json_array_foreach(all, i, one)
		if (name && str_is(json_str(json_object_get(json_object_get(one, "annotations"), "org.opencontainers.image.ref.name")), name))
			return one;
	return !name && json_array_size(all) == 1 ? json_array_get(all, 0) : NULL;
}

static json_t *layout_config(int fd, json_t *index, const char *name, int *ret_code)
{
	json_t *at = json_incref(index), *config = NULL;
	for (int depth = 0; at && depth < MAX_NESTED; depth++) {
		const json_t *inner = json_object_get(at, "config");
		json_t *next = read_blob(fd, inner ? inner : choose(at, depth ? NULL : name), ret_code);
		json_decref(at);
		at = next;
		if (inner) {
			config = json_incref(json_object_get(at, "config"));
			break;
		}
	}
	json_decref(at);
	return config;
}

int oci_read_config(int fd, const char *name, enum oci_kind *ret_kind, json_t **ret_config, struct error *err)
{
	int code;
	*ret_config = NULL;
	*ret_kind = OCI_LAYOUT;
	cleanup_json json_t *index = read_document(fd, "index.json", &code), *manifest = NULL, *config = NULL;
	if (index) {
		*ret_config = layout_config(fd, index, name, &code);
	} else if (code == 0 && (manifest = read_document(fd, "manifest.json", &code))) {
		const char *path = json_string_value(json_object_get(json_array_get(manifest, 0), "Config"));
		*ret_kind = OCI_DOCKER;
		config = path && json_array_size(manifest) == 1 ? read_document(fd, path, &code) : NULL;
		*ret_config = json_incref(json_object_get(config, "config"));
	} else {
		*ret_kind = OCI_OTHER;
	}
	return code < 0 ? error_errno(err, code, "reading the archive") : 0;
}
