/* SPDX-License-Identifier: Apache-2.0 */

/* Kubeconfig files, tokens and exec plugins: what is read, and each sentence about bad ones. */

#include "base/file.h"
#include "base/support_base.h"
#include "kube/source.h"

#include <limits.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>

/* "-----BEGIN X-----" */
#define PEM_64 "LS0tLS1CRUdJTiBYLS0tLS0K"

static const char whole[] =
    "apiVersion: v1\n"
    "kind: Config\n"
    "current-context: dev\n"
    "clusters:\n"
    "- name: one\n"
    "  cluster:\n"
    "    server: https://one:6443/\n"
    "    certificate-authority-data: " PEM_64 "\n"
    "    tls-server-name: api\n"
    "    proxy-url: http://proxy:3128\n"
    "- name: two\n"
    "  cluster: {server: 'https://two', insecure-skip-tls-verify: true}\n"
    "users:\n"
    "- name: me\n"
    "  user: {token: abc}\n"
    "- name: cert\n"
    "  user: {client-certificate-data: " PEM_64 ", client-key-data: " PEM_64 "}\n"
    "contexts:\n"
    "- name: dev\n"
    "  context: {cluster: one, user: me, namespace: team}\n"
    "- name: loose\n"
    "  context: {cluster: two, user: cert}\n";

static gr_status resolve(const char *const *texts, int count, const gr_kube_access_options *options,
                         gr_kube_access **access_out, gr_diag *diag)
{
    gr_doc *docs[4] = {0};
    gr_kube_access *access = NULL;
    gr_status status = gr_kube_access_create(&access, diag);
    for (int i = 0; i < count && status == GR_OK; i++) {
        status = gr_doc_parse_yaml(i == 0 ? "config" : "second", texts[i], strlen(texts[i]),
                                   &docs[i], diag);
    }
    if (status == GR_OK) {
        status = gr_kubeconfig_resolve(docs, count, options, access, diag);
    }
    for (int i = 0; i < count; i++) {
        gr_doc_destroy(docs[i]);
    }
    if (status != GR_OK) {
        gr_kube_access_close(access);
        return status;
    }
    *access_out = access;
    return GR_OK;
}

static gr_kube_access *good(const char *const *texts, int count,
                            const gr_kube_access_options *options)
{
    gr_kube_access *access = NULL;
    gr_diag diag = {0};
    gr_status status = resolve(texts, count, options, &access, &diag);
    assert_string_equal(diag.text, "");
    assert_int_equal(status, GR_OK);
    return access;
}

static void refused(const char *text, const gr_kube_access_options *options, const char *sentence)
{
    gr_kube_access *access = NULL;
    gr_diag diag = {0};
    assert_true(resolve(&text, 1, options, &access, &diag) < 0);
    assert_string_equal(diag.text, sentence);
    assert_null(access);
}

static void current_context_is_followed(void **state)
{
    (void)state;
    const char *texts[] = {whole};
    gr_kube_access *access = good(texts, 1, &(gr_kube_access_options){0});
    assert_string_equal(access->server, "https://one:6443");
    assert_string_equal(access->space, "team");
    assert_string_equal(access->where, "context \"dev\" of config");
    assert_string_equal(access->ca_pem, "-----BEGIN X-----\n");
    assert_string_equal(access->tls_server_name, "api");
    assert_string_equal(access->proxy_url, "http://proxy:3128");
    assert_string_equal(access->token, "abc");
    assert_false(access->insecure);
    gr_kube_access_close(access);
}

static void named_context_needs_leave_to_be_insecure(void **state)
{
    (void)state;
    const char *texts[] = {whole};
    gr_kube_access_options options = {.context = "loose", .space = "mine"};
    refused(whole, &options,
            "config:12: clusters[1].cluster.insecure-skip-tls-verify: anybody could stand in for "
            "this server: give its certificate-authority, or allow it explicitly");
    options.insecure_allowed = true;
    gr_kube_access *access = good(texts, 1, &options);
    assert_true(access->insecure);
    assert_string_equal(access->space, "mine");
    assert_string_equal(access->cert_pem, "-----BEGIN X-----\n");
    assert_string_equal(access->key_pem, "-----BEGIN X-----\n");
    assert_null(access->token);
    gr_kube_access_close(access);
}

static void first_of_several_files_counts(void **state)
{
    (void)state;
    const char *texts[] = {"current-context: other\n"
                           "clusters: [{name: one, cluster: {server: 'https://first'}}]\n",
                           "current-context: dev\n"
                           "clusters: [{name: one, cluster: {server: 'https://second'}}]\n"
                           "contexts: [{name: other, context: {cluster: one}}]\n",
                           ""};
    gr_kube_access *access = good(texts, 3, &(gr_kube_access_options){0});
    assert_string_equal(access->server, "https://first");
    assert_string_equal(access->space, "default");
    gr_kube_access_close(access);
}

