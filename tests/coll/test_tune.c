/* SPDX-License-Identifier: Apache-2.0 */
/* The file of `gradus tune`, the fit of the costs, and their agreement between ranks. */
#include "base/hash.h"
#include "cli/tune.h"
#include "coll/comm_internal.h"
#include "coll/comm_tune.h"
#include "support_ranks.h"

#include <inttypes.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include <cmocka.h>

enum { TEXT_BYTES = 1 << 16 };

static char folder[] = "/tmp/gradus-tune-XXXXXX";
static char path[64];

static int make_folder(void **state)
{
    (void)state;
    if (!mkdtemp(folder)) {
        return 1;
    }
    snprintf(path, sizeof path, "%s/tune.txt", folder);
    return 0;
}

static int remove_folder(void **state)
{
    (void)state;
    unlink(path);
    return rmdir(folder);
}

static size_t read_text(char text[TEXT_BYTES])
{
    FILE *file = fopen(path, "r");
    assert_non_null(file);
    size_t size = fread(text, 1, TEXT_BYTES - 1, file);
    text[size] = '\0';
    fclose(file);
    return size;
}

static void write_text(const char *text, size_t size)
{
    FILE *file = fopen(path, "w");
    assert_non_null(file);
    assert_int_equal(fwrite(text, 1, size, file), size);
    assert_int_equal(fclose(file), 0);
}

static gr_tuning sample(int ranks, gr_link_kind link)
{
    gr_tuning tuning;
    gr_tuning_init(&tuning, ranks, link, 1);
    tuning.model.wait_us = 1.0 / 3;
    for (int exact = 0; exact < 2; exact++) {
        const gr_algorithm *tree = gr_algorithm_find(GR_COLL_ALLREDUCE, "tree");
        const gr_algorithm *other = gr_algorithm_find(GR_COLL_ALLREDUCE, exact ? "direct" : "ring");
        tuning.rules[exact].rules[0] =
            (gr_select_rule){.coll = GR_COLL_ALLREDUCE, .from = 0, .to = 5000, .algorithm = tree};
        tuning.rules[exact].rules[1] = (gr_select_rule){.coll = GR_COLL_ALLREDUCE,
                                                        .from = 5000,
                                                        .to = UINT64_MAX,
                                                        .algorithm = other,
                                                        .segment_bytes = 65536};
        tuning.rules[exact].count = 2;
    }
    return tuning;
}

static void write_sample(const gr_tuning *tuning)
{
    gr_tuning_point points[2] = {{tuning->rules[1].rules[0].algorithm, 64, 0, 12.3456},
                                 {tuning->rules[1].rules[1].algorithm, 1 << 20, 65536, 99}};
    gr_diag diag;
    assert_int_equal(gr_tuning_write(path, tuning, points, 2, &diag), GR_OK);
}

static void test_round_trip(void **state)
{
    (void)state;
    gr_tuning tuning = sample(4, GR_LINK_TCP), read;
    gr_diag diag = {.text = ""};
    tuning.rails = 3;
    write_sample(&tuning);
    gr_status status = gr_tuning_read(path, &read, &diag);
    assert_string_equal(diag.text, "");
    assert_int_equal(status, GR_OK);
    assert_memory_equal(&read.model, &tuning.model, sizeof tuning.model);
    assert_string_equal(read.processor, tuning.processor);
    for (int exact = 0; exact < 2; exact++) {
        assert_int_equal(read.rules[exact].count, 2);
        for (int i = 0; i < 2; i++) {
            const gr_select_rule *a = &read.rules[exact].rules[i];
            const gr_select_rule *b = &tuning.rules[exact].rules[i];
            assert_true(a->coll == b->coll && a->from == b->from && a->to == b->to &&
                        a->algorithm == b->algorithm && a->segment_bytes == b->segment_bytes);
        }
    }
    assert_int_equal(gr_tuning_check(&read, path, 4, GR_LINK_TCP, 3, &diag), GR_OK);
}

/* Whatever is cut off or changed in it, the file is refused. */
static void test_damage(void **state)
{
    (void)state;
    static char text[TEXT_BYTES];
    gr_tuning tuning = sample(4, GR_LINK_SHM), read;
    gr_diag diag;
    write_sample(&tuning);
    size_t size = read_text(text);
    size_t step = size / 97 + 1;
    for (size_t at = 0; at + 4 < size; at += step) {
        write_text(text, at);
        assert_int_equal(gr_tuning_read(path, &read, &diag), GR_E_INVALID);
        text[at] ^= 1;
        write_text(text, size);
        gr_status status = gr_tuning_read(path, &read, &diag);
        assert_int_equal(status, GR_E_INVALID);
        assert_non_null(strstr(diag.text, path));
        text[at] ^= 1;
    }
    write_text(text, size);
    assert_int_equal(gr_tuning_read(path, &read, &diag), GR_OK);
    unlink(path);
    assert_int_equal(gr_tuning_read(path, &read, &diag), GR_E_NOT_FOUND);
}

