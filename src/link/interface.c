/* SPDX-License-Identifier: Apache-2.0 */
#include "link/interface.h"

#include "base/fail.h"
#include "link/address.h"

#include <arpa/inet.h>
#include <errno.h>
#include <ifaddrs.h>
#include <net/if.h>
#include <netinet/in.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum {
    FOUND_MAX = 256,
    NAMES_BYTES = 200,
    WORD_BYTES = 64,
    ADDRESSES_MAX = 32,
    LAST = 2 * GR_INTERFACES_MAX
};

/* ---- What there is --------------------------------------------------------------------------- */

static int64_t read_speed(const char *name)
{
    char path[64];
    long speed = 0;
    snprintf(path, sizeof path, "/sys/class/net/%.15s/speed", name);
    FILE *file = fopen(path, "re");
    if (file != NULL) {
        if (fscanf(file, "%ld", &speed) != 1 || speed < 0) {
            speed = 0;
        }
        fclose(file);
    }
    return speed;
}

static int count_bits(const uint8_t *mask, int size)
{
    int bits = 0;
    for (int i = 0; i < size; i++) {
        bits += __builtin_popcount(mask[i]);
    }
    return bits;
}

/* False: not an address that a peer could use. */
static bool take_interface(const struct ifaddrs *from, gr_interface *out)
{
    if (from->ifa_addr == NULL || (from->ifa_flags & IFF_UP) == 0 ||
        (from->ifa_flags & IFF_RUNNING) == 0) {
        return false;
    }
    memset(out, 0, sizeof *out);
    int context = from->ifa_addr->sa_family;
    const void *address, *mask = NULL;
    if (context == AF_INET) {
        address = &((const struct sockaddr_in *)(const void *)from->ifa_addr)->sin_addr;
        if (from->ifa_netmask != NULL) {
            mask = &((const struct sockaddr_in *)(const void *)from->ifa_netmask)->sin_addr;
        }
        out->size = 4;
    } else if (context == AF_INET6) {
        const struct in6_addr *six =
            &((const struct sockaddr_in6 *)(const void *)from->ifa_addr)->sin6_addr;
        if (IN6_IS_ADDR_LINKLOCAL(six)) {
            return false; /* means nothing without the name of an interface over there */
        }
        address = six;
        if (from->ifa_netmask != NULL) {
            mask = &((const struct sockaddr_in6 *)(const void *)from->ifa_netmask)->sin6_addr;
        }
        out->size = 16;
    } else {
        return false;
    }
    memcpy(out->bytes, address, (size_t)out->size);
    out->prefix = mask != NULL ? count_bits(mask, out->size) : out->size * 8;
    out->loopback = (from->ifa_flags & IFF_LOOPBACK) != 0;
    snprintf(out->name, sizeof out->name, "%.15s", from->ifa_name);
    return inet_ntop(context, out->bytes, out->host, sizeof out->host) != NULL;
}

/* ---- Which are wanted ------------------------------------------------------------------------ */

static bool same_network(const uint8_t *a, const uint8_t *b, int bits)
{
    int bytes = bits / 8, rest = bits % 8;
    return memcmp(a, b, (size_t)bytes) == 0 &&
           (rest == 0 || ((a[bytes] ^ b[bytes]) >> (8 - rest)) == 0);
}

typedef struct subnet {
    uint8_t bytes[16];
    int size, prefix;
} subnet;

/* "10.0.0.0/8"; GR_PENDING: it is no subnet but a name. */
static gr_status parse_subnet(const char *word, subnet *out, gr_diag *diag)
{
    char address[WORD_BYTES];
    const char *slash = strchr(word, '/');
    if (slash == NULL) {
        return GR_PENDING;
    }
    snprintf(address, sizeof address, "%.*s", (int)(slash - word), word);
    char *end = NULL;
    long prefix = strtol(slash + 1, &end, 10);
    out->size = inet_pton(AF_INET, address, out->bytes) == 1    ? 4
                : inet_pton(AF_INET6, address, out->bytes) == 1 ? 16
                                                                : 0;
    if (out->size == 0 || end == slash + 1 || *end != '\0' || prefix < 0 ||
        prefix > out->size * 8) {
        return gr_fail(diag, GR_E_INVALID,
                       "GRADUS_INTERFACE: \"%s\" is not a subnet; one reads 10.0.0.0/8", word);
    }
    out->prefix = (int)prefix;
    return GR_OK;
}

