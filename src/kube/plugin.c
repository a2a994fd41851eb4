/* SPDX-License-Identifier: Apache-2.0 */

/* Exec credentials: a program prints an ExecCredential of client.authentication.k8s.io. It gets no
 * terminal; what it says on stderr goes to ours. */

#include "base/clock.h"
#include "base/fail.h"
#include "base/hash.h"
#include "base/time_text.h"
#include "kube/source.h"

#include <errno.h>
#include <fcntl.h>
#include <jansson.h>
#include <poll.h>
#include <signal.h>
#include <spawn.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>
#include <unistd.h>

extern char **environ;

typedef struct plugin_run {
    const gr_kube_plugin *plugin;
    pid_t pid;
    int fd; /* of what it prints */
    char *text;
    size_t size_bytes;
    int64_t deadline_us;
    gr_diag *diag;
} plugin_run;

static gr_status no_memory(gr_diag *diag)
{
    return gr_fail(diag, GR_E_NO_MEMORY, "no memory to log in to the cluster");
}

/* KUBERNETES_EXEC_INFO: what it is to do. */
static char *describe(const gr_kube_plugin *plugin, const gr_kube_access *access)
{
    json_t *spec = json_pack("{s:b}", "interactive", 0);
    if (plugin->wants_cluster) {
        json_t *cluster = json_pack("{s:s, s:b}", "server", access->server,
                                    "insecure-skip-tls-verify", access->insecure);
        if (access->tls_server_name != NULL) {
            json_object_set_new(cluster, "tls-server-name", json_string(access->tls_server_name));
        }
        if (access->proxy_url != NULL) {
            json_object_set_new(cluster, "proxy-url", json_string(access->proxy_url));
        }
        json_object_set_new(spec, "cluster", cluster);
    }
    json_t *info = json_pack("{s:s, s:s, s:o}", "apiVersion", plugin->api_version, "kind",
                             "ExecCredential", "spec", spec);
    char *text = info != NULL ? json_dumps(info, JSON_COMPACT) : NULL, *variable = NULL;
    if (text == NULL || asprintf(&variable, "KUBERNETES_EXEC_INFO=%s", text) < 0) {
        variable = NULL;
    }
    free(text);
    json_decref(info);
    return variable;
}

/* Our variables that the plugin's do not replace, its own, and `info`. */
static const char **make_environment(const gr_kube_plugin *plugin, const char *info)
{
    size_t count = 0, own = 0;
    while (environ[count] != NULL) {
        count++;
    }
    while (plugin->env[own] != NULL) {
        own++;
    }
    const char **made = calloc(count + own + 2, sizeof *made);
    for (size_t i = 0, used = own + 1; made != NULL && i < count; i++) {
        size_t length = strcspn(environ[i], "=") + 1;
        bool replaced = strncmp(environ[i], info, length) == 0;
        for (size_t j = 0; j < own && !replaced; j++) {
            replaced = strncmp(environ[i], plugin->env[j], length) == 0;
        }
        if (!replaced) {
            made[used++] = environ[i];
        }
    }
    if (made != NULL) {
        memcpy(made, plugin->env, own * sizeof *made);
        made[own] = info;
    }
    return made;
}

static int spawn(plugin_run *run, const char **environment)
{
    int fds[2];
    sigset_t none;
    posix_spawn_file_actions_t actions;
    posix_spawnattr_t attributes;
    if (pipe2(fds, O_CLOEXEC) != 0) {
        return errno;
    }
    sigemptyset(&none);
    posix_spawn_file_actions_init(&actions);
    posix_spawnattr_init(&attributes);
    posix_spawn_file_actions_addopen(&actions, 0, "/dev/null", O_RDONLY, 0);
    posix_spawn_file_actions_adddup2(&actions, fds[1], 1);
    posix_spawnattr_setsigmask(&attributes, &none);
    posix_spawnattr_setflags(&attributes, POSIX_SPAWN_SETPGROUP | POSIX_SPAWN_SETSIGMASK);
    int error = posix_spawnp(&run->pid, run->plugin->argv[0], &actions, &attributes,
                             (char *const *)run->plugin->argv, (char *const *)environment);
    posix_spawn_file_actions_destroy(&actions);
    posix_spawnattr_destroy(&attributes);
    close(fds[1]);
    if (error != 0) {
        close(fds[0]);
        return error;
    }
    run->fd = fds[0];
    return 0;
}

