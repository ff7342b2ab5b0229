#include "unit.h"

#include "base/clock.h"
#include "base/fd.h"
#include "vmm/bucket.h"
#include "vmm/devices.h"
#include "vmm_driver.h"

#include <endian.h>
#include <fcntl.h>
#include <linux/virtio_blk.h>
#include <linux/virtio_config.h>
#include <linux/virtio_mmio.h>
#include <linux/virtio_ring.h>
#include <sched.h>
#include <signal.h>
#include <stdio.h>
#include <sys/mount.h>
#include <sys/resource.h>
#include <sys/stat.h>

enum { MEMORY = 8 << 20, DISK = 4 << 20, SECTOR = 512, QUEUE = 64 };

#define BIT(n) (UINT64_C(1) << (n))
#define WRITABLE (BIT(VIRTIO_BLK_F_FLUSH) | BIT(VIRTIO_BLK_F_DISCARD) | BIT(VIRTIO_BLK_F_WRITE_ZEROES))

struct world {
	struct guest_memory memory;
	struct loop *loop;
	struct virtio_device *d;
	struct driver driver;
	int file; /* the disk, ours */
	uint64_t header, data, status; /* of a request, in guest memory */
};

static int disk_file(void)
{
	char name[] = "/tmp/cubicle-test-block-XXXXXX";
	int fd = mkostemp(name, O_CLOEXEC);
	assert_true(fd >= 0);
	unlink(name);
	assert_int_equal(ftruncate(fd, DISK), 0);
	/* Sector i begins with i. */
	for (uint64_t i = 0; i < DISK / SECTOR; i++)
		assert_int_equal(pwrite(fd, &i, sizeof(i), (off_t)(i * SECTOR)), sizeof(i));
	return fd;
}

static void start(struct world *w, uint64_t features)
{
	driver_start(&w->driver, features, QUEUE);
	w->header = driver_alloc(&w->driver, 16);
	w->status = driver_alloc(&w->driver, 1);
	w->data = driver_alloc(&w->driver, 1 << 20);
}

static void begin_with(struct world *w, struct block_config c, uint64_t features)
{
	struct error err = {0};
	driver_memory(&w->memory, MEMORY);
	w->loop = loop_new();
	w->file = disk_file();
	c.file = fcntl(w->file, F_DUPFD_CLOEXEC, 3);
	w->d = block_new(w->loop, &w->memory, &c, &err);
	assert_non_null(w->d);
	driver_init(&w->driver, w->d, &w->memory);
	start(w, features);
}

static void begin(struct world *w)
{
	begin_with(w, (struct block_config){0}, WRITABLE);
}

static void end(struct world *w)
{
	virtio_free(w->d);
	loop_free(w->loop);
	close(w->file);
	driver_memory_done(&w->memory);
}

static void put_header(struct world *w, uint64_t at, uint32_t type, uint64_t sector)
{
	struct virtio_blk_outhdr h = {.type = htole32(type), .sector = htole64(sector)};
	memcpy(driver_at(&w->driver, at, sizeof(h)), &h, sizeof(h));
}

/* One request with `n` bytes of data, answered: its status. */
static uint8_t request(struct world *w, uint32_t type, uint64_t sector, uint32_t n, uint32_t *ret_written)
{
	bool in = type == VIRTIO_BLK_T_IN || type == VIRTIO_BLK_T_GET_ID;
	struct part parts[] = {{w->header, 16, false}, {w->data, n, in}, {w->status, 1, true}};
	uint8_t *status = driver_at(&w->driver, w->status, 1);
	put_header(w, w->header, type, sector);
	if (n == 0)
		parts[1] = parts[2];
	*status = 0xee;
	driver_add(&w->driver, 0, parts, n ? 3 : 2);
	driver_notify(&w->driver, 0);
	driver_wait(&w->driver, w->loop, 0, NULL, ret_written);
	return *status;
}

static uint8_t range(struct world *w, uint32_t type, uint64_t sector, uint32_t sectors, uint32_t flags)
{
	struct virtio_blk_discard_write_zeroes r = {htole64(sector), htole32(sectors), htole32(flags)};
	memcpy(driver_at(&w->driver, w->data, sizeof(r)), &r, sizeof(r));
	return request(w, type, 0, sizeof(r), NULL);
}

static uint64_t first_of(struct world *w, uint64_t sector)
{
	uint64_t value = 0;
	assert_int_equal(pread(w->file, &value, sizeof(value), (off_t)(sector * SECTOR)), sizeof(value));
	return value;
}

