#include "unit.h"

#include "base/cleanup.h"
#include "image/address.h"
#include "image/challenge.h"
#include "image/docker_config.h"
#include "image/download.h"
#include "image/ecr.h"
#include "image/manifest.h"

#include <arpa/inet.h>
#include <errno.h>
#include <stdio.h>

/* --- addresses --- */

static enum address_kind judge(const char *text)
{
	struct sockaddr_in a4 = {.sin_family = AF_INET};
	struct sockaddr_in6 a6 = {.sin6_family = AF_INET6};
	if (inet_pton(AF_INET, text, &a4.sin_addr) == 1)
		return address_judge((struct sockaddr *)&a4);
	assert_int_equal(inet_pton(AF_INET6, text, &a6.sin6_addr), 1);
	return address_judge((struct sockaddr *)&a6);
}

static void only_public_addresses_are_public(void **state)
{
	static const char *const public[] = {"1.1.1.1", "8.8.8.8", "9.255.255.255", "11.0.0.0", "100.63.255.255", "100.128.0.0", "126.255.255.255", "128.0.0.1", "169.253.255.255", "169.255.0.0",
		"172.15.255.255", "172.32.0.0", "192.0.1.0", "192.167.255.255", "192.169.0.0", "198.17.255.255", "198.20.0.0", "223.255.255.255", "2001:4860:4860::8888", "2606:4700::1111", "2a00::1"};
	static const char *const private[] = {"10.0.0.0", "10.255.255.255", "100.64.0.0", "100.127.255.255", "127.0.0.1", "127.255.255.255", "169.254.0.1", "172.16.0.0", "172.31.255.255", "192.0.0.1",
		"192.0.2.7", "192.88.99.1", "192.168.0.0", "192.168.255.255", "198.18.0.0", "198.19.255.255", "198.51.100.1", "203.0.113.1", "240.0.0.1", "255.255.255.254", "::1", "fe80::1", "fec0::1",
		"fc00::1", "fd12::1", "100::1", "2001::1", "2001:db8::1", "2001:10::1", "3fff::1", "4000::1", "::ffff:127.0.0.1", "::ffff:8.8.8.8", "::127.0.0.1", "64:ff9b::8.8.8.8", "64:ff9b:1::10.0.0.1",
		"2002:7f00:1::", "2002:808:808::1", "2a00::5efe:10.0.0.1", "2a00::200:5efe:10.0.0.1"};
	static const char *const never[] = {"169.254.169.254", "169.254.170.2", "100.100.100.200", "168.63.129.16", "192.0.0.192", "0.0.0.0", "0.1.2.3", "224.0.0.1", "239.255.255.255", "255.255.255.255",
		"::", "ff02::1", "fd00:ec2::254", "::ffff:169.254.169.254", "::ffff:0.0.0.0", "::169.254.169.254", "64:ff9b::169.254.169.254", "64:ff9b:1::169.254.169.254", "2002:a9fe:a9fe::1",
		"2a00::5efe:169.254.169.254"};
	for (size_t i = 0; i < ARRAY_SIZE(public); i++)
		if (judge(public[i]) != ADDRESS_PUBLIC)
			fail_msg("%s is public", public[i]);
	for (size_t i = 0; i < ARRAY_SIZE(private); i++)
		if (judge(private[i]) != ADDRESS_PRIVATE)
			fail_msg("%s is private", private[i]);
	for (size_t i = 0; i < ARRAY_SIZE(never); i++)
		if (judge(never[i]) != ADDRESS_NEVER)
			fail_msg("%s is for nobody", never[i]);
	const struct sockaddr other = {.sa_family = AF_UNIX};
	assert_int_equal(address_judge(&other), ADDRESS_NEVER);
}

