/* Which versions of the published clients this version was tested with (docs/compatibility.md); newer ones are told in the log (cases.md 47). */
#ifndef CUBICLE_API_CLIENTS_H
#define CUBICLE_API_CLIENTS_H

#include "base/str.h"

enum { CLIENTS_SEEN_MAX = 16, CLIENTS_NAME_MAX = 48 };

/* All zero at first. What is full tells of no more. */
struct clients_seen {
	char names[CLIENTS_SEEN_MAX][CLIENTS_NAME_MAX];
	unsigned n;
};

/*
 * Looks at the products of a User-Agent. One that is newer than any tested one and was not told before: true, with it ("e2b-js-sdk/9.1.0") as the last of
 * `seen` and the newest tested version in *ret_tested (static).
 */
bool clients_newer(struct clients_seen *seen, struct str user_agent, const char **ret_tested);

#endif
