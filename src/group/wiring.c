/* SPDX-License-Identifier: Apache-2.0 */
#include "group/member.h"

#include "base/codec.h"
#include "base/fail.h"
#include "base/hash.h"
#include "link/socket.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum {
    WIRING_WAIT_US = 5000, /* the coordinator's word is looked for as often, on the way */
    CONNECT_ALL_MAX = 16,  /* so many ranks connect within the time of one operation */
    /* Operations in shared memory are for up to so many ranks of a host, and need all of them. */
    SHARED_RANKS_MAX = 64,
    FILES_BESIDE = 256 /* open files of the program itself, at a guess */
};

static bool is_on_demand(const gr_joining *join)
{
    int64_t max = join->config->connect_all_max;
    return join->group->world_size > (max > 0 ? max : CONNECT_ALL_MAX);
}

/* Every link may be needed at some time. */
static void raise_limits(const gr_joining *join, const gr_mesh_config *config)
{
    int64_t wanted = FILES_BESIDE +
                     (int64_t)config->world_size * (config->rails_max > 2 ? config->rails_max : 2);
    int64_t limit = gr_descriptors_raise(wanted);
    if (limit < wanted) {
        gr_log_write(
            join->log, GR_LOG_INFO, "group",
            "rank %d may open %lld files (ulimit -Hn); with connections to all of %d ranks "
            "it may need %lld",
            config->rank, (long long)limit, config->world_size, (long long)wanted);
    }
}

gr_status gr_joining_open_mesh(gr_joining *join, gr_diag *diag)
{
    gr_mesh_config config;
    gr_group *group = join->group;
    if (group->world_size == 1) {
        return GR_OK;
    }
    gr_mesh_config_init(&config);
    bool tcp = join->config->link == GR_LINK_ALL_TCP;
    /* Each generation has a secret of its own: nobody gets into the wrong one by accident. */
    uint8_t generation[8], secret[GR_SECRET_BYTES];
    gr_put_u64(generation, group->assignment.generation);
    gr_status status =
        gr_hmac_sha256(group->secret, GR_SECRET_BYTES, generation, sizeof generation, secret);
    if (status != GR_OK) {
        return gr_fail(diag, status, "the secret of the generation cannot be computed");
    }
    config.kind = tcp ? GR_LINK_TCP : GR_LINK_SHM;
    config.mixed = join->remote && !tcp;
    config.rank = group->rank;
    config.world_size = group->world_size;
    config.on_demand = is_on_demand(join);
    config.secret = secret;
    config.encrypt = join->config->encrypt;
    /* On a busy host a handshake may take as long as all of the join. */
    int64_t left_us = join->deadline_us == GR_NEVER
                          ? join->config->join_timeout_us
                          : join->deadline_us - gr_clock_now_us(&join->clock);
    if (left_us > config.handshake_timeout_us) {
        config.handshake_timeout_us = left_us;
    }
    config.listen_host = gr_interfaces_listen_host(&join->interfaces);
    config.ports = join->ports;
    config.rails_max = gr_interfaces_rails_max(&join->interfaces, join->config->rails);
    config.peer_timeout_us = join->config->peer_timeout_us;
    config.spin_us = join->config->spin_us;
    config.cma = (gr_cma)join->config->cma;
    config.clock = join->clock;
    config.log = join->log;
    raise_limits(join, &config);
    group->interfaces = join->interfaces;
    group->rails = join->config->rails;
    status = gr_mesh_create(&config, &group->mesh, diag);
    gr_wipe(secret, sizeof secret);
    if (status != GR_OK) {
        return status;
    }
    if (!tcp) {
        snprintf(join->self.local, sizeof join->self.local, "%s", gr_mesh_address(group->mesh));
    }
    if (join->remote) {
        gr_interfaces_announce(&join->interfaces, gr_mesh_remote_address(group->mesh),
                               join->self.remote);
    }
    return GR_OK;
}

static bool on_same_host(const gr_group *group, int rank)
{
    return group->topology->host_of[rank] == group->topology->host_of[group->rank];
}

