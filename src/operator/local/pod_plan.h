/* SPDX-License-Identifier: Apache-2.0 */
#ifndef GR_OPERATOR_LOCAL_POD_PLAN_H
#define GR_OPERATOR_LOCAL_POD_PLAN_H

/* What the containers of a pod run as processes of this host, and what they need there: a pure
 * function of the pod and of the objects that it names. */

#include "base/arena.h"
#include "operator/local/store.h"

/* What stands in a container's place where its image is needed and nothing but that would do. */
typedef enum gr_container_way {
    GR_CONTAINER_COMMAND,
    GR_CONTAINER_AWAIT,      /* nslookup of a PyTorchJob: until `awaited` has an address */
    GR_CONTAINER_DELIVER,    /* kubectl-delivery of an MPIJob v1, gradus of a GradusJob: there is
                                nothing left to do */
    GR_CONTAINER_SSHD,       /* sshd of an MPIJob: commands come by gr_exec */
    GR_CONTAINER_IMPOSSIBLE, /* it has no command */
} gr_container_way;

typedef struct gr_container {
    const char *name, *image; /* borrowed from the pod; image: NULL: none */
    gr_container_way way;
    bool is_init, is_sidecar; /* a sidecar is an init container that goes on */
    bool has_command;         /* argv[0] stands for the image's own program */
    char **argv, **environment;
    const char *folder;      /* NULL: that of `gradus run`, or of the image */
    const char *awaited;     /* a name */
    const char *user, *pull; /* for an engine: "uid:gid", NULL: the image's; when it pulls */
    const char *engine;      /* which runs it, by argv; NULL: it is a process (engine.h) */
    const char *contained;   /* its name there */
} gr_container;

/* In containers of an engine: stands there for sshd, and goes on until it is ended. */
#define GR_CONTAINED_SSHD "/usr/local/sbin/sshd"

typedef struct gr_volume_mount {
    const char *volume, *sub_path, *path; /* sub_path: "" */
    const char *source;                   /* on this host; set by gr_pod_files_write */
    bool is_read_only;
} gr_volume_mount;

typedef struct gr_pod_plan {
    const char *space, *name, *host_name, *restart_policy;
    int64_t grace_s;
    gr_container *containers; /* those of init first */
    size_t container_count, init_count;
    gr_volume_mount *mounts; /* of all containers, shorter paths first */
    size_t mount_count;
    uint16_t *ports; /* that the containers name */
    size_t port_count;
} gr_pod_plan;

/* What a pod gets beside its manifest. */
typedef struct gr_pod_place {
    const char *address;    /* of the pod */
    char *const *inherited; /* the environment of `gradus run` */
    const char *tools;      /* a folder that comes first in PATH, but not if is_contained */
    const char *program;    /* gradus, as it runs here */
    bool is_contained;      /* images are there: an engine runs the containers */
} gr_pod_place;

/* Borrows from the pod; the rest is in the arena. GR_E_NOT_FOUND: an object that it names is not
 * there. GR_E_INVALID, GR_E_NO_MEMORY. */
gr_status gr_pod_plan_make(const gr_store *store, const json_t *pod, const gr_pod_place *place,
                           gr_arena *arena, gr_pod_plan *plan_out, gr_diag *diag) GR_MUST_CHECK;

/* `text` with $(NAME) replaced by the value of NAME in `environment` (NULL-terminated), as
 * Kubernetes does: $$ is a $, and a name that is not there stays as it is. NULL: no memory. */
char *gr_pod_expand(gr_arena *arena, const char *text, char *const *environment);

#endif
