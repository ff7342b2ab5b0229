/* The message of WatchDir and CreateWatcher, up to the path that would be watched, and the ids of watchers. */
#include "fuzz.h"

#include "guest/filesystem_watch.h"

static void check_path(struct str path)
{
	hold(path.n > 0 && path.p[0] == '/');
	hold(!memchr(path.p, '\0', path.n));
	cleanup_buf struct buf clean = BUF_INIT, again = BUF_INIT;
	files_clean(&clean, path);
	struct str c = buf_str(&clean);
	hold(c.p && c.n > 0 && c.p[0] == '/' && (c.n == 1 || c.p[c.n - 1] != '/'));
	hold(!memmem(c.p, c.n, "//", 2) && !memmem(c.p, c.n, "/../", 4) && !memmem(c.p, c.n, "/./", 3));
	files_clean(&again, c);
	hold(str_eq(c, buf_str(&again)));
}

void fuzz_one(struct str input)
{
	const struct files_request request = {.conn = -1, .default_workdir = input.n % 2 ? "/srv/work" : NULL};
	struct files_call call = {.request = &request, .user = {.uid = 1000, .gid = 1000, .name = "user", .home = "/home/user"}};
	struct filesystem_call q = {.call = &call};
	struct error err = {0};
	q.message = json_parse(input, FILES_MAX_MESSAGE, "message", &err);
	if (json_is_object(q.message)) {
		struct watch_options o;
		int r = watch_request_parse(&q, &o);
		hold((r == 0) == (call.status == 0));
		if (r == 0)
			check_path(buf_str(&o.path));
		buf_done(&o.path);
		buf_done(&call.message);
		call.status = 0;
		/* No watcher lives here: whatever the id, it is not found, and nothing else happens. */
		hold(filesystem_get_watcher_events(&q) < 0 && call.status == 404);
	}
	buf_done(&call.message);
	buf_done(&q.answer);
	json_decref(q.message);
}
