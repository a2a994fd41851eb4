/* SPDX-License-Identifier: Apache-2.0 */
#ifndef GR_LINK_SOURCE_H
#define GR_LINK_SOURCE_H

/* Where unauthenticated peers come from, so that those of one host get no more than a part of
 * what an acceptor can give. */

#include "base/log.h"

#include <stdint.h>
#include <sys/socket.h>

/* A host as a number: an IPv4 address, the first half of an IPv6 address (one host may have all
 * addresses of such a network), 0: this host, by a Unix socket. */
typedef uint64_t gr_source;

enum { GR_SOURCE_TEXT_BYTES = 40, GR_SOURCES_COUNTED = 64 };

gr_source gr_source_of(const struct sockaddr_storage *from);
void gr_source_text(gr_source source, char text_out[GR_SOURCE_TEXT_BYTES]);

/* How many were refused, by source, in the last second. Two sources may share a place: then they
 * are counted together. */
typedef struct gr_source_counts {
    struct {
        int64_t since_us;
        uint32_t count;
    } at[GR_SOURCES_COUNTED];
    uint64_t total, logged; /* of all sources and all time; of them: the log has told of */
    int64_t logged_us;
} gr_source_counts;

void gr_source_count(gr_source_counts *counts, gr_source source, int64_t now_us);
/* Tells the log of the one that was counted last, and once a second of all, if they are many. */
void gr_source_log(gr_source_counts *counts, gr_source source, int64_t now_us, const gr_log *log,
                   const char *address, const char *why);
uint32_t gr_source_counted(const gr_source_counts *counts, gr_source source, int64_t now_us);

#endif
