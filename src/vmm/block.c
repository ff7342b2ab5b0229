/*
 * A disk (virtio 1.2, 5.2): the loop checks requests and answers them, threads of its own carry them out.
 *
 * What is under way is bounded by the queue (virtqueue_pop()). Requests that a rate limit holds back stay in the queue, so that there is nothing of them to save.
 */
#include "vmm/devices.h"

#include "base/cleanup.h"
#include "base/clock.h"
#include "base/log.h"
#include "vmm/block_io.h"
#include "vmm/jail.h"
#include "vmm/bucket.h"

#include <endian.h>
#include <linux/fs.h>
#include <linux/virtio_blk.h>
#include <linux/virtio_config.h>
#include <pthread.h>
#include <signal.h>
#include <stddef.h>
#include <sys/eventfd.h>
#include <sys/ioctl.h>
#include <sys/stat.h>

enum {
	SECTOR = 512,
	WORKERS = 2,               /* a flush does not hold up reads */
	REQUESTS_A_TURN = 64,      /* other devices have their turn, too */
	SEGMENT_BYTES = 64 << 10,
	SEGMENTS = CHAIN_PARTS_MAX - 2, /* beside header and status */
	REQUEST_BYTES = 16 << 20,  /* what segments of that size come to; bounds how long a reset waits */
	UNDER_WAY_BYTES = 64 << 20, /* then the rest stays in the queue: bounds how long a pause waits, and a queue's end, for which the loop stands still */
	CACHED_BYTES = 128 << 10,  /* a read up to here is tried on the loop */
	DISCARD_SECTORS = (1 << 30) / SECTOR,
	ZEROES_SECTORS = REQUEST_BYTES / SECTOR, /* may have to be written one by one */
	ALIGNMENT = 4096 / SECTOR, /* of holes in files */
	CONFIG_BYTES = offsetof(struct virtio_blk_config, write_zeroes_may_unmap) + 4,
};

#define BIT(n) (UINT64_C(1) << (n))

struct requests {
	struct block_request *first, **last;
};

struct block {
	struct virtio_device d;
	int file;
	bool read_only, paused, complained;
	uint64_t sectors;
	struct virtio_blk_config config;
	struct bucket bytes, operations;
	struct loop_timer *timer; /* of what the buckets hold back */
	uint64_t moving; /* bytes that the threads have to move */
	struct chain chain;
	int done; /* eventfd: something is in `finished` */
	struct loop_fd *done_watch;
	unsigned threads;
	pthread_t thread[WORKERS];
	/* Shared with the threads: */
	pthread_mutex_t lock;
	pthread_cond_t work, idle;
	struct requests waiting, finished;
	unsigned under_way; /* waiting or with a thread */
	bool stop;
};

static struct block *block_of(struct virtio_device *d)
{
	return container_of(d, struct block, d);
}

static void append(struct requests *list, struct block_request *r)
{
	r->next = NULL;
	if (!list->first)
		list->last = &list->first;
	*list->last = r;
	list->last = &r->next;
}

static struct block_request *take_all(struct requests *list)
{
	struct block_request *r = list->first;
	list->first = NULL;
	return r;
}

/* What is read or written for it; of zeros nobody knows how they are made. */
static uint64_t moves(const struct block_request *r)
{
	return r->type == VIRTIO_BLK_T_IN || r->type == VIRTIO_BLK_T_OUT || r->type == VIRTIO_BLK_T_WRITE_ZEROES ? r->bytes : 0;
}

/* Of what was submitted. */
static unsigned free_all(struct block *b, struct block_request *r)
{
	unsigned n = 0;
	for (struct block_request *next; r; r = next, n++) {
		next = r->next;
		b->moving -= moves(r);
		free(r);
	}
	return n;
}

/* --- threads --- */

