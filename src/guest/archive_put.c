#include "base/cleanup.h"
#include "base/log.h"
#include "base/random.h"
#include "guest/archive.h"
#include "guest/tar.h"

#include <errno.h>
#include <fcntl.h>
#include <limits.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/stat.h>
#include <sys/xattr.h>
#include <unistd.h>

enum { MAX_NAMED = 100 /* of what was left out */ };

/* A directory's time, set when nothing is placed in it any more. */
struct later {
	struct later *next; /* the one before */
	struct timespec mtime;
	char name[];
};

struct placing {
	struct files_call *call;
	struct files_gunzip *gunzip; /* NULL = the body is as it is */
	struct tar_reader *tar;
	int root;
	const struct tar_entry *entry;
	struct buf name, link;  /* of the member, cleaned: what they are below the root; "" = the root itself */
	int parent;             /* directory of the member; the root's or `opened` */
	const char *base;       /* its name there */
	struct buf opened_name; /* of the directory that was opened last */
	int opened;
	struct later *later;
	uint64_t members, bytes, n_skipped; /* members: with those */
	struct buf skipped; /* JSON, without its brackets */
};

/* ---- failures ---- */

static int refuse(struct placing *p, int status, const char *why)
{
	struct str name = p->entry->name;
	return files_fail(p->call, status, "member '%.*s': %s", STR_FMT(name), why);
}

static int fail(struct placing *p, int error, const char *what)
{
	struct str name = p->entry->name;
	switch (error < 0 ? -error : error) {
	case ENOSPC:
	case EDQUOT:
		return files_fail(p->call, 507, "not enough disk space available: %s member '%.*s'", what, STR_FMT(name));
	case ELOOP:
		return refuse(p, 409, "a symbolic link is in its way");
	case ENOTDIR:
		return refuse(p, 409, "a file is in its way");
	case ENAMETOOLONG:
		return refuse(p, 400, "its name is too long");
	case EFBIG:
		return refuse(p, 400, "it is larger than the file system allows");
	case ENOMEM:
		return -ENOMEM;
	default:
		return files_fail(p->call, 500, "%s member '%.*s': %s", what, STR_FMT(name), strerror(error < 0 ? -error : error));
	}
}

static int skip(struct placing *p)
{
	if (p->n_skipped++ < MAX_NAMED) {
		buf_add_c(&p->skipped, buf_len(&p->skipped) ? "," : "");
		json_quote(&p->skipped, p->entry->name);
	}
	return p->skipped.failed ? -ENOMEM : 0;
}

/* ---- names ---- */

/* What a name means below the root, never above it: *ret is replaced. -EINVAL: absolute, or with "..". */
static int clean(struct str name, struct buf *ret)
{
	buf_clear(ret);
	if (name.n && name.p[0] == '/')
		return -EINVAL;
	while (name.n) {
		struct str part = name;
		if (!str_cut(name, '/', &part, &name))
			name = STR("");
		if (!part.n || str_is(part, "."))
			continue;
		if (str_is(part, ".."))
			return -EINVAL;
		if (buf_len(ret))
			buf_add_c(ret, "/");
		buf_add_str(ret, part);
	}
	return buf_cstr(ret) && !ret->failed ? 0 : -ENOMEM;
}

/* Cuts a cleaned name into its directory ("" = the root) and its last part. */
static const char *cut_base(struct str name, struct str *ret_directory)
{
	const char *slash = memrchr(name.p, '/', name.n);
	*ret_directory = slash ? str_n(name.p, (size_t)(slash - name.p)) : STR("");
	return slash ? slash + 1 : name.p;
}

