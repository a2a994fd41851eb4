/* SPDX-License-Identifier: Apache-2.0 */
#include "train/checkpoint/checkpoint_save.h"

#include "base/clock.h"
#include "base/fail.h"
#include "base/memory.h"
#include "base/thread.h"

#include <pthread.h>
#include <stdatomic.h>
#include <stdlib.h>
#include <string.h>

enum {
    VECTORS_MAX = 1 + GR_CHECKPOINT_STATES_MAX,
    PIECE_VALUES = 64 << 10, /* the longest that one thread waits for the other's piece */
    ARENA_BYTES_MAX = 64 << 20
};

typedef enum saver_state {
    SAVER_IDLE,    /* nothing to do */
    SAVER_BUSY,    /* a checkpoint is being copied and written */
    SAVER_LEAVING, /* the thread ends */
} saver_state;

struct gr_saver {
    const gr_log *log;
    gr_arena arena; /* of the fingerprint */
    gr_fingerprint fingerprint;
    bool keep_best;
    gr_checkpoint_tensors source, copy;
    float *copies[VECTORS_MAX]; /* NULL: there are none, everything is written from the source */
    size_t length;              /* of a vector */

    /* The copying: pieces are taken by whoever comes first. Reset while the thread is idle. */
    size_t pieces;
    atomic_size_t next_piece, copied;

    pthread_mutex_t lock; /* guards what follows; held for moments only */
    pthread_cond_t changed;
    saver_state state;
    gr_checkpoint_info info;
    bool copying; /* of the one on its way: is it to be written from the copy? */
    gr_status result;
    gr_diag diag; /* of the last one */

    gr_checkpoint_folder folder; /* the thread's */
    char *reported;              /* the thread's: why the last one failed, already said; or NULL */
    pthread_t thread;
    gr_saver_counts counts; /* the caller's */
};

/* ---- Copying --------------------------------------------------------------------------------- */

static const float *vector_of(const gr_checkpoint_tensors *tensors, size_t index)
{
    return index == 0 ? tensors->values : tensors->state[index - 1];
}

/* Takes pieces until there are none left. */
static void copy_pieces(gr_saver *s)
{
    size_t per_vector = (s->length + PIECE_VALUES - 1) / PIECE_VALUES, piece;
    while ((piece = atomic_fetch_add(&s->next_piece, 1)) < s->pieces) {
        size_t vector = piece / per_vector, at = piece % per_vector * PIECE_VALUES;
        size_t count = s->length - at < PIECE_VALUES ? s->length - at : PIECE_VALUES;
        memcpy(s->copies[vector] + at, vector_of(&s->source, vector) + at, count * sizeof(float));
        if (atomic_fetch_add(&s->copied, 1) + 1 == s->pieces) {
            pthread_mutex_lock(&s->lock);
            pthread_cond_broadcast(&s->changed);
            pthread_mutex_unlock(&s->lock);
        }
    }
}

static void wait_for_copies(gr_saver *s)
{
    pthread_mutex_lock(&s->lock);
    while (atomic_load(&s->copied) < s->pieces) {
        pthread_cond_wait(&s->changed, &s->lock);
    }
    pthread_mutex_unlock(&s->lock);
}

/* ---- The thread ------------------------------------------------------------------------------ */

/* What makes a failure another one: its reason, not the step in the file's name. */
static const char *reason_of(const gr_diag *diag)
{
    const char *colon = strrchr(diag->text, ':');
    return colon != NULL ? colon : diag->text;
}

static void report(gr_saver *s, gr_status status, const gr_diag *diag, uint64_t step)
{
    if (status == GR_OK) {
        if (s->reported != NULL) {
            gr_log_write(s->log, GR_LOG_WARN, "checkpoint", "step %llu was written again",
                         (unsigned long long)step);
        }
        free(s->reported);
        s->reported = NULL;
        return;
    }
    if (s->reported == NULL || strcmp(s->reported, reason_of(diag)) != 0) {
        gr_log_write(s->log, GR_LOG_WARN, "checkpoint",
                     "%s; the training goes on without it (this is said once)", diag->text);
        free(s->reported);
        s->reported = strdup(reason_of(diag));
    }
}

