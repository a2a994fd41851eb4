/* SPDX-License-Identifier: Apache-2.0 */

/* Which algorithm a job would choose on a cluster that is only described: by the cost model of
 * libgradus, as `gradus info --plan` tells it, with the cluster's network in place of the usual. */

#include "base/fail.h"
#include "cli/info_plan.h"
#include "cli/simulate.h"
#include "coll/select/select.h"

#include <stdlib.h>

enum { RANKS_MAX = 4096 }; /* a job has no more */

static void set_costs(const gr_cluster *cluster, gr_cost_model *model_out)
{
    gr_cost_model_defaults(model_out, GR_LINK_SHM);
    gr_link_cost *wire = &model_out->link[GR_MODEL_BETWEEN];
    wire->latency_us = cluster->latency_us;
    wire->wire_byte_us = wire->host_byte_us = 8e-3 / cluster->bandwidth_gbit;
    model_out->cores = (double)(cluster->cores > 0 ? cluster->cores : cluster->ranks_per_host);
}

struct gr_simulate_chooser {
    gr_selection selection;
    gr_topology topology;
    int *ranks; /* memory of the topology */
    gr_plan_shape shape;
    bool order_free;
};

void gr_simulate_chooser_destroy(gr_simulate_chooser *chooser)
{
    if (chooser != NULL) {
        free(chooser->ranks);
        free(chooser);
    }
}

gr_status gr_simulate_chooser_create(const gr_simulate_options *options, gr_coll coll,
                                     gr_simulate_chooser **chooser_out, gr_diag *diag)
{
    const gr_cluster *cluster = &options->cluster;
    int64_t ranks = cluster->hosts * cluster->ranks_per_host;
    *chooser_out = NULL;
    if (ranks > RANKS_MAX || ranks < 2) {
        return GR_OK;
    }
    gr_simulate_chooser *c = calloc(1, sizeof *c);
    if (c == NULL) {
        return gr_fail(diag, GR_E_NO_MEMORY, "no memory for the choice of an algorithm");
    }
    const gr_selection_config choosing = {.exact = options->exact && !options->compare,
                                          .link = GR_LINK_SHM,
                                          .rails = 1,
                                          .world_size = (int)ranks,
                                          .segment_bytes = (size_t)cluster->segment_bytes};
    gr_status status =
        gr_info_place_ranks((int)ranks, (int)cluster->hosts, &c->topology, &c->ranks, diag);
    if (status == GR_OK) {
        status = gr_selection_init(&c->selection, &choosing, diag);
    }
    if (status != GR_OK) {
        gr_simulate_chooser_destroy(c);
        return status;
    }
    gr_cost_model model;
    set_costs(cluster, &model);
    gr_selection_adopt(&c->selection, &model, NULL);
    c->shape = (gr_plan_shape){.coll = coll,
                               .world_size = (int)ranks,
                               .shards = (int)ranks,
                               .shared = cluster->hosts == 1,
                               .topology = cluster->hosts > 1 ? &c->topology : NULL};
    c->order_free =
        coll != GR_COLL_ALLREDUCE && coll != GR_COLL_REDUCE_SCATTER && coll != GR_COLL_REDUCE;
    *chooser_out = c;
    return GR_OK;
}

const gr_algorithm *gr_simulate_choose(gr_simulate_chooser *chooser, int64_t size_bytes)
{
    return chooser != NULL ? gr_select(&chooser->selection, &chooser->shape, GR_F32,
                                       (size_t)size_bytes, chooser->order_free)
                                 .algorithm
                           : NULL;
}
