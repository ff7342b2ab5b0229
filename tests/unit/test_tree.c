#include "unit.h"

#include "base/cleanup.h"
#include "erofs_reader.h"
#include "image/tree.h"

#include <stdio.h>
#include <sys/mman.h>
#include <sys/stat.h>

/* What layers come to, as a text of one line a name: "f a 1" a file with its contents, "d a" a directory, "o a" an opaque one, "w a" a whiteout, "l a -> b", "= a b" a link; "+" the next layer. */

struct world {
	struct tree *tree;
	struct error err;
	int fd;
};

static void begin(struct world *w, const struct tree_limits *limits, unsigned flags)
{
	*w = (struct world){.fd = memfd_create("image", MFD_CLOEXEC)};
	struct tree_limits own = limits ? *limits : tree_limits_usual;
	if (!limits)
		own.image = 16 << 20;
	assert_int_equal(tree_new(w->fd, &own, flags, &w->tree), 0);
}

static void done(struct world *w)
{
	tree_free(w->tree);
	close(w->fd);
}

static int add_file(struct world *w, struct tree_entry *entry, struct str bytes)
{
	entry->mode = S_IFREG | 0644;
	entry->size = bytes.n;
	int r = tree_file(w->tree, entry, &w->err);
	if (r != 0)
		return r < 0 ? r : 0;
	r = tree_file_data(w->tree, 0, bytes.p, bytes.n, &w->err);
	return r < 0 ? r : tree_file_end(w->tree, &w->err);
}

static int add_line(struct world *w, struct str line)
{
	struct str kind, path, more = STR("");
	str_cut(line, ' ', &kind, &path);
	str_cut(path, ' ', &path, &more);
	struct tree_entry entry = {.path = path, .mode = S_IFDIR | 0750, .target = more};
	switch (line.p[0]) {
	case 'f':
		return add_file(w, &entry, more);
	case 'l':
		entry.mode = S_IFLNK;
		/* fallthrough */
	case 'd':
		return tree_add(w->tree, &entry, &w->err);
	case '=':
		return tree_link(w->tree, path, more, &w->err);
	case '+':
		tree_next_layer(w->tree);
		return 0;
	default:
		fail();
		return -1;
	}
}

static int add(struct world *w, const char *script)
{
	struct str line, rest = str_of(script);
	int r = 0;
	while (r == 0 && str_cut(rest, '\n', &line, &rest))
		r = add_line(w, line);
	return r;
}

/* The reader's lines, shortened to the form above. */
static void shorten(struct buf *text, struct buf *to)
{
	struct str line, rest = buf_str(text);
	while (str_cut(rest, '\n', &line, &rest)) {
		struct str path, after, type;
		str_cut(line, ' ', &path, &after);
		str_cut(after, ' ', &type, &after);
		bool opaque = memmem(after.p, after.n, "trusted.overlay.opaque= 'y'", 27) != NULL;
		if (str_is(path, "/") && !opaque)
			continue;
		const char *quote = memchr(after.p, '\'', after.n);
		buf_addf(to, "%c %.*s", opaque ? 'o' : type.p[0] == 'c' ? 'w' : type.p[0], STR_FMT(path));
		if (type.p[0] == 'f' || type.p[0] == 'l')
			buf_addf(to, " %.*s", quote ? (int)(after.p + after.n - quote - 2) : 0, quote ? quote + 1 : "");
		buf_add_c(to, "\n");
	}
}

static void check(const char *script, bool lowest, const char *wanted)
{
	struct world w;
	struct tree_result made = {0};
	const struct tree_finish how = {.lowest = lowest};
	cleanup_buf struct buf text = BUF_INIT, lines = BUF_INIT;
	begin(&w, NULL, TREE_OCI);
	if (add(&w, script) < 0 || tree_finish(w.tree, &how, &made, &w.err) < 0)
		fail_msg("%s: %s", script, w.err.message);
	if (erofs_list(w.fd, &text) < 0)
		fail_msg("%s: %s", script, buf_cstr(&text));
	shorten(&text, &lines);
	if (strcmp(buf_cstr(&lines), wanted) != 0)
		fail_msg("%sgives\n%s(%s)not\n%s", script, buf_cstr(&lines), buf_cstr(&text), wanted);
	done(&w);
}

