#include "backend/machine_world.h"
#include "base/cleanup.h"
#include "base/fd.h"
#include "sandbox/box/box.h"
#include "sys/program.h"

#include <fcntl.h>
#include <stdio.h>
#include <sys/stat.h>
#include <sys/wait.h>

size_t open_descriptors(void)
{
	size_t n = 0;
	cleanup_dir DIR *d = opendir("/proc/self/fd");
	for (struct dirent *e; (e = readdir(d));)
		n++;
	return n;
}

void machine_world_init(struct machine_world *m)
{
	struct error err = {0};
	*m = (struct machine_world){.before = BUF_INIT, .machines = {.boot_seconds = MACHINE_BOOT_SECONDS, .answer_seconds = MACHINE_ANSWER_SECONDS}};
	world_init(&m->w);
	world_set(&m->w, "isolation", "microvm");
	m->machines.kvm = open("/dev/null", O_RDWR | O_CLOEXEC);
	m->machines.kernel = open(m->w.template, O_RDONLY | O_CLOEXEC);
	m->machines.initramfs = open(m->w.template, O_RDONLY | O_CLOEXEC);
	assert_non_null(getenv("CUBICLE_FAKE_MONITOR"));
	m->machines.program = program_copy(getenv("CUBICLE_FAKE_MONITOR"), "fake-monitor", &err);
	if (m->machines.program < 0)
		fail_msg("%s", err.message);
	m->w.machines = &m->machines;
	inventory(&m->w, &m->before);
	m->fds = open_descriptors();
}

void machine_world_begin(struct machine_world *m)
{
	machine_world_init(m);
	world_start(&m->w);
	world_ready(&m->w);
}

/* What a backend of before has made and one of after has swept is still our child. */
static void reap(struct machine_world *m)
{
	cleanup_buf struct buf now = BUF_INIT;
	for (int i = 0; i < 100; i++) {
		while (waitpid(-1, NULL, WNOHANG) > 0)
			;
		buf_clear(&now);
		inventory(&m->w, &now);
		if (str_eq(buf_str(&now), buf_str(&m->before)))
			return;
		usleep(50000);
	}
}

void machine_world_end(struct machine_world *m)
{
	if (m->w.backend)
		world_stop(&m->w);
	reap(m);
	expect_inventory(&m->w, &m->before);
	assert_int_equal(open_descriptors(), m->fds);
	close(m->machines.kvm);
	close(m->machines.kernel);
	close(m->machines.initramfs);
	close(m->machines.program);
	buf_done(&m->before);
	world_done(&m->w);
}

void machine_create(struct machine_world *m, struct patient *p, const char *id)
{
	struct box_spec spec = world_spec(&m->w, id);
	patient_create(&m->w, p, &spec);
}

void machine_run(struct machine_world *m, struct patient *p, const char *id)
{
	patient_run(&m->w, p, id);
	assert_string_equal(box_isolation(p->box), "microvm");
}

int machine_console(struct patient *p)
{
	int fd = fcntl(p->box->slot->console, F_DUPFD_CLOEXEC, 3);
	assert_true(fd >= 0);
	return fd;
}

int said(int console, const char *line)
{
	char text[8192], wanted[80];
	int times = 0;
	ssize_t n = pread(console, text, sizeof(text) - 1, 0);
	assert_true(n >= 0);
	text[n] = '\0';
	snprintf(wanted, sizeof(wanted), "\n%s\r\n", line);
	for (const char *at = text; (at = strstr(at, wanted)); at++)
		times++;
	return times;
}

void wait_said(struct machine_world *m, int console, const char *line, int times)
{
	for (int i = 0; i < 1000 && said(console, line) < times; i++)
		turn(&m->w, 10);
	if (said(console, line) < times)
		fail_msg("it was not asked: %s", line);
}

bool is_frozen(struct patient *p)
{
	return cgroups_frozen(p->box->backend->host->cgroups, p->box->slot->name, CGROUP_WORK) == 1;
}

unsigned long monitor_pid(const struct patient *p)
{
	const char *at = strstr(p->handle.text, "pid=");
	assert_non_null(at);
	return strtoul(at + 4, NULL, 10);
}
