/* SPDX-License-Identifier: Apache-2.0 */
/* Memory of the program that is shared with the peers by gr_register. */
#include "support_ranks.h"

#include <gradus/coll.h>
#include <setjmp.h>
#include <signal.h>
#include <stdarg.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/resource.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cmocka.h>

enum { PAGES = 64, OPS = 8 };

static size_t page_bytes(void)
{
    return (size_t)sysconf(_SC_PAGESIZE);
}

static void *map_pages(size_t count, int rights, int kind)
{
    void *at = mmap(NULL, count * page_bytes(), rights, kind | MAP_ANONYMOUS, -1, 0);
    return at == MAP_FAILED ? NULL : at;
}

static void *private_pages(size_t count)
{
    return map_pages(count, PROT_READ | PROT_WRITE, MAP_PRIVATE);
}

/* Is the mapping of `at` shared? -1: there is none. */
static int is_shared(const void *at)
{
    FILE *maps = fopen("/proc/self/maps", "r");
    char line[512], rights[5];
    int found = -1;
    unsigned long first, end;
    while (maps && found < 0 && fgets(line, sizeof line, maps)) {
        if (sscanf(line, "%lx-%lx %4s", &first, &end, rights) == 3 && (uintptr_t)at >= first &&
            (uintptr_t)at < end) {
            found = rights[3] == 's';
        }
    }
    if (maps) {
        fclose(maps);
    }
    return found;
}

static bool holds(const unsigned char *mem, unsigned char byte, size_t size_bytes)
{
    return mem[0] == byte && memcmp(mem, mem + 1, size_bytes - 1) == 0;
}

static int32_t value(int op, int rank, size_t at)
{
    return (int32_t)(op * 1000 + rank * 10 + (int)(at % 7));
}

/* ---- Results --------------------------------------------------------------------------------- */
/* An allreduce, a broadcast and a message, on `count` elements from `buf` on. */
static int use(gr_comm *comm, int32_t *buf, size_t count, int op)
{
    int rank = gr_comm_rank(comm), size = gr_comm_size(comm), root = op % size;
    for (size_t i = 0; i < count; i++) {
        buf[i] = value(op, rank, i);
    }
    EXPECT(gr_allreduce(comm, buf, count, GR_I32, GR_SUM) == GR_OK);
    for (size_t i = 0; i < count; i++) {
        int32_t want = 0;
        for (int from = 0; from < size; from++) {
            want += value(op, from, i);
        }
        EXPECT(buf[i] == want);
        buf[i] = value(op + 1, rank, i);
    }
    EXPECT(gr_broadcast(comm, buf, count, GR_I32, root) == GR_OK);
    for (size_t i = 0; i < count; i++) {
        EXPECT(buf[i] == value(op + 1, root, i));
        buf[i] = value(op + 2, rank, i);
    }
    int next = (rank + 1) % size, before = (rank + size - 1) % size;
    size_t half = count / 2;
    gr_call calls[2] = {
        {.coll = GR_COLL_SEND, .dtype = GR_I32, .in = buf, .count = half, .root = next},
        {.coll = GR_COLL_RECV, .dtype = GR_I32, .out = buf + half, .count = half, .root = before}};
    EXPECT(gr_run(comm, calls, 2) == GR_OK);
    for (size_t i = 0; i < half; i++) {
        EXPECT(buf[half + i] == value(op + 2, before, i));
    }
    return 0;
}

