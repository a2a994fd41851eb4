/* SPDX-License-Identifier: Apache-2.0 */
#include "coll/plan/counts.h"
#include "ps/message.h"

#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stdio.h>
#include <string.h>

#include <cmocka.h>

static const gr_ps_spec good = {.name = "layer 1.weight",
                                .elements = 4711,
                                .consistency = GR_SSP,
                                .staleness = 3,
                                .adapt_rate = 1,
                                .refuse_not_finite = 1,
                                .optimizer = "kind: sgd\nmomentum: 0.9"};

static void payloads_come_back_as_they_were(void **state)
{
    (void)state;
    uint8_t out[GR_PS_SMALL_MAX];
    gr_diag diag = {0};
    gr_ps_texts texts;
    const gr_ps_hello hello = {
        .protocol = GR_PS_PROTOCOL, .servers = 3, .number = 2, .run = "20261124-1"};
    gr_ps_hello hello_back;
    assert_int_equal(gr_ps_get_hello(out, gr_ps_put_hello(&hello, out), &hello_back, &diag), GR_OK);
    assert_memory_equal(&hello, &hello_back, sizeof hello);

    gr_ps_spec spec;
    assert_int_equal(gr_ps_get_spec(out, gr_ps_put_spec(&good, out), &spec, &texts, &diag), GR_OK);
    assert_string_equal(spec.name, good.name);
    assert_string_equal(spec.optimizer, good.optimizer);
    assert_int_equal(spec.elements, 4711);
    assert_int_equal(spec.consistency, GR_SSP);
    assert_int_equal(spec.staleness, 3);
    assert_true(spec.adapt_rate && spec.refuse_not_finite);

    const gr_ps_request request = {.flags = GR_PS_ASK_VALUES | GR_PS_ASK_PUT,
                                   .first = 4,
                                   .count = 2,
                                   .step = 1ull << 40,
                                   .version = 7,
                                   .sequence = UINT64_MAX,
                                   .rate = 0.125,
                                   .factor = -2.5f,
                                   .data_at = 64,
                                   .values_at = 1ull << 36};
    gr_ps_request request_back;
    assert_int_equal(gr_ps_get_request(out, gr_ps_put_request(&request, out), &request_back, &diag),
                     GR_OK);
    assert_true(request_back.sequence == request.sequence && request_back.step == request.step);
    assert_true(request_back.rate == request.rate && request_back.factor == request.factor);
    assert_true(request_back.values_at == request.values_at && request_back.data_at == 64);

    const gr_ps_done done = {.status = GR_E_NOT_FINITE, .duplicates = 3, .text = "worker 2"};
    gr_ps_done done_back;
    assert_int_equal(gr_ps_get_done(out, gr_ps_put_done(&done, out), &done_back, &diag), GR_OK);
    assert_int_equal(done_back.status, GR_E_NOT_FINITE);
    assert_int_equal(done_back.duplicates, 3);
    assert_string_equal(done_back.text, "worker 2");

    const gr_ps_entry entry = {.tensor = good,
                               .states = 2,
                               .blocks = 5,
                               .block_elements = 1024,
                               .version_least = 8,
                               .version_most = 9};
    gr_ps_entry entry_back;
    assert_int_equal(gr_ps_get_entry(out, gr_ps_put_entry(&entry, out), &entry_back, &texts, &diag),
                     GR_OK);
    assert_int_equal(entry_back.version_most, 9);
    assert_int_equal(entry_back.states, 2);
    assert_string_equal(entry_back.tensor.name, good.name);

    gr_ps_counters counters = {.clients = 1, .bytes_out = 12, .staleness_most = 14}, counters_back;
    assert_int_equal(
        gr_ps_get_counters(out, gr_ps_put_counters(&counters, out), &counters_back, &diag), GR_OK);
    assert_memory_equal(&counters, &counters_back, sizeof counters);
}

/* Every shorter payload, and one byte more, is refused. */
static void other_lengths_are_refused(void **state)
{
    (void)state;
    uint8_t out[GR_PS_SMALL_MAX + 1] = {0};
    gr_diag diag = {0};
    gr_ps_texts texts;
    gr_ps_spec spec;
    gr_ps_request request;
    size_t size = gr_ps_put_spec(&good, out);
    for (size_t i = 0; i <= size + 1; i++) {
        assert_int_equal(gr_ps_get_spec(out, i, &spec, &texts, &diag),
                         i == size ? GR_OK : GR_E_PROTOCOL);
    }
    gr_ps_hello hello;
    size = gr_ps_put_hello(&(gr_ps_hello){.protocol = GR_PS_PROTOCOL, .servers = 1, .run = "first"},
                           out);
    for (size_t i = 0; i <= size + 1; i++) {
        assert_int_equal(gr_ps_get_hello(out, i, &hello, &diag), i == size ? GR_OK : GR_E_PROTOCOL);
    }
    size = gr_ps_put_request(&(gr_ps_request){.rate = 1}, out);
    for (size_t i = 0; i <= size + 1; i++) {
        assert_int_equal(gr_ps_get_request(out, i, &request, &diag),
                         i == size ? GR_OK : GR_E_PROTOCOL);
    }
}

