/* SPDX-License-Identifier: Apache-2.0 */
#include "ps/server/peer.h"

#include "base/fail.h"
#include "base/hash.h"
#include "coll/reduce/reduce.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

void gr_ps_server_config_init(gr_ps_server_config *config)
{
    gr_mesh_config mesh;
    gr_mesh_config_init(&mesh);
    *config = (gr_ps_server_config){.servers = 1,
                                    .listen_host = mesh.listen_host,
                                    .peer_timeout_us = mesh.peer_timeout_us,
                                    .spin_us = mesh.spin_us};
}

/* ---- Buffers --------------------------------------------------------------------------------- */

enum { CLASS_BYTES_MIN = 4 << 10 };
_Static_assert((size_t)CLASS_BYTES_MIN << (GR_PS_CLASSES - 1) == GR_PS_BLOCK_MAX * sizeof(float),
               "the largest buffer holds the largest block");

gr_ps_buffer *gr_ps_buffer_take(gr_ps_server *server, size_t size_bytes)
{
    int class = 0;
    while (class < GR_PS_CLASSES && (size_t)CLASS_BYTES_MIN << class < size_bytes) {
        class ++;
    }
    gr_ps_buffer *buffer = class < GR_PS_CLASSES ? server->pool.free[class] : NULL;
    if (buffer != NULL) {
        server->pool.free[class] = buffer->next;
        buffer->lease.uses = 1;
        return buffer;
    }
    size_t room =
        class < GR_PS_CLASSES ? (size_t)CLASS_BYTES_MIN << class : (size_bytes + 63) / 64 * 64;
    if (room > server->pool.bytes_max - server->pool.bytes ||
        (buffer = aligned_alloc(64, sizeof *buffer + room)) == NULL) {
        return NULL;
    }
    server->pool.bytes += room;
    buffer->lease = (gr_ps_lease){.uses = 1};
    buffer->size_class = class;
    buffer->room = room;
    return buffer;
}

void gr_ps_buffer_give_back(gr_ps_server *server, gr_ps_buffer *buffer)
{
    if (buffer == NULL) {
        return;
    }
    if (buffer->size_class == GR_PS_CLASSES) {
        server->pool.bytes -= buffer->room;
        free(buffer);
        return;
    }
    buffer->next = server->pool.free[buffer->size_class];
    server->pool.free[buffer->size_class] = buffer;
}

static void free_buffers(gr_ps_server *server)
{
    for (int class = 0; class < GR_PS_CLASSES; class ++) {
        while (server->pool.free[class] != NULL) {
            gr_ps_buffer *buffer = server->pool.free[class];
            server->pool.free[class] = buffer->next;
            free(buffer);
        }
    }
}

/* ---- Updaters -------------------------------------------------------------------------------- */

/* Either kind of updater. */
typedef struct any_updater {
    const gr_ps_updater_ops *ops; /* NULL: no optimizer: values += factor * gradient */
    void *updater;
    gr_add_scaled_fn *add_scaled;
} any_updater;

static gr_status create_updater(void *arg, const gr_ps_spec *tensor, void **updater_out,
                                gr_diag *diag)
{
    gr_ps_server *server = arg;
    any_updater *any = calloc(1, sizeof *any);
    if (any == NULL) {
        return gr_fail(diag, GR_E_NO_MEMORY, "no memory for an optimizer");
    }
    any->add_scaled = gr_add_scaled_best();
    if (tensor->optimizer[0] != '\0') {
        gr_status status =
            server->updaters.create == NULL
                ? gr_fail(diag, GR_E_UNSUPPORTED,
                          "tensor \"%s\" asks for an optimizer, and this server has "
                          "none",
                          tensor->name)
                : server->updaters.create(server->updaters_arg, tensor, &any->updater, diag);
        if (status != GR_OK) {
            free(any);
            return status;
        }
        any->ops = &server->updaters;
    }
    *updater_out = any;
    return GR_OK;
}

static void destroy_updater(void *updater)
{
    any_updater *any = updater;
    if (any->ops != NULL) {
        any->ops->destroy(any->updater);
    }
    free(any);
}

