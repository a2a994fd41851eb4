/* SPDX-License-Identifier: Apache-2.0 */
#include "train/job/job_internal.h"

#include "group/group.h"
#include "ps/place.h"
#include "train/strategy/strategy.h"

/* No upper bound of a count, as far as a double can hold it exactly. */
#define COUNT_MAX 9007199254740992.0

#define AT(field) offsetof(gr_job_config, field)

static const gr_config_field job_fields[] = {
    {.key = "name",
     .type = GR_CONFIG_TEXT,
     .offset = AT(name),
     .help = "of the job, for people; default: the file's name without its ending"},
    {.key = "model",
     .type = GR_CONFIG_NODE,
     .offset = AT(model),
     .value_name = "[LAYER, ...]",
     .help = "the layers in order (docs/models.md)"},
    {.key = "data",
     .type = GR_CONFIG_NODE,
     .offset = AT(data),
     .value_name = "{...}",
     .help = "samples, labels, split and scaling: see data"},
    {.key = "optimizer",
     .type = GR_CONFIG_NODE,
     .offset = AT(optimizer),
     .value_name = "{...}",
     .help = "how weights are changed: see optimizer"},
    {.key = "distribution",
     .type = GR_CONFIG_NODE,
     .offset = AT(distribution),
     .value_name = "{...}",
     .help = "on how many workers, and how they work together: see distribution"},
    {.key = "checkpoint",
     .type = GR_CONFIG_NODE,
     .offset = AT(checkpoint),
     .value_name = "{...}",
     .help = "when and where the state is saved, to go on from later: see checkpoint"},
    {.key = "early_stopping",
     .type = GR_CONFIG_NODE,
     .offset = AT(early_stopping),
     .value_name = "{...}",
     .help = "end the training when a metric gets no better: see early_stopping"},
    {.key = "loss",
     .type = GR_CONFIG_CHOICE,
     .offset = AT(loss),
     .default_text = "cross_entropy",
     .choice = gr_loss_name,
     .help = "cross_entropy for classes, mse (mean squared error) for numbers to predict"},
    {.key = "seed",
     .type = GR_CONFIG_INT,
     .offset = AT(seed),
     .default_text = "1",
     .min = 0,
     .max = COUNT_MAX,
     .help = "of initial weights, order of samples, random split and dropout"},
    {.key = "epochs",
     .type = GR_CONFIG_DOUBLE,
     .offset = AT(epochs),
     .min = 1e-6,
     .max = 1e9,
     .help = "how often the training samples are gone through; either this or steps"},
    {.key = "steps",
     .type = GR_CONFIG_INT,
     .offset = AT(steps),
     .min = 1,
     .max = COUNT_MAX,
     .help = "how often the weights are changed; either this or epochs"},
    {.key = "global_batch",
     .type = GR_CONFIG_INT,
     .offset = AT(global_batch),
     .default_text = "64",
     .min = 1,
     .max = 1 << 30,
     .unit = "samples",
     .help = "of one step, over all workers; a multiple of shards"},
    {.key = "micro_batches",
     .type = GR_CONFIG_INT,
     .offset = AT(micro_batches),
     .default_text = "1",
     .min = 1,
     .max = 1 << 20,
     .help = "a shard is computed in so many pieces, one after the other, to save memory"},
    {.key = "eval_every",
     .type = GR_CONFIG_INT,
     .offset = AT(eval_every),
     .default_text = "1",
     .min = 0,
     .max = COUNT_MAX,
     .unit = "epochs",
     .help = "between evaluations on the test samples; 0: only at the end"},
    {.key = "output",
     .type = GR_CONFIG_TEXT,
     .offset = AT(output),
     .value_name = "FOLDER",
     .help = "for weights and metrics, relative to the current folder; default: out/<name>"},
    {0}};

const gr_config_table gr_job_config_table = {.name = "job",
                                             .title = "The top of a job file",
                                             .fields = job_fields,
                                             .struct_bytes = sizeof(gr_job_config)};

#undef AT
#define AT(field) offsetof(gr_distribution_config, field)

