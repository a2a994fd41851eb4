/* SPDX-License-Identifier: Apache-2.0 */
#ifndef GR_CLI_MANIFEST_H
#define GR_CLI_MANIFEST_H

/* Kubernetes manifests: files to JSON values, and back to YAML; and what an operator would say of
 * the job in one. manifest.c reads and prints, manifest_job.c asks. */

#include "operator/operator.h"

#include <stdio.h>

/* The objects of a file, YAML or JSON, "-" for stdin, as an array of [line, value]: those of its
 * documents, and the items of Lists. What only a cluster says of an object is left out, and so are
 * objects that a controller makes for another one. */
gr_status gr_manifests_read(const char *path, json_t **documents_out, gr_diag *diag) GR_MUST_CHECK;

/* What has a generateName in place of a name gets a name, the same at each reading of the file:
 * there is no API server to make one. */
gr_status gr_manifests_name(const char *path, json_t *documents, gr_diag *diag) GR_MUST_CHECK;

/* "job.yaml:12", where one of these documents stands. */
enum { GR_MANIFEST_WHERE_BYTES = 256 };
void gr_manifest_where(const char *path, const json_t *document,
                       char text_out[GR_MANIFEST_WHERE_BYTES]);

/* Writes one YAML document of block style, behind a line "---". */
gr_status gr_manifest_print(const json_t *value, FILE *file, gr_diag *diag) GR_MUST_CHECK;

/* The kind of a manifest's object; NULL: it is no job of an operator. */
const gr_operator_kind *gr_manifest_kind(const json_t *object);
/* Fails with "<where>: kind ... <what>; this version knows <all kinds><others>". */
gr_status gr_manifest_refuse_kind(const char *where, const json_t *object, const char *what,
                                  const char *others, gr_diag *diag) GR_MUST_CHECK;

/* The first look of an operator at a job that is in no cluster yet. Of `how` only what flags say is
 * given: its texts may be NULL, and without `ssh_key` and `token` keys are empty. A job that names
 * no namespace is seen in `space`. The caller ends the result. GR_E_INVALID, with a sentence that
 * begins with `where`: a kind, a field or a value that is wrong, or no name. GR_E_NO_MEMORY. */
gr_status gr_manifest_look(const char *where, const json_t *job, const char *space,
                           const gr_operator_view *how, gr_operator_result *result_out,
                           gr_diag *diag) GR_MUST_CHECK;

#endif
