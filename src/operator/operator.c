/* SPDX-License-Identifier: Apache-2.0 */
#include "operator/operator.h"

#include <stddef.h>

const gr_operator_kind *const gr_operator_kinds[] = {&gr_mpijob_v2, NULL};

void gr_operator_result_fini(gr_operator_result *result)
{
    json_decref(result->writes);
    json_decref(result->events);
    *result = (gr_operator_result){0};
}
