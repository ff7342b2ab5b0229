/* A disk of 32 KiB. The first byte of the input chooses whether it may be written, where it is, and limits. */
#include "vmm_ops.h"

#include "vmm/devices.h"

#include <fcntl.h>
#include <linux/virtio_blk.h>
#include <sys/mman.h>
#include <sys/stat.h>

enum { DISK = 32 << 10 };

static uint8_t request(struct ops_world *w, uint32_t type, uint64_t sector, uint32_t *ret_written)
{
	uint64_t at = OPS_MEMORY - 1024;
	struct virtio_blk_outhdr h = {.type = type, .sector = sector};
	uint8_t *status = driver_at(&w->driver, at + 16, 1);
	struct part parts[] = {{at, 16, false}, {at + 32, 512, true}, {at + 16, 1, true}};
	memcpy(driver_at(&w->driver, at, sizeof(h)), &h, sizeof(h));
	*status = 0xee;
	driver_add(&w->driver, 0, parts, 3);
	driver_notify(&w->driver, 0);
	driver_wait(&w->driver, w->loop, 0, NULL, ret_written);
	return *status;
}

enum { READ_ONLY = 1, LIMITED = 2, ON_DISK = 4 };

static int disk(uint8_t how)
{
	static const char text[] = "the first sector's bytes";
	/* File systems differ in what they do at once and which holes they make. */
	int fd = how & ON_DISK ? open("/tmp", O_TMPFILE | O_RDWR | O_CLOEXEC, 0600) : memfd_create("disk", MFD_CLOEXEC);
	hold(fd >= 0 && ftruncate(fd, DISK) == 0 && pwrite(fd, text, sizeof(text), 0) == sizeof(text));
	return fd;
}

static void check(struct ops_world *w, bool read_only)
{
	uint32_t written = 0;
	hold(request(w, VIRTIO_BLK_T_IN, 0, &written) == VIRTIO_BLK_S_OK && written == 513);
	char first = *(char *)driver_at(&w->driver, OPS_MEMORY - 1024 + 32, 1);
	hold(!read_only || first == 't');
	hold(request(w, VIRTIO_BLK_T_IN, DISK / 512, &written) == VIRTIO_BLK_S_IOERR && written == 0);
	/* Something is under way when the device ends. */
	struct part parts[] = {{OPS_MEMORY - 1024, 16, false}, {OPS_MEMORY / 2, OPS_MEMORY / 4, true}, {OPS_MEMORY - 1, 1, true}};
	((struct virtio_blk_outhdr *)driver_at(&w->driver, OPS_MEMORY - 1024, 16))->sector = 0;
	driver_add(&w->driver, 0, parts, 3);
	driver_notify(&w->driver, 0);
}

void fuzz_one(struct str input)
{
	struct ops_world w;
	struct stat st;
	if (input.n == 0)
		return;
	uint8_t how = (uint8_t)input.p[0];
	int fd = disk(how);
	struct block_config c = {.file = fcntl(fd, F_DUPFD_CLOEXEC, 3), .read_only = how & READ_ONLY};
	if (how & LIMITED)
		c.bytes_per_second = 16 << 10, c.operations_per_second = 4;
	ops_begin(&w);
	w.loop = loop_new();
	hold(w.loop);
	struct virtio_device *d = block_new(w.loop, &w.memory, &c, NULL);
	hold(d);
	ops_run(&w, d, str_from(input, 1));
	ops_again(&w);
	/* Where limits hold it back this would take seconds. */
	if (!(how & LIMITED))
		check(&w, c.read_only);
	virtio_free(d);
	hold(fstat(fd, &st) == 0 && st.st_size == DISK);
	close(fd);
	ops_end(&w);
}
