/*
 * Variables and quotes in the words of a Dockerfile, as Docker's own front end treats them: $NAME, ${NAME}, ${NAME:-word}, ${NAME-word}, :+ + :? ?, # ## % %%
 * (shell patterns of * and ?), / and // (replacing), the escape character, single and double quotes. Nothing is run, no IFS, no file names.
 */
#ifndef CUBICLE_IMAGE_WORDS_H
#define CUBICLE_IMAGE_WORDS_H

#include "base/buf.h"
#include "base/error.h"

enum {
	WORDS_MAX = 256 * 1024, /* bytes that one expansion may give */
	WORDS_DEPTH = 16,	/* of words in words: ${a:-${b:-…}} */
	WORDS_WORK = 1 << 22,	/* comparisons of one expansion with patterns */
};

struct words {
	char escape;	   /* '\\' or '`' */
	bool quotes_stay;  /* quotes are characters like others: text of a heredoc */
	bool must_be_set;  /* $NAME and ${NAME} of what is not set is an error */
	/* True with the value, which stays valid for the call; false: not set. */
	bool (*get)(void *data, struct str name, struct str *ret);
	void *data;
};

/* Appends the word with variables put in and quotes taken off. 0, -EINVAL (400: what is wrong with it), -E2BIG or -ENOMEM with *err. */
int words_expand(const struct words *w, struct str text, struct buf *to, struct error *err);

/* The same, then cut at white space that stood outside of quotes (also that of variables): each word with a NUL behind it. */
int words_expand_list(const struct words *w, struct str text, struct buf *to, size_t *ret_n, struct error *err);

/*
 * The next word of *rest as it is written, quotes and escapes untouched and respected: `a="b c" d` has two. False at the end. An escape character that ends the
 * text is dropped.
 */
bool words_next(struct str *rest, char escape, struct str *ret);

/* True when `value` fits the pattern of * (any bytes), ? (one byte) and \ (the next byte as it is). *work counts down, false when it is used up. */
bool words_match(struct str pattern, struct str value, unsigned *work);

static inline bool words_space(char c)
{
	return c == ' ' || (c >= '\t' && c <= '\r');
}

#endif