static const char *const types[] = {"Job", "MPI", "TF", NULL};
static const char *const consistencies[] = {"bsp", "ssp", "async", NULL};
/* In the order of gr_local_state. */
static const char *const local_states[] = {"average", "keep", NULL};
/* In the order of gr_compression. */
static const char *const compressions[] = {"none", "f16", "bf16", "topk", "sparse", NULL};

static const gr_config_field distribution_fields[] = {
    {.key = "distribution_type",
     .type = GR_CONFIG_CHOICE,
     .offset = AT(distribution_type),
     .default_text = "Job",
     .choices = types,
     .help = "Job: workers of Gradus; MPI and TF are kinds of Kubernetes jobs, not run here yet"},
    {.key = "strategy",
     .type = GR_CONFIG_CHOICE,
     .offset = AT(strategy),
     .default_text = "allreduce",
     .choices = gr_strategy_names,
     .help = "how gradients meet: allreduce adds them up over all workers in each step; with local "
             "each shard trains weights of its own, which are averaged (docs/training.md); with ps "
             "servers add them and keep the weights (docs/ps.md)"},
    {.key = "sync_every",
     .needs = "strategy: local",
     .type = GR_CONFIG_TEXT,
     .offset = AT(sync_every),
     .value_name = "8 steps | epoch",
     .help = "local: how often the weights are averaged, beside each epoch's end"},
    {.key = "local_state",
     .needs = "strategy: local",
     .type = GR_CONFIG_CHOICE,
     .offset = AT(local_state),
     .default_text = "average",
     .choices = local_states,
     .help =
         "local: the optimizer's vectors are averaged with the weights, or each shard keeps its "
         "own, which are lost with a worker"},
    {.key = "outer",
     .needs = "strategy: local",
     .type = GR_CONFIG_NODE,
     .offset = AT(outer),
     .value_name = "{...}",
     .help = "local: a second optimizer, for the averaged change of the weights: see outer; "
             "default: the weights become the average"},
    {.key = "consistency",
     .needs = "strategy: ps",
     .type = GR_CONFIG_CHOICE,
     .offset = AT(consistency),
     .default_text = "bsp",
     .choices = consistencies,
     .help = "ps: bsp makes a step of all workers' gradients, with the bits of allreduce; async "
             "applies each as it comes; ssp as well, but nobody gets further ahead than staleness"},
    {.key = "staleness",
     .needs = "consistency: ssp",
     .type = GR_CONFIG_INT,
     .offset = AT(staleness),
     .default_text = "-1",
     .min = -1,
     .max = 1 << 20,
     .unit = "steps",
     .help = "ssp: how far a worker may be ahead of the slowest"},
    {.key = "replicas_to_aggregate",
     .needs = "consistency: bsp",
     .type = GR_CONFIG_INT,
     .offset = AT(aggregate),
     .default_text = "0",
     .min = 0,
     .max = GR_JOB_WORKERS_MAX,
     .unit = "workers",
     .help = "bsp: a step is made of the first so many gradients; the other workers are spare, and "
             "what comes late is dropped; 0: of all"},
    {.key = "adapt_rate",
     .needs = "consistency: ssp|async",
     .type = GR_CONFIG_BOOL,
     .offset = AT(adapt_rate),
     .default_text = "false",
     .help = "ssp, async: the learning rate of a gradient is divided by 1 + its staleness"},
    {.key = "number_of_workers",
     .type = GR_CONFIG_NODE,
     .offset = AT(workers),
     .value_name = "N | {min: N, max: N}",
     .help = "unless -np says it; default: one for each core. With min and max the job starts with "
             "one for each core within them, and may have others later (docs/elastic.md)"},
    {.key = "servers",
     .type = GR_CONFIG_INT,
     .offset = AT(servers),
     .min = 1,
     .max = GR_PS_SERVERS_MAX,
     .help = "strategy ps: how many parameter servers; also --servers (docs/ps.md)"},
    {.key = "server_replicas",
     .type = GR_CONFIG_INT,
     .offset = AT(server_replicas),
     .default_text = "1",
     .min = 0,
     .max = 1,
     .help = "1: what a server keeps is on another one as well, if there is one, and the job goes "
             "on when one is lost; 0: it is not; also --server-replicas"},
    {.key = "worker_threads",
     .type = GR_CONFIG_INT,
     .offset = AT(worker_threads),
     .default_text = "1",
     .min = 1,
     .max = 1024,
     .help = "threads of the kernels in a worker; another number may change the last bits"},
    {.key = "shards",
     .type = GR_CONFIG_INT,
     .offset = AT(shards),
     .min = 1,
     .max = GR_JOB_SHARDS_MAX,
     .help = "equal parts of a global batch; results depend on it, not on the number of workers; "
             "default: 8, or the largest power of two that divides global_batch if that is less"},
    {.key = "exact",
     .type = GR_CONFIG_BOOL,
     .offset = AT(exact),
     .default_text = "true",
     .help = "the same bits for every number of workers; false: whatever is fastest"},
    {.key = "link",
     GR_GROUP_ROW_LINK,
     .offset = AT(link),
     .help = "shared memory or TCP between workers of a host; auto: shm (also --link)"},
    {.key = "encrypt",
     .type = GR_CONFIG_BOOL,
     .offset = AT(encrypt),
     .default_text = "false",
     .help = "TLS 1.3 on all that goes by tcp (also --encrypt)"},
    {.key = "bucket_bytes_first",
     .type = GR_CONFIG_BYTES,
     .offset = AT(bucket_bytes_first),
     .default_text = "1m",
     .min = 4,
     .max = 1 << 30,
     .help = "gradients travel in buckets; the first is small so that it leaves early"},
    {.key = "bucket_bytes",
     .type = GR_CONFIG_BYTES,
     .offset = AT(bucket_bytes),
     .default_text = "4m",
     .min = 4,
     .max = 1 << 30,
     .help = "of the later buckets"},
    {.key = "overlap",
     .type = GR_CONFIG_BOOL,
     .offset = AT(overlap),
     .default_text = "true",
     .help = "buckets travel while the backward pass goes on"},
    {.key = "compression",
     .type = GR_CONFIG_CHOICE,
     .offset = AT(compression),
     .default_text = "none",
     .choices = compressions,
     .help =
         "of gradients on their way: 16 bits, the largest values only (with error feedback), or "
         "leaving out zeros, which loses nothing (docs/training.md)"},
    {.key = "compression_ratio",
     .type = GR_CONFIG_DOUBLE,
     .offset = AT(compression_ratio),
     .default_text = "0.01",
     .min = 1e-6,
     .max = 1,
     .help = "topk: share of the values that is sent"},
    {0}};