static void the_configuration_tells_of_the_disk(void **state)
{
	struct world w = {0};
	uint64_t capacity;
	begin(&w);
	virtio_mmio_read(w.d, 0x100, &capacity, sizeof(capacity));
	assert_int_equal(capacity, DISK / SECTOR);
	assert_int_equal(driver_get(&w.driver, 0x100), DISK / SECTOR);
	assert_int_equal(driver_get(&w.driver, 0x100 + offsetof(struct virtio_blk_config, seg_max)), CHAIN_PARTS_MAX - 2);
	uint64_t offered = driver_offered(&w.driver);
	assert_true(offered & BIT(VIRTIO_BLK_F_FLUSH) && offered & BIT(VIRTIO_BLK_F_DISCARD) && offered & BIT(VIRTIO_BLK_F_WRITE_ZEROES) && !(offered & BIT(VIRTIO_BLK_F_RO)));
	end(&w);
}

static void what_is_written_is_read(void **state)
{
	struct world w = {0};
	uint32_t written;
	begin(&w);
	/* Small (from the host's memory at once) and large (by a thread). */
	for (uint32_t n = SECTOR; n <= 1 << 20; n *= 2) {
		char *data = driver_at(&w.driver, w.data, n);
		memset(data, (int)(n >> 9) | 1, n);
		assert_int_equal(request(&w, VIRTIO_BLK_T_OUT, 7, n, &written), VIRTIO_BLK_S_OK);
		assert_int_equal(written, 1);
		memset(data, 0, n);
		assert_int_equal(request(&w, VIRTIO_BLK_T_IN, 7, n, &written), VIRTIO_BLK_S_OK);
		assert_int_equal(written, n + 1);
		for (uint32_t i = 0; i < n; i++)
			assert_int_equal(data[i], (char)((n >> 9) | 1));
		assert_int_equal(first_of(&w, 6), 6);
		assert_int_equal(first_of(&w, 7 + n / SECTOR), 7 + n / SECTOR);
	}
	assert_int_equal(request(&w, VIRTIO_BLK_T_FLUSH, 0, 0, &written), VIRTIO_BLK_S_OK);
	assert_int_equal(written, 1);
	assert_true(driver_interrupts(&w.driver) & VIRTIO_MMIO_INT_VRING);
	end(&w);
}

/* 2.7.4.1: a device makes no assumption about where one part ends and the next begins. */
static void any_layout_will_do(void **state)
{
	struct world w = {0};
	begin(&w);
	uint64_t h = w.header, d = w.data;
	put_header(&w, h, VIRTIO_BLK_T_OUT, 3);
	memset(driver_at(&w.driver, d, 1024), 'x', 1024);
	struct part parts[] = {{h, 5, false}, {h + 5, 11, false}, {d, 1, false}, {d + 1, 1000, false}, {d + 1001, 23, false}, {w.status, 1, true}};
	driver_add_indirect(&w.driver, 0, parts, 6);
	/* Header and data in one; the status behind data. */
	uint64_t other = driver_alloc(&w.driver, 16 + SECTOR), back = driver_alloc(&w.driver, SECTOR + 1), get = driver_alloc(&w.driver, 16);
	put_header(&w, other, VIRTIO_BLK_T_OUT, 9);
	memset(driver_at(&w.driver, other + 16, SECTOR), 'y', SECTOR);
	struct part joined[] = {{other, 16 + SECTOR, false}, {w.status, 1, true}};
	driver_add(&w.driver, 0, joined, 2);
	driver_notify(&w.driver, 0);
	driver_wait(&w.driver, w.loop, 0, NULL, NULL);
	driver_wait(&w.driver, w.loop, 0, NULL, NULL);
	put_header(&w, get, VIRTIO_BLK_T_IN, 9);
	struct part read_joined[] = {{get, 16, false}, {back, SECTOR + 1, true}};
	driver_add(&w.driver, 0, read_joined, 2);
	driver_notify(&w.driver, 0);
	driver_wait(&w.driver, w.loop, 0, NULL, NULL);
	const char *bytes = driver_at(&w.driver, back, SECTOR + 1);
	assert_int_equal(bytes[0], 'y');
	assert_int_equal(bytes[SECTOR - 1], 'y');
	assert_int_equal(bytes[SECTOR], VIRTIO_BLK_S_OK);
	char file[1024];
	assert_int_equal(pread(w.file, file, sizeof(file), 3 * SECTOR), sizeof(file));
	assert_int_equal(file[0], 'x');
	assert_int_equal(file[1023], 'x');
	end(&w);
}

