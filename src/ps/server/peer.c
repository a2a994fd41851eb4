/* SPDX-License-Identifier: Apache-2.0 */

/* The other servers: links to them, and which of them live. membership_view.h has the rule by which
 * servers agree on that; here is what they see and hear, and the time that passes.
 *
 * A server that does not hear from all others, or does not agree with them, takes no requests of
 * clients: it may be the one that the others have given up. */

#include "ps/server/server_internal.h"

#include "base/fail.h"
#include "link/address.h"

#include <errno.h>
#include <poll.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <unistd.h>

enum {
    BEATS = 8,             /* within the time after which a silent server is lost */
    PROBE_US = 20000,      /* between two looks whether anybody listens where a server was */
    SURVIVES_US = 1000000, /* if somebody does for so long, the server may live, and is asked */
    LATER_US = 200000,     /* between two looks behind that */
    PEER_MESSAGES = 512    /* that one peer may bring in a turn */
};

static bool is_lost(const gr_ps_server *server, int number)
{
    return (server->membership.own.lost >> number & 1) != 0;
}

/* The membership's table is newer than what the server goes by. */
static bool is_pending(const gr_ps_server *server)
{
    return server->membership.table.epoch > server->table.epoch;
}

static int64_t beat_every_us(const gr_ps_server *server)
{
    return server->timeout_us / BEATS;
}

/* ---- Life ------------------------------------------------------------------------------------ */

gr_status gr_ps_peers_create(gr_ps_server *server, gr_diag *diag)
{
    for (int number = 0; number < server->table.servers; number++) {
        if (number == server->number) {
            continue;
        }
        gr_ps_peer *peer = calloc(1, sizeof *peer);
        if (peer == NULL) {
            return gr_fail(diag, GR_E_NO_MEMORY, "no memory for links to other servers");
        }
        peer->number = number;
        peer->probe_fd = -1;
        server->peers[number] = peer;
    }
    return GR_OK;
}

static void end_probe(gr_ps_peer *peer)
{
    if (peer->probe_fd >= 0) {
        close(peer->probe_fd);
        peer->probe_fd = -1;
    }
}

void gr_ps_peers_destroy(gr_ps_server *server)
{
    for (int number = 0; number < GR_PS_SERVERS_MAX; number++) {
        gr_ps_peer *peer = server->peers[number];
        if (peer != NULL) {
            gr_ps_copy_drop(server, peer);
            end_probe(peer);
            free(peer->acks);
            free(peer);
        }
    }
}

void gr_ps_peer_learn(gr_ps_server *server, int number, const char *addresses)
{
    gr_ps_peer *peer = number < GR_PS_SERVERS_MAX ? server->peers[number] : NULL;
    if (peer == NULL || peer->addresses[0] != '\0' || strlen(addresses) >= sizeof peer->addresses) {
        return;
    }
    memcpy(peer->addresses, addresses, strlen(addresses) + 1);
    gr_ps_split_addresses(peer->addresses);
    peer->since_us = gr_clock_now_us(&server->clock);
}

bool gr_ps_peer_missed(gr_ps_server *server, int number)
{
    if (number < 0 || number >= GR_PS_SERVERS_MAX || server->peers[number] == NULL) {
        return false;
    }
    server->peers[number]->dialled = false;
    return true;
}

void gr_ps_peer_came(gr_ps_server *server, int number)
{
    gr_ps_peer *peer = server->peers[number];
    peer->link = gr_mesh_link(server->mesh, number);
    peer->local = gr_link_capabilities(peer->link)->one_sided;
    peer->same_host = gr_link_same_host(peer->link);
    end_probe(peer);
    peer->met = true;
    peer->dialled = false;
    peer->stamp = 0;
    peer->answer = peer->answered = false;
    peer->beat_us = 0;
    peer->echo_us = 0;
    peer->since_us = gr_clock_now_us(&server->clock);
    peer->told = (gr_ps_view){0};
    peer->table_epoch = 0;
    peer->note_acks.lent = peer->note_beat.lent = peer->note_table.lent = false;
}

/* Did it hear this server shortly before its link ended? Else it may have given this server up, and
 * have gone on without it before it died. */
static bool is_fresh(const gr_ps_server *server, const gr_ps_peer *peer)
{
    return peer->echo_us > 0 && peer->missed_us - peer->echo_us < server->timeout_us / 2;
}

