/* SPDX-License-Identifier: Apache-2.0 */
#include "launch/gang.h"

#include "base/fail.h"
#include "base/hash.h"
#include "launch/agent.h"
#include "launch/descent.h"
#include "launch/environ.h"
#include "launch/meeting.h"
#include "launch/remote.h"
#include "launch/scale.h"

#include <errno.h>
#include <fcntl.h>
#include <limits.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <sys/wait.h>
#include <unistd.h>

enum {
    /* Between a failure and the end of the others: the time in which a likelier cause may show. */
    SETTLE_FAILED_MS = 50,
    SETTLE_PEER_MS = 2000,
    GRACE_FAILED_MS_MAX = 2000, /* what the others get after a failure */
    KILL_PATIENCE_MS =
        10000, /* a killed process that is still there by then is stuck in the kernel */
    SAME_SIGNAL_US = 1000000,
    ARENA_BYTES_MAX = 256 << 20,
    ADDRESS_LIST_BYTES = 160
};

/* ---- Telling and ending ---------------------------------------------------------------------- */

static void tell_agents(gr_gang *gang, int kind, int value)
{
    gr_agent_message message = {.kind = kind, .value = value};
    for (int i = 0; i < gang->agents_begun; i++) {
        if (!gang->agents[i].over) { /* if it is gone, the poll says so */
            (void)gr_agent_send(gang->agents[i].control_fd, &message);
        }
    }
}

static void signal_worker(gr_gang *gang, int rank, int signal_number)
{
    const gr_host *host = gr_hosts_of_rank(gang->hosts, rank);
    gr_agent_message message = {
        .kind = GR_AGENT_FAULT, .rank = rank - host->first, .value = signal_number};
    (void)gr_agent_send(gang->agents[host - gang->hosts->at].control_fd, &message);
}

static void on_phase_timer(uv_timer_t *timer);

static void enter(gr_gang *gang, gang_phase phase, int64_t timeout_ms)
{
    gang->phase = phase;
    uv_timer_stop(&gang->phase_timer);
    if (timeout_ms >= 0) {
        (void)uv_timer_start(&gang->phase_timer, on_phase_timer, (uint64_t)timeout_ms, 0);
    }
}

static void kill_all(gr_gang *gang)
{
    if (gang->phase < PHASE_KILLING) {
        gang->told = true;
        tell_agents(gang, GR_AGENT_KILL, 0);
        enter(gang, PHASE_KILLING, KILL_PATIENCE_MS);
    }
}

static void end_all(gr_gang *gang, int signal_number, int64_t grace_ms)
{
    if (gang->phase >= PHASE_ENDING) {
        return;
    }
    if (grace_ms <= 0) {
        kill_all(gang);
        return;
    }
    gang->told = true;
    tell_agents(gang, GR_AGENT_SIGNAL, signal_number);
    enter(gang, PHASE_ENDING, grace_ms);
}

static void end_after_failure(gr_gang *gang)
{
    int64_t grace_ms = gang->config->grace_us / 1000;
    end_all(gang, SIGTERM, grace_ms < GRACE_FAILED_MS_MAX ? grace_ms : GRACE_FAILED_MS_MAX);
}

static void set_reason(gr_gang *gang, gang_reason reason, gr_status status)
{
    if (gang->reason == REASON_NONE) {
        gang->reason = reason;
        gang->status = status;
    }
}

static void finish(gr_gang *gang)
{
    enter(gang, PHASE_OVER, -1);
    uv_stop(&gang->loop);
}

/* Nothing runs any more. */
static void start_draining(gr_gang *gang)
{
    enter(gang, PHASE_DRAINING, -1);
    uv_timer_stop(&gang->join_timer);
    gr_output_finish(gang->output);
}

static void on_phase_timer(uv_timer_t *timer)
{
    gr_gang *gang = timer->data;
    if (gang->phase == PHASE_SETTLING) {
        end_after_failure(gang);
    } else if (gang->phase == PHASE_ENDING) {
        kill_all(gang);
    } else if (gang->phase == PHASE_KILLING) {
        set_reason(gang, REASON_STUCK, GR_E_IO);
        (void)gr_fail(&gang->verdict, GR_E_IO,
                      "a process of the job does not end although it was killed; it waits for the "
                      "kernel (a disk or a network file system that does not answer?)");
        gang->reason = REASON_STUCK;
        finish(gang);
    }
}

static void on_signal(uv_signal_t *handle, int signal_number)
{
    gr_gang *gang = handle->data;
    /* Some (timeout(1), a batch system that means every process of a job) send SIGTERM twice in a
     * moment and mean one. */
    bool again = signal_number == SIGINT ||
                 (signal_number == SIGTERM && gr_gang_now_us() - gang->signal_us > SAME_SIGNAL_US);
    if (gang->signal_number == 0) {
        gang->signal_number = signal_number;
        gang->signal_us = gr_gang_now_us();
    }
    if (gang->phase == PHASE_DRAINING) {
        /* Whoever should read the output does not, and somebody is tired of waiting. */
        set_reason(gang, REASON_SIGNAL, GR_E_CANCELLED);
        finish(gang);
    } else if (gang->phase >= PHASE_ENDING) {
        if (again) {
            kill_all(gang);
        }
    } else {
        set_reason(gang, REASON_SIGNAL, GR_E_CANCELLED);
        end_all(gang, signal_number, gang->config->grace_us / 1000);
    }
}

