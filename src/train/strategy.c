/* SPDX-License-Identifier: Apache-2.0 */
#include "train/strategy.h"

const gr_strategy *gr_strategy_of(const gr_job *job)
{
    static const gr_strategy *const strategies[] = {
        [GR_STRATEGY_ALLREDUCE] = &gr_strategy_allreduce,
        [GR_STRATEGY_LOCAL] = &gr_strategy_local,
        [GR_STRATEGY_PS] = &gr_strategy_ps,
    };
    return gr_job_runs_free(job) ? &gr_strategy_ps_free : strategies[job->distribution.strategy];
}
