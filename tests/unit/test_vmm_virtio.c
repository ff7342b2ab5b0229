#include "unit.h"

#include "base/cleanup.h"
#include "base/log.h"
#include "vmm_driver.h"

#include <errno.h>
#include <linux/virtio_config.h>
#include <linux/virtio_mmio.h>
#include <linux/virtio_ring.h>
#include <stdlib.h>
#include <sys/mman.h>
#include <unistd.h>

enum { MEMORY = 1 << 18, CONFIG = 12, QUEUES = 2 };

#define BIT(n) (UINT64_C(1) << (n))
#define OURS BIT(5)
#define TRANSPORT (BIT(VIRTIO_F_VERSION_1) | BIT(VIRTIO_RING_F_INDIRECT_DESC) | BIT(VIRTIO_RING_F_EVENT_IDX))
#define ACK VIRTIO_CONFIG_S_ACKNOWLEDGE
#define DRIVER VIRTIO_CONFIG_S_DRIVER
#define OK VIRTIO_CONFIG_S_FEATURES_OK
#define RUN VIRTIO_CONFIG_S_DRIVER_OK
#define FAILED VIRTIO_CONFIG_S_FAILED
#define BROKEN VIRTIO_CONFIG_S_NEEDS_RESET

/* A device that counts what is called. */
struct dummy {
	struct virtio_device d;
	unsigned activated, resets, notified[QUEUES], quiesced, resumed, writes;
	bool active_in_reset;
	unsigned char config[CONFIG];
	uint32_t own; /* its state */
};

static struct dummy *of(struct virtio_device *d)
{
	return container_of(d, struct dummy, d);
}

static void dummy_activate(struct virtio_device *d)
{
	of(d)->activated++;
}

static void dummy_reset(struct virtio_device *d)
{
	of(d)->resets++;
	of(d)->active_in_reset |= d->active;
}

static void dummy_notify(struct virtio_device *d, unsigned queue)
{
	of(d)->notified[queue]++;
}

static void dummy_write(struct virtio_device *d, unsigned offset, const void *from, unsigned n)
{
	assert_true(offset + n <= CONFIG);
	of(d)->writes++;
	memcpy(of(d)->config + offset, from, n);
}

static void dummy_quiesce(struct virtio_device *d)
{
	of(d)->quiesced++;
}

static void dummy_resume(struct virtio_device *d)
{
	of(d)->resumed++;
}

static void dummy_save(struct virtio_device *d, struct buf *to)
{
	buf_add(to, &of(d)->own, 4);
}

static int dummy_load(struct virtio_device *d, struct str from)
{
	if (from.n != 4)
		return -EINVAL;
	memcpy(&of(d)->own, from.p, 4);
	return 0;
}

static const struct virtio_ops ops = {
	.id = VIRTIO_ENTROPY,
	.name = "dummy",
	.activate = dummy_activate,
	.reset = dummy_reset,
	.notify = dummy_notify,
	.config_write = dummy_write,
	.quiesce = dummy_quiesce,
	.resume = dummy_resume,
	.save = dummy_save,
	.load = dummy_load,
};

struct world {
	struct guest_memory memory;
	struct dummy *dummy;
	struct virtio_device *d;
	struct driver driver;
};

static void begin(struct world *w, struct loop *l)
{
	driver_memory(&w->memory, MEMORY);
	w->dummy = calloc(1, sizeof(*w->dummy));
	w->d = &w->dummy->d;
	*w->d = (struct virtio_device){.ops = &ops, .offered = OURS, .n_queues = QUEUES, .config_size = CONFIG, .config = w->dummy->config};
	assert_int_equal(virtio_init(w->d, l, &w->memory, NULL), 0);
	driver_init(&w->driver, w->d, &w->memory);
}

static void end(struct world *w)
{
	virtio_free(w->d);
	driver_memory_done(&w->memory);
}

static uint32_t get(struct world *w, unsigned offset)
{
	return driver_get(&w->driver, offset);
}

static void set(struct world *w, unsigned offset, uint32_t value)
{
	driver_set(&w->driver, offset, value);
}

static uint32_t status(struct world *w, uint32_t value)
{
	set(w, VIRTIO_MMIO_STATUS, value);
	return get(w, VIRTIO_MMIO_STATUS);
}

