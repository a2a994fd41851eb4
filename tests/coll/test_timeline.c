/* SPDX-License-Identifier: Apache-2.0 */

/* Timelines: what ranks write becomes one file of JSON, whatever happened to a part. */

#include "base/clock.h"
#include "base/file.h"
#include "base/philox.h"
#include "coll/diagnose/timeline_part.h"
#include "doc/doc.h"

#include <pthread.h>
#include <setjmp.h>
#include <signal.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cmocka.h>

enum { FILE_BYTES_MAX = 12 << 20, PATH_BYTES = 256, CLOCKS_APART_US = 10000 };

typedef struct place {
    char folder[64], path[PATH_BYTES];
} place;

static int make_place(void **state)
{
    place *p = calloc(1, sizeof *p);
    snprintf(p->folder, sizeof p->folder, "/tmp/gradus-timeline-XXXXXX");
    if (!mkdtemp(p->folder)) {
        return 1;
    }
    snprintf(p->path, sizeof p->path, "%s/t.json", p->folder);
    *state = p;
    return 0;
}

static int remove_place(void **state)
{
    place *p = *state;
    for (int rank = -1; rank < 8; rank++) {
        char name[PATH_BYTES + 8];
        if (rank < 0) {
            snprintf(name, sizeof name, "%s", p->path);
        } else {
            snprintf(name, sizeof name, "%s.%d", p->path, rank);
        }
        (void)unlink(name);
    }
    int left = rmdir(p->folder); /* nothing else was left there */
    free(p);
    return left;
}

/* ---- Writing --------------------------------------------------------------------------------- */
static gr_timeline *open_part(const place *p, int rank, int size, const char *host)
{
    gr_timeline *timeline = NULL;
    gr_diag diag;
    gr_status status = gr_timeline_open(p->path, rank, size, host, NULL, &timeline, &diag);
    assert_int_equal(status, GR_OK);
    return timeline;
}

static gr_flight_recorder_entry entry_of(uint32_t number, const char *name)
{
    gr_flight_recorder_entry entry = {.started = gr_flight_recorder_now(),
                                      .number = number,
                                      .count = 100,
                                      .coll = GR_COLL_ALLREDUCE,
                                      .dtype = GR_F32,
                                      .op = GR_SUM,
                                      .shards = 4,
                                      .peer = -1,
                                      .status = GR_PENDING};
    gr_flight_recorder_copy(entry.name, name);
    gr_flight_recorder_copy(entry.site, "train.c:88");
    return entry;
}

static gr_timeline_op *begin(gr_timeline *timeline, uint32_t number, const char *name)
{
    gr_flight_recorder_entry entry = entry_of(number, name);
    return gr_timeline_begin(timeline, &entry, number, 400, 4);
}

static void run(gr_timeline *timeline, uint32_t number, const char *name)
{
    gr_timeline_op *op = begin(timeline, number, name);
    assert_non_null(op);
    gr_timeline_end(op, gr_flight_recorder_now(), GR_OK, 0, -1);
}

/* ---- Reading --------------------------------------------------------------------------------- */
static gr_timeline_summary merge(const place *p, int ranks)
{
    gr_timeline_summary summary;
    gr_diag diag = {0};
    gr_status status = gr_timeline_merge(p->path, ranks, &summary, &diag);
    if (status != GR_OK) {
        fail_msg("%s", diag.text);
    }
    return summary;
}

static gr_doc *read_json(const place *p)
{
    gr_doc *doc = NULL;
    gr_diag diag = {0};
    char *text = NULL;
    size_t size = 0;
    if (gr_file_read(p->path, GR_DOC_BYTES_MAX, &text, &size, &diag) != GR_OK ||
        gr_doc_parse_json(p->path, text, size, &doc, &diag) != GR_OK) {
        fail_msg("%s", diag.text);
    }
    free(text);
    return doc;
}

static const gr_node *first_event(const gr_doc *doc)
{
    const gr_node *events = gr_node_get(gr_doc_root(doc), "traceEvents");
    assert_non_null(events);
    return events->child;
}

static bool is(const gr_node *event, const char *key, const char *text)
{
    const gr_node *value = gr_node_get(event, key);
    return value && value->text && strcmp(value->text, text) == 0;
}

static double number_of(const gr_node *event, const char *key)
{
    double value = 0;
    assert_int_equal(gr_node_double(gr_node_get(event, key), -1e300, 1e300, &value, NULL), GR_OK);
    return value;
}

