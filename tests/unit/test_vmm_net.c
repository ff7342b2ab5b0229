#include "unit.h"
#include "vmm_driver.h"
#include "base/cleanup.h"
#include "base/fd.h"
#include "base/random.h"
#include "vmm/devices.h"

#include <arpa/inet.h>
#include <fcntl.h>
#include <linux/if_tun.h>
#include <linux/netlink.h>
#include <linux/rtnetlink.h>
#include <linux/virtio_config.h>
#include <linux/virtio_mmio.h>
#include <linux/virtio_net.h>
#include <linux/virtio_ring.h>
#include <net/if.h>
#include <netpacket/packet.h>
#include <sched.h>
#include <stdio.h>
#include <sys/ioctl.h>
#include <sys/socket.h>

enum { RX, TX, QUEUE = 128 /* more than a turn's worth */, ROOM = 2048, HEADER = 12, FRAME_MAX = 65600, ETHERTYPE = 0x88b5 /* for experiments */ };

static const unsigned char mac[6] = {2, 0, 0, 0, 0, 1};

struct world {
	struct loop *loop;
	struct guest_memory memory;
	struct virtio_device *device;
	struct driver d;
	int wire; /* the other end of what stands in for the tap */
	uint64_t rx[QUEUE], tx;
};

static void begin(struct world *w, int tap)
{
	struct error err = {0};
	struct net_config c = {.tap = tap, .mtu = 1400};
	memcpy(c.mac, mac, sizeof(mac));
	w->loop = loop_new();
	driver_memory(&w->memory, 1 << 20);
	w->device = net_new(w->loop, &w->memory, &c, &err);
	assert_non_null(w->device);
	driver_init(&w->d, w->device, &w->memory);
}

static void start(struct world *w, uint64_t features)
{
	driver_start(&w->d, features, QUEUE);
	w->tx = driver_alloc(&w->d, FRAME_MAX);
}

static void offer(struct world *w, unsigned n, uint32_t room)
{
	while (n--) {
		uint64_t address = driver_alloc(&w->d, room);
		memset(driver_at(&w->d, address, room), 0xee, room);
		w->rx[driver_add(&w->d, RX, &(struct part){address, room, true}, 1)] = address;
	}
	driver_notify(&w->d, RX);
}

static int set_up(void **state)
{
	static struct world w;
	int pair[2];
	w = (struct world){0};
	assert_int_equal(socketpair(AF_UNIX, SOCK_DGRAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0, pair), 0);
	w.wire = pair[0];
	begin(&w, pair[1]);
	*state = &w;
	return 0;
}

static int tear_down(void **state)
{
	struct world *w = *state;
	virtio_free(w->device);
	loop_free(w->loop);
	driver_memory_done(&w->memory);
	cleanup_fd_p(&w->wire);
	return 0;
}

static void turns(struct world *w)
{
	for (int i = 0; i < 5; i++)
		loop_turn(w->loop, 0);
}

/* A packet with its header, as it goes over the wire; what is in it follows from the seed. */
static void make(char *p, size_t n, unsigned char seed)
{
	memset(p, 0, MIN(n, (size_t)HEADER));
	for (size_t i = HEADER; i < n; i++)
		p[i] = (char)(seed + i * 7);
}

static void wire_send(struct world *w, size_t n, unsigned char seed)
{
	cleanup_free char *p = malloc(n);
	make(p, n, seed);
	assert_int_equal(send(w->wire, p, n, 0), n);
}

/* The next packet that the guest got, through all its buffers. */
static size_t guest_receive(struct world *w, char *to, unsigned *ret_chains)
{
	uint16_t head, chains = 1;
	uint32_t n;
	size_t done = 0;
	for (unsigned i = 0; i < chains; i++) {
		driver_wait(&w->d, w->loop, RX, &head, &n);
		memcpy(to + done, driver_at(&w->d, w->rx[head], n), n);
		if (i == 0)
			memcpy(&chains, to + offsetof(struct virtio_net_hdr_mrg_rxbuf, num_buffers), sizeof(chains));
		done += n;
	}
	*ret_chains = chains;
	memset(to + offsetof(struct virtio_net_hdr_mrg_rxbuf, num_buffers), 0, sizeof(chains));
	return done;
}

