/* SPDX-License-Identifier: Apache-2.0 */
#include "link/shm/registered.h"

#include "base/fail.h"

#include <errno.h>
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <sys/sysmacros.h>
#include <unistd.h>

enum { FIRST_CAPACITY = 16 };

/* ---- What the kernel maps -------------------------------------------------------------------- */
typedef struct mapping {
    uintptr_t first, end;
    char rights[5]; /* "rw-p" */
    uint64_t file_offset;
    unsigned major, minor; /* the device of the file */
    uint64_t inode;
    bool stack;
} mapping;

static gr_status fail_to_read(gr_diag *diag)
{
    return gr_fail(diag, GR_E_IO, "/proc/self/maps cannot be read: %s",
                   errno != 0 ? strerror(errno) : "it has an unknown form");
}

/* The next line of /proc/self/maps; false: the end, if feof says so, or it cannot be read. */
static bool next_mapping(FILE *maps, mapping *out)
{
    char line[256], name[32] = "";
    errno = 0;
    if (fgets(line, sizeof line, maps) == NULL ||
        sscanf(line, "%" SCNxPTR "-%" SCNxPTR " %4s %" SCNx64 " %x:%x %" SCNu64 " %31s",
               &out->first, &out->end, out->rights, &out->file_offset, &out->major, &out->minor,
               &out->inode, name) < 7) {
        return false;
    }
    out->stack = strcmp(name, "[stack]") == 0;
    while (strchr(line, '\n') == NULL && fgets(line, sizeof line, maps) != NULL) {
        /* the rest of a long file name */
    }
    return true;
}

/* Checks that this process alone reads and writes all of the memory. */
static gr_status check_private(const uint8_t *at, size_t size_bytes, gr_diag *diag)
{
    FILE *maps = fopen("/proc/self/maps", "re");
    if (maps == NULL) {
        return fail_to_read(diag);
    }
    uintptr_t next = (uintptr_t)at, end = next + size_bytes;
    gr_status status = GR_OK;
    for (mapping m; status == GR_OK && next < end && next_mapping(maps, &m);) {
        if (m.end <= next || m.first > next) {
            continue;
        }
        if (strncmp(m.rights, "rw", 2) != 0 || m.rights[3] != 'p' || m.stack) {
            status = gr_fail(diag, GR_E_UNSUPPORTED, "the memory at %p is %s", (void *)next,
                             m.stack              ? "the stack"
                             : m.rights[3] != 'p' ? "shared with other processes already"
                                                  : "not both readable and writable");
        }
        next = m.end;
    }
    if (status == GR_OK && next < end) {
        status = feof(maps) ? gr_fail(diag, GR_E_INVALID, "there is no memory at %p", (void *)next)
                            : fail_to_read(diag);
    }
    fclose(maps);
    return status;
}

/* ---- The list -------------------------------------------------------------------------------- */
/* The first of list[0 .. count) that does not end before `at`. */
static size_t place_of(const gr_shm_registration *list, size_t count, uintptr_t at)
{
    size_t low = 0, high = count;
    while (low < high) {
        size_t middle = low + (high - low) / 2;
        if ((uintptr_t)list[middle].at + list[middle].size_bytes <= at) {
            low = middle + 1;
        } else {
            high = middle;
        }
    }
    return low;
}

const uint8_t *gr_shm_registered_find(const gr_shm_registered *registered, const void *at,
                                      size_t size_bytes)
{
    size_t place = place_of(registered->list, registered->count, (uintptr_t)at);
    if (place == registered->count) {
        return NULL;
    }
    const gr_shm_registration *one = &registered->list[place];
    uintptr_t first = (uintptr_t)one->at, wanted = (uintptr_t)at;
    return wanted >= first && size_bytes <= one->size_bytes - (wanted - first) && !one->split
               ? one->heap + (wanted - first)
               : NULL;
}

static bool make_room(gr_shm_registered *registered)
{
    if (registered->count < registered->capacity) {
        return true;
    }
    size_t capacity = registered->capacity > 0 ? 2 * registered->capacity : FIRST_CAPACITY;
    gr_shm_registration *list =
        capacity <= GR_SHM_EXTENTS_MAX ? realloc(registered->list, capacity * sizeof *list) : NULL;
    if (list == NULL) {
        return false;
    }
    registered->list = list;
    registered->capacity = capacity;
    return true;
}

/* ---- Replacing pages ------------------------------------------------------------------------- */
static gr_status replace(gr_shm_heap *heap, gr_shm_registration *one, gr_diag *diag)
{
    size_t page = (size_t)sysconf(_SC_PAGESIZE);
    if (gr_shm_heap_alloc(heap, one->size_bytes + page, &one->block) != GR_OK) {
        return gr_fail(diag, GR_E_NO_MEMORY, "no shared memory for %zu bytes", one->size_bytes);
    }
    one->heap = (uint8_t *)(((uintptr_t)one->block + page - 1) / page * page);
    memcpy(one->heap, one->at, one->size_bytes);
    size_t offset = heap->file_offset + (size_t)(one->heap - heap->base);
    if (mmap(one->at, one->size_bytes, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_FIXED, heap->fd,
             (off_t)offset) == MAP_FAILED) {
        gr_status status =
            gr_fail(diag, GR_E_UNSUPPORTED, "the kernel does not replace it: %s", strerror(errno));
        gr_shm_heap_free(heap, one->block);
        return status;
    }
    return GR_OK;
}

