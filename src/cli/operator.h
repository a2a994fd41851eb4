/* SPDX-License-Identifier: Apache-2.0 */
#ifndef GR_CLI_OPERATOR_H
#define GR_CLI_OPERATOR_H

/* What the files of `gradus operator` share. */

#include <stdbool.h>
#include <stdint.h>

enum { GR_OPERATOR_YAML, GR_OPERATOR_JSON };

typedef struct gr_operator_options {
    const char *space, *gang_scheduler, *cluster_domain;
    const char *pytorch_init_image, *kubectl_delivery_image;
    const char *launch_agent_image;
    int64_t pytorch_init_tries, progress_us;
    /* --dry-run */
    bool dry_run;
    const char *file;
    int output;
    /* Without it. */
    const char *kubeconfig, *context, *server;
    const char *const *kinds;
    double requests_a_second;
    int64_t burst, jobs_at_once, wait_us;
    bool elects;
    const char *lease_space, *lease_name;
    int64_t lease_us, renew_us, retry_us;
    int64_t monitoring_port;
    const char *metrics_address, *health_address;
    int64_t verbosity;
    bool print_version;
    bool unused_switch; /* flags of other operators that mean nothing here */
    const char *unused_text;
} gr_operator_options;

/* Prints the objects of the jobs in `file`; returns the exit code. */
int gr_operator_dry_run(const gr_operator_options *options);

#endif