/* Opens a directory below the root; those that are missing are made, one after the other, when they may be. */
static int open_directory(struct placing *p, struct str name, bool make)
{
	char path[TAR_MAX_NAME + 1];
	const int flags = O_PATH | O_DIRECTORY;
	memcpy(path, name.p, name.n);
	path[name.n] = '\0';
	int fd = archive_open(p->root, path, flags);
	if (fd != -ENOENT || !make)
		return fd;
	int at = -1;
	for (char *part = path, *next; part; part = next) {
		next = strchr(part, '/');
		if (next)
			*next++ = '\0';
		int up = at >= 0 ? at : p->root;
		int below = mkdirat(up, part, 0755) < 0 && errno != EEXIST ? -errno : archive_open(up, part, flags);
		cleanup_fd_p(&at);
		if (below < 0)
			return below;
		at = below;
	}
	return at;
}

/* The directory that the member belongs into; the last one is kept, since members of one follow each other. */
static int enter_parent(struct placing *p)
{
	struct str directory;
	p->base = cut_base(buf_str(&p->name), &directory);
	p->parent = p->root;
	if (!directory.n)
		return 0;
	if (p->opened < 0 || !str_eq(directory, buf_str(&p->opened_name))) {
		cleanup_fd_p(&p->opened);
		p->opened = open_directory(p, directory, true);
		if (p->opened < 0)
			return p->opened;
		buf_clear(&p->opened_name);
		if (buf_add_str(&p->opened_name, directory) < 0)
			return -ENOMEM;
	}
	p->parent = p->opened;
	return 0;
}

/* ---- what members have in common ---- */

static int give_xattrs(struct placing *p, int fd)
{
	for (size_t i = 0; i < p->entry->n_xattrs; i++) {
		const struct tar_xattr *x = &p->entry->xattrs[i];
		char name[XATTR_NAME_MAX + 1];
		if (!archive_carries(x->name))
			continue;
		if (x->name.n > XATTR_NAME_MAX)
			return refuse(p, 400, "the name of an extended attribute is too long");
		memcpy(name, x->name.p, x->name.n);
		name[x->name.n] = '\0';
		if (fsetxattr(fd, name, x->value.p, x->value.n, 0) < 0)
			return errno == ENOSPC || errno == E2BIG ? files_fail(p->call, 507, "the file system has no room for the attribute '%s' of member '%.*s'", name,
									   STR_FMT(p->entry->name))
								 : fail(p, errno, "setting an extended attribute of");
	}
	return 0;
}

/* Above this the identity map of a sandbox has nothing, and the kernel takes no such id. */
static bool good_ids(const struct tar_entry *e)
{
	return e->uid < UINT32_MAX && e->gid < UINT32_MAX;
}

static struct timespec mtime_of(const struct tar_entry *e)
{
	return (struct timespec){.tv_sec = e->mtime, .tv_nsec = e->mtime_ns};
}

static int chown_failed(struct placing *p)
{
	return errno == EINVAL ? refuse(p, 400, "the sandbox has no user or group of that number") : fail(p, errno, "changing the owner of");
}

/* Owner, then what a change of it would take away: mode with set-user-ID, capabilities. */
static int give_attributes(struct placing *p, int fd)
{
	const struct tar_entry *e = p->entry;
	if (fchown(fd, (uid_t)e->uid, (gid_t)e->gid) < 0)
		return chown_failed(p);
	if (fchmod(fd, e->mode) < 0)
		return fail(p, errno, "changing the mode of");
	return e->n_xattrs ? give_xattrs(p, fd) : 0;
}

/* The same for what is not opened: links and FIFOs. They have neither capabilities nor attributes of users. */
static int give_attributes_at(struct placing *p, const char *name)
{
	const struct tar_entry *e = p->entry;
	const struct timespec times[2] = {{.tv_nsec = UTIME_NOW}, mtime_of(e)};
	if (fchownat(p->parent, name, (uid_t)e->uid, (gid_t)e->gid, AT_SYMLINK_NOFOLLOW) < 0)
		return chown_failed(p);
	if (e->type == TAR_FIFO && fchmodat(p->parent, name, e->mode, 0) < 0)
		return fail(p, errno, "changing the mode of");
	return utimensat(p->parent, name, times, AT_SYMLINK_NOFOLLOW) < 0 ? fail(p, errno, "setting the time of") : 0;
}