static int states_of(void *updater)
{
    any_updater *any = updater;
    return any->ops != NULL ? any->ops->states(any->updater) : 0;
}

static bool update(void *updater, uint64_t step, double rate, float factor, float *values,
                   float *const *states, const float *gradient, size_t count)
{
    any_updater *any = updater;
    return any->ops != NULL
               ? any->ops->update(any->updater, step, rate, factor, values, states, gradient, count)
               : any->add_scaled(values, gradient, factor, count);
}

/* ---- Tensors --------------------------------------------------------------------------------- */

/* Where the key is in the list, or belongs. */
static uint32_t place_of(const gr_ps_server *server, uint64_t key)
{
    uint32_t low = 0, high = server->held.count;
    while (low < high) {
        uint32_t middle = low + (high - low) / 2;
        if (server->held.at[middle]->tensor->key < key) {
            low = middle + 1;
        } else {
            high = middle;
        }
    }
    return low;
}

gr_ps_share *gr_ps_share_of(const gr_ps_server *server, uint64_t key)
{
    uint32_t at = place_of(server, key);
    return at < server->held.count && server->held.at[at]->tensor->key == key ? server->held.at[at]
                                                                              : NULL;
}

static void free_share(gr_ps_share *held)
{
    if (held != NULL) {
        free(held->marks);
        free(held->streams);
        free(held);
    }
}

static gr_status room_for_held(gr_ps_server *server, gr_diag *diag)
{
    if (server->held.count == server->held.room) {
        uint32_t room = server->held.room > 0 ? 2 * server->held.room : 64;
        gr_ps_share **held = realloc((void *)server->held.at, room * sizeof *held);
        if (held == NULL) {
            return gr_fail(diag, GR_E_NO_MEMORY, "no memory for a list of %u tensors", room);
        }
        server->held.at = held;
        server->held.room = room;
    }
    return GR_OK;
}

gr_status gr_ps_server_declare(gr_ps_server *server, int peer, const gr_ps_spec *spec,
                               const gr_ps_share **held_out, gr_diag *diag)
{
    const gr_ps_tensor tensor = gr_ps_tensor_of(spec);
    gr_status status = gr_ps_store_declare(server->store, peer, &tensor, diag);
    if (status == GR_OK) {
        status = room_for_held(server, diag);
    }
    if (status != GR_OK) {
        return status;
    }
    gr_ps_share *held = gr_ps_share_of(server, tensor.key);
    if (held != NULL) {
        /* There may have been no memory for it at first. */
        status = held->led == 0 ? gr_ps_table_hold(server, held, diag) : GR_OK;
        *held_out = status == GR_OK ? held : NULL;
        return status;
    }
    held = calloc(1, sizeof *held);
    uint8_t *marks = server->replicates ? calloc(tensor.cut.blocks + 1, 1) : NULL;
    bool streams_rows = server->replicates && spec->columns > 0;
    gr_ps_stream *streams = streams_rows ? calloc(tensor.cut.blocks, sizeof *streams) : NULL;
    if (held == NULL || (server->replicates && marks == NULL) ||
        (streams_rows && streams == NULL)) {
        free(streams);
        free(marks);
        free(held);
        return gr_fail(diag, GR_E_NO_MEMORY, "no memory for tensor \"%s\"", spec->name);
    }
    *held = (gr_ps_share){.tensor = gr_ps_store_tensor(server->store, tensor.key),
                          .marks = marks,
                          .streams = streams,
                          .restorer = -1};
    uint32_t at = place_of(server, tensor.key);
    memmove((void *)(server->held.at + at + 1), (void *)(server->held.at + at),
            (server->held.count - at) * sizeof *server->held.at);
    server->held.at[at] = held;
    server->held.count++;
    status = gr_ps_table_hold(server, held, diag);
    *held_out = status == GR_OK ? held : NULL;
    return status;
}

/* ---- Client sessions ------------------------------------------------------------------------- */

