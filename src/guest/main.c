/*
 * cubicle-init: PID 1 of a sandbox and its envd. Without arguments it is PID 1 of a microVM (guest/boot.h). In a namespace, arguments: the descriptor of the control socket (listening),
 * then, as far as they exist, the host's directories of the work cgroup: memory=DIR cpu=DIR. They are read
 * before the host's tree is left.
 */
#include "base/cleanup.h"
#include "base/fd.h"
#include "base/log.h"
#include "guest/boot.h"
#include "guest/cgroup.h"
#include "guest/control.h"
#include "guest/envd.h"
#include "guest/logs.h"
#include "guest/machine.h"
#include "guest/machine_disk.h"
#include "guest/ports.h"
#include "guest/process.h"
#include "guest/ready.h"
#include "guest/services.h"

#include <errno.h>
#include <fcntl.h>
#include <signal.h>
#include <stdlib.h>
#include <sys/prctl.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <time.h>

struct init {
	struct guest_identity identity;
	struct guest_cgroup cgroup;
	struct control *control;
	struct spawner *spawner;
	struct logs *logs;
	struct envd envd;
	struct ports_keeper *ports; /* of a machine of its own; else NULL */
};

static void on_spawner_died(void *arg)
{
	struct init *i = arg;
	control_replace_spawner(i->control, i->spawner);
}

static void on_still(bool on, void *arg)
{
	struct init *i = arg;
	int r = machine_freeze(on);
	if (r < 0)
		log_error("%s the cgroup of commands: %s", on ? "freezing" : "thawing", strerror(-r));
	processes_stand_still(i->envd.processes, on);
	ready_stand_still(i->envd.ready, on);
}

static bool on_assigned(void *arg)
{
	struct init *i = arg;
	return ready_end(i->envd.ready);
}

static void on_prepared(bool ready, struct str why, void *arg)
{
	struct init *i = arg;
	control_tell_prepared(i->control, ready, why);
}

/* Services, and who waits for them. */
static int make_services(struct init *i, struct error *err)
{
	const struct guest_identity *id = &i->identity;
	struct msg_list services = {buf_str(&id->services)}, options = {buf_str(&id->service_options)};
	const struct ready_config ready = {
		.command = {buf_str(&id->ready)}, .probe_port = id->probe_port, .probe_path = id->probe_path, .once = id->wait_ready && !id->unassigned};
	int r = services_new(&i->envd, services, options, &i->envd.services, err);
	return r == 0 && (id->unassigned || id->wait_ready) ? ready_new(&i->envd, &ready, on_prepared, i, &i->envd.ready, err) : r;
}

static const struct control_ops control_ops = {.still = on_still, .assigned = on_assigned};

static const struct spawner_ops spawner_ops = {.died = on_spawner_died};

static _Noreturn void die(const char *what, int code)
{
	log_error("%s: %s", what, strerror(code < 0 ? -code : code));
	machine_end(1);
}

static void open_cgroup(struct guest_cgroup *g, char **args)
{
	const char *memory = NULL, *cpu = NULL;
	for (char **a = args; *a; a++) {
		if (strncmp(*a, "memory=", 7) == 0)
			memory = *a + 7;
		else if (strncmp(*a, "cpu=", 4) == 0)
			cpu = *a + 4;
	}
	guest_cgroup_open(g, memory, cpu);
	/* Names of the host's are nothing for the sandbox's ps. */
	for (; *args; args++)
		memset(*args, '\0', strlen(*args));
}

/* Nothing of this process may come or go with a signal from inside; SIGCHLD is read from a descriptor. */
static void set_signals(void)
{
	sigset_t set;
	sigemptyset(&set);
	sigaddset(&set, SIGCHLD);
	sigprocmask(SIG_SETMASK, &set, NULL);
	signal(SIGPIPE, SIG_IGN);
}

static void set_limits(void)
{
	struct rlimit l;
	if (getrlimit(RLIMIT_NOFILE, &l) == 0) {
		l.rlim_cur = l.rlim_max;
		setrlimit(RLIMIT_NOFILE, &l);
	}
}

/* Descriptors 0 to 2 must be taken, or something else would get their numbers. */
static void fill_standard_descriptors(void)
{
	int fd;
	do
		fd = open("/dev/null", O_RDWR);
	while (fd >= 0 && fd < 3);
	if (fd >= 3)
		close(fd);
}

