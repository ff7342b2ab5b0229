#include "fuzz.h"

#include "base/cleanup.h"
#include "node/journal.h"

/* A page of a hostile init, and a file that somebody damaged: whatever they hold, what is kept is bounded, comes back from a file as it was, and no line of init's looks like node's. */

static void check(const struct journal *j)
{
	cleanup_buf struct buf text = BUF_INIT, again = BUF_INIT;
	struct journal back = {0};
	hold(journal_write(j, &text) == 0);
	journal_load(&back, buf_str(&text));
	hold(journal_write(&back, &again) == 0 && str_eq(buf_str(&text), buf_str(&again)));
	hold(back.own == j->own && back.init == j->init && j->own <= JOURNAL_OWN_MAX && j->init <= JOURNAL_INIT_MAX);
	journal_done(&back);
}

void fuzz_one(struct str input)
{
	struct journal j = {0}, file = {0};
	journal_add_page(&j, input, 1000, JOURNAL_INIT_MAX);
	hold(j.own == 0);
	check(&j);
	journal_add_page(&j, input, 1000, 4096);
	hold(j.init <= JOURNAL_INIT_MAX);
	journal_load(&file, input);
	check(&file);
	uint64_t next = 0, before;
	cleanup_buf struct buf page = BUF_INIT;
	int r;
	do {
		before = next;
		buf_clear(&page);
		r = journal_read(&file, next, 0, 57344, &page, &next);
		hold(r >= 0 && (r == 0 || next > before));
	} while (r == 1);
	journal_done(&j);
	journal_done(&file);
}
