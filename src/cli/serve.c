#include "cli/serve.h"
#include "base/clock.h"
#include "base/encode.h"
#include "base/fd.h"
#include "base/log.h"
#include "base/random.h"
#include "cli/certificates.h"
#include "cli/listen.h"
#include "config/options.h"
#include "image/source.h"
#include "io/chan.h"
#include "sys/caps.h"

#include <fcntl.h>
#include <grp.h>
#include <linux/capability.h>
#include <openssl/sha.h>
#include <pwd.h>
#include <signal.h>
#include <stddef.h>
#include <stdio.h>
#include <sys/file.h>
#include <sys/mman.h>
#include <sys/prctl.h>
#include <sys/signalfd.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/un.h>
#include <sys/wait.h>

enum {
	RESTART_DELAY_MIN_MS = 100,
	RESTART_DELAY_MAX_MS = 5000,
	STEADY_MS = 10000,        /* a child that lived this long starts over with the shortest delay */
	STOP_PATIENCE_MS = 15000, /* then the child is killed */
	LOCK_PATIENCE_MS = 5000,  /* for the node of a server that was killed to end */
	FIRST_FREE_FD = 3,
	SECONDS_PER_DAY = 86400,
	EXPIRY_WARNING_DAYS = 14,
};

struct serve;

struct child {
	const char *name; /* "node", "front", "egress", "tools" */
	struct serve *serve;
	struct chan *chan; /* NULL when it does not run */
	pid_t pid;         /* 0 when it does not run */
	bool ready;
	int64_t started;   /* boottime */
	int64_t delay_ms;
	struct loop_timer *restart, *patience;
};

enum { NODE, FRONT, EGRESS, TOOLS, CHILDREN };

struct serve {
	const struct options *options;
	struct loop *loop;
	struct child child[CHILDREN];
	char first_key[64];
	int options_fd, lock, public_listener, tls_listener, admin_listener, metrics_listener, null;
	struct certificates certificates; /* of tls_listener */
	struct loop_timer *expiry;        /* looks at them once a day */
	int signals;
	bool announced;
	int stopping; /* children asked to stop so far, in stop_order; 0 = serving */
};

/* Tools first: it ends the sandboxes of its sessions through front. Front before node, so that no request meets a node that is going; egress serves until the last. */
static const int stop_order[CHILDREN] = {TOOLS, FRONT, NODE, EGRESS};

static void child_start(struct child *c);

/* Start-up */

static int prepare_directory(const char *parent, const char *name, mode_t mode, uid_t uid, gid_t gid, struct error *err)
{
	char path[4096];
	snprintf(path, sizeof(path), "%s%s%s", parent, *name ? "/" : "", name);
	int r = make_dirs(path, 0755);
	if (r == 0 && (chmod(path, mode) < 0 || chown(path, uid, gid) < 0))
		r = -errno;
	return r < 0 ? error_errno(err, r, "state directory %s", path) : 0;
}

static int find_user(const char *option, const char *name, struct passwd *ret, struct error *err)
{
	struct passwd *p = getpwnam(name);
	if (!p)
		return error_set(err, -ENOENT, 500,
			"%s: there is no system user '%s'; make it with: useradd --system --no-create-home --shell /usr/sbin/nologin %s", option, name,
			name);
	if (p->pw_uid == 0)
		return error_set(err, -EINVAL, 500, "%s: '%s' is root; it must be a user without privileges", option, name);
	*ret = *p;
	return 0;
}

