#include "unit.h"

#include "egress/dns.h"
#include "egress/upstream.h"

#include <arpa/inet.h>
#include <errno.h>
#include <fcntl.h>
#include <netinet/in.h>
#include <stdio.h>
#include <stdlib.h>
#include <unistd.h>

/* example.com A with id 0x1234 and RD. */
static const unsigned char plain[] = {0x12, 0x34, 1, 0, 0, 1, 0, 0, 0, 0, 0, 0, 7, 'e', 'x', 'a', 'm', 'p', 'l', 'e', 3, 'c', 'o', 'm', 0, 0, 1, 0, 1};
/* An OPT record: 1232 bytes, DO, with an option of four bytes. */
static const unsigned char opt[] = {0, 0, 41, 0x04, 0xd0, 0, 0, 0x80, 0, 0, 8, 0, 10, 0, 4, 'c', 'o', 'o', 'k'};

struct message {
	size_t n;
	unsigned char bytes[1024];
};

static struct message query_with(const void *tail, size_t n, unsigned additional)
{
	struct message m = {.n = sizeof(plain)};
	memcpy(m.bytes, plain, sizeof(plain));
	memcpy(m.bytes + m.n, tail, n);
	m.n += n;
	m.bytes[11] = (unsigned char)additional;
	return m;
}

static int parse(const struct message *m, struct dns_query *q)
{
	return dns_query_parse(str_n(m->bytes, m->n), q);
}

static void a_plain_query_is_understood(void **state)
{
	struct dns_query q;
	char name[DNS_TEXT_MAX];
	assert_int_equal(dns_query_parse(str_n(plain, sizeof(plain)), &q), DNS_NOERROR);
	assert_int_equal(q.id, 0x1234);
	assert_int_equal(q.type, 1);
	assert_int_equal(q.class, 1);
	assert_int_equal(q.udp_size, 512);
	assert_false(q.edns);
	assert_string_equal(dns_name_text(&q, name), "example.com");
}

static void edns_is_kept_and_its_options_are_not(void **state)
{
	struct message m = query_with(opt, sizeof(opt), 1);
	struct dns_query q, again;
	unsigned char wire[DNS_FORWARD_MAX];
	assert_int_equal(parse(&m, &q), DNS_NOERROR);
	assert_true(q.edns && q.dnssec_ok);
	assert_int_equal(q.udp_size, 1232);
	size_t n = dns_query_forward(&q, 0xbeef, wire);
	assert_int_equal(n, sizeof(plain) + 11);
	assert_int_equal(dns_query_parse(str_n(wire, n), &again), DNS_NOERROR);
	assert_int_equal(again.id, 0xbeef);
	assert_int_equal(again.udp_size, 1232);
	assert_true(again.dnssec_ok);
	assert_null(memmem(wire, n, "cook", 4));
}

static void small_edns_sizes_count_as_512(void **state)
{
	unsigned char small[11] = {0, 0, 41, 0, 10};
	struct message m = query_with(small, sizeof(small), 1);
	struct dns_query q;
	assert_int_equal(parse(&m, &q), DNS_NOERROR);
	assert_int_equal(q.udp_size, 512);
}

static void every_cut_is_refused(void **state)
{
	struct message m = query_with(opt, sizeof(opt), 1);
	struct dns_query q;
	for (size_t n = 0; n < m.n; n++) {
		char *exact = malloc(n ? n : 1); /* so that a sanitizer sees a read past the end */
		memcpy(exact, m.bytes, n);
		assert_int_equal(dns_query_parse(str_n(exact, n), &q), n < DNS_HEADER ? -EBADMSG : DNS_FORMERR);
		free(exact);
	}
	assert_int_equal(parse(&m, &q), DNS_NOERROR);
	m.n++; /* a byte behind the end */
	assert_int_equal(parse(&m, &q), DNS_FORMERR);
}

