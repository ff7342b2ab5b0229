/* The monitor's machinery against a real KVM, with a guest of its own (vmm_mini.h). Skipped where there is no KVM, or one that does not run even that. */
#include "unit.h"

#include "base/clock.h"
#include "base/fd.h"
#include "io/chan.h"
#include "vmm/admin.h"
#include "vmm/layout.h"
#include "vmm/machine.h"
#include "vmm/probe.h"
#include "vmm/state.h"
#include "vmm_mini.h"

#include <fcntl.h>
#include <stdio.h>
#include <sys/eventfd.h>
#include <sys/mman.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/un.h>

enum { PATIENCE_MS = 20000 };

static int kvm_fd;

/* Processors with a bus of the test's. */
struct world {
	struct loop *loop;
	struct kvm kvm;
	struct guest_memory memory;
	struct vcpus *vcpus;
	_Atomic char said;        /* at MINI_PORT */
	_Atomic unsigned quick, doorbells;
	uint32_t written;         /* to LAYOUT_MMIO + 0x104 */
	enum vcpu_end end;
	char what[200];
};

static void on_port_read(void *arg, uint16_t port, void *to, unsigned n)
{
	static const uint32_t answer = 0xcafe1234;
	memset(to, 0xff, n);
	if (port == MINI_PORT_IN && n == sizeof(answer))
		memcpy(to, &answer, n);
}

static enum vcpu_end on_port_write(void *arg, uint16_t port, const void *from, unsigned n)
{
	struct world *w = arg;
	if (port == MINI_PORT)
		w->said = *(const char *)from;
	return port == LAYOUT_PORT_POWER ? VCPU_OFF : VCPU_GOES_ON;
}

static bool on_quick(void *arg, uint64_t address, bool write, void *data, unsigned n)
{
	static const uint32_t answer = 7;
	struct world *w = arg;
	if (address == LAYOUT_MMIO + 0x50)
		w->doorbells++;
	if (address != LAYOUT_MMIO + 0x60 || write)
		return false;
	w->quick++;
	memcpy(data, &answer, n);
	return true;
}

static void on_slow(void *arg, uint64_t address, bool write, void *data, unsigned n)
{
	static const uint32_t answer = 0xfeedbeef;
	struct world *w = arg;
	if (write && address == LAYOUT_MMIO + 0x104)
		memcpy(&w->written, data, n);
	if (!write)
		memcpy(data, &answer, n);
}

static void on_ended(void *arg, enum vcpu_end why, const char *what)
{
	struct world *w = arg;
	w->end = why;
	snprintf(w->what, sizeof(w->what), "%s", what);
}

static const struct vcpu_bus bus = {.port_read = on_port_read, .port_write = on_port_write, .quick = on_quick, .memory = on_slow, .ended = on_ended};

static void begin_in(struct world *w, enum mini_program p, unsigned ring, bool log_dirty)
{
	struct error err = {0};
	*w = (struct world){.loop = loop_new()};
	assert_non_null(w->loop);
	assert_int_equal(kvm_init(&w->kvm, kvm_fd, &err), 0);
	assert_int_equal(memory_map(&w->memory, MINI_MEMORY, -1, 0, &err), 0);
	assert_int_equal(kvm_set_memory(&w->kvm, &w->memory, log_dirty, &err), 0);
	assert_int_equal(kvm_add_interrupts(&w->kvm, &err), 0);
	w->vcpus = vcpus_new(w->loop, &w->kvm, 1, &bus, w, &err);
	assert_non_null(w->vcpus);
	assert_int_equal(mini_set(&w->kvm, vcpus_fd(w->vcpus, 0), &w->memory, p, ring), 0);
	assert_int_equal(vcpus_start(w->vcpus, &err), 0);
}

static void begin(struct world *w, enum mini_program p, bool log_dirty)
{
	begin_in(w, p, 0, log_dirty);
}

static void end(struct world *w)
{
	vcpus_free(w->vcpus);
	kvm_done(&w->kvm);
	memory_unmap(&w->memory);
	loop_free(w->loop);
}

