/* SPDX-License-Identifier: Apache-2.0 */
#include "coll/select.h"
#include "base/doc.h"
#include "base/fail.h"

#include <stdio.h>
#include <string.h>

/* The first row that covers an operation and whose algorithm can plan for it wins. The limits are
 * where the curves of bench/bench_allreduce cross on two cores, up to 8 ranks, both links inside
 * the host. The ring is never chosen: it moves as much as `direct` in more rounds. */
typedef struct choice {
    gr_coll coll;
    gr_link_kind link;
    int world_size_max;
    size_t size_bytes_max;
    const char *name;
} choice;

#define ANY_SIZE SIZE_MAX
#define ANY_WORLD INT32_MAX

static const choice choices[] = {
    {GR_COLL_ALLREDUCE, GR_LINK_SHM, 2, 16 << 10, "gather"},
    {GR_COLL_ALLREDUCE, GR_LINK_SHM, 4, 8 << 10, "gather"},
    {GR_COLL_ALLREDUCE, GR_LINK_SHM, 8, 4 << 10, "gather"},
    {GR_COLL_ALLREDUCE, GR_LINK_SHM, ANY_WORLD, 4 << 10, "tree"},
    {GR_COLL_ALLREDUCE, GR_LINK_SHM, ANY_WORLD, ANY_SIZE, "direct"},
    {GR_COLL_ALLREDUCE, GR_LINK_TCP, 4, 32 << 10, "gather"},
    {GR_COLL_ALLREDUCE, GR_LINK_TCP, 8, 2 << 10, "gather"},
    {GR_COLL_ALLREDUCE, GR_LINK_TCP, ANY_WORLD, 32 << 10, "tree"},
    {GR_COLL_ALLREDUCE, GR_LINK_TCP, ANY_WORLD, ANY_SIZE, "direct"},
    {GR_COLL_REDUCE_SCATTER, GR_LINK_SHM, ANY_WORLD, ANY_SIZE, "direct"},
    {GR_COLL_REDUCE_SCATTER, GR_LINK_TCP, ANY_WORLD, ANY_SIZE, "direct"},
    {GR_COLL_ALLGATHER, GR_LINK_SHM, ANY_WORLD, ANY_SIZE, "direct"},
    {GR_COLL_ALLGATHER, GR_LINK_TCP, ANY_WORLD, ANY_SIZE, "direct"},
    {GR_COLL_BROADCAST, GR_LINK_SHM, ANY_WORLD, 4096, "binomial"},
    {GR_COLL_BROADCAST, GR_LINK_SHM, ANY_WORLD, ANY_SIZE, "direct"},
    {GR_COLL_BROADCAST, GR_LINK_TCP, ANY_WORLD, ANY_SIZE, "binomial"},
    {GR_COLL_BARRIER, GR_LINK_SHM, ANY_WORLD, ANY_SIZE, "dissemination"},
    {GR_COLL_BARRIER, GR_LINK_TCP, ANY_WORLD, ANY_SIZE, "dissemination"},
};

enum { CHOICES = sizeof choices / sizeof choices[0], WORD_BYTES = 64, LIST_BYTES = 256 };
_Static_assert((int)CHOICES <= (int)GR_SELECT_ROWS_MAX, "gr_selection has room for all rows");

static void list_algorithms(gr_coll coll, char *text, size_t size_bytes)
{
    size_t used = 0;
    text[0] = '\0';
    for (const gr_algorithm *at = gr_algorithms; at->name && used < size_bytes; at++) {
        if (at->coll == coll) {
            int wrote =
                snprintf(text + used, size_bytes - used, "%s%s", used ? ", " : "", at->name);
            used += wrote > 0 ? (size_t)wrote : 0;
        }
    }
}

/* One "collective=algorithm". */
static gr_status take_word(gr_selection *selection, const char *word, gr_diag *diag)
{
    const char *equals = strchr(word, '=');
    size_t length = equals ? (size_t)(equals - word) : strlen(word);
    int coll = 0;
    while (coll < GR_COLL_COUNT && !(strlen(gr_coll_name((gr_coll)coll)) == length &&
                                     strncmp(gr_coll_name((gr_coll)coll), word, length) == 0)) {
        coll++;
    }
    if (!equals || coll == GR_COLL_COUNT) {
        return gr_fail(diag, GR_E_INVALID,
                       "GRADUS_ALGORITHM: \"%s\" must read collective=algorithm, where collective "
                       "is allreduce, reduce-scatter, allgather, broadcast or barrier",
                       word);
    }
    const gr_algorithm *algorithm = gr_algorithm_find((gr_coll)coll, equals + 1);
    if (!algorithm) {
        char known[LIST_BYTES];
        list_algorithms((gr_coll)coll, known, sizeof known);
        return gr_fail(diag, GR_E_INVALID,
                       "GRADUS_ALGORITHM: there is no %s algorithm \"%s\"; there are %s",
                       gr_coll_name((gr_coll)coll), equals + 1, known);
    }
    if (selection->exact && !algorithm->canonical) {
        return gr_fail(diag, GR_E_INVALID,
                       "GRADUS_ALGORITHM: %s=%s does not add in the order of the shard tree, so "
                       "that results would depend on the number of workers; choose another one, or "
                       "permit it by GRADUS_EXACT=0 (exact: false in a job file)",
                       gr_coll_name((gr_coll)coll), algorithm->name);
    }
    selection->forced[coll] = algorithm;
    return GR_OK;
}

gr_status gr_selection_init(gr_selection *selection, const char *text, bool exact,
                            gr_link_kind link, gr_diag *diag)
{
    *selection = (gr_selection){.exact = exact, .link = link};
    for (int i = 0; i < CHOICES; i++) {
        if (choices[i].link == link) {
            selection->rows[i] = gr_algorithm_find(choices[i].coll, choices[i].name);
        }
    }
    while (text && *text) {
        char word[WORD_BYTES];
        size_t length = strcspn(text, ", ");
        if (length >= sizeof word) {
            return gr_fail(diag, GR_E_INVALID, "GRADUS_ALGORITHM: \"%.40s...\" is too long", text);
        }
        memcpy(word, text, length);
        word[length] = '\0';
        gr_status status = length > 0 ? take_word(selection, word, diag) : GR_OK;
        if (status != GR_OK) {
            return status;
        }
        text += length;
        text += strspn(text, ", ");
    }
    return GR_OK;
}

const gr_algorithm *gr_select(const gr_selection *selection, const gr_plan_shape *shape,
                              size_t size_bytes, bool order_free)
{
    const gr_algorithm *forced = selection->forced[shape->coll];
    if (forced && forced->fits(shape)) {
        return forced;
    }
    bool any_order = order_free || !selection->exact;
    for (int i = 0; i < CHOICES; i++) {
        const choice *row = &choices[i];
        const gr_algorithm *algorithm = selection->rows[i];
        if (algorithm && row->coll == shape->coll && shape->world_size <= row->world_size_max &&
            size_bytes <= row->size_bytes_max && algorithm->fits(shape) &&
            (algorithm->canonical || any_order)) {
            return algorithm;
        }
    }
    return NULL;
}
