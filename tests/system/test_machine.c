/* What a microVM behind its slot's tap can reach, and what it must not (network/machine.c, policy.c). The machine is a namespace with a tap of its own; a process carries frames between both taps. */
#include "world.h"

#include "network/slot.h"

#include <arpa/inet.h>
#include <errno.h>
#include <fcntl.h>
#include <linux/if_tun.h>
#include <net/if.h>
#include <poll.h>
#include <sched.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/ioctl.h>
#include <sys/prctl.h>
#include <sys/wait.h>
#include <unistd.h>

enum { GUEST_PORT = 9000, FRAME = 70000, VNET_HEADER = 12 };

static struct world world;
static struct options options;
static struct instance instance;
static struct network *network;
static struct net_slot slot, other;
static pid_t services[4], carrier;
static int machine = -1; /* its network namespace */

static int open_tap(void)
{
	struct ifreq q = {.ifr_flags = IFF_TAP | IFF_NO_PI | IFF_VNET_HDR, .ifr_name = "eth0"};
	int size = VNET_HEADER, fd = open("/dev/net/tun", O_RDWR | O_NONBLOCK | O_CLOEXEC);
	if (fd < 0 || ioctl(fd, TUNSETIFF, &q) < 0 || ioctl(fd, TUNSETVNETHDRSZ, &size) < 0)
		fail_msg("tap of the machine: %s", strerror(errno));
	return fd;
}

static void carry(int from, int to)
{
	static char frame[FRAME];
	for (int i = 0; i < 64; i++) {
		ssize_t n = read(from, frame, sizeof(frame));
		if (n <= 0)
			return;
		if (write(to, frame, (size_t)n) < 0 && errno != EINVAL && errno != EAGAIN && errno != EIO)
			_exit(1);
	}
}

static pid_t start_carrier(int one, int two)
{
	pid_t pid = fork();
	if (pid)
		return pid;
	prctl(PR_SET_PDEATHSIG, SIGKILL);
	struct pollfd p[] = {{.fd = one, .events = POLLIN}, {.fd = two, .events = POLLIN}};
	while (poll(p, 2, -1) > 0) {
		carry(one, two);
		carry(two, one);
	}
	_exit(0);
}

static void make_machine(void)
{
	char command[400];
	int home = open("/proc/self/ns/net", O_RDONLY | O_CLOEXEC);
	assert_return_code(unshare(CLONE_NEWNET), errno);
	machine = open("/proc/self/ns/net", O_RDONLY | O_CLOEXEC);
	int tap = open_tap();
	assert_return_code(setns(home, CLONE_NEWNET), errno);
	snprintf(command, sizeof(command),
		"ip link set lo up && ip link set eth0 address 02:c0:00:00:00:02 && ip addr add 169.254.0.2/30 dev eth0 && ip link set eth0 up && ip route add default via 169.254.0.1");
	must_in(machine, command);
	carrier = start_carrier(slot.tap, tap);
	close(tap);
	close(home);
}

static int set_up(void **state)
{
	struct error err = {0};
	world_new(&world);
	assert_int_equal(options_init(&options), 0);
	assert_int_equal(options_set(&options, STR("state.dir"), STR("/tmp/cubicle-system-machine"), "test", NULL), 0);
	instance_of(&options, &instance);
	if (network_new(&instance, "100.96.0.0/16", false, PRIVATE_OPEN, &network, &err) < 0 || network_machine_create(network, 0, &slot, &err) < 0 ||
		network_slot_create(network, 7, &other, &err) < 0)
		fail_msg("%s", err.message);
	make_machine();
	services[0] = start_service(world.internet.netns, SERVICE_PORT);
	services[1] = start_service(world.lan.netns, SERVICE_PORT);
	services[2] = start_service(world.host.netns, SERVICE_PORT);
	services[3] = start_service(slot.netns, GUEST_PORT);
	return 0;
}

static int tear_down(void **state)
{
	for (size_t i = 0; i < 4; i++)
		stop_process(services[i]);
	stop_process(carrier);
	close(machine);
	network_slot_done(&slot);
	network_slot_done(&other);
	network_free(network, true);
	options_done(&options);
	world_free(&world);
	return 0;
}

static void the_internet_is_reached_under_the_slots_address(void **state)
{
	char answer[64];
	assert_int_equal(probe_one(machine, INTERNET_SERVER, SERVICE_PORT, false, answer), 0);
	assert_string_equal(answer, HOST_PUBLIC);
	assert_int_equal(probe_one(machine, INTERNET_SERVER, SERVICE_PORT, true, answer), 0);
	assert_string_equal(answer, HOST_PUBLIC);
}

