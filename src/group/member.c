/* SPDX-License-Identifier: Apache-2.0 */
#include "base/codec.h"
#include "base/fail.h"
#include "base/hash.h"
#include "group/control.h"
#include "group/group.h"
#include "link/address.h"
#include "link/door.h"
#include "link/interface.h"
#include "link/secret.h"

#include <poll.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

enum {
    WIRING_WAIT_US = 5000, /* the coordinator's word is looked for as often, while links are made */
    /* Before the deadline the coordinator is asked who is missing; it answers at once. */
    ASK_BEFORE_US = 500000,
    ASK_SHARE = 4 /* of short timeouts, a quarter */
};

struct gr_group {
    int rank, world_size;
    const gr_log *log; /* may be NULL */
    uint64_t generation;
    gr_mesh *mesh;
    gr_control control; /* fd -1: alone */
    uint8_t *secret;    /* the job's, kept as long as another generation may come; NULL: gone */
    uint8_t *in;
    gr_member *members;
    gr_topology *topology;
    bool tcp;           /* all links are */
    gr_missing missing; /* what the coordinator said last */
    bool missing_known;
    gr_seat seat;  /* what the coordinator gave last; generation 0: none yet */
    bool renewing; /* a seat is waited for: what the old generation failed from does not matter */
    bool change;   /* the coordinator wants a new generation */
    bool newcomer; /* has not had a seat yet */
    bool joined;   /* a member that never was one does not leave in order: others hear why */
    bool elastic;  /* the others may go on without this member */
};

/* What a join needs on its way. */
typedef struct joining {
    const gr_group_config *config;
    const gr_log *log;
    gr_group *group;
    gr_clock clock;
    int64_t deadline_us, ask_at_us;
    gr_member self;
    gr_interfaces interfaces;
    gr_ports ports;
    bool remote; /* peers may be reached by tcp */
} joining;

/* ---- Checks ---------------------------------------------------------------------------------- */

static int64_t members_max(const gr_group_config *config)
{
    return config->members_max > config->world_size ? config->members_max : config->world_size;
}