/* Turns the loop until the expression is true; says which was not. */
#define until(loop, expression)                                                                              \
	do {                                                                                                 \
		int64_t last_ = clock_monotonic() + PATIENCE_MS * NS_PER_MS;                                 \
		while (!(expression) && clock_monotonic() < last_)                                           \
			loop_turn(loop, 5);                                                                  \
		assert_true(expression);                                                                     \
	} while (0)

static uint64_t counter(const struct guest_memory *m)
{
	return __atomic_load_n(&mini_data(m)->counter, __ATOMIC_SEQ_CST);
}

static void test_accesses(void **state)
{
	struct world w;
	begin(&w, MINI_ACCESSES, false);
	vcpus_go(w.vcpus);
	until(w.loop, w.said == 'a');
	const struct mini_data *d = mini_data(&w.memory);
	assert_int_equal(d->port, 0xcafe1234);
	assert_int_equal(d->quick, 7);
	assert_int_equal(w.quick, 1);
	assert_int_equal(d->slow, 0xfeedbeef);
	assert_int_equal(w.written, 0x11223344);
	assert_int_equal(w.doorbells, 1); /* nobody has taken that from the bus */
	end(&w);
}

static void test_doorbell(void **state)
{
	struct error err = {0};
	struct world w;
	uint64_t n = 0;
	int bell = eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK);
	begin(&w, MINI_ACCESSES, false);
	assert_int_equal(kvm_doorbell(&w.kvm, LAYOUT_MMIO + 0x50, bell, &err), 0);
	vcpus_go(w.vcpus);
	until(w.loop, w.said == 'a');
	assert_int_equal(read(bell, &n, sizeof(n)), sizeof(n));
	assert_int_equal(n, 1);
	assert_int_equal(w.doorbells, 0);
	end(&w);
	close(bell);
}

/* The I/O APIC's line to the vector, edge; the local APIC on. */
static void open_line(struct world *w, unsigned gsi)
{
	struct kvm_irqchip chip = {.chip_id = KVM_IRQCHIP_IOAPIC};
	struct kvm_lapic_state lapic;
	assert_int_equal(kvm_ioctl(w->kvm.vm, KVM_GET_IRQCHIP, &chip), 0);
	chip.chip.ioapic.redirtbl[gsi].bits = MINI_VECTOR;
	assert_int_equal(kvm_ioctl(w->kvm.vm, KVM_SET_IRQCHIP, &chip), 0);
	assert_int_equal(kvm_ioctl(vcpus_fd(w->vcpus, 0), KVM_GET_LAPIC, &lapic), 0);
	const uint32_t spurious = 0x1ff;
	memcpy(lapic.regs + 0xf0, &spurious, sizeof(spurious));
	assert_int_equal(kvm_ioctl(vcpus_fd(w->vcpus, 0), KVM_SET_LAPIC, &lapic), 0);
}

static void test_line(void **state)
{
	struct error err = {0};
	struct world w;
	uint64_t one = 1;
	int line = eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK);
	begin(&w, MINI_COUNT, false);
	open_line(&w, LAYOUT_GSI_FIRST);
	assert_int_equal(kvm_line(&w.kvm, LAYOUT_GSI_FIRST, line, &err), 0);
	vcpus_go(w.vcpus);
	until(w.loop, w.said == 'c');
	assert_int_equal(mini_data(&w.memory)->interrupts, 0);
	assert_int_equal(write(line, &one, sizeof(one)), sizeof(one));
	until(w.loop, mini_data(&w.memory)->interrupts == 1);
	uint64_t before = counter(&w.memory);
	until(w.loop, counter(&w.memory) > before);
	end(&w);
	close(line);
}

