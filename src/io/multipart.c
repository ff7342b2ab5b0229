#include "io/multipart.h"

#include "base/cleanup.h"
#include "io/url.h"

#include <errno.h>
#include <stdlib.h>

enum { MAX_BOUNDARY = 70, MAX_PADDING = 128 };

enum state {
	PREAMBLE,    /* before the first delimiter: thrown away */
	DELIMITER,   /* directly behind a delimiter */
	DASH,        /* ... and one '-' */
	PADDING,     /* white space until the end of the delimiter's line */
	PADDING_LF,
	HEADERS,
	DATA,
	EPILOGUE,    /* behind the closing delimiter: thrown away */
};

struct multipart {
	struct multipart_ops ops;
	void *arg;
	enum state state;
	char delimiter[4 + MAX_BOUNDARY]; /* CR LF - - boundary */
	size_t delimiter_n;
	size_t matched; /* bytes of the delimiter at the end of what was fed */
	size_t padding;
	struct buf headers;
};

/* Takes the next ";"-separated parameter off *rest: 1 with *ret_name and *ret_value (still escaped), 0 at the end, -EPROTO. */
static int next_parameter(struct str *rest, struct str *ret_name, struct str *ret_value)
{
	struct str s = str_trim(*rest), name, value;
	while (s.n && s.p[0] == ';')
		s = str_trim(str_from(s, 1));
	*rest = str_from(s, s.n);
	if (s.n == 0)
		return 0;
	if (!str_cut(s, '=', &name, &value))
		return -EPROTO;
	*ret_name = str_trim(name);
	value = str_trim(value);
	if (value.n == 0 || value.p[0] != '"') {
		if (!str_cut(value, ';', ret_value, rest))
			*ret_value = value;
		*ret_value = str_trim(*ret_value);
		return 1;
	}
	/* Neither undici nor httpx writes a quote as \" (they write %22), and undici leaves a backslash alone: so a quote ends the value,
	 * whatever stands before it, where a value can end. Elsewhere \" is what curl makes of a quote. */
	for (size_t i = 1; i < value.n; i++) {
		if (value.p[i] != '"')
			continue;
		struct str after = str_trim(str_from(value, i + 1));
		if (after.n == 0 || after.p[0] == ';') {
			*ret_value = str_n(value.p + 1, i - 1);
			*rest = after;
			return 1;
		}
		if (value.p[i - 1] != '\\')
			return -EPROTO;
	}
	return -EPROTO;
}

/* Undoes %22, %00 to %1F, \\ and \" and nothing else: a name "a%2Fb" stays what it is (e2b.md B.4). */
static int unescape(struct buf *to, struct str s)
{
	for (size_t i = 0; i < s.n; i++) {
		char c = s.p[i];
		if (c == '\\' && i + 1 < s.n && (s.p[i + 1] == '\\' || s.p[i + 1] == '"')) {
			c = s.p[++i];
		} else if (c == '%' && s.n - i >= 3) {
			char high = s.p[i + 1], low = s.p[i + 2];
			int digit = low >= '0' && low <= '9' ? low - '0' : low >= 'A' && low <= 'F' ? low - 'A' + 10 : -1;
			if (digit >= 0 && (high == '0' || high == '1' || (high == '2' && digit == 2))) {
				c = (char)((high - '0') << 4 | digit);
				i += 2;
			}
		}
		buf_add(to, &c, 1);
	}
	return to->failed ? -ENOMEM : 0;
}

/* RFC 5987: charset'language'percent-encoded. */
static int decode_extended(struct buf *to, struct str s)
{
	struct str charset, language;
	if (!str_cut(s, '\'', &charset, &s) || !str_cut(s, '\'', &language, &s) || !str_eq_nocase(charset, STR("UTF-8")))
		return -EPROTO;
	int r = url_decode(to, s, false);
	return r == -EINVAL ? -EPROTO : r;
}

struct disposition {
	struct buf name, filename;
	bool has_name, has_filename, has_extended;
};

