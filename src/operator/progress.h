/* SPDX-License-Identifier: Apache-2.0 */
#ifndef GR_OPERATOR_PROGRESS_H
#define GR_OPERATOR_PROGRESS_H

/* How far a job has come: each of its workers shows a page (cli/worker_page.h), one of them is
 * asked from time to time (operator/asking.h), and what it says stands in status.progress.
 *
 * A worker may say whatever it likes. It can change the numbers of its own job, and nothing else:
 * what is kept has known keys, finite numbers within bounds, and one name of a host. */

#include "operator/training.h"

#include <stddef.h>

/* Behind the port at which workers meet, and that of the coordinator. */
enum { GR_JOB_PROGRESS_PORT_OFFSET = 2, GR_JOB_PROGRESS_BYTES = 4096 };

/* What status.progress gets of a worker's answer, but for the time: a map, the caller's. NULL: it
 * is no such answer, or there is no memory. */
json_t *gr_job_progress_read(const char *text, size_t size_bytes);

/* Has a worker show its page, where the operator asks for such. */
void gr_job_progress_add_page(gr_training *t, const gr_training_role *role, json_t *container);
/* Has the running workers of this role asked, and puts an answer into the status. */
void gr_job_progress_report(gr_training *t, const gr_training_role *role);

#endif