/* What a fresh device's registers read, and whether they keep what is written when the driver has not said a word. */
static void every_register_reads_as_it_should(void **state)
{
	static const struct {
		unsigned offset;
		uint32_t value;
	} table[] = {
		{0x00, 0x74726976},
		{0x04, 2},
		{0x08, VIRTIO_ENTROPY},
		{0x0c, 0x49425543},
		{0x10, OURS | (uint32_t)TRANSPORT},
		{0x34, VIRTQUEUE_SIZE_MAX},
		{0xb0, UINT32_MAX},
		{0xb4, UINT32_MAX},
		{0xb8, UINT32_MAX},
		{0xbc, UINT32_MAX},
	};
	struct world w = {0};
	begin(&w, NULL);
	for (unsigned offset = 0; offset < 0x100; offset++) {
		uint32_t want = 0;
		for (size_t i = 0; i < ARRAY_SIZE(table); i++)
			want = table[i].offset == offset ? table[i].value : want;
		assert_int_equal(get(&w, offset), want);
	}
	end(&w);
}

/* No access of any size at any place does harm, and only whole registers answer. */
static void every_offset_takes_every_size(void **state)
{
	static const unsigned sizes[] = {1, 2, 3, 4, 8};
	static const unsigned char ones[8] = {255, 255, 255, 255, 255, 255, 255, 255};
	struct world w = {0};
	begin(&w, NULL);
	for (uint64_t offset = 0; offset < 0x100 + CONFIG + 16; offset++) {
		for (size_t i = 0; i < ARRAY_SIZE(sizes); i++) {
			unsigned n = sizes[i];
			cleanup_free unsigned char *to = malloc(n);
			bool config = offset >= 0x100 && offset + n <= 0x100 + CONFIG && n != 3;
			memset(to, 0xee, n);
			w.dummy->writes = 0;
			memset(w.dummy->config, 0x77, CONFIG);
			virtio_mmio_read(w.d, offset, to, n);
			for (unsigned k = 0; k < n && (n != 4 || offset >= 0x100); k++)
				assert_int_equal(to[k], config ? 0x77 : 0);
			virtio_mmio_write(w.d, offset, ones, n);
			assert_int_equal(w.dummy->writes, config);
			virtio_mmio_write(w.d, offset, ones, n); /* again, now that registers hold odd things */
			virtio_mmio_read(w.d, offset, to, n);
		}
	}
	unsigned char byte = 1;
	virtio_mmio_read(w.d, UINT64_MAX, &byte, 1);
	assert_int_equal(byte, 0);
	virtio_mmio_write(w.d, UINT64_MAX, &byte, 1);
	driver_start(&w.driver, OURS, 8); /* and it can be used afterwards */
	assert_true(w.d->active);
	end(&w);
}

static void status_goes_in_its_order(void **state)
{
	static const struct {
		uint32_t writes[6], want;
	} cases[] = {
		{{ACK}, ACK},
		{{DRIVER}, 0},
		{{OK}, 0},
		{{RUN}, 0},
		{{ACK, ACK | DRIVER}, ACK | DRIVER},
		{{ACK, ACK | RUN}, ACK},
		{{ACK, ACK | OK}, ACK},
		{{ACK, ACK | DRIVER, ACK | DRIVER | RUN}, ACK | DRIVER},
		{{ACK | DRIVER, ACK | DRIVER | OK}, ACK | DRIVER}, /* VERSION_1 is not accepted */
		{{ACK, ACK | DRIVER, DRIVER}, ACK | DRIVER},       /* nothing is taken back */
		{{ACK, ACK | 0x10 | 0x20 | BROKEN | 0xffffff00}, ACK},
		{{ACK, ACK | FAILED}, ACK | FAILED},
	};
	for (size_t i = 0; i < ARRAY_SIZE(cases); i++) {
		struct world w = {0};
		begin(&w, NULL);
		for (const uint32_t *value = cases[i].writes; *value; value++)
			status(&w, *value);
		assert_int_equal(get(&w, VIRTIO_MMIO_STATUS), cases[i].want);
		assert_false(w.d->active);
		assert_int_equal(w.dummy->activated, 0);
		assert_int_equal(status(&w, 0), 0);
		end(&w);
	}
}