static void test_dirty(void **state)
{
	struct world w;
	uint64_t bits[MINI_MEMORY / 4096 / 64];
	const unsigned page = MINI_DIRTY / 4096;
	begin(&w, MINI_DIRTIES, true);
	assert_int_equal(kvm_dirty(&w.kvm, &w.memory, 0, bits), 0);
	vcpus_go(w.vcpus);
	until(w.loop, w.said == 'd');
	vcpus_stop(w.vcpus);
	assert_int_equal(kvm_dirty(&w.kvm, &w.memory, 0, bits), 0);
	assert_int_equal(bits[page / 64] >> (page % 64) & 7, 5);
	assert_int_equal(kvm_dirty(&w.kvm, &w.memory, 0, bits), 0);
	assert_int_equal(bits[page / 64] >> (page % 64) & 7, 0);
	assert_int_equal(kvm_dirty(&w.kvm, &w.memory, 1, bits), -EINVAL);
	end(&w);
}

static void stop_and_go(unsigned ring)
{
	struct world w;
	begin_in(&w, MINI_QUIET, ring, false);
	assert_int_equal(counter(&w.memory), 0);
	for (unsigned i = 0; i < 20; i++) {
		uint64_t before = counter(&w.memory);
		vcpus_go(w.vcpus);
		until(w.loop, counter(&w.memory) > before);
		vcpus_stop(w.vcpus);
		before = counter(&w.memory);
		loop_turn(w.loop, 5);
		assert_int_equal(counter(&w.memory), before);
	}
	end(&w);
}

static void test_stop(void **state)
{
	stop_and_go(0);
	stop_and_go(3);
}

/* A processor that waits for the loop is answered by whoever stops it. */
static void test_stop_while_asking(void **state)
{
	for (unsigned i = 0; i < 20; i++) {
		struct world w;
		begin(&w, MINI_ACCESSES, false);
		vcpus_go(w.vcpus);
		vcpus_stop(w.vcpus);
		vcpus_go(w.vcpus);
		until(w.loop, w.said == 'a');
		assert_int_equal(w.written, 0x11223344);
		assert_int_equal(mini_data(&w.memory)->slow, 0xfeedbeef);
		end(&w);
	}
}

static void test_ends(void **state)
{
	struct world w;
	begin(&w, MINI_OFF, false);
	vcpus_go(w.vcpus);
	until(w.loop, w.end == VCPU_OFF);
	vcpus_stop(w.vcpus);
	vcpus_go(w.vcpus); /* it has ended for good */
	vcpus_stop(w.vcpus);
	assert_int_equal(w.said, 0);
	end(&w);

	begin(&w, MINI_FAULTS, false);
	vcpus_go(w.vcpus);
	until(w.loop, w.end != VCPU_GOES_ON);
	assert_int_equal(w.end, VCPU_RESET);
	assert_string_equal(w.what, "triple fault");
	end(&w);

	begin(&w, MINI_WILD, false);
	vcpus_go(w.vcpus);
	until(w.loop, w.end != VCPU_GOES_ON);
	print_message("%s\n", w.what);
	assert_true(w.end == VCPU_FAILED || w.end == VCPU_RESET); /* a KVM's affair which of them */
	assert_true(w.what[0]);
	end(&w);
}

/* Whole machines. */

struct whole {
	struct loop *loop;
	struct machine *machine;
	int console;
	enum vcpu_end end;
};

static void on_machine_ended(void *arg, enum vcpu_end why, bool panicked, const char *what)
{
	struct whole *w = arg;
	w->end = why;
}

static void make(struct whole *w, int memory_file)
{
	struct error err = {0};
	*w = (struct whole){.loop = loop_new(), .console = memfd_create("console", MFD_CLOEXEC)};
	struct machine_config c = {.vcpus = 1, .memory = MINI_MEMORY, .kvm = kvm_fd, .memory_file = memory_file, .console = dup(w->console), .control = -1, .net.tap = -1,
		.disk = {{.file = memfd_create("disk", MFD_CLOEXEC)}}, .n_disks = 1, .ended = on_machine_ended, .arg = w};
	assert_int_equal(ftruncate(c.disk[0].file, 1 << 20), 0);
	w->machine = machine_new(w->loop, &c, &err);
	if (!w->machine)
		print_error("%s\n", err.message);
	assert_non_null(w->machine);
	assert_int_equal(c.console, -1);
	assert_int_equal(c.disk[0].file, -1);
}

