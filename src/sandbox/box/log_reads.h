/* Questions for the log of a sandbox that its init has not answered yet. What init says is not trusted: an answer to nothing is dropped. */
#ifndef CUBICLE_SANDBOX_BOX_LOG_READS_H
#define CUBICLE_SANDBOX_BOX_LOG_READS_H

#include "sandbox/backend.h"

struct chan;

enum { LOG_READS_MAX = 64 };

struct log_reads {
	struct log_read *first; /* the newest first */
	size_t n;
	uint64_t last_request;
	struct {
		uint64_t request; /* 0 = nobody follows */
		box_log_fn *done;
		void *arg;
	} follower;
};

/* Sends the question, for entries behind number `after`; done() follows, by log_reads_answer() or log_reads_fail(). 0, -EBUSY when too many wait, or -errno. */
int log_reads_ask(struct log_reads *l, struct chan *c, uint64_t after, box_log_fn *done, void *arg);
/* box_follow_log(). */
int log_reads_follow(struct log_reads *l, struct chan *c, uint64_t after, box_log_fn *done, void *arg);
/* request: of the answer's header. m NULL: init could not. */
void log_reads_answer(struct log_reads *l, uint64_t request, const struct msg_log_page *m);
/* There will be no answers any more: done(NULL) for each. */
void log_reads_fail(struct log_reads *l);

#endif