static void expect_guest(struct world *w, size_t n, unsigned char seed, unsigned chains)
{
	cleanup_free char *got = malloc(FRAME_MAX), *want = malloc(FRAME_MAX);
	unsigned in;
	assert_int_equal(guest_receive(w, got, &in), n);
	assert_int_equal(in, chains);
	make(want, n, seed);
	assert_memory_equal(got, want, n);
}

static void guest_send(struct world *w, size_t n, unsigned char seed)
{
	make(driver_at(&w->d, w->tx, n), n, seed);
	struct part parts[3] = {{w->tx, HEADER, false}, {w->tx + HEADER, 7, false}, {w->tx + HEADER + 7, (uint32_t)n - HEADER - 7, false}};
	driver_add(&w->d, TX, parts, 3);
	driver_notify(&w->d, TX);
	driver_wait(&w->d, w->loop, TX, NULL, NULL);
}

static void expect_wire(struct world *w, size_t n, unsigned char seed)
{
	cleanup_free char *got = malloc(FRAME_MAX), *want = malloc(FRAME_MAX);
	assert_int_equal(recv(w->wire, got, FRAME_MAX, 0), n);
	make(want, n, seed);
	assert_memory_equal(got, want, n);
}

#define MERGE (UINT64_C(1) << VIRTIO_NET_F_MRG_RXBUF)

static void packets_go_both_ways(void **state)
{
	struct world *w = *state;
	start(w, MERGE);
	offer(w, 8, ROOM);
	wire_send(w, 100, 1);
	wire_send(w, HEADER + 14, 2);
	wire_send(w, ROOM, 3);
	expect_guest(w, 100, 1, 1);
	expect_guest(w, HEADER + 14, 2, 1);
	expect_guest(w, ROOM, 3, 1);
	guest_send(w, 1514, 4);
	guest_send(w, 60, 5);
	guest_send(w, HEADER + 65535, 6);
	expect_wire(w, 1514, 4);
	expect_wire(w, 60, 5);
	expect_wire(w, HEADER + 65535, 6);
}

static void a_long_packet_goes_into_several_buffers(void **state)
{
	struct world *w = *state;
	start(w, MERGE);
	offer(w, QUEUE, ROOM);
	wire_send(w, HEADER + 60000, 1);
	wire_send(w, ROOM + 1, 2);
	expect_guest(w, HEADER + 60000, 1, 30);
	expect_guest(w, ROOM + 1, 2, 2);
}

static void a_packet_waits_for_as_many_buffers_as_it_needs(void **state)
{
	struct world *w = *state;
	start(w, MERGE | UINT64_C(1) << VIRTIO_RING_F_EVENT_IDX);
	wire_send(w, 5000, 1);
	wire_send(w, 50, 2);
	turns(w);
	const struct driver_queue *q = &w->d.queue[RX];
	for (uint16_t i = 0; i < 3; i++) {
		assert_false(driver_used(&w->d, RX, NULL, NULL));
		/* The device has asked to hear of the next one. */
		uint16_t event;
		memcpy(&event, driver_at(&w->d, q->used + 4 + 8 * QUEUE, 2), 2);
		assert_int_equal(event, i);
		offer(w, 1, ROOM);
		turns(w);
	}
	expect_guest(w, 5000, 1, 3);
	offer(w, 1, ROOM);
	expect_guest(w, 50, 2, 1);
}

static void a_packet_longer_than_all_buffers_is_lost(void **state)
{
	struct world *w = *state;
	start(w, MERGE);
	offer(w, QUEUE, 100);
	wire_send(w, 100 * QUEUE + 1, 1);
	wire_send(w, 100 * QUEUE, 2);
	expect_guest(w, 100 * QUEUE, 2, QUEUE);
}

