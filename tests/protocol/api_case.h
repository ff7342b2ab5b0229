/* What every test of the API starts with: a world of its own, and short words for asking. */
#ifndef CUBICLE_TESTS_API_CASE_H
#define CUBICLE_TESTS_API_CASE_H

#include "api_world.h"

extern struct world *world;

/* Of each test: the world, with its node connected. */
int set_up(void **state);
int tear_down(void **state);
#define T(f) cmocka_unit_test_setup_teardown(f, set_up, tear_down)

/* Creates a sandbox through the API: its id, owned by the world. body NULL = the least that is needed. */
const char *make(const char *body);
/* Every error is JSON with an integer code that is the status, and a message (e2b.md 0.4). */
void check_error(const struct reply *r, const char *what);
/* One request and its status; `word` (may be NULL) must be in the message. headers and body as of world_ask(). */
void expect(const char *method, const char *target, const char *headers, const char *body, int status, const char *word);
/* The target with the id in the place of {}: target itself when it holds none, else `to`. */
const char *with_id(const char *target, const char *id, char *to, size_t size);
size_t member_count(const struct reply *r);

#endif
