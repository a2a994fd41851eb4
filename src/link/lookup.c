/* SPDX-License-Identifier: Apache-2.0 */
#include "link/lookup.h"

#include "base/fail.h"
#include "base/fork.h"
#include "base/thread.h"

#include <errno.h>
#include <netdb.h>
#include <pthread.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/eventfd.h>
#include <unistd.h>

enum { STACK_BYTES = 512 << 10 };

struct gr_lookup {
    gr_resolver *resolver;
    void *arg;
    int fd;
    _Atomic int owners; /* the caller and the thread; the last of them frees */
    atomic_bool over;   /* `error` and `found` are written; before that they are the thread's */
    int error;
    gr_host_addresses found;
    char host[GR_HOST_BYTES];
};

static int resolve(void *arg, const char *host, gr_host_addresses *found_out)
{
    const struct addrinfo hints = {.ai_socktype = SOCK_STREAM, .ai_flags = AI_ADDRCONFIG};
    struct addrinfo *found = NULL;
    (void)arg;
    int error = getaddrinfo(host, NULL, &hints, &found);
    if (error != 0) {
        return error;
    }
    found_out->count = 0;
    for (const struct addrinfo *at = found; at != NULL && found_out->count < GR_HOST_ADDRESSES_MAX;
         at = at->ai_next) {
        if (at->ai_family == AF_INET || at->ai_family == AF_INET6) {
            memcpy(&found_out->at[found_out->count++], at->ai_addr, at->ai_addrlen);
        }
    }
    freeaddrinfo(found);
    return found_out->count > 0 ? 0 : EAI_NONAME;
}

void gr_host_addresses_sort(gr_host_addresses *addresses)
{
    for (int i = 1; i < addresses->count; i++) {
        int next = i;
        while (next < addresses->count &&
               addresses->at[next].ss_family == addresses->at[i - 1].ss_family) {
            next++;
        }
        if (next == addresses->count) {
            return; /* the rest is of one family */
        }
        struct sockaddr_storage moved = addresses->at[next];
        memmove(&addresses->at[i + 1], &addresses->at[i],
                (size_t)(next - i) * sizeof addresses->at[0]);
        addresses->at[i] = moved;
    }
}

static void unref(gr_lookup *lookup)
{
    if (atomic_fetch_sub(&lookup->owners, 1) == 1) {
        gr_fork_close(lookup->fd);
        free(lookup);
    }
}

static void *run(void *lookup_arg)
{
    gr_lookup *lookup = lookup_arg;
    uint64_t one = 1;
    lookup->error = lookup->resolver(lookup->arg, lookup->host, &lookup->found);
    if (lookup->error == 0) {
        gr_host_addresses_sort(&lookup->found);
    }
    atomic_store(&lookup->over, true);
    ssize_t put = write(lookup->fd, &one, sizeof one);
    (void)put; /* the counter cannot be full */
    unref(lookup);
    return NULL;
}

static int start_thread(gr_lookup *lookup)
{
    pthread_t thread;
    pthread_attr_t attributes;
    int error = pthread_attr_init(&attributes);
    if (error != 0) {
        return error;
    }
    (void)pthread_attr_setdetachstate(&attributes, PTHREAD_CREATE_DETACHED);
    (void)pthread_attr_setstacksize(&attributes, STACK_BYTES);
    error = gr_thread_create(&thread, &attributes, run, lookup);
    (void)pthread_attr_destroy(&attributes);
    return error;
}

gr_status gr_lookup_create(const char *host, gr_resolver *resolver, void *arg,
                           gr_lookup **lookup_out, gr_diag *diag)
{
    gr_lookup *lookup = calloc(1, sizeof *lookup);
    if (lookup == NULL) {
        return gr_fail(diag, GR_E_NO_MEMORY, "no memory to look up a name");
    }
    lookup->resolver = resolver != NULL ? resolver : resolve;
    lookup->arg = arg;
    atomic_init(&lookup->owners, 2);
    atomic_init(&lookup->over, false);
    snprintf(lookup->host, sizeof lookup->host, "%s", host);
    lookup->fd = eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK);
    gr_fork_guard(lookup->fd);
    int error = lookup->fd < 0 ? errno : start_thread(lookup);
    if (error != 0) {
        gr_fork_close(lookup->fd);
        free(lookup);
        return gr_fail(diag, GR_E_IO, "cannot look up \"%s\": %s", host, strerror(error));
    }
    *lookup_out = lookup;
    return GR_OK;
}

int gr_lookup_fd(const gr_lookup *lookup)
{
    return lookup->fd;
}

gr_status gr_lookup_result(gr_lookup *lookup, gr_host_addresses *found_out, gr_diag *diag)
{
    if (!atomic_load(&lookup->over)) {
        return GR_PENDING;
    }
    if (lookup->error == 0) {
        *found_out = lookup->found;
        return GR_OK;
    }
    bool is_unknown = lookup->error == EAI_NONAME || lookup->error == EAI_NODATA;
    return gr_fail(diag,
                   lookup->error == EAI_AGAIN ? GR_E_AGAIN
                   : is_unknown               ? GR_E_NOT_FOUND
                                              : GR_E_INVALID,
                   "cannot find the host \"%s\": %s", lookup->host, gai_strerror(lookup->error));
}

void gr_lookup_destroy(gr_lookup *lookup)
{
    if (lookup != NULL) {
        unref(lookup);
    }
}
