/*
 * Static helper inside the test template: tries one thing and prints how it went. "count THING [hold]" uses THING up and prints how often it could. "serve" is a service that
 * says who it is to whoever sends a line, ends at "die", and takes 300 MB at "eat". "bomb SECONDS" takes every process that there may be, until it kills its process group.
 * "xattr FILE [VALUE]" sets or prints an attribute of a file. "stuck FILE" is in the middle of writing to the file for ever: out of a pipe that stays empty.
 */
#include <errno.h>
#include <fcntl.h>
#include <signal.h>
#include <linux/aio_abi.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/inotify.h>
#include <sys/ptrace.h>
#include <sys/socket.h>
#include <sys/syscall.h>
#include <sys/xattr.h>
#include <time.h>
#include <unistd.h>

static int one(const char *thing)
{
	aio_context_t context = 0;
	if (strcmp(thing, "inotify") == 0)
		return inotify_init1(0);
	if (strcmp(thing, "pty") == 0)
		return open("/dev/ptmx", O_RDWR | O_NOCTTY);
	if (strcmp(thing, "aio") == 0)
		return (int)syscall(SYS_io_setup, 256, &context);
	if (strcmp(thing, "icmp") == 0)
		return socket(AF_INET, SOCK_DGRAM, 1);
	if (strcmp(thing, "raw") == 0)
		return socket(AF_INET, SOCK_RAW, 1);
	if (strcmp(thing, "packet") == 0)
		return socket(AF_PACKET, SOCK_RAW, 0);
	if (strcmp(thing, "keyctl") == 0)
		return (int)syscall(SYS_keyctl, 0, -3, 0, 0, 0);
	if (strcmp(thing, "attach1") == 0)
		return (int)ptrace(PTRACE_SEIZE, 1, 0, 0);
	if (strcmp(thing, "attach-parent") == 0)
		return (int)ptrace(PTRACE_SEIZE, getppid(), 0, 0);
	if (strcmp(thing, "pidfd-getfd1") == 0)
		return (int)syscall(SYS_pidfd_getfd, syscall(SYS_pidfd_open, 1, 0), 3, 0);
	if (strcmp(thing, "mem1") == 0)
		return open("/proc/1/mem", O_RDONLY);
	errno = EINVAL;
	return -1;
}

static int serve(void)
{
	for (;;) {
		char word[16] = "";
		int c = accept(3, NULL, NULL);
		if (c < 0)
			return 1;
		if (read(c, word, sizeof(word) - 1) > 0 && strncmp(word, "die", 3) == 0)
			return 3;
		if (strncmp(word, "eat", 3) == 0)
			memset(malloc(300 << 20), 1, 300 << 20);
		dprintf(c, "%d %u %s %s\n", getpid(), getuid(), getenv("A") ? getenv("A") : "", getenv("HOME"));
		close(c);
	}
}

static int bomb(int seconds)
{
	for (time_t end = time(NULL) + seconds; time(NULL) < end;) {
		pid_t pid = fork();
		if (pid == 0)
			for (;;)
				pause();
	}
	return kill(0, SIGKILL);
}

static int xattr(const char *file, const char *value)
{
	char text[64];
	ssize_t n;
	if (value)
		return setxattr(file, "user.probe", value, strlen(value), 0) < 0;
	n = getxattr(file, "user.probe", text, sizeof(text));
	printf("%.*s\n", n > 0 ? (int)n : 0, text);
	return n < 0;
}

static int stuck(const char *file)
{
	int pipes[2], fd = open(file, O_WRONLY | O_CREAT, 0644);
	if (fd < 0 || pipe(pipes) < 0)
		return 1;
	printf("stuck\n");
	fflush(stdout);
	close(0), close(1), close(2);
	for (;;)
		splice(pipes[0], NULL, fd, NULL, 65536, 0);
}

int main(int argc, char **argv)
{
	if (argc >= 3 && strcmp(argv[1], "xattr") == 0)
		return xattr(argv[2], argc > 3 ? argv[3] : NULL);
	if (argc == 3 && strcmp(argv[1], "stuck") == 0)
		return stuck(argv[2]);
	if (argc >= 3 && strcmp(argv[1], "count") == 0) {
		int n = 0;
		while (n < 3000 && one(argv[2]) >= 0)
			n++;
		printf("%d\n", n);
		fflush(stdout);
		if (argc > 3) {
			close(0), close(1), close(2); /* or the caller's stream would stay open */
			pause();
		}
		return 0;
	}
	if (argc == 2 && strcmp(argv[1], "serve") == 0)
		return serve();
	if (argc == 3 && strcmp(argv[1], "bomb") == 0)
		return bomb(atoi(argv[2]));
	if (argc != 2)
		return 2;
	if (one(argv[1]) < 0)
		printf("%s\n", strerrorname_np(errno));
	else
		printf("ok\n");
	return 0;
}
