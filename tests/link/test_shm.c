/* SPDX-License-Identifier: Apache-2.0 */

/* What shared memory promises beyond a link: no copy, no system call, memory that goes back. */

#include "link/mesh.h"
#include "link/shared.h"
#include "link/shm/heap.h"
#include "link/shm/segment.h"
#include "support_pair.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stdlib.h>

#include <cmocka.h>
#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <string.h>
#include <sys/resource.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <unistd.h>

enum { ROUNDS = 20000, SIZE = 1 << 20 };

static void test_no_copy_and_no_system_call(void **state)
{
    (void)state;
    pair p;
    void *out;
    gr_mesh_stats before, after;
    pair_open(&p, GR_LINK_SHM);
    pair_pump(&p);
    assert_int_equal(gr_mesh_alloc(p.mesh[0], SIZE, &out), GR_OK);
    gr_mesh_get_stats(p.mesh[0], &before);
    int64_t start = test_now_us();
    for (uint32_t i = 0; i < ROUNDS; i++) {
        const void *view;
        uint64_t ticket = pair_send(&p, 0, i, out, SIZE);
        (void)pair_await(&p, 1);
        assert_int_equal(gr_link_view(p.link[1], &view), GR_OK);
        assert_false(gr_link_sent(p.link[0], ticket));
        gr_link_next(p.link[1], NULL);
        assert_true(gr_link_sent(p.link[0], ticket));
        pair_pump(&p);
    }
    int64_t polls = (test_now_us() - start) / 10000 + 2;
    gr_mesh_get_stats(p.mesh[0], &after);
    assert_int_equal(after.bytes_copied, before.bytes_copied);
    assert_int_equal(after.messages_sent - before.messages_sent, ROUNDS);
    assert_int_equal(after.bytes_sent - before.bytes_sent, (uint64_t)ROUNDS * SIZE);
    /* One look at the sockets every 10 ms. */
    assert_true(after.system_calls - before.system_calls <= (uint64_t)(2 * polls));
    pair_close(&p);
}

/* The receiver sees the sender's memory itself, not a copy of it. */
static void test_view_is_the_senders_memory(void **state)
{
    (void)state;
    pair p;
    void *memory;
    const void *view;
    pair_open(&p, GR_LINK_SHM);
    assert_int_equal(gr_mesh_alloc(p.mesh[0], 4096, &memory), GR_OK);
    (void)pair_send(&p, 0, 1, memory, 4096);
    (void)pair_await(&p, 1);
    assert_int_equal(gr_link_view(p.link[1], &view), GR_OK);
    *(volatile uint8_t *)memory = 0x77;
    assert_int_equal(*(const volatile uint8_t *)view, 0x77);
    pair_close(&p);
}

/* The same of the program's memory. After a failure the receiver may still read what it was shown,
 * when the sender has its memory for itself again. */
static void test_view_of_registered_memory_stays_after_a_failure(void **state)
{
    (void)state;
    pair p;
    const void *view;
    size_t page = (size_t)sysconf(_SC_PAGESIZE);
    uint8_t *memory = aligned_alloc(page, page);
    assert_non_null(memory);
    pair_open(&p, GR_LINK_SHM);
    assert_int_equal(gr_mesh_register(p.mesh[0], memory, page, NULL), GR_OK);
    (void)pair_send(&p, 0, 1, memory, page);
    (void)pair_await(&p, 1);
    assert_int_equal(gr_link_view(p.link[1], &view), GR_OK);
    memset(memory, 0x77, page);
    assert_int_equal(*(const volatile uint8_t *)view, 0x77);
    gr_mesh_keep(p.mesh[0]);
    assert_int_equal(gr_mesh_unregister(p.mesh[0], memory, NULL), GR_OK);
    assert_int_equal(memory[page - 1], 0x77);
    memset(memory, 0x88, page);
    assert_int_equal(*(const volatile uint8_t *)view, 0x77);
    pair_close(&p);
    assert_int_equal(memory[0], 0x88);
    free(memory);
}

