/* SPDX-License-Identifier: Apache-2.0 */
#ifndef GR_TRAIN_JOB_H
#define GR_TRAIN_JOB_H

/* A job: parsed (text to settings), resolved (defaults, and every check that needs no data) and
 * bound (data, shapes, steps). Everything that can be wrong is found here, before anything starts.
 * The resolved job is a document, by which the launcher hands it on to workers. */

#include "base/arena.h"
#include "data/dataset.h"
#include "group/topology.h"
#include "nn/loss.h"
#include "nn/model.h"
#include "nn/optimizer.h"

typedef struct gr_strategy gr_strategy; /* train/strategy/strategy.h */

/* Strategy local: what becomes of the optimizer's vectors, in the order of the choices. */
typedef enum gr_local_state { GR_LOCAL_AVERAGE = 0, GR_LOCAL_KEEP = 1 } gr_local_state;

/* The `distribution:` part. */
typedef struct gr_distribution_config {
    int distribution_type;     /* Job (this issue); MPI, TF: GR_E_UNSUPPORTED sentence for now */
    int strategy;              /* of gr_strategy_name */
    const char *sync_every;    /* local: "8 steps", "epoch"; NULL: not given */
    int local_state;           /* local: a gr_local_state */
    const gr_node *outer;      /* local: for others to read */
    int consistency;           /* ps: of gr_job_consistency_name */
    int64_t aggregate;         /* ps, bsp: so many workers make a step; 0: all */
    int64_t staleness;         /* ps, ssp; -1: not given */
    bool adapt_rate;           /* ps, ssp and async */
    const gr_node *workers;    /* number_of_workers: a number, or min and max */
    int64_t number_of_workers; /* to start with; 0: one for each core */
    int64_t workers_min, workers_max; /* that it may have meanwhile; 0: not given */
    int64_t servers;                  /* parameter servers; 0: not given; also --servers */
    int64_t server_replicas;          /* of what each of them keeps, on another one: 0 or 1 */
    int64_t worker_threads;           /* threads of the kernels in a worker, default 1 */
    int64_t shards; /* 0: 8, or the largest power of two below that divides the global batch */
    bool exact;
    int link;                                 /* auto, shm, tcp; also --link and GRADUS_LINK */
    bool encrypt;                             /* TLS by tcp; also --encrypt and GRADUS_ENCRYPT */
    int64_t bucket_bytes_first, bucket_bytes; /* 1 MiB, then larger */
    bool overlap;                             /* reduce buckets while the backward pass goes on */
    int compression;                          /* a gr_compression */
    double compression_ratio;                 /* topk */
} gr_distribution_config;
extern const gr_config_table gr_distribution_config_table;

/* Its `outer:` part: strategy local's optimizer of the averaged change. */
typedef struct gr_outer_config {
    bool wanted; /* there is such a part */
    double learning_rate, momentum;
    bool nesterov;
} gr_outer_config;
extern const gr_config_table gr_outer_config_table;

/* What may be watched, in the order of the choices of `metric`. */
typedef enum gr_metric {
    GR_METRIC_TEST_LOSS = 0,
    GR_METRIC_TEST_ACCURACY = 1,
    GR_METRIC_TEST_RMSE = 2,
    GR_METRIC_TEST_MAE = 3,
    GR_METRIC_TEST_R2 = 4,
    GR_METRIC_LOSS = 5 /* of the training */
} gr_metric;
extern const char *const gr_metric_names[]; /* ends with NULL */

/* The `early_stopping:` part. */
typedef struct gr_early_stopping_config {
    bool wanted; /* there is such a part */
    int metric;  /* a gr_metric */
    int64_t patience;
    double min_delta;
} gr_early_stopping_config;
extern const gr_config_table gr_early_stopping_config_table;

/* The `checkpoint:` part. */
typedef struct gr_checkpoint_config {
    const char *every; /* "100 steps", "5 min", "1 epoch"; NULL: only when asked to end */
    int64_t keep;      /* the newest so many; 0: all */
    bool keep_best;
    int metric;     /* of keep_best: a gr_metric */
    const char *to; /* folder */
} gr_checkpoint_config;
extern const gr_config_table gr_checkpoint_config_table;

/* The top of the file. */
typedef struct gr_job_config {
    const char *name;
    const gr_node *model, *data, *optimizer, *distribution, *checkpoint,
        *early_stopping; /* for others */
    int loss;            /* cross_entropy, mse */
    int64_t seed;
    double epochs; /* either ... */
    int64_t steps; /* ... or */
    int64_t global_batch;
    int64_t micro_batches; /* gradient accumulation inside a shard */
    int64_t eval_every;    /* epochs between evaluations on the test part; 0: only at the end */
    const char *output;    /* folder for weights and metrics */
} gr_job_config;
extern const gr_config_table gr_job_config_table;

/* What one run of the job adds to the settings of the file. */
typedef struct gr_job_run {
    int64_t workers;       /* to start with; 0: as the job says */
    int64_t workers_max;   /* while it runs; 0: as the job says */
    int default_workers;   /* when neither says: cores */
    int checkpoint_shards; /* of the checkpoint to go on from, where the job says none; 0 */
    bool json;             /* report as JSON */
    bool all_stop;         /* it ends early only when all of its workers are asked to */
    const char *resume;    /* the checkpoint to go on from; NULL: from the beginning */
    const char *chaos;     /* faults to inject; NULL: none */
    int64_t chaos_after;   /* those of steps up to this one have happened */
} gr_job_run;
extern const gr_config_table gr_job_run_table; /* the `run` part of a document */