static void answers_are_no_queries(void **state)
{
	struct message m = query_with("", 0, 0);
	struct dns_query q;
	m.bytes[2] |= 0x80;
	assert_int_equal(parse(&m, &q), -EBADMSG);
}

static void other_opcodes_and_counts_are_refused(void **state)
{
	struct dns_query q;
	struct message m = query_with("", 0, 0);
	m.bytes[2] |= 5 << 3; /* UPDATE */
	assert_int_equal(parse(&m, &q), DNS_NOTIMP);
	for (int at = 5; at <= 9; at += 2) {
		m = query_with("", 0, 0);
		m.bytes[at] = 2;
		assert_int_equal(parse(&m, &q), DNS_FORMERR);
	}
	m = query_with("", 0, 0);
	m.bytes[5] = 0;
	assert_int_equal(parse(&m, &q), DNS_FORMERR);
	m = query_with(opt, sizeof(opt), 2);
	memcpy(m.bytes + m.n, opt, sizeof(opt));
	m.n += sizeof(opt);
	assert_int_equal(parse(&m, &q), DNS_FORMERR); /* two OPT records */
}

static void transfers_are_refused(void **state)
{
	struct dns_query q;
	struct message m = query_with("", 0, 0);
	m.bytes[m.n - 3] = 252;
	assert_int_equal(parse(&m, &q), DNS_REFUSED);
	m.bytes[m.n - 3] = 251;
	assert_int_equal(parse(&m, &q), DNS_REFUSED);
}

static size_t put_labels(unsigned char *to, const size_t *lengths, size_t count)
{
	size_t n = 0;
	for (size_t i = 0; i < count; i++) {
		to[n++] = (unsigned char)lengths[i];
		memset(to + n, 'a', lengths[i]);
		n += lengths[i];
	}
	to[n++] = 0;
	return n;
}

static int parse_name(const size_t *lengths, size_t count, struct dns_query *q)
{
	struct message m = {.n = DNS_HEADER, .bytes = {[5] = 1}};
	m.n += put_labels(m.bytes + m.n, lengths, count);
	m.bytes[m.n + 1] = m.bytes[m.n + 3] = 1;
	m.n += 4;
	return parse(&m, q);
}

static void names_have_their_limits(void **state)
{
	struct dns_query q;
	assert_int_equal(parse_name((size_t[]){63, 63, 63, 61}, 4, &q), DNS_NOERROR); /* 255 bytes */
	assert_int_equal(parse_name((size_t[]){63, 63, 63, 62}, 4, &q), DNS_FORMERR);
	assert_int_equal(parse_name((size_t[]){0}, 0, &q), DNS_NOERROR); /* the root */
	struct message m = query_with("", 0, 0);
	m.bytes[DNS_HEADER] = 0xc0; /* a pointer in a question */
	assert_int_equal(parse(&m, &q), DNS_FORMERR);
	m.bytes[DNS_HEADER] = 64;
	assert_int_equal(parse(&m, &q), DNS_FORMERR);
}

static void odd_names_are_escaped_for_the_log(void **state)
{
	struct message m = {.n = 0};
	struct dns_query q;
	char name[DNS_TEXT_MAX];
	static const unsigned char wire[] = {0, 1, 1, 0, 0, 1, 0, 0, 0, 0, 0, 0, 4, 'a', '.', '\n', 0xff, 1, '\\', 0, 0, 1, 0, 1};
	memcpy(m.bytes, wire, m.n = sizeof(wire));
	assert_int_equal(parse(&m, &q), DNS_NOERROR);
	assert_string_equal(dns_name_text(&q, name), "a\\046\\010\\255.\\092");
}

