/* SPDX-License-Identifier: Apache-2.0 */
#ifndef GR_OPERATOR_SERVE_ASKER_H
#define GR_OPERATOR_SERVE_ASKER_H

/* Asks pods for pages by HTTP/1.1, and trusts none of them: it follows no redirect, sends nothing
 * but the path, and never blocks. A question has GR_ASKER_PATIENCE_US from its first packet to its
 * last, a page GR_ASKER_ANSWER_BYTES; what is slower or longer is no answer. At most
 * GR_ASKER_QUESTIONS_MAX are on their way. */

#include "operator/asking.h"

#include <stddef.h>

enum { GR_ASKER_QUESTIONS_MAX = 32, GR_ASKER_ANSWER_BYTES = 8192, GR_ASKER_PATIENCE_US = 2000000 };

typedef struct gr_asker gr_asker;

/* Called once for each question: with the body of an answer of code 200, else with NULL. It may not
 * call the asker. */
typedef void gr_asker_done(void *arg, const gr_question *question, const char *body,
                           size_t size_bytes);

gr_status gr_asker_create(gr_asker_done *done, void *arg, gr_asker **asker_out,
                          gr_diag *diag) GR_MUST_CHECK;
/* Questions that are on their way are done, with nothing. NULL: nothing. */
void gr_asker_destroy(gr_asker *asker);

/* Returns true if there is room for one more question. */
bool gr_asker_is_free(gr_asker *asker);
/* There is room. `done` may be called from here, where nobody can be asked. */
void gr_asker_ask(gr_asker *asker, const gr_question *question);

/* Is readable when gr_asker_run has something to do. */
int gr_asker_fd(const gr_asker *asker);
void gr_asker_run(gr_asker *asker);

#endif
