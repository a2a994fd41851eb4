/* SPDX-License-Identifier: Apache-2.0 */

/* Takes events to the scheduler, one at a time, and carries its actions out. What happens meanwhile
 * waits for its turn. */

#include "base/fail.h"
#include "launch/launch_job.h"
#include "launch/process_tree.h"

#include <signal.h>
#include <stdio.h>
#include <stdlib.h>

enum { LIST_BYTES = 160 };

/* ---- The cause ------------------------------------------------------------------------------- */

static void describe_absent(const gr_launch_job *job, bool ended, gr_diag *cause)
{
    const gr_launch_config *config = job->config;
    char list[LIST_BYTES] = "a rank";
    bool *absent = calloc((size_t)config->workers, sizeof *absent);
    for (int slot = 0; absent != NULL && slot < config->workers; slot++) {
        absent[slot] = gr_scheduler_is_absent(&job->schedule, slot, ended);
    }
    if (absent != NULL) {
        gr_root_cause_list(absent, config->workers, list, sizeof list);
    }
    free(absent);
    if (ended) {
        (void)gr_fail(cause, GR_E_TIMEOUT,
                      "%s did not join the group that the others wait in: it has ended, with exit "
                      "code 0; all ranks must call gr_comm_create, or none",
                      list);
        return;
    }
    (void)gr_fail(cause, GR_E_TIMEOUT,
                  "%s did not join the group within %.0f s %s; is it stuck, or does it never call "
                  "gr_comm_create? (--start-timeout sets the time)",
                  list, (double)config->start_timeout_us * 1e-6,
                  config->all_join ? "of the start" : "of the first that did");
}

/* The sentence why the job ends; that of a worker or a server is made at the end (report.c). */
static void describe_cause(gr_launch_job *job, const gr_scheduler_action *action,
                           const gr_launch_event *of)
{
    gr_diag *cause = &job->cause;
    *cause = of->why;
    if (action->value == GR_REASON_WORKER || action->value == GR_REASON_SERVER) {
        *cause = (gr_diag){.status = GR_E_PEER_LOST};
    } else if (action->value == GR_REASON_SIGNAL) {
        *cause = (gr_diag){.status = GR_E_CANCELLED};
    } else if (action->value == GR_REASON_NOT_JOINED && action->slot >= 0) {
        (void)gr_fail(cause, GR_E_TIMEOUT,
                      "parameter server %d was not ready within %.0f s of the start "
                      "(--start-timeout sets the time)",
                      gr_launch_job_server_number(job, action->slot),
                      (double)job->config->start_timeout_us * 1e-6);
    } else if (action->value == GR_REASON_NOT_JOINED && action->host >= 0) {
        const gr_host_agent *agent = &job->agents[action->host];
        (void)gr_fail(cause, GR_E_NOT_FOUND, /* as a host that does not answer its first question */
                      "host %s (%s) was not ready within %g s of the start; nothing was started "
                      "(--start-timeout sets the time)",
                      agent->host.name, agent->placement->name,
                      (double)job->config->start_timeout_us * 1e-6);
    } else if (action->value == GR_REASON_NOT_JOINED) {
        describe_absent(job, action->flag, cause);
    } else if (action->value == GR_REASON_STUCK) {
        (void)gr_fail(cause, GR_E_IO,
                      "a process of the job does not end although it was killed; it waits for the "
                      "kernel (a disk or a network file system that does not answer?)");
    } else if (of->event.kind == GR_EVENT_WORKER_NOT_STARTED) {
        const gr_host_agent *agent = &job->agents[job->schedule.slots[of->event.slot].host];
        if (!agent->placement->here) {
            (void)gr_fail(cause, (gr_status)of->why.status, "on host %s: %.400s",
                          gr_host_label(&agent->host), of->why.text);
        }
    }
}

/* ---- What the job goes on without ------------------------------------------------------------ */