/* ---- placing under another name first: what was there is replaced whole, and never written through ---- */

enum { TEMPORARY = 32 };

static void temporary_name(char to[TEMPORARY])
{
	char text[17];
	random_text(text, 16, "abcdefghijklmnopqrstuvwxyz0123456789");
	snprintf(to, TEMPORARY, ".cubicle-%s", text);
}

static int rename_to_base(struct placing *p, const char *name)
{
	if (renameat(p->parent, name, p->parent, p->base) < 0)
		return errno == EISDIR || errno == ENOTEMPTY || errno == EEXIST ? refuse(p, 409, "a directory is in its place") : fail(p, errno, "placing");
	return 0;
}

static int write_at(int fd, struct str bytes, uint64_t at)
{
	while (bytes.n) {
		ssize_t n = pwrite(fd, bytes.p, bytes.n, (off_t)at);
		if (n < 0 && errno == EINTR)
			continue;
		if (n < 0)
			return -errno;
		bytes = str_from(bytes, (size_t)n);
		at += (uint64_t)n;
	}
	return 0;
}

static int archive_failed(struct placing *p, int r, const struct tar_entry *in)
{
	if (r != -EPROTO && r != -EPIPE && r != -EMSGSIZE)
		return r;
	const char *why = tar_why(p->tar);
	if (!*why)
		return r; /* of the body */
	return in ? files_fail(p->call, 400, "the archive is broken in member '%.*s': %s", STR_FMT(in->name), why)
		  : files_fail(p->call, 400, "the archive is broken after %llu members: %s", (unsigned long long)p->members, why);
}

static int write_data(struct placing *p, int fd)
{
	struct str bytes;
	uint64_t at;
	int r;
	while ((r = tar_data(p->tar, &bytes, &at)) > 0) {
		if ((r = write_at(fd, bytes, at)) < 0)
			return fail(p, r, "writing");
		p->bytes += bytes.n;
	}
	if (r < 0)
		return archive_failed(p, r, p->entry);
	return p->entry->sparse && ftruncate(fd, (off_t)p->entry->size) < 0 ? fail(p, errno, "writing") : 0;
}

static int fill_file(struct placing *p, int fd)
{
	const struct timespec times[2] = {{.tv_nsec = UTIME_NOW}, mtime_of(p->entry)};
	int r = write_data(p, fd);
	if (r == 0)
		r = give_attributes(p, fd);
	if (r == 0 && futimens(fd, times) < 0)
		r = fail(p, errno, "setting the time of");
	return r;
}

static int make_file(struct placing *p, const char *name)
{
	cleanup_fd int fd = openat(p->parent, name, O_WRONLY | O_CREAT | O_EXCL | O_NOFOLLOW | O_CLOEXEC, 0600);
	if (fd < 0)
		return fail(p, errno, "making");
	int r = fill_file(p, fd);
	/* Some file systems tell of a full disk or quota only here. */
	if (close(steal_fd(&fd)) < 0 && errno != EINTR && r == 0)
		r = fail(p, errno, "writing");
	return r;
}

static int make_symlink(struct placing *p, const char *name)
{
	char target[TAR_MAX_NAME + 1];
	memcpy(target, p->entry->link.p, p->entry->link.n);
	target[p->entry->link.n] = '\0';
	return symlinkat(target, p->parent, name) < 0 ? fail(p, errno, "making") : give_attributes_at(p, name);
}

static int make_fifo(struct placing *p, const char *name)
{
	return mkfifoat(p->parent, name, 0600) < 0 ? fail(p, errno, "making") : give_attributes_at(p, name);
}

