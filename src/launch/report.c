/* SPDX-License-Identifier: Apache-2.0 */
#include "base/fail.h"
#include "launch/launch_job.h"
#include "launch/signals.h"

#include <signal.h>
#include <stdio.h>
#include <sys/wait.h>

static gr_status report_signal(const gr_launch_job *job, gr_diag *diag)
{
    int workers = 0, killed = 0;
    for (int rank = 0; rank < job->schedule.config.slots; rank++) {
        const gr_worker_end *end = &job->schedule.ends[rank];
        bool counts = end->started && !end->spared; /* the job had gone on without others */
        workers += counts;
        killed += counts && end->ended && WIFSIGNALED(end->wait_status) &&
                  WTERMSIG(end->wait_status) == SIGKILL;
    }
    const char *name = gr_signals_name(job->schedule.signal.number);
    if (killed == 0) {
        return gr_fail(diag, GR_E_CANCELLED, "ended by %s after %.1f s; all %d workers have ended",
                       name, (double)(gr_launch_job_now_us() - job->setup.start_us) * 1e-6,
                       workers);
    }
    return gr_fail(diag, GR_E_CANCELLED,
                   "ended by %s after %.1f s; %d of %d workers did not end on their own and were "
                   "killed (--grace sets the time that they get)",
                   name, (double)(gr_launch_job_now_us() - job->setup.start_us) * 1e-6, killed,
                   workers);
}

/* Returns true if a restart of all may help. A worker that ended with an exit code has given its
 * reason, unless it may have lacked a server. */
static bool may_begin_again(const gr_launch_job *job, int root)
{
    if (job->schedule.reason == GR_REASON_AGENT_LOST) {
        return job->cause.status != GR_E_NOT_FOUND; /* a host that cannot be used at all */
    }
    gr_end_class class = root >= 0 ? gr_root_cause_class(&job->schedule.ends[root]) : GR_END_FINE;
    bool lacks_blocks =
        job->schedule.server.spared > 0; /* two at once, or tables without replicas */
    return job->schedule.reason == GR_REASON_WORKER && !job->schedule.crash.repeats &&
           (class == GR_END_KILLED || class == GR_END_PEER || lacks_blocks);
}

/* Workers fail when a server is gone; but no server ends because a worker was killed. */
static bool server_is_cause(const gr_launch_job *job, int root)
{
    bool failed =
        job->schedule.reason == GR_REASON_SERVER || job->schedule.reason == GR_REASON_WORKER;
    const gr_worker_end *end = &job->schedule.ends[root >= 0 ? root : 0];
    return failed && job->schedule.server.lost >= 0 &&
           !(root >= 0 && gr_root_cause_class(end) == GR_END_KILLED &&
             end->order < job->schedule.ends[job->schedule.server.lost].order);
}

static gr_status report_server(const gr_launch_job *job, gr_launch_report *report, gr_diag *diag)
{
    const gr_worker_end *end = &job->schedule.ends[job->schedule.server.lost];
    char text[GR_DIAG_TEXT_BYTES];
    gr_root_cause_describe("parameter server",
                           gr_launch_job_server_number(job, job->schedule.server.lost), end, text,
                           sizeof text);
    gr_output_tail(job->output, job->schedule.server.lost, GR_LAUNCH_TAIL_LINES, report->tail,
                   sizeof report->tail);
    /* Who ends with an exit code has said why; with 0, that somebody asked it to. */
    report->again = !WIFEXITED(end->wait_status) || WEXITSTATUS(end->wait_status) == 0;
    return gr_fail(diag, GR_E_PEER_LOST, "%s, and what it kept is lost; %s", text,
                   report->tail[0] != '\0' ? "its last lines:" : "it wrote nothing");
}

/* The farthest step that any of them was in. */
static uint64_t last_step(const gr_launch_job *job)
{
    uint64_t last = 0;
    for (int rank = 0; rank < job->schedule.config.slots; rank++) {
        uint64_t step = gr_records_place(job->records, rank).step;
        last = step > last ? step : last;
    }
    return last;
}

gr_status gr_launch_job_report(const gr_launch_job *job, gr_launch_report *report, gr_diag *diag)
{
    int root = job->schedule.crash.repeats
                   ? job->schedule.crash.last.rank
                   : gr_root_cause_root(job->schedule.ends, job->schedule.config.slots);
    int code = gr_root_cause_code(job->schedule.ends,
                                  job->schedule.config.slots - job->schedule.config.helpers,
                                  job->config->zero_is_done);
    bool asked = job->schedule.reason == GR_REASON_SIGNAL;
    report->resumable =
        code == GR_LAUNCH_EXIT_RESUME && (asked || job->schedule.reason == GR_REASON_NONE);
    if (report->resumable) {
        return asked ? report_signal(job, diag)
                     : gr_fail(diag, GR_E_CANCELLED, "ended on request after %.1f s",
                               (double)(gr_launch_job_now_us() - job->setup.start_us) * 1e-6);
    }
    if (job->schedule.reason == GR_REASON_NONE ||
        (asked && code == 0 && job->config->zero_is_done)) {
        return GR_OK;
    }
    gr_records_report(job->records, root, report->last);
    report->again = may_begin_again(job, root);
    report->crash = job->schedule.crash.last;
    report->step = last_step(job);
    if (job->schedule.reason == GR_REASON_SIGNAL) {
        return report_signal(job, diag);
    }
    if (server_is_cause(job, root)) {
        return report_server(job, report, diag);
    }
    if (job->schedule.reason != GR_REASON_WORKER || root < 0) {
        if (diag != NULL) {
            *diag = job->cause;
        }
        return (gr_status)job->cause.status;
    }
    char text[GR_DIAG_TEXT_BYTES], repeats[GR_CRASH_TEXT_BYTES] = "";
    gr_root_cause_describe("rank", root, &job->schedule.ends[root], text, sizeof text);
    if (job->schedule.crash.repeats) {
        gr_crash_describe(&job->schedule.crash.before, repeats, sizeof repeats);
    }
    gr_output_tail(job->output, root, GR_LAUNCH_TAIL_LINES, report->tail, sizeof report->tail);
    report->rank = root;
    return gr_fail_peer(diag, GR_E_PEER_LOST, root, "%s%s%s; %s", text, repeats,
                        job->schedule.crash.repeats ? "; it would happen again, so the job ends"
                                                    : "",
                        report->tail[0] != '\0' ? "its last lines:" : "it wrote nothing");
}