/* Waits a little: the node of a server that was just killed holds the lock until it has noticed. */
static int take_lock(const char *state_dir, struct error *err)
{
	char path[4096];
	snprintf(path, sizeof(path), "%s/lock", state_dir);
	cleanup_fd int fd = open(path, O_RDWR | O_CREAT | O_CLOEXEC, 0600);
	if (fd < 0)
		return error_errno(err, -errno, "%s", path);
	for (int waited = 0; flock(fd, LOCK_EX | LOCK_NB) < 0; waited += 50) {
		if (errno != EWOULDBLOCK)
			return error_errno(err, -errno, "%s", path);
		if (waited >= LOCK_PATIENCE_MS) {
			char pid[32] = "";
			ssize_t n = pread(fd, pid, sizeof(pid) - 1, 0);
			return error_set(err, -EBUSY, 500, "another server (pid %.*s) runs on %s", n > 0 ? (int)strcspn(pid, "\n") : 1,
				n > 0 ? pid : "?", state_dir);
		}
		usleep(50000);
	}
	char pid[32];
	int n = snprintf(pid, sizeof(pid), "%d\n", getpid());
	if (ftruncate(fd, 0) < 0 || pwrite(fd, pid, (size_t)n, 0) != n)
		return error_errno(err, -errno, "%s", path);
	return steal_fd(&fd);
}

static int seal_options(const struct options *o, struct error *err)
{
	cleanup_buf struct buf text = BUF_INIT;
	cleanup_fd int fd = memfd_create("cubicle-options", MFD_CLOEXEC | MFD_ALLOW_SEALING);
	int r = fd < 0 ? -errno : options_serialize(o, &text);
	if (r == 0)
		r = fd_write_all(fd, buf_str(&text).p, buf_len(&text));
	if (r == 0 && fcntl(fd, F_ADD_SEALS, F_SEAL_WRITE | F_SEAL_GROW | F_SEAL_SHRINK | F_SEAL_SEAL) < 0)
		r = -errno;
	return r < 0 ? error_errno(err, r, "options") : steal_fd(&fd);
}

/* The key of a new installation: written before front learns of it, so a crash between the two only repeats the message. */
static int load_first_key(struct serve *s, struct error *err)
{
	char path[4096];
	snprintf(path, sizeof(path), "%s/" FIRST_KEY_FILE, s->options->state_dir);
	cleanup_buf struct buf text = BUF_INIT;
	int r = file_read(AT_FDCWD, path, 256, &text);
	if (r == -ENOENT) {
		char digits[41];
		random_text(digits, 40, "0123456789abcdef");
		buf_addf(&text, "e2b_%s\n", digits);
		r = file_replace(AT_FDCWD, path, buf_str(&text), 0600);
	}
	if (r < 0)
		return error_errno(err, r, "first key %s", path);
	struct str line = buf_str(&text), rest;
	str_cut(line, '\n', &line, &rest);
	if (line.n != 44)
		return error_set(err, -EINVAL, 500, "%s holds no API key; remove it to get a new one", path);
	memcpy(s->first_key, line.p, line.n);
	return 0;
}

