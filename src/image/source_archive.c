/* Images of archives (image/source.h). */
#include "base/cleanup.h"
#include "base/clock.h"
#include "base/encode.h"
#include "base/fd.h"
#include "image/download.h"
#include "image/source_private.h"
#include "io/json.h"

#include <errno.h>
#include <openssl/evp.h>
#include <stdio.h>
#include <sys/stat.h>

enum { STEP = 256 * 1024 };

static void md_free_p(EVP_MD_CTX **m)
{
	EVP_MD_CTX_free(*m);
}
#define cleanup_md __attribute__((__cleanup__(md_free_p)))

/* --- bytes of the file --- */

struct copying {
	struct source *s;
	const struct source_fetch *f; /* NULL: only hashed */
	uint64_t done, total;
	int64_t told;
};

static void tell(struct copying *c, bool last)
{
	int64_t now = clock_monotonic();
	if (!c->f || !c->f->progress || (!last && now - c->told < 100 * NS_PER_MS))
		return;
	c->told = now;
	c->f->progress(c->f->arg, c->done, c->total);
}

/* Copies `size` bytes from `offset` to `to` (-1: nowhere), with their digest and format. */
static int copy(struct copying *c, uint64_t offset, uint64_t size, int to, char digest[SOURCE_DIGEST_MAX], enum source_format *ret_format, struct error *err)
{
	cleanup_md EVP_MD_CTX *md = EVP_MD_CTX_new();
	cleanup_free unsigned char *step = malloc(STEP);
	unsigned char hash[EVP_MAX_MD_SIZE];
	if (!md || !step || !EVP_DigestInit_ex(md, EVP_sha256(), NULL))
		return error_set(err, -ENOMEM, 500, "out of memory");
	if (to >= 0 && lseek(to, 0, SEEK_SET) < 0)
		return error_errno(err, -errno, "a layer could not be written");
	*ret_format = SOURCE_TAR;
	for (uint64_t at = 0; at < size;) {
		const struct source_env *e = c->s->env;
		if (e->cancelled && e->cancelled(e->arg))
			return error_set(err, -ECANCELED, 499, "the build was ended");
		ssize_t n = pread(c->s->fd, step, (size_t)MIN((uint64_t)STEP, size - at), (off_t)(offset + at));
		if (n < 0 && errno == EINTR)
			continue;
		if (n <= 0)
			return error_errno(err, n < 0 ? -errno : -EIO, "the archive could not be read");
		if (!at)
			*ret_format = download_format(step, (size_t)n);
		EVP_DigestUpdate(md, step, (size_t)n);
		int r = to >= 0 ? fd_write_all(to, step, (size_t)n) : 0;
		if (r < 0)
			return error_set(err, r, r == -ENOSPC || r == -EDQUOT || r == -EFBIG ? 507 : 500, "a layer could not be written: %s", strerror(-r));
		at += (uint64_t)n;
		c->done += (uint64_t)n;
		tell(c, false);
	}
	EVP_DigestFinal_ex(md, hash, NULL);
	memcpy(digest, "sha256:", 7);
	hex_encode(digest + 7, hash, 32);
	return 0;
}

int source_copy(struct source *s, const struct source_fetch *f, struct error *err)
{
	struct copying c = {.s = s, .f = f};
	for (size_t i = 0; i < f->n_wants; i++)
		c.total += s->image.layers[f->wants[i].layer].size;
	for (size_t i = 0; i < f->n_wants; i++) {
		const struct source_want *w = &f->wants[i];
		struct source_layer *l = &s->image.layers[w->layer];
		char digest[SOURCE_DIGEST_MAX];
		int r = copy(&c, s->places[w->layer].offset, l->size, w->fd, digest, &l->format, err);
		if (r == 0 && strcmp(digest, l->digest) != 0)
			r = error_set(err, -EBADMSG, 400, "layer %zu of the archive's image: its bytes are not those of its digest", w->layer);
		if (r == 0 && f->complete)
			r = f->complete(f->arg, w, err);
		if (r < 0)
			return r;
	}
	tell(&c, true);
	return 0;
}

void source_archive_done(struct source *s)
{
	image_archive_free(s->archive);
	free(s->places);
}

/* --- OCI layouts --- */

static struct str blob_name(const char *digest, char to[SOURCE_DIGEST_MAX + 16])
{
	snprintf(to, SOURCE_DIGEST_MAX + 16, "blobs/sha256/%s", digest + 7);
	return str_of(to);
}

