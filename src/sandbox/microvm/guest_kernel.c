#include "sandbox/microvm/guest_kernel.h"
#include "base/buf.h"
#include "base/cleanup.h"

#include <errno.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#define NAME "vmlinuz-"

static const char *const kinds[] = {"-cloud-amd64", "-amd64"};

/* Where packages have modules. On a system both are the same directory, of what was only unpacked one is there. */
static const char *const places[] = {"lib/modules", "usr/lib/modules"};

/* Appends the path of the version's directory of modules, if there is one with a list of them. */
static bool find_modules(const char *root, const char *version, struct buf *ret)
{
	for (size_t i = 0; i < ARRAY_SIZE(places); i++) {
		cleanup_buf struct buf list = BUF_INIT;
		buf_addf(&list, "%s/%s/%s/modules.dep", root, places[i], version);
		const char *path = buf_cstr(&list);
		if (path && access(path, R_OK) == 0)
			return buf_addf(ret, "%s/%s/%s", root, places[i], version) == 0;
	}
	return false;
}

static int fill(struct str directory, const char *name, struct str modules, struct guest_kernel *ret, struct error *err)
{
	cleanup_buf struct buf image = BUF_INIT;
	buf_addf(&image, "%.*s%s", STR_FMT(directory), name);
	struct guest_kernel k = {str_dup(buf_str(&image)), str_dup(modules), strdup(name + sizeof(NAME) - 1)};
	if (image.failed || !k.image || !k.modules || !k.version) {
		guest_kernel_done(&k);
		return error_errno(err, -ENOMEM, "guest kernel");
	}
	*ret = k;
	return 0;
}

static int find_named(const char *image, struct guest_kernel *ret, struct error *err)
{
	const char *slash = strrchr(image, '/'), *name = slash ? slash + 1 : image, *version = name + sizeof(NAME) - 1;
	cleanup_buf struct buf root = BUF_INIT, modules = BUF_INIT;
	if (strncmp(name, NAME, sizeof(NAME) - 1) != 0 || !*version)
		return error_set(err, -EINVAL, 500, "guest kernel %s: its name must be vmlinuz-VERSION, by which its modules are found", image);
	if (access(image, R_OK) < 0)
		return error_errno(err, -errno, "guest kernel %s", image);
	struct str directory = str_n(image, (size_t)(name - image));
	buf_addf(&root, "%.*s..", STR_FMT(directory));
	const char *path = buf_cstr(&root);
	if (!path)
		return error_errno(err, -ENOMEM, "guest kernel");
	if (!find_modules(path, version, &modules))
		return error_set(err, -ENOENT, 500, "guest kernel %s: there is no modules.dep in %s/lib/modules/%s or %s/usr/lib/modules/%s (where the kernel was only unpacked, depmod makes it)", image, path,
			version, path, version);
	return fill(directory, name, buf_str(&modules), ret, err);
}

static bool is_of(const char *name, const char *kind)
{
	return str_starts(str_of(name), STR(NAME)) && str_ends(str_of(name), str_of(kind));
}

/* The newest name of that kind, owned by the caller, or NULL. */
static char *newest(const char *boot, const char *root, const char *kind)
{
	char *best = NULL;
	cleanup_dir DIR *d = opendir(boot);
	for (struct dirent *e; d && (e = readdir(d));) {
		cleanup_buf struct buf modules = BUF_INIT;
		if (!is_of(e->d_name, kind) || (best && strverscmp(e->d_name, best) <= 0) || !find_modules(root, e->d_name + sizeof(NAME) - 1, &modules))
			continue;
		free(best);
		best = strdup(e->d_name);
	}
	return best;
}

int guest_kernel_find(const char *image, const char *root, struct guest_kernel *ret, struct error *err)
{
	if (image)
		return find_named(image, ret, err);
	cleanup_buf struct buf boot = BUF_INIT;
	buf_addf(&boot, "%s/boot/", root);
	const char *directory = buf_cstr(&boot);
	if (!directory)
		return error_errno(err, -ENOMEM, "guest kernel");
	for (size_t i = 0; i < ARRAY_SIZE(kinds); i++) {
		cleanup_free char *name = newest(directory, root, kinds[i]);
		cleanup_buf struct buf modules = BUF_INIT;
		if (name && find_modules(root, name + sizeof(NAME) - 1, &modules))
			return fill(buf_str(&boot), name, buf_str(&modules), ret, err);
	}
	return error_set(err, -ENOENT, 500, "there is no kernel for microVMs in %s: apt-get install linux-image-cloud-amd64 brings one (it need not be booted)", directory);
}

void guest_kernel_done(struct guest_kernel *k)
{
	free(steal_pointer(&k->image));
	free(steal_pointer(&k->modules));
	free(steal_pointer(&k->version));
}
