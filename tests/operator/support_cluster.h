/* SPDX-License-Identifier: Apache-2.0 */
#ifndef GR_TESTS_OPERATOR_SUPPORT_CLUSTER_H
#define GR_TESTS_OPERATOR_SUPPORT_CLUSTER_H

/* A Kubernetes cluster in memory: an API server with the history that watches show, garbage
 * collection, the controller of batch Jobs, volcano's queue, and a kubelet that moves pods along.
 * It has no clock: cluster_step() lets everything move by one. The first pod of a name with the
 * label `fails: once` fails once it runs, with exit code 137. */

#include "operator/controller.h"
#include "operator/object.h"
#include "operator/resource.h"

enum { RESOURCES_MAX = 17 };

/* What watches of one resource show: {"type", "object"}, from position 0 on. */
typedef struct cluster {
    json_t *objects[RESOURCES_MAX]; /* "namespace/name" to object */
    json_t *history[RESOURCES_MAX];
    json_t *orphaned; /* uids that are gone: whose objects are to be collected */
    json_t *alive;    /* the uids of all objects, as keys */
    json_t *failed;   /* the names of pods that have failed once, as keys */
    uint64_t version, uids;
    bool may_end;          /* launchers, and pods that decide for a job, end */
    bool keeps_no_history; /* where nobody watches */
} cluster;

void cluster_open(cluster *k);
void cluster_close(cluster *k);

size_t cluster_resource(const char *api_version, const char *kind);
/* As an API server does it: the verbs of gr_controller_action. *object_out: new, or NULL. */
gr_api_answer cluster_call(cluster *k, const char *verb, size_t resource, const json_t *object,
                           json_t **object_out);
/* Borrowed; NULL: it is not there. */
json_t *cluster_find(const cluster *k, size_t resource, const char *space, const char *name);
/* A user sets a value of a job at a path; false: there is no such job. */
bool cluster_edit(cluster *k, size_t resource, const char *space, const char *name,
                  const char *path, json_t *value);
/* Pods, batch Jobs and garbage move on; false: nothing is left to do. */
bool cluster_step(cluster *k);
/* All objects, by cluster_title(), without what differs between two runs: uids, versions, times,
 * names of launchers' pods, the environment of pods (that of their job when they were made), and
 * what a job of training-operator that is suspended was before, and had. */
json_t *cluster_dump(const cluster *k);
/* "KIND of VERSION". */
const char *cluster_title(size_t resource, char title_out[128]);

#endif
