/* SPDX-License-Identifier: Apache-2.0 */
/* Writes the file of `gradus tune`; coll/select/tune_file.c describes the format and reads it. */
#include "base/fail.h"
#include "base/file.h"
#include "base/hash.h"
#include "base/number.h"
#include "cli/tune.h"

#include <gradus/version.h>
#include <inttypes.h>
#include <stdlib.h>
#include <string.h>

static void write_head(FILE *file, const gr_tuning *tuning)
{
    fprintf(file, GR_TUNING_FORMAT " %d %s\n", GR_TUNING_VERSION, gr_version());
    fputs("processor ", file);
    for (const char *c = tuning->processor; *c; c++) {
        fputc((unsigned char)*c < ' ' ? ' ' : *c, file);
    }
    fprintf(file, "\ncores %d\nranks %d\nlink %s\nrails %d\n", tuning->cores, tuning->ranks,
            gr_link_kind_name(tuning->link), tuning->rails);
}

static void write_costs(FILE *file, const gr_cost_model *model)
{
    for (const gr_config_field *field = gr_tuning_costs.fields; field->key; field++) {
        double value;
        char number[GR_NUMBER_TEXT_BYTES];
        memcpy(&value, (const char *)model + field->offset, sizeof value);
        gr_number_print(value, number);
        fprintf(file, "%s %s\n", field->key, number);
    }
}

static void write_rules(FILE *file, const gr_tuning *tuning)
{
    fputs("# rule COLLECTIVE exact|any FROM_BYTES TO_BYTES ALGORITHM SEGMENT_BYTES (0: default)\n",
          file);
    for (int exact = 1; exact >= 0; exact--) {
        for (int i = 0; i < tuning->rules[exact].count; i++) {
            const gr_select_rule *rule = &tuning->rules[exact].rules[i];
            char to[GR_NUMBER_TEXT_BYTES] = "inf";
            if (rule->to != UINT64_MAX) {
                snprintf(to, sizeof to, "%" PRIu64, rule->to);
            }
            fprintf(file, "rule %s %s %" PRIu64 " %s %s %zu\n", gr_coll_name(rule->coll),
                    exact ? "exact" : "any", rule->from, to, rule->algorithm->name,
                    rule->segment_bytes);
        }
    }
}

static void write_points(FILE *file, const gr_tuning_point *points, size_t point_count)
{
    fputs("# measured COLLECTIVE ALGORITHM SIZE_BYTES SEGMENT_BYTES TIME_US\n", file);
    for (size_t i = 0; i < point_count; i++) {
        char number[GR_NUMBER_TEXT_BYTES];
        gr_number_print((double)(int64_t)(points[i].time_us * 100 + 0.5) / 100, number);
        fprintf(file, "measured %s %s %zu %zu %s\n", gr_coll_name(points[i].algorithm->coll),
                points[i].algorithm->name, points[i].size_bytes, points[i].segment_bytes, number);
    }
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
    write_head(file, tuning);
    write_costs(file, &tuning->model);
    write_rules(file, tuning);
    write_points(file, points, point_count);
    if (fflush(file) == 0) {
        fprintf(file, "checksum %016" PRIx64 "\n", gr_hash64(text, size, 0));
    }
    gr_status status = fclose(file) != 0
                           ? gr_fail(diag, GR_E_NO_MEMORY, "no memory for the text of %s", path)
                           : gr_file_replace(path, text, size, diag);
    free(text);
    return status;
}
