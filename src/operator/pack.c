/* SPDX-License-Identifier: Apache-2.0 */

/* A packed value is a byte, WHOLE or DEFLATED, and the value. A value is a tag and what belongs to
 * it; a key of a map is a string. Strings that many objects have are one tag; a string that the
 * value had before is the number of that one; a uid and a time are their digits. It is no format:
 * packed values never leave a process. */

#include "operator/pack.h"

#include "base/fail.h"
#include "base/hash.h"

#include <stdint.h>
#include <stdlib.h>
#include <string.h>
#include <zlib.h>

enum { WHOLE, DEFLATED };

enum {
    TAG_NULL,
    TAG_TRUE,
    TAG_FALSE,
    TAG_INTEGER, /* a number, zigzag */
    TAG_REAL,    /* 8 bytes */
    TAG_STRING,  /* a number, and as many bytes */
    TAG_AGAIN,   /* a number: the string that stood before so many others */
    TAG_UID,     /* 16 bytes: 01234567-89ab-cdef-0123-456789abcdef */
    TAG_TIME,    /* 5 bytes: 2026-01-31T12:00:00Z */
    TAG_MAP,     /* a number of keys and values */
    TAG_LIST,    /* a number of values */
    TAG_WORD,    /* the first of `words`; the others follow */
};

enum {
    WINDOW_BITS = -13,
    MEMORY_LEVEL = 5,
    LEVEL = 1,
    DEFLATE_FROM_BYTES = 320, /* what is smaller gains little */
    FIRST_BYTES = 16384,
    STRINGS_MAX = 64, /* that are looked through for TAG_AGAIN */
    UID_BYTES = 36,
    TIME_BYTES = 20,
    WORD_SLOTS = 1024
};