static void unmake(struct whole *w)
{
	machine_free(w->machine);
	loop_free(w->loop);
	close(w->console);
}

static void start(struct whole *w, enum mini_program p, unsigned ring)
{
	struct error err = {0};
	make(w, -1);
	assert_int_equal(mini_set(&w->machine->kvm, vcpus_fd(w->machine->vcpus, 0), &w->machine->memory, p, ring), 0);
	assert_int_equal(machine_start(w->machine, &err), 0);
	machine_resume(w->machine);
}

static void restore(struct whole *w, int state, int memory)
{
	struct error err = {0};
	make(w, memory);
	if (state_restore(w->machine, state, memory, &err) < 0)
		fail_msg("%s", err.message);
	assert_int_equal(machine_start(w->machine, &err), 0);
}

static void save(struct whole *w, int *state, int *memory)
{
	struct error err = {0};
	*state = memfd_create("state", MFD_CLOEXEC);
	*memory = memfd_create("memory", MFD_CLOEXEC);
	assert_int_equal(state_save(w->machine, *state, *memory, &err), 0);
}

static void test_machine(void **state)
{
	struct whole w;
	char text[16] = "";
	start(&w, MINI_SERIAL, 0);
	until(w.loop, counter(&w.machine->memory) > 0);
	machine_pause(w.machine);
	assert_int_equal(pread(w.console, text, sizeof(text) - 1, 0), 5);
	assert_string_equal(text, "mini\n");
	unmake(&w);

	start(&w, MINI_OFF, 0);
	until(w.loop, w.end == VCPU_OFF);
	machine_resume(w.machine); /* does nothing */
	assert_false(w.machine->running);
	unmake(&w);

	/* A device's register, by way of the loop: the magic word is not there, it is beyond the registers that the program reads; it gets an answer nevertheless. */
	start(&w, MINI_ACCESSES, 0);
	until(w.loop, counter(&w.machine->memory) > 0);
	assert_int_equal(mini_data(&w.machine->memory)->port, UINT32_MAX);
	assert_int_equal(mini_data(&w.machine->memory)->quick, 0);
	unmake(&w);
}

static uint32_t register_of(struct whole *w, size_t device, uint64_t offset)
{
	uint32_t value = 0;
	virtio_mmio_read(w->machine->device[device], offset, &value, sizeof(value));
	return value;
}

/* Every register of every device, from inside: the machine goes on, and each device can be reset. */
static void test_pokes(void **state)
{
	struct whole w;
	struct error err = {0};
	make(&w, -1);
	size_t n = w.machine->n_devices;
	assert_int_equal(mini_set(&w.machine->kvm, vcpus_fd(w.machine->vcpus, 0), &w.machine->memory, MINI_POKES, 0), 0);
	mini_data(&w.machine->memory)->address = LAYOUT_MMIO + n * LAYOUT_MMIO_STEP;
	assert_int_equal(machine_start(w.machine, &err), 0);
	machine_resume(w.machine);
	until(w.loop, counter(&w.machine->memory) >> 32);
	assert_int_equal(w.end, VCPU_GOES_ON);
	machine_pause(w.machine);
	for (size_t i = 0; i < n; i++) {
		const uint32_t none = 0, found = 1;
		virtio_mmio_write(w.machine->device[i], 0x70, &none, sizeof(none));
		assert_int_equal(register_of(&w, i, 0x70), 0);
		assert_int_equal(register_of(&w, i, 0x00), 0x74726976);
		virtio_mmio_write(w.machine->device[i], 0x70, &found, sizeof(found));
		assert_int_equal(register_of(&w, i, 0x70), 1);
	}
	unmake(&w);
}

