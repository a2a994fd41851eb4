/* SPDX-License-Identifier: Apache-2.0 */
#include "train/checkpoint/checkpoint.h"

#include "base/fail.h"
#include "base/file.h"
#include "train/strategy/local.h"
#include "train/strategy/strategy.h"

#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <inttypes.h>
#include <limits.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#define STEP_PREFIX "step-"
#define PARTIAL_SUFFIX ".partial"

enum {
    STEP_DIGITS = 9,
    STEPS_MAX = 1 << 20,
    /* A run that was killed may need a moment until the kernel has ended its last process. */
    LOCK_PATIENCE_MS = 2000
};

/* ---- Names ----------------------------------------------------------------------------------- */

/* The step of "step-000000400"; false: another name. */
static bool read_step(const char *name, uint64_t *step_out)
{
    size_t prefix = strlen(STEP_PREFIX);
    if (strncmp(name, STEP_PREFIX, prefix) != 0) {
        return false;
    }
    const char *digits = name + prefix;
    size_t count = strspn(digits, "0123456789");
    if (count < STEP_DIGITS || count > 18 || digits[count] != '\0') {
        return false;
    }
    *step_out = strtoull(digits, NULL, 10);
    return true;
}

static bool is_partial(const char *name)
{
    size_t size = strlen(name), suffix = strlen(PARTIAL_SUFFIX);
    return name[0] == '.' && size > suffix && strcmp(name + size - suffix, PARTIAL_SUFFIX) == 0;
}

gr_status gr_checkpoint_path(const char *folder, uint64_t step, char *path_out, size_t path_bytes,
                             gr_diag *diag)
{
    char name[64];
    snprintf(name, sizeof name, STEP_PREFIX "%0*" PRIu64, STEP_DIGITS, step);
    return gr_path_join(folder, name, path_out, path_bytes, diag);
}

/* Each writer has its own: an old one that goes on does not write into the new one's. */
static gr_status partial_path(const gr_checkpoint_folder *folder, uint64_t step,
                              char path_out[PATH_MAX], gr_diag *diag)
{
    char name[96];
    snprintf(name, sizeof name, "." STEP_PREFIX "%0*" PRIu64 ".%" PRIu64 PARTIAL_SUFFIX,
             STEP_DIGITS, step, folder->writer.generation);
    return gr_path_join(folder->path, name, path_out, PATH_MAX, diag);
}

/* ---- Looking --------------------------------------------------------------------------------- */

static int compare_steps(const void *a, const void *b)
{
    uint64_t left = *(const uint64_t *)a, right = *(const uint64_t *)b;
    return (left > right) - (left < right);
}

gr_status gr_checkpoint_list(const char *folder, uint64_t **steps_out, int *count_out,
                             gr_diag *diag)
{
    int count = 0, capacity = 64;
    *count_out = 0;
    *steps_out = NULL;
    DIR *dir = opendir(folder);
    if (dir == NULL) {
        return errno == ENOENT ? GR_OK : gr_fail_errno(diag, "read the folder", folder, errno);
    }
    uint64_t *steps = malloc((size_t)capacity * sizeof *steps);
    for (struct dirent *entry; steps != NULL && (entry = readdir(dir)) != NULL;) {
        uint64_t step;
        if (!read_step(entry->d_name, &step) || count == STEPS_MAX) {
            continue;
        }
        if (count == capacity) {
            capacity *= 2;
            uint64_t *more = realloc(steps, (size_t)capacity * sizeof *steps);
            if (more == NULL) {
                free(steps);
            }
            steps = more;
        }
        if (steps != NULL) {
            steps[count++] = step;
        }
    }
    closedir(dir);
    if (steps == NULL) {
        return gr_fail(diag, GR_E_NO_MEMORY, "no memory for the list of checkpoints in %s", folder);
    }
    qsort(steps, (size_t)count, sizeof *steps, compare_steps);
    *steps_out = steps;
    *count_out = count;
    return GR_OK;
}

