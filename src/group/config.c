/* SPDX-License-Identifier: Apache-2.0 */
#include "group/group.h"

#include "base/hash.h"
#include "group/message.h"
#include "link/secret.h"

#include <stddef.h>
#include <string.h>
#include <unistd.h>

const char *const gr_link_choices[] = {"auto", "shm", "tcp", NULL};
/* In the order of gr_log_level. */
static const char *const log_choices[] = {"off", "error", "warn", "info", "debug", "trace", NULL};
const char *const gr_group_cma_choices[] = {"auto", "off", "on", NULL};
/* The index is the number; 0: chosen. */
static const char *const rail_choices[] = {"auto", "1", "2", "3", "4", "5", "6", "7", "8", NULL};
_Static_assert(sizeof rail_choices / sizeof rail_choices[0] == GR_LINK_RAILS_MAX + 2,
               "auto, each number, and the end");
static const char *const progress_choices[] = {"auto", "thread", "inline", NULL};

/* In the order of gr_threads. */
static const char *const threads_choices[] = {"auto", "one", "many", NULL};
static const char *const bootstrap_choices[] = {"auto", "off", NULL};

const char *gr_link_choice_name(uint32_t choice)
{
    return choice <= GR_LINK_ALL_TCP ? gr_link_choices[choice] : "unknown";
}

#define AT(member) .offset = offsetof(gr_group_config, member)

