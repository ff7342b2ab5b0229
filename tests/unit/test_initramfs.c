#include "unit.h"

#include "base/cleanup.h"
#include "base/fd.h"
#include "sandbox/microvm/guest_kernel.h"
#include "sandbox/microvm/initramfs.h"
#include "sandbox/microvm/kernel_modules.h"

#include <fcntl.h>
#include <stdio.h>
#include <sys/stat.h>

/* A machine's files: /boot and /lib/modules. */
struct world {
	char root[64];
};

static void put(const struct world *w, const char *path, const char *text)
{
	char whole[300];
	snprintf(whole, sizeof(whole), "%s/%s", w->root, path);
	char *slash = strrchr(whole, '/');
	*slash = '\0';
	assert_int_equal(make_dirs(whole, 0755), 0);
	*slash = '/';
	cleanup_fd int fd = open(whole, O_WRONLY | O_CREAT | O_TRUNC | O_CLOEXEC, 0644);
	assert_true(fd >= 0);
	assert_int_equal(fd_write_all(fd, text, strlen(text)), 0);
}

#define MODULES "lib/modules/6.1.0-9-cloud-amd64/"

/* The file path.SUFFIX in the place of path. */
static void compress(const struct world *w, const char *path, const char *suffix)
{
	const char *program = strcmp(suffix, "xz") == 0 ? "xz --check=crc32" : strcmp(suffix, "zst") == 0 ? "zstd -q --rm" : "gzip -n";
	char command[300];
	snprintf(command, sizeof(command), "%s %s/%s", program, w->root, path);
	assert_int_equal(system(command), 0);
}

/* Lines as depmod writes them, in an order of its own. */
static const char dep[] =
	"kernel/net/vmw_vsock/vmw_vsock_virtio_transport.ko: kernel/net/vmw_vsock/vmw_vsock_virtio_transport_common.ko kernel/net/vmw_vsock/vsock.ko kernel/drivers/virtio/virtio.ko\n"
	"kernel/net/vmw_vsock/vmw_vsock_virtio_transport_common.ko: kernel/net/vmw_vsock/vsock.ko\n"
	"kernel/net/vmw_vsock/vsock.ko:\n"
	"kernel/drivers/virtio/virtio_mmio.ko: kernel/drivers/virtio/virtio_ring.ko.xz kernel/drivers/virtio/virtio.ko\n"
	"kernel/drivers/virtio/virtio_ring.ko.xz: kernel/drivers/virtio/virtio.ko\n"
	"kernel/drivers/virtio/virtio.ko:\n"
	"kernel/drivers/block/virtio_blk.ko: kernel/drivers/virtio/virtio_ring.ko.xz kernel/drivers/virtio/virtio.ko\n"
	"kernel/drivers/net/virtio_net.ko:\n"
	"kernel/drivers/char/hw_random/virtio-rng.ko:\n"
	"kernel/drivers/virtio/virtio_balloon.ko:\n"
	"kernel/fs/erofs/erofs.ko: kernel/lib/libcrc32c.ko.zst\n"
	"kernel/lib/libcrc32c.ko.zst:\n"
	"kernel/fs/overlayfs/overlay.ko.gz:\n"
	"kernel/drivers/odd/loop-a.ko: kernel/drivers/odd/loop-b.ko\n"
	"kernel/drivers/odd/loop-b.ko: kernel/drivers/odd/loop-a.ko\n"
	"kernel/drivers/odd/damaged.ko.xz:\n"
	"kernel/drivers/odd/packed.ko.lz4:";

static void put_modules(const struct world *w)
{
	struct str rest = str_of(dep), line;
	put(w, MODULES "modules.dep", dep);
	put(w, MODULES "modules.builtin", "kernel/fs/ext4/ext4.ko\nkernel/crypto/crc32c_generic.ko\n");
	while (str_cut(rest, '\n', &line, &rest)) {
		char path[200];
		struct str name, needs;
		assert_true(str_cut(line, ':', &name, &needs));
		snprintf(path, sizeof(path), MODULES "%.*s", STR_FMT(name));
		char *suffix = strstr(path, ".ko.");
		if (suffix)
			suffix[3] = '\0';
		put(w, path, path + strlen(path) - 7); /* bytes that tell it from others, of any length modulo 4 */
		if (suffix)
			compress(w, path, suffix + 4);
	}
	put(w, MODULES "kernel/drivers/odd/damaged.ko.xz", "no xz");
}

static int set_up(void **state)
{
	static struct world w;
	strcpy(w.root, "/tmp/cubicle-initramfs-XXXXXX");
	assert_non_null(mkdtemp(w.root));
	put_modules(&w);
	put(&w, "boot/vmlinuz-6.1.0-9-cloud-amd64", "k");
	put(&w, "init", "#!program");
	*state = &w;
	return 0;
}

static int tear_down(void **state)
{
	struct world *w = *state;
	return remove_tree(AT_FDCWD, w->root);
}

static struct kernel_modules open_modules(const struct world *w)
{
	char path[200];
	struct kernel_modules k;
	struct error err = {0};
	snprintf(path, sizeof(path), "%s/" MODULES, w->root);
	if (kernel_modules_open(path, &k, &err) < 0)
		fail_msg("%s", err.message);
	return k;
}

