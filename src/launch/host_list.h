/* SPDX-License-Identifier: Apache-2.0 */
#ifndef GR_LAUNCH_HOST_LIST_H
#define GR_LAUNCH_HOST_LIST_H

/* Which hosts a job uses, and which ranks run on each: "host1:4,host2:4", or a file of lines
 * "host1 slots=4". */

#include "base/arena.h"
#include "link/tls.h"

#include <stdbool.h>

enum { GR_HOSTS_MAX = 256, GR_HOSTS_SLOTS_MAX = 4096, GR_HOSTS_NAME_BYTES = 256 };

typedef struct gr_host {
    const char *name;   /* as ssh takes it: "user@host" as well; the arena's */
    int slots;          /* workers that it may get */
    int first, workers; /* its ranks, once they are dealt */
    bool local;         /* this host */
    int fd;             /* the connection by which it came by itself (launch/join.h), and which */
    gr_tls *tls;        /* is ours while this is not NULL */
} gr_host;

typedef struct gr_host_list {
    int count;
    int unsaid; /* slots of a host that says none */
    gr_host at[GR_HOSTS_MAX];
} gr_host_list;

/* "host1:4,host2,user@[::1]:2"; without a number: one slot. A host that stands there twice has the
 * slots of both. `where` ("-H") begins the sentence of an error. */
gr_status gr_host_list_parse(const char *text, const char *where, gr_arena *arena,
                             gr_host_list *hosts_out, gr_diag *diag) GR_MUST_CHECK;
/* A file with a host on each line: "host1 slots=4", "host1:4" or "host1"; "#" begins a comment. */
gr_status gr_host_list_read(const char *path, gr_arena *arena, gr_host_list *hosts_out,
                            gr_diag *diag) GR_MUST_CHECK;

/* The same lines in memory; none is no failure. `slots`: of a host that says none. */
gr_status gr_host_list_parse_lines(const char *text, size_t size_bytes, const char *where,
                                   int slots, gr_arena *arena, gr_host_list *hosts_out,
                                   gr_diag *diag) GR_MUST_CHECK;

int gr_host_list_slots(const gr_host_list *hosts);
/* Ranks by host, each filled before the next one; the last ones may get none. GR_E_INVALID: there
 * are not enough slots. */
gr_status gr_host_list_deal(gr_host_list *hosts, int workers, gr_diag *diag) GR_MUST_CHECK;
bool gr_host_list_all_local(const gr_host_list *hosts);
/* Without the user: for prefixes and sentences. "localhost": nobody has named it. */
const char *gr_host_label(const gr_host *host);

#endif
