/* SPDX-License-Identifier: Apache-2.0 */
#include "base/fail.h"
#include "launch/placement/placement.h"

static bool takes(const gr_host *host)
{
    return host->local;
}

static void start(const gr_remote_config *config)
{
    gr_agent_run(&config->agent);
}

static void watch(const gr_placement_loss *loss, gr_diag *diag)
{
    (void)gr_fail(diag, GR_E_IO,
                  "the process that looks after %s (gradus-agent, pid %d) was killed, and %s with "
                  "it",
                  loss->serves ? loss->what : "the workers", (int)loss->pid,
                  loss->serves ? "it" : "they");
}

const gr_placement gr_placement_here = {
    .name = "this host", .here = true, .takes = takes, .start = start, .watch = watch};