const gr_config_table gr_distribution_config_table = {
    .name = "distribution",
    .title = "The distribution part of a job file: workers and how they work together",
    .fields = distribution_fields,
    .struct_bytes = sizeof(gr_distribution_config)};

#undef AT
#define AT(field) offsetof(gr_outer_config, field)

static const gr_config_field outer_fields[] = {
    {.key = "learning_rate",
     .type = GR_CONFIG_DOUBLE,
     .offset = AT(learning_rate),
     .default_text = "1",
     .min = 1e-6,
     .max = 100,
     .help = "how much of the averaged change is made"},
    {.key = "momentum",
     .type = GR_CONFIG_DOUBLE,
     .offset = AT(momentum),
     .default_text = "0.5",
     .min = 0,
     .max = 0.999999,
     .help = "share of the last change that is made again; in the long run a change is made "
             "1 / (1 - momentum) times"},
    {.key = "nesterov",
     .type = GR_CONFIG_BOOL,
     .offset = AT(nesterov),
     .default_text = "false",
     .help = "look ahead along the momentum"},
    {0}};

const gr_config_table gr_outer_config_table = {
    .name = "outer",
    .title = "The outer part of distribution: strategy local, the optimizer of averaged changes",
    .fields = outer_fields,
    .struct_bytes = sizeof(gr_outer_config)};

#undef AT
#define AT(field) offsetof(gr_early_stopping_config, field)

const char *const gr_metric_names[] = {"test_loss", "test_accuracy", "test_rmse", "test_mae",
                                       "test_r2",   "loss",          NULL};

