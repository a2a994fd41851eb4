/* SPDX-License-Identifier: Apache-2.0 */
#ifndef GR_TESTS_COLL_SUPPORT_BOARD_H
#define GR_TESTS_COLL_SUPPORT_BOARD_H

/* The coordinator's part in diagnosis for ranks of one process, by a simulated clock. */

#include "coll/diagnose/channel.h"
#include "group/wait_graph.h"

#include "base/clock.h"

enum { BOARD_RANKS_MAX = 64, BOARD_INBOX = 32 };

typedef struct board board;

typedef struct board_rank {
    board *of;
    int rank;
    gr_op_report inbox[BOARD_INBOX];
    int count;
    bool cut; /* it has lost the coordinator */
} board_rank;

struct board {
    gr_wait_graph graph;
    gr_clock clock;
    board_rank ranks[BOARD_RANKS_MAX];
};

void board_open(board *b, int size, gr_clock clock);
void board_close(board *b);
gr_diagnosis_channel board_channel(board *b, int rank);

#endif
