/* SPDX-License-Identifier: Apache-2.0 */
#include "kube/access.h"

#include "base/fail.h"
#include "base/file.h"
#include "base/hash.h"
#include "kube/source.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

enum { ARENA_BYTES = 8 << 20, FILES_AGE_S = 60, EARLY_S = 60, SPACE_BYTES = 256 };

#define POD_FOLDER "/var/run/secrets/kubernetes.io/serviceaccount"

void gr_kube_wipe(char *secret)
{
    if (secret != NULL) {
        gr_wipe(secret, strlen(secret));
        free(secret);
    }
}

static gr_status no_memory(gr_diag *diag)
{
    return gr_fail(diag, GR_E_NO_MEMORY, "no memory for the configuration of the cluster");
}

gr_status gr_kube_access_create(gr_kube_access **access_out, gr_diag *diag)
{
    gr_kube_access *access = calloc(1, sizeof *access);
    gr_kube_source *source = calloc(1, sizeof *source);
    if (access == NULL || source == NULL) {
        free(access);
        free(source);
        return no_memory(diag);
    }
    gr_arena_init(&source->arena, ARENA_BYTES);
    source->files_read_s = source->renew_s = -1;
    access->source = source;
    *access_out = access;
    return GR_OK;
}

void gr_kube_access_close(gr_kube_access *access)
{
    if (access == NULL) {
        return;
    }
    gr_kube_wipe(access->ca_pem);
    gr_kube_wipe(access->token);
    gr_kube_wipe(access->cert_pem);
    gr_kube_wipe(access->key_pem);
    gr_arena_fini(&access->source->arena);
    free(access->source);
    free(access);
}

/* Returns true if there is memory. */
static bool copy_text(char **text, const char *from)
{
    *text = from != NULL ? strdup(from) : NULL;
    return from == NULL || *text != NULL;
}

gr_status gr_kube_access_copy(const gr_kube_access *from, gr_kube_access **access_out,
                              gr_diag *diag)
{
    gr_kube_access *access = NULL;
    gr_status status = gr_kube_access_create(&access, diag);
    if (status != GR_OK) {
        return status;
    }
    gr_kube_source *source = access->source;
    source->ca_file = from->source->ca_file;
    source->cert_file = from->source->cert_file;
    source->key_file = from->source->key_file;
    source->token_file = from->source->token_file;
    source->plugin = from->source->plugin;
    *access = *from; /* its texts stand in the arena of `from`, but for those that are refreshed */
    access->source = source;
    bool copied = copy_text(&access->ca_pem, from->ca_pem);
    copied &= copy_text(&access->token, from->token);
    copied &= copy_text(&access->cert_pem, from->cert_pem);
    copied &= copy_text(&access->key_pem, from->key_pem);
    if (!copied) {
        gr_kube_access_close(access);
        return no_memory(diag);
    }
    *access_out = access;
    return GR_OK;
}

static gr_status read_space(const char *folder, gr_arena *arena, char **space_out, gr_diag *diag)
{
    char *text = NULL;
    size_t size = 0;
    const char *path = gr_arena_printf(arena, "%s/namespace", folder);
    gr_status status =
        path != NULL ? gr_file_read(path, SPACE_BYTES, &text, &size, diag) : no_memory(diag);
    if (status == GR_OK) {
        text[strcspn(text, " \r\n")] = '\0';
        *space_out = gr_arena_strdup(arena, text);
    }
    free(text);
    return status;
}

