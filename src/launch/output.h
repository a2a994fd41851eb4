/* SPDX-License-Identifier: Apache-2.0 */
#ifndef GR_LAUNCH_OUTPUT_H
#define GR_LAUNCH_OUTPUT_H

/* The way of the workers' output: a pipe for each stdout and stderr, lines with prefixes, the
 * launcher's own stdout and stderr, a log file for each. A reader that is slow stops the pipes, not
 * the launcher. Behind the workers' slots come those of the parameter servers. */

#include "launch/launch.h"

#include <uv.h>

typedef struct gr_output gr_output;

typedef struct gr_output_events {
    void (*settled)(void *event_arg); /* after gr_output_finish: everything is written */
    /* Nobody reads our stdout or stderr any more; `error` is an errno. Called once. */
    void (*lost)(void *event_arg, int error);
    /* The pipes of that slot are read to their ends, and gone. */
    void (*closed)(void *event_arg, int slot);
    /* What a parameter server, in that slot, has written to stdout: as it came, perhaps a part of
     * a line. It is not shown. */
    void (*server_text)(void *event_arg, int slot, const char *text, size_t size_bytes);
    void *event_arg;
} gr_output_events;

/* The config is borrowed until destroy. */
gr_status gr_output_create(const gr_launch_config *config, gr_output **output_out,
                           gr_diag *diag) GR_MUST_CHECK;
/* Watches our stdout and stderr, and from now on the pipes, from `loop`. */
gr_status gr_output_start(gr_output *output, uv_loop_t *loop, const gr_output_events *events,
                          gr_diag *diag) GR_MUST_CHECK;

/* Before the host of a worker gets its ends: its pipes, and its log files. `host`: for prefixes,
 * borrowed until destroy; NULL: there is only one. */
gr_status gr_output_open(gr_output *output, int rank, const char *host,
                         gr_diag *diag) GR_MUST_CHECK;
/* For the worker; ours to close. `stream` 0: stdout, 1: stderr. */
int gr_output_worker_fd(const gr_output *output, int rank, int stream);

/* Where we read what is written there; stays ours. */
int gr_output_read_fd(const gr_output *output, int rank, int stream);

/* After that: our copies of them are closed, and the pipes are read. */
gr_status gr_output_watch(gr_output *output, int rank, gr_diag *diag) GR_MUST_CHECK;
/* The host is gone: reads what is left in the pipes. Once they are closed gr_output_open may
 * follow. */
void gr_output_close(gr_output *output, int rank);
bool gr_output_is_closed(const gr_output *output, int rank);
/* Another worker is about to write where one has ended: what that one left of a line is a line. */
void gr_output_renew(gr_output *output, int rank);
/* All processes that could write are gone: reads what is left in the pipes. */
void gr_output_finish(gr_output *output);
bool gr_output_is_settled(const gr_output *output);
/* The launcher is gone, and its stdout and stderr with it: what is written from now on goes into
 * the job's log alone, and no reader holds it up. The supervisor learns how much was delivered. */
void gr_output_leave(gr_output *output);
/* There is another launcher: writes what the log has for it, and then what comes. */
gr_status gr_output_come(gr_output *output, gr_diag *diag) GR_MUST_CHECK;
/* To our stderr, if somebody is there. */
void gr_output_print(gr_output *output, const char *text, size_t size_bytes);
/* Drops what is not written yet; the loop must run once more before destroy. */
void gr_output_stop(gr_output *output);
void gr_output_destroy(gr_output *output); /* NULL ok */

/* What `rank` wrote last, on stderr if it wrote anything there, else on stdout. */
void gr_output_tail(const gr_output *output, int rank, int lines_max, char *text_out,
                    size_t text_bytes);

#endif
