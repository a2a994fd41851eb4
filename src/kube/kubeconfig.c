/* SPDX-License-Identifier: Apache-2.0 */

/* Kubeconfig files: contexts, clusters and users. Keys that nobody knows are left alone, as kubectl
 * does, unless they look like a known one. */

#include "base/fail.h"
#include "base/file.h"
#include "base/text.h"
#include "kube/source.h"

#include <openssl/evp.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

typedef struct config_reader {
    gr_doc *const *docs;
    int count;
    const gr_kube_access_options *options;
    gr_kube_access *access;
    gr_arena *arena;
    gr_diag *diag;
} config_reader;

static const char *const cluster_keys[] = {"server",
                                           "tls-server-name",
                                           "insecure-skip-tls-verify",
                                           "certificate-authority",
                                           "certificate-authority-data",
                                           "proxy-url",
                                           "disable-compression",
                                           "extensions",
                                           NULL};
static const char *const user_keys[] = {"client-certificate",
                                        "client-certificate-data",
                                        "client-key",
                                        "client-key-data",
                                        "token",
                                        "tokenFile",
                                        "as",
                                        "as-uid",
                                        "as-groups",
                                        "as-user-extra",
                                        "username",
                                        "password",
                                        "auth-provider",
                                        "exec",
                                        "extensions",
                                        NULL};
static const char *const exec_keys[] = {"command",         "args",        "env",
                                        "apiVersion",      "installHint", "provideClusterInfo",
                                        "interactiveMode", NULL};
static const char *const context_keys[] = {"cluster", "user", "namespace", "extensions", NULL};

static gr_status no_memory(gr_diag *diag)
{
    return gr_fail(diag, GR_E_NO_MEMORY, "no memory for the configuration of the cluster");
}

/* Returns true if the node has a value. */
static bool is_set(const gr_node *node)
{
    return node != NULL && node->kind != GR_NODE_NULL &&
           !(node->kind == GR_NODE_SCALAR && node->text[0] == '\0');
}

static gr_status want_map(config_reader *reader, const gr_node *node)
{
    return node->kind == GR_NODE_MAP
               ? GR_OK
               : gr_node_fail(node, reader->diag, GR_E_INVALID, "must be a map");
}

/* A key that looks like a known one is most likely that. */
static gr_status check_keys(config_reader *reader, const gr_node *map, const char *const *known)
{
    for (const gr_node *child = map->child; child != NULL; child = child->next) {
        bool is_known = false;
        for (size_t i = 0; known[i] != NULL; i++) {
            is_known = is_known || strcmp(child->key, known[i]) == 0;
        }
        const char *near = is_known ? NULL : gr_nearest(child->key, known);
        if (near != NULL) {
            return gr_node_fail(child, reader->diag, GR_E_INVALID,
                                "is no key of a kubeconfig; do you mean \"%s\"?", near);
        }
    }
    return GR_OK;
}

/* The text of `key`, in the arena; NULL if it is not there or empty. */
static gr_status take_text(config_reader *reader, const gr_node *map, const char *key,
                           const char **text_out)
{
    const char *text = NULL;
    const gr_node *node = gr_node_get(map, key);
    *text_out = NULL;
    if (!is_set(node)) {
        return GR_OK;
    }
    gr_status status = gr_node_text(node, &text, reader->diag);
    if (status == GR_OK && strpbrk(text, "\r\n") != NULL) {
        status = gr_node_fail(node, reader->diag, GR_E_INVALID, "must be one line");
    }
    if (status == GR_OK) {
        *text_out = gr_arena_strdup(reader->arena, text);
        status = *text_out != NULL ? GR_OK : no_memory(reader->diag);
    }
    return status;
}

/* The name of a file, as seen from the folder of the configuration. */
static gr_status take_path(config_reader *reader, const gr_node *map, const char *key,
                           const char **path_out)
{
    gr_status status = take_text(reader, map, key, path_out);
    if (status == GR_OK && *path_out != NULL) {
        char *path = gr_path_beside(gr_node_get(map, key)->file, *path_out);
        *path_out = path != NULL ? gr_arena_strdup(reader->arena, path) : NULL;
        free(path);
        status = *path_out != NULL ? GR_OK : no_memory(reader->diag);
    }
    return status;
}

