#include "api/clients.h"
#include "base/cleanup.h"

#include <string.h>

/* The newest version of each that tests/e2e/test_clients.py drives, which checks this table. */
static const struct {
	const char *product, *version;
} tested[] = {
	{"e2b-js-sdk", "2.51.0"},
	{"e2b-python-sdk", "2.63.0"},
	{"e2b-cli", "2.19.0"},
};

/* The next number of "1.22.3"; false when there is none. */
static bool next_number(struct str *rest, uint64_t *ret)
{
	struct str digits = *rest;
	size_t n = 0;
	while (n < digits.n && digits.p[n] >= '0' && digits.p[n] <= '9')
		n++;
	digits.n = n;
	*rest = str_from(*rest, n);
	if (str_starts(*rest, STR(".")))
		*rest = str_from(*rest, 1);
	return str_to_u64(digits, ret) == 0;
}

static bool is_newer(struct str version, struct str than)
{
	for (int i = 0; i < 3; i++) {
		uint64_t a, b;
		if (!next_number(&version, &a) || !next_number(&than, &b))
			return false;
		if (a != b)
			return a > b;
	}
	return false;
}

static bool remember(struct clients_seen *seen, struct str product)
{
	if (product.n >= CLIENTS_NAME_MAX)
		return false;
	for (unsigned i = 0; i < seen->n; i++)
		if (str_is(product, seen->names[i]))
			return false;
	if (seen->n == CLIENTS_SEEN_MAX)
		return false;
	memcpy(seen->names[seen->n], product.p, product.n);
	seen->names[seen->n++][product.n] = 0;
	return true;
}

bool clients_newer(struct clients_seen *seen, struct str user_agent, const char **ret_tested)
{
	struct str product, name, version;
	while (user_agent.n) {
		if (!str_cut(user_agent, ' ', &product, &user_agent)) {
			product = user_agent;
			user_agent.n = 0;
		}
		if (!str_cut(product, '/', &name, &version))
			continue;
		for (size_t i = 0; i < ARRAY_SIZE(tested); i++) {
			if (!str_is(name, tested[i].product) || !is_newer(version, str_of(tested[i].version)) || !remember(seen, product))
				continue;
			*ret_tested = tested[i].version;
			return true;
		}
	}
	return false;
}
