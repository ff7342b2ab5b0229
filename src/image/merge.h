/*
 * `cubicle merge`: the process that makes one EROFS image of adjacent layers: directories in overlayfs' format (whiteouts as character devices 0:0, trusted.overlay.opaque), such as upper
 * directories on an ext4 and mounted EROFS images.
 *
 * Descriptors at start: 3 the channel, 4 the image (an empty regular file, open for reading and writing), from 5 on directories (O_DIRECTORY, not O_PATH): first `layers` of them to be merged, lowest first; then
 * `below` of them, topmost first: the layers that will be below the image. The latter are only looked into for names, so that no whiteout is made that hides nothing (overlayfs would list it where a directory is in one layer only).
 * argv is {"cubicle", "merge"}.
 *   to it     merge_begin {layers, below, size_max}
 *   from it   unpacked {size, entries}, the image is complete, but not synced. Or error. Then it ends, with status 0 or 1.
 * It needs CAP_SYS_ADMIN (trusted.* attributes) and CAP_DAC_READ_SEARCH, and drops what else it has. No mount may be below a directory. Nothing may change in them meanwhile.
 *
 * Errors: -EOPNOTSUPP 500: overlayfs' redirects, metacopy or other features that this does not know; -EDQUOT 413: size_max; -ENOSPC 507; others 500.
 */
#ifndef CUBICLE_IMAGE_MERGE_H
#define CUBICLE_IMAGE_MERGE_H

enum {
	MERGE_CHANNEL_FD = 3,
	MERGE_IMAGE_FD = 4,
	MERGE_LAYER_FD = 5,
	MERGE_MAX_LAYERS = 64, /* with those below */
};

/* The process; returns its exit status. */
int merge_main(int argc, char **argv);

#endif
