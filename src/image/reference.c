#include "image/reference.h"

#include "base/cleanup.h"

#include <arpa/inet.h>
#include <errno.h>
#include <stdio.h>

static bool is_lower(char c)
{
	return c >= 'a' && c <= 'z';
}

static bool is_digit(char c)
{
	return c >= '0' && c <= '9';
}

static bool is_alnum(char c)
{
	return is_lower(c) || is_digit(c) || (c >= 'A' && c <= 'Z');
}

static char lower(char c)
{
	return c >= 'A' && c <= 'Z' ? (char)(c + 'a' - 'A') : c;
}

bool reference_digest_valid(struct str text)
{
	if (text.n != 71 || !str_starts(text, STR("sha256:")))
		return false;
	for (size_t i = 7; i < text.n; i++)
		if (!is_digit(text.p[i]) && !(text.p[i] >= 'a' && text.p[i] <= 'f'))
			return false;
	return true;
}

/* RFC 1123: labels of letters, digits and inner '-'; '_' too, as private resolvers know it. No dot at the end, which would be another spelling of the same host. */
static bool name_valid(struct str s)
{
	size_t label = 0;
	for (size_t i = 0; i <= s.n; i++) {
		if (i < s.n && s.p[i] != '.') {
			if (!is_alnum(s.p[i]) && s.p[i] != '-' && s.p[i] != '_')
				return false;
			label++;
			continue;
		}
		if (!label || label > 63 || s.p[i - label] == '-' || s.p[i - 1] == '-')
			return false;
		label = 0;
	}
	return s.n > 0 && s.n < REFERENCE_HOST_MAX;
}

/* "[...]" in its shortest form. */
static int address_normal(struct str s, char to[REFERENCE_HOST_MAX])
{
	char text[INET6_ADDRSTRLEN];
	struct in6_addr a;
	if (s.n < 4 || s.p[s.n - 1] != ']' || s.n - 2 >= sizeof(text))
		return -EINVAL;
	memcpy(text, s.p + 1, s.n - 2);
	text[s.n - 2] = 0;
	if (inet_pton(AF_INET6, text, &a) != 1 || !inet_ntop(AF_INET6, &a, text, sizeof(text)))
		return -EINVAL;
	snprintf(to, REFERENCE_HOST_MAX, "[%s]", text);
	return 0;
}

static int port_parse(struct str s, uint16_t *ret)
{
	uint64_t port;
	if (s.n > 5 || str_to_u64(s, &port) < 0 || !port || port > 65535)
		return -EINVAL;
	*ret = (uint16_t)port;
	return 0;
}

int reference_host(struct str text, char ret_host[REFERENCE_HOST_MAX], uint16_t *ret_port)
{
	char host[REFERENCE_HOST_MAX];
	uint16_t port = 0;
	size_t end = text.n;
	bool address = text.n && text.p[0] == '[';
	for (size_t i = text.n; i-- && text.p[i] != ']';)
		if (text.p[i] == ':') {
			end = i;
			break;
		}
	if (end < text.n && port_parse(str_from(text, end + 1), &port) < 0)
		return -EINVAL;
	struct str name = str_n(text.p, end);
	if (address) {
		if (address_normal(name, host) < 0)
			return -EINVAL;
	} else {
		if (!name_valid(name))
			return -EINVAL;
		for (size_t i = 0; i < name.n; i++)
			host[i] = lower(name.p[i]);
		host[name.n] = 0;
	}
	static const char *const hub[] = {"index.docker.io", "registry-1.docker.io", "registry.hub.docker.com"};
	for (size_t i = 0; i < ARRAY_SIZE(hub); i++)
		if (!strcmp(host, hub[i]))
			strcpy(host, "docker.io");
	memcpy(ret_host, host, strlen(host) + 1);
	*ret_port = port;
	return 0;
}

/* The part before the first '/' names a host rather than a part of a path on Docker Hub. */
static bool first_is_host(struct str first)
{
	return str_chr(first, '.') >= 0 || str_chr(first, ':') >= 0 || (first.n && first.p[0] == '[') || str_eq_nocase(first, STR("localhost"));
}

bool reference_is_image(struct str name)
{
	struct str first, rest;
	if (str_starts(name, STR("docker://")))
		return true;
	return str_cut(name, '/', &first, &rest) && first_is_host(first);
}

/* [a-z0-9]+ joined by '.', '_', '__' or any number of '-' */
static bool component_valid(struct str s)
{
	size_t i = 0;
	while (i < s.n) {
		size_t from = i;
		while (i < s.n && (is_lower(s.p[i]) || is_digit(s.p[i])))
			i++;
		if (i == from)
			return false;
		if (i == s.n)
			return true;
		from = i;
		char c = s.p[i];
		while (i < s.n && s.p[i] == c && (c == '.' || c == '_' || c == '-'))
			i++;
		if (i == from || (c == '.' && i - from > 1) || (c == '_' && i - from > 2))
			return false;
	}
	return false;
}

