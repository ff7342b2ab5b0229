/* Templates of teams and their builds: the test is the front, and every builder and unpacker. */
#ifndef CUBICLE_TESTS_BUILDS_WORLD_H
#define CUBICLE_TESTS_BUILDS_WORLD_H

#include "node_world.h"

/* A process that the node has started: its descriptors are ours, its end is that of a child that does nothing. */
struct seat {
	char kind[16];
	int fds[8];
	size_t n_fds;
	pid_t pid;
};

/* Those that were started, those that next_seat() has given. */
extern size_t n_seats, n_taken;
/* None can be started. */
extern bool start_fails;
void seat_close(struct seat *s);
/* cmocka's fixtures. */
int setup_builds(void **state);
int teardown_builds(void **state);
/* The next process that is started. */
struct seat *next_seat(const char *kind);
/* What it is told next: the type; 0 at its end. ret_request, ret_fd: may be NULL. */
unsigned told(struct seat *s, uint64_t *ret_request, int *ret_fd);
/* A process says this: the number of its request. */
extern uint64_t last_say;
uint64_t say(struct seat *s, enum msg_id type, const void *m);
/* The answer to it; both in one. */
unsigned reply(struct seat *s, uint64_t request, int *ret_fd);
unsigned ask(struct seat *s, enum msg_id type, const void *m);
/* That was an error of this status, whose message has the text. */
void refused(unsigned type, unsigned status, const char *text);

/* The front's side */
/* Of the template that was asked for last. */
extern char template_id[21], build_id[37];
extern const char *builds_team;
/* Asks for a template: the type of the answer. make(): of builds_team, and it is a new one. */
unsigned make_named(const char *team, const char *name, const char *kind, const char *reference);
void make(const char *name);
/* Starts the build that was asked for last, on this template: the type of the answer. */
extern const char *wanted_isolation;
unsigned start_with(const char *base);
/* A builder that has begun on template "base". */
struct seat *begin(const char *name);
/* A page of the build's status and log; the status alone. */
unsigned status_page(uint64_t after, uint64_t limit);
const char *status(void);
/* Waits for the end: 0, or the error is in `got`. */
unsigned await(void);
/* Waits until no build runs. */
void nothing_runs(void);
/* The file of its log is there, or is not. */
void log_file(bool there);

/* The builder says that this is what it has made; and that is a template then. */
#define LAYERS(files) "{\"layers\":[" files "],\"user\":\"user\"}"
#define BASE_LAYER "{\"file\":\"images/aa.erofs\",\"size\":1}"
unsigned done(struct seat *s, const char *description);
void finish(struct seat *s, const char *description);

unsigned create_of(const char *team, const char *reference);
unsigned delete_template(const char *tag, bool force);

/* A layer of a blob */
void digest_of(const char *bytes, char to[72]);
/* The builder asks for a file and writes it: the number of it. */
uint64_t new_file(struct seat *s, const char *bytes, bool keep_open);
/* ... for a layer by its key, to_make: which it makes else. */
unsigned find(struct seat *s, const char *key, bool to_make);
/* ... to have the file unpacked into a layer: the request. */
uint64_t unpack(struct seat *s, const char *key, uint64_t file, const char *digest);
/* The unpacker writes this image. */
void unpacked(const char *image);
extern char made_layer[161];
/* Makes a layer of these bytes, from the start to its name. */
void make_layer(struct seat *s, const char *bytes);
/* In the node's directory. */
bool exists(const char *file);

#define BUILD_TEST(name) cmocka_unit_test_setup_teardown(name, setup_builds, teardown_builds)

#endif