static void what_is_out_of_range_or_unaligned_fails(void **state)
{
	static const struct {
		uint64_t sector;
		uint32_t n;
		uint8_t want;
	} cases[] = {
		{DISK / SECTOR - 1, SECTOR, VIRTIO_BLK_S_OK},
		{DISK / SECTOR - 1, 2 * SECTOR, VIRTIO_BLK_S_IOERR},
		{DISK / SECTOR, SECTOR, VIRTIO_BLK_S_IOERR},
		{DISK / SECTOR, 0, VIRTIO_BLK_S_OK},
		{DISK / SECTOR + 1, 0, VIRTIO_BLK_S_IOERR},
		{UINT64_MAX, SECTOR, VIRTIO_BLK_S_IOERR},
		{UINT64_MAX / SECTOR, SECTOR, VIRTIO_BLK_S_IOERR},
		{UINT64_MAX / SECTOR + 1, SECTOR, VIRTIO_BLK_S_IOERR},
		{0, SECTOR - 1, VIRTIO_BLK_S_IOERR},
		{0, SECTOR + 1, VIRTIO_BLK_S_IOERR},
		{0, 1, VIRTIO_BLK_S_IOERR},
	};
	struct world w = {0};
	struct stat st;
	begin(&w);
	for (size_t i = 0; i < ARRAY_SIZE(cases); i++) {
		uint32_t written;
		assert_int_equal(request(&w, VIRTIO_BLK_T_IN, cases[i].sector, cases[i].n, &written), cases[i].want);
		assert_int_equal(written, cases[i].want == VIRTIO_BLK_S_OK || cases[i].n == 0 ? cases[i].n + 1 : 0);
		assert_int_equal(request(&w, VIRTIO_BLK_T_OUT, cases[i].sector, cases[i].n, NULL), cases[i].want);
	}
	assert_int_equal(fstat(w.file, &st), 0);
	assert_int_equal(st.st_size, DISK);
	end(&w);
}

static void holes_are_made_and_zeros_written(void **state)
{
	struct world w = {0};
	struct stat st;
	begin(&w);
	assert_int_equal(fstat(w.file, &st), 0);
	blkcnt_t before = st.st_blocks;
	assert_int_equal(range(&w, VIRTIO_BLK_T_DISCARD, 8, 1024, 0), VIRTIO_BLK_S_OK);
	assert_int_equal(fstat(w.file, &st), 0);
	assert_true(st.st_blocks < before);
	assert_int_equal(st.st_size, DISK);
	assert_int_equal(first_of(&w, 7), 7);
	assert_int_equal(first_of(&w, 8), 0);
	assert_int_equal(first_of(&w, 1031), 0);
	assert_int_equal(first_of(&w, 1032), 1032);
	for (uint32_t unmap = 0; unmap < 2; unmap++) {
		uint64_t at = 2001 + 1000 * unmap;
		assert_int_equal(range(&w, VIRTIO_BLK_T_WRITE_ZEROES, at, 333, unmap ? VIRTIO_BLK_WRITE_ZEROES_FLAG_UNMAP : 0), VIRTIO_BLK_S_OK);
		assert_int_equal(first_of(&w, at - 1), at - 1);
		assert_int_equal(first_of(&w, at), 0);
		assert_int_equal(first_of(&w, at + 332), 0);
		assert_int_equal(first_of(&w, at + 333), at + 333);
	}
	uint32_t types[] = {VIRTIO_BLK_T_DISCARD, VIRTIO_BLK_T_WRITE_ZEROES};
	for (size_t i = 0; i < 2; i++) {
		assert_int_equal(range(&w, types[i], DISK / SECTOR, 0, 0), VIRTIO_BLK_S_OK);
		assert_int_equal(range(&w, types[i], DISK / SECTOR - 1, 2, 0), VIRTIO_BLK_S_IOERR);
		assert_int_equal(range(&w, types[i], UINT64_MAX, 1, 0), VIRTIO_BLK_S_IOERR);
		assert_int_equal(range(&w, types[i], 0, UINT32_MAX, 0), VIRTIO_BLK_S_IOERR);
		assert_int_equal(range(&w, types[i], 0, 1, 2), VIRTIO_BLK_S_UNSUPP);
		assert_int_equal(request(&w, types[i], 0, 15, NULL), VIRTIO_BLK_S_IOERR);
		assert_int_equal(request(&w, types[i], 0, 32, NULL), VIRTIO_BLK_S_IOERR);
		assert_int_equal(request(&w, types[i], 0, 0, NULL), VIRTIO_BLK_S_IOERR);
	}
	assert_int_equal(range(&w, VIRTIO_BLK_T_DISCARD, 0, 1, VIRTIO_BLK_WRITE_ZEROES_FLAG_UNMAP), VIRTIO_BLK_S_UNSUPP);
	/* Not agreed upon. Writes reach the disk before they are answered then. */
	start(&w, 0);
	assert_int_equal(range(&w, VIRTIO_BLK_T_DISCARD, 0, 1, 0), VIRTIO_BLK_S_UNSUPP);
	assert_int_equal(request(&w, VIRTIO_BLK_T_OUT, 0, SECTOR, NULL), VIRTIO_BLK_S_OK);
	end(&w);
}

