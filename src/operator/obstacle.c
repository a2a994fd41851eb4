/* SPDX-License-Identifier: Apache-2.0 */
#include "operator/obstacle.h"

#include "operator/object.h"
#include "operator/operator.h"

#include <stdio.h>

gr_status gr_obstacle_add(json_t **list, const json_t *wanted, const json_t *object)
{
    bool no_memory = false;
    size_t i;
    const json_t *one;
    const char *kind = gr_object_text(wanted, "kind");
    const char *name = gr_object_text(wanted, "metadata.name");
    json_t *obstacle = json_copy((json_t *)(uintptr_t)object);
    if (*list == NULL) {
        *list = json_array();
    }
    json_array_foreach(*list, i, one)
    {
        if (gr_object_is_text(one, "kind", kind) && gr_object_is_text(one, "metadata.name", name)) {
            json_array_remove(*list, i);
            break;
        }
    }
    gr_object_put(obstacle, "apiVersion", json_incref(gr_object_at(wanted, "apiVersion")),
                  &no_memory);
    gr_object_put(obstacle, "kind", json_incref(gr_object_at(wanted, "kind")), &no_memory);
    gr_object_append(*list, obstacle, &no_memory);
    return no_memory ? GR_E_NO_MEMORY : GR_OK;
}

json_t *gr_obstacle_event(const json_t *wanted, const char *label)
{
    char message[GR_EVENT_BYTES];
    snprintf(message, sizeof message,
             "%s \"%s\" lacks the label %s, by which it is watched, so that changes of it are seen "
             "late; set the label again, or delete it",
             gr_object_text(wanted, "kind"), gr_object_text(wanted, "metadata.name"), label);
    return json_pack("{s:s, s:s, s:o}", "type", "Warning", "reason", "MissingLabel", "message",
                     gr_object_sentence(message));
}
