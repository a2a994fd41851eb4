/* SPDX-License-Identifier: Apache-2.0 */

/* Any bytes as the job document that a worker reads. What is accepted and can be resolved is
 * printed as a document again, which is read to the same. */

#include "train/job/job.h"

#include <stdlib.h>
#include <string.h>

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

static void require(bool condition)
{
    if (!condition) {
        abort();
    }
}

/* NULL: it was refused, with a sentence. */
static char *print_again(const char *text, size_t size)
{
    gr_job *job = NULL;
    gr_diag diag;
    char *again = NULL;
    memset(&diag, 0, sizeof diag);
    gr_status status = gr_job_parse_document(text, size, &job, &diag);
    if (status == GR_OK) {
        status = gr_job_resolve(job, &diag);
    }
    if (status == GR_OK) {
        status = gr_job_document(job, &again, &diag);
    }
    require(status == GR_OK ? again != NULL : diag.text[0] != '\0');
    gr_job_close(job);
    return again;
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    char *once = print_again((const char *)data, size);
    char *twice = once != NULL ? print_again(once, strlen(once)) : NULL;
    require(once == NULL || (twice != NULL && strcmp(once, twice) == 0));
    free(once);
    free(twice);
    return 0;
}
