#include "vmm/machine.h"
#include "base/cleanup.h"
#include "base/log.h"
#include "base/random.h"
#include "vmm/acpi.h"
#include "vmm/kernel.h"

#include <string.h>
#include <sys/eventfd.h>

enum {
	VIRTIO_MMIO_QUEUE_NOTIFY = 0x50, /* virtio 1.2, 4.2.2 */
	PORT_KEYBOARD = 0x64,            /* of the 8042: its command 0xfe resets the machine */
	KEYBOARD_RESET = 0xfe,
};

/* The bus: what is at which port and address. */

static struct virtio_device *device_at(struct machine *m, uint64_t address, uint64_t *ret_offset)
{
	uint64_t at = address - LAYOUT_MMIO;
	if (address < LAYOUT_MMIO || at / LAYOUT_MMIO_STEP >= m->n_devices)
		return NULL;
	*ret_offset = at % LAYOUT_MMIO_STEP;
	return m->device[at / LAYOUT_MMIO_STEP];
}

static void on_thread(void *arg, unsigned i)
{
	struct machine *m = arg;
	if (m->thread_begins)
		m->thread_begins(m->arg, i);
}

static void on_port_read(void *arg, uint16_t port, void *to, unsigned n)
{
	struct machine *m = arg;
	unsigned char *p = to;
	memset(to, 0xff, n);
	if (port >= LAYOUT_PORT_SERIAL && port < LAYOUT_PORT_SERIAL + SERIAL_PORTS)
		*p = serial_read(m->serial, port - (unsigned)LAYOUT_PORT_SERIAL);
	else if (port >= LAYOUT_PORT_POWER && port < LAYOUT_PORT_POWER + ACPI_POWER_PORTS)
		*p = 0;
	else if (port == PORT_KEYBOARD)
		*p = 0; /* ready for a command: a kernel waits for that before it resets */
}

static enum vcpu_end on_port_write(void *arg, uint16_t port, const void *from, unsigned n)
{
	struct machine *m = arg;
	uint8_t value = *(const uint8_t *)from;
	if (port >= LAYOUT_PORT_SERIAL && port < LAYOUT_PORT_SERIAL + SERIAL_PORTS) {
		serial_write(m->serial, port - (unsigned)LAYOUT_PORT_SERIAL, value);
	} else if (port >= LAYOUT_PORT_POWER && port < LAYOUT_PORT_POWER + ACPI_POWER_PORTS) {
		switch (acpi_power_write(port - (unsigned)LAYOUT_PORT_POWER, value)) {
		case ACPI_OFF:
			return VCPU_OFF;
		case ACPI_RESTART:
			return VCPU_RESET;
		case ACPI_NOTHING:
			break;
		}
	} else if (port == PORT_KEYBOARD && value == KEYBOARD_RESET) {
		return VCPU_RESET;
	}
	return VCPU_GOES_ON;
}

static bool on_quick(void *arg, uint64_t address, bool write, void *data, unsigned n)
{
	uint64_t offset;
	struct virtio_device *d = device_at(arg, address, &offset);
	if (d)
		return virtio_mmio_quick(d, offset, write, data, n);
	if (!write)
		memset(data, 0xff, n);
	return true;
}

static void on_memory(void *arg, uint64_t address, bool write, void *data, unsigned n)
{
	uint64_t offset;
	struct virtio_device *d = device_at(arg, address, &offset);
	if (d && write)
		virtio_mmio_write(d, offset, data, n);
	else if (d)
		virtio_mmio_read(d, offset, data, n);
}

static void on_ended(void *arg, enum vcpu_end why, const char *what)
{
	struct machine *m = arg;
	if (m->over)
		return;
	m->over = true;
	machine_pause(m);
	serial_flush(m->serial);
	m->ended(m->arg, why, serial_panicked(m->serial), what);
}

static const struct vcpu_bus bus = {
	.begin = on_thread,
	.port_read = on_port_read,
	.port_write = on_port_write,
	.quick = on_quick,
	.memory = on_memory,
	.ended = on_ended,
};

/* Making one. */

static void on_up(void *arg)
{
	struct machine *m = arg;
	m->up = true;
}

