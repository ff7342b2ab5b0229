/* A slot whose init is a process of this kernel in namespaces of its own. All of this blocks; on a worker that has entered the host. */
#ifndef CUBICLE_SANDBOX_NAMESPACE_NAMESPACE_SLOT_H
#define CUBICLE_SANDBOX_NAMESPACE_NAMESPACE_SLOT_H

#include "sandbox/box/slot.h"

/* Makes all parts with default limits, up to an init that says it is parked. On failure what was made is there still: slot_release(). */
int slot_prepare(struct host *h, struct slot *s, struct error *err);

/* Gives a prepared slot its root and the usual filter ahead of the claim. On failure: slot_release(). */
int slot_dress(struct host *h, struct slot *s, const char *const *layers, size_t n_layers, struct error *err);
/* What slot_dress() of these layers gives. 0, or with n = 0 what layers_number() says: -ENOENT, -EBUSY. */
int slot_root_of(struct host *h, const char *const *layers, size_t n_layers, struct slot_root *ret);
/* Has the spec the disk and the filter of dressed slots? */
bool slot_may_be_dressed(const struct host *h, const struct box_spec *spec);
bool slot_root_eq(const struct slot_root *a, const struct slot_root *b);

/* Limits, network, disk and root as the spec says, then the claim message; the answer is not waited for. A dressed slot must have the spec's root, and be one for which the spec may have one. */
int slot_claim(struct host *h, struct slot *s, const struct slot_claim *c, struct error *err);

/* Is it, but for its root, what parked slots are made for, and its network policy short? Then slot_claim_dressed() does, which does not wait and needs no worker. */
bool slot_is_usual(const struct host *h, const struct slot_claim *c);
int slot_claim_dressed(struct host *h, struct slot *s, const struct slot_claim *c, struct error *err);

/* Finds the parts of a living sandbox again, with s->pid, start, disk.name and disk.loop from its handle, and proves by hello that it is `id`'s. Its network policy is put in force again.
 * -ESRCH: it is dead. On failure: slot_release(). */
int slot_adopt(struct host *h, struct slot *s, struct str id, const struct reach *reach, struct error *err);

#endif
