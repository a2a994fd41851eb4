/* SPDX-License-Identifier: Apache-2.0 */
#include "base/fail.h"
#include "base/file.h"
#include "base/text.h"
#include "coll/diagnose/timeline_part.h"
#include "coll/plan/plan.h"
#include "coll/plan/traits.h"

#include <errno.h>
#include <fcntl.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

/* Parts become one file in Chrome's trace format: a process for each rank, tracks for training and
 * for each communicator, one more where operations of a communicator overlap, since on one track
 * events may only lie inside each other. */

enum {
    RANKS_MAX = 65536,
    COMMS = 65536, /* gr_timeline_op.comm */
    TRACKS_MAX = 4096,
    SITES_MAX = 4096,
    TRACK_RANK = 1, /* marks */
    TRACK_TRAINING = 2,
    TRACK_FIRST = 3,
    WAIT_SHOWN_NS = 20000
};

/* A part in memory, checked as far as its head goes. */
typedef struct timeline_part {
    const uint8_t *at;
    size_t mapped, used;
    const gr_part_head *head;
    double ns_per_tick;
    double shift_ns; /* from its monotonic clock to the time that all have in common */
    bool cut;
} timeline_part;

typedef struct track {
    uint32_t next; /* of the same communicator; 0: none */
    double end_ns;
} track;

typedef struct site {
    uint64_t caller;
    const gr_part_text *text;
} site;

typedef struct merger {
    FILE *out;
    timeline_part *parts;
    int count;
    double begin_ns;
    bool first; /* no event is written yet */
    /* Of the part that is written. */
    const timeline_part *now;
    const char *path;   /* of what is written */
    uint32_t *track_of; /* by communicator: its first track, 0: none */
    track *tracks;      /* [1 .. track_count] */
    uint32_t track_count;
    site *sites;
    size_t site_count;
    gr_timeline_summary *summary;
} merger;

/* ---- Reading --------------------------------------------------------------------------------- */
static bool check_head(const gr_part_head *head, size_t size, int rank)
{
    return size >= sizeof *head && head->magic == GR_PART_MAGIC && head->rank == rank &&
           head->world_size > 0 && head->world_size <= RANKS_MAX && head->used >= sizeof *head &&
           memchr(head->host, '\0', sizeof head->host) != NULL;
}

/* The first record at or behind `at` that is whole; NULL: the end. */
static const gr_part_record *record_at(const timeline_part *p, size_t at)
{
    if (at + sizeof(gr_part_record) > p->used) {
        return NULL;
    }
    const gr_part_record *record = (const gr_part_record *)(p->at + at);
    bool sound = record->size_bytes >= sizeof *record && record->size_bytes % GR_PART_ALIGN == 0 &&
                 record->size_bytes <= p->used - at;
    return sound ? record : NULL;
}

/* JSON's readers take integers for signed ones. */
static bool sound_number(uint64_t number)
{
    return number <= INT64_MAX;
}

static bool sound_operation(const gr_timeline_op *op)
{
    return sound_number(op->count) && sound_number(op->size_bytes) &&
           op->head.size_bytes >= sizeof *op &&
           (size_t)op->name_bytes + op->site_bytes <= op->head.size_bytes - sizeof *op &&
           op->coll < GR_COLL_COUNT && op->dtype < GR_DTYPE_COUNT && op->op < GR_REDOP_COUNT;
}

static bool sound_text(const gr_part_text *text)
{
    return text->head.size_bytes >= sizeof *text &&
           text->text_bytes <= text->head.size_bytes - sizeof *text;
}

static bool sound(const gr_part_record *record)
{
    switch (record->kind) {
    case GR_PART_OPERATION:
        return sound_operation((const gr_timeline_op *)record);
    case GR_PART_PHASE:
        return record->size_bytes >= sizeof(gr_part_phase) &&
               ((const gr_part_phase *)record)->phase < GR_TIMELINE_PHASE_COUNT &&
               sound_number(((const gr_part_phase *)record)->number);
    case GR_PART_MARK:
        return sound_text((const gr_part_text *)record) &&
               ((const gr_part_text *)record)->what < GR_TIMELINE_MARK_COUNT;
    case GR_PART_SITE:
        return sound_text((const gr_part_text *)record);
    default:
        return false;
    }
}

