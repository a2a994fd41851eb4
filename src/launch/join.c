/* SPDX-License-Identifier: Apache-2.0 */
#include "launch/join.h"

#include "base/clock.h"
#include "base/fail.h"
#include "base/fork.h"
#include "launch/launch.h"
#include "launch/signals.h"
#include "link/address.h"
#include "link/secret.h"

#include <errno.h>
#include <netdb.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <poll.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <unistd.h>

enum {
    HALF_OPEN_MAX = 64,
    SHAKE_US = 5000000,
    PAUSE_MS = 200,
    IDLE_S = 10, /* a connection that is not needed yet is asked for signs of life after so long */
    PROBES = 3
};

/* ---- The token ------------------------------------------------------------------------------- */

uint8_t *gr_join_wipe_token(void)
{
    uint8_t token[GR_SECRET_BYTES], *kept = NULL;
    char *text = getenv("GRADUS_JOIN_TOKEN");
    if (text != NULL && gr_unhex(text, token, sizeof token) == GR_OK) {
        kept = gr_secret_keep(token);
    }
    if (text != NULL) {
        gr_wipe(text, strlen(text));
        (void)unsetenv("GRADUS_JOIN_TOKEN");
    }
    gr_wipe(token, sizeof token);
    return kept;
}

void gr_join_show_token(const uint8_t *kept)
{
    char text[2 * GR_SECRET_BYTES + 1];
    if (kept != NULL) {
        gr_hex(kept, GR_SECRET_BYTES, text);
        (void)setenv("GRADUS_JOIN_TOKEN", text, 1);
        gr_wipe(text, sizeof text);
    }
}

gr_status gr_join_token(bool make, uint8_t token_out[GR_SECRET_BYTES], gr_diag *diag)
{
    const char *text = getenv("GRADUS_JOIN_TOKEN"), *file = getenv("GRADUS_JOIN_TOKEN_FILE");
    if (text != NULL && text[0] != '\0') {
        gr_status status = gr_unhex(text, token_out, GR_SECRET_BYTES);
        size_t size = strlen(text);
        gr_secret_forget(gr_join_wipe_token());
        return status == GR_OK ? GR_OK
                               : gr_fail(diag, GR_E_INVALID,
                                         "GRADUS_JOIN_TOKEN must be %d hexadecimal digits (it has "
                                         "%zu characters)",
                                         2 * GR_SECRET_BYTES, size);
    }
    if (file == NULL || file[0] == '\0') {
        return gr_fail(diag, GR_E_INVALID,
                       "agents and launcher prove to each other that they belong together by a "
                       "token; name the file with it by GRADUS_JOIN_TOKEN_FILE (gradus run "
                       "--listen makes it), or set GRADUS_JOIN_TOKEN");
    }
    gr_status status = gr_secret_read(file, token_out, diag);
    if (status == GR_E_NOT_FOUND && make) {
        status = gr_random_bytes(token_out, GR_SECRET_BYTES, diag);
        if (status == GR_OK) {
            status = gr_secret_write(file, token_out, diag);
        }
    }
    return status;
}

/* ---- The launcher's side --------------------------------------------------------------------- */

static gr_status split(const char *at, char host_out[GR_HOST_BYTES], const char **port_out,
                       gr_diag *diag)
{
    return gr_address_split(at, host_out, port_out)
               ? GR_OK
               : gr_fail(diag, GR_E_INVALID, "\"%s\" is no address; write HOST:PORT", at);
}

static bool admit(void *admit_arg, int32_t peer_rank, gr_auth_rail stream)
{
    (void)admit_arg;
    return peer_rank >= 1 && peer_rank <= GR_LAUNCH_WORKERS_MAX && stream.count == 1;
}

