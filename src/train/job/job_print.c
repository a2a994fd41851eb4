/* SPDX-License-Identifier: Apache-2.0 */
#include "train/job/job_internal.h"

#include "base/fail.h"
#include "coll/select/select.h"
#include "train/early_stopping.h"
#include "train/shards.h"
#include "train/strategy/local.h"
#include "train/strategy/strategy.h"

#include <errno.h>
#include <gradus/ps.h>
#include <inttypes.h>
#include <stdlib.h>
#include <string.h>

enum { SHAPE_BYTES = 64, SIZE_TEXT_BYTES = 32 };

/* What must be built to be measured. */
typedef struct measured {
    gr_model *model;
    gr_optimizer *optimizer;
    int vectors;      /* gradient vectors of the worker that needs most */
    int shards_least; /* of a worker */
    int shards_most;
} measured;

static const char *size_text(uint64_t bytes, char text[SIZE_TEXT_BYTES])
{
    if (bytes < 10 << 10) {
        snprintf(text, SIZE_TEXT_BYTES, "%" PRIu64 " B", bytes);
    } else if (bytes < 10 << 20) {
        snprintf(text, SIZE_TEXT_BYTES, "%.1f KiB", (double)bytes / 1024);
    } else {
        snprintf(text, SIZE_TEXT_BYTES, "%.1f MiB", (double)bytes / (1 << 20));
    }
    return text;
}

static gr_status measure(const gr_job *job, measured *m, gr_diag *diag)
{
    gr_model_config config = {.spec = job->spec,
                              .batch = (int)job->micro_batch,
                              .loss = (gr_loss_kind)job->config.loss,
                              .gradient_scale = 1,
                              .seed = (uint64_t)job->config.seed,
                              .training = true};
    bool bound = job->dataset != NULL;
    gr_status status = bound ? gr_model_create(&config, &m->model, diag) : GR_OK;
    if (status == GR_OK && bound) {
        status = gr_optimizer_create(&job->optimizer, m->model, &m->optimizer, diag);
    }
    /* An asynchronous worker computes as much as one shard at a time, whoever does the others. */
    int shards = job->strategy->asynchronous ? job->workers : job->shards;
    bool collapse = !job->distribution.exact && !job->strategy->needs_servers;
    m->shards_least = shards;
    for (int rank = 0; status == GR_OK && rank < job->workers; rank++) {
        gr_shard_plan plan;
        status = gr_shard_plan_init(&plan, shards, job->workers, rank, collapse, diag);
        if (status == GR_OK) {
            m->vectors = plan.slots > m->vectors ? plan.slots : m->vectors;
            m->shards_least = plan.count < m->shards_least ? plan.count : m->shards_least;
            m->shards_most = plan.count > m->shards_most ? plan.count : m->shards_most;
            gr_shard_plan_fini(&plan);
        }
    }
    return status;
}

static void print_data(const gr_job *job, const char *why_not, FILE *file)
{
    char shape[SHAPE_BYTES];
    if (job->dataset == NULL) {
        fprintf(
            file,
            "data        not read: %s\n            not known without it: shapes, parameters and "
            "memory of the model, steps of an epoch\n",
            why_not);
        return;
    }
    gr_shape_format(&job->input, shape, sizeof shape);
    fprintf(file, "data        %" PRId64 " training and %" PRId64 " test samples of %s",
            gr_dataset_count(job->dataset, GR_SPLIT_TRAIN),
            gr_dataset_count(job->dataset, GR_SPLIT_TEST), shape);
    if (gr_dataset_classes(job->dataset) > 0) {
        fprintf(file, ", %" PRId64 " classes", gr_dataset_classes(job->dataset));
    } else {
        fprintf(file, ", a number to predict");
    }
    double mean, deviation;
    gr_dataset_scaling(job->dataset, &mean, &deviation);
    fprintf(file, "; %s\n", gr_dataset_kind(job->dataset));
    if (gr_dataset_scales_by_column(job->dataset)) {
        fprintf(file, "            values are seen as (value - mean) / deviation of their column "
                      "(normalize: standard)\n");
    } else if (job->data.scale != 1 || mean != 0 || deviation != 1) {
        fprintf(file, "            values are seen as (value * %.9g - %.9g) / %.9g%s\n",
                job->data.scale, mean, deviation,
                job->data.normalize == 1 ? " (normalize: standard)" : "");
    }
}

