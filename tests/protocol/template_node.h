/* The node's part of templates, played by hand: what api_world.c does not answer itself. */
#ifndef CUBICLE_TESTS_TEMPLATE_NODE_H
#define CUBICLE_TESTS_TEMPLATE_NODE_H

#include "api_world.h"

enum { FAKE_TEMPLATES = 16, FAKE_TAGS = 8, FAKE_LINES = 512 };

struct fake_template {
	bool alive, public;
	char id[33], team[65], name[129], kind[9], reference[513], source[8193], build[37], status[16], reason[256], step[32];
	int64_t created_at;
	unsigned builds;
	struct {
		char tag[65], build[37];
	} tags[FAKE_TAGS];
	size_t n_tags;
	char wanted[FAKE_TAGS][65]; /* tags of the newest build, when it is ready */
	size_t n_wanted;
	size_t lines;               /* of its log */
};

struct template_node {
	struct fake_template templates[FAKE_TEMPLATES];
	size_t n;
	char spec[65536], base[97]; /* of the last start_build; "" = none was given */
	bool force;
	char isolation[17];
	uint64_t waiting[WORLD_WAITING]; /* await_build */
	size_t n_waiting;
	bool in_use;                /* deletions need force */
	char deleted_tag[129];
	/* files */
	int file;                   /* that is being written, -1 = none; then that was kept */
	char file_hash[65], file_team[65];
	uint64_t file_size, writers, kept, thrown;
	int64_t status_level;       /* of the last build_status; -1 = none */
};

/* False: it is not about templates. The descriptor of a start_build is taken. */
bool template_node_message(struct world *w, struct chan_message *m);
/* The templates of a snapshot. */
void template_node_subscribe(struct world *w, uint64_t request);
struct fake_template *template_node_find(struct world *w, const char *id);
/* The newest build of a template ends: reason NULL = it is ready. Who waits is told. */
void template_node_end(struct world *w, struct fake_template *t, const char *reason, const char *step, int status);
/* An event with what the template is now. */
void template_node_tell(struct world *w, struct fake_template *t);

#endif
