/* SPDX-License-Identifier: Apache-2.0 */
/* The text of GRADUS_ALGORITHM. */
#include "base/fail.h"
#include "coll/select/select.h"

#include <stdio.h>
#include <string.h>

enum { WORD_BYTES = 96, LIST_BYTES = 256, SIZE_BYTES = 24 };

typedef struct rule_reader {
    gr_select_rules *rules;
    const char *text;
    bool exact;
    int world_size;
    int place;        /* of the word, from 1 */
    const char *word; /* without the collective in front, once that was read */
    int coll;         /* GR_COLL_COUNT: none was named yet */
    gr_diag *diag;
} rule_reader;

/* Which collectives are chosen for at all. */
static bool has_algorithms(gr_coll coll)
{
    for (const gr_algorithm *at = gr_algorithms; at->name; at++) {
        if (at->coll == coll) {
            return true;
        }
    }
    return false;
}

static void append(char *text, size_t size_bytes, const char *word)
{
    size_t used = strlen(text);
    snprintf(text + used, size_bytes - used, "%s%s", used ? ", " : "", word);
}

static void list_algorithms(gr_coll coll, char text[LIST_BYTES])
{
    text[0] = '\0';
    for (const gr_algorithm *at = gr_algorithms; at->name; at++) {
        if (at->coll == coll) {
            append(text, LIST_BYTES, at->name);
        }
    }
}

/* ---- Sizes ----------------------------------------------------------------------------------- */
static const char *size_text(uint64_t size_bytes, char text[SIZE_BYTES])
{
    static const struct {
        int shift;
        const char *unit;
    } units[] = {{30, "g"}, {20, "m"}, {10, "k"}, {0, ""}};
    if (size_bytes == UINT64_MAX) {
        return "inf";
    }
    int i = 0;
    while (size_bytes == 0 ? units[i].shift > 0
                           : (size_bytes & ((UINT64_C(1) << units[i].shift) - 1)) != 0) {
        i++;
    }
    snprintf(text, SIZE_BYTES, "%llu%s", (unsigned long long)(size_bytes >> units[i].shift),
             units[i].unit);
    return text;
}

/* Digits and k, m or g; false if there is no size at *at. */
static bool take_size(const char **at, uint64_t *size_out)
{
    uint64_t value = 0;
    const char *c = *at;
    if (*c < '0' || *c > '9') {
        return false;
    }
    for (; *c >= '0' && *c <= '9'; c++) {
        if (value > (UINT64_C(1) << 50)) {
            return false;
        }
        value = 10 * value + (uint64_t)(*c - '0');
    }
    static const char units[] = "kmgKMG";
    const char *unit = *c ? strchr(units, *c) : NULL;
    if (unit) {
        int shift = 10 * (int)((unit - units) % 3 + 1);
        if (value > UINT64_MAX >> (shift + 1)) {
            return false;
        }
        value <<= shift;
        c++;
    }
    *at = c;
    *size_out = value;
    return true;
}

/* ---- Words ----------------------------------------------------------------------------------- */
static gr_status take_coll(rule_reader *r, size_t length)
{
    char known[LIST_BYTES] = "";
    for (int coll = 0; coll < GR_COLL_COUNT; coll++) {
        const char *name = gr_coll_name((gr_coll)coll);
        if (!has_algorithms((gr_coll)coll)) {
            continue;
        }
        if (strlen(name) == length && strncmp(name, r->word, length) == 0) {
            r->coll = coll;
            return GR_OK;
        }
        append(known, sizeof known, name);
    }
    return gr_fail(r->diag, GR_E_INVALID,
                   "GRADUS_ALGORITHM: at character %d, \"%s\" must read collective=algorithm or "
                   "collective:range=algorithm, where collective is one of %s",
                   r->place, r->word, known);
}

