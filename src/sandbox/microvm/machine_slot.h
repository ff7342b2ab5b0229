/* A slot whose sandbox is a microVM: made, claimed, found again. All of this blocks; on a worker. */
#ifndef CUBICLE_SANDBOX_MICROVM_MACHINE_SLOT_H
#define CUBICLE_SANDBOX_MICROVM_MACHINE_SLOT_H

#include "sandbox/box/slot.h"

/* Makes network, cgroups and disk as the spec says, starts the monitor, waits until the guest's init is parked, and sends its claim. Gives up (-ECANCELED) soon after *cancelled, and
 * (-ETIMEDOUT) at `until` (CLOCK_MONOTONIC) when it is not parked by then. On failure
 * what was made is there still: slot_release(). */
int machine_start(struct host *h, struct slot *s, const struct slot_claim *c, const bool *cancelled, int64_t until, struct error *err);
/* As slot_adopt(). What is inside is not asked: it may be frozen. */
int machine_adopt(struct host *h, struct slot *s, const struct reach *reach, struct error *err);
/* The last line on its console, cut; "" = not known. */
void machine_last_words(const struct slot *s, char *to, size_t size);

/* Writes the end of what monitor and console have said to our log. */
void machine_log(const struct slot *s, struct str id);

#endif
