/* Runs a fuzz target over all files of the directories named: how the normal tests keep what fuzzing has found. */
#include "fuzz.h"

#include "base/fd.h"

#include <fcntl.h>

static unsigned replay(const char *path)
{
	unsigned n = 0;
	cleanup_dir DIR *dir = opendir(path);
	if (!dir) {
		fprintf(stderr, "%s: %s\n", path, strerror(errno));
		exit(1);
	}
	for (struct dirent *e; (e = readdir(dir));) {
		cleanup_buf struct buf bytes = BUF_INIT;
		if (e->d_name[0] == '.')
			continue;
		int r = file_read(dirfd(dir), e->d_name, 16 << 20, &bytes);
		if (r < 0) {
			fprintf(stderr, "%s/%s: %s\n", path, e->d_name, strerror(-r));
			exit(1);
		}
		fprintf(stderr, "%s/%s\n", path, e->d_name);
		/* In memory of its exact size, so that the sanitizers see a read beyond it. */
		size_t size = buf_len(&bytes);
		cleanup_free char *copy = malloc(size ? size : 1);
		if (!copy)
			exit(1);
		if (size)
			memcpy(copy, buf_str(&bytes).p, size);
		fuzz_one(str_n(copy, size));
		n++;
	}
	return n;
}

int main(int argc, char **argv)
{
	unsigned n = 0;
	for (int i = 1; i < argc; i++)
		n += replay(argv[i]);
	if (n == 0) {
		fprintf(stderr, "no files: nothing was tested\n");
		return 1;
	}
	return 0;
}
