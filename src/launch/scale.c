/* SPDX-License-Identifier: Apache-2.0 */
#include "launch/scale.h"

#include "launch/schedule/schedule.h"

#include <stdio.h>

gr_scale_reply gr_scale_word(const gr_job_status *job, int asked)
{
    gr_scale_reply reply = {.status = GR_E_INVALID};
    const char *workers = job->want == 1 ? "worker" : "workers";
    if (job->most == 0) {
        snprintf(reply.text, sizeof reply.text,
                 "the job has %d %s, and can neither grow nor shrink (--min-workers and "
                 "--max-workers of gradus run)",
                 job->want, workers);
    } else if (job->word == GR_WORD_NONE) {
        reply.status = GR_OK;
        snprintf(reply.text, sizeof reply.text, "the job has %d %s; it may have %d to %d",
                 job->want, workers, job->least, job->most);
    } else if (job->word == GR_WORD_NEVER) {
        snprintf(reply.text, sizeof reply.text,
                 "the job was started for %d to %d workers, %d are not possible (--min-workers and "
                 "--max-workers of gradus run)",
                 job->least, job->most, asked);
    } else if (job->word == GR_WORD_GRANTED) {
        reply.status = GR_OK;
        snprintf(reply.text, sizeof reply.text, "the job goes from %d to %d workers", job->want,
                 asked);
    } else {
        snprintf(reply.text, sizeof reply.text, "the job is %s; it has %d %s",
                 job->word == GR_WORD_STARTING ? "still starting: try again" : "about to end",
                 job->want, workers);
    }
    return reply;
}
