/* SPDX-License-Identifier: Apache-2.0 */

/* The document tree: what YAML and JSON become, where values stand, and each error sentence. */

#include "base/file.h"
#include "base/support_base.h"
#include "base/text.h"
#include "doc/doc.h"

#include <limits.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static gr_doc *yaml(const char *text)
{
    gr_doc *doc = NULL;
    gr_diag diag = {0};
    gr_status status = gr_doc_parse_yaml("job.yaml", text, strlen(text), &doc, &diag);
    assert_string_equal(diag.text, "");
    assert_int_equal(status, GR_OK);
    return doc;
}

static void assert_bad_yaml(const char *text, size_t size_bytes, const char *sentence)
{
    gr_doc *doc = NULL;
    gr_diag diag = {0};
    support_assert_invalid(gr_doc_parse_yaml("job.yaml", text, size_bytes, &doc, &diag), &diag,
                           sentence);
    assert_null(doc);
}

static void assert_bad_json(const char *text, const char *sentence)
{
    gr_doc *doc = NULL;
    gr_diag diag = {0};
    support_assert_invalid(gr_doc_parse_json("a.json", text, strlen(text), &doc, &diag), &diag,
                           sentence);
    assert_null(doc);
}

static void yaml_becomes_a_tree(void **state)
{
    (void)state;
    gr_doc *doc = yaml("# a job\n"
                       "name: digits\n"
                       "optimizer:\n"
                       "  learning_rate: 1e-3\n"
                       "layers:\n"
                       "- linear: {units: 10}\n"
                       "- \"relu\"\n"
                       "empty:\n"
                       "long: |\n"
                       "  two\n"
                       "  lines\n");
    const gr_node *root = gr_doc_root(doc);
    assert_int_equal(root->kind, GR_NODE_MAP);
    assert_int_equal(root->count, 5);
    assert_null(root->parent);
    const gr_node *name = gr_node_get(root, "name");
    assert_string_equal(name->text, "digits");
    assert_string_equal(name->file, "job.yaml");
    assert_int_equal(name->line, 2);
    assert_false(name->quoted);
    const gr_node *rate = gr_node_get(gr_node_get(root, "optimizer"), "learning_rate");
    assert_int_equal(rate->line, 4);
    assert_ptr_equal(rate->parent->parent, root);
    const gr_node *layers = gr_node_get(root, "layers");
    assert_int_equal(layers->kind, GR_NODE_LIST);
    assert_int_equal(layers->count, 2);
    assert_int_equal(layers->line, 5); /* of the key */
    assert_int_equal(layers->child->line, 6);
    assert_true(layers->child->next->quoted);
    assert_null(layers->child->next->next);
    assert_int_equal(gr_node_get(root, "empty")->kind, GR_NODE_NULL);
    assert_string_equal(gr_node_get(root, "long")->text, "two\nlines\n");
    assert_null(gr_node_get(root, "absent"));
    assert_null(gr_node_get(layers, "absent"));
    assert_null(gr_node_get(NULL, "absent"));
    gr_doc_destroy(doc);
    gr_doc_destroy(NULL);
}

static void yaml_scalars_have_kinds(void **state)
{
    (void)state;
    gr_doc *doc = yaml("[~, null, '~', !!str 5, !!int \"5\", !!null x, '', yes]");
    const gr_node *node = gr_doc_root(doc)->child;
    static const struct {
        gr_node_kind kind;
        bool quoted;
        const char *text;
    } expected[] = {{GR_NODE_NULL, false, NULL},  {GR_NODE_NULL, false, NULL},
                    {GR_NODE_SCALAR, true, "~"},  {GR_NODE_SCALAR, true, "5"},
                    {GR_NODE_SCALAR, false, "5"}, {GR_NODE_NULL, false, NULL},
                    {GR_NODE_SCALAR, true, ""},   {GR_NODE_SCALAR, false, "yes"}};
    for (size_t i = 0; i < sizeof expected / sizeof expected[0]; i++, node = node->next) {
        assert_int_equal(node->kind, expected[i].kind);
        assert_int_equal(node->quoted, expected[i].quoted);
        if (expected[i].text != NULL) {
            assert_string_equal(node->text, expected[i].text);
        }
    }
    assert_null(node);
    gr_doc_destroy(doc);
}

