/* SPDX-License-Identifier: Apache-2.0 */

/* A job waits in a list that is sorted by time, since all wait equally long: who has answered goes
 * to its end, who is new to its beginning. While an answer is awaited it is in another list. */

#include "operator/asking.h"

#include "base/clock.h"
#include "operator/object.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

typedef struct asked_list {
    gr_asked *first, *last;
} asked_list;

struct gr_asked {
    gr_asked *before, *next; /* in the list */
    void *job;               /* NULL: it is asked no more, and goes when the answer comes */
    int64_t due_us;
    bool is_awaited; /* an answer is */
    int current, count;
    int port;
    char *texts; /* the path, then the addresses, each with its end */
};

struct gr_asking {
    int64_t every_us, gap_us;
    int64_t next_us; /* nobody is asked before */
    asked_list waiting, awaited;
};

gr_asking *gr_asking_create(int64_t every_us, double times_a_second)
{
    gr_asking *asking = calloc(1, sizeof *asking);
    if (asking != NULL) {
        asking->every_us = every_us;
        asking->gap_us = times_a_second > 0 ? (int64_t)(1e6 / times_a_second) : 0;
    }
    return asking;
}

static void free_asked(gr_asked *one)
{
    free(one->texts);
    free(one);
}

static void free_all(asked_list *list)
{
    while (list->first != NULL) {
        gr_asked *one = list->first;
        list->first = one->next;
        free_asked(one);
    }
}

void gr_asking_destroy(gr_asking *asking)
{
    if (asking != NULL) {
        free_all(&asking->waiting);
        free_all(&asking->awaited);
        free(asking);
    }
}

/* ---- Lists ----------------------------------------------------------------------------------- */
static void put_first(asked_list *list, gr_asked *one)
{
    one->before = NULL;
    one->next = list->first;
    *(one->next != NULL ? &one->next->before : &list->last) = one;
    list->first = one;
}

static void put_last(asked_list *list, gr_asked *one)
{
    one->before = list->last;
    one->next = NULL;
    *(one->before != NULL ? &one->before->next : &list->first) = one;
    list->last = one;
}

static void take_out(asked_list *list, gr_asked *one)
{
    *(one->before != NULL ? &one->before->next : &list->first) = one->next;
    *(one->next != NULL ? &one->next->before : &list->last) = one->before;
}

/* ---- Jobs ------------------------------------------------------------------------------------ */
/* Path and addresses as one text; NULL: no memory. */
static char *join(const json_t *ask, int *count_out)
{
    char *texts = NULL;
    size_t i, size_bytes = 0;
    const json_t *address;
    const char *path = gr_object_text(ask, "path");
    FILE *out = open_memstream(&texts, &size_bytes);
    if (out == NULL) {
        return NULL;
    }
    *count_out = 0;
    fprintf(out, "%s%c", path != NULL ? path : "/", '\0');
    json_array_foreach(json_object_get(ask, "addresses"), i, address)
    {
        fprintf(out, "%s%c", json_string_value(address), '\0');
        ++*count_out;
    }
    if (fclose(out) != 0) {
        free(texts);
        texts = NULL;
    }
    return texts;
}

static void forget(gr_asking *asking, gr_asked **asked)
{
    gr_asked *one = *asked;
    *asked = NULL;
    if (one == NULL) {
        return;
    }
    one->job = NULL;
    if (!one->is_awaited) {
        take_out(&asking->waiting, one);
        free_asked(one);
    }
}

static const char *text_at(const gr_asked *one, int index)
{
    const char *text = one->texts;
    for (int i = 0; i < index; i++) {
        text += strlen(text) + 1;
    }
    return text;
}

/* Which of `texts` is the worker that is asked now; 0: it is no more among them. */
static int find_current(const gr_asked *one, const char *texts, int count)
{
    const char *text = texts + strlen(texts) + 1;
    for (int i = 0; i < count && one->count > 0; i++, text += strlen(text) + 1) {
        if (strcmp(text, text_at(one, 1 + one->current)) == 0) {
            return i;
        }
    }
    return 0;
}

gr_status gr_asking_set(gr_asking *asking, gr_asked **asked, void *job, const json_t *ask,
                        int64_t now_us)
{
    int count = 0;
    if (json_array_size(json_object_get(ask, "addresses")) == 0) {
        forget(asking, asked);
        return GR_OK;
    }
    char *texts = join(ask, &count);
    gr_asked *one = *asked;
    if (texts != NULL && one == NULL) {
        one = calloc(1, sizeof *one);
    }
    if (texts == NULL || one == NULL) {
        free(texts);
        return GR_E_NO_MEMORY;
    }
    one->current = find_current(one, texts, count);
    free(one->texts);
    one->texts = texts;
    one->count = count;
    one->port = (int)gr_object_int(ask, "port", 0);
    if (*asked == NULL) {
        one->job = job;
        one->due_us = now_us;
        put_first(&asking->waiting, one);
        *asked = one;
    }
    return GR_OK;
}

/* ---- Questions ------------------------------------------------------------------------------- */
bool gr_asking_next(gr_asking *asking, int64_t now_us, gr_question *question_out,
                    int64_t *wake_us_out)
{
    gr_asked *one = asking->waiting.first;
    int64_t due_us = one == NULL                     ? GR_NEVER
                     : one->due_us > asking->next_us ? one->due_us
                                                     : asking->next_us;
    *wake_us_out = due_us;
    if (due_us > now_us) {
        return false;
    }
    take_out(&asking->waiting, one);
    put_last(&asking->awaited, one);
    one->is_awaited = true;
    asking->next_us = now_us + asking->gap_us;
    *question_out = (gr_question){.asked = one, .port = one->port};
    snprintf(question_out->path, sizeof question_out->path, "%s", text_at(one, 0));
    snprintf(question_out->address, sizeof question_out->address, "%s",
             text_at(one, 1 + one->current));
    return true;
}

void *gr_asking_job(const gr_question *question)
{
    gr_asked *asked = question->asked;
    return strcmp(question->path, text_at(asked, 0)) == 0 ? asked->job : NULL;
}

void gr_asking_answered(gr_asking *asking, gr_asked *asked, int64_t now_us, bool is_useful)
{
    take_out(&asking->awaited, asked);
    if (asked->job == NULL) {
        free_asked(asked);
        return;
    }
    if (!is_useful) {
        asked->current = (asked->current + 1) % asked->count;
    }
    asked->is_awaited = false;
    asked->due_us = now_us + asking->every_us;
    put_last(&asking->waiting, asked);
}