static void print_model(const gr_job *job, const measured *m, FILE *file)
{
    int width = 5;
    int count = gr_model_spec_layers(job->spec);
    for (int i = 0; i < count; i++) {
        int length = (int)strlen(gr_model_spec_layer(job->spec, i)->name);
        width = length > width ? length : width;
    }
    fprintf(file, "model       %-*s  %-12s %-14s %12s\n", width, "layer", "kind", "output",
            "parameters");
    for (int i = 0; i < count; i++) {
        const gr_layer_info *layer = gr_model_spec_layer(job->spec, i);
        char shape[SHAPE_BYTES];
        gr_shape_format(&layer->output, shape, sizeof shape);
        fprintf(file, "            %-*s  %-12s %-14s %12" PRId64 "\n", width, layer->name,
                layer->kind, shape, layer->parameters);
    }
    fprintf(file, "            %-*s  %-12s %-14s %12zu\n", width, "total", "", "",
            gr_model_parameters(m->model));
}

static void print_optimizer(const gr_job *job, FILE *file)
{
    const gr_optimizer_config *o = &job->optimizer;
    double scaled = o->learning_rate;
    fprintf(file, "optimizer   %s, learning rate ", gr_optimizer_ops_at(o->kind)->name);
    if (o->linear_scaling) {
        scaled *= (double)job->config.global_batch / (double)o->reference_batch;
        fprintf(file, "%.6g (%.6g for a batch of %" PRId64 ", times %" PRId64 " / %" PRId64 ")",
                scaled, o->learning_rate, o->reference_batch, job->config.global_batch,
                o->reference_batch);
    } else {
        fprintf(file, "%.6g", scaled);
    }
    fprintf(file, ", %s", gr_schedule_ops_at(o->schedule)->name);
    if (o->warmup_epochs > 0) {
        fprintf(file, " after a warm-up of %.6g epoch%s", o->warmup_epochs,
                o->warmup_epochs == 1 ? "" : "s");
    }
    if (job->dataset == NULL) {
        fputc('\n', file);
        return;
    }
    uint64_t last = job->total_steps - 1;
    double end = gr_learning_rate(o, last, (double)job->steps_per_epoch, job->total_steps,
                                  job->config.global_batch);
    fprintf(file, "; %.6g in the last step\n", end);
}

/* "32" or "32 to 48". */
static void print_range(FILE *file, int64_t least, int64_t most)
{
    if (least == most) {
        fprintf(file, "%" PRId64, most);
    } else {
        fprintf(file, "%" PRId64 " to %" PRId64, least, most);
    }
}

static void print_batch(const gr_job *job, const measured *m, FILE *file)
{
    fprintf(file, "batch       global %" PRId64 " samples = %d shards of %" PRId64,
            job->config.global_batch, job->shards, job->shard_batch);
    if (job->config.micro_batches > 1) {
        fprintf(file, " = %" PRId64 " micro batches of %" PRId64 " each", job->config.micro_batches,
                job->micro_batch);
    }
    fprintf(file, "\n            per worker ");
    print_range(file, m->shards_least * job->shard_batch, m->shards_most * job->shard_batch);
    fprintf(file, " samples (");
    print_range(file, m->shards_least, m->shards_most);
    fprintf(file, m->shards_most == 1 ? " shard" : " shards");
    fprintf(file, "), per shard %" PRId64 ", per micro batch %" PRId64 "\n", job->shard_batch,
            job->micro_batch);
    if (job->dataset == NULL && job->config.steps > 0) {
        fprintf(file, "steps       %" PRId64 " in all\n", job->config.steps);
        return;
    }
    if (job->dataset == NULL) {
        fprintf(file, "steps       those of %.6g epochs\n", job->config.epochs);
        return;
    }
    int64_t train = gr_dataset_count(job->dataset, GR_SPLIT_TRAIN);
    fprintf(file,
            "steps       %" PRIu64 " an epoch (%" PRId64 " samples of its order are left out), "
            "%" PRIu64 " in all = %.6g epochs\n",
            job->steps_per_epoch, train % job->config.global_batch, job->total_steps,
            (double)job->total_steps / (double)job->steps_per_epoch);
}