static void *worker(void *arg)
{
	struct block *b = arg;
	jail_thread(JAIL_WORKER);
	pthread_mutex_lock(&b->lock);
	for (;;) {
		while (!b->waiting.first && !b->stop)
			pthread_cond_wait(&b->work, &b->lock);
		if (b->stop)
			break;
		struct block_request *r = b->waiting.first;
		b->waiting.first = r->next;
		pthread_mutex_unlock(&b->lock);
		block_io(r);
		pthread_mutex_lock(&b->lock);
		uint64_t one = 1;
		if (!b->finished.first && write(b->done, &one, sizeof(one)) < 0)
			log_debug("disk: %s", strerror(errno)); /* only if the counter were full: then the loop wakes anyway */
		append(&b->finished, r);
		if (--b->under_way == 0)
			pthread_cond_broadcast(&b->idle);
	}
	pthread_mutex_unlock(&b->lock);
	return NULL;
}

static int start_threads(struct block *b)
{
	/* Signals belong to the loop's thread. */
	sigset_t all, before;
	int r = 0;
	sigfillset(&all);
	pthread_sigmask(SIG_SETMASK, &all, &before);
	while (b->threads < WORKERS && (r = pthread_create(&b->thread[b->threads], NULL, worker, b)) == 0)
		b->threads++;
	pthread_sigmask(SIG_SETMASK, &before, NULL);
	return -r;
}

static void submit(struct block *b, struct block_request *r)
{
	b->moving += moves(r);
	pthread_mutex_lock(&b->lock);
	append(&b->waiting, r);
	b->under_way++;
	pthread_cond_signal(&b->work);
	pthread_mutex_unlock(&b->lock);
}

/* --- answers --- */

static void answer(struct block *b, struct block_request *r)
{
	if (r->error < 0 && !b->complained) {
		b->complained = true;
		log_warn("disk: a request failed: %s", strerror(-r->error));
	}
	*r->status = r->error == 0 ? VIRTIO_BLK_S_OK : r->error == -EOPNOTSUPP ? VIRTIO_BLK_S_UNSUPP : VIRTIO_BLK_S_IOERR;
	/* Only what is filled from the front on counts (2.7.8.2). Of a read that failed nobody knows. */
	virtqueue_push(&b->d.queue[0], r->head, r->room == 0 ? 1 : r->type == VIRTIO_BLK_T_IN && r->error == 0 ? r->room + 1 : 0);
	free(r);
}

static void answer_finished(struct block *b)
{
	pthread_mutex_lock(&b->lock);
	struct block_request *r = take_all(&b->finished);
	pthread_mutex_unlock(&b->lock);
	if (!b->d.active) { /* broken: its queue is not touched any more */
		free_all(b, r);
		return;
	}
	for (struct block_request *next; r; r = next) {
		next = r->next;
		b->moving -= moves(r);
		answer(b, r);
	}
	virtio_used(&b->d, &b->d.queue[0]);
}

/* --- requests --- */

static bool in_disk(const struct block *b, uint64_t sector, uint64_t sectors)
{
	return sector <= b->sectors && sectors <= b->sectors - sector;
}

/* The one range of a discard or a write-zeroes (5.2.6): OK and the request's range, or why not. */
static unsigned char check_range(struct block *b, struct block_request *r, size_t n)
{
	struct virtio_blk_discard_write_zeroes range;
	bool zeroes = r->type == VIRTIO_BLK_T_WRITE_ZEROES;
	if (!(b->d.accepted & BIT(zeroes ? VIRTIO_BLK_F_WRITE_ZEROES : VIRTIO_BLK_F_DISCARD)))
		return VIRTIO_BLK_S_UNSUPP;
	if (n != sizeof(range))
		return VIRTIO_BLK_S_IOERR;
	chain_read(&b->chain, sizeof(struct virtio_blk_outhdr), &range, n);
	uint64_t sector = le64toh(range.sector);
	uint32_t sectors = le32toh(range.num_sectors), flags = le32toh(range.flags);
	if (flags & ~(uint32_t)(zeroes ? VIRTIO_BLK_WRITE_ZEROES_FLAG_UNMAP : 0))
		return VIRTIO_BLK_S_UNSUPP;
	if (sectors > (zeroes ? ZEROES_SECTORS : DISCARD_SECTORS) || !in_disk(b, sector, sectors))
		return VIRTIO_BLK_S_IOERR;
	r->unmap = flags != 0;
	r->offset = sector * SECTOR;
	r->bytes = (uint64_t)sectors * SECTOR;
	return VIRTIO_BLK_S_OK;
}

