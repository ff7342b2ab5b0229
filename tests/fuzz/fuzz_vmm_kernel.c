#include "fuzz.h"

#include "base/fd.h"
#include "vmm/kernel.h"

#include <sys/mman.h>

/* A guest's kernel: whatever the file holds, it is loaded within the guest's memory and has its entry there, or there is an error that says something. */

enum { SIZE = 64 << 20 };

static int file_of(struct str bytes)
{
	int fd = memfd_create("file", MFD_CLOEXEC);
	hold(fd >= 0 && fd_write_all(fd, bytes.p, bytes.n) == 0);
	return fd;
}

void fuzz_one(struct str input)
{
	struct guest_memory m;
	struct kernel_entry e;
	struct error err = {0};
	struct kvm_sregs sregs = {0};
	struct kvm_regs regs;
	cleanup_fd int kernel = file_of(input), initramfs = file_of(STR("initramfs"));
	hold(memory_map(&m, SIZE, -1, 0, &err) == 0);
	const struct kernel_files f = {.kernel = kernel, .initramfs = initramfs, .command_line = STR("quiet")};
	int r = kernel_load(&m, &f, &e, &err);
	if (r < 0) {
		hold(r == err.code && err.status >= 400 && str_starts(str_of(err.message), STR("the guest")));
	} else {
		/* Its own memory, or room that it has asked for. */
		hold(e.entry >= 1 << 20 && e.entry < SIZE && e.parameters != 0 && err.code == 0);
		kernel_registers(&e, &sregs, &regs);
		hold(regs.rip == e.entry);
	}
	memory_unmap(&m);
}