static void what_a_module_needs_goes_first(void **state)
{
	static const char *const order[] = {"virtio.ko", "virtio_ring.ko.xz", "virtio_mmio.ko", "vsock.ko", "vmw_vsock_virtio_transport_common.ko", "vmw_vsock_virtio_transport.ko", "virtio-rng.ko"};
	struct kernel_modules k = open_modules(*state);
	assert_int_equal(kernel_modules_need(&k, "virtio_mmio", NULL), 0);
	assert_int_equal(kernel_modules_need(&k, "vmw_vsock_virtio_transport", NULL), 0);
	assert_int_equal(kernel_modules_need(&k, "virtio_rng", NULL), 0); /* as the file is called: virtio-rng */
	assert_int_equal(kernel_modules_need(&k, "virtio", NULL), 0);     /* is there */
	assert_int_equal(kernel_modules_need(&k, "ext4", NULL), 0);       /* built in */
	assert_int_equal(k.n, ARRAY_SIZE(order));
	for (size_t i = 0; i < k.n; i++)
		assert_true(str_ends(k.order[i], str_of(order[i])));
	kernel_modules_done(&k);
}

static void modules_that_cannot_be_had_are_named(void **state)
{
	struct kernel_modules k = open_modules(*state);
	struct error err = {0};
	assert_int_equal(kernel_modules_need(&k, "squashfs", &err), -ENOENT);
	assert_non_null(strstr(err.message, "squashfs"));
	assert_int_equal(kernel_modules_need(&k, "packed", &err), -ENOTSUP);
	assert_non_null(strstr(err.message, "packed.ko.lz4"));
	assert_int_equal(kernel_modules_need(&k, "loop_a", &err), -ELOOP);
	assert_int_equal(k.n, 0);
	kernel_modules_done(&k);
	assert_int_equal(kernel_modules_open("/nowhere", &k, &err), -ENOENT);
}

/* Reads an archive as the kernel does (init/initramfs.c). */
struct reader {
	const char *at, *end;
	char name[300];
	unsigned mode, major, minor;
	const char *bytes;
	size_t size;
};

static unsigned hex(const char *p)
{
	char text[9];
	snprintf(text, sizeof(text), "%.8s", p);
	return (unsigned)strtoul(text, NULL, 16);
}

static bool next(struct reader *r, const char *start)
{
	assert_true(r->end - r->at >= 110);
	assert_memory_equal(r->at, "070701", 6);
	const char *head = r->at;
	unsigned name = hex(head + 6 + 11 * 8);
	r->mode = hex(head + 6 + 8);
	r->size = hex(head + 6 + 6 * 8);
	r->major = hex(head + 6 + 9 * 8);
	r->minor = hex(head + 6 + 10 * 8);
	assert_true(name < sizeof(r->name));
	memcpy(r->name, head + 110, name);
	r->bytes = start + (((head + 110 + name - start) + 3) & ~3);
	r->at = start + (((r->bytes + r->size - start) + 3) & ~3);
	assert_true(r->at <= r->end);
	return strcmp(r->name, "TRAILER!!!") != 0;
}

static void the_archive_holds_init_and_modules_in_order(void **state)
{
	static const char *const names[] = {
		"dev", "dev/console", "modules", "init", "modules/00-virtio.ko", "modules/01-virtio_ring.ko", "modules/02-virtio_mmio.ko", "modules/03-virtio_blk.ko", "modules/04-virtio_net.ko",
		"modules/05-virtio-rng.ko", "modules/06-virtio_balloon.ko", "modules/07-vsock.ko", "modules/08-vmw_vsock_virtio_transport_common.ko", "modules/09-vmw_vsock_virtio_transport.ko",
		"modules/10-libcrc32c.ko", "modules/11-erofs.ko", "modules/12-overlay.ko",
	};
	struct world *w = *state;
	char modules[200], init[200];
	struct error err = {0};
	cleanup_buf struct buf all = BUF_INIT;
	snprintf(modules, sizeof(modules), "%s/" MODULES, w->root);
	snprintf(init, sizeof(init), "%s/init", w->root);
	struct initramfs_config c = {.modules = modules, .init = init};
	cleanup_fd int fd = initramfs_make(&c, &err);
	if (fd < 0)
		fail_msg("%s", err.message);
	assert_int_equal(write(fd, "x", 1), -1); /* sealed */
	char path[32];
	snprintf(path, sizeof(path), "/proc/self/fd/%d", fd);
	assert_int_equal(file_read(AT_FDCWD, path, 1 << 20, &all), 0);
	struct str s = buf_str(&all);
	struct reader r = {.at = s.p, .end = s.p + s.n};
	size_t n = 0;
	for (; next(&r, s.p); n++) {
		assert_true(n < ARRAY_SIZE(names));
		assert_string_equal(r.name, names[n]);
		if (n == 1)
			assert_true(S_ISCHR(r.mode) && r.major == 5 && r.minor == 1);
		else if (n == 3)
			assert_true(r.mode == (S_IFREG | 0755) && r.size == 9 && memcmp(r.bytes, "#!program", 9) == 0);
		else if (n > 3)
			assert_true(S_ISREG(r.mode) && r.size == 7 && memcmp(r.bytes, names[n] + strlen(names[n]) - 7, 7) == 0);
		else
			assert_true(S_ISDIR(r.mode));
	}
	assert_int_equal(n, ARRAY_SIZE(names));
	assert_ptr_equal(r.at, r.end);
	c.more = (const char *const[]){"squashfs", NULL};
	assert_int_equal(initramfs_make(&c, &err), -ENOENT);
	c.more = (const char *const[]){"damaged", NULL};
	assert_int_equal(initramfs_make(&c, &err), -EBADMSG);
	assert_non_null(strstr(err.message, MODULES));
	assert_non_null(strstr(err.message, "kernel/drivers/odd/damaged.ko.xz"));
}