static bool next_word(const char **text, char word_out[WORD_BYTES])
{
    *text += strspn(*text, ", ");
    size_t size = strcspn(*text, ", ");
    snprintf(word_out, WORD_BYTES, "%.*s", (int)size, *text);
    *text += size;
    return size > 0;
}

static gr_status none_such(const char *word, const gr_interface *found, int count, gr_diag *diag)
{
    char known[NAMES_BYTES] = "";
    size_t used = 0;
    for (int i = 0; i < count; i++) {
        int put = snprintf(known + used, sizeof known - used, "%s%s (%s)", i > 0 ? ", " : "",
                           found[i].name, found[i].host);
        if (put < 0 || (size_t)put >= sizeof known - used) {
            known[used] = '\0';
            break;
        }
        used += (size_t)put;
    }
    return gr_fail(diag, GR_E_INVALID,
                   "GRADUS_INTERFACE: this host has no interface or address for \"%s\"; it has %s",
                   word, used > 0 ? known : "none that is up");
}

/* Marks those that one word means. */
static gr_status mark(const char *word, const gr_interface *found, int count, bool *marked,
                      gr_diag *diag)
{
    subnet wanted;
    bool any = false;
    gr_status status = parse_subnet(word, &wanted, diag);
    if (status < 0) {
        return status;
    }
    for (int i = 0; i < count; i++) {
        bool fits = status == GR_PENDING
                        ? strcmp(word, found[i].name) == 0
                        : wanted.size == found[i].size &&
                              same_network(wanted.bytes, found[i].bytes, wanted.prefix);
        marked[i] = marked[i] || fits;
        any = any || fits;
    }
    return any ? GR_OK : none_such(word, found, count, diag);
}

static int compare(const void *a_arg, const void *b_arg)
{
    const gr_interface *a = a_arg, *b = b_arg;
    if (a->loopback != b->loopback) {
        return a->loopback ? 1 : -1;
    }
    if (a->speed_mbps != b->speed_mbps) {
        return a->speed_mbps > b->speed_mbps ? -1 : 1;
    }
    return a->size != b->size ? a->size - b->size : strcmp(a->host, b->host);
}

static gr_status choose(const char *wanted, const gr_interface *found, int count,
                        gr_interfaces *out, gr_diag *diag)
{
    bool marked[FOUND_MAX] = {false};
    char word[WORD_BYTES];
    bool all = wanted == NULL || wanted[strspn(wanted, ", ")] == '\0';
    for (const char *at = all ? "" : wanted; next_word(&at, word);) {
        gr_status status = mark(word, found, count, marked, diag);
        if (status != GR_OK) {
            return status;
        }
    }
    out->count = 0;
    for (int i = 0; i < count && out->count < GR_INTERFACES_MAX; i++) {
        if (all || marked[i]) {
            out->at[out->count++] = found[i];
        }
    }
    return GR_OK;
}

gr_status gr_interfaces_find(const char *wanted, gr_interfaces *out, gr_diag *diag)
{
    struct ifaddrs *list = NULL;
    gr_interface *found = calloc(FOUND_MAX, sizeof *found);
    if (found == NULL) {
        return gr_fail(diag, GR_E_NO_MEMORY, "no memory for the list of network interfaces");
    }
    if (getifaddrs(&list) != 0) {
        free(found);
        return gr_fail(diag, GR_E_IO, "cannot list the network interfaces: %s", strerror(errno));
    }
    int count = 0;
    for (const struct ifaddrs *at = list; at != NULL && count < FOUND_MAX; at = at->ifa_next) {
        if (take_interface(at, &found[count])) {
            found[count].speed_mbps = read_speed(found[count].name);
            count++;
        }
    }
    freeifaddrs(list);
    qsort(found, (size_t)count, sizeof *found, compare);
    gr_status status = choose(wanted, found, count, out, diag);
    free(found);
    return status;
}

/* ---- As text --------------------------------------------------------------------------------- */

void gr_interface_describe(const gr_interface *of, char text_out[GR_INTERFACE_TEXT_BYTES])
{
    char speed[40] = "";
    if (of->speed_mbps > 0) {
        snprintf(speed, sizeof speed, ", %lld Mbit/s", (long long)of->speed_mbps);
    }
    snprintf(text_out, GR_INTERFACE_TEXT_BYTES, "%s %s/%d%s%s", of->name, of->host, of->prefix,
             of->loopback ? ", this host only" : "", speed);
}

