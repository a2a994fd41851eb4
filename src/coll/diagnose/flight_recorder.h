/* SPDX-License-Identifier: Apache-2.0 */
#ifndef GR_COLL_DIAGNOSE_FLIGHT_RECORDER_H
#define GR_COLL_DIAGNOSE_FLIGHT_RECORDER_H

/* What was called last: a ring of the last operations of a process, in memory without pointers to
 * other memory, for error sentences and for looking back. It may lie in a file that another process
 * (the launcher) reads when this one is gone. An entry is written when its operation starts, and
 * completed when it ends; nothing is formatted until somebody asks. Belongs to the thread of the
 * executor that writes it. */

#include <gradus/coll.h>
#include <stdbool.h>

enum {
    GR_FLIGHT_RECORDER_ENTRIES = 1024,
    GR_FLIGHT_RECORDER_NAME_BYTES = 48,
    GR_FLIGHT_RECORDER_TEXT_BYTES = 256
};

#define GR_FLIGHT_RECORDER_NO_NUMBER UINT32_MAX

typedef struct gr_flight_recorder_entry {
    uint64_t fingerprint;
    uint64_t count;
    uint64_t started, ended; /* ticks, see gr_flight_recorder_now; ended 0: not yet */
    uint64_t caller;         /* an address of this process; 0: not known */
    uint32_t number; /* of the operation in its communicator, or of the message; of a receive
                                that nothing has met: NO_NUMBER */
    uint32_t tag;
    int32_t root, shards;
    int32_t status; /* a gr_status; GR_PENDING: not ended */
    int32_t peer;   /* of messages: the rank in the job; any rank, and else: -1 */
    uint16_t comm;
    uint8_t coll, dtype, op, algorithm;
    char name[GR_FLIGHT_RECORDER_NAME_BYTES], site[GR_FLIGHT_RECORDER_NAME_BYTES]; /* "": none */
} gr_flight_recorder_entry;

enum { GR_FLIGHT_RECORDER_MAGIC = 0x31525247, GR_FLIGHT_RECORDER_VERSION = 3 };

typedef struct gr_flight_recorder {
    uint32_t magic, version; /* "GRR1" */
    /* Where the program's own code lies, so that callers can be named when it is gone. */
    uint64_t program_at, program_bytes;
    char program[GR_FLIGHT_RECORDER_NAME_BYTES];
    uint64_t begun; /* entries ever begun: the newest is (begun - 1) % GR_FLIGHT_RECORDER_ENTRIES */
    uint64_t generation, step; /* where the program is: gr_flight_recorder_note; 0: not given */
    uint64_t begun_for_it;     /* of the entries, before the program did anything */
    uint32_t first_number;     /* of the program's own operations on the job's communicator */
    uint64_t first_ticks;      /* when the record was made, ... */
    int64_t first_ns;          /* ... on gr_now_ns */
    gr_flight_recorder_entry entries[GR_FLIGHT_RECORDER_ENTRIES];
} gr_flight_recorder;

/* A record in the file `path`, which is made as long as needed, or in plain memory (path NULL, or
 * the file cannot be used: then why_out, 128 bytes, says why). NULL: no memory. */
gr_flight_recorder *gr_flight_recorder_create(const char *path, char why_out[128]);
void gr_flight_recorder_destroy(gr_flight_recorder *record); /* NULL ok; the file stays */

/* Copies the record of another process, which may be writing it or may have died doing so: checked,
 * and made harmless. GR_E_NOT_FOUND: nothing was recorded; GR_E_INVALID: that is no record;
 * GR_E_IO. */
gr_status gr_flight_recorder_read(int fd, gr_flight_recorder *record_out) GR_MUST_CHECK;
/* What its process did last, as the end of a sentence about it: "in operation 17, allreduce of ...,
 * for 3.2 s; ..." or "between operations; ...". `now`: of gr_flight_recorder_now on the same host,
 * at the end of the process. */
void gr_flight_recorder_last(const gr_flight_recorder *record, uint64_t now, char *text_out,
                             size_t size_bytes);

