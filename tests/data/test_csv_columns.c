/* SPDX-License-Identifier: Apache-2.0 */
/* CSV files as people have them: names, quotes, other delimiters, texts, columns that are left out;
 * and a sentence for each bad cell that says what to do. */
#include "support_data.h"

#include "data/table.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static const char *const classes[] = {"red wine", "white wine", "rose"};
static const char *const grades[] = {"low", "high"};
static const char *const regions[] = {"1", "2", "3"};
static const gr_table_texts categories[] = {{"grade", grades, 2}, {"4", regions, 3}};
static const char *const skip[] = {"id", "note"};

static const gr_table_options wine = {.header = true,
                                      .delimiter = ';',
                                      .label_name = "kind",
                                      .class_names = classes,
                                      .class_name_count = 3,
                                      .categories = categories,
                                      .category_count = 2,
                                      .skip = skip,
                                      .skip_count = 2,
                                      .index_max = 64};

static gr_table *open_table(void **state, const char *text, gr_table_options options,
                            bool in_memory)
{
    char path[300];
    gr_input_stream *source;
    gr_table *table = NULL;
    gr_diag diag = {0};
    file_put(state, "wine.csv", text, strlen(text), path);
    options.memory_max = in_memory ? 1 << 20 : 8;
    assert_int_equal(gr_input_stream_open(path, &source, &diag), GR_OK);
    gr_status status = gr_table_open_csv(source, &options, &table, &diag);
    gr_input_stream_close(source);
    if (status != GR_OK) {
        fail_msg("%s", diag.text);
    }
    return table;
}

static void expect(const gr_table *table, int64_t number, const float *values, int32_t label)
{
    gr_scaler scaler;
    float x[16];
    int32_t found = -1;
    gr_scaler_init(&scaler, 1, 0, 1);
    assert_int_equal(gr_table_read(table, number, &scaler, x, &found, NULL, NULL), GR_OK);
    assert_memory_equal(x, values, (size_t)gr_table_values(table) * sizeof *x);
    assert_int_equal(found, label);
}

static void csv_of_names_quotes_and_texts_is_read(void **state)
{
    char text[2000];
    char note[600];
    memset(note, 'n', sizeof note - 1); /* longer than any field that is read */
    note[sizeof note - 1] = '\0';
    snprintf(text, sizeof text,
             "\"id\";alcohol;\"grade\";region;kind;note\r\n"
             "a1;12.5;high;\"2\";white wine;\"fresh; \"\"dry\"\"\"\r\n"
             "a2; \"-3\" ;\"low\";3.0;\"red wine\";%s\r\n"
             ";0;low;1; rose ;",
             note);
    for (int in_memory = 0; in_memory < 2; in_memory++) {
        gr_table *table = open_table(state, text, wine, in_memory != 0);
        assert_int_equal(gr_table_count(table), 3);
        assert_int_equal(gr_table_values(table), 6);
        assert_int_equal(gr_table_label_max(table), 2);
        expect(table, 2, (const float[]){0, 1, 0, 1, 0, 0}, 2);
        expect(table, 0, (const float[]){12.5F, 0, 1, 0, 1, 0}, 1);
        expect(table, 1, (const float[]){-3, 1, 0, 0, 0, 1}, 0);
        gr_table_close(table);
    }
}

/* By numbers, without a line of names; labels from 1 on, in the last column. */
static void csv_of_labels_from_one_is_read_by_class_names(void **state)
{
    static const char *const out[] = {"1"};
    const gr_table_options options = {.class_names = regions,
                                      .class_name_count = 3,
                                      .skip = out,
                                      .skip_count = 1,
                                      .index_max = 4};
    gr_table *table = open_table(state, "2019-01-02,5,1\n2019-01-03,6,3\n?,7,2.0\n", options, true);
    expect(table, 0, (const float[]){5}, 0);
    expect(table, 1, (const float[]){6}, 2);
    expect(table, 2, (const float[]){7}, 1);
    gr_table_close(table);
}

static void bad(const char *text, gr_table_options options, const char *sentence)
{
    gr_input_stream *source;
    gr_table *table = NULL;
    gr_diag diag;
    options.memory_max = 1 << 20;
    options.index_max = 64;
    assert_int_equal(gr_input_stream_open_memory("d.csv", text, strlen(text), &source, &diag),
                     GR_OK);
    assert_int_equal(gr_table_open_csv(source, &options, &table, &diag), GR_E_INVALID);
    gr_input_stream_close(source);
    assert_null(table);
    if (strstr(diag.text, sentence) == NULL) {
        fail_msg("expected: %s\nis: %s", sentence, diag.text);
    }
}

/* A number is a text first: of two that are equal as numbers, the one that is written so is meant.
 */
