/* What a sandbox's network slot can reach, and what it must not: see world.h for the map. */
#include "world.h"

#include "network/slot.h"

#include <arpa/inet.h>
#include <errno.h>
#include <fcntl.h>
#include <pthread.h>
#include <sched.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/socket.h>
#include <sys/wait.h>
#include <unistd.h>

enum { GUEST_PORT = 9000, STREAM_PORT = 9001 };

static struct world world;
static struct options options;
static struct instance instance;
static struct network *network;
static struct net_slot a, b;
static pid_t services[8];

static struct instance instance_in(const char *state_dir)
{
	struct options o;
	struct instance i;
	assert_int_equal(options_init(&o), 0);
	assert_int_equal(options_set(&o, STR("state.dir"), str_of(state_dir), "test", NULL), 0);
	instance_of(&o, &i);
	options_done(&o);
	return i;
}

static void make_network(void)
{
	struct error err = {0};
	if (network_new(&instance, "100.96.0.0/16", false, PRIVATE_OPEN, &network, &err) < 0)
		fail_msg("%s", err.message);
}

static void on_repair(const char *what, void *arg)
{
	print_message("%s\n", what);
}

static void make_slot(unsigned number, struct net_slot *ret)
{
	struct error err = {0};
	if (network_slot_create(network, number, ret, &err) < 0)
		fail_msg("%s", err.message);
}

static int set_up(void **state)
{
	world_new(&world);
	assert_int_equal(options_init(&options), 0);
	instance = instance_in("/tmp/cubicle-system-network");
	make_network();
	make_slot(0, &a);
	make_slot(7, &b);
	const struct {
		int netns;
		uint16_t port;
	} wanted[] = {{world.internet.netns, SERVICE_PORT}, {world.lan.netns, SERVICE_PORT}, {world.host.netns, SERVICE_PORT}, {a.netns, GUEST_PORT}, {b.netns, GUEST_PORT}};
	for (size_t i = 0; i < sizeof(wanted) / sizeof(wanted[0]); i++)
		services[i] = start_service(wanted[i].netns, wanted[i].port);
	return 0;
}

static int tear_down(void **state)
{
	for (size_t i = 0; i < sizeof(services) / sizeof(services[0]); i++)
		stop_process(services[i]);
	network_slot_done(&a);
	network_slot_done(&b);
	network_free(network, true);
	options_done(&options);
	world_free(&world);
	return 0;
}

/* Addresses that answer to somebody else, so that silence means something. */
static void the_forbidden_services_exist(void **state)
{
	assert_int_equal(probe_one(-1, HOST_PUBLIC, SERVICE_PORT, false, NULL), 0);
	assert_int_equal(probe_one(world.internet.netns, HOST_PUBLIC, SERVICE_PORT, false, NULL), 0);
	assert_int_equal(probe_one(-1, LAN_SERVER, SERVICE_PORT, false, NULL), 0);
	assert_int_equal(probe_one(-1, LAN_OTHER, SERVICE_PORT, true, NULL), 0);
	assert_int_equal(probe_one(-1, METADATA, SERVICE_PORT, false, NULL), 0);
	assert_int_equal(probe_one(-1, dotted(a.host_address), SERVICE_PORT, false, NULL), 0);
	assert_int_equal(probe_one(a.netns, "127.0.0.1", GUEST_PORT, false, NULL), 0);
	assert_int_equal(probe_one(a.netns, dotted(a.guest_address), GUEST_PORT, true, NULL), 0);
	assert_int_equal(probe_one(b.netns, dotted(b.guest_address), GUEST_PORT, false, NULL), 0);
}

static void the_internet_is_reached_by_address_translation(void **state)
{
	char answer[64];
	assert_int_equal(probe_one(a.netns, INTERNET_SERVER, SERVICE_PORT, false, answer), 0);
	assert_string_equal(answer, HOST_PUBLIC);
	assert_int_equal(probe_one(b.netns, INTERNET_SERVER, SERVICE_PORT, true, answer), 0);
	assert_string_equal(answer, HOST_PUBLIC);
	assert_int_equal(probe_one(b.netns, INTERNET_ROUTER, SERVICE_PORT, true, answer), 0);
}

