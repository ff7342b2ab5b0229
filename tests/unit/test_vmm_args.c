#include "unit.h"

#include "base/cleanup.h"
#include "vmm/args.h"

#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <sys/mman.h>
#include <sys/socket.h>
#include <sys/un.h>

static struct error err;

/* Words up to NULL, after those that are always needed if `base`. */
static int parse(struct vmm_args *a, bool base, const char *const *words)
{
	static const char *const needed[] = {"name=box1", "vcpus=2", "memory=256", "kvm=3", "admin=4"};
	char *argv[64] = {(char *)"cubicle-vmm"};
	int argc = 1;
	for (size_t i = 0; base && i < ARRAY_SIZE(needed); i++)
		argv[argc++] = (char *)needed[i];
	for (; *words; words++)
		argv[argc++] = (char *)*words;
	err = (struct error){0};
	return args_parse(argc, argv, a, &err);
}

#define WORDS(...) (const char *const[]){__VA_ARGS__, NULL}

static void test_boot(void **state)
{
	struct vmm_args a;
	assert_int_equal(parse(&a, true, WORDS("kernel=5", "initramfs=6", "cmdline=console=ttyS0 a=b", "console=7", "control=8", "tap=9", "mac=02:00:0a:Ff:00:01", "mtu=1400", "disk=10,ro",
		"disk=11,bps=1000,iops=20", "disk=12", "jail=70000")), 0);
	assert_string_equal(a.name, "box1");
	assert_int_equal(a.machine.vcpus, 2);
	assert_int_equal(a.machine.memory, 256u << 20);
	assert_int_equal(a.machine.kvm, 3);
	assert_int_equal(a.admin, 4);
	assert_int_equal(a.kernel, 5);
	assert_int_equal(a.initramfs, 6);
	assert_str(a.command_line, "console=ttyS0 a=b");
	assert_int_equal(a.machine.console, 7);
	assert_int_equal(a.machine.control, 8);
	assert_int_equal(a.machine.net.tap, 9);
	assert_memory_equal(a.machine.net.mac, "\x02\x00\x0a\xff\x00\x01", 6);
	assert_int_equal(a.machine.net.mtu, 1400);
	assert_int_equal(a.machine.n_disks, 3);
	assert_int_equal(a.machine.disk[0].file, 10);
	assert_true(a.machine.disk[0].read_only);
	assert_int_equal(a.machine.disk[1].bytes_per_second, 1000);
	assert_int_equal(a.machine.disk[1].operations_per_second, 20);
	assert_false(a.machine.disk[2].read_only);
	assert_int_equal(a.machine.disk[2].bytes_per_second, 0);
	assert_true(a.jail);
	assert_int_equal(a.uid, 70000);
	assert_int_equal(a.state, -1);
	assert_int_equal(a.machine.memory_file, -1);
}

static void test_restore(void **state)
{
	struct vmm_args a;
	assert_int_equal(parse(&a, true, WORDS("state=5", "memfile=6")), 0);
	assert_int_equal(a.state, 5);
	assert_int_equal(a.machine.memory_file, 6);
	assert_int_equal(a.kernel, -1);
	assert_false(a.jail);
	assert_int_equal(a.machine.net.tap, -1);
	assert_int_equal(a.machine.console, -1);
}