/* The sample with `from` replaced by `to`, and a checksum that matches. */
static void write_changed(const char *from, const char *to)
{
    static char text[TEXT_BYTES], changed[TEXT_BYTES];
    gr_tuning tuning = sample(4, GR_LINK_SHM);
    write_sample(&tuning);
    read_text(text);
    char *at = strstr(text, from);
    assert_non_null(at);
    size_t size = (size_t)snprintf(changed, sizeof changed, "%.*s%s%s", (int)(at - text), text, to,
                                   at + strlen(from));
    char *sum = strstr(changed, "\nchecksum ");
    assert_non_null(sum);
    size = (size_t)(sum + 1 - changed);
    size += (size_t)snprintf(sum + 1, sizeof changed - size, "checksum %016" PRIx64 "\n",
                             gr_hash64(changed, size, 0));
    write_text(changed, size);
}

static void tune_file_with_a_bad_line_is_refused_with_its_place(void **state)
{
    (void)state;
    static const struct {
        const char *from, *to, *sentence;
    } cases[] = {
        {"gradus-tune 4", "gradus-tune 5", ":1: was written by version"},
        {"gradus-tune 4", "{ \"format\":", ":1: this is not a file that this version"},
        {"ranks 4\n", "ranks 0\n",
         ":4: ranks: must be a whole number from 1 to 1000000, not \"0\""},
        {"link shm\n", "link smh\n", ":5: link: must be shm or tcp, not \"smh\""},
        {"rails 1\n", "rails 1\nspeed 9\n", ":7: this version of Gradus has no such key"},
        {"rails 1\n", "rails 1\nspeed\n", ":7: a line is a key, a space and a value"},
        {"rails 1\n", "", ": the key \"rails\" is missing"},
        {"wait_us ", "wait_us -", "wait_us: must be a number"},
        {" tree 0\n", " bush 0\n", ": this version of Gradus has no such rule"},
        {" tree 0\n", " tree\n", ": a rule has six words"},
        {" tree 0\n", " tree 0 1\n", ": a rule has six words"},
        {"exact 0 5000", "exact 5000 5000", ": this version of Gradus has no such rule"},
        {"exact 0 5000", "exact -1 5000", ": this version of Gradus has no such rule"},
    };
    for (size_t i = 0; i < sizeof cases / sizeof cases[0]; i++) {
        gr_diag diag = {.text = ""};
        gr_tuning read;
        write_changed(cases[i].from, cases[i].to);
        assert_int_equal(gr_tuning_read(path, &read, &diag), GR_E_INVALID);
        if (!strstr(diag.text, cases[i].sentence) || strncmp(diag.text, path, strlen(path)) != 0) {
            fail_msg("\"%s\": %s", cases[i].to, diag.text);
        }
    }
    gr_tuning read;
    gr_diag diag = {.text = ""};
    write_changed("rails 1\n", "rails 1\n\n# a comment\n");
    assert_int_equal(gr_tuning_read(path, &read, &diag), GR_OK);
}

static void expect_misfit(gr_tuning tuning, const char *in_sentence)
{
    gr_diag diag = {.text = ""};
    assert_int_equal(gr_tuning_check(&tuning, "t.txt", 4, GR_LINK_SHM, 1, &diag), GR_E_INVALID);
    assert_non_null(strstr(diag.text, in_sentence));
}

static void test_misfit(void **state)
{
    (void)state;
    gr_tuning tuning = sample(4, GR_LINK_SHM);
    tuning.ranks = 8;
    expect_misfit(tuning, "8 ranks over shm, these are 4");
    tuning = sample(4, GR_LINK_TCP);
    expect_misfit(tuning, "4 ranks over tcp, these are 4 over shm");
    tuning = sample(4, GR_LINK_SHM);
    tuning.cores += 1;
    expect_misfit(tuning, "cores of");
    tuning = sample(4, GR_LINK_SHM);
    tuning.rails = 2;
    expect_misfit(tuning, "with 2 tcp connections between two ranks, here are 1");
    tuning = sample(4, GR_LINK_SHM);
    snprintf(tuning.processor, sizeof tuning.processor, "Abacus 3");
    expect_misfit(tuning, "Abacus 3");
}

/* ---- The fit --------------------------------------------------------------------------------- */
static double time_of(const gr_cost_model *model, gr_coll coll, const char *name, size_t bytes)
{
    gr_plan_shape shape = {.coll = coll, .world_size = 4, .shards = 4};
    gr_cost *walk = NULL;
    assert_int_equal(gr_cost_create(gr_algorithm_find(coll, name), &shape, &walk), GR_OK);
    double time_us = gr_cost_time(walk, model, GR_F32, bytes, 256 << 10);
    gr_cost_destroy(walk);
    return time_us;
}

