#include "io/x509.h"

#include "base/cleanup.h"
#include "base/encode.h"

#include <arpa/inet.h>
#include <errno.h>
#include <openssl/err.h>
#include <openssl/pem.h>
#include <openssl/x509v3.h>
#include <stdio.h>
#include <time.h>

enum { SECONDS_PER_DAY = 86400, BACKDATE = 3600 };

const char *x509_openssl_reason(void)
{
	unsigned long code = ERR_peek_last_error();
	const char *reason = code ? ERR_reason_error_string(code) : NULL;
	ERR_clear_error();
	return reason ? reason : "unknown error";
}

static bool is_alnum(char c)
{
	return (c >= 'a' && c <= 'z') || (c >= '0' && c <= '9');
}

bool x509_domain_valid(struct str domain)
{
	struct str rest = domain, label = {0};
	if (domain.n == 0 || domain.n > X509_DOMAIN_MAX)
		return false;
	while (rest.n) {
		bool last = !str_cut(rest, '.', &label, &rest);
		if (last) {
			label = rest;
			rest.n = 0;
		} else if (rest.n == 0) {
			return false;
		}
		if (label.n == 0 || label.n > 63 || !is_alnum(label.p[0]) || !is_alnum(label.p[label.n - 1]))
			return false;
		for (size_t i = 0; i < label.n; i++)
			if (!is_alnum(label.p[i]) && label.p[i] != '-')
				return false;
	}
	/* "127.0.0.1": the last label of a name is never a number. */
	for (size_t i = 0; i < label.n; i++)
		if (label.p[i] < '0' || label.p[i] > '9')
			return true;
	return false;
}

EVP_PKEY *x509_make_key(struct error *err)
{
	EVP_PKEY *key = EVP_EC_gen("P-256");
	if (!key)
		error_set(err, -EIO, 500, "making a key: %s", x509_openssl_reason());
	return key;
}

static bool add_extension(X509 *x, X509 *issuer, int nid, const char *value)
{
	X509V3_CTX context;
	X509V3_set_ctx(&context, issuer, x, NULL, NULL, 0);
	X509_EXTENSION *e = X509V3_EXT_conf_nid(NULL, &context, nid, value);
	bool ok = e && X509_add_ext(x, e, -1);
	X509_EXTENSION_free(e);
	return ok;
}

static bool set_serial(X509 *x)
{
	BIGNUM *n = BN_new();
	/* 127 random bits (CA/Browser Forum: at least 64), positive. */
	bool ok = n && BN_rand(n, 127, BN_RAND_TOP_ANY, BN_RAND_BOTTOM_ANY) && BN_to_ASN1_INTEGER(n, X509_get_serialNumber(x));
	BN_free(n);
	return ok;
}

static bool set_subject(X509 *x, const char *name)
{
	X509_NAME *subject = X509_get_subject_name(x);
	return X509_NAME_add_entry_by_txt(subject, "O", MBSTRING_UTF8, (const unsigned char *)"Cubicle", -1, -1, 0) &&
		X509_NAME_add_entry_by_txt(subject, "CN", MBSTRING_UTF8, (const unsigned char *)name, -1, -1, 0);
}

/* Everything but the extensions of the two kinds. issuer NULL = itself. */
static X509 *begin(const char *name, EVP_PKEY *key, X509 *issuer, int64_t until)
{
	X509 *x = X509_new();
	if (x && X509_set_version(x, X509_VERSION_3) && set_serial(x) && set_subject(x, name) && X509_set_pubkey(x, key) &&
		X509_set_issuer_name(x, X509_get_subject_name(issuer ? issuer : x)) && ASN1_TIME_set(X509_getm_notBefore(x), time(NULL) - BACKDATE) &&
		ASN1_TIME_set(X509_getm_notAfter(x), until))
		return x;
	X509_free(x);
	return NULL;
}