static void write_one(gr_saver *s, const gr_checkpoint_info *info, bool copying)
{
    gr_diag diag = {0}, removal = {0};
    if (copying) {
        copy_pieces(s);
        wait_for_copies(s);
    }
    gr_status status = gr_checkpoint_put(&s->folder, info, &s->fingerprint,
                                         copying ? &s->copy : &s->source, &diag);
    report(s, status, &diag, info->step);
    s->folder.best = s->keep_best ? info->best.step : 0;
    if (status == GR_OK && gr_checkpoint_retain(&s->folder, info->step, &removal) != GR_OK) {
        gr_log_write(s->log, GR_LOG_WARN, "checkpoint", "%s", removal.text);
    }
    pthread_mutex_lock(&s->lock);
    s->result = status;
    s->diag = diag;
    s->state = s->state == SAVER_BUSY ? SAVER_IDLE : s->state;
    pthread_cond_broadcast(&s->changed);
    pthread_mutex_unlock(&s->lock);
}

/* It takes no signals. That of a file that reaches a limit of its size (ulimit -f) would end the
 * process: blocked, it is a failure of write. */
static void *run_thread(void *arg)
{
    gr_saver *s = arg;
    pthread_mutex_lock(&s->lock);
    while (s->state != SAVER_LEAVING) {
        if (s->state == SAVER_BUSY) {
            gr_checkpoint_info info = s->info;
            bool copying = s->copying;
            pthread_mutex_unlock(&s->lock);
            write_one(s, &info, copying);
            pthread_mutex_lock(&s->lock);
        } else {
            pthread_cond_wait(&s->changed, &s->lock);
        }
    }
    pthread_mutex_unlock(&s->lock);
    return NULL;
}

/* ---- The caller ------------------------------------------------------------------------------ */

static gr_status make_copies(gr_saver *s, gr_diag *diag)
{
    size_t bytes = s->length * sizeof(float);
    s->copy = s->source;
    for (int i = 0; i <= s->source.states; i++) {
        s->copies[i] = gr_zeros(bytes); /* touched now, not within a step */
        if (s->copies[i] == NULL) {
            return gr_fail(diag, GR_E_NO_MEMORY,
                           "no memory for checkpoints beside the training (%d copies of %zu MiB); "
                           "remove checkpoint: from the job, or use a smaller model",
                           s->source.states + 1, bytes >> 20);
        }
    }
    s->copy.values = s->copies[0];
    for (int i = 0; i < s->source.states; i++) {
        s->copy.state[i] = s->copies[i + 1];
    }
    return GR_OK;
}

/* For jobs that say how often. A folder that cannot be written, or that another run holds, may be
 * free later on. */
static gr_status prepare(gr_saver *s, gr_diag *diag)
{
    gr_diag why = {0};
    gr_status status = make_copies(s, diag);
    if (status != GR_OK) {
        return status;
    }
    status = gr_checkpoint_folder_open(&s->folder, &why);
    if (status == GR_E_NO_MEMORY) {
        return gr_fail(diag, status, "%s", why.text);
    }
    report(s, status, &why, 0);
    return GR_OK;
}

static void free_saver(gr_saver *s)
{
    for (int i = 0; i < VECTORS_MAX; i++) {
        free(s->copies[i]);
    }
    gr_checkpoint_folder_close(&s->folder);
    gr_arena_fini(&s->arena);
    free(s->reported);
    pthread_cond_destroy(&s->changed);
    pthread_mutex_destroy(&s->lock);
    free(s);
}

