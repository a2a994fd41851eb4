/* SPDX-License-Identifier: Apache-2.0 */
#ifndef GR_TEST_SUPPORT_TRAIN_H
#define GR_TEST_SUPPORT_TRAIN_H

/* Small jobs on the digits, and groups of forked processes. Everything asserts: a test that
 * cannot be set up fails. */

#include "train/step.h"
#include "train/train.h"

#include <jansson.h>

enum { SUPPORT_PATH_BYTES = 256, SUPPORT_SHA_BYTES = 65, SUPPORT_SENTENCE_BYTES = 600 };

typedef struct support_job {
    const char *model;        /* the list under `model:`, indented by two; NULL: a small MLP */
    const char *optimizer;    /* lines under `optimizer:`; NULL: sgd */
    const char *distribution; /* lines under `distribution:` besides shards; NULL */
    const char *checkpoint;   /* what stands behind `checkpoint:`; NULL: nothing */
    int shards, steps, global_batch, micro_batches;
} support_job;

/* First thing in main: one thread for the kernels, as in a worker. OpenMP reads its environment
 * when the program is loaded, so the program may start itself again; and a process whose kernels
 * have started threads could not be forked. */
void support_one_thread(char **argv);

/* A convolutional net with batch norm and dropout. */
extern const char support_cnn[];

/* A new folder under the temporary one; remove it with support_clean. */
void support_folder(char path_out[SUPPORT_PATH_BYTES]);
void support_clean(const char *folder);

/* Writes <folder>/job.yaml; the output folder is <folder>/out. */
void support_write(const char *folder, const support_job *job);
/* Writes and opens it. */
gr_job *support_open(const char *folder, const support_job *job, int workers);

/* Runs `member` in `world_size` forked processes, each with a communicator of the group; returns
 * when all have ended. The exit codes are what `member` returned (0 .. 100), 120 when the group
 * could not be joined, 128 + signal when one was killed. The environment of the caller is passed
 * on; with GRADUS_MIN_WORKERS in it the group goes on while so many live. */
typedef int support_member(int rank, gr_comm *comm, void *arg);
void support_group(int world_size, const char *link, support_member *member, void *arg,
                   int *exit_codes_out);

/* ---- Whole runs ---- */

extern const gr_train_options support_quiet; /* no report */

/* A support_member: trains <folder>/job.yaml (`arg`: the folder), and leaves status and sentence of
 * this rank in <folder>/rank.<rank>. */
int support_train_member(int rank, gr_comm *comm, void *arg);
/* Reads them. The status is returned. */
gr_status support_read_end(const char *folder, int rank, char sentence_out[SUPPORT_SENTENCE_BYTES]);

/* The value of a key in the last line of <folder>/out/metrics.jsonl; a new reference. */
json_t *support_end_value(const char *folder, const char *key);
/* The hash of the weights in it. */
void support_end_sha(const char *folder, char sha_out[SUPPORT_SHA_BYTES]);

/* Trains in a group of so many workers, all of which must succeed; the hash of the weights. */
void support_train_group(const support_job *job, int workers, const char *link,
                         char sha_out[SUPPORT_SHA_BYTES]);
/* With one worker and with each of these numbers of workers: the hash must be the same. */
void support_same_for_all(const support_job *job, const int *worlds, int count, const char *link,
                          char sha_out[SUPPORT_SHA_BYTES]);

/* A trainer that is in its group and begins with step 0. */
gr_status support_trainer_init(gr_trainer *trainer, gr_job *job, gr_comm *comm,
                               gr_diag *diag) GR_MUST_CHECK;

/* ---- Naively: a shard's gradient as it is defined, without a trainer ---- */

typedef struct support_naive {
    const gr_job *job;
    gr_model *model;
    float *x;
    int32_t *labels;
    int64_t *numbers;
} support_naive;

/* The digits; gradients are means over `batch` samples. */
void support_naive_init(support_naive *naive, const gr_job *job, int64_t batch);
void support_naive_fini(support_naive *naive);
/* Of one shard in step `step`; returns the sum of its samples' losses. */
double support_naive_gradient(support_naive *naive, const float *values, uint64_t step, int shard,
                              float *gradient_out);

#endif
