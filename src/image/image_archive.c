#include "image/image_archive.h"

#include "base/cleanup.h"
#include "base/fd.h"
#include "base/map.h"
#include "io/json.h"

#include <archive.h>
#include <archive_entry.h>
#include <errno.h>
#include <sys/stat.h>

struct member {
	struct member *next; /* all, for freeing */
	uint64_t offset, size;
	char *link; /* what it is a link to, from the root of the archive; NULL: a file */
};

struct image_archive {
	int fd;
	struct map members; /* by normalised name */
	struct member *all;
};

static void archive_close_p(struct archive **a)
{
	archive_read_free(*a);
}
#define cleanup_archive __attribute__((__cleanup__(archive_close_p)))

/* Path with `base`'s directory before it unless that is empty, without ".", "..", doubled and leading '/'. -EINVAL too long. */
static int normal_path(struct str base, struct str path, char to[ARCHIVE_NAME_MAX + 1], size_t *ret_n)
{
	size_t n = 0;
	const struct str both[] = {base, path};
	for (size_t i = 0; i < 2; i++) {
		struct str rest = both[i], part;
		for (bool more = rest.n; more;) {
			struct str tail = {0};
			more = str_cut(rest, '/', &part, &tail);
			if (!more)
				part = rest;
			rest = tail;
			if (str_is(part, "..")) {
				while (n && to[n - 1] != '/')
					n--;
				n -= n > 0;
			} else if (part.n && !str_is(part, ".")) {
				if (n + part.n + 1 > ARCHIVE_NAME_MAX)
					return -EINVAL;
				if (n)
					to[n++] = '/';
				memcpy(to + n, part.p, part.n);
				n += part.n;
			}
		}
	}
	*ret_n = n;
	return 0;
}

static struct str directory_of(struct str name)
{
	while (name.n && name.p[name.n - 1] != '/')
		name.n--;
	return name;
}

static int add_member(struct image_archive *x, struct archive *a, struct archive_entry *e, struct error *err)
{
	char name[ARCHIVE_NAME_MAX + 1], target[ARCHIVE_NAME_MAX + 1];
	size_t n, target_n;
	const char *path = archive_entry_pathname(e), *hard = archive_entry_hardlink(e), *symbolic = archive_entry_symlink(e);
	bool file = archive_entry_filetype(e) == AE_IFREG;
	if (!hard && !symbolic && !file)
		return 0;
	if (!path || normal_path((struct str){0}, str_of(path), name, &n) < 0)
		return error_set(err, -E2BIG, 400, "the archive has a member whose name is longer than %d bytes", ARCHIVE_NAME_MAX);
	if (file && archive_entry_sparse_count(e) > 0)
		return error_set(err, -ENOTSUP, 400, "the archive has sparse members, which are not supported");
	struct member *m = calloc(1, sizeof(*m));
	if (!m)
		return error_set(err, -ENOMEM, 500, "out of memory");
	m->next = x->all;
	x->all = m;
	if (hard || symbolic) {
		struct str base = hard ? (struct str){0} : directory_of(str_n(name, n));
		if (normal_path(base, str_of(hard ? hard : symbolic), target, &target_n) < 0)
			return error_set(err, -E2BIG, 400, "the archive has a link that is longer than %d bytes", ARCHIVE_NAME_MAX);
		m->link = str_dup(str_n(target, target_n));
		if (!m->link)
			return error_set(err, -ENOMEM, 500, "out of memory");
	} else {
		m->offset = (uint64_t)archive_filter_bytes(a, 0); /* the head is read: here the data begins */
		m->size = (uint64_t)archive_entry_size(e);
	}
	if (x->members.count >= ARCHIVE_MEMBERS_MAX)
		return error_set(err, -E2BIG, 400, "the archive has more than %d members", ARCHIVE_MEMBERS_MAX);
	return map_put(&x->members, str_n(name, n), m, NULL) < 0 ? error_set(err, -ENOMEM, 500, "out of memory") : 0;
}

