#include "network/network.h"
#include "base/cleanup.h"
#include "network/host.h"

#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/ioctl.h>
#include <sys/mount.h>
#include <sys/socket.h>

enum { MTU_MOST = 1500, MTU_LEAST = 576, PROC_USES = 32 };

static int mount_proc(void)
{
	cleanup_fd int context = fsopen("proc", FSOPEN_CLOEXEC);
	if (context < 0 || fsconfig(context, FSCONFIG_CMD_CREATE, NULL, NULL, 0) < 0)
		return -errno;
	int fd = fsmount(context, FSMOUNT_CLOEXEC, 0);
	return fd < 0 ? -errno : fd;
}

/* Every namespace that looks below /proc/sys/net leaves directory entries of its own behind, all under one parent and with the same names: in one instance
 * of procfs each look-up walks past those of all others, 0.5 ms with a thousand sandboxes. So an instance is used a few times and given up. */
int network_proc(struct network *n)
{
	pthread_mutex_lock(&n->lock);
	if (n->proc < 0 || n->proc_uses++ >= PROC_USES) {
		if (n->proc >= 0)
			close(n->proc);
		n->proc = mount_proc();
		n->proc_uses = 1;
	}
	int r = n->proc < 0 ? n->proc : fcntl(n->proc, F_DUPFD_CLOEXEC, 0);
	if (r == -1)
		r = -errno;
	pthread_mutex_unlock(&n->lock);
	return r;
}

/* The links' MTU is that of the way out, so that what a sandbox sends needs no path MTU discovery on our own hop. */
static uint32_t mtu_of(int socket, unsigned uplink)
{
	struct ifreq q = {0};
	if (!uplink || !if_indextoname(uplink, q.ifr_name) || ioctl(socket, SIOCGIFMTU, &q) < 0)
		return MTU_MOST;
	return (uint32_t)MAX(MTU_LEAST, MIN(MTU_MOST, q.ifr_mtu));
}

static int choose(struct network *n, struct ipv4_range wanted, bool configured, const struct host_survey *s, struct error *err)
{
	char text[IPV4_TEXT], old[IPV4_TEXT];
	if (s->claimed && s->links) {
		/* Sandboxes of an earlier run live in the range claimed then; their addresses cannot change. */
		if (configured && (s->claim.base != wanted.base || s->claim.bits != wanted.bits))
			return error_set(err, -EBUSY, 400, "network.pool is %s, but sandboxes that still run have addresses of %s: set that, or kill them first",
				ipv4_range_format(text, wanted), ipv4_range_format(old, s->claim));
		n->pool = s->claim;
		return 0;
	}
	int r = pool_choose(wanted, configured, s->used, s->count, &n->pool, err);
	if (r == 0 && n->pool.base != wanted.base)
		buf_addf(&n->notes, "this machine uses addresses of %s already: sandboxes get theirs from %s\n", ipv4_range_format(text, wanted),
			ipv4_range_format(old, n->pool));
	return r;
}

static int claim(struct network *n, struct ipv4_range wanted, bool configured, struct error *err)
{
	struct host_survey s = {0};
	cleanup_fd int lock = host_lock(err);
	int r = lock < 0 ? lock : host_survey(&n->instance, &s, err);
	if (r == 0)
		r = choose(n, wanted, configured, &s, err);
	if (r == 0 && s.claimed && (s.claim.base != n->pool.base || s.claim.bits != n->pool.bits))
		r = host_claim(&n->instance, s.claim, false, err);
	if (r == 0)
		r = host_claim(&n->instance, n->pool, true, err);
	n->mtu = mtu_of(n->socket, s.uplink);
	host_survey_done(&s);
	return r;
}

int network_new(const struct instance *i, const char *pool, bool configured, const char *open_list, struct network **ret, struct error *err)
{
	struct ipv4_range wanted;
	int r = ipv4_range_parse(pool, &wanted, err);
	if (r < 0)
		return error_wrap(err, r, "network.pool");
	if (wanted.bits < 8 || wanted.bits > 30)
		return error_set(err, -EINVAL, 400, "network.pool %s: the prefix must be from 8 to 30 bits long", pool);
	struct ipv4_range private[PRIVATE_MAX];
	int n_open = reach_parse_private(open_list, private, err);
	if (n_open < 0)
		return error_wrap(err, n_open, "network.private");
	struct network *n = calloc(1, sizeof(*n));
	if (!n)
		return error_errno(err, -ENOMEM, "network");
	n->instance = *i;
	n->proc = -1;
	memcpy(n->open, private, sizeof(private[0]) * (size_t)n_open);
	n->n_open = (size_t)n_open;
	pthread_mutex_init(&n->lock, NULL);
	pthread_mutex_init(&n->chains, NULL);
	n->ipv6_conf = open("/proc/sys/net/ipv6/conf", O_PATH | O_DIRECTORY | O_CLOEXEC);
	n->home = open("/proc/thread-self/ns/net", O_RDONLY | O_CLOEXEC);
	n->socket = socket(AF_INET, SOCK_DGRAM | SOCK_CLOEXEC, 0);
	if (n->home < 0 || n->socket < 0)
		r = error_errno(err, -errno, "network");
	if (r == 0)
		r = claim(n, wanted, configured, err);
	/* The walls stand before anything is forwarded. */
	if (r == 0)
		r = network_install_chains(n, &n->notes, err);
	if (r == 0)
		r = host_iptables(i, true, &n->notes, err);
	if (r == 0)
		r = host_forwarding_on(err);
	if (r < 0) {
		network_free(n, false);
		return r;
	}
	if (r > 0)
		buf_add_c(&n->notes, "the host did not forward packets: net.ipv4.ip_forward is on now\n");
	*ret = n;
	return 0;
}

void network_free(struct network *n, bool remove_chains)
{
	if (!n)
		return;
	guard_free(n->guard);
	if (remove_chains) {
		host_claim(&n->instance, n->pool, false, NULL);
		host_iptables(&n->instance, false, &n->notes, NULL);
		host_chains_remove(&n->instance);
	}
	const int fds[] = {n->home, n->socket, n->ipv6_conf, n->proc};
	for (size_t i = 0; i < ARRAY_SIZE(fds); i++)
		if (fds[i] >= 0)
			close(fds[i]);
	opened_free(n);
	pthread_mutex_destroy(&n->chains);
	pthread_mutex_destroy(&n->lock);
	buf_done(&n->notes);
	free(n);
}

struct reach_limits network_limits(const struct network *n)
{
	return (struct reach_limits){n->pool, n->open, n->n_open};
}

unsigned network_capacity(const struct network *n)
{
	return 1u << (31 - n->pool.bits);
}

const char *network_notes(struct network *n)
{
	const char *text = buf_cstr(&n->notes);
	return text ? text : "";
}
