/* SPDX-License-Identifier: Apache-2.0 */
#include "coll/record.h"
#include "base/clock.h"
#include "coll/lane.h"
#include "coll/plan.h"

#include <ctype.h>
#include <dlfcn.h>
#include <errno.h>
#include <fcntl.h>
#include <link.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

/* ---- Life ------------------------------------------------------------------------------------ */
/* The first object that the loader lists is the program itself. */
static int find_program(struct dl_phdr_info *info, size_t size, void *arg)
{
    gr_record *record = arg;
    (void)size;
    record->program_at = info->dlpi_addr;
    for (int i = 0; i < info->dlpi_phnum; i++) {
        const ElfW(Phdr) *part = &info->dlpi_phdr[i];
        if (part->p_type == PT_LOAD && part->p_vaddr + part->p_memsz > record->program_bytes) {
            record->program_bytes = part->p_vaddr + part->p_memsz;
        }
    }
    return 1;
}

void gr_record_init(gr_record *record)
{
    record->magic = GR_RECORD_MAGIC;
    record->version = GR_RECORD_VERSION;
    record->program_bytes = 0;
    (void)dl_iterate_phdr(find_program, record);
    gr_record_copy(record->program, program_invocation_short_name);
    record->begun = 0; /* entries count from then on */
    record->generation = record->step = record->begun_for_it = 0;
    record->first_ns = gr_now_ns();
    record->first_ticks = gr_record_now();
}

static gr_record *map_file(const char *path, char why_out[128])
{
    int fd = open(path, O_RDWR | O_CREAT | O_CLOEXEC, 0600);
    off_t size = fd >= 0 ? lseek(fd, 0, SEEK_END) : -1;
    void *memory = MAP_FAILED;
    if (fd >= 0 && (size >= (off_t)sizeof(gr_record) || ftruncate(fd, sizeof(gr_record)) == 0)) {
        memory = mmap(NULL, sizeof(gr_record), PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0);
    }
    if (memory == MAP_FAILED) {
        snprintf(why_out, 128, "%.60s: %.50s", path, strerror(errno));
    }
    if (fd >= 0) {
        close(fd);
    }
    return memory == MAP_FAILED ? NULL : memory;
}

