#include "base/cleanup.h"
#include "guest/files_call.h"

#include <errno.h>
#include <time.h>

/* The form to write and the two old ones that are to be read (RFC 9110 §5.6.7). */
static int parse_http_date(struct str s, time_t *ret)
{
	static const char *const FORMS[] = {
		"%a, %d %b %Y %H:%M:%S GMT", "%A, %d-%b-%y %H:%M:%S GMT", "%a %b %e %H:%M:%S %Y"};
	char text[64];
	if (s.n >= sizeof(text))
		return -EINVAL;
	memcpy(text, s.p, s.n);
	text[s.n] = '\0';
	for (size_t i = 0; i < ARRAY_SIZE(FORMS); i++) {
		struct tm tm = {0};
		const char *end = strptime(text, FORMS[i], &tm);
		if (!end || *end)
			continue;
		*ret = timegm(&tm);
		return 0;
	}
	return -EINVAL;
}

int files_precondition(const struct http_head *h, time_t modified)
{
	time_t t;
	const struct http_header *match = http_find(h, "If-Match"),
				 *none_match = http_find(h, "If-None-Match");
	if (match ? !str_is(match->value, "*")
		  : parse_http_date(http_value(h, "If-Unmodified-Since"), &t) == 0 && modified > t)
		return 412;
	if (none_match ? str_is(none_match->value, "*")
		       : parse_http_date(http_value(h, "If-Modified-Since"), &t) == 0 && modified <= t)
		return 304;
	return 0;
}

/* ---- Accept-Encoding (RFC 9110 §12.5.3) ---- */

enum { UNSAID = -1, FULL = 1000 };

struct weights {
	int gzip, identity, any; /* thousandths, or UNSAID */
};

/* ";q=0.25" in thousandths; without it, or where it is none, all. */
static int weight_of(struct str parameters)
{
	parameters = str_trim(parameters);
	if (parameters.n < 3 || (parameters.p[0] | 0x20) != 'q' || parameters.p[1] != '=')
		return FULL;
	if (parameters.p[2] != '0')
		return FULL;
	int weight = 0, unit = 100;
	for (size_t i = 4; i < parameters.n && unit; i++, unit /= 10) {
		char digit = parameters.p[i];
		if (digit < '0' || digit > '9')
			break;
		weight += unit * (digit - '0');
	}
	return weight;
}

static void weigh(struct weights *w, struct str list)
{
	while (list.n) {
		struct str one = list, coding, parameters = str_n("", 0);
		if (!str_cut(list, ',', &one, &list))
			list = str_n("", 0);
		coding = one;
		str_cut(one, ';', &coding, &parameters);
		coding = str_trim(coding);
		if (str_eq_nocase(coding, STR("gzip")) || str_eq_nocase(coding, STR("x-gzip")))
			w->gzip = weight_of(parameters);
		else if (str_eq_nocase(coding, STR("identity")))
			w->identity = weight_of(parameters);
		else if (str_is(coding, "*"))
			w->any = weight_of(parameters);
	}
}

int files_encoding(const struct http_head *h, bool prefer_identity)
{
	struct weights w = {UNSAID, UNSAID, UNSAID};
	for (size_t i = 0; i < h->n_headers; i++) {
		if (str_eq_nocase(h->headers[i].name, STR("Accept-Encoding")))
			weigh(&w, h->headers[i].value);
	}
	bool identity = w.identity != UNSAID ? w.identity > 0 : w.any != 0;
	bool gzip = w.gzip != UNSAID ? w.gzip > 0 : w.any > 0;
	if (!identity)
		return gzip ? FILES_GZIP : -EINVAL;
	/* By name only, and not when the client would rather have the bytes as they are. */
	bool wanted = w.gzip > 0 && w.gzip >= w.identity && !prefer_identity;
	return wanted ? FILES_GZIP : FILES_IDENTITY;
}

/* ---- Range (RFC 9110 §14.2) ---- */

/* A date tells two versions apart only when it is some seconds old (§8.8.2.2). There are no entity tags. */
static bool is_same_version(const struct http_head *h, time_t modified)
{
	const struct http_header *condition = http_find(h, "If-Range");
	time_t t;
	return !condition ||
	       (parse_http_date(condition->value, &t) == 0 && t == modified && modified < time(NULL) - 1);
}

/* Of any length: what is larger than any file is as good as the largest number. */
static int parse_position(struct str s, uint64_t *ret)
{
	if (s.n == 0)
		return -EINVAL;
	for (size_t i = 0; i < s.n; i++) {
		if (s.p[i] < '0' || s.p[i] > '9')
			return -EINVAL;
	}
	while (s.n > 1 && s.p[0] == '0')
		s = str_from(s, 1);
	if (str_to_u64(s, ret) < 0)
		*ret = UINT64_MAX;
	return 0;
}

static int parse_range(struct str spec, uint64_t size, uint64_t *ret_from, uint64_t *ret_length)
{
	struct str first, last;
	uint64_t from, to = UINT64_MAX;
	if (!str_cut(str_trim(spec), '-', &first, &last))
		return 0;
	if (first.n == 0) {
		uint64_t n;
		if (parse_position(last, &n) < 0)
			return 0;
		n = n < size ? n : size;
		*ret_from = size - n;
		*ret_length = n;
		return n ? 1 : -ERANGE;
	}
	if (parse_position(first, &from) < 0 || (last.n && parse_position(last, &to) < 0) || to < from)
		return 0;
	if (from >= size)
		return -ERANGE;
	*ret_from = from;
	*ret_length = (to < size ? to + 1 : size) - from;
	return 1;
}

int files_range(
	const struct http_head *h, time_t modified, uint64_t size, uint64_t *ret_from, uint64_t *ret_length)
{
	const struct http_header *range = http_find(h, "Range");
	struct str unit, set;
	if (!range || !str_is(h->method, "GET") || !str_cut(range->value, '=', &unit, &set) ||
		!str_eq_nocase(str_trim(unit), STR("bytes")) || str_chr(set, ',') >= 0)
		return 0;
	/* Of nothing every range is outside, which would say no more than the nothing does. */
	return size && is_same_version(h, modified) ? parse_range(set, size, ret_from, ret_length) : 0;
}