/* ---- Joining --------------------------------------------------------------------------------- */

static void fail_absent(gr_gang *gang, const bool *absent, const char *waited)
{
    char list[ADDRESS_LIST_BYTES];
    gr_verdict_list(absent, gang->config->workers, list, sizeof list);
    set_reason(gang, REASON_NOT_JOINED, GR_E_TIMEOUT);
    (void)gr_fail(&gang->verdict, GR_E_TIMEOUT, "%s did not join the group %s", list, waited);
    end_after_failure(gang);
}

static bool *absent_ranks(const gr_gang *gang)
{
    bool *absent = calloc((size_t)gang->config->workers, sizeof *absent);
    for (int rank = 0; absent != NULL && rank < gang->config->workers; rank++) {
        absent[rank] = gr_coordinator_member_state(gang->coordinator, rank) == 0;
    }
    return absent;
}

static void on_join_timeout(uv_timer_t *timer)
{
    gr_gang *gang = timer->data;
    bool *absent = absent_ranks(gang);
    char waited[200];
    snprintf(
        waited, sizeof waited,
        "within %.0f s %s; is it stuck, or does it never call gr_comm_create? (--start-timeout "
        "sets the time)",
        (double)gang->config->start_timeout_us * 1e-6,
        gang->config->all_join ? "of the start" : "of the first that did");
    if (absent != NULL && gang->phase == PHASE_RUNNING) {
        fail_absent(gang, absent, waited);
    }
    free(absent);
}

/* Somebody has joined: the others have to come as well, and whoever has ended cannot. */
static void check_joining(gr_gang *gang)
{
    int joined = gr_coordinator_joined(gang->coordinator);
    if (gang->everybody_joined || gang->phase != PHASE_RUNNING) {
        return;
    }
    if (joined + gang->spared_absent >= gang->config->workers) {
        gang->everybody_joined = true;
        uv_timer_stop(&gang->join_timer);
        return;
    }
    if (joined == 0) {
        return;
    }
    if (!gang->join_timing && gang->config->start_timeout_us > 0) {
        gang->join_timing = true;
        (void)uv_timer_start(&gang->join_timer, on_join_timeout,
                             (uint64_t)gang->config->start_timeout_us / 1000, 0);
    }
    bool *absent = absent_ranks(gang);
    bool any = false;
    for (int rank = 0; absent != NULL && rank < gang->config->workers; rank++) {
        absent[rank] = absent[rank] && gang->ends[rank].ended && !gang->ends[rank].spared;
        any = any || absent[rank];
    }
    if (any) {
        fail_absent(gang, absent,
                    "that the others wait in: it has ended, with exit code 0; all ranks must call "
                    "gr_comm_create, or none");
    }
    free(absent);
}

/* ---- Expulsion ------------------------------------------------------------------------------- */

/* Those that the others still wait for: stopped, or stuck. They are killed, not only left out: who
 * wakes up later must not write what somebody else writes by now. */
static void on_expel_timer(uv_timer_t *timer)
{
    gr_gang *gang = timer->data;
    for (int rank = 0; rank < gang->slots && gang->phase == PHASE_RUNNING; rank++) {
        if (!gang->ends[rank].ended && gr_coordinator_waits_for(gang->coordinator, rank)) {
            gr_log_write(gang->config->log, GR_LOG_WARN, "launch",
                         "rank %d (pid %d) kept the others waiting for %g s: it is expelled "
                         "(--expel-after)",
                         rank, (int)gang->ends[rank].pid, (double)gang->config->expel_us * 1e-6);
            signal_worker(gang, rank, SIGKILL);
        }
    }
}

/* By now the others have waited in vain for most of the time. */
static void watch_renewal(gr_gang *gang)
{
    bool waits = false;
    for (int rank = 0; rank < gang->slots && !waits; rank++) {
        waits = gr_coordinator_waits_for(gang->coordinator, rank);
    }
    if (!waits) {
        uv_timer_stop(&gang->expel_timer);
    } else if (!uv_is_active((uv_handle_t *)&gang->expel_timer)) {
        int64_t left_us = gang->config->expel_us - gr_launch_stall_us(gang->config->expel_us);
        (void)uv_timer_start(&gang->expel_timer, on_expel_timer, (uint64_t)left_us / 1000, 0);
    }
}

/* ---- Coming and going ------------------------------------------------------------------------ */

/* As many as are wanted, and those that wait beside them. Not while the others are on their way
 * from one generation to the next: they need the cores. */
