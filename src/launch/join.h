/* SPDX-License-Identifier: Apache-2.0 */
#ifndef GR_LAUNCH_JOIN_H
#define GR_LAUNCH_JOIN_H

/* How hosts come by themselves, where ssh is not wanted: their agents call the launcher, both prove
 * that they hold the same token (link/door.h), and TLS follows, since the order has the job's
 * secret. The rank that an agent goes by in that handshake is the number of its slots. What is
 * carried then is the same as over ssh. */

#include "launch/host_list.h"
#include "link/acceptor.h"

/* The token: the digits in GRADUS_JOIN_TOKEN, which are wiped and not inherited, or else those in
 * the file that GRADUS_JOIN_TOKEN_FILE names, of mode 0600. `make`: a file that is not there is
 * made, with a new token. */
gr_status gr_join_token(bool make, uint8_t token_out[GR_SECRET_BYTES], gr_diag *diag) GR_MUST_CHECK;

/* GRADUS_JOIN_TOKEN goes from the environment, where this process does not need it. Returned: what
 * it was (gr_secret_keep), for those that this process starts later; NULL: there was none. */
uint8_t *gr_join_wipe_token(void);
/* For a process that is forked now, before it is wiped again. NULL ok */
void gr_join_show_token(const uint8_t *kept);

/* Launcher: listens at "HOST:PORT", ":PORT" (all addresses). */
gr_status gr_join_listen(const char *at, const uint8_t token[GR_SECRET_BYTES], const gr_log *log,
                         gr_acceptor **acceptor_out, gr_diag *diag) GR_MUST_CHECK;
/* The next agent that has come; false: none. Its name is written to name_out, which the host
 * borrows; the connection is the caller's to close (gr_join_refuse), or to give to a relay. */
bool gr_join_take(gr_acceptor *acceptor, char name_out[GR_HOSTS_NAME_BYTES], gr_host *host_out);
/* The address of the other side of a connection, as text. */
void gr_join_name_of(int fd, char *name_out, size_t size_bytes);
/* Closes the connection of a host that has joined, if it has one; the other side is not
 * notified. */
void gr_join_refuse(gr_host *host);
/* Waits until agents with so many slots have come; their names are the arena's. GR_E_TIMEOUT;
 * GR_E_CANCELLED: a signal that is held back (signals.h) wants an end. */
gr_status gr_join_gather(gr_acceptor *acceptor, int slots, int64_t timeout_us, gr_arena *arena,
                         gr_host_list *hosts_out, gr_diag *diag) GR_MUST_CHECK;

/* Agent: tries again for `timeout_us` while nobody listens there, or the name of the host is not
 * known, which is logged. GR_E_AUTH: the other side holds another token; GR_E_PEER_LOST: nobody is
 * there; GR_E_NOT_FOUND: nobody knows the name; GR_E_INVALID: no address. */
gr_status gr_join_dial(const char *at, int slots, const uint8_t token[GR_SECRET_BYTES],
                       int64_t timeout_us, const gr_log *log, gr_accepted *arrival_out,
                       gr_diag *diag) GR_MUST_CHECK;

#endif
