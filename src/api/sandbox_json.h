/* How a sandbox looks in answers (e2b.md A.5; absent values are left out). */
#ifndef CUBICLE_API_SANDBOX_JSON_H
#define CUBICLE_API_SANDBOX_JSON_H

#include "api/index.h"
#include "api/out.h"
#include "config/options.h"

/* "Sandbox": the answer of create, connect, resume and fork, with the tokens. `key` as of out_open(). */
void sandbox_access(struct out *o, const char *key, const struct index_sandbox *s, const struct options *options);
/* "ListedSandbox". */
void sandbox_listed(struct out *o, const struct index_sandbox *s);
/* "SandboxDetail", with the tokens. */
void sandbox_detail(struct out *o, const struct index_sandbox *s, const struct options *options);

#endif
