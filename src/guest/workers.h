/* File requests, each served by a process of its own (guest/files.h); this one only hands connections over and takes them back. */
#ifndef CUBICLE_GUEST_WORKERS_H
#define CUBICLE_GUEST_WORKERS_H

#include "guest/envd.h"

enum { WORKERS_MAX = 64, WORKERS_MAX_WAITING = 512, WATCHES_MAX = 512 /* streams of WatchDir */ };

struct file_workers *file_workers_new(struct envd *e);
/* Cuts the connections that are out. Takes NULL. */
void file_workers_free(struct file_workers *f);

/* Serves the request as soon as fewer than WORKERS_MAX run (a WatchDir at once, while fewer than WATCHES_MAX do), on a connection that is then taken away
 * from the server. */
void file_workers_serve(struct file_workers *f, struct http_req *r);

#endif
