/* SPDX-License-Identifier: Apache-2.0 */
#include "coll/diagnose/timeline.h"
#include "base/clock.h"
#include "base/fail.h"
#include "base/hash.h"
#include "base/text.h"
#include "coll/diagnose/timeline_part.h"
#include "coll/plan/plan.h"

#include <errno.h>
#include <fcntl.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/file.h>
#include <sys/mman.h>
#include <time.h>
#include <unistd.h>

enum {
    CHUNK_BYTES = 1 << 20, /* by which the file grows */
    SITES = 256,           /* callers that are known to be written; power of two */
    READ_TICKS_MIN = 1 << 16,
    READ_TICKS_MAX = 1 << 26, /* some 20 ms */
    FILE_MODE = 0644
};

struct gr_timeline {
    pthread_mutex_t lock; /* guards all that follows and the part; nothing is called under it that
                             may wait for anything but the disk */
    int fd;
    uint8_t *part; /* GR_PART_BYTES_MAX of addresses, `room` bytes of file behind them */
    gr_part_head *head;
    size_t room;
    bool full;
    gr_log log;
    uint64_t sites[SITES];
};

/* ---- Life ------------------------------------------------------------------------------------ */
bool gr_part_path(char path_out[GR_PART_PATH_BYTES], const char *path, int rank)
{
    int length = snprintf(path_out, GR_PART_PATH_BYTES, "%s.%d", path, rank);
    return length > 0 && length < GR_PART_PATH_BYTES;
}

uint64_t gr_part_algorithms(void)
{
    uint64_t hash = 0;
    for (const gr_algorithm *algorithm = gr_algorithms; algorithm->name; algorithm++) {
        hash = gr_hash64(algorithm->name, strlen(algorithm->name), hash + 1);
    }
    return hash;
}

/* Real blocks of the disk: a page without one would be a fatal signal. */
static int grow(gr_timeline *timeline)
{
    if (timeline->room + CHUNK_BYTES > GR_PART_BYTES_MAX) {
        return EFBIG;
    }
    int error = posix_fallocate(timeline->fd, (off_t)timeline->room, CHUNK_BYTES);
    if (error == 0) {
        timeline->room += CHUNK_BYTES;
    }
    return error;
}

static void read_clocks(gr_part_head *head, int which)
{
    gr_flight_recorder_read_clocks(&head->ns[which], &head->ticks[which]);
}

static void fill_head(gr_timeline *timeline, int rank, int world_size, const char *host)
{
    gr_part_head *head = timeline->head;
    struct timespec day;
    *head = (gr_part_head){.magic = GR_PART_MAGIC,
                           .used = sizeof *head,
                           .algorithms = gr_part_algorithms(),
                           .rank = rank,
                           .world_size = world_size};
    read_clocks(head, 0);
    clock_gettime(CLOCK_REALTIME, &day);
    head->wall_ns = (int64_t)day.tv_sec * 1000000000 + day.tv_nsec - head->ns[0];
    head->ticks[1] = head->ticks[0];
    head->ns[1] = head->ns[0];
    snprintf(head->host, sizeof head->host, "%s", host ? host : "");
}

static gr_status open_file(gr_timeline *timeline, const char *path, gr_diag *diag)
{
    char buffer[GR_ERRNO_TEXT_BYTES];
    timeline->fd = open(path, O_RDWR | O_CREAT | O_CLOEXEC, FILE_MODE);
    if (timeline->fd < 0) {
        return gr_fail(diag, GR_E_IO, "the timeline cannot be written to %s: %s", path,
                       gr_text_errno(errno, buffer));
    }
    if (flock(timeline->fd, LOCK_EX | LOCK_NB) != 0) {
        return gr_fail(diag, GR_E_INVALID,
                       "the timeline %s is being written by another communicator; one of a rank "
                       "can have it (GRADUS_TIMELINE)",
                       path);
    }
    int error = ftruncate(timeline->fd, 0) == 0 ? grow(timeline) : errno;
    if (error == 0) {
        void *at =
            mmap(NULL, GR_PART_BYTES_MAX, PROT_READ | PROT_WRITE, MAP_SHARED, timeline->fd, 0);
        error = at == MAP_FAILED ? errno : 0;
        timeline->part = error == 0 ? at : NULL;
    }
    return error == 0 ? GR_OK
                      : gr_fail(diag, GR_E_IO, "the timeline cannot be written to %s: %s", path,
                                gr_text_errno(error, buffer));
}

