#include "unit.h"

#include "base/cleanup.h"
#include "vmm/devices.h"
#include "vmm_driver.h"

#include <errno.h>
#include <fcntl.h>
#include <linux/virtio_balloon.h>
#include <linux/virtio_config.h>
#include <linux/virtio_mmio.h>
#include <sys/mman.h>

enum { PAGE = 4096, MEMORY = 256 * PAGE, INFLATE = 0, DEFLATE = 1, REPORT = 2, REPORT_BY_THE_STANDARD = 4 };

#define REPORTING (UINT64_C(1) << VIRTIO_BALLOON_F_REPORTING)

struct world {
	struct guest_memory memory;
	struct loop *loop;
	struct virtio_device *d;
	struct driver driver;
	uint64_t buffer;
};

/* Memory as a guest has it: of its own, or a private view of a file that is full of 'f'. */
static void map_memory(struct guest_memory *m, bool of_file)
{
	cleanup_fd int fd = -1;
	if (of_file) {
		cleanup_free char *bytes = malloc(MEMORY);
		memset(bytes, 'f', MEMORY);
		fd = memfd_create("memory", MFD_CLOEXEC);
		assert_int_equal(write(fd, bytes, MEMORY), MEMORY);
	}
	char *host = mmap(NULL, MEMORY, PROT_READ | PROT_WRITE, MAP_PRIVATE | (of_file ? 0 : MAP_ANONYMOUS), fd, 0);
	assert_ptr_not_equal(host, MAP_FAILED);
	*m = (struct guest_memory){.region = {{.size = MEMORY, .host = host}}, .n = 1};
}

static void begin(struct world *w, bool of_file)
{
	map_memory(&w->memory, of_file);
	w->loop = loop_new();
	w->d = balloon_new(w->loop, &w->memory, NULL);
	assert_non_null(w->d);
	driver_init(&w->driver, w->d, &w->memory);
	driver_start(&w->driver, REPORTING, 16);
	w->buffer = driver_alloc(&w->driver, PAGE);
	memset(driver_at(&w->driver, 128 * PAGE, 128 * PAGE), 'g', 128 * PAGE);
}

static void end(struct world *w)
{
	virtio_free(w->d);
	loop_free(w->loop);
	munmap(w->memory.region[0].host, MEMORY);
}

static void give(struct world *w, unsigned queue, const uint32_t *pages, uint32_t n)
{
	struct part part = {w->buffer, 4 * n, false};
	memcpy(driver_at(&w->driver, w->buffer, 4 * n), pages, 4 * n);
	driver_add(&w->driver, queue, &part, 1);
	driver_notify(&w->driver, queue);
}

static char byte_of(struct world *w, uint64_t page)
{
	const char *p = driver_at(&w->driver, page * PAGE, PAGE);
	assert_int_equal(p[0], p[PAGE - 1]);
	return p[0];
}

static bool needs_reset(struct world *w)
{
	return driver_get(&w->driver, VIRTIO_MMIO_STATUS) & VIRTIO_CONFIG_S_NEEDS_RESET;
}

static void pages_given_up_are_gone(void **state)
{
	for (int of_file = 0; of_file < 2; of_file++) {
		static const uint32_t pages[] = {200, 201, 202, 150, 149, 255};
		struct world w = {0};
		char gone = of_file ? 'f' : '\0';
		begin(&w, of_file);
		give(&w, INFLATE, pages, ARRAY_SIZE(pages));
		assert_true(driver_used(&w.driver, INFLATE, NULL, NULL));
		assert_true(driver_interrupts(&w.driver) & VIRTIO_MMIO_INT_VRING);
		for (uint64_t page = 128; page < 256; page++) {
			bool given = false;
			for (size_t i = 0; i < ARRAY_SIZE(pages); i++)
				given |= pages[i] == page;
			assert_int_equal(byte_of(&w, page), given ? gone : 'g');
		}
		/* Taken back, it can be used. */
		give(&w, DEFLATE, pages, ARRAY_SIZE(pages));
		assert_true(driver_used(&w.driver, DEFLATE, NULL, NULL));
		memset(driver_at(&w.driver, 200 * PAGE, PAGE), 'h', PAGE);
		assert_int_equal(byte_of(&w, 200), 'h');
		end(&w);
	}
}