/* Opens and checks all of it. */
static gr_status open_sound(const char *path, gr_checkpoint **checkpoint_out, gr_diag *diag)
{
    gr_checkpoint *checkpoint = NULL;
    gr_status status = gr_checkpoint_open(path, &checkpoint, diag);
    if (status == GR_OK) {
        status = gr_checkpoint_check(checkpoint, diag);
    }
    if (status != GR_OK) {
        gr_checkpoint_close(checkpoint);
        return status;
    }
    *checkpoint_out = checkpoint;
    return GR_OK;
}

gr_status gr_checkpoint_newest(const char *folder, const gr_log *log,
                               gr_checkpoint **checkpoint_out, gr_diag *diag)
{
    uint64_t *steps = NULL;
    int count = 0;
    gr_status status = gr_checkpoint_list(folder, &steps, &count, diag);
    if (status != GR_OK) {
        return status;
    }
    gr_diag why = {0};
    bool found = false;
    for (int i = count - 1; i >= 0 && status == GR_OK && !found; i--) {
        char path[PATH_MAX];
        status = gr_checkpoint_path(folder, steps[i], path, sizeof path, diag);
        if (status != GR_OK) {
            break;
        }
        gr_status sound = open_sound(path, checkpoint_out, &why);
        found = sound == GR_OK;
        if (sound == GR_E_NO_MEMORY || sound == GR_E_UNSUPPORTED) {
            status = gr_fail(diag, sound, "%s", why.text);
        } else if (!found) {
            gr_log_write(log, GR_LOG_WARN, "checkpoint", "%s; %s", why.text,
                         i > 0 ? "the one before it is tried" : "there is none before it");
        }
    }
    free(steps);
    if (status != GR_OK || found) {
        return status;
    }
    return count == 0 ? gr_fail(diag, GR_E_NOT_FOUND, "there is no checkpoint in %s", folder)
                      : gr_fail(diag, GR_E_INVALID,
                                "none of the %d checkpoints in %s is sound; remove them to start "
                                "from the beginning, or take another folder (checkpoint: to, "
                                "--checkpoint-to)",
                                count, folder);
}

/* GR_E_INVALID: settings that decide over the bits are others. */
static gr_status check_job(const gr_job *job, const gr_checkpoint *checkpoint,
                           char path_out[PATH_MAX], gr_diag *diag)
{
    enum { ARENA_BYTES_MAX = 64 << 20 };
    gr_arena arena;
    gr_fingerprint own;
    gr_arena_init(&arena, ARENA_BYTES_MAX);
    gr_status status = gr_checkpoint_path(
        job->checkpoint.to, gr_checkpoint_info_of(checkpoint)->step, path_out, PATH_MAX, diag);
    if (status == GR_OK) {
        status = gr_fingerprint_of_job(job, &arena, &own, diag);
    }
    if (status == GR_OK) {
        status = gr_fingerprint_compare(gr_checkpoint_fingerprint_of(checkpoint), &own, path_out,
                                        job->path, diag);
    }
    gr_arena_fini(&arena);
    return status;
}

gr_status gr_checkpoint_fits(const gr_job *job, const gr_checkpoint *checkpoint, gr_diag *diag)
{
    const gr_checkpoint_info *info = gr_checkpoint_info_of(checkpoint);
    char path[PATH_MAX];
    gr_status status = check_job(job, checkpoint, path, diag);
    if (status == GR_OK && info->step > job->total_steps) {
        return gr_fail(diag, GR_E_INVALID,
                       "%s is beyond the job's end: it has done %" PRIu64 " steps, the job has "
                       "%" PRIu64 "; raise epochs or steps, or remove it to go on from an earlier "
                       "one",
                       path, info->step, job->total_steps);
    }
    return status;
}

