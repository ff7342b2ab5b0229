#include "fuzz.h"

#include "egress/dns.h"

#include <errno.h>

static void check_forward(const struct dns_query *q)
{
	unsigned char wire[DNS_FORWARD_MAX];
	struct dns_query again;
	char name[DNS_TEXT_MAX];
	size_t n = dns_query_forward(q, 0x5aa5, wire);
	hold(n <= sizeof(wire));
	/* What is sent on is itself a query that passes, for the same name. */
	hold(dns_query_parse(str_n(wire, n), &again) == DNS_NOERROR);
	hold(again.question_n == q->question_n && !memcmp(again.question, q->question, q->question_n));
	hold(again.udp_size == q->udp_size && again.edns == q->edns && again.dnssec_ok == q->dnssec_ok);
	/* Turned into an answer it is the answer to itself, and to no other id. */
	wire[2] |= 0x80;
	hold(dns_answer_check(str_n(wire, n), q, 0x5aa5) == DNS_NOERROR);
	hold(dns_answer_check(str_n(wire, n), q, 0x5aa6) == -EBADMSG);
	hold(strlen(dns_name_text(q, name)) < DNS_TEXT_MAX);
}

static void check_reply(const struct dns_query *q, int rcode)
{
	unsigned char reply[DNS_HEADER + DNS_QUESTION_MAX];
	size_t n = dns_reply(q, (enum dns_rcode)rcode, false, reply);
	hold(n <= sizeof(reply) && n == DNS_HEADER + (size_t)q->question_n);
	struct dns_query nothing;
	hold(dns_query_parse(str_n(reply, n), &nothing) == -EBADMSG);
}

void fuzz_one(struct str input)
{
	struct dns_query q;
	int r = dns_query_parse(input, &q);
	hold(r == -EBADMSG || (r >= 0 && r <= DNS_REFUSED));
	if (r == DNS_NOERROR)
		check_forward(&q);
	if (r >= 0)
		check_reply(&q, r);
	/* The same bytes as an upstream's answer to a fixed query. */
	static const char fixed[] = "\x12\x34\1\0\0\1\0\0\0\0\0\0\7example\3com\0\0\1\0\1";
	hold(dns_query_parse(str_n(fixed, sizeof(fixed) - 1), &q) == DNS_NOERROR);
	r = dns_answer_check(input, &q, 0x1234);
	hold(r == -EBADMSG || (r >= 0 && r <= 15));
}
