/* SPDX-License-Identifier: Apache-2.0 */
/* Loaded by LD_PRELOAD: a worker that has its job document in the environment, as those of a
 * GradusJob have it, finds the faults of $TEST_CHAOS in it, as if `--chaos` had put them there. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

__attribute__((constructor)) static void begin(void)
{
    static const char before[] = "\"run\":{";
    const char *chaos = getenv("TEST_CHAOS"), *document = getenv("GRADUS_JOB");
    const char *run = chaos != NULL && document != NULL ? strstr(document, before) : NULL;
    char *changed = NULL;
    if (run == NULL) {
        return;
    }
    const char *rest = run + strlen(before);
    if (asprintf(&changed, "%.*s\"chaos\":\"%s\",%s", (int)(rest - document), document, chaos,
                 rest) >= 0) {
        (void)setenv("GRADUS_JOB", changed, 1);
        free(changed);
    }
}
