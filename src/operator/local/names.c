/* SPDX-License-Identifier: Apache-2.0 */
#include "operator/local/names.h"

#include "base/fail.h"
#include "base/file.h"
#include "operator/object.h"

#include <arpa/inet.h>
#include <errno.h>
#include <fcntl.h>
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <unistd.h>

/* 127.A.B.1 to 127.A.B.254, and then those of another net A.B. A net belongs to the run whose
 * socket is bound at 127.A.B.255: so two runs at a time do not take each other's ports, also where
 * each has process ids of its own. The first net that is tried follows from the process id. */
enum {
    HOSTS_OF_NET = 254,
    NETS = 256,
    FIRST_A = 64,
    A_COUNT = 64,
    NETS_MAX = 512, /* of one run */
    NET_PORT = 29499,
    HOSTS_FILE_BYTES_MAX = 1 << 20
};

typedef struct names_net {
    int number; /* A * NETS + B */
    int fd;     /* by which it is ours; -1: by nothing */
} names_net;

struct gr_names {
    int fd;
    names_net nets[NETS_MAX];
    int net_count;
    char *path, *domain;
    json_t *addresses; /* of "space/pod": a number from 0 */
    json_t *written;   /* "address name" of each that stands in the file */
};

gr_status gr_names_create(const char *path, const char *cluster_domain, gr_names **names_out,
                          gr_diag *diag)
{
    gr_names *names = calloc(1, sizeof *names);
    char *host = NULL;
    size_t size_bytes = 0;
    if (names == NULL) {
        return gr_fail(diag, GR_E_NO_MEMORY, "no memory for the names of pods");
    }
    names->path = strdup(path);
    names->domain = strdup(cluster_domain);
    names->addresses = json_object();
    names->written = json_object();
    names->fd = open(path, O_WRONLY | O_CREAT | O_EXCL | O_APPEND | O_CLOEXEC, 0644);
    gr_status status = names->path == NULL || names->domain == NULL || names->addresses == NULL ||
                               names->written == NULL
                           ? gr_fail(diag, GR_E_NO_MEMORY, "no memory for the names of pods")
                       : names->fd < 0 ? gr_fail_errno(diag, "create", path, errno)
                                       : GR_OK;
    if (status == GR_OK &&
        gr_file_read("/etc/hosts", HOSTS_FILE_BYTES_MAX, &host, &size_bytes, NULL) == GR_OK) {
        int error = gr_fd_write(names->fd, host, size_bytes);
        error = error == 0 ? gr_fd_write(names->fd, "\n", 1) : error;
        status = error != 0 ? gr_fail_errno(diag, "write", path, error) : GR_OK;
    }
    free(host);
    if (status != GR_OK) {
        gr_names_destroy(names);
        return status;
    }
    *names_out = names;
    return GR_OK;
}

void gr_names_destroy(gr_names *names)
{
    if (names != NULL) {
        for (int i = 0; i < names->net_count; i++) {
            if (names->nets[i].fd >= 0) {
                close(names->nets[i].fd);
            }
        }
        if (names->fd >= 0) {
            close(names->fd);
        }
        json_decref(names->addresses);
        json_decref(names->written);
        free(names->path);
        free(names->domain);
        free(names);
    }
}

static void print_address(int net, int host, char address_out[GR_ADDRESS_OF_POD_BYTES])
{
    snprintf(address_out, GR_ADDRESS_OF_POD_BYTES, "127.%d.%d.%d", FIRST_A + net / NETS % A_COUNT,
             net % NETS, host);
}

/* Returns true if another run has the net. *fd_out: the descriptor by which it is ours now, -1: no
 * socket can be had. */
