#include "mcp/scrub.h"
#include "base/cleanup.h"

#include <ctype.h>
#include <strings.h>

enum { MAX_TEXT = 16 * 1024, SHORTEST_SECRET = 24 };

static bool is_word(char c)
{
	return isalnum((unsigned char)c) || c == '_';
}

static bool is_host_char(char c)
{
	return isalnum((unsigned char)c) || c == '-' || c == '.' || c == '_';
}

/* Ends of URLs and paths in a text. */
static bool is_stop(char c)
{
	return (unsigned char)c <= ' ' || strchr("\"'`<>(){}[],;|", c) != NULL;
}

static size_t run_of(struct str s, bool (*fits)(char))
{
	size_t n = 0;
	while (n < s.n && fits(s.p[n]))
		n++;
	return n;
}

static size_t until_stop(struct str s)
{
	size_t n = 0;
	while (n < s.n && !is_stop(s.p[n]))
		n++;
	return n;
}

/* "scheme://…" */
static size_t url_at(struct str s)
{
	size_t n = 0;
	while (n < s.n && n < 32 && (isalnum((unsigned char)s.p[n]) || s.p[n] == '+' || s.p[n] == '-' || s.p[n] == '.'))
		n++;
	if (!n || s.n < n + 3 || memcmp(s.p + n, "://", 3) != 0)
		return 0;
	size_t end = n + 3;
	/* Brackets of an IPv6 address do not end it. */
	while (end < s.n && (!is_stop(s.p[end]) || s.p[end] == '[' || s.p[end] == ']'))
		end++;
	return end;
}

static size_t digits_at(struct str s, unsigned most, unsigned max)
{
	size_t n = 0;
	unsigned value = 0;
	while (n < s.n && n < most && isdigit((unsigned char)s.p[n]))
		value = value * 10 + (unsigned)(s.p[n++] - '0');
	return n && value <= max && !(n < s.n && isdigit((unsigned char)s.p[n])) ? n : 0;
}

static size_t port_at(struct str s)
{
	size_t n = s.n && s.p[0] == ':' ? digits_at(str_from(s, 1), 5, 65535) : 0;
	return n ? n + 1 : 0;
}

static size_t ipv4_at(struct str s)
{
	size_t at = 0;
	for (int i = 0; i < 4; i++) {
		size_t n = digits_at(str_from(s, at), 3, 255);
		if (!n || (i < 3 && (at + n >= s.n || s.p[at + n] != '.')))
			return 0;
		at += n + (i < 3);
	}
	/* Five numbers with dots are a version, not an address. */
	if (at + 1 < s.n && s.p[at] == '.' && isdigit((unsigned char)s.p[at + 1]))
		return 0;
	return at + port_at(str_from(s, at));
}

static size_t ipv6_at(struct str s)
{
	size_t open = s.n && s.p[0] == '[', at = open, colons = 0, groups = 0;
	bool twice = false;
	while (at < s.n && (isxdigit((unsigned char)s.p[at]) || s.p[at] == ':' || s.p[at] == '.')) {
		if (s.p[at] == ':') {
			colons++;
			twice |= at > 0 && s.p[at - 1] == ':';
		} else if (at == open || s.p[at - 1] == ':') {
			groups++;
		}
		at++;
	}
	if (at < s.n && s.p[at] == '%')
		at += 1 + run_of(str_from(s, at + 1), is_word);
	if (colons < 2 || colons > 8 || (!twice && colons != 7) || (twice && !groups && colons > 2) || (at < s.n && is_word(s.p[at])))
		return 0;
	if (!open)
		return at;
	if (at >= s.n || s.p[at] != ']')
		return 0;
	return at + 1 + port_at(str_from(s, at + 1));
}