static int keeps_contents_and_gives_right_results(gr_comm *comm, const ranks_job *job)
{
    size_t bytes = PAGES * page_bytes(), count = bytes / sizeof(int32_t);
    int32_t *mapped = private_pages(PAGES), *heaped = aligned_alloc(page_bytes(), bytes);
    int shared = strcmp(job->link, "shm") == 0;
    EXPECT(mapped && heaped);
    for (size_t i = 0; i < count; i++) {
        mapped[i] = heaped[i] = (int32_t)i;
    }
    EXPECT(gr_register(comm, mapped, bytes) == GR_OK);
    EXPECT(gr_register(comm, heaped, bytes - 100) == GR_OK); /* the last page as a whole */
    EXPECT(is_shared(mapped) == shared && is_shared(heaped) == shared);
    for (size_t i = 0; i < count; i++) {
        EXPECT(mapped[i] == (int32_t)i && heaped[i] == (int32_t)i);
    }
    for (int op = 0; op < OPS; op++) {
        size_t part = op % 2 ? 700 : count, from = op % 3 ? 0 : 16;
        part = part + from > count ? count - from : part;
        EXPECT(use(comm, (op % 4 < 2 ? mapped : heaped) + from, part, op) == 0);
    }
    memset(mapped, 0x5a, bytes);
    EXPECT(gr_unregister(comm, mapped) == GR_OK);
    EXPECT(is_shared(mapped) == 0);
    for (size_t i = 0; i < count; i++) {
        EXPECT(mapped[i] == 0x5a5a5a5a);
    }
    EXPECT(use(comm, mapped, count, OPS) == 0); /* as any other memory */
    EXPECT(gr_register(comm, mapped, bytes) == GR_OK && use(comm, mapped, count, OPS + 3) == 0);
    EXPECT(gr_unregister(comm, heaped) == GR_OK);
    free(heaped);
    gr_comm_destroy(comm); /* with `mapped` registered */
    return is_shared(mapped) != 0 || munmap(mapped, bytes) != 0;
}

static void registered_memory_keeps_contents_and_gives_right_results(void **state)
{
    const char *const links[] = {"shm", "tcp"};
    (void)state;
    for (int i = 0; i < 2; i++) {
        for (int size = 1; size <= 3; size++) {
            ranks_job job = {.size = size, .link = links[i], .tune = "off"};
            if (size > 1 || i > 0) { /* alone, nothing is shared */
                assert_int_equal(ranks_run(&job, keeps_contents_and_gives_right_results, 0), 0);
            }
        }
    }
}

/* ---- What is refused ------------------------------------------------------------------------- */
static bool refuses(gr_comm *comm, void *mem, size_t size_bytes, gr_status status, const char *says)
{
    gr_status given = gr_register(comm, mem, size_bytes);
    const char *text = gr_comm_last_error(comm)->text;
    if (given != status || !strstr(text, says)) {
        fprintf(stderr, "%s: %s, not %s: %s\n", gr_status_name(given), text, gr_status_name(status),
                says);
        return false;
    }
    return true;
}

static int what_cannot_be_shared_is_refused(gr_comm *comm, const ranks_job *job)
{
    size_t page = page_bytes();
    char *mem = private_pages(8), local[64];
    void *allocated = NULL;
    EXPECT(mem && gr_alloc(comm, 4 * page, &allocated) == GR_OK);
    EXPECT(refuses(comm, NULL, 1, GR_E_INVALID, "mem is NULL"));
    EXPECT(refuses(comm, mem, 0, GR_E_INVALID, "the size is 0"));
    EXPECT(refuses(comm, mem, SIZE_MAX, GR_E_INVALID, "the size is 0, or larger"));
    EXPECT(refuses(comm, allocated, page, GR_E_INVALID, "of gr_alloc"));
    EXPECT(gr_register(comm, mem + 2 * page, 2 * page) == GR_OK);
    EXPECT(refuses(comm, mem + 2 * page, page, GR_E_INVALID, "registered already"));
    EXPECT(refuses(comm, mem + 3 * page, page, GR_E_INVALID, "registered already"));
    EXPECT(refuses(comm, mem, 8 * page, GR_E_INVALID, "registered already"));
    gr_free(comm, mem + 2 * page);
    EXPECT(strstr(gr_comm_last_error(comm)->text, "no memory of gr_alloc"));
    EXPECT(gr_unregister(comm, mem + 3 * page) == GR_E_INVALID);
    EXPECT(gr_unregister(comm, allocated) == GR_E_INVALID);
    EXPECT(gr_unregister(comm, mem + 2 * page) == GR_OK);
    EXPECT(gr_unregister(comm, mem + 2 * page) == GR_E_INVALID);
    EXPECT(gr_register(NULL, mem, page) == GR_E_INVALID && gr_unregister(NULL, mem) != GR_OK);
    char *nothing = private_pages(2); /* at a page, and within one */
    EXPECT(nothing && munmap(nothing, 2 * page) == 0);
    EXPECT(refuses(comm, nothing, page, GR_E_INVALID, "there is no memory at"));
    EXPECT(refuses(comm, nothing + 64, page, GR_E_INVALID, "there is no memory at"));
    if (strcmp(job->link, "shm") == 0) {
        void *others = map_pages(1, PROT_READ | PROT_WRITE, MAP_SHARED);
        void *constant = map_pages(1, PROT_READ, MAP_PRIVATE);
        char *stack = local - (uintptr_t)local % page;
        EXPECT(refuses(comm, others, page, GR_E_UNSUPPORTED, "shared with other processes"));
        EXPECT(refuses(comm, constant, page, GR_E_UNSUPPORTED, "not both readable and writable"));
        EXPECT(refuses(comm, stack, page, GR_E_UNSUPPORTED, "the stack"));
        EXPECT(munmap(mem + 7 * page, page) == 0);
        EXPECT(refuses(comm, mem + 6 * page, 2 * page, GR_E_INVALID, "there is no memory at"));
    }
    EXPECT(gr_barrier(comm) == GR_OK);
    gr_comm_destroy(comm);
    return 0;
}

