/* SPDX-License-Identifier: Apache-2.0 */

/* The other servers: links to them, and which of them live. membership_view.h has the rule by which
 * servers agree on that; here is what they see and hear, and the time that passes.
 *
 *      link is up --HELLO--> server of the table --end, silence--> given up --agreed--> lost
 *                   |                                                                    |
 *                   +--HELLO, of a number that is lost--> new one --PEER, agreed--> server of the
 *                                                                                   next table
 *
 * A process in place of a lost server (gr_ps_server_config.replaces) connects to all others, hears
 * by their table who lives, and asks each of them for a place once it reaches all of these. With
 * the table that has it, it hears of all tensors. A process whose number is not lost, as far as
 * this server knows, is sent away, and tries again.
 *
 * A server that does not hear from all others, or does not agree with them, takes no requests of
 * clients: it may be the one that the others have given up. */

#include "ps/server/peer.h"

#include "base/codec.h"
#include "base/fail.h"
#include "base/fork.h"
#include "link/address.h"

#include <errno.h>
#include <poll.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>

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
        gr_fork_close(peer->probe_fd);
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
            free(peer->in.acks);
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
    peer->contact.since_us = gr_clock_now_us(&server->clock);
}

/* A server says where this process is: another one, or itself. */
static void relocate(gr_ps_server *server, gr_ps_peer *peer, uint64_t incarnation,
                     const char *addresses)
{
    bool is_known = peer->addresses[0] != '\0' && peer->placed == peer->incarnation;
    if (peer->link == NULL || (!is_known && peer->incarnation == incarnation)) {
        peer->addresses[0] = '\0';
        gr_ps_peer_learn(server, peer->number, addresses);
        peer->placed = incarnation;
    }
}

bool gr_ps_peer_missed(gr_ps_server *server, int number, gr_status status)
{
    if (number < 0 || number >= GR_PS_SERVERS_MAX || server->peers[number] == NULL) {
        return false;
    }
    server->peers[number]->dialled = false;
    if (status == GR_E_NOT_FOUND) { /* its name may come later: name servers are spared */
        server->peers[number]->dial_us = gr_clock_now_us(&server->clock) + LATER_US;
    }
    return true;
}

bool gr_ps_peers_refuse(const gr_ps_server *server, gr_status status)
{
    bool any = false;
    for (int number = 0; number < server->table.servers; number++) {
        any = any || (server->peers[number] != NULL && server->peers[number]->link != NULL);
    }
    return gr_ps_joins(server) && (status == GR_E_AUTH || status == GR_E_IN_USE) && !any &&
           gr_clock_now_us(&server->clock) >= server->joins_by_us;
}

void gr_ps_peer_came(gr_ps_server *server, int number)
{
    gr_ps_peer *peer = server->peers[number];
    peer->arriving = gr_mesh_link(server->mesh, number);
    peer->greeted = false;
}

/* The process that has come is this one. */
static void identify(gr_ps_server *server, gr_ps_peer *peer, uint64_t incarnation)
{
    peer->link = peer->arriving;
    peer->arriving = NULL;
    if (incarnation != peer->incarnation && incarnation != peer->placed && !gr_ps_joins(server)) {
        peer->addresses[0] = '\0'; /* of the process before; this one says where it is */
    }
    peer->incarnation = incarnation;
    peer->contact = (gr_ps_contact){.local = gr_link_capabilities(peer->link)->one_sided,
                                    .same_host = gr_link_same_host(peer->link),
                                    .since_us = gr_clock_now_us(&server->clock)};
    peer->in.note.lent = false;
    peer->met = true;
    peer->dialled = false;
    end_probe(peer);
}

/* Returns true if the peer received something from this server shortly before its link ended.
 * Otherwise the peer may have given this server up, and have gone on without it before it died. */
static bool is_fresh(const gr_ps_server *server, const gr_ps_peer *peer)
{
    return peer->contact.echo_us > 0 &&
           peer->missed_us - peer->contact.echo_us < server->timeout_us / 2;
}

