/* SPDX-License-Identifier: Apache-2.0 */
#ifndef GR_OPERATOR_OBJECT_H
#define GR_OPERATOR_OBJECT_H

/* Kubernetes objects as JSON values: reading by paths, and building. */

#include <jansson.h>
#include <stdbool.h>
#include <stdint.h>
#include <stdio.h>

/* Reads. A path is keys with dots between them, "spec.runPolicy.suspend". A value of another type
 * counts as absent; `object` may be NULL. */
json_t *gr_object_at(const json_t *object, const char *path);
const char *gr_object_text(const json_t *object, const char *path); /* NULL: absent */
int64_t gr_object_int(const json_t *object, const char *path, int64_t otherwise);
/* Returns true if the value is a whole number, or text that Go's strconv.Atoi accepts as one. */
bool gr_object_number(const json_t *value, int64_t *number_out);
bool gr_object_true(const json_t *object, const char *path);
bool gr_object_is_text(const json_t *object, const char *path, const char *text);
/* Seconds since 1970 of "2026-01-31T12:00:00Z"; false: it is no such text, or NULL. */
bool gr_object_time(const char *text, int64_t *seconds_out);
/* The object of that kind and name in an array of objects, NULL if there is none. */
json_t *gr_object_find(const json_t *objects, const char *api_version, const char *kind,
                       const char *name);
bool gr_object_is(const json_t *object, const char *api_version, const char *kind);
/* Returns true if the owner of the object that is its controller has this uid. */
bool gr_object_controlled(const json_t *object, const char *uid);
/* The condition of that type in an array of conditions, NULL if there is none; and whether it is
 * there and "True". */
json_t *gr_object_condition(const json_t *conditions, const char *type);
bool gr_object_holds(const json_t *conditions, const char *type);

/* A text that somebody reads, for the caller: what is no UTF-8 in it, as where it was cut, is
 * mended. NULL: no memory. */
json_t *gr_object_sentence(const char *text);

/* Building. Each takes `value` over, also where it fails; NULL is a value that there was no memory
 * for. A failure sets *no_memory, which nobody clears: it is looked at once, at the end. */
void gr_object_put(json_t *object, const char *key, json_t *value, bool *no_memory);
void gr_object_put_text(json_t *object, const char *key, const char *text, bool *no_memory);
/* Puts it only where nothing stands: no value or null; the second one also for an empty text. */
void gr_object_put_absent(json_t *object, const char *key, json_t *value, bool *no_memory);
void gr_object_put_default(json_t *object, const char *key, json_t *value, bool *no_memory);
void gr_object_append(json_t *array, json_t *value, bool *no_memory);
/* The map or list at `key`, made if it is not there; NULL without memory. */
json_t *gr_object_map(json_t *object, const char *key, bool *no_memory);
json_t *gr_object_list(json_t *object, const char *key, bool *no_memory);

/* A text that is printed. */
typedef struct gr_object_print {
    FILE *out; /* NULL: no memory */
    char *text;
    size_t size_bytes;
} gr_object_print;

void gr_object_print_begin(gr_object_print *print);
/* What was printed; NULL: no memory. The caller's. */
json_t *gr_object_print_end(gr_object_print *print);
#endif