static int prepare(struct serve *s, struct error *err)
{
	const struct options *o = s->options;
	struct passwd front = {0}, egress = {0}, build = {0}, tools = {0};
	char path[4096];
	if (geteuid() != 0)
		return error_set(err, -EPERM, 500, "cubicle serve needs root: it makes namespaces, mounts and network links");
	int r = source_check_options(o, err);
	if (r == 0)
		r = find_user("user.front", o->user_front, &front, err);
	if (r == 0)
		r = find_user("user.egress", o->user_egress, &egress, err);
	if (r == 0)
		r = find_user("user.build", o->user_build, &build, err);
	if (r == 0)
		r = find_user("user.tools", o->user_tools, &tools, err);
	const uid_t users[] = {front.pw_uid, egress.pw_uid, build.pw_uid, tools.pw_uid};
	for (size_t i = 0; r == 0 && i < ARRAY_SIZE(users); i++)
		for (size_t j = 0; r == 0 && j < i; j++)
			if (users[i] == users[j])
				r = error_set(err, -EINVAL, 500, "user.front, user.egress, user.build and user.tools must be four users");
	if (r == 0)
		r = prepare_directory(o->state_dir, "", 0711, 0, 0, err);
	if (r == 0)
		r = prepare_directory(o->state_dir, "node", 0700, 0, 0, err);
	if (r == 0)
		r = prepare_directory(o->state_dir, "front", 0700, front.pw_uid, front.pw_gid, err);
	if (r == 0)
		r = prepare_directory(o->state_dir, "tools", 0500, tools.pw_uid, tools.pw_gid, err);
	if (r < 0 || (r = s->lock = take_lock(o->state_dir, err)) < 0)
		return r;
	if ((r = s->options_fd = seal_options(o, err)) < 0 || (r = load_first_key(s, err)) < 0)
		return r;
	if ((r = s->public_listener = listen_tcp("listen", o->listen, err)) < 0)
		return r;
	if (*o->listen_tls && ((r = certificates_load(o, &s->certificates, err)) < 0 || (r = s->tls_listener = listen_tcp("listen.tls", o->listen_tls, err)) < 0))
		return r;
	if (*o->metrics_listen && (r = s->metrics_listener = listen_tcp("metrics.listen", o->metrics_listen, err)) < 0)
		return r;
	snprintf(path, sizeof(path), "%s/admin.sock", o->state_dir);
	if ((r = s->admin_listener = listen_unix(path, 0600, err)) < 0)
		return r;
	s->null = open("/dev/null", O_RDWR | O_CLOEXEC);
	return s->null < 0 ? error_errno(err, -errno, "/dev/null") : 0;
}

/* Children */

/* In the child, between fork and exec. Puts fds[i] at FIRST_FREE_FD + i and executes ourselves. */
static void become(struct serve *s, const char *name, const int *fds, int n)
{
	int high[8];
	for (int i = 0; i < n; i++)
		high[i] = fcntl(fds[i], F_DUPFD, 100); /* out of the way of the targets */
	dup2(s->null, 0);
	for (int i = 0; i < n; i++)
		dup2(high[i], FIRST_FREE_FD + i);
	fd_close_all_except(FIRST_FREE_FD + n, NULL, 0);
	sigset_t none;
	sigemptyset(&none);
	sigprocmask(SIG_SETMASK, &none, NULL);
	setsid();
	char *const argv[] = {"cubicle", (char *)(uintptr_t)name, NULL};
	execv("/proc/self/exe", argv);
	_exit(127);
}

/* Certificates */

static int send_certificates(struct serve *s, uint64_t request, struct error *err)
{
	struct msg_certificates m = {0};
	struct child *front = &s->child[FRONT];
	return front->chan ? chan_send(front->chan, MSG_ID_certificates, &m, request, &s->certificates.fd, 1, err) : 0;
}

static void warn_of_expiry(struct serve *s)
{
	int64_t left = s->certificates.expires - clock_realtime() / NS_PER_S;
	if (left <= 0)
		log_warn("the certificate for %s has expired: clients refuse it", s->certificates.names);
	else if (left < EXPIRY_WARNING_DAYS * SECONDS_PER_DAY)
		log_warn("the certificate for %s expires in %lld days", s->certificates.names, (long long)(left / SECONDS_PER_DAY));
}

/* Connections go on with what they began with. What cannot be used changes nothing. */
static int reload_certificates(struct serve *s, uint64_t request, struct error *err)
{
	struct certificates fresh = {.fd = -1};
	if (s->tls_listener < 0)
		return error_set(err, -EINVAL, 409, "this server has no TLS: listen.tls is not set");
	int r = certificates_load(s->options, &fresh, err);
	if (r == 0 && fresh.expires <= clock_realtime() / NS_PER_S)
		r = error_set(err, -EKEYEXPIRED, 400, "the certificate for %s has expired", fresh.names);
	if (r < 0) {
		certificates_done(&fresh);
		return r;
	}
	certificates_done(&s->certificates);
	s->certificates = fresh;
	log_info("%zu certificate%s read, for %s", fresh.count, fresh.count == 1 ? "" : "s", fresh.names);
	warn_of_expiry(s);
	return send_certificates(s, request, err);
}

