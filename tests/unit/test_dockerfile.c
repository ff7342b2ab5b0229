#include "unit.h"

#include "base/cleanup.h"
#include "image/dockerfile.h"

#include <errno.h>
#include <stdio.h>

static void parse(struct dockerfile *d, const char *text)
{
	struct error err = {0};
	if (dockerfile_parse(d, str_of(text), "Dockerfile", &err) < 0)
		fail_msg("%s\n%s", text, err.message);
}

/* One instruction behind a FROM: kind, json, args|…|, pairs key=value|, heredocs <name:text>. */
static void show(struct buf *to, const struct dockerfile_instruction *i)
{
	buf_addf(to, "%s%s%s", dockerfile_kind_name(i->kind), i->json ? " json" : "", i->none ? " none" : "");
	for (size_t k = 0; k < i->n_flags; k++)
		buf_addf(to, " {%.*s=%.*s}", STR_FMT(i->flags[k].name), STR_FMT(i->flags[k].value));
	for (size_t k = 0; k < i->n_args; k++)
		buf_addf(to, " [%.*s]", STR_FMT(i->args[k]));
	for (size_t k = 0; k < i->n_pairs; k++)
		buf_addf(to, " (%.*s%s%.*s)", STR_FMT(i->pairs[k].key), i->pairs[k].set ? "=" : "", STR_FMT(i->pairs[k].value));
	for (size_t k = 0; k < i->n_heredocs; k++) {
		cleanup_buf struct buf text = BUF_INIT;
		dockerfile_heredoc_text(&i->heredocs[k], &text);
		buf_addf(to, " <%.*s%s:%s>", STR_FMT(i->heredocs[k].name), i->heredocs[k].expand ? "" : "!", buf_cstr(&text));
	}
}

