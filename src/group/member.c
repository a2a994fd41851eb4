/* SPDX-License-Identifier: Apache-2.0 */
#include "group/member.h"

#include "base/codec.h"
#include "base/fail.h"
#include "base/fork.h"
#include "base/hash.h"
#include "link/acceptor.h"
#include "link/address.h"
#include "link/secret.h"

#include <poll.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

enum {
    /* At the deadline the coordinator is asked who is missing. It answers at once if it gets a
     * processor. */
    ANSWER_US = 5000000,
    ORPHAN_US = 1000000 /* an agent finds out within milliseconds, on a busy host within more */
};

/* ---- Checks ---------------------------------------------------------------------------------- */

static int64_t members_max(const gr_group_config *config)
{
    return config->members_max > config->world_size ? config->members_max : config->world_size;
}

gr_status gr_group_keep_secret(const gr_group_config *config, uint8_t **kept_out, gr_diag *diag)
{
    uint8_t secret[GR_SECRET_BYTES];
    bool given = config->secret_hex != NULL && config->secret_hex[0] != '\0';
    if (!gr_group_has_secret(config)) {
        return gr_fail(diag, GR_E_INVALID,
                       "GRADUS_RANK is set, but neither GRADUS_SECRET nor GRADUS_SECRET_FILE is: "
                       "start the program with `gradus run`; a process joins a job only once");
    }
    gr_status status = given ? gr_secret_parse(config->secret_hex, secret, diag)
                             : gr_secret_read(config->secret_file, secret, diag);
    if (status == GR_OK && (*kept_out = gr_secret_keep(secret)) == NULL) {
        status = gr_fail(diag, GR_E_NO_MEMORY, "no memory for a secret");
    }
    gr_wipe(secret, sizeof secret);
    return status;
}

static gr_status check_ranks(const gr_group_config *config, gr_diag *diag)
{
    if (config->rank < 0 || config->world_size < 1 || config->world_size > GR_GROUP_WORLD_MAX ||
        config->rank >= members_max(config)) {
        return gr_fail(diag, GR_E_INVALID,
                       "the rank is %lld and the world size %lld (GRADUS_RANK, GRADUS_WORLD_SIZE): "
                       "ranks go from 0 to the world size less one, and there are at most %d",
                       (long long)config->rank, (long long)config->world_size, GR_GROUP_WORLD_MAX);
    }
    return GR_OK;
}

static gr_status find_network(gr_joining *join, gr_diag *diag)
{
    const gr_group_config *config = join->config;
    const char *coordinator = config->coordinator;
    /* Who calls the coordinator by tcp may get company from elsewhere. */
    bool one_host = config->local_size >= config->world_size && config->host == NULL &&
                    (coordinator == NULL || strncmp(coordinator, "tcp:", 4) != 0);
    join->remote = config->link == GR_LINK_ALL_TCP || (config->link == GR_LINK_AUTO && !one_host);
    gr_status status = gr_ports_parse(config->ports, &join->ports, diag);
    if (status == GR_OK && join->remote) {
        /* What nobody elsewhere needs to reach listens on loopback only. */
        const char *wanted =
            config->interfaces == NULL && one_host ? "127.0.0.0/8" : config->interfaces;
        status = gr_interfaces_find(wanted, &join->interfaces, diag);
    }
    return status;
}

/* In the first generation the coordinator is looked for; in later ones it is known. */
static gr_status find_coordinator(gr_joining *join, bool first, gr_diag *diag)
{
    gr_group *group = join->group;
    gr_status status = first ? gr_bootstrap_exchange(join, diag) : GR_OK;
    if (status == GR_OK && first) {
        gr_bootstrap_apply(group->bootstrap, &join->own);
    }
    if (status == GR_OK && group->secret == NULL) {
        status = gr_group_keep_secret(join->config, &group->secret, diag);
    }
    return status;
}

static gr_status check(gr_joining *join, gr_diag *diag)
{
    gr_group *group = join->group;
    bool first = group->bootstrap == NULL;
    gr_status status = check_ranks(join->config, diag);
    join->self.host = gr_host_identify(join->config->host, join->self.host_name);
    if (status == GR_OK && first) {
        status = gr_bootstrap_create(join, &group->bootstrap, diag);
    }
    if (status == GR_OK) {
        gr_bootstrap_apply(group->bootstrap, &join->own);
        status = find_network(join, diag);
    }
    return status == GR_OK ? find_coordinator(join, first, diag) : status;
}