/* Private memory again where the mapping has pages of the registration. The program may have
 * unmapped some, and have something else there: only what is still of our file at its place is
 * touched. */
static gr_status restore_part(const gr_shm_heap *heap, gr_shm_registration *one, const mapping *m,
                              gr_diag *diag)
{
    uintptr_t at = (uintptr_t)one->at, end = at + one->size_bytes;
    uintptr_t from = m->first > at ? m->first : at, to = m->end < end ? m->end : end;
    uint64_t offset = heap->file_offset + (uint64_t)(one->heap - heap->base);
    if (m->file_offset + (from - m->first) != offset + (from - at)) {
        return GR_OK;
    }
    size_t size_bytes = to - from;
    void *own = mmap(NULL, size_bytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    if (own != MAP_FAILED) {
        memcpy(own, one->heap + (from - at), size_bytes);
        if (mremap(own, size_bytes, size_bytes, MREMAP_MAYMOVE | MREMAP_FIXED, (void *)from) !=
            MAP_FAILED) {
            one->split = true;
            return GR_OK;
        }
        munmap(own, size_bytes);
    }
    return gr_fail(diag, GR_E_NO_MEMORY, "no memory for %zu private bytes", size_bytes);
}

/* Restores list[0 .. count) in one pass over what is mapped. That changes on the way; the kernel
 * promises that addresses only ascend, and that what is mapped all the time is shown. Returns the
 * first failure, which does not keep the others from being restored. */
static gr_status restore(const gr_shm_heap *heap, gr_shm_registration *list, size_t count,
                         gr_diag *diag)
{
    struct stat file;
    FILE *maps = fstat(heap->fd, &file) == 0 ? fopen("/proc/self/maps", "re") : NULL;
    if (maps == NULL) {
        return fail_to_read(diag);
    }
    gr_status first = GR_OK;
    for (mapping m; next_mapping(maps, &m);) {
        if (m.inode != file.st_ino || makedev(m.major, m.minor) != file.st_dev) {
            continue;
        }
        for (size_t i = place_of(list, count, m.first); i < count && (uintptr_t)list[i].at < m.end;
             i++) {
            gr_status status = restore_part(heap, &list[i], &m, first == GR_OK ? diag : NULL);
            first = first == GR_OK ? status : first;
        }
    }
    if (first == GR_OK && !feof(maps)) {
        first = fail_to_read(diag);
    }
    fclose(maps);
    return first;
}

/* ---- The interface --------------------------------------------------------------------------- */
gr_status gr_shm_register(gr_shm_registered *registered, gr_shm_heap *heap, void *at,
                          size_t size_bytes, gr_diag *diag)
{
    gr_shm_registration one = {.at = at, .size_bytes = size_bytes};
    gr_status status = check_private(at, size_bytes, diag);
    if (status == GR_OK && !make_room(registered)) {
        status = gr_fail(diag, GR_E_NO_MEMORY, "no memory for the list of registered memory");
    }
    if (status == GR_OK) {
        status = replace(heap, &one, diag);
    }
    if (status == GR_OK) {
        size_t place = place_of(registered->list, registered->count, (uintptr_t)at);
        memmove(registered->list + place + 1, registered->list + place,
                (registered->count - place) * sizeof one);
        registered->list[place] = one;
        registered->count++;
    }
    return status;
}

gr_status gr_shm_unregister(gr_shm_registered *registered, gr_shm_heap *heap, void *at, bool kept,
                            gr_diag *diag)
{
    size_t place = place_of(registered->list, registered->count, (uintptr_t)at);
    GR_CHECK(place < registered->count && registered->list[place].at == at);
    gr_shm_registration *one = &registered->list[place];
    gr_status status = restore(heap, one, 1, diag);
    if (status != GR_OK) {
        return status;
    }
    if (!kept) {
        gr_shm_heap_free(heap, one->block);
    }
    registered->count--;
    memmove(one, one + 1, (registered->count - place) * sizeof *one);
    return GR_OK;
}

/* Without memory for a private copy, or without a descriptor, the program goes on with the shared
 * pages, which live as long as they are mapped. */
void gr_shm_registered_fini(gr_shm_registered *registered, gr_shm_heap *heap)
{
    if (registered->count > 0) {
        (void)restore(heap, registered->list, registered->count, NULL);
    }
    free(registered->list);
    *registered = (gr_shm_registered){.list = NULL};
}