gr_status gr_timeline_open(const char *path, int rank, int world_size, const char *host,
                           const gr_log *log, gr_timeline **timeline_out, gr_diag *diag)
{
    char part[GR_PART_PATH_BYTES];
    if (!gr_part_path(part, path, rank)) {
        return gr_fail(diag, GR_E_INVALID, "GRADUS_TIMELINE: the path is too long");
    }
    gr_timeline *timeline = calloc(1, sizeof *timeline);
    if (!timeline) {
        return gr_fail(diag, GR_E_NO_MEMORY, "no memory for a timeline");
    }
    timeline->log = log ? *log : (gr_log){.sink = NULL};
    gr_status status = open_file(timeline, part, diag);
    if (status != GR_OK) {
        if (timeline->fd >= 0) {
            close(timeline->fd);
        }
        free(timeline);
        return status;
    }
    pthread_mutex_init(&timeline->lock, NULL);
    timeline->head = (gr_part_head *)timeline->part;
    fill_head(timeline, rank, world_size, host);
    *timeline_out = timeline;
    return GR_OK;
}

void gr_timeline_close(gr_timeline *timeline)
{
    if (!timeline) {
        return;
    }
    read_clocks(timeline->head, 1);
    off_t used = (off_t)timeline->head->used;
    munmap(timeline->part, GR_PART_BYTES_MAX);
    if (ftruncate(timeline->fd, used) != 0) {
        gr_log_write(&timeline->log, GR_LOG_DEBUG, "coll", "a timeline stays longer than it need");
    }
    close(timeline->fd);
    pthread_mutex_destroy(&timeline->lock);
    free(timeline);
}

/* ---- Records --------------------------------------------------------------------------------- */
static size_t padded(size_t size_bytes)
{
    return (size_bytes + GR_PART_ALIGN - 1) & ~(size_t)(GR_PART_ALIGN - 1);
}

/* Under the lock. NULL: no room. It counts when `publish` is called. */
static void *reserve(gr_timeline *timeline, size_t size_bytes)
{
    size_t used = timeline->head->used;
    if (timeline->full || used + size_bytes > timeline->room) {
        int error = timeline->full ? 0 : grow(timeline);
        if (error != 0) {
            char buffer[GR_ERRNO_TEXT_BYTES];
            gr_log_write(&timeline->log, GR_LOG_WARN, "coll",
                         "the timeline ends here: %zu bytes are written, and there is no room for "
                         "more: %s",
                         used, gr_text_errno(error, buffer));
            timeline->full = true;
        }
        if (timeline->full) {
            timeline->head->lost++;
            return NULL;
        }
    }
    return timeline->part + used;
}

/* The second reading of the clocks follows the first one at a distance that grows: so a part whose
 * writer died says as much about its clock as one that was closed. */
static void publish(gr_timeline *timeline, gr_part_record *record, uint32_t kind, size_t size_bytes)
{
    gr_part_head *head = timeline->head;
    record->kind = kind;
    record->size_bytes = (uint32_t)size_bytes;
    uint64_t gap = (head->ticks[1] - head->ticks[0]) / 16 + READ_TICKS_MIN;
    gap = gap < READ_TICKS_MAX ? gap : READ_TICKS_MAX;
    if (kind != GR_PART_SITE && record->at > head->ticks[1] + gap) {
        read_clocks(head, 1);
    }
    __atomic_store_n(&head->used, head->used + size_bytes, __ATOMIC_RELEASE);
}