static void listed_text_is_preferred_to_an_equal_number(void **state)
{
    (void)state;
    static const char *const codes[] = {"01", "1", "9007199254740993", "9007199254740992", "2"};
    const gr_table_options options = {.class_names = codes,
                                      .class_name_count = 5,
                                      .categories = (const gr_table_texts[]){{"1", codes, 5}},
                                      .category_count = 1,
                                      .index_max = 8};
    gr_table *table = open_table(state,
                                 "1,01\n01,1\n2.0,9007199254740992\n"
                                 "9007199254740992,9007199254740993\n01,2.0\n",
                                 options, true);
    expect(table, 0, (const float[]){0, 1, 0, 0, 0}, 0);
    expect(table, 1, (const float[]){1, 0, 0, 0, 0}, 1);
    expect(table, 2, (const float[]){0, 0, 0, 0, 1}, 3);
    expect(table, 3, (const float[]){0, 0, 0, 1, 0}, 2);
    expect(table, 4, (const float[]){1, 0, 0, 0, 0}, 4);
    gr_table_close(table);
    bad("01,2\n1.0,1\n", options,
        "d.csv:2: column 1: \"1.0\" could be each of \"01\" and \"1\" of its categories; write it "
        "as "
        "it is listed");
    bad("1,2\n1,1e0\n", options,
        "d.csv:2: column 2: \"1e0\" could be each of \"01\" and \"1\" of its class names");
}

/* In quotes a doubled one is one, as RFC 4180 has it. */
static void doubled_quote_is_one_of_the_text(void **state)
{
    static const char *const kinds[] = {"5\" pipe", "\"", "plain"};
    static const char *const out[] = {"the \"note\""};
    const gr_table_options options = {.header = true,
                                      .label_name = "\"kind\"",
                                      .class_names = kinds,
                                      .class_name_count = 3,
                                      .categories =
                                          (const gr_table_texts[]){{"a \"size\"", kinds, 3}},
                                      .category_count = 1,
                                      .skip = out,
                                      .skip_count = 1,
                                      .index_max = 8};
    gr_table *table =
        open_table(state,
                   "\"a \"\"size\"\"\",\"\"\"kind\"\"\",\"the \"\"note\"\"\"\n"
                   "\"5\"\" pipe\",plain,\n5\" pipe,\"\"\"\",x\nplain,\"5\"\" pipe\",\n",
                   options, true);
    assert_string_equal(gr_table_layout(table)->column[0].name, "a \"size\"");
    expect(table, 0, (const float[]){1, 0, 0}, 2);
    expect(table, 1, (const float[]){1, 0, 0}, 1);
    expect(table, 2, (const float[]){0, 0, 1}, 0);
    gr_table_close(table);
    bad("\"a \"\"size\"\"\",\"\"\"kind\"\"\",\"the \"\"note\"\"\"\n\"6\"\" pipe\",plain,\n",
        options, "d.csv:2: column 1 (\"a \"size\"\"): \"6\" pipe\" is none of its categories");
    bad("\"a \"\"size\"\"\",\"\"\"kind\"\"\",\"the \"\"note\"\"\"\n\"5\"\"\"\" pipe\",plain,\n",
        options, "\"5\"\" pipe\" is none of its categories");
    /* Names are cut at the length of what they mean. */
    char text[700];
    const gr_table_options named = {.header = true, .index_max = 4};
    size_t used = (size_t)snprintf(text, sizeof text, "\"");
    for (int i = 0; i < 126; i++) {
        used += (size_t)snprintf(text + used, sizeof text - used, "\"\"");
    }
    snprintf(text + used, sizeof text - used, "b\",kind\n1,0\n");
    table = open_table(state, text, named, true);
    assert_int_equal(strlen(gr_table_layout(table)->column[0].name), 127);
    gr_table_close(table);
}

