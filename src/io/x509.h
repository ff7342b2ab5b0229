/* Certificates: making a local authority and leaves, and saying what one holds. Keys are ECDSA P-256. No I/O. */
#ifndef CUBICLE_IO_X509_H
#define CUBICLE_IO_X509_H

#include "base/buf.h"
#include "base/error.h"

#include <openssl/x509.h>
#include <stdint.h>

enum {
	X509_DOMAIN_MAX = 200,
	X509_PEM_MAX = 256 * 1024, /* of one file */
};

static inline void x509_free_p(X509 **x)
{
	X509_free(*x);
}
static inline void x509_key_free_p(EVP_PKEY **k)
{
	EVP_PKEY_free(*k);
}
#define cleanup_x509 __attribute__((__cleanup__(x509_free_p)))
#define cleanup_key __attribute__((__cleanup__(x509_key_free_p)))

/* A host name of letters, digits, '-' and '.', lower case, without a port, not an address: fit to be a domain with sandboxes below it. */
bool x509_domain_valid(struct str domain);

/* A fresh key, or NULL with *err. */
EVP_PKEY *x509_make_key(struct error *err);

/*
 * A certificate authority that clients may trust without trusting it for the world: its name constraints (critical) permit the domain, what is below it,
 * localhost and loopback addresses, nothing else. From an hour ago for `days`. NULL with *err.
 */
X509 *x509_make_ca(const char *domain, EVP_PKEY *key, int days, struct error *err);

/* A server certificate for the domain, everything one label below it, localhost, 127.0.0.1 and ::1, at most as long as its issuer. NULL with *err. */
X509 *x509_make_leaf(const char *domain, EVP_PKEY *key, X509 *ca, EVP_PKEY *ca_key, int days, struct error *err);

/* Seconds since 1970. */
int64_t x509_not_before(const X509 *x);
int64_t x509_not_after(const X509 *x);

/* Appends DNS names and addresses of the subject alternative names, separated by spaces. 0 or -ENOMEM. */
int x509_names(const X509 *x, struct buf *to);
/* The certificate is good for this host name (also under a wildcard). */
bool x509_covers(const X509 *x, const char *host);
/* The authority's name constraints permit names below this domain. True without constraints. */
bool x509_ca_permits(X509 *ca, const char *domain);

/* SHA-256 of the whole certificate (DER) in lower-case hex. Returns to. */
char *x509_fingerprint(const X509 *x, char to[65]);

/* PEM. Reading gives the first block of the kind, NULL when there is none (never asks for a passphrase). Writing appends: 0 or -ENOMEM. */
X509 *x509_read(struct str pem);
EVP_PKEY *x509_read_key(struct str pem);
int x509_write(X509 *x, struct buf *to);
int x509_write_key(EVP_PKEY *key, struct buf *to);

/* The newest reason in OpenSSL's error queue, which is emptied; static text or "unknown error". */
const char *x509_openssl_reason(void);

#endif
