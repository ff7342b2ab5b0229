/*
 * Times the microVM monitor's machinery with a guest of a few instructions (tests/unit/vmm_mini.h), beside the least that does the same with the kernel's interface alone, in turns. The guest is in ring 3:
 * a paravirtual KVM interprets only what is in ring 0. Prints one JSON object.
 *
 *   vmm measure ROUNDS         no rows on a machine without a KVM, or where one is emulated: times of those say nothing
 *   vmm files STATE MEMORY GO  saves a machine that waits; restored it does what GO says (enum mini_go)
 */
#include "base/clock.h"
#include "base/fd.h"
#include "unit/vmm_mini.h"
#include "vmm/layout.h"
#include "vmm/machine.h"
#include "vmm/probe.h"
#include "vmm/state.h"

#include <cpuid.h>
#include <fcntl.h>
#include <pthread.h>
#include <stdio.h>
#include <string.h>
#include <sys/eventfd.h>
#include <sys/ioctl.h>
#include <sys/mman.h>
#include <sys/stat.h>

enum {
	MEMORY = 64 << 20,       /* the smallest that the monitor takes */
	WINDOW_MS = 50,          /* for which accesses are counted */
	PORT_OF_NOBODY = 0x520,
	PORT_OF_PIC = 0x21,      /* KVM's own */
	STATUS = 0x60,           /* InterruptStatus: virtio_mmio_quick() */
	BELL = LAYOUT_DEVICES_MAX * LAYOUT_MMIO_STEP, /* behind the devices: ours */
	SAMPLES_MAX = 10000,
};

static int kvm_fd, disk;

static void check(bool fine, const char *what, const struct error *err)
{
	if (fine)
		return;
	fprintf(stderr, "bench-vmm: %s: %s\n", what, err ? err->message : strerror(errno));
	exit(1);
}

/* The least: a virtual machine, one processor, one piece of memory. */

struct bare {
	struct kvm kvm;
	struct guest_memory memory;
	int vcpu;
	struct kvm_run *run;
};

static void bare_make(struct bare *b, enum mini_program p)
{
	struct error err = {0};
	*b = (struct bare){.kvm = {.system = kvm_fd, .vm = kvm_ioctl(kvm_fd, KVM_CREATE_VM, NULL), .run_size = (size_t)kvm_ioctl(kvm_fd, KVM_GET_VCPU_MMAP_SIZE, NULL)}};
	check(b->kvm.vm >= 0, "KVM_CREATE_VM", NULL);
	check(memory_map(&b->memory, MEMORY, -1, 0, &err) == 0 && kvm_set_memory(&b->kvm, &b->memory, false, &err) == 0, "memory", &err);
	b->vcpu = kvm_ioctl(b->kvm.vm, KVM_CREATE_VCPU, NULL);
	check(b->vcpu >= 0, "KVM_CREATE_VCPU", NULL);
	b->run = mmap(NULL, b->kvm.run_size, PROT_READ | PROT_WRITE, MAP_SHARED, b->vcpu, 0);
	check(b->run != MAP_FAILED, "KVM_CREATE_VCPU", NULL);
	check(mini_set(&b->kvm, b->vcpu, &b->memory, p, 3) == 0, "registers", NULL);
}

static void bare_unmake(struct bare *b)
{
	munmap(b->run, b->kvm.run_size);
	close(b->vcpu);
	close(b->kvm.vm);
	memory_unmap(&b->memory);
}

/* To the next access. */
static void bare_run(struct bare *b)
{
	check(ioctl(b->vcpu, KVM_RUN, 0) == 0, "KVM_RUN", NULL);
	struct kvm_run *run = b->run;
	if (run->exit_reason == KVM_EXIT_IO)
		memset((char *)run + run->io.data_offset, 0xff, (size_t)run->io.size * run->io.count);
	else if (run->exit_reason == KVM_EXIT_MMIO)
		memset(run->mmio.data, 0, sizeof(run->mmio.data));
	else {
		fprintf(stderr, "bench-vmm: KVM left the guest for the reason %u\n", run->exit_reason);
		exit(1);
	}
}

/* Ours. */

struct whole {
	struct loop *loop;
	struct machine *machine;
	bool over;
};

static void on_ended(void *arg, enum vcpu_end why, bool panicked, const char *what)
{
	struct whole *w = arg;
	w->over = true;
	if (why != VCPU_OFF) {
		fprintf(stderr, "bench-vmm: the guest ended: %s\n", what);
		exit(1);
	}
}

static void make(struct whole *w, int memory_file)
{
	struct error err = {0};
	*w = (struct whole){.loop = loop_new()};
	struct machine_config c = {.vcpus = 1, .memory = MEMORY, .kvm = kvm_fd, .memory_file = memory_file, .console = -1, .control = -1, .net.tap = -1, .disk = {{.file = dup(disk)}}, .n_disks = 1,
		.ended = on_ended, .arg = w};
	check(w->loop && (w->machine = machine_new(w->loop, &c, &err)), "machine", &err);
}

