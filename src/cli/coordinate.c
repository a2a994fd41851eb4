/* SPDX-License-Identifier: Apache-2.0 */
#include "base/fail.h"
#include "base/hash.h"
#include "cli/cli.h"
#include "group/group.h"
#include "link/address.h"
#include "link/interface.h"

#include <errno.h>
#include <poll.h>
#include <stddef.h>
#include <string.h>

enum { CONFIG_BYTES_MAX = 64 << 10, MEMBER_LEFT = 2, MEMBER_LOST = 3, LOST_BYTES = 200 };

typedef struct coordinate_options {
    int64_t ranks;
    const char *listen, *ports, *secret_hex;
} coordinate_options;

#define AT(member) .offset = offsetof(coordinate_options, member)

static const gr_config_field coordinate_fields[] = {
    {.flag = "-np",
     .short_flag = 'n',
     .type = GR_CONFIG_INT,
     AT(ranks),
     .default_text = "1",
     .min = 1,
     .max = 4096,
     .unit = "ranks",
     .help = "how many ranks will call in"},
    {.flag = "--listen",
     .type = GR_CONFIG_TEXT,
     AT(listen),
     .default_text = "*",
     .value_name = "HOST",
     .help = "name or address of this host that the ranks reach; *: all its addresses"},
    {.flag = "--ports",
     .env = "GRADUS_PORTS",
     .type = GR_CONFIG_TEXT,
     AT(ports),
     .value_name = "FIRST-LAST",
     .help = "tcp ports to listen on, \"40000-40100\"; unset: any that is free"},
    {.env = "GRADUS_SECRET",
     .type = GR_CONFIG_TEXT,
     AT(secret_hex),
     .value_name = "HEX",
     .help = "the job's secret; unset: a new one is made and printed"},
    {0},
};

const gr_config_table gr_coordinate_table = {
    .name = "coordinate",
    .title =
        "gradus coordinate: the place where ranks meet that you start on several hosts yourself",
    .fields = coordinate_fields,
    .struct_bytes = sizeof(coordinate_options),
};

static gr_status take_secret(const coordinate_options *options, uint8_t secret[GR_SECRET_BYTES],
                             gr_diag *diag)
{
    if (options->secret_hex == NULL) {
        return gr_random_bytes(secret, GR_SECRET_BYTES, diag);
    }
    if (gr_unhex(options->secret_hex, secret, GR_SECRET_BYTES) != GR_OK) {
        return gr_fail(diag, GR_E_INVALID, "GRADUS_SECRET must be %d hexadecimal digits",
                       2 * GR_SECRET_BYTES);
    }
    return GR_OK;
}

/* All have ended, one way or the other. */
static bool is_over(const gr_coordinator *coordinator, int ranks)
{
    for (int rank = 0; rank < ranks; rank++) {
        if (gr_coordinator_member_state(coordinator, rank) < MEMBER_LEFT) {
            return false;
        }
    }
    return true;
}

static gr_status serve(gr_coordinator *coordinator, int ranks, gr_diag *diag)
{
    while (!is_over(coordinator, ranks)) {
        struct pollfd at = {.fd = gr_coordinator_fd(coordinator), .events = POLLIN};
        int64_t next_us = gr_coordinator_next_us(coordinator), now_us = gr_now_ns() / 1000;
        int64_t left_ms = next_us == GR_NEVER ? -1
                          : next_us <= now_us ? 0
                                              : (next_us - now_us) / 1000 + 1;
        if (poll(&at, 1, left_ms > 60000 ? 60000 : (int)left_ms) < 0 && errno != EINTR) {
            return gr_fail(diag, GR_E_IO, "cannot wait for the ranks: %s", strerror(errno));
        }
        gr_status status = gr_coordinator_progress(coordinator, diag);
        if (status != GR_OK) {
            return status;
        }
    }
    char lost[LOST_BYTES] = "";
    size_t used = 0;
    for (int rank = 0; rank < ranks && used + 16 < sizeof lost; rank++) {
        if (gr_coordinator_member_state(coordinator, rank) == MEMBER_LOST) {
            int put = snprintf(lost + used, sizeof lost - used, "%s%d", used > 0 ? ", " : "", rank);
            used += put > 0 ? (size_t)put : 0;
        }
    }
    return used == 0 ? GR_OK
                     : gr_fail(diag, GR_E_PEER_LOST,
                               "ranks that ended without leaving in order: %s", lost);
}

