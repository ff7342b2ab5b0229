/* The doctor's checks of listen.tls and the domain. */
#include "cli/certificates.h"
#include "cli/doctor.h"
#include "base/cleanup.h"
#include "base/clock.h"
#include "base/fd.h"
#include "io/x509.h"

#include <fcntl.h>
#include <netdb.h>
#include <openssl/crypto.h>
#include <stdio.h>

enum { SECONDS_PER_DAY = 86400, SOON_DAYS = 14 };

/* The names that clients make of the domain: of the API and of sandboxes' ports. */
static const char *const made_of_domain[] = {"api", "49983-ithisisasandboxsid00"};

struct covering {
	const struct options *options;
	bool covers[ARRAY_SIZE(made_of_domain)];
};

static int note_names(const char *cert, const char *key, void *arg, struct error *err)
{
	struct covering *c = arg;
	cleanup_buf struct buf pem = BUF_INIT;
	if (file_read(AT_FDCWD, cert, X509_PEM_MAX, &pem) < 0)
		return 0; /* told by certificates_load() */
	cleanup_x509 X509 *x = x509_read(buf_str(&pem));
	OPENSSL_cleanse(pem.data, pem.end);
	for (size_t i = 0; x && i < ARRAY_SIZE(made_of_domain); i++) {
		char host[512];
		struct str domain = options_domain_name(c->options);
		snprintf(host, sizeof(host), "%s.%.*s", made_of_domain[i], (int)MIN(domain.n, (size_t)400), domain.p);
		c->covers[i] |= x509_covers(x, host);
	}
	return 0;
}

int doctor_try_certificate(struct doctor *d, struct error *err)
{
	struct certificates certificates = {.fd = -1};
	struct covering c = {.options = d->options};
	if (!*d->options->listen_tls) {
		snprintf(d->note, sizeof(d->note), "not used: listen.tls is not set");
		return 0;
	}
	int r = certificates_load(d->options, &certificates, err);
	if (r == 0)
		r = certificates_each(d->options, note_names, &c, err);
	int64_t days = (certificates.expires - clock_realtime() / NS_PER_S) / SECONDS_PER_DAY;
	certificates_done(&certificates);
	if (r < 0)
		return r;
	if (!*d->options->domain)
		return error_set(err, -EINVAL, 400, "listen.tls is set, but domain is not");
	for (size_t i = 0; i < ARRAY_SIZE(made_of_domain); i++)
		if (!c.covers[i])
			return error_set(err, -EINVAL, 400, "no certificate is for names like %s.%s", made_of_domain[i], d->options->domain);
	if (days < SOON_DAYS)
		return error_set(err, -EKEYEXPIRED, 400, days < 0 ? "it has expired" : "it expires in %lld days", (long long)days);
	snprintf(d->note, sizeof(d->note), "good for %lld days", (long long)days);
	return 0;
}

int doctor_try_names(struct doctor *d, struct error *err)
{
	struct str domain = options_domain_name(d->options);
	if (!domain.n) {
		snprintf(d->note, sizeof(d->note), "not used: domain is not set");
		return 0;
	}
	for (size_t i = 0; i < ARRAY_SIZE(made_of_domain); i++) {
		char host[512];
		struct addrinfo hints = {.ai_socktype = SOCK_STREAM}, *list = NULL;
		snprintf(host, sizeof(host), "%s.%.*s", made_of_domain[i], (int)MIN(domain.n, (size_t)400), domain.p);
		int r = getaddrinfo(host, NULL, &hints, &list);
		if (r != 0)
			return error_set(err, -ENOENT, 404, "%s: %s", host, gai_strerror(r));
		char address[80] = ""; /* an IPv6 one with its link's name */
		if (getnameinfo(list->ai_addr, list->ai_addrlen, address, sizeof(address), NULL, 0, NI_NUMERICHOST) == 0)
			snprintf(d->note, sizeof(d->note), "*.%.*s is %s", (int)MIN(domain.n, (size_t)200), domain.p, address);
		freeaddrinfo(list);
	}
	return 0;
}
