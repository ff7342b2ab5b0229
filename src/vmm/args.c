#include "vmm/args.h"
#include "base/cleanup.h"
#include "base/fd.h"
#include "vmm/kernel.h"

#include <stdio.h>
#include <sys/socket.h>
#include <sys/stat.h>

enum { MAX_DESCRIPTOR = 1023, UID_MIN = 1 };

/* Words that are one number each. */
struct number {
	const char *key;
	uint64_t min, max;
	uint64_t value;
	bool given;
};

enum { A_VCPUS, A_MEMORY, A_MTU, A_JAIL, NUMBERS };

struct parse {
	struct vmm_args *a;
	struct number number[NUMBERS];
	bool mac, command_line;
	uint64_t taken[MAX_DESCRIPTOR / 64 + 1]; /* no descriptor is two things */
};

static int wrong(struct error *err, struct str word, const char *why)
{
	return error_set(err, -EINVAL, 500, "argument '%.*s': %s", (int)MIN(word.n, (size_t)80), word.p, why);
}

static int take_descriptor(struct parse *p, struct str word, struct str value, int *ret, struct error *err)
{
	uint64_t n;
	if (*ret >= 0)
		return wrong(err, word, "given twice");
	if (str_to_u64(value, &n) < 0 || n < 3 || n > MAX_DESCRIPTOR)
		return wrong(err, word, "not a descriptor's number (3 to 1023)");
	if (p->taken[n / 64] >> (n % 64) & 1)
		return wrong(err, word, "that descriptor is something else already");
	p->taken[n / 64] |= UINT64_C(1) << (n % 64);
	*ret = (int)n;
	return 0;
}

static int take_name(struct vmm_args *a, struct str word, struct str value, struct error *err)
{
	if (a->name[0])
		return wrong(err, word, "given twice");
	if (!value.n || value.n > VMM_NAME_MAX)
		return wrong(err, word, "a name has 1 to 64 bytes");
	for (size_t i = 0; i < value.n; i++)
		if (value.p[i] <= ' ' || value.p[i] > '~')
			return wrong(err, word, "a name is of visible ASCII");
	memcpy(a->name, value.p, value.n);
	return 0;
}

static int take_mac(struct parse *p, struct str word, struct str value, struct error *err)
{
	unsigned char *mac = p->a->machine.net.mac;
	if (p->mac)
		return wrong(err, word, "given twice");
	unsigned at[6];
	int end = 0;
	char text[18] = "";
	if (value.n == sizeof(text) - 1)
		memcpy(text, value.p, value.n);
	if (sscanf(text, "%2x:%2x:%2x:%2x:%2x:%2x%n", &at[0], &at[1], &at[2], &at[3], &at[4], &at[5], &end) != 6 || end != sizeof(text) - 1)
		return wrong(err, word, "not an address like 02:00:00:00:00:01");
	for (size_t i = 0; i < 6; i++)
		mac[i] = (unsigned char)at[i];
	if (mac[0] & 1)
		return wrong(err, word, "that is a group's address");
	p->mac = true;
	return 0;
}

static int take_disk(struct parse *p, struct str word, struct str value, struct error *err)
{
	struct machine_config *m = &p->a->machine;
	if (m->n_disks == MACHINE_DISKS_MAX)
		return wrong(err, word, "too many disks");
	struct block_config *d = &m->disk[m->n_disks];
	*d = (struct block_config){.file = -1};
	struct str head = value, rest = {0};
	bool more = str_cut(value, ',', &head, &rest);
	int r = take_descriptor(p, word, head, &d->file, err);
	while (r == 0 && more) {
		struct str option = rest, key, number;
		more = str_cut(rest, ',', &option, &rest);
		bool pair = str_cut(option, '=', &key, &number);
		uint64_t *to = pair && str_is(key, "bps") ? &d->bytes_per_second : pair && str_is(key, "iops") ? &d->operations_per_second : NULL;
		if (str_is(option, "ro"))
			d->read_only = true;
		else if (!to || str_to_u64(number, to) < 0)
			r = wrong(err, word, "a disk's options are ro, bps=N and iops=N");
	}
	m->n_disks++;
	return r;
}

static int take_word(struct parse *p, struct str word, struct error *err)
{
	struct vmm_args *a = p->a;
	const struct {
		const char *key;
		int *to;
	} descriptors[] = {{"kvm", &a->machine.kvm}, {"kernel", &a->kernel}, {"initramfs", &a->initramfs}, {"console", &a->machine.console}, {"admin", &a->admin},
		{"control", &a->machine.control}, {"tap", &a->machine.net.tap}, {"state", &a->state}, {"memfile", &a->memfile}};
	struct str key, value;
	if (!str_cut(word, '=', &key, &value))
		return wrong(err, word, "not of the form key=value");
	for (size_t i = 0; i < ARRAY_SIZE(descriptors); i++)
		if (str_is(key, descriptors[i].key))
			return take_descriptor(p, word, value, descriptors[i].to, err);
	for (size_t i = 0; i < NUMBERS; i++) {
		struct number *n = &p->number[i];
		if (!str_is(key, n->key))
			continue;
		if (n->given)
			return wrong(err, word, "given twice");
		if (str_to_u64(value, &n->value) < 0 || n->value < n->min || n->value > n->max)
			return error_set(err, -EINVAL, 500, "argument '%.*s': not a number from %llu to %llu", (int)MIN(word.n, (size_t)80), word.p, (unsigned long long)n->min,
				(unsigned long long)n->max);
		n->given = true;
		return 0;
	}
	if (str_is(key, "name"))
		return take_name(a, word, value, err);
	if (str_is(key, "mac"))
		return take_mac(p, word, value, err);
	if (str_is(key, "disk"))
		return take_disk(p, word, value, err);
	if (!str_is(key, "cmdline"))
		return wrong(err, word, "unknown");
	if (p->command_line)
		return wrong(err, word, "given twice");
	if (value.n > KERNEL_COMMAND_LINE_MAX)
		return wrong(err, word, "too long");
	p->command_line = true;
	a->command_line = value;
	return 0;
}

