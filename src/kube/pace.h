/* SPDX-License-Identifier: Apache-2.0 */
#ifndef GR_KUBE_PACE_H
#define GR_KUBE_PACE_H

/* How fast requests may come: a bucket of tokens, and pauses that grow. */

#include <stdbool.h>
#include <stdint.h>

typedef struct gr_kube_pace {
    double per_second; /* below 0: no limit */
    double burst;
    double tokens;
    int64_t counted_us; /* up to when `tokens` is true */
} gr_kube_pace;

void gr_kube_pace_init(gr_kube_pace *pace, double per_second, int burst, int64_t now_us);
bool gr_kube_pace_take(gr_kube_pace *pace, int64_t now_us);
/* When there is a token again. */
int64_t gr_kube_pace_next_us(const gr_kube_pace *pace);

/* A pause before attempt 1, 2, ... that doubles from base_us to max_us; from half of it to all of
 * it, as `noise` decides, so that many clients do not come at once. */
int64_t gr_kube_backoff_us(int attempt, int64_t base_us, int64_t max_us, uint64_t noise);

#endif
