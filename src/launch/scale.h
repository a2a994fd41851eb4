/* SPDX-License-Identifier: Apache-2.0 */
#ifndef GR_LAUNCH_SCALE_H
#define GR_LAUNCH_SCALE_H

/* How a job that runs is told to have another number of workers: one datagram to a socket of its
 * launcher, and one back, in the abstract namespace, so that no file is left. The kernel says who
 * has sent each: only the launcher's own user and root are listened to, and only they are taken for
 * the launcher. */

#include "launch/schedule/schedule.h"

#include <stdbool.h>
#include <sys/socket.h>
#include <sys/types.h>
#include <sys/un.h>

enum { GR_SCALE_TEXT_BYTES = 256 };

typedef struct gr_scale_request {
    int workers; /* wanted; 0: only how many there are */
    struct sockaddr_un from;
    socklen_t from_bytes;
} gr_scale_request;

typedef struct gr_scale_reply {
    gr_status status;
    char text[GR_SCALE_TEXT_BYTES];
} gr_scale_reply;

/* What the scheduler says, in words. */
gr_scale_reply gr_scale_word(const gr_scheduler_answer *answer);

/* The socket of this process, non-blocking; -1 with errno. */
int gr_scale_listen(void);
/* The next request; false: none. What nobody may send is dropped. */
bool gr_scale_receive(int fd, gr_scale_request *request_out);
void gr_scale_answer(int fd, const gr_scale_request *request, const gr_scale_reply *reply);

/* Asks the launcher with this process number. GR_OK: it has answered; GR_E_NOT_FOUND: there is none
 * of ours; GR_E_TIMEOUT; GR_E_IO. */
gr_status gr_scale_ask(pid_t launcher, int workers, gr_scale_reply *reply_out,
                       gr_diag *diag) GR_MUST_CHECK;
/* Process numbers of this user's launchers, as far as there is room; how many there are. */
int gr_scale_find(pid_t *launchers_out, int room);

#endif