/* ---- Meeting --------------------------------------------------------------------------------- */

bool gr_joining_late(const gr_joining *join)
{
    return gr_clock_now_us(&join->clock) >= join->deadline_us;
}

void gr_joining_set_deadline(gr_joining *join)
{
    join->deadline_us = gr_clock_deadline_us(&join->clock, join->config->join_timeout_us);
}

/* Sleep until the descriptor has something or the time has come. */
static void sleep_on(const gr_joining *join, int fd, short events, int64_t until_us)
{
    struct pollfd at = {.fd = fd, .events = events};
    int64_t now = gr_clock_now_us(&join->clock);
    int64_t until = until_us < join->deadline_us ? until_us : join->deadline_us;
    int64_t left_ms = until <= now ? 0 : (until == GR_NEVER ? 60000 : (until - now + 999) / 1000);
    (void)poll(&at, 1, left_ms > 60000 ? 60000 : (int)left_ms);
}

gr_status gr_joining_call(gr_joining *join, const char *addresses, int64_t timeout_us,
                          gr_accepted *arrival_out, gr_diag *diag)
{
    gr_acceptor_config config = {.rank = join->group->number,
                                 .secret = join->group->secret,
                                 .encrypt = join->config->encrypt,
                                 .half_open_max = 1,
                                 .outgoing_max = 1,
                                 .timeout_us = timeout_us > 0 ? timeout_us : INT64_MAX / 2,
                                 .clock = join->clock,
                                 .log = join->log};
    gr_acceptor *acceptor = NULL;
    gr_status status = gr_acceptor_create(&config, &acceptor, diag);
    if (status != GR_OK) {
        return status;
    }
    status = gr_acceptor_connect(acceptor, GR_AUTH_RANK_COORDINATOR, (gr_auth_rail){.count = 1},
                                 addresses, diag);
    while (status == GR_OK) {
        status = gr_acceptor_progress(acceptor, diag);
        if (status != GR_OK || gr_acceptor_accept(acceptor, arrival_out)) {
            break;
        }
        sleep_on(join, gr_acceptor_fd(acceptor), POLLIN, gr_acceptor_next_us(acceptor));
    }
    gr_acceptor_destroy(acceptor);
    return status;
}

/* GR_E_PEER_LOST: the connection is over. What has to wait goes out with the next words. */
static gr_status send_message(gr_group *group, const uint8_t *message, size_t size_bytes)
{
    gr_status status = gr_control_put(&group->control, message, size_bytes);
    status = status == GR_OK ? gr_control_flush(&group->control) : GR_E_PEER_LOST;
    return status == GR_PENDING ? GR_OK : status;
}

static void send_hello(gr_joining *join)
{
    gr_group *group = join->group;
    uint8_t message[GR_MESSAGE_SMALL_MAX];
    gr_hello hello = {.world_size = (uint32_t)group->world_size,
                      .link = (uint32_t)join->config->link,
                      .pid = (uint64_t)getpid(),
                      .generation = group->assignment.generation,
                      .member = join->self};
    /* If it was closed already, the coordinator has said why: that message comes next. */
    gr_status sent = send_message(group, message, gr_message_put_hello(&hello, message));
    (void)sent;
}

/* The join came to nothing here: the others need not find out for themselves. */
static void send_reason(gr_group *group, const gr_diag *failure)
{
    uint8_t message[GR_MESSAGE_SMALL_MAX];
    if (group->control.fd >= 0) {
        gr_status sent = send_message(group, message, gr_message_put_fail(failure, message));
        (void)sent; /* without it, the coordinator sees us end */
    }
}

/* The coordinator decides who goes on: whoever it does not reach cannot know, and ends. */
static gr_status without_coordinator(const gr_group *group, gr_diag *diag)
{
    if (gr_control_is_cut(&group->control)) {
        return gr_fail(
            diag, GR_E_PEER_LOST,
            "rank %d is cut off from the job's coordinator (%s) and ends: only the ranks "
            "that the coordinator reaches go on; see to the network between this host "
            "and the one of `gradus run`, and look there how the job goes on",
            group->rank, strerror(group->control.error));
    }
    return gr_fail(diag, GR_E_PEER_LOST,
                   "the job's coordinator has ended, or has given rank %d up: is `gradus run` "
                   "still there?",
                   group->rank);
}

