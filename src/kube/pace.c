/* SPDX-License-Identifier: Apache-2.0 */
#include "kube/pace.h"

void gr_kube_pace_init(gr_kube_pace *pace, double per_second, int burst, int64_t now_us)
{
    *pace = (gr_kube_pace){
        .per_second = per_second, .burst = burst, .tokens = burst, .counted_us = now_us};
}

bool gr_kube_pace_take(gr_kube_pace *pace, int64_t now_us)
{
    if (pace->per_second < 0) {
        return true;
    }
    if (now_us > pace->counted_us) {
        pace->tokens += (double)(now_us - pace->counted_us) * 1e-6 * pace->per_second;
        pace->tokens = pace->tokens < pace->burst ? pace->tokens : pace->burst;
        pace->counted_us = now_us;
    }
    if (pace->tokens < 1.0) {
        return false;
    }
    pace->tokens -= 1.0;
    return true;
}

int64_t gr_kube_pace_next_us(const gr_kube_pace *pace)
{
    if (pace->per_second < 0 || pace->tokens >= 1.0) {
        return pace->counted_us;
    }
    return pace->counted_us + (int64_t)((1.0 - pace->tokens) / pace->per_second * 1e6) + 1;
}

int64_t gr_kube_backoff_us(int attempt, int64_t base_us, int64_t max_us, uint64_t noise)
{
    int64_t pause_us = base_us;
    for (int i = 1; i < attempt && pause_us < max_us; i++) {
        pause_us *= 2;
    }
    pause_us = pause_us < max_us ? pause_us : max_us;
    uint64_t mixed = (noise + 1) * 0x9e3779b97f4a7c15U;
    return pause_us / 2 + (int64_t)((mixed >> 33) % (uint64_t)(pause_us / 2 + 1));
}