void gr_ps_peer_ended(gr_ps_server *server, int number)
{
    gr_ps_peer *peer = server->peers[number];
    gr_link *link = gr_mesh_link(server->mesh, number);
    peer->dialled = false;
    if (peer->link == NULL) {
        return; /* it ended before it was up */
    }
    gr_log_write(server->log, GR_LOG_INFO, "ps", "server %d is gone: %s", number,
                 link != NULL ? gr_link_diag(link)->text : "its link has ended");
    peer->missed_us = gr_clock_now_us(&server->clock);
    peer->provable = peer->same_host && is_fresh(server, peer) &&
                     (gr_link_has_died(peer->link) || gr_link_has_left(peer->link));
    peer->link = NULL;
    gr_ps_copy_drop(server, peer);
    peer->dial_us = peer->missed_us + SURVIVES_US;
    peer->probe_us = peer->missed_us;
    gr_ps_membership_lose(&server->membership, number, false);
}

/* ---- Is it dead? ----------------------------------------------------------------------------- */

/* Nobody listens any more at any address of the kind by which it was reached: its system says that
 * the process is gone. */
static bool nobody_listens(gr_ps_peer *peer)
{
    char address[GR_ADDRESS_BYTES];
    size_t at = 0;
    if (peer->probe_fd >= 0) {
        struct pollfd ready = {.fd = peer->probe_fd, .events = POLLOUT};
        int error = 0;
        socklen_t size = sizeof error;
        if (poll(&ready, 1, 0) <= 0 ||
            getsockopt(peer->probe_fd, SOL_SOCKET, SO_ERROR, &error, &size) != 0) {
            return false;
        }
        end_probe(peer);
        return error == ECONNREFUSED;
    }
    bool refused = false;
    while (gr_address_next(peer->addresses, &at, address)) {
        if ((strncmp(address, "unix:", 5) == 0) != peer->local) {
            continue;
        }
        int fd = -1;
        gr_status status = gr_address_connect(address, &fd, NULL);
        refused = status == GR_E_PEER_LOST;
        if (status == GR_PENDING) {
            peer->probe_fd = fd; /* of several hosts' names the first that is tried tells */
            return false;
        }
        if (status == GR_OK) {
            close(fd);
        }
        if (!refused) {
            return false;
        }
    }
    return refused;
}

/* A server that was given up: it may be dead beyond doubt, or live on, and have to know.
 *
 * Only on the same host is there a proof, and it may come late: the system closes the sockets of a
 * process that was killed one after the other, and on a busy host that takes any time. So it is
 * looked for until the server is there again, whose answer then says what it has done meanwhile. On
 * another host a refused connection proves nothing: a firewall, or a service of Kubernetes without
 * endpoints, refuses as well. */
static void examine(gr_ps_server *server, gr_ps_peer *peer, int64_t now)
{
    if (peer->link != NULL || now < peer->probe_us || peer->addresses[0] == '\0') {
        return;
    }
    if ((server->membership.dead >> peer->number & 1) == 0 && peer->provable &&
        nobody_listens(peer)) {
        gr_ps_membership_lose(&server->membership, peer->number, true);
    }
    bool soon = peer->probe_fd >= 0 || now - peer->missed_us < SURVIVES_US;
    peer->probe_us = now + (soon ? PROBE_US : LATER_US);
    if (now >= peer->dial_us && !peer->dialled) {
        gr_diag why;
        peer->dial_us = now + SURVIVES_US;
        peer->dialled = gr_mesh_connect(server->mesh, peer->number, peer->addresses, &why) == GR_OK;
    }
}

/* ---- What is said ---------------------------------------------------------------------------- */

bool gr_ps_note_free(gr_ps_peer *peer, gr_ps_note *note)
{
    note->lent = note->lent && !gr_link_sent(peer->link, note->ticket);
    return !note->lent;
}

bool gr_ps_note_send(gr_ps_peer *peer, gr_ps_note *note, gr_ps_kind kind, size_t size_bytes)
{
    const gr_frame frame = {
        .kind = GR_FRAME_DATA, .comm = (uint16_t)kind, .size_bytes = (uint32_t)size_bytes};
    note->lent = gr_link_send(peer->link, &frame, note->text, &note->ticket) == GR_OK;
    return note->lent;
}

/* Its table is older, or it lives on without knowing that it is out. */
static bool lacks_table(const gr_ps_server *server, const gr_ps_peer *peer)
{
    return peer->stamp > 0 && peer->table_epoch < server->table.epoch &&
           server->membership.said[peer->number].epoch < server->table.epoch;
}

