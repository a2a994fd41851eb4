/* SPDX-License-Identifier: Apache-2.0 */

/* `gradus operator`: Kubernetes jobs, in place of mpi-operator and training-operator. It takes the
 * flags of both, so that a Deployment of theirs takes its image alone in exchange. */

#include "cli/operator.h"

#include "base/fail.h"
#include "cli/cli.h"
#include "operator/operator.h"
#include "operator/serve/serve.h"

#include <errno.h>
#include <signal.h>
#include <string.h>
#include <strings.h>
#include <sys/signalfd.h>
#include <unistd.h>

static const char *const outputs[] = {"yaml", "json", NULL};

#define AT(member) .offset = offsetof(gr_operator_options, member)
#define UNUSED_SWITCH .type = GR_CONFIG_BOOL, AT(unused_switch)
#define UNUSED_TEXT .type = GR_CONFIG_TEXT, AT(unused_text), .value_name = "X"
#define OF_KLOG .help = "of mpi-operator's log; it means nothing here"
#define OF_ZAP .help = "of training-operator's log; it means nothing here"
#define OF_WEBHOOK .help = "of training-operator's webhook, which there is none of here"
#define OF_QUEUE .help = "of mpi-operator's queue; here a job that fails waits longer each time"

static const gr_config_field operator_fields[] = {
    {.flag = "--namespace",
     .short_flag = 'n',
     .env = "KUBEFLOW_NAMESPACE",
     .type = GR_CONFIG_TEXT,
     AT(space),
     .value_name = "NAME",
     .help = "the only one whose jobs it works on; unset: all. With --dry-run: of jobs whose "
             "manifest names none; unset: default"},
    {.flag = "--enable-scheme",
     .type = GR_CONFIG_LIST,
     AT(kinds),
     .value_name = "KIND",
     .help =
         "a kind of jobs to work on, mpijob or mpijob.v1 say; several times for several; unset: "
         "all that the cluster has and permits"},
    {.flag = "--kubeconfig",
     .type = GR_CONFIG_TEXT,
     AT(kubeconfig),
     .value_name = "FILE",
     .help = "how to reach the cluster; unset: KUBECONFIG, ~/.kube/config, what a pod gets"},
    {.flag = "--kubeConfig",
     .type = GR_CONFIG_TEXT,
     AT(kubeconfig),
     .value_name = "FILE",
     .help = "the same, as mpi-operator calls it"},
    {.flag = "--context",
     .type = GR_CONFIG_TEXT,
     AT(context),
     .value_name = "NAME",
     .help = "of the kubeconfig; unset: its current-context"},
    {.flag = "--master",
     .type = GR_CONFIG_TEXT,
     AT(server),
     .value_name = "URL",
     .help = "of the API server, in place of the kubeconfig's"},
    {.flag = "--kube-api-qps",
     .type = GR_CONFIG_DOUBLE,
     AT(requests_a_second),
     .default_text = "50",
     .min = 0.1,
     .max = 100000,
     .value_name = "N",
     .help = "requests a second"},
    {.flag = "--kube-api-burst",
     .type = GR_CONFIG_INT,
     AT(burst),
     .default_text = "100",
     .min = 1,
     .max = 100000,
     .value_name = "N",
     .help = "requests at once before that counts"},
    {.flag = "--controller-threads",
     .type = GR_CONFIG_INT,
     AT(jobs_at_once),
     .default_text = "16",
     .min = 1,
     .max = 4096,
     .value_name = "N",
     .help = "jobs that are written for at a time"},
    {.flag = "--threadiness",
     .type = GR_CONFIG_INT,
     AT(jobs_at_once),
     .default_text = "16",
     .min = 1,
     .max = 4096,
     .value_name = "N",
     .help = "the same, as mpi-operator calls it"},
    {.flag = "--wait-for-resources",
     .type = GR_CONFIG_DURATION,
     AT(wait_us),
     .default_text = "2min",
     .min = 0,
     .max = 86400e6,
     .help = "how long it waits at its start for resources that are not installed"},
    {.flag = "--leader-elect",
     .type = GR_CONFIG_BOOL,
     AT(elects),
     .default_text = "true",
     .help = "of several operators one works at a time: the one that holds the lease"},
    {.flag = "--enable-leader-election",
     .type = GR_CONFIG_BOOL,
     AT(elects),
     .default_text = "true",
     .help = "the same, as older operators call it"},
    {.flag = "--lock-namespace",
     .type = GR_CONFIG_TEXT,
     AT(lease_space),
     .value_name = "NAME",
     .help = "of the lease; unset: that of the operator's pod or kubeconfig"},
    {.flag = "--leader-election-id",
     .type = GR_CONFIG_TEXT,
     AT(lease_name),
     .default_text = "mpi-operator",
     .value_name = "NAME",
     .help = "of the lease; mpi-operator's own, so that the two never work at the same time"},
    {.flag = "--leader-elect-lease-duration",
     .type = GR_CONFIG_DURATION,
     AT(lease_us),
     .default_text = "15s",
     .min = 1e6,
     .max = 86400e6,
     .help = "after which another may take a lease that is not renewed"},
    {.flag = "--leader-elect-renew-deadline",
     .type = GR_CONFIG_DURATION,
     AT(renew_us),
     .default_text = "10s",
     .min = 1e5,
     .max = 86400e6,
     .help = "after which one that cannot renew its lease ends; shorter"},
    {.flag = "--leader-elect-retry-period",
     .type = GR_CONFIG_DURATION,
     AT(retry_us),
     .default_text = "2s",
     .min = 1e4,
     .max = 86400e6,
     .help = "between two looks at the lease; shorter still"},
    {.flag = "--metrics-bind-address",
     .type = GR_CONFIG_TEXT,
     AT(metrics_address),
     .default_text = ":8080",
     .value_name = "HOST:PORT",
     .help = "where /metrics, /healthz and /readyz are; :PORT: all addresses; 0: nowhere"},
    {.flag = "--health-probe-bind-address",
     .type = GR_CONFIG_TEXT,
     AT(health_address),
     .default_text = ":8081",
     .value_name = "HOST:PORT",
     .help = "where they are as well"},
    {.flag = "--monitoring-port",
     .type = GR_CONFIG_INT,
     AT(monitoring_port),
     .default_text = "0",
     .min = 0,
     .max = 65535,
     .value_name = "PORT",
     .help = "of all addresses, where they are as well; 0: none"},
    {.flag = "--gang-scheduling",
     .type = GR_CONFIG_TEXT,
     AT(gang_scheduler),
     .value_name = "NAME",
     .help = "volcano, or the name under which scheduler-plugins runs: make a PodGroup as well"},
    {.flag = "--gang-scheduler-name",
     .type = GR_CONFIG_TEXT,
     AT(gang_scheduler),
     .value_name = "NAME",
     .help = "the same, as training-operator calls it"},
    {.flag = "--cluster-domain",
     .env = "CUSTOM_CLUSTER_DOMAIN",
     .type = GR_CONFIG_TEXT,
     AT(cluster_domain),
     .value_name = "DOMAIN",
     .help = "what stands behind the names of hosts, cluster.local say"},
    {.flag = "--pytorch-init-container-image",
     .type = GR_CONFIG_TEXT,
     AT(pytorch_init_image),
     .default_text = GR_PYTORCH_INIT_IMAGE,
     .value_name = "IMAGE",
     .help = "with a shell and nslookup: workers of a PyTorchJob wait in it for their master"},
    {.flag = "--pytorch-init-container-max-tries",
     .type = GR_CONFIG_INT,
     AT(pytorch_init_tries),
     .default_text = "100",
     .min = 1,
     .max = 1000000,
     .value_name = "N",
     .help = "how often they look for it, every two seconds"},
    {.flag = "--mpi-kubectl-delivery-image",
     .type = GR_CONFIG_TEXT,
     AT(kubectl_delivery_image),
     .default_text = GR_KUBECTL_DELIVERY_IMAGE,
     .value_name = "IMAGE",
     .help = "brings kubectl to the launcher of an MPIJob v1"},
    {.flag = "--launch-agent-image",
     .type = GR_CONFIG_TEXT,
     AT(launch_agent_image),
     .value_name = "IMAGE",
     .help =
         "this operator's own, say: brings gradus into the pods of GradusJobs, and of MPIJobs with "
         "the annotation gradus/launch: agent; unset: their own images have it in their PATH"},
    {.flag = "--progress-interval",
     .type = GR_CONFIG_DURATION,
     AT(progress_us),
     .default_text = "15s",
     .min = 0,
     .max = 86400e6,
     .help = "how often a worker of each GradusJob is asked how far it has come, for the job's "
             "status.progress; with many jobs less often, a quarter of --kube-api-qps in all; 0: "
             "never"},
    {.flag = "--verbosity",
     .short_flag = 'v',
     .type = GR_CONFIG_INT,
     AT(verbosity),
     .default_text = "0",
     .min = 0,
     .max = 10,
     .value_name = "N",
     .help = "from 4 on each request that is tried again is logged as well"},
    {.flag = "--version",
     .type = GR_CONFIG_BOOL,
     AT(print_version),
     .help = "print the version alone"},
    {.flag = "--dry-run",
     .type = GR_CONFIG_BOOL,
     AT(dry_run),
     .help = "print the objects that would be created; nothing is sent anywhere"},
    {.flag = "--filename",
     .short_flag = 'f',
     .type = GR_CONFIG_TEXT,
     AT(file),
     .value_name = "FILE",
     .help = "with --dry-run: manifests of jobs, YAML or JSON, one or several documents; -: stdin"},
    {.flag = "--output",
     .short_flag = 'o',
     .type = GR_CONFIG_CHOICE,
     AT(output),
     .default_text = "yaml",
     .choices = outputs,
     .help = "with --dry-run: YAML documents, or one List as JSON"},
    {.flag = "--alsologtostderr", UNUSED_SWITCH, OF_KLOG},
    {.flag = "--logtostderr", UNUSED_SWITCH, OF_KLOG},
    {.flag = "--stderrthreshold", UNUSED_TEXT, OF_KLOG},
    {.flag = "--log_dir", UNUSED_TEXT, OF_KLOG},
    {.flag = "--log_file", UNUSED_TEXT, OF_KLOG},
    {.flag = "--log_file_max_size", UNUSED_TEXT, OF_KLOG},
    {.flag = "--log_backtrace_at", UNUSED_TEXT, OF_KLOG},
    {.flag = "--vmodule", UNUSED_TEXT, OF_KLOG},
    {.flag = "--skip_headers", UNUSED_SWITCH, OF_KLOG},
    {.flag = "--skip_log_headers", UNUSED_SWITCH, OF_KLOG},
    {.flag = "--add_dir_header", UNUSED_SWITCH, OF_KLOG},
    {.flag = "--one_output", UNUSED_SWITCH, OF_KLOG},
    {.flag = "--controller-queue-rate-limit", UNUSED_TEXT, OF_QUEUE},
    {.flag = "--controller-queue-burst", UNUSED_TEXT, OF_QUEUE},
    {.flag = "--zap-log-level", UNUSED_TEXT, OF_ZAP},
    {.flag = "--zap-encoder", UNUSED_TEXT, OF_ZAP},
    {.flag = "--zap-devel", UNUSED_SWITCH, OF_ZAP},
    {.flag = "--zap-stacktrace-level", UNUSED_TEXT, OF_ZAP},
    {.flag = "--zap-time-encoding", UNUSED_TEXT, OF_ZAP},
    {.flag = "--webhook-server-port", UNUSED_TEXT, OF_WEBHOOK},
    {.flag = "--webhook-service-name", UNUSED_TEXT, OF_WEBHOOK},
    {.flag = "--webhook-secret-name", UNUSED_TEXT, OF_WEBHOOK},
    {.key = NULL},
};