static gr_status start(plugin_run *run, const gr_kube_access *access)
{
    const gr_kube_plugin *plugin = run->plugin;
    char *info = describe(plugin, access);
    const char **environment = info != NULL ? make_environment(plugin, info) : NULL;
    int error = environment != NULL ? spawn(run, environment) : ENOMEM;
    free(environment);
    free(info);
    if (error == 0) {
        return GR_OK;
    }
    return gr_fail(run->diag, error == ENOMEM ? GR_E_NO_MEMORY : GR_E_AUTH,
                   "%s: cannot run \"%.100s\", which logs in to the cluster: %s%s%.200s",
                   plugin->where, plugin->argv[0], strerror(error),
                   plugin->install_hint != NULL ? "; " : "",
                   plugin->install_hint != NULL ? plugin->install_hint : "");
}

static gr_status too_late(const plugin_run *run)
{
    return gr_fail(run->diag, GR_E_AUTH,
                   "%s: \"%.100s\", which logs in to the cluster, did not end in time; run it by "
                   "hand to see what it waits for",
                   run->plugin->where, run->plugin->argv[0]);
}

static gr_status read_output(plugin_run *run)
{
    gr_clock clock = gr_clock_real();
    run->text = malloc(GR_KUBE_FILE_BYTES + 1);
    if (run->text == NULL) {
        return no_memory(run->diag);
    }
    for (;;) {
        struct pollfd waits = {.fd = run->fd, .events = POLLIN};
        int64_t left_us = run->deadline_us - gr_clock_now_us(&clock);
        int ready = left_us > 0 ? poll(&waits, 1, (int)(left_us / 1000) + 1) : 0;
        if (ready == 0) {
            return too_late(run);
        }
        ssize_t got = ready > 0 ? read(run->fd, run->text + run->size_bytes,
                                       GR_KUBE_FILE_BYTES + 1 - run->size_bytes)
                                : -1;
        if (got == 0) {
            return GR_OK;
        }
        if (got < 0 && errno != EINTR) {
            return gr_fail(run->diag, GR_E_IO, "%s: cannot read what \"%.100s\" prints: %s",
                           run->plugin->where, run->plugin->argv[0], strerror(errno));
        }
        run->size_bytes += got > 0 ? (size_t)got : 0;
        if (run->size_bytes > GR_KUBE_FILE_BYTES) {
            return gr_fail(run->diag, GR_E_AUTH, "%s: \"%.100s\" prints more than %d bytes",
                           run->plugin->where, run->plugin->argv[0], GR_KUBE_FILE_BYTES);
        }
    }
}

/* Waits for its end; after a failure it is ended, with all that it started. */
static gr_status finish(plugin_run *run, gr_status status)
{
    gr_clock clock = gr_clock_real();
    int state = 0;
    pid_t ended = 0;
    close(run->fd);
    while (status == GR_OK && (ended = waitpid(run->pid, &state, WNOHANG)) == 0) {
        if (gr_clock_now_us(&clock) >= run->deadline_us) {
            status = too_late(run);
        }
        poll(NULL, 0, 2); /* it has closed its output: it is about to end */
    }
    if (ended == 0) {
        kill(-run->pid, SIGKILL);
        while (waitpid(run->pid, &state, 0) < 0 && errno == EINTR) {
        }
        return status;
    }
    if (WIFEXITED(state) && WEXITSTATUS(state) == 0) {
        return status;
    }
    return gr_fail(run->diag, GR_E_AUTH,
                   "%s: \"%.100s\", which logs in to the cluster, ended with %s %d; what it says "
                   "stands above",
                   run->plugin->where, run->plugin->argv[0],
                   WIFEXITED(state) ? "exit code" : "signal",
                   WIFEXITED(state) ? WEXITSTATUS(state) : WTERMSIG(state));
}