static int read_members(struct image_archive *x, struct error *err)
{
	cleanup_archive struct archive *a = archive_read_new();
	struct archive_entry *e;
	if (!a || archive_read_support_format_tar(a) != ARCHIVE_OK || lseek(x->fd, 0, SEEK_SET) < 0)
		return error_set(err, -ENOMEM, 500, "the archive cannot be read");
	int r = archive_read_open_fd(a, x->fd, 64 * 1024);
	for (unsigned long heads = 0; r == ARCHIVE_OK || r == ARCHIVE_WARN;) {
		r = archive_read_next_header(a, &e);
		if (r == ARCHIVE_EOF)
			return x->all ? 0 : error_set(err, -EINVAL, 400, "the archive is empty");
		if (r != ARCHIVE_OK && r != ARCHIVE_WARN)
			break;
		if (++heads > 2 * ARCHIVE_MEMBERS_MAX)
			return error_set(err, -E2BIG, 400, "the archive has more than %d members", ARCHIVE_MEMBERS_MAX);
		int failed = add_member(x, a, e, err);
		if (failed < 0)
			return failed;
	}
	return error_set(err, -EINVAL, 400, "the archive is no tar, or is truncated or damaged");
}

static int check_start(int fd, struct error *err)
{
	unsigned char start[6];
	struct stat st;
	if (fstat(fd, &st) < 0 || !S_ISREG(st.st_mode))
		return error_set(err, -EINVAL, 500, "the archive is no regular file");
	ssize_t n = pread(fd, start, sizeof(start), 0);
	if (n >= 4 && (!memcmp(start, "\x1f\x8b", 2) || !memcmp(start, "\x28\xb5\x2f\xfd", 4) || !memcmp(start, "BZh", 3) || !memcmp(start, "\xfd" "7zX", 4)))
		return error_set(err, -EINVAL, 400, "the archive is compressed: give the plain tar (layers in it may be compressed)");
	return 0;
}

int image_archive_new(struct image_archive **ret, int fd, struct error *err)
{
	int r = check_start(fd, err);
	if (r < 0)
		return r;
	struct image_archive *x = calloc(1, sizeof(*x));
	if (!x)
		return error_set(err, -ENOMEM, 500, "out of memory");
	x->fd = fd;
	x->members = MAP_INIT;
	r = read_members(x, err);
	if (r < 0) {
		image_archive_free(x);
		return r;
	}
	*ret = x;
	return 0;
}

void image_archive_free(struct image_archive *x)
{
	if (!x)
		return;
	map_done(&x->members);
	for (struct member *m = x->all, *next; m; m = next) {
		next = m->next;
		free(m->link);
		free(m);
	}
	free(x);
}

bool image_archive_find(const struct image_archive *x, struct str name, uint64_t *ret_offset, uint64_t *ret_size)
{
	char normal[ARCHIVE_NAME_MAX + 1];
	size_t n;
	if (normal_path((struct str){0}, name, normal, &n) < 0)
		return false;
	const struct member *m = map_get(&x->members, str_n(normal, n));
	for (int i = 0; m && m->link && i < ARCHIVE_LINKS; i++)
		m = map_get(&x->members, str_of(m->link));
	if (!m || m->link)
		return false;
	*ret_offset = m->offset;
	*ret_size = m->size;
	return true;
}

int image_archive_read(const struct image_archive *x, struct str name, size_t max, struct buf *to, struct error *err)
{
	uint64_t offset, size;
	if (!image_archive_find(x, name, &offset, &size))
		return error_set(err, -ENOENT, 400, "the archive lacks a file that it needs: %.*s", (int)MIN(name.n, (size_t)100), name.p);
	if (size > max)
		return error_set(err, -E2BIG, 400, "a file of the archive is longer than allowed: %.*s", (int)MIN(name.n, (size_t)100), name.p);
	char *p = buf_reserve(to, size + 1);
	if (!p)
		return error_set(err, -ENOMEM, 500, "out of memory");
	for (size_t done = 0; done < size;) {
		ssize_t n = pread(x->fd, p + done, size - done, (off_t)(offset + done));
		if (n < 0 && errno == EINTR)
			continue;
		if (n <= 0)
			return error_errno(err, n < 0 ? -errno : -EIO, "the archive could not be read");
		done += (size_t)n;
	}
	buf_commit(to, size);
	return 0;
}

/* --- which image --- */

/* Names of images for an error, as many as fit. */
static void add_name(struct buf *names, const char *name)
{
	if (buf_len(names) < 300)
		buf_addf(names, "%s%.100s", buf_len(names) ? ", " : "", name);
}

static int several(struct str name, struct buf *names, struct error *err)
{
	const char *list = buf_cstr(names);
	if (!list || !*list)
		list = "images without names";
	return name.n ? error_set(err, -EINVAL, 400, "the archive has no image of the name %.*s; it has: %s", (int)MIN(name.n, (size_t)100), name.p, list)
		      : error_set(err, -EINVAL, 400, "the archive has several images, and none was chosen: %s", list);
}