static void refuse(const char *script, int code, int status, const char *words)
{
	struct world w;
	const struct tree_finish how = {0};
	struct tree_result made;
	begin(&w, NULL, TREE_OCI);
	int r = add(&w, script);
	if (r == 0)
		r = tree_finish(w.tree, &how, &made, &w.err);
	if (r != code || w.err.code != code || w.err.status != status || !strstr(w.err.message, words))
		fail_msg("%s: %d %d %s", script, r, w.err.status, w.err.message);
	done(&w);
}

static void test_whiteouts(void **state)
{
	check("f .wh.a\n", false, "w a\n");
	check("f .wh.a\n", true, "");
	check("f a 1\nf b 2\n+\nf .wh.a\n", false, "w a\nf b 2\n");
	check("f a 1\nf b 2\n+\nf .wh.a\n", true, "f b 2\n");
	/* 104: whatever carries the name */
	check("f a 1\nf c 1\n+\n= .wh.a c\nl .wh.b x\nd .wh.e\n", false, "w a\nw b\nf c 1\nw e\n");
	/* never of its own layer */
	check("f a 1\nf .wh.a\nd d\nf d/x\nf .wh.d\n", false, "f a 1\no d\nf d/x \n");
	check("f .wh.a\nf a 1\nf .wh.d\nd d\n", false, "f a 1\no d\n");
	check("d d\nf d/old\n+\nf d/new\nf .wh.d\n", false, "o d\nf d/new \n");
	check("d d\nf d/old\n+\nf .wh.d\nf d/new\n+\nf d/newer\n", false, "o d\nf d/new \nf d/newer \n");
	check("f a\n+\nf .wh.a\n+\nf a 3\n", false, "f a 3\n");
	check("d d\nf d/a\n+\nf .wh.d\n+\nd d\nf d/b\n", true, "d d\nf d/b \n");
	/* reserved names are no contents, and nothing is below them */
	check("f .wh..wh.aufs 1\nd .wh..wh.plnk\nf .wh..wh.plnk/x 1\nf .wh.a/b 1\nf c 1\n", false, "f c 1\n");
	refuse("f .wh.\n", -EINVAL, 400, ".wh.");
	refuse("f .wh...\n", -EINVAL, 400, ".wh...");
	refuse("f d/.wh..\n", -EINVAL, 400, "d/.wh..");
}

static void test_opaque(void **state)
{
	/* 106: in any order */
	check("d d\nf d/n\nf d/.wh..wh..opq\nf d/m\n", false, "o d\nf d/m \nf d/n \n");
	check("d d\nf d/a\nd d/s\nf d/s/a\n+\nf d/s/b\nf d/.wh..wh..opq\n", false, "o d\nd d/s\nf d/s/b \n");
	/* below one nothing is marked */
	check("f d/.wh..wh..opq\nf d/.wh.x\nf d/s/.wh..wh..opq\nf d/s/f\n", false, "o d\nd d/s\nf d/s/f \n");
	check("d d\n+\nf d/.wh..wh..opq\n+\nf d/.wh..wh..opq\nf d/x\n", false, "o d\nf d/x \n");
	/* overlayfs does not look for it at the root */
	refuse("f a\nf .wh..wh..opq\n", -EXDEV, 409, "all of the layers below");
	check("f a\n+\nf .wh..wh..opq\nf b\n", true, "f b \n");
}

static void test_replacing(void **state)
{
	check("f a 1\nf a 22\n", false, "f a 22\n");
	check("d d\nf d/x\nf d 1\n", false, "f d 1\n");
	/* 107: what was no directory hides what is below */
	check("f p 1\nf p/q 2\n", false, "o p\nf p/q 2\n");
	check("l p elsewhere\n+\nd p\nf p/q 2\n", false, "o p\nf p/q 2\n");
	check("l p elsewhere\n+\nd p\nf p/q 2\n", true, "d p\nf p/q 2\n");
	/* what a dropped directory had does not come back */
	check("d d\nf d/x\nf d 1\nd d\nf d/y\n", true, "d d\nf d/y \n");
	check("f ./a//b/../c 1\nf /d 2\nd ./\n", false, "d a\nf a/c 1\nf d 2\n");
	refuse("f ../a\n", -EINVAL, 400, "out of the image");
	refuse("f a/../../b\n", -EINVAL, 400, "out of the image");
	refuse("l . x\n", -EINVAL, 400, "the root is no directory");
}