static void fill(gr_gang *gang)
{
    int missing = gang->want + gang->spares - gr_gang_count_busy(gang);
    if (missing <= 0 || !gr_launch_elastic(gang->config) || gang->phase != PHASE_RUNNING ||
        !gang->everybody_joined || gr_coordinator_is_over(gang->coordinator) ||
        !gr_coordinator_at_rest(gang->coordinator)) {
        return;
    }
    for (int slot = 0; slot < gang->slots && missing > 0; slot++) {
        if (!gang->places[slot].busy) {
            gr_gang_start_another(gang, slot);
            missing--;
        }
    }
    gr_gang_tell_wanted(gang);
}

static void progress_coordinator(gr_gang *gang);

static void scale(gr_gang *gang, int workers, gr_scale_reply *reply)
{
    const gr_scale_limits limits = {.least = gang->config->workers_min,
                                    .most = gr_launch_most(gang->config),
                                    .has = gang->want,
                                    .starting = !gang->everybody_joined,
                                    .ending = gang->phase != PHASE_RUNNING ||
                                              gr_coordinator_is_over(gang->coordinator)};
    if (gr_scale_judge(&limits, workers, reply)) {
        gang->want = workers;
        gr_gang_tell_wanted(gang);
        progress_coordinator(gang);
    }
}

static void on_scale(uv_poll_t *poll, int status, int events)
{
    gr_gang *gang = poll->data;
    gr_scale_request request;
    (void)status;
    (void)events;
    while (gr_scale_receive(gang->scale_fd, &request)) {
        gr_scale_reply reply;
        scale(gang, request.workers, &reply);
        gr_scale_answer(gang->scale_fd, &request, &reply);
    }
}

static void on_coordinator_timer(uv_timer_t *timer)
{
    progress_coordinator(timer->data);
}

static void progress_coordinator(gr_gang *gang)
{
    gr_diag diag = {0};
    if (gr_coordinator_progress(gang->coordinator, &diag) != GR_OK) {
        uv_poll_stop(&gang->coordinator_poll);
        if (gang->phase == PHASE_RUNNING) {
            set_reason(gang, REASON_COORDINATOR, (gr_status)diag.status);
            gang->verdict = diag;
            end_after_failure(gang);
        }
        return;
    }
    int64_t next_us = gr_coordinator_next_us(gang->coordinator);
    uv_timer_stop(&gang->coordinator_timer);
    if (next_us != GR_NEVER) {
        int64_t wait_us = next_us - gr_gang_now_us();
        (void)uv_timer_start(&gang->coordinator_timer, on_coordinator_timer,
                             wait_us > 0 ? (uint64_t)wait_us / 1000 + 1 : 0, 0);
    }
    check_joining(gang);
    if (gang->config->expel_us > 0) {
        watch_renewal(gang);
    }
    fill(gang);
}

static void on_coordinator(uv_poll_t *poll, int status, int events)
{
    (void)status;
    (void)events;
    progress_coordinator(poll->data);
}

/* ---- Faults on order ------------------------------------------------------------------------- */

/* Those that are due, and a timer for the next. */
static void on_fault_timer(uv_timer_t *timer)
{
    gr_gang *gang = timer->data;
    const gr_launch_config *config = gang->config;
    while (gang->faults_done < config->fault_count && gang->phase == PHASE_RUNNING) {
        const gr_launch_fault *fault = &config->faults[gang->faults_done];
        int64_t wait_us = gang->start_us + fault->at_us - gr_gang_now_us();
        if (wait_us > 0) {
            (void)uv_timer_start(timer, on_fault_timer, (uint64_t)wait_us / 1000 + 1, 0);
            return;
        }
        gang->faults_done++;
        signal_worker(gang, fault->rank, fault->signal_number);
    }
}

/* ---- What the agent tells -------------------------------------------------------------------- */

/* A worker was killed: do the others go on? */
static bool spare(gr_gang *gang, int rank)
{
    const gr_launch_config *config = gang->config;
    gr_worker_end *end = &gang->ends[rank];
    bool served = gr_coordinator_has_served(gang->coordinator, rank);
    int left = gr_gang_count_busy(gang);
    if (!gr_launch_elastic(config) || gang->phase != PHASE_RUNNING || left == 0 ||
        (served && !gr_gang_anybody_serves(gang))) {
        return false;
    }
    bool again = gr_gang_replace(gang);
    if ((again ? gang->want : left) < config->workers_min) {
        return false;
    }
    char what[GR_DIAG_TEXT_BYTES];
    gr_verdict_describe(rank, end, what, sizeof what);
    int with = left < gang->want ? left : gang->want;
    gr_log_write(config->log, GR_LOG_WARN, "launch", "%s; the job goes on with %d worker%s%s%s",
                 what, with, with == 1 ? "" : "s",
                 served && again && left >= gang->want ? ", a standby among them" : "",
                 again ? ", and another one is started" : "");
    end->spared = true;
    gang->spared_absent += gr_coordinator_member_state(gang->coordinator, rank) == 0;
    gr_coordinator_member_ended(gang->coordinator, rank);
    gr_gang_tell_wanted(gang);
    progress_coordinator(gang);
    return true;
}

