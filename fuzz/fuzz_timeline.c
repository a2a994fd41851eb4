/* SPDX-License-Identifier: Apache-2.0 */

/* Any bytes as the parts of a timeline, up to three: made into one file, which must be JSON. The
 * first byte says how many parts there are and how many are asked for, the next two where the first
 * one ends. */

#include "base/file.h"
#include "coll/diagnose/timeline_part.h"
#include "doc/doc.h"

#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

enum { PARTS_MAX = 3, PATH_BYTES = 64, OUT_BYTES_MAX = 64 << 20 };

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

static void require(bool condition)
{
    if (!condition) {
        abort();
    }
}

static bool write_part(const char *path, int rank, const uint8_t *data, size_t size)
{
    char name[GR_PART_PATH_BYTES];
    require(gr_part_path(name, path, rank));
    FILE *file = fopen(name, "we");
    bool written = file != NULL && fwrite(data, 1, size, file) == size;
    return file != NULL && fclose(file) == 0 && written;
}

static void remove_all(const char *path, const char *folder)
{
    for (int rank = 0; rank < PARTS_MAX; rank++) {
        char name[GR_PART_PATH_BYTES];
        require(gr_part_path(name, path, rank));
        (void)unlink(name);
    }
    (void)unlink(path);
    require(rmdir(folder) == 0); /* nothing else is left there */
}

static void merge(const char *path, int asked)
{
    gr_timeline_summary summary;
    gr_diag diag = {0};
    gr_status status = gr_timeline_merge(path, asked, &summary, &diag);
    if (status != GR_OK) {
        require(diag.text[0] != '\0');
        return;
    }
    char *text = NULL;
    size_t size = 0;
    gr_doc *doc = NULL;
    require(summary.ranks > 0 && summary.ranks <= PARTS_MAX);
    if (gr_file_read(path, OUT_BYTES_MAX, &text, &size, &diag) == GR_OK) {
        /* A document has a limit of nodes, a timeline has none. */
        status = gr_doc_parse_json("timeline", text, size, &doc, &diag);
        if (status != GR_OK && status != GR_E_NO_MEMORY && !strstr(diag.text, "too ")) {
            fprintf(stderr, "%s\n", diag.text);
            abort();
        }
    }
    gr_doc_destroy(doc);
    free(text);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    if (size < 3) {
        return 0;
    }
    int parts = 1 + data[0] % PARTS_MAX, asked = data[0] / PARTS_MAX % (PARTS_MAX + 1);
    size_t cut = (size_t)data[1] | (size_t)data[2] << 8;
    data += 3;
    size -= 3;
    cut = parts > 1 && cut < size ? cut : size;
    char folder[] = "/tmp/fuzz_timeline_XXXXXX", path[PATH_BYTES];
    if (mkdtemp(folder) == NULL) {
        return 0;
    }
    snprintf(path, sizeof path, "%s/t", folder);
    bool written = write_part(path, 0, data, cut);
    size_t half = parts > 2 ? (size - cut) / 2 / GR_PART_ALIGN * GR_PART_ALIGN : size - cut;
    written = written && (parts < 2 || write_part(path, 1, data + cut, half));
    written = written && (parts < 3 || write_part(path, 2, data + cut + half, size - cut - half));
    if (written) {
        merge(path, asked);
    }
    remove_all(path, folder);
    return 0;
}
