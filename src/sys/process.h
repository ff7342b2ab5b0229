/* What /proc says of processes and of the machine. */
#ifndef CUBICLE_SYS_PROCESS_H
#define CUBICLE_SYS_PROCESS_H

#include <stdint.h>
#include <sys/types.h>

enum { BOOT_ID_SIZE = 37 };

/* The kernel's boot id, NUL-terminated text: 0 or -errno. */
int process_boot_id(char ret[BOOT_ID_SIZE]);
/* Start time in clock ticks since boot: with the pid and the boot id it names a process for ever. 0, -ESRCH, -errno. */
int process_start_time(pid_t pid, uint64_t *ret);
/* Opens the namespace file of a process ("net", "mnt", "user", "pid"): a descriptor or -errno. */
int process_namespace(pid_t pid, const char *name);
/* pidfd_open, pidfd_send_signal. */
int process_pidfd(pid_t pid);
int process_signal(int pidfd, int signal);
/* True when the process behind the pidfd has ended (it may still be a zombie). */
int process_ended(int pidfd);

#endif
