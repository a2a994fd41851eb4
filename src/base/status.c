/* SPDX-License-Identifier: Apache-2.0 */
#include "base/fail.h"

#include <gradus/version.h>

typedef struct status_words {
    gr_status status;
    const char *name;
    const char *text;
} status_words;

static const status_words known[] = {
    {GR_OK, "GR_OK", "done"},
    {GR_PENDING, "GR_PENDING", "accepted, completion comes later"},
    {GR_E_INVALID, "GR_E_INVALID", "an argument, a file or a setting is wrong"},
    {GR_E_NO_MEMORY, "GR_E_NO_MEMORY", "memory or a named limit is exhausted"},
    {GR_E_AGAIN, "GR_E_AGAIN", "nothing happened, call again"},
    {GR_E_NOT_FOUND, "GR_E_NOT_FOUND", "a file, key or name does not exist"},
    {GR_E_IO, "GR_E_IO", "the operating system refused"},
    {GR_E_TIMEOUT, "GR_E_TIMEOUT", "a deadline passed"},
    {GR_E_UNSUPPORTED, "GR_E_UNSUPPORTED", "not possible with this build, machine or link"},
    {GR_E_CANCELLED, "GR_E_CANCELLED", "ended on request"},
    {GR_E_NOT_FINITE, "GR_E_NOT_FINITE", "NaN or infinity where a finite number must stand"},
    {GR_E_PEER_LOST, "GR_E_PEER_LOST", "a peer died or its connection broke"},
    {GR_E_PEER_SLOW, "GR_E_PEER_SLOW", "a peer did not answer within the deadline"},
    {GR_E_PROTOCOL, "GR_E_PROTOCOL", "a peer sent what no correct peer sends"},
    {GR_E_AUTH, "GR_E_AUTH", "a peer does not hold the job's secret"},
    {GR_E_IN_USE, "GR_E_IN_USE", "a peer has a member of this number already, or expects none"},
    {GR_E_MISMATCH, "GR_E_MISMATCH", "ranks called different operations"},
    {GR_E_COMM_BROKEN, "GR_E_COMM_BROKEN", "an earlier failure ended the communicator"},
    {GR_E_ABORTED, "GR_E_ABORTED", "a rank ended the communicator by gr_comm_abort"},
    {GR_E_BUG, "GR_E_BUG", "an invariant of Gradus does not hold"},
};

static const status_words *find(gr_status status)
{
    for (size_t i = 0; i < sizeof known / sizeof known[0]; i++) {
        if (known[i].status == status) {
            return &known[i];
        }
    }
    return NULL;
}

bool gr_status_is_known(gr_status status)
{
    return find(status) != NULL;
}

const char *gr_status_name(gr_status status)
{
    const status_words *words = find(status);
    return words != NULL ? words->name : "GR_E_?";
}

const char *gr_status_text(gr_status status)
{
    const status_words *words = find(status);
    return words != NULL ? words->text : "unknown status";
}

gr_scope gr_status_scope(gr_status status)
{
    /* By range, not by name: a status that a newer peer or library added still has its policy. */
    int number = (int)status;
    if (number >= 0) {
        return GR_SCOPE_NONE;
    }
    if (number > -20) {
        return GR_SCOPE_CALL;
    }
    if (number > -40) {
        return GR_SCOPE_PEER;
    }
    return number > -60 ? GR_SCOPE_COMM : GR_SCOPE_PROCESS;
}

#define TEXT_OF(number) #number
#define VERSION_TEXT(major, minor, patch) TEXT_OF(major) "." TEXT_OF(minor) "." TEXT_OF(patch)

const char *gr_version(void)
{
    return VERSION_TEXT(GR_VERSION_MAJOR, GR_VERSION_MINOR, GR_VERSION_PATCH);
}
