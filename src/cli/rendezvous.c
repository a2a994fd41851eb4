/* SPDX-License-Identifier: Apache-2.0 */
#include "base/fail.h"
#include "base/hash.h"
#include "cli/cli.h"
#include "group/group.h"
#include "link/address.h"
#include "link/interface.h"

#include <errno.h>
#include <inttypes.h>
#include <poll.h>
#include <stddef.h>
#include <string.h>

/* States of gr_coordinator_member_state. */
enum { MEMBER_ABSENT = 0, MEMBER_LEFT = 2, MEMBER_LOST = 3 };
enum { LIST_BYTES = 160, LISTED_MAX = 16 };

typedef struct rendezvous_options {
    int64_t ranks, ranks_min, wait_us, peer_timeout_us;
    const char *listen, *ports;
    bool encrypt;
    gr_cli_secret secret;
} rendezvous_options;

#define AT(member) .offset = offsetof(rendezvous_options, member)

static const gr_config_field rendezvous_fields[] = {
    {.flag = "-np",
     .short_flag = 'n',
     .type = GR_CONFIG_INT,
     AT(ranks),
     .default_text = "1",
     .min = 1,
     .max = GR_GROUP_WORLD_MAX,
     .unit = "ranks",
     .help = "how many ranks will call in"},
    {.flag = "--min-workers",
     GR_GROUP_ROW_MEMBERS_MIN,
     AT(ranks_min),
     .help = "the job goes on while so many ranks live; 0: all must; the same for all ranks"},
    {.flag = "--listen",
     .type = GR_CONFIG_TEXT,
     AT(listen),
     .default_text = "*",
     .value_name = "HOST",
     .help = "name or address of this host that the ranks reach; *: all its addresses"},
    {.flag = "--wait",
     .type = GR_CONFIG_DURATION,
     AT(wait_us),
     .default_text = "5min",
     .min = 0,
     .max = 30 * 86400e6,
     .unit = "s",
     .help = "how long to wait until all ranks have called in; 0: for ever"},
    {.flag = "--ports", GR_GROUP_ROW_PORTS, AT(ports)},
    {.flag = "--encrypt",
     GR_GROUP_ROW_ENCRYPT,
     AT(encrypt),
     .help = "TLS 1.3 on all that goes by tcp; the same for all ranks"},
    {GR_GROUP_ROW_PEER_TIMEOUT, AT(peer_timeout_us),
     .help = "a rank that acknowledges nothing for so long is lost"},
    {GR_CLI_ROW_SECRET, AT(secret.hex)},
    {GR_CLI_ROW_SECRET_FILE, AT(secret.file)},
    {GR_CLI_ROW_PRINT_SECRET, AT(secret.print)},
    {0},
};

const gr_config_table gr_rendezvous_table = {
    .name = "rendezvous",
    .title =
        "gradus rendezvous: the place where ranks meet that you start on several hosts yourself",
    .fields = rendezvous_fields,
    .struct_bytes = sizeof(rendezvous_options),
};

/* All have ended, one way or the other. */
static bool is_over(const gr_coordinator *coordinator, int ranks)
{
    for (int rank = 0; rank < ranks; rank++) {
        if (gr_coordinator_member_state(coordinator, rank) < MEMBER_LEFT) {
            return false;
        }
    }
    return gr_coordinator_is_alone(coordinator); /* nobody has joined later, or they have ended */
}

/* "0, 1, 5 and 3 more": the ranks that are in this state (`like`), or in any other one. Returns how
 * many. */
static int list_ranks(const gr_coordinator *coordinator, int ranks, int state, bool like,
                      char text_out[LIST_BYTES])
{
    int count = 0;
    size_t used = 0;
    text_out[0] = '\0';
    for (int rank = 0; rank < ranks; rank++) {
        if ((gr_coordinator_member_state(coordinator, rank) == state) != like) {
            continue;
        }
        if (count++ < LISTED_MAX) {
            int put =
                snprintf(text_out + used, LIST_BYTES - used, "%s%d", count > 1 ? ", " : "", rank);
            used += put > 0 ? (size_t)put : 0;
        }
    }
    if (count > LISTED_MAX) {
        snprintf(text_out + used, LIST_BYTES - used, " and %d more", count - LISTED_MAX);
    }
    return count;
}

static gr_status fail_absent(const gr_coordinator *coordinator, const rendezvous_options *options,
                             gr_diag *diag)
{
    char came[LIST_BYTES], absent[LIST_BYTES];
    int ranks = (int)options->ranks;
    int there = list_ranks(coordinator, ranks, MEMBER_ABSENT, false, came);
    (void)list_ranks(coordinator, ranks, MEMBER_ABSENT, true, absent);
    return gr_fail(diag, GR_E_TIMEOUT,
                   "after %g s %d of %d ranks have called in (%s), but not %s; start them with "
                   "their GRADUS_RANK and what was printed here, or allow more time by --wait",
                   (double)options->wait_us / 1e6, there, ranks, there > 0 ? came : "none", absent);
}

