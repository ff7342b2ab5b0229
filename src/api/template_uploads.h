/* Files for builds on their way to the node (template_files.c): what all uploads share. */
#ifndef CUBICLE_API_TEMPLATE_UPLOADS_H
#define CUBICLE_API_TEMPLATE_UPLOADS_H

struct upload;

enum { UPLOAD_TURNS = 32 };

struct uploads {
	unsigned turns;         /* given */
	struct upload *waiting; /* for one, the first to come first */
};

#endif