static void instructions_in_all_forms(void **state)
{
	static const char *const rows[][2] = {
		{"RUN echo  a | b", "RUN [echo  a | b]"},
		{"run [\"a\", \"b c\"]", "RUN json [a] [b c]"},
		{"RUN [\"a\", ]", "RUN [[\"a\", ]]"},
		{"RUN [ -f x ]", "RUN [[ -f x ]]"},
		{"RUN a \\\n  b \\\n# comment\n\n  c", "RUN [a   b   c]"},
		{"RUN a \\  \n b", "RUN [a  b]"},
		{"RUN a \\\\\nRUN b", "RUN [a \\\\]"},
		{"RUN a \\", "RUN [a]"},
		{"RUN --network=default --security=sandbox a --network=x", "RUN {network=default} {security=sandbox} [a --network=x]"},
		{"CMD", "CMD"},
		{"CMD []", "CMD json"},
		{"ENTRYPOINT [\"/x\"]", "ENTRYPOINT json [/x]"},
		{"ENTRYPOINT exec /x $A", "ENTRYPOINT [exec /x $A]"},
		{"COPY a b /c/", "COPY [a] [b] [/c/]"},
		{"COPY [\"a b\", \"/c d/\"]", "COPY json [a b] [/c d/]"},
		{"COPY --chown=\"a b\":c --chmod=755 --from=x --link a b", "COPY {chown=a b:c} {chmod=755} {from=x} {link=} [a] [b]"},
		{"COPY --link=false --exclude=*.o --exclude=x a b", "COPY {exclude=*.o} {exclude=x} [a] [b]"},
		{"COPY -- --a b", "COPY [--a] [b]"},
		{"ADD a.tar /", "ADD [a.tar] [/]"},
		{"ENV A=b C=\"d e\" F=g\\ h", "ENV (A=b) (C=\"d e\") (F=g\\ h)"},
		{"ENV A b c=d", "ENV (A=b c=d)"},
		{"LABEL \"a b\"=c x=\"\"", "LABEL (\"a b\"=c) (x=\"\")"},
		{"ARG A", "ARG (A)"},
		{"ARG A= B=c D", "ARG (A=) (B=c) (D)"},
		{"EXPOSE 80 443/tcp $P", "EXPOSE [80] [443/tcp] [$P]"},
		{"WORKDIR /a b", "WORKDIR [/a b]"},
		{"USER  a:b ", "USER [a:b]"},
		{"VOLUME /a /b", "VOLUME [/a] [/b]"},
		{"VOLUME [\"/a\"]", "VOLUME json [/a]"},
		{"SHELL [\"/bin/bash\", \"-c\"]", "SHELL json [/bin/bash] [-c]"},
		{"STOPSIGNAL SIGTERM", "STOPSIGNAL [SIGTERM]"},
		{"HEALTHCHECK NONE", "HEALTHCHECK none"},
		{"HEALTHCHECK --interval=5s CMD curl x", "HEALTHCHECK {interval=5s} [curl x]"},
		{"HEALTHCHECK CMD [\"a\"]", "HEALTHCHECK json [a]"},
		{"MAINTAINER a <b@c>", "MAINTAINER [a <b@c>]"},
		{"ONBUILD RUN make", "ONBUILD [RUN make]"},
		{"RUN <<EOF\na\n  b\nEOF\n", "RUN [<<EOF] <EOF:a\n  b\n>"},
		{"RUN <<-EOF\n\ta\n\t\tb\n\tEOF\n", "RUN [<<-EOF] <EOF:a\nb\n>"},
		{"RUN cat <<'A B' > x\n# no comment\\\nA B\n", "RUN [cat <<'A B' > x] <A B!:# no comment\\\n>"},
		{"RUN cat <<A 3<<\"B\"\na\nA\nb\nB\n", "RUN [cat <<A 3<<\"B\"] <A:a\n> <B!:b\n>"},
		{"RUN a << b; c <<< d", "RUN [a << b; c <<< d]"},
		{"RUN [\"<<EOF\"]", "RUN json [<<EOF]"},
		{"COPY <<EOF <<x /d/\na\nEOF\nb\nx\n", "COPY [<<EOF] [<<x] [/d/] <EOF:a\n> <x:b\n>"},
		{"CMD cat <<EOF", "CMD [cat <<EOF]"},
	};
	for (size_t i = 0; i < ARRAY_SIZE(rows); i++) {
		cleanup_dockerfile struct dockerfile d = {0};
		cleanup_buf struct buf text = BUF_INIT, shown = BUF_INIT;
		buf_addf(&text, "FROM a\n%s", rows[i][0]);
		parse(&d, buf_cstr(&text));
		assert_true(d.n >= 2);
		show(&shown, &d.all[1]);
		if (!str_is(buf_str(&shown), rows[i][1]))
			fail_msg("%s: %s, not %s", rows[i][0], buf_cstr(&shown), rows[i][1]);
		assert_int_equal(d.all[1].line, 2);
	}
}

