#include "base/cleanup.h"
#include "base/fd.h"
#include "base/log.h"
#include "guest/guest.h"
#include "guest/machine.h"
#include "guest/names.h"
#include "io/chan.h"

#include <errno.h>
#include <fcntl.h>
#include <linux/capability.h>
#include <linux/filter.h>
#include <linux/seccomp.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/mount.h>
#include <sys/prctl.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/syscall.h>

enum {
	MAX_PTYS = 256,
	QUIET = MS_NOSUID | MS_NODEV | MS_NOEXEC,
	STAGES = 20, /* layers of a sandbox (BOX_MAX_LAYERS in sandbox/backend.h), each of which may need a place to stand while the root is put together */
};

/* Where the birth tree has room for us (host side: set_up_birth()). */
#define STAND "/mnt"

static _Noreturn void give_up(int conn, const char *what, int code)
{
	struct msg_error e = {.code = code, .status = 500};
	char text[256];
	snprintf(text, sizeof(text), "%s: %s", what, strerror(-code));
	e.message = str_of(text);
	if (conn >= 0)
		msg_send_fd(conn, MSG_ID_error, &e, 0, NULL, 0, NULL);
	log_error("%s", text);
	machine_end(1);
}

/* The small root of a parked init: what a sandbox's root will be given, and places where the host's side works. */
static int make_park(int *ret_boot_id)
{
	static const char *const dirs[] = {"proc", "sys", "dev", "run", "new", "pts", "shm", "mqueue", "empty", "stage", "stage/w"};
	static const struct {
		const char *type, *at, *options;
		unsigned long flags;
	} mounts[] = {
		{"proc", "proc", NULL, QUIET},
		{"tmpfs", "run", "mode=0755", MS_NOSUID | MS_NODEV},
		{"tmpfs", "shm", "mode=1777", MS_NOSUID | MS_NODEV},
		{"mqueue", "mqueue", NULL, QUIET},
	};
	char text[80];
	if (mount(NULL, "/", NULL, MS_REC | MS_PRIVATE, NULL) < 0 ||
		mount("cubicle", STAND, "tmpfs", MS_NOSUID | MS_NODEV | MS_NOEXEC, "mode=0755,size=64k,nr_inodes=64") < 0 || chdir(STAND) < 0)
		return -errno;
	for (size_t i = 0; i < ARRAY_SIZE(dirs); i++)
		if (mkdir(dirs[i], 0755) < 0)
			return -errno;
	for (int i = 0; i < STAGES; i++) {
		snprintf(text, sizeof(text), "stage/%d", i);
		if (mkdir(text, 0755) < 0)
			return -errno;
	}
	for (size_t i = 0; i < ARRAY_SIZE(mounts); i++)
		if (mount(mounts[i].type, mounts[i].at, mounts[i].type, mounts[i].flags, mounts[i].options) < 0)
			return -errno;
	snprintf(text, sizeof(text), "newinstance,ptmxmode=0666,mode=0620,gid=5,max=%d", MAX_PTYS);
	if (mount("devpts", "pts", "devpts", MS_NOSUID | MS_NOEXEC, text) < 0)
		return -errno;
	/* The host binds it over the kernel's own; what it holds comes with the claim. */
	*ret_boot_id = open("boot_id", O_WRONLY | O_CREAT | O_EXCL | O_CLOEXEC, 0444);
	return *ret_boot_id < 0 ? -errno : 0;
}

/* Makes the current directory the root and leaves everything above it. */
static int enter_root(void)
{
	/* Both names are ".": the old root lands on top of the new one and is taken off. */
	if (syscall(SYS_pivot_root, ".", ".") < 0 || umount2(".", MNT_DETACH) < 0 || chdir("/") < 0)
		return -errno;
	return 0;
}

/* A node, and what it has brought about so far. */
struct parking {
	int listen_fd, conn;
	int spawner; /* its socket; -1 = there is none yet */
	bool entered;
	char *storage; /* of the last message */
};

/* The connection is no more. Of a machine that was saved and restored no connection is left. */
static bool is_gone(int r)
{
	return r == -EPIPE || r == -ECONNRESET || r == -ENOTCONN;
}

