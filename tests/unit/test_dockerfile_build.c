/* Builds of Dockerfiles against an engine that only writes down what it was asked for. */
#include "unit.h"

#include "base/cleanup.h"
#include "base/sha256.h"
#include "base/encode.h"
#include "base/fd.h"
#include "base/map.h"
#include "image/build.h"
#include "image/copy.h"
#include "image/dockerfile_plan.h"
#include "io/json.h"

#include <archive.h>
#include <archive_entry.h>
#include <errno.h>
#include <stdio.h>
#include <sys/mman.h>
#include <sys/stat.h>

/* ---- the engine ---- */

static struct buf told = BUF_INIT, logged = BUF_INIT;
static struct map cached = MAP_INIT; /* keys of layers that are there */
static int context = -1;
static bool in_layer;

static void tell(const char *fmt, ...) __attribute__((format(printf, 1, 2)));
static void tell(const char *fmt, ...)
{
	va_list ap;
	va_start(ap, fmt);
	buf_vaddf(&told, fmt, ap);
	va_end(ap);
}

void build_log(struct build *b, int level, const char *fmt, ...)
{
	va_list ap;
	va_start(ap, fmt);
	buf_vaddf(&logged, fmt, ap);
	va_end(ap);
	buf_add_c(&logged, "\n");
}

void build_progress(struct build *b, const char *phase, unsigned percent)
{
	assert_true(percent <= 100);
}

static void set_key(struct stack *s, struct str text)
{
	unsigned char digest[SHA256_SIZE];
	sha256(text, digest);
	hex_encode(s->key, digest, SHA256_SIZE);
}

int build_from_scratch(struct build *b, struct stack *ret, struct error *err)
{
	assert_false(in_layer);
	tell("scratch\n");
	*ret = (struct stack){0};
	set_key(ret, STR("scratch"));
	return 0;
}

/* Images: "base" is plain, "app" has a configuration, "trigger" has ONBUILD, "gone" is not there. */
int build_from_image(struct build *b, const char *reference, const struct source_credentials *credentials, struct stack *ret, struct build_config *config, struct error *err)
{
	assert_false(in_layer);
	tell("image %s%s%s\n", reference, credentials ? " as " : "", credentials ? credentials->username : "");
	if (strcmp(reference, "gone") == 0)
		return error_set(err, -ENOENT, 404, "no such image");
	*ret = (struct stack){0};
	set_key(ret, str_of(reference));
	env_set(&config->env, STR("PATH"), STR("/bin"));
	if (strcmp(reference, "app") == 0) {
		env_set(&config->env, STR("FROM_APP"), STR("yes"));
		build_config_text(&config->user, "app");
		build_config_text(&config->workdir, "/app");
		build_config_list(&config->entrypoint, (const char *const[]){"/entry", NULL});
		build_config_list(&config->cmd, (const char *const[]){"serve", NULL});
	}
	if (strcmp(reference, "trigger") == 0)
		build_config_list(&config->on_build, (const char *const[]){"ENV TRIGGERED=1", "RUN triggered", NULL});
	return 0;
}

int build_layer(struct build *b, struct stack *s, struct str what, bool force, int (*make)(struct box *box, void *arg, struct error *err), void *arg, bool *ret_cached,
	struct error *err)
{
	cleanup_buf struct buf whole = BUF_INIT;
	struct box box = {.build = b};
	assert_false(in_layer);
	buf_add_c(&whole, s->key);
	buf_add_str(&whole, what);
	set_key(s, buf_str(&whole));
	*ret_cached = !force && map_get(&cached, str_of(s->key));
	if (*ret_cached) {
		tell("cached\n");
		return 0;
	}
	in_layer = true;
	int r = make(&box, arg, err);
	in_layer = false;
	if (r == BUILD_NOTHING) {
		tell("nothing\n");
		return 0;
	}
	if (r == 0)
		assert_int_equal(map_put(&cached, str_of(s->key), (void *)1, NULL), 0);
	return r;
}

