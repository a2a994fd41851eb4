/* SPDX-License-Identifier: Apache-2.0 */
#include "base/fail.h"
#include "base/text.h"
#include "cli/cli.h"
#include "cli/info_plan.h"
#include "group/group.h"
#include "link/interface.h"
#include "link/link.h"
#include "link/shared.h"
#include "nn/model.h"

#include <gradus/comm.h>
#include <gradus/version.h>
#include <stddef.h>
#include <stdlib.h>

typedef struct info_options {
    bool config, reference;
    gr_plan_options plan;
} info_options;

static const char *const link_choices[] = {"shm", "tcp", NULL};

#define PLAN(member) .offset = offsetof(info_options, plan.member)

static const gr_config_field info_fields[] = {
    {.flag = "--config",
     .type = GR_CONFIG_BOOL,
     .offset = offsetof(info_options, config),
     .help = "print every key, variable and flag, with defaults"},
    {.flag = "--reference",
     .type = GR_CONFIG_BOOL,
     .offset = offsetof(info_options, reference),
     .help = "print the same as the page docs/reference.md"},
    {.flag = "--plan",
     .type = GR_CONFIG_TEXT,
     PLAN(plan),
     .value_name = "COLLECTIVE",
     .help = "print which algorithm would be chosen and why; SIZE behind it: 25m, say"},
    {.flag = "-np",
     .short_flag = 'n',
     .type = GR_CONFIG_INT,
     PLAN(ranks),
     .default_text = "4",
     .min = 1,
     .max = 4096,
     .help = "plan: number of ranks"},
    {.flag = "--hosts",
     .type = GR_CONFIG_INT,
     PLAN(hosts),
     .default_text = "1",
     .min = 1,
     .max = 4096,
     .help = "plan: hosts over which the ranks are spread"},
    {.flag = "--link",
     .type = GR_CONFIG_CHOICE,
     PLAN(link),
     .default_text = "shm",
     .choices = link_choices,
     .help = "plan: how bytes move inside a host"},
    {.flag = "--rails",
     .former_flag = "--streams",
     .type = GR_CONFIG_INT,
     PLAN(rails),
     .default_text = "1",
     .min = 1,
     .max = GR_LINK_RAILS_MAX,
     .help = "plan: tcp connections between two ranks, as in the file of --tune"},
    {.flag = "--dtype",
     .type = GR_CONFIG_CHOICE,
     PLAN(dtype),
     .default_text = "f32",
     .choices = gr_cli_dtypes,
     .help = "plan: type of the elements"},
    {.flag = "--exact",
     .env = "GRADUS_EXACT",
     .type = GR_CONFIG_BOOL,
     PLAN(exact),
     .default_text = "yes",
     .help = "plan: sums in the order of the shard tree only"},
    {.flag = "--algorithm",
     .env = "GRADUS_ALGORITHM",
     .type = GR_CONFIG_TEXT,
     PLAN(algorithm),
     .value_name = "RULES",
     .help = "plan: rules by size, as in docs/tuning.md"},
    {.flag = "--tune",
     .env = "GRADUS_TUNE",
     .type = GR_CONFIG_TEXT,
     PLAN(tune),
     .default_text = "off",
     .value_name = "FILE",
     .help = "plan: costs and rules that `gradus tune` measured; otherwise the usual costs"},
    {.flag = "--cma",
     GR_GROUP_ROW_CMA,
     PLAN(cma),
     .default_text = "auto",
     .help = "plan: copies by the kernel, of memory that is not from gr_alloc; auto: what one "
             "costs on this host is measured"},
    {.flag = "--rules",
     .type = GR_CONFIG_BOOL,
     PLAN(rules),
     .default_text = "yes",
     .help = "plan: what was measured fastest goes before predictions"},
    {.flag = "--segment",
     GR_GROUP_ROW_SEGMENT,
     PLAN(segment_bytes),
     .help = "plan: size of segments; otherwise chosen"},
    {.flag = "--json", .type = GR_CONFIG_BOOL, PLAN(json), .help = "plan: as one JSON object"},
    {.key = NULL},
};

const gr_config_table gr_info_table = {.name = "info",
                                       .title = "Flags of `gradus info`",
                                       .fields = info_fields,
                                       .struct_bytes = sizeof(info_options)};

static void print_instruction_sets(void)
{
#if defined(__x86_64__)
    __builtin_cpu_init();
    const struct {
        const char *name;
        bool present;
    } sets[] = {{"AVX2", __builtin_cpu_supports("avx2") != 0},
                {"FMA", __builtin_cpu_supports("fma") != 0},
                {"AVX-512F", __builtin_cpu_supports("avx512f") != 0},
                {"AVX-512BW", __builtin_cpu_supports("avx512bw") != 0},
                {"AVX-512VL", __builtin_cpu_supports("avx512vl") != 0},
                {"AVX-512DQ", __builtin_cpu_supports("avx512dq") != 0},
                {"AVX-512BF16", __builtin_cpu_supports("avx512bf16") != 0}};
    printf("instruction sets  x86-64");
    for (size_t i = 0; i < sizeof sets / sizeof sets[0]; i++) {
        if (sets[i].present) {
            printf(", %s", sets[i].name);
        }
    }
    putchar('\n');
#elif defined(__aarch64__)
    puts("instruction sets  arm64, NEON");
#else
    puts("instruction sets  plain C");
#endif
}

