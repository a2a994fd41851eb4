/* SPDX-License-Identifier: Apache-2.0 */
#ifndef GR_TEST_SUPPORT_TRAIN_H
#define GR_TEST_SUPPORT_TRAIN_H

/* Small jobs on the digits, and groups of forked processes. Everything asserts: a test that
 * cannot be set up fails. */

#include "train/train.h"

enum { SUPPORT_PATH_BYTES = 256 };

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
 * on. */
typedef int support_member(int rank, gr_comm *comm, void *arg);
void support_group(int world_size, const char *link, support_member *member, void *arg,
                   int *exit_codes_out);

#endif
