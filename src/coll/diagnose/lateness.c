/* SPDX-License-Identifier: Apache-2.0 */
#include "coll/diagnose/lateness.h"

#include <stdlib.h>

enum { LEAST_MEAN_US = 50 }; /* less would be shown as 0.0 ms */

gr_lateness gr_lateness_judge(const gr_lateness_sums *ranks, int count, double least_us)
{
    int first = -1;
    double most_us = 0, second_us = 0;
    for (int rank = 0; rank < count; rank++) {
        double seen_by = ranks[rank].seen_by > 0 ? ranks[rank].seen_by : 1;
        double own_us = ranks[rank].total_us / seen_by - ranks[rank].waits_us;
        if (own_us > most_us) {
            second_us = most_us;
            most_us = own_us;
            first = rank;
        } else if (own_us > second_us) {
            second_us = own_us;
        }
    }
    if (first < 0 || most_us < least_us || most_us < 2 * second_us) {
        return (gr_lateness){.rank = -1};
    }
    const gr_lateness_sums *late = &ranks[first];
    double mean_us = late->mean_us / late->seen_by;
    if (mean_us < LEAST_MEAN_US) {
        return (gr_lateness){.rank = -1};
    }
    return (gr_lateness){
        .rank = first, .mean_us = mean_us, .total_us = late->total_us / late->seen_by};
}

gr_status gr_lateness_begin(gr_comm *comm, gr_skew *skews_out)
{
    gr_status status = GR_OK;
    for (int rank = 0; rank < gr_comm_size(comm) && status == GR_OK; rank++) {
        status = gr_comm_skew(comm, rank, &skews_out[rank]);
    }
    return status;
}

gr_status gr_lateness_find(gr_comm *comm, const gr_skew *since, double least_us,
                           gr_lateness *late_out)
{
    enum { NUMBERS = sizeof(gr_lateness_sums) / sizeof(double) };
    int size = gr_comm_size(comm), own = gr_comm_rank(comm);
    gr_lateness_sums *ranks = calloc((size_t)size, sizeof *ranks);
    gr_status status = ranks ? GR_OK : GR_E_NO_MEMORY;
    for (int rank = 0; rank < size && status == GR_OK; rank++) {
        gr_skew skew;
        status = gr_comm_skew(comm, rank, &skew);
        uint64_t before = since ? since[rank].operations : 0;
        if (status == GR_OK && skew.operations > before) {
            double before_us = since ? since[rank].mean_us * (double)before : 0;
            double total_us = skew.mean_us * (double)skew.operations - before_us;
            total_us = total_us > 0 ? total_us : 0;
            ranks[rank].seen_by = 1;
            ranks[rank].mean_us = total_us / (double)(skew.operations - before);
            ranks[rank].total_us = total_us;
            ranks[own].waits_us = total_us > ranks[own].waits_us ? total_us : ranks[own].waits_us;
        }
    }
    if (status == GR_OK && size > 1) {
        status = gr_allreduce(comm, ranks, (size_t)size * NUMBERS, GR_F64, GR_SUM);
    }
    if (status == GR_OK) {
        *late_out = gr_lateness_judge(ranks, size, least_us);
    }
    free(ranks);
    return status;
}
