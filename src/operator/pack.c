/* SPDX-License-Identifier: Apache-2.0 */
#include "operator/pack.h"

#include "base/fail.h"

#include <stdlib.h>
#include <string.h>
#include <zlib.h>

enum { WINDOW_BITS = -13, MEMORY_LEVEL = 5, LEVEL = 3, FIRST_BYTES = 16384 };

/* What is found often stands at the end. It is no format: packed values never leave a process. */
static const char dictionary[] =
    "\"minAvailable\":\"queue\":\"priorityClass\":\"scheduleTimeoutSeconds\":\"schedulerName\":"
    "\"tolerations\":[{\"operator\":\"Exists\",\"effect\":\"NoSchedule\"}]\"nodeSelector\":{"
    "\"terminationMessagePath\":\"/dev/termination-log\",\"terminationMessagePolicy\":\"File\","
    "\"terminationGracePeriodSeconds\":30,\"securityContext\":{},\"schedulerName\":"
    "\"default-scheduler\",\"dnsPolicy\":\"ClusterFirst\",\"imagePullPolicy\":\"IfNotPresent\","
    "\"internalTrafficPolicy\":\"Cluster\",\"ipFamilies\":[\"IPv4\"],\"ipFamilyPolicy\":"
    "\"SingleStack\",\"sessionAffinity\":\"None\",\"type\":\"ClusterIP\",\"clusterIP\":\"None\","
    "\"clusterIPs\":[\"None\"],\"publishNotReadyAddresses\":false,\"completionMode\":"
    "\"NonIndexed\",\"completions\":1,\"parallelism\":1,\"manualSelector\":false,"
    "\"podReplacementPolicy\":\"Failed\",\"suspend\":false,\"backoffLimit\":6,\"uncountedTerminated"
    "Pods\":{},\"data\":{\"hostfile\":\"slots=1\\n\",\"discover_hosts.sh\":\"#!/bin/sh\\necho \","
    "\"ssh-privatekey\":\"\",\"ssh-publickey\":\"\"},\"type\":\"kubernetes.io/ssh-auth\","
    "\"volumes\":[{\"name\":\"ssh-auth\",\"secret\":{\"defaultMode\":384,\"secretName\":\"-ssh\","
    "\"items\":[{\"key\":\"ssh-privatekey\",\"path\":\"id_rsa\"},{\"key\":\"ssh-publickey\",\"path"
    "\":\"id_rsa.pub\"},{\"key\":\"ssh-publickey\",\"path\":\"authorized_keys\"}]}},{\"name\":\""
    "mpi-job-config\",\"configMap\":{\"defaultMode\":420,\"name\":\"-config\",\"items\":[{\"key\":"
    "\"hostfile\",\"path\":\"hostfile\",\"mode\":292},{\"key\":\"discover_hosts.sh\",\"path\":"
    "\"discover_hosts.sh\",\"mode\":365}]}}],\"volumeMounts\":[{\"name\":\"ssh-auth\",\"mountPath"
    "\":\"/root/.ssh\"},{\"name\":\"mpi-job-config\",\"mountPath\":\"/etc/mpi\"}]\"env\":[{\"name\""
    ":\"K_MPI_JOB_ROLE\",\"value\":\"launcher\"},{\"name\":\"OMPI_MCA_orte_keep_fqdn_hostnames\","
    "\"value\":\"true\"},{\"name\":\"OMPI_MCA_orte_default_hostfile\",\"value\":\"/etc/mpi/hostfile"
    "\"},{\"name\":\"OMPI_MCA_plm_rsh_args\",\"value\":\"-o ConnectionAttempts=10\"},{\"name\":"
    "\"OMPI_MCA_orte_set_default_slots\",\"value\":\"1\"},{\"name\":\"NVIDIA_VISIBLE_DEVICES\"},{"
    "\"name\":\"NVIDIA_DRIVER_CAPABILITIES\"}],\"command\":[\"/usr/sbin/sshd\",\"-De\"],\"args\":["
    "\"resources\":{\"limits\":{\"cpu\":\"1\",\"memory\":\"1Gi\",\"nvidia.com/"
    "gpu\":1},\"requests\":"
    "{\"name\":\"NAMESPACE\",\"hostname\":\"subdomain\":\"image\":\"containers\":[{\"name\":"
    "\"spec\":{\"mpiReplicaSpecs\":{\"Launcher\":{\"replicas\":1,\"restartPolicy\":\"OnFailure\","
    "\"template\":{\"spec\":{\"Worker\":{\"tfReplicaSpecs\":{\"pytorchReplicaSpecs\":{\"Master\":"
    "\"slotsPerWorker\":1,\"runLauncherAsWorker\":false,\"sshAuthMountPath\":\"/root/.ssh\","
    "\"launcherCreationPolicy\":\"AtStartup\",\"mpiImplementation\":\"OpenMPI\",\"runPolicy\":{"
    "\"cleanPodPolicy\":\"None\",\"suspend\":false},\"status\":{\"conditions\":[{\"type\":"
    "\"Created\",\"status\":\"True\",\"reason\":\"MPIJobCreated\",\"message\":\"MPIJob is "
    "created.\""
    ",\"lastUpdateTime\":\"2026-,\"lastTransitionTime\":\"2026-},{\"type\":\"Running\",\"status\":"
    "\"True\",\"reason\":\"MPIJobRunning\"}],\"replicaStatuses\":{\"Launcher\":{\"active\":1,"
    "\"succeeded\":1},\"failed\":\"startTime\":\"2026-\"completionTime\":\"creationTimestamp\":"
    "\"2026-01-01T00:00:00Z\",\"generation\":1,\"deletionTimestamp\":\"ownerReferences\":[{"
    "\"apiVersion\":\"batch/v1\",\"kind\":\"Job\",\"name\":\"-launcher\",\"uid\":\"0123456789abcdef"
    "\"status\":{\"phase\":\"Pending\"\"Failed\"\"Succeeded\"},\"spec\":{\"restartPolicy\":"
    "\"Never\""
    "{\"metadata\":{\"name\":\"-worker-1\",\"uid\":\"\",\"creationTimestamp\":\"2026-\",\"labels\":"
    "{"
    "\"app\":\"training.kubeflow.org/operator-name\":\"mpi-operator\",\"training.kubeflow.org/"
    "job-name\":\"\",\"training.kubeflow.org/job-role\":\"worker\",\"training.kubeflow.org/"
    "replica-type\":\"worker\",\"training.kubeflow.org/replica-index\":\"1\"},\"ownerReferences\":["
    "{\"apiVersion\":\"kubeflow.org/v2beta1\",\"kind\":\"MPIJob\",\"name\":\"\",\"uid\":\"\","
    "\"controller\":true,\"blockOwnerDeletion\":true}]},\"spec\":{\"restartPolicy\":\"Never\"},"
    "\"status\":{\"phase\":\"Running\",\"conditions\":[{\"type\":\"Ready\",\"status\":\"True\"}]}}";