static void unmake(struct whole *w)
{
	machine_free(w->machine);
	loop_free(w->loop);
}

static struct mini_data *begin(struct whole *w, enum mini_program p)
{
	make(w, -1);
	check(mini_set(&w->machine->kvm, vcpus_fd(w->machine->vcpus, 0), &w->machine->memory, p, 3) == 0, "registers", NULL);
	return mini_data(&w->machine->memory);
}

static void go(struct whole *w)
{
	struct error err = {0};
	check(machine_start(w->machine, &err) == 0, "start", &err);
	machine_resume(w->machine);
}

static uint64_t counted(const struct mini_data *d)
{
	return __atomic_load_n(&d->counter, __ATOMIC_SEQ_CST);
}

static void turn_until(struct loop *l, int64_t end)
{
	for (int64_t left; (left = end - clock_monotonic()) > 0;)
		loop_turn(l, (int)(left / NS_PER_MS) + 1);
}

/* Time of one of what the running guest counts, ns. */
static double per_count(struct whole *w, const struct mini_data *d)
{
	while (counted(d) < 100)
		loop_turn(w->loop, 1);
	uint64_t before = counted(d);
	int64_t start = clock_monotonic();
	turn_until(w->loop, start + WINDOW_MS * NS_PER_MS);
	uint64_t n = counted(d) - before;
	return (double)(clock_monotonic() - start) / (double)n;
}

/* What is measured: each one sample, in ns. */

static int state_file, memory_file;

static double create_bare(void)
{
	struct bare b;
	int64_t start = clock_monotonic();
	bare_make(&b, MINI_WAITS);
	mini_data(&b.memory)->go = MINI_GO_OFF;
	bare_run(&b);
	int64_t end = clock_monotonic();
	bare_unmake(&b);
	return (double)(end - start);
}

static double until_off(struct whole *w, int64_t start)
{
	while (!w->over)
		loop_turn(w->loop, 1000);
	int64_t end = clock_monotonic();
	unmake(w);
	return (double)(end - start);
}

static double create_ours(void)
{
	struct whole w;
	int64_t start = clock_monotonic();
	begin(&w, MINI_WAITS)->go = MINI_GO_OFF;
	go(&w);
	return until_off(&w, start);
}

static double restore_ours(void)
{
	struct whole w;
	struct error err = {0};
	int64_t start = clock_monotonic();
	make(&w, memory_file);
	check(state_restore(w.machine, state_file, memory_file, &err) == 0, "restore", &err);
	go(&w);
	return until_off(&w, start);
}

static struct whole to_save;

static double save_ours(void)
{
	struct error err = {0};
	int state = memfd_create("state", MFD_CLOEXEC), memory = memfd_create("memory", MFD_CLOEXEC);
	int64_t start = clock_monotonic();
	check(state_save(to_save.machine, state, memory, &err) == 0, "save", &err);
	int64_t end = clock_monotonic();
	close(state);
	close(memory);
	return (double)(end - start);
}

/* As many bytes as a save writes, into a file. */
static double save_bare(void)
{
	static char bytes[1 << 20];
	struct stat s, m;
	check(fstat(state_file, &s) == 0 && fstat(memory_file, &m) == 0, "files", NULL);
	size_t n = MIN((size_t)(s.st_size + m.st_blocks * 512), sizeof(bytes));
	int file = memfd_create("file", MFD_CLOEXEC);
	int64_t start = clock_monotonic();
	check(fd_write_all(file, bytes, n) == 0, "writing", NULL);
	int64_t end = clock_monotonic();
	close(file);
	return (double)(end - start);
}

static double accesses_bare(enum mini_program p, uint64_t address)
{
	struct bare b;
	bare_make(&b, p);
	mini_data(&b.memory)->address = address;
	for (int i = 0; i < 100; i++)
		bare_run(&b);
	int64_t start = clock_monotonic(), now;
	unsigned n = 0;
	do {
		for (int i = 0; i < 100; i++, n++)
			bare_run(&b);
		now = clock_monotonic();
	} while (now - start < WINDOW_MS * NS_PER_MS);
	bare_unmake(&b);
	return (double)(now - start) / n;
}

static double accesses_ours(enum mini_program p, uint64_t address)
{
	struct whole w;
	struct mini_data *d = begin(&w, p);
	d->address = address;
	go(&w);
	double ns = per_count(&w, d);
	unmake(&w);
	return ns;
}

static double port_bare(void)
{
	return accesses_bare(MINI_INPUTS, PORT_OF_NOBODY);
}

static double port_ours(void)
{
	return accesses_ours(MINI_INPUTS, PORT_OF_NOBODY);
}

