/* SPDX-License-Identifier: Apache-2.0 */
#include "train/strategy/strategy.h"

#include <gradus/ps.h>

/* All there are. */
static const struct {
    const gr_strategy *usual;
    const gr_strategy *asynchronous; /* where the consistency is not bsp; NULL: there is none */
} strategies[] = {
    {&gr_strategy_allreduce, NULL},
    {&gr_strategy_local, NULL},
    {&gr_strategy_ps, &gr_strategy_ps_async},
};

enum { STRATEGIES = sizeof strategies / sizeof strategies[0] };

const char *gr_strategy_name(int index)
{
    return index < STRATEGIES ? strategies[index].usual->name : NULL;
}

const gr_strategy *gr_strategy_of(const gr_job *job)
{
    int index = job->distribution.strategy;
    bool usual = strategies[index].asynchronous == NULL || job->consistency == GR_BSP;
    return usual ? strategies[index].usual : strategies[index].asynchronous;
}
