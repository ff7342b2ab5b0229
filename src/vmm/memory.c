#include "vmm/memory.h"
#include "base/cleanup.h"
#include "vmm/layout.h"

#include <sys/mman.h>
#include <sys/stat.h>

/* Large pages work only where the guest's address and ours are the same within one. */
#define LARGE_PAGE (2ull << 20)

void *memory_at(const struct guest_memory *m, uint64_t address, uint64_t size)
{
	if (size == 0)
		return NULL;
	for (size_t i = 0; i < m->n; i++) {
		const struct memory_region *r = &m->region[i];
		if (address >= r->base && address - r->base < r->size && size <= r->size - (address - r->base))
			return r->host + (address - r->base);
	}
	return NULL;
}

uint64_t memory_size(const struct guest_memory *m)
{
	uint64_t size = 0;
	for (size_t i = 0; i < m->n; i++)
		size += m->region[i].size;
	return size;
}

static void divide(struct guest_memory *ret, char *at, uint64_t size)
{
	uint64_t low = MIN(size, LAYOUT_LOW_MEMORY_END);
	*ret = (struct guest_memory){.region = {{0, low, at}}, .n = 1};
	if (size > low)
		ret->region[ret->n++] = (struct memory_region){LAYOUT_HIGH_MEMORY, size - low, at + low};
}

/* A file that is too short would end the monitor by SIGBUS. */
static int check_file(int fd, uint64_t size, uint64_t offset, struct error *err)
{
	struct stat st;
	if (fstat(fd, &st) < 0)
		return error_errno(err, -errno, "the guest's memory file");
	if (!S_ISREG(st.st_mode) || offset > (uint64_t)st.st_size || size > (uint64_t)st.st_size - offset)
		return error_set(err, -EINVAL, 500, "the guest's memory file is too short");
	return 0;
}

int memory_map(struct guest_memory *ret, uint64_t size, int fd, uint64_t offset, struct error *err)
{
	if (size == 0 || size % LARGE_PAGE != 0 || size > INT64_MAX / 2)
		return error_set(err, -EINVAL, 500, "the guest's memory is not a multiple of 2 MiB");
	int r = fd < 0 ? 0 : check_file(fd, size, offset, err);
	if (r < 0)
		return r;
	/* More than is wanted, so that there is an aligned part. */
	char *all = mmap(NULL, size + LARGE_PAGE, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
	if (all == MAP_FAILED)
		return error_errno(err, -errno, "the guest's memory");
	size_t before = (size_t)(-(uintptr_t)all & (LARGE_PAGE - 1));
	char *at = mmap(all + before, size, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_FIXED | MAP_NORESERVE | (fd < 0 ? MAP_ANONYMOUS : 0), fd, fd < 0 ? 0 : (off_t)offset);
	if (at == MAP_FAILED) {
		r = error_errno(err, -errno, "the guest's memory");
		munmap(all, size + LARGE_PAGE);
		return r;
	}
	if (before)
		munmap(all, before);
	munmap(at + size, LARGE_PAGE - before);
	/* What a guest has in its memory is not for core dumps. */
	madvise(at, size, MADV_DONTDUMP);
	divide(ret, at, size);
	return 0;
}

void memory_unmap(struct guest_memory *m)
{
	/* The regions stand behind each other here, too. */
	if (m->n)
		munmap(m->region[0].host, memory_size(m));
	*m = (struct guest_memory){0};
}