/* How far it can be read; the rest is as if it had not been written. */
static void check_records(timeline_part *p)
{
    size_t at = sizeof(gr_part_head);
    for (;;) {
        const gr_part_record *record = record_at(p, at);
        if (!record || !sound(record)) {
            break;
        }
        at += record->size_bytes;
    }
    p->cut = at < p->head->used;
    p->used = at;
}

/* a - b, of numbers that may be anything: it wraps around. */
static int64_t apart(int64_t a, int64_t b)
{
    return (int64_t)((uint64_t)a - (uint64_t)b);
}

/* GR_E_NOT_FOUND: there is none, or it is something else. */
static gr_status map_part(const char *path, int rank, timeline_part *out, gr_diag *diag)
{
    char name[GR_PART_PATH_BYTES], buffer[GR_ERRNO_TEXT_BYTES];
    if (!gr_part_path(name, path, rank)) {
        return gr_fail(diag, GR_E_INVALID, "the path of the timeline is too long");
    }
    int fd = open(name, O_RDONLY | O_CLOEXEC);
    struct stat about;
    if (fd < 0 || fstat(fd, &about) != 0) {
        int error = errno;
        if (fd >= 0) {
            close(fd);
        }
        return gr_fail(diag, error == ENOENT ? GR_E_NOT_FOUND : GR_E_IO, "%s: %s", name,
                       gr_text_errno(error, buffer));
    }
    size_t size = (size_t)about.st_size;
    void *at =
        size >= sizeof(gr_part_head) ? mmap(NULL, size, PROT_READ, MAP_PRIVATE, fd, 0) : MAP_FAILED;
    close(fd);
    if (at == MAP_FAILED || !check_head(at, size, rank)) {
        if (at != MAP_FAILED) {
            munmap(at, size);
        }
        return gr_fail(diag, GR_E_NOT_FOUND, "%s is no part of a timeline", name);
    }
    const gr_part_head *head = at;
    timeline_part made = {.at = at, .mapped = size, .head = head};
    made.used = head->used < size ? (size_t)head->used : size;
    check_records(&made);
    uint64_t ticks = head->ticks[1] - head->ticks[0];
    int64_t ns = apart(head->ns[1], head->ns[0]);
    made.ns_per_tick = ticks > 0 && ns > 0 ? (double)ns / (double)ticks : 1;
    *out = made;
    return GR_OK;
}

static double time_of(const timeline_part *p, uint64_t ticks)
{
    int64_t since = (int64_t)(ticks - p->head->ticks[0]);
    return (double)p->head->ns[0] + (double)since * p->ns_per_tick + p->shift_ns;
}

/* ---- JSON ------------------------------------------------------------------------------------ */
static void write_text(FILE *out, const char *text, size_t size)
{
    const uint8_t *at = (const uint8_t *)text;
    for (size_t i = 0; i < size;) {
        size_t length = gr_text_character(text + i, size - i);
        if (length == 0 || at[i] == 0) {
            fputc('?', out);
            i++;
        } else if (at[i] == '"' || at[i] == '\\') {
            fprintf(out, "\\%c", at[i++]);
        } else if (at[i] < 0x20) {
            fprintf(out, "\\u%04x", (unsigned)at[i++]);
        } else {
            fwrite(at + i, 1, length, out);
            i += length;
        }
    }
}

/* `{"ph":"X","pid":3,"tid":4,"ts":12.345`, to be ended by end_event. */
static void begin_event(merger *m, const char *phase, uint32_t tid, double at_ns)
{
    fprintf(m->out, "%s{\"ph\":\"%s\",\"pid\":%d,\"tid\":%u,\"ts\":%.3f", m->first ? "" : ",\n",
            phase, m->now->head->rank, tid, (at_ns - m->begin_ns) / 1000);
    m->first = false;
}

static void end_event(merger *m)
{
    fputs("}", m->out);
    m->summary->events++;
}

static void write_name(merger *m, const char *kind, uint32_t tid, const char *format, ...)
    GR_PRINTF(4, 5);
