#include "base/cleanup.h"
#include "base/log.h"
#include "guest/files_call.h"

#include <errno.h>
#include <linux/limits.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/vfs.h>
#include <sys/xattr.h>

static const struct str HEADER = {"X-Metadata-", sizeof("X-Metadata-") - 1};
static const struct str XATTR = {"user.e2b.", sizeof("user.e2b.") - 1};

enum {
	MAX_KEY = XATTR_NAME_MAX - (sizeof("user.e2b.") - 1),
	MAX_TOTAL = 4096, /* keys and values */
};

static bool is_printable(struct str s)
{
	for (size_t i = 0; i < s.n; i++) {
		if (s.p[i] < 0x20 || s.p[i] > 0x7e)
			return false;
	}
	return true;
}

static const struct files_meta_pair *find(const struct files_meta *m, struct str key)
{
	for (size_t i = 0; i < m->n; i++) {
		if (str_eq(str_of(m->pairs[i].name + XATTR.n), key))
			return &m->pairs[i];
	}
	return NULL;
}

static int add(struct files_call *c, struct files_meta *m, struct str key, struct str value)
{
	struct files_meta_pair *p = &m->pairs[m->n];
	if (key.n == 0)
		return files_fail(c, 400, "invalid metadata: a key is empty");
	if (key.n > MAX_KEY)
		return files_fail(c, 400, "invalid metadata: a key is longer than %d bytes", (int)MAX_KEY);
	char lower[MAX_KEY + 1];
	for (size_t i = 0; i < key.n; i++)
		lower[i] = (char)(key.p[i] >= 'A' && key.p[i] <= 'Z' ? key.p[i] | 0x20 : key.p[i]);
	lower[key.n] = '\0';
	if (!is_printable(str_of(lower)) || !is_printable(value))
		return files_fail(
			c, 400, "invalid metadata: key and value of '%s' must be printable ASCII", lower);
	if (find(m, str_of(lower)))
		return files_fail(c, 400, "invalid metadata: '%s' is given twice", lower);
	m->total += key.n + value.n;
	if (m->total > MAX_TOTAL)
		return files_fail(c, 400, "invalid metadata: longer than %d bytes in all", (int)MAX_TOTAL);
	if (asprintf(&p->name, "%s%s", XATTR.p, lower) < 0) {
		p->name = NULL;
		return -ENOMEM;
	}
	p->value = value;
	m->n++;
	return 0;
}

int files_meta_read(struct files_call *c, struct files_meta *ret)
{
	for (size_t i = 0; i < c->head.n_headers; i++) {
		const struct http_header *h = &c->head.headers[i];
		if (h->name.n < HEADER.n || !str_eq_nocase(str_n(h->name.p, HEADER.n), HEADER))
			continue;
		int r = add(c, ret, str_from(h->name, HEADER.n), h->value);
		if (r < 0)
			return r;
	}
	return 0;
}

void files_meta_done(struct files_meta *m)
{
	for (size_t i = 0; i < m->n; i++)
		free(m->pairs[i].name);
	m->n = 0;
}

/* ext4 keeps the attributes of a file in one block and says ENOSPC when they do not fit: nothing that room on the
 * disk would help. */
static int no_room(int fd)
{
	struct statfs s;
	return fstatfs(fd, &s) == 0 && s.f_bavail > 16 ? -E2BIG : -ENOSPC;
}

/* Whether the file system has such attributes at all: procfs and FAT do not. */
static bool is_unsupported(int error)
{
	return error == EOPNOTSUPP || error == ENOSYS;
}

/* Names of the file's attributes, one behind the other with their NUL. */
static ssize_t list_names(int fd, const char *path, char **ret)
{
	ssize_t n = path ? listxattr(path, NULL, 0) : flistxattr(fd, NULL, 0);
	if (n <= 0)
		return n < 0 ? -errno : 0;
	/* The kernel lists no more than this; the list may have grown meanwhile. */
	char *names = malloc(XATTR_LIST_MAX);
	if (!names)
		return -ENOMEM;
	n = path ? listxattr(path, names, XATTR_LIST_MAX) : flistxattr(fd, names, XATTR_LIST_MAX);
	if (n < 0) {
		int r = -errno;
		free(names);
		return r;
	}
	*ret = names;
	return n;
}

int files_meta_write(const struct files_meta *m, int fd)
{
	cleanup_free char *names = NULL;
	ssize_t n = list_names(fd, NULL, &names);
	if (n < 0)
		return is_unsupported((int)-n) ? 0 : (int)n;
	/* First what goes, which makes room. */
	for (const char *name = names; n && name < names + n; name += strlen(name) + 1) {
		if (str_starts(str_of(name), XATTR) && !find(m, str_of(name + XATTR.n)) &&
			fremovexattr(fd, name) < 0 && errno != ENODATA)
			return -errno;
	}
	for (size_t i = 0; i < m->n; i++) {
		const struct files_meta_pair *p = &m->pairs[i];
		if (fsetxattr(fd, p->name, p->value.p, p->value.n, 0) < 0)
			return is_unsupported(errno) ? 0 : errno == ENOSPC ? no_room(fd) : -errno;
	}
	return m->n > 0;
}

static void add_pair(struct buf *to, const char *key, struct str value, bool first)
{
	buf_add_c(to, first ? ",\"metadata\":{" : ",");
	json_quote(to, str_of(key));
	buf_add_c(to, ":");
	json_quote(to, value);
}

void files_meta_add(struct buf *to, const struct files_meta *m)
{
	for (size_t i = 0; i < m->n; i++)
		add_pair(to, m->pairs[i].name + XATTR.n, m->pairs[i].value, i == 0);
	if (m->n)
		buf_add_c(to, "}");
}

void files_meta_add_stored(struct buf *to, const char *path)
{
	cleanup_free char *names = NULL;
	ssize_t n = list_names(-1, path, &names);
	bool first = true;
	for (const char *name = names; n > 0 && name < names + n; name += strlen(name) + 1) {
		char value[MAX_TOTAL];
		if (!str_starts(str_of(name), XATTR))
			continue;
		/* One that is longer was not made by an upload. */
		ssize_t length = getxattr(path, name, value, sizeof(value));
		if (length < 0)
			continue;
		add_pair(to, name + XATTR.n, str_n(value, (size_t)length), first);
		first = false;
	}
	if (!first)
		buf_add_c(to, "}");
}