/* The index-th event of that name. */
static const gr_node *find(const gr_doc *doc, const char *name, int index)
{
    for (const gr_node *event = first_event(doc); event; event = event->next) {
        if (is(event, "name", name) && index-- == 0) {
            return event;
        }
    }
    return NULL;
}

static const gr_node *must_find(const gr_doc *doc, const char *name, int index)
{
    const gr_node *event = find(doc, name, index);
    if (!event) {
        fail_msg("there is no event %d of name %s", index, name);
    }
    return event;
}

/* ---- What is in it --------------------------------------------------------------------------- */
static void test_an_operation(void **state)
{
    const place *p = *state;
    gr_timeline *timeline = open_part(p, 0, 1, "north");
    uint64_t sooner = gr_flight_recorder_now();
    gr_timeline_op *op = begin(timeline, 17, "grads");
    uint64_t before = gr_flight_recorder_now();
    while (gr_flight_recorder_now() - before <
           1000000) { /* some 0.3 ms: waiting of that length is shown */
    }
    uint64_t ended = gr_flight_recorder_now(); /* whatever else the processor did meanwhile */
    gr_timeline_end(op, ended, GR_OK, (ended - before) / 10 * 9, 3);
    gr_timeline_close(timeline);
    gr_timeline_summary summary = merge(p, 1);
    assert_int_equal(summary.ranks, 1);
    assert_true(summary.events == 2 && summary.lost == 0 && summary.unfinished == 0);
    assert_int_equal(summary.missing, -1);
    assert_int_equal(summary.cut_rank, -1);
    gr_doc *doc = read_json(p);
    const gr_node *event = must_find(doc, "allreduce grads", 0);
    assert_true(is(event, "ph", "X") && is(event, "cat", "comm") && is(event, "pid", "0"));
    const gr_node *args = gr_node_get(event, "args");
    assert_true(is(args, "operation", "17") && is(args, "kind", "allreduce"));
    assert_true(is(args, "count", "100") && is(args, "bytes", "400") && is(args, "type", "f32"));
    assert_true(is(args, "op", "sum") && is(args, "site", "train.c:88"));
    assert_true(is(args, "waited_for_rank", "3") && !gr_node_get(args, "status"));
    assert_non_null(gr_node_get(args, "algorithm"));
    const gr_node *late = must_find(doc, "until rank 3 came", 0);
    assert_true(number_of(late, "ts") == number_of(event, "ts"));
    assert_true(number_of(late, "dur") < number_of(event, "dur"));
    double least = 0.9 * (double)(ended - before) / (double)(ended - sooner); /* it began between */
    assert_true(number_of(late, "dur") > 0.99 * least * number_of(event, "dur"));
    assert_true(
        is(gr_node_get(must_find(doc, "process_name", 0), "args"), "name", "rank 0 on north"));
    gr_doc_destroy(doc);
}

static double now_us(void)
{
    return (double)gr_now_ns() / 1000;
}

/* Where times count from is told, so that they can be set against somebody else's. */
static void test_the_clock(void **state)
{
    const place *p = *state;
    gr_timeline *timeline = open_part(p, 0, 1, "");
    double before_us = now_us();
    uint64_t step = gr_timeline_now(timeline);
    double between_us = now_us();
    gr_timeline_phase_over(timeline, GR_TIMELINE_STEP, 1, step);
    gr_timeline_close(timeline);
    (void)merge(p, 1);
    gr_doc *doc = read_json(p);
    const gr_node *other = gr_node_get(gr_doc_root(doc), "otherData");
    double at_us =
        number_of(other, "monotonic_ns") / 1000 + number_of(must_find(doc, "step", 0), "ts");
    assert_true(at_us > before_us - CLOCKS_APART_US && at_us < between_us + CLOCKS_APART_US);
    gr_doc_destroy(doc);
}

