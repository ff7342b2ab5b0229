#include "node/processes.h"
#include "base/buf.h"
#include "base/cleanup.h"
#include "base/fd.h"
#include "base/str.h"

#include <dirent.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/stat.h>
#include <unistd.h>

static int read_text(pid_t pid, const char *file, struct buf *to)
{
	char path[128];
	snprintf(path, sizeof(path), "/proc/%d/%s", (int)pid, file);
	return file_read(AT_FDCWD, path, 65536, to);
}

static uint64_t resident(pid_t pid)
{
	cleanup_buf struct buf text = BUF_INIT;
	unsigned long long pages = 0;
	if (read_text(pid, "statm", &text) == 0 && buf_cstr(&text))
		sscanf(buf_cstr(&text), "%*u %llu", &pages);
	return pages * (uint64_t)sysconf(_SC_PAGESIZE);
}

static uint64_t open_files(pid_t pid)
{
	char path[128];
	struct stat st;
	uint64_t n = 0;
	snprintf(path, sizeof(path), "/proc/%d/fd", (int)pid);
	/* Since Linux 6.2 the size says it. */
	if (stat(path, &st) == 0 && st.st_size > 0)
		return (uint64_t)st.st_size;
	DIR *d = opendir(path);
	for (struct dirent *e; d && (e = readdir(d));)
		n += e->d_name[0] != '.';
	if (d)
		closedir(d);
	return n;
}

/* The second word of the title, "cubicle node". */
static void take(struct node_figures *f, pid_t pid)
{
	cleanup_buf struct buf title = BUF_INIT;
	struct str program, name, rest;
	if (read_text(pid, "cmdline", &title) < 0 || !str_cut(buf_str(&title), '\0', &program, &name))
		return;
	str_cut(name, '\0', &name, &rest);
	const struct {
		const char *name;
		uint64_t *memory, *files;
	} ours[] = {{"serve", &f->serve_memory, &f->serve_files}, {"node", &f->node_memory, &f->node_files}, {"front", &f->front_memory, &f->front_files},
		{"egress", &f->egress_memory, &f->egress_files}, {"tools", &f->tools_memory, &f->tools_files}};
	for (size_t i = 0; i < ARRAY_SIZE(ours); i++)
		if (str_is(name, ours[i].name)) {
			*ours[i].memory = resident(pid);
			*ours[i].files = open_files(pid);
		}
}

void processes_read(struct node_figures *f)
{
	pid_t serve = getppid();
	char file[64];
	cleanup_buf struct buf children = BUF_INIT;
	take(f, serve);
	snprintf(file, sizeof(file), "task/%d/children", (int)serve);
	if (read_text(serve, file, &children) < 0 || !buf_cstr(&children))
		return;
	for (char *at = (char *)(uintptr_t)buf_cstr(&children), *end; *at; at = end) {
		pid_t pid = (pid_t)strtol(at, &end, 10);
		if (end == at)
			break;
		take(f, pid);
	}
}
