#include "egress/dns.h"

#include <errno.h>

enum { QR = 0x8000, OPCODE = 0x7800, AA = 0x0400, TC = 0x0200, RD = 0x0100, RA = 0x0080, AD = 0x0020, CD = 0x0010, RCODE = 0x000f };
enum { TYPE_OPT = 41, TYPE_IXFR = 251, TYPE_AXFR = 252 };
enum { DO = 0x8000 }; /* in the lower half of an OPT's TTL */
enum { ADDITIONAL_MAX = 4 };

/* The bytes not read yet. */
struct cursor {
	const unsigned char *p;
	size_t n;
};

static uint16_t be16(const unsigned char *p)
{
	return (uint16_t)(p[0] << 8 | p[1]);
}

static void put16(unsigned char *p, unsigned v)
{
	p[0] = (unsigned char)(v >> 8);
	p[1] = (unsigned char)v;
}

static bool skip(struct cursor *c, size_t n)
{
	if (n > c->n)
		return false;
	c->p += n;
	c->n -= n;
	return true;
}

/* Skips an uncompressed name; false when it is cut, compressed or too long. */
static bool skip_name(struct cursor *c)
{
	size_t whole = 0;
	for (;;) {
		if (!c->n || c->p[0] > 63)
			return false;
		size_t label = c->p[0];
		whole += label + 1;
		if (whole > DNS_NAME_MAX || !skip(c, label + 1))
			return false;
		if (!label)
			return true;
	}
}

static bool read_question(struct cursor *c, struct dns_query *q)
{
	const unsigned char *from = c->p;
	if (!skip_name(c) || !skip(c, 4))
		return false;
	q->question_n = (uint16_t)(c->p - from);
	memcpy(q->question, from, q->question_n);
	q->type = be16(c->p - 4);
	q->class = be16(c->p - 2);
	return true;
}

/* One record of the additional section of a query. */
static bool read_additional(struct cursor *c, struct dns_query *q)
{
	const unsigned char *name = c->p;
	if (!skip_name(c))
		return false;
	size_t name_n = (size_t)(c->p - name);
	const unsigned char *fixed = c->p;
	if (!skip(c, 10) || !skip(c, be16(fixed + 8)))
		return false;
	if (be16(fixed) != TYPE_OPT)
		return true;
	if (q->edns || name_n != 1)
		return false;
	q->edns = true;
	q->udp_size = be16(fixed + 2) < DNS_PLAIN_MAX ? DNS_PLAIN_MAX : be16(fixed + 2);
	q->dnssec_ok = be16(fixed + 6) & DO;
	return true;
}

int dns_query_parse(struct str m, struct dns_query *ret)
{
	const unsigned char *h = (const unsigned char *)m.p;
	if (m.n < DNS_HEADER || (be16(h + 2) & QR))
		return -EBADMSG;
	*ret = (struct dns_query){.id = be16(h), .flags = be16(h + 2), .udp_size = DNS_PLAIN_MAX};
	if (ret->flags & OPCODE)
		return DNS_NOTIMP;
	struct cursor c = {h + DNS_HEADER, m.n - DNS_HEADER};
	if (be16(h + 4) != 1 || be16(h + 6) || be16(h + 8) || be16(h + 10) > ADDITIONAL_MAX || !read_question(&c, ret))
		return DNS_FORMERR;
	for (unsigned i = be16(h + 10); i; i--)
		if (!read_additional(&c, ret))
			return DNS_FORMERR;
	if (c.n)
		return DNS_FORMERR;
	/* A transfer is a stream of messages; a forwarder of single answers must not begin one. */
	return ret->type == TYPE_AXFR || ret->type == TYPE_IXFR ? DNS_REFUSED : DNS_NOERROR;
}

size_t dns_query_forward(const struct dns_query *q, uint16_t id, unsigned char *to)
{
	memset(to, 0, DNS_HEADER);
	put16(to, id);
	put16(to + 2, q->flags & (RD | AD | CD));
	put16(to + 4, 1);
	put16(to + 10, q->edns);
	memcpy(to + DNS_HEADER, q->question, q->question_n);
	unsigned char *end = to + DNS_HEADER + q->question_n;
	if (!q->edns)
		return (size_t)(end - to);
	memset(end, 0, 11);
	put16(end + 1, TYPE_OPT);
	put16(end + 3, q->udp_size);
	put16(end + 7, q->dnssec_ok ? DO : 0);
	return (size_t)(end - to) + 11;
}

size_t dns_reply(const struct dns_query *q, enum dns_rcode rcode, bool truncated, unsigned char *to)
{
	memset(to, 0, DNS_HEADER);
	put16(to, q->id);
	put16(to + 2, QR | (q->flags & (OPCODE | RD | CD)) | RA | (truncated ? TC : 0) | (unsigned)rcode);
	put16(to + 4, q->question_n != 0);
	memcpy(to + DNS_HEADER, q->question, q->question_n);
	return DNS_HEADER + (size_t)q->question_n;
}

/* Names are equal whatever the case of their letters; length bytes are below 'A', so folding the whole is safe. */
static bool same_question(const unsigned char *a, const unsigned char *b, size_t n)
{
	if (memcmp(a + n - 4, b + n - 4, 4) != 0)
		return false;
	return str_eq_nocase(str_n(a, n - 4), str_n(b, n - 4));
}

int dns_answer_check(struct str m, const struct dns_query *q, uint16_t id)
{
	const unsigned char *h = (const unsigned char *)m.p;
	if (m.n < DNS_HEADER || m.n > DNS_MESSAGE_MAX || be16(h) != id || (be16(h + 2) & (QR | OPCODE)) != QR)
		return -EBADMSG;
	int rcode = be16(h + 2) & RCODE;
	/* Servers that could not read a query may leave the question out. */
	if (be16(h + 4) == 0 && (rcode == DNS_FORMERR || rcode == DNS_NOTIMP || rcode == DNS_SERVFAIL || rcode == DNS_REFUSED))
		return rcode;
	if (be16(h + 4) != 1 || m.n < DNS_HEADER + (size_t)q->question_n || !same_question(h + DNS_HEADER, q->question, q->question_n))
		return -EBADMSG;
	return rcode;
}

void dns_set_id(unsigned char *message, uint16_t id)
{
	put16(message, id);
}

char *dns_name_text(const struct dns_query *q, char *to)
{
	char *out = to;
	const unsigned char *p = q->question;
	if (!q->question_n || !*p) {
		memcpy(to, ".", 2);
		return to;
	}
	for (; *p; p += *p + 1) {
		if (p != q->question)
			*out++ = '.';
		for (const unsigned char *c = p + 1; c <= p + *p; c++) {
			if (*c > ' ' && *c < 127 && *c != '.' && *c != '\\') {
				*out++ = (char)*c;
				continue;
			}
			*out++ = '\\';
			*out++ = (char)('0' + *c / 100);
			*out++ = (char)('0' + *c / 10 % 10);
			*out++ = (char)('0' + *c % 10);
		}
	}
	*out = 0;
	return to;
}
