#include "base/cleanup.h"
#include "image/maker.h"
#include "image/merge.h"
#include "io/chan.h"
#include "sys/caps.h"

#include <linux/capability.h>
#include <openssl/crypto.h>
#include <signal.h>

enum {
	MEMORY = 2047 << 20, /* address space */
	SECONDS = 3600,
};

static int work(struct error *err)
{
	static char storage[MSG_MAX];
	static int fds[MERGE_MAX_LAYERS];
	union msg_any body;
	int r = maker_receive(MERGE_CHANNEL_FD, MSG_ID_merge_begin, storage, &body, err);
	if (r < 0)
		return r;
	const struct msg_merge_begin *begin = &body.merge_begin;
	if (begin->layers == 0 || begin->layers > MERGE_MAX_LAYERS || begin->below > MERGE_MAX_LAYERS - begin->layers)
		return error_set(err, -EPROTO, 500, "merge_begin: no layer, or more than %d", MERGE_MAX_LAYERS);
	for (int i = 0; i < MERGE_MAX_LAYERS; i++)
		fds[i] = MERGE_LAYER_FD + i;
	struct merge m = {
		.image = MERGE_IMAGE_FD,
		.layers = fds,
		.n = begin->layers,
		.below = fds + begin->layers,
		.n_below = begin->below,
		.limits = tree_limits_usual,
	};
	struct tree_result made;
	m.limits.image = begin->size_max;
	r = maker_limit(begin->size_max, MEMORY, SECONDS, err);
	if (r == 0 && (r = caps_keep_only(UINT64_C(1) << CAP_SYS_ADMIN | UINT64_C(1) << CAP_DAC_READ_SEARCH)) < 0)
		error_errno(err, r, "capabilities");
	OPENSSL_init_crypto(OPENSSL_INIT_NO_LOAD_CONFIG, NULL);
	if (r == 0)
		r = maker_filter(true, err);
	if (r == 0)
		r = merge(&m, &made, err);
	if (r < 0)
		return r;
	struct msg_unpacked answer = {0};
	msg_set(&answer, unpacked, size, made.size);
	msg_set(&answer, unpacked, entries, made.entries);
	msg_set(&answer, unpacked, diff_ids, (struct msg_list){STR("")});
	return msg_send_fd(MERGE_CHANNEL_FD, MSG_ID_unpacked, &answer, 0, NULL, 0, err);
}

int merge_main(int argc, char **argv)
{
	struct error err = {0};
	signal(SIGXFSZ, SIG_IGN);
	signal(SIGPIPE, SIG_IGN);
	return work(&err) < 0 ? maker_fail(MERGE_CHANNEL_FD, &err) : 0;
}
