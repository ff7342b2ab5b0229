#include "unit.h"

#include "vmm_driver.h"

#include <errno.h>
#include <linux/virtio_ring.h>
#include <stdlib.h>

enum { MEMORY = 1 << 20, SIZE = 8 };

/* A queue without a device; the driver's side shares its numbers. */
struct world {
	struct guest_memory memory;
	struct driver driver;
	struct virtqueue q;
	struct chain chain;
};

static struct world *world_new(bool event_idx)
{
	struct world *w = calloc(1, sizeof(*w));
	driver_memory(&w->memory, MEMORY);
	driver_init(&w->driver, NULL, &w->memory);
	struct driver_queue *dq = &w->driver.queue[0];
	*dq = (struct driver_queue){.desc = 0, .avail = 16 * SIZE, .used = 16 * SIZE + 32, .size = SIZE};
	w->driver.next = 4096;
	w->q = (struct virtqueue){.memory = &w->memory, .size = SIZE, .desc = dq->desc, .avail = dq->avail, .used = dq->used, .event_idx = event_idx};
	assert_int_equal(virtqueue_enable(&w->q), 0);
	return w;
}

static void world_free(struct world *w)
{
	driver_memory_done(&w->memory);
	free(w);
}

static void set16(struct world *w, uint64_t address, uint16_t value)
{
	memcpy(driver_at(&w->driver, address, 2), &value, 2);
}

static uint16_t get16(struct world *w, uint64_t address)
{
	uint16_t value;
	memcpy(&value, driver_at(&w->driver, address, 2), 2);
	return value;
}

static void enabling_checks_size_alignment_and_memory(void **state)
{
	static const struct {
		uint16_t size;
		uint64_t desc, avail, used;
		bool good;
	} cases[] = {
		{8, 0, 128, 160, true},
		{0, 0, 128, 160, false},
		{3, 0, 128, 160, false},
		{256, 0, 4096, 8192, true},
		{512, 0, 8192, 16384, false},
		{8, 8, 256, 512, false},
		{8, 0, 129, 160, false},
		{8, 0, 130, 162, false},
		{8, MEMORY - 128, 128, 160, true},
		{8, MEMORY - 112, 128, 160, false},
		{8, 0, MEMORY - 22, 160, true},
		{8, 0, MEMORY - 20, 160, false},
		{8, 0, 128, MEMORY - 72, true},
		{8, 0, 128, MEMORY - 68, false},
		{8, UINT64_MAX - 15, 128, 160, false},
		{8, 0, UINT64_MAX - 1, 160, false},
		{8, 0, 128, UINT64_MAX - 3, false},
	};
	struct world *w = world_new(false);
	for (size_t i = 0; i < sizeof(cases) / sizeof(cases[0]); i++) {
		struct virtqueue q = {.memory = &w->memory, .size = cases[i].size, .desc = cases[i].desc, .avail = cases[i].avail, .used = cases[i].used};
		assert_int_equal(virtqueue_enable(&q), cases[i].good ? 0 : -EINVAL);
		assert_int_equal(q.ready, cases[i].good);
	}
	world_free(w);
}

static void a_chain_comes_in_its_order_and_goes_back(void **state)
{
	struct world *w = world_new(false);
	struct part parts[] = {{0x2000, 5, false}, {0x3000, 6, false}, {0x4000, 7, true}};
	uint32_t written;
	uint16_t head;
	assert_false(virtqueue_has(&w->q));
	assert_int_equal(virtqueue_pop(&w->q, &w->chain), 0);
	for (unsigned round = 0; round < 70000; round++) {
		uint16_t h = driver_add(&w->driver, 0, parts, 3);
		assert_true(virtqueue_has(&w->q));
		assert_int_equal(virtqueue_pop(&w->q, &w->chain), 1);
		assert_int_equal(w->chain.head, h);
		assert_false(virtqueue_has(&w->q));
		virtqueue_push(&w->q, w->chain.head, round);
		assert_true(driver_used(&w->driver, 0, &head, &written));
		assert_int_equal(head, h);
		assert_int_equal(written, round);
	}
	assert_int_equal(w->chain.n_in, 2);
	assert_int_equal(w->chain.n_out, 1);
	assert_int_equal(w->chain.in_bytes, 11);
	assert_int_equal(w->chain.out_bytes, 7);
	assert_ptr_equal(w->chain.in[1].iov_base, driver_at(&w->driver, 0x3000, 6));
	world_free(w);
}

