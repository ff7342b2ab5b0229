/* DNS messages (RFC 1035, EDNS of RFC 6891), as far as a forwarder looks into them: header, question, OPT. No I/O. Bytes come from sandboxes and from upstreams. */
#ifndef CUBICLE_EGRESS_DNS_H
#define CUBICLE_EGRESS_DNS_H

#include "base/buf.h"

#include <stdbool.h>
#include <stdint.h>

enum {
	DNS_HEADER = 12,
	DNS_NAME_MAX = 255,                    /* bytes of a name in wire form, with the root's */
	DNS_QUESTION_MAX = DNS_NAME_MAX + 4,
	DNS_PLAIN_MAX = 512,                   /* of an answer over UDP to a client without EDNS */
	DNS_QUERY_MAX = 4096,                  /* longest query taken */
	DNS_MESSAGE_MAX = 65535,
	DNS_FORWARD_MAX = DNS_HEADER + DNS_QUESTION_MAX + 11,
};

enum dns_rcode { DNS_NOERROR = 0, DNS_FORMERR = 1, DNS_SERVFAIL = 2, DNS_NXDOMAIN = 3, DNS_NOTIMP = 4, DNS_REFUSED = 5 };

/* A query; owns its bytes. */
struct dns_query {
	uint16_t id, flags; /* as in its header */
	uint16_t type, class;
	uint16_t udp_size; /* most bytes of an answer over UDP: 512..65535 */
	bool edns, dnssec_ok;
	uint16_t question_n; /* 0 when the question could not be read */
	unsigned char question[DNS_QUESTION_MAX];
};

/* Takes a query apart: DNS_NOERROR; another rcode to answer it with (header and, when it could be read, question are set); or -EBADMSG: no answer is due (too short for a
 * header, or itself an answer). Refused are: anything but one question, answers or authorities in a query, compressed or overlong names, bytes behind the end (FORMERR),
 * opcodes other than QUERY (NOTIMP), zone transfers (REFUSED). */
int dns_query_parse(struct str message, struct dns_query *ret);

/* The query as it is sent on, with another id: only the name asked for and the flags RD, AD, CD and DO are the client's; its other records are left behind.
 * Writes to[DNS_FORWARD_MAX], returns the length. */
size_t dns_query_forward(const struct dns_query *q, uint16_t id, unsigned char *to);

/* An answer without records into to[DNS_HEADER + DNS_QUESTION_MAX]; returns the length. */
size_t dns_reply(const struct dns_query *q, enum dns_rcode rcode, bool truncated, unsigned char *to);

/* Is this the answer to what dns_query_forward made with `id`? Its rcode, or -EBADMSG when it is another's or no answer. */
int dns_answer_check(struct str message, const struct dns_query *q, uint16_t id);
/* Puts the client's id into an answer that passed the check. */
void dns_set_id(unsigned char *message, uint16_t id);

/* The name asked for as text for the log: printable ASCII, other bytes as \ddd. Writes to[DNS_TEXT_MAX], returns to. */
enum { DNS_TEXT_MAX = 4 * DNS_NAME_MAX + 1 };
char *dns_name_text(const struct dns_query *q, char *to);

#endif