static void features_are_agreed_upon(void **state)
{
	struct world w = {0};
	begin(&w, NULL);
	assert_true(driver_offered(&w.driver) == (OURS | TRANSPORT));
	set(&w, VIRTIO_MMIO_DEVICE_FEATURES_SEL, 2);
	assert_int_equal(get(&w, VIRTIO_MMIO_DEVICE_FEATURES), 0);
	assert_false(driver_negotiate(&w.driver, OURS));                                /* not VERSION_1 */
	assert_false(driver_negotiate(&w.driver, BIT(VIRTIO_F_VERSION_1) | BIT(6)));    /* not offered */
	assert_false(driver_negotiate(&w.driver, BIT(VIRTIO_F_VERSION_1) | BIT(63)));
	assert_false(driver_negotiate(&w.driver, BIT(VIRTIO_F_VERSION_1) | BIT(VIRTIO_F_RING_PACKED)));
	assert_int_equal(status(&w, ACK | DRIVER | RUN), ACK | DRIVER);
	/* After a refusal it may try again with less. */
	set(&w, VIRTIO_MMIO_DRIVER_FEATURES_SEL, 1);
	set(&w, VIRTIO_MMIO_DRIVER_FEATURES, 1);
	assert_int_equal(status(&w, ACK | DRIVER | OK), ACK | DRIVER | OK);
	assert_true(w.d->accepted == BIT(VIRTIO_F_VERSION_1));
	/* What is agreed upon stays. */
	set(&w, VIRTIO_MMIO_DRIVER_FEATURES, 0);
	assert_true(w.d->accepted == BIT(VIRTIO_F_VERSION_1) && w.d->driver_features == w.d->accepted);
	/* Features beyond 63 cannot have been offered. */
	status(&w, 0);
	status(&w, ACK | DRIVER);
	set(&w, VIRTIO_MMIO_DRIVER_FEATURES_SEL, 1);
	set(&w, VIRTIO_MMIO_DRIVER_FEATURES, 1);
	set(&w, VIRTIO_MMIO_DRIVER_FEATURES_SEL, 7);
	set(&w, VIRTIO_MMIO_DRIVER_FEATURES, 1);
	assert_int_equal(status(&w, ACK | DRIVER | OK), ACK | DRIVER);
	assert_true(driver_negotiate(&w.driver, OURS | TRANSPORT));
	assert_true(w.d->queue[0].event_idx);
	end(&w);
}

static void queues_are_set_up_between_features_and_ready(void **state)
{
	struct world w = {0};
	begin(&w, NULL);
	set(&w, VIRTIO_MMIO_QUEUE_NUM, 8);
	set(&w, VIRTIO_MMIO_QUEUE_READY, 1);
	assert_int_equal(get(&w, VIRTIO_MMIO_QUEUE_READY), 0);
	assert_int_equal(w.d->queue[0].size, 0);
	assert_true(driver_negotiate(&w.driver, TRANSPORT));
	driver_queue(&w.driver, 1, 16);
	assert_true(w.d->queue[1].ready && w.d->queue[1].event_idx && !w.d->queue[0].ready);
	/* A queue that is ready does not change. */
	struct virtqueue before = w.d->queue[1];
	set(&w, VIRTIO_MMIO_QUEUE_NUM, 8);
	set(&w, VIRTIO_MMIO_QUEUE_DESC_LOW, 0);
	set(&w, VIRTIO_MMIO_QUEUE_USED_HIGH, 1);
	assert_memory_equal(&before, &w.d->queue[1], sizeof(before));
	/* One that is not there is not there. */
	set(&w, VIRTIO_MMIO_QUEUE_SEL, QUEUES);
	assert_int_equal(get(&w, VIRTIO_MMIO_QUEUE_NUM_MAX), 0);
	set(&w, VIRTIO_MMIO_QUEUE_READY, 1);
	assert_int_equal(get(&w, VIRTIO_MMIO_QUEUE_READY), 0);
	/* It is taken out of use: the device has let go of it when that reads back. */
	set(&w, VIRTIO_MMIO_QUEUE_SEL, 1);
	set(&w, VIRTIO_MMIO_QUEUE_READY, 0);
	assert_int_equal(get(&w, VIRTIO_MMIO_QUEUE_READY), 0);
	assert_int_equal(w.dummy->quiesced, 1);
	assert_int_equal(w.dummy->resumed, 1);
	driver_queue(&w.driver, 1, 32);
	/* All 64 bits of an address count. */
	set(&w, VIRTIO_MMIO_QUEUE_SEL, 0);
	set(&w, VIRTIO_MMIO_QUEUE_NUM, 8);
	set(&w, VIRTIO_MMIO_QUEUE_DESC_HIGH, 1);
	assert_true(w.d->queue[0].desc == BIT(32));
	set(&w, VIRTIO_MMIO_QUEUE_READY, 1);
	assert_int_equal(get(&w, VIRTIO_MMIO_QUEUE_READY), 0);
	assert_int_equal(get(&w, VIRTIO_MMIO_STATUS), ACK | DRIVER | OK | BROKEN);
	assert_int_equal(status(&w, ACK | DRIVER | OK | RUN), ACK | DRIVER | OK | BROKEN);
	driver_start(&w.driver, 0, 256);
	end(&w);
}

