/* SPDX-License-Identifier: Apache-2.0 */

/* Any bytes as the file of `gradus tune`. With an odd first byte the right checksum is put behind
 * them, as who tampers with it would do. */

#include "base/hash.h"
#include "coll/select/tune.h"

#include <inttypes.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

enum { PATH_BYTES = 64 };

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

static void require(bool condition)
{
    if (!condition) {
        abort();
    }
}

static void check_rules(const gr_select_rules *rules, bool exact)
{
    require(rules->count >= 0 && rules->count <= GR_SELECT_RULES_MAX);
    for (int i = 0; i < rules->count; i++) {
        const gr_select_rule *rule = &rules->rules[i];
        require(rule->algorithm != NULL && rule->algorithm->coll == rule->coll);
        require(rule->from < rule->to && rule->segment_bytes <= GR_FRAME_PAYLOAD_MAX);
        require(!exact || rule->algorithm->canonical);
    }
}

static void read_file(const char *path)
{
    gr_tuning *tuning = calloc(1, sizeof *tuning);
    gr_diag diag = {0};
    if (tuning == NULL) {
        return;
    }
    gr_status status = gr_tuning_read(path, tuning, &diag);
    if (status == GR_OK) {
        require(memchr(tuning->processor, '\0', sizeof tuning->processor) != NULL);
        require(tuning->cores > 0 && tuning->ranks > 0);
        check_rules(&tuning->rules[0], false);
        check_rules(&tuning->rules[1], true);
        status = gr_tuning_check(tuning, path, 2, GR_LINK_SHM, 1, &diag);
    }
    require(status == GR_OK || diag.text[0] != '\0');
    free(tuning);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    if (size < 1) {
        return 0;
    }
    int fd = memfd_create("tune", MFD_CLOEXEC);
    FILE *file = fd >= 0 ? fdopen(fd, "w") : NULL;
    if (file == NULL) {
        return 0;
    }
    fwrite(data + 1, 1, size - 1, file);
    if (data[0] & 1) {
        fprintf(file, "checksum %016" PRIx64 "\n", gr_hash64(data + 1, size - 1, 0));
    }
    if (fflush(file) == 0) {
        char path[PATH_BYTES];
        snprintf(path, sizeof path, "/proc/self/fd/%d", fd);
        read_file(path);
    }
    fclose(file);
    return 0;
}