static void a_name_is_told_and_the_unknown_refused(void **state)
{
	struct world w = {0};
	uint32_t written;
	begin(&w);
	memset(driver_at(&w.driver, w.data, 32), 0xee, 32);
	assert_int_equal(request(&w, VIRTIO_BLK_T_GET_ID, 0, VIRTIO_BLK_ID_BYTES, &written), VIRTIO_BLK_S_OK);
	assert_int_equal(written, VIRTIO_BLK_ID_BYTES + 1);
	assert_memory_equal(driver_at(&w.driver, w.data, 20), "cubicle\0\0\0\0\0\0\0\0\0\0\0\0\0\xee", 21);
	assert_int_equal(request(&w, VIRTIO_BLK_T_GET_ID, 0, 4, &written), VIRTIO_BLK_S_OK);
	assert_int_equal(written, 5);
	uint32_t types[] = {2, 3, 5, 16, VIRTIO_BLK_T_SECURE_ERASE, VIRTIO_BLK_T_BARRIER, UINT32_MAX};
	for (size_t i = 0; i < ARRAY_SIZE(types); i++)
		assert_int_equal(request(&w, types[i], 0, SECTOR, NULL), VIRTIO_BLK_S_UNSUPP);
	end(&w);
}

static void a_request_that_is_none_breaks_the_device(void **state)
{
	struct world w = {0};
	begin(&w);
	struct part shapes[][2] = {
		{{w.header, 15, false}, {w.status, 1, true}}, /* no whole header */
		{{w.header, 16, false}, {w.data, 1, false}},  /* nowhere to put the status */
		{{w.data, 16, true}, {w.status, 1, true}},
	};
	for (size_t i = 0; i < ARRAY_SIZE(shapes); i++) {
		put_header(&w, w.header, VIRTIO_BLK_T_IN, 0);
		driver_add(&w.driver, 0, shapes[i], 2);
		driver_notify(&w.driver, 0);
		assert_true(driver_get(&w.driver, VIRTIO_MMIO_STATUS) & VIRTIO_CONFIG_S_NEEDS_RESET);
		start(&w, WRITABLE);
		assert_int_equal(request(&w, VIRTIO_BLK_T_IN, 5, SECTOR, NULL), VIRTIO_BLK_S_OK);
	}
	end(&w);
}

static void a_read_only_disk_stays_as_it_is(void **state)
{
	struct world w = {0};
	begin_with(&w, (struct block_config){.read_only = true}, BIT(VIRTIO_BLK_F_RO));
	uint64_t offered = driver_offered(&w.driver);
	assert_true(offered & BIT(VIRTIO_BLK_F_RO) && !(offered & WRITABLE));
	assert_int_equal(request(&w, VIRTIO_BLK_T_OUT, 5, SECTOR, NULL), VIRTIO_BLK_S_IOERR);
	assert_int_equal(range(&w, VIRTIO_BLK_T_DISCARD, 5, 1, 0), VIRTIO_BLK_S_UNSUPP);
	assert_int_equal(range(&w, VIRTIO_BLK_T_WRITE_ZEROES, 5, 1, 0), VIRTIO_BLK_S_UNSUPP);
	assert_int_equal(first_of(&w, 5), 5);
	assert_int_equal(request(&w, VIRTIO_BLK_T_IN, 5, SECTOR, NULL), VIRTIO_BLK_S_OK);
	assert_int_equal(*(uint64_t *)driver_at(&w.driver, w.data, 8), 5);
	end(&w);
}

