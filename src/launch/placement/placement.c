/* SPDX-License-Identifier: Apache-2.0 */
#include "launch/placement/placement.h"

#include "base/fail.h"

#include <stdio.h>

const gr_placement *const gr_placements[] = {&gr_placement_here, &gr_placement_joined,
                                             &gr_placement_slurm, &gr_placement_ssh, NULL};

const gr_placement *gr_placement_of(const gr_host *host, const gr_placement *other)
{
    for (const gr_placement *const *at = gr_placements; *at != NULL; at++) {
        if ((*at)->takes != NULL && (*at)->takes(host)) {
            return *at;
        }
    }
    return other;
}

gr_status gr_placement_list(char *const *environment, gr_arena *arena, gr_host_list *hosts_out,
                            const gr_placement **placement_out, gr_diag *diag)
{
    gr_status status = GR_E_NOT_FOUND;
    for (const gr_placement *const *at = gr_placements; *at != NULL && status == GR_E_NOT_FOUND;
         at++) {
        if ((*at)->list != NULL) {
            *placement_out = *at;
            status = (*at)->list(environment, arena, hosts_out, diag);
        }
    }
    return status;
}

void gr_placement_describe_loss(const gr_placement_loss *loss, gr_diag *diag)
{
    const char *words = loss->words[0] != '\0' ? loss->words : "the relay to it was killed";
    char advice[GR_DIAG_TEXT_BYTES] = "";
    if (loss->shell != NULL) {
        snprintf(advice, sizeof advice, "; \"%s %s %s version\" %s", loss->shell->trial,
                 loss->host->name, loss->program, loss->shell->advice);
    }
    if (loss->starting) {
        (void)gr_fail(diag, GR_E_NOT_FOUND, "host %s cannot be used: %s%s%s", loss->host->name,
                      words, loss->going ? "" : "; nothing was started", advice);
    } else {
        (void)gr_fail(diag, GR_E_PEER_LOST, "host %s was lost with %s: %s", loss->host->name,
                      loss->what, words);
    }
}
