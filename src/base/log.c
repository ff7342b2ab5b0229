#include "base/log.h"
#include "base/buf.h"
#include "base/clock.h"

#include <errno.h>
#include <stdio.h>
#include <unistd.h>

static struct {
	const char *process;
	int fd;
	enum log_level lowest;
} logger = {"cubicle", 2, LOG_INFO};

static const char *const level_names[] = {"debug", "info", "warn", "error"};

void log_setup(const char *process, int fd, enum log_level lowest)
{
	logger.process = process;
	logger.fd = fd;
	logger.lowest = lowest;
}

int log_level_parse(struct str s, enum log_level *ret)
{
	for (unsigned i = 0; i < 4; i++)
		if (str_is(s, level_names[i])) {
			*ret = (enum log_level)i;
			return 0;
		}
	return -EINVAL;
}

/* Length of the well-formed UTF-8 sequence at the front (its code point in *cp), or 0. */
static size_t sequence(struct str s, uint32_t *cp)
{
	for (size_t n = 1; n <= 4 && n <= s.n; n++)
		if (str_is_utf8(str_n(s.p, n))) {
			unsigned char c = (unsigned char)s.p[0];
			*cp = n == 1 ? c : c & (0x7fu >> n);
			for (size_t i = 1; i < n; i++)
				*cp = *cp << 6 | ((unsigned char)s.p[i] & 0x3fu);
			return n;
		}
	return 0;
}

int json_quote(struct buf *to, struct str s)
{
	buf_add_c(to, "\"");
	while (s.n) {
		size_t plain = 0;
		while (plain < s.n && s.p[plain] >= 0x20 && s.p[plain] < 0x7f && s.p[plain] != '"' && s.p[plain] != '\\')
			plain++;
		buf_add(to, s.p, plain);
		s = str_from(s, plain);
		if (!s.n)
			break;
		uint32_t cp;
		size_t n = sequence(s, &cp);
		if (n == 0) {
			cp = 0xfffd;
			n = 1;
		}
		if (cp == '"' || cp == '\\')
			buf_addf(to, "\\%c", (char)cp);
		else if (cp == '\n')
			buf_add_c(to, "\\n");
		else if (cp < 0x10000)
			buf_addf(to, "\\u%04x", cp);
		else
			buf_addf(to, "\\u%04x\\u%04x", 0xd800 + ((cp - 0x10000) >> 10), 0xdc00 + (cp & 0x3ff));
		s = str_from(s, n);
	}
	buf_add_c(to, "\"");
	return to->failed ? -ENOMEM : 0;
}

static void add_id(struct buf *line, const char *name, struct str id)
{
	if (!id.n)
		return;
	buf_addf(line, ",\"%s\":", name);
	json_quote(line, id);
}

void log_write(enum log_level level, const struct log_ids *ids, const char *fmt, ...)
{
	if (level < logger.lowest)
		return;
	int saved = errno;
	char message[2048], time[RFC3339_SIZE];
	va_list ap;
	va_start(ap, fmt);
	int n = vsnprintf(message, sizeof(message), fmt, ap);
	va_end(ap);
	if (n >= (int)sizeof(message))
		memcpy(message + sizeof(message) - 4, "...", 4);
	cleanup_buf struct buf line = BUF_INIT;
	buf_addf(&line, "{\"time\":\"%s\",\"level\":\"%s\",\"process\":\"%s\",\"message\":", rfc3339_format(time, clock_realtime()),
		level_names[level], logger.process);
	json_quote(&line, str_of(message));
	if (ids) {
		add_id(&line, "request", ids->request);
		add_id(&line, "team", ids->team);
		add_id(&line, "sandbox", ids->sandbox);
	}
	buf_add_c(&line, "}\n");
	ssize_t ignored = line.failed ? 0 : write(logger.fd, line.data + line.start, buf_len(&line));
	(void)ignored;
	errno = saved;
}