static void warn_of_worker(const gr_launch_job *job, const gr_scheduler_action *action)
{
    char what[GR_DIAG_TEXT_BYTES];
    int with = action->value;
    gr_root_cause_describe("rank", action->slot, &job->schedule.ends[action->slot], what,
                           sizeof what);
    if (with == 0) {
        gr_log_write(job->config->log, GR_LOG_WARN, "launch", "%s; the job's work was done", what);
        return;
    }
    gr_log_write(job->config->log, GR_LOG_WARN, "launch",
                 "%s; the job goes on with %d worker%s%s%s", what, with, with == 1 ? "" : "s",
                 action->standby ? ", a standby among them" : "",
                 action->flag ? ", and another one is started" : "");
}

static void warn_of_server(const gr_launch_job *job, const gr_scheduler_action *action,
                           const gr_launch_event *of)
{
    char what[GR_DIAG_TEXT_BYTES];
    int left = action->value;
    if (of->event.kind == GR_EVENT_WORKER_ENDED) {
        gr_root_cause_describe("parameter server", gr_launch_job_server_number(job, action->slot),
                               &job->schedule.ends[action->slot], what, sizeof what);
    } else {
        snprintf(what, sizeof what, "%s", of->why.text);
    }
    gr_log_write(job->config->log, GR_LOG_WARN, "launch",
                 "%s; the other%s go%s on with what it kept%s", what, left == 1 ? "" : "s",
                 left == 1 ? "es" : "", action->flag ? ", and another one is started" : "");
}

static void warn_of_host(const gr_launch_job *job, const gr_scheduler_action *action,
                         const gr_diag *why)
{
    const gr_host_agent *agent = &job->agents[action->host];
    char next[64] = "";
    if (action->value == GR_NEXT_GIVEN_UP) {
        snprintf(next, sizeof next, "; it is left alone from now on");
    } else if (action->value == GR_NEXT_TRY) {
        int64_t wait_us = gr_launch_job_host(agent)->try_us - gr_launch_job_now_us();
        snprintf(next, sizeof next, "; it is tried again in %.0f s", (double)wait_us * 1e-6);
    }
    gr_log_write(job->config->log, GR_LOG_WARN, "launch", "%s%s", why->text, next);
}

static void warn_of_leaving(const gr_launch_job *job, const gr_scheduler_action *action)
{
    int busy = action->value;
    gr_log_write(job->config->log, GR_LOG_WARN, "launch",
                 "host %s is not named any more: its %d worker%s leave%s",
                 gr_host_label(&job->agents[action->host].host), busy, busy == 1 ? "" : "s",
                 busy == 1 ? "s" : "");
}

/* ---- Agents and hosts ------------------------------------------------------------------------ */

static void start_agent(gr_launch_job *job, int number)
{
    gr_scheduler_event refused = {.kind = GR_EVENT_START_REFUSED, .host = number};
    gr_diag diag = {0};
    if (gr_launch_job_serves(&job->agents[number])) { /* it is to say where it is */
        gr_server *server = &job->servers[number - job->schedule.config.host_room];
        server->address = NULL;
        server->said_bytes = 0;
    }
    if (gr_launch_job_start_agent(&job->agents[number], &diag) != GR_OK) {
        gr_launch_job_happen(job, &refused, &diag);
    }
}

static void add_host(gr_launch_job *job, int number, const gr_host *host)
{
    gr_host_agent *agent = &job->agents[number];
    gr_launch_job_add_agent(job, number, host);
    snprintf(agent->name, sizeof agent->name, "%s", host->name);
    agent->host.name = agent->name;
    gr_log_write(job->config->log, GR_LOG_WARN, "launch", "host %s has come, for %d worker%s",
                 gr_host_label(host), host->slots, host->slots == 1 ? "" : "s");
}

