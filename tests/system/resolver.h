/* For the tests of the name service: a resolver that behaves as the name asked for says, and a client inside a namespace. */
#ifndef CUBICLE_TESTS_SYSTEM_RESOLVER_H
#define CUBICLE_TESTS_SYSTEM_RESOLVER_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <sys/types.h>

/*
 * Answers on address:53 over UDP and TCP in the namespace. The first label of the name decides: "nx" NXDOMAIN; "silent" nothing; "fail" SERVFAIL; "big" TC over UDP and 4000 bytes over
 * TCP; "long" 1000 bytes over UDP whatever the client takes; "evil" a wrong id, a wrong question, then the answer; anything else one A record, 198.51.100.77.
 */
pid_t start_resolver(int netns, const char *address);

struct reply {
	int error; /* negative errno, or 0 */
	unsigned rcode, answers;
	bool truncated, same_id;
	size_t size;
};

/* Asks 127.0.0.53 inside the namespace for the A records of a name; edns = 0: without. Waits at most 8 s. */
struct reply resolve(int netns, const char *name, bool tcp, unsigned edns);

/* Message builder of the client: writes to[512], returns the length. */
size_t build_query(unsigned char *to, uint16_t id, const char *name, unsigned edns);
/* A socket inside the namespace, connected to 127.0.0.53:53. */
int name_socket(int netns, bool tcp);
/* Reads one answer (of a stream: framed) within ms: its length, 0 at the end of the stream, or -errno. */
ssize_t read_answer(int fd, bool tcp, unsigned char *to, size_t size, int ms);

#endif
