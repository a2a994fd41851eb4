/* SPDX-License-Identifier: Apache-2.0 */

/* Any text as the manifest of a checkpoint whose files are empty; with an odd first byte it gets
 * the checksum that it needs. What is accepted is read as `--resume` and `gradus checkpoint` do. */

#include "base/hash.h"
#include "train/checkpoint/checkpoint_file.h"

#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

enum { PATH_BYTES = 128 };

static const char *const files[] = {GR_CHECKPOINT_MODEL, GR_CHECKPOINT_OPTIMIZER,
                                    GR_CHECKPOINT_RESIDUALS, GR_CHECKPOINT_MANIFEST};
enum { FILES = sizeof files / sizeof files[0] };

static void require(bool condition)
{
    if (!condition) {
        abort();
    }
}

/* As the writer ends one (checkpoint_file.c). */
static void seal(int fd, const uint8_t *text, size_t size)
{
    char hex[GR_SHA256_HEX_BYTES];
    gr_sha256 *sha = NULL;
    require(gr_sha256_create(&sha) == GR_OK && gr_sha256_add(sha, text, size) == GR_OK &&
            gr_sha256_end(sha, hex) == GR_OK);
    gr_sha256_destroy(sha);
    require(dprintf(fd, ",\n \"sha256\": \"%s\"\n}\n", hex) > 0);
}

static void make(const char *folder, bool sealed, const uint8_t *text, size_t size)
{
    for (int i = 0; i < FILES; i++) {
        char path[PATH_BYTES];
        snprintf(path, sizeof path, "%s/%s", folder, files[i]);
        int fd = open(path, O_CREAT | O_WRONLY | O_CLOEXEC | O_TRUNC, 0600);
        require(fd >= 0);
        if (i == FILES - 1) {
            require(write(fd, text, size) == (ssize_t)size);
            if (sealed) {
                seal(fd, text, size);
            }
        }
        close(fd);
    }
}

static void check_meter(const gr_meter *meter)
{
    require(meter->steps >= 0 && meter->samples >= 0 && meter->step_ns >= 0 && meter->wait_ns >= 0);
    gr_meter twice = *meter; /* as a run that goes on adds to it */
    twice.steps += meter->steps;
    twice.samples += meter->samples;
    twice.step_ns += meter->step_ns;
    twice.wait_ns += meter->wait_ns;
    require(twice.steps >= 0);
}

static void check_all(const gr_checkpoint *checkpoint)
{
    const gr_checkpoint_info *info = gr_checkpoint_info_of(checkpoint);
    const gr_fingerprint *fingerprint = gr_checkpoint_fingerprint_of(checkpoint);
    gr_fingerprint_entry own[] = {{"model", "mlp"}, {"seed", "1"}};
    gr_diag diag = {0};
    require(info->steps_per_epoch > 0 && info->shards >= 0);
    check_meter(&info->epoch);
    check_meter(&info->total);
    for (int i = 0; i < fingerprint->count; i++) {
        require(fingerprint->list[i].key != NULL && fingerprint->list[i].value != NULL);
    }
    if (gr_fingerprint_compare(fingerprint, &(gr_fingerprint){.list = own, .count = 2},
                               "checkpoint", "job", &diag) != GR_OK) {
        require(diag.text[0] != '\0');
    }
    (void)gr_checkpoint_bytes(checkpoint);
    if (gr_checkpoint_check(checkpoint, &diag) == GR_OK) {
        gr_safetensors *weights = NULL;
        require(gr_checkpoint_read(checkpoint, GR_CHECKPOINT_MODEL, &weights, &diag) != GR_OK);
    }
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    char folder[] = "/dev/shm/gradus-fuzz-XXXXXX"; /* in memory: thousands a second */
    if (size < 1 || mkdtemp(folder) == NULL) {
        return 0;
    }
    make(folder, (data[0] & 1) != 0, data + 1, size - 1);
    gr_checkpoint *checkpoint = NULL;
    gr_diag diag = {0};
    if (gr_checkpoint_open(folder, &checkpoint, &diag) == GR_OK) {
        check_all(checkpoint);
        gr_checkpoint_close(checkpoint);
    } else {
        require(diag.text[0] != '\0');
    }
    for (int i = 0; i < FILES; i++) {
        char path[PATH_BYTES];
        snprintf(path, sizeof path, "%s/%s", folder, files[i]);
        unlink(path);
    }
    rmdir(folder);
    return 0;
}