static void a_failing_host_is_an_error_of_the_disk(void **state)
{
	struct world w = {0};
	begin(&w);
	assert_int_equal(ftruncate(w.file, DISK / 2), 0); /* shorter than the device believes */
	assert_int_equal(request(&w, VIRTIO_BLK_T_IN, DISK / SECTOR - 2, SECTOR, NULL), VIRTIO_BLK_S_IOERR);
	assert_int_equal(request(&w, VIRTIO_BLK_T_IN, DISK / SECTOR / 2 - 1, 2 * SECTOR, NULL), VIRTIO_BLK_S_IOERR);
	end(&w);
	/* A file that cannot be written. */
	begin(&w);
	virtio_free(w.d);
	char path[64];
	snprintf(path, sizeof(path), "/proc/self/fd/%d", w.file);
	struct block_config c = {.file = open(path, O_RDONLY | O_CLOEXEC)};
	w.d = w.driver.device = block_new(w.loop, &w.memory, &c, NULL);
	assert_non_null(w.d);
	start(&w, WRITABLE);
	assert_int_equal(request(&w, VIRTIO_BLK_T_OUT, 0, SECTOR, NULL), VIRTIO_BLK_S_IOERR);
	assert_int_equal(range(&w, VIRTIO_BLK_T_DISCARD, 0, 8, 0), VIRTIO_BLK_S_IOERR);
	end(&w);
	int p[2];
	assert_int_equal(pipe2(p, O_CLOEXEC), 0);
	struct loop *l = loop_new();
	struct error err = {0};
	assert_null(block_new(l, &w.memory, &(struct block_config){.file = p[0]}, &err));
	assert_int_not_equal(err.code, 0);
	assert_int_equal(fcntl(p[0], F_GETFD), -1);
	close(p[1]);
	loop_free(l);
}

/* Reads into a part of memory each, so large that threads do them. */
static void add_reads(struct world *w, unsigned n)
{
	for (unsigned i = 0; i < n; i++) {
		uint64_t header = driver_alloc(&w->driver, 16);
		put_header(w, header, VIRTIO_BLK_T_IN, 0);
		struct part parts[] = {{header, 16, false}, {w->data, 512 << 10, true}, {w->status, 1, true}};
		driver_add(&w->driver, 0, parts, 3);
	}
}

/* An image on a file system of its own that has no room for all of it, sparse; its mount point is gone again. -1: no namespaces here. */
static int scarce_file(void)
{
	enum { ROOM = DISK / 4 };
	char dir[] = "/tmp/cubicle-test-block-XXXXXX", path[64], options[32];
	if (unshare(CLONE_NEWNS) < 0 && unshare(CLONE_NEWUSER | CLONE_NEWNS) < 0)
		return -1;
	assert_non_null(mkdtemp(dir));
	snprintf(options, sizeof(options), "size=%d", ROOM);
	assert_int_equal(mount(NULL, "/", NULL, MS_REC | MS_PRIVATE, NULL), 0);
	if (mount("none", dir, "tmpfs", 0, options) < 0) {
		rmdir(dir);
		return -1;
	}
	snprintf(path, sizeof(path), "%s/image", dir);
	int fd = open(path, O_RDWR | O_CREAT | O_CLOEXEC, 0600);
	assert_true(fd >= 0);
	assert_int_equal(ftruncate(fd, DISK), 0);
	umount2(dir, MNT_DETACH);
	rmdir(dir);
	return fd;
}

/* Sparse images can lie on a file system that is full: an error inside, and all goes on when there is room. */
static void a_full_host_is_an_error_of_the_disk(void **state)
{
	enum { N = 1 << 20, ALL = 4 };
	for (int through = 0; through < 2; through++) {
		struct world w = {0};
		struct error err = {0};
		begin(&w);
		virtio_free(w.d);
		close(w.file);
		w.file = scarce_file();
		if (w.file < 0)
			skip();
		struct block_config c = {.file = fcntl(w.file, F_DUPFD_CLOEXEC, 3)};
		w.d = w.driver.device = block_new(w.loop, &w.memory, &c, &err);
		assert_non_null(w.d);
		start(&w, through ? 0 : WRITABLE);
		char *data = driver_at(&w.driver, w.data, N);
		unsigned failed = 0;
		for (unsigned i = 0; i < ALL; i++) {
			memset(data, 'a' + (int)i, N);
			uint8_t status = request(&w, VIRTIO_BLK_T_OUT, i * (N / SECTOR), N, NULL);
			assert_true(status == VIRTIO_BLK_S_OK || status == VIRTIO_BLK_S_IOERR);
			failed += status == VIRTIO_BLK_S_IOERR;
		}
		assert_in_range(failed, ALL - 1, ALL);
		/* What has its room is read and written as before, also when a request that found none came between. */
		memset(data, 'x', SECTOR);
		assert_int_equal(request(&w, VIRTIO_BLK_T_OUT, 0, SECTOR, NULL), VIRTIO_BLK_S_OK);
		memset(data, 0, SECTOR);
		assert_int_equal(request(&w, VIRTIO_BLK_T_IN, 0, SECTOR, NULL), VIRTIO_BLK_S_OK);
		assert_int_equal(data[SECTOR - 1], 'x');
		assert_int_equal(request(&w, VIRTIO_BLK_T_FLUSH, 0, 0, NULL), VIRTIO_BLK_S_OK);
		if (!through) {
			/* Zeros as bytes need room, a hole gives some. */
			assert_int_equal(range(&w, VIRTIO_BLK_T_WRITE_ZEROES, 3 * (N / SECTOR), N / SECTOR, 0), VIRTIO_BLK_S_IOERR);
			assert_int_equal(range(&w, VIRTIO_BLK_T_DISCARD, 0, 2 * (N / SECTOR), 0), VIRTIO_BLK_S_OK);
			memset(data, 'z', N);
			assert_int_equal(request(&w, VIRTIO_BLK_T_OUT, 3 * (N / SECTOR), N / 2, NULL), VIRTIO_BLK_S_OK);
			assert_int_equal(request(&w, VIRTIO_BLK_T_FLUSH, 0, 0, NULL), VIRTIO_BLK_S_OK);
			assert_int_equal(pread(w.file, data, 1, 3 * N), 1);
			assert_int_equal(data[0], 'z');
		}
		end(&w);
	}
}

