/* The microVM's column of the table in sandbox/box/runtime.h. */
#include "sandbox/microvm/asks.h"
#include "sandbox/microvm/machine_slot.h"
#include "sandbox/microvm/machines.h"
#include "sandbox/microvm/monitor_link.h"
#include "sandbox/microvm/openings.h"
#include "base/cleanup.h"
#include "base/clock.h"
#include "io/chan.h"
#include "vmm/layout.h"

#include <errno.h>
#include <signal.h>
#include <stdio.h>
#include <sys/stat.h>
#include <sys/wait.h>

enum {
	MONITOR_FAILED = 12, /* and above: the exit status says that it was not the guest */
};

static int check(const struct box_spec *spec, struct error *err)
{
	if (spec->cpu_count > MACHINE_VCPUS_MAX)
		return error_set(err, -EINVAL, 400, "cpuCount: a microVM has at most %d", MACHINE_VCPUS_MAX);
	if (spec->memory_mb < MACHINE_MEMORY_MIN_MB || spec->memory_mb > MACHINE_MEMORY_MAX_MB)
		return error_set(err, -EINVAL, 400, "memoryMB: a microVM has %d to %d", MACHINE_MEMORY_MIN_MB, MACHINE_MEMORY_MAX_MB);
	return 0;
}

static int start(struct box *b)
{
	struct host *h = b->backend->host;
	int64_t until = b->ordered + h->machines->boot_seconds * NS_PER_S;
	if (clock_monotonic() >= until)
		return error_set(&b->error, -EAGAIN, 503, "too many microVMs start at once, and those before it took too long");
	int r = box_take_slot(b);
	return r < 0 ? r : machine_start(h, b->slot, &b->order.claim, &b->cancelled, until, &b->error);
}

static int adopt(struct box *b)
{
	return machine_adopt(b->backend->host, b->slot, &b->reach, &b->error);
}

static int watch(struct box *b, struct error *err)
{
	b->monitor = monitor_link_new(b, steal_fd(&b->slot->monitor));
	return b->monitor ? 0 : error_errno(err, -errno, "connection to the monitor");
}

static void unwatch(struct box *b)
{
	monitor_link_free(steal_pointer(&b->monitor));
	openings_leave(b);
}

/* It has moved itself into its group inside. Who asks and does not listen gets no answers; init asks again. */
static void attach(struct box *b, pid_t spawner)
{
	if (b->chan && !chan_queued(b->chan))
		chan_send(b->chan, MSG_ID_attached, &(struct msg_attached){0}, 0, NULL, 0, NULL);
}

static void say_end(const struct box *b, char *to, size_t size)
{
	static const struct {
		int status;
		const char *what;
	} ends[] = {{0, "it was powered off"}, {10, "it was reset from inside"}, {11, "its kernel panicked"}, {12, "its monitor gave up"}, {13, "its monitor could not start it"}};
	char words[120];
	int code, status;
	const char *what = NULL;
	if (slot_status(b->slot, &code, &status) < 0) {
		snprintf(to, size, "its monitor ended while the node was away or is not the node's child: no exit status");
		return;
	}
	for (size_t i = 0; i < ARRAY_SIZE(ends) && code == CLD_EXITED; i++)
		if (ends[i].status == status)
			what = ends[i].what;
	machine_last_words(b->slot, words, sizeof(words));
	if (code != CLD_EXITED || status >= MONITOR_FAILED)
		machine_log(b->slot, str_of(b->id));
	if (what)
		snprintf(to, size, "%s%s%s", what, words[0] ? ": " : "", words);
	else if (code == CLD_EXITED)
		snprintf(to, size, "its monitor exited with status %d", status);
	else
		snprintf(to, size, "its monitor was killed by signal %d (%s)", status, strsignal(status));
}

/* --- its disk --- */

/* What is in use inside is not known: what the image holds counts. */
static int space(const struct box *b, struct box_space *ret)
{
	struct stat st;
	cleanup_fd int image = box_open_image(b);
	if (image < 0)
		return image;
	if (fstat(image, &st) < 0)
		return -errno;
	uint64_t held = (uint64_t)st.st_blocks * 512;
	*ret = (struct box_space){.total = (uint64_t)st.st_size, .used = held, .backed = held, .foreign = true};
	return 0;
}

/* There is no brake inside another kernel. Who takes space all the same is frozen by the node (node/disk_account.c), and that is the whole machine. */
static int brake(const struct box *b, uint64_t most)
{
	return 0;
}

static void ignore(const struct error *err, void *arg)
{
}

/* For what is dirty inside to reach the image. */
static unsigned patience(const struct box *b)
{
	return b->backend->host->machines->answer_seconds;
}

static void tidy(struct box *b, bool trim)
{
	if (b->asks || b->frozen || b->state != BOX_RUNNING)
		return;
	if (trim)
		init_ask(b, MSG_ID_trim, &(struct msg_trim){0}, patience(b), ignore, NULL);
	else
		init_ask(b, MSG_ID_sync, &(struct msg_sync){0}, patience(b), ignore, NULL);
}

struct asking {
	struct box *box;
	bool must; /* its error is one */
	runtime_done_fn *done;
	void *arg;
};

static int freeze(struct box *b, bool on)
{
	return cgroups_freeze(b->backend->host->cgroups, b->slot->name, CGROUP_WORK, on);
}

static void answered(const struct error *err, void *arg)
{
	struct asking *a = arg;
	struct box *b = a->box;
	struct error failed = {0};
	bool goes = err && err->code == -ECANCELED;
	/* One that ends already is not held back by it. */
	int r = !goes && b->frozen && b->state == BOX_RUNNING ? freeze(b, true) : 0;
	if (r < 0)
		error_errno(&failed, r, "freezing");
	a->done(goes || (err && a->must) ? err : r < 0 ? &failed : NULL, a->arg);
	free(a);
}

/* What its disk needs is done although it is frozen: its init has frozen all else inside, when it was told `still`, and goes on for so long as this takes. */
static void ask_disk(struct box *b, enum msg_id type, const void *m, bool must, runtime_done_fn *done, void *arg)
{
	struct error err = {0};
	struct asking *a = malloc(sizeof(*a));
	int r = !a ? -ENOMEM : b->frozen ? freeze(b, false) : 0;
	if (r < 0) {
		free(a);
		error_errno(&err, r, "thawing");
		done(&err, arg);
		return;
	}
	*a = (struct asking){b, must, done, arg};
	init_ask(b, type, m, patience(b), answered, a);
}

/* Without an answer its memory is kept all the same, and what is dirty is in that. */
static void write_out(struct box *b, runtime_done_fn *done, void *arg)
{
	ask_disk(b, MSG_ID_sync, &(struct msg_sync){0}, false, done, arg);
}

static void hold(struct box *b, bool on, runtime_done_fn *done, void *arg)
{
	const struct msg_quiesce m = {.on = on};
	if (done)
		ask_disk(b, MSG_ID_quiesce, &m, true, done, arg);
	else if (b->chan) /* also of a frozen one, which is not thawed for that: it hears of it then */
		chan_send(b->chan, MSG_ID_quiesce, &m, ++b->log_reads.last_request, NULL, 0, NULL);
}

const struct runtime microvm_runtime = {
	.isolation = "microvm", .kernel_inside = true, .check = check, .start = start, .adopt = adopt, .watch = watch, .unwatch = unwatch, .attach = attach, .say_end = say_end, .space = space, .brake = brake,
	.open = opening_new, .tidy = tidy, .write_out = write_out, .hold = hold,
};
