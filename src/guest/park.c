#include "base/cleanup.h"
#include "base/fd.h"
#include "base/log.h"
#include "guest/guest.h"
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
	_exit(1);
}

static int make_dir(const char *path, mode_t mode)
{
	return mkdir(path, mode) < 0 && errno != EEXIST ? -errno : 0;
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

static int receive(int conn, char *storage, struct msg_header *h, union msg_any *any)
{
	struct error err = {0};
	int r = msg_receive_fd(conn, storage, h, any, NULL, NULL, &err);
	if (r == -EPIPE || r == -ECONNRESET) /* node has gone, or does not want us */
		_exit(0);
	if (r == 0 && !(msg_type(h->type)->directions & MSG_TO_INIT))
		r = -EPROTO;
	return r;
}

static void say(int conn, enum msg_id type, const void *m, uint64_t request)
{
	struct error err = {0};
	int r = msg_send_fd(conn, type, m, request, NULL, 0, &err);
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

/* The spawner tells node itself, so that the kernel says which process it is. */
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
		if (msg_send_fd(conn, MSG_ID_spawner, &(struct msg_spawner){0}, 0, NULL, 0, NULL) < 0)
			_exit(1);
		spawner_run(ends[1]);
	}
	close(ends[1]);
	return ends[0];
}

/* A file of the sandbox's own disk, as people expect it: a plain one that root there may change. A link that the template has in its place goes. Where none can be (the disk
 * is full, a directory is in its place) the sandbox starts without: its owner can get at the files, and mend it. */
static void write_file(const char *path, struct str text)
{
	struct stat st;
	if (lstat(path, &st) == 0 && !S_ISREG(st.st_mode))
		unlink(path);
	cleanup_fd int fd = open(path, O_WRONLY | O_CREAT | O_TRUNC | O_NOFOLLOW | O_NONBLOCK | O_CLOEXEC, 0644);
	int r = fd < 0 ? -errno : fd_write_all(fd, text.p, text.n);
	if (r < 0)
		log_error("%s: %s", path, strerror(-r));
}

/* On the disk, which may be full. A link of the template to what is there is good; one that leads nowhere is replaced. */
static void make_tmp(void)
{
	struct stat st;
	if (stat("/tmp", &st) == 0)
		return;
	if (lstat("/tmp", &st) == 0 && S_ISLNK(st.st_mode))
		unlink("/tmp");
	if (mkdir("/tmp", 01777) == 0)
		chmod("/tmp", 01777);
}

/* What programs expect of a fresh /run and of /tmp. */
static int make_places(void)
{
	int r = make_dir("/run/lock", 01777);
	if (r == 0 && chmod("/run/lock", 01777) < 0)
		r = -errno;
	make_tmp();
	return r;
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
	if ((r = make_places()) < 0)
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
	if (!seccomp.n)
		return error_set(err, -EINVAL, 500, "a seccomp filter is needed");
	return give_up_capabilities(drop_caps, no_setuid, seccomp, err);
}

/* The files that the claim will fill: made while nobody waits, because the first write to a file of the template copies it to the sandbox's disk. */
static void touch_identity(void)
{
	static const char *const files[] = {"/etc/hosts", "/etc/hostname", "/etc/resolv.conf", "/etc/machine-id"};
	make_dir("/etc", 0755);
	for (size_t i = 0; i < ARRAY_SIZE(files); i++)
		write_file(files[i], STR(""));
}

/* Ahead of the claim: the root, and the filter, which takes the kernel a while to compile. */
static void prepare(int conn, int spawner, const struct msg_enter *m)
{
	struct error err = {0};
	int r;
	enter_sandbox(conn);
	touch_identity();
	if ((r = spawner_confine(spawner, m->seccomp, m->drop_caps, false, &err)) < 0 || (r = spawner_confined(spawner, &err)) < 0)
		give_up(conn, err.message, r);
	if ((r = load_filter(m->seccomp)) < 0)
		give_up(conn, "seccomp filter", r);
}

