/* SPDX-License-Identifier: Apache-2.0 */

/* Reads the file of `gradus tune`: text, one "key value" a line. The first line is the format and
 * its version, the last one a checksum of everything before it:
 *
 *     gradus-tune 4 0.1.0
 *     processor Intel(R) Xeon(R) CPU @ 2.20GHz
 *     cores 2
 *     inside_latency_us 1.25
 *     rule allreduce exact 0 65536 tree 0
 *     measured allreduce tree 64 0 12.35
 *     checksum 0123456789abcdef
 *
 * Lines of `measured`, empty lines and lines that begin with "#" are for people. */
#include "base/config.h"
#include "base/fail.h"
#include "base/file.h"
#include "base/hash.h"
#include "base/number.h"
#include "base/text.h"
#include "coll/select/tune.h"

#include <gradus/version.h>
#include <inttypes.h>
#include <stddef.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

enum { FILE_BYTES_MAX = 8 << 20, ARENA_BYTES_MAX = 64 << 10, WHERE_BYTES = 256 };

static const char checksum_key[] = "\nchecksum ";

/* ---- Here ------------------------------------------------------------------------------------ */
static void read_processor(char *text, size_t size_bytes)
{
    char line[256];
    snprintf(text, size_bytes, "unknown");
    FILE *file = fopen("/proc/cpuinfo", "re");
    while (file && fgets(line, sizeof line, file)) {
        char *colon = strchr(line, ':');
        if (colon && (strncmp(line, "model name", 10) == 0 || strncmp(line, "CPU part", 8) == 0)) {
            colon += 1 + strspn(colon + 1, " \t");
            colon[strcspn(colon, "\n")] = '\0';
            snprintf(text, size_bytes, "%s", colon);
            break;
        }
    }
    if (file) {
        fclose(file);
    }
}

void gr_tuning_init(gr_tuning *tuning, int ranks, gr_link_kind link, int rails)
{
    memset(tuning, 0, sizeof *tuning);
    read_processor(tuning->processor, sizeof tuning->processor);
    long cores = sysconf(_SC_NPROCESSORS_ONLN);
    tuning->cores = cores > 0 ? (int)cores : 1;
    tuning->ranks = ranks;
    tuning->link = link;
    tuning->rails = rails;
    gr_cost_model_defaults(&tuning->model, link);
    tuning->model.cores = tuning->cores;
}

/* ---- Tables ---------------------------------------------------------------------------------- */
typedef struct file_head {
    const char *processor;
    int64_t cores, ranks, rails;
    int link;
} file_head;

static const char *const link_names[] = {"shm", "tcp", NULL}; /* in the order of gr_link_kind */

#define AT(member) .offset = offsetof(file_head, member)
static const gr_config_field head_fields[] = {
    {.key = "processor", .type = GR_CONFIG_TEXT, AT(processor), .help = "of the host of rank 0"},
    {.key = "cores", .type = GR_CONFIG_INT, AT(cores), .min = 1, .max = 1e6, .help = "of it"},
    {.key = "ranks", .type = GR_CONFIG_INT, AT(ranks), .min = 1, .max = 1e6, .help = "world size"},
    {.key = "link",
     .type = GR_CONFIG_CHOICE,
     AT(link),
     .choices = link_names,
     .help = "how bytes moved between ranks"},
    {.key = "rails",
     .type = GR_CONFIG_INT,
     AT(rails),
     .min = 1,
     .max = GR_LINK_RAILS_MAX,
     .help = "tcp connections of a pair of ranks"},
    {0},
};
#undef AT

#define COST(name, member)                                                                         \
    {                                                                                              \
        .key = name, .type = GR_CONFIG_DOUBLE, .offset = offsetof(gr_cost_model, member),          \
        .min = 0, .max = 1e12, .help = "see cost_model.h"                                          \
    }
#define LINK_COSTS(name, at)                                                                       \
    COST(name "latency_us", at.latency_us), COST(name "send_us", at.send_us),                      \
        COST(name "recv_us", at.recv_us), COST(name "send_byte_us", at.send_byte_us),              \
        COST(name "recv_byte_us", at.recv_byte_us), COST(name "view_byte_us", at.view_byte_us),    \
        COST(name "wire_byte_us", at.wire_byte_us), COST(name "host_byte_us", at.host_byte_us),    \
        COST(name "next_share", at.next_share), COST(name "together_share", at.together_share),    \
        COST(name "peer_share", at.peer_share)
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
    COST("add_bool_byte_us", add_byte_us[GR_BOOL]),
    COST("add_u16_byte_us", add_byte_us[GR_U16]),
    COST("add_u32_byte_us", add_byte_us[GR_U32]),
    COST("add_u64_byte_us", add_byte_us[GR_U64]),
    COST("add_complex64_byte_us", add_byte_us[GR_COMPLEX64]),
    COST("add_complex128_byte_us", add_byte_us[GR_COMPLEX128]),
    {0},
};
const gr_config_table gr_tuning_costs = {.name = "tune model",
                                         .title = "Costs",
                                         .fields = model_fields,
                                         .struct_bytes = sizeof(gr_cost_model)};

