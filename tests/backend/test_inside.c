/* What it is like inside a sandbox of the namespace backend: what works as people expect it, and what a hostile root cannot do. */
#include "backend/world.h"
#include "base/cleanup.h"

#include <stdio.h>

static struct world w;
static struct patient p;

static int set_up(void **state)
{
	world_init(&w);
	world_start(&w);
	world_ready(&w);
	patient_run(&w, &p, "iinside");
	return 0;
}

static int tear_down(void **state)
{
	patient_kill(&w, &p);
	world_stop(&w);
	world_done(&w);
	return 0;
}

/* The script must fail, and what it is about must work for the host (its positive control is with the caller). */
static void refused(const char *script)
{
	cleanup_buf struct buf out = BUF_INIT;
	if (inside(&w, &p, "root", script, &out) == 0)
		fail_msg("root inside could: %s\n%s", script, buf_cstr(&out));
}

static void it_has_names_of_its_own(void **state)
{
	expect_inside(&w, &p, "hostname; cat /etc/hostname /etc/resolv.conf; wc -c < /etc/machine-id; grep -c iinside /etc/hosts; test -L /etc/hosts || echo file",
		"iinside\niinside\nnameserver 127.0.0.53\n33\n1\nfile\n");
	expect_inside(&w, &p, "echo '10.0.0.1 other' >> /etc/hosts && tail -n1 /etc/hosts", "10.0.0.1 other\n");
	cleanup_buf struct buf mine = BUF_INIT, again = BUF_INIT;
	assert_int_equal(inside(&w, &p, "user", "cat /proc/sys/kernel/random/boot_id", &mine), 0);
	assert_int_equal(inside(&w, &p, "user", "cat /proc/sys/kernel/random/boot_id", &again), 0);
	assert_int_equal(buf_len(&mine), 37);
	assert_true(str_eq(buf_str(&mine), buf_str(&again)));
	cleanup_buf struct buf host = BUF_INIT;
	FILE *f = fopen("/proc/sys/kernel/random/boot_id", "r");
	char line[64];
	assert_non_null(fgets(line, sizeof(line), f));
	fclose(f);
	assert_string_not_equal(line, buf_cstr(&mine));
}

static void ordinary_work_works(void **state)
{
	expect_inside(&w, &p, "touch /a && chown 1000:1000 /a && stat -c %u:%g /a && mkdir /d && mv /etc/blob /d/ && mv /d /e && ls /e", "1000:1000\nblob\n");
	expect_inside_as(&w, &p, "user", "id -un; echo hi > ~/f; cat ~/f; ls -l ~/f | cut -c1-10", "user\nhi\n-rw-r--r--\n");
	expect_inside_as(&w, &p, "user", "/bin/busybox-suid su root -c 'id -u'", "0\n"); /* setuid works, so sudo does */
	expect_inside(&w, &p, "mkfifo /fifo; test -p /fifo; echo x > /dev/null; head -c 4 /dev/zero | wc -c; head -c 4 /dev/urandom | wc -c; echo y > /dev/shm/z; cat /dev/shm/z",
		"4\n4\ny\n");
	expect_inside(&w, &p, "ls /dev | tr '\\n' ' '", "fd full mqueue null ptmx pts random shm stderr stdin stdout tty urandom zero ");
	expect_inside(&w, &p, "stat -c %a /tmp /run /run/lock /dev/shm /dev/null /dev/pts/ptmx | tr '\\n' ' '", "1777 755 1777 1777 666 666 ");
	expect_inside(&w, &p, "probe icmp", "ok\n");
	expect_inside_as(&w, &p, "user", "probe icmp; probe attach-parent; true", "ok\nok\n");
	expect_inside(&w, &p, "nc -l -p 80 -w1 >/dev/null 2>&1 & wait; echo ok", "ok\n");
	expect_inside(&w, &p, "chmod 4755 /etc/passwd; stat -c %a /etc/passwd; chmod 644 /etc/passwd", "4755\n");
	char map[64];
	snprintf(map, sizeof(map), " 0 %u 65536\n", w.uid_base);
	expect_inside(&w, &p, "cat /proc/self/uid_map | tr -s ' '", map);
}