/* Answers until the claim comes; its views point into storage. */
static struct msg_claim wait_for_claim(int conn, char *storage, int *ret_spawner, bool *ret_entered, uint64_t *ret_request)
{
	int spawner = -1;
	bool entered = false;
	for (;;) {
		struct msg_header h;
		union msg_any any;
		int r = receive(conn, storage, &h, &any);
		if (r < 0)
			give_up(conn, "control connection", r);
		if (h.type == MSG_ID_hello) {
			answer_hello(conn, h.request);
			if (spawner < 0)
				spawner = fork_spawner(conn);
		} else if (h.type == MSG_ID_attached) {
			say(conn, MSG_ID_parked, &(struct msg_parked){0}, 0);
		} else if (h.type == MSG_ID_ping) {
			say(conn, MSG_ID_pong, &(struct msg_pong){0}, h.request);
		} else if (h.type == MSG_ID_enter && spawner >= 0 && !entered) {
			prepare(conn, spawner, &any.enter);
			entered = true;
			say(conn, MSG_ID_entered, &(struct msg_entered){0}, 0);
		} else if (h.type == MSG_ID_claim && spawner >= 0) {
			*ret_spawner = spawner;
			*ret_entered = entered;
			*ret_request = h.request;
			return any.claim;
		} else {
			give_up(conn, "a message out of order", -EPROTO);
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

static int write_hosts(const struct msg_claim *c)
{
	cleanup_buf struct buf text = BUF_INIT;
	buf_addf(&text, "127.0.0.1\tlocalhost\n::1\tlocalhost ip6-localhost ip6-loopback\n");
	if (msg_has(c, claim, address))
		buf_addf(&text, "%.*s\t%.*s\n", STR_FMT(c->address), STR_FMT(c->hostname));
	else
		buf_addf(&text, "127.0.1.1\t%.*s\n", STR_FMT(c->hostname));
	if (text.failed)
		return -ENOMEM;
	write_file("/etc/hosts", buf_str(&text));
	return 0;
}

static void write_line(const char *path, const char *before, struct str value)
{
	char line[160];
	int n = snprintf(line, sizeof(line), "%s%.*s\n", before, STR_FMT(value));
	write_file(path, str_n(line, (size_t)n));
}

static int write_identity(const struct msg_claim *c, int boot_id)
{
	char line[48];
	int n = snprintf(line, sizeof(line), "%.*s\n", STR_FMT(c->boot_id));
	int r = fd_write_all(boot_id, line, (size_t)n);
	if (r == 0 && sethostname(c->hostname.p, c->hostname.n) < 0)
		r = -errno;
	if (r < 0)
		return r;
	make_dir("/etc", 0755);
	write_line("/etc/hostname", "", c->hostname);
	write_line("/etc/resolv.conf", "nameserver ", c->nameserver);
	write_line("/etc/machine-id", "", c->machine_id);
	return write_hosts(c);
}

static void take_over(int conn, int boot_id, int spawner, bool entered, const struct msg_claim *c)
{
	struct error err = {0};
	int r = 0;
	if (!entered) {
		enter_sandbox(conn);
		r = spawner_confine(spawner, c->seccomp, c->drop_caps, c->no_setuid, &err);
	}
	if (r < 0)
		give_up(conn, err.message, r);
	if ((r = write_identity(c, boot_id)) < 0)
		give_up(conn, "boot id and names", r);
	if (entered)
		r = give_up_capabilities(c->drop_caps, c->no_setuid, STR(""), &err);
	else if ((r = guest_confine(c->seccomp, c->drop_caps, c->no_setuid, &err)) == 0)
		r = spawner_confined(spawner, &err);
	if (r < 0)
		give_up(conn, err.message, r);
}

void guest_park(int listen_fd, struct guest_identity *ret, int *ret_conn, int *ret_spawner)
{
	char *storage = malloc(MSG_MAX);
	int boot_id = -1, spawner = -1;
	uint64_t request;
	/* Handlers were reset by the clone; what node ignored is still ignored. */
	for (int i = 1; i < NSIG; i++)
		if (i != SIGKILL && i != SIGSTOP && i != SIGPIPE)
			signal(i, SIG_DFL);
	umask(0);
	/* Node connected before this process began, so there is no wait that its death would not end. */
	int conn = accept4(listen_fd, NULL, NULL, SOCK_CLOEXEC);
	if (conn < 0 || !storage)
		give_up(conn, "control connection", conn < 0 ? -errno : -ENOMEM);
	int r = make_park(&boot_id);
	if (r < 0 || (r = enter_root()) < 0)
		give_up(conn, "parking", r);
	umask(022);
	bool entered = false;
	struct msg_claim c = wait_for_claim(conn, storage, &spawner, &entered, &request);
	if ((r = keep_identity(&c, ret)) < 0)
		give_up(conn, "identity", r);
	ret->claim_request = request;
	take_over(conn, boot_id, spawner, entered, &c);
	close(boot_id);
	free(storage);
	*ret_conn = conn;
	*ret_spawner = spawner;
}
