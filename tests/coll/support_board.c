/* SPDX-License-Identifier: Apache-2.0 */
#include "support_board.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static void deliver(void *board_arg, int to, const gr_op_report *report)
{
    board_rank *r = &((board *)board_arg)->ranks[to];
    if (r->count < BOARD_INBOX) {
        r->inbox[r->count++] = *report;
    }
}

static bool send_report(void *rank_arg, const gr_op_report *report)
{
    board_rank *r = rank_arg;
    uint8_t bytes[GR_REPORT_BYTES_MAX];
    gr_op_report sent;
    if (r->cut) {
        return false;
    }
    size_t size = gr_op_report_put(report, bytes);
    if (size > sizeof bytes ||
        gr_op_report_get(bytes, size, BOARD_RANKS_MAX, &sent, NULL) != GR_OK ||
        gr_wait_graph_report(&r->of->graph, r->rank, &sent, gr_clock_now_us(&r->of->clock)) !=
            GR_OK) {
        fprintf(stderr, "the coordinator does not understand rank %d\n", r->rank);
        abort();
    }
    return true;
}

static bool next_report(void *rank_arg, gr_op_report *report_out)
{
    board_rank *r = rank_arg;
    (void)gr_wait_graph_evaluate(&r->of->graph, gr_clock_now_us(&r->of->clock));
    if (r->count == 0 || r->cut) {
        return false;
    }
    *report_out = r->inbox[0];
    r->count--;
    memmove(r->inbox, r->inbox + 1, (size_t)r->count * sizeof r->inbox[0]);
    return true;
}

void board_open(board *b, int size, gr_clock clock)
{
    memset(b, 0, sizeof *b);
    b->clock = clock;
    if (size > BOARD_RANKS_MAX || gr_wait_graph_init(&b->graph, size, deliver, b) != GR_OK) {
        abort();
    }
    gr_wait_graph_reset(&b->graph, size);
    for (int rank = 0; rank < size; rank++) {
        b->ranks[rank].of = b;
        b->ranks[rank].rank = rank;
    }
}

void board_close(board *b)
{
    gr_wait_graph_fini(&b->graph);
}

gr_diagnosis_channel board_channel(board *b, int rank)
{
    return (gr_diagnosis_channel){.send = send_report, .next = next_report, .arg = &b->ranks[rank]};
}
