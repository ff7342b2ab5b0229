/* The balloon, or (first byte odd) the entropy device. */
#include "vmm_ops.h"

#include "vmm/devices.h"

void fuzz_one(struct str input)
{
	struct ops_world w;
	if (input.n == 0)
		return;
	bool entropy = input.p[0] & 1;
	ops_begin(&w);
	w.loop = loop_new();
	hold(w.loop);
	struct virtio_device *d = entropy ? entropy_new(w.loop, &w.memory, NULL) : balloon_new(w.loop, &w.memory, NULL);
	hold(d);
	if (!entropy && input.p[0] & 2)
		balloon_set_target(d, 5);
	ops_run(&w, d, str_from(input, 1));
	ops_again(&w);
	uint32_t written = 0, page = OPS_MEMORY / 4096 - 1, n = entropy ? 4 : 0;
	memset(driver_at(&w.driver, OPS_MEMORY - 4096, 4096), 'x', 4096);
	memcpy(driver_at(&w.driver, OPS_MEMORY - 4096 - 4, 4), &page, 4);
	struct part part = {OPS_MEMORY - 4096 - 4, 4, entropy};
	driver_add(&w.driver, 0, &part, 1);
	driver_notify(&w.driver, 0);
	hold(driver_used(&w.driver, 0, NULL, &written) && written == n);
	hold(*(char *)driver_at(&w.driver, OPS_MEMORY - 4096, 1) == (entropy ? 'x' : 0));
	if (!entropy) {
		part = (struct part){OPS_MEMORY - 4096, 4096, true};
		memset(driver_at(&w.driver, part.address, part.n), 'y', part.n);
		driver_add(&w.driver, 2, &part, 1);
		driver_notify(&w.driver, 2);
		hold(driver_used(&w.driver, 2, NULL, NULL) && *(char *)driver_at(&w.driver, OPS_MEMORY - 1, 1) == 0);
	}
	virtio_free(d);
	ops_end(&w);
}