static unsigned char check_transfer(struct block *b, struct block_request *r, uint64_t sector, size_t n)
{
	if (n % SECTOR != 0 || n > REQUEST_BYTES || !in_disk(b, sector, n / SECTOR) || (r->type == VIRTIO_BLK_T_OUT && b->read_only))
		return VIRTIO_BLK_S_IOERR;
	r->offset = sector * SECTOR;
	r->bytes = n;
	return VIRTIO_BLK_S_OK;
}

static unsigned char check(struct block *b, struct block_request *r, uint64_t sector)
{
	const struct chain *c = &b->chain;
	size_t in = c->in_bytes - sizeof(struct virtio_blk_outhdr), out = c->out_bytes - 1;
	switch (r->type) {
	case VIRTIO_BLK_T_IN:
		return check_transfer(b, r, sector, out);
	case VIRTIO_BLK_T_OUT:
		return check_transfer(b, r, sector, in);
	case VIRTIO_BLK_T_DISCARD:
	case VIRTIO_BLK_T_WRITE_ZEROES:
		return check_range(b, r, in);
	case VIRTIO_BLK_T_FLUSH:
		return VIRTIO_BLK_S_OK;
	default:
		return VIRTIO_BLK_S_UNSUPP;
	}
}

/* The `bytes` of the parts from `skip` on. */
static void use_parts(struct block_request *r, const struct iovec *parts, unsigned n, size_t skip)
{
	uint64_t left = r->bytes;
	for (unsigned i = 0; i < n && left; i++) {
		size_t drop = MIN(skip, parts[i].iov_len), some = MIN(parts[i].iov_len - drop, left);
		skip -= drop;
		left -= some;
		if (some)
			r->iov[r->n++] = (struct iovec){(char *)parts[i].iov_base + drop, some};
	}
}

/* Answers what needs no disk: the name, and everything that is wrong. */
static void answer_now(struct block *b, uint32_t type, unsigned char status)
{
	static const char name[VIRTIO_BLK_ID_BYTES] = "cubicle";
	struct chain *c = &b->chain;
	size_t room = c->out_bytes - 1;
	uint32_t written = room ? 0 : 1;
	if (type == VIRTIO_BLK_T_GET_ID) {
		size_t n = chain_write(c, 0, name, MIN(room, sizeof(name)));
		written = (uint32_t)n + (n == room);
		status = VIRTIO_BLK_S_OK;
	}
	chain_write(c, room, &status, 1);
	virtqueue_push(&b->d.queue[0], c->head, written);
}

/* Takes the chain over. False: it is not even one. */
static bool begin(struct block *b, int64_t now)
{
	struct chain *c = &b->chain;
	struct virtio_blk_outhdr header;
	if (chain_read(c, 0, &header, sizeof(header)) < sizeof(header) || c->out_bytes < 1)
		return false;
	struct block_request *r = malloc(sizeof(*r) + (c->n_in + c->n_out) * sizeof(r->iov[0]));
	if (r)
		*r = (struct block_request){.file = b->file, .type = le32toh(header.type), .head = c->head, .room = (uint32_t)c->out_bytes - 1,
			.write_through = !(b->d.accepted & BIT(VIRTIO_BLK_F_FLUSH))};
	unsigned char status = r ? check(b, r, le64toh(header.sector)) : VIRTIO_BLK_S_IOERR;
	bucket_take(&b->operations, now, 1);
	if (status != VIRTIO_BLK_S_OK) {
		answer_now(b, le32toh(header.type), status);
		free(r);
		return true;
	}
	const struct iovec *last = &c->out[c->n_out - 1];
	r->status = (unsigned char *)last->iov_base + last->iov_len - 1;
	if (r->type == VIRTIO_BLK_T_IN)
		use_parts(r, c->out, c->n_out, 0);
	else if (r->type == VIRTIO_BLK_T_OUT)
		use_parts(r, c->in, c->n_in, sizeof(header));
	bucket_take(&b->bytes, now, moves(r));
	if (r->type == VIRTIO_BLK_T_IN && r->bytes <= CACHED_BYTES && block_io_cached(r))
		answer(b, r);
	else
		submit(b, r);
	return true;
}