/* Every address that a sandbox must not talk to, over TCP and UDP. */
static size_t forbidden(struct target *to)
{
	const struct {
		const char *address;
		uint16_t port;
	} list[] = {
		{HOST_PUBLIC, SERVICE_PORT}, {HOST_LAN, SERVICE_PORT}, {dotted(a.host_address), SERVICE_PORT}, {dotted(b.host_address), SERVICE_PORT},
		{dotted(b.guest_address), GUEST_PORT}, {LAN_SERVER, SERVICE_PORT}, {LAN_OTHER, SERVICE_PORT}, {METADATA, SERVICE_PORT}, {"172.16.0.1", 80},
		{"100.64.0.1", 80}, {"100.127.255.254", 80}, {"192.0.0.8", 80}, {"198.18.0.1", 80}, {"224.0.0.1", 80}, {"239.255.255.250", 1900},
		{"240.0.0.1", 80}, {"255.255.255.255", 68}, {"0.0.0.0", SERVICE_PORT}, {"127.0.0.1", SERVICE_PORT},
	};
	size_t n = 0;
	for (size_t i = 0; i < sizeof(list) / sizeof(list[0]); i++)
		for (int udp = 0; udp < 2; udp++)
			to[n++] = (struct target){list[i].address, list[i].port, udp};
	return n;
}

static void assert_walled_in(void)
{
	struct target targets[64];
	struct outcome out[64];
	size_t n = forbidden(targets);
	probe(a.netns, targets, out, n);
	for (size_t i = 0; i < n; i++)
		if (out[i].result == 0)
			fail_msg("the sandbox reached %s:%u over %s", targets[i].address, targets[i].port, targets[i].udp ? "UDP" : "TCP");
}

static void nothing_else_is_reached(void **state)
{
	assert_walled_in();
}

static void refusals_come_at_once(void **state)
{
	assert_int_equal(probe_one(a.netns, LAN_SERVER, SERVICE_PORT, false, NULL), -ECONNREFUSED);
	assert_int_equal(probe_one(a.netns, METADATA, SERVICE_PORT, false, NULL), -ECONNREFUSED);
	assert_int_equal(probe_one(a.netns, dotted(b.guest_address), GUEST_PORT, false, NULL), -ECONNREFUSED);
	int r = probe_one(a.netns, LAN_OTHER, SERVICE_PORT, true, NULL);
	if (r != -EHOSTUNREACH && r != -EPERM)
		fail_msg("a datagram to a private address: %s", strerror(-r));
}

/* Both walls hold alone: here without the one inside. */
static void the_hosts_chains_hold_alone(void **state)
{
	struct net_slot keep = a;
	make_slot(1, &a);
	must_in(a.netns, "nft delete table inet cubicle");
	assert_walled_in();
	char answer[64];
	assert_int_equal(probe_one(a.netns, INTERNET_SERVER, SERVICE_PORT, false, answer), 0);
	network_slot_done(&a);
	a = keep;
}

/* And here without those of the host. */
static void the_policy_inside_holds_alone(void **state)
{
	char command[100];
	snprintf(command, sizeof(command), "nft delete table inet %s", instance.table);
	must("%s", command);
	struct target targets[64], some[64];
	struct outcome out[64];
	size_t n = forbidden(targets), m = 0;
	/* The host's public address is none that the inside knows to be its. */
	for (size_t i = 0; i < n; i++)
		if (strcmp(targets[i].address, HOST_PUBLIC) != 0)
			some[m++] = targets[i];
	probe(a.netns, some, out, m);
	for (size_t i = 0; i < m; i++)
		if (out[i].result == 0)
			fail_msg("the sandbox reached %s over %s", some[i].address, some[i].udp ? "UDP" : "TCP");
	/* Without either wall all of it is reached: the two are what keeps it away. */
	struct net_slot open;
	make_slot(1, &open);
	must_in(open.netns, "nft delete table inet cubicle");
	const char *const reached[] = {HOST_PUBLIC, HOST_LAN, dotted(open.host_address), LAN_SERVER, LAN_OTHER, METADATA};
	for (size_t i = 0; i < sizeof(reached) / sizeof(reached[0]); i++)
		assert_int_equal(probe_one(open.netns, reached[i], SERVICE_PORT, false, NULL), 0);
	network_slot_done(&open);
	network_free(network, false);
	make_network();
	assert_int_equal(probe_one(a.netns, INTERNET_SERVER, SERVICE_PORT, false, NULL), 0);
}

static void nobody_gets_in(void **state)
{
	const struct target to_guest[] = {{dotted(a.guest_address), GUEST_PORT, false}, {dotted(a.guest_address), GUEST_PORT, true}};
	struct outcome out[2];
	must_in(world.internet.netns, "ip route add 100.96.0.0/16 via " HOST_PUBLIC);
	int from[] = {world.internet.netns, world.lan.netns, world.host.netns, b.netns};
	for (size_t i = 0; i < sizeof(from) / sizeof(from[0]); i++) {
		probe(from[i], to_guest, out, 2);
		assert_int_not_equal(out[0].result, 0);
		assert_int_not_equal(out[1].result, 0);
	}
}