static void write_name(merger *m, const char *kind, uint32_t tid, const char *format, ...)
{
    char text[GR_PART_HOST_BYTES + 64];
    va_list args;
    va_start(args, format);
    gr_text_line(text, sizeof text, format, args);
    va_end(args);
    fprintf(m->out, "%s{\"ph\":\"M\",\"pid\":%d,\"tid\":%u,\"name\":\"%s\",\"args\":{\"name\":\"",
            m->first ? "" : ",\n", m->now->head->rank, tid, kind);
    m->first = false;
    write_text(m->out, text, strlen(text));
    fputs("\"}}", m->out);
}

static void write_order(merger *m, const char *kind, uint32_t tid, uint32_t index)
{
    fprintf(m->out,
            ",\n{\"ph\":\"M\",\"pid\":%d,\"tid\":%u,\"name\":\"%s\",\"args\":{\"sort_index\":%u}}",
            m->now->head->rank, tid, kind, index);
}

/* ---- Tracks ---------------------------------------------------------------------------------- */
static void name_track(merger *m, uint32_t tid, const gr_timeline_op *op, int shm)
{
    char more[24] = "";
    if (shm > 0) {
        snprintf(more, sizeof more, ", also %d", shm + 1);
    }
    if (op->comm == 0) {
        write_name(m, "thread_name", tid, "all %d ranks%s", op->ranks, more);
    } else {
        write_name(m, "thread_name", tid, "sub-group %u of %d ranks%s", op->comm, op->ranks, more);
    }
    write_order(m, "thread_sort_index", tid, tid);
}

/* The first track of the communicator that is free when the operation starts. */
static uint32_t find_track(merger *m, const gr_timeline_op *op, double start_ns, double end_ns)
{
    uint32_t *from = &m->track_of[op->comm];
    int shm = 0;
    while (*from != 0 && m->tracks[*from].end_ns > start_ns) {
        from = &m->tracks[*from].next;
        shm++;
    }
    if (*from == 0) {
        if (m->track_count + 1 == TRACKS_MAX) {
            return TRACK_RANK; /* an overlap that viewers show wrongly */
        }
        *from = ++m->track_count;
        m->tracks[*from].next = 0;
        name_track(m, TRACK_FIRST + *from, op, shm);
    }
    m->tracks[*from].end_ns = end_ns;
    return TRACK_FIRST + *from;
}

/* ---- Events ---------------------------------------------------------------------------------- */
static void keep_site(merger *m, const gr_part_text *text)
{
    size_t at = 0;
    while (at < m->site_count && m->sites[at].caller != text->head.at) {
        at++;
    }
    if (at < SITES_MAX) {
        m->sites[at] = (site){.caller = text->head.at, .text = text};
        m->site_count += at == m->site_count;
    }
}

static void write_site(const merger *m, const gr_timeline_op *op)
{
    if (op->site_bytes > 0) {
        fputs(",\"site\":\"", m->out);
        write_text(m->out, op->text + op->name_bytes, op->site_bytes);
        fputc('"', m->out);
        return;
    }
    for (size_t i = 0; op->caller != 0 && i < m->site_count; i++) {
        if (m->sites[i].caller == op->caller) {
            fputs(",\"site\":\"", m->out);
            write_text(m->out, m->sites[i].text->text, m->sites[i].text->text_bytes);
            fputc('"', m->out);
            return;
        }
    }
}

static void write_arguments(const merger *m, const gr_timeline_op *op, double waited_ns)
{
    gr_coll coll = (gr_coll)op->coll;
    const gr_coll_traits *traits = &gr_coll_traits_of[coll];
    FILE *out = m->out;
    fprintf(out, ",\"args\":{\"operation\":%u,\"kind\":\"%s\"", op->number, gr_coll_name(coll));
    if (coll != GR_COLL_BARRIER) {
        fprintf(out, ",\"count\":%llu,\"bytes\":%llu,\"type\":\"%s\"",
                (unsigned long long)op->count, (unsigned long long)op->size_bytes,
                gr_dtype_name((gr_dtype)op->dtype));
    }
    if (traits->reduces) {
        fprintf(out, ",\"op\":\"%s\",\"shards\":%d", gr_redop_name((gr_redop)op->op), op->shards);
    }
    if (traits->message) {
        fprintf(out, ",\"peer\":%d,\"tag\":%u", op->peer, op->tag);
    } else if (m->now->head->algorithms == gr_part_algorithms()) {
        fprintf(out, ",\"algorithm\":\"%s\"", gr_flight_recorder_algorithm(op->algorithm));
    }
    if (traits->rooted && !traits->message) {
        fprintf(out, ",\"root\":%d", op->root);
    }
    write_site(m, op);
    if (op->waited_for >= 0) {
        fprintf(out, ",\"waited_us\":%.3f,\"waited_for_rank\":%d", waited_ns / 1000,
                op->waited_for);
    }
    if (op->status != GR_OK) {
        fprintf(out, ",\"status\":\"%s\"",
                op->ended == 0 ? "unfinished" : gr_status_name((gr_status)op->status));
    }
    fputc('}', out);
}