/* While the guest has no buffers nothing is read, and the loop sleeps. */
static void without_buffers_the_tap_is_left_alone(void **state)
{
	struct world *w = *state;
	start(w, MERGE);
	turns(w);
	unsigned sent = 0;
	char p[100];
	make(p, sizeof(p), 1);
	while (send(w->wire, p, sizeof(p), MSG_DONTWAIT) > 0) {
		sent++;
		turns(w);
	}
	assert_int_equal(errno, EAGAIN);
	assert_true(sent > 0);
	offer(w, QUEUE, 100);
	for (unsigned i = 0; i < MIN(sent, (unsigned)QUEUE); i++)
		expect_guest(w, 100, 1, 1);
}

static void without_mergeable_buffers_a_packet_fits_one_or_is_lost(void **state)
{
	struct world *w = *state;
	start(w, 0);
	offer(w, 4, 1600);
	wire_send(w, 1601, 1);
	wire_send(w, 1600, 2);
	expect_guest(w, 1600, 2, 1);
	wire_send(w, 200, 3);
	expect_guest(w, 200, 3, 1);
}

static void runts_and_giants_are_dropped(void **state)
{
	struct world *w = *state;
	start(w, MERGE);
	offer(w, QUEUE, 4096);
	wire_send(w, 5, 1);
	wire_send(w, HEADER + 13, 1);
	wire_send(w, 99, 2);
	expect_guest(w, 99, 2, 1);
	uint64_t big = driver_alloc(&w->d, 70000);
	const struct part runts[] = {{w->tx, 5, false}, {w->tx, HEADER + 13, false}, {big, 70000, false}, {w->tx, 100, true}};
	for (size_t i = 0; i < ARRAY_SIZE(runts); i++) {
		driver_add(&w->d, TX, &runts[i], 1);
		driver_notify(&w->d, TX);
		driver_wait(&w->d, w->loop, TX, NULL, NULL);
	}
	guest_send(w, 77, 3);
	expect_wire(w, 77, 3);
}

static void only_what_was_agreed_upon_is_asked_of_the_kernel(void **state)
{
	enum { CSUM = VIRTIO_NET_HDR_F_NEEDS_CSUM, SIZE = 100 };
	static const struct {
		unsigned char flags, type;
		bool plain, with_tso4; /* is it sent? */
	} cases[] = {
		{0, 0, true, true},
		{CSUM, 0, false, true},
		{CSUM, VIRTIO_NET_HDR_GSO_TCPV4, false, true},
		{0, VIRTIO_NET_HDR_GSO_TCPV4, false, false},
		{CSUM, VIRTIO_NET_HDR_GSO_TCPV6, false, false},
		{CSUM, VIRTIO_NET_HDR_GSO_UDP, false, false},
		{CSUM, 5 /* UDP_L4 */, false, false},
		{CSUM, VIRTIO_NET_HDR_GSO_TCPV4 | VIRTIO_NET_HDR_GSO_ECN, false, false},
		{VIRTIO_NET_HDR_F_DATA_VALID, 0, false, false},
		{CSUM | 0x80, 0, false, false},
	};
	struct world *w = *state;
	unsigned char got[SIZE + 1];
	for (unsigned with = 0; with < 2; with++) {
		start(w, MERGE);
		/* What stands in for a tap offers none of these. */
		w->device->accepted |= with ? UINT64_C(1) << VIRTIO_NET_F_CSUM | UINT64_C(1) << VIRTIO_NET_F_HOST_TSO4 : 0;
		for (size_t i = 0; i < ARRAY_SIZE(cases); i++) {
			unsigned char *p = driver_at(&w->d, w->tx, SIZE);
			make((char *)p, SIZE, 1);
			p[0] = cases[i].flags;
			p[1] = cases[i].type;
			/* The header in one part or in several. */
			const struct part parts[] = {{w->tx, 1, false}, {w->tx + 1, 20, false}, {w->tx + 21, SIZE - 21, false}};
			driver_add(&w->d, TX, i & 1 ? parts : &(struct part){w->tx, SIZE, false}, i & 1 ? 3 : 1);
			driver_notify(&w->d, TX);
			driver_wait(&w->d, w->loop, TX, NULL, NULL);
			ssize_t n = recv(w->wire, got, sizeof(got), MSG_DONTWAIT);
			if (n != ((with ? cases[i].with_tso4 : cases[i].plain) ? SIZE : -1))
				fail_msg("case %zu: %zd", i, n);
			if (n > 0)
				assert_memory_equal(got, p, SIZE);
		}
	}
}