static void write_mark(const char *path, const char *value)
{
	cleanup_fd int fd = open(path, O_WRONLY | O_CREAT | O_TRUNC | O_NOFOLLOW | O_CLOEXEC, 0644);
	int r = fd < 0 ? -errno : fd_write_all(fd, value, strlen(value));
	if (r < 0)
		log_warn("%s: %s", path, strerror(-r));
}

/* What tells a program that it is in a sandbox, and in which (e2b.md B.6). /run is our own tmpfs, and no
 * command has run yet. */
static void write_marks(const struct guest_identity *id)
{
	if (mkdir("/run/e2b", 0755) < 0 && errno != EEXIST) {
		log_warn("/run/e2b: %s", strerror(errno));
		return;
	}
	write_mark("/run/e2b/.E2B_SANDBOX", "true");
	write_mark("/run/e2b/.E2B_SANDBOX_ID", id->sandbox);
	write_mark("/run/e2b/.E2B_TEMPLATE_ID", id->template);
}

/* What the kernel's files say of the host is read before the host's tree is left. */
static int start_in_namespace(struct init *i, int listen_fd, char **args)
{
	fill_standard_descriptors();
	log_setup("init", 2, LOG_INFO);
	open_cgroup(&i->cgroup, args);
	return listen_fd;
}

static int start_machine(struct init *i)
{
	int listen_fd = boot_machine(&i->ports);
	guest_cgroup_open(&i->cgroup, boot_work_cgroup, boot_work_cgroup);
	return listen_fd;
}

static int keep_machine(struct init *i, struct loop *l)
{
	if (!machine_get())
		return 0;
	struct machine_disk *d = machine_disk_new(l);
	int r = d ? control_set_machine(i->control, d) : -ENOMEM;
	return r < 0 ? r : ports_keeper_watch(i->ports, l);
}

int main(int argc, char **argv)
{
	static struct init init;
	uint64_t listen_fd = 0;
	bool machine = argc < 2 && getpid() == 1 && boot_root_is_initramfs();
	if (!machine && (argc < 2 || str_to_u64(str_of(argv[1]), &listen_fd) < 0 || listen_fd > 1024)) {
		static const char usage[] = "cubicle-init is started by cubicle's node, inside a sandbox\n";
		return write(2, usage, sizeof(usage) - 1) < 0 ? 1 : 2;
	}
	/* Executed by descriptor, it would have a name of the kernel's choice. */
	prctl(PR_SET_NAME, "cubicle-init");
	set_signals();
	/* The time zone is found at the first use, in a file: here, where there is none, and not in one that the sandbox may have written. */
	tzset();
	int listener = machine ? start_machine(&init) : start_in_namespace(&init, (int)listen_fd, argv + 2);

	int conn = -1, spawner = -1, r;
	guest_park(listener, &init.identity, &conn, &spawner);
	write_marks(&init.identity);

	set_limits();
	struct loop *l = loop_new();
	if (!l)
		die("loop", errno);
	init.logs = logs_new();
	init.spawner = spawner_new(l, &spawner_ops, &init);
	init.control = control_new(l, listener, &init.identity, init.logs);
	if (!init.logs || !init.spawner || !init.control)
		die("control", ENOMEM);
	if ((r = keep_machine(&init, l)) < 0)
		die("machine", r);
	if ((r = control_adopt(init.control, conn)) < 0 || (r = spawner_set(init.spawner, spawner)) < 0)
		die("control", r);
	if ((r = envd_init(&init.envd, l, init.spawner, &init.identity, &init.cgroup, init.logs)) < 0 ||
		(r = envd_listen(&init.envd, ENVD_PORT)) < 0)
		die("envd", r);
	control_set_ops(init.control, &control_ops, &init);
	logs_add(init.logs, LOG_INFO, "sandbox", STR("started"), NULL);
	struct error err = {0};
	if (make_services(&init, &err) < 0)
		die(err.message, err.code);
	control_tell_claimed(init.control, init.identity.claim_request);
	/* Before the first request is read, and not before the answer. */
	guest_user_settle(&init.identity.user);
	/* After the answer: nobody's create waits for them. */
	services_start(init.envd.services);
	ready_services_changed(init.envd.ready);
	r = loop_run(l);
	die("loop", r);
}