static void empty_files_are_null(void **state)
{
    (void)state;
    static const char *const texts[] = {"", "\n\n", "# only a comment\n", "---\n", "~"};
    for (size_t i = 0; i < sizeof texts / sizeof texts[0]; i++) {
        gr_doc *doc = yaml(texts[i]);
        assert_int_equal(gr_doc_root(doc)->kind, GR_NODE_NULL);
        assert_string_equal(gr_doc_root(doc)->file, "job.yaml");
        gr_doc_destroy(doc);
    }
    gr_doc *doc = NULL;
    assert_int_equal(gr_doc_parse_json("a.json", " \n", 2, &doc, NULL), GR_OK);
    assert_int_equal(gr_doc_root(doc)->kind, GR_NODE_NULL);
    gr_doc_destroy(doc);
}

static void aliases_repeat_values(void **state)
{
    (void)state;
    gr_doc *doc = yaml("a: &x {lr: 1, list: [1, 2]}\n"
                       "b: *x\n"
                       "c: &x 7\n"
                       "d: [*x, *x]\n");
    const gr_node *root = gr_doc_root(doc);
    const gr_node *b = gr_node_get(root, "b");
    assert_int_equal(b->kind, GR_NODE_MAP);
    assert_int_equal(b->line, 2);
    assert_string_equal(b->key, "b");
    assert_string_equal(gr_node_get(b, "lr")->text, "1");
    assert_int_equal(gr_node_get(b, "list")->count, 2);
    const gr_node *d = gr_node_get(root, "d");
    assert_string_equal(d->child->text, "7"); /* the latest of that name */
    assert_string_equal(d->child->next->text, "7");
    assert_null(d->child->key);
    gr_doc_destroy(doc);
}

static void bad_yaml_is_explained(void **state)
{
    (void)state;
    static const struct {
        const char *text;
        const char *sentence;
    } cases[] = {
        {"a: 1\nb: 2\na: 3\n",
         "job.yaml:3: the key \"a\" stands twice, first on line 1; remove one of them"},
        {"a: 1\n---\nb: 2\n", "job.yaml:2: a second document begins; a file holds one, split it"},
        {"a: 1\n\tb: 2\n",
         "job.yaml:2: not valid YAML: the line begins with a tab; indent with spaces"},
        {"\n\na: 1\n b: 2\n", "job.yaml:4: not valid YAML: mapping values are not allowed in this "
                              "context; check indentation, colons and quotes"},
        {"a: [1,\nb: 2\n", "job.yaml:2: not valid YAML: did not find expected ',' or ']' (while "
                           "parsing a flow sequence from line 1)"},
        {"a: 1\nb: &x [*x]\n",
         "job.yaml:2: the alias *x stands inside of its own anchor, which never ends"},
        {"a: *y\n", "job.yaml:1: the alias *y has no anchor &y before it"},
        {"a: 1\n? [b]\n: 2\n", "job.yaml:2: a key must be a word, not a list"},
        {"? {b: 1}\n: 2\n", "job.yaml:1: a key must be a word, not a map"},
        {"a: &x 1\n*x : 2\n", "job.yaml:2: a key must be a word, not an alias"},
        {"&x a: 1\n", "job.yaml:1: a key has the anchor &x; only values may"},
        {"? \n: 1\n", "job.yaml:1: a key is missing before the colon"},
        {"a: &x {b: 1}\nc:\n  <<: *x\n",
         "job.yaml:3: merge keys (<<) are not supported; write the keys out"},
        {"a: !thing 1\n", "job.yaml:1: unknown tag !thing; remove it"},
        {"a: !thing [1]\n", "job.yaml:1: unknown tag !thing; remove it"},
        {"a: \"\\0\"\n", "job.yaml:1: a zero character stands inside a text; remove it"},
    };
    for (size_t i = 0; i < sizeof cases / sizeof cases[0]; i++) {
        assert_bad_yaml(cases[i].text, strlen(cases[i].text), cases[i].sentence);
    }
    assert_bad_yaml("a: 1\nb: \0\n", 10,
                    "job.yaml:2: not a text file: control characters are not allowed (byte 9 of "
                    "the file)");
    assert_bad_yaml("a: \xff\n", 5,
                    "job.yaml:1: not a text file: invalid leading UTF-8 octet (byte 4 of the "
                    "file)");
}

