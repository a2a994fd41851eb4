/* SPDX-License-Identifier: Apache-2.0 */
#include "launch/agent/supervisor.h"
#include "launch/launch_job.h"
#include "launch/process_tree.h"

#include <errno.h>
#include <signal.h>
#include <unistd.h>

static void on_left(void *arg, int launcher)
{
    gr_launch_job *job = arg;
    const gr_supervisor *supervisor = job->config->supervisor;
    const int64_t outlive_us = gr_supervisor_outlive_us(supervisor);
    gr_output_leave(job->output);
    if (outlive_us == GR_OUTLIVE_FOREVER) {
        gr_log_write(job->config->log, GR_LOG_WARN, "launch",
                     "the launcher (process %d) is gone; the job goes on: gradus attach %s",
                     launcher, gr_supervisor_name(supervisor));
    } else if (outlive_us > 0) {
        gr_log_write(job->config->log, GR_LOG_WARN, "launch",
                     "the launcher (process %d) is gone; the job goes on for %g s (--outlive): "
                     "gradus attach %s",
                     launcher, (double)outlive_us * 1e-6, gr_supervisor_name(supervisor));
    }
}

static void on_came(void *arg, int launcher)
{
    gr_launch_job *job = arg;
    gr_diag diag = {0};
    gr_log_write(job->config->log, GR_LOG_WARN, "launch", "process %d is the launcher from now on",
                 launcher);
    if (gr_output_come(job->output, &diag) != GR_OK) {
        gr_log_write(job->config->log, GR_LOG_WARN, "launch", "%s", diag.text);
        (void)gr_supervisor_drop_launcher(job->config->supervisor, false);
    }
}

static void end(gr_launch_job *job, int signal_number)
{
    gr_launch_job_happen(
        job, &(gr_scheduler_event){.kind = GR_EVENT_SIGNAL, .value = signal_number}, NULL);
}

static void on_expired(void *arg)
{
    gr_launch_job *job = arg;
    const int64_t outlive_us = gr_supervisor_outlive_us(job->config->supervisor);
    if (outlive_us > 0) {
        gr_log_write(job->config->log, GR_LOG_WARN, "launch",
                     "no launcher has attached within %g s (--outlive): the workers are asked to "
                     "end",
                     (double)outlive_us * 1e-6);
    }
    end(job, SIGTERM);
}

static void on_kill(void *arg)
{
    gr_launch_job *job = arg;
    if (job->schedule.phase < GR_PHASE_ENDING) {
        end(job, SIGTERM);
    }
    if (job->schedule.phase < GR_PHASE_KILLING) {
        end(job, SIGKILL);
    }
}

static void on_print(void *arg, const char *text, size_t size_bytes)
{
    const gr_launch_job *job = arg;
    gr_output_print(job->output, text, size_bytes);
}

static void describe(void *arg, gr_job_status *status)
{
    const gr_launch_job *job = arg;
    const bool elastic = gr_launch_elastic(job->config);
    *status = (gr_job_status){.workers = gr_scheduler_count_busy(&job->schedule),
                              .ending = job->schedule.phase != GR_PHASE_RUNNING ||
                                        gr_coordinator_is_over(job->coordinator),
                              .want = job->schedule.want,
                              .least = elastic ? job->config->workers_min : 0,
                              .most = elastic ? gr_scheduler_most(&job->schedule) : 0};
    for (int rank = 0; rank < job->schedule.config.slots; rank++) {
        const uint64_t step = gr_records_place(job->records, rank).step;
        status->step = step > status->step ? step : status->step;
    }
}

static int on_scale(void *arg, int workers)
{
    gr_launch_job *job = arg;
    job->scale_word = GR_WORD_ENDING; /* who is over does not answer */
    if (gr_launch_elastic(job->config)) {
        gr_launch_job_happen(job, &(gr_scheduler_event){.kind = GR_EVENT_SCALE, .value = workers},
                             NULL);
    }
    return job->scale_word;
}

int gr_launch_job_supervise(gr_launch_job *job)
{
    const gr_supervisor_events events = {.left = on_left,
                                         .came = on_came,
                                         .expired = on_expired,
                                         .kill = on_kill,
                                         .scale = on_scale,
                                         .print = on_print,
                                         .describe = describe,
                                         .arg = job};
    gr_supervisor *supervisor = job->config->supervisor;
    return supervisor != NULL ? gr_supervisor_start(supervisor, &job->loop.loop, &events) : 0;
}

/* This process was the deputy, and is the supervisor. Agents and relays are not its children; their
 * sockets say when they have ended. */
static void take_over(gr_launch_job *job, pid_t before)
{
    (void)gr_process_tree_adopt();
    gr_records_moved(job->records);
    gr_supervisor_moved(job->config->supervisor);
    gr_log_write(job->config->log, GR_LOG_WARN, "launch",
                 "the process that supervises the job (gradus-job, pid %d) was killed; its deputy "
                 "(pid %d) goes on in its place",
                 (int)before, (int)getpid());
}

/* What is done about events is done by uv_run, which does not wait. The deputy can go on from
 * between two of them. */
void gr_launch_job_loop(gr_launch_job *job)
{
    enum { UV_KNOWN = 1 << 16 | 44 << 8 }; /* before that its timeout does not say all (1.44) */
    uv_loop_t *loop = &job->loop.loop;
    const gr_supervisor *supervisor = job->config->supervisor;
    bool outlives =
        supervisor != NULL && gr_supervisor_outlive_us(supervisor) != 0 && uv_version() >= UV_KNOWN;
    bool asks = job->config->discovery.script != NULL; /* which only its parent can wait for */
    job->loop.deputy = outlives && !asks ? gr_deputy_create() : NULL;
    while (job->schedule.phase != GR_PHASE_OVER) {
        gr_deputy *deputy = job->loop.deputy;
        pid_t self = getpid();
        uv_update_time(loop);
        int wait_ms = deputy != NULL ? uv_backend_timeout(loop) : 0;
        const int fd = uv_backend_fd(loop);
        if (wait_ms != 0 && gr_deputy_wait(deputy, &fd, 1, wait_ms)) {
            take_over(job, self);
        }
        (void)uv_run(loop, deputy != NULL ? UV_RUN_NOWAIT : UV_RUN_DEFAULT);
    }
    gr_deputy_destroy(job->loop.deputy);
    job->loop.deputy = NULL;
}

bool gr_launch_job_outlives(gr_launch_job *job, int error)
{
    /* EIO: a terminal that is gone. Of a pipe without a reader the launcher need not be gone. */
    gr_supervisor *supervisor = job->config->supervisor;
    return supervisor != NULL && gr_supervisor_drop_launcher(supervisor, error != EIO);
}
