/*
 * cubicle-vmm: the monitor of one microVM (docs/microvm.md). Node starts it, and it outlives node: whoever comes next connects to its admin socket.
 */
#include "base/cleanup.h"
#include "base/log.h"
#include "vmm/admin.h"
#include "vmm/args.h"
#include "vmm/jail.h"
#include "vmm/kernel.h"
#include "vmm/state.h"
#include "vmm/state_file.h"

#include <signal.h>
#include <stdio.h>
#include <sys/prctl.h>
#include <sys/stat.h>
#include <time.h>

enum vmm_exit { EXIT_OFF = 0, EXIT_RESET = 10, EXIT_PANIC = 11, EXIT_GAVE_UP = 12, EXIT_NO_START = 13, EXIT_TERMINATED = 128 + SIGTERM };

struct monitor {
	struct loop *loop;
	struct vmm_args args;
	struct machine *machine;
	struct admin *admin;
	enum vmm_exit status;
};

static void on_terminate(int signal)
{
	_exit(EXIT_TERMINATED);
}

/* As PID 1 of a namespace a signal that has no handler would be ignored. */
static void set_signals(void)
{
	struct sigaction terminate = {.sa_handler = on_terminate};
	sigset_t none;
	sigemptyset(&none);
	sigprocmask(SIG_SETMASK, &none, NULL);
	sigaction(SIGTERM, &terminate, NULL);
	signal(SIGPIPE, SIG_IGN);
	signal(SIGHUP, SIG_IGN);
	signal(SIGINT, SIG_IGN);
	signal(SIGXFSZ, SIG_IGN); /* an error of the write will do */
}

static void on_thread(void *arg, unsigned i)
{
	char name[16];
	snprintf(name, sizeof(name), "vcpu%u", i);
	prctl(PR_SET_NAME, name);
	jail_thread(JAIL_VCPU);
}

static void on_ended(void *arg, enum vcpu_end why, bool panicked, const char *what)
{
	struct monitor *m = arg;
	switch (why) {
	case VCPU_OFF:
		m->status = EXIT_OFF;
		break;
	case VCPU_RESET:
		m->status = panicked ? EXIT_PANIC : EXIT_RESET;
		if (*what)
			log_warn("the guest was reset: %s", what);
		break;
	case VCPU_FAILED:
	case VCPU_GOES_ON:
		m->status = EXIT_GAVE_UP;
		log_error("%s", what);
		break;
	}
	loop_stop(m->loop);
}

static void close_files(struct vmm_args *a)
{
	int *const files[] = {&a->kernel, &a->initramfs, &a->state, &a->memfile};
	for (size_t i = 0; i < ARRAY_SIZE(files); i++)
		if (*files[i] >= 0)
			close(steal_fd(files[i]));
}

static int make_machine(struct monitor *m, struct error *err)
{
	struct vmm_args *a = &m->args;
	a->machine.thread_begins = on_thread;
	a->machine.ended = on_ended;
	a->machine.arg = m;
	m->machine = machine_new(m->loop, &a->machine, err);
	if (!m->machine)
		return err->code;
	if (a->state >= 0)
		return state_restore(m->machine, a->state, a->memfile, err);
	const struct kernel_files files = {.kernel = a->kernel, .initramfs = a->initramfs, .command_line = a->command_line};
	return machine_boot(m->machine, &files, err);
}

/* Of what the monitor writes: disks, whose size does not change, and what it is saved into. */
static uint64_t largest_file(const struct machine_config *c)
{
	struct stat st;
	uint64_t size = MAX((uint64_t)STATE_MAX, c->memory);
	for (size_t i = 0; i < c->n_disks; i++)
		if (fstat(c->disk[i].file, &st) == 0)
			size = MAX(size, (uint64_t)st.st_size);
	return size;
}

static int start(struct monitor *m, struct error *err)
{
	int r = args_check_descriptors(&m->args, err);
	if (r == 0 && m->args.jail)
		r = jail_enter(m->args.uid, largest_file(&m->args.machine), err);
	if (r < 0)
		return r;
	m->loop = loop_new();
	if (!m->loop)
		return error_errno(err, -errno, "loop");
	if ((r = make_machine(m, err)) < 0)
		return r;
	close_files(&m->args);
	m->admin = admin_new(m->loop, m->args.admin, m->machine, err);
	if (!m->admin)
		return err->code;
	if ((r = machine_start(m->machine, err)) < 0)
		return r;
	jail_thread(JAIL_MAIN);
	return 0;
}

int main(int argc, char **argv)
{
	static struct monitor m;
	static char process[VMM_NAME_MAX + 8] = "vmm";
	struct error err = {0};
	prctl(PR_SET_NAME, "cubicle-vmm");
	set_signals();
	/* Found at the first use, in a file: now, where there is one. */
	tzset();
	log_setup(process, 2, LOG_INFO);
	int r = args_parse(argc, argv, &m.args, &err);
	if (m.args.name[0])
		snprintf(process, sizeof(process), "vmm:%s", m.args.name);
	if (r == 0)
		r = start(&m, &err);
	if (r < 0) {
		log_error("%s", err.message);
		return EXIT_NO_START;
	}
	machine_resume(m.machine);
	m.status = EXIT_GAVE_UP;
	if ((r = loop_run(m.loop)) < 0)
		log_error("loop: %s", strerror(-r));
	/* The rest ends with the process; freeing it would only give the guest another moment. */
	serial_flush(m.machine->serial);
	_exit(m.status);
}
