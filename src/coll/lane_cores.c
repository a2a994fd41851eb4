/* SPDX-License-Identifier: Apache-2.0 */

/* Where ranks share cores, they wait for the core that has most of them: eight that are seven and
 * one take twice the time of four and four, and the kernel may leave them so for good, since all
 * are always ready to run. All lines of an operation say where their ranks were, so all ranks agree
 * on whether one should go, and which: that one lets itself be put elsewhere among the cores it may
 * use, all of which it may use as before. */

#include "coll/lane_internal.h"

#include <sched.h>

/* Operations from one look to the next: twice as many when a rank is to go, since the kernel may
 * have a reason (other programs) to put it back each time; half as many when all is well. */
enum { LOOK_MIN = 64, LOOK_MAX = 1 << 20 };

static int ranks_on(const gr_lane *lane, int core)
{
    int count = 0;
    for (int peer = 0; peer < lane->size; peer++) {
        count += lane->peers[peer].core == core;
    }
    return count;
}

void gr_lane_look_at_cores(gr_lane *lane, uint32_t seq)
{
    if ((int32_t)(seq - lane->look_at) < 0) {
        return;
    }
    int most = 0, last = 0; /* of the ranks on the core that has most */
    for (int peer = 0; peer < lane->size; peer++) {
        int count = ranks_on(lane, lane->peers[peer].core);
        if (count >= most) {
            most = count;
            last = peer;
        }
    }
    bool crowded = (uint32_t)(most - 1) * lane->cores >= (uint32_t)lane->size;
    uint32_t next = crowded ? lane->look_every * 2 : lane->look_every / 2;
    lane->look_every = next < LOOK_MIN ? LOOK_MIN : next > LOOK_MAX ? LOOK_MAX : next;
    lane->look_at = seq + lane->look_every;
    lane->must_go = crowded && last == lane->rank;
}

void gr_lane_go(gr_lane *lane)
{
    cpu_set_t may, there;
    lane->must_go = false;
    if (sched_getaffinity(0, sizeof may, &may) != 0) {
        return;
    }
    int to = -1, least = ranks_on(lane, sched_getcpu()) - 1;
    for (int core = 0; core < CPU_SETSIZE; core++) {
        if (CPU_ISSET((size_t)core, &may) && ranks_on(lane, core) < least) {
            least = ranks_on(lane, core);
            to = core;
        }
    }
    if (to >= 0) {
        CPU_ZERO(&there);
        CPU_SET((size_t)to, &there);
        if (sched_setaffinity(0, sizeof there, &there) == 0) {
            (void)sched_setaffinity(0, sizeof may, &may);
        }
    }
}
