/* SPDX-License-Identifier: Apache-2.0 */

/* What a worker of a GradusJob answers when it is asked how far it has come: what is taken of it
 * has known keys, and numbers that JSON has. */

#include "operator/progress.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

static void require(bool condition)
{
    if (!condition) {
        abort();
    }
}

static bool is_known(const char *key)
{
    static const char *const keys[] = {
        "step",      "steps", "epoch", "epochs",          "loss", "samplesPerSecond",
        "straggler", "rank",  "pod",   "lateMilliseconds"};
    size_t i = 0;
    while (i < sizeof keys / sizeof keys[0] && strcmp(keys[i], key) != 0) {
        i++;
    }
    return i < sizeof keys / sizeof keys[0];
}

static void check(json_t *map)
{
    const char *key;
    json_t *value;
    json_object_foreach(map, key, value)
    {
        require(is_known(key));
        if (strcmp(key, "straggler") == 0) {
            require(json_is_object(value));
            check(value);
        } else if (strcmp(key, "pod") == 0) {
            const char *name = json_string_value(value);
            require(name != NULL && name[0] != '\0' && strlen(name) <= 253);
        } else {
            require(json_is_number(value) && fabs(json_number_value(value)) <= 1e30);
        }
    }
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    json_t *progress = gr_job_progress_read((const char *)data, size);
    if (progress != NULL) {
        require(json_is_integer(json_object_get(progress, "step")));
        check(progress);
        json_decref(progress);
    }
    return 0;
}