static void write_operation(merger *m, const gr_timeline_op *op, double last_ns)
{
    const timeline_part *p = m->now;
    double start_ns = time_of(p, op->head.at);
    double end_ns = op->ended != 0 ? time_of(p, op->ended) : last_ns;
    end_ns = end_ns > start_ns ? end_ns : start_ns;
    double waited_ns = (double)op->waited * p->ns_per_tick;
    waited_ns = waited_ns < end_ns - start_ns ? waited_ns : end_ns - start_ns;
    m->summary->unfinished += op->ended == 0;
    uint32_t tid = find_track(m, op, start_ns, end_ns);
    begin_event(m, "X", tid, start_ns);
    fprintf(m->out, ",\"dur\":%.3f,\"cat\":\"comm\",\"name\":\"%s", (end_ns - start_ns) / 1000,
            gr_coll_name((gr_coll)op->coll));
    if (op->name_bytes > 0) {
        fputc(' ', m->out);
        write_text(m->out, op->text, op->name_bytes);
    }
    fputc('"', m->out);
    write_arguments(m, op, waited_ns);
    end_event(m);
    if (op->waited_for >= 0 && waited_ns >= WAIT_SHOWN_NS) {
        begin_event(m, "X", tid, start_ns);
        fprintf(m->out, ",\"dur\":%.3f,\"cat\":\"late\",\"name\":\"until rank %d came\"",
                waited_ns / 1000, op->waited_for);
        end_event(m);
    }
}

static void write_phase(merger *m, const gr_part_phase *phase)
{
    static const char *const names[GR_TIMELINE_PHASE_COUNT] = {
        [GR_TIMELINE_STEP] = "step",       [GR_TIMELINE_DATA] = "data",
        [GR_TIMELINE_FORWARD] = "forward", [GR_TIMELINE_BACKWARD] = "backward",
        [GR_TIMELINE_WAIT] = "wait",       [GR_TIMELINE_UPDATE] = "update"};
    static const char *const numbers[GR_TIMELINE_PHASE_COUNT] = {
        [GR_TIMELINE_STEP] = "step",     [GR_TIMELINE_DATA] = "shard",
        [GR_TIMELINE_FORWARD] = "shard", [GR_TIMELINE_BACKWARD] = "shard",
        [GR_TIMELINE_WAIT] = "bucket",   [GR_TIMELINE_UPDATE] = "bucket"};
    double start_ns = time_of(m->now, phase->head.at), end_ns = time_of(m->now, phase->ended);
    begin_event(m, "X", TRACK_TRAINING, start_ns);
    fprintf(m->out, ",\"dur\":%.3f,\"cat\":\"train\",\"name\":\"%s\",\"args\":{\"%s\":%llu}",
            end_ns > start_ns ? (end_ns - start_ns) / 1000 : 0, names[phase->phase],
            numbers[phase->phase], (unsigned long long)phase->number);
    end_event(m);
}

static void write_mark(merger *m, const gr_part_text *mark)
{
    begin_event(m, "i", TRACK_RANK, time_of(m->now, mark->head.at));
    fprintf(m->out, ",\"s\":\"p\",\"cat\":\"mark\",\"name\":\"%s\",\"args\":{\"text\":\"",
            mark->what == GR_TIMELINE_STALL ? "stall" : "failure");
    write_text(m->out, mark->text, mark->text_bytes);
    fputs("\"}", m->out);
    end_event(m);
}