static void an_unpopped_chain_comes_again(void **state)
{
	struct world *w = world_new(false);
	struct part part = {0x2000, 5, true};
	uint16_t head = driver_add(&w->driver, 0, &part, 1);
	assert_int_equal(virtqueue_pop(&w->q, &w->chain), 1);
	virtqueue_unpop(&w->q);
	assert_int_equal(virtqueue_pop(&w->q, &w->chain), 1);
	assert_int_equal(w->chain.head, head);
	assert_int_equal(virtqueue_pop(&w->q, &w->chain), 0);
	world_free(w);
}

static void an_indirect_table_is_followed(void **state)
{
	struct world *w = world_new(false);
	struct part parts[CHAIN_PARTS_MAX];
	for (unsigned i = 0; i < CHAIN_PARTS_MAX; i++)
		parts[i] = (struct part){0x8000 + 16 * i, 16, i > 100};
	driver_add_indirect(&w->driver, 0, parts, CHAIN_PARTS_MAX);
	assert_int_equal(virtqueue_pop(&w->q, &w->chain), 1);
	assert_int_equal(w->chain.n_in, 101);
	assert_int_equal(w->chain.n_out, CHAIN_PARTS_MAX - 101);
	/* 2.7.5.3.1: after ordinary descriptors, and marked "write-only", which means nothing. */
	uint64_t table = w->driver.next;
	struct vring_desc inner = {.addr = 0x5000, .len = 3, .flags = VRING_DESC_F_WRITE};
	memcpy(driver_at(&w->driver, table + 1, sizeof(inner)), &inner, sizeof(inner)); /* at an odd address */
	driver_descriptor(&w->driver, 0, 3, 0x2000, 4, VRING_DESC_F_NEXT, 4);
	driver_descriptor(&w->driver, 0, 4, table + 1, sizeof(inner), VRING_DESC_F_INDIRECT | VRING_DESC_F_WRITE, 0);
	driver_offer(&w->driver, 0, 3);
	assert_int_equal(virtqueue_pop(&w->q, &w->chain), 1);
	assert_int_equal(w->chain.in_bytes, 4);
	assert_int_equal(w->chain.out_bytes, 3);
	world_free(w);
}

/* Each breaks one rule. */
static void loop_of_two(struct world *w)
{
	driver_descriptor(&w->driver, 0, 0, 0x2000, 1, VRING_DESC_F_NEXT, 1);
	driver_descriptor(&w->driver, 0, 1, 0x2000, 1, VRING_DESC_F_NEXT, 0);
	driver_offer(&w->driver, 0, 0);
}

static void read_after_write(struct world *w)
{
	struct part parts[] = {{0x2000, 1, true}, {0x3000, 1, false}};
	driver_add(&w->driver, 0, parts, 2);
}

static void head_out_of_range(struct world *w)
{
	driver_offer(&w->driver, 0, SIZE);
}

static void next_out_of_range(struct world *w)
{
	driver_descriptor(&w->driver, 0, 0, 0x2000, 1, VRING_DESC_F_NEXT, SIZE);
	driver_offer(&w->driver, 0, 0);
}

static void one(struct world *w, uint64_t address, uint32_t n, uint16_t flags)
{
	driver_descriptor(&w->driver, 0, 0, address, n, flags, 1);
	driver_offer(&w->driver, 0, 0);
}

static void beyond_memory(struct world *w)
{
	one(w, MEMORY - 4, 5, 0);
}

static void address_wraps(struct world *w)
{
	one(w, UINT64_MAX - 3, 8, VRING_DESC_F_WRITE);
}

static void empty_part(struct world *w)
{
	one(w, 0x2000, 0, 0);
}

static void empty_table(struct world *w)
{
	one(w, 0x2000, 0, VRING_DESC_F_INDIRECT);
}

static void table_of_odd_size(struct world *w)
{
	one(w, 0x2000, 24, VRING_DESC_F_INDIRECT);
}

static void table_beyond_memory(struct world *w)
{
	one(w, MEMORY - 16, 32, VRING_DESC_F_INDIRECT);
}

static void table_with_next(struct world *w)
{
	struct vring_desc inner = {.addr = 0x5000, .len = 3};
	memcpy(driver_at(&w->driver, 0x2000, 16), &inner, 16);
	one(w, 0x2000, 16, VRING_DESC_F_INDIRECT | VRING_DESC_F_NEXT);
}

