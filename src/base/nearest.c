/* SPDX-License-Identifier: Apache-2.0 */
#include "base/text.h"

#include <stdbool.h>
#include <string.h>

enum { WORD_MAX = 64 };

/* Keys, flags and variables are compared as people mistake them: case and the kind of dash do not
 * count. */
static char fold(char c)
{
    if (c >= 'A' && c <= 'Z') {
        return (char)(c - 'A' + 'a');
    }
    return c == '-' ? '_' : c;
}

static int smallest(int a, int b, int c)
{
    int least = a < b ? a : b;
    return least < c ? least : c;
}

/* Insertions, deletions, replacements and swaps of neighbours that make `b` of `a` (Damerau and
 * Levenshtein, in the form that edits no part twice). */
static int distance(const char *a, int a_length, const char *b, int b_length)
{
    int rows[3][WORD_MAX + 1]; /* the row before the last one, the last one, this one */
    int *before = rows[0];
    int *last = rows[1];
    int *row = rows[2];
    for (int j = 0; j <= b_length; j++) {
        last[j] = j;
    }
    for (int i = 1; i <= a_length; i++) {
        row[0] = i;
        for (int j = 1; j <= b_length; j++) {
            char x = fold(a[i - 1]);
            char y = fold(b[j - 1]);
            row[j] = smallest(last[j] + 1, row[j - 1] + 1, last[j - 1] + (x != y));
            if (i > 1 && j > 1 && x == fold(b[j - 2]) && y == fold(a[i - 2]) &&
                before[j - 2] + 1 < row[j]) {
                row[j] = before[j - 2] + 1;
            }
        }
        int *oldest = before;
        before = last;
        last = row;
        row = oldest;
    }
    return last[b_length];
}

/* Returns true if `word` is made of the first letters of the words of `known`: "lr" of
 * "learning_rate". */
static bool is_initials(const char *word, const char *known)
{
    bool begins = true;
    for (; *known != '\0'; known++) {
        if (fold(*known) == '_') {
            begins = true;
        } else if (begins) {
            if (fold(*word) != fold(*known)) {
                return false;
            }
            word++;
            begins = false;
        }
    }
    return *word == '\0';
}

/* The only one of which `word` is the initials; NULL: none, or several. */
static const char *of_initials(const char *word, const char *const *known)
{
    const char *found = NULL;
    while (*word == '-') {
        word++;
    }
    for (size_t i = 0; word[0] != '\0' && word[1] != '\0' && known[i] != NULL; i++) {
        if (is_initials(word, known[i])) {
            if (found != NULL) {
                return NULL;
            }
            found = known[i];
        }
    }
    return found;
}

const char *gr_nearest(const char *word, const char *const *known)
{
    size_t length = strnlen(word, WORD_MAX + 1);
    if (length == 0 || length > WORD_MAX) {
        return NULL;
    }
    const char *nearest = NULL;
    int least = WORD_MAX;
    for (size_t i = 0; known[i] != NULL; i++) {
        size_t known_length = strnlen(known[i], WORD_MAX + 1);
        if (known_length > WORD_MAX) {
            continue;
        }
        /* One mistake in three letters; more is another word. */
        int longer = (int)(length > known_length ? length : known_length);
        int allowed = longer / 3 > 0 ? longer / 3 : 1;
        int edits = distance(word, (int)length, known[i], (int)known_length);
        if (edits <= allowed && edits < least && edits < longer) {
            least = edits;
            nearest = known[i];
        }
    }
    return nearest != NULL ? nearest : of_initials(word, known);
}
