/* SPDX-License-Identifier: Apache-2.0 */
#ifndef GR_COLL_RECORD_H
#define GR_COLL_RECORD_H

/* What was called last: a ring of the last operations of a process, in memory without pointers to
 * other memory, for error sentences and for looking back. It may lie in a file that another process
 * (the launcher) reads when this one is gone. An entry is written when its operation starts, and
 * completed when it ends; nothing is formatted until somebody asks. Belongs to the thread of the
 * executor that writes it. */

#include <gradus/coll.h>
#include <stdbool.h>

enum { GR_RECORD_ENTRIES = 1024, GR_RECORD_NAME_BYTES = 48, GR_RECORD_TEXT_BYTES = 256 };

typedef struct gr_record_entry {
    uint64_t fingerprint;
    uint64_t count;
    uint64_t started, ended; /* ticks, see gr_record_now; ended 0: not yet */
    uint64_t caller;         /* an address of this process; 0: not known */
    uint32_t number;         /* of the operation in its communicator, or of the message */
    uint32_t tag;
    int32_t root, shards;
    int32_t status; /* a gr_status; GR_PENDING: not ended */
    int32_t peer;   /* of messages: the rank in the job; else -1 */
    uint16_t comm;
    uint8_t coll, dtype, op, algorithm;
    char name[GR_RECORD_NAME_BYTES], site[GR_RECORD_NAME_BYTES]; /* "": none */
} gr_record_entry;

enum { GR_RECORD_MAGIC = 0x31525247, GR_RECORD_VERSION = 2 };

typedef struct gr_record {
    uint32_t magic, version; /* "GRR1" */
    /* Where the program's own code lies, so that callers can be named when it is gone. */
    uint64_t program_at, program_bytes;
    char program[GR_RECORD_NAME_BYTES];
    uint64_t begun; /* entries ever begun: the newest is (begun - 1) % GR_RECORD_ENTRIES */
    uint64_t generation, step; /* where the program is: gr_record_note; 0: it has not said */
    uint64_t begun_for_it;     /* of the entries, before the program did anything */
    uint64_t first_ticks;      /* when the record was made, ... */
    int64_t first_ns;          /* ... on gr_now_ns */
    gr_record_entry entries[GR_RECORD_ENTRIES];
} gr_record;

void gr_record_init(gr_record *record);

/* A record in the file `path`, which is made as long as needed, or in plain memory (path NULL, or
 * the file cannot be used: then why_out, 128 bytes, says why). NULL: no memory. */
gr_record *gr_record_create(const char *path, char why_out[128]);
void gr_record_destroy(gr_record *record); /* NULL ok; the file stays */

/* Copies the record of another process, which may be writing it or may have died doing so: checked,
 * and made harmless. GR_E_NOT_FOUND: nothing was recorded; GR_E_INVALID: that is no record;
 * GR_E_IO. */
gr_status gr_record_read(int fd, gr_record *record_out) GR_MUST_CHECK;
/* What its process did last, as the end of a sentence about it: "in operation 17, allreduce of
 * ..., for 3.2 s; ..." or "between operations; ...". `now`: of gr_record_now on the same host, at
 * the end of the process. */
void gr_record_last(const gr_record *record, uint64_t now, char *text_out, size_t size_bytes);

/* It goes on in that file, which is begun anew; where that fails, in the memory that it had.
 * `record` is given back. */
gr_record *gr_record_move(gr_record *record, const char *path, char why_out[128]) GR_MUST_CHECK;

/* Where another process was: whatever of it is not known is 0. */
typedef struct gr_record_place {
    uint64_t generation; /* of its group */
    uint64_t step;       /* that it was in, from 1 */
    uint64_t operations; /* of its own that it had begun in that generation */
} gr_record_place;
gr_record_place gr_record_read_place(int fd);
/* Step 0: the program begins now. */
void gr_record_note(gr_record *record, uint64_t generation, uint64_t step);

/* The next entry, number record->begun; what it said before is forgotten. All members but `started`
 * are the caller's to fill; then it counts. Who dies in between leaves no half entry. */
gr_record_entry *gr_record_begin(gr_record *record);
static inline void gr_record_commit(gr_record *record)
{
    __atomic_store_n(&record->begun, record->begun + 1, __ATOMIC_RELEASE);
}
/* The entry that was the `index`-th to be begun, NULL if it was overwritten. */
const gr_record_entry *gr_record_at(const gr_record *record, uint64_t index);
/* Copies a name, cut to the entry's room; NULL: none. */
void gr_record_copy(char to[GR_RECORD_NAME_BYTES], const char *name);

/* Messages have a number space of their own for each peer and direction. NULL: not known (any
 * more). */
const gr_record_entry *gr_record_find(const gr_record *record, uint16_t comm, uint32_t number);
const gr_record_entry *gr_record_find_message(const gr_record *record, gr_coll coll, int peer,
                                              uint32_t number);

/* `allreduce of 100 f32 (sum) "grads" at train.c:88`. */
void gr_record_describe(const gr_record_entry *entry, char *text_out, size_t size_bytes);
/* Its parts: `in main (program)`, of an address of this process, and the algorithm's name. */
void gr_record_describe_caller(uint64_t caller, char *text_out, size_t size_bytes);
const char *gr_record_algorithm(uint8_t algorithm);

/* A clock that costs a few nanoseconds: the processor's own counter. */
static inline uint64_t gr_record_now(void)
{
#if defined(__x86_64__)
    return __builtin_ia32_rdtsc();
#else
    uint64_t ticks;
    __asm__ volatile("mrs %0, cntvct_el0" : "=r"(ticks));
    return ticks;
#endif
}
/* How many nanoseconds a tick takes, as measured since gr_record_init. */
double gr_record_ns_per_tick(const gr_record *record);

#endif
