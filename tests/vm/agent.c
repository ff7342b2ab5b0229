/*
 * What listens in the guest of a microVM in the tests of the monitor alone, on the ports of src/vmm/layout.h: a message on the control port is a script for the shell and is answered with its
 * status and what it said; one that begins with a NUL comes back as it is. A connection on the port for connections comes back byte by byte, one for port 1 inside is refused.
 */
#define _GNU_SOURCE
#include <err.h>
#include <errno.h>
#include <linux/vm_sockets.h>
#include <signal.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <sys/wait.h>
#include <unistd.h>

enum { MESSAGE_MAX = 64 * 1024 };

static int vsock(int type)
{
	int s = socket(AF_VSOCK, type | SOCK_CLOEXEC, 0);
	if (s < 0)
		err(1, "socket");
	return s;
}

static int listener(int type, unsigned port)
{
	struct sockaddr_vm a = {.svm_family = AF_VSOCK, .svm_cid = VMADDR_CID_ANY, .svm_port = port};
	int s = vsock(type);
	if (bind(s, (struct sockaddr *)&a, sizeof a) < 0 || listen(s, 128) < 0)
		err(1, "listen on %u", port);
	return s;
}

static void serve_control(int s)
{
	static char message[MESSAGE_MAX + 1];
	ssize_t n;
	while ((n = recv(s, message, MESSAGE_MAX, 0)) > 0) {
		if (message[0]) {
			message[n] = 0;
			FILE *p = popen(message, "r");
			if (!p)
				err(1, "popen");
			size_t got = fread(message + 4, 1, MESSAGE_MAX - 4, p);
			int32_t status = pclose(p);
			memcpy(message, &status, 4);
			n = (ssize_t)got + 4;
		}
		if (send(s, message, (size_t)n, 0) != n)
			err(1, "send");
	}
}

static void write_all(int s, const char *data, size_t n)
{
	while (n) {
		ssize_t w = write(s, data, n);
		if (w <= 0)
			exit(1);
		data += w;
		n -= (size_t)w;
	}
}

static void serve_stream(int s)
{
	unsigned char port[2], answer = 0;
	static char data[MESSAGE_MAX];
	if (recv(s, port, 2, MSG_WAITALL) != 2)
		return;
	if (port[0] == 1 && !port[1])
		answer = ECONNREFUSED;
	write_all(s, (char *)&answer, 1);
	ssize_t n;
	while (!answer && (n = read(s, data, sizeof data)) > 0)
		write_all(s, data, (size_t)n);
}

static void serve(int listener, void (*one)(int))
{
	if (fork())
		return;
	/* popen() waits for its own children: only the connections' processes are nobody's. */
	for (;;) {
		int s = accept4(listener, NULL, NULL, SOCK_CLOEXEC);
		while (waitpid(-1, NULL, WNOHANG) > 0)
			;
		if (s < 0)
			continue;
		if (!fork()) {
			one(s);
			_exit(0);
		}
		close(s);
	}
}

int main(void)
{
	signal(SIGPIPE, SIG_IGN);
	int control = listener(SOCK_SEQPACKET, 1), stream = listener(SOCK_STREAM, 2);
	serve(control, serve_control);
	serve(stream, serve_stream);
	struct sockaddr_vm host = {.svm_family = AF_VSOCK, .svm_cid = VMADDR_CID_HOST, .svm_port = 1};
	int up = vsock(SOCK_STREAM);
	if (connect(up, (struct sockaddr *)&host, sizeof host) < 0)
		err(1, "connect to the host");
	/* Not CLOEXEC-closed: held for as long as the guest lives. */
	for (;;)
		pause();
}