static void test_phases_and_marks(void **state)
{
    const place *p = *state;
    gr_timeline *timeline = open_part(p, 0, 1, "");
    uint64_t step = gr_timeline_now(timeline);
    uint64_t forward = gr_timeline_now(timeline);
    gr_timeline_phase_over(timeline, GR_TIMELINE_FORWARD, 2, forward);
    gr_timeline_phase_over(timeline, GR_TIMELINE_STEP, 8, step);
    gr_timeline_phase_over(NULL, GR_TIMELINE_STEP, 9, step);
    assert_true(gr_timeline_now(NULL) == 0);
    gr_timeline_mark(timeline, GR_TIMELINE_STALL,
                     "rank 2 (host \"south\")\n is \x01 slow \xff\xc3\xa9");
    gr_timeline_mark(timeline, GR_TIMELINE_FAILURE, "");
    gr_timeline_close(timeline);
    assert_true(merge(p, 1).events == 4);
    gr_doc *doc = read_json(p);
    const gr_node *inner = must_find(doc, "forward", 0), *outer = must_find(doc, "step", 0);
    assert_null(find(doc, "step", 1));
    assert_true(is(gr_node_get(outer, "args"), "step", "8"));
    assert_true(number_of(inner, "ts") >= number_of(outer, "ts"));
    assert_true(number_of(inner, "ts") + number_of(inner, "dur") <=
                number_of(outer, "ts") + number_of(outer, "dur") + 0.001);
    const gr_node *stall = must_find(doc, "stall", 0);
    assert_true(is(stall, "ph", "i"));
    assert_true(
        is(gr_node_get(stall, "args"), "text", "rank 2 (host \"south\")\n is \x01 slow ?\xc3\xa9"));
    assert_true(is(gr_node_get(must_find(doc, "failure", 0), "args"), "text", ""));
    gr_doc_destroy(doc);
}

/* A caller without a site is named from its address, also in another process. */
static void test_a_caller(void **state)
{
    const place *p = *state;
    gr_timeline *timeline = open_part(p, 0, 1, NULL);
    for (int i = 0; i < 3; i++) {
        gr_flight_recorder_entry entry = entry_of(0, NULL);
        entry.site[0] = '\0';
        entry.caller = (uintptr_t)(void *)puts;
        gr_timeline_end(gr_timeline_begin(timeline, &entry, entry.number, 400, 4),
                        gr_flight_recorder_now(), GR_OK, 0, -1);
    }
    gr_timeline_close(timeline);
    assert_true(merge(p, 1).events == 3);
    gr_doc *doc = read_json(p);
    for (int i = 0; i < 3; i++) {
        const gr_node *site =
            gr_node_get(gr_node_get(must_find(doc, "allreduce", i), "args"), "site");
        assert_non_null(site);
        assert_non_null(strstr(site->text, "puts"));
    }
    gr_doc_destroy(doc);
}

static void test_overlapping_operations_have_tracks_of_their_own(void **state)
{
    const place *p = *state;
    enum { AT_ONCE = 5 };
    gr_timeline *timeline = open_part(p, 0, 1, NULL);
    for (int round = 0; round < 3; round++) {
        gr_timeline_op *ops[AT_ONCE];
        for (uint32_t i = 0; i < AT_ONCE; i++) {
            ops[i] = begin(timeline, i, "a");
        }
        for (int i = 0; i < AT_ONCE; i++) {
            gr_timeline_end(ops[i], gr_flight_recorder_now(), GR_OK, 0, -1);
        }
    }
    gr_timeline_close(timeline);
    assert_true(merge(p, 1).events == 3 * AT_ONCE);
    gr_doc *doc = read_json(p);
    int tracks = 0;
    for (const gr_node *a = first_event(doc); a; a = a->next) {
        tracks += is(a, "name", "thread_name") && number_of(a, "tid") > 3;
        for (const gr_node *b = a->next; b && is(a, "ph", "X"); b = b->next) {
            if (is(b, "ph", "X") && number_of(a, "tid") == number_of(b, "tid")) {
                double end = number_of(a, "ts") + number_of(a, "dur");
                assert_true(number_of(b, "ts") >= end - 0.0015);
            }
        }
    }
    assert_int_equal(tracks, AT_ONCE);
    gr_doc_destroy(doc);
}