/* What is held is not given back to the sender, whatever is released behind it. */
static void test_held_memory_stays(void **state)
{
    (void)state;
    pair p;
    void *memory;
    const void *first, *view;
    uint64_t hold[3], ticket[3], next;
    gr_frame frame = {.kind = GR_FRAME_DATA, .size_bytes = 9};
    pair_open(&p, GR_LINK_SHM);
    assert_int_equal(gr_mesh_alloc(p.mesh[0], 4096, &memory), GR_OK);
    for (uint32_t i = 0; i < 3; i++) {
        ticket[i] = pair_send(&p, 0, i, memory, 4096);
        (void)pair_await(&p, 1);
        assert_int_equal(gr_link_view(p.link[1], &view), GR_OK);
        gr_link_next(p.link[1], &hold[i]);
    }
    gr_link_release(p.link[1], hold[2]);
    gr_link_release(p.link[1], hold[1]);
    assert_false(gr_link_sent(p.link[0], ticket[0]));
    assert_false(gr_link_sent(p.link[0], ticket[2])); /* messages finish in order */
    gr_link_release(p.link[1], hold[0]);
    assert_true(gr_link_sent(p.link[0], ticket[0]));
    assert_true(gr_link_sent(p.link[0], ticket[2]));

    /* A payload within a descriptor: the descriptor is not used again while it is held. */
    (void)pair_send(&p, 0, 3, "the first", 9);
    (void)pair_await(&p, 1);
    assert_int_equal(gr_link_view(p.link[1], &first), GR_OK);
    gr_link_next(p.link[1], &hold[0]);
    for (int i = 0; i < 2 * GR_SHM_SLOTS; i++) {
        gr_status status = gr_link_send(p.link[0], &frame, "another!!", &next);
        assert_true(status == GR_OK || status == GR_E_AGAIN);
        while (gr_link_peek(p.link[1], &frame) == GR_OK) {
            gr_link_next(p.link[1], NULL);
        }
    }
    assert_memory_equal(first, "the first", 9);
    assert_int_equal(gr_link_send(p.link[0], &frame, "another!!", &next), GR_E_AGAIN);
    gr_link_release(p.link[1], hold[0]);
    assert_int_equal(gr_link_send(p.link[0], &frame, "another!!", &next), GR_OK);
    pair_close(&p);
}

/* Spreading a message over pieces needs room in the ring; the end of both is passed many times. */
static void test_stage_wraps(void **state)
{
    (void)state;
    pair p;
    pair_open(&p, GR_LINK_SHM);
    uint8_t *out = malloc(SIZE), *in = malloc(SIZE);
    uint32_t random = 3;
    for (uint32_t i = 0; i < 3000; i++) {
        random = random * 1664525 + 1013904223;
        size_t size = (random >> 8) % (i % 50 == 0 ? SIZE : 20000) + 33;
        memset(out, (int)i, size);
        (void)pair_send(&p, 0, i, out, size);
        pair_read(&p, 1, in);
        assert_memory_equal(in, out, size);
    }
    free(out);
    free(in);
    pair_close(&p);
}

static long file_blocks(int fd)
{
    struct stat info;
    assert_int_equal(fstat(fd, &info), 0);
    return (long)info.st_blocks;
}

static void test_heap(void **state)
{
    (void)state;
    gr_shm_segment segment;
    gr_shm_heap heap;
    void *mem[3], *again;
    enum { PART = 300 << 10, WHOLE = 1 << 20 };
    assert_int_equal(gr_shm_segment_create(0, 2, WHOLE, &segment, NULL), GR_OK);
    assert_int_equal(gr_shm_heap_init(&heap, segment.base + segment.heap_offset, WHOLE, segment.fd,
                                      segment.heap_offset),
                     GR_OK);
    long empty = file_blocks(segment.fd);
    for (int i = 0; i < 3; i++) {
        assert_int_equal(gr_shm_heap_alloc(&heap, PART, &mem[i]), GR_OK);
        memset(mem[i], 1, PART);
    }
    assert_int_equal(gr_shm_heap_alloc(&heap, PART, &again), GR_E_NO_MEMORY);
    assert_true(file_blocks(segment.fd) > empty);
    /* Neighbours that are free become one again, in any order; the memory goes back. */
    gr_shm_heap_free(&heap, mem[0]);
    gr_shm_heap_free(&heap, mem[2]);
    gr_shm_heap_free(&heap, mem[1]);
    assert_int_equal(heap.count, 1);
    assert_int_equal(file_blocks(segment.fd), empty);
    assert_int_equal(gr_shm_heap_alloc(&heap, WHOLE, &again), GR_OK);
    for (size_t i = 0; i < WHOLE; i++) {
        assert_int_equal(((uint8_t *)again)[i], 0);
    }
    gr_shm_heap_fini(&heap);
    gr_shm_segment_close(&segment);
}