#define WITH_CLUSTER(text)                                                                         \
    "current-context: a\ncontexts: [{name: a, context: {cluster: c, user: u}}]\n"                  \
    "users: [{name: u, user: {}}]\nclusters: [{name: c, cluster: " text "}]\n"
#define WITH_USER(text)                                                                            \
    "current-context: a\ncontexts: [{name: a, context: {cluster: c, user: u}}]\n"                  \
    "clusters: [{name: c, cluster: {server: 'https://s'}}]\nusers: [{name: u, user: " text "}]\n"

static void wrong_fields_are_named(void **state)
{
    (void)state;
    static const char *const cases[][2] = {
        {"", "config has no current-context; name one with --context"},
        {"[]", "config:1: must be a map"},
        {"current-context: x", "config has no context \"x\""},
        {"current-context: [x]", "config:1: current-context: must be a text, not a list"},
        {"current-context: a\ncontexts: {}", "config:2: contexts: must be a list"},
        {"current-context: a\ncontexts: [b]", "config:2: contexts[0]: must be a map"},
        {"current-context: a\ncontexts: [{}]", "config:2: contexts[0]: has no name"},
        {"current-context: a\ncontexts: [{name: a}]", "config:2: contexts[0]: has no context"},
        {"current-context: a\ncontexts: [{name: a, context: {}}]",
         "config:2: contexts[0].context: has no cluster"},
        {"current-context: a\ncontexts: [{name: a, context: {cluster: c}}]",
         "config:2: contexts[0].context.cluster: there is no cluster \"c\" in clusters"},
        {WITH_CLUSTER("{}"), "config:4: clusters[0].cluster: has no server"},
        {WITH_CLUSTER("{server: 'http://s'}"),
         "config:4: clusters[0].cluster.server: must begin with https://: a server is only spoken "
         "to with TLS"},
        {WITH_CLUSTER("{server: 'https://me@s'}"),
         "config:4: clusters[0].cluster.server: must be https://HOST:PORT, without user, query or "
         "fragment"},
        {WITH_CLUSTER("{server: 'https://s', certificate-authority-dat: x}"),
         "config:4: clusters[0].cluster.certificate-authority-dat: is no key of a kubeconfig; do "
         "you mean \"certificate-authority-data\"?"},
        {WITH_CLUSTER("{server: 'https://s', certificate-authority-data: '%'}"),
         "config:4: clusters[0].cluster.certificate-authority-data: must be a PEM text in base64, "
         "as \"base64 FILE\" prints it"},
        {WITH_CLUSTER("{server: 'https://s', proxy-url: 'ftp://x'}"),
         "config:4: clusters[0].cluster.proxy-url: must begin with http://, https:// or "
         "socks5://"},
        {WITH_USER("{username: x, password: secret}"),
         "config:4: users[0].user.username: Kubernetes has no basic authentication since 1.19; "
         "use a token, a client certificate or exec"},
        {WITH_USER("{auth-provider: {name: gcp}}"),
         "config:4: users[0].user.auth-provider: kubectl has no auth-provider since 1.26; use an "
         "exec plugin"},
        {WITH_USER("{as: root}"), "config:4: users[0].user.as: impersonation is not supported; use "
                                  "the credentials of that user"},
        {WITH_USER("{client-key-data: " PEM_64 "}"),
         "config:4: users[0].user: has a client-key without its certificate"},
        {WITH_USER("{token: \"a\\nb\"}"), "config:4: users[0].user.token: must be one line"},
        {WITH_USER("{exec: {apiVersion: client.authentication.k8s.io/v1}}"),
         "config:4: users[0].user.exec: has no command"},
        {WITH_USER("{exec: {command: x, apiVersion: client.authentication.k8s.io/v1alpha1}}"),
         "config:4: users[0].user.exec: apiVersion must be client.authentication.k8s.io/v1 or "
         "v1beta1"},
        {WITH_USER("{exec: {command: x, apiVersion: client.authentication.k8s.io/v1, "
                   "interactiveMode: Always}}"),
         "config:4: users[0].user.exec: asks a person (interactiveMode: Always), and nobody is "
         "asked here; use a token or another way to log in"},
        {WITH_USER("{exec: {command: x, apiVersion: client.authentication.k8s.io/v1, env: "
                   "[{name: A}]}}"),
         "config:4: users[0].user.exec.env[0]: needs a name and a value"}};
    for (size_t i = 0; i < sizeof cases / sizeof cases[0]; i++) {
        refused(cases[i][0], &(gr_kube_access_options){0}, cases[i][1]);
    }
}

