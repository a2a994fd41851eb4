/* SPDX-License-Identifier: Apache-2.0 */
#ifndef GR_LAUNCH_SCHEDULE_INTERNAL_H
#define GR_LAUNCH_SCHEDULE_INTERNAL_H

/* What the files of the scheduler share. Every function may append actions. */

#include "launch/schedule/schedule.h"

/* -1: no host, no slot. */
gr_scheduler_action *gr_scheduler_act(gr_scheduler *schedule, gr_scheduler_action_kind kind,
                                      int host, int slot, int value);
/* Negative: it is stopped. */
void gr_scheduler_set_timer(gr_scheduler *schedule, gr_scheduler_timer timer, int64_t after_us);

/* workers.c */
void gr_scheduler_set_target(gr_scheduler *schedule);
void gr_scheduler_fill(gr_scheduler *schedule);
void gr_scheduler_aim(gr_scheduler *schedule);
void gr_scheduler_worker_ended(gr_scheduler *schedule, const gr_scheduler_event *event);
void gr_scheduler_worker_not_started(gr_scheduler *schedule, int slot);
/* A worker was killed. Returns true if the job goes on. */
bool gr_scheduler_spare(gr_scheduler *schedule, int slot);
void gr_scheduler_check_joining(gr_scheduler *schedule);
void gr_scheduler_join_timeout(gr_scheduler *schedule);
void gr_scheduler_watch_renewal(gr_scheduler *schedule);
void gr_scheduler_fence_timeout(gr_scheduler *schedule);
/* Until all hosts are ready, and all workers have joined, or the others of the first one. */
void gr_scheduler_time_joining(gr_scheduler *schedule);
void gr_scheduler_all_ready(gr_scheduler *schedule);
void gr_scheduler_note_end(gr_scheduler *schedule, int slot, int wait_status);

/* hosts.c */
void gr_scheduler_start_workers(gr_scheduler *schedule);
void gr_scheduler_start_agent(gr_scheduler *schedule, int host);
void gr_scheduler_call_hosts(gr_scheduler *schedule, int missing);
void gr_scheduler_start_refused(gr_scheduler *schedule, int host);
void gr_scheduler_agent_ready(gr_scheduler *schedule, int host);
void gr_scheduler_agent_done(gr_scheduler *schedule, int host);
void gr_scheduler_agent_lost(gr_scheduler *schedule, const gr_scheduler_event *event);
void gr_scheduler_agent_gone(gr_scheduler *schedule, int host);
void gr_scheduler_output_read(gr_scheduler *schedule, int host);
void gr_scheduler_apply_hosts(gr_scheduler *schedule, const gr_scheduler_event *event);

/* servers.c */
bool gr_scheduler_serves(const gr_scheduler *schedule, int host);
void gr_scheduler_start_servers(gr_scheduler *schedule);
void gr_scheduler_server_ready(gr_scheduler *schedule, int slot);
void gr_scheduler_server_ended(gr_scheduler *schedule, const gr_scheduler_event *event);
void gr_scheduler_server_lost(gr_scheduler *schedule, int host);
/* Those that are to come in place of lost ones, where nothing is left of those. */
void gr_scheduler_start_servers_again(gr_scheduler *schedule);
/* It could not be started. False: the job cannot go on without it. */
bool gr_scheduler_server_refused(gr_scheduler *schedule, int slot);
void gr_scheduler_servers_timeout(gr_scheduler *schedule);
/* No worker runs any more: servers may end. Returns false if none runs. */
bool gr_scheduler_end_servers(gr_scheduler *schedule);

/* ending.c */
void gr_scheduler_enter(gr_scheduler *schedule, gr_scheduler_phase phase, int64_t after_us);
/* The first reason counts. */
void gr_scheduler_blame(gr_scheduler *schedule, gr_scheduler_reason reason);
/* An agent is about to be lost with its processes. Returns true if that is the cause of what the
 * job ends for already: ranks have failed only because they miss others, which they may report
 * sooner; where it `serves`, a parameter server, also if they have failed in any other way but by a
 * signal. */
bool gr_scheduler_may_follow(const gr_scheduler *schedule, bool serves);
void gr_scheduler_blame_loss(gr_scheduler *schedule, bool followed);
void gr_scheduler_end_after_failure(gr_scheduler *schedule);
/* The work is done: those that only help are asked to end. */
void gr_scheduler_end_helpers(gr_scheduler *schedule);
/* All that runs was asked to end: not longer than the time of grace. */
void gr_scheduler_wait_for_end(gr_scheduler *schedule, int64_t grace_us);
void gr_scheduler_kill_all(gr_scheduler *schedule);
/* If no worker's agent is left the servers end, and after them the job. */
void gr_scheduler_end_if_idle(gr_scheduler *schedule);
void gr_scheduler_on_signal(gr_scheduler *schedule, int number);
void gr_scheduler_phase_timeout(gr_scheduler *schedule);
void gr_scheduler_finish(gr_scheduler *schedule);

#endif