void gr_launch_job_check_output(const gr_host_agent *agent)
{
    const gr_scheduler_host *host = gr_launch_job_host(agent);
    gr_scheduler_event read = {.kind = GR_EVENT_OUTPUT_READ, .host = agent->number};
    bool all = host->state == GR_HOST_READING;
    for (int slot = host->first; slot < host->first + host->slot_count && all; slot++) {
        all = gr_output_is_closed(agent->job->output, slot);
    }
    if (all) {
        gr_launch_job_happen(agent->job, &read, NULL);
    }
}

static void read_output(const gr_host_agent *agent)
{
    const gr_scheduler_host *host = gr_launch_job_host(agent);
    for (int slot = host->first; slot < host->first + host->slot_count; slot++) {
        gr_output_close(agent->job->output, slot);
    }
    gr_launch_job_check_output(agent);
}

static bool act_on_host(gr_launch_job *job, const gr_scheduler_action *action,
                        const gr_launch_event *of)
{
    gr_host_agent *agent = action->host >= 0 ? &job->agents[action->host] : NULL;
    if (action->kind == GR_ACTION_START_AGENT) {
        start_agent(job, action->host);
    } else if (action->kind == GR_ACTION_RUN) {
        gr_launch_job_notify_agent(agent, GR_AGENT_START, 0, 0);
    } else if (action->kind == GR_ACTION_CLOSE_AGENT) {
        gr_launch_job_close_agent(agent);
    } else if (action->kind == GR_ACTION_READ_OUTPUT) {
        read_output(agent);
    } else if (action->kind == GR_ACTION_END_AGENT) {
        gr_launch_job_notify_agent(agent, GR_AGENT_KILL, 0, 0);
    } else if (action->kind == GR_ACTION_ADD_HOST) {
        add_host(job, action->host, &job->seek.came[action->value]);
    } else if (action->kind == GR_ACTION_REFUSE_HOST) {
        gr_join_refuse(&job->seek.came[action->value]);
    } else if (action->kind == GR_ACTION_HOST_LEAVES) {
        warn_of_leaving(job, action);
    } else if (action->kind == GR_ACTION_HOST_LEFT) {
        warn_of_host(job, action, &of->why);
    } else if (action->kind == GR_ACTION_HOST_FAILED) {
        gr_log_write(job->config->log, GR_LOG_WARN, "launch", "host %s: %s",
                     gr_host_label(&agent->host), of->why.text);
    } else {
        return false;
    }
    return true;
}

/* ---- Workers and servers --------------------------------------------------------------------- */

static void start_worker(gr_launch_job *job, int slot)
{
    gr_output_renew(job->output, slot);
    gr_records_begun(job->records, slot);
    gr_coordinator_reserve(job->coordinator, slot);
    gr_launch_job_notify_worker(job, slot, GR_AGENT_SPAWN, 0);
}

static void fence_worker(gr_launch_job *job, int slot)
{
    gr_log_write(job->config->log, GR_LOG_WARN, "launch",
                 "rank %d (pid %d) kept the others waiting for %g s: it is fenced (--fence-after)",
                 slot, (int)job->schedule.ends[slot].pid, (double)job->config->fence_us * 1e-6);
    gr_launch_job_notify_worker(job, slot, GR_AGENT_FAULT, SIGKILL);
}

static void publish_servers(gr_launch_job *job)
{
    gr_diag diag = {0};
    gr_scheduler_event event = {.kind = GR_EVENT_SERVERS_PUBLISHED, .value = GR_REASON_NOT_STARTED};
    if (gr_launch_job_publish_servers(job, &diag) != GR_OK) {
        event.kind = GR_EVENT_FAILED;
    }
    gr_launch_job_happen(job, &event, &diag);
}

