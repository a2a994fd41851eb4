/* SPDX-License-Identifier: Apache-2.0 */

/* Tensors that go on from a checkpoint. A block is restored as a whole: what comes of it is
 * gathered, so a client that ends within one leaves it as it was. */

#include "ps/server/server_internal.h"

#include "base/fail.h"

#include <inttypes.h>

void gr_ps_gathered_drop(gr_ps_server *server, gr_ps_task *task)
{
    while (task->gathered_count > 0) {
        gr_ps_buffer_give_back(server, task->gathered[--task->gathered_count]);
    }
}

/* The first values count, as those of a SET; of a table those before its first update. */
gr_status gr_ps_restore_image(gr_ps_server *server, const gr_ps_image *image, bool *taken_out,
                              gr_diag *diag)
{
    gr_ps_store *store = server->store;
    gr_ps_image now;
    gr_status status = gr_ps_store_image(store, image->key, image->block, &now, diag);
    if (status != GR_OK) {
        return status;
    }
    bool fresh = image->columns > 0 && now.ready && now.version == 0;
    *taken_out = !now.ready || fresh;
    if (fresh && !image->begins) {
        return gr_fail(diag, GR_E_AGAIN,
                       "what was restored of table \"%s\" is lost with a server: begin again",
                       gr_ps_store_tensor(store, image->key)->spec.name);
    }
    if (*taken_out) {
        return gr_ps_table_restore(server, image, diag);
    }
    if (now.version < image->version) {
        return gr_fail(diag, GR_E_INVALID,
                       "tensor \"%s\" has values of version %" PRIu64
                       " already, so it cannot go on from version %" PRIu64 ": start new servers, "
                       "or leave out what sets values",
                       gr_ps_store_tensor(store, image->key)->spec.name, now.version,
                       image->version);
    }
    return GR_OK;
}

/* All of a block has come. */
static void restore_block(gr_ps_session *session, gr_ps_task *task, uint32_t block)
{
    const gr_ps_share *held = task->held;
    gr_ps_image image = {.key = held->tensor->key,
                         .block = block,
                         .count = gr_ps_block_count(&held->tensor->cut, block),
                         .ready = true,
                         .version = task->request.version,
                         .states = (int)task->request.count};
    for (uint32_t i = 0; i < task->gathered_count; i++) {
        if (task->gathered[i] == NULL) {
            return; /* as the task says */
        }
    }
    image.values = task->gathered[0]->values;
    for (int i = 0; i < image.states; i++) {
        image.state[i] = task->gathered[1 + i]->values;
    }
    gr_diag why = {0};
    bool taken = false;
    gr_status status = gr_ps_restore_image(session->server, &image, &taken, &why);
    if (status != GR_OK) {
        gr_ps_task_fail(task, status, why.text);
        return;
    }
    task->duplicates += !taken;
    task->version = image.version < task->version ? image.version : task->version;
}

void gr_ps_restore_take(gr_ps_session *session, gr_ps_task *task, uint32_t block,
                        gr_ps_buffer *buffer)
{
    gr_ps_server *server = session->server;
    bool whole = task->gathered_count == task->request.count;
    task->gathered[task->gathered_count++] = buffer;
    task->next_block = block;
    task->to_come--;
    if (whole && task->held != NULL) {
        server->traffic.pushes++;
        restore_block(session, task, block);
    }
    if (whole) {
        gr_ps_gathered_drop(server, task);
        task->next_block = block + 1;
    }
    gr_ps_task_settle(session, task);
}