static int receive(const struct parking *p, struct msg_header *h, union msg_any *any)
{
	struct error err = {0};
	int r = msg_receive_fd(p->conn, p->storage, h, any, NULL, NULL, &err);
	if ((r == -EPIPE || r == -ECONNRESET) && !machine_get()) /* node has gone, or does not want us */
		_exit(0);
	if (r == 0 && !(msg_type(h->type)->directions & MSG_TO_INIT))
		r = -EPROTO;
	return r;
}

static void say(int conn, enum msg_id type, const void *m, uint64_t request)
{
	struct error err = {0};
	int r = msg_send_fd(conn, type, m, request, NULL, 0, &err);
	if (machine_get() && is_gone(r)) /* receive() will tell */
		return;
	if (r == -EPIPE)
		_exit(0);
	if (r < 0)
		give_up(conn, err.message, r);
}

static void answer_hello(int conn, uint64_t request)
{
	struct msg_init_state m = {.claimed = false, .version_min = MSG_VERSION_OLDEST, .version_max = MSG_VERSION};
	msg_set(&m, init_state, still, true);
	say(conn, MSG_ID_init_state, &m, request);
}

static int fork_spawner(int conn)
{
	int ends[2];
	if (socketpair(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC, 0, ends) < 0)
		give_up(conn, "socket of the spawner", -errno);
	pid_t pid = fork();
	if (pid < 0)
		give_up(conn, "spawner", -errno);
	if (pid == 0) {
		close(ends[0]);
		spawner_begin(conn, ends[1]);
	}
	close(ends[1]);
	return ends[0];
}

/* Standard descriptors were the host's /dev/null; from here on they are the sandbox's. */
static int own_standard_descriptors(void)
{
	cleanup_fd int fd = open("/dev/null", O_RDWR | O_CLOEXEC);
	for (int i = 0; i < 3; i++)
		if (fd < 0 || dup2(fd, i) < 0)
			return -errno;
	return 0;
}

/* From the small root of a parked init to that of the sandbox, which stands at /new. */
static void enter_sandbox(int conn)
{
	int r = chdir("/new") < 0 ? -errno : enter_root();
	if (r < 0)
		give_up(conn, "the sandbox's root", r);
	if ((r = names_make_places()) < 0)
		give_up(conn, "/run and /tmp", r);
	if ((r = own_standard_descriptors()) < 0)
		give_up(conn, "/dev/null", r);
}

static int load_filter(struct str filter)
{
	if (filter.n % sizeof(struct sock_filter))
		return -EINVAL;
	struct sock_filter *copy = malloc(filter.n); /* a message has no alignment */
	if (!copy)
		return -ENOMEM;
	memcpy(copy, filter.p, filter.n);
	struct sock_fprog prog = {.len = (unsigned short)(filter.n / sizeof(*copy)), .filter = copy};
	int r = prctl(PR_SET_SECCOMP, SECCOMP_MODE_FILTER, &prog) < 0 ? -errno : 0;
	free(copy);
	return r;
}

static int lower_capabilities(uint64_t drop)
{
	struct __user_cap_header_struct header = {.version = _LINUX_CAPABILITY_VERSION_3};
	struct __user_cap_data_struct data[2];
	if (syscall(SYS_capget, &header, data) < 0)
		return -errno;
	for (int i = 0; i < 2; i++) {
		uint32_t keep = ~(uint32_t)(drop >> (32 * i));
		data[i].effective &= keep;
		data[i].permitted &= keep;
		data[i].inheritable = 0;
	}
	return syscall(SYS_capset, &header, data) < 0 ? -errno : 0;
}

static int give_up_capabilities(struct msg_list drop_caps, bool no_setuid, struct str filter, struct error *err)
{
	struct str rest = drop_caps.raw, item;
	uint64_t drop = 0, cap;
	while (msg_list_next(&rest, &item)) {
		if (str_to_u64(item, &cap) < 0 || cap > 63)
			return error_set(err, -EINVAL, 500, "'%.*s' is no capability", STR_FMT(item));
		/* A kernel that does not know it has nothing to drop. */
		if (prctl(PR_CAPBSET_DROP, cap, 0, 0, 0) < 0 && errno != EINVAL)
			return error_errno(err, -errno, "bounding set");
		drop |= UINT64_C(1) << cap;
	}
	if (no_setuid && prctl(PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0) < 0)
		return error_errno(err, -errno, "no_new_privs");
	/* While SYS_ADMIN is still held: without it the kernel takes a filter only together with no_new_privs, and sudo inside must work. */
	int r = filter.n ? load_filter(filter) : 0;
	if (r < 0)
		return error_errno(err, r, "seccomp filter");
	r = lower_capabilities(drop);
	return r < 0 ? error_errno(err, r, "capabilities") : 0;
}