static void on_worker_end(gr_gang *gang, const gr_agent_message *message)
{
    gr_worker_end *end = &gang->ends[message->rank];
    if (gang->phase == PHASE_RUNNING) {
        progress_coordinator(gang); /* its last message may still be unread */
    }
    end->ended = true;
    end->wait_status = message->value;
    end->order = gang->ended++;
    end->end_us = gr_gang_now_us();
    gr_records_ended(gang->records, message->rank);
    end->was_asked = gang->told;
    gang->places[message->rank].busy = false;
    /* Nobody depends on a newcomer that has not come in. */
    bool idle = gang->places[message->rank].newcomer &&
                !gr_coordinator_has_served(gang->coordinator, message->rank);
    gr_end_class class = gr_verdict_class(end);
    if (class == GR_END_FINE || class == GR_END_ASKED) {
        end->spared = idle;
        if (gang->phase == PHASE_RUNNING) {
            progress_coordinator(gang); /* others may wait for it in vain */
        }
        return;
    }
    if (gang->phase > PHASE_SETTLING ||
        ((class == GR_END_KILLED || idle) && spare(gang, message->rank))) {
        return;
    }
    set_reason(gang, REASON_WORKER, GR_E_PEER_LOST);
    if (class == GR_END_KILLED) {
        end_after_failure(gang);
    } else if (class == GR_END_FAILED) {
        enter(gang, PHASE_SETTLING, SETTLE_FAILED_MS);
    } else if (gang->phase == PHASE_RUNNING) {
        enter(gang, PHASE_SETTLING, SETTLE_PEER_MS);
    }
}

/* Those that run go on; so that this is not tried for ever, no others are started any more. */
static void do_without(gr_gang *gang, int slot, const gr_diag *why)
{
    gang->places[slot].busy = false;
    gang->restarts_left = 0;
    (void)gr_gang_replace(gang);
    gr_log_write(gang->config->log, GR_LOG_WARN, "launch",
                 "%s; the job goes on with the %d that run", why->text, gang->want);
    gr_coordinator_member_ended(gang->coordinator, slot);
    gr_gang_tell_wanted(gang);
    progress_coordinator(gang);
}

/* A worker could not be started there, and so none runs on. */
static void on_not_started(gr_host_agent *agent, const gr_agent_message *message)
{
    gr_gang *gang = agent->gang;
    gr_spawn_error error = {.step = message->value, .error = message->error};
    gr_diag diag;
    gr_status status = gr_spawn_fail(gang->config->argv[0], &error, &diag);
    if (gang->places[message->rank].newcomer) {
        do_without(gang, message->rank, &diag);
        return;
    }
    set_reason(gang, REASON_NOT_STARTED, status);
    if (gang->reason == REASON_NOT_STARTED && agent->host->local) {
        gang->verdict = diag;
    } else if (gang->reason == REASON_NOT_STARTED) {
        (void)gr_fail(&gang->verdict, status, "on host %s: %s", gr_host_label(agent->host),
                      diag.text);
    }
    kill_all(gang);
}

static void on_agent_over(gr_host_agent *agent)
{
    gr_gang *gang = agent->gang;
    agent->over = true;
    uv_poll_stop(&agent->poll);
    if (++gang->agents_over < gang->hosts->count) {
        return;
    }
    if (gang->any_lost) {
        gr_descent_end(); /* what its workers had started fell to us */
    }
    start_draining(gang);
}

static void on_message(gr_host_agent *agent, gr_agent_message *message)
{
    gr_gang *gang = agent->gang;
    bool known = message->rank >= 0 && message->rank < agent->host->workers;
    message->rank += agent->host->first;
    if (message->kind == GR_AGENT_READY) {
        /* Nothing runs anywhere until all hosts are there. */
        if (++gang->agents_ready == gang->hosts->count && gang->phase == PHASE_RUNNING) {
            tell_agents(gang, GR_AGENT_START, 0);
            on_fault_timer(&gang->fault_timer);
        }
    } else if (message->kind == GR_AGENT_STARTED && known) {
        gr_worker_end *end = &gang->ends[message->rank];
        end->started = true;
        end->spared = false;
        end->pid = message->pid;
        end->host = gr_launch_host_of(gang->config, message->rank);
        end->start_us = gr_gang_now_us();
        gang->started++;
    } else if (message->kind == GR_AGENT_EXITED && known) {
        on_worker_end(gang, message);
    } else if (message->kind == GR_AGENT_NOT_STARTED) {
        on_not_started(agent, message);
    } else if (message->kind == GR_AGENT_DONE) {
        on_agent_over(agent);
    }
}