static void own_addresses_are_known(void **state)
{
	struct own_addresses own;
	struct sockaddr_in a = {.sin_family = AF_INET, .sin_addr = {htonl(0x7f000001)}};
	assert_int_equal(own_addresses_read(&own, "8.8.0.0/16"), 0);
	a.sin_addr.s_addr = htonl(0x08080808);
	assert_true(own_addresses_hold(&own, (struct sockaddr *)&a));
	a.sin_addr.s_addr = htonl(0x08090808);
	assert_false(own_addresses_hold(&own, (struct sockaddr *)&a));
	for (size_t i = 0; i < own.n; i++)
		assert_true(own_addresses_hold(&own, (struct sockaddr *)&own.list[i]));
	own_addresses_done(&own);
}

/* --- challenges --- */

static void challenges_are_understood(void **state)
{
	static const struct {
		const char *lines;
		int result;
		bool basic, bearer;
		const char *realm, *service, *scope;
	} table[] = {
		{"", 0},
		{"Basic", 0, true},
		{"Basic realm=\"x\"", 0, true},
		{"basic realm=x, charset=\"UTF-8\"", 0, true},
		{"Bearer realm=\"https://a/t\",service=\"s\",scope=\"repository:a/b:pull\"", 0, false, true, "https://a/t", "s", "repository:a/b:pull"},
		{"BEARER  realm = \"https://a/t\" , SERVICE=s", 0, false, true, "https://a/t", "s", ""},
		{"Bearer realm=\"a\\\"b\\\\c\"", 0, false, true, "a\"b\\c", "", ""},
		{"Basic realm=\"x\", Bearer realm=\"https://a/t\"", 0, true, true, "https://a/t", "", ""},
		{"Bearer realm=\"https://a/t\", Basic realm=\"other\"", 0, true, true, "https://a/t", "", ""},
		{"Bearer realm=\"1\", Bearer realm=\"2\"", 0, false, true, "1", "", ""},
		{"Bearer error=\"invalid_token\"", 0},
		{"Negotiate, Bearer realm=\"r\"", 0, false, true, "r", "", ""},
		{"Negotiate YII=\nBearer realm=\"r\"", 0, false, true, "r", "", ""},
		{"NTLM TlRM+/a==, Basic realm=x", 0, true},
		{",, Basic realm=x ,,", 0, true},
		{"Bearer realm=\"unterminated", -EINVAL},
		{"Bearer realm=\"a\\", -EINVAL},
		{"Bearer realm=\"a\x01\"", -EINVAL},
		{"Bearer realm=\"r\" service=", -EINVAL},
		{"\"Bearer\"", -EINVAL},
		{"a,a,a,a,a,a,a,a,a,a,a,a,a,a,a,a,a", -E2BIG},
	};
	for (size_t i = 0; i < ARRAY_SIZE(table); i++) {
		struct challenge c;
		int r = challenge_parse(str_of(table[i].lines), &c);
		if (r != table[i].result)
			fail_msg("%s: %d", table[i].lines, r);
		if (r < 0)
			continue;
		if (c.basic != table[i].basic || c.bearer != table[i].bearer)
			fail_msg("%s: basic %d, bearer %d", table[i].lines, c.basic, c.bearer);
		if (c.bearer) {
			assert_string_equal(c.realm, table[i].realm);
			assert_string_equal(c.service, table[i].service);
			assert_string_equal(c.scope, table[i].scope);
		}
	}
}

/* --- Docker's configuration --- */

