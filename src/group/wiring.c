/* SPDX-License-Identifier: Apache-2.0 */
#include "group/member.h"

#include "base/codec.h"
#include "base/fail.h"
#include "base/hash.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { WIRING_WAIT_US = 5000 /* the coordinator's word is looked for as often, on the way */ };

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
    gr_put_u64(generation, group->seat.generation);
    gr_status status =
        gr_hmac_sha256(group->home->secret, GR_SECRET_BYTES, generation, sizeof generation, secret);
    if (status != GR_OK) {
        return gr_fail(diag, status, "the secret of the generation cannot be computed");
    }
    config.kind = tcp ? GR_LINK_TCP : GR_LINK_SHM;
    config.mixed = join->remote && !tcp;
    config.rank = group->rank;
    config.world_size = group->world_size;
    config.secret = secret;
    config.encrypt = join->config->encrypt;
    config.listen_host = gr_interfaces_listen_host(&join->interfaces);
    config.ports = join->ports;
    config.streams_max = gr_interfaces_streams_max(&join->interfaces, join->config->streams);
    config.peer_timeout_us = join->config->peer_timeout_us;
    config.spin_us = join->config->spin_us;
    config.cma = join->config->cma == 0;
    config.clock = join->clock;
    config.log = join->log;
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

static int unlinked_rank(const gr_group *group)
{
    for (int rank = 0; rank < group->world_size; rank++) {
        if (rank != group->rank && gr_mesh_link(group->mesh, rank) == NULL) {
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

void gr_group_name_hosts(gr_group *group)
{
    if (group->mesh != NULL) {
        gr_mesh_name_hosts(group->mesh, host_name, group);
    }
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

static void tell_route(const gr_joining *join, int rank, bool same_host, int stream, int streams,
                       const gr_route *route)
{
    char which[48] = "", text[GR_INTERFACE_TEXT_BYTES];
    snprintf(text, sizeof text, "%s", same_host ? "loopback" : "a router");
    if (route->by != NULL) {
        gr_interface_describe(route->by, text);
    }
    if (streams > 1) {
        snprintf(which, sizeof which, ", stream %d of %d,", stream + 1, streams);
    }
    gr_log_write(join->log, GR_LOG_INFO, "group",
                 "rank %d reaches rank %d (host %s)%s through %s; in this order: %s",
                 join->group->rank, rank, join->group->members[rank].host_name, which, text,
                 route->addresses);
}

static gr_status dial(gr_joining *join, int rank, gr_diag *diag)
{
    gr_group *group = join->group;
    const gr_member *member = &group->members[rank];
    bool same_host = group->topology->host_of[rank] == group->topology->host_of[group->rank];
    if (same_host && member->local[0] != '\0' && join->config->link != GR_LINK_ALL_TCP) {
        return gr_mesh_connect(group->mesh, rank, member->local, diag);
    }
    gr_route routes[GR_LINK_STREAMS_MAX];
    const char *addresses[GR_LINK_STREAMS_MAX];
    int streams = gr_interfaces_route(&join->interfaces, member->remote, same_host,
                                      join->config->streams, routes);
    if (streams == 0) {
        return gr_fail_peer(diag, GR_E_INVALID, rank,
                            "rank %d is on host %s and rank %d on host %s, where it has no network "
                            "address: is a network interface up there (GRADUS_INTERFACE)?",
                            group->rank, join->self.host_name, rank, member->host_name);
    }
    for (int i = 0; i < streams; i++) {
        tell_route(join, rank, same_host, i, streams, &routes[i]);
        addresses[i] = routes[i].addresses;
    }
    return gr_mesh_connect_streams(group->mesh, rank, addresses, streams, diag);
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
    for (int rank = 0; rank < group->rank && status == GR_OK; rank++) {
        status = dial(join, rank, diag);
    }
    while (status == GR_OK) {
        status = gr_mesh_progress(group->mesh, diag);
        int missing = unlinked_rank(group);
        if (status != GR_OK || missing < 0) {
            status = blame_name(group, status, diag);
            break;
        }
        /* A rank that died meanwhile does not connect to us: only the coordinator knows. */
        gr_status heard = gr_group_hear(group, diag);
        if (heard < 0) {
            return heard;
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