int guest_confine(struct str seccomp, struct msg_list drop_caps, bool no_setuid, struct error *err)
{
	if (!seccomp.n && !machine_get())
		return error_set(err, -EINVAL, 500, "a seccomp filter is needed");
	return give_up_capabilities(drop_caps, no_setuid, seccomp, err);
}

/* Ahead of the claim: the root, and the filter, which takes the kernel a while to compile. */
static void prepare(int conn, int spawner, const struct msg_enter *m)
{
	struct error err = {0};
	int r;
	enter_sandbox(conn);
	names_touch();
	if ((r = spawner_confine(spawner, m->seccomp, m->drop_caps, false, &err)) < 0 || (r = spawner_confined(spawner, &err)) < 0)
		give_up(conn, err.message, r);
	if ((r = load_filter(m->seccomp)) < 0)
		give_up(conn, "seccomp filter", r);
}

static int accept_node(int listen_fd)
{
	int fd;
	do
		fd = accept4(listen_fd, NULL, NULL, SOCK_CLOEXEC);
	while (fd < 0 && (errno == EINTR || errno == ECONNABORTED));
	return fd < 0 ? -errno : fd;
}

/* Only in a machine of its own. */
static void await_next_node(struct parking *p)
{
	close(p->conn);
	p->conn = accept_node(p->listen_fd);
	if (p->conn < 0)
		give_up(-1, "control connection", p->conn);
}

static void on_hello(struct parking *p, uint64_t request)
{
	answer_hello(p->conn, request);
	if (p->spawner < 0)
		p->spawner = fork_spawner(p->conn);
	else if (machine_get()) /* it told the node before */
		say(p->conn, MSG_ID_spawner, &(struct msg_spawner){0}, 0);
}

/* Answers until the claim comes; its views point into storage. */
static struct msg_claim wait_for_claim(struct parking *p, uint64_t *ret_request)
{
	for (;;) {
		struct msg_header h;
		union msg_any any;
		int r = receive(p, &h, &any);
		if (machine_get() && is_gone(r)) {
			await_next_node(p);
			continue;
		}
		if (r < 0)
			give_up(p->conn, "control connection", r);
		if (h.type == MSG_ID_hello) {
			on_hello(p, h.request);
		} else if (h.type == MSG_ID_attached) {
			say(p->conn, MSG_ID_parked, &(struct msg_parked){0}, 0);
		} else if (h.type == MSG_ID_ping) {
			say(p->conn, MSG_ID_pong, &(struct msg_pong){0}, h.request);
		} else if (h.type == MSG_ID_enter && p->spawner >= 0 && !p->entered && !machine_get()) {
			prepare(p->conn, p->spawner, &any.enter);
			p->entered = true;
			say(p->conn, MSG_ID_entered, &(struct msg_entered){0}, 0);
		} else if (h.type == MSG_ID_claim && p->spawner >= 0) {
			*ret_request = h.request;
			return any.claim;
		} else {
			give_up(p->conn, "a message out of order", -EPROTO);
		}
	}
}

static int copy_text(char **to, struct str s)
{
	*to = str_dup(s);
	return *to ? 0 : -ENOMEM;
}

static int keep_identity(const struct msg_claim *c, struct guest_identity *id)
{
	int r = copy_text(&id->sandbox, c->sandbox);
	if (r == 0)
		r = copy_text(&id->template, c->template);
	if (r == 0)
		r = copy_text(&id->user, c->user);
	if (r == 0 && msg_has(c, claim, token))
		r = copy_text(&id->token, c->token);
	if (r == 0 && msg_has(c, claim, workdir))
		r = copy_text(&id->workdir, c->workdir);
	if (r == 0 && msg_has(c, claim, services))
		r = buf_add_str(&id->services, c->services.raw);
	if (r == 0 && msg_has(c, claim, service_options))
		r = buf_add_str(&id->service_options, c->service_options.raw);
	if (r == 0 && msg_has(c, claim, probe_path))
		r = copy_text(&id->probe_path, c->probe_path);
	id->template_envs = c->template_envs;
	id->probe_port = c->probe_port <= UINT16_MAX ? (uint16_t)c->probe_port : 0;
	id->wait_ready = c->wait_ready;
	id->unassigned = c->unassigned;
	if (r == 0 && msg_has(c, claim, ready))
		r = buf_add_str(&id->ready, c->ready.raw);
	return r == 0 ? buf_add_str(&id->envs, c->envs.raw) : r;
}