static void the_nearest_entry_is_found(void **state)
{
	static const char config[] = "{\"auths\":{"
				     "\"https://index.docker.io/v1/\":{\"auth\":\"aHViOnB3\"}," /* hub:pw */
				     "\"r.example\":{\"username\":\"all\",\"password\":\"pw\"},"
				     "\"r.example/team\":{\"auth\":\"dGVhbTpwdzp4\"}," /* team:pw:x */
				     "\"R.Example:5000\":{\"auth\":\"cG9ydDpwdwAAAA==\"}," /* port:pw and NULs */
				     "\"token.example\":{\"auth\":\"PHRva2VuPjo=\",\"identitytoken\":\"secret\"},"
				     "\"bad.example\":{\"auth\":\"!!\"},\"empty.example\":{},"
				     "\"helped.example\":{}},\"credHelpers\":{\"helped.example\":\"x\"}}";
	static const struct {
		const char *registry, *repository;
		int result;
		const char *username, *password, *token;
	} table[] = {
		{"docker.io", "library/a", 1, "hub", "pw"},
		{"r.example", "other/a", 1, "all", "pw"},
		{"r.example", "team/a", 1, "team", "pw:x"},
		{"r.example", "team", 1, "team", "pw:x"},
		{"r.example", "teams/a", 1, "all", "pw"},
		{"r.example:5000", "a", 1, "port", "pw"},
		{"token.example", "a", 1, NULL, NULL, "secret"},
		{"r.example:5001", "a", 0},
		{"xr.example", "a", 0},
		{"empty.example", "a", 0},
		{"bad.example", "a", -EINVAL},
		{"helped.example", "a", -ENOTSUP},
	};
	for (size_t i = 0; i < ARRAY_SIZE(table); i++) {
		struct source_credentials c = {0};
		struct error err = {0};
		assert_int_equal(docker_config_find(str_of(config), str_of(table[i].registry), str_of(table[i].repository), &c, &err), table[i].result);
		if (table[i].username) {
			assert_string_equal(c.username, table[i].username);
			assert_string_equal(c.password, table[i].password);
		}
		if (table[i].token)
			assert_string_equal(c.identity_token, table[i].token);
		source_credentials_done(&c);
	}
	struct source_credentials c = {0};
	struct error err = {0};
	assert_int_equal(docker_config_find(STR("{\"auths\":{\"r.example\":{}},\"credsStore\":\"desktop\"}"), STR("r.example"), STR("a"), &c, &err), -ENOTSUP);
	assert_non_null(strstr(err.message, "credsStore"));
	assert_int_equal(docker_config_find(STR("{\"auths\":{\"s3cret\""), STR("r.example"), STR("a"), &c, &err), -EINVAL);
	assert_null(strstr(err.message, "s3cret"));
	assert_int_equal(docker_config_find(STR("{}"), STR("r.example"), STR("a"), &c, &err), 0);
}

/* --- Amazon --- */

/* The vectors that Amazon publishes with Signature Version 4 ("get-vanilla" and "post-header-key-sort"). */
static void amazons_signature_is_right(void **state)
{
	static const char *const vanilla[] = {"host:example.amazonaws.com", "x-amz-date:20150830T123600Z", NULL};
	struct aws_request q = {"GET", "/", "", vanilla, STR(""), "service", "us-east-1", "20150830T123600Z", "AKIDEXAMPLE", "wJalrXUtnFEMI/K7MDENG+bPxRfiCYEXAMPLEKEY"};
	struct buf text = BUF_INIT;
	assert_int_equal(aws_sign(&q, &text), 0);
	assert_string_equal(buf_cstr(&text), "AWS4-HMAC-SHA256 Credential=AKIDEXAMPLE/20150830/us-east-1/service/aws4_request, SignedHeaders=host;x-amz-date, "
					     "Signature=5fa00fa31553b73ebf1942676e86291e8372ff2a2260956d9b8aae1d763fbf31");
	static const char *const sorted[] = {"host: example.amazonaws.com", "my-header1: value1", "x-amz-date: 20150830T123600Z", NULL};
	q.method = "POST";
	q.headers = sorted;
	buf_clear(&text);
	assert_int_equal(aws_sign(&q, &text), 0);
	assert_non_null(strstr(buf_cstr(&text), "SignedHeaders=host;my-header1;x-amz-date, Signature=c5410059b04c1ee005303aed430f6e6645f61f4dc9e1461ec8f8916fdf18852c"));
	buf_done(&text);
}