/* As the monitor has it (jail.c): no signal ends it at the limit of its files' size. */
static void a_limit_of_file_sizes_is_an_error_of_the_disk(void **state)
{
	struct world w = {0};
	struct rlimit before;
	begin(&w);
	getrlimit(RLIMIT_FSIZE, &before);
	signal(SIGXFSZ, SIG_IGN);
	setrlimit(RLIMIT_FSIZE, &(struct rlimit){DISK / 2, before.rlim_max});
	assert_int_equal(request(&w, VIRTIO_BLK_T_OUT, DISK / SECTOR / 2, SECTOR, NULL), VIRTIO_BLK_S_IOERR);
	assert_int_equal(request(&w, VIRTIO_BLK_T_OUT, DISK / SECTOR / 2 - 1, 2 * SECTOR, NULL), VIRTIO_BLK_S_IOERR);
	assert_int_equal(request(&w, VIRTIO_BLK_T_OUT, 0, SECTOR, NULL), VIRTIO_BLK_S_OK);
	setrlimit(RLIMIT_FSIZE, &before);
	signal(SIGXFSZ, SIG_DFL);
	assert_int_equal(request(&w, VIRTIO_BLK_T_OUT, DISK / SECTOR / 2, SECTOR, NULL), VIRTIO_BLK_S_OK);
	end(&w);
}

/* What the host could not bring to its device shows when it is asked for. */
static void a_flush_that_fails_is_an_error_of_the_disk(void **state)
{
	struct world w = {0};
	int p[2];
	begin(&w);
	virtio_free(w.d);
	struct block_config c = {.file = fcntl(w.file, F_DUPFD_CLOEXEC, 3)};
	w.d = w.driver.device = block_new(w.loop, &w.memory, &c, NULL);
	start(&w, WRITABLE);
	/* In its place something that cannot be synced. */
	assert_int_equal(pipe2(p, O_CLOEXEC), 0);
	assert_int_equal(dup3(p[0], c.file, O_CLOEXEC), c.file);
	assert_int_equal(request(&w, VIRTIO_BLK_T_FLUSH, 0, 0, NULL), VIRTIO_BLK_S_IOERR);
	assert_int_equal(request(&w, VIRTIO_BLK_T_OUT, 0, SECTOR, NULL), VIRTIO_BLK_S_IOERR);
	assert_int_equal(dup3(w.file, c.file, O_CLOEXEC), c.file);
	assert_int_equal(request(&w, VIRTIO_BLK_T_FLUSH, 0, 0, NULL), VIRTIO_BLK_S_OK);
	assert_int_equal(request(&w, VIRTIO_BLK_T_OUT, 0, SECTOR, NULL), VIRTIO_BLK_S_OK);
	close(p[0]), close(p[1]);
	end(&w);
}

