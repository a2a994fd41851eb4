/* SPDX-License-Identifier: Apache-2.0 */
#include "base/config_text.h"

#include <stdarg.h>
#include <stdio.h>
#include <string.h>
#include <strings.h>

enum {
    WIDTH = 100,
    HELP_COLUMN = 32, /* where descriptions begin */
    TEXT_BYTES = 512
};

/* A text that grows to its end and is cut there: tables are ours, and short. */
typedef struct line_buffer {
    char text[TEXT_BYTES];
} line_buffer;

static void add(line_buffer *buffer, const char *format, ...) GR_PRINTF(2, 3);

static void add(line_buffer *buffer, const char *format, ...)
{
    size_t used = strlen(buffer->text);
    va_list arguments;
    va_start(arguments, format);
    vsnprintf(buffer->text + used, sizeof buffer->text - used, format, arguments);
    va_end(arguments);
}

/* ---- What both forms say --------------------------------------------------------------------- */

static void add_choices(line_buffer *buffer, const gr_config_field *field, const char *between)
{
    const char *word;
    for (int i = 0; (word = gr_config_choice(field, i)) != NULL; i++) {
        add(buffer, "%s%s", i > 0 ? between : "", word);
    }
}

/* "N", "SIZE", "auto|shm|tcp": the name of the value in --help. */
static void add_value_name(line_buffer *buffer, const gr_config_field *field)
{
    if (field->type == GR_CONFIG_CHOICE && field->value_name == NULL) {
        add_choices(buffer, field, "|");
    } else {
        add(buffer, "%s",
            field->value_name != NULL ? field->value_name : gr_config_words_of(field)->name);
    }
}

/* "1 to 4096", "at least 0" or nothing. */
static void add_range(line_buffer *buffer, const gr_config_field *field)
{
    char low[GR_CONFIG_VALUE_BYTES];
    char high[GR_CONFIG_VALUE_BYTES];
    const double *min = gr_config_min(field);
    const double *max = gr_config_max(field);
    if (min != NULL) {
        gr_config_value_text(field, *min, low);
    }
    if (max != NULL) {
        gr_config_value_text(field, *max, high);
    }
    if (min != NULL && max != NULL) {
        add(buffer, "%s to %s", low, high);
    } else if (min != NULL) {
        add(buffer, "at least %s", low);
    } else if (max != NULL) {
        add(buffer, "at most %s", high);
    }
}

/* The unit of plain numbers; sizes and times name theirs themselves. */
static void add_unit(line_buffer *buffer, const gr_config_field *field)
{
    if (field->unit != NULL && (field->type == GR_CONFIG_INT || field->type == GR_CONFIG_DOUBLE)) {
        add(buffer, " %s", field->unit);
    }
}

static bool is_on_by_default(const gr_config_field *field)
{
    return field->default_text != NULL && strchr("tTyY1oO", field->default_text[0]) != NULL &&
           strcasecmp(field->default_text, "off") != 0;
}

/* ---- --help ---------------------------------------------------------------------------------- */

/* Characters of UTF-8, not bytes, make columns. */
static int columns(const char *text, size_t size_bytes)
{
    int count = 0;
    for (size_t i = 0; i < size_bytes; i++) {
        count += ((unsigned char)text[i] & 0xC0u) != 0x80u;
    }
    return count;
}

/* The text word by word from `column` on, wrapped to WIDTH. */
static void print_wrapped(FILE *file, const char *text, int column)
{
    int at = column;
    while (*text != '\0') {
        size_t size_bytes = strcspn(text, " ");
        int width = columns(text, size_bytes);
        if (at > column && at + 1 + width > WIDTH) {
            fprintf(file, "\n%*s", column, "");
            at = column;
        } else if (at > column) {
            fputc(' ', file);
            at++;
        }
        fwrite(text, 1, size_bytes, file);
        at += width;
        text += size_bytes;
        text += strspn(text, " ");
    }
    fputc('\n', file);
}

static void print_entry(FILE *file, const char *left, const char *text)
{
    int width = columns(left, strlen(left));
    fputs(left, file);
    if (width + 2 > HELP_COLUMN) {
        fprintf(file, "\n%*s", HELP_COLUMN, "");
    } else {
        fprintf(file, "%*s", HELP_COLUMN - width, "");
    }
    print_wrapped(file, text, HELP_COLUMN);
}

