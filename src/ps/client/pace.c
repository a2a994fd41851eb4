/* SPDX-License-Identifier: Apache-2.0 */
#include "ps/client/pace.h"

enum { DOUBLED_MAX = 20 }; /* more than any tensor by then */

static uint64_t limit_of(const gr_ps_pace *pace, uint64_t block_bytes)
{
    uint64_t some = GR_PS_PACE_BLOCKS * block_bytes;
    some = some > GR_PS_PACE_BYTES ? some : GR_PS_PACE_BYTES;
    return (some + pace->way_bytes) << pace->doubled;
}

bool gr_ps_pace_allows(gr_ps_pace *pace, uint64_t block_bytes, int64_t now_us)
{
    int64_t elapsed_us = now_us - pace->looked_us;
    if (pace->on_way_bytes >= limit_of(pace, block_bytes) && elapsed_us >= GR_PS_PACE_US) {
        if (pace->came_bytes > 0) {
            pace->way_bytes = pace->came_bytes * (uint64_t)pace->least_us / (uint64_t)elapsed_us;
        } else if (pace->doubled < DOUBLED_MAX) {
            pace->doubled++;
        }
        pace->came_bytes = 0;
        pace->looked_us = now_us;
    }
    return pace->on_way_bytes < limit_of(pace, block_bytes);
}

int64_t gr_ps_pace_next_us(const gr_ps_pace *pace)
{
    return pace->looked_us + GR_PS_PACE_US;
}

void gr_ps_pace_went(gr_ps_pace *pace, uint64_t block, uint64_t size_bytes, int64_t now_us)
{
    if (pace->on_way_bytes == 0) {
        pace->came_bytes = 0;
        pace->looked_us = now_us;
        pace->doubled = 0;
        pace->probes = false; /* what was forgotten may have been the one */
    }
    if (!pace->probes) {
        pace->probes = true;
        pace->probe = block;
        pace->probe_us = now_us;
    }
    pace->on_way_bytes += size_bytes;
}

void gr_ps_pace_came(gr_ps_pace *pace, uint64_t block, uint64_t size_bytes, int64_t now_us)
{
    gr_ps_pace_forget(pace, size_bytes);
    pace->came_bytes += size_bytes;
    if (pace->doubled > 0) {
        pace->doubled = 0;
        pace->came_bytes = 0;
        pace->looked_us = now_us;
    }
    if (pace->probes && pace->probe == block) {
        int64_t took_us = now_us - pace->probe_us;
        if (pace->least_us == 0 || took_us < pace->least_us) {
            pace->least_us = took_us;
        }
        pace->probes = false;
    }
}

void gr_ps_pace_forget(gr_ps_pace *pace, uint64_t size_bytes)
{
    pace->on_way_bytes -= size_bytes;
}
