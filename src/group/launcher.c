/* SPDX-License-Identifier: Apache-2.0 */
#include "group/launcher.h"

#include "base/config.h"
#include "base/fail.h"
#include "base/hash.h"
#include "base/number.h"
#include "group/slurm.h"
#include "group/topology.h"

#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

enum {
    ANCESTORS_MAX = 64,
    PORT_FIRST = 20000, /* below the ports that kernels give to outgoing connections */
    PORT_COUNT = 10000,
    PORT_MAX = 65535
};

/* ---- Variables ------------------------------------------------------------------------------- */

static gr_status get_number(char *const *env, const char *launcher, const char *name, int64_t max,
                            int64_t *number_out, gr_diag *diag)
{
    const char *text = gr_config_variable(env, name);
    int64_t number = -1;
    if (text == NULL || gr_number_int(text, &number) != GR_NUMBER_OK || number < 0 ||
        number > max) {
        return gr_fail(diag, GR_E_INVALID,
                       "this process was started by %s, but %s is %s%s%s: it must be a number from "
                       "0 to %lld (GRADUS_BOOTSTRAP=off ignores %s)",
                       launcher, name, text != NULL ? "\"" : "", text != NULL ? text : "not set",
                       text != NULL ? "\"" : "", (long long)max, launcher);
    }
    *number_out = number;
    return GR_OK;
}

typedef struct names {
    const char *rank, *world_size, *local_rank, *local_size; /* local_size may be NULL */
} names;

static gr_status get_ranks(char *const *env, const names *of, gr_launch *launch, gr_diag *diag)
{
    const int64_t max = GR_GROUP_WORLD_MAX;
    gr_status status = get_number(env, launch->name, of->rank, max - 1, &launch->rank, diag);
    if (status == GR_OK) {
        status = get_number(env, launch->name, of->world_size, max, &launch->world_size, diag);
    }
    if (status == GR_OK) {
        status = get_number(env, launch->name, of->local_rank, max - 1, &launch->local_rank, diag);
    }
    if (status == GR_OK && of->local_size != NULL) {
        status = get_number(env, launch->name, of->local_size, max, &launch->local_size, diag);
    }
    if (status == GR_OK && launch->rank >= launch->world_size) {
        status = gr_fail(diag, GR_E_INVALID, "%s says that this is rank %lld of %lld (%s, %s)",
                         launch->name, (long long)launch->rank, (long long)launch->world_size,
                         of->rank, of->world_size);
    }
    return status;
}

static const char *text_of(char *const *env, const char *name)
{
    const char *text = gr_config_variable(env, name);
    return text != NULL ? text : "";
}

/* ---- Launchers ------------------------------------------------------------------------------- */

static gr_status read_torchrun(char *const *env, gr_launch *launch, gr_diag *diag)
{
    const names of = {"RANK", "WORLD_SIZE", "LOCAL_RANK", "LOCAL_WORLD_SIZE"};
    int64_t port = 0;
    gr_status status = get_ranks(env, &of, launch, diag);
    if (status == GR_OK) {
        status = get_number(env, launch->name, "MASTER_PORT", PORT_MAX - 1, &port, diag);
    }
    snprintf(launch->job, sizeof launch->job, "%.100s.%lld.%.20s",
             text_of(env, "TORCHELASTIC_RUN_ID"), (long long)port,
             text_of(env, "TORCHELASTIC_RESTART_COUNT"));
    snprintf(launch->host, sizeof launch->host, "%s", text_of(env, "MASTER_ADDR"));
    launch->port = (int)port + 1; /* the port itself is the store's */
    return status;
}

static gr_status read_open_mpi(char *const *env, gr_launch *launch, gr_diag *diag)
{
    const names of = {"OMPI_COMM_WORLD_RANK", "OMPI_COMM_WORLD_SIZE", "OMPI_COMM_WORLD_LOCAL_RANK",
                      "OMPI_COMM_WORLD_LOCAL_SIZE"};
    const char *job = gr_config_variable(env, "PMIX_NAMESPACE");
    snprintf(launch->job, sizeof launch->job, "%s",
             job != NULL ? job : text_of(env, "OMPI_MCA_ess_base_jobid"));
    return get_ranks(env, &of, launch, diag);
}

static gr_status read_mpich(char *const *env, gr_launch *launch, gr_diag *diag)
{
    const names of = {"PMI_RANK", "PMI_SIZE", "MPI_LOCALRANKID", "MPI_LOCALNRANKS"};
    return get_ranks(env, &of, launch, diag);
}

