/* SPDX-License-Identifier: Apache-2.0 */
#include "operator/operator.h"

#include "base/text.h"
#include "operator/object.h"

#include <stddef.h>
#include <stdio.h>
#include <string.h>

const gr_operator_kind *const gr_operator_kinds[] = {
    &gr_mpijob_v2, &gr_mpijob_v1, &gr_pytorchjob_v1, &gr_tfjob_v1, &gr_gradusjob_v1, NULL};

const gr_operator_kind *gr_operator_find_kind(const gr_operator_kind *const *kinds,
                                              const char *api_version, const char *kind)
{
    while (*kinds != NULL &&
           (api_version == NULL || kind == NULL ||
            strcmp((*kinds)->api_version, api_version) != 0 || strcmp((*kinds)->kind, kind) != 0)) {
        kinds++;
    }
    return *kinds;
}

void gr_operator_list_kinds(const gr_operator_kind *const *kinds,
                            char text_out[GR_OPERATOR_KINDS_BYTES])
{
    size_t used = 0;
    text_out[0] = '\0';
    for (size_t i = 0; kinds[i] != NULL && used < GR_OPERATOR_KINDS_BYTES; i++) {
        used += (size_t)snprintf(text_out + used, GR_OPERATOR_KINDS_BYTES - used, "%s%s of %s",
                                 i > 0 ? ", " : "", kinds[i]->kind, kinds[i]->api_version);
    }
}

void gr_operator_result_fini(gr_operator_result *result)
{
    json_decref(result->writes);
    json_decref(result->events);
    json_decref(result->ask);
    *result = (gr_operator_result){0};
}

static bool is_one_of(const char *word, const char *const *known)
{
    while (*known != NULL && strcmp(word, *known) != 0) {
        known++;
    }
    return *known != NULL;
}

bool gr_operator_unknown_field(const gr_operator_kind *kind, const json_t *job,
                               char sentence_out[GR_EVENT_BYTES])
{
    enum { KEY_BYTES_MAX = 100 };
    for (const gr_operator_fields *fields = kind->fields; fields->path != NULL; fields++) {
        const char *key;
        json_t *value, *map = gr_object_at(job, fields->path);
        json_object_foreach(map, key, value)
        {
            if (!is_one_of(key, fields->known)) {
                const char *nearest = gr_nearest(key, fields->known);
                snprintf(sentence_out, GR_EVENT_BYTES, "%s.%.*s: there is no such field%s%s",
                         fields->path, gr_text_fit(key, KEY_BYTES_MAX), key,
                         nearest != NULL ? "; did you mean " : "", nearest != NULL ? nearest : "");
                return true;
            }
        }
    }
    return false;
}
