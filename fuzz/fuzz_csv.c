/* SPDX-License-Identifier: Apache-2.0 */

/* Any bytes as a CSV file, plain or gzip: opened in each way that samples are kept, all samples
 * read. The first byte chooses the options. Whatever is opened must read without failure, and the
 * same way in memory as from the text. */

#include "data/table.h"

#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

enum { VALUES_MAX = 4096, SAMPLES_MAX = 4096 };

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

/* A file without a name, opened by a path like any other; -1 when there is none. */
static int memory_file(const uint8_t *data, size_t size, char path[64])
{
    int fd = memfd_create("csv", MFD_CLOEXEC);
    if (fd >= 0 && write(fd, data, size) != (ssize_t)size) {
        close(fd);
        fd = -1;
    }
    snprintf(path, 64, "/proc/self/fd/%d", fd);
    return fd;
}

static gr_table *open_table(gr_input_stream *source, const gr_table_options *options,
                            char sentence[512])
{
    gr_table *table = NULL;
    gr_diag diag;
    memset(&diag, 0, sizeof diag);
    if (gr_table_open_csv(source, options, &table, &diag) != GR_OK && diag.text[0] == '\0') {
        abort(); /* a failure without a sentence */
    }
    memcpy(sentence, diag.text, sizeof diag.text);
    return table;
}

/* Both hold the same samples, with a class or, for regression, a number. */
static void compare(const gr_table *a, const gr_table *b, bool regression)
{
    static const gr_scaler none = {.scale = 1, .factor = 1, .identity = true};
    int64_t values = gr_table_values(a), count = gr_table_count(a);
    if (gr_table_values(b) != values || gr_table_count(b) != count) {
        abort();
    }
    if (values > VALUES_MAX) {
        return;
    }
    float x[VALUES_MAX], y[VALUES_MAX];
    for (int64_t i = 0; i < count && i < SAMPLES_MAX; i++) {
        int32_t label[2] = {0};
        float target[2] = {0};
        if (gr_table_read(a, i, &none, x, regression ? NULL : &label[0],
                          regression ? &target[0] : NULL, NULL) != GR_OK ||
            gr_table_read(b, i, &none, y, regression ? NULL : &label[1],
                          regression ? &target[1] : NULL, NULL) != GR_OK ||
            memcmp(x, y, (size_t)values * sizeof *x) != 0 || label[0] != label[1] ||
            memcmp(&target[0], &target[1], sizeof target[0]) != 0) {
            abort();
        }
    }
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    if (size < 1) {
        return 0;
    }
    uint8_t choice = *data++;
    size--;
    static const char *const texts[] = {"a", "b", "1"}, *const skip[] = {"3"};
    static const gr_table_texts categories = {"2", texts, 3};
    bool named = (choice & 64) != 0 && (choice & 2) == 0;
    gr_table_options options = {.delimiter = (choice & 32) != 0 ? ';' : ',',
                                .class_names = texts,
                                .class_name_count = named ? 3 : 0,
                                .categories = &categories,
                                .category_count = (choice & 128) != 0,
                                .skip = skip,
                                .skip_count = (choice & 128) != 0,
                                .header = (choice & 1) != 0,
                                .regression = (choice & 2) != 0,
                                .label_column = (choice >> 2) % 4,
                                .classes = (choice & 16) != 0 && (choice & 2) == 0 ? 10 : 0,
                                .memory_max = UINT64_C(1) << 24,
                                .index_max = 4};
    char sentence[2][GR_DIAG_TEXT_BYTES], path[64];
    gr_input_stream *source;
    gr_table *tables[2] = {NULL, NULL};
    if (gr_input_stream_open_memory("csv", data, size, &source, NULL) != GR_OK) {
        return 0;
    }
    tables[0] = open_table(source, &options, sentence[0]);
    gr_input_stream_close(source);
    int fd = memory_file(data, size, path);
    if (fd >= 0 && gr_input_stream_open(path, &source, NULL) == GR_OK) {
        options.memory_max = 1; /* read from the text each time */
        tables[1] = open_table(source, &options, sentence[1]);
        gr_input_stream_close(source);
        if ((tables[0] == NULL) != (tables[1] == NULL)) {
            abort();
        }
    }
    if (tables[0] != NULL && tables[1] != NULL) {
        compare(tables[0], tables[1], options.regression);
    }
    gr_table_close(tables[0]);
    gr_table_close(tables[1]);
    if (fd >= 0) {
        close(fd);
    }
    return 0;
}
