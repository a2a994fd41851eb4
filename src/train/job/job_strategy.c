/* SPDX-License-Identifier: Apache-2.0 */

/* What a job says of its strategy: which settings belong together. */

#include "train/job/job_internal.h"

#include "base/fail.h"
#include "train/compress.h"

#include <gradus/ps.h>
#include <inttypes.h>

/* In the order of the choices of `consistency`. */
enum { SAYS_BSP = 0, SAYS_SSP = 1, SAYS_ASYNC = 2 };

/* Keys that mean something with one strategy alone, and with some consistency alone. */
typedef struct own_key {
    const char *key;
    int strategy;
    unsigned consistencies; /* bits; 0: any */
    const char *belongs;
} own_key;

static const own_key own_keys[] = {
    {"sync_every", GR_STRATEGY_LOCAL, 0, "strategy: local"},
    {"local_state", GR_STRATEGY_LOCAL, 0, "strategy: local"},
    {"outer", GR_STRATEGY_LOCAL, 0, "strategy: local"},
    {"consistency", GR_STRATEGY_PS, 0, "strategy: ps"},
    {"staleness", GR_STRATEGY_PS, 1 << SAYS_SSP, "strategy: ps with consistency: ssp"},
    {"replicas_to_aggregate", GR_STRATEGY_PS, 1 << SAYS_BSP, "strategy: ps with consistency: bsp"},
    {"adapt_rate", GR_STRATEGY_PS, 1 << SAYS_SSP | 1 << SAYS_ASYNC,
     "strategy: ps with consistency: ssp or async"},
};

/* What belongs to another strategy is a mistake that nobody should find in the results. */
static gr_status check_keys(const gr_job *job, gr_diag *diag)
{
    const gr_distribution_config *d = &job->distribution;
    for (size_t i = 0; i < sizeof own_keys / sizeof *own_keys; i++) {
        const own_key *own = &own_keys[i];
        const gr_node *node = gr_node_get(job->config.distribution, own->key);
        bool wanted = d->strategy == own->strategy &&
                      (own->consistencies == 0 || (own->consistencies >> d->consistency & 1) != 0);
        if (node != NULL && !wanted) {
            return gr_node_fail(node, diag, GR_E_INVALID,
                                "%s belongs to %s, and this job has another one; set the one or "
                                "remove the other",
                                own->key, own->belongs);
        }
    }
    return GR_OK;
}

static gr_status check_local(const gr_job *job, gr_diag *diag)
{
    const gr_distribution_config *d = &job->distribution;
    if (d->strategy == GR_STRATEGY_LOCAL && d->compression != GR_COMPRESSION_NONE) {
        return gr_node_fail(gr_job_setting(job->config.distribution, "compression"), diag,
                            GR_E_INVALID,
                            "compression is for gradients, of which none travel with strategy "
                            "local; remove it, and average less often to send less");
    }
    return GR_OK;
}

/* What servers do not do. */
static gr_status check_ps(const gr_job *job, gr_diag *diag)
{
    const gr_distribution_config *d = &job->distribution;
    const gr_node *section = job->config.distribution;
    if (d->consistency == SAYS_SSP && d->staleness < 0) {
        return gr_node_fail(gr_job_setting(section, "consistency"), diag, GR_E_INVALID,
                            "ssp needs to know how far a worker may be ahead of the slowest; add "
                            "staleness: 3, say");
    }
    return GR_OK;
}

gr_status gr_job_resolve_strategy(gr_job *job, gr_diag *diag)
{
    static const int modes[] = {[SAYS_BSP] = GR_BSP, [SAYS_SSP] = GR_SSP, [SAYS_ASYNC] = GR_ASYNC};
    gr_distribution_config *d = &job->distribution;
    const gr_node *section = job->config.distribution;
    gr_status status = check_keys(job, diag);
    if (status == GR_OK) {
        status = check_local(job, diag);
    }
    if (status != GR_OK || d->strategy != GR_STRATEGY_PS) {
        return status;
    }
    job->consistency = d->aggregate > 0 ? GR_BSP_BACKUP : modes[d->consistency];
    status = check_ps(job, diag);
    if (status == GR_OK && d->aggregate > 0 && d->shards > 0 && d->shards != d->aggregate) {
        status = gr_node_fail(gr_job_setting(section, "shards"), diag, GR_E_INVALID,
                              "a step of replicas_to_aggregate: %" PRId64 " has as many shards; "
                              "remove the line",
                              d->aggregate);
    }
    if (d->aggregate > 0) {
        d->shards = d->aggregate;
    }
    return status;
}

gr_status gr_job_check_workers(const gr_job *job, gr_diag *diag)
{
    const gr_distribution_config *d = &job->distribution;
    if (d->strategy != GR_STRATEGY_PS) {
        return GR_OK;
    }
    if (job->workers_max > GR_JOB_PS_WORKERS_MAX) {
        return gr_fail(diag, GR_E_INVALID,
                       "%s: up to %d workers, but with strategy: ps a job has at most %d; start "
                       "fewer, or set strategy: allreduce",
                       job->path, job->workers_max, GR_JOB_PS_WORKERS_MAX);
    }
    if (d->aggregate > job->workers) {
        return gr_node_fail(gr_job_setting(job->config.distribution, "replicas_to_aggregate"), diag,
                            GR_E_INVALID,
                            "a step needs the gradients of %" PRId64 " workers, but there are %d; "
                            "start more, or aggregate fewer",
                            d->aggregate, job->workers);
    }
    return GR_OK;
}

bool gr_job_runs_free(const gr_job *job)
{
    return job->distribution.strategy == GR_STRATEGY_PS && job->consistency != GR_BSP;
}

gr_status gr_job_check_servers(const gr_job *job, bool there, gr_diag *diag)
{
    if (job->distribution.strategy != GR_STRATEGY_PS || there) {
        return GR_OK;
    }
    return gr_node_fail(gr_job_setting(job->config.distribution, "strategy"), diag, GR_E_INVALID,
                        "ps needs parameter servers, and there are none; start some with gradus "
                        "run --servers N");
}
