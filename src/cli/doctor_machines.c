/* The doctor's checks of what microVMs need (docs/microvm.md). */
#include "cli/doctor.h"
#include "base/cleanup.h"
#include "sandbox/microvm/guest_kernel.h"
#include "sandbox/microvm/initramfs.h"
#include "sys/program.h"
#include "vmm/probe.h"

#include <errno.h>
#include <fcntl.h>
#include <linux/if_tun.h>
#include <net/if.h>
#include <sched.h>
#include <stdio.h>
#include <sys/ioctl.h>

int doctor_try_kvm(struct doctor *d, struct error *err)
{
	char reason[VMM_PROBE_REASON];
	cleanup_fd int fd = open("/dev/kvm", O_RDWR | O_CLOEXEC);
	if (fd < 0)
		return error_errno(err, -errno, "none: /dev/kvm");
	switch (vmm_probe(fd, reason)) {
	case VMM_PROBE_HARDWARE:
		snprintf(d->note, sizeof(d->note), "hardware: %s", reason);
		return 0;
	case VMM_PROBE_INTERPRETED:
		return error_set(err, -ENODEV, 500, "interpreted: %s", reason);
	case VMM_PROBE_NONE:
	default:
		return error_set(err, -ENODEV, 500, "none: %s", reason);
	}
}

/* The kernel, and whether the node will find in it all that its initramfs needs. */
int doctor_try_guest_kernel(struct doctor *d, struct error *err)
{
	char init[PATH_MAX];
	const char *wanted = d->options->guest_kernel;
	struct guest_kernel k;
	int r = guest_kernel_find(wanted[0] ? wanted : NULL, "", &k, err);
	if (r < 0)
		return r;
	snprintf(d->note, sizeof(d->note), "%.200s", k.image);
	r = program_of_ours("cubicle-init", "../guest", init, err);
	if (r == 0) {
		const struct initramfs_config c = {.modules = k.modules, .init = init};
		cleanup_fd int made = r = initramfs_make(&c, err);
	}
	guest_kernel_done(&k);
	return MIN(r, 0);
}

int doctor_try_monitor(struct doctor *d, struct error *err)
{
	char path[PATH_MAX];
	int r = program_of_ours("cubicle-vmm", "../vmm", path, err);
	if (r == 0)
		snprintf(d->note, sizeof(d->note), "%.250s", path);
	return r;
}

int doctor_try_tap(struct doctor *d, struct error *err)
{
	struct ifreq q = {.ifr_name = "tap0", .ifr_flags = IFF_TAP | IFF_NO_PI | IFF_VNET_HDR};
	if (unshare(CLONE_NEWNET) < 0)
		return error_errno(err, -errno, "unshare of the network");
	cleanup_fd int fd = open("/dev/net/tun", O_RDWR | O_CLOEXEC);
	if (fd < 0)
		return error_errno(err, -errno, "/dev/net/tun");
	return ioctl(fd, TUNSETIFF, &q) < 0 ? error_errno(err, -errno, "a tap link") : 0;
}
