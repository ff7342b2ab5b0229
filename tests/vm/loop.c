/*
 * What a KVM can do, without any of our code: a guest counts to a million in ring 0 (real mode), writes a byte to a port and halts. Says how long that took: about a millisecond where the
 * processor runs ring 0 itself, about a second where it is interpreted. Nothing here asserts it.
 */
#include <err.h>
#include <fcntl.h>
#include <linux/kvm.h>
#include <stdio.h>
#include <string.h>
#include <sys/ioctl.h>
#include <sys/mman.h>
#include <time.h>

static const unsigned char code[] = {
	0x66, 0xb9, 0x40, 0x42, 0x0f, 0x00, /* mov ecx, 1000000 */
	0x66, 0x49,                         /* dec ecx */
	0x75, 0xfc,                         /* jnz the line above */
	0xb0, 'K',                          /* mov al, 'K' */
	0xe6, 0xe9,                         /* out 0xe9, al */
	0xf4,                               /* hlt */
};

int main(void)
{
	int kvm = open("/dev/kvm", O_RDWR | O_CLOEXEC);
	if (kvm < 0)
		err(1, "/dev/kvm");
	int vm = ioctl(kvm, KVM_CREATE_VM, 0);
	if (vm < 0)
		err(1, "KVM_CREATE_VM");
	char *memory = mmap(NULL, 0x1000, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
	if (memory == MAP_FAILED)
		err(1, "mmap");
	memcpy(memory, code, sizeof code);
	struct kvm_userspace_memory_region region = { .guest_phys_addr = 0x1000, .memory_size = 0x1000, .userspace_addr = (unsigned long)memory };
	if (ioctl(vm, KVM_SET_USER_MEMORY_REGION, &region) < 0)
		err(1, "KVM_SET_USER_MEMORY_REGION");
	int cpu = ioctl(vm, KVM_CREATE_VCPU, 0);
	if (cpu < 0)
		err(1, "KVM_CREATE_VCPU");
	struct kvm_run *run = mmap(NULL, (size_t)ioctl(kvm, KVM_GET_VCPU_MMAP_SIZE, 0), PROT_READ | PROT_WRITE, MAP_SHARED, cpu, 0);
	if (run == MAP_FAILED)
		err(1, "mmap");
	struct kvm_sregs sregs;
	if (ioctl(cpu, KVM_GET_SREGS, &sregs) < 0)
		err(1, "KVM_GET_SREGS");
	sregs.cs.base = sregs.cs.selector = 0;
	struct kvm_regs regs = { .rip = 0x1000, .rflags = 2 };
	if (ioctl(cpu, KVM_SET_SREGS, &sregs) < 0 || ioctl(cpu, KVM_SET_REGS, &regs) < 0)
		err(1, "registers");
	struct timespec from, to;
	clock_gettime(CLOCK_MONOTONIC, &from);
	if (ioctl(cpu, KVM_RUN, NULL) < 0)
		err(1, "KVM_RUN");
	clock_gettime(CLOCK_MONOTONIC, &to);
	if (run->exit_reason != KVM_EXIT_IO || run->io.port != 0xe9 || ((char *)run)[run->io.data_offset] != 'K')
		errx(1, "exit %u instead of the byte", run->exit_reason);
	if (ioctl(cpu, KVM_RUN, NULL) < 0 || run->exit_reason != KVM_EXIT_HLT)
		errx(1, "exit %u instead of the halt", run->exit_reason);
	printf("a million turns in ring 0: %.1f ms\n", (double)(to.tv_sec - from.tv_sec) * 1e3 + (double)(to.tv_nsec - from.tv_nsec) / 1e6);
	return 0;
}