static void write_text(gr_timeline *timeline, uint32_t kind, uint32_t what, uint64_t at,
                       const char *text)
{
    size_t length = strlen(text);
    size_t size = padded(sizeof(gr_part_text) + length);
    gr_part_text *record = reserve(timeline, size);
    if (record) {
        record->head.at = at;
        record->what = what;
        record->text_bytes = (uint32_t)length;
        memcpy(record->text, text, length);
        publish(timeline, &record->head, kind, size);
    }
}

/* An address means something in this process alone: once it is told what. */
static void write_site(gr_timeline *timeline, uint64_t caller)
{
    uint64_t *known = &timeline->sites[(caller ^ caller >> 8) & (SITES - 1)];
    if (*known == caller) {
        return;
    }
    char text[GR_FLIGHT_RECORDER_TEXT_BYTES];
    gr_flight_recorder_describe_caller(caller, text, sizeof text);
    write_text(timeline, GR_PART_SITE, 0, caller, text);
    *known = caller;
}

/* ---- Events ---------------------------------------------------------------------------------- */
gr_timeline_op *gr_timeline_begin(gr_timeline *timeline, const gr_flight_recorder_entry *entry,
                                  uint32_t number, uint64_t size_bytes, int ranks)
{
    size_t name = strnlen(entry->name, sizeof entry->name);
    size_t site = strnlen(entry->site, sizeof entry->site);
    size_t size = padded(sizeof(gr_timeline_op) + name + site);
    pthread_mutex_lock(&timeline->lock);
    if (site == 0 && entry->caller != 0) {
        write_site(timeline, entry->caller);
    }
    gr_timeline_op *op = reserve(timeline, size);
    if (op) {
        op->head.at = entry->started;
        op->ended = 0;
        op->waited = 0;
        op->caller = entry->caller;
        op->count = entry->count;
        op->size_bytes = size_bytes;
        op->number = number;
        op->tag = entry->tag;
        op->root = entry->root;
        op->shards = entry->shards;
        op->status = GR_PENDING;
        op->peer = entry->peer;
        op->waited_for = -1;
        op->ranks = ranks;
        op->comm = entry->comm;
        op->coll = entry->coll;
        op->dtype = entry->dtype;
        op->op = entry->op;
        op->algorithm = entry->algorithm;
        op->name_bytes = (uint8_t)name;
        op->site_bytes = (uint8_t)site;
        memcpy(op->text, entry->name, name);
        memcpy(op->text + name, entry->site, site);
        publish(timeline, &op->head, GR_PART_OPERATION, size);
    }
    pthread_mutex_unlock(&timeline->lock);
    return op;
}

/* Without the lock: nobody else writes there. */
void gr_timeline_end(gr_timeline_op *op, uint64_t ended_ticks, gr_status status,
                     uint64_t waited_ticks, int waited_for)
{
    op->waited = waited_ticks;
    op->waited_for = waited_for;
    op->status = status;
    op->ended = ended_ticks;
}

void gr_timeline_mark(gr_timeline *timeline, gr_timeline_mark_kind kind, const char *text)
{
    pthread_mutex_lock(&timeline->lock);
    write_text(timeline, GR_PART_MARK, kind, gr_flight_recorder_now(), text);
    pthread_mutex_unlock(&timeline->lock);
}

void gr_timeline_phase_over(gr_timeline *timeline, gr_timeline_phase phase, uint64_t number,
                            uint64_t begun_ticks)
{
    if (!timeline) {
        return;
    }
    uint64_t now = gr_flight_recorder_now();
    pthread_mutex_lock(&timeline->lock);
    gr_part_phase *record = reserve(timeline, sizeof *record);
    if (record) {
        record->head.at = begun_ticks;
        record->ended = now;
        record->number = number;
        record->phase = phase;
        publish(timeline, &record->head, GR_PART_PHASE, sizeof *record);
    }
    pthread_mutex_unlock(&timeline->lock);
}
