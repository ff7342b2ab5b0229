/* What becomes of texts and paths that agents and servers send to the tools (mcp/scrub.h, mcp/path.h, mcp/run.h). */
#include "fuzz.h"

#include "mcp/path.h"
#include "mcp/run.h"
#include "mcp/scrub.h"

#include <stdlib.h>
void fuzz_one(struct str all)
{
	struct str secret = STR("swordfish");
	struct buf out = BUF_INIT;
	struct error err;
	hold(scrub_text(all, secret, &out) == 0);
	hold(str_is_utf8(buf_str(&out)) && buf_len(&out) > 0);
	hold(!memmem(buf_str(&out).p, buf_len(&out), "swordfish", 9) && !memmem(buf_str(&out).p, buf_len(&out), "http://", 7));
	for (int absolute = 0; absolute < 2; absolute++) {
		buf_clear(&out);
		if (mcp_path(all, absolute, &out, &err) < 0)
			continue;
		struct str path = buf_str(&out);
		hold(path.n && path.p[0] == '/' && !memchr(path.p, 0, path.n) && (absolute || mcp_path_inside(path)));
		hold(!memmem(path.p, path.n, "/../", 4) && !str_ends(path, STR("/..")) && !memmem(path.p, path.n, "//", 2));
	}
	struct clipped c = {0};
	for (size_t i = 0; i < all.n; i += 7)
		hold(clipped_add(&c, str_n(all.p + i, MIN(all.n - i, (size_t)7))) == 0);
	buf_clear(&out);
	hold(clipped_text(&c, &out) == 0 && str_is_utf8(buf_str(&out)));
	clipped_done(&c);
	buf_done(&out);
}
