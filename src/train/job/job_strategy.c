/* SPDX-License-Identifier: Apache-2.0 */

/* What a job says of its strategy: which settings belong together. */

#include "train/job/job_internal.h"

#include "base/fail.h"
#include "train/compress.h"
#include "train/strategy/strategy.h"

#include <gradus/ps.h>
#include <inttypes.h>

static const struct {
    const char *name;
    int consistency; /* a gr_consistency */
} consistencies[] = {{"bsp", GR_BSP}, {"ssp", GR_SSP}, {"async", GR_ASYNC}};
enum { CONSISTENCIES = sizeof consistencies / sizeof consistencies[0] };

const char *gr_job_consistency_name(int index)
{
    return index < CONSISTENCIES ? consistencies[index].name : NULL;
}

static gr_status check_compression(const gr_job *job, gr_diag *diag)
{
    const gr_distribution_config *d = &job->distribution;
    if (job->strategy->averages_weights && d->compression != GR_COMPRESSION_NONE) {
        return gr_node_fail(gr_node_setting(job->config.distribution, "compression"), diag,
                            GR_E_INVALID,
                            "compression is for gradients, of which none travel with strategy "
                            "%s; remove it, and average less often to send less",
                            job->strategy->name);
    }
    return GR_OK;
}

/* What servers do not do. */
static gr_status check_ps(const gr_job *job, gr_diag *diag)
{
    const gr_distribution_config *d = &job->distribution;
    const gr_node *section = job->config.distribution;
    if (job->consistency == GR_SSP && d->staleness < 0) {
        return gr_node_fail(gr_node_setting(section, "consistency"), diag, GR_E_INVALID,
                            "ssp needs to know how far a worker may be ahead of the slowest; add "
                            "staleness: 3, say");
    }
    return GR_OK;
}

gr_status gr_job_resolve_strategy(gr_job *job, gr_diag *diag)
{
    gr_distribution_config *d = &job->distribution;
    const gr_node *section = job->config.distribution;
    job->strategy = gr_strategy_of(job); /* of consistency bsp, as long as that is not known */
    gr_status status = check_compression(job, diag);
    if (status != GR_OK || !job->strategy->needs_servers) {
        return status;
    }
    job->consistency = d->aggregate > 0 ? GR_BSP_BACKUP : consistencies[d->consistency].consistency;
    job->strategy = gr_strategy_of(job);
    status = check_ps(job, diag);
    if (status == GR_OK && d->aggregate > 0 && d->shards > 0 && d->shards != d->aggregate) {
        status = gr_node_fail(gr_node_setting(section, "shards"), diag, GR_E_INVALID,
                              "a step of replicas_to_aggregate: %" PRId64 " has as many shards; "
                              "remove the line",
                              d->aggregate);
    }
    if (d->aggregate > 0) {
        d->shards = d->aggregate;
    }
    return status;
}

gr_status gr_job_check_workers(gr_job *job, gr_diag *diag)
{
    const gr_distribution_config *d = &job->distribution;
    if (!job->strategy->needs_servers || job->trains_nothing) {
        return GR_OK;
    }
    if (job->workers_max > GR_JOB_PS_WORKERS_MAX) {
        return gr_fail(diag, GR_E_INVALID,
                       "%s: up to %d workers, but with strategy: %s a job has at most %d; start "
                       "fewer, or set strategy: allreduce",
                       job->path, job->workers_max, job->strategy->name, GR_JOB_PS_WORKERS_MAX);
    }
    if (d->aggregate > job->workers) {
        return gr_node_fail(gr_node_setting(job->config.distribution, "replicas_to_aggregate"),
                            diag, GR_E_INVALID,
                            "a step needs the gradients of %" PRId64 " workers, but there are %d; "
                            "start more, or aggregate fewer",
                            d->aggregate, job->workers);
    }
    return GR_OK;
}

bool gr_job_is_asynchronous(const gr_job *job)
{
    return job->strategy->asynchronous;
}

gr_status gr_job_check_servers(const gr_job *job, bool there, gr_diag *diag)
{
    if (!job->strategy->needs_servers || there) {
        return GR_OK;
    }
    return gr_node_fail(gr_node_setting(job->config.distribution, "strategy"), diag, GR_E_INVALID,
                        "%s needs parameter servers, and there are none; start some with gradus "
                        "run --servers N",
                        job->strategy->name);
}
