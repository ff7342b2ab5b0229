#include "image/outbound_place.h"

#include "base/cleanup.h"

#include <curl/curl.h>
#include <errno.h>
#include <netdb.h>
#include <stdio.h>
#include <string.h>

static void url_free_p(CURLU **u)
{
	curl_url_cleanup(*u);
}

static void text_free_p(char **c)
{
	curl_free(*c);
}
#define cleanup_url __attribute__((__cleanup__(url_free_p)))
#define cleanup_text __attribute__((__cleanup__(text_free_p)))

static bool has_part(CURLU *u, CURLUPart part)
{
	cleanup_text char *text = NULL;
	return curl_url_get(u, part, &text, 0) == CURLUE_OK;
}

static int read_host(CURLU *u, struct place *p)
{
	cleanup_text char *scheme = NULL, *host = NULL, *port = NULL;
	char normal[REFERENCE_HOST_MAX];
	uint16_t none;
	uint64_t number;
	if (curl_url_get(u, CURLUPART_SCHEME, &scheme, 0) || curl_url_get(u, CURLUPART_HOST, &host, 0) || curl_url_get(u, CURLUPART_PORT, &port, CURLU_DEFAULT_PORT))
		return -EINVAL;
	p->tls = !strcmp(scheme, "https");
	if (!p->tls && strcmp(scheme, "http") != 0)
		return -EINVAL;
	if (has_part(u, CURLUPART_ZONEID) || reference_host(str_of(host), normal, &none) < 0 || none)
		return -EINVAL;
	for (size_t i = 0; host[i]; i++)
		p->host[i] = host[i] >= 'A' && host[i] <= 'Z' ? (char)(host[i] + 'a' - 'A') : host[i];
	if (str_to_u64(str_of(port), &number) < 0 || !number || number > 65535)
		return -EINVAL;
	p->port = (uint16_t)number;
	return 0;
}

int place_parse(const char *base, const char *url, char **ret_url, struct place *ret_place, struct error *err)
{
	cleanup_url CURLU *u = curl_url();
	cleanup_text char *text = NULL;
	struct place p = {0};
	if (!u)
		return error_set(err, -ENOMEM, 500, "out of memory");
	if (strlen(url) > OUTBOUND_URL_MAX || (base && curl_url_set(u, CURLUPART_URL, base, 0)) || curl_url_set(u, CURLUPART_URL, url, 0) || read_host(u, &p) < 0)
		return error_set(err, -EINVAL, 502, "an address that is no URL of HTTP or HTTPS");
	if (has_part(u, CURLUPART_USER) || has_part(u, CURLUPART_PASSWORD))
		return error_set(err, -EINVAL, 502, "a URL with a user or password in it");
	if (curl_url_set(u, CURLUPART_FRAGMENT, NULL, 0) || curl_url_get(u, CURLUPART_URL, &text, 0) || strlen(text) > OUTBOUND_URL_MAX)
		return error_set(err, -EINVAL, 502, "an address that is no URL of HTTP or HTTPS");
	char *copy = strdup(text);
	if (!copy)
		return error_set(err, -ENOMEM, 500, "out of memory");
	*ret_url = copy;
	*ret_place = p;
	return 0;
}

bool place_same(const struct place *a, const struct place *b)
{
	return a->tls == b->tls && a->port == b->port && !strcmp(a->host, b->host);
}

char *place_name(const struct place *p, char to[REFERENCE_REGISTRY_MAX])
{
	if (p->port == (p->tls ? 443 : 80))
		snprintf(to, REFERENCE_REGISTRY_MAX, "%s", p->host);
	else
		snprintf(to, REFERENCE_REGISTRY_MAX, "%s:%u", p->host, p->port);
	return to;
}

static int resolve(const struct place *p, struct addrinfo **ret, struct error *err)
{
	char name[REFERENCE_REGISTRY_MAX], host[REFERENCE_HOST_MAX], port[8];
	const struct addrinfo hints = {.ai_family = AF_UNSPEC, .ai_socktype = SOCK_STREAM, .ai_flags = AI_NUMERICSERV | AI_ADDRCONFIG};
	struct addrinfo literal = hints;
	literal.ai_flags = AI_NUMERICSERV | AI_NUMERICHOST;
	bool bracket = *p->host == '[';
	snprintf(host, sizeof(host), "%.*s", (int)(strlen(p->host) - (bracket ? 2 : 0)), p->host + bracket);
	snprintf(port, sizeof(port), "%u", p->port);
	if (getaddrinfo(host, port, &literal, ret) == 0)
		return 0;
	if (getaddrinfo(host, port, &hints, ret) == 0)
		return 0;
	return error_set(err, -EHOSTUNREACH, 502, "%s: the name has no address", place_name(p, name));
}

static int judge(const struct places *all, struct place *p, const struct addrinfo *found, struct error *err)
{
	char name[REFERENCE_REGISTRY_MAX];
	bool private = registries_private(all->registries, str_of(p->host), p->port, p->tls);
	for (const struct addrinfo *a = found; a && p->n < PLACE_ADDRESSES; a = a->ai_next) {
		enum address_kind kind = address_judge(a->ai_addr);
		if (kind == ADDRESS_PUBLIC && own_addresses_hold(&all->own, a->ai_addr))
			kind = ADDRESS_PRIVATE;
		if (kind == ADDRESS_NEVER || (kind == ADDRESS_PRIVATE && !private))
			continue;
		memcpy(&p->addresses[p->n++], a->ai_addr, a->ai_addrlen);
	}
	if (p->n)
		return 0;
	return error_set(err, -EACCES, 400, "%s is not at a public address: only registries that the operator of this server has named (registry.private, registry.insecure) may be at others",
		place_name(p, name));
}

int places_find(struct places *all, const struct place *wanted, const struct place **ret, struct error *err)
{
	char name[REFERENCE_REGISTRY_MAX];
	if (!wanted->tls && !registries_insecure(all->registries, str_of(wanted->host), wanted->port, false))
		return error_set(err, -EACCES, 400, "%s: plain HTTP is only for registries that the operator of this server has named (registry.insecure)", place_name(wanted, name));
	for (size_t i = 0; i < all->n; i++)
		if (place_same(all->list[i], wanted)) {
			*ret = all->list[i];
			return 0;
		}
	if (all->n == PLACES_MAX)
		return error_set(err, -E2BIG, 400, "the images lead to more than %d hosts", PLACES_MAX);
	struct addrinfo *found;
	int r = resolve(wanted, &found, err);
	if (r < 0)
		return r;
	struct place *p = malloc(sizeof(*p));
	if (p) {
		*p = *wanted;
		p->n = 0;
		r = judge(all, p, found, err);
	} else {
		r = error_set(err, -ENOMEM, 500, "out of memory");
	}
	freeaddrinfo(found);
	if (r < 0) {
		free(p);
		return r;
	}
	*ret = all->list[all->n++] = p;
	return 0;
}

void places_done(struct places *all)
{
	for (size_t i = 0; i < all->n; i++)
		free(all->list[i]);
	all->n = 0;
	own_addresses_done(&all->own);
}