/* The file cannot be made shorter under the feet of those who read it. */
static void test_file_is_sealed(void **state)
{
    (void)state;
    gr_shm_segment segment;
    assert_int_equal(gr_shm_segment_create(0, 2, 1 << 20, &segment, NULL), GR_OK);
    assert_int_not_equal(ftruncate(segment.fd, 4096), 0);
    assert_int_not_equal(ftruncate(segment.fd, 1 << 30), 0);
    gr_shm_segment_close(&segment);
}

/* Can the kernel store a byte there for us? */
static bool may_write(int pipe_fd[2], uint8_t *at)
{
    assert_int_equal(write(pipe_fd[1], "\x5a", 1), 1);
    if (read(pipe_fd[0], at, 1) == 1) {
        return *at == 0x5a;
    }
    assert_int_equal(errno, EFAULT);
    char byte;
    assert_int_equal(read(pipe_fd[0], &byte, 1), 1);
    return false;
}

/* Peers write into the heap and the open areas, and nowhere else; both sides see one memory. */
static void test_what_is_shared(void **state)
{
    (void)state;
    pair p;
    gr_shared own, seen;
    void *memory;
    int pipe_fd[2];
    assert_int_equal(pipe(pipe_fd), 0);
    pair_open(&p, GR_LINK_SHM);
    assert_int_equal(gr_mesh_alloc(p.mesh[1], 4096, &memory), GR_OK);
    assert_true(gr_mesh_shared(p.mesh[1], 1, &own));
    assert_true(gr_mesh_shared(p.mesh[0], 1, &seen));
    assert_false(gr_mesh_shared(p.mesh[0], 2, &seen));
    assert_true(gr_mesh_shared(p.mesh[0], 1, &seen));
    assert_int_equal(seen.heap_bytes, own.heap_bytes);
    size_t at = (size_t)((uint8_t *)memory - own.heap);
    assert_true(may_write(pipe_fd, seen.heap + at));
    assert_int_equal(*(uint8_t *)memory, 0x5a);
    assert_true(may_write(pipe_fd, seen.heap + seen.heap_bytes - 1));
    size_t open_last = GR_SHARED_COLLS * GR_SHARED_OPEN_BYTES - 1;
    assert_true(may_write(pipe_fd, seen.open + open_last));
    assert_int_equal(own.open[open_last], 0x5a);
    size_t shm_last = (size_t)GR_SHARED_COLLS * GR_SHARED_COLL_BYTES - 1;
    assert_true(may_write(pipe_fd, own.shms + shm_last));
    assert_int_equal(seen.shms[shm_last], 0x5a);
    assert_false(may_write(pipe_fd, seen.shms));
    assert_false(may_write(pipe_fd, seen.shms + shm_last));
    assert_false(may_write(pipe_fd, seen.open + open_last + 1));
    pair_close(&p);
    pair_open(&p, GR_LINK_TCP);
    assert_false(gr_mesh_shared(p.mesh[0], 1, &seen));
    pair_close(&p);
    close(pipe_fd[0]);
    close(pipe_fd[1]);
}

/* In a child whose files have at most so many bytes: the heap's MiB; 101: refused with a sentence
 * that names the limit. */
static int heap_mib_with_files_of(size_t file_bytes)
{
    pid_t pid = fork();
    assert_true(pid >= 0);
    if (pid == 0) {
        gr_shm_segment segment;
        gr_diag diag = {0};
        const struct rlimit limit = {file_bytes, file_bytes};
        if (setrlimit(RLIMIT_FSIZE, &limit) != 0) {
            _exit(100);
        }
        gr_status status = gr_shm_segment_create(0, 2, (size_t)1 << 30, &segment, &diag);
        if (status != GR_OK) {
            _exit(status == GR_E_IO && strstr(diag.text, "(ulimit -f)") != NULL ? 101 : 102);
        }
        _exit((int)((segment.size_bytes - segment.heap_offset) >> 20));
    }
    return helper_end(pid);
}

static void shm_file_is_no_larger_than_the_limit_on_files(void **state)
{
    gr_shm_segment segment;
    (void)state;
    assert_int_equal(gr_shm_segment_create(0, 2, 0, &segment, NULL), GR_OK);
    size_t heap_offset = segment.heap_offset;
    gr_shm_segment_close(&segment);
    assert_int_equal(heap_mib_with_files_of(heap_offset + ((size_t)5 << 20) + 100), 5);
    assert_int_equal(heap_mib_with_files_of(heap_offset + ((size_t)1 << 20)), 101);
    assert_int_equal(heap_mib_with_files_of(4096), 101);
}