static void write_file(const void *folder, const char *name, const char *text, mode_t mode)
{
    char path[PATH_MAX];
    support_path(folder, name, path);
    assert_int_equal(gr_file_replace(path, text, strlen(text), NULL), GR_OK);
    assert_int_equal(chmod(path, mode), 0);
}

static gr_kube_access *open_file(const void *folder, const char *name)
{
    char path[PATH_MAX];
    gr_kube_access *access = NULL;
    gr_diag diag = {0};
    support_path(folder, name, path);
    gr_status status = gr_kube_access_open(&(gr_kube_access_options){.path = path}, &access, &diag);
    assert_string_equal(diag.text, "");
    assert_int_equal(status, GR_OK);
    return access;
}

static bool refresh(gr_kube_access *access, int64_t now_s, bool is_refused)
{
    bool changed = false;
    gr_diag diag = {0};
    gr_status status = gr_kube_access_refresh(access, now_s, is_refused, &changed, &diag);
    assert_string_equal(diag.text, "");
    assert_int_equal(status, GR_OK);
    return changed;
}

static void token_file_is_read_again_each_minute(void **state)
{
    write_file(*state, "config", WITH_USER("{tokenFile: token}"), 0600);
    write_file(*state, "token", "first\n", 0600);
    gr_kube_access *access = open_file(*state, "config");
    assert_null(access->token);
    assert_true(refresh(access, 1000, false));
    assert_string_equal(access->token, "first");
    write_file(*state, "token", "second", 0600);
    assert_false(refresh(access, 1059, false));
    assert_string_equal(access->token, "first");
    assert_true(refresh(access, 1060, false));
    assert_string_equal(access->token, "second");
    write_file(*state, "token", "third", 0600);
    assert_true(refresh(access, 1061, true)); /* the server refused it */
    assert_string_equal(access->token, "third");
    write_file(*state, "token", "fourth", 0600);
    assert_true(refresh(access, 500, false)); /* the clock was set back */
    assert_false(refresh(access, 501, true));
    write_file(*state, "token", "two words", 0600);
    bool changed;
    gr_diag diag = {0};
    assert_int_equal(gr_kube_access_refresh(access, 2000, false, &changed, &diag), GR_E_INVALID);
    assert_non_null(strstr(diag.text, "/token holds no token"));
    assert_null(strstr(diag.text, "two words"));
    gr_kube_access_close(access);
}

static void pod_finds_its_service_account(void **state)
{
    gr_kube_access *access = NULL;
    gr_diag diag = {0};
    write_file(*state, "token", "t", 0600);
    write_file(*state, "ca.crt", "-----BEGIN CERTIFICATE-----\n", 0600);
    write_file(*state, "namespace", "jobs", 0600);
    assert_int_equal(gr_kube_access_create(&access, &diag), GR_OK);
    assert_int_equal(gr_kube_access_of_pod(*state, "fd00::1", "443", NULL, access, &diag), GR_OK);
    assert_true(refresh(access, 1, false));
    assert_string_equal(access->server, "https://[fd00::1]:443");
    assert_string_equal(access->space, "jobs");
    assert_string_equal(access->token, "t");
    assert_non_null(access->ca_pem);
    gr_kube_access_close(access);
}

#define EXEC(more)                                                                                 \
    WITH_USER("{exec: {command: ./plugin, apiVersion: client.authentication.k8s.io/v1, args: "     \
              "[one], env: [{name: WHO, value: me}]" more "}}")
#define ANSWER(status)                                                                             \
    "#!/bin/sh\n"                                                                                  \
    "echo x >>\"$(dirname \"$0\")/ran\"\n"                                                         \
    "echo '{\"apiVersion\": \"client.authentication.k8s.io/v1\", \"kind\": \"ExecCredential\", "   \
    "\"status\": " status "}'\n"

static size_t runs_of_plugin(const void *folder)
{
    char path[PATH_MAX];
    struct stat info;
    support_path(folder, "ran", path);
    return stat(path, &info) == 0 ? (size_t)info.st_size / 2 : 0;
}

