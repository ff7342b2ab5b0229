#include "unit.h"

#include "image/reference.h"
#include "image/registries.h"

#include <errno.h>
#include <stdio.h>

#define HEX64 "0123456789abcdef0123456789abcdef0123456789abcdef0123456789abcdef"
#define DIGEST "sha256:" HEX64

static void references_have_one_normal_form(void **state)
{
	static const struct {
		const char *given, *normal;
	} table[] = {
		{"busybox", "docker.io/library/busybox:latest"},
		{"docker://busybox", "docker.io/library/busybox:latest"},
		{"busybox:1.36", "docker.io/library/busybox:1.36"},
		{"me/app", "docker.io/me/app:latest"},
		{"library/busybox", "docker.io/library/busybox:latest"},
		{"docker.io/busybox", "docker.io/library/busybox:latest"},
		{"index.docker.io/library/busybox:latest", "docker.io/library/busybox:latest"},
		{"registry-1.docker.io/library/busybox", "docker.io/library/busybox:latest"},
		{"https://index.docker.io/busybox", "docker.io/library/busybox:latest"},
		{"docker.io:443/busybox", "docker.io/library/busybox:latest"},
		{"busybox@" DIGEST, "docker.io/library/busybox@" DIGEST},
		{"busybox:1@" DIGEST, "docker.io/library/busybox:1@" DIGEST},
		{"LocalHost/a", "localhost/a:latest"},
		{"localhost:5000/a/b/c:T_1.x-2", "localhost:5000/a/b/c:T_1.x-2"},
		{"http://localhost:5000/a", "localhost:5000/a:latest"},
		{"http://r.example:80/a", "r.example/a:latest"},
		{"http://r.example:8080/a", "r.example:8080/a:latest"},
		{"https://r.example:443/a", "r.example/a:latest"},
		{"R.Example:05000/a", "r.example:5000/a:latest"},
		{"[::1]:5000/a", "[::1]:5000/a:latest"},
		{"[2001:DB8:0:0::1]/a:b", "[2001:db8::1]/a:b"},
		{"10.0.0.7:5000/x/a__b-c.d--e", "10.0.0.7:5000/x/a__b-c.d--e:latest"},
		{"registry:443/a/b", "registry:443/a/b:latest"},
		{"http://registry:80/a/b", "registry:80/a/b:latest"},
		{"ghcr.io/o/r:v1", "ghcr.io/o/r:v1"},
		{"a_b.example/x", "a_b.example/x:latest"},
	};
	for (size_t i = 0; i < sizeof(table) / sizeof(*table); i++) {
		struct reference r, again;
		struct error err = {0};
		char text[REFERENCE_TEXT_MAX], twice[REFERENCE_TEXT_MAX];
		if (reference_parse(str_of(table[i].given), &r, &err) < 0)
			fail_msg("%s: %s", table[i].given, err.message);
		assert_string_equal(reference_format(&r, text), table[i].normal);
		assert_int_equal(reference_parse(str_of(text), &again, &err), 0);
		assert_string_equal(reference_format(&again, twice), text);
	}
}

static void bad_references_are_refused(void **state)
{
	static const struct {
		const char *given, *why;
	} table[] = {
		{"", "empty"}, {"-a", "begins with '-'"}, {"a b", "only letters"}, {"a\nb", "only letters"}, {"a?b", "only letters"}, {"\xc3\xa4", "only letters"},
		{"A", "lower-case"}, {"a/B", "lower-case"}, {"a//b", "lower-case"}, {"a/", "lower-case"}, {"http://r.example:443/a", "port 443"}, {"a/b/", "lower-case"}, {"/a", "lower-case"}, {"a..b", "lower-case"},
		{"a___b", "lower-case"}, {"a-", "lower-case"}, {"_a", "lower-case"}, {"a.-b", "lower-case"}, {"../a", "no host"}, {"r.example/../x", "lower-case"},
		{"a:", "a tag is"}, {"a:-x", "a tag is"}, {"a:.x", "a tag is"}, {"a:b:c", "a tag is"}, {"r.example/a:b/c", "a tag is"},
		{"r.example/", "names no repository"}, {"r.example/:x", "names no repository"}, {"http://a", "comes a host"}, {"https://a/b", "comes a host"}, {"ftp://a.b/c", "no host"},
		{"a@", "after '@'"}, {"a@sha256:12", "after '@'"}, {"a@SHA256:" HEX64, "after '@'"}, {"a@sha256:" HEX64 "0", "after '@'"}, {"a@" DIGEST "@" DIGEST, "after '@'"},
		{"a@sha512:" HEX64 HEX64, "other than sha256"},
		{"r.example:0/a", "no host"}, {"r.example:65536/a", "no host"}, {"r.example:/a", "no host"}, {"r.example:x/a", "no host"}, {"r.example./a", "no host"}, {"-r.example/a", "begins"},
		{"r-.example/a", "no host"}, {"[::1/a", "no host"}, {"[::1]x/a", "no host"}, {"[fe80::1%25eth0]/a", "only letters"}, {"[1.2.3.4]/a", "no host"}, {"::1/a", "no host"},
		{"docker://docker://a", "no host"},
	};
	for (size_t i = 0; i < sizeof(table) / sizeof(*table); i++) {
		struct reference r;
		struct error err = {0};
		if (reference_parse(str_of(table[i].given), &r, &err) != -EINVAL || err.status != 400)
			fail_msg("%s was not refused", table[i].given);
		if (!strstr(err.message, table[i].why))
			fail_msg("%s: %s", table[i].given, err.message);
	}
}

