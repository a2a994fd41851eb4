/* SPDX-License-Identifier: Apache-2.0 */

/* Any bytes as the order that tells a host what to start. What is accepted is whole: lists end,
 * texts end, and the order that it makes is read again to the same. With an odd first byte the rest
 * stands behind a right beginning. */

#include "base/codec.h"
#include "launch/launch.h"
#include "launch/launch_spec.h"

#include <stdlib.h>
#include <string.h>

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

enum { ARENA_BYTES_MAX = 16 << 20, BEGIN_BYTES = 8, MAGIC = 0x524f4747, VERSION = 2 };

static void require(bool condition)
{
    if (!condition) {
        abort();
    }
}

static void expect_same_list(char **a, char **b)
{
    for (; *a != NULL; a++, b++) {
        require(*b != NULL && strcmp(*a, *b) == 0);
    }
    require(*b == NULL);
}

static void expect_again(const gr_launch_spec *order, char *const *own)
{
    uint8_t *bytes = NULL;
    size_t size = 0;
    gr_launch_spec back;
    gr_arena arena;
    gr_arena_init(&arena, ARENA_BYTES_MAX);
    require(gr_launch_spec_encode(order, "127.0.0.1", &bytes, &size) == GR_OK);
    gr_status status = gr_launch_spec_decode(bytes, size, own, &arena, &back);
    require(status == GR_OK || status == GR_E_NO_MEMORY);
    if (status == GR_OK) {
        require(back.workers == order->workers && back.slots == order->slots &&
                back.bind == order->bind && back.self == order->self &&
                back.silence_us == order->silence_us);
        require(strcmp(back.folder, order->folder) == 0);
        expect_same_list(order->argv, back.argv);
    }
    free(bytes);
    gr_arena_fini(&arena);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    char *const own[] = {NULL};
    gr_launch_spec order;
    gr_arena arena;
    if (size < 1) {
        return 0;
    }
    size_t begin = (data[0] & 1) != 0 ? BEGIN_BYTES : 0;
    uint8_t *exact = malloc(begin + size - 1 > 0 ? begin + size - 1 : 1);
    if (exact == NULL) {
        return 0;
    }
    if (begin > 0) {
        gr_put_u32(exact, MAGIC);
        gr_put_u32(exact + 4, VERSION);
    }
    memcpy(exact + begin, data + 1, size - 1);
    gr_arena_init(&arena, ARENA_BYTES_MAX);
    if (gr_launch_spec_decode(exact, begin + size - 1, own, &arena, &order) == GR_OK) {
        int seats = gr_launch_spec_slot_count(&order);
        require(order.workers >= 0 && seats >= 1 && seats <= GR_LAUNCH_WORKERS_MAX);
        require(order.argv[0] != NULL && order.folder != NULL);
        for (int rank = 0; rank < seats; rank++) {
            char **list = order.environment[rank];
            while (*list != NULL && strlen(*list) < size) {
                list++;
            }
            require(*list == NULL);
        }
        expect_again(&order, own);
    }
    gr_arena_fini(&arena);
    free(exact);
    return 0;
}
