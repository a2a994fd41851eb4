/* SPDX-License-Identifier: Apache-2.0 */
#include "launch/cores.h"

#include "base/fail.h"

#include <errno.h>
#include <fcntl.h>
#include <sched.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

gr_status gr_cores_allowed(gr_cores *cores_out, gr_diag *diag)
{
    cpu_set_t set;
    CPU_ZERO(&set);
    if (sched_getaffinity(0, sizeof set, &set) != 0) {
        return gr_fail(diag, GR_E_IO, "the cores of this machine cannot be read: %s",
                       strerror(errno));
    }
    cores_out->count = 0;
    for (int cpu = 0; cpu < CPU_SETSIZE && cores_out->count < GR_CORES_MAX; cpu++) {
        if (CPU_ISSET((size_t)cpu, &set)) {
            cores_out->id[cores_out->count++] = cpu;
        }
    }
    return GR_OK;
}

static bool contains(const gr_cores *cores, int id)
{
    for (int i = 0; i < cores->count; i++) {
        if (cores->id[i] == id) {
            return true;
        }
    }
    return false;
}

/* A decimal number below GR_CORES_MAX at *at, which moves behind it; -1 if there is none. */
static int take_number(const char **at)
{
    int value = 0, digits = 0;
    while (**at >= '0' && **at <= '9') {
        value = value * 10 + (**at - '0');
        digits++;
        (*at)++;
        if (value >= GR_CORES_MAX) {
            return -1;
        }
    }
    return digits > 0 ? value : -1;
}

gr_status gr_cores_parse(const char *text, const char *where, const gr_cores *allowed,
                         gr_cores *cores_out, gr_diag *diag)
{
    bool wanted[GR_CORES_MAX] = {false};
    const char *at = text;
    for (;;) {
        int first = take_number(&at);
        int last = first;
        if (first >= 0 && *at == '-') {
            at++;
            last = take_number(&at);
        }
        if (first < 0 || last < 0 || (*at != ',' && *at != '\0')) {
            return gr_fail(diag, GR_E_INVALID,
                           "%s: \"%s\" is not a list of cores; write it like 0,2-3", where, text);
        }
        if (last < first) {
            return gr_fail(diag, GR_E_INVALID, "%s: %d-%d runs backwards; write %d-%d", where,
                           first, last, last, first);
        }
        for (int cpu = first; cpu <= last; cpu++) {
            if (!contains(allowed, cpu)) {
                char list[GR_CORES_TEXT_BYTES];
                gr_cores_print(allowed, list, sizeof list);
                return gr_fail(diag, GR_E_INVALID,
                               "%s: core %d is not one that this process may use; those are %s",
                               where, cpu, list);
            }
            wanted[cpu] = true;
        }
        if (*at == '\0') {
            break;
        }
        at++;
    }
    cores_out->count = 0;
    for (int cpu = 0; cpu < GR_CORES_MAX; cpu++) {
        if (wanted[cpu]) {
            cores_out->id[cores_out->count++] = cpu;
        }
    }
    return GR_OK;
}

/* A number from /sys/devices/system/cpu/cpu<id>/topology/<name>; -1 if the kernel does not tell. */
static int topology_number(int cpu, const char *name)
{
    char path[128], text[16];
    snprintf(path, sizeof path, "/sys/devices/system/cpu/cpu%d/topology/%s", cpu, name);
    int fd = open(path, O_RDONLY | O_CLOEXEC);
    if (fd < 0) {
        return -1;
    }
    ssize_t got = read(fd, text, sizeof text - 1);
    close(fd);
    if (got <= 0) {
        return -1;
    }
    text[got] = '\0';
    return (int)strtol(text, NULL, 10);
}

typedef struct placed_core {
    int package, core, id;
} placed_core;

static int compare_places(const void *left, const void *right)
{
    const placed_core *a = left, *b = right;
    if (a->package != b->package) {
        return a->package < b->package ? -1 : 1;
    }
    if (a->core != b->core) {
        return a->core < b->core ? -1 : 1;
    }
    return (a->id > b->id) - (a->id < b->id);
}

void gr_cores_sort_by_topology(gr_cores *cores)
{
    placed_core places[GR_CORES_MAX];
    for (int i = 0; i < cores->count; i++) {
        places[i].id = cores->id[i];
        places[i].package = topology_number(cores->id[i], "physical_package_id");
        places[i].core = topology_number(cores->id[i], "core_id");
        if (places[i].core < 0) {
            return;
        }
    }
    qsort(places, (size_t)cores->count, sizeof places[0], compare_places);
    for (int i = 0; i < cores->count; i++) {
        cores->id[i] = places[i].id;
    }
}

bool gr_cores_deal(const gr_cores *cores, int workers, int index, gr_cores *part_out)
{
    int each = cores->count / workers;
    if (each == 0 && workers % cores->count != 0) {
        return false;
    }
    int first = each > 0 ? index * each : index % cores->count;
    part_out->count = each > 0 ? each : 1;
    memcpy(part_out->id, cores->id + first, (size_t)part_out->count * sizeof cores->id[0]);
    return true;
}

void gr_cores_print(const gr_cores *cores, char *text_out, size_t text_bytes)
{
    size_t used = 0;
    text_out[0] = '\0';
    for (int i = 0; i < cores->count;) {
        int last = i;
        while (last + 1 < cores->count && cores->id[last + 1] == cores->id[last] + 1) {
            last++;
        }
        char piece[32];
        const char *comma = i > 0 ? "," : "";
        if (last > i) {
            snprintf(piece, sizeof piece, "%s%d-%d", comma, cores->id[i], cores->id[last]);
        } else {
            snprintf(piece, sizeof piece, "%s%d", comma, cores->id[i]);
        }
        size_t size = strlen(piece);
        if (used + size + sizeof "..." > text_bytes) {
            if (used + sizeof "..." <= text_bytes) {
                memcpy(text_out + used, "...", sizeof "...");
            }
            return;
        }
        memcpy(text_out + used, piece, size + 1);
        used += size;
        i = last + 1;
    }
}

int gr_cores_bind(const gr_cores *cores)
{
    cpu_set_t set;
    CPU_ZERO(&set);
    for (int i = 0; i < cores->count; i++) {
        CPU_SET((size_t)cores->id[i], &set);
    }
    return sched_setaffinity(0, sizeof set, &set) == 0 ? 0 : errno;
}
