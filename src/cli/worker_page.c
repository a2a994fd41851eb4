/* SPDX-License-Identifier: Apache-2.0 */
#include "cli/worker_page.h"

#include "base/clock.h"
#include "base/fail.h"
#include "base/thread.h"
#include "operator/serve/web.h"
#include "train/evaluation.h"

#include <errno.h>
#include <jansson.h>
#include <poll.h>
#include <pthread.h>
#include <stdlib.h>
#include <string.h>
#include <sys/eventfd.h>
#include <unistd.h>

enum { HOST_BYTES = 256 };

struct gr_worker_page {
    char *address; /* what stands before the path */
    gr_web_page pages[2];
    gr_web *web; /* of the thread, once that is there */
    pthread_t thread;
    bool has_thread;
    int stop_fd;          /* readable: the thread is to end */
    pthread_mutex_t lock; /* guards what follows; held for a copy alone */
    gr_train_figures figures;
    char late_host[HOST_BYTES];
    bool has_figures;
};

/* The names are those of metrics.jsonl. */
static char *print_figures(const gr_train_figures *f)
{
    json_t *object =
        json_pack("{s:i, s:i, s:i, s:I, s:I, s:I, s:I, s:o, s:o}", "version", 1, "rank", f->rank,
                  "workers", f->workers, "step", (json_int_t)f->step, "steps", (json_int_t)f->steps,
                  "epoch", (json_int_t)f->epoch, "epochs", (json_int_t)f->epochs, "loss",
                  gr_json_number(f->loss), "samples_per_s", gr_json_number(f->samples_per_s));
    int failed = object == NULL;
    if (!failed && f->late_rank >= 0) {
        failed |= json_object_set_new(object, "late_rank", json_integer(f->late_rank));
        failed |= json_object_set_new(object, "late_us", gr_json_number(f->late_us));
        failed |= json_object_set_new(object, "late_host", json_string(f->late_host));
    }
    char *text = failed == 0 ? json_dumps(object, JSON_COMPACT) : NULL;
    json_decref(object);
    return text;
}

/* Of gr_web_page. */
static char *print(void *arg, int *code_out)
{
    gr_worker_page *page = arg;
    char host[HOST_BYTES];
    pthread_mutex_lock(&page->lock);
    gr_train_figures figures = page->figures;
    bool has_figures = page->has_figures;
    memcpy(host, page->late_host, sizeof host);
    pthread_mutex_unlock(&page->lock);
    if (!has_figures) {
        *code_out = 503;
        return strdup("no step is done yet\n");
    }
    figures.late_host = host;
    return print_figures(&figures);
}

void gr_worker_page_update(void *page_arg, const gr_train_figures *figures)
{
    gr_worker_page *page = page_arg;
    pthread_mutex_lock(&page->lock);
    page->figures = *figures;
    page->figures.late_host = NULL;
    page->late_host[0] = '\0';
    strncat(page->late_host, figures->late_host, sizeof page->late_host - 1);
    page->has_figures = true;
    pthread_mutex_unlock(&page->lock);
}

static void *answer(void *arg)
{
    gr_worker_page *page = arg;
    struct pollfd waits[] = {{.fd = gr_web_fd(page->web), .events = POLLIN},
                             {.fd = page->stop_fd, .events = POLLIN}};
    const gr_clock clock = gr_clock_real();
    int left_ms = -1;
    while (poll(waits, 2, left_ms) >= 0 || errno == EINTR) {
        if (waits[1].revents != 0) {
            break;
        }
        int64_t now_us = gr_clock_now_us(&clock), due_us = gr_web_run(page->web, now_us);
        int64_t left_us = due_us > now_us ? due_us - now_us : 0;
        left_ms = due_us == GR_NEVER ? -1 : (int)(left_us / 1000) + 1; /* patience is seconds */
    }
    return NULL;
}

/* Signals of the process are not for this thread: those that wait for the end of a step wait on. */
static gr_status start(gr_worker_page *page, gr_diag *diag)
{
    int error = gr_thread_create(&page->thread, NULL, answer, page);
    page->has_thread = error == 0;
    return error == 0
               ? GR_OK
               : gr_fail(diag, GR_E_IO, "cannot start a thread for a page: %s", strerror(error));
}

static gr_status open_page(gr_worker_page *page, const char *where, gr_diag *diag)
{
    const char *path = strchr(where, '/');
    page->address = strndup(where, strcspn(where, "/"));
    page->stop_fd = eventfd(0, EFD_CLOEXEC);
    if (page->address == NULL || page->stop_fd < 0) {
        return gr_fail(diag, GR_E_NO_MEMORY, "no memory for a page");
    }
    if (path == NULL) {
        return gr_fail(diag, GR_E_INVALID,
                       "\"%.100s\" does not say which page to show: it is HOST:PORT/PATH or "
                       ":PORT/PATH",
                       where);
    }
    const char *const addresses[] = {page->address, NULL};
    page->pages[0] =
        (gr_web_page){.path = path, .type = "application/json; charset=utf-8", .print = print};
    gr_status status = gr_web_open(addresses, page->pages, page, &page->web, diag);
    return status == GR_OK ? start(page, diag) : status;
}

gr_status gr_worker_page_open(const char *where, gr_worker_page **page_out, gr_diag *diag)
{
    gr_worker_page *page = calloc(1, sizeof *page);
    if (page == NULL) {
        return gr_fail(diag, GR_E_NO_MEMORY, "no memory for a page");
    }
    pthread_mutex_init(&page->lock, NULL);
    page->stop_fd = -1;
    gr_status status = open_page(page, where, diag);
    if (status != GR_OK) {
        gr_worker_page_close(page);
        return status;
    }
    *page_out = page;
    return GR_OK;
}

void gr_worker_page_close(gr_worker_page *page)
{
    const uint64_t one = 1;
    if (page == NULL) {
        return;
    }
    if (page->has_thread) {
        (void)!write(page->stop_fd, &one, sizeof one);
        pthread_join(page->thread, NULL);
    }
    gr_web_close(page->web);
    if (page->stop_fd >= 0) {
        close(page->stop_fd);
    }
    pthread_mutex_destroy(&page->lock);
    free(page->address);
    free(page);
}
