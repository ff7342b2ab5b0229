#include "unit.h"

#include "base/cleanup.h"
#include "base/clock.h"
#include "node/metrics.h"

/* The history of one sandbox. */

static struct metrics_sample sample(int64_t second, unsigned percent, uint64_t mib)
{
	return (struct metrics_sample){.at = second * NS_PER_S, .cpu_percent = percent * 100, .cpu_count = 2, .mem_used = mib << 20, .mem_cache = (mib / 2) << 20,
		.mem_total = UINT64_C(512) << 20, .disk_used = UINT64_C(4096) * (uint64_t)second, .disk_total = UINT64_C(10) << 30};
}

static struct metrics_sample got[METRICS_FINE + METRICS_COARSE + 8];

static size_t read_all(const struct metrics_history *h, int64_t start, int64_t end)
{
	bool more;
	size_t n = metrics_read(h, start, end, got, ARRAY_SIZE(got), &more);
	assert_false(more);
	return n;
}

static void an_empty_history_gives_nothing(void **state)
{
	struct metrics_history h = {0};
	struct metrics_sample s;
	assert_int_equal(read_all(&h, 0, INT64_MAX), 0);
	assert_false(metrics_newest(&h, &s));
	metrics_done(&h);
}

static void samples_come_back_as_they_were(void **state)
{
	struct metrics_history h = {0};
	struct metrics_sample s = sample(1000, 37, 100), back;
	metrics_add(&h, &s);
	assert_true(metrics_newest(&h, &back));
	assert_memory_equal(&back, &s, sizeof(s));
	s.cpu_percent = 20000; /* what cannot be */
	metrics_add(&h, &s);
	metrics_newest(&h, &back);
	assert_int_equal(back.cpu_percent, 10000);
	metrics_done(&h);
}

static void both_ends_of_the_range_belong_to_it(void **state)
{
	struct metrics_history h = {0};
	for (int i = 0; i < 10; i++) {
		struct metrics_sample s = sample(100 + 5 * i, 1, 1);
		metrics_add(&h, &s);
	}
	assert_int_equal(read_all(&h, 105 * NS_PER_S, 115 * NS_PER_S), 3);
	assert_int_equal(got[0].at, 105 * NS_PER_S);
	assert_int_equal(got[2].at, 115 * NS_PER_S);
	assert_int_equal(read_all(&h, 105 * NS_PER_S + 1, 110 * NS_PER_S - 1), 0);
	assert_int_equal(read_all(&h, 200 * NS_PER_S, INT64_MAX), 0);
	metrics_done(&h);
}

static void pages_go_on_behind_their_last_sample(void **state)
{
	struct metrics_history h = {0};
	for (int i = 0; i < 100; i++) {
		struct metrics_sample s = sample(5 * i, 1, 1);
		metrics_add(&h, &s);
	}
	bool more = true;
	size_t n = 0;
	for (int64_t start = 0; more; start = got[0].at + 1, n++) {
		assert_int_equal(metrics_read(&h, start, INT64_MAX, got, 1, &more), 1);
		assert_int_equal(got[0].at, (int64_t)n * 5 * NS_PER_S);
	}
	assert_int_equal(n, 100);
	metrics_done(&h);
}

/* Two days: the newest quarter of an hour as it was, 24 hours of means, in bounded memory. */
static void a_long_life_is_bounded_and_keeps_a_day(void **state)
{
	struct metrics_history h = {0};
	int64_t last = 2 * 24 * 3600;
	for (int64_t s = 0; s <= last; s += METRICS_EVERY_S) {
		/* One sample of each coarse point is a peak. */
		bool peak = s % METRICS_COARSE_S == 60;
		struct metrics_sample x = sample(s, peak ? 100 : 4, peak ? 300 : 10);
		metrics_add(&h, &x);
	}
	assert_int_equal(metrics_bytes(&h), (METRICS_FINE + METRICS_COARSE) * 24);
	size_t n = read_all(&h, 0, INT64_MAX);
	assert_in_range(n, METRICS_FINE + METRICS_COARSE - METRICS_FINE * METRICS_EVERY_S / METRICS_COARSE_S - 2, METRICS_FINE + METRICS_COARSE);
	for (size_t i = 1; i < n; i++)
		assert_true(got[i].at > got[i - 1].at);
	assert_int_equal(got[n - 1].at, last * NS_PER_S);
	assert_in_range(got[0].at / NS_PER_S, last - 24 * 3600 - METRICS_COARSE_S, last - 24 * 3600 + METRICS_COARSE_S);
	/* 23 samples of 4 % and one of 100 %; the peak of memory is not lost. */
	assert_int_equal(got[1].cpu_percent, (23 * 400 + 10000) / 24);
	assert_int_equal(got[1].mem_used, UINT64_C(300) << 20);
	metrics_done(&h);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(an_empty_history_gives_nothing),
		cmocka_unit_test(samples_come_back_as_they_were),
		cmocka_unit_test(both_ends_of_the_range_belong_to_it),
		cmocka_unit_test(pages_go_on_behind_their_last_sample),
		cmocka_unit_test(a_long_life_is_bounded_and_keeps_a_day),
	};
	return cmocka_run_group_tests(tests, NULL, NULL);
}