/* What the arithmetic of strategy local comes to: who takes steps, and how large they are. */
static void print_local(const gr_job *job, FILE *file)
{
    const gr_outer_config *outer = &job->outer;
    uint64_t steps = job->sync_steps;
    if (!job->strategy->averages_weights) {
        return;
    }
    fprintf(file,
            "local       %d cop%s of the weights, one a shard, updated with %" PRId64
            " samples a step at the learning rate above\n",
            job->shards, job->shards == 1 ? "y" : "ies", job->shard_batch);
    if (job->dataset == NULL) {
        fprintf(file, "            averaged every %s\n", job->distribution.sync_every);
    } else {
        fprintf(file, "            averaged every %" PRIu64 " step%s (%" PRIu64 " samples)", steps,
                steps == 1 ? "" : "s", steps * (uint64_t)job->config.global_batch);
        if (job->steps_per_epoch % steps != 0) {
            fprintf(file, ", the last %" PRIu64 " of an epoch apart", job->steps_per_epoch % steps);
        }
        fprintf(file, ": %" PRIu64 " times an epoch\n", (job->steps_per_epoch + steps - 1) / steps);
    }
    if (job->distribution.local_state == GR_LOCAL_KEEP) {
        fprintf(file, "            each shard keeps the optimizer's vectors to itself\n");
    }
    if (outer->wanted) {
        fprintf(
            file,
            "            outer: learning rate %.6g, %smomentum %.6g: in the long run %.3g times "
            "the averaged change\n",
            outer->learning_rate, outer->nesterov ? "Nesterov " : "", outer->momentum,
            outer->learning_rate / (1 - outer->momentum));
    }
}

static void print_memory(const gr_job *job, const measured *m, FILE *file)
{
    uint64_t vector = (GR_STEP_HEADER + gr_model_values(m->model)) * sizeof(float);
    uint64_t gradients = vector * (uint64_t)(m->vectors + (job->config.micro_batches > 1 ? 1 : 0));
    uint64_t state = 0;
    const char *name;
    for (int i = 0; gr_optimizer_state(m->optimizer, i, &name) != NULL; i++) {
        state += gr_model_values(m->model) * sizeof(float);
    }
    uint64_t left_out =
        gr_compressor_bytes((gr_compression)job->distribution.compression,
                            GR_STEP_HEADER + gr_model_values(m->model), m->shards_most);
    state += job->outer.wanted ? gr_model_values(m->model) * sizeof(float) : 0;
    uint64_t copies = job->strategy->averages_weights
                          ? gr_local_bytes(job, gr_model_values(m->model), m->shards_most)
                          : 0;
    uint64_t arena = gr_model_arena_bytes(m->model);
    int64_t ahead = (int64_t)m->shards_most * job->config.micro_batches * 2;
    ahead = (ahead < GR_READ_AHEAD_MAX ? ahead : GR_READ_AHEAD_MAX) + 1;
    uint64_t batches = (uint64_t)(ahead * job->micro_batch) *
                       (uint64_t)(gr_dataset_sample_values(job->dataset) + 1) * sizeof(float);
    uint64_t data = gr_dataset_memory(job->dataset);
    char text[SIZE_TEXT_BYTES];
    fprintf(
        file, "memory      %s per worker, of which\n",
        size_text(vector + gradients + left_out + copies + state + arena + batches + data, text));
    fprintf(file, "            %12s  weights\n", size_text(vector, text));
    fprintf(file, "            %12s  gradients (%d vector%s)\n", size_text(gradients, text),
            m->vectors, m->vectors == 1 ? "" : "s");
    if (left_out > 0) {
        fprintf(file, "            %12s  what topk leaves out (%d of the shards)\n",
                size_text(left_out, text), m->shards_most);
    }
    fprintf(file, "            %12s  state of the optimizer\n", size_text(state, text));
    if (copies > 0) {
        fprintf(file, "            %12s  copies of both (for %d of the shards)\n",
                size_text(copies, text), m->shards_most);
    }
    fprintf(file, "            %12s  activations and work space\n", size_text(arena, text));
    fprintf(file, "            %12s  batches read ahead (%" PRId64 ")\n", size_text(batches, text),
            ahead);
    fprintf(file, "            %12s  data set\n", size_text(data, text));
}

