/* SPDX-License-Identifier: Apache-2.0 */
#include "launch/lines.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

size_t gr_lines_print_prefix(const char *who, int shade, bool with_time,
                             char text_out[GR_LINES_PREFIX_BYTES])
{
    static const char *const colors[] = {"36", "33", "35", "32", "34", "31"};
    const char *color = colors[(size_t)shade % (sizeof colors / sizeof colors[0])];
    char stamp[32] = "";
    if (with_time) {
        struct timespec now;
        struct tm local;
        clock_gettime(CLOCK_REALTIME, &now);
        localtime_r(&now.tv_sec, &local);
        snprintf(stamp, sizeof stamp, "%02d:%02d:%02d.%03d ", local.tm_hour % 100,
                 local.tm_min % 100, local.tm_sec % 100, (int)(now.tv_nsec / 1000000) % 1000);
    }
    int size = shade >= 0 ? snprintf(text_out, GR_LINES_PREFIX_BYTES, "\033[%sm[%.*s]\033[0m %s",
                                     color, GR_LINES_WHO_BYTES, who, stamp)
                          : snprintf(text_out, GR_LINES_PREFIX_BYTES, "[%.*s] %s",
                                     GR_LINES_WHO_BYTES, who, stamp);
    return size < GR_LINES_PREFIX_BYTES ? (size_t)size : GR_LINES_PREFIX_BYTES - 1;
}

void gr_lines_init(gr_lines *lines, gr_lines_prefix *prefix, void *prefix_arg, gr_lines_emit *emit,
                   void *emit_arg)
{
    memset(lines, 0, sizeof *lines);
    lines->prefix = prefix;
    lines->prefix_arg = prefix_arg;
    lines->emit = emit;
    lines->emit_arg = emit_arg;
}

void gr_lines_fini(gr_lines *lines)
{
    free(lines->pending);
    lines->pending = NULL;
    lines->pending_bytes = 0;
}

static void remember(gr_lines *lines, const char *data, size_t size_bytes)
{
    uint64_t total = lines->total_bytes + size_bytes;
    if (size_bytes > GR_LINES_TAIL_BYTES) {
        data += size_bytes - GR_LINES_TAIL_BYTES;
        size_bytes = GR_LINES_TAIL_BYTES;
    }
    size_t at = (size_t)((total - size_bytes) % GR_LINES_TAIL_BYTES);
    size_t first = GR_LINES_TAIL_BYTES - at;
    if (first > size_bytes) {
        first = size_bytes;
    }
    memcpy(lines->tail + at, data, first);
    memcpy(lines->tail, data + first, size_bytes - first);
    lines->total_bytes = total;
}

/* One line or piece: what is pending, then `data`, then '\n' unless data ends in it, or nothing
 * stands in front of lines. */
static void emit_line(gr_lines *lines, const char *data, size_t size_bytes)
{
    char prefix[GR_LINES_PREFIX_BYTES];
    size_t prefix_bytes = lines->prefix(lines->prefix_arg, prefix);
    if (prefix_bytes > 0) {
        lines->emit(lines->emit_arg, prefix, prefix_bytes);
    }
    if (lines->pending_bytes > 0) {
        lines->emit(lines->emit_arg, lines->pending, lines->pending_bytes);
    }
    if (size_bytes > 0) {
        lines->emit(lines->emit_arg, data, size_bytes);
    }
    lines->cut = prefix_bytes > 0 && (size_bytes == 0 || data[size_bytes - 1] != '\n');
    if (lines->cut) {
        lines->emit(lines->emit_arg, "\n", 1);
    }
    lines->pending_bytes = 0;
}

void gr_lines_feed(gr_lines *lines, const char *data, size_t size_bytes)
{
    remember(lines, data, size_bytes);
    if (lines->emit == NULL) {
        return;
    }
    if (lines->prefix == NULL) {
        lines->emit(lines->emit_arg, data, size_bytes);
        return;
    }
    while (size_bytes > 0) {
        if (lines->cut) {
            lines->cut = false;
            if (data[0] == '\n') {
                data++;
                size_bytes--;
                continue;
            }
        }
        size_t room = GR_LINES_PIECE_BYTES - lines->pending_bytes;
        size_t look = size_bytes < room ? size_bytes : room;
        const char *newline = memchr(data, '\n', look);
        if (newline != NULL) {
            look = (size_t)(newline - data) + 1;
            emit_line(lines, data, look);
        } else if (look == room) {
            emit_line(lines, data, look);
        } else {
            if (lines->pending == NULL) {
                lines->pending = malloc(GR_LINES_PIECE_BYTES);
            }
            if (lines->pending == NULL) {
                emit_line(lines, data, look);
            } else {
                memcpy(lines->pending + lines->pending_bytes, data, look);
                lines->pending_bytes += look;
            }
        }
        data += look;
        size_bytes -= look;
    }
}

void gr_lines_end(gr_lines *lines)
{
    if (lines->pending_bytes > 0) {
        emit_line(lines, NULL, 0);
    }
}

static char tail_byte(const gr_lines *lines, uint64_t position)
{
    return lines->tail[position % GR_LINES_TAIL_BYTES];
}

size_t gr_lines_tail(const gr_lines *lines, int lines_max, const char *indent, char *text_out,
                     size_t text_bytes)
{
    uint64_t end = lines->total_bytes;
    uint64_t oldest = end > GR_LINES_TAIL_BYTES ? end - GR_LINES_TAIL_BYTES : 0;
    while (end > oldest && tail_byte(lines, end - 1) == '\n') {
        end--;
    }
    uint64_t start = end;
    for (int left = lines_max; start > oldest; start--) {
        if (tail_byte(lines, start - 1) == '\n' && --left == 0) {
            break;
        }
    }
    size_t used = 0, indent_bytes = strlen(indent);
    bool at_start = true;
    for (uint64_t at = start; at < end; at++) {
        size_t need = (at_start ? indent_bytes : 0) + 1;
        if (used + need + 2 > text_bytes) {
            break;
        }
        if (at_start) {
            memcpy(text_out + used, indent, indent_bytes);
            used += indent_bytes;
        }
        unsigned char byte = (unsigned char)tail_byte(lines, at);
        at_start = byte == '\n';
        text_out[used++] =
            (byte < ' ' && byte != '\n' && byte != '\t') || byte == 127 ? '?' : (char)byte;
    }
    if (used > 0) {
        text_out[used++] = '\n';
    }
    if (text_bytes > 0) {
        text_out[used] = '\0';
    }
    return used;
}
