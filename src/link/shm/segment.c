/* SPDX-License-Identifier: Apache-2.0 */
#include "link/shm/segment.h"

#include "base/codec.h"
#include "base/fail.h"
#include "base/hash.h"
#include "link/socket.h"

#include <errno.h>
#include <fcntl.h>
#include <sched.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/resource.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <unistd.h>

enum {
    CARD_MAGIC = 0x31535247, /* "GRS1" */
    VERSION = 3,
    /* What goes with the file descriptor: magic, version, rank, world size (u32 each), file bytes
     * (u64), XXH3-64 of what is before. */
    NOTE_BYTES = 32,
    NOTE_CHECKSUM_AT = 24,
    HEAP_ALIGN = 2 << 20,
    HEAP_MIN = 2 << 20, /* less is of no use: a communicator measures with some memory of it */
    NO_EXEC_SEAL = 0x8  /* MFD_NOEXEC_SEAL of newer kernels */
};

static size_t heap_offset_of(int world_size)
{
    size_t end = gr_shm_colls_offset(world_size) + (size_t)GR_SHARED_COLLS * GR_SHARED_COLL_BYTES;
    return (end + HEAP_ALIGN - 1) / HEAP_ALIGN * HEAP_ALIGN;
}

/* A file that is made larger ends the process by a signal. */
static size_t file_bytes_max(void)
{
    struct rlimit limit;
    bool known = getrlimit(RLIMIT_FSIZE, &limit) == 0;
    return known && limit.rlim_cur < SIZE_MAX / 2 ? (size_t)limit.rlim_cur : SIZE_MAX / 2;
}

static int create_file(size_t size_bytes)
{
    int fd = memfd_create("gradus", MFD_CLOEXEC | MFD_ALLOW_SEALING | NO_EXEC_SEAL);
    if (fd < 0 && errno == EINVAL) {
        fd = memfd_create("gradus", MFD_CLOEXEC | MFD_ALLOW_SEALING);
    }
    if (fd >= 0 && (ftruncate(fd, (off_t)size_bytes) != 0 ||
                    fcntl(fd, F_ADD_SEALS, F_SEAL_SHRINK | F_SEAL_GROW | F_SEAL_SEAL) != 0)) {
        int error = errno;
        close(fd);
        errno = error;
        return -1;
    }
    return fd;
}

static gr_status write_card(gr_shm_segment *segment, int rank, int world_size, gr_diag *diag)
{
    gr_shm_card *card = (gr_shm_card *)(void *)(segment->base + GR_SHM_FRONT_BYTES);
    *card = (gr_shm_card){.magic = CARD_MAGIC,
                          .version = VERSION,
                          .rank = (uint32_t)rank,
                          .world_size = (uint32_t)world_size,
                          .file_bytes = segment->size_bytes,
                          .heap_offset = segment->heap_offset,
                          .card_at = (uint64_t)(uintptr_t)card};
    cpu_set_t set;
    CPU_ZERO(&set);
    if (sched_getaffinity(0, sizeof set, &set) == 0) {
        for (int cpu = 0; cpu < CPU_SETSIZE && cpu < 64 * GR_SHM_CPU_WORDS; cpu++) {
            if (CPU_ISSET((size_t)cpu, &set)) {
                card->cpus[cpu / 64] |= UINT64_C(1) << (cpu % 64);
            }
        }
    }
    return gr_random_bytes(&card->token, sizeof card->token, diag);
}

gr_status gr_shm_segment_create(int rank, int world_size, size_t heap_bytes_max,
                                gr_shm_segment *segment_out, gr_diag *diag)
{
    size_t heap_offset = heap_offset_of(world_size);
    size_t size = heap_offset + (heap_bytes_max + GR_SHM_PAGE - 1) / GR_SHM_PAGE * GR_SHM_PAGE;
    size_t size_max = file_bytes_max() / GR_SHM_PAGE * GR_SHM_PAGE;
    if (size > size_max && size_max < heap_offset + HEAP_MIN) {
        return gr_fail(diag, GR_E_IO,
                       "cannot create a memory file of %zu bytes or more: a file of this process "
                       "has at most %zu: raise that limit (ulimit -f)",
                       heap_offset + HEAP_MIN, size_max);
    }
    size = size < size_max ? size : size_max;
    int fd = create_file(size);
    if (fd < 0) {
        char why[GR_DESCRIPTORS_TEXT_BYTES];
        return gr_fail(diag, GR_E_IO, "cannot create a memory file of %zu bytes: %s", size,
                       gr_descriptors_error(errno, why));
    }
    void *base = mmap(NULL, size, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_NORESERVE, fd, 0);
    if (base == MAP_FAILED) {
        int error = errno;
        close(fd);
        return gr_fail(diag, GR_E_NO_MEMORY,
                       "cannot map a memory file of %zu bytes (sparse): %s; is the address space "
                       "limited (ulimit -v)?",
                       size, strerror(error));
    }
    (void)madvise(base, size, MADV_DONTDUMP);
    gr_shm_segment segment = {
        .base = base, .size_bytes = size, .heap_offset = heap_offset, .fd = fd};
    gr_status status = write_card(&segment, rank, world_size, diag);
    if (status != GR_OK) {
        gr_shm_segment_close(&segment);
        return status;
    }
    *segment_out = segment;
    return GR_OK;
}

