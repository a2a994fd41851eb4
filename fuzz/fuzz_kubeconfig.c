/* SPDX-License-Identifier: Apache-2.0 */

/* Any bytes as a kubeconfig. What is accepted is complete; whatever is wrong ends as a sentence. */

#include "kube/source.h"

#include <stdlib.h>
#include <string.h>

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

static void require(bool condition)
{
    if (!condition) {
        abort();
    }
}

static void check_access(const gr_kube_access *access)
{
    const gr_kube_source *source = access->source;
    bool has_cert = access->cert_pem != NULL || source->cert_file != NULL;
    require(strncmp(access->server, "https://", 8) == 0 && access->server[8] != '\0');
    require(access->space != NULL && access->where != NULL && !access->insecure);
    require(has_cert == (access->key_pem != NULL || source->key_file != NULL));
    require(access->token == NULL || strpbrk(access->token, "\r\n") == NULL);
    require(source->plugin == NULL || source->plugin->argv[0] != NULL);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    gr_doc *doc = NULL;
    gr_diag diag = {0};
    gr_kube_access *access = NULL;
    gr_kube_access_options options = {0};
    const char *text = size > 0 ? (const char *)data : "";
    if (gr_doc_parse_yaml("config", text, size, &doc, &diag) != GR_OK) {
        return 0;
    }
    if (gr_kube_access_create(&access, &diag) == GR_OK) {
        gr_status status = gr_kubeconfig_resolve(&doc, 1, &options, access, &diag);
        if (status == GR_OK) {
            check_access(access);
        } else {
            require(diag.status == status && strncmp(diag.text, "config", 6) == 0);
        }
    }
    gr_kube_access_close(access);
    gr_doc_destroy(doc);
    return 0;
}