gr_status gr_saver_create(const gr_job *job, const gr_checkpoint_tensors *source,
                          const gr_checkpoint_writer *writer, const gr_log *log,
                          gr_saver **saver_out, gr_diag *diag)
{
    gr_saver *s = calloc(1, sizeof *s);
    if (s == NULL) {
        return gr_fail(diag, GR_E_NO_MEMORY, "no memory for checkpoints");
    }
    s->log = log;
    s->keep_best = job->checkpoint.keep_best;
    s->source = *source;
    s->length = gr_model_values(source->model);
    s->folder = (gr_checkpoint_folder){
        .path = job->checkpoint.to, .keep = job->checkpoint.keep, .writer = *writer, .lock_fd = -1};
    pthread_mutex_init(&s->lock, NULL);
    pthread_cond_init(&s->changed, NULL);
    gr_arena_init(&s->arena, ARENA_BYTES_MAX);
    gr_status status = gr_fingerprint_of_job(job, &s->arena, &s->fingerprint, diag);
    if (status == GR_OK && gr_job_writes_checkpoints(job)) {
        status = prepare(s, diag);
    }
    int error = status == GR_OK ? gr_thread_create(&s->thread, NULL, run_thread, s) : 0;
    if (error != 0) {
        status = gr_fail(diag, GR_E_IO, "no thread for checkpoints: %s", strerror(error));
    }
    if (status != GR_OK) {
        free_saver(s);
        return status;
    }
    *saver_out = s;
    return GR_OK;
}

void gr_saver_destroy(gr_saver *saver)
{
    if (saver == NULL) {
        return;
    }
    gr_saver_settle(saver);
    pthread_mutex_lock(&saver->lock);
    while (saver->state == SAVER_BUSY) {
        pthread_cond_wait(&saver->changed, &saver->lock);
    }
    saver->state = SAVER_LEAVING;
    pthread_cond_broadcast(&saver->changed);
    pthread_mutex_unlock(&saver->lock);
    pthread_join(saver->thread, NULL);
    free_saver(saver);
}

bool gr_saver_busy(gr_saver *saver)
{
    pthread_mutex_lock(&saver->lock);
    bool busy = saver->state == SAVER_BUSY;
    pthread_mutex_unlock(&saver->lock);
    return busy;
}

void gr_saver_begin(gr_saver *saver, const gr_checkpoint_info *info, const float *residuals,
                    bool copy)
{
    gr_saver *s = saver;
    int64_t begun_ns = gr_now_ns();
    s->copying = copy && s->copies[0] != NULL;
    size_t per_vector = (s->length + PIECE_VALUES - 1) / PIECE_VALUES;
    s->pieces = s->copying ? per_vector * (size_t)(s->source.states + 1) : 0;
    atomic_store(&s->copied, 0);
    atomic_store(&s->next_piece, 0);
    pthread_mutex_lock(&s->lock);
    s->info = *info;
    s->source.residuals = s->copy.residuals = residuals;
    s->state = SAVER_BUSY;
    pthread_cond_broadcast(&s->changed);
    pthread_mutex_unlock(&s->lock);
    s->counts.begun++;
    s->counts.held_ns += gr_now_ns() - begun_ns;
}

void gr_saver_settle(gr_saver *saver)
{
    if (saver == NULL || atomic_load(&saver->copied) >= saver->pieces) {
        return;
    }
    int64_t begun_ns = gr_now_ns();
    copy_pieces(saver);
    wait_for_copies(saver);
    saver->counts.held_ns += gr_now_ns() - begun_ns;
}

gr_status gr_saver_wait(gr_saver *saver, gr_diag *diag)
{
    pthread_mutex_lock(&saver->lock);
    while (saver->state == SAVER_BUSY) {
        pthread_cond_wait(&saver->changed, &saver->lock);
    }
    gr_status status = saver->result;
    if (status != GR_OK && diag != NULL) {
        *diag = saver->diag;
    }
    pthread_mutex_unlock(&saver->lock);
    return status;
}

gr_saver_counts gr_saver_counts_of(const gr_saver *saver)
{
    return saver->counts;
}