int build_open_box(struct build *b, const struct stack *s, struct box *ret, struct error *err)
{
	tell("open ");
	ret->build = b;
	return 0;
}

void build_end_box(struct box *box)
{
	*box = (struct box){0};
}

int build_command(struct box *box, const char *const *argv, const char *user, const char *cwd, const struct env *env, const char *shown, struct error *err)
{
	tell("run");
	for (; *argv; argv++)
		tell(" [%s]", *argv);
	tell(" user=%s cwd=%s", user, cwd);
	for (size_t i = 0; i < env->n; i++)
		if (strcmp(env->vars[i].name, "PATH") != 0)
			tell(" %s=%s", env->vars[i].name, env->vars[i].value);
	tell("\n");
	return strstr(argv[-1], "fail") ? error_set(err, -EREMOTEIO, 400, "%s: exit status 3", shown) : 0;
}

int envd_stat(const struct envd *e, const char *path, struct envd_stat *ret, struct error *err)
{
	*ret = (struct envd_stat){.exists = strcmp(path, "/there") == 0 || strcmp(path, "/file") == 0, .is_dir = strcmp(path, "/there") == 0};
	return 0;
}

int envd_make_dir(const struct envd *e, const char *path, const char *user, struct error *err)
{
	assert_string_equal(user, "root");
	tell("mkdir %s\n", path);
	return 0;
}

int envd_remove(const struct envd *e, const char *path, struct error *err)
{
	tell("remove %s\n", path);
	return 0;
}

int envd_place(const struct envd *e, const char *path, const struct envd_file *files, size_t n, struct error *err)
{
	for (size_t i = 0; i < n; i++)
		tell("place %s/%s %o %u:%u\n", path, files[i].path, (unsigned)files[i].mode, (unsigned)files[i].uid, (unsigned)files[i].gid);
	return 0;
}

/* What stands in the box as an archive: three bytes. */
static int left;

int envd_download_open(const struct envd *e, const char *path, struct envd_download **ret, struct error *err)
{
	tell("keep %s\n", path);
	left = 3;
	return 0;
}

ssize_t envd_download_read(struct envd_download *d, void *to, size_t n, struct error *err)
{
	memset(to, 'x', 1);
	return left-- > 0 ? 1 : 0;
}

void envd_download_close(struct envd_download *d)
{
}

int envd_upload_open(const struct envd *e, const char *path, struct envd_upload **ret, struct error *err)
{
	tell("put back %s ", path);
	return 0;
}

int envd_upload_write(struct envd_upload *u, const void *p, size_t n, struct error *err)
{
	tell("%.*s", (int)n, (const char *)p);
	return 0;
}

int envd_upload_finish(struct envd_upload *u, struct error *err)
{
	tell("\n");
	return 0;
}

void envd_upload_abort(struct envd_upload *u)
{
}

int envd_read_file(const struct envd *e, const char *path, size_t max, struct buf *to, struct error *err)
{
	return buf_add_c(to, strstr(path, "passwd") ? "root:x:0:0::/root:/bin/sh\napp:x:7:8::/:/bin/sh\n" : "root:x:0:\napps:x:8:\nother:x:9:\n");
}

static bool is_context(int fd)
{
	struct stat a, b;
	return fstat(fd, &a) == 0 && fstat(context, &b) == 0 && a.st_ino == b.st_ino;
}

int copy_into(const struct envd *to, const struct copy *c, struct copy_done *ret, struct error *err)
{
	tell("copy");
	for (const char *const *s = c->sources; *s; s++)
		tell(" %s", **s ? *s : "(all)");
	tell(" to %s", c->dest);
	if (c->owner)
		tell(" owner=%s", c->owner);
	if (c->mode >= 0)
		tell(" mode=%lo", (unsigned long)c->mode);
	if (c->keep_owner)
		tell(" keep");
	if (c->from)
		tell(" from box");
	else if (!is_context(c->fd))
		tell(" from memory");
	if (c->exclude)
		tell(" but%s%s", c->exclude(c->arg, STR("src/a.o")) ? " src/a.o" : "", c->exclude(c->arg, STR("src/a.c")) ? " src/a.c" : "");
	tell("\n");
	*ret = (struct copy_done){0};
	return 0;
}

