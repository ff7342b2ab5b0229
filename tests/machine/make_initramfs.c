/* make_initramfs KERNEL INIT OUTPUT [MODULE...]: the initramfs of a microVM, as the node makes it (sandbox/microvm/initramfs.h). */
#include "base/cleanup.h"
#include "sandbox/microvm/guest_kernel.h"
#include "sandbox/microvm/initramfs.h"

#include <fcntl.h>
#include <stdio.h>

int main(int argc, char **argv)
{
	struct guest_kernel k;
	struct error err = {0};
	if (argc < 4)
		return 2;
	if (guest_kernel_find(argv[1], "", &k, &err) < 0) {
		fprintf(stderr, "%s\n", err.message);
		return 1;
	}
	struct initramfs_config c = {.modules = k.modules, .init = argv[2], .more = (const char *const *)argv + 4};
	cleanup_fd int fd = open(argv[3], O_WRONLY | O_CREAT | O_TRUNC | O_CLOEXEC, 0644);
	int r = fd < 0 ? -errno : initramfs_write(&c, fd, &err);
	if (r < 0)
		fprintf(stderr, "%s: %s\n", argv[3], err.message);
	guest_kernel_done(&k);
	return r < 0;
}