static int read_blob(struct source *s, bool manifest, const char *digest, size_t max, struct buf *to, char type[128], struct error *err)
{
	char name[SOURCE_DIGEST_MAX + 16];
	*type = 0;
	return image_archive_read(s->archive, blob_name(digest, name), max, to, err);
}

/* Where the layers are, and that they have the sizes they should. */
static int find_blobs(struct source *s, struct error *err)
{
	char name[SOURCE_DIGEST_MAX + 16];
	s->places = calloc(s->image.n_layers + 1, sizeof(*s->places));
	if (!s->places)
		return error_set(err, -ENOMEM, 500, "out of memory");
	for (size_t i = 0; i < s->image.n_layers; i++) {
		uint64_t size;
		if (!image_archive_find(s->archive, blob_name(s->image.layers[i].digest, name), &s->places[i].offset, &size))
			return error_set(err, -ENOENT, 400, "the archive lacks layer %zu of the image (%s)", i, name);
		if (size != s->image.layers[i].size)
			return error_set(err, -EBADMSG, 400, "layer %zu of the archive's image has another size than its manifest says", i);
	}
	return 0;
}

static int check_layout(struct source *s, struct error *err)
{
	cleanup_buf struct buf text = BUF_INIT;
	if (image_archive_read(s->archive, STR("oci-layout"), 4096, &text, NULL) < 0)
		return error_set(err, -EINVAL, 400, "the archive is no OCI layout: it has no file oci-layout");
	cleanup_json json_t *j = json_parse(buf_str(&text), 4096, "oci-layout", err);
	if (!j)
		return -EINVAL;
	if (!str_starts(json_str(json_object_get(j, "imageLayoutVersion")), STR("1.")))
		return error_set(err, -ENOTSUP, 400, "the archive's OCI layout is of a version that is not known");
	return 0;
}

static int open_layout(struct source *s, struct str name, struct error *err)
{
	cleanup_buf struct buf json = BUF_INIT;
	size_t places[MANIFEST_ENTRIES_MAX];
	struct manifest index;
	int r = check_layout(s, err);
	if (r == 0)
		r = image_archive_read(s->archive, STR("index.json"), MANIFEST_MAX, &json, err);
	if (r == 0)
		r = manifest_parse(buf_str(&json), "application/vnd.oci.image.index.v1+json", &index, err);
	if (r < 0)
		return r;
	s->read = read_blob;
	r = index.index ? image_archive_choose(&index, name, places, err) : error_set(err, -EINVAL, 400, "the archive's index.json is no index");
	if (r > 0) {
		for (int i = 0; i < r; i++)
			index.entries[i] = index.entries[places[i]]; /* places rise */
		index.n_entries = (size_t)r;
		r = source_resolve_entries(s, &index, err);
	}
	manifest_done(&index);
	return r < 0 ? r : find_blobs(s, err);
}

/* --- docker save --- */

/* "blobs/sha256/HEX" or "HEX.json": what the name says must be true. */
static int check_config_name(const char *name, const char *digest, struct error *err)
{
	const char *base = strrchr(name, '/') ? strrchr(name, '/') + 1 : name;
	size_t n = strspn(base, "0123456789abcdef");
	if (n == 64 && strncmp(base, digest + 7, 64) != 0)
		return error_set(err, -EBADMSG, 400, "the configuration in the archive is not what its name says");
	return 0;
}

/* A layer of a docker archive has no digest but that of its tar: a compressed one is hashed first. */
static int add_docker_layer(struct source *s, size_t i, const char *name, struct error *err)
{
	struct copying c = {.s = s};
	struct source_layer *l = &s->image.layers[i];
	unsigned char start[4];
	if (!image_archive_find(s->archive, str_of(name), &s->places[i].offset, &l->size))
		return error_set(err, -ENOENT, 400, "the archive lacks layer %zu of the image", i);
	ssize_t n = pread(s->fd, start, (size_t)MIN(l->size, (uint64_t)sizeof(start)), (off_t)s->places[i].offset);
	l->format = download_format(start, n > 0 ? (size_t)n : 0);
	if (l->format != SOURCE_TAR)
		return copy(&c, s->places[i].offset, l->size, -1, l->digest, &l->format, err);
	strcpy(l->digest, l->diff_id);
	return 0;
}