/* Gives the device its place. `d` NULL: it could not be made, *err says why. */
static int add_device(struct machine *m, struct virtio_device *d, struct error *err)
{
	if (!d)
		return err->code;
	unsigned i = m->n_devices++;
	m->device[i] = d;
	int r = kvm_doorbell(&m->kvm, LAYOUT_MMIO + i * LAYOUT_MMIO_STEP + VIRTIO_MMIO_QUEUE_NOTIFY, d->notified, err);
	return r < 0 ? r : kvm_line(&m->kvm, LAYOUT_GSI_FIRST + i % LAYOUT_GSI_COUNT, d->irq, err);
}

/* In the order of docs/microvm.md. */
static int add_devices(struct machine *m, struct machine_config *c, struct error *err)
{
	struct loop *l = m->loop;
	const struct guest_memory *memory = &m->memory;
	struct vsock_config vsock = {.control = steal_fd(&c->control), .up = on_up, .arg = m};
	int r = add_device(m, entropy_new(l, memory, err), err);
	if (r < 0)
		return r;
	if ((r = add_device(m, m->vsock = vsock_new(l, memory, &vsock, err), err)) < 0)
		return r;
	if (c->net.tap >= 0) {
		struct net_config net = c->net;
		c->net.tap = -1;
		if ((r = add_device(m, net_new(l, memory, &net, err), err)) < 0)
			return r;
	}
	if ((r = add_device(m, m->balloon = balloon_new(l, memory, err), err)) < 0)
		return r;
	for (size_t i = 0; i < c->n_disks; i++) {
		struct block_config disk = c->disk[i];
		c->disk[i].file = -1;
		if ((r = add_device(m, block_new(l, memory, &disk, err), err)) < 0)
			return error_wrap(err, r, "disk %zu", i);
	}
	return 0;
}

/* The serial port has an eventfd of its own; KVM keeps what it needs of it. */
static int add_serial(struct machine *m, struct machine_config *c, struct error *err)
{
	int irq = eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK);
	if (irq < 0)
		return error_errno(err, -errno, "serial port");
	int r = kvm_line(&m->kvm, LAYOUT_GSI_SERIAL, irq, err);
	if (r < 0) {
		close(irq);
		return r;
	}
	m->serial = serial_new(steal_fd(&c->console), irq, err);
	return m->serial ? 0 : err->code;
}

static int add_generation(struct machine *m, struct error *err)
{
	m->generation = eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK);
	return m->generation < 0 ? error_errno(err, -errno, "generation id") : kvm_line(&m->kvm, LAYOUT_GSI_EVENTS, m->generation, err);
}

static int add_processors(struct machine *m, unsigned n, struct error *err)
{
	if (n > m->kvm.vcpus_max)
		return error_set(err, -EINVAL, 500, "this kernel's KVM gives a guest %u processors at most", m->kvm.vcpus_max);
	m->vcpus = vcpus_new(m->loop, &m->kvm, n, &bus, m, err);
	return m->vcpus ? cpuid_make(&m->kvm, n, &m->cpuid, err) : err->code;
}

struct machine *machine_new(struct loop *l, struct machine_config *c, struct error *err)
{
	struct machine *m = calloc(1, sizeof(*m));
	if (!m) {
		error_errno(err, -ENOMEM, "machine");
		return NULL;
	}
	*m = (struct machine){.loop = l, .kvm.vm = -1, .generation = -1, .thread_begins = c->thread_begins, .ended = c->ended, .arg = c->arg};
	int r = kvm_init(&m->kvm, c->kvm, err);
	if (r == 0)
		r = memory_map(&m->memory, c->memory, c->memory_file, 0, err);
	if (r == 0)
		r = kvm_set_memory(&m->kvm, &m->memory, c->log_dirty, err);
	if (r == 0)
		r = kvm_add_interrupts(&m->kvm, err);
	if (r == 0)
		r = add_processors(m, c->vcpus, err);
	if (r == 0)
		r = add_serial(m, c, err);
	if (r == 0)
		r = add_generation(m, err);
	if (r == 0)
		r = add_devices(m, c, err);
	if (r < 0) {
		machine_free(m);
		return NULL;
	}
	return m;
}