/* Why the agent, or the way to it, is gone. */
static void describe_loss(const gr_host_agent *agent, gr_diag *diag)
{
    const gr_gang *gang = agent->gang;
    const char *name = agent->host->name;
    char words[GR_DIAG_TEXT_BYTES];
    ssize_t got = agent->words_fd >= 0 ? read(agent->words_fd, words, sizeof words - 1) : 0;
    words[got > 0 ? got : 0] = '\0';
    if (agent->host->local) {
        (void)gr_fail(diag, GR_E_IO,
                      "the process that looks after the workers (gradus-agent, pid %d) was killed, "
                      "and the job with it",
                      (int)agent->pid);
    } else if (gang->agents_ready < gang->hosts->count) {
        (void)gr_fail(diag, GR_E_NOT_FOUND,
                      "host %s cannot be used: %s; nothing was started; \"ssh %s %s version\" must "
                      "answer without a question (--ssh-port, --ssh-identity-file, "
                      "--remote-program)",
                      name, words[0] != '\0' ? words : "its relay was killed", name,
                      gang->config->program);
    } else {
        (void)gr_fail(diag, GR_E_PEER_LOST, "host %s was lost with its %d worker%s: %s", name,
                      agent->host->workers, agent->host->workers == 1 ? "" : "s",
                      words[0] != '\0' ? words : "the relay to it was killed");
    }
}

/* The agent, or the way to it, is gone, and its workers with it. */
static void on_agent_lost(gr_host_agent *agent)
{
    gr_gang *gang = agent->gang;
    gr_diag why;
    bool running = gang->agents_ready == gang->hosts->count, on = running && !gang->told;
    int lost = 0;
    describe_loss(agent, &why);
    gang->any_lost = true;
    for (int i = 0; i < agent->host->workers && running; i++) {
        int rank = agent->host->first + i;
        gr_worker_end *end = &gang->ends[rank];
        if (end->ended || !gang->places[rank].busy) {
            continue;
        }
        lost++;
        gang->places[rank].busy = false;
        end->started = end->ended = end->lost = true;
        end->wait_status = SIGKILL;
        end->order = gang->ended++;
        end->end_us = gr_gang_now_us();
        end->host = gr_launch_host_of(gang->config, rank);
        end->was_asked = gang->told;
        gr_records_ended(gang->records, rank);
        on = on && spare(gang, rank);
    }
    if (on && lost > 0) {
        gr_log_write(gang->config->log, GR_LOG_WARN, "launch", "%s", why.text);
    } else if (!on && !gang->told) {
        gang->reason = REASON_AGENT_LOST;
        gang->status = (gr_status)why.status;
        gang->verdict = why;
        end_after_failure(gang);
    }
    on_agent_over(agent);
}

static void on_control(uv_poll_t *poll, int status, int events)
{
    gr_host_agent *agent = poll->data;
    (void)status;
    (void)events;
    while (!agent->over) {
        gr_agent_message message;
        int error = gr_agent_receive(agent->control_fd, &message);
        if (error == EAGAIN) {
            return;
        }
        if (error != 0) {
            on_agent_lost(agent);
        } else {
            on_message(agent, &message);
        }
    }
}

static void on_output_settled(void *event_arg)
{
    gr_gang *gang = event_arg;
    if (gang->phase == PHASE_DRAINING) {
        finish(gang);
    }
}

static void on_output_lost(void *event_arg, int error)
{
    gr_gang *gang = event_arg;
    set_reason(gang, REASON_OUTPUT_LOST, GR_E_IO);
    if (gang->reason == REASON_OUTPUT_LOST) {
        (void)gr_fail(&gang->verdict, GR_E_IO,
                      "the output cannot be written any more (%s), so the job was ended",
                      strerror(error));
    }
    end_after_failure(gang);
}

/* ---- Preparation ----------------------------------------------------------------------------- */

/* Others are started on this host alone. */
static bool may_change(const gr_gang *gang)
{
    return gr_launch_elastic(gang->config) && gang->config->hosts == NULL;
}

static gr_status prepare_coordinator(gr_gang *gang, gr_diag *diag)
{
    gr_status status = gr_random_bytes(gang->secret, sizeof gang->secret, diag);
    if (status != GR_OK) {
        return status;
    }
    gr_hex(gang->secret, sizeof gang->secret, gang->secret_hex);
    gr_coordinator_config config = {.world_size = gang->config->workers,
                                    .world_max = gang->slots,
                                    .members_min = gang->config->workers_min,
                                    .secret = gang->secret,
                                    .encrypt = gang->config->encrypt,
                                    .log = gang->config->log};
    status = gr_meeting_listen(gang->hosts, gang->config->environment, &config, diag);
    return status != GR_OK ? status : gr_coordinator_create(&config, &gang->coordinator, diag);
}