static int read_docker_image(struct source *s, const struct docker_archive_image *image, struct error *err)
{
	cleanup_buf struct buf config = BUF_INIT;
	size_t n = 0;
	while (image->layers[n])
		n++;
	s->image.layers = calloc(n + 1, sizeof(*s->image.layers));
	s->places = calloc(n + 1, sizeof(*s->places));
	if (!s->image.layers || !s->places)
		return error_set(err, -ENOMEM, 500, "out of memory");
	s->image.n_layers = n;
	int r = image_archive_read(s->archive, str_of(image->config), CONFIG_MAX, &config, err);
	if (r < 0)
		return r;
	source_digest(buf_str(&config), s->image.digest);
	r = check_config_name(image->config, s->image.digest, err);
	if (r == 0)
		r = manifest_config(buf_str(&config), s->image.layers, n, &s->image.config, err);
	for (size_t i = 0; r == 0 && i < n; i++)
		r = add_docker_layer(s, i, image->layers[i], err);
	return r;
}

static int check_platform(struct source *s, struct error *err)
{
	const struct source_config *c = &s->image.config;
	struct manifest_platform p = {0};
	char text[3 * PLATFORM_MAX];
	snprintf(p.os, sizeof(p.os), "%s", c->os);
	snprintf(p.architecture, sizeof(p.architecture), "%s", c->architecture);
	snprintf(p.variant, sizeof(p.variant), "%s", c->variant);
	if (!*c->architecture || manifest_runs(&p, s->env->architecture, s->env->variant))
		return 0;
	return error_set(err, -ENOTSUP, 400, "no match for linux/%s: the image is for %s", s->env->architecture, manifest_platform_text(&p, text));
}

static int open_docker(struct source *s, struct str name, struct error *err)
{
	cleanup_buf struct buf json = BUF_INIT;
	struct docker_archive_image image;
	uint64_t offset, size;
	if (!image_archive_find(s->archive, STR("manifest.json"), &offset, &size)) {
		bool old = image_archive_find(s->archive, STR("repositories"), &offset, &size);
		return error_set(err, -ENOTSUP, 400, old ? "the archive is of a Docker before 1.10, which is not supported: save it again" : "the archive is no docker archive: it has no file manifest.json");
	}
	int r = image_archive_read(s->archive, STR("manifest.json"), MANIFEST_MAX, &json, err);
	if (r == 0)
		r = docker_archive_choose(buf_str(&json), name, &image, err);
	if (r < 0)
		return r;
	r = read_docker_image(s, &image, err);
	docker_archive_image_done(&image);
	return r < 0 ? r : check_platform(s, err);
}

/* --- a root file system --- */

static int open_rootfs(struct source *s, struct error *err)
{
	struct copying c = {.s = s};
	struct stat st;
	s->image.layers = calloc(1, sizeof(*s->image.layers));
	s->places = calloc(1, sizeof(*s->places));
	if (!s->image.layers || !s->places || source_config_empty(&s->image.config) < 0)
		return error_set(err, -ENOMEM, 500, "out of memory");
	if (fstat(s->fd, &st) < 0 || !S_ISREG(st.st_mode) || !st.st_size)
		return error_set(err, -EINVAL, 400, "the archive is empty");
	struct source_layer *l = s->image.layers;
	s->image.n_layers = 1;
	l->size = (uint64_t)st.st_size;
	int r = copy(&c, 0, l->size, -1, l->digest, &l->format, err);
	if (r == 0 && l->format == SOURCE_TAR)
		strcpy(l->diff_id, l->digest);
	if (r == 0)
		strcpy(s->image.digest, l->digest);
	return r;
}

int source_open_archive(struct source **ret, struct source_env *e, int fd, enum source_archive kind, struct str name, struct error *err)
{
	struct source *s = calloc(1, sizeof(*s));
	if (!s)
		return error_set(err, -ENOMEM, 500, "out of memory");
	s->env = e;
	s->fd = fd;
	int r = kind == SOURCE_ROOTFS ? 0 : image_archive_new(&s->archive, fd, err);
	if (r == 0)
		r = kind == SOURCE_OCI_ARCHIVE ? open_layout(s, name, err) : kind == SOURCE_DOCKER_ARCHIVE ? open_docker(s, name, err) : open_rootfs(s, err);
	if (r < 0) {
		source_free(s);
		return r;
	}
	*ret = s;
	return 0;
}