gr_status gr_kube_access_of_pod(const char *folder, const char *host, const char *port,
                                const char *space, gr_kube_access *access, gr_diag *diag)
{
    gr_arena *arena = &access->source->arena;
    bool is_v6 = strchr(host, ':') != NULL;
    access->server =
        gr_arena_printf(arena, is_v6 ? "https://[%s]:%s" : "https://%s:%s", host, port);
    access->where = gr_arena_printf(arena, "the service account in %s", folder);
    access->source->token_file = gr_arena_printf(arena, "%s/token", folder);
    access->source->ca_file = gr_arena_printf(arena, "%s/ca.crt", folder);
    if (space != NULL) {
        access->space = gr_arena_strdup(arena, space);
    } else {
        gr_status status = read_space(folder, arena, &access->space, diag);
        if (status != GR_OK) {
            return status;
        }
    }
    bool complete = access->server != NULL && access->where != NULL && access->space != NULL &&
                    access->source->token_file != NULL && access->source->ca_file != NULL;
    return complete ? GR_OK : no_memory(diag);
}

/* Reads the files of a list with ":" between them; those that do not exist are left out, as kubectl
 * does. */
static gr_status read_files(char *list, gr_doc **docs, int *count_out, gr_diag *diag)
{
    char *rest = NULL;
    for (char *path = strtok_r(list, ":", &rest); path != NULL; path = strtok_r(NULL, ":", &rest)) {
        if (access(path, F_OK) != 0) {
            continue;
        }
        if (*count_out == GR_KUBE_FILES_MAX) {
            return gr_fail(diag, GR_E_INVALID, "KUBECONFIG names more than %d files",
                           GR_KUBE_FILES_MAX);
        }
        gr_status status = gr_doc_read_yaml(path, &docs[*count_out], diag);
        if (status != GR_OK) {
            return status;
        }
        (*count_out)++;
    }
    return GR_OK;
}

static gr_status open_found(const gr_kube_access_options *options, const char *list, int count,
                            gr_doc *const *docs, gr_kube_access *access, gr_diag *diag)
{
    const char *host = getenv("KUBERNETES_SERVICE_HOST"), *port = getenv("KUBERNETES_SERVICE_PORT");
    if (count > 0) {
        return gr_kubeconfig_resolve(docs, count, options, access, diag);
    }
    if (options->path == NULL && options->context == NULL && host != NULL && port != NULL) {
        return gr_kube_access_of_pod(POD_FOLDER, host, port, options->space, access, diag);
    }
    return gr_fail(diag, GR_E_NOT_FOUND,
                   "there is no kubeconfig (%s); name one with KUBECONFIG, as kubectl takes it",
                   list);
}

static gr_status replace_server(const char *server, gr_kube_access *access, gr_diag *diag)
{
    char *own = gr_arena_strdup(&access->source->arena, server);
    const char *trouble = own != NULL ? gr_kube_check_server(own) : NULL;
    access->server = own;
    if (own == NULL) {
        return no_memory(diag);
    }
    return trouble != NULL
               ? gr_fail(diag, GR_E_INVALID, "the server \"%.200s\" %s", server, trouble)
               : GR_OK;
}

gr_status gr_kube_access_open(const gr_kube_access_options *options, gr_kube_access **access_out,
                              gr_diag *diag)
{
    gr_doc *docs[GR_KUBE_FILES_MAX];
    int count = 0;
    char *list = NULL, *names = NULL;
    const char *variable = getenv("KUBECONFIG"), *home = getenv("HOME");
    gr_kube_access *access = NULL;
    gr_status status = gr_kube_access_create(&access, diag);
    if (status != GR_OK) {
        return status;
    }
    if (options->path != NULL || (variable != NULL && variable[0] != '\0')) {
        names = strdup(options->path != NULL ? options->path : variable);
    } else if (asprintf(&names, "%s/.kube/config", home != NULL ? home : "") < 0) {
        names = NULL;
    }
    list = names != NULL ? strdup(names) : NULL;
    if (list == NULL) {
        status = no_memory(diag);
    } else if (options->path != NULL) { /* may have ":" in it, and must exist */
        status = gr_doc_read_yaml(options->path, &docs[0], diag);
        count = status == GR_OK;
    } else {
        status = read_files(list, docs, &count, diag);
    }
    if (status == GR_OK) {
        status = open_found(options, names, count, docs, access, diag);
    }
    if (status == GR_OK && options->server != NULL) {
        status = replace_server(options->server, access, diag);
    }
    for (int i = 0; i < count; i++) {
        gr_doc_destroy(docs[i]);
    }
    free(list);
    free(names);
    if (status != GR_OK) {
        gr_kube_access_close(access);
        return status;
    }
    *access_out = access;
    return GR_OK;
}

