#include "api/out.h"
#include "base/clock.h"
#include "base/log.h"

static void lead(struct out *o, const char *key)
{
	if (o->more)
		buf_add(o->to, ",", 1);
	o->more = true;
	if (key)
		buf_addf(o->to, "\"%s\":", key);
}

void out_open(struct out *o, const char *key, char bracket)
{
	lead(o, key);
	buf_add(o->to, &bracket, 1);
	o->more = false;
}

void out_close(struct out *o, char bracket)
{
	buf_add(o->to, &bracket, 1);
	o->more = true;
}

void out_str(struct out *o, const char *key, struct str value)
{
	lead(o, key);
	json_quote(o->to, value);
}

void out_int(struct out *o, const char *key, int64_t value)
{
	lead(o, key);
	buf_addf(o->to, "%lld", (long long)value);
}

void out_hundredths(struct out *o, const char *key, uint64_t value)
{
	lead(o, key);
	buf_addf(o->to, "%llu.%02llu", (unsigned long long)value / 100, (unsigned long long)value % 100);
}

void out_bool(struct out *o, const char *key, bool value)
{
	lead(o, key);
	buf_add_c(o->to, value ? "true" : "false");
}

void out_raw(struct out *o, const char *key, struct str value)
{
	lead(o, key);
	buf_add_str(o->to, value);
}

void out_null(struct out *o, const char *key)
{
	lead(o, key);
	buf_add_c(o->to, "null");
}

void out_pair(struct out *o, struct str key, struct str value)
{
	lead(o, NULL);
	json_quote(o->to, key);
	buf_add(o->to, ":", 1);
	json_quote(o->to, value);
}

void out_time(struct out *o, const char *key, int64_t realtime_ns)
{
	char text[RFC3339_SIZE];
	out_str(o, key, realtime_ns == INT64_MAX ? STR("9999-12-31T00:00:00Z") : str_of(rfc3339_format(text, realtime_ns)));
}