static void a_root_inside_cannot_change_it(void **state)
{
	static const char *const attempts[] = {"nft flush ruleset", "nft delete table inet cubicle", "nft add element inet cubicle allow4 '{ 10.9.9.9 }'", "iptables -F",
		"ip link set eth0 down", "ip link del eth0", "ip link add x0 type veth peer name x1", "ip addr add 10.0.0.1/8 dev eth0", "ip route add 10.0.0.0/8 dev eth0",
		"ip neigh flush dev eth0 nud permanent; test -z \"$(ip neigh show dev eth0 nud permanent)\"", "echo 1 > /proc/sys/net/ipv4/ip_forward",
		"echo 0 > /proc/sys/net/ipv6/conf/eth0/disable_ipv6", "echo 1 > /proc/sys/net/ipv4/ip_nonlocal_bind"};
	for (size_t i = 0; i < sizeof(attempts) / sizeof(attempts[0]); i++)
		if (run_as_guest(a.netns, attempts[i]) == 0)
			fail_msg("a root inside could: %s", attempts[i]);
	/* The host can: so what failed above failed for want of privilege. */
	must_in(a.netns, "nft list table inet cubicle && ip link set eth0 mtu 1400 && ip link set eth0 mtu 1500 && echo 1 > /proc/sys/net/ipv4/ip_nonlocal_bind && "
			 "echo 0 > /proc/sys/net/ipv4/ip_nonlocal_bind");
	assert_walled_in();
}

/* A datagram with somebody else's source address (IP_FREEBIND needs no privilege). */
static void send_spoofed(int netns, const char *source)
{
	pid_t pid = fork();
	if (pid == 0) {
		int one = 1, fd = socket(AF_INET, SOCK_DGRAM, 0);
		struct sockaddr_in from = {.sin_family = AF_INET}, to = {.sin_family = AF_INET, .sin_port = htons(SERVICE_PORT)};
		inet_pton(AF_INET, source, &from.sin_addr);
		inet_pton(AF_INET, INTERNET_SERVER, &to.sin_addr);
		if (setns(netns, CLONE_NEWNET) < 0)
			_exit(1);
		close(fd);
		fd = socket(AF_INET, SOCK_DGRAM, 0);
		if (setsockopt(fd, IPPROTO_IP, IP_FREEBIND, &one, sizeof(one)) < 0 || bind(fd, (struct sockaddr *)&from, sizeof(from)) < 0)
			_exit(2);
		sendto(fd, "?", 1, 0, (struct sockaddr *)&to, sizeof(to));
		_exit(0);
	}
	int status;
	waitpid(pid, &status, 0);
	assert_int_equal(status, 0);
}

static void assert_no_spoofing(int netns)
{
	const char *const sources[] = {"8.8.8.8", dotted(b.guest_address), dotted(a.host_address), HOST_PUBLIC, "100.96.99.1", "127.0.0.1"};
	for (size_t i = 0; i < sizeof(sources) / sizeof(sources[0]); i++) {
		unsigned before = seen_on_internet->datagrams;
		send_spoofed(netns, sources[i]);
		/* What is sent after it arrives after it. */
		assert_int_equal(probe_one(netns, INTERNET_SERVER, SERVICE_PORT, true, NULL), 0);
		if (seen_on_internet->datagrams != before + 1)
			fail_msg("a datagram from %s went out", sources[i]);
	}
}

static void wrong_source_addresses_go_nowhere(void **state)
{
	struct net_slot open;
	assert_no_spoofing(a.netns);
	make_slot(2, &open);
	must_in(open.netns, "nft delete table inet cubicle");
	assert_no_spoofing(open.netns);
	network_slot_done(&open);
}

/* A policy as a create or a PUT gives it: entries with ' ' between. */
static int try_policy(struct net_slot *s, const char *allow, const char *deny, bool internet, struct error *err)
{
	const char *const texts[] = {allow, deny};
	struct buf lists[2] = {BUF_INIT, BUF_INIT};
	for (int i = 0; i < 2; i++) {
		struct str rest = str_of(texts[i]), item;
		while (str_cut(rest, ' ', &item, &rest))
			msg_list_add(&lists[i], item);
		if (rest.n)
			msg_list_add(&lists[i], rest);
	}
	const struct reach_limits limits = network_limits(network);
	struct reach reach;
	int r = reach_init(&reach, &limits, (struct msg_list){buf_str(&lists[0])}, (struct msg_list){buf_str(&lists[1])}, internet, err);
	if (r == 0) {
		r = network_slot_apply(network, s, &reach, err);
		reach_done(&reach);
	}
	buf_done(&lists[0]);
	buf_done(&lists[1]);
	return r;
}