static void a_reset_waits_for_what_is_under_way(void **state)
{
	struct world w = {0};
	begin(&w);
	for (unsigned round = 0; round < 20; round++) {
		add_reads(&w, 20);
		driver_notify(&w.driver, 0);
		driver_set(&w.driver, VIRTIO_MMIO_STATUS, 0);
		/* The memory is the guest's own again: nobody writes to it. */
		memset(driver_at(&w.driver, 0, MEMORY), 0xaa, MEMORY);
		for (unsigned turn = 0; turn < 3; turn++)
			loop_turn(w.loop, 1);
		const unsigned char *p = driver_at(&w.driver, 0, MEMORY);
		for (size_t i = 0; i < MEMORY; i++)
			if (p[i] != 0xaa)
				fail_msg("byte %zu was written after a reset", i);
		start(&w, WRITABLE);
		assert_int_equal(request(&w, VIRTIO_BLK_T_IN, 5, SECTOR, NULL), VIRTIO_BLK_S_OK);
		assert_int_equal(*(uint64_t *)driver_at(&w.driver, w.data, 8), 5);
	}
	/* Freed with requests under way, broken with requests under way. */
	add_reads(&w, 20);
	driver_notify(&w.driver, 0);
	virtio_broken(w.d, "test");
	loop_turn(w.loop, 1);
	start(&w, WRITABLE);
	add_reads(&w, 20);
	driver_notify(&w.driver, 0);
	end(&w);
}

static void quiet_means_that_all_is_answered(void **state)
{
	struct world w = {0};
	cleanup_buf struct buf saved = BUF_INIT;
	begin(&w);
	add_reads(&w, 15);
	driver_notify(&w.driver, 0);
	w.d->ops->quiesce(w.d);
	for (unsigned i = 0; i < 15; i++)
		assert_true(driver_used(&w.driver, 0, NULL, NULL));
	/* What comes now waits. */
	add_reads(&w, 5);
	driver_notify(&w.driver, 0);
	for (unsigned turn = 0; turn < 3; turn++)
		loop_turn(w.loop, 1);
	assert_false(driver_used(&w.driver, 0, NULL, NULL));
	assert_int_equal(w.d->queue[0].next_avail, w.d->queue[0].next_used);
	virtio_save(w.d, &saved);
	w.d->ops->resume(w.d);
	for (unsigned i = 0; i < 5; i++)
		driver_wait(&w.driver, w.loop, 0, NULL, NULL);
	/* The same in the guest's copy: requests in the queue are done there, too. */
	memset(driver_at(&w.driver, w.driver.queue[0].used, 4), 0, 4);
	w.driver.queue[0].next_used = 15;
	memcpy(driver_at(&w.driver, w.driver.queue[0].used + 2, 2), &w.driver.queue[0].next_used, 2);
	assert_int_equal(virtio_load(w.d, buf_str(&saved), NULL), 0);
	for (unsigned i = 0; i < 5; i++)
		driver_wait(&w.driver, w.loop, 0, NULL, NULL);
	end(&w);
}

/* A guest's 256 requests of 16 MiB would have the loop stand still for as long as 4 GiB take. */
static void what_threads_have_is_bounded(void **state)
{
	enum { PARTS = 4, REQUESTS = 40 };
	struct world w = {0};
	begin(&w);
	put_header(&w, w.header, VIRTIO_BLK_T_OUT, 0);
	const struct part data = {w.data, DISK / PARTS, false}, parts[] = {{w.header, 16, false}, data, data, data, data, {w.status, 1, true}};
	for (unsigned round = 0; round < 2; round++) {
		for (unsigned i = 0; i < REQUESTS; i++)
			driver_add_indirect(&w.driver, 0, parts, PARTS + 2);
		driver_notify(&w.driver, 0);
		assert_int_equal((uint16_t)(w.d->queue[0].next_avail - w.d->queue[0].next_used), (64 << 20) / DISK);
		/* The second time around a reset. */
		for (unsigned i = 0; i < REQUESTS && round == 0; i++)
			driver_wait(&w.driver, w.loop, 0, NULL, NULL);
	}
	start(&w, WRITABLE);
	assert_int_equal(request(&w, VIRTIO_BLK_T_IN, 5, SECTOR, NULL), VIRTIO_BLK_S_OK);
	end(&w);
}

static void a_saved_disk_needs_one_that_is_as_large(void **state)
{
	struct world w = {0};
	cleanup_buf struct buf saved = BUF_INIT;
	begin(&w);
	virtio_save(w.d, &saved);
	assert_int_equal(virtio_load(w.d, str_n(buf_str(&saved).p, buf_len(&saved) - 1), NULL), -EINVAL);
	virtio_free(w.d);
	assert_int_equal(ftruncate(w.file, DISK - SECTOR), 0);
	w.d = block_new(w.loop, &w.memory, &(struct block_config){.file = fcntl(w.file, F_DUPFD_CLOEXEC, 3)}, NULL);
	assert_int_equal(virtio_load(w.d, buf_str(&saved), NULL), -EINVAL);
	virtio_free(w.d);
	assert_int_equal(ftruncate(w.file, DISK), 0);
	w.d = block_new(w.loop, &w.memory, &(struct block_config){.file = fcntl(w.file, F_DUPFD_CLOEXEC, 3)}, NULL);
	assert_int_equal(virtio_load(w.d, buf_str(&saved), NULL), 0);
	end(&w);
}

