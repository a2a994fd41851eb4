/* SPDX-License-Identifier: Apache-2.0 */
#ifndef GR_LAUNCH_SINK_H
#define GR_LAUNCH_SINK_H

/* The launcher's own stdout or stderr: a bounded queue that a slow reader may fill without stopping
 * the launcher's loop. Whoever writes asks gr_sink_has_room first; `drained` says when there is
 * room again. */

#include <gradus/status.h>
#include <stdbool.h>
#include <stdint.h>
#include <uv.h>

enum {
    GR_SINK_FULL_BYTES = 256 * 1024,  /* no room from here on */
    GR_SINK_RESUME_BYTES = 64 * 1024, /* room again */
    GR_SINK_BYTES_MAX = 4 << 20       /* the burst of one reader may go so far above "full" */
};

typedef struct gr_sink gr_sink;
typedef void gr_sink_event(void *event_arg);

struct gr_sink {
    int fd;        /* our own, non-blocking where the kind of file allows it */
    bool pollable; /* else a write never has to wait (a file, /dev/null) */
    bool blocking; /* pollable, but shared and blocking: small writes, only when poll says so */
    bool polling;
    bool full;
    bool broken; /* nobody reads any more; everything is dropped */
    int error;   /* errno of what broke it */
    uint64_t dropped_bytes;
    char *queue;
    size_t first, used, capacity;
    uv_poll_t poll;
    gr_sink_event *drained;
    gr_sink_event *lost; /* called once when it breaks */
    void *event_arg;
};

/* `fd` is borrowed until gr_sink_close. */
gr_status gr_sink_open(uv_loop_t *loop, int fd, gr_sink_event *drained, gr_sink_event *lost,
                       void *event_arg, gr_sink **sink_out, gr_diag *diag) GR_MUST_CHECK;
/* Drops what is still queued; not from `lost`. The loop must run once more. */
void gr_sink_close(gr_sink *sink);

bool gr_sink_has_room(const gr_sink *sink);
bool gr_sink_is_empty(const gr_sink *sink);
/* Of what was put, how much nobody has got. */
uint64_t gr_sink_undelivered(const gr_sink *sink);

/* Copies into the queue. */
void gr_sink_put(gr_sink *sink, const char *data, size_t size_bytes);
/* Writes what goes out at once; the rest follows from the loop. */
void gr_sink_flush(gr_sink *sink);

#endif