/* ---- Lines ----------------------------------------------------------------------------------- */
typedef struct reader {
    const char *path;
    int line;
    file_head head;
    bool seen[sizeof head_fields / sizeof head_fields[0]];
    gr_tuning *tuning;
    gr_arena arena;
    gr_diag *diag;
} reader;

static gr_status fail_line(const reader *r, const char *why)
{
    return gr_fail(r->diag, GR_E_INVALID, "%s:%d: %s; run `gradus tune` again", r->path, r->line,
                   why);
}

/* Cuts `text` at its spaces; returns the number of words, max + 1 if there are more than `max`. */
static int split(char *text, char *words[], int max)
{
    int count = 0;
    char *rest = NULL;
    for (char *word = strtok_r(text, " ", &rest); word; word = strtok_r(NULL, " ", &rest)) {
        if (count == max) {
            return max + 1;
        }
        words[count++] = word;
    }
    return count;
}

static bool read_size(const char *text, uint64_t *value_out)
{
    int64_t value = 0;
    if (gr_number_int(text, &value) != GR_NUMBER_OK || value < 0) {
        return false;
    }
    *value_out = (uint64_t)value;
    return true;
}

/* "COLLECTIVE exact|any FROM_BYTES TO_BYTES|inf ALGORITHM SEGMENT_BYTES" */
static gr_status read_rule(reader *r, char *text)
{
    enum { WORDS = 6 };
    char *word[WORDS];
    if (split(text, word, WORDS) != WORDS) {
        return fail_line(r, "a rule has six words");
    }
    bool exact = strcmp(word[1], "exact") == 0;
    uint64_t segment_bytes = 0;
    gr_select_rule rule = {.to = UINT64_MAX};
    bool fine = (exact || strcmp(word[1], "any") == 0) && read_size(word[2], &rule.from) &&
                (strcmp(word[3], "inf") == 0 || read_size(word[3], &rule.to)) &&
                read_size(word[5], &segment_bytes) && segment_bytes <= GR_FRAME_PAYLOAD_MAX;
    for (int coll = 0; fine && coll < GR_COLL_COUNT && !rule.algorithm; coll++) {
        if (strcmp(gr_coll_name((gr_coll)coll), word[0]) == 0) {
            rule.coll = (gr_coll)coll;
            rule.algorithm = gr_algorithm_find(rule.coll, word[4]);
        }
    }
    rule.segment_bytes = (size_t)segment_bytes;
    gr_select_rules *rules = &r->tuning->rules[exact];
    if (!fine || !rule.algorithm || rule.from >= rule.to || (exact && !rule.algorithm->canonical) ||
        rules->count == GR_SELECT_RULES_MAX) {
        return fail_line(r, "this version of Gradus has no such rule");
    }
    rules->rules[rules->count++] = rule;
    return GR_OK;
}

static gr_status read_line(reader *r, char *line)
{
    char *value = strchr(line, ' ');
    if (line[0] == '\0' || line[0] == '#') {
        return GR_OK;
    }
    if (!value) {
        return fail_line(r, "a line is a key, a space and a value");
    }
    *value++ = '\0';
    if (strcmp(line, "measured") == 0) {
        return GR_OK;
    }
    if (strcmp(line, "rule") == 0) {
        return read_rule(r, value);
    }
    char where[WHERE_BYTES];
    snprintf(where, sizeof where, "%.120s:%d: %.60s", r->path, r->line, line);
    for (size_t i = 0; head_fields[i].key; i++) {
        if (strcmp(head_fields[i].key, line) == 0) {
            r->seen[i] = true;
            return gr_config_set(&head_fields[i], &r->head, value, where, &r->arena, r->diag);
        }
    }
    for (const gr_config_field *field = model_fields; field->key; field++) {
        if (strcmp(field->key, line) == 0) {
            return gr_config_set(field, &r->tuning->model, value, where, &r->arena, r->diag);
        }
    }
    return fail_line(r, "this version of Gradus has no such key");
}