static const gr_config_field early_stopping_fields[] = {
    {.key = "metric",
     .type = GR_CONFIG_CHOICE,
     .offset = AT(metric),
     .default_text = "test_loss",
     .choices = gr_metric_names,
     .help = "what is watched, at each evaluation on the test samples; loss: that of the training, "
             "in each epoch"},
    {.key = "patience",
     .type = GR_CONFIG_INT,
     .offset = AT(patience),
     .default_text = "3",
     .min = 1,
     .max = COUNT_MAX,
     .unit = "evaluations",
     .help = "the training ends after so many in a row that are not better than the best one"},
    {.key = "min_delta",
     .type = GR_CONFIG_DOUBLE,
     .offset = AT(min_delta),
     .default_text = "0",
     .min = 0,
     .max = 1e30,
     .help = "a value is better if it is better by more than this"},
    {0}};

const gr_config_table gr_early_stopping_config_table = {
    .name = "early_stopping",
    .title = "The early_stopping part of a job file: an end when a metric gets no better",
    .fields = early_stopping_fields,
    .struct_bytes = sizeof(gr_early_stopping_config)};

#undef AT
#define AT(field) offsetof(gr_checkpoint_config, field)

static const gr_config_field checkpoint_fields[] = {
    {.key = "every",
     .type = GR_CONFIG_TEXT,
     .offset = AT(every),
     .value_name = "100 steps",
     .help = "how often: so many steps, epochs (1 epoch) or so much time (5 min), and at the end; "
             "default: only when the job is asked to end (also --checkpoint-every)"},
    {.key = "keep",
     .type = GR_CONFIG_INT,
     .offset = AT(keep),
     .default_text = "3",
     .min = 0,
     .max = COUNT_MAX,
     .help = "the newest so many stay; 0: all"},
    {.key = "keep_best",
     .type = GR_CONFIG_BOOL,
     .offset = AT(keep_best),
     .default_text = "false",
     .help = "write a checkpoint whenever the metric is better than ever, and keep that one too"},
    {.key = "metric",
     .needs = "keep_best: true",
     .type = GR_CONFIG_CHOICE,
     .offset = AT(metric),
     .default_text = "test_loss",
     .choices = gr_metric_names,
     .help = "keep_best: by which one is the best; with early_stopping its metric"},
    {.key = "to",
     .type = GR_CONFIG_TEXT,
     .offset = AT(to),
     .value_name = "FOLDER",
     .help = "relative to the current folder; default: <output>/checkpoints (also "
             "--checkpoint-to)"},
    {0}};

const gr_config_table gr_checkpoint_config_table = {
    .name = "checkpoint",
    .title = "The checkpoint part of a job file: the state, saved to go on from",
    .fields = checkpoint_fields,
    .struct_bytes = sizeof(gr_checkpoint_config)};

#undef AT
#define AT(field) offsetof(gr_job_run, field)

static const gr_config_field run_fields[] = {
    {.key = "workers",
     .type = GR_CONFIG_INT,
     .offset = AT(workers),
     .min = 1,
     .max = GR_JOB_WORKERS_MAX,
     .help = "with how many the job starts"},
    {.key = "json",
     .type = GR_CONFIG_BOOL,
     .offset = AT(json),
     .default_text = "false",
     .help = "report as JSON, one object a line"},
    {.key = "resume",
     .type = GR_CONFIG_TEXT,
     .offset = AT(resume),
     .value_name = "FOLDER",
     .help = "the checkpoint to go on from; default: from the beginning"},
    {.key = "chaos",
     .type = GR_CONFIG_TEXT,
     .offset = AT(chaos),
     .value_name = "FAULTS",
     .help = "faults to inject (docs/chaos.md)"},
    {.key = "chaos_after",
     .type = GR_CONFIG_INT,
     .offset = AT(chaos_after),
     .default_text = "0",
     .min = 0,
     .max = COUNT_MAX,
     .unit = "steps",
     .help = "faults of steps up to this one have happened"},
    {0}};

const gr_config_table gr_job_run_table = {
    .name = "job document",
    .title = "The run part of a job document, by which gradus run hands a job on to its workers",
    .fields = run_fields,
    .struct_bytes = sizeof(gr_job_run)};
