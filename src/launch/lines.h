/* SPDX-License-Identifier: Apache-2.0 */
#ifndef GR_LAUNCH_LINES_H
#define GR_LAUNCH_LINES_H

/* Bytes of one worker's output become whole lines with a prefix. Binary safe: a line is what ends
 * in '\n', every other byte is passed on as it is. A pure object: no files, and no clock but for
 * what a prefix says. */

#include <gradus/status.h>
#include <stdbool.h>

enum {
    GR_LINES_PIECE_BYTES = 64 * 1024, /* a longer line is cut into pieces of this size */
    GR_LINES_PREFIX_BYTES = 64,
    GR_LINES_WHO_BYTES = 38,   /* of a name in a prefix */
    GR_LINES_TAIL_BYTES = 4096 /* of the last output that is kept for the report of a failure */
};

/* Borrowed for the call. Receives whole lines, or pieces of one, which end in '\n' as well where
 * something stands in front of lines. */
typedef void gr_lines_emit(void *emit_arg, const char *text, size_t size_bytes);

/* Writes what stands in front of a line that ends now; returns its length, at most
 * GR_LINES_PREFIX_BYTES; 0: nothing, then no byte is added. */
typedef size_t gr_lines_prefix(void *prefix_arg, char *text_out);

/* "[who] ", in a color of those that differ (`shade`, from 0; -1: in none), and the time of day. As
 * a gr_lines_prefix; of `who` it has GR_LINES_WHO_BYTES. */
size_t gr_lines_print_prefix(const char *who, int shade, bool with_time,
                             char text_out[GR_LINES_PREFIX_BYTES]);

typedef struct gr_lines {
    gr_lines_prefix *prefix; /* NULL: bytes are passed on as they come, at once */
    void *prefix_arg;
    gr_lines_emit *emit; /* NULL: nothing is shown, only the tail is kept */
    void *emit_arg;
    char *pending; /* the line that has begun; GR_LINES_PIECE_BYTES, allocated when needed */
    size_t pending_bytes;
    bool cut; /* a piece without '\n' was emitted: the line's own '\n' may still come */
    char tail[GR_LINES_TAIL_BYTES]; /* a ring of the last bytes */
    uint64_t total_bytes;           /* ever; the ring's place is total_bytes modulo its size */
} gr_lines;

void gr_lines_init(gr_lines *lines, gr_lines_prefix *prefix, void *prefix_arg, gr_lines_emit *emit,
                   void *emit_arg);
void gr_lines_fini(gr_lines *lines);

/* Without memory for a line that has begun it is emitted in pieces; nothing is lost. */
void gr_lines_feed(gr_lines *lines, const char *data, size_t size_bytes);

/* The end of the output: a line without '\n' is emitted, with one if something stands in front. */
void gr_lines_end(gr_lines *lines);

/* The last `lines_max` lines (what fits into the tail), each behind `indent`, into text_out with a
 * terminating zero; control characters become '?'. Returns its length, 0 without output. */
size_t gr_lines_tail(const gr_lines *lines, int lines_max, const char *indent, char *text_out,
                     size_t text_bytes);

#endif