/* name is the tag, the full name or another spelling of it, of an image that has this name. */
static bool means(struct str name, const char *full)
{
	struct reference a, b;
	char text[REFERENCE_TEXT_MAX], other[REFERENCE_TEXT_MAX];
	const char *colon = strrchr(full, ':');
	if (str_is(name, full) || (colon && str_is(name, colon + 1)))
		return true;
	if (reference_parse(name, &a, NULL) < 0 || reference_parse(str_of(full), &b, NULL) < 0)
		return false;
	return !strcmp(reference_format(&a, text), reference_format(&b, other));
}

int image_archive_choose(const struct manifest *index, struct str name, size_t ret[MANIFEST_ENTRIES_MAX], struct error *err)
{
	cleanup_buf struct buf names = BUF_INIT;
	size_t n = 0;
	bool different = false;
	for (size_t i = 0; i < index->n_entries; i++) {
		const struct manifest_entry *e = &index->entries[i], *first = n ? &index->entries[ret[0]] : e;
		add_name(&names, *e->name ? e->name : e->digest);
		if (name.n && !str_is(name, e->digest) && !means(name, e->name))
			continue;
		bool again = false;
		for (size_t k = 0; k < n; k++)
			again = again || !strcmp(index->entries[ret[k]].digest, e->digest); /* another name of the same */
		if (again)
			continue;
		/* Platforms of one image have one name, or none. */
		different = different || strcmp(e->name, first->name) != 0 || (n && (!*e->platform.os || !*first->platform.os));
		ret[n++] = i;
	}
	if (!index->n_entries)
		return error_set(err, -EINVAL, 400, "the archive has no image");
	if (!n || (!name.n && different))
		return several(name, &names, err);
	if (different)
		return error_set(err, -EINVAL, 400, "the archive has several images of the name %.*s", (int)MIN(name.n, (size_t)100), name.p);
	return (int)n;
}

void docker_archive_image_done(struct docker_archive_image *i)
{
	for (size_t k = 0; i->layers && i->layers[k]; k++)
		free(i->layers[k]);
	free(i->layers);
	free(i->config);
	*i = (struct docker_archive_image){0};
}

static bool tagged(const json_t *image, struct str name, struct buf *names)
{
	const json_t *tag;
	bool found = !name.n;
	size_t i;
	json_array_foreach(json_object_get(image, "RepoTags"), i, tag) {
		const char *text = json_string_value(tag);
		if (!text)
			continue;
		add_name(names, text);
		found = found || means(name, text);
	}
	return found;
}

static int read_image(const json_t *j, struct docker_archive_image *ret, struct error *err)
{
	const json_t *layers = json_object_get(j, "Layers"), *layer;
	struct docker_archive_image image = {0};
	size_t i, n = json_array_size(layers);
	if (n > SOURCE_MAX_LAYERS)
		return error_set(err, -E2BIG, 400, "the image has more than %d layers", SOURCE_MAX_LAYERS);
	image.config = str_dup(json_str(json_object_get(j, "Config")));
	image.layers = calloc(n + 1, sizeof(char *));
	bool ok = image.config && image.layers;
	json_array_foreach(layers, i, layer) {
		ok = ok && (image.layers[i] = str_dup(json_str(layer)));
	}
	if (!ok || !*image.config) {
		docker_archive_image_done(&image);
		return error_set(err, ok ? -EINVAL : -ENOMEM, ok ? 400 : 500, ok ? "the archive's manifest.json is malformed" : "out of memory");
	}
	*ret = image;
	return 0;
}

int docker_archive_choose(struct str json, struct str name, struct docker_archive_image *ret, struct error *err)
{
	cleanup_json json_t *j = json_parse(json, MANIFEST_MAX, "the archive's manifest.json", err);
	cleanup_buf struct buf names = BUF_INIT;
	const json_t *image, *found = NULL;
	size_t i, n = 0;
	if (!j)
		return -EINVAL;
	json_array_foreach(j, i, image) {
		if (!tagged(image, name, &names))
			continue;
		n++;
		found = image;
	}
	if (!json_is_array(j) || !json_array_size(j))
		return error_set(err, -EINVAL, 400, "the archive's manifest.json names no image");
	if (n != 1)
		return several(name, &names, err);
	return read_image(found, ret, err);
}
