/* SPDX-License-Identifier: Apache-2.0 */
#ifndef GR_TESTS_COLL_SUPPORT_FIBER_H
#define GR_TESTS_COLL_SUPPORT_FIBER_H

/* Functions with stacks of their own that take turns in one thread, so that code which waits can be
 * simulated as it is. */

typedef struct fiber fiber;

/* Nothing runs before the first fiber_enter. NULL: no memory. */
fiber *fiber_create(void (*body)(void *arg), void *arg);
/* Runs the fiber until it leaves or its body returns; not from inside a fiber, nor after the end.
 */
void fiber_enter(fiber *f);
/* From inside: back to who entered. */
void fiber_leave(fiber *f);
/* Also in the middle of its body: what that held stays as it is. NULL ok. */
void fiber_destroy(fiber *f);

#endif
