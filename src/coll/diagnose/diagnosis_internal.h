/* SPDX-License-Identifier: Apache-2.0 */
#ifndef GR_COLL_DIAGNOSE_DIAGNOSIS_INTERNAL_H
#define GR_COLL_DIAGNOSE_DIAGNOSIS_INTERNAL_H

/* Shared by diagnosis.c (life, reports, lateness), mismatch.c and stall.c only. */

#include "base/fail.h"
#include "coll/diagnose/diagnosis.h"

typedef struct gr_diagnosis_peer {
    bool any;
    gr_op_id last_rx;              /* the last operation that the peer sent something of */
    uint64_t skew_count, skew_max; /* in ticks of gr_flight_recorder_now */
    double skew_sum, skew_recent;
} gr_diagnosis_peer;

/* A peer runs a different operation, and is asked what it called, for a short time. */
typedef struct gr_diagnosis_arbitration {
    bool on;
    bool discards;   /* no group that could end by itself has part in it */
    uint16_t comm;   /* that the peer is in, ... */
    uint32_t serial; /* and the serial number of that which this rank called something in; 0: of the
                      * whole job */
    uint16_t ends;   /* the communicator that ends by it; 0: all */
    int64_t until_us;
    gr_diag own_account;
} gr_diagnosis_arbitration;

struct gr_diagnosis {
    gr_diagnosis_config config;
    gr_diagnosis_peer *peers; /* by rank */
    gr_diagnosis_arbitration arbitration;
    bool reported;          /* the coordinator knows that this rank waits, ... */
    gr_op_report report;    /* ... by this one, */
    uint64_t report_record; /* of this operation */
    uint32_t seq;           /* of the last wait that was reported */
    int64_t report_us;
    gr_op_report cause; /* `report` has been answered by this; kind 0: not (yet) */
    gr_op_report asker; /* of a rank that waits for this one; kind 0: none, or done with */
    /* Ranks that were reported to the coordinator as denied by `report`, the newest ones. */
    int32_t denied[GR_REPORT_AWAITS_MAX];
    uint32_t denied_count;
};

/* mismatch.c */
int64_t gr_diagnosis_poll_arbitration(gr_diagnosis *d, int64_t now_us);
/* A report of another rank, which concerns this one. */
void gr_diagnosis_take_mismatch(gr_diagnosis *d, const gr_op_report *report);
/* The report of a rank that waits is compared with what was called here; done with: true. */
bool gr_diagnosis_compare(gr_diagnosis *d, const gr_op_report *report);
/* What this rank waits in can never be over, since the reporting rank called something else. */
void gr_diagnosis_fail_wait(gr_diagnosis *d, const gr_op_report *report);
/* "allreduce of ... at train.c:88 as operation 17" */
void gr_diagnosis_describe_call(const gr_diagnosis *d, uint64_t record, char *text_out,
                                size_t size_bytes);

/* diagnosis.c */
/* This rank is in the wait that the report answers. */
bool gr_diagnosis_is_current(const gr_diagnosis *d, const gr_op_report *report);
/* Ranks that `op` waits for, most urgent first, into report->awaits. */
void gr_diagnosis_list_awaited(const gr_diagnosis *d, const gr_op *op, gr_op_report *report);
void gr_diagnosis_report(gr_diagnosis *d, gr_op *op, int64_t now_us);

/* stall.c */
int64_t gr_diagnosis_poll_op(gr_diagnosis *d, gr_op *op, int64_t now_us, int64_t skipped_us);

static inline gr_flight_recorder *gr_diagnosis_record(const gr_diagnosis *d)
{
    return gr_exec_record(d->config.exec);
}

static inline bool gr_diagnosis_is_over(const gr_diagnosis *d)
{
    return gr_exec_diag(d->config.exec)->status != GR_OK;
}

#endif
