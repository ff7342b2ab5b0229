/*
 * The node's figures about itself, for a monitor (Prometheus): one table for node, which counts, and front, which writes them down (api/prometheus.h). None is about one sandbox or one team.
 * F(field, KIND, name, labels, help): entries of one name stand beside each other, the help of the first counts. Units are those of the name, except kind SECONDS: a counter kept in microseconds.
 * A `figures_page` (io/messages.h) carries struct node_figures as it stands: node and front are one program.
 */
#ifndef CUBICLE_NODE_FIGURES_H
#define CUBICLE_NODE_FIGURES_H

#include <stdint.h>

enum figure_kind { FIGURE_GAUGE, FIGURE_COUNTER, FIGURE_SECONDS };

#define NODE_FIGURES(F)                                                                                      \
	F(creating, GAUGE, "cubicle_sandboxes", "state=\"creating\"", "Sandboxes by state.")                 \
	F(running, GAUGE, "cubicle_sandboxes", "state=\"running\"", NULL)                                    \
	F(pausing, GAUGE, "cubicle_sandboxes", "state=\"pausing\"", NULL)                                    \
	F(paused, GAUGE, "cubicle_sandboxes", "state=\"paused\"", NULL)                                      \
	F(snapshotting, GAUGE, "cubicle_sandboxes", "state=\"snapshotting\"", NULL)                          \
	F(killing, GAUGE, "cubicle_sandboxes", "state=\"killing\"", NULL)                                    \
	F(sandboxes_most, GAUGE, "cubicle_sandboxes_limit", "", "Most sandboxes at once (max_sandboxes).")   \
	F(created_warm, COUNTER, "cubicle_sandbox_creates_total", "launch=\"warm\"", "Sandboxes that came to run: warm, when nothing had to be started for them, or cold.") \
	F(created_cold, COUNTER, "cubicle_sandbox_creates_total", "launch=\"cold\"", NULL)                   \
	F(creates_refused, COUNTER, "cubicle_sandbox_create_failures_total", "cause=\"refused\"", "Creates that were refused at once, or came to nothing.") \
	F(creates_failed, COUNTER, "cubicle_sandbox_create_failures_total", "cause=\"failed\"", NULL)        \
	F(pauses, COUNTER, "cubicle_sandbox_pauses_total", "", "Sandboxes that were paused.")                \
	F(resumes, COUNTER, "cubicle_sandbox_resumes_total", "", "Paused sandboxes that run again.")         \
	F(ends_killed, COUNTER, "cubicle_sandbox_ends_total", "reason=\"killed\"", "Sandboxes that ended, by reason.") \
	F(ends_timeout, COUNTER, "cubicle_sandbox_ends_total", "reason=\"timeout\"", NULL)                   \
	F(ends_oom_killed, COUNTER, "cubicle_sandbox_ends_total", "reason=\"oom_killed\"", NULL)             \
	F(ends_disk_full, COUNTER, "cubicle_sandbox_ends_total", "reason=\"disk_full\"", NULL)               \
	F(ends_host_lost, COUNTER, "cubicle_sandbox_ends_total", "reason=\"host_lost\"", NULL)               \
	F(ends_crashed, COUNTER, "cubicle_sandbox_ends_total", "reason=\"crashed\"", NULL)                   \
	F(oom_kills, COUNTER, "cubicle_sandbox_oom_kills_total", "", "Processes in sandboxes killed for lack of memory, seen in samples.") \
	F(cpu, SECONDS, "cubicle_sandboxes_cpu_seconds_total", "", "CPU time of all sandboxes, seen in samples.") \
	F(memory_used, GAUGE, "cubicle_sandboxes_memory_bytes", "part=\"used\"", "Memory of running sandboxes by their newest samples: used, and cache of files.") \
	F(memory_cache, GAUGE, "cubicle_sandboxes_memory_bytes", "part=\"cache\"", NULL)                     \
	F(disk_used, GAUGE, "cubicle_sandboxes_disk_bytes", "", "Bytes in files on the disks of running sandboxes.") \
	F(memory_promised, GAUGE, "cubicle_memory_promised_bytes", "", "Memory promised to sandboxes.")     \
	F(memory_promisable, GAUGE, "cubicle_memory_promisable_bytes", "", "Most memory that may be promised (overcommit.memory).") \
	F(memory_available, GAUGE, "cubicle_host_memory_available_bytes", "", "Memory that the machine has left.") \
	F(disk_promised, GAUGE, "cubicle_disk_promised_bytes", "", "Disk promised to sandboxes.")           \
	F(disk_total, GAUGE, "cubicle_state_disk_bytes", "", "Size of the file system of state.dir.")        \
	F(disk_free, GAUGE, "cubicle_state_disk_free_bytes", "", "What is free on it.")                      \
	F(disk_zone, GAUGE, "cubicle_state_disk_zone", "", "0 calm, 1 below the reserve, 2 below the red mark, 3 full (docs/architecture.md, Space).") \
	F(pool_parked, GAUGE, "cubicle_pool_slots", "", "Slots that wait for a create.")                     \
	F(pool_wanted, GAUGE, "cubicle_pool_slots_wanted", "", "How many should wait now, by what was taken lately.") \
	F(ready_parked, GAUGE, "cubicle_ready_sandboxes", "", "Sandboxes of ready pools that wait for a create.") \
	F(ready_wanted, GAUGE, "cubicle_ready_sandboxes_wanted", "", "How many should wait now, by what was taken lately and the bounds of the pools.") \
	F(ready_hits, COUNTER, "cubicle_ready_creates_total", "result=\"hit\"", "Creates of templates with a ready pool that got a ready sandbox, or were started cold.") \
	F(ready_misses, COUNTER, "cubicle_ready_creates_total", "result=\"miss\"", NULL)                    \
	F(ready_failed, COUNTER, "cubicle_ready_failures_total", "", "Ready sandboxes that could not be started, or were lost before a create had them.") \
	F(ready_evicted, COUNTER, "cubicle_ready_evictions_total", "", "Ready sandboxes that were ended to make room.") \
	F(ready_refill, SECONDS, "cubicle_ready_refill_seconds_total", "", "Time from the start of ready sandboxes until they were ready, all together.") \
	F(ready_refills, COUNTER, "cubicle_ready_refills_total", "", "Sandboxes that came to be ready.")    \
	F(ready_memory, GAUGE, "cubicle_ready_memory_promised_bytes", "", "Memory promised to sandboxes that are ready or being made so.") \
	F(history_bytes, GAUGE, "cubicle_metrics_history_bytes", "", "Memory that the samples of all sandboxes take.") \
	F(serve_memory, GAUGE, "cubicle_process_resident_bytes", "process=\"serve\"", "Resident memory of our processes.") \
	F(node_memory, GAUGE, "cubicle_process_resident_bytes", "process=\"node\"", NULL)                    \
	F(front_memory, GAUGE, "cubicle_process_resident_bytes", "process=\"front\"", NULL)                  \
	F(egress_memory, GAUGE, "cubicle_process_resident_bytes", "process=\"egress\"", NULL)                \
	F(tools_memory, GAUGE, "cubicle_process_resident_bytes", "process=\"tools\"", NULL)                \
	F(serve_files, GAUGE, "cubicle_process_open_files", "process=\"serve\"", "Open descriptors of our processes.") \
	F(node_files, GAUGE, "cubicle_process_open_files", "process=\"node\"", NULL)                         \
	F(front_files, GAUGE, "cubicle_process_open_files", "process=\"front\"", NULL)                       \
	F(egress_files, GAUGE, "cubicle_process_open_files", "process=\"egress\"", NULL)                     \
	F(tools_files, GAUGE, "cubicle_process_open_files", "process=\"tools\"", NULL)

struct node_figures {
#define NODE_FIGURE_MEMBER(field, kind, name, labels, help) uint64_t field;
	NODE_FIGURES(NODE_FIGURE_MEMBER)
#undef NODE_FIGURE_MEMBER
};

#endif