typedef struct gr_job {
    const char *path;    /* of the job file: its relative paths begin there */
    const gr_node *root; /* the settings of the file */
    gr_job_config config;
    gr_data_config data;
    gr_optimizer_config optimizer;
    gr_distribution_config distribution;
    gr_outer_config outer;
    gr_checkpoint_config checkpoint;
    gr_early_stopping_config early_stopping;
    gr_job_run run;
    bool writes_nothing; /* whether its folders can be written does not matter here: it runs on
                          * other hosts, or is only looked at. To be set before gr_job_resolve */
    bool trains_nothing; /* so it does not matter how many workers it has; likewise */

    /* Resolved. */
    int workers;     /* at the start ... */
    int workers_min; /* ... the fewest with which it goes on ... */
    int workers_max; /* ... and the most that it may get */
    int shards;
    const gr_strategy *strategy;
    int consistency;     /* ps: a gr_consistency (gradus/ps.h) */
    int64_t shard_batch; /* global_batch / shards */
    int64_t micro_batch; /* shard_batch / micro_batches: the model's batch */
    int metric;          /* that is watched: a gr_metric; -1: none */

    /* Bound. */
    gr_dataset *dataset; /* NULL: the job is not bound */
    gr_model_spec *spec;
    gr_shape input;
    uint64_t steps_per_epoch, total_steps;
    uint64_t sync_steps;       /* strategy local: of a round, at most an epoch's; else 0 */
    uint64_t checkpoint_steps; /* between two checkpoints; 0: not by steps */
    int64_t checkpoint_us;     /* likewise; both 0: only when asked to end */
    gr_arena arena;
    gr_doc *doc;
} gr_job;

/* What the command line says over the file. */
typedef struct gr_job_overrides {
    bool writes_nothing;                          /* it is only looked at: see gr_job */
    bool trains_nothing;                          /* likewise */
    gr_job_run run;                               /* -np, --max-workers, ... */
    const char *link;                             /* --link; NULL */
    const char *output;                           /* --output; NULL */
    const char *checkpoint_every, *checkpoint_to; /* --checkpoint-every, ...-to; NULL */
    const char *const *set; /* --set: "key=value", in place of what the file says; ends with NULL */
} gr_job_overrides;

/* Reads a job file. The environment (GRADUS_LINK, ...) stands between file and `overrides`, whose
 * texts are borrowed as long as the job lives. GR_E_INVALID, GR_E_NOT_FOUND, GR_E_NO_MEMORY, with
 * file, line and remedy; so do all functions here. */
gr_status gr_job_parse(const char *path, const gr_job_overrides *overrides, gr_job **job_out,
                       gr_diag *diag) GR_MUST_CHECK;
/* Reads a document. What stands there is final: the environment changes none of it. GR_E_INVALID
 * also: it was cut, or is of another version. */
gr_status gr_job_parse_document(const char *text, size_t size_bytes, gr_job **job_out,
                                gr_diag *diag) GR_MUST_CHECK;
/* Sets what the settings leave open, and checks what can be checked without data. May be called
 * again when `run` was changed. GR_E_UNSUPPORTED: a kind of job that is not run here. */
gr_status gr_job_resolve(gr_job *job, gr_diag *diag) GR_MUST_CHECK;
/* Opens the data of a resolved job, and finds what depends on it: steps, and the model's shapes.
 * Once. GR_E_NOT_FOUND: a file is not there. */
gr_status gr_job_bind(gr_job *job, gr_diag *diag) GR_MUST_CHECK;
/* All three. */
gr_status gr_job_open(const char *path, const gr_job_overrides *overrides, gr_job **job_out,
                      gr_diag *diag) GR_MUST_CHECK;
void gr_job_close(gr_job *job);

/* The document of a resolved job, as JSON text with a line break at its end, in heap memory (free):
 *
 *   {"gradus_job": 1,       the version
 *    "path": "job.yaml",    relative paths of data files begin at this file
 *    "job": {...},          the settings, by the keys of a job file; none is left to a default
 *    "run": {...}}          gr_job_run_table
 *
 * Keys that are not set, and have no default, are left out. GR_E_INVALID: a text that is no UTF-8.
 */
enum { GR_JOB_DOCUMENT_VERSION = 1 };
gr_status gr_job_document(const gr_job *job, char **text_out, gr_diag *diag) GR_MUST_CHECK;

/* Workers with a connection of their own to parameter servers: a third of the numbers, so that
 * those of three generations in a row differ. */
enum { GR_JOB_PS_WORKERS_MAX = 64 };

/* Returns true if each worker does steps of its own, without waiting for those of the others. */
bool gr_job_is_asynchronous(const gr_job *job);

/* Returns true if the job writes checkpoints before it is asked to end. */
bool gr_job_writes_checkpoints(const gr_job *job);

/* Checks that the parameter servers that the strategy needs are there. GR_E_INVALID: they are
 * not. */
gr_status gr_job_check_servers(const gr_job *job, bool there, gr_diag *diag) GR_MUST_CHECK;

/* What a worker computes in a step of the job, measured here with one micro batch and as many
 * threads as a worker has: the least time of a few. */
typedef struct gr_job_times {
    double forward_us, backward_us, update_us; /* of the worker with the most shards */
    int64_t parameter_bytes;
} gr_job_times;
gr_status gr_job_measure(const gr_job *job, gr_job_times *times_out, gr_diag *diag) GR_MUST_CHECK;

/* --dry-run: layers with shapes and parameter counts, memory per worker, batch arithmetic, the
 * plan. Of a job that is not bound, what is known without its data, and `why_not`. `topology`: of
 * its workers; NULL: one host. */
gr_status gr_job_print(const gr_job *job, const gr_topology *topology, const char *why_not,
                       FILE *file, gr_diag *diag) GR_MUST_CHECK;

#endif
