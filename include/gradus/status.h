/* SPDX-License-Identifier: Apache-2.0 */
#ifndef GRADUS_STATUS_H
#define GRADUS_STATUS_H

/* What every call of Gradus returns, and how a failure is described. */

#include <stddef.h>
#include <stdint.h>

#ifdef __cplusplus
extern "C" {
#endif

#if defined(__GNUC__)
#define GR_API __attribute__((visibility("default")))
#define GR_MUST_CHECK __attribute__((warn_unused_result))
#define GR_PRINTF(format_at, first_at) __attribute__((format(printf, format_at, first_at)))
#else
#define GR_API
#define GR_MUST_CHECK
#define GR_PRINTF(format_at, first_at)
#endif

/* Statuses are grouped by what the failure destroys: the group is the recovery policy.
 *    0         done;  > 0  accepted, completion comes later
 *   -1 .. -19  this call failed, every object is still usable
 *  -20 .. -39  one peer is lost; operations with it fail, the process is sound
 *  -40 .. -59  the communicator is unusable; the only legal call on it is destroy
 *  -60 .. -79  the process must save what it can and leave */
typedef enum gr_status {
    GR_OK = 0,
    GR_PENDING = 1,

    GR_E_INVALID = -1,     /* an argument, a file or a setting is wrong */
    GR_E_NO_MEMORY = -2,   /* an allocation failed or a named limit is reached */
    GR_E_AGAIN = -3,       /* nothing happened; call again when there is room */
    GR_E_NOT_FOUND = -4,   /* a file, key or name does not exist */
    GR_E_IO = -5,          /* the operating system refused; errno is in the diagnosis */
    GR_E_TIMEOUT = -6,     /* a deadline of this call passed */
    GR_E_UNSUPPORTED = -7, /* this build, machine or link cannot do it */
    GR_E_CANCELLED = -8,   /* ended on request */
    GR_E_NOT_FINITE = -9,  /* NaN or infinity where a finite number must stand */

    GR_E_PEER_LOST = -20, /* the peer died or its connection broke */
    GR_E_PEER_SLOW = -21, /* the peer did not answer within the deadline */
    GR_E_PROTOCOL = -22,  /* the peer sent what no correct peer sends */
    GR_E_AUTH = -23,      /* the peer does not hold the job's secret */
    GR_E_IN_USE = -24,    /* the peer has a member of this number already, or expects none */

    GR_E_MISMATCH = -40,    /* ranks called different operations */
    GR_E_COMM_BROKEN = -41, /* an earlier failure ended the communicator */
    GR_E_ABORTED = -42,     /* a rank ended the communicator by gr_comm_abort */

    GR_E_BUG = -60 /* an invariant of Gradus does not hold */
} gr_status;

typedef enum gr_scope {
    GR_SCOPE_NONE = 0,
    GR_SCOPE_CALL = 1,
    GR_SCOPE_PEER = 2,
    GR_SCOPE_COMM = 3,
    GR_SCOPE_PROCESS = 4
} gr_scope;

enum { GR_DIAG_TEXT_BYTES = 512 };

/* One failure in one sentence: what is wrong, where, what to do. Filled by the place that decided
 * that it is a failure; plain memory of the caller, no lifecycle. */
typedef struct gr_diag {
    int32_t status;    /* a gr_status */
    int32_t peer_rank; /* the rank that the failure is about, -1 if none */
    char text[GR_DIAG_TEXT_BYTES];
} gr_diag;

/* How much is logged: error and warn concern a user; info is a handful of lines a job; debug is
 * about one line an object; trace is a line a message. */
typedef enum gr_log_level {
    GR_LOG_OFF = 0,
    GR_LOG_ERROR = 1,
    GR_LOG_WARN = 2,
    GR_LOG_INFO = 3,
    GR_LOG_DEBUG = 4,
    GR_LOG_TRACE = 5
} gr_log_level;

/* Receives one line of the log, without newline, borrowed for the call. Called on any thread, also
 * under a communicator's lock: it must not call Gradus. */
typedef void gr_log_sink(void *sink_arg, gr_log_level level, const char *component,
                         const char *line);

/* The constant's name, "GR_E_INVALID" say; "GR_E_?" for a number that is no status. Any thread. */
GR_API const char *gr_status_name(gr_status status);

/* What the status means, in a few words. Any thread. */
GR_API const char *gr_status_text(gr_status status);

/* What a failure destroys; GR_SCOPE_NONE for GR_OK and GR_PENDING. Any thread. */
GR_API gr_scope gr_status_scope(gr_status status);

#ifdef __cplusplus
}
#endif
#endif
