/* SPDX-License-Identifier: Apache-2.0 */

/* Looks at jobs for a test that plays the cluster: reads views as JSON values from stdin, {"job",
 * "objects", "now", "cluster_domain", "gang_scheduler", "ssh_key"}, and prints for each a line with
 * the result, {"writes", "events", "retry", "again_after_s"}. */

#include "operator/operator.h"

#include <stdio.h>

static const char *text_of(const json_t *view, const char *key)
{
    const char *text = json_string_value(json_object_get(view, key));
    return text != NULL ? text : "";
}

static json_t *given_key(void *view)
{
    return json_deep_copy(json_object_get(view, "ssh_key"));
}

int main(void)
{
    json_t *given;
    while ((given = json_loadf(stdin, JSON_DISABLE_EOF_CHECK, NULL)) != NULL) {
        gr_operator_view view = {.job = json_object_get(given, "job"),
                                 .objects = json_object_get(given, "objects"),
                                 .now = text_of(given, "now"),
                                 .cluster_domain = text_of(given, "cluster_domain"),
                                 .gang_scheduler = text_of(given, "gang_scheduler"),
                                 .ssh_key = given_key,
                                 .ssh_key_arg = given};
        gr_operator_result result = {0};
        gr_diag diag = {0};
        const gr_operator_kind *kind = gr_operator_find_kind(
            gr_operator_kinds, text_of(view.job, "apiVersion"), text_of(view.job, "kind"));
        if (kind == NULL || kind->reconcile(&view, &result, &diag) != GR_OK) {
            fprintf(stderr, "%s\n", kind != NULL ? diag.text : "there is no such kind");
            return 1;
        }
        json_t *line =
            json_pack("{s:O, s:O, s:b, s:I}", "writes", result.writes, "events", result.events,
                      "retry", result.retry, "again_after_s", (json_int_t)result.again_after_s);
        int failed = json_dumpf(line, stdout, JSON_COMPACT);
        json_decref(line);
        gr_operator_result_fini(&result);
        json_decref(given);
        if (failed != 0 || putchar('\n') == EOF || fflush(stdout) != 0) {
            return 1;
        }
    }
    return 0;
}
