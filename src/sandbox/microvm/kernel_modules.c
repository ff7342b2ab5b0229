#include "sandbox/microvm/kernel_modules.h"
#include "sandbox/microvm/module_file.h"
#include "base/cleanup.h"
#include "base/fd.h"

#include <errno.h>
#include <fcntl.h>
#include <stdio.h>

enum {
	TEXT_MAX = 8 << 20,
	DEPTH_MAX = 32, /* of needs: files that name each other in a circle are damaged */
};

int kernel_modules_open(const char *directory, struct kernel_modules *ret, struct error *err)
{
	struct kernel_modules k = {.n = 0};
	cleanup_fd int fd = open(directory, O_PATH | O_DIRECTORY | O_CLOEXEC);
	int r = fd < 0 ? -errno : file_read(fd, "modules.dep", TEXT_MAX, &k.dep);
	if (r == 0)
		r = file_read(fd, "modules.builtin", TEXT_MAX, &k.builtin);
	if (r < 0) {
		kernel_modules_done(&k);
		return error_errno(err, r, "modules.dep and modules.builtin in %s", directory);
	}
	*ret = k;
	return 0;
}

void kernel_modules_done(struct kernel_modules *k)
{
	buf_done(&k->dep);
	buf_done(&k->builtin);
	k->n = 0;
}

/* "kernel/fs/erofs/erofs.ko" is "erofs"; what is behind ".ko" is how it is compressed. */
static struct str name_of(struct str path)
{
	struct str name = path;
	for (size_t i = 0; i < path.n; i++)
		if (path.p[i] == '/')
			name = str_from(path, i + 1);
	ptrdiff_t dot = str_chr(name, '.');
	return dot < 0 ? name : str_n(name.p, (size_t)dot);
}

static bool same_name(struct str a, struct str b)
{
	if (a.n != b.n)
		return false;
	for (size_t i = 0; i < a.n; i++)
		if (a.p[i] != b.p[i] && !((a.p[i] == '-' || a.p[i] == '_') && (b.p[i] == '-' || b.p[i] == '_')))
			return false;
	return true;
}

/* Takes the next line of a text that may end without a newline. */
static bool next_line(struct str *rest, struct str *ret)
{
	if (!rest->n)
		return false;
	if (!str_cut(*rest, '\n', ret, rest)) {
		*ret = *rest;
		*rest = STR("");
	}
	return true;
}

/* The line "path: path path ..." of the module. */
static bool find(const struct kernel_modules *k, struct str name, struct str *ret_path, struct str *ret_needs)
{
	struct str rest = buf_str(&k->dep), line;
	while (next_line(&rest, &line))
		if (str_cut(line, ':', ret_path, ret_needs) && same_name(name_of(*ret_path), name))
			return true;
	return false;
}

static bool is_builtin(const struct kernel_modules *k, struct str name)
{
	struct str rest = buf_str(&k->builtin), line;
	while (next_line(&rest, &line))
		if (same_name(name_of(line), name))
			return true;
	return false;
}

static bool is_there(const struct kernel_modules *k, struct str path)
{
	for (size_t i = 0; i < k->n; i++)
		if (str_eq(k->order[i], path))
			return true;
	return false;
}

/* Needs first. The lines of modules.dep hold all of them, those of needs, too, but in no order that is documented: each is looked up. */
static int need(struct kernel_modules *k, struct str name, unsigned depth, struct error *err)
{
	struct str path, needs, file;
	if (!find(k, name, &path, &needs)) {
		if (is_builtin(k, name))
			return 0;
		return error_set(err, -ENOENT, 500, "the guest kernel has no module %.*s", STR_FMT(name));
	}
	if (is_there(k, path))
		return 0;
	if (!module_file_name(path, &file))
		return error_set(err, -ENOTSUP, 500, "the guest kernel's module %.*s is compressed in a way that is not known: .ko, .ko.xz, .ko.zst and .ko.gz are", STR_FMT(path));
	if (depth >= DEPTH_MAX)
		return error_set(err, -ELOOP, 500, "modules.dep of the guest kernel: %.*s needs itself", STR_FMT(name));
	for (struct str rest = str_trim(needs), item; rest.n; rest = str_trim(rest)) {
		if (!str_cut(rest, ' ', &item, &rest)) {
			item = rest;
			rest = STR("");
		}
		int r = need(k, name_of(item), depth + 1, err);
		if (r < 0)
			return r;
	}
	if (k->n == KERNEL_MODULES_MAX)
		return error_set(err, -E2BIG, 500, "the guest kernel needs more than %d modules", KERNEL_MODULES_MAX);
	k->order[k->n++] = path;
	return 0;
}

int kernel_modules_need(struct kernel_modules *k, const char *name, struct error *err)
{
	return need(k, str_of(name), 0, err);
}
