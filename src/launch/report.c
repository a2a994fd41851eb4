/* SPDX-License-Identifier: Apache-2.0 */
#include "base/fail.h"
#include "launch/gang.h"
#include "launch/signals.h"

#include <signal.h>
#include <stdio.h>
#include <sys/wait.h>

static gr_status report_signal(const gr_gang *gang, gr_diag *diag)
{
    int killed = 0;
    for (int rank = 0; rank < gang->slots; rank++) {
        const gr_worker_end *end = &gang->ends[rank];
        killed +=
            end->ended && WIFSIGNALED(end->wait_status) && WTERMSIG(end->wait_status) == SIGKILL;
    }
    const char *name = gr_signals_name(gang->signal_number);
    if (killed == 0) {
        return gr_fail(diag, GR_E_CANCELLED, "ended by %s after %.1f s; all %d workers have ended",
                       name, (double)(gr_gang_now_us() - gang->start_us) * 1e-6, gang->started);
    }
    return gr_fail(diag, GR_E_CANCELLED,
                   "ended by %s after %.1f s; %d of %d workers did not end on their own and were "
                   "killed (--grace sets the time that they get)",
                   name, (double)(gr_gang_now_us() - gang->start_us) * 1e-6, killed, gang->started);
}

/* Would it go better if all were begun anew? Who ends with an exit code has said why not, unless it
 * may be for want of a server. */
static bool may_begin_again(const gr_gang *gang, int root)
{
    if (gang->reason == GR_REASON_AGENT_LOST) {
        return gang->status != GR_E_NOT_FOUND; /* a host that cannot be used at all */
    }
    gr_end_class class = root >= 0 ? gr_verdict_class(&gang->ends[root]) : GR_END_FINE;
    bool lacks_blocks = gang->servers_spared > 0; /* two at once, or tables without replicas */
    return gang->reason == GR_REASON_WORKER && !gang->repeats &&
           (class == GR_END_KILLED || class == GR_END_PEER || lacks_blocks);
}

/* Workers fail when a server is gone; but no server ends because a worker was killed. */
static bool server_is_cause(const gr_gang *gang, int root)
{
    bool failed = gang->reason == GR_REASON_SERVER || gang->reason == GR_REASON_WORKER;
    const gr_worker_end *end = &gang->ends[root >= 0 ? root : 0];
    return failed && gang->lost_server >= 0 &&
           !(root >= 0 && gr_verdict_class(end) == GR_END_KILLED &&
             end->order < gang->ends[gang->lost_server].order);
}

static gr_status report_server(const gr_gang *gang, gr_launch_report *report, gr_diag *diag)
{
    const gr_worker_end *end = &gang->ends[gang->lost_server];
    char text[GR_DIAG_TEXT_BYTES];
    gr_verdict_describe("parameter server", gr_gang_server_number(gang, gang->lost_server), end,
                        text, sizeof text);
    gr_output_tail(gang->output, gang->lost_server, GR_LAUNCH_TAIL_LINES, report->tail,
                   sizeof report->tail);
    /* Who ends with an exit code has said why; with 0, that somebody asked it to. */
    report->again = !WIFEXITED(end->wait_status) || WEXITSTATUS(end->wait_status) == 0;
    return gr_fail(diag, GR_E_PEER_LOST, "%s, and what it kept is lost; %s", text,
                   report->tail[0] != '\0' ? "its last lines:" : "it wrote nothing");
}

/* The farthest step that any of them was in. */
static uint64_t last_step(const gr_gang *gang)
{
    uint64_t last = 0;
    for (int rank = 0; rank < gang->slots; rank++) {
        uint64_t step = gr_records_place(gang->records, rank).step;
        last = step > last ? step : last;
    }
    return last;
}

gr_status gr_gang_report(const gr_gang *gang, gr_launch_report *report, gr_diag *diag)
{
    int root = gang->repeats ? gang->crash.rank : gr_verdict_root(gang->ends, gang->slots);
    int code = gr_verdict_code(gang->ends, gang->slots);
    bool asked = gang->reason == GR_REASON_SIGNAL;
    report->resumable = code == GR_LAUNCH_EXIT_RESUME && (asked || gang->reason == GR_REASON_NONE);
    if (report->resumable) {
        return asked ? report_signal(gang, diag)
                     : gr_fail(diag, GR_E_CANCELLED, "ended on request after %.1f s",
                               (double)(gr_gang_now_us() - gang->start_us) * 1e-6);
    }
    if (gang->reason == GR_REASON_NONE || (asked && code == 0 && gang->config->zero_is_done)) {
        return GR_OK;
    }
    gr_records_report(gang->records, root, report->last);
    report->again = may_begin_again(gang, root);
    report->crash = gang->crash;
    report->step = last_step(gang);
    if (gang->reason == GR_REASON_SIGNAL) {
        return report_signal(gang, diag);
    }
    if (server_is_cause(gang, root)) {
        return report_server(gang, report, diag);
    }
    if (gang->reason != GR_REASON_WORKER || root < 0) {
        if (diag != NULL) {
            *diag = gang->verdict;
        }
        return gang->status;
    }
    char text[GR_DIAG_TEXT_BYTES], repeats[GR_CRASH_TEXT_BYTES] = "";
    gr_verdict_describe("rank", root, &gang->ends[root], text, sizeof text);
    if (gang->repeats) {
        gr_crash_describe(&gang->crash_before, repeats, sizeof repeats);
    }
    gr_output_tail(gang->output, root, GR_LAUNCH_TAIL_LINES, report->tail, sizeof report->tail);
    report->rank = root;
    return gr_fail_peer(diag, GR_E_PEER_LOST, root, "%s%s%s; %s", text, repeats,
                        gang->repeats ? "; it would happen again, so the job ends" : "",
                        report->tail[0] != '\0' ? "its last lines:" : "it wrote nothing");
}
