/* SPDX-License-Identifier: Apache-2.0 */

/* From the text of a job file to settings. */

#include "train/job/job_internal.h"

#include "base/fail.h"
#include "doc/config_node.h"

#include <stdlib.h>
#include <string.h>
#include <unistd.h>

const gr_job_part gr_job_parts[GR_JOB_PARTS] = {
    {&gr_job_config_table, offsetof(gr_job, config), offsetof(gr_job, root)},
    {&gr_data_config_table, offsetof(gr_job, data), offsetof(gr_job, config.data)},
    {&gr_optimizer_config_table, offsetof(gr_job, optimizer), offsetof(gr_job, config.optimizer)},
    {&gr_distribution_config_table, offsetof(gr_job, distribution),
     offsetof(gr_job, config.distribution)},
    {&gr_outer_config_table, offsetof(gr_job, outer), offsetof(gr_job, distribution.outer)},
    {&gr_checkpoint_config_table, offsetof(gr_job, checkpoint),
     offsetof(gr_job, config.checkpoint)},
    {&gr_early_stopping_config_table, offsetof(gr_job, early_stopping),
     offsetof(gr_job, config.early_stopping)}};

const gr_job_part *gr_job_part_at(size_t offset)
{
    for (int i = 0; i < GR_JOB_PARTS; i++) {
        if (gr_job_parts[i].section == offset) {
            return &gr_job_parts[i];
        }
    }
    return NULL;
}

bool gr_job_has_part(const gr_job *job, const gr_config_table *table)
{
    return table == &gr_outer_config_table            ? job->outer.wanted
           : table == &gr_early_stopping_config_table ? job->early_stopping.wanted
                                                      : true;
}

gr_job *gr_job_create(const char *path, gr_diag *diag)
{
    gr_job *job = calloc(1, sizeof *job);
    if (job != NULL) {
        gr_arena_init(&job->arena, GR_JOB_ARENA_BYTES_MAX);
        job->path = gr_arena_strdup(&job->arena, path);
    }
    if (job == NULL || job->path == NULL) {
        (void)gr_fail(diag, GR_E_NO_MEMORY, "%s: no memory for the job", path);
        gr_job_close(job);
        return NULL;
    }
    return job;
}

static bool is_present(const gr_node *part)
{
    return part != NULL && part->kind != GR_NODE_NULL;
}

gr_status gr_job_read_parts(gr_job *job, char *const *environment, gr_diag *diag)
{
    for (int i = 0; i < GR_JOB_PARTS; i++) {
        const gr_config_table *table = gr_job_parts[i].table;
        void *config = (char *)job + gr_job_parts[i].config;
        gr_status status = gr_config_defaults(table, config, &job->arena, diag);
        if (status == GR_OK) {
            status = gr_config_from_node(table, config, gr_job_section(job, &gr_job_parts[i]),
                                         &job->arena, diag);
        }
        if (status == GR_OK && environment != NULL) {
            status = gr_config_from_env(table, config, environment, &job->arena, diag);
        }
        if (status != GR_OK) {
            return status;
        }
    }
    job->outer.wanted = is_present(job->distribution.outer);
    job->early_stopping.wanted = is_present(job->config.early_stopping);
    job->data.section = job->config.data;
    gr_status status = gr_config_settle(&gr_data_config_table, "format", &job->data,
                                        job->data.section, &job->arena, diag);
    return status == GR_OK
               ? gr_optimizer_settle(&job->optimizer, job->config.optimizer, &job->arena, diag)
               : status;
}

static gr_status set_link(gr_job *job, const char *link, gr_diag *diag)
{
    const gr_config_field *field = gr_distribution_config_table.fields;
    while (link != NULL && strcmp(field->key, "link") != 0) {
        field++;
    }
    return link == NULL
               ? GR_OK
               : gr_config_set(field, &job->distribution, link, "--link", &job->arena, diag);
}

static void override(const char **setting, const char *flag)
{
    *setting = flag != NULL ? flag : *setting;
}

static gr_status parse(gr_job *job, const gr_job_overrides *overrides, gr_diag *diag)
{
    gr_status status = gr_doc_read_yaml(job->path, &job->doc, diag);
    for (size_t i = 0; status == GR_OK && overrides->set != NULL && overrides->set[i]; i++) {
        status = gr_doc_set(job->doc, "--set", overrides->set[i], diag);
    }
    if (status != GR_OK) {
        return status;
    }
    job->root = gr_doc_root(job->doc);
    if (job->root->kind != GR_NODE_MAP) {
        return gr_node_fail(job->root, diag, GR_E_INVALID,
                            "a job file holds keys and values (model, data, optimizer, ...); this "
                            "one is %s",
                            job->root->kind == GR_NODE_NULL ? "empty" : "something else");
    }
    status = gr_job_read_parts(job, environ, diag);
    if (status == GR_OK) {
        status = set_link(job, overrides->link, diag);
    }
    job->run = overrides->run;
    job->writes_nothing = overrides->writes_nothing;
    job->trains_nothing = overrides->trains_nothing;
    override(&job->config.output, overrides->output);
    override(&job->checkpoint.every, overrides->checkpoint_every);
    override(&job->checkpoint.to, overrides->checkpoint_to);
    return status;
}

gr_status gr_job_parse(const char *path, const gr_job_overrides *overrides, gr_job **job_out,
                       gr_diag *diag)
{
    gr_job *job = gr_job_create(path, diag);
    gr_status status = job != NULL ? parse(job, overrides, diag) : GR_E_NO_MEMORY;
    if (status != GR_OK) {
        gr_job_close(job);
        return status;
    }
    *job_out = job;
    return GR_OK;
}

gr_status gr_job_open(const char *path, const gr_job_overrides *overrides, gr_job **job_out,
                      gr_diag *diag)
{
    gr_job *job = NULL;
    gr_status status = gr_job_parse(path, overrides, &job, diag);
    if (status == GR_OK) {
        status = gr_job_resolve(job, diag);
    }
    if (status == GR_OK) {
        status = gr_job_bind(job, diag);
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