/* depth brackets around nothing, behind a key. */
static char *nested(int depth, size_t *size_out)
{
    char *text = malloc((size_t)depth * 2 + 16);
    assert_non_null(text);
    strcpy(text, "a: ");
    memset(text + 3, '[', (size_t)depth);
    memset(text + 3 + depth, ']', (size_t)depth);
    strcpy(text + 3 + 2 * depth, "\n");
    *size_out = strlen(text);
    return text;
}

static void depth_is_limited(void **state)
{
    (void)state;
    size_t size = 0;
    gr_doc *doc = NULL;
    gr_diag diag = {0};
    char *text = nested(GR_DOC_DEPTH_MAX - 1, &size); /* and the map around */
    assert_int_equal(gr_doc_parse_yaml("job.yaml", text, size, &doc, &diag), GR_OK);
    gr_doc_destroy(doc);
    free(text);
    static const char sentence[] = "job.yaml:1: lists and maps are nested deeper than 64";
    text = nested(GR_DOC_DEPTH_MAX, &size);
    assert_bad_yaml(text, size, sentence);
    free(text);
    text = nested(200000, &size);
    assert_bad_yaml(text, size, sentence);
    assert_bad_json("[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[["
                    "]]]]]]]]]]]]]]]]]]]]]]]]]]]]]]]]]]]]]]]]]]]]]]]]]]]]]]]]]]]]]]]]]",
                    "a.json:1: lists and maps are nested deeper than 64");
    free(text);

    /* Through aliases: 40 levels, with an alias to 40 levels at their bottom. */
    char deep[512] = "- &x ";
    for (int i = 0; i < 40; i++) {
        strcat(deep, "[");
    }
    for (int i = 0; i < 40; i++) {
        strcat(deep, "]");
    }
    strcat(deep, "\n- ");
    for (int i = 0; i < 40; i++) {
        strcat(deep, "[");
    }
    strcat(deep, "*x");
    for (int i = 0; i < 40; i++) {
        strcat(deep, "]");
    }
    assert_bad_yaml(deep, strlen(deep), "job.yaml:2: lists and maps are nested deeper than 64");
}

/* Ten lines that would be 10^10 values. */
static void aliases_cannot_explode(void **state)
{
    (void)state;
    char text[1024] = "a0: &a0 [1, 1, 1, 1, 1, 1, 1, 1, 1, 1]\n";
    for (int i = 1; i < 10; i++) {
        char line[128];
        snprintf(line, sizeof line, "a%d: &a%d [*a%d, *a%d, *a%d, *a%d, *a%d, *a%d, *a%d, *a%d]\n",
                 i, i, i - 1, i - 1, i - 1, i - 1, i - 1, i - 1, i - 1, i - 1);
        strcat(text, line);
    }
    assert_bad_yaml(text, strlen(text),
                    "job.yaml:7: the file holds more than 1048576 values (aliases written out)");
}

static void sizes_are_limited(void **state)
{
    (void)state;
    size_t size = (size_t)GR_DOC_BYTES_MAX + 1;
    char *text = malloc(size);
    assert_non_null(text);
    memset(text, ' ', size);
    assert_bad_yaml(text, size, "job.yaml is larger than the limit of 16777216 bytes");
    size = 2 * ((size_t)GR_DOC_NODES_MAX + 10);
    for (size_t i = 0; i < size; i += 2) {
        memcpy(text + i, i == 0 ? "[1" : ",1", 2);
    }
    assert_bad_yaml(text, size,
                    "job.yaml:1: the file holds more than 1048576 values (aliases written out)");
    size = 0;
    for (int i = 0; i <= 1024; i++) {
        size += (size_t)sprintf(text + size, "k%d: &a%d 1\n", i, i);
    }
    assert_bad_yaml(text, size, "job.yaml:1025: the file holds more than 1024 anchors");
    free(text);
}