static gr_status decode_pem(config_reader *reader, const gr_node *node, const char *text,
                            char **pem_out)
{
    size_t size = strlen(text);
    int used = 0, rest = 0;
    EVP_ENCODE_CTX *decoder = EVP_ENCODE_CTX_new();
    char *pem = size <= GR_KUBE_FILE_BYTES ? malloc(size + 4) : NULL;
    if (decoder == NULL || pem == NULL) {
        EVP_ENCODE_CTX_free(decoder);
        free(pem);
        return no_memory(reader->diag);
    }
    EVP_DecodeInit(decoder);
    bool valid = EVP_DecodeUpdate(decoder, (unsigned char *)pem, &used, (const unsigned char *)text,
                                  (int)size) >= 0 &&
                 EVP_DecodeFinal(decoder, (unsigned char *)pem + used, &rest) >= 0;
    EVP_ENCODE_CTX_free(decoder);
    pem[valid ? used + rest : 0] = '\0';
    if (!valid || strstr(pem, "-----BEGIN ") == NULL || strlen(pem) != (size_t)(used + rest)) {
        gr_kube_wipe(pem);
        return gr_node_fail(node, reader->diag, GR_E_INVALID,
                            "must be a PEM text in base64, as \"base64 FILE\" prints it");
    }
    *pem_out = pem;
    return GR_OK;
}

/* `key`-data, else the file that `key` names. */
static gr_status take_pem(config_reader *reader, const gr_node *map, const char *key,
                          char **pem_out, const char **path_out)
{
    char data_key[64];
    const char *text = NULL;
    snprintf(data_key, sizeof data_key, "%s-data", key);
    const gr_node *node = gr_node_get(map, data_key);
    if (!is_set(node)) {
        return take_path(reader, map, key, path_out);
    }
    gr_status status = gr_node_text(node, &text, reader->diag);
    return status == GR_OK ? decode_pem(reader, node, text, pem_out) : status;
}

/* The map `key` in the element called `name` of the list `list_key`: "cluster" of "clusters". */
static gr_status find_entry(config_reader *reader, const char *list_key, const char *key,
                            const char *name, const gr_node **map_out)
{
    *map_out = NULL;
    for (int i = 0; i < reader->count; i++) {
        const gr_node *list = gr_node_get(gr_doc_root(reader->docs[i]), list_key);
        if (!is_set(list)) {
            continue;
        }
        if (list->kind != GR_NODE_LIST) {
            return gr_node_fail(list, reader->diag, GR_E_INVALID, "must be a list");
        }
        for (const gr_node *entry = list->child; entry != NULL; entry = entry->next) {
            const char *entry_name = NULL;
            gr_status status = want_map(reader, entry);
            const gr_node *name_node = gr_node_get(entry, "name");
            if (status == GR_OK && name_node == NULL) {
                status = gr_node_fail(entry, reader->diag, GR_E_INVALID, "has no name");
            }
            if (status == GR_OK) {
                status = gr_node_text(name_node, &entry_name, reader->diag);
            }
            if (status != GR_OK) {
                return status;
            }
            if (strcmp(entry_name, name) == 0) {
                *map_out = gr_node_get(entry, key);
                if (!is_set(*map_out)) {
                    return gr_node_fail(entry, reader->diag, GR_E_INVALID, "has no %s", key);
                }
                return want_map(reader, *map_out);
            }
        }
    }
    return GR_OK;
}

const char *gr_kube_check_server(char *server)
{
    size_t length = strlen(server);
    while (length > 0 && server[length - 1] == '/') {
        server[--length] = '\0';
    }
    if (strncmp(server, "https://", 8) != 0 || server[8] == '\0') {
        return "must begin with https://: a server is only spoken to with TLS";
    }
    if (strpbrk(server, " \t\"<>@?#\\") != NULL) {
        return "must be https://HOST:PORT, without user, query or fragment";
    }
    return NULL;
}