static void on_reload(struct serve *s, uint64_t request)
{
	struct error err = {0};
	if (reload_certificates(s, request, &err) == 0)
		return;
	log_error("certificates were not read again: %s", err.message);
	if (request && s->child[FRONT].chan)
		chan_send_error(s->child[FRONT].chan, request, &err);
}

static void on_expiry_timer(struct loop_timer *t, void *arg)
{
	warn_of_expiry(arg);
	loop_timer_in(t, SECONDS_PER_DAY * NS_PER_S);
}

static void on_message(struct chan *chan, struct chan_message *m, void *arg)
{
	struct child *c = arg;
	struct serve *s = c->serve;
	if (m->header.type == MSG_ID_reload_certificates && c == &s->child[FRONT])
		on_reload(s, m->header.request);
	if (m->header.type != MSG_ID_ready)
		return;
	c->ready = true;
	log_info("%s is ready", c->name);
	for (int i = 0; i < CHILDREN; i++)
		if (!s->child[i].ready)
			return;
	if (!s->announced) {
		s->announced = true;
		log_info("ready: serving on %s%s%s%s%s", s->options->listen, s->tls_listener < 0 ? "" : ", over TLS on ", s->options->listen_tls,
			s->metrics_listener < 0 ? "" : ", metrics on ", s->options->metrics_listen);
		notify_systemd("READY=1");
	}
}

static void on_closed(struct chan *chan, const struct error *err, void *arg)
{
	struct child *c = arg;
	c->chan = NULL;
	/* A child without a channel is of no use; its end comes by SIGCHLD. */
	if (c->pid)
		kill(c->pid, SIGTERM);
}

static const struct chan_ops child_ops = {on_message, on_closed};

/* Have the two a channel to each other? */
static bool speak(int a, int b)
{
	if (a == TOOLS || b == TOOLS)
		return a == FRONT || b == FRONT;
	return a == NODE || b == NODE;
}

/* Gives two running children a fresh channel to each other. */
static void introduce(struct child *a, struct child *b)
{
	int pair[2];
	if (!a->chan || !b->chan)
		return;
	if (socketpair(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC, 0, pair) < 0) {
		log_error("channel between %s and %s: %s", a->name, b->name, strerror(errno));
		return;
	}
	struct msg_peer to_a = {.role = str_of(b->name)}, to_b = {.role = str_of(a->name)};
	chan_send(a->chan, MSG_ID_peer, &to_a, 0, &pair[0], 1, NULL);
	if (b->chan)
		chan_send(b->chan, MSG_ID_peer, &to_b, 0, &pair[1], 1, NULL);
	close(pair[0]);
	close(pair[1]);
}

static void send_first_key(struct serve *s)
{
	unsigned char hash[SHA256_DIGEST_LENGTH];
	char hex[2 * SHA256_DIGEST_LENGTH + 1];
	struct str key = str_of(s->first_key);
	SHA256((const unsigned char *)key.p, key.n, hash);
	struct msg_first_key m = {.name = STR("first key"), .hash = str_of(hex_encode(hex, hash, sizeof(hash))), .hint = str_n(key.p, 8)};
	chan_send(s->child[FRONT].chan, MSG_ID_first_key, &m, 0, NULL, 0, NULL);
}

static void schedule_restart(struct child *c)
{
	loop_timer_in(c->restart, c->delay_ms * NS_PER_MS);
	c->delay_ms = MIN(c->delay_ms * 2, RESTART_DELAY_MAX_MS);
}

