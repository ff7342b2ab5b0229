/* The layers of an image: found among what node has, or fetched and made (image/build.h). */
#ifndef CUBICLE_IMAGE_BUILD_IMAGE_H
#define CUBICLE_IMAGE_BUILD_IMAGE_H

#include "image/build.h"

/* Layers of one blob that holds nothing (a tar's end, packed or not) are left out; an image without any other gets an empty one. */
int build_image_layers(struct build *b, struct source *s, struct stack *ret, struct error *err);

/* Appends a layer and sets the key of what has become of it. -E2BIG with *err. */
int stack_add(struct stack *s, const struct ask_layer *l, struct error *err);
/* The key becomes the one of what follows from `what`. */
void stack_turn(struct stack *s, struct str what);

#endif