static gr_status prepare_workers(gr_gang *gang, gr_diag *diag)
{
    const gr_launch_config *config = gang->config;
    size_t count = (size_t)gang->slots;
    gang->places = gr_arena_alloc(&gang->arena, count * sizeof *gang->places);
    gang->newcomer = gr_arena_alloc(&gang->arena, count * sizeof *gang->newcomer);
    gang->ends = gr_arena_alloc(&gang->arena, count * sizeof *gang->ends);
    gang->spawns = gr_arena_alloc(&gang->arena, count * sizeof *gang->spawns);
    gang->environment = gr_arena_alloc(&gang->arena, count * sizeof *gang->environment);
    gang->parts = gr_arena_alloc(&gang->arena, count * sizeof *gang->parts);
    if (gang->ends == NULL || gang->spawns == NULL || gang->environment == NULL ||
        gang->parts == NULL || gang->places == NULL || gang->newcomer == NULL) {
        return gr_fail(diag, GR_E_NO_MEMORY, "no memory for %d workers", config->workers);
    }
    gang->null_fd = open("/dev/null", O_RDONLY | O_CLOEXEC);
    if (gang->null_fd < 0) {
        return gr_fail(diag, GR_E_IO, "/dev/null cannot be opened: %s", strerror(errno));
    }
    bool changes = may_change(gang);
    gr_environ_config environment = {.inherited = config->environment,
                                     .world_size = config->workers,
                                     .workers_min = config->workers_min,
                                     .workers_max = changes ? gang->slots : 0,
                                     .secret_hex = gang->secret_hex,
                                     .set = config->set,
                                     .defaults = config->defaults};
    gang->records = gr_records_create(gang->slots);
    gr_meeting meeting = {.hosts = gang->hosts,
                          .environment = config->environment,
                          .coordinator = gr_coordinator_address(gang->coordinator)};
    gr_status status = gr_meeting_free_port(&environment.master_port, diag);
    for (int rank = 0; rank < gang->slots && status == GR_OK; rank++) {
        gang->places[rank].busy = rank < config->workers;
        gang->ends[rank].spared = rank >= config->workers;
        gr_spawn *spawn = &gang->spawns[rank];
        const gr_host *host = gr_hosts_of_rank(gang->hosts, rank);
        environment.rank = rank;
        environment.local_rank = rank - host->first;
        environment.local_size = changes ? config->workers : host->workers;
        environment.newcomer = false;
        environment.record = host->local ? gr_records_path(gang->records, rank) : NULL;
        status = gr_meeting_find(&meeting, host, &gang->arena, &environment, diag);
        if (status == GR_OK) {
            status = gr_environ_build(&environment, &gang->arena, &gang->environment[rank], diag);
        }
        if (status == GR_OK && changes) {
            environment.newcomer = true;
            status = gr_environ_build(&environment, &gang->arena, &gang->newcomer[rank], diag);
        }
        *spawn = (gr_spawn){.argv = config->argv,
                            .file = config->file,
                            .environment = gang->environment[rank],
                            .stdin_fd = gang->null_fd,
                            .stdout_fd = gr_output_worker_fd(gang->output, rank, 0),
                            .stderr_fd = gr_output_worker_fd(gang->output, rank, 1)};
        int most = changes ? gr_launch_most(config) : host->workers;
        if (config->bind && rank - host->first < most &&
            gr_cores_deal(config->cores, most, rank - host->first, &gang->parts[rank])) {
            spawn->cores = &gang->parts[rank];
        } else if (config->restrict_cores) {
            spawn->cores = config->cores;
        }
    }
    return status;
}

/* In the process that was forked for it. */
_Noreturn static void become_agent(const gr_gang *gang, const gr_host *host, int control_fd,
                                   int words_fd)
{
    const gr_launch_config *config = gang->config;
    bool changes = may_change(gang);
    gr_agent_config agent = {.workers = changes ? config->workers : host->workers,
                             .slots = changes ? gang->slots : 0,
                             .newcomer = gang->newcomer,
                             .spawns = gang->spawns + host->first,
                             .environment = gang->environment + host->first,
                             .control_fd = control_fd};
    if (host->local) {
        gr_agent_run(&agent);
    }
    char folder[PATH_MAX] = "/";
    (void)!getcwd(folder, sizeof folder);
    gr_remote_config remote = {.host = host->name,
                               .program = config->program,
                               .ssh_port = config->ssh_port,
                               .identity = config->ssh_identity,
                               .start_timeout_us = config->start_timeout_us,
                               .silence_us = config->host_timeout_us,
                               .environment = config->environment,
                               .order = {.workers = host->workers,
                                         .bind = config->bind,
                                         .silence_us = config->host_timeout_us,
                                         .cores = config->cores_text,
                                         .folder = folder,
                                         .argv = (char **)(uintptr_t)config->argv,
                                         .self = config->file != NULL,
                                         .environment = agent.environment},
                               .agent = agent,
                               .words_fd = words_fd};
    gr_remote_run(&remote);
}