static gr_status take_range(rule_reader *r, gr_select_rule *rule)
{
    const char *at = r->word;
    bool fine = take_size(&at, &rule->from) && *at++ == '-';
    if (fine && strncmp(at, "inf", 3) == 0) {
        rule->to = UINT64_MAX;
        at += 3;
    } else {
        fine = fine && take_size(&at, &rule->to);
    }
    if (!fine || *at != '=') {
        return gr_fail(r->diag, GR_E_INVALID,
                       "GRADUS_ALGORITHM: at character %d, \"%s\" does not begin with a range of "
                       "sizes and =, such as 0-64k= or 64k-inf=",
                       r->place, r->word);
    }
    if (rule->from >= rule->to) {
        return gr_fail(r->diag, GR_E_INVALID,
                       "GRADUS_ALGORITHM: at character %d, the range of \"%s\" ends before it "
                       "begins, or holds nothing; write the smaller size first",
                       r->place, r->word);
    }
    r->word = at + 1;
    return GR_OK;
}

static gr_status check_algorithm(rule_reader *r, const gr_algorithm *algorithm)
{
    gr_plan_shape shape = {.coll = algorithm->coll,
                           .world_size = r->world_size,
                           .shards = r->world_size,
                           .shared = true};
    if (r->exact && !algorithm->canonical) {
        return gr_fail(r->diag, GR_E_INVALID,
                       "GRADUS_ALGORITHM: at character %d, %s=%s does not add in the order of the "
                       "shard tree, so that results would depend on the number of workers; choose "
                       "another one, or permit it by GRADUS_EXACT=0 (exact: false in a job file)",
                       r->place, gr_coll_name(algorithm->coll), algorithm->name);
    }
    if (r->world_size > 1 && !algorithm->fits(&shape)) {
        return gr_fail(r->diag, GR_E_INVALID,
                       "GRADUS_ALGORITHM: at character %d, %s=%s cannot be done by %d ranks (%s); "
                       "choose another one, or auto",
                       r->place, gr_coll_name(algorithm->coll), algorithm->name, r->world_size,
                       algorithm->description);
    }
    return GR_OK;
}

/* "algorithm" or "algorithm@segment" */
static gr_status take_algorithm(rule_reader *r, gr_select_rule *rule)
{
    gr_coll coll = (gr_coll)r->coll;
    char name[WORD_BYTES];
    size_t length = strcspn(r->word, "@");
    snprintf(name, sizeof name, "%.*s", (int)length, r->word);
    rule->algorithm = gr_algorithm_find(coll, name);
    if (!rule->algorithm && strcmp(name, "auto") != 0) {
        char known[LIST_BYTES];
        list_algorithms(coll, known);
        return gr_fail(r->diag, GR_E_INVALID,
                       "GRADUS_ALGORITHM: at character %d, there is no %s algorithm \"%s\"; there "
                       "are auto, %s",
                       r->place, gr_coll_name(coll), name, known);
    }
    if (r->word[length] == '@') {
        const char *at = r->word + length + 1;
        uint64_t segment = 0;
        if (!take_size(&at, &segment) || *at || segment < GR_SELECT_SEGMENT_MIN ||
            segment > GR_FRAME_PAYLOAD_MAX) {
            char most[SIZE_BYTES];
            return gr_fail(r->diag, GR_E_INVALID,
                           "GRADUS_ALGORITHM: at character %d, \"%s\" behind @ is no size of a "
                           "segment; it must be %d to %s bytes",
                           r->place, r->word + length + 1, GR_SELECT_SEGMENT_MIN,
                           size_text(GR_FRAME_PAYLOAD_MAX, most));
        }
        rule->segment_bytes = (size_t)segment;
    }
    return rule->algorithm ? check_algorithm(r, rule->algorithm) : GR_OK;
}

