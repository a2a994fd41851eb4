/* SPDX-License-Identifier: Apache-2.0 */
/* How long a worker takes from the start of main to being in its group, on each rank:
 *
 *   gradus run -np 4 -- build/bench/bench_join */
#include "base/clock.h"

#include <gradus/gradus.h>
#include <stdio.h>

int main(void)
{
    gr_comm *comm;
    gr_diag diag;
    int64_t begin_ns = gr_now_ns();
    if (gr_comm_create(NULL, &comm, &diag) != GR_OK) {
        fprintf(stderr, "bench_join: %s\n", diag.text);
        return 1;
    }
    printf("in the group after %.1f ms\n", (double)(gr_now_ns() - begin_ns) * 1e-6);
    gr_comm_destroy(comm);
    return 0;
}
