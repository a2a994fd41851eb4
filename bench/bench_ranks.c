/* SPDX-License-Identifier: Apache-2.0 */
/* A rank among many: joins, meets all others in a barrier, sums over all of them, and says how much
 * memory of its own it has then (smaps_rollup), less what it had before it joined:
 *
 *   gradus run -np 256 -- build/bench/bench_ranks
 *
 * bench/many_ranks.py runs it. */
#include "base/clock.h"

#include <gradus/gradus.h>
#include <stdio.h>
#include <stdlib.h>

enum { COUNT = 1024 };

static long private_kib(void)
{
    char line[256];
    long sum = 0, value = 0;
    FILE *file = fopen("/proc/self/smaps_rollup", "re");
    while (file && fgets(line, sizeof line, file)) {
        if (sscanf(line, "Private_Clean: %ld", &value) == 1 ||
            sscanf(line, "Private_Dirty: %ld", &value) == 1) {
            sum += value;
        }
    }
    if (file) {
        fclose(file);
    }
    return sum;
}

int main(void)
{
    static float values[COUNT];
    gr_comm *comm;
    gr_diag diag;
    long before_kib = private_kib();
    int64_t begin_ns = gr_now_ns();
    if (gr_comm_create(NULL, &comm, &diag) != GR_OK) {
        fprintf(stderr, "bench_ranks: %s\n", diag.text);
        return 1;
    }
    int64_t joined_ns = gr_now_ns();
    int size = gr_comm_size(comm);
    for (int i = 0; i < COUNT; i++) {
        values[i] = (float)(gr_comm_rank(comm) + i);
    }
    if (gr_barrier(comm) != GR_OK || gr_allreduce(comm, values, COUNT, GR_F32, GR_SUM) != GR_OK) {
        fprintf(stderr, "bench_ranks: %s\n", gr_comm_diag(comm)->text);
        return 1;
    }
    int64_t done_ns = gr_now_ns();
    for (int i = 0; i < COUNT; i++) {
        if (values[i] != (float)size * (float)(size - 1) / 2 + (float)size * (float)i) {
            fprintf(stderr, "bench_ranks: element %d is %g\n", i, (double)values[i]);
            return 1;
        }
    }
    long added_kib = private_kib() - before_kib;
    /* Pages of a library that is left to one rank alone would count as its own. */
    if (gr_barrier(comm) != GR_OK) {
        fprintf(stderr, "bench_ranks: %s\n", gr_comm_diag(comm)->text);
        return 1;
    }
    printf("joined %.1f ms operations %.1f ms private %ld KiB\n",
           (double)(joined_ns - begin_ns) * 1e-6, (double)(done_ns - joined_ns) * 1e-6, added_kib);
    gr_comm_destroy(comm);
    return 0;
}
