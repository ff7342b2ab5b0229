#include "interp/wire.h"
#include "interp/jsontext.h"

#include "base/cleanup.h"
#include "base/clock.h"
#include "base/encode.h"
#include "base/random.h"

#include <errno.h>
#include <openssl/core_names.h>
#include <openssl/evp.h>
#include <openssl/params.h>
#include <stdio.h>

#define DELIMITER STR("<IDS|MSG>")

enum { SIGNED_FRAMES = 4, DIGEST = 32 };

void wire_new_id(char *to)
{
	unsigned char b[16];
	char hex[33];
	random_bytes(b, sizeof(b));
	b[6] = (b[6] & 0x0f) | 0x40;
	b[8] = (b[8] & 0x3f) | 0x80;
	hex_encode(hex, b, sizeof(b));
	snprintf(to, WIRE_ID_SIZE, "%.8s-%.4s-%.4s-%.4s-%.12s", hex, hex + 8, hex + 12, hex + 16, hex + 20);
}

int wire_sign(struct str key, const struct str frames[SIGNED_FRAMES], char ret[WIRE_SIGNATURE_SIZE])
{
	static EVP_MAC *hmac; /* found once: looking it up takes locks */
	if (!hmac)
		hmac = EVP_MAC_fetch(NULL, "HMAC", NULL);
	EVP_MAC_CTX *ctx = hmac ? EVP_MAC_CTX_new(hmac) : NULL;
	char name[] = "SHA256";
	OSSL_PARAM params[] = {
		OSSL_PARAM_construct_utf8_string(OSSL_MAC_PARAM_DIGEST, name, 0), OSSL_PARAM_construct_end()};
	unsigned char digest[DIGEST];
	size_t n = 0;
	bool ok = ctx && EVP_MAC_init(ctx, (const unsigned char *)key.p, key.n, params);
	for (int i = 0; ok && i < SIGNED_FRAMES; i++)
		ok = EVP_MAC_update(ctx, (const unsigned char *)frames[i].p, frames[i].n);
	ok = ok && EVP_MAC_final(ctx, digest, &n, sizeof(digest)) && n == sizeof(digest);
	EVP_MAC_CTX_free(ctx);
	if (!ok)
		return -ENOMEM;
	hex_encode(ret, digest, sizeof(digest));
	return 0;
}

int wire_parse(const struct str *frames, size_t n, struct str key, struct wire_message *ret)
{
	size_t i = 0;
	while (i < n && !str_eq(frames[i], DELIMITER))
		i++;
	if (i >= n || n - i < 2 + SIGNED_FRAMES)
		return -EPROTO;
	char signature[WIRE_SIGNATURE_SIZE];
	int r = wire_sign(key, frames + i + 2, signature);
	if (r < 0)
		return r;
	if (!str_eq_secret(str_of(signature), frames[i + 1]))
		return -EBADMSG;
	struct str header, parent, content;
	if (jsontext_parse(frames[i + 2], &header) < 0 || jsontext_parse(frames[i + 3], &parent) < 0 ||
		jsontext_parse(frames[i + 5], &content) < 0)
		return -EPROTO;
	struct wire_message m = {
		.type = jsontext_inner(jsontext_get(header, "msg_type")),
		.id = jsontext_inner(jsontext_get(header, "msg_id")),
		.parent_id = jsontext_inner(jsontext_get(parent, "msg_id")),
		.content = content,
	};
	if (!m.type.n || !content.n || content.p[0] != '{')
		return -EPROTO;
	*ret = m;
	return 0;
}

int wire_build(
	struct wire_out *out, struct str key, const char *session, const char *type, struct str content)
{
	char date[RFC3339_SIZE];
	wire_new_id(out->id);
	buf_clear(&out->header);
	buf_addf(&out->header,
		"{\"msg_id\":\"%s\",\"session\":\"%s\",\"username\":\"cubicle\",\"date\":\"%s\",\"msg_type\":"
		"\"%s\",\"version\":\"5.3\"}",
		out->id, session, rfc3339_format(date, clock_realtime()), type);
	if (out->header.failed)
		return -ENOMEM;
	out->frames[0] = DELIMITER;
	out->frames[2] = buf_str(&out->header);
	out->frames[3] = out->frames[4] = STR("{}");
	out->frames[5] = content;
	int r = wire_sign(key, out->frames + 2, out->signature);
	out->frames[1] = str_of(out->signature);
	return r;
}

void wire_out_done(struct wire_out *out)
{
	buf_done(&out->header);
}