const char *gr_interfaces_listen_host(const gr_interfaces *of)
{
    return of->count == 1 ? of->at[0].host : "*";
}

static void append(char *text, size_t size_bytes, const char *address)
{
    size_t used = strlen(text);
    size_t space = used > 0 ? 1 : 0, length = strlen(address);
    if (used + space + length < size_bytes) {
        memset(text + used, ' ', space);
        memcpy(text + used + space, address, length + 1);
    }
}

void gr_interfaces_announce(const gr_interfaces *of, const char *listener,
                            char remote_out[GR_REMOTE_BYTES])
{
    const char *port = strrchr(listener, ':');
    bool all = strncmp(listener, "tcp:[::]:", 9) == 0 || strncmp(listener, "tcp:0.0.0.0:", 12) == 0;
    remote_out[0] = '\0';
    if (!all) {
        append(remote_out, GR_REMOTE_BYTES, listener);
        return;
    }
    for (int i = 0; i < of->count && port != NULL; i++) {
        char address[GR_ADDRESS_BYTES];
        const gr_interface *at = &of->at[i];
        snprintf(address, sizeof address, at->size == 4 ? "tcp:%s%s" : "tcp:[%s]%s", at->host,
                 port);
        append(remote_out, GR_REMOTE_BYTES, address);
    }
}

/* ---- From here to there ---------------------------------------------------------------------- */

typedef struct address_candidate {
    char address[GR_ADDRESS_BYTES];
    int worth; /* less is better */
    const gr_interface *by;
} address_candidate;

/* The bytes of "tcp:10.0.0.1:4000"; their number, 0: it is a name. */
static int host_bytes(const char *address, uint8_t bytes_out[16])
{
    char host[GR_ADDRESS_BYTES];
    const char *from = strncmp(address, "tcp:", 4) == 0 ? address + 4 : address;
    const char *colon = strrchr(from, ':');
    size_t size = colon != NULL ? (size_t)(colon - from) : strlen(from);
    if (size > 2 && from[0] == '[' && from[size - 1] == ']') {
        from++;
        size -= 2;
    }
    snprintf(host, sizeof host, "%.*s", (int)size, from);
    return inet_pton(AF_INET, host, bytes_out) == 1    ? 4
           : inet_pton(AF_INET6, host, bytes_out) == 1 ? 16
                                                       : 0;
}

static bool is_loopback(const uint8_t *bytes, int size)
{
    static const uint8_t six[16] = {[15] = 1};
    return (size == 4 && bytes[0] == 127) || (size == 16 && memcmp(bytes, six, sizeof six) == 0);
}

static void judge(const gr_interfaces *own, bool same_host, address_candidate *at)
{
    uint8_t bytes[16];
    int size = host_bytes(at->address, bytes);
    at->by = NULL;
    if (is_loopback(bytes, size)) {
        at->worth = same_host ? -1 : LAST;
        return;
    }
    at->worth = GR_INTERFACES_MAX;
    for (int i = 0; i < own->count && !same_host; i++) {
        if (own->at[i].size == size && memcmp(own->at[i].bytes, bytes, (size_t)size) == 0) {
            at->worth = LAST - 1; /* we have it as well (a bridge of containers): leads to us */
            return;
        }
    }
    for (int i = 0; i < own->count; i++) {
        const gr_interface *by = &own->at[i];
        if (!by->loopback && by->size == size && same_network(by->bytes, bytes, by->prefix)) {
            at->worth = i;
            at->by = by;
            return;
        }
    }
}

/* Sorted by worth; stable: of equal worth, the peer's own order. How many there are. */
static int find_candidates(const gr_interfaces *own, const char *remote, bool same_host,
                           address_candidate sorted_out[ADDRESSES_MAX])
{
    int count = 0;
    size_t position = 0;
    address_candidate at;
    while (count < ADDRESSES_MAX && gr_address_next(remote, &position, at.address)) {
        judge(own, same_host, &at);
        int place = count++;
        for (; place > 0 && sorted_out[place - 1].worth > at.worth; place--) {
            sorted_out[place] = sorted_out[place - 1];
        }
        sorted_out[place] = at;
    }
    /* Another host's loopback: only if there is nothing else. */
    while (count > 1 && sorted_out[count - 1].worth == LAST) {
        count--;
    }
    return count;
}

