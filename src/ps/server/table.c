/* SPDX-License-Identifier: Apache-2.0 */

/* What a table makes of the blocks that are here: which this server leads, of which it has the
 * replica, and which have to be copied. */

#include "ps/server/peer.h"

#include <string.h>

static gr_ps_role role_in(const gr_ps_server *server, const gr_ps_table *table, int slot)
{
    int primary = table->primary[slot], replica = table->replica[slot];
    if (primary == server->number) {
        return replica == primary ? GR_PS_ALONE : GR_PS_LEADS;
    }
    return replica == server->number ? GR_PS_FOLLOWS : GR_PS_ABSENT;
}

static gr_status hold(gr_ps_server *server, const gr_ps_share *held, uint32_t block,
                      gr_ps_role role, gr_diag *diag)
{
    return gr_ps_store_hold(server->store, held->tensor->key, block, role, diag);
}

gr_status gr_ps_table_hold(gr_ps_server *server, gr_ps_share *held, gr_diag *diag)
{
    gr_status status = GR_OK;
    uint32_t led = 0, block = 0;
    for (; block < held->tensor->cut.blocks && status == GR_OK; block++) {
        gr_ps_role role = role_in(server, &server->table, gr_ps_slot(held->tensor->key, block));
        if (role != GR_PS_ABSENT) {
            status = hold(server, held, block, role, diag);
            led += role != GR_PS_FOLLOWS;
        }
    }
    if (status == GR_OK) {
        held->led = led;
        return GR_OK;
    }
    for (block--; block-- > 0;) {
        if (role_in(server, &server->table, gr_ps_slot(held->tensor->key, block)) != GR_PS_ABSENT) {
            gr_status dropped = hold(server, held, block, GR_PS_ABSENT, NULL);
            (void)dropped; /* to have less needs no memory */
        }
    }
    return status;
}

/* The replica has to be sent what there is now. */
static void copy_to(gr_ps_server *server, gr_ps_share *held, uint32_t block)
{
    gr_ps_peer *peer = server->peers[server->table.replica[gr_ps_slot(held->tensor->key, block)]];
    held->marks[block] |= GR_PS_MARK_COPY | GR_PS_MARK_THIN;
    peer->out.to_copy++;
    peer->out.scan_tables = true;
    peer->out.scan.share = peer->out.scan.block = 0;
}

gr_status gr_ps_table_restore(gr_ps_server *server, const gr_ps_image *image, gr_diag *diag)
{
    gr_ps_share *held = gr_ps_share_of(server, image->key);
    gr_ps_role role = role_in(server, &server->table, gr_ps_slot(image->key, image->block));
    gr_status status = hold(server, held, image->block, GR_PS_ALONE, diag);
    if (status == GR_OK) {
        status = gr_ps_store_restore(server->store, image, diag);
    }
    bool whole = image->columns == 0 || image->ends;
    if (status == GR_OK && role == GR_PS_LEADS && whole) {
        status = hold(server, held, image->block, GR_PS_LEADS, diag);
        copy_to(server, held, image->block);
    }
    return status;
}

void gr_ps_table_await(const gr_ps_server *server, gr_ps_share *held)
{
    for (uint32_t block = 0; block < held->tensor->cut.blocks; block++) {
        if (role_in(server, &server->table, gr_ps_slot(held->tensor->key, block)) ==
            GR_PS_FOLLOWS) {
            held->marks[block] = GR_PS_MARK_AWAIT;
        }
    }
}

/* Returns true if a slot's primary, or replica, is the same process. */
static bool stays(const gr_ps_table *before, int was, const gr_ps_table *after, int is)
{
    return was == is && gr_ps_table_keeps(before, after, is);
}

/* One block whose place may have changed. */
static void move_block(gr_ps_server *server, gr_ps_share *held, uint32_t block,
                       const gr_ps_table *before)
{
    const gr_ps_table *after = &server->table;
    int slot = gr_ps_slot(held->tensor->key, block);
    gr_ps_role was = role_in(server, before, slot), is = role_in(server, after, slot);
    bool led = was == GR_PS_LEADS || was == GR_PS_ALONE;
    uint8_t *mark = &held->marks[block];
    gr_diag why = {0};
    if (is == GR_PS_LEADS || is == GR_PS_ALONE) {
        bool here = led ? (*mark & GR_PS_MARK_GONE) == 0
                        : was == GR_PS_FOLLOWS && (*mark & GR_PS_MARK_AWAIT) == 0;
        bool copy = is == GR_PS_LEADS && here &&
                    (!led || (*mark & GR_PS_MARK_COPY) != 0 ||
                     !stays(before, before->replica[slot], after, after->replica[slot]));
        *mark = !here ? GR_PS_MARK_GONE : is == GR_PS_LEADS && !copy ? *mark & GR_PS_MARK_THIN : 0;
        gr_status status = hold(server, held, block, here ? is : GR_PS_ABSENT, &why);
        (void)status; /* it is here already, or is dropped: neither needs memory */
        if (copy) {
            copy_to(server, held, block);
        }
    } else if (is == GR_PS_FOLLOWS &&
               (was != GR_PS_FOLLOWS ||
                !stays(before, before->primary[slot], after, after->primary[slot]))) {
        *mark = GR_PS_MARK_AWAIT;
        if (hold(server, held, block, GR_PS_FOLLOWS, &why) != GR_OK) {
            /* Its image will be refused, and its primary goes on alone. */
            gr_log_write(server->log, GR_LOG_WARN, "ps", "%s", why.text);
        }
    } else if (is == GR_PS_ABSENT && was != GR_PS_ABSENT) {
        *mark = 0;
        gr_status status = hold(server, held, block, GR_PS_ABSENT, &why);
        (void)status;
    }
}

void gr_ps_table_become(gr_ps_server *server)
{
    const gr_ps_table before = server->table;
    server->table = server->membership.table;
    for (int i = 0; i < server->here_count; i++) {
        gr_ps_session_reset(server->sessions[server->here[i]]);
    }
    for (int number = 0; number < server->table.servers; number++) {
        gr_ps_peer *peer = server->peers[number];
        if (peer != NULL) {
            peer->out.scan.share = peer->out.scan.block = peer->out.to_copy = 0;
        }
    }
    for (uint32_t i = 0; i < server->held.count; i++) {
        gr_ps_share *held = server->held.at[i];
        held->led = held->gone = 0;
        for (uint32_t block = 0; block < held->tensor->cut.blocks; block++) {
            move_block(server, held, block, &before);
            held->led += gr_ps_leads(server, held, block);
            held->gone += (held->marks[block] & GR_PS_MARK_GONE) != 0;
        }
    }
    gr_log_write(server->log, GR_LOG_INFO, "ps", "%d of %d servers go on by table %llu",
                 gr_ps_table_living(&server->table), server->table.servers,
                 (unsigned long long)server->table.epoch);
}

uint64_t gr_ps_table_unreplicated(const gr_ps_server *server)
{
    uint64_t count = 0;
    for (uint32_t i = 0; server->replicates && i < server->held.count; i++) {
        const gr_ps_share *held = server->held.at[i];
        for (uint32_t block = 0; block < held->tensor->cut.blocks; block++) {
            gr_ps_role role = role_in(server, &server->table, gr_ps_slot(held->tensor->key, block));
            count += role == GR_PS_ALONE ||
                     (role == GR_PS_LEADS && (held->marks[block] & GR_PS_MARK_THIN) != 0);
        }
    }
    return count;
}
