#include "api/handlers.h"
#include "api/request.h"
#include "base/cleanup.h"
#include "io/tls.h"

void handle_reload_certificates(struct api_request *r)
{
	struct api *a = r->api;
	struct error err = {0};
	int e = a->config.reload_certificates(a->config.arg, &err);
	if (e < 0) {
		api_fail(r, &err);
		return;
	}
	/* Kept also when its client leaves: the answers come in this order. */
	r->working = true;
	*(a->reloads ? a->last_reload : &a->reloads) = r;
	a->last_reload = &r->next_reload;
}

static void answer_certificates(struct api_request *r, const struct tls_server *tls)
{
	cleanup_buf struct buf body = BUF_INIT;
	struct out o = {.to = &body};
	out_open(&o, NULL, '[');
	for (size_t i = 0; tls && i < tls_server_pairs(tls); i++) {
		cleanup_buf struct buf names = BUF_INIT;
		char fingerprint[65];
		tls_server_names(tls, i, &names);
		out_open(&o, NULL, '{');
		out_str(&o, "names", buf_str(&names));
		out_str(&o, "sha256", str_of(tls_server_fingerprint(tls, i, fingerprint)));
		out_close(&o, '}');
	}
	out_close(&o, ']');
	api_answer(r, 200, &body);
}

void api_certificates_reloaded(struct api *a, const struct error *err, const struct tls_server *tls)
{
	struct api_request *r = a->reloads;
	if (!r)
		return;
	a->reloads = r->next_reload;
	r->working = false;
	if (err)
		api_fail(r, err);
	else
		answer_certificates(r, tls);
}
