/* SPDX-License-Identifier: Apache-2.0 */
#include "launch/records.h"

#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

enum { PATH_BYTES = 48, LINES_MAX = 8 };

typedef struct slot {
    int fd; /* -1: none */
    char path[PATH_BYTES];
    uint64_t ended; /* gr_flight_recorder_now; 0: still runs */
} slot;

struct gr_records {
    int workers;
    slot slots[];
};

/* As long as a record, and so it stays: a worker cannot make our reading fall short. */
static int create_file(void)
{
    int fd = memfd_create("gradus-record", MFD_CLOEXEC | MFD_ALLOW_SEALING);
    if (fd >= 0 && (ftruncate(fd, sizeof(gr_flight_recorder)) != 0 ||
                    fcntl(fd, F_ADD_SEALS, F_SEAL_SHRINK | F_SEAL_GROW | F_SEAL_SEAL) != 0)) {
        close(fd);
        fd = -1;
    }
    return fd;
}

gr_records *gr_records_create(int workers, int count)
{
    gr_records *records = calloc(1, sizeof *records + (size_t)workers * sizeof records->slots[0]);
    if (records == NULL) {
        return NULL;
    }
    records->workers = workers;
    for (int rank = 0; rank < workers; rank++) {
        slot *own = &records->slots[rank];
        own->fd = rank < count ? create_file() : -1;
    }
    gr_records_moved(records);
    return records;
}

void gr_records_moved(gr_records *records)
{
    for (int rank = 0; records != NULL && rank < records->workers; rank++) {
        slot *own = &records->slots[rank];
        snprintf(own->path, sizeof own->path, "/proc/%d/fd/%d", (int)getpid(), own->fd);
    }
}

void gr_records_destroy(gr_records *records)
{
    if (records == NULL) {
        return;
    }
    for (int rank = 0; rank < records->workers; rank++) {
        if (records->slots[rank].fd >= 0) {
            close(records->slots[rank].fd);
        }
    }
    free(records);
}

const char *gr_records_path(const gr_records *records, int rank)
{
    return records != NULL && records->slots[rank].fd >= 0 ? records->slots[rank].path : NULL;
}

void gr_records_begun(gr_records *records, int rank)
{
    if (records != NULL) {
        const uint32_t nobody = 0; /* in the place of the magic number */
        records->slots[rank].ended = 0;
        (void)!pwrite(records->slots[rank].fd, &nobody, sizeof nobody, 0);
    }
}

gr_flight_recorder_place gr_records_place(const gr_records *records, int rank)
{
    return records != NULL && records->slots[rank].fd >= 0
               ? gr_flight_recorder_read_place(records->slots[rank].fd)
               : (gr_flight_recorder_place){.step = 0};
}

void gr_records_ended(gr_records *records, int rank)
{
    if (records != NULL) {
        records->slots[rank].ended = gr_flight_recorder_now();
    }
}

/* One line about one rank; false: it has recorded nothing. */
static bool report_rank(const gr_records *records, int rank, gr_flight_recorder *record,
                        char *text_out, size_t size_bytes)
{
    const slot *own = &records->slots[rank];
    char what[2 * GR_FLIGHT_RECORDER_TEXT_BYTES];
    if (own->fd < 0 || gr_flight_recorder_read(own->fd, record) != GR_OK) {
        return false;
    }
    gr_flight_recorder_last(record, own->ended > 0 ? own->ended : gr_flight_recorder_now(), what,
                            sizeof what);
    snprintf(text_out, size_bytes, "    rank %d: %s\n", rank, what);
    return true;
}

void gr_records_report(const gr_records *records, int first, char text_out[GR_RECORDS_TEXT_BYTES])
{
    static const char title[] = "what the ranks did last:\n";
    text_out[0] = '\0';
    gr_flight_recorder *record = records != NULL ? malloc(sizeof *record) : NULL;
    if (record == NULL) {
        return;
    }
    size_t used = 0;
    int lines = 0, more = 0;
    for (int turn = first >= 0 ? -1 : 0; turn < records->workers; turn++) {
        char line[2 * GR_FLIGHT_RECORDER_TEXT_BYTES + 32];
        int rank = turn < 0 ? first : turn;
        if (turn == first || !report_rank(records, rank, record, line, sizeof line)) {
            continue;
        }
        size_t needed = (lines == 0 ? sizeof title : 0) + strlen(line) + 64;
        if (lines == LINES_MAX || used + needed > GR_RECORDS_TEXT_BYTES) {
            more++;
            continue;
        }
        int wrote = snprintf(text_out + used, GR_RECORDS_TEXT_BYTES - used, "%s%s",
                             lines == 0 ? title : "", line);
        used += wrote > 0 ? (size_t)wrote : 0;
        lines++;
    }
    if (more > 0) {
        snprintf(text_out + used, GR_RECORDS_TEXT_BYTES - used, "    and %d more\n", more);
    }
    free(record);
}
