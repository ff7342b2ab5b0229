#include "unit.h"

#include "base/cleanup.h"
#include "config/options.h"

#include <errno.h>
#include <stdlib.h>
#include <unistd.h>

static void later_sources_win_and_are_named(void **state)
{
	char path[] = "/tmp/cubicle-options-XXXXXX";
	int fd = mkstemp(path);
	assert_true(fd >= 0);
	static const char text[] = "# comment\npool.min = 3\nlisten=0.0.0.0:80\n";
	assert_int_equal(write(fd, text, sizeof(text) - 1), sizeof(text) - 1);
	close(fd);
	struct options o;
	assert_int_equal(options_init(&o), 0);
	char config[64], *argv[] = {"cubicle", "serve", "--config", path, "--pool.max", "9", "--listen=1.2.3.4:5", "--", "--pool.min=7", NULL};
	snprintf(config, sizeof(config), "CUBICLE_POOL_MIN=4");
	char *env[] = {config, "HOME=/", NULL};
	int argc = 9;
	struct error err = {0};
	assert_int_equal(options_load(&o, &argc, argv, NULL, env, &err), 0);
	assert_int_equal(o.pool_min, 4);
	assert_int_equal(o.pool_max, 9);
	assert_string_equal(o.listen, "1.2.3.4:5");
	assert_int_equal(argc, 4);
	assert_string_equal(argv[1], "serve");
	assert_string_equal(argv[3], "--pool.min=7");
	options_done(&o);
	unlink(path);
}

static void bad_values_name_option_and_source(void **state)
{
	struct options o;
	options_init(&o);
	struct error err = {0};
	assert_int_equal(options_set(&o, STR("pool.min"), STR("3.5"), "flag", &err), -EINVAL);
	assert_non_null(strstr(err.message, "pool.min"));
	assert_int_equal(options_set(&o, STR("pool.min"), STR("-1"), "flag", &err), -EINVAL);
	assert_int_equal(options_set(&o, STR("pool.min"), STR(""), "flag", &err), -EINVAL);
	assert_int_equal(options_set(&o, STR("nope"), STR("1"), "file:3", &err), -ENOENT);
	assert_non_null(strstr(err.message, "file:3"));
	assert_int_equal(options_set(&o, STR("disk.guarantee"), STR("yes"), "flag", &err), -EINVAL);
	char *env[] = {"CUBICLE_NO_SUCH=1", NULL};
	assert_int_equal(options_read_env(&o, env, &err), -ENOENT);
	options_done(&o);
}

static void what_is_serialized_reads_back(void **state)
{
	struct options o, again;
	options_init(&o);
	options_init(&again);
	options_set(&o, STR("domain"), STR("sbx.test:8443"), "flag", NULL);
	options_set(&o, STR("overcommit.memory"), STR("1.5"), "flag", NULL);
	struct buf text = BUF_INIT;
	assert_int_equal(options_serialize(&o, &text), 0);
	char path[] = "/tmp/cubicle-options-XXXXXX";
	int fd = mkstemp(path);
	assert_int_equal(write(fd, buf_str(&text).p, buf_len(&text)), buf_len(&text));
	close(fd);
	assert_int_equal(options_read_file(&again, path, true, NULL), 0);
	assert_string_equal(again.domain, "sbx.test:8443");
	assert_true(again.overcommit_memory == 1.5);
	unlink(path);
	buf_done(&text);
	options_done(&o);
	options_done(&again);
}

static void listen_addresses_become_urls(void **state)
{
	static const char *const cases[][2] = {
		{"127.0.0.1:3000", "http://127.0.0.1:3000"}, {"0.0.0.0:80", "http://127.0.0.1:80"}, {"[::]:80", "http://127.0.0.1:80"},
		{"[::1]:80", "http://[::1]:80"}, {"10.0.0.1:1", "http://10.0.0.1:1"},
	};
	for (size_t i = 0; i < ARRAY_SIZE(cases); i++) {
		cleanup_free char *url = options_listen_url(&(struct options){.listen = cases[i][0]});
		assert_string_equal(url, cases[i][1]);
	}
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(later_sources_win_and_are_named),
		cmocka_unit_test(bad_values_name_option_and_source),
		cmocka_unit_test(what_is_serialized_reads_back),
		cmocka_unit_test(listen_addresses_become_urls),
	};
	return cmocka_run_group_tests(tests, NULL, NULL);
}
