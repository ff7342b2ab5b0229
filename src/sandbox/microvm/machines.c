#include "sandbox/microvm/machines.h"
#include "sandbox/microvm/guest_kernel.h"
#include "sandbox/microvm/initramfs.h"
#include "base/cleanup.h"
#include "base/log.h"
#include "sys/program.h"
#include "vmm/probe.h"

#include <errno.h>
#include <fcntl.h>
#include <stdio.h>

enum { BOOT_SECONDS = 50, ANSWER_SECONDS = 20 };

void machines_free(struct machines *m)
{
	if (!m)
		return;
	int *const fds[] = {&m->kvm, &m->kernel, &m->initramfs, &m->program};
	for (size_t i = 0; i < ARRAY_SIZE(fds); i++)
		if (*fds[i] >= 0)
			close(*fds[i]);
	free(m);
}

/* The cheapest first: most machines fail at one of these. */
static int find_all(const struct backend_config *c, struct machines *m, struct guest_kernel *k, struct error *err)
{
	char reason[VMM_PROBE_REASON];
	const char *wanted = c->options->guest_kernel;
	if (!c->monitor_path || !c->monitor_path[0])
		return error_set(err, -ENOENT, 500, "cubicle-vmm is not installed");
	m->kvm = open("/dev/kvm", O_RDWR | O_CLOEXEC);
	if (m->kvm < 0)
		return error_errno(err, -errno, "/dev/kvm");
	int r = guest_kernel_find(wanted[0] ? wanted : NULL, "", k, err);
	if (r < 0)
		return r;
	if (vmm_probe(m->kvm, reason) != VMM_PROBE_HARDWARE)
		return error_set(err, -ENODEV, 500, "%s", reason);
	m->kernel = open(k->image, O_RDONLY | O_CLOEXEC);
	if (m->kernel < 0)
		return error_errno(err, -errno, "%s", k->image);
	const struct initramfs_config files = {.modules = k->modules, .init = c->init_path};
	m->initramfs = initramfs_make(&files, err);
	if (m->initramfs < 0)
		return m->initramfs;
	m->program = program_copy(c->monitor_path, "cubicle-vmm", err);
	return MIN(m->program, 0);
}

static int copy_all(const struct machines *from, struct machines *m, struct error *err)
{
	const int fds[] = {from->kvm, from->kernel, from->initramfs, from->program};
	int *const to[] = {&m->kvm, &m->kernel, &m->initramfs, &m->program};
	memcpy(m->why, from->why, sizeof(m->why));
	m->boot_seconds = from->boot_seconds;
	m->answer_seconds = from->answer_seconds;
	for (size_t i = 0; i < ARRAY_SIZE(fds) && !m->why[0]; i++) {
		*to[i] = fcntl(fds[i], F_DUPFD_CLOEXEC, 3);
		if (*to[i] < 0)
			return error_errno(err, -errno, "microVMs");
	}
	return m->why[0] ? error_set(err, -ENODEV, 500, "%s", m->why) : 0;
}

int machines_new(const struct backend_config *c, struct machines **ret, struct error *err)
{
	struct error why = {0};
	struct guest_kernel k = {0};
	struct machines *m = malloc(sizeof(*m));
	if (!m)
		return error_errno(err, -ENOMEM, "microVMs");
	*m = (struct machines){.kvm = -1, .kernel = -1, .initramfs = -1, .program = -1, .boot_seconds = BOOT_SECONDS, .answer_seconds = ANSWER_SECONDS};
	int r = c->machines ? copy_all(c->machines, m, &why) : find_all(c, m, &k, &why);
	if (r == 0)
		log_info("microVMs: kernel %s", k.version ? k.version : "of a test");
	else
		snprintf(m->why, sizeof(m->why), "%s", why.message);
	if (r < 0 && !str_is(str_of(c->options->isolation), "namespace"))
		log_warn("no microVMs: %s", m->why);
	guest_kernel_done(&k);
	if (r < 0 && str_is(str_of(c->options->isolation), "microvm")) {
		machines_free(m);
		return error_set(err, r, 500, "isolation is microvm, but there can be none: %s", why.message);
	}
	*ret = m;
	return 0;
}
