/*
 * A watched tree under changes that the input names, read at moments that it names. The first byte chooses: events of the kernel only, which must tell of
 * everything that is there in the end; or events of the input's own between them, which need not make sense and must do no harm.
 */
#include "fuzz.h"

#include "base/fd.h"
#include "guest/watch.h"

#include <fcntl.h>
#include <errno.h>
#include <ftw.h>
#include <limits.h>
#include <sys/inotify.h>
#include <sys/stat.h>

enum { MAX_STEPS = 64, MAX_KNOWN = 4096 };

/* What the watch has told. A directory that was renamed takes what is known under it to its next name. */
static struct {
	char *known[MAX_KNOWN];
	size_t n;
	char renamed[256]; /* the event before this one */
} model;

static char base[64]; /* holds `in`, which is watched, and `out` */

static void know(const char *name)
{
	hold(model.n < MAX_KNOWN);
	model.known[model.n++] = strdup(name);
}

static bool is_known(const char *name)
{
	for (size_t i = 0; i < model.n; i++)
		if (strcmp(model.known[i], name) == 0)
			return true;
	return false;
}

static void know_moved(const char *name)
{
	size_t n = model.n, length = strlen(model.renamed);
	for (size_t i = 0; *model.renamed && i < n; i++) {
		char path[PATH_MAX];
		if (strncmp(model.known[i], model.renamed, length) != 0 || model.known[i][length] != '/')
			continue;
		snprintf(path, sizeof(path), "%s%s", name, model.known[i] + length);
		if (!is_known(path))
			know(path);
	}
}

static void told(enum watch_op op, struct str name, void *arg)
{
	char path[PATH_MAX];
	hold(name.p && name.n > 0 && name.n < sizeof(path) && name.p[0] != '/' && name.p[name.n - 1] != '/');
	hold(!memmem(name.p, name.n, "//", 2) && !memchr(name.p, '\0', name.n));
	memcpy(path, name.p, name.n);
	path[name.n] = '\0';
	if (op == WATCH_CREATE && !is_known(path))
		know(path);
	if (op == WATCH_CREATE)
		know_moved(path);
	model.renamed[0] = '\0';
	if (op == WATCH_RENAME && name.n < sizeof(model.renamed))
		memcpy(model.renamed, path, name.n + 1);
}

/* One to four of the names a to d, below the tree or beside it. */
static void path_of(uint8_t a, uint8_t b, char to[128])
{
	unsigned bits = (unsigned)(a >> 3) | (unsigned)b << 5;
	int n = snprintf(to, 128, "%s/%s", base, a & 4 ? "out" : "in");
	for (int level = 0; level <= (a & 3); level++, bits >>= 2)
		n += snprintf(to + n, 128 - (size_t)n, "/%c", "abcd"[bits & 3]);
}

static void touch(const char *path)
{
	int fd = open(path, O_WRONLY | O_CREAT | O_CLOEXEC | O_NOFOLLOW, 0600);
	if (fd >= 0 && write(fd, "x", 1) >= 0)
		close(fd);
}

/* As mkdir -p, with a file in each. */
static void make_all(char *path)
{
	for (char *c = path + strlen(base) + 1; *c; c++) {
		if (*c != '/')
			continue;
		*c = '\0';
		mkdir(path, 0700);
		*c = '/';
	}
	mkdir(path, 0700);
}

static int remove_one(const char *path, const struct stat *st, int type, struct FTW *f)
{
	return remove(path);
}

static void remove_all(const char *path)
{
	nftw(path, remove_one, 16, FTW_DEPTH | FTW_PHYS);
}

static int read_all(struct watch *w)
{
	int r;
	while ((r = watch_read(w, told, NULL)) == 1)
		;
	return r;
}