/* True: a limit is reached, the timer goes on with the queue. */
static bool held_back(struct block *b, int64_t now)
{
	int64_t wait = MAX(bucket_wait(&b->bytes, now), bucket_wait(&b->operations, now));
	/* The timer's memory is there from the first time on; without it the next notification tries again. */
	if (wait)
		loop_timer_at(b->timer, now + wait);
	return wait != 0;
}

/* The threads have enough: on_done() goes on with the queue. */
static bool busy(const struct block *b)
{
	return b->moving >= UNDER_WAY_BYTES;
}

static void run_queue(struct block *b)
{
	struct virtqueue *q = &b->d.queue[0];
	bool held = false;
	unsigned n = 0;
	if (!b->d.active || b->paused)
		return;
	do {
		virtqueue_notifications(q, false);
		int r = 1;
		while (n < REQUESTS_A_TURN && !busy(b) && virtqueue_has(q)) {
			int64_t now = clock_boottime();
			held = held_back(b, now);
			if (held)
				break;
			r = virtqueue_pop(q, &b->chain);
			if (r <= 0)
				break;
			n++;
			if (!begin(b, now)) {
				r = -EPROTO;
				break;
			}
		}
		if (r < 0) {
			virtio_broken(&b->d, "a request that is none");
			return;
		}
		virtqueue_notifications(q, true);
	} while (!held && n < REQUESTS_A_TURN && !busy(b) && virtqueue_has(q));
	if (n == REQUESTS_A_TURN)
		virtio_again(&b->d);
	virtio_used(&b->d, q);
}

static void on_done(struct loop_fd *w, uint32_t events, void *arg)
{
	struct block *b = arg;
	uint64_t n;
	ssize_t r = read(b->done, &n, sizeof(n));
	(void)r;
	answer_finished(b);
	run_queue(b);
}

static void on_timer(struct loop_timer *t, void *arg)
{
	run_queue(arg);
}

static void block_notify(struct virtio_device *d, unsigned queue)
{
	run_queue(block_of(d));
}

/* --- life --- */

static void wait_idle(struct block *b)
{
	while (b->under_way)
		pthread_cond_wait(&b->idle, &b->lock);
}

static void block_reset(struct virtio_device *d)
{
	struct block *b = block_of(d);
	if (b->timer)
		loop_timer_stop(b->timer);
	pthread_mutex_lock(&b->lock);
	b->under_way -= free_all(b, take_all(&b->waiting));
	wait_idle(b);
	free_all(b, take_all(&b->finished));
	pthread_mutex_unlock(&b->lock);
}

static void block_quiesce(struct virtio_device *d)
{
	struct block *b = block_of(d);
	b->paused = true;
	pthread_mutex_lock(&b->lock);
	wait_idle(b);
	pthread_mutex_unlock(&b->lock);
	answer_finished(b);
}

static void block_resume(struct virtio_device *d)
{
	struct block *b = block_of(d);
	b->paused = false;
	run_queue(b);
}

/* What the guest relies on: that the disk is no smaller than it was, and may be written as before. */
struct saved {
	uint64_t sectors, read_only;
};

static void block_save(struct virtio_device *d, struct buf *to)
{
	struct saved s = {block_of(d)->sectors, block_of(d)->read_only};
	buf_add(to, &s, sizeof(s));
}

static int block_load(struct virtio_device *d, struct str from)
{
	struct saved s;
	if (from.n != sizeof(s))
		return -EINVAL;
	memcpy(&s, from.p, sizeof(s));
	return s.sectors <= block_of(d)->sectors && s.read_only == block_of(d)->read_only ? 0 : -EINVAL;
}