/* At most 256 - TAG_WORD. */
static const char *const words[] = {
    "metadata",
    "name",
    "namespace",
    "uid",
    "resourceVersion",
    "generation",
    "creationTimestamp",
    "deletionTimestamp",
    "labels",
    "annotations",
    "ownerReferences",
    "apiVersion",
    "kind",
    "controller",
    "blockOwnerDeletion",
    "spec",
    "status",
    "phase",
    "reason",
    "message",
    "conditions",
    "type",
    "lastUpdateTime",
    "lastTransitionTime",
    "lastProbeTime",
    "containerStatuses",
    "initContainerStatuses",
    "restartCount",
    "state",
    "terminated",
    "waiting",
    "exitCode",
    "restartPolicy",
    "training.kubeflow.org/job-name",
    "training.kubeflow.org/operator-name",
    "training.kubeflow.org/job-role",
    "training.kubeflow.org/replica-type",
    "training.kubeflow.org/replica-index",
    "app",
    "mpi-operator",
    "mpijob-controller",
    "pytorchjob-controller",
    "tfjob-controller",
    "gradusjob-controller",
    "launcher",
    "worker",
    "master",
    "chief",
    "ps",
    "evaluator",
    "Launcher",
    "Worker",
    "Master",
    "Chief",
    "PS",
    "Evaluator",
    "kubeflow.org/v2beta1",
    "kubeflow.org/v1",
    "batch/v1",
    "v1",
    "MPIJob",
    "PyTorchJob",
    "TFJob",
    "GradusJob",
    "Job",
    "Pod",
    "ServiceAccount",
    "Role",
    "rbac.authorization.k8s.io",
    "rbac.authorization.k8s.io/v1",
    "Never",
    "Always",
    "OnFailure",
    "ExitCode",
    "Pending",
    "Running",
    "Succeeded",
    "Failed",
    "Restarting",
    "Created",
    "Suspended",
    "Complete",
    "Ready",
    "PodScheduled",
    "True",
    "False",
    "Unknown",
    "0",
    "1",
    "2",
    "3",
    "4",
    "5",
    "6",
    "7",
    "8",
    "9",
    "",
    "None",
    "All",
    "mpiReplicaSpecs",
    "pytorchReplicaSpecs",
    "tfReplicaSpecs",
    "replicas",
    "template",
    "runPolicy",
    "cleanPodPolicy",
    "ttlSecondsAfterFinished",
    "activeDeadlineSeconds",
    "backoffLimit",
    "suspend",
    "schedulingPolicy",
    "minAvailable",
    "queue",
    "default",
    "priorityClass",
    "minResources",
    "scheduleTimeoutSeconds",
    "slotsPerWorker",
    "runLauncherAsWorker",
    "sshAuthMountPath",
    "/root/.ssh",
    "launcherCreationPolicy",
    "AtStartup",
    "mpiImplementation",
    "OpenMPI",
    "elasticPolicy",
    "minReplicas",
    "maxReplicas",
    "nprocPerNode",
    "successPolicy",
    "replicaStatuses",
    "active",
    "succeeded",
    "failed",
    "selector",
    "startTime",
    "completionTime",
    "lastReconcileTime",
    "containers",
    "initContainers",
    "image",
    "imagePullPolicy",
    "IfNotPresent",
    "command",
    "args",
    "env",
    "value",
    "valueFrom",
    "resources",
    "limits",
    "requests",
    "cpu",
    "memory",
    "nvidia.com/gpu",
    "ports",
    "port",
    "targetPort",
    "containerPort",
    "protocol",
    "TCP",
    "volumeMounts",
    "mountPath",
    "volumes",
    "configMap",
    "secret",
    "secretName",
    "items",
    "key",
    "path",
    "mode",
    "defaultMode",
    "emptyDir",
    "securityContext",
    "terminationMessagePath",
    "/dev/termination-log",
    "terminationMessagePolicy",
    "File",
    "terminationGracePeriodSeconds",
    "dnsPolicy",
    "ClusterFirst",
    "schedulerName",
    "default-scheduler",
    "serviceAccountName",
    "hostname",
    "subdomain",
    "tolerations",
    "nodeSelector",
    "affinity",
    "priorityClassName",
    "data",
    "hostfile",
    "discover_hosts.sh",
    "kubexec.sh",
    "#!/bin/sh",
    "ssh-privatekey",
    "ssh-publickey",
    "kubernetes.io/ssh-auth",
    "ssh-auth",
    "id_rsa",
    "id_rsa.pub",
    "authorized_keys",
    "mpi-job-config",
    "/etc/mpi",
    "clusterIP",
    "clusterIPs",
    "ClusterIP",
    "sessionAffinity",
    "ipFamilies",
    "IPv4",
    "ipFamilyPolicy",
    "SingleStack",
    "internalTrafficPolicy",
    "Cluster",
    "publishNotReadyAddresses",
    "loadBalancer",
    "completions",
    "parallelism",
    "completionMode",
    "NonIndexed",
    "podReplacementPolicy",
    "manualSelector",
    "uncountedTerminatedPods",
    "matchLabels",
    "minMember",
    "rules",
    "apiGroups",
    "verbs",
    "resourceNames",
    "subjects",
    "roleRef",
    "apiGroup",
};
enum { WORDS = sizeof words / sizeof words[0] };

typedef struct buffer {
    unsigned char *bytes;
    size_t used, max;
} buffer;

typedef struct pack_string {
    const char *bytes;
    size_t length;
} pack_string;

struct gr_packer {
    z_stream deflate, inflate;
    buffer plain, packed; /* of the last call */
    uint8_t word_lengths[WORDS];
    uint8_t slots[WORD_SLOTS]; /* of words, by their hash: the word and one, 0: none */
    pack_string
        strings[STRINGS_MAX]; /* the last ones of this value, in a ring; when it is unpacked, */
    const unsigned char *places[STRINGS_MAX]; /* where they stand */
    size_t string_count;
    bool failed; /* no memory, or what is unpacked is no packed value */
};

/* ---- A packer -------------------------------------------------------------------------------- */
/* Cheap, and good enough: words differ in their ends and lengths. */
static uint64_t hash_word(const char *bytes, size_t length)
{
    uint64_t first = 0, last = 0;
    size_t some = length < 8 ? length : 8;
    memcpy(&first, bytes, some);
    memcpy(&last, bytes + length - some, some);
    return ((first ^ (last * 3) ^ length) * UINT64_C(0x9e3779b97f4a7c15)) >> 32;
}

static void learn_words(gr_packer *packer)
{
    for (size_t i = 0; i < WORDS; i++) {
        size_t length = strlen(words[i]), slot = hash_word(words[i], length) % WORD_SLOTS;
        while (packer->slots[slot] != 0) {
            slot = (slot + 1) % WORD_SLOTS;
        }
        packer->slots[slot] = (uint8_t)(i + 1);
        packer->word_lengths[i] = (uint8_t)length;
    }
}

