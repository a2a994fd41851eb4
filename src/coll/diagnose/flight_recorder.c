/* SPDX-License-Identifier: Apache-2.0 */
#include "coll/diagnose/flight_recorder.h"
#include "base/clock.h"
#include "coll/plan/plan.h"
#include "coll/plan/traits.h"

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

enum { CLOCK_READS = 4 };

/* ---- Life ------------------------------------------------------------------------------------ */
/* The first object that the loader lists is the program itself. */
static int find_program(struct dl_phdr_info *info, size_t size, void *arg)
{
    gr_flight_recorder *record = arg;
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

static void init_record(gr_flight_recorder *record)
{
    record->magic = GR_FLIGHT_RECORDER_MAGIC;
    record->version = GR_FLIGHT_RECORDER_VERSION;
    record->program_bytes = 0;
    (void)dl_iterate_phdr(find_program, record);
    gr_flight_recorder_copy(record->program, program_invocation_short_name);
    record->begun = 0; /* entries count from then on */
    record->generation = record->step = record->begun_for_it = 0;
    record->first_number = 0;
    gr_flight_recorder_read_clocks(&record->first_ns, &record->first_ticks);
}

/* The file gets real blocks of the disk first: a store to a page without one would be a SIGBUS. */
static gr_flight_recorder *map_file(const char *path, char why_out[128])
{
    int fd = open(path, O_RDWR | O_CREAT | O_CLOEXEC, 0600);
    int error = fd >= 0 ? posix_fallocate(fd, 0, sizeof(gr_flight_recorder)) : errno;
    void *memory = MAP_FAILED;
    if (error == 0) {
        memory = mmap(NULL, sizeof(gr_flight_recorder), PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0);
        error = memory == MAP_FAILED ? errno : 0;
    }
    if (error != 0) {
        snprintf(why_out, 128, "%.60s: %.50s", path, strerror(error));
    }
    if (fd >= 0) {
        close(fd);
    }
    return memory == MAP_FAILED ? NULL : memory;
}

gr_flight_recorder *gr_flight_recorder_create(const char *path, char why_out[128])
{
    why_out[0] = '\0';
    gr_flight_recorder *record = path ? map_file(path, why_out) : NULL;
    if (!record) {
        void *memory =
            mmap(NULL, sizeof *record, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
        record = memory == MAP_FAILED ? NULL : memory;
    }
    if (record) {
        init_record(record);
    }
    return record;
}

void gr_flight_recorder_destroy(gr_flight_recorder *record)
{
    if (record) {
        munmap(record, sizeof *record);
    }
}

/* ---- Writing --------------------------------------------------------------------------------- */
gr_flight_recorder_entry *gr_flight_recorder_begin(gr_flight_recorder *record)
{
    gr_flight_recorder_entry *entry = &record->entries[record->begun % GR_FLIGHT_RECORDER_ENTRIES];
    entry->started = gr_flight_recorder_now();
    entry->ended = 0;
    return entry;
}

void gr_flight_recorder_copy_some(char to[GR_FLIGHT_RECORDER_NAME_BYTES], const char *name)
{
    if (!memccpy(to, name, '\0', GR_FLIGHT_RECORDER_NAME_BYTES)) {
        to[GR_FLIGHT_RECORDER_NAME_BYTES - 1] = '\0';
    }
}

void gr_flight_recorder_note(gr_flight_recorder *record, uint64_t generation, uint64_t step)
{
    record->generation = generation;
    record->step = step;
    record->begun_for_it = step == 0 ? record->begun : record->begun_for_it;
}

/* ---- Finding --------------------------------------------------------------------------------- */
const gr_flight_recorder_entry *gr_flight_recorder_at(const gr_flight_recorder *record,
                                                      uint64_t index)
{
    bool there = index < record->begun && record->begun - index <= GR_FLIGHT_RECORDER_ENTRIES;
    return there ? &record->entries[index % GR_FLIGHT_RECORDER_ENTRIES] : NULL;
}

bool gr_flight_recorder_is_message(const gr_flight_recorder_entry *entry)
{
    return gr_coll_traits_of[entry->coll].message;
}

void gr_flight_recorder_matched(gr_flight_recorder *record, uint64_t index, uint32_t number,
                                int peer, int source, uint32_t tag)
{
    if (gr_flight_recorder_at(record, index)) {
        gr_flight_recorder_entry *entry = &record->entries[index % GR_FLIGHT_RECORDER_ENTRIES];
        entry->number = number;
        entry->peer = peer;
        entry->root = source;
        entry->tag = tag;
    }
}

const gr_flight_recorder_entry *gr_flight_recorder_find(const gr_flight_recorder *record,
                                                        uint16_t comm, uint32_t number)
{
    for (uint64_t back = 1; back <= record->begun && back <= GR_FLIGHT_RECORDER_ENTRIES; back++) {
        const gr_flight_recorder_entry *entry = gr_flight_recorder_at(record, record->begun - back);
        if (entry->comm == comm && entry->number == number &&
            !gr_flight_recorder_is_message(entry)) {
            return entry;
        }
    }
    return NULL;
}

const gr_flight_recorder_entry *gr_flight_recorder_find_message(const gr_flight_recorder *record,
                                                                gr_coll coll, int peer,
                                                                uint32_t number)
{
    for (uint64_t back = 1; back <= record->begun && back <= GR_FLIGHT_RECORDER_ENTRIES; back++) {
        const gr_flight_recorder_entry *entry = gr_flight_recorder_at(record, record->begun - back);
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

static void append(text *out, const char *format, ...) GR_PRINTF(2, 3);
static void append(text *out, const char *format, ...)
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

void gr_flight_recorder_describe_caller(uint64_t caller, char *text_out, size_t size_bytes)
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

static bool is_of_startup(const gr_flight_recorder *record, uint16_t comm, uint32_t number,
                          bool is_message)
{
    return comm == 0 && !is_message && (int32_t)(number - record->first_number) < 0;
}

uint32_t gr_flight_recorder_shown_number(const gr_flight_recorder *record, uint16_t comm,
                                         uint32_t number, bool is_message)
{
    bool own_count = comm != 0 || is_message || is_of_startup(record, comm, number, is_message);
    return (own_count ? number : number - record->first_number) + 1;
}

void gr_flight_recorder_describe_number(const gr_flight_recorder *record, uint16_t comm,
                                        uint32_t number, bool is_message,
                                        char text_out[GR_FLIGHT_RECORDER_NUMBER_BYTES])
{
    text out = {.at = text_out, .left = GR_FLIGHT_RECORDER_NUMBER_BYTES};
    if (is_message && number == GR_FLIGHT_RECORDER_NO_NUMBER) {
        append(&out, "a message");
    } else {
        append(&out, "%s %u", is_message ? "message" : "operation",
               gr_flight_recorder_shown_number(record, comm, number, is_message));
    }
    if (comm != 0) {
        append(&out, " of sub-group %u", comm);
    } else if (is_of_startup(record, comm, number, is_message)) {
        append(&out, " of the start-up");
    }
}

static void append_site(text *out, const gr_flight_recorder_entry *entry)
{
    if (entry->site[0]) {
        append(out, " at %s", entry->site);
    } else if (entry->caller != 0) {
        char where[GR_FLIGHT_RECORDER_TEXT_BYTES];
        gr_flight_recorder_describe_caller(entry->caller, where, sizeof where);
        append(out, " %s", where);
    }
}

const char *gr_flight_recorder_algorithm(uint8_t algorithm)
{
    int known = 0;
    while (known < algorithm && gr_algorithms[known].name) {
        known++;
    }
    const char *name = gr_algorithms[known].name;
    return name ? name : "an unknown algorithm";
}

static void append_source(text *out, const gr_flight_recorder_entry *entry)
{
    if (entry->root == GR_ANY_SOURCE) {
        append(out, " from any rank");
    } else {
        append(out, " from rank %d", entry->root);
    }
    if (entry->tag == GR_ANY_TAG) {
        append(out, " (any tag)");
    } else {
        append(out, " (tag %u)", entry->tag);
    }
}

void gr_flight_recorder_describe(const gr_flight_recorder_entry *entry, char *text_out,
                                 size_t size_bytes)
{
    text out = {.at = text_out, .left = size_bytes};
    gr_coll coll = (gr_coll)entry->coll;
    gr_dtype dtype = (gr_dtype)entry->dtype;
    unsigned long long count = entry->count;
    if (coll == GR_COLL_BARRIER) {
        append(&out, "%s", gr_coll_name(coll));
    } else if (coll == GR_COLL_ALLTOALL && count == 0) { /* each rank has counts of its own */
        append(&out, "%s of %s", gr_coll_name(coll), gr_dtype_name(dtype));
    } else {
        append(&out, "%s of %llu %s%s", gr_coll_name(coll), count, gr_dtype_name(dtype),
               gr_coll_traits_of[coll].blocks ? " a rank" : "");
    }
    switch (coll) {
    case GR_COLL_SEND:
        append(&out, " to rank %d (tag %u)", entry->root, entry->tag);
        break;
    case GR_COLL_RECV:
        append_source(&out, entry);
        break;
    case GR_COLL_BROADCAST:
    case GR_COLL_SCATTER:
        append(&out, " from rank %d", entry->root);
        break;
    case GR_COLL_REDUCE:
    case GR_COLL_GATHER:
        append(&out, " to rank %d", entry->root);
        break;
    default:
        break;
    }
    if (gr_coll_traits_of[coll].reduces) {
        append(&out, " (%s over %d)", gr_redop_name((gr_redop)entry->op), entry->shards);
    }
    if (coll < GR_COLL_SEND) {
        append(&out, " by %s", gr_flight_recorder_algorithm(entry->algorithm));
    }
    if (entry->name[0]) {
        append(&out, " \"%s\"", entry->name);
    }
    append_site(&out, entry);
}

/* ---- The record of another process ----------------------------------------------------------- */
/* A text from outside goes to a terminal or a log: no control characters. */
static void clean_text(char name[GR_FLIGHT_RECORDER_NAME_BYTES])
{
    name[GR_FLIGHT_RECORDER_NAME_BYTES - 1] = '\0';
    for (char *at = name; *at; at++) {
        unsigned char c = (unsigned char)*at;
        *at = c >= 0x80 || isprint(c) ? (char)c : ' ';
    }
}

static void clean_entry(const gr_flight_recorder *record, gr_flight_recorder_entry *entry)
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

gr_status gr_flight_recorder_read(int fd, gr_flight_recorder *record_out)
{
    ssize_t got = pread(fd, record_out, sizeof *record_out, 0);
    if (got < 0) {
        return GR_E_IO;
    }
    if (got != (ssize_t)sizeof *record_out || record_out->magic != GR_FLIGHT_RECORDER_MAGIC ||
        record_out->version != GR_FLIGHT_RECORDER_VERSION) {
        return got == 0 || (got == (ssize_t)sizeof *record_out && record_out->magic == 0)
                   ? GR_E_NOT_FOUND
                   : GR_E_INVALID;
    }
    clean_text(record_out->program);
    for (int i = 0; i < GR_FLIGHT_RECORDER_ENTRIES; i++) {
        clean_entry(record_out, &record_out->entries[i]);
    }
    return record_out->begun > 0 ? GR_OK : GR_E_NOT_FOUND;
}

gr_flight_recorder_place gr_flight_recorder_read_place(int fd)
{
    enum { HEAD_BYTES = offsetof(gr_flight_recorder, entries) };
    gr_flight_recorder_place place = {.step = 0};
    gr_flight_recorder *head = calloc(1, sizeof *head);
    if (head && pread(fd, head, HEAD_BYTES, 0) == HEAD_BYTES &&
        head->magic == GR_FLIGHT_RECORDER_MAGIC && head->version == GR_FLIGHT_RECORDER_VERSION) {
        place = (gr_flight_recorder_place){.generation = head->generation,
                                           .step = head->step,
                                           .operations = head->begun - head->begun_for_it};
    }
    free(head);
    return place;
}

static double seconds_between(const gr_flight_recorder *record, uint64_t from, uint64_t to)
{
    return to > from ? (double)(to - from) * gr_flight_recorder_ns_per_tick(record) * 1e-9 : 0;
}

/* The oldest that has not ended, since the others may wait for it; NULL: none. The very oldest
 * entry may be one that is being written anew. */
static const gr_flight_recorder_entry *find_open(const gr_flight_recorder *record)
{
    const gr_flight_recorder_entry *found = NULL;
    for (uint64_t back = 1; back <= record->begun && back < GR_FLIGHT_RECORDER_ENTRIES; back++) {
        const gr_flight_recorder_entry *entry = gr_flight_recorder_at(record, record->begun - back);
        found = entry->ended == 0 ? entry : found;
    }
    return found;
}

void gr_flight_recorder_last(const gr_flight_recorder *record, uint64_t now, char *text_out,
                             size_t size_bytes)
{
    text out = {.at = text_out, .left = size_bytes};
    const gr_flight_recorder_entry *open = find_open(record);
    const gr_flight_recorder_entry *newest = gr_flight_recorder_at(record, record->begun - 1);
    const gr_flight_recorder_entry *entry = open ? open : newest;
    char what[GR_FLIGHT_RECORDER_TEXT_BYTES], number[GR_FLIGHT_RECORDER_NUMBER_BYTES];
    gr_flight_recorder_describe(entry, what, sizeof what);
    gr_flight_recorder_describe_number(record, entry->comm, entry->number,
                                       gr_flight_recorder_is_message(entry), number);
    if (open) {
        append(&out, "in %s, %s, for %.1f s", number, what,
               seconds_between(record, entry->started, now));
    } else if (entry->status < 0) {
        append(&out, "after %s, %s, had failed", number, what);
    } else {
        append(&out, "between operations, %.1f s after %s, %s",
               seconds_between(record, entry->ended, now), number, what);
    }
}

void gr_flight_recorder_read_clocks(int64_t *ns_out, uint64_t *ticks_out)
{
    uint64_t least = UINT64_MAX;
    *ns_out = 0;
    *ticks_out = 0;
    for (int i = 0; i < CLOCK_READS; i++) {
        uint64_t before = gr_flight_recorder_now();
        int64_t ns = gr_now_ns();
        uint64_t apart = gr_flight_recorder_now() - before;
        if (apart < least) {
            least = apart;
            *ns_out = ns;
            *ticks_out = before + apart / 2;
        }
    }
}

double gr_flight_recorder_ns_per_tick(const gr_flight_recorder *record)
{
    uint64_t ticks;
    int64_t ns;
    gr_flight_recorder_read_clocks(&ns, &ticks);
    ticks -= record->first_ticks;
    ns -= record->first_ns;
    return ticks > 0 && ns > 0 ? (double)ns / (double)ticks : 1;
}
