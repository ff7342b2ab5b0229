#include "cli/doctor.h"
#include "base/cleanup.h"
#include "base/fd.h"
#include "base/random.h"
#include "cli/commands.h"
#include "cli/output.h"

#include <fcntl.h>
#include <poll.h>
#include <sched.h>
#include <signal.h>
#include <stdio.h>
#include <string.h>
#include <sys/mount.h>
#include <sys/stat.h>
#include <sys/wait.h>

enum { CHECK_PATIENCE_MS = 30000 };

#define NO_MACHINES "no microVMs: sandboxes run in namespaces, sharing this machine's kernel"

const struct doctor_check doctor_checks[] = {
	{"root", NEED_ALWAYS, NULL, "run this and `cubicle serve` as root", doctor_try_root},
	{"kernel", NEED_ALWAYS, NULL, "use Linux 6.1 or later (Debian 12 has it)", doctor_try_kernel},
	{"user, pid, mount, uts, ipc, cgroup namespaces", NEED_ALWAYS, NULL,
		"allow them: sysctl user.max_user_namespaces, kernel.unprivileged_userns_clone; in a container, run it privileged", doctor_try_namespaces},
	{"network namespaces", NEED_ALWAYS, NULL, "allow them: sysctl user.max_net_namespaces", doctor_try_network_namespace},
	{"pidfd", NEED_ALWAYS, NULL, "use Linux 6.1 or later", doctor_try_pidfd},
	{"openat2", NEED_ALWAYS, NULL, "use Linux 6.1 or later", doctor_try_openat2},
	{"seccomp filters", NEED_ALWAYS, NULL, "use a kernel with CONFIG_SECCOMP_FILTER", doctor_try_seccomp},
	{"cgroups: limits and freezer", NEED_ALWAYS, NULL, "mount cgroup v2 (or the v1 controllers) and let this process make groups: Delegate=yes under systemd",
		doctor_try_cgroups},
	{"cgroup.kill", NEED_BETTER, "killing a sandbox walks its list of processes", "mount a cgroup v2 tree, also beside v1", doctor_try_cgroup_kill},
	{"clone3 into a cgroup", NEED_BETTER, "preparing a slot takes 5 to 12 ms longer; creates from the pool do not notice", "use pure cgroup v2",
		doctor_try_clone_into_cgroup},
	{"veth links", NEED_ALWAYS, NULL, "load the module veth", doctor_try_veth},
	{"nftables", NEED_ALWAYS, NULL, "install nftables and load the module nf_tables", doctor_try_nft},
	{"loop devices with direct I/O", NEED_ALWAYS, NULL, "load the module loop; in a container, give it /dev/loop-control", doctor_try_loop},
	{"ext4 image, idmapped", NEED_ALWAYS, NULL, "load the module ext4", doctor_try_ext4},
	{"EROFS image, idmapped", NEED_ALWAYS, NULL, "load the module erofs", doctor_try_erofs_loop},
	{"EROFS straight from a file", NEED_BETTER, "each template layer takes a loop device", "use Linux 6.12 or later", doctor_try_erofs_file},
	{"tmpfs, idmapped", NEED_BETTER, "no small throw-away sandboxes in memory", "use Linux 6.3 or later", doctor_try_tmpfs},
	{"overlay over idmapped layers", NEED_ALWAYS, NULL, "load the module overlay", doctor_try_overlay},
	{"reflink", NEED_BETTER, "pause and snapshot of a disk with 1 GB written take 2 to 4 s instead of 50 ms",
		"put state.dir on XFS made with reflink=1 (docs/operations.md)", doctor_try_reflink},
	{"disk space", NEED_ALWAYS, NULL, "free some space, or set state.dir to a bigger file system", doctor_try_space},
	{"programs", NEED_ALWAYS, NULL, "scripts/deps run, or install the packages named", doctor_try_programs},
	{"programs for templates", NEED_BETTER, "no template can be made on this machine", "scripts/deps run, or install the packages named", doctor_try_template_programs},
	{"system users", NEED_ALWAYS, NULL, "useradd --system --no-create-home --shell /usr/sbin/nologin NAME", doctor_try_users},
	{"uid range", NEED_ALWAYS, NULL, "set uid_base to a range that nobody uses", doctor_try_ids},
	{"limits", NEED_BETTER, "fewer sandboxes fit", "raise them: LimitNOFILE= in the unit, sysctl kernel.pid_max", doctor_try_limits},
	{"limits shared by sandboxes", NEED_BETTER, "one sandbox runs out of watches, or takes what others need", "let the server write /proc/sys, or set them by sysctl.d",
		doctor_try_shared_limits},
	{"route to the internet", NEED_BETTER, "sandboxes reach nothing outside", "give this machine a default route", doctor_try_route},
	{"TLS certificate", NEED_BETTER, "clients refuse the server at the addresses that they make of the domain", "cubicle cert make; or set domain, tls.cert and tls.key",
		doctor_try_certificate},
	{"names of the domain", NEED_BETTER, "clients on this machine do not find sandboxes by name", "give *.DOMAIN an address (docs/operations.md, \"Names\")", doctor_try_names},
	{"template", NEED_BETTER, "there is nothing to make a sandbox from", "cubicle template make-default", doctor_try_template},
	{"microVMs: KVM", NEED_MACHINES, NO_MACHINES, "use a machine with hardware virtualisation, or turn it on (nested, in a virtual machine), and load kvm_intel or kvm_amd", doctor_try_kvm},
	{"microVMs: guest kernel", NEED_MACHINES, NO_MACHINES, "apt-get install linux-image-cloud-amd64, or name a kernel by the option guest.kernel", doctor_try_guest_kernel},
	{"microVMs: monitor", NEED_MACHINES, NO_MACHINES, "make install puts cubicle-vmm into libexec/cubicle beside the program's directory", doctor_try_monitor},
	{"microVMs: tap links", NEED_MACHINES, NO_MACHINES, "load the module tun; in a container, give it /dev/net/tun", doctor_try_tap},
};