static void plugin_runs_again_when_its_token_expires(void **state)
{
    write_file(*state, "config", EXEC(""), 0600);
    write_file(*state, "plugin",
               ANSWER("{\"token\": \"'$WHO-$1'\", \"expirationTimestamp\": "
                      "\"1970-01-01T01:00:00Z\"}"),
               0700);
    gr_kube_access *access = open_file(*state, "config");
    assert_true(refresh(access, 0, false));
    assert_string_equal(access->token, "me-one");
    assert_false(refresh(access, 3500, false));
    assert_int_equal(runs_of_plugin(*state), 1);
    assert_false(refresh(access, 3540, false)); /* a minute before */
    assert_int_equal(runs_of_plugin(*state), 2);
    refresh(access, 3560, false); /* too short a rest is used up */
    assert_int_equal(runs_of_plugin(*state), 2);
    refresh(access, 3561, true);
    assert_int_equal(runs_of_plugin(*state), 3);
    gr_kube_access_close(access);
}

static void plugin_is_told_about_the_cluster(void **state)
{
    write_file(*state, "config", EXEC(", provideClusterInfo: true"), 0600);
    write_file(*state, "plugin",
               "#!/bin/sh\n"
               "case $KUBERNETES_EXEC_INFO in\n"
               "*'\"interactive\":false'*'\"server\":\"https://s\"'*) ;;\n"
               "*) exit 3 ;;\n"
               "esac\n" ANSWER("{\"clientCertificateData\": \"C\", \"clientKeyData\": \"K\"}"),
               0700);
    gr_kube_access *access = open_file(*state, "config");
    assert_true(refresh(access, 0, false));
    assert_string_equal(access->cert_pem, "C");
    assert_string_equal(access->key_pem, "K");
    gr_kube_access_close(access);
}

static void assert_plugin_fails_within(int64_t limit_us, const void *folder, const char *script,
                                       const char *said)
{
    gr_kube_login login = {0};
    gr_diag diag = {0};
    write_file(folder, "config", EXEC(", installHint: 'apt install it'"), 0600);
    if (script != NULL) {
        write_file(folder, "plugin", script, 0700);
    }
    gr_kube_access *access = open_file(folder, "config");
    gr_status status = gr_kube_plugin_run(access->source->plugin, access, limit_us, &login, &diag);
    assert_int_equal(status, GR_E_AUTH);
    if (strstr(diag.text, said) == NULL || strstr(diag.text, "/config:4: ") == NULL) {
        fail_msg("\"%s\" is not said, but: %s", said, diag.text);
    }
    gr_kube_access_close(access);
}

static void assert_plugin_fails(const void *folder, const char *script, const char *said)
{
    assert_plugin_fails_within(60000000, folder, script, said);
}

static void plugin_that_fails_is_explained(void **state)
{
    assert_plugin_fails(*state, NULL, "No such file or directory; apt install it");
    assert_plugin_fails(*state, "#!/bin/sh\nexit 7\n", "ended with exit code 7");
    assert_plugin_fails(*state, "#!/bin/sh\nkill -9 $$\n", "ended with signal 9");
    assert_plugin_fails(*state, "#!/bin/sh\necho garbage\n", "it is no JSON");
    assert_plugin_fails(*state, "#!/bin/sh\necho '[]'\n", "kind and apiVersion must be these");
    assert_plugin_fails(*state, ANSWER("{}"), "neither a token nor a client certificate");
    assert_plugin_fails(*state, ANSWER("{\"token\": \"a b\"}"), "the token must be one word");
    assert_plugin_fails(*state, ANSWER("{\"token\": \"a\", \"expirationTimestamp\": \"soon\"}"),
                        "expirationTimestamp is no time");
    assert_plugin_fails(*state, ANSWER("{\"clientKeyData\": \"a\"}"), "must come together");
    assert_plugin_fails(*state, "#!/bin/sh\ncat /dev/zero\n", "prints more than 1048576 bytes");
    assert_plugin_fails_within(300000, *state, "#!/bin/sh\nexec sleep 1000\n",
                               "did not end in time");
    assert_plugin_fails_within(300000, *state, "#!/bin/sh\nexec >&-\nexec sleep 1000\n",
                               "did not end in time");
}

#define IN_FOLDER(test)                                                                            \
    cmocka_unit_test_setup_teardown(test, support_setup_folder, support_teardown_folder)

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(current_context_is_followed),
        cmocka_unit_test(named_context_needs_leave_to_be_insecure),
        cmocka_unit_test(first_of_several_files_counts),
        cmocka_unit_test(wrong_fields_are_named),
        IN_FOLDER(token_file_is_read_again_each_minute),
        IN_FOLDER(pod_finds_its_service_account),
        IN_FOLDER(plugin_runs_again_when_its_token_expires),
        IN_FOLDER(plugin_is_told_about_the_cluster),
        IN_FOLDER(plugin_that_fails_is_explained),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