static gr_status take_secret(const gr_group_config *config, uint8_t **kept_out, gr_diag *diag)
{
    uint8_t secret[GR_SECRET_BYTES];
    bool given = config->secret_hex != NULL && config->secret_hex[0] != '\0';
    if (!given && config->secret_file == NULL) {
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

static gr_status check(joining *join, gr_diag *diag)
{
    const gr_group_config *config = join->config;
    if (config->world_size < 1 || config->world_size > GR_GROUP_WORLD_MAX ||
        config->rank >= members_max(config)) {
        return gr_fail(diag, GR_E_INVALID,
                       "GRADUS_RANK is %lld and GRADUS_WORLD_SIZE %lld: ranks go from 0 to the "
                       "world size less one; start the program with `gradus run`",
                       (long long)config->rank, (long long)config->world_size);
    }
    if (config->coordinator == NULL) {
        return gr_fail(diag, GR_E_INVALID,
                       "GRADUS_RANK is set, but GRADUS_COORDINATOR is not: start the program with "
                       "`gradus run`");
    }
    if (join->group->secret == NULL) {
        gr_status taken = take_secret(config, &join->group->secret, diag);
        if (taken != GR_OK) {
            return taken;
        }
    }
    join->self.host = gr_host_identify(config->host, join->self.host_name);
    /* Who calls the coordinator by tcp may get company from elsewhere. */
    bool one_host = config->local_size >= config->world_size && config->host == NULL &&
                    strncmp(config->coordinator, "tcp:", 4) != 0;
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

/* ---- Meeting --------------------------------------------------------------------------------- */

static bool late(const joining *join)
{
    return gr_clock_now_us(&join->clock) >= join->deadline_us;
}

static void set_deadline(joining *join)
{
    int64_t timeout = join->config->join_timeout_us;
    int64_t ask_before = timeout / ASK_SHARE < ASK_BEFORE_US ? timeout / ASK_SHARE : ASK_BEFORE_US;
    join->deadline_us = gr_clock_deadline_us(&join->clock, timeout);
    join->ask_at_us = join->deadline_us == GR_NEVER ? GR_NEVER : join->deadline_us - ask_before;
}

/* Sleep until the descriptor has something or the time has come. */
static void sleep_on(const joining *join, int fd, short events, int64_t until_us)
{
    struct pollfd at = {.fd = fd, .events = events};
    int64_t now = gr_clock_now_us(&join->clock);
    int64_t until = until_us < join->deadline_us ? until_us : join->deadline_us;
    int64_t left_ms = until <= now ? 0 : (until == GR_NEVER ? 60000 : (until - now + 999) / 1000);
    (void)poll(&at, 1, left_ms > 60000 ? 60000 : (int)left_ms);
}

static gr_status call_in(joining *join, gr_arrival *arrival_out, gr_diag *diag)
{
    int64_t timeout = join->config->join_timeout_us;
    gr_door_config config = {.rank = (int)join->config->rank,
                             .secret = join->group->secret,
                             .encrypt = join->config->encrypt,
                             .half_open_max = 1,
                             .outgoing_max = 1,
                             .timeout_us = timeout > 0 ? timeout : INT64_MAX / 2,
                             .clock = join->clock,
                             .log = join->log};
    gr_door *door = NULL;
    gr_status status = gr_door_create(&config, &door, diag);
    if (status != GR_OK) {
        return status;
    }
    status = gr_door_dial(door, GR_AUTH_RANK_COORDINATOR, (gr_auth_stream){.count = 1},
                          join->config->coordinator, diag);
    while (status == GR_OK) {
        status = gr_door_progress(door, diag);
        if (status != GR_OK || gr_door_take(door, arrival_out)) {
            break;
        }
        sleep_on(join, gr_door_fd(door), POLLIN, gr_door_next_us(door));
    }
    gr_door_destroy(door);
    return status;
}

static gr_status open_mesh(joining *join, gr_diag *diag)
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
        gr_hmac_sha256(group->secret, GR_SECRET_BYTES, generation, sizeof generation, secret);
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

static gr_status say_hello(joining *join, gr_diag *diag)
{
    gr_group *group = join->group;
    uint8_t message[GR_MESSAGE_SMALL_MAX];
    gr_hello hello = {.world_size = (uint32_t)group->world_size,
                      .link = (uint32_t)join->config->link,
                      .pid = (uint64_t)getpid(),
                      .member = join->self};
    size_t size = gr_message_put_hello(&hello, message);
    if (gr_control_put(&group->control, message, size) != GR_OK) {
        return gr_fail(diag, GR_E_BUG, "the first message does not fit");
    }
    /* If it was closed already, the coordinator has said why: that is heard next. */
    gr_status sent = gr_control_flush(&group->control);
    (void)sent;
    return GR_OK;
}

/* The join came to nothing here: the others need not find out for themselves. */
static void say_why(gr_group *group, const gr_diag *failure)
{
    uint8_t message[GR_MESSAGE_SMALL_MAX];
    if (group->control.fd >= 0 &&
        gr_control_put(&group->control, message, gr_message_put_fail(failure, message)) == GR_OK) {
        gr_status sent = gr_control_flush(&group->control);
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

/* One look at what the coordinator says. GR_OK: something; GR_PENDING: nothing. */
static gr_status hear(gr_group *group, gr_diag *diag)
{
    gr_message_kind kind;
    const uint8_t *body;
    size_t size;
    gr_diag failure;
    (void)gr_control_ping(&group->control, gr_now_ns() / 1000);
    gr_status status = gr_control_get(&group->control, &kind, &body, &size, diag);
    if (status == GR_E_PEER_LOST) {
        return without_coordinator(group, diag);
    }
    if (status != GR_OK) {
        return status;
    }
    switch (kind) {
    case GR_MESSAGE_MEMBERS:
        return gr_message_get_members(body, size, group->world_size, &group->generation,
                                      group->members, diag);
    case GR_MESSAGE_MISSING:
        status = gr_message_get_missing(body, size, &group->missing, diag);
        group->missing_known = status == GR_OK;
        return status;
    case GR_MESSAGE_CHANGE:
        group->change = true;
        return GR_OK;
    case GR_MESSAGE_PING:
        return GR_OK;
    case GR_MESSAGE_DISMISS:
        return gr_fail(diag, GR_E_CANCELLED, "this worker is not needed by the job");
    case GR_MESSAGE_SEAT:
        group->change = false; /* what was wanted of the old generation */
        return gr_message_get_seat(body, size, &group->seat, diag);
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

static gr_status nobody_came(const joining *join, gr_diag *diag)
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
 * seat. */
static gr_status wait_for(joining *join, const uint64_t *number, gr_diag *diag)
{
    gr_group *group = join->group;
    uint8_t message[GR_MESSAGE_SMALL_MAX];
    bool asked = false;
    while (*number == 0) {
        gr_status status = hear(group, diag);
        if (status < 0) {
            return status;
        }
        if (status == GR_OK) {
            continue;
        }
        if (late(join) || (asked && group->missing_known)) {
            return nobody_came(join, diag);
        }
        if (!asked && gr_clock_now_us(&join->clock) >= join->ask_at_us) {
            asked = true;
            status = gr_control_put(&group->control, message,
                                    gr_message_put_empty(GR_MESSAGE_ASK, message));
        }
        if (status < 0 || gr_control_flush(&group->control) == GR_E_PEER_LOST) {
            return without_coordinator(group, diag);
        }
        int64_t ping_at_us = gr_control_ping(&group->control, gr_clock_now_us(&join->clock));
        int64_t ask_at_us = asked ? GR_NEVER : join->ask_at_us;
        sleep_on(join, group->control.fd, POLLIN, ping_at_us < ask_at_us ? ping_at_us : ask_at_us);
    }
    return GR_OK;
}

/* ---- Wiring ---------------------------------------------------------------------------------- */

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

/* Who is where; the same on all ranks. */
static gr_status find_hosts(joining *join, gr_diag *diag)
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
    if (group->mesh != NULL) {
        gr_mesh_name_hosts(group->mesh, host_name, group);
    }
    return GR_OK;
}

static void tell_route(const joining *join, int rank, bool same_host, int stream, int streams,
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

static gr_status dial(joining *join, int rank, gr_diag *diag)
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

static gr_status wire(joining *join, gr_diag *diag)
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
        gr_status heard = hear(group, diag);
        if (heard < 0) {
            return heard;
        }
        if (late(join)) {
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

static gr_status be_ready(joining *join, gr_diag *diag)
{
    uint8_t message[GR_MESSAGE_SMALL_MAX];
    gr_control *control = &join->group->control;
    gr_status status =
        gr_control_put(control, message, gr_message_put_empty(GR_MESSAGE_READY, message));
    if (status != GR_OK || gr_control_flush(control) == GR_E_PEER_LOST) {
        return without_coordinator(join->group, diag);
    }
    return GR_OK;
}

/* A generation, of which the coordinator knows how many there are and which one this is. */
static gr_status form(joining *join, gr_diag *diag)
{
    gr_group *group = join->group;
    group->generation = 0;
    group->missing_known = false;
    gr_status status = open_mesh(join, diag);
    if (status == GR_OK) {
        status = say_hello(join, diag);
    }
    if (status == GR_OK) {
        status = wait_for(join, &group->generation, diag);
    }
    if (status == GR_OK) {
        status = find_hosts(join, diag);
    }
    if (status == GR_OK && group->mesh != NULL) {
        status = wire(join, diag);
    }
    return status == GR_OK ? be_ready(join, diag) : status;
}

static gr_status ask_for_seat(joining *join, gr_diag *diag)
{
    gr_group *group = join->group;
    uint8_t message[GR_MESSAGE_SMALL_MAX];
    group->seat.generation = 0;
    group->missing_known = false;
    group->renewing = true;
    gr_status status =
        gr_control_put(&group->control, message, gr_message_put_empty(GR_MESSAGE_RENEW, message));
    if (status != GR_OK || gr_control_flush(&group->control) == GR_E_PEER_LOST) {
        status = without_coordinator(group, diag);
    } else {
        status = wait_for(join, &group->seat.generation, diag);
    }
    group->renewing = false;
    if (status == GR_OK) {
        group->rank = (int)group->seat.rank;
        group->world_size = (int)group->seat.world_size;
    }
    if (group->newcomer) { /* until now it has waited for others to be ready for it */
        group->newcomer = false;
        set_deadline(join);
    }
    return status;
}

/* Members may be lost on the way, again and again: one attempt after the other, as long as the
 * coordinator goes on. */
static gr_status form_with_those_left(joining *join, bool seated, gr_diag *diag)
{
    bool elastic = gr_group_elastic(join->config);
    gr_status status = seated ? GR_OK : ask_for_seat(join, diag);
    while (status == GR_OK) {
        status = form(join, diag);
        if (!elastic || !gr_fault_of_peer(status) || late(join)) {
            return status;
        }
        gr_group_unlink(join->group);
        status = ask_for_seat(join, diag);
    }
    return status;
}

static gr_status join_others(joining *join, gr_diag *diag)
{
    gr_group *group = join->group;
    size_t world = (size_t)members_max(join->config);
    size_t in_bytes = gr_message_members_max((int)world) + GR_MESSAGE_SMALL_MAX;
    gr_arrival arrival;
    group->in = malloc(in_bytes);
    group->members = calloc(world, sizeof *group->members);
    if (group->in == NULL || group->members == NULL) {
        return gr_fail(diag, GR_E_NO_MEMORY, "no memory for a group of %zu", world);
    }
    gr_status status = call_in(join, &arrival, diag);
    if (status != GR_OK) {
        return status;
    }
    gr_control_init(&group->control, &arrival, join->config->peer_timeout_us, group->in, in_bytes);
    if (group->newcomer) {
        join->deadline_us = join->ask_at_us = GR_NEVER;
    }
    return form_with_those_left(join, !group->newcomer, diag);
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

static gr_status begin(joining *join, gr_group *group, const gr_group_config *config,
                       const gr_log *log, gr_diag *diag)
{
    *join = (joining){.config = config, .log = log, .group = group, .clock = gr_clock_real()};
    set_deadline(join);
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
    group->control.fd = -1;
    if (config->rank < 0) {
        gr_status status = be_alone(config, group, diag);
        if (status != GR_OK) {
            gr_group_leave(group);
            return status;
        }
    } else {
        joining join;
        gr_status status = begin(&join, group, config, log, diag);
        if (status == GR_OK) {
            group->rank = (int)config->rank;
            group->seat.generation = 1;
            group->tcp = config->link == GR_LINK_ALL_TCP;
            group->newcomer = config->newcomer;
            group->elastic = gr_group_elastic(config);
            group->world_size = (int)config->world_size;
            status = join_others(&join, diag);
        }
        gr_wipe_stack();
        if (status != GR_OK) {
            say_why(group, diag);
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
    joining join;
    gr_status status = begin(&join, group, config, log, diag);
    if (status == GR_OK) {
        status = form_with_those_left(&join, false, diag);
    }
    gr_wipe_stack();
    return status;
}

bool gr_group_change_wanted(gr_group *group)
{
    gr_diag nothing; /* the renewal will tell why */
    gr_status status = GR_OK;
    while (group->control.fd >= 0 && !group->change && status == GR_OK) {
        status = hear(group, &nothing);
        group->change = group->change || (status < 0 && group->elastic);
    }
    return group->change;
}

/* What went over each of several streams: whether all interfaces did their part. */
static void tell_streams(const gr_group *group)
{
    gr_mesh_stats stats;
    char text[160] = "";
    size_t used = 0;
    uint64_t sum = 0;
    gr_mesh_get_stats(group->mesh, &stats);
    for (int i = 0; i < GR_LINK_STREAMS_MAX; i++) {
        sum += stats.stream_bytes[i];
    }
    for (int i = 0; i < GR_LINK_STREAMS_MAX && stats.stream_bytes[i] > 0; i++) {
        int put = snprintf(text + used, sizeof text - used, "%s%.0f %%", i > 0 ? ", " : "",
                           100.0 * (double)stats.stream_bytes[i] / (double)sum);
        used += put > 0 ? (size_t)put : 0;
    }
    if (sum > 0) {
        gr_log_write(group->log, GR_LOG_INFO, "group",
                     "rank %d sent %.3f GB over tcp, over the first stream and so on: %s",
                     group->rank, (double)sum / 1e9, text);
    }
}

void gr_group_unlink(gr_group *group)
{
    if (group->mesh != NULL) {
        tell_streams(group);
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
    forget_secret(group);
    free(group->in);
    free(group->members);
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

int gr_group_streams(const gr_group *group)
{
    int most = 1;
    for (int rank = 0; group->mesh != NULL && rank < group->world_size; rank++) {
        const gr_link *link = gr_mesh_link(group->mesh, rank);
        most = link != NULL && gr_link_streams(link) > most ? gr_link_streams(link) : most;
    }
    return most;
}