static void forget(gr_ps_server *server, int peer)
{
    gr_ps_session *session = server->sessions[peer];
    if (session != NULL) {
        gr_ps_store_gone(server->store, peer);
        gr_ps_session_destroy(session);
        server->sessions[peer] = NULL;
        int at = 0;
        while (server->here[at] != peer) {
            at++;
        }
        server->here[at] = server->here[--server->here_count];
    }
}

void gr_ps_send_away(gr_ps_server *server, int peer, gr_status status, const char *sentence)
{
    gr_link *link = gr_mesh_link(server->mesh, peer);
    char name[GR_PS_PEER_NAME_BYTES];
    gr_log_write(server->log, GR_LOG_WARN, "ps", "%s is sent away: %s", gr_ps_peer_name(peer, name),
                 sentence);
    if (link != NULL) {
        gr_link_close(link, status, sentence);
    }
}

static void welcome(gr_ps_server *server, int peer)
{
    if (peer < GR_PS_WORKERS_AT && server->peers[peer] != NULL) {
        gr_ps_peer_came(server, peer);
        return;
    }
    if (peer < GR_PS_WORKERS_AT) {
        gr_ps_send_away(server, peer, GR_E_INVALID,
                        "this server expects no other servers: all must agree on --servers and "
                        "--replicas");
        return;
    }
    gr_ps_session *session = gr_ps_session_create(server, peer, gr_mesh_link(server->mesh, peer));
    if (session == NULL) {
        gr_ps_send_away(server, peer, GR_E_NO_MEMORY,
                        "the server has no memory for one more client");
        return;
    }
    server->sessions[peer] = session;
    server->here[server->here_count++] = peer;
    server->ever++;
}

/* Its link has ended: what it sent before counts. */
static void end_peer(gr_ps_server *server, int number)
{
    gr_ps_peer *peer = server->peers[number];
    gr_diag diag = {0};
    while (peer->link != NULL && gr_ps_peer_receive(server, peer, &diag) == GR_PENDING) {
    }
    gr_ps_peer_ended(server, number);
}

static void follow_changes(gr_ps_server *server)
{
    int peer;
    bool ended;
    while (gr_mesh_next_change(server->mesh, &peer, &ended)) {
        if (!ended) {
            welcome(server, peer);
            continue;
        }
        if (peer < GR_PS_WORKERS_AT && server->peers[peer] != NULL) {
            end_peer(server, peer);
        }
        gr_ps_session *session = server->sessions[peer];
        if (session != NULL && !session->dismissed) {
            /* What it pushed before its end counts. */
            gr_diag diag = {0};
            while (gr_ps_session_receive(session, &diag) == GR_PENDING) {
            }
        }
        forget(server, peer);
        gr_mesh_remove(server->mesh, peer);
    }
}

/* ---- Life ------------------------------------------------------------------------------------ */

static gr_status open_mesh(gr_ps_server *server, const gr_ps_server_config *config,
                           const gr_interfaces *interfaces, gr_diag *diag)
{
    gr_mesh_config mesh;
    gr_mesh_config_init(&mesh);
    mesh.kind = config->link == GR_LINK_ALL_TCP ? GR_LINK_TCP : GR_LINK_SHM;
    mesh.mixed = config->link == GR_LINK_AUTO;
    mesh.dynamic_peers = true;
    mesh.rank = config->number;
    mesh.world_size = GR_PS_PEERS_MAX;
    mesh.secret = config->secret;
    mesh.encrypt = config->encrypt;
    mesh.listen_host = strcmp(config->listen_host, "*") == 0 ? gr_interfaces_listen_host(interfaces)
                                                             : config->listen_host;
    mesh.ports = config->ports;
    mesh.peer_timeout_us = config->peer_timeout_us;
    mesh.spin_us = config->spin_us;
    mesh.log = config->log;
    return gr_mesh_create(&mesh, &server->mesh, diag);
}