int ask_open_file(struct ask *a, const char *hash, uint64_t *ret_size, struct error *err)
{
	return dup(context);
}

int ask_new_file(struct ask *a, uint64_t size, uint64_t *ret_number, int *ret_fd, struct error *err)
{
	*ret_fd = memfd_create("new", MFD_CLOEXEC);
	return 0;
}

/* ---- the context ---- */

static void add_entry(struct archive *a, const char *path, mode_t mode, const char *text, size_t n)
{
	struct archive_entry *e = archive_entry_new();
	archive_entry_set_pathname(e, path);
	archive_entry_set_mode(e, mode);
	if ((mode & AE_IFMT) == AE_IFLNK)
		archive_entry_set_symlink(e, text);
	else
		archive_entry_set_size(e, (la_int64_t)n);
	assert_int_equal(archive_write_header(a, e), ARCHIVE_OK);
	if ((mode & AE_IFMT) == AE_IFREG && n)
		assert_int_equal(archive_write_data(a, text, n), n);
	archive_entry_free(e);
}

static void make_context(const char *unrelated)
{
	char tar[4096];
	size_t n = 0;
	struct archive *inner = archive_write_new();
	archive_write_set_format_ustar(inner);
	archive_write_add_filter_gzip(inner);
	archive_write_set_bytes_in_last_block(inner, 1);
	assert_int_equal(archive_write_open_memory(inner, tar, sizeof(tar), &n), ARCHIVE_OK);
	add_entry(inner, "in", AE_IFREG | 0644, "x", 1);
	archive_write_close(inner);
	archive_write_free(inner);

	if (context >= 0)
		close(context);
	context = memfd_create("context", MFD_CLOEXEC);
	struct archive *a = archive_write_new();
	archive_write_set_format_pax_restricted(a);
	assert_int_equal(archive_write_open_fd(a, context), ARCHIVE_OK);
	add_entry(a, "Makefile", AE_IFREG | 0644, "all:", 4);
	add_entry(a, "link", AE_IFLNK | 0777, "src/a.c", 0);
	add_entry(a, "dirlink", AE_IFLNK | 0777, "/src", 0);
	add_entry(a, "loop", AE_IFLNK | 0777, "loop", 0);
	add_entry(a, "src", AE_IFDIR | 0755, NULL, 0);
	add_entry(a, "src/a.c", AE_IFREG | 0644, "a", 1);
	add_entry(a, "src/a.o", AE_IFREG | 0644, "o", 1);
	add_entry(a, "src/sub", AE_IFDIR | 0755, NULL, 0);
	add_entry(a, "src/sub/b.c", AE_IFREG | 0644, "b", 1);
	add_entry(a, "unrelated", AE_IFREG | 0644, unrelated, strlen(unrelated));
	add_entry(a, "files.tar.gz", AE_IFREG | 0644, tar, n);
	add_entry(a, "fake.tar.gz", AE_IFREG | 0644, "\x1f\x8bno", 4);
	archive_write_close(a);
	archive_write_free(a);
}

/* ---- a build ---- */

static int build(const char *text, const char *more, struct build_result *result, struct error *err)
{
	static struct options options;
	struct source_env sources = {.options = &options, .architecture = "amd64", .variant = ""};
	struct build b = {.options = &options, .sources = &sources};
	struct build_spec spec = {0};
	cleanup_json json_t *j = json_pack("{s:s,s:{s:s,s:s}}", "kind", "image", "dockerfile", "text", text, "context",
		"0000000000000000000000000000000000000000000000000000000000000000"), *add = json_loads(more, 0, NULL);
	json_object_update(json_object_get(j, "dockerfile"), add);
	cleanup_free char *whole = json_dumps(j, 0);
	buf_clear(&told);
	buf_clear(&logged);
	assert_int_equal(spec_parse(str_of(whole), &spec, err), 0);
	b.spec = &spec;
	assert_int_equal(build_config_init(&result->config), 0);
	int r = dockerfile_build(&b, result, err);
	spec_done(&spec);
	return r;
}

