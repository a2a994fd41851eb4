/* SPDX-License-Identifier: Apache-2.0 */
#include "link/source.h"

#include "base/hash.h"

#include <netinet/in.h>
#include <stdio.h>
#include <string.h>

enum {
    WINDOW_US = 1000000,
    LOG_EVERY_US = 1000000, /* and then... */
    LOG_MANY = 16           /* ...only of so many: one may be an honest peer's second thought */
};
#define IPV4_MARK (UINT64_C(0xffff) << 32) /* no network of IPv6 begins with four zero bytes */

static gr_source of_ipv4(const uint8_t at[4])
{
    return IPV4_MARK | (uint64_t)at[0] << 24 | (uint64_t)at[1] << 16 | (uint64_t)at[2] << 8 | at[3];
}

gr_source gr_source_of(const struct sockaddr_storage *from)
{
    if (from->ss_family == AF_INET) {
        const struct sockaddr_in *at = (const void *)from;
        return of_ipv4((const uint8_t *)&at->sin_addr);
    }
    if (from->ss_family != AF_INET6) {
        return 0;
    }
    const struct in6_addr *at = &((const struct sockaddr_in6 *)(const void *)from)->sin6_addr;
    gr_source source = 0;
    if (IN6_IS_ADDR_V4MAPPED(at)) {
        return of_ipv4(at->s6_addr + 12);
    }
    for (int i = 0; i < 8; i++) {
        source = source << 8 | at->s6_addr[i];
    }
    return source;
}

void gr_source_text(gr_source source, char text_out[GR_SOURCE_TEXT_BYTES])
{
    if (source >> 32 == IPV4_MARK >> 32) {
        snprintf(text_out, GR_SOURCE_TEXT_BYTES, "%u.%u.%u.%u", (unsigned)(source >> 24 & 255),
                 (unsigned)(source >> 16 & 255), (unsigned)(source >> 8 & 255),
                 (unsigned)(source & 255));
    } else if (source != 0) {
        snprintf(text_out, GR_SOURCE_TEXT_BYTES, "%x:%x:%x:%x::/64", (unsigned)(source >> 48),
                 (unsigned)(source >> 32 & 0xffff), (unsigned)(source >> 16 & 0xffff),
                 (unsigned)(source & 0xffff));
    } else {
        snprintf(text_out, GR_SOURCE_TEXT_BYTES, "this host");
    }
}

static size_t place_of(gr_source source)
{
    return gr_hash64(&source, sizeof source, 0) % GR_SOURCES_COUNTED;
}

void gr_source_count(gr_source_counts *counts, gr_source source, int64_t now_us)
{
    size_t place = place_of(source);
    if (now_us - counts->at[place].since_us >= WINDOW_US) {
        counts->at[place].since_us = now_us;
        counts->at[place].count = 0;
    }
    counts->at[place].count++;
    counts->total++;
}

void gr_source_log(gr_source_counts *counts, gr_source source, int64_t now_us, const gr_log *log,
                   const char *address, const char *why)
{
    char text[GR_SOURCE_TEXT_BYTES];
    uint64_t news = counts->total - counts->logged;
    gr_source_text(source, text);
    gr_log_write(log, GR_LOG_DEBUG, "link", "closed a connection from %s: %s", text, why);
    if (news >= LOG_MANY && (counts->logged == 0 || now_us - counts->logged_us >= LOG_EVERY_US)) {
        gr_log_write(log, GR_LOG_WARN, "link",
                     "%llu connections to %s were refused, the last from %s: they do not prove "
                     "that they belong to the job",
                     (unsigned long long)news, address, text);
        counts->logged = counts->total;
        counts->logged_us = now_us;
    }
}

uint32_t gr_source_counted(const gr_source_counts *counts, gr_source source, int64_t now_us)
{
    size_t place = place_of(source);
    return now_us - counts->at[place].since_us < WINDOW_US ? counts->at[place].count : 0;
}