static void tell(gr_ps_server *server, gr_ps_peer *peer, int64_t now)
{
    const gr_ps_view *own = &server->view;
    bool news = own->epoch != peer->told.epoch || own->hash != peer->told.hash ||
                own->lost != peer->told.lost;
    bool lacks = lacks_table(server, peer);
    if (!news && !lacks && !peer->answer && now - peer->beat_us < beat_every_us(server)) {
        return;
    }
    if (lacks && gr_ps_note_free(peer, &peer->note_table) &&
        gr_ps_note_send(peer, &peer->note_table, GR_PS_TABLE,
                        gr_ps_put_table(&server->table, peer->note_table.text))) {
        peer->table_epoch = server->table.epoch;
    }
    const gr_ps_beat beat = {.view = *own, .stamp = (uint64_t)now, .echo = peer->stamp};
    if (!gr_ps_note_free(peer, &peer->note_beat) ||
        !gr_ps_note_send(peer, &peer->note_beat, GR_PS_VIEW,
                         gr_ps_put_beat(&beat, peer->note_beat.text))) {
        return;
    }
    peer->told = *own;
    peer->beat_us = now;
    peer->answer = false;
    peer->answered = peer->stamp > 0;
}

/* ---- What is heard --------------------------------------------------------------------------- */

static gr_status take_view(gr_ps_server *server, gr_ps_peer *peer, const gr_frame *frame,
                           gr_diag *diag)
{
    gr_ps_beat beat;
    gr_status status = gr_ps_get_beat(peer->head, frame->size_bytes, &beat, diag);
    if (status != GR_OK) {
        return status;
    }
    peer->stamp = beat.stamp;
    peer->answer = peer->answer || beat.echo == 0 || !peer->answered;
    if ((int64_t)beat.echo > peer->echo_us && (int64_t)beat.echo <= server->turn_us) {
        peer->echo_us = (int64_t)beat.echo;
    }
    gr_ps_membership_hear(&server->membership, peer->number, &beat.view);
    return GR_OK;
}

static gr_status take_table(gr_ps_server *server, gr_ps_peer *peer, const gr_frame *frame,
                            gr_diag *diag)
{
    gr_ps_table table;
    gr_status status = gr_ps_get_table(peer->head, frame->size_bytes, &table, diag);
    if (status != GR_OK) {
        return status;
    }
    server->out =
        gr_ps_membership_take(&server->membership, &table) == GR_PS_TABLE_OUT || server->out;
    return GR_OK;
}

gr_status gr_ps_peer_receive(gr_ps_server *server, gr_ps_peer *peer, gr_diag *diag)
{
    for (int i = 0; i < PEER_MESSAGES; i++) {
        gr_frame frame;
        gr_status status = gr_link_peek(peer->link, &frame);
        if (status == GR_PENDING) {
            return GR_OK;
        }
        if (status != GR_OK) {
            return status;
        }
        bool copies = frame.comm >= GR_PS_UPDATE && frame.comm <= GR_PS_ACKS;
        if (!copies && frame.comm != GR_PS_VIEW && frame.comm != GR_PS_TABLE) {
            return gr_fail(diag, GR_E_PROTOCOL, "a message of kind %u, which no server sends",
                           frame.comm);
        }
        if (frame.comm != GR_PS_COPY && frame.size_bytes > GR_PS_HEAD_MAX) {
            return gr_fail(diag, GR_E_PROTOCOL, "a message of %u bytes", frame.size_bytes);
        }
        if (copies) {
            status = gr_ps_copy_take(server, peer, &frame, diag);
        } else if ((status = gr_link_read(peer->link, peer->head)) == GR_OK) {
            gr_link_next(peer->link, NULL);
            status = frame.comm == GR_PS_VIEW ? take_view(server, peer, &frame, diag)
                                              : take_table(server, peer, &frame, diag);
        }
        if (status == GR_PENDING) {
            return GR_OK;
        }
        if (status != GR_OK) {
            return status;
        }
    }
    return GR_PENDING;
}

/* ---- Turns ----------------------------------------------------------------------------------- */

/* It is silent: given up, where those that are left may decide. */
static void judge_silence(gr_ps_server *server, const gr_ps_peer *peer, int64_t now)
{
    int64_t heard_us = peer->echo_us > peer->since_us ? peer->echo_us : peer->since_us;
    if (peer->since_us > 0 && now - heard_us > server->timeout_us &&
        server->membership.table.alive[peer->number] && !is_lost(server, peer->number) &&
        gr_ps_membership_spares(&server->membership, peer->number)) {
        gr_log_write(server->log, GR_LOG_WARN, "ps", "server %d has been silent for %lld ms",
                     peer->number, (long long)((now - heard_us) / 1000));
        gr_ps_membership_lose(&server->membership, peer->number, false);
    }
}

