#include "sandbox/sandbox.h"
#include "base/encode.h"
#include "base/log.h"
#include "base/random.h"

#include <errno.h>
#include <openssl/evp.h>
#include <openssl/hmac.h>
#include <stdio.h>
#include <stdlib.h>

static const char id_letters[] = "abcdefghijklmnopqrstuvwxyz0123456789";

void sandbox_done(struct sandbox *s)
{
	buf_done(&s->metadata);
	buf_done(&s->allow_out);
	buf_done(&s->deny_out);
	buf_done(&s->start);
}

int sandbox_clone(struct sandbox *to, const struct sandbox *s)
{
	*to = *s;
	to->metadata = to->allow_out = to->deny_out = to->start = BUF_INIT;
	if (buf_add_str(&to->metadata, buf_str(&s->metadata)) == 0 && buf_add_str(&to->allow_out, buf_str(&s->allow_out)) == 0 &&
		buf_add_str(&to->deny_out, buf_str(&s->deny_out)) == 0 && buf_add_str(&to->start, buf_str(&s->start)) == 0)
		return 0;
	sandbox_done(to);
	return -ENOMEM;
}

int start_decode(const struct buf *start, struct msg_start *ret)
{
	union msg_any any;
	struct msg_header header;
	if (msg_decode(buf_str(start), &header, &any, sizeof(any), NULL) < 0 || header.type != MSG_ID_start)
		return -EPROTO;
	*ret = any.start;
	return 0;
}

const char *sandbox_isolation(const struct sandbox *s)
{
	struct msg_start start;
	return sandbox_start(s, &start) == 0 && msg_has(&start, start, isolation) && str_is(start.isolation, "microvm") ? "microvm" : "namespace";
}

int sandbox_start(const struct sandbox *s, struct msg_start *ret)
{
	return start_decode(&s->start, ret);
}

bool sandbox_can_become(enum sandbox_state from, enum sandbox_state to)
{
	switch (from) {
	case SANDBOX_CREATING: /* owner: the create in flight */
		return to == SANDBOX_RUNNING || to == SANDBOX_KILLING || to == SANDBOX_GONE;
	case SANDBOX_RUNNING: /* owner: nobody, until a request, the deadline or its death takes it */
		return to == SANDBOX_PAUSING || to == SANDBOX_SNAPSHOTTING || to == SANDBOX_KILLING || to == SANDBOX_GONE;
	case SANDBOX_PAUSING: /* owner: the pause; back to running when it fails */
		return to == SANDBOX_PAUSED || to == SANDBOX_RUNNING || to == SANDBOX_KILLING || to == SANDBOX_GONE;
	case SANDBOX_PAUSED: /* owner: nobody, or the resume under way; to pausing when only its disk is kept from now on */
		return to == SANDBOX_RUNNING || to == SANDBOX_PAUSING || to == SANDBOX_KILLING || to == SANDBOX_GONE;
	case SANDBOX_SNAPSHOTTING: /* owner: the snapshot, the fork or the rollback */
		return to == SANDBOX_RUNNING || to == SANDBOX_KILLING || to == SANDBOX_GONE;
	case SANDBOX_KILLING: /* owner: the kill; only its end leads out */
		return to == SANDBOX_GONE;
	case SANDBOX_GONE:
		return false;
	}
	return false;
}

void sandbox_set_state(struct sandbox *s, enum sandbox_state to)
{
	if (!sandbox_can_become(s->state, to)) {
		log_write(LOG_ERROR, &(struct log_ids){.sandbox = str_of(s->id)}, "sandbox: %s cannot become %s",
			sandbox_state_name(s->state), sandbox_state_name(to));
		abort();
	}
	s->state = to;
}

const char *sandbox_state_name(enum sandbox_state state)
{
	static const char *const names[] = {
		[SANDBOX_CREATING] = "creating",
		[SANDBOX_RUNNING] = "running",
		[SANDBOX_PAUSING] = "pausing",
		[SANDBOX_PAUSED] = "paused",
		[SANDBOX_SNAPSHOTTING] = "snapshotting",
		[SANDBOX_KILLING] = "killing",
		[SANDBOX_GONE] = "gone",
	};
	return state >= SANDBOX_CREATING && state <= SANDBOX_GONE ? names[state] : "unknown";
}

bool sandbox_id_valid(struct str id)
{
	if (id.n != SANDBOX_ID || id.p[0] != 'i')
		return false;
	for (size_t i = 1; i < id.n; i++)
		if (!id.p[i] || !strchr(id_letters, id.p[i]))
			return false;
	return true;
}

void sandbox_new_id(char to[SANDBOX_ID + 1])
{
	to[0] = 'i';
	random_text(to + 1, SANDBOX_ID - 1, id_letters);
}

void sandbox_new_generation(char to[SANDBOX_GENERATION + 1])
{
	unsigned char bytes[SANDBOX_GENERATION / 2];
	random_bytes(bytes, sizeof(bytes));
	hex_encode(to, bytes, sizeof(bytes));
}

static void derive(char to[SANDBOX_TOKEN + 1], const unsigned char *key, const char *purpose, const char *id)
{
	unsigned char mac[EVP_MAX_MD_SIZE];
	unsigned n = 0;
	char text[64];
	int length = snprintf(text, sizeof(text), "%s:%s", purpose, id);
	if (!HMAC(EVP_sha256(), key, SANDBOX_KEY, (const unsigned char *)text, (size_t)length, mac, &n) || n != SANDBOX_TOKEN / 2)
		abort(); /* an empty token would mean "open" */
	hex_encode(to, mac, n);
}

void sandbox_derive_tokens(struct sandbox *s, const unsigned char key[SANDBOX_KEY])
{
	s->envd_token[0] = s->traffic_token[0] = 0;
	if (s->secure)
		derive(s->envd_token, key, "envd", s->id);
	if (!s->public_traffic)
		derive(s->traffic_token, key, "traffic", s->id);
}

bool sandbox_copy(char *to, size_t size, struct str from)
{
	/* An absent view may have no address at all. */
	if (from.n >= size || (from.n && memchr(from.p, 0, from.n)))
		return false;
	if (from.n)
		memcpy(to, from.p, from.n);
	to[from.n] = 0;
	return true;
}

static void copy_cut(char *to, size_t size, const char *from)
{
	size_t n = strnlen(from, size - 1);
	memcpy(to, from, n);
	to[n] = 0;
}

void sandbox_set_reason(struct sandbox *s, const char *reason, const char *detail)
{
	copy_cut(s->reason, sizeof(s->reason), reason);
	copy_cut(s->detail, sizeof(s->detail), detail);
}
