/* SPDX-License-Identifier: Apache-2.0 */
#ifndef GR_LAUNCH_LAUNCH_SPEC_H
#define GR_LAUNCH_LAUNCH_SPEC_H

/* What a host must start, as bytes. Pure functions. The secret of the job is in it. */

#include "base/arena.h"

#include <stdbool.h>

enum { GR_LAUNCH_SPEC_BYTES_MAX = 64 << 20 };

typedef struct gr_launch_spec {
    int workers;          /* of this host, to start now */
    int slots;            /* others may come later; so many run at most */
    bool bind;            /* a part of the cores for each, where there are enough */
    int64_t silence_us;   /* a launcher of which nothing arrives for so long is gone */
    const char *cores;    /* which to use, "0,2-3"; NULL: all */
    const char *folder;   /* where they start */
    char **argv;          /* the command, NULL-terminated */
    const char *document; /* what each worker reads on stdin; NULL: nothing */
    bool self;            /* the program is gradus itself, not argv[0] */
    char ***environment;  /* of each worker, or slot, NULL-terminated, with room for one entry */
} gr_launch_spec;

static inline int gr_launch_spec_slot_count(const gr_launch_spec *order)
{
    return order->slots > order->workers ? order->slots : order->workers;
}

/* Entries of the environment that mean "an address of the launcher": `launcher` takes the place of
 * the star. */
#define GR_LAUNCH_SPEC_COORDINATOR "GRADUS_COORDINATOR=tcp:*:"
#define GR_LAUNCH_SPEC_MASTER "MASTER_ADDR=*"

/* What belongs to a login (HOME, SSH_..., ...) is left out of the environment. *bytes_out is the
 * caller's to wipe and free. */
gr_status gr_launch_spec_encode(const gr_launch_spec *order, const char *launcher,
                                uint8_t **bytes_out, size_t *size_out) GR_MUST_CHECK;
/* All of it in `arena`; `own`: the host's environment, of which a worker gets what belongs to a
 * login. GR_E_PROTOCOL, GR_E_NO_MEMORY. */
gr_status gr_launch_spec_decode(const uint8_t *bytes, size_t size_bytes, char *const *own,
                                gr_arena *arena, gr_launch_spec *order_out) GR_MUST_CHECK;

#endif