/* Messages of the generation before may still come. */
static gr_status take_members(gr_group *group, const uint8_t *body, size_t size, gr_diag *diag)
{
    bool known = group->generation == group->assignment.generation;
    if (known || group->renewing || size < 8 || gr_get_u64(body) != group->assignment.generation) {
        return GR_OK;
    }
    group->placed = group->world_size;
    return gr_message_get_members(body, size, group->world_size, &group->generation, group->members,
                                  diag);
}

/* Under the lock. What nobody fetches makes room for what is newer. */
static gr_status take_report(gr_group *group, const uint8_t *body, size_t size, gr_diag *diag)
{
    gr_op_report report;
    gr_status status = gr_op_report_get(body, size, GR_GROUP_WORLD_MAX, &report, diag);
    if (status != GR_OK || report.generation != group->generation) {
        return status;
    }
    for (int i = 0; i < group->report_count; i++) {
        if (report.kind == GR_REPORT_CAUSE && group->reports[i].kind == GR_REPORT_CAUSE) {
            group->reports[i] = report;
            return GR_OK;
        }
    }
    if (group->report_count == GR_GROUP_REPORTS_MAX) {
        group->report_count--;
        memmove(group->reports, group->reports + 1,
                (size_t)group->report_count * sizeof group->reports[0]);
    }
    group->reports[group->report_count++] = report;
    return GR_OK;
}

/* Under the lock. */
static gr_status receive(gr_group *group, gr_diag *diag)
{
    gr_message_kind kind;
    const uint8_t *body;
    size_t size;
    gr_diag failure;
    (void)gr_control_ping(&group->control, gr_now_ns() / 1000);
    gr_status status = gr_control_get(&group->control, &kind, &body, &size, diag);
    if (status == GR_E_PEER_LOST) {
        if (group->gone_us == 0 && !gr_control_is_cut(&group->control)) {
            group->gone_us = gr_now_ns() / 1000;
        }
        return without_coordinator(group, diag);
    }
    if (status != GR_OK) {
        return status;
    }
    switch (kind) {
    case GR_MESSAGE_MEMBERS:
        return take_members(group, body, size, diag);
    case GR_MESSAGE_HISTORY:
        return gr_message_get_history(body, size, &group->history, diag);
    case GR_MESSAGE_MISSING:
        status = gr_message_get_missing(body, size, &group->missing, diag);
        group->missing_known = status == GR_OK;
        return status;
    case GR_MESSAGE_CHANGE:
        group->change = !group->renewing;
        return GR_OK;
    case GR_MESSAGE_REPORT:
        return take_report(group, body, size, diag);
    case GR_MESSAGE_PING:
        return GR_OK;
    case GR_MESSAGE_DISMISS:
        group->dismissed = true;
        return gr_fail(diag, GR_E_CANCELLED, "this worker is not needed by the job");
    case GR_MESSAGE_ASSIGN:
        return gr_message_get_assignment(body, size, &group->assignment, diag);
    case GR_MESSAGE_FAIL:
        status = gr_message_get_fail(body, size, &failure, diag);
        if (status == GR_OK && group->renewing &&
            gr_status_scope((gr_status)failure.status) == GR_SCOPE_PEER) {
            return GR_OK; /* of the old generation */
        }
        if (status == GR_OK) {
            status = (gr_status)failure.status;
            if (diag != NULL) {
                *diag = failure;
            }
        }
        return status;
    default:
        return gr_fail(diag, GR_E_PROTOCOL, "the coordinator sent a message of kind %d", (int)kind);
    }
}

gr_status gr_group_receive(gr_group *group, gr_diag *diag)
{
    pthread_mutex_lock(&group->lock);
    gr_status status = receive(group, diag);
    group->broken = group->broken || status < 0;
    pthread_mutex_unlock(&group->lock);
    return status;
}