static void test_refused(void **state)
{
	static const struct {
		const char *const words[8];
		const char *why;
	} cases[] = {
		{{"kernel"}, "'kernel': not of the form"},
		{{"kernal=5"}, "'kernal=5': unknown"},
		{{"kernel=5", "kernel=6"}, "'kernel=6': given twice"},
		{{"kernel=4"}, "'kernel=4': that descriptor is something else already"},
		{{"kernel=2"}, "not a descriptor"},
		{{"kernel=1024"}, "not a descriptor"},
		{{"kernel=-1"}, "not a descriptor"},
		{{"kernel=5x"}, "not a descriptor"},
		{{"kernel="}, "not a descriptor"},
		{{"kernel=5", "vcpus=1"}, "'vcpus=1': given twice"},
		{{"kernel=5", "name=x"}, "'name=x': given twice"},
		{{"kernel=5", "mtu=1"}, "'mtu=1': not a number from 576 to 65535"},
		{{"kernel=5", "mtu=1500"}, "mtu without tap"},
		{{"kernel=5", "tap=6"}, "tap and mac"},
		{{"kernel=5", "mac=02:00:00:00:00:01"}, "tap and mac"},
		{{"kernel=5", "tap=6", "mac=03:00:00:00:00:01"}, "group"},
		{{"kernel=5", "tap=6", "mac=02:00:00:00:00"}, "not an address"},
		{{"kernel=5", "tap=6", "mac=02:00:00:00:00:0g"}, "not an address"},
		{{"kernel=5", "tap=6", "mac=02-00:00:00:00:01"}, "not an address"},
		{{"kernel=5", "disk=6,rw"}, "a disk's options"},
		{{"kernel=5", "disk=6,bps=x"}, "a disk's options"},
		{{"kernel=5", "disk=6,"}, "a disk's options"},
		{{"kernel=5", "disk=x"}, "not a descriptor"},
		{{"kernel=5", "jail=0"}, "'jail=0': not a number"},
		{{"kernel=5", "jail=4294967295"}, "not a number"},
		{{"initramfs=5"}, "kernel is needed"},
		{{"state=5"}, "state and memfile"},
		{{"memfile=5"}, "state and memfile"},
		{{"state=5", "memfile=6", "kernel=7"}, "no kernel"},
		{{"state=5", "memfile=6", "cmdline="}, "no kernel"},
		{{"kernel=5", "cmdline=a", "cmdline=b"}, "given twice"},
	};
	struct vmm_args a;
	for (size_t i = 0; i < ARRAY_SIZE(cases); i++) {
		assert_int_equal(parse(&a, true, cases[i].words), -EINVAL);
		if (!strstr(err.message, cases[i].why))
			fail_msg("'%s' says nothing of '%s'", err.message, cases[i].why);
	}
	assert_int_equal(parse(&a, false, WORDS("name=x", "vcpus=1", "memory=128", "kvm=3", "kernel=5")), -EINVAL); /* no admin */
	assert_int_equal(parse(&a, false, WORDS("name=x", "vcpus=0", "memory=128", "kvm=3", "admin=4", "kernel=5")), -EINVAL);
	assert_int_equal(parse(&a, false, WORDS("name=x", "vcpus=65", "memory=128", "kvm=3", "admin=4", "kernel=5")), -EINVAL);
	assert_int_equal(parse(&a, false, WORDS("name=x", "vcpus=1", "memory=127", "kvm=3", "admin=4", "kernel=5")), -EINVAL);
	assert_int_equal(parse(&a, false, WORDS("name=x", "vcpus=1", "memory=2", "kvm=3", "admin=4", "kernel=5")), -EINVAL);
	assert_int_equal(parse(&a, false, WORDS("name=", "vcpus=1", "memory=128", "kvm=3", "admin=4", "kernel=5")), -EINVAL);
	assert_int_equal(parse(&a, false, WORDS("name=a b", "vcpus=1", "memory=128", "kvm=3", "admin=4", "kernel=5")), -EINVAL);
	assert_int_equal(parse(&a, false, WORDS("name=x", "vcpus=1", "memory=128", "kvm=3", "admin=4", "kernel=5")), 0);
}

static void test_many_disks(void **state)
{
	static char words[MACHINE_DISKS_MAX + 1][16];
	const char *all[MACHINE_DISKS_MAX + 3] = {"kernel=5"};
	struct vmm_args a;
	for (int i = 0; i <= MACHINE_DISKS_MAX; i++) {
		snprintf(words[i], sizeof(words[i]), "disk=%d", 10 + i);
		all[1 + i] = words[i];
	}
	assert_int_equal(parse(&a, true, all), -EINVAL);
	assert_non_null(strstr(err.message, "too many disks"));
	all[1 + MACHINE_DISKS_MAX] = NULL;
	assert_int_equal(parse(&a, true, all), 0);
	assert_int_equal(a.machine.n_disks, MACHINE_DISKS_MAX);
}

static int listening(int type)
{
	struct sockaddr_un any = {.sun_family = AF_UNIX};
	int fd = socket(AF_UNIX, type, 0);
	assert_true(fd >= 0);
	assert_int_equal(bind(fd, (struct sockaddr *)&any, sizeof(any.sun_family)), 0);
	assert_int_equal(listen(fd, 1), 0);
	return fd;
}

static void test_descriptors(void **state)
{
	int file = memfd_create("file", 0), device = open("/dev/null", O_RDWR), admin = listening(SOCK_SEQPACKET), stream = listening(SOCK_STREAM);
	struct vmm_args a = {.machine = {.kvm = device, .memory_file = -1, .console = file, .control = -1, .net.tap = -1, .disk = {{.file = file}}, .n_disks = 1},
		.kernel = file, .initramfs = -1, .state = -1, .memfile = -1, .admin = admin};
	assert_int_equal(args_check_descriptors(&a, &err), 0);
	assert_int_equal(fcntl(file, F_GETFD), FD_CLOEXEC);
	assert_int_equal(fcntl(admin, F_GETFD), FD_CLOEXEC);
	assert_true(fcntl(admin, F_GETFL) & O_NONBLOCK);
	a.admin = stream;
	assert_int_equal(args_check_descriptors(&a, &err), -EINVAL);
	assert_non_null(strstr(err.message, "admin="));
	a.admin = file;
	assert_int_equal(args_check_descriptors(&a, &err), -EINVAL);
	a.admin = admin;
	a.kernel = device;
	assert_int_equal(args_check_descriptors(&a, &err), -EINVAL);
	a.kernel = 1000;
	assert_int_equal(args_check_descriptors(&a, &err), -EINVAL);
	assert_non_null(strstr(err.message, "kernel=1000"));
	a.kernel = file;
	a.machine.disk[0].file = device;
	assert_int_equal(args_check_descriptors(&a, &err), -EINVAL);
	close(file);
	close(device);
	close(admin);
	close(stream);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(test_boot),
		cmocka_unit_test(test_restore),
		cmocka_unit_test(test_refused),
		cmocka_unit_test(test_many_disks),
		cmocka_unit_test(test_descriptors),
	};
	return cmocka_run_group_tests_name("vmm arguments", tests, NULL, NULL);
}