static void block_free(struct virtio_device *d)
{
	struct block *b = block_of(d);
	pthread_mutex_lock(&b->lock);
	b->stop = true;
	pthread_cond_broadcast(&b->work);
	pthread_mutex_unlock(&b->lock);
	for (unsigned i = 0; i < b->threads; i++)
		pthread_join(b->thread[i], NULL);
	loop_timer_free(b->timer);
	loop_fd_del(b->done_watch);
	cleanup_fd_p(&b->done);
	cleanup_fd_p(&b->file);
	pthread_cond_destroy(&b->idle);
	pthread_cond_destroy(&b->work);
	pthread_mutex_destroy(&b->lock);
	free(b);
}

static const struct virtio_ops ops = {
	.id = VIRTIO_BLOCK,
	.name = "block",
	.reset = block_reset,
	.notify = block_notify,
	.quiesce = block_quiesce,
	.resume = block_resume,
	.save = block_save,
	.load = block_load,
	.free = block_free,
};

static int measure(int file, uint64_t *ret)
{
	struct stat st;
	if (fstat(file, &st) < 0)
		return -errno;
	if (S_ISREG(st.st_mode))
		*ret = (uint64_t)st.st_size / SECTOR;
	else if (!S_ISBLK(st.st_mode))
		return -EINVAL;
	else if (ioctl(file, BLKGETSIZE64, ret) < 0)
		return -errno;
	else
		*ret /= SECTOR;
	return 0;
}

static void describe(struct block *b)
{
	b->config.capacity = htole64(b->sectors);
	b->config.size_max = htole32(SEGMENT_BYTES);
	b->config.seg_max = htole32(SEGMENTS);
	b->d.offered = BIT(VIRTIO_BLK_F_SIZE_MAX) | BIT(VIRTIO_BLK_F_SEG_MAX);
	if (b->read_only) {
		b->d.offered |= BIT(VIRTIO_BLK_F_RO);
		return;
	}
	b->d.offered |= BIT(VIRTIO_BLK_F_FLUSH) | BIT(VIRTIO_BLK_F_DISCARD) | BIT(VIRTIO_BLK_F_WRITE_ZEROES);
	b->config.max_discard_sectors = htole32(DISCARD_SECTORS);
	b->config.max_discard_seg = htole32(1);
	b->config.discard_sector_alignment = htole32(ALIGNMENT);
	b->config.max_write_zeroes_sectors = htole32(ZEROES_SECTORS);
	b->config.max_write_zeroes_seg = htole32(1);
	b->config.write_zeroes_may_unmap = 1;
}

static int set_up(struct block *b, struct loop *l)
{
	int r = measure(b->file, &b->sectors);
	if (r < 0)
		return r;
	describe(b);
	b->timer = loop_timer_new(l, on_timer, b);
	b->done = eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK);
	if (!b->timer || b->done < 0)
		return -ENOMEM;
	b->done_watch = loop_fd_add(l, b->done, EPOLLIN, on_done, b);
	return b->done_watch ? start_threads(b) : -errno;
}

struct virtio_device *block_new(struct loop *l, const struct guest_memory *m, const struct block_config *c, struct error *err)
{
	cleanup_fd int file = c->file;
	struct block *b = calloc(1, sizeof(*b));
	if (!b) {
		error_errno(err, -ENOMEM, "disk");
		return NULL;
	}
	*b = (struct block){
		.d = {.ops = &ops, .n_queues = 1, .config_size = CONFIG_BYTES, .config = &b->config},
		.file = steal_fd(&file),
		.read_only = c->read_only,
		.bytes.rate = c->bytes_per_second,
		.operations.rate = c->operations_per_second,
		.done = -1,
	};
	pthread_mutex_init(&b->lock, NULL);
	pthread_cond_init(&b->work, NULL);
	pthread_cond_init(&b->idle, NULL);
	int r = virtio_init(&b->d, l, m, err);
	if (r == 0) {
		r = set_up(b, l);
		if (r < 0)
			error_errno(err, r, "disk");
	}
	return virtio_made(&b->d, r);
}
