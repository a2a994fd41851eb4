/* SPDX-License-Identifier: Apache-2.0 */
#include "group/topology.h"

#include "base/hash.h"

#include <ctype.h>
#include <fcntl.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

enum { BOOT_ID_BYTES = 64, FACTS_BYTES = 256 };

gr_status gr_topology_create(const uint64_t *host_ids, int world_size, gr_topology **topology_out)
{
    size_t world = (size_t)world_size;
    gr_topology *topology = calloc(1, sizeof *topology);
    /* host_of, local_rank, local_size, and the first rank of each host while we count. */
    int *numbers = calloc(4 * world, sizeof *numbers);
    if (topology == NULL || numbers == NULL) {
        free(numbers);
        free(topology);
        return GR_E_NO_MEMORY;
    }
    int *host_of = numbers, *local_rank = numbers + world, *local_size = numbers + 2 * world;
    int *first = numbers + 3 * world;
    int hosts = 0;
    for (int rank = 0; rank < world_size; rank++) {
        /* Ranks of one host are mostly neighbours. */
        int host = rank > 0 && host_ids[rank] == host_ids[rank - 1] ? host_of[rank - 1] : 0;
        while (host < hosts && host_ids[first[host]] != host_ids[rank]) {
            host++;
        }
        if (host == hosts) {
            first[hosts++] = rank;
        }
        host_of[rank] = host;
        local_rank[rank] = local_size[host]++;
    }
    *topology = (gr_topology){.host_count = hosts,
                              .host_of = host_of,
                              .local_rank = local_rank,
                              .local_size = local_size};
    *topology_out = topology;
    return GR_OK;
}

void gr_topology_destroy(gr_topology *topology)
{
    if (topology != NULL) {
        free((void *)(uintptr_t)topology->host_of);
        free(topology);
    }
}

static void read_boot_id(char text_out[BOOT_ID_BYTES])
{
    memset(text_out, 0, BOOT_ID_BYTES);
    int fd = open("/proc/sys/kernel/random/boot_id", O_RDONLY | O_CLOEXEC);
    if (fd >= 0) {
        ssize_t got = read(fd, text_out, BOOT_ID_BYTES - 1);
        text_out[got > 0 ? strcspn(text_out, "\n") : 0] = '\0';
        close(fd);
    }
}

uint64_t gr_host_identify(const char *name, char name_out[GR_HOST_NAME_BYTES])
{
    char facts[FACTS_BYTES], own_name[GR_HOST_NAME_BYTES] = "", boot_id[BOOT_ID_BYTES];
    bool given = name != NULL && name[0] != '\0';
    if (!given && gethostname(own_name, sizeof own_name - 1) != 0) {
        snprintf(own_name, sizeof own_name, "?");
    }
    snprintf(name_out, GR_HOST_NAME_BYTES, "%s", given ? name : own_name);
    for (char *at = name_out; *at != '\0'; at++) {
        *at = isprint((unsigned char)*at) ? *at : '?';
    }
    if (given) {
        return gr_hash64(name, strlen(name), 1);
    }
    /* Links in memory begin on a Unix socket, whose names belong to the network namespace. */
    struct stat network = {0};
    if (stat("/proc/self/ns/net", &network) != 0) {
        network.st_ino = 0;
    }
    read_boot_id(boot_id);
    int size = snprintf(facts, sizeof facts, "%s %s %llu %u", boot_id, own_name,
                        (unsigned long long)network.st_ino, (unsigned)getuid());
    return gr_hash64(facts, size > 0 ? (size_t)size : 0, 2);
}