/* A name with dots whose last part is letters, or localhost; not a file's name with a well-known ending. */
static size_t host_at(struct str s)
{
	static const char *const endings[] = {"py", "js", "mjs", "ts", "c", "h", "cc", "cpp", "rs", "go", "sh", "txt", "md", "json", "csv", "log", "html", "css", "xml", "yaml",
		"yml", "toml", "ini", "cfg", "conf", "png", "jpg", "jpeg", "svg", "gif", "pdf", "zip", "gz", "tar", "so", "ipynb", "db", "sql", "lock", "r", "rb", "java"};
	if (s.n >= 9 && !strncasecmp(s.p, "localhost", 9) && (s.n == 9 || !is_host_char(s.p[9])))
		return 9 + port_at(str_from(s, 9));
	size_t n = run_of(s, is_host_char);
	while (n && (s.p[n - 1] == '.' || s.p[n - 1] == '-'))
		n--;
	size_t dot = n;
	while (dot && s.p[dot - 1] != '.')
		dot--;
	if (!dot || dot < 2 || n - dot < 2)
		return 0;
	struct str last = str_n(s.p + dot, n - dot);
	for (size_t i = 0; i < last.n; i++)
		if (!isalpha((unsigned char)last.p[i]))
			return 0;
	size_t port = port_at(str_from(s, n));
	for (size_t i = 0; i < ARRAY_SIZE(endings) && !port; i++)
		if (last.n == strlen(endings[i]) && !strncasecmp(last.p, endings[i], last.n))
			return 0;
	return n + port;
}

/* "/a/b…", not the sandbox's own. */
static size_t path_at(struct str s)
{
	static const char *const own[] = {"/home/user", "/tmp"};
	if (s.n < 2 || s.p[0] != '/' || !(is_word(s.p[1]) || s.p[1] == '.'))
		return 0;
	size_t n = until_stop(s);
	while (n > 1 && strchr(".:!?", s.p[n - 1]))
		n--;
	for (size_t i = 0; i < ARRAY_SIZE(own); i++) {
		size_t length = strlen(own[i]);
		if (n >= length && !memcmp(s.p, own[i], length) && (n == length || s.p[length] == '/') && !memmem(s.p, n, "..", 2))
			return 0;
	}
	return n;
}

/* A run of letters and digits too long and too mixed for a word: a key, a token, a digest. */
static size_t token_at(struct str s)
{
	static const char *const prefixes[] = {"e2b_", "sk_", "sk-", "ghp_", "xox", "AKIA", "eyJ", "Bearer "};
	size_t start = 0;
	bool known = false;
	for (size_t i = 0; i < ARRAY_SIZE(prefixes) && !known; i++) {
		known = str_starts(s, str_of(prefixes[i]));
		start = known && prefixes[i][strlen(prefixes[i]) - 1] == ' ' ? strlen(prefixes[i]) : 0;
	}
	size_t n = start;
	bool digit = false, letter = false;
	while (n < s.n && (is_word(s.p[n]) || s.p[n] == '-' || s.p[n] == '+' || s.p[n] == '=' || s.p[n] == '/' || (known && s.p[n] == '.'))) {
		digit |= isdigit((unsigned char)s.p[n]);
		letter |= isalpha((unsigned char)s.p[n]);
		n++;
	}
	size_t length = n - start;
	if (known && length >= 12)
		return n;
	return digit && letter && length >= SHORTEST_SECRET ? n : 0;
}

static bool has(struct str s, const char *what)
{
	return s.p && memmem(s.p, s.n, what, strlen(what));
}

/* Lines of stack traces, which tell how the programs behind the tools are made. */
static bool is_trace_line(struct str line)
{
	struct str l = str_trim(line);
	static const char *const starts[] = {"Traceback (most recent call last)", "File \"", "at async ", "goroutine ", "Stack trace", "==ERROR", "thread '", "stack backtrace:", "Caused by:"};
	for (size_t i = 0; i < ARRAY_SIZE(starts); i++)
		if (str_starts(l, str_of(starts[i])))
			return true;
	if (l.n > 2 && l.p[0] == '#' && isdigit((unsigned char)l.p[1]))
		return true; /* gdb, sanitizers */
	if (str_starts(l, STR("at ")) && (has(l, "(") || has(l, ".js:") || has(l, "node:")))
		return true;
	return has(l, "(+0x") || has(l, "[0x");
}