static void test_links(void **state)
{
	check("f a 1\n= b a\n= d/c ./b\n= a a\n", false, "f a 1\nf b 1\nd d\nf d/c 1\n");
	check("f a 1\n= b a\nf a 22\n", false, "f a 22\nf b 1\n");
	check("l s t\n= r s\n", false, "l r t\nl s t\n");
	/* its name becomes a directory above its other name */
	check("f a 1\n= a/b a\n", true, "d a\nf a/b 1\n");
	check("f a 1\n+\n= b a\nf .wh.a\n", false, "w a\nf b 1\n");
	refuse("= b a\n", -EXDEV, 409, "b: a hard link to a");
	refuse("f a 1\n+\nf .wh.a\n= b a\n", -EXDEV, 409, "b: a hard link to a");
	refuse("d d\n= b d\n", -EINVAL, 400, "directory d");
	refuse("f a 1\n= b a/x\n", -EXDEV, 409, "a/x");
	refuse("f a 1\n= b ../a\n", -EINVAL, 400, "b: a link to");
}

/* Each limit is an error of its own. */
static void test_limits(void **state)
{
	struct tree_limits limits = {.image = 1 << 20, .entries = 100, .memory = 1 << 20, .file = 1000, .path = 60, .depth = 5, .xattrs = 100, .extents = 2};
	struct world w;
	char many[2000] = "", *at = many;
	for (int i = 0; i < 101; i++)
		at += sprintf(at, "f n%d\n", i);
	const struct {
		const char *script, *words;
	} cases[] = {
		{many, "n100: more than 100 files"},
		{"d a/b/c/d/e/f/g\n", "more than 5 directories deep"},
		{"d 01234567890123456789012345678901234567890123456789012345678901234567890\n", "a path of 71 bytes"},
	};
	for (size_t i = 0; i < ARRAY_SIZE(cases); i++) {
		begin(&w, &limits, TREE_OCI);
		assert_int_equal(add(&w, cases[i].script), -EDQUOT);
		assert_int_equal(w.err.status, 413);
		if (!strstr(w.err.message, cases[i].words))
			fail_msg("%s", w.err.message);
		done(&w);
	}
	static const struct erofs_extent extents[3] = {{0, 1}, {5, 1}, {9, 1}};
	const struct tree_xattr xattr = {STR("user.x"), str_n(many, 100)};
	const struct tree_entry entries[] = {
		{.path = STR("f"), .mode = S_IFREG, .size = 1001},
		{.path = STR("f"), .mode = S_IFREG, .size = 10, .extents = extents, .n_extents = 3},
		{.path = STR("f"), .mode = S_IFREG, .xattrs = &xattr, .n_xattrs = 1},
	};
	for (size_t i = 0; i < ARRAY_SIZE(entries); i++) {
		begin(&w, &limits, TREE_OCI);
		assert_int_equal(tree_file(w.tree, &entries[i], &w.err), -EDQUOT);
		assert_int_equal(w.err.status, 413);
		done(&w);
	}
	/* The same name over and over takes no more names, but memory. */
	limits.entries = UINT64_MAX;
	limits.image = UINT64_MAX;
	begin(&w, &limits, TREE_OCI);
	int r = 0;
	for (int i = 0; r == 0 && i < 1000000; i++)
		r = add(&w, "l a b\n");
	assert_int_equal(r, -EDQUOT);
	assert_non_null(strstr(w.err.message, "memory"));
	done(&w);
}

/* Hiding what is below takes no time that grows with how often it is asked for. */
static void test_many_marks(void **state)
{
	struct world w;
	begin(&w, NULL, TREE_OCI);
	char line[64];
	for (int i = 0; i < 20000; i++) {
		snprintf(line, sizeof(line), "f d/%d\nf d/.wh..wh..opq\nf .wh.d\nf e/%d\nf e\n", i, i);
		assert_int_equal(add(&w, line), 0);
	}
	done(&w);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(test_whiteouts),
		cmocka_unit_test(test_opaque),
		cmocka_unit_test(test_replacing),
		cmocka_unit_test(test_links),
		cmocka_unit_test(test_limits),
		cmocka_unit_test(test_many_marks),
	};
	return cmocka_run_group_tests(tests, NULL, NULL);
}