/* What the engine was asked for by a build of nothing that is cached. */
static void check_with(const char *text, const char *more, const char *want)
{
	struct error err = {0};
	struct build_result result = {0};
	map_done(&cached);
	cached = MAP_INIT;
	if (build(text, more, &result, &err) < 0)
		fail_msg("%s\n%s", text, err.message);
	if (!str_is(buf_str(&told), want))
		fail_msg("%s\nis:\n%s\nnot:\n%s", text, buf_cstr(&told), want);
	assert_true(result.service);
	build_config_done(&result.config);
}

static void check(const char *text, const char *want)
{
	check_with(text, "{}", want);
}

static void fails_with(const char *text, const char *more, int status, const char *message)
{
	struct error err = {0};
	struct build_result result = {0};
	if (build(text, more, &result, &err) == 0)
		fail_msg("%s: built", text);
	if (!strstr(err.message, message) || err.status != status)
		fail_msg("%s: %d %s", text, err.status, err.message);
	build_config_done(&result.config);
}

static void commands_run_with_what_was_said_before(void **state)
{
	check("FROM base\nRUN a b\nRUN [\"c\", \"d e\"]\n", "image base\nrun [/bin/sh] [-c] [a b] user=root cwd=/\nrun [c] [d e] user=root cwd=/\n");
	check("FROM app\nRUN x\n", "image app\nrun [/bin/sh] [-c] [x] user=app cwd=/app FROM_APP=yes\n");
	check("FROM base\nSHELL [\"/bin/bash\", \"-o\", \"pipefail\", \"-c\"]\nUSER app:apps\nWORKDIR /a\nWORKDIR b\nENV A=1 B=$A\nENV C=${A}2\nRUN x $A\n",
		"image base\nmkdir /a\nmkdir /a/b\nrun [/bin/bash] [-o] [pipefail] [-c] [x $A] user=app cwd=/a/b A=1 B= C=12\n");
	check("FROM base\nWORKDIR /there\nRUN x\n", "image base\nrun [/bin/sh] [-c] [x] user=root cwd=/there\n");
	check("FROM base\nWORKDIR /there\n", "image base\nnothing\n");
	check("FROM base\nVOLUME /data\n", "image base\nmkdir /data\n");
	check("FROM base\nRUN <<EOF\na\nb\nEOF\nRUN cat <<A <<-B >x\na\nA\n\tb\n\tB\n",
		"image base\nrun [/bin/sh] [-c] [a\nb\n] user=root cwd=/\nrun [/bin/sh] [-c] [cat <<A <<-B >x\na\nA\n\tb\nB\n] user=root cwd=/\n");
}