static void replies_echo_the_question(void **state)
{
	struct message m = query_with(opt, sizeof(opt), 1);
	struct dns_query q;
	unsigned char reply[DNS_HEADER + DNS_QUESTION_MAX];
	parse(&m, &q);
	size_t n = dns_reply(&q, DNS_REFUSED, false, reply);
	assert_int_equal(n, sizeof(plain));
	assert_int_equal(reply[0] << 8 | reply[1], 0x1234);
	assert_int_equal(reply[2], 0x81); /* QR, RD */
	assert_int_equal(reply[3], 0x85); /* RA, REFUSED */
	assert_memory_equal(reply + DNS_HEADER, plain + DNS_HEADER, sizeof(plain) - DNS_HEADER);
	dns_reply(&q, DNS_NOERROR, true, reply);
	assert_int_equal(reply[2], 0x83); /* TC too */
	/* What could not be read has no question to echo. */
	m.n = DNS_HEADER + 3;
	assert_int_equal(parse(&m, &q), DNS_FORMERR);
	assert_int_equal(dns_reply(&q, DNS_FORMERR, false, reply), DNS_HEADER);
	assert_int_equal(reply[5], 0);
}

static void only_the_answer_to_the_question_counts(void **state)
{
	struct dns_query q;
	struct message m = query_with("", 0, 0);
	dns_query_parse(str_n(plain, sizeof(plain)), &q);
	struct str s = str_n(m.bytes, m.n);
	assert_int_equal(dns_answer_check(s, &q, 0x1234), -EBADMSG); /* a query */
	m.bytes[2] |= 0x80;
	assert_int_equal(dns_answer_check(s, &q, 0x1234), DNS_NOERROR);
	assert_int_equal(dns_answer_check(s, &q, 0x1235), -EBADMSG);
	m.bytes[3] = 3;
	assert_int_equal(dns_answer_check(s, &q, 0x1234), DNS_NXDOMAIN);
	m.bytes[DNS_HEADER + 1] = 'E';
	assert_int_equal(dns_answer_check(s, &q, 0x1234), DNS_NXDOMAIN); /* case does not matter */
	m.bytes[DNS_HEADER + 1] = 'f';
	assert_int_equal(dns_answer_check(s, &q, 0x1234), -EBADMSG);
	m.bytes[DNS_HEADER + 1] = 'e';
	m.bytes[m.n - 3] = 28;
	assert_int_equal(dns_answer_check(s, &q, 0x1234), -EBADMSG); /* another type */
	m.bytes[m.n - 3] = 1;
	for (size_t n = 0; n < m.n; n++)
		assert_int_equal(dns_answer_check(str_n(m.bytes, n), &q, 0x1234), -EBADMSG);
	m.bytes[5] = 0;
	assert_int_equal(dns_answer_check(s, &q, 0x1234), -EBADMSG); /* no question, and no failure that would excuse it */
	m.bytes[3] = DNS_SERVFAIL;
	assert_int_equal(dns_answer_check(str_n(m.bytes, DNS_HEADER), &q, 0x1234), DNS_SERVFAIL);
}

/* Resolvers */

static void resolvers_are_parsed(void **state)
{
	struct upstreams u;
	assert_int_equal(upstreams_init(&u, "1.2.3.4, 5.6.7.8:5353 ,::1,[2001:db8::1]:54", NULL, NULL), 0);
	assert_int_equal(u.n, 4);
	assert_int_equal(((struct sockaddr_in *)&u.list[0].address)->sin_port, htons(53));
	assert_int_equal(((struct sockaddr_in *)&u.list[1].address)->sin_port, htons(5353));
	assert_int_equal(u.list[2].address.ss_family, AF_INET6);
	assert_int_equal(((struct sockaddr_in6 *)&u.list[3].address)->sin6_port, htons(54));
	static const char *const bad[] = {"x", "1.2.3", "1.2.3.4:0", "1.2.3.4:65536", "1.2.3.4:", "[::1", "[::1]x", "1.2.3.4,,5.6.7.8", "1.2.3.4 5.6.7.8",
		"1.1.1.1,1.1.1.1,1.1.1.1,1.1.1.1,1.1.1.1,1.1.1.1,1.1.1.1,1.1.1.1,1.1.1.1"};
	for (size_t i = 0; i < sizeof(bad) / sizeof(bad[0]); i++) {
		struct error err = {0};
		assert_int_equal(upstreams_init(&u, bad[i], NULL, &err), -EINVAL);
		assert_int_equal(err.status, 400);
	}
}