static void nothing_else_is_reached(void **state)
{
	/* They are there, for others. */
	assert_int_equal(probe_one(-1, LAN_SERVER, SERVICE_PORT, false, NULL), 0);
	assert_int_equal(probe_one(-1, METADATA, SERVICE_PORT, false, NULL), 0);
	assert_int_equal(probe_one(slot.netns, "127.0.0.1", GUEST_PORT, false, NULL), 0);
	const char *const addresses[] = {HOST_PUBLIC, HOST_LAN, LAN_SERVER, LAN_OTHER, METADATA, dotted(slot.host_address), dotted(other.host_address), "172.16.0.1", "100.64.0.1", "224.0.0.1",
		"255.255.255.255"};
	for (size_t i = 0; i < sizeof(addresses) / sizeof(addresses[0]); i++)
		for (int udp = 0; udp < 2; udp++)
			if (probe_one(machine, addresses[i], SERVICE_PORT, udp, NULL) == 0)
				fail_msg("the machine reached %s over %s", addresses[i], udp ? "UDP" : "TCP");
	const char *const own[] = {"169.254.0.1", dotted(slot.guest_address), dotted(other.guest_address)};
	for (size_t i = 0; i < 3; i++)
		for (int udp = 0; udp < 2; udp++)
			if (probe_one(machine, own[i], GUEST_PORT, udp, NULL) == 0)
				fail_msg("the machine reached %s over %s", own[i], udp ? "UDP" : "TCP");
}

static void another_source_address_gets_nowhere(void **state)
{
	unsigned before = seen_on_internet->datagrams;
	must_in(machine, "ip addr add 169.254.7.7/32 dev eth0 && ip addr add 100.96.0.1/32 dev eth0 && ip addr add 8.8.8.8/32 dev eth0");
	const char *const sources[] = {"169.254.7.7", "100.96.0.1", "8.8.8.8"};
	for (size_t i = 0; i < 3; i++) {
		char command[200];
		snprintf(command, sizeof(command), "ip route replace default via 169.254.0.1 src %s", sources[i]);
		must_in(machine, command);
		assert_int_not_equal(probe_one(machine, INTERNET_SERVER, SERVICE_PORT, true, NULL), 0);
	}
	must_in(machine, "ip route replace default via 169.254.0.1 src 169.254.0.2");
	assert_int_equal(seen_on_internet->datagrams, before);
	assert_int_equal(probe_one(machine, INTERNET_SERVER, SERVICE_PORT, true, NULL), 0);
}

static void its_questions_come_to_our_dns(void **state)
{
	char got[16];
	assert_int_not_equal(probe_one(machine, "169.254.0.1", 53, true, NULL), 0); /* nobody answers here */
	assert_true(recv(slot.dns_udp, got, sizeof(got), MSG_DONTWAIT) > 0);
	struct sockaddr_in at;
	socklen_t n = sizeof(at);
	assert_return_code(getsockname(slot.dns_tcp, (struct sockaddr *)&at, &n), errno);
	assert_string_equal(inet_ntoa(at.sin_addr), MACHINE_NAMESERVER);
}

static void set_reach(const char *allow, const char *deny, bool internet)
{
	struct error err = {0};
	struct buf a = BUF_INIT, d = BUF_INIT;
	struct reach r = {0};
	const struct reach_limits limits = network_limits(network);
	if (allow)
		msg_list_add(&a, str_of(allow));
	if (deny)
		msg_list_add(&d, str_of(deny));
	if (reach_init(&r, &limits, (struct msg_list){buf_str(&a)}, (struct msg_list){buf_str(&d)}, internet, &err) < 0 || network_slot_apply(network, &slot, &r, &err) < 0)
		fail_msg("%s", err.message);
	reach_done(&r);
	buf_done(&a);
	buf_done(&d);
}

static void a_policy_holds_for_it_at_once(void **state)
{
	set_reach(NULL, INTERNET_SERVER, true);
	assert_int_equal(probe_one(machine, INTERNET_SERVER, SERVICE_PORT, false, NULL), -ECONNREFUSED);
	assert_int_equal(probe_one(machine, INTERNET_ROUTER, SERVICE_PORT, true, NULL), 0);
	set_reach(NULL, NULL, false);
	assert_int_not_equal(probe_one(machine, INTERNET_ROUTER, SERVICE_PORT, true, NULL), 0);
	set_reach(LAN_SERVER, NULL, true);
	assert_int_equal(probe_one(machine, LAN_SERVER, SERVICE_PORT, false, NULL), 0);
	assert_int_not_equal(probe_one(machine, LAN_OTHER, SERVICE_PORT, false, NULL), 0);
	set_reach(NULL, NULL, true);
	assert_int_not_equal(probe_one(machine, LAN_SERVER, SERVICE_PORT, false, NULL), 0);
	assert_int_equal(probe_one(machine, INTERNET_SERVER, SERVICE_PORT, false, NULL), 0);
}

static void it_is_found_again(void **state)
{
	struct error err = {0};
	struct net_slot again;
	if (network_machine_adopt(network, 0, fcntl(slot.netns, F_DUPFD_CLOEXEC, 3), &again, &err) < 0)
		fail_msg("%s", err.message);
	assert_int_equal(again.tap, -1);
	assert_true(again.machine);
	network_slot_done(&slot);
	slot = again;
	a_policy_holds_for_it_at_once(state);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(the_internet_is_reached_under_the_slots_address),
		cmocka_unit_test(nothing_else_is_reached),
		cmocka_unit_test(another_source_address_gets_nowhere),
		cmocka_unit_test(its_questions_come_to_our_dns),
		cmocka_unit_test(a_policy_holds_for_it_at_once),
		cmocka_unit_test(it_is_found_again),
	};
	return cmocka_run_group_tests(tests, set_up, tear_down);
}