static void expect_wrong(gr_ps_spec spec, const char *says)
{
    gr_diag diag = {0};
    assert_int_equal(gr_ps_check_spec(&spec, &diag), GR_E_INVALID);
    if (strstr(diag.text, says) == NULL) {
        fail_msg("\"%s\" does not say \"%s\"", diag.text, says);
    }
}

static void a_tensor_that_cannot_be_is_refused_with_a_sentence(void **state)
{
    (void)state;
    char long_name[GR_PS_NAME_BYTES + 1];
    memset(long_name, 'a', GR_PS_NAME_BYTES);
    long_name[GR_PS_NAME_BYTES] = '\0';
    gr_ps_spec spec = good;
    spec.name = "";
    expect_wrong(spec, "name");
    spec.name = long_name;
    expect_wrong(spec, "name");
    spec.name = "two\nlines";
    expect_wrong(spec, "printable");
    spec = good;
    spec.elements = 0;
    expect_wrong(spec, "0 elements");
    spec.elements = UINT64_MAX;
    expect_wrong(spec, "elements");
    spec = good;
    spec.consistency = GR_SSP + 1;
    expect_wrong(spec, "mode 4");
    spec.consistency = GR_BSP;
    expect_wrong(spec, "shards is 0");
    spec.shards = GR_PS_SHARDS_MAX + 1;
    expect_wrong(spec, "shards is 65537");
    spec.consistency = GR_BSP_BACKUP;
    spec.aggregate = 3;
    spec.total = 2;
    expect_wrong(spec, "first 3 of 2");
    spec.aggregate = 0;
    expect_wrong(spec, "first 0 of 2");
    spec.aggregate = 1;
    spec.total = GR_PS_WORKERS_MAX + 1;
    expect_wrong(spec, "first 1 of 193");
    spec = good;
    spec.staleness = -1;
    expect_wrong(spec, "staleness is -1");
}

static void a_table_has_whole_rows_and_messages_as_many_as_they_say(void **state)
{
    (void)state;
    uint8_t out[GR_PS_SMALL_MAX];
    gr_diag diag = {0};
    gr_ps_spec table = good, back;
    gr_ps_texts texts;
    table.columns = 3;
    expect_wrong(table, "whole rows"); /* 4711 elements */
    table.elements = 4710;
    table.deviation = -1;
    expect_wrong(table, "deviation of -1");
    table.deviation = 0.25f;
    table.seed = UINT64_MAX;
    assert_int_equal(gr_ps_get_spec(out, gr_ps_put_spec(&table, out), &back, &texts, &diag), GR_OK);
    assert_true(back.columns == 3 && back.seed == UINT64_MAX && back.deviation == 0.25f);
    table.columns = GR_PS_COLUMNS_MAX + 1;
    table.elements = table.columns;
    expect_wrong(table, "at most 65536 columns");
    table.columns = 0;
    expect_wrong(table, "deviation of 0.25"); /* of no table */

    enum { COUNT = 4, COLUMNS = 3, PULLS = GR_PS_REQUEST_BYTES + 4 * COUNT };
    uint32_t message[(PULLS + 4 * COUNT * COLUMNS) / 4] = {0};
    gr_ps_row_list list;
    for (size_t size = 0; size <= sizeof message; size++) {
        assert_int_equal(gr_ps_get_rows(message, size, false, COUNT, COLUMNS, &list, &diag),
                         size == PULLS ? GR_OK : GR_E_INVALID);
        assert_int_equal(gr_ps_get_rows(message, size, true, COUNT, COLUMNS, &list, &diag),
                         size == sizeof message ? GR_OK : GR_E_INVALID);
    }
    assert_ptr_equal(list.rows, message + GR_PS_REQUEST_BYTES / 4);
    assert_ptr_equal(list.values, (const float *)(const void *)(list.rows + COUNT));
    assert_int_equal(gr_ps_get_rows(message, PULLS, false, COUNT, 1 << 21, &list, &diag),
                     GR_E_INVALID); /* the answer would be too large */
}