/* ---- Parts ----------------------------------------------------------------------------------- */
/* The last that is known of a rank: to there an operation is drawn that it did not end. */
static double last_time(const timeline_part *p)
{
    uint64_t last = p->head->ticks[1];
    size_t at = sizeof(gr_part_head);
    while (at < p->used) {
        const gr_part_record *record = record_at(p, at);
        uint64_t ended = record->kind == GR_PART_OPERATION ? ((const gr_timeline_op *)record)->ended
                         : record->kind == GR_PART_PHASE   ? ((const gr_part_phase *)record)->ended
                                                           : 0;
        uint64_t begun = record->kind == GR_PART_SITE ? 0 : record->at;
        last = begun > last ? begun : last;
        last = ended > last ? ended : last;
        at += record->size_bytes;
    }
    return time_of(p, last);
}

static void write_part(merger *m, const timeline_part *p)
{
    m->now = p;
    memset(m->track_of, 0, COMMS * sizeof *m->track_of);
    m->track_count = 0;
    m->site_count = 0;
    const char *host = p->head->host;
    write_name(m, "process_name", 0, "rank %d%s%s", p->head->rank, host[0] ? " on " : "", host);
    write_order(m, "process_sort_index", 0, (uint32_t)p->head->rank);
    write_name(m, "thread_name", TRACK_RANK, "rank");
    write_order(m, "thread_sort_index", TRACK_RANK, TRACK_RANK);
    write_name(m, "thread_name", TRACK_TRAINING, "training");
    write_order(m, "thread_sort_index", TRACK_TRAINING, TRACK_TRAINING);
    double last_ns = last_time(p);
    size_t at = sizeof(gr_part_head);
    while (at < p->used) {
        const gr_part_record *record = record_at(p, at);
        switch (record->kind) {
        case GR_PART_OPERATION:
            write_operation(m, (const gr_timeline_op *)record, last_ns);
            break;
        case GR_PART_PHASE:
            write_phase(m, (const gr_part_phase *)record);
            break;
        case GR_PART_MARK:
            write_mark(m, (const gr_part_text *)record);
            break;
        default:
            keep_site(m, (const gr_part_text *)record);
            break;
        }
        at += record->size_bytes;
    }
    gr_timeline_summary *summary = m->summary;
    summary->lost += p->head->lost;
    summary->cut_rank = p->cut && summary->cut_rank < 0 ? p->head->rank : summary->cut_rank;
}

/* Processes of one host have one clock; hosts are as far apart as their times of day say. */
static void set_clocks(merger *m)
{
    for (int i = 0; i < m->count; i++) {
        timeline_part *p = &m->parts[i];
        int same = 0;
        while (strcmp(m->parts[same].head->host, p->head->host) != 0) {
            same++;
        }
        /* As seen from the first part, so that no digits are lost. */
        p->shift_ns = (double)apart(m->parts[same].head->wall_ns, m->parts[0].head->wall_ns);
        double begin_ns = (double)p->head->ns[0] + p->shift_ns;
        m->begin_ns = i == 0 || begin_ns < m->begin_ns ? begin_ns : m->begin_ns;
    }
}

/* ---- All ------------------------------------------------------------------------------------- */
static gr_status map_parts(merger *m, const char *path, int rank_count, gr_diag *diag)
{
    int capacity = 0;
    int limit = rank_count > 0 ? rank_count : RANKS_MAX;
    int said = 0; /* how many there are, as the parts say */
    for (int rank = 0; rank < limit; rank++) {
        timeline_part p;
        gr_status status = map_part(path, rank, &p, diag);
        if (status == GR_E_NOT_FOUND) {
            m->summary->missing = m->summary->missing < 0 ? rank : m->summary->missing;
            if (rank_count == 0 && rank >= said && said > 0) {
                break;
            }
            continue;
        }
        if (status != GR_OK) {
            return status;
        }
        if (m->count == capacity) {
            capacity = capacity > 0 ? 2 * capacity : 16;
            timeline_part *parts = realloc(m->parts, (size_t)capacity * sizeof *parts);
            if (!parts) {
                munmap((void *)(uintptr_t)p.at, p.mapped);
                return gr_fail(diag, GR_E_NO_MEMORY, "no memory for %d parts of a timeline",
                               capacity);
            }
            m->parts = parts;
        }
        m->parts[m->count++] = p;
        said = p.head->world_size;
        limit = rank_count > 0 ? rank_count : said;
    }
    if (m->count == 0) {
        return gr_fail(diag, GR_E_NOT_FOUND,
                       "there are no parts of a timeline in %s.0, %s.1 ...: no rank has written "
                       "one, or they were made into one file already",
                       path, path);
    }
    return GR_OK;
}