void gr_ps_peer_ended(gr_ps_server *server, int number)
{
    gr_ps_peer *peer = server->peers[number];
    gr_link *link = gr_mesh_link(server->mesh, number);
    peer->dialled = false;
    peer->arriving = NULL;
    if (peer->link == NULL) {
        return; /* it ended before it was up */
    }
    gr_log_write(server->log, GR_LOG_INFO, "ps", "server %d is gone: %s", number,
                 link != NULL ? gr_link_diag(link)->text : "its link has ended");
    peer->missed_us = gr_clock_now_us(&server->clock);
    peer->provable = peer->contact.same_host && is_fresh(server, peer) &&
                     (gr_link_has_died(peer->link) || gr_link_has_left(peer->link));
    peer->link = NULL;
    gr_ps_copy_drop(server, peer);
    peer->met = !gr_ps_joins(server);
    peer->dial_us = peer->missed_us + (gr_ps_joins(server) ? PROBE_US : SURVIVES_US);
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
        if ((strncmp(address, "unix:", 5) == 0) != peer->contact.local) {
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
            gr_fork_close(fd);
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

size_t gr_ps_put_own_hello(const gr_ps_server *server, uint8_t *out)
{
    gr_ps_hello hello = {.protocol = GR_PS_PROTOCOL,
                         .servers = (uint32_t)server->table.servers,
                         .number = (uint32_t)server->number};
    memcpy(hello.run, server->run, sizeof hello.run);
    return gr_ps_put_hello(&hello, out);
}

/* First of all which one this is. False: the link has no room. */
static bool greet(gr_ps_server *server, gr_ps_peer *peer, gr_link *link)
{
    if (!peer->greeted) {
        const gr_frame frame = {.kind = GR_FRAME_DATA,
                                .comm = GR_PS_HELLO,
                                .fingerprint = server->incarnation,
                                .size_bytes = (uint32_t)gr_ps_put_own_hello(server, peer->hello)};
        uint64_t ticket;
        peer->greeted = gr_link_send(link, &frame, peer->hello, &ticket) == GR_OK;
    }
    return peer->greeted;
}

static bool send_place(gr_link *link, int number, uint64_t incarnation, const char *addresses)
{
    const gr_frame frame = {.kind = GR_FRAME_DATA,
                            .comm = GR_PS_PEER,
                            .segment = (uint32_t)number,
                            .fingerprint = incarnation,
                            .size_bytes = (uint32_t)strlen(addresses)};
    uint64_t ticket;
    return gr_link_send(link, &frame, addresses, &ticket) == GR_OK;
}

/* Returns true if the server lives and came later: the others have agreed to it then. */
static bool came_later(const gr_ps_server *server, int number)
{
    return server->table.alive[number] && server->table.incarnation[number] != 0;
}

/* NULL: it has not said here where it is. */
static const char *place_of(const gr_ps_server *server, int number)
{
    const gr_ps_peer *peer = server->peers[number];
    if (peer == NULL) {
        return server->address;
    }
    bool known = peer->placed == server->table.incarnation[number] && peer->addresses[0] != '\0';
    return known ? peer->addresses : NULL;
}

/* A client waits until all have said where they are, or are lost; a server may have to know that
 * one is lost, and is dialled by it. */
bool gr_ps_send_places(gr_ps_server *server, gr_link *link, int except)
{
    for (int number = 0; number < server->table.servers && except < 0; number++) {
        if (came_later(server, number) && place_of(server, number) == NULL) {
            return false;
        }
    }
    bool room = true;
    for (int number = 0; number < server->table.servers && room; number++) {
        const char *place = came_later(server, number) ? place_of(server, number) : NULL;
        if (number != except && place != NULL) {
            room = send_place(link, number, server->table.incarnation[number], place);
        }
    }
    return room;
}

static void send_own_place(const gr_ps_server *server, gr_ps_peer *peer)
{
    peer->contact.applied =
        peer->contact.applied ||
        send_place(peer->link, server->number, server->incarnation, server->address);
}

/* Once all that live have taken it for the process that it is: they have said their views. Who has
 * only greeted may still send it away, because it does not know yet that the process before is
 * lost; and who agreed on the word of others, without knowing it, would give it up at once. */
static void apply(gr_ps_server *server)
{
    for (int number = 0; number < server->table.servers; number++) {
        const gr_ps_peer *peer = server->peers[number];
        if (peer != NULL && server->table.alive[number] &&
            (peer->link == NULL || peer->contact.stamp == 0)) {
            return;
        }
    }
    for (int number = 0; number < server->table.servers && server->table.epoch > 0; number++) {
        gr_ps_peer *peer = server->peers[number];
        if (peer != NULL && peer->link != NULL) {
            send_own_place(server, peer);
        }
    }
}

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
    return peer->contact.stamp > 0 && peer->contact.table_epoch < server->table.epoch &&
           gr_ps_membership_lacks(&server->membership, &server->membership.said[peer->number]);
}

static void send_view(gr_ps_server *server, gr_ps_peer *peer, int64_t now)
{
    const gr_ps_view *own = &server->view;
    bool news = !gr_ps_view_equal(own, &peer->contact.told);
    bool lacks = lacks_table(server, peer);
    const gr_ps_replica_message *next = peer->out.unsent;
    if (next != NULL && (next->kind == GR_PS_HELLO || next->kind == GR_PS_DECLARE)) {
        return; /* it is no server of the table before it knows of all tensors */
    }
    if (!news && !lacks && !peer->contact.answer &&
        now - peer->contact.beat_us < beat_every_us(server)) {
        return;
    }
    if (lacks && !gr_ps_joins(server) && gr_ps_note_free(peer, &peer->contact.table) &&
        gr_ps_send_places(server, peer->link, peer->number) &&
        gr_ps_note_send(peer, &peer->contact.table, GR_PS_TABLE,
                        gr_ps_put_table(&server->table, peer->contact.table.text))) {
        peer->contact.table_epoch = server->table.epoch;
    }
    const gr_ps_beat beat = {.view = *own, .stamp = (uint64_t)now, .echo = peer->contact.stamp};
    if (!gr_ps_note_free(peer, &peer->contact.beat) ||
        !gr_ps_note_send(peer, &peer->contact.beat, GR_PS_VIEW,
                         gr_ps_put_beat(&beat, peer->contact.beat.text))) {
        return;
    }
    peer->contact.told = *own;
    peer->contact.beat_us = now;
    peer->contact.answer = false;
    peer->contact.answered = peer->contact.stamp > 0;
}

/* ---- What is heard --------------------------------------------------------------------------- */

static void take_run(gr_ps_server *server, const gr_ps_hello *hello)
{
    if (server->incarnation != 0 && server->run[0] == '\0') {
        memcpy(server->run, hello->run, sizeof server->run);
    }
}

/* Checks that the process that has connected is a server, or may become one. */
static gr_status judge_hello(gr_ps_server *server, const gr_ps_peer *peer, const gr_ps_hello *hello,
                             uint64_t incarnation, gr_diag *diag)
{
    const gr_ps_table *table = &server->membership.table;
    if ((int)hello->servers != table->servers || (int)hello->number != peer->number) {
        return gr_fail(
            diag, GR_E_INVALID,
            "server %d takes itself for server %u of %u, but there are %d: all must agree "
            "on --servers",
            peer->number, hello->number, hello->servers, table->servers);
    }
    if (server->run[0] != '\0' && hello->run[0] != '\0' && strcmp(server->run, hello->run) != 0) {
        return gr_fail(diag, GR_E_INVALID,
                       "server %d keeps tensors of run %s, and server %d those of run %s",
                       server->number, server->run, peer->number, hello->run);
    }
    if (!gr_ps_joins(server) && table->alive[peer->number] &&
        table->incarnation[peer->number] != incarnation) {
        return gr_fail(diag, GR_E_AGAIN,
                       "server %d is not known to be lost: another one has its "
                       "number",
                       peer->number);
    }
    return GR_OK;
}

/* What a process says that has just come. */
static void take_hello(gr_ps_server *server, gr_ps_peer *peer)
{
    gr_frame frame;
    gr_ps_hello hello;
    gr_diag why = {0};
    gr_status status = gr_link_peek(peer->arriving, &frame);
    if (status == GR_OK && (frame.comm != GR_PS_HELLO || frame.size_bytes > GR_PS_HEAD_MAX)) {
        status =
            gr_fail(&why, GR_E_PROTOCOL, "a message of kind %u before any greeting", frame.comm);
    }
    if (status == GR_OK && (status = gr_link_read(peer->arriving, peer->head)) == GR_OK) {
        gr_link_next(peer->arriving, NULL);
        status = gr_ps_get_hello(peer->head, frame.size_bytes, &hello, &why);
    }
    if (status == GR_OK) {
        status = judge_hello(server, peer, &hello, frame.fingerprint, &why);
    }
    if (status == GR_OK) {
        take_run(server, &hello);
        identify(server, peer, frame.fingerprint);
    } else if (status == GR_E_INVALID && gr_ps_joins(server)) {
        server->failure = why;
    } else if (status == GR_E_AGAIN) { /* as it does */
        gr_link_close(peer->arriving, status, why.text);
        peer->arriving = NULL;
    } else if (why.status != GR_OK) { /* else it has not come, or the link has ended */
        gr_ps_send_away(server, peer->number, status, why.text);
        peer->arriving = NULL;
    }
}

/* A tensor that there was before this server: without it it can be no replica. */
static gr_status declare(gr_ps_server *server, const gr_ps_peer *peer, const gr_ps_spec *spec,
                         gr_diag *diag)
{
    uint64_t key = gr_ps_tensor_key(spec->name);
    bool known = gr_ps_share_of(server, key) != NULL;
    const gr_ps_share *held;
    gr_status status = gr_ps_server_declare(server, peer->number, spec, &held, &server->failure);
    if (status == GR_OK && !known) {
        gr_ps_table_await(server, gr_ps_share_of(server, key));
    }
    return status == GR_OK ? GR_OK : gr_fail(diag, status, "%s", server->failure.text);
}

/* A server that came later is told of the run, and of all tensors; any of where others are. */
static gr_status take_word(gr_ps_server *server, gr_ps_peer *peer, const gr_frame *frame,
                           gr_diag *diag)
{
    gr_ps_hello hello;
    gr_ps_spec spec;
    gr_ps_texts texts;
    gr_status status;
    switch (frame->comm) {
    case GR_PS_HELLO:
        status = gr_ps_get_hello(peer->head, frame->size_bytes, &hello, diag);
        if (status == GR_OK) {
            take_run(server, &hello);
        }
        return status;
    case GR_PS_PEER:
        if (frame->segment >= GR_PS_SERVERS_MAX || frame->size_bytes >= sizeof peer->addresses ||
            !gr_text_printable((const char *)peer->head, frame->size_bytes, false)) {
            return gr_fail(diag, GR_E_PROTOCOL, "an address of server %u", frame->segment);
        }
        peer->head[frame->size_bytes] = '\0';
        if ((int)frame->segment == peer->number) {
            peer->addresses[0] = '\0';
            peer->contact.applies = true;
        }
        if (server->peers[frame->segment] != NULL) {
            relocate(server, server->peers[frame->segment], frame->fingerprint,
                     (const char *)peer->head);
        }
        return GR_OK;
    default:
        status = gr_ps_get_spec(peer->head, frame->size_bytes, &spec, &texts, diag);
        return status == GR_OK ? declare(server, peer, &spec, diag) : status;
    }
}

static gr_status take_view(gr_ps_server *server, gr_ps_peer *peer, const gr_frame *frame,
                           gr_diag *diag)
{
    gr_ps_beat beat;
    gr_status status = gr_ps_get_beat(peer->head, frame->size_bytes, &beat, diag);
    if (status != GR_OK) {
        return status;
    }
    peer->contact.stamp = beat.stamp;
    peer->contact.answer = peer->contact.answer || beat.echo == 0 || !peer->contact.answered;
    if ((int64_t)beat.echo > peer->contact.echo_us && (int64_t)beat.echo <= server->turn_us) {
        peer->contact.echo_us = (int64_t)beat.echo;
    }
    gr_ps_membership_receive(&server->membership, peer->number, &beat.view);
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
    if (!gr_ps_joins(server)) {
        if (gr_ps_membership_take(&server->membership, &table) == GR_PS_TABLE_OUT) {
            (void)gr_fail(
                &server->failure, GR_E_PEER_LOST,
                "the other parameter servers have gone on without server %d: it was silent "
                "for %lld ms, or its connections broke",
                server->number, (long long)(server->timeout_us / 1000));
        }
    } else if (table.servers == server->table.servers && table.epoch > server->table.epoch) {
        bool alive = table.alive[server->number]; /* or another process with its number */
        if (!alive || table.incarnation[server->number] == server->incarnation) {
            gr_ps_membership_init(&server->membership, server->number, &table);
        }
        if (!alive) {
            server->table = table; /* who lives, and is to be asked for a place */
        }
    }
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
        bool word = frame.comm == GR_PS_HELLO || frame.comm == GR_PS_PEER ||
                    (frame.comm == GR_PS_DECLARE && server->incarnation != 0);
        if (!copies && !word && frame.comm != GR_PS_VIEW && frame.comm != GR_PS_TABLE) {
            return gr_fail(diag, GR_E_PROTOCOL, "a message of kind %u, which no server sends",
                           frame.comm);
        }
        if (frame.comm != GR_PS_COPY && frame.size_bytes >= GR_PS_HEAD_MAX) {
            return gr_fail(diag, GR_E_PROTOCOL, "a message of %u bytes", frame.size_bytes);
        }
        if (copies) {
            status = gr_ps_copy_take(server, peer, &frame, diag);
        } else if ((status = gr_link_read(peer->link, peer->head)) == GR_OK) {
            gr_link_next(peer->link, NULL);
            status = word                       ? take_word(server, peer, &frame, diag)
                     : frame.comm == GR_PS_VIEW ? take_view(server, peer, &frame, diag)
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
    int64_t heard_us = peer->contact.echo_us > peer->contact.since_us ? peer->contact.echo_us
                                                                      : peer->contact.since_us;
    if (peer->contact.since_us > 0 && now - heard_us > server->timeout_us && !gr_ps_joins(server) &&
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
            peer->contact.since_us = peer->contact.since_us > 0 ? now : 0;
            peer->contact.echo_us = 0;
            peer->contact.stamp = 0; /* so that it answers at once */
            peer->contact.beat_us = 0;
        }
    }
}

/* The lost ones are told, and once nothing of this server's memory is lent to their links any more
 * the new table counts. Who is in it, and not here, is missed. */
static void adopt(gr_ps_server *server)
{
    bool wait = false;
    for (int number = 0; number < server->table.servers; number++) {
        gr_ps_peer *peer = server->peers[number];
        if (peer != NULL && peer->link != NULL && server->table.alive[number] &&
            peer->incarnation == server->table.incarnation[number] &&
            !gr_ps_table_keeps(&server->table, &server->membership.table, number)) {
            gr_link_close(peer->link, GR_E_CANCELLED,
                          "the parameter servers go on without this one");
            wait = true;
        }
    }
    if (wait) {
        return;
    }
    gr_ps_table_become(server);
    for (int number = 0; number < server->table.servers; number++) {
        const gr_ps_peer *peer = server->peers[number];
        if (peer != NULL && peer->met && server->table.alive[number] &&
            (peer->link == NULL || peer->incarnation != server->table.incarnation[number])) {
            gr_ps_membership_lose(&server->membership, number, false);
        }
    }
}

static bool all_here(const gr_ps_server *server, int64_t now)
{
    for (int number = 0; number < server->table.servers; number++) {
        const gr_ps_peer *peer = server->peers[number];
        if (peer != NULL && server->table.alive[number] &&
            (peer->link == NULL || peer->contact.echo_us == 0 ||
             now - peer->contact.echo_us > server->timeout_us / 4 * 3)) {
            return false;
        }
    }
    return true;
}

static void dial(gr_ps_server *server, gr_ps_peer *peer, int64_t now)
{
    bool mine = server->incarnation != 0 ? server->table.alive[peer->number]
                                         : server->number > peer->number;
    if (mine && !peer->met && !peer->dialled && peer->arriving == NULL &&
        peer->addresses[0] != '\0' && now >= peer->dial_us) {
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
        if (peer->arriving != NULL) {
            take_hello(server, peer);
        }
        gr_status status = peer->link != NULL ? gr_ps_peer_receive(server, peer, &why) : GR_OK;
        more = more || status == GR_PENDING;
        if (status < 0 && why.status != GR_OK) { /* else its link has ended, as will be told */
            gr_ps_send_away(server, number, GR_E_PROTOCOL, why.text);
        }
        judge_silence(server, peer, now);
        if (is_lost(server, number) && !gr_ps_joins(server)) {
            examine(server, peer, now);
        }
        if (peer->link != NULL && peer->contact.applies && !gr_ps_joins(server)) {
            gr_ps_membership_add(&server->membership, number, peer->incarnation);
        }
    }
    if (server->failure.status != GR_OK) {
        *diag = server->failure;
        return (gr_status)server->failure.status;
    }
    if (!is_pending(server)) {
        server->view = server->membership.own;
    }
    if (is_pending(server) ||
        (!gr_ps_joins(server) && gr_ps_membership_decide(&server->membership))) {
        adopt(server);
    }
    if (!is_pending(server)) {
        server->view = server->membership.own;
    }
    bool active = !gr_ps_joins(server) && !is_pending(server) &&
                  gr_ps_membership_settled(&server->membership) && all_here(server, now);
    more = more || (active && !server->active);
    server->active = active;
    return more ? GR_PENDING : GR_OK;
}

bool gr_ps_peers_send(gr_ps_server *server)
{
    bool more = false;
    for (int number = 0; number < server->table.servers; number++) {
        gr_ps_peer *peer = server->peers[number];
        if (peer != NULL && peer->arriving != NULL) {
            (void)greet(server, peer, peer->arriving);
        }
        if (peer == NULL || peer->link == NULL || !greet(server, peer, peer->link)) {
            continue;
        }
        if (server->incarnation != 0 && !gr_ps_joins(server)) {
            send_own_place(server, peer); /* to one that has come since, or was not asked */
        }
        if (peer->incarnation != 0 && !peer->contact.introduced && server->table.alive[number] &&
            !gr_ps_joins(server)) {
            peer->contact.introduced = true;
            gr_ps_copy_introduce(server, peer);
        }
        send_view(server, peer, server->turn_us);
        if (server->table.alive[number]) {
            more = gr_ps_copy_send(server, peer) || more;
        }
    }
    if (gr_ps_joins(server)) {
        apply(server);
    }
    return more;
}

int64_t gr_ps_peers_due_us(const gr_ps_server *server)
{
    bool misses = server->membership.own.lost != 0 || is_pending(server) || gr_ps_joins(server);
    return server->turn_us + (misses ? (int64_t)PROBE_US : beat_every_us(server) / 2);
}
