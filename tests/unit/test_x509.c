/* Certificates of a local authority: for whom they are good, what is refused. */
#include "unit.h"

#include "base/cleanup.h"
#include "io/x509.h"
#include "tls_peer.h"

#include <errno.h>
#include <openssl/pem.h>
#include <openssl/x509v3.h>
#include <stdio.h>
#include <time.h>

static void domains_are_names(void **state)
{
	static const char *const good[] = {"sbx.test", "localhost", "a.b.c", "sbx.localhost", "1.test", "x-y.z", "xn--bcher-kva.example", "1a"};
	static const char *const bad[] = {"", ".", ".a", "a.", "a..b", "-a.b", "a-.b", "A.b", "a_b.c", "*.a", "a b", "a,b", "127.0.0.1", "1", "a.1", "::1", "a:1", "a/b", "\xc3\xa4.de",
		"a\nb", "a.b,DNS:evil"};
	char label[70] = "", name[300] = "";
	memset(label, 'a', 64);
	for (size_t i = 0; i < ARRAY_SIZE(good); i++)
		if (!x509_domain_valid(str_of(good[i])))
			fail_msg("%s is refused", good[i]);
	for (size_t i = 0; i < ARRAY_SIZE(bad); i++)
		if (x509_domain_valid(str_of(bad[i])))
			fail_msg("%s is taken", bad[i]);
	assert_false(x509_domain_valid(str_of(label)));
	assert_true(x509_domain_valid(str_of(label + 1)));
	for (size_t i = 0; i + 2 < sizeof(name); i += 2)
		memcpy(name + i, "a.", 2);
	assert_false(x509_domain_valid(str_n(name, 203)));
	assert_true(x509_domain_valid(str_n(name, 199)));
}

static EVP_PKEY *key(void)
{
	struct error err = {0};
	EVP_PKEY *k = x509_make_key(&err);
	assert_non_null(k);
	return k;
}

/* As a client would see it: 0, or X509_V_ERR_.... */
static int verdict(X509 *leaf, X509 *ca, const char *host)
{
	X509_STORE *store = X509_STORE_new();
	X509_STORE_CTX *ctx = X509_STORE_CTX_new();
	X509_STORE_add_cert(store, ca);
	X509_STORE_CTX_init(ctx, store, leaf, NULL);
	X509_VERIFY_PARAM *param = X509_STORE_CTX_get0_param(ctx);
	X509_VERIFY_PARAM_set_purpose(param, X509_PURPOSE_SSL_SERVER);
	X509_VERIFY_PARAM_set_flags(param, X509_V_FLAG_X509_STRICT);
	if (strchr("0123456789:", host[0]))
		X509_VERIFY_PARAM_set1_ip_asc(param, host);
	else
		X509_VERIFY_PARAM_set1_host(param, host, 0);
	X509_verify_cert(ctx);
	int r = X509_STORE_CTX_get_error(ctx);
	X509_STORE_CTX_free(ctx);
	X509_STORE_free(store);
	return r;
}

static void a_leaf_is_good_for_the_domain_and_what_is_below(void **state)
{
	static const char *const good[] = {"sbx.test", "api.sbx.test", "49983-iabc.sbx.test", "3000-ix.SBX.test", "localhost", "127.0.0.1", "::1"};
	static const char *const bad[] = {"a.b.sbx.test", "xsbx.test", "test", "127.0.0.2", "sbx.test.evil"};
	struct error err = {0};
	cleanup_key EVP_PKEY *ca_key = key(), *leaf_key = key();
	cleanup_x509 X509 *ca = x509_make_ca("sbx.test", ca_key, 1000, &err);
	cleanup_x509 X509 *leaf = x509_make_leaf("sbx.test", leaf_key, ca, ca_key, 397, &err);
	cleanup_buf struct buf names = BUF_INIT;
	for (size_t i = 0; i < ARRAY_SIZE(good); i++)
		if (verdict(leaf, ca, good[i]) != X509_V_OK)
			fail_msg("%s: %s", good[i], X509_verify_cert_error_string(verdict(leaf, ca, good[i])));
	for (size_t i = 0; i < ARRAY_SIZE(bad); i++)
		assert_int_not_equal(verdict(leaf, ca, bad[i]), X509_V_OK);
	x509_names(leaf, &names);
	assert_str(buf_str(&names), "sbx.test *.sbx.test localhost 127.0.0.1 ::1");
	int64_t now = time(NULL);
	assert_true(x509_not_before(leaf) <= now && x509_not_before(leaf) > now - 7200);
	assert_true(llabs(x509_not_after(leaf) - now - 397 * 86400) < 100);
	assert_true(x509_covers(leaf, "api.sbx.test"));
	assert_false(x509_covers(leaf, "api.sbx.test.evil"));
}