/* Takes `fresh`, which it frees if it is what there was. */
static void replace(char **text, char *fresh, bool *changed)
{
    if (*text != NULL && fresh != NULL && strcmp(*text, fresh) == 0) {
        gr_kube_wipe(fresh);
        return;
    }
    *changed = *changed || *text != NULL || fresh != NULL;
    gr_kube_wipe(*text);
    *text = fresh;
}

static gr_status refresh_file(const char *path, bool is_token, char **text, bool *changed,
                              gr_diag *diag)
{
    char *fresh = NULL;
    size_t size = 0;
    if (path == NULL) {
        return GR_OK;
    }
    gr_status status = gr_file_read(path, GR_KUBE_FILE_BYTES, &fresh, &size, diag);
    if (status != GR_OK) {
        return status;
    }
    while (is_token && size > 0 && strchr(" \t\r\n", fresh[size - 1]) != NULL) {
        fresh[--size] = '\0';
    }
    if (is_token && (size == 0 || strpbrk(fresh, " \t\r\n") != NULL)) {
        status = gr_fail(diag, GR_E_INVALID, "%s holds no token", path);
    } else if (!is_token && strstr(fresh, "-----BEGIN ") == NULL) {
        status = gr_fail(diag, GR_E_INVALID, "%s is no PEM file", path);
    }
    if (status != GR_OK) {
        gr_kube_wipe(fresh);
        return status;
    }
    replace(text, fresh, changed);
    return GR_OK;
}

static gr_status refresh_files(gr_kube_access *access, bool *changed, gr_diag *diag)
{
    const gr_kube_source *source = access->source;
    gr_status status = refresh_file(source->ca_file, false, &access->ca_pem, changed, diag);
    if (status == GR_OK) {
        status = refresh_file(source->cert_file, false, &access->cert_pem, changed, diag);
    }
    if (status == GR_OK) {
        status = refresh_file(source->key_file, false, &access->key_pem, changed, diag);
    }
    return status == GR_OK ? refresh_file(source->token_file, true, &access->token, changed, diag)
                           : status;
}

gr_status gr_kube_access_refresh(gr_kube_access *access, int64_t now_s, bool refused,
                                 bool *changed_out, gr_diag *diag)
{
    gr_kube_source *source = access->source;
    bool changed = false;
    gr_status status = GR_OK;
    *changed_out = false;
    /* A clock that was set back does not keep old files. */
    if (refused || source->files_read_s < 0 || now_s < source->files_read_s ||
        now_s - source->files_read_s >= FILES_AGE_S) {
        status = refresh_files(access, &changed, diag);
        source->files_read_s = status == GR_OK ? now_s : source->files_read_s;
    }
    if (status == GR_OK && source->plugin != NULL && (refused || source->renew_s <= now_s)) {
        gr_kube_login login = {0};
        status = gr_kube_plugin_run(source->plugin, access, GR_KUBE_PLUGIN_US, &login, diag);
        if (status == GR_OK) {
            int64_t early_s = login.expires_s - now_s > 2 * EARLY_S ? EARLY_S : 0;
            source->renew_s = login.expires_s - early_s;
            replace(&access->token, login.token, &changed);
            if (login.cert_pem != NULL) {
                replace(&access->cert_pem, login.cert_pem, &changed);
                replace(&access->key_pem, login.key_pem, &changed);
            }
        }
    }
    *changed_out = changed;
    return status;
}