/* Of a member that is there already: its name is looked up like a member's, without links on the way. */
static int make_hardlink(struct placing *p, const char *name)
{
	struct str directory;
	int r = clean(p->entry->link, &p->link);
	if (r == -EINVAL || (r == 0 && !buf_len(&p->link)))
		return refuse(p, 400, "it links to what is outside the archive");
	if (r < 0)
		return r;
	const char *base = cut_base(buf_str(&p->link), &directory);
	int from = directory.n ? open_directory(p, directory, false) : dup(p->root);
	if (from >= 0) {
		r = linkat(from, base, p->parent, name, 0) < 0 ? -errno : 0;
		close(from);
	} else {
		r = from;
	}
	if (r == -ENOENT)
		return refuse(p, 400, "it links to what is not there");
	return r < 0 ? fail(p, r, "linking") : 0;
}

static int replace(struct placing *p, int (*make)(struct placing *p, const char *name))
{
	char name[TEMPORARY];
	struct stat st;
	/* Looked at first, so that nothing is written for nothing. */
	if (fstatat(p->parent, p->base, &st, AT_SYMLINK_NOFOLLOW) == 0 && S_ISDIR(st.st_mode))
		return refuse(p, 409, "a directory is in its place");
	temporary_name(name);
	int r = make(p, name);
	if (r == 0)
		r = rename_to_base(p, name);
	/* Also after a rename: between two names of one file it does nothing. */
	unlinkat(p->parent, name, 0);
	return r;
}

/* ---- directories ---- */

static int remember_time(struct placing *p)
{
	struct str name = buf_str(&p->name);
	struct later *l = malloc(sizeof(*l) + name.n + 1);
	if (!l)
		return -ENOMEM;
	l->next = p->later;
	l->mtime = mtime_of(p->entry);
	memcpy(l->name, name.p, name.n);
	l->name[name.n] = '\0';
	p->later = l;
	return 0;
}

/* Merged with one that is there, which gets what the archive says of it. */
static int place_directory(struct placing *p)
{
	const char *name = buf_len(&p->name) ? p->base : ".";
	if (mkdirat(p->parent, name, 0700) < 0 && errno != EEXIST)
		return fail(p, errno, "making");
	cleanup_fd int fd = archive_open(p->parent, name, O_RDONLY | O_DIRECTORY);
	if (fd == -EXDEV)
		return skip(p);
	if (fd == -ENOTDIR)
		return refuse(p, 409, "a file is in its place");
	if (fd < 0)
		return fd == -ELOOP ? refuse(p, 409, "a symbolic link is in its place") : fail(p, fd, "opening");
	int r = give_attributes(p, fd);
	return r == 0 ? remember_time(p) : r;
}

static void set_times(struct placing *p)
{
	for (struct later *l = p->later; l; l = l->next) {
		const struct timespec times[2] = {{.tv_nsec = UTIME_OMIT}, l->mtime};
		cleanup_fd int fd = archive_open(p->root, *l->name ? l->name : ".", O_RDONLY | O_DIRECTORY);
		if (fd >= 0)
			futimens(fd, times);
	}
}

/* ---- the archive ---- */

static int place(struct placing *p)
{
	const struct tar_entry *e = p->entry;
	if (e->type == TAR_DEVICE || e->type == TAR_OTHER)
		return skip(p);
	int r = clean(e->name, &p->name);
	if (r == -EINVAL)
		return refuse(p, 400, "it is outside the archive: its name is absolute or has '..' in it");
	if (r == 0 && !buf_len(&p->name) && e->type != TAR_DIRECTORY)
		return refuse(p, 400, "it has no name");
	if (r == 0 && !good_ids(e))
		return refuse(p, 400, "the sandbox has no user or group of that number");
	if (r < 0)
		return r;
	r = enter_parent(p);
	if (r == -EXDEV)
		return skip(p);
	if (r < 0)
		return fail(p, r, "making the directory of");
	switch (e->type) {
	case TAR_DIRECTORY:
		return place_directory(p);
	case TAR_FILE:
		return replace(p, make_file);
	case TAR_HARDLINK:
		return replace(p, make_hardlink);
	case TAR_SYMLINK:
		return replace(p, make_symlink);
	case TAR_FIFO:
		return replace(p, make_fifo);
	case TAR_DEVICE:
	case TAR_OTHER:
		break;
	}
	return 0;
}