/* Until then it waits for news; GR_NEVER. */
static gr_status wait_for_ranks(const gr_coordinator *coordinator, int64_t until_us, gr_diag *diag)
{
    struct pollfd at = {.fd = gr_coordinator_fd(coordinator), .events = POLLIN};
    int64_t next_us = gr_coordinator_next_us(coordinator), now_us = gr_now_ns() / 1000;
    next_us = until_us < next_us ? until_us : next_us;
    int64_t left_ms = next_us == GR_NEVER ? -1
                      : next_us <= now_us ? 0
                                          : (next_us - now_us) / 1000 + 1;
    if (poll(&at, 1, left_ms > 60000 ? 60000 : (int)left_ms) < 0 && errno != EINTR) {
        return gr_fail(diag, GR_E_IO, "cannot wait for the ranks: %s", strerror(errno));
    }
    return GR_OK;
}

static gr_status serve(gr_coordinator *coordinator, const rendezvous_options *options,
                       gr_diag *diag)
{
    int ranks = (int)options->ranks;
    gr_clock clock = gr_clock_real();
    int64_t until_us = gr_clock_deadline_us(&clock, options->wait_us);
    while (!is_over(coordinator, ranks)) {
        bool all = gr_coordinator_joined(coordinator) == ranks;
        gr_status status = wait_for_ranks(coordinator, all ? GR_NEVER : until_us, diag);
        if (status == GR_OK) {
            status = gr_coordinator_progress(coordinator, diag);
        }
        if (status != GR_OK) {
            return status;
        }
        if (gr_coordinator_joined(coordinator) < ranks && gr_clock_now_us(&clock) >= until_us) {
            return fail_absent(coordinator, options, diag);
        }
    }
    char lost[LIST_BYTES];
    bool finished = options->ranks_min > 0 && gr_coordinator_is_over(coordinator);
    return finished || list_ranks(coordinator, ranks, MEMBER_LOST, true, lost) == 0
               ? GR_OK
               : gr_fail(diag, GR_E_PEER_LOST, "ranks that ended without leaving in order: %s",
                         lost);
}

/* Where others reach it: of all addresses, that of the fastest interface. */
static gr_status reachable(const rendezvous_options *options, const gr_coordinator *coordinator,
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

/* Returns true if the job may go on without some of its ranks. It may then go on without this
 * process, too. */
static bool is_elastic(const rendezvous_options *options)
{
    return options->ranks_min > 0 && options->ranks_min < options->ranks;
}

static int rendezvous(const gr_cli_line *line)
{
    const rendezvous_options *options = line->options;
    gr_diag diag = {0};
    uint8_t secret[GR_SECRET_BYTES];
    char address[GR_ADDRESS_BYTES];
    bool printed = false;
    gr_coordinator *coordinator = NULL;
    gr_log log = {.level = GR_LOG_WARN, .sink = gr_log_to_file, .sink_arg = stderr};
    gr_coordinator_config config = {.world_size = (int)options->ranks,
                                    .members_min = (int)options->ranks_min,
                                    .failover = is_elastic(options),
                                    .secret = secret,
                                    .encrypt = options->encrypt,
                                    .listen_host = options->listen,
                                    .peer_timeout_us = options->peer_timeout_us,
                                    .log = &log};
    gr_status status = gr_ports_parse(options->ports, &config.ports, &diag);
    if (status == GR_OK) {
        status = gr_cli_take_secret(&options->secret, secret, &printed, &diag);
    }
    if (status == GR_OK) {
        status = gr_coordinator_create(&config, &coordinator, &diag);
    }
    if (status == GR_OK) {
        status = reachable(options, coordinator, address, &diag);
    }
    if (status != GR_OK) {
        gr_wipe(secret, sizeof secret);
        gr_coordinator_destroy(coordinator);
        return gr_cli_refuse(status, &diag);
    }
    /* Lines that a shell can take in with `export`. */
    printf("GRADUS_WORLD_SIZE=%d\nGRADUS_COORDINATOR=%s\n", (int)options->ranks, address);
    if (is_elastic(options)) {
        printf("GRADUS_MIN_WORKERS=%d\nGRADUS_FAILOVER=yes\n", (int)options->ranks_min);
    }
    gr_cli_leave_secret(secret, printed);
    gr_wipe_stack();
    int code = gr_cli_flush();
    if (code == GR_EXIT_DONE) {
        status = serve(coordinator, options, &diag);
        code = status == GR_OK ? GR_EXIT_DONE : gr_cli_fail(GR_EXIT_FAILED, &diag);
    }
    uint64_t unauthenticated = gr_coordinator_pending(coordinator);
    if (unauthenticated > 0) {
        fprintf(stderr,
                "gradus: %" PRIu64 " connections were refused: they did not prove that "
                "they belong to the job\n",
                unauthenticated);
    }
    gr_coordinator_destroy(coordinator);
    return code;
}

static void print_usage(void)
{
    puts("usage: gradus rendezvous -np N [--min-workers N] [--listen HOST] [--secret-file FILE]\n"
         "                         [--wait TIME]\n\n"
         "Prints what each rank needs in its environment, beside its GRADUS_RANK. Ends with the\n"
         "last rank: 0 if all left in order; with --min-workers, if those did that were left.\n\n"
         "With --min-workers below -np the ranks go on without those that are lost, and without\n"
         "this process: when it dies, the first rank that lives takes over from it, and so on.\n"
         "Of the ranks that acted together last, more than half must be left, or half of them\n"
         "with the process that brought them together; else those that are left end, since the\n"
         "others may be going on somewhere.\n");
}

const gr_cli_form gr_rendezvous_form = {.table = &gr_rendezvous_table,
                                        .usage = print_usage,
                                        .by_environment = true,
                                        .work = rendezvous};