static void large_maps_find_twins(void **state)
{
    (void)state;
    char *text = malloc(1 << 20);
    assert_non_null(text);
    size_t size = 0;
    for (int i = 0; i < 20000; i++) {
        size += (size_t)sprintf(text + size, "k%d: %d\n", i, i);
    }
    gr_doc *doc = NULL;
    assert_int_equal(gr_doc_parse_yaml("job.yaml", text, size, &doc, NULL), GR_OK);
    assert_int_equal(gr_doc_root(doc)->count, 20000);
    gr_doc_destroy(doc);
    size += (size_t)sprintf(text + size, "k123: again\n");
    assert_bad_yaml(
        text, size,
        "job.yaml:20001: the key \"k123\" stands twice, first on line 124; remove one of them");
    free(text);
}

static void json_becomes_the_same_tree(void **state)
{
    (void)state;
    static const char text[] = "{\"a\": [1, 1.50, -2e3, 123456789012345678901234567890],\r\n"
                               " \"b\\n\\u00e9\":\n  \"x, \\\"y\\\" ]}\", \"c\": null,\n"
                               "\"d\":true}\n";
    gr_doc *doc = NULL;
    gr_diag diag = {0};
    assert_int_equal(gr_doc_parse_json("a.json", text, sizeof text - 1, &doc, &diag), GR_OK);
    const gr_node *root = gr_doc_root(doc);
    assert_int_equal(root->count, 4);
    const gr_node *number = gr_node_get(root, "a")->child;
    assert_string_equal(number->text, "1");
    assert_string_equal(number->next->text, "1.50"); /* the digits as written */
    assert_string_equal(number->next->next->text, "-2e3");
    assert_string_equal(number->next->next->next->text, "123456789012345678901234567890");
    const gr_node *b = gr_node_get(root, "b\n\xC3\xA9");
    assert_string_equal(b->text, "x, \"y\" ]}");
    assert_true(b->quoted);
    assert_int_equal(b->line, 2); /* of the key */
    assert_int_equal(gr_node_get(root, "c")->kind, GR_NODE_NULL);
    assert_string_equal(gr_node_get(root, "d")->text, "true");
    assert_int_equal(gr_node_get(root, "d")->line, 4);
    assert_false(gr_node_get(root, "d")->quoted);
    gr_doc_destroy(doc);
}

static void bad_json_is_explained(void **state)
{
    (void)state;
    assert_bad_json("{\"a\": 1,\n\n]", "a.json:3: not valid JSON: string or '}' expected near ']'");
    assert_bad_json("{\"a\": 1,\n\"a\": 2}",
                    "a.json:2: not valid JSON: duplicate object key near '\"a\"'");
    assert_bad_json("[1] [2]", "a.json:1: not valid JSON: end of file expected near '['");
    assert_bad_json("\n[NaN]", "a.json:2: not valid JSON: invalid token near 'NaN'");
    assert_bad_json("[1e999]", "a.json:1: not valid JSON: real number overflow near '1e999'");
    assert_bad_json(",:", "a.json:1: not valid JSON: unexpected token near ','");
    gr_doc *doc = NULL;
    assert_int_equal(gr_doc_parse_json("a.json", "\0", 1, &doc, NULL), GR_E_INVALID);
    assert_int_equal(gr_doc_parse_json("a.json", "[\"\\u0000\"]", 10, &doc, NULL), GR_E_INVALID);
}

static void files_are_read(void **state)
{
    char path[PATH_MAX];
    char expected[PATH_MAX + 64];
    gr_doc *doc = NULL;
    gr_diag diag = {0};
    support_path(*state, "job.yaml", path);
    assert_int_equal(gr_doc_read_yaml(path, &doc, &diag), GR_E_NOT_FOUND);
    assert_int_equal(gr_file_replace(path, "a: 1\nb: [", 9, &diag), GR_OK);
    assert_int_equal(gr_doc_read_yaml(path, &doc, &diag), GR_E_INVALID);
    snprintf(expected, sizeof expected, "%s:2: not valid YAML: ", path);
    assert_memory_equal(diag.text, expected, strlen(expected));
    assert_int_equal(gr_file_replace(path, "a: 1", 4, &diag), GR_OK);
    assert_int_equal(gr_doc_read_yaml(path, &doc, &diag), GR_OK);
    assert_string_equal(gr_doc_root(doc)->file, path);
    gr_doc_destroy(doc);
}