/* Of a rank that was killed when it had made its part, and written nothing yet: that is empty, or
 * begins with zeros. */
static void remove_unbegun(const char *path, int rank)
{
    static const gr_part_head zeros;
    gr_part_head head;
    char name[GR_PART_PATH_BYTES];
    int fd = gr_part_path(name, path, rank) ? open(name, O_RDONLY | O_CLOEXEC) : -1;
    ssize_t got = fd >= 0 ? read(fd, &head, sizeof head) : -1;
    if (got >= 0 && memcmp(&head, &zeros, (size_t)got) == 0) {
        (void)unlink(name);
    }
    if (fd >= 0) {
        close(fd);
    }
}

static gr_status write_all(void *arg, int fd, gr_diag *diag)
{
    char buffer[GR_ERRNO_TEXT_BYTES];
    merger *m = arg;
    int own = fcntl(fd, F_DUPFD_CLOEXEC, 0); /* the file closes it */
    m->out = own >= 0 ? fdopen(own, "w") : NULL;
    if (!m->out) {
        int error = errno;
        if (own >= 0) {
            close(own);
        }
        return gr_fail(diag, GR_E_IO, "the timeline %s cannot be written: %s", m->path,
                       gr_text_errno(error, buffer));
    }
    fprintf(m->out,
            "{\"displayTimeUnit\":\"ms\",\"otherData\":{\"monotonic_ns\":%.0f},\"traceEvents\":[\n",
            m->begin_ns);
    for (int i = 0; i < m->count; i++) {
        write_part(m, &m->parts[i]);
    }
    fputs("\n]}\n", m->out);
    bool failed = ferror(m->out) != 0;
    if (fclose(m->out) != 0 || failed) {
        return gr_fail(diag, GR_E_IO, "the timeline %s cannot be written: %s", m->path,
                       gr_text_errno(errno, buffer));
    }
    return GR_OK;
}

gr_status gr_timeline_merge(const char *path, int rank_count, gr_timeline_summary *summary_out,
                            gr_diag *diag)
{
    gr_timeline_summary summary = {.missing = -1, .cut_rank = -1};
    merger m = {.path = path, .first = true, .summary = &summary};
    gr_status status = map_parts(&m, path, rank_count, diag);
    if (status == GR_OK) {
        m.track_of = malloc(COMMS * sizeof *m.track_of);
        m.tracks = malloc(TRACKS_MAX * sizeof *m.tracks);
        m.sites = malloc(SITES_MAX * sizeof *m.sites);
        status = m.track_of && m.tracks && m.sites
                     ? GR_OK
                     : gr_fail(diag, GR_E_NO_MEMORY, "no memory to make the timeline %s", path);
    }
    if (status == GR_OK) {
        set_clocks(&m);
        status = gr_file_replace_by(path, write_all, &m, diag);
    }
    for (int rank = 0; rank < rank_count && status == GR_OK; rank++) {
        remove_unbegun(path, rank);
    }
    for (int i = 0; i < m.count; i++) {
        char name[GR_PART_PATH_BYTES];
        if (status == GR_OK && gr_part_path(name, path, m.parts[i].head->rank)) {
            (void)unlink(name);
        }
        munmap((void *)(uintptr_t)m.parts[i].at, m.parts[i].mapped);
    }
    summary.ranks = m.count;
    free(m.sites);
    free(m.tracks);
    free(m.track_of);
    free(m.parts);
    if (status == GR_OK) {
        *summary_out = summary;
    }
    return status;
}

void gr_timeline_clear(const char *path, int rank_count)
{
    for (int rank = 0; rank < rank_count; rank++) {
        timeline_part p;
        char name[GR_PART_PATH_BYTES];
        gr_diag ignored; /* what is no part is not ours to remove */
        remove_unbegun(path, rank);
        if (map_part(path, rank, &p, &ignored) == GR_OK) {
            munmap((void *)(uintptr_t)p.at, p.mapped);
            if (gr_part_path(name, path, rank)) {
                (void)unlink(name);
            }
        }
    }
}