static void the_newest_cloud_kernel_is_found(void **state)
{
	struct world *w = *state;
	struct guest_kernel k;
	struct error err = {0};
	put(w, "boot/vmlinuz-6.1.0-37-cloud-amd64", "k");
	put(w, "lib/modules/6.1.0-37-cloud-amd64/modules.dep", "");
	put(w, "boot/vmlinuz-6.1.0-38-cloud-amd64", "k"); /* has no modules */
	put(w, "boot/vmlinuz-6.9.0-1-amd64", "k");
	put(w, "lib/modules/6.9.0-1-amd64/modules.dep", "");
	assert_int_equal(guest_kernel_find(NULL, w->root, &k, &err), 0);
	assert_string_equal(k.version, "6.1.0-37-cloud-amd64");
	assert_true(str_ends(str_of(k.image), STR("/boot/vmlinuz-6.1.0-37-cloud-amd64")));
	assert_true(str_ends(str_of(k.modules), STR("/lib/modules/6.1.0-37-cloud-amd64")));
	guest_kernel_done(&k);
}

static void without_a_cloud_kernel_another_will_do(void **state)
{
	struct world *w = *state;
	struct guest_kernel k;
	struct error err = {0};
	char path[200];
	snprintf(path, sizeof(path), "%s/boot/vmlinuz-6.1.0-9-cloud-amd64", w->root);
	assert_int_equal(unlink(path), 0);
	assert_int_equal(guest_kernel_find(NULL, w->root, &k, &err), -ENOENT);
	assert_non_null(strstr(err.message, "apt-get install linux-image-cloud-amd64"));
	put(w, "boot/vmlinuz-6.1.0-10-amd64", "k");
	put(w, "lib/modules/6.1.0-10-amd64/modules.dep", "");
	assert_int_equal(guest_kernel_find(NULL, w->root, &k, &err), 0);
	assert_string_equal(k.version, "6.1.0-10-amd64");
	guest_kernel_done(&k);
}

static void a_kernel_can_be_named(void **state)
{
	struct world *w = *state;
	struct guest_kernel k;
	struct error err = {0};
	char path[200];
	snprintf(path, sizeof(path), "%s/boot/vmlinuz-6.1.0-9-cloud-amd64", w->root);
	assert_int_equal(guest_kernel_find(path, "/nowhere", &k, &err), 0);
	assert_string_equal(k.image, path);
	assert_string_equal(k.version, "6.1.0-9-cloud-amd64");
	assert_int_equal(access(k.modules, F_OK), 0);
	guest_kernel_done(&k);
	snprintf(path, sizeof(path), "%s/boot/vmlinuz-6.2", w->root);
	assert_int_equal(guest_kernel_find(path, "", &k, &err), -ENOENT);
	put(w, "boot/vmlinuz-6.2", "k");
	assert_int_equal(guest_kernel_find(path, "", &k, &err), -ENOENT);
	assert_non_null(strstr(err.message, "modules.dep"));
	put(w, "usr/lib/modules/6.2/modules.dep", ""); /* as a package of Debian 13 has it, only unpacked */
	assert_int_equal(guest_kernel_find(path, "", &k, &err), 0);
	assert_true(str_ends(str_of(k.modules), STR("/usr/lib/modules/6.2")));
	guest_kernel_done(&k);
	snprintf(path, sizeof(path), "%s/init", w->root);
	assert_int_equal(guest_kernel_find(path, "", &k, &err), -EINVAL);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test_setup_teardown(what_a_module_needs_goes_first, set_up, tear_down),
		cmocka_unit_test_setup_teardown(modules_that_cannot_be_had_are_named, set_up, tear_down),
		cmocka_unit_test_setup_teardown(the_archive_holds_init_and_modules_in_order, set_up, tear_down),
		cmocka_unit_test_setup_teardown(the_newest_cloud_kernel_is_found, set_up, tear_down),
		cmocka_unit_test_setup_teardown(without_a_cloud_kernel_another_will_do, set_up, tear_down),
		cmocka_unit_test_setup_teardown(a_kernel_can_be_named, set_up, tear_down),
	};
	return cmocka_run_group_tests(tests, NULL, NULL);
}
