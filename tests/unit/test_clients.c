/* Clients that are newer than what was tested. */
#include "unit.h"

#include "api/clients.h"

#include <stdio.h>
#include <string.h>

static struct clients_seen seen;

/* "product/version > tested", or "". */
static const char *newer(const char *agent)
{
	static char out[128];
	const char *tested;
	if (!clients_newer(&seen, str_of(agent), &tested))
		return "";
	snprintf(out, sizeof(out), "%s > %s", seen.names[seen.n - 1], tested);
	return out;
}

static void a_newer_client_is_told_once(void **state)
{
	seen.n = 0;
	const char *told = newer("e2b-js-sdk/99.1.0");
	assert_int_equal(strncmp(told, "e2b-js-sdk/99.1.0 > 2.", 22), 0);
	assert_string_equal(newer("e2b-js-sdk/99.1.0"), "");
	assert_int_equal(strncmp(newer("e2b-js-sdk/99.1.0 e2b-cli/88.0.0"), "e2b-cli/88.0.0 > ", 17), 0);
	assert_string_equal(newer("e2b-js-sdk/99.1.0 e2b-cli/88.0.0"), "");
	assert_true(newer("e2b-js-sdk/99.2.0")[0]);
	assert_true(newer("e2b-python-sdk/2.1000.0 source/x")[0]);
}

static void others_are_not(void **state)
{
	static const char *const agents[] = {"", " ", "/", "e2b-js-sdk", "e2b-js-sdk/", "e2b-js-sdk/x", "e2b-js-sdk/2", "e2b-js-sdk/2.", "e2b-js-sdk/2.0.0",
		"e2b-js-sdk/1.99.99", "e2b-python-sdk/2.45.0", "curl/99.0.0", "xe2b-js-sdk/99.0.0", "e2b-js-sdk/99999999999999999999999.0.0",
		"e2b-js-sdk/99.0.0aaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaa"};
	seen.n = 0;
	for (size_t i = 0; i < sizeof(agents) / sizeof(agents[0]); i++)
		assert_string_equal(newer(agents[i]), "");
	assert_int_equal(seen.n, 0);
}

/* A client that calls itself something else each time fills no memory and no log. */
static void what_is_remembered_is_bounded(void **state)
{
	char agent[64];
	int told = 0;
	seen.n = 0;
	for (int i = 0; i < 100; i++) {
		snprintf(agent, sizeof(agent), "e2b-js-sdk/99.%d.0", i);
		told += newer(agent)[0] != 0;
	}
	assert_int_equal(told, CLIENTS_SEEN_MAX);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(a_newer_client_is_told_once),
		cmocka_unit_test(others_are_not),
		cmocka_unit_test(what_is_remembered_is_bounded),
	};
	return cmocka_run_group_tests(tests, NULL, NULL);
}
