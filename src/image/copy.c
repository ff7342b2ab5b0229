#include "image/copy.h"
#include "base/cleanup.h"
#include "base/map.h"
#include "image/copy_tar.h"

#include <errno.h>
#include <stdlib.h>
#include <string.h>

enum { MAX_PASSWD = 4 * 1024 * 1024 };

int copy_strip_glob(struct str source, struct buf *to, struct error *err)
{
	struct str rest = source, part;
	size_t before = buf_len(to);
	while (rest.n) {
		if (!str_cut(rest, '/', &part, &rest)) {
			part = rest;
			rest = STR("");
		}
		if (part.n == 0 || str_is(part, "."))
			continue;
		if (str_is(part, ".."))
			return error_set(err, -EINVAL, 400, "COPY: '%.*s' is outside of the context", (int)MIN(source.n, (size_t)200), source.p);
		bool glob = false;
		for (size_t i = 0; i < part.n; i++)
			glob |= strchr("*?[{", part.p[i]) != NULL;
		if (glob)
			break;
		if (buf_len(to) > before)
			buf_add_c(to, "/");
		buf_add_str(to, part);
	}
	return buf_cstr(to) ? 0 : error_errno(err, -ENOMEM, "COPY");
}

/* A box without the file has nobody but numbers. */
static int read_names(const struct envd *e, const char *path, struct buf *to, struct error *err)
{
	int r = envd_read_file(e, path, MAX_PASSWD, to, err);
	return r == -ENOENT ? 0 : r;
}

static int find_owner(struct copying *y, struct error *err)
{
	cleanup_buf struct buf passwd = BUF_INIT, group = BUF_INIT;
	const struct copy *c = y->c;
	if (!c->owner) {
		y->keep_owner = c->from != NULL || c->keep_owner;
		return 0;
	}
	int r = read_names(y->to, "/etc/passwd", &passwd, err);
	if (r == 0)
		r = read_names(y->to, "/etc/group", &group, err);
	if (r == 0)
		r = copy_owner(str_of(c->owner), c->user_is_group, buf_str(&passwd), buf_str(&group), &y->uid, &y->gid, err);
	return r < 0 ? error_wrap(err, r, "COPY") : 0;
}

/* Two sources of which one is in the other need a pass each: an entry is placed once in a pass. */
static bool apart(const char *a, const char *b)
{
	size_t n = strlen(a), m = strlen(b), least = MIN(n, m);
	if (least == 0 || strncmp(a, b, least) != 0)
		return least != 0;
	return n != m && (n < m ? b[n] : a[m]) != '/';
}

static int copy_archive(struct copying *y, struct error *err)
{
	const char *const *sources = y->c->sources;
	size_t n = 0;
	while (sources[n])
		n++;
	cleanup_free bool *done = calloc(n + 1, sizeof(*done));
	cleanup_free struct copy_source *pass = calloc(n + 1, sizeof(*pass));
	if (!done || !pass)
		return error_errno(err, -ENOMEM, "COPY");
	for (size_t first = 0; first < n;) {
		size_t taken = 0;
		for (size_t i = first; i < n; i++) {
			bool free_of_others = !done[i];
			for (size_t j = 0; j < taken && free_of_others; j++)
				free_of_others = apart(sources[i], pass[j].path);
			if (!free_of_others)
				continue;
			done[i] = true;
			pass[taken++] = (struct copy_source){.path = sources[i]};
		}
		int r = copy_pass(y, NULL, pass, taken, err);
		if (r < 0)
			return r;
		while (first < n && done[first])
			first++;
	}
	return 0;
}

static int copy_box(struct copying *y, struct error *err)
{
	for (const char *const *s = y->c->sources; *s; s++) {
		struct envd_download *from = NULL;
		struct copy_source source = {.path = *s, .whole = true};
		int r = envd_download_open(y->c->from, *s, &from, err);
		if (r == -ENOENT)
			return error_set(err, -ENOENT, 400, "COPY: '%.200s' does not exist", *s);
		if (r == 0)
			r = copy_pass(y, from, &source, 1, err);
		envd_download_close(from);
		if (r < 0)
			return r;
	}
	return 0;
}

int copy_into(const struct envd *to, const struct copy *c, struct copy_done *ret, struct error *err)
{
	struct copying y = {.to = to, .c = c, .dirs = MAP_INIT};
	struct envd_stat dest;
	size_t n = strlen(c->dest);
	int r = c->dest[0] == '/' && c->sources[0] ? 0 : error_set(err, -EINVAL, 400, "COPY: the destination is no absolute path");
	if (r == 0)
		r = find_owner(&y, err);
	if (r == 0)
		r = envd_stat(to, c->dest, &dest, err);
	if (r < 0)
		return r;
	y.dest_exists = dest.exists && dest.is_dir;
	y.into_dir = y.dest_exists || c->dest[n - 1] == '/' || c->sources[1];
	r = c->from ? copy_box(&y, err) : copy_archive(&y, err);
	map_done(&y.dirs);
	if (r == 0)
		*ret = y.done;
	return r;
}