static gr_status nobody_came(const gr_joining *join, gr_diag *diag)
{
    const gr_missing *missing = &join->group->missing;
    char list[256] = "";
    size_t used = 0;
    double seconds = (double)join->config->join_timeout_us / 1e6;
    if (!join->group->missing_known || missing->total == 0) {
        return gr_fail(diag, GR_E_TIMEOUT, "not all of %d ranks have come within %g s",
                       join->group->world_size, seconds);
    }
    for (uint32_t i = 0; i < missing->listed && used + 16 < sizeof list; i++) {
        int put =
            snprintf(list + used, sizeof list - used, "%s%u", i > 0 ? ", " : "", missing->ranks[i]);
        used += put > 0 ? (size_t)put : 0;
    }
    return gr_fail_peer(diag, GR_E_TIMEOUT, (int)missing->ranks[0],
                        "%s %s%s did not come within %g s (GRADUS_JOIN_TIMEOUT); see the output of "
                        "%s",
                        missing->total == 1 ? "rank" : "ranks", list,
                        missing->total > missing->listed ? ", ..." : "", seconds,
                        missing->total == 1 ? "that rank" : "those ranks");
}

/* Wait until the coordinator has told a number: of the generation whose members it names, or of the
 * rank assignment. */
static gr_status wait_for(gr_joining *join, const uint64_t *number, gr_diag *diag)
{
    gr_group *group = join->group;
    uint8_t message[GR_MESSAGE_SMALL_MAX];
    bool asked = false;
    while (*number == 0) {
        gr_status status = gr_group_receive(group, diag);
        if (status < 0) {
            return status;
        }
        if (status == GR_OK) {
            continue;
        }
        bool late = gr_joining_late(join);
        if (asked && (late || group->missing_known)) {
            return nobody_came(join, diag);
        }
        if (late) {
            asked = true;
            join->deadline_us = gr_clock_deadline_us(&join->clock, ANSWER_US);
            status = gr_control_put(&group->control, message,
                                    gr_message_put_empty(GR_MESSAGE_ASK, message));
        }
        if (status < 0 || gr_control_flush(&group->control) == GR_E_PEER_LOST) {
            return without_coordinator(group, diag);
        }
        int64_t ping_at_us = gr_control_ping(&group->control, gr_clock_now_us(&join->clock));
        sleep_on(join, group->control.fd, POLLIN, ping_at_us);
    }
    return GR_OK;
}

static gr_status send_ready(gr_group *group, gr_diag *diag)
{
    uint8_t message[GR_MESSAGE_SMALL_MAX];
    size_t size = gr_message_put_ready(group->assignment.generation, message);
    return send_message(group, message, size) == GR_OK ? GR_OK : without_coordinator(group, diag);
}

/* What was reported in a generation ends with it: until the members of the next one are known, no
 * report is taken. */
static void end_generation(gr_group *group)
{
    pthread_mutex_lock(&group->lock);
    group->generation = 0;
    group->report_count = 0;
    pthread_mutex_unlock(&group->lock);
}

/* A generation, of which the coordinator knows how many there are and which one this is. */
static gr_status form(gr_joining *join, gr_diag *diag)
{
    gr_group *group = join->group;
    end_generation(group);
    group->missing_known = false;
    gr_joining_announce_failover(join);
    gr_status status = gr_joining_open_mesh(join, diag);
    if (status == GR_OK) {
        send_hello(join);
        status = wait_for(join, &group->generation, diag);
    }
    if (status == GR_OK) {
        status = gr_joining_find_hosts(join, diag);
    }
    if (status == GR_OK && group->mesh != NULL) {
        status = gr_joining_wire(join, diag);
    }
    return status == GR_OK ? send_ready(group, diag) : status;
}

/* Of the coordinator that there is (RENEW), or of one that is new to this member (HISTORY). */
static gr_status ask_coordinator(gr_joining *join, gr_message_kind kind, gr_diag *diag)
{
    gr_group *group = join->group;
    uint8_t message[GR_MESSAGE_SMALL_MAX];
    size_t size = kind == GR_MESSAGE_HISTORY ? gr_message_put_history(&group->history, message)
                                             : gr_message_put_empty(kind, message);
    group->assignment.generation = 0;
    group->missing_known = false;
    group->change = group->broken = false; /* of the old generation */
    group->renewing = true;
    gr_status status = gr_control_put(&group->control, message, size);
    if (status != GR_OK || gr_control_flush(&group->control) == GR_E_PEER_LOST) {
        status = without_coordinator(group, diag);
    } else {
        status = wait_for(join, &group->assignment.generation, diag);
    }
    group->renewing = false;
    return status;
}

