/* SPDX-License-Identifier: Apache-2.0 */
#include "train/job/job_internal.h"

#include "base/fail.h"
#include "doc/config_node.h"
#include "train/early_stopping.h"

#include <stdlib.h>
#include <string.h>
#include <unistd.h>

const gr_node *gr_job_setting(const gr_node *section, const char *key)
{
    const gr_node *node = gr_node_get(section, key);
    return node != NULL ? node : section;
}

/* Defaults, then the file's part, then the environment. */
static gr_status read_part(gr_job *job, const gr_config_table *table, const gr_node *map,
                           void *config, gr_diag *diag)
{
    gr_status status = gr_config_defaults(table, config, &job->arena, diag);
    if (status == GR_OK && map != NULL) {
        status = gr_config_from_node(table, config, map, &job->arena, diag);
    }
    if (status == GR_OK) {
        status = gr_config_from_env(table, config, environ, &job->arena, diag);
    }
    return status;
}

static gr_status read_link(gr_job *job, const char *link, gr_diag *diag)
{
    for (const gr_config_field *field = gr_distribution_config_table.fields; link != NULL;
         field++) {
        if (field->key == NULL) {
            return gr_fail(diag, GR_E_BUG, "the table of the distribution part has no link");
        }
        if (strcmp(field->key, "link") == 0) {
            return gr_config_set(field, &job->distribution, link, "--link", &job->arena, diag);
        }
    }
    return GR_OK;
}

static gr_status check_type(const gr_job *job, gr_diag *diag)
{
    static const char *const names[] = {"Job", "MPI", "TF"};
    int type = job->distribution.distribution_type;
    if (type == 0) {
        return GR_OK;
    }
    return gr_node_fail(gr_job_setting(job->config.distribution, "distribution_type"), diag,
                        GR_E_UNSUPPORTED,
                        "%s jobs belong to Kubernetes, where this version does not start anything; "
                        "remove the line or set Job to start workers on this host",
                        names[type]);
}

/* "examples/digits/cnn.yaml" -> "cnn" */
static char *name_of(gr_job *job)
{
    const char *slash = strrchr(job->path, '/');
    char *name = gr_arena_strdup(&job->arena, slash != NULL ? slash + 1 : job->path);
    char *dot = name != NULL ? strrchr(name, '.') : NULL;
    if (dot != NULL && dot != name) {
        *dot = '\0';
    }
    return name;
}

static gr_status resolve_names(gr_job *job, const gr_job_overrides *overrides, gr_diag *diag)
{
    if (job->config.name == NULL || job->config.name[0] == '\0') {
        job->config.name = name_of(job);
    }
    const gr_node *node = gr_node_get(gr_doc_root(job->doc), "output");
    if (overrides->output != NULL) {
        job->config.output = gr_arena_strdup(&job->arena, overrides->output);
        node = NULL;
    } else if (job->config.output == NULL) {
        job->config.output = gr_arena_printf(&job->arena, "out/%s",
                                             job->config.name != NULL ? job->config.name : "");
    }
    if (job->config.name == NULL || job->config.output == NULL) {
        return gr_fail(diag, GR_E_NO_MEMORY, "%s: no memory for the job", job->path);
    }
    return gr_job_check_output("output", job->config.output, node, diag);
}

bool gr_job_writes_checkpoints(const gr_job *job)
{
    return job->checkpoint.every != NULL || job->checkpoint.keep_best;
}

static gr_status resolve_checkpoint_names(gr_job *job, const gr_job_overrides *overrides,
                                          gr_diag *diag)
{
    gr_checkpoint_config *checkpoint = &job->checkpoint;
    const gr_node *node = gr_node_get(job->config.checkpoint, "to");
    if (overrides->checkpoint_every != NULL) {
        checkpoint->every = gr_arena_strdup(&job->arena, overrides->checkpoint_every);
    }
    if (overrides->checkpoint_to != NULL) {
        checkpoint->to = gr_arena_strdup(&job->arena, overrides->checkpoint_to);
        node = NULL;
    } else if (checkpoint->to == NULL) {
        checkpoint->to = gr_arena_printf(&job->arena, "%s/checkpoints", job->config.output);
    }
    if (checkpoint->to == NULL) {
        return gr_fail(diag, GR_E_NO_MEMORY, "%s: no memory for the job", job->path);
    }
    return gr_job_writes_checkpoints(job)
               ? gr_job_check_output("checkpoint", checkpoint->to, node, diag)
               : GR_OK;
}