static void child_start(struct child *c)
{
	struct serve *s = c->serve;
	int pair[2];
	if (socketpair(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC, 0, pair) < 0) {
		log_error("starting %s: %s", c->name, strerror(errno));
		schedule_restart(c);
		return;
	}
	/* The order is the contract of docs/architecture.md, "Descriptors at start". */
	int fds[6] = {pair[1], s->options_fd}, n = 2;
	if (c == &s->child[NODE])
		fds[n++] = s->lock;
	if (c == &s->child[FRONT]) {
		fds[n++] = s->public_listener;
		fds[n++] = s->admin_listener;
		if (s->tls_listener >= 0)
			fds[n++] = s->tls_listener;
		if (s->metrics_listener >= 0)
			fds[n++] = s->metrics_listener;
	}
	pid_t pid = fork();
	if (pid == 0)
		become(s, c->name, fds, n);
	close(pair[1]);
	if (pid < 0) {
		log_error("starting %s: %s", c->name, strerror(errno));
		close(pair[0]);
		schedule_restart(c);
		return;
	}
	c->pid = pid;
	c->ready = false;
	c->started = clock_boottime();
	c->chan = chan_new(s->loop, pair[0], MSG_FROM_CHILD, CHAN_NO_FDS, &child_ops, c);
	if (!c->chan) {
		kill(pid, SIGKILL);
		return;
	}
	if (c == &s->child[FRONT]) {
		send_first_key(s);
		if (s->tls_listener >= 0)
			send_certificates(s, 0, NULL);
	}
	for (int i = 0; i < CHILDREN; i++)
		if (&s->child[i] != c && speak(i, (int)(c - s->child)))
			introduce(&s->child[i], c);
}

static void on_restart(struct loop_timer *t, void *arg)
{
	struct child *c = arg;
	if (!c->serve->stopping)
		child_start(c);
}

static void stop_next(struct serve *s)
{
	while (s->stopping < CHILDREN) {
		struct child *c = &s->child[stop_order[s->stopping++]];
		if (!c->pid)
			continue;
		struct msg_stop stop = {0};
		if (!c->chan || chan_send(c->chan, MSG_ID_stop, &stop, 0, NULL, 0, NULL) < 0)
			kill(c->pid, SIGTERM);
		loop_timer_in(c->patience, STOP_PATIENCE_MS * NS_PER_MS);
		return;
	}
	loop_stop(s->loop);
}

static void on_patience(struct loop_timer *t, void *arg)
{
	struct child *c = arg;
	if (!c->pid)
		return;
	log_warn("%s did not stop in %d s: killing it", c->name, STOP_PATIENCE_MS / 1000);
	kill(c->pid, SIGKILL);
}

static void child_ended(struct child *c, int status)
{
	struct serve *s = c->serve;
	c->pid = 0;
	c->ready = false;
	loop_timer_stop(c->patience);
	chan_free(steal_pointer(&c->chan));
	if (s->stopping) {
		stop_next(s);
		return;
	}
	if (WIFSIGNALED(status))
		log_error("%s was killed by signal %d; starting it again", c->name, WTERMSIG(status));
	else
		log_error("%s ended with status %d; starting it again", c->name, WEXITSTATUS(status));
	if (clock_boottime() - c->started > STEADY_MS * NS_PER_MS)
		c->delay_ms = RESTART_DELAY_MIN_MS;
	schedule_restart(c);
}

static void reap(struct serve *s)
{
	int status;
	pid_t pid;
	while ((pid = waitpid(-1, &status, WNOHANG)) > 0)
		for (int i = 0; i < CHILDREN; i++)
			if (s->child[i].pid == pid)
				child_ended(&s->child[i], status);
}

static void on_signal(struct loop_fd *w, uint32_t events, void *arg)
{
	struct serve *s = arg;
	struct signalfd_siginfo info;
	while (read(s->signals, &info, sizeof(info)) == (ssize_t)sizeof(info)) {
		if (info.ssi_signo == SIGCHLD) {
			reap(s);
		} else if (info.ssi_signo == SIGHUP) {
			on_reload(s, 0);
		} else if (!s->stopping) {
			log_info("stopping on signal %u", info.ssi_signo);
			notify_systemd("STOPPING=1");
			stop_next(s);
		} else {
			log_warn("asked twice to stop: leaving at once");
			loop_stop(s->loop);
		}
	}
}