static gr_status ask_for_assignment(gr_joining *join, gr_diag *diag)
{
    gr_group *group = join->group;
    gr_status status = ask_coordinator(join, GR_MESSAGE_RENEW, diag);
    while (status < 0 && gr_group_may_find_leader(group)) {
        status = gr_joining_find_leader(join, diag);
        if (status != GR_OK) {
            return status;
        }
        status = ask_coordinator(join, GR_MESSAGE_HISTORY, diag);
    }
    if (status != GR_OK) {
        return status;
    }
    group->rank = (int)group->assignment.rank;
    group->world_size = (int)group->assignment.world_size;
    group->number = (int)group->assignment.number;
    if (group->joining) { /* until now it has waited for others to be ready for it */
        group->joining = false;
        gr_joining_set_deadline(join);
        status = gr_joining_open_failover(join, diag);
    }
    return status;
}

/* Members may be lost on the way, again and again: one attempt after the other, as long as the
 * coordinator goes on. */
static gr_status form_with_those_left(gr_joining *join, bool assigned, gr_diag *diag)
{
    bool elastic = gr_group_elastic(join->config);
    gr_status status = assigned ? GR_OK : ask_for_assignment(join, diag);
    while (status == GR_OK) {
        status = form(join, diag);
        if (!elastic || !gr_fault_of_peer(status) || gr_joining_late(join)) {
            return status;
        }
        gr_group_unlink(join->group);
        status = ask_for_assignment(join, diag);
    }
    return status;
}

/* Looks for the coordinator until it answers, where that may take a while. */
static gr_status call_coordinator(gr_joining *join, gr_accepted *accepted_out, gr_diag *diag)
{
    gr_status status, found = GR_OK;
    do {
        gr_bootstrap_apply(join->group->bootstrap, &join->own);
        int64_t timeout_us = gr_bootstrap_patience_us(join);
        status = gr_joining_call(join, join->config->coordinator, timeout_us, accepted_out, diag);
        found = status == GR_OK ? GR_OK : gr_bootstrap_retry(join, status, diag);
    } while (status != GR_OK && found == GR_OK);
    return found;
}

static gr_status join_others(gr_joining *join, gr_diag *diag)
{
    gr_group *group = join->group;
    size_t world = (size_t)members_max(join->config);
    size_t in_bytes = gr_message_members_max((int)world) + GR_MESSAGE_SMALL_MAX;
    gr_accepted accepted;
    group->in = malloc(in_bytes);
    group->members = calloc(world, sizeof *group->members);
    if (group->in == NULL || group->members == NULL) {
        return gr_fail(diag, GR_E_NO_MEMORY, "no memory for a group of %zu", world);
    }
    gr_status status = call_coordinator(join, &accepted, diag);
    if (status != GR_OK) {
        return status;
    }
    status = group->joining ? GR_OK : gr_joining_open_failover(join, diag);
    if (status != GR_OK) {
        gr_tls_destroy(accepted.tls);
        gr_fork_close(accepted.fd);
        return status;
    }
    gr_control_init(&group->control, &accepted, join->config->peer_timeout_us, group->in, in_bytes);
    if (!group->joining) {
        return form_with_those_left(join, true, diag);
    }
    join->deadline_us = GR_NEVER;
    status = form_with_those_left(join, false, diag);
    while (group->joining && join->config->failover && group->control.ended) {
        gr_control_close(&group->control);
        gr_joining_set_deadline(join);
        status = call_coordinator(join, &accepted, diag); /* another one has taken over */
        if (status != GR_OK) {
            break;
        }
        gr_control_init(&group->control, &accepted, join->config->peer_timeout_us, group->in,
                        in_bytes);
        join->deadline_us = GR_NEVER;
        status = form_with_those_left(join, false, diag);
    }
    return status;
}

/* A group of one, which nobody else knows of. */
static gr_status be_alone(const gr_group_config *config, gr_group *group, gr_diag *diag)
{
    group->members = calloc(1, sizeof *group->members);
    if (group->members != NULL) {
        group->members->host = gr_host_identify(config->host, group->members->host_name);
        if (gr_topology_create(&group->members->host, 1, &group->topology) == GR_OK) {
            return GR_OK;
        }
    }
    return gr_fail(diag, GR_E_NO_MEMORY, "no memory for a group");
}

static void forget_secret(gr_group *group)
{
    gr_secret_forget(group->secret);
    group->secret = NULL;
}