static void arguments_and_variables(void **state)
{
	check("ARG V=1\nARG W=$V.0\nFROM base:$W\nARG V\nARG X=${V}x\nRUN a\n", "image base:1.0\nrun [/bin/sh] [-c] [a] user=root cwd=/ V=1 X=1x\n");
	check_with("ARG V=1\nFROM base:$V\nARG V\nARG U\nRUN a\n", "{\"args\":{\"V\":\"2\"}}", "image base:2\nrun [/bin/sh] [-c] [a] user=root cwd=/ V=2\n");
	/* ENV goes before ARG; an ARG ends with its stage. */
	check_with("FROM base AS a\nARG V=1\nENV V=env\nRUN a\nFROM a\nRUN b\n", "{\"args\":{\"V\":\"2\"}}",
		"image base\nrun [/bin/sh] [-c] [a] user=root cwd=/ V=env\nrun [/bin/sh] [-c] [b] user=root cwd=/ V=env\n");
	check("FROM base AS a\nARG V=1\nFROM a\nRUN b $V\n", "image base\nrun [/bin/sh] [-c] [b $V] user=root cwd=/\n");
	check("FROM --platform=$BUILDPLATFORM base\nARG TARGETARCH\nRUN a\n", "image base\nrun [/bin/sh] [-c] [a] user=root cwd=/ TARGETARCH=amd64\n");
	check_with("FROM base\nRUN a\n", "{\"args\":{\"http_proxy\":\"p\"}}", "image base\nrun [/bin/sh] [-c] [a] user=root cwd=/ http_proxy=p\n");
	fails_with("FROM base:$NO\n", "{}", 400, "Dockerfile:1: FROM base:$NO: NO is not set");
	fails_with("ARG A\nFROM $A\n", "{}", 400, "A is not set");
	fails_with("FROM --platform=linux/s390x base\n", "{}", 501, "linux/s390x");
	fails_with("FROM base\nWORKDIR $NO\n", "{}", 400, "Dockerfile:2: WORKDIR");
	struct error err = {0};
	struct build_result result = {0};
	assert_int_equal(build("FROM base\n", "{\"args\":{\"TYPO\":\"1\"}}", &result, &err), 0);
	assert_non_null(strstr(buf_cstr(&logged), "nothing asked for the build argument TYPO"));
	build_config_done(&result.config);
}

static void only_needed_stages_are_built(void **state)
{
	const char *text = "FROM base AS one\nRUN one\nFROM gone AS two\nRUN two\nFROM scratch AS three\nCOPY --from=one /x /y\nFROM three AS four\nCOPY --from=0 a /b/\n";
	check(text, "image base\nrun [/bin/sh] [-c] [one] user=root cwd=/\nscratch\nopen copy /x to /y from box\nopen copy /a to /b/ from box\n");
	check_with(text, "{\"target\":\"ONE\"}", "image base\nrun [/bin/sh] [-c] [one] user=root cwd=/\n");
	check_with(text, "{\"target\":\"0\"}", "image base\nrun [/bin/sh] [-c] [one] user=root cwd=/\n");
	fails_with(text, "{\"target\":\"five\"}", 400, "there is no stage \"five\"");
	fails_with(text, "{\"target\":\"two\"}", 404, "Dockerfile:3: FROM: no such image");
	check("FROM base\nCOPY --from=app /a /b\nCOPY --from=app /c /d\n", "image base\nimage app\nopen copy /a to /b from box\nopen copy /c to /d from box\n");
	fails_with("FROM base AS a\nCOPY --from=b /x /y\nFROM base AS b\nFROM a\n", "{}", 400, "Dockerfile:2: --from=b: that stage is not an earlier one");
	fails_with("FROM base\nCOPY --from=3 /x /y\n", "{}", 400, "no earlier stage of that number");
	fails_with("FROM base\nCOPY --from=scratch /x /y\n", "{}", 400, "no files in it");
	check_with("FROM reg.example:5000/x\n", "{\"registries\":{\"REG.example:5000\":{\"username\":\"me\",\"password\":\"p\"}}}", "image reg.example:5000/x as me\n");
}

