#include "guest/boot.h"
#include "base/cleanup.h"
#include "base/fd.h"
#include "base/log.h"
#include "guest/machine.h"
#include "guest/ports.h"
#include "vmm/layout.h"

#include <errno.h>
#include <fcntl.h>
#include <linux/vm_sockets.h>
#include <stdio.h>
#include <sys/mount.h>
#include <sys/reboot.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <termios.h>

enum { QUIET = MS_NOSUID | MS_NODEV | MS_NOEXEC };

static _Noreturn void fail(const struct error *err)
{
	dprintf(2, "cubicle-init: %s\n", err->message);
	tcdrain(2);
	reboot(RB_POWER_OFF);
	_exit(1);
}

/* What this process says goes to the console. The kernel opened it for us only if the initramfs had its device. */
static void open_console(void)
{
	cleanup_fd int null = open("/dev/null", O_RDWR | O_CLOEXEC);
	cleanup_fd int console = open("/dev/console", O_WRONLY | O_NOCTTY | O_CLOEXEC);
	int fds[] = {null, console < 0 ? null : console, console < 0 ? null : console};
	for (int i = 0; i < 3; i++)
		if (fds[i] >= 0 && dup2(fds[i], i) < 0)
			_exit(1);
	/* Not closed by their being ours when they had these numbers. */
	if (null < 3)
		steal_fd(&null);
	if (console < 3)
		steal_fd(&console);
}

static int mount_first(struct error *err)
{
	static const char *const mounts[][2] = {{"devtmpfs", "/dev"}, {"proc", "/proc"}, {"sysfs", "/sys"}};
	for (size_t i = 0; i < ARRAY_SIZE(mounts); i++) {
		if (mkdir(mounts[i][1], 0755) < 0 && errno != EEXIST)
			return error_errno(err, -errno, "%s", mounts[i][1]);
		/* EBUSY: a kernel that mounts it by itself. */
		if (mount(mounts[i][0], mounts[i][1], mounts[i][0], i ? QUIET : MS_NOSUID, NULL) < 0 && errno != EBUSY)
			return error_errno(err, -errno, "%s", mounts[i][1]);
	}
	return 0;
}

static int read_cmdline(struct boot_config *ret, struct error *err)
{
	cleanup_buf struct buf text = BUF_INIT;
	int r = file_read(AT_FDCWD, "/proc/cmdline", 16384, &text);
	return r < 0 ? error_errno(err, r, "/proc/cmdline") : boot_cmdline_parse(buf_str(&text), ret, err);
}

static int listen_on(int type, unsigned port, struct error *err)
{
	struct sockaddr_vm at = {.svm_family = AF_VSOCK, .svm_cid = VMADDR_CID_ANY, .svm_port = port};
	cleanup_fd int fd = socket(AF_VSOCK, type | SOCK_CLOEXEC, 0);
	if (fd < 0 || bind(fd, (struct sockaddr *)&at, sizeof(at)) < 0 || listen(fd, 128) < 0)
		return error_errno(err, -errno, "vsock port %u", port);
	return steal_fd(&fd);
}

/* For good: that it is open tells the monitor that this machine is up. */
static void tell_up(void)
{
	struct sockaddr_vm at = {.svm_family = AF_VSOCK, .svm_cid = VSOCK_HOST, .svm_port = VSOCK_PORT_CONTROL};
	int fd = socket(AF_VSOCK, SOCK_STREAM | SOCK_CLOEXEC, 0);
	/* Whoever waits for it knows how long. */
	if (fd < 0 || connect(fd, (struct sockaddr *)&at, sizeof(at)) < 0)
		log_error("the monitor cannot be told that this machine is up: %s", strerror(errno));
}

static int make_root(const struct boot_config *c, int events, struct machine *ret, struct error *err)
{
	struct boot_disks d;
	int r = boot_disks_mount(c, events, &d, err);
	if (r == 0)
		r = boot_root_switch(&d, err);
	if (r < 0)
		return r;
	boot_disks_spare(&d);
	for (size_t i = 0; i < d.n_layers; i++)
		close(d.layers[i]);
	close(d.writable);
	ret->disk = d.root;
	return 0;
}

static int boot(struct ports_keeper **ret_ports, struct error *err)
{
	struct boot_config c;
	struct machine m;
	int r = mount_first(err);
	open_console();
	log_setup("init", 2, LOG_INFO);
	if (r == 0)
		r = read_cmdline(&c, err);
	if (r < 0)
		return r;
	m.address = c.address;
	cleanup_fd int events = boot_events_open();
	if (events < 0)
		return error_errno(err, events, "events of devices");
	boot_modules();
	if ((r = make_root(&c, events, &m, err)) < 0)
		return r;
	if ((r = m.work = boot_kernel_settle(c.pids, err)) < 0 || (r = boot_net(&c, events, err)) < 0)
		return r;
	machine_set(&m);
	cleanup_fd int control = listen_on(SOCK_SEQPACKET, VSOCK_PORT_CONTROL, err);
	if (control < 0)
		return control;
	int ports = listen_on(SOCK_STREAM, VSOCK_PORT_OPEN, err);
	if (ports < 0)
		return ports;
	*ret_ports = ports_keeper_new(ports, c.address);
	if (!*ret_ports)
		return error_errno(err, -errno, "the process that passes connections on");
	tell_up();
	return steal_fd(&control);
}

int boot_machine(struct ports_keeper **ret_ports)
{
	struct error err = {0};
	/* Ctrl-Alt-Del is nobody's here. */
	reboot(RB_DISABLE_CAD);
	int fd = boot(ret_ports, &err);
	if (fd < 0)
		fail(&err);
	return fd;
}
