/* SPDX-License-Identifier: Apache-2.0 */
#ifndef GR_LAUNCH_SCALE_H
#define GR_LAUNCH_SCALE_H

/* How a job that runs is told to have another number of workers: GR_JOB_SCALE at its socket. The
 * scheduler judges; here is what it says, in words. */

#include "launch/agent/job_message.h"

enum { GR_SCALE_TEXT_BYTES = 256 };

typedef struct gr_scale_reply {
    gr_status status; /* GR_OK: done, or under way */
    char text[GR_SCALE_TEXT_BYTES];
} gr_scale_reply;

/* `job`: as it was before, with the scheduler's word. */
gr_scale_reply gr_scale_word(const gr_job_status *job, int asked);

#endif
