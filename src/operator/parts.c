/* SPDX-License-Identifier: Apache-2.0 */
#include "operator/parts.h"

#include "operator/object.h"

json_t *gr_parts_object(gr_look *l, const char *api_version, const char *kind, const char *suffix)
{
    json_t *name = json_sprintf("%s%s", l->name, suffix);
    json_t *metadata = name != NULL ? gr_look_metadata(l, json_string_value(name)) : NULL;
    json_decref(name);
    gr_object_put(metadata, "labels", json_pack("{s:s}", "app", l->name), &l->no_memory);
    return json_pack("{s:s, s:s, s:o}", "apiVersion", api_version, "kind", kind, "metadata",
                     metadata);
}

void gr_parts_add_env(gr_look *l, json_t *container, const char *name, const char *value)
{
    json_t *variable = json_pack("{s:s}", "name", name);
    if (value[0] != '\0') {
        gr_object_put_text(variable, "value", value, &l->no_memory);
    }
    gr_object_append(gr_object_list(container, "env", &l->no_memory), variable, &l->no_memory);
}

void gr_parts_add_mount(gr_look *l, json_t *container, const char *volume, const char *path)
{
    gr_object_append(gr_object_list(container, "volumeMounts", &l->no_memory),
                     json_pack("{s:s, s:s}", "name", volume, "mountPath", path), &l->no_memory);
}
