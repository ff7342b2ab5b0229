#include "guest/filesystem_entry.h"

#include "base/cleanup.h"
#include "base/log.h"

#include <errno.h>
#include <fcntl.h>
#include <limits.h>
#include <stdlib.h>
#include <sys/stat.h>
#include <time.h>

static const char *type_name(mode_t mode)
{
	if (S_ISREG(mode))
		return "FILE_TYPE_FILE";
	return S_ISDIR(mode) ? "FILE_TYPE_DIRECTORY" : "FILE_TYPE_UNSPECIFIED";
}

/* As Go's fs.FileMode prints it: the letters of what it is, then the nine bits. */
static void format_permissions(char to[16], mode_t mode)
{
	char *at = to;
	if (S_ISDIR(mode))
		*at++ = 'd';
	if (S_ISLNK(mode))
		*at++ = 'L';
	if (S_ISBLK(mode) || S_ISCHR(mode))
		*at++ = 'D';
	if (S_ISFIFO(mode))
		*at++ = 'p';
	if (S_ISSOCK(mode))
		*at++ = 'S';
	if (mode & S_ISUID)
		*at++ = 'u';
	if (mode & S_ISGID)
		*at++ = 'g';
	if (S_ISCHR(mode))
		*at++ = 'c';
	if (mode & S_ISVTX)
		*at++ = 't';
	if (at == to)
		*at++ = '-';
	for (int bit = 8; bit >= 0; bit--)
		*at++ = mode & (1U << bit) ? "xwr"[bit % 3] : '-';
	*at = '\0';
}

/* RFC 3339 with nanoseconds; a Timestamp lies within the years 1 to 9999. */
static void add_time(struct buf *to, const struct timespec *t)
{
	struct tm tm;
	time_t s = MIN(MAX(t->tv_sec, -62135596800LL), 253402300799LL);
	gmtime_r(&s, &tm);
	buf_addf(to, "\"%04d-%02d-%02dT%02d:%02d:%02d.%09ldZ\"", tm.tm_year + 1900, tm.tm_mon + 1, tm.tm_mday,
		tm.tm_hour, tm.tm_min, tm.tm_sec, t->tv_nsec);
}

static void add_owner(struct buf *to, const char *key, struct str name, unsigned id)
{
	buf_addf(to, ",\"%s\":", key);
	if (name.n)
		json_quote(to, name);
	else
		buf_addf(to, "\"%u\"", id);
}

int entry_add(struct buf *to, const struct user_names *names, int dirfd, const char *name, struct str path,
	bool *ret_directory)
{
	struct stat st, target;
	if (fstatat(dirfd, name, &st, AT_SYMLINK_NOFOLLOW) < 0)
		return -errno;
	bool link = S_ISLNK(st.st_mode), broken = false;
	target = st;
	if (link && fstatat(dirfd, name, &target, 0) < 0) {
		target = (struct stat){0};
		broken = true;
	}
	/* Some file systems give empty directories no size; clients take 0 for "nothing there". */
	long long size = S_ISDIR(st.st_mode) && st.st_size == 0 ? 4096 : (long long)st.st_size;
	char permissions[16];
	format_permissions(permissions, st.st_mode);

	buf_add_c(to, "{\"name\":");
	json_quote(to, files_base_name(path));
	buf_addf(to, ",\"type\":\"%s\",\"path\":", type_name(target.st_mode));
	json_quote(to, path);
	buf_addf(to, ",\"size\":\"%lld\",\"mode\":%u,\"permissions\":\"%s\"", size,
		(unsigned)target.st_mode & 0777, permissions);
	add_owner(to, "owner", user_name(names, st.st_uid), st.st_uid);
	add_owner(to, "group", group_name(names, st.st_gid), st.st_gid);
	buf_add_c(to, ",\"modifiedTime\":");
	add_time(to, &st.st_mtim);
	cleanup_free char *c_path = str_dup(path);
	/* Only uploads give metadata, so only files have it. */
	if (c_path && S_ISREG(target.st_mode))
		files_meta_add_stored(to, c_path);
	if (link) {
		cleanup_free char *resolved = NULL;
		if (c_path && !broken)
			resolved = realpath(c_path, NULL);
		buf_add_c(to, ",\"symlinkTarget\":");
		json_quote(to, resolved ? str_of(resolved) : path);
		/* `type` is the target's: newer clients tell a link by this. */
		buf_add_c(to, ",\"isSymlink\":true");
	}
	buf_add_c(to, "}");
	*ret_directory = S_ISDIR(st.st_mode);
	return to->failed ? -ENOMEM : 0;
}