static bool is_taken(int net, int *fd_out)
{
    char address[GR_ADDRESS_OF_POD_BYTES];
    struct sockaddr_in at = {.sin_family = AF_INET, .sin_port = htons(NET_PORT)};
    print_address(net, HOSTS_OF_NET + 1, address);
    (void)inet_pton(AF_INET, address, &at.sin_addr);
    *fd_out = socket(AF_INET, SOCK_DGRAM | SOCK_CLOEXEC, 0);
    if (*fd_out < 0 || bind(*fd_out, (const struct sockaddr *)&at, sizeof at) == 0) {
        return false;
    }
    bool is_another = errno == EADDRINUSE;
    close(*fd_out);
    *fd_out = -1;
    return is_another;
}

/* Where no net can be had, for all are taken or a program is at NET_PORT of all addresses, it is
 * one that another run may have as well. */
static gr_status take_net(gr_names *names, gr_diag *diag)
{
    const int count = NETS * A_COUNT, first = (int)getpid() % count;
    names_net net = {.number = (first + names->net_count) % count, .fd = -1};
    if (names->net_count == NETS_MAX) {
        return gr_fail(diag, GR_E_INVALID, "more than %d pods in one run", NETS_MAX * HOSTS_OF_NET);
    }
    for (int i = 0; i < count && net.fd < 0; i++) {
        int number = (first + i) % count;
        if (!is_taken(number, &net.fd)) {
            net.number = number;
            break;
        }
    }
    names->nets[names->net_count++] = net;
    return GR_OK;
}

gr_status gr_names_address(gr_names *names, const char *space, const char *pod,
                           char address_out[GR_ADDRESS_OF_POD_BYTES], gr_diag *diag)
{
    char key[600];
    snprintf(key, sizeof key, "%.290s/%.290s", space, pod);
    json_int_t count = (json_int_t)json_object_size(names->addresses);
    if (json_object_get(names->addresses, key) == NULL &&
        json_object_set_new(names->addresses, key, json_integer(count)) != 0) {
        return gr_fail(diag, GR_E_NO_MEMORY, "no memory for the names of pods");
    }
    json_int_t number = json_integer_value(json_object_get(names->addresses, key));
    json_int_t at = number / HOSTS_OF_NET;
    gr_status status = at < names->net_count ? GR_OK : take_net(names, diag);
    if (status == GR_OK) {
        print_address(names->nets[at].number, (int)(number % HOSTS_OF_NET) + 1, address_out);
    }
    return status;
}

/* Adds " name" to the line, unless it stands in the file. */
static bool add_name(const gr_names *names, FILE *line, const char *address, const char *name)
{
    char key[1200];
    snprintf(key, sizeof key, "%s %.1100s", address, name);
    if (json_object_get(names->written, key) != NULL) {
        return true;
    }
    fprintf(line, " %s", name);
    return json_object_set_new(names->written, key, json_true()) == 0;
}

/* "train-worker-0", "train-worker-0.default.svc" and so on. */
static bool add_names(const gr_names *names, FILE *line, const char *address, const char *name,
                      const char *space)
{
    char longer[1100];
    static const char *const endings[] = {"", "", ".svc"};
    bool done = true;
    for (size_t i = 0; i < sizeof endings / sizeof endings[0]; i++) {
        snprintf(longer, sizeof longer, "%.500s%s%.290s%s", name, i > 0 ? "." : "",
                 i > 0 ? space : "", endings[i]);
        done = add_name(names, line, address, longer) && done;
    }
    snprintf(longer, sizeof longer, "%.500s.%.290s.svc.%.250s", name, space, names->domain);
    return add_name(names, line, address, longer) && done;
}

static bool selects(const json_t *service, const json_t *pod)
{
    json_t *selector = gr_object_at(service, "spec.selector"), *value;
    const json_t *labels = gr_object_at(pod, "metadata.labels");
    const char *key;
    if (json_object_size(selector) == 0) {
        return false;
    }
    json_object_foreach(selector, key, value)
    {
        if (!json_equal(json_object_get(labels, key), value)) {
            return false;
        }
    }
    return true;
}