gr_status gr_packer_create(gr_packer **packer_out, gr_diag *diag)
{
    _Static_assert(WORDS + TAG_WORD <= 256, "a word is one tag");
    gr_packer *packer = calloc(1, sizeof *packer);
    if (packer == NULL) {
        return gr_fail(diag, GR_E_NO_MEMORY, "no memory for a cache of Kubernetes objects");
    }
    learn_words(packer);
    bool is_made = deflateInit2(&packer->deflate, LEVEL, Z_DEFLATED, WINDOW_BITS, MEMORY_LEVEL,
                                Z_DEFAULT_STRATEGY) == Z_OK;
    is_made &= inflateInit2(&packer->inflate, WINDOW_BITS) == Z_OK;
    if (!is_made) {
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
        free(packer->plain.bytes);
        free(packer->packed.bytes);
        free(packer);
    }
}

/* Room for so many bytes more; false: no memory. */
static bool need_room(gr_packer *packer, buffer *b, size_t size_bytes)
{
    size_t max = b->max > 0 ? b->max : FIRST_BYTES;
    if (size_bytes <= b->max - b->used) {
        return true;
    }
    while (max - b->used < size_bytes) {
        max *= 2;
    }
    unsigned char *bytes = realloc(b->bytes, max);
    if (bytes == NULL) {
        packer->failed = true;
        return false;
    }
    b->bytes = bytes;
    b->max = max;
    return true;
}

/* ---- Strings --------------------------------------------------------------------------------- */
/* WORDS: it is none of them. */
static size_t find_word(const gr_packer *packer, const char *bytes, size_t length)
{
    size_t slot = hash_word(bytes, length) % WORD_SLOTS;
    for (; packer->slots[slot] != 0; slot = (slot + 1) % WORD_SLOTS) {
        size_t word = packer->slots[slot] - 1U;
        if (packer->word_lengths[word] == length && memcmp(words[word], bytes, length) == 0) {
            return word;
        }
    }
    return WORDS;
}

static void note_string(gr_packer *packer, const char *bytes, size_t length)
{
    packer->strings[packer->string_count++ % STRINGS_MAX] = (pack_string){bytes, length};
}

/* How many strings ago it was; 0: never. */
static size_t find_string(const gr_packer *packer, const char *bytes, size_t length)
{
    for (size_t ago = 1; ago <= STRINGS_MAX && ago <= packer->string_count; ago++) {
        const pack_string *before = &packer->strings[(packer->string_count - ago) % STRINGS_MAX];
        if (before->length == length && memcmp(before->bytes, bytes, length) == 0) {
            return ago;
        }
    }
    return 0;
}

static int digit_of(char c)
{
    return c >= '0' && c <= '9' ? c - '0' : c >= 'a' && c <= 'f' ? c - 'a' + 10 : -1;
}

static bool read_uid(const char *bytes, unsigned char uid_out[16])
{
    size_t count = 0;
    for (size_t i = 0; i < UID_BYTES;) {
        bool is_dash = i == 8 || i == 13 || i == 18 || i == 23;
        int high = digit_of(bytes[i]), low = is_dash ? 0 : digit_of(bytes[i + 1]);
        if (is_dash ? bytes[i] != '-' : high < 0 || low < 0) {
            return false;
        }
        if (!is_dash) {
            uid_out[count++] = (unsigned char)(high << 4 | low);
        }
        i += is_dash ? 1 : 2;
    }
    return true;
}

static void print_uid(const unsigned char uid[16], char text_out[UID_BYTES + 1])
{
    gr_hex(uid, 4, text_out);
    gr_hex(uid + 4, 2, text_out + 9);
    gr_hex(uid + 6, 2, text_out + 14);
    gr_hex(uid + 8, 2, text_out + 19);
    gr_hex(uid + 10, 6, text_out + 24);
    text_out[8] = text_out[13] = text_out[18] = text_out[23] = '-';
}

/* Of the numbers in a time: where they begin, how many digits and bits they have. */
static const struct {
    uint8_t at, digits, bits;
} parts[] = {{0, 4, 14}, {5, 2, 4}, {8, 2, 5}, {11, 2, 5}, {14, 2, 6}, {17, 2, 6}};
static const char time_form[] = "0000-00-00T00:00:00Z";