static gr_status read_cluster(config_reader *reader, const gr_node *cluster)
{
    gr_kube_access *access = reader->access;
    const char *server = NULL, *name = NULL, *proxy = NULL;
    const gr_node *insecure = gr_node_get(cluster, "insecure-skip-tls-verify");
    gr_status status = check_keys(reader, cluster, cluster_keys);
    if (status == GR_OK) {
        status = take_text(reader, cluster, "server", &server);
    }
    if (status == GR_OK && server == NULL) {
        status = gr_node_fail(cluster, reader->diag, GR_E_INVALID, "has no server");
    }
    if (status == GR_OK) {
        access->server = (char *)server; /* the arena's, not a literal */
        const char *trouble = gr_kube_check_server(access->server);
        status = trouble != NULL ? gr_node_fail(gr_node_get(cluster, "server"), reader->diag,
                                                GR_E_INVALID, "%s", trouble)
                                 : GR_OK;
    }
    if (status == GR_OK && is_set(insecure)) {
        status = gr_node_bool(insecure, &access->insecure, reader->diag);
        if (status == GR_OK && access->insecure && !reader->options->insecure_allowed) {
            status = gr_node_fail(insecure, reader->diag, GR_E_INVALID,
                                  "anybody could stand in for this server: give its "
                                  "certificate-authority, or allow it explicitly");
        }
    }
    if (status == GR_OK) {
        status = take_pem(reader, cluster, "certificate-authority", &access->ca_pem,
                          &access->source->ca_file);
    }
    if (status == GR_OK) {
        status = take_text(reader, cluster, "tls-server-name", &name);
    }
    if (status == GR_OK) {
        status = take_text(reader, cluster, "proxy-url", &proxy);
    }
    if (status == GR_OK && proxy != NULL && strncmp(proxy, "http://", 7) != 0 &&
        strncmp(proxy, "https://", 8) != 0 && strncmp(proxy, "socks5://", 9) != 0) {
        status = gr_node_fail(gr_node_get(cluster, "proxy-url"), reader->diag, GR_E_INVALID,
                              "must begin with http://, https:// or socks5://");
    }
    access->tls_server_name = (char *)name;
    access->proxy_url = (char *)proxy;
    return status;
}

/* "NAME=value" of each element of `env`; the texts of `args`, behind `first`. NULL-terminated. */
static gr_status take_words(config_reader *reader, const gr_node *list, const char *first,
                            const char *const **words_out)
{
    int count = is_set(list) ? list->count : 0, used = 0;
    const char **words = gr_arena_alloc(reader->arena, ((size_t)count + 2) * sizeof *words);
    *words_out = words;
    if (words == NULL) {
        return no_memory(reader->diag);
    }
    if (first != NULL) {
        words[used++] = first;
    }
    if (count == 0) {
        return GR_OK;
    }
    if (list->kind != GR_NODE_LIST) {
        return gr_node_fail(list, reader->diag, GR_E_INVALID, "must be a list");
    }
    for (const gr_node *node = list->child; node != NULL; node = node->next) {
        const char *name = NULL, *text = NULL;
        gr_status status = GR_OK;
        const gr_node *value = node;
        if (first == NULL) {
            value = gr_node_get(node, "value");
            if (gr_node_get(node, "name") == NULL || value == NULL) {
                return gr_node_fail(node, reader->diag, GR_E_INVALID, "needs a name and a value");
            }
            status = gr_node_text(gr_node_get(node, "name"), &name, reader->diag);
        }
        if (status == GR_OK && value->kind == GR_NODE_NULL) {
            text = "";
        } else if (status == GR_OK) {
            status = gr_node_text(value, &text, reader->diag);
        }
        if (status != GR_OK) {
            return status;
        }
        words[used] = name != NULL ? gr_arena_printf(reader->arena, "%s=%s", name, text)
                                   : gr_arena_strdup(reader->arena, text);
        if (words[used++] == NULL) {
            return no_memory(reader->diag);
        }
    }
    return GR_OK;
}

static gr_status check_plugin(config_reader *reader, const gr_node *exec, const char *command,
                              const char *version, const char *mode)
{
    if (command == NULL) {
        return gr_node_fail(exec, reader->diag, GR_E_INVALID, "has no command");
    }
    if (version == NULL || (strcmp(version, "client.authentication.k8s.io/v1") != 0 &&
                            strcmp(version, "client.authentication.k8s.io/v1beta1") != 0)) {
        return gr_node_fail(exec, reader->diag, GR_E_UNSUPPORTED,
                            "apiVersion must be client.authentication.k8s.io/v1 or v1beta1");
    }
    if (mode != NULL && strcmp(mode, "Always") == 0) {
        return gr_node_fail(exec, reader->diag, GR_E_UNSUPPORTED,
                            "asks a person (interactiveMode: Always), and nobody is asked here; "
                            "use a token or another way to log in");
    }
    return GR_OK;
}