gr_record *gr_record_create(const char *path, char why_out[128])
{
    why_out[0] = '\0';
    gr_record *record = path ? map_file(path, why_out) : NULL;
    if (!record) {
        void *memory =
            mmap(NULL, sizeof *record, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
        record = memory == MAP_FAILED ? NULL : memory;
    }
    if (record) {
        gr_record_init(record);
    }
    return record;
}

gr_record *gr_record_move(gr_record *record, const char *path, char why_out[128])
{
    gr_record *moved = map_file(path, why_out);
    if (!moved) {
        return record;
    }
    memcpy(moved, record, sizeof *moved);
    gr_record_destroy(record);
    return moved;
}

void gr_record_destroy(gr_record *record)
{
    if (record) {
        munmap(record, sizeof *record);
    }
}

/* ---- Writing --------------------------------------------------------------------------------- */
gr_record_entry *gr_record_begin(gr_record *record)
{
    gr_record_entry *entry = &record->entries[record->begun % GR_RECORD_ENTRIES];
    entry->started = gr_record_now();
    entry->ended = 0;
    return entry;
}

void gr_record_copy(char to[GR_RECORD_NAME_BYTES], const char *name)
{
    if (!name) {
        to[0] = '\0';
    } else if (!memccpy(to, name, '\0', GR_RECORD_NAME_BYTES)) {
        to[GR_RECORD_NAME_BYTES - 1] = '\0';
    }
}

void gr_record_note(gr_record *record, uint64_t generation, uint64_t step)
{
    record->generation = generation;
    record->step = step;
    record->begun_for_it = step == 0 ? record->begun : record->begun_for_it;
}

/* ---- Finding --------------------------------------------------------------------------------- */
const gr_record_entry *gr_record_at(const gr_record *record, uint64_t index)
{
    bool there = index < record->begun && record->begun - index <= GR_RECORD_ENTRIES;
    return there ? &record->entries[index % GR_RECORD_ENTRIES] : NULL;
}

const gr_record_entry *gr_record_find(const gr_record *record, uint16_t comm, uint32_t number)
{
    for (uint64_t back = 1; back <= record->begun && back <= GR_RECORD_ENTRIES; back++) {
        const gr_record_entry *entry = gr_record_at(record, record->begun - back);
        if (entry->comm == comm && entry->number == number && entry->peer < 0) {
            return entry;
        }
    }
    return NULL;
}

const gr_record_entry *gr_record_find_message(const gr_record *record, gr_coll coll, int peer,
                                              uint32_t number)
{
    for (uint64_t back = 1; back <= record->begun && back <= GR_RECORD_ENTRIES; back++) {
        const gr_record_entry *entry = gr_record_at(record, record->begun - back);
        if (entry->coll == (uint8_t)coll && entry->number == number && entry->peer == peer) {
            return entry;
        }
    }
    return NULL;
}

/* ---- Saying ---------------------------------------------------------------------------------- */
typedef struct text {
    char *at;
    size_t left;
} text;

static void say(text *out, const char *format, ...) GR_PRINTF(2, 3);
static void say(text *out, const char *format, ...)
{
    va_list args;
    va_start(args, format);
    int length = vsnprintf(out->at, out->left, format, args);
    va_end(args);
    size_t used = length < 0 ? 0 : (size_t)length;
    used = used < out->left ? used : out->left - 1;
    out->at += used;
    out->left -= used;
}

void gr_record_describe_caller(uint64_t caller, char *text_out, size_t size_bytes)
{
    Dl_info info;
    const void *address = (const void *)(uintptr_t)caller;
    if (dladdr(address, &info) == 0 || !info.dli_fname) {
        snprintf(text_out, size_bytes, "at %p", address);
        return;
    }
    const char *slash = strrchr(info.dli_fname, '/');
    const char *file = slash ? slash + 1 : info.dli_fname;
    if (info.dli_sname) {
        snprintf(text_out, size_bytes, "in %.40s (%.30s)", info.dli_sname, file);
    } else {
        snprintf(text_out, size_bytes, "at %.40s+0x%zx", file,
                 (size_t)(caller - (uintptr_t)info.dli_fbase));
    }
}

static void say_site(text *out, const gr_record_entry *entry)
{
    if (entry->site[0]) {
        say(out, " at %s", entry->site);
    } else if (entry->caller != 0) {
        char where[GR_RECORD_TEXT_BYTES];
        gr_record_describe_caller(entry->caller, where, sizeof where);
        say(out, " %s", where);
    }
}

const char *gr_record_algorithm(uint8_t algorithm)
{
    if (algorithm == GR_LANE_ALGORITHM) {
        return "lane";
    }
    int known = 0;
    while (known < algorithm && gr_algorithms[known].name) {
        known++;
    }
    const char *name = gr_algorithms[known].name;
    return name ? name : "an unknown algorithm";
}

static bool reduces(gr_coll coll)
{
    return coll == GR_COLL_ALLREDUCE || coll == GR_COLL_REDUCE_SCATTER || coll == GR_COLL_REDUCE;
}

void gr_record_describe(const gr_record_entry *entry, char *text_out, size_t size_bytes)
{
    text out = {.at = text_out, .left = size_bytes};
    gr_coll coll = (gr_coll)entry->coll;
    gr_dtype dtype = (gr_dtype)entry->dtype;
    unsigned long long count = entry->count;
    if (coll == GR_COLL_BARRIER) {
        say(&out, "%s", gr_coll_name(coll));
    } else if (coll == GR_COLL_ALLTOALL && count == 0) { /* each rank has counts of its own */
        say(&out, "%s of %s", gr_coll_name(coll), gr_dtype_name(dtype));
    } else {
        bool blocks = coll == GR_COLL_REDUCE_SCATTER || coll == GR_COLL_ALLGATHER ||
                      coll == GR_COLL_GATHER || coll == GR_COLL_SCATTER || coll == GR_COLL_ALLTOALL;
        say(&out, "%s of %llu %s%s", gr_coll_name(coll), count, gr_dtype_name(dtype),
            blocks ? " a rank" : "");
    }
    switch (coll) {
    case GR_COLL_SEND:
        say(&out, " to rank %d (tag %u)", entry->root, entry->tag);
        break;
    case GR_COLL_RECV:
        say(&out, " from rank %d (tag %u)", entry->root, entry->tag);
        break;
    case GR_COLL_BROADCAST:
    case GR_COLL_SCATTER:
        say(&out, " from rank %d", entry->root);
        break;
    case GR_COLL_REDUCE:
    case GR_COLL_GATHER:
        say(&out, " to rank %d", entry->root);
        break;
    default:
        break;
    }
    if (reduces(coll)) {
        say(&out, " (%s over %d)", gr_redop_name((gr_redop)entry->op), entry->shards);
    }
    if (coll < GR_COLL_SEND) {
        say(&out, " by %s", gr_record_algorithm(entry->algorithm));
    }
    if (entry->name[0]) {
        say(&out, " \"%s\"", entry->name);
    }
    say_site(&out, entry);
}

/* ---- The record of another process ----------------------------------------------------------- */
/* A text from outside goes to a terminal or a log: no control characters. */
static void clean_text(char name[GR_RECORD_NAME_BYTES])
{
    name[GR_RECORD_NAME_BYTES - 1] = '\0';
    for (char *at = name; *at; at++) {
        unsigned char c = (unsigned char)*at;
        *at = c >= 0x80 || isprint(c) ? (char)c : ' ';
    }
}

static void clean_entry(const gr_record *record, gr_record_entry *entry)
{
    clean_text(entry->name);
    clean_text(entry->site);
    entry->coll = entry->coll < GR_COLL_COUNT ? entry->coll : GR_COLL_BARRIER;
    entry->dtype = entry->dtype < GR_DTYPE_COUNT ? entry->dtype : GR_F32;
    entry->op = entry->op < GR_REDOP_COUNT ? entry->op : GR_SUM;
    if (!entry->site[0] && entry->caller - record->program_at < record->program_bytes) {
        snprintf(entry->site, sizeof entry->site, "%.28s+0x%llx", record->program,
                 (unsigned long long)(entry->caller - record->program_at));
    }
    entry->caller = 0; /* an address of another process means nothing here */
}

gr_status gr_record_read(int fd, gr_record *record_out)
{
    ssize_t got = pread(fd, record_out, sizeof *record_out, 0);
    if (got < 0) {
        return GR_E_IO;
    }
    if (got != (ssize_t)sizeof *record_out || record_out->magic != GR_RECORD_MAGIC ||
        record_out->version != GR_RECORD_VERSION) {
        return got == 0 || (got == (ssize_t)sizeof *record_out && record_out->magic == 0)
                   ? GR_E_NOT_FOUND
                   : GR_E_INVALID;
    }
    clean_text(record_out->program);
    for (int i = 0; i < GR_RECORD_ENTRIES; i++) {
        clean_entry(record_out, &record_out->entries[i]);
    }
    return record_out->begun > 0 ? GR_OK : GR_E_NOT_FOUND;
}

gr_record_place gr_record_read_place(int fd)
{
    enum { HEAD_BYTES = offsetof(gr_record, entries) };
    gr_record_place place = {.step = 0};
    gr_record *head = calloc(1, sizeof *head);
    if (head && pread(fd, head, HEAD_BYTES, 0) == HEAD_BYTES && head->magic == GR_RECORD_MAGIC &&
        head->version == GR_RECORD_VERSION) {
        place = (gr_record_place){.generation = head->generation,
                                  .step = head->step,
                                  .operations = head->begun - head->begun_for_it};
    }
    free(head);
    return place;
}

static double seconds_between(const gr_record *record, uint64_t from, uint64_t to)
{
    return to > from ? (double)(to - from) * gr_record_ns_per_tick(record) * 1e-9 : 0;
}

/* The oldest that has not ended, since the others may wait for it; NULL: none. The very oldest
 * entry may be one that is being written anew. */
static const gr_record_entry *find_open(const gr_record *record)
{
    const gr_record_entry *found = NULL;
    for (uint64_t back = 1; back <= record->begun && back < GR_RECORD_ENTRIES; back++) {
        const gr_record_entry *entry = gr_record_at(record, record->begun - back);
        found = entry->ended == 0 ? entry : found;
    }
    return found;
}

void gr_record_last(const gr_record *record, uint64_t now, char *text_out, size_t size_bytes)
{
    text out = {.at = text_out, .left = size_bytes};
    const gr_record_entry *open = find_open(record);
    const gr_record_entry *newest = gr_record_at(record, record->begun - 1);
    const gr_record_entry *entry = open ? open : newest;
    char what[GR_RECORD_TEXT_BYTES];
    gr_record_describe(entry, what, sizeof what);
    if (open) {
        say(&out, "in operation %u, %s, for %.1f s", entry->number, what,
            seconds_between(record, entry->started, now));
    } else if (entry->status < 0) {
        say(&out, "after operation %u, %s, had failed", entry->number, what);
    } else {
        say(&out, "between operations, %.1f s after number %u, %s",
            seconds_between(record, entry->ended, now), entry->number, what);
    }
}

double gr_record_ns_per_tick(const gr_record *record)
{
    uint64_t ticks = gr_record_now() - record->first_ticks;
    int64_t ns = gr_now_ns() - record->first_ns;
    return ticks > 0 && ns > 0 ? (double)ns / (double)ticks : 1;
}