static void copies_choose_from_the_context(void **state)
{
	make_context("1");
	check("FROM base\nCOPY . /x\n", "image base\ncopy (all) to /x\n");
	check("FROM base\nWORKDIR /w\nCOPY src/ ./\n", "image base\nmkdir /w\ncopy src to /w/\n");
	check("FROM base\nCOPY Makefile src/*.c d/\n", "image base\ncopy Makefile src/a.c to /d/\n");
	check("FROM base\nCOPY sr? /d\n", "image base\ncopy src to /d\n");
	check("FROM base\nCOPY /Makefile ../../d/\n", "image base\ncopy Makefile to /d/\n");
	check("FROM base\nARG A=Make\nCOPY --chown=${A}:7 --chmod=0755 ${A}file /d\n", "image base\ncopy Makefile to /d owner=Make:7 mode=755\n");
	check("FROM base\nCOPY [\"Makefile\", \"/a b\"]\n", "image base\ncopy Makefile to /a b\n");
	check("FROM base\nCOPY link /d/\nCOPY link /new\nCOPY link /there\nCOPY dirlink /e/\n",
		"image base\ncopy src/a.c to /d/link\ncopy src/a.c to /new\ncopy src/a.c to /there/link\ncopy src to /e/\n");
	check("FROM base\nCOPY --parents src/sub/*.c ./src/./sub /d/\n", "image base\ncopy src/sub/b.c to /d/src/sub/b.c\ncopy src/sub to /d/sub/\n");
	check("FROM base\nCOPY --exclude=*.o src /d\n", "image base\ncopy src to /d but src/a.o\n");
	check("FROM base\nCOPY none* /d\n", "image base\nnothing\n");
	check("FROM base\nCOPY <<EOF <<'x' Makefile /d/\n$PATH\nEOF\n$PATH\nx\n", "image base\ncopy EOF x to /d/ from memory\ncopy Makefile to /d/\n");
	fails_with("FROM base\nCOPY none /d\n", "{}", 400, "Dockerfile:2: COPY: \"none\" is not in the context");
	fails_with("FROM base\nCOPY loop /d\n", "{}", 400, "too many symbolic links");
	fails_with("FROM base\nCOPY Makefile src /d\n", "{}", 400, "must be a directory and end in /");
	fails_with("FROM base\nCOPY --chmod=u+x Makefile /d\n", "{}", 501, "takes an octal number");
	fails_with("FROM base\nARG U=http://x\nADD $U/y /d\n", "{}", 501, "Dockerfile:3: ADD: a URL");
	fails_with("FROM base\nCOPY Makefile /d\n", "{\"context\":null}", 400, "was given no files");
}

static void add_unpacks_archives(void **state)
{
	make_context("1");
	check("FROM base\nADD files.tar.gz /d\n", "image base\ncopy (all) to /d/ keep from memory\n");
	check("FROM base\nADD --chown=1:2 files.tar.gz /d/\n", "image base\ncopy (all) to /d/ owner=1:2 from memory\n");
	check("FROM base\nADD fake.tar.gz Makefile files.tar.gz /d/\n", "image base\ncopy (all) to /d/ keep from memory\ncopy fake.tar.gz Makefile to /d/\n");
	check("FROM base\nADD --unpack=false files.tar.gz /d\n", "image base\ncopy files.tar.gz to /d\n");
	check("FROM base\nCOPY files.tar.gz /d\n", "image base\ncopy files.tar.gz to /d\n");
}

static void built_again(const char *text, const char *more, const char *want)
{
	struct error err = {0};
	struct build_result result = {0};
	assert_int_equal(build(text, more, &result, &err), 0);
	if (!str_is(buf_str(&told), want))
		fail_msg("%s\nis:\n%s\nnot:\n%s", text, buf_cstr(&told), want);
	build_config_done(&result.config);
}