/* Where another process was: whatever of it is not known is 0. */
typedef struct gr_flight_recorder_place {
    uint64_t generation; /* of its group */
    uint64_t step;       /* that it was in, from 1 */
    uint64_t operations; /* of its own that it had begun in that generation */
} gr_flight_recorder_place;
gr_flight_recorder_place gr_flight_recorder_read_place(int fd);
/* Step 0: the program begins now. */
void gr_flight_recorder_note(gr_flight_recorder *record, uint64_t generation, uint64_t step);

/* The next entry, number record->begun; its earlier contents are gone. All members but `started`
 * are the caller's to fill; then it counts. Who dies in between leaves no half entry. */
gr_flight_recorder_entry *gr_flight_recorder_begin(gr_flight_recorder *record);
static inline void gr_flight_recorder_commit(gr_flight_recorder *record)
{
    __atomic_store_n(&record->begun, record->begun + 1, __ATOMIC_RELEASE);
}
/* The entry that was the `index`-th to be begun, NULL if it was overwritten. */
const gr_flight_recorder_entry *gr_flight_recorder_at(const gr_flight_recorder *record,
                                                      uint64_t index);
bool gr_flight_recorder_is_message(const gr_flight_recorder_entry *entry);
/* The receive of that entry, if it is there still, takes message `number` of `peer` (in the job),
 * which is `source` in the communicator. */
void gr_flight_recorder_matched(gr_flight_recorder *record, uint64_t index, uint32_t number,
                                int peer, int source, uint32_t tag);
/* Copies a name, cut to the entry's room; NULL: none, as most often. */
void gr_flight_recorder_copy_some(char to[GR_FLIGHT_RECORDER_NAME_BYTES], const char *name);
static inline void gr_flight_recorder_copy(char to[GR_FLIGHT_RECORDER_NAME_BYTES], const char *name)
{
    to[0] = '\0';
    if (name) {
        gr_flight_recorder_copy_some(to, name);
    }
}

/* Messages have a number space of their own for each peer and direction. NULL: not known (any
 * more). */
const gr_flight_recorder_entry *gr_flight_recorder_find(const gr_flight_recorder *record,
                                                        uint16_t comm, uint32_t number);
const gr_flight_recorder_entry *gr_flight_recorder_find_message(const gr_flight_recorder *record,
                                                                gr_coll coll, int peer,
                                                                uint32_t number);

/* The numbers that people see count the program's own calls from 1: what a communicator does while
 * it is created has numbers of its own. `number`: of operation or message, as an entry has it. */
uint32_t gr_flight_recorder_shown_number(const gr_flight_recorder *record, uint16_t comm,
                                         uint32_t number, bool is_message);
/* "operation 17", "operation 3 of sub-group 2", "operation 5 of the start-up", "message 4", "a
 * message" (NO_NUMBER). */
enum { GR_FLIGHT_RECORDER_NUMBER_BYTES = 48 };
void gr_flight_recorder_describe_number(const gr_flight_recorder *record, uint16_t comm,
                                        uint32_t number, bool is_message,
                                        char text_out[GR_FLIGHT_RECORDER_NUMBER_BYTES]);
/* `allreduce of 100 f32 (sum) "grads" at train.c:88`. */
void gr_flight_recorder_describe(const gr_flight_recorder_entry *entry, char *text_out,
                                 size_t size_bytes);
/* Its parts: `in main (program)`, of an address of this process, and the algorithm's name. */
void gr_flight_recorder_describe_caller(uint64_t caller, char *text_out, size_t size_bytes);
const char *gr_flight_recorder_algorithm(uint8_t algorithm);

/* A clock that costs a few nanoseconds: the processor's own counter. */
static inline uint64_t gr_flight_recorder_now(void)
{
#if defined(__x86_64__)
    return __builtin_ia32_rdtsc();
#else
    uint64_t ticks;
    __asm__ volatile("mrs %0, cntvct_el0" : "=r"(ticks));
    return ticks;
#endif
}
/* Both clocks at one moment, also where this process loses its core between two readings. */
void gr_flight_recorder_read_clocks(int64_t *ns_out, uint64_t *ticks_out);
/* How many nanoseconds a tick takes, as measured since gr_flight_recorder_init. */
double gr_flight_recorder_ns_per_tick(const gr_flight_recorder *record);

#endif