static int watch_signals(struct serve *s, struct error *err)
{
	sigset_t set;
	sigemptyset(&set);
	for (const int *sig = (const int[]){SIGTERM, SIGINT, SIGHUP, SIGCHLD, 0}; *sig; sig++)
		sigaddset(&set, *sig);
	sigprocmask(SIG_SETMASK, &set, NULL);
	signal(SIGPIPE, SIG_IGN);
	s->signals = signalfd(-1, &set, SFD_CLOEXEC | SFD_NONBLOCK);
	if (s->signals < 0 || !loop_fd_add(s->loop, s->signals, EPOLLIN, on_signal, s))
		return error_errno(err, -errno, "signals");
	return 0;
}

static int redirect_log(const char *path, struct error *err)
{
	if (!*path)
		return 0;
	cleanup_fd int fd = open(path, O_WRONLY | O_CREAT | O_APPEND | O_CLOEXEC, 0640);
	if (fd < 0)
		return error_errno(err, -errno, "log.file %s", path);
	dup2(fd, 1);
	dup2(fd, 2);
	return 0;
}

static int run(struct serve *s, struct error *err)
{
	static const char *const names[CHILDREN] = {"node", "front", "egress", "tools"};
	int r = prepare(s, err);
	if (r < 0)
		return r;
	s->loop = loop_new();
	if (!s->loop)
		return error_errno(err, -ENOMEM, "loop");
	if ((r = watch_signals(s, err)) < 0 || (r = redirect_log(s->options->log_file, err)) < 0)
		return r;
	prctl(PR_SET_DUMPABLE, 0);
	for (int i = 0; i < CHILDREN; i++) {
		struct child *c = &s->child[i];
		*c = (struct child){.name = names[i], .serve = s, .delay_ms = RESTART_DELAY_MIN_MS};
		c->restart = loop_timer_new(s->loop, on_restart, c);
		c->patience = loop_timer_new(s->loop, on_patience, c);
		if (!c->restart || !c->patience)
			return error_errno(err, -ENOMEM, "timers");
	}
	s->expiry = loop_timer_new(s->loop, on_expiry_timer, s);
	if (!s->expiry)
		return error_errno(err, -ENOMEM, "timers");
	if (s->tls_listener >= 0)
		on_expiry_timer(s->expiry, s);
	for (int i = 0; i < CHILDREN; i++)
		child_start(&s->child[i]);
	/* What it executes gets root's capabilities anew; for itself it needs only to end children of other users. */
	if ((r = caps_keep_only(UINT64_C(1) << CAP_KILL)) < 0)
		return error_errno(err, r, "capset");
	r = loop_run(s->loop);
	return r < 0 ? error_errno(err, r, "loop") : 0;
}

int serve_main(const struct options *o)
{
	enum log_level level = LOG_INFO;
	struct error err = {0};
	struct serve s = {.options = o, .options_fd = -1, .lock = -1, .public_listener = -1, .tls_listener = -1, .admin_listener = -1, .metrics_listener = -1,
		.certificates = {.fd = -1}};
	if (log_level_parse(str_of(o->log_level), &level) < 0) {
		fprintf(stderr, "cubicle serve: log.level '%s' is none of debug, info, warn, error\n", o->log_level);
		return 1;
	}
	log_setup("serve", 2, level);
	int r = run(&s, &err);
	if (s.admin_listener >= 0) {
		char path[4096];
		snprintf(path, sizeof(path), "%s/admin.sock", o->state_dir);
		unlink(path);
	}
	loop_free(s.loop);
	certificates_done(&s.certificates);
	if (r < 0) {
		fprintf(stderr, "cubicle serve: %s\n", err.message);
		return 1;
	}
	log_info("stopped");
	return 0;
}