/* ---- What happens to ranks ------------------------------------------------------------------- */
static void test_a_rank_that_was_killed(void **state)
{
    const place *p = *state;
    pid_t pid = fork();
    assert_true(pid >= 0);
    if (pid == 0) {
        gr_timeline *timeline = open_part(p, 0, 2, NULL);
        run(timeline, 0, "first");
        (void)begin(timeline, 1, "second");
        raise(SIGKILL);
    }
    int how = 0;
    assert_int_equal(waitpid(pid, &how, 0), pid);
    assert_true(WIFSIGNALED(how));
    gr_timeline_summary summary = merge(p, 2);
    assert_int_equal(summary.ranks, 1);
    assert_int_equal(summary.missing, 1);
    assert_true(summary.events == 2 && summary.unfinished == 1);
    assert_int_equal(summary.cut_rank, -1);
    gr_doc *doc = read_json(p);
    const gr_node *second = must_find(doc, "allreduce second", 0);
    assert_true(is(gr_node_get(second, "args"), "status", "unfinished"));
    assert_true(number_of(second, "dur") >= 0);
    gr_doc_destroy(doc);
}

static void read_part(const place *p, int rank, char **data, size_t *size)
{
    char name[PATH_BYTES + 8];
    snprintf(name, sizeof name, "%s.%d", p->path, rank);
    assert_int_equal(gr_file_read(name, FILE_BYTES_MAX, data, size, NULL), GR_OK);
}

static void write_part(const place *p, int rank, const char *data, size_t size)
{
    char name[PATH_BYTES + 8];
    snprintf(name, sizeof name, "%s.%d", p->path, rank);
    FILE *file = fopen(name, "w");
    assert_non_null(file);
    assert_int_equal(fwrite(data, 1, size, file), size);
    assert_int_equal(fclose(file), 0);
}

static void write_sample(const place *p, int rank)
{
    gr_timeline *timeline = open_part(p, rank, 2, "north");
    run(timeline, 0, "one");
    gr_timeline_phase_over(timeline, GR_TIMELINE_UPDATE, 1, gr_timeline_now(timeline));
    gr_flight_recorder_entry entry = entry_of(1, "two");
    entry.site[0] = '\0';
    entry.caller = (uintptr_t)(void *)puts;
    gr_timeline_end(gr_timeline_begin(timeline, &entry, entry.number, 400, 4),
                    gr_flight_recorder_now(), GR_OK, 500, 1);
    gr_timeline_mark(timeline, GR_TIMELINE_STALL, "a text of some length");
    gr_timeline_close(timeline);
}

/* Its rank was killed before it had written anything. */
static void test_a_part_that_was_not_begun_is_removed(void **state)
{
    const place *p = *state;
    static const char zeros[sizeof(gr_part_head) + 8];
    gr_timeline *timeline = open_part(p, 0, 4, NULL);
    run(timeline, 0, "first");
    gr_timeline_close(timeline);
    write_part(p, 1, zeros, 0);
    write_part(p, 2, zeros, sizeof zeros);
    write_part(p, 3, "not a part", strlen("not a part"));
    gr_timeline_summary summary = merge(p, 4);
    assert_int_equal(summary.ranks, 1);
    assert_int_equal(summary.missing, 1);
    for (int rank = 1; rank < 4; rank++) {
        char name[PATH_BYTES + 16];
        snprintf(name, sizeof name, "%s.%d", p->path, rank);
        assert_int_equal(access(name, F_OK) == 0, rank == 3);
    }
}

/* Cut anywhere: what stands ahead of the cut is there, and the other rank's part is whole. */
static void test_a_part_that_was_cut_off(void **state)
{
    const place *p = *state;
    char *data = NULL;
    size_t size = 0;
    write_sample(p, 0);
    read_part(p, 0, &data, &size);
    uint64_t events_before = 0;
    for (size_t cut = 0; cut <= size; cut += cut < sizeof(gr_part_head) ? 16 : 8) {
        write_part(p, 0, data, cut);
        write_sample(p, 1);
        gr_timeline_summary summary = merge(p, 2);
        bool headed = cut >= sizeof(gr_part_head);
        assert_int_equal(summary.ranks, headed ? 2 : 1);
        assert_int_equal(summary.missing, headed ? -1 : 0);
        assert_int_equal(summary.cut_rank, headed && cut < size ? 0 : -1);
        assert_true(summary.events >= events_before && summary.events <= 8);
        events_before = summary.events;
        gr_doc_destroy(read_json(p));
        char name[PATH_BYTES + 8];
        snprintf(name, sizeof name, "%s.0", p->path);
        (void)unlink(name);
    }
    assert_true(events_before == 8);
    free(data);
}