static void capabilities_and_filter_are_as_promised(void **state)
{
	/* No SYS_ADMIN (21), NET_ADMIN (12), SYS_MODULE (16), SYS_RAWIO (17), PERFMON (38), BPF (39) ...; SYS_PTRACE (19), SETUID (7), CHOWN (0) stay. */
	expect_inside(&w, &p, "grep -E '^(CapBnd|CapEff|NoNewPrivs|Seccomp):' /proc/self/status | tr -s '\\t' ' '",
		"CapEff: 000001009d8cedff\nCapBnd: 000001009d8cedff\nNoNewPrivs: 0\nSeccomp: 2\n");
}

static void no_mounts(void **state)
{
	refused("mount -t tmpfs none /mnt");
	refused("mount -o remount,rw /proc/sys");
	refused("mount --bind /tmp /proc/sys");
	refused("umount /proc/sys");
	refused("umount /proc/kcore");
	refused("umount /sys");
	refused("mount -t proc proc /tmp");
	refused("pivot_root / /tmp");
	refused("unshare -U true");
	refused("unshare -m true");
	refused("unshare -n true");
	refused("nsenter -t 1 -m true");
}

static void no_view_of_pid_1(void **state)
{
	refused("ls /proc/1/fd/");
	refused("cat /proc/1/environ");
	refused("cat /proc/1/maps | grep .");
	refused("ls /proc/1/root/");
	refused("readlink /proc/1/exe");
	refused("cat /proc/1/mem");
	expect_inside(&w, &p, "probe attach1; probe pidfd-getfd1; probe mem1", "EPERM\nEPERM\nEACCES\n");
	/* The same looks at a process of its own succeed. */
	expect_inside(&w, &p, "sleep 5 & ls /proc/$!/fd/ >/dev/null && cat /proc/$!/maps >/dev/null && readlink /proc/$!/exe", "/bin/busybox\n");
}

static void kernel_files_are_closed(void **state)
{
	refused("echo 1 > /proc/sys/kernel/panic");
	refused("echo x > /proc/sys/kernel/core_pattern");
	refused("echo c > /proc/sysrq-trigger && test ! -c /proc/sysrq-trigger");
	refused("head -c1 /proc/kcore | grep .");
	refused("head -c1 /proc/kmsg | grep .");
	refused("grep . /proc/keys /proc/timer_list /proc/sched_debug /proc/interrupts /proc/kallsyms");
	refused("dmesg");
	refused("grep . /proc/cmdline"); /* of the host's kernel; what stands there was not meant for strangers */
	refused("ls /sys/firmware | grep . || ls /sys/class/dmi/id/ | grep .");
	refused("ls /sys/kernel/debug | grep .");
	refused("cat /sys/kernel/notes /sys/kernel/vmcoreinfo | grep .");
	refused("ls /sys/fs/cgroup | grep .");
	refused("ls /sys/block | grep .");
	refused("touch /sys/x");
	expect_inside(&w, &p, "date -s 2001-01-01 2>&1 | grep -c 'not permitted'", "1\n");
	refused("reboot -f");
	refused("sysctl -w net.ipv4.ip_forward=1");
	refused("sysctl -w net.ipv4.ping_group_range='0 0'");
	refused("echo 0 > /proc/sys/net/ipv4/ip_unprivileged_port_start");
	expect_inside(&w, &p, "cat /proc/sys/net/ipv4/ip_unprivileged_port_start; ls /sys/class/net | tr '\\n' ' '; cat /proc/meminfo | grep -c MemTotal", "0\neth0 lo 1\n");
}

static void no_keys_and_no_raw_sockets(void **state)
{
	expect_inside(&w, &p, "probe keyctl; probe raw; probe packet", "EPERM\nEPERM\nEAFNOSUPPORT\n");
}

