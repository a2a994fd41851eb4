/* SPDX-License-Identifier: Apache-2.0 */
#ifndef GR_COLL_DIAGNOSE_CHANNEL_H
#define GR_COLL_DIAGNOSE_CHANNEL_H

#include "group/op_report.h"

/* The way of diagnosis to the job's coordinator. Neither function blocks. */
typedef struct gr_diagnosis_channel {
    bool (*send)(void *arg, const gr_op_report *report); /* false: there is no way any more */
    bool (*next)(void *arg,
                 gr_op_report *report_out); /* what the coordinator says; false: nothing */
    void *arg;
} gr_diagnosis_channel;

#endif
