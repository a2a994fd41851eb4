/* SPDX-License-Identifier: Apache-2.0 */
#include "operator/progress.h"

#include "operator/object.h"
#include "operator/parts.h"

#include <arpa/inet.h>
#include <inttypes.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>

/* How many of the workers may be asked, one after the other: the first ones that run. */
enum { ASKED_MAX = 8 };

/* ---- Answers --------------------------------------------------------------------------------- */
/* A count that a double holds as well; false: it is none. */
static bool read_count(const json_t *answer, const char *key, int64_t *count_out)
{
    const int64_t most = INT64_C(1) << 53;
    const json_t *value = json_object_get(answer, key);
    if (!json_is_integer(value) || json_integer_value(value) < 0 ||
        json_integer_value(value) > most) {
        return false;
    }
    *count_out = (int64_t)json_integer_value(value);
    return true;
}

/* With so many digits: what changes less is no news, and is hard to read. Whole numbers are
 * integers, as the API server gives them back: one that a double does not hold exactly is left out.
 * NULL: it is not within the bounds. */
static json_t *make_number(double number, double least, int digits)
{
    const double limit = 1e15;
    char text[32];
    if (!isfinite(number) || number < least) {
        return NULL;
    }
    snprintf(text, sizeof text, "%.*g", digits, number);
    number = strtod(text, NULL);
    if (fabs(number) >= limit) {
        return NULL;
    }
    bool is_whole = number == rint(number);
    return is_whole ? json_integer((json_int_t)number) : json_real(number);
}

static json_t *read_number(const json_t *answer, const char *key, double least, int digits)
{
    const json_t *value = json_object_get(answer, key);
    return json_is_number(value) ? make_number(json_number_value(value), least, digits) : NULL;
}

/* A name as hosts have it, and pods. */
static bool is_host_name(const char *name)
{
    enum { NAME_MAX_BYTES = 253 };
    static const char letters[] = "abcdefghijklmnopqrstuvwxyz0123456789-.";
    size_t length = name != NULL ? strspn(name, letters) : 0;
    return length > 0 && length <= NAME_MAX_BYTES && name[length] == '\0';
}

/* Which worker keeps the others waiting; nothing, where none does. */
static void read_straggler(const json_t *answer, json_t *progress, bool *no_memory)
{
    int64_t rank;
    const char *host = gr_object_text(answer, "late_host");
    const json_t *late_us = json_object_get(answer, "late_us");
    json_t *late_ms =
        json_is_number(late_us) ? make_number(json_number_value(late_us) * 1e-3, 0, 3) : NULL;
    if (late_ms == NULL || !read_count(answer, "late_rank", &rank)) {
        json_decref(late_ms);
        return;
    }
    json_t *straggler =
        json_pack("{s:I, s:o}", "rank", (json_int_t)rank, "lateMilliseconds", late_ms);
    if (is_host_name(host)) { /* the pods of a job are called as they are */
        gr_object_put_text(straggler, "pod", host, no_memory);
    }
    gr_object_put(progress, "straggler", straggler, no_memory);
}

json_t *gr_job_progress_read(const char *text, size_t size_bytes)
{
    static const char *const optional[] = {"steps", "epoch", "epochs"};
    int64_t step, count;
    bool no_memory = false;
    json_t *answer = size_bytes <= GR_JOB_PROGRESS_BYTES
                         ? json_loadb(text, size_bytes, JSON_REJECT_DUPLICATES, NULL)
                         : NULL;
    if (!read_count(answer, "step", &step)) {
        json_decref(answer);
        return NULL;
    }
    json_t *progress = json_pack("{s:I}", "step", (json_int_t)step);
    for (size_t i = 0; i < sizeof optional / sizeof optional[0]; i++) {
        if (read_count(answer, optional[i], &count) && count > 0) {
            gr_object_put(progress, optional[i], json_integer((json_int_t)count), &no_memory);
        }
    }
    json_t *loss = read_number(answer, "loss", -1e15, 6);
    json_t *rate = read_number(answer, "samples_per_s", 0, 4);
    if (loss != NULL) {
        gr_object_put(progress, "loss", loss, &no_memory);
    }
    if (rate != NULL) {
        gr_object_put(progress, "samplesPerSecond", rate, &no_memory);
    }
    read_straggler(answer, progress, &no_memory);
    json_decref(answer);
    if (no_memory) {
        json_decref(progress);
        progress = NULL;
    }
    return progress;
}

/* ---- Pages ----------------------------------------------------------------------------------- */
/* Those know the path who may read the job, and with it its status. */
static json_t *path_of(const gr_training *t)
{
    return json_sprintf("/progress/%s", t->look.uid);
}

void gr_job_progress_add_page(gr_training *t, const gr_training_role *role, json_t *container)
{
    json_t *path = path_of(t);
    json_t *where = path != NULL
                        ? json_sprintf(":%" PRId64 "%s", role->port + GR_JOB_PROGRESS_PORT_OFFSET,
                                       json_string_value(path))
                        : NULL;
    t->look.no_memory |= where == NULL;
    if (where != NULL && t->look.view->asks_progress) {
        gr_parts_add_env(&t->look, container, "GRADUS_PROGRESS_PAGE", json_string_value(where));
    }
    json_decref(where);
    json_decref(path);
}

/* An address of IPv4 or IPv6, which is no name to look up. */
static bool is_address(const char *text)
{
    struct in6_addr binary;
    return text != NULL &&
           (inet_pton(AF_INET, text, &binary) == 1 || inet_pton(AF_INET6, text, &binary) == 1);
}

static json_t *addresses_of(const gr_training_role *role, bool *no_memory)
{
    json_t *addresses = json_array();
    for (int64_t n = 0; n < role->replicas && json_array_size(addresses) < ASKED_MAX; n++) {
        const json_t *pod = role->pods[n];
        const char *address = gr_object_text(pod, "status.podIP");
        if (gr_object_is_text(pod, "status.phase", "Running") && is_address(address)) {
            gr_object_append(addresses, json_string(address), no_memory);
        }
    }
    *no_memory |= addresses == NULL;
    return addresses;
}

/* Returns true if the status holds the same progress, but for the time. */
static bool is_same(const json_t *before, const json_t *progress, bool *no_memory)
{
    if (before == NULL) {
        return false;
    }
    json_t *without = json_copy((json_t *)before);
    *no_memory |= without == NULL;
    json_object_del(without, "lastUpdateTime");
    bool equal = json_equal(without, progress) != 0;
    json_decref(without);
    return equal;
}

void gr_job_progress_report(gr_training *t, const gr_training_role *role)
{
    const json_t *progress = t->look.view->progress;
    if (t->look.view->asks_progress) {
        t->look.result->ask = json_pack(
            "{s:o, s:I, s:o}", "addresses", addresses_of(role, &t->look.no_memory), "port",
            (json_int_t)(role->port + GR_JOB_PROGRESS_PORT_OFFSET), "path", path_of(t));
        t->look.no_memory |= t->look.result->ask == NULL;
    }
    const json_t *before = json_object_get(t->look.status, "progress");
    if (progress == NULL || is_same(before, progress, &t->look.no_memory)) {
        return;
    }
    json_t *told = json_copy((json_t *)progress);
    gr_object_put_text(told, "lastUpdateTime", t->look.view->now, &t->look.no_memory);
    gr_object_put(t->look.status, "progress", told, &t->look.no_memory);
}
