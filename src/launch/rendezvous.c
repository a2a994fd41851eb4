/* SPDX-License-Identifier: Apache-2.0 */
#include "launch/rendezvous.h"

#include "base/config.h"
#include "base/fail.h"
#include "base/hash.h"
#include "link/address.h"
#include "link/interface.h"

#include <arpa/inet.h>
#include <errno.h>
#include <netinet/in.h>
#include <stdio.h>
#include <string.h>
#include <sys/socket.h>
#include <unistd.h>

enum { PORT_FIRST = 20000, PORT_TRIES = 64 };

/* The first of those that the kernel gives to connections, and to listeners that name none. */
static int first_given_port(void)
{
    FILE *file = fopen("/proc/sys/net/ipv4/ip_local_port_range", "re");
    int first = 0;
    if (file != NULL) {
        if (fscanf(file, "%d", &first) != 1) {
            first = 0;
        }
        fclose(file);
    }
    return first;
}

/* Binds this port, 0: any, and lets it go. Returns it; -1: errno tells why not. */
static int try_port(int port)
{
    struct sockaddr_in address = {.sin_family = AF_INET, .sin_port = htons((uint16_t)port)};
    socklen_t size = sizeof address;
    int fd = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
    bool bound = fd >= 0 && bind(fd, (struct sockaddr *)&address, size) == 0 &&
                 getsockname(fd, (struct sockaddr *)&address, &size) == 0;
    int error = errno;
    if (fd >= 0) {
        close(fd);
    }
    errno = error;
    return bound ? ntohs(address.sin_port) : -1;
}

gr_status gr_rendezvous_free_port(int *port_out, gr_diag *diag)
{
    const int given = first_given_port();
    uint16_t random[PORT_TRIES];
    gr_status status = gr_random_bytes(random, sizeof random, diag);
    if (status != GR_OK) {
        return status;
    }
    int port = -1;
    for (int i = 0; i < PORT_TRIES && given > PORT_FIRST && port < 0; i++) {
        port = try_port(PORT_FIRST + random[i] % (given - PORT_FIRST));
    }
    port = port < 0 ? try_port(0) : port;
    if (port < 0) {
        return gr_fail(diag, GR_E_IO, "no free port for MASTER_PORT: %s", strerror(errno));
    }
    *port_out = port;
    return GR_OK;
}

gr_status gr_rendezvous_listen(bool here_only, char *const *environment,
                               gr_coordinator_config *config, gr_diag *diag)
{
    if (here_only) {
        return GR_OK;
    }
    config->listen_host = "*";
    return gr_ports_parse(gr_config_variable(environment, "GRADUS_PORTS"), &config->ports, diag);
}

/* On the interface that GRADUS_INTERFACE names. */
static gr_status announce(const gr_rendezvous *rendezvous, const char *wanted, gr_arena *arena,
                          gr_environ_config *environ_out, gr_diag *diag)
{
    gr_interfaces found;
    char remote[GR_REMOTE_BYTES], address[GR_ADDRESS_BYTES] = "";
    size_t at = 0;
    gr_status status = gr_interfaces_find(wanted, &found, diag);
    if (status == GR_OK) {
        gr_interfaces_announce(&found, rendezvous->coordinator, remote);
        (void)gr_address_next(remote, &at, address);
        environ_out->coordinator = gr_arena_strdup(arena, address);
    }
    return status;
}

gr_status gr_rendezvous_find(const gr_rendezvous *rendezvous, const gr_host *host, gr_arena *arena,
                             gr_environ_config *environ_out, gr_diag *diag)
{
    const char *wanted = gr_config_variable(rendezvous->environment, "GRADUS_INTERFACE");
    const gr_host *first = rendezvous->first;
    gr_status status = GR_OK;
    environ_out->coordinator = rendezvous->coordinator;
    environ_out->master = first->local ? "127.0.0.1" : gr_host_label(first);
    if (rendezvous->here_only) {
        return GR_OK;
    }
    if (wanted != NULL && wanted[0] != '\0') {
        status = announce(rendezvous, wanted, arena, environ_out, diag);
    } else {
        const char *port = strrchr(rendezvous->coordinator, ':');
        environ_out->coordinator =
            gr_arena_printf(arena, "tcp:%s%s", host->local ? "127.0.0.1" : "*", port);
    }
    if (!host->local && first->local) {
        environ_out->master = "*";
    }
    return status != GR_OK || environ_out->coordinator != NULL
               ? status
               : gr_fail(diag, GR_E_NO_MEMORY, "no memory for an address");
}
