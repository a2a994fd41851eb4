/* SPDX-License-Identifier: Apache-2.0 */
#include "support_data.h"

#include <dirent.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>
#include <zlib.h>

int folder_make(void **state)
{
    const char *base = getenv("TMPDIR");
    char path[200];
    snprintf(path, sizeof path, "%s/gradus-test-??????", base != NULL ? base : "/tmp");
    memset(path + strlen(path) - 6, 'X', 6);
    if (mkdtemp(path) == NULL) {
        return -1;
    }
    *state = strdup(path);
    return *state != NULL ? 0 : -1;
}

int folder_drop(void **state)
{
    DIR *dir = opendir(*state);
    if (dir == NULL) {
        return -1;
    }
    for (struct dirent *entry = readdir(dir); entry != NULL; entry = readdir(dir)) {
        unlinkat(dirfd(dir), entry->d_name, 0);
    }
    closedir(dir);
    int result = rmdir(*state);
    free(*state);
    return result;
}

void file_put(void **state, const char *name, const void *data, size_t size, char *path)
{
    snprintf(path, 300, "%s/%s", (const char *)*state, name);
    FILE *file = fopen(path, "wb");
    assert_non_null(file);
    assert_int_equal(fwrite(data, 1, size, file), size);
    assert_int_equal(fclose(file), 0);
}

void file_put_gzip(void **state, const char *name, const void *data, size_t size, char *path)
{
    snprintf(path, 300, "%s/%s", (const char *)*state, name);
    gzFile file = gzopen(path, "wb");
    assert_non_null(file);
    assert_int_equal(gzwrite(file, data, (unsigned)size), (int)size);
    assert_int_equal(gzclose(file), Z_OK);
}

size_t idx_make(uint8_t type, int dims, const uint32_t *dim, const void *payload, size_t size,
                uint8_t **data_out)
{
    size_t header = 4 + 4 * (size_t)dims;
    uint8_t *data = calloc(1, header + size);
    assert_non_null(data);
    data[2] = type;
    data[3] = (uint8_t)dims;
    for (int i = 0; i < dims; i++) {
        for (int k = 0; k < 4; k++) {
            data[4 + 4 * i + k] = (uint8_t)(dim[i] >> (24 - 8 * k));
        }
    }
    if (size > 0) {
        memcpy(data + header, payload, size);
    }
    *data_out = data;
    return header + size;
}

gr_data_config config_csv(const char *file)
{
    return (gr_data_config){.file = file, .label_column = "last", .scale = 1, .deviation = 1};
}

gr_data_config config_idx(const char *images, const char *labels)
{
    return (gr_data_config){
        .format = 1, .images = images, .labels = labels, .scale = 1, .deviation = 1};
}

void must_fail(const gr_data_config *config, gr_status status, const char *text, const char *also)
{
    gr_dataset *dataset = NULL;
    gr_diag diag;
    memset(&diag, 0, sizeof diag);
    assert_int_equal(gr_dataset_open(config, "job.yaml", 1, &dataset, &diag), status);
    assert_null(dataset);
    assert_int_equal(diag.status, status);
    if (strstr(diag.text, text) == NULL || strstr(diag.text, also) == NULL) {
        fail_msg("\"%s\" and \"%s\" expected in: %s", text, also, diag.text);
    }
}