static int local_ranks(const gr_group *group)
{
    int count = 0;
    for (int rank = 0; rank < group->world_size; rank++) {
        count += on_same_host(group, rank);
    }
    return count;
}

/* The link is made at the join. */
static bool is_made_at_join(const gr_group *group, int rank, int local)
{
    return rank != group->rank &&
           (!gr_mesh_on_demand(group->mesh) ||
            (!group->tcp && on_same_host(group, rank) && local <= SHARED_RANKS_MAX));
}

static int unlinked_rank(const gr_group *group, int local)
{
    for (int rank = 0; rank < group->world_size; rank++) {
        const gr_link *link = gr_mesh_link(group->mesh, rank);
        if (link == NULL && is_made_at_join(group, rank, local)) {
            return rank;
        }
    }
    return -1;
}

static const char *host_name(const void *group_arg, int rank)
{
    const gr_group *group = group_arg;
    return group->topology->host_count > 1 ? group->members[rank].host_name : NULL;
}

gr_status gr_joining_find_hosts(gr_joining *join, gr_diag *diag)
{
    gr_group *group = join->group;
    uint64_t *hosts = calloc((size_t)group->world_size, sizeof *hosts);
    gr_status status = hosts != NULL ? GR_OK : GR_E_NO_MEMORY;
    for (int rank = 0; rank < group->world_size && hosts != NULL; rank++) {
        hosts[rank] = group->members[rank].host;
    }
    if (status == GR_OK) {
        status = gr_topology_create(hosts, group->world_size, &group->topology);
    }
    free(hosts);
    if (status != GR_OK) {
        return gr_fail(diag, status, "no memory for a group of %d", group->world_size);
    }
    for (int rank = 1; rank < group->world_size; rank++) {
        if (join->config->link == GR_LINK_ALL_SHM && group->topology->host_of[rank] != 0) {
            return gr_fail_peer(diag, GR_E_INVALID, rank,
                                "GRADUS_LINK is shm, but rank 0 is on host %s and rank %d on host "
                                "%s: use tcp or auto",
                                group->members[0].host_name, rank, group->members[rank].host_name);
        }
    }
    gr_group_name_hosts(group);
    return GR_OK;
}

static void log_route(const gr_group *group, int rank, int rail, int rails, const gr_route *route)
{
    char which[48] = "", text[GR_INTERFACE_TEXT_BYTES];
    snprintf(text, sizeof text, "%s", on_same_host(group, rank) ? "loopback" : "a router");
    if (route->by != NULL) {
        gr_interface_describe(route->by, text);
    }
    if (rails > 1) {
        snprintf(which, sizeof which, ", rail %d of %d,", rail + 1, rails);
    }
    gr_log_write(group->log, GR_LOG_INFO, "group",
                 "rank %d reaches rank %d (host %s)%s through %s; in this order: %s", group->rank,
                 rank, group->members[rank].host_name, which, text, route->addresses);
}

/* Inside a host by shared memory, if the group uses it, else by tcp. */
static gr_status find_route(void *group_arg, int rank, gr_peer_route *route_out, gr_diag *diag)
{
    const gr_group *group = group_arg;
    const gr_member *member = &group->members[rank];
    bool same_host = on_same_host(group, rank);
    if (same_host && member->local[0] != '\0' && !group->tcp) {
        route_out->kind = GR_LINK_SHM;
        route_out->rails = 1;
        snprintf(route_out->addresses[0], GR_ROUTE_BYTES, "%s", member->local);
        return GR_OK;
    }
    gr_route routes[GR_LINK_RAILS_MAX];
    int rails =
        gr_interfaces_route(&group->interfaces, member->remote, same_host, group->rails, routes);
    if (rails == 0) {
        return gr_fail_peer(diag, GR_E_INVALID, rank,
                            "rank %d is on host %s and rank %d on host %s, where it has no network "
                            "address: is a network interface up there (GRADUS_INTERFACE)?",
                            group->rank, group->members[group->rank].host_name, rank,
                            member->host_name);
    }
    route_out->kind = GR_LINK_TCP;
    route_out->rails = rails;
    for (int i = 0; i < rails; i++) {
        log_route(group, rank, i, rails, &routes[i]);
        snprintf(route_out->addresses[i], GR_ROUTE_BYTES, "%s", routes[i].addresses);
    }
    return GR_OK;
}

