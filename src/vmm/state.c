#include "vmm/state.h"
#include "base/cleanup.h"
#include "base/fd.h"
#include "base/log.h"
#include "vmm/state_file.h"
#include "vmm/state_vcpu.h"

#include <sys/stat.h>

enum {
	PAGE = 4096,
	RUN_MAX = 1 << 20,   /* bytes written at once */
	TSC_TOLERANCE = 250, /* millionths by which the counter's speed may be another: what a guest does not notice (NTP corrects more) */
};

/* Memory. */

static int write_at(int fd, const char *p, size_t n, uint64_t at)
{
	while (n) {
		ssize_t r = pwrite(fd, p, n, (off_t)at);
		if (r < 0 && errno == EINTR)
			continue;
		if (r <= 0)
			return r < 0 ? -errno : -EIO;
		p += r;
		n -= (size_t)r;
		at += (uint64_t)r;
	}
	return 0;
}

static bool is_zero(const char *page)
{
	const uint64_t *w = (const void *)page;
	uint64_t any = 0;
	for (size_t i = 0; i < PAGE / sizeof(*w); i++)
		any |= w[i];
	return any == 0;
}

/* Pages of zeros become holes. */
static int save_region(const struct memory_region *r, int fd, uint64_t at)
{
	uint64_t done = 0;
	while (done < r->size) {
		if (is_zero(r->host + done)) {
			done += PAGE;
			continue;
		}
		uint64_t n = PAGE;
		while (n < RUN_MAX && done + n < r->size && !is_zero(r->host + done + n))
			n += PAGE;
		int e = write_at(fd, r->host + done, n, at + done);
		if (e < 0)
			return e;
		done += n;
	}
	return 0;
}

static int save_memory(const struct guest_memory *m, int fd)
{
	uint64_t at = 0;
	if (ftruncate(fd, (off_t)memory_size(m)) < 0)
		return -errno;
	for (size_t i = 0; i < m->n; i++) {
		int r = save_region(&m->region[i], fd, at);
		if (r < 0)
			return r;
		at += m->region[i].size;
	}
	return fsync(fd) < 0 ? -errno : 0;
}

/* Saving. */

/* What kind of machine it is: processors, devices in their order, how fast its counters run; and whether its init has called. */
static void add_machine(const struct machine *m, struct buf *to)
{
	cleanup_buf struct buf b = BUF_INIT;
	state_put(&b, vcpus_count(m->vcpus), 4);
	state_put(&b, state_tsc_khz(m->vcpus), 4);
	state_put(&b, m->up, 4);
	state_put(&b, m->n_devices, 4);
	for (unsigned i = 0; i < m->n_devices; i++)
		state_put(&b, m->device[i]->ops->id, 4);
	to->failed |= b.failed;
	state_add(to, STATE_MACHINE, 0, b.data, buf_len(&b));
}

static int make_state(struct machine *m, struct buf *to, struct error *err)
{
	state_begin(to);
	add_machine(m, to);
	state_add(to, STATE_CPUID, 0, m->cpuid.entry, m->cpuid.n * sizeof(m->cpuid.entry[0]));
	int r = state_save_kernel(&m->kvm, m->vcpus, to, err);
	if (r < 0)
		return r;
	for (unsigned i = 0; i < m->n_devices; i++) {
		cleanup_buf struct buf b = BUF_INIT;
		virtio_save(m->device[i], &b);
		to->failed |= b.failed;
		state_add(to, STATE_DEVICE, i, b.data ? b.data + b.start : "", buf_len(&b));
	}
	cleanup_buf struct buf serial = BUF_INIT;
	serial_flush(m->serial);
	serial_save(m->serial, &serial);
	to->failed |= serial.failed;
	state_add(to, STATE_SERIAL, 0, serial.data ? serial.data + serial.start : "", buf_len(&serial));
	r = state_seal(to, memory_size(&m->memory));
	return r < 0 ? error_errno(err, r, "saving the state") : 0;
}

/* What is behind the header first: a file without one is not valid. */
static int write_state(int fd, struct str bytes)
{
	int r = write_at(fd, bytes.p + STATE_HEADER, bytes.n - STATE_HEADER, STATE_HEADER);
	if (r == 0 && fsync(fd) < 0)
		r = -errno;
	if (r == 0)
		r = write_at(fd, bytes.p, STATE_HEADER, 0);
	return r == 0 && fsync(fd) < 0 ? -errno : r;
}

int state_save(struct machine *m, int state, int memory, struct error *err)
{
	cleanup_buf struct buf b = BUF_INIT;
	if (m->running)
		return error_set(err, -EBUSY, 500, "the guest is running");
	int r = make_state(m, &b, err);
	if (r < 0)
		return r;
	if ((r = save_memory(&m->memory, memory)) < 0)
		return error_errno(err, r, "saving the memory");
	if ((r = write_state(state, buf_str(&b))) < 0)
		return error_errno(err, r, "saving the state");
	return 0;
}

/* Restoring. */

static int read_file(int fd, struct buf *to, struct error *err)
{
	struct stat st;
	if (fstat(fd, &st) < 0)
		return error_errno(err, -errno, "saved state");
	if (!S_ISREG(st.st_mode) || st.st_size > STATE_MAX)
		return error_set(err, -EINVAL, 500, "saved state: it is something else");
	char *at = buf_reserve(to, (size_t)st.st_size + 1);
	if (!at)
		return error_errno(err, -ENOMEM, "saved state");
	off_t done = 0;
	while (done < st.st_size) {
		ssize_t n = pread(fd, at + done, (size_t)(st.st_size - done), done);
		if (n < 0 && errno == EINTR)
			continue;
		if (n <= 0)
			return error_errno(err, n < 0 ? -errno : -EIO, "saved state");
		done += n;
	}
	buf_commit(to, (size_t)done);
	return 0;
}