static bool read_time(const char *bytes, unsigned char time_out[5])
{
    uint64_t all = 0;
    for (size_t i = 0; i < TIME_BYTES; i++) {
        bool is_digit = bytes[i] >= '0' && bytes[i] <= '9';
        if (time_form[i] == '0' ? !is_digit : bytes[i] != time_form[i]) {
            return false;
        }
    }
    for (size_t p = 0; p < sizeof parts / sizeof parts[0]; p++) {
        uint64_t number = 0;
        for (size_t i = 0; i < parts[p].digits; i++) {
            number = 10 * number + (uint64_t)(bytes[parts[p].at + i] - '0');
        }
        if (number >> parts[p].bits != 0) {
            return false;
        }
        all = all << parts[p].bits | number;
    }
    for (size_t i = 0; i < 5; i++) {
        time_out[i] = (unsigned char)(all >> (8 * i));
    }
    return true;
}

static void print_time(const unsigned char time[5], char text_out[TIME_BYTES + 1])
{
    uint64_t all = 0;
    for (size_t i = 0; i < 5; i++) {
        all |= (uint64_t)time[i] << (8 * i);
    }
    memcpy(text_out, time_form, sizeof time_form);
    for (size_t p = sizeof parts / sizeof parts[0]; p-- > 0;) {
        uint64_t number = all & ((UINT64_C(1) << parts[p].bits) - 1);
        all >>= parts[p].bits;
        for (size_t i = parts[p].digits; i-- > 0; number /= 10) {
            text_out[parts[p].at + i] = (char)('0' + number % 10);
        }
    }
}

/* ---- Packing --------------------------------------------------------------------------------- */
static void put_bytes(gr_packer *packer, const void *bytes, size_t size_bytes)
{
    if (need_room(packer, &packer->plain, size_bytes) && size_bytes > 0) {
        memcpy(packer->plain.bytes + packer->plain.used, bytes, size_bytes);
        packer->plain.used += size_bytes;
    }
}

/* A tag and a number. */
static void put_number(gr_packer *packer, int tag, uint64_t number)
{
    unsigned char bytes[11] = {(unsigned char)tag};
    size_t count = 1;
    for (; number >= 128; number >>= 7) {
        bytes[count++] = (unsigned char)(number | 128);
    }
    bytes[count++] = (unsigned char)number;
    put_bytes(packer, bytes, count);
}

static void put_string(gr_packer *packer, const char *bytes, size_t length)
{
    unsigned char digits[17];
    size_t word = find_word(packer, bytes, length), ago = 0;
    if (word < WORDS) {
        digits[0] = (unsigned char)(TAG_WORD + word);
        put_bytes(packer, digits, 1);
    } else if (length > 2 && (ago = find_string(packer, bytes, length)) > 0) {
        put_number(packer, TAG_AGAIN, ago);
    } else {
        if (length == UID_BYTES && read_uid(bytes, digits + 1)) {
            digits[0] = TAG_UID;
            put_bytes(packer, digits, 17);
        } else if (length == TIME_BYTES && read_time(bytes, digits + 1)) {
            digits[0] = TAG_TIME;
            put_bytes(packer, digits, 6);
        } else {
            put_number(packer, TAG_STRING, length);
            put_bytes(packer, bytes, length);
        }
        note_string(packer, bytes, length);
    }
}

static void put_value(gr_packer *packer, const json_t *value)
{
    size_t i;
    const char *key;
    json_t *item;
    double real;
    json_int_t integer;
    unsigned char tag;
    switch (json_typeof(value)) {
    case JSON_OBJECT:
        put_number(packer, TAG_MAP, json_object_size(value));
        json_object_foreach((json_t *)value, key, item)
        {
            put_string(packer, key, strlen(key));
            put_value(packer, item);
        }
        break;
    case JSON_ARRAY:
        put_number(packer, TAG_LIST, json_array_size(value));
        json_array_foreach(value, i, item)
        {
            put_value(packer, item);
        }
        break;
    case JSON_STRING:
        put_string(packer, json_string_value(value), json_string_length(value));
        break;
    case JSON_INTEGER:
        integer = json_integer_value(value);
        put_number(packer, TAG_INTEGER, (uint64_t)integer << 1 ^ (integer < 0 ? UINT64_MAX : 0));
        break;
    case JSON_REAL:
        real = json_real_value(value);
        tag = TAG_REAL;
        put_bytes(packer, &tag, 1);
        put_bytes(packer, &real, sizeof real);
        break;
    case JSON_TRUE:
    case JSON_FALSE:
    case JSON_NULL:
        tag = json_is_true(value) ? TAG_TRUE : json_is_false(value) ? TAG_FALSE : TAG_NULL;
        put_bytes(packer, &tag, 1);
        break;
    }
}