void gr_group_name_hosts(gr_group *group)
{
    if (group->mesh != NULL) {
        gr_mesh_name_hosts(group->mesh, host_name, group);
        if (gr_mesh_on_demand(group->mesh)) {
            gr_mesh_set_router(group->mesh, find_route, group, local_ranks(group));
        }
    }
}

int gr_group_rails_to(const gr_group *group, int rank)
{
    const gr_link *link = gr_mesh_link(group->mesh, rank);
    gr_route routes[GR_LINK_RAILS_MAX];
    if (link != NULL || rank == group->rank || (!group->tcp && on_same_host(group, rank))) {
        return link != NULL ? gr_link_rails(link) : 1;
    }
    return gr_interfaces_route(&group->interfaces, group->members[rank].remote,
                               on_same_host(group, rank), group->rails, routes);
}

static gr_status connect_to(gr_group *group, int rank, gr_diag *diag)
{
    gr_peer_route route;
    const char *addresses[GR_LINK_RAILS_MAX];
    if (gr_mesh_on_demand(group->mesh)) {
        return gr_mesh_open_link(group->mesh, rank, rank < group->rank) != NULL ? GR_OK
                                                                                : GR_E_NO_MEMORY;
    }
    if (rank > group->rank) {
        return GR_OK; /* it connects to this rank */
    }
    gr_status status = find_route(group, rank, &route, diag);
    for (int i = 0; status == GR_OK && i < route.rails; i++) {
        addresses[i] = route.addresses[i];
    }
    return status == GR_OK ? gr_mesh_connect_rails(group->mesh, rank, addresses, route.rails, diag)
                           : status;
}

/* A rank that is taken to be on this host has no Unix socket here: it is on another. */
static gr_status blame_name(const gr_group *group, gr_status status, gr_diag *diag)
{
    int rank = diag->peer_rank;
    if (status != GR_E_PEER_LOST || rank < 0 || rank >= group->rank ||
        group->members[rank].host != group->members[group->rank].host || group->tcp) {
        return status;
    }
    char why[GR_DIAG_TEXT_BYTES];
    memcpy(why, diag->text, sizeof why);
    return gr_fail_peer(diag, status, rank,
                        "%.300s; it says that it runs on the same host (%s): if it does not, give "
                        "each host another GRADUS_HOST",
                        why, group->members[rank].host_name);
}

gr_status gr_joining_wire(gr_joining *join, gr_diag *diag)
{
    gr_group *group = join->group;
    gr_status status = GR_OK;
    int local = local_ranks(group);
    for (int rank = 0; rank < group->world_size && status == GR_OK; rank++) {
        if (is_made_at_join(group, rank, local)) {
            status = connect_to(group, rank, diag);
        }
    }
    while (status == GR_OK) {
        status = gr_mesh_progress(group->mesh, diag);
        int missing = unlinked_rank(group, local);
        if (status != GR_OK || missing < 0) {
            status = blame_name(group, status, diag);
            break;
        }
        /* A rank that died meanwhile does not connect to us: only the coordinator knows. */
        gr_status received = gr_group_receive(group, diag);
        if (received < 0) {
            return received;
        }
        if (gr_joining_late(join)) {
            return gr_fail_peer(diag, GR_E_TIMEOUT, missing,
                                "rank %d (host %s) called in, but there is no link to it after "
                                "%g s (GRADUS_JOIN_TIMEOUT)",
                                missing, group->members[missing].host_name,
                                (double)join->config->join_timeout_us / 1e6);
        }
        gr_mesh_wait(group->mesh, gr_clock_now_us(&join->clock) + WIRING_WAIT_US);
    }
    return status;
}
