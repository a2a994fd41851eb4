/* SPDX-License-Identifier: Apache-2.0 */
#ifndef GR_CLI_MANIFEST_H
#define GR_CLI_MANIFEST_H

/* Kubernetes manifests: files to JSON values, and back to YAML. */

#include <gradus/status.h>
#include <jansson.h>
#include <stdio.h>

/* The documents of a file, YAML or JSON, "-" for stdin, as an array of [line, value]. */
gr_status gr_manifests_read(const char *path, json_t **documents_out, gr_diag *diag) GR_MUST_CHECK;

/* Writes one YAML document of block style, behind a line "---". */
gr_status gr_manifest_print(const json_t *value, FILE *file, gr_diag *diag) GR_MUST_CHECK;

#endif