static void a_bucket_lets_through_its_rate(void **state)
{
	struct bucket none = {0}, b = {.rate = 100};
	int64_t now = 5 * NS_PER_S;
	bucket_take(&none, now, UINT32_MAX);
	assert_int_equal(bucket_wait(&none, now), 0);
	/* A second's worth at once. */
	for (unsigned i = 0; i < 100; i++) {
		assert_int_equal(bucket_wait(&b, now), 0);
		bucket_take(&b, now, 1);
	}
	int64_t wait = bucket_wait(&b, now);
	assert_true(wait > 0 && wait <= NS_PER_S / 100);
	assert_int_equal(bucket_wait(&b, now + wait), 0);
	/* More than there is: what follows pays. */
	now += 10 * NS_PER_S;
	bucket_take(&b, now, 1000);
	wait = bucket_wait(&b, now);
	assert_true(wait > 8 * NS_PER_S && wait <= 9 * NS_PER_S + 1);
	/* In the long run: its rate. */
	int64_t start = now = 100 * NS_PER_S;
	for (unsigned i = 0; i < 1000; i++) {
		now += bucket_wait(&b, now);
		bucket_take(&b, now, 7);
	}
	assert_true(now - start >= 68 * NS_PER_S && now - start <= 70 * NS_PER_S);
	/* The largest there is, at the smallest rate. */
	struct bucket slow = {.rate = 1}, fast = {.rate = UINT64_MAX};
	bucket_take(&slow, now, UINT32_MAX);
	assert_true(bucket_wait(&slow, now) > 0);
	bucket_take(&fast, now, UINT32_MAX);
	assert_int_equal(bucket_wait(&fast, now), 0);
}

/* 42 requests where 40 a second may be, after 40 at once: no less than a fortieth of a second, however slow the machine is; and each is answered. */
static void limits_hold_requests_back_and_lose_none(void **state)
{
	struct world w = {0};
	begin_with(&w, (struct block_config){.operations_per_second = 40, .bytes_per_second = 100 << 20}, WRITABLE);
	int64_t start_ns = clock_boottime();
	add_reads(&w, 21);
	driver_notify(&w.driver, 0);
	for (unsigned i = 0; i < 21; i++)
		driver_wait(&w.driver, w.loop, 0, NULL, NULL);
	add_reads(&w, 21);
	driver_notify(&w.driver, 0);
	for (unsigned i = 0; i < 21; i++)
		driver_wait(&w.driver, w.loop, 0, NULL, NULL);
	assert_true(clock_boottime() - start_ns >= NS_PER_S / 40);
	/* A reset while some are held back. */
	start(&w, WRITABLE);
	add_reads(&w, 21);
	driver_notify(&w.driver, 0);
	start(&w, WRITABLE);
	assert_int_equal(request(&w, VIRTIO_BLK_T_IN, 5, SECTOR, NULL), VIRTIO_BLK_S_OK);
	/* And the end of the device. */
	add_reads(&w, 21);
	driver_notify(&w.driver, 0);
	end(&w);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(the_configuration_tells_of_the_disk),
		cmocka_unit_test(what_is_written_is_read),
		cmocka_unit_test(any_layout_will_do),
		cmocka_unit_test(what_is_out_of_range_or_unaligned_fails),
		cmocka_unit_test(holes_are_made_and_zeros_written),
		cmocka_unit_test(a_name_is_told_and_the_unknown_refused),
		cmocka_unit_test(a_request_that_is_none_breaks_the_device),
		cmocka_unit_test(a_read_only_disk_stays_as_it_is),
		cmocka_unit_test(a_failing_host_is_an_error_of_the_disk),
		cmocka_unit_test(a_full_host_is_an_error_of_the_disk),
		cmocka_unit_test(a_limit_of_file_sizes_is_an_error_of_the_disk),
		cmocka_unit_test(a_flush_that_fails_is_an_error_of_the_disk),
		cmocka_unit_test(a_reset_waits_for_what_is_under_way),
		cmocka_unit_test(quiet_means_that_all_is_answered),
		cmocka_unit_test(what_threads_have_is_bounded),
		cmocka_unit_test(a_saved_disk_needs_one_that_is_as_large),
		cmocka_unit_test(a_bucket_lets_through_its_rate),
		cmocka_unit_test(limits_hold_requests_back_and_lose_none),
	};
	return cmocka_run_group_tests(tests, NULL, NULL);
}
