/* SPDX-License-Identifier: Apache-2.0 */

/* A barrier is a tensor of one value: a step of it is made when each member has pushed its shard.
 * So it has replicas, and who comes once more is recognised, as with any other tensor. */

#include "ps/client/client.h"

#include "base/fail.h"

/* The meeting that this member comes to next. */
static gr_status find_meeting(gr_ps *ps, gr_ps_item *item)
{
    float value = 0;
    if (item->meets) {
        return GR_OK;
    }
    gr_status status = gr_ps_set(ps, (int)item->number, &value);
    if (status == GR_OK) {
        status = gr_ps_pull_run(ps, (int)item->number, 0, &value, &item->meeting);
    }
    item->meets = status == GR_OK;
    return status;
}

gr_status gr_ps_barrier(gr_ps *ps, const char *name, int members, int member, int64_t timeout_us)
{
    const gr_ps_spec spec = {.name = name, .elements = 1, .consistency = GR_BSP, .shards = members};
    int id = -1;
    if (ps == NULL) {
        return GR_E_INVALID;
    }
    if (members < 1 || member < 0 || member >= members || ps->worker < 0) {
        return gr_fail(&ps->error, GR_E_INVALID,
                       "member %d of %d cannot come to a barrier: they have numbers from 0 on, and "
                       "are clients with a worker's number",
                       member, members);
    }
    gr_status status = gr_ps_declare(ps, &spec, &id);
    if (status != GR_OK) {
        return status;
    }
    gr_ps_item *item = ps->known[id];
    if (item->waits == NULL) {
        status = find_meeting(ps, item);
        const gr_ps_gradient here = {
            .values = &item->nothing, .step = item->meeting, .first = member, .count = 1};
        if (status == GR_OK) {
            status = gr_ps_push_start(ps, id, &here, &item->waits);
        }
        if (status != GR_OK) {
            return status;
        }
    }
    status = gr_ps_wait(item->waits, timeout_us, NULL);
    if (status == GR_E_TIMEOUT) {
        return gr_fail(&ps->error, GR_E_TIMEOUT,
                       "not all of the %d members have come to barrier \"%s\" in time", members,
                       name);
    }
    item->waits = NULL;
    item->meets = status == GR_OK;
    item->meeting++;
    return status;
}
