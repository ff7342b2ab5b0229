#include "sandbox/microvm/guest_kernel.h"
#include "base/buf.h"
#include "base/cleanup.h"

#include <errno.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#define NAME "vmlinuz-"

static const char *const kinds[] = {"-cloud-amd64", "-amd64"};

static bool has_modules(const char *modules)
{
	cleanup_buf struct buf path = BUF_INIT;
	buf_addf(&path, "%s/modules.dep", modules);
	const char *text = buf_cstr(&path);
	return text && access(text, R_OK) == 0;
}

static int fill(struct str directory, const char *modules_root, const char *name, struct guest_kernel *ret, struct error *err)
{
	cleanup_buf struct buf image = BUF_INIT, modules = BUF_INIT;
	const char *version = name + sizeof(NAME) - 1;
	buf_addf(&image, "%.*s%s", STR_FMT(directory), name);
	buf_addf(&modules, "%s/lib/modules/%s", modules_root, version);
	struct guest_kernel k = {str_dup(buf_str(&image)), str_dup(buf_str(&modules)), str_dup(str_of(version))};
	if (image.failed || modules.failed || !k.image || !k.modules || !k.version) {
		guest_kernel_done(&k);
		return error_errno(err, -ENOMEM, "guest kernel");
	}
	*ret = k;
	return 0;
}

static int find_named(const char *image, struct guest_kernel *ret, struct error *err)
{
	const char *slash = strrchr(image, '/'), *name = slash ? slash + 1 : image;
	cleanup_buf struct buf root = BUF_INIT;
	if (strncmp(name, NAME, sizeof(NAME) - 1) != 0 || !name[sizeof(NAME) - 1])
		return error_set(err, -EINVAL, 500, "guest kernel %s: its name must be vmlinuz-VERSION, by which its modules are found", image);
	if (access(image, R_OK) < 0)
		return error_errno(err, -errno, "guest kernel %s", image);
	struct str directory = str_n(image, (size_t)(name - image));
	buf_addf(&root, "%.*s..", STR_FMT(directory));
	const char *modules_root = buf_cstr(&root);
	int r = modules_root ? fill(directory, modules_root, name, ret, err) : error_errno(err, -ENOMEM, "guest kernel");
	if (r == 0 && !has_modules(ret->modules)) {
		r = error_set(err, -ENOENT, 500, "guest kernel %s: there is no %s/modules.dep (where the kernel was only unpacked, depmod makes it)", image, ret->modules);
		guest_kernel_done(ret);
	}
	return r;
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
		if (!is_of(e->d_name, kind) || (best && strverscmp(e->d_name, best) <= 0))
			continue;
		buf_addf(&modules, "%s/lib/modules/%s", root, e->d_name + sizeof(NAME) - 1);
		const char *path = buf_cstr(&modules);
		if (!path || !has_modules(path))
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
		if (name)
			return fill(buf_str(&boot), root, name, ret, err);
	}
	return error_set(err, -ENOENT, 500, "there is no kernel for microVMs in %s: apt-get install linux-image-cloud-amd64 brings one (it need not be booted)", directory);
}

void guest_kernel_done(struct guest_kernel *k)
{
	free(steal_pointer(&k->image));
	free(steal_pointer(&k->modules));
	free(steal_pointer(&k->version));
}