static void a_full_queue_is_sent_in_turns_after_one_notification(void **state)
{
	struct world *w = *state;
	char p[200];
	unsigned got = 0;
	start(w, MERGE | UINT64_C(1) << VIRTIO_RING_F_EVENT_IDX);
	make(driver_at(&w->d, w->tx, 100), 100, 9);
	for (unsigned i = 0; i < QUEUE; i++)
		driver_add(&w->d, TX, &(struct part){w->tx, 100, false}, 1);
	driver_notify(&w->d, TX);
	for (unsigned i = 0; i < QUEUE; i++) {
		driver_wait(&w->d, w->loop, TX, NULL, NULL);
		while (recv(w->wire, p, sizeof(p), MSG_DONTWAIT) == 100)
			got++;
	}
	/* A full socket loses some, as a wire does. */
	assert_in_range(got, 2, QUEUE);
}

static void a_useless_buffer_breaks_the_device_and_a_reset_mends_it(void **state)
{
	struct world *w = *state;
	start(w, MERGE);
	offer(w, 1, HEADER - 1);
	wire_send(w, 100, 1);
	turns(w);
	assert_true(driver_get(&w->d, VIRTIO_MMIO_STATUS) & VIRTIO_CONFIG_S_NEEDS_RESET);
	start(w, MERGE);
	offer(w, 4, ROOM);
	wire_send(w, 100, 2);
	expect_guest(w, 100, 2, 1);
}

static void a_saved_device_goes_on_at_another_tap(void **state)
{
	struct world *w = *state;
	struct error err = {0};
	cleanup_buf struct buf saved = BUF_INIT;
	start(w, MERGE);
	offer(w, 8, ROOM);
	wire_send(w, 100, 1);
	expect_guest(w, 100, 1, 1);
	w->device->ops->quiesce(w->device);
	wire_send(w, 200, 2);
	turns(w);
	assert_false(driver_used(&w->d, RX, NULL, NULL));
	virtio_save(w->device, &saved);
	virtio_free(w->device);
	cleanup_fd_p(&w->wire);
	int pair[2];
	assert_int_equal(socketpair(AF_UNIX, SOCK_DGRAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0, pair), 0);
	w->wire = pair[0];
	w->device = net_new(w->loop, &w->memory, &(struct net_config){.tap = pair[1], .mtu = 1400}, &err);
	w->d.device = w->device;
	assert_int_equal(virtio_load(w->device, buf_str(&saved), &err), 0);
	/* What waited is lost; what comes now arrives. */
	wire_send(w, 300, 3);
	expect_guest(w, 300, 3, 1);
	guest_send(w, 70, 4);
	expect_wire(w, 70, 4);
	assert_int_equal(virtio_load(w->device, str_n(buf_str(&saved).p, buf_len(&saved) - 1), &err), -EINVAL);
}

static void a_paused_device_goes_on(void **state)
{
	struct world *w = *state;
	start(w, MERGE);
	offer(w, 8, ROOM);
	w->device->ops->quiesce(w->device);
	wire_send(w, 200, 2);
	turns(w);
	assert_false(driver_used(&w->d, RX, NULL, NULL));
	w->device->ops->resume(w->device);
	expect_guest(w, 200, 2, 1);
}

static void a_broken_or_absent_tap_drops_packets(void **state)
{
	struct world *w = *state;
	start(w, MERGE);
	offer(w, 4, ROOM);
	cleanup_fd_p(&w->wire);
	w->wire = -1;
	turns(w);
	guest_send(w, 100, 1);
	guest_send(w, 100, 1);

	virtio_free(w->device);
	loop_free(w->loop);
	driver_memory_done(&w->memory);
	begin(w, -1);
	start(w, MERGE);
	offer(w, 4, ROOM);
	guest_send(w, 100, 1);
	assert_false(driver_used(&w->d, RX, NULL, NULL));
}

