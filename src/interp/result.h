/* What a kernel publishes, as events for clients (e2b.md C.2, C.3). No I/O. */
#ifndef CUBICLE_INTERP_RESULT_H
#define CUBICLE_INTERP_RESULT_H

#include "interp/output.h"

/*
 * Each adds the line for the content of one message, which the event must hold by its frames, or nothing
 * where there is nothing to tell (event->n is 0 then).
 */

/* "stream": stdout or stderr. */
void result_stream(struct event *e, struct str content);
/* "execute_input": number_of_executions. */
void result_count(struct event *e, struct str content);
/* "execute_result" and "display_data": the MIME types of content.data, of which e2b.md C.3 gives the keys. */
void result_data(struct event *e, struct str content, bool is_main);
/* "error", also the content of an execute_reply with status error. */
void result_error(struct event *e, struct str content);

/* Without the quotes of a language's own string, if it begins and ends with the same (inner: as
 * jsontext_inner gives it). */
struct str result_unquote(struct str inner);

#endif