static X509 *finish(X509 *x, EVP_PKEY *signer, bool ok, const char *what, struct error *err)
{
	if (ok && X509_sign(x, signer, EVP_sha256()) > 0)
		return x;
	X509_free(x);
	error_set(err, -EIO, 500, "making the %s: %s", what, x509_openssl_reason());
	return NULL;
}

X509 *x509_make_ca(const char *domain, EVP_PKEY *key, int days, struct error *err)
{
	char name[64], permitted[2 * X509_DOMAIN_MAX];
	/* X.520 allows 64 characters of a common name; the constraints carry the whole domain. */
	snprintf(name, sizeof(name), "Cubicle CA for %s", domain);
	snprintf(permitted, sizeof(permitted), "critical,permitted;DNS:%s,permitted;DNS:localhost,permitted;IP:127.0.0.0/255.0.0.0,"
		"permitted;IP:::1/ffff:ffff:ffff:ffff:ffff:ffff:ffff:ffff", domain);
	X509 *x = begin(name, key, NULL, time(NULL) + (int64_t)days * SECONDS_PER_DAY);
	bool ok = x && add_extension(x, x, NID_basic_constraints, "critical,CA:TRUE,pathlen:0") && add_extension(x, x, NID_key_usage, "critical,keyCertSign,cRLSign") &&
		add_extension(x, x, NID_name_constraints, permitted) && add_extension(x, x, NID_subject_key_identifier, "hash");
	return finish(x, key, ok, "certificate authority", err);
}

X509 *x509_make_leaf(const char *domain, EVP_PKEY *key, X509 *ca, EVP_PKEY *ca_key, int days, struct error *err)
{
	char names[2 * X509_DOMAIN_MAX + 80];
	snprintf(names, sizeof(names), "DNS:%s,DNS:*.%s,DNS:localhost,IP:127.0.0.1,IP:::1", domain, domain);
	int64_t until = MIN(time(NULL) + (int64_t)days * SECONDS_PER_DAY, x509_not_after(ca));
	X509 *x = begin(strlen(domain) <= 64 ? domain : "cubicle", key, ca, until);
	bool ok = x && add_extension(x, ca, NID_basic_constraints, "critical,CA:FALSE") && add_extension(x, ca, NID_key_usage, "critical,digitalSignature") &&
		add_extension(x, ca, NID_ext_key_usage, "serverAuth") && add_extension(x, ca, NID_subject_alt_name, names) &&
		add_extension(x, ca, NID_subject_key_identifier, "hash") && add_extension(x, ca, NID_authority_key_identifier, "keyid:always");
	return finish(x, ca_key, ok, "certificate", err);
}

static int64_t seconds_of(const ASN1_TIME *t)
{
	struct tm tm = {0};
	return ASN1_TIME_to_tm(t, &tm) ? timegm(&tm) : 0;
}

int64_t x509_not_before(const X509 *x)
{
	return seconds_of(X509_get0_notBefore(x));
}

int64_t x509_not_after(const X509 *x)
{
	return seconds_of(X509_get0_notAfter(x));
}

int x509_names(const X509 *x, struct buf *to)
{
	GENERAL_NAMES *names = X509_get_ext_d2i(x, NID_subject_alt_name, NULL, NULL);
	const char *between = "";
	for (int i = 0; i < sk_GENERAL_NAME_num(names); i++) {
		const GENERAL_NAME *n = sk_GENERAL_NAME_value(names, i);
		char text[INET6_ADDRSTRLEN] = "";
		if (n->type == GEN_DNS) {
			buf_addf(to, "%s%.*s", between, ASN1_STRING_length(n->d.dNSName), (const char *)ASN1_STRING_get0_data(n->d.dNSName));
		} else if (n->type == GEN_IPADD) {
			int size = ASN1_STRING_length(n->d.iPAddress);
			if ((size != 4 && size != 16) || !inet_ntop(size == 4 ? AF_INET : AF_INET6, ASN1_STRING_get0_data(n->d.iPAddress), text, sizeof(text)))
				continue;
			buf_addf(to, "%s%s", between, text);
		} else {
			continue;
		}
		between = " ";
	}
	GENERAL_NAMES_free(names);
	return to->failed ? -ENOMEM : 0;
}

