/* The host's side of tests of virtio sockets, beside the guest's (vsock_guest.h). */
#ifndef CUBICLE_TESTS_VSOCK_HOST_H
#define CUBICLE_TESTS_VSOCK_HOST_H

#include "unit.h"
#include "vsock_guest.h"

extern struct vsock_guest guest;
/* vsock_config.up, with &guest: counts in ups. */
extern int ups;
void on_up(void *arg);
/* cmocka's fixtures: *state is that guest, without a driver; when it is up. */
int set_up(void **state);
int set_up_running(void **state);
int tear_down(void **state);
/* Our end of a stream that the device was given the other end of. */
int connect_host(struct vsock_guest *g, uint32_t port);
/* The connection that was made last; the one that comes when there were so many before. */
struct guest_conn *latest(struct vsock_guest *g);
struct guest_conn *opened(struct vsock_guest *g, unsigned before);
/* Everything until the end, or until n bytes are there. */
void read_host(struct vsock_guest *g, int fd, struct buf *to, size_t n);
/* Nothing comes any more; what comes next is this. */
void expect_end(struct vsock_guest *g, int fd);
void expect_text(struct vsock_guest *g, int fd, const char *text);
void write_host(int fd, const char *text);

#define running(f) cmocka_unit_test_setup_teardown(f, set_up_running, tear_down)

#endif