static void mistakes_have_their_line(void **state)
{
	static const struct {
		const char *text, *message;
		int status;
	} rows[] = {
		{"", "Dockerfile: it has no FROM", 400},
		{"# only\n", "Dockerfile: it has no FROM", 400},
		{"ARG A\n", "Dockerfile: it has no FROM", 400},
		{"FROM a\n\nRUNN x", "Dockerfile:3: unknown instruction \"RUNN\" (did you mean RUN?)", 400},
		{"FROM a\nFORM b", "Dockerfile:2: unknown instruction \"FORM\" (did you mean FROM?)", 400},
		{"FROM a\nentripoint b", "(did you mean ENTRYPOINT?)", 400},
		{"FROM a\nx", "Dockerfile:2: unknown instruction \"x\"", 400},
		{"RUN x\nFROM a", "Dockerfile:1: RUN before the first FROM", 400},
		{"FROM a b", "FROM requires either one or three arguments", 400},
		{"FROM", "FROM requires at least one argument", 400},
		{"FROM a IN b", "the second word must be AS", 400},
		{"FROM a AS 1b", "invalid name for build stage: \"1b\"", 400},
		{"FROM a\nCOPY a", "COPY needs a source and a destination", 400},
		{"FROM a\nRUN", "RUN requires at least one argument", 400},
		{"FROM a\nRUN \\\n# c\n a <<X\nb\n", "Dockerfile:2: unterminated heredoc: no line X", 400},
		{"FROM a\nRUN [1]", "strings only", 400},
		{"FROM a\nENV A", "ENV must have a name and a value", 400},
		{"FROM a\nENV A=b c", "no = in \"c\"", 400},
		{"FROM a\nENV =b", "ENV names can not be blank", 400},
		{"FROM a\nWORKDIR", "WORKDIR requires exactly one argument", 400},
		{"FROM a\nSHELL /bin/sh -c", "array in JSON syntax", 400},
		{"FROM a\nHEALTHCHECK curl", "NONE or by CMD", 400},
		{"FROM a\nVOLUME [\"\"]", "VOLUME can not be an empty string", 400},
		{"FROM a\nRUN --mount=type=secret,id=x y", "Dockerfile:2: --mount with type=secret is not supported", 501},
		{"FROM a\nRUN --mount=type=ssh y", "type=ssh is not supported", 501},
		{"FROM a\nRUN --mount=target=/x,type=cache,from=b y", "type=cache and from or source is not supported", 501},
		{"FROM a\nRUN --mount=type=cache y", "--mount needs a target", 400},
		{"FROM a\nRUN --mount=type=other,target=/x y", "unknown type", 400},
		{"FROM a\nRUN --mount=type=cache,target=/x,mode=9 y", "\"mode=9\" is not understood", 400},
		{"FROM a\nRUN --mount=type=cache,target=/x,foo=9 y", "\"foo=9\" is not understood", 400},
		{"FROM a\nRUN --mount=type=tmpfs,target=/x,size=1m y", "type=tmpfs and size is not supported", 501},
		{"FROM a\nRUN --network=none y", "RUN --network=none is not supported", 501},
		{"FROM a\nRUN --security=insecure y", "RUN --security=insecure is not supported", 501},
		{"FROM a\nRUN --foo y", "unknown flag --foo for RUN", 400},
		{"FROM a\nCOPY --from a b", "missing a value on flag --from", 400},
		{"FROM a\nCOPY --from=a --from=b c d", "duplicate flag --from", 400},
		{"FROM a\nCOPY --link=maybe c d", "--link must be true or false", 400},
		{"FROM a\nADD https://x/y /z", "ADD of a URL or a git repository is not supported", 501},
		{"FROM a\nADD git@github.com:a/b.git /z", "ADD of a URL", 501},
		{"FROM a\nADD --checksum=sha256:1 a /z", "ADD --checksum is not supported", 501},
		{"FROM a\nONBUILD ONBUILD RUN x", "ONBUILD isn't allowed as an ONBUILD trigger", 400},
		{"FROM a\nONBUILD FROM x", "FROM isn't allowed", 400},
		{"FROM a\nONBUILD RUN <<A\nA\n", "heredocs in ONBUILD are not supported", 501},
		{"FROM a\nONBUILD RUNN x", "did you mean RUN?", 400},
		{"# escape=x\nFROM a", "Dockerfile:1: the escape directive", 400},
		{"# escape=`\n# Escape=`\nFROM a", "Dockerfile:2: only one escape", 400},
	};
	for (size_t i = 0; i < ARRAY_SIZE(rows); i++) {
		struct error err = {0};
		cleanup_dockerfile struct dockerfile d = {0};
		if (dockerfile_parse(&d, str_of(rows[i].text), "Dockerfile", &err) == 0)
			fail_msg("%s: parsed", rows[i].text);
		if (!strstr(err.message, rows[i].message) || err.status != rows[i].status)
			fail_msg("%s: %d %s", rows[i].text, err.status, err.message);
	}
}

static void stages_and_their_names(void **state)
{
	cleanup_dockerfile struct dockerfile d = {0};
	parse(&d, "ARG V=1\nARG W\nFROM --platform=linux/amd64 a:$V AS Build\nRUN x\nRUN y\nFROM b\nFROM build as last\nCOPY --from=0 /a /b\n");
	assert_int_equal(d.globals, 2);
	assert_int_equal(d.n_stages, 3);
	assert_str(d.stages[0].name, "Build");
	assert_str(d.stages[0].base, "a:$V");
	assert_str(d.stages[0].platform, "linux/amd64");
	assert_int_equal(d.stages[0].line, 3);
	assert_int_equal(d.stages[0].to - d.stages[0].from, 2);
	assert_int_equal(d.stages[1].to - d.stages[1].from, 0);
	assert_int_equal(d.stages[2].from, 7);
	assert_int_equal(d.stages[2].to, 8);
	assert_int_equal(dockerfile_find_stage(&d, STR("BUILD"), 3), 0);
	assert_int_equal(dockerfile_find_stage(&d, STR("last"), 2), -1);
	assert_int_equal(dockerfile_find_stage(&d, STR("1"), 3), 1);
	assert_int_equal(dockerfile_find_stage(&d, STR("2"), 2), -1);
	assert_int_equal(dockerfile_find_stage(&d, STR("99999999999999999999"), 3), -1);
}

