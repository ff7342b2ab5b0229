#include "io/sendq.h"

#include "base/cleanup.h"

#include <sys/socket.h>

/* A queue that grew beyond this gives its memory back when it is empty. */
enum { KEEP = 16 * 1024 };

ssize_t sendq_send(int fd, struct buf *queue, const struct iovec *parts, int n)
{
	struct iovec iov[1 + SENDQ_PARTS];
	struct msghdr m = {.msg_iov = iov};
	size_t queued = buf_len(queue);
	if (queued)
		iov[m.msg_iovlen++] = (struct iovec){(void *)(uintptr_t)buf_str(queue).p, queued};
	for (int i = 0; i < n; i++)
		if (parts[i].iov_len)
			iov[m.msg_iovlen++] = parts[i];
	if (m.msg_iovlen == 0)
		return 0;
	ssize_t r;
	do {
		r = sendmsg(fd, &m, MSG_NOSIGNAL | MSG_DONTWAIT);
	} while (r < 0 && errno == EINTR);
	if (r < 0 && errno != EAGAIN && errno != ENOBUFS && errno != ENOMEM)
		return -errno;
	if (r < 0)
		r = 0;
	size_t of_queue = MIN((size_t)r, queued), sent = (size_t)r - of_queue;
	buf_consume(queue, of_queue);
	for (int i = 0; i < n; i++) {
		size_t skip = MIN(sent, parts[i].iov_len);
		sent -= skip;
		buf_add(queue, (const char *)parts[i].iov_base + skip, parts[i].iov_len - skip);
	}
	if (buf_len(queue) == 0 && queue->cap > KEEP)
		buf_done(queue);
	return queue->failed ? -ENOMEM : r;
}