typedef struct path {
    int candidate; /* its first address */
    int64_t speed_mbps;
    int rails;
} path;

/* The first is that of the best address, whatever it is; the others are further interfaces. */
static int find_paths(const address_candidate *list, int count, path paths_out[GR_LINK_RAILS_MAX])
{
    int paths = 0;
    for (int i = 0; i < count && paths < GR_LINK_RAILS_MAX; i++) {
        const gr_interface *by = list[i].by;
        bool further = by != NULL;
        for (int p = 0; p < paths; p++) {
            const gr_interface *other = list[paths_out[p].candidate].by;
            further = further && other != NULL && strcmp(other->name, by->name) != 0;
        }
        int64_t speed = by != NULL ? by->speed_mbps : 0;
        bool slow = paths > 0 && speed > 0 && speed * GR_PATH_SLOWER < paths_out[0].speed_mbps;
        if (i == 0 || (further && !slow)) {
            paths_out[paths++] = (path){.candidate = i, .speed_mbps = speed};
        }
    }
    return paths;
}

/* So many connections fill a path. */
static int rails_to_fill(int64_t speed_mbps)
{
    int64_t rails = (speed_mbps + GR_STREAM_MBPS - 1) / GR_STREAM_MBPS;
    return rails < 1 ? 1 : rails > GR_LINK_RAILS_MAX ? GR_LINK_RAILS_MAX : (int)rails;
}

/* The path where one more connection has most for itself. */
static int next_path(const path *paths, int count)
{
    bool known = true;
    for (int i = 0; i < count; i++) {
        known = known && paths[i].speed_mbps > 0;
    }
    int best = 0;
    for (int i = 1; i < count; i++) {
        int64_t of_best = known ? paths[best].speed_mbps : 1,
                of_this = known ? paths[i].speed_mbps : 1;
        bool unused = paths[i].rails == 0 && paths[best].rails > 0;
        bool more = of_this * (paths[best].rails + 1) > of_best * (paths[i].rails + 1);
        if (paths[best].rails > 0 && (unused || more)) {
            best = i;
        }
    }
    return best;
}

static void write_route(const address_candidate *list, int count, int first, gr_route *out)
{
    out->by = list[first].by;
    out->addresses[0] = '\0';
    append(out->addresses, GR_REMOTE_BYTES, list[first].address);
    for (int i = 0; i < count; i++) {
        if (i != first) {
            append(out->addresses, GR_REMOTE_BYTES, list[i].address);
        }
    }
}

int gr_interfaces_route(const gr_interfaces *own, const char *remote, bool same_host, int rails,
                        gr_route routes_out[GR_LINK_RAILS_MAX])
{
    address_candidate list[ADDRESSES_MAX];
    path paths[GR_LINK_RAILS_MAX];
    int count = find_candidates(own, remote, same_host, list);
    int path_count = find_paths(list, count, paths);
    if (path_count == 0) {
        return 0;
    }
    int wanted = rails;
    for (int i = 0; i < path_count && rails == 0; i++) {
        wanted += rails_to_fill(paths[i].speed_mbps);
    }
    wanted = wanted < GR_LINK_RAILS_MAX ? wanted : GR_LINK_RAILS_MAX;
    for (int i = 0; i < wanted; i++) {
        path *to = &paths[next_path(paths, path_count)];
        to->rails++;
        write_route(list, count, to->candidate, &routes_out[i]);
    }
    return wanted;
}

int gr_interfaces_share(const gr_interfaces *of, int index)
{
    address_candidate list[GR_INTERFACES_MAX];
    path paths[GR_LINK_RAILS_MAX];
    int count = 0;
    for (int i = 0; i < of->count; i++) {
        if (!of->at[i].loopback) {
            list[count++] = (address_candidate){.worth = i, .by = &of->at[i]};
        }
    }
    int path_count = find_paths(list, count, paths);
    for (int i = 0; i < path_count; i++) {
        if (list[paths[i].candidate].worth == index) {
            return rails_to_fill(paths[i].speed_mbps);
        }
    }
    return 0;
}

int gr_interfaces_rails_max(const gr_interfaces *own, int rails)
{
    bool one = own->count <= 1 && (own->count == 0 || own->at[0].speed_mbps <= GR_STREAM_MBPS);
    return rails > 0 ? rails : one ? 1 : GR_LINK_RAILS_MAX;
}