static void save_and_restore(unsigned ring)
{
	struct whole w, copy[2];
	struct error err = {0};
	int state_fd, memory_fd;
	start(&w, MINI_QUIET, ring);
	until(w.loop, counter(&w.machine->memory) > 1000);
	assert_int_equal(state_save(w.machine, -1, -1, &err), -EBUSY);
	machine_pause(w.machine);
	uint64_t at = counter(&w.machine->memory), in_file = 0;
	save(&w, &state_fd, &memory_fd);

	/* Holes where there was nothing. */
	struct stat st;
	assert_int_equal(fstat(memory_fd, &st), 0);
	assert_int_equal(st.st_size, MINI_MEMORY);
	assert_in_range(st.st_blocks * 512, 4096, 64 * 4096);

	/* The original goes on, and so do two copies, each with a memory of its own. */
	machine_resume(w.machine);
	until(w.loop, counter(&w.machine->memory) > at);
	for (size_t i = 0; i < 2; i++) {
		restore(&copy[i], state_fd, memory_fd);
		assert_int_equal(counter(&copy[i].machine->memory), at);
	}
	machine_resume(copy[0].machine);
	until(copy[0].loop, counter(&copy[0].machine->memory) > at);
	assert_int_equal(counter(&copy[1].machine->memory), at);
	machine_resume(copy[1].machine);
	until(copy[1].loop, counter(&copy[1].machine->memory) > at);
	assert_int_equal(pread(memory_fd, &in_file, sizeof(in_file), MINI_DATA), sizeof(in_file));
	assert_int_equal(in_file, at);

	/* A copy of a copy. */
	machine_pause(copy[0].machine);
	at = counter(&copy[0].machine->memory);
	int state2, memory2;
	save(&copy[0], &state2, &memory2);
	unmake(&copy[1]);
	restore(&copy[1], state2, memory2);
	machine_resume(copy[1].machine);
	until(copy[1].loop, counter(&copy[1].machine->memory) > at);

	unmake(&w);
	unmake(&copy[0]);
	unmake(&copy[1]);
	close(state_fd);
	close(memory_fd);
	close(state2);
	close(memory2);
}

static void test_saved(void **state)
{
	save_and_restore(0);
	save_and_restore(3);
}

static void refused(int state, int memory, const char *why)
{
	struct whole w;
	struct error err = {0};
	make(&w, -1);
	assert_true(state_restore(w.machine, state, memory, &err) < 0);
	if (!strstr(err.message, why))
		fail_msg("'%s' says nothing of '%s'", err.message, why);
	unmake(&w);
}

static void test_refused(void **state)
{
	struct whole w;
	int state_fd, memory_fd;
	struct stat st;
	char byte;
	start(&w, MINI_COUNT, 0);
	until(w.loop, counter(&w.machine->memory) > 0);
	machine_pause(w.machine);
	save(&w, &state_fd, &memory_fd);
	unmake(&w);

	assert_int_equal(fstat(state_fd, &st), 0);
	for (off_t at = 64; at < st.st_size; at += st.st_size / 7) {
		assert_int_equal(pread(state_fd, &byte, 1, at), 1);
		byte ^= 0x10;
		assert_int_equal(pwrite(state_fd, &byte, 1, at), 1);
		refused(state_fd, memory_fd, "damaged");
		byte ^= 0x10;
		assert_int_equal(pwrite(state_fd, &byte, 1, at), 1);
	}
	assert_int_equal(pwrite(state_fd, "\x09", 1, 8), 1);
	refused(state_fd, memory_fd, "version 9");
	assert_int_equal(pwrite(state_fd, "\x01", 1, 8), 1);
	assert_int_equal(ftruncate(memory_fd, MINI_MEMORY - 4096), 0);
	refused(state_fd, memory_fd, "cut or lengthened");
	assert_int_equal(ftruncate(memory_fd, MINI_MEMORY), 0);
	assert_int_equal(ftruncate(state_fd, st.st_size - 1), 0);
	refused(state_fd, memory_fd, "cut or lengthened");
	assert_int_equal(ftruncate(state_fd, 0), 0);
	refused(state_fd, memory_fd, "never finished");
	assert_int_equal(ftruncate(state_fd, 4096), 0);
	refused(state_fd, memory_fd, "never finished");
	close(state_fd);
	close(memory_fd);
}

/* Node's side. */