/* Where others reach it: of all addresses, that of the fastest interface. */
static gr_status reachable(const coordinate_options *options, const gr_coordinator *coordinator,
                           char address_out[GR_ADDRESS_BYTES], gr_diag *diag)
{
    gr_interfaces found;
    char remote[GR_REMOTE_BYTES];
    size_t at = 0;
    snprintf(address_out, GR_ADDRESS_BYTES, "%s", gr_coordinator_address(coordinator));
    if (strcmp(options->listen, "*") != 0) {
        return GR_OK;
    }
    gr_status status = gr_interfaces_find(NULL, &found, diag);
    if (status != GR_OK) {
        return status;
    }
    gr_interfaces_announce(&found, gr_coordinator_address(coordinator), remote);
    return gr_address_next(remote, &at, address_out)
               ? GR_OK
               : gr_fail(diag, GR_E_INVALID, "this host has no network interface that is up");
}

static int coordinate(const coordinate_options *options, gr_diag *diag)
{
    uint8_t secret[GR_SECRET_BYTES];
    char hex[2 * GR_SECRET_BYTES + 1], address[GR_ADDRESS_BYTES];
    gr_coordinator *coordinator = NULL;
    gr_log log = {.level = GR_LOG_WARN, .sink = gr_log_to_file, .sink_arg = stderr};
    gr_coordinator_config config = {.world_size = (int)options->ranks,
                                    .secret = secret,
                                    .listen_host = options->listen,
                                    .log = &log};
    gr_status status = gr_ports_parse(options->ports, &config.ports, diag);
    if (status == GR_OK) {
        status = take_secret(options, secret, diag);
    }
    if (status == GR_OK) {
        status = gr_coordinator_create(&config, &coordinator, diag);
    }
    if (status == GR_OK) {
        status = reachable(options, coordinator, address, diag);
    }
    if (status != GR_OK) {
        gr_wipe(secret, sizeof secret);
        gr_coordinator_destroy(coordinator);
        return gr_cli_fail(gr_cli_input_code(status), diag);
    }
    /* Lines that a shell can take in with `export`. */
    printf("GRADUS_WORLD_SIZE=%d\nGRADUS_COORDINATOR=%s\n", (int)options->ranks, address);
    if (options->secret_hex == NULL) {
        gr_hex(secret, sizeof secret, hex);
        printf("GRADUS_SECRET=%s\n", hex);
        gr_wipe(hex, sizeof hex);
    }
    gr_wipe(secret, sizeof secret);
    int code = gr_cli_flush();
    if (code == GR_EXIT_DONE) {
        status = serve(coordinator, (int)options->ranks, diag);
        code = status == GR_OK ? GR_EXIT_DONE : gr_cli_fail(GR_EXIT_FAILED, diag);
    }
    gr_coordinator_destroy(coordinator);
    return code;
}

int gr_verb_coordinate(int argc, char *const *argv)
{
    gr_arena arena;
    gr_arena_init(&arena, CONFIG_BYTES_MAX);
    coordinate_options options;
    gr_cli_line line;
    gr_diag diag = {0};
    int code;
    gr_status status =
        gr_cli_parse(&gr_coordinate_table, &options, argc, argv, 0, &arena, &line, &diag);
    if (status != GR_OK) {
        code = gr_cli_fail(gr_cli_input_code(status), &diag);
    } else if (line.help) {
        puts("usage: gradus coordinate -np N [--listen HOST]\n");
        gr_config_print_help(&gr_coordinate_table, stdout);
        puts("\nPrints what each rank needs in its environment, beside its GRADUS_RANK. Ends with\n"
             "the last rank: 0 if all left in order.");
        code = gr_cli_flush();
    } else {
        code = coordinate(&options, &diag);
    }
    gr_arena_fini(&arena);
    return code;
}
