#include "sandbox/box/runtime.h"
#include "sandbox/box/box.h"

static int check(const struct box_spec *spec, struct error *err)
{
	return 0;
}

static int watch(struct box *b, struct error *err)
{
	return 0;
}

static void unwatch(struct box *b)
{
}

/* The kernel is ours: what asks does that itself, on its worker. */
static void write_out(struct box *b, runtime_done_fn *done, void *arg)
{
	done(NULL, arg);
}

static void hold(struct box *b, bool on, runtime_done_fn *done, void *arg)
{
	if (done)
		done(NULL, arg);
}

const struct runtime namespace_runtime = {
	.isolation = "namespace", .check = check, .start = box_start_in_namespace, .adopt = box_adopt_namespace, .watch = watch, .unwatch = unwatch, .attach = box_attach_spawner, .say_end = box_say_status,
	.space = box_disk_space, .brake = box_disk_brake, .open = box_open_namespace, .tidy = box_disk_tidy, .write_out = write_out, .hold = hold,
};
