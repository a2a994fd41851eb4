/* SPDX-License-Identifier: Apache-2.0 */
#include "coll/record.h"
#include "base/clock.h"
#include "coll/plan.h"

#include <dlfcn.h>
#include <stdarg.h>
#include <stdio.h>
#include <string.h>

/* ---- Writing --------------------------------------------------------------------------------- */
void gr_record_init(gr_record *record)
{
    record->begun = 0; /* entries count from then on */
    record->first_ns = gr_now_ns();
    record->first_ticks = gr_record_now();
}

gr_record_entry *gr_record_begin(gr_record *record)
{
    gr_record_entry *entry = &record->entries[record->begun++ % GR_RECORD_ENTRIES];
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

static void say_site(text *out, const gr_record_entry *entry)
{
    if (entry->site[0]) {
        say(out, " at %s", entry->site);
        return;
    }
    if (entry->caller == 0) {
        return;
    }
    Dl_info info;
    const void *address = (const void *)(uintptr_t)entry->caller;
    if (dladdr(address, &info) == 0 || !info.dli_fname) {
        say(out, " at %p", address);
        return;
    }
    const char *slash = strrchr(info.dli_fname, '/');
    const char *file = slash ? slash + 1 : info.dli_fname;
    if (info.dli_sname) {
        say(out, " in %.40s (%.30s)", info.dli_sname, file);
    } else {
        say(out, " at %.40s+0x%zx", file, (size_t)(entry->caller - (uintptr_t)info.dli_fbase));
    }
}

static const char *algorithm_of(const gr_record_entry *entry)
{
    int known = 0;
    while (known < entry->algorithm && gr_algorithms[known].name) {
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
        say(&out, " by %s", algorithm_of(entry));
    }
    if (entry->name[0]) {
        say(&out, " \"%s\"", entry->name);
    }
    say_site(&out, entry);
}

double gr_record_ns_per_tick(const gr_record *record)
{
    uint64_t ticks = gr_record_now() - record->first_ticks;
    int64_t ns = gr_now_ns() - record->first_ns;
    return ticks > 0 && ns > 0 ? (double)ns / (double)ticks : 1;
}