static int parse_disposition(struct str value, struct disposition *d)
{
	struct str type = value, rest = STR(""), name, raw;
	str_cut(value, ';', &type, &rest);
	if (!str_eq_nocase(str_trim(type), STR("form-data")))
		return 0;
	for (;;) {
		int r = next_parameter(&rest, &name, &raw);
		if (r <= 0)
			return r;
		if (str_eq_nocase(name, STR("name")) && !d->has_name) {
			d->has_name = true;
			r = unescape(&d->name, raw);
		} else if (str_eq_nocase(name, STR("filename")) && !d->has_filename) {
			d->has_filename = true;
			r = d->has_extended ? 0 : unescape(&d->filename, raw);
		} else if (str_eq_nocase(name, STR("filename*")) && !d->has_extended) {
			d->has_extended = true;
			buf_clear(&d->filename);
			r = decode_extended(&d->filename, raw);
		} else if (str_eq_nocase(name, STR("name")) || str_eq_nocase(name, STR("filename")) || str_eq_nocase(name, STR("filename*"))) {
			r = -EPROTO; /* twice: which one counts would be anybody's guess */
		}
		if (r < 0)
			return r;
	}
}

static bool is_header_text(struct str s)
{
	for (size_t i = 0; i < s.n; i++)
		if (((unsigned char)s.p[i] < 0x20 && s.p[i] != '\t') || s.p[i] == 0x7f)
			return false;
	return true;
}

/* The header block without its empty line; each line ends with CRLF. */
static int parse_headers(struct str block, struct disposition *d)
{
	bool seen = false;
	while (block.n) {
		struct str line, name, value;
		if (!str_cut(block, '\n', &line, &block) || line.n == 0 || line.p[line.n - 1] != '\r')
			return -EPROTO;
		line.n--;
		/* Control characters stand in names: undici and httpx write most of them as they are. */
		if (!str_cut(line, ':', &name, &value) || memchr(line.p, '\r', line.n) || memchr(line.p, '\0', line.n))
			return -EPROTO;
		if (!str_eq_nocase(name, STR("Content-Disposition")))
			continue;
		if (seen)
			return -EPROTO;
		seen = true;
		int r = parse_disposition(str_trim(value), d);
		if (r < 0)
			return r;
	}
	return 0;
}

static int begin_part(struct multipart *m)
{
	struct disposition d = {0};
	struct str block = buf_str(&m->headers);
	int r = parse_headers(str_n(block.p, block.n - 2), &d);
	struct multipart_part part = {buf_str(&d.name), buf_str(&d.filename), d.has_filename || d.has_extended};
	if (r == 0)
		r = m->ops.part(&part, m->arg);
	buf_done(&d.name);
	buf_done(&d.filename);
	buf_clear(&m->headers);
	m->state = DATA;
	return r;
}

static bool ends_block(struct str s)
{
	if (s.n == 2)
		return memcmp(s.p, "\r\n", 2) == 0;
	return s.n >= 4 && memcmp(s.p + s.n - 4, "\r\n\r\n", 4) == 0;
}

static int feed_header(struct multipart *m, char c)
{
	if (buf_len(&m->headers) >= MULTIPART_MAX_HEADERS)
		return -EPROTO;
	if (buf_add(&m->headers, &c, 1) < 0)
		return -ENOMEM;
	return c == '\n' && ends_block(buf_str(&m->headers)) ? begin_part(m) : 0;
}

static int emit(struct multipart *m, const char *p, size_t n)
{
	return m->state == DATA && n ? m->ops.data(p, n, m->arg) : 0;
}

static int delimiter_found(struct multipart *m)
{
	int r = m->state == DATA ? m->ops.part_end(m->arg) : 0;
	m->matched = 0;
	m->state = DELIMITER;
	return r;
}

/* Length of the longest beginning of the delimiter that the bytes end with. CR stands in it only once, so the last CR decides. */
static size_t partial(const struct multipart *m, struct str s)
{
	size_t from = s.n > m->delimiter_n - 1 ? s.n - (m->delimiter_n - 1) : 0;
	const char *cr = memrchr(s.p + from, '\r', s.n - from);
	if (!cr)
		return 0;
	size_t n = (size_t)(s.p + s.n - cr);
	return memcmp(cr, m->delimiter, n) == 0 ? n : 0;
}

