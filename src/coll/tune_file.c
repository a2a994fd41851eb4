/* SPDX-License-Identifier: Apache-2.0 */
/* The file of `gradus tune`: JSON that a person can read, with a checksum as its last member. */
#include "base/arena.h"
#include "base/config.h"
#include "base/fail.h"
#include "base/file.h"
#include "base/hash.h"
#include "base/number.h"
#include "coll/tune.h"

#include <gradus/version.h>
#include <inttypes.h>
#include <stddef.h>
#include <stdlib.h>
#include <string.h>

enum { FILE_BYTES_MAX = 8 << 20, ARENA_BYTES_MAX = 16 << 20, VERSION = 1 };

static const char format_name[] = "gradus tune";
static const char checksum_key[] = ",\n  \"checksum\": \"";

/* ---- Tables ---------------------------------------------------------------------------------- */
typedef struct file_head {
    const char *format;
    int64_t version;
    const char *gradus, *processor;
    int64_t cores, ranks, streams;
    int link;
    const gr_node *model, *rules, *measured;
    const char *checksum;
} file_head;

static const char *const link_names[] = {"shm", "tcp", NULL}; /* in the order of gr_link_kind */

#define AT(member) .offset = offsetof(file_head, member)
static const gr_config_field head_fields[] = {
    {.key = "format", .type = GR_CONFIG_TEXT, AT(format), .help = "what this file is"},
    {.key = "version", .type = GR_CONFIG_INT, AT(version), .help = "of the format"},
    {.key = "gradus", .type = GR_CONFIG_TEXT, AT(gradus), .help = "version that wrote it"},
    {.key = "processor", .type = GR_CONFIG_TEXT, AT(processor), .help = "of the host of rank 0"},
    {.key = "cores", .type = GR_CONFIG_INT, AT(cores), .min = 1, .max = 1e6, .help = "of it"},
    {.key = "ranks", .type = GR_CONFIG_INT, AT(ranks), .min = 1, .max = 1e6, .help = "world size"},
    {.key = "link",
     .type = GR_CONFIG_CHOICE,
     AT(link),
     .choices = link_names,
     .help = "how bytes moved between ranks"},
    {.key = "streams",
     .type = GR_CONFIG_INT,
     AT(streams),
     .default_text = "1",
     .min = 1,
     .max = GR_LINK_STREAMS_MAX,
     .help = "tcp connections of a pair of ranks"},
    {.key = "model", .type = GR_CONFIG_NODE, AT(model), .help = "costs"},
    {.key = "rules", .type = GR_CONFIG_NODE, AT(rules), .help = "the fastest by size"},
    {.key = "measured", .type = GR_CONFIG_NODE, AT(measured), .help = "all that was measured"},
    {.key = "checksum", .type = GR_CONFIG_TEXT, AT(checksum), .help = "of all before it"},
    {0},
};
#undef AT
static const gr_config_table head_table = {.name = "tune file",
                                           .title = "The file of gradus tune",
                                           .fields = head_fields,
                                           .struct_bytes = sizeof(file_head)};

#define COST(name, member)                                                                         \
    {                                                                                              \
        .key = name, .type = GR_CONFIG_DOUBLE, .offset = offsetof(gr_model, member), .min = 0,     \
        .max = 1e12, .help = "see model.h"                                                         \
    }
#define LINK_COSTS(name, at)                                                                       \
    COST(name "latency_us", at.latency_us), COST(name "send_us", at.send_us),                      \
        COST(name "recv_us", at.recv_us), COST(name "send_byte_us", at.send_byte_us),              \
        COST(name "recv_byte_us", at.recv_byte_us), COST(name "view_byte_us", at.view_byte_us),    \
        COST(name "wire_byte_us", at.wire_byte_us), COST(name "host_byte_us", at.host_byte_us),    \
        COST(name "next_share", at.next_share), COST(name "peer_share", at.peer_share)
