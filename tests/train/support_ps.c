/* SPDX-License-Identifier: Apache-2.0 */
#include "support_ps.h"

#include "link/secret.h"
#include "ps/server/server.h"
#include "train/updater.h"

#include <setjmp.h>
#include <signal.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/prctl.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cmocka.h>

enum { SERVER_SECONDS = 200 };

/* Until it is killed. */
static _Noreturn void run_server(const support_servers *servers, int number,
                                 const uint8_t secret[GR_SECRET_BYTES], int said)
{
    gr_ps_server_config config;
    gr_ps_server *server = NULL;
    gr_diag diag = {0};
    prctl(PR_SET_PDEATHSIG, SIGKILL); /* a test that fails leaves none behind */
    alarm(SERVER_SECONDS);
    gr_ps_server_config_init(&config);
    config.number = number;
    config.servers = servers->count;
    config.secret = secret;
    config.link = servers->tcp ? GR_LINK_ALL_TCP : GR_LINK_AUTO;
    config.listen_host = "127.0.0.1";
    config.updaters = gr_updater_ops();
    gr_status status = gr_ps_server_create(&config, &server, &diag);
    if (status == GR_OK) {
        dprintf(said, "%s\n", gr_ps_server_address(server));
        close(said);
    }
    while (status == GR_OK || status == GR_PENDING) {
        status = gr_ps_server_poll(server, &diag);
        if (status == GR_OK) {
            gr_ps_server_wait(server, GR_NEVER);
        }
    }
    fprintf(stderr, "server %d: %s\n", number, diag.text);
    _exit(1);
}

/* Its address, behind those of the servers before it. */
static void append_address(int from, char addresses[SUPPORT_ADDRESSES_BYTES])
{
    char text[SUPPORT_ADDRESSES_BYTES] = "";
    size_t size = 0;
    ssize_t got;
    while ((got = read(from, text + size, sizeof text - 1 - size)) > 0) {
        size += (size_t)got;
    }
    assert_true(size > 1 && text[size - 1] == '\n');
    text[size - 1] = '\0';
    size_t used = strlen(addresses);
    int added = snprintf(addresses + used, SUPPORT_ADDRESSES_BYTES - used, "%s%s",
                         used > 0 ? "," : "", text);
    assert_true(added > 0 && (size_t)added < SUPPORT_ADDRESSES_BYTES - used);
}

void support_servers_start(support_servers *servers, int count, const char *link)
{
    uint8_t secret[GR_SECRET_BYTES];
    char path[SUPPORT_PATH_BYTES + 16], addresses[SUPPORT_ADDRESSES_BYTES] = "";
    gr_diag diag = {0};
    *servers = (support_servers){.count = count, .tcp = strcmp(link, "tcp") == 0};
    support_folder(servers->folder);
    snprintf(path, sizeof path, "%s/secret", servers->folder);
    assert_int_equal(gr_random_bytes(secret, sizeof secret, &diag), GR_OK);
    assert_int_equal(gr_secret_write(path, secret, &diag), GR_OK);
    fflush(NULL);
    for (int i = 0; i < count; i++) {
        int ends[2];
        assert_int_equal(pipe(ends), 0);
        servers->pids[i] = fork();
        assert_true(servers->pids[i] >= 0);
        if (servers->pids[i] == 0) {
            close(ends[0]);
            run_server(servers, i, secret, ends[1]);
        }
        close(ends[1]);
        append_address(ends[0], addresses);
        close(ends[0]);
    }
    setenv("GRADUS_SERVERS", addresses, 1);
    setenv("GRADUS_SECRET_FILE", path, 1);
}

void support_servers_stop(support_servers *servers)
{
    for (int i = 0; i < servers->count; i++) {
        int status = 0;
        kill(servers->pids[i], SIGKILL);
        assert_int_equal(waitpid(servers->pids[i], &status, 0), servers->pids[i]);
        assert_true(WIFSIGNALED(status) && WTERMSIG(status) == SIGKILL);
    }
    unsetenv("GRADUS_SERVERS");
    unsetenv("GRADUS_SECRET_FILE");
    support_clean(servers->folder);
}