struct gr_packer {
    z_stream deflate, inflate;
    unsigned char *packed; /* of the last gr_pack */
    char *text;            /* of the last gr_unpack */
    size_t packed_max_bytes, text_max_bytes;
};

gr_status gr_packer_create(gr_packer **packer_out, gr_diag *diag)
{
    gr_packer *packer = calloc(1, sizeof *packer);
    if (packer == NULL) {
        return gr_fail(diag, GR_E_NO_MEMORY, "no memory for a cache of Kubernetes objects");
    }
    bool is_made = deflateInit2(&packer->deflate, LEVEL, Z_DEFLATED, WINDOW_BITS, MEMORY_LEVEL,
                                Z_DEFAULT_STRATEGY) == Z_OK;
    is_made &= inflateInit2(&packer->inflate, WINDOW_BITS) == Z_OK;
    packer->text_max_bytes = FIRST_BYTES;
    packer->text = malloc(packer->text_max_bytes);
    if (!is_made || packer->text == NULL) {
        gr_packer_destroy(packer);
        return gr_fail(diag, GR_E_NO_MEMORY, "no memory for a cache of Kubernetes objects");
    }
    *packer_out = packer;
    return GR_OK;
}

void gr_packer_destroy(gr_packer *packer)
{
    if (packer != NULL) {
        deflateEnd(&packer->deflate);
        inflateEnd(&packer->inflate);
        free(packer->packed);
        free(packer->text);
        free(packer);
    }
}

const unsigned char *gr_pack(gr_packer *packer, const json_t *value, size_t *size_bytes_out)
{
    z_stream *stream = &packer->deflate;
    char *text = json_dumps(value, JSON_COMPACT);
    if (text == NULL) {
        return NULL;
    }
    size_t length = strlen(text), bound = deflateBound(stream, length);
    if (bound > packer->packed_max_bytes) {
        free(packer->packed);
        packer->packed = malloc(bound);
        packer->packed_max_bytes = packer->packed != NULL ? bound : 0;
    }
    int ended = Z_MEM_ERROR;
    if (packer->packed != NULL && deflateReset(stream) == Z_OK &&
        deflateSetDictionary(stream, (const Bytef *)dictionary, sizeof dictionary - 1) == Z_OK) {
        stream->next_in = (Bytef *)text;
        stream->avail_in = (uInt)length;
        stream->next_out = packer->packed;
        stream->avail_out = (uInt)packer->packed_max_bytes;
        ended = deflate(stream, Z_FINISH);
    }
    free(text);
    *size_bytes_out = packer->packed_max_bytes - stream->avail_out;
    return ended == Z_STREAM_END ? packer->packed : NULL;
}

json_t *gr_unpack(gr_packer *packer, const unsigned char *packed, size_t size_bytes)
{
    z_stream *stream = &packer->inflate;
    if (inflateReset(stream) != Z_OK ||
        inflateSetDictionary(stream, (const Bytef *)dictionary, sizeof dictionary - 1) != Z_OK) {
        return NULL;
    }
    stream->next_in = (Bytef *)packed;
    stream->avail_in = (uInt)size_bytes;
    size_t length = 0;
    for (;;) {
        stream->next_out = (Bytef *)packer->text + length;
        stream->avail_out = (uInt)(packer->text_max_bytes - length);
        int ended = inflate(stream, Z_FINISH);
        length = packer->text_max_bytes - stream->avail_out;
        if (ended == Z_STREAM_END) {
            return json_loadb(packer->text, length, 0, NULL);
        }
        char *more = ended == Z_BUF_ERROR && stream->avail_out == 0
                         ? realloc(packer->text, 2 * packer->text_max_bytes)
                         : NULL;
        if (more == NULL) {
            return NULL;
        }
        packer->text = more;
        packer->text_max_bytes *= 2;
    }
}