static bool repository_valid(struct str s)
{
	struct str part, rest = s;
	while (str_cut(rest, '/', &part, &rest))
		if (!component_valid(part))
			return false;
	return component_valid(rest) && s.n < REFERENCE_REPOSITORY_MAX;
}

static bool tag_valid(struct str s)
{
	if (!s.n || s.n >= REFERENCE_TAG_MAX || s.p[0] == '.' || s.p[0] == '-')
		return false;
	for (size_t i = 0; i < s.n; i++)
		if (!is_alnum(s.p[i]) && s.p[i] != '_' && s.p[i] != '.' && s.p[i] != '-')
			return false;
	return true;
}

static int bad(struct error *err, const char *why)
{
	return error_set(err, -EINVAL, 400, "image reference: %s", why);
}

static int check_characters(struct str text, struct error *err)
{
	if (!text.n)
		return bad(err, "it is empty");
	if (text.n > REFERENCE_MAX)
		return bad(err, "it is longer than 512 characters");
	if (text.p[0] == '-')
		return bad(err, "it begins with '-'");
	for (size_t i = 0; i < text.n; i++)
		if (!is_alnum(text.p[i]) && !memchr("._:/@-[]", text.p[i], 8))
			return bad(err, "only letters, digits and . _ : / @ - are allowed (and [ ] around an IPv6 address)");
	return 0;
}

static struct str peel(struct str text, enum reference_scheme *ret)
{
	*ret = REFERENCE_ANY;
	if (str_starts(text, STR("docker://")))
		return str_from(text, 9);
	if (str_starts(text, STR("http://")))
		*ret = REFERENCE_HTTP;
	else if (str_starts(text, STR("https://")))
		*ret = REFERENCE_HTTPS;
	return str_from(text, *ret == REFERENCE_HTTP ? 7 : *ret == REFERENCE_HTTPS ? 8 : 0);
}

static int parse_registry(struct str *text, struct reference *r, struct error *err)
{
	char host[REFERENCE_HOST_MAX];
	struct str first, rest;
	uint16_t port = 0;
	if (!str_cut(*text, '/', &first, &rest) || !first_is_host(first)) {
		if (r->scheme != REFERENCE_ANY)
			return bad(err, "after http:// or https:// comes a host (with a '.' or a port, or localhost), '/' and the name of the image");
		strcpy(r->registry, "docker.io");
		return 0;
	}
	if (reference_host(first, host, &port) < 0)
		return bad(err, "what is before the first '/' is no host or host:port");
	if (port == 443 && r->scheme == REFERENCE_HTTP)
		return bad(err, "port 443 is not plain HTTP's");
	/* A host like "registry" is one by its port alone. */
	if (port == (r->scheme == REFERENCE_HTTP ? 80 : 443) && first_is_host(str_of(host)))
		port = 0;
	if (port)
		snprintf(r->registry, sizeof(r->registry), "%s:%u", host, port);
	else
		memcpy(r->registry, host, strlen(host) + 1);
	*text = rest;
	return 0;
}

int reference_parse(struct str text, struct reference *ret, struct error *err)
{
	struct reference r = {0};
	int e = check_characters(text, err);
	if (e < 0)
		return e;
	text = peel(text, &r.scheme);
	struct str digest = {0};
	if (str_cut(text, '@', &text, &digest)) {
		if (str_starts(digest, STR("sha512:")))
			return bad(err, "digests other than sha256 are not supported");
		if (!reference_digest_valid(digest))
			return bad(err, "after '@' comes sha256: and 64 hexadecimal digits in lower case");
		memcpy(r.digest, digest.p, digest.n);
	}
	e = parse_registry(&text, &r, err);
	if (e < 0)
		return e;
	struct str path, tag;
	if (str_cut(text, ':', &path, &tag)) {
		if (!tag_valid(tag))
			return bad(err, "a tag is 1 to 128 letters, digits, '_', '.' and '-', not beginning with '.' or '-'");
		memcpy(r.tag, tag.p, tag.n);
	} else {
		path = text;
		if (!digest.n)
			strcpy(r.tag, "latest");
	}
	if (!path.n)
		return bad(err, "it names no repository");
	if (!repository_valid(path))
		return bad(err, "a repository is lower-case letters and digits, joined by '.', '_', '__' or '-', in parts between '/', 255 characters at most");
	bool official = !strcmp(r.registry, "docker.io") && str_chr(path, '/') < 0;
	int n = snprintf(r.repository, sizeof(r.repository), "%s%.*s", official ? "library/" : "", STR_FMT(path));
	if (n >= (int)sizeof(r.repository))
		return bad(err, "a repository has 255 characters at most");
	*ret = r;
	return 0;
}

char *reference_format(const struct reference *r, char to[REFERENCE_TEXT_MAX])
{
	snprintf(to, REFERENCE_TEXT_MAX, "%s/%s%s%s%s%s", r->registry, r->repository, *r->tag ? ":" : "", r->tag, *r->digest ? "@" : "", r->digest);
	return to;
}
