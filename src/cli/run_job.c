/* SPDX-License-Identifier: Apache-2.0 */

/* What the job file of `gradus run` says. */

#include "cli/run.h"

#include "base/fail.h"
#include "base/file.h"
#include "base/hash.h"
#include "doc/doc.h"
#include "train/checkpoint/checkpoint.h"
#include "train/compress.h"
#include "train/strategy/strategy.h"

#include <stdio.h>
#include <stdlib.h>
#include <sys/stat.h>

enum { RESTARTS = 3 };

gr_status gr_run_find_checkpoint(gr_job *job, const gr_log *log, gr_arena *arena, gr_diag *diag)
{
    gr_checkpoint *found = NULL;
    gr_status status = gr_checkpoint_find(job, log, &found, diag);
    if (status != GR_OK || found == NULL) {
        return status;
    }
    const gr_checkpoint_info *info = gr_checkpoint_info_of(found);
    char path[PATH_MAX];
    if (info->shards != job->shards) {
        job->run.checkpoint_shards = info->shards;
        status = gr_job_resolve(job, diag);
        if (status == GR_OK) {
            status = gr_checkpoint_fits(job, found, diag);
        }
    }
    if (status == GR_OK) {
        status = gr_checkpoint_path(job->checkpoint.to, info->step, path, sizeof path, diag);
    }
    gr_checkpoint_close(found);
    if (status != GR_OK) {
        return status;
    }
    job->run.resume = gr_arena_strdup(arena, path);
    return job->run.resume != NULL ? GR_OK : gr_fail(diag, GR_E_NO_MEMORY, "no memory for a path");
}

/* `before` where the path names no file that can be read once more. */
static uint64_t add_content(uint64_t before, const char *path)
{
    char *text = NULL;
    size_t size_bytes = 0;
    struct stat info;
    if (stat(path, &info) != 0 || !S_ISREG(info.st_mode) ||
        gr_file_read(path, GR_DOC_BYTES_MAX, &text, &size_bytes, NULL) != GR_OK) {
        return before;
    }
    uint64_t content = gr_hash64(text, size_bytes, before);
    free(text);
    return content != 0 ? content : 1;
}

uint64_t gr_run_content(const gr_cli_run *run)
{
    uint64_t content = 0;
    if (run->job_path != NULL) {
        return add_content(0, run->job_path);
    }
    for (char *const *word = run->command; *word != NULL; word++) {
        content = add_content(content, *word);
    }
    return content;
}

/* Which checkpoint the job goes on from, if it does. */
static gr_status find_checkpoint(gr_cli_run *run, gr_job *job, gr_diag *diag)
{
    gr_status status = gr_checkpoint_may_start(job, run->options.resume, diag);
    if (status == GR_OK && run->options.resume) {
        status = gr_run_find_checkpoint(job, &run->log, &run->arena, diag);
        run->resume = job->run.resume;
    }
    return status;
}

/* With how few workers a job goes on. What a shard keeps to itself is known to one worker alone. */
static gr_status may_lose(gr_cli_run *run, const gr_job *job, gr_diag *diag)
{
    gr_run_options *options = &run->options;
    const gr_distribution_config *d = &job->distribution;
    bool topk = d->compression == GR_COMPRESSION_TOPK && !gr_job_is_asynchronous(job);
    const char *keeps = topk                              ? "compression: topk"
                        : d->local_state == GR_LOCAL_KEEP ? "local_state: keep"
                                                          : NULL;
    options->workers_max = job->workers_max;
    if (keeps != NULL && (options->spares > 0 || options->workers_max > options->workers)) {
        return gr_fail(diag, GR_E_INVALID,
                       "run: with %s no worker can come later, since each keeps what nobody else "
                       "has; leave out %s",
                       keeps,
                       options->spares > 0 ? "--spare" : "--max-workers (number_of_workers: max)");
    }
    if (keeps != NULL && options->workers_min > 0 && options->workers_min < options->workers) {
        return gr_fail(
            diag, GR_E_INVALID,
            "run: --min-workers %lld: with %s a job cannot go on without a worker, since each "
            "keeps what nobody else has; leave one of the two out, and use checkpoints",
            (long long)options->workers_min, keeps);
    }
    if (options->workers_min == 0 && keeps == NULL) {
        options->workers_min = job->workers_min;
    }
    if (options->restarts < 0) {
        options->restarts = RESTARTS;
    }
    return GR_OK;
}

/* How many parameter servers are started for it. */
static gr_status find_servers(gr_cli_run *run, const gr_job *job, gr_diag *diag)
{
    gr_run_options *options = &run->options;
    bool said = options->servers > 0;
    options->servers = said ? options->servers : job->distribution.servers;
    if (options->replicas < 0) {
        options->replicas = job->distribution.server_replicas;
    }
    if (options->servers > 0 && !job->strategy->needs_servers) {
        return gr_fail(diag, GR_E_INVALID,
                       "run: %s %lld: the strategy of \"%s\" has no use for parameter servers; "
                       "leave them out, or say strategy: ps",
                       said ? "--servers" : "servers:", (long long)options->servers, run->job_path);
    }
    return options->dry_run ? GR_OK : gr_job_check_servers(job, options->servers > 0, diag);
}