static void no_devices(void **state)
{
	refused("mknod /tmp/mem c 1 1 && head -c1 /tmp/mem");
	refused("mknod /tmp/null c 1 3 && echo x > /tmp/null"); /* not even a harmless one: mknod itself is refused */
	refused("mknod /tmp/disk b 8 0");
	refused("mknod /dev/kvm c 10 232");
	refused("ls /dev/loop* /dev/vda /dev/kvm /dev/fuse");
}

static void no_network_changes(void **state)
{
	refused("ip link set eth0 down");
	refused("ip addr add 10.9.9.9/8 dev eth0");
	refused("ip route del default");
	refused("ip link add x type veth");
	expect_inside(&w, &p, "ip link show eth0 | grep -c UP", "1\n");
}

/* The kernel's limits per user: what one sandbox uses up is not missing in another. */
static void limits_per_user_are_its_own(void **state)
{
	struct patient q;
	patient_run(&w, &q, "ineighbour");
	static const char *const things[] = {"inotify", "pty", "aio"};
	for (size_t i = 0; i < ARRAY_SIZE(things); i++) {
		char script[80];
		cleanup_buf struct buf hers = BUF_INIT, ours = BUF_INIT;
		snprintf(script, sizeof(script), "probe count %s", things[i]);
		assert_int_equal(inside(&w, &q, "user", script, &hers), 0);
		assert_true(atoi(buf_cstr(&hers)) > 16);
		snprintf(script, sizeof(script), "probe count %s hold & sleep 1", things[i]);
		assert_int_equal(inside(&w, &p, "user", script, &ours), 0);
		snprintf(script, sizeof(script), "probe count %s", things[i]);
		expect_inside_as(&w, &q, "user", script, buf_cstr(&hers));
	}
	expect_inside(&w, &p, "kill $(pidof probe)", "");
	patient_kill(&w, &q);
}

static void options_of_a_template(void **state)
{
	struct patient q;
	struct box_spec spec = world_spec(&w, "inested");
	spec.nested_userns = true;
	patient_create(&w, &q, &spec);
	wait_for(&w, &q.started, "a sandbox with nested user namespaces");
	assert_false(q.failed);
	expect_inside_as(&w, &q, "user", "unshare -U id -u", "65534\n");
	cleanup_buf struct buf out = BUF_INIT;
	assert_int_not_equal(inside(&w, &q, "user", "unshare -Urm sh -c 'umount /proc/kcore || umount /proc/sys || umount /sys/firmware'", &out), 0);
	patient_kill(&w, &q);
	spec = world_spec(&w, "inosuid");
	spec.no_setuid = true;
	spec.internet = false;
	patient_create(&w, &q, &spec);
	wait_for(&w, &q.started, "a sandbox without setuid");
	assert_false(q.failed);
	expect_inside_as(&w, &q, "user", "nc -w 20 203.0.113.1 80 </dev/null 2>&1 | grep -c refused; grep NoNewPrivs /proc/self/status | tr -s '\\t' ' '", "1\nNoNewPrivs: 1\n");
	assert_int_not_equal(inside(&w, &q, "user", "/bin/busybox-suid su root -c 'id -u'", &out), 0);
	patient_kill(&w, &q);
}

int main(void)
{
	if (!world_possible())
		return 77;
	cmocka_set_test_filter(getenv("CMOCKA_TEST_FILTER"));
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(it_has_names_of_its_own),
		cmocka_unit_test(ordinary_work_works),
		cmocka_unit_test(capabilities_and_filter_are_as_promised),
		cmocka_unit_test(no_mounts),
		cmocka_unit_test(no_view_of_pid_1),
		cmocka_unit_test(kernel_files_are_closed),
		cmocka_unit_test(no_keys_and_no_raw_sockets),
		cmocka_unit_test(no_devices),
		cmocka_unit_test(no_network_changes),
		cmocka_unit_test(limits_per_user_are_its_own),
		cmocka_unit_test(options_of_a_template),
	};
	return cmocka_run_group_tests(tests, set_up, tear_down);
}