static const gr_config_field model_fields[] = {
    LINK_COSTS("inside_", link[GR_MODEL_INSIDE]),
    LINK_COSTS("between_", link[GR_MODEL_BETWEEN]),
    COST("start_us", start_us),
    COST("wait_us", wait_us),
    COST("turn_us", turn_us),
    COST("copy_byte_us", copy_byte_us),
    COST("far_byte_us", far_byte_us),
    COST("memory_byte_us", memory_byte_us),
    COST("cache_bytes", cache_bytes),
    COST("cores", cores),
    COST("add_f32_byte_us", add_byte_us[GR_F32]),
    COST("add_f64_byte_us", add_byte_us[GR_F64]),
    COST("add_f16_byte_us", add_byte_us[GR_F16]),
    COST("add_bf16_byte_us", add_byte_us[GR_BF16]),
    COST("add_i32_byte_us", add_byte_us[GR_I32]),
    COST("add_i64_byte_us", add_byte_us[GR_I64]),
    COST("add_i8_byte_us", add_byte_us[GR_I8]),
    COST("add_u8_byte_us", add_byte_us[GR_U8]),
    COST("add_i16_byte_us", add_byte_us[GR_I16]),
    {0},
};
static const gr_config_table model_table = {.name = "tune model",
                                            .title = "Costs",
                                            .fields = model_fields,
                                            .struct_bytes = sizeof(gr_model)};

typedef struct file_rule {
    const char *collective, *algorithm;
    bool exact;
    int64_t from, to; /* 0: no end */
    int64_t segment;
} file_rule;

#define AT(member) .offset = offsetof(file_rule, member)
static const gr_config_field rule_fields[] = {
    {.key = "collective", .type = GR_CONFIG_TEXT, AT(collective), .help = "for which operation"},
    {.key = "exact", .type = GR_CONFIG_BOOL, AT(exact), .help = "for sums in tree order"},
    {.key = "from_bytes", .type = GR_CONFIG_BYTES, AT(from), .max = 0x1p62, .help = "first size"},
    {.key = "to_bytes", .type = GR_CONFIG_BYTES, AT(to), .max = 0x1p62, .help = "0: no end"},
    {.key = "algorithm", .type = GR_CONFIG_TEXT, AT(algorithm), .help = "the fastest"},
    {.key = "segment_bytes",
     .type = GR_CONFIG_BYTES,
     AT(segment),
     .max = GR_FRAME_PAYLOAD_MAX,
     .help = "0: the default"},
    {0},
};
#undef AT
static const gr_config_table rule_table = {.name = "tune rule",
                                           .title = "Rules",
                                           .fields = rule_fields,
                                           .struct_bytes = sizeof(file_rule)};

/* ---- Writing --------------------------------------------------------------------------------- */
static void write_text(FILE *file, const char *text)
{
    for (; *text; text++) {
        if (*text == '"' || *text == '\\') {
            fputc('\\', file);
        }
        fputc((unsigned char)*text < ' ' ? ' ' : *text, file);
    }
}

static void write_model(FILE *file, const gr_model *model)
{
    fputs("  \"model\": {", file);
    for (const gr_config_field *field = model_fields; field->key; field++) {
        double value;
        char number[GR_NUMBER_TEXT_BYTES];
        memcpy(&value, (const char *)model + field->offset, sizeof value);
        gr_number_print(value, number);
        fprintf(file, "%s\n    \"%s\": %s", field == model_fields ? "" : ",", field->key, number);
    }
    fputs("\n  },\n", file);
}

static void write_rules(FILE *file, const gr_tuning *tuning)
{
    const char *between = "";
    fputs("  \"rules\": [", file);
    for (int exact = 1; exact >= 0; exact--) {
        for (int i = 0; i < tuning->rules[exact].count; i++, between = ",") {
            const gr_select_rule *rule = &tuning->rules[exact].rules[i];
            fprintf(file,
                    "%s\n    {\"collective\": \"%s\", \"exact\": %s, \"from_bytes\": %" PRIu64
                    ", \"to_bytes\": %" PRIu64 ", \"algorithm\": \"%s\", \"segment_bytes\": %zu}",
                    between, gr_coll_name(rule->coll), exact ? "true" : "false", rule->from,
                    rule->to == UINT64_MAX ? 0 : rule->to, rule->algorithm->name,
                    rule->segment_bytes);
        }
    }
    fputs("\n  ],\n", file);
}