static void notifications_reach_queues_that_are_ready(void **state)
{
	struct world w = {0};
	begin(&w, NULL);
	assert_true(driver_negotiate(&w.driver, TRANSPORT));
	driver_queue(&w.driver, 0, 16);
	set(&w, VIRTIO_MMIO_QUEUE_NOTIFY, 0);
	assert_int_equal(w.dummy->notified[0], 0);
	status(&w, ACK | DRIVER | OK | RUN);
	assert_int_equal(w.dummy->activated, 1);
	status(&w, ACK | DRIVER | OK | RUN);
	assert_int_equal(w.dummy->activated, 1);
	set(&w, VIRTIO_MMIO_QUEUE_NOTIFY, 0);
	set(&w, VIRTIO_MMIO_QUEUE_NOTIFY, 1);
	set(&w, VIRTIO_MMIO_QUEUE_NOTIFY, QUEUES);
	set(&w, VIRTIO_MMIO_QUEUE_NOTIFY, UINT32_MAX);
	assert_int_equal(w.dummy->notified[0], 1);
	assert_int_equal(w.dummy->notified[1], 0);
	end(&w);
}

static void a_reset_forgets_everything(void **state)
{
	struct world w = {0};
	begin(&w, NULL);
	driver_start(&w.driver, OURS | TRANSPORT, 16);
	virtio_config_changed(w.d);
	uint32_t generation = get(&w, VIRTIO_MMIO_CONFIG_GENERATION);
	unsigned resets = w.dummy->resets;
	set(&w, VIRTIO_MMIO_QUEUE_SEL, 1);
	set(&w, VIRTIO_MMIO_STATUS, 0);
	assert_int_equal(w.dummy->resets, resets + 1);
	assert_false(w.dummy->active_in_reset);
	assert_int_equal(get(&w, VIRTIO_MMIO_STATUS), 0);
	assert_int_equal(get(&w, VIRTIO_MMIO_INTERRUPT_STATUS), 0);
	assert_int_equal(get(&w, VIRTIO_MMIO_CONFIG_GENERATION), generation);
	assert_true(w.d->accepted == 0 && w.d->driver_features == 0 && w.d->queue_select == 0 && !w.d->active);
	for (unsigned i = 0; i < QUEUES; i++)
		assert_true(!w.d->queue[i].ready && w.d->queue[i].size == 0 && !w.d->queue[i].event_idx && w.d->queue[i].memory == &w.memory);
	driver_start(&w.driver, 0, 8);
	end(&w);
}

static void interrupts_are_raised_and_acknowledged(void **state)
{
	struct world w = {0};
	struct loop *l = loop_new();
	struct chain *c = malloc(sizeof(*c));
	uint64_t n = 0;
	begin(&w, l);
	virtio_config_changed(w.d); /* nobody is there to be interrupted */
	assert_int_equal(get(&w, VIRTIO_MMIO_INTERRUPT_STATUS), 0);
	assert_int_equal(get(&w, VIRTIO_MMIO_CONFIG_GENERATION), 1);
	driver_start(&w.driver, 0, 8);
	struct part part = {driver_alloc(&w.driver, 16), 16, true};
	driver_add(&w.driver, 0, &part, 1);
	virtio_used(w.d, &w.d->queue[0]);
	assert_int_equal(read(w.d->irq, &n, sizeof(n)), -1);
	assert_int_equal(virtqueue_pop(&w.d->queue[0], c), 1);
	virtqueue_push(&w.d->queue[0], c->head, 3);
	virtio_used(w.d, &w.d->queue[0]);
	assert_int_equal(read(w.d->irq, &n, sizeof(n)), sizeof(n));
	virtio_config_changed(w.d);
	uint32_t value = 0;
	assert_true(virtio_mmio_quick(w.d, VIRTIO_MMIO_INTERRUPT_STATUS, false, &value, 4));
	assert_int_equal(value, VIRTIO_MMIO_INT_VRING | VIRTIO_MMIO_INT_CONFIG);
	value = VIRTIO_MMIO_INT_VRING;
	assert_true(virtio_mmio_quick(w.d, VIRTIO_MMIO_INTERRUPT_ACK, true, &value, 4));
	assert_int_equal(driver_interrupts(&w.driver), VIRTIO_MMIO_INT_CONFIG);
	assert_int_equal(driver_interrupts(&w.driver), 0);
	/* Nothing else is quick. */
	assert_false(virtio_mmio_quick(w.d, VIRTIO_MMIO_INTERRUPT_STATUS, true, &value, 4));
	assert_false(virtio_mmio_quick(w.d, VIRTIO_MMIO_INTERRUPT_ACK, false, &value, 4));
	assert_false(virtio_mmio_quick(w.d, VIRTIO_MMIO_STATUS, true, &value, 4));
	assert_false(virtio_mmio_quick(w.d, VIRTIO_MMIO_INTERRUPT_STATUS, false, &value, 2));
	end(&w);
	free(c);
	loop_free(l);
}