static double port_kernel(void)
{
	return accesses_ours(MINI_INPUTS, PORT_OF_PIC);
}

static double memory_bare(void)
{
	return accesses_bare(MINI_READS, LAYOUT_MMIO);
}

static double memory_quick(void)
{
	return accesses_ours(MINI_READS, LAYOUT_MMIO + STATUS);
}

static double memory_loop(void)
{
	return accesses_ours(MINI_READS, LAYOUT_MMIO);
}

struct bell {
	int fd;
	struct mini_data *d;
};

static void on_bell(struct loop_fd *f, uint32_t events, void *arg)
{
	struct bell *b = arg;
	uint64_t n;
	if (read(b->fd, &n, sizeof(n)) == sizeof(n) && b->d->answered != UINT64_MAX)
		__atomic_store_n(&b->d->answered, counted(b->d), __ATOMIC_SEQ_CST);
}

static double rings(uint64_t answered)
{
	struct whole w;
	struct error err = {0};
	struct bell b = {.fd = eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK), .d = begin(&w, MINI_RINGS)};
	b.d->address = LAYOUT_MMIO + BELL;
	b.d->answered = answered;
	check(kvm_doorbell(&w.machine->kvm, b.d->address, b.fd, &err) == 0, "doorbell", &err);
	struct loop_fd *f = loop_fd_add(w.loop, b.fd, EPOLLIN, on_bell, &b);
	check(f, "doorbell", NULL);
	go(&w);
	double ns = per_count(&w, b.d);
	loop_fd_del(f);
	unmake(&w);
	close(b.fd);
	return ns;
}

static double ring_only(void)
{
	return rings(UINT64_MAX);
}

static double ring_and_wait(void)
{
	return rings(0);
}

/* A thread in the guest's place, one that sleeps in read() in the loop's. */
struct pair {
	int fd;
	bool over;
	struct mini_data d;
};

static void *answer(void *arg)
{
	struct pair *p = arg;
	uint64_t n;
	while (!__atomic_load_n(&p->over, __ATOMIC_SEQ_CST) && read(p->fd, &n, sizeof(n)) == sizeof(n))
		__atomic_store_n(&p->d.answered, counted(&p->d), __ATOMIC_SEQ_CST);
	return NULL;
}

static double eventfd_and_wait(void)
{
	struct pair p = {.fd = eventfd(0, EFD_CLOEXEC)};
	pthread_t thread;
	const uint64_t one = 1;
	check(pthread_create(&thread, NULL, answer, &p) == 0, "thread", NULL);
	int64_t start = clock_monotonic();
	while (clock_monotonic() - start < WINDOW_MS * NS_PER_MS) {
		uint64_t n = __atomic_add_fetch(&p.d.counter, 1, __ATOMIC_SEQ_CST);
		check(write(p.fd, &one, sizeof(one)) == sizeof(one), "eventfd", NULL);
		while (__atomic_load_n(&p.d.answered, __ATOMIC_SEQ_CST) < n)
			__builtin_ia32_pause();
	}
	double ns = (double)(clock_monotonic() - start) / (double)p.d.counter;
	__atomic_store_n(&p.over, true, __ATOMIC_SEQ_CST);
	check(write(p.fd, &one, sizeof(one)) == sizeof(one), "eventfd", NULL);
	pthread_join(thread, NULL);
	close(p.fd);
	return ns;
}

static struct row {
	const char *name, *peer;
	unsigned samples; /* a round */
	double (*ours)(void), (*bare)(void);
	double ns[2][SAMPLES_MAX];
	size_t n;
} rows[] = {
	{"create of a machine to its first exit", "a bare VM, one vCPU, one slot", 10, create_ours, create_bare},
	{"restore of a machine (MAP_PRIVATE) to its first exit", "create of the bare one", 10, restore_ours, create_bare},
	{"save of a paused machine into memory files", "writing as many bytes", 10, save_ours, save_bare},
	{"port that KVM itself answers (PIC)", "exit for a port, bare loop", 1, port_kernel, port_bare},
	{"port that the monitor answers", "exit for a port, bare loop", 1, port_ours, port_bare},
	{"device register, answered in the vCPU's thread", "exit for memory, bare loop", 1, memory_quick, memory_bare},
	{"device register, answered by the loop", "exit for memory, bare loop", 1, memory_loop, memory_bare},
	{"notification by ioeventfd, the guest goes on", "exit for memory, bare loop", 1, ring_only, memory_bare},
	{"notification by ioeventfd to the loop and its answer", "an eventfd between two threads", 1, ring_and_wait, eventfd_and_wait},
};