static void write_body(FILE *file, const gr_tuning *tuning, const gr_tuning_point *points,
                       size_t point_count)
{
    fprintf(file, "{\n  \"format\": \"%s\",\n  \"version\": %d,\n  \"gradus\": \"%s\",\n",
            format_name, VERSION, gr_version());
    fputs("  \"processor\": \"", file);
    write_text(file, tuning->processor);
    fprintf(file, "\",\n  \"cores\": %d,\n  \"ranks\": %d,\n  \"link\": \"%s\",\n", tuning->cores,
            tuning->ranks, link_names[tuning->link]);
    fprintf(file, "  \"streams\": %d,\n", tuning->streams);
    write_model(file, &tuning->model);
    write_rules(file, tuning);
    fputs("  \"measured\": [", file);
    for (size_t i = 0; i < point_count; i++) {
        char number[GR_NUMBER_TEXT_BYTES];
        gr_number_print((double)(int64_t)(points[i].time_us * 100 + 0.5) / 100, number);
        fprintf(file,
                "%s\n    {\"collective\": \"%s\", \"algorithm\": \"%s\", \"size_bytes\": %zu, "
                "\"segment_bytes\": %zu, \"time_us\": %s}",
                i > 0 ? "," : "", gr_coll_name(points[i].algorithm->coll),
                points[i].algorithm->name, points[i].size_bytes, points[i].segment_bytes, number);
    }
    fputs("\n  ]", file);
}

gr_status gr_tuning_write(const char *path, const gr_tuning *tuning, const gr_tuning_point *points,
                          size_t point_count, gr_diag *diag)
{
    char *text = NULL;
    size_t size = 0;
    FILE *file = open_memstream(&text, &size);
    if (!file) {
        return gr_fail(diag, GR_E_NO_MEMORY, "no memory for the text of %s", path);
    }
    write_body(file, tuning, points, point_count);
    gr_status status = GR_OK;
    if (fflush(file) == 0) {
        fprintf(file, "%s%016" PRIx64 "\"\n}\n", checksum_key, gr_hash64(text, size, 0));
    }
    if (fclose(file) != 0) {
        status = gr_fail(diag, GR_E_NO_MEMORY, "no memory for the text of %s", path);
    } else {
        status = gr_file_replace(path, text, size, diag);
    }
    free(text);
    return status;
}

/* ---- Reading --------------------------------------------------------------------------------- */
/* The last place where the key of the checksum stands, NULL if there is none. */
static const char *find_checksum(const char *text)
{
    const char *found = NULL;
    for (const char *at = strstr(text, checksum_key); at; at = strstr(at + 1, checksum_key)) {
        found = at;
    }
    return found;
}

static gr_status check_sum(const char *path, const char *text, gr_diag *diag)
{
    const char *at = find_checksum(text);
    char *end = NULL;
    uint64_t said = at ? strtoull(at + strlen(checksum_key), &end, 16) : 0;
    if (!at || said != gr_hash64(text, (size_t)(at - text), 0)) {
        return gr_fail(diag, GR_E_INVALID,
                       "%s is damaged, cut off, or was changed after `gradus tune` wrote it (its "
                       "checksum is %s); run `gradus tune` again, or write rules of your own into "
                       "GRADUS_ALGORITHM",
                       path, at ? "another one" : "missing");
    }
    return GR_OK;
}

static gr_status read_rule(gr_tuning *tuning, const gr_node *node, gr_arena *arena, gr_diag *diag)
{
    file_rule from;
    gr_status status = gr_config_defaults(&rule_table, &from, arena, diag);
    if (status == GR_OK) {
        status = gr_config_from_node(&rule_table, &from, node, arena, diag);
    }
    if (status != GR_OK) {
        return status;
    }
    gr_select_rule rule = {.from = (uint64_t)from.from,
                           .to = from.to > 0 ? (uint64_t)from.to : UINT64_MAX,
                           .segment_bytes = (size_t)from.segment};
    for (int coll = 0; coll < GR_COLL_COUNT && !rule.algorithm; coll++) {
        if (from.collective && strcmp(gr_coll_name((gr_coll)coll), from.collective) == 0) {
            rule.coll = (gr_coll)coll;
            rule.algorithm = gr_algorithm_find(rule.coll, from.algorithm ? from.algorithm : "");
        }
    }
    gr_select_rules *rules = &tuning->rules[from.exact];
    if (!rule.algorithm || rule.from >= rule.to || (from.exact && !rule.algorithm->canonical) ||
        rules->count == GR_SELECT_RULES_MAX) {
        return gr_node_fail(node, diag, GR_E_INVALID,
                            "this version of Gradus has no such rule; run `gradus tune` again");
    }
    rules->rules[rules->count++] = rule;
    return GR_OK;
}

