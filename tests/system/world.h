/*
 * A small world for the network tests, made of network namespaces of our own: the test process becomes "the host"; beside it stand an "internet" (203.0.113.2 and 198.51.100.10,
 * behind the host's default route) and a private network (192.168.77.2, 10.9.9.9 and the metadata address 169.254.169.254). The machine's real network is never touched.
 */
#ifndef CUBICLE_TESTS_SYSTEM_WORLD_H
#define CUBICLE_TESTS_SYSTEM_WORLD_H

#include "../unit/unit.h"

#include <netinet/in.h>
#include <sys/types.h>

#define HOST_PUBLIC "203.0.113.1"
#define HOST_LAN "192.168.77.1"
#define INTERNET_ROUTER "203.0.113.2"
#define INTERNET_SERVER "198.51.100.10"
#define LAN_SERVER "192.168.77.2"
#define LAN_OTHER "10.9.9.9"
#define METADATA "169.254.169.254"

/* What sandboxes may ask for beside the internet (option network.private). */
#define PRIVATE_OPEN "10.0.0.0/8,192.168.0.0/16"

enum { SERVICE_PORT = 8080 };

struct place {
	pid_t pid;
	int netns;
};

struct world {
	struct place host, internet, lan;
};

/* Shared with every process of the world. */
struct seen {
	volatile unsigned datagrams;
	volatile uint32_t last_source; /* host byte order */
};
extern struct seen *seen_on_internet;

/* Exits with 77 (skipped) and the reason when it cannot be made here. */
void world_new(struct world *w);
void world_free(struct world *w);

/* Runs a shell command in a namespace (-1: where we are): its exit status. Output is shown only when `loud`. */
int run_in(int netns, const char *command);
/* The same as a root of a user namespace of its own: what a hostile root inside a sandbox is. */
int run_as_guest(int netns, const char *command);
/* Must succeed. */
void must(const char *format, ...) __attribute__((format(printf, 1, 2)));
void must_in(int netns, const char *command);

/* A process that answers every TCP connection and every datagram on the port (all addresses, v4) with the peer's address as text. */
pid_t start_service(int netns, uint16_t port);
/* A process that sends every TCP connection one byte and then one more each 10 ms. */
pid_t start_stream(int netns, uint16_t port);
void stop_process(pid_t pid);

/* Tries all targets at once from inside a namespace, as a guest's root: results[i] = 0 (an answer came; its text in answers[i]), or -errno, -ETIMEDOUT after a second. */
struct target {
	const char *address;
	uint16_t port;
	bool udp;
};
struct outcome {
	int result;
	char answer[64];
};
void probe(int netns, const struct target *targets, struct outcome *ret, size_t n);
int probe_one(int netns, const char *address, uint16_t port, bool udp, char *ret_answer);

/* The address as text, in a ring of static buffers. */
const char *dotted(uint32_t host_order);
/* Waits (at most 10 s) until the command succeeds where we are. */
bool eventually(const char *command);

#endif