/* All ways to this server, "+" between. */
static void write_address(gr_ps_server *server, const gr_ps_server_config *config,
                          const gr_interfaces *interfaces)
{
    char remote[GR_REMOTE_BYTES] = "";
    const char *local = gr_mesh_address(server->mesh), *far = gr_mesh_remote_address(server->mesh);
    bool tcp = config->link == GR_LINK_ALL_TCP;
    if (tcp) {
        far = local;
    }
    if (far != NULL && strcmp(config->listen_host, "*") == 0) {
        gr_interfaces_announce(interfaces, far, remote);
    } else if (far != NULL) {
        snprintf(remote, sizeof remote, "%s", far);
    }
    gr_ps_join_addresses(remote);
    snprintf(server->address, sizeof server->address, "%s%s%s", tcp ? "" : local,
             tcp || remote[0] == '\0' ? "" : "+", remote);
}

static gr_status check_config(const gr_ps_server_config *config, gr_diag *diag)
{
    if (config->replicas < 0 || config->replicas > 1) {
        return gr_fail(diag, GR_E_INVALID, "%d replicas cannot be: 0 or 1", config->replicas);
    }
    if (config->servers < 1 || config->servers > GR_PS_SERVERS_MAX || config->number < 0 ||
        config->number >= config->servers) {
        return gr_fail(diag, GR_E_INVALID,
                       "server %d of %d cannot be: there are 1 to %d, with numbers from 0 on",
                       config->number, config->servers, GR_PS_SERVERS_MAX);
    }
    if (config->replaces && (config->replicas == 0 || config->servers == 1)) {
        return gr_fail(diag, GR_E_INVALID,
                       "a server can be replaced only where others have replicas of what it kept: "
                       "with --replicas 1, and --servers 2 or more");
    }
    if (config->replaces && (config->others == NULL || config->others[0] == '\0')) {
        return gr_fail(diag, GR_E_INVALID,
                       "a server that replaces another one has to know the others: set "
                       "GRADUS_SERVERS to what they have printed, with commas between");
    }
    return GR_OK;
}

/* Nothing is its own before the others have put it into their table. */
static gr_status begin_joining(gr_ps_server *server, const gr_ps_server_config *config,
                               gr_diag *diag)
{
    server->joins_by_us = gr_clock_deadline_us(&server->clock, server->timeout_us);
    (void)gr_ps_table_lose(&server->table, config->number);
    server->table.epoch = 0;
    if (config->run != NULL) {
        snprintf(server->run, sizeof server->run, "%s", config->run);
    }
    gr_status status = gr_random_bytes(&server->incarnation, sizeof server->incarnation, diag);
    server->incarnation |= 1; /* not 0 */
    return status;
}

/* "A+B,C": server 0 is at A or B, server 1 at C. */
static void learn_others(gr_ps_server *server, const char *others)
{
    char addresses[GR_ADDRESS_BYTES + GR_REMOTE_BYTES];
    for (int number = 0; others != NULL && number < server->table.servers; number++) {
        size_t size = strcspn(others, ",");
        if (size < sizeof addresses) {
            memcpy(addresses, others, size);
            addresses[size] = '\0';
            gr_ps_peer_learn(server, number, addresses);
        }
        others = others[size] == ',' ? others + size + 1 : NULL;
    }
}