static void amazons_hosts_are_known(void **state)
{
	char region[64];
	assert_true(ecr_region(STR("123456789012.dkr.ecr.eu-west-1.amazonaws.com"), region));
	assert_string_equal(region, "eu-west-1");
	assert_true(ecr_region(STR("123456789012.dkr.ecr-fips.us-gov-west-1.amazonaws.com"), region));
	assert_true(ecr_region(STR("123456789012.dkr.ecr.cn-north-1.amazonaws.com.cn"), region));
	static const char *const not[] = {"123456789012.dkr.ecr.eu-west-1.amazonaws.com.evil.example", "12345678901.dkr.ecr.eu-west-1.amazonaws.com", "x.dkr.ecr.eu-west-1.amazonaws.com", "public.ecr.aws",
		"123456789012.dkr.ecr.eu_west.amazonaws.com", "123456789012.dkr.ecr.amazonaws.com", "123456789012.dkr.ecr.eu-west-1.amazonaws.com:444", ""};
	for (size_t i = 0; i < ARRAY_SIZE(not); i++)
		assert_false(ecr_region(str_of(not[i]), region));
}

/* --- manifests --- */

#define D1 "sha256:1111111111111111111111111111111111111111111111111111111111111111"

static size_t choose(const char *platforms, const char *architecture, const char *variant, char *ret_first)
{
	char json[8192];
	size_t places[MANIFEST_ENTRIES_MAX];
	struct manifest m;
	struct error err = {0};
	struct str rest = str_of(platforms), one;
	int n = snprintf(json, sizeof(json), "{\"schemaVersion\":2,\"manifests\":[");
	for (unsigned i = 0; rest.n; i++) {
		struct str tail = {0}, os = {0}, arch = {0}, v = {0};
		if (!str_cut(rest, ' ', &one, &tail))
			one = rest;
		rest = tail;
		str_cut(one, '/', &os, &arch);
		str_cut(arch, '/', &arch, &v);
		n += snprintf(json + n, sizeof(json) - (size_t)n, "%s{\"digest\":\"sha256:%064u\",\"size\":1", i ? "," : "", i);
		if (!str_is(one, "-"))
			n += snprintf(json + n, sizeof(json) - (size_t)n, ",\"platform\":{\"os\":\"%.*s\",\"architecture\":\"%.*s\",\"variant\":\"%.*s\"}", STR_FMT(os), STR_FMT(arch), STR_FMT(v));
		n += snprintf(json + n, sizeof(json) - (size_t)n, "}");
	}
	snprintf(json + n, sizeof(json) - (size_t)n, "]}");
	if (manifest_parse(str_of(json), "", &m, &err) < 0)
		fail_msg("%s: %s", platforms, err.message);
	size_t found = manifest_candidates(&m, architecture, variant, places);
	*ret_first = found ? m.entries[places[0]].digest[70] : '-';
	manifest_done(&m);
	return found;
}

static void the_best_platform_comes_first(void **state)
{
	static const struct {
		const char *platforms, *architecture, *variant;
		size_t n;
		char first;
	} table[] = {
		{"linux/amd64 linux/arm64/v8", "amd64", "", 1, '0'},
		{"linux/amd64 linux/arm64/v8", "arm64", "v8", 1, '1'},
		{"linux/amd64 linux/arm64", "arm64", "v8", 1, '1'},
		{"linux/arm/v5 linux/arm/v6 linux/arm/v7 linux/arm64", "arm", "v7", 3, '2'},
		{"linux/arm/v5 linux/arm/v6 linux/arm/v7", "arm", "v6", 2, '1'},
		{"linux/amd64/v3 linux/amd64/v2 linux/amd64", "amd64", "", 1, '2'},
		{"linux/amd64/v3 linux/amd64/v2 linux/amd64", "amd64", "v3", 3, '0'},
		{"windows/amd64 unknown/unknown linux/s390x", "amd64", "", 0, '-'},
		{"- linux/amd64", "amd64", "", 2, '1'},
		{"-", "amd64", "", 1, '0'},
	};
	for (size_t i = 0; i < ARRAY_SIZE(table); i++) {
		char first;
		size_t n = choose(table[i].platforms, table[i].architecture, table[i].variant, &first);
		if (n != table[i].n || first != table[i].first)
			fail_msg("%s for %s/%s: %zu, first %c", table[i].platforms, table[i].architecture, table[i].variant, n, first);
	}
}