void machine_free(struct machine *m)
{
	if (!m)
		return;
	vcpus_free(m->vcpus);
	for (unsigned i = 0; i < m->n_devices; i++)
		virtio_free(m->device[i]);
	serial_free(m->serial);
	if (m->generation >= 0)
		close(m->generation);
	kvm_done(&m->kvm);
	memory_unmap(&m->memory);
	free(m);
}

/* Beginning. */

static int set_cpuids(struct machine *m, struct error *err)
{
	for (unsigned i = 0; i < vcpus_count(m->vcpus); i++) {
		struct cpuid own = m->cpuid;
		cpuid_number(&own, i);
		int r = kvm_ioctl(vcpus_fd(m->vcpus, i), KVM_SET_CPUID2, &own);
		if (r < 0)
			return error_errno(err, r, "KVM_SET_CPUID2");
	}
	return 0;
}

/* As a firmware leaves it: string instructions may be fast. A processor that does not know the register does without. */
static void set_misc_enable(int vcpu)
{
	enum { MSR_MISC_ENABLE = 0x1a0, FAST_STRINGS = 1 };
	kvm_set_msr(vcpu, MSR_MISC_ENABLE, FAST_STRINGS);
}

static int set_entry(struct machine *m, const struct kernel_entry *e, struct error *err)
{
	int vcpu = vcpus_fd(m->vcpus, 0);
	struct kvm_sregs sregs;
	struct kvm_regs regs;
	int r = kvm_ioctl(vcpu, KVM_GET_SREGS, &sregs);
	if (r < 0)
		return error_errno(err, r, "KVM_GET_SREGS");
	kernel_registers(e, &sregs, &regs);
	if ((r = kvm_ioctl(vcpu, KVM_SET_SREGS, &sregs)) < 0)
		return error_errno(err, r, "KVM_SET_SREGS");
	if ((r = kvm_ioctl(vcpu, KVM_SET_REGS, &regs)) < 0)
		return error_errno(err, r, "KVM_SET_REGS");
	set_misc_enable(vcpu);
	return 0;
}

int machine_boot(struct machine *m, const struct kernel_files *f, struct error *err)
{
	struct kernel_entry entry;
	int r = acpi_build(&m->memory, vcpus_count(m->vcpus), m->n_devices, err);
	if (r < 0)
		return r;
	machine_new_generation(m, false);
	if ((r = kernel_load(&m->memory, f, &entry, err)) < 0 || (r = set_cpuids(m, err)) < 0)
		return r;
	return set_entry(m, &entry, err);
}

void machine_new_generation(struct machine *m, bool interrupt)
{
	unsigned char id[16];
	random_bytes(id, sizeof(id));
	acpi_set_generation(&m->memory, id);
	uint64_t one = 1;
	if (interrupt && write(m->generation, &one, sizeof(one)) < 0)
		log_warn("generation id: %s", strerror(errno));
}

/* Standing and going. */

int machine_start(struct machine *m, struct error *err)
{
	return vcpus_start(m->vcpus, err);
}

void machine_pause(struct machine *m)
{
	if (!m->running)
		return;
	m->running = false;
	vcpus_stop(m->vcpus);
	for (unsigned i = 0; i < m->n_devices; i++)
		if (m->device[i]->ops->quiesce)
			m->device[i]->ops->quiesce(m->device[i]);
}

/* The clock of the guest went on. Its watchdogs are told that it was stopped; a guest that has no such clock is no error. */
static void excuse_pause(struct machine *m)
{
	for (unsigned i = 0; i < vcpus_count(m->vcpus); i++)
		kvm_ioctl(vcpus_fd(m->vcpus, i), KVM_KVMCLOCK_CTRL, NULL);
}

void machine_resume(struct machine *m)
{
	if (m->running || m->over)
		return;
	m->running = true;
	for (unsigned i = 0; i < m->n_devices; i++)
		if (m->device[i]->ops->resume)
			m->device[i]->ops->resume(m->device[i]);
	excuse_pause(m);
	vcpus_go(m->vcpus);
}