static void the_configuration_says_mac_status_and_mtu(void **state)
{
	struct world *w = *state;
	unsigned char got[12];
	for (unsigned i = 0; i < sizeof(got); i++)
		virtio_mmio_read(w->device, 0x100 + i, &got[i], 1);
	assert_memory_equal(got, mac, 6);
	assert_int_equal(got[6] | got[7] << 8, VIRTIO_NET_S_LINK_UP);
	assert_int_equal(got[10] | got[11] << 8, 1400);
	/* Not a tap: no offloads. */
	assert_int_equal(driver_offered(&w->d) & 0xffffff, 1u << VIRTIO_NET_F_MAC | 1u << VIRTIO_NET_F_MTU | 1u << VIRTIO_NET_F_STATUS | 1u << VIRTIO_NET_F_MRG_RXBUF);
}

/* With a real tap, in a network namespace of its own */

static int open_tap(const char *name)
{
	cleanup_fd int fd = open("/dev/net/tun", O_RDWR | O_CLOEXEC | O_NONBLOCK);
	struct ifreq r = {.ifr_flags = IFF_TAP | IFF_NO_PI | IFF_VNET_HDR};
	const int header = HEADER;
	strcpy(r.ifr_name, name);
	if (fd < 0 || ioctl(fd, TUNSETIFF, &r) < 0 || ioctl(fd, TUNSETVNETHDRSZ, &header) < 0)
		return -errno;
	return steal_fd(&fd);
}

static void set_up_link(const char *name, bool up)
{
	cleanup_fd int fd = socket(AF_INET, SOCK_DGRAM | SOCK_CLOEXEC, 0);
	struct ifreq r = {.ifr_flags = up ? IFF_UP : 0};
	strcpy(r.ifr_name, name);
	assert_int_equal(ioctl(fd, SIOCSIFFLAGS, &r), 0);
}

static void delete_link(const char *name)
{
	cleanup_fd int fd = socket(AF_NETLINK, SOCK_RAW | SOCK_CLOEXEC, NETLINK_ROUTE);
	struct {
		struct nlmsghdr h;
		struct ifinfomsg i;
	} m = {{.nlmsg_len = sizeof(m), .nlmsg_type = RTM_DELLINK, .nlmsg_flags = NLM_F_REQUEST}, {.ifi_family = AF_UNSPEC, .ifi_index = (int)if_nametoindex(name)}};
	assert_int_equal(send(fd, &m, sizeof(m), 0), sizeof(m));
	assert_int_equal(if_nametoindex(name), 0);
}

/* The namespace's side of the tap. */
static int packet_socket(const char *name)
{
	int fd = socket(AF_PACKET, SOCK_RAW | SOCK_CLOEXEC | SOCK_NONBLOCK, htons(ETHERTYPE));
	struct sockaddr_ll a = {.sll_family = AF_PACKET, .sll_protocol = htons(ETHERTYPE), .sll_ifindex = (int)if_nametoindex(name)};
	assert_true(fd >= 0);
	assert_int_equal(bind(fd, (struct sockaddr *)&a, sizeof(a)), 0);
	return fd;
}

static void frame(char *p, size_t n, unsigned char seed)
{
	make(p, n, seed);
	memset(p, 0xff, 6); /* behind no header: to all */
	memcpy(p + 6, mac, 6);
	p[12] = (char)(ETHERTYPE >> 8);
	p[13] = (char)(ETHERTYPE & 0xff);
}