void gr_shm_segment_close(gr_shm_segment *segment)
{
    if (segment->base != NULL) {
        munmap(segment->base, segment->size_bytes);
        segment->base = NULL;
    }
    if (segment->fd >= 0) {
        close(segment->fd);
        segment->fd = -1;
    }
}

/* The seal and the real size: without them a peer could make our reading fault. */
static gr_status check_file(int fd, uint64_t size_bytes, int world_size, gr_diag *diag)
{
    struct stat info;
    int seals = fcntl(fd, F_GET_SEALS);
    if (seals < 0 || (seals & F_SEAL_SHRINK) == 0 || fstat(fd, &info) != 0) {
        return gr_fail(diag, GR_E_PROTOCOL, "what it handed over is not a sealed memory file");
    }
    if ((uint64_t)info.st_size != size_bytes || size_bytes < heap_offset_of(world_size) ||
        size_bytes > SIZE_MAX / 2) {
        return gr_fail(diag, GR_E_PROTOCOL, "its memory file has %lld bytes, it said %llu",
                       (long long)info.st_size, (unsigned long long)size_bytes);
    }
    return GR_OK;
}

/* Maps the file that `fd` (transferred, also on failure) gives, and checks that it is rank's. */
static gr_status map_segment(int fd, uint64_t size_bytes, int rank, int world_size,
                             gr_shm_segment *segment_out, gr_diag *diag)
{
    gr_status status = check_file(fd, size_bytes, world_size, diag);
    if (status != GR_OK) {
        close(fd);
        return status;
    }
    void *base = mmap(NULL, size_bytes, PROT_READ, MAP_SHARED | MAP_NORESERVE, fd, 0);
    size_t heap = heap_offset_of(world_size);
    if (base != MAP_FAILED &&
        (mprotect(base, GR_SHM_FRONT_BYTES, PROT_READ | PROT_WRITE) != 0 ||
         (size_bytes > heap &&
          mprotect((uint8_t *)base + heap, size_bytes - heap, PROT_READ | PROT_WRITE) != 0))) {
        munmap(base, size_bytes);
        base = MAP_FAILED;
    }
    int error = errno;
    close(fd);
    if (base == MAP_FAILED) {
        return gr_fail(diag, GR_E_NO_MEMORY, "cannot map its memory file of %llu bytes: %s",
                       (unsigned long long)size_bytes, strerror(error));
    }
    (void)madvise(base, size_bytes, MADV_DONTDUMP);
    gr_shm_segment segment = {.base = base,
                              .size_bytes = size_bytes,
                              .heap_offset = heap_offset_of(world_size),
                              .fd = -1};
    gr_shm_card card = *gr_shm_card_of(&segment);
    if (card.magic != CARD_MAGIC || card.version != VERSION || card.rank != (uint32_t)rank ||
        card.world_size != (uint32_t)world_size || card.file_bytes != size_bytes ||
        card.heap_offset != segment.heap_offset) {
        gr_shm_segment_close(&segment);
        return gr_fail(diag, GR_E_PROTOCOL,
                       "its memory file is laid out differently: use the same build in all ranks");
    }
    *segment_out = segment;
    return GR_OK;
}

/* ---- From hand to hand ----------------------------------------------------------------------- */

typedef union control_room {
    struct cmsghdr header;
    char bytes[CMSG_SPACE(4 * sizeof(int))];
} control_room;