static void zeros_are_left_out_where_that_is_shorter(void **state)
{
    (void)state;
    enum { COUNT = 100 };
    float values[COUNT], back[COUNT + 1];
    uint32_t out[COUNT];
    gr_diag diag = {0};
    for (size_t kept = 0; kept <= COUNT; kept++) {
        memset(values, 0, sizeof values);
        for (size_t i = 0; i < kept; i++) {
            values[i * 37 % COUNT] = i % 2 != 0 ? -0.0f : (float)i + 1.0f;
        }
        size_t size = gr_ps_put_pairs(values, COUNT, out);
        size_t wanted = kept == 0 ? GR_PS_PAIRS_NONE : kept < COUNT / 2 ? 8 * kept : 0;
        assert_true(size == wanted);
        if (size == 0) {
            continue;
        }
        size = size == GR_PS_PAIRS_NONE ? 0 : size;
        back[COUNT] = 5.0f;
        assert_int_equal(gr_ps_get_pairs(out, size, back, COUNT, &diag), GR_OK);
        assert_memory_equal(back, values, sizeof values);
        assert_true(back[COUNT] == 5.0f);
        assert_int_equal(gr_ps_get_pairs(out, size + 4, back, COUNT, &diag), GR_E_PROTOCOL);
    }
    const uint32_t beyond[] = {COUNT, 0}, twice[] = {3, 3, 0, 0}, falling[] = {4, 3, 0, 0};
    assert_int_equal(gr_ps_get_pairs(beyond, 8, back, COUNT, &diag), GR_E_PROTOCOL);
    assert_int_equal(gr_ps_get_pairs(twice, 16, back, COUNT, &diag), GR_E_PROTOCOL);
    assert_int_equal(gr_ps_get_pairs(falling, 16, back, COUNT, &diag), GR_E_PROTOCOL);
}

static void gradients_travel_in_three_types(void **state)
{
    (void)state;
    uint8_t out[GR_PS_SMALL_MAX];
    gr_diag diag = {0};
    gr_ps_texts texts;
    for (int type = 0; type <= GR_DTYPE_COUNT; type++) {
        gr_ps_spec spec = good, back;
        spec.gradient_type = type;
        if (type == GR_F32 || type == GR_F16 || type == GR_BF16) {
            assert_int_equal(gr_ps_get_spec(out, gr_ps_put_spec(&spec, out), &back, &texts, &diag),
                             GR_OK);
            assert_int_equal(back.gradient_type, type);
            continue;
        }
        expect_wrong(spec, "f32, f16 or bf16");
        expect_wrong(spec, gr_dtype_name((gr_dtype)type));
        assert_int_equal(gr_ps_get_spec(out, gr_ps_put_spec(&spec, out), &back, &texts, &diag),
                         GR_E_PROTOCOL);
    }
    gr_ps_spec table = good;
    table.columns = 1;
    table.gradient_type = GR_F16;
    expect_wrong(table, "f32 only");
}

static void numbers_that_cannot_be_are_refused(void **state)
{
    (void)state;
    uint8_t out[GR_PS_SMALL_MAX];
    gr_diag diag = {0};
    gr_ps_request back;
    const gr_ps_request wrong[] = {{.flags = GR_PS_ASK_END},
                                   {.rate = NAN},
                                   {.factor = INFINITY},
                                   {.data_at = 2},
                                   {.first = UINT32_MAX}};
    for (size_t i = 0; i < sizeof wrong / sizeof wrong[0]; i++) {
        assert_int_equal(gr_ps_get_request(out, gr_ps_put_request(&wrong[i], out), &back, &diag),
                         GR_E_PROTOCOL);
    }
    gr_ps_done done;
    const gr_ps_done of_a_communicator = {.status = GR_E_COMM_BROKEN};
    assert_int_equal(gr_ps_get_done(out, gr_ps_put_done(&of_a_communicator, out), &done, &diag),
                     GR_E_PROTOCOL);
}

static void peers_are_called_by_their_own_numbers(void **state)
{
    (void)state;
    const int peers[] = {GR_PS_WORKERS_AT - 1, GR_PS_WORKERS_AT, GR_PS_READERS_AT - 1,
                         GR_PS_READERS_AT};
    const char *const names[] = {"server 15", "worker 0", "worker 191", "a reader"};
    for (int i = 0; i < 4; i++) {
        char name[GR_PS_PEER_NAME_BYTES];
        assert_string_equal(gr_ps_peer_name(peers[i], name), names[i]);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(payloads_come_back_as_they_were),
        cmocka_unit_test(other_lengths_are_refused),
        cmocka_unit_test(a_tensor_that_cannot_be_is_refused_with_a_sentence),
        cmocka_unit_test(a_table_has_whole_rows_and_messages_as_many_as_they_say),
        cmocka_unit_test(zeros_are_left_out_where_that_is_shorter),
        cmocka_unit_test(gradients_travel_in_three_types),
        cmocka_unit_test(numbers_that_cannot_be_are_refused),
        cmocka_unit_test(peers_are_called_by_their_own_numbers),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
