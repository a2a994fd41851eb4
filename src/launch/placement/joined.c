/* SPDX-License-Identifier: Apache-2.0 */
#include "base/fail.h"
#include "launch/join.h"
#include "launch/placement/placement.h"

static bool takes(const gr_host *host)
{
    return host->tls != NULL;
}

static void watch(const gr_placement_loss *loss, gr_diag *diag)
{
    if (!loss->starting) {
        gr_placement_describe_loss(loss, diag);
        return;
    }
    (void)gr_fail(diag, GR_E_PEER_LOST, "the agent that joined from %s is gone: %s",
                  loss->host->name, loss->words[0] != '\0' ? loss->words : "its relay was killed");
}

/* Its connection was taken by the process that was forked, or nobody needs it. */
const gr_placement gr_placement_joined = {.name = "joined agents",
                                          .once = true,
                                          .takes = takes,
                                          .start = gr_remote_run,
                                          .stop = gr_join_refuse,
                                          .watch = watch};
