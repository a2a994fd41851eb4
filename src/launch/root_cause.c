/* SPDX-License-Identifier: Apache-2.0 */
#include "launch/root_cause.h"

#include "launch/launch.h"

#include <signal.h>
#include <stdio.h>
#include <string.h>
#include <sys/wait.h>

enum { SHELL_SIGNAL_BASE = 128, LISTED_MAX = 8 };

gr_end_class gr_root_cause_class(const gr_worker_end *end)
{
    if (!end->started || !end->ended || end->spared) {
        return GR_END_FINE;
    }
    if (WIFEXITED(end->wait_status)) {
        int code = WEXITSTATUS(end->wait_status);
        if (code == 0) {
            return GR_END_FINE;
        }
        if (code == GR_LAUNCH_EXIT_PEER) {
            return GR_END_PEER;
        }
        if (code == GR_LAUNCH_EXIT_RESUME) {
            return GR_END_ASKED; /* by us, or by somebody who sent a signal to it alone */
        }
        return end->was_asked ? GR_END_ASKED : GR_END_FAILED;
    }
    int signal_number = WTERMSIG(end->wait_status);
    bool ours = signal_number == SIGTERM || signal_number == SIGKILL || signal_number == SIGINT ||
                signal_number == SIGHUP;
    return end->was_asked && ours ? GR_END_ASKED : GR_END_KILLED;
}

static bool ended_before_meeting(const gr_worker_end *end)
{
    bool killed = end->ended && end->was_asked && !end->lost && WIFSIGNALED(end->wait_status) &&
                  WTERMSIG(end->wait_status) == SIGTERM;
    return !end->spared && (killed || !end->started);
}

int gr_root_cause_code(const gr_worker_end *ends, int workers, bool holds)
{
    int code = 0;
    bool met = true;
    for (int rank = 0; rank < workers && holds; rank++) {
        met = met && !ended_before_meeting(&ends[rank]);
    }
    bool lost = false; /* while all were ending: those that say 75 know what is kept */
    for (int rank = 0; rank < workers; rank++) {
        const gr_worker_end *end = &ends[rank];
        if (end->spared) {
            continue;
        }
        if (end->lost && end->was_asked) {
            lost = true;
            continue;
        }
        int own = end->ended && WIFEXITED(end->wait_status) ? WEXITSTATUS(end->wait_status) : -1;
        bool missed = own == GR_LAUNCH_EXIT_PEER && end->was_asked;
        if (!met && (missed || ended_before_meeting(end))) {
            own = GR_LAUNCH_EXIT_RESUME;
        }
        if (own != 0 && own != GR_LAUNCH_EXIT_RESUME) {
            return -1;
        }
        code = own != 0 ? own : code;
    }
    return lost && code == 0 ? -1 : code;
}

int gr_root_cause_root(const gr_worker_end *ends, int workers)
{
    int root = -1;
    gr_end_class best = GR_END_ASKED;
    for (int rank = 0; rank < workers; rank++) {
        gr_end_class class = gr_root_cause_class(&ends[rank]);
        if (class < best || (class == best && root >= 0 && ends[rank].order < ends[root].order)) {
            best = class;
            root = rank;
        }
    }
    return root;
}

bool gr_root_cause_crashed(const gr_worker_end *end)
{
    static const int own[] = {SIGSEGV, SIGBUS, SIGFPE, SIGILL, SIGABRT, SIGSYS, SIGTRAP};
    bool crashed = false;
    for (size_t i = 0; i < sizeof own / sizeof own[0] && !end->lost; i++) {
        crashed =
            crashed || (WIFSIGNALED(end->wait_status) && WTERMSIG(end->wait_status) == own[i]);
    }
    return crashed;
}

bool gr_crash_repeats(const gr_crash *before, const gr_crash *now)
{
    const gr_flight_recorder_place *a = &before->place, *b = &now->place;
    bool other_attempt = before->attempt != now->attempt || a->generation != b->generation;
    bool same_place = a->step == b->step && (a->step != 0 || a->operations == b->operations);
    return before->signal_number != 0 && before->signal_number == now->signal_number &&
           other_attempt && same_place;
}

void gr_crash_describe(const gr_crash *before, char *text_out, size_t text_bytes)
{
    char where[64] = "";
    if (before->place.step > 0) {
        snprintf(where, sizeof where, ", in step %llu", (unsigned long long)before->place.step);
    } else if (before->place.operations > 0) {
        snprintf(where, sizeof where, ", after %llu operations",
                 (unsigned long long)before->place.operations);
    }
    snprintf(text_out, text_bytes, "%s, as rank %d%s%s was before", where, before->rank,
             before->host[0] != '\0' ? " on host " : "", before->host);
}

void gr_root_cause_describe(const char *what, int number, const gr_worker_end *end, char *text_out,
                            size_t text_bytes)
{
    char how[160], where[160] = "";
    if (end->lost) {
        snprintf(how, sizeof how, "was lost with its host");
    } else if (WIFSIGNALED(end->wait_status)) {
        int cause = WTERMSIG(end->wait_status);
        snprintf(how, sizeof how, "was killed by signal %d (%s%s)", cause, strsignal(cause),
                 WCOREDUMP(end->wait_status) ? ", core dumped" : "");
    } else {
        int code = WEXITSTATUS(end->wait_status);
        int cause = code - SHELL_SIGNAL_BASE;
        if (code == GR_LAUNCH_EXIT_PEER) {
            snprintf(how, sizeof how, "ended with code %d because it lost a peer", code);
        } else if (cause > 0 && cause < SIGRTMIN) {
            snprintf(how, sizeof how,
                     "exited with code %d (as a shell does whose command was killed by signal %d, "
                     "%s)",
                     code, cause, strsignal(cause));
        } else {
            snprintf(how, sizeof how, "exited with code %d", code);
        }
    }
    if (end->host != NULL) {
        snprintf(where, sizeof where, " on %s", end->host);
    }
    snprintf(text_out, text_bytes, "%s %d (pid %d%s) %s after %.1f s", what, number, (int)end->pid,
             where, how, (double)(end->end_us - end->start_us) * 1e-6);
}

void gr_root_cause_list(const bool *chosen, int workers, char *text_out, size_t text_bytes)
{
    int total = 0, listed = 0;
    for (int rank = 0; rank < workers; rank++) {
        total += chosen[rank];
    }
    int wanted = total > LISTED_MAX ? LISTED_MAX : total;
    size_t used = (size_t)snprintf(text_out, text_bytes, total == 1 ? "rank" : "ranks");
    for (int rank = 0; rank < workers && listed < wanted && used < text_bytes; rank++) {
        if (!chosen[rank]) {
            continue;
        }
        const char *between = listed == 0 ? " " : listed + 1 == total ? " and " : ", ";
        used += (size_t)snprintf(text_out + used, text_bytes - used, "%s%d", between, rank);
        listed++;
    }
    if (total > wanted && used < text_bytes) {
        snprintf(text_out + used, text_bytes - used, " and %d more", total - wanted);
    }
}
