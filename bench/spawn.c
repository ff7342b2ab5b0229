/*
 * Times a command from fork to the first byte of its output, CONCURRENCY at once, ROUNDS times: how peers (bwrap, runc, ...) are measured beside us.
 *
 *   spawn CONCURRENCY ROUNDS COMMAND [ARGUMENT...]     "%d" in an argument becomes a number of its own for each run, "%o" a descriptor that is
 *                                                       the output's, for a program that wants it elsewhere than at 1
 */
#include <fcntl.h>
#include <pthread.h>
#include <spawn.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

enum { OUTPUT = 63 };

extern char **environ;

static char **command;
static int rounds, count;
static int next_number;
static pthread_barrier_t gate;

struct runner {
	pthread_t thread;
	double *ms;
	int ok, failed;
};

static double now_ms(void)
{
	struct timespec t;
	clock_gettime(CLOCK_MONOTONIC, &t);
	return (double)t.tv_sec * 1e3 + (double)t.tv_nsec / 1e6;
}

static void once(struct runner *me)
{
	char *argv[64], numbered[64][256];
	bool elsewhere = false;
	int pipe_fds[2], status = 1, number = __atomic_add_fetch(&next_number, 1, __ATOMIC_SEQ_CST);
	for (int i = 0; i <= count; i++) {
		argv[i] = command[i];
		char *mark = command[i] ? strstr(command[i], "%d") : NULL, *output = command[i] ? strstr(command[i], "%o") : NULL;
		elsewhere |= output != NULL;
		if (mark || output) {
			char *at = mark ? mark : output;
			snprintf(numbered[i], sizeof(numbered[i]), "%.*s%d%s", (int)(at - command[i]), command[i], mark ? number : OUTPUT, at + 2);
			argv[i] = numbered[i];
		}
	}
	if (pipe2(pipe_fds, O_CLOEXEC) < 0)
		abort();
	posix_spawn_file_actions_t actions;
	posix_spawn_file_actions_init(&actions);
	posix_spawn_file_actions_addopen(&actions, 0, "/dev/null", O_RDONLY, 0);
	posix_spawn_file_actions_adddup2(&actions, pipe_fds[1], 1);
	if (elsewhere)
		posix_spawn_file_actions_adddup2(&actions, pipe_fds[1], OUTPUT);
	pid_t pid;
	double start = now_ms();
	int r = posix_spawnp(&pid, argv[0], &actions, NULL, argv, environ);
	close(pipe_fds[1]);
	char bytes[256];
	ssize_t n = r == 0 ? read(pipe_fds[0], bytes, sizeof(bytes)) : 0;
	double end = now_ms();
	while (n > 0 && read(pipe_fds[0], bytes, sizeof(bytes)) > 0)
		;
	if (r == 0)
		waitpid(pid, &status, 0);
	close(pipe_fds[0]);
	posix_spawn_file_actions_destroy(&actions);
	if (n > 0 && status == 0)
		me->ms[me->ok++] = end - start;
	else
		me->failed++;
}

static void *run(void *arg)
{
	pthread_barrier_wait(&gate);
	for (int i = 0; i < rounds; i++)
		once(arg);
	return NULL;
}

int main(int argc, char **argv)
{
	if (argc < 4 || argc > 60)
		return 2;
	int n = atoi(argv[1]), ok = 0, failed = 0;
	rounds = atoi(argv[2]);
	command = argv + 3;
	count = argc - 3;
	struct runner *runners = calloc((size_t)n, sizeof(*runners));
	pthread_barrier_init(&gate, NULL, (unsigned)n);
	for (int i = 0; i < n; i++) {
		runners[i].ms = calloc((size_t)rounds, sizeof(double));
		if (pthread_create(&runners[i].thread, NULL, run, &runners[i]) != 0)
			abort();
	}
	printf("{\"samples_ms\":[");
	for (int i = 0; i < n; i++) {
		pthread_join(runners[i].thread, NULL);
		for (int j = 0; j < runners[i].ok; j++)
			printf(ok++ ? ",%.3f" : "%.3f", runners[i].ms[j]);
		failed += runners[i].failed;
	}
	printf("],\"ok\":%d,\"failed\":%d}\n", ok, failed);
	return failed ? 1 : 0;
}