static void an_authority_vouches_for_its_domain_only(void **state)
{
	struct error err = {0};
	cleanup_key EVP_PKEY *ca_key = key(), *leaf_key = key();
	cleanup_x509 X509 *ca = x509_make_ca("sbx.test", ca_key, 1000, &err);
	/* Whoever gets its key still cannot be somebody else towards those who trust it. */
	cleanup_x509 X509 *evil = x509_make_leaf("bank.example", leaf_key, ca, ca_key, 10, &err);
	cleanup_x509 X509 *below = x509_make_leaf("team.sbx.test", leaf_key, ca, ca_key, 10, &err);
	assert_int_equal(verdict(evil, ca, "bank.example"), X509_V_ERR_PERMITTED_VIOLATION);
	assert_int_equal(verdict(below, ca, "a.team.sbx.test"), X509_V_OK);
	assert_true(x509_ca_permits(ca, "sbx.test"));
	assert_true(x509_ca_permits(ca, "team.sbx.test"));
	assert_false(x509_ca_permits(ca, "bank.example"));
	assert_false(x509_ca_permits(ca, "evilsbx.test"));
	assert_true(x509_ca_permits(evil, "anything")); /* without constraints */
}

static void a_leaf_does_not_outlive_its_authority(void **state)
{
	struct error err = {0};
	cleanup_key EVP_PKEY *ca_key = key(), *leaf_key = key();
	cleanup_x509 X509 *ca = x509_make_ca("sbx.test", ca_key, 5, &err);
	cleanup_x509 X509 *leaf = x509_make_leaf("sbx.test", leaf_key, ca, ca_key, 397, &err);
	assert_int_equal(x509_not_after(leaf), x509_not_after(ca));
}

static void long_domains_fit(void **state)
{
	char domain[X509_DOMAIN_MAX + 1] = "";
	struct error err = {0};
	for (int i = 0; i < X509_DOMAIN_MAX - 5; i += 2)
		strcat(domain, "a.");
	strcat(domain, "test");
	cleanup_key EVP_PKEY *ca_key = key(), *leaf_key = key();
	cleanup_x509 X509 *ca = x509_make_ca(domain, ca_key, 5, &err);
	cleanup_x509 X509 *leaf = x509_make_leaf(domain, leaf_key, ca, ca_key, 3, &err);
	assert_true(x509_domain_valid(str_of(domain)));
	assert_int_equal(verdict(leaf, ca, domain), X509_V_OK);
}

/* Pairs */

struct material {
	struct buf key, other_key, chain;
};

static void material_init(struct material *m)
{
	struct error err = {0};
	cleanup_key EVP_PKEY *ca_key = key(), *leaf_key = key();
	cleanup_x509 X509 *ca = x509_make_ca("sbx.test", ca_key, 100, &err);
	cleanup_x509 X509 *leaf = x509_make_leaf("sbx.test", leaf_key, ca, ca_key, 10, &err);
	*m = (struct material){0};
	x509_write_key(leaf_key, &m->key);
	x509_write_key(ca_key, &m->other_key);
	x509_write(leaf, &m->chain);
	x509_write(ca, &m->chain);
}

static void material_done(struct material *m)
{
	buf_done(&m->key);
	buf_done(&m->other_key);
	buf_done(&m->chain);
}

/* 0, or the code of the error, whose message holds `named`. */
static int try(struct str chain, struct str k, const char *named)
{
	cleanup_buf struct buf pairs = BUF_INIT;
	struct error err = {0};
	struct tls_server *s = NULL;
	int r = tls_pair(&pairs, chain, k, &err);
	if (r == 0)
		r = tls_server_new(buf_str(&pairs), &s, &err);
	assert_int_equal(r, err.code);
	if (r < 0 && !strstr(err.message, named))
		fail_msg("\"%s\" does not say %s", err.message, named);
	tls_server_unref(s);
	return r;
}

static void pairs_are_taken_from_files_as_people_have_them(void **state)
{
	struct material m;
	cleanup_buf struct buf both = BUF_INIT, turned = BUF_INIT, noisy = BUF_INIT;
	material_init(&m);
	buf_add_str(&both, buf_str(&m.key));
	buf_add_str(&both, buf_str(&m.chain));
	buf_add_str(&turned, buf_str(&m.chain));
	buf_add_str(&turned, buf_str(&m.key));
	buf_add_c(&noisy, "Bag Attributes: x\n-----BEGIN EC PARAMETERS-----\nBggqhkjOPQMBBw==\n-----END EC PARAMETERS-----\n");
	buf_add_str(&noisy, buf_str(&m.key));
	assert_int_equal(try(buf_str(&m.chain), buf_str(&m.key), ""), 0);
	assert_int_equal(try(buf_str(&both), buf_str(&both), ""), 0);
	assert_int_equal(try(buf_str(&turned), buf_str(&turned), ""), 0);
	assert_int_equal(try(buf_str(&m.chain), buf_str(&noisy), ""), 0);
	material_done(&m);
}

