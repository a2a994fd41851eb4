/* SPDX-License-Identifier: Apache-2.0 */
#include "launch/slurm.h"
#include "launch/placement/placement.h"

#include <stdio.h>

/* A step of one task on the node. It shares the node with the launcher's own step (--overlap), and
 * the agent there binds the workers, not Slurm. Without --unbuffered output stays in Slurm until a
 * line ends, and what is carried has no lines. */
static const char *const first[] = {"srun",
                                    "--nodes=1",
                                    "--ntasks=1",
                                    "--overlap",
                                    "--mpi=none",
                                    "--cpu-bind=none",
                                    "--export=ALL",
                                    "--unbuffered",
                                    "--quiet",
                                    "--kill-on-bad-exit=0",
                                    NULL};

static void find_words(const gr_remote_config *config, gr_remote_words *words)
{
    snprintf(words->host, sizeof words->host, "--nodelist=%s", config->host);
    words->at[words->count++] = words->host;
    words->at[words->count++] = config->program;
    words->at[words->count++] = "agent";
    words->at[words->count++] = "--stdio";
}

static const gr_remote_shell shell = {
    .name = "srun",
    .package = "slurm-client",
    .trial = "srun --overlap -N1 -n1 -w",
    .advice = "must work in this allocation (--remote-program; --no-slurm for this host alone)",
    .first = first,
    .find_words = find_words};

const gr_placement gr_placement_slurm = {.name = "Slurm",
                                         .shell = &shell,
                                         .list = gr_slurm_hosts,
                                         .start = gr_remote_run,
                                         .watch = gr_placement_describe_loss};