/* ---- Typed reads ----------------------------------------------------------------------------- */

static void numbers_are_read(void **state)
{
    (void)state;
    gr_doc *doc = yaml("[-9223372036854775808, 9223372036854775807, +007, .5, 5., 1e-3]");
    const gr_node *node = gr_doc_root(doc)->child;
    int64_t whole = 0;
    double real = 0.0;
    const char *text = NULL;
    assert_int_equal(gr_node_int(node, INT64_MIN, INT64_MAX, &whole, NULL), GR_OK);
    assert_true(whole == INT64_MIN);
    node = node->next;
    assert_int_equal(gr_node_int(node, INT64_MIN, INT64_MAX, &whole, NULL), GR_OK);
    assert_true(whole == INT64_MAX);
    node = node->next;
    assert_int_equal(gr_node_int(node, 7, 7, &whole, NULL), GR_OK);
    assert_true(whole == 7);
    assert_int_equal(gr_node_text(node, &text, NULL), GR_OK);
    assert_string_equal(text, "+007");
    static const double expected[] = {0.5, 5.0, 0.001};
    for (int i = 0; i < 3; i++) {
        node = node->next;
        assert_int_equal(gr_node_double(node, 0.0, 5.0, &real, NULL), GR_OK);
        assert_true(real == expected[i]);
    }
    gr_doc_destroy(doc);
}

static void wrong_types_name_the_place(void **state)
{
    (void)state;
    gr_doc *doc = yaml("epochs: \"5\"\n"
                       "optimizer:\n"
                       "  learning_rate: fast\n"
                       "  list: [1, {units: 2.5}, [0]]\n"
                       "none:\n"
                       "huge: 9223372036854775808\n"
                       "nan: .nan\n"
                       "inf: 1e999\n"
                       "hex: 0x10\n");
    const gr_node *root = gr_doc_root(doc);
    const gr_node *optimizer = gr_node_get(root, "optimizer");
    const gr_node *list = gr_node_get(optimizer, "list");
    gr_diag diag = {0};
    int64_t whole = 42;
    double real = 42.0;
    const char *text = "x";
    support_assert_invalid(gr_node_int(gr_node_get(root, "epochs"), 1, 10, &whole, &diag), &diag,
                           "job.yaml:1: epochs: must be a whole number from 1 to 10, not the text "
                           "\"5\"; remove the quotes");
    support_assert_invalid(
        gr_node_double(gr_node_get(optimizer, "learning_rate"), 0, 1000, &real, &diag), &diag,
        "job.yaml:3: optimizer.learning_rate: must be a number from 0 to 1000, not \"fast\"");
    support_assert_invalid(
        gr_node_int(gr_node_get(list->child->next, "units"), 1, INT64_MAX, &whole, &diag), &diag,
        "job.yaml:4: optimizer.list[1].units: must be a whole number of at least 1, not \"2.5\"");
    support_assert_invalid(gr_node_text(optimizer, &text, &diag), &diag,
                           "job.yaml:2: optimizer: must be a text, not a map");
    support_assert_invalid(gr_node_text(gr_node_get(root, "none"), &text, &diag), &diag,
                           "job.yaml:5: none: must be a text, not nothing");
    support_assert_invalid(
        gr_node_int(gr_node_get(root, "huge"), INT64_MIN, INT64_MAX, &whole, &diag), &diag,
        "job.yaml:6: huge: must be a whole number, not \"9223372036854775808\"");
    support_assert_invalid(
        gr_node_double(gr_node_get(root, "nan"), -(double)INFINITY, 2.5, &real, &diag), &diag,
        "job.yaml:7: nan: must be a number of at most 2.5, not \".nan\"");
    support_assert_invalid(
        gr_node_double(gr_node_get(root, "inf"), -(double)INFINITY, (double)INFINITY, &real, &diag),
        &diag, "job.yaml:8: inf: must be a number, not \"1e999\"");
    support_assert_invalid(gr_node_double(gr_node_get(root, "hex"), 0, 100, &real, &diag), &diag,
                           "job.yaml:9: hex: must be a number from 0 to 100, not \"0x10\"");
    support_assert_invalid(gr_node_int(NULL, 0, 9, &whole, &diag), &diag,
                           "a value is missing: it must be a whole number from 0 to 9");
    assert_true(whole == 42 && real == 42.0);
    assert_string_equal(text, "x");
    gr_doc_destroy(doc);
}