bool x509_covers(const X509 *x, const char *host)
{
	bool covers = X509_check_host((X509 *)(uintptr_t)x, host, 0, X509_CHECK_FLAG_NO_PARTIAL_WILDCARDS, NULL) == 1;
	ERR_clear_error();
	return covers;
}

/* RFC 5280 §4.2.1.10: "a.b" permits itself and what is below it. */
static bool is_below(struct str domain, struct str base)
{
	if (base.n && base.p[0] == '.')
		return false; /* what is below only: not the domain itself */
	return str_eq_nocase(domain, base) ||
		(domain.n > base.n && domain.p[domain.n - base.n - 1] == '.' && str_eq_nocase(str_from(domain, domain.n - base.n), base)) || !base.n;
}

bool x509_ca_permits(X509 *ca, const char *domain)
{
	NAME_CONSTRAINTS *c = X509_get_ext_d2i(ca, NID_name_constraints, NULL, NULL);
	bool any = false, permits = false;
	for (int i = 0; c && i < sk_GENERAL_SUBTREE_num(c->permittedSubtrees); i++) {
		const GENERAL_NAME *n = sk_GENERAL_SUBTREE_value(c->permittedSubtrees, i)->base;
		if (n->type != GEN_DNS)
			continue;
		any = true;
		permits |= is_below(str_of(domain), str_n(ASN1_STRING_get0_data(n->d.dNSName), (size_t)ASN1_STRING_length(n->d.dNSName)));
	}
	NAME_CONSTRAINTS_free(c);
	return permits || !any;
}

char *x509_fingerprint(const X509 *x, char to[65])
{
	unsigned char digest[EVP_MAX_MD_SIZE] = {0};
	unsigned n;
	X509_digest(x, EVP_sha256(), digest, &n);
	return hex_encode(to, digest, 32);
}

/* An encrypted key gets an empty passphrase, which is wrong, instead of a question on the terminal. */
static int no_passphrase(char *to, int size, int writing, void *arg)
{
	return 0;
}

X509 *x509_read(struct str pem)
{
	BIO *b = BIO_new_mem_buf(pem.p, (int)MIN(pem.n, (size_t)X509_PEM_MAX));
	X509 *x = b ? PEM_read_bio_X509(b, NULL, no_passphrase, NULL) : NULL;
	BIO_free(b);
	return x;
}

EVP_PKEY *x509_read_key(struct str pem)
{
	BIO *b = BIO_new_mem_buf(pem.p, (int)MIN(pem.n, (size_t)X509_PEM_MAX));
	EVP_PKEY *key = b ? PEM_read_bio_PrivateKey(b, NULL, no_passphrase, NULL) : NULL;
	BIO_free(b);
	return key;
}

/* Moves what a memory BIO holds, which may be a key. */
static int take_bio(BIO *b, bool ok, struct buf *to)
{
	char *p = NULL;
	long n = b ? BIO_get_mem_data(b, &p) : 0;
	int r = ok && n > 0 ? buf_add(to, p, (size_t)n) : -ENOMEM;
	if (n > 0)
		OPENSSL_cleanse(p, (size_t)n);
	BIO_free(b);
	return r;
}

int x509_write(X509 *x, struct buf *to)
{
	BIO *b = BIO_new(BIO_s_mem());
	return take_bio(b, b && PEM_write_bio_X509(b, x), to);
}

int x509_write_key(EVP_PKEY *key, struct buf *to)
{
	BIO *b = BIO_new(BIO_s_mem());
	return take_bio(b, b && PEM_write_bio_PKCS8PrivateKey(b, key, NULL, NULL, 0, NULL, NULL), to);
}
