/* SPDX-License-Identifier: Apache-2.0 */
#include "launch/agent.h"
#include "launch/gang.h"

int gr_gang_count_busy(const gr_gang *gang)
{
    int count = 0;
    for (int i = 0; i < gang->slots; i++) {
        count += gang->places[i].busy;
    }
    return count;
}

/* Does somebody run who has been in a generation? Without one of them newcomers know nothing. */
bool gr_gang_anybody_serves(const gr_gang *gang)
{
    for (int i = 0; i < gang->slots; i++) {
        if (gang->places[i].busy && gr_coordinator_has_served(gang->coordinator, i)) {
            return true;
        }
    }
    return false;
}

void gr_gang_start_another(gr_gang *gang, int slot)
{
    gang->places[slot] = (gr_place){.busy = true, .newcomer = true};
    gang->ends[slot] = (gr_worker_end){.spared = true}; /* until it has started */
    gr_output_renew(gang->output, slot);
    gr_records_begun(gang->records, slot);
    gr_coordinator_invite(gang->coordinator, slot);
    const gr_agent_message message = {.kind = GR_AGENT_SPAWN, .rank = slot};
    (void)gr_agent_send(gang->agents[0].control_fd, &message);
}

/* What the coordinator has to know of it: how many are wanted, and whether more will come. */
void gr_gang_tell_wanted(gr_gang *gang)
{
    bool missing = gr_gang_count_busy(gang) < gang->want + gang->spares;
    gr_coordinator_want(gang->coordinator, gang->want);
    gr_coordinator_hope(gang->coordinator, missing || gang->restarts_left > 0);
}

/* One is lost: is another one started? If not, the job needs no more than are left. */
bool gr_gang_replace(gr_gang *gang)
{
    int left = gr_gang_count_busy(gang);
    if (gang->restarts_left > 0 && !gr_coordinator_is_over(gang->coordinator)) {
        gang->restarts_left--;
        return true;
    }
    gang->want = left < gang->want ? left : gang->want;
    gang->spares = left - gang->want;
    return false;
}