/* What the length of a job decides is not as it was. */
static void warn_of_length(const gr_job *job, const gr_checkpoint_info *info, const gr_log *log)
{
    const gr_schedule_ops *schedule = gr_schedule_ops_at(job->optimizer.schedule);
    if (info->total_steps != job->total_steps && schedule->by_length) {
        gr_log_write(log, GR_LOG_WARN, "checkpoint",
                     "so far the job had %" PRIu64 " steps, now it has %" PRIu64 ": the %s "
                     "schedule depends on that, so the weights will be those of neither",
                     info->total_steps, job->total_steps, schedule->name);
    }
    if (job->strategy->averages_weights && info->step > 0 &&
        gr_local_round_end(job, info->step - 1) != info->step) {
        gr_log_write(log, GR_LOG_WARN, "checkpoint",
                     "at step %" PRIu64 " the weights were averaged within a round of strategy %s, "
                     "since the job had %" PRIu64 " steps; now it has %" PRIu64 ", so the weights "
                     "will be those of neither",
                     info->step, job->strategy->name, info->total_steps, job->total_steps);
    }
}

gr_status gr_checkpoint_find(const gr_job *job, const gr_log *log, gr_checkpoint **checkpoint_out,
                             gr_diag *diag)
{
    gr_checkpoint *found = NULL;
    *checkpoint_out = NULL;
    gr_status status = gr_checkpoint_newest(job->checkpoint.to, log, &found, diag);
    if (status == GR_E_NOT_FOUND) {
        gr_log_write(log, GR_LOG_WARN, "checkpoint",
                     "there is none in %s: the training starts from the beginning",
                     job->checkpoint.to);
        return GR_OK;
    }
    if (status != GR_OK) {
        return status;
    }
    const gr_checkpoint_info *info = gr_checkpoint_info_of(found);
    if (job->distribution.shards > 0 || info->shards == job->shards) {
        status = gr_checkpoint_fits(job, found, diag);
    }
    if (status != GR_OK) {
        gr_checkpoint_close(found);
        return status;
    }
    warn_of_length(job, info, log);
    *checkpoint_out = found;
    return GR_OK;
}

/* ---- Before a run ---------------------------------------------------------------------------- */

/* A job that writes none of its own accord writes one when it is asked to end. Beside those of
 * another job --resume could take the wrong one; those of the same job have its bits. */
static gr_status may_stop(const gr_job *job, gr_diag *diag)
{
    gr_checkpoint *newest = NULL;
    char path[PATH_MAX];
    gr_diag why;
    gr_status status = gr_checkpoint_newest(job->checkpoint.to, NULL, &newest, &why);
    if (status != GR_OK) {
        return GR_OK; /* nothing that --resume would take, or could read */
    }
    status = check_job(job, newest, path, diag);
    gr_checkpoint_close(newest);
    return status;
}

gr_status gr_checkpoint_may_start(const gr_job *job, bool resume, gr_diag *diag)
{
    const char *folder = job->checkpoint.to;
    struct stat info;
    if (stat(folder, &info) != 0) {
        return GR_OK;
    }
    if (!resume && !gr_job_writes_checkpoints(job)) {
        return may_stop(job, diag);
    }
    uint64_t *steps = NULL;
    int count = 0, lock_fd = -1;
    const gr_checkpoint_writer nobody = {.run = 0};
    gr_status status = gr_checkpoint_lock_take(folder, &nobody, LOCK_PATIENCE_MS, &lock_fd, diag);
    if (lock_fd >= 0) {
        close(lock_fd);
    }
    if (status == GR_E_IO || status == GR_E_NOT_FOUND) {
        status = GR_OK; /* what cannot be written can be read all the same */
    }
    if (status == GR_OK) {
        status = gr_checkpoint_list(folder, &steps, &count, diag);
    }
    if (status == GR_OK && !resume && count > 0) {
        status = gr_fail(diag, GR_E_INVALID,
                         "%s holds checkpoints of an earlier run, the newest after step %" PRIu64
                         "; go on from it with --resume, or remove the folder, or choose another "
                         "one (checkpoint: to, --checkpoint-to)",
                         folder, steps[count - 1]);
    }
    free(steps);
    return status;
}

/* ---- Removing -------------------------------------------------------------------------------- */

/* A folder without folders in it. 0 or errno. */
static int remove_folder(const char *path)
{
    DIR *dir = opendir(path);
    if (dir == NULL) {
        return errno;
    }
    for (struct dirent *entry; (entry = readdir(dir)) != NULL;) {
        if (strcmp(entry->d_name, ".") != 0 && strcmp(entry->d_name, "..") != 0) {
            (void)unlinkat(dirfd(dir), entry->d_name, 0);
        }
    }
    closedir(dir);
    return rmdir(path) == 0 ? 0 : errno;
}