/* As a binding has it, which is given any tensor. */
static int what_begins_within_a_page_is_known(gr_comm *comm, const ranks_job *job)
{
    (void)job;
    enum { COUNT = 70000 };
    size_t page = page_bytes(), bytes = COUNT * sizeof(int32_t);
    char *pages = private_pages(bytes / page + 2);
    int32_t *mem = (int32_t *)(void *)(pages + 64);
    EXPECT(pages && gr_register(comm, mem, bytes) == GR_OK && is_shared(mem) == 0);
    EXPECT(refuses(comm, mem + 1, 4, GR_E_INVALID, "registered already"));
    EXPECT(refuses(comm, pages, page, GR_E_INVALID, "registered already"));
    EXPECT(gr_register(comm, mem + COUNT, 3) == GR_OK); /* in the same page */
    for (int op = 0; op < OPS; op++) {
        EXPECT(use(comm, mem, op % 2 ? 1000 : COUNT, op) == 0);
    }
    EXPECT(gr_unregister(comm, mem) == GR_OK && gr_unregister(comm, mem) == GR_E_INVALID);
    EXPECT(use(comm, mem, COUNT, OPS) == 0);
    gr_comm_destroy(comm); /* with the other one registered */
    return munmap(pages, bytes);
}

static void memory_that_begins_within_a_page_is_known_and_not_shared(void **state)
{
    const char *const links[] = {"shm", "tcp"};
    (void)state;
    for (int i = 0; i < 2; i++) {
        ranks_job job = {.size = 2, .link = links[i], .tune = "off"};
        assert_int_equal(ranks_run(&job, what_begins_within_a_page_is_known, 0), 0);
    }
}

static void what_cannot_be_shared_is_refused_with_a_sentence(void **state)
{
    const char *const links[] = {"shm", "tcp"};
    (void)state;
    for (int i = 0; i < 2; i++) {
        ranks_job job = {.size = 2, .link = links[i], .tune = "off"};
        assert_int_equal(ranks_run(&job, what_cannot_be_shared_is_refused, 0), 0);
    }
}

/* Rank 1 enters the operation only when rank 0 has tried. */
static int memory_in_use_stays_registered(gr_comm *comm, const ranks_job *job)
{
    const int *pipe_fds = job->arg;
    size_t bytes = PAGES * page_bytes();
    int32_t *buf = private_pages(PAGES);
    char byte = 0;
    EXPECT(buf && gr_register(comm, buf, bytes) == GR_OK && gr_barrier(comm) == GR_OK);
    if (gr_comm_rank(comm) == 0) {
        gr_op *op;
        EXPECT(gr_allreduce_start(comm, buf, 1000, GR_I32, GR_SUM, &op) == GR_OK);
        EXPECT(gr_unregister(comm, buf) == GR_E_INVALID);
        EXPECT(strstr(gr_comm_last_error(comm)->text, "still uses the memory"));
        EXPECT(write(pipe_fds[1], &byte, 1) == 1);
        EXPECT(gr_wait(op) == GR_OK);
    } else {
        EXPECT(read(pipe_fds[0], &byte, 1) == 1);
        EXPECT(gr_allreduce(comm, buf, 1000, GR_I32, GR_SUM) == GR_OK);
    }
    EXPECT(gr_unregister(comm, buf) == GR_OK);
    gr_comm_destroy(comm);
    return 0;
}