static const gr_config_field fields[] = {
    {.env = "GRADUS_RANK",
     .type = GR_CONFIG_INT,
     AT(rank),
     .default_text = "-1",
     .min = -1,
     .max = GR_GROUP_WORLD_MAX - 1,
     .help = "rank of this process; unset: it is alone"},
    {.env = "GRADUS_WORLD_SIZE",
     .type = GR_CONFIG_INT,
     AT(world_size),
     .default_text = "1",
     .min = 1,
     .max = GR_GROUP_WORLD_MAX,
     .unit = "ranks",
     .help = "how many ranks the job has"},
    {.env = "GRADUS_LOCAL_RANK",
     .type = GR_CONFIG_INT,
     AT(local_rank),
     .default_text = "0",
     .min = 0,
     .max = GR_GROUP_WORLD_MAX - 1,
     .help = "rank among the processes of this host"},
    {.env = "GRADUS_LOCAL_SIZE",
     .type = GR_CONFIG_INT,
     AT(local_size),
     .default_text = "0",
     .min = 0,
     .max = GR_GROUP_WORLD_MAX,
     .unit = "ranks",
     .help = "how many ranks run on this host; unset: found out when all have met"},
    {.env = "GRADUS_COORDINATOR",
     .type = GR_CONFIG_TEXT,
     AT(coordinator),
     .value_name = "ADDRESS",
     .help = "where the ranks meet: unix:@NAME or tcp:HOST:PORT; a joining rank looks at several, "
             "with blanks between"},
    {.env = "GRADUS_SECRET",
     .type = GR_CONFIG_TEXT,
     AT(secret_hex),
     .value_name = "HEX",
     .help = "the job's secret, 64 hexadecimal digits; every connection is proved with it; wiped "
             "when it was read"},
    {.env = "GRADUS_SECRET_FILE",
     .type = GR_CONFIG_TEXT,
     AT(secret_file),
     .value_name = "FILE",
     .help =
         "where it stands if GRADUS_SECRET is unset; nobody else may read the file (mode 0600)"},
    {.env = "GRADUS_BOOTSTRAP",
     .type = GR_CONFIG_CHOICE,
     AT(bootstrap),
     .default_text = "auto",
     .choices = bootstrap_choices,
     .help = "auto: where GRADUS_RANK is unset, rank and world size are those of torchrun, mpirun "
             "(Open MPI, MPICH) or srun; off: the process is alone then"},
    {.env = "GRADUS_RENDEZVOUS_DIR",
     .type = GR_CONFIG_TEXT,
     AT(rendezvous_dir),
     .value_name = "FOLDER",
     .help = "a folder that all hosts share, in which ranks of another launcher find each other by "
             "a file of mode 0600; unset: /tmp for ranks of one host"},
    {GR_GROUP_ROW_LINK, AT(link),
     .help = "how bytes move between ranks; auto: shm inside a host, tcp between hosts"},
    {GR_GROUP_ROW_ENCRYPT, AT(encrypt),
     .help = "TLS 1.3 on all that goes by tcp; the same for all ranks"},
    {.env = "GRADUS_HOST",
     .type = GR_CONFIG_TEXT,
     AT(host),
     .value_name = "NAME",
     .help = "which host this is: ranks with the same name share memory; unset: found out"},
    {GR_GROUP_ROW_INTERFACES, AT(interfaces)},
    {.env = "GRADUS_RAILS",
     .former_env = "GRADUS_STREAMS",
     .type = GR_CONFIG_CHOICE,
     AT(rails),
     .default_text = "auto",
     .choices = rail_choices,
     .help = "tcp connections between two ranks; auto: one for each network interface that both "
             "have, more where one does not fill it; one inside a host"},
    {.env = "GRADUS_CONNECT_ALL",
     .type = GR_CONFIG_INT,
     AT(connect_all_max),
     .default_text = "0",
     .min = 0,
     .max = GR_GROUP_WORLD_MAX,
     .unit = "ranks",
     .help =
         "groups of up to so many ranks make all connections at the join, larger ones each when "
         "it is first needed; 0: 16"},
    {GR_GROUP_ROW_PORTS, AT(ports)},
    {GR_GROUP_ROW_MEMBERS_MIN, AT(members_min),
     .help = "the job goes on while so many ranks live; 0: all must; the same for all"},
    {.env = "GRADUS_MAX_WORKERS",
     .type = GR_CONFIG_INT,
     AT(members_max),
     .default_text = "0",
     .min = 0,
     .max = GR_GROUP_WORLD_MAX,
     .unit = "ranks",
     .help = "numbers of ranks that the job may get, joining workers included; 0: none joins"},
    {.env = "GRADUS_FAILOVER",
     .type = GR_CONFIG_BOOL,
     AT(failover),
     .default_text = "false",
     .help = "a rank takes over when the coordinator dies; said by `gradus rendezvous "
             "--min-workers`"},
    {.env = "GRADUS_JOINING",
     .type = GR_CONFIG_BOOL,
     AT(joining),
     .help =
         "this rank comes to a job that runs already; set by `gradus run`, or by hand in the place "
         "of a rank that was lost"},
    {.env = "GRADUS_JOIN_TIMEOUT",
     .type = GR_CONFIG_DURATION,
     AT(join_timeout_us),
     .default_text = "60s",
     .min = 0,
     .max = 86400e6,
     .unit = "s",
     .help = "how long a rank waits for the others to come; 0: for ever"},
    {.env = "GRADUS_OP_TIMEOUT",
     .type = GR_CONFIG_DURATION,
     AT(op_timeout_us),
     .default_text = "5min",
     .min = 0,
     .max = 7 * 86400e6,
     .unit = "s",
     .help = "an operation that waits longer fails; 0: never"},
    {.env = "GRADUS_STALL_WARN",
     .type = GR_CONFIG_DURATION,
     AT(stall_warn_us),
     .default_text = "30s",
     .min = 0,
     .max = 7 * 86400e6,
     .unit = "s",
     .help = "an operation in which nothing moves for so long is reported in the log; 0: never"},
    {.env = "GRADUS_STALL_FAIL",
     .type = GR_CONFIG_DURATION,
     AT(stall_fail_us),
     .default_text = "0",
     .min = 0,
     .max = 7 * 86400e6,
     .unit = "s",
     .help = "it fails when nothing moves for so long; 0: as GRADUS_OP_TIMEOUT says"},
    {GR_GROUP_ROW_PEER_TIMEOUT, AT(peer_timeout_us),
     .help = "a rank reached by tcp that acknowledges nothing for so long is lost: its host has "
             "vanished, or the network to it"},
    {.env = "GRADUS_SPIN",
     .type = GR_CONFIG_DURATION,
     AT(spin_us),
     .default_text = "50us",
     .min = 0,
     .max = 1e6,
     .unit = "s",
     .help = "longest busy wait before a rank sleeps; 0: never busy"},
    {GR_GROUP_ROW_CMA, AT(cma), .default_text = "auto",
     .help = "is memory that is not from gr_alloc reached by process_vm_readv? auto: where that is "
             "permitted, and faster; on: where it is permitted"},
    {.env = "GRADUS_EXACT",
     .type = GR_CONFIG_BOOL,
     AT(exact),
     .default_text = "true",
     .help = "sums have the same bits for any number of ranks, algorithm and link"},
    {.env = "GRADUS_ALGORITHM",
     .type = GR_CONFIG_TEXT,
     AT(algorithm),
     .value_name = "RULES",
     .help = "algorithms by size, \"allreduce:0-64k=tree,64k-inf=direct\" say; unset: chosen"},
    {.env = "GRADUS_TUNE",
     .type = GR_CONFIG_TEXT,
     AT(tune),
     .default_text = "auto",
     .value_name = "auto|off|FILE",
     .help =
         "costs by which algorithms are chosen: measured at the start, usual, or of `gradus tune`"},
    {.env = "GRADUS_TUNE_TIME",
     .type = GR_CONFIG_DURATION,
     AT(tune_time_us),
     .default_text = "5ms",
     .min = 0,
     .max = 60e6,
     .unit = "s",
     .help = "about how long is measured at the start; 0: not at all"},
    {.env = "GRADUS_PROGRESS",
     .type = GR_CONFIG_CHOICE,
     AT(progress),
     .default_text = "auto",
     .choices = progress_choices,
     .help = "who moves operations on while the program computes: a thread, or calls only"},
    {.env = "GRADUS_THREADS",
     .type = GR_CONFIG_CHOICE,
     AT(threads),
     .default_text = "auto",
     .choices = threads_choices,
     .help =
         "how many threads of the process start operations; one: ranks that wait for each other "
         "are told at once, even if there are other threads; auto: as many as the process has"},
    {GR_GROUP_ROW_SEGMENT, AT(segment_bytes), .unit = "bytes",
     .help =
         "messages are cut into segments of this size, alike on all ranks; unset: chosen by size"},
    {.env = "GRADUS_TIMELINE",
     .type = GR_CONFIG_TEXT,
     AT(timeline),
     .value_name = "FILE",
     .help = "what each rank did when is written to FILE.<rank>; `gradus timeline FILE` makes one "
             "file of them, for ui.perfetto.dev"},
    {.env = "GRADUS_RECORD",
     .type = GR_CONFIG_TEXT,
     AT(record),
     .value_name = "FILE",
     .help = "where the last 1,024 operations are recorded, for when the rank is gone; set by "
             "`gradus run`"},
    {.env = "GRADUS_LOG",
     .type = GR_CONFIG_CHOICE,
     AT(log_level),
     .default_text = "warn",
     .choices = log_choices,
     .help = "what to log on stderr"},
    {0},
};