gr_status gr_shm_segment_give(int socket_fd, const gr_shm_segment *segment, int rank,
                              int world_size, gr_diag *diag)
{
    uint8_t note[NOTE_BYTES];
    gr_put_u32(note, CARD_MAGIC);
    gr_put_u32(note + 4, VERSION);
    gr_put_u32(note + 8, (uint32_t)rank);
    gr_put_u32(note + 12, (uint32_t)world_size);
    gr_put_u64(note + 16, segment->size_bytes);
    gr_put_u64(note + NOTE_CHECKSUM_AT, gr_hash64(note, NOTE_CHECKSUM_AT, CARD_MAGIC));

    control_room room;
    memset(&room, 0, sizeof room);
    struct iovec part = {.iov_base = note, .iov_len = sizeof note};
    struct msghdr message = {.msg_iov = &part,
                             .msg_iovlen = 1,
                             .msg_control = room.bytes,
                             .msg_controllen = CMSG_SPACE(sizeof(int))};
    struct cmsghdr *header = CMSG_FIRSTHDR(&message);
    header->cmsg_level = SOL_SOCKET;
    header->cmsg_type = SCM_RIGHTS;
    header->cmsg_len = CMSG_LEN(sizeof(int));
    memcpy(CMSG_DATA(header), &segment->fd, sizeof(int));
    ssize_t sent = sendmsg(socket_fd, &message, MSG_NOSIGNAL | MSG_DONTWAIT);
    if (sent == NOTE_BYTES) {
        return GR_OK;
    }
    if (sent < 0 && (errno == EAGAIN || errno == EINTR)) {
        return GR_PENDING;
    }
    return gr_fail(diag, GR_E_PEER_LOST, "it cannot be given the memory file: %s",
                   sent < 0 ? strerror(errno) : "cut short");
}

/* The first descriptor of the message; all others are closed. -1: none. */
static int received_fd(struct msghdr *message)
{
    int first = -1;
    for (struct cmsghdr *at = CMSG_FIRSTHDR(message); at != NULL; at = CMSG_NXTHDR(message, at)) {
        if (at->cmsg_level != SOL_SOCKET || at->cmsg_type != SCM_RIGHTS) {
            continue;
        }
        size_t count = (at->cmsg_len - CMSG_LEN(0)) / sizeof(int);
        for (size_t i = 0; i < count; i++) {
            int fd;
            memcpy(&fd, CMSG_DATA(at) + i * sizeof(int), sizeof fd);
            if (first < 0) {
                first = fd;
            } else {
                close(fd);
            }
        }
    }
    return first;
}

gr_status gr_shm_segment_take(int socket_fd, int rank, int world_size, gr_shm_segment *segment_out,
                              gr_diag *diag)
{
    uint8_t note[NOTE_BYTES];
    control_room room;
    struct iovec part = {.iov_base = note, .iov_len = sizeof note};
    struct msghdr message = {.msg_iov = &part,
                             .msg_iovlen = 1,
                             .msg_control = room.bytes,
                             .msg_controllen = sizeof room.bytes};
    ssize_t got = recvmsg(socket_fd, &message, MSG_DONTWAIT | MSG_CMSG_CLOEXEC);
    if (got < 0 && (errno == EAGAIN || errno == EINTR)) {
        return GR_PENDING;
    }
    if (got <= 0) {
        return gr_fail(diag, GR_E_PEER_LOST, "it closed the connection");
    }
    int fd = received_fd(&message);
    if (fd < 0 && (message.msg_flags & MSG_CTRUNC) != 0) {
        char why[GR_DESCRIPTORS_TEXT_BYTES];
        return gr_fail(diag, GR_E_IO, "its memory file cannot be taken: %s",
                       gr_descriptors_error(EMFILE, why));
    }
    if (fd < 0) {
        return gr_fail(diag, GR_E_PROTOCOL, "it sent no memory file");
    }
    if (got != NOTE_BYTES || gr_get_u32(note) != CARD_MAGIC || gr_get_u32(note + 4) != VERSION ||
        gr_get_u32(note + 8) != (uint32_t)rank || gr_get_u32(note + 12) != (uint32_t)world_size ||
        gr_get_u64(note + NOTE_CHECKSUM_AT) != gr_hash64(note, NOTE_CHECKSUM_AT, CARD_MAGIC)) {
        close(fd);
        return gr_fail(diag, GR_E_PROTOCOL,
                       "its note about the memory file is not what rank %d of %d sends", rank,
                       world_size);
    }
    return map_segment(fd, gr_get_u64(note + 16), rank, world_size, segment_out, diag);
}