static void shm_file_that_finds_no_descriptor_is_no_fault_of_the_peer(void **state)
{
    int pair_fd[2];
    struct rlimit old, none;
    gr_shm_segment own, theirs;
    gr_diag diag = {0};
    (void)state;
    assert_int_equal(socketpair(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0, pair_fd), 0);
    assert_int_equal(gr_shm_segment_create(0, 2, 4096, &own, NULL), GR_OK);
    assert_int_equal(gr_shm_segment_give(pair_fd[0], &own, 0, 2, NULL), GR_OK);
    assert_int_equal(getrlimit(RLIMIT_NOFILE, &old), 0);
    int unused = dup(0);
    close(unused);
    none = (struct rlimit){(rlim_t)unused, old.rlim_max};
    assert_int_equal(setrlimit(RLIMIT_NOFILE, &none), 0);
    gr_status status = gr_shm_segment_take(pair_fd[1], 0, 2, &theirs, &diag);
    assert_int_equal(setrlimit(RLIMIT_NOFILE, &old), 0);
    assert_int_equal(status, GR_E_IO);
    assert_non_null(strstr(diag.text, "(ulimit -n)"));
    gr_shm_segment_close(&own);
    close(pair_fd[0]);
    close(pair_fd[1]);
}

/* Two that count in turns, in words of their areas, and sleep in between. */
enum { TURNS = 400 };

typedef struct turn {
    _Atomic uint32_t *word; /* the other's */
    uint32_t wanted;
} turn;

static bool turn_has_come(const void *arg)
{
    const turn *t = arg;
    return atomic_load(t->word) >= t->wanted;
}

/* False: a wake was lost. No sleep ends by itself in time. */
static bool take_turns(gr_mesh *mesh, int peer)
{
    gr_shared own, theirs;
    if (!gr_mesh_shared(mesh, peer, &theirs) || !gr_mesh_shared(mesh, 1 - peer, &own)) {
        return false;
    }
    mesh->sleep_us = 2 * PATIENCE_US;
    turn t = {.word = (_Atomic uint32_t *)(void *)theirs.shms, .wanted = 0};
    gr_mesh_set_poll_hook(mesh, turn_has_come, &t);
    for (uint32_t i = 1; i <= TURNS; i++) {
        t.wanted = peer == 1 ? i - 1 : i; /* rank 0 begins */
        for (int64_t end_us = test_now_us() + PATIENCE_US; !turn_has_come(&t);) {
            gr_mesh_wait(mesh, end_us);
            if (test_now_us() >= end_us) {
                return false;
            }
        }
        atomic_store((_Atomic uint32_t *)(void *)own.shms, i);
        gr_mesh_wake_peer(mesh, peer);
    }
    gr_mesh_set_poll_hook(mesh, NULL, NULL);
    return true;
}

static int other_turns(gr_mesh *mesh, gr_link *link)
{
    (void)link;
    return take_turns(mesh, 0) ? 0 : 97;
}

static void test_shm_wake_peer_wakes_poll_hook(void **state)
{
    (void)state;
    gr_mesh *mesh = NULL;
    gr_mesh_config config = test_config(GR_LINK_SHM, 0, 2);
    config.spin_us = 0; /* sleep at once */
    assert_int_equal(gr_mesh_create(&config, &mesh, NULL), GR_OK);
    pid_t pid = helper_start(GR_LINK_SHM, gr_mesh_address(mesh), other_turns);
    assert_non_null(await_link(mesh, 1));
    assert_true(take_turns(mesh, 1));
    assert_int_equal(helper_end(pid), 0);
    gr_mesh_destroy(mesh);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_no_copy_and_no_system_call),
        cmocka_unit_test(test_view_is_the_senders_memory),
        cmocka_unit_test(test_view_of_registered_memory_stays_after_a_failure),
        cmocka_unit_test(test_held_memory_stays),
        cmocka_unit_test(test_stage_wraps),
        cmocka_unit_test(test_heap),
        cmocka_unit_test(test_file_is_sealed),
        cmocka_unit_test(shm_file_is_no_larger_than_the_limit_on_files),
        cmocka_unit_test(shm_file_that_finds_no_descriptor_is_no_fault_of_the_peer),
        cmocka_unit_test(test_what_is_shared),
        cmocka_unit_test(test_shm_wake_peer_wakes_poll_hook),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