/* Those that a job uses, in the order in which peers try their addresses. */
static gr_status print_interfaces(gr_diag *diag)
{
    gr_interfaces found;
    gr_status status = gr_interfaces_find(getenv("GRADUS_INTERFACE"), &found, diag);
    for (int i = 0; status == GR_OK && i < found.count; i++) {
        char text[GR_INTERFACE_TEXT_BYTES];
        int share = gr_interfaces_share(&found, i);
        gr_interface_describe(&found.at[i], text);
        printf("%-17s %s", i == 0 ? "interfaces" : "", text);
        if (share > 0) {
            printf(": %d connection%s to a rank in this network", share, share == 1 ? "" : "s");
        } else if (!found.at[i].loopback) {
            printf(": used if those above fail");
        }
        putchar('\n');
    }
    return status;
}

/* How ranks of this host reach each other's ordinary memory. */
static void print_cma(void)
{
    int error = gr_cma_try();
    if (error == 0) {
        puts("process_vm_readv  permitted: ranks with a core each reach ordinary memory of each "
             "other");
    } else {
        char words[GR_ERRNO_TEXT_BYTES];
        printf("process_vm_readv  not permitted (%s): ordinary memory passes through "
               "windows,\n                  memory of gr_alloc is not concerned\n",
               gr_text_errno(error, words));
    }
}

static gr_status print_info(gr_diag *diag)
{
    gr_cores cores;
    gr_status status = gr_cores_allowed(&cores, diag);
    if (status != GR_OK) {
        return status;
    }
    char list[GR_CORES_TEXT_BYTES];
    gr_cores_print(&cores, list, sizeof list);
    printf("version           %s\n", gr_version());
    printf("cores             %d (%s)\n", cores.count, list);
    print_instruction_sets();
    printf("links            ");
    for (int kind = 0; kind < GR_LINK_KIND_COUNT; kind++) {
        printf("%s %s", kind > 0 ? "," : "", gr_link_kind_name((gr_link_kind)kind));
    }
    putchar('\n');
    print_cma();
    return print_interfaces(diag);
}

static void print_reference(void)
{
    puts("# Configuration reference\n\n"
         "Every key of a job file, environment variable and flag. This page is what\n"
         "`gradus info --reference` prints; a test compares the two.\n\n"
         "A flag stands over an environment variable, that over the job file, that over the\n"
         "default. Sizes may end in k, m, g or t, or in KiB, MiB, GiB or TiB (powers of\n"
         "1024), or in kB, MB, GB or TB (powers of 1000); times in us, ms, s, min or h.");
    for (size_t i = 0; gr_reference_tables[i] != NULL; i++) {
        putchar('\n');
        gr_config_print_markdown(gr_reference_tables[i], stdout);
    }
    putchar('\n');
    gr_layers_print_markdown(stdout);
}

static void print_config(void)
{
    for (size_t i = 0; gr_reference_tables[i] != NULL; i++) {
        const gr_config_table *table = gr_reference_tables[i];
        printf("%s%s\n", i > 0 ? "\n" : "", table->title);
        for (const gr_config_field *field = NULL; (field = gr_config_next(table, field)) != NULL;) {
            const char *names[] = {field->key, field->flag, field->env};
            const char *between = "  ";
            for (size_t n = 0; n < sizeof names / sizeof names[0]; n++) {
                if (names[n] != NULL) {
                    printf("%s%s", between, names[n]);
                    between = ", ";
                }
            }
            printf("%s%s%s\n      %s\n", field->default_text != NULL ? " (default " : "",
                   field->default_text != NULL ? field->default_text : "",
                   field->default_text != NULL ? ")" : "", field->help);
        }
    }
}

static void print_usage(void)
{
    puts("usage: gradus info [flags]\n"
         "       gradus info --plan COLLECTIVE [SIZE] [flags]\n\n"
         "Tells what this build is and what it finds here; or which algorithm an operation of\n"
         "SIZE bytes (1m) would take, and why.\n");
}

static gr_status print_plan(const gr_cli_line *line, gr_diag *diag)
{
    info_options *options = line->options;
    static const gr_config_field size = {.type = GR_CONFIG_BYTES,
                                         .offset = offsetof(info_options, plan.size_bytes),
                                         .max = 0x1p50,
                                         .help = "bytes of the whole buffer"};
    gr_status status = gr_config_set(&size, options, line->word_count > 0 ? line->words[0] : "1m",
                                     "info --plan: the size", line->arena, diag);
    return status == GR_OK ? gr_info_plan(&options->plan, diag) : status;
}

static int inform(const gr_cli_line *line)
{
    const info_options *options = line->options;
    gr_diag diag = {0};
    gr_status status = GR_OK;
    if (options->plan.plan) {
        status = print_plan(line, &diag);
    } else if (line->word_count > 0) {
        status = gr_fail(&diag, GR_E_INVALID,
                         "\"gradus info\" does not expect \"%s\" without --plan; see \"gradus "
                         "help info\"",
                         line->words[0]);
    } else if (options->reference) {
        print_reference();
    } else if (options->config) {
        print_config();
    } else {
        status = print_info(&diag);
    }
    return status == GR_OK ? gr_cli_flush() : gr_cli_refuse(status, &diag);
}

const gr_cli_form gr_info_form = {
    .table = &gr_info_table, .usage = print_usage, .words_max = 1, .work = inform};