static int other_machine(struct error *err, const char *what)
{
	return error_set(err, -EXDEV, 500, "the state is of another machine: %s", what);
}

static int check_speed(struct machine *m, uint32_t was, struct error *err)
{
	uint32_t is = state_tsc_khz(m->vcpus);
	uint64_t difference = was > is ? was - is : is - was;
	if (!was || !is || difference * 1000000 <= (uint64_t)is * TSC_TOLERANCE)
		return 0;
	for (unsigned i = 0; i < vcpus_count(m->vcpus); i++)
		if (!m->kvm.tsc_control || kvm_ioctl(vcpus_fd(m->vcpus, i), KVM_SET_TSC_KHZ, (void *)(uintptr_t)was) < 0)
			return error_set(err, -EXDEV, 500, "the state is of a guest whose clock runs at %u kHz, this CPU's at %u, and it cannot change that", was, is);
	return 0;
}

static int restore_machine(struct machine *m, struct str file, struct error *err)
{
	struct str rest;
	uint64_t vcpus, khz, up, devices, id;
	int r = state_find(file, STATE_MACHINE, 0, &rest, err);
	if (r < 0)
		return r;
	if (!state_take(&rest, 4, &vcpus) || !state_take(&rest, 4, &khz) || !state_take(&rest, 4, &up) || !state_take(&rest, 4, &devices))
		return other_machine(err, "it is damaged");
	if (vcpus != vcpus_count(m->vcpus))
		return other_machine(err, "it has another number of processors");
	if (devices != m->n_devices)
		return other_machine(err, "it has other devices");
	for (unsigned i = 0; i < m->n_devices; i++)
		if (!state_take(&rest, 4, &id) || id != (uint64_t)m->device[i]->ops->id)
			return other_machine(err, "it has other devices");
	m->up = up;
	return check_speed(m, (uint32_t)khz, err);
}

/* The guest keeps the processors that it had, if this machine can be them. */
static int restore_cpuid(struct machine *m, struct str file, struct error *err)
{
	struct str block;
	struct cpuid given = {0};
	int r = state_find(file, STATE_CPUID, 0, &block, err);
	if (r < 0)
		return r;
	if (block.n % sizeof(given.entry[0]) || block.n > sizeof(given.entry))
		return other_machine(err, "its CPUID table is damaged");
	given.n = (uint32_t)(block.n / sizeof(given.entry[0]));
	memcpy(given.entry, block.p, block.n);
	if ((r = cpuid_check(&m->cpuid, &given, err)) == 0)
		m->cpuid = given;
	return r;
}

static void ring(int fd)
{
	uint64_t one = 1;
	if (write(fd, &one, sizeof(one)) < 0)
		log_warn("eventfd: %s", strerror(errno));
}

/* What was on its way when the machine was stopped (a notification that the loop had not seen, an interrupt that KVM had not taken) is in no state: it is sent again, and too many do no harm. */
static void repeat_events(struct virtio_device *d)
{
	if (!d->active)
		return;
	ring(d->notified);
	if (atomic_load(&d->interrupt_status))
		ring(d->irq);
}

static int restore_devices(struct machine *m, struct str file, struct error *err)
{
	struct str block;
	int r;
	for (unsigned i = 0; i < m->n_devices; i++) {
		struct virtio_device *d = m->device[i];
		if ((r = state_find(file, STATE_DEVICE, i, &block, err)) < 0)
			return r;
		if ((r = virtio_load(d, block, err)) < 0)
			return error_wrap(err, r, "device %u (%s)", i, d->ops->name);
		repeat_events(d);
	}
	if ((r = state_find(file, STATE_SERIAL, 0, &block, err)) < 0)
		return r;
	r = serial_load(m->serial, block);
	return r < 0 ? error_errno(err, r, "serial port") : 0;
}

static int check_memory(const struct machine *m, int fd, uint64_t saved, struct error *err)
{
	struct stat st;
	if (saved != memory_size(&m->memory))
		return other_machine(err, "it has another amount of memory");
	if (fstat(fd, &st) < 0)
		return error_errno(err, -errno, "saved memory");
	if ((uint64_t)st.st_size != saved)
		return error_set(err, -EINVAL, 500, "saved memory: it was cut or lengthened");
	return 0;
}

int state_restore(struct machine *m, int state, int memory, struct error *err)
{
	cleanup_buf struct buf b = BUF_INIT;
	uint64_t size;
	int r = read_file(state, &b, err);
	if (r < 0)
		return r;
	struct str file = buf_str(&b);
	if ((r = state_check(file, &size, err)) < 0 || (r = check_memory(m, memory, size, err)) < 0 || (r = restore_machine(m, file, err)) < 0 ||
		(r = restore_cpuid(m, file, err)) < 0 || (r = state_restore_kernel(&m->kvm, m->vcpus, &m->cpuid, file, err)) < 0 ||
		(r = restore_devices(m, file, err)) < 0)
		return r;
	cpuid_number(&m->cpuid, 0);
	vsock_restored(m->vsock);
	machine_new_generation(m, true);
	return 0;
}
