/*
 * Fault points: named steps at which a test has a process end as by kill -9 (docs/lifecycle.md). Compiled in by -Dflavour=test only.
 * A test names a file in the environment (FAULT_POINT_FILE) and writes a point's name into it; the process that comes to that point removes the file and ends.
 */
#ifndef CUBICLE_BASE_FAULT_H
#define CUBICLE_BASE_FAULT_H

#define FAULTS(F)                                                                                            \
	F(pause_intended)  /* the intent is recorded, nothing is done */                                     \
	F(pause_frozen)    /* told to stand still */                                                         \
	F(pause_synced)    /* the image is complete */                                                       \
	F(pause_killed)    /* disk only: all processes are dead, its image is where it was */                \
	F(pause_moved)     /* disk only: its image is saved */                                               \
	F(pause_recorded)  /* nobody has been told */                                                        \
	F(resume_recorded) /* from memory: recorded as running, still frozen */                              \
	F(resume_thawed)   /* nobody has been told */                                                        \
	F(boot_taken)      /* from the disk: the saved image is a slot's disk, nothing runs */               \
	F(boot_started)    /* it runs, the record says paused */                                             \
	F(boot_recorded)   /* nobody has been told, the image still has its saved name, too */               \
	F(network_applied) /* in force, no record says so */                                                 \
	F(network_recorded) /* nobody has been told */                                                       \
	F(kill_intended)                                                                                     \
	F(kill_image_gone) /* of one that was paused: its image is removed, the record not yet */             \
	F(copy_frozen)     /* of a disk: it is frozen, nothing is copied */                                  \
	F(copy_thawed)     /* the copy has a temporary name */                                               \
	F(copy_kept)       /* it has its name */                                                             \
	F(snapshot_copied) /* no record names the copy */                                                    \
	F(snapshot_recorded) /* nobody has been told */                                                      \
	F(fork_made)       /* all children run, nobody has been told of them as such */                      \
	F(rollback_started) /* both boxes run, the first is recorded */                                      \
	F(rollback_recorded) /* both run, the second is recorded */                                          \
	F(claim_taken)     /* a create has a ready sandbox, which does not know yet */                       \
	F(claim_assigned)  /* that is its own, no record says so */                                          \
	F(claim_recorded)  /* nobody has been told */                                                        \
	F(upload_kept)     /* a file for a build has its name, no record says so */                          \
	F(upload_recorded) /* nobody has been told */                                                        \
	F(build_intended)  /* recorded as building, nothing is started */                                    \
	F(builder_started) /* it has nothing to do yet */                                                    \
	F(unpacker_started)                                                                                  \
	F(build_layer_published) /* an image has its name, no record says so */                              \
	F(build_layer_recorded) /* the builder has not been told */                                          \
	F(build_box_started)                                                                                 \
	F(build_box_sealed) /* its disk is an image, no record says so */                                    \
	F(build_recorded)  /* ready, with its tags; nobody has been told */                                  \
	F(template_forgotten) /* deleted; its images are there */

enum fault {
#define FAULT_ID(name) FAULT_##name,
	FAULTS(FAULT_ID)
#undef FAULT_ID
};

#ifdef CUBICLE_FAULT_POINTS
void fault_here(enum fault at);
#define FAULT(name) fault_here(FAULT_##name)
#else
#define FAULT(name) ((void)0)
#endif

#endif
