/* The shell script behind debian_build(). */
#ifndef CUBICLE_IMAGE_DEBIAN_SCRIPT_H
#define CUBICLE_IMAGE_DEBIAN_SCRIPT_H

/* Lines that begin with this tell of a phase: "<mark><percent> <phase>". */
#define DEBIAN_PHASE "@phase "

/* Runs as PID 1 of its namespace, in the work directory (mounted where everybody may pass, for apt's unprivileged downloader). $1: mirror or "". Makes `image`. */
extern const char debian_script[];

#endif