static void table_in_table(struct world *w)
{
	struct vring_desc inner = {.addr = 0x2000, .len = 16, .flags = VRING_DESC_F_INDIRECT};
	memcpy(driver_at(&w->driver, 0x2000, 16), &inner, 16);
	one(w, 0x2000, 16, VRING_DESC_F_INDIRECT);
}

static void table_next_out_of_range(struct world *w)
{
	struct vring_desc inner = {.addr = 0x5000, .len = 3, .flags = VRING_DESC_F_NEXT, .next = 1};
	memcpy(driver_at(&w->driver, 0x2000, 16), &inner, 16);
	one(w, 0x2000, 16, VRING_DESC_F_INDIRECT);
}

static void too_long(struct world *w)
{
	struct part parts[CHAIN_PARTS_MAX + 1];
	for (unsigned i = 0; i <= CHAIN_PARTS_MAX; i++)
		parts[i] = (struct part){0x8000, 16, false};
	driver_add_indirect(&w->driver, 0, parts, CHAIN_PARTS_MAX + 1);
}

static void index_jumps(struct world *w)
{
	set16(w, w->driver.queue[0].avail + 2, SIZE + 1);
}

static void index_goes_back(struct world *w)
{
	set16(w, w->driver.queue[0].avail + 2, UINT16_MAX);
}

static void broken_rules_break_the_queue(void **state)
{
	static void (*const rules[])(struct world *w) = {
		loop_of_two, read_after_write, head_out_of_range, next_out_of_range, beyond_memory, address_wraps, empty_part, empty_table, table_of_odd_size,
		table_beyond_memory, table_with_next, table_in_table, table_next_out_of_range, too_long, index_jumps, index_goes_back,
	};
	for (size_t i = 0; i < sizeof(rules) / sizeof(rules[0]); i++) {
		struct world *w = world_new(false);
		rules[i](w);
		assert_int_equal(virtqueue_pop(&w->q, &w->chain), -EPROTO);
		assert_true(w->q.broken);
		/* From now on nothing is read or written. */
		struct part part = {0x2000, 1, false};
		driver_add(&w->driver, 0, &part, 1);
		assert_false(virtqueue_has(&w->q));
		assert_int_equal(virtqueue_pop(&w->q, &w->chain), 0);
		virtqueue_push(&w->q, 0, 1);
		assert_false(virtqueue_wants_interrupt(&w->q));
		assert_false(driver_used(&w->driver, 0, NULL, NULL));
		world_free(w);
	}
}

static void no_more_chains_are_under_way_than_there_are_descriptors(void **state)
{
	struct world *w = world_new(false);
	struct part part = {0x2000, 1, false};
	for (unsigned i = 0; i < SIZE; i++) {
		driver_add(&w->driver, 0, &part, 1);
		assert_int_equal(virtqueue_pop(&w->q, &w->chain), 1);
	}
	driver_add(&w->driver, 0, &part, 1);
	assert_int_equal(virtqueue_pop(&w->q, &w->chain), -EPROTO);
	world_free(w);
}

static void sums_stay_below_four_gibibytes(void **state)
{
	struct world *w = world_new(false);
	/* A memory that is 3 GiB large on paper; nothing touches it. */
	char *host = w->memory.region[0].host;
	struct guest_memory large = {.region = {w->memory.region[0], {.base = UINT64_C(1) << 32, .size = UINT64_C(3) << 30, .host = host}}, .n = 2};
	w->q.memory = &large;
	struct part fits[] = {{UINT64_C(1) << 32, 3u << 30, true}, {UINT64_C(1) << 32, (1u << 30) - 1, true}};
	driver_add(&w->driver, 0, fits, 2);
	assert_int_equal(virtqueue_pop(&w->q, &w->chain), 1);
	assert_int_equal(w->chain.out_bytes, UINT32_MAX);
	fits[1].n++;
	driver_add(&w->driver, 0, fits, 2);
	assert_int_equal(virtqueue_pop(&w->q, &w->chain), -EPROTO);
	world_free(w);
}

static void push_n(struct world *w, unsigned n)
{
	struct part part = {0x2000, 1, false};
	for (unsigned i = 0; i < n; i++) {
		driver_add(&w->driver, 0, &part, 1);
		assert_int_equal(virtqueue_pop(&w->q, &w->chain), 1);
		virtqueue_push(&w->q, w->chain.head, 0);
		assert_true(driver_used(&w->driver, 0, NULL, NULL));
	}
}