struct node {
	struct chan *chan;
	bool closed;
	unsigned type; /* of the last answer */
	uint64_t request;
	struct msg_vm_state state;
	char text[200];
};

static void on_answer(struct chan *c, struct chan_message *m, void *arg)
{
	struct node *n = arg;
	n->type = m->header.type;
	n->request = m->header.request;
	if (n->type == MSG_ID_vm_state)
		n->state = m->body->vm_state;
	if (n->type == MSG_ID_error)
		snprintf(n->text, sizeof(n->text), "%.*s", STR_FMT(m->body->error.message));
}

static void on_node_closed(struct chan *c, const struct error *err, void *arg)
{
	struct node *n = arg;
	n->closed = true;
	n->chan = NULL;
}

static const struct chan_ops node_ops = {.message = on_answer, .closed = on_node_closed};

static void connect_node(struct node *n, struct loop *l, const struct sockaddr_un *at, socklen_t size)
{
	*n = (struct node){0};
	int fd = socket(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC, 0);
	assert_int_equal(connect(fd, (const struct sockaddr *)at, size), 0);
	n->chan = chan_new(l, fd, MSG_FROM_VMM, 0, &node_ops, n);
	assert_non_null(n->chan);
}

static unsigned ask(struct node *n, struct loop *l, enum msg_id type, const void *m, const int *fds, size_t n_fds)
{
	static uint64_t request;
	n->type = 0;
	assert_int_equal(chan_send(n->chan, type, m, ++request, fds, n_fds, NULL), 0);
	until(l, n->type != 0);
	assert_int_equal(n->request, request);
	return n->type;
}

static void test_admin(void **state)
{
	struct whole w;
	struct node node, newer;
	struct error err = {0};
	struct sockaddr_un at = {.sun_family = AF_UNIX};
	socklen_t size = sizeof(at);
	const uint64_t nothing = 0;
	int listening = socket(AF_UNIX, SOCK_SEQPACKET | SOCK_NONBLOCK | SOCK_CLOEXEC, 0);
	assert_int_equal(bind(listening, (struct sockaddr *)&at, sizeof(at.sun_family)), 0);
	assert_int_equal(listen(listening, 4), 0);
	assert_int_equal(getsockname(listening, (struct sockaddr *)&at, &size), 0);
	start(&w, MINI_QUIET, 0);
	struct admin *admin = admin_new(w.loop, listening, w.machine, &err);
	assert_non_null(admin);

	connect_node(&node, w.loop, &at, size);
	assert_int_equal(ask(&node, w.loop, MSG_ID_vm_status, &nothing, NULL, 0), MSG_ID_vm_state);
	assert_true(node.state.running && !node.state.up && node.state.balloon == 0);
	int fds[2] = {memfd_create("state", MFD_CLOEXEC), memfd_create("memory", MFD_CLOEXEC)};
	assert_int_equal(ask(&node, w.loop, MSG_ID_vm_save, &nothing, fds, 2), MSG_ID_error);
	assert_string_equal(node.text, "the guest is running");
	assert_int_equal(ask(&node, w.loop, MSG_ID_vm_pause, &nothing, NULL, 0), MSG_ID_ok);
	assert_int_equal(ask(&node, w.loop, MSG_ID_vm_pause, &nothing, NULL, 0), MSG_ID_ok); /* it is already */
	uint64_t before = counter(&w.machine->memory);
	assert_int_equal(ask(&node, w.loop, MSG_ID_vm_status, &nothing, NULL, 0), MSG_ID_vm_state);
	assert_false(node.state.running);
	assert_int_equal(ask(&node, w.loop, MSG_ID_vm_save, &nothing, fds, 2), MSG_ID_ok);
	assert_int_equal(ask(&node, w.loop, MSG_ID_vm_save, &nothing, fds, 2), MSG_ID_error); /* they are not empty now */
	assert_non_null(strstr(node.text, "empty regular files"));
	assert_int_equal(counter(&w.machine->memory), before);

	/* The newest wins, and finds things as the other left them. */
	connect_node(&newer, w.loop, &at, size);
	assert_int_equal(ask(&newer, w.loop, MSG_ID_vm_status, &nothing, NULL, 0), MSG_ID_vm_state);
	assert_false(newer.state.running);
	until(w.loop, node.closed);
	assert_int_equal(ask(&newer, w.loop, MSG_ID_vm_resume, &nothing, NULL, 0), MSG_ID_ok);
	until(w.loop, counter(&w.machine->memory) > before);
	assert_int_equal(ask(&newer, w.loop, MSG_ID_vm_balloon, &(struct msg_vm_balloon){.pages = 10}, NULL, 0), MSG_ID_ok);
	assert_int_equal(ask(&newer, w.loop, MSG_ID_vm_balloon, &(struct msg_vm_balloon){.pages = MINI_MEMORY}, NULL, 0), MSG_ID_error);

	/* Without a guest that listens the connection just ends. */
	int pair[2];
	char byte;
	assert_int_equal(socketpair(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0, pair), 0);
	ask(&newer, w.loop, MSG_ID_vm_open, &(struct msg_vm_open){.port = UINT64_C(1) << 32}, &pair[1], 1);
	assert_int_equal(newer.type, MSG_ID_error);
	close(pair[1]);
	assert_int_equal(recv(pair[0], &byte, 1, MSG_DONTWAIT), 0);
	close(pair[0]);

	/* One that breaks the rules loses its connection, and the guest goes on without one. */
	assert_int_equal(chan_send(newer.chan, MSG_ID_ping, &nothing, 1, NULL, 0, NULL), 0);
	until(w.loop, newer.closed);
	before = counter(&w.machine->memory);
	until(w.loop, counter(&w.machine->memory) > before);
	connect_node(&node, w.loop, &at, size);
	assert_int_equal(ask(&node, w.loop, MSG_ID_vm_status, &nothing, NULL, 0), MSG_ID_vm_state);
	assert_true(node.state.running);

	chan_free(node.chan);
	admin_free(admin);
	unmake(&w);
	close(listening);
	close(fds[0]);
	close(fds[1]);
}

