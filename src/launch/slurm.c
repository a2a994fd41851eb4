/* SPDX-License-Identifier: Apache-2.0 */
#include "launch/slurm.h"

#include "base/config.h"
#include "base/fail.h"
#include "group/slurm.h"

#include <stdio.h>
#include <string.h>

/* Which variable says how many workers each node may get. */
static const char *slots_variable(char *const *environment)
{
    bool step = gr_config_variable(environment, "SLURM_STEP_ID") !=
                NULL; /* the counts of tasks are its own */
    bool tasks = !step && gr_config_variable(environment, "SLURM_NTASKS") != NULL &&
                 gr_config_variable(environment, "SLURM_TASKS_PER_NODE") != NULL;
    return tasks ? "SLURM_TASKS_PER_NODE" : "SLURM_JOB_CPUS_PER_NODE";
}

gr_status gr_slurm_hosts(char *const *environment, gr_arena *arena, gr_host_list *hosts_out,
                         gr_diag *diag)
{
    const char *nodes = gr_config_variable(environment, "SLURM_JOB_NODELIST");
    const char *own =
        gr_config_variable(environment, "SLURMD_NODENAME"); /* where this process runs, if there */
    const char *tasks = gr_config_variable(environment, "SLURM_STEP_NUM_TASKS");
    const char *variable = slots_variable(environment),
               *slots = gr_config_variable(environment, variable);
    char name[GR_SLURM_NAME_BYTES];
    if (nodes == NULL || gr_config_variable(environment, "SLURM_JOB_ID") == NULL) {
        return GR_E_NOT_FOUND;
    }
    if (tasks != NULL && strcmp(tasks, "1") != 0) {
        return gr_fail(diag, GR_E_INVALID,
                       "run: srun starts this launcher %s times, and each would start all workers; "
                       "use srun -n 1, or no srun: gradus run reaches the nodes by itself",
                       tasks);
    }
    *hosts_out = (gr_host_list){.unsaid = 1};
    for (int i = 0; gr_slurm_node(nodes, i, name); i++) {
        int64_t count = slots != NULL ? gr_slurm_count(slots, i, GR_HOSTS_SLOTS_MAX) : 1;
        gr_host_list one;
        char entry[GR_SLURM_NAME_BYTES + 16];
        snprintf(entry, sizeof entry, "%s:%d", name, (int)count);
        if (count == 0) {
            return gr_fail(diag, GR_E_INVALID, "run: %s is \"%s\", which has no number for node %s",
                           variable, slots, name);
        }
        gr_status status = gr_host_list_parse(entry, "SLURM_JOB_NODELIST", arena, &one, diag);
        if (status != GR_OK) {
            return status;
        }
        if (hosts_out->count == GR_HOSTS_MAX) {
            return gr_fail(diag, GR_E_INVALID, "run: the allocation has more than %d nodes",
                           GR_HOSTS_MAX);
        }
        if (own != NULL) {
            one.at[0].local = strcmp(name, own) == 0;
        }
        hosts_out->at[hosts_out->count++] = one.at[0];
    }
    return hosts_out->count > 0
               ? GR_OK
               : gr_fail(diag, GR_E_INVALID,
                         "run: SLURM_JOB_NODELIST is \"%s\": that names no node", nodes);
}