static void what_cannot_be_used_is_named(void **state)
{
	struct material m;
	cleanup_buf struct buf broken = BUF_INIT, many = BUF_INIT;
	material_init(&m);
	assert_int_equal(try(buf_str(&m.chain), buf_str(&m.other_key), "does not belong"), -EINVAL);
	assert_int_equal(try(buf_str(&m.chain), STR(""), "private key"), -EINVAL);
	assert_int_equal(try(buf_str(&m.chain), buf_str(&m.chain), "private key"), -EINVAL);
	assert_int_equal(try(STR(""), buf_str(&m.key), "no certificate"), -EINVAL);
	assert_int_equal(try(buf_str(&m.key), buf_str(&m.key), "no certificate"), -EINVAL);
	assert_int_equal(try(STR("junk"), buf_str(&m.key), "no certificate"), -EINVAL);
	/* Bytes are missing in the middle. */
	struct str all = buf_str(&m.chain);
	buf_add(&broken, all.p, 200);
	buf_add_str(&broken, str_from(all, 300));
	assert_int_equal(try(buf_str(&broken), buf_str(&m.key), "broken"), -EINVAL);
	BIO *b = BIO_new(BIO_s_mem());
	char *p;
	cleanup_key EVP_PKEY *k = x509_read_key(buf_str(&m.key));
	assert_int_equal(PEM_write_bio_PKCS8PrivateKey(b, k, EVP_aes_128_cbc(), "secret", 6, NULL, NULL), 1);
	size_t n = (size_t)BIO_get_mem_data(b, &p);
	assert_int_equal(try(buf_str(&m.chain), str_n(p, n), "passphrase"), -EINVAL);
	BIO_free(b);
	for (int i = 0; i < 20; i++)
		buf_add_str(&many, all);
	assert_int_equal(try(buf_str(&many), buf_str(&m.key), "more than"), -EINVAL);
	material_done(&m);
}

static void weak_keys_are_refused(void **state)
{
	struct error err = {0};
	cleanup_key EVP_PKEY *weak = EVP_RSA_gen(1024), *ca_key = key();
	cleanup_x509 X509 *ca = x509_make_ca("sbx.test", ca_key, 100, &err);
	cleanup_x509 X509 *leaf = x509_make_leaf("sbx.test", weak, ca, ca_key, 10, &err);
	cleanup_buf struct buf chain = BUF_INIT, k = BUF_INIT;
	x509_write(leaf, &chain);
	x509_write_key(weak, &k);
	assert_int_equal(try(buf_str(&chain), buf_str(&k), "too small"), -EINVAL);
}

/* What serve gives to the front is checked there once more. */
static void bundles_are_checked(void **state)
{
	struct material m;
	struct tls_server *s = NULL;
	struct error err = {0};
	cleanup_buf struct buf many = BUF_INIT;
	material_init(&m);
	assert_int_equal(tls_server_new(STR(""), &s, &err), -EINVAL);
	assert_int_equal(tls_server_new(buf_str(&m.chain), &s, &err), -EINVAL);
	assert_int_equal(tls_server_new(buf_str(&m.key), &s, &err), -EINVAL);
	assert_int_equal(tls_server_new(STR("-----BEGIN X-----\nAAAA\n-----END X-----\n"), &s, &err), -EINVAL);
	for (int i = 0; i <= TLS_MAX_PAIRS; i++) {
		buf_add_str(&many, buf_str(&m.key));
		buf_add_str(&many, buf_str(&m.chain));
	}
	assert_int_equal(tls_server_new(buf_str(&many), &s, &err), -EINVAL);
	assert_non_null(strstr(err.message, "more than"));
	assert_null(s);
	material_done(&m);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(domains_are_names),
		cmocka_unit_test(a_leaf_is_good_for_the_domain_and_what_is_below),
		cmocka_unit_test(an_authority_vouches_for_its_domain_only),
		cmocka_unit_test(a_leaf_does_not_outlive_its_authority),
		cmocka_unit_test(long_domains_fit),
		cmocka_unit_test(pairs_are_taken_from_files_as_people_have_them),
		cmocka_unit_test(what_cannot_be_used_is_named),
		cmocka_unit_test(weak_keys_are_refused),
		cmocka_unit_test(bundles_are_checked),
	};
	return cmocka_run_group_tests(tests, NULL, NULL);
}