static void bad_cell_is_told_with_what_to_do(void **state)
{
    (void)state;
    static const struct {
        const char *text, *sentence;
    } cases[] = {
        {"1,2\nnan,1\n",
         "d.csv:2: column 1: \"nan\" is not a number but stands for a missing value: "
         "fill it in, remove the line, or leave the column out (skip)"},
        {"1,2\nN/A,1\n", "stands for a missing value"},
        {"1,2\n,1\n", "d.csv:2: column 1 is empty; a number must stand there: fill it in"},
        {"1,2\n20%,1\n", "d.csv:2: column 1: \"20%\" is not a number; write it without the percent "
                         "sign, in all lines"},
        {"1;2\n3;4\n", "if a semicolon separates the columns, set delimiter: \";\""},
        {"1\t2\n", "if a tab separates the columns, set delimiter: tab"},
        {"1,2\n\"1,5\",1\n",
         "column 1: \"1,5\" is not a number; write a point in place of the comma"},
        {"1,2\n\"1,1\n", "d.csv:2: column 1: a quote is not closed in its line"},
        {"1,2\n\"1\"x,1\n", "d.csv:2: column 1: something follows the closing quote"},
        {"1,2\n1,setosa\n", "d.csv:2: column 2: \"setosa\" is not a number; if it is the name of a "
                            "class, list all names: class_names: [setosa, ...]"},
        {"1,2\nred,1\n",
         "d.csv:2: column 1: \"red\" is not a number; if it is one of several kinds, "
         "list them (categories: {COLUMN: [red, ...]}), or leave the column out"},
    };
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        bad(cases[i].text, (gr_table_options){.label_column = 2}, cases[i].sentence);
    }
    bad("1,3\n", (gr_table_options){.classes = 3}, "class_names: [1, 2, ...]");
    bad("hue,kind\nred,1\n", (gr_table_options){.header = true},
        "d.csv:2: column 1 (\"hue\"): \"red\" is not a number; if it is one of several kinds, list "
        "them (categories: {hue: [red, ...]})");
    bad("id;alcohol;grade;region;kind;note\n1;2;medium;1;rose;\n", wine,
        "d.csv:2: column 3 (\"grade\"): \"medium\" is none of its categories (low, high); add it "
        "to "
        "categories, or correct the cell");
    bad("id;alcohol;grade;region;kind;note\n1;2;low;1;beer;\n", wine,
        "column 5 (\"kind\"): \"beer\" is none of its class names (red wine, white wine, rose)");
    bad("id;alcohol;grade;region;sort;note\n", wine,
        "d.csv: there is no column \"kind\" (label_column) among the 6 of its first line");
    bad("id;alcohol;class;region;kind;note\n1;2;3;1;rose;\n", wine,
        "d.csv: there is no column \"grade\" (categories) among the 6");
}

/* As R writes a table with names of rows: they have no name in the first line. */
static void header_with_another_number_of_names_is_refused(void **state)
{
    (void)state;
    const gr_table_options last = {.header = true};
    const gr_table_options named = {.header = true, .label_name = "kind"};
    bad("a,b,kind\n\"1\",5,6,0\n\"2\",7,8,1\n", last,
        "d.csv:1: the first line has 3 names, but the line below has 4 columns; write a name for "
        "each column (in R: row.names = FALSE)");
    bad("a,b,kind\n1,5,6,0\n", named, "has 3 names, but the line below has 4 columns");
    bad("a,b,c,kind\n5,6,0\n", last,
        "d.csv:1: the first line has 4 names, but the line below has 3 columns; write a name for "
        "each column");
    bad("a\n5,6,0\n", last, "the first line has 1 name, but");
}

/* Names go into checkpoints, which are JSON. */
static void header_that_is_not_utf8_is_refused(void **state)
{
    static const char *const not_utf8[] = {
        "l\xe4nge", "\xc3", "\xc0\x80", "\xed\xa0\x80", "\xf4\x90\x80\x80", "\xe0\x80\x80"};
    const gr_table_options named = {.header = true, .index_max = 4};
    char text[700];
    for (size_t i = 0; i < sizeof not_utf8 / sizeof *not_utf8; i++) {
        snprintf(text, sizeof text, "a,%s,kind\n1,2,0\n", not_utf8[i]);
        bad(text, named,
            "d.csv:1: the name of column 2 is not UTF-8; convert the file: iconv -f latin1 -t "
            "utf-8");
    }
    gr_table_close(open_table(state, "a,l\xc3\xa4nge,\xe2\x82\xac,kind\n1,2,3,0\n", named, true));
    /* A name that is cut stays UTF-8. */
    for (size_t before = 1; before <= 2; before++) {
        size_t used = before;
        memset(text, 'x', before);
        for (int i = 0; i < 200; i++) {
            used += (size_t)snprintf(text + used, sizeof text - used, "\xc3\xa4");
        }
        snprintf(text + used, sizeof text - used, ",kind\n1,0\n");
        gr_table *table = open_table(state, text, named, true);
        assert_int_equal(strlen(gr_table_layout(table)->column[0].name),
                         GR_CSV_FIELD_BYTES_MAX - before);
        gr_table_close(table);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(csv_of_names_quotes_and_texts_is_read),
        cmocka_unit_test(csv_of_labels_from_one_is_read_by_class_names),
        cmocka_unit_test(listed_text_is_preferred_to_an_equal_number),
        cmocka_unit_test(doubled_quote_is_one_of_the_text),
        cmocka_unit_test(bad_cell_is_told_with_what_to_do),
        cmocka_unit_test(header_with_another_number_of_names_is_refused),
        cmocka_unit_test(header_that_is_not_utf8_is_refused)};
    return cmocka_run_group_tests(tests, folder_make, folder_drop);
}
