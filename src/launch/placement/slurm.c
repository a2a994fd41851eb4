/* SPDX-License-Identifier: Apache-2.0 */
#include "launch/slurm.h"
#include "launch/placement/placement.h"

#include <stdio.h>

/* A step of one task on the node. It shares the node with the launcher's own step (--overlap), and
 * the agent there binds the workers, not Slurm. Without --unbuffered output stays in Slurm until a
 * line ends, and what is carried has no lines. */
static void find_words(const gr_remote_config *config, gr_remote_words *words)
{
    static const char *const first[] = {
        "srun",       "--nodes=1",           "--ntasks=1",   "--overlap",
        "--mpi=none", "--cpu-bind=none",     "--export=ALL", "--unbuffered",
        "--quiet",    "--kill-on-bad-exit=0"};
    for (size_t i = 0; i < sizeof first / sizeof first[0]; i++) {
        words->at[words->count++] = first[i];
    }
    snprintf(words->host, sizeof words->host, "--nodelist=%s", config->host);
    words->at[words->count++] = words->host;
    words->at[words->count++] = config->program;
    words->at[words->count++] = "agent";
    words->at[words->count++] = "--stdio";
}

static void start(const gr_remote_config *config)
{
    static const gr_remote_shell shell = {
        .name = "srun", .package = "slurm-client", .find_words = find_words};
    gr_remote_config with = *config;
    with.shell = &shell;
    gr_remote_run(&with);
}

static void watch(const gr_placement_loss *loss, gr_diag *diag)
{
    char advice[GR_DIAG_TEXT_BYTES];
    snprintf(advice, sizeof advice,
             "\"srun --overlap -N1 -n1 -w %s %s version\" must work in this allocation "
             "(--remote-program; --no-slurm for this host alone)",
             loss->host->name, loss->program);
    gr_placement_tell_loss(loss, advice, diag);
}

const gr_placement gr_placement_slurm = {
    .name = "Slurm", .list = gr_slurm_hosts, .start = start, .watch = watch};