/* Whatever stands in a part, there is no crash, and JSON comes out. */
static void test_a_part_with_nonsense_in_it(void **state)
{
    const place *p = *state;
    char *data = NULL;
    size_t size = 0;
    write_sample(p, 0);
    read_part(p, 0, &data, &size);
    for (uint32_t round = 0; round < 600; round++) {
        uint32_t random[7];
        gr_philox_fill(7, 0, round, random, 7);
        char *bad = malloc(size);
        memcpy(bad, data, size);
        for (uint32_t i = 0; i <= random[0] % 3; i++) {
            bad[random[1 + 2 * i] % size] = (char)random[2 + 2 * i];
        }
        write_part(p, 0, bad, size);
        write_sample(p, 1);
        free(bad);
        assert_true(merge(p, 2).events >= 4);
        gr_doc_destroy(read_json(p));
    }
    free(data);
}

static void test_nothing_to_merge(void **state)
{
    const place *p = *state;
    gr_timeline_summary summary;
    gr_diag diag;
    assert_int_equal(gr_timeline_merge(p->path, 2, &summary, &diag), GR_E_NOT_FOUND);
    assert_non_null(strstr(diag.text, "no parts"));
    write_part(p, 0, "something else", 14);
    assert_int_equal(gr_timeline_merge(p->path, 0, &summary, &diag), GR_E_NOT_FOUND);
    gr_timeline_clear(p->path, 2); /* not ours: it stays */
    char *data = NULL;
    size_t size = 0;
    read_part(p, 0, &data, &size);
    assert_int_equal(size, 14);
    free(data);
    write_sample(p, 1);
    gr_timeline_clear(p->path, 2);
    assert_int_equal(gr_timeline_merge(p->path, 2, &summary, &diag), GR_E_NOT_FOUND);
}

/* A file that happens to be named like what is written, and not yet renamed, is left alone. */
static void test_files_beside_stay(void **state)
{
    const place *p = *state;
    char other[PATH_BYTES + 8], *data = NULL;
    size_t size = 0;
    gr_diag diag = {0};
    snprintf(other, sizeof other, "%s.new", p->path);
    assert_int_equal(gr_file_replace(other, "mine", 4, &diag), GR_OK);
    write_sample(p, 0);
    (void)merge(p, 1);
    assert_int_equal(gr_file_read(other, 100, &data, &size, &diag), GR_OK);
    assert_string_equal(data, "mine");
    free(data);
    assert_int_equal(unlink(other), 0);
}

static void test_who_cannot_write(void **state)
{
    const place *p = *state;
    gr_timeline *timeline = open_part(p, 0, 1, NULL), *second = NULL;
    gr_diag diag;
    assert_int_equal(gr_timeline_open(p->path, 0, 1, NULL, NULL, &second, &diag), GR_E_INVALID);
    assert_non_null(strstr(diag.text, "another communicator"));
    run(timeline, 0, "one"); /* and the first one has lost nothing */
    gr_timeline_close(timeline);
    assert_true(merge(p, 1).events == 1);
    char nowhere[PATH_BYTES];
    snprintf(nowhere, sizeof nowhere, "%s/none/t", p->folder);
    assert_int_equal(gr_timeline_open(nowhere, 0, 1, NULL, NULL, &second, &diag), GR_E_IO);
    assert_non_null(strstr(diag.text, nowhere));
}

static void count_line(void *sink_arg, gr_log_level level, const char *component, const char *line)
{
    (void)level;
    (void)component;
    assert_non_null(strstr(line, "the timeline ends here"));
    ++*(int *)sink_arg;
}

static void lose_line(void *sink_arg, gr_log_level level, const char *component, const char *line)
{
    (void)sink_arg;
    (void)level;
    (void)component;
    fail_msg("written to a log that is gone: %s", line);
}