gr_status gr_join_listen(const char *at, const uint8_t token[GR_SECRET_BYTES], const gr_log *log,
                         gr_acceptor **acceptor_out, gr_diag *diag)
{
    char host[GR_HOST_BYTES];
    const char *port = "";
    gr_acceptor_config config = {.rank = GR_AUTH_RANK_COORDINATOR,
                                 .secret = token,
                                 .encrypt = true,
                                 .listen_host = host,
                                 .half_open_max = HALF_OPEN_MAX,
                                 .timeout_us = SHAKE_US,
                                 .clock = gr_clock_real(),
                                 .log = log,
                                 .accepts = admit};
    gr_diag why = {0};
    gr_status status = split(at, host, &port, &why);
    if (status == GR_OK && host[0] == '\0') {
        snprintf(host, sizeof host, "*");
    }
    if (status == GR_OK && strcmp(port, "0") != 0) {
        status = gr_ports_parse(port, &config.ports, &why);
        if (status != GR_OK) {
            (void)gr_fail(&why, status, "\"%s\" is no port; give one of 1 to 65535, 0: any", port);
        }
    }
    if (status == GR_OK) {
        status = gr_acceptor_create(&config, acceptor_out, &why);
    }
    return status == GR_OK ? GR_OK : gr_fail(diag, status, "--listen %s: %s", at, why.text);
}

static void watch_idle(int fd)
{
    const int on = 1, idle = IDLE_S, probes = PROBES;
    (void)setsockopt(fd, SOL_SOCKET, SO_KEEPALIVE, &on, sizeof on);
    (void)setsockopt(fd, IPPROTO_TCP, TCP_KEEPIDLE, &idle, sizeof idle);
    (void)setsockopt(fd, IPPROTO_TCP, TCP_KEEPINTVL, &idle, sizeof idle);
    (void)setsockopt(fd, IPPROTO_TCP, TCP_KEEPCNT, &probes, sizeof probes);
}

/* By the address that it came from; an IPv4 address in IPv6 without the prefix. */
void gr_join_name_of(int fd, char *name_out, size_t size_bytes)
{
    static const char mapped[] = "::ffff:";
    struct sockaddr_storage address;
    socklen_t size = sizeof address;
    char text[GR_HOSTS_NAME_BYTES] = "unknown";
    if (getpeername(fd, (struct sockaddr *)&address, &size) == 0) {
        (void)getnameinfo((struct sockaddr *)&address, size, text, sizeof text, NULL, 0,
                          NI_NUMERICHOST);
    }
    bool skip = strncmp(text, mapped, sizeof mapped - 1) == 0;
    snprintf(name_out, size_bytes, "%s", text + (skip ? sizeof mapped - 1 : 0));
}

bool gr_join_take(gr_acceptor *acceptor, char name_out[GR_HOSTS_NAME_BYTES], gr_host *host_out)
{
    gr_accepted arrival;
    if (!gr_acceptor_accept(acceptor, &arrival)) {
        return false;
    }
    gr_fork_unguard(arrival.fd); /* a process that is forked for the host has it */
    gr_join_name_of(arrival.fd, name_out, GR_HOSTS_NAME_BYTES);
    watch_idle(arrival.fd);
    *host_out = (gr_host){
        .name = name_out, .slots = arrival.peer_rank, .fd = arrival.fd, .tls = arrival.tls};
    return true;
}

void gr_join_refuse(gr_host *host)
{
    if (host->tls != NULL) {
        gr_tls_destroy(host->tls);
        close(host->fd);
        host->tls = NULL;
    }
}

/* Until the door has something to do, or a signal has come, but no longer than that. */
static void wait_at(const gr_acceptor *acceptor, int64_t until_us)
{
    int64_t now = gr_now_ns() / 1000, next = gr_acceptor_next_us(acceptor);
    next = next < until_us ? next : until_us;
    int64_t left_ms = next <= now ? 0 : (next - now) / 1000 + 1;
    gr_signals_sleep(gr_acceptor_fd(acceptor), left_ms < 1000 ? (int)left_ms : 1000);
}