const gr_config_table gr_group_config_table = {
    .name = "group",
    .title = "What a rank reads from its environment",
    .fields = fields,
    .struct_bytes = sizeof(gr_group_config),
};

gr_status gr_group_config_from_env(gr_group_config *config_out, gr_arena *arena, gr_diag *diag)
{
    gr_status status = gr_config_defaults(&gr_group_config_table, config_out, arena, diag);
    if (status == GR_OK) {
        status = gr_config_from_env(&gr_group_config_table, config_out, environ, arena, diag);
    }
    if (status != GR_OK || config_out->rank >= 0 || config_out->bootstrap != 0) {
        return status;
    }
    gr_launch *launch = &config_out->launch;
    status = gr_launch_read(environ, launch, diag);
    if (status == GR_OK && launch->name != NULL && launch->world_size > 1) {
        config_out->rank = launch->rank;
        config_out->world_size = launch->world_size;
        config_out->local_rank = launch->local_rank;
        config_out->local_size = launch->local_size;
    }
    return status;
}

bool gr_group_has_secret(const gr_group_config *config)
{
    return (config->secret_hex != NULL && config->secret_hex[0] != '\0') ||
           config->secret_file != NULL;
}

bool gr_group_elastic(const gr_group_config *config)
{
    int64_t most =
        config->members_max > config->world_size ? config->members_max : config->world_size;
    return config->rank >= 0 && config->members_min > 0 && config->members_min < most;
}

gr_status gr_group_config_keep(const gr_group_config *config, gr_arena *arena,
                               gr_group_config *kept_out, gr_diag *diag)
{
    gr_group_config kept = *config;
    kept.secret_hex = NULL;
    for (const gr_config_field *field = fields; field->env; field++) {
        if (field->type != GR_CONFIG_TEXT) {
            continue;
        }
        const char **text = (const char **)((char *)&kept + field->offset);
        if (*text && !(*text = gr_arena_strdup(arena, *text))) {
            return gr_fail(diag, GR_E_NO_MEMORY, "no memory for the configuration of a group");
        }
    }
    *kept_out = kept;
    return GR_OK;
}

void gr_group_config_wipe(gr_group_config *config)
{
    if (config->secret_hex) {
        gr_wipe((void *)(uintptr_t)config->secret_hex, strlen(config->secret_hex)); /* arena's */
        config->secret_hex = NULL;
    }
    gr_secret_clear_environment();
}
