/* The network settings of a create and of PUT /sandboxes/{id}/network (e2b.md A.5.2; cube.md B.3, B.8). */
#ifndef CUBICLE_API_NETWORK_H
#define CUBICLE_API_NETWORK_H

#include "api/decode.h"

struct network_args {
	bool has_internet, internet;                 /* allow_internet_access */
	bool has_public_traffic, public_traffic;     /* allowPublicTraffic; true when absent */
	struct buf allow_out, deny_out;              /* entries as given, in the form of a msg_list */
};

/*
 * The create's member `network` and its allow_internet_access; or the body of a PUT (NULL = empty), where the same fields stand at the top. 0, or a negative errno with
 * *err: 400 for what is wrong, 501 for what is known but not served; each names the field. Whether this server lets sandboxes reach a private address is for the node
 * to say. *ret needs network_args_done() in any case.
 */
int network_parse_create(const json_t *body, struct network_args *ret, struct error *err);
int network_parse_update(const json_t *body, struct network_args *ret, struct error *err);
void network_args_done(struct network_args *a);
#define cleanup_network_args __attribute__((__cleanup__(network_args_done)))

#endif