static const gr_config_foreign operator_foreign[] = {
    {"pytorch-init-container-template-file", "training-operator",
     "the init container has one form; --pytorch-init-container-image names its image"},
    {.flag = NULL},
};

const gr_config_table gr_operator_table = {.name = "operator",
                                           .title = "Flags of `gradus operator`",
                                           .fields = operator_fields,
                                           .struct_bytes = sizeof(gr_operator_options),
                                           .foreign = operator_foreign};

static void usage(void)
{
    char kinds[GR_OPERATOR_KINDS_BYTES];
    gr_operator_list_kinds(gr_operator_kinds, kinds);
    printf(
        "usage: gradus operator [--namespace NAME] [--enable-scheme KIND]\n"
        "       gradus operator --dry-run -f FILE\n\n"
        "Works on the Kubernetes jobs of a cluster until SIGTERM, in place of mpi-operator and\n"
        "training-operator, whose flags it takes (docs/kubernetes.md). Of several operators that\n"
        "run at the same time one works, the others stand by.\n\n"
        "With --dry-run it prints the objects that the job of a manifest would get at first, as\n"
        "kubectl takes them, and speaks to no cluster. It knows %s.\nKeys are not shown.\n\n",
        kinds);
}

/* SIGTERM and SIGINT as a descriptor. -1: errno tells why. */
static int open_signals(void)
{
    sigset_t signals;
    sigemptyset(&signals);
    sigaddset(&signals, SIGTERM);
    sigaddset(&signals, SIGINT);
    sigprocmask(SIG_BLOCK, &signals, NULL);
    (void)signal(SIGPIPE, SIG_IGN);
    return signalfd(-1, &signals, SFD_CLOEXEC | SFD_NONBLOCK);
}

