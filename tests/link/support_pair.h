/* SPDX-License-Identifier: Apache-2.0 */
#ifndef GR_TESTS_LINK_SUPPORT_PAIR_H
#define GR_TESTS_LINK_SUPPORT_PAIR_H

/* Two members that talk: both in this process, moved on by the same thread, or the second in a
 * process of its own that may be killed. */

#include "link/link.h"

#include <sys/types.h>

extern const uint8_t test_secret[GR_SECRET_BYTES];

typedef struct pair {
    gr_mesh *mesh[2];
    gr_link *link[2]; /* link[i] is held by member i and leads to the other */
} pair;

enum { PATIENCE_US = 60000000 };

/* A kind for these helpers only: tcp with so many rails between two members. */
#define TCP_RAILS(count) ((gr_link_kind)(GR_LINK_TCP | (count) << 8))
/* Likewise, with TLS; to be or-ed in. */
enum { TCP_ENCRYPTED = 1 << 16 };
/* Likewise, of meshes with dynamic peers. */
enum { WITH_DYNAMIC_PEERS = 1 << 17 };
int kind_rails(gr_link_kind kind);

/* As many connections to the one address as the kind says. */
gr_status kind_connect(gr_mesh *mesh, gr_link_kind kind, int peer, const char *address,
                       gr_diag *diag);

gr_mesh_config test_config(gr_link_kind kind, int rank, int world_size);
int64_t test_now_us(void);

void pair_open(pair *p, gr_link_kind kind);
void pair_close(pair *p);
void pair_pump(pair *p); /* both move on once; a failure fails the test */

/* Send and receive whole messages within one process, pumping as needed. */
uint64_t pair_send(pair *p, int from, uint32_t op_seq, const void *data, size_t size_bytes);
gr_frame pair_await(pair *p, int at); /* the head at `at` */
void pair_read(pair *p, int at, void *dst);

/* A helper process that is rank 1 of 2 and runs `body`; its result is the exit status. */
typedef int helper_body(gr_mesh *mesh, gr_link *link);
pid_t helper_start(gr_link_kind kind, const char *address, helper_body *body);
int helper_end(pid_t pid); /* waits; exit status, or minus the signal */

/* Progress and wait until there is a link to `peer`; NULL if it does not come. */
gr_link *await_link(gr_mesh *mesh, int peer);

int open_fds(void);

#endif
