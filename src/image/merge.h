/*
 * `cubicle merge`: the process that makes one EROFS image of adjacent layers: directories in overlayfs' format (whiteouts as character devices 0:0, trusted.overlay.opaque), such as upper
 * directories on an ext4 and mounted EROFS images.
 *
 * Descriptors at start: 3 the channel, 4 the image (an empty regular file, open for reading and writing), from 5 on directories (O_DIRECTORY, not O_PATH): first `layers` of them to be merged, lowest first; then
 * `below` of them, topmost first: all the layers that will be below the image; none: nothing will. They are only looked into. A whiteout that hides nothing is left out: overlayfs lists it, as a name that
 * is not there, in a directory that no other layer has. A directory that an image only implies (image/unpack.h, `guessed`) gets the attributes that it has below.
 * argv is {"cubicle", "merge"}.
 *   to it     merge_begin {layers, below, size_max}
 *   from it   unpacked {size, entries}, the image is complete, but not synced. Or error. Then it ends, with status 0 or 1.
 * It needs CAP_SYS_ADMIN (trusted.* attributes) and CAP_DAC_READ_SEARCH, and drops what else it has. No mount may be below a directory. Nothing may change in them meanwhile.
 *
 * Errors: -EOPNOTSUPP 500: overlayfs' redirects, metacopy or other features that this does not know; -EDQUOT 413: size_max; -ENOSPC 507; others 500.
 */
#ifndef CUBICLE_IMAGE_MERGE_H
#define CUBICLE_IMAGE_MERGE_H

#include "image/tree.h"

enum {
	MERGE_CHANNEL_FD = 3,
	MERGE_IMAGE_FD = 4,
	MERGE_LAYER_FD = 5,
	MERGE_MAX_LAYERS = 64, /* with those below */
};

struct merge {
	int image;         /* an empty regular file */
	const int *layers; /* directories, lowest first */
	size_t n;
	const int *below; /* directories, topmost first */
	size_t n_below;
	struct tree_limits limits;
};

/* Makes the image; errors as above. Changes the working directory. */
int merge(const struct merge *m, struct tree_result *ret, struct error *err);

/* The process; returns its exit status. */
int merge_main(int argc, char **argv);

#endif
