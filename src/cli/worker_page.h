/* SPDX-License-Identifier: Apache-2.0 */
#ifndef GR_CLI_WORKER_PAGE_H
#define GR_CLI_WORKER_PAGE_H

/* A page on which a worker shows how far it has come: one object as JSON by HTTP (operator/serve/
 * web.h has the bounds). A thread of its own answers, so that nobody who reads it holds up a step.
 * Before the first step the code is 503. The path is best one that others do not guess: whoever
 * knows it may read the page. */

#include "train/train.h"

typedef struct gr_worker_page gr_worker_page;

/* `where`: "HOST:PORT/PATH" or ":PORT/PATH", borrowed as long as the page lives. GR_E_INVALID, with
 * a sentence: that is no such thing, or nobody can listen there; GR_E_NO_MEMORY, GR_E_IO. */
gr_status gr_worker_page_open(const char *where, gr_worker_page **page_out,
                              gr_diag *diag) GR_MUST_CHECK;
void gr_worker_page_close(gr_worker_page *page); /* NULL: nothing */
/* The `progress` of gr_train_options, with the page as its argument. */
void gr_worker_page_update(void *page, const gr_train_figures *figures);

#endif