static bool act_on_worker(gr_launch_job *job, const gr_scheduler_action *action,
                          const gr_launch_event *of)
{
    if (action->kind == GR_ACTION_GO_ON) {
        warn_of_worker(job, action);
    } else if (action->kind == GR_ACTION_GO_ON_WITHOUT) {
        gr_log_write(job->config->log, GR_LOG_WARN, "launch",
                     "%s; the job goes on with the %d that run", of->why.text, action->value);
    } else if (action->kind == GR_ACTION_GO_ON_SERVERS) {
        warn_of_server(job, action, of);
    } else if (action->kind == GR_ACTION_PUBLISH_SERVERS) {
        publish_servers(job);
    } else if (action->kind == GR_ACTION_SERVER_MOVED) {
        gr_launch_job_republish_servers(job);
    } else if (action->kind == GR_ACTION_FENCE) {
        fence_worker(job, action->slot);
    } else if (action->kind == GR_ACTION_SIGNAL_WORKERS ||
               action->kind == GR_ACTION_SIGNAL_SERVERS) {
        gr_launch_job_notify(job, action->kind == GR_ACTION_SIGNAL_SERVERS, GR_AGENT_SIGNAL,
                             action->value);
    } else if (action->kind == GR_ACTION_KILL_WORKERS || action->kind == GR_ACTION_KILL_SERVERS) {
        gr_launch_job_notify(job, action->kind == GR_ACTION_KILL_SERVERS, GR_AGENT_KILL, 0);
    } else {
        return false;
    }
    return true;
}

static bool act_on_group(gr_launch_job *job, const gr_scheduler_action *action)
{
    if (action->kind == GR_ACTION_START_WORKER) {
        start_worker(job, action->slot);
    } else if (action->kind == GR_ACTION_MEMBER_ENDED) {
        gr_coordinator_member_ended(job->coordinator, action->slot);
    } else if (action->kind == GR_ACTION_DRAIN_MEMBER) {
        gr_coordinator_drain(job->coordinator, action->slot);
    } else if (action->kind == GR_ACTION_SET_TARGET) {
        gr_coordinator_set_target_size(job->coordinator, action->value);
        gr_coordinator_expect_joining(job->coordinator, action->flag);
    } else if (action->kind == GR_ACTION_ANSWER) {
        job->scale_word = (gr_scheduler_word)action->value;
    } else {
        return false;
    }
    job->events.touched = true;
    return true;
}

/* ---- The job --------------------------------------------------------------------------------- */

static void on_timer(uv_timer_t *timer)
{
    gr_launch_job *job = timer->data;
    int number = (int)(timer - job->loop.timers);
    gr_launch_job_happen(job, &(gr_scheduler_event){.kind = GR_EVENT_TIMER, .value = number}, NULL);
}

/* What lost agents have left to us. While we wait nobody reads output, or heeds signals. */
static void end_tree(const gr_launch_job *job)
{
    enum { LIMIT_US = 10000000 };
    if (!gr_process_tree_end_within(0, LIMIT_US)) {
        gr_log_write(job->config->log, GR_LOG_WARN, "launch",
                     "a process that the job has left does not end although it was killed; it "
                     "waits for the kernel (a disk or a network file system that does not "
                     "answer?), and is left behind");
    }
}

static void act_on_job(gr_launch_job *job, const gr_scheduler_action *action,
                       const gr_launch_event *of)
{
    if (action->kind == GR_ACTION_RUN_ALL) {
        gr_launch_job_notify(job, false, GR_AGENT_START, 0);
        gr_launch_job_play_faults(job);
    } else if (action->kind == GR_ACTION_WORKERS_CALLED) {
        gr_launch_job_seal(job);
    } else if (action->kind == GR_ACTION_REPORT) {
        describe_cause(job, action, of);
    } else if (action->kind == GR_ACTION_SET_TIMER) {
        (void)uv_timer_start(&job->loop.timers[action->value], on_timer,
                             (uint64_t)(action->after_us + 999) / 1000, 0);
    } else if (action->kind == GR_ACTION_STOP_TIMER) {
        uv_timer_stop(&job->loop.timers[action->value]);
    } else if (action->kind == GR_ACTION_END_TREE) {
        end_tree(job);
    } else if (action->kind == GR_ACTION_DRAIN_OUTPUT) {
        gr_output_finish(job->output);
    } else if (action->kind == GR_ACTION_FINISH) {
        uv_stop(&job->loop.loop);
    }
}