static int place_all(struct placing *p)
{
	int r;
	while ((r = tar_next(p->tar, &p->entry)) > 0) {
		if ((r = place(p)) < 0)
			return r;
		p->members++;
	}
	if (r < 0)
		return archive_failed(p, r, NULL);
	set_times(p);
	return 0;
}

static int next_run(void *arg, struct str *ret)
{
	struct placing *p = arg;
	return p->gunzip ? files_gunzip_next(p->call, p->gunzip, ret) : files_body_next(p->call, ret);
}

/* Behind the archive's end there may be more zeros; what comes is read, so that a body that is cut there fails too. */
static int read_rest(struct placing *p)
{
	struct str run;
	int r;
	while ((r = next_run(p, &run)) > 0)
		;
	return r;
}

static int choose_coding(struct placing *p)
{
	struct str coding = http_value(&p->call->head, "Content-Encoding");
	if (str_eq_nocase(coding, STR("gzip")) || str_eq_nocase(coding, STR("x-gzip"))) {
		p->gunzip = files_gunzip_new();
		return p->gunzip ? 0 : -ENOMEM;
	}
	if (coding.n && !str_eq_nocase(coding, STR("identity")))
		return files_fail(p->call, 400, "unsupported content encoding: %.*s", STR_FMT(coding));
	return 0;
}

static int open_root(struct placing *p, const char *path)
{
	size_t bad = 0;
	int r = files_make_dirs(p->call, path, &bad);
	if (r == -ENOTDIR)
		return files_fail(p->call, 409, "path is a file: %.*s", bad ? (int)bad : (int)strlen(path), path);
	if (r == 0 && (p->root = open(path, O_RDONLY | O_DIRECTORY | O_CLOEXEC)) < 0)
		r = -errno;
	return r < 0 ? files_fail_errno(p->call, r, "error opening directory", path) : 0;
}

static int answer(struct placing *p)
{
	cleanup_buf struct buf out = BUF_INIT;
	buf_addf(&out, "{\"members\":%llu,\"bytes\":%llu,\"skippedCount\":%llu,\"skipped\":[", (unsigned long long)(p->members - p->n_skipped), (unsigned long long)p->bytes,
		(unsigned long long)p->n_skipped);
	buf_add_str(&out, buf_str(&p->skipped));
	buf_add_c(&out, "]}");
	return out.failed ? -ENOMEM : files_respond(p->call, 200, "application/json", NULL, buf_str(&out));
}

static int put(struct placing *p, const char *path)
{
	const struct tar_source from = {next_run, p};
	int r = choose_coding(p);
	if (r == 0)
		r = open_root(p, path);
	if (r == 0 && !(p->tar = tar_reader_new(&from)))
		r = -ENOMEM;
	if (r == 0)
		r = place_all(p);
	if (r == 0)
		r = read_rest(p);
	return r == 0 ? answer(p) : r;
}

int archive_put(struct files_call *c, const char *path)
{
	struct placing p = {.call = c, .root = -1, .opened = -1};
	int r = put(&p, path);
	cleanup_fd_p(&p.opened);
	cleanup_fd_p(&p.root);
	tar_reader_free(p.tar);
	files_gunzip_free(p.gunzip);
	while (p.later) {
		struct later *l = p.later;
		p.later = l->next;
		free(l);
	}
	struct buf *all[] = {&p.name, &p.link, &p.opened_name, &p.skipped};
	for (size_t i = 0; i < ARRAY_SIZE(all); i++)
		buf_done(all[i]);
	return r;
}
