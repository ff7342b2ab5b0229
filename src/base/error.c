#include "base/error.h"

#include <stdarg.h>
#include <stdio.h>
#include <string.h>

int error_set(struct error *err, int code, int status, const char *fmt, ...)
{
	if (!err)
		return code;
	va_list ap;
	va_start(ap, fmt);
	vsnprintf(err->message, sizeof(err->message), fmt, ap);
	va_end(ap);
	err->code = code;
	err->status = status;
	err->retry_after = 0;
	return code;
}

int error_errno(struct error *err, int code, const char *fmt, ...)
{
	char text[sizeof(err->message)];
	va_list ap;
	va_start(ap, fmt);
	vsnprintf(text, sizeof(text), fmt, ap);
	va_end(ap);
	return error_set(err, code, 500, "%s: %s", text, strerror(-code));
}

int error_wrap(struct error *err, int code, const char *fmt, ...)
{
	if (!err)
		return code;
	char context[sizeof(err->message)], rest[sizeof(err->message)];
	va_list ap;
	va_start(ap, fmt);
	vsnprintf(context, sizeof(context), fmt, ap);
	va_end(ap);
	memcpy(rest, err->message, sizeof(rest));
	if (snprintf(err->message, sizeof(err->message), "%s: %s", context, rest) >= (int)sizeof(err->message))
		err->message[sizeof(err->message) - 2] = '~';
	return err->code;
}