static gr_status read_exec(config_reader *reader, const gr_node *exec)
{
    const char *command = NULL, *mode = NULL;
    gr_kube_plugin *plugin = gr_arena_alloc(reader->arena, sizeof *plugin);
    if (plugin == NULL) {
        return no_memory(reader->diag);
    }
    gr_status status = want_map(reader, exec);
    if (status == GR_OK) {
        status = check_keys(reader, exec, exec_keys);
    }
    if (status == GR_OK) {
        status = take_text(reader, exec, "command", &command);
    }
    if (status == GR_OK && command != NULL && strchr(command, '/') != NULL) {
        status = take_path(reader, exec, "command", &command); /* from the configuration's folder */
    }
    if (status == GR_OK) {
        status = take_text(reader, exec, "apiVersion", &plugin->api_version);
    }
    if (status == GR_OK) {
        status = take_text(reader, exec, "interactiveMode", &mode);
    }
    const gr_node *hint = gr_node_get(exec, "installHint"); /* may have lines */
    if (status == GR_OK && is_set(hint)) {
        status = gr_node_text(hint, &plugin->install_hint, reader->diag);
        plugin->install_hint =
            status == GR_OK ? gr_arena_strdup(reader->arena, plugin->install_hint) : NULL;
    }
    if (status == GR_OK) {
        status = check_plugin(reader, exec, command, plugin->api_version, mode);
    }
    if (status == GR_OK) {
        status = take_words(reader, gr_node_get(exec, "args"), command, &plugin->argv);
    }
    if (status == GR_OK) {
        status = take_words(reader, gr_node_get(exec, "env"), NULL, &plugin->env);
    }
    const gr_node *info = gr_node_get(exec, "provideClusterInfo");
    if (status == GR_OK && is_set(info)) {
        status = gr_node_bool(info, &plugin->wants_cluster, reader->diag);
    }
    if (status == GR_OK) {
        plugin->where = gr_arena_printf(reader->arena, "%s:%d", exec->file, exec->line);
        status = plugin->where != NULL ? GR_OK : no_memory(reader->diag);
    }
    reader->access->source->plugin = status == GR_OK ? plugin : NULL;
    return status;
}

/* Ways to say who asks that are refused, each with what to do. */
static gr_status check_user(config_reader *reader, const gr_node *user)
{
    static const char *const refused[][2] = {
        {"username", "Kubernetes has no basic authentication since 1.19; use a token, a client "
                     "certificate or exec"},
        {"password", "Kubernetes has no basic authentication since 1.19; use a token, a client "
                     "certificate or exec"},
        {"auth-provider", "kubectl has no auth-provider since 1.26; use an exec plugin"},
        {"as", "impersonation is not supported; use the credentials of that user"},
        {"as-uid", "impersonation is not supported; use the credentials of that user"},
        {"as-groups", "impersonation is not supported; use the credentials of that user"},
        {"as-user-extra", "impersonation is not supported; use the credentials of that user"}};
    for (size_t i = 0; i < sizeof refused / sizeof refused[0]; i++) {
        const gr_node *node = gr_node_get(user, refused[i][0]);
        if (is_set(node)) {
            return gr_node_fail(node, reader->diag, GR_E_UNSUPPORTED, "%s", refused[i][1]);
        }
    }
    return check_keys(reader, user, user_keys);
}