static void the_kernels_notification_reaches_all_queues(void **state)
{
	struct world w = {0};
	struct loop *l = loop_new();
	uint64_t one = 1;
	begin(&w, l);
	assert_int_equal(write(w.d->notified, &one, sizeof(one)), sizeof(one));
	assert_int_equal(loop_turn(l, 0), 0);
	assert_int_equal(w.dummy->notified[0], 0);
	driver_start(&w.driver, 0, 8);
	assert_int_equal(write(w.d->notified, &one, sizeof(one)), sizeof(one));
	loop_turn(l, 0);
	loop_turn(l, 0);
	assert_int_equal(w.dummy->notified[0], 1);
	assert_int_equal(w.dummy->notified[1], 1);
	virtio_again(w.d);
	assert_int_equal(w.dummy->notified[1], 1);
	loop_turn(l, 0);
	assert_int_equal(w.dummy->notified[1], 2);
	end(&w);
	loop_free(l);
}

static void a_broken_device_waits_for_its_reset(void **state)
{
	struct world w = {0};
	begin(&w, NULL);
	driver_start(&w.driver, 0, 8);
	virtio_broken(w.d, "test");
	assert_int_equal(get(&w, VIRTIO_MMIO_STATUS), ACK | DRIVER | OK | RUN | BROKEN);
	assert_int_equal(driver_interrupts(&w.driver), VIRTIO_MMIO_INT_CONFIG);
	assert_false(w.d->active);
	set(&w, VIRTIO_MMIO_QUEUE_NOTIFY, 0);
	assert_int_equal(w.dummy->notified[0], 0);
	virtio_broken(w.d, "again");
	assert_int_equal(driver_interrupts(&w.driver), 0);
	assert_int_equal(status(&w, ACK | DRIVER | OK | RUN), ACK | DRIVER | OK | RUN | BROKEN);
	driver_start(&w.driver, 0, 8);
	driver_notify(&w.driver, 0);
	assert_int_equal(w.dummy->notified[0], 1);
	end(&w);
}

static void a_guest_that_breaks_it_again_and_again_does_not_fill_the_log(void **state)
{
	struct world w = {0};
	cleanup_fd int log = memfd_create("log", MFD_CLOEXEC);
	begin(&w, NULL);
	log_setup("test", log, LOG_INFO);
	for (unsigned i = 0; i < 1000; i++) {
		driver_start(&w.driver, 0, 8);
		virtio_broken(w.d, "test");
		assert_int_equal(get(&w, VIRTIO_MMIO_STATUS) & BROKEN, BROKEN);
	}
	log_setup("test", STDERR_FILENO, LOG_INFO);
	off_t size = lseek(log, 0, SEEK_END);
	assert_in_range(size, 1, 4096);
	end(&w);
}