static int write_identity(const struct msg_claim *c, int boot_id)
{
	char line[48];
	int n = snprintf(line, sizeof(line), "%.*s\n", STR_FMT(c->boot_id));
	int r = fd_write_all(boot_id, line, (size_t)n);
	struct names names;
	names_of(c, &names);
	return r < 0 ? r : names_write(&names);
}

static void take_over(const struct parking *p, int boot_id, const struct msg_claim *c)
{
	int conn = p->conn, spawner = p->spawner;
	struct error err = {0};
	int r = 0;
	if (!p->entered) {
		enter_sandbox(conn);
		r = spawner_confine(spawner, c->seccomp, c->drop_caps, c->no_setuid, &err);
	}
	if (r < 0)
		give_up(conn, err.message, r);
	if ((r = write_identity(c, boot_id)) < 0)
		give_up(conn, "boot id and names", r);
	if (p->entered)
		r = give_up_capabilities(c->drop_caps, c->no_setuid, STR(""), &err);
	else if ((r = guest_confine(c->seccomp, c->drop_caps, c->no_setuid, &err)) == 0)
		r = spawner_confined(spawner, &err);
	if (r < 0)
		give_up(conn, err.message, r);
}

/* The same in a machine of its own, which is what keeps those inside apart from others: without a filter there is nothing to give up but what the template asks for. */
static void settle(const struct parking *p, const struct msg_claim *c)
{
	struct error err = {0};
	struct names names;
	names_of(c, &names);
	struct msg_list caps = c->seccomp.n && msg_has(c, claim, drop_caps) ? c->drop_caps : (struct msg_list){STR("")};
	bool confine = c->seccomp.n || c->no_setuid;
	int r = confine ? spawner_confine(p->spawner, c->seccomp, caps, c->no_setuid, &err) : 0;
	if (r < 0)
		give_up(p->conn, err.message, r);
	machine_reseed(c->boot_id);
	if ((r = machine_set_clock(c->realtime)) < 0)
		give_up(p->conn, "clock", r);
	if ((r = names_write(&names)) < 0)
		give_up(p->conn, "names", r);
	if (confine && ((r = guest_confine(c->seccomp, caps, c->no_setuid, &err)) < 0 || (r = spawner_confined(p->spawner, &err)) < 0))
		give_up(p->conn, err.message, r);
}

/* Set up for what the sandbox will be, ahead of the claim: 0 or -errno. */
static int prepare_namespace(int *ret_boot_id)
{
	umask(0);
	int r = make_park(ret_boot_id);
	if (r == 0)
		r = enter_root();
	umask(022);
	return r;
}

void guest_park(int listen_fd, struct guest_identity *ret, int *ret_conn, int *ret_spawner)
{
	struct parking p = {.listen_fd = listen_fd, .spawner = -1, .storage = malloc(MSG_MAX)};
	bool machine = machine_get();
	int boot_id = -1;
	uint64_t request;
	/* Handlers were reset by the clone; what node ignored is still ignored. */
	for (int i = 1; i < NSIG; i++)
		if (i != SIGKILL && i != SIGSTOP && i != SIGPIPE)
			signal(i, SIG_DFL);
	/* In a namespace node connected before this process began, so there is no wait that its death would not end. */
	p.conn = accept_node(listen_fd);
	if (p.conn < 0 || !p.storage)
		give_up(p.conn, "control connection", p.conn < 0 ? p.conn : -ENOMEM);
	int r = machine ? 0 : prepare_namespace(&boot_id);
	if (r < 0)
		give_up(p.conn, "parking", r);
	struct msg_claim c = wait_for_claim(&p, &request);
	if ((r = keep_identity(&c, ret)) < 0)
		give_up(p.conn, "identity", r);
	ret->claim_request = request;
	if (machine)
		settle(&p, &c);
	else
		take_over(&p, boot_id, &c);
	if (boot_id >= 0)
		close(boot_id);
	free(p.storage);
	*ret_conn = p.conn;
	*ret_spawner = p.spawner;
}