static gr_status bad_answer(const plugin_run *run, const char *what)
{
    return gr_fail(run->diag, GR_E_AUTH,
                   "%s: what \"%.100s\" prints is no ExecCredential of %s: %s", run->plugin->where,
                   run->plugin->argv[0], run->plugin->api_version, what);
}

static char *copy_of(const json_t *status, const char *key)
{
    const char *text = json_string_value(json_object_get(status, key));
    return text != NULL && text[0] != '\0' ? strdup(text) : NULL;
}

static gr_status take_login(const plugin_run *run, const json_t *answer, gr_kube_login *login)
{
    const char *version = json_string_value(json_object_get(answer, "apiVersion"));
    const char *kind = json_string_value(json_object_get(answer, "kind"));
    const json_t *status = json_object_get(answer, "status");
    const json_t *expires = json_object_get(status, "expirationTimestamp");
    int64_t expires_us = 0;
    if (answer == NULL) {
        return bad_answer(run, "it is no JSON");
    }
    if (kind == NULL || strcmp(kind, "ExecCredential") != 0 || version == NULL ||
        strcmp(version, run->plugin->api_version) != 0) {
        return bad_answer(run, "kind and apiVersion must be these");
    }
    login->expires_s = INT64_MAX;
    if (expires != NULL && !json_is_null(expires)) {
        if (!json_is_string(expires) || !gr_time_read(json_string_value(expires), &expires_us)) {
            return bad_answer(run, "expirationTimestamp is no time");
        }
        login->expires_s = expires_us / 1000000;
    }
    login->token = copy_of(status, "token");
    login->cert_pem = copy_of(status, "clientCertificateData");
    login->key_pem = copy_of(status, "clientKeyData");
    bool has_cert = login->cert_pem != NULL;
    const char *wrong = NULL;
    if (has_cert != (login->key_pem != NULL)) {
        wrong = "clientCertificateData and clientKeyData must come together";
    } else if (login->token == NULL && !has_cert) {
        wrong = "status has neither a token nor a client certificate";
    } else if (login->token != NULL && strpbrk(login->token, " \t\r\n") != NULL) {
        wrong = "the token must be one word";
    }
    if (wrong != NULL) {
        gr_kube_wipe(login->token);
        gr_kube_wipe(login->cert_pem);
        gr_kube_wipe(login->key_pem);
        *login = (gr_kube_login){0};
        return bad_answer(run, wrong);
    }
    return GR_OK;
}

gr_status gr_kube_plugin_run(const gr_kube_plugin *plugin, const gr_kube_access *access,
                             int64_t timeout_us, gr_kube_login *login_out, gr_diag *diag)
{
    gr_clock clock = gr_clock_real();
    plugin_run run = {.plugin = plugin,
                      .fd = -1,
                      .deadline_us = gr_clock_deadline_us(&clock, timeout_us),
                      .diag = diag};
    gr_kube_login login = {0};
    gr_status status = start(&run, access);
    if (status == GR_OK) {
        status = finish(&run, read_output(&run));
    }
    if (status == GR_OK) {
        json_t *answer = json_loadb(run.text, run.size_bytes, 0, NULL);
        status = take_login(&run, answer, &login);
        json_decref(answer);
    }
    if (run.text != NULL) {
        gr_wipe(run.text, run.size_bytes);
        free(run.text);
    }
    if (status == GR_OK) {
        *login_out = login;
    }
    return status;
}