static gr_status start_agent(gr_gang *gang, const gr_host *host, gr_diag *diag)
{
    gr_host_agent *agent = &gang->agents[gang->agents_begun];
    int ends[2], words[2];
    if (socketpair(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC, 0, ends) != 0) {
        return gr_fail(diag, GR_E_IO, "the agent's socket cannot be made: %s", strerror(errno));
    }
    if (pipe2(words, O_CLOEXEC | O_NONBLOCK) != 0) {
        int error = errno;
        close(ends[0]);
        close(ends[1]);
        return gr_fail(diag, GR_E_IO, "a pipe cannot be made: %s", strerror(error));
    }
    *agent =
        (gr_host_agent){.gang = gang, .host = host, .control_fd = ends[0], .words_fd = words[0]};
    gang->agents_begun++;
    agent->pid = fork();
    if (agent->pid == 0) {
        gr_wipe(gang->secret, sizeof gang->secret);
        gr_wipe(gang->secret_hex, sizeof gang->secret_hex);
        become_agent(gang, host, ends[1], words[1]);
    }
    int fork_error = errno;
    close(ends[1]);
    close(words[1]);
    if (agent->pid < 0) {
        agent->pid = 0;
        return gr_fail(diag, GR_E_IO, "the agent process cannot be started: %s; see ulimit -u",
                       strerror(fork_error));
    }
    if (fcntl(agent->control_fd, F_SETFL, O_RDWR | O_NONBLOCK) != 0) {
        return gr_fail(diag, GR_E_IO, "the agent's socket cannot be made non-blocking: %s",
                       strerror(errno));
    }
    return GR_OK;
}

static gr_status start_agents(gr_gang *gang, gr_diag *diag)
{
    gr_status status = GR_OK;
    gang->agents = gr_arena_alloc(&gang->arena, (size_t)gang->hosts->count * sizeof *gang->agents);
    if (gang->agents == NULL) {
        return gr_fail(diag, GR_E_NO_MEMORY, "no memory for %d hosts", gang->hosts->count);
    }
    for (int i = 0; i < gang->hosts->count && status == GR_OK; i++) {
        status = start_agent(gang, &gang->hosts->at[i], diag);
    }
    for (int rank = 0; rank < gang->slots; rank++) {
        gr_environ_wipe(gang->environment[rank]);
        if (gang->newcomer[rank] != NULL) {
            gr_environ_wipe(gang->newcomer[rank]);
        }
    }
    gr_wipe(gang->secret, sizeof gang->secret);
    gr_wipe(gang->secret_hex, sizeof gang->secret_hex);
    return status;
}

/* By whoever started us: nohup does so with SIGHUP, a shell's background job with SIGINT. */
static bool is_ignored(int signal_number)
{
    struct sigaction current;
    return sigaction(signal_number, NULL, &current) == 0 && current.sa_handler == SIG_IGN;
}

static int start_handles(gr_gang *gang)
{
    static const int numbers[GR_GANG_SIGNALS] = {SIGINT, SIGTERM, SIGHUP};
    uv_loop_t *loop = &gang->loop;
    int error = 0;
    for (int i = 0; i < GR_GANG_SIGNALS && error == 0; i++) {
        error = uv_signal_init(loop, &gang->signals[i]);
        gang->signals[i].data = gang;
        if (error == 0 && !is_ignored(numbers[i])) {
            error = uv_signal_start(&gang->signals[i], on_signal, numbers[i]);
        }
    }
    uv_timer_t *const timers[] = {&gang->phase_timer, &gang->join_timer, &gang->coordinator_timer,
                                  &gang->fault_timer, &gang->expel_timer};
    for (size_t i = 0; i < sizeof timers / sizeof timers[0] && error == 0; i++) {
        error = uv_timer_init(loop, timers[i]);
        timers[i]->data = gang;
    }
    gang->coordinator_poll.data = gang;
    for (int i = 0; i < gang->agents_begun && error == 0; i++) {
        gr_host_agent *agent = &gang->agents[i];
        agent->poll.data = agent;
        error = uv_poll_init(loop, &agent->poll, agent->control_fd);
        if (error == 0) {
            error = uv_poll_start(&agent->poll, UV_READABLE, on_control);
        }
    }
    if (error == 0) {
        error = uv_poll_init(loop, &gang->coordinator_poll, gr_coordinator_fd(gang->coordinator));
    }
    if (error == 0) {
        error = uv_poll_start(&gang->coordinator_poll, UV_READABLE, on_coordinator);
    }
    if (error == 0 && may_change(gang)) {
        gang->scale_fd = gr_scale_listen();
    }
    if (error == 0 && gang->scale_fd >= 0) {
        gang->scale_poll.data = gang;
        error = uv_poll_init(loop, &gang->scale_poll, gang->scale_fd);
    }
    if (error == 0 && gang->scale_fd >= 0) {
        error = uv_poll_start(&gang->scale_poll, UV_READABLE, on_scale);
    }
    return error;
}

