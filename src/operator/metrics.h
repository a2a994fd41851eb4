/* SPDX-License-Identifier: Apache-2.0 */
#ifndef GR_OPERATOR_METRICS_H
#define GR_OPERATOR_METRICS_H

/* What an operator has counted, as Prometheus reads it. */

#include "operator/controller.h"

#include <stdio.h>

/* The lines above a metric: "# HELP", "# TYPE". */
void gr_metrics_head(FILE *out, const char *name, const char *type, const char *help);
/* mpi_operator_* of MPIJob v2beta1 and training_operator_* of the kinds of v1. */
void gr_metrics_counts(FILE *out, const gr_controller_counts *counts, size_t count, bool is_leader);

#endif