static void memory_that_an_operation_uses_stays_registered(void **state)
{
    (void)state;
    assert_int_equal(ranks_run_pairs(memory_in_use_stays_registered), 0);
}

/* ---- No descriptors left --------------------------------------------------------------------- */
/* Nothing can be opened until the limit that it returns is set again. */
static struct rlimit allow_no_more_files(void)
{
    struct rlimit limit;
    int next = dup(STDERR_FILENO);
    if (next < 0 || close(next) != 0 || getrlimit(RLIMIT_NOFILE, &limit) != 0) {
        abort();
    }
    struct rlimit lower = {.rlim_cur = (rlim_t)next, .rlim_max = limit.rlim_max};
    if (setrlimit(RLIMIT_NOFILE, &lower) != 0 || dup(STDERR_FILENO) != -1) {
        abort();
    }
    return limit;
}

static int nothing_changes_without_descriptors(gr_comm *comm, const ranks_job *job)
{
    size_t page = page_bytes(), bytes = PAGES * page;
    unsigned char *mem = private_pages(PAGES), *other = private_pages(1);
    (void)job;
    EXPECT(mem && other);
    memset(mem, 7, bytes);
    memset(other, 8, page);
    EXPECT(gr_register(comm, mem, bytes) == GR_OK);
    struct rlimit limit = allow_no_more_files();
    gr_status unregistered = gr_unregister(comm, mem);
    bool says = strstr(gr_comm_last_error(comm)->text, "/proc/self/maps") != NULL;
    gr_status registered = gr_register(comm, other, page);
    EXPECT(setrlimit(RLIMIT_NOFILE, &limit) == 0);
    EXPECT(holds(mem, 7, bytes) && holds(other, 8, page));
    EXPECT(unregistered == GR_E_IO && says && registered == GR_E_IO);
    EXPECT(strstr(gr_comm_last_error(comm)->text, "/proc/self/maps"));
    EXPECT(is_shared(mem) == 1 && is_shared(other) == 0);
    EXPECT(use(comm, (int32_t *)(void *)mem, bytes / sizeof(int32_t), 0) == 0);
    memset(mem, 7, bytes);
    EXPECT(gr_unregister(comm, mem) == GR_OK && gr_register(comm, other, page) == GR_OK);
    EXPECT(holds(mem, 7, bytes) && is_shared(mem) == 0);
    EXPECT(gr_unregister(comm, other) == GR_OK && gr_register(comm, mem, bytes) == GR_OK);
    (void)allow_no_more_files();
    gr_comm_destroy(comm); /* it stays shared, then */
    return !holds(mem, 7, bytes);
}

static void without_descriptors_nothing_changes(void **state)
{
    (void)state;
    ranks_job job = {.size = 2, .link = "shm", .tune = "off"};
    assert_int_equal(ranks_run(&job, nothing_changes_without_descriptors, 0), 0);
}

/* ---- No memory left -------------------------------------------------------------------------- */
/* The address space may grow by so many bytes until the limit that it returns is set again. */
static struct rlimit allow_more_memory(size_t size_bytes)
{
    struct rlimit limit;
    unsigned long pages = 0;
    FILE *statm = fopen("/proc/self/statm", "r");
    if (!statm || fscanf(statm, "%lu", &pages) != 1 || getrlimit(RLIMIT_AS, &limit) != 0) {
        abort();
    }
    fclose(statm);
    struct rlimit lower = {.rlim_cur = pages * page_bytes() + size_bytes,
                           .rlim_max = limit.rlim_max};
    if (setrlimit(RLIMIT_AS, &lower) != 0) {
        abort();
    }
    return limit;
}