static void mounts_are_there_for_one_command(void **state)
{
	make_context("1");
	check("FROM base\nWORKDIR /w\nRUN --mount=type=cache,target=/c,id=x,sharing=locked,uid=1,mode=0700 --mount=source=Makefile,target=m --mount=type=tmpfs,dst=/there a\n",
		"image base\nmkdir /w\nplace //c 40700 1:0\ncopy Makefile to /w/m\nkeep /there\nremove /there\nplace //there 41777 0:0\n"
		"run [/bin/sh] [-c] [a] user=root cwd=/w\nremove /there\nput back /there xxx\nremove /w/m\nremove /c\n");
	check("FROM base AS one\nFROM base\nARG D=/d\nRUN --mount=from=one,source=/s,target=$D,rw a\n",
		"image base\nopen copy /s to /d from box\nrun [/bin/sh] [-c] [a] user=root cwd=/ D=/d\nremove /d\n");
	/* The file that stands at /file, and all of the context. */
	check("FROM base\nWORKDIR /w\nRUN --mount=target=. --mount=source=link,target=/file b\n",
		"image base\nmkdir /w\ncopy (all) to /w\nkeep /file\nremove /file\ncopy src/a.c to /file\nrun [/bin/sh] [-c] [b] user=root cwd=/w\nremove /file\nput back / xxx\nremove /w\n");
	fails_with("FROM base\nRUN --mount=target=/proc/x a\n", "{}", 501, "Dockerfile:2: RUN: --mount at /proc/x is not supported");
	fails_with("FROM base\nRUN --mount=target=/x,source=none a\n", "{}", 400, "\"none\" is not in the context");
	/* They are part of what the layer follows from. */
	check("FROM base\nRUN --mount=source=unrelated,target=/u a\n", "image base\ncopy unrelated to /u\nrun [/bin/sh] [-c] [a] user=root cwd=/\nremove /u\n");
	built_again("FROM base\nRUN --mount=source=unrelated,target=/u a\n", "{}", "image base\ncached\n");
	make_context("2");
	built_again("FROM base\nRUN --mount=source=unrelated,target=/u a\n", "{}", "image base\ncopy unrelated to /u\nrun [/bin/sh] [-c] [a] user=root cwd=/\nremove /u\n");
	built_again("FROM base\nRUN a\n", "{}", "image base\nrun [/bin/sh] [-c] [a] user=root cwd=/\n");
}

static void what_has_not_changed_is_cached(void **state)
{
	const char *text = "FROM base\nARG V=1\nRUN a\nCOPY src /d\nRUN b\n";
	make_context("1");
	check(text, "image base\nrun [/bin/sh] [-c] [a] user=root cwd=/ V=1\ncopy src to /d\nrun [/bin/sh] [-c] [b] user=root cwd=/ V=1\n");
	built_again(text, "{}", "image base\ncached\ncached\ncached\n");
	/* A file that nothing copies. */
	make_context("2");
	built_again(text, "{}", "image base\ncached\ncached\ncached\n");
	/* A comment, and where things stand. */
	built_again("# x\n\nFROM base\nARG V=1\nRUN a\nCOPY src /d\nRUN b\n", "{}", "image base\ncached\ncached\ncached\n");
	built_again(text, "{\"args\":{\"https_proxy\":\"x\"}}", "image base\ncached\ncached\ncached\n");
	/* Another argument, in scope: everything behind it. */
	built_again(text, "{\"args\":{\"V\":\"2\"}}", "image base\nrun [/bin/sh] [-c] [a] user=root cwd=/ V=2\ncopy src to /d\nrun [/bin/sh] [-c] [b] user=root cwd=/ V=2\n");
	built_again("FROM base\nARG V=1\nRUN a\nCOPY src /e\n", "{}", "image base\ncached\ncopy src to /e\n");
	built_again("FROM base\nARG V=1\nRUN a\nCOPY --exclude=*.o src /d\n", "{}", "image base\ncached\ncopy src to /d but src/a.o\n");
	check("FROM base\nCOPY unrelated /d\n", "image base\ncopy unrelated to /d\n");
	make_context("3");
	built_again("FROM base\nCOPY unrelated /d\n", "{}", "image base\ncopy unrelated to /d\n");
}

static void a_failure_names_line_and_command(void **state)
{
	fails_with("FROM base\n\nRUN fail it\n", "{}", 400, "Dockerfile:3: RUN: fail it: exit status 3");
	fails_with("FROM base\nRUN <<EOF\n#!/bin/python\nEOF\n", "{}", 501, "Dockerfile:2: RUN: a heredoc that begins with #!");
	fails_with("FROM base\nUSER app:other\nRUN x\n", "{}", 501, "USER app:other is not supported");
	fails_with("FROM base\nWORKDIR /file\nRUN x\n", "{}", 400, "/file is there, and no directory");
	fails_with("FROM base\nEXPOSE http\n", "{}", 400, "Dockerfile:2: EXPOSE: \"http\" is no port");
	fails_with("FROM base\nRUNN x\n", "{}", 400, "Dockerfile:2: unknown instruction \"RUNN\" (did you mean RUN?)");
}