/* An event out of the input: its name is a directory that may be there, or bytes as no kernel would forbid them. */
static int invent(struct watch *w, const uint8_t *p, struct str rest, size_t *ret_used)
{
	static const uint32_t masks[8] = {IN_CREATE, IN_MOVED_FROM, IN_MOVED_TO, IN_DELETE, IN_MODIFY, IN_ATTRIB, IN_IGNORED, IN_MOVE_SELF};
	char bytes[sizeof(struct inotify_event) + 256] = {0}, *name = bytes + sizeof(struct inotify_event);
	struct inotify_event e = {.wd = p[1] % 16, .mask = masks[p[2] & 7] | (p[2] & 8 ? IN_ISDIR : 0) | (p[2] & 16 ? masks[p[2] >> 5] : 0), .cookie = p[3] & 3};
	size_t n = MIN((size_t)(p[3] >> 2), rest.n);
	*ret_used = n;
	for (size_t i = 0; i < n; i++)
		name[i] = rest.p[i] == '/' ? '_' : rest.p[i];
	if (n == 0 && p[3] & 4)
		name[n++] = "abcd"[p[3] >> 3 & 3];
	if (strcmp(name, ".") == 0 || strcmp(name, "..") == 0)
		name[0] = '_';
	e.len = name[0] ? (uint32_t)(n + 16 - n % 16) : 0;
	memcpy(bytes, &e, sizeof(e));
	return watch_take(w, bytes, sizeof(e) + e.len, told, NULL);
}

static void change(const uint8_t p[5])
{
	char one[128], other[128];
	path_of(p[1], p[2], one);
	path_of(p[3], p[4], other);
	switch (p[0] & 7) {
	case 0:
	case 1:
		make_all(one);
		break;
	case 2:
		mkdir(one, 0700);
		break;
	case 3:
		touch(one);
		break;
	case 4:
		remove_all(one);
		break;
	case 5:
		make_all(one);
		strncat(one, "/f", sizeof(one) - strlen(one) - 1);
		touch(one);
		break;
	default:
		rename(one, other);
	}
}

static int check_one(const char *path, const struct stat *st, int type, struct FTW *f)
{
	const char *name = path + strlen(base) + strlen("/in/");
	if (f->level > 0)
		hold(is_known(name));
	return 0;
}

static void begin(void)
{
	char path[128];
	snprintf(base, sizeof(base), "%s/cubicle-fuzz-XXXXXX", access("/dev/shm", W_OK) == 0 ? "/dev/shm" : "/tmp");
	hold(mkdtemp(base));
	snprintf(path, sizeof(path), "%s/out", base);
	hold(mkdir(path, 0700) == 0);
	snprintf(path, sizeof(path), "%s/in", base);
	hold(mkdir(path, 0700) == 0);
}

static void run(struct watch *w, struct str input)
{
	bool real = !(input.p[0] & 1);
	int r = 0;
	input = str_from(input, 1);
	for (int step = 0; step < MAX_STEPS && input.n >= 5 && r >= 0; step++) {
		const uint8_t *p = (const uint8_t *)input.p;
		size_t used = 0;
		input = str_from(input, 5);
		if (p[0] & 128)
			r = read_all(w);
		else if (!real && p[0] & 64)
			r = invent(w, p, input, &used);
		else
			change(p);
		input = str_from(input, used);
	}
	if (r >= 0)
		r = read_all(w);
	char path[128];
	snprintf(path, sizeof(path), "%s/in", base);
	if (real) {
		hold(r == 0);
		hold(nftw(path, check_one, 16, FTW_PHYS) == 0);
	}
}

void fuzz_one(struct str input)
{
	struct watch *w;
	char path[128];
	if (input.n < 6)
		return;
	begin();
	snprintf(path, sizeof(path), "%s/in", base);
	int r = watch_new(path, true, false, &w);
	if (r == 0) {
		run(w, input);
		watch_free(w);
	}
	while (model.n)
		free(model.known[--model.n]);
	model.renamed[0] = '\0';
	remove_all(base);
	hold(r == 0 || r == -EMFILE || r == -ENOSPC);
}