static gr_status begin_joining(gr_joining *join, gr_group *group, const gr_group_config *config,
                               const gr_log *log, gr_diag *diag)
{
    *join = (gr_joining){.own = *config,
                         .given = config->coordinator,
                         .log = log,
                         .group = group,
                         .clock = gr_clock_real()};
    join->config = &join->own;
    gr_joining_set_deadline(join);
    return check(join, diag);
}

/* ---- Face ------------------------------------------------------------------------------------ */

gr_status gr_group_join(const gr_group_config *config, const gr_log *log, gr_group **group_out,
                        gr_diag *diag)
{
    gr_diag own_diag;
    diag = diag != NULL ? diag : &own_diag; /* the others are told what is in it */
    gr_diag_clear(diag);
    gr_group *group = calloc(1, sizeof *group);
    if (group == NULL) {
        return gr_fail(diag, GR_E_NO_MEMORY, "no memory for a group");
    }
    group->world_size = 1;
    group->log = log;
    group->generation = 1;
    pthread_mutex_init(&group->lock, NULL);
    group->control.fd = -1;
    if (config->rank < 0 && config->allgather == NULL) {
        gr_status status = be_alone(config, group, diag);
        if (status != GR_OK) {
            gr_group_leave(group);
            return status;
        }
    } else {
        gr_joining join;
        gr_status status = begin_joining(&join, group, config, log, diag);
        if (status == GR_OK) {
            bool numbered = config->joining && join.own.failover; /* by the coordinator */
            group->rank = (int)config->rank;
            group->number = numbered ? GR_AUTH_RANK_JOINING : (int)config->rank;
            group->assignment.generation = 1;
            group->tcp = config->link == GR_LINK_ALL_TCP;
            group->joining = config->joining;
            group->elastic = gr_group_elastic(config);
            group->world_size = (int)config->world_size;
            status = join_others(&join, diag);
        }
        gr_wipe_stack();
        if (status != GR_OK) {
            send_reason(group, diag);
            gr_group_leave(group);
            return status;
        }
    }
    if (!gr_group_elastic(config)) { /* there is no other generation */
        forget_secret(group);
    }
    group->joined = true;
    *group_out = group;
    return GR_OK;
}

gr_status gr_group_renew(gr_group *group, const gr_group_config *config, const gr_log *log,
                         gr_diag *diag)
{
    gr_diag own_diag;
    diag = diag != NULL ? diag : &own_diag;
    gr_diag_clear(diag);
    if (group->control.fd < 0 || !gr_group_elastic(config)) {
        return gr_fail(diag, GR_E_UNSUPPORTED,
                       "this job ends with the first member that it loses; start it with "
                       "--min-workers to go on with the others");
    }
    if (group->dismissed) {
        return gr_fail(diag, GR_E_CANCELLED, "this worker is not needed by the job any more");
    }
    gr_joining join;
    group->log = log;
    gr_status status = begin_joining(&join, group, config, log, diag);
    if (status == GR_OK) {
        status = form_with_those_left(&join, false, diag);
    }
    gr_wipe_stack();
    return status;
}

/* The launcher has ended, and nobody takes over. No other generation can come about
 * without it, so this one may go on until whoever looks after this process has told it how to
 * end. */
static bool is_orphan(const gr_group *group)
{
    return group->gone_us != 0 && group->failover == NULL &&
           gr_now_ns() / 1000 - group->gone_us < ORPHAN_US;
}

bool gr_group_change_wanted(gr_group *group)
{
    gr_diag nothing; /* the renewal will tell why */
    gr_status status = GR_OK;
    for (;;) {
        pthread_mutex_lock(&group->lock);
        bool wanted = group->change || (group->broken && group->elastic && !is_orphan(group));
        pthread_mutex_unlock(&group->lock);
        if (wanted || status != GR_OK || group->control.fd < 0) {
            return wanted;
        }
        status = gr_group_receive(group, &nothing);
    }
}

/* What went over each of several rails: whether all interfaces did their part. */
static void log_rails(const gr_group *group)
{
    gr_mesh_stats stats;
    char text[160] = "";
    size_t used = 0;
    uint64_t sum = 0;
    gr_mesh_get_stats(group->mesh, &stats);
    for (int i = 0; i < GR_LINK_RAILS_MAX; i++) {
        sum += stats.rail_bytes[i];
    }
    for (int i = 0; i < GR_LINK_RAILS_MAX && stats.rail_bytes[i] > 0; i++) {
        int put = snprintf(text + used, sizeof text - used, "%s%.0f %%", i > 0 ? ", " : "",
                           100.0 * (double)stats.rail_bytes[i] / (double)sum);
        used += put > 0 ? (size_t)put : 0;
    }
    if (sum > 0) {
        gr_log_write(group->log, GR_LOG_INFO, "group",
                     "rank %d sent %.3f GB over tcp, over the first rail and so on: %s",
                     group->rank, (double)sum / 1e9, text);
    }
}

