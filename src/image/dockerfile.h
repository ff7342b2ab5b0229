/*
 * A Dockerfile, parsed: instructions with their flags, words and heredocs, in stages. Nothing is expanded or run here (words.h, dockerfile_build.h).
 *
 * As Docker's own front end reads it: directives (escape; syntax and check are taken and say nothing here), comments, continuation lines, heredocs, the JSON form with its
 * fallback to the shell form. What is known but not done here is refused by name.
 */
#ifndef CUBICLE_IMAGE_DOCKERFILE_H
#define CUBICLE_IMAGE_DOCKERFILE_H

#include "base/buf.h"
#include "base/error.h"

#include <stdbool.h>

enum {
	DOCKERFILE_MAX = 1024 * 1024,
	DOCKERFILE_INSTRUCTIONS = 4096,
	DOCKERFILE_STAGES = 128,
	DOCKERFILE_WORDS = 4096,    /* of one instruction */
	DOCKERFILE_HEREDOCS = 32,   /* of one instruction */
	DOCKERFILE_ONE = 512 * 1024, /* bytes of one instruction without its heredocs */
};

enum dockerfile_kind {
	DF_ADD,
	DF_ARG,
	DF_CMD,
	DF_COPY,
	DF_ENTRYPOINT,
	DF_ENV,
	DF_EXPOSE,
	DF_FROM,
	DF_HEALTHCHECK,
	DF_LABEL,
	DF_MAINTAINER,
	DF_ONBUILD,
	DF_RUN,
	DF_SHELL,
	DF_STOPSIGNAL,
	DF_USER,
	DF_VOLUME,
	DF_WORKDIR,
	DF_KINDS,
};

/* ENV, LABEL, ARG: as written, with quotes and escapes. */
struct dockerfile_pair {
	struct str key, value;
	bool set; /* ARG NAME has no value */
};

struct dockerfile_flag {
	struct str name, value; /* --name=value, --name: empty value */
};

struct dockerfile_heredoc {
	struct str name, text; /* the lines as they stand, each with its newline */
	bool expand;	       /* its name stood in no quotes */
	bool tabs;	       /* <<-: tabs at the start of lines do not count */
};

struct dockerfile_instruction {
	enum dockerfile_kind kind;
	unsigned line;	 /* where it begins, from 1 */
	struct str text; /* in one line, for the log and for ONBUILD */
	bool json;	 /* args are the strings of an array; RUN, CMD, ENTRYPOINT: the exec form */
	bool none;	 /* HEALTHCHECK NONE */
	struct str *args; /* words; the whole text as one where the instruction takes that (shell forms, USER, WORKDIR, …) */
	size_t n_args;
	struct dockerfile_pair *pairs; /* ENV, LABEL, ARG */
	size_t n_pairs;
	struct dockerfile_flag *flags;
	size_t n_flags;
	struct dockerfile_heredoc *heredocs;
	size_t n_heredocs;
};

struct dockerfile_stage {
	struct str name; /* as written; empty: none */
	struct str base; /* of FROM, as written */
	struct str platform;
	unsigned line;
	size_t from, to; /* its instructions behind FROM */
};

struct dockerfile {
	char escape;
	struct dockerfile_instruction *all; /* in order, FROM ones included */
	size_t n;
	size_t globals; /* ARGs before the first FROM: all[0] to all[globals - 1] */
	struct dockerfile_stage *stages;
	size_t n_stages;
	struct dockerfile_memory *memory; /* all texts and arrays */
};

/*
 * Parses `text`, which need not outlive the call. `name` is for errors: "Dockerfile:12: unknown instruction "RUNN" (did you mean RUN?)". 0; -EINVAL with 400 for
 * what is wrong, -ENOTSUP with 501 for what is not done, -E2BIG, -ENOMEM. dockerfile_done() in every case.
 */
int dockerfile_parse(struct dockerfile *d, struct str text, const char *name, struct error *err);
void dockerfile_done(struct dockerfile *d);
#define cleanup_dockerfile __attribute__((__cleanup__(dockerfile_done)))

/* Parses the instructions of ONBUILD triggers, a line each: no FROM, no ONBUILD, no stage. */
int dockerfile_parse_triggers(struct dockerfile *d, struct str lines, char escape, const char *name, struct error *err);

/* True when the word stands for a heredoc ("<<EOF", "3<<-'EOF'"); with its name, whose quotes are taken off, appended. */
bool dockerfile_heredoc_word(struct str word, char escape, struct buf *name, bool *ret_tabs, bool *ret_expand);

/* Appends the text, without its leading tabs where they do not count. */
void dockerfile_heredoc_text(const struct dockerfile_heredoc *h, struct buf *to);

/* The heredoc of that name, the first one, or NULL. */
const struct dockerfile_heredoc *dockerfile_heredoc_find(const struct dockerfile_instruction *i, struct str name);

/* A URL or the address of a git repository: nothing that ADD fetches here. */
bool dockerfile_is_remote(struct str source);

/* The flag, or NULL. */
const struct dockerfile_flag *dockerfile_flag(const struct dockerfile_instruction *i, const char *name);

/* "RUN". */
const char *dockerfile_kind_name(enum dockerfile_kind kind);

/* The stage that a name or a number before stage `before` means (names in any case, the latest one of a name), or -1. */
int dockerfile_find_stage(const struct dockerfile *d, struct str name, size_t before);

#endif