static void remove_partials(const char *folder)
{
    DIR *dir = opendir(folder);
    for (struct dirent *entry; dir != NULL && (entry = readdir(dir)) != NULL;) {
        char path[PATH_MAX];
        gr_diag diag;
        if (is_partial(entry->d_name) &&
            gr_path_join(folder, entry->d_name, path, sizeof path, &diag) == GR_OK) {
            if (remove_folder(path) == ENOTDIR) {
                (void)unlink(path); /* what resists is in nobody's way */
            }
        }
    }
    if (dir != NULL) {
        closedir(dir);
    }
}

/* By way of a partial name: a checkpoint never looks damaged only because its removal was cut
 * short. */
static gr_status remove_checkpoint(const gr_checkpoint_folder *folder, uint64_t step, gr_diag *diag)
{
    char path[PATH_MAX], partial[PATH_MAX];
    gr_status status = gr_checkpoint_path(folder->path, step, path, sizeof path, diag);
    if (status == GR_OK) {
        status = partial_path(folder, step, partial, diag);
    }
    if (status != GR_OK) {
        return status;
    }
    if (rename(path, partial) != 0) {
        return gr_fail_errno(diag, "remove", path, errno);
    }
    int error = remove_folder(partial);
    return error == 0 ? GR_OK : gr_fail_errno(diag, "remove", path, error);
}

static bool holds_folder(const gr_checkpoint_folder *folder)
{
    return gr_checkpoint_lock_holds(folder->path, &folder->writer, folder->lock_fd);
}

static void remember(gr_checkpoint_folder *folder, uint64_t step, bool sound)
{
    for (int i = 0; i < folder->known_count; i++) {
        if (folder->known[i].step == step) {
            folder->known[i].sound = sound;
            return;
        }
    }
    size_t bytes = (size_t)(folder->known_count + 1) * sizeof *folder->known;
    gr_checkpoint_state *more = realloc(folder->known, bytes);
    if (more != NULL) { /* else it is read once more */
        more[folder->known_count++] = (gr_checkpoint_state){step, sound};
        folder->known = more;
    }
}

static void forget(gr_checkpoint_folder *folder, uint64_t step)
{
    int kept = 0;
    for (int i = 0; i < folder->known_count; i++) {
        if (folder->known[i].step != step) {
            folder->known[kept++] = folder->known[i];
        }
    }
    folder->known_count = kept;
}

static bool is_sound(gr_checkpoint_folder *folder, uint64_t step)
{
    char path[PATH_MAX];
    gr_checkpoint *checkpoint = NULL;
    gr_diag diag;
    for (int i = 0; i < folder->known_count; i++) {
        if (folder->known[i].step == step) {
            return folder->known[i].sound;
        }
    }
    bool sound = gr_checkpoint_path(folder->path, step, path, sizeof path, &diag) == GR_OK &&
                 open_sound(path, &checkpoint, &diag) == GR_OK;
    gr_checkpoint_close(checkpoint);
    remember(folder, step, sound);
    return sound;
}

gr_status gr_checkpoint_retain(gr_checkpoint_folder *folder, uint64_t written, gr_diag *diag)
{
    uint64_t *steps = NULL;
    int count = 0;
    if (folder->keep == 0 || !holds_folder(folder)) {
        return GR_OK; /* who took it over removes them */
    }
    gr_status status = gr_checkpoint_list(folder->path, &steps, &count, diag);
    int64_t sound = 1; /* the one that was written */
    remember(folder, written, true);
    for (int i = count - 1; i >= 0 && status == GR_OK; i--) {
        if (steps[i] == written) {
            continue;
        }
        if (sound < folder->keep) {
            sound += is_sound(folder, steps[i]);
        } else if (steps[i] != folder->best) {
            status = remove_checkpoint(folder, steps[i], diag);
            forget(folder, steps[i]);
        }
    }
    free(steps);
    return status;
}

/* ---- Writing --------------------------------------------------------------------------------- */