static void a_saved_device_goes_on(void **state)
{
	struct world w = {0};
	struct loop *l = loop_new();
	cleanup_buf struct buf saved = BUF_INIT;
	struct chain *c = malloc(sizeof(*c));
	begin(&w, l);
	driver_start(&w.driver, OURS | TRANSPORT, 16);
	struct part part = {driver_alloc(&w.driver, 16), 16, true};
	for (unsigned i = 0; i < 3; i++)
		driver_add(&w.driver, 1, &part, 1);
	assert_int_equal(virtqueue_pop(&w.d->queue[1], c), 1);
	virtqueue_push(&w.d->queue[1], c->head, 7);
	virtio_config_changed(w.d);
	w.dummy->own = 42;
	set(&w, VIRTIO_MMIO_QUEUE_SEL, 1);
	virtio_save(w.d, &saved);
	struct virtqueue before[QUEUES] = {w.d->queue[0], w.d->queue[1]};
	virtio_free(w.d);

	w.dummy = calloc(1, sizeof(*w.dummy));
	w.d = w.driver.device = &w.dummy->d;
	*w.d = (struct virtio_device){.ops = &ops, .offered = OURS, .n_queues = QUEUES, .config_size = CONFIG, .config = w.dummy->config};
	assert_int_equal(virtio_init(w.d, l, &w.memory, NULL), 0);
	assert_int_equal(virtio_load(w.d, buf_str(&saved), NULL), 0);
	assert_true(w.d->active && w.dummy->activated == 1 && w.dummy->own == 42);
	assert_true(w.d->accepted == (OURS | TRANSPORT));
	assert_int_equal(get(&w, VIRTIO_MMIO_STATUS), ACK | DRIVER | OK | RUN);
	assert_int_equal(get(&w, VIRTIO_MMIO_QUEUE_READY), 1);
	assert_int_equal(get(&w, VIRTIO_MMIO_CONFIG_GENERATION), 1);
	assert_memory_equal(&before[0], &w.d->queue[0], sizeof(before));
	/* What may have been lost is done again: notifications, the interrupt. */
	uint64_t n = 0;
	assert_int_equal(read(w.d->irq, &n, sizeof(n)), sizeof(n));
	loop_turn(l, 0);
	assert_int_equal(w.dummy->notified[1], 1);
	assert_true(driver_used(&w.driver, 1, NULL, NULL));
	assert_int_equal(virtqueue_pop(&w.d->queue[1], c), 1);
	end(&w);
	free(c);
	loop_free(l);
}

/* Whatever the bytes are, the device is as it should be afterwards: loaded, or reset and usable. */
static void damaged_state_is_refused(void **state)
{
	struct world w = {0};
	cleanup_buf struct buf saved = BUF_INIT;
	struct error err = {0};
	begin(&w, NULL);
	driver_start(&w.driver, OURS | TRANSPORT, 16);
	virtio_save(w.d, &saved);
	struct str good = buf_str(&saved);
	for (size_t n = 0; n < good.n; n++)
		assert_int_equal(virtio_load(w.d, str_n(good.p, n), &err), -EINVAL);
	assert_int_not_equal(err.code, 0);
	for (size_t i = 0; i < 8 * good.n; i++) {
		cleanup_free char *bytes = malloc(good.n);
		memcpy(bytes, good.p, good.n);
		bytes[i / 8] ^= (char)(1 << (i % 8));
		int r = virtio_load(w.d, str_n(bytes, good.n), NULL);
		assert_true(r == 0 || r == -EINVAL);
		if (r < 0)
			assert_true(get(&w, VIRTIO_MMIO_STATUS) == 0 && !w.d->active && !w.d->queue[0].ready);
		for (unsigned q = 0; q < QUEUES; q++)
			(void)virtqueue_has(&w.d->queue[q]);
	}
	/* Offsets of version, kind of device, number of queues, status (see struct saved). */
	for (size_t i = 0; i < 4; i++) {
		cleanup_free char *bytes = malloc(good.n);
		memcpy(bytes, good.p, good.n);
		bytes[4 * i + 1] = 1;
		assert_int_equal(virtio_load(w.d, str_n(bytes, good.n), NULL), -EINVAL);
	}
	driver_start(&w.driver, 0, 8);
	assert_int_equal(virtio_load(w.d, good, NULL), 0);
	end(&w);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(every_register_reads_as_it_should),
		cmocka_unit_test(every_offset_takes_every_size),
		cmocka_unit_test(status_goes_in_its_order),
		cmocka_unit_test(features_are_agreed_upon),
		cmocka_unit_test(queues_are_set_up_between_features_and_ready),
		cmocka_unit_test(notifications_reach_queues_that_are_ready),
		cmocka_unit_test(a_reset_forgets_everything),
		cmocka_unit_test(interrupts_are_raised_and_acknowledged),
		cmocka_unit_test(the_kernels_notification_reaches_all_queues),
		cmocka_unit_test(a_broken_device_waits_for_its_reset),
		cmocka_unit_test(a_guest_that_breaks_it_again_and_again_does_not_fill_the_log),
		cmocka_unit_test(a_saved_device_goes_on),
		cmocka_unit_test(damaged_state_is_refused),
	};
	return cmocka_run_group_tests(tests, NULL, NULL);
}