static gr_status start_loop(gr_gang *gang, gr_diag *diag)
{
    int error = uv_loop_init(&gang->loop);
    if (error == 0) {
        gang->loop_open = true;
        error = start_handles(gang);
    }
    if (error != 0) {
        return gr_fail(diag, GR_E_IO, "the event loop cannot be made: %s", uv_strerror(error));
    }
    gr_gang_tell_wanted(gang);
    const gr_output_events events = {
        .settled = on_output_settled, .lost = on_output_lost, .event_arg = gang};
    gr_status status = gr_output_start(gang->output, &gang->loop, &events, diag);
    if (status == GR_OK && gang->config->all_join && gang->config->workers > 1 &&
        gang->config->start_timeout_us > 0) {
        gang->join_timing = true;
        (void)uv_timer_start(&gang->join_timer, on_join_timeout,
                             (uint64_t)gang->config->start_timeout_us / 1000, 0);
    }
    return status;
}

static void close_handle(uv_handle_t *handle, void *walk_arg)
{
    (void)walk_arg;
    if (!uv_is_closing(handle)) {
        uv_close(handle, NULL);
    }
}

static void stop_loop(gr_gang *gang)
{
    if (!gang->loop_open) {
        return;
    }
    gr_output_stop(gang->output);
    uv_walk(&gang->loop, close_handle, NULL);
    while (uv_run(&gang->loop, UV_RUN_NOWAIT) != 0) {
    }
    GR_CHECK(uv_loop_close(&gang->loop) == 0);
}

/* Agents end everything when their socket closes, and then themselves. */
static void stop_agents(gr_gang *gang)
{
    for (int i = 0; i < gang->agents_begun; i++) {
        close(gang->agents[i].control_fd);
        close(gang->agents[i].words_fd);
    }
    for (int i = 0; i < gang->agents_begun && gang->reason != REASON_STUCK; i++) {
        while (gang->agents[i].pid > 0 && waitpid(gang->agents[i].pid, NULL, 0) < 0 &&
               errno == EINTR) {
        }
    }
}

static void clean_up(gr_gang *gang)
{
    stop_loop(gang);
    stop_agents(gang);
    gr_coordinator_destroy(gang->coordinator);
    gr_output_destroy(gang->output);
    gr_records_destroy(gang->records);
    if (gang->null_fd >= 0) {
        close(gang->null_fd);
    }
    if (gang->scale_fd >= 0) {
        close(gang->scale_fd);
    }
    gr_wipe(gang->secret, sizeof gang->secret);
    gr_wipe(gang->secret_hex, sizeof gang->secret_hex);
    gr_arena_fini(&gang->arena);
}

static gr_status run_gang(gr_gang *gang, gr_launch_report *report, gr_diag *diag)
{
    gr_status status = gr_output_create(gang->config, &gang->output, diag);
    if (status == GR_OK) {
        status = prepare_coordinator(gang, diag);
    }
    if (status == GR_OK) {
        status = prepare_workers(gang, diag);
    }
    if (status == GR_OK) {
        status = start_agents(gang, diag);
    }
    if (status == GR_OK) {
        status = start_loop(gang, diag);
    }
    if (status != GR_OK) {
        return status;
    }
    while (gang->phase != PHASE_OVER) {
        (void)uv_run(&gang->loop, UV_RUN_DEFAULT);
    }
    return gr_gang_report(gang, report, diag);
}

gr_status gr_launch_run(const gr_launch_config *config, gr_launch_report *report_out, gr_diag *diag)
{
    const gr_hosts here = {.count = 1,
                           .at[0] = {.workers = gr_launch_slots(config), .local = true}};
    gr_gang gang = {.config = config,
                    .hosts = config->hosts != NULL ? config->hosts : &here,
                    .slots = gr_launch_slots(config),
                    .want = config->workers,
                    .spares = config->spares,
                    .restarts_left = config->hosts == NULL ? config->restarts * config->workers : 0,
                    .null_fd = -1,
                    .scale_fd = -1,
                    .start_us = gr_gang_now_us()};
    *report_out = (gr_launch_report){.rank = -1};
    if (config->workers < 1 || gang.slots > GR_LAUNCH_WORKERS_MAX) {
        return gr_fail(diag, GR_E_INVALID, "-np: %d workers cannot be started here; 1 to %d can",
                       config->workers, GR_LAUNCH_WORKERS_MAX);
    }
    int error = gr_descent_adopt();
    if (error != 0) {
        return gr_fail(diag, GR_E_IO, "orphans cannot be adopted: %s", strerror(error));
    }
    /* A reader that is gone is a status of write here, not the end of this process. */
    struct sigaction ignore = {.sa_handler = SIG_IGN}, before;
    (void)sigaction(SIGPIPE, &ignore, &before);
    gr_arena_init(&gang.arena, ARENA_BYTES_MAX);
    gr_status status = run_gang(&gang, report_out, diag);
    clean_up(&gang);
    (void)sigaction(SIGPIPE, &before, NULL);
    return status;
}