static void a_real_tap_carries_frames_and_may_go_away(void **state)
{
	if (unshare(CLONE_NEWNET) < 0) {
		fprintf(stderr, "SKIPPED: no network namespace: %s\n", strerror(errno));
		skip();
	}
	int tap = open_tap("tap0");
	if (tap < 0) {
		fprintf(stderr, "SKIPPED: no tap: %s\n", strerror(-tap));
		skip();
	}
	struct world w = {.wire = -1};
	begin(&w, tap);
	set_up_link("tap0", true);
	cleanup_fd int outside = packet_socket("tap0");
	uint64_t offered = driver_offered(&w.d), offload = UINT64_C(1) << VIRTIO_NET_F_CSUM | UINT64_C(1) << VIRTIO_NET_F_GUEST_CSUM | UINT64_C(1) << VIRTIO_NET_F_GUEST_TSO4 |
		UINT64_C(1) << VIRTIO_NET_F_HOST_TSO4 | UINT64_C(1) << VIRTIO_NET_F_HOST_TSO6;
	assert_int_equal(offered & offload, offload);
	start(&w, MERGE | offload);
	offer(&w, QUEUE, ROOM);

	char sent[1000], got[FRAME_MAX];
	frame(sent, sizeof(sent), 1);
	char *at = driver_at(&w.d, w.tx, HEADER + sizeof(sent));
	memset(at, 0, HEADER);
	memcpy(at + HEADER, sent, sizeof(sent));
	driver_add(&w.d, TX, &(struct part){w.tx, HEADER + sizeof(sent), false}, 1);
	driver_notify(&w.d, TX);
	driver_wait(&w.d, w.loop, TX, NULL, NULL);
	assert_int_equal(recv(outside, got, sizeof(got), 0), sizeof(sent));
	assert_memory_equal(got, sent, sizeof(sent));

	/* The kernel may send frames of its own (router solicitations). */
	assert_int_equal(send(outside, sent, sizeof(sent), 0), sizeof(sent));
	unsigned chains;
	size_t n;
	do
		n = guest_receive(&w, got, &chains);
	while (n < HEADER + sizeof(sent) || memcmp(got + HEADER + 12, sent + 12, 2) != 0);
	assert_int_equal(n, HEADER + sizeof(sent));
	assert_memory_equal(got + HEADER, sent, sizeof(sent));

	/* Nonsense in the header is the kernel's to refuse. */
	memset(at, 0xff, HEADER);
	driver_add(&w.d, TX, &(struct part){w.tx, HEADER + sizeof(sent), false}, 1);
	driver_notify(&w.d, TX);
	driver_wait(&w.d, w.loop, TX, NULL, NULL);
	assert_int_equal(recv(outside, got, sizeof(got), 0), -1);

	set_up_link("tap0", false);
	turns(&w);
	guest_send(&w, 100, 1);
	set_up_link("tap0", true);
	memset(at, 0, HEADER);
	memcpy(at + HEADER, sent, sizeof(sent));
	driver_add(&w.d, TX, &(struct part){w.tx, HEADER + sizeof(sent), false}, 1);
	driver_notify(&w.d, TX);
	driver_wait(&w.d, w.loop, TX, NULL, NULL);
	while (recv(outside, got, sizeof(got), 0) != (ssize_t)sizeof(sent))
		turns(&w);

	delete_link("tap0");
	turns(&w);
	guest_send(&w, 100, 1);
	void *world = &w;
	tear_down(&world);
}

#define wired(f) cmocka_unit_test_setup_teardown(f, set_up, tear_down)

int main(void)
{
	const struct CMUnitTest tests[] = {
		wired(packets_go_both_ways),
		wired(a_long_packet_goes_into_several_buffers),
		wired(a_packet_waits_for_as_many_buffers_as_it_needs),
		wired(a_packet_longer_than_all_buffers_is_lost),
		wired(without_buffers_the_tap_is_left_alone),
		wired(without_mergeable_buffers_a_packet_fits_one_or_is_lost),
		wired(runts_and_giants_are_dropped),
		wired(only_what_was_agreed_upon_is_asked_of_the_kernel),
		wired(a_full_queue_is_sent_in_turns_after_one_notification),
		wired(a_useless_buffer_breaks_the_device_and_a_reset_mends_it),
		wired(a_saved_device_goes_on_at_another_tap),
		wired(a_paused_device_goes_on),
		wired(a_broken_or_absent_tap_drops_packets),
		wired(the_configuration_says_mac_status_and_mtu),
		cmocka_unit_test(a_real_tap_carries_frames_and_may_go_away),
	};
	return cmocka_run_group_tests(tests, NULL, NULL);
}