static gr_status read_parts(gr_job *job, const gr_job_overrides *overrides, gr_diag *diag)
{
    const gr_node *root = gr_doc_root(job->doc);
    if (root->kind != GR_NODE_MAP) {
        return gr_node_fail(root, diag, GR_E_INVALID,
                            "a job file holds keys and values (model, data, optimizer, ...); this "
                            "one is %s",
                            root->kind == GR_NODE_NULL ? "empty" : "something else");
    }
    gr_status status = read_part(job, &gr_job_config_table, root, &job->config, diag);
    if (status == GR_OK) {
        status = read_part(job, &gr_data_config_table, job->config.data, &job->data, diag);
    }
    if (status == GR_OK) {
        job->data.section = job->config.data;
        status = gr_data_settle(&job->data, &job->arena, diag);
    }
    if (status == GR_OK) {
        status = read_part(job, &gr_optimizer_config_table, job->config.optimizer, &job->optimizer,
                           diag);
    }
    if (status == GR_OK) {
        status = read_part(job, &gr_distribution_config_table, job->config.distribution,
                           &job->distribution, diag);
    }
    if (status == GR_OK) {
        const gr_node *outer = job->distribution.outer;
        status = read_part(job, &gr_outer_config_table, outer, &job->outer, diag);
        job->outer.wanted = outer != NULL && outer->kind != GR_NODE_NULL;
    }
    if (status == GR_OK) {
        status = read_part(job, &gr_checkpoint_config_table, job->config.checkpoint,
                           &job->checkpoint, diag);
    }
    if (status == GR_OK) {
        status = read_part(job, &gr_early_stopping_config_table, job->config.early_stopping,
                           &job->early_stopping, diag);
    }
    if (status == GR_OK) {
        status = read_link(job, overrides->link, diag);
    }
    if (status == GR_OK) {
        status = check_type(job, diag);
    }
    if (status == GR_OK) {
        status = gr_optimizer_settle(&job->optimizer, job->config.optimizer, &job->arena, diag);
    }
    if (status == GR_OK && job->config.data == NULL) {
        status = gr_node_fail(root, diag, GR_E_INVALID,
                              "the job has no data; add data: with format and file");
    }
    return status;
}

gr_status gr_job_open(const char *path, const gr_job_overrides *overrides, gr_job **job_out,
                      gr_diag *diag)
{
    gr_job *job = calloc(1, sizeof *job);
    if (job == NULL) {
        return gr_fail(diag, GR_E_NO_MEMORY, "%s: no memory for the job", path);
    }
    gr_arena_init(&job->arena, GR_JOB_ARENA_BYTES_MAX);
    gr_status status = GR_OK;
    job->path = gr_arena_strdup(&job->arena, path);
    if (job->path == NULL) {
        status = gr_fail(diag, GR_E_NO_MEMORY, "%s: no memory for the job", path);
    }
    if (status == GR_OK) {
        status = gr_doc_read_yaml(path, &job->doc, diag);
    }
    for (size_t i = 0; status == GR_OK && overrides->set != NULL && overrides->set[i]; i++) {
        status = gr_doc_set(job->doc, "--set", overrides->set[i], diag);
    }
    if (status == GR_OK) {
        status = read_parts(job, overrides, diag);
    }
    /* What costs nothing to find out comes before the data is read. */
    if (status == GR_OK) {
        status = gr_job_resolve(job, overrides, diag);
    }
    if (status == GR_OK) {
        status = resolve_names(job, overrides, diag);
    }
    if (status == GR_OK) {
        status = resolve_checkpoint_names(job, overrides, diag);
    }
    if (status == GR_OK) {
        status =
            gr_dataset_open(&job->data, job->path, (uint64_t)job->config.seed, &job->dataset, diag);
    }
    if (status == GR_OK) {
        status = gr_job_resolve_steps(job, diag);
    }
    if (status == GR_OK) {
        status = gr_job_resolve_sync(job, diag);
    }
    if (status == GR_OK) {
        status = gr_job_resolve_checkpoint(job, diag);
    }
    if (status == GR_OK) {
        status = gr_job_resolve_model(job, diag);
    }
    if (status == GR_OK) {
        status = gr_early_stopping_resolve(job, diag);
    }
    if (status != GR_OK) {
        gr_job_close(job);
        return status;
    }
    *job_out = job;
    return GR_OK;
}

void gr_job_close(gr_job *job)
{
    if (job == NULL) {
        return;
    }
    gr_dataset_close(job->dataset);
    gr_doc_destroy(job->doc);
    gr_arena_fini(&job->arena);
    free(job);
}
