#include "cli/env.h"
#include "base/cleanup.h"
#include "base/log.h"

#include <errno.h>

int env_exports(struct buf *to, const struct env *e, bool json)
{
	/* "http://host:port" without the scheme, cut at its last colon. */
	struct str host = str_from(str_of(e->url), strlen("http://")), port = STR("80");
	for (size_t i = host.n; i-- > 0;)
		if (host.p[i] == ':') {
			port = str_from(host, i + 1);
			host.n = i;
			break;
		}
	struct {
		const char *name;
		struct str value;
		bool wanted;
	} lines[] = {
		{"E2B_API_KEY", e->key, true},
		{"E2B_API_URL", str_of(e->url), !e->tls},
		{"E2B_SANDBOX_URL", str_of(e->url), !e->tls},
		{"E2B_DOMAIN", e->domain, e->domain.n},
		{"NODE_EXTRA_CA_CERTS", str_of(e->ca), e->ca},
		{"SSL_CERT_FILE", str_of(e->bundle), e->bundle},
		{"CUBE_API_KEY", e->key, true},
		{"CUBE_API_URL", str_of(e->url), true},
		{"CUBE_TEMPLATE_ID", STR("base"), true},
		{"CUBE_PROXY_NODE_IP", host, true},
		{"CUBE_PROXY_PORT_HTTP", port, true},
		{"CUBE_SANDBOX_DOMAIN", e->domain, e->domain.n},
	};
	bool first = true;
	if (e->tls && !json)
		buf_add_c(to, "unset E2B_API_URL E2B_SANDBOX_URL\n");
	for (size_t i = 0; i < ARRAY_SIZE(lines); i++) {
		if (!lines[i].wanted)
			continue;
		if (json) {
			buf_addf(to, "%s\"%s\":", first ? "{" : ",", lines[i].name);
			json_quote(to, lines[i].value);
		} else {
			buf_addf(to, "export %s=", lines[i].name);
			shell_quote(to, lines[i].value);
			buf_add_c(to, "\n");
		}
		first = false;
	}
	if (json)
		buf_add_c(to, "}\n");
	return to->failed ? -ENOMEM : 0;
}