static void pages_that_are_not_there_break_it(void **state)
{
	static const uint32_t outside[] = {256, 255 + (1 << 20), UINT32_MAX};
	struct world w = {0};
	begin(&w, false);
	for (size_t i = 0; i < ARRAY_SIZE(outside); i++) {
		give(&w, INFLATE, &outside[i], 1);
		assert_true(needs_reset(&w));
		assert_false(driver_used(&w.driver, INFLATE, NULL, NULL));
		driver_start(&w.driver, 0, 16);
		w.buffer = driver_alloc(&w.driver, PAGE);
	}
	/* Half a number; more numbers than anybody needs at once. */
	struct part odd = {w.buffer, 6, false}, many = {0, 4 * 4097, false};
	driver_add(&w.driver, INFLATE, &odd, 1);
	driver_notify(&w.driver, INFLATE);
	assert_true(needs_reset(&w));
	driver_start(&w.driver, 0, 16);
	driver_add(&w.driver, INFLATE, &many, 1);
	driver_notify(&w.driver, INFLATE);
	assert_true(needs_reset(&w));
	assert_int_equal(byte_of(&w, 255), 'g');
	end(&w);
}

static void reported_pages_are_let_go(void **state)
{
	static const unsigned queues[] = {REPORT, REPORT_BY_THE_STANDARD};
	for (size_t i = 0; i < 2 * ARRAY_SIZE(queues); i++) {
		struct world w = {0};
		bool of_file = i & 1;
		char gone = of_file ? 'f' : '\0';
		unsigned queue = queues[i / 2];
		begin(&w, of_file);
		/* Whole pages only, whatever the guest says. */
		struct part parts[] = {{130 * PAGE, 2 * PAGE, true}, {140 * PAGE + 1, 2 * PAGE, true}, {150 * PAGE + 1, PAGE, true}, {160 * PAGE, 1, true}, {170 * PAGE + 1, 1, true},
			{255 * PAGE, PAGE, true}};
		driver_add(&w.driver, queue, parts, ARRAY_SIZE(parts));
		driver_notify(&w.driver, queue);
		assert_true(driver_used(&w.driver, queue, NULL, NULL));
		for (uint64_t page = 128; page < 256; page++)
			assert_int_equal(byte_of(&w, page), page == 130 || page == 131 || page == 141 || page == 255 ? gone : 'g');
		end(&w);
	}
}

static void the_guest_is_asked_and_says_what_it_did(void **state)
{
	struct world w = {0};
	cleanup_buf struct buf saved = BUF_INIT;
	begin(&w, false);
	assert_int_equal(driver_get(&w.driver, 0x100), 0);
	balloon_set_target(w.d, 77);
	assert_int_equal(driver_interrupts(&w.driver), VIRTIO_MMIO_INT_CONFIG);
	assert_int_equal(driver_get(&w.driver, 0x100), 77);
	balloon_set_target(w.d, 77);
	assert_int_equal(driver_interrupts(&w.driver), 0);
	driver_set(&w.driver, 0x104, 55);
	assert_int_equal(driver_get(&w.driver, 0x104), 55);
	assert_int_equal(balloon_actual(w.d), 55);
	/* Only that, only as a whole. */
	uint16_t half = 0;
	driver_set(&w.driver, 0x100, 1);
	virtio_mmio_write(w.d, 0x104, &half, sizeof(half));
	uint64_t both = 0;
	virtio_mmio_write(w.d, 0x100, &both, sizeof(both));
	assert_int_equal(driver_get(&w.driver, 0x100), 77);
	assert_int_equal(balloon_actual(w.d), 55);
	virtio_mmio_read(w.d, 0x100, &both, sizeof(both));
	assert_true(both == (77 | UINT64_C(55) << 32));
	virtio_save(w.d, &saved);
	driver_start(&w.driver, REPORTING, 16);
	assert_int_equal(balloon_actual(w.d), 0);
	assert_int_equal(driver_get(&w.driver, 0x100), 77);
	balloon_set_target(w.d, 0);
	assert_int_equal(virtio_load(w.d, buf_str(&saved), NULL), 0);
	assert_int_equal(balloon_actual(w.d), 55);
	assert_int_equal(driver_get(&w.driver, 0x100), 77);
	assert_int_equal(virtio_load(w.d, str_n(buf_str(&saved).p, buf_len(&saved) - 1), NULL), -EINVAL);
	/* Statistics are not offered. */
	assert_int_equal(driver_offered(&w.driver) & ((1 << VIRTIO_BALLOON_F_STATS_VQ) | (1 << VIRTIO_BALLOON_F_PAGE_POISON)), 0);
	end(&w);
}