/* The first page becomes private, the rest, behind a page that the program has unmapped, does not:
 * operations find both. */
static int what_is_private_in_part_is_used_right(gr_comm *comm, const ranks_job *job)
{
    enum { MANY = 8192, SOME = 2048 };
    size_t page = page_bytes(), bytes = MANY * page, words = page / sizeof(int32_t);
    unsigned char *mem = private_pages(MANY);
    (void)job;
    EXPECT(mem && gr_register(comm, mem, bytes) == GR_OK && munmap(mem + page, page) == 0);
    memset(mem, 3, page);
    memset(mem + 2 * page, 4, bytes - 2 * page);
    struct rlimit limit = allow_more_memory(SOME * page);
    gr_status status = gr_unregister(comm, mem);
    EXPECT(setrlimit(RLIMIT_AS, &limit) == 0);
    EXPECT(status == GR_E_NO_MEMORY && is_shared(mem) == 0 && is_shared(mem + 2 * page) == 1);
    EXPECT(holds(mem, 3, page) && holds(mem + 2 * page, 4, bytes - 2 * page));
    for (int op = 0; op < OPS; op++) {
        unsigned char *at = op % 2 ? mem + 2 * page : mem;
        EXPECT(use(comm, (int32_t *)(void *)at, op % 4 < 2 ? words : words / 8, op) == 0);
    }
    EXPECT(gr_unregister(comm, mem) == GR_OK && is_shared(mem + 2 * page) == 0);
    EXPECT(holds(mem + 4 * page, 4, bytes - 4 * page));
    EXPECT(use(comm, (int32_t *)(void *)mem, words, OPS) == 0);
    gr_comm_destroy(comm);
    return 0;
}

static void memory_that_is_private_in_part_is_used_right(void **state)
{
    (void)state;
    ranks_job job = {.size = 2, .link = "shm", .tune = "off"};
    assert_int_equal(ranks_run(&job, what_is_private_in_part_is_used_right, 0), 0);
}

/* ---- Memory that went ------------------------------------------------------------------------ */
/* The program unmaps some of what it has registered, and has something else there. There is memory
 * that was registered before and behind it. */
static int others_memory_is_left_alone(gr_comm *comm, const ranks_job *job)
{
    size_t page = page_bytes();
    unsigned char *pages = private_pages(24), *mem = pages + 8 * page;
    (void)job;
    EXPECT(pages && gr_register(comm, mem + 8 * page, 8 * page) == GR_OK);
    EXPECT(gr_register(comm, pages, 8 * page) == GR_OK);
    EXPECT(gr_register(comm, mem, 8 * page) == GR_OK);
    memset(pages, 3, 8 * page);
    memset(mem, 1, 8 * page);
    memset(mem + 8 * page, 4, 8 * page);
    EXPECT(mmap(mem + 2 * page, 2 * page, PROT_READ | PROT_WRITE,
                MAP_SHARED | MAP_ANONYMOUS | MAP_FIXED, -1, 0) != MAP_FAILED);
    memset(mem + 2 * page, 2, 2 * page);
    EXPECT(munmap(mem + 5 * page, page) == 0);
    gr_comm_destroy(comm);
    if (!holds(pages, 3, 8 * page) || !holds(mem + 8 * page, 4, 8 * page) ||
        is_shared(pages) != 0 || is_shared(mem + 8 * page) != 0) {
        return 1;
    }
    return !(mem[0] == 1 && mem[4 * page] == 1 && mem[8 * page - 1] == 1 && mem[2 * page] == 2 &&
             mem[4 * page - 1] == 2 && is_shared(mem) == 0 && is_shared(mem + 2 * page) == 1 &&
             is_shared(mem + 5 * page) == -1 && is_shared(mem + 6 * page) == 0);
}

static void memory_that_was_unmapped_is_left_alone(void **state)
{
    (void)state;
    ranks_job job = {.size = 2, .link = "shm", .tune = "off"};
    assert_int_equal(ranks_run(&job, others_memory_is_left_alone, 0), 0);
}

