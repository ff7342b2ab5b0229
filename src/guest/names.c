#include "guest/names.h"
#include "base/cleanup.h"
#include "base/fd.h"
#include "base/log.h"

#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <sys/stat.h>

static int make_dir(const char *path, mode_t mode)
{
	return mkdir(path, mode) < 0 && errno != EEXIST ? -errno : 0;
}

/* A file of the sandbox's own disk, as people expect it: a plain one that root there may change. A link that the template has in its place goes. Where none can be (the disk
 * is full, a directory is in its place) the sandbox starts without: its owner can get at the files, and mend it. */
static void write_file(const char *path, struct str text)
{
	struct stat st;
	if (lstat(path, &st) == 0 && !S_ISREG(st.st_mode))
		unlink(path);
	cleanup_fd int fd = open(path, O_WRONLY | O_CREAT | O_TRUNC | O_NOFOLLOW | O_NONBLOCK | O_CLOEXEC, 0644);
	int r = fd < 0 ? -errno : fd_write_all(fd, text.p, text.n);
	if (r < 0)
		log_error("%s: %s", path, strerror(-r));
}

/* On the disk, which may be full. A link of the template to what is there is good; one that leads nowhere is replaced. */
static void make_tmp(void)
{
	struct stat st;
	if (stat("/tmp", &st) == 0)
		return;
	if (lstat("/tmp", &st) == 0 && S_ISLNK(st.st_mode))
		unlink("/tmp");
	if (mkdir("/tmp", 01777) == 0)
		chmod("/tmp", 01777);
}

int names_make_places(void)
{
	int r = make_dir("/run/lock", 01777);
	if (r == 0 && chmod("/run/lock", 01777) < 0)
		r = -errno;
	make_tmp();
	return r;
}

void names_touch(void)
{
	static const char *const files[] = {"/etc/hosts", "/etc/hostname", "/etc/resolv.conf", "/etc/machine-id"};
	make_dir("/etc", 0755);
	for (size_t i = 0; i < ARRAY_SIZE(files); i++)
		write_file(files[i], STR(""));
}

static void copy(char *to, size_t size, struct str s)
{
	snprintf(to, size, "%.*s", STR_FMT(s));
}

void names_of(const struct msg_claim *c, struct names *ret)
{
	*ret = (struct names){0};
	copy(ret->hostname, sizeof(ret->hostname), c->hostname);
	copy(ret->machine_id, sizeof(ret->machine_id), c->machine_id);
	copy(ret->nameserver, sizeof(ret->nameserver), c->nameserver);
	if (msg_has(c, claim, address))
		copy(ret->address, sizeof(ret->address), c->address);
}

static void write_hosts(const struct names *n)
{
	char text[256];
	int size = snprintf(text, sizeof(text), "127.0.0.1\tlocalhost\n::1\tlocalhost ip6-localhost ip6-loopback\n%s\t%s\n", n->address[0] ? n->address : "127.0.1.1", n->hostname);
	write_file("/etc/hosts", str_n(text, (size_t)size));
}

static void write_line(const char *path, const char *before, const char *value)
{
	char line[160];
	int n = snprintf(line, sizeof(line), "%s%s\n", before, value);
	write_file(path, str_n(line, (size_t)n));
}

int names_write(const struct names *n)
{
	if (sethostname(n->hostname, strlen(n->hostname)) < 0)
		return -errno;
	make_dir("/etc", 0755);
	write_line("/etc/hostname", "", n->hostname);
	write_line("/etc/resolv.conf", "nameserver ", n->nameserver);
	write_line("/etc/machine-id", "", n->machine_id);
	write_hosts(n);
	return 0;
}
