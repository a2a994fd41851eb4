/* SPDX-License-Identifier: Apache-2.0 */
#include "group/member.h"

#include "base/fail.h"
#include "group/quorum.h"
#include "link/address.h"

#include <stdio.h>

enum {
    /* For so long a successor waits for others that may live: as long as it takes until a silent
     * peer is lost, at most half of what a join may take, and not less than a busy machine needs.
     * They wait a share of that for its answer; less, if another one on its host was silent. */
    PATIENCE_MIN_US = 2000000,
    JOIN_SHARE = 2,
    ANSWER_SHARE = 4,
    SILENT_HOST_SHARE = 16,
    LINGER_US = 5000000
};

gr_status gr_joining_open_failover(gr_joining *join, gr_diag *diag)
{
    gr_group *group = join->group;
    const gr_group_config *config = join->config;
    if (!config->failover || !group->elastic || group->failover != NULL) {
        return GR_OK;
    }
    const gr_coordinator_config coordinator = {
        .world_size = (int)config->world_size,
        .members_min = (int)config->members_min,
        .failover = true,
        .successor = group->number + 1,
        .secret = group->secret,
        .encrypt = config->encrypt,
        .listen_host = join->remote ? gr_interfaces_listen_host(&join->interfaces) : NULL,
        .ports = join->ports,
        .peer_timeout_us = config->peer_timeout_us,
        .log = join->log};
    const gr_ports port = gr_bootstrap_port(join);
    gr_status status = GR_E_IN_USE;
    if (port.first != 0) { /* where joining workers look for it, unless somebody has it already */
        gr_coordinator_config there = coordinator;
        there.listen_host = "*";
        there.ports = port;
        status = gr_failover_create(&there, &group->failover, diag);
    }
    return status == GR_OK ? GR_OK : gr_failover_create(&coordinator, &group->failover, diag);
}

void gr_joining_announce_failover(gr_joining *join)
{
    if (join->group->failover == NULL) {
        return;
    }
    const char *address = gr_failover_address(join->group->failover);
    snprintf(join->self.failover, sizeof join->self.failover, "%s", address);
    if (join->remote) {
        gr_interfaces_announce(&join->interfaces, address, join->self.failover);
    }
}

bool gr_group_may_find_leader(const gr_group *group)
{
    return group->control.ended && group->history.committed != 0 && group->placed > 0;
}

static int64_t patience_us(const gr_joining *join)
{
    int64_t peer_us = join->config->peer_timeout_us;
    int64_t most_us = join->config->join_timeout_us / JOIN_SHARE;
    int64_t wanted_us = peer_us > PATIENCE_MIN_US ? peer_us : PATIENCE_MIN_US;
    return most_us > 0 && most_us < wanted_us ? most_us : wanted_us;
}

/* It answers as soon as it has taken over. One of its addresses after the other, so that it is
 * known at once that nobody listens at any. */
static gr_status call_successor(gr_joining *join, const gr_member *member, int64_t timeout_us,
                                gr_accepted *arrival_out, gr_diag *diag)
{
    gr_route routes[GR_LINK_RAILS_MAX];
    char address[GR_ADDRESS_BYTES];
    const char *addresses = member->failover;
    bool same_host = member->host == join->self.host;
    if (join->remote &&
        gr_interfaces_route(&join->interfaces, addresses, same_host, 1, routes) > 0) {
        addresses = routes[0].addresses;
    }
    int count = 0;
    for (size_t at = 0; gr_address_next(addresses, &at, address);) {
        count++;
    }
    gr_joining_set_deadline(join);
    gr_status status = GR_E_PEER_LOST;
    for (size_t at = 0; status != GR_OK && gr_address_next(addresses, &at, address);) {
        status = gr_joining_call(join, address, timeout_us / count, arrival_out, diag);
    }
    return status;
}

static gr_status take_over(gr_joining *join, const gr_numbers *silent, gr_diag *diag)
{
    gr_group *group = join->group;
    if (group->failover == NULL) {
        return gr_fail(diag, GR_E_COMM_BROKEN,
                       "the job's coordinator has ended, and rank %d cannot take over: start all "
                       "ranks with GRADUS_FAILOVER, as `gradus rendezvous` says",
                       group->rank);
    }
    return gr_failover_begin(group->failover, group->members, group->placed, silent,
                             patience_us(join), diag);
}

/* The first member of this generation that answers is the next one; who finds none before itself
 * takes over. All look for it in the order of the ranks. */
gr_status gr_joining_find_leader(gr_joining *join, gr_diag *diag)
{
    gr_group *group = join->group;
    gr_numbers silent = {0};
    gr_accepted accepted;
    uint64_t silent_host = 0;
    gr_status status = GR_E_PEER_LOST;
    bool here = false;
    gr_control_close(&group->control);
    for (int rank = 0; rank < group->placed && status != GR_OK && !here; rank++) {
        const gr_member *member = &group->members[rank];
        int number = (int)member->number;
        int64_t share = member->host == silent_host ? SILENT_HOST_SHARE : ANSWER_SHARE;
        int64_t timeout_us = patience_us(join) / share, begin_us = gr_clock_now_us(&join->clock);
        here = number == group->number;
        if (!gr_numbers_has(&group->history.accepted_members, number) ||
            (member->failover[0] == '\0' && !here)) {
            continue;
        }
        status = here ? take_over(join, &silent, diag) : GR_OK;
        if (status == GR_OK) {
            status = call_successor(join, member, timeout_us, &accepted, diag);
        }
        if (status == GR_OK) {
            gr_log_write(join->log, GR_LOG_WARN, "group",
                         "the job's coordinator is gone: rank %d (host %s) takes over", rank,
                         member->host_name);
        } else if (gr_clock_now_us(&join->clock) - begin_us >= timeout_us / 2) {
            silent_host = member->host; /* where a process has ended, that is known at once */
        }
        gr_numbers_add(&silent, number);
    }
    if (status == GR_OK) {
        gr_control_init(&group->control, &accepted, join->config->peer_timeout_us,
                        group->control.in, group->control.in_capacity);
    }
    return status;
}

void gr_group_end_failover(gr_group *group)
{
    gr_failover_end(group->failover, LINGER_US);
    group->failover = NULL;
}