/* What is plain, with a byte before it, deflated; false: it is no shorter, or no memory. */
static bool deflate_plain(gr_packer *packer)
{
    z_stream *stream = &packer->deflate;
    buffer *out = &packer->packed;
    out->used = 0;
    if (!need_room(packer, out, packer->plain.used) || deflateReset(stream) != Z_OK) {
        return false;
    }
    out->bytes[0] = DEFLATED;
    stream->next_in = packer->plain.bytes + 1;
    stream->avail_in = (uInt)(packer->plain.used - 1);
    stream->next_out = out->bytes + 1;
    stream->avail_out = (uInt)(packer->plain.used - 1);
    bool is_shorter = deflate(stream, Z_FINISH) == Z_STREAM_END;
    out->used = packer->plain.used - stream->avail_out;
    return is_shorter;
}

const unsigned char *gr_pack(gr_packer *packer, const json_t *value, size_t *size_bytes_out)
{
    static const unsigned char whole = WHOLE;
    packer->plain.used = packer->string_count = 0;
    packer->failed = false;
    put_bytes(packer, &whole, 1);
    put_value(packer, value);
    const buffer *result = &packer->plain;
    if (!packer->failed && result->used >= DEFLATE_FROM_BYTES && deflate_plain(packer)) {
        result = &packer->packed;
    }
    *size_bytes_out = result->used;
    return packer->failed ? NULL : result->bytes;
}

/* ---- Unpacking ------------------------------------------------------------------------------- */
typedef struct pack_reader {
    gr_packer *packer;
    const unsigned char *at, *end;
} pack_reader;

static const unsigned char *take_bytes(pack_reader *r, size_t size_bytes)
{
    const unsigned char *bytes = r->at;
    if (size_bytes > (size_t)(r->end - r->at)) {
        r->packer->failed = true;
        return NULL;
    }
    r->at += size_bytes;
    return bytes;
}

static uint64_t take_number(pack_reader *r)
{
    uint64_t number = 0;
    for (int shift = 0; shift < 64; shift += 7) {
        const unsigned char *byte = take_bytes(r, 1);
        if (byte == NULL) {
            return 0;
        }
        number |= (uint64_t)(*byte & 127) << shift;
        if (*byte < 128) {
            return number;
        }
    }
    r->packer->failed = true;
    return 0;
}

/* The string of this tag, behind it; `digits` has room for those of a uid. */
static pack_string take_plain_string(pack_reader *r, int tag, char digits[UID_BYTES + 1])
{
    pack_string string = {digits, 0};
    const unsigned char *bytes = NULL;
    switch (tag) {
    case TAG_UID:
        if ((bytes = take_bytes(r, 16)) != NULL) {
            print_uid(bytes, digits);
            string.length = UID_BYTES;
        }
        break;
    case TAG_TIME:
        if ((bytes = take_bytes(r, 5)) != NULL) {
            print_time(bytes, digits);
            string.length = TIME_BYTES;
        }
        break;
    case TAG_STRING:
        string.length = (size_t)take_number(r);
        bytes = take_bytes(r, string.length);
        string = bytes != NULL ? (pack_string){(const char *)bytes, string.length}
                               : (pack_string){digits, 0};
        break;
    default:
        r->packer->failed = true;
        break;
    }
    return string;
}