gr_status gr_ps_server_create(const gr_ps_server_config *config, gr_ps_server **server_out,
                              gr_diag *diag)
{
    gr_interfaces interfaces;
    gr_status status = check_config(config, diag);
    if (status == GR_OK) {
        status = gr_interfaces_find(config->interfaces, &interfaces, diag);
    }
    gr_ps_server *server = status == GR_OK ? calloc(1, sizeof *server) : NULL;
    if (server == NULL) {
        return status == GR_OK ? gr_fail(diag, GR_E_NO_MEMORY, "no memory for a server") : status;
    }
    server->number = config->number;
    server->updaters = config->updaters;
    server->updaters_arg = config->updaters_arg;
    server->log = config->log;
    server->pool.bytes_max = config->bytes_max > 0 ? config->bytes_max : UINT64_MAX;
    server->clock = gr_clock_real();
    server->timeout_us = config->peer_timeout_us;
    server->replicates = config->replicas > 0 && config->servers > 1;
    if (server->replicates) {
        gr_ps_table_init(&server->table, config->servers);
    } else {
        gr_ps_table_init_single(&server->table, config->servers);
    }
    server->active = !server->replicates;
    if (config->replaces) {
        status = begin_joining(server, config, diag);
    }
    gr_ps_membership_init(&server->membership, config->number, &server->table);
    const gr_ps_store_config store = {.ops = gr_ps_server_store_ops,
                                      .ops_arg = server,
                                      .updaters = {.create = create_updater,
                                                   .destroy = destroy_updater,
                                                   .states = states_of,
                                                   .update = update},
                                      .updaters_arg = server,
                                      .bytes_max = config->bytes_max};
    if (status == GR_OK) {
        status = open_mesh(server, config, &interfaces, diag);
    }
    if (status == GR_OK) {
        status = gr_ps_store_create(&store, &server->store, diag);
    }
    if (status == GR_OK && server->replicates) {
        status = gr_ps_peers_create(server, diag);
    }
    if (status != GR_OK) {
        gr_ps_server_destroy(server);
        return status;
    }
    write_address(server, config, &interfaces);
    if (config->replaces) {
        learn_others(server, config->others);
    }
    *server_out = server;
    return GR_OK;
}

void gr_ps_server_destroy(gr_ps_server *server)
{
    if (server == NULL) {
        return;
    }
    while (server->here_count > 0) {
        forget(server, server->here[0]);
    }
    gr_ps_store_destroy(server->store);
    gr_mesh_destroy(server->mesh);
    gr_ps_peers_destroy(server);
    for (uint32_t i = 0; i < server->held.count; i++) {
        free_share(server->held.at[i]);
    }
    free((void *)server->held.at);
    free_buffers(server);
    free(server);
}

const char *gr_ps_server_address(const gr_ps_server *server)
{
    return server->address;
}

bool gr_ps_server_has_met(const gr_ps_server *server)
{
    return server->replicates && server->active;
}

gr_status gr_ps_server_poll(gr_ps_server *server, gr_diag *diag)
{
    bool more = false;
    gr_status status = gr_mesh_progress(server->mesh, diag);
    if (status != GR_OK && (gr_ps_peers_refuse(server, status) ||
                            !gr_ps_peer_missed(server, diag->peer_rank, status))) {
        return status;
    }
    follow_changes(server);
    if (server->replicates) {
        status = gr_ps_peers_turn(server, diag);
        if (status < 0) {
            return status;
        }
        more = status == GR_PENDING;
    }
    for (int i = 0; i < server->here_count; i++) {
        gr_ps_session *session = server->sessions[server->here[i]];
        gr_diag why = {0};
        status = session->dismissed ? GR_OK : gr_ps_session_receive(session, &why);
        more = more || status == GR_PENDING;
        if (status < 0 && why.status != GR_OK) { /* else its link has ended, as will be told */
            char sentence[GR_DIAG_TEXT_BYTES], name[GR_PS_PEER_NAME_BYTES];
            snprintf(sentence, sizeof sentence, "%s sent %.400s",
                     gr_ps_peer_name(session->peer, name), why.text);
            session->dismissed = true;
            gr_ps_send_away(server, session->peer, GR_E_PROTOCOL, sentence);
        }
    }
    for (int i = 0; i < server->here_count; i++) {
        gr_ps_session *session = server->sessions[server->here[i]];
        more = (!session->dismissed && gr_ps_session_answer(session) == GR_PENDING) || more;
    }
    if (server->replicates) {
        more = gr_ps_peers_send(server) || more;
    }
    return more ? GR_PENDING : GR_OK;
}

void gr_ps_server_wait(gr_ps_server *server, int64_t deadline_us)
{
    if (server->replicates && gr_ps_peers_due_us(server) < deadline_us) {
        deadline_us = gr_ps_peers_due_us(server);
    }
    gr_mesh_wait(server->mesh, deadline_us);
}

void gr_ps_server_wake(gr_ps_server *server)
{
    gr_mesh_wake(server->mesh);
}