/* ---- After a failure ------------------------------------------------------------------------- */
/* Both wait for what never comes. When rank 0 is behind the barrier as well, rank 1 ends it. */
static int is_private_after_an_abort(gr_comm *comm, const ranks_job *job)
{
    size_t bytes = PAGES * page_bytes(), words = bytes / sizeof(int32_t);
    int shared = strcmp(job->link, "shm") == 0;
    int32_t *buf = private_pages(PAGES), *other = private_pages(PAGES);
    const int *pipe_fds = job->arg;
    gr_op *never = NULL;
    char byte = 0;
    EXPECT(buf && other && gr_register(comm, buf, bytes) == GR_OK);
    EXPECT(gr_register(comm, other, bytes) == GR_OK);
    memset(other, 6, bytes);
    EXPECT(use(comm, buf, words, 0) == 0);
    EXPECT(gr_recv_start(comm, buf, words, GR_I32, 1 - gr_comm_rank(comm), &never) == GR_OK);
    EXPECT(gr_barrier(comm) == GR_OK && gr_unregister(comm, buf) == GR_E_INVALID);
    if (gr_comm_rank(comm) == 0) {
        EXPECT(write(pipe_fds[1], &byte, 1) == 1);
    } else {
        EXPECT(read(pipe_fds[0], &byte, 1) == 1 && gr_comm_abort(comm, "enough") == GR_OK);
    }
    EXPECT(gr_wait(never) == GR_E_ABORTED);
    EXPECT(is_shared(buf) == shared && is_shared(other) == shared);
    memset(buf, 5, bytes);
    EXPECT(gr_unregister(comm, buf) == GR_OK);
    EXPECT(is_shared(buf) == 0 && holds((unsigned char *)buf, 5, bytes));
    memset(buf, 7, bytes);
    gr_comm_destroy(comm);
    return !holds((unsigned char *)buf, 7, bytes) || is_shared(other) != 0 ||
           !holds((unsigned char *)other, 6, bytes);
}

static void memory_of_an_aborted_communicator_becomes_private(void **state)
{
    (void)state;
    assert_int_equal(ranks_run_pairs(is_private_after_an_abort), 0);
}

/* Rank 2 dies; the others make one buffer private themselves, the other one gr_comm_renew does. */
static int is_private_after_a_renewal(gr_comm *comm, const ranks_job *job)
{
    size_t bytes = PAGES * page_bytes(), words = bytes / sizeof(int32_t);
    int shared = strcmp(job->link, "shm") == 0;
    int32_t *buf = private_pages(PAGES), *other = private_pages(PAGES);
    gr_diag diag;
    EXPECT(buf && other && gr_register(comm, buf, bytes) == GR_OK);
    EXPECT(gr_register(comm, other, bytes) == GR_OK);
    EXPECT(use(comm, buf, words, 0) == 0 && use(comm, other, words, 1) == 0);
    if (gr_comm_rank(comm) == 2) {
        raise(SIGKILL);
    }
    EXPECT(gr_allreduce(comm, buf, words, GR_I32, GR_SUM) != GR_OK);
    memset(buf, 5, bytes);
    memset(other, 6, bytes);
    EXPECT(gr_unregister(comm, buf) == GR_OK && is_shared(buf) == 0);
    EXPECT(is_shared(other) == shared);
    EXPECT(gr_comm_renew(&comm, &diag) == GR_OK && gr_comm_size(comm) == 2);
    EXPECT(is_shared(other) == 0 && gr_unregister(comm, other) == GR_E_INVALID);
    EXPECT(holds((unsigned char *)buf, 5, bytes) && holds((unsigned char *)other, 6, bytes));
    EXPECT(use(comm, other, words, 2) == 0);
    EXPECT(gr_register(comm, other, bytes) == GR_OK && is_shared(other) == shared);
    EXPECT(use(comm, other, words, 3) == 0 && use(comm, buf, words, 4) == 0);
    gr_comm_destroy(comm);
    return 0;
}