/* Data (or preamble) up to the next delimiter: in runs as long as they come. */
static int feed_data(struct multipart *m, struct str *in)
{
	/* A delimiter that began in an earlier feed. */
	if (m->matched) {
		while (in->n && m->matched < m->delimiter_n && in->p[0] == m->delimiter[m->matched]) {
			m->matched++;
			*in = str_from(*in, 1);
		}
		if (m->matched == m->delimiter_n)
			return delimiter_found(m);
		if (in->n == 0)
			return 0;
		size_t n = m->matched;
		m->matched = 0;
		return emit(m, m->delimiter, n);
	}
	const char *hit = memmem(in->p, in->n, m->delimiter, m->delimiter_n);
	if (hit) {
		size_t n = (size_t)(hit - in->p);
		int r = emit(m, in->p, n);
		*in = str_from(*in, n + m->delimiter_n);
		return r < 0 ? r : delimiter_found(m);
	}
	m->matched = partial(m, *in);
	struct str run = str_n(in->p, in->n - m->matched);
	*in = str_from(*in, in->n);
	return emit(m, run.p, run.n);
}

/* One byte behind a delimiter: "--" closes, white space and CRLF open a part. */
static int feed_delimiter(struct multipart *m, char c)
{
	if (m->state == DELIMITER && c == '-') {
		m->state = DASH;
	} else if (m->state == DASH && c == '-') {
		m->state = EPILOGUE;
	} else if (m->state == PADDING_LF && c == '\n') {
		m->state = HEADERS;
	} else if (m->state == DELIMITER || m->state == PADDING) {
		m->state = c == '\r' ? PADDING_LF : PADDING;
		m->padding = c == '\r' ? 0 : m->padding + 1;
		return (c != '\r' && c != ' ' && c != '\t') || m->padding > MAX_PADDING ? -EPROTO : 0;
	} else {
		return -EPROTO;
	}
	return 0;
}

int multipart_feed(struct multipart *m, const char *p, size_t n)
{
	struct str in = str_n(p, n);
	int r = 0;
	while (in.n && r == 0 && m->state != EPILOGUE) {
		if (m->state == PREAMBLE || m->state == DATA) {
			r = feed_data(m, &in);
			continue;
		}
		r = m->state == HEADERS ? feed_header(m, in.p[0]) : feed_delimiter(m, in.p[0]);
		in = str_from(in, 1);
	}
	return r;
}

int multipart_finish(struct multipart *m)
{
	return m->state == EPILOGUE ? 0 : -EPROTO;
}

/* The boundary parameter into to[MAX_BOUNDARY]: its length or -EINVAL. */
static ssize_t find_boundary(struct str content_type, char *to)
{
	struct str type, rest, name, value;
	if (!str_cut(content_type, ';', &type, &rest) || !str_eq_nocase(str_trim(type), STR("multipart/form-data")))
		return -EINVAL;
	while (next_parameter(&rest, &name, &value) > 0) {
		if (!str_eq_nocase(name, STR("boundary")))
			continue;
		if (value.n == 0 || value.n > MAX_BOUNDARY || value.p[value.n - 1] == ' ' || !is_header_text(value))
			return -EINVAL;
		memcpy(to, value.p, value.n);
		return (ssize_t)value.n;
	}
	return -EINVAL;
}

struct multipart *multipart_new(struct str content_type, const struct multipart_ops *ops, void *arg)
{
	struct multipart *m = calloc(1, sizeof(*m));
	if (!m)
		return NULL;
	memcpy(m->delimiter, "\r\n--", 4);
	ssize_t n = find_boundary(content_type, m->delimiter + 4);
	if (n < 0) {
		free(m);
		errno = EINVAL;
		return NULL;
	}
	m->ops = *ops;
	m->arg = arg;
	m->delimiter_n = (size_t)n + 4;
	m->matched = 2; /* the first delimiter may stand at the very start, without its CRLF */
	return m;
}

void multipart_free(struct multipart *m)
{
	if (!m)
		return;
	buf_done(&m->headers);
	free(m);
}