static void policy(struct net_slot *s, const char *allow, const char *deny, bool internet)
{
	struct error err = {0};
	if (try_policy(s, allow, deny, internet, &err) < 0)
		fail_msg("allow '%s' deny '%s': %s", allow, deny, err.message);
}

static bool reaches(const struct net_slot *s, const char *address)
{
	const struct target both[] = {{address, SERVICE_PORT, false}, {address, SERVICE_PORT, true}};
	struct outcome out[2];
	probe(s->netns, both, out, 2);
	/* What is refused is refused at once, for both in the same way. */
	for (int i = 0; i < 2; i++)
		if (out[i].result == -ETIMEDOUT)
			fail_msg("%s over %s: silence", address, both[i].udp ? "UDP" : "TCP");
	assert_int_equal(out[0].result == 0, out[1].result == 0);
	return out[0].result == 0;
}

/* None of them answers; all are asked at once, since what the host drops is silent. */
static void assert_unreached(const struct net_slot *s, const char *const *addresses)
{
	struct target targets[16] = {0};
	struct outcome out[16];
	size_t n = 0;
	for (; *addresses; addresses++)
		for (int udp = 0; udp < 2; udp++)
			targets[n++] = (struct target){*addresses, SERVICE_PORT, udp};
	probe(s->netns, targets, out, n);
	for (size_t i = 0; i < n; i++)
		if (out[i].result == 0)
			fail_msg("the sandbox reached %s over %s", targets[i].address, targets[i].udp ? "UDP" : "TCP");
}

static void the_switch_takes_the_internet_away(void **state)
{
	char command[200];
	for (int i = 0; i < 2; i++) /* twice: it is idempotent */
		policy(&a, "", "", false);
	assert_int_equal(probe_one(a.netns, INTERNET_SERVER, SERVICE_PORT, false, NULL), -ECONNREFUSED);
	assert_false(reaches(&a, INTERNET_SERVER));
	assert_int_equal(probe_one(a.netns, "127.0.0.1", GUEST_PORT, false, NULL), 0);
	assert_int_equal(probe_one(a.netns, dotted(a.guest_address), GUEST_PORT, false, NULL), 0);
	/* A program that names the link itself. */
	unsigned before = seen_on_internet->datagrams;
	snprintf(command, sizeof(command), "ip route get " INTERNET_SERVER " oif eth0 && ! ping -c 1 -W 1 -I eth0 " INTERNET_SERVER);
	run_as_guest(a.netns, command);
	assert_int_equal(seen_on_internet->datagrams, before);
	assert_true(reaches(&b, INTERNET_SERVER));
	for (int i = 0; i < 2; i++)
		policy(&a, "", "", true);
	assert_true(reaches(&a, INTERNET_SERVER));
	assert_walled_in();
}

/* Allow, then deny, then the default; each policy replaces the one before whole. */
static void lists_decide_what_is_reached(void **state)
{
	static const struct {
		const char *allow, *deny;
		bool internet, server, router;
	} rows[] = {
		{"", INTERNET_SERVER, true, false, true},
		{"", INTERNET_SERVER "/32", true, false, true},
		{"", "198.51.100.0/24", true, false, true},
		{"", "198.51.100.77/24", true, false, true}, /* bits behind the prefix are not looked at */
		{"", "::/0", true, true, true},              /* there is no IPv6 to deny */
		{"", "0.0.0.0/0", true, false, false},
		{"", "0.0.0.0/1 128.0.0.0/1", true, false, false},
		{"", "240.0.0.0/4 255.255.255.255", true, true, true}, /* case 134: up to the last address */
		{"", "192.0.0.0/2", true, false, false},               /* ends at 255.255.255.255 */
		{INTERNET_SERVER, "0.0.0.0/0", true, true, false},
		{INTERNET_ROUTER "/31", "0.0.0.0/0", true, false, true},
		{INTERNET_SERVER, "", false, true, false},
		{"0.0.0.0/0", "0.0.0.0/0", true, true, true},
		{"0.0.0.0/0", "", false, true, true},
		{"198.51.100.10", "198.51.100.0/24 203.0.113.0/24", true, true, false},
		{"", "", true, true, true},
	};
	for (size_t i = 0; i < sizeof(rows) / sizeof(rows[0]); i++) {
		policy(&a, rows[i].allow, rows[i].deny, rows[i].internet);
		if (reaches(&a, INTERNET_SERVER) != rows[i].server || reaches(&a, INTERNET_ROUTER) != rows[i].router)
			fail_msg("allow '%s' deny '%s' internet %d", rows[i].allow, rows[i].deny, rows[i].internet);
	}
}