static void check_list(char *const *list, const char *want)
{
	cleanup_buf struct buf all = BUF_INIT;
	for (; list && *list; list++)
		buf_addf(&all, "%s|", *list);
	assert_string_equal(buf_cstr(&all) ? buf_cstr(&all) : "", want);
}

static void the_configuration_is_kept(void **state)
{
	struct error err = {0};
	struct build_result r = {0};
	assert_int_equal(build("FROM app\nENTRYPOINT exec /new\nLABEL a=b \"c d\"=e\nLABEL a=f\nEXPOSE 80 90-91/udp 80\nSTOPSIGNAL SIGINT\nUSER 1000\nWORKDIR x\nENV Y=z\n"
		"HEALTHCHECK CMD x\n", "{}", &r, &err), 0);
	check_list(r.config.entrypoint, "/bin/sh|-c|exec /new|");
	check_list(r.config.cmd, ""); /* it was the base's */
	check_list(r.config.labels, "a|f|c d|e|");
	check_list(r.config.exposed_ports, "80/tcp|90-91/udp|");
	assert_string_equal(r.config.stop_signal, "SIGINT");
	assert_string_equal(r.config.user, "1000");
	assert_string_equal(r.config.workdir, "/app/x");
	assert_string_equal(env_get(&r.config.env, STR("Y")), "z");
	assert_string_equal(env_get(&r.config.env, STR("FROM_APP")), "yes");
	assert_non_null(strstr(buf_cstr(&logged), "HEALTHCHECK is not used"));
	build_config_done(&r.config);
	assert_int_equal(build("FROM app\nCMD [\"a\"]\nENTRYPOINT [\"b\"]\n", "{}", &r, &err), 0);
	check_list(r.config.cmd, "a|");
	check_list(r.config.entrypoint, "b|");
	build_config_done(&r.config);
	assert_int_equal(build("FROM app\nCMD x\n", "{}", &r, &err), 0);
	check_list(r.config.entrypoint, "/entry|");
	check_list(r.config.cmd, "/bin/sh|-c|x|");
	build_config_done(&r.config);
	/* A shell without a terminal ends at once: it is no service. */
	assert_true(r.service);
	assert_int_equal(build("FROM base\nCMD [\"/bin/bash\"]\n", "{}", &r, &err), 0);
	assert_false(r.service);
	build_config_done(&r.config);
	assert_int_equal(build("FROM base\nCMD [\"bash\", \"x\"]\n", "{}", &r, &err), 0);
	assert_true(r.service);
	build_config_done(&r.config);
}

static void triggers_run_in_who_builds_on_it(void **state)
{
	check("FROM trigger\nRUN x\n", "image trigger\nrun [/bin/sh] [-c] [triggered] user=root cwd=/ TRIGGERED=1\nrun [/bin/sh] [-c] [x] user=root cwd=/ TRIGGERED=1\n");
	check("FROM base AS a\nONBUILD RUN later\nRUN now\nFROM a AS b\nFROM b\n",
		"image base\nrun [/bin/sh] [-c] [now] user=root cwd=/\nrun [/bin/sh] [-c] [later] user=root cwd=/\n");
}

static int clean(void **state)
{
	map_done(&cached);
	buf_done(&told);
	buf_done(&logged);
	return 0;
}

int main(void)
{
	static const struct CMUnitTest tests[] = {
		cmocka_unit_test(commands_run_with_what_was_said_before),
		cmocka_unit_test(arguments_and_variables),
		cmocka_unit_test(only_needed_stages_are_built),
		cmocka_unit_test(copies_choose_from_the_context),
		cmocka_unit_test(add_unpacks_archives),
		cmocka_unit_test(mounts_are_there_for_one_command),
		cmocka_unit_test(what_has_not_changed_is_cached),
		cmocka_unit_test(a_failure_names_line_and_command),
		cmocka_unit_test(the_configuration_is_kept),
		cmocka_unit_test(triggers_run_in_who_builds_on_it),
	};
	return cmocka_run_group_tests(tests, NULL, clean);
}