static gr_status add_rule(rule_reader *r, const gr_select_rule *rule)
{
    gr_select_rules *rules = r->rules;
    uint64_t covered = 0;
    for (int i = 0; i < rules->count; i++) {
        if (rules->rules[i].coll == rule->coll) {
            covered = rules->rules[i].to;
        }
    }
    char a[SIZE_BYTES], b[SIZE_BYTES];
    const char *from = size_text(rule->from, a), *end = size_text(covered, b);
    if (rule->from < covered) {
        return gr_fail(r->diag, GR_E_INVALID,
                       "GRADUS_ALGORITHM: at character %d, a second rule for %s of %s bytes and "
                       "more: the one before it reaches to %s; ranges must follow one another",
                       r->place, gr_coll_name(rule->coll), from, end);
    }
    if (rule->from > covered) {
        return gr_fail(r->diag, GR_E_INVALID,
                       "GRADUS_ALGORITHM: at character %d, no rule for %s of %s to %s bytes; "
                       "write %s-%s=auto where the choice should be free",
                       r->place, gr_coll_name(rule->coll), end, from, end, from);
    }
    if (rules->count == GR_SELECT_RULES_MAX) {
        return gr_fail(r->diag, GR_E_INVALID, "GRADUS_ALGORITHM: more than %d rules",
                       GR_SELECT_RULES_MAX);
    }
    rules->rules[rules->count++] = *rule;
    return GR_OK;
}

static gr_status take_word(rule_reader *r)
{
    gr_select_rule rule = {.from = 0, .to = UINT64_MAX, .place = r->place};
    size_t head = strcspn(r->word, ":=");
    bool range = *r->word >= '0' && *r->word <= '9';
    gr_status status = GR_OK;
    if (range && r->coll == GR_COLL_COUNT) {
        return gr_fail(r->diag, GR_E_INVALID,
                       "GRADUS_ALGORITHM: at character %d, \"%s\" is a range without a collective; "
                       "write allreduce:%s, say",
                       r->place, r->word, r->word);
    }
    if (!range) {
        status = take_coll(r, r->word[head] ? head : 0);
        if (status != GR_OK) {
            return status;
        }
        range = r->word[head] == ':';
        r->word += head + 1;
    }
    if (range) {
        status = take_range(r, &rule);
    }
    if (status == GR_OK) {
        status = take_algorithm(r, &rule);
    }
    rule.coll = (gr_coll)r->coll;
    return status == GR_OK ? add_rule(r, &rule) : status;
}

static gr_status check_ends(const gr_select_rules *rules, gr_diag *diag)
{
    for (int i = 0; i < rules->count; i++) {
        const gr_select_rule *rule = &rules->rules[i];
        bool last = true;
        for (int j = i + 1; j < rules->count; j++) {
            last &= rules->rules[j].coll != rule->coll;
        }
        if (last && rule->to != UINT64_MAX) {
            char end[SIZE_BYTES];
            size_text(rule->to, end);
            return gr_fail(diag, GR_E_INVALID,
                           "GRADUS_ALGORITHM: no rule for %s of %s bytes and more, behind the one "
                           "at character %d; write %s-inf=auto where the choice should be free",
                           gr_coll_name(rule->coll), end, rule->place, end);
        }
    }
    return GR_OK;
}

gr_status gr_select_rules_parse(gr_select_rules *rules, const char *text, bool exact,
                                int world_size, gr_diag *diag)
{
    static const char gaps[] = ",; \t";
    rule_reader r = {.rules = rules,
                     .text = text,
                     .exact = exact,
                     .world_size = world_size,
                     .coll = GR_COLL_COUNT,
                     .diag = diag};
    rules->count = 0;
    for (const char *at = text; *at;) {
        char word[WORD_BYTES];
        size_t length = strcspn(at, gaps);
        r.place = (int)(at - text) + 1;
        if (length >= sizeof word) {
            return gr_fail(diag, GR_E_INVALID,
                           "GRADUS_ALGORITHM: at character %d, \"%.40s...\" is too long", r.place,
                           at);
        }
        memcpy(word, at, length);
        word[length] = '\0';
        r.word = word;
        gr_status status = length > 0 ? take_word(&r) : GR_OK;
        if (status != GR_OK) {
            return status;
        }
        at += length;
        size_t gap = strspn(at, gaps);
        if (memchr(at, ';', gap)) {
            r.coll = GR_COLL_COUNT;
        }
        at += gap;
    }
    return check_ends(rules, diag);
}
