#include "egress/upstream.h"
#include "base/buf.h"
#include "base/clock.h"
#include "base/fd.h"

#include <arpa/inet.h>
#include <errno.h>
#include <fcntl.h>
#include <net/if.h>
#include <netinet/in.h>
#include <stdio.h>

static const int64_t bad_for = 30 * NS_PER_S, check_every = 5 * NS_PER_S;

static int set_v4(struct upstream *u, const char *host, uint16_t port)
{
	struct sockaddr_in a = {.sin_family = AF_INET, .sin_port = htons(port)};
	if (inet_pton(AF_INET, host, &a.sin_addr) != 1)
		return -EINVAL;
	memcpy(&u->address, &a, sizeof(a));
	u->length = sizeof(a);
	return 0;
}

/* With an interface behind '%' for link-local addresses. */
static int set_v6(struct upstream *u, char *host, uint16_t port)
{
	struct sockaddr_in6 a = {.sin6_family = AF_INET6, .sin6_port = htons(port)};
	char *scope = strchr(host, '%');
	if (scope) {
		*scope++ = 0;
		a.sin6_scope_id = if_nametoindex(scope);
	}
	if (inet_pton(AF_INET6, host, &a.sin6_addr) != 1)
		return -EINVAL;
	memcpy(&u->address, &a, sizeof(a));
	u->length = sizeof(a);
	return 0;
}

static int parse(struct str text, struct upstream *ret)
{
	struct upstream u = {0};
	struct str host = text, port = STR("53");
	uint64_t number;
	if (!text.n || text.n >= sizeof(u.text))
		return -EINVAL;
	if (text.p[0] == '[') {
		if (!str_cut(str_from(text, 1), ']', &host, &port) || (port.n && port.p[0] != ':'))
			return -EINVAL;
		port = port.n ? str_from(port, 1) : STR("53");
	} else if (str_chr(text, '.') >= 0 && str_chr(text, '%') < 0) {
		str_cut(text, ':', &host, &port);
	}
	if (str_to_u64(port, &number) < 0 || number < 1 || number > 65535)
		return -EINVAL;
	memcpy(u.text, text.p, text.n);
	char name[UPSTREAM_TEXT];
	memcpy(name, host.p, host.n);
	name[host.n] = 0;
	if (set_v4(&u, name, (uint16_t)number) < 0 && set_v6(&u, name, (uint16_t)number) < 0)
		return -EINVAL;
	*ret = u;
	return 0;
}

static int parse_option(struct upstreams *u, struct str rest, struct error *err)
{
	while (rest.n) {
		struct str item = rest, tail = str_n("", 0);
		str_cut(rest, ',', &item, &tail);
		rest = tail;
		item = str_trim(item);
		if (u->n == UPSTREAMS_MAX)
			return error_set(err, -EINVAL, 400, "dns.upstream: more than %d resolvers", UPSTREAMS_MAX);
		if (parse(item, &u->list[u->n]) < 0)
			return error_set(err, -EINVAL, 400, "dns.upstream: '%.*s' is no address (a.b.c.d, a.b.c.d:port, v6, [v6]:port)", STR_FMT(item));
		u->n++;
	}
	return 0;
}

static void read_file(struct upstreams *u)
{
	cleanup_buf struct buf text = BUF_INIT;
	u->n = 0;
	u->generation++;
	if (stat(u->path, &u->seen) < 0 || file_read(AT_FDCWD, u->path, 65536, &text) < 0) {
		u->seen = (struct stat){0};
		return;
	}
	for (struct str rest = buf_str(&text); rest.n && u->n < UPSTREAMS_FROM_FILE;) {
		struct str line = rest, tail = str_n("", 0), word, value;
		str_cut(rest, '\n', &line, &tail);
		rest = tail;
		if (!str_starts(line, STR("nameserver")))
			continue;
		line = str_from(line, strlen("nameserver"));
		word = str_trim(line);
		if (word.n == line.n)
			continue; /* another word that begins like it */
		if (str_cut(word, ' ', &value, &tail) || str_cut(word, '\t', &value, &tail))
			word = value;
		if (parse(word, &u->list[u->n]) == 0)
			u->n++;
	}
}

int upstreams_init(struct upstreams *u, const char *configured, const char *path, struct error *err)
{
	*u = (struct upstreams){0};
	if (*configured)
		return parse_option(u, str_of(configured), err);
	u->path = path;
	read_file(u);
	return 0;
}

void upstreams_refresh(struct upstreams *u, int64_t now)
{
	struct stat st;
	if (!u->path || now - u->checked < check_every)
		return;
	u->checked = now;
	if (stat(u->path, &st) < 0)
		st = (struct stat){0};
	if (st.st_ino != u->seen.st_ino || st.st_size != u->seen.st_size || st.st_mtim.tv_sec != u->seen.st_mtim.tv_sec ||
		st.st_mtim.tv_nsec != u->seen.st_mtim.tv_nsec)
		read_file(u);
}

struct upstream *upstreams_nth(struct upstreams *u, size_t n, int64_t now)
{
	if (!u->n)
		return NULL;
	n %= u->n;
	for (int bad = 0; bad < 2; bad++)
		for (size_t i = 0; i < u->n; i++)
			if ((u->list[i].bad_until > now) == bad && n-- == 0)
				return &u->list[i];
	return NULL;
}

void upstream_failed(struct upstream *u, int64_t now)
{
	u->bad_until = now + bad_for;
}

void upstream_answered(struct upstream *u)
{
	u->bad_until = 0;
}