static pack_string take_string(pack_reader *r, int tag, char digits[UID_BYTES + 1])
{
    gr_packer *packer = r->packer;
    if (tag >= TAG_WORD && (size_t)(tag - TAG_WORD) < WORDS) {
        return (pack_string){words[tag - TAG_WORD], packer->word_lengths[tag - TAG_WORD]};
    }
    if (tag != TAG_AGAIN) {
        packer->places[packer->string_count++ % STRINGS_MAX] = r->at - 1;
        return take_plain_string(r, tag, digits);
    }
    uint64_t ago = take_number(r);
    if (ago == 0 || ago > STRINGS_MAX || ago > packer->string_count) {
        packer->failed = true;
        return (pack_string){digits, 0};
    }
    pack_reader before = {packer, packer->places[(packer->string_count - ago) % STRINGS_MAX],
                          r->end};
    return take_plain_string(&before, *before.at++, digits);
}

static json_t *take_value(pack_reader *r);

static json_t *take_map(pack_reader *r)
{
    json_t *map = json_object();
    for (uint64_t count = take_number(r); count > 0 && !r->packer->failed; count--) {
        char digits[UID_BYTES + 1];
        const unsigned char *tag = take_bytes(r, 1);
        if (tag != NULL) {
            pack_string key = take_string(r, *tag, digits);
            r->packer->failed |=
                json_object_setn_new_nocheck(map, key.bytes, key.length, take_value(r)) != 0;
        }
    }
    return map;
}

static json_t *take_list(pack_reader *r)
{
    json_t *list = json_array();
    for (uint64_t count = take_number(r); count > 0 && !r->packer->failed; count--) {
        r->packer->failed |= json_array_append_new(list, take_value(r)) != 0;
    }
    return list;
}

static json_t *take_real(pack_reader *r)
{
    double real = 0;
    const unsigned char *bytes = take_bytes(r, sizeof real);
    if (bytes != NULL) {
        memcpy(&real, bytes, sizeof real);
    }
    return json_real(real);
}

static json_t *take_value(pack_reader *r)
{
    char digits[UID_BYTES + 1];
    const unsigned char *tag = take_bytes(r, 1);
    if (tag == NULL) {
        return NULL;
    }
    if (*tag == TAG_NULL || *tag == TAG_TRUE || *tag == TAG_FALSE) {
        return *tag == TAG_NULL ? json_null() : json_boolean(*tag == TAG_TRUE);
    }
    if (*tag == TAG_MAP || *tag == TAG_LIST) {
        return *tag == TAG_MAP ? take_map(r) : take_list(r);
    }
    if (*tag == TAG_INTEGER) {
        uint64_t number = take_number(r);
        return json_integer((json_int_t)(number >> 1 ^ ((number & 1) != 0 ? UINT64_MAX : 0)));
    }
    if (*tag == TAG_REAL) {
        return take_real(r);
    }
    pack_string string = take_string(r, *tag, digits);
    return json_stringn_nocheck(string.bytes, string.length);
}

/* Into `plain`; false: no memory, or it is no deflated value. */
static bool inflate_packed(gr_packer *packer, const unsigned char *packed, size_t size_bytes)
{
    z_stream *stream = &packer->inflate;
    buffer *out = &packer->plain;
    out->used = 0;
    stream->next_in = (Bytef *)packed;
    stream->avail_in = (uInt)size_bytes;
    if (inflateReset(stream) != Z_OK) {
        return false;
    }
    for (;;) {
        if (!need_room(packer, out, FIRST_BYTES)) {
            return false;
        }
        stream->next_out = out->bytes + out->used;
        stream->avail_out = (uInt)(out->max - out->used);
        int ended = inflate(stream, Z_FINISH);
        out->used = out->max - stream->avail_out;
        if (ended == Z_STREAM_END) {
            return true;
        }
        if (ended != Z_BUF_ERROR || stream->avail_out > 0) {
            return false;
        }
    }
}

json_t *gr_unpack(gr_packer *packer, const unsigned char *packed, size_t size_bytes)
{
    packer->failed = size_bytes == 0;
    packer->string_count = 0;
    pack_reader r = {packer, packed + 1, packed + size_bytes};
    if (!packer->failed && packed[0] == DEFLATED) {
        packer->failed = !inflate_packed(packer, packed + 1, size_bytes - 1);
        r.at = packer->plain.bytes;
        r.end = packer->plain.bytes + packer->plain.used;
    }
    json_t *value = packer->failed ? NULL : take_value(&r);
    if (packer->failed || r.at != r.end) {
        json_decref(value);
        value = NULL;
    }
    return value;
}