/* This server was stopped for long: what it knows of the others is old. */
static void begin_again(gr_ps_server *server, int64_t now)
{
    for (int number = 0; number < server->table.servers; number++) {
        gr_ps_peer *peer = server->peers[number];
        if (peer != NULL) {
            peer->since_us = peer->since_us > 0 ? now : 0;
            peer->echo_us = 0;
            peer->stamp = 0; /* so that it answers at once */
            peer->beat_us = 0;
        }
    }
}

/* The lost ones are told, and once nothing of this server's memory is lent to their links any more
 * the new table counts. */
static void adopt(gr_ps_server *server)
{
    bool wait = false;
    for (int number = 0; number < server->table.servers; number++) {
        gr_ps_peer *peer = server->peers[number];
        if (peer != NULL && peer->link != NULL && !server->membership.table.alive[number]) {
            gr_link_close(peer->link, GR_E_CANCELLED,
                          "the parameter servers go on without this one");
            wait = true;
        }
    }
    if (!wait) {
        gr_ps_table_become(server);
    }
}

static bool all_here(const gr_ps_server *server, int64_t now)
{
    for (int number = 0; number < server->table.servers; number++) {
        const gr_ps_peer *peer = server->peers[number];
        if (peer != NULL && server->table.alive[number] &&
            (peer->link == NULL || peer->echo_us == 0 ||
             now - peer->echo_us > server->timeout_us / 4 * 3)) {
            return false;
        }
    }
    return true;
}

static void dial(gr_ps_server *server, gr_ps_peer *peer, int64_t now)
{
    if (!peer->met && !peer->dialled && peer->addresses[0] != '\0' && now >= peer->dial_us &&
        server->number > peer->number) {
        gr_diag why;
        peer->dialled = gr_mesh_connect(server->mesh, peer->number, peer->addresses, &why) == GR_OK;
        peer->dial_us = now + PROBE_US;
    }
}

gr_status gr_ps_peers_turn(gr_ps_server *server, gr_diag *diag)
{
    int64_t now = gr_clock_now_us(&server->clock);
    bool more = false;
    if (server->turn_us > 0 && now - server->turn_us > server->timeout_us / 4) {
        begin_again(server, now);
    }
    server->turn_us = now;
    for (int number = 0; number < server->table.servers; number++) {
        gr_ps_peer *peer = server->peers[number];
        if (peer == NULL) {
            continue;
        }
        gr_diag why = {0};
        dial(server, peer, now);
        gr_status status = peer->link != NULL ? gr_ps_peer_receive(server, peer, &why) : GR_OK;
        more = more || status == GR_PENDING;
        if (status < 0 && why.status != GR_OK) { /* else its link has ended, as will be told */
            gr_ps_send_away(server, number, GR_E_PROTOCOL, why.text);
        }
        judge_silence(server, peer, now);
        if (is_lost(server, number)) {
            examine(server, peer, now);
        }
    }
    if (server->out) {
        return gr_fail(diag, GR_E_PEER_LOST,
                       "the other parameter servers have gone on without server %d: it was silent "
                       "for %lld ms, or its connections broke",
                       server->number, (long long)(server->timeout_us / 1000));
    }
    if (!is_pending(server)) {
        server->view = server->membership.own;
    }
    if (is_pending(server) || gr_ps_membership_decide(&server->membership)) {
        adopt(server);
    }
    if (!is_pending(server)) {
        server->view = server->membership.own;
    }
    bool active = !is_pending(server) && gr_ps_membership_settled(&server->membership) &&
                  all_here(server, now);
    more = more || (active && !server->active);
    server->active = active;
    return more ? GR_PENDING : GR_OK;
}

bool gr_ps_peers_send(gr_ps_server *server)
{
    bool more = false;
    for (int number = 0; number < server->table.servers; number++) {
        gr_ps_peer *peer = server->peers[number];
        if (peer == NULL || peer->link == NULL) {
            continue;
        }
        tell(server, peer, server->turn_us);
        if (server->table.alive[number]) {
            more = gr_ps_copy_send(server, peer) || more;
        }
    }
    return more;
}

int64_t gr_ps_peers_due_us(const gr_ps_server *server)
{
    bool misses = server->membership.own.lost != 0 || is_pending(server);
    return server->turn_us + (misses ? (int64_t)PROBE_US : beat_every_us(server) / 2);
}