/* No more disk: the timeline ends, its owner goes on. It may outlive the log that it began with. */
static void test_no_room(void **state)
{
    const place *p = *state;
    enum { ROOM = 3 << 20 };
    struct rlimit before, small;
    assert_int_equal(getrlimit(RLIMIT_FSIZE, &before), 0);
    small = (struct rlimit){.rlim_cur = ROOM, .rlim_max = before.rlim_max};
    signal(SIGXFSZ, SIG_IGN);
    assert_int_equal(setrlimit(RLIMIT_FSIZE, &small), 0);
    int lines = 0;
    gr_log log = {.level = GR_LOG_WARN, .sink = count_line, .sink_arg = &lines};
    gr_timeline *timeline = NULL;
    gr_diag diag;
    assert_int_equal(gr_timeline_open(p->path, 0, 1, NULL, &log, &timeline, &diag), GR_OK);
    log.sink = lose_line;
    uint64_t written = 0, refused = 0;
    for (uint32_t i = 0; i < 40000; i++) {
        gr_timeline_op *op = begin(timeline, i, "much");
        written += op != NULL;
        refused += op == NULL;
        if (op) {
            gr_timeline_end(op, gr_flight_recorder_now(), GR_OK, 0, -1);
        }
    }
    gr_timeline_close(timeline);
    assert_int_equal(setrlimit(RLIMIT_FSIZE, &before), 0);
    signal(SIGXFSZ, SIG_DFL);
    assert_true(written > 10000 && refused > 10000);
    assert_int_equal(lines, 1);
    gr_timeline_summary summary = merge(p, 1);
    assert_true(summary.events == written && summary.lost == refused);
    assert_int_equal(summary.cut_rank, -1);
}

/* ---- Several --------------------------------------------------------------------------------- */
enum { THREADS = 4, EACH = 5000 };

static void *write_much(void *arg)
{
    gr_timeline *timeline = arg;
    for (uint32_t i = 0; i < EACH; i++) {
        uint64_t begun = gr_timeline_now(timeline);
        gr_timeline_op *op = begin(timeline, i, "x");
        gr_timeline_end(op, gr_flight_recorder_now(), GR_OK, 0, -1);
        gr_timeline_phase_over(timeline, GR_TIMELINE_STEP, i, begun);
    }
    return NULL;
}

static void test_several_threads(void **state)
{
    const place *p = *state;
    gr_timeline *timeline = open_part(p, 0, 1, NULL);
    pthread_t threads[THREADS];
    for (int i = 0; i < THREADS; i++) {
        assert_int_equal(pthread_create(&threads[i], NULL, write_much, timeline), 0);
    }
    for (int i = 0; i < THREADS; i++) {
        pthread_join(threads[i], NULL);
    }
    gr_timeline_close(timeline);
    gr_timeline_summary summary = merge(p, 0);
    assert_true(summary.events == 2 * THREADS * EACH && summary.unfinished == 0);
}

/* What happens at one moment on two hosts stands at one place, whatever their clocks count from. */
static void test_two_hosts(void **state)
{
    const place *p = *state;
    const int64_t day_ns = INT64_C(1700000000000000000), south_ns = INT64_C(5000000000000);
    write_sample(p, 0);
    write_sample(p, 1);
    for (int rank = 0; rank < 2; rank++) {
        char *data = NULL;
        size_t size = 0;
        read_part(p, rank, &data, &size);
        gr_part_head *head = (gr_part_head *)(void *)data;
        gr_part_record *first = (gr_part_record *)(void *)(data + sizeof *head);
        head->ns[0] = rank == 0 ? 1000 : south_ns;
        head->ns[1] = head->ns[0] + (int64_t)(head->ticks[1] - head->ticks[0]);
        head->wall_ns = day_ns - head->ns[0];
        first->at = head->ticks[0] + 20000;
        snprintf(head->host, sizeof head->host, "%s", rank == 0 ? "north" : "south");
        write_part(p, rank, data, size);
        free(data);
    }
    assert_int_equal(merge(p, 0).ranks, 2);
    gr_doc *doc = read_json(p);
    for (int rank = 0; rank < 2; rank++) {
        double at = number_of(must_find(doc, "allreduce one", rank), "ts");
        assert_true(at > 19.9 && at < 20.1);
    }
    gr_doc_destroy(doc);
}

int main(void)
{
#define TEST(function) cmocka_unit_test_setup_teardown(function, make_place, remove_place)
    const struct CMUnitTest tests[] = {
        TEST(test_an_operation),
        TEST(test_the_clock),
        TEST(test_phases_and_marks),
        TEST(test_a_caller),
        TEST(test_overlapping_operations_have_tracks_of_their_own),
        TEST(test_a_rank_that_was_killed),
        TEST(test_a_part_that_was_not_begun_is_removed),
        TEST(test_a_part_that_was_cut_off),
        TEST(test_a_part_with_nonsense_in_it),
        TEST(test_nothing_to_merge),
        TEST(test_files_beside_stay),
        TEST(test_who_cannot_write),
        TEST(test_no_room),
        TEST(test_several_threads),
        TEST(test_two_hosts),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