static void lengths_are_limited(void **state)
{
	char text[1024];
	struct reference r;
	struct error err = {0};
	memset(text, 'a', sizeof(text));
	memcpy(text, "r.example/", 10);
	assert_int_equal(reference_parse(str_n(text, 10 + 255), &r, &err), 0);
	assert_int_equal(reference_parse(str_n(text, 10 + 256), &r, &err), -EINVAL);
	assert_int_equal(reference_parse(str_n(text, 513), &r, &err), -EINVAL);
	memset(text, 'a', sizeof(text));
	assert_int_equal(reference_parse(str_n(text, 247), &r, &err), 0); /* with library/ before it */
	assert_int_equal(reference_parse(str_n(text, 248), &r, &err), -EINVAL);
	memcpy(text, "a:", 2);
	assert_int_equal(reference_parse(str_n(text, 2 + 128), &r, &err), 0);
	assert_int_equal(reference_parse(str_n(text, 2 + 129), &r, &err), -EINVAL);
}

static void passwords_are_not_quoted(void **state)
{
	static const char *const given[] = {"https://me:s3cret@r.example/a", "me:s3cret@r.example/a", "docker://me:s3cret@r.example/a:b"};
	for (size_t i = 0; i < 3; i++) {
		struct reference r;
		struct error err = {0};
		assert_int_equal(reference_parse(str_of(given[i]), &r, &err), -EINVAL);
		assert_null(strstr(err.message, "s3cret"));
	}
}

static void names_of_templates_are_no_images(void **state)
{
	static const char *const images[] = {"docker://busybox", "localhost/a", "localhost:5000/a", "r.example/a", "a:1/b", "ghcr.io/o/r:v1", "http://r.example/a", "[::1]/a"};
	static const char *const templates[] = {"busybox", "busybox:1.36", "base", "team/base:v1", "a.b", "a.b:1", "localhost", "a/b.c", "a/b:c/d", "", "/a.b/c"};
	for (size_t i = 0; i < sizeof(images) / sizeof(*images); i++)
		assert_true(reference_is_image(str_of(images[i])));
	for (size_t i = 0; i < sizeof(templates) / sizeof(*templates); i++)
		assert_false(reference_is_image(str_of(templates[i])));
}

static void init_options(struct options *o, const char *insecure, const char *private)
{
	assert_int_equal(options_init(o), 0);
	assert_int_equal(options_set(o, STR("registry.insecure"), str_of(insecure), "test", NULL), 0);
	assert_int_equal(options_set(o, STR("registry.private"), str_of(private), "test", NULL), 0);
}

static void exact_entries_allow_exact_endpoints(void **state)
{
	struct options o;
	struct registries r;
	struct error err = {0};
	init_options(&o, "Reg.Example:5000, [::0:1]:5001,plain.example , Index.Docker.io", "priv.example:443,10.1.2.3:8080");
	assert_int_equal(registries_init(&r, &o, &err), 0);
	assert_true(registries_insecure(&r, STR("reg.EXAMPLE"), 5000, true));
	assert_true(registries_insecure(&r, STR("reg.example"), 5000, false));
	assert_false(registries_insecure(&r, STR("reg.example"), 5001, false));
	assert_false(registries_insecure(&r, STR("reg.example"), 443, true));
	assert_false(registries_insecure(&r, STR("x.reg.example"), 5000, true));
	assert_false(registries_insecure(&r, STR("reg.example."), 5000, true));
	assert_true(registries_insecure(&r, STR("[::1]"), 5001, false));
	assert_true(registries_insecure(&r, STR("plain.example"), 80, false));
	assert_true(registries_insecure(&r, STR("plain.example"), 443, true));
	assert_false(registries_insecure(&r, STR("plain.example"), 443, false));
	assert_false(registries_insecure(&r, STR("plain.example"), 5000, false));
	assert_true(registries_insecure(&r, STR("registry-1.docker.io"), 443, true));
	assert_true(registries_private(&r, STR("priv.example"), 443, true));
	assert_false(registries_insecure(&r, STR("priv.example"), 443, true));
	assert_false(registries_private(&r, STR("priv.example"), 80, false));
	assert_true(registries_private(&r, STR("10.1.2.3"), 8080, true));
	assert_true(registries_private(&r, STR("reg.example"), 5000, true));
	registries_done(&r);
	options_done(&o);
}

static void bad_entries_are_named(void **state)
{
	static const char *const table[] = {"http://r.example", "r.example/x", "*.example", "r.example:0", "r.example:99999", "::1", "[::1", "a b", "10.0.0.0/8", "r.example.", "-a", "user@r.example"};
	for (size_t i = 0; i < sizeof(table) / sizeof(*table); i++) {
		struct options o;
		struct error err = {0};
		char text[64];
		snprintf(text, sizeof(text), "good.example,%s", table[i]);
		init_options(&o, i % 2 ? text : "", i % 2 ? "" : text);
		assert_int_equal(registries_check(&o, &err), -EINVAL);
		assert_non_null(strstr(err.message, table[i]));
		assert_non_null(strstr(err.message, i % 2 ? "registry.insecure" : "registry.private"));
		options_done(&o);
	}
	struct options o;
	struct error err = {0};
	init_options(&o, "a.example,,b.example", "");
	assert_int_equal(registries_check(&o, &err), -EINVAL);
	options_done(&o);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(references_have_one_normal_form),
		cmocka_unit_test(bad_references_are_refused),
		cmocka_unit_test(lengths_are_limited),
		cmocka_unit_test(passwords_are_not_quoted),
		cmocka_unit_test(names_of_templates_are_no_images),
		cmocka_unit_test(exact_entries_allow_exact_endpoints),
		cmocka_unit_test(bad_entries_are_named),
	};
	return cmocka_run_group_tests(tests, NULL, NULL);
}