static void test_fit(void **state)
{
    (void)state;
    for (int link = 0; link < 2; link++) {
        gr_cost_model usual, fitted;
        gr_cost_model_defaults(&usual, (gr_link_kind)link);
        double barrier_us = 3 * time_of(&usual, GR_COLL_BARRIER, "dissemination", 0);
        double gather_us = 2.5 * time_of(&usual, GR_COLL_ALLGATHER, "direct", 1 << 20);
        fitted = usual;
        gr_tune_fit(&fitted, NULL, 4, barrier_us, gather_us, 1 << 20);
        double barrier = time_of(&fitted, GR_COLL_BARRIER, "dissemination", 0);
        double gather = time_of(&fitted, GR_COLL_ALLGATHER, "direct", 1 << 20);
        assert_true(barrier > 0.95 * barrier_us && barrier < 1.05 * barrier_us);
        assert_true(gather > 0.8 * gather_us && gather < 1.25 * gather_us);
        /* Nonsense is kept within limits. */
        gr_tune_fit(&fitted, NULL, 4, 1e12, -5, 1 << 20);
        assert_true(fitted.wait_us <= usual.wait_us * 3 * 8.1);
        assert_true(fitted.link[0].wire_byte_us >= 0);
    }
}

/* ---- Together -------------------------------------------------------------------------------- */
/* All ranks end with the costs of rank 0, bit for bit. */
static int run_agreed(gr_comm *comm, const ranks_job *job)
{
    (void)job;
    gr_cost_model mine = comm->selection.model, first = mine;
    gr_cost_model usual;
    gr_cost_model_defaults(&usual, comm->selection.link);
    int failed = gr_broadcast(comm, &first, sizeof first / 8, GR_I64, 0) != GR_OK ||
                 memcmp(&mine, &first, sizeof mine) != 0 || memcmp(&mine, &usual, sizeof mine) == 0;
    gr_comm_destroy(comm);
    return failed;
}

static void test_agreed(void **state)
{
    (void)state;
    static const int sizes[] = {2, 3, 8};
    for (size_t i = 0; i < sizeof sizes / sizeof sizes[0]; i++) {
        for (int link = 0; link < 2; link++) {
            ranks_job job = {.size = sizes[i], .link = link ? "tcp" : "shm", .tune = "auto"};
            assert_int_equal(ranks_run(&job, run_agreed, 0), 0);
        }
    }
}

static int run_from_file(gr_comm *comm, const ranks_job *job)
{
    (void)job;
    const gr_selection *selection = &comm->selection;
    gr_plan_shape shape = {.coll = GR_COLL_ALLREDUCE, .world_size = 2, .shards = 2};
    int failed = selection->measured.count != 2 || selection->model.wait_us != 1.0 / 3 ||
                 strcmp(gr_select(&comm->selection, &shape, GR_F32, 4999, false).algorithm->name,
                        "tree") != 0;
    float one[2000] = {1};
    failed |= gr_allreduce(comm, one, 2000, GR_F32, GR_SUM) != GR_OK || one[0] != 2;
    gr_comm_destroy(comm);
    return failed;
}

/* The file counts; one that does not fit ends every rank's attempt. */
static void test_from_file(void **state)
{
    (void)state;
    gr_tuning tuning = sample(2, GR_LINK_SHM);
    write_sample(&tuning);
    ranks_job job = {.size = 2, .link = "shm", .tune = path};
    assert_int_equal(ranks_run(&job, run_from_file, 0), 0);
    job.size = 3;
    job.quiet = true;
    assert_int_equal(ranks_run(&job, run_from_file, 0), 7);
}

/* What was done over shared memory before is done by what is forced. */
static int run_forced(gr_comm *comm, const ranks_job *job)
{
    static const char *const names[] = {"shm", "tree", "direct", "shm", "tree"};
    const gr_flight_recorder *record = gr_exec_record(comm->context->exec);
    float value = 1;
    int failed = 0;
    (void)job;
    for (size_t i = 0; i < sizeof names / sizeof names[0]; i++) {
        gr_choice choice = {.algorithm = gr_algorithm_find(GR_COLL_ALLREDUCE, names[i])};
        gr_tune_force(comm, GR_COLL_ALLREDUCE, &choice);
        for (int turn = 0; turn < 3; turn++) {
            failed |= gr_allreduce(comm, &value, 1, GR_F32, GR_SUM) != GR_OK;
            const gr_flight_recorder_entry *last = gr_flight_recorder_at(record, record->begun - 1);
            failed |= strcmp(gr_algorithms[last->algorithm].name, names[i]) != 0;
        }
    }
    gr_comm_destroy(comm);
    return failed;
}

static void forced_algorithm_runs_though_calls_repeat(void **state)
{
    (void)state;
    ranks_job job = {.size = 2, .link = "shm"};
    assert_int_equal(ranks_run(&job, run_forced, 0), 0);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_round_trip),
        cmocka_unit_test(test_damage),
        cmocka_unit_test(tune_file_with_a_bad_line_is_refused_with_its_place),
        cmocka_unit_test(test_misfit),
        cmocka_unit_test(test_fit),
        cmocka_unit_test(test_agreed),
        cmocka_unit_test(test_from_file),
        cmocka_unit_test(forced_algorithm_runs_though_calls_repeat),
    };
    return cmocka_run_group_tests(tests, make_folder, remove_folder);
}
