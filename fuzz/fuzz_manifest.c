/* SPDX-License-Identifier: Apache-2.0 */

/* Any bytes as a Kubernetes manifest: read, and seen by the reconciler of each job in it, as
 * `gradus operator --dry-run` does. What is refused ends as a sentence; what is accepted is printed
 * as YAML, which is a manifest again. */

#include "cli/manifest.h"

#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

static void require(bool condition)
{
    if (!condition) {
        abort();
    }
}

static void check(gr_status status, const gr_diag *diag, const char *where)
{
    if (status != GR_OK) {
        require(diag->status == status && strncmp(diag->text, where, strlen(where)) == 0);
        require(strpbrk(diag->text, "\n\r\033") == NULL);
    }
}

static void print_all(const json_t *values)
{
    char *text = NULL;
    size_t size_bytes = 0, i;
    const json_t *value;
    FILE *out = open_memstream(&text, &size_bytes);
    json_array_foreach(values, i, value)
    {
        gr_diag diag = {0};
        require(out != NULL && gr_manifest_print(value, out, &diag) == GR_OK);
    }
    if (out != NULL) {
        fclose(out);
    }
    free(text);
}

static void look(const char *path, const json_t *document)
{
    char where[GR_MANIFEST_WHERE_BYTES];
    gr_diag diag = {0};
    gr_operator_result result = {0};
    gr_manifest_where(path, document, where);
    gr_status status = gr_manifest_look(where, json_array_get(document, 1), "default",
                                        &(gr_operator_view){.has_no_agents = true}, &result, &diag);
    check(status, &diag, where);
    if (status == GR_OK) {
        print_all(result.writes);
        gr_operator_result_fini(&result);
    }
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    char path[32];
    gr_diag diag = {0};
    json_t *documents = NULL;
    const json_t *document;
    size_t i;
    int fd = memfd_create("manifest", MFD_CLOEXEC);
    require(fd >= 0 && write(fd, data, size) == (ssize_t)size);
    snprintf(path, sizeof path, "/proc/self/fd/%d", fd);
    gr_status status = gr_manifests_read(path, &documents, &diag);
    check(status, &diag, path);
    if (status == GR_OK) {
        gr_diag named = {0};
        check(gr_manifests_name(path, documents, &named), &named, path);
        json_array_foreach(documents, i, document)
        {
            look(path, document);
        }
        json_decref(documents);
    }
    close(fd);
    return 0;
}
