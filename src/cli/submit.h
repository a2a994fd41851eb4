/* SPDX-License-Identifier: Apache-2.0 */
#ifndef GR_CLI_SUBMIT_H
#define GR_CLI_SUBMIT_H

/* What the files of `gradus submit` share: submit.c reads the line, submit_code.c packs the
 * program, submit_manifest.c makes the objects, submit_check.c checks them, submit_send.c sends
 * them, submit_hand_out.c gives pods what is too large for that. */

#include "base/hash.h"
#include "cli/cluster.h"

enum { GR_SUBMIT_JOB, GR_SUBMIT_MPI, GR_SUBMIT_TF, GR_SUBMIT_PYTORCH };
enum { GR_SUBMIT_NAME_BYTES = 64 };

typedef struct gr_submit_options {
    gr_cluster_flags cluster;
    int kind;
    int64_t workers, ps, gpus, slots; /* 0: not given */
    const char *cpus, *memory, *launcher_cpus, *launcher_memory, *ps_cpus, *ps_memory;
    const char *image, *name, *code, *upload, *code_image, *gpu_resource, *service_account;
    const char *const *env, *const *env_from, *const *volumes, *const *node_selector, *const *set;
    bool elastic, follow, wait, dry_run;
    int output;
} gr_submit_options;

/* A file of the program, or a folder of it, as it travels. */
typedef struct gr_submit_code {
    char *bytes; /* NULL: none travels */
    size_t size_bytes;
    bool is_packed; /* tar.gz; else the one file itself, `path` from the working folder */
    int fd;         /* an archive that no ConfigMap carries, of `size_bytes`; -1: none */
    char *url;      /* from which pods fetch it, a secret; NULL: each gets it when it runs */
    char *put_url;  /* to which it is uploaded, a secret; NULL: it is not */
    char sha256[GR_SHA256_HEX_BYTES]; /* of what `fd` has; "": nobody knows */
    char path[256];
    const char *volume;    /* a claim that has it; NULL */
    const char *work_path; /* where the command runs; NULL: as the image says */
} gr_submit_code;

enum {
    GR_SUBMIT_PART_BYTES = 900 << 10, /* in one ConfigMap, of which the server takes 1 MiB */
    GR_SUBMIT_PARTS_MAX = 8
};

/* What is sent. */
typedef struct gr_submit {
    gr_submit_options options;
    gr_arena arena;
    const char *path;   /* of a manifest or of settings; NULL */
    char *const *words; /* the command; NULL-terminated, copied into the arena; NULL */
    gr_submit_code code;
    char name[GR_SUBMIT_NAME_BYTES];
    json_t *jobs;    /* what is sent, in its order */
    json_t *belongs; /* to the job, and is sent before it: Service, Secret, ConfigMaps */
} gr_submit;

/* submit_code.c: finds what is to travel, and packs it. Words of the command that name it are
 * changed to where it will be. GR_E_INVALID, GR_E_NOT_FOUND, GR_E_IO, GR_E_NO_MEMORY. */
gr_status gr_submit_pack(gr_submit *submit, gr_diag *diag) GR_MUST_CHECK;
/* Puts what is to be uploaded into its store, and blocks until it is there. As gr_http_put_file. */
gr_status gr_submit_upload(const gr_submit_code *code, gr_diag *diag) GR_MUST_CHECK;
void gr_submit_code_fini(gr_submit_code *code);

/* Where an archive is in a pod, and the container that unpacks it. */
#define GR_SUBMIT_CODE_PATH "/gradus/code"
#define GR_SUBMIT_ARCHIVE GR_SUBMIT_CODE_PATH "/code.tar.gz"
#define GR_SUBMIT_UNPACK "unpack"
/* submit_hand_out.c: gives the archive of `fd` to each pod of the job, and blocks until all have it
 * or the job has ended. Fails as gr_cluster_ask and gr_kube_exec_run do. */
gr_status gr_submit_hand_out(gr_cluster_client *cluster, gr_cluster_job *job,
                             const gr_submit_code *code, gr_diag *diag) GR_MUST_CHECK;

/* submit_manifest.c: the job of the flags, and what belongs to it. GR_E_INVALID, GR_E_NO_MEMORY. */
gr_status gr_submit_make(gr_submit *submit, gr_diag *diag) GR_MUST_CHECK;
/* Checks that `name` can name an object, and has at most `most` characters. `what` begins the
 * sentence. */
gr_status gr_submit_check_name(const char *what, const char *name, size_t most,
                               gr_diag *diag) GR_MUST_CHECK;

/* submit_check.c: what the operator would say of the job. `where` begins the sentence.
 * GR_E_INVALID. */
gr_status gr_submit_check(const char *where, const json_t *job, gr_diag *diag) GR_MUST_CHECK;

/* submit_send.c: the first job and what belongs to it, or nothing. *job_out is that of the cluster
 * then. *is_clean_out of a failure: what was made is deleted; false: some of it could not be, which
 * was told. */
gr_status gr_submit_send(gr_cluster_client *cluster, json_t *manifest, json_t *belongs,
                         gr_cluster_job *job_out, bool *is_clean_out, gr_diag *diag) GR_MUST_CHECK;
/* Deletes a job that cannot run after all, and what belongs to it. False: it is still there, which
 * was told. */
bool gr_submit_take_back(gr_cluster_client *cluster, const gr_cluster_job *job);

#endif