static const char *or_null(const char *text)
{
    return text != NULL && text[0] != '\0' ? text : NULL;
}

static int serve(const gr_operator_options *options)
{
    gr_diag diag = {0};
    gr_log log = {.level = options->verbosity >= 4 ? GR_LOG_DEBUG : GR_LOG_INFO,
                  .sink = gr_log_to_file,
                  .sink_arg = stderr};
    char port[16];
    snprintf(port, sizeof port, ":%d", (int)options->monitoring_port);
    const char *listen[] = {options->metrics_address, options->health_address,
                            options->monitoring_port > 0 ? port : "0", NULL};
    gr_serve_options how = {
        .kubeconfig = or_null(options->kubeconfig),
        .context = or_null(options->context),
        .server = or_null(options->server),
        .space = or_null(options->space),
        .kinds = options->kinds,
        .cluster_domain = options->cluster_domain,
        .gang_scheduler = options->gang_scheduler,
        .pytorch_init_image = options->pytorch_init_image,
        .kubectl_delivery_image = options->kubectl_delivery_image,
        .pytorch_init_tries = options->pytorch_init_tries,
        .launch_agent_image = options->launch_agent_image,
        .requests_a_second = options->requests_a_second,
        .burst = (int)options->burst,
        .jobs_at_once = (int)options->jobs_at_once,
        .ask_every_us = options->progress_us,
        .elects = options->elects,
        .lease_space = or_null(options->lease_space),
        .lease_name = options->lease_name,
        .lease_times = {options->lease_us, options->renew_us, options->retry_us},
        .listen = listen,
        .wait_for_resources_us = options->wait_us,
        .stop_fd = open_signals(),
        .log = &log};
    bool began = false;
    if (how.stop_fd < 0) {
        (void)gr_fail(&diag, GR_E_IO, "cannot wait for signals: %s", strerror(errno));
        return gr_cli_fail(GR_EXIT_FAILED, &diag);
    }
    gr_status status = gr_operator_serve(&how, &began, &diag);
    close(how.stop_fd);
    if (status == GR_OK) {
        return GR_EXIT_DONE;
    }
    return began ? gr_cli_fail(GR_EXIT_FAILED, &diag) : gr_cli_refuse(status, &diag);
}

static int run_operator(const gr_cli_line *line)
{
    gr_operator_options *options = line->options;
    gr_diag diag = {0};
    if (options->gang_scheduler != NULL && strcasecmp(options->gang_scheduler, "volcano") == 0) {
        options->gang_scheduler = "volcano"; /* training-operator takes Volcano as well */
    }
    if (options->print_version) {
        return gr_verb_version(1, line->argv);
    }
    if (options->dry_run) {
        return gr_operator_dry_run(options);
    }
    if (options->file != NULL) {
        (void)gr_fail(&diag, GR_E_INVALID,
                      "-f is for --dry-run; jobs come to an operator through the cluster: kubectl "
                      "apply -f %.200s",
                      options->file);
        return gr_cli_fail(GR_EXIT_INPUT, &diag);
    }
    return serve(options);
}

const gr_cli_form gr_operator_form = {
    .table = &gr_operator_table, .usage = usage, .work = run_operator};