gr_status gr_join_gather(gr_acceptor *acceptor, int slots, int64_t timeout_us, gr_arena *arena,
                         gr_host_list *hosts_out, gr_diag *diag)
{
    const int64_t until_us = timeout_us > 0 ? gr_now_ns() / 1000 + timeout_us : INT64_MAX;
    *hosts_out = (gr_host_list){.unsaid = 1};
    while (gr_host_list_slots(hosts_out) < slots) {
        if (gr_signals_waiting() != 0) {
            return gr_fail(diag, GR_E_CANCELLED, "--listen: ended by a signal");
        }
        gr_host *host = &hosts_out->at[hosts_out->count];
        char name[GR_HOSTS_NAME_BYTES];
        gr_status status = gr_acceptor_progress(acceptor, diag);
        if (status < 0) {
            return status;
        }
        if (gr_join_take(acceptor, name, host)) {
            host->name = gr_arena_strdup(arena, name);
            if (host->name == NULL || ++hosts_out->count == GR_HOSTS_MAX) {
                return gr_fail(diag, GR_E_NO_MEMORY, "--listen: there is no room for more agents");
            }
            continue;
        }
        if (gr_now_ns() / 1000 >= until_us) {
            return gr_fail(diag, GR_E_TIMEOUT,
                           "--listen: agents with %d slots have joined within %.0f s "
                           "(--start-timeout), and the job needs %d to begin; %llu connections "
                           "were refused",
                           gr_host_list_slots(hosts_out), (double)timeout_us * 1e-6, slots,
                           (unsigned long long)gr_acceptor_pending(acceptor));
        }
        wait_at(acceptor, until_us);
    }
    return GR_OK;
}

/* ---- The agent's side ------------------------------------------------------------------------ */

static gr_status dial_once(const char *address, const gr_acceptor_config *config,
                           gr_accepted *arrival_out, gr_diag *diag)
{
    gr_acceptor *acceptor = NULL;
    gr_status status = gr_acceptor_create(config, &acceptor, diag);
    if (status == GR_OK) {
        const gr_auth_rail only = {.index = 0, .count = 1};
        status = gr_acceptor_connect(acceptor, GR_AUTH_RANK_COORDINATOR, only, address, diag);
    }
    bool come = false;
    while (status >= 0 && !come) {
        status = gr_acceptor_progress(acceptor, diag);
        come = status >= 0 && gr_acceptor_accept(acceptor, arrival_out);
        if (status >= 0 && !come) {
            wait_at(acceptor, INT64_MAX);
        }
    }
    gr_acceptor_destroy(acceptor);
    return status < 0 ? status : GR_OK;
}

gr_status gr_join_dial(const char *at, int slots, const uint8_t token[GR_SECRET_BYTES],
                       int64_t timeout_us, const gr_log *log, gr_accepted *arrival_out,
                       gr_diag *diag)
{
    char host[GR_HOST_BYTES], address[GR_ADDRESS_BYTES];
    const char *port = "";
    const int64_t until_us = gr_now_ns() / 1000 + timeout_us;
    const gr_acceptor_config config = {.rank = slots,
                                       .secret = token,
                                       .encrypt = true,
                                       .half_open_max = 1,
                                       .outgoing_max = 1,
                                       .timeout_us = SHAKE_US,
                                       .clock = gr_clock_real()};
    gr_status status = split(at, host, &port, diag);
    if (status != GR_OK) {
        return status;
    }
    bool colon = strchr(host, ':') != NULL;
    int size = snprintf(address, sizeof address, "tcp:%s%s%s:%s", colon ? "[" : "", host,
                        colon ? "]" : "", port);
    if (size >= (int)sizeof address) {
        return gr_fail(diag, GR_E_INVALID, "\"%s\" is no address; write HOST:PORT", at);
    }
    for (bool told = false;;) {
        gr_diag why = {0};
        status = dial_once(address, &config, arrival_out, &why);
        if (status == GR_OK) {
            gr_fork_unguard(arrival_out->fd);
            watch_idle(arrival_out->fd);
            return GR_OK;
        }
        bool nobody = status == GR_E_PEER_LOST || status == GR_E_NOT_FOUND;
        if (!nobody || gr_now_ns() / 1000 >= until_us) {
            return gr_fail(diag, status, "%s", why.text);
        }
        if (status == GR_E_NOT_FOUND && !told) {
            told = true;
            gr_log_write(log, GR_LOG_WARN, "agent",
                         "%s; it is looked for again for %.0f s (--wait)", why.text,
                         (double)timeout_us * 1e-6);
        }
        (void)poll(NULL, 0, PAUSE_MS);
    }
}