static void long_lists_are_one_transaction(void **state)
{
	char allow[8192] = "", deny[8192] = "";
	size_t n = 0, m = 0;
	for (int i = 0; i < REACH_ENTRIES_MAX; i++) {
		n += (size_t)snprintf(allow + n, sizeof(allow) - n, "%s11.%d.0.%d/32", i ? " " : "", i, 2 * i % 256);
		m += (size_t)snprintf(deny + m, sizeof(deny) - m, "%s12.%d.0.0/17", i ? " " : "", i);
	}
	policy(&a, allow, deny, true);
	must_in(a.netns, "test $(nft list set inet cubicle allow4 | grep -o '11\\.[0-9.]*' | wc -l) = 256 && test $(nft list set inet cubicle deny4 | grep -o '12\\.[0-9./]*' | wc -l) = 256");
	assert_true(reaches(&a, INTERNET_SERVER));
	struct error err = {0};
	strcat(deny, " 13.0.0.0/8");
	assert_int_equal(try_policy(&a, "", deny, true, &err), -EINVAL);
	assert_int_equal(err.status, 400);
	policy(&a, "", "", true);
	must_in(a.netns, "! nft list table inet cubicle | grep -q 1[12][.]");
}

/* An entry that lies in a private range opens it, in both walls, for this sandbox alone; a wider one does not. */
static void private_networks_are_opened_by_name_only(void **state)
{
	struct error err = {0};
	policy(&a, "0.0.0.0/0 8.0.0.0/5", "", true);
	assert_walled_in();
	policy(&a, LAN_SERVER, "", true);
	assert_true(reaches(&a, LAN_SERVER));
	assert_false(reaches(&a, LAN_OTHER));
	assert_false(reaches(&b, LAN_SERVER));
	policy(&b, "10.9.0.0/16", "0.0.0.0/0", true);
	assert_true(reaches(&b, LAN_OTHER));
	assert_false(reaches(&b, LAN_SERVER));
	assert_false(reaches(&b, INTERNET_SERVER));
	policy(&b, "", "", true);
	assert_false(reaches(&b, LAN_OTHER));
	/* The whole range has the host and other sandboxes in it: they are not reached by any list. */
	policy(&a, "192.168.0.0/16 10.0.0.0/8", "", true);
	assert_true(reaches(&a, LAN_SERVER) && reaches(&a, LAN_OTHER));
	assert_unreached(&a, (const char *const[]){HOST_LAN, METADATA, NULL});
	/* Not by an option alone, and what no list may name is refused. */
	static const char *const refused[] = {METADATA, "169.254.0.0/16", "127.0.0.1", "224.0.0.1", "100.96.0.0/16", "100.64.0.1", "172.16.0.0/12", "0.0.0.0", "255.255.255.255"};
	for (size_t i = 0; i < sizeof(refused) / sizeof(refused[0]); i++) {
		assert_int_equal(try_policy(&a, refused[i], "", true, &err), -EINVAL);
		assert_int_equal(err.status, 400);
		assert_non_null(strstr(err.message, refused[i]));
	}
	assert_int_equal(try_policy(&a, dotted(b.guest_address), "", true, &err), -EINVAL);
	assert_true(reaches(&a, LAN_SERVER)); /* a refused policy changes nothing */
	/* The walls hold alone, each. */
	policy(&a, LAN_SERVER, "", true);
	struct net_slot open;
	make_slot(1, &open);
	policy(&open, LAN_SERVER, "", true);
	must_in(open.netns, "nft delete table inet cubicle");
	assert_int_equal(probe_one(open.netns, LAN_SERVER, SERVICE_PORT, false, NULL), 0);
	assert_unreached(&open, (const char *const[]){LAN_OTHER, METADATA, HOST_LAN, NULL});
	network_slot_done(&open);
	/* The next of that number starts with nothing. */
	make_slot(1, &open);
	must_in(open.netns, "nft delete table inet cubicle");
	assert_unreached(&open, (const char *const[]){LAN_SERVER, LAN_OTHER, NULL});
	network_slot_done(&open);
	policy(&a, "", "", true);
	assert_false(reaches(&a, LAN_SERVER));
}

/* A connection that is open for as long as it is not told to end: what a download is. */
struct flow {
	pid_t pid;
	int from;
};