static void configurations_are_read(void **state)
{
	static const char json[] = "{\"os\":\"linux\",\"architecture\":\"amd64\",\"config\":{\"Env\":[\"A=1\",\"novalue\",\"=x\",\"B=2\",\"A=3\"],\"Entrypoint\":\"/init\",\"Cmd\":null,"
				   "\"ExposedPorts\":{\"80/tcp\":{}},\"Labels\":{\"k\":\"v\"},\"OnBuild\":[\"RUN x\"],\"Shell\":[\"/bin/sh\",\"-c\"],\"StopSignal\":\"SIGINT\"},"
				   "\"rootfs\":{\"type\":\"layers\",\"diff_ids\":[\"" D1 "\"]}}";
	struct source_layer layer = {0};
	struct source_config c;
	struct error err = {0};
	assert_int_equal(manifest_config(str_of(json), &layer, 1, &c, &err), 0);
	assert_string_equal(layer.diff_id, D1);
	assert_string_equal(c.env[0], "A=3");
	assert_string_equal(c.env[1], "B=2");
	assert_null(c.env[2]);
	assert_string_equal(c.entrypoint[0], "/init");
	assert_null(c.cmd[0]);
	assert_string_equal(c.exposed_ports[0], "80/tcp");
	assert_string_equal(c.labels[1], "v");
	assert_string_equal(c.on_build[0], "RUN x");
	assert_string_equal(c.shell[1], "-c");
	assert_string_equal(c.stop_signal, "SIGINT");
	assert_string_equal(c.user, "");
	source_config_done(&c);
	assert_int_equal(manifest_config(str_of(json), &layer, 0, &c, &err), -EBADMSG);
	static const char *const bad[] = {"[]", "{\"rootfs\":{\"diff_ids\":[\"x\"]}}", "{\"config\":{\"Env\":[1]},\"rootfs\":{\"diff_ids\":[\"" D1 "\"]}}",
		"{\"config\":{\"User\":[]},\"rootfs\":{\"diff_ids\":[\"" D1 "\"]}}", "{\"config\":{\"Labels\":{\"a\":1}},\"rootfs\":{\"diff_ids\":[\"" D1 "\"]}}",
		"{\"config\":{\"Cmd\":[\"a\\u0000b\"]},\"rootfs\":{\"diff_ids\":[\"" D1 "\"]}}"};
	for (size_t i = 0; i < ARRAY_SIZE(bad); i++)
		assert_int_equal(manifest_config(str_of(bad[i]), &layer, 1, &c, &err), -EINVAL);
}

static void formats_show_at_the_beginning(void **state)
{
	assert_int_equal(download_format((const unsigned char *)"\x1f\x8b\x08\x00", 4), SOURCE_GZIP);
	assert_int_equal(download_format((const unsigned char *)"\x28\xb5\x2f\xfd", 4), SOURCE_ZSTD);
	assert_int_equal(download_format((const unsigned char *)"\x1f\x8b", 2), SOURCE_TAR);
	assert_int_equal(download_format((const unsigned char *)"", 0), SOURCE_TAR);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(only_public_addresses_are_public),
		cmocka_unit_test(own_addresses_are_known),
		cmocka_unit_test(challenges_are_understood),
		cmocka_unit_test(the_nearest_entry_is_found),
		cmocka_unit_test(amazons_signature_is_right),
		cmocka_unit_test(amazons_hosts_are_known),
		cmocka_unit_test(the_best_platform_comes_first),
		cmocka_unit_test(configurations_are_read),
		cmocka_unit_test(formats_show_at_the_beginning),
	};
	return cmocka_run_group_tests(tests, NULL, NULL);
}