static void test_probe(void **state)
{
	char reason[VMM_PROBE_REASON] = "";
	enum vmm_probe p = vmm_probe(kvm_fd, reason);
	print_message("%s\n", reason);
	assert_true(p == VMM_PROBE_HARDWARE || p == VMM_PROBE_INTERPRETED);
	assert_true(reason[0] != '\0');
	int other = open("/dev/null", O_RDWR | O_CLOEXEC);
	assert_int_equal(vmm_probe(other, reason), VMM_PROBE_NONE);
	assert_int_equal(vmm_probe(-1, reason), VMM_PROBE_NONE);
	close(other);
}

/* Does this KVM run the smallest of the guests? */
static const char *try_kvm(void)
{
	static char reason[VMM_PROBE_REASON];
	kvm_fd = open("/dev/kvm", O_RDWR | O_CLOEXEC);
	if (kvm_fd < 0) {
		snprintf(reason, sizeof(reason), "/dev/kvm: %s", strerror(errno));
		return reason;
	}
	return vmm_probe(kvm_fd, reason) == VMM_PROBE_NONE ? reason : NULL;
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(test_probe),
		cmocka_unit_test(test_accesses),
		cmocka_unit_test(test_doorbell),
		cmocka_unit_test(test_line),
		cmocka_unit_test(test_dirty),
		cmocka_unit_test(test_stop),
		cmocka_unit_test(test_stop_while_asking),
		cmocka_unit_test(test_ends),
		cmocka_unit_test(test_machine),
		cmocka_unit_test(test_pokes),
		cmocka_unit_test(test_saved),
		cmocka_unit_test(test_refused),
		cmocka_unit_test(test_admin),
	};
	const char *missing = try_kvm();
	if (missing) {
		fprintf(stderr, "SKIPPED: nothing of the microVM monitor is tested against a KVM here: %s\n", missing);
		return 77;
	}
	return cmocka_run_group_tests_name("vmm mechanics", tests, NULL, NULL);
}