/* Data and checkpoint, which a job that is only explained can do without. */
static gr_status bind_job(gr_cli_run *run, gr_job *job, gr_diag *diag)
{
    const gr_run_options *options = &run->options;
    if (options->dry_run && options->job.run.json && !options->resume) {
        return GR_OK;
    }
    gr_status status = gr_job_bind(job, diag);
    if (status == GR_E_NOT_FOUND && options->dry_run && !options->resume) {
        snprintf(run->unbound, sizeof run->unbound, "%s", diag->text);
        return GR_OK;
    }
    return status == GR_OK ? find_checkpoint(run, job, diag) : status;
}

/* Where the workers would run; NULL: on one host. */
static gr_status place_workers(const gr_cli_run *run, const gr_job *job, gr_topology **topology_out,
                               gr_diag *diag)
{
    gr_host_list hosts = run->hosts;
    *topology_out = NULL;
    if (hosts.count < 2) {
        return GR_OK;
    }
    uint64_t *host_ids = calloc((size_t)job->workers, sizeof *host_ids);
    gr_status status =
        host_ids != NULL ? gr_host_list_deal(&hosts, job->workers, diag) : GR_E_NO_MEMORY;
    for (int i = 0; status == GR_OK && i < hosts.count; i++) {
        for (int k = 0; k < hosts.at[i].workers; k++) {
            host_ids[hosts.at[i].first + k] = (uint64_t)i;
        }
    }
    if (status == GR_OK) {
        status = gr_topology_create(host_ids, job->workers, topology_out);
    }
    free(host_ids);
    return status == GR_E_NO_MEMORY
               ? gr_fail(diag, status, "no memory for %d workers", job->workers)
               : status;
}

/* What --dry-run says of the job to people. */
static gr_status explain(gr_cli_run *run, const gr_job *job, gr_diag *diag)
{
    gr_topology *topology;
    gr_status status = place_workers(run, job, &topology, diag);
    if (status == GR_OK) {
        status = gr_job_print(job, topology, run->unbound, stdout, diag);
        gr_topology_destroy(topology);
    }
    if (run->resume != NULL) {
        printf("goes on from %s\n", run->resume);
    }
    return status == GR_OK && job->strategy->needs_servers && job->dataset != NULL
               ? gr_run_advise(run, job, diag)
               : status;
}

static gr_job_overrides overrides_of(const gr_cli_run *run)
{
    const gr_run_options *options = &run->options;
    gr_job_overrides overrides = options->job;
    overrides.run.workers = options->workers;
    overrides.run.workers_max = options->workers_max;
    overrides.run.default_workers = gr_run_room(run);
    overrides.run.json = options->job.run.json && !options->dry_run;
    overrides.run.chaos_after = (int64_t)run->past_step;
    overrides.link =
        options->link == GR_RUN_LINK_OF_JOB ? NULL : gr_run_link_choices[options->link];
    return overrides;
}

gr_status gr_run_check_job_file(const gr_cli_run *run, gr_diag *diag)
{
    const gr_job_overrides overrides = overrides_of(run);
    struct stat info;
    gr_job *job = NULL;
    if (stat(run->job_path, &info) == 0 && !S_ISREG(info.st_mode)) {
        return GR_OK; /* a pipe is read once */
    }
    gr_status status = gr_job_parse(run->job_path, &overrides, &job, diag);
    if (status == GR_OK) {
        gr_job_close(job);
    }
    return status;
}

gr_status gr_run_read_job(gr_cli_run *run, gr_diag *diag)
{
    gr_run_options *options = &run->options;
    const gr_job_overrides overrides = overrides_of(run);
    gr_job *job = NULL;
    run->content = gr_run_content(run);
    gr_status status = gr_job_parse(run->job_path, &overrides, &job, diag);
    if (status == GR_OK) {
        status = gr_job_resolve(job, diag);
    }
    if (status == GR_OK) {
        status = bind_job(run, job, diag);
    }
    if (status == GR_OK) {
        status = find_servers(run, job, diag);
    }
    if (status == GR_OK) {
        options->workers = job->workers;
        status = may_lose(run, job, diag);
        options->link = GR_RUN_LINK_OF_JOB + 1 + job->distribution.link;
        run->inexact = !job->distribution.exact;
        run->writes = gr_job_writes_checkpoints(job);
        run->output =
            job->config.output != NULL ? gr_arena_strdup(&run->arena, job->config.output) : NULL;
        options->encrypt = options->encrypt || job->distribution.encrypt;
        if (options->threads == 0) {
            options->threads = job->distribution.worker_threads;
        }
    }
    free(run->document);
    run->document = NULL;
    if (status == GR_OK) {
        status = gr_job_document(job, &run->document, diag);
    }
    if (status == GR_OK && options->dry_run && !options->job.run.json) {
        status = explain(run, job, diag);
    }
    gr_job_close(job);
    return status;
}

gr_status gr_run_read_job_again(gr_cli_run *run, gr_diag *diag)
{
    gr_run_options *options = &run->options;
    gr_diag why = {0};
    bool needed = options->resume || run->writes;
    run->resume = NULL;
    options->resume = true; /* those that were left may have written one when they ended */
    gr_status status = gr_run_read_job(run, diag);
    if (status == GR_OK || needed) {
        return status;
    }
    options->resume = false;
    if (gr_run_read_job(run, &why) != GR_OK) {
        return status;
    }
    gr_diag_clear(diag);
    return GR_OK;
}