static gr_status read_user(config_reader *reader, const gr_node *user)
{
    gr_kube_access *access = reader->access;
    gr_kube_source *source = access->source;
    const char *token = NULL;
    gr_status status = check_user(reader, user);
    if (status == GR_OK) {
        status =
            take_pem(reader, user, "client-certificate", &access->cert_pem, &source->cert_file);
    }
    if (status == GR_OK) {
        status = take_pem(reader, user, "client-key", &access->key_pem, &source->key_file);
    }
    bool has_cert = access->cert_pem != NULL || source->cert_file != NULL;
    if (status == GR_OK && has_cert != (access->key_pem != NULL || source->key_file != NULL)) {
        status = gr_node_fail(user, reader->diag, GR_E_INVALID, "has a client-%s without its %s",
                              has_cert ? "certificate" : "key", has_cert ? "key" : "certificate");
    }
    if (status == GR_OK) {
        status = take_path(reader, user, "tokenFile", &source->token_file);
    }
    if (status == GR_OK && source->token_file == NULL) {
        status = take_text(reader, user, "token", &token);
    }
    if (status == GR_OK && token != NULL) {
        access->token = strdup(token);
        status = access->token != NULL ? GR_OK : no_memory(reader->diag);
    }
    const gr_node *exec = gr_node_get(user, "exec");
    if (status == GR_OK && is_set(exec) && token == NULL && source->token_file == NULL) {
        status = read_exec(reader, exec);
    }
    return status;
}

/* Name of the context: what was asked for, else the first current-context. */
static gr_status choose_context(config_reader *reader, const char **name_out)
{
    *name_out = reader->options->context;
    for (int i = 0; i < reader->count; i++) {
        const gr_node *root = gr_doc_root(reader->docs[i]);
        if (root->kind == GR_NODE_NULL) {
            continue;
        }
        gr_status status = want_map(reader, root);
        if (status == GR_OK && *name_out == NULL) {
            status = take_text(reader, root, "current-context", name_out);
        }
        if (status != GR_OK) {
            return status;
        }
    }
    return *name_out != NULL ? GR_OK
                             : gr_fail(reader->diag, GR_E_INVALID,
                                       "%s has no current-context; name one with --context",
                                       gr_doc_root(reader->docs[0])->file);
}

/* Follows `key` of the context into `list_key`. */
static gr_status follow(config_reader *reader, const gr_node *context, const char *key,
                        const char *list_key, const gr_node **map_out)
{
    const char *name = NULL;
    *map_out = NULL;
    gr_status status = take_text(reader, context, key, &name);
    if (status == GR_OK && name != NULL) {
        status = find_entry(reader, list_key, key, name, map_out);
        if (status == GR_OK && *map_out == NULL) {
            status = gr_node_fail(gr_node_get(context, key), reader->diag, GR_E_INVALID,
                                  "there is no %s \"%.80s\" in %s", key, name, list_key);
        }
    }
    return status;
}

gr_status gr_kubeconfig_resolve(gr_doc *const *docs, int count,
                                const gr_kube_access_options *options, gr_kube_access *access,
                                gr_diag *diag)
{
    config_reader reader = {.docs = docs,
                            .count = count,
                            .options = options,
                            .access = access,
                            .arena = &access->source->arena,
                            .diag = diag};
    const char *name = NULL, *space = NULL;
    const gr_node *context = NULL, *cluster = NULL, *user = NULL;
    gr_status status = choose_context(&reader, &name);
    if (status == GR_OK) {
        status = find_entry(&reader, "contexts", "context", name, &context);
    }
    if (status == GR_OK && context == NULL) {
        status = gr_fail(diag, GR_E_NOT_FOUND, "%s has no context \"%.80s\"",
                         gr_doc_root(docs[0])->file, name);
    }
    if (status == GR_OK) {
        status = check_keys(&reader, context, context_keys);
    }
    if (status == GR_OK) {
        status = take_text(&reader, context, "namespace", &space);
    }
    if (status == GR_OK) {
        status = follow(&reader, context, "cluster", "clusters", &cluster);
    }
    if (status == GR_OK && cluster == NULL) {
        status = gr_node_fail(context, diag, GR_E_INVALID, "has no cluster");
    }
    if (status == GR_OK) {
        status = read_cluster(&reader, cluster);
    }
    if (status == GR_OK) {
        status = follow(&reader, context, "user", "users", &user);
    }
    if (status == GR_OK && user != NULL) {
        status = read_user(&reader, user);
    }
    if (status != GR_OK) {
        return status;
    }
    space = options->space != NULL ? options->space : space != NULL ? space : "default";
    access->space = gr_arena_strdup(reader.arena, space);
    access->where =
        gr_arena_printf(reader.arena, "context \"%.80s\" of %s", name, gr_doc_root(docs[0])->file);
    return access->space != NULL && access->where != NULL ? GR_OK : no_memory(diag);
}