static void print_bucket(gr_selection *selection, const gr_plan_shape *shape, const char *which,
                         uint64_t bytes, FILE *file)
{
    char text[SIZE_TEXT_BYTES];
    const gr_algorithm *algorithm =
        gr_select(selection, shape, GR_F32, (size_t)bytes, false).algorithm;
    fprintf(file, "            %s, about %s: %s: %s%s\n", which, size_text(bytes, text),
            algorithm->name, algorithm->description,
            algorithm->canonical ? "; adds in the order of the shard tree"
                                 : "; adds in an order of its own");
}

static void print_compression(const gr_job *job, FILE *file)
{
    const gr_distribution_config *d = &job->distribution;
    switch (d->compression) {
    case GR_COMPRESSION_F16:
    case GR_COMPRESSION_BF16:
        fprintf(file, "            every gradient and every sum rounded to %s: half the bytes\n",
                gr_dtype_name(gr_compression_dtype((gr_compression)d->compression)));
        break;
    case GR_COMPRESSION_TOPK:
        fprintf(file,
                "            of each bucket of a shard the largest %g %% of the values; the rest "
                "is added to its next gradient\n",
                100 * d->compression_ratio);
        break;
    case GR_COMPRESSION_SPARSE:
        fprintf(file, "            zeros do not travel; a bucket with few of them goes whole\n");
        break;
    default:
        break;
    }
}

/* When the servers update the weights, and what follows from it for the bits. */
static void print_consistency(const gr_job *job, FILE *file)
{
    const gr_distribution_config *d = &job->distribution;
    switch (job->consistency) {
    case GR_BSP:
        fprintf(file, "            a step is made of all shards: exact (the same bits for every "
                      "number of workers and servers)\n");
        return;
    case GR_BSP_BACKUP:
        fprintf(file,
                "            a step is made of the first %" PRId64 " gradients, and late ones are "
                "dropped",
                d->aggregate);
        break;
    case GR_SSP:
        fprintf(file,
                "            each gradient is an update of its own; no worker is more than %" PRId64
                " updates ahead of the slowest",
                d->staleness);
        break;
    default:
        fprintf(file, "            each gradient is an update of its own; no worker waits for "
                      "another");
        break;
    }
    fprintf(file, ": not exact (the bits depend on who comes when)\n");
}

static void print_servers(const gr_job *job, const measured *m, FILE *file)
{
    const gr_distribution_config *d = &job->distribution;
    char text[SIZE_TEXT_BYTES], servers[64] = "parameter servers";
    if (d->servers > 0) {
        snprintf(servers, sizeof servers, "%" PRId64 " parameter server%s", d->servers,
                 d->servers == 1 ? "" : "s");
    }
    fprintf(file, "gradients   to %s", servers);
    if (job->dataset != NULL) {
        fprintf(file, ", %s a step of each worker",
                size_text(gr_model_values(m->model) * sizeof(float), text));
    }
    fprintf(file, d->overlap && !job->strategy->asynchronous ? ", while the backward pass goes on\n"
                                                             : ", after the backward pass\n");
    print_consistency(job, file);
    print_compression(job, file);
}