static void the_flag_suppresses_interrupts(void **state)
{
	struct world *w = world_new(false);
	uint64_t flags = w->driver.queue[0].avail;
	assert_false(virtqueue_wants_interrupt(&w->q)); /* nothing was pushed */
	push_n(w, 1);
	assert_true(virtqueue_wants_interrupt(&w->q));
	assert_false(virtqueue_wants_interrupt(&w->q));
	set16(w, flags, VRING_AVAIL_F_NO_INTERRUPT);
	push_n(w, 1);
	assert_false(virtqueue_wants_interrupt(&w->q));
	world_free(w);
}

static void the_event_index_asks_for_interrupts(void **state)
{
	struct world *w = world_new(true);
	uint64_t event = w->driver.queue[0].avail + 4 + 2 * SIZE;
	push_n(w, 1);
	assert_true(virtqueue_wants_interrupt(&w->q)); /* event 0: the first */
	push_n(w, 5);
	assert_false(virtqueue_wants_interrupt(&w->q)); /* has come already */
	set16(w, event, 8);
	push_n(w, 2);
	assert_false(virtqueue_wants_interrupt(&w->q)); /* 8 pushed, the ninth is wanted */
	push_n(w, 3);
	assert_true(virtqueue_wants_interrupt(&w->q));
	/* Over the end of the numbers. */
	set16(w, event, UINT16_MAX);
	push_n(w, 60000);
	assert_false(virtqueue_wants_interrupt(&w->q));
	push_n(w, 6000);
	assert_true(virtqueue_wants_interrupt(&w->q));
	world_free(w);
}

static void notifications_are_asked_for(void **state)
{
	struct world *w = world_new(false);
	virtqueue_notifications(&w->q, false);
	assert_int_equal(get16(w, w->driver.queue[0].used), VRING_USED_F_NO_NOTIFY);
	virtqueue_notifications(&w->q, true);
	assert_int_equal(get16(w, w->driver.queue[0].used), 0);
	world_free(w);
	w = world_new(true);
	push_n(w, 3);
	virtqueue_notifications(&w->q, true);
	assert_int_equal(get16(w, w->driver.queue[0].used + 4 + 8 * SIZE), 3);
	assert_int_equal(get16(w, w->driver.queue[0].used), 0);
	world_free(w);
}

static void copies_go_over_the_parts(void **state)
{
	char a[] = "abc", b[] = "defgh", c[8] = "", d[3] = "", out[16] = "";
	struct chain *chain = calloc(1, sizeof(*chain));
	chain->n_in = chain->n_out = 2;
	chain->in[0] = (struct iovec){a, 3};
	chain->in[1] = (struct iovec){b, 5};
	chain->out[0] = (struct iovec){d, 2};
	chain->out[1] = (struct iovec){c, 4};
	assert_int_equal(chain_read(chain, 0, out, 16), 8);
	assert_memory_equal(out, "abcdefgh", 8);
	assert_int_equal(chain_read(chain, 2, out, 3), 3);
	assert_memory_equal(out, "cde", 3);
	assert_int_equal(chain_read(chain, 3, out, 3), 3);
	assert_memory_equal(out, "def", 3);
	assert_int_equal(chain_read(chain, 8, out, 3), 0);
	assert_int_equal(chain_read(chain, SIZE_MAX, out, 3), 0);
	assert_int_equal(chain_write(chain, 1, "12345678", 8), 5);
	assert_memory_equal(d, "\0"
			       "1\0",
		3);
	assert_memory_equal(c, "2345\0", 5);
	free(chain);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(enabling_checks_size_alignment_and_memory),
		cmocka_unit_test(a_chain_comes_in_its_order_and_goes_back),
		cmocka_unit_test(an_unpopped_chain_comes_again),
		cmocka_unit_test(an_indirect_table_is_followed),
		cmocka_unit_test(broken_rules_break_the_queue),
		cmocka_unit_test(no_more_chains_are_under_way_than_there_are_descriptors),
		cmocka_unit_test(sums_stay_below_four_gibibytes),
		cmocka_unit_test(the_flag_suppresses_interrupts),
		cmocka_unit_test(the_event_index_asks_for_interrupts),
		cmocka_unit_test(notifications_are_asked_for),
		cmocka_unit_test(copies_go_over_the_parts),
	};
	return cmocka_run_group_tests(tests, NULL, NULL);
}