/* A saved machine that waits, told to do something. */
static void make_files(int state, int memory, uint32_t what)
{
	struct whole w;
	struct error err = {0};
	const struct mini_data *d = begin(&w, MINI_WAITS);
	go(&w);
	while (counted(d) < 1000)
		loop_turn(w.loop, 1);
	machine_pause(w.machine);
	check(state_save(w.machine, state, memory, &err) == 0, "save", &err);
	check(pwrite(memory, &what, sizeof(what), MINI_DATA + offsetof(struct mini_data, go)) == sizeof(what), "save", NULL);
	unmake(&w);
}

static void measure(unsigned rounds)
{
	state_file = memfd_create("state", MFD_CLOEXEC);
	memory_file = memfd_create("memory", MFD_CLOEXEC);
	make_files(state_file, memory_file, MINI_GO_OFF);
	const struct mini_data *d = begin(&to_save, MINI_WAITS);
	go(&to_save);
	while (counted(d) < 1000)
		loop_turn(to_save.loop, 1);
	machine_pause(to_save.machine);
	for (unsigned i = 0; i < rounds; i++)
		for (size_t j = 0; j < ARRAY_SIZE(rows); j++)
			for (unsigned k = 0; k < rows[j].samples && rows[j].n < SAMPLES_MAX; k++, rows[j].n++) {
				rows[j].ns[0][rows[j].n] = rows[j].ours();
				rows[j].ns[1][rows[j].n] = rows[j].bare();
			}
	unmake(&to_save);
}

static void print_samples(const char *name, const double *ns, size_t n)
{
	printf(",\"%s\":[", name);
	for (size_t i = 0; i < n; i++)
		printf(i ? ",%.0f" : "%.0f", ns[i]);
	printf("]");
}

/* Whose the processor is: a hypervisor's name, or nothing. */
static void hypervisor(char name[13])
{
	unsigned a, b, c, d;
	memset(name, 0, 13);
	if (!__get_cpuid(1, &a, &b, &c, &d) || !(c >> 31))
		return;
	__cpuid(0x40000000, a, b, c, d);
	memcpy(name, &b, 4);
	memcpy(name + 4, &c, 4);
	memcpy(name + 8, &d, 4);
}

static const char *find_kind(char reason[VMM_PROBE_REASON])
{
	static const char *const kinds[] = {[VMM_PROBE_NONE] = "none", [VMM_PROBE_INTERPRETED] = "interpreted", [VMM_PROBE_HARDWARE] = "hardware"};
	char name[13];
	hypervisor(name);
	if (strcmp(name, "TCGTCGTCGTCG") == 0) {
		snprintf(reason, VMM_PROBE_REASON, "this machine's processor itself is emulated (QEMU's TCG)");
		return "emulated";
	}
	kvm_fd = open("/dev/kvm", O_RDWR | O_CLOEXEC);
	if (kvm_fd < 0) {
		snprintf(reason, VMM_PROBE_REASON, "/dev/kvm: %s", strerror(errno));
		return "none";
	}
	return kinds[vmm_probe(kvm_fd, reason)];
}

static int print_all(const char *kind, const char *reason)
{
	printf("{\"kind\":\"%s\",\"reason\":\"%s\",\"rows\":[", kind, reason);
	for (size_t i = 0; i < ARRAY_SIZE(rows); i++) {
		const struct row *r = &rows[i];
		if (!r->n)
			continue;
		printf("%s{\"row\":\"%s\",\"peer\":\"%s\"", i ? "," : "", r->name, r->peer);
		print_samples("ns", r->ns[0], r->n);
		print_samples("peer_ns", r->ns[1], r->n);
		printf("}");
	}
	printf("]}\n");
	return fflush(stdout) == 0 ? 0 : 1;
}

int main(int argc, char **argv)
{
	char reason[VMM_PROBE_REASON];
	bool files = argc == 5 && strcmp(argv[1], "files") == 0;
	if (!files && !(argc == 3 && strcmp(argv[1], "measure") == 0)) {
		fprintf(stderr, "usage: vmm measure ROUNDS | vmm files STATE MEMORY GO\n");
		return 2;
	}
	const char *kind = find_kind(reason);
	bool measured = strcmp(kind, "hardware") == 0 || strcmp(kind, "interpreted") == 0;
	disk = memfd_create("disk", MFD_CLOEXEC);
	check(disk >= 0 && ftruncate(disk, 1 << 20) == 0, "disk", NULL);
	if (!files) {
		if (measured)
			measure((unsigned)atoi(argv[2]));
		return print_all(kind, reason);
	}
	int state = open(argv[2], O_RDWR | O_CREAT | O_TRUNC | O_CLOEXEC, 0600), memory = open(argv[3], O_RDWR | O_CREAT | O_TRUNC | O_CLOEXEC, 0600);
	check(measured && state >= 0 && memory >= 0, "files", NULL);
	make_files(state, memory, (uint32_t)atoi(argv[4]));
	return 0;
}