static void directives(void **state)
{
	cleanup_dockerfile struct dockerfile d = {0}, e = {0}, f = {0};
	parse(&d, "# syntax=docker/dockerfile:1\n#escape = `\nFROM a\nRUN a \\\nRUN b `\n c\n");
	assert_int_equal(d.escape, '`');
	assert_str(d.all[1].args[0], "a \\");
	assert_str(d.all[2].args[0], "b  c");
	/* Behind anything else it is a comment. */
	parse(&e, "# about\n# escape=`\nFROM a\n");
	assert_int_equal(e.escape, '\\');
	parse(&f, "\xef\xbb\xbf# escape=`\r\nFROM a\r\nRUN b `\r\n c\r\n");
	assert_int_equal(f.escape, '`');
	assert_str(f.all[1].args[0], "b  c");
}

static void limits(void **state)
{
	struct error err = {0};
	cleanup_buf struct buf text = BUF_INIT;
	cleanup_dockerfile struct dockerfile d = {0};
	for (size_t i = 0; i <= DOCKERFILE_STAGES; i++)
		buf_add_c(&text, "FROM a\n");
	assert_int_equal(dockerfile_parse(&d, buf_str(&text), "Dockerfile", &err), -E2BIG);
	assert_non_null(strstr(err.message, "stages"));
	dockerfile_done(&d);
	buf_clear(&text);
	buf_add_c(&text, "FROM a\nRUN a \\\n");
	for (size_t i = 0; i < DOCKERFILE_ONE / 8 + 1; i++)
		buf_add_c(&text, "1234567\\\n");
	assert_int_equal(dockerfile_parse(&d, buf_str(&text), "Dockerfile", &err), buf_len(&text) > DOCKERFILE_MAX ? -E2BIG : 0);
	dockerfile_done(&d);
	buf_clear(&text);
	buf_add_c(&text, "FROM a\nEXPOSE");
	for (size_t i = 0; i <= DOCKERFILE_WORDS; i++)
		buf_add_c(&text, " 1");
	assert_int_equal(dockerfile_parse(&d, buf_str(&text), "Dockerfile", &err), -E2BIG);
	assert_non_null(strstr(err.message, "Dockerfile:2: more than 4096 words"));
	dockerfile_done(&d);
	buf_clear(&text);
	buf_add_c(&text, "FROM a\n");
	while (buf_len(&text) <= DOCKERFILE_MAX)
		buf_add_c(&text, "# a line of a comment\n");
	assert_int_equal(dockerfile_parse(&d, buf_str(&text), "Dockerfile", &err), -E2BIG);
}

static void triggers_of_a_base(void **state)
{
	struct error err = {0};
	cleanup_dockerfile struct dockerfile d = {0}, e = {0};
	assert_int_equal(dockerfile_parse_triggers(&d, STR("RUN a\nCOPY . /x\n"), '\\', "base", &err), 0);
	assert_int_equal(d.n, 2);
	assert_int_equal(d.all[1].kind, DF_COPY);
	assert_int_equal(dockerfile_parse_triggers(&e, STR("FROM a"), '\\', "base", &err), -EINVAL);
}

int main(void)
{
	static const struct CMUnitTest tests[] = {
		cmocka_unit_test(instructions_in_all_forms),
		cmocka_unit_test(mistakes_have_their_line),
		cmocka_unit_test(stages_and_their_names),
		cmocka_unit_test(directives),
		cmocka_unit_test(limits),
		cmocka_unit_test(triggers_of_a_base),
	};
	return cmocka_run_group_tests(tests, NULL, NULL);
}