static void resolvers_come_from_the_machines_file(void **state)
{
	char path[] = "/tmp/cubicle-test-resolv-XXXXXX";
	int fd = mkstemp(path);
	static const char text[] = "# nameserver 9.9.9.9\nsearch example\nnameserver 10.0.0.1\n nameserver 10.9.9.9\nnameserver\t10.0.0.2 # second\n"
				   "nameserverx 10.9.9.8\nnameserver bad\nnameserver ::1\r\nnameserver 10.0.0.3\nnameserver 10.0.0.4";
	assert_int_equal(write(fd, text, sizeof(text) - 1), sizeof(text) - 1);
	struct upstreams u;
	assert_int_equal(upstreams_init(&u, "", path, NULL), 0);
	assert_int_equal(u.n, 3);
	assert_string_equal(u.list[0].text, "10.0.0.1");
	assert_string_equal(u.list[1].text, "10.0.0.2");
	/* Another file in its place is seen, but not within the time between two looks. */
	int64_t now = 1000000000000;
	upstreams_refresh(&u, now);
	unsigned before = u.generation;
	assert_int_equal(ftruncate(fd, 0), 0);
	assert_int_equal(pwrite(fd, "nameserver 10.1.1.1\n", 20, 0), 20);
	upstreams_refresh(&u, now + 1);
	assert_int_equal(u.generation, before);
	upstreams_refresh(&u, now + 6000000000);
	assert_int_equal(u.n, 1);
	assert_string_equal(u.list[0].text, "10.1.1.1");
	unlink(path);
	upstreams_refresh(&u, now + 12000000000);
	assert_int_equal(u.n, 0);
	close(fd);
	assert_int_equal(upstreams_init(&u, "", "/nonexistent/resolv.conf", NULL), 0);
	assert_int_equal(u.n, 0);
	assert_null(upstreams_nth(&u, 0, 0));
}

static void resolvers_that_failed_are_asked_last(void **state)
{
	struct upstreams u;
	upstreams_init(&u, "1.1.1.1,2.2.2.2,3.3.3.3", NULL, NULL);
	int64_t now = 1000000000;
	upstream_failed(&u.list[0], now);
	assert_string_equal(upstreams_nth(&u, 0, now)->text, "2.2.2.2");
	assert_string_equal(upstreams_nth(&u, 1, now)->text, "3.3.3.3");
	assert_string_equal(upstreams_nth(&u, 2, now)->text, "1.1.1.1");
	assert_string_equal(upstreams_nth(&u, 3, now)->text, "2.2.2.2");
	assert_string_equal(upstreams_nth(&u, 0, now + 31000000000)->text, "1.1.1.1");
	upstream_failed(&u.list[1], now);
	upstream_answered(&u.list[1]);
	assert_string_equal(upstreams_nth(&u, 0, now)->text, "2.2.2.2");
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(a_plain_query_is_understood),
		cmocka_unit_test(edns_is_kept_and_its_options_are_not),
		cmocka_unit_test(small_edns_sizes_count_as_512),
		cmocka_unit_test(every_cut_is_refused),
		cmocka_unit_test(answers_are_no_queries),
		cmocka_unit_test(other_opcodes_and_counts_are_refused),
		cmocka_unit_test(transfers_are_refused),
		cmocka_unit_test(names_have_their_limits),
		cmocka_unit_test(odd_names_are_escaped_for_the_log),
		cmocka_unit_test(replies_echo_the_question),
		cmocka_unit_test(only_the_answer_to_the_question_counts),
		cmocka_unit_test(resolvers_are_parsed),
		cmocka_unit_test(resolvers_come_from_the_machines_file),
		cmocka_unit_test(resolvers_that_failed_are_asked_last),
	};
	return cmocka_run_group_tests(tests, NULL, NULL);
}