static gr_status read_parts(const char *path, const gr_node *root, gr_tuning *tuning,
                            gr_arena *arena, gr_diag *diag)
{
    file_head head;
    gr_status status = gr_config_defaults(&head_table, &head, arena, diag);
    if (status == GR_OK) {
        status = gr_config_from_node(&head_table, &head, root, arena, diag);
    }
    if (status != GR_OK) {
        return status;
    }
    if (!head.format || strcmp(head.format, format_name) != 0 || head.version != VERSION ||
        !head.gradus || strcmp(head.gradus, gr_version()) != 0) {
        return gr_fail(diag, GR_E_INVALID,
                       "%s was written by version %s of Gradus, this is %s; run `gradus tune` "
                       "again",
                       path, head.gradus ? head.gradus : "?", gr_version());
    }
    gr_tuning_init(tuning, (int)head.ranks, (gr_link_kind)head.link, (int)head.streams);
    snprintf(tuning->processor, sizeof tuning->processor, "%s",
             head.processor ? head.processor : "");
    tuning->cores = (int)head.cores;
    status = gr_config_from_node(&model_table, &tuning->model, head.model, arena, diag);
    for (const gr_node *rule = head.rules ? head.rules->child : NULL; rule && status == GR_OK;
         rule = rule->next) {
        status = read_rule(tuning, rule, arena, diag);
    }
    return status;
}

gr_status gr_tuning_read(const char *path, gr_tuning *tuning_out, gr_diag *diag)
{
    char *text = NULL;
    size_t size = 0;
    gr_doc *doc = NULL;
    gr_arena arena;
    gr_arena_init(&arena, ARENA_BYTES_MAX);
    gr_status status = gr_file_read(path, FILE_BYTES_MAX, &text, &size, diag);
    if (status == GR_OK) {
        status = check_sum(path, text, diag);
    }
    if (status == GR_OK) {
        status = gr_doc_parse_json(path, text, size, &doc, diag);
    }
    if (status == GR_OK) {
        status = read_parts(path, gr_doc_root(doc), tuning_out, &arena, diag);
    }
    gr_doc_destroy(doc);
    free(text);
    gr_arena_fini(&arena);
    return status;
}

gr_status gr_tuning_check(const gr_tuning *tuning, const char *path, int ranks, gr_link_kind link,
                          int streams, gr_diag *diag)
{
    gr_tuning here;
    gr_tuning_init(&here, ranks, link, streams);
    if (strcmp(tuning->processor, here.processor) != 0 || tuning->cores != here.cores) {
        return gr_fail(diag, GR_E_INVALID,
                       "%s was measured on %d cores of \"%s\", this host has %d of \"%s\"; run "
                       "`gradus tune` here, or set GRADUS_TUNE=auto",
                       path, tuning->cores, tuning->processor, here.cores, here.processor);
    }
    if (tuning->ranks != ranks || tuning->link != link) {
        return gr_fail(diag, GR_E_INVALID,
                       "%s was measured with %d ranks over %s, these are %d over %s; run `gradus "
                       "tune -np %d --link %s`, or set GRADUS_TUNE=auto",
                       path, tuning->ranks, gr_link_kind_name(tuning->link), ranks,
                       gr_link_kind_name(link), ranks, gr_link_kind_name(link));
    }
    if (tuning->streams != streams) {
        return gr_fail(diag, GR_E_INVALID,
                       "%s was measured with %d tcp connections between two ranks, here are %d "
                       "(GRADUS_STREAMS); run `gradus tune` with as many, or set GRADUS_TUNE=auto",
                       path, tuning->streams, streams);
    }
    return GR_OK;
}
