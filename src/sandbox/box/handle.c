#include "sandbox/box/handle.h"
#include "sandbox/box/runtime.h"
#include "base/cleanup.h"

#include <limits.h>
#include <stdio.h>

/* The version is of a handle's words. */
static const struct {
	const char *version;
	const struct runtime *runtime;
} kinds[] = {{"namespace-1", &namespace_runtime}, {"microvm-1", &microvm_runtime}};

void handle_format(const struct handle *h, struct box_handle *ret)
{
	snprintf(ret->text, sizeof(ret->text), "%s pid=%llu start=%llu slot=%llu loop=%llu warm=%d boot=%s", kinds[h->runtime != kinds[0].runtime].version,
		(unsigned long long)h->pid, (unsigned long long)h->start, (unsigned long long)h->slot, (unsigned long long)h->loop, h->warm,
		h->boot);
}

static int parse_word(struct str word, struct handle *h, unsigned *seen)
{
	uint64_t ignored, warm = 0;
	struct str key, value;
	if (!str_cut(word, '=', &key, &value))
		return -EINVAL;
	const struct {
		const char *key;
		uint64_t *to, max;
	} numbers[] = {
		{"pid", &h->pid, INT_MAX}, {"start", &h->start, UINT64_MAX}, {"slot", &h->slot, 65535}, {"loop", &h->loop, 1 << 20},
		{"warm", &warm, 1}, {"internet", &ignored, 1}, /* the last: servers of before wrote it */
	};
	for (unsigned i = 0; i < ARRAY_SIZE(numbers); i++) {
		if (!str_is(key, numbers[i].key))
			continue;
		if ((*seen >> i & 1) || str_to_u64(value, numbers[i].to) < 0 || *numbers[i].to > numbers[i].max)
			return -EINVAL;
		*seen |= 1u << i;
		h->warm |= warm;
		return 0;
	}
	if (!str_is(key, "boot") || (*seen >> ARRAY_SIZE(numbers) & 1) || value.n != sizeof(h->boot) - 1)
		return -EINVAL;
	memcpy(h->boot, value.p, value.n);
	*seen |= 1u << ARRAY_SIZE(numbers);
	return 0;
}

int handle_parse(const char *text, struct handle *ret)
{
	struct handle h = {0};
	unsigned seen = 0;
	struct str rest = str_of(text), word;
	if (!str_cut(rest, ' ', &word, &rest))
		return -EINVAL;
	for (size_t i = 0; i < ARRAY_SIZE(kinds); i++)
		if (str_is(word, kinds[i].version))
			h.runtime = kinds[i].runtime;
	if (!h.runtime)
		return -EINVAL;
	for (bool more = true; more;) {
		struct str tail;
		more = str_cut(rest, ' ', &word, &tail);
		if (!more)
			word = rest;
		else
			rest = tail;
		if (parse_word(word, &h, &seen) < 0)
			return -EINVAL;
	}
	if ((seen | 1u << 5) != 0x7f || h.pid < 2)
		return -EINVAL;
	*ret = h;
	return 0;
}
