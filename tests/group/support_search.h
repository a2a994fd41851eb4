/* SPDX-License-Identifier: Apache-2.0 */
#ifndef GR_TESTS_GROUP_SUPPORT_SEARCH_H
#define GR_TESTS_GROUP_SUPPORT_SEARCH_H

/* Everything that can happen to a model, in every order: breadth first, so that what goes wrong is
 * told by the shortest way to it. */

#include "base/fail.h"

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

typedef enum search_class {
    SEARCH_BY_ITSELF, /* sooner or later it happens */
    SEARCH_TIMER,     /* that, but only when nothing happens by itself any more */
    SEARCH_FAULT      /* it may happen, but need not */
} search_class;

/* The model is in one state at a time. Events are numbers from 0. */
typedef struct search_model {
    void *model;
    int event_count;
    size_t state_bytes; /* states are told apart by all of them */
    const void *(*keep)(void *model);
    void (*restore)(void *model, const void *state);
    search_class (*class_of)(int event);
    bool (*can)(void *model, int event);
    void (*happen)(void *model, int event);
    bool (*agrees)(void *model); /* always; false: `why` says what is wrong */
    bool (*rests)(void *model);  /* when nothing happens any more but faults */
    const char *(*why)(void *model);
    void (*print_event)(int event);
} search_model;

typedef struct search_counts {
    uint32_t states, rests;
} search_counts;

enum { SEARCH_WHY_BYTES = 200 };
/* Notes what is wrong, unless something was before. False. */
bool search_wrong(char why[SEARCH_WHY_BYTES], const char *format, ...) GR_PRINTF(2, 3);

/* From the state that the model is in. False: it printed what went wrong, and how. */
bool search_all(const search_model *of, search_counts *counts_out);

#endif
