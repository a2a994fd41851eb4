/* SPDX-License-Identifier: Apache-2.0 */
#ifndef GR_OPERATOR_ASKING_H
#define GR_OPERATOR_ASKING_H

/* Which job's workers are asked next how far it has come, and when: each job once in `every_us`,
 * and all of them no more than so many times a second. One worker of a job is asked, the one that
 * has answered last; when it does not, the next time another one. No network, no clock. */

#include <gradus/status.h>
#include <jansson.h>
#include <stdbool.h>
#include <stdint.h>

typedef struct gr_asking gr_asking;
typedef struct gr_asked gr_asked; /* a job */

enum { GR_ASKING_ADDRESS_BYTES = 46, GR_ASKING_PATH_BYTES = 128 };

typedef struct gr_question {
    gr_asked *asked; /* to be answered once */
    char address[GR_ASKING_ADDRESS_BYTES];
    int port;
    char path[GR_ASKING_PATH_BYTES];
} gr_question;

/* NULL: no memory. */
gr_asking *gr_asking_create(int64_t every_us, double times_a_second);
void gr_asking_destroy(gr_asking *asking); /* with all jobs */

/* `ask` is that of gr_operator_result, borrowed; NULL: the job is to be asked no more. *asked is
 * the job's, NULL at first and again when it is not asked; `job` comes back by gr_asking_job.
 * GR_E_NO_MEMORY: nothing has changed. */
gr_status gr_asking_set(gr_asking *asking, gr_asked **asked, void *job, const json_t *ask,
                        int64_t now_us) GR_MUST_CHECK;

/* False: nobody is to be asked before *wake_us_out. */
bool gr_asking_next(gr_asking *asking, int64_t now_us, gr_question *question_out,
                    int64_t *wake_us_out);
/* NULL: it is asked no more, or is another one of the same name by now. */
void *gr_asking_job(const gr_question *question);
/* `is_useful`: the worker is asked again, else another one. */
void gr_asking_answered(gr_asking *asking, gr_asked *asked, int64_t now_us, bool is_useful);

#endif