static void carry_out(gr_launch_job *job, const gr_launch_event *of)
{
    int count = gr_scheduler_decide(&job->schedule, &of->event);
    for (int i = 0; i < count; i++) {
        const gr_scheduler_action *action = &job->schedule.call.actions[i];
        if (!act_on_group(job, action) && !act_on_host(job, action, of) &&
            !act_on_worker(job, action, of)) {
            act_on_job(job, action, of);
        }
    }
}

/* ---- Events ---------------------------------------------------------------------------------- */

static void on_coordinator_timer(uv_timer_t *timer)
{
    gr_launch_job_progress(timer->data);
}

/* What the coordinator knows of the group by now. */
static void look_at_group(gr_launch_job *job)
{
    gr_launch_event news = {.event = {.now_us = gr_launch_job_now_us()}};
    gr_scheduler_event *event = &news.event;
    if (job->coordinator_failed) {
        return;
    }
    if (gr_coordinator_progress(job->coordinator, &news.why) != GR_OK) {
        job->coordinator_failed = true;
        uv_poll_stop(&job->loop.coordinator_poll);
        event->kind = GR_EVENT_FAILED;
        event->value = GR_REASON_COORDINATOR;
        carry_out(job, &news);
        return;
    }
    int64_t next_us = gr_coordinator_next_us(job->coordinator);
    uv_timer_stop(&job->loop.coordinator_timer);
    if (next_us != GR_NEVER) {
        int64_t wait_us = next_us - event->now_us;
        (void)uv_timer_start(&job->loop.coordinator_timer, on_coordinator_timer,
                             wait_us > 0 ? (uint64_t)wait_us / 1000 + 1 : 0, 0);
    }
    event->kind = GR_EVENT_MEMBER;
    for (int slot = 0; slot < job->schedule.config.slots; slot++) {
        const gr_scheduler_slot *known = &job->schedule.slots[slot];
        event->slot = slot;
        event->value = gr_coordinator_member_state(job->coordinator, slot);
        event->flag = gr_coordinator_has_served(job->coordinator, slot);
        event->awaited = gr_coordinator_waits_for(job->coordinator, slot);
        if (event->value != known->member || event->flag != known->served ||
            event->awaited != known->awaited) {
            carry_out(job, &news);
        }
    }
    event->kind = GR_EVENT_GROUP;
    event->value = gr_coordinator_joined(job->coordinator);
    event->flag = gr_coordinator_at_rest(job->coordinator);
    event->over = gr_coordinator_is_over(job->coordinator);
    carry_out(job, &news);
}

/* Each decision sees the group as it is after the actions of the one before. */
static void take_events(gr_launch_job *job)
{
    gr_launch_events *events = &job->events;
    if (events->busy) {
        return;
    }
    events->busy = true;
    while (events->touched || events->count > 0) {
        if (events->touched) {
            events->touched = false;
            look_at_group(job);
            continue;
        }
        gr_launch_event next = events->at[events->first];
        events->first = (events->first + 1) % events->max;
        events->count--;
        carry_out(job, &next);
        events->touched = true;
    }
    events->busy = false;
}

void gr_launch_job_progress(gr_launch_job *job)
{
    job->events.touched = true;
    take_events(job);
}

void gr_launch_job_happen(gr_launch_job *job, const gr_scheduler_event *event, const gr_diag *why)
{
    gr_launch_events *events = &job->events;
    GR_CHECK(events->count < events->max);
    gr_launch_event *next = &events->at[(events->first + events->count++) % events->max];
    *next = (gr_launch_event){.event = *event};
    if (why != NULL) {
        next->why = *why;
    }
    if (next->event.now_us == 0) {
        next->event.now_us = gr_launch_job_now_us();
    }
    take_events(job);
}
