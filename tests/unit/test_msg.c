#include "unit.h"

#include "io/messages.h"

#include <errno.h>

static struct msg_create sample(struct buf *metadata, struct buf *envs)
{
	msg_map_add(metadata, STR("k"), STR("v"));
	msg_map_add(envs, STR("A"), STR("x\ny"));
	msg_map_add(envs, STR("B"), STR(""));
	struct msg_create m = {
		.template = STR("base"), .team = STR("default"), .timeout = -1, .secure = true, .public_traffic = true,
		.metadata = {buf_str(metadata)}, .envs = {buf_str(envs)}};
	msg_set(&m, create, internet, false);
	return m;
}

static void a_message_survives_the_wire(void **state)
{
	struct buf metadata = BUF_INIT, envs = BUF_INIT, wire = BUF_INIT;
	struct msg_create m = sample(&metadata, &envs);
	assert_int_equal(msg_encode(MSG_ID_create, &m, 77, &wire, NULL), 0);
	struct msg_header h;
	union msg_any any;
	assert_int_equal(msg_decode(buf_str(&wire), &h, &any, sizeof(any), NULL), 0);
	assert_int_equal(h.type, MSG_ID_create);
	assert_int_equal(h.request, 77);
	assert_str(any.create.template, "base");
	assert_true(any.create.timeout == -1);
	assert_true(msg_has(&any.create, create, internet));
	assert_false(any.create.internet);
	assert_false(msg_has(&any.create, create, request));
	struct str rest = any.create.envs.raw, key, value;
	assert_true(msg_map_next(&rest, &key, &value));
	assert_str(value, "x\ny");
	assert_true(msg_map_next(&rest, &key, &value));
	assert_str(key, "B");
	assert_false(msg_map_next(&rest, &key, &value));
	buf_done(&metadata), buf_done(&envs), buf_done(&wire);
}

/* Every cut and every flipped byte either decodes to something well-formed or is refused; the sanitizers watch. */
static void damaged_messages_never_run_over(void **state)
{
	struct buf metadata = BUF_INIT, envs = BUF_INIT, wire = BUF_INIT;
	struct msg_create m = sample(&metadata, &envs);
	msg_encode(MSG_ID_create, &m, 1, &wire, NULL);
	struct str whole = buf_str(&wire);
	struct msg_header h;
	union msg_any any;
	for (size_t n = 0; n < whole.n; n++)
		assert_true(msg_decode(str_n(whole.p, n), &h, &any, sizeof(any), NULL) < 0);
	size_t refused = 0;
	for (size_t i = 0; i < whole.n; i++)
		for (int bit = 0; bit < 8; bit++) {
			char *p = (char *)(uintptr_t)whole.p + i;
			*p = (char)(*p ^ 1 << bit);
			refused += msg_decode(whole, &h, &any, sizeof(any), NULL) < 0;
			*p = (char)(*p ^ 1 << bit);
		}
	assert_true(refused > whole.n);
	buf_done(&metadata), buf_done(&envs), buf_done(&wire);
}

static void limits_name_the_field(void **state)
{
	static char big[40000];
	struct buf wire = BUF_INIT;
	struct error err = {0};
	struct msg_kill m = {.sandbox = str_n(big, 33)};
	assert_int_equal(msg_encode(MSG_ID_kill, &m, 1, &wire, &err), -EMSGSIZE);
	assert_non_null(strstr(err.message, "sandbox"));
	buf_done(&wire);
}

static void table_ids_and_tags_are_unique(void **state)
{
	static const unsigned ids[] = {
#define ID(id, message, directions, fds) id,
		MESSAGES(ID)};
	for (size_t i = 0; i < sizeof(ids) / sizeof(ids[0]); i++) {
		for (size_t j = 0; j < i; j++)
			assert_int_not_equal(ids[i], ids[j]);
		const struct msg_type *t = msg_type(ids[i]);
		uint64_t seen = 0;
		for (size_t k = 0; k < t->n_fields; k++) {
			assert_in_range(t->fields[k].tag, 1, 63);
			assert_int_equal(seen >> t->fields[k].tag & 1, 0);
			seen |= UINT64_C(1) << t->fields[k].tag;
		}
		assert_in_range(t->fds, 0, MSG_MAX_FDS);
	}
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(a_message_survives_the_wire),
		cmocka_unit_test(damaged_messages_never_run_over),
		cmocka_unit_test(limits_name_the_field),
		cmocka_unit_test(table_ids_and_tags_are_unique),
	};
	return cmocka_run_group_tests(tests, NULL, NULL);
}