static void more_than_a_turns_work_is_done_in_turns(void **state)
{
	struct world w = {0};
	static const uint32_t page = 200;
	struct part part;
	begin(&w, false);
	driver_start(&w.driver, 0, 256);
	w.buffer = driver_alloc(&w.driver, PAGE);
	part = (struct part){w.buffer, 4, false};
	memcpy(driver_at(&w.driver, w.buffer, 4), &page, 4);
	for (unsigned i = 0; i < 200; i++)
		driver_add(&w.driver, INFLATE, &part, 1);
	driver_notify(&w.driver, INFLATE);
	for (unsigned i = 0; i < 200; i++)
		driver_wait(&w.driver, w.loop, INFLATE, NULL, NULL);
	assert_int_equal(byte_of(&w, 200), 0);
	end(&w);
}

static void randomness_is_given_up_to_a_bound(void **state)
{
	struct world w = {0};
	uint32_t written;
	driver_memory(&w.memory, MEMORY);
	w.loop = loop_new();
	w.d = entropy_new(w.loop, &w.memory, NULL);
	assert_non_null(w.d);
	driver_init(&w.driver, w.d, &w.memory);
	driver_start(&w.driver, 0, 256);
	char zeros[64] = {0}, *at = driver_at(&w.driver, 100 * PAGE, 64);
	struct part parts[] = {{100 * PAGE, 64, true}, {110 * PAGE, 32, true}};
	driver_add(&w.driver, 0, parts, 2);
	driver_notify(&w.driver, 0);
	assert_true(driver_used(&w.driver, 0, NULL, &written));
	assert_int_equal(written, 96);
	assert_memory_not_equal(at, zeros, 64);
	assert_memory_not_equal(driver_at(&w.driver, 110 * PAGE, 32), zeros, 32);
	/* A large buffer is filled in part, and no byte beyond what was said; one to be read gets nothing. */
	struct part large = {120 * PAGE, 16 * PAGE, true}, wrong = {140 * PAGE, 16, false};
	driver_add(&w.driver, 0, &large, 1);
	driver_add(&w.driver, 0, &wrong, 1);
	driver_notify(&w.driver, 0);
	assert_true(driver_used(&w.driver, 0, NULL, &written));
	assert_int_equal(written, 4096);
	assert_memory_equal(driver_at(&w.driver, 121 * PAGE, 64), zeros, 64);
	assert_true(driver_used(&w.driver, 0, NULL, &written));
	assert_int_equal(written, 0);
	assert_memory_equal(driver_at(&w.driver, 140 * PAGE, 16), zeros, 16);
	for (unsigned i = 0; i < 200; i++)
		driver_add(&w.driver, 0, &parts[0], 1);
	driver_notify(&w.driver, 0);
	for (unsigned i = 0; i < 200; i++)
		driver_wait(&w.driver, w.loop, 0, NULL, NULL);
	struct part beyond = {MEMORY - 8, 16, true};
	driver_add(&w.driver, 0, &beyond, 1);
	driver_notify(&w.driver, 0);
	assert_true(needs_reset(&w));
	virtio_free(w.d);
	loop_free(w.loop);
	driver_memory_done(&w.memory);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(pages_given_up_are_gone),
		cmocka_unit_test(pages_that_are_not_there_break_it),
		cmocka_unit_test(reported_pages_are_let_go),
		cmocka_unit_test(the_guest_is_asked_and_says_what_it_did),
		cmocka_unit_test(more_than_a_turns_work_is_done_in_turns),
		cmocka_unit_test(randomness_is_given_up_to_a_bound),
	};
	return cmocka_run_group_tests(tests, NULL, NULL);
}