bool gr_group_send_report(gr_group *group, const gr_op_report *report)
{
    uint8_t message[GR_MESSAGE_SMALL_MAX];
    gr_op_report sent = *report;
    sent.generation = group->generation;
    sent.rank = group->rank;
    size_t size = gr_message_put_report(&sent, message);
    gr_status status = GR_E_PEER_LOST;
    pthread_mutex_lock(&group->lock);
    if (group->control.fd >= 0 && !group->control.ended) {
        status = gr_control_put(&group->control, message, size);
        status = status == GR_OK ? gr_control_flush(&group->control) : status;
    }
    pthread_mutex_unlock(&group->lock);
    return status == GR_OK || status == GR_PENDING;
}

bool gr_group_next_report(gr_group *group, bool look, gr_op_report *report_out)
{
    gr_diag ignored; /* whoever waits for the coordinator finds out by itself */
    while (look && group->control.fd >= 0 && gr_group_receive(group, &ignored) == GR_OK) {
    }
    pthread_mutex_lock(&group->lock);
    bool found = group->report_count > 0;
    if (found) {
        *report_out = group->reports[0];
        group->report_count--;
        memmove(group->reports, group->reports + 1,
                (size_t)group->report_count * sizeof group->reports[0]);
    }
    pthread_mutex_unlock(&group->lock);
    return found;
}

bool gr_group_has_coordinator(gr_group *group)
{
    pthread_mutex_lock(&group->lock);
    bool has = group->control.fd >= 0 && !group->control.ended;
    pthread_mutex_unlock(&group->lock);
    return has;
}

void gr_group_watch_reports(gr_group *group)
{
    if (group->mesh != NULL && group->control.fd >= 0) {
        gr_mesh_watch_control(group->mesh, group->control.fd);
    }
}

void gr_group_unlink(gr_group *group)
{
    if (group->mesh != NULL) {
        log_rails(group);
    }
    gr_mesh_destroy(group->mesh);
    group->mesh = NULL;
    gr_topology_destroy(group->topology);
    group->topology = NULL;
}

void gr_group_leave(gr_group *group)
{
    uint8_t message[GR_MESSAGE_SMALL_MAX];
    if (group == NULL) {
        return;
    }
    gr_group_unlink(group);
    size_t size = gr_message_put_empty(GR_MESSAGE_LEAVE, message);
    if (group->joined && group->control.fd >= 0 &&
        gr_control_put(&group->control, message, size) == GR_OK) {
        gr_status sent = gr_control_flush(&group->control);
        (void)sent; /* if it does not go at once, the coordinator sees us end */
    }
    gr_control_close(&group->control);
    gr_group_end_failover(group);
    gr_bootstrap_destroy(group->bootstrap);
    forget_secret(group);
    free(group->in);
    free(group->members);
    pthread_mutex_destroy(&group->lock);
    free(group);
}

gr_mesh *gr_group_mesh(gr_group *group)
{
    return group->mesh;
}

uint64_t gr_group_generation(const gr_group *group)
{
    return group->generation;
}

int gr_group_rank(const gr_group *group)
{
    return group->rank;
}

int gr_group_size(const gr_group *group)
{
    return group->world_size;
}

const gr_topology *gr_group_topology(const gr_group *group)
{
    return group->topology;
}

const char *gr_group_host_name(const gr_group *group, int rank)
{
    return group->members[rank].host_name;
}

gr_link_kind gr_group_link_kind(const gr_group *group)
{
    return group->tcp || group->topology->host_count > 1 ? GR_LINK_TCP : GR_LINK_SHM;
}

int gr_group_rails(const gr_group *group)
{
    int most = 1;
    for (int rank = 0; group->mesh != NULL && rank < group->world_size; rank++) {
        int rails = gr_group_rails_to(group, rank);
        most = rails > most ? rails : most;
    }
    return most;
}