static void begin_flow(struct net_slot *s, const char *address, bool ipv6_socket, struct flow *ret)
{
	int fds[2];
	char byte;
	assert_int_equal(pipe2(fds, O_CLOEXEC), 0);
	pid_t pid = fork();
	if (pid == 0) {
		if (setns(s->netns, CLONE_NEWNET) < 0)
			_exit(1);
		struct sockaddr_in to = {.sin_family = AF_INET, .sin_port = htons(STREAM_PORT)};
		struct sockaddr_in6 to6 = {.sin6_family = AF_INET6, .sin6_port = htons(STREAM_PORT)};
		inet_pton(AF_INET, address, &to.sin_addr);
		to6.sin6_addr.s6_addr[10] = to6.sin6_addr.s6_addr[11] = 0xff;
		memcpy(&to6.sin6_addr.s6_addr[12], &to.sin_addr, 4);
		int fd = socket(ipv6_socket ? AF_INET6 : AF_INET, SOCK_STREAM, 0);
		if (connect(fd, ipv6_socket ? (struct sockaddr *)&to6 : (struct sockaddr *)&to, ipv6_socket ? sizeof(to6) : sizeof(to)) < 0 || read(fd, &byte, 1) != 1)
			_exit(2);
		if (write(fds[1], "y", 1) != 1)
			_exit(3);
		/* Reads for ever, sends nothing: only what comes, or does not, tells it. */
		while (read(fd, &byte, 1) == 1)
			;
		_exit(errno == ECONNABORTED ? 0 : 4);
	}
	close(fds[1]);
	assert_int_equal(read(fds[0], &byte, 1), 1);
	close(fds[0]);
	*ret = (struct flow){pid, -1};
}

static int flow_status(struct flow *f)
{
	int status;
	assert_int_equal(waitpid(f->pid, &status, 0), f->pid);
	return WIFEXITED(status) ? WEXITSTATUS(status) : -1;
}

/* Case 136: a change cuts what is open. */
static void open_connections_follow_the_policy(void **state)
{
	struct flow cut, kept, mapped;
	pid_t one = start_stream(world.internet.netns, STREAM_PORT);
	begin_flow(&a, INTERNET_SERVER, false, &cut);
	begin_flow(&a, INTERNET_SERVER, true, &mapped);
	begin_flow(&a, INTERNET_ROUTER, false, &kept);
	policy(&a, INTERNET_ROUTER, "0.0.0.0/0", true);
	assert_int_equal(flow_status(&cut), 0);
	assert_int_equal(flow_status(&mapped), 0);
	int status;
	assert_int_equal(waitpid(kept.pid, &status, WNOHANG), 0);
	policy(&a, "", "", false);
	assert_int_equal(flow_status(&kept), 0);
	policy(&a, "", "", true);
	stop_process(one);
}

static void ipv6_ends_at_the_loopback(void **state)
{
	must_in(a.netns, "ip -6 addr show dev lo | grep -q ::1/128 && test -z \"$(ip -6 addr show dev eth0)\"");
	char command[100];
	snprintf(command, sizeof(command), "test -z \"$(ip -6 addr show dev %s)\"", a.host_link);
	must("%s", command);
	assert_int_not_equal(run_as_guest(a.netns, "ip -6 route get 2001:db8::1 oif eth0"), 0);
}

static void guests_may_ping_and_use_low_ports(void **state)
{
	must_in(a.netns, "test $(cat /proc/sys/net/ipv4/ip_unprivileged_port_start) = 0");
	if (run_in(-1, "command -v ping") == 0) {
		/* As users whose group is mapped; the socket is ICMP's datagram kind, no raw one. */
		assert_int_equal(run_as_guest(a.netns, "ping -c 1 -W 5 " INTERNET_SERVER), 0);
		assert_int_not_equal(run_as_guest(a.netns, "ping -c 1 -W 1 " LAN_SERVER), 0);
	}
	struct target loop = {"127.0.0.1", GUEST_PORT, false};
	struct outcome out;
	probe(a.netns, &loop, &out, 1);
	assert_int_equal(out.result, 0);
}

/* One sandbox may not fill the host's table of connections. */
static void flows_of_a_sandbox_are_limited(void **state)
{
	pid_t pid = fork();
	if (pid == 0) {
		if (setns(b.netns, CLONE_NEWNET) < 0)
			_exit(1);
		struct sockaddr_in to = {.sin_family = AF_INET};
		inet_pton(AF_INET, INTERNET_SERVER, &to.sin_addr);
		int fd = socket(AF_INET, SOCK_DGRAM, 0);
		for (int i = 0; i < 12000; i++) {
			to.sin_port = htons((uint16_t)(10000 + i));
			sendto(fd, "x", 1, 0, (struct sockaddr *)&to, sizeof(to));
		}
		_exit(0);
	}
	int status;
	waitpid(pid, &status, 0);
	assert_int_equal(status, 0);
	must("n=$(cat /proc/sys/net/netfilter/nf_conntrack_count); test $n -ge 3000 -a $n -le 5500");
	assert_int_equal(probe_one(a.netns, INTERNET_SERVER, SERVICE_PORT, false, NULL), 0);
}