static gr_status read_slurm(char *const *env, gr_launch *launch, gr_diag *diag)
{
    const names of = {"SLURM_PROCID", "SLURM_STEP_NUM_TASKS", "SLURM_LOCALID", NULL};
    int64_t node = 0;
    gr_status status = get_ranks(env, &of, launch, diag);
    if (status == GR_OK) {
        status = get_number(env, launch->name, "SLURM_NODEID", GR_GROUP_WORLD_MAX, &node, diag);
    }
    launch->local_size =
        gr_slurm_count(text_of(env, "SLURM_STEP_TASKS_PER_NODE"), node, GR_GROUP_WORLD_MAX);
    snprintf(launch->job, sizeof launch->job, "%.60s.%.60s.%.20s", text_of(env, "SLURM_JOB_ID"),
             text_of(env, "SLURM_STEP_ID"), text_of(env, "SLURM_RESTART_COUNT"));
    if (!gr_slurm_node(text_of(env, "SLURM_STEP_NODELIST"), 0, launch->host)) {
        launch->host[0] = '\0'; /* unknown */
    }
    launch->port = PORT_FIRST + (int)(gr_hash64(launch->job, strlen(launch->job), 0) % PORT_COUNT);
    return status;
}

/* The innermost launcher comes first: torchrun and mpirun run inside the steps of srun as well. */
static const struct {
    const char *name, *marker, *also; /* both variables are set by this launcher alone */
    gr_status (*read)(char *const *env, gr_launch *launch, gr_diag *diag);
} launchers[] = {
    {"torchrun", "TORCHELASTIC_RUN_ID", "RANK", read_torchrun},
    {"Open MPI", "OMPI_COMM_WORLD_RANK", "OMPI_COMM_WORLD_SIZE", read_open_mpi},
    {"MPICH", "MPI_LOCALRANKID", "PMI_RANK", read_mpich},
    {"Slurm", "SLURM_STEP_NUM_TASKS", "SLURM_PROCID", read_slurm},
};

gr_status gr_launch_read(char *const *env, gr_launch *launch_out, gr_diag *diag)
{
    *launch_out = (gr_launch){0};
    for (size_t i = 0; i < sizeof launchers / sizeof launchers[0]; i++) {
        if (gr_config_variable(env, launchers[i].marker) != NULL &&
            gr_config_variable(env, launchers[i].also) != NULL) {
            launch_out->name = launchers[i].name;
            launch_out->marker = launchers[i].marker;
            return launchers[i].read(env, launch_out, diag);
        }
    }
    return GR_OK;
}

/* ---- The launcher's process ------------------------------------------------------------------ */

/* Reads the parent and the start time of a process; false: there is none. */
static bool read_stat(long pid, long *parent_out, unsigned long long *start_out)
{
    char path[64], text[1024];
    snprintf(path, sizeof path, "/proc/%ld/stat", pid);
    FILE *file = fopen(path, "re");
    if (file == NULL) {
        return false;
    }
    size_t size = fread(text, 1, sizeof text - 1, file);
    fclose(file);
    text[size] = '\0';
    const char *behind_name = strrchr(text, ')'); /* the name may hold blanks */
    return behind_name != NULL &&
           sscanf(behind_name + 1,
                  " %*c %ld %*d %*d %*d %*d %*u %*u %*u %*u %*u %*u %*u %*d %*d %*d %*d %*d %*d "
                  "%llu",
                  parent_out, start_out) == 2;
}

/* An environment that may not be read belongs to somebody else: to the launcher. */
static bool has_variable(long pid, const char *name)
{
    char path[64], *entry = NULL;
    size_t capacity = 0, length = strlen(name);
    bool found = false;
    snprintf(path, sizeof path, "/proc/%ld/environ", pid);
    FILE *file = fopen(path, "re");
    while (file != NULL && !found && getdelim(&entry, &capacity, '\0', file) > 0) {
        found = strncmp(entry, name, length) == 0 && entry[length] == '=';
    }
    free(entry);
    if (file != NULL) {
        fclose(file);
    }
    return found;
}

uint64_t gr_launch_local_id(const char *marker)
{
    long pid = getppid(), parent = 0;
    unsigned long long start = 0;
    for (int i = 0; i < ANCESTORS_MAX && read_stat(pid, &parent, &start); i++) {
        if (parent <= 0 || !has_variable(pid, marker)) {
            break;
        }
        pid = parent;
    }
    const uint64_t facts[2] = {(uint64_t)pid, start};
    return gr_hash64(facts, sizeof facts, 0);
}