const size_t doctor_n_checks = ARRAY_SIZE(doctor_checks);

/* What a child reports, written with one write(2). */
struct report {
	int code;
	char text[sizeof(((struct error *)0)->message)];
};

static void run_child(const struct doctor_check *check, struct doctor *d, int to)
{
	struct report report = {0};
	struct error err = {0};
	/* Without root the check itself says what it misses. */
	if (unshare(CLONE_NEWNS) == 0)
		mount(NULL, "/", NULL, MS_REC | MS_PRIVATE, NULL);
	report.code = check->try(d, &err);
	snprintf(report.text, sizeof(report.text), "%s", report.code < 0 ? err.message : d->note);
	if (report.code < 0 && !*report.text)
		snprintf(report.text, sizeof(report.text), "%s", strerror(-report.code));
	ssize_t ignored = write(to, &report, sizeof(report));
	(void)ignored;
	_exit(0);
}

static void run_check(const struct doctor_check *check, struct doctor *d, struct report *ret)
{
	int pipes[2];
	*ret = (struct report){.code = -EIO, .text = "the check died"};
	if (pipe2(pipes, O_CLOEXEC) < 0)
		return;
	cleanup_fd int from = pipes[0], to = pipes[1];
	fflush(NULL);
	pid_t pid = fork();
	if (pid == 0) {
		setpgid(0, 0);
		run_child(check, d, to);
	}
	close(steal_fd(&to));
	if (pid < 0)
		return;
	struct pollfd p = {.fd = from, .events = POLLIN};
	struct report got;
	if (poll(&p, 1, CHECK_PATIENCE_MS) == 0)
		*ret = (struct report){.code = -ETIMEDOUT, .text = "no answer within 30 s"};
	else if (read(from, &got, sizeof(got)) == (ssize_t)sizeof(got))
		*ret = got;
	kill(-pid, SIGKILL);
	waitpid(pid, NULL, 0);
}

/* A directory where the disks would be: the state directory, or the nearest parent there is. */
static int make_work(struct doctor *d, struct error *err)
{
	char parent[200], random[9];
	snprintf(parent, sizeof(parent), "%s", d->options->state_dir);
	while (strlen(parent) > 1 && access(parent, F_OK) < 0) {
		char *slash = strrchr(parent, '/');
		slash[slash == parent] = 0;
	}
	random_text(random, 8, "abcdefghijklmnopqrstuvwxyz");
	snprintf(d->work, sizeof(d->work), "%s/.doctor-%s", strcmp(parent, "/") ? parent : "", random);
	if (mkdir(d->work, 0711) < 0)
		return error_errno(err, -errno, "scratch directory %s", d->work);
	return 0;
}

static bool is_required(const struct doctor_check *check, const struct doctor *d)
{
	return check->need == NEED_ALWAYS || (check->need == NEED_MACHINES && strcmp(d->options->isolation, "microvm") == 0);
}

static void print_check(const struct doctor_check *check, bool required, const struct report *r)
{
	bool color = isatty(1);
	const char *word = r->code >= 0 ? "OK" : required ? "FAILED" : "missing";
	const char *paint = !color ? "" : r->code >= 0 ? "\033[32m" : required ? "\033[31m" : "\033[33m";
	printf("%s%-8s%s %s%s%s\n", paint, word, color ? "\033[0m" : "", check->name, *r->text ? ": " : "", r->text);
	if (r->code >= 0)
		return;
	printf("         cost: %s\n         do:   %s\n", required ? "sandboxes do not run" : check->cost, check->remedy);
}

static json_t *check_json(const struct doctor_check *check, bool required, const struct report *r)
{
	json_t *j = json_pack("{s:s,s:b,s:b,s:s}", "name", check->name, "ok", r->code >= 0, "required", required, "detail", r->text);
	if (r->code < 0) {
		json_object_set_new(j, "cost", json_string(required ? "sandboxes do not run" : check->cost));
		json_object_set_new(j, "remedy", json_string(check->remedy));
	}
	return j;
}

int cmd_doctor(struct cli *c)
{
	struct doctor d = {.options = &c->options};
	struct error err = {0};
	json_t *all = json_array();
	int failed = 0, missing = 0;
	if (make_work(&d, &err) < 0) {
		json_decref(all);
		return cli_fail(c, &err);
	}
	for (size_t i = 0; i < doctor_n_checks; i++) {
		struct report r;
		d.note[0] = 0;
		run_check(&doctor_checks[i], &d, &r);
		bool required = is_required(&doctor_checks[i], &d);
		failed += r.code < 0 && required;
		missing += r.code < 0 && !required;
		if (c->json)
			json_array_append_new(all, check_json(&doctor_checks[i], required, &r));
		else
			print_check(&doctor_checks[i], required, &r);
		fflush(stdout);
		if (i == 0 && r.code < 0)
			break; /* without root the others would only say so again */
	}
	remove_tree(AT_FDCWD, d.work);
	if (c->json)
		print_json(all);
	else if (failed)
		printf("\nSandboxes do not run like this: %d of %zu checks failed.\n", failed, doctor_n_checks);
	else
		printf("\nSandboxes run on this machine%s.\n", missing ? "; what is missing costs what is said above" : "");
	json_decref(all);
	return failed ? EXIT_FAILED : EXIT_OK;
}