static void a_number_is_reused_while_its_last_user_lingers(void **state)
{
	struct net_slot first, second;
	struct error err = {0};
	make_slot(3, &first);
	/* A socket somebody still holds keeps the old namespace, and its link, alive. */
	int held = first.dns_udp;
	first.dns_udp = -1;
	network_slot_done(&first);
	if (network_slot_create(network, 3, &second, &err) < 0)
		fail_msg("%s", err.message);
	assert_int_equal(probe_one(second.netns, INTERNET_SERVER, SERVICE_PORT, false, NULL), 0);
	close(held);
	network_slot_done(&second);
}

static void a_restart_finds_its_range_and_its_slots(void **state)
{
	struct error err = {0};
	struct net_slot s, again;
	make_slot(4, &s);
	pid_t inside = start_service(s.netns, GUEST_PORT);
	char path[64];
	snprintf(path, sizeof(path), "/proc/%d/ns/net", inside);
	network_slot_done(&s);
	network_free(network, false);
	/* Slots of ours live: another configured range is refused, the old one is kept. */
	assert_int_equal(network_new(&instance, "10.77.0.0/16", true, PRIVATE_OPEN, &network, &err), -EBUSY);
	assert_non_null(strstr(err.message, "100.96.0.0/16"));
	make_network();
	int netns = open(path, O_RDONLY | O_CLOEXEC);
	if (network_slot_adopt(network, 4, netns, &again, &err) < 0)
		fail_msg("%s", err.message);
	assert_int_equal(again.guest_address, s.guest_address);
	assert_int_equal(probe_one(again.netns, INTERNET_SERVER, SERVICE_PORT, false, NULL), 0);
	policy(&again, "", "", false);
	assert_false(reaches(&again, INTERNET_SERVER));
	/* Another number's link is not this one's. */
	struct net_slot wrong;
	assert_true(network_slot_adopt(network, 5, again.netns, &wrong, &err) < 0);
	stop_process(inside);
	network_slot_done(&again);
}

static void a_second_server_takes_another_range(void **state)
{
	struct instance other = instance_in("/tmp/cubicle-system-network-other");
	struct network *n;
	struct error err = {0};
	struct net_slot s;
	assert_int_equal(network_new(&other, "100.96.0.0/16", true, PRIVATE_OPEN, &n, &err), -EADDRINUSE);
	assert_int_equal(err.status, 400);
	assert_int_equal(network_new(&other, "100.96.0.0/16", false, PRIVATE_OPEN, &n, &err), 0);
	assert_non_null(strstr(network_notes(n), "100.97.0.0/16"));
	assert_int_equal(network_slot_create(n, 0, &s, &err), 0);
	assert_string_equal(dotted(s.guest_address), "100.97.0.1");
	assert_int_equal(probe_one(s.netns, INTERNET_SERVER, SERVICE_PORT, false, NULL), 0);
	/* Sandboxes of one server do not reach those of the other. */
	assert_int_not_equal(probe_one(s.netns, dotted(a.guest_address), GUEST_PORT, false, NULL), 0);
	must_in(s.netns, "nft delete table inet cubicle");
	assert_int_not_equal(probe_one(s.netns, dotted(a.guest_address), GUEST_PORT, false, NULL), 0);
	network_slot_done(&s);
	network_free(n, true);
	assert_int_equal(run_in(-1, "ip route show 100.97.0.0/16 | grep -q unreachable"), 1);
	assert_int_equal(network_new(&other, "192.168.0.0/16", true, PRIVATE_OPEN, &n, &err), -EADDRINUSE);
	assert_int_equal(network_new(&other, "100.96.0.0/33", true, PRIVATE_OPEN, &n, &err), -EINVAL);
	assert_int_equal(network_new(&other, "100.96.0.0/31", true, PRIVATE_OPEN, &n, &err), -EINVAL);
}

/* A firewall that drops what it is not told to forward, as Docker and ufw set it up. */
static void a_dropping_iptables_is_told(void **state)
{
	if (run_in(-1, "iptables -P FORWARD DROP") != 0) {
		print_message("skipped: no iptables here\n");
		skip();
	}
	assert_int_equal(probe_one(a.netns, INTERNET_SERVER, SERVICE_PORT, false, NULL), -ETIMEDOUT);
	network_free(network, false);
	make_network();
	assert_non_null(strstr(network_notes(network), "iptables"));
	assert_int_equal(probe_one(a.netns, INTERNET_SERVER, SERVICE_PORT, false, NULL), 0);
	assert_walled_in();
	network_free(network, false);
	make_network(); /* a second start adds nothing twice */
	must("test $(iptables -S FORWARD | grep -c %s) = 2", instance.table);
}