static gr_status print_plan(const gr_job *job, const gr_topology *topology, const measured *m,
                            FILE *file, gr_diag *diag)
{
    const gr_distribution_config *d = &job->distribution;
    fprintf(file, "workers     %d with %" PRId64 " thread%s each\n", job->workers,
            d->worker_threads, d->worker_threads == 1 ? "" : "s");
    bool local = job->strategy->averages_weights;
    if (job->strategy->needs_servers) {
        print_servers(job, m, file);
        return GR_OK;
    }
    if (job->workers == 1) {
        fprintf(file, "gradients   stay in the one worker\n");
        return GR_OK;
    }
    if (job->dataset == NULL) {
        print_compression(job, file);
        return GR_OK;
    }
    bool one_host = topology == NULL || topology->host_count == 1;
    gr_link_kind link = d->link == 2 || !one_host ? GR_LINK_TCP : GR_LINK_SHM;
    gr_selection selection;
    const gr_selection_config choosing = {.text = getenv("GRADUS_ALGORITHM"),
                                          .exact = d->exact,
                                          .link = link,
                                          .world_size = job->workers};
    gr_status status = gr_selection_init(&selection, &choosing, diag);
    if (status != GR_OK) {
        return status;
    }
    gr_plan_shape shape = {.coll = GR_COLL_ALLREDUCE,
                           .world_size = job->workers,
                           .shards = d->exact ? job->shards : job->workers,
                           .shared = link == GR_LINK_SHM,
                           .topology = one_host ? NULL : topology};
    selection.shared = shape.shared;
    uint64_t bytes = (GR_STEP_HEADER + gr_model_values(m->model)) * sizeof(float);
    uint64_t first = (uint64_t)d->bucket_bytes_first;
    char text[SIZE_TEXT_BYTES];
    fprintf(file, "%s allreduce of %s %s over %s, %s, %s\n", local ? "weights    " : "gradients  ",
            size_text(bytes, text),
            !local                              ? "a step"
            : gr_local_averaged_states(job) > 0 ? "and as much for each optimizer vector"
                                                : "each time",
            gr_link_kind_name(link),
            d->exact ? "exact (the same bits for every number of workers)"
                     : "not exact (the bits depend on the number of workers)",
            local        ? "when they are averaged"
            : d->overlap ? "while the backward pass goes on"
                         : "after the backward pass");
    print_compression(job, file);
    print_bucket(&selection, &shape, bytes > first ? "first bucket" : "one bucket",
                 bytes > first ? first : bytes, file);
    if (bytes > first) {
        uint64_t rest = bytes - first, later = (uint64_t)d->bucket_bytes;
        print_bucket(&selection, &shape, "later buckets", rest > later ? later : rest, file);
    }
    return GR_OK;
}

static void print_checkpoint(const gr_job *job, FILE *file)
{
    const gr_checkpoint_config *checkpoint = &job->checkpoint;
    char keeps[64] = "all stay", every[64] = "", best[64] = "";
    if (!gr_job_writes_checkpoints(job)) {
        fprintf(file, "checkpoint  when the job is asked to end (SIGTERM), in %s\n",
                checkpoint->to);
        return;
    }
    if (checkpoint->keep > 0) {
        snprintf(keeps, sizeof keeps, "%sthe newest %" PRId64 " stay%s",
                 checkpoint->keep_best ? "the best and " : "", checkpoint->keep,
                 checkpoint->keep == 1 && !checkpoint->keep_best ? "s" : "");
    }
    if (checkpoint->every != NULL) {
        snprintf(every, sizeof every, "every %.50s", checkpoint->every);
    }
    if (checkpoint->keep_best) {
        snprintf(best, sizeof best, "%swhenever %s is the best so far",
                 checkpoint->every != NULL ? ", " : "", gr_best_metric(job));
    }
    fprintf(file, "checkpoint  %s%s and at the end, in %s; %s\n", every, best, checkpoint->to,
            keeps);
    fprintf(file, "            rank 0 holds weights and optimizer twice for it\n");
}

gr_status gr_job_print(const gr_job *job, const gr_topology *topology, const char *why_not,
                       FILE *file, gr_diag *diag)
{
    measured m = {0};
    gr_status status = measure(job, &m, diag);
    if (status == GR_OK) {
        fprintf(file, "job         %s (%s)\n", job->config.name, job->path);
        print_data(job, why_not, file);
        if (job->dataset != NULL) {
            print_model(job, &m, file);
        }
        fprintf(file, "loss        %s\n", gr_loss_ops_at(job->config.loss)->title);
        print_optimizer(job, file);
        print_batch(job, &m, file);
        print_local(job, file);
        if (job->dataset != NULL) {
            print_memory(job, &m, file);
        }
        status = print_plan(job, topology, &m, file, diag);
    }
    if (status == GR_OK) {
        fprintf(file, "output      %s\n", job->config.output);
        print_checkpoint(job, file);
        if (fflush(file) != 0) {
            status = gr_fail(diag, GR_E_IO, "the plan of the job cannot be written: %s",
                             strerror(errno));
        }
    }
    gr_optimizer_destroy(m.optimizer);
    gr_model_destroy(m.model);
    return status;
}