static void describe_left(line_buffer *left, const gr_config_field *field)
{
    if (field->short_flag != '\0') {
        add(left, "  -%c", field->short_flag);
    } else {
        add(left, "    ");
    }
    if (field->flag != NULL) {
        const char *between = field->short_flag != '\0' ? ", " : "  ";
        if (field->type == GR_CONFIG_BOOL && is_on_by_default(field)) {
            add(left, "%s--[no-]%s", between, field->flag + strspn(field->flag, "-"));
        } else {
            add(left, "%s%s", between, field->flag);
        }
    }
    if (field->type != GR_CONFIG_BOOL) {
        add(left, " ");
        add_value_name(left, field);
    }
}

/* "; " between the parts of the remarks. */
static void begin_part(line_buffer *text, bool *first)
{
    add(text, "%s", *first ? " [" : "; ");
    *first = false;
}

static void describe_right(line_buffer *text, const gr_config_field *field)
{
    line_buffer range = {{0}};
    bool first = true;
    add(text, "%s", field->help != NULL ? field->help : "");
    add_range(&range, field);
    if (field->type == GR_CONFIG_CHOICE && field->value_name != NULL) {
        begin_part(text, &first);
        add_choices(text, field, ", ");
    } else if (range.text[0] != '\0') {
        begin_part(text, &first);
        add(text, "%s", range.text);
    }
    if (field->default_text != NULL && (field->type != GR_CONFIG_BOOL || is_on_by_default(field))) {
        begin_part(text, &first);
        add(text, "default %s", field->default_text);
        add_unit(text, field);
    }
    if (field->env != NULL) {
        begin_part(text, &first);
        add(text, "%s", field->env);
    }
    add(text, "%s", first ? "" : "]");
}

void gr_config_print_help(const gr_config_table *table, FILE *file)
{
    bool has_h = false;
    bool has_help = false;
    for (const gr_config_field *field = NULL; (field = gr_config_next(table, field)) != NULL;) {
        if (field->flag == NULL && field->short_flag == '\0') {
            continue;
        }
        has_h = has_h || field->short_flag == 'h';
        has_help = has_help || (field->flag != NULL && strcmp(field->flag, "--help") == 0);
        line_buffer left = {{0}};
        line_buffer text = {{0}};
        describe_left(&left, field);
        describe_right(&text, field);
        print_entry(file, left.text, text.text);
    }
    if (!has_help) {
        print_entry(file, has_h ? "      --help" : "  -h, --help", "show this help and end");
    }
}

/* ---- The reference --------------------------------------------------------------------------- */

/* A cell: "|" would end it. */
static void print_text(FILE *file, const char *text)
{
    for (; *text != '\0'; text++) {
        if (*text == '|') {
            fputc('\\', file);
        }
        fputc(*text == '\n' ? ' ' : *text, file);
    }
}

static void print_code(FILE *file, const char *text)
{
    if (text != NULL && text[0] != '\0') {
        fputc('`', file);
        print_text(file, text);
        fputc('`', file);
    }
    fputs(" | ", file);
}

static void describe_values(line_buffer *text, const gr_config_field *field)
{
    if (field->type == GR_CONFIG_CHOICE) {
        add_choices(text, field, ", ");
        return;
    }
    line_buffer range = {{0}};
    add(text, "%s", gr_config_words_of(field)->values);
    add_range(&range, field);
    add(text, "%s%s", range.text[0] != '\0' ? ", " : "", range.text);
    add_unit(text, field);
}

void gr_config_print_markdown(const gr_config_table *table, FILE *file)
{
    fprintf(file, "## %s\n\n", table->name);
    if (table->title != NULL) {
        fprintf(file, "%s\n\n", table->title);
    }
    fputs("| key | flag | environment | default | values | meaning |\n"
          "| --- | --- | --- | --- | --- | --- |\n",
          file);
    for (const gr_config_field *field = NULL; (field = gr_config_next(table, field)) != NULL;) {
        line_buffer flags = {{0}};
        line_buffer values = {{0}};
        if (field->short_flag != '\0') {
            add(&flags, "-%c%s", field->short_flag, field->flag != NULL ? ", " : "");
        }
        add(&flags, "%s", field->flag != NULL ? field->flag : "");
        describe_values(&values, field);
        fputs("| ", file);
        print_code(file, field->key);
        print_code(file, flags.text);
        print_code(file, field->env);
        print_code(file, field->default_text);
        print_text(file, values.text);
        fputs(" | ", file);
        print_text(file, field->help != NULL ? field->help : "");
        fputs(" |\n", file);
    }
    fputc('\n', file);
}