static void memory_of_a_renewed_communicator_becomes_private(void **state)
{
    const char *const links[] = {"shm", "tcp"};
    (void)state;
    for (int i = 0; i < 2; i++) {
        ranks_job job = {.size = 3, .members_min = 2, .link = links[i], .tune = "off"};
        assert_int_equal(ranks_run(&job, is_private_after_a_renewal, UINT64_C(1) << 2), 0);
    }
}

/* ---- Relatives and children ------------------------------------------------------------------ */
static int is_shared_by_relatives(gr_comm *comm, const ranks_job *job)
{
    size_t bytes = PAGES * page_bytes(), words = bytes / sizeof(int32_t);
    int32_t *buf = private_pages(PAGES);
    gr_comm *half = NULL;
    gr_diag diag;
    (void)job;
    EXPECT(buf && gr_comm_split(comm, gr_comm_rank(comm) % 2, 0, &half, &diag) == GR_OK);
    EXPECT(gr_register(half, buf, bytes) == GR_OK && use(half, buf, words, 0) == 0);
    EXPECT(use(comm, buf, words, 1) == 0);
    EXPECT(gr_register(comm, buf, bytes) == GR_E_INVALID);
    gr_comm_destroy(half); /* one of two: nothing ends yet */
    EXPECT(is_shared(buf) == 1 && use(comm, buf, words, 2) == 0);
    EXPECT(gr_unregister(comm, buf) == GR_OK && is_shared(buf) == 0);
    gr_comm_destroy(comm);
    return 0;
}

static void registered_memory_is_shared_by_relatives(void **state)
{
    (void)state;
    ranks_job job = {.size = 4, .link = "shm", .tune = "off"};
    assert_int_equal(ranks_run(&job, is_shared_by_relatives, 0), 0);
}

/* In a forked child: 0 if all is well. */
static int use_in_child(gr_comm *comm, unsigned char *mem, size_t size_bytes)
{
    bool seen = holds(mem, 1, size_bytes);
    memset(mem, 2, size_bytes);
    bool refused = gr_unregister(comm, mem) == GR_E_INVALID;
    gr_comm_destroy(comm);
    return seen && refused && is_shared(mem) == 1 && holds(mem, 2, size_bytes) ? 0 : 1;
}

static int child_shares_registered_memory(gr_comm *comm, const ranks_job *job)
{
    size_t bytes = PAGES * page_bytes();
    unsigned char *mem = private_pages(PAGES);
    int how = -1;
    (void)job;
    EXPECT(mem && gr_register(comm, mem, bytes) == GR_OK);
    memset(mem, 1, bytes);
    pid_t child = fork();
    if (child == 0) {
        _exit(use_in_child(comm, mem, bytes));
    }
    EXPECT(child > 0 && waitpid(child, &how, 0) == child && how == 0);
    EXPECT(holds(mem, 2, bytes) && is_shared(mem) == 1);
    EXPECT(use(comm, (int32_t *)(void *)mem, bytes / sizeof(int32_t), 0) == 0);
    EXPECT(gr_unregister(comm, mem) == GR_OK && is_shared(mem) == 0);
    gr_comm_destroy(comm);
    return 0;
}

static void forked_child_shares_registered_memory(void **state)
{
    (void)state;
    ranks_job job = {.size = 2, .link = "shm", .tune = "off"};
    assert_int_equal(ranks_run(&job, child_shares_registered_memory, 0), 0);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(registered_memory_keeps_contents_and_gives_right_results),
        cmocka_unit_test(what_cannot_be_shared_is_refused_with_a_sentence),
        cmocka_unit_test(memory_that_begins_within_a_page_is_known_and_not_shared),
        cmocka_unit_test(memory_that_an_operation_uses_stays_registered),
        cmocka_unit_test(without_descriptors_nothing_changes),
        cmocka_unit_test(memory_that_is_private_in_part_is_used_right),
        cmocka_unit_test(memory_that_was_unmapped_is_left_alone),
        cmocka_unit_test(memory_of_an_aborted_communicator_becomes_private),
        cmocka_unit_test(memory_of_a_renewed_communicator_becomes_private),
        cmocka_unit_test(registered_memory_is_shared_by_relatives),
        cmocka_unit_test(forked_child_shares_registered_memory),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