static void long_values_are_cut(void **state)
{
    (void)state;
    char text[3000] = "a: ";
    memset(text + 3, 'x', 2900);
    gr_doc *doc = yaml(text);
    gr_diag diag = {0};
    int64_t whole = 0;
    support_assert_invalid(gr_node_int(gr_doc_root(doc)->child, 0, 9, &whole, &diag), &diag,
                           "job.yaml:1: a: must be a whole number from 0 to 9, not "
                           "\"xxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxx...\"");
    gr_doc_destroy(doc);
}

static void unknown_keys_name_the_nearest(void **state)
{
    (void)state;
    static const char *const known[] = {"epochs", "steps", "optimizer", NULL};
    gr_diag diag = {0};
    gr_doc *doc = yaml("optimizer: 1\nsteps: 2\nepohcs: 3\n");
    support_assert_invalid(gr_node_only(gr_doc_root(doc), known, &diag), &diag,
                           "job.yaml:3: unknown key \"epohcs\"; did you mean \"epochs\"?");
    gr_doc_destroy(doc);
    doc = yaml("a:\n  steps: 1\n  colour: 3\n");
    support_assert_invalid(
        gr_node_only(gr_node_get(gr_doc_root(doc), "a"), known, &diag), &diag,
        "job.yaml:3: a: unknown key \"colour\"; known are epochs, steps or optimizer");
    support_assert_invalid(gr_node_only(gr_doc_root(doc)->child->child, known, &diag), &diag,
                           "job.yaml:2: a.steps: must be a map of keys and values, not \"1\"");
    gr_doc_destroy(doc);
    doc = yaml("epochs: 1\n");
    assert_int_equal(gr_node_only(gr_doc_root(doc), known, &diag), GR_OK);
    gr_doc_destroy(doc);
}

static void nearest_is_a_typing_mistake_away(void **state)
{
    (void)state;
    static const char *const known[] = {"learning_rate", "batch", "epochs", "lr", "--link", NULL};
    static const char *const cases[][2] = {{"learning-rate", "learning_rate"},
                                           {"LearningRate", "learning_rate"},
                                           {"learnign_rate", "learning_rate"},
                                           {"bacth", "batch"},
                                           {"batches", "batch"},
                                           {"EPOCHS", "epochs"},
                                           {"rl", "lr"},
                                           {"--lnik", "--link"},
                                           {"colour", NULL},
                                           {"", NULL},
                                           {"x", NULL},
                                           {"momentum", NULL}};
    for (size_t i = 0; i < sizeof cases / sizeof cases[0]; i++) {
        const char *nearest = gr_nearest(cases[i][0], known);
        if (cases[i][1] == NULL) {
            assert_null(nearest);
        } else {
            assert_non_null(nearest);
            assert_string_equal(nearest, cases[i][1]);
        }
    }
    char longer[1000];
    memset(longer, 'x', sizeof longer);
    longer[sizeof longer - 1] = '\0';
    assert_null(gr_nearest(longer, known));
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(yaml_becomes_a_tree),
        cmocka_unit_test(yaml_scalars_have_kinds),
        cmocka_unit_test(empty_files_are_null),
        cmocka_unit_test(aliases_repeat_values),
        cmocka_unit_test(bad_yaml_is_explained),
        cmocka_unit_test(depth_is_limited),
        cmocka_unit_test(aliases_cannot_explode),
        cmocka_unit_test(sizes_are_limited),
        cmocka_unit_test(large_maps_find_twins),
        cmocka_unit_test(json_becomes_the_same_tree),
        cmocka_unit_test(bad_json_is_explained),
        cmocka_unit_test_setup_teardown(files_are_read, support_setup_folder,
                                        support_teardown_folder),
        cmocka_unit_test(numbers_are_read),
        cmocka_unit_test(wrong_types_name_the_place),
        cmocka_unit_test(long_values_are_cut),
        cmocka_unit_test(unknown_keys_name_the_nearest),
        cmocka_unit_test(nearest_is_a_typing_mistake_away),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