/* `systemctl restart nftables` does this on many machines. */
static void flushed_chains_come_back(void **state)
{
	struct error err = {0};
	char command[200];
	assert_int_equal(network_guard(network, on_repair, NULL, &err), 0);
	policy(&a, LAN_SERVER, "", true);
	must("nft flush ruleset");
	snprintf(command, sizeof(command), "nft list chain inet %s postrouting", instance.table);
	assert_true(eventually(command));
	assert_true(reaches(&a, LAN_SERVER));
	policy(&a, "", "", true);
	assert_walled_in();
	assert_int_equal(probe_one(a.netns, INTERNET_SERVER, SERVICE_PORT, false, NULL), 0);
	/* Docker starts late and drops what it forwards. */
	if (run_in(-1, "iptables -P FORWARD DROP") == 0) {
		snprintf(command, sizeof(command), "test $(iptables -S FORWARD | grep -c %s) = 2", instance.table);
		assert_true(eventually(command));
		assert_int_equal(probe_one(a.netns, INTERNET_SERVER, SERVICE_PORT, false, NULL), 0);
	}
}

struct maker {
	pthread_t thread;
	struct net_slot slots[6];
	unsigned first;
};

static void *make_some(void *arg)
{
	struct maker *m = arg;
	for (unsigned i = 0; i < 6; i++) {
		struct error err = {0};
		if (network_slot_create(network, m->first + i, &m->slots[i], &err) < 0)
			return strdup(err.message);
	}
	return NULL;
}

static void threads_make_slots_at_once(void **state)
{
	struct maker makers[6];
	for (unsigned i = 0; i < 6; i++) {
		makers[i].first = 100 + 6 * i;
		assert_int_equal(pthread_create(&makers[i].thread, NULL, make_some, &makers[i]), 0);
	}
	for (unsigned i = 0; i < 6; i++) {
		void *failure;
		pthread_join(makers[i].thread, &failure);
		if (failure)
			fail_msg("%s", (char *)failure);
	}
	for (unsigned i = 0; i < 6; i++)
		for (unsigned k = 0; k < 6; k++) {
			if (k % 3 == 0)
				assert_int_equal(probe_one(makers[i].slots[k].netns, INTERNET_SERVER, SERVICE_PORT, false, NULL), 0);
			network_slot_done(&makers[i].slots[k]);
		}
}

static void a_clean_stop_leaves_nothing(void **state)
{
	for (size_t i = 0; i < sizeof(services) / sizeof(services[0]); i++) {
		stop_process(services[i]);
		services[i] = 0;
	}
	network_slot_done(&a);
	network_slot_done(&b);
	assert_true(eventually("! ip link | grep -q cub"));
	must("nft list tables | grep -q %s && ip route | grep -q unreachable", instance.table);
	network_free(network, true);
	network = NULL;
	assert_int_not_equal(run_in(-1, "nft list tables | grep cubicle"), 0);
	assert_int_not_equal(run_in(-1, "ip route | grep unreachable"), 0);
	assert_int_not_equal(run_in(-1, "iptables -S | grep cubicle"), 0);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(the_forbidden_services_exist),
		cmocka_unit_test(the_internet_is_reached_by_address_translation),
		cmocka_unit_test(nothing_else_is_reached),
		cmocka_unit_test(refusals_come_at_once),
		cmocka_unit_test(the_hosts_chains_hold_alone),
		cmocka_unit_test(the_policy_inside_holds_alone),
		cmocka_unit_test(nobody_gets_in),
		cmocka_unit_test(a_root_inside_cannot_change_it),
		cmocka_unit_test(wrong_source_addresses_go_nowhere),
		cmocka_unit_test(the_switch_takes_the_internet_away),
		cmocka_unit_test(lists_decide_what_is_reached),
		cmocka_unit_test(long_lists_are_one_transaction),
		cmocka_unit_test(private_networks_are_opened_by_name_only),
		cmocka_unit_test(open_connections_follow_the_policy),
		cmocka_unit_test(ipv6_ends_at_the_loopback),
		cmocka_unit_test(guests_may_ping_and_use_low_ports),
		cmocka_unit_test(flows_of_a_sandbox_are_limited),
		cmocka_unit_test(a_number_is_reused_while_its_last_user_lingers),
		cmocka_unit_test(a_restart_finds_its_range_and_its_slots),
		cmocka_unit_test(a_second_server_takes_another_range),
		cmocka_unit_test(a_dropping_iptables_is_told),
		cmocka_unit_test(flushed_chains_come_back),
		cmocka_unit_test(threads_make_slots_at_once),
		cmocka_unit_test(a_clean_stop_leaves_nothing),
	};
	return cmocka_run_group_tests(tests, set_up, tear_down);
}
