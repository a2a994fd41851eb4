/* SPDX-License-Identifier: Apache-2.0 */
#include "group/slurm.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* ---- Ranges: what stands in brackets, "01-04,7" ---------------------------------------------- */

/* Reads "01-04" or "7" at `text`: the first number, how many numbers there are, the digits of
 * each. NULL: it is no range; else what stands behind it. */
static const char *read_range(const char *text, int64_t *first_out, int64_t *count_out,
                              int *digits_out)
{
    char *end;
    size_t digits = strspn(text, "0123456789");
    if (digits == 0 || digits > 9) {
        return NULL;
    }
    long first = strtol(text, &end, 10), last = first;
    if (*end == '-') {
        const char *upper = end + 1;
        size_t upper_digits = strspn(upper, "0123456789");
        if (upper_digits == 0 || upper_digits > 9) {
            return NULL;
        }
        last = strtol(upper, &end, 10);
    }
    if (last < first || last - first >= GR_SLURM_NODES_MAX) {
        return NULL;
    }
    *first_out = first;
    *count_out = last - first + 1;
    *digits_out = (int)digits;
    return end;
}

/* How many numbers the brackets at `text` hold ("[01-04,7]": 5), and where they end. With `number`
 * >= 0 that one is written to `out` as well. 0: they are not written like this. */
static int64_t read_brackets(const char *text, int64_t number, char out[16], const char **end_out)
{
    int64_t total = 0;
    const char *at = text;
    do {
        int64_t first, count;
        int digits;
        at = read_range(at + 1, &first, &count, &digits);
        if (at == NULL || total > GR_SLURM_NODES_MAX) {
            return 0;
        }
        if (number >= total && number < total + count) {
            snprintf(out, 16, "%0*lld", digits, (long long)(first + number - total));
        }
        total += count;
    } while (*at == ',');
    *end_out = at + 1;
    return *at == ']' ? total : 0;
}

/* ---- Names: "n[01-04]r[0-1]" ----------------------------------------------------------------- */

/* How many names the entry at `text` stands for, and where it ends. 0: it is not written so. */
static int64_t read_entry(const char *text, const char **end_out)
{
    int64_t names = 1;
    char number[16];
    const char *at = text + strcspn(text, "[],");
    while (*at == '[') {
        int64_t count = read_brackets(at, -1, number, &at);
        names = count > 0 && names <= GR_SLURM_NODES_MAX ? names * count : 0;
        if (names == 0) {
            return 0;
        }
        at += strcspn(at, "[],");
    }
    *end_out = at;
    return *at != ']' && at > text && names <= GR_SLURM_NODES_MAX ? names : 0;
}

/* Name `index` of the `names` of the entry at `text`: the last brackets count fastest. */
static bool write_name(const char *text, int64_t index, int64_t names,
                       char name_out[GR_SLURM_NAME_BYTES])
{
    size_t used = 0;
    const char *at = text;
    while (*at != '\0' && *at != ',') {
        char number[16] = "";
        size_t plain = strcspn(at, "[,");
        const char *from = at, *end = at + plain;
        if (plain == 0) {
            int64_t count = read_brackets(at, -1, number, &end);
            names /= count;
            (void)read_brackets(at, index / names, number, &end);
            index %= names;
            from = number;
            plain = strlen(number);
        }
        if (used + plain >= GR_SLURM_NAME_BYTES) {
            return false;
        }
        memcpy(name_out + used, from, plain);
        used += plain;
        at = end;
    }
    name_out[used] = '\0';
    return true;
}

bool gr_slurm_node(const char *list, int64_t index, char name_out[GR_SLURM_NAME_BYTES])
{
    const char *at = list, *end;
    while (index >= 0) {
        int64_t names = read_entry(at, &end);
        if (names == 0) {
            return false;
        }
        if (index < names) {
            return write_name(at, index, names, name_out);
        }
        index -= names;
        if (*end != ',') {
            return false;
        }
        at = end + 1;
    }
    return false;
}

int64_t gr_slurm_count(const char *counts, int64_t index, int64_t max)
{
    const char *at = counts;
    while (index >= 0 && *at != '\0') {
        char *end;
        long count = strtol(at, &end, 10), nodes = 1;
        if (end == at || count < 1 || count > max) {
            return 0;
        }
        if (strncmp(end, "(x", 2) == 0) {
            nodes = strtol(end + 2, &end, 10);
            end += *end == ')';
        }
        if (index < nodes) {
            return count;
        }
        index -= nodes > 0 ? nodes : 1;
        at = *end == ',' ? end + 1 : "";
    }
    return 0;
}
