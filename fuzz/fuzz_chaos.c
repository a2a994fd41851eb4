/* SPDX-License-Identifier: Apache-2.0 */

/* Any text as what --chaos says; byte 0 is the number of workers. */

#include "link/fault.h"

#include <stdlib.h>
#include <string.h>

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

static void require(bool condition)
{
    if (!condition) {
        abort();
    }
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    enum { ARENA_BYTES_MAX = 1 << 20 };
    gr_arena arena;
    gr_diag diag = {0};
    char *text = size > 0 ? strndup((const char *)data + 1, size - 1) : NULL;
    gr_chaos *chaos = malloc(sizeof *chaos);
    if (text == NULL || chaos == NULL) {
        free(text);
        free(chaos);
        return 0;
    }
    gr_arena_init(&arena, ARENA_BYTES_MAX);
    if (gr_chaos_parse(text, data[0], data[0], &arena, chaos, &diag) == GR_OK) {
        require(chaos->count >= 0 && chaos->count <= GR_FAULTS_MAX);
        for (int i = 0; i < chaos->count; i++) {
            const gr_fault *fault = &chaos->faults[i];
            require(fault->kind >= GR_FAULT_KILL && fault->kind <= GR_FAULT_CUT);
            require(fault->rank >= 0 && fault->rank < data[0]);
            require(fault->server >= -1 && fault->server < data[0]);
            require(fault->step >= 0 && fault->time_us >= 0 && fault->for_us >= 0);
            require(fault->kind != GR_FAULT_SLOW || fault->times >= 1);
        }
    } else {
        require(diag.text[0] != '\0');
    }
    gr_arena_fini(&arena);
    free(text);
    free(chaos);
    return 0;
}