static int incomplete(struct error *err, const char *what)
{
	return error_set(err, -EINVAL, 500, "arguments: %s", what);
}

static int check_whole(struct parse *p, struct error *err)
{
	const struct vmm_args *a = p->a;
	bool restore = a->state >= 0 || a->memfile >= 0;
	if (!a->name[0] || !p->number[A_VCPUS].given || !p->number[A_MEMORY].given || a->machine.kvm < 0 || a->admin < 0)
		return incomplete(err, "name, vcpus, memory, kvm and admin are needed");
	if (p->number[A_MEMORY].value % 2)
		return incomplete(err, "memory is a multiple of 2 (MiB)");
	if (restore && (a->state < 0 || a->memfile < 0))
		return incomplete(err, "state and memfile go together");
	if (restore && (a->kernel >= 0 || a->initramfs >= 0 || p->command_line))
		return incomplete(err, "a restored guest has its kernel already: no kernel, initramfs or cmdline with state");
	if (!restore && a->kernel < 0)
		return incomplete(err, "kernel is needed, or state and memfile");
	if ((a->machine.net.tap >= 0) != p->mac)
		return incomplete(err, "tap and mac go together");
	if (p->number[A_MTU].given && a->machine.net.tap < 0)
		return incomplete(err, "mtu without tap");
	return 0;
}

int args_parse(int argc, char **argv, struct vmm_args *ret, struct error *err)
{
	*ret = (struct vmm_args){.machine = {.kvm = -1, .memory_file = -1, .console = -1, .control = -1, .net.tap = -1}, .kernel = -1, .initramfs = -1, .state = -1, .memfile = -1, .admin = -1};
	struct parse p = {.a = ret,
		.number = {
			[A_VCPUS] = {"vcpus", 1, MACHINE_VCPUS_MAX, 0, false},
			[A_MEMORY] = {"memory", KERNEL_MEMORY_MIN >> 20, MACHINE_MEMORY_MAX_MB, 0, false},
			[A_MTU] = {"mtu", 576, 65535, 1500, false},
			[A_JAIL] = {"jail", UID_MIN, UINT32_MAX - 1, 0, false},
		}};
	int r = 0;
	for (int i = 1; r == 0 && i < argc; i++)
		r = take_word(&p, str_of(argv[i]), err);
	if (r < 0 || (r = check_whole(&p, err)) < 0)
		return r;
	ret->machine.vcpus = (unsigned)p.number[A_VCPUS].value;
	ret->machine.memory = p.number[A_MEMORY].value << 20;
	ret->machine.memory_file = ret->memfile;
	ret->machine.net.mtu = (uint16_t)p.number[A_MTU].value;
	ret->jail = p.number[A_JAIL].given;
	ret->uid = (uint32_t)p.number[A_JAIL].value;
	return 0;
}

/* Descriptors. */

enum kind { ANY = 0, REGULAR = 1, BLOCK = 2, CHARACTER = 4, LISTENING = 8, TAP = 16 /* with CHARACTER */ };

static bool is_listening(int fd)
{
	int on = 0, type = 0;
	socklen_t n = sizeof(on), m = sizeof(type);
	return getsockopt(fd, SOL_SOCKET, SO_ACCEPTCONN, &on, &n) == 0 && on && getsockopt(fd, SOL_SOCKET, SO_TYPE, &type, &m) == 0 && type == SOCK_SEQPACKET;
}

static int check(const char *name, int fd, unsigned kinds, struct error *err)
{
	struct stat st;
	if (fd < 0)
		return 0;
	if (fstat(fd, &st) < 0)
		return error_errno(err, -EINVAL, "argument '%s=%d': %s", name, fd, strerror(errno));
	unsigned is = S_ISREG(st.st_mode) ? REGULAR : S_ISBLK(st.st_mode) ? BLOCK : S_ISCHR(st.st_mode) ? CHARACTER : S_ISSOCK(st.st_mode) && is_listening(fd) ? LISTENING : 0;
	if (kinds != ANY && !(kinds & is))
		return error_set(err, -EINVAL, 500, "argument '%s=%d': that descriptor is of the wrong kind", name, fd);
	int r = fd_set_cloexec(fd, true);
	if (r == 0 && (kinds & (LISTENING | TAP)))
		r = fd_set_nonblock(fd, true);
	return r < 0 ? error_errno(err, r, "argument '%s=%d'", name, fd) : 0;
}

int args_check_descriptors(const struct vmm_args *a, struct error *err)
{
	const struct machine_config *m = &a->machine;
	const struct {
		const char *name;
		int fd;
		unsigned kinds;
	} all[] = {{"kvm", m->kvm, CHARACTER}, {"kernel", a->kernel, REGULAR}, {"initramfs", a->initramfs, REGULAR}, {"state", a->state, REGULAR}, {"memfile", a->memfile, REGULAR},
		{"console", m->console, ANY}, {"tap", m->net.tap, CHARACTER | TAP}, {"admin", a->admin, LISTENING}, {"control", m->control, LISTENING}};
	int r = 0;
	for (size_t i = 0; r == 0 && i < ARRAY_SIZE(all); i++)
		r = check(all[i].name, all[i].fd, all[i].kinds, err);
	for (size_t i = 0; r == 0 && i < m->n_disks; i++)
		r = check("disk", m->disk[i].file, REGULAR | BLOCK, err);
	return r;
}