/* `text` ends with '\n', is changed, and holds no checksum any more. */
static gr_status read_lines(reader *r, char *text)
{
    gr_status status = GR_OK;
    char *next = NULL;
    gr_cost_model_defaults(&r->tuning->model, GR_LINK_SHM);
    memset(r->tuning->rules, 0, sizeof r->tuning->rules);
    for (char *line = text; status == GR_OK && *line; line = next) {
        char *end = line + strcspn(line, "\n");
        next = *end ? end + 1 : end;
        *end = '\0';
        r->line++;
        if (r->line > 1) { /* the first one is the header */
            status = read_line(r, line);
        }
    }
    for (size_t i = 0; status == GR_OK && head_fields[i].key; i++) {
        if (!r->seen[i]) {
            return gr_fail(r->diag, GR_E_INVALID,
                           "%s: the key \"%s\" is missing; run `gradus tune` again", r->path,
                           head_fields[i].key);
        }
    }
    return status;
}

/* ---- The file -------------------------------------------------------------------------------- */
static gr_status check_header(const char *path, const char *text, gr_diag *diag)
{
    int version = 0;
    char gradus[32] = "?";
    if (strncmp(text, GR_TUNING_FORMAT " ", sizeof GR_TUNING_FORMAT) != 0) {
        return gr_fail(
            diag, GR_E_INVALID,
            "%s:1: this is not a file that this version of `gradus tune` wrote (its first "
            "line must begin with \"" GR_TUNING_FORMAT "\"); run `gradus tune` again",
            path);
    }
    if (sscanf(text + sizeof GR_TUNING_FORMAT, "%d %31s", &version, gradus) != 2 ||
        version != GR_TUNING_VERSION || strcmp(gradus, gr_version()) != 0) {
        return gr_fail(diag, GR_E_INVALID,
                       "%s:1: was written by version %s of Gradus, this is %s; run `gradus tune` "
                       "again",
                       path, gradus, gr_version());
    }
    return GR_OK;
}

/* Checks the checksum, and cuts it off. */
static gr_status check_sum(const char *path, char *text, gr_diag *diag)
{
    char *at = NULL;
    for (char *next = strstr(text, checksum_key); next; next = strstr(next + 1, checksum_key)) {
        at = next + 1;
    }
    char *end = NULL;
    uint64_t sum = at ? strtoull(at + strlen(checksum_key) - 1, &end, 16) : 0;
    if (!at || strcmp(end, "\n") != 0 || sum != gr_hash64(text, (size_t)(at - text), 0)) {
        return gr_fail(diag, GR_E_INVALID,
                       "%s is damaged, cut off, or was changed after `gradus tune` wrote it (its "
                       "checksum is %s); run `gradus tune` again, or write rules of your own into "
                       "GRADUS_ALGORITHM",
                       path, at ? "another one" : "missing");
    }
    *at = '\0';
    return GR_OK;
}

gr_status gr_tuning_read(const char *path, gr_tuning *tuning_out, gr_diag *diag)
{
    char *text = NULL;
    size_t size = 0;
    reader r = {.path = path, .tuning = tuning_out, .diag = diag};
    gr_arena_init(&r.arena, ARENA_BYTES_MAX);
    gr_status status = gr_file_read(path, FILE_BYTES_MAX, &text, &size, diag);
    if (status == GR_OK && memchr(text, '\0', size)) {
        status = gr_fail(diag, GR_E_INVALID, "%s:1: this is not a text", path);
    }
    if (status == GR_OK) {
        status = check_header(path, text, diag);
    }
    if (status == GR_OK) {
        status = check_sum(path, text, diag);
    }
    if (status == GR_OK) {
        status = read_lines(&r, text);
    }
    if (status == GR_OK) {
        snprintf(tuning_out->processor, sizeof tuning_out->processor, "%s", r.head.processor);
        tuning_out->cores = (int)r.head.cores;
        tuning_out->ranks = (int)r.head.ranks;
        tuning_out->link = (gr_link_kind)r.head.link;
        tuning_out->rails = (int)r.head.rails;
    }
    free(text);
    gr_arena_fini(&r.arena);
    return status;
}

gr_status gr_tuning_check(const gr_tuning *tuning, const char *path, int ranks, gr_link_kind link,
                          int rails, gr_diag *diag)
{
    gr_tuning here;
    gr_tuning_init(&here, ranks, link, rails);
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
    if (tuning->rails != rails) {
        return gr_fail(diag, GR_E_INVALID,
                       "%s was measured with %d tcp connections between two ranks, here are %d "
                       "(GRADUS_RAILS); run `gradus tune` with as many, or set GRADUS_TUNE=auto",
                       path, tuning->rails, rails);
    }
    return GR_OK;
}
