/* Who may enter (e2b.md A.8): what the ingress refuses by itself, before a sandbox is reached or woken. No I/O. */
#ifndef CUBICLE_INGRESS_ADMIT_H
#define CUBICLE_INGRESS_ADMIT_H

#include "api/index.h"
#include "ingress/page.h"
#include "ingress/route.h"

enum admission {
	ADMIT_REFUSE, /* *ret is the answer */
	ADMIT_PASS,   /* it runs */
	ADMIT_WAKE,   /* it is paused, or about to be, and this request may resume it */
};

/* `s`: what the index has under route->id; NULL = nothing. */
enum admission admit(const struct sandbox_index *ix, const struct index_sandbox *s, const struct http_head *h, const struct route *route, struct page *ret);
/* Paused or pausing, and traffic may resume it. Takes NULL. */
bool admit_wakes(const struct index_sandbox *s);

#endif
