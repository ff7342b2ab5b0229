#include "interp/env.h"

#include "base/cleanup.h"
#include "base/log.h"

#include <ctype.h>
#include <errno.h>
#include <stdio.h>

/* Python: everything happens in a name space of its own, nothing of it is left in the user's. */

static void python_string(struct buf *to, struct str s)
{
	buf_add_c(to, "'");
	for (size_t i = 0; i < s.n; i++) {
		if (s.p[i] == '\\' || s.p[i] == '\'')
			buf_add_c(to, "\\");
		buf_add(to, s.p + i, 1);
	}
	buf_add_c(to, "'");
}

/* Appends the variables as a JSON object, ASCII only. */
static void json_vars(struct buf *to, json_t *vars)
{
	char *text = json_dumps(vars, JSON_ENSURE_ASCII | JSON_COMPACT);
	if (text)
		buf_add_c(to, text);
	else
		to->failed = true;
	free(text);
}

static void python(enum env_action action, json_t *vars, struct buf *to)
{
	static const char *const code[] = {
		[ENV_SET] = "import os\\nos.environ.update(new)",
		[ENV_SWAP] = "import os, sys\\nsys._cubicle_env = {k: os.environ.get(k) for k in "
			     "new}\\nos.environ.update(new)",
		[ENV_RESTORE] =
			"import os, sys\\nfor k, v in sys.__dict__.pop(\"_cubicle_env\", {}).items():\\n"
			"    if v is None: os.environ.pop(k, None)\\n    else: os.environ[k] = v",
	};
	cleanup_buf struct buf json = BUF_INIT;
	json_vars(&json, vars);
	to->failed |= json.failed;
	buf_addf(to, "exec('%s', {'new': __import__('json').loads(", code[action]);
	python_string(to, buf_str(&json));
	buf_add_c(to, ")})");
}

/* JavaScript and TypeScript. The code is a string for eval, so no type checker looks at it. */
static void javascript(enum env_action action, json_t *vars, struct buf *to)
{
	static const char access[] =
		"const deno = typeof Deno !== 'undefined' && Deno.env; const key = Symbol.for('cubicle.env');"
		"const get = k => deno ? deno.get(k) : process.env[k];"
		"const put = (k, v) => { if (v === undefined || v === null) { if (deno) deno.delete(k); else "
		"delete process.env[k]; }"
		" else if (deno) deno.set(k, v); else process.env[k] = v; };";
	static const char *const code[] = {
		[ENV_SET] = "for (const k of Object.keys(e)) put(k, e[k]);",
		[ENV_SWAP] = "globalThis[key] = Object.keys(e).map(k => [k, get(k)]); for (const k of "
			     "Object.keys(e)) put(k, e[k]);",
		[ENV_RESTORE] =
			"for (const [k, v] of globalThis[key] || []) put(k, v); delete globalThis[key];",
	};
	cleanup_buf struct buf text = BUF_INIT;
	buf_addf(&text, "(e => { %s %s })(", access, code[action]);
	json_vars(&text, vars);
	buf_add_c(&text, ")");
	to->failed |= text.failed;
	buf_add_c(to, "void (0, eval)(");
	json_quote(to, buf_str(&text));
	buf_add_c(to, ");");
}

static void bash_word(struct buf *to, struct str s)
{
	buf_add_c(to, "'");
	for (size_t i = 0; i < s.n; i++)
		if (s.p[i] == '\'')
			buf_add_c(to, "'\\''");
		else
			buf_add(to, s.p + i, 1);
	buf_add_c(to, "'");
}

static bool is_identifier(const char *name)
{
	if (!isalpha((unsigned char)*name) && *name != '_')
		return false;
	for (; *name; name++)
		if (!isalnum((unsigned char)*name) && *name != '_')
			return false;
	return true;
}

