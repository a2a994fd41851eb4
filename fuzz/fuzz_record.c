/* SPDX-License-Identifier: Apache-2.0 */

/* Any bytes as the file in which a worker, now dead, recorded its operations: read and reported as
 * the launcher does. The rest of the file is as empty as that of a new one. */

#include "coll/diagnose/flight_recorder.h"

#include <stdint.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

enum { FOUND_MAX = 4 }; /* each is looked for among all */

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

static void require(bool condition)
{
    if (!condition) {
        abort();
    }
}

/* What is said goes to a terminal. */
static void check_text(const char *text, size_t size_bytes)
{
    require(memchr(text, '\0', size_bytes) != NULL);
    for (; *text; text++) {
        require((unsigned char)*text >= ' ' && *text != 0x7f);
    }
}

static void say_all(const gr_flight_recorder *record)
{
    char text[2 * GR_FLIGHT_RECORDER_TEXT_BYTES];
    gr_flight_recorder_last(record, record->first_ticks, text, sizeof text);
    check_text(text, sizeof text);
    for (uint64_t back = 1; back <= GR_FLIGHT_RECORDER_ENTRIES + 1; back++) {
        const gr_flight_recorder_entry *entry = gr_flight_recorder_at(record, record->begun - back);
        if (entry == NULL) {
            continue;
        }
        gr_flight_recorder_describe(entry, text, GR_FLIGHT_RECORDER_TEXT_BYTES);
        check_text(text, GR_FLIGHT_RECORDER_TEXT_BYTES);
        if (back <= FOUND_MAX) {
            const gr_flight_recorder_entry *found =
                gr_flight_recorder_find(record, entry->comm, entry->number);
            require(found == NULL || found->number == entry->number);
        }
    }
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    static const size_t lengths[] = {sizeof(gr_flight_recorder), sizeof(gr_flight_recorder) - 1,
                                     sizeof(gr_flight_recorder) + 1, 0};
    if (size < 1) {
        return 0;
    }
    size_t length = lengths[data[0] % 4];
    size = size - 1 < sizeof(gr_flight_recorder) ? size - 1 : sizeof(gr_flight_recorder);
    int fd = memfd_create("record", MFD_CLOEXEC);
    gr_flight_recorder *record = malloc(sizeof *record);
    if (fd >= 0 && record != NULL && write(fd, data + 1, size) == (ssize_t)size &&
        (length == 0 || ftruncate(fd, (off_t)length) == 0) &&
        gr_flight_recorder_read(fd, record) == GR_OK) {
        require(length >= sizeof *record || size == sizeof *record);
        say_all(record);
    }
    free(record);
    if (fd >= 0) {
        close(fd);
    }
    return 0;
}