struct out {
	struct buf *to;
	size_t characters;
	bool full;
};

static void put(struct out *o, struct str s)
{
	size_t i = 0;
	while (i < s.n && !o->full) {
		size_t n = 1;
		while (i + n < s.n && ((unsigned char)s.p[i + n] & 0xc0) == 0x80)
			n++;
		if (o->characters == SCRUB_MOST) {
			o->full = true;
			buf_add_c(o->to, " (cut)");
			return;
		}
		buf_add(o->to, s.p + i, n);
		o->characters++;
		i += n;
	}
}

/* What begins here and must not come out: its length, and a word for it. */
static size_t secret_at(struct str s, struct str secret, const char **word)
{
	static const struct {
		size_t (*at)(struct str);
		const char *word;
	} kinds[] = {{url_at, "[URL]"}, {ipv4_at, "[address]"}, {ipv6_at, "[address]"}, {token_at, "[secret]"}, {host_at, "[host]"}, {path_at, "[path]"}};
	if (secret.n >= 4 && str_starts(s, secret)) {
		*word = "[secret]";
		return secret.n;
	}
	for (size_t i = 0; i < ARRAY_SIZE(kinds); i++) {
		size_t n = kinds[i].at(s);
		if (n) {
			*word = kinds[i].word;
			return n;
		}
	}
	return 0;
}

static void put_line(struct out *o, struct str line, struct str secret)
{
	bool fresh = true; /* nothing of a word stands before */
	for (size_t i = 0; i < line.n && !o->full;) {
		const char *word = NULL;
		struct str rest = str_from(line, i);
		size_t n = secret.n >= 4 && str_starts(rest, secret) ? secret.n : 0;
		if (n)
			word = "[secret]";
		else if (fresh)
			n = secret_at(rest, secret, &word);
		if (n) {
			put(o, str_of(word));
			i += n;
			fresh = true;
			continue;
		}
		char c = line.p[i];
		fresh = !is_word(c) && c != '.' && c != '-' && c != ':';
		/* After a colon something else begins, unless it is inside an address. */
		if (c == ':' || c == '=')
			fresh = true;
		size_t whole = 1;
		while (i + whole < line.n && ((unsigned char)line.p[i + whole] & 0xc0) == 0x80)
			whole++;
		put(o, (unsigned char)c < ' ' || c == 0x7f ? STR(" ") : str_n(&line.p[i], whole));
		i += whole;
	}
}

int scrub_text(struct str text, struct str secret, struct buf *to)
{
	struct out o = {.to = to};
	bool first = true, trace = false;
	if (text.n > MAX_TEXT)
		text.n = MAX_TEXT;
	if (!str_is_utf8(text)) {
		/* Cut in the middle of a character, or no text at all: bytes beyond ASCII go. */
		cleanup_buf struct buf plain = BUF_INIT;
		for (size_t i = 0; i < text.n; i++)
			buf_add(&plain, (unsigned char)text.p[i] < 0x80 ? &text.p[i] : "?", 1);
		return plain.failed ? -ENOMEM : scrub_text(buf_str(&plain), secret, to);
	}
	while (text.n && !o.full) {
		struct str line = text, rest = str_n("", 0);
		str_cut(text, '\n', &line, &rest);
		/* Source lines follow their place in a trace, indented. */
		bool indented = line.n && (line.p[0] == ' ' || line.p[0] == '\t');
		if (is_trace_line(line) || (trace && indented)) {
			trace = true;
		} else {
			trace = false;
			if (!first)
				put(&o, STR(" "));
			put_line(&o, line, secret);
			first = false;
		}
		text = rest;
	}
	if (!buf_len(to))
		buf_add_c(to, "(no text)");
	return to->failed ? -ENOMEM : 0;
}
