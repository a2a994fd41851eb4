/* SPDX-License-Identifier: Apache-2.0 */
#include "nn/threads.h"

#include <dlfcn.h>
#include <string.h>

void gr_kernels_use_threads(int threads)
{
    /* Which runtime for threads comes with oneDNN is the system's choice. */
    void *found = dlsym(RTLD_DEFAULT, "omp_set_num_threads");
    void (*set)(int) = NULL;
    if (found != NULL) {
        memcpy(&set, &found, sizeof set); /* C has no cast from an object to a function */
        set(threads);
    }
}