/* Checks that the folder is there, on the disk of before. */
static gr_status look_at_disk(const gr_checkpoint_folder *folder, struct stat *info, gr_diag *diag)
{
    if (stat(folder->path, info) != 0) {
        return gr_fail_errno(diag, "write checkpoints to", folder->path, errno);
    }
    return folder->device == 0 || (uint64_t)info->st_dev == folder->device
               ? GR_OK
               : gr_fail(diag, GR_E_IO,
                         "%s is on another disk than it was when the training started; mount the "
                         "first one again",
                         folder->path);
}

gr_status gr_checkpoint_folder_open(gr_checkpoint_folder *folder, gr_diag *diag)
{
    struct stat info;
    /* A folder that was there once is not made again: if its disk is gone, the name now leads to
     * the disk below. */
    gr_status status = folder->device == 0 ? gr_dir_create(folder->path, diag) : GR_OK;
    if (status == GR_OK) {
        status = look_at_disk(folder, &info, diag);
    }
    if (status != GR_OK) {
        return status;
    }
    /* Once, before the training: a checkpoint that cannot be written is tried again later. */
    int patience_ms = folder->device == 0 ? LOCK_PATIENCE_MS : 0;
    status =
        gr_checkpoint_lock_take(folder->path, &folder->writer, patience_ms, &folder->lock_fd, diag);
    if (status == GR_OK) {
        folder->device = (uint64_t)info.st_dev;
        remove_partials(folder->path);
    }
    return status;
}

void gr_checkpoint_folder_close(gr_checkpoint_folder *folder)
{
    if (folder->lock_fd >= 0) {
        close(folder->lock_fd);
    }
    folder->lock_fd = -1;
    free(folder->known);
    folder->known = NULL;
    folder->known_count = 0;
}

/* The new folder gets its name. One of the same step can only be a damaged one that was passed
 * over: it changes places with the new one, which is never missing. */
static int show(const char *partial, const char *path)
{
    if (rename(partial, path) == 0) {
        return 0;
    }
    if (errno != ENOTEMPTY && errno != EEXIST) {
        return errno;
    }
    if (renameat2(AT_FDCWD, partial, AT_FDCWD, path, RENAME_EXCHANGE) == 0) {
        (void)remove_folder(partial);
        return 0;
    }
    int error = remove_folder(path); /* a file system that cannot exchange */
    if (error != 0) {
        return error;
    }
    return rename(partial, path) == 0 ? 0 : errno;
}

gr_status gr_checkpoint_put(gr_checkpoint_folder *folder, const gr_checkpoint_info *info,
                            const gr_fingerprint *fingerprint, const gr_checkpoint_tensors *tensors,
                            gr_diag *diag)
{
    char path[PATH_MAX], partial[PATH_MAX];
    if (!holds_folder(folder)) {
        gr_checkpoint_folder_close(folder);
        gr_status status = gr_checkpoint_folder_open(folder, diag);
        if (status != GR_OK) {
            return status;
        }
    }
    gr_status status = gr_checkpoint_path(folder->path, info->step, path, sizeof path, diag);
    if (status == GR_OK) {
        status = partial_path(folder, info->step, partial, diag);
    }
    if (status != GR_OK) {
        return status;
    }
    (void)remove_folder(partial);
    if (mkdir(partial, 0777) != 0) {
        return gr_fail_errno(diag, "write", path, errno);
    }
    status = gr_checkpoint_write(partial, info, fingerprint, tensors, diag);
    struct stat disk;
    if (status == GR_OK && !holds_folder(folder)) {
        status = look_at_disk(folder, &disk, diag);
        status = status == GR_OK ? gr_fail(diag, GR_E_INVALID,
                                           "%s: another process has taken over the folder", path)
                                 : status;
    }
    if (status == GR_OK) {
        int error = show(partial, path);
        error = error == 0 ? gr_dir_sync(folder->path) : error;
        status = error == 0 ? GR_OK : gr_fail_errno(diag, "make durable", path, error);
    }
    if (status != GR_OK) {
        (void)remove_folder(partial);
    }
    return status;
}