static bool print_names(const gr_names *names, const gr_store *store, const json_t *pod,
                        const char *address, FILE *line)
{
    const char *space = gr_object_text(pod, "metadata.namespace");
    const char *name = gr_object_text(pod, "metadata.name");
    const char *host = gr_object_text(pod, "spec.hostname");
    const char *domain = gr_object_text(pod, "spec.subdomain");
    bool done = add_name(names, line, address, name);
    if (host != NULL) {
        done = add_name(names, line, address, host) && done;
    }
    if (domain != NULL) {
        char whole[600];
        snprintf(whole, sizeof whole, "%.290s.%.290s", host != NULL ? host : name, domain);
        done = add_names(names, line, address, whole, space) && done;
    }
    size_t i;
    const json_t *service;
    json_array_foreach(gr_store_objects(store), i, service)
    {
        if (gr_object_is(service, "v1", "Service") &&
            gr_object_is_text(service, "metadata.namespace", space) && selects(service, pod)) {
            done =
                add_names(names, line, address, gr_object_text(service, "metadata.name"), space) &&
                done;
        }
    }
    return done;
}

gr_status gr_names_publish(gr_names *names, const gr_store *store, const json_t *pod, gr_diag *diag)
{
    char address[GR_ADDRESS_OF_POD_BYTES], *text = NULL;
    size_t size_bytes = 0;
    gr_status status = gr_names_address(names, gr_object_text(pod, "metadata.namespace"),
                                        gr_object_text(pod, "metadata.name"), address, diag);
    FILE *line = status == GR_OK ? open_memstream(&text, &size_bytes) : NULL;
    if (status != GR_OK || line == NULL) {
        return status != GR_OK ? status
                               : gr_fail(diag, GR_E_NO_MEMORY, "no memory for the names of pods");
    }
    fputs(address, line);
    bool done = print_names(names, store, pod, address, line);
    fputc('\n', line);
    done = fclose(line) == 0 && done;
    if (!done) {
        status = gr_fail(diag, GR_E_NO_MEMORY, "no memory for the names of pods");
    } else if (strchr(text, ' ') != NULL) {
        int error = gr_fd_write(names->fd, text, size_bytes);
        status = error != 0 ? gr_fail_errno(diag, "write", names->path, error) : GR_OK;
    }
    free(text);
    return status;
}

/* ---- Where names cannot be had --------------------------------------------------------------- */
static bool is_of_name(char c)
{
    return (c >= 'a' && c <= 'z') || (c >= '0' && c <= '9') || c == '-' || c == '.';
}

/* The address of the name in one of our own lines; its length, 0: there is none. */
static size_t find_address(const char *hosts, const char *name, size_t length,
                           const char **address_out)
{
    for (const char *line = hosts; *line != '\0';) {
        size_t size = strcspn(line, "\n"), word = strcspn(line, " \n");
        bool is_ours = strncmp(line, "127.", 4) == 0 && strtol(line + 4, NULL, 10) >= FIRST_A;
        for (size_t at = word; is_ours && at < size;) {
            size_t begin = at + 1, end = begin + strcspn(line + begin, " \n");
            if (end - begin == length && strncmp(line + begin, name, length) == 0) {
                *address_out = line;
                return word;
            }
            at = end;
        }
        line += size + (line[size] == '\n');
    }
    return 0;
}

char *gr_names_replace(const char *hosts, const char *text)
{
    char *replaced = NULL;
    size_t size_bytes = 0;
    FILE *out = open_memstream(&replaced, &size_bytes);
    while (out != NULL && *text != '\0') {
        size_t length = 0;
        const char *address = text;
        while (is_of_name(text[length])) {
            length++;
        }
        size_t found = length > 0 ? find_address(hosts, text, length, &address) : 0;
        length += length == 0;
        fwrite(address, 1, found > 0 ? found : length, out);
        text += length;
    }
    if (out == NULL || fclose(out) != 0) {
        free(replaced);
        return NULL;
    }
    return replaced;
}