static void bash(enum env_action action, json_t *vars, struct buf *to)
{
	const char *name;
	json_t *value;
	cleanup_buf struct buf names = BUF_INIT, sets = BUF_INIT;
	json_object_foreach(vars, name, value)
	{
		buf_addf(&names, " %s", name);
		buf_addf(&sets, " %s=", name);
		bash_word(&sets, json_str(value));
	}
	to->failed |= names.failed || sets.failed;
	if (!buf_len(&names)) {
		buf_add_c(to, ":");
		return;
	}
	if (action == ENV_SWAP)
		buf_addf(to, "_cubicle_env=$(declare -p%.*s 2>/dev/null); ", STR_FMT(buf_str(&names)));
	if (action == ENV_RESTORE)
		buf_addf(to, "unset%.*s; eval \"$_cubicle_env\"; unset _cubicle_env",
			STR_FMT(buf_str(&names)));
	else
		buf_addf(to, "export%.*s", STR_FMT(buf_str(&sets)));
}

/* R's own escapes: one form for all that is not plain, because R does not take two in one string. */
static void r_string(struct buf *to, const char *s)
{
	json_t *j = json_string(s);
	char *text = j ? json_dumps(j, JSON_ENCODE_ANY) : NULL;
	json_decref(j);
	if (!text) {
		to->failed = true;
		return;
	}
	/* What jansson writes without ENSURE_ASCII: UTF-8, \" \\ \b \f \n \r \t and \u00XX, all of which R
	 * knows, but not \/. */
	buf_add_c(to, text);
	free(text);
}

static void r(enum env_action action, json_t *vars, struct buf *to)
{
	static const char *const code[] = {
		[ENV_SET] = "do.call(Sys.setenv, as.list(new))",
		[ENV_SWAP] = "options(cubicle.env = Sys.getenv(names(new), unset = NA, names = TRUE)); "
			     "do.call(Sys.setenv, as.list(new))",
		[ENV_RESTORE] = "old <- getOption(\"cubicle.env\"); options(cubicle.env = NULL);"
				" for (k in names(old)) if (is.na(old[[k]])) Sys.unsetenv(k) else "
				"do.call(Sys.setenv, as.list(old[k]))",
	};
	const char *name, *separator = "";
	json_t *value;
	buf_add_c(to, "invisible(local({ new <- c(");
	json_object_foreach(vars, name, value)
	{
		buf_add_c(to, separator);
		r_string(to, name);
		buf_add_c(to, " = ");
		r_string(to, json_string_value(value));
		separator = ", ";
	}
	buf_addf(to, "); %s }))", code[action]);
}

typedef void env_fn(enum env_action action, json_t *vars, struct buf *to);

static env_fn *find(const char *language)
{
	static const struct {
		const char *language;
		env_fn *fn;
	} languages[] = {{"python", python}, {"javascript", javascript}, {"typescript", javascript},
		{"bash", bash}, {"r", r}};
	for (size_t i = 0; i < ARRAY_SIZE(languages); i++)
		if (strcmp(languages[i].language, language) == 0)
			return languages[i].fn;
	return NULL;
}

bool env_supported(const char *language)
{
	return find(language) != NULL;
}

/* NULL, or what is wrong with it. */
static const char *objection(const char *language, const char *name, const json_t *value)
{
	if (!*name || strchr(name, '=') || (strcmp(language, "bash") == 0 && !is_identifier(name)))
		return "this cannot be the name of a variable";
	if (!json_is_string(value) || memchr(json_string_value(value), 0, json_string_length(value)))
		return "the value must be a string without NUL";
	return NULL;
}

int env_check(const char *language, json_t *vars, struct error *err)
{
	const char *name;
	json_t *value;
	if (!json_is_object(vars))
		return error_set(err, -EINVAL, 400, "env_vars must be an object of strings");
	json_object_foreach(vars, name, value)
	{
		const char *why = objection(language, name, value);
		if (why)
			return error_set(err, -EINVAL, 400, "env_vars: %.100s: %s", name, why);
	}
	return 0;
}

int env_code(const char *language, enum env_action action, json_t *vars, struct buf *to)
{
	env_fn *fn = find(language);
	cleanup_json json_t *good = json_object();
	const char *name;
	json_t *value;
	if (!fn)
		return -ENOTSUP;
	json_object_foreach(vars, name, value) if (!objection(language, name, value) &&
						   json_object_set(good, name, value) < 0) return -ENOMEM;
	fn(action, good, to);
	return to->failed ? -ENOMEM : 0;
}
